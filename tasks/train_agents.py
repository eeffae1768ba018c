"""Task: train a stack of agents under their masks, score them meanwhile, and write their files."""

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from typing import Annotated

import safetensors.torch
import torch
from annotated_types import Ge

from singleshot.io.tables import write_csv
from singleshot.job import Checkpoint, Event, Job, Metrics, Progress
from singleshot.pruning.selection import Scope
from singleshot.random_streams import Randomness
from singleshot.rl.agents import AgentSpec, load_masks, make_algorithm
from singleshot.rl.algorithm import AlgorithmConfig
from singleshot.rl.data.replay import ReplayBuffer
from singleshot.rl.data.transitions import Transitions
from singleshot.rl.environments import Environment
from singleshot.rl.evaluation.episode import FILE as EPISODE
from singleshot.rl.evaluation.episode import PlayedEpisode
from singleshot.rl.evaluation.play import Environments, EvaluationConfig, Score, heldout_losses, play
from singleshot.rl.networks import Execution
from singleshot.rl.training.stack import Stack, flushed_denormals


@dataclass(frozen=True)
class TrainingConfig:
    """How long agents train."""

    updates: Annotated[int, Ge(1)] = 1_000_000
    eval_every: Annotated[int, Ge(1)] = 5_000
    """Number of updates between evaluations. The last update is always followed by an evaluation."""
    checkpoint_every: Annotated[int, Ge(1)] = 10_000
    """Number of updates between checkpoints, which is the most that an interruption can cost."""
    eval_from: Annotated[int, Ge(0)] = 0
    """Update before which only every fourth evaluation takes place. In a short training, the five evaluations
    that count for an agent's score can thereby lie near its end."""

    def is_evaluated(self, update: int) -> bool:
        """Whether an evaluation follows the update."""
        every = self.eval_every if update >= self.eval_from else 4 * self.eval_every
        return update % every == 0 or update == self.updates


@dataclass(frozen=True)
class TrainParams:
    """Everything that one training job depends on, besides its dataset and masks."""

    agent: AgentSpec
    environment: Environment
    algorithm: AlgorithmConfig
    training: TrainingConfig
    evaluation: EvaluationConfig
    reinitialize: bool = False
    """Whether to train other initial weights than those that were scored for pruning."""
    execution: Execution = "auto"
    scope: Scope = "part"
    """Which weights compete when masks change during training."""


@dataclass(frozen=True)
class ScoreRow:
    """A row of `scores.csv`: one evaluation of one agent."""

    agent: AgentSpec
    update: int
    score: Score


@dataclass(frozen=True)
class HeldoutRow:
    """A row of `heldout.csv`: a loss of one agent on data that were held out."""

    agent: AgentSpec
    update: int
    loss: str
    """Name of the loss, or `action_error` (:func:`~singleshot.rl.evaluation.play.heldout_losses`)."""
    value: float


def train(jobs: Sequence[Job]) -> Iterator[Event]:
    """Train the agents of all jobs as one stack.

    The agents share environment, algorithm and configuration, and differ in pruner, sparsity, seed and
    dataset, of which all have the same number of transitions. Inputs are `dataset`, and `masks` if the agent
    begins with masks. Each job's output gets `agent.safetensors`,
    `scores.csv`, `agent.json` (specification, configuration and the stack's size), and
    `episode.safetensors`, an episode of median return in the last evaluation
    (:class:`~singleshot.rl.evaluation.episode.PlayedEpisode`). Agents without an environment have an input
    `heldout`, the transitions that they are judged by, and `heldout.csv` (:class:`HeldoutRow`) instead of an
    episode; their `scores.csv` has no rows.

    Raises:
        ValueError: the jobs don't belong in one stack, or their checkpoints are of different updates; the
            caller groups jobs by :func:`checkpoint_step`.
        UserError: an input is damaged, or a loss is no longer finite.
        torch.OutOfMemoryError: a GPU's free memory doesn't hold the stack.
    """
    run = Training(jobs)
    stack, training = run.stack, run.params.training
    with flushed_denormals(), contextlib.closing(run):
        run.restore([job.checkpoint for job in jobs])
        while stack.update < training.updates:
            run.train_until(stack.next_stop(training.eval_every, training.checkpoint_every))
            if training.is_evaluated(stack.update):
                yield from run.evaluate()
            if stack.update < training.updates and stack.update % training.checkpoint_every == 0:
                yield from run.checkpoints()
            yield Progress(stack.update / training.updates)
        run.write()


def checkpoint_step(state: bytes) -> int:
    """The update after which a checkpoint of :func:`train` was made."""
    return int(safetensors.torch.load(state)["update"])


class Training:
    """A stack of the jobs' agents, their scores so far, and the environments in which they are scored."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = jobs
        shared = [
            (replace(job.params, agent=job.params.agent.unpruned, scope="part"), job.device) for job in jobs
        ]
        if any(own != shared[0] for own in shared):
            raise ValueError("the agents of a stack may differ in pruner, sparsity, seed and dataset alone")
        self.params: TrainParams = jobs[0].params
        params = self.params
        self.specs: list[AgentSpec] = [job.params.agent for job in jobs]
        paths = list(dict.fromkeys(job.inputs["dataset"] for job in jobs))
        datasets = [Transitions.load(path) for path in paths]
        positions = [paths.index(job.inputs["dataset"]) for job in jobs]
        device, sizes = jobs[0].device, (datasets[0].state_size, datasets[0].action_size)
        algorithm = make_algorithm(params.agent, params.algorithm, *sizes)
        data = ReplayBuffer.of_agents(datasets, positions, device, params.algorithm.normalize_states)
        masks = [
            load_masks(job.inputs["masks"], algorithm) if job.params.agent.mask_pruner else None
            for job in jobs
        ]
        self.stack = Stack(
            self.specs,
            algorithm,
            data,
            masks,
            params.training.updates,
            draw=int(params.reinitialize),
            execution=params.execution,
            scopes=[job.params.scope for job in jobs],
        )
        self.environments = self._make_environments(params.evaluation) if params.environment.id else None
        self.held_out = (
            None if self.environments else [Transitions.load(job.inputs["heldout"]) for job in jobs]
        )
        self.scores: list[list[ScoreRow]] = [[] for _ in jobs]
        self.losses: list[list[HeldoutRow]] = [[] for _ in jobs]
        self.episodes: list[PlayedEpisode] = []
        """An episode of median return in the last evaluation, for each agent."""
        self.timed_updates, self.seconds = 0, 0.0
        """Number of updates that this process made since the last evaluation, and the seconds they took."""

    def _make_environments(self, evaluation: EvaluationConfig) -> Environments:
        return Environments(
            self.params.environment, len(self.jobs), evaluation.episodes, torch.get_num_threads()
        )

    def train_until(self, update: int) -> None:
        """Make the updates up to number `update`, and measure the time that they take."""
        begin, before = time.perf_counter(), self.stack.update
        self.stack.train_until(update)
        self.timed_updates += update - before
        self.seconds += time.perf_counter() - begin

    def evaluate(self) -> Iterator[Event]:
        """Score every agent, and report the losses since the last time."""
        speed = {"updates_per_second": self.timed_updates / self.seconds}
        found = self._play(self.environments) if self.environments else self._hold_out()
        for i, values in enumerate(found):
            yield Metrics(self.stack.update, self.stack.losses.means(i) | values | speed, job=i)
        self.stack.losses.clear()
        self.timed_updates, self.seconds = 0, 0.0

    def _play(self, environments: Environments) -> Iterator[dict[str, float]]:
        stack, evaluation = self.stack, self.params.evaluation
        if stack.update == stack.updates and evaluation.final != evaluation:
            environments.close()
            self.environments = environments = self._make_environments(evaluation.final)
        # A stream for each seed and update: evaluating leaves the training's generators unchanged.
        seeds, device = stack.randomness.seeds, stack.randomness.device
        randomness = Randomness("evaluation", seeds, stack.update, device=device)
        networks, normalizer = stack.learner.networks, stack.data.normalizer
        returns = play(stack.algorithm, networks, environments, randomness, normalizer)
        if stack.update == stack.updates:
            self.episodes = environments.median_episodes()
        for i, own in enumerate(returns):
            score = Score.of(own, self.params.environment)
            self.scores[i].append(ScoreRow(self.specs[i], stack.update, score))
            yield {"return_mean": score.return_mean, "d4rl_score": score.d4rl_score}

    def _hold_out(self) -> Iterator[dict[str, float]]:
        update = self.stack.update
        for i, transitions in enumerate(self.held_out or ()):
            losses = heldout_losses(self.stack.agent(i), transitions, self.specs[i].seed)
            self.losses[i] += [
                HeldoutRow(self.specs[i], update, name, value) for name, value in losses.items()
            ]
            yield {f"heldout_{name}": value for name, value in losses.items()}

    def checkpoints(self) -> Iterator[Event]:
        """Yield each agent's own part of everything that later updates, evaluations and files depend on."""
        for i, (scores, losses) in enumerate(zip(self.scores, self.losses, strict=True)):
            rows = json.dumps([[astuple(row)[1:] for row in own] for own in (scores, losses)])
            tensors = {"rows": torch.tensor(list(rows.encode()), dtype=torch.uint8)}
            state = safetensors.torch.save(tensors | self.stack.agent_state(i))
            yield Checkpoint(self.stack.update, state, job=i)

    def restore(self, checkpoints: Sequence[bytes | None]) -> None:
        """Resume from the jobs' checkpoints, if they have any."""
        agents = [safetensors.torch.load(state) if state else {} for state in checkpoints]
        self.stack.restore(agents)
        for i, (spec, agent) in enumerate(zip(self.specs, agents, strict=True)):
            scores, losses = json.loads(bytes(agent["rows"].tolist())) if agent else ([], [])
            self.scores[i] = [ScoreRow(spec, update, Score(*score)) for update, score in scores]
            self.losses[i] = [HeldoutRow(spec, *row) for row in losses]

    def close(self) -> None:
        """End the processes that step environments."""
        if self.environments:
            self.environments.close()

    def write(self) -> None:
        """Write each job's files."""
        for i, job in enumerate(self.jobs):
            agent = replace(self.stack.agent(i), environment=self.params.environment)
            agent.save(job.output / "agent.safetensors")
            description = asdict(job.params) | {"stack_size": len(self.jobs)}
            (job.output / "agent.json").write_text(
                json.dumps(description, indent=2, sort_keys=True) + "\n", encoding="utf-8"
            )
            if self.episodes:
                self.episodes[i].save(job.output / EPISODE)
            if self.losses[i]:
                write_csv(job.output / "heldout.csv", HeldoutRow, self.losses[i])
            write_csv(job.output / "scores.csv", ScoreRow, self.scores[i])
