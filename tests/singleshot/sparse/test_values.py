"""Values bit for bit, or as near as their fewer bits allow."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from singleshot.errors import UserError
from singleshot.sparse.streams import Reader, Writer
from singleshot.sparse.values import LOSSLESS, VALUES

# All of float32: NaN with every payload, infinities, denormals, both zeros.
any_bits = arrays.arrays(np.uint32, st.integers(0, 50)).map(lambda bits: bits.view(np.float32))
finite = arrays.arrays(np.float32, st.integers(0, 50), elements=st.floats(-60000, 60000, width=32))


def through(name, values, rows=None):
    """Written and read, as a single row unless told."""
    rows = np.array([len(values)] if rows is None else rows)
    out = Writer()
    VALUES[name].write(out, values, rows)
    source = Reader(out.compressed_counts(), out.all_bytes())
    read = VALUES[name].read(source, rows)
    source.check_empty()
    assert read.dtype == np.float32
    return read


@pytest.mark.parametrize("name", LOSSLESS)
@given(values=any_bits)
def test_lossless_values_keep_every_bit(name, values):
    assert through(name, values).view(np.uint32).tolist() == values.view(np.uint32).tolist()


@given(values=finite)
def test_fp16_is_numpys_half(values):
    np.testing.assert_array_equal(through("fp16", values), values.astype(np.float16).astype(np.float32))


@given(values=finite)
def test_int8_is_off_by_half_a_step_at_most(values):
    step = np.abs(values).max(initial=0) / 127
    # Of numbers near the least there are steps are no exact multiples.
    assert (np.abs(through("int8", values) - values) <= 0.5001 * step + 1e-40).all()


def test_int8_of_known_values():
    """The largest is 127 steps, so a step is 0.01."""
    values = np.array([1.27, -1.27, 0.5, 0.004, 0.006, 0.0], np.float32)
    np.testing.assert_allclose(through("int8", values), [1.27, -1.27, 0.5, 0.0, 0.01, 0.0], rtol=1e-6)


def test_int8_has_a_step_for_each_row():
    """Of rows of 2, none and 1: a row of small numbers isn't rounded to nothing by one of large ones."""
    values = np.array([1000.0, 500.0, 0.001], np.float32)
    read = through("int8", values, [2, 0, 1])
    np.testing.assert_allclose(read, [1000, 64 / 127 * 1000, 0.001], rtol=1e-5)
    assert through("int8", values)[2] == 0


def test_int8_of_the_largest_float_is_no_infinity():
    assert np.isfinite(through("int8", np.array([np.finfo(np.float32).max], np.float32))).all()


def test_fp16_refuses_what_is_beyond_it_and_keeps_infinities():
    assert through("fp16", np.array([np.inf, -np.inf], np.float32)).tolist() == [np.inf, -np.inf]
    with pytest.raises(UserError, match="70000 is beyond float16"):
        through("fp16", np.array([1, 70_000], np.float32))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_int8_refuses_what_no_step_reaches(value):
    with pytest.raises(UserError, match="NaN or infinity"):
        through("int8", np.array([1, value], np.float32))


def test_exponents_of_a_trained_layers_kind_take_27_bits():
    values = np.random.default_rng(0).normal(0, 0.05, 10_000).astype(np.float32)
    out = Writer()
    VALUES["exponents"].write(out, values, np.array([len(values)]))
    exponents = np.frexp(values)[1]
    _, counts = np.unique(exponents, return_counts=True)
    entropy = -(counts / counts.sum() * np.log2(counts / counts.sum())).sum()
    assert 8 * out.size / len(values) == pytest.approx(24 + entropy, rel=0.005)
