"""First and second moments of users' rows: statistics that read no targets."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from userdp.data.users import UserData
from userdp.vectors import entries, fused, kernels
from userdp.vectors.gradients import PerUser, RowWeights

if TYPE_CHECKING:
    from userdp.vectors.entries import EntryVectors


@dataclass(frozen=True)
class UserMean(PerUser):
    """Mean of each user's rows, for private means; NaN for a user without rows.

    Guarantee: vector j is a function of user users[j]'s rows.
    """

    def vectors(self, data: UserData, users: np.ndarray) -> np.ndarray:
        return fused.vectors(data, users, *self.for_kernels(data))

    def for_kernels(self, data: UserData) -> tuple[int, fused.Model, fused.Turning, fused.Marking]:
        """The width of a vector, and what `fused.gradients` takes."""
        slopes = kernels.block_slopes(kernels.slope_of_one, may_raise=False)
        model = (np.zeros((1, data.n_features)), slopes, None, kernels.NO_WEIGHING, False)
        return data.n_features, model, fused.NO_TURNING, fused.NO_MARKING


@dataclass(frozen=True)
class SecondMoment(PerUser):
    """Second moment of each user's rows, as a vector whose norm is the matrix's Frobenius norm.

    M_u = (1/m_u) sum of x x^T; the upper triangle row by row, off-diagonal entries times sqrt(2): d(d+1)/2 numbers.

    Guarantee: vector j is a function of user users[j]'s rows.
    """

    def vectors(self, data: UserData, users: np.ndarray) -> np.ndarray:
        return _second_moments(data, users, 0.0)


@dataclass(frozen=True)
class SecondMomentShape(PerUser):
    """Second moment of each user's rows divided by its length, followed by that length as a fraction of `largest`.

    With v the vector of `SecondMoment`: (v/|v|, min(1, |v|/largest)). A user whose rows are all zero gives zeros. The
    shape is what whitening needs, and since all shapes are equally long, clipping them loses nothing and no user's
    scale counts more than another's; the second part tells how long moments are on average.

    Guarantee: vector j is a function of user users[j]'s rows. Its length is at most sqrt(2), unless rows are so tiny
    that squares of their squares underflow; the mechanism clips it then.
    """

    largest: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.largest) and self.largest > 0):
            raise ValueError(f"Expected largest={self.largest} to be finite and > 0: the square of a row's norm.")

    def vectors(self, data: UserData, users: np.ndarray) -> np.ndarray:
        return _second_moments(data, users, self.largest)


def _second_moments(data: UserData, users: np.ndarray, largest: float) -> np.ndarray:
    d = data.n_features
    width = d * (d + 1) // 2 + (largest > 0)
    return kernels.over_users(kernels.second_moments, data, users, width, largest, work=d, smallest=256)


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

    @property
    def sparse(self) -> bool:
        """Whether vectors of sparse rows are sparse."""
        return self.basis.ndim == 1

    def entries(self, data: UserData, users: np.ndarray) -> EntryVectors:
        """The vectors by their entries."""
        self.check_basis(data.n_features)
        return entries.squares(data, users, self.basis, self.threshold)

    def vectors(self, data: UserData, users: np.ndarray) -> np.ndarray:
        out, nothing = np.empty((users.size, self._width)), (fused.sink_of(fused.keep), np.zeros(0))
        self._run(data, users, lambda chunk: (*nothing, out[chunk], np.zeros(0, dtype=np.int64)))
        return out

    def total(self, data: UserData, users: np.ndarray, sink: fused.Sink) -> np.ndarray:
        """What the sink makes of these users' vectors, added up: whole numbers, so the same in any order."""
        add, parameters, size = sink
        totals: list[np.ndarray] = [np.zeros(self._width + size, dtype=np.int64)]

        def into(chunk: slice) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray]:
            one = np.zeros_like(totals[0])
            totals.append(one)
            return add, parameters, np.empty((1, self._width)), one

        self._run(data, users, into)
        summed: np.ndarray = np.sum(totals, axis=0)
        return summed

    @property
    def _width(self) -> int:
        d = len(self.basis)
        return d if self.basis.ndim == 1 else d * (d + 1) // 2

    def _run(self, data: UserData, users: np.ndarray, into: Callable[[slice], tuple[Any, ...]]) -> None:
        self.check_basis(data.n_features)
        d, diagonal = data.n_features, self.basis.ndim == 1
        arrays, users = kernels.arrays_of(data), kernels.read_only(users)
        basis = kernels.read_only(np.ascontiguousarray(self.basis) if diagonal else np.zeros(0))
        turned = kernels.turned_by(np.zeros((d, 0)) if diagonal else self.basis, data.rows.dtype)

        def run(chunk: slice) -> None:
            kernels.moment_shapes(arrays, users[chunk], basis, turned, self.threshold, *into(chunk))

        kernels.over_chunks(run, users.size, kernels.entries_of(data, users) * d, 256)

    def check(self, n_features: int, dtype: npt.DTypeLike = np.float64) -> None:
        self.check_basis(n_features)
        super().check(n_features, dtype)

    def check_basis(self, n_features: int) -> None:
        if self.basis.shape not in ((n_features,), (n_features, n_features)):
            raise ValueError(f"Expected a basis of {n_features} features, got shape {self.basis.shape}.")


@dataclass(frozen=True, eq=False)
class RowScale(PerUser):
    """Which power of 4 the mean square length of each user's rows, as `lengths` has it, is nearest to: a 1 among zeros.

    Guarantee: vector j is a function of user users[j]'s rows; entries are 0 but for at most one 1, so that no two
    vectors point apart.
    """

    SIZES: ClassVar[np.ndarray] = 4.0 ** np.arange(-64, 64)
    lengths: RowWeights

    def vectors(self, data: UserData, users: np.ndarray) -> np.ndarray:
        out = np.zeros((users.size, self.SIZES.size))
        lengths = self.lengths.lengths(data)
        for j, user in enumerate(users):
            rows = lengths[data.offsets[user] : data.offsets[user + 1]]
            square = float(np.mean(np.square(rows, dtype=np.float64))) if len(rows) else 0.0
            if 0 < square < math.inf:
                place = round(0.5 * math.log2(square)) + self.SIZES.size // 2
                out[j, min(max(place, 0), self.SIZES.size - 1)] = 1.0
        return out


@dataclass(frozen=True, eq=False)
class ColumnScales(PerUser):
    """For each feature which power of 64 the mean square of a user's rows is nearest to, as a 1 among zeros.

    All over sqrt(d), so that vectors have length at most 1: d blocks of `SIZES`. A feature that is 0 in all rows, or
    not finite, has zeros only.

    Guarantee: vector j is a function of user users[j]'s rows; entries are >= 0, so that no two vectors point apart.
    """

    SIZES: ClassVar[np.ndarray] = 64.0 ** np.arange(-10, 11)
    sparse: ClassVar[bool] = True

    def entries(self, data: UserData, users: np.ndarray) -> EntryVectors:
        """The vectors by their entries."""
        squares = entries.squares(data, users, np.ones(data.n_features))
        sizes, known = self._sizes(squares.values)
        columns = squares.columns * self.SIZES.size + sizes
        marks = np.where(known, 1 / math.sqrt(data.n_features), 0.0)
        return entries.EntryVectors(squares.starts, squares.counts, columns, marks, data.n_features * self.SIZES.size)

    def vectors(self, data: UserData, users: np.ndarray) -> np.ndarray:
        squares = kernels.over_users(kernels.mean_squares, data, users, data.n_features)
        sizes, known = self._sizes(squares)
        out = np.zeros((users.size, data.n_features, self.SIZES.size))
        rows, columns = np.nonzero(known)
        out[rows, columns, sizes[known]] = 1 / math.sqrt(data.n_features)
        return out.reshape(users.size, -1)

    def _sizes(self, squares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which of the sizes squares are nearest to, 0 where they are 0 or not finite, and where they are not."""
        with np.errstate(all="ignore"):
            places = np.round(np.log2(squares) / 6) + self.SIZES.size // 2
        known = np.isfinite(places)
        return np.clip(np.where(known, places, 0.0), 0, self.SIZES.size - 1).astype(np.int64), known
