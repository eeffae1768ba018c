"""D4RL's HDF5 files (Fu et al. 2020): flat arrays of steps, in which episodes have to be found."""

from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from singleshot.errors import UserError, in_a_line
from singleshot.rl.data.hdf5 import check_arrays
from singleshot.rl.data.transitions import Dataset, Transitions, check_finite
from singleshot.rl.environments import TIME_LIMIT, MujocoTask

REQUIRED = ("observations", "actions", "rewards", "terminals")
OPTIONAL = ("next_observations", "timeouts")


def read_d4rl(path: Path, task: MujocoTask) -> Dataset:
    """Read the transitions of a D4RL file.

    The file holds `observations`, `actions`, `rewards`, `terminals`, and optionally `timeouts` and
    `next_observations`. As in D4RL's `qlearning_dataset`, an episode ends after 1,000 steps if there are no
    `timeouts`. Without `next_observations`, s' is the next row's observation; a step that is cut by a time
    limit or by the end of the file has no s' and is left out. Unlike in `qlearning_dataset`, a terminal's s'
    is never the start of the next episode, and the last step of the file is kept if it is terminal or if its
    s' is recorded.

    Raises:
        UserError: the file is unreadable, a key is missing, lengths differ, or :meth:`Transitions.check`
            fails.
    """
    arrays = _read(path)
    _check_shapes(arrays, path, task)
    terminals = arrays["terminals"].astype(bool)
    timeouts = arrays["timeouts"].astype(bool) if "timeouts" in arrays else _timeouts(terminals)
    observations = arrays["observations"]
    if "next_observations" in arrays:
        next_observations, kept = arrays["next_observations"], np.ones(len(terminals), bool)
    else:
        next_observations, kept = _next_observations(observations, terminals, timeouts)
    transitions = Transitions.cast(
        observations[kept],
        arrays["actions"][kept],
        arrays["rewards"][kept],
        next_observations[kept],
        terminals[kept],
    )
    episodes, returns = _returns(arrays["rewards"], terminals, timeouts)
    return Dataset(transitions.check(path, task), episodes, returns)


def _read(path: Path) -> dict[str, NDArray]:
    try:
        with h5py.File(path, "r") as file:
            missing = [key for key in REQUIRED if key not in file]
            if missing:
                raise UserError(
                    f"{path}: has no {', '.join(repr(key) for key in missing)}, only {sorted(file)}; "
                    f"a D4RL file holds {', '.join(REQUIRED)} and timeouts"
                )
            check_arrays(file, path)
            return {key: _numbers(file[key], path) for key in (*REQUIRED, *OPTIONAL) if key in file}
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file; correct offline_rl.data.d4rl in the configuration") from error
    except UserError:
        raise
    except Exception as error:  # damaged bytes: OSError, RuntimeError, KeyError, TypeError, MemoryError, …
        raise UserError(
            f"{path}: not a whole HDF5 file ({in_a_line(error)}); replace it, or delete it to fetch it again"
        ) from error


def _numbers(dataset: h5py.Dataset, path: Path) -> NDArray:
    values = np.asarray(dataset[()])
    if values.dtype.kind not in "biuf":
        raise UserError(
            f"{path}: '{dataset.name[1:]}' holds no numbers; replace it, or delete it to fetch it again"
        )
    return values


def _check_shapes(arrays: dict[str, NDArray], path: Path, task: MujocoTask) -> None:
    lengths = {key: values.shape[0] if values.ndim else 0 for key, values in arrays.items()}
    for key, length in lengths.items():
        if length != lengths["actions"]:
            raise UserError(
                f"{path}: '{key}' has {length:,} rows, 'actions' {lengths['actions']:,}; "
                "the file is truncated, replace it, or delete it to fetch it again"
            )
    widths = {"observations": (task.observation_size,), "next_observations": (task.observation_size,)}
    widths["actions"] = (task.action_size,)
    for key, values in arrays.items():
        if values.shape[1:] != widths.get(key, ()):
            raise UserError(
                f"{path}: '{key}' has shape {values.shape}, {task.name} needs "
                f"{(len(values), *widths.get(key, ()))}; is it another task's file?"
            )
        check_finite(values, key, path)


def _timeouts(terminals: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Mark the steps that reach the time limit, counted from the beginning and from each terminal."""
    rows = np.arange(len(terminals))
    starts = np.concatenate([[0], rows[:-1] * terminals[:-1] + terminals[:-1]])
    step = rows - np.maximum.accumulate(starts)
    return step % TIME_LIMIT == TIME_LIMIT - 1


def _next_observations(
    observations: NDArray, terminals: NDArray[np.bool_], timeouts: NDArray[np.bool_]
) -> tuple[NDArray, NDArray[np.bool_]]:
    """s' of each step from the next row (its own s for a terminal), and which steps have an s'."""
    following = np.roll(observations, -1, axis=0)
    last = np.arange(len(terminals)) == len(terminals) - 1
    return np.where(terminals[:, None], observations, following), terminals | ~(timeouts | last)


def _returns(
    rewards: NDArray, terminals: NDArray[np.bool_], timeouts: NDArray[np.bool_]
) -> tuple[int, NDArray[np.float64]]:
    """Number of episodes, and the returns of the complete ones, which are terminal or of full length."""
    ends = np.flatnonzero(terminals | timeouts)
    starts = np.concatenate([[0], ends + 1])
    starts = starts[starts < len(rewards)]
    lengths = np.diff(np.append(starts, len(rewards)))
    complete = terminals[starts + lengths - 1] | (lengths == TIME_LIMIT)
    return len(starts), np.add.reduceat(rewards.astype(np.float64), starts)[complete]
