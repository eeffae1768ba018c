"""Packed files: the whole content of a model's safetensors file, in as few bytes as zlib finds for it.

A file consists of

    magic (8 bytes), BLAKE2b digest of all that follows (16 bytes), length of the header (little-endian
    uint32), header (deflated JSON: coding of values, metadata, and a :class:`Part` for each tensor), then
    the bytes of each tensor: its mask's, and its kept values'.

Nothing in a file is used before its checksum has been verified. The kept entries of a weight are those under
its mask (`x.mask` for `x.weight`), including zeros. If a file has no such mask, or the weight has entries
other than +0.0 outside of the mask, all entries that aren't +0.0 are kept. Tensors with one axis are kept
whole.
"""

import hashlib
import json
import math
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from singleshot.errors import UserError, explained
from singleshot.io.tensor_file import TensorFile, read_tensor_file

ValuesName = Literal["raw", "exponents", "fp16", "int8"]
"""How kept values are stored. `raw`: all their bytes. `exponents`: all bits, of which float32's exponents,
some 2.6 bits of entropy in a trained layer, are compressed; mantissas can't be told from random bits. `fp16`:
rounded to 2 bytes. `int8`: rounded to multiples of 1/127 of a row's largest magnitude. (With one scale per
layer, a HalfCheetah agent whose first layers hold the scales of normalised states falls from a D4RL score of
68 to that of a random policy.)"""
LOSSLESS: tuple[ValuesName, ...] = ("raw", "exponents")
MAGIC = b"\x89SSPACK\n"
MOST_ENTRIES = 2**26
"""Most entries of all tensors together, twice a ResNet-50's, in files that may be a stranger's. Zeros take no
bytes, so a small file could otherwise claim any number."""
ENTRIES_OF_A_BYTE = 1000
"""Most entries for each byte of a larger file. If pruning left a thousandth, there are 200 for each byte."""
SAFETENSORS_METADATA = "__metadata__"
"""A name that no tensor has, because it is another entry of safetensors' headers."""
MOST_AXES = 32
"""Most axes of a tensor; NumPy has 64."""
MOST_HEADER = 2**22
"""Most bytes of a header."""
DTYPES = {name: dtype for name, dtype in vars(torch).items() if isinstance(dtype, torch.dtype)}
_DIGEST_BYTES = 16
_LENGTH = struct.Struct("<I")
Mask = NDArray[np.bool_]
Floats = NDArray[np.float32]


class Part(NamedTuple):
    """One tensor in a file, together with its mask if it has one."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    kept: int
    mask: str | None
    """Name of the tensor that says which entries are kept, if there is one. It is stored with this tensor."""
    mask_bytes: int
    value_bytes: int

    @property
    def entries(self) -> int:
        """Number of entries of the dense tensor."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Contents:
    """The content of a packed file. `header_bytes` counts magic and checksum, too."""

    model: TensorFile
    values: ValuesName
    parts: tuple[Part, ...]
    header_bytes: int


def pack(model: TensorFile, values: ValuesName = "raw", most: int = MOST_ENTRIES) -> bytes:
    """Encode a model as the content of a packed file; equal models give equal bytes with the same zlib.

    Raises:
        UserError: the coding `values` can't represent a tensor's values, or the model has more entries than
            `most`, by default :data:`MOST_ENTRIES`.
    """
    _check_size((tensor.shape for tensor in model.tensors.values()), most)
    mask_of = {name: mask for name in model.tensors if (mask := _covering_mask(name, model.tensors))}
    parts, body = [], []
    for name, tensor in model.tensors.items():
        kept = _kept(tensor, model.tensors[mask_of[name]] if name in mask_of else None)
        positions = _write_mask(kept) if name not in mask_of.values() else b""
        try:
            data = _write_values(tensor, kept, values)
        except UserError as error:
            raise UserError(f"{name}: {error}") from error
        dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
        parts.append(Part(name, dtype, shape, int(kept.sum()), mask_of.get(name), len(positions), len(data)))
        body += [positions, data]
    header = {"values": values, "metadata": dict(model.metadata), "parts": parts}
    written = json.dumps(header, separators=(",", ":")).encode()
    if len(written) > MOST_HEADER:
        raise UserError(f"its names and metadata have more than {MOST_HEADER:,} bytes; shorten them")
    text = zlib.compress(written, 9)
    rest = b"".join([_LENGTH.pack(len(text)), text, *body])
    return MAGIC + _digest(rest) + rest


def unpack(data: bytes, most: int = MOST_ENTRIES) -> Contents:
    """Read what :func:`pack` wrote: the same tensors bit for bit, if its values were raw or exponents.

    Raises:
        UserError: the file is damaged or of another kind, or its tensors have more entries than `most`
            or, above :data:`MOST_ENTRIES`, than a thousand for each byte.
    """
    if not data.startswith(MAGIC):
        raise UserError("not a packed file; make one with `singleshot pack`")
    start = len(MAGIC) + _DIGEST_BYTES
    if data[len(MAGIC) : start] != _digest(data[start:]):
        raise UserError("its checksum doesn't match, so it is damaged; pack the model again")
    with explained("not what `pack` writes", "pack the model again"):  # a header may say anything
        at = start + _LENGTH.size
        (length,) = _LENGTH.unpack(data[start:at])
        header_bytes = at + length
        header = json.loads(_inflated(data[at:header_bytes], MOST_HEADER, zlib.MAX_WBITS))
        parts = [Part(name, dtype, tuple(shape), *rest) for name, dtype, shape, *rest in header["parts"]]
        values, metadata, names = header["values"], header["metadata"], [part.name for part in parts]
        "".join([values, *names, *metadata, *metadata.values()]).encode()  # texts, in Unicode
        counts = [n for part in parts for n in (*part.shape, part.kept, part.mask_bytes, part.value_bytes)]
        if not all(type(n) is int and n >= 0 for n in counts):
            raise ValueError("a number in its header isn't one")
        most = min(most, max(MOST_ENTRIES, ENTRIES_OF_A_BYTE * len(data)))
        _check_size((part.shape for part in parts), most)
        if len({*names, SAFETENSORS_METADATA}) <= len(names):
            raise ValueError("two of its tensors have one name, or one has that of metadata")
        if any(part.kept > part.entries for part in parts):
            raise ValueError("one of its tensors keeps more than there is")
        covered = {Part(part.mask, "bool", part.shape, part.kept, None, 0, 0) for part in parts if part.mask}
        if not covered <= set(parts):
            raise ValueError("a mask isn't that of its weight")
        at, tensors = header_bytes, {name: torch.empty(0) for name in names}  # in the order of the file
        masks = {mask.name for mask in covered}
        for part in parts:
            if part.name in masks:
                continue
            values_at, end = at + part.mask_bytes, at + part.mask_bytes + part.value_bytes
            kept = _read_mask(data[at:values_at], part)
            if part.mask:
                tensors[part.mask] = torch.from_numpy(kept)
            tensors[part.name] = _read_values(data[values_at:end], part, kept, values)
            at = end
        if at != len(data):
            raise ValueError("it has another length than its header says")
        shown = tuple(part for part in parts if part.name not in masks)
        return Contents(TensorFile(tensors, metadata), values, shown, header_bytes)


def read_packed(path: Path, most: int = MOST_ENTRIES) -> Contents:
    """Read a packed file. Raises UserError as :func:`unpack` does, or if the file is missing."""
    try:
        return unpack(path.read_bytes() if is_packed(path) else b"", most)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; name a packed file") from error
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def read_model(path: Path, fix: str = "make it again") -> TensorFile:
    """The content of a model's safetensors file, packed or not.

    Raises:
        UserError: the file is missing, damaged or of another kind.
    """
    if path.is_file() and is_packed(path):
        return read_packed(path).model
    return read_tensor_file(path, fix)


def is_packed(path: Path) -> bool:
    """Whether a file begins as packed files do."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()


def _check_size(shapes: Iterable[Iterable[int]], most: int) -> None:
    entries = 0
    for shape in map(tuple, shapes):
        if len(shape) > MOST_AXES:
            raise UserError(f"a tensor of it has {len(shape)} axes; give it {MOST_AXES} at most")
        # A size may be too long a number to multiply, and hide behind an axis of none.
        entries += most + 1 if max(shape, default=0) > most else math.prod(shape)
        if entries > most:
            raise UserError(f"its tensors have more than {most:,} entries; name a smaller model")


def _covering_mask(name: str, tensors: Mapping[str, Tensor]) -> str | None:
    """The name of a weight's mask, if the weight has nothing but +0.0 outside of it."""
    mask_name, weight = f"{name.removesuffix('.weight')}.mask", tensors[name]
    mask = tensors.get(mask_name)
    if not name.endswith(".weight") or mask is None or not _may_be_sparse(weight):
        return None
    alike = mask.dtype == torch.bool and mask.shape == weight.shape
    return mask_name if alike and not _bytes(weight)[~_array(mask)].any() else None


def _may_be_sparse(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _kept(tensor: Tensor, mask: Tensor | None) -> Mask:
    if mask is not None or tensor.dtype == torch.bool:
        return _array(tensor if mask is None else mask)
    if _may_be_sparse(tensor) and tensor.ndim >= 2:
        return np.asarray(_bytes(tensor).any(-1))
    return np.ones(tensor.shape, bool)


def _bytes(tensor: Tensor) -> NDArray[np.uint8]:
    """The bytes of each number, on a last axis. Unlike the numbers, they tell -0.0 from +0.0."""
    flat = tensor.detach().cpu().resolve_conj().contiguous().view(-1)
    # The strides of a tensor without elements don't allow a view of another type.
    own = flat.view(torch.uint8).numpy() if len(flat) else np.empty(0, np.uint8)
    return own.reshape(*tensor.shape, tensor.itemsize)


def _array(tensor: Tensor) -> NDArray:
    return tensor.detach().cpu().contiguous().numpy()


def _matrix(array: NDArray) -> NDArray:
    """View an array as a matrix, outputs by all other axes, with the shorter axis first."""
    rows = array.shape[0] if array.ndim > 1 else 1
    matrix = array.reshape(rows, array.size // rows if rows else 0)
    return matrix.T if matrix.shape[0] > matrix.shape[1] else matrix


def _huffman(data: bytes) -> bytes:
    """Each byte in a whole number of bits by its frequency, which is counted anew for each 4,096 bytes."""
    coder = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS, 6, zlib.Z_HUFFMAN_ONLY)
    return coder.compress(data) + coder.flush()


def _inflated(data: bytes, most: int, wbits: int = -zlib.MAX_WBITS) -> bytes:
    """What was deflated, at `most` so many bytes: a small file could otherwise unpack to any number."""
    decoder = zlib.decompressobj(wbits)
    content = decoder.decompress(data, most + 1)
    if not decoder.eof or decoder.unused_data:
        raise ValueError("a compressed part of it has another length")
    return content


def _write_mask(kept: Mask) -> bytes:
    """The positions of kept entries, or of the others if these are fewer; b"" if all or none are kept."""
    rare = _matrix(~kept if 2 * kept.sum() > kept.size else kept)
    return _huffman(_numbers_to_bytes(_gaps_of(rare))) if rare.any() else b""


def _read_mask(data: bytes, part: Part) -> Mask:
    if part.kept in (0, part.entries):
        return np.full(part.shape, part.kept > 0)
    rare = np.zeros(part.shape, bool)
    rows, columns = _matrix(rare).shape
    fewer = min(part.kept, part.entries - part.kept)
    most = rows + columns + fewer + (2 * fewer + part.entries) // 255  # as sums of all numbers are known
    _fill_by_gaps(_matrix(rare), _bytes_to_numbers(_inflated(data, most)))  # a view of `rare`
    kept = ~rare if 2 * part.kept > part.entries else rare
    if kept.sum() != part.kept:
        raise ValueError("a mask keeps another number of weights than its header says")
    return kept


def _gaps_of(matrix: Mask) -> NDArray[np.int64]:
    """The numbers of true entries in each row, then in each column, then the gaps between true entries.

    Entries are in the order of the product of their row's and column's numbers, largest first: in pruned
    networks, some units keep many weights and others few, and so gaps grow from block to block. Of

        0 1 0 0    rows have 1, 2 and 0 true entries, columns 0, 2, 0 and 1. The products are largest in
        0 1 0 1    row 1 (4 in column 1, 2 in column 3), then in row 0 (2 and 1), and all others are 0. In
        0 0 0 0    this order entries are 1 1 1 0 …, with no entry before the first or between: gaps 0 0 0.
    """
    rows, columns = matrix.sum(1), matrix.sum(0)
    places = np.flatnonzero(matrix.ravel()[_likely_first(rows, columns)])
    gaps = np.diff(places - np.arange(len(places)), prepend=0)
    return np.concatenate([rows, columns, gaps])


def _fill_by_gaps(matrix: Mask, numbers: NDArray[np.int64]) -> None:
    """Set those entries of an empty matrix that :func:`_gaps_of` has told."""
    rows, columns, gaps = np.split(numbers, np.cumsum(matrix.shape))
    chosen = _likely_first(rows, columns)[np.cumsum(gaps) + np.arange(len(gaps))]
    matrix[np.divmod(chosen, matrix.shape[1])] = True


def _likely_first(rows: NDArray, columns: NDArray) -> NDArray[np.intp]:
    return np.argsort(-(rows[:, None] * columns), axis=None, kind="stable")


def _numbers_to_bytes(numbers: NDArray[np.int64]) -> bytes:
    """A byte for each number; one of 255 and more has a byte of 255 for each time that this goes into it."""
    more, last = np.divmod(numbers, 255)
    stored = np.full(int((more + 1).sum()), 255, np.uint8)
    stored[np.cumsum(more + 1) - 1] = last
    return stored.tobytes()


def _bytes_to_numbers(data: bytes) -> NDArray[np.int64]:
    stored = np.frombuffer(data, np.uint8)
    return np.diff(np.cumsum(stored, dtype=np.int64)[stored < 255], prepend=0)


class Coding(NamedTuple):
    """How kept values, in the order of their matrix (a mask that says which they are), become bytes."""

    write: Callable[[Floats, Mask], bytes]
    read: Callable[[bytes, Mask], NDArray]


def _write_exponents(values: Floats, _: Mask) -> bytes:
    """Signs and fractions in 3 bytes each, then the exponents."""
    bits = values.view("<u4")
    fractions = (bits >> 8 & 0x800000) | (bits & 0x7FFFFF)
    low = fractions.view(np.uint8).reshape(-1, 4)[:, :3]
    return low.tobytes() + _huffman((bits >> 23 & 0xFF).astype(np.uint8).tobytes())


def _read_exponents(data: bytes, matrix: Mask) -> NDArray:
    kept = int(matrix.sum())
    low = np.frombuffer(data[: 3 * kept], np.uint8).reshape(-1, 3)
    fractions = np.pad(low, ((0, 0), (0, 1))).view("<u4").ravel()
    exponents = np.frombuffer(_inflated(data[3 * kept :], kept), np.uint8).astype("<u4")
    return ((fractions & 0x800000) << 8 | exponents << 23 | (fractions & 0x7FFFFF)).view("<f4")


def _write_halves(values: Floats, _: Mask) -> bytes:
    with np.errstate(over="ignore"):
        halves = values.astype("<f2")
    beyond = np.isinf(halves) & ~np.isinf(values)
    if beyond.any():
        raise UserError(f"{values[beyond][0]:g} is beyond float16's ±65504; pack it as raw or exponents")
    return halves.tobytes()


def _write_levels(values: Floats, matrix: Mask) -> bytes:
    """A scale for each row, then the multiples of it."""
    if not np.isfinite(values).all():
        raise UserError("int8 can't represent NaN or infinity; pack it as raw, exponents or fp16")
    each = np.zeros(matrix.shape, np.float32)
    each[matrix] = np.abs(values)
    # Rounded down, so that 127 times the scale is not infinite.
    scales = np.nextafter(each.max(1, initial=0) / np.float32(127), np.float32(0))
    own = np.repeat(scales, matrix.sum(1))
    levels = np.rint(np.divide(values, own, out=np.zeros_like(values), where=own > 0))
    return scales.astype("<f4").tobytes() + _huffman(levels.clip(-127, 127).astype(np.int8).tobytes())


def _read_levels(data: bytes, matrix: Mask) -> NDArray:
    scales = np.frombuffer(data[: 4 * len(matrix)], "<f4")
    levels = np.frombuffer(_inflated(data[4 * len(matrix) :], int(matrix.sum())), np.int8)
    return levels.astype(np.float32) * np.repeat(scales, matrix.sum(1))


CODINGS: Mapping[ValuesName, Coding] = {
    "raw": Coding(lambda values, _: values.tobytes(), lambda data, _: np.frombuffer(data, "<f4")),
    "exponents": Coding(_write_exponents, _read_exponents),
    "fp16": Coding(_write_halves, lambda data, _: np.frombuffer(data, "<f2").astype(np.float32)),
    "int8": Coding(_write_levels, _read_levels),
}


def _coding(dtype: torch.dtype, axes: int, kind: ValuesName) -> Coding | None:
    """How the kept values of a tensor are coded, as float32; None if their own bytes are written.

    Those are written of other numbers that would not get smaller, or lose bits that they should not. Biases,
    which are few and have other ranges, take 16 bits if weights take 8.
    """
    smaller = {torch.float32: True, torch.float64: kind not in LOSSLESS}
    halves = dtype in (torch.float16, torch.bfloat16) and kind == "int8" and axes > 1
    if not (halves or smaller.get(dtype, False)):
        return None
    return CODINGS["fp16" if kind == "int8" and axes < 2 else kind]


def _write_values(tensor: Tensor, kept: Mask, kind: ValuesName) -> bytes:
    """A tensor's kept values."""
    if tensor.dtype == torch.bool:
        return b""
    coding = _coding(tensor.dtype, tensor.ndim, kind)
    if coding is None:
        return _bytes(tensor)[kept].tobytes()
    if (tensor.float().isinf() & ~tensor.isinf()).any():
        raise UserError("holds numbers beyond single precision; pack it as raw or exponents")
    matrix = _matrix(kept)
    return coding.write(_matrix(_array(tensor.float()))[matrix].astype("<f4"), matrix)


def _read_values(data: bytes, part: Part, kept: Mask, kind: ValuesName) -> Tensor:
    if part.dtype == "bool":
        return torch.from_numpy(kept)
    dtype = DTYPES[part.dtype]
    coding = _coding(dtype, len(part.shape), kind)
    if coding is None:
        whole = np.zeros((*part.shape, dtype.itemsize), np.uint8)
        whole[kept] = np.frombuffer(data, np.uint8).reshape(-1, dtype.itemsize)
        numbers = torch.from_numpy(whole).view(-1).view(dtype) if whole.size else torch.empty(0, dtype=dtype)
        return numbers.view(part.shape)
    matrix = _matrix(kept)
    dense = np.zeros(part.shape, np.float32)
    _matrix(dense)[matrix] = coding.read(data, matrix)  # a view of `dense`
    return torch.from_numpy(dense).to(dtype)
