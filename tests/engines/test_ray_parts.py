"""Parts of users: ranges of them, copies of some, and what partitions read of Parquet files."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.sparse import csr_array

from userdp.data.schema import Schema, texts
from userdp.data.users import UserData

pytest.importorskip("ray", reason="Ray is not installed: pip install 'userdp[ray]'")
from userdp.engines.ray_loaders import (
    check_order,
    part_by_row_groups,
    part_by_users,
    users_in_order,
)

SCHEMA = Schema("user", ("x",), "y")


def users_of(n_users=40, sparse=False):
    rng = np.random.default_rng(0)
    owners = np.repeat(np.arange(n_users), rng.integers(1, 9, n_users))
    X = rng.normal(size=(len(owners), 3)) * (rng.random((len(owners), 3)) < 0.5)
    return UserData.from_arrays(csr_array(X) if sparse else X, rng.random(len(owners)), owners, keep_user_ids=True)


def same_user(one, at, other, of):
    return all(np.array_equal(a, b) for a, b in zip(one.rows_of(at), other.rows_of(of), strict=True))


@pytest.mark.parametrize("sparse", [False, True])
def test_parts_copies_and_joins_hold_the_same_rows(sparse):
    data = users_of(sparse=sparse)
    part = data.part(7, 19)
    assert part.n_users == 12
    assert part.user_ids == tuple(range(7, 19))
    assert all(same_user(part, j, data, 7 + j) for j in range(12))
    chosen = np.array([30, 2, 17])
    some, one = data.taken(chosen), data.taken(chosen[:1])
    assert all(same_user(some, j, data, user) for j, user in enumerate(chosen))
    assert (one.n_users, len(one.rows_of(1)[0])) == (2, 0), "filled up"
    joined = UserData.joined([some, one, part])
    assert joined.n_users == 3 + 2 + 12
    assert all(same_user(joined, 5 + j, part, j) for j in range(12))
    assert same_user(joined, 3, data, 30)


def written(path, owners, row_group_size=10):
    n = len(owners)
    pq.write_table(pa.table({"user": owners, "x": np.arange(n) * 1.0, "y": np.ones(n)}), path, row_group_size)
    return path


@pytest.mark.parametrize("n_parts", [1, 2, 3, 7])
@pytest.mark.parametrize("reader", [part_by_users, part_by_row_groups])
def test_parts_of_a_sorted_file_are_all_of_it_and_no_user_is_in_two(tmp_path, reader, n_parts):
    """Users cross row groups; one has several row groups."""
    lengths = np.random.default_rng(1).integers(1, 12, 60)
    lengths[20] = 35
    owners = np.repeat([f"u{k:03}" for k in range(60)], lengths)
    path = written(tmp_path / "t.parquet", owners)
    parts = [reader(path, SCHEMA, part, n_parts) for part in range(n_parts)]
    assert np.array_equal(np.concatenate([part["x"].to_numpy() for part in parts]), np.arange(len(owners)))
    of = [set(part["user"].to_pylist()) for part in parts]
    assert sum(map(len, of)) == 60
    check_order([(part["user"][0].as_py(), part["user"][-1].as_py()) for part in parts])


def test_a_folder_is_read_in_the_order_of_names(tmp_path):
    folder = tmp_path / "people"
    folder.mkdir()
    for number in range(3):
        written(folder / f"{number}.parquet", np.repeat(np.arange(5 * number, 5 * number + 6), 4))
    parts = [part_by_row_groups(folder, SCHEMA, part, 2) for part in range(2)]
    owners = np.concatenate([part["user"].to_numpy() for part in parts])
    assert np.array_equal(owners, np.sort(owners))
    assert not set(parts[0]["user"].to_pylist()) & set(parts[1]["user"].to_pylist())


def test_a_file_in_another_order_has_the_users_by_first_appearance(tmp_path):
    owners = np.random.default_rng(2).integers(0, 30, 500)
    path = written(tmp_path / "t.parquet", owners)
    whole = UserData.from_parquet(path, user="user", features="x", target="y", keep_user_ids=True)
    parts = [UserData.from_schema(part_by_users(path, SCHEMA, k, 3), SCHEMA, keep_user_ids=True) for k in range(3)]
    assert sum((part.user_ids for part in parts), ()) == whole.user_ids
    assert np.array_equal(np.concatenate([part.rows for part in parts]), whole.rows)


def test_what_is_not_sorted_is_refused(tmp_path):
    path = written(tmp_path / "t.parquet", np.repeat([3, 1, 2, 5, 4, 6], 10))
    with pytest.raises(ValueError, match="sorted by user"):
        part_by_row_groups(path, SCHEMA, 0, 1)
    with pytest.raises(ValueError, match="sorted by user"):
        check_order([(1, 5), (5, 7)])
    with pytest.raises(ValueError, match="at least 2 users"):
        part_by_users(path, SCHEMA, 0, 6)


def test_a_sorted_part_may_have_one_user_or_none(tmp_path):
    """Which of them have is decided by how many rows each user has."""
    path = written(tmp_path / "t.parquet", np.repeat(["a", "b", "c"], [4, 40, 3]))
    found = []
    for part in range(7):
        table = part_by_row_groups(path, SCHEMA, part, 7)
        data, n_users = users_in_order(
            table, SCHEMA, {"max_rows_per_user": 2, "fit_intercept": True, "keep_user_ids": True}
        )
        found.append((n_users, data.user_ids, np.diff(data.offsets).tolist(), data.n_features))
    none = (0, (), [0, 0], 2)
    assert found == [none, (2, ("a", "b"), [2, 2], 2), none, none, none, none, (1, ("c",), [2, 0], 2)]


def test_ids_that_are_no_utf8_are_in_the_order_of_their_bytes(tmp_path):
    """By code points the parts would seem sorted, and one user be in both of them."""
    smile = "\N{GRINNING FACE}".encode()
    owners = pa.array([b"a", smile, b"\xff", smile, b"\xfe", b"\xfe"]).view(pa.string())
    path = written(tmp_path / "t.parquet", owners, row_group_size=3)
    parts = [part_by_row_groups(path, SCHEMA, part, 2) for part in range(2)]
    with pytest.raises(ValueError, match="sorted by user"):
        check_order([tuple(texts(part["user"].take([0, len(part) - 1]))) for part in parts])


def test_a_key_chooses_the_same_rows_again(tmp_path):
    owners = np.repeat(np.arange(20), 9)
    path = written(tmp_path / "t.parquet", owners)
    read = {"user": "user", "features": "x", "max_rows_per_user": 3}
    one, again, other = (UserData.from_parquet(path, choice_key=key, **read).rows for key in (b"a", b"a", b"b"))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)
