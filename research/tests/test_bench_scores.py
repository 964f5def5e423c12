"""References, the yardstick and scores, where the answer is known."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit, softmax

from userdp import Budget, UserData, losses
from userdp.privacy.accounting import gaussian_multiplier
from userdp.statistics.gradients import MeanGradient
from userdp_research.bench.references import user_optimum, user_weights, yardstick
from userdp_research.bench.scoring import (
    HeldOut,
    calibration_bins,
    collect,
    linear_slope,
    logistic_slope,
    softmax_slope,
)

BUDGET = Budget(1.0, 1e-6)
UNEQUAL = UserData(np.ones((4, 1)), np.array([0.0, 3.0, 3.0, 3.0]), np.array([0, 1, 4]))


def drawn(loss, n_users=400, rows=3, d=4, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_users * rows, d))
    y = rng.integers(0, max(2, loss.n_outputs), len(X)).astype(float)
    if not loss.classifies:
        y = X[:, 0] + rng.standard_t(3, len(X))
    return UserData(X, y, np.arange(0, len(X) + 1, rows))


def test_each_user_counts_once():
    np.testing.assert_allclose(user_weights(UNEQUAL), [1 / 2, 1 / 6, 1 / 6, 1 / 6])
    with_nobody = UserData(np.ones((2, 1)), np.zeros(2), np.array([0, 1, 1, 2]))
    np.testing.assert_allclose(user_weights(with_nobody), [1 / 2, 1 / 2])
    np.testing.assert_allclose(user_optimum(losses.squared, UNEQUAL), [1.5], atol=1e-6)


@pytest.mark.parametrize("loss", [losses.logistic, losses.squared, losses.huber(0.5), losses.multinomial(3)])
def test_gradients_average_to_nothing_at_the_optimum(loss):
    data = drawn(loss)
    best = user_optimum(loss, data)
    gradients = MeanGradient(loss, best)(data, np.arange(data.n_users), data.n_users)
    np.testing.assert_allclose(gradients.mean(axis=0), 0, atol=1e-5)
    assert np.abs(best).max() > 0.01


def test_many_rows_have_the_same_optimum(monkeypatch):
    data = drawn(losses.logistic)
    best = user_optimum(losses.logistic, data)
    monkeypatch.setattr("userdp_research.bench.references._MANY_ROWS", 300)
    monkeypatch.setattr("userdp_research.bench.references._CHUNK", 7)
    np.testing.assert_allclose(user_optimum(losses.logistic, data), best, atol=1e-6)


def test_the_yardstick_of_a_mean_is_the_gaussian_mechanism():
    rng = np.random.default_rng(0)
    y = rng.normal(3, 2, 5000)
    data = UserData(np.ones((5000, 1)), y, np.arange(5001))
    found = yardstick(losses.squared, data, np.array([y.mean()]))
    assert found.rho == pytest.approx(y.std())
    assert found.dimension == 1
    noise = 2 * y.std() * gaussian_multiplier(BUDGET) / 700
    assert found.excess(700, BUDGET) == pytest.approx(noise**2 / 2 + y.var() / 1400)
    assert found.excess(700, None) == pytest.approx(y.var() / 1400)
    facts = found.facts(700, BUDGET, unit=10.0)
    assert facts["yard"] == pytest.approx(100 * found.excess(700, BUDGET))
    assert facts["rho"] == pytest.approx(10 * y.std())
    assert facts["s"] == pytest.approx(gaussian_multiplier(BUDGET) / 700)


def test_the_yardstick_grows_with_the_square_root_of_the_weights():
    data = drawn(losses.squared, n_users=4000, rows=1)
    data = replace(data, targets=data.rows[:, 0] + np.random.default_rng(1).normal(size=4000))
    found = yardstick(losses.squared, data, np.array([1.0, 0, 0, 0]))
    assert found.rho == pytest.approx(2.0, rel=0.05)  # sqrt(4 weights) times errors of 1
    facts = found.facts(1000, BUDGET)
    assert facts["s"] == pytest.approx(2 * gaussian_multiplier(BUDGET) / 1000)
    noise = 2 * found.rho * gaussian_multiplier(BUDGET) / 1000
    assert facts["yard"] == pytest.approx(4 / 2 * noise**2 + found.rho**2 / 2000)


@pytest.mark.parametrize("loss", [losses.logistic, losses.multinomial(3)])
def test_the_yardstick_does_not_depend_on_units(loss):
    data = drawn(loss)
    mixed = np.array([[1e-3, 0, 0, 0], [0, 1e3, 0, 0], [0, 2e3, 1, 0], [0, 0, 0, 5]])
    other = replace(data, rows=np.ascontiguousarray(data.rows @ mixed))
    best = user_optimum(loss, data)
    there = (best.reshape(loss.n_outputs, 4) @ np.linalg.inv(mixed).T).ravel()
    here, moved = yardstick(loss, data, best), yardstick(loss, other, there)
    assert moved.rho == pytest.approx(here.rho, rel=1e-4)
    # A constant added to all classes changes nothing, so that direction does not count.
    assert moved.dimension == here.dimension == 4 * max(1, loss.n_outputs - 1)


def test_slopes_undo_what_predictions_overdo():
    rng = np.random.default_rng(0)
    margins = rng.normal(size=4000)
    chances = expit(1 + margins)
    assert logistic_slope(margins, chances) == pytest.approx(1)
    assert logistic_slope(4 * margins - 7, chances) == pytest.approx(0.25)
    assert logistic_slope(1e-3 * margins, chances) == pytest.approx(1000)
    assert logistic_slope(np.ones(4000), chances) is None
    assert linear_slope(2 * margins + 5, margins) == pytest.approx(0.5)
    assert linear_slope(np.ones(4000), margins) is None
    logits = rng.normal(size=(4000, 3))
    assert softmax_slope(3 * logits + [1, 2, 3], softmax(logits, axis=1)) == pytest.approx(1 / 3, rel=1e-4)
    assert softmax_slope(np.ones((4000, 3)), softmax(logits, axis=1)) is None


def test_slopes_and_bins_weigh_rows():
    margins, targets = np.array([-1.0, 1.0, -1.0, 1.0]), np.array([0.3, 0.7, 0.0, 1.0])
    weights = np.array([0.5, 0.5, 0.0, 0.0])
    assert logistic_slope(margins, targets, weights) == pytest.approx(math.log(0.7 / 0.3))
    assert linear_slope(margins, targets, weights) == pytest.approx(0.2)
    predicted, observed = np.arange(10.0), np.arange(10.0)[::-1]
    heavy = np.where(predicted < 2, 0.25, 0.5 / 8)
    assert calibration_bins(predicted, observed, heavy, n_bins=2) == [[0.5, 8.5], [5.5, 3.5]]


def test_scores_count_users_and_rows():
    data = UserData(np.ones((4, 1)), np.array([0.0, 1.0, 1.0, 1.0]), np.array([0, 1, 4]))
    test = HeldOut(losses.logistic, data)
    found = test.score(np.array([math.log(3)]))
    assert found["row_loss"] == pytest.approx(-0.25 * math.log(0.25) - 0.75 * math.log(0.75), rel=1e-5)
    assert found["loss"] == pytest.approx(-0.5 * math.log(0.25) - 0.5 * math.log(0.75), rel=1e-5)
    assert found["mean_ratio"] == pytest.approx(1.5)
    assert test.constant() == pytest.approx(math.log(2))
    runs = [found, found | {"loss": found["loss"] + 1, "slope": 0.9}]
    record = collect(runs, lambda one: one["loss"])
    assert record["excess"]["mean"] == pytest.approx(found["loss"] + 0.5)
    assert record["slope"]["values"] == [0.9]  # a constant has none


def test_regression_is_told_in_its_own_units():
    data = UserData(np.array([[1.0], [2.0]]), np.array([0.5, 1.0]), np.arange(3))
    found = HeldOut(losses.squared, data, middle=10.0, unit=4.0).score(np.array([0.25]))
    assert found["loss"] == pytest.approx((1**2 + 2**2) / 4)
    assert found["slope"] == pytest.approx(2)
    assert found["bins"][0] == [11, 12]
    assert found["mean_ratio"] == pytest.approx(11.5 / 13)
