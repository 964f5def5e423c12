"""The filtered mean: average the vectors that have many neighbours, and know how far one user can move it.

K vectors (user gradients, or iterates of groups of users) and a radius r. h_j counts the vectors within r of x_j,
itself included. Weights rise from 0 at h = low to 1 at h = high (a `Ramp`), the mean is sum w_j x_j / sum w_j. Privacy
never rests on the radius, on bounded gradients or on honest users: a vector may be anything, NaN included.

Two variants, with K vectors, or batches of B (docs/proofs.md, sections 1 to 4); the paper's is among the baselines:

    variant     ramp                        test statistic      sensitivity of the mean
    tight       (K+1)/2 .. K-M-1            h-index Q >= K-M    2r/(K-M) (1 + M/((K-3)/2 - M))
    minibatch   fraction B + 1 .. B-M-1     deficit B-Q <= M    see `added_user_sensitivity`

Noisy tests of Q, at the end, decide whether a mean may be released. Q is a whole number that a replaced user changes by
at most 1, so discrete Laplace noise makes the answers pure DP without rounding. Gaussian noise costs more an answer but
has lighter tails. Thresholds are set from tails of the noise, computed exactly or from above.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from userdp.paper.neighbours import neighbour_counts as neighbour_counts
from userdp.privacy.noise import Noise, gaussian_std

Vectors = NDArray[np.float64]
Counts = NDArray[np.int64]
Tail = Callable[[float, int], float]

# A vector with a coordinate beyond this many radii counts as far from everyone: otherwise the rounding of its sum with
# others could exceed the sensitivity.
_LARGEST_COORDINATE = 2.0**20

_BLOCK = 4096  # vectors that are weighted at a time

# Factors that a search multiplies radii by: products with radii of `check_radius` stay within 2^-500 .. 2^500.
SMALLEST_FACTOR, LARGEST_FACTOR = 2.0**-100, 2.0**100

_LARGEST_EXCESS = 2**40  # that a threshold's margin is looked for up to


@dataclass(frozen=True)
class Ramp:
    """Weights as a function of the neighbour count: 0 up to `low`, 1 from `high` on, linear between.

    >>> Ramp(2.0, 4.0).weights(np.array([1, 2, 3, 4, 5]))
    array([0. , 0. , 0.5, 1. , 1. ])
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ValueError(
                f"Expected low={self.low} < high={self.high}: too few vectors for this slack. "
                "Use more vectors, or a smaller slack."
            )

    def weights(self, counts: Counts) -> Vectors:
        return np.clip((counts - self.low) / (self.high - self.low), 0.0, 1.0)


def tight_ramp(n_vectors: int, slack: int) -> Ramp:
    """From (K+1)/2 to K-M-1: the default. Weighted vectors of two neighbouring data sets are within 2r."""
    return Ramp((n_vectors + 1) / 2, n_vectors - slack - 1)


def minibatch_ramp(batch: int, slack: int, fraction: float) -> Ramp:
    """From fraction * B + 1 to B-M-1, for a Poisson batch of B users; 1/2 <= fraction < 1."""
    return Ramp(fraction * batch + 1, batch - slack - 1)


def h_index(counts: Counts) -> int:
    """Largest k such that at least k vectors have at least k neighbours. Replacing one vector changes it by at most 1.

    >>> h_index(np.array([3, 3, 3, 1]))
    3
    """
    falling = np.sort(counts)[::-1]
    return int(np.count_nonzero(falling >= np.arange(1, len(falling) + 1)))


def comparable(vectors: Vectors, radius: float) -> Vectors:
    """The vectors as float64; in a copy, every one that is not finite, or huge compared with the radius, is NaN.

    Such vectors are nobody's neighbour and get weight 0. Each row is judged by itself. If all are ordinary, which is
    usual, there is no copy: what is returned is to be read only.
    """
    rows = np.atleast_2d(np.ascontiguousarray(vectors, dtype=np.float64))
    ordinary = _ordinary(rows, _LARGEST_COORDINATE * radius)
    if not ordinary.all():
        rows = np.where(ordinary[:, None], rows, np.nan)
    return rows


def _ordinary(rows: Vectors, largest: float) -> NDArray[np.bool_]:
    """Which rows have no coordinate above this, and none that is NaN, which spoils a row's largest and smallest."""
    sizes = np.maximum(rows.max(axis=1, initial=0.0), -rows.min(axis=1, initial=0.0))
    return np.asarray(sizes <= largest)


def filtered_mean(vectors: Vectors, counts: Counts, ramp: Ramp) -> Vectors:
    """Mean of the vectors weighted by the ramp of their counts; the zero vector if no weight is positive.

    >>> x = np.array([[0.0], [1.0], [2.0], [np.nan]])
    >>> filtered_mean(x, np.array([3, 3, 3, 1]), Ramp(2.5, 3.0))
    array([1.])
    """
    return weighted_mean(vectors, ramp.weights(counts))


def weighted_mean(vectors: Vectors, weights: Vectors) -> Vectors:
    """Mean of the vectors with these weights. A vector of weight 0 is never touched by arithmetic: 0 * NaN is NaN.

    Sums are taken relative to one of the vectors, so that rounding is relative to the radius.
    """
    kept = np.flatnonzero(weights > 0)
    if kept.size == 0:
        return np.zeros(vectors.shape[1])
    pivot, total = vectors[kept[0]], np.zeros(vectors.shape[1])
    for first in range(0, kept.size, _BLOCK):
        some = kept[first : first + _BLOCK]
        total += weights[some] @ (vectors[some] - pivot)
    return np.asarray(pivot + total / weights[kept].sum())


def check_factors(factors: tuple[float, ...]) -> tuple[float, ...]:
    """Increasing factors that a search multiplies a radius by, as plain floats."""
    if not isinstance(factors, (tuple, list, np.ndarray)):
        raise TypeError(f"Expected radii to be a tuple of numbers, got {type(factors).__name__}.")
    numbers = tuple(map(float, factors))
    if not numbers or not numbers[0] > 0 or not np.all(np.diff(numbers) > 0):
        raise ValueError("Expected radii to be positive and increasing; radius_grid(smallest, largest) makes such.")
    if not SMALLEST_FACTOR <= numbers[0] <= numbers[-1] <= LARGEST_FACTOR:
        raise ValueError(f"Expected radii between {SMALLEST_FACTOR:g} and {LARGEST_FACTOR:g}.")
    return numbers


def sensitivity(n_vectors: int, slack: int, radius: float) -> float:
    """How far replacing one of K vectors moves the tight mean when the h-index is at least K - M in one data set.

    (2r/(K-M)) (1 + M/((K-3)/2 - M)); 2r/K at M = 0. Proof: docs/proofs.md, section 3.

    >>> sensitivity(1000, 0, 1.0)
    0.002
    """
    ramp = tight_ramp(n_vectors, slack)
    return 2 * radius / (n_vectors - slack) * (1 + slack / (ramp.high - ramp.low))


def added_user_sensitivity(batch: int, slack: int, radius: float, fraction: float) -> float:
    """How far adding one user to a batch of at least B users moves the mean when the deficit B-Q is at most M.

    (r/(B-M)) (1 + (B+1-low)/(B-M)) (1 + M/(high-low)) with the ramp of `minibatch_ramp`; it falls with B.
    Proof: docs/proofs.md, section 4.
    """
    if not 0.5 <= fraction < 1:
        raise ValueError(f"Expected 0.5 <= fraction={fraction} < 1.")
    ramp = minibatch_ramp(batch, slack, fraction)
    kept = batch - slack
    return radius / kept * (1 + (batch + 1 - ramp.low) / kept) * (1 + slack / (ramp.high - ramp.low))


def best_fraction(batch: int, slack: int) -> float:
    """The fraction (a multiple of 1/200) with the smallest `added_user_sensitivity`.

    >>> best_fraction(1000, 0)
    0.995
    """
    feasible = [s for s in np.arange(100, 200) / 200 if s * batch + 1 < batch - slack - 1]
    if not feasible:
        raise ValueError(f"Expected batch={batch} > 2 (slack={slack} + 2): use larger batches, or a smaller slack.")
    return float(min(feasible, key=lambda fraction: added_user_sensitivity(batch, slack, 1.0, fraction)))


def rounded_sensitivity(exact: float, n_vectors: int, dimension: int, radius: float) -> float:
    """An upper bound on the sensitivity of the mean as computed in floating point (docs/proofs.md, section 5).

    The neighbour predicate may let pairs pass at distance r (1 + (d+4) 2^-52); each computed mean is off by at most
    (2^20 + 8 K) 2^-52 r in each coordinate.
    """
    predicate = 1 + (dimension + 4) * 2.0**-52
    arithmetic = 2 * math.sqrt(dimension) * (_LARGEST_COORDINATE + 8 * n_vectors) * 2.0**-52 * radius
    return exact * predicate * (1 + 2.0**-48) + arithmetic


def laplace_tail(epsilon: float, at_least: int) -> float:
    """P(X >= k), k >= 1, for discrete Laplace noise X of scale 1/epsilon: e^(-k epsilon) / (1 + e^-epsilon).

    >>> round(laplace_tail(1.0, 1), 4)
    0.2689
    """
    return math.exp(-epsilon * at_least) / (1 + math.exp(-epsilon))


def above_threshold_tail(epsilon: float, at_least: int) -> float:
    """Upper bound on P(nu - xi >= k), k >= 1: the noise of one AboveThreshold answer.

    nu and xi are discrete Laplace of scales 4/epsilon and 2/epsilon. With a = e^(-epsilon/4), the sum over xi of
    P(xi) P(nu >= k + xi), P(xi) = (1 - a^2) / (1 + a^2) a^(2|xi|), is three geometric series: those of xi >= 0,
    0 > xi > -k, and xi <= -k. All terms are positive; 1e-12 is for their rounding.
    """
    slow = epsilon / 4
    a, cubes = math.exp(-slow), -math.expm1(-3 * slow)  # 1 - a^3
    near = math.exp(-slow * at_least) * (1 / cubes + a * math.expm1(-slow * (at_least - 1)) / math.expm1(-slow))
    far = math.exp(-2 * slow * at_least) * (1 + a * a) / cubes
    return math.tanh(slow) * (near + far) / (1 + a) * (1 + 1e-12)


def least_excess(tail: Tail, epsilon: float, probability: float) -> int:
    """Least integer k >= 1 with tail(epsilon, k) <= probability.

    >>> least_excess(laplace_tail, 1.0, 0.1)
    2
    """
    if not 0 < probability < 1:
        raise ValueError(f"Expected 0 < probability={probability} < 1.")
    values = range(1, _LARGEST_EXCESS + 1)
    below = bisect_left(values, True, key=lambda at_least: tail(epsilon, at_least) <= probability)
    if below == len(values):
        raise ValueError(
            f"Expected probability={probability:g} to be within reach of noise with epsilon={epsilon:g}: "
            "use a larger probability (1e-20 is small enough for anyone) or a larger epsilon."
        )
    return values[below]


def gaussian_margin(std: float, failure: float) -> float:
    """A margin t >= 0 with P(X >= t + 1) <= failure for the noise X of `noisy`.

    >>> round(gaussian_margin(3.0, 1e-3), 2)
    8.27
    """
    drawn = gaussian_std(1.0, std, 1)  # a little more than std: it pays for the noise's grid
    return max(0.0, drawn * -float(ndtri(failure)) * (1 + 1e-9) - 1)


def noisy(value: int, std: float, noise: Noise) -> float:
    """value + N(0, std^2): 1 / std^2 (Gaussian) for a value of sensitivity 1."""
    return float(noise.gaussian(np.array([float(value)]), 1.0, std)[0])


class Test(Protocol):
    """A test of values, one after the other."""

    def passes(self, value: int) -> bool:
        """Whether the mean of this value may be released; after a no there are no more answers."""


class AboveThreshold:
    """Says of a stream of values whether value + Lap(scale) is above threshold + Lap(scale/2), until one is not.

    Guarantee: 4 D / scale (pure) for any number of adaptively chosen integer values of sensitivity D.
    Paper: Alg. 4, with the aborting direction that Alg. 2 uses (pass while above, abort at the first below).
    Differs: the threshold's noise is drawn once, before the stream, as Alg. 4 does and Alg. 2 (line 4, inside its
    loop) does not; the noise is discrete.
    """

    def __init__(self, threshold: int, scale: float, noise: Noise) -> None:
        self._scale = scale
        self._noise = noise
        self.noisy_threshold = noise.integer_laplace(threshold, scale / 2)
        self._open = True

    def passes(self, value: int) -> bool:
        """Whether the stream goes on; the first no is the last answer."""
        if not self._open:
            raise RuntimeError("This test has aborted and gives no more answers.")
        self._open = self._noise.integer_laplace(value, self._scale) >= self.noisy_threshold
        return self._open


class AboveThresholdOnce:
    """One answer of the same kind, without noise of the threshold: whether value + Lap(scale) reaches it.

    Guarantee: D / scale (pure) for one integer value of sensitivity D.
    """

    def __init__(self, threshold: int, scale: float, noise: Noise) -> None:
        self._threshold, self._scale, self._noise = threshold, scale, noise
        self._open = True

    def passes(self, value: int) -> bool:
        """Whether the noisy value reaches the threshold; asked once."""
        if not self._open:
            raise RuntimeError("This test has given its one answer.")
        self._open = False
        return self._noise.integer_laplace(value, self._scale) >= self._threshold


class GaussianTest:
    """Says of up to `answers` values whether value + N(0, std^2) reaches the threshold, until one does not.

    Guarantee: answers / std^2 (Gaussian) for adaptively chosen integer values of sensitivity 1.
    """

    def __init__(self, threshold: int, std: float, answers: int, noise: Noise) -> None:
        self._threshold, self._std, self._noise = threshold, std, noise
        self._answers_left = answers

    def passes(self, value: int) -> bool:
        """Whether the session goes on. An answer that is interrupted is a no."""
        if self._answers_left == 0:
            raise RuntimeError("These means were released and paid for, or a test has failed.")
        left, self._answers_left = self._answers_left - 1, 0
        if noisy(value, self._std, self._noise) < self._threshold:
            return False
        self._answers_left = left
        return True
