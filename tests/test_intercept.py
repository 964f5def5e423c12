"""The constant of an intercept is held nowhere: rows are used as they are, and all is as with a column of ones."""

import subprocess
import sys

import numpy as np
import pytest
from test_sparse import BASIS, STATISTICS, D

from userdp import Ball, Box, UserData, losses
from userdp.statistics.gradients import MeanGradient, RowWeights
from userdp.statistics.rows import Rows
from userdp.statistics.sgd import OnePassSGD

ROWS_OF_USERS = (3, 1, 0, 64, 65, 7, 2, 0, 130, 5)
TYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def held_and_written(dtype, n_features=D, seed=0, rows_of_users=ROWS_OF_USERS, hostile=False):
    """The same users with a constant that is held nowhere, and with a column of ones."""
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(rows_of_users)])
    rows = rng.normal(size=(offsets[-1], n_features)).astype(dtype)
    targets = rng.integers(0, 2, len(rows)).astype(float)
    if hostile:
        for row, value in ((0, np.nan), (5, np.inf), (70, -np.inf), (-1, np.finfo(dtype).max), (-8, 1e-30)):
            rows[row, row % n_features] = value
        targets[80] = np.nan
    written = np.column_stack([rows, np.ones(len(rows), dtype)])
    return UserData(rows, targets, offsets, has_intercept=True), UserData(written, targets, offsets)


def same(found, expected, dtype):
    """Up to rounding, in the rows' own type: two code paths."""
    room = 1e-5 if dtype == np.float32 else 1e-11
    np.testing.assert_allclose(found, expected, rtol=room, atol=room)


@pytest.mark.parametrize("statistic", STATISTICS)
@TYPES
@pytest.mark.parametrize("hostile", [False, True], ids=["plain", "hostile"])
def test_every_statistic_is_that_of_a_column_of_ones(statistic, dtype, hostile):
    if dtype == np.float32 and getattr(statistic, "smoothing", None):
        pytest.skip("draws are made of predictions' last digits")
    with np.errstate(all="ignore"):
        found, expected = (
            statistic(data, np.arange(data.n_users), data.n_users) for data in held_and_written(dtype, hostile=hostile)
        )
        same(found, expected, dtype)


@pytest.mark.parametrize("n_features", [1, 8, 31, 33, 64])
@TYPES
def test_a_users_gradient_is_the_same_to_the_last_bit_whatever_others_hold(n_features, dtype):
    """One code path on the same rows: what privacy rests on, on every processor."""
    rng = np.random.default_rng(n_features)
    data, others = held_and_written(dtype, n_features)[0], np.delete(np.arange(10), 4)
    for loss in (losses.logistic, losses.multinomial(3)):
        statistic = MeanGradient(loss, rng.normal(size=loss.n_outputs * (n_features + 1)))
        expected = statistic(data, np.arange(10), 10)
        for value in (np.nan, np.finfo(dtype).max, 0.5):
            rows = data.rows.copy()
            rows[data.offsets[4] : data.offsets[5]] = value
            found = statistic(UserData(rows, data.targets, data.offsets, has_intercept=True), np.arange(10), 10)
            np.testing.assert_array_equal(found[others], expected[others])
        np.testing.assert_array_equal(statistic(data, others, 9), expected[others])


@pytest.mark.parametrize("kind", ["ball", "center", "box"])
@pytest.mark.parametrize("basis", [None, BASIS], ids=["plain", "basis"])
@TYPES
def test_one_pass_is_that_of_a_column_of_ones(kind, basis, dtype):
    corner, center = np.full(D + 1, 0.1), np.linspace(-1, 1, D + 1)
    domain = {"ball": Ball(0.4), "center": Ball(0.7, center), "box": Box(-corner, corner)}[kind]
    statistic = OnePassSGD(losses.logistic, domain.project(np.zeros(D + 1)), domain, 0.3, 0.5, True, basis)
    found, expected = (statistic(data, np.arange(10), 3) for data in held_and_written(dtype))
    np.testing.assert_allclose(found, expected, rtol=1e-5 if dtype == np.float32 else 1e-11, atol=1e-12)


@TYPES
def test_lengths_of_rows(dtype):
    held, written = held_and_written(dtype)
    for basis in (BASIS, np.linspace(1, 2, D + 1), BASIS[:, :3]):
        found, expected = (RowWeights(basis, 1.0).lengths(Rows(data, np.arange(10))) for data in (held, written))
        np.testing.assert_allclose(found, expected, rtol=1e-5)


@TYPES
def test_parts_and_copies_keep_the_constant(dtype):
    held, written = held_and_written(dtype)
    assert held.n_features == written.n_features == D + 1
    np.testing.assert_array_equal(held.dense(), written.rows)
    assert held.dense().dtype == dtype
    for change in (
        lambda data: data.part(3, 6),
        lambda data: data.taken(np.array([8, 3, 2])),
        lambda data: UserData.joined([data.part(0, 4), data.part(4, 10)]),
    ):
        np.testing.assert_array_equal(change(held).dense(), change(written).rows)
    np.testing.assert_array_equal(held.rows_of(4)[0], written.rows_of(4)[0])
    with pytest.raises(ValueError, match="read-only"):
        held.rows_of(4)[0][:] = 0.0


# --- without a copy ---------------------------------------------------------------------------------------------------


@TYPES
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_rows_in_order_are_used_as_they_are(dtype, fit_intercept):
    X, y = np.ones((6, 2), dtype), np.zeros(6)
    data = UserData.from_arrays(X, y, [3, 3, 1, 1, 1, 2], fit_intercept=fit_intercept)
    assert np.shares_memory(data.rows, X)
    assert np.shares_memory(data.targets, y)
    assert X.flags.writeable


@pytest.mark.parametrize("given", ["C", "F"])
@TYPES
def test_large_gathers_are_those_of_small_ones(given, dtype, monkeypatch):
    rng = np.random.default_rng(0)
    X, users = np.asarray(rng.normal(size=(30_000, 3)), order=given), rng.integers(0, 500, 30_000)
    for cap in (None, 20):
        options = {"max_rows_per_user": cap, "insecure_seed": 0, "dtype": dtype}
        alone = UserData.from_arrays(X, None, users, **options)
        with monkeypatch.context() as changed:
            changed.setattr("userdp.data.groups._THREADING_PAYS", 0)
            np.testing.assert_array_equal(UserData.from_arrays(X, None, users, **options).rows, alone.rows)


_CHILD = """
import resource, sys
import numpy as np
from userdp import LogisticRegression

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

def fit(n_users):
    users = np.repeat(np.arange(n_users), 20)
    rng = np.random.default_rng(0)
    X = rng.random((len(users), 50), dtype=np.float32)
    y = rng.random(len(users)) < 0.5
    before = peak()
    LogisticRegression(1.0, 1e-8, max_rows_per_user=20).fit(X, y, groups=users)
    return (peak() - before) / (X.nbytes + y.nbytes + users.nbytes)

fit(1000)
print(fit(40_000))
"""


@pytest.mark.slow
def test_a_default_fit_needs_a_tenth_of_the_data_beside_it():
    """In a process of its own, which has compiled before. A copy of the rows would be seven tenths or more."""
    told = subprocess.run([sys.executable, "-c", _CHILD], capture_output=True, text=True, check=True).stdout
    assert float(told) < 0.15
