"""Safetensors files: tensors by name, and metadata that describes them."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
from torch import Tensor

from singleshot.errors import UserError, explained


@dataclass(frozen=True)
class TensorFile:
    """The content of a safetensors file."""

    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str]


def read_tensor_file(path: Path, fix: str = "make it again") -> TensorFile:
    """Read a whole file to the CPU; `fix` tells the user what to do if it can't be read.

    Raises:
        UserError: the file is missing or damaged, or isn't a safetensors file.
    """
    with _opened(path, fix) as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        return TensorFile(tensors, file.metadata() or {})


def read_metadata(path: Path) -> Mapping[str, str]:
    """Read only a file's metadata. Raises UserError as :func:`read_tensor_file` does."""
    with _opened(path, "make it again") as file:
        return file.metadata() or {}


@contextlib.contextmanager
def writing(path: str | Path, example: str) -> Iterator[Path]:
    """The path of a file that is to be written in this context; its folder is made.

    Raises:
        UserError: it is a folder, or can't be written.
    """
    file = Path(path)
    if file.is_dir():
        raise UserError(f"{file}: a folder; give the path of a file, e.g. {file / example}")
    with explained(f"{file}: can't be written", "give another path", (OSError, safetensors.SafetensorError)):
        file.parent.mkdir(parents=True, exist_ok=True)
        yield file


@contextlib.contextmanager
def _opened(path: Path, fix: str) -> Iterator[Any]:
    if not path.is_file():  # it would wait for a FIFO
        raise UserError(f"{path}: no such file; {fix}")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            yield file
    except (safetensors.SafetensorError, OSError) as error:
        raise UserError(f"{path}: not a whole safetensors file ({error}); {fix}") from error
