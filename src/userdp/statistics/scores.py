"""What users contribute to a private evaluation: where their predictions lie, and how good they are on average.

Rows are those of `evaluation.coordinates`: a cell's number first. A user's vector is the mean over its rows, or, if
rows are counted, their sum over the public most rows of a user.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np

from userdp.statistics.gradients import PerUser, never_apart
from userdp.statistics.moments import triangle
from userdp.statistics.rows import Rows

Knots: TypeAlias = tuple[tuple[int, float], ...]
RowFunction: TypeAlias = Callable[[np.ndarray], np.ndarray]  # row i of (n_rows, width) numbers is of row i alone


@never_apart
@dataclass(frozen=True)
class CellFractions(PerUser):
    """How many of each user's rows are in each group, and in each of its bins, of all rows; or of `most_rows`.

    The first column is the number of a row's cell, group * n_bins + bin; a row whose number is none of these is in no
    cell. A vector is the fractions in groups times sqrt(GROUPS), then those in cells times sqrt(1 - GROUPS).

    Guarantee: vector j is a function of user users[j]'s rows. Entries are >= 0, and both parts' fractions add up to at
    most 1: no vector is longer than 1, and no two point apart (docs/proofs.md, section 30).
    """

    GROUPS: ClassVar[float] = 0.3  # the part of a vector's square for groups
    n_groups: int
    n_bins: int
    most_rows: int | None = None

    def of_users(self, rows: Rows) -> np.ndarray:
        cells, n_users, n_cells = rows.held[:, 0], len(rows.users), self.n_groups * self.n_bins
        known = (cells >= 0) & (cells < n_cells)
        places = rows.user_places[known] * n_cells + cells[known].astype(np.int64)
        counts = np.bincount(places, minlength=n_users * n_cells).reshape(n_users, n_cells)
        fractions = counts / _divisors(rows.counts, self.most_rows)[:, None]
        groups = fractions.reshape(n_users, self.n_groups, self.n_bins).sum(axis=2)
        return np.hstack([math.sqrt(self.GROUPS) * groups, math.sqrt(1 - self.GROUPS) * fractions])

    def split(self, mean: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The fractions in groups, and (groups, bins), of a mean of vectors."""
        groups, cells = mean[: self.n_groups], mean[self.n_groups :].reshape(self.n_groups, self.n_bins)
        return groups / math.sqrt(self.GROUPS), cells / math.sqrt(1 - self.GROUPS)


@dataclass(frozen=True, eq=False)
class ScoreMeans(PerUser):
    """The mean of a function of each user's rows, less a public centre; with `most_rows` their sum over that.

    turn: a public square matrix that the result is multiplied by; None for none.
    `knots`: public (column, threshold) pairs. What the column's mean is up to the threshold stays there, and
    what is beyond is a column of its own at the end, in their order.
    empty: the public row that a user without rows is taken to have; None for zeros.

    Guarantee: vector j is a function of user users[j]'s rows, if the function is of single rows.
    """

    function: RowFunction
    centre: np.ndarray
    most_rows: int | None = None
    turn: np.ndarray | None = None
    knots: Knots = ()
    empty: np.ndarray | None = None

    def of_users(self, rows: Rows) -> np.ndarray:
        values = self.function(rows.doubled)
        out = np.empty((len(rows.users), values.shape[1]))
        for column in range(values.shape[1]):  # row after row of a user, wherever they lie
            out[:, column] = np.bincount(rows.user_places, values[:, column], len(rows.users))
        if self.empty is not None:
            out[rows.counts == 0] = self.function(self.empty[None])[0]
        out = split_at(out / _divisors(rows.counts, self.most_rows)[:, None], self.knots) - self.centre
        if self.turn is None:
            return np.asarray(out)
        turned = np.zeros_like(out)
        for row, column in np.ndindex(self.turn.shape):  # by single numbers: no product of matrices
            turned[:, row] += self.turn[row, column] * out[:, column]
        return np.asarray(turned)


@never_apart
@dataclass(frozen=True, eq=False)
class ScoreSquares(PerUser):
    """The products of the coordinates of `ScoreMeans`, v v', as a vector whose norm is |v|^2.

    The upper triangle row by row, off-diagonal entries times sqrt(2), so that <vec vv', vec ww'> = <v, w>^2 >= 0.

    Guarantee: vector j is a function of user users[j]'s rows, if the function is of single rows. No two vectors point
    apart, whatever the function gives (docs/proofs.md, section 30).
    """

    means: ScoreMeans

    def of_users(self, rows: Rows) -> np.ndarray:
        means = self.means.of_users(rows)
        return triangle(means[:, :, None] * means[:, None, :])


def split_at(means: np.ndarray, knots: Knots) -> np.ndarray:
    """Columns up to their thresholds, and what is beyond in further columns.

    >>> split_at(np.array([[0.1, 7.0], [0.9, 8.0]]), ((0, 0.25),)).tolist()
    [[0.1, 7.0, 0.0], [0.25, 8.0, 0.65]]
    """
    beyond = [np.maximum(means[:, column] - knot, 0.0) for column, knot in knots]
    capped = means.copy()
    for column, knot in knots:
        capped[:, column] = np.minimum(means[:, column], knot)
    return np.column_stack([capped, *beyond])


def _divisors(counts: np.ndarray, most_rows: int | None) -> np.ndarray:
    """What sums over rows are divided by: at least as many as the user has rows, and 1 for one without."""
    return np.asarray(np.maximum(counts, 1 if most_rows is None else most_rows))
