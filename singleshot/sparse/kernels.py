"""Kernels for a sparse perceptron's outputs and gradients, compiled with Numba.

`perceptron.py` describes the perceptron's graph of units. A unit's values for several rows of the batch lie
side by side, as the lanes of a vector. So a kept weight is multiplied with one contiguous vector, and the sum
over a unit's weights stays in registers. A block of as many rows as there are lanes goes through the whole
graph before the next block does, because the values of its units fit into the second-level cache.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import llvmlite
import numba
import numpy as np
from llvmlite import binding
from numba import njit
from numba.core import config
from numpy.typing import NDArray

from singleshot.errors import UserError
from singleshot.io.folders import user_cache
from singleshot.io.whole_file import sha256_of_value
from singleshot.sparse.vectors import (
    DOTS,
    add_dots,
    broadcast,
    dot,
    load,
    multiply_add,
    prefetch,
    relu,
    store,
    where_positive,
)

SOURCES = ("kernels.py", "vectors.py")


def digest() -> str:
    """A hash of the sources' version and the kind of processor; each combination has its own directory.

    Numba tells processors apart, but doesn't look at sources that a kernel's module imports.
    """
    name, features = config.CPU_NAME, config.CPU_FEATURES  # type: ignore[attr-defined]
    processor = name or binding.get_host_cpu_name(), features or binding.get_host_cpu_features().flatten()
    sources = [Path(__file__).with_name(name).read_text("utf-8") for name in SOURCES]
    return sha256_of_value([numba.__version__, llvmlite.__version__, *processor, *sources])


def _can_keep() -> bool:
    """Whether the user's cache can be written; it can't if, for example, the user's home is read-only."""
    try:
        kept = user_cache("kernels", digest()[:16])
    except UserError:
        return False
    # The setting is for all functions of the process, but only the kernels ask for a cache.
    config.CACHE_DIR = str(kept)  # type: ignore[attr-defined]
    return True


CAN_KEEP = _can_keep()


def compiled(kernel: Callable[..., Any], **options: Any) -> Any:
    """Compile `kernel` when it is first called, or take the machine code that another process has kept.

    A kernel has a unique name, and is always called with the same types: processes that keep code under one
    name at once, but for different types or processors, would confuse their files.
    """
    return numba.njit(error_model="numpy", cache=CAN_KEEP, **options)(kernel)


Floats = NDArray[np.float32]
Indices = NDArray[np.int32]

LANES = 112
"""Rows in a block, i.e. lanes of a vector. They fill 7 registers of AVX-512 or 14 of AVX2's 16, which hides
the latency of multiply-adds. A batch of 100 leaves few lanes idle: its forward pass takes 12 % less time than
with 128 lanes."""
FEW = 16
"""Rows in a small block, for the last few rows: one AVX-512 register. It takes a third of the time of 112."""
WORTH_LANES = 48
"""Number of rows that take as long in blocks of :data:`FEW` as in one block of :data:`LANES`."""
FOUR = np.uint64(4)
"""Units whose sums for a single row take turns, and the steps in which they do."""
NO_STARTS, NO_SUMS = np.empty(0, np.int32), np.empty((0, 1), np.float32)
"""`starts` and `sums` for :func:`forward` where :func:`share` has not begun any sums."""


class Adjacency(NamedTuple):
    """The units that kept weights connect, as a matrix with a row per computed unit and a column per unit.

    It is stored twice, as CSR, which is the order of the parameters, and as CSC; names are SciPy's. The
    inputs are the first units, then come the computed units, outputs last.
    """

    indptr: Indices
    """CSR: the weights of row u, which lead to computed unit u, are at `indptr[u]` to `indptr[u + 1]`."""
    indices: Indices
    """CSR: columns, i.e. the units that the weights come from."""
    csc_indptr: Indices
    """CSC: the weights of column u, which come from unit u, are at `csc_indptr[u]` to `csc_indptr[u + 1]`."""
    csc_indices: Indices
    """CSC: the units that the weights lead to."""
    csc_positions: Indices
    """CSC: positions of the weights among the parameters."""


def _forward(lanes: int) -> Any:
    def forward(
        matrix: Adjacency,
        parameters: Floats,
        x: Floats,
        z: Floats,
        starts: Indices,
        sums: Floats,
        begin: int,
        end: int,
        units: Floats,
        y: Floats,
    ) -> None:
        """Compute rows `begin` to `end` of y (batch, out) from x and z side by side.

        x is (batch / n, in) and z (batch, in). Either :func:`share` has begun the `sums` of the first units,
        and rows are in its order, or n is 1 and `sums` is empty. `units` (blocks, units, lanes) receives the
        values that :func:`backward` needs; if it has room for one block only, it holds the last one in the
        end.
        """
        inputs, computed, outputs = x.shape[1] + z.shape[1], len(matrix.indptr) - 1, y.shape[1]
        n, period = len(z) // len(x), len(x)
        for block in range(-(-(end - begin) // lanes)):
            first = begin + block * lanes
            own = units[block % len(units)]
            if not len(sums):
                _to_lanes(x, 1, first, own[: x.shape[1]])
            _to_lanes(z, n, first, own[x.shape[1] : inputs])
            for unit in range(computed):
                if unit < len(sums):
                    start = starts[unit]
                    total = load(sums, unit * sums.shape[1] + first % period, lanes)
                else:
                    start = matrix.indptr[unit]
                    total = broadcast(parameters[len(matrix.indices) + unit], lanes)
                for i in range(start, matrix.indptr[unit + 1]):
                    weight = broadcast(parameters[i], lanes)
                    total = multiply_add(weight, load(own, matrix.indices[i] * lanes, lanes), total)
                if unit < computed - outputs:
                    total = relu(total)
                store(own, (inputs + unit) * lanes, total)
            _from_lanes(own[inputs + computed - outputs :], n, first, y)

    forward.__qualname__ = f"forward_{lanes}"
    return compiled(forward)


forward = _forward(LANES)
forward_few = _forward(FEW)


def forward_one(
    indptr: Indices, indices: Indices, parameters: Floats, x: Floats, z: Floats, outputs: int
) -> Floats:
    """The outputs (1, `outputs`) of a CSR matrix of units for a single row of x and z side by side.

    Sums are in the order of :func:`forward`, and so they are the same bits. Those of four units take turns,
    where none of these reads another, as each addition waits for the one before it. Indices are read as
    unsigned: Numba looks at the sign of others.
    """
    computed, inputs = len(indptr) - 1, x.shape[1] + z.shape[1]
    starts, sources = indptr.view(np.uint32), indices.view(np.uint32)
    units = np.empty(inputs + computed, np.float32)
    units[: x.shape[1]], units[x.shape[1] : inputs] = x[0], z[0]
    unit = 0
    while unit < computed:
        several, begun = 4 if unit + 4 <= computed else 1, np.uint64(0)
        for own in range(unit, unit + several):
            if starts[own + 1] > starts[own] and indices[indptr[own + 1] - 1] >= inputs + unit:
                several = 1
        for k in range(unit, unit + several):
            units[inputs + k] = parameters[len(indices) + k]
        if several == 4:
            a, b = np.uint64(starts[unit]), np.uint64(starts[unit + 1])
            c, d = np.uint64(starts[unit + 2]), np.uint64(starts[unit + 3])
            begun = min(min(b - a, c - b), min(d - c, np.uint64(starts[unit + 4]) - d)) // FOUR * FOUR
            first = inputs + unit
            p, q, r, s = units[first], units[first + 1], units[first + 2], units[first + 3]
            for block in range(np.uint64(0), begun, FOUR):
                # Of the next four units, whose rows the processor doesn't foresee: one line of its cache.
                prefetch(parameters, a + FOUR * (begun + block))
                prefetch(sources, a + FOUR * (begun + block))
                for i in range(block, block + FOUR):
                    p += parameters[a + i] * units[sources[a + i]]
                    q += parameters[b + i] * units[sources[b + i]]
                    r += parameters[c + i] * units[sources[c + i]]
                    s += parameters[d + i] * units[sources[d + i]]
            units[first], units[first + 1], units[first + 2], units[first + 3] = p, q, r, s
        for k in range(unit, unit + several):
            total = units[inputs + k]
            for i in range(np.uint64(starts[k]) + begun, np.uint64(starts[k + 1])):
                total += parameters[i] * units[sources[i]]
            units[inputs + k] = np.float32(0) if total < 0 and k < computed - outputs else total
        unit += several
    return units[inputs + computed - outputs :].reshape(1, outputs)


forward_one = compiled(forward_one, fastmath={"contract"})  # as multiply_add


@compiled
def share(
    matrix: Adjacency, parameters: Floats, x: Floats, units: Floats, starts: Indices, sums: Floats
) -> None:
    """Begin the sums of the first units: their biases and the part from x (rows, in), which n rows share.

    The rows of the batch are then in another order: one row for each x, then again one for each x, and so on.
    `sums` (first units, rows + LANES) repeats the first rows after the last one, so that a block may begin at
    any row and wrap around. `starts` receives the position of each unit's first weight that is yet to be
    added. `units` (1, units, LANES) is a workspace.
    """
    rows, inputs = x.shape
    own = units[0]
    for first in range(0, rows, LANES):
        _to_lanes(x, 1, first, own[:inputs])
        for unit in range(len(sums)):
            total = broadcast(parameters[len(matrix.indices) + unit], LANES)
            i = matrix.indptr[unit]
            while i < matrix.indptr[unit + 1] and matrix.indices[i] < inputs:
                weight = broadcast(parameters[i], LANES)
                total = multiply_add(weight, load(own, matrix.indices[i] * LANES, LANES), total)
                i += 1
            starts[unit] = i
            store(sums, unit * sums.shape[1] + first, total)
    for unit in range(len(sums)):
        for row in range(rows, rows + LANES):
            sums[unit, row] = sums[unit, row - rows]


@compiled
def backward(
    matrix: Adjacency, parameters: Floats, units: Floats, dy: Floats, d_parameters: Floats, dx: Floats
) -> None:
    """Backpropagate `dy` (batch, out): write `dx` (batch, last inputs), and add to `d_parameters`.

    `d_parameters` may be empty if its gradients aren't wanted. `units` holds the values that :func:`forward`
    stored. They are lost: units are visited from the last to the first, so a unit's value isn't read any more
    once its gradient is known, which takes its place. A block's values and gradients would not both fit into
    the second-level cache.
    """
    outputs = dy.shape[1]
    computed, kept, count = len(matrix.indptr) - 1, len(matrix.indices), units.shape[1]
    inputs = count - computed
    first_wanted = inputs - dx.shape[1]
    ones = broadcast(np.float32(1), LANES)
    for block in range(len(units)):
        first, own = block * LANES, units[block]
        _to_lanes(dy, 1, first, own[count - outputs :])
        for unit in range(count - 1, first_wanted - 1, -1):
            if unit < count - outputs:
                total = broadcast(np.float32(0), LANES)
                for i in range(matrix.csc_indptr[unit], matrix.csc_indptr[unit + 1]):
                    weight = broadcast(parameters[matrix.csc_positions[i]], LANES)
                    total = multiply_add(weight, load(own, matrix.csc_indices[i] * LANES, LANES), total)
                if unit >= inputs:
                    total = where_positive(load(own, unit * LANES, LANES), total)
                store(own, unit * LANES, total)
            if unit >= inputs and len(d_parameters):
                total = load(own, unit * LANES, LANES)
                d_parameters[kept + unit - inputs] += dot(total, ones)
                start, end = matrix.indptr[unit - inputs], matrix.indptr[unit - inputs + 1]
                several = end - (end - start) % DOTS
                for i in range(start, several, DOTS):
                    own_indices = matrix.indices[i : i + DOTS]
                    a, b, c, d = own_indices[0], own_indices[1], own_indices[2], own_indices[3]
                    others = (a * LANES, b * LANES, c * LANES, d * LANES)
                    add_dots(d_parameters, i, own, unit * LANES, own, others, LANES)
                for i in range(several, end):
                    d_parameters[i] += dot(total, load(own, matrix.indices[i] * LANES, LANES))
        _from_lanes(own[first_wanted:inputs], 1, first, dx)


@njit(error_model="numpy")
def _to_lanes(rows: Floats, n: int, first: int, units: Floats) -> None:
    """Copy rows `first`, `first + 1`, … of (batch, units) to `units` (units, lanes), padded with zeros.

    In this numbering, every n-th row from row 0 on comes first, then every n-th from row 1 on, and so on.
    """
    count, period = min(units.shape[1], len(rows) - first), len(rows) // n
    for lane in range(count):
        row = (first + lane) % period * n + (first + lane) // period
        for unit in range(len(units)):
            units[unit, lane] = rows[row, unit]
    units[:, count:] = 0


@njit(error_model="numpy")
def _from_lanes(units: Floats, n: int, first: int, rows: Floats) -> None:
    """The inverse of :func:`_to_lanes`."""
    period = len(rows) // n
    for lane in range(min(units.shape[1], len(rows) - first)):
        row = (first + lane) % period * n + (first + lane) // period
        for unit in range(len(units)):
            rows[row, unit] = units[unit, lane]
