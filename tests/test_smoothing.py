"""Randomised smoothing: the law of its draws, the gradient they average to, and what they depend on."""

import math

import numpy as np
import pytest
from cases import MULTINOMIAL, name, python_custom
from scipy.stats import beta, kstest

from userdp import UserData, losses
from userdp.statistics.gradients import MeanGradient
from userdp.statistics.rows import Rows
from userdp.statistics.smoothing import BallSmoothing, first_coordinate_quantiles


def one_user(rows, targets):
    """All rows are the first user's; the second has none."""
    return UserData(rows, targets, np.array([0, len(rows), len(rows)]))


def gradients(loss, weights, data, smoothing=None):
    return MeanGradient(loss, weights, smoothing=smoothing)(data, np.arange(data.n_users), data.n_users)


def shifted(smoothing, predictions, rows, targets):
    """Predictions of one user's rows at the drawn weights."""
    return smoothing.shifted(predictions, Rows(one_user(rows, targets), np.array([0])))


def draws(smoothing, n_rows=1, dimension=5, prediction=0.0):
    """rho of one user's rows, all of length 1 and with this prediction."""
    rows = np.zeros((n_rows, dimension))
    rows[:, 0] = 1.0
    return (shifted(smoothing, np.full(n_rows, prediction), rows, np.zeros(n_rows)) - prediction) / smoothing.radius


def fraction_below(t, dimension):
    """P(rho <= t)."""
    return beta.cdf((1 + t) / 2, (dimension + 1) / 2, (dimension + 1) / 2)


def users(n_users=40, rows=5, dimension=6, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_users * rows, dimension))
    return UserData(X, rng.integers(0, 2, len(X)).astype(float), np.arange(0, len(X) + 1, rows))


# --- the law of a draw ------------------------------------------------------------------------------------------------


def points_in_the_ball(n_points, dimension, rng):
    """Uniform: a direction from a Gaussian, a length whose d-th power is uniform."""
    points = rng.normal(size=(n_points, dimension))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    return points * rng.random((n_points, 1)) ** (1 / dimension)


@pytest.mark.parametrize("dimension", [1, 2, 5, 30])
def test_quantiles_are_those_of_a_coordinate_of_uniform_points_in_the_ball(dimension):
    quantiles = first_coordinate_quantiles(dimension)
    levels = np.linspace(0, 1, len(quantiles))
    points = points_in_the_ball(40_000, dimension, np.random.default_rng(0))
    assert kstest(points[:, 0], lambda t: np.interp(t, quantiles, levels)).pvalue > 1e-4
    wrong = first_coordinate_quantiles(2 * dimension)
    assert kstest(points[:, 0], lambda t: np.interp(t, wrong, levels)).pvalue < 1e-6


@pytest.mark.parametrize("dimension", [1, 2, 5, 30])
def test_quantiles_rise_from_minus_1_to_1_symmetrically_and_cannot_be_written(dimension):
    quantiles = first_coordinate_quantiles(dimension)
    assert -1 <= quantiles[0] < quantiles[1] < 0
    assert np.all(np.diff(quantiles) > 0)
    np.testing.assert_allclose(quantiles, -quantiles[::-1], atol=1e-12)
    with pytest.raises(ValueError, match="read-only"):
        quantiles[0] = 0.0


@pytest.mark.parametrize("dimension", [1, 2, 5, 30])
def test_draws_of_a_user_s_rows_follow_the_law(dimension):
    rho = draws(BallSmoothing(0.3, 7), 20_000, dimension)
    assert kstest(rho, fraction_below, args=(dimension,)).pvalue > 1e-4
    assert abs(np.corrcoef(rho[:-1], rho[1:])[0, 1]) < 0.03


def test_draws_of_one_row_over_seeds_follow_the_law():
    rho = np.concatenate([draws(BallSmoothing(0.3, seed), prediction=0.25) for seed in range(10_000)])
    assert kstest(rho, fraction_below, args=(5,)).pvalue > 1e-4
    assert abs(np.corrcoef(rho[:-1], rho[1:])[0, 1]) < 0.05


def test_a_draw_moves_a_prediction_by_radius_and_row_norm():
    short = np.array([[0.6, 0.8, 0.0]])
    moves = [shifted(BallSmoothing(r, 3), np.array([0.5]), short, np.zeros(1))[0] - 0.5 for r in (1, 2, 5)]
    assert moves[0] != 0
    np.testing.assert_allclose(moves, moves[0] * np.array([1.0, 2.0, 5.0]))
    assert abs(moves[0]) <= 1
    lengths = np.array([1.0, 2.0, 5.0])
    far = [
        max(abs(shifted(BallSmoothing(1, seed), np.zeros(1), s * short, np.zeros(1))) for seed in range(300))
        for s in lengths
    ]
    assert np.all(np.ravel(far) <= lengths)
    assert np.all(np.ravel(far) > 0.8 * lengths)


def test_predictions_given_are_not_overwritten():
    predictions = np.array([0.5, 0.25])
    shifted(BallSmoothing(1.0, 0), predictions, np.eye(2), np.zeros(2))
    np.testing.assert_array_equal(predictions, [0.5, 0.25])


# --- the gradient -----------------------------------------------------------------------------------------------------


def exact_slope(loss, prediction, target, reach, dimension):
    """E slope(prediction + reach rho, target) for losses whose slope jumps once."""
    if loss is losses.hinge:
        sign = 2 * target - 1
        return -sign * fraction_below((1 - sign * prediction) / reach, dimension)
    above = fraction_below((prediction - target) / reach, dimension)
    return 2 * above - 1 if loss is losses.absolute else above - 0.8


@pytest.mark.parametrize("dimension", [1, 4])
@pytest.mark.parametrize("loss", [losses.hinge, losses.absolute, losses.quantile(0.8)], ids=name)
def test_over_seeds_the_gradient_averages_to_the_smoothed_loss_s(loss, dimension):
    """Paper: Lemma D.1."""
    rng = np.random.default_rng(3)
    rows, weights, radius, seeds = rng.normal(size=(8, dimension)), rng.normal(size=dimension), 2.0, 5000
    data = one_user(rows, np.array([0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0]))
    drawn = np.array([gradients(loss, weights, data, BallSmoothing(radius, seed))[0] for seed in range(seeds)])
    slopes = [
        exact_slope(loss, row @ weights, target, radius * np.linalg.norm(row), dimension)
        for row, target in zip(rows, data.targets, strict=True)
    ]
    exact, error = np.array(slopes) @ rows / len(rows), drawn.std(axis=0) / math.sqrt(seeds)
    assert np.all(np.abs(drawn.mean(axis=0) - exact) < 5 * error)
    assert np.linalg.norm(gradients(loss, weights, data)[0] - exact) > 10 * np.max(error), "smoothing matters"


def test_a_tiny_ball_gives_the_plain_gradient():
    data, weights = users(), np.linspace(-1, 1, 6)
    smooth = gradients(losses.hinge, weights, data, BallSmoothing(1e-12, 0))
    np.testing.assert_allclose(smooth, gradients(losses.hinge, weights, data), rtol=1e-12, atol=1e-15)
    smooth = gradients(losses.logistic, weights, data, BallSmoothing(1e-9, 0))
    np.testing.assert_allclose(smooth, gradients(losses.logistic, weights, data), atol=1e-8)


def test_gradients_are_slopes_at_shifted_predictions():
    """Rows and weights of few bits, so that both predict the same to the last bit: a draw is made of it."""
    rng = np.random.default_rng(4)
    rows, weights = rng.integers(-8, 9, (300, 5)) / 8, np.array([0.5, -0.25, 1.0, 0.75, -1.5])
    data = UserData(rows, rng.integers(0, 2, 300).astype(float), np.array([0, 1, 5, 100, 300]))
    smoothing = BallSmoothing(0.7, 11)
    found = gradients(python_custom, weights, data, smoothing)
    for user in range(4):
        x, y = data.rows_of(user)
        by_hand = np.tanh(shifted(smoothing, x @ weights, x, y) - y) @ x / len(x)
        np.testing.assert_allclose(found[user], by_hand, rtol=1e-12)
    assert np.all(np.abs(found - gradients(python_custom, weights, data)).max(axis=1) > 1e-3)


def test_single_precision_rows_are_smoothed_as_the_same_in_double():
    data, weights = users(), np.array([0.5, -0.25, 1.0, 0.75, -1.5, 2.0])
    rows = np.round(8 * data.rows) / 8
    single, double = (UserData(rows.astype(kind), data.targets, data.offsets) for kind in (np.float32, np.float64))
    smoothing = BallSmoothing(0.5, 2)
    np.testing.assert_allclose(
        gradients(losses.hinge, weights, single, smoothing),
        gradients(losses.hinge, weights, double, smoothing),
        atol=1e-6,
    )


def test_it_costs_no_extra_slope():
    calls = []

    def counting(predictions, targets):
        calls.extend(predictions)
        return np.tanh(predictions - targets)

    loss = losses.custom("counting", lambda p, y: abs(p - y), counting, lipschitz=1.0)
    data = users(3, rows=4)
    for smoothing in (None, BallSmoothing(0.5, 0)):
        calls.clear()
        gradients(loss, np.ones(6), data, smoothing)
        assert len(calls) == 12


# --- what a draw depends on -------------------------------------------------------------------------------------------


def test_draws_differ_between_seeds_rows_and_predictions():
    rho = [draws(BallSmoothing(1.0, seed), 100, prediction=p) for seed in (0, 1, 2**62) for p in (0.0, 0.5, -0.5)]
    assert len(np.unique(np.round(rho, 12))) == 900


def test_draws_differ_beyond_the_first_block_of_rows():
    """Rows are computed 64 at a time; their numbers go on."""
    x = np.ones((200, 1))
    offsets = np.array([0, 64, 128, 200])
    alone = gradients(python_custom, np.ones(1), UserData(x, np.ones(200), offsets), BallSmoothing(1.0, 0))
    together = gradients(python_custom, np.ones(1), one_user(x, np.ones(200)), BallSmoothing(1.0, 0))
    assert alone[0] == alone[1], "users with the same rows have the same draws"
    moved = shifted(BallSmoothing(1.0, 0), np.ones(200), x, np.ones(200))
    assert len(np.unique(moved)) == 200
    np.testing.assert_allclose(together[0], np.mean(np.tanh(moved - 1)), rtol=1e-12)


def test_users_with_equal_predictions_have_draws_of_their_own():
    """At weights 0 all predictions are equal: rows' lengths and targets still tell users apart."""
    rng = np.random.default_rng(0)
    rows = np.column_stack([rng.normal(size=1000), np.ones(1000)])
    data = UserData(rows, np.zeros(1000), np.arange(1001))
    means = [
        gradients(losses.absolute, np.zeros(2), data, BallSmoothing(1.0, seed)).mean(axis=0)[1] for seed in range(50)
    ]
    assert np.var(means) < 0.003


def test_the_same_seed_repeats_bitwise():
    data, weights = users(), np.linspace(-1, 1, 6)
    first, again, other = (gradients(losses.logistic, weights, data, BallSmoothing(0.5, seed)) for seed in (5, 5, 6))
    np.testing.assert_array_equal(first, again)
    assert np.all(np.abs(first - other).max(axis=1) > 1e-6)


@pytest.mark.parametrize("loss", [losses.hinge, losses.logistic, python_custom], ids=name)
def test_no_user_s_vector_depends_on_other_users(loss):
    data, other, weights = users(seed=0), users(seed=1), np.linspace(-1, 1, 6)
    rows, targets = np.array(data.rows), np.array(data.targets)
    rows[15:20], targets[15:20] = other.rows[15:20], other.targets[15:20]
    replaced = UserData(rows, targets, data.offsets)
    before, after = (gradients(loss, weights, d, BallSmoothing(0.5, 9)) for d in (data, replaced))
    assert np.any(before[3] != after[3])
    np.testing.assert_array_equal(np.delete(before, 3, axis=0), np.delete(after, 3, axis=0))


def test_no_user_s_vector_depends_on_who_else_is_asked():
    data, weights, order = users(), np.linspace(-1, 1, 6), np.array([30, 2, 17])
    statistic = MeanGradient(losses.hinge, weights, smoothing=BallSmoothing(0.5, 9))
    np.testing.assert_array_equal(statistic(data, order, 3), statistic(data, np.arange(40), 40)[order])


def test_a_user_of_nan_and_one_without_rows_stay_nan():
    data = users(3)
    rows = np.array(data.rows)
    rows[0] = math.nan
    made = gradients(
        losses.hinge, np.ones(6), UserData(rows, data.targets, np.array([0, 5, 5, 15])), BallSmoothing(1.0, 0)
    )
    assert np.all(np.isnan(made[:2]))
    assert np.all(np.isfinite(made[2]))


# --- wrong arguments --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("radius", [0.0, -1.0, math.nan, math.inf])
def test_a_bad_radius_is_refused(radius):
    with pytest.raises(ValueError, match="radius of the ball"):
        BallSmoothing(radius, 0)


@pytest.mark.parametrize("seed", [-1, 2**63, 0.5, "one", None])
def test_a_bad_seed_is_refused(seed):
    with pytest.raises(ValueError, match="whole number"):
        BallSmoothing(1.0, seed)


def test_several_outputs_are_refused():
    with pytest.raises(ValueError, match="several outputs"):
        MeanGradient(MULTINOMIAL, np.zeros(24), smoothing=BallSmoothing(1.0, 0))


def test_a_smoothed_gradient_passes_the_check_and_goes_with_a_basis():
    data, basis, weights = users(), np.diag(np.arange(1.0, 7.0)), np.linspace(-1, 1, 6)
    statistic = MeanGradient(losses.hinge, weights, basis, BallSmoothing(0.5, 0))
    statistic.check(6)
    plain = gradients(losses.hinge, weights, data, BallSmoothing(0.5, 0))
    np.testing.assert_allclose(statistic(data, np.arange(40), 40), plain @ basis)
