"""`singleshot pack`, `unpack` and `inspect`: model files in as few bytes as they need."""

from pathlib import Path

import safetensors.torch
import torch

from singleshot.errors import UserError, explained
from singleshot.io.tensor_file import TensorFile, read_tensor_file
from singleshot.io.whole_file import whole_file
from singleshot.sparse.packed import LOSSLESS, ValuesName, is_packed, pack, read_packed, unpack


def pack_file(source: Path, values: ValuesName, output: Path | None = None) -> None:
    """Pack a model's safetensors file, by default into the working directory.

    Raises:
        UserError: `source` can't be packed, or the output exists already.
    """
    model, data = _packed(source, values)
    output = _written(data, output or Path(source.with_suffix(".packed").name))
    size = source.stat().st_size
    dense = sum(tensor.nbytes for tensor in model.tensors.values() if tensor.dtype != torch.bool)
    print(
        f"{output}: {len(data):,} bytes, {size / len(data):.1f} times fewer than {source} ({size:,}) "
        f"and {dense / len(data):.1f} than its tensors without masks ({dense:,})"
    )


def unpack_file(source: Path, output: Path | None = None) -> None:
    """Write the safetensors file that was packed, by default into the working directory.

    Raises:
        UserError: `source` is damaged or not packed, or the output exists already.
    """
    contents = read_packed(source)
    with explained(f"{source}: not a model", "give a packed agent, style or network of yours"):
        data = safetensors.torch.save(dict(contents.model.tensors), dict(contents.model.metadata) or None)
    output = _written(data, output or Path(source.with_suffix(".safetensors").name))
    rounded = "" if contents.values in LOSSLESS else f", which packing rounded to {contents.values}"
    print(f"{output}: {len(data):,} bytes, every value as in {source}{rounded}")


def inspect_file(path: Path) -> None:
    """Print what a packed file holds, or would hold if a safetensors file were packed.

    Raises:
        UserError: the file is neither, or damaged.
    """
    packed = is_packed(path)
    contents = read_packed(path) if packed else unpack(_packed(path, "raw")[1])
    table = [["tensor", "shape", "kept", "pruned", "bytes of mask", "and values"]]
    for part in contents.parts:
        pruned = f"{1 - part.kept / part.entries:.2%}" if part.entries else "-"
        numbers = [f"{part.kept:,}", pruned, f"{part.mask_bytes:,}", f"{part.value_bytes:,}"]
        table.append([part.name, "×".join(map(str, part.shape)) or "scalar", *numbers])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        print("  ".join(word.rjust(width) for word, width in zip(line, widths, strict=True)))
    size = contents.header_bytes + sum(part.mask_bytes + part.value_bytes for part in contents.parts)
    dense = sum(4 * part.entries for part in contents.parts if part.dtype == "float32")
    kind = f"packed, values {contents.values}" if packed else f"safetensors of {path.stat().st_size:,} bytes"
    print(f"\n{path}: {kind}; {size:,} bytes packed, of which {contents.header_bytes:,} header")
    print(f"float32 tensors, dense: {dense:,} bytes, {dense / size:.2f} times as many")


def _packed(source: Path, values: ValuesName) -> tuple[TensorFile, bytes]:
    model = read_tensor_file(source, "name an agent's or a style's safetensors file")
    try:
        return model, pack(model, values)
    except UserError as error:
        raise UserError(f"{source}: {error}") from error


def _written(data: bytes, output: Path) -> Path:
    """Write a file. By default it isn't beside the input, where the next `dvc repro` would delete it."""
    if output.exists():  # it may be the input, or what that was made from: nobody is told to remove it
        raise UserError(f"{output}: exists already; name another file with --output")
    with whole_file(output) as file:
        file.write_bytes(data)
    return output
