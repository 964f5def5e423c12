"""Rows with missing or infinite cells, or targets that make no sense: left out, and their owners counted."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse
from cases import python_custom
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from support_statistics import N_FEATURES, data_of, vectors

import userdp
from userdp import UserData, losses
from userdp.data import store as stores
from userdp.engines import LocalEngine
from userdp.models.files import load_model, model_of, save_model
from userdp.models.sklearn_compat import UtilityWarning
from userdp.privacy.clip import ClippedTotal
from userdp.privacy.statement import Statement
from userdp.statistics.gradients import N_SIZES, ClippedGradient, MeanGradient

ROWS = np.array([[1.0, 2.0], [math.nan, 4.0], [5.0, 6.0], [7.0, -math.inf], [9.0, 10.0], [11.0, 12.0]])
TARGETS, USERS = np.array([0.0, 1.0, 1.0, 0.0, math.nan, 1.0]), ["a", "a", "b", "c", "c", "b"]


def of_arrays(**options):
    return UserData.from_arrays(ROWS, TARGETS, USERS, keep_user_ids=True, **options)


def test_rows_are_left_out_and_not_their_owners():
    data = of_arrays()
    np.testing.assert_array_equal(data.rows, [[1, 2], [5, 6], [11, 12]])
    np.testing.assert_array_equal(data.targets, [0, 1, 1])
    np.testing.assert_array_equal(data.offsets, [0, 1, 3, 3])
    np.testing.assert_array_equal(data.affected, [True, False, True])
    assert data.user_ids == ("a", "b", "c")
    np.testing.assert_array_equal(of_arrays(fill_missing=0.0).affected, [False, False, True])


def test_without_targets_nothing_is_left_out_for_them():
    np.testing.assert_array_equal(np.diff(UserData.from_arrays(ROWS, None, USERS).offsets), [1, 2, 1])


def test_numbers_that_the_kept_type_cannot_hold_are_infinite():
    data = UserData.from_arrays(np.array([[1e300], [1.0]]), None, [0, 1], dtype="float32")
    np.testing.assert_array_equal(data.affected, [True, False])


def test_the_cap_chooses_among_rows_that_are_left():
    """Of a user with 3 rows that can be used among 50, a cap of 3 keeps these."""
    X = np.full((100, 1), math.nan)
    X[[3, 20, 49]], X[50:] = 1.0, 2.0
    data = UserData.from_arrays(X, None, np.repeat([0, 1], 50), max_rows_per_user=3)
    np.testing.assert_array_equal(data.rows[:, 0], [1, 1, 1, 2, 2, 2])
    np.testing.assert_array_equal(data.affected, [True, False])


def containers(X, y, users, tmp_path, **options):
    """The same table in all ways in."""
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    options |= {"keep_user_ids": True}
    names = [f"x{k}" for k in range(X.shape[1])]
    frame = pd.DataFrame(X, columns=names).assign(y=y, who=users)
    arrow = pa.Table.from_pandas(frame, preserve_index=False)
    pq.write_table(arrow, tmp_path / "visits.parquet", row_group_size=50)
    columns = {"user": "who", "target": "y", "features": names}
    yield "array", UserData.from_arrays(X, y, users, **options)
    yield "Fortran order", UserData.from_arrays(np.asfortranarray(X), y, users, **options)
    entries = scipy.sparse.csr_array(np.where(np.isnan(X), 1.0, X))
    entries.data[np.isnan(X).ravel()[np.flatnonzero(np.where(np.isnan(X), 1.0, X))]] = np.nan
    yield "sparse", UserData.from_arrays(entries, y, users, **options)
    for name, table in (("pandas", frame), ("polars", pl.from_pandas(frame)), ("Arrow", arrow)):
        yield name, UserData.from_table(table, **columns, **options)
    yield "Parquet", UserData.from_parquet(tmp_path / "visits.parquet", **columns, **options)
    stored = {"memory_limit": "100MB", "store": tmp_path / "store"}
    yield "store", UserData.from_parquet(tmp_path / "visits.parquet", **columns, **stored, **options)


@pytest.mark.parametrize("options", [{}, {"max_rows_per_user": 4}, {"fill_missing": 0.5}], ids=["all", "cap", "fill"])
def test_all_containers_leave_out_the_same_rows(options, tmp_path, monkeypatch):
    monkeypatch.setattr(stores, "_rows_at_a_time", lambda limit, request: 7)  # most users are in several batches
    rng = np.random.default_rng(0)
    users, X = rng.integers(0, 60, 500), rng.normal(size=(500, 3))
    y = rng.normal(size=500)
    X[rng.random(X.shape) < 0.05], X[rng.random(X.shape) < 0.01], y[rng.random(500) < 0.03] = np.nan, np.inf, np.nan
    X[users == users[0]] = np.inf  # of whom nothing is left
    usable = np.isfinite(y) & (~np.isinf(X) if "fill_missing" in options else np.isfinite(X)).all(axis=1)
    for name, data in containers(X, y, users, tmp_path, **options):
        assert data.n_users == len(set(users)), name
        for number, user in enumerate(data.user_ids):
            mine = usable[users == user]
            rows, targets = data.rows_of(number)
            assert len(rows) == min(mine.sum(), options.get("max_rows_per_user", 500)), name
            assert data.affected[number] == (not mine.all()), name
            expected = np.where(np.isnan(X), 0.5, X)[users == user][mine]
            if "max_rows_per_user" not in options:
                np.testing.assert_array_equal(rows, expected, err_msg=name)
            assert set(targets) <= set(y[users == user][mine]), name
            assert np.all(np.isfinite(rows)), name


def test_a_store_of_which_no_row_is_left_opens_again(tmp_path):
    pq.write_table(pa.table({"who": [1, 1, 2], "x": [math.nan, math.inf, None], "y": [1.0, 2.0, 3.0]}), tmp_path / "t")
    for _ in range(2):
        data = UserData.from_parquet(
            tmp_path / "t", user="who", features="x", target="y", memory_limit="64MB", store=tmp_path / "store"
        )
        assert (data.n_users, data.n_rows) == (2, 0)
        np.testing.assert_array_equal(data.affected, [True, True])
        assert np.all(np.isfinite(vectors(ClippedGradient(MeanGradient(losses.squared, [1.0]), 1.0, 1.0, 0.3), data)))


hostile = st.sampled_from([0.0, -1.5, 1e308, 5e-324, math.nan, math.inf, -math.inf])


@given(X=arrays.arrays(np.float64, (12, 2), elements=hostile), more=arrays.arrays(np.float64, (3, 2), elements=hostile))
def test_what_is_left_of_a_user_is_a_matter_of_that_user_alone(X, more):
    users, y = np.array([0, 1, 2, 3] * 3), np.where(X[:, 1] == 0, math.nan, 1.0)
    data = UserData.from_arrays(X, y, users)
    other = np.where((users == 2)[:, None], np.repeat(more, 4, axis=0), X)
    for neighbour in (
        UserData.from_arrays(other, y, users),
        UserData.from_arrays(scipy.sparse.csr_array(other), y, users),
    ):
        assert neighbour.n_users == data.n_users
        for user in (0, 1, 3):
            for one, another in zip(data.rows_of(user), neighbour.rows_of(user), strict=True):
                np.testing.assert_array_equal(one, another)
            assert data.affected[user] == neighbour.affected[user]


def test_flags_go_where_their_users_go():
    data = replace(data_of(), affected=np.arange(data_of().n_users) % 3 == 1)
    assert data.part(1, 4).affected.tolist() == data.affected[1:4].tolist()
    some = np.array([4, 1, 3])
    assert data.taken(some).affected.tolist() == data.affected[some].tolist()
    assert data.taken(np.array([4])).affected.tolist() == [bool(data.affected[4]), False]
    joined = UserData.joined([data.part(0, 4), data.part(4, data.n_users)])
    np.testing.assert_array_equal(joined.affected, data.affected)
    with pytest.raises(ValueError, match="affected"):
        replace(data, affected=np.zeros(2, dtype=bool))


# --- marks ------------------------------------------------------------------------------------------------------------


def sparse_of(data):
    rows = UserData.from_arrays(scipy.sparse.csr_array(data.rows), data.targets, np.arange(data.n_rows)).rows
    return replace(data, rows=rows)


DIRECTIONS = np.linalg.qr(np.random.default_rng(2).normal(size=(N_FEATURES, 2)))[0]


@pytest.mark.parametrize("directions", [None, DIRECTIONS], ids=["all", "few"])
@pytest.mark.parametrize("loss", [losses.logistic, python_custom], ids=["compiled", "Python"])
@pytest.mark.parametrize("sparse", [False, True])
def test_affected_users_share_a_mark_between_their_size_and_the_indicator(loss, directions, sparse):
    clean = data_of()
    flags = np.arange(clean.n_users) % 2 == 0  # the third has no rows
    statistic = ClippedGradient(MeanGradient(loss, np.full(N_FEATURES, 0.3)), 0.5, 3.0, 0.2, directions)
    made = [sparse_of(d) if sparse else d for d in (clean, replace(clean, affected=flags))]
    before, after = (vectors(statistic, data) for data in made)
    kept = before.shape[1] - N_SIZES - 1
    np.testing.assert_allclose(after[:, :kept], before[:, :kept], atol=1e-15)
    expected = before[:, kept:].copy()
    expected[flags, :-1] *= 0.8
    expected[flags, -1] = 0.6 * 0.2
    np.testing.assert_allclose(after[:, kept:], expected, atol=1e-15)
    assert np.linalg.norm(after, axis=1).max() <= statistic.radius * (1 + 1e-12)
    contribution = ClippedTotal(statistic.radius, 40, 1024, laplace=False)
    total = LocalEngine().total(statistic, contribution, made[1], np.arange(clean.n_users))
    np.testing.assert_array_equal(total, contribution(after))  # where vectors are added up and never held


# --- fits -------------------------------------------------------------------------------------------------------------


def visits(n_users=10_000, rows=5, seed=0):
    """Classes of a logistic model, 22% of whose users miss a fifth of their cells."""
    rng = np.random.default_rng(seed)
    users, X = np.repeat(np.arange(n_users), rows), rng.uniform(-1, 1, (n_users * rows, 4))
    y = rng.random(len(X)) < 1 / (1 + np.exp(-(1.66 + 2 * X[:, 0] - X[:, 1])))
    some = np.repeat(rng.random(n_users) < 0.22, rows)
    missing = some[:, None] & (rng.random(X.shape) < 0.2)
    return users, X, y, missing


def told(fit):
    """A fitted model, and the warnings about its use."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", UtilityWarning)
        model = fit()
    return model, [str(one.message) for one in found]


def test_missing_cells_cost_their_rows_alone_and_are_told_of():
    users, X, y, missing = visits()
    model = userdp.LogisticRegression(2.0, 1e-6, max_rows_per_user=5, insecure_seed=1)
    complete, silent = told(lambda: model.fit(X, y, groups=users))
    plain = complete.intercept_[0], complete.coef_[0]
    assert silent == []
    assert complete.privacy_.affected_users.low == 0
    fitted, messages = told(lambda: model.fit(np.where(missing, np.nan, X), y, groups=users))
    affected = np.mean(np.bincount(users, missing.any(axis=1)) > 0)
    found = fitted.result_.affected_users
    assert abs(found.estimate - affected) < 2.2 * (found.high - found.low) / 2
    assert 0.15 < found.low < affected < found.high < 0.25
    assert messages == [str(found)]
    assert messages[0].startswith("About 2")
    assert abs(fitted.intercept_[0] - plain[0]) < 0.15
    np.testing.assert_allclose(fitted.coef_[0], plain[1], atol=0.25)
    assert str(found) in str(fitted.privacy_)


@pytest.mark.parametrize("whole", [False, True], ids=["cells", "all of a user"])
def test_most_users_may_be_affected(whole):
    users, X, y, _ = visits(6000)
    rng = np.random.default_rng(1)
    missing = np.repeat(rng.random(6000) < 0.7, 5) if whole else rng.random(len(X)) < 0.3
    X[missing, 0] = np.inf
    model = userdp.LogisticRegression(4.0, 1e-6, max_rows_per_user=5, insecure_seed=1)
    fitted, messages = told(lambda: model.fit(X, y, groups=users))
    assert not fitted.aborted_
    assert messages == [str(fitted.privacy_.affected_users)]
    assert fitted.privacy_.affected_users.estimate == pytest.approx(0.7 if whole else 1 - 0.7**5, abs=0.03)
    assert abs(fitted.intercept_[0] - 1.66) < 0.25
    assert abs(fitted.coef_[0, 0] - 2) < 0.4


def test_without_any_row_there_is_a_model_of_noise_and_a_warning():
    users, X, y, _ = visits(2000)
    model = userdp.LogisticRegression(2.0, 1e-6, max_rows_per_user=5, insecure_seed=1)
    fitted, messages = told(lambda: model.fit(np.full_like(X, np.nan), y, groups=users))
    assert np.all(np.isfinite(fitted.coef_))
    assert any("of the users (95% interval" in message for message in messages)


ESTIMATORS = {
    "logistic": lambda: userdp.LogisticRegression(2.0, max_rows_per_user=5, classes=[0, 1], insecure_seed=1),
    "linear": lambda: userdp.LinearRegression(2.0, max_rows_per_user=5, target_range=(-1, 2), insecure_seed=1),
    "poisson": lambda: userdp.PoissonRegressor(2.0, max_rows_per_user=5, max_count=3, insecure_seed=1),
}


@pytest.mark.parametrize("make", ESTIMATORS.values(), ids=ESTIMATORS)
def test_targets_that_make_no_sense_cost_their_rows_however_users_are_passed(make):
    users, X, y, missing = visits(3000)
    targets = np.where(missing.any(axis=1), np.nan, y.astype(np.float64))
    targets[::97] = np.inf
    truth = np.mean(np.bincount(users, ~np.isfinite(targets)) > 0)
    one, _ = told(lambda: make().fit(X, targets, groups=users))
    grouped = UserData.from_arrays(X, np.nan_to_num(targets, nan=7.5, posinf=7.5), users, fit_intercept=True)
    if one._classifies:  # of numbers 7.5 is one
        another, _ = told(lambda: make().fit_users(grouped))
        np.testing.assert_allclose(another.coef_, one.coef_, atol=1e-9)
    another, _ = told(lambda: make().fit_users(UserData.from_arrays(X, targets, users, fit_intercept=True)))
    np.testing.assert_allclose(another.coef_, one.coef_, atol=1e-9)
    for found in (one.privacy_.affected_users, another.privacy_.affected_users):
        assert found.low - 0.02 < truth < found.high + 0.02


def test_columns_that_are_learned_keep_users_without_a_usable_target():
    users, X, y, _ = visits(4000)
    targets = np.where(users % 5 == 0, np.nan, y.astype(np.float64))
    table = {"a": 10 * X[:, 0], "b": X[:, 1]}
    columns = userdp.Columns(a=userdp.Number(range="private"), b=userdp.Number(-1, 1))
    model = userdp.LogisticRegression(8.0, max_rows_per_user=5, columns=columns, classes=[0, 1], insecure_seed=1)
    fitted, messages = told(lambda: model.fit(table, targets, groups=users))
    assert fitted.privacy_.n_users == 4000
    assert fitted.privacy_.affected_users.low < 0.2 < fitted.privacy_.affected_users.high
    assert len(messages) == 1
    assert 10 * fitted.coef_[0, 0] > 0


def test_scores_of_people_of_whom_nothing_is_left_are_the_worst():
    users, X, y, _ = visits(4000)
    lost = users % 2 == 0
    settings = {"max_rows_per_user": 5, "insecure_seed": 1, "allow_weak": True}
    model = userdp.LogisticRegression(20.0, 1e-4, **settings, evaluate=0.5)
    fitted, _ = told(lambda: model.fit(np.where(lost[:, None], np.nan, X), y, groups=users))
    assert 1.9 < fitted.scores_.scores["log_loss"].value < 2.5  # 4 of half of the people, about 0.4 of the others


def test_the_count_is_kept_in_files_and_older_files_load(tmp_path):
    users, X, y, missing = visits(3000)
    model = userdp.LogisticRegression(2.0, max_rows_per_user=5, insecure_seed=1)
    fitted, _ = told(lambda: model.fit(np.where(missing, np.nan, X), y, groups=users))
    found = load_model(save_model(fitted, tmp_path / "model.json"))
    assert found.result_.affected_users == found.privacy_.affected_users == fitted.result_.affected_users
    record = json.loads((tmp_path / "model.json").read_text())
    for wrong in ([0.1, 0.2, 0.3], [0.1, 0.0, 2.0], [0.1], ["a", "b", "c"], 3):
        record["privacy"]["affected_users"] = wrong
        with pytest.raises(ValueError, match="damaged"):
            model_of(record)
    del record["privacy"]["affected_users"]
    assert model_of(record).privacy_.affected_users is None
    assert Statement.from_dict(record["privacy"]).affected_users is None


def test_the_summary_tells_of_rows_that_were_left_out():
    users, X, y, missing = visits(4000)
    model = userdp.LogisticRegression(8.0, max_rows_per_user=5, inference=True, insecure_seed=1)
    fitted, _ = told(lambda: model.fit(np.where(missing, np.nan, X), y, groups=users))
    assert str(fitted.privacy_.affected_users) in " ".join(str(fitted.summary()).split())


def test_the_private_mean_is_of_the_rows_that_are_left():
    rng = np.random.default_rng(0)
    users, values = np.repeat(np.arange(3000), 10), rng.normal(5.0, 1.0, 30_000)
    values[::9] = np.where(rng.random(len(values[::9])) < 0.5, np.nan, np.inf)  # of everyone
    found = userdp.private_mean(values, users, epsilon=1.0, delta=1e-6, insecure_seed=1)
    assert abs(found.mean[0] - 5.0) < 0.1
