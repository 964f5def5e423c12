"""Neighbouring data sets that are as bad for each mechanism as we know, and what an attacker reads from its releases.

A mechanism is priced for the budget, then run again and again on D and on D', which differ in one user. Attacks:

    edges         the user pulls as far as the mechanism lets it, in one direction or in the other
    flips         the user decides whether the private test passes, and pulls the mean as well
    missing       the user's vector is NaN, or at an edge
    duplicates    all other users are copies of the user, who is the same or at the other edge
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from userdp import losses
from userdp.auditing import priced
from userdp.auditing.bounds import Finding, attacked
from userdp.data.users import UserData
from userdp.domains import Ball
from userdp.paper.paper_outlier_removal import PaperOutlierRemoval, SampledPaperOutlierRemoval
from userdp.privacy.accounting import Budget, Cost, epsilon_at
from userdp.privacy.mechanisms import concentration
from userdp.privacy.mechanisms.base import Aborted, Mechanism, Vectors
from userdp.privacy.mechanisms.outlier_removal import OutlierRemoval
from userdp.privacy.mechanisms.tests import AboveThreshold, AboveThresholdOnce, GaussianTest
from userdp.privacy.noise import Noise
from userdp.solvers.problem import Problem
from userdp.solvers.quantiles import Counts
from userdp.statistics.gradients import MeanGradient, RowWeights, Statistic
from userdp.statistics.moments import MomentShape
from userdp.statistics.spreads import CentredMean, CentredSquares, CurvatureMatrix, GradientSquare

Features = NDArray[np.float64]
FAR = 1e6  # of everyone, but finite
_SANITY = 0.05  # weight of attacks that find little, and would find a lot if something were wrong
_FLIPS = 0.25
_REMEMBERED = 64
_NO_TRACE = 1e-9  # share of a matrix's trace: it points the same way for all users, and tells nothing of one
WITHIN = 1 - 1e-9  # rounding must not put an edge outside
_AS_PUBLISHED = (PaperOutlierRemoval, SampledPaperOutlierRemoval)


@dataclass(frozen=True)
class Pair:
    """One attack: `play(noise, version)` gives what is seen of D (version 0) or D' (version 1), as numbers.

    `cost` is what the mechanism claims; `weight` is the fraction of the usual number of runs that it gets.
    """

    what: str
    mode: str
    attack: str
    cost: Cost
    play: Callable[[Noise, int], list[float]]
    weight: float = 1.0

    @property
    def strongest(self) -> bool:
        """Whether it is the attack that finds most of what this mechanism costs."""
        return self.attack == "edges" or self.what.startswith(("RadiusSearch", "AboveThreshold", "GaussianTest"))

    def attacked(self, noise: Noise, runs: int, delta: float, alpha: float) -> Finding:
        """Play both versions so often; both bounds together are wrong with a chance of at most `alpha`."""
        names, claim = (self.what, self.mode, self.attack), epsilon_at(self.cost, delta)
        with remembered_counts():
            return attacked(names, claim, self.cost, lambda version, _: self.play(noise, version), runs, delta, alpha)


def edge(mechanism: Mechanism, radius: float) -> float:
    """How far from 0 one user's vector may be, and count in full, if the others' are 0."""
    if isinstance(mechanism, _AS_PUBLISHED):
        return 2 * radius * WITHIN  # weights are of twice the score's radius
    if isinstance(mechanism, OutlierRemoval) and mechanism.radii is not None:
        return radius * mechanism.radii[0] * WITHIN  # the smallest passes: all the others agree
    if (own := getattr(mechanism, "edge", None)) is not None:
        return float(own) * radius  # of a mechanism that says so itself
    if hasattr(mechanism, "slack"):  # outlier removals
        return radius * WITHIN
    return radius * FAR  # it clips by itself


def play_mechanism(mechanism: Mechanism, versions: tuple[Vectors, Vectors], noise: Noise, version: int) -> list[float]:
    """What a session releases in the first coordinate, summed over the rounds, and how many rounds passed."""
    session, data, told = mechanism.start(noise), versions[version], np.zeros(0)
    passed, everyone = 0, np.arange(len(data))
    try:
        for _ in range(mechanism.rounds):
            released = session.release(data[session.choose(everyone)], 1.0)
            told = released if passed == 0 else told + released
            passed += 1
    except Aborted:
        pass
    return [float(told[0]) if passed else 0.0, *map(float, told[1:] if passed else ()), float(passed)]


@contextmanager
def remembered_counts() -> Iterator[None]:
    """Neighbours of the same vectors are counted once, which is most of the work and no noise depends on."""
    count, known = concentration.neighbour_counts, dict[tuple[bytes, float], concentration.Counts]()

    def remembered(vectors: Vectors, radius: float) -> concentration.Counts:
        key = (vectors.tobytes(), radius)
        if key not in known and len(known) < _REMEMBERED:
            known[key] = count(vectors, radius)
        return known[key] if key in known else count(vectors, radius)

    concentration.neighbour_counts = remembered
    try:
        yield
    finally:
        concentration.neighbour_counts = count


def _of(
    name: str, attack: str, mechanism: Mechanism, one: Vectors, other: Vectors, weight: float = 1.0, width: int = 1
) -> Pair:
    def play(noise: Noise, version: int) -> list[float]:
        seen = play_mechanism(mechanism, (one, other), noise, version)
        return [*seen[:-1][:width], *[0.0] * (width - len(seen) + 1), seen[-1]]

    mode = "paper" if isinstance(mechanism, _AS_PUBLISHED) else "tight"
    return Pair(name, mode, attack, mechanism.cost, play, weight)


def _others(mechanism: Mechanism, own: float, place: float = 0.0, far: int = 0) -> Vectors:
    """The user's vector first; the others at `place`, but for some that are missing."""
    rows = np.full((mechanism.n_vectors, 1), place)
    rows[0] = own
    rows[len(rows) - far :] = math.nan
    return rows


def mean_pairs(name: str, mechanism: Mechanism) -> list[Pair]:
    """The attacks that every mean is put through."""
    far = edge(mechanism, 1.0)
    # Rounds of tests take long, and are told from one round by the numbers of their price alone.
    weight = 0.25 if mechanism.rounds > 1 and mechanism.n_vectors > 100 else 1.0
    pairs = [
        _of(name, "edges", mechanism, _others(mechanism, far), _others(mechanism, -far), weight),
        _of(name, "missing", mechanism, _others(mechanism, far), _others(mechanism, math.nan), weight=_SANITY),
    ]
    if mechanism.n_vectors > 1:
        same, apart = (_others(mechanism, own, place=far) for own in (far, -far))
        pairs.append(_of(name, "duplicates", mechanism, same, apart, weight=_SANITY))
    return pairs


def _flips(name: str, mechanism: Any, deficit: int) -> Pair:
    """So many outliers that the user's vector, at an edge or missing, moves the test's statistic by 1."""
    far = edge(mechanism, 1.0)
    one, other = (_others(mechanism, own, far=deficit) for own in (far, math.nan))
    return _of(name, "flips", mechanism, one, other, _FLIPS)


def tested_pairs(name: str, mechanism: Any) -> list[Pair]:
    """The attacks on a mean behind a test of the h-index."""
    # At the threshold itself half of the runs pass; with one outlier more than that passing is rarer, and tells more.
    return [*mean_pairs(name, mechanism), _flips(name, mechanism, mechanism.n_vectors - int(mechanism.threshold) + 1)]


def mechanism_pairs(budget: Budget) -> list[Pair]:
    """Every attack on every mechanism, each priced to cost the whole budget."""
    pairs = mean_pairs("Clip", priced.clip(budget))
    pairs += mean_pairs("Clip, 3 rounds", priced.clip(budget, rounds=3))
    pairs += _acute_clip(budget)
    pairs += _quantile_counts(budget)
    pairs += mean_pairs("Clip, Laplace noise", priced.laplace_clip(budget))
    pairs += mean_pairs("Clip, Laplace noise, 3 rounds", priced.laplace_clip(budget, rounds=3))
    pairs += sampled_pairs("Clip, sampled", priced.sampled_clip(budget))
    for rounds in (1, 3):
        suffix = "" if rounds == 1 else f", {rounds} rounds"
        pairs += tested_pairs(f"OutlierRemoval{suffix}", priced.outlier_removal(budget, rounds))
        pairs += tested_pairs(
            f"OutlierRemoval, Gaussian tests{suffix}", priced.gaussian_outlier_removal(budget, rounds)
        )
        paper = priced.paper_outlier_removal(budget, rounds)
        pairs += mean_pairs(f"PaperOutlierRemoval{suffix}", paper)
        pairs.append(_flips(f"PaperOutlierRemoval{suffix}", paper, _paper_deficit(paper)))
    pairs += tested_pairs("OutlierRemoval, searched radii", priced.searched_outlier_removal(budget))
    sampled = priced.sampled_outlier_removal(budget)
    pairs += mean_pairs("SampledOutlierRemoval", sampled)
    deficit = round((sampled.slack - sampled.margin) / sampled.sampling_probability)
    pairs.append(_flips("SampledOutlierRemoval", sampled, deficit))
    sampled_paper = priced.sampled_paper_outlier_removal(budget)
    pairs += mean_pairs("SampledPaperOutlierRemoval", sampled_paper)
    pairs.append(_flips("SampledPaperOutlierRemoval", sampled_paper, _paper_deficit(sampled_paper)))
    pairs += _vocabulary(budget)
    return [*pairs, *_radius_pairs(budget), *_gate_pairs(budget)]


def _paper_deficit(mechanism: PaperOutlierRemoval | SampledPaperOutlierRemoval) -> int:
    """Outliers that bring the score to its threshold: of c near vectors and n - c lonely ones it is (c^2 + n - c)/n."""
    return mechanism.n_vectors - math.ceil(math.sqrt(0.8) * mechanism.n_vectors)


def _acute_clip(budget: Budget) -> list[Pair]:
    """A user whose rows are all along one axis, or along another: matrices at a right angle; or it has none.

    What is seen is how much more there is of the one than of the other.
    """
    mechanism, axes = priced.clip(budget, acute=True), np.eye(2)
    users = UserData(FAR * axes, np.zeros(2), np.arange(3))
    nobody = np.zeros((1, 2))
    gradient = MeanGradient(losses.squared, np.ones(2), axes, row_weights=RowWeights(axes, 4 * FAR))
    statistics: dict[str, Statistic] = {
        "acute vectors": MomentShape(axes),
        "curvature matrices": CurvatureMatrix(gradient, _NO_TRACE, 1.0),
        "squares of gradients": GradientSquare(gradient, _NO_TRACE),
        "squares of means": CentredSquares(CentredMean(np.zeros(2), 1.0)),
    }

    def pair(what: str, attack: str, one: Vectors, other: Vectors, weight: float) -> Pair:
        versions = np.vstack([one, nobody]), np.vstack([other, nobody])

        def play(noise: Noise, version: int) -> list[float]:
            first, second, passed = play_mechanism(mechanism, versions, noise, version)
            return [first - second, passed]

        return Pair(f"Clip, {what}", "tight", attack, mechanism.cost, play, weight)

    pairs = []
    for what, statistic in statistics.items():
        vectors = statistic(users, np.arange(2), 2)
        vectors = vectors[:, [0, 1 if vectors.shape[1] == 2 else 2]]  # of a matrix, its upper triangle, the diagonal
        pairs.append(pair(what, "edges", vectors[:1], vectors[1:], 1.0))
        pairs.append(pair(what, "missing", vectors[:1], nobody, _SANITY))
    return pairs


def _quantile_counts(budget: Budget) -> list[Pair]:
    """A user whose targets are all below what is predicted, or all above; or who has none. Counts of the median."""
    mechanism = priced.clip(budget)
    problem = Problem(losses.quantile(0.5), Ball(1.0), 1, 1.0, target_bound=1.0, intercept=True)
    request = next(Counts(problem, problem.start, "", 1.0).at(0.0))
    users = UserData(np.ones((2, 1)), np.array([-1.0, 1.0]), np.array([0, 1, 2, 2, 2]))
    vectors = request.statistic(users, np.arange(4), 4)
    below, above, missing = (vectors[[user, 3]] for user in range(3))

    def pair(attack: str, one: Vectors, other: Vectors, weight: float) -> Pair:
        def play(noise: Noise, version: int) -> list[float]:
            return [float(mechanism.start(noise).release((one, other)[version], request.radius)[0])]

        return Pair("Clip, counts of a quantile", "tight", attack, mechanism.cost, play, weight)

    return [pair("edges", below, above, 1.0), pair("missing", below, missing, _SANITY)]


def _vocabulary(budget: Budget) -> list[Pair]:
    """A user who has the one or the other of two levels that many have; or one that nobody else has.

    What is seen is how much more there is of the one level than of the other, and whether a third is there.
    """
    mechanism = priced.vocabulary(budget)
    others = np.arange(mechanism.n_vectors) % 2 + 1.0

    def pair(attack: str, one: float, other: float, weight: float) -> Pair:
        versions = [np.append(own, others[1:])[:, None] for own in (one, other)]

        def play(noise: Noise, version: int) -> list[float]:
            counts = dict.fromkeys((1.0, 2.0, 3.0), 0.0)
            for count, level in mechanism.start(noise).release(versions[version], 1.0).reshape(-1, 2):
                counts[float(level)] = float(count)
            return [counts[1.0] - counts[2.0], float(counts[3.0] > 0)]

        return Pair("Vocabulary", "tight", attack, mechanism.cost, play, weight)

    return [pair("edges", 1.0, 2.0, 1.0), pair("missing", 1.0, 3.0, _SANITY)]


def sampled_pairs(name: str, mechanism: Mechanism, width: int = 1) -> list[Pair]:
    """A user within the radius and one beyond it, who is asked or not; `width` numbers are released."""
    one, beyond, missing = (_others(mechanism, own) for own in (WITHIN, -FAR, math.nan))
    return [
        _of(name, "edges", mechanism, one, beyond, width=width),
        _of(name, "missing", mechanism, one, missing, weight=_SANITY, width=width),
    ]


def _radius_pairs(budget: Budget) -> list[Pair]:
    """The h-index is the same at every radius, and one less if the user is missing."""
    pairs = []
    for n_radii in (2, 8):
        search = priced.radius_search(budget, n_radii)
        # One probe: reaching the target is rare, and tells more. Several: each is as good as a coin.
        below = round(1.5 * search.noise_std) if search.probes == 1 else 0
        missing = search.n_vectors - search.target + below
        one, other = (_others(search, own, far=missing) for own in (0.0, math.nan))
        pairs.append(_of(f"RadiusSearch, {search.probes} probes", "flips", search, one, other))
    return pairs


def _gate_pairs(budget: Budget) -> list[Pair]:
    """Tests by themselves, on values that differ by one."""
    epsilon, multiplier = budget.epsilon, priced.gaussian(budget)

    def once(noise: Noise, version: int) -> list[float]:
        return [float(AboveThresholdOnce(1, 1 / epsilon, noise).passes(0 - version))]

    def gaussian(noise: Noise, version: int) -> list[float]:
        # Two deviations above the value: the rarer a pass is, the more it tells of epsilon at a small delta.
        threshold = math.ceil(1.3 * multiplier)
        return [float(GaussianTest(threshold, multiplier, 1, noise).passes(-version))]

    def stream(noise: Noise, version: int) -> list[float]:
        # Passing again and again says that the threshold's noise is low; aborting then says that the last value is.
        gate, passed, values = AboveThreshold(1, 4 / epsilon, noise), 0, [version] * 4 + [1 - version]
        while passed < len(values) and gate.passes(values[passed]):
            passed += 1
        return [float(passed)]

    return [
        Pair("AboveThresholdOnce", "tight", "flips", Cost(pure=(epsilon,)), once, 2.0),
        Pair("GaussianTest", "tight", "flips", Cost(gaussian=1 / multiplier**2), gaussian, 2.0),
        Pair("AboveThreshold", "tight", "flips", Cost(pure=(epsilon,)), stream, 4.0),
    ]
