"""Random numbers that depend on the seed alone, shared by the agents of a stack that have that seed."""

import zlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def stream(purpose: str, seed: int, *counters: int) -> torch.Generator:
    """A CPU generator for one purpose (`training`, `evaluation`, …) of one seed.

    Streams of different purposes or counters are independent, so that drawing more for one never moves
    another: evaluating an agent more often leaves its training as it was.
    """
    entropy = np.random.SeedSequence([zlib.crc32(purpose.encode()), seed, *counters])
    return torch.Generator().manual_seed(int(entropy.generate_state(1)[0]))


class Randomness:
    """Draws for K agents: once per distinct seed, handed to every agent that has it.

    Numbers are drawn on the CPU, whose generator gives the same ones on every machine, and moved to
    `device`. So agent i of a stack sees exactly what it sees alone.
    """

    def __init__(self, purpose: str, seeds: Sequence[int], *counters: int, device: str = "cpu") -> None:
        self.seeds = tuple(seeds)
        self.device = device
        self.generators = {seed: stream(purpose, seed, *counters) for seed in dict.fromkeys(seeds)}
        position = {seed: i for i, seed in enumerate(self.generators)}
        self._agents = torch.tensor([position[seed] for seed in seeds], device=device)

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers, (K, *shape)."""
        return self._share([torch.randn(shape, generator=g) for g in self.generators.values()])

    def integers(self, high: int, *shape: int) -> Tensor:
        """Integers in [0, high), (K, *shape)."""
        return self._share([torch.randint(high, shape, generator=g) for g in self.generators.values()])

    def _share(self, draws: list[Tensor]) -> Tensor:
        drawn = torch.stack(draws).to(self.device)  # (seeds, *shape)
        if len(draws) == 1:
            return drawn.expand(len(self.seeds), *drawn.shape[1:])
        return drawn[self._agents]
