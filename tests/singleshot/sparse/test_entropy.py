"""Masks and symbols through the coder, and how near to their entropy."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from singleshot.sparse.entropy import log2_binomial, read_mask, read_symbols, write_mask, write_symbols
from singleshot.sparse.streams import Reader, Writer


def through(out: Writer) -> Reader:
    return Reader(out.compressed_counts(), out.all_bytes())


def size_of(mask) -> int:
    out = Writer()
    write_mask(out, mask)
    return out.size + len(out.compressed_counts())


@given(arrays.arrays(bool, st.tuples(st.integers(0, 12), st.integers(0, 12))))
def test_a_mask_is_read_as_it_was_written(mask):
    out = Writer()
    write_mask(out, mask)
    source = through(out)
    np.testing.assert_array_equal(read_mask(source, mask.shape), mask, strict=True)
    source.check_empty()


@pytest.mark.parametrize("density", [0.0, 0.001, 0.05, 0.5, 0.95, 1.0])
def test_a_large_mask_is_read_as_it_was_written(density):
    mask = np.random.default_rng(0).random((130, 170)) < density
    out = Writer()
    write_mask(out, mask)
    np.testing.assert_array_equal(read_mask(through(out), mask.shape), mask)


@pytest.mark.parametrize("density", [0.02, 0.05, 0.2, 0.5])
def test_a_random_mask_takes_what_all_masks_of_its_count_do(density):
    """log2 C(N, k): every format has to spend as much on average, where no mask is likelier than another."""
    mask = np.random.default_rng(1).random((400, 500)) < density
    bound = math.log2(math.comb(mask.size, int(mask.sum()))) / 8
    assert bound < size_of(mask) < 1.07 * bound


def test_a_mask_that_its_rows_and_columns_determine_takes_next_to_nothing():
    """Half of all units have no weight, the other half have all: of 2500 entries no more than some bits."""
    mask = np.outer(np.arange(50) % 2 == 0, np.arange(50) < 25)
    out = Writer()
    write_mask(out, mask)
    assert out.size <= 8


def test_units_of_unlike_density_save_bits():
    """Rows that keep 1 % and 20 %: the mean of both entropies, not the entropy of the mean."""
    generator = np.random.default_rng(2)
    densities = np.repeat([0.01, 0.2], 200)[:, None]
    mask = generator.random((400, 600)) < densities
    entropy = sum(math.log2(math.comb(half.size, int(half.sum()))) for half in (mask[:200], mask[200:])) / 8
    alike = log2_binomial(mask.size, int(mask.sum())) / 8
    assert entropy < size_of(mask) < 1.06 * entropy < alike


@given(n=st.integers(0, 2000), data=st.data())
def test_log2_binomial_is_that_of_the_integer(n, data):
    k = data.draw(st.integers(0, n))
    assert log2_binomial(n, k) == pytest.approx(math.log2(math.comb(n, k)), abs=1e-6)


@given(st.binary(max_size=300))
def test_symbols_are_read_as_they_were_written(text):
    symbols = np.frombuffer(text, np.uint8)
    out = Writer()
    write_symbols(out, symbols)
    source = through(out)
    np.testing.assert_array_equal(read_symbols(source, len(symbols)), symbols, strict=True)
    source.check_empty()


def test_symbols_take_their_entropy():
    symbols = np.random.default_rng(3).choice(4, 20_000, p=[0.5, 0.25, 0.125, 0.125]).astype(np.uint8)
    out = Writer()
    write_symbols(out, symbols)
    assert out.size == pytest.approx(1.75 * 20_000 / 8, rel=0.01)
