"""Transitions: the common form into which data from every source are converted, checked and stored."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
import safetensors.numpy
from annotated_types import Ge, Lt
from numpy.typing import NDArray
from pydantic import TypeAdapter

from singleshot.errors import UserError, explained
from singleshot.io.addresses import check_address
from singleshot.io.tensor_file import read_tensor_file
from singleshot.rl.actions import TOLERANCE, ActionBounds
from singleshot.rl.data.arrays import check_values, largest
from singleshot.rl.environments import Spaces


@dataclass(frozen=True)
class D4RLFile:
    """An HDF5 file of D4RL."""

    url: str
    """Location of the file: http(s)://, file:// or a path. Secrets come from ~/.netrc, or as $NAME from the
    environment."""
    sha256: str | None = None
    """Expected SHA-256 of the file. Without it, the actual SHA-256 is only recorded."""

    def __post_init__(self) -> None:
        check_address(self.url)


@dataclass(frozen=True)
class DataConfig:
    """Where transitions come from, for every environment."""

    source: Literal["expert", "minari", "d4rl"] = "expert"
    transitions: Annotated[int, Ge(1)] = 100_000
    """Number of transitions to collect from an expert; the other sources are used whole."""
    action_noise: Annotated[float, Ge(0)] = 0.1
    """Standard deviation of the Gaussian noise on an expert's actions."""
    seed: Annotated[int, Ge(0)] | None = None
    """Seed of an expert's rollouts: one draw of the data for all agents. With null, agents of seed i are
    trained on draw i. The other sources have one dataset for all agents."""
    failed_episodes: Annotated[float, Ge(0), Lt(1)] | None = 0.0
    """Fraction of an expert's episodes that failed: their return is below two thirds of the mean return
    of the expert without noise. Episodes are played until there are enough of both kinds. With null, they
    are used as they come."""
    minari: Mapping[str, str] = field(default_factory=dict)
    """Ids of published Minari datasets, or directories of local ones."""
    d4rl: Mapping[str, D4RLFile] = field(default_factory=dict)


@dataclass(frozen=True)
class Transitions:
    """N transitions (s, a, r, s', terminal), none of them across the end of an episode.

    `terminals` marks transitions into a state that ends the episode; an episode that is cut by a time limit
    ends without a terminal. Where a terminal's s' was not recorded, s stands in for it: no target ever uses
    its value.
    """

    observations: NDArray[np.float32]
    """s, (N, S)"""
    actions: NDArray[np.float32]
    """a, (N, A), in [-1, 1]"""
    rewards: NDArray[np.float32]
    """r, (N,)"""
    next_observations: NDArray[np.float32]
    """s', (N, S)"""
    terminals: NDArray[np.bool_]
    """(N,)"""
    bounds: ActionBounds | None = None
    """The actions that -1 and 1 stand for; None for -1 and 1 themselves."""

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def state_size(self) -> int:
        """S."""
        return self.observations.shape[-1]

    @property
    def action_size(self) -> int:
        """A."""
        return self.actions.shape[-1]

    def part(self, start: int, stop: int) -> Self:
        """Transitions number `start` to `stop` - 1."""
        return replace(self, **{name: getattr(self, name)[start:stop] for name in ARRAYS})

    def check(self, origin: Path | str, spaces: Spaces | None = None) -> Self:
        """Check these transitions and return them; error messages name `origin` as their source.

        If `spaces` are given, the sizes of observations and actions are compared with them, too.

        Raises:
            UserError: there is no transition, or there are wrong shapes, NaN, infinity, too large numbers, or
                actions outside [-1, 1].
        """
        n, states, actions = self.rewards.size, max(1, self.state_size), max(1, self.action_size)
        if not n:
            raise UserError(f"{origin}: holds no transition; at least one is needed")
        if spaces:
            states, actions = spaces.observation_size, spaces.action_size
        expected = zip(ARRAYS, ((n, states), (n, actions), (n,), (n, states), (n,)), strict=True)
        for name, shape in expected:
            values = getattr(self, name)
            if values.shape != shape:
                raise UserError(
                    f"{origin}: '{name}' has shape {values.shape}, {spaces.name if spaces else 'these'} "
                    f"transitions need {shape}; was it made for another environment?"
                )
            check_values(values, name, origin)
        if largest(self.actions) > 1 + TOLERANCE:
            raise UserError(
                f"{origin}: 'actions' reach {largest(self.actions):g} times the largest that the environment "
                "takes; rescale them"
            )
        return self

    def save(self, path: Path) -> None:
        """Write as safetensors, one tensor per array; equal transitions give equal bytes."""
        arrays = {name: np.ascontiguousarray(getattr(self, name)) for name in ARRAYS}
        metadata = {"bounds": json.dumps(asdict(self.bounds))} if self.bounds else None
        safetensors.numpy.save_file(arrays, path, metadata)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what :meth:`save` wrote, and :meth:`check` it.

        Raises:
            UserError: the file is missing, truncated, lacks a field, or fails the check.
        """
        file = read_tensor_file(path)
        with explained(f"{path}: not transitions", "make it again"):
            arrays = [file.tensors[name].numpy() for name in ARRAYS]
            bounds = TypeAdapter(ActionBounds | None).validate_json(file.metadata.get("bounds", "null"))
            return cls.cast(*arrays, bounds=bounds).check(path)

    @classmethod
    def cast(cls, *arrays: NDArray, bounds: ActionBounds | None = None) -> Self:
        """Make transitions from the arrays :data:`ARRAYS` of any numeric type, cast to their own."""
        *numbers, terminals = arrays
        s, a, r, s2 = (np.asarray(each, np.float32) for each in numbers)
        return cls(s, a, r, s2, np.asarray(terminals, np.bool_), bounds)


ARRAYS = tuple(f.name for f in fields(Transitions) if f.name != "bounds")
"""Names of the arrays of transitions."""


@dataclass(frozen=True)
class Episode:
    """T steps in order, from a reset to a terminal state, the time limit, or the end of the recording."""

    observations: NDArray[np.floating]
    """s_0 … s_T, (T + 1, S)"""
    actions: NDArray[np.floating]
    """(T, A)"""
    rewards: NDArray[np.floating]
    """(T,)"""
    terminated: bool
    """Whether s_T ends the episode, and no time limit does."""
    truncated: bool = False
    """Whether a time limit ends it. An episode that neither ends is cut short."""

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def complete(self) -> bool:
        """Whether the episode ran to its end, so that its return counts."""
        return self.terminated or self.truncated

    def first(self, steps: int) -> "Episode":
        """The episode's first `steps` steps; a cut episode is not terminated."""
        if steps >= len(self):
            return self
        return Episode(
            self.observations[: steps + 1], self.actions[:steps], self.rewards[:steps], terminated=False
        )


@dataclass(frozen=True)
class Recording:
    """Data from one source: transitions, and the returns of its episodes."""

    transitions: Transitions
    episodes: int
    """Number of all episodes, including those cut short."""
    returns: NDArray[np.float64]
    """Undiscounted returns of the complete episodes."""
    doubts: tuple[str, ...] = ()
    """What is doubtful in the data, in words."""


def from_episodes(episodes: Iterable[Episode]) -> Recording:
    """Make a recording in which every step of `episodes` is a transition."""
    episodes = list(episodes)
    terminals = [np.arange(len(e)) == (len(e) - 1 if e.terminated else -1) for e in episodes]
    transitions = Transitions.cast(
        np.concatenate([e.observations[:-1] for e in episodes]),
        np.concatenate([e.actions for e in episodes]),
        np.concatenate([e.rewards for e in episodes]),
        np.concatenate([e.observations[1:] for e in episodes]),
        np.concatenate(terminals),
    )
    returns = np.array([e.rewards.sum(dtype=np.float64) for e in episodes if e.complete])
    return Recording(transitions, len(episodes), returns)
