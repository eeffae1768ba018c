"""GraSP: the weights whose removal would reduce the gradient's norm the most."""

from functools import partial

import torch
from torch import Tensor

from singleshot.pruning.pruner import Function, Objective, Pruner, Scores, Weights, grad


def grasp(objective: Objective, weights: Weights) -> Scores:
    """Gradient signal preservation +θ ⊙ Hg (Wang et al. 2020; Arnob et al. 2021, eq. 4).

    The paper first removes the weights with the largest -θ ⊙ Hg, whose removal increases the gradient's norm
    most; so the weights with the largest +θ ⊙ Hg are kept. The sign matters: no absolute value is taken. The
    temperature of 200 in the authors' code softens the logits of a classifier. A Q or ELBO loss has no
    logits, and dividing its network's output would change the residual instead.
    """
    losses = [objective.loss] if callable(objective.loss) else objective.loss
    g = grad(losses)(weights)

    def g_dot_gradient(loss: Function, θ: Weights) -> Tensor:
        return torch.stack([(g[layer] * g_θ).sum() for layer, g_θ in grad(loss)(θ).items()]).sum()

    Hg = grad([partial(g_dot_gradient, loss) for loss in losses])(weights)  # with g held constant, ∇(gᵀ∇L)
    return {layer: θ * Hg[layer] for layer, θ in weights.items()}


PRUNER = Pruner(grasp, batch_size=200)  # Arnob et al. 2021, section 4
