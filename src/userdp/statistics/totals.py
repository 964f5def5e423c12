"""Totals of clipped gradients and of second moments, without a vector of each user: user-level ghost clipping.

A user's gradient in a basis A is g = A' sum_i r_i x_i, with r_i the slope of row i. Its length needs no vector:
|g|^2 = r' K r, where K = Y Y' holds the products of the user's own rows Y = X A. K stays the same as long as the basis
does, so it is computed once (`Geometry`) and used in every pass. Neither does the sum of clipped gradients:

    sum_u s_u g_u = A' (X' c),    c_i = s_u r_i,    s_u = min(1, clip / |g_u|)

What one pass costs is two products of the rows with a vector. Users with more rows than a quarter of the features, for
whom K would be large, take the direct way: sums of r_i x_i by a CSR product, and their change of basis.

Privacy. A user's factor s_u, its size and whether it counts at all are functions of this user's rows, to the last bit
(`rows`), and s_u |g_u| is at most the clip, whatever the arithmetic did: lengths are rounded up by a proven bound.
What mixes users are sums in float64. Users stand in fixed blocks by their public places in the list of those asked,
and a block's sum is rounded to whole numbers once, so that replacing a user changes the sum of this user's block
alone. There it may round differently, by at most `ALLOWED` of the radius: the bound is computed along with the sum,
and a block that exceeds it (columns that nearly cancel, or values that are extreme or missing) is added up from
single users' vectors. The sensitivity of `Clip` includes that (`SHARED_ROUNDING`). Proof: docs/proofs.md, section 13.

Li, Tramer, Liang and Hashimoto 2021 clip gradients of single examples of deep networks so.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import scipy.sparse

from userdp.data.sparse import SparseRows
from userdp.data.users import UserData
from userdp.statistics.rows import (
    Rows,
    chunks,
    dense,
    in_basis,
    in_threads,
    lengths_of,
    outputs_of,
    size_bounds,
    squared,
    squared_lengths,
    triangular,
    turned,
)

BLOCK_USERS = 1 << 15  # at most, whose sum is rounded together, by their places in the list of those asked: public
_READ_ENTRIES = 1 << 20  # of rows whose slopes are computed side by side: they are read where they lie, not copied
_PARTS = 8  # blocks, at least, for all cores to have some; of at least so many users, and of so many of their entries
_LEAST_USERS, _LEAST_ENTRIES = 1 << 10, 1 << 16
ALLOWED = 2.0**-20  # of the radius, that a block's sum may be off by: a quarter of what `Clip` charges for
_HIDDEN = 2.0**-28  # of a row's length, that rounding may hide where K is used
_KEPT_PRODUCTS = 0.25  # of a row's entries: products K of users with more rows are not kept
_FEW = 4  # rows of users whose quadratic forms are written out, over all users at once
_SAFE = 1 - 2.0**-40  # room for what rounds when a row's factor is applied
_EXTREME = {
    4: 2.0**50,
    8: 2.0**400,
}  # by bytes of a number: rows so long, or one over that, are not multiplied with others
_TAME = {4: 2.0**60, 8: 2.0**300}  # by the same: lines of a basis so long, or one over that


def rounding(dtype: Any, terms: int) -> float:
    """How far a sum of so many products is off, relative to the sum of their magnitudes."""
    unit = 2.0**-24 if np.dtype(dtype) == np.float32 else 2.0**-53
    return 2 * (terms + 4) * unit


def is_tame(basis: np.ndarray, dtype: Any) -> bool:
    """Whether rows may be added up before they are turned: where a row is tame in the basis, sums do not overflow."""
    sizes = np.abs(basis) if basis.ndim == 1 else np.abs(basis).max(axis=1)
    most = _TAME[np.dtype(dtype).itemsize]
    return bool(np.all((sizes >= 1 / most) & (sizes <= most)))


class Geometry:
    """Lengths of rows, and products of each user's rows, in a basis: what stays the same from pass to pass.

    Held by the data's side, so that nobody who holds the weights holds anything of the data.
    """

    def __init__(self, data: UserData, basis: np.ndarray) -> None:
        self.basis = basis
        self.same = basis  # an equal array, which is not compared again
        self.lower = basis if basis.ndim == 1 else triangular(basis)
        n_features = data.n_features
        # Of row @ lower, relative to `size_bounds`: the triangular form is rounded, too.
        self.row_rounding = (
            4 * 2.0**-53 if basis.ndim == 1 else rounding(float, n_features) + 4 * n_features**2 * 2.0**-53
        )
        self.lengths = data.scratch((data.n_rows,), data.dtype)  # |row @ basis|
        self.summed = np.zeros(data.n_users, dtype=bool)  # whose gradients are summed, for K is not kept or too rough
        self.most_rows = 1 if isinstance(data.rows, SparseRows) else max(1, int(_KEPT_PRODUCTS * n_features))
        self.stretch = np.ones(data.n_users, dtype=np.float32)  # largest size bound / length of a user's rows
        parts = in_threads(
            lambda users: self._of_users(data, users), blocks_of(np.arange(data.n_users), data.n_features)
        )
        # By number of rows: users, and the products K of each: (rows, rows, users) for few rows, so that arithmetic is
        # of whole arrays, else (users, rows, rows).
        self.products: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        for count in sorted({count for part in parts for count in part}):
            found = [pair for part in parts for pair in part.pop(count, [])]
            kept = np.concatenate([made for _, made in found], axis=-1 if count <= _FEW else 0)
            self.products[count] = np.concatenate([users for users, _ in found]), kept

    def _of_users(self, data: UserData, users: np.ndarray) -> dict[int, list[tuple[np.ndarray, np.ndarray]]]:
        products: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}
        extreme = _EXTREME[data.dtype.itemsize]
        for rows in chunks(data, users):
            some = rows.whose
            if self.lower.ndim == 1 and isinstance(data.rows, SparseRows):
                along = np.empty((0, 0))  # products are not kept
                squares = np.asarray(squared(rows.held, self.lower).sum(axis=1)).ravel()
                lengths = np.sqrt(squares + self.lower[-1] ** 2 if data.has_intercept else squares)
                self.lengths[rows.place] = lengths
            elif rows.counts.min() > self.most_rows:  # lengths are all that is asked of these rows
                self.lengths[rows.place] = lengths_of(turned(rows, self.lower))
                self.summed[some] = True
                continue
            else:
                along = turned(rows, self.lower, np.float64)
                lengths = lengths_of(along)
                few = rows.per_row(rows.counts <= self.most_rows)
                own = lengths if few.all() else lengths_of(turned(rows, self.lower))
                self.lengths[rows.place] = np.where(few, lengths, own)
            bounds = lengths if self.lower.ndim == 1 else size_bounds(rows.held, data.has_intercept, self.lower)
            tame = (lengths > 1 / extreme) & (lengths < extreme)  # neither K nor sums of rows over- or underflow
            rough = ~((self.row_rounding * bounds <= _HIDDEN * lengths) & tame)
            self.summed[some] = (rows.per_user(rough.astype(np.float32)) > 0) | (rows.counts > self.most_rows)
            ratios = np.where(rough, 1.0, bounds / lengths) * (1 + 2.0**-20)
            self.stretch[some] = rows.per_user(ratios, np.maximum)
            for members, places in rows.alike(self.most_rows):
                count = int(rows.counts[members[0]])
                if count == 1:
                    continue
                own = along.reshape(len(members), count, -1) if isinstance(places, slice) else along[places]
                made = np.matmul(own, own.transpose(0, 2, 1)).astype(data.dtype, copy=False)
                made = np.ascontiguousarray(made.transpose(1, 2, 0)) if count <= _FEW else made
                products.setdefault(count, []).append((rows.users[members], made))
        return products

    def norms(self, rows: Rows, slopes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of each user |sum_i r_i y_i|, the same rounded up, and sum_i |r_i| |y_i|; slopes are (rows, outputs).

        By the same operations for a user, whichever users are beside it: one row takes no other way among its like.
        """
        lengths = self.lengths[rows.place]
        # In order of memory: BLAS could round products of strided numbers otherwise, and whether they are depends on
        # who else there is.
        outputs = [slopes] if slopes.ndim == 1 else list(np.ascontiguousarray(slopes.T))
        sizes = [rows.per_user(np.abs(one) * lengths).astype(np.float64) for one in outputs]
        # One output after the other: numpy's sums over several take an order that depends on how many users there are.
        total = functools.reduce(np.add, sizes)
        hidden = _HIDDEN + 2 * rounding(lengths.dtype, 4)  # by the rounding of lengths and products
        alone: np.ndarray = (
            sizes[0] if len(sizes) == 1 else np.sqrt(functools.reduce(np.add, [size * size for size in sizes]))
        )
        if rows.single:
            return alone, alone * (1 + hidden), total
        squares = np.maximum(functools.reduce(np.add, self._squares(rows, outputs)), 0.0)
        unit = rounding(lengths.dtype, 2 * self.most_rows)  # by adding products up
        ones = rows.counts == 1
        norms = np.where(ones, alone, np.sqrt(squares))
        safe = np.where(ones, alone * (1 + hidden), np.sqrt(squares + unit * total * total) + hidden * total)
        return norms, safe, total

    def _squares(self, rows: Rows, outputs: list[np.ndarray]) -> list[np.ndarray]:
        """r' K r of each user whose K is kept."""
        squares = [np.zeros(len(rows.users)) for _ in outputs]
        for members, places in rows.alike(self.most_rows):
            count = int(rows.counts[members[0]])
            if count == 1:
                continue
            owners, kept = self.products[count]
            first = int(np.searchsorted(owners, rows.users[members[0]]))
            wanted: Any = slice(first, first + len(members))
            if first + len(members) > len(owners) or owners[first + len(members) - 1] != rows.users[members[-1]]:
                wanted = np.searchsorted(owners, rows.users[members])
            kept = kept[..., wanted] if count <= _FEW else kept[wanted]
            for square, slopes in zip(squares, outputs, strict=True):
                own = slopes.reshape(len(members), count) if isinstance(places, slice) else slopes[places]
                square[members] = _quadratic(kept, own, count)
        return squares


def _quadratic(products: np.ndarray, slopes: np.ndarray, count: int) -> np.ndarray:
    """r' K r of each user; products are (rows, rows, users) for few rows, else (users, rows, rows)."""
    if count > _FEW:
        turned_slopes = np.matmul(products, slopes[:, :, None])[:, :, 0]
        return np.asarray(np.einsum("ki,ki->k", turned_slopes, slopes))
    columns = np.ascontiguousarray(slopes.T)
    total = np.zeros(len(slopes), slopes.dtype)
    for i in range(count):
        inner = 0.5 * products[i, i] * columns[i]
        for j in range(i):
            inner += products[i, j] * columns[j]
        total += 2 * inner * columns[i]
    return total


_KEPT: weakref.WeakKeyDictionary[UserData, Geometry] = weakref.WeakKeyDictionary()


def geometry_of(data: UserData, basis: np.ndarray) -> Geometry:
    """The geometry of all rows in a basis; the last one is kept with the data, for all steps of a solver use it."""
    kept = _KEPT.get(data)
    if kept is not None and (kept.basis is basis or kept.same is basis):
        return kept
    if kept is None or not np.array_equal(kept.basis, basis):
        _KEPT.pop(data, None)  # its memory first
        kept = _KEPT[data] = Geometry(data, basis)
    kept.same = basis
    return kept


def forget(data: UserData) -> None:
    """Keep nothing of these rows: who made them of an array may have changed it since."""
    _KEPT.pop(data, None)


def blocks_of(users: np.ndarray, n_features: int) -> list[np.ndarray]:
    """The users that a total is of, by blocks of their places in this list: how long these are is public."""
    size = max(math.ceil(len(users) / _PARTS), _LEAST_USERS, _LEAST_ENTRIES // n_features)
    size = min(size, BLOCK_USERS)
    return [users[first : first + size] for first in range(0, len(users), size)]


Summed: TypeAlias = tuple[Any, np.ndarray, float]  # a sum, whole numbers beside it, and how far the sum may be off


def total_of_blocks(
    users: np.ndarray, n_features: int, radius: float, bits: int, summed: Callable[[np.ndarray, float, bool], Summed]
) -> np.ndarray:
    """The sum of users' vectors in whole steps of radius 2^-bits, what is beside it, and how many users there are.

    `summed(block, steps, alone)` adds a block of users up; with `alone` in whole steps of each user's own vector, for a
    block whose sum may be off by more than is `ALLOWED`.
    """
    steps, blocks = 2.0**bits / radius, blocks_of(users, n_features)
    allowed = ALLOWED * radius / len(blocks)

    def of_block(block: np.ndarray) -> np.ndarray:
        total, beside, error = summed(block, steps, False)
        if not error <= allowed:
            total, beside, _ = summed(block, steps, True)
        else:
            total = np.trunc(total * steps)
        return np.concatenate([total.astype(np.int64), beside, [len(block)]])

    return np.asarray(np.sum(in_threads(of_block, blocks), axis=0))


class Marks(NamedTuple):
    """How a user's size is shown beside its clipped gradient: see `ClippedGradient`."""

    longest: float
    sizes: int
    of_size: float
    of_affected_size: float
    affected: float

    def counted(self, norms: np.ndarray, lost: np.ndarray | None, affected: np.ndarray, steps: float) -> np.ndarray:
        """The sum of the marks of users with these norms, but for the `lost`, who do not count, in whole steps."""
        out, n_affected = np.zeros(self.sizes + 1, dtype=np.int64), 0
        sizes = size_of(norms, self.longest, self.sizes)
        parts = [(slice(None), self.of_size)]
        if lost is not None or affected.any():
            lost = np.zeros(len(norms), dtype=bool) if lost is None else lost
            parts = [(~lost & ~affected, self.of_size), (~lost & affected, self.of_affected_size)]
            n_affected = int(np.count_nonzero(lost | affected))
        for some, mark in parts:
            out[:-1] += np.bincount(sizes[some], minlength=self.sizes) * math.trunc(mark * steps)
        out[-1] = n_affected * math.trunc(self.affected * steps)
        return out

    def beside(self, norms: np.ndarray, affected: np.ndarray) -> np.ndarray:
        """The marks of each user."""
        lost = np.isnan(norms)
        out = np.zeros((len(norms), self.sizes + 1))
        places = np.flatnonzero(~lost)
        sizes = size_of(norms, self.longest, self.sizes)
        out[places, sizes[places]] = np.where(affected[places], self.of_affected_size, self.of_size)
        out[lost | affected, -1] = self.affected
        return out


def size_of(norms: np.ndarray, longest: float, n_sizes: int) -> np.ndarray:
    """k for a norm above longest / 2^(k + 1), the last of them for any smaller one.

    Above by more than a millionth: rows at the bound that row weights set them, with slopes of a half, have norms at an
    edge, which rounding must not decide.

    >>> size_of(np.array([9.0, 1.0, 0.51, 0.5, 0.1, 0.0]), 1.0, 3).tolist()
    [0, 0, 0, 1, 2, 2]
    """
    scaled = np.abs(np.ascontiguousarray(norms, dtype=np.float64)) * ((1 - 2.0**-20) / longest)
    # One over the exponent, but for a power of 2 the exponent: by the bits of the number before it.
    return np.asarray(np.clip(1022 - ((scaled.view(np.int64) - 1) >> 52), 0, n_sizes - 1))


@dataclass(frozen=True)
class GradientTotal:
    """The sum of clipped gradients and their marks, in whole steps of the radius; `slopes` gives those of rows.

    A row's slope is divided by its user's number of rows already; `geometry` None: gradients are taken `directions`
    (outputs, features, width) apart, few, where every user's vector is at hand.
    """

    gradient: Any
    clip: float
    marks: Marks
    geometry: Geometry | None
    directions: np.ndarray | None

    def total(self, data: UserData, users: np.ndarray, radius: float, bits: int) -> np.ndarray:
        """Whole numbers: steps of radius 2^-bits, marks, and how many users there are."""
        return total_of_blocks(users, data.n_features, radius, bits, lambda *block: self._summed(data, *block))

    def _summed(self, data: UserData, block: np.ndarray, steps: float, alone: bool) -> Summed:
        total: Any = 0
        marks, error = np.zeros(self.marks.sizes + 1, dtype=np.int64), 0.0
        for rows in chunks(data, block, _READ_ENTRIES):
            few = self.geometry is None
            part, norms, lost, wrong = self._along(rows, alone) if few else self._turned(rows, alone)
            if alone:
                part = np.trunc(part * steps).astype(np.int64).sum(axis=0)
            total, error = total + part, error + wrong
            marks += self.marks.counted(norms, lost, data.affected[rows.whose], steps)
        return total, marks, error if np.all(np.isfinite(total)) else math.inf

    def _factors(self, rows: Rows, norms: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """min(1, clip / norm), 0 for users who do not count, and these; None if there are none."""
        factors = np.minimum(self.clip * _SAFE / norms, 1.0)
        if rows.filled and math.isfinite(norms.sum()):
            return factors, None
        lost = ~np.isfinite(norms) | (rows.counts == 0)
        return np.where(lost, 0.0, factors), lost

    def _along(self, rows: Rows, alone: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, float]:
        """Along few directions: every user's vector is at hand."""
        assert self.directions is not None
        vectors = self.gradient.along(rows, self.gradient.row_slopes(rows), self.directions)
        norms = np.sqrt(squared_lengths(vectors))
        factors, lost = self._factors(rows, norms)
        if lost is not None:
            vectors = np.where(lost[:, None], 0.0, vectors)
        if alone:
            return vectors * factors[:, None], norms, lost, 0.0
        return factors @ vectors, norms, lost, rounding(float, len(norms)) * self.clip * len(norms)

    def _turned(self, rows: Rows, alone: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, float]:
        geometry = self.geometry
        assert geometry is not None
        slopes, n_features, basis = self.gradient.row_slopes(rows), rows.data.n_features, geometry.basis
        summed = geometry.summed[rows.whose]
        direct = np.flatnonzero(summed)
        outputs = outputs_of(slopes)
        sums = [rows.sums(one, direct, rows.data.dtype) for one in outputs] if len(direct) else []
        if len(direct) < len(summed):
            norms, safe, sizes = geometry.norms(rows, slopes)
            reach = sizes * geometry.stretch[rows.whose]
            if sums:
                norms[direct], safe[direct], reach[direct] = self._direct(sums, geometry)
        else:
            norms, safe, reach = self._direct(sums, geometry)
        factors, lost = self._factors(rows, safe)
        unit = rounding(float, n_features + max(rows.depth, len(direct)))
        error = unit * float(factors @ (reach if lost is None else np.where(lost, 0.0, reach)))
        if alone:
            return self._one_by_one(rows, outputs, sums, direct, factors), norms, lost, error
        total = np.zeros((len(outputs), n_features))
        if len(direct) < len(summed):
            through = rows.per_row(np.where(summed, 0.0, factors) if sums else factors)
            for line, one in zip(total, outputs, strict=True):
                line += rows.combined(one * through)
        for line, found in zip(total, sums, strict=False):
            those = factors[direct]
            line += found.T @ those if scipy.sparse.issparse(found) else those @ found.astype(np.float64)
        return (total * basis if basis.ndim == 1 else total @ basis).ravel(), norms, lost, error

    def _direct(self, sums: list[Any], geometry: Geometry) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Norms of users' sums in the basis, the same rounded up, and what rounding is in proportion to."""
        squares: Any = 0.0
        reach: Any = 0.0
        lower = geometry.lower
        for found in sums:
            reach = reach + size_bounds(found, False, lower)
            stays_sparse = scipy.sparse.issparse(found) and lower.ndim == 1  # in float64 then
            made = in_basis(found, lower if stays_sparse else lower.astype(found.dtype))
            squares = squares + squared_lengths(made)
        hidden = rounding(squares.dtype, len(lower))
        norms, reach = np.sqrt(squares).astype(np.float64), reach.astype(np.float64)
        return norms, norms + hidden * norms + (hidden + geometry.row_rounding) * reach, reach

    def _one_by_one(
        self,
        rows: Rows,
        outputs: list[np.ndarray],
        sums: list[Any],
        direct: np.ndarray,
        factors: np.ndarray,
    ) -> np.ndarray:
        """Users' clipped vectors, each computed by itself and clipped once more by its own norm."""
        assert self.geometry is not None
        basis = self.geometry.basis
        others = np.setdiff1d(np.arange(len(rows.users)), direct)
        blocks = []
        for number, slopes in enumerate(outputs):
            found = np.zeros((len(rows.users), rows.data.n_features))
            for some, made in ((direct, sums[number] if sums else None), (others, None)):
                if len(some):
                    made = rows.sums(slopes, some, np.float64) if made is None else made
                    found[some] = dense(made)
            blocks.append(in_basis(found, basis))
        vectors = np.hstack(blocks)
        vectors[(factors == 0) | ~np.isfinite(vectors).all(axis=1)] = 0.0
        vectors *= factors[:, None]
        norms = np.sqrt(squared_lengths(vectors))
        return np.asarray(vectors * np.minimum(self.clip * _SAFE / norms, 1.0)[:, None])
