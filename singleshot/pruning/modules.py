"""Pruning of any PyTorch network before training: `prune` makes masks, `apply` enforces them.

>>> import singleshot
>>> import torch
>>> from torch import nn
>>> model = nn.Sequential(nn.Linear(4, 100), nn.ReLU(), nn.Linear(100, 1))
>>> x, y = torch.randn(64, 4), torch.randn(64, 1)
>>> masks = singleshot.prune(model, lambda m: nn.functional.mse_loss(m(x), y), sparsity=0.9)
>>> {name: int(mask.sum()) for name, mask in masks.items()}.keys()
dict_keys(['0.weight', '2.weight'])
>>> sum(int(mask.sum()) for mask in masks.values())
50
>>> singleshot.apply(model, masks)
>>> int((model[0].weight != 0).sum() + (model[2].weight != 0).sum())
50
"""

import copy
import functools
import glob
import logging
import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise
from numbers import Integral
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.parametrize import is_parametrized

from singleshot.errors import UserError, in_a_line, is_out_of_memory, must_be, shown
from singleshot.pruning.controls import CONTROLS
from singleshot.pruning.effective import on_paths
from singleshot.pruning.masks import PruningConfig, prune_networks
from singleshot.pruning.pruner import Masks, Objective, ScoreFunction, Weights
from singleshot.pruning.pruners.synflow import NOT_LINEAR
from singleshot.random_streams import stream

EMBEDDINGS = nn.Embedding, nn.EmbeddingBag
WHOLE = *EMBEDDINGS, nn.LayerNorm, nn.RMSNorm
"""Layers whose parameters are pruned only where a caller names them."""
TOLD = 0.05
"""Share of a model's parameters from which on a line says that they are not pruned."""
Layer = str | type[nn.Module] | nn.Module
Layers = Iterable[Layer]
"""Layers with all that is inside: names, such as `encoder.layers.0` or `decoder.*.linear1`, types or modules.
A name may also be a parameter's."""
Every = Sequence[tuple[str, nn.Module]]
logger = logging.getLogger(__name__)
Inputs = tuple[tuple[Any, ...], dict[str, Any]]
"""Arguments and keywords of a model's call."""


def prunable(model: nn.Module, layers: Layers | None = None, exclude: Layers = ()) -> Weights:
    """The weights of `model` by the parameter's name, as :func:`prune` describes them.

    They are what has two axes or more and is called `…weight…`, and what has three axes of more than one
    entry, as experts have that are multiplied in one batch. Of layers that are chosen, all that has two axes
    or more counts.

    Raises:
        UserError: a layer has no weight of its own, or no layer has one of the names.
    """
    every = list(model.named_modules())
    names = {*(path for path, _ in every), *dict(model.named_parameters(remove_duplicate=False))}
    only = None if layers is None else _listed(names, layers=layers)
    left_out = _listed(names, exclude=exclude)
    for name in (each for each in (*(only or ()), *left_out) if isinstance(each, str)):
        if not any(fnmatchcase(known, name) for known in names):
            raise UserError(f"there is no layer {name!r}, but {shown([path for path, _ in every if path])}")
    weights: Weights = {}
    owners: dict[Tensor, str] = {}
    for path, name, θ in _candidates(every, only, left_out):
        where = f"layer {path}" if path else f"the {type(model).__name__}"
        if isinstance(θ, nn.parameter.UninitializedParameter) or θ.is_meta:
            raise UserError(f"{where} has no weights yet; call the model on a batch, or load or draw them")
        if hasattr(θ, "placements"):
            raise UserError(f"{where} is sharded; prune the whole model, shard it, and apply the masks then")
        numbers = θ.layout == torch.strided and (θ.is_floating_point() or θ.is_complex())
        if θ.is_inference() or θ.itemsize == 1 or not numbers:
            kind = "inference mode" if θ.is_inference() else f"{θ.dtype}, {θ.layout}"
            raise UserError(f"{where} has weights of {kind}; prune before that, or give exclude=[{path!r}]")
        if θ in owners:
            raise UserError(f"{where} shares its weight with layer {owners[θ]}; untie them, or exclude both")
        if θ.ndim > 1:
            owners[θ], weights[name] = path, θ
    return weights


def _listed(names: Container[str], **argument: Any) -> tuple[Layer, ...]:
    """The layers that an argument names, in whatever it holds them: by one of `names`, or by a pattern."""
    ((name, given),) = argument.items()
    several = isinstance(given, Iterable) and not isinstance(given, str)
    listed = tuple(given) if several else (None,)
    right = all(isinstance(each, str | type | nn.Module) for each in listed)
    must_be("a list of layers: names, types or modules", right, **{name: listed if several else given})
    return tuple(glob.escape(each) if isinstance(each, str) and each in names else each for each in listed)


def _candidates(
    every: Every, layers: tuple[Layer, ...] | None, exclude: tuple[Layer, ...]
) -> Iterator[tuple[str, str, Tensor]]:
    """Path, name and parameter of all that may be pruned: by its kind, or because `layers` names it."""
    embedded = {θ for _, layer in every if isinstance(layer, EMBEDDINGS) for θ in layer.parameters(False)}
    inside, outside = _inside(every, layers or ()), _inside(every, exclude)
    for path, layer in every:
        own = dict(layer.named_parameters(path, recurse=False, remove_duplicate=False))
        kinds = {name.rpartition(".")[2] for name in own}
        if layer in outside or not (layers is None or layer in inside or _are_among(own, layers)):
            continue
        if is_parametrized(layer) or kinds & {"weight_orig", "weight_v"}:
            where = f"layer {path}" if path else f"the {type(layer).__name__}"
            raise UserError(
                f"{where} has no weight of its own, but a parametrization (weight_norm, spectral_norm, "
                f"torch.nn.utils.prune): remove that, or leave the layer whole by exclude=[{path!r}]"
            )
        for name, θ in own.items():
            named = layers is not None and (_is_among(path, layer, layers) or _are_among([name], layers))
            if _are_among([name], exclude) or not (layers is None or layer in inside or named):
                continue
            if (isinstance(layer, WHOLE) or θ in embedded) and not named:
                continue
            batched = not nn.parameter.is_lazy(θ) and θ.ndim > 2 and min(θ.shape) > 1
            if layers is not None or "weight" in name.rpartition(".")[2] or batched:
                yield path, name, θ


def _are_among(names: Iterable[str], chosen: tuple[Layer, ...]) -> bool:
    return any(isinstance(c, str) and fnmatchcase(name, c) for name in names for c in chosen)


def _is_among(path: str, layer: nn.Module, chosen: tuple[Layer, ...]) -> bool:
    return any(
        fnmatchcase(path, c)
        if isinstance(c, str)
        else layer is c or (isinstance(c, type) and isinstance(layer, c))
        for c in chosen
    )


def _inside(every: Every, chosen: tuple[Layer, ...]) -> set[nn.Module]:
    return {inner for path, layer in every if _is_among(path, layer, chosen) for inner in layer.modules()}


def _tell_what_stays(model: nn.Module, weights: Weights) -> None:
    """Log the share of matrices and the like that are not among `weights`, by type of layer, if large."""
    seen, whole = set(weights.values()), Counter[str]()
    for layer in model.modules():
        own = set(layer.parameters(recurse=False)) - seen
        whole[type(layer).__name__] += sum(θ.numel() for θ in own if θ.ndim > 1)
        seen |= own
    every = sum(θ.numel() for θ in seen)
    if whole.total() > TOLD * every:
        most = ", ".join(f"{name} {count / every:.1%}" for name, count in whole.most_common(3) if count)
        covered = sum(θ.numel() for θ in weights.values()) / every
        logger.warning("prune covers %.1f%% of the parameters; these stay whole: %s", 100 * covered, most)


def prune(
    model: nn.Module,
    loss: Callable[[nn.Module], Tensor] | Iterable[Callable[[nn.Module], Tensor]] | None,
    sparsity: float,
    method: str | ScoreFunction = "snip",
    *,
    scope: Literal["network", "layer"] = "network",
    layers: Layers | None = None,
    exclude: Layers = (),
    iterations: int | None = None,
    seed: int = 0,
) -> Masks:
    """Masks that keep a fraction 1 - sparsity of the weights of `model`, which stays as it is.

    Args:
        model: any network, usually at its initialization. Weights of linear, convolutional, recurrent and
            attention layers and of batched experts are pruned. Biases, normalisations, embeddings, even
            those that are tied to another layer, and parameters of other names stay whole. If these are more
            than a twentieth of the parameters, a line says so. Layers whose scores are all 0, such as those
            behind a BatchNorm that begins at 0, keep their largest weights. A line says this, too.
        loss: function from a model to the scalar that training would minimise, on one batch. It is called in
            each round, by GraSP twice, and has to take the same batch each time; PyTorch's random numbers
            are the same. SynFlow calls it once to see what the model is fed, and uses no data; it is for
            networks whose outputs grow with each weight, without LayerNorm or attention. If the data don't
            fit into memory at once, give several such functions, each of one batch: their gradients are
            added up. None for `magnitude`, `random` and `erk`, which don't look at it.
        sparsity: fraction of weights to remove, at least 0 and less than 1.
        method: `snip`, `grasp`, `synflow`, `magnitude`, `random` or `erk`
            (:mod:`singleshot.pruning.pruners`), or one of them with its mask permuted layer by layer as a
            control, such as `snip-shuffled`; or a function from an
            :class:`~singleshot.pruning.pruner.Objective` and the weights, by the parameter's name, to scores
            of the same names and shapes.
        scope: whether all weights of the network compete to be kept, or those of each layer.
        layers: the only layers to prune, with all that is inside, whatever its parameters are called: names,
            such as `encoder.layers.0` or `decoder.*.linear1`, types, such as `nn.Linear`, or modules of the
            model. Embeddings are pruned only if one of these is theirs. A name may also be a parameter's.
        exclude: layers or parameters to leave whole, in the same forms.
        iterations: rounds of scoring and removing; by default 100 for SynFlow, as in its paper, else 1.
        seed: seed of random scores and permutations.

    Returns:
        Bool tensors shaped like the weights (for a linear layer (out, in)), by the parameter's name
        (`layer1.0.conv1.weight`); true where a weight is kept. Exactly N - round(N · sparsity) of all these N
        weights, or of each layer's N weights, are kept.

    Raises:
        UserError: there is nothing to prune, the method is unknown, another argument is of the wrong type or
            out of range, a layer's weight is tied, lazy, sharded, quantised or computed, the loss checkpoints
            activations, isn't a scalar or doesn't depend on the weights, or some weight has no finite score.
    """
    must_be("a torch.nn.Module", isinstance(model, nn.Module), model=model)
    several = isinstance(loss, Iterable) and not isinstance(loss, Tensor | nn.Module)
    losses: list[Any] = [*cast(Iterable, loss)] if several else [loss]
    right = loss is None or (len(losses) > 0 and all(map(callable, losses)))
    must_be("a function of the model, or several", right, loss=loss)
    must_be("a pruner's name or a function", isinstance(method, str) or callable(method), method=method)
    must_be("network or layer", scope in ("network", "layer"), scope=scope)
    must_be("a whole number from 0 to 2⁶³", isinstance(seed, Integral) and 0 <= seed <= 2**63, seed=seed)
    if isinstance(method, str) and method.partition("-")[2] in CONTROLS.keys() - {"shuffled"}:
        raise UserError(f"method {method}: this control is for agents (singleshot.rl); give …-shuffled")
    weights = prunable(model, layers, exclude)
    if not weights:
        among = "" if layers is None and not exclude else " among the layers that are chosen"
        raise UserError(f"{type(model).__name__} has no weights to prune{among}")
    if layers is None:
        _tell_what_stays(model, weights)
    config = PruningConfig(scope=scope, iterations=iterations)
    of_batches = [_LossOf(model, each, int(seed)) for each in losses]
    evaluate = [each.differentiable for each in of_batches]
    # The flow has a copy of the model, which all rounds share.
    flow = functools.cache(lambda: _flow(model, _inputs_of(model, of_batches[0])))

    def objectives(iteration: int) -> Mapping[str, Objective]:  # noqa: ARG001 (each round sees the same batch)
        scores = stream("pruning scores", int(seed))
        return {
            "": Objective(evaluate if evaluate[1:] else evaluate[0], lambda weights: flow()(weights), scores)
        }

    # Fused attention has no second derivative, which GraSP needs, and inference mode has no derivative.
    with sdpa_kernel(SDPBackend.MATH), torch.inference_mode(False):
        return prune_networks(objectives, {"": weights}, method, sparsity, config)[""]


def report(masks: Mapping[str, Tensor]) -> str:
    """A line for each of the `masks` of :func:`prune`, then for all: weights kept, of how many, the share.

    If each mask has as many inputs as the one before has outputs, as an MLP's have, a last line has those of
    the kept weights that are on a path from an input to an output: the others compute nothing.
    """
    right = isinstance(masks, Mapping) and all(isinstance(mask, Tensor) for mask in masks.values())
    must_be("masks by the parameter's name", right, masks=masks)
    masks = {name: mask != 0 for name, mask in masks.items()}  # they may be of any numbers
    counts = {name: (int(mask.sum()), mask.numel()) for name, mask in masks.items()}
    kept_of_all = sum(kept for kept, _ in counts.values())
    counts["all"] = kept_of_all, sum(total for _, total in counts.values())
    layers = list(masks.values())
    if {mask.ndim for mask in layers} == {2} and all(len(a) == b.shape[1] for a, b in pairwise(layers)):
        counts["on a path"] = sum(int(mask.sum()) for mask in on_paths(layers)), kept_of_all
    width = max(map(len, counts))
    return "\n".join(
        f"{name:{width}} {kept:12,} of {total:12,} {kept / max(total, 1):8.2%}"
        for name, (kept, total) in counts.items()
    )


class _LossOf(nn.Module):
    """A loss of a model as a module, so that `functional_call` can replace the model's weights in it."""

    def __init__(self, model: nn.Module, loss: Callable[[nn.Module], Tensor], seed: int) -> None:
        super().__init__()
        self.model, self.loss, self.seed = model, loss, seed

    def forward(self) -> Tensor:
        must_be("a function of the model, as this method scores by it", self.loss is not None, loss=None)
        value = self.loss(self.model)
        if not isinstance(value, Tensor) or value.numel() != 1:
            given = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise UserError(f"loss(model) returned {given}; return a tensor with a single number")
        return value.reshape(())

    def differentiable(self, weights: Weights) -> Tensor:
        """The loss with other weights, on which it has to depend: else all scores would be zero."""
        checkpointing = "the loss uses activation checkpointing, which needs the weights again; turn it off"
        try:
            with torch.autograd.graph.disable_saved_tensors_hooks(checkpointing):
                value = self.of_weights(weights)
        except RuntimeError as error:
            if checkpointing in str(error):
                raise UserError(checkpointing) from error
            raise
        if not value.requires_grad:
            raise UserError("loss(model) does not depend on the weights; return a loss with gradients")
        return value

    def of_weights(self, weights: Weights) -> Tensor:
        """The loss with other weights, always with the same dropout and other random numbers of PyTorch's.

        Normalisations update copies of their running means, and modules are in the modes they were in.
        """
        modes = [(module, module.training) for module in self.model.modules()]
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            own = {f"model.{name}": θ for name, θ in weights.items()}
            value: Tensor = functional_call(self, _replaced(self, own), (), tie_weights=False)
        for module, mode in modes:
            module.training = mode
        return value


def _replaced(model: nn.Module, weights: Weights) -> dict[str, Tensor]:
    """What `functional_call` puts in the place of a model's tensors: `weights`, and copies of all buffers.

    A tensor that several modules share is replaced in each. A module that has several names is listed by its
    first one alone, as `functional_call` would leave the given tensors in it.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    chosen: dict[Tensor, Tensor] = {parameters[name]: θ for name, θ in weights.items()}
    chosen |= {buffer: buffer.clone() for buffer in model.buffers()}
    return {
        f"{path}.{name}" if path else name: chosen[tensor]
        for path, module in model.named_modules()
        for name, tensor in (
            *module.named_parameters(recurse=False, remove_duplicate=False),
            *module.named_buffers(recurse=False, remove_duplicate=False),
        )
        if tensor in chosen
    }


def _flow(model: nn.Module, inputs: Inputs) -> Callable[[Weights], Tensor]:
    """R = 1ᵀ(∏ θ)1 of SynFlow: the model's outputs for equal inputs, summed, and scaled to 1.

    As in the authors' code, the model is linear on its way: other parameters count by their absolute values,
    biases are zero, and normalisations compute as in inference, here with means of zero. Inputs are not 1,
    but so small that no activation such as ReLU6 saturates; scores are the same where none does. One example
    in double precision is enough, unless the model refuses that: graphs have no examples, and some models
    make float32 tensors of their own.
    """
    own = next(model.parameters()).dtype
    for dtype, examples in ((torch.float64, slice(1)), (torch.float64, slice(None)), (own, slice(None))):
        equal = functools.partial(_equal, dtype=dtype, examples=examples)
        given = tuple(map(equal, inputs[0])), {name: equal(value) for name, value in inputs[1].items()}
        try:
            linear = _linear(model, dtype)
            with torch.no_grad():
                linear(*given[0], **given[1])
        except Exception as error:
            if is_out_of_memory(error):
                raise
            refused = error
        else:
            return functools.partial(_outputs_over_themselves, linear, given, dtype)
    raise UserError(f"SynFlow can't feed the model tensors of equal numbers: {in_a_line(refused)}")


@torch.no_grad()
def _linear(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    linear = copy.deepcopy(model).eval().to(dtype)
    for name, parameter in linear.named_parameters():
        parameter.mul_(0 if "bias" in name.rpartition(".")[2] else parameter.sign())
    for name, buffer in linear.named_buffers():
        if name.rpartition(".")[2] == "running_mean":
            buffer.zero_()
    return linear


def _outputs_over_themselves(
    linear: nn.Module, inputs: Inputs, dtype: torch.dtype, weights: Weights
) -> Tensor:
    own = {name: θ.to(dtype) for name, θ in weights.items()}
    outputs = functional_call(linear, _replaced(linear, own), *inputs, tie_weights=False)
    sums = [output.double().sum() for output in _tensors(outputs)]
    R = torch.stack(sums).sum() if sums else torch.zeros(())
    if not 0 < R < math.inf:
        raise UserError(f"{NOT_LINEAR} (the sum of its outputs is {R:.3g}); use snip or grasp")
    return R / R.detach()


def _equal(given: Any, dtype: torch.dtype, examples: slice) -> Any:
    """Like what the model is given, but of equal numbers: small ones, or ones where it is whole numbers."""
    if not isinstance(given, Tensor):
        return given
    ones = torch.ones_like(given[examples] if given.ndim else given)
    if not ones.is_floating_point():
        return ones
    ones = ones.to(dtype)
    return ones * torch.finfo(ones.dtype).tiny ** 0.5


def _tensors(outputs: Any) -> Iterator[Tensor]:
    """The tensors of floating-point numbers in what a model returns: one, or tuples and dicts of them."""
    match outputs:
        case Tensor() if outputs.is_floating_point():
            yield outputs
        case Mapping():
            yield from _tensors(list(outputs.values()))
        case tuple() | list():
            for each in outputs:
                yield from _tensors(each)


def _inputs_of(model: nn.Module, loss: _LossOf) -> Inputs:
    """What `loss` feeds to the model: arguments and keywords."""
    seen: list[Inputs] = []
    hook = model.register_forward_pre_hook(lambda _, *inputs: seen.append(inputs), with_kwargs=True)
    try:
        with torch.no_grad():
            loss.of_weights({})
    finally:
        hook.remove()
    if not seen or not any(isinstance(each, Tensor) for each in (*seen[0][0], *seen[0][1].values())):
        raise UserError("SynFlow has to see the model's input: call model(x) in loss(model), with tensors")
    return seen[0]
