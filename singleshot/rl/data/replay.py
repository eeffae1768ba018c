"""A dataset on the training device, and what K agents draw at random: minibatches of it, and noise."""

import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from singleshot.random_streams import stream
from singleshot.rl.data.transitions import Transitions
from singleshot.rl.networks import DenseNetwork, from_parameters


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
        return self._share(functools.partial(torch.randn, shape))

    def integers(self, high: int, *shape: int) -> Tensor:
        """Integers in [0, high), (K, *shape)."""
        return self._share(functools.partial(torch.randint, high, shape))

    def restore(self, seed: int, state: Tensor, *counters: int) -> None:
        """Continue the generator of `seed` from its `state`.

        A state from another kind of device can't be used. The generator then begins the stream of `counters`.
        """
        generator = self.generators[seed]
        if state.shape == generator.get_state().shape:
            generator.set_state(state)
        else:
            generator.manual_seed(stream(self.purpose, seed, *counters).initial_seed())

    def _share(self, draw: Callable[..., Tensor]) -> Tensor:
        draws = [draw(generator=own, device=self.device) for own in self.generators.values()]
        if len(draws) == 1:
            return draws[0].expand(len(self.seeds), *draws[0].shape)
        return torch.stack(draws)[self._agents]


@dataclass(frozen=True)
class Normalizer:
    """(s - μ) / (σ + 1e-3), as in TD3+BC (Fujimoto & Gu 2021, section 5).

    Arnob et al. (2021) do not say whether they normalise. HalfCheetah's coordinates differ in scale by a
    factor of 250, and Adam spends most of a short training on that: on 100,000 expert transitions, BC with
    SNIP at 95 % sparsity scores 50 (HalfCheetah) and 96 (Hopper) after 2,000 updates on normalised states,
    but 10 and 31 on raw states.
    """

    mean: Tensor
    """μ, (state,), or (K, 1, state) if each of K agents has its own"""
    scale: Tensor
    """σ + 1e-3, of the same shape"""

    @classmethod
    def of(cls, states: Tensor) -> "Normalizer":
        """The normaliser of a dataset's states, (N, state)."""
        correction = min(1, len(states) - 1)  # a single state deviates by 0
        return cls(states.mean(dim=0), states.std(dim=0, correction=correction) + 1e-3)

    @classmethod
    def stack(cls, normalizers: Sequence["Normalizer"]) -> "Normalizer":
        """The normaliser of a stack of agents, from each agent's own."""
        means, scales = ([getattr(each, name) for each in normalizers] for name in ("mean", "scale"))
        return cls(torch.stack(means)[:, None], torch.stack(scales)[:, None])

    def of_agent(self, agent: int) -> "Normalizer":
        """One agent's own normaliser."""
        if self.mean.ndim == 1:
            return self
        return Normalizer(self.mean[agent, 0], self.scale[agent, 0])

    def __call__(self, state: Tensor) -> Tensor:
        """Normalised states: any shape (…, state), or (K, n, state) for agents with their own."""
        return (state - self.mean) / self.scale

    def fold(self, network: DenseNetwork, layers: Collection[str]) -> DenseNetwork:
        """The network that computes from raw states what `network` computes from normalised states.

        `layers` are the layers whose inputs begin with the state. As x̂ W + b = x (W / σ) + (b - μ (W / σ)),
        only their parameters change; these are computed in double precision. Pruned weights stay zero.
        """
        parameters = network.parameters()
        for layer in layers:
            weight, bias = parameters[f"{layer}.weight"].detach(), parameters[f"{layer}.bias"].detach()
            size = len(self.mean)
            folded = weight[:, :size].double() / self.scale[:, None].double()
            parameters[f"{layer}.weight"] = torch.cat([folded.float(), weight[:, size:]], dim=1)
            parameters[f"{layer}.bias"] = (bias.double() - self.mean[None].double() @ folded).float()
        return from_parameters(parameters)

    @property
    def inverse(self) -> "Normalizer":
        """Takes normalised states to raw ones, s = (ŝ + μ/σ) / (1/σ); folding it undoes :meth:`fold`."""
        return Normalizer(-self.mean / self.scale, 1 / self.scale)


@dataclass(frozen=True)
class Batch:
    """Transitions for K agents."""

    state: Tensor
    """(K, batch, state)"""
    action: Tensor
    """(K, batch, action)"""
    reward: Tensor
    """(K, batch)"""
    next_state: Tensor
    """(K, batch, state)"""
    not_done: Tensor
    """(K, batch): 0 where the next state is terminal, 1 elsewhere, including at time limits."""


class ReplayBuffer:
    """Transitions as single-precision tensors, with normalised states if `normalize_states` is true.

    A transition's values lie side by side, so that a minibatch takes one look-up a transition, not five.
    """

    def __init__(self, transitions: Transitions, device: str = "cpu", normalize_states: bool = False) -> None:
        self.device, self.bounds = device, transitions.bounds
        self.size = len(transitions)
        """Number of transitions that an agent draws from."""
        self._first_row: Tensor | None = None
        """Number of the first row of each agent's own transitions, (K, 1); None if all agents share them."""
        state, action, next_state = (
            torch.from_numpy(part).to(device)
            for part in (transitions.observations, transitions.actions, transitions.next_observations)
        )
        self.normalizer = Normalizer.of(state) if normalize_states else None
        if self.normalizer:
            state, next_state = self.normalizer(state), self.normalizer(next_state)
        numbers = (transitions.rewards, ~transitions.terminals)
        reward, not_done = (torch.from_numpy(part).to(device, torch.float32)[:, None] for part in numbers)
        parts = [state, action, reward, next_state, not_done]
        self._sizes = [part.shape[1] for part in parts]
        self._rows = torch.cat(parts, dim=1)

    @classmethod
    def of_agents(
        cls, datasets: Sequence[Transitions], device: str = "cpu", normalize_states: bool = False
    ) -> Self:
        """A buffer in which agent i has the transitions `datasets[i]`, and their normaliser.

        A dataset that several agents share is kept once. An agent gets the same minibatches as from a buffer
        of its dataset alone.

        Raises:
            ValueError: the datasets differ in size, so that agents can't share the numbers that are drawn, or
                in the bounds of actions.
        """
        distinct = {id(transitions): transitions for transitions in datasets}
        first, *others = (cls(each, device, normalize_states) for each in distinct.values())
        if not others:
            return first
        if any((other.size, other.bounds) != (first.size, first.bounds) for other in others):
            raise ValueError("datasets of a stack need equal numbers of transitions, and bounds of actions")
        positions = [list(distinct).index(id(transitions)) for transitions in datasets]
        of_agent = torch.tensor(positions, device=device)
        if first.normalizer:
            normalizers = [each.normalizer for each in (first, *others) if each.normalizer]
            first.normalizer = Normalizer.stack([normalizers[position] for position in positions])
        first._rows = torch.cat([first._rows, *(other._rows for other in others)])
        first._first_row = of_agent[:, None] * first.size
        return first

    def sample(self, randomness: Randomness, batch_size: int) -> Batch:
        """A minibatch for each seed, drawn with replacement."""
        i = randomness.integers(self.size, batch_size)  # (K, batch)
        return self.rows(i if self._first_row is None else i + self._first_row)

    def rows(self, i: Tensor) -> Batch:
        """The transitions in rows i, (K, batch)."""
        rows = self._rows.index_select(0, i.flatten()).unflatten(0, i.shape)
        state, action, reward, next_state, not_done = rows.split(self._sizes, dim=-1)
        return Batch(state, action, reward.squeeze(-1), next_state, not_done.squeeze(-1))
