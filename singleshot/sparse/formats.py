"""Storage formats for sparse networks, and the bytes that unpredictable masks and values would take.

:data:`FORMATS` lists all formats, as functions from a network's tensors to the content of a file. The zero
entries are the pruned ones, so a format needs no mask. Values are float32, as trained; only `packed_fp16` and
`packed_int8` round them.
"""

import io
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

import torch
from torch import Tensor

from singleshot.io.tensor_file import TensorFile
from singleshot.sparse.packed import ValuesName, pack

Tensors = Mapping[str, Tensor]
"""A network's float32 tensors by name, as in a state dict: weights (2 axes or more) and biases (1 axis)."""


def _dense_coordinates(tensor: Tensor) -> Tensor:
    """`to_sparse()` of the network before it was pruned (Table 1, "Dense Model Sparse Indexing").

    Zeros are indexed like any value, so a pruned network takes as many bytes as its unpruned original.
    """
    indices = torch.ones_like(tensor).to_sparse().indices()
    return torch.sparse_coo_tensor(
        indices, tensor.flatten(), tensor.shape, is_coalesced=True, check_invariants=False
    )


def _compressed_rows(tensor: Tensor) -> Any:
    """CSR: int32 row pointers, then 8 bytes per kept weight, its int32 column and its value."""
    if tensor.ndim < 2:
        return tensor
    matrix = tensor.flatten(1)
    rows, columns = matrix.nonzero(as_tuple=True)
    pointers = torch.nn.functional.pad(matrix.count_nonzero(1).cumsum(0), (1, 0))
    return tensor.shape, pointers.int(), columns.int(), matrix[rows, columns]


def _torch_save(form: Callable[[Tensor], Any], tensors: Tensors) -> bytes:
    """A file written by `torch.save`, as in Arnob et al. 2021, with each tensor in the given form.

    The file format itself takes some 300 bytes per stored tensor, whatever the form.
    """
    # Saving a view writes all the memory behind it, e.g. every agent of a stack.
    owned = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    file = io.BytesIO()
    torch.save({name: form(tensor) for name, tensor in owned.items()}, file)
    return file.getvalue()


def _pack(values: ValuesName, tensors: Tensors) -> bytes:
    """A packed file (:mod:`singleshot.sparse.packed`), in which -0.0 has become +0.0."""
    return pack(TensorFile({name: tensor + 0.0 for name, tensor in tensors.items()}, {}), values)


FORMATS: Mapping[str, Callable[[Tensors], bytes]] = {
    "dense": partial(_torch_save, lambda tensor: tensor),  # 4 bytes an entry (Table 1, "Dense Model")
    "dense_sparse_indexing": partial(_torch_save, _dense_coordinates),
    # Biases included (Table 1, "95% sparse"). A kept weight takes 20 bytes, two int64 indices and its value:
    # less than `dense` only above 80 % sparsity.
    "coo": partial(_torch_save, Tensor.to_sparse),
    "csr_int32": partial(_torch_save, _compressed_rows),
    **{f"packed_{values}": partial(_pack, values) for values in get_args(ValuesName)},
}
"""The content of a file with a network, by format."""


def log2_binomial(n: int, k: int) -> float:
    """Bits needed to tell which `k` of `n` weights are kept, if all masks are equally likely."""
    return (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)) / math.log(2)


def entropy_bound_bytes(tensors: Tensors) -> int:
    """Bytes, rounded, that a network's masks and values take if all masks are equally likely.

    Telling which k of a layer's N weights are kept takes log2 C(N, k) bits; each kept value and each bias
    takes 32. A coder that exploits what masks have in common, or that few exponents are in use, needs less.
    """
    bits = 0.0
    for tensor in tensors.values():
        kept = int(tensor.count_nonzero()) if tensor.ndim >= 2 else tensor.numel()
        bits += log2_binomial(tensor.numel(), kept) + 32 * kept
    return round(bits / 8)


@dataclass(frozen=True)
class Size:
    """Size of one network in one format. `ratio_to_dense` is the size in format `dense` over this size, to
    four decimals."""

    format: str
    bytes: int
    ratio_to_dense: float
    entropy_bound_bytes: int


def measure(tensors: Tensors) -> list[Size]:
    """Measure a network's size in each of :data:`FORMATS` by encoding it."""
    written = {format: len(encode(tensors)) for format, encode in FORMATS.items()}
    bound = entropy_bound_bytes(tensors)
    return [Size(format, size, round(written["dense"] / size, 4), bound) for format, size in written.items()]
