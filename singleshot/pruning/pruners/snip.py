"""SNIP: the weights whose removal would change the loss the most."""

from singleshot.pruning.pruner import Objective, Pruner, Scores, Weights, grad


def snip(objective: Objective, weights: Weights) -> Scores:
    """Connection sensitivity |θ ⊙ ∂L/∂θ| (Lee et al. 2019; Arnob et al. 2021, eq. 1)."""
    g = grad(objective.loss)(weights)
    return {layer: (θ * g[layer]).abs() for layer, θ in weights.items()}


PRUNER = Pruner(snip)
