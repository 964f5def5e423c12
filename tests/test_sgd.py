"""One-pass SGD of groups: the same as a naive loop, and each group by itself."""

import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from cases import CLASSIFICATION, DOMAINS, MULTINOMIAL, SCALAR_LOSSES, name, python_custom

from userdp import losses
from userdp.data.users import UserData
from userdp.domains import Ball, Box
from userdp.statistics import sgd
from userdp.statistics.sgd import OnePassSGD

WIDE = Ball(radius=1e6)


def make_data(n_users=30, n_features=3, dtype=np.float64, seed=0, most_rows=9):
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, most_rows, n_users)
    counts[:3] = 0, 1, most_rows
    rows = rng.normal(size=(counts.sum(), n_features)).astype(dtype)
    return UserData(rows, rng.integers(0, 2, len(rows)).astype(float), np.concatenate([[0], np.cumsum(counts)]))


def naive(statistic, data, users, n_groups):
    """Alg. 1, line 8, by definition; rows in mixed order."""
    loss, vectors = statistic.loss, []
    for group in np.array_split(users, n_groups):
        rows, targets = (np.concatenate(parts) for parts in zip(*map(data.rows_of, group), strict=True))
        rows = rows.astype(np.float64) if statistic.basis is None else rows.astype(np.float64) @ statistic.basis
        w, iterates = statistic.start, []
        for t, row in enumerate(np.argsort(sgd.mixing_order(len(rows)))):
            predictions = w.reshape(loss.n_outputs, -1) @ rows[row]
            slopes = np.atleast_1d(loss.slope(predictions if loss.n_outputs > 1 else predictions[0], targets[row]))
            step = statistic.step_size * (1 - t / len(rows) if statistic.decay else 1)
            penalty = 0.0 if statistic.penalty is None else statistic.penalty * w
            w = statistic.domain.project(w - step * (np.outer(slopes, rows[row]).ravel() + penalty))
            iterates.append(w)
        kept = iterates[min(math.floor(statistic.average_from * len(iterates)), len(iterates) - 1) :]
        vectors.append(np.mean(kept, axis=0) - statistic.start if kept else np.full(len(w), np.nan))
    return np.array(vectors)


@pytest.mark.parametrize("loss", SCALAR_LOSSES, ids=name)
@pytest.mark.parametrize("domain", [*DOMAINS, WIDE], ids=lambda d: f"{name(d)}{d.diameter:.3g}")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_it_equals_a_naive_loop(loss, domain, dtype):
    """Paper: Alg. 1, lines 6-8."""
    data = make_data(dtype=dtype)
    start = domain.project(np.array([0.3, -0.2, 1.0]))
    users = np.random.default_rng(1).permutation(30)[:25]
    basis = np.array([[1.0, 0.2, 0.0], [-0.3, 0.9, 0.1], [0.0, 0.4, 1.3]])
    for n_groups, options in (
        (1, (0.0, False)),
        (6, (0.0, True)),
        (7, (0.5, False, basis)),
        (25, (0.3, False)),
        (6, (1.0, True, basis)),
    ):
        statistic = OnePassSGD(loss, start, domain, 0.4, *options)
        tolerance = 1e-12 if dtype == np.float64 else 2e-5  # products and bases are in the rows' own type
        expected = naive(statistic, data, users, n_groups)
        np.testing.assert_allclose(statistic(data, users, n_groups), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "domain",
    [Ball(0.5), Ball(1.0, np.full(12, 0.1)), Box(np.full(12, -0.1), np.full(12, 0.2)), WIDE],
    ids=name,
)
def test_several_outputs_equal_a_naive_loop(domain):
    data = make_data()
    data = UserData(data.rows, np.arange(data.n_rows) % 4.0, data.offsets)
    basis = np.array([[1.0, 0.2, 0.0], [-0.3, 0.9, 0.1], [0.0, 0.4, 1.3]])
    for options in ((0.0, False), (1.0, True, basis)):
        statistic = OnePassSGD(MULTINOMIAL, domain.project(np.zeros(12)), domain, 0.4, *options)
        expected = naive(statistic, data, np.arange(30), 7)
        np.testing.assert_allclose(statistic(data, np.arange(30), 7), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("loss", [losses.logistic, losses.absolute, MULTINOMIAL, python_custom], ids=name)
@pytest.mark.parametrize("kind", ["small ball", "wide ball", "center", "box"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_penalised_steps_equal_a_naive_loop(loss, kind, dtype):
    size = 3 * loss.n_outputs
    center = np.linspace(-1, 1, size)
    domain = {
        "small ball": Ball(0.3),
        "wide ball": WIDE,
        "center": Ball(0.6, center),
        "box": Box(center - 0.3, center + 0.2),
    }[kind]
    data = make_data(dtype=dtype)
    basis = np.array([[1.0, 0.2, 0.0], [-0.3, 0.9, 0.1], [0.0, 0.4, 1.3]])
    penalty = np.tile([0.7, 0.2, 0.0], loss.n_outputs)
    tolerance = 1e-12 if dtype == np.float64 else 2e-5
    for options in ((0.0, False, None), (0.5, True, basis), (1.0, True, None)):
        statistic = OnePassSGD(loss, domain.project(np.full(size, 0.4)), domain, 0.4, *options, penalty)
        expected = naive(statistic, data, np.arange(30), 7)
        np.testing.assert_allclose(statistic(data, np.arange(30), 7), expected, rtol=tolerance, atol=tolerance)
        assert not np.allclose(expected, replace(statistic, penalty=None)(data, np.arange(30), 7), atol=1e-3)


def test_no_penalty_and_a_penalty_of_zeros_are_the_same():
    data = make_data()
    statistic = OnePassSGD(losses.logistic, np.full(3, 0.2), Ball(0.5), 0.4, 0.5, True)
    found, expected = (replace(statistic, penalty=p)(data, np.arange(30), 7) for p in (np.zeros(3), None))
    np.testing.assert_allclose(found, expected, rtol=1e-13)


@pytest.mark.parametrize("penalty", [[1.0, 1.0], [1.0, -0.1, 0.0], [1.0, 6.0, 0.0]])
def test_penalties_are_checked(penalty):
    with pytest.raises(ValueError, match=r"a penalty of 3 numbers >= 0.*step_size=0.1 times the largest is at most"):
        OnePassSGD(losses.logistic, np.zeros(3), WIDE, 0.1, penalty=np.array(penalty))


@pytest.mark.parametrize("n_rows", [0, 1, 2, 7, 1000])
def test_the_mixing_order_is_a_permutation_that_mixes(n_rows):
    order = sgd.mixing_order(n_rows)
    np.testing.assert_array_equal(np.sort(order), np.arange(n_rows))
    if n_rows == 1000:
        assert abs(np.corrcoef(order, np.arange(n_rows))[0, 1]) < 0.1
        assert np.abs(np.diff(order)).mean() > 200  # a third of the length for a random order
        np.testing.assert_array_equal(order, sgd.mixing_order(n_rows))


def test_one_gradient_a_row_exactly():
    """A pass computes as many slopes as there are rows: counted by a loss that counts."""
    calls = []

    def slope(prediction, target):
        calls.extend(target)
        return prediction - target

    loss = losses.custom("counting", slope, slope, lipschitz=1.0)
    calls.clear()
    data = make_data()
    OnePassSGD(loss, np.zeros(3), Ball(1.0), 0.1)(data, np.arange(30), 7)
    assert len(calls) == data.n_rows


def test_a_slope_that_raises_makes_its_group_nan():
    def slope(prediction, target):
        if np.any(target == 7.0):
            raise ValueError(str(target))
        return prediction

    data = make_data()
    targets = data.targets.copy()
    targets[data.offsets[2]] = 7.0
    vectors = OnePassSGD(losses.custom("raising", slope, slope, lipschitz=1.0), np.zeros(3), WIDE, 0.1)(
        UserData(data.rows, targets, data.offsets), np.arange(30), 5
    )
    np.testing.assert_array_equal(np.isnan(vectors).all(axis=1), [True, False, False, False, False])


def test_ctrl_c_in_a_slope_ends_it():
    def slope(prediction, target):
        if pressed:
            raise KeyboardInterrupt(str(target))
        return prediction

    pressed = []
    loss = losses.custom("interrupting", slope, slope, lipschitz=1.0)
    pressed.append(True)
    with pytest.raises(KeyboardInterrupt) as error:
        OnePassSGD(loss, np.zeros(3), WIDE, 0.1)(make_data(), np.arange(30), 5)
    assert not error.value.args


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


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("basis", [None, np.array([[1.0, 0.2, 0.0], [-0.3, 0.9, 0.1], [0.0, 0.4, 1.3]])])
@pytest.mark.parametrize("sparse", [False, True])
def test_a_group_takes_its_steps_whatever_groups_are_beside_it(dtype, basis, sparse, monkeypatch):
    """Bit for bit: alone, in a crowd, and with few or many lanes."""
    data, users = make_data(n_users=200, dtype=dtype), np.arange(200)
    if sparse:
        held = data.rows * (np.random.default_rng(0).random(data.rows.shape) < 0.5)
        owners = np.repeat(users, np.diff(data.offsets))
        data = UserData.from_arrays(sp.csr_array(held.astype(dtype)), data.targets, owners)
        users = np.arange(data.n_users)
    for average_from, penalty in ((0.25, None), (0.0, np.array([0.1, 0.0, 0.3]))):
        statistic = replace(STATISTIC, basis=basis, penalty=penalty, average_from=average_from)
        together = statistic(data, users, 60)
        alone = [statistic(data, group, 1)[0] for group in np.array_split(users, 60)]
        np.testing.assert_array_equal(together, alone)
        for entries in (1, 21):
            with monkeypatch.context() as patch:
                patch.setattr(sgd, "_LANE_ENTRIES", entries)
                np.testing.assert_array_equal(statistic(data, users, 60), together)


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
    return prediction * math.nan


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OnePassSGD(losses.logistic, np.zeros(3), WIDE, 0.0), "step_size"),
        (lambda: OnePassSGD(losses.logistic, np.zeros(3), WIDE, math.inf), "step_size"),
        (lambda: OnePassSGD(losses.logistic, np.zeros(3), WIDE, 0.1, 1.1), "average_from"),
        (lambda: OnePassSGD(losses.logistic, np.ones(3), Ball(0.1), 0.1), "inside the domain"),
        (lambda: OnePassSGD(MULTINOMIAL, np.zeros(3), WIDE, 0.1).check(3), "length 12"),
        (lambda: OnePassSGD(losses.logistic, np.zeros(3), WIDE, 0.1, basis=np.ones((3, 2))), "square basis"),
        (lambda: OnePassSGD(losses.logistic, np.zeros(3), WIDE, 0.1, basis=np.eye(2)).check(3), "basis of 3"),
        (lambda: OnePassSGD(losses.logistic, np.zeros(3), WIDE, 0.1, basis=np.full((3, 3), np.nan)), "finite"),
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

    with pytest.raises(TypeError, match="domain, a Ball or a Box, got Everywhere"):
        OnePassSGD(losses.logistic, np.zeros(3), Everywhere(), 0.1)


def test_groups_of_more_rows_than_the_window_equal_a_naive_loop():
    """Which is 64 rows of each."""
    rng = np.random.default_rng(5)
    rows = rng.normal(size=(2000, 1000)) / 30
    data = UserData(rows, rng.integers(0, 2, 2000).astype(float), np.array([0, 3, 1800, 1810, 2000]))
    statistic = OnePassSGD(losses.logistic, np.zeros(1000), Ball(0.5), 0.4, 0.5, True)
    np.testing.assert_allclose(statistic(data, np.arange(4), 2), naive(statistic, data, np.arange(4), 2), atol=1e-12)
