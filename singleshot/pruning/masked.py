"""Masks in force: :func:`apply` has pruned weights stay zero, in training and in whatever holds them later.

A layer keeps the masks of its own parameters, so that its copies have them, too. A parameter has a hook for
its gradients alone. So one that takes another's place, as when a model is sharded, loaded by `assign` or
moved, is noticed after the next step of an optimiser, and obeys the mask from then on.
`torch.nn.utils.parametrize` would do all this, too, but renames the parameters in `state_dict`.
"""

import functools
import logging
import re
import weakref
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from singleshot.errors import UserError, explained, must_be, shown

WRAPPERS = "_orig_mod", "module", "_checkpoint_wrapped_module"
"""What `torch.compile`, DDP and activation checkpointing put before a parameter's name."""
GONE = (
    "%d masks are gone, such as that of %s, which isn't a parameter of its layer any more, or has another "
    "shape: apply masks after weight_norm and the like, and use torch.distributed.fsdp.fully_shard, not "
    "FullyShardedDataParallel"
)
FLAT = "FullyShardedDataParallel flattens weights, and masks can't follow; use fully_shard of the same module"
REPLACED = (
    "%d parameters, such as %s, have taken the places of those that had masks, and obey these from now on"
)
_HERE = "_singleshot_masks"
_layers = weakref.WeakKeyDictionary[nn.Module, None]()
logger = logging.getLogger(__name__)


def apply(model: nn.Module, masks: Mapping[str, Any]) -> None:
    """Set the weights that `masks` prunes to zero, and keep them there under any `torch.optim` optimiser.

    The gradients of pruned weights, `.grad`, are zero from now on. After each step of an optimiser these
    weights are set to zero again, because earlier moments would move them. Frozen weights obey their masks,
    too. `masks` is what :func:`~singleshot.prune` returns. A second call replaces the masks of the first, but
    weights that are zero stay zero: to compare sparsities, prune copies of the model. Call this before you
    make an optimiser that keeps a copy of the weights, such as a schedule-free or lookahead one.

    A copy by `copy.deepcopy` has the masks, too. Files have none, whether of `state_dict` or of the model
    itself: save the masks beside them, and apply them again to a model that was read. If a new parameter
    replaces one with a mask (`load_state_dict(…, assign=True)`, `to_empty`, `fully_shard`), it obeys the mask
    from the end of the next step on, and a line says so; to make it obey at once, apply the masks again. If
    several processes train one model (DDP, FSDP2), all apply the same masks.

    Raises:
        UserError: a mask names no parameter of `model`, or several, its shape differs, it has values other
            than 0 and 1, or the parameter is sharded in a way that the mask can't be.
    """
    must_be("a torch.nn.Module", isinstance(model, nn.Module), model=model)
    right = isinstance(masks, Mapping) and all(isinstance(name, str) for name in masks)
    must_be("masks by the parameter's name", right, masks=masks)
    if any(type(layer).__name__ == "FullyShardedDataParallel" for layer in model.modules()):
        raise UserError(FLAT)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    layers, chosen = dict(model.named_modules(remove_duplicate=False)), []
    first: dict[Tensor, Tensor] = {}
    for name, given in masks.items():
        with explained(f"mask {name!r} is {shown(given)}", "give a tensor of 0 and 1"):
            mask = torch.as_tensor(given)
            mask = mask if mask.layout == torch.strided else mask.to_dense()
            pruned = mask == 0
            binary = bool((pruned | (mask == 1)).all())
        own = _own_name(name, list(parameters))
        if own is None or parameters[own].shape != mask.shape:
            has = f"one of shape {tuple(parameters[own].shape)}" if own else "no such parameter"
            raise UserError(f"mask {name!r} has shape {tuple(mask.shape)}, the model has {has}")
        θ = parameters[own]
        if θ.is_inference() or θ.layout != torch.strided or 0 in θ.stride():
            raise UserError(f"mask {name!r} is of a parameter of inference mode, sparse or expanded; copy it")
        if not binary:
            raise UserError(f"mask {name!r} has values other than 0 and 1; give 1 where a weight is kept")
        if not torch.equal(first.setdefault(θ, pruned), pruned):
            raise UserError(f"mask {name!r} differs from another of the same parameter; give one of them")
        path, _, attribute = own.rpartition(".")
        new = _Mask(name, pruned)
        new.beside(θ)
        chosen.append((layers[path], attribute, new))
    for layer, attribute, new in chosen:
        held = _masks_of(layer).setdefault(attribute, new)
        vars(held).update(vars(new))
        _hold(getattr(layer, attribute), held)
    _watch_optimizers()


def _own_name(name: str, names: list[str]) -> str | None:
    """The parameter among `names` that a mask of `name` is for; wrappers may have changed either name."""
    if name in names:
        return name
    found = [each for each in names if _bare(each) == _bare(name)]
    if len(found) > 1:
        raise UserError(f"mask {name!r} may be that of {' or '.join(found)}; name one of them")
    return found[0] if found else None


def _bare(name: str) -> str:
    return re.sub(rf"(^|\.)({'|'.join(WRAPPERS)})(?=\.)", "", name).lstrip(".")


class _Mask:
    """The mask of the parameter that was called `name`."""

    def __init__(self, name: str, pruned: Tensor) -> None:
        self.name, self.pruned = name, pruned
        self._beside: tuple[Any, Tensor] = None, pruned

    def beside(self, tensor: Tensor) -> Tensor:
        """The mask in the form of this tensor, or of this process's part of it.

        On a CPU it is one of bits: `bitwise_and_` takes a third of the time of `masked_fill_`.
        """
        mesh = getattr(tensor, "device_mesh", None)
        key = tensor.device, tensor.dtype, mesh, getattr(tensor, "placements", None)
        if key != self._beside[0]:
            pruned = self.pruned.to(tensor.device)
            if mesh is not None:
                pruned = _sharded(self.name, pruned, tensor)
            if tensor.device.type == "cpu" and not tensor.is_complex():  # which may be conjugate
                bits = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}.get(tensor.itemsize)
                pruned = pruned if bits is None else pruned.to(bits) - 1
            self._beside = key, pruned
        return self._beside[1]

    @torch.no_grad()
    def zero_(self, tensor: Tensor) -> None:
        """Set the pruned entries of a parameter or its gradient to 0, whatever they were."""
        if tensor.shape != self.pruned.shape:
            raise UserError(f"{self.name} has the shape {tuple(tensor.shape)} now. {FLAT}")
        mask = self.beside(tensor)
        own = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        if mask.dtype == torch.bool:
            own.masked_fill_(mask, 0)
        else:
            own.view(mask.dtype).bitwise_and_(mask)

    def __reduce__(self) -> tuple[Any, ...]:
        return OrderedDict, ()  # files have no masks, and are read without this package, by `weights_only`

    def of_gradient(self, parameter: Tensor) -> None:
        """Hook of a parameter whose gradient is there. The hook does not know it, or it would never end."""
        if parameter.grad is not None and parameter.grad.layout == torch.strided:
            self.zero_(parameter.grad)


class _Masks(dict[str, _Mask]):
    """The masks of a layer's own parameters, which the layer keeps in its `__dict__`."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer = weakref.ref(layer)
        _layers[layer] = None

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Masks | None":
        layer = self.layer()
        if id(layer) not in memo:  # else it is copied before its attributes are
            logger.warning("a copy of a %s has no masks; apply them to it again", type(layer).__name__)
            return None
        copied = _Masks(memo[id(layer)])
        for name, mask in self.items():
            copied[name] = _Mask(mask.name, mask.pruned)
            if (parameter := memo.get(id(getattr(layer, name, None)))) is not None:
                _hold(parameter, copied[name])
        return copied

    __reduce__ = _Mask.__reduce__


def _masks_of(layer: nn.Module) -> _Masks:
    """The masks of a layer; of one that was read from a file or copied in another way, none yet."""
    own = vars(layer).get(_HERE)
    if not isinstance(own, _Masks) or own.layer() is not layer:
        own = vars(layer)[_HERE] = _Masks(layer)
    return own


def _hold(parameter: nn.Parameter, mask: _Mask) -> None:
    """Have a parameter obey a mask from now on."""
    if held := _held_by(parameter):
        vars(held).update(vars(mask))
    else:
        if parameter.is_floating_point() or parameter.is_complex():  # others have no gradients
            frozen = not parameter.requires_grad
            parameter.requires_grad_()  # a frozen parameter takes no hook, but keeps one
            # Not `register_hook`: a sharded parameter's gradient comes from elsewhere than autograd.
            parameter.register_post_accumulate_grad_hook(mask.of_gradient)
            parameter.requires_grad_(not frozen)
        vars(parameter)[_HERE] = id(parameter), mask
    mask.zero_(parameter)


def _held_by(parameter: Tensor) -> _Mask | None:
    """The mask of a parameter, which has its hook, too. `torch.utils.swap_tensors` takes away both."""
    own, mask = vars(parameter).get(_HERE, (None, None))
    return mask if own == id(parameter) else None


@functools.cache
def _watch_optimizers() -> None:
    """From the first call on, have every optimiser end its steps by setting pruned weights to zero."""
    register_optimizer_step_post_hook(torch.compiler.disable(_after_step))


def _after_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if held := _held_by(parameter):
                held.zero_(parameter)
    replaced, gone = [], []
    for layer in list(_layers):
        for name, mask in list(_masks_of(layer).items()):
            parameter = getattr(layer, name, None)
            if not isinstance(parameter, nn.Parameter) or parameter.shape != mask.pruned.shape:
                del _masks_of(layer)[name]
                gone.append(mask.name)
            elif not (held := _held_by(parameter)):
                _hold(parameter, mask)
                replaced.append(mask.name)
            elif not parameter.requires_grad:  # no optimiser has it, but a file may have been read into it
                held.zero_(parameter)
    if replaced:
        logger.warning(REPLACED, len(replaced), replaced[0])
    if gone:
        logger.warning(GONE, len(gone), gone[0])


def _sharded(name: str, pruned: Tensor, like: Any) -> Tensor:
    """This process's part of a mask, for a parameter of which each process has a part."""
    from torch.distributed.tensor import distribute_tensor

    with explained(f"the mask of {name} can't be sharded", "shard the parameter in another way"):
        # No process sends another its mask: each has all of it.
        shards = distribute_tensor(pruned, like.device_mesh, like.placements, src_data_rank=None)
        return shards.to_local()
