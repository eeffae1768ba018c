"""Checks of the arguments that scripts give, which may be anything: pydantic's, told in one line."""

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, ParamSpec, TypeVar

import pydantic
from annotated_types import Ge

from singleshot.errors import UserError, did_you_mean, shown

P = ParamSpec("P")
R = TypeVar("R")
Seed = Annotated[int, Ge(0)]
Count = Annotated[int, Ge(1)]
"""Whole numbers, which may be given as floats: 1e4."""


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Check the arguments of each call by their annotations (a decorator).

    Raises:
        UserError: by the function that is returned, if one of them is of the wrong type or out of range.
    """
    validated = pydantic.validate_call(config={"arbitrary_types_allowed": True})(function)
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        signature.bind(*args, **kwargs)  # raises Python's own TypeError
        with _told("", list(signature.parameters)):
            return validated(*args, **kwargs)

    return call


def settings(kind: type[R], given: Mapping[str, Any], who: str) -> R:
    """A dataclass from keyword arguments.

    Raises:
        UserError: one of them is unknown, of the wrong type or out of range.
    """
    known = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for name in given:
        if name not in known:
            fix = did_you_mean(name, known, f"known are {', '.join(known)}")
            raise UserError(f"{who} has no setting {name!r}; {fix}")
    with _told(f"{who}: "):
        return pydantic.TypeAdapter(kind).validate_python(dict(given))


@contextlib.contextmanager
def _told(who: str, parameters: list[str] | None = None) -> Iterator[None]:
    """Tell the first finding of pydantic's in a line; in a call, positional arguments are found by number."""
    try:
        yield
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        if not first["loc"]:  # a check of the whole says it all
            raise UserError(f"{who}{first['msg'].removeprefix('Value error, ')}") from error
        name, words = first["loc"][0], first["msg"]
        name = parameters[name] if parameters and isinstance(name, int) else name
        if first["type"] == "missing":  # in a tuple
            words = f"give {int(error.errors()[-1]['loc'][-1]) + 1} entries"
        raise UserError(f"{who}{name} is {shown(first['input'])}; {words}") from error
