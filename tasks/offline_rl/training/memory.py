"""How much of a GPU a stack of agents takes, known before any of it is allocated."""

import gc
import math

import torch

from tasks.offline_rl.agents import layers_of
from tasks.offline_rl.algorithm import Algorithm
from tasks.offline_rl.networks import Layers

USABLE = 0.9
"""Part of the free memory that a stack may fill: libraries take workspaces, and allocators lose some."""


def bytes_per_agent(algorithm: Algorithm, episodes: int) -> int:
    """Bytes that each agent of a stack takes while it trains and is scored, in single precision.

    Of every parameter there are the weight, its mask, Adam's two moments, and the gradients of this step and
    the last; and there are targets. A gradient takes each layer's outputs of a batch. The rest is largest
    where one layer leads to the next over a target's actions, and again where a policy samples (kept apart: a
    CUDA graph has its own memory).
    """
    by_network, batch_size = layers_of(algorithm), algorithm.config.batch_size
    sizes = {name: _parameters(layers) for name, layers in by_network.items()}
    outputs = [size for layers in by_network.values() for _, size in layers.values()]
    rows = batch_size * algorithm.target_samples + episodes * math.prod(algorithm.noise_shape[:-1])
    parameters = 6 * sum(sizes.values()) + sum(sizes[name] for name in algorithm.targets)
    return 4 * (parameters + batch_size * sum(outputs) + 2 * max(outputs) * rows)


def require_memory(agents: int, each: int, device: str) -> None:
    """Do nothing if `device` has the memory for so many agents of `each` bytes; a CPU is not asked.

    Raises:
        torch.OutOfMemoryError: as if it had been tried, for a caller that tries again with fewer.
    """
    if torch.device(device).type != "cuda":
        return
    # What an earlier stack had: it refers to itself by its step, and its graph's memory is a pool of its own.
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
