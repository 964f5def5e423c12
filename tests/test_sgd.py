"""One-pass SGD of groups: the same as a naive loop, and each group by itself."""

import math
import pickle

import numba
import numpy as np
import pytest
from cases import CLASSIFICATION, DOMAINS, MULTINOMIAL, SCALAR_LOSSES, name, python_custom

from userdp import kernels, losses
from userdp.data import UserData
from userdp.domains import Ball
from userdp.statistics import OnePassSGD

COMPILED = [loss for loss in SCALAR_LOSSES if loss is not python_custom]
WIDE = Ball(radius=1e6)


def make_data(n_users=30, n_features=3, dtype=np.float64, seed=0, most_rows=9):
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, most_rows, n_users)
    counts[:3] = 0, 1, most_rows
    rows = rng.normal(size=(counts.sum(), n_features)).astype(dtype)
    return UserData(rows, rng.integers(0, 2, len(rows)).astype(float), np.concatenate([[0], np.cumsum(counts)]))


def naive(statistic, data, users, n_groups):
    """Alg. 1, line 8, by definition."""
    vectors = []
    for group in np.array_split(users, n_groups):
        w, iterates = statistic.start, []
        for user in group:
            for x, y in zip(*data.rows_of(user), strict=True):
                x = x.astype(np.float64)
                w = statistic.domain.project(w - statistic.step_size * statistic.loss.slope(float(w @ x), y) * x)
                iterates.append(w)
        kept = iterates[math.floor(statistic.average_from * len(iterates)) :]
        vectors.append(np.mean(kept, axis=0) - statistic.start if kept else np.full(len(w), np.nan))
    return np.array(vectors)


@pytest.mark.parametrize("loss", COMPILED, ids=name)
@pytest.mark.parametrize("domain", [*DOMAINS, WIDE], ids=lambda d: f"{name(d)}{d.diameter:.3g}")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_it_equals_a_naive_loop(loss, domain, dtype):
    data = make_data(dtype=dtype)
    start = domain.project(np.array([0.3, -0.2, 1.0]))
    users = np.random.default_rng(1).permutation(30)[:25]
    for n_groups, average_from in ((1, 0.0), (6, 0.0), (7, 0.5), (25, 0.3)):
        statistic = OnePassSGD(loss, start, domain, 0.4, average_from)
        tolerance = 1e-12 if dtype == np.float64 else 1e-5  # |x|^2 is summed in the rows' own type
        expected = naive(statistic, data, users, n_groups)
        np.testing.assert_allclose(statistic(data, users, n_groups), expected, rtol=tolerance, atol=tolerance)


STATISTIC = OnePassSGD(losses.logistic, np.array([0.1, 0.0, -0.1]), Ball(0.7), 0.5, 0.25)


@pytest.mark.parametrize("n_groups", [4, 9, 30])
@pytest.mark.parametrize("value", [0.5, np.nan, np.inf, 1e300])
def test_a_user_changes_its_own_group_only_bit_for_bit(n_groups, value):
    data, users = make_data(), np.arange(30)
    before = STATISTIC(data, users, n_groups)
    for user in (2, 11, 29):
        rows = data.rows.copy()
        rows[data.offsets[user] : data.offsets[user + 1]] = value
        after = STATISTIC(UserData(rows, data.targets, data.offsets), users, n_groups)
        own = next(j for j, group in enumerate(np.array_split(users, n_groups)) if user in group)
        changed = np.any(before.view(np.int64) != after.view(np.int64), axis=1)
        assert set(np.flatnonzero(changed)) <= {own}


def test_the_number_of_rows_of_a_user_does_not_reach_other_groups():
    data, users = make_data(), np.arange(30)
    shorter = np.delete(np.arange(data.n_rows), data.offsets[2])
    offsets = data.offsets - (np.arange(31) > 2)
    other = UserData(data.rows[shorter], data.targets[shorter], offsets)
    same = STATISTIC(data, users, 10).view(np.int64) == STATISTIC(other, users, 10).view(np.int64)
    assert np.all(same[1:])
    assert not np.all(same[0])


def test_groups_without_rows_are_nan():
    data = UserData(np.ones((1, 3)), np.ones(1), np.array([0, 0, 1, 1]))
    vectors = STATISTIC(data, np.arange(3), 3)
    assert np.isnan(vectors[[0, 2]]).all()
    assert np.isfinite(vectors[1]).all()


def test_results_do_not_depend_on_threads_or_chunks(monkeypatch):
    data, users = make_data(n_users=200), np.arange(200)
    once = STATISTIC(data, users, 60)
    monkeypatch.setattr(kernels, "_THREADING_PAYS", 0)
    for threads, chunk in ((2, 7), (1, 1), (2, 1)):
        monkeypatch.setattr(kernels, "_CHUNK_USERS", chunk)
        numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
        np.testing.assert_array_equal(STATISTIC(data, users, 60), once)
    numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)


def test_long_walks_along_the_border_stay_inside():
    """The tracked norm does not drift: 20,000 steps that push outwards end on the ball."""
    rng = np.random.default_rng(3)
    rows = rng.normal(1.0, 1.0, (20_000, 5)).astype(np.float32)
    data = UserData(rows, np.ones(20_000), np.array([0, 10_000, 20_000]))
    statistic = OnePassSGD(losses.squared, np.zeros(5), Ball(0.01), 0.1, average_from=0.9999)
    (vector,) = statistic(data, np.arange(2), 1)
    assert np.linalg.norm(vector) <= 0.01 * (1 + 1e-6)


def test_it_survives_pickling_and_its_own_check():
    again = pickle.loads(pickle.dumps(STATISTIC))
    data = make_data()
    np.testing.assert_array_equal(again(data, np.arange(30), 5), STATISTIC(data, np.arange(30), 5))
    for dtype in (np.float32, np.float64):
        STATISTIC.check(3, dtype)


def never_finite(prediction, target):
    return math.nan


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OnePassSGD(losses.logistic, np.zeros(3), WIDE, 0.0), "step_size"),
        (lambda: OnePassSGD(losses.logistic, np.zeros(3), WIDE, math.inf), "step_size"),
        (lambda: OnePassSGD(losses.logistic, np.zeros(3), WIDE, 0.1, 1.0), "average_from"),
        (lambda: OnePassSGD(losses.logistic, np.ones(3), Ball(0.1), 0.1), "inside the domain"),
        (lambda: OnePassSGD(MULTINOMIAL, np.zeros(12), WIDE, 0.1), "one output"),
        (lambda: OnePassSGD(python_custom, np.zeros(3), WIDE, 0.1), "compiled loss"),
        (lambda: STATISTIC.check(5), "length 5"),
        (lambda: STATISTIC(make_data(), np.arange(30), 31), "n_groups=31"),
        (lambda: STATISTIC(make_data(), np.arange(30), 0), "n_groups=0"),
        (lambda: STATISTIC(make_data(), np.array([99]), 1), "user indices"),
        (
            lambda: OnePassSGD(
                losses.custom("bad", never_finite, never_finite, lipschitz=1.0), np.zeros(3), WIDE, 1.0
            ).check(3),
            "finite steps",
        ),
    ],
)
def test_errors_are_clear(make, message):
    with pytest.raises((ValueError, IndexError), match=message):
        make()


@pytest.mark.parametrize("given", ["logistic", None])
def test_a_loss_must_be_a_loss(given):
    with pytest.raises(TypeError, match=rf"^Expected a Loss, got {type(given).__name__}: use userdp\.losses\.loss"):
        OnePassSGD(given, np.zeros(3), WIDE, 0.1)


@pytest.mark.parametrize("loss", CLASSIFICATION, ids=name)
def test_a_group_with_a_label_that_is_no_class_is_nan(loss):
    targets = make_data().targets.copy()
    targets[make_data().offsets[2]] = 2.0
    data = UserData(make_data().rows, targets, make_data().offsets)
    vectors = OnePassSGD(loss, np.zeros(3), Ball(0.7), 0.5)(data, np.arange(30), 5)
    np.testing.assert_array_equal(np.isnan(vectors).all(axis=1), [True, False, False, False, False])


def test_unknown_domains_are_refused():
    class Everywhere:
        diameter = math.inf

        def contains(self, w):
            return True

    with pytest.raises(TypeError, match="Ball or a Box"):
        OnePassSGD(losses.logistic, np.zeros(3), Everywhere(), 0.1)(make_data(), np.arange(30), 3)


@pytest.mark.parametrize("loss", [losses.logistic, losses.huber(0.5)], ids=name)
def test_lemma_2_independent_runs_end_close_together(loss):
    """Paper: Lemma 2, with an explicit constant: distance <= 4 eta L sqrt(2 T ln(2/zeta)) with probability 1 - zeta."""
    n_steps, n_groups, zeta = 100, 400, 1e-3
    rng = np.random.default_rng(4)
    rows = rng.normal(size=(n_steps * n_groups, 10))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    targets = (rows[:, 0] + 0.3 * rng.normal(size=len(rows)) > 0).astype(float)
    data = UserData(rows, targets, np.arange(0, len(rows) + 1, n_steps))
    step_size = 1 / loss.smoothness(1.0)
    ends = OnePassSGD(loss, np.zeros(10), Ball(20.0), step_size)(data, np.arange(n_groups), n_groups)
    distances = np.linalg.norm(ends[: n_groups // 2] - ends[n_groups // 2 :], axis=1)
    bound = 4 * step_size * loss.lipschitz(1.0) * math.sqrt(2 * n_steps * math.log(2 / zeta))
    assert np.all(distances <= bound)
    assert distances.max() > bound / 100, "the bound is of the right order"
