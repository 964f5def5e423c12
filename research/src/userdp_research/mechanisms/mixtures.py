"""What Gaussian releases cost when a Poisson mask decides how many of a user's rows they hold: mixtures of Gaussians.

In units of one row's largest contribution, a round on data with the user, against data without it, is dominated by

    P = sum over k of P(Bin(m, q) = k) N(k, z^2)   against   Q = N(0, z^2)

in both directions, and a replacement is a removal followed by an addition: docs/proofs.md, section 20. Divergences of
the pair are computed here; dp-accounting composes them over the rounds, by its pessimistic connect-the-dots.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from dp_accounting.pld import pld_pmf
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr

from userdp.privacy.accounting import Budget, BudgetExceeded, gaussian_multiplier

Numbers = NDArray[np.float64]

_FAR = 10.0  # standard deviations that hold all but 1e-22
_RARE = 1e-20  # chance of numbers of rows that are not looked at, but charged
_LOG_RARER = 48.0  # 2 e^-48 < 3e-21
_SPLITS = np.linspace(0.1, 0.95, 35)  # fractions of epsilon for the removal
_CELLS = 1 << 12  # of privacy loss in one round: instead of more of them, wider ones, which costs epsilon only
LEAST_MULTIPLIER = 1e-3  # in units of all rows of a user: less noise is asked for by no budget
MOST_MULTIPLIER = 1e9
_LARGEST_EPSILON = 50.0
_RESERVE = 4e-9  # of epsilon: more than the accountant holds back


def replace_one_delta(rows_per_user: int, probability: float, multiplier: float, rounds: int, epsilon: float) -> float:
    """An upper bound on delta at `epsilon` for replacing a user, over all rounds.

    `multiplier` is the noise's standard deviation / the most that one row contributes.

    >>> 0.126936 < replace_one_delta(1, 1.0, 2.0, 1, 1.0) < 0.2  # a replacement is then a Gaussian of mu = 1
    True
    """
    epsilon = min(epsilon, _LARGEST_EPSILON)  # what holds there holds beyond
    grid = epsilon / 500
    with_user, without = _pair(rows_per_user, probability, multiplier, rounds, grid)
    off = rounds * _kept_rows(rows_per_user, probability)[2]
    first = _SPLITS * epsilon
    removal = math.exp(off) * np.maximum(0.0, with_user.get_delta_for_epsilon(first - off))
    addition = np.maximum(0.0, without.get_delta_for_epsilon((epsilon - first - off)[::-1]))[::-1]
    missed = rounds * (_RARE + 64 * 2.0**-53) + 1e-13  # rare counts, and rounding: see `accounting`
    return float(min(1.0, np.min(removal + missed + np.exp(first) * (addition + missed))))


@lru_cache(maxsize=256)
def row_multiplier(budget: Budget, rows_per_user: int, probability: float, rounds: int) -> float:
    """Least noise multiplier, up to 1%, for which so many rounds fit into `budget`; it was certified itself.

    >>> 4.2 < row_multiplier(Budget(1.0, 1e-6), 1, 1.0, 1) / 2 < 4.5
    True
    """
    epsilon, allowed = claimed_epsilon(budget), 0.999 * budget.delta

    def fits(multiplier: float) -> bool:
        return replace_one_delta(rows_per_user, probability, multiplier, rounds, epsilon) <= allowed

    if budget.delta == 0 or not fits(MOST_MULTIPLIER):
        raise BudgetExceeded(
            f"Expected a larger delta than {budget.delta:g} for {rounds} rounds on sampled rows. Nothing was spent."
        )
    high = likely_multiplier(budget, rows_per_user, probability, rounds)
    while not fits(high):
        high *= 1.25
    low = high / 1.25
    while low > LEAST_MULTIPLIER * rows_per_user and fits(low):
        low, high = low / 1.25, low
    while high > 1.01 * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def likely_multiplier(budget: Budget, rows_per_user: int, probability: float, rounds: int) -> float:
    """About what `row_multiplier` gives, at once: by the central limit theorem for the privacy loss.

    With J and K rows in two independent draws E exp(JK/z^2) - 1 is the variance of P/Q; over all rounds it is to be the
    mu^2 of half a replacement.
    """
    target = 1 / (4 * gaussian_multiplier(budget) ** 2 * rounds)
    counts, chances, _ = _kept_rows(rows_per_user, probability)

    def excess(log_multiplier: float) -> float:
        tilted = np.log1p(probability * np.expm1(np.minimum(700.0, counts * math.exp(-2 * log_multiplier))))
        return float(np.expm1(np.minimum(700.0, rows_per_user * tilted)) @ chances) - target

    ends = math.log(LEAST_MULTIPLIER * rows_per_user), math.log(MOST_MULTIPLIER)
    if excess(ends[1]) >= 0:
        raise BudgetExceeded(
            f"Expected a larger epsilon than {budget.epsilon:g} for {rounds} rounds on sampled rows. Nothing was spent."
        )
    return math.exp(float(brentq(excess, *ends, xtol=1e-3)))


def claimed_epsilon(budget: Budget) -> float:
    """What a record that spends all of a budget may claim: a little less, for the accountant's reserve.

    >>> 0 < 1 - claimed_epsilon(Budget(1.0, 1e-6)) < 1e-8
    True
    """
    return budget.epsilon - max(_RESERVE * budget.epsilon, 4e-12)


@lru_cache(maxsize=64)
def _kept_rows(m: int, q: float) -> tuple[Numbers, Numbers, float]:
    """Numbers of kept rows, their chances, and a bound on how far the logarithms of these are off.

    Counts that are rarer than `_RARE` together are left out. Chances are products of their ratios from the likeliest
    count on, so that every one is exact to a few roundings per step; docs/proofs.md, section 20.

    >>> counts, chances, off = _kept_rows(2, 0.25)
    >>> counts, chances
    (array([0., 1., 2.]), array([0.5625, 0.375 , 0.0625]))
    """
    if q == 1:
        return np.array([float(m)]), np.ones(1), 0.0
    likeliest, odds = min(m, int((m + 1) * q)), q / (1 - q)
    # Bernstein: Bin(m, q) is farther than this from its mean with a chance below 2 e^-48.
    away = _LOG_RARER / 3 + math.sqrt((_LOG_RARER / 3) ** 2 + 2 * _LOG_RARER * m * q * (1 - q))
    least, most = max(0, math.floor(m * q - away) - 1), min(m, math.ceil(m * q + away) + 1)
    below, above = np.arange(likeliest, least, -1.0), np.arange(likeliest, most + 0.0)
    falling = np.cumprod(below / (m - below + 1) / odds)[::-1]
    chances = np.concatenate((falling, [1.0], np.cumprod((m - above) / (above + 1) * odds)))
    rare = _RARE / 4 * chances.sum()
    kept = (np.cumsum(chances) > rare) & (np.cumsum(chances[::-1])[::-1] > rare)
    counts, chances = np.arange(least, most + 1.0)[kept], chances[kept]
    return counts, chances / chances.sum(), 2.0**-53 * (16 * counts.size + 8192)


@lru_cache(maxsize=64)
def _pair(m: int, q: float, z: float, rounds: int, grid: float) -> tuple[pld_pmf.PLDPmf, pld_pmf.PLDPmf]:
    """The composed privacy losses of P against Q, and of Q against P."""
    counts, chances, _ = _kept_rows(m, q)
    most, logs = float(counts[-1]), np.log(chances)

    def loss(x: Numbers) -> Numbers:
        return _log_sum(logs + (np.multiply.outer(x, counts) - counts**2 / 2) / z**2)

    def tails(x: Numbers, sign: float) -> tuple[Numbers, Numbers]:
        """log P and log Q of the points beyond x, to the right (sign 1) or to the left (-1)."""
        mixed = _log_sum(logs + log_ndtr(sign * np.subtract.outer(counts, x).T / z))
        return mixed, np.asarray(log_ndtr(-sign * x / z))

    losses = loss(np.array([-_FAR * z, most + _FAR * z]))
    grid = max(grid, float(losses[1] - losses[0]) / _CELLS)
    composed = []
    for sign in (1.0, -1.0):  # P against Q: losses grow to the right; Q against P: minus that
        low, high = math.floor(min(sign * losses) / grid), math.ceil(max(sign * losses) / grid)
        epsilons = np.arange(low, high + 1) * grid
        cuts = _inverse(loss, sign * epsilons, -_FAR * z - most - 1, most + 2 * _FAR * z)
        mixed, plain = tails(cuts, sign)
        upper, lower = (mixed, plain) if sign > 0 else (plain, mixed)
        deltas = np.exp(upper) * -np.expm1(np.minimum(0.0, epsilons + lower - upper))
        deltas = np.maximum.accumulate(np.clip(deltas, 0.0, 1.0)[::-1])[::-1]
        single = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(grid, low, high, deltas)
        composed.append(single if rounds == 1 else single.self_compose(rounds, 1e-15))
    return composed[0], composed[1]


def _inverse(loss: Callable[[Numbers], Numbers], values: Numbers, low: float, high: float) -> Numbers:
    """Points between `low` and `high` where the growing `loss` is `values`, or the ends beyond it.

    A divergence is the largest over all cuts, so a cut that is off by e makes it off by about e^2: nothing, here.
    """
    lows, highs = np.full(values.size, low), np.full(values.size, high)
    for _ in range(50):
        middles = (lows + highs) / 2
        right = loss(middles) < values
        lows, highs = np.where(right, middles, lows), np.where(right, highs, middles)
    return highs


def _log_sum(logs: Numbers) -> Numbers:
    """log of the sum of exponentials along the last axis; much faster than scipy's."""
    largest = logs.max(axis=-1)
    return np.asarray(largest + np.log(np.exp(logs - largest[..., None]).sum(axis=-1)))
