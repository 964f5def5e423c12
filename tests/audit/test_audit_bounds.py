"""The bounds themselves: right on mechanisms whose epsilon is known, and as often as they say."""

import math

import numpy as np
import pytest
from scipy.stats import binom, norm
from support_audit import audited_epsilon

from userdp.auditing.bounds import (
    Rates,
    allows,
    best_advantage,
    best_rates,
    both_bounds,
    clopper_pearson,
    learned_scores,
    least_scale,
    one_run_epsilon,
    scale_of_advantage,
    scaled,
    shaped_epsilon,
)
from userdp.auditing.trainings import count_guesses
from userdp.privacy.accounting import Budget, Cost, Subsampled, epsilon_at, gaussian_multiplier


@pytest.mark.parametrize(("hits", "trials"), [(0, 20), (3, 20), (20, 20), (77, 400)])
def test_clopper_pearson_is_what_its_definition_says(hits, trials):
    low, high = clopper_pearson(hits, trials, 0.01)
    assert hits == 0 or math.isclose(binom.sf(hits - 1, trials, low), 0.01)
    assert hits == trials or math.isclose(binom.cdf(hits, trials, high), 0.01)


def test_a_bound_is_wrong_no_more_often_than_it_says():
    """Randomised response of epsilon 1, where every threshold is the best one."""
    rng = np.random.default_rng(0)
    truth = math.e / (1 + math.e)
    wrong = 0
    for _ in range(300):
        one, other = (rng.random(400) < truth).astype(float), (rng.random(400) < 1 - truth).astype(float)
        wrong += audited_epsilon(one, other, 0.0, confidence=0.8) > 1
    assert wrong <= binom.ppf(0.999, 300, 0.2)


def test_rates_of_gaussians_give_mu_and_epsilon():
    mu = 0.7
    cost = Cost(gaussian=mu**2)
    for cut in (-0.5, 0.0, 0.35, 1.5):
        rates = Rates(float(norm.sf(cut - mu)), float(norm.sf(cut)))
        assert least_scale(cost, rates) == pytest.approx(1.0, abs=0.01)
        assert allows(scaled(cost, 1.001), rates)
        assert not allows(scaled(cost, 0.95), rates)
        turned = Rates(1 - rates.most, 1 - rates.least)
        assert least_scale(cost, turned) == pytest.approx(1.0, abs=0.01)
    assert shaped_epsilon(cost, 1.0, 1e-3) == pytest.approx(epsilon_at(cost, 1e-3), abs=1e-6)
    assert shaped_epsilon(cost, 0.0, 1e-3) == 0


def test_an_advantage_gives_the_same_scale_as_its_rates():
    mu = 0.7
    cost = Cost(gaussian=mu**2)
    assert scale_of_advantage(cost, 2 * float(norm.cdf(mu / 2)) - 1) == pytest.approx(1.0, abs=0.01)
    assert scale_of_advantage(cost, 0.0) == 0
    rng = np.random.default_rng(4)
    found = best_advantage(rng.normal(mu, 1, 40_000), rng.normal(0, 1, 40_000), 0.05)
    assert found < 2 * norm.cdf(mu / 2) - 1 < 1.05 * found
    assert best_advantage(rng.normal(0, 1, 400), rng.normal(mu, 1, 400), 0.05) > 0
    assert best_advantage(np.zeros(400), np.zeros(400), 0.05) == 0


def test_scales_are_bounded():
    cost = Cost(gaussian=0.01)
    assert least_scale(cost, Rates(0.5, 0.5)) == 0
    assert least_scale(cost, Rates(1.0, 0.0)) == 8.0
    part = scaled(Cost(subsampled=(Subsampled(0.5, 2.0, 3),), failure=0.1), 2.0)
    assert part == Cost(subsampled=(Subsampled(0.5, 1.0, 3),), failure=0.1)


def test_both_bounds_of_gaussians_are_below_the_claim_and_near_it():
    rng = np.random.default_rng(1)
    budget = Budget(1.0, 1e-2)
    mu = 1 / gaussian_multiplier(budget)
    one, other = rng.normal(mu, 1, (40_000, 1)), rng.normal(0, 1, (40_000, 1))
    plain, shaped = both_bounds(one, other, Cost(gaussian=mu**2), budget.delta, 0.05)
    assert 0.7 < plain < 1
    assert 0.8 < shaped < 1
    plain, shaped = both_bounds(2 * one, 2 * other + 2 * mu, Cost(gaussian=mu**2), budget.delta, 0.05)
    assert plain == shaped == 0
    plain, shaped = both_bounds(one, other, Cost(gaussian=mu**2 / 4), budget.delta, 0.05)  # noise was halved
    assert shaped > epsilon_at(Cost(gaussian=mu**2 / 4), budget.delta)


def test_few_runs_without_noise_are_told_apart():
    """No number was seen before: what the first runs teach is a direction."""
    rng = np.random.default_rng(0)
    ones, others = rng.normal(1.0, 1e-3, (60, 2)), rng.normal(-1.0, 1e-3, (60, 2))
    assert both_bounds(ones, others, Cost(gaussian=0.28), 1e-2, 0.05)[0] > 1.5


def test_scores_are_learned_from_the_first_runs_only():
    rng = np.random.default_rng(2)
    one, other = rng.normal(size=(1000, 2)), rng.normal((0.0, 3.0), size=(1000, 2))
    scores = learned_scores(one, other)
    later = one.copy()
    later[250:] += 100
    np.testing.assert_array_equal(learned_scores(later, other)[1], scores[1])
    assert scores[0].mean() > scores[1].mean()
    bits = learned_scores(np.repeat([[0.0], [1.0]], 50, axis=0)[::-1], np.zeros((100, 1)))
    assert set(np.unique(bits[1])) == {min(bits[0])}


def test_the_threshold_is_chosen_on_the_first_runs_and_counted_on_the_others():
    one, other = np.zeros(400), np.zeros(400)
    one[:100] = 1.0  # what the first runs guarantee, the others do not keep
    rates = best_rates(one, other, 0.05, lambda rates: rates.epsilon(0.0))
    assert rates.least == 0
    assert rates.epsilon(0.0) == 0


def exact_chance(n_right, n_guesses, epsilon):
    return binom.sf(n_right - 1, n_guesses, 1 / (1 + math.exp(-epsilon)))


def test_guesses_of_one_run_bound_epsilon():
    found = one_run_epsilon(1000, 300, 240, 0.0, 0.05)
    assert exact_chance(240, 300, found) == pytest.approx(0.05, abs=1e-6)
    assert one_run_epsilon(1000, 300, 240, 1e-5, 0.05) < found
    assert one_run_epsilon(1000, 300, 240, 1e-2, 0.05) < one_run_epsilon(1000, 300, 240, 1e-4, 0.05)
    assert one_run_epsilon(1000, 0, 0, 0.0, 0.05) == 0


def test_guesses_of_randomised_response_are_bounded_by_its_epsilon():
    rng = np.random.default_rng(3)
    wrong = sum(
        one_run_epsilon(500, 500, int(rng.binomial(500, math.e / (1 + math.e))), 0.0, 0.2) > 1 for _ in range(200)
    )
    assert wrong <= binom.ppf(0.999, 200, 0.2)


def test_the_clearest_coins_are_guessed():
    scores, signs = np.array([5.0, -4.0, 0.1, -0.1, 0.2, 0.3, 0.4, -3.0, 0.1, 0.1]), np.ones(10)
    assert count_guesses(scores, signs) == (3, 1, 7)
