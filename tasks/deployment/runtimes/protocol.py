"""What an adapter of a runtime is. Imports NumPy alone: some runtimes live where PyTorch doesn't."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[np.generic]]
"""By the name of a graph's input or output."""
Shapes = Mapping[str, tuple[int, ...]]
"""Of inputs, by name."""
Precision = Literal["float32", "bfloat16", "float16", "tf32"]


@dataclass(frozen=True)
class ModelFiles:
    """One network as files, of which a runtime takes what it can read."""

    onnx: Path
    source: Path
    """What PyTorch builds the network from: `tasks.deployment.networks.open_network(source, form)`."""
    form: str
    """`dense`, `masked` or `compacted`."""


@dataclass(frozen=True)
class Prepared:
    """A network compiled for inputs of certain shapes."""

    run: Callable[[Arrays], Arrays]
    """Inputs to outputs, both NumPy's, on the CPU. Returns when the result is there."""
    precision: Precision
    """That it really computes in, as the runtime itself tells where it can."""


class Runtime(ABC):
    """Prepares networks to run."""

    def unavailable(self) -> str | None:
        """Why it can't run here, in words a user can act on; None if it can."""
        return None

    @abstractmethod
    def version(self) -> str:
        """Version of the runtime, e.g. `1.31.1`."""

    def device(self) -> str:
        """`cpu`, or the name of the GPU."""
        return "cpu"

    @abstractmethod
    def prepare(self, model: ModelFiles, shapes: Shapes, threads: int) -> Prepared:
        """Compile for inputs of `shapes`, unless any will do, on `threads` threads; in its own process."""


def save_arrays(path: Path, arrays: Arrays) -> None:
    """Write an .npz file."""
    np.savez(path, **arrays)  # type: ignore[arg-type]


def load_arrays(path: Path) -> dict[str, NDArray[np.generic]]:
    """What :func:`save_arrays` wrote."""
    with np.load(path) as file:
        return {name: file[name] for name in file.files}
