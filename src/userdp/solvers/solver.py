"""What all solvers have in common: plans, the one loop that carries them out, and results.

A solver is a planner, from public numbers to a `SolverPlan`, and a `Schedule`, a frozen record of public numbers whose
`releases` says what to release next and what to do with it. All that solvers see of the data are these releases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import lru_cache
from importlib import import_module
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
from scipy.special import bdtrik

from userdp._validate import check_counts
from userdp.privacy.accounting import Budget, BudgetExceeded
from userdp.privacy.curator import Curator
from userdp.privacy.mechanism import Aborted
from userdp.privacy.plan import Plan
from userdp.privacy.statement import AffectedUsers, Statement
from userdp.solvers.problem import Problem
from userdp.statistics.gradients import Statistic

T = TypeVar("T")
Progress = Callable[[str, int, int], None]  # what is released next, how many releases are done, how many there are

# Solvers whose bounds are theorems, for data within the declared bounds.
PROVEN = ("phased-sgd", "accelerated")
_RARE = 1e-9  # chance that samples take more gradients than are reported
_ABORTED = (
    "A private test failed: too many {} far from the others. The result is {}, and the budget of this run is spent. "
    "Check, most likely first: (1) are features of size about 1? Scale them by public ranges (PublicScaler), or raise "
    "row_norm; (2) are missing values filled? Rows with one are left out, and users of whom none is left count as far; "
    "(3) are the classes exactly the labels, or targets within their range? (4) is an id among the features?"
)


@dataclass(frozen=True)
class Request:
    """What a solver wants released next, in the plan's step of this label; the progress bar says `shown_as`."""

    label: str
    statistic: Statistic
    radius: float
    shown_as: str = ""


Releases: TypeAlias = Generator[Request, np.ndarray, T]  # asks for one release after the other, and gives T


@dataclass(frozen=True, eq=False)
class Uncertainty:
    """Covariance of weights: `noise` of privacy, and `sampling` of users; their sum is that of the estimate.

    Computed from releases and public numbers, so it may be shown. `gradient_noise` is the covariance that noise gave to
    the gradient which the weights were computed from, where that is known: the least that intervals have to cover.
    `shrunk` is what was taken off the estimates, which intervals are about, where noise hides them; None for nothing.
    """

    noise: np.ndarray
    sampling: np.ndarray
    gradient_noise: np.ndarray | None = None
    shrunk: np.ndarray | None = None

    @property
    def covariance(self) -> np.ndarray:
        return np.asarray(self.noise + self.sampling)

    def mapped(self, matrix: np.ndarray) -> Uncertainty:
        """That of matrix @ weights."""
        shrunk = None if self.shrunk is None else matrix @ self.shrunk
        return Uncertainty(matrix @ self.noise @ matrix.T, matrix @ self.sampling @ matrix.T, shrunk=shrunk)

    def widened(self, factor: float) -> Uncertainty:
        """The same with standard errors larger by a factor; what is added counts as noise."""
        return replace(self, noise=self.noise + (factor**2 - 1) * self.covariance)

    def to_dict(self) -> dict[str, list[Any]]:
        shrunk = {} if self.shrunk is None else {"shrunk": self.shrunk.tolist()}
        return {"noise": self.noise.tolist(), "sampling": self.sampling.tolist(), **shrunk}

    @staticmethod
    def from_dict(record: dict[str, list[Any]], size: int) -> Uncertainty:
        """Inverse of `to_dict`; refuses what no covariance of so many weights can be."""
        covariances = [np.array(record[name], dtype=np.float64) for name in ("noise", "sampling")]
        for matrix in covariances:
            if matrix.shape != (size, size) or not np.isfinite(matrix).all() or np.any(np.diag(matrix) < 0):
                raise ValueError(f"covariances of {size} weights expected")
        shrunk = np.array(record["shrunk"], dtype=np.float64) if "shrunk" in record else None
        if shrunk is not None and not (shrunk.shape == (size,) and np.isfinite(shrunk).all()):
            raise ValueError(f"{size} numbers expected")
        noise, sampling = covariances
        return Uncertainty(noise, sampling, shrunk=shrunk)


@dataclass
class Outcome:
    """What a run has found so far: this is what stands if a test fails, `stands` being what it is in words."""

    weights: np.ndarray
    bound: float
    phases: list[dict[str, float]] = field(default_factory=list)
    stands: str = "the start"
    message: str = ""
    aborted: bool = False
    uncertainty: Uncertainty | None = None
    target_fraction: float = math.nan
    weight_errors: np.ndarray | None = None
    signal: float = math.nan
    total_error: float = math.nan
    affected_users: AffectedUsers | None = None


@dataclass(frozen=True)
class Phase:
    """Public numbers of a phase: some steps on the same users.

    radius: what theory expects two vectors to be apart, or where the solver clips; noise_ratio: noise std / radius
    used; sampling_probability: of each user in a step.
    """

    label: str
    n_users: int
    radius: float
    noise_ratio: float
    _: KW_ONLY
    n_steps: int = 1
    step_size: float = math.nan
    sampling_probability: float = 1.0

    @property
    def users_a_step(self) -> float:
        return self.sampling_probability * self.n_users

    def summary(self, radius: float, **numbers: float) -> dict[str, float]:
        """The phase in numbers: the radius it used, and the solver's own ones."""
        radii = {"expected_radius": self.radius, "radius": radius, "noise_std": self.noise_ratio * radius}
        return {"users": self.n_users} | numbers | radii


class Schedule(Protocol):
    """What a solver releases, one after the other."""

    @property
    def phases(self) -> tuple[Phase, ...]: ...

    def releases(self, problem: Problem, outcome: Outcome) -> Releases[None]:
        """Yields what to release next, gets the release, and keeps `outcome` up to date.

        If a test fails the generator is closed where it waits.
        """


@dataclass(frozen=True)
class SolverPlan:
    """A certified plan and how to carry it out.

    n_gradients: the most that are computed; bound: what the plan was chosen by; bound_with_constants: of algorithms as
    published, whose `bound` leaves constants out as theorems do; caution: what besides noise is expected to cost
    accuracy, if anything; clipped_fraction: how rare a class must be, about, for clipping to dominate its error, where
    that is known; as_published: whether the start stands after an abort, as papers have it; outside: of algorithms as
    published, which hypotheses of their theorems do not hold, in words: the bound is then no theorem.
    """

    certified: Plan
    schedule: Schedule
    n_gradients: int
    bound: float
    bound_with_constants: float | None = None
    caution: str = ""
    clipped_fraction: float = 0.0
    as_published: bool = False
    outside: tuple[str, ...] = ()

    @property
    def phases(self) -> tuple[Phase, ...]:
        return self.schedule.phases

    @property
    def n_releases(self) -> int:
        return sum(step.mechanism.rounds for step in self.certified.steps)


@dataclass(frozen=True, eq=False)
class Result:
    """What a solver found. Everything here is computed from releases and public numbers, so it may be shown.

    weights: one number a feature (a block of them per output), in the features' own units;
    aborted: whether a private test failed on the way; message: what to do then, or that noise is likely to dominate;
    n_gradients: an upper bound on the gradients computed, from public numbers, since the number of rows is private;
    where users are sampled it is exceeded with a chance of 1e-9;
    bound: on the excess risk, as the plan has it; an estimate where `bound_is_estimate`, which whitened-clip renews by
    what was released;
    outside: as the plan has it; phases: what each phase released: users, groups, step size, radius, noise;
    solver, mode, privacy: who solved it, and what was guaranteed and spent on it;
    uncertainty: covariance of the weights, where standard errors were asked for;
    The following are reported from releases of the default solver, and missing or NaN elsewhere. target_fraction: of
    least squares and Huber's loss, within which part of [-target_bound, target_bound] nearly all targets lie, about;
    affected_users: the fraction of users who lost rows with missing or infinite cells, with an interval;
    weight_errors: one number a feature: noise of its weight, times the column's scale, in log odds or logarithms of
    counts, or else in units of what a typical residual moves predictions by; signal: what predictions explain of the
    loss beyond a constant, in units of the excess risk to expect; total_error: noise of the mean prediction of a class
    or a count, relative to it.
    """

    weights: np.ndarray
    aborted: bool
    message: str
    n_gradients: int
    bound: float
    phases: tuple[dict[str, float], ...] = ()
    outside: tuple[str, ...] = ()
    solver: str = ""
    mode: str = ""
    privacy: Statement | None = None
    uncertainty: Uncertainty | None = None
    target_fraction: float = math.nan
    affected_users: AffectedUsers | None = None
    weight_errors: np.ndarray | None = None
    signal: float = math.nan
    total_error: float = math.nan

    @property
    def bound_is_estimate(self) -> bool:
        """Whether `bound` is no theorem about the solver."""
        return self.solver not in PROVEN or bool(self.outside)


def run(problem: Problem, plan: SolverPlan, curator: Curator, progress: Progress | None = None) -> Result:
    """Carry out any solver's plan. If a test fails, what was found before stands, or the start if `as_published`.

    Paper: Alg. 1, lines 18-19; Alg. 2, lines 15-16.
    Differs: the start, where 0 is printed, because 0 may lie outside of the domain.
    """
    outcome = Outcome(problem.start, plan.bound)
    releases = plan.schedule.releases(problem, outcome)
    try:
        carry_out(releases, curator, progress, plan.n_releases)
    except Aborted:
        releases.close()
        if plan.as_published:
            outcome.weights, outcome.stands = problem.start, "the start"
        # Vectors are farther apart than expected, where gradients are longer than declared; a row_norm that is too
        # large makes noise, never an abort.
        groups = any(step.n_groups is not None for step in plan.certified.steps)
        far = "groups of users ended" if groups else "users' gradients are"
        outcome.aborted, outcome.message = True, _ABORTED.format(far, outcome.stands)
    reported = {name: value for name, value in vars(outcome).items() if name not in ("phases", "stands")}
    return Result(**reported, n_gradients=plan.n_gradients, phases=tuple(outcome.phases), outside=plan.outside)


def carry_out(releases: Releases[T], curator: Curator, progress: Progress | None = None, total: int = 0) -> T:
    """Release what is asked for, until nothing more is; gives what the generator returns."""
    answer, done = None, 0
    while True:
        try:
            request = next(releases) if answer is None else releases.send(answer)
        except StopIteration as end:
            returned: T = end.value
            return returned
        if progress is not None:
            progress(request.shown_as or request.label, done, total)
        answer, done = curator.release(request.label, request.statistic, request.radius), done + 1


# --- all solvers, by name ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Planner:
    """A planner, "module:function"; the module also has `feasible` unless any number of users will do.

    `fits_gradients`: whether a plan can be fitted into a number of gradients; `penalizes`: whether l2 may be > 0;
    `baseline`: to compare with, by name only; `plan` shows it when asked for baselines; `refines`: whether what it
    expects of the excess risk is renewed by what a run released; `pure`: whether it can do without delta;
    `most_canaries`: how many planted users at most, with a feature each, its plan for some thousand users has room for.
    """

    planner: str
    fits_gradients: bool = False
    penalizes: bool = False
    baseline: bool = False
    refines: bool = False
    pure: bool = False
    most_canaries: int = 192

    @property
    def uncertified(self) -> Callable[..., SolverPlan]:
        """The planner itself, with options of its own."""
        module, _, function = self.planner.partition(":")
        planner: Callable[..., SolverPlan] = getattr(import_module(module), function)
        return planner

    def plan(
        self, problem: Problem, n_users: int, rows_per_user: int, budget: Budget, max_gradients: int | None = None
    ) -> SolverPlan:
        """From public numbers to a plan that is certified for the budget: here, whatever the planner computed.

        The limit on gradients is for planners that can fit into one.
        """
        limit = {"max_gradients": max_gradients} if self.fits_gradients else {}
        made = self.uncertified(problem, n_users, rows_per_user, budget, **limit)
        made.certified.certify(budget)
        return made

    def feasible(self, problem: Problem, n_users: int, rows_per_user: int, budget: Budget) -> bool:
        """Whether there are users enough for a plan. Where a solver does not say, any will do if delta > 0."""
        test = getattr(import_module(self.planner.partition(":")[0]), "feasible", None)
        return bool(budget.delta > 0 if test is None else test(problem, n_users, rows_per_user, budget))


SOLVERS = {
    ("accelerated", "calibrated"): Planner(
        "userdp.paper.accelerated:plan_accelerated", fits_gradients=True, penalizes=True
    ),
    ("whitened-clip", "calibrated"): Planner(
        "userdp.solvers.whitened_clip:plan_whitened_clip", fits_gradients=True, penalizes=True, refines=True, pure=True
    ),
    ("phased-sgd", "calibrated"): Planner("userdp.paper.phased_sgd:plan_phased_sgd", penalizes=True),
    ("accelerated", "paper"): Planner(
        "userdp.paper.accelerated_paper:plan_paper_accelerated", fits_gradients=True, penalizes=True, most_canaries=8
    ),
    ("phased-sgd", "paper"): Planner("userdp.paper.phased_sgd_paper:plan_paper_phased_sgd", most_canaries=8),
}
WORDS: dict[str, str] = {}
ATTACKS: list[Callable[[Budget], list[Any]]] = []


def register(
    solvers: Mapping[tuple[str, str], Planner],
    words: Mapping[str, str] | None = None,
    attacks: Callable[[Budget], list[Any]] | None = None,
) -> None:
    """Make solvers of another package known to estimators, `plan` and the audit, for as long as the process lasts.

    solvers: by name and mode; `solver="auto"` takes none of them; words: for each kind of mechanism that they bring, a
    sentence of reports; attacks: from a budget to the audit's pairs (`userdp.auditing.pairs.Pair`) on these mechanisms.

    Guarantee: nothing here prices or releases anything. A solver's plan is certified, charged and carried out by the
    curator as any other; a mechanism of its own is as private as its record's `cost` says.
    """
    for key, solver in solvers.items():
        if SOLVERS.get(key, solver) != solver:
            raise ValueError(f"Expected solver={key[0]!r}, mode={key[1]!r} to be a new one: it is known already.")
    SOLVERS.update(solvers)
    WORDS.update(words or {})
    if attacks is not None and attacks not in ATTACKS:
        ATTACKS.append(attacks)


# --- for planners -----------------------------------------------------------------------------------------------------


def check_sizes(n_users: int, rows_per_user: int, budget: Budget) -> tuple[int, int]:
    """Both as plain whole numbers; refuses what is no count, and a budget without room for Gaussian noise."""
    n_users, rows_per_user = check_counts(n_users=n_users, rows_per_user=rows_per_user)
    if budget.delta == 0:
        raise without_delta()
    return n_users, rows_per_user


def without_delta() -> BudgetExceeded:
    """The refusal of all solvers but the default: Gaussian noise, and tests, cannot do without."""
    return BudgetExceeded(
        "Expected delta > 0 for this solver: the default, whitened-clip, does without. Nothing was spent."
    )


def share_multiplier(whole: float, fraction: float, n_releases: int = 1, pure: bool = False) -> float:
    """The noise multiplier of each of so many releases that share a fraction of a budget.

    `whole` is that of one release with all of the budget. Squares of inverses add up, or if `pure` inverses do.
    """
    return whole * (n_releases / fraction if pure else math.sqrt(n_releases / fraction))


@lru_cache(maxsize=4096)
def gradients_of_samples(n_users: int, rows_per_user: int, q: float, rounds: int) -> int:
    """Gradients of rounds on Poisson samples: at most, but for one chance in a billion.

    An empty sample costs a user's, too.
    """
    if q == 1.0:
        return n_users * rows_per_user * rounds
    draws = n_users * rounds
    left_out = math.floor(float(bdtrik(_RARE, draws, 1 - q)))
    return rows_per_user * (draws - left_out + rounds)


def largest_sample(n_users: int, rows_per_user: int, rounds: int, max_gradients: int | None) -> float | None:
    """The sampling probability that so many gradients allow; None if not even samples of one user."""
    if max_gradients is None:
        return 1.0
    q = min(1.0, max_gradients / (n_users * rows_per_user * rounds))
    while q * n_users >= 1 - 1e-9:
        if gradients_of_samples(n_users, rows_per_user, q, rounds) <= max_gradients:
            return q
        q *= 0.97
    return None


def too_few_gradients(n_users: int, rows_per_user: int, rounds: int, max_gradients: int | None) -> ValueError:
    """The refusal, with a number that will do."""
    least = math.ceil(1.05 * gradients_of_samples(n_users, rows_per_user, 1 / n_users, rounds))
    return ValueError(
        f"Expected max_gradients={max_gradients} >= {least:,}, for {rounds} rounds of about one user. "
        "Nothing was spent."
    )
