"""The input of a pruner: a network's objective as functions of its weights alone.

This module is separate from the pruners, so that a new pruner changes no code that agents are trained with.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Weights = dict[str, Tensor]
"""Weights of one network by layer, without biases, which are never pruned. A layer of an agent has the shape
(inputs, outputs), a convolution (outputs, inputs, height, width)."""
Scores = dict[str, Tensor]
"""One number per weight, shaped like the weights."""
Masks = dict[str, Tensor]
"""Bool tensors shaped like the weights, true where a weight is kept."""
Parts = Mapping[str, Mapping[str, Sequence[str]]]
"""Layers by network and part. Parts are the perceptrons of a network, such as encoder and decoder."""


@dataclass(frozen=True)
class Objective:
    """The objective of one network, as functions of its weights alone.

    Biases, data, noise and all other networks are fixed inside the functions, so that two calls with the
    same weights return the same number. The functions have to be differentiable with `torch.func` (no
    `.item()`, no writing in place), `loss` twice.
    """

    loss: Callable[[Weights], Tensor]
    """The scalar that training would minimise, on one batch."""
    flow: Callable[[Weights], Tensor]
    """The scalar 1ᵀ(∏ θ)1: the sum of the outputs for an input of ones, without biases or nonlinearities."""
    generator: torch.Generator
    """Generator of random scores and of a control's permutations. It draws the same numbers in each round."""
