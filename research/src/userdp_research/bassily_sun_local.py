"""Earlier work: accelerated steps on disjoint batches of users, each of whom tells one number, made private by itself.

A batch's step costs two releases: half of its users vote for the bin that a coordinate of the rotated mean gradient is
in, the other half tell that coordinate of their own gradient, clipped to the bin widened by one on both sides. With K
users a batch, k coordinates, d weights, z the noise multiplier, h the clip and tau the spread of users' gradients,

    V = d (2k/K) ((2 h z)^2 + tau^2 / k)          variance of a step's gradient
    4 beta D^2 / T^2 + 4 D sqrt(V / T)            bound on the excess risk after T steps (AC-SA)

V / T hardly depends on T, so T is large, as far as votes allow: the bin that holds half of the values must beat empty
ones in all coordinates and steps, but for one chance in 100 (where the whole range is no wider than three bins, the
interval is the range, and votes decide nothing). Non-smooth losses are smoothed as in `solvers.accelerated`.

Paper: Bassily and Sun 2023, Alg. 5.
Differs: T minimises the bound instead of being n epsilon^2 / d, noise is calibrated exactly, and steps are
those of `Nesterov`.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from userdp.losses import Loss, smoothed
from userdp.paper.descent import Nesterov, steadied
from userdp.privacy.accounting import Budget, gaussian_multiplier
from userdp.privacy.plan import Plan, Step
from userdp.solvers.problem import Problem
from userdp.solvers.solver import Outcome, Phase, Releases, Request, SolverPlan, check_sizes
from userdp.statistics.gradients import MeanGradient
from userdp_research.bassily_sun import RotatedRange, too_few
from userdp_research.mechanisms.local import LocalReports, LocalVotes
from userdp_research.rotation import Rotated, unrotate

_TOLERANCE = 0.02  # by how much a bound may be above the least for the sake of fewer releases
_HELD_BACK = 1e-8  # of epsilon, for votes: the accountant's reserve


@dataclass(frozen=True, kw_only=True)
class BatchPhase(Phase):
    """One step on one batch: `label` is of its reports, `votes` of its votes; `radius` is half of a bin's width."""

    votes: str


@dataclass(frozen=True)
class LocalSteps:
    """Accelerated steps, each on a batch of its own; `loss` is the given one, or smoothed."""

    loss: Loss
    box: RotatedRange
    smoothness: float
    phases: tuple[BatchPhase, ...]

    def releases(self, problem: Problem, outcome: Outcome) -> Releases[None]:
        box, shown_as = self.box, "gradient step"
        descent = Nesterov(problem.start, problem.domain, self.smoothness, len(self.phases))
        inside = box.range - box.reach  # an interval need not leave the range
        for phase in self.phases:
            gradient = MeanGradient(self.loss, descent.query)
            bins = yield Request(phase.votes, Rotated(gradient, np.zeros(box.size)), box.radius, shown_as)
            middle = np.clip(bins, -inside, inside)
            offset = yield Request(phase.label, Rotated(gradient, middle), box.reach, shown_as)
            descent.move(unrotate(middle + offset, problem.dimension))
            outcome.phases.append(phase.summary(phase.radius))
        outcome.weights = problem.domain.project(descent.point)


def plan_bassily_sun_local(problem: Problem, n_users: int, rows_per_user: int, budget: Budget) -> SolverPlan:
    """The fewest batches whose bound is within 2% of the least.

    Raises `BudgetExceeded`, with a number that would do, if there are not users enough for one.
    """
    n_users, rows_per_user = check_sizes(n_users, rows_per_user, budget)
    box = RotatedRange.of(problem, n_users, rows_per_user)
    most = _most_steps(box, n_users, budget)
    if most < 1:
        purpose = f"for a step in which each tells one of {problem.dimension} coordinates"
        raise too_few(purpose, lambda n: feasible(problem, n, rows_per_user, budget), n_users, budget)
    numbers = sorted({min(most, round(2 ** (k / 4))) for k in range(33)})  # up to 256
    bounds = {n_steps: _bound(problem, box, n_users, budget, n_steps) for n_steps in numbers}
    enough = (1 + _TOLERANCE) * min(bounds.values())
    n_steps = next(n_steps for n_steps, bound in bounds.items() if bound <= enough)
    plan, phases = _batches(box, n_users, budget, n_steps)
    curvature, width = _curvature(problem, n_steps)
    loss = problem.loss if width is None else smoothed(problem.loss, width)
    variance = _variance(problem, box, n_users, budget, n_steps)
    smoothness = steadied(curvature * problem.row_norm**2, problem.reach, variance, n_steps)
    return SolverPlan(plan, LocalSteps(loss, box, smoothness, phases), n_users * rows_per_user, bounds[n_steps])


def _batches(box: RotatedRange, n_users: int, budget: Budget, n_steps: int) -> tuple[Plan, tuple[BatchPhase, ...]]:
    """Batches of nearly equal size: the first half of each votes, the others report."""
    edges = [n_users * number // n_steps for number in range(n_steps + 1)]
    epsilon, multiplier = (1 - _HELD_BACK) * budget.epsilon, gaussian_multiplier(budget)
    ratio = _noise(box, n_users, budget, n_steps) / box.radius
    steps: list[Step] = []
    phases: list[BatchPhase] = []
    for number, (start, stop) in enumerate(itertools.pairwise(edges)):
        phase = BatchPhase(f"mean {number}", stop - start, box.radius, ratio, votes=f"votes {number}")
        middle = (start + stop) // 2
        votes, reports = LocalVotes(middle - start, epsilon, box.n_bins), LocalReports(stop - middle, multiplier)
        steps += [Step(phase.votes, start, middle, votes), Step(phase.label, middle, stop, reports)]
        phases.append(phase)
    return Plan(n_users, tuple(steps)), tuple(phases)


def _users_a_coordinate(box: RotatedRange, n_users: int, n_steps: int) -> int:
    """How many users vote on a coordinate in a step, at least; and how many report it, at least."""
    return n_users // n_steps // 2 // box.size


def _noise(box: RotatedRange, n_users: int, budget: Budget, n_steps: int) -> float:
    """Standard deviation of a coordinate's noise."""
    return gaussian_multiplier(budget) * 2 * box.reach / math.sqrt(_users_a_coordinate(box, n_users, n_steps))


def _variance(problem: Problem, box: RotatedRange, n_users: int, budget: Budget, n_steps: int) -> float:
    sampling = box.spread**2 / box.size / _users_a_coordinate(box, n_users, n_steps)
    return problem.dimension * (_noise(box, n_users, budget, n_steps) ** 2 + sampling)


def _curvature(problem: Problem, n_steps: int) -> tuple[float, float | None]:
    """The curvature of the loss or, if that is non-smooth, the one and the width of the smoothed loss."""
    if problem.loss.smooth:
        return problem.loss.curvature, None
    width = math.sqrt(8) * problem.row_norm * problem.reach / n_steps
    return problem.lipschitz / problem.row_norm / width, width


def _bound(problem: Problem, box: RotatedRange, n_users: int, budget: Budget, n_steps: int) -> float:
    """The module's bound, and what smoothing may cost."""
    curvature, width = _curvature(problem, n_steps)
    rounding = 0.0 if width is None else problem.lipschitz / problem.row_norm * width / 2
    noise = math.sqrt(_variance(problem, box, n_users, budget, n_steps) / n_steps)
    bias = 4 * curvature * (problem.row_norm * problem.reach / n_steps) ** 2
    return bias + 4 * problem.reach * noise + rounding


def feasible(problem: Problem, n_users: int, rows_per_user: int, budget: Budget) -> bool:
    """Whether there are users enough for one step."""
    return budget.delta > 0 and _most_steps(RotatedRange.of(problem, n_users, rows_per_user), n_users, budget) >= 1


def _most_steps(box: RotatedRange, n_users: int, budget: Budget) -> int:
    """The most batches in which votes are right; each coordinate has a voter and a reporter at least."""
    most = n_users // (2 * box.size)
    while most >= 1 and _users_a_coordinate(box, n_users, most) < _voters(box, most, budget):
        most -= max(1, most // 50)
    return max(0, most)


def _voters(box: RotatedRange, n_steps: int, budget: Budget) -> float:
    """How many votes a coordinate needs.

    Of N votes the right bin gets N t/2 more than an empty one on average, t being the chance of the truth; the
    difference has a variance of at most N (t/2 + 2/n_bins).
    """
    if box.reach >= box.range:
        return 1.0
    truth = LocalVotes(1, budget.epsilon, box.n_bins).truth
    return max(1.0, (box.rare(n_steps) / (truth / 2)) ** 2 * (truth / 2 + 2 / box.n_bins))
