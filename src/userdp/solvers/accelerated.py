"""Accelerated gradient steps on private means of all users' gradients: the most accurate solver, at many passes.

Every step asks for the filtered mean of the users' mean gradients, behind one AboveThreshold test for all steps, and
moves as Nesterov's method does; the average of the last half of the iterates is the result. Losses with kinks are
smoothed in closed form.

With D the distance of the start from a good point, beta the smoothness, T steps, k weights, and sigma the noise of a
single release that had the whole budget, the plan minimises over T, the smoothing and the preconditioner

    4 beta D^2 / T^2 + 4 D sqrt(k) sigma + (largest slope) * width^2 / (typical prediction),

the bound of AC-SA (Ghadimi and Lan 2012) with noise sigma sqrt(T) in each step. The last term is for losses with kinks
only, whose smoothness is (largest slope) / width: smoothing costs at most slope * width / 2, and only where a
prediction is within the width of its kink, which it is with probability 2 * width / (typical prediction) or so.

Paper: Alg. 2 and 3 in the full-batch case K_i = n_i.
Differs: one phase on all users instead of phases of regularised problems on parts of them, because with exact
composition a second phase pays only if users are left over; the h-index for the score, weights for coins.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from userdp.losses import Loss, smoothed
from userdp.planning import plan_means
from userdp.privacy.accounting import Budget, BudgetExceeded, Cost, gaussian_multiplier
from userdp.privacy.curator import Curator
from userdp.privacy.mechanism import Halted, check_counts
from userdp.privacy.plan import Plan, Step
from userdp.solvers.phased_sgd import Progress
from userdp.solvers.preconditioning import (
    LABEL,
    MOST_FEATURES,
    Whitening,
    moment_error,
    moment_step,
    release_whitening,
    whitened_distance,
)
from userdp.solvers.problem import Problem, Result
from userdp.statistics import MeanGradient

_MOMENT_SHARES = (0.0, 0.1, 0.2, 0.3)  # of the Gaussian budget
_STEPS = (10, 14, 20, 28, 40, 57, 80, 113, 160, 226)
_ENOUGH = 1.05  # the fewest steps whose bound is within 5% of the least are taken
_OUTLIERS = 0.03  # share of users that may be far from the others
_RADII = (0.1, 2.0)  # searched, in units of the expected distance of two users' gradients
_TIGHT = 2.4  # sensitivity of the mean / (radius / n), about
_WHITENED_SMOOTHNESS = 2.0  # largest eigenvalue of the whitened second moment: the released one is off by its noise


@dataclass(frozen=True)
class AcceleratedPlan:
    """A certified plan and how to carry it out."""

    plan: Plan
    loss: Loss
    n_steps: int
    smoothness: float
    radius: float
    rows_per_user: int
    bound: float
    moment_error: float | None

    @property
    def n_gradients(self) -> int:
        """Gradients computed at most: the search and every step look at each row once."""
        return self.rows_per_user * self.plan.n_users * (self.n_steps + 1)


@dataclass(frozen=True)
class _Choice:
    bound: float
    moment_share: float
    n_steps: int
    width: float | None
    smoothness: float
    radius: float


def plan_accelerated(
    problem: Problem, n_users: int, rows_per_user: int, budget: Budget, max_gradients: int | None = None
) -> AcceleratedPlan:
    """The plan with the least bound; raises `BudgetExceeded` with the number of users that would do."""
    check_counts(n_users=n_users, rows_per_user=rows_per_user)
    if budget.delta == 0:
        raise BudgetExceeded(f"Expected more than n_users={n_users}, whatever it is: use delta > 0. Nothing was spent.")
    precision = 1 / gaussian_multiplier(budget) ** 2
    passes = math.inf if max_gradients is None else max_gradients / (n_users * rows_per_user)
    steps = [n_steps for n_steps in _STEPS if n_steps + 1 <= passes]
    if not steps:
        raise ValueError(
            f"Expected max_gradients={max_gradients} >= {n_users * rows_per_user * (_STEPS[0] + 1):,}, which is "
            f'{_STEPS[0] + 1} passes over the rows: use solver="phased-sgd" for one pass.'
        )
    shares = _MOMENT_SHARES if problem.n_features <= MOST_FEATURES else (0.0,)
    choices = [_bound(problem, n_users, precision, share, n) for n in steps for share in shares]
    enough = _ENOUGH * min(choice.bound for choice in choices)
    fewest = next(choice.n_steps for choice in choices if choice.bound <= enough)
    choice = min((c for c in choices if c.n_steps == fewest), key=lambda choice: choice.bound)
    first: tuple[Step, ...] = ()
    error, other = None, Cost()
    if choice.moment_share:
        multiplier = 1 / math.sqrt(choice.moment_share * precision)
        first = (moment_step(n_users, problem.n_features, multiplier),)
        error, other = moment_error(n_users, problem.n_features, multiplier), first[0].mechanism.cost
    means = plan_means(n_users, budget, choice.n_steps, outliers=_OUTLIERS, radii=_RADII, other=other)
    plan = Plan(n_users, (*first, *means.steps))
    plan.certify(budget)
    loss = problem.loss if choice.width is None else smoothed(problem.loss, choice.width)
    numbers = (choice.n_steps, choice.smoothness, choice.radius, rows_per_user, choice.bound, error)
    return AcceleratedPlan(plan, loss, *numbers)


def _bound(problem: Problem, n_users: int, precision: float, moment_share: float, n_steps: int) -> _Choice:
    """The module's bound for this preconditioner and number of steps."""
    distance, row_square, spread = problem.reach, problem.row_norm**2, 1.0
    if moment_share:
        error = moment_error(n_users, problem.n_features, 1 / math.sqrt(moment_share * precision))
        distance = whitened_distance(problem, error)
        row_square, spread = float(problem.n_features), _WHITENED_SMOOTHNESS / problem.n_features
    radius = math.sqrt(2 * row_square) * problem.typical_slope
    noise = _TIGHT * radius / n_users / math.sqrt((1 - moment_share) * precision)
    largest_slope = problem.lipschitz / problem.row_norm
    curvature, width, rounding = problem.loss.curvature, None, 0.0
    if not problem.loss.smooth:
        # 4 (slope/width) spread row_square D^2 / T^2 + slope width^2 / scale is least at this width.
        scale = problem.typical_prediction
        width = (2 * spread * row_square * scale * distance**2 / n_steps**2) ** (1 / 3)
        curvature, rounding = largest_slope / width, largest_slope * min(width / 2, width**2 / scale)
    smoothness = curvature * spread * row_square
    bias = 4 * smoothness * distance**2 / n_steps**2
    bound = bias + 4 * distance * math.sqrt(problem.dimension) * noise + rounding
    return _Choice(bound, moment_share, n_steps, width, smoothness, radius)


def run(problem: Problem, plan: AcceleratedPlan, curator: Curator, progress: Progress | None = None) -> Result:
    """Carry out a plan. All it sees of the data are the curator's releases; on a halt the last point stands."""
    report = progress or (lambda label, done, total: None)
    whitening: Whitening | None = None
    average, n_done, message, summary = problem.start, 0, "", {}
    try:
        if plan.moment_error is not None:
            report(LABEL, 0, plan.n_steps)
            whitening = release_whitening(curator, problem.n_features, problem.row_norm, plan.moment_error)
        descent = _Descent(problem, plan, whitening)
        report("radius", 0, plan.n_steps)
        (radius,) = curator.release("radius", descent.statistic(), plan.radius)
        summary = {"users": plan.plan.n_users, "steps": plan.n_steps, "radius": float(radius)}
        for n_done in range(plan.n_steps):
            report("gradient step", n_done, plan.n_steps)
            descent.move(curator.release("mean", descent.statistic(), float(radius)))
            average = descent.result()
    except Halted:
        message = _advice(n_done)
    return Result(average, bool(message), message, plan.n_gradients, plan.bound, (summary,) if summary else ())


class _Descent:
    """Nesterov's method in the given coordinates, and the average of the last half of its iterates."""

    def __init__(self, problem: Problem, plan: AcceleratedPlan, whitening: Whitening | None) -> None:
        self._problem, self._plan, self._whitening = problem, plan, whitening
        self._domain = problem.domain if whitening is None else whitening.around(problem.domain, problem.dimension)
        start = problem.start if whitening is None else whitening.from_weights(problem.start)
        self._point = self._ahead = self._domain.project(start)
        self._total, self._averaged, self._steps = np.zeros(start.size), 0, 0

    def statistic(self) -> MeanGradient:
        if self._whitening is None:
            return MeanGradient(self._plan.loss, self._ahead)
        return MeanGradient(self._plan.loss, self._whitening.to_weights(self._ahead), self._whitening.basis)

    def move(self, gradient: np.ndarray) -> None:
        self._steps += 1
        before, self._point = self._point, self._domain.project(self._ahead - gradient / self._plan.smoothness)
        self._ahead = self._point + (self._steps - 1) / (self._steps + 2) * (self._point - before)
        if 2 * self._steps > self._plan.n_steps:
            self._total, self._averaged = self._total + self._point, self._averaged + 1

    def result(self) -> np.ndarray:
        """The average so far, in the features' own units and inside the domain."""
        point = self._total / self._averaged if self._averaged else self._point
        if self._whitening is None:
            return self._problem.domain.project(point)
        return self._whitening.project(self._problem.domain, self._whitening.to_weights(point))


def _advice(n_done: int) -> str:
    stands = "the start" if n_done == 0 else f"what was reached after {n_done} steps"
    return (
        f"A private test failed: too many users' gradients are far from the others. The result is {stands}. What you "
        "can do, with a new budget: fill missing values and check that targets are coded as the loss expects (a user "
        "with one NaN is an outlier), or raise row_norm if rows are longer than declared. The budget of this run is "
        "spent."
    )
