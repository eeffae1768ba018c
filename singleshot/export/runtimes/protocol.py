"""The interface of a runtime's adapter. Imports only NumPy: some environments of runtimes lack PyTorch."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[np.generic]]
"""Arrays by the name of a graph's input or output."""
Shapes = Mapping[str, tuple[int, ...]]
"""Shapes of inputs, by name."""
Precision = Literal["float32", "bfloat16", "float16", "tf32"]


@dataclass(frozen=True)
class ModelFiles:
    """The files of one network, of which a runtime uses the one that it can read."""

    onnx: Path
    source: Path
    """File that PyTorch builds the network from, by `singleshot.export.model_files.open_network`."""
    form: str
    """`dense`, `masked` or `compacted`."""


@dataclass(frozen=True)
class Prepared:
    """A network compiled for inputs of certain shapes."""

    run: Callable[[Arrays], Arrays]
    """Function from inputs to outputs, both NumPy arrays on the CPU. It returns when the result is there."""
    precision: Precision
    """Precision that the network is actually computed in, as reported by the runtime if possible."""


class Runtime(ABC):
    """Prepares networks to run.

    `name` is that of one of the runtimes that the adapter's module declares, `streams` the number of threads
    that call the runtime at once.
    """

    def __init__(self, name: str, streams: int = 1) -> None:
        self.name, self.streams = name, streams

    def unavailable(self) -> str | None:
        """Reason why the runtime can't run here, in words that a user can act on; None if it can."""
        return None

    @abstractmethod
    def version(self) -> str:
        """Version of the runtime, e.g. `1.31.1`."""

    def device(self) -> str:
        """`cpu`, or the name of the GPU."""
        return "cpu"

    @abstractmethod
    def prepare(self, model: ModelFiles, shapes: Shapes, threads: int) -> Prepared:
        """Compile for inputs of `shapes`, or of any shape, on `threads` threads, in the runtime's process."""
