"""DP-FedAvg, also known as user-level DP-SGD: what people run today, with the values they usually run it with.

Earlier work, to compare with. Every round draws a Poisson sample of the users; each gives its mean gradient, clipped
to a clip C; the noisy mean moves the weights with server momentum .9; and C follows the private fraction b of gradients
that were not clipped, C <- C exp(-.2 (b - .5)), so that it ends at the median length. The result is the average of
the last half of the iterates. One gradient step a user and round, in the features' own coordinates.

Values are conventional, and nothing is tuned: momentum, the clip's quantile and rate, and the fraction's noise (a
twentieth of the expected sample, in users) are those of Andrew et al.; the first clip is their .1, in units of the
largest gradient. With D the distance of the start from a good point, beta the smoothness, T rounds, k weights, v the
variance of users' mean gradients and eta the step, momentum counted in, the number of rounds, and the step among those
of at most 1/beta before momentum, are those with the least

    D^2 / (2 eta T) + eta V + 2 D sqrt(v/n),    V = k (z c / (q n))^2 + (1 - q) v / (q n)     variance of a round

with c = sqrt(v) for the clip's usual size. It is no theorem, because clipped gradients are not gradients of the loss
and momentum is not plain SGD: it orders plans.

Not a tuned baseline: at small noise, steps of 1/beta and 200 rounds end before the optimum is reached. There (10,000
users of openpowerlifting, epsilon 8) steps 16 times as long left a fifth of the excess, 800 rounds under a half.
Whoever tunes them on data must pay for that, or have public data to tune on.

Paper: McMahan et al. 2018 (DP-FedAvg); Andrew et al. 2021, Alg. 1 (the clip).
Differs: one local step; users are replaced, not added or removed; step and rounds are planned, not tuned on data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from userdp.baselines.sampled_rounds import likely_multiplier, next_radius, sampled_clip
from userdp.privacy.accounting import Budget, gaussian_multiplier
from userdp.privacy.curator import Curator
from userdp.privacy.plan import Plan, Step
from userdp.solvers.descent import sgd_excess
from userdp.solvers.outcome import summary
from userdp.solvers.phased_sgd import Progress
from userdp.solvers.plans import SolverPlan, check_sizes, gradients_of_samples, largest_sample, too_few_gradients
from userdp.solvers.problem import Problem, Result
from userdp.vectors.gradients import MeanGradient

_ROUNDS = (25, 50, 100, 200)
_PASSES = 20.0  # gradients for each row
_MOMENTUM = 0.9
_QUANTILE, _CLIP_RATE = 0.5, 0.2
_FIRST_CLIP = 0.1  # of the largest gradient
_FRACTION_NOISE = 1 / 20  # of the expected sample
_LEAST_FRACTION_NOISE = (
    3.0  # the fraction's multiplier / that of both: where samples are small, it must leave some budget
)


@dataclass(frozen=True)
class Phase:
    """All rounds: the first clip is `radius`."""

    label: str
    n_users: int
    n_steps: int
    sampling_probability: float
    radius: float
    noise_ratio: float  # noise std / clip
    step_size: float  # of a round; momentum multiplies it by 10 in the long run


def plan_fedavg(
    problem: Problem, n_users: int, rows_per_user: int, budget: Budget, max_gradients: int | None = None
) -> SolverPlan[Phase]:
    """The number of rounds with the least bound, samples being as large as 20 passes, or `max_gradients`, allow."""
    n_users, rows_per_user = check_sizes(n_users, rows_per_user, budget)
    choices = {rounds: _sampled(n_users, rows_per_user, rounds, max_gradients) for rounds in _ROUNDS}
    precision = 1 / gaussian_multiplier(budget) ** 2
    bounds = {
        rounds: _step_and_bound(problem, n_users, rows_per_user, rounds, q, likely_multiplier(precision, q, rounds))[1]
        for rounds, q in choices.items()
        if q is not None
    }
    if not bounds:
        raise too_few_gradients(n_users, rows_per_user, _ROUNDS[0], max_gradients)
    rounds = min(bounds, key=lambda key: bounds[key])
    q = choices[rounds]
    assert q is not None
    ratio = _fraction_ratio(n_users, q, likely_multiplier(precision, q, rounds))
    mean = sampled_clip(n_users, budget, q, rounds, ratio)
    plan = Plan(n_users, (Step("gradients", 0, n_users, mean),))
    plan.certify(budget)
    step, bound = _step_and_bound(problem, n_users, rows_per_user, rounds, q, 2 * mean.noise_multiplier)
    noise_ratio = mean.noise_std(1.0, problem.dimension)
    phase = Phase("gradients", n_users, rounds, q, _FIRST_CLIP * problem.lipschitz, noise_ratio, step)
    return SolverPlan(plan, (phase,), gradients_of_samples(n_users, rows_per_user, q, rounds), bound)


def _sampled(n_users: int, rows_per_user: int, rounds: int, max_gradients: int | None) -> float | None:
    if max_gradients is None:
        return min(1.0, max(_PASSES / rounds, 1 / n_users))
    return largest_sample(n_users, rows_per_user, rounds, max_gradients)


def _fraction_ratio(n_users: int, q: float, joint: float) -> float:
    """The fraction's noise as published. One user's vote is +-1/2, so noise of s users is a multiplier of 2 s."""
    return max(2 * _FRACTION_NOISE * q * n_users / joint, _LEAST_FRACTION_NOISE)


def _step_and_bound(
    problem: Problem, n_users: int, rows_per_user: int, rounds: int, q: float, multiplier: float
) -> tuple[float, float]:
    """A round's step size, and the module's bound at it."""
    spread = problem.user_variance(rows_per_user)
    variance = (problem.dimension * multiplier**2 / (q * n_users) + 1 - q) * spread / (q * n_users)
    smoothness = problem.typical_curvature * problem.row_norm**2
    lasting = min(problem.reach / math.sqrt(2 * rounds * variance), 1 / (smoothness * (1 - _MOMENTUM)))
    bound = sgd_excess(lasting, problem.reach, variance, rounds) + 2 * problem.reach * math.sqrt(spread / n_users)
    return lasting * (1 - _MOMENTUM), bound


def run(problem: Problem, plan: SolverPlan[Phase], curator: Curator, progress: Progress | None = None) -> Result:
    """Carry out a plan. All it sees of the data are the curator's releases. It never aborts."""
    report = progress or (lambda label, done, total: None)
    (phase,) = plan.phases
    point, velocity, clip = problem.start, np.zeros(problem.dimension), phase.radius
    total, averaged = np.zeros(problem.dimension), 0
    for number in range(phase.n_steps):
        report("gradient step", number, phase.n_steps)
        released = curator.release(phase.label, MeanGradient(problem.loss, point), clip)
        velocity = _MOMENTUM * velocity + released[:-1]
        point = problem.domain.project(point - phase.step_size * velocity)
        clip = next_radius(clip, float(released[-1]), _QUANTILE, _CLIP_RATE)
        if 2 * (number + 1) > phase.n_steps:
            total, averaged = total + point, averaged + 1
    own = {"steps": phase.n_steps, "users_a_step": phase.sampling_probability * phase.n_users}
    released_phase = summary(phase, clip, step_size=phase.step_size, **own)
    weights = problem.domain.project(total / averaged)
    return Result(weights, False, "", plan.n_gradients, plan.bound, (released_phase,))
