"""Earlier work: phases of regularised steps on winsorised means of all users' rotated gradients.

Phase i of S has its own users, n_i = n / 2^i of them (the first also those who are left), and minimises their mean loss
+ lambda_i/2 |w - w_{i-1}|^2 from the last phase's result w_{i-1}, lambda_i = 8^{i-1} lambda: as users halve, the step
1 / (lambda_i n_i) shrinks by 4. Each of its T_i steps releases the mean gradient of all its users (`Winsorized`), and
the average of the points counts. With E_0 the distance of the start from the best point, gap_i what the steps of phase
i leave of its objective (`bassily_sun.excess_and_step`, for a distance of at most 2 G / lambda_i), G the usual length
of a gradient and tau the spread of users' gradients, the plan's bound is

    sum_i (lambda_i/2 E_{i-1}^2 + 2 tau^2 / (lambda_i n_i)) + G E_S,      E_i^2 = 2 gap_i / lambda_i

the last phase's minimum is near the best point by the sum, and the result is near that minimum by E_S. Phases are what
general losses need; a linear model does without, and `bassily-sun` is far better there: with 10,000 users, epsilon 4, a
ball of radius 10 and 60 million gradients this left .05 to .32 of what could be learned, that .004 to .011.

Paper: Levy et al. 2021, the algorithm for stochastic convex optimisation: winsorised means in phased ERM (Feldman,
Koren and Talwar 2020).
Differs: S, lambda and T_i minimise the bound, where phased ERM has about log2 n phases and a lambda of its theorem,
because late phases of few users cannot find the range of a gradient. The source's own constants were not at hand. Bins
are as wide as gradients are expected to be spread at one point (`RotatedRange`), where the source takes a radius for
all points at once, wider by about sqrt(d): accuracy rests on it, not privacy. Noise is Gaussian and calibrated
(`Winsorized`).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

import numpy as np

from userdp.paper.accelerated import cheapest_plan
from userdp.privacy.accounting import Budget, gaussian_multiplier
from userdp.privacy.plan import Plan, Step
from userdp.solvers.problem import Problem
from userdp.solvers.solver import Outcome, Phase, Releases, Request, SolverPlan, check_sizes
from userdp.statistics.gradients import MeanGradient
from userdp_research.bassily_sun import (
    STEPS,
    RotatedRange,
    excess_and_step,
    feasible,
    noise_std,
    too_few,
    winsorized_mean,
)
from userdp_research.descent import AveragedSGD
from userdp_research.mechanisms.winsorized import Winsorized
from userdp_research.rotation import Rotated, rotated_size, unrotate

_MOST_PHASES = 6
_REGULARIZERS = np.geomspace(1e-5, 1.0, 16)  # lambda in units of G / (distance of the start)
_GROWTH = 8.0  # of the regulariser from phase to phase
_TOLERANCE = 0.1  # by how much a bound may be above the least for the sake of fewer gradients


@dataclass(frozen=True, kw_only=True)
class LevyPhase(Phase):
    """Steps on the mean loss of its users + regularizer/2 |w - start|^2."""

    regularizer: float


@dataclass(frozen=True)
class _Choice:
    """`excess` is the module's bound."""

    excess: float
    gradients: int
    phases: tuple[LevyPhase, ...]
    means: tuple[Winsorized, ...]


def plan_levy(
    problem: Problem, n_users: int, rows_per_user: int, budget: Budget, max_gradients: int | None = None
) -> SolverPlan:
    """The plan with the fewest gradients whose bound is within 10% of the least, over phases, lambda and steps."""
    n_users, rows_per_user = check_sizes(n_users, rows_per_user, budget)
    if not feasible(problem, n_users, rows_per_user, budget):
        purpose = f"to find the range of {problem.dimension} coordinates"
        raise too_few(purpose, lambda n: feasible(problem, n, rows_per_user, budget), n_users, budget)
    planner = _Planner(problem, n_users, rows_per_user, budget)
    tried = [
        planner.choice(n_phases, float(first), most)
        for n_phases in range(1, _MOST_PHASES + 1)
        for first in _REGULARIZERS * planner.usual / problem.reach
        for most in STEPS
    ]
    possible = [choice for choice in tried if choice is not None]
    plan = cheapest_plan(possible, _TOLERANCE, max_gradients, lambda best: _plan(best, n_users, budget))
    if plan is not None:
        return plan
    least = min((choice.gradients for choice in possible), default=0)
    raise ValueError(
        f"Expected max_gradients={max_gradients} >= {least:,} for {n_users:,} users of "
        f"{rows_per_user} rows: allow more, or cap rows_per_user lower. Nothing was spent."
    )


_Best = tuple[float, LevyPhase, Winsorized] | None  # the gap that is left comes first


class _Planner:
    """The module's formulas for one problem; what many choices share is computed once."""

    def __init__(self, problem: Problem, n_users: int, rows_per_user: int, budget: Budget) -> None:
        self._problem, self._n_users, self._rows, self._budget = problem, n_users, rows_per_user, budget
        self.usual = problem.row_norm * problem.typical_slope  # G
        self._mean, self._bests = functools.cache(self._uncached_mean), functools.cache(self._uncached_bests)

    def _uncached_mean(self, n_users: int, n_steps: int) -> tuple[RotatedRange, Winsorized] | None:
        """Of one phase of so many steps, whose noise costs all of the budget."""
        if n_users < 2:
            return None
        box = RotatedRange.of(self._problem, n_users, self._rows)
        multiplier = gaussian_multiplier(self._budget, n_steps)
        mean = winsorized_mean(box, n_users, n_steps, 1.0, (1 - 1e-9) / multiplier**2)
        return None if mean is None else (box, mean)

    def _uncached_bests(self, n_users: int, regularizer: float) -> dict[int, _Best]:
        """For each number of steps the phase of at most as many that leaves the least gap; without a label."""
        distance, bests = min(self._problem.reach, 2 * self.usual / regularizer), {}
        best: _Best = None
        for n_steps in STEPS:
            found = self._mean(n_users, n_steps)
            if found is not None:
                box, mean = found
                noise = noise_std(mean, box)
                variance = self._problem.dimension * noise**2
                gap, step_size = excess_and_step(self._problem, distance, variance, n_steps, regularizer)
                if best is None or gap < best[0]:
                    # The radius is half of a bin's width.
                    size = ("", n_users, box.radius, noise / box.radius)
                    phase = LevyPhase(*size, n_steps=n_steps, step_size=step_size, regularizer=regularizer)
                    best = gap, phase, mean
            bests[n_steps] = best
        return bests

    def choice(self, n_phases: int, first: float, most: int) -> _Choice | None:
        """So many phases of at most `most` steps, lambda being `first`; None if one has too few users."""
        later = [self._n_users >> number for number in range(2, n_phases + 1)]
        error, excess, phases, means = self._problem.reach, 0.0, [], []
        for number, n_users in enumerate((self._n_users - sum(later), *later)):
            regularizer = first * _GROWTH**number
            best = self._bests(n_users, regularizer)[most]
            if best is None:
                return None
            excess += regularizer / 2 * error**2
            excess += 2 * self._problem.user_variance(self._rows) / (regularizer * n_users)
            error = math.sqrt(2 * best[0] / regularizer)
            phases.append(best[1])
            means.append(best[2])
        gradients = self._rows * sum(phase.n_users * phase.n_steps for phase in phases)
        return _Choice(excess + self.usual * error, gradients, tuple(phases), tuple(means))


def _plan(choice: _Choice, n_users: int, budget: Budget) -> SolverPlan:
    """The chosen phases one after the other, certified."""
    phases, steps, begin = [], [], 0
    for number, (phase, mean) in enumerate(zip(choice.phases, choice.means, strict=True), start=1):
        phases.append(replace(phase, label=f"phase {number}"))
        steps.append(Step(phases[-1].label, begin, begin + phase.n_users, mean))
        begin += phase.n_users
    plan = Plan(n_users, tuple(steps))
    return SolverPlan(plan, PhasedWinsorizedSteps(tuple(phases)), choice.gradients, choice.excess)


@dataclass(frozen=True)
class PhasedWinsorizedSteps:
    """Phases of projected steps along winsorised mean gradients, drawn to where the phase began."""

    phases: tuple[LevyPhase, ...]

    def releases(self, problem: Problem, outcome: Outcome) -> Releases[None]:
        middle = np.zeros(rotated_size(problem.dimension))
        for phase in self.phases:
            start = outcome.weights
            descent = AveragedSGD(start, problem.domain, phase.step_size)
            for _ in range(phase.n_steps):
                statistic = Rotated(MeanGradient(problem.loss, descent.query), middle)
                released = yield Request(phase.label, statistic, phase.radius, "gradient step")
                pull = phase.regularizer * (descent.query - start)
                descent.move(unrotate(released, problem.dimension) + pull)
            outcome.weights = problem.domain.project(descent.point)
            outcome.stands = f"the weights of {phase.label}"
            own = {"steps": phase.n_steps, "step_size": phase.step_size, "regularizer": phase.regularizer}
            outcome.phases.append(phase.summary(phase.radius, **own))
