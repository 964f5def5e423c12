"""What solvers on Poisson samples of the users share: how large samples may be, their noise, and the next radius."""

from __future__ import annotations

import math

from scipy.stats import binom

from userdp.privacy.accounting import Budget, Cost, gaussian_multiplier, subsampled_multiplier
from userdp.privacy.means.sampled_clip import SampledClip

_RARE = 1e-9


def gradients_of_samples(n_users: int, rows_per_user: int, q: float, rounds: int) -> int:
    """Gradients of all rounds: at most, but for one chance in a billion. An empty sample costs a user's, too."""
    if q == 1.0:
        return n_users * rows_per_user * rounds
    return rows_per_user * (int(binom.isf(_RARE, n_users * rounds, q)) + rounds)


def largest_sample(n_users: int, rows_per_user: int, rounds: int, max_gradients: int) -> float | None:
    """The sampling probability that so many gradients allow; None if not even samples of one user."""
    q = min(1.0, max_gradients / (n_users * rows_per_user * rounds))
    while q * n_users >= 1 - 1e-9:
        if gradients_of_samples(n_users, rows_per_user, q, rounds) <= max_gradients:
            return q
        q *= 0.97
    return None


def too_few_gradients(n_users: int, rows_per_user: int, rounds: int, max_gradients: int | None) -> ValueError:
    """The refusal, with a number that will do."""
    least = math.ceil(1.05 * gradients_of_samples(n_users, rows_per_user, 1 / n_users, rounds))
    return ValueError(
        f"Expected max_gradients={max_gradients} >= {least:,}, for {rounds} rounds of about one user. "
        "Nothing was spent."
    )


def likely_multiplier(precision: float, q: float, rounds: int) -> float:
    """The noise multiplier of so many rounds, about, in units of adding one user; `precision` is mu^2 of the budget.

    By the central limit theorem for the privacy loss, as in `accelerated_tight`; for q = 1 it is exact.
    """
    return 2 * math.sqrt(rounds / precision) if q == 1.0 else math.asinh(precision / (4 * rounds * q**2)) ** -0.5


def sampled_clip(
    n_users: int, budget: Budget, q: float, rounds: int, share_ratio: float, other: Cost | None = None
) -> SampledClip:
    """Means and shares that cost, besides `other`, what the budget allows.

    `share_ratio` (> 1) is the share's multiplier over that of both together.
    """
    if q == 1.0:
        joint = 2 * gaussian_multiplier(budget, rounds, other)
    else:
        joint = subsampled_multiplier(budget, q, rounds, other)
    joint *= 1 + 1e-9  # rounding
    return SampledClip(n_users, q, joint / math.sqrt(1 - share_ratio**-2), rounds, share_ratio * joint)


def next_radius(radius: float, share: float, quantile: float, rate: float) -> float:
    """The radius after a share of vectors that were not longer; noise may have led the share out of [0, 1].

    >>> next_radius(1.0, 0.5, 0.5, 0.2), round(next_radius(1.0, 7.0, 0.5, 0.2), 3)
    (1.0, 0.905)
    """
    return radius * math.exp(-rate * (min(1.0, max(0.0, share)) - quantile))
