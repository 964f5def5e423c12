"""Phased SGD with outlier iterate removal: one pass over the data.

Users are split into phases and each phase's users into groups. Every group runs one-pass SGD from the last released
point; the filtered mean of the groups' iterates is released with noise, and the next phase starts there, with steps as
small as that noise. One test and one release per phase, whatever the number of rows: that is what makes it linear-time.

Paper: Alg. 1.

Plans are calibrated: they minimise an explicit bound on the excess risk. With D the distance of the start from a good
point, L^2 a bound on a gradient's mean square, T steps per group, C groups and k weights:

    phase          D^2 / (2 eta T) + eta L^2 / 2         SGD with steps from eta down to 0
    next phase     D = sqrt(k) sigma                     localisation: the last noise is the distance
    radius         1.3 eta L sqrt(2 T / 3)               root mean square distance of two groups' iterates, and a tail
    noise          sigma = multiplier * sensitivity(C, slack, radius)
    end            + curvature/2 sigma^2 E|x|^2, or (largest slope) sigma sqrt(E|x|^2) if that is less

A penalty l2/2 |w|^2 adds its gradient l2 w to every step, for all weights but intercepts. It adds no scatter, so radius
and noise stay. L becomes L + l2 |w| in a phase's bound: in a ball about 0, SGD keeps |w| within max(|start|, L / l2).
l2/2 sigma^2 k is added at the end. Whitened, l2 / curvature is added to the second moment: the penalty is then no
steeper than the loss, and counted as it is along directions that vary by no more than the moment's error.

Without preconditioning D is the reach of the domain and E|x|^2 = row_norm^2; with it D is the typical size of a
prediction plus what the moment's error adds, and E|x|^2 the number of features.

Steps are eta = 2 D / (L sqrt(T)), twice what minimises a phase's bound: it then is at most 1.25 times its minimum, and
its second term overestimates, since averaging over C groups takes away most of what single groups scatter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import ndtri

from userdp._validate import check_counts
from userdp.domains import Ball, Domain
from userdp.paper import concentration
from userdp.paper.mean_plans import FAILURE_FRACTION
from userdp.paper.outlier_removal import OutlierRemoval
from userdp.paper.preconditioning import Preconditioner, coordinates_of, moment_error, moment_step, whitened_distance
from userdp.privacy.accounting import Budget, BudgetExceeded, Cost, gaussian_multiplier, least_enough
from userdp.privacy.plan import Plan, Step
from userdp.solvers.problem import Problem
from userdp.solvers.solver import Outcome, Phase, Releases, Request, SolverPlan
from userdp.solvers.whitening import MOST_FEATURES
from userdp.statistics import sgd
from userdp.statistics.gradients import MOST_PULL

_MOMENT_FRACTIONS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3)  # of the Gaussian budget
_TEST_FRACTIONS = (0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7)  # of what the moment leaves
_PHASES = (1, 2, 3, 4)
_USERS_RATIOS = (1.0, 0.5, 0.25)  # users of a phase / users of the one before
_OUTLIERS = 0.01  # fraction of the groups that may be far off
_BOLDNESS = 2.0
_TAIL = 1.3  # nearly all distances / their root mean square

# Searched radii, in units of the expected distance: from a thirteenth (strong curvature pulls groups together) to 3
# (rows of one user resemble each other, so groups differ by more than independent rows would).
_RADII = {3: 4.0, 7: 1.8, 15: 1.3}


def _radii(count: int) -> tuple[float, ...]:
    return tuple(3.2 * _RADII[count] ** (k - count + 1) for k in range(count))


@dataclass(frozen=True, kw_only=True)
class GroupPhase(Phase):
    """One phase; `radius` is what theory expects two groups' iterates to be apart."""

    n_groups: int


@dataclass(frozen=True)
class GroupPasses:
    """One-pass SGD of groups of users, phase by phase.

    `falling` steps fall to 0 and their last iterate counts, whose radius is released along; else steps are constant and
    the average iterate counts, as the paper has it. The last iterate of falling steps has the same guarantee as an
    average of constant ones, without a log (Zamani and Glineur 2023, Defazio et al. 2023), and forgets the start
    faster.
    Paper: Alg. 1, line 3; Alg. 1, line 24.
    """

    phases: tuple[GroupPhase, ...]
    preconditioner: Preconditioner | None = None
    falling: bool = True

    def releases(self, problem: Problem, outcome: Outcome) -> Releases[None]:
        coordinates = yield from coordinates_of(self.preconditioner, problem)
        domain = coordinates.around(problem.domain, problem.dimension)
        for number, phase in enumerate(self.phases, start=1):
            start, radius = coordinates.from_weights(outcome.weights), phase.radius
            if coordinates.basis is not None:
                start = domain.project(start)  # inside already, up to rounding
            statistic, axes = self._one_pass(problem, start, domain, phase.step_size, coordinates.basis)
            offset = yield Request(phase.label, statistic, radius)
            if self.falling:
                offset, radius = offset[:-1], float(offset[-1])
            offset = _turned(offset, None if axes is None else axes.T)
            outcome.weights = coordinates.project(problem.domain, coordinates.to_weights(start + offset))
            outcome.phases.append(phase.summary(radius, groups=phase.n_groups, step_size=statistic.step_size))
            outcome.stands = f"the weights of phase {number}"

    def _one_pass(
        self, problem: Problem, start: np.ndarray, domain: Domain, step_size: float, basis: np.ndarray | None
    ) -> tuple[sgd.OnePassSGD, np.ndarray | None]:
        """What the groups do, and the axes (of each output) that it is done along; None for the coordinates' own.

        Whitened, where the domain is a ball, they are turned to the penalty's axes: along each it is a number.
        Steps are shortened where a penalty along released axes is so steep that they would jump.
        """
        kind = (1.0, True) if self.falling else (0.0, False)
        if not problem.l2:
            return sgd.OnePassSGD(problem.loss, start, domain, step_size, *kind, basis), None
        penalty, axes = problem.l2 * problem.penalised(np.ones(problem.dimension)), None
        if basis is not None:
            values, axes = np.linalg.eigh((basis.T * penalty[: problem.n_features]) @ basis)
            penalty, basis = np.tile(np.maximum(values, 0.0), problem.loss.n_outputs), basis @ axes
            assert isinstance(domain, Ball)
            assert domain.center is not None
            domain = Ball(domain.radius, _turned(domain.center, axes))
            start = domain.project(_turned(start, axes))  # inside already, up to rounding
        step_size = min(step_size, MOST_PULL * (1 - 1e-9) / max(float(penalty.max()), 1e-300))
        return sgd.OnePassSGD(problem.loss, start, domain, step_size, *kind, basis, penalty), axes


def _turned(weights: np.ndarray, axes: np.ndarray | None) -> np.ndarray:
    """The components of each output's weights along the axes (columns)."""
    return weights if axes is None else np.asarray((weights.reshape(-1, len(axes)) @ axes).ravel())


@dataclass(frozen=True)
class _Mechanism:
    """How one phase's groups are tested and released: fractions of the budget, and noise std / expected distance."""

    radii: int
    test_std: float
    noise_multiplier: float
    noise_ratio: float


@dataclass(frozen=True)
class _Setting:
    """Scales of the problem, whitened or not; and the Gaussian budget of the moment and of the rest.

    D, L, E|x|^2, the penalty's curvature, and its largest gradient.
    """

    moment_mu_squared: float
    distance: float
    lipschitz: float
    row_square: float
    mu_squared: float
    penalty: float = 0.0
    pull: float = 0.0


@dataclass(frozen=True)
class _Choice:
    bound: float
    setting: _Setting
    users: tuple[int, ...]
    n_groups: int
    mechanism: _Mechanism


def plan_phased_sgd(problem: Problem, n_users: int, rows_per_user: int, budget: Budget) -> SolverPlan:
    """The plan with the least bound on the excess risk; raises `BudgetExceeded` with the smallest feasible n_users.

    `rows_per_user` is how many rows a user has, at most or typically; public.
    """
    n_users, rows_per_user = check_counts(n_users=n_users, rows_per_user=rows_per_user)
    choice = _best(problem, n_users, rows_per_user, budget)
    if choice is not None:
        return _plan(problem, choice, n_users, rows_per_user, budget)
    least = smallest_n_users(budget)
    remedy = f"about {least:,} users would do, or a larger epsilon" if least else "use a larger epsilon, and delta > 0"
    raise BudgetExceeded(
        f"Expected more than n_users={n_users} for phased SGD at epsilon={budget.epsilon:g}, delta={budget.delta:g}: "
        f"{remedy}. Nothing was spent.",
        enough_users=least,
    )


def feasible(problem: Problem, n_users: int, rows_per_user: int, budget: Budget) -> bool:
    """Whether there are users enough for one group each."""
    return n_users >= (smallest_n_users(budget) or math.inf)


def smallest_n_users(budget: Budget) -> int | None:
    """The least number of users, up to 1%, for which there is a plan; None if there is none."""
    mu_squared = _mu_squared(budget)
    if mu_squared is None:
        return None
    failure = FAILURE_FRACTION * budget.delta
    return least_enough(lambda n: _mechanism(n, mu_squared, failure) is not None, 4, most=2**40, tolerance=0.01)


def _mu_squared(budget: Budget) -> float | None:
    """The Gaussian budget, sum of 1/multiplier^2, that is left after the tests' failure."""
    try:
        return 1 / gaussian_multiplier(budget, 1, Cost(failure=FAILURE_FRACTION * budget.delta)) ** 2
    except BudgetExceeded:
        return None


def _best(problem: Problem, n_users: int, rows_per_user: int, budget: Budget) -> _Choice | None:
    mu_squared = _mu_squared(budget)
    if mu_squared is None:
        return None
    best: _Choice | None = None
    for setting in _settings(problem, n_users, mu_squared):
        for n_groups in sorted({round(g) for g in np.geomspace(8, n_users, 60)}):
            mechanism = _mechanism(n_groups, setting.mu_squared, FAILURE_FRACTION * budget.delta)
            if mechanism is None:
                continue
            for users in _splits(n_users, n_groups):
                bound = _bound(problem, setting, users, n_groups, rows_per_user, mechanism.noise_ratio)
                if best is None or bound < best.bound:
                    best = _Choice(bound, setting, users, n_groups, mechanism)
    return best


def _settings(problem: Problem, n_users: int, mu_squared: float) -> list[_Setting]:
    """Without preconditioning, and with it at several fractions of the budget."""
    slope, settings = problem.typical_slope, []
    ridge = problem.l2 / problem.typical_curvature
    for fraction in _MOMENT_FRACTIONS:
        if fraction == 0:
            lipschitz, square, moment, rest = slope * problem.row_norm, problem.row_norm**2, 0.0, mu_squared
            distance, penalty = problem.reach, problem.l2
        elif problem.n_features <= MOST_FEATURES:
            moment, rest = fraction * mu_squared, (1 - fraction) * mu_squared
            error = moment_error(n_users, problem.n_features, 1 / math.sqrt(moment))
            lipschitz, square = slope * math.sqrt(problem.n_features), float(problem.n_features)
            distance = whitened_distance(problem, error, ridge)
            penalty = problem.l2 / (error * problem.row_norm**2 + ridge)
        else:
            continue
        # How long the penalty's gradient gets: steps pull weights in as soon as l2 |w| is more than L.
        started = problem.l2 * float(np.linalg.norm(problem.start))
        pull = min(problem.l2 * problem.domain.largest_norm, max(started, lipschitz)) if problem.l2 else 0.0
        settings.append(_Setting(moment, distance, lipschitz, square, rest, penalty, pull))
    return settings


@lru_cache(maxsize=4096)
def _splits(n_users: int, n_groups: int) -> tuple[tuple[int, ...], ...]:
    """Users of each phase; every user is in one, and every phase has a user a group."""
    splits = []
    for n_phases in _PHASES:
        for ratio in _USERS_RATIOS if n_phases > 1 else (1.0,):
            fractions = ratio ** np.arange(n_phases)
            edges = np.round(np.cumsum(fractions) / fractions.sum() * n_users).astype(int)
            users = tuple(int(n) for n in np.diff(edges, prepend=0))
            if min(users) >= n_groups:
                splits.append(users)
    return tuple(splits)


@lru_cache(maxsize=65536)
def _mechanism(n_groups: int, mu_squared: float, failure: float) -> _Mechanism | None:
    """The test and search with the least noise for so many groups; None if they are too few."""
    best: _Mechanism | None = None
    for count, ratio in _RADII.items():
        probes = math.ceil(math.log2(count + 1))
        reach = -float(ndtri(failure / probes))
        for fraction in _TEST_FRACTIONS:
            test_std = math.sqrt(probes / (fraction * mu_squared))
            slack = math.ceil((reach + 2.0) * test_std) + 2 + _outliers(n_groups)  # at least the record's own
            if n_groups < 2 * slack + 4:
                continue
            multiplier = 1 / math.sqrt((1 - fraction) * mu_squared)
            overshoot = _TAIL * math.sqrt(ratio)
            noise = multiplier * concentration.sensitivity(n_groups, slack, overshoot)
            if best is None or noise < best.noise_ratio:
                best = _Mechanism(count, test_std, multiplier, noise)
    return best


def _outliers(n_groups: int) -> int:
    return math.ceil(_OUTLIERS * n_groups)


def _step_size(problem: Problem, setting: _Setting, distance: float, n_steps: float) -> float:
    """2 D / (L sqrt(T)), at most where the mean step contracts: 1 / (curvature E|x|^2 + 2 penalty)."""
    wanted = _BOLDNESS * distance / ((setting.lipschitz + setting.pull) * math.sqrt(n_steps))
    curvature = problem.loss.curvature * setting.row_square if problem.loss.smooth else 0.0
    curvature += setting.penalty / MOST_PULL
    return min(wanted, 1 / curvature) if curvature else wanted


def _expected_radius(setting: _Setting, step_size: float, n_steps: float) -> float:
    return step_size * setting.lipschitz * math.sqrt(2 * n_steps / 3)


def _bound(
    problem: Problem, setting: _Setting, users: tuple[int, ...], n_groups: int, rows_per_user: int, noise_ratio: float
) -> float:
    """The module's bound."""
    total, distance = 0.0, setting.distance
    for n_phase in users:
        n_steps = n_phase * rows_per_user / n_groups
        step_size = _step_size(problem, setting, distance, n_steps)
        total += distance**2 / (2 * step_size * n_steps) + step_size * (setting.lipschitz + setting.pull) ** 2 / 2
        noise = noise_ratio * _expected_radius(setting, step_size, n_steps)
        distance = math.sqrt(problem.dimension) * noise
    largest_slope = problem.lipschitz / problem.row_norm
    end = largest_slope * noise * math.sqrt(setting.row_square)
    if problem.loss.smooth:
        end = min(end, problem.loss.curvature / 2 * noise**2 * setting.row_square)
    return total + end + setting.penalty / 2 * noise**2 * problem.dimension


def _plan(problem: Problem, choice: _Choice, n_users: int, rows_per_user: int, budget: Budget) -> SolverPlan:
    """Records of the chosen numbers."""
    setting, mechanism, n_groups = choice.setting, choice.mechanism, choice.n_groups
    removal = OutlierRemoval(
        n_groups,
        mechanism.noise_multiplier * (1 + 1e-9),  # rounding of the fractions
        None,
        FAILURE_FRACTION * budget.delta,
        outliers=_outliers(n_groups),
        test_std=mechanism.test_std * (1 + 1e-9),
        radii=_radii(mechanism.radii),
    )
    ratio = removal.noise_multiplier * removal.sensitivity(1.0, problem.dimension)
    steps: list[Step] = []
    phases: list[GroupPhase] = []
    first, distance = 0, setting.distance
    for number, n_phase in enumerate(choice.users, start=1):
        n_steps = n_phase * rows_per_user / n_groups
        step_size = _step_size(problem, setting, distance, n_steps)
        radius = _expected_radius(setting, step_size, n_steps)
        phase = GroupPhase(f"phase {number}", n_phase, radius, ratio, n_groups=n_groups, step_size=step_size)
        phases.append(phase)
        steps.append(Step(phase.label, first, first + n_phase, removal, n_groups))
        first, distance = first + n_phase, math.sqrt(problem.dimension) * mechanism.noise_ratio * radius
    preconditioner = None
    if setting.moment_mu_squared:
        multiplier = 1 / math.sqrt(setting.moment_mu_squared) * (1 + 1e-9)
        steps.insert(0, moment_step(n_users, problem.n_features, multiplier))
        error = moment_error(n_users, problem.n_features, multiplier)
        ridge = problem.l2 / problem.typical_curvature
        # About how far the first phase can go in whitened coordinates, as `paced` counts it: falling steps
        # from eta reduce an error of curvature h by exp(-h eta T / 2), squared; h is a quarter of the largest.
        n_steps = phases[0].n_users * rows_per_user / n_groups
        progress = problem.typical_curvature * phases[0].step_size * n_steps * problem.n_features / 4
        preconditioner = Preconditioner(error, ridge, progress)
    plan = Plan(n_users, tuple(steps))
    beyond = ("how steep l2 is in whitened coordinates is estimated",) if problem.l2 and preconditioner else ()
    schedule = GroupPasses(tuple(phases), preconditioner)
    return SolverPlan(plan, schedule, n_users * rows_per_user, choice.bound, outside=beyond)
