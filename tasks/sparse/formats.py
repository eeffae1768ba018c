"""Storage formats for sparse networks, and the bytes that unpredictable masks and values would take.

A format is a small class that turns a network's tensors into bytes and back; :data:`FORMATS` lists all of
them. The zero entries are the pruned ones, so a format needs no mask. Values are float32, as trained; a
format that isn't `lossless` rounds them.
"""

import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from tasks.data.tensor_file import TensorFile
from tasks.errors import UserError
from tasks.sparse.entropy import log2_binomial
from tasks.sparse.packed import pack, unpack
from tasks.sparse.values import LOSSLESS, ValuesName

Tensors = Mapping[str, Tensor]
"""A network's float32 tensors by name, as in a state dict: weights (2 axes or more) and biases (1 axis)."""


class Format(Protocol):
    """A way to write a network to a file."""

    name: str
    lossless: bool

    def encode(self, tensors: Tensors) -> bytes:
        """The content of a file with the network. Raises UserError if a tensor isn't float32."""

    def decode(self, data: bytes) -> dict[str, Tensor]:
        """The dense network in such a file. Raises UserError if the file is damaged or of another kind."""


class _TorchSaved:
    """A file written by `torch.save`, as in Arnob et al. 2021; subclasses choose the form of each tensor.

    The file format itself takes some 300 bytes per stored tensor, whatever the form.
    """

    name: str
    lossless = True

    def encode(self, tensors: Tensors) -> bytes:
        _check_float32(tensors)
        stored = {}
        for name, tensor in tensors.items():
            # Saving a view writes all the memory behind it, e.g. every agent of a stack.
            own = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
            stored[name] = self._store(own)
        file = io.BytesIO()
        torch.save(stored, file)
        return file.getvalue()

    def decode(self, data: bytes) -> dict[str, Tensor]:
        try:
            damaged = zipfile.ZipFile(io.BytesIO(data)).testzip()  # torch.load itself compares no checksums
            if damaged is not None:
                raise ValueError(f"checksum mismatch in {damaged}")
            # Without the invariants, a wrong index makes torch write outside the tensor.
            with torch.sparse.check_sparse_tensor_invariants():
                stored = torch.load(io.BytesIO(data), weights_only=True)
                return {name: self._restore(entry) for name, entry in stored.items()}
        except Exception as error:  # zipfile, torch and its unpickler each raise their own
            raise _unreadable(self.name, error) from error

    def _store(self, tensor: Tensor) -> Any:
        raise NotImplementedError

    def _restore(self, stored: Any) -> Tensor:
        raise NotImplementedError


class Dense(_TorchSaved):
    """Every entry, 4 bytes each (Table 1, "Dense Model")."""

    name = "dense"

    def _store(self, tensor: Tensor) -> Tensor:
        return tensor

    def _restore(self, stored: Tensor) -> Tensor:
        return stored.to_dense()


class Coordinates(Dense):
    """`to_sparse()` of every tensor, biases included (Table 1, "95% sparse").

    A kept weight takes 20 bytes, two int64 indices and its value: less than `dense` only above 80 % sparsity.
    """

    name = "coo"

    def _store(self, tensor: Tensor) -> Tensor:
        return tensor.to_sparse()


class DenseCoordinates(Dense):
    """`to_sparse()` of the network before it was pruned (Table 1, "Dense Model Sparse Indexing").

    Zeros are indexed like any value, so a pruned network takes as many bytes as its unpruned original.
    """

    name = "dense_sparse_indexing"

    def _store(self, tensor: Tensor) -> Tensor:
        indices = torch.ones_like(tensor).to_sparse().indices()
        return torch.sparse_coo_tensor(
            indices, tensor.flatten(), tensor.shape, is_coalesced=True, check_invariants=False
        )


class CompressedRows(_TorchSaved):
    """CSR: int32 row pointers, then 8 bytes per kept weight, its int32 column and its value."""

    name = "csr_int32"

    def _store(self, tensor: Tensor) -> Any:
        if tensor.ndim < 2:
            return tensor
        matrix = tensor.flatten(1)
        rows, columns = matrix.nonzero(as_tuple=True)
        pointers = torch.nn.functional.pad(matrix.count_nonzero(1).cumsum(0), (1, 0))
        return tensor.shape, pointers.int(), columns.int(), matrix[rows, columns]

    def _restore(self, stored: Any) -> Tensor:
        if isinstance(stored, Tensor):
            return stored
        shape, pointers, columns, values = stored
        tensor = torch.zeros(shape)
        rows = torch.arange(shape[0]).repeat_interleave(pointers.diff())
        tensor.flatten(1)[rows, columns.long()] = values
        return tensor


class Bitmap(_TorchSaved):
    """One bit per entry, which says whether it is kept, then 4 bytes per kept weight."""

    name = "bitmap"

    def _store(self, tensor: Tensor) -> Any:
        if tensor.ndim < 2:
            return tensor
        kept = tensor != 0
        return tensor.shape, torch.from_numpy(np.packbits(kept.numpy())), tensor[kept]

    def _restore(self, stored: Any) -> Tensor:
        if isinstance(stored, Tensor):
            return stored
        shape, bits, values = stored
        kept = torch.from_numpy(np.unpackbits(bits.numpy(), count=shape.numel())).bool().view(shape)
        return torch.zeros(shape).masked_scatter(kept, values)


class Packed:
    """This project's packed files (:mod:`tasks.sparse.packed`), with one of the codings of values."""

    def __init__(self, values: ValuesName) -> None:
        self.name, self.lossless = f"packed_{values}", values in LOSSLESS
        self._values = values

    def encode(self, tensors: Tensors) -> bytes:
        """Encode as `pack` does, but turn -0.0 into +0.0."""
        _check_float32(tensors)
        return pack(TensorFile({name: tensor + 0.0 for name, tensor in tensors.items()}, {}), self._values)

    def decode(self, data: bytes) -> dict[str, Tensor]:
        """Decode as `unpack` does; the file itself says how its values are coded."""
        try:
            return dict(unpack(data).model.tensors)
        except UserError as error:
            raise _unreadable(self.name, error) from error


def _check_float32(tensors: Tensors) -> None:
    for name, tensor in tensors.items():
        if tensor.dtype != torch.float32:
            raise UserError(f"tensor {name} is {tensor.dtype}; storage formats are for torch.float32")


def _unreadable(format: str, error: Exception) -> UserError:
    return UserError(f"not a network in format {format}, or damaged ({error}); write the file anew")


FORMATS: tuple[Format, ...] = (
    Dense(),
    DenseCoordinates(),
    Coordinates(),
    CompressedRows(),
    Bitmap(),
    Packed("raw"),
    Packed("exponents"),
    Packed("fp16"),
    Packed("int8"),
)


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
    """Size of one network in one format. `ratio_to_dense` is the size in format `dense` over this size."""

    format: str
    bytes: int
    ratio_to_dense: float
    entropy_bound_bytes: int


def measure(tensors: Tensors) -> list[Size]:
    """Measure a network's size in each of :data:`FORMATS` by encoding it."""
    written = {format.name: len(format.encode(tensors)) for format in FORMATS}
    bound = entropy_bound_bytes(tensors)
    return [Size(name, size, written[Dense.name] / size, bound) for name, size in written.items()]
