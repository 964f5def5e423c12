"""Phased SGD with outlier iterate removal: one pass over the data.

Users are split into phases and each phase's users into groups. Every group runs one-pass SGD from the last released
point; the filtered mean of the groups' iterates is released with noise, and the next phase starts there, with steps as
small as that noise. One test and one release a phase, whatever the number of rows: that is what makes it linear-time.

Paper: Alg. 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from userdp.domains import Domain
from userdp.privacy.curator import Curator
from userdp.privacy.mechanisms.base import Aborted
from userdp.privacy.plan import Plan
from userdp.solvers.outcome import abort_advice, summary
from userdp.solvers.preconditioning import LABEL, Whitening, release_whitening
from userdp.solvers.problem import Problem, Result
from userdp.vectors.sgd import OnePassSGD


@dataclass(frozen=True)
class Phase:
    """Public numbers of one phase. `radius` is what theory expects two groups' iterates to be apart."""

    label: str
    n_users: int
    n_groups: int
    step_size: float
    radius: float
    noise_ratio: float  # noise std / radius used


@dataclass(frozen=True)
class PhasedPlan:
    """A certified plan and how to carry it out.

    `moment_error` is the expected error of the released second moment's eigenvalues if there is a preconditioner, else
    None. `faithful` runs the phases as the paper prints them.
    """

    plan: Plan
    phases: tuple[Phase, ...]
    rows_per_user: int
    bound: float
    moment_error: float | None = None
    faithful: bool = False

    @property
    def n_gradients(self) -> int:
        """Gradients computed at most: one a row, for users of `rows_per_user` rows."""
        return self.rows_per_user * sum(phase.n_users for phase in self.phases)

    def progress(self, problem: Problem) -> float:
        """About how far the first phase can go in whitened coordinates, as `Whitening.paced` counts it.

        Falling steps from eta reduce an error of curvature h by exp(-h eta T / 2), squared; h is taken for a quarter
        of the largest curvature.
        """
        phase = self.phases[0]
        n_steps = phase.n_users * self.rows_per_user / phase.n_groups
        return problem.typical_curvature * phase.step_size * n_steps * problem.n_features / 4


Progress = Callable[[str, int, int], None]


def run(problem: Problem, plan: PhasedPlan, curator: Curator, progress: Progress | None = None) -> Result:
    """Carry out a plan. All it sees of the data are the curator's releases.

    On an abort the last released point stands (the faithful mode gives 0, as printed). `progress` is told the label of
    the step that begins, its number and how many there are.
    """
    report = progress or (lambda label, done, total: None)
    total = len(plan.phases) + (plan.moment_error is not None)
    weights, whitening, message = problem.start, None, ""
    released: list[dict[str, float]] = []
    try:
        if plan.moment_error is not None:
            report(LABEL, 0, total)
            whitening = release_whitening(curator, problem.n_features, problem.row_norm, plan.moment_error)
            whitening = whitening.paced(plan.progress(problem))
        for phase in plan.phases:
            report(phase.label, total - len(plan.phases) + len(released), total)
            moved, radius = _release(problem, plan, phase, curator, weights, whitening)
            weights = _inside(problem.domain, moved, whitening)
            released.append(summary(phase, radius, groups=phase.n_groups, step_size=phase.step_size))
    except Aborted:
        stands = f"the weights of phase {len(released)}" if released else "the start"
        if plan.faithful:
            weights, stands = problem.start, "the start"
        message = abort_advice("groups of users ended", "a group", stands)
    return Result(weights, bool(message), message, plan.n_gradients, plan.bound, tuple(released))


def _release(
    problem: Problem, plan: PhasedPlan, phase: Phase, curator: Curator, weights: np.ndarray, whitening: Whitening | None
) -> tuple[np.ndarray, float]:
    """One phase: where the groups went on average, with noise, and the radius that was used."""
    start, domain, basis = weights, problem.domain, None
    if whitening is not None:
        start, basis = whitening.from_weights(weights), whitening.basis
        domain = whitening.around(problem.domain, problem.dimension)
        start = domain.project(start)  # inside already, up to rounding
    # The last iterate of steps that fall to 0 has the same guarantee as an average of constant ones, without a log
    # (Zamani and Glineur 2023, Defazio et al. 2023), and forgets the start faster.
    walk = (0.0, False) if plan.faithful else (1.0, True)
    statistic = OnePassSGD(problem.loss, start, domain, phase.step_size, *walk, basis)
    answer = curator.release(phase.label, statistic, phase.radius)
    offset, radius = (answer, phase.radius) if plan.faithful else (answer[:-1], float(answer[-1]))
    end = start + offset
    return (end if whitening is None else whitening.to_weights(end)), radius


def _inside(domain: Domain, weights: np.ndarray, whitening: Whitening | None) -> np.ndarray:
    return domain.project(weights) if whitening is None else whitening.project(domain, weights)
