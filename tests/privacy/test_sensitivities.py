"""Sensitivities of filtered means: no neighbour beats the bound."""

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom
from support import brute_counts, climb

from userdp.paper import concentration as c
from userdp.paper import paper_outlier_removal as printed

# --- sensitivities: no neighbour beats the bound --------------------------------------------------------------------


# Vectors are moved away from the origin, so that a mean that lost all its weights (and became 0) is seen.
FAR = 1000.0


def tight_ratio(rows, slack):
    """|mean - mean'| / bound if the pair of data sets is in the pass region, else 0. Row 0 is the replacement."""
    one, other = rows[1:], np.vstack([rows[:1], rows[2:]])
    size = len(one)
    counts, counts_other = brute_counts(one, 1.0), brute_counts(other, 1.0)
    if max(c.h_index(counts), c.h_index(counts_other)) < size - slack:
        return 0.0
    ramp = c.tight_ramp(size, slack)
    moved = c.filtered_mean(one + FAR, counts, ramp) - c.filtered_mean(other + FAR, counts_other, ramp)
    return float(np.linalg.norm(moved)) / c.sensitivity(size, slack, 1.0)


def soft_ratio(rows):
    one, other = rows[1:], np.vstack([rows[:1], rows[2:]])
    size = len(one)
    if max(brute_counts(one, 0.5).mean(), brute_counts(other, 0.5).mean()) < 2 * size / 3:
        return 0.0
    ramp = printed.paper_ramp(size)
    means = [c.filtered_mean(x + FAR, brute_counts(x, 1.0), ramp) for x in (one, other)]
    most = 3 / size * (1 + (size - 1) / (ramp.high - ramp.low))  # with weights for coins
    return float(np.linalg.norm(means[0] - means[1])) / most


def added_ratio(rows, slack, fraction):
    """Row 0 is the added user."""
    base, more = rows[1:], rows
    size = len(base)
    counts, counts_more = brute_counts(base, 1.0), brute_counts(more, 1.0)
    if size - c.h_index(counts) > slack:
        return 0.0
    mean = c.filtered_mean(base + FAR, counts, c.minibatch_ramp(size, slack, fraction))
    mean_more = c.filtered_mean(more + FAR, counts_more, c.minibatch_ramp(size + 1, slack, fraction))
    return float(np.linalg.norm(mean - mean_more)) / c.added_user_sensitivity(size, slack, 1.0, fraction)


def clustered(rng, size, dimension):
    """Mostly concentrated points with a few at typical adversarial places: on the radius, at twice it, far away."""
    points = rng.normal(0, rng.choice([1e-3, 0.1, 0.3]), (size, dimension))
    odd = rng.integers(0, max(2, size // 3))
    angles = rng.normal(size=(odd, dimension))
    angles /= np.linalg.norm(angles, axis=1, keepdims=True) + 1e-300
    points[:odd] = angles * rng.choice([0.5, 0.999, 1.0, 1.5, 2.0, 50.0], (odd, 1))
    return points


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.integers(0, 3), st.integers(0, 12))
def test_tight_sensitivity_holds_for_random_neighbours(seed, dimension, slack, extra):
    rng = np.random.default_rng(seed)
    size = 2 * slack + 4 + extra
    assert tight_ratio(clustered(rng, size + 1, dimension), slack) <= 1 + 1e-9


@settings(max_examples=400, deadline=None)
@given(st.lists(st.integers(-4, 4), min_size=6, max_size=14), st.integers(0, 3))
def test_tight_sensitivity_holds_with_ties_at_the_radius(places, slack):
    rows = np.array(places, dtype=float)[:, None] / 2
    if len(rows) - 1 >= 2 * slack + 4:
        assert tight_ratio(rows, slack) <= 1 + 1e-9


@pytest.mark.parametrize("slack", [0, 1, 2])
@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_tight_sensitivity_holds_under_hill_climbing(slack, dimension):
    rng = np.random.default_rng(10 * slack + dimension)
    for size in (2 * slack + 4, 2 * slack + 5, 2 * slack + 9):
        start = rng.normal(0, 0.1, (size + 1, dimension))
        assert climb(lambda rows: tight_ratio(rows, slack), start, rng) <= 1 + 1e-9


@pytest.mark.parametrize("size", [4, 5, 8, 21])
def test_tight_sensitivity_is_reached_without_slack(size):
    """All others sit between the two versions of the user, who are 2r apart: the bound 2r/K is exact."""
    rows = np.zeros((size + 1, 1))
    rows[0], rows[1] = 1.0, -1.0
    assert tight_ratio(rows, 0) == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("slack", [1, 2, 3])
def test_tight_sensitivity_is_approached_with_slack(slack):
    """The replaced user moves 2r, and `slack` vectors at the edge lose a step of the ramp each."""
    best = 0.0
    for size in range(2 * slack + 6, 80):
        for inner in range(size):
            # -1: the user, which becomes +1; `slack` vectors near -1; the others at 0 and at the edge of both.
            rows = np.zeros((size + 1, 1))
            rows[0], rows[1], rows[2 : 2 + slack] = 1.0, -1.0, -1.0
            rows[2 + slack : 2 + slack + inner] = 1e-9
            best = max(best, tight_ratio(rows, slack))
    assert 0.75 <= best <= 1 + 1e-9


def test_odd_numbers_need_the_corrected_start_of_the_ramp():
    """With the paper's a = K/2, K = 5, two weighted vectors of neighbouring sets can share no neighbour: 3 r apart."""
    one = np.array([[0.0], [0.0], [1.0], [3.0], [3.0]])
    other = one.copy()
    other[2] = 2.0
    counts, counts_other = brute_counts(one, 1.0), brute_counts(other, 1.0)
    printed, corrected = c.Ramp(5 / 2, 10 / 3), c.tight_ramp(5, 0)
    assert printed.weights(counts)[0] > 0
    assert printed.weights(counts_other)[3] > 0
    assert abs(one[0] - other[3]) > 2
    assert corrected.weights(counts)[0] == corrected.weights(counts_other)[3] == 0


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.integers(10, 24))
def test_soft_selection_sensitivity_holds_for_random_neighbours(seed, dimension, size):
    assert soft_ratio(clustered(np.random.default_rng(seed), size + 1, dimension)) <= 1 + 1e-9


def test_soft_selection_sensitivity_holds_under_hill_climbing():
    rng = np.random.default_rng(5)
    worst = max(climb(soft_ratio, rng.normal(0, 0.1, (size + 1, 2)), rng) for size in (10, 11, 12, 15))
    assert 0.05 < worst <= 1 + 1e-9


def test_random_selection_changes_at_most_as_many_coins_as_its_binomial_quantile():
    """The coupling of the proof: the same uniforms; each coin differs with probability at most 6/(K-3)."""
    rng = np.random.default_rng(6)
    for _ in range(300):
        size = int(rng.integers(10, 60))
        rows = clustered(rng, size + 1, 2)
        one, other = rows[1:], np.vstack([rows[:1], rows[2:]])
        if max(brute_counts(one, 0.5).mean(), brute_counts(other, 0.5).mean()) < 2 * size / 3:
            continue
        ramp = printed.paper_ramp(size)
        weights = [ramp.weights(brute_counts(x, 1.0)) for x in (one, other)]
        assert np.abs(weights[0] - weights[1])[1:].max() <= 6 / (size - 3) + 1e-12
        uniforms = rng.random(size)
        coins = [uniforms < w for w in weights]
        changed = np.sum(coins[0][1:] != coins[1][1:])
        means = [c.weighted_mean(x + FAR, s.astype(float)) for x, s in zip((one, other), coins, strict=True)]
        assert np.linalg.norm(means[0] - means[1]) <= 3 / size * (1 + changed) * (1 + 1e-9)


def test_random_selection_sensitivity_takes_the_exact_binomial_quantile():
    size, failure = 200, 1e-6
    changed = round(printed.random_selection_sensitivity(size, 1.0, failure) * size / 3 - 1)
    chance = 6 / (size - 3)
    assert binom.sf(changed, size - 1, chance) <= failure < binom.sf(changed - 1, size - 1, chance)


@settings(max_examples=500, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.integers(0, 3), st.integers(0, 14))
def test_added_user_sensitivity_holds_for_random_neighbours(seed, dimension, slack, extra):
    rng = np.random.default_rng(seed)
    size = 2 * slack + 6 + extra
    fraction = rng.choice([0.5, 0.6, c.best_fraction(size, slack)])
    if fraction * size + 1 < size - slack - 1:
        assert added_ratio(clustered(rng, size + 1, dimension), slack, fraction) <= 1 + 1e-9


def test_added_user_sensitivity_holds_under_hill_climbing_and_is_not_idle():
    rng = np.random.default_rng(7)
    worst = 0.0
    for slack, size in ((0, 6), (0, 12), (1, 9), (2, 14), (3, 20)):
        fraction = c.best_fraction(size, slack)
        start = rng.normal(0, 0.1, (size + 1, 2))
        worst = max(worst, climb(partial(added_ratio, slack=slack, fraction=fraction), start, rng))
    assert 0.6 < worst <= 1 + 1e-9


@pytest.mark.parametrize("slack", [0, 5, 40])
def test_added_user_sensitivity_falls_with_the_batch(slack):
    fraction = c.best_fraction(2 * slack + 60, slack)
    bounds = [c.added_user_sensitivity(size, slack, 1.0, fraction) for size in range(2 * slack + 60, 2 * slack + 400)]
    assert all(np.diff(bounds) < 0)


def test_best_fraction_is_best_and_infeasible_batches_are_refused():
    best = c.best_fraction(300, 20)
    bounds = [c.added_user_sensitivity(300, 20, 1.0, s) for s in np.arange(100, 185) / 200]
    assert c.added_user_sensitivity(300, 20, 1.0, best) == pytest.approx(min(bounds))
    with pytest.raises(ValueError, match="larger batches"):
        c.best_fraction(10, 5)
    with pytest.raises(ValueError, match="fraction"):
        c.added_user_sensitivity(300, 20, 1.0, 0.4)


def test_sensitivities_scale_with_the_radius():
    for bound in (
        lambda r: c.sensitivity(50, 3, r),
        lambda r: printed.random_selection_sensitivity(50, r, 1e-6),
        lambda r: c.added_user_sensitivity(50, 3, r, 0.6),
        lambda r: c.rounded_sensitivity(c.sensitivity(50, 3, r), 50, 7, r),
    ):
        assert bound(0.3) == pytest.approx(0.3 * bound(1.0), rel=1e-12)
        assert bound(1.0) > 0


@pytest.mark.parametrize("failure", [1e-15, 1e-18, 1e-30, 1e-100])
def test_random_selection_sensitivity_knows_quantiles_of_tiny_failures(failure):
    """The sum of the exact chances beyond k, in logarithms: at most `failure` at k, more at k - 1."""
    size = 1000
    changed = round(printed.random_selection_sensitivity(size, 1.0, failure) * size / 3 - 1)
    chances = binom.logpmf(np.arange(size), size - 1, 6 / (size - 3))
    tails = [np.logaddexp.reduce(chances[k + 1 :]) for k in (changed, changed - 1)]
    assert tails[0] <= math.log(failure) < tails[1]
