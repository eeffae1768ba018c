"""Scores of weights at initialization: the weights with the highest scores are kept.

A pruner is one short function from (objective, weights) to scores, listed in :data:`PRUNERS`. What to do
with the scores (how many, from which layers, in how many rounds) is `masks.py`'s business.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad

from tasks.pruning.objective import Objective, Scores, Weights


def snip(objective: Objective, weights: Weights) -> Scores:
    """Connection sensitivity |θ ⊙ ∂L/∂θ| (Lee et al. 2019; Arnob et al. 2021, eq. 1)."""
    g = grad(objective.loss)(weights)
    return {layer: (θ * g[layer]).abs() for layer, θ in weights.items()}


def grasp(objective: Objective, weights: Weights) -> Scores:
    """Gradient signal preservation +θ ⊙ Hg (Wang et al. 2020; Arnob et al. 2021, eq. 4).

    The paper removes the largest -θ ⊙ Hg first, the weights without which the gradient's norm grows most;
    so the largest +θ ⊙ Hg are kept. The sign matters, there is no absolute value. The temperature of 200 in
    the authors' code softens the logits of a classifier; a Q or ELBO loss has none, and dividing its
    network's output would change the residual instead.
    """
    g = grad(objective.loss)(weights)

    def g_dot_gradient(θ: Weights) -> Tensor:
        return torch.stack([(g[layer] * g_θ).sum() for layer, g_θ in grad(objective.loss)(θ).items()]).sum()

    Hg = grad(g_dot_gradient)(weights)  # with g held constant, ∇(gᵀ∇L) = Hg
    return {layer: θ * Hg[layer] for layer, θ in weights.items()}


def synflow(objective: Objective, weights: Weights) -> Scores:
    """Synaptic saliency |θ| ⊙ ∂R/∂|θ| of R = 1ᵀ(∏ |θ|)1 (Tanaka et al. 2020, eq. 2). Needs no data.

    Meant for many iterations (the paper's: 100): in one it removes whole layers.
    """
    absolute = {layer: θ.abs() for layer, θ in weights.items()}
    R_gradient = grad(objective.flow)(absolute)
    return {layer: θ * R_gradient[layer] for layer, θ in absolute.items()}


def magnitude(objective: Objective, weights: Weights) -> Scores:  # noqa: ARG001
    """|θ|: at initialization a control, as it knows the layers' widths but neither data nor loss."""
    return {layer: θ.abs() for layer, θ in weights.items()}


def random(objective: Objective, weights: Weights) -> Scores:
    """Uniform noise: the control that any other pruner has to beat."""
    generator = objective.generator
    return {
        layer: torch.rand(θ.shape, generator=generator, device=generator.device).to(θ.device)
        for layer, θ in weights.items()
    }


@dataclass(frozen=True)
class Pruner:
    """A score function, and the transitions in the batch that its paper computes it on."""

    score: Callable[[Objective, Weights], Scores]
    batch_size: int


PRUNERS = {
    "snip": Pruner(snip, batch_size=100),  # both sizes: Arnob et al. 2021, section 4
    "grasp": Pruner(grasp, batch_size=200),
    "synflow": Pruner(synflow, batch_size=100),
    "magnitude": Pruner(magnitude, batch_size=100),
    "random": Pruner(random, batch_size=100),
}
