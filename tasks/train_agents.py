"""Training under masks: a stack of agents as one batched model, scored meanwhile, resumable bit for bit."""

import bisect
import contextlib
import functools
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from typing import Annotated

import safetensors.torch
import torch
from annotated_types import Ge
from torch import Tensor

from singleshot.errors import UserError
from singleshot.pruning.dynamic import METHODS, Change, changes
from singleshot.pruning.selection import Scope
from singleshot.random_streams import stream
from singleshot.rl.agents import (
    DENSE,
    SMALL,
    Agent,
    AgentMasks,
    AgentSpec,
    dense_masks,
    flatten_masks,
    initial_networks,
    load_masks,
    make_algorithm,
    parts_of,
)
from singleshot.rl.algorithm import AlgorithmConfig
from singleshot.rl.data.replay import ReplayBuffer
from singleshot.rl.data.transitions import Transitions
from singleshot.rl.environments import TASKS, d4rl_score
from singleshot.rl.evaluation.episode import FILE as EPISODE
from singleshot.rl.evaluation.episode import Episode
from singleshot.rl.evaluation.lockstep import Environments
from singleshot.rl.evaluation.play import EvaluationConfig, make_environments, play
from singleshot.rl.execution import Execution
from singleshot.rl.networks import LayerTensors
from singleshot.rl.randomness import Randomness
from singleshot.rl.training.cuda_graph import repeater
from singleshot.rl.training.learner import Learner
from singleshot.rl.training.memory import bytes_per_agent, require_memory
from tasks.job import Checkpoint, Event, Job, Metrics, Progress
from tasks.tables import write_csv

CHECK_EVERY = 100
"""Number of updates between reports of progress and checks of the losses, which wait for the device."""


@dataclass(frozen=True)
class TrainingConfig:
    """How long agents train."""

    updates: Annotated[int, Ge(1)] = 1_000_000
    eval_every: Annotated[int, Ge(1)] = 5_000
    """Number of updates between evaluations. The last update is always followed by an evaluation."""
    checkpoint_every: Annotated[int, Ge(1)] = 10_000
    """Number of updates between checkpoints, which is the most that an interruption can cost."""


@dataclass(frozen=True)
class TrainParams:
    """Everything that one training job depends on, besides its dataset and masks."""

    agent: AgentSpec
    algorithm: AlgorithmConfig
    training: TrainingConfig
    evaluation: EvaluationConfig
    reinitialize: bool = False
    """Whether to train other initial weights than those that were scored for pruning."""
    execution: Execution = "auto"
    scope: Scope = "part"
    """Which weights compete when masks change during training."""


@dataclass(frozen=True)
class Score:
    """One evaluation of one agent."""

    update: int
    return_mean: float
    return_std: float
    """Population standard deviation over the episodes."""
    d4rl_score: float
    episodes: int


@dataclass(frozen=True)
class ScoreRow(Score, AgentSpec):
    """A row of `scores.csv`: the agent's columns, then the evaluation's."""


def train(jobs: Sequence[Job]) -> Iterator[Event]:
    """Train the agents of all jobs as one stack.

    The agents share task, algorithm and configuration, and differ in pruner, sparsity, seed and dataset, of
    which all have the same number of transitions. Inputs are
    `dataset`, and `masks` if the agent begins with masks. Each job's output gets `agent.safetensors`,
    `scores.csv`, `agent.json` (specification, configuration and the stack's size), and
    `episode.safetensors`, the first episode of the last evaluation
    (:class:`~singleshot.rl.evaluation.episode.Episode`).

    Raises:
        ValueError: the jobs don't belong in one stack, or their checkpoints are of different updates; the
            caller groups jobs by :func:`checkpoint_step`.
        UserError: an input is damaged, or a loss is no longer finite.
        torch.OutOfMemoryError: a GPU's free memory doesn't hold the stack.
    """
    stack = Stack(jobs)
    with _flushed_denormals(), contextlib.closing(stack):
        stack.restore([job.checkpoint for job in jobs])
        training = stack.params.training
        while stack.update < training.updates:
            stack.train_until(stack.next_stop())
            last = stack.update == training.updates
            if last or stack.update % training.eval_every == 0:
                yield from stack.evaluate()
            if not last and stack.update % training.checkpoint_every == 0:
                yield from stack.checkpoints()
            yield Progress(stack.update / training.updates)
        stack.write()


def checkpoint_step(state: bytes) -> int:
    """The update after which a checkpoint of :func:`train` was made."""
    return int(safetensors.torch.load(state)["update"])


@contextlib.contextmanager
def _flushed_denormals() -> Iterator[None]:
    """Have the CPU treat numbers below 1e-38 as 0.

    Due to the VAE's KL term, the gradients of latents that carry no information fall below this limit, and
    Adam's squares of these gradients even sooner. An operation on such a number takes a hundred times as
    long. Without such numbers, dense BC makes 2.1 times as many updates per second (batch of 32, 1,500
    updates of Hopper, one thread).
    """
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


class Stack:
    """K agents in training, and all that changes while they train."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = jobs
        self.params = _shared_params(jobs)
        self.specs: list[AgentSpec] = [job.params.agent for job in jobs]
        self.task = TASKS[self.specs[0].task]
        self.algorithm = make_algorithm(self.specs[0], self.params.algorithm)
        self.masks = [
            load_masks(job.inputs["masks"], self.algorithm)
            if job.params.agent.mask_pruner
            else dense_masks(self.algorithm)
            for job in jobs
        ]
        """Masks of each agent, which change if its pruner is one of `METHODS`."""
        device, seeds = jobs[0].device, [spec.seed for spec in self.specs]
        paths = list(dict.fromkeys(job.inputs["dataset"] for job in jobs))
        self.data = ReplayBuffer.of_agents(
            [Transitions.load(path, self.task) for path in paths],
            [paths.index(job.inputs["dataset"]) for job in jobs],
            device,
            self.params.algorithm.normalize_states,
        )
        evaluation = self.params.evaluation
        episodes = max(evaluation.episodes, evaluation.final.episodes)
        each = bytes_per_agent(self.algorithm, episodes)
        require_memory(len(jobs), each, device)
        self.learner = Learner(
            initial_networks(self.algorithm, seeds, draw=int(self.params.reinitialize)),
            self.algorithm,
            None if all(spec.pruner in (DENSE, SMALL) for spec in self.specs) else _stack_masks(self.masks),
            device,
            self.params.execution,
            self.params.training.updates,
        )
        self.randomness = Randomness("training", seeds, device=device)
        self.environments = self._make_environments(evaluation)
        self.make_updates = repeater(
            self.make_update, self.algorithm.delay, self.randomness.generators.values(), device
        )

        self.update = 0
        self.scores: list[list[Score]] = [[] for _ in jobs]
        self.episodes: list[Episode] = []
        """The first episode of the last evaluation, for each agent."""
        self.losses = _Losses()
        self.stopwatch = _Stopwatch()

    def _make_environments(self, evaluation: EvaluationConfig) -> Environments:
        return make_environments(self.task, evaluation, len(self.jobs), cores=torch.get_num_threads())

    def train_until(self, update: int) -> None:
        """Make the updates up to number `update`, and change the masks that change after it."""
        begin, numbers = time.perf_counter(), range(self.update + 1, update + 1)
        self.make_updates(numbers)
        self.update = update
        self.losses.check_finite(self.specs, self.update)  # waits for the device
        self.change_masks()
        self.stopwatch.add(len(numbers), time.perf_counter() - begin)

    def next_stop(self) -> int:
        """The next update after which masks change, or an evaluation, a checkpoint or a check is due."""
        updates = self.params.training.updates
        of_masks = (changes(spec.pruner, updates) for spec in self.specs)
        following = (own[i] for own in of_masks if (i := bisect.bisect(own, self.update)) < len(own))
        return min([_next_stop(self.update, self.params.training), *following])

    def change_masks(self) -> None:
        """Change the masks of the agents whose method does so after this update.

        Batch and random numbers depend on seed and update alone, so that training itself draws the same
        numbers with any method.
        """
        updates, parts = self.params.training.updates, parts_of(self.algorithm)
        changing = [i for i, spec in enumerate(self.specs) if self.update in changes(spec.pruner, updates)]
        if not changing:
            return
        gradients = functools.cache(self._gradients)
        for i in changing:
            spec = self.specs[i]
            change = Change(
                self.update,
                updates,
                spec.sparsity,
                {name: network.weights for name, network in self.learner.whole(i).items()},
                {name: {k: mask.T[None] for k, mask in own.items()} for name, own in self.masks[i].items()},
                functools.partial(_of_agent, gradients, i),
                stream("mask changes", spec.seed, self.update),
                self.jobs[i].params.scope,
                parts,
            )
            self.masks[i] = {
                name: {layer: mask[0].T.contiguous() for layer, mask in own.items()}
                for name, own in METHODS[spec.pruner].change(change).items()
            }
        self.learner.change_masks(_stack_masks(self.masks))

    def _gradients(self) -> dict[str, LayerTensors]:
        """Gradients for all weights of all agents on a batch that no update sees."""
        device = self.randomness.device
        randomness = Randomness("gradients", self.randomness.seeds, self.update, device=device)
        batch = self.data.sample(randomness, self.params.algorithm.batch_size)
        return self.learner.gradients(batch, randomness)

    def make_update(self, phase: int) -> None:
        """Make one update, on the device alone: no value is read back from it, and nothing is counted.

        `phase` is the update's number modulo the delay of the algorithm's delayed networks.
        """
        batch = self.data.sample(self.randomness, self.params.algorithm.batch_size)
        self.losses.add(self.learner.update(batch, self.randomness, whole=phase == 0))

    def evaluate(self) -> Iterator[Event]:
        """Score every agent, and report the losses since the last time."""
        evaluation = self.params.evaluation
        if self.update == self.params.training.updates and evaluation.final != evaluation:
            self.environments.close()
            self.environments = self._make_environments(evaluation.final)
        # A stream for each seed and update: evaluating leaves the training's generators unchanged.
        randomness = Randomness(
            "evaluation", self.randomness.seeds, self.update, device=self.randomness.device
        )
        networks, normalizer = self.learner.networks, self.data.normalizer
        returns = play(self.algorithm, networks, self.environments, randomness, normalizer)
        self.episodes = self.environments.first_episodes()
        speed = self.stopwatch.updates_per_second()
        for i, own in enumerate(returns):
            mean, std = float(own.mean()), float(own.std())
            score = Score(self.update, mean, std, d4rl_score(self.task, mean), len(own))
            self.scores[i].append(score)
            values = {"return_mean": mean, "d4rl_score": score.d4rl_score, "updates_per_second": speed}
            yield Metrics(self.update, self.losses.means(i) | values, job=i)
        self.losses.clear()
        self.stopwatch = _Stopwatch()

    def checkpoints(self) -> Iterator[Event]:
        """Yield each agent's own part of everything that later updates, evaluations and files depend on."""
        for i, seed in enumerate(self.randomness.seeds):
            tensors = {
                "update": torch.tensor(self.update),
                "generator": self.randomness.generators[seed].get_state(),
                "scores": torch.tensor([astuple(score) for score in self.scores[i]], dtype=torch.float64),
            }
            if self.specs[i].pruner in METHODS:
                tensors |= {f"mask.{key}": mask for key, mask in flatten_masks(self.masks[i]).items()}
            state = safetensors.torch.save(tensors | self.losses.state(i) | self.learner.agent_state(i))
            yield Checkpoint(self.update, state, job=i)

    def restore(self, checkpoints: Sequence[bytes | None]) -> None:
        """Resume from the jobs' checkpoints, if they have any."""
        if all(state is None for state in checkpoints):
            return
        agents = [safetensors.torch.load(state) if state else {} for state in checkpoints]
        updates = {int(agent["update"]) if agent else 0 for agent in agents}
        if len(updates) > 1:
            raise ValueError(
                f"a stack's agents have to be at the same update, these are at {sorted(updates)}; "
                "group jobs by checkpoint_step"
            )
        self.update = updates.pop()
        for seed, agent in zip(self.randomness.seeds, agents, strict=True):
            self.randomness.restore(seed, agent["generator"], self.update)
        self.scores = [[_score(row) for row in agent["scores"].tolist()] for agent in agents]
        self.losses.restore(agents, self.randomness.device)
        for i, spec in enumerate(self.specs):
            if spec.pruner in METHODS:
                self.masks[i] = {
                    name: {layer: agents[i][f"mask.{name}.{layer}"] for layer in own}
                    for name, own in self.masks[i].items()
                }
        if any(spec.pruner in METHODS for spec in self.specs):
            self.learner.change_masks(_stack_masks(self.masks))
        self.learner.restore(agents, self.update)

    def close(self) -> None:
        """End the processes that step environments."""
        self.environments.close()

    def write(self) -> None:
        """Write each job's files."""
        for i, (job, spec) in enumerate(zip(self.jobs, self.specs, strict=True)):
            networks = self.learner.whole(i)
            if self.data.normalizer:
                normalizer = self.data.normalizer.of_agent(i)
                networks = {
                    name: normalizer.fold(networks[name], architecture.state_layers)
                    for name, architecture in self.algorithm.architectures.items()
                }
            agent = Agent(spec, self.params.algorithm, networks, self.masks[i])
            agent.save(job.output / "agent.safetensors")
            description = asdict(job.params) | {"stack_size": len(self.jobs)}
            (job.output / "agent.json").write_text(
                json.dumps(description, indent=2, sort_keys=True) + "\n", encoding="utf-8"
            )
            self.episodes[i].save(job.output / EPISODE)
            rows = [ScoreRow(**asdict(spec), **asdict(score)) for score in self.scores[i]]
            write_csv(job.output / "scores.csv", ScoreRow, rows)


class _Losses:
    """Sums of each agent's losses since the last evaluation, on the device that trains."""

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
        """Resume from the agents' checkpoints."""
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


class _Stopwatch:
    """Number of updates that this process made since the last evaluation, and the seconds they took."""

    def __init__(self) -> None:
        self.updates, self.seconds = 0, 0.0

    def add(self, updates: int, seconds: float) -> None:
        self.updates += updates
        self.seconds += seconds

    def updates_per_second(self) -> float:
        return self.updates / self.seconds


def _shared_params(jobs: Sequence[Job]) -> TrainParams:
    """The parameters that all agents of a stack have to share; `agent` is the first one's."""
    shared = {
        (
            replace(job.params, agent=job.params.agent.unpruned, scope="part"),
            job.device,
        )
        for job in jobs
    }
    if len(shared) != 1:
        raise ValueError(
            "the agents of a stack may differ in pruner, sparsity, seed and dataset, but these differ in more"
        )
    return jobs[0].params


def _of_agent(gradients: Callable[[], Mapping[str, LayerTensors]], i: int) -> dict[str, LayerTensors]:
    """Agent i's part of the gradients of a stack."""
    return {name: {layer: g[i : i + 1] for layer, g in own.items()} for name, own in gradients().items()}


def _stack_masks(masks: Sequence[AgentMasks]) -> dict[str, LayerTensors]:
    """Masks (out, in) of K agents as (K, in, out)."""
    return {
        name: {layer: torch.stack([agent[name][layer].T for agent in masks]) for layer in layers}
        for name, layers in masks[0].items()
    }


def _next_stop(update: int, training: TrainingConfig) -> int:
    """The next update after which an evaluation, a checkpoint or a check of the losses is due."""
    periods = (training.eval_every, training.checkpoint_every, CHECK_EVERY)
    return min(training.updates, *((update // period + 1) * period for period in periods))


def _score(row: Sequence[float]) -> Score:
    update, mean, std, score, episodes = row
    return Score(int(update), mean, std, score, int(episodes))
