"""Evaluation: all episodes of a stack of agents in lockstep, actions in one batch; or held-out losses."""

import multiprocessing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge
from numpy.typing import NDArray

from singleshot.errors import UserError
from singleshot.rl.actions import ActionBounds
from singleshot.rl.agents import Agent
from singleshot.rl.algorithm import Algorithm
from singleshot.rl.data.replay import Normalizer, Randomness, ReplayBuffer
from singleshot.rl.data.transitions import Transitions
from singleshot.rl.environments import Environment, bounds_of
from singleshot.rl.evaluation.episode import PlayedEpisode, Share, Step, serve
from singleshot.rl.networks import AnyNetwork

FIRST_EPISODE = 100
"""Environment seed of an evaluation's first episode (the authors' BCQ adds 100 to its seed); the next ones
have 101, 102, …. All agents begin from the same states in every evaluation, so that differences between their
returns are due to the agents."""
RECORDED = 9
"""Largest number of recorded episodes of an agent: odd, so that one of them has the median return."""
LEAST_SHARE = 16
"""Smallest number of environments that is worth another process: stepping them takes 0.7 ms (HalfCheetah),
a request to a process 0.1 ms."""
HELD_OUT_AT_ONCE = 1000
"""Number of held-out transitions whose losses are computed at once."""


@dataclass(frozen=True)
class EvaluationConfig:
    """How agents are scored while they train."""

    episodes: Annotated[int, Ge(1)] = 10
    """Number of episodes of every evaluation; see also `final_episodes`."""
    final_episodes: Annotated[int, Ge(1)] | None = None
    """Number of episodes of the evaluation after the last update, whose scores are compared: the standard
    error of an agent's score falls with the square root of this number. With null, there are as many
    as in the other evaluations."""

    @property
    def final(self) -> "EvaluationConfig":
        """How agents are scored after the last update."""
        return replace(self, episodes=self.final_episodes or self.episodes)


@dataclass(frozen=True)
class Score:
    """What an agent's episodes of one evaluation returned."""

    return_mean: float
    return_std: float
    """Population standard deviation over the episodes."""
    d4rl_score: float
    episodes: int

    @classmethod
    def of(cls, returns: NDArray[np.float64], environment: Environment) -> "Score":
        """The score of `returns`, one for each episode."""
        mean = float(returns.mean())
        return cls(mean, float(returns.std()), environment.score(mean), len(returns))


class Environments:
    """An environment per agent and episode, for use in every evaluation, stepped on at most `cores` cores.

    This process steps one share of the environments, and each other process steps another share. (Gymnasium's
    `AsyncVectorEnv` has a process for each; 65 agents times 10 episodes are 650 environments. Threads would
    not help, because MuJoCo's bindings hold the interpreter's lock: 2 threads took as long as one.) Results
    do not depend on the number of processes. :meth:`close` ends the other processes; so does the end of this
    process, even if it is killed. Each agent's first `RECORDED` episodes are recorded, for
    :meth:`median_episodes`.
    """

    def __init__(self, environment: Environment, agents: int, episodes: int, cores: int = 1) -> None:
        self.environment = environment
        shares = max(1, min(cores, agents * episodes // LEAST_SHARE))
        numbers = np.arange(agents * episodes).reshape(agents, episodes)
        # A share has every n-th episode: a poor agent's episodes end together, and shares stay even.
        self.share, self.position = numbers % shares, numbers // shares
        """The share of each agent's and episode's environment, and its position in it, (agents, episodes)."""
        seeds = np.broadcast_to(FIRST_EPISODE + np.arange(episodes), numbers.shape)
        own, *others = (seeds[self.share == i].tolist() for i in range(shares))
        recorded = range(FIRST_EPISODE, FIRST_EPISODE + RECORDED)
        self.own = Share(environment, own, recorded)
        self.state_size, self.action_size = self.own.state_size, self.own.action_size
        self.bounds = bounds_of(self.own.environments[0])
        """The environment's own actions, which it knows as -1 and 1 here."""
        self.others = [_Process(environment, share, recorded) for share in others]

    def check(self, state_size: int, action_size: int) -> None:
        """Raise a :class:`UserError` unless agents with states and actions of these sizes can play here."""
        if (state_size, action_size) != (self.state_size, self.action_size):
            raise UserError(
                f"environment {self.environment.id}: observations and actions have {self.state_size} "
                f"and {self.action_size} coordinates, the agent's {state_size} and {action_size}; name the "
                "environment that the agent's data is from"
            )

    def reset(self) -> NDArray[np.float32]:
        """Begin new episodes from their seeds; return first observations (agents, episodes, state)."""
        observations = np.empty((*self.share.shape, self.state_size), np.float32)
        for i, own in enumerate(self._each("reset")):
            observations[self.share == i] = own
        return observations

    def step(
        self, agents: NDArray[np.intp], episodes: NDArray[np.intp], actions: NDArray[np.float32]
    ) -> Step:
        """Take actions (n, action) in environments (agents[i], episodes[i]), each at most once."""
        share, position = self.share[agents, episodes], self.position[agents, episodes]
        parts = [np.flatnonzero(share == i) for i in range(1 + len(self.others))]
        steps = self._each("step", *((position[part], actions[part]) for part in parts))
        observations = np.empty((len(actions), self.state_size), np.float32)
        rewards, ended = np.empty(len(actions)), np.empty(len(actions), np.bool_)
        for part, step in zip(parts, steps, strict=True):
            observations[part], rewards[part], ended[part] = step
        return observations, rewards, ended

    def median_episodes(self) -> list[PlayedEpisode]:
        """Each agent's recorded episode of median return, the lower one of two, since :meth:`reset`."""
        played = self._each("episodes")
        places = zip(self.share[:, :RECORDED], self.position[:, :RECORDED], strict=True)
        of_agents = ([played[i][j] for i, j in zip(*own, strict=True)] for own in places)
        return [sorted(own, key=lambda e: e.rewards.sum())[(len(own) - 1) // 2] for own in of_agents]

    def _each(self, method: str, *arguments: tuple[object, ...]) -> list[Any]:
        """What a method of each share returns for the share's own arguments; all compute at once."""
        own, *others = arguments or [()] * (1 + len(self.others))
        for other, given in zip(self.others, others, strict=True):
            other.connection.send((method, given))
        return [getattr(self.own, method)(*own), *(other.answer() for other in self.others)]

    def close(self) -> None:
        """End the other processes."""
        for other in self.others:
            other.connection.close()
            other.process.join()


class _Process:
    """A :class:`Share` in a process of its own, with separate calls for requests and answers."""

    def __init__(self, environment: Environment, seeds: Sequence[int], kept: Sequence[int]) -> None:
        # Not forked: a fork would copy the locks of this process's threads, and its hold on the GPU.
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, environment, seeds, kept), daemon=True)
        self.process.start()
        theirs.close()  # only the new process still has this end: when it exits, reading fails here

    def answer(self) -> Any:
        """Wait for the requested call and return its result."""
        try:
            return self.connection.recv()
        except (EOFError, ConnectionError) as error:
            self.process.join()
            raise RuntimeError(
                f"a process that steps environments ended with exit code {self.process.exitcode}"
            ) from error


def play(
    algorithm: Algorithm,
    networks: Mapping[str, AnyNetwork],
    environments: Environments,
    randomness: Randomness,
    normalizer: Normalizer | None = None,
    bounds: ActionBounds | None = None,
) -> NDArray[np.float64]:
    """Undiscounted return of one episode in each of `environments`: (K, episodes).

    Episodes end one by one, when they terminate or reach the time limit, and the batch shrinks with them. A
    `normalizer` is for networks in training; saved networks take raw states. `bounds` are the actions that
    the agents' -1 and 1 stand for, if not the environment's own, to which actions are then limited.

    Raises:
        UserError: the environment answers a finite action with NaN or infinity.
    """
    observations = environments.reset()  # (K, episodes, state)
    running = np.ones(observations.shape[:2], dtype=bool)
    returns, steps = np.zeros(running.shape), 0
    while running.any():
        # Noise for all episodes, even ended ones: an episode's noise must not depend on which others ended.
        noise = randomness.normal(observations.shape[1], *algorithm.noise_shape)
        episodes = np.flatnonzero(running.any(axis=0))
        state = torch.from_numpy(observations[:, episodes]).to(randomness.device)
        state = normalizer(state) if normalizer else state
        actions = algorithm.act(networks, state, noise[:, episodes]).cpu().numpy()
        if bounds and bounds != environments.bounds:
            own = environments.bounds.to_unit(bounds.from_unit(actions))
            actions = own.clip(-1, 1).astype(actions.dtype)
        agent, i = np.nonzero(running[:, episodes])
        live = agent, episodes[i]
        observations[live], rewards, ended = environments.step(*live, actions[agent, i])
        returns[live] += rewards
        running[live] = ~ended
        steps += 1
        finite = np.isfinite(rewards) & np.isfinite(observations[live]).all(axis=1)
        if not finite.all() and np.isfinite(actions).all():
            raise UserError(
                f"environment {environments.environment.id}: step {steps} of episode {live[1][~finite][0]} "
                "has a reward or state of NaN or infinity; correct the environment"
            )
    return returns


def evaluate(
    agent: Agent, environment: Environment, episodes: int = 10, seed: int = 0
) -> tuple[NDArray[np.float64], PlayedEpisode]:
    """Undiscounted returns of a trained agent over some episodes, and one of them, of median return.

    `seed` is the seed of the policy's noise. The agent's actions are limited to the environment's bounds.
    """
    environments = Environments(environment, 1, episodes)
    environments.check(agent.algorithm.state_size, agent.algorithm.action_size)
    bounds = agent.bounds or ActionBounds.unit(agent.algorithm.action_size)
    networks, randomness = agent.acting_networks(), Randomness("evaluation", [seed])
    returns = play(agent.algorithm, networks, environments, randomness, bounds=bounds)
    if not np.isfinite(returns).all():
        raise UserError("the agent acts by NaN or infinity: its weights are too large; train it again")
    return returns[0], environments.median_episodes()[0]


def heldout_losses(agent: Agent, transitions: Transitions, seed: int = 0) -> dict[str, float]:
    """Means of the terms of an agent's losses over `transitions`, and `action_error`.

    `action_error` is the mean squared difference of the agent's actions from those in the data, whose
    coordinates are within [-1, 1]; all algorithms have it. As target networks are not saved, the networks
    stand in for them. `seed` is the seed of all noise.
    """
    algorithm, networks = agent.algorithm, agent.networks
    data, randomness = ReplayBuffer(transitions), Randomness("held-out", [seed])
    sums: dict[str, float] = {}
    with torch.no_grad():
        for start in range(0, data.size, HELD_OUT_AT_ONCE):
            batch = data.rows(torch.arange(start, min(start + HELD_OUT_AT_ONCE, data.size))[None])
            size = batch.state.shape[1]
            terms = {
                name: float(value)
                for network, loss in algorithm.losses(networks, networks, batch, randomness)
                for name, value in loss(networks[network]).items()
            }
            noise = randomness.normal(size, *algorithm.noise_shape)
            actions = algorithm.act(networks, batch.state, noise)
            terms["action_error"] = float((actions - batch.action).square().mean())
            for name, value in terms.items():
                sums[name] = sums.get(name, 0.0) + size * value
    return {name: total / len(transitions) for name, total in sums.items()}
