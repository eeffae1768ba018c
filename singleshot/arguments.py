"""Checks of what scripts give as arguments, which may be anything."""

import contextlib
import os
from collections.abc import Iterator
from numbers import Real
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from singleshot.errors import UserError, in_a_line

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


def as_path(given: Any) -> Path:
    """A path that a script gave.

    Raises:
        UserError: it is something else.
    """
    if not isinstance(given, str | os.PathLike):
        raise UserError(f"{shown(given)} is no path; give a text or a pathlib.Path")
    return Path(given)


def new_file(path: str | Path, example: str) -> Path:
    """The path of a file that is to be written; its folder is made.

    Raises:
        UserError: it is a folder or a device, or its folder can't be made.
    """
    file = as_path(path)
    if file.is_dir():
        raise UserError(f"{file}: a folder; give the path of a file, e.g. {file / example}")
    if file.exists() and not file.is_file():  # which writing would replace by a file
        raise UserError(f"{file}: a device or a pipe; give the path of a file")
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
    return file


@contextlib.contextmanager
def writing(file: Path) -> Iterator[None]:
    """Tell why a file can't be written.

    Raises:
        UserError: it can't.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise UserError(f"{file}: can't be written ({in_a_line(error)}); give another path") from error
