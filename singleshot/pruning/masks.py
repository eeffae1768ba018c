"""From scores to masks: by which pruner, how many weights are kept, which compete, in how many rounds.

A pruner's name is that of its module in `pruners`, and the pruner is the module's `PRUNER`.
"""

import importlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from singleshot.errors import UserError, did_you_mean, must_be, shown
from singleshot.pruning.controls import CONTROLS, Observed
from singleshot.pruning.dynamic import METHODS
from singleshot.pruning.pruner import (
    Function,
    Masks,
    Objective,
    Parts,
    Pruner,
    ScoreFunction,
    Scores,
    Weights,
    name_of,
    of_layers,
)
from singleshot.pruning.selection import Scope, select
from singleshot.pruning.variant import SMALL
from singleshot.registry import modules_of

SILENT = 1e-20
"""A layer whose largest score is at most this part of its network's counts as one without scores."""
logger = logging.getLogger(__name__)

PRUNERS = modules_of("singleshot.pruning.pruners")
"""The modules of all pruners, by name."""
FOR_AGENTS = (*METHODS, SMALL)
"""What `prune` of an agent takes besides pruners: they change masks in training, or need no mask."""


def module_of(name: str) -> str:
    """Full name of the module of the pruner `name`, or of a control's pruner: of `snip` for `snip-shuffled`.

    Raises:
        UserError: there is no pruner or control of that name.
    """
    pruner, hyphen, control = name.partition("-")
    if name in FOR_AGENTS:
        raise UserError(f"{name!r} is only for agents: singleshot.rl.BC(data).prune({name!r}, …)")
    if pruner not in PRUNERS or (hyphen and control not in CONTROLS):
        known = [*PRUNERS, *(f"{each}-{own}" for each in PRUNERS for own in CONTROLS)]
        advice = did_you_mean(name.lower(), [*known, *FOR_AGENTS], "")
        raise UserError(f"unknown pruner {name!r}{advice and f' ({advice})'}; known are {', '.join(PRUNERS)}")
    return PRUNERS[pruner]


def find_pruner(method: str | ScoreFunction) -> Pruner:
    """The pruner of that name, the pruner to which a control of that name belongs, or one's own with a score.

    Raises:
        UserError: there is no pruner or control of that name.
    """
    if callable(method):
        return Pruner(method)
    found: Pruner = importlib.import_module(module_of(method)).PRUNER
    return found


@dataclass(frozen=True)
class PruningConfig:
    """How masks are made from scores."""

    scope: Scope = "part"
    """Group of weights that compete with one another to be kept. `part`: the weights of one perceptron, so
    that the actor, each critic, the VAE's encoder and its decoder each have the requested sparsity. This is
    how algorithm 1 of Arnob et al. (2021) reads, which lists a loss and a mask for each: L(θ_1), L(φ),
    L(ω_E), L(ω_D) and M_θ1, M_φ, M_ωE, M_ωD. `network`: the weights of one network, so that encoder and
    decoder compete, and so do both critics; SNIP then keeps 9.8 % instead of 5 % of the decoder, which is all
    of BC's policy (HalfCheetah, normalised states). `layer`: the weights of one layer, so that all layers
    have the same sparsity. `agent`: the weights of all of an agent's networks. The networks' losses have
    different units, squared rewards or log-likelihoods, so a score counts relative to its network's mean
    |score|; otherwise the unit of reward would decide how sparse the actor gets. In every scope, scores are
    computed from the whole network's loss."""
    iterations: int | None = None
    """Number of rounds of scoring and pruning; null for the pruner's own (SynFlow 100, others 1). After round
    i of n, a fraction (1 - sparsity)^(i/n) of the weights is left."""
    batch_size: int | None = None
    """Number of transitions on which a round's scores are computed; null for the pruner's default (SNIP 100,
    GraSP 200)."""
    normalize_states: bool | None = None
    """Whether scores are computed on normalised states or on raw ones; null for those of the training."""
    reinitialize: bool = False
    """Whether to train freshly drawn weights under the mask, as the SNIP authors' code does, instead of the
    weights that were scored. The masks are the same either way; the training of the network follows this
    setting."""

    def __post_init__(self) -> None:
        for name in ("iterations", "batch_size"):
            value = getattr(self, name)
            right = value is None or (isinstance(value, Integral) and int(value) >= 1)
            must_be("a whole number from 1", right, **{name: value})

    def normalizes(self, training: bool) -> bool:
        """Whether scores are computed on normalised states, where `training` is or is not."""
        return training if self.normalize_states is None else self.normalize_states

    def batch_size_of(self, pruner: str | ScoreFunction) -> int:
        """Number of transitions to score with `pruner`: the configured number, else the pruner's default."""
        return self.batch_size or find_pruner(pruner).batch_size

    def iterations_of(self, pruner: str | ScoreFunction) -> int:
        """Number of rounds of `pruner`: the configured number, else the pruner's own."""
        return self.iterations or find_pruner(pruner).iterations


def prune_networks(
    objectives: Callable[[int], Mapping[str, Objective]],
    weights: Mapping[str, Weights],
    pruner: str | ScoreFunction,
    sparsity: float,
    config: PruningConfig,
    parts: Parts | None = None,
    observed: Mapping[str, Observed] | None = None,
) -> dict[str, Masks]:
    """Masks of a model's networks, with exactly N - round(N·sparsity) of N competing weights kept.

    `pruner` is the name of a module of :mod:`singleshot.pruning.pruners`, or `<pruner>-<control>` with a name
    of :data:`~singleshot.pruning.controls.CONTROLS`: the control then replaces the pruner's masks at the end.
    It may also be a score function itself.
    `parts` lists the layers of each part of a network; a network without an entry is one part. `observed`
    tells controls, by network, which layers read the state.

    `objectives(i)` is called once in each round, i = 0, 1, …, and returns an objective per network. It has to
    use a new batch in each call if the rounds are to see more than one batch. In objectives, weights that
    earlier rounds pruned are zero and have no gradient; they never come back. Of equal scores, the first ones
    are kept, so that counts are exact whatever the ties.

    `weights` holds a tensor by network and layer. A layer whose scores are all 0 in the first round, as
    those behind weights that begin at 0, competes by the magnitudes of its weights: that of the k-th largest
    of n takes the score that is the k/n-th of its network's other layers. Thus it keeps as large a part as
    they do, and all together what was asked for. That is logged as a warning, and so is a layer that loses
    all its weights, which has 0 kept weights in :func:`count_layers`.

    Raises:
        UserError: the pruner is unknown, the sparsity is outside [0, 1), or there is not one finite score for
            each weight.
    """
    score, name = find_pruner(pruner).score, name_of(pruner)
    check_sparsity(sparsity)
    weights = of_layers(Tensor.detach, weights)
    masks = of_layers(lambda θ: torch.ones_like(θ, dtype=torch.bool), weights)
    rounds, silent = config.iterations_of(pruner), dict[str, list[str]]()
    for i in range(rounds):
        objective = objectives(i)
        scores = {
            network: score(_masked(objective[network], masks[network]), ws) for network, ws in weights.items()
        }
        _check(scores, weights, name)
        if i == 0 and sparsity:
            silent = {network: _silent(network, own, name) for network, own in scores.items()}
        for network, layers in silent.items():
            own, generator = scores[network], objective[network].generator
            scores[network] = own | _lent(own, layers, weights[network], masks[network], generator)
        # As in SynFlow's algorithm 1; exactly `sparsity` after the last round.
        reached = sparsity if i + 1 == rounds else 1 - (1 - sparsity) ** ((i + 1) / rounds)
        masks = select(scores, masks, reached, config.scope, parts or {})
    if isinstance(pruner, str) and "-" in pruner:
        control = CONTROLS[pruner.partition("-")[2]]
        masks = {
            network: control(own, (observed or {}).get(network, {}), objective[network].generator)
            for network, own in masks.items()
        }
    counts = count_layers(masks)
    for network, layers in silent.items():
        if layers:
            all_layers = [count for count in counts if count.network == network]
            total = sum(count.weights_total for count in all_layers)
            kept = sum(count.weights_kept for count in all_layers) / total
            logger.warning(
                "%s's scores of %d of %d layers of %s are all 0, such as %s: they take no part in the loss, "
                "begin at 0, or stand behind weights of 0. So each keeps its largest weights, as large a "
                "part as the others do; %.2f%% are kept in all",
                *(name, len(layers), len(all_layers), network or "the model", layers[0], 100 * kept),
            )
    for count in counts:
        if count.weights_kept == 0:
            more = "a lower sparsity" if config.scope == "layer" else 'scope="layer"'
            where = _layer(count.network, count.layer)
            logger.warning(
                "%s at sparsity %g left no weight of %s, and nothing passes it; %s keeps some",
                *(name, sparsity, where, more),
            )
    return masks


def check_sparsity(sparsity: float) -> None:
    """Raise a :class:`UserError` unless the sparsity is at least 0 and less than 1."""
    must_be("a number from 0 to below 1", isinstance(sparsity, Real), sparsity=sparsity)
    if not 0 <= sparsity < 1:
        percent = f" ({sparsity:g} % is {sparsity / 100:g})" if 1 < sparsity < 100 else ""
        raise UserError(f"sparsity is {sparsity:g}; it has to be at least 0 and less than 1{percent}")


def _masked(objective: Objective, masks: Masks) -> Objective:
    """The objective as a function of weights that are first multiplied by their masks."""

    def of_kept(function: Function) -> Function:
        return lambda weights: function({layer: θ * masks[layer] for layer, θ in weights.items()})

    loss = of_kept(objective.loss) if callable(objective.loss) else [*map(of_kept, objective.loss)]
    return replace(objective, loss=loss, flow=of_kept(objective.flow))


def _check(scores: Mapping[str, Any], weights: Mapping[str, Weights], pruner: str) -> None:
    """Raise UserError unless there is a finite score for each weight."""
    for network, layers in weights.items():
        own = scores[network]
        if not isinstance(own, Mapping) or own.keys() != layers.keys():
            raise UserError(f"{pruner} returns {shown(own)}; return a dict of scores by layer")
        for layer, θ in layers.items():
            score, where = own[layer], _layer(network, layer)
            alike = isinstance(score, Tensor) and (score.shape, score.layout) == (θ.shape, torch.strided)
            if not alike or score.is_meta or score.itemsize == 1:
                raise UserError(f"{pruner} returns {shown(score)} for {where}, not a tensor like its weights")
            if not score.isfinite().all():
                raise UserError(
                    f"{pruner}'s scores of {where} are not all finite; look for values in the data or the "
                    "initial weights that overflow the loss or its gradient"
                )


def _silent(network: str, scores: Scores, pruner: str) -> list[str]:
    """The layers of a network that have no score but 0, or, beside the others' scores, next to 0.

    Raises:
        UserError: these are all layers.
    """
    # A layer may have biases alone, such as IQL's log σ.
    largest = {layer: float(own.detach().abs().max()) for layer, own in scores.items() if own.numel()}
    if not any(largest.values()):
        raise UserError(
            f"{pruner}'s scores of {network or 'the model'} are all 0 and choose no weights: the loss does "
            "not change with them; is it of another model, or multiplied by 0, or by weights that begin at 0?"
        )
    return [layer for layer, own in largest.items() if own <= SILENT * max(largest.values())]


def _lent(
    scores: Scores, silent: Sequence[str], weights: Weights, masks: Masks, generator: torch.Generator
) -> Scores:
    """Scores of the layers that have none: by magnitude, those of the same ranks in the other layers.

    Equal magnitudes, as of weights that are all 0, are in random order.
    """
    lent = {}
    if silent:
        others = torch.cat([own.double()[masks[name]] for name, own in scores.items() if name not in silent])
        others = others.sort().values if len(others) else others.new_zeros(1)
    for layer in silent:
        kept = masks[layer]
        magnitudes = weights[layer][kept].abs()
        n = len(magnitudes)
        order = torch.randperm(n, generator=generator, device=generator.device).to(kept.device)
        order = order[magnitudes[order].argsort(stable=True)]
        ranks = torch.empty_like(order)
        ranks[order] = torch.arange(n, device=kept.device)
        lent[layer] = torch.zeros_like(kept, dtype=torch.float64)
        lent[layer][kept] = others[(2 * ranks + 1) * len(others) // (2 * n)]
    return lent


def _layer(network: str, layer: str) -> str:
    """A layer's name in a message; a network that is pruned alone has none."""
    return f"{network}'s layer {layer}" if network else f"layer {layer}"


@dataclass(frozen=True)
class LayerCount:
    """Weights of one layer, before and after pruning. `weights_kept` is 0 where the layer was left empty."""

    network: str
    part: str
    """Name of the network's part that the layer belongs to; the network's name if it has no parts."""
    layer: str
    weights_total: int
    weights_kept: int


def count_layers(masks: Mapping[str, Masks], parts: Parts | None = None) -> list[LayerCount]:
    """Weight counts of each layer that has weights, in the order of networks and layers in `masks`."""
    part_of = {
        (network, layer): part
        for network, own in (parts or {}).items()
        for part, layers in own.items()
        for layer in layers
    }
    return [
        LayerCount(network, part_of.get((network, layer), network), layer, mask.numel(), int(mask.sum()))
        for network, layers in masks.items()
        for layer, mask in layers.items()
        if mask.numel()
    ]
