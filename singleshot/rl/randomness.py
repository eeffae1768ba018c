"""Random numbers that depend only on the seed and are shared by the agents of a stack with that seed."""

from collections.abc import Sequence

import torch
from torch import Tensor

from singleshot.random_streams import stream


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
