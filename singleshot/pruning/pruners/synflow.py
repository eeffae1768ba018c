"""SynFlow: the weights through which most flows from inputs to outputs."""

from torch.func import grad

from singleshot.pruning.objective import Objective, Scores, Weights
from singleshot.pruning.pruner import Pruner


def synflow(objective: Objective, weights: Weights) -> Scores:
    """Synaptic saliency |θ| ⊙ ∂R/∂|θ| of R = 1ᵀ(∏ |θ|)1 (Tanaka et al. 2020, eq. 2). Needs no data.

    It is meant for many iterations (100 in the paper): a single iteration removes whole layers.
    """
    absolute = {layer: θ.abs() for layer, θ in weights.items()}
    R_gradient = grad(objective.flow)(absolute)
    return {layer: θ * R_gradient[layer] for layer, θ in absolute.items()}


PRUNER = Pruner(synflow, iterations=100, needs_flow=True)
