"""Vectors of floats for code that Numba compiles: held in registers, moved whole.

Numba vectorises no loop whose results it has to store as it goes, since arrays might overlap. Spelled out as
vectors, sums of products stay in registers, and what a processor has no such wide ones for LLVM splits.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import RequireLiteralValue
from numba.extending import intrinsic, models, register_model

_FLOAT = ir.FloatType()


class Floats(types.Type):
    """The type of a vector."""

    def __init__(self, lanes: int) -> None:
        super().__init__(name=f"{lanes} floats")
        self.vector = ir.VectorType(_FLOAT, lanes)


@register_model(Floats)
class _FloatsModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, kind.vector)  # type: ignore[no-untyped-call]


@intrinsic(prefer_literal=True)
def load(_: Any, array: Any, index: Any, lanes: Any) -> Any:
    """So many elements `index`, `index + 1`, … of a contiguous array, counted over all its axes."""
    floats = Floats(_literal(lanes))

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        loaded = builder.load(_address(context, builder, signature, arguments, floats))
        loaded.align = 4
        return loaded

    return floats(array, types.int64, lanes), generate


@intrinsic
def store(_: Any, array: Any, index: Any, vector: Any) -> Any:
    """Write a vector to where :func:`load` would read it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[2], _address(context, builder, signature, arguments, vector)).align = 4
        return context.get_dummy_value()

    return types.void(array, types.int64, vector), generate


@intrinsic(prefer_literal=True)
def broadcast(_: Any, value: Any, lanes: Any) -> Any:
    """A vector of so many equal floats."""
    count = _literal(lanes)
    floats = Floats(count)

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        index = ir.IntType(32)
        undefined = ir.Constant(floats.vector, ir.Undefined)
        first = builder.insert_element(undefined, arguments[0], ir.Constant(index, 0))
        return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(index, count), [0] * count))

    return floats(types.float32, lanes), generate


@intrinsic
def multiply_add(_: Any, a: Any, b: Any, c: Any) -> Any:
    """a b + c, rounded once where the processor can."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        a, b, c = arguments
        return builder.fadd(builder.fmul(a, b, flags=["contract"]), c, flags=["contract"])

    return a(a, b, c), generate


@intrinsic
def relu(_: Any, x: Any) -> Any:
    """max(x, 0); NaN stays NaN, as in PyTorch."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        zeros = _zeros(x)
        return builder.select(builder.fcmp_ordered("<", arguments[0], zeros), zeros, arguments[0])

    return x(x), generate


@intrinsic
def where_positive(_: Any, gate: Any, x: Any) -> Any:
    """x where gate > 0, else 0."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        zeros = _zeros(x)
        return builder.select(builder.fcmp_ordered(">", arguments[0], zeros), arguments[1], zeros)

    return x(gate, x), generate


@intrinsic
def dot(_: Any, a: Any, b: Any) -> Any:
    """The sum of a b, in whatever order is fastest."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(_FLOAT, [_FLOAT, a.vector])
        name = f"llvm.vector.reduce.fadd.v{a.vector.count}f32"
        add = cgutils.get_or_insert_function(builder.module, kind, name)
        products = builder.fmul(*arguments, flags=["contract"])
        return builder.call(add, [ir.Constant(_FLOAT, 0.0), products], fastmath=["reassoc", "contract"])

    return types.float32(a, b), generate


def _literal(lanes: Any) -> int:
    if not isinstance(lanes, types.IntegerLiteral):
        raise RequireLiteralValue("how many lanes a vector has is to be a constant")
    return int(lanes.literal_value)


def _zeros(vector: Any) -> Any:
    return ir.Constant(vector.vector, None)


def _address(context: Any, builder: Any, signature: Any, arguments: Any, vector: Any) -> Any:
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    return builder.bitcast(builder.gep(array.data, [arguments[1]]), vector.vector.as_pointer())
