"""Rows of some users at a time, dense or sparse: what all statistics read, and the few products they are made of.

Privacy rests on what a number here may depend on. `predictions`, `turned` and `sums` are functions of one user's own
rows, wherever these rows stand and whatever stands beside them: they are made of elementwise functions, of dot products
along a row (`numpy.einsum`, which calls no BLAS), and of products with a CSR matrix whose row holds one user's rows.
`combined` alone mixes users. It adds rows of many users up in float64, in an order that depends on how many rows each
of them has, so that what uses it charges its rounding (`totals`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import scipy.sparse
import threadpoolctl

from userdp.data.sparse import SparseRows
from userdp.data.users import UserData

_T = TypeVar("_T")

CHUNK_ENTRIES = 1 << 18  # computed side by side: few calls, and a cache holds them
_COPIED_ENTRIES = 1 << 17  # that `combined` holds in float64 at a time: a cache holds them
LEAF_ROWS = 256  # added up by one BLAS call; sums of leaves follow, so that rounding grows with both, not with rows


class Rows:
    """The rows of some users, one user after the other."""

    def __init__(self, data: UserData, users: np.ndarray, together: bool | None = None) -> None:
        self.data, self.users = data, users
        self.together = _successive(users) if together is None else together
        self.whose: Any = slice(int(users[0]), int(users[-1]) + 1) if self.together else users  # among all users
        if self.together:
            offsets = data.offsets[users[0] : users[-1] + 2]
            self.starts, self.counts = offsets[:-1], offsets[1:] - offsets[:-1]
        else:
            self.starts = data.offsets[users]
            self.counts = data.offsets[users + 1] - self.starts
        least, most = (int(self.counts.min()), int(self.counts.max())) if len(users) else (1, 1)
        self.each = most if least == most else None  # how many rows each of these users has, if that is one number
        self.single = most == least == 1
        self.filled = least > 0

    def __len__(self) -> int:
        return len(self.users) if self.single else int(self.bounds[-1])

    @cached_property
    def bounds(self) -> np.ndarray:
        """Where users' rows begin, and end, among these rows."""
        return np.concatenate([[0], np.cumsum(self.counts)])

    @cached_property
    def place(self) -> Any:
        """Which rows of the data these are: a slice for users whose rows lie together."""
        if self.together:
            return slice(int(self.starts[0]), int(self.starts[0]) + len(self))
        return np.repeat(self.starts - self.bounds[:-1], self.counts) + np.arange(len(self))

    @cached_property
    def held(self) -> Any:
        """The columns that are held, as an array or a CSR matrix."""
        rows = self.data.rows
        if not isinstance(rows, SparseRows):
            return rows[self.place]
        if isinstance(self.place, slice):
            return rows[self.place].csr()
        lengths = rows.indptr[self.place + 1] - rows.indptr[self.place]
        indptr = np.concatenate([[0], np.cumsum(lengths)])
        entries = np.repeat(rows.indptr[self.place] - indptr[:-1], lengths) + np.arange(indptr[-1])
        parts = rows.values[entries], rows.indices[entries], indptr.astype(rows.indices.dtype)
        return scipy.sparse.csr_array(parts, shape=(len(self), rows.n_columns))

    @cached_property
    def doubled(self) -> Any:
        """`held` in float64."""
        return self.held.astype(np.float64, copy=False)

    @property
    def targets(self) -> np.ndarray:
        return np.asarray(self.data.targets[self.place])

    def weighted(self, slopes: np.ndarray) -> np.ndarray:
        """Slopes of these rows times the rows' weights, if they have any."""
        return weighted(slopes, None if self.data.weights is None else self.data.weights[self.place])

    @property
    def user_places(self) -> np.ndarray:
        """Whose these rows are, by the user's place in the list."""
        return np.repeat(np.arange(len(self.users)), self.counts)

    def per_row(self, of_users: np.ndarray) -> np.ndarray:
        """A number of each user, for each of its rows."""
        return of_users if self.single else np.repeat(of_users, self.counts if self.each is None else self.each)

    def per_user(self, of_rows: np.ndarray, added: Any = np.add) -> np.ndarray:
        """Sums over each user's rows, or what else a ufunc makes of them; 0 without rows."""
        if self.single:
            return of_rows
        if self.filled:
            return np.asarray(added.reduceat(of_rows, self.bounds[:-1], axis=0))
        out = np.zeros((len(self.users), *of_rows.shape[1:]), of_rows.dtype)
        some = self.counts > 0
        if some.any():
            out[some] = added.reduceat(of_rows, self.bounds[:-1][some], axis=0)
        return out

    def alike(self, most: int | None = None) -> Iterator[tuple[np.ndarray, Any]]:
        """Users with equally many rows, from one up to `most`, and where these are: (users, rows each).

        Where they are is a slice if all rows are theirs.
        """
        if self.each is not None:
            if len(self.users) and self.filled and (most is None or self.each <= most):
                yield np.arange(len(self.users)), slice(None)
            return
        order = np.argsort(self.counts, kind="stable")
        for members in np.split(order, np.flatnonzero(np.diff(self.counts[order])) + 1):
            count = int(self.counts[members[0]])
            if count > 0 and (most is None or count <= most):
                yield members, self.bounds[members][:, None] + np.arange(count)

    def predictions(self, weights: np.ndarray) -> np.ndarray:
        """<weights[c], row>, (rows, outputs), or (rows,) for one output; weights (outputs, features)."""
        found = along(self.held, self.data.has_intercept, weights)
        return found[:, 0] if len(weights) == 1 else found

    def sums(self, factors: np.ndarray, users: np.ndarray, dtype: Any, scales: np.ndarray | None = None) -> Any:
        """Sum of factor * row over the rows of users with these places in the list: (users, features).

        With `scales` of factor * (row * scales)^2, entry by entry.
        """
        if len(users) == len(self.users):
            bounds, rows = self.bounds, np.arange(len(self), dtype=np.int32)
        else:
            counts = self.counts[users]
            bounds = np.concatenate([[0], np.cumsum(counts)])
            rows = np.repeat(self.bounds[users] - bounds[:-1], counts) + np.arange(bounds[-1])
            factors = factors[rows]
        parts = factors.astype(dtype, copy=False), rows.astype(np.int32, copy=False), bounds.astype(np.int32)
        product = scipy.sparse.csr_array(parts, shape=(len(users), len(self)))
        held = self.doubled if dtype == np.float64 else self.held
        made = product @ (held if scales is None else squared(held, scales))
        if not self.data.has_intercept:
            return made
        ones = product.sum(axis=1, dtype=dtype).reshape(-1, 1)
        return beside([made, ones if scales is None else ones * scales[-1] ** 2])

    def combined(self, factors: np.ndarray) -> np.ndarray:
        """Sum of factor * row over all rows of all these users, in float64; not a function of single users."""
        rows, factors = self.held, factors.astype(np.float64, copy=False)
        if scipy.sparse.issparse(rows):
            total = rows.T.astype(np.float64) @ factors
        else:
            total, length = np.zeros(rows.shape[1]), max(LEAF_ROWS, _COPIED_ENTRIES // max(1, rows.shape[1]))
            for first in range(0, len(rows), length):
                some, own = rows[first : first + length], factors[first : first + length]
                total += _product(own, some if some.dtype == np.float64 else _copied(some))
        return np.append(total, factors.sum()) if self.data.has_intercept else np.asarray(total)

    @property
    def depth(self) -> int:
        """How many numbers, at most, `combined` adds up one after the other."""
        n_rows = len(self)
        # A part of the rows may end within a leaf, which is then one more.
        return n_rows if scipy.sparse.issparse(self.held) else min(n_rows, LEAF_ROWS) + 2 * (n_rows // LEAF_ROWS) + 2


def _successive(users: np.ndarray) -> bool:
    """Whether these are users one after the other, whose rows lie together."""
    return len(users) > 0 and int(users[-1]) - int(users[0]) + 1 == len(users) and bool(np.all(np.diff(users) == 1))


_room = threading.local()


def _copied(rows: np.ndarray) -> np.ndarray:
    """The rows in float64, in room of this thread that the next call takes again: fresh memory costs more."""
    if not hasattr(_room, "numbers") or _room.numbers.size < rows.size:
        _room.numbers = np.empty(max(rows.size, _COPIED_ENTRIES))
    copy: np.ndarray = _room.numbers[: rows.size].reshape(rows.shape)
    copy[...] = rows
    return copy


def _product(factors: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Sum of factor * row, leaf by leaf."""
    full = len(rows) // LEAF_ROWS * LEAF_ROWS
    leaves = np.matmul(factors[:full].reshape(-1, 1, LEAF_ROWS), rows[:full].reshape(-1, LEAF_ROWS, rows.shape[1]))
    return np.asarray(leaves[:, 0].sum(axis=0) + factors[full:] @ rows[full:])


def along(held: Any, constant: bool, weights: np.ndarray) -> np.ndarray:
    """Rows times weights (outputs, features), (rows, outputs) in the rows' own type: of each row by itself."""
    own = weights.astype(held.dtype)
    columns = held.shape[1]
    found = []
    for line in own:
        product = held @ line[:columns] if scipy.sparse.issparse(held) else np.einsum("ij,j->i", held, line[:columns])
        found.append(product + line[-1] if constant else product)
    return found[0][:, None] if len(found) == 1 else np.stack(found, axis=1)


def weighted(slopes: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Slopes, one or a line of them for each row, times the rows' weights, if there are any."""
    if weights is None:
        return slopes
    own = weights.astype(slopes.dtype)
    return np.asarray(slopes * (own if slopes.ndim == own.ndim else own[..., None]))


def turned(rows: Rows, basis: np.ndarray, dtype: Any = None) -> np.ndarray:
    """Rows @ basis (rows, width) in the rows' own type, or in `dtype`: a function of each user's rows by themselves.

    One product of BLAS for each user: those of many users at once round a row by where it stands.
    """
    held = rows.held if dtype is None else rows.held.astype(dtype, copy=False)
    held = held.toarray() if scipy.sparse.issparse(held) else held
    own = basis.astype(held.dtype)
    columns = held.shape[1]
    if basis.ndim == 1:
        made = held * own[:columns]
        return np.column_stack([made, np.full(len(made), own[-1])]) if rows.data.has_intercept else made
    out = np.empty((len(rows), basis.shape[1]), held.dtype)
    for members, places in rows.alike():
        shape = len(members), int(rows.counts[members[0]]), columns
        if isinstance(places, slice):
            np.matmul(held.reshape(shape), own[:columns], out=out.reshape(*shape[:2], -1))
        else:
            out[places] = np.matmul(held[places], own[:columns])
    if rows.data.has_intercept:
        out += own[-1]
    return out


def dense(matrix: Any) -> np.ndarray:
    """A matrix as an array."""
    return np.asarray(matrix.toarray() if scipy.sparse.issparse(matrix) else matrix)


def beside(parts: list[Any]) -> Any:
    """Matrices side by side: sparse if the first is."""
    return scipy.sparse.hstack(parts, "csr") if scipy.sparse.issparse(parts[0]) else np.hstack(parts)


def squared(held: Any, scales: np.ndarray) -> Any:
    """(row * scales)^2 of the columns that are held, entry by entry."""
    if not scipy.sparse.issparse(held):
        return np.square(held * scales[: held.shape[1]])
    made = held.astype(np.float64, copy=True)
    made.data = np.square(made.data * scales[made.indices])
    return made


def in_basis(vectors: Any, basis: np.ndarray) -> Any:
    """Vectors @ basis, each by itself; a diagonal basis keeps sparse vectors sparse."""
    if basis.ndim == 1:
        return vectors.multiply(basis[None]) if scipy.sparse.issparse(vectors) else vectors * basis
    return np.matmul(dense(vectors)[:, None, :], basis)[:, 0]


def squared_lengths(vectors: Any) -> np.ndarray:
    """|vector|^2 of each, by operations along it; entries of sparse ones must be sorted."""
    if scipy.sparse.issparse(vectors):
        return np.asarray(vectors.multiply(vectors).sum(axis=1)).ravel()
    return np.asarray(np.einsum("ij,ij->i", vectors, vectors))


def scaled(vectors: Any, factors: np.ndarray) -> Any:
    """Vectors times these factors; zeros where a factor is 0, whatever the vector holds."""
    if not scipy.sparse.issparse(vectors):
        return np.where(factors[:, None] > 0, vectors, 0.0) * factors[:, None]
    made = scipy.sparse.csr_array(vectors)
    each = np.repeat(factors, np.diff(made.indptr))
    made.data = np.where(each > 0, made.data, 0.0) * each
    return made


def lengths_of(lines: np.ndarray) -> np.ndarray:
    """Length of each line; in float64, where squares do not overflow."""
    return np.asarray(np.sqrt(squared_lengths(lines.astype(np.float64, copy=False))))


def outputs_of(slopes: np.ndarray) -> list[np.ndarray]:
    """Slopes of rows, of one output after the other."""
    return [slopes] if slopes.ndim == 1 else list(slopes.T)


def size_bounds(held: Any, constant: bool, basis: np.ndarray) -> np.ndarray:
    """Of each row sum_j |x_j| |basis_j|, basis_j a line: what rounding of row @ basis is in proportion to."""
    sizes = np.abs(basis) if basis.ndim == 1 else np.sqrt(np.square(basis).sum(axis=1))
    if scipy.sparse.issparse(held):  # abs() would add entries of one column up where they are, which may be read-only
        found = type(held)((np.abs(held.data), held.indices, held.indptr), held.shape)
    else:
        found = np.abs(held)
    return along(found, constant, sizes[None])[:, 0]


def sorted_rows(made: Any) -> scipy.sparse.csr_array:
    """A sparse product with each row's entries sorted: scipy sorts all rows or none, by what one of them is."""
    made = scipy.sparse.csr_array(made, copy=True)
    made.has_sorted_indices = False
    made.sort_indices()
    return made


def triangular(basis: np.ndarray) -> np.ndarray:
    """The lower triangular L = basis @ Q, Q a rotation: x @ L is as long as x @ basis, and L L' = basis basis'."""
    lower: np.ndarray = np.linalg.qr(basis.T).R.T
    return lower


def chunks(data: UserData, users: np.ndarray, entries: int = CHUNK_ENTRIES) -> Iterator[Rows]:
    """Rows of users with about so many entries at a time, at least one user."""
    sparse = isinstance(data.rows, SparseRows)
    per_row = max(1, data.rows.size // max(1, data.n_rows)) if sparse else data.n_features
    together = _successive(users)
    if together:
        ends = data.offsets[users[0] + 1 : users[-1] + 2]
        before = int(data.offsets[users[0]])
    else:
        ends, before = np.cumsum(data.offsets[users + 1] - data.offsets[users]), 0
    # Sparse rows take more room: values are beside indices, and products beside both.
    first, most = 0, max(1, entries // per_row // (4 if sparse else 1))
    while first < len(users):
        last = max(first + 1, int(np.searchsorted(ends, before + most, side="right")))
        last = min(last, first + most)  # users without rows cost something, too
        yield Rows(data, users[first:last], together)
        first, before = last, int(ends[last - 1])


_limit = threading.local()


def limit_threads(most: int | None) -> None:
    """Let the statistics that this thread computes take so many threads at most; None: one for each core."""
    _limit.most = most


def in_threads(work: Callable[[Any], _T], parts: list[Any]) -> list[_T]:
    """The work on each part, on all cores. BLAS takes one thread in each meanwhile.

    A call of BLAS then gives the same for the same numbers, however busy the machine is.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    n_threads = min(cores if getattr(_limit, "most", None) is None else _limit.most, cores, len(parts))
    with _one_blas_thread():
        if n_threads <= 1:
            return [_quietly(work, part) for part in parts]
        with ThreadPoolExecutor(n_threads, initializer=limit_threads, initargs=(1,)) as pool:
            return list(pool.map(lambda part: _quietly(work, part), parts))


def _quietly(work: Callable[[Any], _T], part: Any) -> _T:
    """Without numpy's warnings, which depend on values; settings are each thread's own."""
    with np.errstate(all="ignore"):
        return work(part)


_blas: list[threadpoolctl.ThreadpoolController] = []


def _one_blas_thread() -> Any:
    if not _blas:  # looked up once: it asks the system for all loaded libraries
        _blas.append(threadpoolctl.ThreadpoolController())
    return _blas[0].limit(limits=1, user_api="blas")
