"""Phased SGD that protects rows, made to protect users by group privacy: earlier work, to compare with.

One pass of SGD, one row a step, noise on each phase's average only. A row can move the average by 2 eta L, so a user of
m rows by m times that: the noise grows with m while more rows help the pass, and the error hardly falls with m.

Paper: Feldman, Koren and Talwar 2020, section 4.
Differs: eta and the number of phases minimise the bound of `output_perturbation`; the noise is calibrated to the proven
sensitivity of m rows at once, which is m/z of Gaussian privacy and less than m-fold group privacy of (epsilon, delta);
the last phase takes the users that halving leaves.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from userdp._validate import check_counts
from userdp.privacy.accounting import Budget
from userdp.privacy.plan import Plan, Step
from userdp.solvers.problem import Problem
from userdp.solvers.solver import SolverPlan
from userdp_research import output_perturbation as shared
from userdp_research.mechanisms.perturbation import Perturbation
from userdp_research.output_perturbation import PassPhase
from userdp_research.stable_sgd import SafeRowPass

_MOST_PHASES = 8
_BOLDNESS = np.geomspace(1e-5, 4.0, 60)  # step size / (distance / (gradient sqrt(steps)))
_SHRINK = 4.0  # step size of a phase / of the next


class RowPasses(shared.Passes):
    """Passes of one row per step."""

    def one_pass(self, problem: Problem, start: np.ndarray, phase: PassPhase, usual: np.ndarray) -> SafeRowPass:
        limits = shared.safe_rows(problem, self.rows_per_user)
        size = (phase.step_size, phase.n_users, limits)
        return SafeRowPass(problem.loss, start, problem.domain, *size, width=self.width)


def plan_group_privacy(problem: Problem, n_users: int, rows_per_user: int, budget: Budget) -> SolverPlan:
    """The plan with the least bound over step sizes and numbers of phases."""
    n_users, rows_per_user = check_counts(n_users=n_users, rows_per_user=rows_per_user)
    multiplier = shared.noise_multiplier(problem, budget)
    splits = [users for n in range(1, _MOST_PHASES + 1) if (users := shared.halves(n_users, n))]
    scale = problem.reach / (shared.usual_gradient(problem) * math.sqrt(n_users * rows_per_user))
    sizes = sorted({min(float(bold) * scale, shared.longest_step(problem)) for bold in _BOLDNESS})
    choices = [
        (_bound(problem, users, rows_per_user, size, multiplier), users, size) for users in splits for size in sizes
    ]
    bound, users, longest = min(choices)
    schedule = RowPasses((), rows_per_user, shared.smoothing_width(problem, longest))
    phases: list[PassPhase] = []
    steps: list[Step] = []
    first = 0
    for number, n_phase in enumerate(users):
        label, size, n_steps = f"phase {number + 1}", longest / _SHRINK**number, n_phase * rows_per_user
        phase = PassPhase(label, n_phase, math.nan, multiplier, n_steps=n_steps, step_size=size)
        phases.append(schedule.with_radius(problem, phase))
        steps.append(Step(phase.label, first, first + n_phase, Perturbation(multiplier), n_groups=1))
        first += n_phase
    plan = Plan(n_users, tuple(steps))
    return SolverPlan(plan, replace(schedule, phases=tuple(phases)), n_users * rows_per_user, bound)


def _bound(problem: Problem, users: tuple[int, ...], rows_per_user: int, longest: float, multiplier: float) -> float:
    square, beta = shared.usual_gradient(problem) ** 2, shared.smoothness(problem, longest)
    total, distance, noise = 0.0, problem.reach, 0.0
    for number, n_phase in enumerate(users):
        step_size = longest / _SHRINK**number
        total += shared.pass_error(distance, step_size, n_phase * rows_per_user, square, square, beta)
        noise = multiplier * 2 * rows_per_user * step_size * problem.lipschitz
        distance = math.sqrt(problem.dimension) * noise
    return total + shared.end_error(problem, noise, longest)
