"""Neighbouring data sets that are as bad for each mechanism as we know, and what an attacker reads from its releases.

A mechanism is priced for the budget, then run again and again on D and on D', which differ in one user. Attacks:

    edges         the user pulls as far as the mechanism lets it, in one direction or in the other
    flips         the user decides whether the private test passes, and pulls the mean as well
    missing       the user's vector is NaN, or at an edge
    duplicates    all other users are copies of the user, who is the same or at the other edge
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from userdp import losses
from userdp.auditing import priced
from userdp.auditing.bounds import Finding, attacked
from userdp.data.users import UserData
from userdp.domains import Ball
from userdp.paper.concentration import AboveThreshold, AboveThresholdOnce, GaussianTest
from userdp.paper.outlier_removal import OutlierRemoval
from userdp.paper.paper_outlier_removal import PaperOutlierRemoval, SampledPaperOutlierRemoval
from userdp.privacy.accounting import ZERO_OUT, Budget, Cost, epsilon_at
from userdp.privacy.mechanism import Aborted, Mechanism, Vectors
from userdp.privacy.noise import Noise
from userdp.solvers.problem import Problem
from userdp.solvers.quantiles import Counts
from userdp.statistics.gradients import MeanGradient, RowWeights, Statistic
from userdp.statistics.moments import MomentShape
from userdp.statistics.spreads import CentredMean, CentredSquares, CurvatureMatrix, GradientSquare

Reader = Callable[[Mechanism, Noise, Vectors], list[float]]  # what is seen of a data set
FAR = 1e6  # of everyone, but finite
# Of the runs; those that are sanity checks find little, and would find a lot if something were wrong.
_WEIGHTS = {"missing": 0.05, "duplicates": 0.05, "flips": 0.25}
_NO_TRACE = 1e-9  # share of a matrix's trace: it points the same way for all users, and shows nothing of one
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


def play_mechanism(mechanism: Mechanism, vectors: Vectors, noise: Noise) -> list[float]:
    """What a session releases, summed over the rounds, and how many rounds passed."""
    session, total, passed = mechanism.start(noise), np.zeros(1), 0
    with contextlib.suppress(Aborted):
        for _ in range(mechanism.rounds):
            released = session.release(vectors[session.choose(np.arange(len(vectors)))], 1.0)
            total = released if passed == 0 else total + released
            passed += 1
    return [*map(float, total), float(passed)]


def _first(mechanism: Mechanism, noise: Noise, vectors: Vectors) -> list[float]:
    """The mean's first coordinate, and how many rounds passed."""
    seen = play_mechanism(mechanism, vectors, noise)
    return [seen[0], seen[-1]]


def pairs_of(
    name: str, mechanism: Mechanism, read: Reader = _first, weight: float = 1.0, **attacks: tuple[Vectors, Vectors]
) -> list[Pair]:
    """Attacks by name, each on D and D', of which `read` sees something; `weight` is of those that find most."""
    mode = "paper" if isinstance(mechanism, _AS_PUBLISHED) else "calibrated"

    def play(versions: tuple[Vectors, Vectors], noise: Noise, version: int) -> list[float]:
        return read(mechanism, noise, versions[version])

    return [
        Pair(name, mode, attack, mechanism.cost, partial(play, versions), _WEIGHTS.get(attack, weight))
        for attack, versions in attacks.items()
    ]


def _others(mechanism: Mechanism, own: float, place: float = 0.0, far: int = 0) -> Vectors:
    """The user's vector first; the others at `place`, but for some that are missing."""
    rows = np.full((mechanism.n_vectors, 1), place)
    rows[0] = own
    rows[len(rows) - far :] = math.nan
    return rows


def mean_pairs(name: str, mechanism: Mechanism) -> list[Pair]:
    """The attacks that every mean is put through."""
    far = edge(mechanism, 1.0)
    one, other, missing = (_others(mechanism, own) for own in (far, -far, math.nan))
    attacks: dict[str, Any] = {"edges": (one, other), "missing": (one, missing)}
    if mechanism.n_vectors > 1:
        attacks["duplicates"] = _others(mechanism, far, place=far), _others(mechanism, -far, place=far)
    # Rounds of tests take long, and differ from one round in the numbers of their price only.
    weight = 0.25 if mechanism.rounds > 1 and mechanism.n_vectors > 100 else 1.0
    return pairs_of(name, mechanism, weight=weight, **attacks)


def gated_pairs(name: str, mechanism: Any, deficit: int | None = None) -> list[Pair]:
    """The attacks on a mean behind a test: so many outliers that the user, at an edge or missing, moves its statistic.

    deficit: how many; by default those that bring the h-index to one below its threshold. At the threshold itself half
    of the runs pass; with one outlier more passing is rarer, and reveals more.
    """
    if deficit is None:
        deficit = mechanism.n_vectors - int(mechanism.threshold) + 1
    one, other = (_others(mechanism, own, far=deficit) for own in (edge(mechanism, 1.0), math.nan))
    return [*mean_pairs(name, mechanism), *pairs_of(name, mechanism, flips=(one, other))]


def mechanism_pairs(budget: Budget) -> list[Pair]:
    """Every attack on every mechanism, each priced to cost the whole budget."""
    pairs = mean_pairs("Clip", priced.clip(budget))
    pairs += mean_pairs("Clip, 3 rounds", priced.clip(budget, rounds=3))
    pairs += _acute_clip(budget)
    pairs += _quantile_counts(budget)
    pairs += mean_pairs("Clip, Laplace noise", priced.laplace_clip(budget))
    pairs += mean_pairs("Clip, Laplace noise, 3 rounds", priced.laplace_clip(budget, rounds=3))
    pairs += sampled_pairs("Clip, sampled", priced.sampled_clip(budget))
    pairs += _zeroed_out(budget)
    for rounds, suffix in ((1, ""), (3, ", 3 rounds")):
        gaussian = priced.gaussian_outlier_removal(budget, rounds)
        pairs += gated_pairs(f"OutlierRemoval{suffix}", priced.outlier_removal(budget, rounds))
        pairs += gated_pairs(f"OutlierRemoval, Gaussian tests{suffix}", gaussian)
        pairs += _paper_pairs(f"PaperOutlierRemoval{suffix}", priced.paper_outlier_removal(budget, rounds))
    searched = priced.gaussian_outlier_removal(budget, radii=(1.0, 2.0, 4.0))
    pairs += gated_pairs("OutlierRemoval, searched radii", searched)
    sampled = priced.sampled_outlier_removal(budget)
    deficit = round((sampled.slack - sampled.margin) / sampled.sampling_probability)
    pairs += gated_pairs("SampledOutlierRemoval", sampled, deficit)
    pairs += _paper_pairs("SampledPaperOutlierRemoval", priced.sampled_paper_outlier_removal(budget))
    return [*pairs, *_vocabulary(budget), *_radius_pairs(budget), *_gate_pairs(budget)]


def _paper_pairs(name: str, mechanism: PaperOutlierRemoval | SampledPaperOutlierRemoval) -> list[Pair]:
    """Outliers bring the score to its threshold: of c near vectors and n - c lonely ones it is (c^2 + n - c)/n."""
    return gated_pairs(name, mechanism, mechanism.n_vectors - math.ceil(math.sqrt(0.8) * mechanism.n_vectors))


def _zeroed_out(budget: Budget) -> list[Pair]:
    """For "zero-out" neighbours: an outlying user, or one who adds nothing; one of samples is asked or not."""
    mechanisms: dict[str, Mechanism] = {
        "Clip, zero-out": replace(priced.clip(budget), neighbours=ZERO_OUT),
        "Clip, Laplace noise, zero-out": replace(priced.laplace_clip(budget), neighbours=ZERO_OUT),
        "Clip, sampled, zero-out": priced.sampled_clip(replace(budget, neighbours=ZERO_OUT)),
    }
    pairs = []
    for name, mechanism in mechanisms.items():
        used, zeroed = (_others(mechanism, own) for own in (edge(mechanism, 1.0), 0.0))
        pairs += pairs_of(name, mechanism, edges=(used, zeroed))
    levels = priced.vocabulary(budget, ZERO_OUT)
    others = np.ones(levels.n_vectors)
    used, zeroed = (np.append(own, others[1:])[:, None] for own in (1.0, 0.0))

    def read(mechanism: Mechanism, noise: Noise, vectors: Vectors) -> list[float]:
        return [float(mechanism.start(noise).release(vectors, 1.0)[0])]

    return [*pairs, *pairs_of("Vocabulary, zero-out", levels, read, edges=(used, zeroed))]


def _acute_clip(budget: Budget) -> list[Pair]:
    """A user whose rows are all along one axis, or along another: matrices at a right angle; or it has none.

    What is seen is how much more there is of the one than of the other.
    """
    mechanism, axes = priced.clip(budget, acute=True), np.eye(2)
    users = UserData(FAR * axes, np.zeros(2), np.arange(3))
    gradient = MeanGradient(losses.squared, np.ones(2), axes, row_weights=RowWeights(axes, 4 * FAR))
    statistics: dict[str, Statistic] = {
        "acute vectors": MomentShape(axes),
        "curvature matrices": CurvatureMatrix(gradient, _NO_TRACE, 1.0),
        "squares of gradients": GradientSquare(gradient, _NO_TRACE),
        "squares of means": CentredSquares(CentredMean(np.zeros(2), 1.0)),
    }

    def read(mechanism: Mechanism, noise: Noise, vectors: Vectors) -> list[float]:
        first, second, passed = play_mechanism(mechanism, vectors, noise)
        return [first - second, passed]

    pairs = []
    for what, statistic in statistics.items():
        vectors = statistic(users, np.arange(2), 2)
        vectors = vectors[:, [0, 1 if vectors.shape[1] == 2 else 2]]  # of a matrix, its upper triangle, the diagonal
        one, other, missing = (np.vstack([own, np.zeros(2)]) for own in (*vectors, np.zeros(2)))
        pairs += pairs_of(f"Clip, {what}", mechanism, read, edges=(one, other), missing=(one, missing))
    return pairs


def _quantile_counts(budget: Budget) -> list[Pair]:
    """A user whose targets are all below what is predicted, or all above; or who has none. Counts of the median."""
    problem = Problem(losses.quantile(0.5), Ball(1.0), 1, 1.0, target_bound=1.0, intercept=True)
    request = next(Counts(problem, problem.start, "", 1.0).at(0.0))
    users = UserData(np.ones((2, 1)), np.array([-1.0, 1.0]), np.array([0, 1, 2, 2, 2]))
    vectors = request.statistic(users, np.arange(4), 4)
    below, above, missing = (vectors[[user, 3]] for user in range(3))

    def read(mechanism: Mechanism, noise: Noise, vectors: Vectors) -> list[float]:
        return [float(mechanism.start(noise).release(vectors, request.radius)[0])]

    attacks: dict[str, Any] = {"edges": (below, above), "missing": (below, missing)}
    return pairs_of("Clip, counts of a quantile", priced.clip(budget), read, **attacks)


def _vocabulary(budget: Budget) -> list[Pair]:
    """A user who has the one or the other of two levels that many have; or one that nobody else has.

    What is seen is how much more there is of the one level than of the other, and whether a third is there.
    """
    mechanism = priced.vocabulary(budget)
    others = np.arange(mechanism.n_vectors) % 2 + 1.0
    one, other, rare = (np.append(own, others[1:])[:, None] for own in (1.0, 2.0, 3.0))

    def read(mechanism: Mechanism, noise: Noise, vectors: Vectors) -> list[float]:
        released = mechanism.start(noise).release(vectors, 1.0).reshape(-1, 2)
        counts = {1.0: 0.0, 2.0: 0.0, 3.0: 0.0} | {float(level): float(count) for count, level in released}
        return [counts[1.0] - counts[2.0], float(counts[3.0] > 0)]

    return pairs_of("Vocabulary", mechanism, read, edges=(one, other), missing=(one, rare))


def sampled_pairs(name: str, mechanism: Mechanism) -> list[Pair]:
    """A user within the radius and one beyond it, who is asked or not; all numbers that are released are seen."""
    one, beyond, missing = (_others(mechanism, own) for own in (WITHIN, -FAR, math.nan))

    def read(mechanism: Mechanism, noise: Noise, vectors: Vectors) -> list[float]:
        return play_mechanism(mechanism, vectors, noise)

    return pairs_of(name, mechanism, read, edges=(one, beyond), missing=(one, missing))


def _radius_pairs(budget: Budget) -> list[Pair]:
    """The h-index is the same at every radius, and one less if the user is missing."""
    pairs = []
    for n_radii in (2, 8):
        search = priced.radius_search(budget, n_radii)
        # One probe: reaching the target is rare, and reveals more. Several: each is as good as a coin.
        below = round(1.5 * search.noise_std) if search.probes == 1 else 0
        missing = search.n_vectors - search.target + below
        one, other = (_others(search, own, far=missing) for own in (0.0, math.nan))
        pairs += pairs_of(f"RadiusSearch, {search.probes} probes", search, flips=(one, other))
    return [replace(pair, weight=1.0) for pair in pairs]


def _gate_pairs(budget: Budget) -> list[Pair]:
    """Tests by themselves, on values that differ by one."""
    epsilon, multiplier = budget.epsilon, priced.gaussian(budget)

    def once(noise: Noise, version: int) -> list[float]:
        return [float(AboveThresholdOnce(1, 1 / epsilon, noise).passes(0 - version))]

    def gaussian(noise: Noise, version: int) -> list[float]:
        # Two deviations above the value: the rarer a pass is, the more it reveals of epsilon at a small delta.
        threshold = math.ceil(1.3 * multiplier)
        return [float(GaussianTest(threshold, multiplier, 1, noise).passes(-version))]

    def stream(noise: Noise, version: int) -> list[float]:
        # Passing again and again says that the threshold's noise is low; aborting then says that the last value is.
        gate, passed, values = AboveThreshold(1, 4 / epsilon, noise), 0, [version] * 4 + [1 - version]
        while passed < len(values) and gate.passes(values[passed]):
            passed += 1
        return [float(passed)]

    return [
        Pair("AboveThresholdOnce", "calibrated", "flips", Cost(pure=(epsilon,)), once, 2.0),
        Pair("GaussianTest", "calibrated", "flips", Cost(gaussian=1 / multiplier**2), gaussian, 2.0),
        Pair("AboveThreshold", "calibrated", "flips", Cost(pure=(epsilon,)), stream, 4.0),
    ]
