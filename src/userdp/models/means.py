"""The paper's mean estimator by itself: outliers removed, a private test, noise in proportion to users' distances."""

from __future__ import annotations

import contextlib
import itertools
import math
import warnings
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.special import ndtri

from userdp.data.schema import numbers
from userdp.data.source import Source, check_purpose, column_name
from userdp.data.users import RemoteUsers, UserData
from userdp.models.intervals import Summary, fraction_of, title_of
from userdp.models.sklearn_compat import Execution, UtilityWarning, documented, unit_word
from userdp.paper.outlier_removal import OutlierRemoval, radius_grid
from userdp.privacy.accounting import (
    REPLACE_ONE,
    Budget,
    BudgetExceeded,
    Cost,
    budget_for,
    gaussian_multiplier,
    least_enough,
)
from userdp.privacy.clip import Clip
from userdp.privacy.curator import Curator
from userdp.privacy.ledger import Ledger
from userdp.privacy.plan import Plan, Step
from userdp.privacy.statement import Statement
from userdp.solvers.planner import check_delta
from userdp.statistics.moments import UserMean
from userdp.statistics.spreads import CentredMean, CentredSize, CentredSquares

_RATIO = 1.15  # of neighbouring radii that are tried
_ENDS = (1e-30, 1e30)  # of radii that may be tried
_FAILURE_FRACTION = 0.05  # of delta
_CLEAR = 1.7  # deviations of a test's noise that are outliers' room, at least, for a location, which has little budget
_PARTS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)  # of the Gaussian budget, for tests or for a location
LOCATION, SIZES, MEAN, SPREAD = "location", "sizes", "mean", "spread"
DEFAULT_FRACTION = 0.1  # of the budget, for the spread
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
            f"mean cannot be estimated, and count as if they were {self.reach:.4g} away. Cut values off at a public "
            "range and pass its width twice, as in spread=(30, 30), or leave inference out: then those are left out."
        )

    @property
    def note(self) -> str:
        """The same of intervals that there are."""
        if not self.at_most:
            return ""
        return (
            f"Users farther than {self.reach:.4g} from the others' mean, at most {self.at_most:.2g} of them, count as "
            "if they were so far."
        )


@dataclass(frozen=True, eq=False)
class MeanResult:
    """A private mean. All of it may be shown.

    mean: one number per feature; noise_std: of the noise in each of them; radius: within which most users' means are of
    each other (found privately); privacy: what was guaranteed and spent; purpose and source: what it is for and
    of which columns, as far as that was said. With `inference` also `std_err`, `conf_int()` and `summary()`, made of
    `errors`, and `clipped`: at which distance users' means were clipped, and how many that may be.
    """

    mean: np.ndarray
    noise_std: float
    radius: float
    privacy: Statement
    purpose: str = ""
    source: Source = field(default_factory=Source)
    errors: MeanErrors | None = None
    names: tuple[str, ...] = ()
    clipped: Clipped | None = None

    @property
    def std_err(self) -> np.ndarray:
        """The standard error of each feature's mean: privacy's noise, and who was sampled."""
        errors = self._known_errors(AttributeError)
        return np.asarray(np.sqrt(errors.noise + errors.sampling))

    def conf_int(self, level: float = 0.95) -> np.ndarray:
        """Confidence intervals: a row (low, high) for each feature's mean, over all users there could be.

        Each user counts once. Post-processing of the release: it costs no budget.
        """
        return self.summary(level).conf_int

    def summary(self, level: float = 0.95) -> Summary:
        """A table of means, standard errors, z, intervals, and which part of the variance is privacy's noise."""
        errors, title = self._known_errors(ValueError), title_of("private_mean", self.privacy)
        names = self.names or [f"x{k}" for k in range(len(self.mean))]
        # Degrees of freedom with which a variance would be as uncertain (Satterthwaite).
        freedom = 2 * ((errors.noise + errors.sampling) / errors.sampling_noise) ** 2
        told = {"what": "mean", "freedom": freedom, "note": "" if self.clipped is None else self.clipped.note}
        return Summary.of(names, self.mean, errors.noise, errors.sampling, level, title, **told)

    def _known_errors(self, refusal: type[Exception]) -> MeanErrors:
        if self.errors is None:
            why_none = "" if self.clipped is None else self.clipped.message
            raise refusal(
                why_none
                or "Expected a mean with inference=True: standard errors are part of the plan, and cannot be had "
                "afterwards."
            )
        return self.errors


@documented(
    X="An array with a number or a vector per row, or a table; lists are refused, because they do not declare which.",
    groups="The user id of each row; range(len(X)) if every row is another user's.",
    spread="Between which distances of users the typical one is searched for; public.",
    outliers="The fraction of users that may be far from the others.",
    inference="True for standard errors and intervals (`summary()`, `conf_int()`, `std_err` of the result), for a "
    "tenth of the budget; or the part of it that they get. Refused for too few users, before anything is charged.",
)
@np.errstate(all="ignore")
def private_mean(
    X: Any,
    groups: Any,
    epsilon: float,
    delta: float | None = None,
    *,
    spread: tuple[float, float] = (1e-9, 1e9),
    outliers: float = 0.01,
    inference: bool | float = False,
    max_rows_per_user: int | None = None,
    ledger: Ledger | None = None,
    execution: Execution | None = None,
    insecure_seed: int | None = None,
    purpose: str = "",
    neighbours: str = REPLACE_ONE,
    unit: str | None = None,
) -> MeanResult:
    """The mean of the users' means of their rows, private for whole users; every user counts the same.

    No bound on the values is needed: noise is proportional to how far users are apart, which is searched for privately
    between spread[0] and spread[1] (public, and cheap: a wide range costs a few percent of noise). A small part of the
    budget finds where the mean lies; the rest releases the mean of everyone's differences from there. Those beyond a
    length, about 5 standard deviations of a single normal quantity, count as if they were at that length, and those
    beyond twice that, or with missing values, as if they were at the mean. Raises `Aborted` if more than the fraction
    `outliers` of the users are far from the others; too few users for that are averaged at once, without those who are
    far. Clipping pulls the mean of a skewed quantity towards the bulk, by many `noise_std` maybe (docs/measurements.md
    has an example). Where a range is public, cut values off at its ends and pass its width twice: with spread=(30, 30)
    nobody within 0 to 30 is clipped, for more noise.

    With `inference` users at any distance count, the length is up to 16 times as long where users are seen beyond it,
    and what the clip may have cost is added to the variance; noise is more. A warning says if there are no intervals
    because users are beyond any such length. docs/intervals.md says what intervals cover.

    Features share one noise level: scale them to similar sizes (`userdp.PublicScaler`). Of values that are millions of
    times larger than their differences take off a public number.

    Guarantee: the result is (epsilon, delta)-differentially private for `neighbours`: one user's whole data is
    replaced, or with "zero-out" adds nothing.
    Paper: Alg. 1, lines 10-22 of one phase, calibrated.

    >>> rng = np.random.default_rng(0)
    >>> users = np.repeat(np.arange(3000), 10)
    >>> result = private_mean(rng.normal(5.0, 1.0, 30_000), users, epsilon=1.0, delta=1e-6)
    >>> bool(abs(result.mean[0] - 5.0) < 0.1)
    True
    """
    if groups is None:
        raise ValueError(
            "Expected groups, the user id of each row: pass range(len(X)) only if every row is another user's. "
            "Nothing was spent."
        )
    budget_for(epsilon, delta, 1, neighbours)  # refuses what makes no sense, before anything is read
    engine = Execution.of(execution).without("private_mean", "checkpoint").engine
    fraction = fraction_of(inference, DEFAULT_FRACTION)
    check_purpose(purpose)
    names = column_names(X)
    source = replace(Source.of(users=groups), columns=", ".join(names) or None)
    data = UserData.from_arrays(
        numbers("X", X)[:, None] if getattr(X, "ndim", 0) == 1 else X,
        None,
        groups,
        max_rows_per_user=max_rows_per_user,
        insecure_seed=insecure_seed,
    )
    budget = budget_for(epsilon, delta, data.n_users, neighbours)
    check_delta(budget, data.n_users, insecure_seed)
    entry = source.entry(purpose, "private_mean")
    run: dict[str, Any] = {"ledger": ledger, "engine": engine, "insecure_seed": insecure_seed, "purpose": entry}
    run["unit"] = unit_word("user", unit)
    found = mean_of_users(data, budget, spread, outliers, fraction, **run)
    return replace(found, purpose=purpose, source=source, names=names)


def column_names(X: Any) -> tuple[str, ...]:
    """The names of a table's columns, or of one column; none where they are no text."""
    for names in (getattr(X, "columns", ()), getattr(X, "column_names", ())):  # the first is arrays, of pyarrow
        listed = tuple(names)
        if listed and all(isinstance(name, str) for name in listed):
            return listed
    one = column_name(X)
    return () if one is None else (one,)


def mean_of_users(
    data: UserData | RemoteUsers,
    budget: Budget,
    spread: tuple[float, float] = (1e-9, 1e9),
    outliers: float = 0.01,
    fraction: float | None = None,
    ledger: Ledger | None = None,
    purpose: str = "private_mean",
    **run: Any,
) -> MeanResult:
    """The same of data that is grouped already; fraction: of the budget, for standard errors; run: see `Curator`."""
    if not (isinstance(outliers, int | float | np.number) and 0 <= outliers < 0.4):
        raise ValueError(f"Expected 0 <= outliers={outliers!r} < 0.4: a fraction of the users. Nothing was spent.")
    n_users, d = data.n_users, data.n_features
    ends = spread if isinstance(spread, tuple | list | np.ndarray) else ()
    known = len(ends) == 2 and all(isinstance(end, int | float | np.number) for end in ends)
    if not (known and _ENDS[0] <= float(ends[0]) <= float(ends[1]) <= _ENDS[1]):
        raise ValueError(
            f"Expected two public distances of users, the smaller one first, between {_ENDS[0]:g} and {_ENDS[1]:g}, "
            f"such as spread=(1e-9, 1e9), got {spread!r}: scale values to a usual size. Nothing was spent."
        )
    radii = radius_grid(float(ends[0]), float(ends[1]), _RATIO)
    planned: OutlierRemoval | MeanSteps = (
        plan_plain(n_users, d, budget, radii, outliers)
        if fraction is None
        else plan_intervals(n_users, d, budget, radii, outliers, fraction)
    )
    plan = planned.plan if isinstance(planned, MeanSteps) else Plan(n_users, (Step(MEAN, 0, n_users, planned),))
    curator = Curator(data, plan, ledger or Ledger(budget), budget=budget, purpose=purpose, **run)
    if isinstance(planned, OutlierRemoval):
        released = curator.release(MEAN, UserMean(), 1.0)
        mean, radius = released[:-1], float(released[-1])
        return MeanResult(mean, planned.noise_std(radius, d), radius, curator.statement())
    mean, noise_std, radius, errors, clipped = planned.located_mean(curator, d, spread[1])
    if clipped.message:
        with contextlib.suppress(UtilityWarning):  # where warnings are errors: what was paid for is not lost
            warnings.warn(clipped.message, UtilityWarning, stacklevel=3)
    told = None if fraction is None else clipped
    return MeanResult(mean, noise_std, radius, curator.statement(), errors=errors, clipped=told)


@dataclass(frozen=True)
class MeanSteps:
    """The releases of a mean, of all users.

    1. `location`: mean and radius by the paper's estimator, for a small part of the budget.
    2. `sizes`, for standard errors unless one width is public: how many users are how far from there. The clip is at a
       length that a normal quantity hardly ever exceeds, or farther, where more users are beyond than noise explains.
    3. `mean`: the mean of users' differences from there, clipped at this length. Nobody is left out, as the first
       release leaves out those who are far from the others.
    4. `spread`, for standard errors: the mean of the squares of users' differences from that mean, feature by feature.

    The variance of the mean is that of its noise, which is known, what the clip may have cost, by how many are seen
    beyond, and the mean square over the number of users. Its own noise is known, too: intervals are Student's, of as
    many degrees as give that uncertainty. There are none if outlying users are seen for whom no clip would do.
    docs/intervals.md has the coverage that was measured, docs/proofs.md, section 31, what is proven.
    """

    location: OutlierRemoval
    mean: Clip
    spread: Clip | None = None
    sizes: Clip | None = None

    @staticmethod
    def of(n_users: int, mu_squared: float, fraction: float | None, location: OutlierRemoval) -> MeanSteps:
        """Those that together cost this mu^2, a fraction of it for the spread, beside the location.

        Without a fraction it is the mean alone. All are for the location's relation of neighbours.
        """

        def clip(mu_squared: float, acute: bool = False) -> Clip:
            return Clip(n_users, 1 / math.sqrt(mu_squared), acute=acute, neighbours=location.neighbours)

        if fraction is None:
            return MeanSteps(location, clip(mu_squared))
        left = (1 - fraction) * mu_squared
        sizes = None
        if location.probes > 1:  # else one width is public, which nobody exceeds
            sizes = clip(_SIZES * left, acute=True)
            left = (1 - _SIZES) * left
        return MeanSteps(location, clip(left), clip(fraction * mu_squared, acute=True), sizes)

    @property
    def plan(self) -> Plan:
        found = {LOCATION: self.location, SIZES: self.sizes, MEAN: self.mean, SPREAD: self.spread}
        steps = (Step(label, 0, one.n_vectors, one) for label, one in found.items() if one is not None)
        return Plan(self.mean.n_vectors, tuple(steps))

    def reach(self, n_features: int) -> float:
        """Where to clip, in standard deviations, about.

        For intervals it is farther where the noise of that is little beside sampling.
        """
        usual = _USUAL + math.sqrt(2 * n_features)
        if self.spread is None:
            return usual
        noise = self.mean.noise_std(usual, n_features)
        return usual * min(_ROOM, max(1.0, math.sqrt(_ROOM_NOISE / self.mean.n_vectors) / noise))

    def located_mean(
        self, curator: Curator, n_features: int, longest: float
    ) -> tuple[np.ndarray, float, float, MeanErrors | None, Clipped]:
        """The mean around a location that is found first, its noise, the radius found, errors, and what was clipped.

        Nobody is farther than `longest`. There are errors only if they were planned, and nobody is beyond any clip.
        """
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
            squares = curator.release(SPREAD, CentredSquares(CentredMean(mean, clipped.reach)), 1.0)
            noise = np.full(n_features, math.hypot(noise_std, _SHORT * clipped.reach * clipped.beyond) ** 2)
            scale = clipped.reach**2 / self.mean.n_vectors
            sampling_noise = np.full(n_features, self.spread.noise_std(1.0, n_features) * scale)
            errors = MeanErrors(noise, np.maximum(squares, 0.0) * scale, sampling_noise)
        return mean, noise_std, radius, errors, clipped

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


def mu_squared_of(budget: Budget, failure: float = 0.0) -> float:
    """mu^2 of Gaussian differential privacy that a budget has beside failures, less rounding."""
    if budget.delta == 0:
        raise BudgetExceeded("Expected delta > 0: the noise of means is Gaussian. Nothing was spent.")
    return float((1 - 1e-9) / gaussian_multiplier(budget, 1, Cost(failure=failure)) ** 2)


def usual_radius(location: OutlierRemoval, n_features: int) -> float:
    """What is found, in a feature's standard deviations, about: a radius that all but a public fraction keep to."""
    outside = 1 - location.threshold / location.n_vectors
    return math.sqrt(2 * n_features) - math.sqrt(2) - 2 * float(ndtri(outside / 2))


def plan_plain(
    n_users: int, n_features: int, budget: Budget, radii: tuple[float, ...], outliers: float
) -> MeanSteps | OutlierRemoval:
    """A mean around a location; where users are too few for two steps, one of those who are near each other."""
    located = located_steps(n_users, n_features, budget, radii, outliers, None) if budget.delta > 0 else None
    return located or plan_mean(n_users, budget, radii, outliers)


def plan_intervals(
    n_users: int, n_features: int, budget: Budget, radii: tuple[float, ...], outliers: float, fraction: float
) -> MeanSteps:
    """A mean with standard errors, for a fraction of the budget.

    Refuses users who are too few, before anything is spent, with a number that would do.
    """

    def planned(n_users: int) -> MeanSteps | None:
        """None if users are too few, or noise hides means or variances, in standard deviations of users."""
        steps = located_steps(n_users, n_features, budget, radii, outliers, fraction)
        if steps is None or steps.spread is None or n_users < _FEWEST:
            return None
        reach = steps.reach(n_features)
        noise, sampling_noise = steps.mean.noise_std(reach, n_features), steps.spread.noise_std(reach**2, n_features)
        rough = sampling_noise / (1 + n_users * noise**2) > _MOST_ROUGH
        return None if rough or noise > _MOST_NOISE else steps

    steps = planned(n_users)
    if steps is not None:
        return steps
    enough = least_enough(lambda n: planned(n) is not None, n_users)
    remedy = f"about {enough:,} users would do" if enough else "far more users"
    raise BudgetExceeded(
        f"Expected more than n_users={n_users} for standard errors of {n_features} means at "
        f"epsilon={budget.epsilon:g}, delta={budget.delta:g}: {remedy}, or a larger epsilon, or leave inference out. "
        "Nothing was spent.",
        enough_users=enough,
    )


def located_steps(
    n_users: int,
    n_features: int,
    budget: Budget,
    radii: tuple[float, ...],
    outliers: float,
    fraction: float | None,
) -> MeanSteps | None:
    """Steps that cost the budget, the location the least part that will do; None if users are too few."""
    mu_squared = mu_squared_of(budget, _FAILURE_FRACTION * budget.delta)
    sizes = [_ASKED * 4**k for k in range(20) if _ASKED * 4**k < n_users]
    for part, asked in itertools.product(_PARTS, [*sizes, n_users]):
        found = _best(asked, budget, radii, outliers, part, _CLEAR)
        if found is not None and found.noise_std(math.sqrt(n_features), n_features) <= _OFF:
            return MeanSteps.of(n_users, (1 - part) * mu_squared, fraction, found)
    return None


def plan_mean(n_users: int, budget: Budget, radii: tuple[float, ...], outliers: float) -> OutlierRemoval:
    """The search and release with the least noise for so many users; raises `BudgetExceeded` if they are too few."""
    found = _best(n_users, budget, radii, outliers)
    if found is not None:
        return found
    enough = least_enough(lambda n: _best(n, budget, radii, outliers) is not None, n_users)
    remedy = (
        f"about {enough:,} users would do, or a larger epsilon" if enough else "use a larger epsilon, and delta > 0"
    )
    raise BudgetExceeded(
        f"Expected more than n_users={n_users} for a private mean at epsilon={budget.epsilon:g}, "
        f"delta={budget.delta:g}, outliers={outliers:g}: {remedy}. Nothing was spent.",
        enough_users=enough,
    )


def _best(
    n_users: int, budget: Budget, radii: tuple[float, ...], outliers: float, part: float = 1.0, clear: float = 0.0
) -> OutlierRemoval | None:
    """The same for a part of the Gaussian budget; None if users are too few."""
    failure, probes = _FAILURE_FRACTION * budget.delta, math.ceil(math.log2(len(radii) + 1))
    best, least = None, math.inf
    for fraction in _PARTS:
        try:
            mu_squared = part * mu_squared_of(budget, failure)
            test_std = math.sqrt(probes / (fraction * mu_squared))
            removal = OutlierRemoval(
                n_users,
                1 / math.sqrt((1 - fraction) * mu_squared),
                None,
                failure,
                outliers=math.ceil(max(outliers * n_users, clear * test_std)),
                test_std=test_std,
                radii=radii,
                neighbours=budget.neighbours,
            )
        except ValueError:  # too little budget, or too few users, for this fraction
            continue
        noise = removal.noise_std(1.0, 1)
        if noise < least:
            best, least = removal, noise
    return best
