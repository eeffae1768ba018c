"""Compaction: a pruned ReLU network as a smaller dense one, without the units that pruning made useless."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layer:
    """A layer y = W x + b. The zeros in W are the pruned weights."""

    weight: Tensor
    """(out, in)"""
    bias: Tensor
    """(out,)"""


def compact(layers: Sequence[Layer]) -> list[Layer]:
    """Remove the hidden units that the function of the layers doesn't need.

    The layers are in order, with ReLU between them and none after the last. A hidden unit is removed

    - if none of its outgoing weights is kept: nothing depends on it;
    - if none of its incoming weights is kept: its output is always relu(b), whose effect on the next layer is
      added to that layer's bias (biases are never pruned, so such units are not just zero).

    Removing a unit may leave other units in one of these states, in which case they are removed, too. Inputs
    and outputs stay. If no unit of a hidden layer is left, one stays with nothing but zeros, because runtimes
    don't accept tensors without elements.

    The result is exact except for rounding: sums have fewer terms, and folded biases, which are computed in
    double precision, are rounded once to the layers' own precision.
    """
    dtype = layers[0].weight.dtype
    weights = [layer.weight.detach().double() for layer in layers]
    biases = [layer.bias.detach().double() for layer in layers]
    # Forward, so that constants cascade. Folded units lose their outgoing weights.
    for i in range(len(layers) - 1):
        constant = ~weights[i].any(dim=1)
        folded = weights[i + 1][:, constant] @ biases[i][constant].relu()
        biases[i + 1] = biases[i + 1] + folded
        weights[i + 1] = weights[i + 1].masked_fill(constant, 0)
    # Backward, so that dead ends cascade. This makes no new constants: the incoming weights of other units
    # that it removes are zeros.
    for i in reversed(range(len(layers) - 1)):
        alive = weights[i + 1].any(dim=0)
        if not alive.any():
            weights[i], biases[i] = torch.zeros_like(weights[i]), torch.zeros_like(biases[i])
            alive[0] = True
        weights[i], biases[i] = weights[i][alive], biases[i][alive]
        weights[i + 1] = weights[i + 1][:, alive]
    return [Layer(w.to(dtype), b.to(dtype)) for w, b in zip(weights, biases, strict=True)]
