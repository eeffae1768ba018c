"""Entropy coding with asymmetric numeral systems: masks given row and column counts, symbols by frequency.

The models must be bit-identical on every machine, or files could not be opened elsewhere. So they are
computed from integers with IEEE's correctly rounded sums, products and quotients only, in a fixed order, and
a mask's probabilities are multiples of 2⁻¹⁶, which are exact in float32. The coder (`constriction`) converts
probabilities to 24-bit fixed point with the same operations, and from there on computes with integers.
"""

import math
from typing import Any

import numpy as np
from constriction import stream
from numpy.typing import NDArray

from singleshot.sparse.streams import Counts, Reader, Writer

Mask = NDArray[np.bool_]
STEPS = 2**16
"""Number of steps of a probability. An event of the smallest one costs 16 bits if it happens, else 2e-5."""
WORD = np.dtype("<u4")
"""Type of the words that the coder compresses to."""
_AnsCoder = stream.stack.AnsCoder
_KEPT = stream.model.Bernoulli(perfect=False)


def log2_binomial(n: int, k: int) -> float:
    """Bits needed to tell which `k` of `n` weights are kept, if all masks are equally likely."""
    return (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)) / math.log(2)


def write_mask(out: Writer, mask: Mask) -> None:
    """Write a matrix of bools.

    The numbers of kept entries in each row and column come first, then the entries, coded given these
    numbers. In pruned networks, some units keep many weights and others few: a 750×750 SNIP mask at 95 %
    sparsity takes 27 % less than log2 C(N, k) bits. A uniformly random mask takes 2 % more.
    """
    rows, columns = mask.sum(1), mask.sum(0)
    out.add_counts(rows)
    out.add_counts(columns)
    probabilities = [np.zeros(0, np.float32)]
    remaining = _Remaining(rows, columns)
    for row in mask:
        probabilities.append(remaining.probabilities())
        remaining.take(row)
    coder = _AnsCoder()
    coder.encode_reverse(mask.ravel().astype(np.int32), _KEPT, np.concatenate(probabilities))
    _write_compressed(out, coder)


def read_mask(source: Reader, shape: tuple[int, int]) -> Mask:
    """Read what :func:`write_mask` wrote."""
    rows, columns = source.take_counts(shape[0]), source.take_counts(shape[1])
    coder = _read_compressed(source)
    mask = np.zeros(shape, bool)
    remaining = _Remaining(rows, columns)
    for row in mask:
        row[:] = coder.decode(_KEPT, remaining.probabilities())
        remaining.take(row)
    return mask


class _Remaining:
    """Kept entries of the rows of a mask that have not been visited yet, counted by row and by column."""

    def __init__(self, rows: Counts, columns: Counts) -> None:
        self.rows, self.columns = rows, columns
        self.row = 0

    def probabilities(self) -> NDArray[np.float32]:
        """Probability that each entry of the next row is kept, in multiples of 1 / STEPS, float32.

        The odds of row and column multiply: p / (1 - p) = r / (m - r) · c / (n - c) · (n m - k) / k. Here m
        columns and n rows keep any entries. Of these entries, the row keeps r of m, the column c of n, and
        the whole matrix k of n m.
        """
        rows, c = self.rows[self.row :], self.columns.astype(np.float64)
        n, m = np.count_nonzero(rows), np.count_nonzero(c)
        r, k = float(rows[0]), float(rows.sum())
        kept, pruned = r * c * (n * m - k), (m - r) * (n - c) * k
        # Both may be 0 where the row or column keeps none, or where all that remains is kept.
        certain = np.where(c * r > 0, 1.0, 0.0)
        p = np.divide(kept, kept + pruned, out=certain, where=kept + pruned > 0)
        steps = np.rint(p * STEPS).clip(1, STEPS - 1)
        return (steps / STEPS).astype(np.float32)

    def take(self, row: Mask) -> None:
        """Go to the next row."""
        self.columns = self.columns - row
        self.row += 1


def write_symbols(out: Writer, symbols: NDArray[np.uint8]) -> None:
    """Write the frequencies of bytes, then the bytes, coded given these frequencies."""
    frequencies = np.bincount(symbols, minlength=256)
    out.add_counts(frequencies)
    coder = _AnsCoder()
    if len(symbols):
        coder.encode_reverse(symbols.astype(np.int32), _categorical(frequencies))
    _write_compressed(out, coder)


def read_symbols(source: Reader, number: int) -> NDArray[np.uint8]:
    """Read what :func:`write_symbols` wrote."""
    frequencies = source.take_counts(256)
    coder = _read_compressed(source)
    if not number:
        return np.zeros(0, np.uint8)
    return coder.decode(_categorical(frequencies), number).astype(np.uint8)


def _categorical(frequencies: Counts) -> Any:
    return stream.model.Categorical(frequencies.astype(np.float64), perfect=False)


def _write_compressed(out: Writer, coder: Any) -> None:
    words = coder.get_compressed()
    out.add_counts([len(words)])
    out.add_bytes(words.astype(WORD).tobytes())


def _read_compressed(source: Reader) -> Any:
    (words,) = source.take_counts(1)
    return _AnsCoder(np.frombuffer(source.take_bytes(int(words) * WORD.itemsize), WORD).astype(np.uint32))
