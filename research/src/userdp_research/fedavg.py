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

from userdp.paper.mean_plans import sampled_multiplier
from userdp.privacy.accounting import Budget, gaussian_multiplier, subsampled_multiplier
from userdp.privacy.plan import Plan, Step
from userdp.solvers.problem import Problem
from userdp.solvers.solver import (
    Outcome,
    Phase,
    Releases,
    Request,
    SolverPlan,
    check_sizes,
    gradients_of_samples,
    largest_sample,
    too_few_gradients,
)
from userdp.statistics.gradients import MeanGradient
from userdp_research.asi_liu import price_of_users
from userdp_research.descent import sgd_excess
from userdp_research.mechanisms.clip_with_fraction import ClipWithFraction

_ROUNDS = (25, 50, 100, 200)
_PASSES = 20.0  # gradients for each row
_MOMENTUM = 0.9
_QUANTILE, _CLIP_RATE = 0.5, 0.2
_FIRST_CLIP = 0.1  # of the largest gradient
_FRACTION_NOISE = 1 / 20  # of the expected sample
# The fraction's multiplier / that of both: where samples are small, it must leave some budget.
_LEAST_FRACTION_NOISE = 3.0


def plan_fedavg(
    problem: Problem, n_users: int, rows_per_user: int, budget: Budget, max_gradients: int | None = None
) -> SolverPlan:
    """The number of rounds with the least bound, samples being as large as 20 passes, or `max_gradients`, allow."""
    n_users, rows_per_user = check_sizes(n_users, rows_per_user, budget)
    sampled = {rounds: _sampled(n_users, rows_per_user, rounds, max_gradients) for rounds in _ROUNDS}
    choices = {rounds: q for rounds, q in sampled.items() if q is not None}
    if not choices:
        raise too_few_gradients(n_users, rows_per_user, _ROUNDS[0], max_gradients)
    size, mu_squared = (problem, n_users, rows_per_user), 1 / gaussian_multiplier(budget) ** 2
    likely = {rounds: likely_multiplier(mu_squared, q, rounds) for rounds, q in choices.items()}
    rounds = min(choices, key=lambda rounds: _step_and_bound(*size, rounds, choices[rounds], likely[rounds])[1])
    q = choices[rounds]
    mean = _mean(n_users, budget, q, rounds, likely[rounds])
    plan = Plan(n_users, (Step("gradients", 0, n_users, mean),))
    step_size, bound = _step_and_bound(*size, rounds, q, 2 * mean.noise_multiplier)
    clip, ratio = _FIRST_CLIP * problem.lipschitz, mean.noise_std(1.0, problem.dimension)
    own = {"sampling_probability": q, "step_size": step_size}  # of a round; momentum makes 10 times as much of it
    phase = Phase("gradients", n_users, clip, ratio, n_steps=rounds, **own)
    gradients = gradients_of_samples(n_users, rows_per_user, q, rounds)
    return SolverPlan(plan, AdaptiveClipRounds((phase,)), gradients, bound)


def _sampled(n_users: int, rows_per_user: int, rounds: int, max_gradients: int | None) -> float | None:
    if max_gradients is None:
        return min(1.0, max(_PASSES / rounds, 1 / n_users))
    return largest_sample(n_users, rows_per_user, rounds, max_gradients)


def likely_multiplier(mu_squared: float, q: float, rounds: int) -> float:
    """The noise multiplier of so many rounds, about, in units of adding one user. Exact for q = 1."""
    return 2 * math.sqrt(rounds / mu_squared) if q == 1.0 else sampled_multiplier(mu_squared, q, rounds)


def _mean(n_users: int, budget: Budget, q: float, rounds: int, likely: float) -> ClipWithFraction:
    """Means and fractions that cost what the budget allows; the fraction's noise is as published.

    One user's part of the fraction is +-1/2, so noise of s users is a multiplier of 2 s.
    """
    ratio = max(2 * _FRACTION_NOISE * q * n_users / likely, _LEAST_FRACTION_NOISE)
    # Replacing a user is a removal and an addition.
    exact = gaussian_multiplier(budget, rounds) if q == 1.0 else subsampled_multiplier(budget, q, rounds) / 2
    joint = exact * (1 + 1e-9)  # rounding
    of_mean = joint / math.sqrt(1 - ratio**-2)
    return ClipWithFraction(n_users, of_mean, rounds, sampling_probability=q, fraction_multiplier=ratio * joint)


def _step_and_bound(
    problem: Problem, n_users: int, rows_per_user: int, rounds: int, q: float, multiplier: float
) -> tuple[float, float]:
    """A round's step size, and the module's bound at it."""
    spread = problem.user_variance(rows_per_user)
    variance = (problem.dimension * multiplier**2 / (q * n_users) + 1 - q) * spread / (q * n_users)
    smoothness = problem.typical_curvature * problem.row_norm**2
    lasting = min(problem.reach / math.sqrt(2 * rounds * variance), 1 / (smoothness * (1 - _MOMENTUM)))
    bound = sgd_excess(lasting, problem.reach, variance, rounds) + price_of_users(problem, n_users, rows_per_user)
    return lasting * (1 - _MOMENTUM), bound


@dataclass(frozen=True)
class AdaptiveClipRounds:
    """Steps with momentum, whose clip follows the fraction of gradients within it; it never aborts."""

    phases: tuple[Phase]

    def releases(self, problem: Problem, outcome: Outcome) -> Releases[None]:
        (phase,) = self.phases
        point, velocity, clip = problem.start, np.zeros(problem.dimension), phase.radius
        total, averaged = np.zeros(problem.dimension), 0
        for number in range(phase.n_steps):
            released = yield Request(phase.label, MeanGradient(problem.loss, point), clip, "gradient step")
            velocity = _MOMENTUM * velocity + released[:-1]
            point = problem.domain.project(point - phase.step_size * velocity)
            clip = next_radius(clip, float(released[-1]), _QUANTILE, _CLIP_RATE)
            if 2 * (number + 1) > phase.n_steps:
                total, averaged = total + point, averaged + 1
        outcome.weights = problem.domain.project(total / averaged)
        own = {"steps": phase.n_steps, "users_a_step": phase.users_a_step}
        outcome.phases.append(phase.summary(clip, step_size=phase.step_size, **own))


def next_radius(radius: float, fraction: float, quantile: float, rate: float) -> float:
    """The radius after a fraction of vectors that were not longer; noise may have led the fraction out of [0, 1].

    >>> next_radius(1.0, 0.5, 0.5, 0.2), round(next_radius(1.0, 7.0, 0.5, 0.2), 3)
    (1.0, 0.905)
    """
    return radius * math.exp(-rate * (min(1.0, max(0.0, fraction)) - quantile))
