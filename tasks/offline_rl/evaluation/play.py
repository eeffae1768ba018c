"""Returns of trained agents: every episode of every agent of a stack in lockstep, actions in one batch."""

import ctypes.util
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import cv2
import gymnasium
import numpy as np
import torch
from annotated_types import Ge
from numpy.typing import NDArray

from tasks.errors import UserError
from tasks.offline_rl.agents import Agent
from tasks.offline_rl.algorithm import Algorithm
from tasks.offline_rl.data.normalization import Normalizer
from tasks.offline_rl.environments import TASKS, EnvironmentVersion, MujocoTask, make_environment
from tasks.offline_rl.evaluation.lockstep import Environments
from tasks.offline_rl.networks import AnyNetwork
from tasks.offline_rl.randomness import Randomness

FIRST_EPISODE = 100
"""Environment seed of an evaluation's first episode (the authors' BCQ adds 100 to its seed), then 101, ….
Every agent meets the same starts at every evaluation, so that their difference is the agents'."""


@dataclass(frozen=True)
class EvaluationConfig:
    """How agents are scored while they train."""

    episodes: Annotated[int, Ge(1)] = 10
    """Episodes of every evaluation; see also `final_episodes`."""
    env_version: EnvironmentVersion = "v5"
    final_episodes: Annotated[int, Ge(1)] | None = None
    """Episodes of the evaluation after the last update, whose scores are compared: the standard error of an
    agent's score falls with the square root of their number. None: as many as in the others."""

    @property
    def final(self) -> "EvaluationConfig":
        """How agents are scored after the last update."""
        return replace(self, episodes=self.final_episodes or self.episodes)


def make_environments(
    task: MujocoTask, config: EvaluationConfig, agents: int, cores: int = 1
) -> Environments:
    """An environment per agent and episode, to be used again at each evaluation, stepped on so many cores."""
    seeds = range(FIRST_EPISODE, FIRST_EPISODE + config.episodes)
    return Environments(task, config.env_version, agents, seeds, cores)


def play(
    algorithm: Algorithm,
    networks: Mapping[str, AnyNetwork],
    environments: Environments,
    randomness: Randomness,
    normalizer: Normalizer | None = None,
) -> NDArray[np.float64]:
    """Undiscounted return of one episode in each of `environments`: (K, episodes).

    Episodes end one by one, when they terminate or their time is up, and their batch shrinks with them. A
    `normalizer` is for networks in training; saved ones take states as they are.
    """
    observations = environments.reset()  # (K, episodes, state)
    running = np.ones(observations.shape[:2], dtype=bool)
    returns = np.zeros(running.shape)
    while running.any():
        # Noise for all episodes, ended ones too: what the others get must not depend on which have ended.
        noise = randomness.normal(observations.shape[1], *algorithm.noise_shape)
        episodes = np.flatnonzero(running.any(axis=0))
        state = torch.from_numpy(observations[:, episodes]).to(randomness.device)
        state = normalizer(state) if normalizer else state
        actions = algorithm.act(networks, state, noise[:, episodes]).cpu().numpy()
        agent, i = np.nonzero(running[:, episodes])
        live = agent, episodes[i]
        observations[live], rewards, ended = environments.step(*live, actions[agent, i])
        returns[live] += rewards
        running[live] = ~ended
    return returns


def evaluate(
    agent: Agent, episodes: int = 10, seed: int = 0, env_version: EnvironmentVersion = "v5"
) -> NDArray[np.float64]:
    """Undiscounted returns of a trained agent over some episodes; `seed` is that of its policy's noise."""
    environments = make_environments(
        TASKS[agent.spec.task], EvaluationConfig(episodes, env_version), agents=1
    )
    returns = play(agent.algorithm, agent.networks, environments, Randomness("evaluation", [seed]))
    return returns[0]


def record_video(agent: Agent, path: Path, seed: int = 0, env_version: EnvironmentVersion = "v5") -> float:
    """Write one episode as an MP4 at its real speed, and return what it was worth.

    Raises:
        UserError: MuJoCo can't render on this machine, or OpenCV can't write `path`.
    """
    choose_opengl()
    environment = make_environment(TASKS[agent.spec.task], env_version, render_mode="rgb_array")
    algorithm, randomness = agent.algorithm, Randomness("evaluation", [seed])
    observation, _ = environment.reset(seed=FIRST_EPISODE)
    video = _open_video(path, render(environment), fps=environment.metadata["render_fps"])
    total, ended = 0.0, False
    while not ended:
        state = torch.as_tensor(observation, dtype=torch.float32)[None, None]
        action = algorithm.act(agent.networks, state, randomness.normal(1, *algorithm.noise_shape))
        observation, reward, terminated, truncated, _ = environment.step(action[0, 0].numpy())
        video.write(cv2.cvtColor(render(environment), cv2.COLOR_RGB2BGR))
        total, ended = total + float(reward), terminated or truncated
    video.release()
    environment.close()
    return total


def choose_opengl() -> None:
    """Without a display draw by a library that needs none; left to itself, Gymnasium tries GLFW and fails."""
    if "MUJOCO_GL" not in os.environ and "DISPLAY" not in os.environ and sys.platform == "linux":
        os.environ["MUJOCO_GL"] = "osmesa" if ctypes.util.find_library("EGL") is None else "egl"


def render(environment: gymnasium.Env) -> NDArray[np.uint8]:
    """The present frame, (height, width, 3) RGB."""
    try:
        return np.asarray(environment.render())
    except Exception as error:  # MuJoCo's back ends each raise another kind where OpenGL is missing
        raise UserError(
            f"MuJoCo can't render here with MUJOCO_GL={os.environ.get('MUJOCO_GL', '(unset)')}: {error}. "
            "Install a GPU's driver or the packages libegl1 and libgl1-mesa-dri (MUJOCO_GL=egl), or else "
            "libosmesa6 (MUJOCO_GL=osmesa)"
        ) from error


def _open_video(path: Path, frame: NDArray[np.uint8], fps: float) -> cv2.VideoWriter:
    height, width, _ = frame.shape
    video = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), fps, (width, height))
    if not video.isOpened():
        raise UserError(
            f"{path}: OpenCV can't write this video; give a path ending in .mp4 in an existing folder"
        )
    return video
