"""UserData: grouping is right for every kind of id and table, errors are clear, and nothing private is shown."""

from __future__ import annotations

import datetime
import math
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support_data import grouped

from userdp.data.users import UserData


def by_user(data: UserData) -> list[list[float]]:
    return [data.rows_of(u)[0][:, 0].tolist() for u in range(data.n_users)]


@given(st.lists(st.integers(0, 6), min_size=2, max_size=60).filter(lambda ids: len(set(ids)) > 1))
def test_grouping_keeps_every_row_with_its_user_in_order(ids):
    expected = {u: [2.0 * i for i, v in enumerate(ids) if v == u] for u in dict.fromkeys(ids)}
    for kind in (list, np.array, lambda ids: np.array(ids, dtype="U3"), lambda ids: pa.array(ids)):
        data = grouped(kind(ids), keep_user_ids=True)
        assert by_user(data) == list(expected.values())
        assert [str(u) for u in data.user_ids] == [str(u) for u in expected]
        assert all(np.array_equal(data.rows_of(u)[0][:, 0], 2 * data.rows_of(u)[1]) for u in range(data.n_users))


day = datetime.datetime(2024, 2, 28, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    "ids",
    [
        ["a", "b", "a", "c"],
        [1, "1", 1, 2.5],
        [("a", 1), ("a", 2), ("a", 1), ("b", 1)],
        [1.5, -0.0, 1.5, 7.0],
        [day, day.replace(day=1), day, day.replace(year=2025)],
        np.array(["2024-01-01", "2024-01-02", "2024-01-01", "2025-01-01"], dtype="datetime64[D]"),
        [True, False, True, "x"],
        [frozenset({1}), b"b", frozenset({1}), "c"],
        np.array([2**63, 1, 2**63, 2], dtype=np.uint64),
        pa.array(["a", "b", "a", "c"]).dictionary_encode(),
        pa.chunked_array([["a", "b"], ["a", "c"]]),
        pa.array([day, day.replace(day=1), day, day.replace(year=2025)]),
        pa.array([0.5, 0.25, 0.5, 8.0]),
    ],
    ids=lambda ids: type(ids).__name__,
)
def test_ids_of_any_type(ids):
    assert by_user(grouped(ids)) == [[0.0, 4.0], [2.0], [6.0]]


def test_ids_that_python_calls_equal_are_one_user():
    assert grouped([1, 1.0, True, "1", 0.0, -0.0]).n_users == 3
    assert grouped(np.array([0.0, 1.0, -0.0])).n_users == 2
    assert grouped(pa.array([0.0, 1.0, -0.0])).n_users == 2


@pytest.mark.parametrize(
    "ids",
    [
        [1.0, math.nan, 2.0],
        np.array([1.0, math.nan, 2.0]),
        ["a", None, "b"],
        [("a", math.nan), ("a", 1), "b"],
        np.array(["2024", "NaT", "2025"], dtype="datetime64[Y]"),
        pa.array([1, None, 2]),
        pa.array([1.0, math.nan, 2.0]),
        pa.array(["a", None, "b"]),
        pa.DictionaryArray.from_arrays(pa.array([0, 1, 2]), pa.array(["a", None, "b"])),
    ],
    ids=lambda ids: type(ids).__name__,
)
def test_missing_ids_are_refused(ids):
    with pytest.raises(ValueError, match="Some user ids are missing"):
        grouped(ids)


def test_contiguous_input_is_used_as_it_is():
    X, y = np.ones((6, 2), dtype=np.float32), np.zeros(6)
    assert np.shares_memory(UserData.from_arrays(X, y, [3, 3, 1, 1, 1, 2]).rows, X)
    assert not np.shares_memory(UserData.from_arrays(X, y, [3, 1, 3, 1, 1, 2]).rows, X)
    assert X.flags.writeable  # the caller's own array is left alone


def test_memory_mapped_rows_stay_mapped(tmp_path):
    X = np.memmap(tmp_path / "rows", dtype=np.float64, mode="w+", shape=(4, 2))
    X[:] = 1.0
    data = UserData.from_arrays(X, np.zeros(4), [0, 0, 1, 1])
    assert np.shares_memory(data.rows, X)
    assert type(data.rows) is np.ndarray


@pytest.mark.parametrize(
    ("given_type", "asked", "kept"),
    [
        (np.float32, None, np.float32),
        (np.float64, None, np.float64),
        (np.int8, None, np.float64),
        (bool, None, np.float64),
        (">f4", None, np.float32),
        (np.longdouble, None, np.float64),
        (np.float16, None, np.float64),
        (object, None, np.float64),
        (np.uint64, np.float32, np.float32),
        (np.float64, "float32", np.float32),
    ],
)
@pytest.mark.parametrize("ids", [[0, 0, 1], [0, 1, 0]])
def test_types_of_rows(given_type, asked, kept, ids):
    X = np.array([[0, 1], [1, 0], [1, 1]]).astype(given_type)
    data = UserData.from_arrays(X, [1, 0, 1], ids, dtype=asked)
    assert data.rows.dtype == kept
    assert data.rows.dtype.isnative
    assert data.targets.dtype == np.float64
    np.testing.assert_array_equal(data.rows, X[np.argsort(ids, kind="stable")].astype(float))


def test_anything_in_the_values_is_accepted_silently():
    X = np.array([[math.nan, 1e300], [math.inf, -math.inf], [1.0, 2.0]])
    for ids in ([0, 0, 1], [0, 1, 0]):
        data = UserData.from_arrays(X, [math.nan, math.inf, 1.0], ids, dtype=np.float32)
        np.testing.assert_array_equal(data.rows, [[1.0, 2.0]])
        assert data.n_users == 2


def test_intercept_and_absent_targets():
    data = UserData.from_arrays(np.array([[5.0], [6.0], [7.0]]), None, ["a", "b", "a"], fit_intercept=True)
    np.testing.assert_array_equal(data.rows_of(0)[0], [[5, 1], [7, 1]])
    np.testing.assert_array_equal(data.dense(), [[5, 1], [7, 1], [6, 1]])
    assert np.all(np.isnan(data.targets))
    assert data.n_features == 2


@pytest.mark.parametrize("seeded", [False, True])
def test_cap_keeps_a_uniform_choice_of_each_users_rows(seeded):
    """Of 6000 users, in three kinds: with six rows, of which three stay, with two, and with one."""
    groups = 3 * np.arange(2000)[:, None] + [0, 0, 0, 0, 0, 1, 1, 0, 2]
    data = grouped(groups.ravel(), max_rows_per_user=3, insecure_seed=0 if seeded else None)
    kept = by_user(data)
    assert [len(rows) for rows in kept] == [3, 2, 1] * 2000
    assert kept == [sorted(rows) for rows in kept]  # in their old order
    np.testing.assert_array_equal(data.rows[:, 0], 2 * data.targets)
    counts = np.bincount((data.rows[:, 0] / 2).astype(int) % 9, minlength=9)
    np.testing.assert_array_equal(counts[[5, 6, 8]], 2000)
    np.testing.assert_allclose(counts[[0, 1, 2, 3, 4, 7]], 1000, atol=120)  # half of six rows; 5 standard deviations


def test_the_cap_draws_from_the_operating_system(monkeypatch):
    """One 64-bit key a row of those who have too many; the rows with the smallest keys stay."""
    keys = np.array([5, 2**64 - 1, 2, 9, 2**63, 3, 4], dtype=np.uint64)  # of a, a, a, b, b, b, b
    asked = []
    monkeypatch.setattr(os, "urandom", lambda n: asked.append(n) or keys.tobytes())
    data = grouped(["a", "b", "a", "a", "b", "b", "c", "b"], max_rows_per_user=2)
    assert asked == [keys.nbytes]
    assert by_user(data) == [[0.0, 6.0], [10.0, 14.0], [12.0]]
    monkeypatch.setattr(os, "urandom", None)
    assert grouped([0, 0, 1], max_rows_per_user=1, insecure_seed=1).n_rows == 2


def test_cap_is_random_without_a_seed_and_repeatable_with_one():
    ids = [0] * 400 + [1]
    assert by_user(grouped(ids, max_rows_per_user=200)) != by_user(grouped(ids, max_rows_per_user=200))
    seeded = [by_user(grouped(ids, max_rows_per_user=200, insecure_seed=7)) for _ in range(2)]
    assert seeded[0] == seeded[1]
    assert by_user(grouped(ids, max_rows_per_user=400)) == by_user(grouped(ids))


@pytest.mark.parametrize("seed", [-1, 1.5, "7", True, np.int64(-3)])
@pytest.mark.parametrize("cap", [None, 1, 5])
def test_a_wrong_seed_is_refused_whatever_the_data(seed, cap, tmp_path):
    """Not only if some user has more rows than the cap: the error would tell that."""
    table = pa.table({"who": [1, 1, 2], "x": [1.0, 2.0, 3.0]})
    pq.write_table(table, tmp_path / "t.parquet")
    options = {"max_rows_per_user": cap, "insecure_seed": seed}
    data = grouped([1, 1, 2])
    for make in (
        lambda: grouped([1, 1, 2], **options),
        lambda: UserData.from_table(table, user="who", features="x", **options),
        lambda: UserData.from_parquet(tmp_path / "t.parquet", user="who", features="x", **options),
        lambda: UserData(data.rows, data.targets, data.offsets, insecure_seed=seed),
    ):
        with pytest.raises(ValueError, match=f"whole number >= 0, got {type(seed).__name__}"):
            make()


def test_weights_are_cut_off_and_one_for_each_row():
    """A weight beyond 1 would exceed what a loss promises; too few of them would be read beyond the last."""
    X, users = np.arange(6.0)[:, None], np.array([0, 1, 0, 1, 0, 1])
    given = np.array([0.5, 7.0, -2.0, math.nan, math.inf, 1.0])
    expected = [0.5, 0.0, 1.0, 1.0, 0.0, 1.0]
    assert UserData.from_arrays(X, None, users, weights=given).weights.tolist() == expected
    assert UserData.from_arrays(X, None, users, weights=given.tolist()).weights.tolist() == expected
    own = UserData(X, np.zeros(6), np.array([0, 3, 6]), weights=given[[0, 2, 4, 1, 3, 5]])
    assert own.weights.tolist() == expected
    assert not own.weights.flags.writeable
    for wrong in (given[:5], np.append(given, 1.0)):
        for ids in (users, np.sort(users)):
            with pytest.raises(ValueError, match="weights and X differ in length"):
                UserData.from_arrays(X, None, ids, weights=wrong)
