"""The locomotion tasks of D4RL (Fu et al. 2020) on Gymnasium's MuJoCo environments, and D4RL's score."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeVar

import gymnasium
import mujoco
import numpy as np
from numpy.typing import NDArray

from singleshot.errors import UserError

TaskName = Literal["HalfCheetah", "Hopper", "Walker2d"]
EnvironmentVersion = Literal["v5", "v4"]
Score = TypeVar("Score", float, NDArray[np.floating])

TIME_LIMIT = 1000
"""Steps after which every one of these environments truncates an episode."""


@dataclass(frozen=True)
class MujocoTask:
    """A locomotion task. Actions are in [-1, 1]; each observation and action is a flat vector."""

    name: TaskName
    observation_size: int
    action_size: int
    min_return: float
    """Mean return of a random policy: D4RL score 0."""
    max_return: float
    """Mean return of D4RL's online SAC expert: D4RL score 100."""


# Reference returns are from D4RL's `d4rl/infos.py`, REF_MIN_SCORE and REF_MAX_SCORE, which are the same for
# -v0, -v1 and -v2.
TASKS: Mapping[str, MujocoTask] = MappingProxyType(
    {
        "HalfCheetah": MujocoTask("HalfCheetah", 17, 6, -280.178953, 12135.0),
        "Hopper": MujocoTask("Hopper", 11, 3, -20.272305, 3234.3),
        "Walker2d": MujocoTask("Walker2d", 17, 6, 1.629008, 4592.3),
    }
)


def d4rl_score(task: MujocoTask, return_: Score) -> Score:
    """Normalised score 100 · (R - min) / (max - min) of undiscounted returns R (Fu et al. 2020, section 5.1).

    This is for returns only: multiply a standard deviation by 100 / (max - min), without subtracting min.
    """
    return 100 * (return_ - task.min_return) / (task.max_return - task.min_return)


def make_environment(
    task: MujocoTask, version: EnvironmentVersion = "v5", render_mode: str | None = None
) -> gymnasium.Env[NDArray[np.float64], NDArray[np.float32]]:
    """Gymnasium's `{task.name}-{version}`, truncated after :data:`TIME_LIMIT` steps.

    Raises:
        UserError: this Gymnasium has no such environment, or it can't be made here.
    """
    identifier = f"{task.name}-{version}"
    try:
        return gymnasium.make(identifier, render_mode=render_mode)
    except (gymnasium.error.Error, ImportError) as error:
        raise UserError(
            f"environment {identifier} can't be made with gymnasium {gymnasium.__version__} and mujoco "
            f"{mujoco.__version__}: {error}. Use env_version v5 and the versions in requirements.lock"
        ) from error


def _log_mujoco_warning(message: str) -> None:
    level = logging.DEBUG if "deprecated" in message else logging.WARNING
    logging.getLogger(__name__).log(level, message.strip())


# MuJoCo's own handler prints warnings and appends them to MUJOCO_LOG.TXT in the working directory. Because
# HalfCheetah's model has a deprecated attribute, that file would appear wherever a command is run.
mujoco.set_mju_user_warning(_log_mujoco_warning)
