"""What commands share: how options and examples are declared, and how errors are reported."""

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

import typer

from singleshot.errors import UserError, in_a_line, is_out_of_memory
from singleshot.secrets import without_secrets


def option(metavar: str | None, about: str, *names: str, **more: Any) -> Any:
    """An option with a value, named after its parameter unless `names` are given."""
    return typer.Option(*names, metavar=metavar, help=about, **more)


def argument(metavar: str, about: str) -> Any:
    """A positional argument."""
    return typer.Argument(metavar=metavar, help=about)


def examples(*commands: str) -> str | None:
    """The end of a command's help: command lines to copy."""
    lines = "\n".join(commands)
    return f"Examples:\n```text\n{lines}\n```" if commands else None


def must_exist(*paths: Path | None) -> None:
    """Check that the files that are given are there, before seconds of imports.

    Raises:
        UserError: one of them isn't.
    """
    for path in paths:
        if path and not (path.is_file() or path.is_dir()):
            raise UserError(f"{path}: no such file or folder; correct the path")


def must_be_new(file: Path | None, option: str, *suffixes: str) -> None:
    """Check that the file that an option names can be written, before its content is made.

    Raises:
        UserError: it can't, it exists already, or its name ends differently.
    """
    if file and (file.suffix.lower() not in suffixes or file.exists() or not file.absolute().parent.is_dir()):
        raise UserError(f"{file}: give {option} a new name that ends in {suffixes[0]}, in an existing folder")


@contextlib.contextmanager
def resumable(how: str) -> Iterator[None]:
    """If the user interrupts the context, say how to continue, and exit with a shell's status for SIGINT."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"\ninterrupted; {how}", file=sys.stderr)
        raise typer.Exit(130) from None


_CONTROLS = re.compile(
    r"\x1b(?!\[[\d;]*[mAK])|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""What a terminal would obey, such as a new title or a cleared screen, and what it can't show.

Not the colours of help, and what moves bars of progress."""


class _Shown:
    """A stream for people: of whatever is written to it, secrets are left out, and what files have of
    controls is escaped."""

    def __init__(self, stream: TextIO, name: str):
        self._stream, self._name = stream, name

    def write(self, text: str) -> int:
        shown = _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], without_secrets(text))
        with self._named():
            return self._stream.write(shown)

    def flush(self) -> None:
        with self._named():
            self._stream.flush()

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """Name the stream in an error, such as of a full disk behind it, after which nothing more is written:
        Python would try it again as it ends."""
        try:
            yield
        except OSError as error:
            error.filename = self._name
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def run(app: typer.Typer, told: Callable[[Exception], str | None] | None = None) -> None:
    """Run a command line. A user's mistake ends it with one line and status 1.

    `told` gives the line for errors of other kinds, or None.
    """
    sys.stdout, sys.stderr = _Shown(sys.stdout, "standard output"), _Shown(sys.stderr, "standard error")
    group = typer.main.get_group(app)
    for command in (group, *group.commands.values()):
        for parameter in command.get_params(typer.Context(command)):
            if getattr(parameter, "is_flag", False):  # it takes no value, whose type Typer would show
                parameter.metavar = ""
    try:
        try:
            group()
        finally:
            sys.stdout.flush()
    except UserError as error:
        sys.exit(f"error: {error}")
    except Exception as error:
        if line := told and told(error):
            sys.exit(line)
        if isinstance(error, OSError) and error.filename:
            sys.exit(f"error: {error.filename}: {error.strerror}")
        if is_out_of_memory(error):
            sys.exit(f"error: out of memory ({in_a_line(error)}); free some, or give less at once")
        raise
