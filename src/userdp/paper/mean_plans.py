"""Plans from public numbers: how to split a budget between tests, search and releases. No data is needed or touched."""

from __future__ import annotations

import math
from functools import lru_cache

from userdp._validate import check_counts
from userdp.paper.concentration import sensitivity
from userdp.paper.outlier_removal import OutlierRemoval, RadiusSearch, radius_grid
from userdp.privacy.accounting import Budget, BudgetExceeded, Cost, gaussian_multiplier, least_enough
from userdp.privacy.plan import Plan, Step

# Fractions of epsilon that AboveThreshold may get, of the rounds' budget that Gaussian tests may get, and of the
# Gaussian budget that the radius search gets.
_TEST_FRACTIONS = (0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.3, 0.45)
_GAUSSIAN_TEST_FRACTIONS = (0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.3, 0.45, 0.6)
_SEARCH_FRACTION = 0.05
_RATIO = 1.1  # of radii that are searched: a finer grid takes one more probe
FAILURE_FRACTION = 0.05  # of delta, for tests
_SEARCH_ERROR = 0.0075  # of the users: how many more may be left outside, since a search is noisy and asks a sample


def plan_means(
    n_users: int,
    budget: Budget,
    rounds: int = 1,
    *,
    outliers: float = 0.02,
    radii: tuple[float, float] | None = (0.02, 1.0),
    false_abort: float = 1e-3,
    other: Cost | None = None,
) -> Plan:
    """`rounds` private means of one vector per user, with the test that wastes least, for a budget spent in full.

    The plan has a step "mean" of that many releases and, before it, a step "radius": a private search between
    radii[0] and radii[1] times the radius that is given when it is released (None leaves it out). Up to the fraction
    `outliers` of the users may be far from the others, or hold NaN, before aborting becomes likelier than
    `false_abort`. `other` is what else the same users pay for, out of the same budget. The search asks as few users as
    show the radius almost as well as all of them would (`searched_users`).

    >>> plan = plan_means(5000, Budget(1.0, 1e-6), rounds=20)
    >>> [(step.label, step.mechanism.rounds) for step in plan.steps]
    [('radius', 1), ('mean', 20)]
    """
    n_users, rounds = check_counts(n_users=n_users, rounds=rounds)
    if not 0 <= outliers < 1:
        raise ValueError(f"Expected 0 <= outliers={outliers} < 1: a fraction of the users.")
    if not 0 < false_abort < 1:
        raise ValueError(f"Expected 0 < false_abort={false_abort} < 1: a probability.")
    # Any search on the grid checks it here, where what is wrong with it is not taken for too small a budget.
    grid = None if radii is None else RadiusSearch(n_users, search_grid(*radii), 1, 1.0).radii
    steps = _best_steps(n_users, budget, rounds, outliers, grid, false_abort, other)
    if steps is not None:
        return Plan(n_users, steps)
    rest = (rounds, outliers, grid, false_abort, other)
    more = least_enough(lambda n: _best_steps(n, budget, *rest) is not None, n_users)
    if more is not None:
        raise BudgetExceeded(
            f"Expected more than n_users={n_users} for {rounds} private means at epsilon={budget.epsilon:g}, "
            f"delta={budget.delta:g}, outliers={outliers:g}: about {more:,} users would do, or a larger epsilon. "
            "Nothing was spent.",
            enough_users=more,
        )
    raise BudgetExceeded(
        f"Expected a budget and a fraction of outliers that some number of users can meet; epsilon={budget.epsilon:g}, "
        f"delta={budget.delta:g}, outliers={outliers:g} is none: use delta > 0 and outliers below 0.4."
    )


@lru_cache(maxsize=8192)
def means_noise(n_users: int, budget: Budget, rounds: int, outliers: float, radii: tuple[float, float]) -> float:
    """Noise std / radius of the means that `plan_means` would plan; infinite where it would refuse."""
    steps = _best_steps(n_users, budget, rounds, outliers, search_grid(*radii), 1e-3)
    if steps is None:
        return math.inf
    mean = steps[-1].mechanism
    assert isinstance(mean, OutlierRemoval)
    return mean.noise_multiplier * mean.sensitivity(1.0, 1)


def _best_steps(
    n_users: int,
    budget: Budget,
    rounds: int,
    outliers: float,
    grid: tuple[float, ...] | None,
    false_abort: float,
    other: Cost | None = None,
) -> tuple[Step, ...] | None:
    """The steps with the least noise over the tests, and the fractions they may get; None if there are none."""
    best, least_noise = None, math.inf
    for pure in (False, True):
        for fraction in _TEST_FRACTIONS if pure else _GAUSSIAN_TEST_FRACTIONS:
            test = Cost(pure=(fraction * budget.epsilon,) if pure else (), failure=FAILURE_FRACTION * budget.delta)
            spent, tolerated = test + (other or Cost()), math.ceil(outliers * n_users)
            first: tuple[Step, ...] = ()
            try:
                if grid is not None:
                    mu_squared = _SEARCH_FRACTION / gaussian_multiplier(budget, 1, spent) ** 2
                    n_searched = searched_users(n_users, budget, grid, outliers)
                    search = plan_search(n_searched, grid, math.ceil(outliers * n_searched), mu_squared)
                    first = (Step("radius", 0, n_searched, search),)
                    spent = spent + search.cost
                    tolerated = math.ceil(n_users * left_outside(search, n_users))
                multiplier = gaussian_multiplier(budget, rounds, spent)
                slack = tolerated
                if pure and rounds > 1:  # more than half of the noise of the tested value by itself, known quickly
                    logs = math.log(1 / (4 * test.failure)) + math.log(rounds / (4 * false_abort))
                    slack += max(0, math.floor(4 / test.pure[0] * logs - 4))
                if n_users < 2 * slack + 4 or multiplier * sensitivity(n_users, slack, 1.0) >= least_noise:
                    continue
                tested = (test.failure, false_abort, rounds, tolerated)
                if pure:  # behind AboveThreshold
                    mean = OutlierRemoval(n_users, multiplier, test.pure[0], *tested)
                else:  # behind Gaussian tests with a fraction of each round
                    multiplier *= 1 + 1e-9  # rounding of the fractions
                    test_std = multiplier / math.sqrt(fraction)
                    mean = OutlierRemoval(
                        n_users, multiplier / math.sqrt(1 - fraction), None, *tested, test_std=test_std
                    )
            except ValueError:  # too little budget, or too few users, for this fraction
                continue
            noise = mean.noise_multiplier * mean.sensitivity(1.0, 1)
            if noise < least_noise:
                best, least_noise = (*first, Step("mean", 0, n_users, mean)), noise
    return best


def search_grid(smallest: float, largest: float) -> tuple[float, ...]:
    """Radii to search. What is found is up to a ratio above what is needed, and so is the noise."""
    return radius_grid(smallest, largest, _RATIO)


def plan_search(n_users: int, grid: tuple[float, ...], tolerated: int, mu_squared: float) -> RadiusSearch:
    """A search of these radii that costs this mu^2; it aims at `tolerated` outliers, or a probe's noise."""
    noise_std = math.sqrt(_probes(grid) / mu_squared)
    target = n_users - max(tolerated, math.ceil(noise_std))
    return RadiusSearch(n_users, grid, target, noise_std)


def searched_users(n_users: int, budget: Budget, grid: tuple[float, ...], outliers: float) -> int:
    """How many users a search asks: the fewest whose `left_outside` is 0.75% above the fraction that it aims at.

    Two deviations of a probe's noise s and of the number of outliers p k among k users, 2 sqrt(s^2 + p k) = 0.0075 k.

    >>> searched_users(100_000, Budget(1.0, 1e-6), search_grid(0.02, 2.0), 0.03)
    13454
    """
    noise_std = math.sqrt(_probes(grid) / _SEARCH_FRACTION) * gaussian_multiplier(budget)
    least = 2 / _SEARCH_ERROR**2 * (outliers + math.hypot(outliers, _SEARCH_ERROR * noise_std))
    return min(n_users, math.ceil(least))


def left_outside(search: RadiusSearch, n_users: int) -> float:
    """Fraction of all users that may be far from the others at the radius found, but for two deviations.

    The search aims at a fraction, is off by the noise of a probe and, if it asks a sample, by that of the sample.
    """
    aimed = search.n_vectors - search.target
    sampled = 0 if search.n_vectors == n_users else aimed
    return (aimed + math.ceil(2 * math.hypot(search.noise_std, math.sqrt(sampled)))) / search.n_vectors


def _probes(grid: tuple[float, ...]) -> int:
    return max(1, math.ceil(math.log2(len(grid))))


def sampled_multiplier(mu_squared: float, sampled: float, n_steps: int) -> float:
    """About the multiplier z of steps on samples that cost as much as one Gaussian of this mu^2 (1/multiplier^2).

    4 T q^2 sinh(1/z^2) = mu^2, by the central limit theorem for the privacy loss of T sampled steps; within 1% of
    the exact one where z is not below 2.

    >>> round(sampled_multiplier(0.1, 0.1, 100), 2)
    6.32
    """
    return 1 / math.sqrt(math.asinh(mu_squared / (4 * n_steps * sampled**2)))
