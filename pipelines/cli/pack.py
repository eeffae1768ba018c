"""`python -m pipelines pack`, `unpack` and `inspect`: model files in as few bytes as they need."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import safetensors.torch
import torch

from singleshot.errors import UserError
from singleshot.io.tensor_file import TensorFile, read_tensor_file
from singleshot.io.whole_file import whole_file
from singleshot.sparse.packed import LOSSLESS, Part, ValuesName, is_packed, pack, read_packed, unpack


def pack_file(source: Path, values: ValuesName, output: Path | None = None) -> None:
    """Pack a model's safetensors file, into the working directory if no other output is named.

    Raises:
        UserError: `source` can't be packed, or the output exists already or can't be written.
    """
    if _is_packed(source):
        raise UserError(f"{source}: already packed; name an agent's or a style's safetensors file")
    output = _checked(output, source.with_suffix(".packed").name)
    model, data = _pack(source, values)
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
    rounded = "" if contents.values in LOSSLESS else f", which packing rounded to {contents.values}"
    print(f"{output}: {len(data):,} bytes, every value as in {source}{rounded}")


def inspect_file(path: Path) -> None:
    """Print what a packed file holds, or would hold if a safetensors file were packed.

    Raises:
        UserError: the file is neither, or damaged.
    """
    packed = _is_packed(path)
    contents = read_packed(path) if packed else unpack(_pack(path)[1])
    head = ("tensor", "shape", "kept", "pruned", "mask", "(bound)", "values", "(bound)")
    rows = [head, *map(_row, contents.parts)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, *numbers in rows:
        cells = (f"{number:>{width}}" for number, width in zip(numbers, widths[1:], strict=True))
        print("  ".join([f"{name:<{widths[0]}}", *cells]))
    in_parts = sum(part.mask_bytes + part.value_bytes for part in contents.parts)
    size = contents.header_bytes + in_parts
    dense = sum(4 * part.entries for part in contents.parts if part.dtype == "float32")
    bound = sum(part.mask_bound_bytes + part.value_bound_bytes for part in contents.parts)
    kind = f"packed, values {contents.values}" if packed else f"safetensors of {path.stat().st_size:,} bytes"
    print(f"\n{path}: {kind}; {size:,} bytes packed, of which {contents.header_bytes:,} header")
    print(f"float32 tensors, dense: {dense:,} bytes, {dense / size:.2f} times as many")
    print(f"entropy bound, for masks and values without any pattern: {bound:,.0f} bytes")


def refuse_packed(path: Path) -> None:
    """Raise UserError, with the command that unpacks it, if a file is packed."""
    if path.is_file() and is_packed(path):
        raise UserError(f"{path}: is packed; unpack it first with `python -m pipelines unpack {path}`")


def _pack(source: Path, values: ValuesName = "raw") -> tuple[TensorFile, bytes]:
    model = read_tensor_file(source, "name an agent's or a style's safetensors file")
    try:
        return model, pack(model, values)
    except UserError as error:
        raise UserError(f"{source}: {error}") from error


def _row(part: Part) -> tuple[str, ...]:
    return (
        part.name,
        "×".join(map(str, part.shape)) or "scalar",
        f"{part.kept:,}",
        f"{1 - part.kept / part.entries:.2%}" if part.entries else "-",
        f"{part.mask_bytes:,}",
        f"({part.mask_bound_bytes:,.0f})",
        f"{part.value_bytes:,}",
        f"({part.value_bound_bytes:,})",
    )


def _is_packed(path: Path) -> bool:
    if path.is_dir():
        raise UserError(f"{path}: is a folder; name a file in it, such as agent.safetensors")
    with _errors_name(path):
        return is_packed(path)


def _checked(output: Path | None, default: str) -> Path:
    """The file to write. The default isn't beside the input, where the next `dvc repro` would delete it."""
    output = output or Path(default)
    if output == Path("-"):
        raise UserError("-: a model can't go to standard output; name a file with --output")
    with _errors_name(output):
        # It may be the input, or the file that the input was made from: nobody is told to remove it.
        if output.exists():
            raise UserError(f"{output}: exists already; name another file with --output")
        if not output.absolute().parent.is_dir():
            raise UserError(f"{output}: its folder does not exist; create that first")
    return output


def _write(output: Path, data: bytes) -> None:
    with _errors_name(output), whole_file(output) as file:
        file.write_bytes(data)


@contextmanager
def _errors_name(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; name another file") from error
