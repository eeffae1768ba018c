"""`python -m pipelines pack`, `unpack` and `inspect`: model files in as few bytes as they need."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import safetensors.torch
import torch

from singleshot.errors import UserError
from singleshot.io.tensor_file import TensorFile, read_tensor_file
from singleshot.io.whole_file import whole_file
from singleshot.sparse.packed import Part, is_packed, mask_name, pack, read_packed, unpack
from singleshot.sparse.values import LOSSLESS, ValuesName


def pack_file(source: Path, values: ValuesName, output: Path | None = None) -> None:
    """Pack a model's safetensors file, into the working directory if no other output is named.

    Raises:
        UserError: `source` can't be packed, or the output exists already or can't be written.
    """
    if _is_packed(source):
        raise UserError(f"{source}: already packed; name an agent's or a style's safetensors file")
    output = _checked(output, source.with_suffix(".packed").name)
    try:
        model = read_tensor_file(source)
        data = pack(model, values)
    except UserError as error:
        raise UserError(f"{source}: {str(error).removeprefix(f'{source}: ')}") from error
    _write(output, data)
    size = source.stat().st_size
    dense = sum(tensor.nbytes for tensor in model.tensors.values() if tensor.dtype != torch.bool)
    print(
        f"{output}: {len(data):,} bytes, {size / len(data):.1f} times fewer than {source} ({size:,}) "
        f"and {dense / len(data):.1f} than its tensors without masks ({dense:,})"
    )


def unpack_file(source: Path, output: Path | None = None) -> None:
    """Write the safetensors file that was packed, into the working directory if no other output is named.

    Raises:
        UserError: `source` is damaged or not packed, or the output exists already or can't be written.
    """
    if not _is_packed(source):
        raise UserError(f"{source}: not a packed file; give one that `pack` wrote")
    output = _checked(output, source.with_suffix(".safetensors").name)
    contents = read_packed(source)
    data = safetensors.torch.save(dict(contents.model.tensors), dict(contents.model.metadata) or None)
    _write(output, data)
    exact = contents.values in LOSSLESS
    kept = (
        "every value as before packing" if exact else f"values as packing rounded them to {contents.values}"
    )
    print(f"{output}: {len(data):,} bytes, {kept}")


def inspect_file(path: Path) -> None:
    """Print the contents of a packed or a safetensors file; raise UserError if it is neither, or damaged."""
    stored = _packed(path) if _is_packed(path) else _plain(path)
    rows = [_row(part) for part in stored.parts]
    head = ("tensor", "shape", "kept", "pruned", "mask", "(bound)", "values", "(bound)")
    for line in _aligned([head, *rows]):
        print(line)
    size = path.stat().st_size
    dense = sum(4 * part.entries for part in stored.parts if part.dtype == "float32")
    bound = sum(part.mask_bound_bytes + part.value_bound_bytes for part in stored.parts)
    print(f"\n{path}: {stored.kind}, {size:,} bytes, of which {stored.besides}")
    if dense:
        print(f"float32 tensors, dense: {dense:,} bytes, {dense / size:.2f} times as many")
    if bound:
        times = size / bound
        print(
            f"entropy bound, for masks and values without any pattern: {bound:,.0f} bytes; "
            f"the file takes {times:.3f} times as many"
        )


def refuse_packed(path: Path) -> None:
    """Raise UserError, with the command that unpacks it, if a file is packed."""
    if path.is_file() and is_packed(path):
        raise UserError(f"{path}: is packed; unpack it first with `python -m pipelines unpack {path}`")


@dataclass(frozen=True)
class _Stored:
    kind: str
    parts: Sequence[Part]
    besides: str
    """The bytes of the file that belong to no tensor, in words."""


def _packed(path: Path) -> _Stored:
    contents = read_packed(path)
    besides = f"{contents.header_bytes:,} header, {contents.counts_bytes:,} counts for masks and exponents"
    return _Stored(f"packed, values {contents.values}", contents.parts, besides)


def _plain(path: Path) -> _Stored:
    if path.suffix == ".onnx":
        raise UserError(f"{path}: an ONNX graph; name the safetensors file of an agent or a style")
    try:
        model = read_tensor_file(path)
    except UserError as error:
        reason = f"neither a packed nor a whole safetensors file ({error.__cause__})"
        raise UserError(f"{path}: {reason}; name an agent's or a style's file") from error
    try:
        packed = pack(model)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    parts = [_unpacked(part, model) for part in unpack(packed).parts]
    header = path.stat().st_size - sum(tensor.nbytes for tensor in model.tensors.values())
    return _Stored("safetensors", parts, f"{header:,} header")


def _unpacked(part: Part, model: TensorFile) -> Part:
    """`part` with its bytes in a safetensors file, where each entry of a mask takes one byte."""
    if part.dtype == "bool":
        return replace(part, mask_bytes=part.entries)
    under = part.name.endswith(".weight") and mask_name(part.name) in model.tensors
    return replace(part, mask_bytes=part.entries if under else 0, value_bytes=model.tensors[part.name].nbytes)


def _row(part: Part) -> tuple[str, ...]:
    pruned = f"{1 - part.kept / part.entries:.2%}" if part.entries else "-"
    return (
        part.name,
        "×".join(map(str, part.shape)) or "scalar",
        f"{part.kept:,}",
        pruned,
        f"{part.mask_bytes:,}",
        f"({part.mask_bound_bytes:,.0f})",
        f"{part.value_bytes:,}",
        f"({part.value_bound_bytes:,})",
    )


def _aligned(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    """Lines with names aligned to the left and numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, *numbers in rows:
        cells = [f"{number:>{width}}" for number, width in zip(numbers, widths[1:], strict=True)]
        yield "  ".join([f"{name:<{widths[0]}}", *cells])


def _is_packed(path: Path) -> bool:
    with _errors_name(path):
        if path.is_dir():
            files = sorted(path.glob("*.safetensors")) + sorted(path.glob("*.packed"))
            raise UserError(f"{path}: is a folder; name a file in it{f', as {files[0]}' if files else ''}")
        return is_packed(path)


def _checked(output: Path | None, default: str) -> Path:
    """The file to write. The default isn't beside the input, where the next `dvc repro` would delete it."""
    output = output or Path(default)
    if output == Path("-"):
        raise UserError("-: a model can't go to standard output; name a file with --output")
    with _errors_name(output):
        # It may be the input, or the file that the input was made from: the message must not suggest to
        # remove it.
        if output.exists():
            raise UserError(f"{output}: exists already; name another file with --output")
        if not output.absolute().parent.is_dir():
            raise UserError(f"{output}: its folder does not exist; create that first")
    return output


def _write(output: Path, data: bytes) -> None:
    """Write a file, all of it or nothing."""
    with _errors_name(output), whole_file(output) as file:
        file.write_bytes(data)


@contextmanager
def _errors_name(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; name another file") from error
