"""A sparse perceptron's outputs and gradients, compiled by Numba. See `perceptron.py` for its graph of units.

A unit's values for some rows of the batch, the lanes of a vector, lie side by side, so a kept weight is
multiplied with one contiguous vector, and the sum over a unit's weights stays in registers. One block of so
many rows goes through the whole graph before the next: its units fit into the second-level cache.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tasks.sparse.vectors import (
    DOTS,
    add_dots,
    broadcast,
    dot,
    load,
    multiply_add,
    relu,
    store,
    where_positive,
)

Floats = NDArray[np.float32]
Indices = NDArray[np.int32]

LANES = 112
"""7 registers of AVX-512 or 14 of AVX2's 16, which hide the latency of multiply-adds. A batch of 100 leaves
few of them idle: its forward pass takes 12 % less time than by 128 lanes."""
FEW = 16
"""One such register, for what few rows are left: a block takes a third of the time of one of 112."""


def _forward(lanes: int) -> Any:
    @njit(error_model="numpy")
    def forward(
        pointers: Indices,
        sources: Indices,
        parameters: Floats,
        starts: Indices,
        sums: Floats,
        x: Floats,
        row: int,
        units: Floats,
        y: Floats,
    ) -> None:
        """Outputs y (batch, out) of rows `row`, `row + 1`, … of x (rows, in).

        The first units' `sums` have begun as :func:`share` leaves them, in which case x is the remaining
        inputs. `units` (blocks, units, lanes) keeps what each unit gives, for :func:`backward`; if it has one
        block only, the last block's.
        """
        batch, outputs = y.shape
        computed, kept = len(pointers) - 1, len(sources)
        inputs = units.shape[1] - computed
        period = sums.shape[1] - LANES
        for block in range(-(-batch // lanes)):
            first = block * lanes
            own = units[block % len(units)]
            _to_lanes(x, row + first, own[inputs - x.shape[1] : inputs])
            for unit in range(computed):
                if unit < len(sums):
                    start = starts[unit]
                    total = load(sums, unit * sums.shape[1] + (row + first) % period, lanes)
                else:
                    start = pointers[unit]
                    total = broadcast(parameters[kept + unit], lanes)
                for i in range(start, pointers[unit + 1]):
                    weight = broadcast(parameters[i], lanes)
                    total = multiply_add(weight, load(own, sources[i] * lanes, lanes), total)
                if unit < computed - outputs:
                    total = relu(total)
                store(own, (inputs + unit) * lanes, total)
            _from_lanes(own[inputs + computed - outputs :], first, y)

    return forward


forward = _forward(LANES)
forward_few = _forward(FEW)


@njit(error_model="numpy")
def share(
    pointers: Indices,
    sources: Indices,
    parameters: Floats,
    x: Floats,
    units: Floats,
    starts: Indices,
    sums: Floats,
) -> None:
    """Begin the sums of the first units: biases, and what comes from the first inputs, x (rows, in).

    `sums` (first units, rows + LANES) have the first rows again after the last one, so that lanes may begin
    at any row and go on in a circle. The weights yet to be added begin at `starts`. `units` (units, LANES) is
    room.
    """
    rows, inputs = x.shape
    for first in range(0, rows, LANES):
        _to_lanes(x, first, units[:inputs])
        for unit in range(len(sums)):
            total = broadcast(parameters[len(sources) + unit], LANES)
            i = pointers[unit]
            while i < pointers[unit + 1] and sources[i] < inputs:
                weight = broadcast(parameters[i], LANES)
                total = multiply_add(weight, load(units, sources[i] * LANES, LANES), total)
                i += 1
            starts[unit] = i
            store(sums, unit * sums.shape[1] + first, total)
    for unit in range(len(sums)):
        for row in range(rows, rows + LANES):
            sums[unit, row] = sums[unit, row - rows]


@njit(error_model="numpy")
def backward(
    pointers: Indices,
    sources: Indices,
    target_pointers: Indices,
    targets: Indices,
    order: Indices,
    parameters: Floats,
    units: Floats,
    gradients: Floats,
    dy: Floats,
    d_parameters: Floats,
    dx: Floats,
) -> None:
    """Add to `d_parameters` and write `dx` (batch, last inputs), given `dy` (batch, out).

    `gradients` (units, LANES) is room for those of a block's units.
    """
    batch, outputs = dy.shape
    computed, kept, count = len(pointers) - 1, len(sources), units.shape[1]
    inputs = count - computed
    first_wanted = inputs - dx.shape[1]
    ones = broadcast(np.float32(1), LANES)
    for block in range(-(-batch // LANES)):
        first = block * LANES
        own = units[block]
        _to_lanes(dy, first, gradients[count - outputs :])
        for unit in range(count - 1, first_wanted - 1, -1):
            if unit < count - outputs:
                total = broadcast(np.float32(0), LANES)
                for i in range(target_pointers[unit], target_pointers[unit + 1]):
                    weight = broadcast(parameters[order[i]], LANES)
                    total = multiply_add(weight, load(gradients, targets[i] * LANES, LANES), total)
                if unit >= inputs:
                    total = where_positive(load(own, unit * LANES, LANES), total)
                store(gradients, unit * LANES, total)
            if unit >= inputs:
                total = load(gradients, unit * LANES, LANES)
                d_parameters[kept + unit - inputs] += dot(total, ones)
                first_weight, end = pointers[unit - inputs], pointers[unit - inputs + 1]
                several = end - (end - first_weight) % DOTS
                for i in range(first_weight, several, DOTS):
                    a, b, c, d = sources[i], sources[i + 1], sources[i + 2], sources[i + 3]
                    others = (a * LANES, b * LANES, c * LANES, d * LANES)
                    add_dots(d_parameters, i, gradients, unit * LANES, own, others, LANES)
                for i in range(several, end):
                    d_parameters[i] += dot(total, load(own, sources[i] * LANES, LANES))
        _from_lanes(gradients[first_wanted:inputs], first, dx)


@njit(error_model="numpy")
def _to_lanes(rows: Floats, first: int, units: Floats) -> None:
    """Rows `first`, `first + 1`, … of (batch, units) as (units, lanes), filled up with zeros."""
    count = min(units.shape[1], len(rows) - first)
    for unit in range(len(units)):
        for lane in range(count):
            units[unit, lane] = rows[first + lane, unit]
        units[unit, count:] = 0


@njit(error_model="numpy")
def _from_lanes(units: Floats, first: int, rows: Floats) -> None:
    """The inverse of :func:`_to_lanes`."""
    for lane in range(min(units.shape[1], len(rows) - first)):
        for unit in range(len(units)):
            rows[first + lane, unit] = units[unit, lane]
