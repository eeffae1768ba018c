"""Episodes: the environments that one process steps, and the records of what was played in them.

This module does not import PyTorch, so that a process that steps environments starts in a second.
"""

import contextlib
import json
import signal
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import safetensors.numpy
from gymnasium.envs.mujoco import MujocoEnv
from numpy.typing import NDArray

from singleshot.errors import explained
from singleshot.io.tensor_file import read_tensor_file
from singleshot.rl.environments import Env, Environment, environment_in_file, make_environment, playing

FILE = "episode.safetensors"
Step = tuple[NDArray[np.float32], NDArray[np.float64], NDArray[np.bool_]]
"""Observations (n, state), rewards (n,), and which episodes ended (n,)."""


@dataclass(frozen=True)
class PlayedEpisode:
    """T steps of one agent: enough to draw them and to compute their return."""

    environment: Environment
    positions: NDArray[np.float64]
    """MuJoCo's generalised positions `qpos` before the first step and after each: (T + 1, coordinates).
    Coordinate 0 of a locomotion environment is the torso's distance in metres. There are no coordinates if
    MuJoCo doesn't simulate the environment."""
    rewards: NDArray[np.float64]
    """(T,)"""
    step_seconds: float
    fell: bool
    """Whether the environment ended the episode, not the time limit. HalfCheetah's episodes never do."""

    @property
    def returns(self) -> NDArray[np.float64]:
        """The return so far, (T + 1,)."""
        return np.concatenate([[0.0], np.cumsum(self.rewards)])

    def save(self, path: Path) -> None:
        """Write as safetensors. Equal episodes give equal bytes."""
        description = {
            "environment": asdict(self.environment),
            "step_seconds": self.step_seconds,
            "fell": self.fell,
        }
        arrays = {"positions": self.positions, "rewards": self.rewards}
        safetensors.numpy.save_file(
            arrays, path, metadata={"episode": json.dumps(description, sort_keys=True)}
        )


def load_episode(path: Path) -> PlayedEpisode:
    """Read what :meth:`PlayedEpisode.save` wrote.

    Raises:
        UserError: the file is missing, damaged, or holds no episode.
    """
    fix = "make it again"
    file = read_tensor_file(path, fix)
    with explained(f"{path}: not an agent's episode", fix):
        description = json.loads(file.metadata["episode"])
        positions, rewards = (file.tensors[name].numpy() for name in ("positions", "rewards"))
        environment = environment_in_file(description["environment"]) or Environment(None)
        step_seconds, fell = float(description["step_seconds"]), bool(description["fell"])
        return PlayedEpisode(environment, positions, rewards, step_seconds, fell)


class Share:
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


def serve(
    connection: Connection, environment: Environment, seeds: Sequence[int], kept: Sequence[int]
) -> None:
    """Answer requests until the other end is closed, even if its process is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C reaches this process too; its parent ends it
    share = Share(environment, seeds, kept)
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            method, arguments = connection.recv()
            connection.send(getattr(share, method)(*arguments))
