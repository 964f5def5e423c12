"""User-level DP-SGD: steps along the mean of users' gradients, each shortened to the same length, with noise.

What people run today, with nothing left to tune. Gradients are shortened to well below their usual length, so that
mostly their directions count: the clip then scales signal and noise alike, and one number remains, how far the steps
lead in all. Steps fall linearly to 0 and the last point is the result. Both follow from `room`, how many times the
distance of a good point the steps may lead before noise moves predictions too far: with more room gradients are
shortened less, because what shortening does to the objective then costs more than noise. There is no test and no search
to pay for, and no smallest number of users. Within fewer gradients than 40 passes each step takes a Poisson sample of
the users: up to epsilon 1, about, that hardly costs accuracy.

A user whose gradient is not finite votes, with the same length, in one more coordinate: their share is known at no cost
beyond one coordinate's noise, and if it is large the run halts, as others do when their test fails.

The plan's bound, with sigma the noise of a step's gradient and v the variance of users' gradients, T steps of K users
each, c a gradient's usual length, D the distance of the start from a good point and k weights, is that of gradient
steps whose gradients were shortened to c only:

    V = k sigma^2 + (1 - K/n) v/K
    2 beta D^2 / T + D sqrt(V/T)

D sqrt(V/T) for noise of variance V a step, at the best step size; and what T steps leave, four times that for what
shortening does. It is no theorem, because shortened gradients are not gradients of the loss: it orders plans.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from userdp.planning import sampled_multiplier
from userdp.privacy.accounting import AddedUserMultiplier, Budget, Cost, gaussian_multiplier, subsampled_multiplier
from userdp.privacy.curator import Curator
from userdp.privacy.means.clip import Clip
from userdp.privacy.means.sampled_clip import SampledClip
from userdp.privacy.plan import Plan, Step
from userdp.solvers.outcome import halt_advice, summary
from userdp.solvers.phased_sgd import Progress
from userdp.solvers.plans import SolverPlan, check_sizes, gradients_of_samples, largest_sample
from userdp.solvers.preconditioning import (
    LABEL,
    MOST_FEATURES,
    moment_error,
    moment_step,
    release_whitening,
)
from userdp.solvers.problem import Problem, Result
from userdp.statistics import MeanGradient
from userdp.wrapped import FlaggedGradient

_STEPS = (40, 20, 10, 5, 3, 2, 1)
_MOMENT_SHARES = (0.0, 0.1, 0.2, 0.3)  # of the budget
_SHORTENED = (0.05, 0.25)  # the clip / a gradient's usual length, at least and at most
_SHORTENED_BY_ROOM = 0.0055
_PATH = 50.0  # most that steps' lengths add up to, if all users pulled in one direction / distance of a good point
_NOISE = 0.6  # most that the noise may move predictions / distance of a good point
_FEWEST_SAMPLED = 20  # users in a sample, on average
_UNUSABLE = 0.25  # share of users without a gradient from which on the result is not to be trusted
_RARE = 4.0  # standard deviations that its noise may add
_WHITENED_SMOOTHNESS = 2.0  # as in `accelerated_tight`


@dataclass(frozen=True)
class Phase:
    """All steps: the clip is `radius`; `path` is what their lengths add up to; `users_a_step` on average."""

    label: str
    n_users: int
    n_steps: int
    users_a_step: float
    radius: float
    noise_ratio: float  # noise std / radius
    path: float
    room: float  # below 1 noise does not let the steps lead to a good point


def plan_clipped(
    problem: Problem, n_users: int, rows_per_user: int, budget: Budget, max_gradients: int | None = None
) -> SolverPlan[Phase]:
    """The plan with the least bound over shares of the budget for the preconditioner, steps and samples."""
    n_users, rows_per_user = check_sizes(n_users, rows_per_user, budget)
    shapes = list(_shapes(n_users, rows_per_user, max_gradients))
    if not shapes:
        least = min(n_users, _FEWEST_SAMPLED) * rows_per_user
        raise ValueError(
            f"Expected max_gradients={max_gradients} >= {least}, for a step of {_FEWEST_SAMPLED} users of "
            f"{rows_per_user} rows. Nothing was spent."
        )
    shares = _MOMENT_SHARES if problem.n_features <= MOST_FEATURES else (0.0,)
    choices = [_choice(problem, n_users, budget, share, *shape) for share in shares for shape in shapes]
    best = min(choices, key=lambda choice: choice.bound)
    return _plan(problem, best, n_users, rows_per_user, budget)


def _shapes(n_users: int, rows_per_user: int, max_gradients: int | None) -> Iterator[tuple[int, float]]:
    """Numbers of steps and shares of the users in each that stay within the gradients."""
    for n_steps in _STEPS:
        sampled = largest_sample(n_users, rows_per_user, n_steps, max_gradients)
        if sampled is not None and (sampled == 1 or sampled * n_users >= _FEWEST_SAMPLED):
            yield n_steps, sampled
        if sampled == 1:
            return


@dataclass(frozen=True)
class _Choice:
    """One way to do it: a share of the budget for the moment, so many steps, a share of the users in each.

    `radius` is the clip, `path` what the steps' lengths add up to.
    """

    moment_share: float
    n_steps: int
    sampled: float
    radius: float
    path: float
    room: float
    bound: float


def _choice(
    problem: Problem, n_users: int, budget: Budget, moment_share: float, n_steps: int, sampled: float
) -> _Choice:
    """The module's bound, clip and path for these."""
    row_square, steepest = problem.row_norm**2, problem.row_norm**2
    predicted = min(problem.typical_prediction, problem.row_norm * problem.reach)
    distance = far = min(problem.reach, predicted * math.sqrt(problem.n_features) / problem.row_norm)
    if moment_share:
        error = moment_error(n_users, problem.n_features, _multiplier(budget, moment_share))
        # What raising small eigenvalues adds, for moments that are about a quarter of what rows' norms allow.
        far = math.hypot(predicted, math.sqrt(error) * problem.row_norm / 2 * distance)
        row_square, steepest, distance = float(problem.n_features), _WHITENED_SMOOTHNESS, predicted
    precision = 1 / _multiplier(budget, 1 - moment_share) ** 2
    noise = 2 * math.sqrt(n_steps / precision) / n_users
    if sampled < 1:
        noise = sampled_multiplier(precision, sampled, n_steps) / (sampled * n_users)
    sampling = (1 - sampled) / (sampled * n_users)
    usual = math.sqrt(row_square) * problem.typical_slope
    variance = usual**2 * (problem.dimension * noise**2 + sampling)
    bound = 2 * problem.typical_curvature * steepest * far**2 / n_steps + far * math.sqrt(variance / n_steps)
    # Steps 2 (1 - t/T) path / T: together a weight's noise is path * noise * sqrt(4 / (3 T)).
    square = 4 / (3 * n_steps) * row_square * noise**2
    room = _NOISE / math.sqrt(square + 4 / (3 * n_steps) * sampling)
    shortened = min(max(_SHORTENED_BY_ROOM * _NOISE / math.sqrt(square), _SHORTENED[0]), _SHORTENED[1])
    return _Choice(moment_share, n_steps, sampled, shortened * usual, distance * min(_PATH, room), room, bound)


def _multiplier(budget: Budget, share: float) -> float:
    """Of one Gaussian release for a share of the budget, with room for the rounding of shares."""
    return gaussian_multiplier(budget) * (1 + 1e-9) / math.sqrt(share)


def _plan(problem: Problem, choice: _Choice, n_users: int, rows_per_user: int, budget: Budget) -> SolverPlan[Phase]:
    """Records of the chosen numbers."""
    first: tuple[Step, ...] = ()
    error, other, n_steps, weights = None, Cost(), choice.n_steps, problem.dimension
    if choice.moment_share:
        multiplier = _multiplier(budget, choice.moment_share)
        first = (moment_step(n_users, problem.n_features, multiplier),)
        error, other = moment_error(n_users, problem.n_features, multiplier), first[0].mechanism.cost
    mean: Clip | SampledClip
    if choice.sampled == 1:
        mean = Clip(n_users, _multiplier(budget, 1 - choice.moment_share) * math.sqrt(n_steps), rounds=n_steps)
    else:
        multiplier = subsampled_multiplier(budget, choice.sampled, n_steps, other) * (1 + 1e-9)
        mean = SampledClip(n_users, choice.sampled, AddedUserMultiplier(multiplier), n_steps)
    ratio = mean.noise_std(1.0, weights + 1)
    users = choice.sampled * n_users
    phase = Phase("gradients", n_users, n_steps, users, choice.radius, ratio, choice.path, choice.room)
    plan = Plan(n_users, (*first, Step(phase.label, 0, n_users, mean)))
    plan.certify(budget)
    n_gradients = gradients_of_samples(n_users, rows_per_user, choice.sampled, n_steps)
    return SolverPlan(plan, (phase,), n_gradients, choice.bound, error)


def run(problem: Problem, plan: SolverPlan[Phase], curator: Curator, progress: Progress | None = None) -> Result:
    """Carry out a plan. All it sees of the data are the curator's releases."""
    report = progress or (lambda label, done, total: None)
    (phase,) = plan.phases
    whitening, domain, point = None, problem.domain, problem.start
    if plan.moment_error is not None:
        report(LABEL, 0, phase.n_steps)
        whitening = release_whitening(curator, problem.n_features, problem.row_norm, plan.moment_error)
        domain = whitening.around(problem.domain, problem.dimension)
        point = domain.project(whitening.from_weights(problem.start))
    unusable = 0.0
    for number in range(phase.n_steps):
        report("gradient step", number, phase.n_steps)
        weights = point if whitening is None else whitening.to_weights(point)
        gradient = MeanGradient(problem.loss, weights, None if whitening is None else whitening.basis)
        flagged = FlaggedGradient(gradient, phase.radius)
        released = curator.release(phase.label, flagged, phase.radius) / phase.radius
        unusable += float(released[-1]) / phase.n_steps
        length = 2 * (1 - number / phase.n_steps) * phase.path / phase.n_steps
        point = domain.project(point - length * released[:-1])
    message = halt_advice("users have gradients that are not finite, or are", "a user", "the start")
    if unusable > _UNUSABLE + _RARE * phase.noise_ratio / math.sqrt(phase.n_steps):
        weights = problem.start
    else:
        message, weights = "", problem.domain.project(point)
        if whitening is not None:
            weights = whitening.project(problem.domain, whitening.to_weights(point))
    released_phase = summary(phase, phase.radius, steps=phase.n_steps, users_a_step=phase.users_a_step, path=phase.path)
    return Result(weights, bool(message), message, plan.n_gradients, plan.bound, (released_phase,))
