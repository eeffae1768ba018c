"""D4RL's HDF5 files (Fu et al. 2020): flat arrays of steps, in which episodes have to be found."""

from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from singleshot.errors import UserError
from singleshot.rl.actions import ActionBounds
from singleshot.rl.data.arrays import check_flags, check_values, check_vectors, flat, numbers, vectors
from singleshot.rl.data.doubts import Doubts
from singleshot.rl.data.hdf5 import member, open_hdf5, read_array
from singleshot.rl.data.transitions import Recording, Transitions
from singleshot.rl.environments import Environment, Spaces, known_spaces

REQUIRED = ("observations", "actions", "rewards", "terminals")
FLAGS = ("terminals", "timeouts", "episode_terminals")
"""Arrays of 0 and 1. `episode_terminals` is d3rlpy's: the last step of each episode."""


def read_d4rl(path: Path, environment: Environment | None = None) -> Recording:
    """Read the transitions of a D4RL file.

    The file holds `observations`, `actions`, `rewards`, `terminals`, and optionally `timeouts` and
    `next_observations`; columns (N, 1) count as (N,). Agents will act in `environment`; if they act in none,
    the data alone tell sizes and bounds of actions. As in D4RL's `qlearning_dataset`, an episode ends at the
    environment's time limit at the latest, also where `timeouts` don't say so. Without `next_observations`,
    s' is the next row's observation; a step that is cut by a time limit or by the end of the file has no s'
    and is left out.
    Unlike in `qlearning_dataset`, a terminal's s' is never the start of the next episode, a terminal at the
    time limit counts as a time-out, and the last step of the file is kept if it is terminal or if its s' is
    recorded.

    What is doubtful, but can be used, is logged in one line.

    Raises:
        UserError: the file is unreadable, a key is missing, lengths differ, or :meth:`Transitions.check`
            fails.
    """
    doubts, spaces = Doubts(path), known_spaces(environment)
    limit = spaces.time_limit if spaces else None
    arrays = _read(path)
    last_state = _align(arrays, spaces, doubts)
    _check_arrays(arrays, path, spaces)
    bounds = spaces.bounds if spaces else ActionBounds.of(arrays["actions"])
    observations, actions = arrays["observations"], doubts.clip_actions(bounds.to_unit(arrays["actions"]))
    rewards = arrays["rewards"]
    doubts.check_rewards(rewards)
    if "next_observations" in arrays:
        next_observations = arrays["next_observations"]
        continues = np.isclose(next_observations[:-1], observations[1:], rtol=1e-4, atol=1e-4).all(axis=1)
        terminals, timeouts = _ends(arrays, continues, limit, doubts)
        kept = ~_other_episodes(continues, terminals, timeouts, doubts)
    else:
        terminals, timeouts = _ends(arrays, None, limit, doubts)
        next_observations, kept = _next_observations(observations, last_state, terminals, timeouts)
    transitions = Transitions.cast(
        observations[kept], actions[kept], rewards[kept], next_observations[kept], terminals[kept]
    )
    if not bounds.is_unit:
        transitions = replace(transitions, bounds=bounds)
    doubts.check_signal(transitions.rewards, transitions.terminals)
    episodes, returns = _returns(rewards, terminals, timeouts, limit)
    return Recording(transitions.check(path, spaces), episodes, returns, doubts.told())


def _read(path: Path) -> dict[str, NDArray]:
    with open_hdf5(path, "correct offline_rl.data.d4rl in the configuration") as file:
        found = sorted(file)
        missing = [key for key in REQUIRED if key not in found]
        if missing:
            raise UserError(
                f"{path}: has no {', '.join(repr(key) for key in missing)}, only {found}; "
                f"a D4RL file holds {', '.join(REQUIRED)} and timeouts"
            )
        keys = dict.fromkeys((*REQUIRED, "next_observations", *FLAGS))
        return {key: np.atleast_1d(_numbers(file, key, path)) for key in keys if key in found}


def _numbers(file: h5py.File, key: str, path: Path) -> NDArray:
    array = member(file, key, path)
    values = read_array(array, path) if isinstance(array, h5py.Dataset) else "a group"
    return numbers(values, key, path)


def _align(arrays: dict[str, NDArray], spaces: Spaces | None, doubts: Doubts) -> NDArray:
    """Make columns flat and vectors columns; returns the state after the last step: (1, S), or (0, S) if it
    isn't recorded."""
    sizes = {
        "observations": spaces.observation_size if spaces else None,
        "next_observations": spaces.observation_size if spaces else None,
        "actions": spaces.action_size if spaces else None,
    }
    for key, values in arrays.items():
        arrays[key] = vectors(values, sizes[key]) if key in sizes else flat(values)
    observations, steps = arrays["observations"], len(arrays["actions"])
    if len(observations) != steps + 1:
        return observations[:0]
    doubts.add("'observations' has a row more than 'actions', read as the state after the last step")
    arrays["observations"] = observations[:-1]
    return observations[-1:]


def _check_arrays(arrays: dict[str, NDArray], path: Path, spaces: Spaces | None) -> None:
    steps = len(arrays["actions"])
    for key, values in arrays.items():
        if len(values) != steps:
            raise UserError(
                f"{path}: '{key}' has {len(values):,} rows, 'actions' {steps:,}; give a file with a row of "
                "each for every step"
            )
    shapes = _shapes(arrays, path, spaces)
    for key, values in arrays.items():
        if values.shape != shapes.get(key, (steps,)):
            raise UserError(
                f"{path}: '{key}' has shape {values.shape}, {spaces.name if spaces else 'the rest'} needs "
                f"{shapes.get(key, (steps,))}; is it another environment's file?"
            )
        (check_flags if key in FLAGS else check_values)(values, key, path)


def _shapes(arrays: dict[str, NDArray], path: Path, spaces: Spaces | None) -> dict[str, tuple[int, int]]:
    """The shapes of the arrays that hold vectors."""
    steps = len(arrays["actions"])
    if spaces:
        state, action = (steps, spaces.observation_size), (steps, spaces.action_size)
    else:
        for key in ("observations", "actions"):
            check_vectors(arrays[key], key, path)
        state, action = arrays["observations"].shape, arrays["actions"].shape
    return {"observations": state, "next_observations": state, "actions": action}


def _ends(
    arrays: dict[str, NDArray], continues: NDArray[np.bool_] | None, limit: int | None, doubts: Doubts
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """The steps into a terminal state, and the other last steps of episodes.

    `continues` says of each step but the last whether its s' is the next row's state; None where s' is not
    recorded.
    """
    terminals, nothing = arrays["terminals"].astype(bool), np.zeros(len(arrays["terminals"]), bool)
    timeouts = arrays.get("timeouts", arrays.get("episode_terminals", nothing)).astype(bool)
    steps = _steps(terminals | timeouts)
    late = terminals & (steps + 1 == limit)
    if late.any():
        doubts.add(f"{late.sum():,} 'terminals' stand at the time limit, read as time-outs")
        terminals, timeouts = terminals & ~late, timeouts | late
    lengths = set(steps[terminals].tolist())
    if terminals.sum() > 2 and len(lengths) == 1 and lengths != {0}:
        doubts.add(f"every terminal comes after {lengths.pop() + 1:,} steps, as a time limit would")
    ends = terminals | timeouts
    if continues is not None and len(continues) > 1 and continues.mean() < 0.5:
        doubts.add("'next_observations' are seldom the next row's 'observations'; are rows out of order?")
    elif continues is not None:
        unmarked = ~np.append(continues, True) & ~ends
        if unmarked.any():
            doubts.add(f"{unmarked.sum():,} episodes end without a terminal or a time-out that says so")
            return terminals, timeouts | unmarked
    unmarked = (_steps(ends) % limit == limit - 1) & ~ends if limit else nothing
    if unmarked.any() and continues is None:
        marked = f"'timeouts' marks {'not all' if timeouts.any() else 'no'} ends of episodes"
        said = marked if "timeouts" in arrays else "there are no 'timeouts' for the ends of episodes"
        doubts.add(f"{said}: cut after {limit:,} steps")
        timeouts = timeouts | unmarked
    return terminals, timeouts


def _steps(ends: NDArray[np.bool_]) -> NDArray[np.int_]:
    """The number of steps between the beginning of its episode and each step."""
    rows = np.arange(len(ends))
    starts = np.concatenate([[0], (rows[:-1] + 1) * ends[:-1]])[: len(ends)]
    return rows - np.maximum.accumulate(starts)


def _other_episodes(
    continues: NDArray[np.bool_], terminals: NDArray[np.bool_], timeouts: NDArray[np.bool_], doubts: Doubts
) -> NDArray[np.bool_]:
    """The time-outs whose recorded s' is the next episode's first state, as environments with automatic
    resets return it."""
    wrong = np.append(continues, False)[: len(terminals)] & timeouts & ~terminals
    if wrong.any():
        doubts.add(f"s' of {wrong.sum():,} time-outs is the next episode's first state; these are left out")
    return wrong


def _next_observations(
    observations: NDArray, last_state: NDArray, terminals: NDArray[np.bool_], timeouts: NDArray[np.bool_]
) -> tuple[NDArray, NDArray[np.bool_]]:
    """s' of each step from the next row (its own s for a terminal), and which steps have an s'."""
    rows = len(terminals)
    following = np.concatenate([observations[1:], last_state, observations[-1:]])[:rows]
    known = ~timeouts
    known[-1:] = len(last_state)
    return np.where(terminals[:, None], observations, following), terminals | known


def _returns(
    rewards: NDArray, terminals: NDArray[np.bool_], timeouts: NDArray[np.bool_], limit: int | None
) -> tuple[int, NDArray[np.float64]]:
    """Number of episodes, and the returns of the complete ones, which are terminal or of full length.

    Without a time limit, those that time out are complete, too.
    """
    ends = np.flatnonzero(terminals | timeouts)
    starts = np.concatenate([[0], ends + 1])
    starts = starts[starts < len(rewards)]
    lengths = np.diff(np.append(starts, len(rewards)))
    last = starts + lengths - 1
    complete = terminals[last] | ((lengths == limit) if limit else timeouts[last])
    return len(starts), np.add.reduceat(rewards.astype(np.float64), starts)[complete]
