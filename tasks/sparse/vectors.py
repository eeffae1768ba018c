"""Vectors of :data:`LANES` floats for code that Numba compiles: held in registers, moved whole.

Numba vectorises no loop whose results it has to store as it goes, since arrays might overlap. Spelled out as
vectors, sums of products stay in registers, and what a processor has no such wide ones for LLVM splits.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

LANES = 128
"""Floats in a vector: 8 registers of AVX-512, which hide the latency of its multiply-adds."""

_FLOAT = ir.FloatType()
_FLOATS = ir.VectorType(_FLOAT, LANES)
_ZEROS = ir.Constant(_FLOATS, None)


class Floats(types.Type):
    """The type of a vector."""

    def __init__(self) -> None:
        super().__init__(name=f"{LANES} floats")


@register_model(Floats)
class _FloatsModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _FLOATS)  # type: ignore[no-untyped-call]


_floats = Floats()


@intrinsic
def load(_: Any, array: Any, index: Any) -> Any:
    """Elements `index`, `index + 1`, … of a contiguous array, counted over all its axes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        loaded = builder.load(_address(context, builder, signature, arguments))
        loaded.align = 4
        return loaded

    return _floats(array, types.int64), generate


@intrinsic
def store(_: Any, array: Any, index: Any, vector: Any) -> Any:
    """Write a vector to where :func:`load` would read it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[2], _address(context, builder, signature, arguments)).align = 4
        return context.get_dummy_value()

    return types.void(array, types.int64, vector), generate


@intrinsic
def broadcast(_: Any, value: Any) -> Any:
    """A vector of equal floats."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        index = ir.IntType(32)
        undefined = ir.Constant(_FLOATS, ir.Undefined)
        first = builder.insert_element(undefined, arguments[0], ir.Constant(index, 0))
        return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(index, LANES), [0] * LANES))

    return _floats(types.float32), generate


@intrinsic
def multiply_add(_: Any, a: Any, b: Any, c: Any) -> Any:
    """a b + c, rounded once where the processor can."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        a, b, c = arguments
        return builder.fadd(builder.fmul(a, b, flags=["contract"]), c, flags=["contract"])

    return _floats(a, b, c), generate


@intrinsic
def relu(_: Any, x: Any) -> Any:
    """max(x, 0); NaN stays NaN, as in PyTorch."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        negative = builder.fcmp_ordered("<", arguments[0], _ZEROS)
        return builder.select(negative, _ZEROS, arguments[0])

    return _floats(x), generate


@intrinsic
def where_positive(_: Any, gate: Any, x: Any) -> Any:
    """x where gate > 0, else 0."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        gate, x = arguments
        return builder.select(builder.fcmp_ordered(">", gate, _ZEROS), x, _ZEROS)

    return _floats(gate, x), generate


@intrinsic
def dot(_: Any, a: Any, b: Any) -> Any:
    """The sum of a b, in whatever order is fastest."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(_FLOAT, [_FLOAT, _FLOATS])
        name = f"llvm.vector.reduce.fadd.v{LANES}f32"
        add = cgutils.get_or_insert_function(builder.module, kind, name)
        products = builder.fmul(*arguments, flags=["contract"])
        return builder.call(add, [ir.Constant(_FLOAT, 0.0), products], fastmath=["reassoc", "contract"])

    return types.float32(a, b), generate


def _address(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    return builder.bitcast(builder.gep(array.data, [arguments[1]]), _FLOATS.as_pointer())
