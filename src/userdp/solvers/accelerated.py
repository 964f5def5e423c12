"""Accelerated gradient steps on private means of users' gradients: the most accurate solver, at several passes.

Users are split into phases. A phase minimises the mean loss of its users + l2/2 |w|^2 + lambda/2 |w - last point|^2:
every step asks for the filtered mean of the users' mean gradients, with noise; the gradients of the penalties are
public and added afterwards.

Paper: Alg. 2 and 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from userdp.losses import Loss
from userdp.privacy.curator import Curator
from userdp.privacy.mechanisms.base import Aborted
from userdp.privacy.plan import Plan
from userdp.solvers.descent import ACSA, AveragedSGD, Nesterov, sgd_step, steadied
from userdp.solvers.outcome import abort_advice, summary
from userdp.solvers.phased_sgd import Progress
from userdp.solvers.preconditioning import LABEL, Whitening, release_whitening
from userdp.solvers.problem import Problem, Result
from userdp.vectors.gradients import BallSmoothing, MeanGradient


@dataclass(frozen=True)
class Phase:
    """Public numbers of one phase: all that its steps need.

    users_a_step: how many users' gradients a step takes, on average;
    radius: what theory expects two users' gradients to be apart;
    search: the label of the step that finds the radius privately, in units of `radius`; None to take `radius` itself;
    noise_ratio: noise std / radius used;
    regularizer: lambda;
    variance: of a step's gradient, besides the noise; distance: of the start from a good point;
    curved: least curvature to be expected; gap: how far the start may be above the minimum (for AC-SA);
    ball: radius of the ball around the weights from which those of a row's gradient are drawn, for smoothing.
    """

    label: str
    n_users: int
    n_steps: int
    users_a_step: float
    smoothness: float
    radius: float
    noise_ratio: float
    search: str | None = None
    regularizer: float = 0.0
    variance: float = 0.0
    distance: float = 0.0
    curved: float = 0.0
    gap: float = 0.0
    ball: float | None = None


@dataclass(frozen=True)
class AcceleratedPlan:
    """A certified plan and how to carry it out.

    `loss` is the given one or, in closed form, a smoothed one. `averaged` takes plain steps and the average iterate
    instead of accelerated ones; a phase's smoothness is then 0 where the loss has kinks.

    `moment_error` is the expected error of the released second moment's eigenvalues if there is a preconditioner, else
    None; `ridge` is added to them, and `progress` paces the directions (`Whitening.paced`). `faithful` runs the phases
    as the paper prints them.
    """

    plan: Plan
    loss: Loss
    phases: tuple[Phase, ...]
    n_gradients: int
    bound: float
    moment_error: float | None = None
    ridge: float = 0.0
    progress: float = math.inf
    faithful: bool = False
    averaged: bool = False


def run(problem: Problem, plan: AcceleratedPlan, curator: Curator, progress: Progress | None = None) -> Result:
    """Carry out a plan. All it sees of the data are the curator's releases.

    On an abort what was reached stands (the faithful mode gives the start, for the printed 0).
    """
    report = progress or (lambda label, done, total: None)
    total, n_done, message = sum(phase.n_steps for phase in plan.phases), 0, ""
    weights, walk = problem.start, None
    released: list[dict[str, float]] = []
    try:
        whitening = None
        if plan.moment_error is not None:
            report(LABEL, 0, total)
            whitening = release_whitening(curator, problem.n_features, problem.row_norm, plan.moment_error, plan.ridge)
            whitening = whitening.paced(plan.progress)
        for phase in plan.phases:
            weights = weights if walk is None else walk.weights
            walk, radius = _Walk(problem, plan, phase, weights, whitening), phase.radius
            if phase.search is not None:
                report("radius", n_done, total)
                (radius,) = map(float, curator.release(phase.search, walk.statistic(n_done), radius))
            walk.begin(radius)
            own = {"steps": phase.n_steps, "users_a_step": phase.users_a_step, "regularizer": phase.regularizer}
            released.append(summary(phase, radius, **own))
            for _ in range(phase.n_steps):
                report("gradient step", n_done, total)
                walk.move(curator.release(phase.label, walk.statistic(n_done), radius))
                n_done += 1
    except Aborted:
        stands = "the start" if plan.faithful or n_done == 0 else f"what was reached after {n_done} steps"
        message = abort_advice("users' gradients are", "a user", stands)
    if walk is not None and n_done:
        weights = problem.start if message and plan.faithful else walk.weights
    return Result(weights, bool(message), message, plan.n_gradients, plan.bound, tuple(released))


class _Walk:
    """One phase's descent, in whitened coordinates if there are such."""

    def __init__(
        self, problem: Problem, plan: AcceleratedPlan, phase: Phase, start: np.ndarray, whitening: Whitening | None
    ) -> None:
        self._problem, self._plan, self._phase = problem, plan, phase
        self._center, self._whitening = start, whitening
        self._domain = problem.domain if whitening is None else whitening.around(problem.domain, problem.dimension)
        self._first = start if whitening is None else whitening.from_weights(start)
        self._descent: Nesterov | AveragedSGD | ACSA | None = None

    def begin(self, radius: float) -> None:
        """Choose the steps, now that the radius, and so the noise, is known."""
        phase = self._phase
        variance = phase.variance + self._problem.dimension * (phase.noise_ratio * radius) ** 2
        if self._plan.faithful:
            strong = phase.regularizer + self._problem.l2
            curvatures = (phase.smoothness, strong)
            self._descent = ACSA(self._first, self._domain, *curvatures, variance, phase.gap, phase.n_steps)
        elif self._plan.averaged:
            step = sgd_step(phase.smoothness, phase.distance, variance, phase.n_steps)
            self._descent = AveragedSGD(self._first, self._domain, step)
        else:
            smoothness = phase.smoothness * (1.0 if self._whitening is None else self._whitening.steepness)
            smoothness = steadied(smoothness, phase.distance, variance, phase.n_steps, phase.curved)
            self._descent = Nesterov(self._first, self._domain, smoothness, phase.n_steps)

    def statistic(self, number: int) -> MeanGradient:
        """What to ask for; `number` makes the draws of a smoothing ball fresh."""
        smoothing = None if self._phase.ball is None else BallSmoothing(self._phase.ball, number)
        basis = None if self._whitening is None else self._whitening.basis
        return MeanGradient(self._plan.loss, self._asked_at, basis, smoothing)

    def move(self, gradient: np.ndarray) -> None:
        at = self._asked_at
        penalty = self._problem.l2 * at + self._phase.regularizer * (at - self._center)
        assert self._descent is not None
        self._descent.move(gradient + (penalty if self._whitening is None else self._whitening.of_gradient(penalty)))

    @property
    def weights(self) -> np.ndarray:
        """The result so far, in the features' own units and inside the domain."""
        point = self._first if self._descent is None else self._descent.point
        domain = self._problem.domain
        if self._whitening is None:
            return domain.project(point)
        return self._whitening.project(domain, self._whitening.to_weights(point))

    @property
    def _asked_at(self) -> np.ndarray:
        query = self._first if self._descent is None else self._descent.query
        return query if self._whitening is None else self._whitening.to_weights(query)
