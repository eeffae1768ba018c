"""Weights at random, more of them in smaller layers."""

import torch

from singleshot.pruning.pruner import Objective, Pruner, Scores, Weights


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


PRUNER = Pruner(erk)
