"""Earlier work: accelerated steps on disjoint batches of users, each of whom tells one number, made private by itself.

A batch's step costs two releases: half of its users vote for the bin that a coordinate of the rotated mean gradient is
in, the other half tell that coordinate of their own gradient, clipped to the bin widened by one on both sides. With K
users a batch, k coordinates, d weights, z the noise multiplier, h the clip and tau the spread of users' gradients,

    V = d (2k/K) ((2 h z)^2 + tau^2 / k)          variance of a step's gradient
    4 beta D^2 / T^2 + 4 D sqrt(V / T)            bound on the excess risk after T steps (AC-SA)

V / T hardly depends on T, so T is large, as far as votes allow: the bin that holds half of the values must beat empty
ones in all coordinates and steps, but for one chance in 100 (where the whole range is no wider than three bins, the
interval is the range, and votes decide nothing). Losses with kinks are smoothed as in `accelerated_tight`.

Paper: Bassily and Sun 2023, Alg. 5.
Differs: T minimises the bound instead of being n epsilon^2 / d, noise is calibrated exactly, and steps are
those of `Nesterov`.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm

from userdp.baselines.mechanisms.local import LocalReports, LocalVotes
from userdp.baselines.rotated_gradients import Coordinates, coordinates
from userdp.baselines.rotation import Rotated, unrotate
from userdp.losses import Loss, smoothed
from userdp.privacy.accounting import Budget, BudgetExceeded, gaussian_multiplier
from userdp.privacy.curator import Curator
from userdp.privacy.plan import Plan, Step
from userdp.solvers.descent import Nesterov, steadied
from userdp.solvers.mean_plans import enough_users
from userdp.solvers.outcome import summary
from userdp.solvers.phased_sgd import Progress
from userdp.solvers.plans import check_sizes
from userdp.solvers.problem import Problem, Result
from userdp.vectors.gradients import MeanGradient

_WRONG_BIN = 0.01  # chance that some empty bin wins in some step
_TOLERANCE = 0.02  # by how much a bound may be above the least for the sake of fewer releases
_HELD_BACK = 1e-8  # of epsilon, for votes: the accountant's reserve


@dataclass(frozen=True)
class Phase:
    """One step on one batch: `label` is of its reports, `votes` of its votes; `radius` is half of a bin's width."""

    label: str
    votes: str
    n_users: int
    radius: float
    noise_ratio: float  # noise std of a coordinate / radius


@dataclass(frozen=True)
class LocalPlan:
    """A certified plan and how to carry it out; `loss` is the given one, or smoothed."""

    plan: Plan
    loss: Loss
    box: Coordinates
    smoothness: float
    phases: tuple[Phase, ...]
    n_gradients: int
    bound: float
    faithful: bool = False


def plan_bassily_sun_local(problem: Problem, n_users: int, rows_per_user: int, budget: Budget) -> LocalPlan:
    """The fewest batches whose bound is within 2% of the least.

    Raises `BudgetExceeded`, with a number that would do, if there are not users enough for one.
    """
    n_users, rows_per_user = check_sizes(n_users, rows_per_user, budget)
    box = coordinates(problem, n_users, rows_per_user)
    most = _most_steps(box, n_users, budget)
    if most < 1:
        raise _too_few(problem, n_users, rows_per_user, budget)
    numbers = sorted({min(most, round(2 ** (k / 4))) for k in range(33)})  # up to 256
    bounds = {n_steps: _bound(problem, box, n_users, budget, n_steps) for n_steps in numbers}
    enough = (1 + _TOLERANCE) * min(bounds.values())
    n_steps = next(n_steps for n_steps, bound in bounds.items() if bound <= enough)
    plan, phases = _batches(box, n_users, budget, n_steps)
    plan.certify(budget)
    curvature, width = _curvature(problem, n_steps)
    loss = problem.loss if width is None else smoothed(problem.loss, width)
    variance = _variance(problem, box, n_users, budget, n_steps)
    smoothness = steadied(curvature * problem.row_norm**2, problem.reach, variance, n_steps)
    return LocalPlan(plan, loss, box, smoothness, phases, n_users * rows_per_user, bounds[n_steps])


def _batches(box: Coordinates, n_users: int, budget: Budget, n_steps: int) -> tuple[Plan, tuple[Phase, ...]]:
    """Batches of nearly equal size: the first half of each votes, the others report."""
    edges = [n_users * number // n_steps for number in range(n_steps + 1)]
    epsilon, multiplier = (1 - _HELD_BACK) * budget.epsilon, gaussian_multiplier(budget)
    ratio = _noise(box, n_users, budget, n_steps) / box.radius
    steps: list[Step] = []
    phases: list[Phase] = []
    for number, (start, stop) in enumerate(itertools.pairwise(edges)):
        phase = Phase(f"mean {number}", f"votes {number}", stop - start, box.radius, ratio)
        middle = (start + stop) // 2
        votes, reports = LocalVotes(middle - start, epsilon, box.n_bins), LocalReports(stop - middle, multiplier)
        steps += [Step(phase.votes, start, middle, votes), Step(phase.label, middle, stop, reports)]
        phases.append(phase)
    return Plan(n_users, tuple(steps)), tuple(phases)


def _users_a_coordinate(box: Coordinates, n_users: int, n_steps: int) -> int:
    """How many users vote on a coordinate in a step, at least; and how many report it, at least."""
    return n_users // n_steps // 2 // box.size


def _noise(box: Coordinates, n_users: int, budget: Budget, n_steps: int) -> float:
    """Standard deviation of a coordinate's noise."""
    return gaussian_multiplier(budget) * 2 * box.reach / math.sqrt(_users_a_coordinate(box, n_users, n_steps))


def _variance(problem: Problem, box: Coordinates, n_users: int, budget: Budget, n_steps: int) -> float:
    sampling = box.spread**2 / box.size / _users_a_coordinate(box, n_users, n_steps)
    return problem.dimension * (_noise(box, n_users, budget, n_steps) ** 2 + sampling)


def _curvature(problem: Problem, n_steps: int) -> tuple[float, float | None]:
    """The curvature of the loss or, if that has kinks, the one and the width of the smoothed loss."""
    if problem.loss.smooth:
        return problem.loss.curvature, None
    width = math.sqrt(8) * problem.row_norm * problem.reach / n_steps
    return problem.lipschitz / problem.row_norm / width, width


def _bound(problem: Problem, box: Coordinates, n_users: int, budget: Budget, n_steps: int) -> float:
    """The module's bound, and what rounding kinks may cost."""
    curvature, width = _curvature(problem, n_steps)
    rounding = 0.0 if width is None else problem.lipschitz / problem.row_norm * width / 2
    noise = math.sqrt(_variance(problem, box, n_users, budget, n_steps) / n_steps)
    bias = 4 * curvature * (problem.row_norm * problem.reach / n_steps) ** 2
    return bias + 4 * problem.reach * noise + rounding


def feasible(problem: Problem, n_users: int, rows_per_user: int, budget: Budget) -> bool:
    """Whether there are users enough for one step."""
    return budget.delta > 0 and _most_steps(coordinates(problem, n_users, rows_per_user), n_users, budget) >= 1


def _too_few(problem: Problem, n_users: int, rows_per_user: int, budget: Budget) -> BudgetExceeded:
    least = enough_users(lambda n: feasible(problem, n, rows_per_user, budget), n_users)
    would_do = "no number up to 10 million would do" if least is None else f"about {least:,} users would do"
    return BudgetExceeded(
        f"Expected more than n_users={n_users} for a step in which each tells one of {problem.dimension} coordinates "
        f"at epsilon={budget.epsilon:g}: {would_do}, or a larger epsilon. Nothing was spent.",
        enough_users=least,
    )


def _most_steps(box: Coordinates, n_users: int, budget: Budget) -> int:
    """The most batches in which votes are right; each coordinate has a voter and a reporter at least."""
    most = n_users // (2 * box.size)
    while most >= 1 and _users_a_coordinate(box, n_users, most) < _voters(box, most, budget):
        most -= max(1, most // 50)
    return max(0, most)


def _voters(box: Coordinates, n_steps: int, budget: Budget) -> float:
    """How many votes a coordinate needs.

    Of N votes the right bin gets N t/2 more than an empty one on average, t being the chance of the truth; the
    difference has a variance of at most N (t/2 + 2/n_bins).
    """
    if box.reach >= box.range:
        return 1.0
    truth = LocalVotes(1, budget.epsilon, box.n_bins).truth
    rare = float(norm.isf(_WRONG_BIN / (box.size * box.n_bins * n_steps)))
    return max(1.0, (rare / (truth / 2)) ** 2 * (truth / 2 + 2 / box.n_bins))


def run(problem: Problem, plan: LocalPlan, curator: Curator, progress: Progress | None = None) -> Result:
    """Carry out a plan. All it sees of the data are the curator's releases."""
    report = progress or (lambda label, done, total: None)
    box, released = plan.box, []
    walk = Nesterov(problem.start, problem.domain, plan.smoothness, len(plan.phases))
    inside = box.range - box.reach  # an interval need not leave the range
    for number, phase in enumerate(plan.phases):
        report("gradient step", number, len(plan.phases))
        gradient = MeanGradient(plan.loss, walk.query)
        bins = curator.release(phase.votes, Rotated(gradient, np.zeros(box.size)), box.radius)
        middle = np.clip(bins, -inside, inside)
        offset = curator.release(phase.label, Rotated(gradient, middle), box.reach)
        walk.move(unrotate(middle + offset, problem.dimension))
        released.append(summary(phase, phase.radius))
    weights = problem.domain.project(walk.point)
    return Result(weights, False, "", plan.n_gradients, plan.bound, tuple(released))
