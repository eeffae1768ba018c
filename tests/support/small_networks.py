"""Files of networks as training leaves them, with initial weights."""

import itertools
import json
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from singleshot.io.images import encode_jpeg, encode_png
from singleshot.pruning.variant import DENSE
from singleshot.rl.agents import Agent, AgentSpec, dense_masks, initial_networks, make_algorithm
from singleshot.rl.algorithms.bc import BCConfig
from singleshot.rl.algorithms.bcq import BCQConfig
from singleshot.rl.environments import LOCOMOTION
from singleshot.style.backbones import Backbone, save_backbone
from singleshot.style.model_file import ModelCard, save_model
from singleshot.style.transformer_net import TransformerNet

CHANNELS = (3, 64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512)
"""Of VGG16's picture and convolutions."""


SIZES = {"HalfCheetah": (17, 6), "Hopper": (11, 3), "Walker2d": (17, 6)}
"""Numbers of coordinates of the states and actions of each environment."""


def make_agent(algorithm: str, sparsity: float, seed: int = 0, environment: str = "Hopper") -> Agent:
    """An untrained agent with random masks, each layer pruned to `sparsity`; dense for 0."""
    spec = AgentSpec(environment, algorithm, "random" if sparsity else DENSE, sparsity, seed)
    config = BCQConfig(evaluation_samples=10) if algorithm == "bcq" else BCConfig()
    made = make_algorithm(spec, config, *SIZES[environment])
    generator = torch.Generator().manual_seed(seed)
    masks, networks = dense_masks(made), initial_networks(made, [seed])
    for name, layers in masks.items():
        for layer, mask in layers.items():
            layers[layer] = torch.rand(mask.shape, generator=generator) >= sparsity
            networks[name].weights[layer] *= layers[layer].T
    return Agent(spec, made, networks, masks, environment=LOCOMOTION[environment])


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


def random_alexnet(path: Path) -> Path:
    """Write an AlexNet with random weights."""
    generator = torch.Generator().manual_seed(1)
    shapes = ((64, 3, 11), (192, 64, 5), (384, 192, 3), (256, 384, 3), (256, 256, 3))
    convolutions = [
        (torch.randn(o, i, k, k, generator=generator) * (2 / (k * k * i)) ** 0.5, torch.zeros(o))
        for o, i, k in shapes
    ]
    save_backbone(Backbone("alexnet", convolutions, torch.full((3,), 0.5), torch.full((3,), 0.25)), path)
    return path


def style_inputs(directory: Path) -> dict[str, Path]:
    """What a style is trained from, by `train_style`'s names of it.

    Three photos, a painting of stripes, and VGG16 with random weights that keep activations' variance.
    """
    generator = torch.Generator().manual_seed(0)
    with zipfile.ZipFile(directory / "photos.zip", "w") as file:
        for name in ("a", "b", "c"):
            coarse = torch.rand(1, 3, 5, 6, generator=generator)
            photo = functional.interpolate(coarse, (50, 60), mode="bilinear")[0]
            file.writestr(f"{name}.jpg", encode_jpeg(photo))
    (directory / "card.json").write_text(json.dumps({"origin": "made for a test"}))
    colour = torch.tensor([0.9, 0.4, 0.1]).view(3, 1, 1)
    stripes = (torch.arange(48) // 3 % 2).float().expand(3, 40, 48) * colour
    (directory / "painting.png").write_bytes(encode_png(stripes))
    convolutions = [
        (torch.randn(o, i, 3, 3, generator=generator) * (2 / (9 * i)) ** 0.5, torch.zeros(o))
        for i, o in itertools.pairwise(CHANNELS)
    ]
    backbone = Backbone("vgg16", convolutions, torch.full((3,), 0.5), torch.full((3,), 0.25))
    save_backbone(backbone, directory / "weights.safetensors")
    return {
        "photos": directory,
        "painting": directory / "painting.png",
        "backbone": directory / "weights.safetensors",
    }


def save_scores(path, scores):
    """The evaluations of an agent, as `train` writes them."""
    rows = [f"0,{100 * number},{score}" for number, score in enumerate(scores)]
    path.write_text("\n".join(["seed,update,d4rl_score", *rows]) + "\n", encoding="utf-8")
    return path
