"""Removal of hidden units that pruning left without effect, from layers and from PyTorch's MLPs."""

import copy
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from singleshot.errors import UserError, shown


class Layer(NamedTuple):
    """A layer y = W x + b. The zeros in W are the pruned weights."""

    weight: Tensor
    """(out, in)"""
    bias: Tensor
    """(out,)"""


def without_dead_units(layers: Sequence[Layer]) -> list[Layer]:
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
            alive[:1] = True
        weights[i], biases[i] = weights[i][alive], biases[i][alive]
        weights[i + 1] = weights[i + 1][:, alive]
    return [Layer(w.to(dtype), b.to(dtype)) for w, b in zip(weights, biases, strict=True)]


def compact(model: nn.Sequential) -> nn.Sequential:
    """An MLP without the hidden units that pruning left without effect; it computes the same, up to rounding.

    `model` is an `nn.Sequential` of `nn.Linear` layers with `nn.ReLU` between them; it stays as it is. The
    result has its mode and hooks, but not its masks: training it fills the zeros that it still has.
    A network of another kind has no smaller form here: its zeros save bytes in a packed file
    (:func:`~singleshot.sparse.files.pack`), but no usual runtime computes faster with them.

    Raises:
        UserError: `model` has any other layers, or these don't compute y = W x + b with their own W and b.
    """
    layers = layers_of(model, "compact")
    smaller = copy.deepcopy(model)
    linear = [each for each in smaller if isinstance(each, nn.Linear)]
    for made, (weight, bias) in zip(linear, without_dead_units(layers), strict=True):
        made.weight = nn.Parameter(weight, made.weight.requires_grad)
        made.bias = nn.Parameter(
            bias, made.weight.requires_grad if made.bias is None else made.bias.requires_grad
        )
        made.out_features, made.in_features = weight.shape
    return smaller


def layers_of(model: nn.Sequential, name: str) -> list[Layer]:
    """The layers of an MLP for the function of that name, with biases of 0 where it has none.

    Raises:
        UserError: `model` has other layers than `nn.Linear` with `nn.ReLU` between them, has one twice, or
            computes their weights (weight_norm, `torch.nn.utils.prune`) or itself in another way.
    """
    plain = getattr(type(model), "forward", None) is nn.Sequential.forward
    plain = plain and not any("forward" in vars(each) for each in (model, *model))
    inner = list(model) if plain else []
    linear = [layer for layer in inner if isinstance(layer, nn.Linear)]
    real = len({*linear}) == len(linear) and all(
        dict(layer.named_parameters()).keys() <= {"weight", "bias"}
        and layer.weight.is_floating_point()
        and not layer.weight.is_meta
        for layer in linear
    )
    if (
        not linear
        or not real
        or [*map(type, inner)] != [nn.Linear, *[nn.ReLU, nn.Linear] * (len(linear) - 1)]
    ):
        raise UserError(
            f"{name} takes an nn.Sequential of different, real nn.Linear, without weight_norm or masks of "
            f"torch.nn.utils.prune, with nn.ReLU between them, not {shown(model)}"
        )
    return [
        Layer(
            each.weight.detach(),
            each.weight.new_zeros(each.out_features) if each.bias is None else each.bias.detach(),
        )
        for each in linear
    ]
