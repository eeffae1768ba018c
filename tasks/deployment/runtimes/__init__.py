"""One adapter a runtime, all behind `protocol.Runtime`."""

import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tasks.deployment.runtimes.protocol import Runtime

RUNTIMES = (
    "torch",
    "torch-compile",
    "onnxruntime",
    "openvino-f32",
    "openvino-bf16",
    "tvm",
    "tensorflow",
    "xla",
    "iree",
    "onnxruntime-cuda",
    "onnxruntime-tensorrt",
    "torch-cuda",
)
"""All there are adapters for; nGraph's successor is OpenVINO, `xla` is TensorFlow's own compiler."""

PACKAGES = {
    "torch": ("torch",),
    "torch-compile": ("torch",),
    "onnxruntime": ("onnxruntime", "onnxruntime-gpu"),
    "openvino-f32": ("openvino",),
    "openvino-bf16": ("openvino",),
    "tvm": ("apache-tvm",),
    "tensorflow": ("tensorflow", "tensorflow-cpu"),
    "xla": ("tensorflow", "tensorflow-cpu"),
    "iree": ("iree-base-runtime",),
    "onnxruntime-cuda": ("onnxruntime-gpu", "onnxruntime"),
    "onnxruntime-tensorrt": ("onnxruntime-gpu", "onnxruntime"),
    "torch-cuda": ("torch",),
}
"""Of the package index: any of these holds the runtime."""
THREADS_ARE_FINAL = frozenset({"tensorflow", "xla"})
"""Their number of threads can be set once in a process."""


def open_runtime(name: str) -> Runtime:
    """The adapter of `name`. It imports its runtime no sooner than it is asked for: many aren't installed.

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
        case "openvino-f32" | "openvino-bf16":
            from tasks.deployment.runtimes.openvino import OpenVINO

            return OpenVINO("float32" if name == "openvino-f32" else "bfloat16")
    raise KeyError(name)


def interpreter(name: str) -> Path | None:  # noqa: ARG001
    """The Python that `name` runs in, None where that isn't installed."""
    return Path(sys.executable)


def installed_version(name: str) -> str | None:
    """Of the package that `name` is part of, None where it isn't installed. Imports nothing of it.

    Raises:
        KeyError: not one of :data:`RUNTIMES`.
    """
    for package in PACKAGES[name]:
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return None
