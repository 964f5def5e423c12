"""Outlier removal as the paper prints it: a test of the score, random selection, Gaussian noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.stats import binom

from userdp.privacy.accounting import Cost
from userdp.privacy.mechanisms import concentration as c
from userdp.privacy.mechanisms.base import Aborted, Mechanism, Session, Vectors, check_record
from userdp.privacy.mechanisms.tests import AboveThreshold, AboveThresholdOnce, Test, laplace_tail
from userdp.privacy.noise import Noise


@dataclass(frozen=True)
class PaperOutlierRemoval(Mechanism):
    """`rounds` means of randomly selected vectors among `n_vectors`, each behind a test of the mean neighbour count.

    With K vectors and radius tau: the score s = (1/K) sum of the neighbour counts at tau passes if s + Lap(test_scale)
    >= 4K/5. Then each vector is kept with probability 0 to 1, by its neighbours at 2 tau, and the mean of the kept
    ones + N(0, (noise_ratio * tau)^2 I) is released. With more than one round the threshold gets Lap(test_scale/2),
    drawn once, and the first score below it ends the session.

    Guarantee: 2 (K-1) / (K test_scale) (pure; 4 times that for more than one round), a Gaussian of
    (sensitivity / noise_ratio tau)^2 per round, and as failure the chance that a score below 2K/3 ever passes plus
    `selection_failure` a round. Proof: docs/proofs.md, section 15.
    Paper: Alg. 1, lines 10-22; with more rounds Alg. 2, lines 4-14, whose 2 tau is the radius here.
    Differs: the selection starts at (K+1)/2 neighbours, not K/2, and the score's radius is smaller by what its
    comparison may round; both because privacy needs it. The score's noise is discrete, on multiples of 1/K. From
    Alg. 2 also: all vectors take part in every round; the threshold's noise is drawn before the loop; and weights are
    taken at twice the score's radius, as in Alg. 1, because at equal radii a vector that the score counts need not keep
    its full weight.
    """

    kind: ClassVar[str] = "paper-outlier-removal"
    n_vectors: int
    test_scale: float
    noise_ratio: float
    selection_failure: float
    rounds: int = 1

    def __post_init__(self) -> None:
        check_record(self, ("test_scale", "noise_ratio"), ("n_vectors", "rounds"), chances=("selection_failure",))
        self.sensitivity(1.0, 1)  # refuses too few vectors

    @property
    def test_failure(self) -> float:
        """Chance that a score below 2K/3 ever passes: K s is whole, so it is at least 2 K^2/15 below the threshold."""
        excess = math.ceil(2 * self.n_vectors**2 / 15)
        rate = (1 - 2.0**-50) / (self.n_vectors * self.test_scale)
        if self.rounds == 1:
            return laplace_tail(rate, excess)
        # A continuous Laplace of scale 1/rate plus one of half that scale exceeds t with probability at most this;
        # the discrete ones are each within 1 of them.
        return 2 / 3 * math.exp(-rate * max(0, excess - 2))

    @property
    def cost(self) -> Cost:
        answers = 1 if self.rounds == 1 else 4
        pure = answers * 2 * (self.n_vectors - 1) / (self.n_vectors * self.test_scale) * (1 + 2.0**-50)
        # The dimension is not known yet: 2^20 of them cost the rounding of a mean next to nothing.
        gaussian = self.rounds * (self.sensitivity(1.0, 2**20) / self.noise_ratio) ** 2 * (1 + 2.0**-50)
        failure = (self.test_failure + self.rounds * self.selection_failure) * (1 + 2.0**-50)
        return Cost(gaussian, (pure,), failure=failure)

    def sensitivity(self, radius: float, dimension: int) -> float:
        """How far a user moves the mean, except with probability `selection_failure`; the weights' radius is 2 tau."""
        exact = random_selection_sensitivity(self.n_vectors, 2 * radius, self.selection_failure)
        return c.rounded_sensitivity(exact, self.n_vectors, dimension, 2 * radius)

    def start(self, noise: Noise) -> _Session:
        return _Session(self, noise)


class _Session(Session):
    def __init__(self, record: PaperOutlierRemoval, noise: Noise) -> None:
        self._record, self._noise = record, noise
        self._rounds_left = record.rounds
        gate = AboveThresholdOnce if record.rounds == 1 else AboveThreshold
        self._gate: Test = gate(-(-4 * record.n_vectors**2 // 5), record.n_vectors * record.test_scale, noise)

    def release(self, vectors: Vectors, radius: float) -> Vectors:
        record, n_vectors = self._record, self._record.n_vectors
        if self._rounds_left == 0:
            raise RuntimeError("These means were released and paid for, or the test has failed.")
        left, self._rounds_left = self._rounds_left - 1, 0
        if len(vectors) != n_vectors:
            raise ValueError(f"Expected {n_vectors} vectors, as was priced.")
        if vectors.shape[1] > 2**20:
            raise ValueError("Expected at most 2^20 numbers in a vector, as was priced.")
        rows = c.comparable(vectors, 2 * radius)
        near = c.neighbour_counts(rows, score_radius(2 * radius, rows.shape[1]))
        if not self._gate.passes(int(near.sum())):
            raise Aborted
        self._rounds_left = left
        counts = c.neighbour_counts(rows, 2 * radius)
        ramp = paper_ramp(n_vectors)
        selected = self._noise.poisson_mask(ramp.weights(counts))
        mean = c.weighted_mean(rows, selected.astype(np.float64))
        # The noise is the printed one, whatever part of the budget that is: its multiplier is what was charged.
        sensitivity = record.sensitivity(radius, rows.shape[1])
        return self._noise.gaussian(mean, sensitivity, record.noise_ratio * radius / sensitivity)


# Below this the paper's ramp may leave a neighbouring data set without any weight.
_FEWEST_FOR_PAPER_RAMP = 10


def paper_ramp(n_vectors: int) -> c.Ramp:
    """From (K+1)/2 to 2K/3.

    Paper: Alg. 1, line 15; Alg. 2, line 11.
    Differs: starts at (K+1)/2, not K/2, because for odd K two vectors with K/2 neighbours need not share one.
    """
    if n_vectors < _FEWEST_FOR_PAPER_RAMP:
        raise ValueError(f"Expected n_vectors={n_vectors} >= {_FEWEST_FOR_PAPER_RAMP} for the paper's ramp.")
    return c.Ramp((n_vectors + 1) / 2, 2 * n_vectors / 3)


def score_radius(radius: float, dimension: int) -> float:
    """The radius at which the paper's score is taken: half the weights', less what the predicate may round.

    Two vectors within this of a third are then within `radius` of each other, as computed.
    """
    return radius / 2 * (1 - (dimension + 4) * 2.0**-50)


def score(counts: c.Counts) -> float:
    """The paper's concentration score, the mean count. Replacing one of K vectors changes it by at most 2(K-1)/K.

    Paper: Alg. 1, line 10; Alg. 2, line 6.

    >>> score(np.array([3, 3, 3, 1]))
    2.5
    """
    return float(np.sum(counts)) / len(counts)


def soft_selection_sensitivity(n_vectors: int, radius: float) -> float:
    """How far a replacement moves the mean with weights for coins, when the score at *half* the radius is >= 2K/3.

    (3r/K) (1 + 6(K-1)/(K-3)).

    >>> round(soft_selection_sensitivity(100_000, 1.0) * 100_000, 2)
    21.0
    """
    ramp = paper_ramp(n_vectors)
    return 3 * radius / n_vectors * (1 + (n_vectors - 1) / (ramp.high - ramp.low))


def random_selection_sensitivity(n_vectors: int, radius: float, failure: float) -> float:
    """The same for the paper's random selection, except with probability `failure` (under the best coupling).

    (3r/K) (1 + k), where Bin(K-1, 6/(K-3)) exceeds k with probability at most `failure`.

    >>> round(random_selection_sensitivity(100_000, 1.0, 1e-8) * 100_000)
    75
    """
    ramp = paper_ramp(n_vectors)
    changed = binom.isf(failure, n_vectors - 1, min(1.0, 1 / (ramp.high - ramp.low)))
    if changed >= 2 * n_vectors / 3 - 1:
        raise ValueError(
            f"Expected n_vectors={n_vectors} to keep some vectors except with probability {failure:g}: use more."
        )
    return 3 * radius / n_vectors * (1 + float(changed))
