"""XLA, the compiler behind JAX and TensorFlow. It gets a graph from JAX, which traces it as a function."""

import os
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import jax
import numpy as np
import onnx
from jax import Array, lax, nn
from jax import numpy as jnp
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from singleshot.export.runtimes.protocol import Arrays, ModelFiles, Prepared, Runtime, Shapes
from singleshot.export.runtimes.static_shapes import with_static_shapes

Sizes = NDArray[np.int64]
"""A shape, or axes. In a graph with static shapes these are constants."""

RUNTIMES = {"xla": {"packages": ("jaxlib",), "threads_are_final": True}}


class XLA(Runtime):
    """Runs a graph that is compiled as one function, with its weights as constants."""

    def version(self) -> str:
        """Version of the package that XLA is in, e.g. `0.10.2`."""
        return version("jaxlib")

    def prepare(self, model: ModelFiles, shapes: Shapes, threads: int) -> Prepared:
        """Compile for these sizes only. The first call in a process decides on the number of threads.

        Raises:
            RuntimeError: the graph has an operator that :data:`OPERATORS` lacks.
        """
        os.environ["PJRT_NPROC"] = str(threads)
        jax.config.update("jax_platforms", "cpu")  # type: ignore[no-untyped-call]
        # Without x64, the index of BCQ's choice would have 32 bits. Weights keep their precision.
        jax.config.update("jax_enable_x64", True)  # type: ignore[no-untyped-call]
        function = _function(with_static_shapes(model.onnx, shapes).graph)
        examples = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
        compiled = jax.jit(function).lower(examples).compile()

        def run(inputs: Arrays) -> Arrays:
            return {name: np.asarray(output) for name, output in compiled(dict(inputs)).items()}

        return Prepared(run, "float32")


def _function(graph: onnx.GraphProto) -> Callable[[Mapping[str, Array]], dict[str, Array]]:
    """The graph as a function of its inputs, by name."""
    if missing := {node.op_type for node in graph.node} - OPERATORS.keys():
        raise RuntimeError(f"XLA: these operators have no translation to JAX: {', '.join(sorted(missing))}")
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}

    def function(inputs: Mapping[str, Array]) -> dict[str, Array]:
        values: dict[str, Any] = {"": None, **constants, **inputs}  # "" is an omitted operand
        for node in graph.node:
            operands = (values[name] for name in node.input)
            attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
            values[node.output[0]] = OPERATORS[node.op_type](*operands, **attributes)
        return {output.name: values[output.name] for output in graph.output}

    return function


def _convolution(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    strides: Sequence[int] = (1, 1),
    pads: Sequence[int] = (0, 0, 0, 0),
    dilations: Sequence[int] = (1, 1),
    group: int = 1,
    **_: object,
) -> Array:
    """Convolve pictures (n, channels, height, width). `pads` are those before both axes, then those after."""
    padding = list(zip(pads[:2], pads[2:], strict=True))
    y = lax.conv_general_dilated(
        x, weight, strides, padding, rhs_dilation=dilations, feature_group_count=group
    )
    return y if bias is None else y + bias[:, None, None]


def _gemm(
    a: Array,
    b: Array,
    c: Array | None = None,
    alpha: float = 1,
    beta: float = 1,
    transA: int = 0,
    transB: int = 0,
) -> Array:
    product = alpha * (a.T if transA else a) @ (b.T if transB else b)
    return product if c is None else product + beta * c


def _instance_normalization(x: Array, scale: Array, bias: Array, epsilon: float = 1e-5) -> Array:
    """Normalise over height and width of each channel of (n, channels, height, width)."""
    normalized = nn.standardize(x, axis=(2, 3), epsilon=epsilon)
    return normalized * scale[:, None, None] + bias[:, None, None]


def _pad(
    x: Array, pads: Sizes, value: Array | None = None, axes: Sizes | None = None, mode: bytes = b"constant"
) -> Array:
    """Pad x. `pads` has the padding before each of `axes`, then the padding after each."""
    widths = np.zeros((x.ndim, 2), int)
    widths[slice(None) if axes is None else axes] = np.reshape(pads, (2, -1)).T
    if mode == b"constant":
        return jnp.pad(x, widths, constant_values=0 if value is None else value)
    return jnp.pad(x, widths, mode=mode.decode())  # ONNX's modes have NumPy's names


def _reshape(x: Array, shape: Sizes, allowzero: int = 0) -> Array:
    """Reshape x. A size of 0 means the size of that axis of `x`, unless zeros are allowed."""
    return x.reshape([x.shape[i] if size == 0 and not allowzero else size for i, size in enumerate(shape)])


def _resize(x: Array, _: None, scales: NDArray[np.float32], **__: object) -> Array:
    """Repeat pixels: the networks' only mode is `nearest`, by whole numbers."""
    for axis, scale in enumerate(scales):
        x = jnp.repeat(x, int(scale), axis)
    return x


OPERATORS: Mapping[str, Callable[..., Array]] = {
    "Add": jnp.add,
    "ArgMax": lambda x, axis=0, keepdims=1, **_: jnp.argmax(x, axis, keepdims=bool(keepdims)),
    "Clip": jnp.clip,
    "Concat": lambda *x, axis: jnp.concatenate(x, axis),
    "Conv": _convolution,
    "Div": jnp.divide,
    "Expand": lambda x, shape: jnp.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(shape))),
    "GatherElements": lambda x, indices, axis=0: jnp.take_along_axis(x, indices, axis),
    "Gemm": _gemm,
    "InstanceNormalization": _instance_normalization,
    "MatMul": jnp.matmul,
    "Mul": jnp.multiply,
    "Pad": _pad,
    "ReduceMean": lambda x, axes, keepdims=1, **_: jnp.mean(x, tuple(axes), keepdims=bool(keepdims)),
    "Relu": nn.relu,
    "Reshape": _reshape,
    "Resize": _resize,
    "Sigmoid": nn.sigmoid,
    "Squeeze": lambda x, axes: jnp.squeeze(x, tuple(axes)),
    "Sub": jnp.subtract,
    "Tanh": jnp.tanh,
    "Unsqueeze": lambda x, axes: jnp.expand_dims(x, tuple(axes)),
}
"""Operators of the exported networks, as specified for ONNX's opset 20 (https://onnx.ai/onnx/operators)."""


ADAPTER = XLA
