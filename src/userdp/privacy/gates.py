"""Noisy tests that decide whether a mean may be released.

The tested value is an integer that a swapped user changes by at most 1 (the h-index), so discrete Laplace noise makes
the answers pure DP without any rounding. Thresholds are set from tails of that noise, computed exactly or from above.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from userdp.privacy.noise import Noise

Tail = Callable[[float, int], float]

_LARGEST_EXCESS = 2**40


def laplace_tail(epsilon: float, at_least: int) -> float:
    """P(X >= k), k >= 1, for discrete Laplace noise X of scale 1/epsilon: e^(-k epsilon) / (1 + e^-epsilon).

    >>> round(laplace_tail(1.0, 1), 4)
    0.2689
    """
    return math.exp(-epsilon * at_least) / (1 + math.exp(-epsilon))


@lru_cache(maxsize=4096)
def above_threshold_tail(epsilon: float, at_least: int) -> float:
    """Upper bound on P(nu - xi >= k), k >= 1: the noise of one AboveThreshold answer.

    nu and xi are discrete Laplace of scales 4/epsilon and 2/epsilon. Summed over xi out to 60 scales; what lies beyond
    is bounded by its probability.
    """
    slow, reach = epsilon / 4, math.ceil(120 / epsilon)
    xi = np.arange(-reach, reach + 1)
    mass = math.tanh(slow) * np.exp(-2 * slow * np.abs(xi))
    gap = at_least + xi
    beyond = np.exp(-slow * np.maximum(gap, 1 - gap)) / (1 + math.exp(-slow))
    tail = np.where(gap >= 1, beyond, 1 - beyond)
    return float(mass @ tail) * (1 + 1e-12) + 2 * laplace_tail(2 * slow, reach + 1)


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


class AboveThreshold:
    """Says of a stream of values whether each is above a noisy threshold, until the first that is not.

    Guarantee: epsilon-DP for any number of adaptively chosen integer values of sensitivity 1.
    Paper: Alg. 4, with the halting direction that Alg. 2 uses (pass while above, halt at the first below).
    Differs: the threshold's noise is drawn once, before the stream, as Alg. 4 does and Alg. 2 (line 4, inside its
    loop) does not; the noise is discrete.
    """

    def __init__(self, threshold: int, epsilon: float, noise: Noise) -> None:
        self._epsilon = epsilon
        self._noise = noise
        self._threshold = noise.integer_laplace(threshold, 2 / epsilon)
        self._open = True

    def passes(self, value: int) -> bool:
        """Whether the stream goes on; the first no is the last answer."""
        if not self._open:
            raise RuntimeError("This test has halted and gives no more answers.")
        self._open = self._noise.integer_laplace(value, 4 / self._epsilon) >= self._threshold
        return self._open


class AboveThresholdOnce:
    """One answer of the same kind, with half the noise of the threshold-and-answer pair: value + Lap(1/epsilon).

    Guarantee: epsilon-DP for one integer value of sensitivity 1.
    """

    def __init__(self, threshold: int, epsilon: float, noise: Noise) -> None:
        self._threshold, self._epsilon, self._noise = threshold, epsilon, noise
        self._open = True

    def passes(self, value: int) -> bool:
        """Whether the noisy value reaches the threshold; asked once."""
        if not self._open:
            raise RuntimeError("This test has given its one answer.")
        self._open = False
        return self._noise.integer_laplace(value, 1 / self._epsilon) >= self._threshold
