"""Checks of what scripts give as arguments, which may be anything."""

from numbers import Real
from typing import Any

from singleshot.errors import UserError

EXAMPLE = "prune(…, sparsity=0.95, method='snip')"


def shown(value: Any) -> str:
    """The beginning of a value's `repr`, without line breaks, for an error's message."""
    words = " ".join(repr(value).split())
    return words if len(words) <= 60 else f"{words[:59]}…"


def whole(name: str, value: Any, least: int) -> int:
    """A whole number of at least `least`, also where it is given as a float: 1e4.

    Raises:
        UserError: the value of the argument `name` is anything else.
    """
    number = isinstance(value, Real) and not isinstance(value, bool) and float(value).is_integer()
    if not number or value < least:
        raise UserError(f"{name} is {shown(value)}; it has to be a whole number, {least} or more")
    return int(value)


def check_method(method: Any) -> None:
    """Check the type of a pruner's name.

    Raises:
        UserError: it is no string.
    """
    if not isinstance(method, str):
        raise UserError(f"method is {shown(method)}; give a pruner's name, e.g. {EXAMPLE}")


def check_sparsity(sparsity: Any) -> None:
    """Check the type of the fraction of weights to remove.

    Raises:
        UserError: it is no number.
    """
    if not isinstance(sparsity, Real):
        raise UserError(f"sparsity is {shown(sparsity)}; give a number, e.g. {EXAMPLE}")
