"""Training under masks: a stack of agents as one batched model, resumable bit for bit."""

import bisect
import contextlib
import functools
import gc
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from singleshot.errors import UserError
from singleshot.pruning.dynamic import METHODS, Change, changes
from singleshot.pruning.pruner import of_layers
from singleshot.pruning.selection import Scope
from singleshot.pruning.variant import DENSE, SMALL
from singleshot.random_streams import stream
from singleshot.rl.agents import Agent, AgentMasks, AgentSpec, flatten_masks, initial_networks, parts_of
from singleshot.rl.algorithm import Algorithm
from singleshot.rl.data.replay import Randomness, ReplayBuffer
from singleshot.rl.networks import DenseNetwork, Execution, LayerTensors
from singleshot.rl.training.learner import Learner

WARM_UP = 3
"""Number of steps before a capture (PyTorch's own number for `make_graphed_callables`), in which libraries
create their handles and workspaces."""
CHECK_EVERY = 100
"""Largest number of updates between checks of the losses, which wait for the device."""


def repeater(
    step: Callable[[int], None], period: int, generators: Iterable[torch.Generator], device: str
) -> Callable[[range], None]:
    """A function that makes the steps of given numbers on `device`, with captured graphs if it is a GPU.

    `step` takes a step's number modulo `period`, on which alone its operations may depend, returns nothing,
    and changes tensors in place. On CUDA, these tensors have to stay at their addresses from their first step
    on, no value may be read back from the device within a step, and the step may draw from no other
    generators than `generators`.
    """
    if torch.device(device).type == "cuda":
        return CapturedStep(step, period, generators).repeat
    return functools.partial(repeat, step, period)


def repeat(step: Callable[[int], None], period: int, numbers: range) -> None:
    """Make the steps of these `numbers`, without a graph."""
    for number in numbers:
        step(number % period)


class CapturedStep:
    """A step on a GPU: its first calls are plain calls, then it is captured and replayed.

    Each number modulo the period has a graph. Like plain calls, replays begin with the current state of the
    registered generators and advance them, so a generator's state between two calls of :meth:`repeat` is the
    same as without a graph.
    """

    def __init__(
        self, step: Callable[[int], None], period: int, generators: Iterable[torch.Generator]
    ) -> None:
        self.step, self.period = step, period
        self.generators = list(generators)
        self.warm_up_left = WARM_UP * period
        self.stream = torch.cuda.Stream()
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def repeat(self, numbers: range) -> None:
        """Make the steps of these `numbers`; returns before the device has made them."""
        eager = min(len(numbers), self.warm_up_left)
        # Plain calls on the stream of the capture, so that libraries allocate there what they need.
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            repeat(self.step, self.period, numbers[:eager])
        torch.cuda.current_stream().wait_stream(self.stream)
        self.warm_up_left -= eager
        for number in numbers[eager:]:
            phase = number % self.period
            if phase not in self.graphs:
                self.graphs[phase] = graph = torch.cuda.CUDAGraph()
                for generator in self.generators:
                    graph.register_generator_state(generator)  # PyTorch 2.14 will do so by itself
                with torch.cuda.graph(graph, stream=self.stream):
                    self.step(phase)
            self.graphs[phase].replay()


@contextlib.contextmanager
def flushed_denormals() -> Iterator[None]:
    """Make the CPU treat numbers below 1e-38 as 0.

    Due to the VAE's KL term, the gradients of latents that carry no information fall below this limit, and
    Adam's squares of these gradients even sooner. An operation on such a number takes a hundred times as
    long. Without such numbers, dense BC makes 2.1 times as many updates per second (batch of 32, 1,500
    updates of Hopper, one thread).
    """
    before = not torch.tensor(1e-39).mul(1)  # PyTorch has no function that tells
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


@dataclass
class Member:
    """An agent of a stack."""

    spec: AgentSpec
    masks: AgentMasks
    """Masks, on the CPU, which change in training if the pruner is one of `METHODS`."""
    scope: Scope = "part"
    """Which weights compete when masks change."""


class Stack:
    """K agents in training, and all that changes while they train.

    The agents share `algorithm`, and differ in pruner, sparsity, seed and, if `data` has a dataset for each,
    in their data. `updates` is the number of updates in all. Training begins with `networks`, if they are
    given, else with initial ones, of which another `draw` gives others.

    Raises:
        UserError: execution is `sparse`, but there are several agents or a GPU.
    """

    def __init__(
        self,
        members: Sequence[Member],
        algorithm: Algorithm,
        data: ReplayBuffer,
        updates: int,
        *,
        networks: Mapping[str, DenseNetwork] | None = None,
        draw: int = 0,
        execution: Execution = "auto",
    ) -> None:
        self.members, self.algorithm, self.data, self.updates = members, algorithm, data, updates
        seeds, device = [member.spec.seed for member in members], data.device
        if torch.device(device).type == "cuda":
            # Free an earlier stack, which refers to itself through its step and whose graph has own memory.
            gc.collect()
            torch.cuda.empty_cache()
        self.learner = Learner(
            networks or initial_networks(algorithm, seeds, draw),
            algorithm,
            self.masks,
            device,
            execution,
            updates,
        )
        self.randomness = Randomness("training", seeds, device=device)
        self.make_updates = repeater(
            self.make_update, algorithm.delay, self.randomness.generators.values(), device
        )
        self.update = 0
        """Number of updates made so far."""
        self.losses = LossSums()

    @property
    def masks(self) -> dict[str, LayerTensors] | None:
        """Masks of all agents, (K, in, out); None if none is pruned."""
        if all(member.spec.pruner in (DENSE, SMALL) for member in self.members):
            return None
        first, *others = (member.masks for member in self.members)
        return {
            name: {
                layer: torch.stack([mask.T, *(other[name][layer].T for other in others)])
                for layer, mask in own.items()
            }
            for name, own in first.items()
        }

    def train_until(self, update: int) -> None:
        """Make the updates up to number `update`, and change the masks that change after it.

        Raises:
            UserError: a loss is no longer finite.
        """
        self.make_updates(range(self.update + 1, update + 1))
        self.update = update
        self.losses.check_finite([member.spec for member in self.members], update)  # waits for the device
        self.change_masks()

    def next_stop(self, *periods: int) -> int:
        """The next update after which masks change, losses are checked, or one of `periods` is over."""
        of_masks = (changes(member.spec.pruner, self.updates) for member in self.members)
        following = (own[i] for own in of_masks if (i := bisect.bisect(own, self.update)) < len(own))
        over = ((self.update // period + 1) * period for period in (*periods, CHECK_EVERY))
        return min(self.updates, *over, *following)

    def change_masks(self) -> None:
        """Change the masks of the agents whose method does so after this update.

        Batch and random numbers depend on seed and update alone, so that training itself draws the same
        numbers with any method.
        """
        members = [
            (i, member)
            for i, member in enumerate(self.members)
            if self.update in changes(member.spec.pruner, self.updates)
        ]
        gradients = functools.cache(self._gradients)

        def gradients_of(i: int) -> dict[str, LayerTensors]:
            return of_layers(lambda g: g[i : i + 1], gradients())

        for i, member in members:
            change = Change(
                self.update,
                self.updates,
                member.spec.sparsity,
                {name: network.weights for name, network in self.learner.whole(i).items()},
                of_layers(lambda mask: mask.T[None].to(self.data.device), member.masks),
                functools.partial(gradients_of, i),
                stream("mask changes", member.spec.seed, self.update),
                member.scope,
                parts_of(self.algorithm),
            )
            changed = METHODS[member.spec.pruner].change(change)
            member.masks = of_layers(lambda mask: mask[0].T.contiguous().cpu(), changed)
        if members and (masks := self.masks):
            self.learner.change_masks(masks)

    def _gradients(self) -> dict[str, LayerTensors]:
        """Those of all weights of all agents, on a batch that no update sees."""
        seeds, device = self.randomness.seeds, self.randomness.device
        randomness = Randomness("gradients", seeds, self.update, device=device)
        batch = self.data.sample(randomness, self.algorithm.config.batch_size)
        return self.learner.gradients(batch, randomness)

    def make_update(self, phase: int) -> None:
        """Make one update, on the device alone: no value is read back from it, and nothing is counted.

        `phase` is the update's number modulo the delay of the algorithm's delayed networks.
        """
        batch = self.data.sample(self.randomness, self.algorithm.config.batch_size)
        self.losses.add(self.learner.update(batch, self.randomness, whole=phase == 0))

    def agent(self, i: int) -> Agent:
        """Agent i as it is now, for raw states."""
        networks = self.learner.whole(i)
        if self.data.normalizer:
            normalizer = self.data.normalizer.of_agent(i)
            networks = {
                name: normalizer.fold(networks[name], architecture.state_layers)
                for name, architecture in self.algorithm.architectures.items()
            }
        member = self.members[i]
        return Agent(member.spec, self.algorithm, networks, member.masks, self.data.bounds)

    def agent_state(self, i: int) -> dict[str, Tensor]:
        """A copy, on the CPU, of agent i's own part of everything that later updates depend on."""
        member = self.members[i]
        state = {
            "update": torch.tensor(self.update),
            "generator": self.randomness.generators[member.spec.seed].get_state(),
        }
        if member.spec.pruner in METHODS:
            state |= {f"mask.{key}": mask for key, mask in flatten_masks(member.masks).items()}
        return state | self.losses.state(i) | self.learner.agent_state(i)

    def restore(self, agents: Sequence[Mapping[str, Tensor]]) -> None:
        """Resume from the states of all K agents (:meth:`agent_state`); those that made no update have none.

        Raises:
            ValueError: the states are of different updates.
        """
        updates = {int(agent["update"]) if agent else 0 for agent in agents}
        if len(updates) > 1:
            raise ValueError(f"a stack's agents have to be at the same update, not at {sorted(updates)}")
        if not any(agents):
            return
        self.update = updates.pop()
        for seed, agent in zip(self.randomness.seeds, agents, strict=True):
            self.randomness.restore(seed, agent["generator"], self.update)
        self.losses.restore(agents, self.randomness.device)
        for member, agent in zip(self.members, agents, strict=True):
            if member.spec.pruner in METHODS:
                member.masks = {
                    name: {layer: agent[f"mask.{name}.{layer}"] for layer in own}
                    for name, own in member.masks.items()
                }
        self.learner.restore(agents, self.update, self.masks)


class LossSums:
    """Sums of each agent's losses since the last time that they were cleared, on the device that trains."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        """(K,) each, in double precision: a sum of thousands of terms in single precision would lose digits.
        The tensors stay the same during training: a CUDA graph adds to those that it was captured with."""
        self.counts: dict[str, Tensor] = {}
        """Number of terms of each sum, (). Tensors, because code in a CUDA graph can't count otherwise."""

    def state(self, agent: int) -> dict[str, Tensor]:
        """A copy of what agent `agent` needs to resume."""
        sums = {f"loss_sum.{name}": total[agent].cpu().clone() for name, total in self.sums.items()}
        return sums | {f"loss_count.{name}": count.cpu().clone() for name, count in self.counts.items()}

    def restore(self, agents: Sequence[Mapping[str, Tensor]], device: str) -> None:
        """Resume from the agents' states."""
        for key, count in agents[0].items():
            kind, _, name = key.partition(".")
            if kind == "loss_count":
                self.counts[name] = count.to(device)
                self.sums[name] = torch.stack([agent[f"loss_sum.{name}"] for agent in agents]).to(device)

    def add(self, losses: Mapping[str, Tensor]) -> None:
        """Add the losses of an update."""
        for name, loss in losses.items():
            if name not in self.sums:
                self.sums[name] = torch.zeros_like(loss, dtype=torch.float64)
                self.counts[name] = torch.zeros((), dtype=torch.int64, device=loss.device)
            self.sums[name].add_(loss)
            self.counts[name].add_(1)

    def clear(self) -> None:
        """Begin new sums."""
        for total in (*self.sums.values(), *self.counts.values()):
            total.zero_()

    def means(self, agent: int) -> dict[str, float]:
        """Means of an agent's losses. A delayed network's loss may not have been computed yet."""
        counts = {name: int(count) for name, count in self.counts.items()}
        return {name: float(self.sums[name][agent]) / count for name, count in counts.items() if count}

    def check_finite(self, specs: Sequence[AgentSpec], update: int) -> None:
        """Raise an error if a sum is not finite. It then stays so, and occasional checks miss nothing."""
        for name, total in self.sums.items():
            for spec, value in zip(specs, total.tolist(), strict=True):
                if not math.isfinite(value):
                    raise UserError(
                        f"{spec}: {name} became {value} at or shortly before update {update}; "
                        "look for extreme values in the dataset, or lower the learning rate"
                    )
