"""How a packed file holds the kept values of a tensor: losslessly, or rounded to fewer bits."""

from collections.abc import Mapping
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from tasks.errors import UserError
from tasks.sparse.entropy import read_symbols, write_symbols
from tasks.sparse.streams import Reader, Writer

Floats = NDArray[np.float32]
"""(values,)"""
ValuesName = Literal["raw", "exponents", "fp16", "int8"]


class Values(Protocol):
    """A way to write numbers."""

    def write(self, out: Writer, values: Floats) -> None:
        """UserError if they can't be written so."""

    def read(self, source: Reader, number: int) -> Floats:
        """What was written, of which there were `number`."""


class Raw:
    """float32, 4 bytes."""

    def write(self, out: Writer, values: Floats) -> None:
        """All bits, those of -0.0 and of every NaN too."""
        out.add_bytes(values.astype("<f4").tobytes())

    def read(self, source: Reader, number: int) -> Floats:
        """The same bits."""
        return np.frombuffer(source.take_bytes(4 * number), "<f4").astype(np.float32)


class Exponents:
    """float32 in about 27 bits: 24 of sign and mantissa as they are, then the exponents, entropy-coded.

    Exponents have some 2.6 bits of entropy in a trained layer; mantissas can't be told from random bits.
    """

    def write(self, out: Writer, values: Floats) -> None:
        """All bits, as :class:`Raw`."""
        bits = np.ascontiguousarray(values).view(np.uint32)
        fractions = (bits >> 8 & 0x800000) | (bits & 0x7FFFFF)
        out.add_bytes(fractions.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :3].tobytes())
        write_symbols(out, (bits >> 23 & 0xFF).astype(np.uint8))

    def read(self, source: Reader, number: int) -> Floats:
        """The same bits."""
        low = np.frombuffer(source.take_bytes(3 * number), np.uint8).reshape(-1, 3)
        fractions = np.pad(low, ((0, 0), (0, 1))).view("<u4").astype(np.uint32).ravel()
        exponents = read_symbols(source, number).astype(np.uint32)
        bits = (fractions & 0x800000) << 8 | exponents << 23 | (fractions & 0x7FFFFF)
        return bits.view(np.float32)


class Float16:
    """Rounded to 2 bytes."""

    def write(self, out: Writer, values: Floats) -> None:
        """UserError for a number beyond ±65,504."""
        with np.errstate(over="ignore"):
            halves = values.astype("<f2")
        beyond = np.isinf(halves) & ~np.isinf(values)
        if beyond.any():
            raise UserError(f"{values[beyond][0]:g} is beyond float16's ±65504; pack it as raw or exponents")
        out.add_bytes(halves.tobytes())

    def read(self, source: Reader, number: int) -> Floats:
        """To 11 bits of what was written."""
        return np.frombuffer(source.take_bytes(2 * number), "<f2").astype(np.float32)


class Int8:
    """Rounded to multiples of a tensor's largest value / 127: 1 byte each, and 4 a tensor."""

    def write(self, out: Writer, values: Floats) -> None:
        """UserError for NaN and infinity."""
        if not np.isfinite(values).all():
            raise UserError("NaN or infinity is no multiple of anything; pack it as raw, exponents or fp16")
        # Rounded down: 127 times it must not be infinite.
        scale = np.nextafter(np.abs(values).max(initial=np.float32(0)) / np.float32(127), np.float32(0))
        levels = np.rint(values / scale) if scale > 0 else np.zeros_like(values)
        out.add_bytes(scale.astype("<f4").tobytes())
        out.add_bytes(levels.clip(-127, 127).astype(np.int8).tobytes())

    def read(self, source: Reader, number: int) -> Floats:
        """To half of a 127th of the largest."""
        scale = np.frombuffer(source.take_bytes(4), "<f4").astype(np.float32)
        return np.frombuffer(source.take_bytes(number), np.int8).astype(np.float32) * scale


VALUES: Mapping[ValuesName, Values] = {
    "raw": Raw(),
    "exponents": Exponents(),
    "fp16": Float16(),
    "int8": Int8(),
}
LOSSLESS: tuple[ValuesName, ...] = ("raw", "exponents")
