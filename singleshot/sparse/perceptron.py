"""A pruned perceptron that computes with its kept weights only, so that pruning saves training time on a CPU.

The layers of a sparse network form a graph of units: a unit's output is relu(b + Σ w · source) over its kept
weights, whatever layers their sources are in. Units from which no output can be reached are left out. This is
exact, also in training: such units have no effect, and their parameters have no gradient.
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

from singleshot.errors import must_be
from singleshot.sparse import kernels
from singleshot.sparse.kernels import FEW, LANES, WORTH_LANES, Adjacency, Floats, Indices


@dataclass(frozen=True)
class SparsePerceptron:
    """The structure of hidden layers, each with a ReLU, and of linear heads that read the last hidden layer.

    Units are numbered: the inputs, then the units of the hidden layers in order, then those of the heads. The
    parameters are one vector: the kept weights, by unit, then a bias for each unit that is not an input.
    """

    layers: tuple[str, ...]
    """Names of the layers, heads last."""
    kept: Mapping[str, tuple[Tensor, Tensor]]
    """Input and output indices of the kept weights of each layer (in, out), in the order of parameters."""
    live: Mapping[str, Tensor]
    """Indices of each layer's outputs that are units of this graph."""
    heads: tuple[int, ...]
    """Number of outputs of each head."""
    inputs: int
    first_units: int
    """Number of units of the first layer."""
    matrix: Adjacency

    @classmethod
    def of(
        cls, hidden: Sequence[str], heads: Sequence[str], masks: Mapping[str, Tensor]
    ) -> "SparsePerceptron":
        """Build the graph of the weights that the masks (in, out) keep."""
        live = _live_outputs(hidden, heads, masks)
        layers = (*hidden, *heads)
        inputs = len(masks[layers[0]])
        kept: dict[str, tuple[Tensor, Tensor]] = {}
        sources, units = [], []
        # The outputs that a layer reads: their indices in their own layer, and the unit number of the first.
        read, read_first = torch.arange(inputs), 0
        first = inputs
        for layer in layers:
            # Sorted by output, then by input.
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
        """Collect the parameters from the weights (1, in, out) and biases (1, 1, out) of each layer."""
        kept = [weights[layer][0, *self.kept[layer]] for layer in self.layers]
        return torch.cat(kept + [biases[layer][0, 0, self.live[layer]] for layer in self.layers])

    def scatter(
        self, parameters: Tensor, weights: Mapping[str, Tensor], biases: Mapping[str, Tensor]
    ) -> None:
        """Write the parameters into weights and biases; the inverse of :meth:`gather`."""
        sizes = [len(self.kept[layer][0]) for layer in self.layers]
        sizes += [len(self.live[layer]) for layer in self.layers]
        own = parameters.split(sizes)
        for layer, kept, bias in zip(self.layers, own, own[len(self.layers) :], strict=False):
            weights[layer][0, *self.kept[layer]] = kept
            biases[layer][0, 0, self.live[layer]] = bias

    def __call__(self, parameters: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Each head's output (1, batch, out) for one input or two side by side, (1, batch, in) each.

        The first of two inputs may have n times fewer rows, (1, batch / n, in), each of which is used for n
        consecutive rows of the second.
        """
        must_be("inputs (1, batch, in)", all(x.ndim == 3 and len(x) == 1 for x in inputs), inputs=inputs)
        if torch.is_grad_enabled() and any(each.requires_grad for each in (parameters, *inputs)):
            y: Tensor = _Perceptron.apply(self, parameters, *inputs)  # type: ignore[no-untyped-call]
        else:
            y = torch.from_numpy(self.infer(to_array(parameters), *(to_array(x)[0] for x in inputs))[None])
        return y.split(self.heads, dim=-1) if len(self.heads) > 1 else (y,)

    def infer(self, parameters: Floats, *inputs: Floats) -> Floats:
        """Outputs (batch, sum of heads) for inputs (batch, in), without keeping anything for gradients."""
        x, z = self.pair(inputs, parameters)
        if len(z) == 1:
            one: Floats = kernels.forward_one(
                self.matrix.indptr, self.matrix.indices, parameters, x, z, sum(self.heads)
            )
            return one
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

    def forward_pass(self, parameters: Floats, *inputs: Floats) -> "ForwardPass":
        """A forward pass of one or two inputs (batch, in) that can be differentiated once."""
        return ForwardPass(self, parameters, *inputs)

    def pair(self, inputs: Sequence[Floats], parameters: Floats) -> tuple[Floats, Floats]:
        """Two inputs; a single input becomes the second, after a first one without columns.

        Raises:
            UserError: inputs or parameters don't fit, so that kernels would read beyond them.
        """
        z = inputs[-1]
        x = inputs[0] if len(inputs) == 2 else np.empty((len(z), 0), np.float32)
        right = (
            x.ndim == z.ndim == 2
            and x.dtype == z.dtype == np.float32
            and x.shape[1] + z.shape[1] == self.inputs
            and (len(z) == 0 if len(x) == 0 else len(z) % len(x) == 0)
            and parameters.shape == (len(self.matrix.indices) + len(self.matrix.indptr) - 1,)
        )
        if not right:  # before any words are made: for a single row, they take as long as its units
            wanted = f"float32 inputs of {self.inputs} columns, and their parameters"
            must_be(wanted, False, inputs=[x.shape, z.shape])
        return x, z

    @property
    def units(self) -> int:
        """Number of units, inputs among them."""
        return self.inputs + len(self.matrix.indptr) - 1


class ForwardPass:
    """A forward pass of one or two inputs (batch, in) through a perceptron, and at most one backward pass."""

    def __init__(self, graph: SparsePerceptron, parameters: Floats, *inputs: Floats) -> None:
        self.graph, self.parameters = graph, parameters
        x, z = graph.pair(inputs, parameters)
        self.y = np.empty((len(z), sum(graph.heads)), np.float32)
        """Outputs (batch, sum of heads)."""
        self._units: Floats | None = workspaces.take((-(-len(z) // LANES), graph.units, LANES))
        kernels.forward(
            graph.matrix, parameters, x, z, kernels.NO_STARTS, kernels.NO_SUMS, 0, len(z), self._units, self.y
        )

    def back(self, dy: Floats, inputs: int = 0, parameters: bool = True) -> tuple[Floats, Floats]:
        """Gradients of the parameters, if wanted, and of the last `inputs` input units, (batch, inputs).

        Raises:
            RuntimeError: there was a backward pass before.
        """
        if self._units is None:
            raise RuntimeError(
                "a sparse perceptron's units are gone after a backward pass; run it forward again"
            )
        d_parameters = np.zeros(len(self.parameters) if parameters else 0, np.float32)
        dx = np.empty((len(dy), inputs), np.float32)
        kernels.backward(self.graph.matrix, self.parameters, self._units, dy, d_parameters, dx)
        workspaces.give_back(self._units)
        self._units = None  # must not be read again: gradients are there now, and soon the next pass
        return d_parameters, dx


class _Perceptron(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, graph: SparsePerceptron, parameters: Tensor, *inputs: Tensor) -> Tensor:
        arrays = [to_array(x[0]) for x in inputs]
        ctx.n = len(arrays[-1]) // len(arrays[0]) if len(arrays[0]) else 1
        arrays[0] = arrays[0].repeat(ctx.n, axis=0)
        ctx.sizes = [x.shape[1] for x in arrays]
        ctx.forward_pass = ForwardPass(graph, to_array(parameters), *arrays)
        ctx.save_for_backward(parameters)  # so that PyTorch raises an error if they have changed
        return torch.from_numpy(ctx.forward_pass.y)[None]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        _ = ctx.saved_tensors
        _, parameters, *wanted = ctx.needs_input_grad
        sizes = ctx.sizes if any(wanted) else [0] * len(wanted)
        d_parameters, dx = ctx.forward_pass.back(to_array(gradients[0][0]), sum(sizes), parameters)
        first, *others = torch.from_numpy(dx)[None].split(sizes, dim=-1)
        each = first.unflatten(1, (-1, ctx.n)).sum(2), *others
        return (
            None,
            torch.from_numpy(d_parameters) if parameters else None,
            *(dx if own else None for dx, own in zip(each, wanted, strict=True)),
        )


class _Workspaces:
    """Reusable memory for units, in huge pages where the system provides them.

    With pages of 4 kB, each weight's source is in a page of its own, more pages than a processor keeps the
    addresses of: the decoder's forward pass takes 0.20 ms with huge pages and 0.35 ms without (100 rows,
    55,396 kept weights). New huge pages for each pass are not worth it, because the system clears each of
    them first.
    """

    huge_page = 2**21 // 4
    """Size of a huge page, in floats."""

    def __init__(self) -> None:
        self.free: list[Floats] = []

    def take(self, shape: tuple[int, ...]) -> Floats:
        """Take an array with undefined values."""
        floats = math.prod(shape)
        enough = next((i for i, own in enumerate(self.free) if own.size >= floats + self.huge_page), None)
        # NumPy asks for huge pages from 4 MB on; they begin at multiples of their size.
        pages = max(2, -(-floats // self.huge_page) + 1)
        workspace = np.empty(pages * self.huge_page, np.float32) if enough is None else self.free.pop(enough)
        first = -workspace.__array_interface__["data"][0] // 4 % self.huge_page
        return workspace[first : first + floats].reshape(shape)

    def give_back(self, *arrays: Floats) -> None:
        """Make arrays from :meth:`take` available again."""
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
    """Where the entries of each of `count` owners begin among entries sorted by owner."""
    return np.concatenate([[0], np.bincount(owners, minlength=count).cumsum()]).astype(np.int32)


def to_array(tensor: Tensor) -> Floats:
    """The tensor as an array, in the same memory if it is contiguous."""
    array: Floats = tensor.detach().contiguous().numpy()
    return array
