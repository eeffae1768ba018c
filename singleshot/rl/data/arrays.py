"""Arrays as users give them, in files or in scripts: their shapes, their values, and what is doubtful."""

import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from singleshot.errors import UserError, shown
from singleshot.rl.actions import LARGEST, TOLERANCE, ActionBounds
from singleshot.rl.environments import Spaces

LARGE_REWARD = 1e6
"""Rewards of a thousand times the largest in D4RL's environments."""
LARGEST_CLIPPED = 2.0
"""Actions up to here are clipped to [-1, 1], as the simulator does; larger ones have another range."""
FEW, EMPTY = 10, 0.01
"""Most rows that may be 0 throughout without a doubt: their number, and their share."""
ENOUGH, SHUFFLED = 100, 0.8
"""Steps from which their order can be told, and how far apart rows out of order are, which should be 1."""
UNPACKED, READ_ANYWAY = 200, 2**28
"""Most bytes of data for each byte of an HDF5 file, and how many are read of any file. Recordings are
compressed to a half; a file of 2 kB may claim gigabytes of zeros."""
CHUNK_BYTES = 1000
"""Bytes that HDF5 keeps in memory for each chunk, besides its content."""
REARRANGING = {h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32}
"""Filters of HDF5 that make no more of a chunk than its size."""
CLAIMING = {h5py.h5z.FILTER_SCALEOFFSET, h5py.h5z.FILTER_NBIT, h5py.h5z.FILTER_SZIP}
"""Those that make as much of a chunk as the file claims. Others make a thousand times as much at most."""
DEEPEST = 20
"""Most groups in groups of an HDF5 file. HDF5 looks for each from the root: of 1,000, it takes minutes."""
VECTORS = ("observations", "next_observations", "actions")
FLAGS = ("terminals", "timeouts", "terminations", "truncations", "episode_terminals")
"""Arrays of 0 and 1. `episode_terminals` is d3rlpy's: the last step of each episode."""


@contextmanager
def open_hdf5(path: Path) -> Iterator[h5py.File]:
    """Open an HDF5 file without links to other files, for reading by :func:`read_arrays`.

    Raises:
        UserError: there is no such file, it has such links, or it would take minutes to find its arrays.
    """
    if not path.is_file():  # HDF5 would wait for a FIFO
        raise UserError(f"{path}: no such file; name one in HDF5")

    def leads_elsewhere(name: str, link: object) -> str | None:
        return name if isinstance(link, h5py.ExternalLink) or name.count("/") > DEEPEST else None

    with h5py.File(path, "r", locking="best-effort") as file:
        if name := file.visititems_links(leads_elsewhere):
            where = f"is in another file, or more than {DEEPEST} groups deep"
            raise UserError(f"{path}: its {shown(name)} {where}; give one that holds all its data")
        yield file


def read_arrays(file: h5py.File, names: Sequence[str]) -> dict[str, NDArray]:
    """The arrays of these names, which an HDF5 file holds itself.

    Raises:
        UserError: it doesn't, or they are out of all proportion to the file.
        KeyError: there is no such array.
    """
    path, claimed = Path(file.filename), 0
    for name in names:
        item = file[name]
        # Rows of any length may all be one, of which nothing says how large it is.
        if not isinstance(item, h5py.Dataset) or item.external or item.is_virtual or item.dtype.hasobject:
            where = "is in another file, of rows of any length, or no array"
            raise UserError(f"{path}: its {shown(name)} {where}; give one that holds all its data")
        stored = item.id.get_create_plist()
        filters = [stored.get_filter(i)[0] for i in range(stored.get_nfilters())]
        compressing = [each for each in filters if each not in REARRANGING]
        if len(compressing) > 1 or CLAIMING.intersection(compressing):
            how = "is compressed twice, or by scale-offset, N-bit or SZIP; compress it once, by gzip"
            raise UserError(f"{path}: its {shown(name)} {how}")
        # A chunk is read whole, and numbers become float64.
        chunk = item.chunks or item.shape or ()
        chunks = math.prod(
            math.ceil(size / max(1, part)) for size, part in zip(item.shape or (), chunk, strict=True)
        )
        claimed += max(item.size or 0, math.prod(chunk)) * max(8, item.dtype.itemsize) + chunks * CHUNK_BYTES
    if claimed > max(READ_ANYWAY, UNPACKED * path.stat().st_size):
        raise UserError(
            f"{path}: claims {claimed:,} bytes of data, {UNPACKED} times its size and more; write it "
            "again without the parts that were never filled"
        )
    return {name: file[name][()] for name in names}


def check_steps(given: Mapping[str, Any], origin: Path | str, spaces: Spaces | None) -> dict[str, NDArray]:
    """The arrays of N steps by name: vectors (N, size), others (N,).

    Columns (N, 1) count as (N,), and (N,) as vectors of size 1. Without `next_observations`, `observations`
    may be (N + 1, size).

    Raises:
        UserError: an array holds no numbers, NaN, infinity, too large numbers, or flags other than 0 and 1,
            or has another shape than the environment or the rest needs.
    """
    arrays = {name: np.atleast_1d(numbers(values, f"{origin}: '{name}'")) for name, values in given.items()}
    steps = Counter(map(len, arrays.values())).most_common(1)[0][0]
    for name, values in arrays.items():
        size = None
        if name in VECTORS:
            if spaces:
                size = spaces.action_size if name == "actions" else spaces.observation_size
            values = _vectors(values, size)
        elif values.ndim == 2 and values.shape[1] == 1:
            values = values[:, 0]
        if name in VECTORS and not spaces and values.ndim != 2:
            raise UserError(
                f"{origin}: '{name}' is {values.dtype} of shape {values.shape}; agents take vectors, "
                "(N, size), not pictures or single choices"
            )
        beyond = name == "observations" and "next_observations" not in given and len(values) == steps + 1
        rows = steps + 1 if beyond else steps
        shape = (rows,) if name not in VECTORS else (rows, size or values.shape[1])
        if values.shape != shape:
            needs = f"{spaces.name} needs {shape}" if spaces else f"the rest has {rows:,} rows"
            raise UserError(
                f"{origin}: '{name}' has shape {values.shape}, {needs}; is it another environment's, or cut?"
            )
        if name in FLAGS:
            fix = f"give 1 or true at the ends of episodes that are {name}, and 0 elsewhere"
            check_each(values, name, origin, (values == 0) | (values == 1), fix)
        else:
            check_values(values, name, origin)
        arrays[name] = values
    return arrays


def numbers(values: Any, what: str) -> NDArray:
    """An array of numbers, also from lists and tensors.

    Raises:
        UserError: `values` is anything else, or some are masked.
    """
    if np.ma.is_masked(values):
        raise UserError(f"{what} has masked values; fill them, or leave out what lacks them")
    try:
        array = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    except (ValueError, TypeError, RuntimeError):  # rows of different lengths
        array = np.array(None)
    if array.dtype.kind not in "biuf":
        raise UserError(f"{what} is {shown(values)}; it has to hold numbers, in rows of equal length")
    return array


def _vectors(values: NDArray, size: int | None) -> NDArray:
    """Vectors as floating-point numbers: (N,) counts as (N, 1) where vectors have this `size`, 1.

    Where the size isn't known, N integers are rather choices among several, and stay as they are. Signed
    integers would not do, because the absolute value of the lowest one is negative.
    """
    real = values.dtype.kind == "f"
    if values.ndim == 1 and (size == 1 or (size is None and real)):
        values = values[:, None]
    return values.astype(np.float64) if values.ndim == 2 and not real else values


def check_each(values: NDArray, name: str, origin: Path | str, right: NDArray[np.bool_], fix: str) -> None:
    """Raise a :class:`UserError` at the first of `values` that isn't right."""
    wrong = np.argwhere(~right)
    if len(wrong):
        index = tuple(wrong[0].tolist())
        raise UserError(f"{origin}: '{name}' holds {values[index]} at {index}; {fix}")


def check_values(values: NDArray, name: str, origin: Path | str) -> None:
    """Raise a :class:`UserError` at the first NaN or infinity, or if numbers are too large to train with."""
    finite = np.isfinite(values)
    fix = f"remove those episodes, or fetch the file again ({(~finite).sum():,} such values)"
    check_each(values, name, origin, finite, fix)
    if largest(values) > LARGEST:
        raise UserError(
            f"{origin}: '{name}' reach {largest(values):.2g}, whose square single precision can't hold; "
            f"divide all {name} by one number"
        )


def largest(values: NDArray) -> float:
    """The largest absolute value; 0 if there are no values.

    The absolute value is that of Python's numbers: NumPy's of the lowest signed integer is negative.
    """
    if not values.size:
        return 0.0
    return max(abs(float(values.min())), abs(float(values.max())))


@dataclass
class Doubts:
    """What is doubtful in a user's data: it is used, and one line says so."""

    origin: Path | str
    found: list[str] = field(default_factory=list)

    def add(self, doubt: str) -> None:
        """Note a doubt, once."""
        if doubt not in self.found:
            self.found.append(doubt)

    def told(self) -> tuple[str, ...]:
        """All doubts, after one line in the log."""
        if self.found:
            logging.getLogger(__name__).warning("%s: used, though %s", self.origin, "; ".join(self.found))
        return tuple(self.found)

    def check_rows(
        self, observations: NDArray, actions: NDArray, rewards: NDArray, terminals: NDArray, known: bool
    ) -> None:
        """Doubt what no environment gives: empty rows, and rewards, terminals or actions of another kind.

        Actions (N, A) are doubted only where no environment is `known`, whose actions are continuous.
        """
        empty = ~(observations.any(axis=1) | actions.any(axis=1) | (rewards != 0))
        if empty.sum() > FEW and empty.mean() > EMPTY:
            self.add(f"{empty.mean():.0%} of the rows are 0 throughout, as in a buffer that isn't filled")
        if not known and actions.any() and (actions == np.round(actions)).all():
            self.add("100% of 'actions' are whole numbers, as choices are, and taken as continuous")
        if largest(rewards) > LARGE_REWARD:
            self.add(f"'rewards' reach {largest(rewards):.2g}")
        if len(rewards) > 1 and not rewards.any():
            self.add("all 'rewards' are 0: only behaviour cloning can learn from it")
        if len(terminals) > 1 and terminals.mean() > 0.5:
            self.add("most steps are terminals, after which nothing counts (are these masks, 1 - done?)")

    def check_order(self, observations: NDArray, goes_on: NDArray[np.bool_]) -> None:
        """Doubt rows whose next row, where the episode goes on (N - 1,), is as far away as any other.

        A coordinate's mean squared difference of successive rows is twice its variance if rows are in random
        order (von Neumann 1941), and much less in a trajectory.
        """
        if goes_on.sum() < ENOUGH:
            return
        spread = 2 * observations.var(axis=0, dtype=np.float64)
        if spread.any():
            steps = np.square(np.diff(observations, axis=0)[goes_on], dtype=np.float64).mean(axis=0)
            ratio = np.median(steps[spread > 0] / spread[spread > 0])
            if ratio > SHUFFLED:
                self.add(f"successive rows differ by {ratio:.0%} of what any two do; are rows out of order?")

    def unit_actions(self, actions: NDArray, spaces: Spaces | None) -> tuple[NDArray, ActionBounds | None]:
        """Actions (N, A) as networks know them, and what -1 and 1 stand for, if not for themselves.

        Without an environment's spaces, the actions tell their bounds. If a few are a little beyond, they are
        clipped.
        """
        bounds = spaces.bounds if spaces else ActionBounds.of(actions)
        scaled = bounds.to_unit(actions)
        size = np.abs(scaled)
        if 1 + TOLERANCE < size.max(initial=0) <= LARGEST_CLIPPED and np.median(size) <= 1:
            self.add(f"{(size > 1).mean():.1%} of 'actions' are beyond [-1, 1] and were clipped")
            scaled = np.clip(scaled, -1, 1)
        return scaled, None if bounds.is_unit else bounds
