"""Reading without loops over cells gives what a loop over cells would give."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from userdp.data.groups import Groups
from userdp.data.schema import numbers, positions
from userdp.data.users import UserData

RNG = np.random.default_rng(0)
WHOLE = RNG.integers(-40, 40, 3000)
WORDS = np.array([f"user {number}" for number in WHOLE])
CONTAINERS = {
    "int": WHOLE,
    "strided": np.stack([WHOLE, WHOLE], axis=1)[:, 0],
    "big-endian": WHOLE.astype(">i4"),
    "float": np.where(WHOLE == 0, RNG.choice([0.0, -0.0], 3000), WHOLE),
    "long double": WHOLE.astype(np.longdouble),
    "days": WHOLE.astype("M8[D]"),
    "text": WORDS,
    "bytes": WORDS.astype("S"),
    "objects": WORDS.astype(object),
    "list": WORDS.tolist(),
    "list of ints": WHOLE.tolist(),
    "large ints": [int(number) + 2**70 for number in WHOLE],
    "surrogates": [word + "\ud800" for word in WORDS],
    "text and bytes": [word if i % 2 else word.encode() for i, word in enumerate(WORDS.tolist())],
    "pandas": pd.Series(WORDS),
    "pandas category": pd.Series(WORDS).astype("category"),
    "pandas Int64": pd.Series(WHOLE, dtype="Int64"),
    "polars": pl.Series(WORDS),
    "polars int": pl.Series(WHOLE),
    "polars category": pl.Series(WORDS, dtype=pl.Categorical),
    "arrow": pa.chunked_array([pa.array(WORDS[:1000]), pa.array(WORDS[1000:])]),
    "arrow dictionary": pa.array(WORDS.tolist()).dictionary_encode(),
    "arrow dictionaries": pa.chunked_array(
        [pa.array(WORDS[:1000]).dictionary_encode(), pa.array(WORDS[1000:][::-1]).dictionary_encode()[::-1]]
    ),
    "all of int8": np.where(WHOLE < 0, -128, 127).astype(np.int8),
    "high uint64": (WHOLE + 40).astype(np.uint64) + np.uint64(2**64 - 81),
    "arrow float": pa.array(WHOLE.astype(float)),
}


def members_of(column):
    """Rows of each user, by a loop over the ids."""
    members = {}
    for i, cell in enumerate(cells_of(column)):
        members.setdefault(cell, []).append(i)
    return list(members.values())


def cells_of(column):
    """The cells as Python values, one at a time."""
    return column.to_pylist() if isinstance(column, pa.ChunkedArray | pa.Array) else list(column)


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("contiguous", [False, True])
def test_groups_are_those_of_a_dictionary(container, contiguous):
    column = CONTAINERS[container]
    if contiguous:
        order = np.concatenate(members_of(column)[::-1])
        if isinstance(column, pl.Series):
            column = column[order.tolist()]
        elif isinstance(column, list):
            column = [column[i] for i in order]
        else:
            column = column.take(order)
    members = members_of(column)
    groups = Groups.make(column, 3000)
    assert (groups.order is None) == contiguous
    order = np.arange(3000) if groups.order is None else groups.order
    np.testing.assert_array_equal(order, np.concatenate(members))
    np.testing.assert_array_equal(np.diff(groups.offsets), [len(rows) for rows in members])


@pytest.mark.parametrize("container", [name for name in CONTAINERS if name not in ("days", "bytes")])
def test_positions_are_those_of_a_dictionary(container):
    column = CONTAINERS[container]
    classes = list(dict.fromkeys(cells_of(column)))[::3]  # others are none of the classes
    known = {label: float(i) for i, label in enumerate(classes)}
    expected = [known.get(cell, np.nan) for cell in cells_of(column)]
    np.testing.assert_array_equal(positions("y", column, classes), expected)


@pytest.mark.parametrize("column", [pd.Series(["a", None, "b"]).astype("category"), pl.Series(["a", None, "b"])])
def test_missing_labels_have_no_position(column):
    np.testing.assert_array_equal(positions("y", column, ["b", "a"]), [1, np.nan, 0])


def test_labels_compare_as_in_python():
    """A float32 is no class of float64 that rounds to it, nor a large integer the nearest float."""
    assert np.isnan(positions("y", np.array([0.1], np.float32), [0.1, 0.2])).all()
    np.testing.assert_array_equal(positions("y", np.array([2**53 + 1, 2**53]), [0.0, 2.0**53]), [np.nan, 1])


def test_numbers_of_plain_objects_and_of_others():
    cells = [1, 2.5, True, np.float32(0.5), np.int8(3)]
    np.testing.assert_array_equal(numbers("y", cells), [1, 2.5, 1, 0.5, 3])
    np.testing.assert_array_equal(numbers("y", [*cells, 10**400, None, "4"]), [1, 2.5, 1, 0.5, 3, np.nan, np.nan, 4])


@pytest.mark.parametrize("contiguous", [False, True])
@pytest.mark.parametrize("cap", [None, 7])
@pytest.mark.parametrize("intercept", [False, True])
def test_parquet_gives_the_same_as_arrays(tmp_path, contiguous, cap, intercept):
    """In several batches, with rows beyond the cap dropped, from a file and from a folder."""
    n = 70_000
    users = np.repeat(np.arange(n // 10), 10) if contiguous else RNG.integers(0, n // 10, n)
    X, y = RNG.normal(size=(n, 3)), RNG.normal(size=n)
    table = pa.table({"b": X[:, 0], "user": users, "a": X[:, 1], "y": y, "c": X[:, 2]})
    pq.write_table(table, tmp_path / "part.parquet")
    options = {"max_rows_per_user": cap, "fit_intercept": intercept, "insecure_seed": 0}
    expected = UserData.from_arrays(X, y, users, **options)
    for path in (tmp_path, tmp_path / "part.parquet"):
        found = UserData.from_parquet(path, user="user", features=["b", "a", "c"], target="y", **options)
        np.testing.assert_array_equal(found.rows, expected.rows)
        np.testing.assert_array_equal(found.targets, expected.targets)
        np.testing.assert_array_equal(found.offsets, expected.offsets)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("kind", [np.float32, np.int64])
def test_a_gather_of_any_layout(order, kind):
    X = np.asarray(RNG.integers(-99, 99, (3000, 4)), kind, order=order)
    data = UserData.from_arrays(X, None, WHOLE)
    np.testing.assert_array_equal(data.rows, X[np.concatenate(members_of(WHOLE))])


def test_contiguous_arrays_are_not_copied():
    X, y, users = np.ones((30, 2), np.float32), np.ones(30), np.repeat(["z", "b", "q"], 10)
    data = UserData.from_arrays(X, y, users, max_rows_per_user=10)
    assert np.shares_memory(data.rows, X)
    assert np.shares_memory(data.targets, y)
    assert (data.rows.flags.writeable, data.targets.flags.writeable, X.flags.writeable) == (False, False, True)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view(), pa.binary()])
def test_text_ids_of_parquet_in_parts(tmp_path, kind):
    path, cells = tmp_path / "table.parquet", [word.encode() + b"\xff" for word in WORDS.tolist()]
    views = {pa.string_view(): pa.binary_view(), pa.large_string(): pa.large_binary()}
    ids = pa.array(cells, views.get(kind, pa.binary())).view(kind)
    pq.write_table(pa.table({"user": ids, "x": np.arange(3000.0)}), path, row_group_size=700)
    found = UserData.from_parquet(path, user="user", features=["x"], keep_user_ids=True)
    distinct = list(dict.fromkeys(cells))
    assert found.user_ids == tuple(
        cell if kind == pa.binary() else cell.decode(errors="surrogateescape") for cell in distinct
    )
    expected = sorted(range(3000), key=lambda row: distinct.index(cells[row]))
    np.testing.assert_array_equal(found.rows[:, 0], expected)


def test_missing_text_ids_of_parquet(tmp_path):
    path = tmp_path / "table.parquet"
    pq.write_table(pa.table({"user": ["a", None, "b"], "x": [1.0, 2.0, 3.0]}), path)
    with pytest.raises(ValueError, match="user ids are missing"):
        UserData.from_parquet(path, user="user", features=["x"])


def test_a_cell_that_refuses_to_be_compared_is_no_label():
    """Though it is hashable, and its hash is that of a label."""

    class Refusing:
        def __hash__(self):
            return hash("yes")

        def __eq__(self, other):
            raise RuntimeError

    found = positions("labels", ["yes", Refusing(), "no"], ["no", "yes"])
    np.testing.assert_array_equal(found, [1, np.nan, 0])
