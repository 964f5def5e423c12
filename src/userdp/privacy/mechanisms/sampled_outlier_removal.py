"""Outlier removal on Poisson samples of the users: one Gaussian release of deficit and mean a step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from scipy.stats import binom, norm

from userdp.privacy.accounting import AddedUserMultiplier, Cost, Subsampled
from userdp.privacy.mechanisms import concentration as c
from userdp.privacy.mechanisms.base import Aborted, Mechanism, Session, Users, Vectors, check_record
from userdp.privacy.mechanisms.tests import gaussian_margin, noisy
from userdp.privacy.noise import Noise


@dataclass(frozen=True)
class SampledOutlierRemoval(Mechanism):
    """`rounds` filtered means, each of a fresh Poisson sample: every user takes part with `sampling_probability`.

    A user gives one vector, so `n_vectors` is the number of users, which is public. A step releases the deficit
    B - Q + N(0, deficit_std^2) of its batch of B users and, if that is at most slack - margin, the filtered mean +
    N(0, (added_user_multiplier * added_user_sensitivity)^2 I): together one Gaussian release of multiplier z with
    1/z^2 = 1/deficit_std^2 + 1/added_user_multiplier^2, in units of adding one user. The first abort ends the session.
    The slack makes an abort with a deficit of at most `outliers`, in any round, have probability at most `false_abort`.

    Guarantee: the cost is `rounds` Poisson-sampled Gaussian steps of multiplier z, and `failure`: half for passing
    with a deficit above the slack (not multiplied by the rounds), half for a batch below `smallest_batch` in any
    round. Proof: docs/proofs.md, section 10.
    Paper: Alg. 2, for K_i < n_i.
    Differs: Poisson samples instead of sampling with replacement, and no amplification after conditioning on test
    answers (docs/paper-notes.md).
    """

    kind: ClassVar[str] = "sampled-outlier-removal"
    n_vectors: int
    sampling_probability: float
    added_user_multiplier: AddedUserMultiplier
    deficit_std: float
    failure: float
    false_abort: float = 1e-3
    rounds: int = 1
    outliers: int = 0

    samples_users = True

    def __post_init__(self) -> None:
        if not 0 < self.sampling_probability < 1:
            raise ValueError(
                f"Expected 0 < sampling_probability={self.sampling_probability} < 1; "
                "to use all users in each round, use OutlierRemoval."
            )
        check_record(
            self, ("sampling_probability", "added_user_multiplier", "deficit_std"), chances=("failure", "false_abort")
        )
        check_record(self, counts=("n_vectors", "rounds", "outliers"), from_zero="outliers")
        if self.smallest_batch < 2 * self.slack + 6:
            raise ValueError(
                f"Expected batches of at least {2 * self.slack + 6} users, but n_vectors={self.n_vectors} with "
                f"sampling_probability={self.sampling_probability:g} only ensure {self.smallest_batch}: "
                "sample more users, or use a smaller deficit_std."
            )

    @cached_property
    def smallest_batch(self) -> int:
        """Largest b with rounds * P(Bin(n_vectors - 1, q) < b) <= failure / 2."""
        # The quantile is the least b with P(Bin <= b) >= chance, so P(Bin < b) is below it; 1e-9 is for its rounding.
        chance = self.failure / (2 * self.rounds) * (1 - 1e-9)
        return int(binom.ppf(chance, self.n_vectors - 1, self.sampling_probability))

    @cached_property
    def margin(self) -> float:
        """How far below the slack the noisy deficit must be: P(N(0, deficit_std^2) >= margin + 1) <= failure / 2."""
        return gaussian_margin(self.deficit_std, self.failure / 2)

    @cached_property
    def slack(self) -> int:
        """Largest deficit the mean's sensitivity is computed for: the M of the proofs."""
        reach = float(self.deficit_std * norm.isf(self.false_abort / self.rounds))
        return math.ceil(self.margin + reach) + self.outliers

    @cached_property
    def fraction(self) -> float:
        """Where the ramp starts, as a fraction of the batch."""
        return c.best_fraction(self.smallest_batch, self.slack)

    @property
    def joint_multiplier(self) -> AddedUserMultiplier:
        """Noise multiplier of deficit and mean together, rounded down."""
        precision = 1 / self.deficit_std**2 + 1 / self.added_user_multiplier**2
        return AddedUserMultiplier((1 - 1e-12) / math.sqrt(precision))

    @property
    def cost(self) -> Cost:
        part = Subsampled(self.sampling_probability, self.joint_multiplier, self.rounds)
        return Cost(subsampled=(part,), failure=self.failure)

    def sensitivity(self, radius: float, dimension: int) -> float:
        """What the noise of a mean is proportional to: the same for every batch, so that it does not tell its size."""
        exact = c.added_user_sensitivity(self.smallest_batch, self.slack, radius, self.fraction)
        return c.rounded_sensitivity(exact, self.n_vectors, dimension, radius)

    def noise_std(self, radius: float, dimension: int) -> float:
        """Of a mean's coordinate."""
        return self.added_user_multiplier * self.sensitivity(radius, dimension)

    def start(self, noise: Noise) -> _Session:
        return _Session(self, noise)


class _Session(Session):
    def __init__(self, record: SampledOutlierRemoval, noise: Noise) -> None:
        self._record, self._noise = record, noise
        self._open = True

    def choose(self, users: Users) -> Users:
        coins = self._noise.poisson_mask(np.full(len(users), self._record.sampling_probability))
        return users[coins]

    def release(self, vectors: Vectors, radius: float) -> Vectors:
        if not self._open:
            raise RuntimeError("This session has aborted and releases nothing more.")
        self._open = False
        record, batch = self._record, len(vectors)
        if batch < record.smallest_batch:
            # Coins alone decide this, and its probability is part of `failure`.
            raise Aborted("A random batch was too small, which is rare and not due to the data.")
        rows = c.comparable(vectors, radius)
        counts = c.neighbour_counts(rows, radius)
        deficit = batch - c.h_index(counts)
        if noisy(deficit, record.deficit_std, self._noise) > record.slack - record.margin:
            raise Aborted
        self._open = True
        mean = c.filtered_mean(rows, counts, c.minibatch_ramp(batch, record.slack, record.fraction))
        return self._noise.gaussian(mean, record.sensitivity(radius, rows.shape[1]), record.added_user_multiplier)
