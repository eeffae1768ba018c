"""D4RL's HDF5 files (Fu et al. 2020): flat arrays of steps, in which episodes have to be found."""

import contextlib
import importlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from singleshot.errors import UserError, in_a_line, shown
from singleshot.rl.data.arrays import Doubts, check_steps, open_hdf5, read_arrays
from singleshot.rl.data.transitions import Recording, Transitions
from singleshot.rl.environments import Environment, known_spaces

REQUIRED = ("observations", "actions", "rewards", "terminals")
OPTIONAL = ("next_observations", "timeouts", "episode_terminals")


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
    actions, bounds = doubts.unit_actions(arrays["actions"], spaces)
    if "next_observations" in arrays:
        next_observations = arrays["next_observations"]
        continues = np.isclose(next_observations[:-1], observations[1:], rtol=1e-4, atol=1e-4).all(axis=1)
        terminals, timeouts = _ends(arrays, continues, limit, doubts)
        # Environments that reset themselves return the next episode's first state as s' of a time-out.
        others = np.append(continues, False)[:steps] & timeouts & ~terminals
        if others.any():
            doubts.add(f"s' of {others.sum():,} time-outs is the next episode's first state; left out")
        kept = ~others
    else:
        terminals, timeouts = _ends(arrays, None, limit, doubts)
        doubts.check_order(observations, ~(terminals | timeouts)[:-1])
        # s' is the next row's, but a terminal's own s stands in for it.
        following = np.concatenate([observations[1:], last_state, observations[-1:]])[:steps]
        next_observations = np.where(terminals[:, None], observations, following)
        kept = ~timeouts
        kept[-1:] = len(last_state)
        kept |= terminals
    transitions = Transitions.cast(
        *(each[kept] for each in (observations, actions, rewards, next_observations, terminals)),
        bounds=bounds,
    )
    doubts.check_rows(observations, arrays["actions"], rewards, terminals, known=spaces is not None)
    episodes, returns = _returns(rewards, terminals, timeouts, limit)
    return Recording(transitions.check(path, spaces), episodes, returns, doubts.told())


def _read(path: Path) -> dict[str, Any]:
    with contextlib.suppress(ImportError):
        importlib.import_module("hdf5plugin")  # Blosc and other compressions
    try:
        with open_hdf5(path) as file:
            for key in REQUIRED:
                if not isinstance(file.get(key), h5py.Dataset):
                    needed = f"give a file with the arrays {', '.join(REQUIRED)}"
                    raise UserError(f"{path}: has no array {key!r} among {shown(sorted(file))}; {needed}")
            return read_arrays(file, [key for key in (*REQUIRED, *OPTIONAL) if key in file])
    except UserError:
        raise
    except Exception as error:  # damaged bytes: OSError, RuntimeError, KeyError, TypeError, MemoryError, …
        said, fix = in_a_line(error), "give another copy of it"
        if "plugin" in said or "filter" in said:
            fix = "it is compressed by a filter that HDF5 lacks: pip install hdf5plugin"
        elif "h5clear" in said:
            fix = "a writer left it open: run h5clear -s on it"
        raise UserError(f"{path}: HDF5 can't read it ({said}); {fix}") from error


def _ends(
    arrays: dict[str, NDArray], continues: NDArray[np.bool_] | None, limit: int | None, doubts: Doubts
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """The steps into a terminal state, and the other last steps of episodes.

    `continues` says of each step but the last whether its s' is the next row's state; None where s' is not
    recorded.
    """
    terminals, nothing = arrays["terminals"].astype(bool), np.zeros(len(arrays["terminals"]), bool)
    timeouts = arrays.get("timeouts", arrays.get("episode_terminals", nothing)).astype(bool)
    late = terminals & (_steps(terminals | timeouts) + 1 == limit)
    if late.any():
        doubts.add(f"{late.sum():,} 'terminals' stand at the time limit, read as time-outs")
        terminals, timeouts = terminals & ~late, timeouts | late
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
        doubts.add(f"'timeouts' are missing or don't mark all ends of episodes: cut after {limit:,} steps")
        timeouts = timeouts | unmarked
    return terminals, timeouts


def _steps(ends: NDArray[np.bool_]) -> NDArray[np.int_]:
    """The number of steps between the beginning of its episode and each step."""
    rows = np.arange(len(ends))
    starts = np.concatenate([[0], (rows[:-1] + 1) * ends[:-1]])[: len(ends)]
    return rows - np.maximum.accumulate(starts)


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
