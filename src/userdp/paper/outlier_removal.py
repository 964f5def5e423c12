"""Outlier removal: test privately that vectors are concentrated, then release their filtered mean with Gaussian noise.

On all vectors (`OutlierRemoval`, at a given radius or at one that it finds), on Poisson samples of the users
(`SampledOutlierRemoval`), and the search for a radius by itself (`RadiusSearch`).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import scipy  # whose parts load when they are used
from scipy.special import ndtri

from userdp._validate import check_record
from userdp.paper import concentration as c
from userdp.privacy.accounting import REPLACE_ONE, AddedUserMultiplier, Cost, Subsampled, check_relation
from userdp.privacy.mechanism import Aborted, Mechanism, Session, Users, Vectors
from userdp.privacy.noise import Noise

_LEAST_TEST_EPSILON = 1e-3  # tails of the test's noise are summed over 120 / epsilon values
# In a search, a radius at which all but `outliers` vectors are close passes unless the noise is below this many
# deviations. Failing costs little: the next larger radius is tried.
_USUAL_NOISE = 2.0


@dataclass(frozen=True)
class OutlierRemoval(Mechanism):
    """`rounds` adaptive releases of filtered means of `n_vectors` vectors, each behind a test of the h-index Q.

    Q is the largest number such that Q of the K = `n_vectors` vectors have at least Q vectors within the radius, so
    K if all are close together. A round passes if Q + noise >= K - slack + margin; the first that does not ends the
    session. The margin makes it unlikely (`failure`) that a round with Q < K - slack ever passes; the slack makes an
    abort with Q >= K - `outliers`, in any round, have probability at most `false_abort`. What passes is the tight
    filtered mean + N(0, (noise_multiplier * sensitivity(K, slack, radius))^2 I).

    n_vectors: how many vectors, one per user or one per group of users;
    noise_multiplier: from `gaussian_multiplier`, for the budget that is left for `rounds` releases;
    test_epsilon: pure epsilon of all tests, by Laplace noise; a smaller one needs more slack, so more vectors;
    failure: part of delta; 5% of it is plenty;
    outliers: how many vectors may be far from the others, or NaN. More of them cost noise, slowly: 2r/K at no slack,
    2.3r/K at a slack of 5%, 2.8r/K at 10%;
    test_std: instead of test_epsilon (None), the standard deviation of a Gaussian test in each round, which up to 50 to
    150 rounds needs less slack;
    radii: with test_std, and for one round: increasing factors of the radius given at release time. The mean is taken
    at the smallest that passes, by binary search, and is followed by that radius; if none passed, it aborts.
    neighbours: a user who is zeroed out is one whose vector is NaN, near nobody, so noise is the same for "zero-out".

    Guarantee: for any vectors, each depending on one user or on disjoint groups of users, `failure` and
    rounds / noise_multiplier^2 (Gaussian) and for the tests test_epsilon (pure), or rounds / test_std^2 (Gaussian), or
    probes / test_std^2 with radii. `failure` is not multiplied by the rounds; with radii it is shared by the probes.
    Proofs: docs/proofs.md, sections 8 and 9 (one Laplace noise, or AboveThreshold), 16 (Gaussian), 14 (radii).
    Paper: Alg. 1, lines 10-22, calibrated; Alg. 2, lines 4-13 for K_i = n_i, calibrated.
    Differs: tests the h-index, not the score, and uses weights, not random selection, for about 30 times less noise;
    Gaussian tests; radii found, not computed from constants.
    """

    kind: ClassVar[str] = "outlier-removal"
    n_vectors: int
    noise_multiplier: float
    test_epsilon: float | None
    failure: float
    false_abort: float = 1e-3
    rounds: int = 1
    outliers: int = 0
    test_std: float | None = None
    radii: tuple[float, ...] | None = None
    neighbours: str = REPLACE_ONE

    def __post_init__(self) -> None:
        check_relation(self.neighbours)
        if (self.test_epsilon is None) == (self.test_std is None):
            raise ValueError("Expected either a test_epsilon or a test_std.")
        test = "test_epsilon" if self.test_std is None else "test_std"
        check_record(self, ("noise_multiplier", test), chances=("failure", "false_abort"))
        check_record(self, counts=("n_vectors", "rounds", "outliers"), from_zero="outliers")
        if self.test_epsilon is not None and self.test_epsilon < _LEAST_TEST_EPSILON:
            raise ValueError(f"Expected test_epsilon={self.test_epsilon:g} >= {_LEAST_TEST_EPSILON:g}.")
        if self.radii is not None:
            object.__setattr__(self, "radii", c.check_factors(self.radii))
            if self.test_std is None or self.rounds != 1:
                raise ValueError("Expected a test_std, and one round, to search radii.")
        if self.n_vectors < 2 * self.slack + 4:
            raise ValueError(
                f"Expected n_vectors={self.n_vectors} >= {2 * self.slack + 4} for {test}={getattr(self, test):g}, "
                f"failure={self.failure:g}, false_abort={self.false_abort:g} and outliers={self.outliers}: use more "
                f"users or groups, or a {'larger' if self.test_std is None else 'smaller'} {test}."
            )

    @property
    def probes(self) -> int:
        """How many radii a round tries at most: enough to name one of them, or none."""
        return 1 if self.radii is None else math.ceil(math.log2(len(self.radii) + 1))

    @cached_property
    def margin(self) -> int:
        """How far above K - slack the noisy h-index must be: P(noise >= margin + 1) <= failure / probes."""
        if self.test_std is not None:
            return math.ceil(c.gaussian_margin(self.test_std, self.failure / self.probes))
        return self._laplace_excess(self.failure)

    @cached_property
    def reach(self) -> int:
        """How far the noise may lower the h-index before a round fails, but with probability false_abort / rounds."""
        if self.test_std is None:
            return self._laplace_excess(self.false_abort / self.rounds)
        if self.radii is not None:
            return math.ceil(_USUAL_NOISE * self.test_std)
        return max(0, math.ceil(self.test_std * -float(ndtri(self.false_abort / self.rounds))))

    def _laplace_excess(self, probability: float) -> int:
        """Least k with P(noise >= k + 1) <= probability, for the noise of all tests of test_epsilon."""
        assert self.test_epsilon is not None
        tail: c.Tail = c.laplace_tail if self.rounds == 1 else c.above_threshold_tail
        return c.least_excess(tail, self.test_epsilon, probability) - 1

    @cached_property
    def slack(self) -> int:
        """How far below K the h-index may be: the M of the proofs."""
        return self.margin + self.reach + self.outliers

    @property
    def threshold(self) -> int:
        """What the noisy h-index must reach."""
        return self.n_vectors - self.slack + self.margin

    @property
    def cost(self) -> Cost:
        means = self.rounds / self.noise_multiplier**2
        if self.test_std is not None:
            tests = self.rounds * self.probes / self.test_std**2
            return Cost(gaussian=(tests + means) * (1 + 2.0**-50), failure=self.failure)
        assert self.test_epsilon is not None
        return Cost(gaussian=math.nextafter(means, math.inf), pure=(self.test_epsilon,), failure=self.failure)

    def cost_under(self, relation: str) -> Cost | None:
        return self.cost if relation in (self.neighbours, REPLACE_ONE) else None

    def sensitivity(self, radius: float, dimension: int) -> float:
        """What the noise of a mean is proportional to."""
        exact = c.sensitivity(self.n_vectors, self.slack, radius)
        return c.rounded_sensitivity(exact, self.n_vectors, dimension, radius)

    def noise_std(self, radius: float, dimension: int) -> float:
        """Of a mean's coordinate."""
        return self.noise_multiplier * self.sensitivity(radius, dimension)

    def test(self, noise: Noise) -> c.Test:
        """A fresh test of all rounds at given radii."""
        if self.test_std is not None:
            return c.GaussianTest(self.threshold, self.test_std, self.rounds, noise)
        assert self.test_epsilon is not None
        if self.rounds == 1:
            return c.AboveThresholdOnce(self.threshold, 1 / self.test_epsilon, noise)
        return c.AboveThreshold(self.threshold, 4 / self.test_epsilon, noise)

    def start(self, noise: Noise) -> _Session:
        return _Session(self, noise)


class _Session(Session):
    """Rounds of a test and, behind it, a mean; the test says when there are no more."""

    def __init__(self, record: OutlierRemoval, noise: Noise) -> None:
        self._record, self._noise = record, noise
        self._test = record.test(noise) if record.radii is None else None
        self.drawn_once = self._test if isinstance(self._test, c.AboveThreshold) else None
        self._searched = False

    def release(self, vectors: Vectors, radius: float) -> Vectors:
        if self._searched:
            raise RuntimeError("This search was made and paid for once.")
        self._searched = self._test is None
        if len(vectors) != self._record.n_vectors:
            raise ValueError(f"Expected {self._record.n_vectors} vectors, as was priced.")
        if self._test is None:
            return self._search(vectors, radius)
        rows, counts = _counted(vectors, radius)
        if not self._test.passes(c.h_index(counts)):
            raise Aborted
        return self._mean(rows, counts, radius)

    def _search(self, vectors: Vectors, radius: float) -> Vectors:
        """Mean and radius, in one vector."""
        record = self._record
        assert record.radii is not None
        assert record.test_std is not None
        radii, std = [radius * factor for factor in record.radii], record.test_std
        passed: list[tuple[Vectors, c.Counts, float]] = []

        def passes(number: int) -> bool:
            rows, counts = _counted(vectors, radii[number])
            if c.noisy(c.h_index(counts), std, self._noise) < record.threshold:
                return False
            passed[:] = [(rows, counts, radii[number])]
            return True

        bisect_left(range(len(radii)), True, key=passes)
        if not passed:
            raise Aborted
        return np.append(self._mean(*passed[0]), passed[0][-1])

    def _mean(self, rows: Vectors, counts: c.Counts, radius: float) -> Vectors:
        """The filtered mean of vectors whose test has passed at this radius, with its noise."""
        record = self._record
        mean = c.filtered_mean(rows, counts, c.tight_ramp(record.n_vectors, record.slack))
        return self._noise.gaussian(mean, record.sensitivity(radius, mean.size), record.noise_multiplier)


def _counted(vectors: Vectors, radius: float) -> tuple[Vectors, c.Counts]:
    """The vectors, NaN where they are like no other, and how many neighbours each has."""
    rows = c.comparable(vectors, radius)
    return rows, c.neighbour_counts(rows, radius)


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
    Paper: Alg. 2, lines 3-13 for K_i < n_i, calibrated.
    Differs: Poisson samples instead of sampling with replacement, and no amplification after conditioning on test
    answers (research/docs/paper-notes.md).
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
        return int(scipy.stats.binom.ppf(chance, self.n_vectors - 1, self.sampling_probability))

    @cached_property
    def margin(self) -> float:
        """How far below the slack the noisy deficit must be: P(N(0, deficit_std^2) >= margin + 1) <= failure / 2."""
        return c.gaussian_margin(self.deficit_std, self.failure / 2)

    @cached_property
    def slack(self) -> int:
        """Largest deficit the mean's sensitivity is computed for: the M of the proofs."""
        return math.ceil(self.margin + self.reach) + self.outliers

    @property
    def reach(self) -> float:
        """How far the noise may raise the deficit before a round fails, but with probability false_abort / rounds."""
        return max(0.0, self.deficit_std * -float(ndtri(self.false_abort / self.rounds)))

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
        """What the noise of a mean is proportional to: the same for every batch, so it does not reveal its size."""
        exact = c.added_user_sensitivity(self.smallest_batch, self.slack, radius, self.fraction)
        return c.rounded_sensitivity(exact, self.n_vectors, dimension, radius)

    def noise_std(self, radius: float, dimension: int) -> float:
        """Of a mean's coordinate."""
        return self.added_user_multiplier * self.sensitivity(radius, dimension)

    def start(self, noise: Noise) -> _SampledSession:
        return _SampledSession(self, noise)


class _SampledSession(Session):
    def __init__(self, record: SampledOutlierRemoval, noise: Noise) -> None:
        self._record, self._noise = record, noise
        self._open = True

    def choose(self, users: Users) -> Users:
        taking_part = self._noise.poisson_mask(np.full(len(users), self._record.sampling_probability))
        return users[taking_part]

    def release(self, vectors: Vectors, radius: float) -> Vectors:
        if not self._open:
            raise RuntimeError("This session has aborted and releases nothing more.")
        self._open = False
        record, batch = self._record, len(vectors)
        if batch < record.smallest_batch:
            # The Poisson mask alone decides this, and its probability is part of `failure`.
            raise Aborted("A random batch was too small, which is rare and not due to the data.")
        rows, counts = _counted(vectors, radius)
        if c.noisy(batch - c.h_index(counts), record.deficit_std, self._noise) > record.slack - record.margin:
            raise Aborted
        self._open = True
        ramp = c.minibatch_ramp(batch, record.slack, record.fraction)
        mean = c.filtered_mean(rows, counts, ramp)
        return self._noise.gaussian(mean, record.sensitivity(radius, mean.size), record.added_user_multiplier)


def radius_grid(smallest: float, largest: float, ratio: float = 1.2) -> tuple[float, ...]:
    """smallest * ratio^k, up to the first that is >= largest.

    >>> radius_grid(1.0, 2.0, 1.5)
    (1.0, 1.5, 2.25)
    """
    if not (0 < smallest <= largest < math.inf and ratio > 1):
        raise ValueError(f"Expected 0 < smallest={smallest} <= largest={largest} and ratio={ratio} > 1.")
    steps = math.ceil(math.log(largest / smallest, ratio) - 1e-9)
    return tuple(smallest * ratio**k for k in range(steps + 1))


@dataclass(frozen=True)
class RadiusSearch(Mechanism):
    """Binary search in the increasing list `radii` for the first at which the noisy h-index reaches `target`.

    The radii are in units of the radius given at release time (a theoretical one, say). The last one is never probed:
    it is the answer if no other one reaches the target, so let it be large enough. A probe is
    Q(r) + N(0, noise_std^2), and Q(r) has sensitivity 1 whatever r is.

    Guarantee: ceil(log2(number of radii)) / noise_std^2 (Gaussian), for any vectors. The answer is one of the public
    radii and reveals nothing else. Proof: docs/proofs.md, section 11.
    """

    kind: ClassVar[str] = "radius-search"
    n_vectors: int
    radii: tuple[float, ...]
    target: int
    noise_std: float

    rounds = 1

    def __post_init__(self) -> None:
        check_record(self, ("noise_std",), ("n_vectors", "target"))
        object.__setattr__(self, "radii", c.check_factors(self.radii))
        if not 0 < self.target <= self.n_vectors:
            raise ValueError(f"Expected 0 < target={self.target} <= n_vectors={self.n_vectors}.")

    @property
    def probes(self) -> int:
        """How often the h-index is asked for at most."""
        return math.ceil(math.log2(len(self.radii)))

    @property
    def cost(self) -> Cost:
        return Cost(gaussian=math.nextafter(self.probes / self.noise_std**2, math.inf) if self.probes else 0.0)

    def sensitivity(self, radius: float, dimension: int) -> float:
        """Of an h-index, at any radius."""
        return 1.0

    def start(self, noise: Noise) -> _SearchSession:
        return _SearchSession(self, noise)


class _SearchSession(Session):
    def __init__(self, record: RadiusSearch, noise: Noise) -> None:
        self._record, self._noise = record, noise
        self._open = True

    def release(self, vectors: Vectors, radius: float) -> Vectors:
        """The found radius, as a vector of length 1; once."""
        if not self._open:
            raise RuntimeError("This search was made and paid for once.")
        self._open = False
        record, radii = self._record, [radius * factor for factor in self._record.radii]
        if len(vectors) != record.n_vectors:
            raise ValueError(f"Expected {record.n_vectors} vectors, as was priced.")

        def passes(number: int) -> bool:
            _, counts = _counted(vectors, radii[number])
            return c.noisy(c.h_index(counts), record.noise_std, self._noise) >= record.target

        return np.array([radii[bisect_left(range(len(radii) - 1), True, key=passes)]])
