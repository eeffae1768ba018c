"""One adapter a runtime, all behind `protocol.Runtime`."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from tasks.deployment.runtimes.protocol import Runtime

RUNTIMES = (
    "torch",
    "torch-compile",
    "onnxruntime",
    "numba-sparse",
    "openvino-f32",
    "openvino-bf16",
    "tvm",
    "tvm-tuned",
    "xla",
    "tensorflow",
    "iree",
    "onnxruntime-cuda",
    "onnxruntime-tensorrt",
    "torch-cuda",
)
"""All there are adapters for. nGraph's successor is OpenVINO;
`numba-sparse` is this project's kernels for what pruning keeps."""

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
"""Of the package index: any of these holds the runtime."""
ISOLATED = frozenset({"tensorflow"})
"""These live in an environment of their own, see `tasks.deployment.environment`."""
FOR_PRUNED = frozenset({"numba-sparse"})
"""These compute nothing but networks that were pruned."""
NOT_INSTALLED = "not installed; `make compilers` installs the optional runtimes"
THREADS_ARE_FINAL = frozenset({"tensorflow", "xla"})
"""Their number of threads can be set once in a process."""


def open_runtime(name: str, streams: int = 1) -> Runtime:
    """The adapter of `name`. It imports its runtime no sooner than it is asked for: many aren't installed.

    `streams` is how many threads call it at once. Only OpenVINO has to know.

    Raises:
        KeyError: not one of :data:`RUNTIMES`.
    """
    match name:
        case "torch" | "torch-cuda":
            from tasks.deployment.runtimes.torch_eager import TorchEager

            return TorchEager("cuda" if name == "torch-cuda" else "cpu")
        case "torch-compile":
            from tasks.deployment.runtimes.torch_compile import TorchCompile

            return TorchCompile()
        case "onnxruntime" | "onnxruntime-cuda" | "onnxruntime-tensorrt":
            from tasks.deployment.runtimes.onnx_runtime import PROVIDERS, OnnxRuntime

            return OnnxRuntime(PROVIDERS[name])
        case "numba-sparse":
            from tasks.deployment.runtimes.numba_sparse import NumbaSparse

            return NumbaSparse()
        case "openvino-f32" | "openvino-bf16":
            from tasks.deployment.runtimes.openvino import OpenVINO

            return OpenVINO("float32" if name == "openvino-f32" else "bfloat16", streams)
        case "tvm" | "tvm-tuned":
            from tasks.deployment.runtimes.tvm import TUNE_S, TVM

            return TVM(TUNE_S if name == "tvm-tuned" else 0)
        case "xla":
            from tasks.deployment.runtimes.xla import XLA

            return XLA()
        case "tensorflow":
            from tasks.deployment.runtimes.tensorflow import TensorFlow

            return TensorFlow()
        case "iree":
            from tasks.deployment.runtimes.iree import IREE

            return IREE()
    raise KeyError(name)


def interpreter(name: str) -> Path | None:
    """The Python that `name` runs in, None where its environment isn't built."""
    if name not in ISOLATED:
        return Path(sys.executable)
    from tasks.deployment.environment import tensorflow_python

    return tensorflow_python()


def installed_version(name: str) -> str | None:
    """Of the package that `name` is part of, None where it isn't installed. Imports nothing of it.

    Raises:
        KeyError: not one of :data:`RUNTIMES`.
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
    """A runtime as it is installed, so that another version is measured anew."""

    name: str
    """One of :data:`RUNTIMES`."""
    version: str | None
    """None where it isn't installed."""


def runtimes_here(names: Sequence[str]) -> tuple[RuntimeAt, ...]:
    """The installed versions; looks them up without importing any runtime."""
    return tuple(RuntimeAt(name, installed_version(name)) for name in names)
