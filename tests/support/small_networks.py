"""Files of networks as training leaves them, with initial weights."""

from pathlib import Path
from typing import Any

import torch

from tasks.offline_rl.agents import DENSE, Agent, AgentSpec, dense_masks, initial_networks, make_algorithm
from tasks.offline_rl.bc import BCConfig
from tasks.offline_rl.bcq import BCQConfig
from tasks.style.model_file import ModelCard, save_model
from tasks.style.transformer_net import TransformerNet


def make_agent(algorithm: str, sparsity: float, seed: int = 0, task: str = "Hopper") -> Agent:
    """An untrained agent with random masks, each layer pruned to `sparsity`; dense for 0."""
    spec = AgentSpec(task, algorithm, "random" if sparsity else DENSE, sparsity, seed)  # type: ignore[arg-type]
    config = BCQConfig(evaluation_samples=10) if algorithm == "bcq" else BCConfig()
    made = make_algorithm(spec, config)
    generator = torch.Generator().manual_seed(seed)
    masks, networks = dense_masks(made), initial_networks(made, [seed])
    for name, layers in masks.items():
        for layer, mask in layers.items():
            layers[layer] = torch.rand(mask.shape, generator=generator) >= sparsity
            networks[name].weights[layer] *= layers[layer].T
    return Agent(spec, config, networks, masks)


def save_agent(path: Path, *arguments: Any, **keywords: Any) -> Path:
    """Write :func:`make_agent`'s."""
    make_agent(*arguments, **keywords).save(path)
    return path


def save_style(path: Path, width: int = 4) -> Path:
    """Write a style's model, untrained but for residual blocks that do something."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = TransformerNet(width)
        for name, parameter in network.named_parameters():
            if ".body." in name and parameter.ndim == 1:
                torch.nn.init.uniform_(parameter, 0.5, 1.5)
    save_model(network, ModelCard("dots", "0" * 64, "photos", 1, {}, {}, "unknown"), path)
    return path
