"""Vectors of floats for code compiled with Numba: they stay in registers, and are loaded and stored whole.

Numba doesn't vectorise a loop that has to store results in every iteration, since arrays might overlap.
Written with explicit vectors, sums of products stay in registers. LLVM splits vectors wider than a
processor's registers.
"""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import RequireLiteralValue, TypingError
from numba.extending import intrinsic, models, register_model

_FLOAT = ir.FloatType()
_INDEX = ir.IntType(32)
PART = 16
"""Lanes of the parts that longer vectors consist of: a register of AVX-512, two of AVX2, four of NEON."""
DOTS = 4
"""Dot products that :func:`add_dots` computes at once; their sums and a's parts fit AVX2's 16 registers."""
_PART = ir.VectorType(_FLOAT, PART)
_ZEROS = ir.Constant(_PART, None)


class Floats(types.Type):
    """The type of a vector with `lanes` lanes, a multiple of :data:`PART`."""

    def __init__(self, lanes: int) -> None:
        super().__init__(name=f"{lanes} floats")
        self.parts = lanes // PART


@register_model(Floats)
class _FloatsModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, ir.ArrayType(_PART, kind.parts))  # type: ignore[no-untyped-call]


@intrinsic(prefer_literal=True)
def load(_: Any, array: Any, index: Any, lanes: Any) -> Any:
    """Load `lanes` elements `index`, `index + 1`, … of a contiguous array, counted over all its axes."""
    floats = Floats(_literal(lanes))

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _address(context, builder, signature, arguments)
        return _join(builder, [_load(builder, address, i) for i in range(floats.parts)])

    return floats(array, types.int64, lanes), generate


@intrinsic
def store(_: Any, array: Any, index: Any, vector: Any) -> Any:
    """Write a vector to where :func:`load` would read it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _address(context, builder, signature, arguments)
        for i, part in enumerate(_split(builder, vector, arguments[2])):
            builder.store(part, builder.gep(address, [ir.Constant(_INDEX, i)])).align = 4
        return context.get_dummy_value()

    return types.void(array, types.int64, vector), generate


@intrinsic
def prefetch(_: Any, array: Any, index: Any) -> Any:
    """Have the processor fetch the line of memory that an element is in, which may be beyond the end."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        address = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [address.type, _INDEX, _INDEX, _INDEX])
        function = builder.module.declare_intrinsic("llvm.prefetch", [address.type], kind)
        to_read, keep, data_not_code = (ir.Constant(_INDEX, own) for own in (0, 3, 1))
        builder.call(function, [address, to_read, keep, data_not_code])
        return context.get_dummy_value()

    return types.void(array, types.uint64), generate


@intrinsic(prefer_literal=True)
def broadcast(_: Any, value: Any, lanes: Any) -> Any:
    """A vector of `lanes` equal floats."""
    floats = Floats(_literal(lanes))

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return _join(builder, [_splat(builder, arguments[0])] * floats.parts)

    return floats(types.float32, lanes), generate


@intrinsic
def multiply_add(_: Any, a: Any, b: Any, c: Any) -> Any:
    """a b + c, rounded once where the processor can."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        parts = zip(*(_split(builder, a, each) for each in arguments), strict=True)
        return _join(builder, [_multiply_add(builder, *own) for own in parts])

    return a(a, b, c), generate


@intrinsic
def relu(_: Any, x: Any) -> Any:
    """max(x, 0); NaN stays NaN, as in PyTorch."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        parts = _split(builder, x, arguments[0])
        return _join(
            builder, [builder.select(builder.fcmp_ordered("<", own, _ZEROS), _ZEROS, own) for own in parts]
        )

    return x(x), generate


@intrinsic
def where_positive(_: Any, gate: Any, x: Any) -> Any:
    """x where gate > 0, else 0."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        parts = zip(*(_split(builder, x, each) for each in arguments), strict=True)
        return _join(
            builder, [builder.select(builder.fcmp_ordered(">", g, _ZEROS), own, _ZEROS) for g, own in parts]
        )

    return x(gate, x), generate


@intrinsic
def dot(_: Any, a: Any, b: Any) -> Any:
    """The sum of a b, in whatever order is fastest."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        total = _ZEROS
        for own, other in zip(*(_split(builder, a, each) for each in arguments), strict=True):
            total = _multiply_add(builder, own, other, total)
        return builder.extract_element(_sums(builder, [total]), ir.Constant(_INDEX, 0))

    return types.float32(a, b), generate


@intrinsic(prefer_literal=True)
def add_dots(_: Any, sums: Any, first: Any, a: Any, i: Any, b: Any, j: Any, lanes: Any) -> Any:
    """Add the dot product of a and the k-th of :data:`DOTS` vectors b to `sums[first + k]`, for each k.

    The vectors are those that :func:`load` would read: a at index `i` of one array, the vectors b at the
    indices `j` (a tuple) of another. Computed together, the products share the loads of a and the steps of
    adding up lanes.
    """
    parts = Floats(_literal(lanes)).parts

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        sums, first, a, i, b, j, _ = arguments
        kinds = signature.args
        a = _element(context, builder, kinds[2], a, i)
        others = [
            _element(context, builder, kinds[4], b, own) for own in cgutils.unpack_tuple(builder, j, DOTS)
        ]
        totals = [_ZEROS] * DOTS
        for part in range(parts):
            own = _load(builder, a, part)
            totals = [
                _multiply_add(builder, own, _load(builder, other, part), total)
                for other, total in zip(others, totals, strict=True)
            ]
        address = builder.bitcast(
            _element(context, builder, kinds[0], sums, first), ir.VectorType(_FLOAT, DOTS).as_pointer()
        )
        old = builder.load(address)
        old.align = 4
        builder.store(builder.fadd(old, _sums(builder, totals)), address).align = 4
        return context.get_dummy_value()

    return types.void(
        sums, types.int64, a, types.int64, b, types.UniTuple(types.int64, DOTS), lanes
    ), generate


def _literal(lanes: Any) -> int:
    if not isinstance(lanes, types.IntegerLiteral):
        raise RequireLiteralValue("the number of lanes of a vector has to be a constant")
    return int(lanes.literal_value)


def _element(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    """A pointer to the part that begins at an array's element `index`, counted over all its axes."""
    if kind.dtype != types.float32:
        raise TypingError(f"vectors are of floats, not of {kind.dtype}")
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), _PART.as_pointer())


def _address(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    return _element(context, builder, signature.args[0], arguments[0], arguments[1])


def _load(builder: Any, address: Any, part: int) -> Any:
    loaded = builder.load(builder.gep(address, [ir.Constant(_INDEX, part)]))
    loaded.align = 4
    return loaded


def _split(builder: Any, kind: Floats, vector: Any) -> list[Any]:
    return [builder.extract_value(vector, i) for i in range(kind.parts)]


def _join(builder: Any, parts: Sequence[Any]) -> Any:
    vector = ir.Constant(ir.ArrayType(_PART, len(parts)), ir.Undefined)
    for i, part in enumerate(parts):
        vector = builder.insert_value(vector, part, i)
    return vector


def _splat(builder: Any, value: Any) -> Any:
    undefined = ir.Constant(_PART, ir.Undefined)
    first = builder.insert_element(undefined, value, ir.Constant(_INDEX, 0))
    return _shuffle(builder, first, undefined, [0] * PART)


def _multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    return builder.fadd(builder.fmul(a, b, flags=["contract"]), c, flags=["contract"])


def _sums(builder: Any, vectors: Sequence[Any]) -> Any:
    """The sums of each vector's lanes, side by side. The number of vectors is a power of 2.

    The two halves of each vector are added until one lane is left; the halved sums of two vectors fit into
    one.
    """
    lanes, size = PART, PART
    while lanes > 1:
        if len(vectors) > 1:
            pairs, size = list(zip(vectors[::2], vectors[1::2], strict=True)), 2 * size
        else:
            pairs = [(vectors[0], vectors[0])]
        first = [lane for lane in range(size) if lane % lanes < lanes // 2]
        second = [lane + lanes // 2 for lane in first]
        vectors = [
            builder.fadd(_shuffle(builder, a, b, first), _shuffle(builder, a, b, second)) for a, b in pairs
        ]
        lanes, size = lanes // 2, size // 2
    return vectors[0]


def _shuffle(builder: Any, a: Any, b: Any, lanes: Sequence[int]) -> Any:
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_INDEX, len(lanes)), list(lanes)))
