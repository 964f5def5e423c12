"""Statistics with losses and functions of one's own, whatever these do."""

from __future__ import annotations

import math
import runpy
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cases import ALL_LOSSES, MULTINOMIAL, name, python_custom
from support_statistics import N_FEATURES, ROWS_OF_USERS, data_of, vectors, weights_of, with_user

from userdp import losses
from userdp.data.users import UserData
from userdp.domains import Ball
from userdp.engines import LocalEngine
from userdp.statistics.gradients import MeanGradient, UserGradients
from userdp.statistics.moments import UserMean
from userdp.statistics.sgd import OnePassSGD


def raising_slope(predictions, targets):
    if np.any(predictions > 1.0):
        raise ValueError("a message that must not leave")
    return predictions


def test_an_exception_in_a_custom_slope_stays_with_its_user(capfd):
    loss = losses.custom("raising", losses.absolute.value, raising_slope, lipschitz=1.0)
    data = with_user(data_of(), 4, rows=1.0)
    calm = with_user(data, 0, rows=0.0)
    result = vectors(MeanGradient(loss, np.ones(N_FEATURES)), calm)
    assert np.all(np.isnan(result[4]))
    np.testing.assert_array_equal(result[0], 0.0)
    assert capfd.readouterr() == ("", "")


PRICES = np.array([1.0, 5.0])


def priced_slope(predictions, targets):
    return PRICES[targets.astype(int)] * predictions


def margin(predictions, targets):
    return np.repeat(predictions[np.arange(len(targets)), targets.astype(int)][:, None], 3, axis=1)


@pytest.mark.parametrize("target", [2.0, 1e12, math.nan, -3.0, 4e9])
def test_a_loss_that_reads_beyond_an_array_makes_its_user_nan(target):
    loss = losses.custom("priced", priced_slope, priced_slope, lipschitz=5.0)
    for statistic in (
        MeanGradient(loss, np.ones(N_FEATURES)),
        MeanGradient(losses.smoothed(loss, 0.1), np.ones(N_FEATURES)),
        OnePassSGD(loss, np.zeros(N_FEATURES), Ball(1.0), 0.1),
    ):
        result = vectors(statistic, with_user(data_of(), 4, targets=target))
        assert np.all(np.isnan(result[4]))
        assert np.all(np.isfinite(result[5]))


def test_a_loss_of_several_outputs_that_reads_beyond_them_makes_its_user_nan():
    loss = losses.Loss("margin", margin, margin, slope_bound=2.0, curvature=1.0, n_outputs=3)
    weights = np.ones(3 * N_FEATURES)
    for statistic in (MeanGradient(loss, weights), OnePassSGD(loss, weights, Ball(10.0), 0.1)):
        for target in (3.0, -4.0):
            result = vectors(statistic, with_user(data_of(), 4, targets=target))
            assert np.all(np.isnan(result[4]))
            assert np.all(np.isfinite(result[5]))


def own(slope):
    """A loss from outside that was not tried first."""
    return losses.Loss("own", slope, slope, slope_bound=5.0, curvature=1.0)


def mixing_slope(predictions, targets):
    """Not a function of each row by itself."""
    return predictions - predictions.mean() + len(predictions)


def too_many_slopes(predictions, targets):
    return np.ones(len(predictions) + (targets[0] == 7))


@pytest.mark.parametrize("slope", [priced_slope, mixing_slope, too_many_slopes, raising_slope])
@pytest.mark.parametrize("target", [7.0, math.nan])
def test_a_loss_from_outside_sees_one_users_rows_at_a_time(slope, target):
    """Whatever it does with them: sums over rows, another number of slopes."""
    data = with_user(data_of(), 4, targets=target)
    for basis in (None, np.eye(N_FEATURES)):
        statistic = MeanGradient(own(slope), np.ones(N_FEATURES), basis)
        together, before = vectors(statistic, data), vectors(statistic, data_of())
        np.testing.assert_array_equal(np.delete(together, 4, axis=0), np.delete(before, 4, axis=0))
        alone = np.vstack([vectors(statistic, data, [user]) for user in range(data.n_users)])
        np.testing.assert_array_equal(together, alone)


def misbehaving(weights, rows, targets):
    kind = int(targets[0])
    warnings.warn("a warning that must not leave", stacklevel=1)
    if kind == 1:
        raise RuntimeError("a message that must not leave")
    if kind == 2:
        return np.ones(3)
    if kind == 3:
        return np.full(len(weights), np.log(0.0))
    if kind == 4:
        return "text"
    return np.ones(len(weights))


def test_a_misbehaving_function_gives_nan_for_that_user_only(capfd):
    data = data_of(rows_of_users=[2] * 6)
    for user in range(6):
        data = with_user(data, user, targets=float(user))
    result = vectors(UserGradients(misbehaving, np.zeros(N_FEATURES)), data)
    np.testing.assert_array_equal(np.isnan(result).all(axis=1), [False, True, True, True, True, False])
    assert np.all(result[[0, 5]] == 1.0)
    assert capfd.readouterr() == ("", "")


def test_a_function_gets_one_users_block_and_cannot_write_to_it():
    seen = []

    def spy(weights, rows, targets):
        seen.append((rows.shape, targets.shape, rows.flags.writeable, weights.flags.writeable))
        return weights

    data = data_of(np.float32)
    vectors(UserGradients(spy, np.zeros(N_FEATURES)), data, [4, 2, 0])
    assert seen == [((200, 7), (200,), False, False), ((3, 7), (3,), False, False)]


def broken(weights, rows, targets):
    raise KeyError("weights")


def too_short(weights, rows, targets):
    return weights[:-1]


@pytest.mark.parametrize(
    ("statistic", "message"),
    [
        (UserGradients(broken, np.zeros(7)), r"Expected broken to return a vector .* it raised KeyError"),
        (UserGradients(too_short, np.zeros(7)), r"too_short .* shape \(7,\) .* got shape \(6,\)"),
        (MeanGradient(losses.logistic, np.zeros(6)), r"weights of length 7 for the logistic loss .* got 6"),
        (MeanGradient(MULTINOMIAL, np.zeros(7)), r"weights of length 28"),
        (MeanGradient(replace(python_custom, slope=broken), np.zeros(7)), r"log_cosh loss .* it raised"),
        (MeanGradient(replace(python_custom, slope=lambda p, t: p * math.nan), np.zeros(7)), r"finite gradients of"),
    ],
)
def test_check_finds_programming_errors_without_data(statistic, message):
    with pytest.raises(ValueError, match=message):
        statistic.check(N_FEATURES)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda d: UserMean()(d, np.arange(4), 2), r"n_groups=2 to be len\(users\)=4"),
        (lambda d: UserMean()(d, np.array([0, 10]), 2), r"0 to n_users - 1 = 9"),
        (lambda d: UserMean()(d, np.array([-1, 1]), 2), r"0 to n_users - 1 = 9"),
        (lambda d: UserMean()(d, np.array([0.0, 1.0]), 2), r"vector of integers, got shape \(2,\) of float64"),
        (lambda d: MeanGradient(losses.squared, np.zeros((7, 1))), r"weights of shape \(dim,\), got \(7, 1\)"),
        (lambda d: MeanGradient(losses.squared, [math.nan]), r"finite weights"),
        (lambda d: MeanGradient(losses.squared, np.zeros(3))(d, np.arange(2), 2), r"weights of length 7"),
        (lambda d: LocalEngine().vectors(lambda *a: [1.0], d, np.arange(2), 2), r"float64 array, got list"),
        (lambda d: LocalEngine().vectors(lambda *a: np.ones((2, 3), "f"), d, np.arange(2), 2), r"got float32"),
        (lambda d: LocalEngine().vectors(lambda *a: np.ones(2), d, np.arange(2), 2), r"n_groups=2, dim\), got \(2,\)"),
        (lambda d: LocalEngine().vectors(lambda *a: np.ones((3, 2)), d, np.arange(2), 2), r"got \(3, 2\)"),
    ],
)
def test_errors_are_clear(call, message):
    with pytest.raises((ValueError, TypeError, IndexError), match=message):
        call(data_of())


def test_gradients_by_jax_agree_with_the_compiled_ones():
    pytest.importorskip("jax")
    example = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "custom_loss_jax.py"))
    data, weights = data_of(), weights_of(losses.logistic)
    by_jax = vectors(UserGradients(example["gradient"], weights), data)
    np.testing.assert_allclose(by_jax, vectors(MeanGradient(losses.logistic, weights), data), atol=1e-5)


@pytest.mark.parametrize("loss", ALL_LOSSES, ids=name)
def test_gradients_in_another_basis(loss):
    data, basis = data_of(), np.random.default_rng(0).normal(size=(N_FEATURES, N_FEATURES))
    plain = vectors(MeanGradient(loss, weights_of(loss)), data)
    turned = vectors(MeanGradient(loss, weights_of(loss), basis), data)
    expected = (plain.reshape(-1, loss.n_outputs, N_FEATURES) @ basis).reshape(plain.shape)
    np.testing.assert_allclose(turned, expected, rtol=1e-10, atol=1e-12)


def test_a_basis_must_fit():
    with pytest.raises(ValueError, match="square basis"):
        MeanGradient(losses.logistic, np.zeros(3), np.ones((3, 2)))
    with pytest.raises(ValueError, match="basis of 3 features"):
        MeanGradient(losses.logistic, np.zeros(3), np.eye(2)).check(3)


@pytest.mark.parametrize("value", [0.5, np.nan, 1e300])
def test_a_basis_keeps_users_apart_bit_for_bit(value):
    data, basis = data_of(), np.random.default_rng(0).normal(size=(N_FEATURES, N_FEATURES))
    statistic = MeanGradient(losses.logistic, weights_of(losses.logistic), basis)
    user = next(u for u, rows in enumerate(ROWS_OF_USERS) if rows)
    rows = data.rows.copy()
    rows[data.offsets[user] : data.offsets[user + 1]] = value
    before, after = vectors(statistic, data), vectors(statistic, UserData(rows, data.targets, data.offsets))
    changed = np.any(before.view(np.int64) != after.view(np.int64), axis=1)
    assert set(np.flatnonzero(changed)) == {user}
