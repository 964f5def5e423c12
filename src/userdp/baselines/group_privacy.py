"""Phased SGD that protects rows, made to protect users by group privacy: earlier work, to compare with.

One pass of SGD, one row a step, noise on each phase's average only. A row can move the average by 2 eta L, so a user of
m rows by m times that: the noise grows with m while more rows help the walk, and the error hardly falls with m.

Paper: Feldman, Koren and Talwar 2020, section 4.
Differs: eta and the number of phases minimise the bound of `output_perturbation`; the noise is calibrated to the proven
sensitivity of m rows at once, which is m/z of Gaussian privacy and less than m-fold group privacy of (epsilon, delta);
the last phase takes the users that halving leaves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from userdp.baselines import output_perturbation as shared
from userdp.baselines.mechanisms.perturbation import Perturbation
from userdp.baselines.stable_sgd import SafeRowPass
from userdp.privacy.accounting import Budget
from userdp.privacy.curator import Curator
from userdp.privacy.mechanisms.base import check_counts
from userdp.privacy.plan import Plan, Step
from userdp.solvers.outcome import summary
from userdp.solvers.phased_sgd import Progress
from userdp.solvers.problem import Problem, Result

_MOST_PHASES = 8
_BOLDNESS = np.geomspace(1e-5, 4.0, 60)  # step size / (distance / (gradient sqrt(steps)))
_SHRINK = 4.0  # step size of a phase / of the next


@dataclass(frozen=True)
class Phase:
    """Public numbers of one phase; `radius` is how far one user can move its average."""

    label: str
    n_users: int
    step_size: float
    radius: float
    noise_ratio: float  # noise std / radius


def plan_group_privacy(problem: Problem, n_users: int, rows_per_user: int, budget: Budget) -> shared.OutputPlan[Phase]:
    """The plan with the least bound over step sizes and numbers of phases."""
    n_users, rows_per_user = check_counts(n_users=n_users, rows_per_user=rows_per_user)
    multiplier = shared.noise_multiplier(problem, budget)
    splits = [users for n in range(1, _MOST_PHASES + 1) if (users := shared.halves(n_users, n))]
    scale = problem.reach / (shared.usual_gradient(problem) * math.sqrt(n_users * rows_per_user))
    sizes = sorted({min(float(bold) * scale, shared.longest_step(problem)) for bold in _BOLDNESS})
    choices = [
        (_bound(problem, users, rows_per_user, size, multiplier), users, size) for users in splits for size in sizes
    ]
    bound, users, step_size = min(choices)
    plan = _plan(problem, users, rows_per_user, step_size, multiplier, bound)
    plan.plan.certify(budget)
    return plan


def _bound(problem: Problem, users: tuple[int, ...], rows_per_user: int, longest: float, multiplier: float) -> float:
    square, beta = shared.usual_gradient(problem) ** 2, shared.smoothness(problem, longest)
    total, distance, noise = 0.0, problem.reach, 0.0
    for number, n_phase in enumerate(users):
        step_size = longest / _SHRINK**number
        total += shared.walk_error(distance, step_size, n_phase * rows_per_user, square, square, beta)
        noise = multiplier * 2 * rows_per_user * step_size * problem.lipschitz
        distance = math.sqrt(problem.dimension) * noise
    return total + shared.end_error(problem, noise, longest)


def _plan(
    problem: Problem, users: tuple[int, ...], rows_per_user: int, longest: float, multiplier: float, bound: float
) -> shared.OutputPlan[Phase]:
    mechanism, width = Perturbation(multiplier), shared.kink_width(problem, longest)
    phases: list[Phase] = []
    steps: list[Step] = []
    first = 0
    for number, n_phase in enumerate(users):
        step_size, label = longest / _SHRINK**number, f"phase {number + 1}"
        walk = _walk(problem, problem.start, step_size, n_phase, rows_per_user, width)
        phases.append(Phase(label, n_phase, step_size, walk.replace_one_sensitivity, multiplier))
        steps.append(Step(label, first, first + n_phase, mechanism, n_groups=1))
        first += n_phase
    plan = Plan(first, tuple(steps))
    return shared.OutputPlan(
        plan, tuple(phases), first * rows_per_user, bound, rows_per_user=rows_per_user, width=width
    )


def _walk(
    problem: Problem, start: np.ndarray, step_size: float, n_users: int, rows_per_user: int, width: float | None
) -> SafeRowPass:
    limits = shared.safe_rows(problem, rows_per_user)
    return SafeRowPass(problem.loss, start, problem.domain, step_size, n_users, limits, width=width)


def run(problem: Problem, plan: shared.OutputPlan[Phase], curator: Curator, progress: Progress | None = None) -> Result:
    """Carry out a plan. All it sees of the data are the curator's releases. There is no test, so nothing aborts."""
    report = progress or (lambda label, done, total: None)
    weights = problem.start
    released: list[dict[str, float]] = []
    for number, phase in enumerate(plan.phases):
        report(phase.label, number, len(plan.phases))
        walk = _walk(problem, weights, phase.step_size, phase.n_users, plan.rows_per_user, plan.width)
        offset = curator.release(phase.label, walk, walk.replace_one_sensitivity)
        weights = problem.domain.project(walk.start + offset)
        released.append(summary(phase, walk.replace_one_sensitivity, step_size=phase.step_size))
    return Result(weights, False, "", plan.n_gradients, plan.bound, tuple(released))
