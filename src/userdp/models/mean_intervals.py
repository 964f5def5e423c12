"""Means with standard errors: released around where they lie, with how much users differ.

1. `location`: mean and radius as `private_mean` finds them, for a small part of the budget.
2. `sizes`, with it, unless one width is public: how many users are how far from there. The clip is at a length that a
   normal quantity hardly ever exceeds, or farther, where more users are beyond than noise explains.
3. `mean`: the mean of users' differences from there, clipped at this length. Nobody is left out, as the first release
   leaves out those who are far from the others.
4. `spread`: the mean of the squares of users' differences from that mean, feature by feature.

The variance of the mean is that of its noise, which is known, what the clip may have cost, by how many are seen beyond,
and the mean square over the number of users. Its own noise is known, too: intervals are Student's, of as many degrees
as give that uncertainty. There are none if people are seen who are so far out that no clip would do.

docs/intervals.md has the coverage that was measured, docs/proofs.md, section 31, what is proven.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from userdp.privacy.accounting import Budget, BudgetExceeded, Cost, gaussian_multiplier, least_enough
from userdp.privacy.curator import Curator
from userdp.privacy.mechanisms.clip import Clip
from userdp.privacy.mechanisms.outlier_removal import OutlierRemoval
from userdp.privacy.plan import Plan, Step
from userdp.statistics.moments import UserMean
from userdp.statistics.spreads import CentredMean, CentredSize, CentredSquares

LOCATION, SIZES, MEAN, SPREAD = "location", "sizes", "mean", "spread"
DEFAULT_FRACTION = 0.1  # of the budget, for the spread
_LOCATION_PARTS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)  # of the budget: the first that will do
_ASKED = 4000  # users who locate the mean, or 4, 16, ... times as many, as its noise wants: pairs of them are compared
_OFF = 0.25  # how far, in radii, noise may put the location off
_SIZES = 0.2  # of the mean's part, for how many are how far
_EDGES = (1.0, 2.0, 4.0, 8.0, 16.0)  # lengths that users are counted between, in usual lengths to clip at
_SEEN, _RISE = 1.5, 0.5  # deviations of noise from which on users beyond the first edge count; more at each further one
_HIDDEN = 0.5  # of a deviation of noise: so many more are taken to be beyond a clip that was made wider
_OVER = 1.4  # by how much a clip is at least wider than the edge beyond which users are seen
_USUAL = 4.0  # length to clip at in standard deviations of a feature, about, beside sqrt(2 n_features)
_ROOM, _ROOM_NOISE = 4.0, 0.05  # most times that, and the variance of noise / of sampling up to which there is room
_LEFT_OUT = 2.0  # lengths to clip at beyond which users are left out, where there are no intervals
_SHORT = 0.5  # mean fraction of the clip's length that a clipped difference may have lost
_MOST_NOISE, _MOST_ROUGH = 0.5, 1.0  # of a mean, in standard deviations of users; relative error of a variance
_FEWEST = 100  # users whose mean counts as normal


@dataclass(frozen=True, eq=False)
class MeanErrors:
    """Variances of a mean's features by noise and by sampling; the noise (std) of the latter."""

    noise: np.ndarray
    sampling: np.ndarray
    sampling_noise: np.ndarray

    @property
    def std_err(self) -> np.ndarray:
        return np.asarray(np.sqrt(self.noise + self.sampling))

    @property
    def freedom(self) -> np.ndarray:
        """Degrees of freedom with which a variance would be as uncertain (Satterthwaite): 2 (variance / its std)^2."""
        return np.asarray(2 * ((self.noise + self.sampling) / self.sampling_noise) ** 2)


@dataclass(frozen=True)
class Clipped:
    """Where differences are clipped; the fraction of users who are taken to be beyond; most; and those far too far.

    No clip keeps the last, `lost`, for less noise than is of any use: what they do to the mean is not known.
    """

    reach: float
    beyond: float = 0.0
    at_most: float = 0.0
    lost: float = 0.0

    @property
    def message(self) -> str:
        """What is to be said if there are no intervals, or an empty text."""
        if not self.lost:
            return ""
        return (
            f"There are no standard errors: about {self.lost:.2g} of the users are so far from the others that their "
            f"mean cannot be told, and count as if they were {self.reach:.4g} away. Cut values off at a public range "
            "and pass its width twice, as in spread=(30, 30), or leave inference out: then those are left out."
        )

    @property
    def note(self) -> str:
        """The same of intervals that there are."""
        if not self.at_most:
            return ""
        return (
            f"People farther than {self.reach:.4g} from the others' mean, at most {self.at_most:.2g} of them, count as "
            "if they were so far."
        )


@dataclass(frozen=True, eq=False)
class LocatedMean:
    """A mean, the std of its noise, the radius that was found, errors unless there are none, and what was clipped."""

    mean: np.ndarray
    noise_std: float
    radius: float
    errors: MeanErrors | None
    clipped: Clipped


@dataclass(frozen=True)
class MeanSteps:
    """The releases of the module, of all users."""

    location: OutlierRemoval
    mean: Clip
    spread: Clip | None = None
    sizes: Clip | None = None

    @staticmethod
    def of(n_users: int, mu_squared: float, fraction: float | None, location: OutlierRemoval) -> MeanSteps:
        """Those that together cost this mu^2, a fraction of it for the spread, beside the location.

        Without a fraction it is the mean alone.
        """
        if fraction is None:
            return MeanSteps(location, Clip(n_users, 1 / math.sqrt(mu_squared)))
        left = (1 - fraction) * mu_squared
        sizes = None
        if location.probes > 1:  # else one width is public, which nobody exceeds
            sizes = Clip(n_users, 1 / math.sqrt(_SIZES * left), acute=True)
            left = (1 - _SIZES) * left
        spread = Clip(n_users, 1 / math.sqrt(fraction * mu_squared), acute=True)
        return MeanSteps(location, Clip(n_users, 1 / math.sqrt(left)), spread, sizes)

    @property
    def plan(self) -> Plan:
        found = {LOCATION: self.location, SIZES: self.sizes, MEAN: self.mean, SPREAD: self.spread}
        steps = (Step(label, 0, one.n_vectors, one) for label, one in found.items() if one is not None)
        return Plan(self.mean.n_vectors, tuple(steps))

    def tells_nothing(self, n_features: int) -> bool:
        """Whether users are too few, or noise hides means or variances, if these are in standard deviations of users"""
        assert self.spread is not None
        reach = self.reach(n_features)
        noise, sampling_noise = self.mean.noise_std(reach, n_features), self.spread.noise_std(reach**2, n_features)
        rough = sampling_noise / (1 + self.mean.n_vectors * noise**2) > _MOST_ROUGH
        return rough or noise > _MOST_NOISE or self.mean.n_vectors < _FEWEST

    def reach(self, n_features: int) -> float:
        """Where to clip, in standard deviations, about.

        For intervals it is farther where the noise of that is little beside sampling.
        """
        usual = _USUAL + math.sqrt(2 * n_features)
        if self.spread is None:
            return usual
        noise = self.mean.noise_std(usual, n_features)
        return usual * min(_ROOM, max(1.0, math.sqrt(_ROOM_NOISE / self.mean.n_vectors) / noise))

    def located_mean(self, curator: Curator, n_features: int, longest: float) -> LocatedMean:
        """The mean around a location that is found first; nobody is farther than `longest`."""
        located = curator.release(LOCATION, UserMean(), 1.0)
        centre, radius = located[:-1], float(located[-1])
        far = self.reach(n_features) / usual_radius(self.location, n_features)
        clipped = Clipped(max(radius, min(far * radius, longest)))
        if self.sizes is not None:
            clipped = self._clipped(curator, self.sizes, centre, clipped.reach, longest)
        farthest = _LEFT_OUT if self.spread is None else math.inf
        moved = curator.release(MEAN, CentredMean(centre, clipped.reach, farthest), 1.0)
        noise_std = clipped.reach * self.mean.noise_std(1.0, n_features)
        mean, errors = centre + clipped.reach * moved, None
        if self.spread is not None and not clipped.lost:
            cut = _SHORT * clipped.reach * clipped.beyond
            errors = self.errors(curator, mean, clipped.reach, math.hypot(noise_std, cut))
        return LocatedMean(mean, noise_std, radius, errors, clipped)

    @staticmethod
    def _clipped(curator: Curator, sizes: Clip, centre: np.ndarray, usual: float, longest: float) -> Clipped:
        """Where to clip: at the usual length, or beyond the edges that more users exceed than noise explains.

        Of lengths with a long tail, whose square's mean just exists, as many exceed what is chosen as noise hides.
        """
        edges = np.minimum(_EDGES, max(1.0, longest / usual))
        released = curator.release(SIZES, CentredSize(CentredMean(centre, usual), tuple(edges.tolist())), 1.0)
        size, above = released.size, np.arange(edges.size, 0, -1)
        fractions = released + (1 - released.sum()) / size  # which add up to 1
        beyond = np.cumsum(fractions[:0:-1])[::-1]
        noise = sizes.noise_std(1.0, size) * np.sqrt(above * (size - above) / size)
        seen = (_SEEN + _RISE * np.arange(edges.size)) * noise
        lost = float(beyond[-1]) if beyond[-1] > seen[-1] else 0.0
        beyond = beyond - lost
        first = int(np.argmax(beyond <= seen))
        reach, told = float(edges[first]), max(0.0, float(beyond[first]))
        at_most = told + 2 * float(noise[first])
        if first > 0:
            told += _HIDDEN * float(noise[first])
            reach = min(reach, _OVER * float(edges[first - 1] * np.sqrt(beyond[first - 1] / seen[first - 1])))
        return Clipped(reach * usual, told, at_most, lost)

    def errors(self, curator: Curator, mean: np.ndarray, reach: float, noise_std: float) -> MeanErrors:
        """Errors of a mean with such noise, of squares of differences that are clipped at this length."""
        assert self.spread is not None
        squares, scale = (
            curator.release(SPREAD, CentredSquares(CentredMean(mean, reach)), 1.0),
            reach**2 / self.mean.n_vectors,
        )
        sampling_noise = np.full(mean.size, self.spread.noise_std(1.0, mean.size) * scale)
        return MeanErrors(np.full(mean.size, noise_std**2), np.maximum(squares, 0.0) * scale, sampling_noise)


def mu_squared_of(budget: Budget, failure: float = 0.0) -> float:
    """mu^2 of Gaussian differential privacy that a budget has beside failures, less rounding."""
    if budget.delta == 0:
        raise BudgetExceeded("Expected delta > 0: the noise of means is Gaussian. Nothing was spent.")
    return float((1 - 1e-9) / gaussian_multiplier(budget, 1, Cost(failure=failure)) ** 2)


def usual_radius(location: OutlierRemoval, n_features: int) -> float:
    """What is found, in a feature's standard deviations, about: a radius that all but a public fraction keep to."""
    outside = 1 - location.threshold / location.n_vectors
    return math.sqrt(2 * n_features) - math.sqrt(2) - 2 * float(ndtri(outside / 2))


def located_steps(
    n_users: int,
    n_features: int,
    mu_squared: float,
    fraction: float | None,
    locate: Callable[[int, float], OutlierRemoval | None],
) -> MeanSteps | None:
    """Steps of this mu^2 around a location that `locate` plans for a part of it; None if users are too few."""
    sizes = [_ASKED * 4**k for k in range(20) if _ASKED * 4**k < n_users]
    for part, asked in itertools.product(_LOCATION_PARTS, [*sizes, n_users]):
        found = locate(asked, part)
        if found is not None and found.noise_std(math.sqrt(n_features), n_features) <= _OFF:
            return MeanSteps.of(n_users, (1 - part) * mu_squared, fraction, found)
    return None


def plan_located(
    n_users: int,
    n_features: int,
    budget: Budget,
    fraction: float,
    failure: float,
    locate: Callable[[int, float], OutlierRemoval | None],
) -> MeanSteps:
    """Steps for a mean with intervals; `locate` plans a location for a part of the budget, which fails so rarely.

    Refuses users who are too few, before anything is spent, with a number that would do.
    """
    mu_squared = mu_squared_of(budget, failure)

    def planned(n_users: int) -> MeanSteps | None:
        steps = located_steps(n_users, n_features, mu_squared, fraction, locate)
        return None if steps is None or steps.tells_nothing(n_features) else steps

    steps = planned(n_users)
    if steps is not None:
        return steps
    more = least_enough(lambda n: planned(n) is not None, n_users)
    remedy = "far more users" if more is None else f"about {more:,} users would do"
    raise BudgetExceeded(
        f"Expected more than n_users={n_users} for standard errors of {n_features} means at "
        f"epsilon={budget.epsilon:g}, delta={budget.delta:g}: {remedy}, or a larger epsilon, or leave inference out. "
        "Nothing was spent.",
        enough_users=more,
    )
