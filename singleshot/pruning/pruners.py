"""Scores of weights at initialization: the weights with the highest scores are kept.

A pruner is one short function from (objective, weights) to scores, listed in :data:`PRUNERS`. The module
`masks.py` decides how many weights are kept, in which layers and in how many rounds.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad

from singleshot.pruning.objective import Objective, Scores, Weights


def snip(objective: Objective, weights: Weights) -> Scores:
    """Connection sensitivity |θ ⊙ ∂L/∂θ| (Lee et al. 2019; Arnob et al. 2021, eq. 1)."""
    g = grad(objective.loss)(weights)
    return {layer: (θ * g[layer]).abs() for layer, θ in weights.items()}


def grasp(objective: Objective, weights: Weights) -> Scores:
    """Gradient signal preservation +θ ⊙ Hg (Wang et al. 2020; Arnob et al. 2021, eq. 4).

    The paper first removes the weights with the largest -θ ⊙ Hg, whose removal increases the gradient's norm
    most; so the weights with the largest +θ ⊙ Hg are kept. The sign matters: no absolute value is taken. The
    temperature of 200 in the authors' code softens the logits of a classifier. A Q or ELBO loss has no
    logits, and dividing its network's output would change the residual instead.
    """
    g = grad(objective.loss)(weights)

    def g_dot_gradient(θ: Weights) -> Tensor:
        return torch.stack([(g[layer] * g_θ).sum() for layer, g_θ in grad(objective.loss)(θ).items()]).sum()

    Hg = grad(g_dot_gradient)(weights)  # with g held constant, ∇(gᵀ∇L) = Hg
    return {layer: θ * Hg[layer] for layer, θ in weights.items()}


def synflow(objective: Objective, weights: Weights) -> Scores:
    """Synaptic saliency |θ| ⊙ ∂R/∂|θ| of R = 1ᵀ(∏ |θ|)1 (Tanaka et al. 2020, eq. 2). Needs no data.

    It is meant for many iterations (100 in the paper): a single iteration removes whole layers.
    """
    absolute = {layer: θ.abs() for layer, θ in weights.items()}
    R_gradient = grad(objective.flow)(absolute)
    return {layer: θ * R_gradient[layer] for layer, θ in absolute.items()}


def magnitude(objective: Objective, weights: Weights) -> Scores:  # noqa: ARG001
    """|θ|: at initialization a baseline, as it depends on the layers' widths but on neither data nor loss."""
    return {layer: θ.abs() for layer, θ in weights.items()}


def random(objective: Objective, weights: Weights) -> Scores:
    """Uniform noise: the baseline that any other pruner has to beat."""
    generator = objective.generator
    return {
        layer: torch.rand(θ.shape, generator=generator, device=generator.device).to(θ.device)
        for layer, θ in weights.items()
    }


def erk(objective: Objective, weights: Weights) -> Scores:
    """Random weights with Erdős–Rényi densities: n of a layer's weights are kept, n ∝ the sum of its sizes.

    For a linear layer that is inputs + outputs (Mocanu et al. 2018, eq. 3); for a convolution the sizes of
    its kernel are added (ERK; Evci et al. 2020, section 3). The k-th weight of a layer, in random order, has
    the score -k / sum, so that one threshold keeps a number proportional to the sum of each layer, and a
    layer that has fewer weights than its share whole.
    """
    generator = objective.generator
    scores = {}
    for layer, θ in weights.items():
        order = torch.randperm(θ.numel(), generator=generator, device=generator.device).to(θ.device)
        scores[layer] = -(order + 1).double().view_as(θ) / sum(θ.shape)
    return scores


@dataclass(frozen=True)
class Pruner:
    """A score function, and the batch size, in transitions, on which its paper computes the scores."""

    score: Callable[[Objective, Weights], Scores]
    batch_size: int


PRUNERS = {
    "snip": Pruner(snip, batch_size=100),  # both sizes: Arnob et al. 2021, section 4
    "grasp": Pruner(grasp, batch_size=200),
    "synflow": Pruner(synflow, batch_size=100),
    "magnitude": Pruner(magnitude, batch_size=100),
    "random": Pruner(random, batch_size=100),
    "erk": Pruner(erk, batch_size=100),
}
