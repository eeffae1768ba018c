"""Graphs with every size fixed, for compilers that need fixed sizes."""

from pathlib import Path

import onnx
import onnxscript.optimizer

from singleshot.export.runtimes.protocol import Shapes


def with_static_shapes(path: Path, shapes: Shapes) -> onnx.ModelProto:
    """The graph for inputs of these shapes only, without the nodes that computed sizes."""
    model = onnx.load(path)
    for value in model.graph.input:
        dimensions = value.type.tensor_type.shape.dim
        for dimension, size in zip(dimensions, shapes[value.name], strict=True):
            dimension.dim_value = size
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    del model.graph.value_info[:]
    optimized: onnx.ModelProto = onnxscript.optimizer.optimize(model)
    return onnx.shape_inference.infer_shapes(optimized, data_prop=True)
