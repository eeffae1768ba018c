"""The largest weights."""

from singleshot.pruning.pruner import Objective, Pruner, Scores, Weights


def magnitude(objective: Objective, weights: Weights) -> Scores:  # noqa: ARG001
    """|θ|: at initialization a baseline, as it depends on the layers' widths but on neither data nor loss."""
    return {layer: θ.abs() for layer, θ in weights.items()}


PRUNER = Pruner(magnitude)
