"""Codings of a tensor's kept values in a packed file: lossless, or rounded to fewer bits."""

from collections.abc import Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from singleshot.errors import UserError
from singleshot.sparse.entropy import read_symbols, write_symbols
from singleshot.sparse.streams import Counts, Reader, Writer

Floats = NDArray[np.float32]
"""(values,)"""
ValuesName = Literal["raw", "exponents", "fp16", "int8"]


class Raw:
    """float32, 4 bytes."""

    def write(self, out: Writer, values: Floats, _: Counts) -> None:
        """Write all bits, including those of -0.0 and of every NaN."""
        out.add_bytes(values.astype("<f4").tobytes())

    def read(self, source: Reader, rows: Counts) -> Floats:
        """Read the same bits."""
        return np.frombuffer(source.take_bytes(4 * int(rows.sum())), "<f4").astype(np.float32)


class Exponents:
    """float32 in about 27 bits: the 24 bits of sign and mantissa as they are, then entropy-coded exponents.

    Exponents have some 2.6 bits of entropy in a trained layer; mantissas can't be told from random bits.
    """

    def write(self, out: Writer, values: Floats, _: Counts) -> None:
        """Write all bits, as :class:`Raw` does."""
        bits = np.ascontiguousarray(values).view(np.uint32)
        fractions = (bits >> 8 & 0x800000) | (bits & 0x7FFFFF)
        out.add_bytes(fractions.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :3].tobytes())
        write_symbols(out, (bits >> 23 & 0xFF).astype(np.uint8))

    def read(self, source: Reader, rows: Counts) -> Floats:
        """Read the same bits."""
        number = int(rows.sum())
        low = np.frombuffer(source.take_bytes(3 * number), np.uint8).reshape(-1, 3)
        fractions = np.pad(low, ((0, 0), (0, 1))).view("<u4").astype(np.uint32).ravel()
        exponents = read_symbols(source, number).astype(np.uint32)
        bits = (fractions & 0x800000) << 8 | exponents << 23 | (fractions & 0x7FFFFF)
        return bits.view(np.float32)


class Float16:
    """Rounded to 2 bytes."""

    def write(self, out: Writer, values: Floats, _: Counts) -> None:
        """Write rounded values. Raises UserError for a number beyond ±65,504."""
        with np.errstate(over="ignore"):
            halves = values.astype("<f2")
        beyond = np.isinf(halves) & ~np.isinf(values)
        if beyond.any():
            raise UserError(f"{values[beyond][0]:g} is beyond float16's ±65504; pack it as raw or exponents")
        out.add_bytes(halves.tobytes())

    def read(self, source: Reader, rows: Counts) -> Floats:
        """Read values, which agree with the written ones to 11 bits."""
        return np.frombuffer(source.take_bytes(2 * int(rows.sum())), "<f2").astype(np.float32)


class Int8:
    """Rounded to multiples of 1/127 of a row's largest magnitude: 1 byte per value, 4 per row that has any.

    One scale per layer is not enough. The scales of normalised states are folded into the weights of first
    layers, whose inputs then differ by a factor of 200: rounded with one scale per layer, a HalfCheetah agent
    falls from a D4RL score of 68 to that of a random policy (BC, SNIP at 95 %).
    """

    def write(self, out: Writer, values: Floats, rows: Counts) -> None:
        """Write scales and rounded values. Raises UserError for NaN and infinity."""
        if not np.isfinite(values).all():
            raise UserError("int8 can't represent NaN or infinity; pack it as raw, exponents or fp16")
        rows = rows[rows > 0]
        starts = np.cumsum(rows) - rows
        largest = np.maximum.reduceat(np.abs(values), starts) if len(rows) else values
        # Rounded down, so that 127 times the scale is not infinite.
        scales = np.nextafter(largest / np.float32(127), np.float32(0))
        each = np.repeat(scales, rows)
        levels = np.rint(np.divide(values, each, out=np.zeros_like(values), where=each > 0))
        out.add_bytes(scales.astype("<f4").tobytes())
        out.add_bytes(levels.clip(-127, 127).astype(np.int8).tobytes())

    def read(self, source: Reader, rows: Counts) -> Floats:
        """Read values, each within half of 1/127 of its row's largest magnitude."""
        rows = rows[rows > 0]
        scales = np.frombuffer(source.take_bytes(4 * len(rows)), "<f4").astype(np.float32)
        levels = np.frombuffer(source.take_bytes(int(rows.sum())), np.int8)
        return levels.astype(np.float32) * np.repeat(scales, rows)


Values = Raw | Exponents | Float16 | Int8
"""A coding of numbers (values,), of which the first `rows[0]` are a matrix's first row, and so on."""
VALUES: Mapping[ValuesName, Values] = {
    "raw": Raw(),
    "exponents": Exponents(),
    "fp16": Float16(),
    "int8": Int8(),
}
LOSSLESS: tuple[ValuesName, ...] = ("raw", "exponents")
