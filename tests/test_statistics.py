"""Statistics: each vector comes from its own user alone, equals a naive loop, and no user can break another."""

from __future__ import annotations

import math
import pickle
from dataclasses import dataclass, replace

import numpy as np
import pytest
import scipy.sparse
from cases import ALL_LOSSES, CLASSIFICATION, MULTINOMIAL, name, python_custom
from hypothesis import given
from hypothesis import strategies as st
from support_statistics import N_FEATURES, ROWS_OF_USERS, data_of, vectors, weights_of, with_user

from userdp import losses
from userdp.data.sparse import sparse_rows
from userdp.data.users import UserData
from userdp.domains import Ball
from userdp.statistics import gradients, rows
from userdp.statistics.gradients import MeanGradient, UserGradients, generated_data
from userdp.statistics.moments import SecondMoment, SecondMomentShape, UserMean
from userdp.statistics.sgd import OnePassSGD
from userdp.statistics.smoothing import BallSmoothing

EMPTY = 2


def user_mean(weights, rows, targets):
    """Stands for a user's own function."""
    return rows.mean(axis=0)


STATISTICS = [MeanGradient(loss, weights_of(loss)) for loss in ALL_LOSSES]
STATISTICS += [UserMean(), SecondMoment(), SecondMomentShape(3.0), UserGradients(user_mean, np.zeros(N_FEATURES))]
BALL = BallSmoothing(0.5, seed=3)
STATISTICS += [MeanGradient(loss, weights_of(loss), smoothing=BALL) for loss in (losses.hinge, python_custom)]
every = pytest.mark.parametrize("statistic", STATISTICS, ids=lambda s: name(getattr(s, "loss", s)))


def room(dtype):
    """What rounding needs: predictions, slopes and sums are in the rows' own type."""
    return {"rtol": 1e-5, "atol": 1e-5} if dtype == np.float32 else {"rtol": 1e-11, "atol": 1e-13}


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
    """Paper: Alg. 2, line 5 (q_t)."""
    data, weights = data_of(dtype, n_classes=max(2, loss.n_outputs)), weights_of(loss)
    result = vectors(MeanGradient(loss, weights), data)
    for user in range(data.n_users):
        if user == EMPTY:
            assert np.all(np.isnan(result[user]))
        else:
            expected = naive_mean_gradient(loss, weights, *data.rows_of(user))
            np.testing.assert_allclose(result[user], expected, **room(dtype))


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


@pytest.mark.parametrize("loss", ALL_LOSSES, ids=name)
@pytest.mark.parametrize("sparse", [False, True])
def test_weights_say_how_often_rows_count(loss, sparse):
    """Wherever rows go: with some of the users, in parts that are joined again, in the steps of one-pass SGD."""
    plain, w = data_of(np.float64, n_classes=max(2, loss.n_outputs)), weights_of(loss)
    weights = np.random.default_rng(3).choice([0.0, 0.25, 0.8, 1.0], plain.n_rows)
    rows = sparse_rows("rows", scipy.sparse.csr_array(plain.rows)) if sparse else plain.rows
    data = replace(plain, rows=rows, weights=weights)
    gradient = MeanGradient(loss, w)
    each_row = vectors(gradient, UserData(plain.rows, plain.targets, np.arange(plain.n_rows + 1)))
    expected = np.full((data.n_users, w.size), math.nan)
    for user in np.flatnonzero(np.diff(data.offsets)):
        own = slice(data.offsets[user], data.offsets[user + 1])
        expected[user] = np.mean(weights[own, None] * each_row[own], axis=0)
    some = np.array([5, 2, 7])
    joined = UserData.joined([data.part(0, 5), data.part(5, data.n_users)])
    for found, wanted in (
        (vectors(gradient, data), expected),
        (vectors(gradient, joined), expected),
        (vectors(gradient, data.taken(some)), expected[some]),
        (gradient(data, some, 3), expected[some]),
    ):
        found[np.isnan(found).any(axis=1)] = math.nan  # one entry of a sparse vector
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)
    every_other = np.arange(data.n_rows) % 2 == 0
    left = data.without(every_other)
    np.testing.assert_array_equal(left.weights, weights[every_other])
    one_step = OnePassSGD(loss, w, Ball(1e6), 1e-3, 1.0)
    single = UserData(plain.rows[:4], plain.targets[:4], np.arange(5), weights=weights[:4])
    steps = one_step(single, np.arange(4), 4)
    np.testing.assert_allclose(steps, -1e-3 * vectors(gradient, single), rtol=1e-9, atol=1e-12)


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
        tolerance = 1e-12
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
    data = data_of(rows_of_users=ROWS_OF_USERS * 3)
    expected = vectors(statistic, data)
    monkeypatch.setattr(rows.os, "sched_getaffinity", lambda _: range(3), raising=False)
    for most, entries in ((1, 1000), (2, 1000), (None, 1)):
        monkeypatch.setattr(gradients, "chunks", lambda data, users, entries=entries: rows.chunks(data, users, entries))
        rows.limit_threads(most)
        np.testing.assert_array_equal(vectors(statistic, data), expected)


@every
def test_statistics_survive_pickling(statistic):
    data = data_of()
    again = pickle.loads(pickle.dumps(statistic))
    np.testing.assert_array_equal(vectors(again, data), vectors(statistic, data))


@every
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_check_passes(statistic, dtype):
    statistic.check(N_FEATURES, dtype)


@pytest.mark.parametrize("loss", [losses.squared, MULTINOMIAL], ids=name)
def test_what_passed_a_check_is_checked_again_at_other_weights(loss):
    fine = weights_of(loss)
    MeanGradient(loss, fine).check(N_FEATURES)
    MeanGradient(loss, fine / 2).check(N_FEATURES)
    with pytest.raises(ValueError, match="weights of length"):
        MeanGradient(loss, fine).check(N_FEATURES + 1)
    with pytest.raises(ValueError, match="finite"):
        MeanGradient(loss, np.full(fine.size, math.inf)).check(N_FEATURES)


def test_weights_that_are_too_large_are_refused_whatever_passed_before():
    n_features = 60
    MeanGradient(losses.squared, np.ones(n_features)).check(n_features)
    huge = 1e308 * np.sign(generated_data(n_features, np.float64).rows[0])
    with pytest.raises(ValueError, match="weights are too large"):
        MeanGradient(losses.squared, huge).check(n_features)


def test_a_loss_from_outside_is_run_at_every_check():
    asked = []

    def slope(prediction, target):
        asked.extend(prediction)
        return prediction - target

    loss = losses.Loss("own", slope, slope, slope_bound=1.0, curvature=1.0)
    for _ in range(2):
        before = len(asked)
        MeanGradient(loss, np.ones(N_FEATURES)).check(N_FEATURES)
        assert len(asked) >= before + len(generated_data(N_FEATURES, np.float64).rows)


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


def test_a_class_from_outside_is_tried_each_time_it_is_checked():
    """Kernels run once for each kind of gradient of this package; what another class does may depend on its numbers."""

    @dataclass(frozen=True, eq=False)
    class Halting(MeanGradient):
        halts: bool = False

        def vectors(self, data, users):
            if self.halts:
                raise RuntimeError("a mistake")
            return super().vectors(data, users)

    Halting(losses.logistic, np.zeros(3)).check(3)
    with pytest.raises(RuntimeError, match="a mistake"):
        Halting(losses.logistic, np.zeros(3), halts=True).check(3)


def test_a_statistic_keeps_its_own_weights():
    """What was checked is what is computed, whatever becomes of the caller's array."""
    weights = np.zeros(2)
    statistic = MeanGradient(losses.logistic, weights)
    weights[:] = 9.0
    np.testing.assert_array_equal(statistic.weights, np.zeros(2))
    with pytest.raises(ValueError, match="read-only"):
        statistic.weights[0] = 1.0
