"""Statistics: each vector comes from its own user alone, equals a naive loop, and no user can break another."""

from __future__ import annotations

import math
import pickle
import runpy
import warnings
from dataclasses import replace
from pathlib import Path

import numba
import numpy as np
import pytest
from cases import ALL_LOSSES, CLASSIFICATION, MULTINOMIAL, compiled_custom, name, python_custom
from hypothesis import given
from hypothesis import strategies as st

from userdp import kernels, losses
from userdp.data import UserData
from userdp.domains import Ball
from userdp.engines import LocalEngine
from userdp.smoothing import BallSmoothing
from userdp.statistics import MeanGradient, OnePassSGD, SecondMoment, SecondMomentShape, UserGradients, UserMean

N_FEATURES = 7
ROWS_OF_USERS = [3, 1, 0, 64, 200, 4, 129, 2, 65, 5]
EMPTY = 2


def data_of(dtype=np.float64, seed=0, n_features=N_FEATURES, rows_of_users=ROWS_OF_USERS, n_classes=2) -> UserData:
    rng = np.random.default_rng(seed)
    n_rows = sum(rows_of_users)
    rows = rng.standard_normal((n_rows, n_features)).astype(dtype)
    offsets = np.concatenate([[0], np.cumsum(rows_of_users)])
    return UserData(rows, rng.integers(0, n_classes, n_rows).astype(float), offsets)


def weights_of(loss, n_features=N_FEATURES):
    return np.random.default_rng(1).standard_normal(n_features * loss.n_outputs)


def user_mean(weights, rows, targets):
    """Stands for a user's own function."""
    return rows.mean(axis=0)


STATISTICS = [MeanGradient(loss, weights_of(loss)) for loss in ALL_LOSSES]
STATISTICS += [UserMean(), SecondMoment(), SecondMomentShape(3.0), UserGradients(user_mean, np.zeros(N_FEATURES))]
BALL = BallSmoothing(0.5, seed=3)
STATISTICS += [MeanGradient(loss, weights_of(loss), smoothing=BALL) for loss in (losses.hinge, python_custom)]
every = pytest.mark.parametrize("statistic", STATISTICS, ids=lambda s: name(getattr(s, "loss", s)))


def vectors(statistic, data, users=None) -> np.ndarray:
    users = np.arange(data.n_users) if users is None else np.asarray(users)
    return LocalEngine().vectors(statistic, data, users, len(users))


def with_user(data, user, rows=None, targets=None) -> UserData:
    """The same data with one user's rows or targets overwritten."""
    block = slice(data.offsets[user], data.offsets[user + 1])
    new_rows, new_targets = data.rows.copy(), data.targets.copy()
    if rows is not None:
        new_rows[block] = rows
    if targets is not None:
        new_targets[block] = targets
    return UserData(new_rows, new_targets, data.offsets)


def naive_mean_gradient(loss, weights, rows, targets):
    total = np.zeros((loss.n_outputs, rows.shape[1]))
    for row, target in zip(rows.astype(float), targets, strict=True):
        predictions = weights.reshape(loss.n_outputs, -1) @ row
        slope = loss.slope(predictions if loss.n_outputs > 1 else predictions[0], target)
        total += np.outer(slope, row)
    return total.ravel() / len(rows)


@pytest.mark.parametrize("loss", ALL_LOSSES, ids=name)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_mean_gradient_equals_a_naive_loop(loss, dtype):
    data, weights = data_of(dtype, n_classes=max(2, loss.n_outputs)), weights_of(loss)
    result = vectors(MeanGradient(loss, weights), data)
    for user in range(data.n_users):
        if user == EMPTY:
            assert np.all(np.isnan(result[user]))
        else:
            expected = naive_mean_gradient(loss, weights, *data.rows_of(user))
            np.testing.assert_allclose(result[user], expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("loss", CLASSIFICATION, ids=name)
def test_a_user_with_a_label_that_is_no_class_is_nan(loss):
    data = data_of()
    targets = data.rows_of(6)[1].copy()
    targets[70] = 2.0
    before = vectors(MeanGradient(loss, weights_of(loss)), data)
    after = vectors(MeanGradient(loss, weights_of(loss)), with_user(data, 6, targets=targets))
    assert np.all(np.isnan(after[6]))
    np.testing.assert_array_equal(np.delete(before, 6, axis=0), np.delete(after, 6, axis=0))
    assert np.all(np.isfinite(np.delete(after, [EMPTY, 6], axis=0)))


def test_statistics_say_whether_they_read_targets():
    assert [s.needs_targets for s in STATISTICS] == [True] * len(ALL_LOSSES) + [False] * 4 + [True] * 2
    assert OnePassSGD.needs_targets


@pytest.mark.parametrize("given", ["logistic", losses.huber, None])
def test_a_loss_must_be_a_loss(given):
    kind = type(given).__name__
    with pytest.raises(TypeError, match=rf"^Expected a Loss, got {kind}: use userdp\.losses\.loss\('logistic'\)\.$"):
        MeanGradient(given, np.zeros(3))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_mean_and_second_moment_equal_numpy(dtype):
    data = data_of(dtype)
    means, moments = vectors(UserMean(), data), vectors(SecondMoment(), data)
    upper = np.triu_indices(N_FEATURES)
    for user in [u for u in range(data.n_users) if u != EMPTY]:
        rows = data.rows_of(user)[0].astype(float)
        matrix = rows.T @ rows / len(rows)
        np.testing.assert_allclose(means[user], rows.mean(axis=0), rtol=1e-12, atol=1e-14)
        expected = (matrix * np.where(np.eye(N_FEATURES), 1, math.sqrt(2)))[upper]
        tolerance = 1e-12 if dtype == np.float64 else 1e-5  # products are added up in the rows' own type
        np.testing.assert_allclose(moments[user], expected, rtol=tolerance, atol=tolerance)
        assert np.linalg.norm(moments[user]) == pytest.approx(np.linalg.norm(matrix), rel=1e-5)
        shape = vectors(SecondMomentShape(2.0), data)[user]
        np.testing.assert_allclose(shape[:-1], moments[user] / np.linalg.norm(matrix), rtol=tolerance, atol=tolerance)
        assert shape[-1] == pytest.approx(min(1.0, np.linalg.norm(matrix) / 2), rel=1e-5)
        assert np.linalg.norm(shape) <= math.sqrt(2) * (1 + 1e-12)


def test_moments_of_many_rows_keep_their_precision():
    rows = np.random.default_rng(0).normal(size=(100_000, 2)).astype(np.float32)
    data = UserData(rows, np.ones(len(rows)), np.array([0, len(rows), len(rows)]))
    exact = np.mean(rows[:, 0].astype(float) ** 2)
    assert vectors(SecondMoment(), data)[0, 0] == pytest.approx(exact, rel=1e-5)


def test_the_shape_of_a_user_whose_rows_are_zero_is_zero():
    data = UserData(np.zeros((3, 2)), np.ones(3), np.array([0, 1, 3]))
    np.testing.assert_array_equal(vectors(SecondMomentShape(1.0), data), np.zeros((2, 4)))


@every
@given(user=st.sampled_from([u for u, rows in enumerate(ROWS_OF_USERS) if rows]), seed=st.integers(0, 99))
def test_changing_one_user_changes_its_own_vector_only(statistic, user, seed):
    data, rng = data_of(), np.random.default_rng(seed)
    changed = with_user(data, user, rows=10.0 ** rng.integers(-3, 3) * rng.standard_normal(N_FEATURES))
    before, after = vectors(statistic, data), vectors(statistic, changed)
    others = np.arange(data.n_users) != user
    np.testing.assert_array_equal(before[others], after[others])  # to the last bit
    assert not np.array_equal(before[user], after[user])


@every
def test_order_and_company_do_not_matter(statistic):
    data = data_of()
    everyone = vectors(statistic, data)
    users = np.random.default_rng(0).permutation(data.n_users)
    np.testing.assert_array_equal(vectors(statistic, data, users), everyone[users])
    np.testing.assert_array_equal(vectors(statistic, data, [4]), everyone[[4]])
    np.testing.assert_array_equal(vectors(statistic, data, [4, 4]), everyone[[4, 4]])
    assert vectors(statistic, data, np.array([], dtype=int)).shape == (0, everyone.shape[1])


@every
def test_the_number_of_rows_of_a_user_does_not_reach_others(statistic):
    sizes = list(ROWS_OF_USERS)
    data = data_of(rows_of_users=sizes)
    keep = np.ones(data.n_rows, dtype=bool)
    keep[data.offsets[4] : data.offsets[4] + 150] = False
    sizes[4] -= 150
    smaller = UserData(data.rows[keep], data.targets[keep], np.concatenate([[0], np.cumsum(sizes)]))
    others = np.arange(data.n_users) != 4
    np.testing.assert_array_equal(vectors(statistic, data)[others], vectors(statistic, smaller)[others])


@every
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf, 1e308, "target"])
def test_poison_stays_with_its_user(statistic, poison):
    data, user = data_of(), 6
    row = data.rows_of(user)[0].copy()
    row[50] = 0.0 if poison == "target" else poison
    targets = data.rows_of(user)[1].copy()
    targets[50] = math.nan if poison == "target" else 0.0
    before, after = vectors(statistic, data), vectors(statistic, with_user(data, user, row, targets))
    others = np.arange(data.n_users) != user
    np.testing.assert_array_equal(before[others], after[others])
    if poison != "target" and math.isnan(poison):
        assert not np.all(np.isfinite(after[user]))


@every
def test_results_do_not_depend_on_threads_or_chunks(statistic, monkeypatch):
    data = data_of(rows_of_users=ROWS_OF_USERS * 20)
    before = numba.get_num_threads()
    results = []
    monkeypatch.setattr(kernels, "_THREADING_PAYS", 0)
    try:
        for n_threads, chunk in [(1, 1024), (2, 1024), (2, 3), (2, 1)]:
            numba.set_num_threads(min(n_threads, numba.config.NUMBA_NUM_THREADS))
            monkeypatch.setattr(kernels, "_CHUNK_USERS", chunk)
            results.append(vectors(statistic, data))
    finally:
        numba.set_num_threads(before)
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


@every
def test_statistics_survive_pickling(statistic):
    data = data_of()
    again = pickle.loads(pickle.dumps(statistic))
    np.testing.assert_array_equal(vectors(again, data), vectors(statistic, data))


@every
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_check_passes(statistic, dtype):
    statistic.check(N_FEATURES, dtype)


@pytest.mark.parametrize("loss", [losses.logistic, MULTINOMIAL], ids=name)
def test_mean_gradient_agrees_with_jax(loss):
    jax = pytest.importorskip("jax")

    def mean_loss(w, rows, targets):
        if loss.n_outputs == 1:
            sign = jax.numpy.where(targets > 0, 1.0, -1.0)
            return jax.numpy.logaddexp(0.0, -sign * (rows @ w)).mean()
        p = rows @ w.reshape(loss.n_outputs, -1).T
        return (jax.nn.logsumexp(p, axis=1) - p[jax.numpy.arange(len(p)), targets.astype(int)]).mean()

    data, weights = data_of(np.float32, rows_of_users=[9] * 5), weights_of(loss)
    autodiff = vectors(UserGradients(jax.jit(jax.grad(mean_loss)), weights), data)
    np.testing.assert_allclose(autodiff, vectors(MeanGradient(loss, weights), data), atol=2e-6)


def raising_slope(prediction, target):
    if prediction > 1.0:
        raise ValueError("a message that must not leave")
    return prediction


def raising_python_slope(prediction, target):
    return float(str(raising_slope(prediction, target)))


@pytest.mark.parametrize("slope", [raising_slope, raising_python_slope])
def test_an_exception_in_a_custom_slope_stays_with_its_user(slope, capfd):
    loss = losses.custom("raising", abs, slope, lipschitz=1.0)
    assert loss.compiled == (slope is raising_slope)
    data = with_user(data_of(), 4, rows=1.0)
    calm = with_user(data, 0, rows=0.0)
    result = vectors(MeanGradient(loss, np.ones(N_FEATURES)), calm)
    assert np.all(np.isnan(result[4]))
    np.testing.assert_array_equal(result[0], 0.0)
    assert capfd.readouterr() == ("", "")


PRICES = np.array([1.0, 5.0])


def priced_slope(prediction, target):
    return PRICES[int(target)] * prediction


@numba.njit
def margin_value(predictions, target):
    return predictions[int(target)]


@numba.njit
def margin_slope(predictions, target):
    return np.full(3, predictions[int(target)])


@pytest.mark.parametrize("target", [2.0, 1e12, math.nan, -3.0, 4e9])
def test_a_loss_that_reads_beyond_an_array_gives_nan_not_other_memory(target):
    loss = losses.custom("priced", priced_slope, priced_slope, lipschitz=5.0)
    assert loss.compiled
    for statistic in (
        MeanGradient(loss, np.ones(N_FEATURES)),
        MeanGradient(losses.smoothed(loss, 0.1), np.ones(N_FEATURES)),
        OnePassSGD(loss, np.zeros(N_FEATURES), Ball(1.0), 0.1),
    ):
        result = vectors(statistic, with_user(data_of(), 4, targets=target))
        assert np.all(np.isnan(result[4]))
        assert np.all(np.isfinite(result[5]))


def test_a_loss_of_several_outputs_cannot_read_its_neighbours_predictions():
    loss = losses.Loss("margin", margin_value, margin_slope, slope_bound=2.0, curvature=1.0, n_outputs=3)
    weights = np.ones(3 * N_FEATURES)
    for statistic in (MeanGradient(loss, weights), OnePassSGD(loss, weights, Ball(10.0), 0.1)):
        for target in (3.0, -4.0):
            result = vectors(statistic, with_user(data_of(), 4, targets=target))
            assert np.all(np.isnan(result[4]))
            assert np.all(np.isfinite(result[5]))


@numba.njit
def unchecked_look(table, i):
    return table[i]


@numba.njit(boundscheck=True)
def checked_look(table, i):
    return table[i]


def through_unchecked(prediction, target):
    return unchecked_look(PRICES, int(target)) * prediction


def through_checked(prediction, target):
    return checked_look(PRICES, int(target)) * prediction


def test_functions_that_a_loss_calls_must_check_their_indices():
    with pytest.raises(ValueError, match=r"Expected unchecked_look, which the priced loss calls, to check its indices"):
        losses.custom("priced", abs, through_unchecked, lipschitz=5.0)
    with pytest.raises(ValueError, match="unchecked_look"):
        losses.Loss("priced", abs, numba.njit(through_unchecked), slope_bound=5.0, curvature=1.0)
    loss = losses.custom("priced", abs, through_checked, lipschitz=5.0)
    assert loss.compiled
    result = vectors(MeanGradient(loss, np.ones(N_FEATURES)), with_user(data_of(), 4, targets=7.0))
    assert np.all(np.isnan(result[4]))


@pytest.mark.parametrize(("setting", "value"), [("BOUNDSCHECK", 0), ("FULL_TRACEBACKS", 1)])
def test_settings_of_numba_that_undo_the_checks_are_refused(monkeypatch, setting, value):
    monkeypatch.setattr(numba.config, setting, value)
    with pytest.raises(RuntimeError, match="not to be set"):
        kernels.block_slopes(numba.njit(priced_slope), 1, True)


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
        (MeanGradient(losses.custom("typo", abs, broken, lipschitz=1.0), np.zeros(7)), r"typo loss .* it raised"),
        (MeanGradient(replace(compiled_custom, slope=losses.standard._sign), np.zeros(7)), r"it raised"),
        (
            MeanGradient(losses.custom("nan", abs, lambda p, t: p * math.nan, lipschitz=1.0), np.zeros(7)),
            r"finite gradients of the nan loss",
        ),
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


def test_python_and_compiled_custom_losses_agree():
    data, weights = data_of(), weights_of(losses.squared)
    compiled, python = (vectors(MeanGradient(loss, weights), data) for loss in (compiled_custom, python_custom))
    np.testing.assert_allclose(python, compiled, rtol=1e-12, atol=1e-14)


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
