"""SGD on disjoint batches of users, noise on each phase's average only: earlier work, to compare with.

A step is along the mean of a batch's user gradients, without noise; every user is in one batch. One user can change one
step, by 2/B of a gradient's largest length in a batch of B, and non-expansive steps never make more of it. Where the
phase is short enough for gradients to stay what they are at its start, users far from a private gradient there are left
out, which makes "largest length" into "how far users are apart".

The batches, their steps and which phases leave users out minimise the bound of `output_perturbation`, with V = G^2 / B
times how alike a user's rows are, and sigma = multiplier * sensitivity (`SafeBatchPass`). The reach of the filter is
1.3 times the root mean square distance of a user's gradient from the others' mean, and the private gradient's error.

Paper: Ghazi, Kumar, Liu and Manurangsi 2026, "Nearly Linear-Time User-Level DP-SCO with Optimal Rates".
Differs: it is a reading of a sketch of theirs. Outlying users are found by one private gradient at a phase's start in
place of noisy counts of friends in each batch; step sizes, batches and phases are calibrated, because with their
constants the method needs 10^7 users; a filtered phase stays in a ball around its start.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from userdp._validate import check_counts
from userdp.domains import Ball
from userdp.privacy.accounting import Budget
from userdp.privacy.clip import Clip
from userdp.privacy.plan import Plan, Step
from userdp.solvers.problem import Problem
from userdp.solvers.solver import SolverPlan
from userdp_research import output_perturbation as shared
from userdp_research.mechanisms.perturbation import Perturbation
from userdp_research.output_perturbation import PassPhase
from userdp_research.stable_sgd import SafeBatchPass

_PHASES = range(1, 7)
_SHRINKS = (1.0, 2.0, 4.0, 8.0)  # step size of a phase / of the next
_STEPS = np.geomspace(1e-3, 1.0, 20)  # step size / the longest allowed
_BATCHES = 16
_FRACTIONS = (0.05, 0.1, 0.2, 0.3)  # of a filtered phase's budget, for the private gradient
_TAIL = 1.3  # nearly all distances / their root mean square
_RARE = 3.0  # standard deviations by which noise may be longer than usual


class BatchPasses(shared.Passes):
    """Passes of one batch of users per step."""

    def one_pass(self, problem: Problem, start: np.ndarray, phase: PassPhase, usual: np.ndarray) -> SafeBatchPass:
        """In the problem's domain, or if that reaches farther than `stay`, in a ball around the start."""
        domain = problem.domain
        if phase.stay < domain.reach(start):
            domain = Ball(phase.stay, start)
        limits = shared.safe_rows(problem, self.rows_per_user)
        size = (phase.step_size, phase.n_users, limits, phase.n_steps)
        center = usual if phase.filtered else None
        return SafeBatchPass(problem.loss, start, domain, *size, center, phase.reach, width=self.width)


@dataclass(frozen=True)
class _Setting:
    """What all candidates have in common."""

    problem: Problem
    rows_per_user: int
    multiplier: float
    square: float  # G^2
    apart: float  # root mean square distance of a user's gradient from the mean

    @staticmethod
    def of(problem: Problem, rows_per_user: int, multiplier: float) -> _Setting:
        square = shared.usual_gradient(problem) ** 2
        apart = math.sqrt(problem.user_variance(rows_per_user))
        return _Setting(problem, rows_per_user, multiplier, square, apart)


@dataclass(frozen=True)
class _Filter:
    """How a phase leaves users out, or not: the budget's fraction for that, and noise std * batch / step size."""

    noise: float
    fraction: float = 0.0
    reach: float = math.inf
    stay: float = math.inf


def plan_disjoint_batches(problem: Problem, n_users: int, rows_per_user: int, budget: Budget) -> SolverPlan:
    """The plan with the least bound over phases, batches and step sizes."""
    n_users, rows_per_user = check_counts(n_users=n_users, rows_per_user=rows_per_user)
    multiplier = shared.noise_multiplier(problem, budget)
    setting = _Setting.of(problem, rows_per_user, multiplier)
    bound, users, batch, longest, shrink = min(
        (_bound_and_filters(setting, *choice)[0], *choice) for choice in _choices(setting, n_users)
    )
    _, filters = _bound_and_filters(setting, users, batch, longest, shrink)
    schedule = BatchPasses((), rows_per_user, shared.smoothing_width(problem, longest))
    phases: list[PassPhase] = []
    steps: list[Step] = []
    first = 0
    for number, (n_phase, chosen) in enumerate(zip(users, filters, strict=True)):
        last, ratio = first + n_phase, multiplier / math.sqrt(1 - chosen.fraction)
        phase = PassPhase(
            f"phase {number + 1}",
            n_phase,
            math.nan,
            ratio,
            n_steps=max(1, n_phase // batch),
            step_size=longest / shrink**number,
            reach=chosen.reach,
            stay=chosen.stay,
        )
        phases.append(schedule.with_radius(problem, phase))
        if phase.filtered:
            clip = Clip(n_phase, multiplier / math.sqrt(chosen.fraction))
            steps.append(Step(phase.center_label, first, last, clip))
        steps.append(Step(phase.label, first, last, Perturbation(ratio), n_groups=1))
        first = last
    plan = Plan(n_users, tuple(steps))
    # One gradient a row, and two more where users are compared with a private gradient.
    gradients = rows_per_user * sum(phase.n_users * (3 if phase.filtered else 1) for phase in phases)
    return SolverPlan(plan, replace(schedule, phases=tuple(phases)), gradients, bound)


def _choices(setting: _Setting, n_users: int) -> Iterator[tuple[tuple[int, ...], int, float, float]]:
    """Users of each phase, users of a batch, first step size, and how fast it falls."""
    allowed = shared.longest_step(setting.problem)
    if allowed == math.inf:
        allowed = 10 * setting.problem.reach / math.sqrt(setting.square)
    for n_phases in _PHASES:
        users = shared.halves(n_users, n_phases)
        for batch in sorted({round(b) for b in np.geomspace(1, min(users), _BATCHES)}) if users else ():
            for part in _STEPS:
                for shrink in _SHRINKS if n_phases > 1 else (1.0,):
                    assert users is not None
                    yield users, batch, float(part) * allowed, shrink


def _bound_and_filters(
    setting: _Setting, users: tuple[int, ...], batch: int, longest: float, shrink: float
) -> tuple[float, tuple[_Filter, ...]]:
    """The bound, and each phase's filter: the one with the least noise."""
    problem, beta = setting.problem, shared.smoothness(setting.problem, longest)
    total, distance, noise, filters = 0.0, problem.reach, 0.0, []
    for number, n_phase in enumerate(users):
        step_size = longest / shrink**number
        total += shared.pass_error(
            distance, step_size, n_phase // batch, setting.square, setting.apart**2 / batch, beta
        )
        stay = noise * (math.sqrt(problem.dimension) + _RARE) if number else problem.reach
        filters.append(_filter(setting, n_phase, stay, beta))
        noise = filters[-1].noise * step_size / batch
        distance = math.sqrt(problem.dimension) * noise
    return total + shared.end_error(problem, noise, longest), tuple(filters)


def _filter(setting: _Setting, n_users: int, stay: float, beta: float) -> _Filter:
    """The filter with the least noise for a phase that goes no farther than `stay`, or none."""
    problem, z = setting.problem, setting.multiplier
    best = _Filter(2 * z * problem.lipschitz)
    for fraction in _FRACTIONS if _TAIL * setting.apart + beta * stay < problem.lipschitz else ():
        error = math.sqrt(problem.dimension / fraction) * z * 2 * math.sqrt(setting.square) / n_users
        reach = _TAIL * setting.apart + error
        noise = 2 * z / math.sqrt(1 - fraction) * (reach + beta * stay)
        if noise < best.noise:
            best = _Filter(noise, fraction, reach, stay)
    return best
