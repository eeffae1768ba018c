"""Environments in which agents act: Gymnasium's, those of other packages, or yours; and D4RL's score."""

import logging
import math
import os
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

import gymnasium
import numpy as np
from annotated_types import Ge, Le
from gymnasium.spaces import Box
from gymnasium.wrappers import RescaleAction
from numpy.typing import NDArray
from pydantic import TypeAdapter

from singleshot.errors import UserError, explained, in_a_line, must_be, shown
from singleshot.rl.actions import ActionBounds

try:
    import mujoco
except Exception as error:  # whatever the OpenGL that the variable names raises
    if not (own := os.environ.get("MUJOCO_GL")):
        raise
    fix = "unset it, or install that OpenGL"
    raise UserError(
        f"MUJOCO_GL is {own}, by which MuJoCo can't be used ({in_a_line(error)}); {fix}"
    ) from error

Return = TypeVar("Return", float, NDArray[np.floating])
Env = gymnasium.Env[NDArray[np.float64], NDArray[np.float32]]


@dataclass(frozen=True)
class Environment:
    """Where agents act, and how their returns are scored."""

    id: str | None
    """Gymnasium's id, such as `Hopper-v5`, or `package.module:Name-v0`, whose module registers `Name-v0`.
    With null there is no environment, only data: sizes come from the data, and agents are judged by their
    losses on data that they were not trained on."""
    kwargs: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    """Arguments of the environment, by name."""
    time_limit: Annotated[int, Ge(1), Le(1_000_000)] | None = None
    """Number of steps after which an episode is cut; with null, the environment's own."""
    reference_returns: tuple[float, float] | None = None
    """Mean returns of a random policy and of an expert: scores 0 and 100. With null, scores are returns."""

    def __post_init__(self) -> None:
        named = all(name.isprintable() and len(name) <= 255 for name in (self.id or "", *self.kwargs))
        must_be("names of one line", named, id=[self.id, *self.kwargs])
        skip = self.kwargs.get("frame_skip", 1)
        must_be("a number from 1", not isinstance(skip, str) and skip >= 1, frame_skip=skip)
        low, high = self.reference_returns or (0, 1)
        wanted = "null, or a random policy's mean return and an expert's, which is larger"
        must_be(wanted, -math.inf < low < high < math.inf, reference_returns=self.reference_returns)

    @property
    def name(self) -> str:
        """The id without its version, in messages."""
        return (self.id or "no environment").rpartition("-v")[0] or str(self.id)

    @property
    def modules(self) -> tuple[str, ...]:
        """The module that registers the environment, if the id names one."""
        return tuple(filter(None, [(self.id or "").rpartition(":")[0]]))

    def score(self, return_: Return) -> Return:
        """D4RL's score 100 · (R - min) / (max - min) of undiscounted returns R (Fu et al. 2020, section 5.1).

        This is for returns only: multiply a standard deviation by 100 / (max - min), without subtracting min.
        Without reference returns, the score of a return is the return.
        """
        if self.reference_returns is None:
            return return_
        low, high = self.reference_returns
        return 100 * (return_ - low) / (high - low)


@dataclass(frozen=True)
class FileEnvironment(Environment):
    """An environment that only a file names, with a module to import, or with texts or large numbers.

    A file of weights is data. Its user decides which code runs, and for how long, so this environment isn't
    made unless the user has imported the module already.
    """

    def check(self) -> None:
        """Raise a :class:`UserError` if making the environment would follow the file further than that."""
        for name, value in self.kwargs.items():
            if not _is_harmless(name, value):
                raise UserError(
                    f"environment {self.id}: a file gives it {name}={shown(value)}, and texts may name other "
                    "files or modules, and large numbers may take forever; if you trust the file, make the "
                    "environment yourself, for Agent.evaluate"
                )
        for module in self.modules:
            if module in sys.modules:
                continue
            raise UserError(
                f"environment {self.id}: a file names it, and making it would import the module {module}; if "
                f"you trust the file, give --environment {self.id}, or import {module} first"
            )


def _is_harmless(name: str, value: float | str) -> bool:
    """Whether a file may give it: no text, and no number that takes without end, e.g. as `frame_skip`."""
    return name != "max_episode_steps" and not isinstance(value, str) and abs(value) <= 1000


def environment_in_file(description: Any) -> Environment | None:
    """The environment that a file's metadata describe, as `asdict` writes it; None if they have none.

    Raises:
        ValueError: it isn't a description of an environment.
    """
    found = TypeAdapter(Environment | None).validate_python(description)
    if found and (":" in str(found.id) or not all(_is_harmless(*each) for each in found.kwargs.items())):
        return FileEnvironment(**vars(found))
    return found


# Reference returns are from D4RL's `d4rl/infos.py`, REF_MIN_SCORE and REF_MAX_SCORE, which are the same for
# -v0, -v1 and -v2.
LOCOMOTION: Mapping[str, Environment] = {
    "HalfCheetah": Environment("HalfCheetah-v5", reference_returns=(-280.178953, 12135.0)),
    "Hopper": Environment("Hopper-v5", reference_returns=(-20.272305, 3234.3)),
    "Walker2d": Environment("Walker2d-v5", reference_returns=(1.629008, 4592.3)),
}
"""The environments for which this project has experts."""


@dataclass(frozen=True)
class Spaces:
    """What agents and data of an environment have in common. Observations and actions are flat vectors."""

    name: str
    """The environment's, in messages."""
    observation_size: int
    bounds: ActionBounds
    time_limit: int | None
    """Number of steps after which an episode is cut; None if it never is."""

    @property
    def action_size(self) -> int:
        """Number of coordinates of an action."""
        return len(self.bounds.low)


def known_spaces(environment: Environment | None) -> Spaces | None:
    """An environment's spaces, for which it is made; None if there is no environment.

    Raises:
        UserError: see :func:`make_environment`.
    """
    if environment is None or environment.id is None:
        return None
    made = make_environment(environment)
    bounds = bounds_of(made)
    size, spec = int(np.prod(made.observation_space.shape or ())), made.spec
    made.close()
    return Spaces(environment.name, size, bounds, spec.max_episode_steps if spec else None)


def make_environment(environment: Environment) -> Env:
    """An environment that takes actions within [-1, 1], whatever its own bounds are.

    Raises:
        UserError: there is no such environment here, only a file names it (:class:`FileEnvironment`), it
            can't be made, or its observations or actions are not flat vectors, or its actions have no bounds.
    """
    if environment.id is None:
        raise UserError("there is no environment (its id is null) to be played in; give --environment")
    if isinstance(environment, FileEnvironment):
        environment.check()
    arguments: dict[str, Any] = dict(environment.kwargs)
    if environment.time_limit:
        arguments["max_episode_steps"] = environment.time_limit
    by = f"gymnasium {gymnasium.__version__} and mujoco {mujoco.__version__}"
    fix = "correct its id or kwargs, or install what it needs"
    with explained(f"environment {environment.id} can't be made with {by}", fix):
        made: Env = gymnasium.make(environment.id, **arguments)
    flatten = "wrap it, e.g. in gymnasium.wrappers.FlattenObservation"
    for name, space, fix in (
        ("observations", made.observation_space, f"agents read flat vectors; {flatten}"),
        ("actions", made.action_space, "agents choose vectors of real numbers; take another environment"),
    ):
        if not isinstance(space, Box) or len(space.shape) != 1:
            raise UserError(f"environment {environment.id}: its {name} are {space}, {fix}")
    actions: Any = made.action_space
    low, high = actions.low, actions.high
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise UserError(f"environment {environment.id}: its actions have no bounds; clip them in a wrapper")
    if (low == -1).all() and (high == 1).all():
        return made
    return RescaleAction(made, np.float32(-1), np.float32(1))


def playing(environment: object) -> AbstractContextManager[None]:
    """Raise a :class:`UserError` where an environment fails, or doesn't return what Gymnasium's do."""
    fix = "see what reset and step of a gymnasium.Env have to return"
    return explained(f"environment {environment} failed", fix)


def bounds_of(made: Env) -> ActionBounds:
    """The bounds of actions before they were rescaled."""
    own: Any = made.env.action_space if isinstance(made, RescaleAction) else made.action_space
    low, high = (tuple(np.asarray(each, float).tolist()) for each in (own.low, own.high))
    return ActionBounds(low, high)


def _log_mujoco_warning(message: str) -> None:
    level = logging.DEBUG if "deprecated" in message else logging.WARNING
    logging.getLogger(__name__).log(level, message.strip())


# MuJoCo's own handler prints warnings and appends them to MUJOCO_LOG.TXT in the working directory. Because
# HalfCheetah's model has a deprecated attribute, that file would appear wherever a command is run.
mujoco.set_mju_user_warning(_log_mujoco_warning)
