"""Weights at random."""

import torch

from singleshot.pruning.pruner import Objective, Pruner, Scores, Weights


def random(objective: Objective, weights: Weights) -> Scores:
    """Uniform noise: the baseline that any other pruner has to beat."""
    generator = objective.generator
    return {
        layer: torch.rand(θ.shape, generator=generator, device=generator.device).to(θ.device)
        for layer, θ in weights.items()
    }


PRUNER = Pruner(random)
