"""Packed files: the whole content of a model's safetensors file, in as few bytes as masks and values need.

A file consists of

    magic (8 bytes), BLAKE2b digest of all that follows (16 bytes), lengths of header and counts (two
    little-endian uint32), header (compressed JSON: codec version, coding of values, metadata; name, dtype,
    shape and mask of each tensor), counts (compressed, see `streams`), then the tensors' bytes.

Nothing in a file is used before its checksum has been verified. The kept entries of a weight are those under
its mask (`x.mask` for `x.weight`), including zeros. If a file has no such mask, or the weight has entries
other than +0.0 outside of the mask, all entries that aren't +0.0 are kept. Tensors with one axis are kept
whole.
"""

import hashlib
import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from singleshot.errors import UserError, in_a_line
from singleshot.io.tensor_file import TensorFile
from singleshot.sparse.entropy import Mask, log2_binomial, read_mask, write_mask
from singleshot.sparse.streams import Reader, Writer, compress, decompress
from singleshot.sparse.values import VALUES, Values, ValuesName

MAGIC = b"\x89SSPACK\n"
VERSION = 1
"""Version of the codec."""
MOST_ENTRIES = 2**26
"""Most entries of all tensors together, twice a ResNet-50's. Zeros take no bytes, so a small file could
otherwise claim any number."""
_DIGEST_BYTES = 16
_LENGTHS = struct.Struct("<II")


@dataclass(frozen=True)
class Part:
    """One tensor in a file, together with its mask if it has one."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    kept: int
    mask_bytes: int
    """Bytes of the mask, without the counts of its rows and columns, which are compressed with all others."""
    value_bytes: int

    @property
    def entries(self) -> int:
        """Number of entries of the dense tensor."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def mask_bound_bytes(self) -> float:
        """Bytes of a mask with as many kept weights, if all such masks were equally likely."""
        return log2_binomial(self.entries, self.kept) / 8

    @property
    def value_bound_bytes(self) -> int:
        """Fewest bytes that the kept values take, if their bits are random."""
        return 4 * self.kept if self.dtype == "float32" else self.value_bytes


@dataclass(frozen=True)
class Contents:
    """The content of a packed file."""

    model: TensorFile
    values: ValuesName
    parts: tuple[Part, ...]
    header_bytes: int
    """Bytes of the header, magic and checksum included."""
    counts_bytes: int


@dataclass(frozen=True)
class _Entry:
    """The description of a tensor in the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    mask: str | None = None
    """Name of the mask that says which entries are kept, if that is a tensor of the file."""


def pack(model: TensorFile, values: ValuesName = "raw") -> bytes:
    """Encode a model as the content of a packed file.

    Equal models give equal bytes with the same liblzma.

    Raises:
        UserError: the coding `values` can't represent a tensor's values, or the model is too large to unpack.
    """
    entries = [_entry(name, model.tensors) for name in model.tensors]
    _check_size(entries)
    out = Writer()
    for entry in _masks_first(entries):
        try:
            _write(out, entry, model.tensors, values)
        except UserError as error:
            raise UserError(f"{entry.name}: {error}") from error
    header = {
        "version": VERSION,
        "values": values,
        "metadata": dict(model.metadata),
        "tensors": [[entry.name, entry.dtype, entry.shape, entry.mask] for entry in entries],
    }
    text = compress(json.dumps(header, separators=(",", ":")).encode())
    counts = out.compressed_counts()
    rest = _LENGTHS.pack(len(text), len(counts)) + text + counts + out.all_bytes()
    return MAGIC + _digest(rest) + rest


def unpack(data: bytes) -> Contents:
    """Read what :func:`pack` wrote: the same tensors bit for bit, if its values were raw or exponents.

    Raises:
        UserError: the file is damaged or of another kind.
    """
    if not data.startswith(MAGIC):
        raise UserError("not a packed file; make one with `python -m pipelines pack`")
    start = len(MAGIC) + _DIGEST_BYTES
    if data[len(MAGIC) : start] != _digest(data[start:]):
        raise UserError("its checksum doesn't match, so it is damaged; pack the model again")
    header_at = start + _LENGTHS.size
    text_length, counts_length = _LENGTHS.unpack(data[start:header_at])
    counts_at = header_at + text_length
    tensors_at = counts_at + counts_length
    header = json.loads(decompress(data[header_at:counts_at]))
    if header["version"] != VERSION:
        raise UserError(
            f"it has codec version {header['version']}, not {VERSION}; unpack it with a newer version"
        )
    source = Reader(data[counts_at:tensors_at], data[tensors_at:])
    entries = [_Entry(name, dtype, tuple(shape), mask) for name, dtype, shape, mask in header["tensors"]]
    _check_size(entries)
    tensors: dict[str, Tensor] = {}
    parts: dict[str, Part] = {}
    for entry in _masks_first(entries):
        tensors[entry.name], parts[entry.name] = _read(source, entry, tensors, header["values"])
    source.check_empty()
    in_order = {entry.name: tensors[entry.name] for entry in entries}
    model = TensorFile(in_order, header["metadata"])
    return Contents(model, header["values"], _merge(entries, parts), counts_at, counts_length)


def read_packed(path: Path) -> Contents:
    """Read a packed file. Raises UserError as :func:`unpack` does, or if the file is missing."""
    try:
        return unpack(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; name a packed file") from error
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    except Exception as error:  # even with the right checksum, a header may say anything
        reason = in_a_line(error)
        raise UserError(f"{path}: not what `pack` writes ({reason}); pack the model again") from error


def is_packed(path: Path) -> bool:
    """Whether a file begins as packed files do."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def mask_name(name: str) -> str:
    """The name of a weight's mask in an agent's file."""
    return f"{name.rpartition('.')[0]}.mask"


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()


def _check_size(entries: list[_Entry]) -> None:
    if sum(math.prod(entry.shape) for entry in entries) > MOST_ENTRIES:
        raise UserError(f"its tensors have more than {MOST_ENTRIES:,} entries; name a smaller model")


def _masks_first(entries: list[_Entry]) -> list[_Entry]:
    """Sort entries into the order in which they are written: masks before the tensors that use them."""
    return sorted(entries, key=lambda entry: entry.dtype != "bool")


def _entry(name: str, tensors: Mapping[str, Tensor]) -> _Entry:
    tensor, mask = tensors[name], tensors.get(mask_name(name))
    dtype = str(tensor.dtype).removeprefix("torch.")
    under = (
        tensor.dtype == torch.float32
        and mask is not None
        and mask.dtype == torch.bool
        and mask.shape == tensor.shape
        and not (_bits(tensor)[~_array(mask)]).any()
    )
    return _Entry(name, dtype, tuple(tensor.shape), mask_name(name) if under else None)


def _write(out: Writer, entry: _Entry, tensors: Mapping[str, Tensor], values: ValuesName) -> None:
    tensor = tensors[entry.name]
    if entry.dtype == "bool":
        write_mask(out, _matrix(_array(tensor)))
    elif entry.dtype != "float32":
        out.add_bytes(_as_bytes(tensor.detach().cpu().contiguous()).numpy().tobytes())
    else:
        kept = _array(tensors[entry.mask]) if entry.mask else _kept(tensor)
        if not entry.mask and tensor.ndim >= 2:
            write_mask(out, _matrix(kept))
        matrix = _matrix(kept)
        _codec(values, entry).write(out, _matrix(_array(tensor))[matrix], matrix.sum(1))


def _read(
    source: Reader, entry: _Entry, tensors: Mapping[str, Tensor], values: ValuesName
) -> tuple[Tensor, Part]:
    begin = source.size
    entries = int(np.prod(entry.shape, dtype=np.int64))
    if entry.dtype == "bool":
        mask = _read_mask(source, entry.shape)
        part = Part(entry.name, entry.dtype, entry.shape, int(mask.sum()), source.size - begin, 0)
        return torch.from_numpy(mask), part
    if entry.dtype != "float32":
        dtype: torch.dtype = getattr(torch, entry.dtype)
        tensor = torch.zeros(entry.shape, dtype=dtype)
        data = source.take_bytes(entries * dtype.itemsize)
        _as_bytes(tensor).numpy()[:] = np.frombuffer(data, np.uint8)
        return tensor, Part(entry.name, entry.dtype, entry.shape, entries, 0, len(data))
    if entry.mask:
        kept = _array(tensors[entry.mask])
    elif len(entry.shape) >= 2:
        kept = _read_mask(source, entry.shape)
    else:
        kept = np.ones(entry.shape, bool)
    mask_bytes = source.size - begin
    dense = np.zeros(entry.shape, np.float32)
    matrix = _matrix(kept)
    _matrix(dense)[matrix] = _codec(values, entry).read(source, matrix.sum(1))  # a view of `dense`
    part = Part(
        entry.name, entry.dtype, entry.shape, int(kept.sum()), mask_bytes, source.size - begin - mask_bytes
    )
    return torch.from_numpy(dense), part


def _codec(values: ValuesName, entry: _Entry) -> Values:
    """The codec of a tensor. Biases, which are few and have other ranges, take 16 bits if weights take 8."""
    return VALUES["fp16" if values == "int8" and len(entry.shape) < 2 else values]


def _kept(tensor: Tensor) -> Mask:
    return _bits(tensor) != 0 if tensor.ndim >= 2 else np.ones(tensor.shape, bool)


def _bits(tensor: Tensor) -> NDArray[np.uint32]:
    """The bits of a tensor's numbers, which, unlike the numbers, tell -0.0 from +0.0."""
    return _array(tensor).view(np.uint32)


def _array(tensor: Tensor) -> NDArray:
    return tensor.detach().cpu().contiguous().numpy()


def _as_bytes(tensor: Tensor) -> Tensor:
    """A view of a contiguous tensor as bytes. The strides of a tensor without elements don't allow a view."""
    return tensor.view(-1).view(torch.uint8) if tensor.numel() else torch.zeros(0, dtype=torch.uint8)


def _matrix(array: NDArray) -> NDArray:
    """View an array as a matrix with the shorter axis first.

    With the counts of the columns known, the remaining entries of a short column are soon certain.
    """
    rows, columns = _matrix_shape(array.shape)
    matrix = array.reshape(rows, columns)
    return matrix.T if rows > columns else matrix


def _read_mask(source: Reader, shape: tuple[int, ...]) -> Mask:
    rows, columns = _matrix_shape(shape)
    if rows > columns:
        return np.ascontiguousarray(read_mask(source, (columns, rows)).T).reshape(shape)
    return read_mask(source, (rows, columns)).reshape(shape)


def _matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """The shape of a tensor as a matrix: a kernel's outputs by all other axes, or one row for a vector."""
    if len(shape) < 2:
        return 1, int(np.prod(shape, dtype=np.int64))
    return shape[0], int(np.prod(shape[1:], dtype=np.int64))


def _merge(entries: list[_Entry], parts: Mapping[str, Part]) -> tuple[Part, ...]:
    """The parts of a file, in which masks used by a weight are counted as a part of that weight."""
    masks = {entry.mask for entry in entries if entry.mask}
    merged = []
    for entry in entries:
        part = parts[entry.name]
        if entry.mask:
            part = replace(part, mask_bytes=parts[entry.mask].mask_bytes)
        if entry.name not in masks:
            merged.append(part)
    return tuple(merged)
