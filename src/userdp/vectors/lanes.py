"""Products of rows with weights, sums of rows, and reading ahead, in LLVM's own terms.

Compilers cut loops over the features into long steps and leave the rest to single numbers, which costs more than all
else where features are few. Here steps are of 16 features, then of 4, then of one, in float64 whatever the rows are in.
An entry is one sum in an order that the number of features, or of rows, decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_LANES, _PARTS = 4, 4  # numbers of a vector, vectors of a long step
_LINE_BYTES = 64
_INDEX, _REAL = ir.IntType(64), ir.DoubleType()


@intrinsic  # type: ignore[untyped-decorator]
def dot(typing: Any, rows: Any, i: Any, weights: Any, c: Any) -> Any:
    """<rows[i], weights[c]>; matrices in C order, indices are not checked."""
    return types.float64(rows, types.intp, weights, types.intp), _generate_dot


@intrinsic  # type: ignore[untyped-decorator]
def add_rows(
    typing: Any, rows: Any, first: Any, n_rows: Any, factors: Any, at: Any, step: Any, sums: Any, to: Any
) -> Any:
    """sums.flat[to + k] += sum over i < n_rows of factors[at + i * step] * rows[first + i, k], for all features k."""
    index = types.intp
    return types.void(rows, index, index, factors, index, index, sums, index), _generate_add_rows


@intrinsic  # type: ignore[untyped-decorator]
def read_ahead(typing: Any, rows: Any, first: Any, n_rows: Any) -> Any:
    """Ask for these rows to be brought near; changes nothing."""
    return types.void(rows, types.intp, types.intp), _generate_read_ahead


class _Matrix:
    """A matrix, or a vector, in C order."""

    def __init__(self, context: Any, builder: Any, kind: Any, value: Any) -> None:
        array = context.make_array(kind)(context, builder, value)
        self._builder, self._start = builder, array.data
        self.width = cgutils.unpack_tuple(builder, array.shape)[-1] if kind.ndim > 1 else _number(1)
        self.bytes = kind.dtype.bitwidth // 8
        self._kind = context.get_value_type(kind.dtype)

    def place(self, *offsets: Any, lanes: int = 1) -> Any:
        """Where so many numbers begin."""
        place = self._start
        for offset in offsets:
            place = self._builder.gep(place, [offset])
        return self._builder.bitcast(place, ir.VectorType(self._kind, lanes).as_pointer()) if lanes > 1 else place

    def load(self, *offsets: Any, lanes: int = 1) -> Any:
        """The numbers there, in float64."""
        loaded = self._builder.load(self.place(*offsets, lanes=lanes))
        loaded.align = self.bytes
        return self._builder.fpext(loaded, _wide(lanes)) if self.bytes < 8 else loaded

    def store(self, numbers: Any, *offsets: Any, lanes: int = 1) -> None:
        self._builder.store(numbers, self.place(*offsets, lanes=lanes)).align = self.bytes


def _wide(lanes: int) -> Any:
    return ir.VectorType(_REAL, lanes) if lanes > 1 else _REAL


def _number(value: int) -> Any:
    return ir.Constant(_INDEX, value)


def _zero(lanes: int) -> Any:
    return ir.Constant(_wide(lanes), [0.0] * lanes if lanes > 1 else 0.0)


def _steps(builder: Any, width: Any) -> Iterator[tuple[Any, int, int]]:
    """Loops that cover all features: first feature of a step, numbers of a vector, vectors."""
    begin = _number(0)
    for lanes, parts in ((_LANES, _PARTS), (_LANES, 1), (1, 1)):
        size = _number(lanes * parts)
        end = builder.sub(width, builder.srem(width, size))
        with cgutils.for_range_slice(builder, begin, end, size) as (feature, _):
            yield feature, lanes, parts
        begin = end


def _add_product(builder: Any, place: Any, a: Any, b: Any) -> None:
    product = builder.fmul(a, b, flags=("contract",))
    builder.store(builder.fadd(builder.load(place), product, flags=("contract",)), place)


def _generate_dot(context: Any, builder: Any, signature: Any, values: Any) -> Any:
    rows, weights = (_Matrix(context, builder, signature.args[k], values[k]) for k in (0, 2))
    row, line = (builder.mul(values[k], rows.width) for k in (1, 3))
    sums = [cgutils.alloca_once_value(builder, _zero(_LANES)) for _ in range(_PARTS)]
    rest = cgutils.alloca_once_value(builder, _zero(1))
    for place in (*sums, rest):
        builder.store(_zero(1) if place is rest else _zero(_LANES), place)
    for feature, lanes, parts in _steps(builder, rows.width):
        for part in range(parts):
            here = (feature, _number(part * lanes))
            a, b = rows.load(row, *here, lanes=lanes), weights.load(line, *here, lanes=lanes)
            _add_product(builder, rest if lanes == 1 else sums[part], a, b)
    numbers = [builder.load(place) for place in sums]
    while len(numbers) > 1:
        numbers = [builder.fadd(a, b) for a, b in zip(numbers[::2], numbers[1::2], strict=True)]
    numbers = [builder.extract_element(numbers[0], ir.Constant(ir.IntType(32), lane)) for lane in range(_LANES)]
    while len(numbers) > 1:
        numbers = [builder.fadd(a, b) for a, b in zip(numbers[::2], numbers[1::2], strict=True)]
    return builder.fadd(numbers[0], builder.load(rest))


def _generate_add_rows(context: Any, builder: Any, signature: Any, values: Any) -> Any:
    rows, factors, sums = (_Matrix(context, builder, signature.args[k], values[k]) for k in (0, 3, 6))
    _, first, n_rows, _, at, step, _, to = values
    start = builder.mul(first, rows.width)
    held = {lanes: [cgutils.alloca_once(builder, _wide(lanes)) for _ in range(_PARTS)] for lanes in (_LANES, 1)}
    for feature, lanes, parts in _steps(builder, rows.width):
        for part in range(parts):
            builder.store(sums.load(to, feature, _number(part * lanes), lanes=lanes), held[lanes][part])
        with cgutils.for_range(builder, n_rows) as loop:
            factor = factors.load(at, builder.mul(loop.index, step))
            if lanes > 1:
                one = builder.insert_element(
                    ir.Constant(_wide(lanes), ir.Undefined), factor, ir.Constant(ir.IntType(32), 0)
                )
                factor = builder.shuffle_vector(
                    one, one, ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes)
                )
            row = builder.mul(loop.index, rows.width)
            for part in range(parts):
                x = rows.load(start, row, feature, _number(part * lanes), lanes=lanes)
                _add_product(builder, held[lanes][part], factor, x)
        for part in range(parts):
            sums.store(builder.load(held[lanes][part]), to, feature, _number(part * lanes), lanes=lanes)
    return context.get_dummy_value()


def _generate_read_ahead(context: Any, builder: Any, signature: Any, values: Any) -> Any:
    rows = _Matrix(context, builder, signature.args[0], values[0])
    begin, end = (builder.mul(row, rows.width) for row in (values[1], builder.add(values[1], values[2])))
    address, number = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [address, number, number, number])
    prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    with cgutils.for_range_slice(builder, begin, end, _number(_LINE_BYTES // rows.bytes)) as (entry, _):
        reading, second_level, data = (ir.Constant(number, value) for value in (0, 2, 1))
        builder.call(prefetch, [builder.bitcast(rows.place(entry), address), reading, second_level, data])
    return context.get_dummy_value()
