import math
import pickle

import numpy as np
import pytest
from cases import ALL_LOSSES, name

from userdp import MeanGradient, UserData, losses
from userdp.statistics.smoothing import BallSmoothing
from userdp_research.row_statistics import ClippedRowGradients


def users_of(loss=losses.logistic, counts=(3, 0, 7, 130, 1), d=3, dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(sum(counts), d)).astype(dtype)
    targets = rng.integers(0, max(2, loss.n_outputs), len(rows)).astype(float)
    return UserData(rows, targets, np.concatenate([[0], np.cumsum(counts)]))


def by_hand(loss, data, user, kept, weights, clip):
    rows, targets = data.rows_of(user)
    total = np.zeros(weights.size)
    matrix = weights.reshape(loss.n_outputs, -1)
    for row in range(min(len(rows), len(kept))):
        if kept[row]:
            x = rows[row].astype(float)
            predictions = matrix @ x
            slope = loss.slope(float(predictions[0]) if loss.n_outputs == 1 else predictions, float(targets[row]))
            gradient = np.outer(np.atleast_1d(slope), x).ravel()
            total += gradient * min(1.0, clip / max(np.linalg.norm(gradient), 1e-300))
    return total


@pytest.mark.parametrize("loss", ALL_LOSSES, ids=name)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_it_is_the_sum_of_clipped_gradients_of_kept_rows(loss, dtype):
    data = users_of(loss, dtype=dtype)
    rng = np.random.default_rng(1)
    weights = rng.normal(size=3 * loss.n_outputs)
    users, kept = np.array([3, 0, 1, 2, 3]), rng.random((5, 100)) < 0.7
    statistic = ClippedRowGradients(MeanGradient(loss, weights), 0.4).keeping(kept)
    statistic.check(3, dtype)
    expected = [by_hand(loss, data, user, line, weights, 0.4) for user, line in zip(users, kept, strict=True)]
    np.testing.assert_allclose(statistic(data, users, 5), expected, rtol=1e-9, atol=1e-12)


def test_without_a_mask_all_rows_are_kept_and_a_long_clip_changes_nothing():
    data = users_of()
    gradient = MeanGradient(losses.logistic, np.array([0.3, -0.2, 1.0]))
    sums = ClippedRowGradients(gradient, 1e6)(data, np.array([0, 2, 3]), 3)
    np.testing.assert_allclose(sums, gradient(data, np.array([0, 2, 3]), 3) * np.array([[3], [7], [130]]), rtol=1e-9)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e308, -1e308])
@pytest.mark.parametrize("compiled", [True, False])
def test_a_row_that_is_not_finite_counts_as_nothing_and_reaches_nobody_else(bad, compiled):
    loss = losses.logistic if compiled else plain_loss()
    data = users_of(loss)
    rows = data.rows.copy()
    rows[1, 1] = bad
    spoiled = UserData(rows, data.targets, data.offsets)
    statistic = ClippedRowGradients(MeanGradient(loss, np.ones(3)), 0.4)
    users = np.arange(5)
    clean, dirty = (statistic(d, users, 5) for d in (data, spoiled))
    np.testing.assert_array_equal(clean[1:], dirty[1:])
    kept = np.array([[True, False, True]])
    without = statistic.keeping(kept)(data, users[:1], 1)
    assert np.linalg.norm(dirty[0] - without[0]) <= 0.4 * (1 + 1e-12)
    if not math.isfinite(bad):
        np.testing.assert_allclose(dirty[0], without[0], rtol=1e-12)


def plain_loss(fails_at=None):
    def value(prediction, target):
        return (prediction - target) ** 2 / 2

    def slope(prediction, target):
        if fails_at is not None and target == fails_at:
            raise ValueError("a message that must not leave")
        return np.tanh(prediction - target)

    return losses.Loss("plain", value, slope, 1.0, 1.0)


def test_a_slope_in_plain_python_gives_the_same_and_its_errors_stay_inside():
    data = users_of()
    loss = plain_loss()
    kept = np.random.default_rng(0).random((5, 9)) < 0.5
    weights = np.array([0.3, -0.2, 1.0])
    sums = ClippedRowGradients(MeanGradient(loss, weights), 0.4, kept)(data, np.arange(5), 5)
    expected = [by_hand(loss, data, user, kept[user], weights, 0.4) for user in range(5)]
    np.testing.assert_allclose(sums, expected, rtol=1e-9, atol=1e-12)
    failing = ClippedRowGradients(MeanGradient(plain_loss(fails_at=1.0), weights), 0.4, kept)(data, np.arange(5), 5)
    only = kept & np.array(
        [[i < len(t) and t[i] == 0 for i in range(9)] for t in (data.rows_of(u)[1] for u in range(5))]
    )
    expected = [by_hand(loss, data, user, only[user], weights, 0.4) for user in range(5)]
    np.testing.assert_allclose(failing, expected, rtol=1e-9, atol=1e-12)


def test_it_can_be_sent_elsewhere():
    statistic = ClippedRowGradients(MeanGradient(losses.logistic, np.ones(3)), 0.4).keeping(np.ones((5, 2), bool))
    data = users_of()
    again = pickle.loads(pickle.dumps(statistic))
    np.testing.assert_array_equal(again(data, np.arange(5), 5), statistic(data, np.arange(5), 5))


def test_wrong_arguments_are_refused():
    gradient = MeanGradient(losses.logistic, np.ones(3))
    with pytest.raises(ValueError, match="clip=0"):
        ClippedRowGradients(gradient, 0)
    with pytest.raises(ValueError, match="without basis and smoothing"):
        ClippedRowGradients(MeanGradient(losses.logistic, np.ones(3), np.eye(3)), 1.0)
    with pytest.raises(ValueError, match="without basis and smoothing"):
        ClippedRowGradients(MeanGradient(losses.hinge, np.ones(3), None, BallSmoothing(0.1, 0)), 1.0)
    data, statistic = users_of(), ClippedRowGradients(gradient, 1.0)
    with pytest.raises(IndexError, match="user indices from 0 to n_users - 1 = 4"):
        statistic(data, np.array([5]), 1)
    with pytest.raises(ValueError, match="one vector per user"):
        statistic(data, np.array([1, 2]), 1)
    with pytest.raises(ValueError, match="kept rows of 2 users"):
        statistic.keeping(np.ones((3, 2), bool))(data, np.array([1, 2]), 2)
    with pytest.raises(ValueError, match="weights of length 3"):
        ClippedRowGradients(MeanGradient(losses.logistic, np.ones(4)), 1.0)(data, np.array([1]), 1)
