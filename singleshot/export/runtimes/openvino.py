"""OpenVINO, nGraph's successor, on the CPU."""

import sys
from collections.abc import Mapping
from queue import SimpleQueue

# Importing openvino, or reading a model with it, reports to Google Analytics unless its telemetry can't be
# imported.
sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]

import openvino  # noqa: E402

from singleshot.export.runtimes.protocol import Arrays, ModelFiles, Precision, Prepared, Runtime, Shapes  # noqa: E402

NAMES: Mapping[str, Precision] = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}
"""Precisions by the names of OpenVINO's types."""

# OpenVINO makes a table in the first call of this function. Two threads that make it at once wait for ever.
# A request calls it, and a video's frames are requests of several threads.
openvino.Type.f32.to_dtype()

RUNTIMES = {"openvino-f32": {"packages": ("openvino",)}, "openvino-bf16": {"packages": ("openvino",)}}


class OpenVINO(Runtime):
    """Runs a graph in the runtime's precision; by itself, OpenVINO uses bfloat16 if the CPU supports it.

    Calls of several threads share the runtime's threads.
    """

    def __init__(self, name: str, streams: int = 1) -> None:
        super().__init__(name, streams)
        self._precision = NAMES[name.removeprefix("openvino-")]
        self._core = openvino.Core()

    def unavailable(self) -> str | None:
        """Reason why the runtime can't run here; None if it can."""
        if self._precision == "bfloat16" and "BF16" not in self._core.get_property(
            "CPU", "OPTIMIZATION_CAPABILITIES"
        ):
            return "this processor doesn't multiply in bfloat16"
        return None

    def version(self) -> str:
        """Version of OpenVINO, e.g. `2026.4.1`."""
        return openvino.get_version().split("-")[0]

    def prepare(self, model: ModelFiles, shapes: Shapes, threads: int) -> Prepared:
        """Compile for these sizes only, with a request for each stream.

        Raises:
            RuntimeError: OpenVINO chose a different precision from the one it was asked for.
        """
        graph = self._core.read_model(model.onnx)
        # Names before compilation: afterwards, an output has the names of all tensors that turned out to be
        # equal to it.
        names = [output.get_any_name() for output in graph.outputs]
        graph.reshape({name: list(shape) for name, shape in shapes.items()})
        compiled = self._core.compile_model(
            graph,
            "CPU",
            {
                "INFERENCE_PRECISION_HINT": "f32" if self._precision == "float32" else "bf16",
                "INFERENCE_NUM_THREADS": threads,
                "NUM_STREAMS": self.streams,
                # A thread that is tied to a core waits for it while another core has nothing to do: stylising
                # a video takes 8 % longer.
                "ENABLE_CPU_PINNING": False,
            },
        )
        precision = _precision(compiled)
        if precision != self._precision:
            raise RuntimeError(f"OpenVINO computes in {precision}, though asked for {self._precision}")
        requests: SimpleQueue[openvino.InferRequest] = SimpleQueue()
        for _ in range(self.streams):
            requests.put(compiled.create_infer_request())

        def run(inputs: Arrays) -> Arrays:
            request = requests.get()
            try:
                results = request.infer(dict(inputs), share_inputs=True)
            finally:
                requests.put(request)
            return dict(zip(names, results.values(), strict=True))

        return Prepared(run, precision)


def _precision(compiled: openvino.CompiledModel) -> Precision:
    """The narrowest floating-point type that one of the operations runs in, whatever was asked for."""
    types = {
        operation.get_rt_info()["runtimePrecision"].astype(str)
        for operation in compiled.get_runtime_model().get_ops()
    }
    narrowest = next(name for name in ("bf16", "f16", "f32") if name in types)
    return NAMES[narrowest]


ADAPTER = OpenVINO
