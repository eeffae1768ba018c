"""What a pruner is: a score for each weight, from a network's objective; weights with high scores are kept.

The module `masks.py` decides how many weights are kept, in which layers and in how many rounds.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from singleshot.errors import UserError, in_a_line, is_out_of_memory

Weights = dict[str, Tensor]
"""Weights of one network by layer, without biases, which are never pruned: (outputs, inputs) for a linear
layer, (outputs, inputs, height, width) for a convolution."""
Scores = dict[str, Tensor]
"""One number per weight, shaped like the weights."""
Masks = dict[str, Tensor]
"""Bool tensors shaped like the weights, true where a weight is kept."""
Parts = Mapping[str, Mapping[str, Sequence[str]]]
"""Layers by network and part. Parts are the perceptrons of a network, such as encoder and decoder."""


def of_layers(
    change: Callable[[Any], Tensor], networks: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Tensor]]:
    """What `change` makes of each layer's tensor, by network and layer."""
    return {name: {layer: change(own) for layer, own in layers.items()} for name, layers in networks.items()}


Function = Callable[[Weights], Tensor]
"""A scalar function of a network's weights."""


@dataclass(frozen=True)
class Objective:
    """The objective of one network, as functions of its weights alone.

    Biases, data, noise and all other networks are fixed inside the functions, so that two calls with the
    same weights return the same number. :func:`grad` differentiates them, `loss` twice.
    """

    loss: Function | Sequence[Function]
    """The scalar that training would minimise, on one batch; or several, on a batch each, to be added up."""
    flow: Callable[[Weights], Tensor]
    """The scalar 1ᵀ(∏ θ)1: the sum of the outputs for an input of ones, without biases or nonlinearities."""
    generator: torch.Generator
    """Generator of random scores and of a control's permutations. It draws the same numbers in each round."""


def grad(function: Function | Sequence[Function]) -> Callable[[Weights], Weights]:
    """The gradient of a scalar function of weights, as a function of weights; it may be nested.

    That of several functions is the sum of theirs, and has the graph of one at a time in memory. It is the
    gradient of `torch.func.grad`, but by plain autograd. So networks may have hooks and autograd functions of
    any form, which function transforms refuse.

    Raises:
        UserError: by the function that is returned, where `function` can't be differentiated.
    """
    first, *others = [function] if callable(function) else function

    def gradient(weights: Weights) -> Weights:
        found = _gradient(first, weights)
        for other in others:
            found = {layer: found[layer] + own for layer, own in _gradient(other, weights).items()}
        return found

    return gradient


@torch.enable_grad()
def _gradient(function: Function, weights: Weights) -> Weights:
    nested = any(θ.requires_grad for θ in weights.values())
    variables = weights if nested else {layer: θ.detach().requires_grad_() for layer, θ in weights.items()}
    value = function(variables)
    if not value.requires_grad:
        return {name: torch.zeros_like(θ) for name, θ in weights.items()}
    try:
        found = torch.autograd.grad(
            value, list(variables.values()), create_graph=nested, materialize_grads=True
        )
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        raise UserError(f"the loss can't be differentiated by the weights: {in_a_line(error)}") from error
    return dict(zip(variables, found, strict=True))


ScoreFunction = Callable[[Objective, Weights], Scores]


def name_of(method: str | ScoreFunction) -> str:
    """The name of a pruner, or of a function that scores weights."""
    return method if isinstance(method, str) else getattr(method, "__name__", type(method).__name__)


@dataclass(frozen=True)
class Pruner:
    """A score function, and what its paper computes scores on."""

    score: ScoreFunction
    batch_size: int = 100
    """Number of transitions; as SNIP's in Arnob et al. 2021, section 4."""
    iterations: int = 1
    """Number of rounds of scoring and pruning; as in its paper."""
