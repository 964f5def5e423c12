"""Outlier removal on all vectors with a Gaussian test in each round: less slack than AboveThreshold for few rounds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.stats import norm

from userdp.privacy import concentration as c
from userdp.privacy.accounting import Cost
from userdp.privacy.mechanism import Halted, SessionOnAll, Users, Vectors, settle
from userdp.privacy.noise import Noise, gaussian_std


@dataclass(frozen=True)
class GaussianOutlierRemoval:
    """`rounds` adaptive releases of filtered means of `n_vectors` vectors, each behind its own test of the h-index Q.

    A round passes if Q + N(0, test_std^2) >= K - slack + margin; the first that does not ends the session. The margin
    makes it unlikely (`failure`) that a round with Q < K - slack ever passes; the slack makes a halt with
    Q >= K - `outliers`, in any round, have probability at most `false_halt`. What passes is the tight filtered mean +
    N(0, (noise_multiplier * sensitivity(K, slack, radius))^2 I).

    Every round's test costs 1 / test_std^2, where `OutlierRemoval` pays for all tests once; but Gaussian tails are
    light and Gaussian costs add up well, so up to 50 to 150 rounds this needs less slack.

    Guarantee: rounds * (1 / test_std^2 + 1 / noise_multiplier^2) (Gaussian) and `failure`, for any vectors, each
    depending on one user or on disjoint groups of users. Proof: docs/proofs.md, section 16.
    Paper: Alg. 2, lines 4-14, for K_i = n_i.
    Differs: h-index for the score; Gaussian tests for AboveThreshold; weights for coins.
    """

    n_vectors: int
    noise_multiplier: float
    test_std: float
    failure: float
    false_halt: float = 1e-3
    rounds: int = 1
    outliers: int = 0

    samples_users = False
    block = None

    def __post_init__(self) -> None:
        settle(self, ("noise_multiplier", "test_std", "failure", "false_halt"))
        settle(self, counts=("n_vectors", "rounds", "outliers"), from_zero="outliers")
        for name in ("failure", "false_halt"):
            if not getattr(self, name) < 1:
                raise ValueError(f"Expected 0 < {name}={getattr(self, name)} < 1.")
        if self.n_vectors < 2 * self.slack + 4:
            raise ValueError(
                f"Expected n_vectors={self.n_vectors} >= {2 * self.slack + 4} for tests with "
                f"test_std={self.test_std:g}, failure={self.failure:g} and outliers={self.outliers}: use more users "
                "or groups, or a smaller test_std."
            )

    @cached_property
    def margin(self) -> int:
        """How far above K - slack the noisy h-index must be: P(N(0, test_std^2) >= margin + 1) <= failure."""
        drawn = gaussian_std(1.0, self.test_std, 1)  # a little more than test_std: it pays for the noise's grid
        return max(0, math.ceil(drawn * float(norm.isf(self.failure)) * (1 + 1e-9) - 1))

    @cached_property
    def slack(self) -> int:
        """How far below K the h-index may be: the M of the proofs."""
        reach = self.test_std * float(norm.isf(self.false_halt / self.rounds))
        return self.margin + max(0, math.ceil(reach)) + self.outliers

    @property
    def cost(self) -> Cost:
        gaussian = self.rounds * (1 / self.test_std**2 + 1 / self.noise_multiplier**2)
        return Cost(gaussian=gaussian * (1 + 2.0**-50), failure=self.failure)

    def sensitivity(self, radius: float, dimension: int) -> float:
        """What the noise of a mean is proportional to."""
        exact = c.sensitivity(self.n_vectors, self.slack, radius)
        return c.rounded_sensitivity(exact, self.n_vectors, dimension, radius)

    def start(self, noise: Noise) -> _Session:
        return _Session(self, noise)


class _Session(SessionOnAll):
    def __init__(self, record: GaussianOutlierRemoval, noise: Noise) -> None:
        self._record, self._noise = record, noise
        self._rounds_left = record.rounds

    def choose(self, users: Users) -> Users:
        return users

    def release(self, vectors: Vectors, radius: float) -> Vectors:
        record = self._record
        if self._rounds_left == 0:
            raise RuntimeError("These means were released and paid for, or a test has failed.")
        if len(vectors) != record.n_vectors:
            raise ValueError(f"Expected {record.n_vectors} vectors, as was priced.")
        left, self._rounds_left = self._rounds_left - 1, 0
        rows = c.comparable(vectors, radius)
        counts = c.neighbour_counts(rows, radius)
        value = self._noise.gaussian(np.array([float(c.h_index(counts))]), 1.0, record.test_std)[0]
        if value < record.n_vectors - record.slack + record.margin:
            raise Halted
        self._rounds_left = left
        mean = c.filtered_mean(rows, counts, c.tight_ramp(record.n_vectors, record.slack))
        sensitivity = record.sensitivity(radius, rows.shape[1])
        return self._noise.gaussian(mean, sensitivity, record.noise_multiplier)
