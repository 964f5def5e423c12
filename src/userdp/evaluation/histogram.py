"""AUC and calibration from a noisy histogram of margins by class, and the influence of each row on them.

A first release counts rows by class and bin. It gives estimates of the AUC and of the calibration, and how far each
row moves them (its influence, a public function then); the mean influence, a few numbers, is released next. Their sum
is the estimate: errors of the first release enter as products only, and noise does not grow with the number of bins.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np
from scipy.optimize import isotonic_regression
from scipy.special import expit, ndtri

from userdp.evaluation.scores import CurvePoint

EDGES = np.concatenate([[-7.0, -6.0], np.arange(-5.0, 5.5, 0.5), [6.0, 7.0]])  # of bins of margins, public
N_BINS = len(EDGES) + 1
KNOTS = np.concatenate([[EDGES[0] - 1], EDGES, [EDGES[-1] + 1]])
_MIDDLES = (KNOTS[1:] + KNOTS[:-1]) / 2
_ENDS = [0.0, *map(float, expit(EDGES)), 1.0]  # as chances
_CLEAR = 3.0  # noise deviations that a class must be above 0
_TAILS = 0.005, 0.05  # of margins on either side, at least and at most, which calibration counts as the others' ends
_TAIL_NOISE = 4.0  # deviations of a cell's noise: tails are at least so large, lest noise makes margins look spread
_NEWTON_STEPS = 30
_LARGEST_LINE = np.array([10.0, 5.0])  # intercept and slope
_MOST_IN_TWO, _MOST_BEYOND = 0.75, 0.2  # of margins, in two neighbouring bins and in an outer one, for a slope to show
_LARGE = 0.5, 0.6  # fractions of a class in a bin from which on it counts as one that hides the order within it
# Numbers spread like normal ones, the same every time: no noise that anything private rests on.
_N_PATTERNS = 24
_SPREAD_EVENLY = np.arange(1.0, 1 + _N_PATTERNS * (2 + 2 * N_BINS)) ** 2 * ((math.sqrt(5) - 1) / 2) % 1
_PATTERNS = ndtri(np.clip(_SPREAD_EVENLY, 1e-3, 1 - 1e-3)).reshape(_N_PATTERNS, -1)
_CURVE_POINTS = 10
_CURVE_NOISE = 0.1  # of a point of the curve, at most, unless the curve would have one only


@dataclass(frozen=True, eq=False)
class Histogram:
    """Noisy fractions of rows by class (2) and by class and bin (2, bins), with the deviations of their noise."""

    groups: np.ndarray
    cells: np.ndarray
    group_std: float
    cell_std: float

    @property
    def clear(self) -> bool:
        """Whether both classes are above the noise, so that ratios make sense."""
        return bool(self.groups.min() > _CLEAR * self.group_std)

    @property
    def chances(self) -> np.ndarray:
        """Fraction of rows in each class, of those in either."""
        return np.asarray(self.groups / self.groups.sum())

    @property
    def cumulative(self) -> np.ndarray:
        """(2, bins + 1): the fraction of each class's rows below each threshold; rises from 0 to 1.

        Sums of bins are off by more the more bins they are of; what a class's own count shows better is spread evenly.
        """
        out = np.zeros((2, N_BINS + 1))
        for group, cells, found in zip(self.groups, self.cells, out, strict=True):
            sums = np.cumsum(cells)
            sums = (sums + (group - sums[-1]) * np.arange(1, N_BINS + 1) / N_BINS) / group
            found[1:] = np.clip(isotonic_regression(sums).x, 0.0, 1.0)
            found[-1] = 1.0
        return out

    @property
    def masses(self) -> np.ndarray:
        """(2, bins) fractions of rows, none below 0, that add up to 1."""
        return np.asarray(np.diff(self.cumulative, axis=1) * self.chances[:, None])


@dataclass(frozen=True, eq=False)
class Ranking:
    """The AUC that a histogram shows, and the influence of a row.

    A = P(s- < s+) + P(s- = s+)/2 = int F dG, F and G the distributions of the margins of class 0 and 1. With estimates
    marked ^: A = A^ + mean of [y=1] (F^(s) - A^)/p^ + [y=0] (1 - G^(s) - A^)/(1 - p^), but for
    int (F - F^) d(G - G^) and (p - p^) times errors of F^ and G^.
    """

    NAMES: ClassVar = ("auc",)
    LOW: ClassVar = 0.0
    HIGH: ClassVar = 1.0
    MOST_LEFT_OVER: ClassVar = 0.25  # deviation that the histogram's noise may leave in the estimate
    value: np.ndarray
    below: np.ndarray
    chances: np.ndarray

    @classmethod
    def of(cls, found: Histogram) -> Ranking:
        below = found.cumulative
        value = ((below[0, 1:] + below[0, :-1]) / 2) @ np.diff(below[1])
        return cls(np.array([value]), below, found.chances)

    @staticmethod
    def unresolved(found: Histogram) -> float:
        """How far the order of margins within large or outer bins may move the AUC: half of the pairs in them.

        In other bins the influence shows all but a little, if margins are spread smoothly (docs/proofs.md, section 30).
        """
        fractions = np.diff(found.cumulative, axis=1)
        hides = np.clip((fractions.max(axis=0) - _LARGE[0]) / (_LARGE[1] - _LARGE[0]), 0.0, 1.0)
        hides[[0, -1]] = 1.0
        return float((hides * fractions[0]) @ fractions[1] / 2)

    def __call__(self, labels: np.ndarray, margins: np.ndarray) -> np.ndarray:
        """(n_rows, 1) influences."""
        worse = np.interp(margins, KNOTS, self.below[0]) - self.value[0]
        better = 1 - np.interp(margins, KNOTS, self.below[1]) - self.value[0]
        return np.asarray(np.where(labels > 0, worse / self.chances[1], better / self.chances[0])[:, None])


@dataclass(frozen=True, eq=False)
class Calibration:
    """Intercept a and slope b of the logistic regression of labels on log-odds, P(y=1) = 1/(1 + e^-(a + b s)).

    0 and 1 are perfect. Margins in the tails (half a percent on either side, up to 5% where noise is large) count as
    the ends of the others. The influence of a row is
    H^-1 (y - p(s)) (1, s)', H the mean of p (1 - p) (1, s)(1, s)': one Newton step from the histogram's estimate.
    """

    NAMES: ClassVar = ("intercept", "slope")
    LOW: ClassVar = -math.inf
    HIGH: ClassVar = math.inf
    MOST_LEFT_OVER: ClassVar = 1.0
    value: np.ndarray
    ends: tuple[float, float]
    inverse: np.ndarray

    @classmethod
    def of(cls, found: Histogram) -> Calibration | None:
        """None if margins are in too few bins, or too many beyond them, or the slope is too large for bins."""
        masses = found.masses
        total = masses.sum(axis=0)
        if max(total[1:] + total[:-1]) > _MOST_IN_TWO or max(total[0], total[-1]) > _MOST_BEYOND:
            return None
        below = np.concatenate([[0.0], np.cumsum(total)])
        tail = float(np.clip(_TAIL_NOISE * found.cell_std, *_TAILS))
        first = int(np.searchsorted(below, tail, side="right")) - 1
        last = int(np.searchsorted(below, 1 - tail))
        ends = float(KNOTS[max(first, 0)]), float(KNOTS[min(max(last, first + 1), N_BINS)])
        margins = np.clip(_MIDDLES, *ends)
        design, value = np.column_stack([np.ones(N_BINS), margins]), np.array([0.0, 1.0])
        for _ in range(_NEWTON_STEPS):
            chances = expit(design @ value)
            hessian = (design * (total * chances * (1 - chances))[:, None]).T @ design
            if np.linalg.cond(hessian) > 1e8:
                return None
            step = np.linalg.solve(hessian, design.T @ (masses[1] - total * chances))
            value = np.clip(
                value + step * min(1.0, 1.0 / max(np.abs(step).max(), 1e-12)), -_LARGEST_LINE, _LARGEST_LINE
            )
        if (np.abs(value) >= _LARGEST_LINE).any():
            return None
        return cls(value, ends, np.linalg.inv(hessian))

    def __call__(self, labels: np.ndarray, margins: np.ndarray) -> np.ndarray:
        """(n_rows, 2) influences on intercept and slope."""
        margins = np.clip(margins, *self.ends)
        off = (labels > 0) - expit(self.value[0] + self.value[1] * margins)
        return np.column_stack([row[0] * off + row[1] * (off * margins) for row in self.inverse])  # no matrix product


Influences: TypeAlias = Ranking | Calibration
INFLUENCES: dict[str, type[Influences]] = {"auc": Ranking, "calibration": Calibration}  # by metric


def left_over(found: Histogram, kind: type[Influences]) -> np.ndarray:
    """The deviation of what the histogram's noise leaves in an estimate beyond its influences.

    By trial, without data: the released histogram, smoothed, is taken for the truth, and noise of the same size is
    added, in fixed patterns. NaN if noise makes an estimate impossible now and then.
    """
    true = Histogram(found.chances, found.masses, found.group_std, found.cell_std)
    labels, margins = np.repeat([0.0, 1.0], N_BINS), np.tile(_MIDDLES, 2)

    def estimate(table: Influences | None) -> np.ndarray:
        if table is None:
            return np.full(2, math.nan)
        return np.asarray(table.value + true.masses.ravel() @ table(labels, margins))

    known, errors = estimate(kind.of(true)), []
    for pattern in _PATTERNS:
        groups = true.groups + found.group_std * pattern[:2]
        cells = true.cells + found.cell_std * pattern[2:].reshape(2, N_BINS)
        noisy = Histogram(groups, cells, found.group_std, found.cell_std)
        errors.append(estimate(kind.of(noisy) if groups.min() > 0 else None)[: len(known)] - known)
    return np.asarray(np.sqrt(np.mean(np.square(errors), axis=0)))


def curve(found: Histogram, n_users: float, quantile: float) -> tuple[CurvePoint, ...]:
    """Up to ten points, of neighbouring bins that hold about equally many rows and enough to be above the noise.

    Variance: that of the noise, and r (1 - r) / (n m) over users, m the fraction of rows there: an upper bound if
    users have several rows, attained if a user's are all alike (docs/proofs.md, section 30).
    """
    masses = found.masses
    total = masses.sum(axis=0)
    least = max(1 / _CURVE_POINTS, found.cell_std / _CURVE_NOISE)
    points, first = [], 0
    for last in range(1, N_BINS + 1):
        mass = float(total[first:last].sum())
        if mass <= 0 or (last < N_BINS and min(mass, float(total[last:].sum())) < least):
            continue
        observed = float(np.clip(masses[1, first:last].sum() / mass, 0.0, 1.0))
        noise = found.cell_std * math.sqrt(last - first) * math.hypot(observed, 1 - observed) / mass
        std = math.hypot(noise, math.sqrt(max(observed * (1 - observed), 1 / (n_users * mass)) / (n_users * mass)))
        predicted = float(expit(_MIDDLES[first:last]) @ total[first:last] / mass)
        ends = (_ENDS[first], _ENDS[last])
        interval = max(0.0, observed - quantile * std), min(1.0, observed + quantile * std)
        points.append(CurvePoint(*ends, predicted, observed, *interval, mass))
        first = last
    return tuple(points)
