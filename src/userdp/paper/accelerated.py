"""Accelerated gradient steps on private means of users' gradients: the most accurate solver with a theorem.

Users are split into phases. A phase minimises the mean loss of its users + l2/2 |w|^2 + lambda/2 |w - last point|^2:
every step asks for the filtered mean of the users' mean gradients, with noise; the gradients of the penalties are
public and added afterwards (`GradientSteps`).

Paper: Alg. 2 and 3.

Plans are calibrated, and chosen from public numbers. With D the distance of the start from a good point, beta the
smoothness, T steps of K users each, k weights, sigma the noise of a step, v the variance of users' mean gradients, the
bound on the excess risk is that of AC-SA (Ghadimi and Lan 2012), and the price of having n users only:

    V = k sigma^2 + (1 - K/n) v/K                              variance of a step's gradient
    4 beta D^2 / T^2 + 4 D sqrt(V/T) + 2 D sqrt(v/n)           convex
    bias + 8 V/(mu T) + v/(mu n)                               mu-strongly convex, if that is less

Non-smooth losses are smoothed in closed form over predictions within a width: they then are smooth with
(largest slope) / width, and at most (largest slope) * width / 2 worse. The width is what balances that against the
first term: sqrt(8 beta width / slope) D / T.

Plans are compared by an estimate that is nearer to what happens: whitened, curvature h is taken to be at least an
eighth of the largest, so that what T steps leave of the start falls like exp(-T sqrt(h/phi)), phi the smoothness that
steps are taken by (`steadied`); and smoothing costs where predictions are near the kink only. Every step takes all
users (K = n; `plan_means` chooses the test), or a Poisson sample: about a quarter more noise, but fewer gradients. The
plan has the fewest gradients whose estimate is within 1% of the least.

Steps take more than the radius that was found, by a public factor (`_headroom`), and noise grows along: counting
neighbours takes time like K^2 radius^-20, and users' gradients may grow apart after the start, where slopes are all
alike, by at most what slopes may grow by, and the less the more rows are averaged.

Differs: there is one phase, of all users, without a regulariser, where the paper has log2(n) of regularised ones:
at the best lambda these cost D sqrt(k) sigma again, with a larger sigma; and generalisation, which the regularisers are
there for, linear models have without (the last term). benchmarks/accelerated.py measures it. With l2 > 0 one run also
replaces the paper's reruns (FKT20, section 5.1), whose last run has half of the users: k sigma^2 / mu against 16 times
that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from userdp.domains import Domain
from userdp.losses import Loss, smoothed
from userdp.paper.concentration import added_user_sensitivity
from userdp.paper.descent import Descent, Nesterov, steadied
from userdp.paper.mean_plans import (
    FAILURE_FRACTION,
    left_outside,
    means_noise,
    plan_means,
    plan_search,
    sampled_multiplier,
    search_grid,
    searched_users,
)
from userdp.paper.outlier_removal import OutlierRemoval, SampledOutlierRemoval
from userdp.paper.preconditioning import Preconditioner, coordinates_of, moment_error, moment_step, whitened_distance
from userdp.privacy.accounting import (
    AddedUserMultiplier,
    Budget,
    BudgetExceeded,
    Cost,
    gaussian_multiplier,
    subsampled_multiplier,
)
from userdp.privacy.plan import Plan, Step
from userdp.solvers.problem import Problem
from userdp.solvers.solver import (
    Outcome,
    Phase,
    Releases,
    Request,
    SolverPlan,
    check_sizes,
    gradients_of_samples,
)
from userdp.solvers.whitening import MOST_FEATURES
from userdp.statistics.gradients import MeanGradient
from userdp.statistics.smoothing import BallSmoothing

_MOMENT_FRACTIONS = (0.0, 0.1, 0.2, 0.3)  # of the Gaussian budget
_STEPS = (3, 5, 7, *(round(10 * 2 ** (k / 2)) for k in range(21)))  # .. 10, 14, 20, .. 10,240
_SAMPLED = tuple(0.5 / 2 ** (k / 2) for k in range(19))  # fraction of the users in a step: 0.5, 0.35, 0.25, .. 0.001
_LEAST_CURVATURE = 0.125  # of the largest: in whitened coordinates a typical row's curvature is at least this
_FEWEST_SEARCHED = 5000  # users, if there are as many: steps on small samples ask no more in their search
OUTLIERS = 0.03  # fraction of users that may be far from the others
RADII = (0.02, 2.0)  # searched, in units of the largest typical distance of two users' gradients
_RARE = 5.0  # standard deviations, about: margins of tests
_RAMP_STARTS = (0.5, 0.6, 0.7, 0.8, 0.9)  # tried for the sensitivity of samples
_WHITENED_SMOOTHNESS = 2.0  # largest eigenvalue of the whitened second moment: the released one is off by its noise
_SEARCH_FRACTION = 0.05  # of the Gaussian budget, for the radius of samples
_MANY, _QUICK, _FEW = 10_000, 1.2, 1.08  # from so many vectors on 1.2 times the radius: counting is 50 times faster
_GROWTH = 1.2  # of the radius after the start with one row per user; 1.1 to 1.29 were seen, 1.04 with three rows
_DEFICIT_FRACTIONS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6)  # of a sampled step's budget, for its test


@dataclass(frozen=True, kw_only=True)
class GradientPhase(Phase):
    """One phase's steps; they all ask for the mean gradient of the same users, or of samples of them.

    search: the label of the step that finds the radius privately, in units of `radius`; None to take `radius` itself;
    headroom: steps take so many times the radius that was found;
    regularizer: lambda;
    variance: of a step's gradient, besides the noise; distance: of the start from a good point;
    curved: least curvature to be expected; gap: how far the start may be above the minimum (for AC-SA);
    ball: radius of the ball around the weights from which those of a row's gradient are drawn, for smoothing.
    """

    smoothness: float
    search: str | None = None
    headroom: float = 1.0
    regularizer: float = 0.0
    variance: float = 0.0
    distance: float = 0.0
    curved: float = 0.0
    gap: float = 0.0
    ball: float | None = None


# From the problem, a phase, its start, its domain, the variance of a gradient, and how steep coordinates may be.
Method = Callable[[Problem, GradientPhase, np.ndarray, Domain, float, float], Descent]


def nesterov(
    problem: Problem, phase: GradientPhase, start: np.ndarray, domain: Domain, variance: float, steepness: float
) -> Descent:
    """Accelerated steps, as short as the noise asks for."""
    smoothness = steadied(phase.smoothness * steepness, phase.distance, variance, phase.n_steps, phase.curved)
    return Nesterov(start, domain, smoothness, phase.n_steps)


@dataclass(frozen=True)
class GradientSteps:
    """Phases of steps along private mean gradients; `loss` is the given one or a smoothed one.

    Paper: Alg. 2, lines 1-2; Alg. 2, line 17; Alg. 3, line 3; Alg. 3, line 6 (F_i); Alg. 3, line 7; Alg. 3, line 9.
    """

    loss: Loss
    phases: tuple[GradientPhase, ...]
    method: Method = nesterov
    preconditioner: Preconditioner | None = None

    def releases(self, problem: Problem, outcome: Outcome) -> Releases[None]:
        """Each phase starts where the last one ended; what was reached stands after an abort."""
        coordinates = yield from coordinates_of(self.preconditioner, problem)
        domain, n_done = coordinates.around(problem.domain, problem.dimension), 0
        for phase in self.phases:
            center, radius = outcome.weights, phase.radius
            start = coordinates.from_weights(center)
            if phase.search is not None:
                statistic = self._gradient(coordinates.to_weights(start), coordinates.basis, phase.ball, n_done)
                (found_radius,) = map(float, (yield Request(phase.search, statistic, radius)))
                radius = phase.headroom * found_radius
            variance = phase.variance + problem.dimension * (phase.noise_ratio * radius) ** 2
            descent = self.method(problem, phase, start, domain, variance, coordinates.steepness)
            numbers = {"steps": phase.n_steps, "users_a_step": phase.users_a_step, "regularizer": phase.regularizer}
            outcome.phases.append(phase.summary(radius, **numbers))
            try:
                for _ in range(phase.n_steps):
                    at = coordinates.to_weights(descent.query)
                    statistic = self._gradient(at, coordinates.basis, phase.ball, n_done)
                    released = yield Request(phase.label, statistic, radius, "gradient step")
                    penalty = problem.l2 * problem.penalised(at) + phase.regularizer * (at - center)
                    descent.move(released + coordinates.of_gradient(penalty))
                    n_done += 1
            finally:
                if n_done:
                    outcome.weights = coordinates.project(problem.domain, coordinates.to_weights(descent.point))
                    outcome.stands = f"what was reached after {n_done} steps"

    def _gradient(self, at: np.ndarray, basis: np.ndarray | None, ball: float | None, number: int) -> MeanGradient:
        """What to ask for; `number` makes the draws of a smoothing ball fresh."""
        return MeanGradient(self.loss, at, basis, None if ball is None else BallSmoothing(ball, number))


@dataclass(frozen=True)
class _Geometry:
    """The problem in plain or whitened coordinates, for so many steps.

    `row_square` is E|x|^2, `distance` D, `certain` a curvature that there is at least, `curved` one that there is
    likely; `width` is over which a non-smooth loss is smoothed: that costs `rounding` at most, `usual_rounding` likely.
    """

    row_square: float
    distance: float
    smoothness: float
    certain: float
    curved: float
    ridge: float = 0.0
    width: float | None = None
    rounding: float = 0.0
    usual_rounding: float = 0.0


@dataclass(frozen=True)
class _Choice:
    """One way to do it: fraction of the budget for the moment, fraction of the users in a step, number of steps.

    `excess` is the module's estimate; `sampling_variance` is what a step's gradient varies by for want of the other
    users; `progress` is for `paced`.
    """

    bound: float
    excess: float
    gradients: int
    moment_fraction: float
    sampled: float
    n_steps: int
    geometry: _Geometry
    sampling_variance: float
    progress: float


def plan_accelerated(
    problem: Problem,
    n_users: int,
    rows_per_user: int,
    budget: Budget,
    max_gradients: int | None = None,
    tolerance: float = 0.01,
) -> SolverPlan:
    """The plan with the fewest gradients whose estimated risk is within `tolerance` of the least, 1% of it by default.

    Within `max_gradients`, if given. Raises `BudgetExceeded`, with a number that would do, if users are too few.
    """
    n_users, rows_per_user = check_sizes(n_users, rows_per_user, budget)
    fractions = _MOMENT_FRACTIONS if problem.n_features <= MOST_FEATURES else (0.0,)
    most = 0 if max_gradients is None else max_gradients // (n_users * rows_per_user) - 1  # with all users in each step
    numbers = sorted({*_STEPS, most} if _STEPS[0] < most < _STEPS[-1] else _STEPS)
    choices = [
        _choice(problem, n_users, rows_per_user, budget, fraction, sampled, n_steps)
        for n_steps in numbers
        for fraction in fractions
        for sampled in (1.0, *_SAMPLED)
    ]
    feasible = [choice for choice in choices if math.isfinite(choice.bound)]
    if not feasible:
        plan_means(n_users, budget, _STEPS[0], outliers=OUTLIERS, radii=RADII)  # says how many users would do
    size = (n_users, rows_per_user, budget)
    plan = cheapest_plan(feasible, tolerance, max_gradients, lambda choice: _plan(problem, choice, *size))
    if plan is None:
        raise ValueError(
            f"Expected max_gradients={max_gradients} >= {min(c.gradients for c in feasible):,} for {n_users:,} users "
            f"of {rows_per_user} rows, of whom a step cannot take fewer: allow more, or cap rows_per_user lower."
        )
    return plan


def cheapest_plan(
    choices: Sequence[Any], tolerance: float, max_gradients: int | None, make: Callable[[Any], SolverPlan]
) -> SolverPlan | None:
    """The plan with the fewest `gradients` whose `excess` is within `tolerance` of the least; None if there is none.

    Noise of samples is estimated only when choices are compared: there may be too little budget for some.
    """
    allowed = [choice for choice in choices if max_gradients is None or choice.gradients <= max_gradients]
    while allowed:
        enough = (1 + tolerance) * min(choice.excess for choice in allowed)
        near = (choice for choice in allowed if choice.excess <= enough)
        cheapest = min(near, key=lambda choice: (choice.gradients, choice.excess))
        try:
            return make(cheapest)
        except BudgetExceeded:
            allowed.remove(cheapest)
    return None


def feasible(problem: Problem, n_users: int, rows_per_user: int, budget: Budget) -> bool:
    """Whether there are users enough for a few steps on all of them."""
    return math.isfinite(means_noise(n_users, budget, _STEPS[0], OUTLIERS, RADII))


def _geometry(problem: Problem, n_users: int, mu_squared: float, moment_fraction: float, n_steps: int) -> _Geometry:
    """Plain coordinates, or whitened ones by a moment that gets a fraction of the budget."""
    error, row_square, steepest = 0.0, problem.row_norm**2, problem.row_norm**2
    distance = problem.reach
    if moment_fraction:
        error = moment_error(n_users, problem.n_features, 1 / math.sqrt(moment_fraction * mu_squared))
        row_square, steepest = float(problem.n_features), _WHITENED_SMOOTHNESS
        distance = whitened_distance(problem, error)
    curvature, rounded = problem.loss.curvature, {}
    if not problem.loss.smooth:
        slope = problem.lipschitz / problem.row_norm
        width = math.sqrt(8 * steepest) * distance / n_steps
        usual = slope * min(width / 2, width**2 / problem.typical_prediction)
        curvature, rounded = slope / width, {"width": width, "rounding": slope * width / 2, "usual_rounding": usual}
    if not moment_fraction:
        smoothness = curvature * steepest + problem.l2
        certain = problem.certain_curvature
        return _Geometry(row_square, distance, smoothness, certain, certain, **rounded)
    # The penalty is whitened along: it is then nowhere steeper than the loss.
    ridge = problem.l2 / curvature
    distance = whitened_distance(problem, error, ridge)
    certain = problem.certain_curvature / (problem.row_norm**2 + ridge)
    curved = _LEAST_CURVATURE * min(curvature, problem.typical_curvature)
    return _Geometry(row_square, distance, curvature * steepest, certain, curved, ridge, **rounded)


def _choice(
    problem: Problem,
    n_users: int,
    rows_per_user: int,
    budget: Budget,
    moment_fraction: float,
    sampled: float,
    n_steps: int,
) -> _Choice:
    """The module's bound and estimate for this preconditioner, sampling and number of steps."""
    mu_squared = 1 / gaussian_multiplier(budget) ** 2
    geometry = _geometry(problem, n_users, mu_squared, moment_fraction, n_steps)
    variance = problem.user_variance(rows_per_user, geometry.row_square)
    if sampled == 1.0:
        noise = means_noise(n_users, budget, n_steps, OUTLIERS, RADII) / math.sqrt(1 - moment_fraction)
    else:
        noise = _sampled_noise(n_users, (1 - moment_fraction) * mu_squared, sampled, n_steps)
    sampling_variance = (1 - sampled) * variance / (sampled * n_users)
    step_variance = problem.dimension * noise**2 * 2 * variance + sampling_variance
    price = geometry.distance * (4 * math.sqrt(step_variance / n_steps) + 2 * math.sqrt(variance / n_users))
    # The estimate leaves the headroom out: the radius found is far below the one that is expected here.
    sure_variance = _headroom(problem, sampled * n_users, rows_per_user) ** 2 * step_variance
    sure_price = geometry.distance * (4 * math.sqrt(sure_variance / n_steps) + 2 * math.sqrt(variance / n_users))
    if geometry.certain:
        strong = 8 * sure_variance / n_steps + variance / n_users
        sure_price = min(sure_price, strong / geometry.certain)
    bound = _bias(problem, geometry, geometry.smoothness, n_steps, geometry.certain) + sure_price + geometry.rounding
    smoothness = steadied(geometry.smoothness, geometry.distance, step_variance, n_steps, geometry.curved)
    likely = _bias(problem, geometry, smoothness, n_steps, geometry.curved) + price + geometry.usual_rounding
    gradients = gradients_of_samples(n_users, rows_per_user, sampled, n_steps)
    gradients += rows_per_user * _searched(n_users, budget, sampled)
    # Squared errors fall twice as fast.
    progress = 2 * problem.n_features * n_steps * math.sqrt(geometry.curved / smoothness)
    return _Choice(bound, likely, gradients, moment_fraction, sampled, n_steps, geometry, sampling_variance, progress)


def _headroom(problem: Problem, batch: float, rows_per_user: int) -> float:
    """Radius of steps / radius found at the start: for quick counts, and for gradients that grow apart."""
    steeper = problem.lipschitz / problem.row_norm / problem.typical_slope
    quick = _QUICK if batch >= _MANY else _FEW
    return quick * (1 + (min(_GROWTH, steeper) - 1) / rows_per_user**2)


def _bias(problem: Problem, geometry: _Geometry, smoothness: float, n_steps: int, curved: float) -> float:
    """What accelerated steps without noise leave of the excess, where the curvature is at least `curved`."""
    slow = 4 * smoothness * geometry.distance**2 / n_steps**2
    return min(slow, problem.loss_at_zero * math.exp(-n_steps * math.sqrt(curved / smoothness))) if curved else slow


def _sampled_noise(n_users: int, mu_squared: float, sampled: float, n_steps: int) -> float:
    """Noise std / radius of so many steps on samples of users, about."""
    joint = sampled_multiplier(mu_squared, sampled, n_steps)
    batch, outliers = sampled * n_users, OUTLIERS * sampled * n_users
    smallest = math.floor(batch - _RARE * math.sqrt(batch))
    least = math.inf
    for fraction in _DEFICIT_FRACTIONS:
        slack = math.ceil(2 * _RARE * joint / math.sqrt(fraction) + outliers)
        if smallest >= 2 * slack + 6:
            starts = [start for start in _RAMP_STARTS if start * smallest + 1 < smallest - slack - 1]
            moved = min((added_user_sensitivity(smallest, slack, 1.0, start) for start in starts), default=math.inf)
            least = min(least, moved * joint / math.sqrt(1 - fraction))
    return least


def _searched(n_users: int, budget: Budget, sampled: float) -> int:
    """Users among which the radius is searched."""
    few = max(_FEWEST_SEARCHED, math.ceil(sampled * n_users))
    return min(few, searched_users(n_users, budget, search_grid(*RADII), OUTLIERS))


def _plan(problem: Problem, choice: _Choice, n_users: int, rows_per_user: int, budget: Budget) -> SolverPlan:
    """Records of the chosen numbers."""
    geometry, preconditioner, other = choice.geometry, None, Cost()
    first: tuple[Step, ...] = ()
    if choice.moment_fraction:
        multiplier = gaussian_multiplier(budget) / math.sqrt(choice.moment_fraction)
        first = (moment_step(n_users, problem.n_features, multiplier),)
        error, other = moment_error(n_users, problem.n_features, multiplier), first[0].mechanism.cost
        preconditioner = Preconditioner(error, geometry.ridge, choice.progress)
    if choice.sampled == 1.0:
        steps = plan_means(n_users, budget, choice.n_steps, outliers=OUTLIERS, radii=RADII, other=other).steps
    else:
        steps = _sampled_steps(n_users, budget, choice, other)
    plan = Plan(n_users, (*first, *steps))
    mean = steps[-1].mechanism
    assert isinstance(mean, OutlierRemoval | SampledOutlierRemoval)
    phase = GradientPhase(
        "mean",
        n_users,
        math.sqrt(2 * geometry.row_square) * problem.typical_slope,
        mean.noise_std(1.0, problem.dimension),
        n_steps=choice.n_steps,
        sampling_probability=choice.sampled,
        smoothness=geometry.smoothness,
        search="radius",
        headroom=_headroom(problem, choice.sampled * n_users, rows_per_user),
        variance=choice.sampling_variance,
        distance=geometry.distance,
        curved=geometry.curved,
    )
    loss = problem.loss if geometry.width is None else smoothed(problem.loss, geometry.width)
    schedule = GradientSteps(loss, (phase,), preconditioner=preconditioner)
    return SolverPlan(plan, schedule, choice.gradients, choice.bound)


def _sampled_steps(n_users: int, budget: Budget, choice: _Choice, other: Cost) -> tuple[Step, ...]:
    """Search and means on Poisson samples, with the fraction of the budget for the test that makes least noise."""
    failure = FAILURE_FRACTION * budget.delta
    mu_squared = 1 / gaussian_multiplier(budget, 1, other + Cost(failure=failure)) ** 2
    n_searched, grid = _searched(n_users, budget, choice.sampled), search_grid(*RADII)
    search = plan_search(n_searched, grid, math.ceil(OUTLIERS * n_searched), _SEARCH_FRACTION * mu_squared)
    spent = other + search.cost + Cost(failure=failure)
    joint = subsampled_multiplier(budget, choice.sampled, choice.n_steps, spent) * (1 + 1e-9)
    # What the search may leave outside, and what of it may come into one sample.
    left = choice.sampled * n_users * left_outside(search, n_users)
    outliers, best = math.ceil(left + 3 * math.sqrt(left)), None
    for fraction in _DEFICIT_FRACTIONS:
        try:
            mean = SampledOutlierRemoval(
                n_users,
                choice.sampled,
                AddedUserMultiplier(joint / math.sqrt(1 - fraction)),
                joint / math.sqrt(fraction),
                failure,
                rounds=choice.n_steps,
                outliers=outliers,
            )
        except ValueError:  # too few users in a batch for this test
            continue
        if best is None or mean.noise_std(1.0, 1) < best.noise_std(1.0, 1):
            best = mean
    if best is None:
        raise BudgetExceeded(
            f"Expected more than n_users={n_users} for steps of {choice.sampled:.0%} of them. Nothing was spent."
        )
    return Step("radius", 0, n_searched, search), Step("mean", 0, n_users, best)
