"""Many environments stepped together, on one core or several.

Each process steps a share of the environments, not one environment as in Gymnasium's `AsyncVectorEnv`: 65
agents times 10 episodes are 650 environments. Threads would not help, because MuJoCo's bindings hold the
interpreter's lock (2 threads took as long as one). This module does not import PyTorch, so that a process
starts in a second.
"""

import contextlib
import multiprocessing
import signal
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from gymnasium.envs.mujoco import MujocoEnv
from numpy.typing import NDArray

from singleshot.errors import UserError
from singleshot.rl.environments import Env, Environment, bounds_of, make_environment, playing
from singleshot.rl.evaluation.episode import PlayedEpisode

LEAST_SHARE = 16
"""Smallest number of environments that is worth another process: stepping them takes 0.7 ms (HalfCheetah),
a request to a process 0.1 ms."""

RECORDED = 9
"""Largest number of recorded episodes of an agent: odd, so that one of them has the median return."""

Step = tuple[NDArray[np.float32], NDArray[np.float64], NDArray[np.bool_]]
"""Observations (n, state), rewards (n,), and which episodes ended (n,)."""


class Environments:
    """An environment per agent and episode, at most `cores` of them computing at once.

    This process steps one share of the environments, and each other process steps another share. Results do
    not depend on the number of processes. :meth:`close` ends the other processes; so does the end of this
    process, even if it is killed. Each agent's episodes with the first `RECORDED` seeds are recorded, for
    :meth:`median_episodes`.
    """

    def __init__(self, environment: Environment, agents: int, seeds: Sequence[int], cores: int = 1) -> None:
        self.environment = environment
        self.shape = agents, len(seeds)
        every = list(seeds) * agents  # by agent, then episode
        shares = max(1, min(cores, len(every) // LEAST_SHARE))
        # A share has every n-th episode: a poor agent's episodes end together, and shares stay even.
        own, *others = (every[i::shares] for i in range(shares))
        self.own = _Share(environment, own, seeds[:RECORDED])
        self.state_size, self.action_size = self.own.state_size, self.own.action_size
        self.bounds = bounds_of(self.own.environments[0])
        """The environment's own actions, which it knows as -1 and 1 here."""
        self.others = [_Process(environment, share, seeds[:RECORDED]) for share in others]

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
        observations = np.empty((self.shape[0] * self.shape[1], self.state_size), dtype=np.float32)
        for i, each in enumerate(self._each("reset")):
            observations[i :: 1 + len(self.others)] = each
        return observations.reshape(*self.shape, -1)

    def step(
        self, agents: NDArray[np.intp], episodes: NDArray[np.intp], actions: NDArray[np.float32]
    ) -> Step:
        """Take actions (n, action) in environments (agents[i], episodes[i]), each at most once."""
        shares = 1 + len(self.others)
        position, share = np.divmod(agents * self.shape[1] + episodes, shares)
        parts = [np.flatnonzero(share == i) for i in range(shares)]
        steps = self._each("step", *((position[part], actions[part]) for part in parts))
        back = np.argsort(np.concatenate(parts))
        observations, rewards, ended = (np.concatenate(each)[back] for each in zip(*steps, strict=True))
        return observations, rewards, ended

    def median_episodes(self) -> list[PlayedEpisode]:
        """Each agent's recorded episode of median return, the lower one of two, since :meth:`reset`."""
        kept = self._each("episodes")
        agents, episodes = self.shape
        recorded = [i for i in range(agents * episodes) if i % episodes < RECORDED]  # by agent, then episode
        played = [kept[i % len(kept)][i // len(kept)] for i in recorded]
        each = min(episodes, RECORDED)
        groups = (played[first : first + each] for first in range(0, len(played), each))
        return [sorted(own, key=lambda e: e.rewards.sum())[(each - 1) // 2] for own in groups]

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


class _Share:
    """Environments that one process steps, one after another. Episodes with the seeds `kept` are recorded."""

    def __init__(self, environment: Environment, seeds: Sequence[int], kept: Sequence[int]) -> None:
        self.environment = environment
        self.seeds = seeds
        self.environments = [make_environment(environment) for _ in seeds]
        first = self.environments[0]
        self.state_size, self.action_size = (
            int(np.prod(space.shape or ())) for space in (first.observation_space, first.action_space)
        )
        simulation = first.unwrapped
        self.step_seconds = (
            float(simulation.dt)
            if isinstance(simulation, MujocoEnv)
            else 1 / float(first.metadata.get("render_fps") or 30)
        )
        self.kept = [position for position, seed in enumerate(seeds) if seed in kept]

    def reset(self) -> NDArray[np.float32]:
        """Begin new episodes from their seeds; return first observations (environments, state)."""
        observations = np.empty((len(self.seeds), self.state_size), np.float32)
        with playing(self.environment.id):
            for i, (environment, seed) in enumerate(zip(self.environments, self.seeds, strict=True)):
                observation, _ = environment.reset(seed=seed)
                observations[i] = np.reshape(observation, self.state_size)
        self.positions = {i: [_position(self.environments[i])] for i in self.kept}
        self.rewards: dict[int, list[float]] = {i: [] for i in self.kept}
        self.fell = dict.fromkeys(self.kept, False)
        return observations

    def step(self, positions: NDArray[np.intp], actions: NDArray[np.float32]) -> Step:
        """Take actions (n, action) in the environments at `positions`."""
        observations = np.empty((len(positions), self.state_size), dtype=np.float32)
        rewards, ended = np.empty(len(positions)), np.empty(len(positions), dtype=np.bool_)
        with playing(self.environment.id):
            for i, position in enumerate(positions):
                own = self.environments[position]
                observations[i], reward, terminated, truncated, _ = own.step(actions[i])
                rewards[i], ended[i] = float(reward), terminated or truncated
                if position in self.positions:
                    self.positions[position].append(_position(own))
                    self.fell[position] = terminated
                    self.rewards[position].append(float(reward))
        return observations, rewards, ended

    def episodes(self) -> dict[int, PlayedEpisode]:
        """The recorded episodes, by their positions in the share."""
        return {
            i: PlayedEpisode(
                self.environment,
                np.array(self.positions[i]),
                np.array(self.rewards[i], dtype=np.float64),
                self.step_seconds,
                bool(self.fell[i]),
            )
            for i in self.kept
        }


def _position(environment: Env) -> NDArray[np.float64]:
    """MuJoCo's generalised positions; none if MuJoCo doesn't simulate the environment."""
    simulation = environment.unwrapped
    return simulation.data.qpos.copy() if isinstance(simulation, MujocoEnv) else np.empty(0)


class _Process:
    """A :class:`_Share` in a process of its own, with separate calls for requests and answers."""

    def __init__(self, environment: Environment, seeds: Sequence[int], kept: Sequence[int]) -> None:
        # Not forked: a fork would copy the locks of this process's threads, and its hold on the GPU.
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, environment, seeds, kept), daemon=True)
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


def _serve(
    connection: Connection, environment: Environment, seeds: Sequence[int], kept: Sequence[int]
) -> None:
    """Answer requests until the other end is closed, even if its process is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C reaches this process too; its parent ends it
    share = _Share(environment, seeds, kept)
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            method, arguments = connection.recv()
            connection.send(getattr(share, method)(*arguments))
