"""Graphs with every size fixed, for compilers that want to know them."""

from collections.abc import Mapping
from pathlib import Path

import onnx
import onnxscript.optimizer


def with_static_shapes(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> onnx.ModelProto:
    """The graph for inputs of these shapes alone, without what it had to compute sizes."""
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
