"""Random streams: a separate generator for each purpose, seed and counter; and those of K agents together."""

import zlib
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor


def stream(*key: str | int, device: str = "cpu", bits: Literal[32, 64] = 32) -> torch.Generator:
    """The generator for a key: a purpose (`training`, `evaluation`, …), a seed, and counters, e.g. the step.

    Streams are independent if their keys differ and have equally many parts, with integers below 2³². Drawing
    more numbers from one then never changes another: evaluating an agent more often doesn't affect its
    training. A stream whose key includes the step needs no state in a checkpoint.

    `bits` is the width of the number that the key is hashed to. Photos and the training of styles use 64,
    everything else 32. Another width would give different random numbers, and so different networks from the
    same seeds.
    """
    words = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in key]
    sequence = np.random.SeedSequence(words)
    (hashed,) = sequence.generate_state(1, np.uint32 if bits == 32 else np.uint64)
    return torch.Generator(device).manual_seed(int(hashed))


class Randomness:
    """Random numbers for K agents, drawn once per distinct seed and handed to every agent with that seed.

    So an agent sees exactly the same numbers in a stack as it does alone. Numbers are drawn on `device`,
    where they are used: every CPU gives the same numbers, a GPU gives others.
    """

    def __init__(self, purpose: str, seeds: Sequence[int], *counters: int, device: str = "cpu") -> None:
        self.purpose = purpose
        self.seeds = tuple(seeds)
        self.device = device
        self.generators = {
            seed: stream(purpose, seed, *counters, device=device) for seed in dict.fromkeys(seeds)
        }
        position = {seed: i for i, seed in enumerate(self.generators)}
        self._agents = torch.tensor([position[seed] for seed in seeds], device=device)

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers, (K, *shape)."""
        return self._share(
            [torch.randn(shape, generator=g, device=self.device) for g in self.generators.values()]
        )

    def integers(self, high: int, *shape: int) -> Tensor:
        """Integers in [0, high), (K, *shape)."""
        return self._share(
            [torch.randint(high, shape, generator=g, device=self.device) for g in self.generators.values()]
        )

    def restore(self, seed: int, state: Tensor, *counters: int) -> None:
        """Continue the generator of `seed` from its `state`.

        A state from another kind of device can't be used. The generator then begins the stream of `counters`.
        """
        generator = self.generators[seed]
        if state.shape == generator.get_state().shape:
            generator.set_state(state)
        else:
            generator.manual_seed(stream(self.purpose, seed, *counters).initial_seed())

    def _share(self, draws: list[Tensor]) -> Tensor:
        if len(draws) == 1:
            return draws[0].expand(len(self.seeds), *draws[0].shape)
        return torch.stack(draws)[self._agents]
