"""Outlier removal as the paper prints it: a test of the score, random selection, Gaussian noise."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar

import numpy as np
import scipy  # whose parts load when they are used

from userdp._validate import check_record
from userdp.paper import concentration as c
from userdp.paper.concentration import AboveThreshold, AboveThresholdOnce, Test, laplace_tail
from userdp.privacy.accounting import AddedUserMultiplier, Cost, Subsampled
from userdp.privacy.mechanism import Aborted, Mechanism, Session, Users, Vectors
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
    Paper: Alg. 1, lines 10-22; Alg. 2, lines 4-13 with more rounds, whose 2 tau is the radius here.
    Differs: the selection starts at (K+1)/2 neighbours, not K/2, and the score's radius is smaller by what its
    comparison may round; both because privacy needs it. The score's noise is discrete, on multiples of 1/K. From
    Alg. 2 also: all vectors take part in every round (Alg. 2, line 3); the threshold's noise is drawn before the loop;
    and weights are taken at twice the score's radius, as in Alg. 1, because at equal radii a vector that the score
    counts need not keep its full weight.
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
        return _above_threshold_failure(rate, excess)

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
        self.drawn_once = self._gate if isinstance(self._gate, AboveThreshold) else None

    def release(self, vectors: Vectors, radius: float) -> Vectors:
        record, n_vectors = self._record, self._record.n_vectors
        if self._rounds_left == 0:
            raise RuntimeError("These means were released and paid for, or the test has failed.")
        left, self._rounds_left = self._rounds_left - 1, 0
        if len(vectors) != n_vectors:
            raise ValueError(f"Expected {n_vectors} vectors, as was priced.")
        if vectors.shape[1] > 2**20:
            raise ValueError("Expected at most 2^20 numbers in a vector, as was priced.")
        rows, near = _near_pairs(vectors, radius)
        if not self._gate.passes(near):
            raise Aborted
        self._rounds_left = left
        return _selected_mean(record, rows, radius, self._noise)


@dataclass(frozen=True)
class SampledPaperOutlierRemoval(Mechanism):
    """The same on samples: a round draws each of the `n_vectors` users with `sampling_probability`, q.

    With a batch of B users and radius tau: the score s passes if s - 4B/5 + Lap(test_scale) >= Lap(test_scale/2), the
    latter drawn once. Then vectors are selected, and averaged with N(0, (noise_ratio * tau)^2 I), as in
    `PaperOutlierRemoval`. The first score that fails ends the session, and so does a batch below `smallest_batch`.

    Guarantee: 8 / test_scale (pure), `rounds` Poisson-sampled Gaussian steps of multiplier noise_ratio tau /
    sensitivity in units of adding one user, and as failure the chance that a score below 2B/3 ever passes plus three
    times `selection_failure` a round. Proof: docs/proofs.md, section 26.
    Paper: Alg. 2, line 3, and lines 4-14 as above, for K_i < n_i; K_i is q n_i here.
    Differs: users are drawn by a Poisson sample, not K_i times with replacement, because a user who is drawn c times
    moves score and mean c times as far: the tests alone would cost c eps/2. Otherwise as in `PaperOutlierRemoval`.
    """

    kind: ClassVar[str] = "sampled-paper-outlier-removal"
    n_vectors: int
    sampling_probability: float
    test_scale: float
    noise_ratio: float
    selection_failure: float
    rounds: int = 1

    samples_users = True

    def __post_init__(self) -> None:
        reals = ("sampling_probability", "test_scale", "noise_ratio")
        check_record(self, reals, ("n_vectors", "rounds"), chances=("selection_failure",))
        if self.sampling_probability >= 1:
            raise ValueError(
                f"Expected sampling_probability={self.sampling_probability} < 1; PaperOutlierRemoval takes everyone."
            )
        self.sensitivity(1.0, 1)  # refuses batches that are too small

    @cached_property
    def smallest_batch(self) -> int:
        """Largest b with P(Bin(n_vectors - 1, q) < b) <= selection_failure."""
        return int(
            scipy.stats.binom.ppf(self.selection_failure * (1 - 1e-9), self.n_vectors - 1, self.sampling_probability)
        )

    @property
    def test_failure(self) -> float:
        """Chance that a batch ever passes whose score is below 2B/3 without the user: by noise of 2B/15 - 6/5."""
        excess = math.floor(_SCORE_GRID * (2 * self.smallest_batch / 15 - 6 / 5))
        return _above_threshold_failure((1 - 2.0**-50) / (_SCORE_GRID * self.test_scale), excess)

    @property
    def cost(self) -> Cost:
        pure = 4 * _SCORE_MOVES / (_SCORE_GRID * self.test_scale) * (1 + 2.0**-50)
        # The dimension is not known yet: 2^20 of them cost the rounding of a mean next to nothing.
        multiplier = AddedUserMultiplier(self.noise_ratio / self.sensitivity(1.0, 2**20) * (1 - 2.0**-50))
        failure = (self.test_failure + 3 * self.rounds * self.selection_failure) * (1 + 2.0**-50)
        return Cost(
            pure=(pure,),
            subsampled=(Subsampled(self.sampling_probability, multiplier, self.rounds),),
            failure=failure,
        )

    def sensitivity(self, radius: float, dimension: int) -> float:
        """How far adding a user to a batch moves the mean, except with probability `selection_failure`."""
        exact = added_selection_sensitivity(self.smallest_batch, 2 * radius, self.selection_failure)
        return c.rounded_sensitivity(exact, self.n_vectors, dimension, 2 * radius)

    def start(self, noise: Noise) -> _PoissonSession:
        return _PoissonSession(self, noise)


class _PoissonSession(Session):
    def __init__(self, record: SampledPaperOutlierRemoval, noise: Noise) -> None:
        self._record, self._noise = record, noise
        self._rounds_left = record.rounds
        self._gate = self.drawn_once = AboveThreshold(0, _SCORE_GRID * record.test_scale, noise)

    def choose(self, users: Users) -> Users:
        return users[self._noise.poisson_mask(np.full(len(users), self._record.sampling_probability))]

    def release(self, vectors: Vectors, radius: float) -> Vectors:
        record, batch = self._record, len(vectors)
        if self._rounds_left == 0:
            raise RuntimeError("These means were released and paid for, or the test has failed.")
        left, self._rounds_left = self._rounds_left - 1, 0
        if vectors.shape[1] > 2**20:
            raise ValueError("Expected at most 2^20 numbers in a vector, as was priced.")
        if batch < record.smallest_batch:
            # The Poisson mask alone decides this, and its probability is part of what is charged as failure.
            raise Aborted("A random batch was too small, which is rare and not due to the data.")
        rows, near = _near_pairs(vectors, radius)
        # s - 4B/5, on the grid, rounded down: in whole numbers, so that nothing else is rounded.
        if not self._gate.passes(_SCORE_GRID * (5 * near - 4 * batch**2) // (5 * batch)):
            raise Aborted
        self._rounds_left = left
        return _selected_mean(record, rows, radius, self._noise)


def _near_pairs(vectors: Vectors, radius: float) -> tuple[Vectors, int]:
    """The vectors, those that are like no other as NaN, and how many ordered pairs are within the score's radius.

    Of K vectors the score is 1/K of the pairs; a replacement moves it by at most 2 (K-1) / K.

    Paper: Alg. 1, line 10 (s_i); Alg. 2, line 6 (s_i^t).
    """
    rows = c.comparable(vectors, 2 * radius)
    return rows, int(c.neighbour_counts(rows, score_radius(2 * radius, rows.shape[1])).sum())


def _selected_mean(
    record: PaperOutlierRemoval | SampledPaperOutlierRemoval, rows: Vectors, radius: float, noise: Noise
) -> Vectors:
    """Select by neighbours at twice the radius, average, and add the printed noise."""
    counts = c.neighbour_counts(rows, 2 * radius)
    selected = noise.poisson_mask(paper_ramp(len(rows)).weights(counts))
    mean = c.weighted_mean(rows, selected.astype(np.float64))
    # The noise is the printed one, whatever part of the budget that is: its multiplier is what was charged.
    sensitivity = record.sensitivity(radius, rows.shape[1])
    return noise.gaussian(mean, sensitivity, record.noise_ratio * radius / sensitivity)


# Below this the paper's ramp may leave a neighbouring data set without any weight.
_FEWEST_FOR_PAPER_RAMP = 10
_SCORE_GRID = 2**16  # steps to 1, of the scores of samples
_SCORE_MOVES = 2 * _SCORE_GRID + 1  # in steps: a replaced, added or left out user moves s - 4B/5 by less than 2


def paper_ramp(n_vectors: int) -> c.Ramp:
    """From (K+1)/2 to 2K/3.

    Paper: Alg. 1, line 15 (p_ij); Alg. 2, line 11 (p_i^t).
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


def _above_threshold_failure(rate: float, excess: int) -> float:
    """An upper bound on P(nu - xi >= excess), for discrete Laplaces of scales 1/rate and half of that.

    A sum of continuous ones exceeds t with probability at most 2/3 e^(-rate t); the discrete are each within 1 of them.
    """
    return 2 / 3 * math.exp(-rate * max(0, excess - 2))


def random_selection_sensitivity(n_vectors: int, radius: float, failure: float) -> float:
    """How far a replacement moves the mean, except with probability `failure` (under the best coupling of the coins).

    The score at *half* the radius is >= 2K/3.
    (3r/K) (1 + k), where Bin(K-1, 6/(K-3)) exceeds k with probability at most `failure`.

    >>> round(random_selection_sensitivity(100_000, 1.0, 1e-8) * 100_000)
    75
    """
    changed = _most_changed(n_vectors, failure)
    if changed >= 2 * n_vectors / 3 - 1:
        raise ValueError(
            f"Expected n_vectors={n_vectors} to keep some vectors except with probability {failure:g}: use more."
        )
    return 3 * radius / n_vectors * (1 + changed)


def added_selection_sensitivity(batch: int, radius: float, failure: float) -> float:
    """How far adding a user to at least B others moves the mean of the selected, except with probability `failure`.

    (3r/B) (1 + k), where a Poisson-like count of mean mu = 4B/(B-2) exceeds k with probability at most `failure` by
    Chernoff's bound, P(X >= x) <= e^-mu (e mu / x)^x: it falls with B.

    >>> round(added_selection_sensitivity(100_000, 1.0, 1e-8) * 100_000)
    66
    """
    paper_ramp(batch)  # refuses too few
    mean, least = 4 * batch / (batch - 2), math.log(failure)
    more = math.ceil(mean)  # k + 1
    while more - mean + more * math.log(mean / more) > least:
        more += 1
    if more >= 2 * batch / 3:
        raise ValueError(f"Expected batches of more than {batch} users to keep some except with {failure:g}.")
    return 3 * radius / batch * more


@lru_cache(maxsize=4096)
def _most_changed(n_vectors: int, failure: float) -> int:
    """The least k that Bin(K-1, 6/(K-3)) exceeds with probability at most `failure`.

    By its tail: `binom.isf` gives K-1 for failures below 1e-16.
    """
    ramp = paper_ramp(n_vectors)
    chance = min(1.0, 1 / (ramp.high - ramp.low))
    return bisect_left(
        range(n_vectors - 1),
        True,
        key=lambda k: bool(scipy.stats.binom.sf(k, n_vectors - 1, chance) * (1 + 1e-9) <= failure),
    )
