"""Products of rows with weights, sums of rows, whole numbers, and reading ahead, in LLVM's own terms.

Compilers cut loops over the features into long steps and leave the rest to single numbers, which costs more than all
else where features are few. Here steps are of 32 features, in float64 whatever the rows are in, and the last step is of
those that are left: the others of the 32 are neither read nor written, and count as 0. An entry is one sum in an order
that the number of features, or of rows, decides.

Rows may be held without their last feature, the constant of an intercept: what is not held of a row is taken for 1, by
the same operations as if it were.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from llvmlite import ir
from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic

_LANES, _PARTS = 8, 4  # numbers of a vector, vectors of a step
_LINE_BYTES = 64
_LOWEST_BITS = 1.5 * 2.0**52  # a float that has the units in its last bit
_INDEX, _SHORT, _REAL = ir.IntType(64), ir.IntType(32), ir.DoubleType()
_WIDE = ir.VectorType(_REAL, _LANES)


@intrinsic  # type: ignore[untyped-decorator]
def dot(typing: Any, rows: Any, i: Any, weights: Any, c: Any) -> Any:
    """<rows[i], weights[c]>, rows followed by 1 if there is one more weight; in C order, indices are not checked."""
    return types.float64(rows, types.intp, weights, types.intp), _generate_dot


@intrinsic  # type: ignore[untyped-decorator]
def add_rows(
    typing: Any, rows: Any, first: Any, n_rows: Any, factors: Any, at: Any, step: Any, sums: Any, to: Any, n: Any
) -> Any:
    """sums.flat[to + k] += sum over i < n_rows of factors[at + i * step] * rows[first + i, k], for all n features k.

    Rows are followed by 1 if n is one more than they hold.
    """
    index = types.intp
    return types.void(rows, index, index, factors, index, index, sums, index, index), _generate_add_rows


@intrinsic  # type: ignore[untyped-decorator]
def whole(typing: Any, number: Any) -> Any:
    """The number rounded towards 0, as an int64: for numbers below 2^51 in size, on processors that convert no vectors.

    Added to 1.5 * 2^52 a whole number stands in the lowest bits.
    """
    return types.int64(types.float64), _generate_whole


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

    def place(self, *offsets: Any) -> Any:
        """Where a number is."""
        place = self._start
        for offset in offsets:
            place = self._builder.gep(place, [offset])
        return place

    def number(self, *offsets: Any) -> Any:
        """The number there, in float64."""
        loaded = self._builder.load(self.place(*offsets))
        return self._builder.fpext(loaded, _REAL) if self.bytes < 8 else loaded

    def load(self, some: Any, *offsets: Any, others: float = 0.0) -> Any:
        """The numbers of a vector that begins there, in float64; those not among `some`, if given, are `others`."""
        kind, place = self._vector(offsets)
        if some is None:
            loaded = self._builder.load(place)
            loaded.align = self.bytes
        else:
            rest = ir.Constant(kind, [others] * _LANES)
            signature = ir.FunctionType(kind, [kind.as_pointer(), _SHORT, some.type, kind])
            load = self._masked(signature, "load", kind)
            loaded = self._builder.call(load, [place, ir.Constant(_SHORT, self.bytes), some, rest])
        return self._builder.fpext(loaded, _WIDE) if self.bytes < 8 else loaded

    def store(self, some: Any, numbers: Any, *offsets: Any) -> None:
        """The same for writing, into a matrix of float64."""
        kind, place = self._vector(offsets)
        if some is None:
            self._builder.store(numbers, place).align = self.bytes
            return
        signature = ir.FunctionType(ir.VoidType(), [kind, kind.as_pointer(), _SHORT, some.type])
        store = self._masked(signature, "store", kind)
        self._builder.call(store, [numbers, place, ir.Constant(_SHORT, self.bytes), some])

    def _vector(self, offsets: tuple[Any, ...]) -> tuple[Any, Any]:
        kind = ir.VectorType(self._kind, _LANES)
        return kind, self._builder.bitcast(self.place(*offsets), kind.as_pointer())

    def _masked(self, signature: Any, name: str, kind: Any) -> Any:
        full = f"llvm.masked.{name}.v{_LANES}f{self.bytes * 8}.p0"
        return cgutils.get_or_insert_function(self._builder.module, signature, full)


def _number(value: int) -> Any:
    return ir.Constant(_INDEX, value)


def _steps(builder: Any, rows: _Matrix, width: Any) -> Iterator[list[tuple[Any, Any, Any]]]:
    """Loops that cover all features, of which rows hold all or all but the last.

    For each vector of a step its first feature, which of its features are held, and which there are. First full steps,
    of which all are, and then what is left: at most one step.
    """
    size = _number(_LANES * _PARTS)
    end = builder.sub(rows.width, builder.srem(rows.width, size))
    with cgutils.for_range_slice(builder, _number(0), end, size) as (feature, _):
        yield [(builder.add(feature, _number(part * _LANES)), None, None) for part in range(_PARTS)]
    with builder.if_then(builder.icmp_signed("<", end, width)):
        features = [builder.add(end, _number(part * _LANES)) for part in range(_PARTS)]
        held = [_below(builder, feature, rows.width, rows.bytes) for feature in features]
        yield list(zip(features, held, [_below(builder, feature, width, 8) for feature in features], strict=True))


def _below(builder: Any, feature: Any, width: Any, size: int) -> Any:
    """Which features of the vector that begins with this one are among the first `width`: for numbers of this size.

    Compared as whole numbers of that size, the answer is what the processor's masked loads and stores take.
    """
    kind = ir.IntType(8 * size)
    left = builder.sub(width, feature)
    left = _same(builder, builder.trunc(left, kind) if size < 8 else left)
    return builder.icmp_signed("<", ir.Constant(left.type, list(range(_LANES))), left)


def _same(builder: Any, number: Any) -> Any:
    """A vector of this number everywhere."""
    kind = ir.VectorType(number.type, _LANES)
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), number, ir.Constant(_SHORT, 0))
    return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(_SHORT, _LANES), [0] * _LANES))


def _add_product(builder: Any, place: Any, a: Any, b: Any) -> None:
    product = builder.fmul(a, b, flags=("contract",))
    builder.store(builder.fadd(builder.load(place), product, flags=("contract",)), place)


def _generate_dot(context: Any, builder: Any, signature: Any, values: Any) -> Any:
    rows, weights = (_Matrix(context, builder, signature.args[k], values[k]) for k in (0, 2))
    row, line = builder.mul(values[1], rows.width), builder.mul(values[3], weights.width)
    sums = [cgutils.alloca_once(builder, _WIDE) for _ in range(_PARTS)]
    for place in sums:
        builder.store(ir.Constant(_WIDE, [0.0] * _LANES), place)
    for step in _steps(builder, rows, weights.width):
        for place, (feature, held, some) in zip(sums, step, strict=True):
            row_part, weights_part = rows.load(held, row, feature, others=1.0), weights.load(some, line, feature)
            _add_product(builder, place, row_part, weights_part)
    numbers = [builder.load(place) for place in sums]
    while len(numbers) > 1:
        numbers = [builder.fadd(a, b) for a, b in zip(numbers[::2], numbers[1::2], strict=True)]
    (total,) = numbers
    for half in (4, 2, 1):  # the first numbers and the others
        first, others = (
            ir.Constant(ir.VectorType(_SHORT, half), list(range(begin, begin + half))) for begin in (0, half)
        )
        total = builder.fadd(builder.shuffle_vector(total, total, first), builder.shuffle_vector(total, total, others))
    return builder.extract_element(total, ir.Constant(_SHORT, 0))


def _generate_add_rows(context: Any, builder: Any, signature: Any, values: Any) -> Any:
    rows, factors, sums = (_Matrix(context, builder, signature.args[k], values[k]) for k in (0, 3, 6))
    _, first, n_rows, _, at, stride, _, to, width = values
    start = builder.mul(first, rows.width)
    added = [cgutils.alloca_once(builder, _WIDE) for _ in range(_PARTS)]
    for step in _steps(builder, rows, width):
        for place, (feature, _, some) in zip(added, step, strict=True):
            builder.store(sums.load(some, to, feature), place)
        with cgutils.for_range(builder, n_rows) as loop:
            factor = _same(builder, factors.number(at, builder.mul(loop.index, stride)))
            row = builder.mul(loop.index, rows.width)
            for place, (feature, held, _) in zip(added, step, strict=True):
                _add_product(builder, place, factor, rows.load(held, start, row, feature, others=1.0))
        for place, (feature, _, some) in zip(added, step, strict=True):
            sums.store(some, builder.load(place), to, feature)
    return context.get_dummy_value()


def _generate_whole(context: Any, builder: Any, signature: Any, values: Any) -> Any:
    cut = builder.call(builder.module.declare_intrinsic("llvm.trunc", [_REAL]), values)
    moved = builder.bitcast(builder.fadd(cut, ir.Constant(_REAL, _LOWEST_BITS)), _INDEX)
    return builder.sub(moved, builder.bitcast(ir.Constant(_REAL, _LOWEST_BITS), _INDEX))


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


def _plain_dot(rows: np.ndarray, i: int, weights: np.ndarray, c: int) -> float:
    held = rows.shape[1]
    product: float = np.dot(rows[i].astype(np.float64), weights[c, :held])
    return product + float(weights[c, held:].sum())


def _plain_whole(number: float) -> np.int64:
    return np.int64(number)


if config.DISABLE_JIT:  # intrinsics are machine code alone: the same for kernels that run as plain Python
    dot, whole = _plain_dot, _plain_whole
