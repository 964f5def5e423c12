"""Plain gradient steps on private means of all users' gradients, every step, and the average iterate.

Earlier work, to compare with: the private mean is that of `solvers.accelerated`, test and radius search included; but
steps are not accelerated, nothing is whitened or smoothed, and no step takes a sample of the users.

With D the distance of the start from a good point, beta the smoothness, L the largest slope, T steps, k weights, sigma
the noise of a step and v the variance of users' mean gradients, the bound on the excess risk is

    D^2 / (2 eta T) + eta G + 2 D sqrt(v/n),    eta <= 1/(2 beta), G = k sigma^2          smooth
                                                G = L^2 + k sigma^2                       non-smooth

at the best eta (`sgd_excess`), that is about beta D^2/T or L D/sqrt(T), and D sigma sqrt(2k/T), and the price of having
n users only. The plan is the one with the fewest gradients whose bound is within `tolerance` of the least.

Paper: Asi and Liu 2024, smooth and non-smooth: gradients of the order beta (nm)^{3/2} and (nm)^3.
Differs: noise, test, radius, T and eta are calibrated instead of taken from the printed constants. The printed T is
(nm)^2 for non-smooth losses because generalisation is shown by stability there, which asks for short steps; for linear
models it comes without (the last term), so T of the order nm is enough, at the same risk.
"""

from __future__ import annotations

import math

import numpy as np

from userdp._validate import check_counts
from userdp.domains import Domain
from userdp.paper.accelerated import OUTLIERS, RADII, GradientPhase, GradientSteps
from userdp.paper.mean_plans import means_noise, plan_means
from userdp.paper.outlier_removal import OutlierRemoval
from userdp.privacy.accounting import Budget
from userdp.solvers.problem import Problem
from userdp.solvers.solver import SolverPlan, check_sizes
from userdp_research.descent import AveragedSGD, sgd_excess, sgd_step

_FEWEST_STEPS = 32  # from which on the bound holds for non-smooth losses
_MOST_STEPS = 10_240


def plan_asi_liu(
    problem: Problem,
    n_users: int,
    rows_per_user: int,
    budget: Budget,
    max_gradients: int | None = None,
    tolerance: float = 0.01,
    most_steps: int = _MOST_STEPS,
) -> SolverPlan:
    """The plan with the fewest gradients whose bound is within `tolerance` of the least, 1% of it by default.

    Within `max_gradients`, if given. Raises `BudgetExceeded`, with a number that would do, if users are too few.
    """
    n_users, rows_per_user = check_sizes(n_users, rows_per_user, budget)
    (most_steps,) = check_counts(most_steps=most_steps)
    n_rows = n_users * rows_per_user
    # The search of the radius takes everyone's gradient once.
    allowed = most_steps if max_gradients is None else min(most_steps, max_gradients // n_rows - 1)
    if allowed < _FEWEST_STEPS:
        raise ValueError(
            f"Expected max_gradients={max_gradients} >= {(_FEWEST_STEPS + 1) * n_rows:,} for {n_users:,} users of "
            f"{rows_per_user} rows, all of whom take part in each of {_FEWEST_STEPS} steps or more: allow more, or cap "
            "rows_per_user lower. Nothing was spent."
        )
    bounds = {n_steps: _bound(problem, n_users, rows_per_user, budget, n_steps) for n_steps in _steps(allowed)}
    least = min(bounds.values())
    if math.isinf(least):
        plan_means(n_users, budget, _FEWEST_STEPS, outliers=OUTLIERS, radii=RADII)  # says how many users would do
    n_steps = min(n for n, bound in bounds.items() if bound <= (1 + tolerance) * least)
    plan = plan_means(n_users, budget, n_steps, outliers=OUTLIERS, radii=RADII)
    mean = plan.steps[-1].mechanism
    assert isinstance(mean, OutlierRemoval)
    smoothness, square = smoothness_and_square(problem)
    phase = GradientPhase(
        "mean",
        n_users,
        math.sqrt(2) * problem.row_norm * problem.typical_slope,
        mean.noise_multiplier * mean.sensitivity(1.0, problem.dimension),
        n_steps=n_steps,
        smoothness=smoothness,
        search="radius",
        variance=square,
        distance=problem.reach,
    )
    schedule = GradientSteps(problem.loss, (phase,), plain_steps)
    gradients = rows_per_user * sum(step.n_users * step.mechanism.rounds for step in plan.steps)
    return SolverPlan(plan, schedule, gradients, bounds[n_steps])


def plain_steps(
    problem: Problem, phase: GradientPhase, start: np.ndarray, domain: Domain, variance: float, steepness: float
) -> AveragedSGD:
    """Steps of the size that is best for gradients of this mean square."""
    return AveragedSGD(start, domain, sgd_step(phase.smoothness, phase.distance, variance, phase.n_steps))


def feasible(problem: Problem, n_users: int, rows_per_user: int, budget: Budget) -> bool:
    """Whether there are users enough for the fewest steps."""
    return math.isfinite(means_noise(n_users, budget, _FEWEST_STEPS, OUTLIERS, RADII))


def _steps(most: int) -> list[int]:
    """32, 45, 64, .. and `most`."""
    count = math.ceil(2 * math.log2(most / _FEWEST_STEPS))
    return sorted({*(round(_FEWEST_STEPS * 2 ** (k / 2)) for k in range(count)), most})


def _bound(problem: Problem, n_users: int, rows_per_user: int, budget: Budget, n_steps: int) -> float:
    """The module's bound. Users' gradients are taken to be as far apart as typical ones are, which the search finds."""
    noise = means_noise(n_users, budget, n_steps, OUTLIERS, RADII)
    if math.isinf(noise):
        return math.inf
    variance = problem.dimension * 2 * problem.user_variance(rows_per_user) * noise**2
    return step_and_bound(problem, n_users, rows_per_user, n_steps, variance)[1]


def smoothness_and_square(problem: Problem) -> tuple[float, float]:
    """beta, or 0 if the loss is non-smooth; and what a gradient's length adds to G then, besides its variance."""
    if problem.loss.smooth:
        return problem.loss.smoothness(problem.row_norm), 0.0
    return 0.0, problem.lipschitz**2


def step_and_bound(
    problem: Problem, n_users: int, rows_per_user: int, n_steps: int, variance: float
) -> tuple[float, float]:
    """The best step size where gradients have this variance, and the module's bound at it."""
    smoothness, square = smoothness_and_square(problem)
    step = sgd_step(smoothness, problem.reach, square + variance, n_steps)
    return step, sgd_excess(step, problem.reach, square + variance, n_steps) + price_of_users(
        problem, n_users, rows_per_user
    )


def price_of_users(problem: Problem, n_users: int, rows_per_user: int) -> float:
    """2 D sqrt(v/n): what it costs to know n users only."""
    return 2 * problem.reach * math.sqrt(problem.user_variance(rows_per_user) / n_users)
