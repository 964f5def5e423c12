"""What of a noisy point is signal, by the noise that is known to be in it: post-processing of what was released.

Directions with little signal are shrunk to their posterior mean, along the axes of the columns' correlations. What
moves all predictions as one, the intercept, is an axis of its own: that of a rare class is far from 0 where all others
are mere noise, and would pass them off as signal. Where predictions spread less than those whose mean was learned, the
intercept moves to where the mean is the same: with a rare class, or counts, spread raises it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy

from userdp.solvers.whitening import Coordinates

_CLEAR = 2.0  # standard deviations from which on an intercept's size is told by itself
_POWERS, _SCALES = (0.0, 0.5, 1.0), tuple(np.geomspace(1e-3, 1e6, 73))
_NODES, _MASSES = np.polynomial.hermite_e.hermegauss(40)
_MASSES = _MASSES / _MASSES.sum()
_STEP = 0.02  # of a finite difference, in predictions


@dataclass(frozen=True, eq=False)
class Axes:
    """Axes of whitened coordinates, those of each output.

    Columns of `rotation` (None for the coordinates' own); rows' variances along them, in units of the columns' scales;
    which part of these is known, and no ridge; `level`: how far a step along the last one moves all predictions, or 0
    if there is no intercept, and then it is as the others.
    """

    rotation: np.ndarray | None
    variances: np.ndarray
    known: np.ndarray
    level: float

    @staticmethod
    def of(coordinates: Coordinates, intercept: bool) -> Axes:
        """With an intercept, the constant 1, as the last feature."""
        apart = intercept and len(coordinates.basis) > 1
        level = 1 / float(np.linalg.norm(coordinates.constant)) if apart else 0.0
        return Axes(*coordinates.decorrelated(apart), level)

    def along(self, point: np.ndarray) -> np.ndarray:
        """A point's entries, one row per output."""
        blocks = point.reshape(-1, len(self.known))
        return blocks if self.rotation is None else blocks @ self.rotation

    def back(self, entries: np.ndarray) -> np.ndarray:
        return np.asarray((entries if self.rotation is None else entries @ self.rotation.T).ravel())

    def mean_and_square(self, point: np.ndarray) -> np.ndarray:
        """Mean and mean square of predictions, of one output, as far as rows are known to vary."""
        entries = self.along(point)[0]
        mean = self.level * entries[-1]
        return np.array([mean, float(self.known[:-1] @ entries[:-1] ** 2) + mean**2])

    def shrunk(self, found: np.ndarray, noise: float, walk: float) -> np.ndarray:
        """Posterior means: entries are N(0, v) + N(0, noise^2), v = scale * (variance of rows)^power.

        Before anything is seen all powers are as likely, and noise^2 / (noise^2 + scale) is uniform in (0, 1): of six
        or more entries whose rows vary alike, such means are nowhere expected to be worse than what was found
        (Strawderman 1971). Along directions in which rows do not vary v is 0, and noise is that of a random walk: no
        gradient leads back. An intercept tells nothing of the scale, and is shrunk as others are, or less if clear.
        """
        entries = self.along(found) / noise
        last = entries.shape[1] - (self.level > 0)
        errors = 1 + ((1 - self.known) * walk / noise) ** 2  # squared, in units of noise, as all below
        squares, trusted = entries[:, :last] ** 2, self.known**4
        likeliest, total, factors = -math.inf, 0.0, np.zeros(len(errors))
        for power in _POWERS:
            relative = trusted * self.variances**power / np.mean(self.variances[:last] ** power)
            for scale in _SCALES:  # evenly spaced in their logarithm
                spread = scale * relative + errors
                likely = -0.5 * float(np.sum(np.log(spread[:last]) + squares / spread[:last]))
                likely += math.log(scale) - 2 * math.log1p(scale)
                fade = math.exp(min(likeliest - likely, 0.0))
                likeliest = max(likeliest, likely)
                weight = math.exp(likely - likeliest)
                total, factors = fade * total + weight, fade * factors + weight * (scale * relative / spread)
        factors = np.tile(factors / total, (len(entries), 1))
        clear = trusted[last:] * np.maximum(entries[:, last:] ** 2 - _CLEAR**2, 0.0)
        factors[:, last:] = np.maximum(factors[:, last:], clear / (clear + errors[last:]))
        return self.back(noise * entries * factors)

    def with_mean_of(self, point: np.ndarray, mean: Callable[[np.ndarray], np.ndarray], spread: float) -> np.ndarray:
        """The point, its intercept moved to where the mean target is what it would be if predictions spread so much.

        `mean` is the loss's; predictions are taken to be normal, `spread` is a variance.
        """
        if not self.level > 0:
            return point
        level, square = self.mean_and_square(point)
        entries = np.array(self.along(point))
        entries[0, -1] = same_mean(mean, level, spread, square - level**2) / self.level
        return self.back(entries)


def same_mean(mean: Callable[[np.ndarray], np.ndarray], level: float, before: float, after: float) -> float:
    """The mean of normal predictions of variance `after` whose mean target is that of `level` and variance `before`.

    For means whose second derivative is at most the first, as those of logits and logarithms of counts: then it is at
    most half of the variances' difference away.

    >>> round(same_mean(np.exp, -3.0, 1.0, 0.4), 9)
    -2.7
    """

    target, farthest = _expected(mean, level, before), abs(before - after) / 2 + 1e-9
    ends = level - farthest, level + farthest
    if not _expected(mean, ends[0], after) < target < _expected(mean, ends[1], after):
        return level  # nothing differs but rounding, or a mean that is the same wherever predictions are
    return float(scipy.optimize.brentq(lambda at: _expected(mean, at, after) - target, *ends))


def told_curvature(mean: Callable[[np.ndarray], np.ndarray], level: float, variance: float) -> float:
    """The mean derivative of a loss's mean, if predictions are normal: how curved it is there.

    >>> round(told_curvature(np.exp, -3.0, 2.0), 3)  # exp(-2)
    0.135
    """
    return (_expected(mean, level + _STEP, variance) - _expected(mean, level - _STEP, variance)) / (2 * _STEP)


def _expected(mean: Callable[[np.ndarray], np.ndarray], level: float, variance: float) -> float:
    """Of normal predictions."""
    return float(_MASSES @ mean(level + math.sqrt(max(variance, 0.0)) * _NODES))
