"""Pruning of any PyTorch network before training: :func:`prune` makes masks, :func:`apply` enforces them.

>>> import torch
>>> from torch import nn
>>> model = nn.Sequential(nn.Linear(4, 100), nn.ReLU(), nn.Linear(100, 1))
>>> x, y = torch.randn(64, 4), torch.randn(64, 1)
>>> masks = prune(model, lambda m: nn.functional.mse_loss(m(x), y), sparsity=0.9)
>>> {name: int(mask.sum()) for name, mask in masks.items()}.keys()
dict_keys(['0.weight', '2.weight'])
>>> sum(int(mask.sum()) for mask in masks.values())
50
>>> apply(model, masks)
>>> int((model[0].weight != 0).sum() + (model[2].weight != 0).sum())
50
"""

import copy
import functools
import logging
import math
import re
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.parametrize import is_parametrized
from torch.optim.optimizer import register_optimizer_step_post_hook

from singleshot.errors import UserError, must_be, shown
from singleshot.pruning.controls import CONTROLS
from singleshot.pruning.masks import PruningConfig, prune_networks
from singleshot.pruning.pruner import Masks, Objective, ScoreFunction, Weights
from singleshot.pruning.pruners.synflow import NOT_LINEAR
from singleshot.random_streams import stream

EMBEDDINGS = nn.Embedding, nn.EmbeddingBag
WHOLE = *EMBEDDINGS, nn.LayerNorm, nn.RMSNorm
"""Layers whose parameters are pruned only where a caller names them."""
TOLD = 0.05
"""Share of a model's parameters from which on a line says that they are not pruned."""
Layers = Sequence[str | type[nn.Module]]
"""Layers with all that is inside, by name, such as `encoder.layers.0` or `decoder.*.linear1`, or by type."""
logger = logging.getLogger(__name__)
Inputs = tuple[tuple[Any, ...], dict[str, Any]]
"""Arguments and keywords of a model's call."""


def prunable(model: nn.Module, layers: Layers | None = None, exclude: Layers = ()) -> Weights:
    """The weights of `model` by the parameter's name, as :func:`prune` describes them.

    They are what is called `…weight…` and has two axes or more, and what has three axes of more than one
    entry, as experts have that are multiplied in one batch.

    Raises:
        UserError: a layer has no weight of its own, or there is no layer of a name.
    """
    weights: Weights = {}
    owners: dict[Tensor, str] = {}
    every = list(model.named_modules())
    for name in (each for each in (*(layers or ()), *exclude) if isinstance(each, str)):
        if not any(fnmatchcase(path, name) for path, _ in every):
            raise UserError(
                f"the model has no layer {name!r}, but {shown([path for path, _ in every if path])}"
            )
    embedded = {θ for _, layer in every if isinstance(layer, EMBEDDINGS) for θ in layer.parameters(False)}
    chosen = set(model.modules()) if layers is None else _inside(every, layers)
    chosen -= _inside(every, exclude)
    for path, layer in every:
        named = layers is not None and _is_among(path, layer, layers)
        if layer not in chosen or (isinstance(layer, WHOLE) and not named):
            continue
        where = f"layer {path or type(layer).__name__}"
        own = dict(layer.named_parameters(recurse=False, remove_duplicate=False))
        if is_parametrized(layer) or own.keys() & {"weight_orig", "weight_v"}:
            raise UserError(
                f"{where} has no weight of its own, but a parametrization (weight_norm, spectral_norm, "
                "torch.nn.utils.prune); remove that before pruning"
            )
        for name, weight in own.items():
            if weight in embedded and not named:
                continue
            if "weight" not in name and not _is_batched(weight):
                continue
            if isinstance(weight, nn.parameter.UninitializedParameter) or weight.is_meta:
                raise UserError(
                    f"{where} has no weights yet; call the model on a batch, or load or draw them"
                )
            if weight in owners:
                raise UserError(f"{where} shares its weight with layer {owners[weight]}; untie them")
            if weight.ndim > 1:
                owners[weight] = path
                weights[f"{path}.{name}" if path else name] = weight
    return weights


def _is_among(path: str, layer: nn.Module, chosen: Layers) -> bool:
    return any(fnmatchcase(path, c) if isinstance(c, str) else isinstance(layer, c) for c in chosen)


def _inside(every: Sequence[tuple[str, nn.Module]], chosen: Layers) -> set[nn.Module]:
    return {inner for path, layer in every if _is_among(path, layer, chosen) for inner in layer.modules()}


def _is_batched(parameter: Tensor) -> bool:
    return not nn.parameter.is_lazy(parameter) and parameter.ndim > 2 and min(parameter.shape) > 1


def _tell_what_stays(model: nn.Module, weights: Weights) -> None:
    """Log the share of the parameters that are not among `weights`, by type of layer, if it is large."""
    pruned, whole = set(weights.values()), Counter[str]()
    seen = set(pruned)
    for layer in model.modules():
        own = set(layer.parameters(recurse=False))
        if own.isdisjoint(pruned):  # else what stays are biases
            whole[type(layer).__name__] += sum(θ.numel() for θ in own - seen)
        seen |= own
    every = sum(θ.numel() for θ in seen)
    if whole.total() > TOLD * every:
        most = ", ".join(f"{name} {count / every:.1%}" for name, count in whole.most_common(3) if count)
        covered = sum(θ.numel() for θ in pruned) / every
        logger.warning("prune covers %.1f%% of the parameters; whole stay those of %s", 100 * covered, most)


def prune(
    model: nn.Module,
    loss: Callable[[nn.Module], Tensor],
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
            attention layers and of batched experts are pruned. Biases, normalisations, and embeddings, also
            those that are tied to another layer, stay whole; if these are more than a twentieth of the
            parameters, a line says so. So does a layer whose scores are all 0, as of a head that begins at 0.
        loss: function from a model to the scalar that training would minimise, on one batch; GraSP
            differentiates it twice. SynFlow calls it once to see what the model is fed, and uses no data; it
            is for networks whose outputs grow with each weight, without LayerNorm or attention.
        sparsity: fraction of weights to remove, at least 0 and less than 1.
        method: `snip`, `grasp`, `synflow`, `magnitude`, `random` or `erk`
            (:mod:`singleshot.pruning.pruners`), or one of them with its mask permuted layer by layer as a
            control, such as `snip-shuffled`; or a function from an
            :class:`~singleshot.pruning.pruner.Objective` and the weights, by the parameter's name, to scores
            of the same names and shapes.
        scope: whether all weights of the network compete to be kept, or those of each layer.
        layers: the only layers to prune, with all that is inside, by name, such as `encoder.layers.0` or
            `decoder.*.linear1`, or by type, such as `nn.Linear`; embeddings only if a name or type is theirs.
        exclude: layers to leave whole, with all that is inside, by name or type.
        iterations: rounds of scoring and removing; by default 100 for SynFlow, as in its paper, else 1.
        seed: of random scores and permutations.

    Returns:
        Bool tensors shaped like the weights (for a linear layer (out, in)), by the parameter's name
        (`layer1.0.conv1.weight`); true where a weight is kept. Exactly N - round(N · sparsity) of all N
        weights, or of each layer's N weights, are kept.

    Raises:
        UserError: there is nothing to prune, the method is unknown, another argument is of the wrong type or
            out of range, a layer's weight is tied, lazy or computed from other parameters, the loss is no
            scalar or does not depend on the weights, or there is not one finite score for each weight.
    """
    must_be("a torch.nn.Module", isinstance(model, nn.Module), model=model)
    must_be("a function of the model", callable(loss), loss=loss)
    must_be("a pruner's name or a function", isinstance(method, str) or callable(method), method=method)
    must_be("network or layer", scope in ("network", "layer"), scope=scope)
    must_be("a whole number from 0", isinstance(seed, int) and seed >= 0, seed=seed)
    if isinstance(method, str) and method.partition("-")[2] in CONTROLS.keys() - {"shuffled"}:
        raise UserError(f"method {method}: this control is for agents (singleshot.rl); give …-shuffled")
    weights = prunable(model, layers, exclude)
    if not weights:
        among = "" if layers is None and not exclude else " among the layers that are chosen"
        raise UserError(f"{type(model).__name__} has no weights to prune{among}")
    if layers is None:
        _tell_what_stays(model, weights)
    config = PruningConfig(scope=scope, iterations=iterations)
    evaluate = _LossOf(model, loss, seed)
    # The flow has a copy of the model, which all rounds share.
    flow = functools.cache(lambda: _flow(model, _inputs_of(model, evaluate)))

    def objectives(iteration: int) -> Mapping[str, Objective]:  # noqa: ARG001 (each round sees the same batch)
        scores = stream("pruning scores", seed)
        return {"": Objective(evaluate.differentiable, lambda weights: flow()(weights), scores)}

    # Fused attention has no second derivative, which GraSP needs, and inference mode has no derivative.
    with sdpa_kernel(SDPBackend.MATH), torch.inference_mode(False):
        return prune_networks(objectives, {"": weights}, method, sparsity, config)[""]


def report(masks: Mapping[str, Tensor]) -> str:
    """A line for each of the `masks` of :func:`prune`, then for all: weights kept, of how many, the share."""
    counts = {name: (int(mask.sum()), mask.numel()) for name, mask in masks.items()}
    counts["all"] = sum(kept for kept, _ in counts.values()), sum(n for _, n in counts.values())
    width = max(map(len, counts))
    return "\n".join(
        f"{name:{width}} {kept:12,} of {total:12,} {kept / max(total, 1):8.2%}"
        for name, (kept, total) in counts.items()
    )


def apply(model: nn.Module, masks: Mapping[str, Any]) -> None:
    """Set the weights that `masks` prunes to zero, and keep them there under any `torch.optim` optimiser.

    The gradients of pruned weights are zero from now on. After each step of an optimiser these weights are
    set to zero again, as moments from before would move them. Frozen weights obey their masks, too. `masks`
    is what :func:`prune` returns; a second call replaces the masks of the first, but weights that are zero
    stay so: to compare sparsities, prune copies of the model.

    A copy by `copy.deepcopy` has the masks, too. Files have not, neither of `state_dict` nor of the model
    itself: save the masks beside them, and apply them again to a model that was read, or whose parameters
    were replaced by `load_state_dict(…, assign=True)`. If several processes train one model (DDP), prune in
    one of them and send the masks to the others.

    Raises:
        UserError: a mask names no parameter of `model`, has another shape, or other values than 0 and 1.
    """
    must_be("a torch.nn.Module", isinstance(model, nn.Module), model=model)
    parameters = {_bare(name): θ for name, θ in model.named_parameters(remove_duplicate=False)}
    chosen = {name: (parameters.get(_bare(name)), torch.as_tensor(mask)) for name, mask in masks.items()}
    for name, (θ, mask) in chosen.items():
        if θ is None or θ.shape != mask.shape:
            has = "no such parameter" if θ is None else f"one of shape {tuple(θ.shape)}"
            raise UserError(f"mask {name!r} has shape {tuple(mask.shape)}, the model has {has}")
        if not ((mask == 0) | (mask == 1)).all():
            raise UserError(f"mask {name!r} has other values than 0 and 1; give 1 where a weight is kept")
    for θ, mask in chosen.values():
        assert θ is not None
        _constrain(θ, ~mask.bool())
    _watch_optimizers()


def _bare(name: str) -> str:
    """A parameter's name without what `torch.compile` and DDP put before it."""
    return re.sub(r"(^|\.)(_orig_mod|module)(?=\.)", "", name).lstrip(".")


class _Mask:
    """A parameter's mask: hook of its gradients, and its `__deepcopy__`, as PyTorch's copies have no hooks.

    It does not keep its parameter alive, and stays behind when that is pickled.
    """

    def __init__(self, owner: nn.Parameter, pruned: Tensor) -> None:
        self.owner, self.pruned = weakref.ref(owner), pruned

    def on(self, device: torch.device) -> Tensor:
        if self.pruned.device != device:
            self.pruned = self.pruned.to(device)
        return self.pruned

    def gradient(self, gradient: Tensor) -> Tensor:
        return gradient.masked_fill(self.on(gradient.device), 0.0)

    def __call__(self, memo: dict[int, Any]) -> nn.Parameter:
        owner = self.owner()
        assert owner is not None
        copied: nn.Parameter = type(owner).__deepcopy__(owner, memo)
        _constrain(copied, self.pruned)
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


def _constrain(parameter: nn.Parameter, pruned: Tensor) -> None:
    """Have the parameter, and copies of it, obey its mask."""
    if own := _mask_of(parameter):
        own.pruned = pruned
    else:
        own = _Mask(parameter, pruned)
        frozen = not parameter.requires_grad
        parameter.requires_grad_()  # a frozen parameter takes no hook, but keeps one
        parameter.register_hook(own.gradient)
        parameter.requires_grad_(not frozen)
        parameter.__deepcopy__ = own  # type: ignore[method-assign]
    _zero(parameter)


def _mask_of(parameter: Tensor) -> _Mask | None:
    own = vars(parameter).get("__deepcopy__")
    return own if isinstance(own, _Mask) else None


@torch.no_grad()
def _zero(parameter: Tensor) -> None:
    if own := _mask_of(parameter):
        parameter.masked_fill_(own.on(parameter.device), 0.0)


@functools.cache
def _watch_optimizers() -> None:
    """From the first call on, have every optimiser end its steps by setting pruned weights to zero."""
    register_optimizer_step_post_hook(_after_step)


def _after_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            _zero(parameter)


class _LossOf(nn.Module):
    """A loss of a model as a module, so that `functional_call` can replace the model's weights in it."""

    def __init__(self, model: nn.Module, loss: Callable[[nn.Module], Tensor], seed: int) -> None:
        super().__init__()
        self.model, self.loss, self.seed = model, loss, seed

    def forward(self) -> Tensor:
        value = self.loss(self.model)
        if not isinstance(value, Tensor) or value.numel() != 1:
            given = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise UserError(f"loss(model) returned {given}; return a tensor with a single number")
        return value.reshape(())

    def differentiable(self, weights: Weights) -> Tensor:
        """The loss with other weights, on which it has to depend: else all scores would be zero."""
        checkpointing = "the loss uses activation checkpointing, which needs the weights again; turn it off"
        with torch.autograd.graph.disable_saved_tensors_hooks(checkpointing):
            value = self.of_weights(weights)
        if not value.requires_grad:
            raise UserError("loss(model) does not depend on the weights; return a loss with gradients")
        return value

    def of_weights(self, weights: Weights) -> Tensor:
        """The loss with other weights, always with the same dropout and other random numbers of PyTorch's.

        Normalisations update copies of their running means.
        """
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            own = {f"model.{name}": θ for name, θ in weights.items()}
            value: Tensor = functional_call(self, _replaced(self, own), (), tie_weights=False)
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
    """R = 1ᵀ(∏ θ)1 of SynFlow: the model's outputs for inputs of one, summed, and scaled to 1.

    As in the authors' code, the model is linear on its way: other parameters count by their absolute values,
    biases are zero, and normalisations compute as in inference. R grows with the depth, beyond float32.
    """
    linear = copy.deepcopy(model).eval().double()
    with torch.no_grad():
        for name, parameter in linear.named_parameters():
            parameter.mul_(0 if "bias" in name.rpartition(".")[2] else parameter.sign())
    arguments, keywords = inputs
    ones = tuple(map(_ones, arguments)), {name: _ones(value) for name, value in keywords.items()}

    def flow(weights: Weights) -> Tensor:
        own = {name: θ.double() for name, θ in weights.items()}
        outputs = functional_call(linear, _replaced(linear, own), *ones, tie_weights=False)
        sums = [output.sum() for output in _tensors(outputs)]
        R = torch.stack(sums).sum() if sums else torch.zeros(())
        if not 0 < R < math.inf:
            raise UserError(f"{NOT_LINEAR} (the sum of its outputs is {R:.3g}); use snip or grasp")
        return R / R.detach()

    return flow


def _ones(given: Any) -> Any:
    """Of one example, if the model is given a tensor: doubles, or whole numbers where these are given."""
    if not isinstance(given, Tensor):
        return given
    ones = torch.ones_like(given[:1])
    return ones.double() if ones.is_floating_point() else ones


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
