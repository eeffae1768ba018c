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
from tasks.sparse.kernels import FEW, LANES, WORTH_LANES, Adjacency, Floats, Indices


@dataclass(frozen=True)
class SparsePerceptron:
    """The structure of hidden layers with a ReLU after each, and of linear heads that read the last of them.

    Units are numbered: inputs, then those of the hidden layers in order, then the heads'. Parameters are one
    vector: the kept weights, by unit, then a bias for each unit that is no input.
    """

    layers: tuple[str, ...]
    """Names, heads last."""
    kept: Mapping[str, tuple[Tensor, Tensor]]
    """Input and output index of each kept weight of a layer's (in, out), in the order of parameters."""
    live: Mapping[str, Tensor]
    """Indices of a layer's outputs that are units of this graph."""
    heads: tuple[int, ...]
    """Outputs of each head."""
    inputs: int
    first_units: int
    """Units of the first layer."""
    matrix: Adjacency

    @classmethod
    def of(
        cls, hidden: Sequence[str], heads: Sequence[str], masks: Mapping[str, Tensor]
    ) -> "SparsePerceptron":
        """The graph of what masks (in, out) keep."""
        live = _live_outputs(hidden, heads, masks)
        layers = (*hidden, *heads)
        inputs = len(masks[layers[0]])
        kept: dict[str, tuple[Tensor, Tensor]] = {}
        sources, units = [], []
        # What a layer reads: indices there, and the unit that the first one is.
        read, read_first = torch.arange(inputs), 0
        first = inputs
        for layer in layers:
            # By output, then by input.
            output, source = masks[layer][read][:, live[layer]].T.nonzero(as_tuple=True)
            kept[layer] = read[source], live[layer][output]
            sources.append(read_first + source)
            units.append(first + output)
            if layer in hidden:
                read, read_first = live[layer], first
            first += len(live[layer])
        origin, owner = torch.cat(sources).numpy(), torch.cat(units).numpy()
        order = origin.argsort(stable=True)
        return cls(
            layers,
            kept,
            live,
            tuple(masks[head].shape[1] for head in heads),
            inputs,
            len(live[layers[0]]),
            Adjacency(
                _indptr(owner - inputs, first - inputs),
                origin.astype(np.int32),
                _indptr(origin, first),
                owner[order].astype(np.int32),
                order.astype(np.int32),
            ),
        )

    def gather(self, weights: Mapping[str, Tensor], biases: Mapping[str, Tensor]) -> Tensor:
        """The parameters that weights (1, in, out) and biases (1, 1, out) by layer hold."""
        kept = [weights[layer][0, *self.kept[layer]] for layer in self.layers]
        return torch.cat(kept + [biases[layer][0, 0, self.live[layer]] for layer in self.layers])

    def scatter(
        self, parameters: Tensor, weights: Mapping[str, Tensor], biases: Mapping[str, Tensor]
    ) -> None:
        """The inverse of :meth:`gather`: write parameters where they belong."""
        sizes = [len(self.kept[layer][0]) for layer in self.layers]
        sizes += [len(self.live[layer]) for layer in self.layers]
        own = parameters.split(sizes)
        for layer, kept, bias in zip(self.layers, own, own[len(self.layers) :], strict=False):
            weights[layer][0, *self.kept[layer]] = kept
            biases[layer][0, 0, self.live[layer]] = bias

    def __call__(self, parameters: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Each head's output, (1, batch, out), of one or two inputs side by side, (1, batch, in) each.

        The first of two may have n times fewer rows, (1, batch / n, in): each is for n of the other's.
        """
        if torch.is_grad_enabled() and any(each.requires_grad for each in (parameters, *inputs)):
            y: Tensor = _Perceptron.apply(self, parameters, *inputs)  # type: ignore[no-untyped-call]
        else:
            y = torch.from_numpy(self.infer(to_array(parameters), *(to_array(x[0]) for x in inputs)))[None]
        return y.split(self.heads, dim=-1) if len(self.heads) > 1 else (y,)

    def infer(self, parameters: Floats, *inputs: Floats) -> Floats:
        """Outputs (batch, sum of heads) of inputs (batch, in), with nothing kept for gradients."""
        x, z = _pair(inputs)
        y = np.empty((len(z), sum(self.heads)), np.float32)
        units = workspaces.take((1, self.units, LANES))
        starts, sums = kernels.NO_STARTS, kernels.NO_SUMS
        if len(x) < len(z):
            starts = np.empty(self.first_units, np.int32)
            sums = workspaces.take((self.first_units, len(x) + LANES))
            kernels.share(self.matrix, parameters, x, units, starts, sums)
        many = len(z) - (len(z) % LANES if len(z) % LANES <= WORTH_LANES else 0)
        kernels.forward(self.matrix, parameters, x, z, starts, sums, 0, many, units, y)
        if many < len(z):
            few = units.reshape(-1)[: self.units * FEW].reshape(1, self.units, FEW)
            kernels.forward_few(self.matrix, parameters, x, z, starts, sums, many, len(z), few, y)
        workspaces.give_back(units)
        if len(x) < len(z):
            workspaces.give_back(sums)
        return y

    @property
    def units(self) -> int:
        """Number of units, inputs among them."""
        return self.inputs + len(self.matrix.indptr) - 1


class ForwardPass:
    """A batch's way through a perceptron, and back once: inputs are (batch, in), and there are one or two."""

    def __init__(self, graph: SparsePerceptron, parameters: Floats, *inputs: Floats) -> None:
        self.graph, self.parameters = graph, parameters
        x, z = _pair(inputs)
        self.y = np.empty((len(z), sum(graph.heads)), np.float32)
        """Outputs (batch, sum of heads)."""
        self._units: Floats | None = workspaces.take((-(-len(z) // LANES), graph.units, LANES))
        kernels.forward(
            graph.matrix, parameters, x, z, kernels.NO_STARTS, kernels.NO_SUMS, 0, len(z), self._units, self.y
        )

    def back(self, dy: Floats, inputs: int = 0, parameters: bool = True) -> tuple[Floats, Floats]:
        """Gradients of the parameters, unless they are not wanted, and of the last inputs (batch, inputs).

        Raises:
            RuntimeError: it has been back before.
        """
        if self._units is None:
            raise RuntimeError(
                "a sparse perceptron's units are gone after a backward pass; run it forward again"
            )
        d_parameters = np.zeros(len(self.parameters) if parameters else 0, np.float32)
        dx = np.empty((len(dy), inputs), np.float32)
        workspace = workspaces.take((self.graph.units, LANES))
        kernels.backward(self.graph.matrix, self.parameters, self._units, workspace, dy, d_parameters, dx)
        workspaces.give_back(self._units, workspace)
        self._units = None  # not to be read again: the next perceptron writes there
        return d_parameters, dx


class _Perceptron(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, graph: SparsePerceptron, parameters: Tensor, *inputs: Tensor) -> Tensor:
        arrays = [to_array(x[0]) for x in inputs]
        ctx.n = len(arrays[-1]) // len(arrays[0])
        arrays[0] = arrays[0].repeat(ctx.n, axis=0)
        ctx.sizes = [x.shape[1] for x in arrays]
        ctx.forward_pass = ForwardPass(graph, to_array(parameters), *arrays)
        ctx.save_for_backward(parameters)  # which has PyTorch refuse one that has changed since
        return torch.from_numpy(ctx.forward_pass.y)[None]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        _ = ctx.saved_tensors
        wanted = ctx.needs_input_grad[2:]
        sizes = ctx.sizes if any(wanted) else [0] * len(wanted)
        d_parameters, dx = ctx.forward_pass.back(to_array(gradients[0][0]), sum(sizes))
        first, *others = torch.from_numpy(dx)[None].split(sizes, dim=-1)
        each = first.unflatten(1, (-1, ctx.n)).sum(2), *others
        return (
            None,
            torch.from_numpy(d_parameters),
            *(dx if own else None for dx, own in zip(each, wanted, strict=True)),
        )


class _Workspaces:
    """Memory for units that is used again and again, in huge pages where the system gives them.

    In pages of 4 kB each weight's source is a page of its own, more than a processor knows the addresses of:
    the decoder's forward pass takes 0.20 ms in huge pages and 0.35 without (100 rows, 55,396 kept weights).
    New ones are not worth it, as each is cleared first.
    """

    huge_page = 2**21 // 4
    """Floats."""

    def __init__(self) -> None:
        self.free: list[Floats] = []

    def take(self, shape: tuple[int, ...]) -> Floats:
        """An array of undefined values."""
        floats = math.prod(shape)
        enough = next((i for i, own in enumerate(self.free) if own.size >= floats + self.huge_page), None)
        # NumPy asks for huge pages from 4 MB on; they begin at multiples of their size.
        pages = max(2, -(-floats // self.huge_page) + 1)
        workspace = np.empty(pages * self.huge_page, np.float32) if enough is None else self.free.pop(enough)
        first = -workspace.__array_interface__["data"][0] // 4 % self.huge_page
        return workspace[first : first + floats].reshape(shape)

    def give_back(self, *arrays: Floats) -> None:
        """Let others have them."""
        for array in arrays:
            assert isinstance(array.base, np.ndarray)
            self.free.append(array.base)


workspaces = _Workspaces()


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


def _indptr(owners: NDArray[np.int64], count: int) -> Indices:
    """Where each of `count` owners' entries begin among entries sorted by owner."""
    return np.concatenate([[0], np.bincount(owners, minlength=count).cumsum()]).astype(np.int32)


def _pair(inputs: Sequence[Floats]) -> tuple[Floats, Floats]:
    """Two inputs: of a single one, as the second, with a first one of no columns."""
    if len(inputs) == 2:
        return inputs[0], inputs[1]
    return np.empty((len(inputs[0]), 0), np.float32), inputs[0]


def to_array(tensor: Tensor) -> Floats:
    """The same memory, if it is contiguous."""
    array: Floats = tensor.detach().contiguous().numpy()
    return array
