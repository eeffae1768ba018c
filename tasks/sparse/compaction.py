"""Compaction: a pruned ReLU network without the units that pruning left useless, as a smaller dense one."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layer:
    """y = W x + b. Zeros of W are its pruned weights."""

    weight: Tensor
    """(out, in)"""
    bias: Tensor
    """(out,)"""


def compact(layers: Sequence[Layer]) -> list[Layer]:
    """The same function by the fewest units: of layers in order, with ReLU between them and none at the end.

    A hidden unit goes

    - if none of its outgoing weights is kept: nothing depends on it;
    - if none of its incoming weights is kept: it is always relu(b), whose effect on the next layer is added
      to that layer's bias (biases are never pruned, so such units are not just zero).

    Either may leave other units so, in which case they go too. Inputs and outputs stay. One unit of a hidden
    layer stays in any case, with nothing but zeros, because runtimes don't take tensors without elements.

    This is exact but for rounding: sums are of fewer terms, and folded biases, which are computed in double
    precision, are rounded to the layers' own once.
    """
    dtype = layers[0].weight.dtype
    weights = [layer.weight.detach().double() for layer in layers]
    biases = [layer.bias.detach().double() for layer in layers]
    # From the first layer on, so that constants cascade. A folded unit has no outgoing weight any more.
    for i in range(len(layers) - 1):
        constant = ~weights[i].any(dim=1)
        folded = weights[i + 1][:, constant] @ biases[i][constant].relu()
        biases[i + 1] = biases[i + 1] + folded
        weights[i + 1] = weights[i + 1].masked_fill(constant, 0)
    # From the last one back, so that dead ends cascade. It leaves no new constants: what it takes away from
    # other units' incoming weights are zeros.
    for i in reversed(range(len(layers) - 1)):
        alive = weights[i + 1].any(dim=0)
        if not alive.any():
            weights[i], biases[i] = torch.zeros_like(weights[i]), torch.zeros_like(biases[i])
            alive[0] = True
        weights[i], biases[i] = weights[i][alive], biases[i][alive]
        weights[i + 1] = weights[i + 1][:, alive]
    return [Layer(w.to(dtype), b.to(dtype)) for w, b in zip(weights, biases, strict=True)]
