"""Outlier removal on all vectors with a Gaussian test in each round: less slack than AboveThreshold for few rounds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from scipy.stats import norm

from userdp.privacy.accounting import Cost
from userdp.privacy.mechanisms.base import check_record
from userdp.privacy.mechanisms.removal import TightMean, TightSession
from userdp.privacy.mechanisms.tests import GaussianTest, gaussian_margin
from userdp.privacy.noise import Noise


@dataclass(frozen=True)
class GaussianOutlierRemoval(TightMean):
    """`rounds` adaptive releases of filtered means of `n_vectors` vectors, each behind its own test of the h-index Q.

    A round passes if Q + N(0, test_std^2) >= K - slack + margin; the first that does not ends the session. The margin
    makes it unlikely (`failure`) that a round with Q < K - slack ever passes; the slack makes an abort with
    Q >= K - `outliers`, in any round, have probability at most `false_abort`. What passes is the tight filtered mean +
    N(0, (noise_multiplier * sensitivity(K, slack, radius))^2 I).

    Every round's test costs 1 / test_std^2, where `OutlierRemoval` pays for all tests once; but Gaussian tails are
    light and Gaussian costs add up well, so up to 50 to 150 rounds this needs less slack.

    Guarantee: rounds * (1 / test_std^2 + 1 / noise_multiplier^2) (Gaussian) and `failure`, for any vectors, each
    depending on one user or on disjoint groups of users. Proof: docs/proofs.md, section 16.
    Paper: Alg. 2, lines 4-14, for K_i = n_i.
    Differs: h-index for the score; Gaussian tests for AboveThreshold; weights for coins.
    """

    kind: ClassVar[str] = "gaussian-outlier-removal"
    n_vectors: int
    noise_multiplier: float
    test_std: float
    failure: float
    false_abort: float = 1e-3
    rounds: int = 1
    outliers: int = 0

    def __post_init__(self) -> None:
        check_record(self, ("noise_multiplier", "test_std"), chances=("failure", "false_abort"))
        check_record(self, counts=("n_vectors", "rounds", "outliers"), from_zero="outliers")
        self.check_size(f"tests with test_std={self.test_std:g}, failure={self.failure:g}", "a smaller test_std")

    @cached_property
    def margin(self) -> int:
        """How far above K - slack the noisy h-index must be: P(N(0, test_std^2) >= margin + 1) <= failure."""
        return math.ceil(gaussian_margin(self.test_std, self.failure))

    @cached_property
    def reach(self) -> int:
        """How far the noise may lower the h-index: P(N(0, test_std^2) >= reach) <= false_abort / rounds."""
        return max(0, math.ceil(self.test_std * float(norm.isf(self.false_abort / self.rounds))))

    @property
    def cost(self) -> Cost:
        gaussian = self.rounds * (1 / self.test_std**2 + 1 / self.noise_multiplier**2)
        return Cost(gaussian=gaussian * (1 + 2.0**-50), failure=self.failure)

    def start(self, noise: Noise) -> TightSession:
        return TightSession(self, GaussianTest(self.threshold, self.test_std, self.rounds, noise), noise)
