"""Outlier removal on all vectors: test their concentration, then release the filtered mean with Gaussian noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from userdp.privacy.accounting import Cost
from userdp.privacy.mechanisms.base import check_record
from userdp.privacy.mechanisms.removal import TightMean, TightSession
from userdp.privacy.mechanisms.tests import (
    AboveThreshold,
    AboveThresholdOnce,
    Gate,
    Tail,
    above_threshold_tail,
    laplace_tail,
    least_excess,
)
from userdp.privacy.noise import Noise

_LEAST_TEST_EPSILON = 1e-3  # tails of the test's noise are summed over 120 / epsilon values


@dataclass(frozen=True)
class OutlierRemoval(TightMean):
    """`rounds` adaptive releases of filtered means of `n_vectors` vectors, each behind a test of the h-index Q.

    Q is the largest number such that Q of the K = `n_vectors` vectors have at least Q vectors within the radius, so
    K if all are close together. A round passes if Q + noise >= K - slack + margin. The margin makes a pass with
    Q < K - slack have probability at most `failure`; the slack makes an abort with Q >= K - `outliers`, in any round,
    have probability at most `false_abort`. What passes is the tight filtered mean +
    N(0, (noise_multiplier * sensitivity(K, slack, radius))^2 I).

    n_vectors: how many vectors, one a user or one a group of users;
    noise_multiplier: from `gaussian_multiplier`, for the budget that is left for `rounds` releases;
    test_epsilon: pure epsilon of the test; a smaller one needs more slack, so more vectors;
    failure: part of delta; 5% of it is plenty;
    outliers: how many vectors may be far from the others, or NaN. More of them cost noise, slowly: 2r/K at no slack,
    2.3r/K at a slack of 5%, 2.8r/K at 10%.

    Guarantee: the cost is test_epsilon (pure), rounds / noise_multiplier^2 (Gaussian) and `failure`, for any vectors,
    each depending on one user or on disjoint groups of users. One round is tested by a single Laplace noise, more
    rounds by AboveThreshold; `failure` is not multiplied by the rounds. Proofs: docs/proofs.md, sections 8 and 9.
    Paper: Alg. 1, lines 10-22, and Alg. 2, lines 4-13.
    Differs: tests the h-index instead of the score and uses weights instead of coins, for about 30 times less noise.
    """

    kind: ClassVar[str] = "outlier-removal"
    n_vectors: int
    noise_multiplier: float
    test_epsilon: float
    failure: float
    false_abort: float = 1e-3
    rounds: int = 1
    outliers: int = 0

    def __post_init__(self) -> None:
        check_record(self, ("noise_multiplier", "test_epsilon"), chances=("failure", "false_abort"))
        check_record(self, counts=("n_vectors", "rounds", "outliers"), from_zero="outliers")
        if self.test_epsilon < _LEAST_TEST_EPSILON:
            raise ValueError(f"Expected test_epsilon={self.test_epsilon:g} >= {_LEAST_TEST_EPSILON:g}.")
        self.check_size(
            f"test_epsilon={self.test_epsilon:g}, failure={self.failure:g}, false_abort={self.false_abort:g}",
            "a larger test_epsilon",
        )

    @cached_property
    def margin(self) -> int:
        """How far above K - slack the noisy h-index must be: P(noise >= margin + 1) <= failure."""
        return least_excess(self._tail, self.test_epsilon, self.failure) - 1

    @cached_property
    def reach(self) -> int:
        """How far the noise may lower the h-index: P(noise >= reach + 1) <= false_abort / rounds."""
        return least_excess(self._tail, self.test_epsilon, self.false_abort / self.rounds) - 1

    @property
    def _tail(self) -> Tail:
        return laplace_tail if self.rounds == 1 else above_threshold_tail

    @property
    def cost(self) -> Cost:
        gaussian = math.nextafter(self.rounds / self.noise_multiplier**2, math.inf)
        return Cost(gaussian=gaussian, pure=(self.test_epsilon,), failure=self.failure)

    def start(self, noise: Noise) -> TightSession:
        gate: Gate
        if self.rounds == 1:
            gate = AboveThresholdOnce(self.threshold, 1 / self.test_epsilon, noise)
        else:
            gate = AboveThreshold(self.threshold, 4 / self.test_epsilon, noise)
        return TightSession(self, gate, noise)
