"""D4RL's HDF5 files (Fu et al. 2020): flat arrays of steps, in which episodes have to be found."""

import contextlib
import importlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from singleshot.errors import UserError, in_a_line
from singleshot.rl.actions import ActionBounds
from singleshot.rl.data.arrays import Doubts, check_steps
from singleshot.rl.data.transitions import Recording, Transitions
from singleshot.rl.environments import Environment, known_spaces

REQUIRED = ("observations", "actions", "rewards", "terminals")
OPTIONAL = ("next_observations", "timeouts", "episode_terminals")
MOST_COMPRESSED = 1032
"""Highest compression ratio of deflate, HDF5's usual filter (zlib's technical notes)."""


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
    arrays = check_steps(_read(path), path, spaces)
    rewards, steps = arrays["rewards"], len(arrays["actions"])
    observations, last_state = arrays["observations"][:steps], arrays["observations"][steps:]
    if len(last_state):
        doubts.add("'observations' has a row more than 'actions', read as the state after the last step")
    if not spaces:
        doubts.check_choices(arrays["actions"])
    bounds = spaces.bounds if spaces else ActionBounds.of(arrays["actions"])
    actions = doubts.clip_actions(bounds.to_unit(arrays["actions"]))
    doubts.check_rewards(rewards)
    doubts.check_rows(observations, arrays["actions"], rewards)
    if "next_observations" in arrays:
        next_observations = arrays["next_observations"]
        continues = np.isclose(next_observations[:-1], observations[1:], rtol=1e-4, atol=1e-4).all(axis=1)
        terminals, timeouts = _ends(arrays, continues, limit, doubts)
        # Environments that reset themselves return the next episode's first state as s' of a time-out.
        others = np.append(continues, False)[:steps] & timeouts & ~terminals
        if others.any():
            doubts.add(
                f"s' of {others.sum():,} time-outs is the next episode's first state; these are left out"
            )
        kept = ~others
    else:
        terminals, timeouts = _ends(arrays, None, limit, doubts)
        doubts.check_order(observations, ~(terminals | timeouts)[:-1])
        next_observations, kept = _next_observations(observations, last_state, terminals, timeouts)
    transitions = Transitions.cast(
        observations[kept], actions[kept], rewards[kept], next_observations[kept], terminals[kept]
    )
    if not bounds.is_unit:
        transitions = replace(transitions, bounds=bounds)
    doubts.check_signal(transitions.rewards, transitions.terminals)
    episodes, returns = _returns(rewards, terminals, timeouts, limit)
    return Recording(transitions.check(path, spaces), episodes, returns, doubts.told())


def _read(path: Path) -> dict[str, Any]:
    with _reading(path), h5py.File(path, "r", locking="best-effort") as file:
        missing = [key for key in REQUIRED if key not in file]
        if missing:
            raise UserError(
                f"{path}: has no {', '.join(map(repr, missing))}, only {sorted(file)}; "
                f"a D4RL file holds {', '.join(REQUIRED)} and timeouts"
            )
        return {key: _array(file, key, path) for key in (*REQUIRED, *OPTIONAL) if key in file}


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file; correct offline_rl.data.d4rl in the configuration") from error
    except Exception as error:  # damaged bytes: OSError, RuntimeError, KeyError, TypeError, MemoryError, …
        advice = "give another copy of it"
        if isinstance(error, BlockingIOError) or "h5clear" in str(error):
            advice = f"close what writes to it; if that was killed, run h5clear -s {path}"
        elif not (path.is_file() and h5py.is_hdf5(path)):
            advice = "give an HDF5 file"
        raise UserError(f"{path}: HDF5 can't read it ({in_a_line(error)}); {advice}") from error


def _array(file: h5py.File, key: str, path: Path) -> Any:
    """An array that lies in the file itself, with a size that its header doesn't invent; a group as it is."""
    found = file[key]
    if not isinstance(found, h5py.Dataset):
        return dict(found)
    if found.file.filename != file.filename or found.external or found.is_virtual:
        raise UserError(f"{path}: '{key}' lies in another file; copy it into this one")
    if found.nbytes > MOST_COMPRESSED * path.stat().st_size:
        raise UserError(f"{path}: '{key}' claims {found.nbytes:,} bytes, more than the file can hold")
    stored = found.id.get_create_plist()
    for number in range(stored.get_nfilters()):
        code, _, _, name = stored.get_filter(number)
        if not h5py.h5z.filter_avail(code):
            with contextlib.suppress(ImportError):
                importlib.import_module("hdf5plugin")
        if not h5py.h5z.filter_avail(code):
            raise UserError(
                f"{path}: '{key}' is compressed by {name.decode() or code}, which HDF5 lacks here; "
                "pip install hdf5plugin, or write the file again with h5repack -f GZIP=4"
            )
    return found[()]


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
