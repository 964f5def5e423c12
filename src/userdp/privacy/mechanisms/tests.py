"""Noisy tests that decide whether a mean may be released.

The tested value is an integer that a replaced user changes little (the h-index by at most 1), so discrete Laplace noise
makes the answers pure DP without any rounding. Gaussian noise costs more an answer but has lighter tails. Thresholds
are set from tails of the noise, computed exactly or from above.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np
from scipy.special import ndtri

from userdp.privacy.noise import Noise, gaussian_std

Tail = Callable[[float, int], float]

_LARGEST_EXCESS = 2**40


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
    high = 1
    while tail(epsilon, high) > probability:
        high *= 2
        if high > _LARGEST_EXCESS:
            raise ValueError(
                f"Expected probability={probability:g} to be within reach of noise with epsilon={epsilon:g}: "
                "use a larger probability (1e-20 is small enough for anyone) or a larger epsilon."
            )
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if tail(epsilon, middle) <= probability else (middle, high)
    return high


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
