"""Solvers that add noise to nothing but a phase's average iterate: their steps, and their bound.

Phases use disjoint users. A phase walks from the last released point without any noise, releases the average of its
iterates with noise, and the next phase starts there. With D the distance a phase has to go, T steps of size eta, G^2 a
bound on a gradient's mean square and V on its variance, k weights and noise sigma in each:

    phase          D^2 / (2 eta T) + eta G^2 / 2, or with eta V / (2 (1 - eta beta)) if that is less
    next phase     D = sqrt(k) sigma: it has to beat the last average, from which the noise led away
    end            curvature/2 sigma^2 row_norm^2, or (largest slope) sigma row_norm if that is less
    non-smooth     (largest slope) width / 2

Non-smooth losses are smoothed over eta (largest slope) row_norm^2 / 2, the least width that steps of eta allow.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import numpy as np

from userdp.privacy.accounting import Budget, gaussian_multiplier
from userdp.solvers.problem import Problem
from userdp.solvers.solver import Outcome, Phase, Releases, Request
from userdp.statistics.gradients import MeanGradient
from userdp_research.stable_sgd import SafeBatchPass, SafeRowPass, SafeRows, check_loss


@dataclass(frozen=True, kw_only=True)
class PassPhase(Phase):
    """One pass; `radius` is how far one user can move its average, as far as known beforehand.

    A filtered phase releases a gradient first (`center_label`), keeps users within `reach` of it, and stays within
    `stay` of its start; an unfiltered one has infinite `reach` and `stay`.
    """

    reach: float = math.inf
    stay: float = math.inf

    @property
    def filtered(self) -> bool:
        return self.reach < math.inf

    @property
    def center_label(self) -> str:
        return f"{self.label}, gradient"


@dataclass(frozen=True)
class Passes(ABC):
    """A pass over each phase's users, from the last released average; a non-smooth loss is smoothed over `width`."""

    phases: tuple[PassPhase, ...]
    rows_per_user: int
    width: float | None

    @abstractmethod
    def one_pass(
        self, problem: Problem, start: np.ndarray, phase: PassPhase, usual: np.ndarray
    ) -> SafeRowPass | SafeBatchPass:
        """The phase's statistic, users far from the `usual` gradient being left out if it is filtered."""

    def with_radius(self, problem: Problem, phase: PassPhase) -> PassPhase:
        """The phase with the radius that is known beforehand."""
        known = self.one_pass(problem, problem.start, phase, np.zeros(problem.dimension))
        return replace(phase, radius=known.replace_one_sensitivity)

    def releases(self, problem: Problem, outcome: Outcome) -> Releases[None]:
        """There is no test, so nothing aborts."""
        usual = np.zeros(problem.dimension)
        for phase in self.phases:
            if phase.filtered:
                gradient = MeanGradient(problem.loss, outcome.weights)
                usual = yield Request(phase.center_label, gradient, usual_gradient(problem))
            statistic = self.one_pass(problem, outcome.weights, phase, usual)
            offset = yield Request(phase.label, statistic, statistic.replace_one_sensitivity)
            outcome.weights = problem.domain.project(statistic.start + offset)
            own = {"steps": phase.n_steps, "step_size": phase.step_size}
            outcome.phases.append(phase.summary(statistic.replace_one_sensitivity, **own))


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
    """2 / (curvature row_norm^2); non-smooth losses are smoothed as the step asks for."""
    return 2 / problem.loss.smoothness(problem.row_norm) * (1 - 1e-9) if problem.loss.smooth else math.inf


def smoothing_width(problem: Problem, longest: float) -> float | None:
    """Over what length a non-smooth loss is smoothed for steps up to `longest`; None if it is smooth."""
    if problem.loss.smooth:
        return None
    return longest * problem.lipschitz * problem.row_norm / 2 * (1 + 1e-9)


def smoothness(problem: Problem, longest: float) -> float:
    """beta of the loss, smoothed for steps up to `longest` if it is non-smooth."""
    return problem.loss.smoothness(problem.row_norm) if problem.loss.smooth else 2 / longest


def pass_error(distance: float, step_size: float, n_steps: int, square: float, variance: float, beta: float) -> float:
    """What a phase adds to the excess risk (the module's first line)."""
    steady = step_size * beta
    spread = step_size * square / 2
    if steady < 1:
        spread = min(spread, step_size * variance / (2 * (1 - steady)))
    return distance**2 / (2 * step_size * n_steps) + spread


def end_error(problem: Problem, noise_std: float, longest: float) -> float:
    """What the last noise and smoothing add (the module's last lines)."""
    end = problem.lipschitz * noise_std
    if problem.loss.smooth:
        return min(end, problem.loss.curvature / 2 * (noise_std * problem.row_norm) ** 2)
    width = smoothing_width(problem, longest)
    assert width is not None
    return end + problem.lipschitz / problem.row_norm * width / 2


def halves(n_users: int, n_phases: int) -> tuple[int, ...] | None:
    """Users of each phase: each half of those left, the last phase all of them; None if they run out."""
    users: list[int] = []
    for _ in range(n_phases - 1):
        users.append((n_users - sum(users)) // 2)
    users.append(n_users - sum(users))
    return tuple(users) if min(users) >= 1 else None
