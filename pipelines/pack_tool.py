"""`python -m pipelines pack`, `unpack` and `inspect`: model files in as few bytes as they need."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import safetensors.torch

from tasks.errors import UserError
from tasks.sparse.packed import (
    Model,
    Part,
    is_packed,
    mask_name,
    pack,
    read_packed,
    read_safetensors,
    unpack,
)
from tasks.sparse.values import ValuesName


def pack_file(source: Path, values: ValuesName, output: Path) -> None:
    """Pack a model's safetensors file. UserError if it can't be read, or `output` not be written."""
    _check(output)
    try:
        data = pack(read_safetensors(source), values)
    except UserError as error:
        raise UserError(f"{source}: {str(error).removeprefix(f'{source}: ')}") from error
    output.write_bytes(data)
    size = source.stat().st_size
    print(f"{output}: {len(data):,} bytes, {size / len(data):.1f} times fewer than {source}'s {size:,}")


def unpack_file(source: Path, output: Path) -> None:
    """Write the safetensors file that was packed. UserError if it is damaged, or `output` is there."""
    _check(output)
    contents = read_packed(source)
    data = safetensors.torch.save(dict(contents.model.tensors), dict(contents.model.metadata) or None)
    output.write_bytes(data)
    print(f"{output}: {len(data):,} bytes, values as {contents.values} had them")


def inspect_file(path: Path) -> None:
    """Print what a packed or a safetensors file holds. UserError if it is missing or damaged."""
    if not path.is_file():
        raise UserError(f"{path}: no such file; name a packed file or a model's safetensors file")
    stored = _packed(path) if is_packed(path) else _plain(path)
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
    print(
        f"bound of masks and values that nothing is known of: {bound:,.0f} bytes; this is {size / bound:.3f}"
    )


@dataclass(frozen=True)
class _Stored:
    kind: str
    parts: Sequence[Part]
    besides: str
    """What takes the bytes that are no part's."""


def _packed(path: Path) -> _Stored:
    contents = read_packed(path)
    besides = f"{contents.header_bytes:,} header, {contents.counts_bytes:,} counts for masks and exponents"
    return _Stored(f"packed, values {contents.values}", contents.parts, besides)


def _plain(path: Path) -> _Stored:
    model = read_safetensors(path)
    parts = [_unpacked(part, model) for part in unpack(pack(model)).parts]
    header = path.stat().st_size - sum(tensor.nbytes for tensor in model.tensors.values())
    return _Stored("safetensors", parts, f"{header:,} header")


def _unpacked(part: Part, model: Model) -> Part:
    """With the bytes that safetensors take: one an entry of a mask, all of a tensor's."""
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
    """Names to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, *numbers in rows:
        cells = [f"{number:>{width}}" for number, width in zip(numbers, widths[1:], strict=True)]
        yield "  ".join([f"{name:<{widths[0]}}", *cells])


def _check(output: Path) -> None:
    if output.exists():
        raise UserError(f"{output}: is there already; remove it, or name another file with --output")
    if not output.absolute().parent.is_dir():
        raise UserError(f"{output}: its folder does not exist; make that first")
