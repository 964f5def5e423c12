"""Earlier work: projected SGD on winsorised means of users' rotated gradients.

Every step releases the mean gradient of all users or of a Poisson sample of them (`Winsorized`), and the result is the
average of the points. With D the distance of the start from the best point, G the usual length of a gradient, beta the
smoothness, tau the spread of users' gradients, V the variance of a step's gradient and T steps, the plan's bound is

    D^2 / (2 eta T) + eta V,  eta = min(1/(2 beta), D / sqrt(2 V T))       smooth
    D sqrt((G^2 + V) / T)                                                  if that is less, or where losses have kinks
    + 2 D tau / sqrt(n) + D tau / n                                        for having n users, and for clipping

V is that of the noise and, for a sample of the fraction q, (1-q)/(q n) (tau^2 + k tau'^2): who is in it, and how many.
The counts get noise so that in all steps and coordinates no empty bin wins, but for one chance in 100; the means get
the rest of the budget.

Paper: Bassily and Sun 2023, the central algorithm.
Differs: T and the batch minimise the bound, where the source has T = n^2 epsilon^2 / (c^2 d) and batches of
n epsilon / ((e-1) sqrt(2 T ln(2/delta))), drawn without replacement.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm

from userdp.baselines.mechanisms.winsorized import Winsorized
from userdp.baselines.rotated_gradients import Coordinates, coordinates
from userdp.baselines.rotation import Rotated, unrotate
from userdp.privacy.accounting import Budget, BudgetExceeded, Cost, gaussian_multiplier, subsampled_multiplier
from userdp.privacy.curator import Curator
from userdp.privacy.plan import Plan, Step
from userdp.solvers.mean_plans import enough_users, sampled_multiplier
from userdp.solvers.outcome import summary
from userdp.solvers.phased_sgd import Progress
from userdp.solvers.plans import SolverPlan, check_sizes, gradients_of_samples
from userdp.solvers.problem import Problem, Result
from userdp.vectors.gradients import MeanGradient

_STEPS = (3, 5, 7, *(round(10 * 2 ** (k / 2)) for k in range(15)))  # .. 10, 14, 20, .. 1,280
_SAMPLED = tuple(0.5 / 2**k for k in range(8))  # fraction of the users in a step
_WRONG_BIN = 0.01  # chance that some empty bin wins in some step
_COUNT_FRACTION = 0.5  # most that counts may take of the budget
_TOLERANCE = 0.1  # by how much a bound may be above the least for the sake of fewer gradients


@dataclass(frozen=True)
class Phase:
    """All steps; `radius` is half of a bin's width."""

    label: str
    n_users: int
    n_steps: int
    users_a_step: float
    step_size: float
    radius: float
    noise_ratio: float  # noise std of a coordinate / radius


@dataclass(frozen=True)
class _Choice:
    bound: float
    gradients: int
    n_steps: int
    sampled: float
    step_size: float


def plan_bassily_sun(
    problem: Problem, n_users: int, rows_per_user: int, budget: Budget, max_gradients: int | None = None
) -> SolverPlan[Phase]:
    """The plan with the fewest gradients whose bound is within 10% of the least, over steps and sampled fractions."""
    n_users, rows_per_user = check_sizes(n_users, rows_per_user, budget)
    box = coordinates(problem, n_users, rows_per_user)
    choices = [
        _choice(problem, box, n_users, rows_per_user, budget, n_steps, sampled)
        for n_steps in _STEPS
        for sampled in (1.0, *_SAMPLED)
    ]
    possible = [choice for choice in choices if math.isfinite(choice.bound)]
    if not possible:
        raise _too_few(problem, n_users, rows_per_user, budget)
    allowed = [c for c in possible if max_gradients is None or c.gradients <= max_gradients]
    while allowed:
        enough = (1 + _TOLERANCE) * min(c.bound for c in allowed)
        best = min((c for c in allowed if c.bound <= enough), key=lambda c: (c.gradients, c.bound))
        try:
            return _plan(problem, box, best, n_users, budget)
        except BudgetExceeded:  # the noise of samples was underestimated
            allowed.remove(best)
    raise ValueError(
        f"Expected max_gradients={max_gradients} >= {min(c.gradients for c in possible):,} for {n_users:,} users of "
        f"{rows_per_user} rows: allow more, or cap rows_per_user lower. Nothing was spent."
    )


def feasible(problem: Problem, n_users: int, rows_per_user: int, budget: Budget) -> bool:
    """Whether there are users enough to find the bins in a few steps on all of them."""
    if budget.delta == 0:
        return False
    box = coordinates(problem, n_users, rows_per_user)
    return math.isfinite(_choice(problem, box, n_users, rows_per_user, budget, _STEPS[0], 1.0).bound)


def _too_few(problem: Problem, n_users: int, rows_per_user: int, budget: Budget) -> BudgetExceeded:
    least = enough_users(lambda n: feasible(problem, n, rows_per_user, budget), n_users)
    would_do = "no number up to 10 million would do" if least is None else f"about {least:,} users would do"
    return BudgetExceeded(
        f"Expected more than n_users={n_users} to find the range of {problem.dimension} coordinates at "
        f"epsilon={budget.epsilon:g}: {would_do}, or a larger epsilon. Nothing was spent.",
        enough_users=least,
    )


def _choice(
    problem: Problem,
    box: Coordinates,
    n_users: int,
    rows_per_user: int,
    budget: Budget,
    n_steps: int,
    sampled: float,
) -> _Choice:
    """The module's bound; infinite where counts would take too much."""
    precision = 1 / gaussian_multiplier(budget) ** 2
    step_precision = precision / n_steps if sampled == 1 else sampled_multiplier(precision, sampled, n_steps) ** -2
    gradients = gradients_of_samples(n_users, rows_per_user, sampled, n_steps)
    mean = _record(box, n_users, n_steps, sampled, step_precision)
    if mean is None:
        return _Choice(math.inf, gradients, n_steps, sampled, 0.0)
    noise = problem.dimension * _noise(mean, box) ** 2
    chance = (1 - sampled) / (sampled * n_users) * (box.spread**2 + box.size * box.radius**2)
    variance, distance = noise + chance, problem.reach
    usual = (problem.row_norm * problem.typical_slope) ** 2
    step_size = distance / math.sqrt((usual + variance) * n_steps)
    bound = distance * math.sqrt((usual + variance) / n_steps)
    if problem.loss.smooth:
        smooth_step = min(
            1 / (2 * problem.loss.curvature * problem.row_norm**2), distance / math.sqrt(2 * variance * n_steps)
        )
        smooth_bound = distance**2 / (2 * smooth_step * n_steps) + smooth_step * variance
        step_size, bound = min((step_size, bound), (smooth_step, smooth_bound), key=lambda pair: pair[1])
    bound += distance * box.spread * (2 / math.sqrt(n_users) + 1 / n_users)
    return _Choice(bound, gradients, n_steps, sampled, step_size)


def _record(box: Coordinates, n_users: int, n_steps: int, sampled: float, step_precision: float) -> Winsorized | None:
    """The mechanism for 1/z^2 = `step_precision` a step; None if counts would take too much of it.

    A bin that holds half of the values must beat empty ones: their difference has sqrt(2) times the noise of a count.
    """
    rare = float(norm.isf(_WRONG_BIN / (box.size * box.n_bins * n_steps)))
    count_std = sampled * n_users / 2 / (math.sqrt(2) * rare)
    count_multiplier = count_std / math.sqrt(box.size * (2 if sampled == 1.0 else 1))
    left = step_precision - 1 / count_multiplier**2
    if left < (1 - _COUNT_FRACTION) * step_precision:
        return None
    return Winsorized(n_users, box.n_bins, count_multiplier, 1 / math.sqrt(left), n_steps, sampled)


def _noise(mean: Winsorized, box: Coordinates) -> float:
    """Standard deviation of a coordinate's noise."""
    return mean.mean_multiplier * mean.sensitivity(np.full(box.size, box.reach))


def _plan(problem: Problem, box: Coordinates, choice: _Choice, n_users: int, budget: Budget) -> SolverPlan[Phase]:
    """Records of the chosen numbers, calibrated exactly."""
    if choice.sampled == 1.0:
        multiplier = gaussian_multiplier(budget, choice.n_steps)
    else:
        failure = choice.n_steps * (1 - choice.sampled) ** (n_users - 1)
        multiplier = subsampled_multiplier(budget, choice.sampled, choice.n_steps, Cost(failure=2 * failure))
    mean = _record(box, n_users, choice.n_steps, choice.sampled, (1 - 1e-9) / multiplier**2)
    if mean is None:
        raise BudgetExceeded(f"Expected more users in steps of {choice.sampled:.0%} of them. Nothing was spent.")
    ratio = _noise(mean, box) / box.radius
    users_a_step = choice.sampled * n_users
    phase = Phase("mean", n_users, choice.n_steps, users_a_step, choice.step_size, box.radius, ratio)
    plan = Plan(n_users, (Step(phase.label, 0, n_users, mean),))
    plan.certify(budget)
    return SolverPlan(plan, (phase,), choice.gradients, choice.bound)


def run(problem: Problem, plan: SolverPlan[Phase], curator: Curator, progress: Progress | None = None) -> Result:
    """Carry out a plan. All it sees of the data are the curator's releases."""
    report = progress or (lambda label, done, total: None)
    (phase,) = plan.phases
    point, total = problem.start, np.zeros(problem.dimension)
    middle = np.zeros(coordinates(problem, phase.n_users, 1).size)
    for number in range(phase.n_steps):
        report("gradient step", number, phase.n_steps)
        statistic = Rotated(MeanGradient(problem.loss, point), middle)
        released = curator.release(phase.label, statistic, phase.radius)
        gradient = unrotate(released, problem.dimension)
        point = problem.domain.project(point - phase.step_size * gradient)
        total = total + point
    own = {"steps": phase.n_steps, "users_a_step": phase.users_a_step, "step_size": phase.step_size}
    weights = problem.domain.project(total / phase.n_steps)
    return Result(weights, False, "", plan.n_gradients, plan.bound, (summary(phase, phase.radius, **own),))
