"""Masks that change during training, as baselines of masks made before it.

A method is one short function from a :class:`Change` to masks, listed in :data:`METHODS` with the updates
after which it is called. `set` and `rigl` move a fixed number of weights of each layer; `gradual` and
`finetuned` begin with all weights, and prune those of the smallest magnitude.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from singleshot.pruning.pruner import Masks, Parts, Scores, Weights, of_layers
from singleshot.pruning.selection import Scope, select

INTERVAL = 100
"""ΔT: number of updates between changes of masks (Evci et al. 2020, section 4)."""
MOVED = 0.3
"""α: the fraction of a layer's kept weights that the first change moves (Evci et al. 2020)."""
LAST_MOVE = 0.75
"""T_end: the fraction of the training after which no weight moves any more (Evci et al. 2020)."""
GRADUAL = 0.2, 0.8
"""Fractions of the training at which gradual pruning begins and ends (Graesser et al. 2022)."""


@dataclass(frozen=True)
class Change:
    """A moment in one agent's training at which its masks change, and what the new masks may depend on."""

    update: int
    """Number of updates made so far."""
    updates: int
    """Number of updates of the whole training."""
    sparsity: float
    """Fraction of weights that is pruned in the end."""
    weights: Mapping[str, Weights]
    """Weights by network; pruned ones are zero."""
    masks: Mapping[str, Masks]
    gradients: Callable[[], Mapping[str, Weights]]
    """Computes the loss's gradient for each weight, also for pruned ones, on one batch."""
    generator: torch.Generator
    scope: Scope
    parts: Parts


def set_(change: Change) -> dict[str, Masks]:
    """Sparse evolutionary training: grow at random (Mocanu et al. 2018).

    How many weights move and when is as for RigL, as in Evci et al. 2020, so that the two differ only in what
    they grow. The paper moves 30 % of the weights after each epoch, to the end.
    """
    generator = change.generator

    def scores(θ: Tensor) -> Tensor:
        return torch.rand(θ.shape, generator=generator, device=generator.device).to(θ.device)

    return _move(change, of_layers(scores, change.weights))


def rigl(change: Change) -> dict[str, Masks]:
    """The rigged lottery: grow where the gradient is largest (Evci et al. 2020, algorithm 1)."""
    return _move(change, of_layers(Tensor.abs, change.gradients()))


def gradual(change: Change) -> dict[str, Masks]:
    """Gradual magnitude pruning: s_t = s_f (1 - (1 - (t - t_0) / nΔt)³) (Zhu & Gupta 2018, eq. 1)."""
    begin, end = (fraction * change.updates for fraction in GRADUAL)
    progress = min(1.0, (change.update - begin) / (end - begin))
    return _keep_largest(change, change.sparsity * (1 - (1 - progress) ** 3))


def finetuned(change: Change) -> dict[str, Masks]:
    """Prune a trained network by magnitude, and train what is left on (Han et al. 2015)."""
    return _keep_largest(change, change.sparsity)


def _move(change: Change, growth: Mapping[str, Scores]) -> dict[str, Masks]:
    """Move k weights of each layer: drop those of the smallest magnitude, grow those of the highest score.

    k is the fraction α/2 (1 + cos(πt / T_end)) of the layer's kept weights. As in the authors' code, a weight
    that was dropped may grow again at once; it then keeps its value.
    """
    fraction = MOVED / 2 * (1 + math.cos(math.pi * change.update / (LAST_MOVE * change.updates)))
    return {
        network: {
            layer: moved(change.weights[network][layer], mask, growth[network][layer], fraction)
            for layer, mask in masks.items()
        }
        for network, masks in change.masks.items()
    }


def moved(θ: Tensor, mask: Tensor, growth: Tensor, fraction: float) -> Tensor:
    """The mask of a layer after ⌊fraction · kept⌋ of its kept weights have moved."""
    kept = int(mask.count_nonzero())
    k = int(fraction * kept)
    staying = _top(θ.abs(), mask, kept - k)
    return staying | _top(growth, ~staying, k)


def _top(scores: Tensor, candidates: Tensor, count: int) -> Tensor:
    """A mask of the `count` candidates with the highest scores, which are at least 0."""
    found = scores.masked_fill(~candidates, -1).flatten().topk(count, sorted=False).indices
    mask = torch.zeros_like(candidates).flatten()
    mask[found] = True
    return mask.view_as(candidates)


def _keep_largest(change: Change, sparsity: float) -> dict[str, Masks]:
    """Masks of the largest weights of those that are left, with N - round(N·sparsity) of N competing ones."""
    magnitudes = of_layers(Tensor.abs, change.weights)
    return select(magnitudes, change.masks, sparsity, change.scope, change.parts)


@dataclass(frozen=True)
class Method:
    """A way to change masks during training."""

    change: Callable[[Change], dict[str, Masks]]
    updates: Callable[[int], Sequence[int]]
    """The updates after which masks change, in order, in a training of so many updates."""
    begins_with: str | None
    """Pruner of the masks with which training begins; None if it begins with all weights."""


def _gradual_steps(updates: int) -> list[int]:
    begin, end = (math.ceil(fraction * updates) for fraction in GRADUAL)
    return [*range(begin + INTERVAL, end, INTERVAL), end]


def _moves(updates: int) -> range:
    return range(INTERVAL, math.ceil(LAST_MOVE * updates), INTERVAL)


METHODS = {
    # The first half trains the dense network, the second what is left: no more updates than other agents.
    "finetuned": Method(finetuned, lambda updates: [math.ceil(updates / 2)], begins_with=None),
    "gradual": Method(gradual, _gradual_steps, begins_with=None),
    "set": Method(set_, _moves, begins_with="erk"),
    "rigl": Method(rigl, _moves, begins_with="erk"),
}


def changes(pruner: str, updates: int) -> Sequence[int]:
    """The updates after which `pruner`'s masks change, in order; none if it makes masks before training."""
    return METHODS[pruner].updates(updates) if pruner in METHODS else ()
