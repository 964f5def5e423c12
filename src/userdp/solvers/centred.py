"""Gradient steps along means of users' gradients, each shortened around the mean that was released before.

A user gives its gradient less the last released mean; this offset is shortened to a radius, which follows the private
share of offsets within it; the mean is the old one plus the noisy mean of offsets. So noise is in proportion to how far
apart users are, not to how long gradients are. There is no test, no search and no smallest number of users: users far
from the others count as if they were at the radius. (At a good point gradients are 0 on average, so the center matters
on the way only: with a center of 0 instead, the measured excess was within 12% either way, mostly within its noise.
What gains is the radius that adapts, and acceleration.)

Two schedules. Where noise is moderate, Nesterov's steps (`steadied`) and the average of the last half; where it is
heavy, or the loss has kinks, steps that fall linearly to 0 and the last point; if heavy, with a small radius, at which
directions count. What decides is the *noise number*: by how much one release for the whole budget, of vectors shortened
to 1, would shake predictions,

    nu = 2 z sqrt(k E|x|^2) / n,   z the multiplier of one release, k weights, E|x|^2 a row's square.

Steps are accelerated below nu = .08; the radius is where a share 1 - sqrt(nu) of the offsets is within it: less noise
allows more of the users to count in full. Both were found on one data set (openpowerlifting).

With D the distance of the start from a good point, beta the smoothness, T steps on a share q of the users and v the
variance of users' mean gradients, the plan's bound is

    4 beta D^2 / T^2 + 4 D sqrt(V/T) + 2 D sqrt(v/n)    accelerated
    2 beta D^2 / T + 2 D sqrt(V/T) + 2 D sqrt(v/n)      falling steps
    V = k (z_T sqrt(v) / (q n))^2 + (1 - q) v / (q n)   variance of a step's gradient

It is no theorem, because means of shortened offsets are not gradients of the loss: it orders plans.

Gradients that are not finite are never within the radius. If the share stays far below what the radius aims at, the run
halts, as others do when their test fails.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from userdp.domains import Domain
from userdp.privacy.accounting import Budget, Cost, gaussian_multiplier
from userdp.privacy.curator import Curator
from userdp.privacy.plan import Plan, Step
from userdp.solvers.descent import Nesterov, steadied
from userdp.solvers.outcome import halt_advice, summary
from userdp.solvers.phased_sgd import Progress
from userdp.solvers.plans import SolverPlan, check_sizes, gradients_of_samples, largest_sample, too_few_gradients
from userdp.solvers.preconditioning import (
    LABEL,
    MOST_FEATURES,
    Whitening,
    moment_error,
    moment_step,
    release_whitening,
    whitened_distance,
)
from userdp.solvers.problem import Problem, Result
from userdp.solvers.sampled_rounds import (
    likely_multiplier,
    next_radius,
    sampled_clip,
)
from userdp.statistics import MeanGradient
from userdp.wrapped import Offset

ACCELERATED, FALLING = "accelerated", "falling"
_STEPS = 40
_MOMENT_SHARES = (0.0, 0.1, 0.15, 0.2, 0.3)  # of the budget
_HEAVY = 0.08  # the noise number from which on steps fall
_MOST_SHORTENED, _QUANTILE_WHEN_HEAVY = 0.5, 0.1
_SHARE_RATIO = 6.0  # the share's multiplier / that of mean and share together: 3% of the budget
_RADIUS_RATE = 0.3
_FIRST_RADIUS, _FIRST_RADIUS_WHEN_HEAVY = 1 / 3, 1 / 6  # of sqrt(v)
_LARGEST_RADIUS = 2.0  # of a gradient's usual length
_NOISE = 0.6  # most that the noise of falling steps may move predictions / D
_LONGEST_STEP = 1.5  # average falling step * smoothness
_LEAST_CURVATURE = 0.125  # as in `accelerated_tight`
_WHITENED_SMOOTHNESS = 2.0
_RARE = 4.0  # standard deviations


@dataclass(frozen=True)
class Phase:
    """All steps. The first radius is `radius`; it aims at `quantile`, and never exceeds `largest_radius`."""

    label: str
    n_users: int
    n_steps: int
    sampling_probability: float
    radius: float
    noise_ratio: float  # noise std / radius
    share_std: float  # noise of a share
    schedule: str
    quantile: float
    largest_radius: float
    smoothness: float
    distance: float
    row_square: float
    variance: float  # of a step's gradient, for want of the other users
    curved: float  # a curvature that there is likely at least


@dataclass(frozen=True)
class _Geometry:
    """Plain or whitened coordinates, as in `accelerated_tight`."""

    error: float | None
    row_square: float
    smoothness: float
    distance: float


def plan_centred(
    problem: Problem,
    n_users: int,
    rows_per_user: int,
    budget: Budget,
    max_gradients: int | None = None,
    schedule: str | None = None,
) -> SolverPlan[Phase]:
    """The plan with the least bound over shares of the budget for the preconditioner.

    `schedule` is "accelerated" or "falling"; by default the noise number decides. Steps take all users, or as many as
    `max_gradients` allows.
    """
    n_users, rows_per_user = check_sizes(n_users, rows_per_user, budget)
    if schedule not in (None, ACCELERATED, FALLING):
        raise ValueError(f'Expected schedule={schedule!r} to be "{ACCELERATED}", "{FALLING}" or None.')
    q = largest_sample(n_users, rows_per_user, _STEPS, max_gradients)
    if q is None:
        raise too_few_gradients(n_users, rows_per_user, _STEPS, max_gradients)
    size = (problem, n_users, rows_per_user, budget)
    shares = _MOMENT_SHARES if problem.n_features <= MOST_FEATURES else (0.0,)
    share = min(shares, key=lambda one: _bound(*size, one, q, _schedule(*size, one, schedule)))
    return _plan(*size, share, q, _schedule(*size, share, schedule))


def _geometry(problem: Problem, n_users: int, budget: Budget, moment_share: float) -> _Geometry:
    if not moment_share:
        square = problem.row_norm**2
        return _Geometry(None, square, problem.typical_curvature * square, problem.reach)
    error = moment_error(n_users, problem.n_features, gaussian_multiplier(budget) / math.sqrt(moment_share))
    smoothness = problem.typical_curvature * _WHITENED_SMOOTHNESS
    return _Geometry(error, float(problem.n_features), smoothness, whitened_distance(problem, error))


def noise_number(problem: Problem, n_users: int, budget: Budget, row_square: float) -> float:
    """The module's nu."""
    return 2 * gaussian_multiplier(budget) * math.sqrt(problem.dimension * row_square) / n_users


def _schedule(
    problem: Problem, n_users: int, rows_per_user: int, budget: Budget, moment_share: float, asked: str | None
) -> str:
    """The public rule, unless one was asked for."""
    row_square = _geometry(problem, n_users, budget, moment_share).row_square
    calm = problem.loss.smooth and noise_number(problem, n_users, budget, row_square) < _HEAVY
    return asked or (ACCELERATED if calm else FALLING)


def _sampling_variance(spread: float, n_users: int, q: float) -> float:
    return (1 - q) * spread / (q * n_users)


def _bound(
    problem: Problem,
    n_users: int,
    rows_per_user: int,
    budget: Budget,
    moment_share: float,
    q: float,
    schedule: str,
) -> float:
    """The module's bound."""
    geometry = _geometry(problem, n_users, budget, moment_share)
    spread = problem.user_variance(rows_per_user, geometry.row_square)
    multiplier = likely_multiplier((1 - moment_share) / gaussian_multiplier(budget) ** 2, q, _STEPS)
    variance = problem.dimension * (multiplier / (q * n_users)) ** 2 * spread + _sampling_variance(spread, n_users, q)
    times, slowness = (4, _STEPS**2) if schedule == ACCELERATED else (2, _STEPS)
    left = times * geometry.smoothness * geometry.distance**2 / slowness
    return left + geometry.distance * (times * math.sqrt(variance / _STEPS) + 2 * math.sqrt(spread / n_users))


def _plan(
    problem: Problem,
    n_users: int,
    rows_per_user: int,
    budget: Budget,
    moment_share: float,
    q: float,
    schedule: str,
) -> SolverPlan[Phase]:
    geometry = _geometry(problem, n_users, budget, moment_share)
    first: tuple[Step, ...] = ()
    spent = Cost()
    if moment_share:
        first = (moment_step(n_users, problem.n_features, gaussian_multiplier(budget) / math.sqrt(moment_share)),)
        spent = first[0].mechanism.cost
    mean = sampled_clip(n_users, budget, q, _STEPS, _SHARE_RATIO, spent)
    plan = Plan(n_users, (*first, Step("gradients", 0, n_users, mean)))
    plan.certify(budget)
    spread = problem.user_variance(rows_per_user, geometry.row_square)
    number = noise_number(problem, n_users, budget, geometry.row_square)
    heavy = schedule == FALLING and number >= _HEAVY
    assert mean.share_multiplier is not None
    phase = Phase(
        "gradients",
        n_users,
        _STEPS,
        q,
        (_FIRST_RADIUS_WHEN_HEAVY if heavy else _FIRST_RADIUS) * math.sqrt(spread),
        mean.noise_std(1.0, problem.dimension),
        mean.share_multiplier * mean.share_sensitivity,
        schedule,
        _QUANTILE_WHEN_HEAVY if heavy else 1 - min(_MOST_SHORTENED, math.sqrt(number)),
        _LARGEST_RADIUS * math.sqrt(geometry.row_square) * problem.typical_slope,
        geometry.smoothness,
        geometry.distance,
        geometry.row_square,
        _sampling_variance(spread, n_users, q),
        0.0 if geometry.error is None else _LEAST_CURVATURE * problem.typical_curvature,
    )
    bound = _bound(problem, n_users, rows_per_user, budget, moment_share, q, schedule)
    return SolverPlan(plan, (phase,), gradients_of_samples(n_users, rows_per_user, q, _STEPS), bound, geometry.error)


class _FallingSteps:
    """Projected steps that fall linearly to 0; `step_size` is the average one."""

    def __init__(self, start: np.ndarray, domain: Domain, step_size: float, n_steps: int) -> None:
        self._domain, self._step_size, self._n_steps, self._done = domain, step_size, n_steps, 0
        self.query = self.point = domain.project(start)

    def move(self, gradient: np.ndarray) -> None:
        step = 2 * (1 - self._done / self._n_steps) * self._step_size
        self.query = self.point = self._domain.project(self.query - step * gradient)
        self._done += 1


def _descent(phase: Phase, start: np.ndarray, domain: Domain) -> Nesterov | _FallingSteps:
    """Steps by the noise that the first radius makes."""
    noise = phase.noise_ratio * phase.radius
    if phase.schedule == ACCELERATED:
        variance = phase.variance + start.size * noise**2
        smoothness = steadied(phase.smoothness, phase.distance, variance, phase.n_steps, phase.curved)
        return Nesterov(start, domain, smoothness, phase.n_steps)
    # Together the noise of a weight is (average step) noise sqrt(4 T / 3).
    shaken = noise * math.sqrt(4 * phase.n_steps / 3 * phase.row_square)
    step = min(_LONGEST_STEP / phase.smoothness, _NOISE * phase.distance / shaken)
    return _FallingSteps(start, domain, step, phase.n_steps)


def run(problem: Problem, plan: SolverPlan[Phase], curator: Curator, progress: Progress | None = None) -> Result:
    """Carry out a plan. All it sees of the data are the curator's releases."""
    report = progress or (lambda label, done, total: None)
    (phase,) = plan.phases
    whitening: Whitening | None = None
    domain, start = problem.domain, problem.start
    if plan.moment_error is not None:
        report(LABEL, 0, phase.n_steps)
        whitening = release_whitening(curator, problem.n_features, problem.row_norm, plan.moment_error)
        domain = whitening.around(problem.domain, problem.dimension)
        start = whitening.from_weights(problem.start)
    descent, center, radius = _descent(phase, start, domain), np.zeros(problem.dimension), phase.radius
    shares = []
    for number in range(phase.n_steps):
        report("gradient step", number, phase.n_steps)
        weights = descent.query if whitening is None else whitening.to_weights(descent.query)
        gradient = MeanGradient(problem.loss, weights, None if whitening is None else whitening.basis)
        released = curator.release(phase.label, Offset(gradient, center), radius)
        center = center + released[:-1]
        descent.move(center)
        shares.append(float(released[-1]))
        radius = min(phase.largest_radius, next_radius(radius, shares[-1], phase.quantile, _RADIUS_RATE))
    late = shares[phase.n_steps // 2 :]
    message = halt_advice("users have gradients that are not finite, or are", "a user", "the start")
    if sum(late) / len(late) < phase.quantile / 2 - _RARE * phase.share_std / math.sqrt(len(late)):
        weights = problem.start
    else:
        message, weights = "", problem.domain.project(descent.point)
        if whitening is not None:
            weights = whitening.project(problem.domain, whitening.to_weights(descent.point))
    own = {"steps": phase.n_steps, "users_a_step": phase.sampling_probability * phase.n_users}
    return Result(weights, bool(message), message, plan.n_gradients, plan.bound, (summary(phase, radius, **own),))
