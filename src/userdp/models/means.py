"""The paper's mean estimator by itself: outliers removed, a private test, noise in proportion to users' distances."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from userdp.data.schema import numbers
from userdp.data.source import Source, check_purpose, column_name
from userdp.data.users import RemoteUsers, UserData
from userdp.models.intervals import Summary, fraction_of, title_of
from userdp.models.mean_intervals import (
    DEFAULT_FRACTION,
    Clipped,
    MeanErrors,
    MeanSteps,
    located_steps,
    mu_squared_of,
    plan_located,
)
from userdp.models.sklearn_compat import UtilityWarning, documented
from userdp.privacy.accounting import Budget, BudgetExceeded, budget_for, least_enough
from userdp.privacy.curator import Curator, Engine
from userdp.privacy.guarantee import Statement, statement
from userdp.privacy.ledger import Ledger
from userdp.privacy.mechanisms.outlier_removal import OutlierRemoval, radius_grid
from userdp.privacy.plan import Plan, Step
from userdp.solvers.planner import check_delta
from userdp.statistics.moments import UserMean

_LABEL = "mean"
_RATIO = 1.15  # of neighbouring radii that are tried
_ENDS = (1e-30, 1e30)  # of radii that may be tried
_FAILURE_FRACTION = 0.05  # of delta
_CLEAR = 1.7  # deviations of a test's noise that are outliers' room, at least, for a location, which has little budget
_TEST_FRACTIONS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)  # of the Gaussian budget


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
        return self._known_errors(AttributeError).std_err

    def conf_int(self, level: float = 0.95) -> np.ndarray:
        """Confidence intervals: a row (low, high) for each feature's mean, over all people there could be.

        Each person counts once. Post-processing of the release: it costs no budget.
        """
        return self.summary(level).conf_int

    def summary(self, level: float = 0.95) -> Summary:
        """A table of means, standard errors, z, intervals, and which part of the variance is privacy's noise."""
        errors, title = self._known_errors(ValueError), title_of("private_mean", self.privacy)
        names = self.names or [f"x{k}" for k in range(len(self.mean))]
        told = {"what": "mean", "freedom": errors.freedom, "note": "" if self.clipped is None else self.clipped.note}
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
    groups="The user id of each row; range(len(X)) if every row is somebody else's.",
    spread="Between which distances of users the typical one is searched for; public.",
    outliers="The fraction of users that may be far from the others.",
    inference="True for standard errors and intervals (`summary()`, `conf_int()`, `std_err` of the result), for a "
    "tenth of the budget; or the part of it that they get. Refused for too few users, before anything is charged.",
    purpose="What it is for, in words that may be shown to anyone: ledger and result name it, and where they are known "
    "the names of the columns of X and of the one that says who is a user.",
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
    engine: Engine | str | None = None,
    insecure_seed: int | None = None,
    purpose: str = "",
) -> MeanResult:
    """The mean of the users' means of their rows, private for whole users; every user counts the same.

    No bound on the values is needed: noise is proportional to how far users are apart, which is searched for privately
    between spread[0] and spread[1] (public, and cheap: a wide range costs a few percent of noise). A small part of the
    budget finds where the mean lies, and how far users are apart; the rest releases the mean of everyone's differences
    from there. Those beyond a length, about 5 standard deviations of a single normal quantity, count as if they were at
    that length, and those beyond twice that, or with missing values, as if they were at the mean. Raises `Aborted` if
    more than the fraction `outliers` of the users are far from the others. (Too few users for that are searched and
    averaged at once, and all who are far from the others are left out.) Clipping pulls the mean of a skewed quantity
    towards the bulk, by many `noise_std` maybe, which do not count that (docs/gallery.md has an example). Where a range
    is public, cut values off at its ends and pass its width twice: with spread=(30, 30) nobody within 0 to 30 is
    clipped, for more noise.
    With `inference` a fifth of the rest tells how many users are how far: where more are beyond the length than noise
    explains, it is up to 16 times as long, and what the clip may have cost is added to the variance; those at any
    distance count. A warning says that there are no intervals where people are beyond any such length. Intervals cover
    the mean of all people there could be, the farthest so clipped; `summary()` says at which length, and how many they
    may be; docs/intervals.md has what that costs where tails are long. Without `inference` noise is less, and so is the
    part of the farthest.
    Features share one noise level: scale them to similar sizes (`userdp.PublicScaler`).
    Values that are millions of times larger than their differences lose digits, and noise grows with that: take off a
    public number.

    Guarantee: the result is (epsilon, delta)-differentially private under replacement of one user's whole data.
    Paper: Alg. 1, lines 10-22 of one phase, calibrated.

    >>> rng = np.random.default_rng(0)
    >>> users = np.repeat(np.arange(3000), 10)
    >>> result = private_mean(rng.normal(5.0, 1.0, 30_000), users, epsilon=1.0, delta=1e-6)
    >>> bool(abs(result.mean[0] - 5.0) < 0.1)
    True
    """
    if groups is None:
        raise ValueError(
            "Expected groups, the user id of each row: pass range(len(X)) only if every row is somebody else's. "
            "Nothing was spent."
        )
    budget_for(epsilon, delta, 1)  # refuses what makes no sense, before anything is read
    fraction = fraction_of(inference, DEFAULT_FRACTION)
    check_purpose(purpose)
    source = replace(Source.of(users=groups), columns=named_columns(X))
    data = UserData.from_arrays(
        numbers("X", X)[:, None] if getattr(X, "ndim", 0) == 1 else X,
        None,
        groups,
        max_rows_per_user=max_rows_per_user,
        insecure_seed=insecure_seed,
    )
    budget = budget_for(epsilon, delta, data.n_users)
    check_delta(budget, data.n_users, insecure_seed)
    entry = source.entry(purpose, "private_mean")
    found = mean_of_users(data, budget, spread, outliers, ledger, engine, insecure_seed, entry, fraction=fraction)
    return replace(found, purpose=purpose, source=source, names=_names(X))


def named_columns(X: Any) -> str | None:
    """The names of a table's columns, or of one column; None where there are none, or they are no text."""
    return ", ".join(_names(X)) or None


def _names(X: Any) -> tuple[str, ...]:
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
    ledger: Ledger | None = None,
    engine: Engine | str | None = None,
    insecure_seed: int | None = None,
    purpose: str = "private_mean",
    unit: str = "user",
    fraction: float | None = None,
) -> MeanResult:
    """The same of data that is grouped already; fraction: of the budget, for standard errors."""
    if not (isinstance(outliers, int | float | np.number) and 0 <= outliers < 0.4):
        raise ValueError(f"Expected 0 <= outliers={outliers!r} < 0.4: a fraction of the users. Nothing was spent.")
    n_users, d = data.n_users, data.n_features
    radii = _radii(spread)
    planned: OutlierRemoval | MeanSteps
    if fraction is None:
        planned = plan_plain(n_users, d, budget, radii, outliers)
    else:
        planned = plan_intervals(n_users, d, budget, radii, outliers, fraction)
    plan = planned.plan if isinstance(planned, MeanSteps) else Plan(n_users, (Step(_LABEL, 0, n_users, planned),))
    ledger = Ledger(budget) if ledger is None else ledger
    curator = Curator(
        data, plan, ledger, budget=budget, purpose=purpose, engine=engine, insecure_seed=insecure_seed, unit=unit
    )
    seed = data.insecure_seed if insecure_seed is None else insecure_seed
    stated = partial(statement, plan, curator.budget, ledger, seed, unit)
    if isinstance(planned, MeanSteps):
        found = planned.located_mean(curator, d, spread[1])
        if found.clipped.message:
            with contextlib.suppress(UtilityWarning):  # where warnings are errors: what was paid for is not lost
                warnings.warn(found.clipped.message, UtilityWarning, stacklevel=3)
        clipped = None if fraction is None else found.clipped
        return MeanResult(found.mean, found.noise_std, found.radius, stated(), errors=found.errors, clipped=clipped)
    released = curator.release(_LABEL, UserMean(), 1.0)
    mean, radius = released[:-1], float(released[-1])
    return MeanResult(mean, planned.noise_multiplier * planned.sensitivity(radius, d), radius, stated())


def _radii(spread: Any) -> tuple[float, ...]:
    """Distances to try between two public ones."""
    ends = spread if isinstance(spread, tuple | list | np.ndarray) else ()
    if len(ends) == 2 and all(isinstance(end, int | float | np.number) for end in ends):
        smallest, largest = map(float, ends)
        if _ENDS[0] <= smallest <= largest <= _ENDS[1]:
            return radius_grid(smallest, largest, _RATIO)
    raise ValueError(
        f"Expected two public distances of users, the smaller one first, between {_ENDS[0]:g} and "
        f"{_ENDS[1]:g}, such as spread=(1e-9, 1e9), got {spread!r}: scale values to a usual size. Nothing was spent."
    )


def plan_plain(
    n_users: int, n_features: int, budget: Budget, radii: tuple[float, ...], outliers: float
) -> MeanSteps | OutlierRemoval:
    """A mean around a location; where users are too few for two steps, one of those who are near each other."""
    if budget.delta > 0:
        mu_squared = mu_squared_of(budget, _FAILURE_FRACTION * budget.delta)
        located = located_steps(n_users, n_features, mu_squared, None, _locate(budget, radii, outliers))
        if located is not None:
            return located
    return plan_mean(n_users, budget, radii, outliers)


def plan_intervals(
    n_users: int, n_features: int, budget: Budget, radii: tuple[float, ...], outliers: float, fraction: float
) -> MeanSteps:
    """A mean with standard errors, for a fraction of the budget; raises `BudgetExceeded` if users are too few."""
    failure = _FAILURE_FRACTION * budget.delta
    return plan_located(n_users, n_features, budget, fraction, failure, _locate(budget, radii, outliers))


def _locate(budget: Budget, radii: tuple[float, ...], outliers: float) -> Callable[[int, float], OutlierRemoval | None]:
    """What plans a location of so many users for a part of the budget."""
    return lambda n_users, part: _best(n_users, budget, radii, outliers, part, _CLEAR)


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
    for fraction in _TEST_FRACTIONS:
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
            )
        except ValueError:  # too little budget, or too few users, for this fraction
            continue
        noise = removal.noise_multiplier * removal.sensitivity(1.0, 1)
        if noise < least:
            best, least = removal, noise
    return best
