"""A sparse perceptron's outputs and gradients, compiled by Numba. See `perceptron.py` for its graph of units.

A unit's values for :data:`LANES` rows of the batch lie side by side, so a kept weight is multiplied with one
contiguous vector, and the sum over a unit's weights stays in registers. One block of so many rows goes
through the whole graph before the next: its units fit into the second-level cache.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tasks.sparse.vectors import LANES, broadcast, dot, load, multiply_add, relu, store, where_positive

Floats = NDArray[np.float32]
Indices = NDArray[np.int32]


@njit(error_model="numpy")
def forward(
    pointers: Indices, sources: Indices, parameters: Floats, x: Floats, units: Floats, y: Floats
) -> None:
    """Outputs y (batch, out) of inputs x (batch, in).

    `units` (blocks, units, LANES) keeps what each unit gives, for :func:`backward`; if it has one block only,
    the last block's.
    """
    batch, inputs = x.shape
    computed, outputs, kept = len(pointers) - 1, y.shape[1], len(sources)
    for block in range(-(-batch // LANES)):
        first = block * LANES
        own = units[block % len(units)]
        _to_lanes(x, first, own[:inputs])
        for unit in range(computed):
            total = broadcast(parameters[kept + unit])
            for i in range(pointers[unit], pointers[unit + 1]):
                total = multiply_add(broadcast(parameters[i]), load(own, sources[i] * LANES), total)
            if unit < computed - outputs:
                total = relu(total)
            store(own, (inputs + unit) * LANES, total)
        _from_lanes(own[inputs + computed - outputs :], first, y)


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
    ones = broadcast(np.float32(1))
    for block in range(-(-batch // LANES)):
        first = block * LANES
        own = units[block]
        _to_lanes(dy, first, gradients[count - outputs :])
        for unit in range(count - 1, -1 if dx.size else inputs - 1, -1):
            if unit < count - outputs:
                total = broadcast(np.float32(0))
                for i in range(target_pointers[unit], target_pointers[unit + 1]):
                    weight = broadcast(parameters[order[i]])
                    total = multiply_add(weight, load(gradients, targets[i] * LANES), total)
                if unit >= inputs:
                    total = where_positive(load(own, unit * LANES), total)
                store(gradients, unit * LANES, total)
            if unit >= inputs:
                total = load(gradients, unit * LANES)
                d_parameters[kept + unit - inputs] += dot(total, ones)
                for i in range(pointers[unit - inputs], pointers[unit - inputs + 1]):
                    d_parameters[i] += dot(total, load(own, sources[i] * LANES))
        if dx.size:
            _from_lanes(gradients[:inputs], first, dx)


@njit(error_model="numpy")
def _to_lanes(rows: Floats, first: int, lanes: Floats) -> None:
    """Rows `first`, `first + 1`, … of (batch, units) as (units, LANES), filled up with zeros."""
    count = min(LANES, len(rows) - first)
    for unit in range(len(lanes)):
        for lane in range(count):
            lanes[unit, lane] = rows[first + lane, unit]
        lanes[unit, count:] = 0


@njit(error_model="numpy")
def _from_lanes(lanes: Floats, first: int, rows: Floats) -> None:
    """The inverse of :func:`_to_lanes`."""
    for lane in range(min(LANES, len(rows) - first)):
        for unit in range(len(lanes)):
            rows[first + lane, unit] = lanes[unit, lane]
