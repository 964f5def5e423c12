"""Where a quantile lies: private counts of how many targets predictions exceed, along the intercept.

The slope of a quantile's loss, averaged over a user's rows, is the covered fraction of these rows less the quantile: a
bounded number, whatever the targets, and one per user. Its private mean at a few intercepts shows, before any steps,
where the quantile of all targets is and how densely they lie there, which range was declared does not matter; and
after them which intercept covers what it should, where smoothing, clipping and shrinkage moved it.

Guarantee: all counts are clipped means of gradients in one direction (docs/proofs.md, sections 13 and 23).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.special import ndtri

from userdp.solvers import constants
from userdp.solvers.problem import Problem
from userdp.solvers.solver import Releases, Request
from userdp.statistics.gradients import ClippedGradient, MeanGradient

# Numbers that were chosen with benchmarks/quantile_coverage.py in view (56cf70b; docs/measurements.md, "Quantiles"); no
# experiment on a single one is known. None of them affects privacy.
_MARK = 0.05  # of the sizes that come along, over the clip: it raises noise by a thousandth (derived)
_NARROWEST = 1e-4  # targets' spread / their bound that is distinguished from none
_NEAR, _ENOUGH = 0.6, 3  # up to which part of what is beyond the quantile counts are near it; how many make a line
_FLATTEST = 0.25  # how dense targets are at least / before it is seen
_FARTHEST = 0.5  # how far the intercept moves at a time where nothing is known yet, in units of the targets' spread
# Of the advice (dc83032): what noise costs more while the quantile is looked for; the error that is worth saying.
_SEARCH, _WORTH_SAYING = 4.0, 0.015


@dataclass
class Counts:
    """Counts of covered targets less the quantile, at `weights` with some more of the intercept, each with noise."""

    problem: Problem
    weights: np.ndarray
    label: str
    ratio: float  # noise std / radius
    pure: bool = False
    seen: list[tuple[float, float]] = field(default_factory=list)  # how much more, and what is covered too much

    @property
    def std(self) -> float:
        return self.ratio * self._radius / self.jump

    @property
    def jump(self) -> float:
        """Of the slope, where the prediction exceeds the target."""
        level = self.problem.loss.level
        assert level is not None
        return self._clip / max(level, 1 - level)

    @property
    def _clip(self) -> float:
        bound = self.problem.loss.slope_bound
        assert not callable(bound)
        return bound

    @property
    def _radius(self) -> float:
        return self._clip * (1 + _MARK if self.pure else math.hypot(1, _MARK))

    def at(self, more: float) -> Releases[float]:
        """Release how much more than the quantile is covered, with this much more of the intercept."""
        last = np.zeros(self.problem.n_features)
        last[-1] = 1.0
        gradient = MeanGradient(self.problem.loss, self.weights + more * last)
        statistic = ClippedGradient(gradient, self._clip, self._clip, _MARK * self._clip, last[:, None])
        released = yield Request(self.label, statistic, self._radius)
        self.seen.append((more, float(released[0]) / self.jump))
        return self.seen[-1][1]

    def root(self) -> float:
        """Where nothing is covered too much: by a line through what is near, or before there is enough of that by the
        nearest function that never falls.
        """
        places, covered = np.array(sorted(self.seen)).T
        level = self.problem.loss.level or 0.5
        from sklearn.isotonic import IsotonicRegression  # here, because planning loads no learning library

        rising = IsotonicRegression().fit_transform(places, covered)
        near = np.abs(rising) <= _NEAR * min(level, 1 - level)  # beyond, what is covered bends towards all, or nothing
        last = min(max(int(np.searchsorted(rising, 0.0)), 1), len(rising) - 1)
        (low, high), (first, second) = rising[last - 1 : last + 1], places[last - 1 : last + 1]
        between = float(first + (-low / (high - low) if low < 0 < high else 0.5) * (second - first))
        if near.sum() < _ENOUGH or not rising[near].min() < 0 < rising[near].max():
            return between
        usual = _normal_density(level) / self.problem.typical_prediction
        off, certain = places[near] - places[near].mean(), (2 * self.std / usual) ** 2
        slope = (off @ covered[near] + certain * usual) / (off @ off + certain)
        root = float(places[near].mean() - covered[near].mean() / max(slope, _FLATTEST * usual))
        return root if places[near].min() <= root <= places[near].max() else between


def coverage_advice(problem: Problem, n_users: int, n_counts: int, ratio: float, pure: bool) -> str:
    """What to expect of coverage, where its error is not small, from public numbers; empty elsewhere.

    An estimate: noise of the counts' mean, the more the fewer of them are near the quantile, and what n users can show.
    """
    level = float(problem.loss.level or 0.5)
    std = Counts(problem, problem.start, "", ratio, pure).std
    noise = std / math.sqrt(n_counts) * (1 + _SEARCH * std / min(level, 1 - level))
    error = math.hypot(noise, math.sqrt(level * (1 - level) / n_users))
    if error < _WORTH_SAYING:
        return ""
    return (
        f"Noise is likely to move what the quantile covers: {level:g} by about {min(error, 0.5):.2g} (standard error, "
        "estimated). Have more users, a larger epsilon, or a quantile nearer to the median."
    )


@dataclass(frozen=True)
class Location:
    """Where the quantile of all targets is, and their spread there: that of normal targets as dense."""

    place: float
    spread: float
    curvature: float

    def centred(self, problem: Problem) -> Problem:
        """The problem that starts there, in units of that spread."""
        start = np.array(problem.start)
        start[-1] = self.place
        return replace(problem, warm_start=problem.domain.project(start), prediction_scale=self.spread)


def _normal_density(level: float) -> float:
    """At that quantile, of variance 1."""
    return math.exp(-0.5 * float(ndtri(level)) ** 2) / math.sqrt(2 * math.pi)


def located(problem: Problem, label: str, n_counts: int, ratio: float, pure: bool) -> Releases[Location]:
    """Halve the range of targets until what is between its ends is no more than what the quantile has on one side."""
    assert problem.target_bound is not None
    level, start = float(problem.loss.level or 0.5), problem.start
    low, high = -problem.target_bound, problem.target_bound
    if start[:-1].any():  # predictions differ by as much as targets do
        low, high = 2 * low, 2 * high
    low, high = low - start[-1], high - start[-1]
    counts, (below, above) = Counts(problem, start, label, ratio, pure), (-level, 1 - level)
    for _ in range(n_counts):
        if above - below <= max(min(level, 1 - level), constants.CLEAR * math.sqrt(2) * counts.std):
            break
        middle = (low + high) / 2
        covered = yield from counts.at(middle)
        covered = min(max(covered, below), above)
        if abs(covered) < constants.CLEAR * counts.std and above - below <= 2 * min(level, 1 - level):
            break
        low, below, high, above = (middle, covered, high, above) if covered < 0 else (low, below, middle, covered)
    mass = max(above - below, constants.CLEAR * counts.std)
    density = mass / max(high - low, _NARROWEST * problem.target_bound)
    place = low + (high - low) * min(max(-below / max(above - below, 1e-9), 0.0), 1.0)
    spread = min(max(_normal_density(level) / density, _NARROWEST * problem.target_bound), problem.target_bound)
    return Location(float(start[-1] + place), spread, counts.jump * density)


def recovered(
    problem: Problem, weights: np.ndarray, label: str, n_counts: int, ratio: float, pure: bool
) -> Releases[np.ndarray]:
    """The weights with the intercept that covers the quantile: each count is where those before expect it."""
    counts, step = Counts(problem, weights, label, ratio, pure), _FARTHEST * problem.typical_prediction
    more = 0.0
    for _ in range(n_counts):
        covered = yield from counts.at(more)
        signs = {value > 0 for _, value in counts.seen}
        if len(signs) < 2:
            more, step = more - math.copysign(step, covered), 2 * step
        else:
            more = counts.root()
    moved = weights.copy()
    moved[-1] += counts.root() if len(counts.seen) > 1 else 0.0
    return moved
