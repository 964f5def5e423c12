"""Parts of users: ranges of them, copies of some, and what partitions read of Parquet files."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.sparse import csr_array

from userdp.data.schema import Schema
from userdp.data.users import UserData

pytest.importorskip("ray", reason="Ray is not installed: pip install 'userdp[ray]'")
from userdp.engines.ray_partition import part_by_users

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
def test_parts_of_a_sorted_folder_are_all_of_it_and_no_user_is_in_two(tmp_path, n_parts, monkeypatch):
    """Users cross row groups and files; one has several row groups. Row groups of others are not read."""
    lengths = np.random.default_rng(1).integers(1, 12, 60)
    lengths[20] = 35
    owners, folder, read = np.repeat([f"u{k:03}" for k in range(60)], lengths), tmp_path / "people", []
    folder.mkdir()
    x, third = np.arange(len(owners)) * 1.0, len(owners) // 3
    for number, some in enumerate((slice(0, third), slice(third, 2 * third), slice(2 * third, None))):
        columns = {"user": owners[some], "x": x[some], "y": np.ones(len(x[some]))}
        pq.write_table(pa.table(columns), folder / f"{number}.parquet", 10)
    batches = pq.ParquetFile.iter_batches
    monkeypatch.setattr(
        pq.ParquetFile, "iter_batches", lambda *asked, **more: read.append(more) or batches(*asked, **more)
    )
    parts = [part_by_users(folder, SCHEMA, part, n_parts) for part in range(n_parts)]
    assert np.array_equal(np.concatenate([part["x"].to_numpy() for part in parts]), x)
    assert sum(len(set(part["user"].to_pylist())) for part in parts) == 60
    n_groups = sum(pq.read_metadata(file).num_row_groups for file in folder.iterdir())
    assert n_groups <= len(read) < n_groups + n_parts


def test_a_file_in_another_order_has_the_users_by_first_appearance(tmp_path):
    owners = np.random.default_rng(2).integers(0, 30, 500)
    path = written(tmp_path / "t.parquet", owners)
    whole = UserData.from_parquet(path, user="user", features="x", target="y", keep_user_ids=True)
    parts = [UserData.from_schema(part_by_users(path, SCHEMA, k, 3), SCHEMA, keep_user_ids=True) for k in range(3)]
    assert sum((part.user_ids for part in parts), ()) == whole.user_ids
    assert np.array_equal(np.concatenate([part.rows for part in parts]), whole.rows)


def test_too_few_users_are_refused(tmp_path):
    path = written(tmp_path / "t.parquet", np.repeat([3, 1, 2, 5, 4, 6], 10))
    with pytest.raises(ValueError, match="fewer than 2 users"):
        part_by_users(path, SCHEMA, 0, 6)


def test_a_key_chooses_the_same_rows_again(tmp_path):
    owners = np.repeat(np.arange(20), 9)
    path = written(tmp_path / "t.parquet", owners)
    read = {"user": "user", "features": "x", "max_rows_per_user": 3}
    one, again, other = (UserData.from_parquet(path, choice_key=key, **read).rows for key in (b"a", b"a", b"b"))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)
