"""What a packed file's codecs write to and read from: small integers, compressed all together, and bytes."""

import lzma
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]
_LZMA2 = ({"id": lzma.FILTER_LZMA2, "dict_size": 2**16, "lc": 0, "pb": 0},)
"""Without what is for text. An adaptive range coder: counts take 15 % fewer bytes than deflated."""

MOST_BYTES = 2**26
"""Of headers and counts; those of a ResNet-50 take a hundredth."""


def compress(data: bytes) -> bytes:
    """Compress to raw LZMA2, without a container."""
    return lzma.compress(data, lzma.FORMAT_RAW, filters=_LZMA2)


def decompress(data: bytes) -> bytes:
    """What :func:`compress` was given.

    Raises:
        LZMAError: that isn't what it wrote.
        ValueError: it is more than :data:`MOST_BYTES`.
    """
    decompressor = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=_LZMA2)
    content = decompressor.decompress(data, MOST_BYTES)
    if not decompressor.eof:
        raise ValueError(f"it is cut off, or more than {MOST_BYTES:,} bytes")
    return content


class Writer:
    """Collects what codecs write, in order."""

    def __init__(self) -> None:
        self._counts: list[int] = []
        self._parts: list[bytes] = []
        self.size = 0
        """Number of bytes so far, without those of counts."""

    def add_counts(self, values: Sequence[int] | Counts) -> None:
        """Non-negative integers below 2³², e.g. what models of entropy coders are made of."""
        self._counts.extend(int(value) for value in values)

    def add_bytes(self, data: bytes) -> None:
        """Add bytes that are not compressed any further."""
        self._parts.append(data)
        self.size += len(data)

    def compressed_counts(self) -> bytes:
        """All counts: their lowest bytes, then the next ones, …, which are mostly zeros."""
        planes = np.array(self._counts, "<u4").view(np.uint8).reshape(-1, 4).T
        return compress(planes.tobytes())

    def all_bytes(self) -> bytes:
        """All bytes."""
        return b"".join(self._parts)


class Reader:
    """Hands out in the same order what a :class:`Writer` collected. ValueError where there is no more."""

    def __init__(self, compressed_counts: bytes, data: bytes) -> None:
        planes = np.frombuffer(decompress(compressed_counts), np.uint8).reshape(4, -1)
        self._counts = np.ascontiguousarray(planes.T).view("<u4").astype(np.int64).ravel()
        self._data = data
        self._next_count = self.size = 0

    def take_counts(self, number: int) -> Counts:
        """The next `number` integers."""
        taken = self._counts[self._next_count : self._next_count + number]
        self._next_count += number
        if len(taken) < number:
            raise ValueError("counts are missing")
        return taken

    def take_bytes(self, number: int) -> bytes:
        """The next `number` bytes."""
        taken = self._data[self.size : self.size + number]
        self.size += number
        if len(taken) < number:
            raise ValueError("bytes are missing")
        return taken

    def check_empty(self) -> None:
        """ValueError if there is more."""
        if self.size != len(self._data) or self._next_count != len(self._counts):
            raise ValueError("there is more than its header says")
