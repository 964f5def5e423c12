"""What solvers with an adaptive clip on Poisson samples of the users fraction: their noise, and the next radius."""

from __future__ import annotations

import math

from userdp.privacy.accounting import AddedUserMultiplier, Budget, Cost, gaussian_multiplier, subsampled_multiplier
from userdp.privacy.mechanisms.sampled_clip import SampledClip
from userdp.solvers.mean_plans import sampled_multiplier


def likely_multiplier(precision: float, q: float, rounds: int) -> float:
    """The noise multiplier of so many rounds, about, in units of adding one user; `precision` is mu^2 of the budget.

    Exact for q = 1.
    """
    return 2 * math.sqrt(rounds / precision) if q == 1.0 else sampled_multiplier(precision, q, rounds)


def sampled_clip(
    n_users: int, budget: Budget, q: float, rounds: int, fraction_ratio: float, other: Cost | None = None
) -> SampledClip:
    """Means and fractions that cost, besides `other`, what the budget allows.

    `fraction_ratio` (> 1) is the fraction's multiplier over that of both together.
    """
    if q == 1.0:
        joint = 2 * gaussian_multiplier(budget, rounds, other)  # a replacement is a removal and an addition
    else:
        joint = subsampled_multiplier(budget, q, rounds, other)
    joint *= 1 + 1e-9  # rounding
    of_mean = AddedUserMultiplier(joint / math.sqrt(1 - fraction_ratio**-2))
    return SampledClip(n_users, q, of_mean, rounds, AddedUserMultiplier(fraction_ratio * joint))


def next_radius(radius: float, fraction: float, quantile: float, rate: float) -> float:
    """The radius after a fraction of vectors that were not longer; noise may have led the fraction out of [0, 1].

    >>> next_radius(1.0, 0.5, 0.5, 0.2), round(next_radius(1.0, 7.0, 0.5, 0.2), 3)
    (1.0, 0.905)
    """
    return radius * math.exp(-rate * (min(1.0, max(0.0, fraction)) - quantile))
