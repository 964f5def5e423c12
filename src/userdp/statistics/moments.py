"""First and second moments of users' rows: statistics that read no targets."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import scipy.sparse

from userdp.data.schema import matrix
from userdp.data.source import SHARED, shares_memory
from userdp.data.users import RemoteUsers, UserData
from userdp.statistics.gradients import PerUser, RowWeights, never_apart
from userdp.statistics.rows import (
    Rows,
    chunks,
    dense,
    scaled,
    size_bounds,
    sorted_rows,
    squared_lengths,
    triangular,
    turned,
)
from userdp.statistics.totals import Summed, is_tame, rounding, total_of_blocks

_EXTREME = 2.0**400  # lengths beyond which, or below whose inverse, a moment counts as 0
_ROUGH = 2.0**-8  # by which rounding may lengthen a user's moment before it is computed in float64
_LEAF_ROWS = 1024  # whose squares one product of BLAS adds up; sums of leaves follow


def square_of(rows: Rows, basis: np.ndarray, weights: np.ndarray | None = None, dtype: Any = None) -> Iterator[Any]:
    """Users with equally many rows, and sum of weight * (B'x)(B'x)' over each one's rows: (users, width, width)."""
    made = turned(rows, basis, dtype)
    if weights is not None:
        made = made * np.sqrt(weights)[:, None]
    for members, places in rows.alike():
        own = made.reshape(len(members), -1, made.shape[1]) if isinstance(places, slice) else made[places]
        yield members, np.matmul(own.transpose(0, 2, 1), own)


def triangle(matrices: np.ndarray) -> np.ndarray:
    """Upper triangles row by row, off-diagonal entries times sqrt(2): vectors as long as the Frobenius norms."""
    width = matrices.shape[-1]
    first, second = np.triu_indices(width)
    # Contiguous, so that the order in which a row is added up does not depend on how many there are.
    found: np.ndarray = np.take(matrices.reshape(*matrices.shape[:-2], width * width), first * width + second, axis=-1)
    found *= np.where(first == second, 1.0, math.sqrt(2))
    return found


def symmetric(triangle: np.ndarray) -> np.ndarray:
    """The matrix of an upper triangle whose off-diagonal entries are times sqrt(2).

    >>> symmetric(np.array([1.0, 2.0 * math.sqrt(2), 3.0]))
    array([[1., 2.],
           [2., 3.]])
    """
    width = (math.isqrt(8 * len(triangle) + 1) - 1) // 2
    first, second = np.triu_indices(width)
    found = np.zeros((width, width))
    found[first, second] = triangle / np.where(first == second, 1.0, math.sqrt(2))
    return np.asarray(found + np.triu(found, 1).T)


@dataclass(frozen=True)
class UserMean(PerUser):
    """Mean of each user's rows, for private means; NaN for a user without rows.

    Guarantee: vector j is a function of user users[j]'s rows.
    """

    def of_users(self, rows: Rows) -> np.ndarray:
        sums = dense(rows.sums(np.ones(len(rows)), np.arange(len(rows.users)), np.float64))
        return np.asarray(sums / np.where(rows.counts > 0, rows.counts, math.nan)[:, None])


@dataclass(frozen=True)
class SecondMoment(PerUser):
    """Second moment of each user's rows, as a vector whose norm is the matrix's Frobenius norm.

    M_u = (1/m_u) sum of x x^T; the upper triangle row by row, off-diagonal entries times sqrt(2): d(d+1)/2 numbers.

    Guarantee: vector j is a function of user users[j]'s rows.
    """

    def of_users(self, rows: Rows) -> np.ndarray:
        d = rows.data.n_features
        out = np.full((len(rows.users), d * (d + 1) // 2), math.nan)
        for members, squares in square_of(rows, np.ones(d), dtype=np.float64):
            out[members] = triangle(squares) / rows.counts[members][:, None]
        return out


@dataclass(frozen=True)
class SecondMomentShape(PerUser):
    """Second moment of each user's rows divided by its length, followed by that length as a fraction of `largest`.

    With v the vector of `SecondMoment`: (v/|v|, min(1, |v|/largest)). A user whose rows are all zero gives zeros. The
    shape is what whitening needs, and since all shapes are equally long, clipping them loses nothing and no user's
    scale counts more than another's; the second part says how long moments are on average.

    Guarantee: vector j is a function of user users[j]'s rows. Its length is at most sqrt(2), unless rows are so tiny
    that squares of their squares underflow; the mechanism clips it then.
    """

    largest: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.largest) and self.largest > 0):
            raise ValueError(f"Expected largest={self.largest} to be finite and > 0: the square of a row's norm.")

    def of_users(self, rows: Rows) -> np.ndarray:
        moments = SecondMoment().of_users(rows)
        lengths = np.sqrt(squared_lengths(moments))
        out = np.empty((len(moments), moments.shape[1] + 1))
        np.divide(moments, np.where(lengths == 0, 1.0, lengths)[:, None], out=out[:, :-1])
        out[:, -1] = np.minimum(lengths / self.largest, 1.0)
        return out


@never_apart
@dataclass(frozen=True, eq=False)
class MomentShape(PerUser):
    """Second moment of each user's rows in a given basis, divided by its Frobenius norm or by `threshold`, if larger.

    A_u = B' M_u B / max(|B' M_u B|, threshold), M_u = (1/m_u) sum of x x^T; as `SecondMoment`, or only its diagonal if
    `basis` is a vector, which stands for a diagonal B. Zeros for a user without rows, or whose moment is not finite.
    With a threshold of 0 these are shapes, all of length 1; with a large one they are moments over the threshold, and
    only the moments of users beyond it are shortened.

    Guarantee: vector j is a function of user users[j]'s rows. All vectors have length at most 1, and no two point
    apart: <A_u, A_v> = tr(A_u A_v) >= 0 for positive semi-definite matrices (docs/proofs.md, section 22).
    """

    basis: np.ndarray
    threshold: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.threshold) and self.threshold >= 0):
            raise ValueError(f"threshold must be finite and >= 0, got {self.threshold}.")

    def of_users(self, rows: Rows, known: np.ndarray | None = None) -> Any:
        """The vectors; `known` are the factors that users' sums of squares are multiplied by."""
        if self.basis.ndim == 1:
            squares, lengths = self._diagonals(rows)
            return scaled(squares, self._factors(lengths, rows.counts))
        out = np.zeros((len(rows.users), len(self.basis) * (len(self.basis) + 1) // 2))
        for members, squares in square_of(rows, self.basis, dtype=np.float64):
            found = triangle(squares)
            lengths = np.sqrt(squared_lengths(found))
            factors = self._factors(lengths, rows.counts[members]) if known is None else known[members]
            out[members] = scaled(found, factors)
        return out

    def _factors(self, lengths: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """What a sum of so many squares is multiplied by; 0 for one that is not finite, or extreme."""
        usable = (lengths > 1 / _EXTREME) & (lengths < _EXTREME)
        return np.where(usable, 1 / np.maximum(np.where(usable, lengths, 1.0), self.threshold * counts), 0.0)

    def _diagonals(self, rows: Rows) -> tuple[Any, np.ndarray]:
        """Sums of squares of each user's columns, and how long these are."""
        squares = rows.sums(np.ones(len(rows)), np.arange(len(rows.users)), np.float64, self.basis)
        squares = sorted_rows(squares) if scipy.sparse.issparse(squares) else squares
        return squares, np.sqrt(squared_lengths(squares))

    def total(self, data: UserData, users: np.ndarray, radius: float, bits: int) -> np.ndarray | None:
        """The sum of all users' vectors, and their number, in steps of radius 2^-bits, without a vector of each.

        None for a radius that would clip vectors, or a basis of extreme numbers. `statistics.totals` says what privacy
        rests on.
        """
        self.check_basis(data.n_features)
        if radius < 1 or not is_tame(self.basis, data.dtype):
            return None
        lower = self.basis if self.basis.ndim == 1 else triangular(self.basis)
        return total_of_blocks(users, data.n_features, radius, bits, lambda *block: self._summed(data, lower, *block))

    def _summed(self, data: UserData, lower: np.ndarray, block: np.ndarray, steps: float, alone: bool) -> Summed:
        d, diagonal = data.n_features, lower.ndim == 1
        total: Any = 0
        square: Any = None if diagonal else np.zeros((d, d))
        error, reach, depth, leaves = 0.0, 0.0, 0, 0
        for rows in chunks(data, block):
            if alone:
                known = None if diagonal else self._rounded_factors(rows, lower)[0]
                total = total + np.trunc(dense(self.of_users(rows, known)) * steps).astype(np.int64).sum(axis=0)
                continue
            if diagonal:
                squares, lengths = self._diagonals(rows)
                factors = self._factors(lengths, rows.counts)
                total = total + (squares.T @ factors if scipy.sparse.issparse(squares) else factors @ squares)
                error += rounding(float, len(rows.users)) * len(rows.users)
                continue
            factors, bounds = self._rounded_factors(rows, lower)
            weights = rows.per_row(factors)
            roots = np.sqrt(weights)[:, None]
            for leaf in range(0, len(rows), _LEAF_ROWS):
                own = roots[leaf : leaf + _LEAF_ROWS]
                some = np.repeat(own, d, axis=1)
                some[:, : data.rows.shape[1]] *= dense(rows.held[leaf : leaf + _LEAF_ROWS])
                square += some.T @ some
                leaves += 1
            depth = max(depth, min(len(rows), _LEAF_ROWS))
            reach += float(weights @ np.square(bounds))
        if not (alone or diagonal):
            total = triangle(self.basis.T @ square @ self.basis)
            error = rounding(float, depth + leaves + 4 * d) * reach
        return total, np.empty(0, dtype=np.int64), error if np.all(np.isfinite(total)) else math.inf

    def _rounded_factors(self, rows: Rows, lower: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Factors by lengths that are rounded up, so that no vector is too long, and rows' `size_bounds`."""
        bounds = size_bounds(rows.held, rows.data.has_intercept, lower).astype(np.float64)
        lengths, rough = moment_lengths(rows, lower, bounds, rows.data.dtype)
        if rows.data.dtype != np.float64 and rough.any():
            lengths = np.where(rough, moment_lengths(rows, lower, bounds, np.float64)[0], lengths)
        return self._factors(lengths, rows.counts), bounds

    def check(self, n_features: int, dtype: npt.DTypeLike = np.float64) -> None:
        self.check_basis(n_features)
        super().check(n_features, dtype)

    def check_basis(self, n_features: int) -> None:
        if self.basis.shape not in ((n_features,), (n_features, n_features)):
            raise ValueError(f"Expected a basis of {n_features} features, got shape {self.basis.shape}.")


@never_apart
@dataclass(frozen=True, eq=False)
class RowScale(PerUser):
    """Which power of 4 the mean square length of each user's rows, as `lengths` has it, is nearest to: a 1 among zeros.

    Guarantee: vector j is a function of user users[j]'s rows; entries are 0 but for at most one 1, so that no two
    vectors point apart.
    """

    SIZES: ClassVar[np.ndarray] = 4.0 ** np.arange(-64, 64)
    lengths: RowWeights

    def of_users(self, rows: Rows) -> np.ndarray:
        lengths = np.square(self.lengths.lengths(rows), dtype=np.float64)
        squares = rows.per_user(lengths) / np.maximum(rows.counts, 1)
        places = np.round(0.5 * np.log2(squares)) + self.SIZES.size // 2
        known = np.isfinite(places)
        out = np.zeros((len(rows.users), self.SIZES.size))
        out[known, np.clip(places[known], 0, self.SIZES.size - 1).astype(np.int64)] = 1.0
        return out

    def check(self, n_features: int, dtype: npt.DTypeLike = np.float64) -> None:
        if len(self.lengths.basis) != n_features:
            raise ValueError(f"Expected a basis of {n_features} features, got {len(self.lengths.basis)}.")
        super().check(n_features, dtype)


@never_apart
@dataclass(frozen=True, eq=False)
class ColumnScales(PerUser):
    """For each feature which power of 64 the mean square of a user's rows is nearest to, as a 1 among zeros.

    All over sqrt(d), so that vectors have length at most 1: d blocks of `SIZES`. A feature that is 0 in all rows, or
    not finite, has zeros only.

    Guarantee: vector j is a function of user users[j]'s rows; entries are >= 0, so that no two vectors point apart.
    """

    SIZES: ClassVar[np.ndarray] = 64.0 ** np.arange(-10, 11)

    def of_users(self, rows: Rows) -> Any:
        d, width = rows.data.n_features, self.SIZES.size
        squares = rows.sums(np.ones(len(rows)), np.arange(len(rows.users)), np.float64, np.ones(d))
        counts = np.where(rows.counts > 0, rows.counts, 1)[:, None]
        if scipy.sparse.issparse(squares):
            found = scipy.sparse.csr_array(squares.multiply(1 / counts))
            sizes, known = self._sizes(found.data)
            marks = np.where(known, 1 / math.sqrt(d), 0.0)
            shape = len(rows.users), d * width
            return scipy.sparse.csr_array((marks, found.indices.astype(np.int64) * width + sizes, found.indptr), shape)
        sizes, known = self._sizes(squares / counts)
        out = np.zeros((len(rows.users), d, width))
        users, columns = np.nonzero(known)
        out[users, columns, sizes[known]] = 1 / math.sqrt(d)
        return out.reshape(len(rows.users), d * width)

    def _sizes(self, squares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which of the sizes squares are nearest to, 0 where they are 0 or not finite, and where they are not."""
        places = np.round(np.log2(squares) / 6) + self.SIZES.size // 2
        known = np.isfinite(places)
        return np.clip(np.where(known, places, 0.0), 0, self.SIZES.size - 1).astype(np.int64), known


def moment_lengths(rows: Rows, lower: np.ndarray, bounds: np.ndarray, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Frobenius norm of each user's sum of (B'x)(B'x)', rounded up, and whether rounding lengthened it by much.

    |sum y y'| is that of the products Y Y' and that of Y' Y: whichever is smaller is computed. `bounds` are rows'
    `size_bounds`, which the rounding of y is in proportion to.
    """
    d = len(lower)
    made = turned(rows, lower, dtype)
    squares = np.einsum("ij,ij->i", made, made).astype(np.float64)
    hidden = (rounding(dtype, d) + 4 * d**2 * 2.0**-53) * bounds
    more = rows.per_user(2 * np.sqrt(squares) * hidden + hidden * hidden)
    lengths, rough = np.zeros(len(rows.users)), np.zeros(len(rows.users), dtype=bool)
    for members, places in rows.alike():
        own = made.reshape(len(members), -1, d) if isinstance(places, slice) else made[places]
        count = own.shape[1]
        if count == 1:
            found = squares[places].ravel() * (1 + rounding(dtype, d))
        else:
            other = own.transpose(0, 2, 1)
            products = np.matmul(own, other) if count <= d else np.matmul(other, own)
            flat = products.reshape(len(members), -1)
            terms = (d if count <= d else count) * math.isqrt(4 * min(count, d)) + flat.shape[1]
            found = np.sqrt(np.einsum("ij,ij->i", flat, flat).astype(np.float64)) * (1 + rounding(dtype, terms))
        lengths[members] = found + more[members]
        # Beyond these sizes squares of single precision's squares over- or underflow.
        rough[members] = ~((more[members] <= _ROUGH * found) & (found > 2.0**-50) & (found < 2.0**50))
    return lengths, rough


def public_moment(public_X: Any, data: UserData | RemoteUsers, most_features: int) -> np.ndarray:
    """Second moment of public rows, with the intercept's column if the data has it; its diagonal for more features.

    The fewer rows, the more their covariance is drawn to its diagonal: directions that they lack by chance are not
    taken for empty. A column that does not vary is taken to vary by its size, or if it is 0, as much as others do.
    """
    from sklearn.utils.sparsefuncs import mean_variance_axis  # which plans need not wait for

    expected = data.n_features - data.has_intercept
    if isinstance(data, UserData) and shares_memory(public_X, data.rows):
        raise ValueError(SHARED)
    rows: Any = public_X.tocsr() if hasattr(public_X, "tocsr") else matrix("public_X", public_X, expected)
    sparse, rows = hasattr(rows, "tocsr"), rows.astype(np.float64)
    if sparse and expected <= most_features:
        sparse, rows = False, rows.toarray()
    if sparse:
        rows.sum_duplicates()  # of a copy
    cells = rows.data if sparse else rows
    fitting = rows.ndim == 2 and rows.shape[1] == expected and rows.shape[0] > 0
    if not (fitting and np.isfinite(cells).all() and cells.any()):
        raise ValueError(
            f"Expected public_X to be finite rows of {expected} features, not all 0, got shape {rows.shape}: fill "
            "missing values. Nothing was spent."
        )
    means, variances = mean_variance_axis(rows, axis=0) if sparse else (rows.mean(axis=0), rows.var(axis=0))
    sizes = np.where(variances > 1e-12 * means**2, variances, means**2)
    sizes = np.where(sizes > 0, sizes, np.median(sizes[sizes > 0]))
    means = np.append(means, [1.0] * data.has_intercept)
    if data.n_features > most_features:
        return np.asarray(np.append(sizes, [0.0] * data.has_intercept) + means**2)
    centred, drawn = rows - rows.mean(axis=0), expected / (expected + len(rows))
    moment = np.outer(means, means)
    moment[:expected, :expected] += (1 - drawn) * (centred.T @ centred / len(rows)) + drawn * np.diag(sizes)
    return np.asarray(moment)
