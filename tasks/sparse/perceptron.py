"""A pruned perceptron that computes with its kept weights alone: what pruning saves in training, on a CPU.

To a sparse network its layers are a graph of units: a unit's output is relu(b + Σ w · source) over its kept
weights, in whatever layer their sources are. Units from which no output can be reached are left out. That is
exact, also in training: they have no effect, and their parameters no gradient.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from tasks.sparse import kernels
from tasks.sparse.kernels import FEW, LANES, Floats, Indices

_WORTH_LANES = 48
"""So many rows take as long in blocks of :data:`FEW` as in one of :data:`LANES`."""
_NOT_SHARED = np.empty(0, np.int32), np.empty((0, LANES + 1), np.float32)
"""No unit's sum has begun."""


@dataclass(frozen=True)
class SparsePerceptron:
    """The structure of hidden layers with a ReLU after each, and of linear heads that read the last of them.

    Units are numbered: inputs, then those of the hidden layers in order, then the heads'. Parameters are one
    vector: the kept weights, by unit, then a bias for each unit that is no input.
    """

    layers: tuple[str, ...]
    """Names, heads last."""
    places: Mapping[str, tuple[Tensor, Tensor]]
    """Input and output index of each kept weight of a layer's (in, out), in the order of parameters."""
    live: Mapping[str, Tensor]
    """Indices of a layer's outputs that are units of this graph."""
    heads: tuple[int, ...]
    """Outputs of each head."""
    inputs: int
    first_units: int
    """Of the first hidden layer."""
    pointers: Indices
    """Those weights of computed unit u are at `pointers[u]` to `pointers[u + 1]`, …"""
    sources: Indices
    """… and come from these units."""
    target_pointers: Indices
    """Those that go out of unit u are at `target_pointers[u]` to `target_pointers[u + 1]`, …"""
    targets: Indices
    """… lead to these units, …"""
    order: Indices
    """… and have these positions among the parameters."""

    @classmethod
    def of(
        cls, hidden: Sequence[str], heads: Sequence[str], masks: Mapping[str, Tensor]
    ) -> "SparsePerceptron":
        """The graph of what masks (in, out) keep."""
        live = _live_outputs(hidden, heads, masks)
        layers = (*hidden, *heads)
        inputs = len(masks[layers[0]])
        places: dict[str, tuple[Tensor, Tensor]] = {}
        sources, units = [], []
        read, read_first = (
            torch.arange(inputs),
            0,
        )  # what a layer reads: indices there, and the first one's unit
        first = inputs
        for layer in layers:
            # By output, then by input.
            output, source = masks[layer][read][:, live[layer]].T.nonzero(as_tuple=True)
            places[layer] = read[source], live[layer][output]
            sources.append(read_first + source)
            units.append(first + output)
            if layer in hidden:
                read, read_first = live[layer], first
            first += len(live[layer])
        origin, owner = torch.cat(sources).numpy(), torch.cat(units).numpy()
        order = origin.argsort(stable=True)
        return cls(
            layers,
            places,
            live,
            tuple(masks[head].shape[1] for head in heads),
            inputs,
            len(live[layers[0]]),
            _pointers(owner - inputs, first - inputs),
            origin.astype(np.int32),
            _pointers(origin, first),
            owner[order].astype(np.int32),
            order.astype(np.int32),
        )

    def gather(self, weights: Mapping[str, Tensor], biases: Mapping[str, Tensor]) -> Tensor:
        """The parameters that weights (1, in, out) and biases (1, 1, out) by layer hold."""
        kept = [weights[layer][0, *self.places[layer]] for layer in self.layers]
        return torch.cat(kept + [biases[layer][0, 0, self.live[layer]] for layer in self.layers])

    def scatter(
        self, parameters: Tensor, weights: Mapping[str, Tensor], biases: Mapping[str, Tensor]
    ) -> None:
        """The inverse of :meth:`gather`: write parameters where they belong."""
        sizes = [len(self.places[layer][0]) for layer in self.layers]
        sizes += [len(self.live[layer]) for layer in self.layers]
        own = parameters.split(sizes)
        for layer, kept, bias in zip(self.layers, own, own[len(self.layers) :], strict=False):
            weights[layer][0, *self.places[layer]] = kept
            biases[layer][0, 0, self.live[layer]] = bias

    def __call__(self, parameters: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Each head's output, (1, batch, out), of one or two inputs side by side, (1, batch, in) each.

        The first of two may have n times fewer rows, (1, batch / n, in): each is for n of the other's.
        """
        if torch.is_grad_enabled() and any(each.requires_grad for each in (parameters, *inputs)):
            y: Tensor = _Perceptron.apply(self, parameters, *inputs)  # type: ignore[no-untyped-call]
        else:
            y = torch.from_numpy(self.infer(_array(parameters), *(_array(x[0]) for x in inputs)))[None]
        return y.split(self.heads, dim=-1) if len(self.heads) > 1 else (y,)

    def infer(self, parameters: Floats, *inputs: Floats) -> Floats:
        """Outputs (batch, sum of heads) of inputs (batch, in), with nothing kept for gradients."""
        if len(inputs[0]) == len(inputs[-1]):
            return self._infer(parameters, _side_by_side(inputs), *_NOT_SHARED)
        shared, x = inputs
        rows, n = len(shared), len(x) // len(shared)
        # What is alike in n rows is summed up once. Rows that differ in it follow each other from here on.
        starts = np.empty(self.first_units, np.int32)
        sums = _rooms.take((self.first_units, rows + LANES))
        units = _rooms.take((self.units, LANES))
        kernels.share(self.pointers, self.sources, parameters, shared, units, starts, sums)
        _rooms.give_back(units)
        by_sample = x.reshape(rows, n, -1).swapaxes(0, 1).reshape(len(x), -1)
        y = self._infer(parameters, by_sample, starts, sums)
        _rooms.give_back(sums)
        return y.reshape(n, rows, -1).swapaxes(0, 1).reshape(len(x), -1)

    def _infer(self, parameters: Floats, x: Floats, starts: Indices, sums: Floats) -> Floats:
        y = np.empty((len(x), sum(self.heads)), np.float32)
        few = len(x) % LANES
        if few > _WORTH_LANES:
            few = 0
        many = len(x) - few
        for kernel, lanes, first, end in (
            (kernels.forward, LANES, 0, many),
            (kernels.forward_few, FEW, many, len(x)),
        ):
            if first < end:
                units = _rooms.take((1, self.units, lanes))
                kernel(self.pointers, self.sources, parameters, starts, sums, x, first, units, y[first:end])
                _rooms.give_back(units)
        return y

    @property
    def units(self) -> int:
        """Inputs too."""
        return self.inputs + len(self.pointers) - 1


class _Perceptron(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, graph: SparsePerceptron, parameters: Tensor, *inputs: Tensor) -> Tensor:
        x = _side_by_side([_array(each[0]) for each in inputs])
        y = np.empty((len(x), sum(graph.heads)), np.float32)
        ctx.units = _rooms.take((-(-len(x) // LANES) + 1, graph.units, LANES))  # the last for gradients
        kernels.forward(
            graph.pointers, graph.sources, _array(parameters), *_NOT_SHARED, x, 0, ctx.units[:-1], y
        )
        ctx.save_for_backward(parameters)
        ctx.graph, ctx.shapes = graph, [each.shape for each in inputs]
        return torch.from_numpy(y)[None]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.units is None:
            raise RuntimeError(
                "a sparse perceptron's units are gone after a backward pass; run it forward again"
            )
        graph: SparsePerceptron = ctx.graph
        (parameters,) = ctx.saved_tensors
        dy = gradients[0][0].contiguous()
        d_parameters = torch.zeros_like(parameters)
        sizes = [size for _, _, size in ctx.shapes]
        wanted = ctx.needs_input_grad[2:]
        # Of the inputs from the first one on whose gradient is asked for.
        dx = dy.new_empty(len(dy), sum(sizes[wanted.index(True) :]) if any(wanted) else 0)
        kernels.backward(
            graph.pointers,
            graph.sources,
            graph.target_pointers,
            graph.targets,
            graph.order,
            _array(parameters),
            ctx.units[:-1],
            ctx.units[-1],
            _array(dy),
            _array(d_parameters),
            _array(dx),
        )
        _rooms.give_back(ctx.units)
        ctx.units = None  # not to be read again: the next perceptron writes there
        return None, d_parameters, *_input_gradients(dx, ctx.shapes, wanted)


def _input_gradients(dx: Tensor, shapes: Sequence[torch.Size], wanted: Sequence[bool]) -> list[Tensor | None]:
    """Of each input, (1, rows, in), given those of the inputs from the first wanted one on, side by side."""
    gradients: list[Tensor | None] = [None] * len(shapes)
    column = 0
    for i in range(wanted.index(True) if any(wanted) else len(shapes), len(shapes)):
        _, rows, size = shapes[i]
        gradients[i] = dx[:, column : column + size].unflatten(0, (rows, -1)).sum(1)[None]
        column += size
    return gradients


class _Rooms:
    """Memory for units that is used again and again, in huge pages where the system gives them.

    In pages of 4 kB each weight's source is a page of its own, more than a processor knows the addresses of:
    the decoder's forward pass takes 0.20 ms in huge pages and 0.35 without (100 rows, 55,396 kept weights).
    New ones are not worth it, as each is cleared first.
    """

    huge_page = 2**21 // 4
    """Floats."""

    def __init__(self) -> None:
        self.free: list[Floats] = []
        self._of_owner: dict[int, Floats] = {}
        """By id of the array that owns a room's memory, which is the base of every view of it."""

    def take(self, shape: tuple[int, ...]) -> Floats:
        """An array of undefined values."""
        floats = math.prod(shape)
        enough = (i for i, room in enumerate(self.free) if room.size >= floats)
        i = next(enough, None)
        room = self._new(floats) if i is None else self.free.pop(i)
        return room[:floats].reshape(shape)

    def give_back(self, array: Floats) -> None:
        """Let others have it."""
        self.free.append(self._of_owner[id(array.base)])

    def _new(self, floats: int) -> Floats:
        # NumPy asks for huge pages from 4 MB on; they begin at multiples of their size.
        pages = max(2, -(-floats // self.huge_page) + 1)
        owner = np.empty(pages * self.huge_page, np.float32)
        room = owner[-owner.ctypes.data // 4 % self.huge_page :]
        self._of_owner[id(owner)] = room
        return room


_rooms = _Rooms()


def _live_outputs(
    hidden: Sequence[str], heads: Sequence[str], masks: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Indices of each layer's outputs that a head depends on."""
    live = {head: torch.arange(masks[head].shape[1]) for head in heads}
    readers = heads
    for layer in reversed(hidden):
        leads_on = torch.stack([masks[reader][:, live[reader]].any(dim=1) for reader in readers])
        live[layer] = leads_on.any(dim=0).nonzero().flatten()
        readers = [layer]
    return live


def _pointers(owners: NDArray[np.int64], count: int) -> Indices:
    """Where each of `count` owners' entries begin among entries sorted by owner."""
    return np.concatenate([[0], np.bincount(owners, minlength=count).cumsum()]).astype(np.int32)


def _side_by_side(inputs: Sequence[Floats]) -> Floats:
    """(batch, sum of in), rows of the first repeated as often as it takes."""
    if len(inputs) == 1:
        return inputs[0]
    first, second = inputs
    if len(first) < len(second):
        first = first.repeat(len(second) // len(first), axis=0)
    return np.concatenate([first, second], axis=1)


def _array(tensor: Tensor) -> Floats:
    array: Floats = tensor.detach().contiguous().numpy()
    return array
