"""How the default solver divides users, steps and budget: a full, a fast and a pure schedule, side by side.

Full: every release is of everyone, some fifty passes.
Fast, where noise is small: whitening and the first steps ask a part of the users each, no user twice, so that together
they take about a pass, and each may use all of their budget; only the last few steps ask everyone. A part of 1/k of the
users is noisier by k, which is why there must be little noise to begin with; what it leaves is removed by the last
steps. Fewer and longer steps with less momentum come as near as many do. A rare class needs more steps: they are paid
for in any case, and taken if the curvature shows one.
Pure, without delta: epsilons add up, not their squares. T releases are noisier by T, their average by sqrt(T). So there
are few, of everyone, in long steps.
All of it is decided by public numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from userdp.privacy.accounting import Budget, gaussian_multiplier
from userdp.solvers import constants
from userdp.solvers.constants import Pace
from userdp.solvers.problem import Problem
from userdp.solvers.solver import gradients_of_samples, largest_sample, too_few_gradients

CURVATURE, BURN_IN, STEPS, RECALIBRATION = "curvature", "burn-in", "steps", "recalibration"
EARLY_CURVATURE, FLAT_STEPS = "early curvature", "steps for a rare class"
LOCATION = "location of the quantile"
# Of a fast schedule before everyone is asked: the curvature as soon as the classes' frequency shows, and last.
_STEPS = tuple(f"approach {number + 1}" for number in range(sum(constants.APPROACH_STEPS)))
_EARLY = constants.APPROACH_STEPS[0]
APPROACH = (*_STEPS[:_EARLY], EARLY_CURVATURE, *_STEPS[_EARLY:], CURVATURE)


@dataclass(frozen=True)
class Share:
    """So many releases of one label, of the users from `start` to `stop` (fractions), for a fraction of the budget."""

    label: str
    n_releases: int
    fraction: float
    start: float = 0.0
    stop: float = 1.0


@dataclass(frozen=True)
class Layout:
    """How the budget (fractions of mu^2, or of epsilon if `pure`) and the steps are divided.

    s = sqrt(weights) / (mu n), or if `pure` that of Gaussian noise as large; `whitening`: the fraction for coordinates;
    `shares`: all other releases in their order.
    """

    s: float
    whitening: float
    shares: tuple[Share, ...]
    pace: Pace
    fast: bool = False
    pure: bool = False

    @property
    def rounds(self) -> int:
        return sum(share.n_releases for share in self.shares)

    @property
    def recalibration(self) -> float:
        """The fraction of the budget for it; 0 if there is none."""
        return sum(share.fraction for share in self.shares if share.label == RECALIBRATION)

    def n_gradients(self, n_users: int, rows_per_user: int, sampled: float = 1.0) -> int:
        if sampled < 1:
            return gradients_of_samples(n_users, rows_per_user, sampled, self.rounds)
        return rows_per_user * sum(
            share.n_releases * (int(share.stop * n_users) - int(share.start * n_users)) for share in self.shares
        )

    @property
    def longest(self) -> float:
        """What row weights bound rows to, in units of sqrt(features); it grows until nothing is weighted."""
        return float(max(0.8 * (constants.LONGEST / self.s) ** 0.4, 0.8))

    def clip(self, problem: Problem, label: str) -> float:
        """In units of gradients' root mean square; wider for few weights, where bias costs more than noise."""
        if label == STEPS:
            factor, least, few = constants.CLIP
            return float(max(factor * (0.01 / self.s) ** 0.4, least) * (1 + few / problem.dimension))
        return float(constants.WIDE_CLIP * max(1.0, (0.01 / self.relative_noise(problem, label)) ** 0.4))

    def relative_noise(self, problem: Problem, label: str) -> float:
        """s, or what it is for recalibration: of fewer directions, for a part of the budget."""
        if label != RECALIBRATION:
            return self.s
        return self.s * math.sqrt(n_recalibrated(problem) / (self.recalibration * problem.dimension))


# --- the three schedules ----------------------------------------------------------------------------------------------


def full(problem: Problem, n_users: int, budget: Budget) -> Layout:
    """Every release is of everyone."""
    s, whitening = _gaussian(problem, n_users, budget)
    steps = round(min(max(constants.MOST_STEPS * math.sqrt(0.02 / s), 10), constants.MOST_STEPS))
    first, burn_in = max(1, round(constants.BURN_IN * steps)), constants.BURN_IN_FRACTION
    n_last, fraction = constants.RECALIBRATION
    last = (Share(RECALIBRATION, n_last, (1 - whitening) * fraction),) if _recalibrated(problem, s) else ()
    whitening = 0.0 if problem.public_moment is not None else whitening
    shares = _of_everyone(problem, whitening, (first, burn_in), steps - first, last)
    return Layout(s, whitening, shares, constants.PACE)


def fast(problem: Problem, n_users: int, budget: Budget, rare_class: bool = True) -> Layout:
    """The first releases, each of a part of the users: all of them together cost what one does. Then a few of everyone.

    `rare_class`: whether there are steps of everyone for one.
    """
    s, whitening = _gaussian(problem, n_users, budget)
    whitening = 0.0 if problem.public_moment is not None else whitening
    parts, fraction = len(APPROACH), constants.APPROACH_FRACTION
    first = [Share(label, 1, fraction, part / parts, (part + 1) / parts) for part, label in enumerate(APPROACH)]
    spare = (Share(FLAT_STEPS, *constants.RARE_CLASS),) if rare_class else ()
    rest = 1 - whitening - fraction - sum(share.fraction for share in spare)
    steps = next((steps for most, steps in constants.FAST_STEPS if s <= most), constants.FAST_STEPS[-1][1])
    last = [
        Share(label, n_steps, part * rest)
        for label, n_steps, part in zip((BURN_IN, STEPS), steps, constants.FAST_FRACTIONS, strict=True)
    ]
    return Layout(s, whitening, (*first, *spare, *last), constants.FAST_PACE, fast=True)


def pure(problem: Problem, n_users: int, budget: Budget) -> Layout:
    """Few releases, of everyone, with Laplace noise."""
    averaged, whitening, (_, recalibration) = (
        constants.PURE_STEPS,
        constants.PURE_WHITENING,
        constants.PURE_RECALIBRATION,
    )
    fraction = (1 - constants.PURE_BURN_IN[1]) * (1 - whitening - constants.CURVATURE_FRACTION - recalibration)
    # std / (2 clip / n) of the average's noise, which Gaussian steps have for half of their budget
    noise = constants.PURE_SPREAD * math.sqrt(2 * averaged * (problem.dimension + 1)) / (fraction * budget.epsilon)
    s = budget.relative_noise * math.sqrt(0.5 * problem.dimension) * noise / n_users
    last = (Share(RECALIBRATION, *constants.PURE_RECALIBRATION),) if _recalibrated(problem, s) else ()
    whitening = 0.0 if problem.public_moment is not None else whitening
    shares = _of_everyone(problem, whitening, constants.PURE_BURN_IN, averaged, last)
    return Layout(s, whitening, shares, constants.FAST_PACE, pure=True)


def choose(
    problem: Problem, n_users: int, rows_per_user: int, budget: Budget, max_gradients: int | None
) -> tuple[Layout, float]:
    """Fast if time counts, or if full passes are too many; and the probability with which users are sampled.

    Without delta there are neither: passes are few, and Laplace noise of samples is not accounted for.
    """
    if budget.delta == 0:
        return pure(problem, n_users, budget), 1.0
    layout, most = full(problem, n_users, budget), 0 if max_gradients is None else max_gradients
    if _may_be_fast(layout, problem, n_users, rows_per_user) and layout.n_gradients(n_users, rows_per_user) > most:
        for rare_class in (True, False):
            faster = fast(problem, n_users, budget, rare_class)
            if max_gradients is None or faster.n_gradients(n_users, rows_per_user) <= most:
                return faster, 1.0
    sampled = largest_sample(n_users, rows_per_user, layout.rounds, max_gradients)
    if sampled is None:
        raise too_few_gradients(n_users, rows_per_user, layout.rounds, max_gradients)
    return layout, sampled


def _gaussian(problem: Problem, n_users: int, budget: Budget) -> tuple[float, float]:
    """s, and the fraction for whitening."""
    s = budget.relative_noise * math.sqrt(problem.dimension) * gaussian_multiplier(budget) / n_users
    factor, usual, power = constants.WHITENING
    return s, 0.8 * min(max(factor * (s / usual) ** power, 0.1), 0.35) if s <= 0.05 else 0.16


def _recalibrated(problem: Problem, s: float) -> bool:
    few = problem.dimension < constants.FEWEST_WEIGHTS or s > constants.TOO_NOISY
    return counts(problem) or not few


def _of_everyone(
    problem: Problem, whitening: float, burn_in: tuple[int, float], averaged: int, last: tuple[Share, ...]
) -> tuple[Share, ...]:
    """Burn-in (steps, and their part of what is left), the curvature, averaged steps; counts before for a quantile."""
    first = (Share(LOCATION, *constants.LOCATION),) if counts(problem) else ()
    recalibration, located = (sum(share.fraction for share in shares) for shares in (last, first))
    rest = 1 - whitening - recalibration - constants.CURVATURE_FRACTION - located
    n_first, part = burn_in
    return (
        *first,
        Share(BURN_IN, n_first, part * rest),
        Share(CURVATURE, 1, constants.CURVATURE_FRACTION),
        Share(STEPS, averaged, (1 - part) * rest),
        *last,
    )


def _may_be_fast(layout: Layout, problem: Problem, n_users: int, rows_per_user: int) -> bool:
    """Whether a fast schedule is expected to be as accurate, and saves time that a user would notice."""
    smooth = problem.loss.smooth and problem.loss.n_outputs == 1
    noise = layout.s * math.sqrt(problem.n_features)
    little = layout.s <= constants.FAST_STEPS[-1][0] and noise <= constants.MOST_WHITENED
    return smooth and little and n_users >= constants.FEWEST_FAST and n_users * rows_per_user > constants.FEW_ROWS


def counts(problem: Problem) -> bool:
    """Whether what is learned is a quantile, with an intercept along which covered targets can be counted."""
    return problem.loss.level is not None and problem.intercept


def n_recalibrated(problem: Problem) -> int:
    """How many directions are recalibrated: the predictions' scale, and each output's intercept."""
    return 1 + problem.loss.n_outputs * problem.intercept
