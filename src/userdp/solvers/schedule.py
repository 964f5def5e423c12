"""How whitened-clip divides budget, users and steps: unhurried, or hurried where noise is small.

Unhurried, every release is of everyone: some fifty passes. Hurried, whitening and the first steps ask a part of the
users each, no user twice, so that together they take about a pass, and each may use all of their budget; only the last
few steps ask everyone. A part of 1/k of the users is noisier by k, which is why there must be little noise to begin
with; what it leaves is removed by the last steps. Fewer and longer steps with less momentum come as near as many do.
A rare class needs more steps: they are paid for in any case, and taken if the curvature tells of one.
Without delta (pure), epsilons add up, not their squares: T releases are noisier by T, their average by sqrt(T). So
there are few, of everyone, in long steps. All of it is decided by public numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from userdp.privacy.accounting import Budget, gaussian_multiplier
from userdp.solvers.problem import Problem

CURVATURE, BURN_IN, STEPS, RECALIBRATION = "curvature", "burn-in", "steps", "recalibration"
EARLY_CURVATURE, FLAT_STEPS = "early curvature", "steps for a rare class"
LOCATION = "location of the quantile"
_APPROACH = tuple(f"approach {number + 1}" for number in range(14))
IF_FLAT = (*_APPROACH[10:], FLAT_STEPS)  # steps that are skipped unless the curvature tells of a rare class
# Releases of a hurried plan before everyone is asked: the curvature as soon as the classes' frequency shows, and last.
APPROACH = (*_APPROACH[:4], EARLY_CURVATURE, *_APPROACH[4:], CURVATURE)
_PARTS = len(APPROACH)  # of the users, one for each release of the approach
_HURRIED = {BURN_IN: 0.15, STEPS: 0.85}  # how steps of everyone share what is left
# s up to which the approach's noise is small enough for so many steps of everyone, of burn-in and averaged, to remove.
_ENOUGH = ((1e-4, {BURN_IN: 1, STEPS: 4}), (3e-4, {BURN_IN: 2, STEPS: 4}), (1e-3, {BURN_IN: 3, STEPS: 5}))
_MOST_WHITENED = 0.0051  # s sqrt(features): beyond, a part of the users tells coordinates too roughly
_APPROACH_FRACTION = 0.15
_IF_FLAT_STEPS, _IF_FLAT_FRACTION = 10, 0.06  # of everyone, for a rare class, and their part of the budget
_FEW_ROWS = 200_000  # up to which nobody waits for all passes
# Users: of fewer, one of four measured fits with a rare class and rare levels went astray when hurried.
_FEWEST_HURRIED = 16_000

_MOST_STEPS = 40
_BURN_IN = 0.25  # of the steps
_CURVATURE_FRACTION = 0.02
_RECALIBRATION = (16, 0.15)  # steps, and fraction of the budget
_LOCATION = (12, 0.06)  # of quantiles: counts before the steps, and their fraction
_FEWEST_WEIGHTS = 8  # for which recalibration pays: with fewer all directions are as cheap
_TOO_NOISY = 0.025  # s from which on there is nothing to recalibrate
# Without delta: fraction for whitening; steps of burn-in, and how they share with the others what is left; of averaged
# steps, with the fraction that is about left for them; and of recalibration.
_PURE_WHITENING, _PURE_BURN_IN, _PURE_STEPS, _PURE_RECALIBRATION = 0.25, (6, 0.35), (4, 0.4), (8, 0.2)
SPREAD = 0.85  # 1-norm / (length * sqrt(entries)) that most vectors do not exceed: clipped there, noise is less


@dataclass(frozen=True)
class Part:
    """So many steps of one label, on the users from `start` to `stop` (fractions), for a fraction of the budget."""

    label: str
    steps: int
    fraction: float
    start: float = 0.0
    stop: float = 1.0


@dataclass(frozen=True)
class Layout:
    """How the budget (fractions of mu^2) and the steps are divided; s = sqrt(weights) / (mu n).

    `pure`: without delta, of epsilon; s is then that of Gaussian noise as large. `spare`: whether a hurried layout has
    steps for a rare class; `located`: whether a quantile is located first, and recalibrated by counts (`quantiles`).
    """

    s: float
    whitening: float
    steps: int
    recalibration_steps: int
    recalibration: float
    hurried: bool = False
    pure: bool = False
    spare: bool = True
    located: bool = False

    @staticmethod
    def of(problem: Problem, n_users: int, budget: Budget, hurried: bool = False) -> Layout:
        pure, located = budget.delta == 0, counts(problem)
        if pure:
            averaged, fraction = _PURE_STEPS
            # std / (2 clip / n) of the average's noise, which Gaussian steps have for half of their budget
            noise = SPREAD * math.sqrt(2 * averaged * (problem.dimension + 1)) / (fraction * budget.epsilon)
            s = math.sqrt(0.5 * problem.dimension) * noise / n_users
            whitening, steps = _PURE_WHITENING, _PURE_BURN_IN[0] + averaged
        else:
            s = math.sqrt(problem.dimension) * gaussian_multiplier(budget) / n_users
            whitening = 0.8 * min(max(0.3 * (s / 0.0115) ** 0.35, 0.1), 0.35) if s <= 0.05 else 0.16
            steps = round(min(max(_MOST_STEPS * math.sqrt(0.02 / s), 10), _MOST_STEPS))
        few = (problem.dimension < _FEWEST_WEIGHTS or s > _TOO_NOISY or hurried) and not located
        n_steps, fraction = (0, 0.0) if few else _PURE_RECALIBRATION if pure else _RECALIBRATION
        recalibration = fraction if pure else (1 - whitening) * fraction
        whitening = 0.0 if problem.public_moment is not None else whitening
        return Layout(s, whitening, steps, n_steps, recalibration, hurried, pure, located=located)

    def multiplier(self, one: float, fraction: float, releases: int = 1) -> float:
        """Of each of so many releases that share a fraction of the budget, `one` being that of all of it."""
        return one * (releases / fraction if self.pure else math.sqrt(releases / fraction))

    def may_hurry(self, problem: Problem, n_users: int, rows_per_user: int) -> bool:
        """Whether a hurried layout is expected to be as accurate, and saves time that somebody would notice."""
        smooth = problem.loss.smooth and problem.loss.n_outputs == 1
        little = self.s <= _ENOUGH[-1][0] and self.s * math.sqrt(problem.n_features) <= _MOST_WHITENED
        return smooth and little and n_users >= _FEWEST_HURRIED and n_users * rows_per_user > _FEW_ROWS

    @property
    def parts(self) -> tuple[Part, ...]:
        if self.hurried:
            return self._hurried_parts
        first = (Part(LOCATION, *_LOCATION),) if self.located else ()
        rest = 1 - self.whitening - self.recalibration - _CURVATURE_FRACTION - sum(part.fraction for part in first)
        burn_in = 0.15 if self.s < 0.006 else 0.25  # with much noise all steps cost the same
        first_steps, burn_in = _PURE_BURN_IN if self.pure else (max(1, round(_BURN_IN * self.steps)), burn_in)
        parts = (
            *first,
            Part(BURN_IN, first_steps, burn_in * rest),
            Part(CURVATURE, 1, _CURVATURE_FRACTION),
            Part(STEPS, self.steps - first_steps, (1 - burn_in) * rest),
        )
        last = Part(RECALIBRATION, self.recalibration_steps, self.recalibration)
        return (*parts, last) if self.recalibration else parts

    @property
    def _hurried_parts(self) -> tuple[Part, ...]:
        """The approach's users are no two the same: all of its releases cost what one does."""
        spare = (Part(FLAT_STEPS, _IF_FLAT_STEPS, _IF_FLAT_FRACTION),) if self.spare else ()
        rest = 1 - self.whitening - _APPROACH_FRACTION - sum(part.fraction for part in spare)
        steps = next((steps for most, steps in _ENOUGH if self.s <= most), _ENOUGH[-1][1])
        return (
            *(
                Part(label, 1, _APPROACH_FRACTION, number / _PARTS, (number + 1) / _PARTS)
                for number, label in enumerate(APPROACH)
            ),
            *spare,
            *(Part(label, steps[label], fraction * rest) for label, fraction in _HURRIED.items()),
        )

    @property
    def rounds(self) -> int:
        return sum(part.steps for part in self.parts)

    @property
    def longest(self) -> float:
        """What row weights bound rows to, in units of sqrt(features); it grows until nothing is weighted."""
        return float(max(0.8 * (0.003 / self.s) ** 0.4, 0.8))

    def clip(self, problem: Problem, label: str) -> float:
        """In units of gradients' root mean square; wider for few weights, where bias costs more than noise."""
        if label == STEPS:
            return float(max(0.5 * (0.01 / self.s) ** 0.4, 0.3) * (1 + 6 / problem.dimension))
        return float(2.5 * max(1.0, (0.01 / self.relative_noise(problem, label)) ** 0.4))

    def relative_noise(self, problem: Problem, label: str) -> float:
        """s, or what it is for recalibration: of fewer directions, for a part of the budget."""
        if label != RECALIBRATION:
            return self.s
        return self.s * math.sqrt(n_recalibrated(problem) / (self.recalibration * problem.dimension))


def counts(problem: Problem) -> bool:
    """Whether what is learned is a quantile, with an intercept along which covered targets can be counted."""
    return problem.loss.level is not None and problem.intercept


def n_recalibrated(problem: Problem) -> int:
    """How many directions are recalibrated: the predictions' scale, and each output's intercept."""
    return 1 + problem.loss.n_outputs * problem.intercept
