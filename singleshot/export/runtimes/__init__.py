"""One adapter per runtime, all with the interface `protocol.Runtime`."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from singleshot.export.runtimes.protocol import Runtime

PACKAGES = {
    "torch": ("torch",),
    "torch-compile": ("torch",),
    "onnxruntime": ("onnxruntime", "onnxruntime-gpu"),
    "numba-sparse": ("numba",),
    "openvino-f32": ("openvino",),
    "openvino-bf16": ("openvino",),
    "tvm": ("apache-tvm",),
    "tvm-tuned": ("apache-tvm",),
    "xla": ("jaxlib",),
    "tensorflow": ("tensorflow", "tensorflow-cpu"),
    "iree": ("iree-base-runtime",),
    "onnxruntime-cuda": ("onnxruntime-gpu", "onnxruntime"),
    "onnxruntime-tensorrt": ("onnxruntime-gpu", "onnxruntime"),
    "torch-cuda": ("torch",),
}
"""Packages of the package index by runtime, any of which contains it."""
RUNTIMES = tuple(PACKAGES)
"""All runtimes with an adapter. OpenVINO is nGraph's successor; `numba-sparse` means this project's kernels
for the weights that pruning keeps."""
ISOLATED = frozenset({"tensorflow"})
"""Runtimes in an environment of their own, see `singleshot.export.environment`."""
FOR_PRUNED = frozenset({"numba-sparse"})
"""Runtimes for networks that were pruned, and no others."""
NOT_INSTALLED = "not installed; `make compilers` installs the optional runtimes"
THREADS_ARE_FINAL = frozenset({"tensorflow", "xla"})
"""Runtimes whose number of threads can be set only once in a process."""

SLOW_TO_PREPARE = frozenset({"tvm-tuned", "torch-compile", "tvm", "iree", "onnxruntime-tensorrt"})
"""Runtimes that take longest to compile a network. They begin first, while others use the other cores."""


def open_runtime(name: str, streams: int = 1) -> Runtime:
    """The adapter of the runtime `name`, imported only now because many runtimes aren't installed.

    `streams` is the number of threads that call the runtime at once. Only OpenVINO has to know it.

    Raises:
        KeyError: `name` is not one of :data:`RUNTIMES`.
    """
    match name:
        case "torch" | "torch-cuda":
            from singleshot.export.runtimes.torch_eager import TorchEager

            return TorchEager("cuda" if name == "torch-cuda" else "cpu")
        case "torch-compile":
            from singleshot.export.runtimes.torch_compile import TorchCompile

            return TorchCompile()
        case "onnxruntime" | "onnxruntime-cuda" | "onnxruntime-tensorrt":
            from singleshot.export.runtimes.onnx_runtime import PROVIDERS, OnnxRuntime

            return OnnxRuntime(PROVIDERS[name])
        case "numba-sparse":
            from singleshot.export.runtimes.numba_sparse import NumbaSparse

            return NumbaSparse()
        case "openvino-f32" | "openvino-bf16":
            from singleshot.export.runtimes.openvino import OpenVINO

            return OpenVINO("float32" if name == "openvino-f32" else "bfloat16", streams)
        case "tvm" | "tvm-tuned":
            from singleshot.export.runtimes.tvm import TUNE_S, TVM

            return TVM(TUNE_S if name == "tvm-tuned" else 0)
        case "xla":
            from singleshot.export.runtimes.xla import XLA

            return XLA()
        case "tensorflow":
            from singleshot.export.runtimes.tensorflow import TensorFlow

            return TensorFlow()
        case "iree":
            from singleshot.export.runtimes.iree import IREE

            return IREE()
    raise KeyError(name)


def interpreter(name: str) -> Path | None:
    """The Python interpreter that `name` runs in; None if its environment isn't built."""
    if name not in ISOLATED:
        return Path(sys.executable)
    from singleshot.export.environment import tensorflow_python

    return tensorflow_python()


def installed_version(name: str) -> str | None:
    """Version of the package that contains `name`; None if it isn't installed. Imports nothing of it.

    Raises:
        KeyError: `name` is not one of :data:`RUNTIMES`.
    """
    python = interpreter(name)
    if python is None:
        return None
    elsewhere = [str(path) for path in python.parents[1].glob("lib/python*/site-packages")]
    for package in PACKAGES[name]:
        for found in distributions(name=package, path=elsewhere if name in ISOLATED else sys.path):
            return found.version
    return None


@dataclass(frozen=True)
class RuntimeAt:
    """A runtime and its installed version, so that another version is measured anew."""

    name: str
    """One of :data:`RUNTIMES`."""
    version: str | None
    """Installed version; None if the runtime isn't installed."""


def runtimes_here(names: Sequence[str]) -> tuple[RuntimeAt, ...]:
    """The runtimes with their installed versions, which are looked up without importing any runtime."""
    return tuple(RuntimeAt(name, installed_version(name)) for name in names)
