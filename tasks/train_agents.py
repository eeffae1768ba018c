"""Task: train a stack of agents under their masks, score them as they train, and write their files."""

import contextlib
import functools
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from typing import Annotated, Self

import safetensors.torch
import torch
from annotated_types import Ge
from torch import Tensor

from singleshot.io.tables import write_csv
from singleshot.job import Checkpoint, Event, Job, Metrics, Progress
from singleshot.pruning.selection import Scope
from singleshot.rl.agents import Agent, AgentSpec, dense_masks, load_masks, make_algorithm
from singleshot.rl.algorithm import Algorithm, AlgorithmConfig
from singleshot.rl.data.replay import Randomness, ReplayBuffer
from singleshot.rl.data.transitions import Transitions
from singleshot.rl.environments import Environment
from singleshot.rl.evaluation.episode import FILE as EPISODE
from singleshot.rl.evaluation.episode import PlayedEpisode
from singleshot.rl.evaluation.play import Environments, EvaluationConfig, Score, heldout_losses, play
from singleshot.rl.networks import Execution
from singleshot.rl.training.stack import Member, Stack, flushed_denormals


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
        ValueError: the jobs don't belong in one stack, or their checkpoints are of different updates.
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


@dataclass(kw_only=True)
class Trainee(Member):
    """A job's agent, and what is known about it so far."""

    job: Job
    held_out: Transitions | None = None
    """What it is judged by if it has no environment."""
    scores: list[ScoreRow] = field(default_factory=list)
    losses: list[HeldoutRow] = field(default_factory=list)
    episode: PlayedEpisode | None = None
    """An episode of median return in the last evaluation."""

    @classmethod
    def of(cls, job: Job, algorithm: Algorithm) -> Self:
        """The agent of a job, before training."""
        params: TrainParams = job.params
        pruned, judged = params.agent.mask_pruner is not None, params.environment.id is None
        return cls(
            spec=params.agent,
            masks=load_masks(job.inputs["masks"], algorithm) if pruned else dense_masks(algorithm),
            scope=params.scope,
            job=job,
            held_out=Transitions.load(job.inputs["heldout"]) if judged else None,
        )

    @property
    def rows(self) -> Tensor:
        """Scores and losses so far, for a checkpoint."""
        rows = [[astuple(row)[1:] for row in own] for own in (self.scores, self.losses)]
        return torch.tensor(list(json.dumps(rows).encode()), dtype=torch.uint8)

    def restore(self, rows: Tensor) -> None:
        """Go on from the scores and losses of a checkpoint."""
        scores, losses = json.loads(bytes(rows.tolist()))
        self.scores = [ScoreRow(self.spec, update, Score(*score)) for update, score in scores]
        self.losses = [HeldoutRow(self.spec, *row) for row in losses]

    def write(self, agent: Agent, stack_size: int) -> None:
        """Write the job's files."""
        output = self.job.output
        agent.save(output / "agent.safetensors")
        description = asdict(self.job.params) | {"stack_size": stack_size}
        text = json.dumps(description, indent=2, sort_keys=True) + "\n"
        (output / "agent.json").write_text(text, encoding="utf-8")
        if self.episode:
            self.episode.save(output / EPISODE)
        if self.losses:
            write_csv(output / "heldout.csv", HeldoutRow, self.losses)
        write_csv(output / "scores.csv", ScoreRow, self.scores)


class Training:
    """A stack of the jobs' agents, and the environments in which they are scored."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        shared = [
            (replace(job.params, agent=job.params.agent.unpruned, scope="part"), job.device) for job in jobs
        ]
        if any(own != shared[0] for own in shared):
            raise ValueError("the agents of a stack may differ in pruner, sparsity, seed and dataset alone")
        self.params: TrainParams = jobs[0].params
        params, load = self.params, functools.cache(Transitions.load)
        datasets = [load(job.inputs["dataset"]) for job in jobs]
        sizes = datasets[0].state_size, datasets[0].action_size
        algorithm = make_algorithm(params.agent, params.algorithm, *sizes)
        self.members = [Trainee.of(job, algorithm) for job in jobs]
        self.stack = Stack(
            self.members,
            algorithm,
            ReplayBuffer.of_agents(datasets, jobs[0].device, params.algorithm.normalize_states),
            params.training.updates,
            draw=int(params.reinitialize),
            execution=params.execution,
        )
        agents, episodes, cores = len(jobs), params.evaluation.episodes, torch.get_num_threads()
        self.make_environments = functools.partial(Environments, params.environment, agents, cores=cores)
        self.environments = self.make_environments(episodes) if params.environment.id else None
        self.timed_updates, self.seconds = 0, 0.0
        """Number of updates that this process made since the last evaluation, and the seconds they took."""

    def restore(self, checkpoints: Sequence[bytes | None]) -> None:
        """Resume from the jobs' checkpoints, if they have any."""
        states = [safetensors.torch.load(checkpoint) if checkpoint else {} for checkpoint in checkpoints]
        self.stack.restore(states)
        for member, state in zip(self.members, states, strict=True):
            if state:
                member.restore(state["rows"])

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
        stack, evaluation, last = self.stack, self.params.evaluation, self.stack.update == self.stack.updates
        if last and evaluation.final != evaluation:
            environments.close()
            self.environments = environments = self.make_environments(evaluation.final.episodes)
        # A stream for each seed and update: evaluating leaves the training's generators unchanged.
        seeds, device = stack.randomness.seeds, stack.randomness.device
        randomness = Randomness("evaluation", seeds, stack.update, device=device)
        networks, normalizer = stack.learner.networks, stack.data.normalizer
        returns = play(stack.algorithm, networks, environments, randomness, normalizer)
        if last:
            for member, episode in zip(self.members, environments.median_episodes(), strict=True):
                member.episode = episode
        for member, own in zip(self.members, returns, strict=True):
            score = Score.of(own, self.params.environment)
            member.scores.append(ScoreRow(member.spec, stack.update, score))
            yield {"return_mean": score.return_mean, "d4rl_score": score.d4rl_score}

    def _hold_out(self) -> Iterator[dict[str, float]]:
        for i, member in enumerate(self.members):
            assert member.held_out is not None
            losses = heldout_losses(self.stack.agent(i), member.held_out, member.spec.seed)
            rows = (HeldoutRow(member.spec, self.stack.update, *loss) for loss in losses.items())
            member.losses.extend(rows)
            yield {f"heldout_{name}": value for name, value in losses.items()}

    def checkpoints(self) -> Iterator[Event]:
        """Yield each agent's own part of everything that later updates, evaluations and files depend on."""
        for i, member in enumerate(self.members):
            state = safetensors.torch.save({"rows": member.rows} | self.stack.agent_state(i))
            yield Checkpoint(self.stack.update, state, job=i)

    def write(self) -> None:
        """Write each job's files."""
        for i, member in enumerate(self.members):
            agent = replace(self.stack.agent(i), environment=self.params.environment)
            member.write(agent, len(self.members))

    def close(self) -> None:
        """End the processes that step environments."""
        if self.environments:
            self.environments.close()
