"""SynFlow: the weights through which most flows from inputs to outputs."""

from singleshot.errors import UserError
from singleshot.pruning.pruner import Objective, Pruner, Scores, Weights, grad

NOT_LINEAR = (
    "SynFlow needs a network whose outputs grow with each weight, unlike those with LayerNorm, attention or "
    "gates, and enough rounds (`iterations`) for no layer to lose all its weights"
)


def synflow(objective: Objective, weights: Weights) -> Scores:
    """Synaptic saliency |θ| ⊙ ∂R/∂|θ| of R = 1ᵀ(∏ |θ|)1 (Tanaka et al. 2020, eq. 2). Needs no data.

    It is meant for many iterations (100 in the paper): a single iteration removes whole layers.

    Raises:
        UserError: R does not grow with each weight.
    """
    absolute = {layer: θ.abs() for layer, θ in weights.items()}
    R_gradient = grad(objective.flow)(absolute)
    scores = {layer: θ * R_gradient[layer] for layer, θ in absolute.items()}
    if any((own < 0).any() for own in scores.values()) or not any(own.any() for own in scores.values()):
        raise UserError(f"{NOT_LINEAR} (scores are negative, or all zero); use snip or grasp")
    return scores


PRUNER = Pruner(synflow, iterations=100)
