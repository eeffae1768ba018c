"""Checks of arguments."""

import numpy as np
import pytest

from singleshot.arguments import shown, whole
from singleshot.errors import UserError


@pytest.mark.parametrize("value", [10, 1e1, np.int64(10), np.float32(10)])
def test_whole_floats_are_numbers_too(value):
    made = whole("updates", value, 1)
    assert made == 10
    assert type(made) is int


@pytest.mark.parametrize("value", [0, -1, 2.5, np.nan, np.inf, "10", None, True, [1]])
def test_anything_else_is_told_in_a_line(value):
    with pytest.raises(UserError, match=r"^updates is .*; it has to be a whole number, 1 or more$"):
        whole("updates", value, 1)


def test_a_long_value_is_cut():
    assert shown("a" * 100) == "'" + "a" * 58 + "…"
    assert shown(np.eye(2)) == "array([[1., 0.], [0., 1.]])"
