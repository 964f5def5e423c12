"""What of a noisy point is signal, by the noise that is known to be in it: post-processing of what was released.

Directions with little signal are shrunk to their posterior mean, along the axes of the columns' correlations. What
moves all predictions as one, the intercept, is an axis of its own: that of a rare class is far from 0 where all others
are mere noise, and would pass them off as signal. Where predictions spread less than those whose mean was learned, the
intercept moves to where the mean is the same: with a rare class, or counts, spread raises it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from userdp.solvers import constants
from userdp.solvers.whitening import Coordinates

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

    def shrunk(
        self,
        point: np.ndarray,
        noise: float,
        walk: float,
        curved: np.ndarray | float = 1.0,
        relative: np.ndarray | float = 1.0,
        usual: np.ndarray | float = math.inf,
    ) -> np.ndarray:
        """Posterior means: entries are N(0, v) + N(0, noise^2 / r^2), v = scale * (variance of rows)^power.

        `curved` is the probability that the loss is curved along an axis, and `relative` the mean of its curvature r
        (`curved_along`): where it is flat nothing was learned, and the entry is 0. Noise is at most what steps of it
        alone add up to, `walk`; v is at most `usual`^2, so that no effect is made up of what noise hides.

        Before anything is seen all powers are as likely, and noise^2 / (noise^2 + scale) is uniform in (0, 1): of six
        or more entries whose rows vary alike, such means are nowhere expected to be worse than what was found
        (Strawderman 1971). An intercept says nothing of the scale, is always curved, and is shrunk as others are, or
        less if clear.
        """
        entries = self.along(point) / noise
        shape = entries.shape[1:]
        curved, relative, usual = (np.broadcast_to(number, shape) for number in (curved, relative, usual))
        last = entries.shape[1] - (self.level > 0)
        # Squared, in units of noise, as all below.
        errors = np.minimum(np.maximum(1.0, curved / relative) ** 2, 1 + (walk / noise) ** 2)
        if self.level > 0:
            curved, errors = np.append(curved[:last], 1.0), np.append(errors[:last], 1.0)
        squares, counted, most = entries[:, :last] ** 2, curved[:last], (usual / noise) ** 2
        likeliest, total, factors = -math.inf, 0.0, np.zeros(len(errors))
        for power in constants.POWERS:
            relative_variance = self.variances**power / np.mean(self.variances[:last] ** power)
            for scale in constants.SCALES:  # evenly spaced in their logarithm
                prior = np.minimum(scale * relative_variance, most)
                spread = prior + errors
                likely = -0.5 * float(np.sum(counted * (np.log(spread[:last]) + squares / spread[:last])))
                likely += math.log(scale) - 2 * math.log1p(scale)
                fade = math.exp(min(likeliest - likely, 0.0))
                likeliest = max(likeliest, likely)
                weight = math.exp(likely - likeliest)
                total, factors = fade * total + weight, fade * factors + weight * (prior / spread)
        factors = np.tile(curved * factors / total, (len(entries), 1))
        clear = np.maximum(entries[:, last:] ** 2 - constants.CLEAR**2, 0.0)
        factors[:, last:] = np.maximum(factors[:, last:], clear / (clear + 1))
        return self.back(noise * entries * factors)

    def variation(self, point: np.ndarray) -> float:
        """How much predictions vary, but for their level: the sum over outputs of their variances."""
        entries = self.along(point)
        return float(np.sum(entries[:, : entries.shape[1] - (self.level > 0)] ** 2))

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


Visit = tuple[np.ndarray, np.ndarray, float]  # a point of a descent, the gradient there, and the std of its noise


def curved_along(
    axes: Axes,
    visits: Sequence[Visit],
    start: np.ndarray,
    curvature: float,
    usual: np.ndarray | float,
    walk: float,
) -> tuple[np.ndarray, np.ndarray]:
    """For each axis, all outputs taken together: the probability that the loss is curved along it, and the mean r.

    Along an axis in which rows vary the gradient is r h (u - optimum) + noise, with h the mean curvature and r about 1;
    where they do not, r is 0, and steps are a random walk. Noise of later gradients is independent of where earlier
    ones led, so least squares estimate r from what was released anyway.

    Before anything is seen an axis is flat, r = 0, with probability `FLAT_AXES`, more if whitening found little but
    ridge along it; if not, all orders of r within `RELATIVE` are as likely, and the optimum is N(start, usual^2), or as
    much farther away as the points are than what steps of mere noise add up to, `walk`. That it is near the start tells
    more of r than it seems: of a random walk least squares about a mean that the walk tells itself find some curvature
    (the bias of Dickey and Fuller), and it would pass for a weight.
    """
    points = np.array([axes.along(point) - axes.along(start) for point, _, _ in visits])
    gradients = np.array([axes.along(gradient) for _, gradient, _ in visits])
    precisions = np.array([std**-2 for _, _, std in visits])
    precision = precisions.sum()
    mean, slope = (np.average(of, axis=0, weights=precisions) for of in (points, gradients))
    away = points - mean
    squares = np.einsum("t,tod,tod->d", precisions, away, away)
    slopes = np.einsum("t,tod,tod->d", precisions, away, gradients)  # r h times `squares`, which is their variance
    relative = np.geomspace(*constants.RELATIVE, 41)[:, None]
    steep = curvature * relative
    exponents = steep * slopes - steep**2 * squares / 2  # log-likelihood of r, less that of 0
    # So far of any optimum; the mean gradient is r h (mean point - optimum) + noise. Of the likeliest optimum: on
    # average over all of them, axes would seem the flatter the less noise there is (Lindley's paradox).
    squared = np.square(usual) + np.maximum(mean**2 - (constants.CLEAR * walk) ** 2, 0.0)
    spread = steep[:, None] ** 2 * squared + 1 / precision
    exponents += (slope**2 * precision - (slope - steep[:, None] * mean) ** 2 / spread).sum(axis=1) / 2
    most = np.maximum(exponents.max(axis=0), 0.0)
    before = (1 - constants.FLAT_AXES) * axes.known**2
    likely, flat = before * np.exp(exponents - most), (1 - before) * np.exp(-most)
    total = likely.mean(axis=0) + flat
    return likely.mean(axis=0) / total, np.maximum((relative * likely).mean(axis=0) / total, 1e-6)


def same_mean(mean: Callable[[np.ndarray], np.ndarray], level: float, before: float, after: float) -> float:
    """The mean of normal predictions of variance `after` whose mean target is that of `level` and variance `before`.

    For means whose second derivative is at most the first, as those of logits and logarithms of counts: then it is at
    most half of the variances' difference away.

    >>> round(same_mean(np.exp, -3.0, 1.0, 0.4), 9)
    -2.7
    """

    target, farthest = expected(mean, level, before), abs(before - after) / 2 + 1e-9
    ends = level - farthest, level + farthest
    if not expected(mean, ends[0], after) < target < expected(mean, ends[1], after):
        return level  # nothing differs but rounding, or a mean that is the same wherever predictions are
    return float(scipy.optimize.brentq(lambda at: expected(mean, at, after) - target, *ends))


def mean_curvature(mean: Callable[[np.ndarray], np.ndarray], level: float, variance: float) -> float:
    """The mean derivative of a loss's mean, if predictions are normal: how curved it is there.

    >>> round(mean_curvature(np.exp, -3.0, 2.0), 3)  # exp(-2)
    0.135
    """
    return (expected(mean, level + _STEP, variance) - expected(mean, level - _STEP, variance)) / (2 * _STEP)


def expected(mean: Callable[[np.ndarray], np.ndarray], level: float, variance: float) -> float:
    """Of normal predictions."""
    return float(_MASSES @ mean(level + math.sqrt(max(variance, 0.0)) * _NODES))
