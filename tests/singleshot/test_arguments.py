"""Checks of arguments."""

from typing import Annotated

import numpy as np
import pytest
from annotated_types import Ge

from singleshot.arguments import checked
from singleshot.errors import UserError, shown


@checked
def count(number: Annotated[int, Ge(1)], *, name: str = "") -> tuple[int, str]:
    return number, name


@pytest.mark.parametrize("value", [10, 1e1, np.int64(10), np.float32(10)])
def test_whole_floats_are_numbers_too(value):
    assert count(value) == (10, "")
    assert type(count(value)[0]) is int


@pytest.mark.parametrize("value", [0, 2.5, np.nan, "ten", None, [1]])
def test_anything_else_is_told_in_a_line_by_its_name(value):
    for call in (lambda: count(value), lambda: count(number=value)):
        with pytest.raises(UserError, match=r"^number is .*; Input should be "):
            call()
    with pytest.raises(UserError, match=r"^name is 3; "):
        count(1, name=3)


def test_other_arguments_are_python_s_to_refuse():
    with pytest.raises(TypeError, match="unexpected keyword argument 'names'"):
        count(1, names="")


def test_a_long_value_is_cut():
    assert shown("a" * 100) == "'" + "a" * 58 + "…"
    assert shown(np.eye(2)) == "array([[1., 0.], [0., 1.]])"
