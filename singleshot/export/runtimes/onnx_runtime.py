"""onnxruntime, on the CPU, or on a GPU with a different one of its providers."""

import functools
import os
import shutil
import subprocess

import onnxruntime

from singleshot.export.runtimes.protocol import Arrays, ModelFiles, Prepared, Runtime, Shapes

PROVIDERS = {
    "onnxruntime": "CPUExecutionProvider",
    "onnxruntime-cuda": "CUDAExecutionProvider",
    "onnxruntime-tensorrt": "TensorrtExecutionProvider",
}
"""Execution provider of each runtime."""

RUNTIMES = {
    "onnxruntime": {"packages": ("onnxruntime", "onnxruntime-gpu")},
    "onnxruntime-cuda": {"packages": ("onnxruntime-gpu", "onnxruntime")},
    "onnxruntime-tensorrt": {"packages": ("onnxruntime-gpu", "onnxruntime"), "slow_to_prepare": True},
}


class OnnxRuntime(Runtime):
    """Runs a graph with the runtime's provider, in float32 throughout."""

    def __init__(self, name: str, streams: int = 1) -> None:
        super().__init__(name, streams)
        self.provider = PROVIDERS[name]

    def unavailable(self) -> str | None:
        """Reason why the runtime can't run here; None if it can."""
        if self.provider not in onnxruntime.get_available_providers():
            return f"this onnxruntime is built without {self.provider}; install onnxruntime-gpu instead"
        return None if self._on_cpu or gpu_name() else "no NVIDIA GPU here"

    def version(self) -> str:
        """Version of onnxruntime."""
        return onnxruntime.__version__

    def device(self) -> str:
        """`cpu`, or the GPU's name."""
        return "cpu" if self._on_cpu else gpu_name() or "no GPU"

    def prepare(self, model: ModelFiles, shapes: Shapes, threads: int) -> Prepared:  # noqa: ARG002
        """Create a session on `threads` threads.

        Raises:
            RuntimeError: the provider can't be loaded; left to itself, onnxruntime would use the CPU.
        """
        # TensorRT and cuDNN multiply in TF32 unless told not to.
        os.environ["NVIDIA_TF32_OVERRIDE"] = "0"
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(model.onnx, options, providers=[self.provider])
        if self.provider not in session.get_providers():
            raise RuntimeError(f"onnxruntime can't load its {self.provider}; see its requirements")
        names = [output.name for output in session.get_outputs()]

        def run(inputs: Arrays) -> Arrays:
            return dict(zip(names, session.run(names, inputs), strict=True))

        return Prepared(run, "float32")

    @property
    def _on_cpu(self) -> bool:
        return self.provider == "CPUExecutionProvider"


@functools.cache
def gpu_name() -> str | None:
    """Name of the first NVIDIA GPU, according to its driver; None without a GPU."""
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=30)
    return answer.stdout.splitlines()[0].strip() if answer.returncode == 0 and answer.stdout else None


ADAPTER = OnnxRuntime
