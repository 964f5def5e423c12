"""Small matrix products whose every entry is one sum in a fixed order, at about the speed of BLAS.

A library's product adds up an entry in an order that may depend on where it stands and on what stands around it. Here
each entry is the sum over k = 0, 1, ... by one multiply-add after the other, eight columns of a few rows at a time in
registers: one user's entries do not depend on who is beside it. Compilers find no such loops by themselves, so the
innermost one is written in LLVM's own terms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from userdp.compiling import INNER

_F = TypeVar("_F", bound=Callable[..., Any])
# Multiply-adds may be fused, everywhere alike; nothing is reordered.
ordered: Callable[[_F], _F] = numba.njit(nogil=True, fastmath={"contract"}, error_model="numpy", **INNER)

COLUMNS = 8  # of a tile
MOST_ROWS = 8  # of a tile, for float32; half of it for float64: sums then fill half of the registers
_VECTOR_BYTES = 32


def padded(size: int) -> int:
    """The next multiple of a tile's rows and columns."""
    return -(-size // COLUMNS) * COLUMNS


@intrinsic  # type: ignore[untyped-decorator]
def _tile(typing: Any, a: Any, a_row: Any, a_step: Any, b: Any, b_step: Any, n: Any, out: Any, out_row: Any) -> Any:
    """out[r * out_row + e] = sum over k < n of a[r * a_row + k * a_step] * b[k * b_step + e]; n >= 1.

    For the rows r of a tile and its columns e; arrays are flat, of one type, and indices are not checked.
    """
    signature = types.void(a, types.intp, types.intp, b, types.intp, types.intp, out, types.intp)
    return signature, _generate_tile


def _generate_tile(context: Any, builder: Any, signature: Any, values: Any) -> Any:
    _, a_row, a_step, _, b_step, n, _, out_row = values
    number = signature.args[3].dtype
    width = _VECTOR_BYTES * 8 // number.bitwidth
    rows, parts = range(width), range(COLUMNS // width)
    real, index, small = context.get_value_type(number), ir.IntType(64), ir.IntType(32)
    vector = ir.VectorType(real, width)
    nothing, same = ir.Constant(vector, ir.Undefined), ir.Constant(ir.VectorType(small, width), [0] * width)

    def start(array: Any, value: Any) -> Any:
        return context.make_array(array)(context, builder, value).data

    def places(first: Any) -> list[Any]:
        """Where the parts of eight columns begin."""
        starts = [builder.gep(first, [ir.Constant(index, part * width)]) for part in parts]
        return [builder.bitcast(one, vector.as_pointer()) for one in starts]

    def offset(first: Any, row: int, stride: Any) -> Any:
        return builder.gep(first, [builder.mul(stride, ir.Constant(index, row))])

    a_data, b_data, out_data = (start(signature.args[i], values[i]) for i in (0, 3, 6))
    a_rows = [offset(a_data, row, a_row) for row in rows]
    before, loop, after = builder.block, builder.append_basic_block("tile"), builder.append_basic_block("tiled")
    builder.branch(loop)
    builder.position_at_end(loop)
    k = builder.phi(index)
    k.add_incoming(ir.Constant(index, 0), before)
    sums = [[builder.phi(vector) for _ in parts] for _ in rows]
    columns = [builder.load(place) for place in places(builder.gep(b_data, [builder.mul(k, b_step)]))]
    for column in columns:
        column.align = number.bitwidth // 8
    step, added = builder.mul(k, a_step), []
    for row in rows:
        one = builder.insert_element(nothing, builder.load(builder.gep(a_rows[row], [step])), ir.Constant(small, 0))
        factor, fused = builder.shuffle_vector(one, nothing, same), ("contract",)
        products = [builder.fmul(factor, column, flags=fused) for column in columns]
        added.append([builder.fadd(s, p, flags=fused) for s, p in zip(sums[row], products, strict=True)])
    following = builder.add(k, ir.Constant(index, 1))
    k.add_incoming(following, loop)
    for sum_of_row, added_of_row in zip(sums, added, strict=True):
        for total, new in zip(sum_of_row, added_of_row, strict=True):
            total.add_incoming(ir.Constant(vector, [0.0] * width), before)
            total.add_incoming(new, loop)
    builder.cbranch(builder.icmp_signed("<", following, n), loop, after)
    builder.position_at_end(after)
    for row in rows:
        for place, new in zip(places(offset(out_data, row, out_row)), added[row], strict=True):
            builder.store(new, place).align = number.bitwidth // 8
    return context.get_dummy_value()


@ordered
def multiply(a: np.ndarray, n_rows: int, b: np.ndarray, out: np.ndarray) -> None:
    """out[:n_rows] = a[:n_rows] @ b[: a.shape[1]].

    `b` and `out` are of `padded` width, `a` and `out` of a padded number of rows: some after the last may be written.
    """
    flat_a, flat_b, flat_out = a.ravel(), b.ravel(), out.ravel()
    for r in range(0, n_rows, _VECTOR_BYTES // b.itemsize):
        for e in range(0, b.shape[1], COLUMNS):
            places = flat_out[r * out.shape[1] + e :]
            _tile(flat_a[r * a.shape[1] :], a.shape[1], 1, flat_b[e:], b.shape[1], a.shape[1], places, out.shape[1])


@ordered
def multiply_from(starts: np.ndarray, a: np.ndarray, n_rows: int, b: np.ndarray, out: np.ndarray) -> None:
    """`multiply` where column block e of `b` is 0 before row starts[e], which is skipped: half of a triangle."""
    flat_a, flat_b, flat_out = a.ravel(), b.ravel(), out.ravel()
    for r in range(0, n_rows, _VECTOR_BYTES // b.itemsize):
        for e in range(0, b.shape[1], COLUMNS):
            k = starts[e // COLUMNS]
            some, columns = flat_a[r * a.shape[1] + k :], flat_b[k * b.shape[1] + e :]
            places = flat_out[r * out.shape[1] + e :]
            _tile(some, a.shape[1], 1, columns, b.shape[1], a.shape[1] - k, places, out.shape[1])


@ordered
def squares(a: np.ndarray, n_rows: int, out: np.ndarray) -> None:
    """The upper triangle of out = a[:n_rows].T @ a[:n_rows], and some of what is below it; `a` is of padded width."""
    width = a.shape[1]
    flat, flat_out = a.ravel(), out.ravel()
    for r in range(0, width, _VECTOR_BYTES // a.itemsize):
        for e in range(r - r % COLUMNS, width, COLUMNS):
            _tile(flat[r:], 1, width, flat[e:], width, n_rows, flat_out[r * width + e :], width)
