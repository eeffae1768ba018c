"""What a pruner is given: a network's objective as functions of its weights alone.

Apart from the pruners, so that a new one changes no code that agents are trained with.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Weights = dict[str, Tensor]
"""Weights of one network by layer. Biases are not among them: they are never pruned."""
Scores = dict[str, Tensor]
"""One number per weight, shaped like the weights."""
Masks = dict[str, Tensor]
"""Bool tensors shaped like the weights, true where a weight is kept."""
Parts = Mapping[str, Mapping[str, Sequence[str]]]
"""Network → part → layers: the perceptrons that a network consists of, such as encoder and decoder."""


@dataclass(frozen=True)
class Objective:
    """What one network is asked to do, as functions of its weights alone.

    Biases, data, noise and all other networks are fixed inside the functions, so that two calls with the
    same weights return the same number. They have to be differentiable by `torch.func` (no `.item()`, no
    writing in place), `loss` twice.
    """

    loss: Callable[[Weights], Tensor]
    """The scalar that training would minimise, on one batch."""
    flow: Callable[[Weights], Tensor]
    """The scalar 1ᵀ(∏ θ)1: the sum of the outputs for an input of ones, without biases or nonlinearities."""
    generator: torch.Generator
    """Where random scores and a control's permutations come from."""
