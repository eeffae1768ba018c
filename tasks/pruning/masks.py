"""From scores to masks: how many weights are kept, who competes with whom, in how many rounds."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from tasks.errors import UserError
from tasks.pruning.objective import Objective, Scores, Weights
from tasks.pruning.pruners import PRUNERS, Pruner
from tasks.pruning.statistics import count_layers

logger = logging.getLogger(__name__)

Masks = dict[str, Tensor]
"""True where a weight is kept: bool tensors shaped like a network's weights."""


@dataclass(frozen=True)
class PruningConfig:
    """How masks are made from scores."""

    scope: Literal["network", "layer", "agent"] = "network"
    """Which weights compete for being kept: those of one network (the paper), of one layer (every layer then
    has the same sparsity), or of all of an agent's networks. Networks have losses in different units, squared
    rewards or log-likelihoods, so in scope `agent` a score counts relative to its network's mean |score|;
    without that, the unit of reward would decide how sparse the actor gets."""
    iterations: int = 1
    """Rounds of scoring and pruning. After round i of n a fraction (1 - sparsity)^(i/n) is left."""
    batch_size: int | None = None
    """Transitions a round's scores are computed on; by default the pruner's own (SNIP 100, GraSP 200)."""
    reinitialize: bool = False
    """Train freshly drawn weights under the mask, as in the authors' code of SNIP, instead of those that were
    scored. Masks are the same either way: whoever owns the network acts on this."""

    def __post_init__(self) -> None:
        for name, value in (("iterations", self.iterations), ("batch_size", self.batch_size)):
            if value is not None and value < 1:
                raise UserError(f"pruning.{name} is {value}; it has to be 1 or more")

    def batch_size_of(self, pruner: str) -> int:
        """Transitions to score with `pruner`: the configured number, else the pruner's own."""
        return self.batch_size or find_pruner(pruner).batch_size


def find_pruner(name: str) -> Pruner:
    """The pruner of that name. UserError, listing the known ones, if there is none."""
    if name not in PRUNERS:
        raise UserError(f"unknown pruner {name!r}; known are {', '.join(PRUNERS)}")
    return PRUNERS[name]


def prune(
    objectives: Callable[[int], Mapping[str, Objective]],
    weights: Mapping[str, Weights],
    pruner: str,
    sparsity: float,
    config: PruningConfig,
) -> dict[str, Masks]:
    """Masks of an agent's networks, with exactly N - round(N·sparsity) of N competing weights kept.

    `objectives(i)` is called once in each round, i = 0, 1, …, and returns an objective per network: on a new
    batch if iterations are to see more than one. Objectives are evaluated with the weights that earlier
    rounds pruned at zero and without gradient there; such weights don't come back. Equal scores (all units
    of a dead layer have 0) are kept in order of position, so counts are exact whatever the ties.

    `weights` maps network to layer to tensor. An emptied layer is logged as a warning and has 0 kept weights
    in :func:`~tasks.pruning.statistics.count_layers`.

    Raises UserError for an unknown pruner, a sparsity outside [0, 1), or a score that isn't finite.
    """
    score = find_pruner(pruner).score
    if not 0 <= sparsity < 1:
        raise UserError(f"sparsity is {sparsity}; it has to be at least 0 and less than 1")
    weights = {network: {layer: θ.detach() for layer, θ in ws.items()} for network, ws in weights.items()}
    masks = {
        network: {layer: torch.ones_like(θ, dtype=torch.bool) for layer, θ in ws.items()}
        for network, ws in weights.items()
    }
    for i in range(config.iterations):
        objective = objectives(i)
        scores = {
            network: score(_masked(objective[network], masks[network]), ws) for network, ws in weights.items()
        }
        _check_finite(scores, pruner)
        masks = _select(scores, masks, _sparsity_after(i + 1, config.iterations, sparsity), config.scope)
    for layer in count_layers(masks):
        if layer.weights_kept == 0:
            logger.warning(
                "%s at sparsity %g left no weight of %s's layer %s",
                pruner,
                sparsity,
                layer.network,
                layer.layer,
            )
    return masks


def _masked(objective: Objective, masks: Masks) -> Objective:
    """The objective as a function of weights that are first multiplied by their masks."""

    def apply(weights: Weights) -> Weights:
        return {layer: θ * masks[layer] for layer, θ in weights.items()}

    return replace(
        objective, loss=lambda θ: objective.loss(apply(θ)), flow=lambda θ: objective.flow(apply(θ))
    )


def _sparsity_after(i: int, n: int, sparsity: float) -> float:
    """Sparsity after round i of n, as in SynFlow's algorithm 1; exactly `sparsity` after the last."""
    return sparsity if i == n else 1 - (1 - sparsity) ** (i / n)


def _check_finite(scores: Mapping[str, Scores], pruner: str) -> None:
    for network, layers in scores.items():
        for layer, score in layers.items():
            if not score.isfinite().all():
                raise UserError(
                    f"{pruner}'s scores of {network}'s layer {layer} are not all finite; "
                    "check the dataset and the initial weights for values that overflow its loss"
                )


def _select(
    scores: Mapping[str, Scores], masks: Mapping[str, Masks], sparsity: float, scope: str
) -> dict[str, Masks]:
    """The highest scores among the weights not yet pruned, in each group of weights that compete."""
    candidates = {
        (network, layer): score.double().masked_fill(~masks[network][layer], -torch.inf)
        for network, layers in _comparable(scores, scope).items()
        for layer, score in layers.items()
    }
    groups = {
        "layer": [[key] for key in candidates],
        "network": [[key for key in candidates if key[0] == network] for network in scores],
        "agent": [list(candidates)],
    }[scope]
    selected: dict[str, Masks] = {network: {} for network in scores}
    for group in groups:
        for (network, layer), mask in zip(
            group, _top([candidates[key] for key in group], sparsity), strict=True
        ):
            selected[network][layer] = mask
    return selected


def _comparable(scores: Mapping[str, Scores], scope: str) -> Mapping[str, Scores]:
    """Scores that may be compared within the scope: across networks, relative to each one's mean |score|."""
    if scope != "agent":
        return scores
    comparable = {}
    for network, layers in scores.items():
        # |score|, not score: GraSP's are signed, and dividing by a negative mean would turn the order round.
        mean = torch.cat([score.double().abs().flatten() for score in layers.values()]).mean()
        comparable[network] = {
            layer: score.double() / mean if mean > 0 else score for layer, score in layers.items()
        }
    return comparable


def _top(scores: Sequence[Tensor], sparsity: float) -> list[Tensor]:
    """Masks of the N - round(N·sparsity) highest of N scores; among equals, those that come first."""
    flat = torch.cat([score.flatten() for score in scores])
    kept = len(flat) - round(len(flat) * sparsity)
    mask = torch.zeros_like(flat, dtype=torch.bool)
    mask[flat.argsort(descending=True, stable=True)[:kept]] = True
    parts = mask.split([score.numel() for score in scores])
    return [part.view(score.shape) for part, score in zip(parts, scores, strict=True)]
