"""Code that the benchmarks' command lines share: a user's mistake prints one line, not a traceback."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from singleshot.errors import UserError

Number = TypeVar("Number", int, float)


def run_main(main: Callable[[], None]) -> None:
    """Run a benchmark; for a :class:`UserError`, print its message and exit with status 1."""
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")


def positive(kind: type[Number]) -> Callable[[str], Number]:
    """A type for `argparse`: an `int` or `float` above 0."""

    def convert(text: str) -> Number:
        number = kind(text)
        if not number > 0:
            raise argparse.ArgumentTypeError(f"{text} is not above 0")
        return number

    convert.__name__ = kind.__name__  # the name in the message of argparse if `text` is not a number
    return convert


def check_inputs(*paths: Path, stages: str) -> None:
    """Raise a UserError if one of `paths`, which `stages` make, is missing."""
    for path in paths:
        if not path.exists():
            raise UserError(f"{path}: not there; `dvc repro {stages}` makes it")
