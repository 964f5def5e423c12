"""Earlier work: projected SGD on winsorised means of users' rotated gradients.

Every step releases the mean gradient of all users or of a Poisson sample of them (`Winsorized`), and the result is the
average of the points. With D the distance of the start from the best point, G the usual length of a gradient, beta the
smoothness, tau the spread of users' gradients, V the variance of a step's gradient and T steps, the plan's bound is

    D^2 / (2 eta T) + eta V,  eta = min(1/(2 beta), D / sqrt(2 V T))       smooth
    D sqrt((G^2 + V) / T)                                                  if that is less, or for non-smooth losses
    + 2 D tau / sqrt(n) + D tau / n                                        for having n users, and for clipping

V is that of the noise and, for a sample of the fraction q, (1-q)/(q n) (tau^2 + k tau'^2): who is in it, and how many.
The counts get noise so that in all steps and coordinates no empty bin wins, but for one chance in 100; the means get
the rest of the budget.

Accuracy, and not privacy, rests on how wide rotated gradients are spread. With tau the root mean square distance of a
user's mean gradient from the average one and k coordinates after rotation, they are expected within

    tau' = tau min(1, sqrt(2 ln(2n) / k))

of their mean: for signs drawn at random a vector of length tau has a coordinate beyond tau sqrt(2 ln(2n) / k) with a
chance of at most 1/n, and no coordinate is beyond the vector's length.

Paper: Bassily and Sun 2023, the central algorithm; Levy et al. 2021, who have tau' = 10 tau sqrt(ln(k n / alpha) / k).
Differs: T and the batch minimise the bound, where the source has T = n^2 epsilon^2 / (c^2 d) and batches of
n epsilon / ((e-1) sqrt(2 T ln(2/delta))), drawn without replacement.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm

from userdp.paper.accelerated import cheapest_plan
from userdp.paper.mean_plans import sampled_multiplier
from userdp.privacy.accounting import (
    Budget,
    BudgetExceeded,
    Cost,
    gaussian_multiplier,
    least_enough,
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
from userdp.statistics.gradients import MeanGradient
from userdp_research.mechanisms.winsorized import Winsorized
from userdp_research.rotation import Rotated, rotated_size, unrotate

STEPS = (3, 5, 7, *(round(10 * 2 ** (k / 2)) for k in range(15)))  # .. 10, 14, 20, .. 1,280
_SAMPLED = tuple(0.5 / 2**k for k in range(8))  # fraction of the users in a step
_WRONG_BIN = 0.01  # chance that some empty bin wins in some step
_COUNT_FRACTION = 0.5  # most that counts may take of the budget
_TOLERANCE = 0.1  # by how much a bound may be above the least for the sake of fewer gradients


@dataclass(frozen=True)
class RotatedRange:
    """Rotated gradients in numbers: `size` coordinates, bins of width 2 `radius`, `n_bins` of them in the range.

    spread: tau; reach: how far clipped values may be from the middle of their interval, a bin widened by one on both
    sides or the whole range.
    """

    size: int
    spread: float
    radius: float
    n_bins: int

    @staticmethod
    def of(problem: Problem, n_users: int, rows_per_user: int) -> RotatedRange:
        """Of users' mean gradients, which are at most as long as the Lipschitz constant."""
        spread, size = math.sqrt(problem.user_variance(rows_per_user)), rotated_size(problem.dimension)
        radius = spread * min(1.0, math.sqrt(2 * math.log(2 * n_users) / size))
        return RotatedRange(size, spread, radius, math.ceil(problem.lipschitz / radius))

    @property
    def reach(self) -> float:
        return min(3, self.n_bins) * self.radius

    @property
    def range(self) -> float:
        return self.n_bins * self.radius

    def rare(self, n_steps: int) -> float:
        """Standard deviations that noise exceeds with a chance of 1% at most in any bin, coordinate and step."""
        return float(norm.isf(_WRONG_BIN / (self.size * self.n_bins * n_steps)))


@dataclass(frozen=True)
class _Choice:
    """So many steps on samples of the users; `excess` is the module's bound."""

    excess: float
    gradients: int
    n_steps: int
    sampled: float
    step_size: float


def plan_bassily_sun(
    problem: Problem, n_users: int, rows_per_user: int, budget: Budget, max_gradients: int | None = None
) -> SolverPlan:
    """The plan with the fewest gradients whose bound is within 10% of the least, over steps and sampled fractions."""
    n_users, rows_per_user = check_sizes(n_users, rows_per_user, budget)
    box = RotatedRange.of(problem, n_users, rows_per_user)
    choices = [
        _choice(problem, box, n_users, rows_per_user, budget, n_steps, sampled)
        for n_steps in STEPS
        for sampled in (1.0, *_SAMPLED)
    ]
    possible = [choice for choice in choices if math.isfinite(choice.excess)]
    if not possible:
        purpose = f"to find the range of {problem.dimension} coordinates"
        raise too_few(purpose, lambda n: feasible(problem, n, rows_per_user, budget), n_users, budget)
    plan = cheapest_plan(possible, _TOLERANCE, max_gradients, lambda best: _plan(problem, box, best, n_users, budget))
    if plan is not None:
        return plan
    raise ValueError(
        f"Expected max_gradients={max_gradients} >= {min(c.gradients for c in possible):,} for {n_users:,} users of "
        f"{rows_per_user} rows: allow more, or cap rows_per_user lower. Nothing was spent."
    )


def feasible(problem: Problem, n_users: int, rows_per_user: int, budget: Budget) -> bool:
    """Whether there are users enough to find the bins in a few steps on all of them."""
    if budget.delta == 0:
        return False
    box = RotatedRange.of(problem, n_users, rows_per_user)
    return math.isfinite(_choice(problem, box, n_users, rows_per_user, budget, STEPS[0], 1.0).excess)


def too_few(purpose: str, feasible: Callable[[int], bool], n_users: int, budget: Budget) -> BudgetExceeded:
    """The refusal, with a number of users that would do."""
    least = least_enough(feasible, n_users)
    would_do = "no number up to 10 million would do" if least is None else f"about {least:,} users would do"
    return BudgetExceeded(
        f"Expected more than n_users={n_users} {purpose} at epsilon={budget.epsilon:g}: {would_do}, or a larger "
        "epsilon. Nothing was spent.",
        enough_users=least,
    )


def _choice(
    problem: Problem,
    box: RotatedRange,
    n_users: int,
    rows_per_user: int,
    budget: Budget,
    n_steps: int,
    sampled: float,
) -> _Choice:
    """The module's bound; infinite where counts would take too much."""
    mu_squared = 1 / gaussian_multiplier(budget) ** 2
    step_mu_squared = mu_squared / n_steps if sampled == 1 else sampled_multiplier(mu_squared, sampled, n_steps) ** -2
    gradients = gradients_of_samples(n_users, rows_per_user, sampled, n_steps)
    mean = winsorized_mean(box, n_users, n_steps, sampled, step_mu_squared)
    if mean is None:
        return _Choice(math.inf, gradients, n_steps, sampled, 0.0)
    noise = problem.dimension * noise_std(mean, box) ** 2
    chance = (1 - sampled) / (sampled * n_users) * (box.spread**2 + box.size * box.radius**2)
    bound, step_size = excess_and_step(problem, problem.reach, noise + chance, n_steps)
    bound += problem.reach * box.spread * (2 / math.sqrt(n_users) + 1 / n_users)
    return _Choice(bound, gradients, n_steps, sampled, step_size)


def excess_and_step(
    problem: Problem, distance: float, variance: float, n_steps: int, regularizer: float = 0.0
) -> tuple[float, float]:
    """The module's bound on what `n_steps` leave of the mean loss + regularizer/2 |w - start|^2, and their size."""
    usual = (problem.row_norm * problem.typical_slope + regularizer * distance) ** 2
    step_size = distance / math.sqrt((usual + variance) * n_steps)
    bound = distance * math.sqrt((usual + variance) / n_steps)
    if not problem.loss.smooth:
        return bound, step_size
    smoothness = problem.loss.curvature * problem.row_norm**2 + regularizer
    smooth_step = min(1 / (2 * smoothness), distance / math.sqrt(2 * variance * n_steps))
    return min((bound, step_size), (distance**2 / (2 * smooth_step * n_steps) + smooth_step * variance, smooth_step))


def winsorized_mean(
    box: RotatedRange, n_users: int, n_steps: int, sampled: float, step_mu_squared: float
) -> Winsorized | None:
    """The mechanism for 1/z^2 = `step_mu_squared` a step; None if counts would take too much of it.

    A bin that holds half of the values must beat empty ones: their difference has sqrt(2) times the noise of a count.
    """
    count_std = sampled * n_users / 2 / (math.sqrt(2) * box.rare(n_steps))
    count_multiplier = count_std / math.sqrt(box.size * (2 if sampled == 1.0 else 1))
    left = step_mu_squared - 1 / count_multiplier**2
    if left < (1 - _COUNT_FRACTION) * step_mu_squared:
        return None
    return Winsorized(n_users, box.n_bins, count_multiplier, 1 / math.sqrt(left), n_steps, sampled)


def noise_std(mean: Winsorized, box: RotatedRange) -> float:
    """Standard deviation of a coordinate's noise."""
    return mean.mean_multiplier * mean.sensitivity(box.reach, box.size)


def _plan(problem: Problem, box: RotatedRange, choice: _Choice, n_users: int, budget: Budget) -> SolverPlan:
    """Records of the chosen numbers, calibrated exactly."""
    if choice.sampled == 1.0:
        multiplier = gaussian_multiplier(budget, choice.n_steps)
    else:
        failure = choice.n_steps * (1 - choice.sampled) ** (n_users - 1)
        multiplier = subsampled_multiplier(budget, choice.sampled, choice.n_steps, Cost(failure=2 * failure))
    mean = winsorized_mean(box, n_users, choice.n_steps, choice.sampled, (1 - 1e-9) / multiplier**2)
    if mean is None:
        raise BudgetExceeded(f"Expected more users in steps of {choice.sampled:.0%} of them. Nothing was spent.")
    own = {"sampling_probability": choice.sampled, "step_size": choice.step_size}
    # The radius is half of a bin's width.
    phase = Phase("mean", n_users, box.radius, noise_std(mean, box) / box.radius, n_steps=choice.n_steps, **own)
    plan = Plan(n_users, (Step(phase.label, 0, n_users, mean),))
    return SolverPlan(plan, WinsorizedSteps((phase,)), choice.gradients, choice.excess)


@dataclass(frozen=True)
class WinsorizedSteps:
    """Projected steps along winsorised mean gradients; the average of the points counts."""

    phases: tuple[Phase]

    def releases(self, problem: Problem, outcome: Outcome) -> Releases[None]:
        (phase,) = self.phases
        point, total = problem.start, np.zeros(problem.dimension)
        middle = np.zeros(rotated_size(problem.dimension))
        for _ in range(phase.n_steps):
            statistic = Rotated(MeanGradient(problem.loss, point), middle)
            released = yield Request(phase.label, statistic, phase.radius, "gradient step")
            point = problem.domain.project(point - phase.step_size * unrotate(released, problem.dimension))
            total = total + point
        outcome.weights = problem.domain.project(total / phase.n_steps)
        own = {"steps": phase.n_steps, "users_a_step": phase.users_a_step, "step_size": phase.step_size}
        outcome.phases.append(phase.summary(phase.radius, **own))
