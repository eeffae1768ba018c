"""A linear layer whose parameters are its kept weights alone: what a pruned network costs less, on a CPU.

Measured on one thread of a Xeon with AVX-512, 750×750 at 95 % sparsity and a batch of 100: forward 0.19 ms,
gradient of the input 0.17 ms, of the weights 0.30 ms; dense 0.78, 0.83 and 0.80 ms. At 90 % it takes 0.38,
0.36 and 0.63 ms.
"""

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# PyTorch calls its CSR tensors beta, once a process.
warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")


@dataclass(frozen=True)
class Pattern:
    """Which entries of a weight matrix (in, out) are kept.

    Kept values are ordered as in the compressed rows of the transposed matrix, (out, in); `order` gives the
    position among them of each entry in the compressed rows of (in, out).
    """

    inputs: int
    outputs: int
    pointers: Tensor
    columns: Tensor
    transposed_pointers: Tensor
    transposed_columns: Tensor
    order: Tensor

    @classmethod
    def of(cls, mask: Tensor) -> "Pattern":
        """The pattern of a bool mask (in, out)."""
        inputs, outputs = mask.shape
        rows, columns = mask.t().nonzero(as_tuple=True)
        # Sorted by column, and within a column by row: the entries in the order of (in, out)'s rows.
        order = columns.argsort(stable=True)
        return cls(
            inputs,
            outputs,
            _pointers(rows, outputs),
            columns.int(),
            _pointers(columns, inputs),
            rows[order].int(),
            order,
        )

    def gather(self, dense: Tensor) -> Tensor:
        """The kept values, (kept,), of a matrix (in, out)."""
        rows = torch.arange(self.outputs).repeat_interleave(self.pointers.diff())
        return dense.t()[rows, self.columns.long()]

    def scatter(self, values: Tensor) -> Tensor:
        """A matrix (in, out) with `values`, (kept,), in their places and zeros elsewhere."""
        return self.matrix(values).to_dense().t().contiguous()

    def matrix(self, values: Tensor) -> Tensor:
        """Sparse (out, in)."""
        return torch.sparse_csr_tensor(
            self.pointers, self.columns, values, (self.outputs, self.inputs), check_invariants=False
        )

    def transposed_matrix(self, values: Tensor) -> Tensor:
        """Sparse (in, out)."""
        return torch.sparse_csr_tensor(
            self.transposed_pointers,
            self.transposed_columns,
            values[self.order],
            (self.inputs, self.outputs),
            check_invariants=False,
        )


def sparse_linear(values: Tensor, bias: Tensor, pattern: Pattern, x: Tensor) -> Tensor:
    """x W + b for a W (in, out) of `pattern` with kept `values`, (kept,): (batch, in) to (batch, out).

    The result is a transposed view of (out, batch), as the next sparse layer reads its input: between sparse
    layers nothing is copied.
    """
    result: Tensor = _SparseLinear.apply(values, bias, x, pattern)  # type: ignore[no-untyped-call]
    return result


class _SparseLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, bias: Tensor, x: Tensor, pattern: Pattern) -> Tensor:
        x_T = x.t().contiguous()
        ctx.save_for_backward(values, x_T)
        ctx.pattern = pattern
        bias_T = bias[:, None].expand(-1, len(x))
        return torch.addmm(bias_T, pattern.matrix(values), x_T).t()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        values, x_T = ctx.saved_tensors
        pattern: Pattern = ctx.pattern
        dy_T = gradients[0].t().contiguous()
        d_values = d_bias = d_x = None
        if ctx.needs_input_grad[0]:
            kept = pattern.matrix(torch.zeros_like(values))
            # (dy xᵀ) at the kept entries alone.
            d_values = torch.sparse.sampled_addmm(kept, dy_T, x_T.t(), beta=0.0).values()
        if ctx.needs_input_grad[1]:
            d_bias = dy_T.sum(1)
        if ctx.needs_input_grad[2]:
            d_x = (pattern.transposed_matrix(values) @ dy_T).t()
        return d_values, d_bias, d_x, None


def _pointers(rows: Tensor, count: int) -> Tensor:
    """Where each of `count` rows begins among entries sorted by `rows`."""
    return torch.nn.functional.pad(torch.bincount(rows, minlength=count).cumsum(0), (1, 0)).int()
