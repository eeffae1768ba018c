"""Estimates of the GPU memory that a stack of agents takes, before any of it is allocated."""

import gc
import math

import torch

from singleshot.rl.agents import layers_of
from singleshot.rl.algorithm import Algorithm
from singleshot.rl.networks import Layers

USABLE = 0.9
"""Fraction of the free memory that a stack may fill: libraries take workspaces, and allocators lose some."""


def bytes_per_agent(algorithm: Algorithm, episodes: int) -> int:
    """Bytes that each agent of a stack takes while it trains and is scored, in single precision.

    Every parameter takes six numbers: itself, its mask, Adam's two moments, and the gradients of this step
    and the last one. Target networks add one number per parameter. Gradients need each layer's outputs for a
    batch. The remaining memory is largest where one layer leads to the next for all actions of a target, and
    again where a policy samples (counted separately, as a CUDA graph has its own memory).
    """
    by_network, batch_size = layers_of(algorithm), algorithm.config.batch_size
    sizes = {name: _parameters(layers) for name, layers in by_network.items()}
    outputs = [size for layers in by_network.values() for _, size in layers.values()]
    rows = batch_size * algorithm.target_samples + episodes * math.prod(algorithm.noise_shape[:-1])
    parameters = 6 * sum(sizes.values()) + sum(sizes[name] for name in algorithm.targets)
    return 4 * (parameters + batch_size * sum(outputs) + 2 * max(outputs) * rows)


def require_memory(agents: int, each: int, device: str) -> None:
    """Check that `device` has the memory for `agents` agents of `each` bytes; a CPU is not checked.

    Raises:
        torch.OutOfMemoryError: as if the allocation had been tried, for a caller that retries with fewer.
    """
    if torch.device(device).type != "cuda":
        return
    # Free an earlier stack, which refers to itself through its step and whose graph has its own memory pool.
    gc.collect()
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    if agents * each > USABLE * free:
        raise torch.OutOfMemoryError(
            f"{agents} agents take about {agents * each / 2**30:.2f} GiB, "
            f"the GPU has {free / 2**30:.2f} GiB free"
        )


def _parameters(layers: Layers) -> int:
    return sum((inputs + 1) * outputs for inputs, outputs in layers.values())
