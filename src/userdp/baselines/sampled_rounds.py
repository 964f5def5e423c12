"""What solvers with an adaptive clip on Poisson samples of the users fraction: their noise, and the next radius."""

from __future__ import annotations

import math

from userdp.privacy.accounting import Budget, Cost, gaussian_multiplier, subsampled_multiplier
from userdp.privacy.mechanisms.clip import Clip
from userdp.solvers.mean_plans import sampled_multiplier


def likely_multiplier(precision: float, q: float, rounds: int) -> float:
    """The noise multiplier of so many rounds, about, in units of adding one user; `precision` is mu^2 of the budget.

    Exact for q = 1.
    """
    return 2 * math.sqrt(rounds / precision) if q == 1.0 else sampled_multiplier(precision, q, rounds)


def sampled_clip(
    n_users: int, budget: Budget, q: float, rounds: int, fraction_ratio: float, other: Cost | None = None
) -> Clip:
    """Means and fractions that cost, besides `other`, what the budget allows.

    `fraction_ratio` (> 1) is the fraction's multiplier over that of both together.
    """
    if q == 1.0:
        joint = gaussian_multiplier(budget, rounds, other)
    else:  # a replacement is a removal and an addition
        joint = subsampled_multiplier(budget, q, rounds, other) / 2
    joint *= 1 + 1e-9  # rounding
    of_mean = joint / math.sqrt(1 - fraction_ratio**-2)
    of_fraction = fraction_ratio * joint
    return Clip(n_users, of_mean, rounds, sampling_probability=q, fraction_multiplier=of_fraction)


def next_radius(radius: float, fraction: float, quantile: float, rate: float) -> float:
    """The radius after a fraction of vectors that were not longer; noise may have led the fraction out of [0, 1].

    >>> next_radius(1.0, 0.5, 0.5, 0.2), round(next_radius(1.0, 7.0, 0.5, 0.2), 3)
    (1.0, 0.905)
    """
    return radius * math.exp(-rate * (min(1.0, max(0.0, fraction)) - quantile))
