"""What kernels do with a row, for rows that are sparse: they touch its entries only.

`either` gives compiled code two functions under one name, one for dense rows and one of these for `Entries`; the
compiler takes the one that fits. What a row is multiplied with is finite, so that what is not held adds 0. Not so a
slope, which may be NaN or infinite: 0 times it is NaN, so it makes all of a gradient NaN.

Entries of one column add up: where they are squared they are spread over a line of zeros first, and taken off it again.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numba.extending import overload, register_jitable

from userdp.compiling import INNER
from userdp.data.sparse import Entries

_F = TypeVar("_F", bound=Callable[..., Any])
_jitable: Callable[[_F], _F] = register_jitable


def either(options: dict[str, Any], sparse: Callable[..., Any]) -> Callable[[_F], _F]:
    """Makes a function of rows one that compiled code may call with entries too: then `sparse` is what runs."""

    def declare(dense: _F) -> _F:
        @functools.wraps(dense)
        def function(rows: Any, *others: Any) -> Any:
            return (sparse if isinstance(rows, Entries) else dense)(rows, *others)

        def chosen(rows: Any, *_: Any) -> Any:
            return sparse if getattr(rows, "instance_class", None) is Entries else dense

        overload(function, jit_options=options | INNER, strict=False)(chosen)
        return function  # type: ignore[return-value]  # with the same arguments

    return declare


@_jitable
def spread_row(rows: Entries, i: int, spread: np.ndarray) -> None:
    """Add a row to a line of zeros, the constant left out."""
    for k in range(rows.indptr[i], rows.indptr[i + 1]):
        spread[rows.indices[k]] += rows.values[k]


@_jitable
def taken(rows: Entries, k: int, spread: np.ndarray) -> float:
    """What entry k's column is in a line that a row was spread over; 0 when it is asked for again."""
    x = np.float64(spread[rows.indices[k]])
    spread[rows.indices[k]] = 0
    return x


@_jitable
def unpacked(rows: Entries, i: int, spread: np.ndarray, columns: np.ndarray, x: np.ndarray) -> int:
    """A row's columns and what it is there, the constant counted in: how many. A column that is repeated is 0 there."""
    first, n = rows.indptr[i], int(rows.indptr[i + 1] - rows.indptr[i])
    spread_row(rows, i, spread)
    for k in range(n):
        columns[k], x[k] = rows.indices[first + k], taken(rows, first + k, spread)
    if rows.constant:
        columns[n], x[n] = rows.shape[1] - 1, 1.0
        n += 1
    return n


@_jitable
def dot(rows: Entries, i: int, w: np.ndarray) -> float:
    total = 0.0
    for k in range(rows.indptr[i], rows.indptr[i + 1]):
        total += w[rows.indices[k]] * rows.values[k]
    return total + w[-1] if rows.constant else total


def kind(rows: Entries) -> Any:
    return rows.values.dtype


def copy_row(rows: Entries, i: int, out: np.ndarray) -> None:
    out[:] = 0
    spread_row(rows, i, out)
    if rows.constant:
        out[-1] = 1


def scale_row(rows: Entries, i: int, scales: np.ndarray, out: np.ndarray) -> None:
    out[:] = 0
    for k in range(rows.indptr[i], rows.indptr[i + 1]):
        out[rows.indices[k]] += rows.values[k] * scales[rows.indices[k]]
    if rows.constant:
        out[-1] = scales[-1]


def row_square(rows: Entries, i: int, scales: np.ndarray, spread: np.ndarray) -> float:
    spread_row(rows, i, spread)
    square = scales[-1] * scales[-1] if rows.constant else 0.0
    for k in range(rows.indptr[i], rows.indptr[i + 1]):
        x = taken(rows, k, spread) * scales[rows.indices[k]]
        square += x * x
    return square


def turned_lengths(rows: Entries, first: int, basis: np.ndarray, turned: Any, out: np.ndarray) -> None:
    along = np.empty(basis.shape[1])
    for i in range(len(out)):
        along[:] = 0.0
        if rows.constant:
            along += basis[-1]
        for k in range(rows.indptr[first + i], rows.indptr[first + i + 1]):
            x, line = np.float64(rows.values[k]), basis[rows.indices[k]]
            for e in range(len(along)):
                along[e] += x * line[e]
        square = 0.0
        for e in range(len(along)):
            square += along[e] * along[e]
        out[i] = math.sqrt(square)


def add_squares(rows: Entries, i: int, scales: np.ndarray, spread: np.ndarray, out: np.ndarray) -> None:
    spread_row(rows, i, spread)
    for k in range(rows.indptr[i], rows.indptr[i + 1]):
        x = taken(rows, k, spread) * scales[rows.indices[k]]
        out[rows.indices[k]] += x * x
    if rows.constant:
        out[-1] += scales[-1] * scales[-1]


def predict_block(
    rows: Entries, start: int, n_rows: int, weights: np.ndarray, predictions: np.ndarray, at: int
) -> None:
    n_outputs = len(weights)
    for i in range(n_rows):
        for c in range(n_outputs):
            predictions[(at + i) * n_outputs + c] = dot(rows, start + i, weights[c])


def add_block(
    rows: Entries, start: int, n_rows: int, slopes: np.ndarray, at: int, n_outputs: int, sums: np.ndarray, j: int
) -> None:
    n_features = rows.shape[1]
    for i in range(n_rows):
        for c in range(n_outputs):
            a, g = slopes[(at + i) * n_outputs + c], sums[j, c * n_features : (c + 1) * n_features]
            if not math.isfinite(a):
                g[:] = math.nan
            for k in range(rows.indptr[start + i], rows.indptr[start + i + 1]):
                g[rows.indices[k]] += a * rows.values[k]
            if rows.constant:
                g[-1] += a


def read_ahead(rows: Entries, start: int, n_rows: int) -> None:
    """Entries are short: nothing is gained."""
