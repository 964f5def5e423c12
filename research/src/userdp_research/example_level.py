"""Example-level DP-SGD with a cap on each user's rows: what one gets without any thought of users.

Earlier work, to compare with. Every round keeps each row with probability q; gradients of kept rows are clipped to c,
added up, divided by the expected number of rows q n m, and get noise; a projected step follows. The result is the
average iterate. Privacy of whole users comes from the accounting alone (`SampledRows`): a user has at most m rows.

With z the noise in units of one row, D the distance of the start from a good point, beta the smoothness, L the largest
slope, T rounds, k weights and v the variance of users' mean gradients, plans are ordered by

    D^2 / (2 eta T) + eta G + 2 D sqrt(v/n),    eta <= 1/(2 beta), G = V                  smooth
                                                G = L^2 + V                               non-smooth
    V = k (z c / (q n m))^2 + (1 - q) c^2 / (q n m)                                       variance of a round's gradient

(`sgd_excess`). It is a bound where no gradient is longer than c. Else it orders plans: of a linear model a clipped
gradient is still one of a convex loss, whose slopes are cut off, but not of the given one.

The noise hardly depends on q, and not on m: z c/(q n m) is about 2 c sqrt(T)/(n mu), mu that of the budget. This is the
price of the thoughtlessness: more rows per user average nothing away.

Paper: Charles et al. 2024, "ELS".
Differs: T, q, c and the step are planned, not tuned on data.
"""

from __future__ import annotations

from dataclasses import dataclass

from userdp.paper.accelerated import cheapest_plan
from userdp.privacy.accounting import Budget
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
from userdp_research.asi_liu import step_and_bound
from userdp_research.descent import AveragedSGD
from userdp_research.mechanisms.mixtures import claimed_epsilon, likely_multiplier, row_multiplier
from userdp_research.mechanisms.sampled_rows import SampledRows
from userdp_research.row_statistics import ClippedRowGradients

_ROUNDS = tuple(round(32 * 2 ** (k / 2)) for k in range(14))  # 32, 45, 64, .. 2,896
_SAMPLED = tuple(2.0**-k for k in range(11))  # 1, .5, .. .001
_CLIP = 1.0  # in units of a gradient's usual length
_TOLERANCE = 0.01  # of the least bound, for fewer gradients


@dataclass(frozen=True)
class _Choice:
    """So many rounds, each row being in one with probability q; `excess` is the module's bound."""

    gradients: int
    rounds: int
    q: float
    excess: float


def plan_example_level(
    problem: Problem, n_users: int, rows_per_user: int, budget: Budget, max_gradients: int | None = None
) -> SolverPlan:
    """The plan with the fewest gradients whose bound is within 1% of the least, over rounds and sampling.

    Any number of users will do; `rows_per_user` is enforced: further rows of a user are never looked at.
    """
    n_users, rows_per_user = check_sizes(n_users, rows_per_user, budget)
    size = (problem, n_users, rows_per_user)
    sizes = [
        (gradients_of_samples(n_users * rows_per_user, 1, q, rounds), rounds, q)
        for rounds in _ROUNDS
        for q in _SAMPLED
        if q * n_users * rows_per_user >= 1
    ]
    choices = [
        _Choice(*each, _step_and_bound(*size, *each[1:], likely_multiplier(budget, rows_per_user, each[2], each[1]))[1])
        for each in sizes
        if max_gradients is None or each[0] <= max_gradients
    ]
    if not choices:
        raise ValueError(
            f"Expected max_gradients={max_gradients} >= {min(sizes)[0]:,}, for {_ROUNDS[0]} rounds on few rows. "
            "Nothing was spent."
        )
    plan = cheapest_plan(choices, _TOLERANCE, None, lambda best: _plan(*size, budget, best))
    assert plan is not None, "any number of users will do"
    return plan


def _plan(problem: Problem, n_users: int, rows_per_user: int, budget: Budget, best: _Choice) -> SolverPlan:
    size, rounds, q = (problem, n_users, rows_per_user), best.rounds, best.q
    multiplier = row_multiplier(budget, rows_per_user, q, rounds)
    step_size, bound = _step_and_bound(*size, rounds, q, multiplier)
    mean = SampledRows(n_users, rows_per_user, q, multiplier, claimed_epsilon(budget), rounds)
    plan = Plan(n_users, (Step("gradients", 0, n_users, mean),))
    ratio = multiplier * mean.sensitivity(1.0, problem.dimension)
    own = {"sampling_probability": q, "step_size": step_size}
    phase = Phase("gradients", n_users, _clip(problem), ratio, n_steps=rounds, **own)
    return SolverPlan(plan, RowSteps((phase,)), best.gradients, bound)


def _clip(problem: Problem) -> float:
    return _CLIP * min(problem.lipschitz, problem.row_norm * problem.typical_slope)


def _step_and_bound(
    problem: Problem, n_users: int, rows_per_user: int, rounds: int, q: float, multiplier: float
) -> tuple[float, float]:
    """The step size, and the module's bound at it."""
    n_rows, clip = q * n_users * rows_per_user, _clip(problem)
    variance = problem.dimension * (multiplier * clip / n_rows) ** 2 + (1 - q) * clip**2 / n_rows
    return step_and_bound(problem, n_users, rows_per_user, rounds, variance)


@dataclass(frozen=True)
class RowSteps:
    """Plain steps along means of clipped gradients of single rows; it never aborts."""

    phases: tuple[Phase]

    def releases(self, problem: Problem, outcome: Outcome) -> Releases[None]:
        (phase,) = self.phases
        descent = AveragedSGD(problem.start, problem.domain, phase.step_size)
        for _ in range(phase.n_steps):
            gradients = ClippedRowGradients(MeanGradient(problem.loss, descent.query), phase.radius)
            descent.move((yield Request(phase.label, gradients, phase.radius, "gradient step")))
        outcome.weights = problem.domain.project(descent.point)
        own = {"steps": phase.n_steps, "rows_sampled": phase.sampling_probability, "step_size": phase.step_size}
        outcome.phases.append(phase.summary(phase.radius, **own))
