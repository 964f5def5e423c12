"""User-level DP-SGD: steps along the mean of users' gradients, each shortened to the same length, with noise.

What people run today, with nothing left to tune. Gradients are shortened to far below their usual length, so that only
their directions count: the clip then scales signal and noise alike, and one number remains, how far the steps lead in
all. Steps fall linearly to 0 and the last point is the result. There is no test and no search to pay for, and no
smallest number of users: where users are few or epsilon is small this is the most accurate solver. Where they are many,
what shortening does to the objective costs more than noise, and the others win.

A user whose gradient is not finite votes, with the same length, in one more coordinate: their share is known at no cost
beyond one coordinate's noise, and if it is large the run halts, as others do when their test fails.

The plan's bound, with z the noise multiplier of all T steps together, c a gradient's usual length, D the distance of
the start from a good point and k weights, is that of gradient steps whose gradients were shortened to c only:

    2 beta D^2 / T + 2 D c sqrt(k) z / n

D sqrt(V/T) for noise of variance V a step, at the best step size; and what T steps leave, four times that for what
shortening does. It is no theorem, because shortened gradients are not gradients of the loss: it orders plans.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from userdp.privacy.accounting import Budget, gaussian_multiplier
from userdp.privacy.curator import Curator
from userdp.privacy.means.clip import Clip
from userdp.privacy.mechanism import check_counts
from userdp.privacy.plan import Plan, Step
from userdp.solvers.outcome import halt_advice, summary
from userdp.solvers.phased_sgd import Progress
from userdp.solvers.preconditioning import (
    LABEL,
    MOST_FEATURES,
    moment_error,
    moment_step,
    release_whitening,
    whitened_distance,
)
from userdp.solvers.problem import Problem, Result
from userdp.statistics import FlaggedGradient, MeanGradient

_STEPS = 40
_MOMENT_SHARES = (0.0, 0.1, 0.2, 0.3)  # of the budget
_SHORTENED = 0.05  # the clip / a gradient's usual length
_PATH = 5.3  # steps' lengths together, if all users pulled in one direction / distance of a good point
_NOISE = 0.6  # most that the noise may move predictions / distance of a good point
_UNUSABLE = 0.25  # share of users without a gradient from which on the result is not to be trusted
_RARE = 4.0  # standard deviations that its noise may add
_WHITENED_SMOOTHNESS = 2.0  # as in `accelerated_tight`


@dataclass(frozen=True)
class Phase:
    """All steps: the clip is `radius`; `path` is what their lengths add up to."""

    label: str
    n_users: int
    n_steps: int
    radius: float
    noise_ratio: float  # noise std / radius
    path: float


@dataclass(frozen=True)
class ClippedPlan:
    """A certified plan and how to carry it out; `moment_error` as in the other solvers' plans."""

    plan: Plan
    phases: tuple[Phase, ...]
    n_gradients: int
    bound: float
    moment_error: float | None = None
    faithful: bool = False


def plan_clipped(
    problem: Problem, n_users: int, rows_per_user: int, budget: Budget, max_gradients: int | None = None
) -> ClippedPlan:
    """The plan with the least bound over shares of the budget for the preconditioner."""
    check_counts(n_users=n_users, rows_per_user=rows_per_user)
    n_rows = n_users * rows_per_user
    n_steps = _STEPS if max_gradients is None else min(_STEPS, max_gradients // n_rows)
    if n_steps < 1:
        raise ValueError(
            f"Expected max_gradients={max_gradients} >= {n_rows}, one for each row that users may have. Nothing was "
            "spent."
        )
    shares = _MOMENT_SHARES if problem.n_features <= MOST_FEATURES else (0.0,)
    plans = [_plan(problem, n_users, n_rows, budget, share, n_steps) for share in shares]
    best = min(plans, key=lambda plan: plan.bound)
    best.plan.certify(budget)
    return best


def _plan(
    problem: Problem, n_users: int, n_rows: int, budget: Budget, moment_share: float, n_steps: int
) -> ClippedPlan:
    multiplier = gaussian_multiplier(budget) * (1 + 1e-9)  # rounding of the shares
    steps: tuple[Step, ...] = ()
    error, row_square, steepest, distance = None, problem.row_norm**2, problem.row_norm**2, problem.reach
    if moment_share:
        steps = (moment_step(n_users, problem.n_features, multiplier / math.sqrt(moment_share)),)
        error = moment_error(n_users, problem.n_features, multiplier / math.sqrt(moment_share))
        row_square, steepest, distance = (
            float(problem.n_features),
            _WHITENED_SMOOTHNESS,
            whitened_distance(problem, error),
        )
    left = multiplier / math.sqrt(1 - moment_share)
    clip = Clip(n_users, left * math.sqrt(n_steps), rounds=n_steps)
    usual = math.sqrt(row_square) * problem.typical_slope
    radius, weights = _SHORTENED * usual, problem.dimension
    # Steps 2 (1 - t/T) path / T: together the noise of a weight is path * ratio * sqrt(4 / (3 T)).
    ratio = clip.noise_multiplier * clip.sensitivity(1.0, weights + 1)
    shaken = ratio * math.sqrt(4 / (3 * n_steps) * row_square)
    path = distance * min(_PATH, _NOISE / shaken)
    bound = 2 * problem.typical_curvature * steepest * distance**2 / n_steps
    bound += 2 * distance * usual * math.sqrt(weights) * left / n_users
    phase = Phase("gradients", n_users, n_steps, radius, ratio, path)
    plan = Plan(n_users, (*steps, Step(phase.label, 0, n_users, clip)))
    return ClippedPlan(plan, (phase,), n_rows * n_steps, bound, error)


def feasible(problem: Problem, n_users: int, rows_per_user: int, budget: Budget) -> bool:
    """Whether there is noise that the budget pays for: any number of users will do."""
    return budget.delta > 0


def run(problem: Problem, plan: ClippedPlan, curator: Curator, progress: Progress | None = None) -> Result:
    """Carry out a plan. All it sees of the data are the curator's releases."""
    report = progress or (lambda label, done, total: None)
    (phase,) = plan.phases
    whitening, domain, point = None, problem.domain, problem.start
    if plan.moment_error is not None:
        report(LABEL, 0, phase.n_steps)
        whitening = release_whitening(curator, problem.n_features, problem.row_norm, plan.moment_error)
        domain = whitening.around(problem.domain, problem.dimension)
        point = domain.project(whitening.from_weights(problem.start))
    unusable = 0.0
    for number in range(phase.n_steps):
        report("gradient step", number, phase.n_steps)
        weights = point if whitening is None else whitening.to_weights(point)
        gradient = MeanGradient(problem.loss, weights, None if whitening is None else whitening.basis)
        released = curator.release(phase.label, FlaggedGradient(gradient), phase.radius) / phase.radius
        unusable += float(released[-1]) / phase.n_steps
        length = 2 * (1 - number / phase.n_steps) * phase.path / phase.n_steps
        point = domain.project(point - length * released[:-1])
    message = halt_advice("users have gradients that are not finite, or are", "a user", "the start")
    if unusable > _UNUSABLE + _RARE * phase.noise_ratio / math.sqrt(phase.n_steps):
        weights = problem.start
    else:
        message, weights = "", problem.domain.project(point)
        if whitening is not None:
            weights = whitening.project(problem.domain, whitening.to_weights(point))
    released_phase = summary(phase, phase.radius, steps=phase.n_steps, path=phase.path)
    return Result(weights, bool(message), message, plan.n_gradients, plan.bound, (released_phase,))
