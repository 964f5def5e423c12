"""What the solvers fraction that add noise to nothing but a phase's average iterate.

Phases use disjoint users. A phase walks from the last released point without any noise, releases the average of its
iterates with noise, and the next phase starts there. With D the distance a phase has to go, T steps of size eta, G^2 a
bound on a gradient's mean square and V on its variance, k weights and noise sigma in each:

    phase          D^2 / (2 eta T) + eta G^2 / 2, or with eta V / (2 (1 - eta beta)) if that is less
    next phase     D = sqrt(k) sigma: it has to beat the last average, from which the noise led away
    end            curvature/2 sigma^2 row_norm^2, or (largest slope) sigma row_norm if that is less
    kinks          (largest slope) width / 2

Kinks are rounded over eta (largest slope) row_norm^2 / 2, the least width that steps of eta allow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

from userdp.baselines.stable_sgd import SafeRows, check_loss
from userdp.privacy.accounting import Budget, gaussian_multiplier
from userdp.solvers.plans import SolverPlan
from userdp.solvers.problem import Problem

P = TypeVar("P")


@dataclass(frozen=True)
class OutputPlan(SolverPlan[P]):
    """A certified plan and how to carry it out; kinks of the loss are rounded over `width`."""

    rows_per_user: int = 1
    width: float | None = None


def noise_multiplier(problem: Problem, budget: Budget) -> float:
    """The multiplier of one release for the whole budget; refuses losses that cannot be planned for."""
    check_loss(problem.loss)
    return gaussian_multiplier(budget) * (1 + 1e-9)  # rounding of fractions


def safe_rows(problem: Problem, rows_per_user: int) -> SafeRows:
    return SafeRows(rows_per_user, problem.row_norm, None if problem.loss.classifies else problem.target_bound)


def usual_gradient(problem: Problem) -> float:
    """G: root mean square of a row's gradient."""
    return problem.typical_slope * problem.row_norm


def longest_step(problem: Problem) -> float:
    """2 / (curvature row_norm^2); kinks are rounded as the step asks for."""
    return 2 / problem.loss.smoothness(problem.row_norm) * (1 - 1e-9) if problem.loss.smooth else math.inf


def kink_width(problem: Problem, longest: float) -> float | None:
    """Over what length kinks are rounded for steps up to `longest`; None if there are none."""
    if problem.loss.smooth:
        return None
    return longest * problem.lipschitz * problem.row_norm / 2 * (1 + 1e-9)


def smoothness(problem: Problem, longest: float) -> float:
    """beta of the loss, its kinks rounded for steps up to `longest`."""
    return problem.loss.smoothness(problem.row_norm) if problem.loss.smooth else 2 / longest


def walk_error(distance: float, step_size: float, n_steps: int, square: float, variance: float, beta: float) -> float:
    """What a phase adds to the excess risk (the module's first line)."""
    steady = step_size * beta
    spread = step_size * square / 2
    if steady < 1:
        spread = min(spread, step_size * variance / (2 * (1 - steady)))
    return distance**2 / (2 * step_size * n_steps) + spread


def end_error(problem: Problem, noise_std: float, longest: float) -> float:
    """What the last noise and the rounding of kinks add (the module's last lines)."""
    end = problem.lipschitz * noise_std
    if problem.loss.smooth:
        return min(end, problem.loss.curvature / 2 * (noise_std * problem.row_norm) ** 2)
    width = kink_width(problem, longest)
    assert width is not None
    return end + problem.lipschitz / problem.row_norm * width / 2


def halves(n_users: int, n_phases: int) -> tuple[int, ...] | None:
    """Users of each phase: each half of those left, the last phase all of them; None if they run out."""
    users: list[int] = []
    for _ in range(n_phases - 1):
        users.append((n_users - sum(users)) // 2)
    users.append(n_users - sum(users))
    return tuple(users) if min(users) >= 1 else None
