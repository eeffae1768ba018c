"""A sparse perceptron's outputs and gradients, compiled by Numba. See `perceptron.py` for its graph of units.

A unit's values for some rows of the batch, the lanes of a vector, lie side by side, so a kept weight is
multiplied with one contiguous vector, and the sum over a unit's weights stays in registers. One block of so
many rows goes through the whole graph before the next: its units fit into the second-level cache.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tasks.sparse.vectors import broadcast, dot, load, multiply_add, relu, store, where_positive

Floats = NDArray[np.float32]
Indices = NDArray[np.int32]

LANES = 128
"""8 registers of AVX-512, which hide the latency of its multiply-adds."""
FEW = 16
"""One such register, for what few rows are left: a block takes a third of the time of one of 128."""


def _forward(lanes: int) -> Any:
    @njit(error_model="numpy")
    def forward(
        pointers: Indices, sources: Indices, parameters: Floats, x: Floats, units: Floats, y: Floats
    ) -> None:
        """Outputs y (batch, out) of inputs x (batch, in).

        `units` (blocks, units, lanes) keeps what each unit gives, for :func:`backward`; if it has one block
        only, the last block's.
        """
        batch, inputs = x.shape
        computed, outputs, kept = len(pointers) - 1, y.shape[1], len(sources)
        for block in range(-(-batch // lanes)):
            first = block * lanes
            own = units[block % len(units)]
            _to_lanes(x, first, own[:inputs])
            for unit in range(computed):
                total = broadcast(parameters[kept + unit], lanes)
                for i in range(pointers[unit], pointers[unit + 1]):
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
    """Add to `d_parameters` and write `dx` (batch, in), unless that is empty, given `dy` (batch, out).

    `gradients` (units, LANES) is room for those of a block's units.
    """
    batch, outputs = dy.shape
    computed, kept, count = len(pointers) - 1, len(sources), units.shape[1]
    inputs = count - computed
    ones = broadcast(np.float32(1), LANES)
    for block in range(-(-batch // LANES)):
        first = block * LANES
        own = units[block]
        _to_lanes(dy, first, gradients[count - outputs :])
        for unit in range(count - 1, -1 if dx.size else inputs - 1, -1):
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
                for i in range(pointers[unit - inputs], pointers[unit - inputs + 1]):
                    d_parameters[i] += dot(total, load(own, sources[i] * LANES, LANES))
        if dx.size:
            _from_lanes(gradients[:inputs], first, dx)


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
