"""UserData from tables and files of all kinds."""

from __future__ import annotations

import dataclasses
import inspect
import math
import pickle
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse
from support_data import grouped

from userdp.data.users import Options, UserData

SECRET = 31337.25  # a value that no message may show


TABLE = {
    "who": ["b", "a", "b", "c"],
    "label": [1, 0, None, 1],
    "x_1": [0.5, None, 2.5, math.nan],
    "x_2": [1, None, 3, 4],
    "flag": [True, False, True, None],
    "note": ["p", "q", "r", "s"],
}


def as_pandas(table):
    return pytest.importorskip("pandas").DataFrame(table)


def as_polars(table):
    return pytest.importorskip("polars").DataFrame(table, strict=False, nan_to_null=False)


def as_polars_enum():
    pl = pytest.importorskip("polars")
    return pl.DataFrame({"who": U3, "x": pl.Series([str(SECRET), "b", "c"], dtype=pl.Enum([str(SECRET), "b", "c"]))})


def as_lazy_polars(table):
    return as_polars(table).lazy()


tables = pytest.mark.parametrize("make", [pa.table, as_pandas, as_polars, as_lazy_polars])


@tables
@pytest.mark.parametrize("features", ["x_*,flag", "x_2, flag,x_1", ["x_1", "x_2", "flag"]])
def test_tables(make, features):
    data = UserData.from_table(make(TABLE), user="who", target="label", features=features)
    np.testing.assert_array_equal(data.rows, [[0.5, 1, 1]])  # all others have a cell that is missing
    np.testing.assert_array_equal(data.targets, [1])
    np.testing.assert_array_equal(data.offsets, [0, 1, 1, 1])
    np.testing.assert_array_equal(data.affected, [True, True, True])
    assert data.user_ids is None
    filled = UserData.from_table(make(TABLE), user="who", features=features, fill_missing=-1)
    np.testing.assert_array_equal(filled.rows, [[0.5, 1, 1], [2.5, 3, 1], [-1, -1, 0], [-1, 4, -1]])
    np.testing.assert_array_equal(filled.offsets, [0, 2, 3, 4])
    assert not filled.affected.any()


@tables
def test_a_star_takes_neither_user_nor_target(make):
    table = make({name: TABLE[name] for name in ("who", "label", "x_1")})
    data = UserData.from_table(table, user="who", target="label", features="*", fit_intercept=True, dtype="float32")
    assert (data.n_features, data.rows.dtype) == (2, np.float32)
    assert np.all(data.dense()[:, 1] == 1)


def test_pandas_kinds_of_columns():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"who": [1, "1", 1], "x": pd.array([1, None, 3], dtype="Int64")})
    data = UserData.from_table(frame, user="who", features=["x"], keep_user_ids=True)
    np.testing.assert_array_equal(data.rows[:, 0], [1, 3])
    assert data.user_ids == (1, "1")
    for missing in (pd.NA, None, math.nan, pd.NaT):
        with pytest.raises(ValueError, match="ids are missing"):
            UserData.from_table(pd.DataFrame({"who": ["a", missing], "x": [1, 2]}), user="who", features="x")
    frame["who"] = pd.Categorical(["u", "v", "u"])
    assert UserData.from_table(frame, user="who", features="x").n_users == 2


def test_large_integers_are_rounded_silently():
    table = pa.table({"who": [1, 2], "x": [2**62 + 1, 0]})
    assert UserData.from_table(table, user="who", features="x").rows[0, 0] == 2.0**62


def test_parquet_reads_files_and_directories(tmp_path):
    pq.write_table(pa.table(TABLE), tmp_path / "part-0.parquet", row_group_size=2)
    expected = UserData.from_table(pa.table(TABLE), user="who", target="label", features="x_*")
    for path in (tmp_path / "part-0.parquet", str(tmp_path)):
        data = UserData.from_parquet(path, user="who", target="label", features="x_*")
        np.testing.assert_array_equal(data.rows, expected.rows)
        np.testing.assert_array_equal(data.offsets, expected.offsets)


def test_broken_parquet_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"There is no Parquet file at .*none.parquet"):
        UserData.from_parquet(tmp_path / "none.parquet", user="who", features="x")
    path = tmp_path / "bad.parquet"
    path.write_bytes(b"not parquet at all")
    with pytest.raises(ValueError, match="not Parquet, or is damaged"):
        UserData.from_parquet(path, user="who", features="x")
    pq.write_table(pa.table({"who": list(range(500)), "x": np.random.default_rng(0).random(500)}), path)
    whole = path.read_bytes()
    path.write_bytes(whole[:40] + b"\xff" * 4000 + whole[4040:])
    with pytest.raises(ValueError, match="not Parquet, or is damaged"):
        UserData.from_parquet(path, user="who", features="x")


def test_folders_without_parquet_files(tmp_path):
    with pytest.raises(ValueError, match=r"^There are no Parquet files in the folder .*: check the path\.$"):
        UserData.from_parquet(tmp_path, user="who", features="x")
    (tmp_path / "notes.csv").write_text("who,x\n1,2\n")
    with pytest.raises(ValueError, match="is not Parquet, or is damaged"):
        UserData.from_parquet(tmp_path, user="who", features="x")
    (tmp_path / "notes.csv").unlink()
    pq.write_table(pa.table(TABLE), tmp_path / "_hidden.parquet")
    with pytest.raises(ValueError, match="There are no Parquet files"):
        UserData.from_parquet(tmp_path, user="who", features="x")
    pq.write_table(pa.table(TABLE), tmp_path / "part-without-suffix")
    assert UserData.from_parquet(tmp_path, user="who", features="x_*").n_users == 3


def test_options_of_tables_are_those_of_arrays():
    def options(function):
        return tuple(p.name for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY)

    *names, of_engines = (field.name for field in dataclasses.fields(Options))
    assert (options(UserData.from_arrays), of_engines) == ((*names, "weights"), "choice_key")


@pytest.mark.parametrize("ids", [[0, 0, 1], [0, 1, 0]], ids=["contiguous", "scattered"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_missing_cells_are_filled_in_a_copy(ids, dtype, fit_intercept):
    nan, inf = math.nan, math.inf
    X, y = np.array([[nan, 1.0], [inf, 2.0], [3.0, nan]], dtype=dtype), np.array([nan, 0.0, 1.0])
    before = X.copy()
    data = UserData.from_arrays(X, y, ids, fill_missing=-1, fit_intercept=fit_intercept)
    order = np.argsort(ids, kind="stable")
    np.testing.assert_array_equal(data.rows, [[3, -1]])  # targets are never filled, nor is what is infinite
    np.testing.assert_array_equal(X, before)
    assert X.flags.writeable
    kept = UserData.from_arrays(X[:, 1:], None, ids, fill_missing=-1)
    np.testing.assert_array_equal(kept.rows[:, 0], np.array([1, 2, -1])[order])
    np.testing.assert_array_equal(X, before)


def test_filling_copies_only_where_a_cell_is_missing(tmp_path):
    X = np.memmap(tmp_path / "rows", dtype=np.float64, mode="w+", shape=(70_000, 2))
    X[:] = 1.0
    ids = np.arange(70_000) // 7
    assert np.shares_memory(UserData.from_arrays(X, None, ids, fill_missing=0.0).rows, X)
    X[69_999, 1] = math.nan
    X.flags.writeable = False
    rows = UserData.from_arrays(X, None, ids, fill_missing=0.5).rows
    assert not np.shares_memory(rows, X)
    assert type(rows) is np.ndarray
    assert (rows[69_999, 1], rows.sum()) == (0.5, 139_999.5)
    assert math.isnan(X[69_999, 1])


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize(("narrow", "fill"), [(np.float16, -99999.0), (np.float32, 1e39)])
@pytest.mark.parametrize("sparse", [False, True])
def test_fills_that_only_the_kept_type_holds_are_finite_and_warn_of_nothing(sparse, narrow, fill, missing):
    """A warning where one cell is missing would reveal it."""
    if sparse and narrow == np.float16:
        return  # which scipy has not
    X = np.ones((4, 2), narrow)
    X[0, 1] = math.nan if missing else 1.0
    given = scipy.sparse.csr_array(X) if sparse else X
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = UserData.from_arrays(given, None, [0, 0, 1, 1], dtype="float64", fill_missing=fill)
    assert data.dense().tolist() == [[1.0, fill if missing else 1.0], *[[1.0, 1.0]] * 3]
    assert not data.affected.any()


@tables
def test_missing_cells_of_tables_are_filled(make, tmp_path):
    columns = {"user": "who", "target": "label", "features": "x_*,flag", "fill_missing": 9.0}
    pq.write_table(pa.table(TABLE), tmp_path / "table.parquet")
    for data in (
        UserData.from_table(make(TABLE), **columns),
        UserData.from_parquet(tmp_path / "table.parquet", **columns),
    ):
        np.testing.assert_array_equal(data.rows, [[0.5, 1, 1], [9, 9, 0], [9, 4, 9]])
        np.testing.assert_array_equal(data.targets, [1, 0, 1])
        np.testing.assert_array_equal(data.affected, [True, False, False])  # a target is missing


def test_data_knows_whether_it_has_targets():
    assert grouped([1, 2, 1]).has_targets
    assert UserData(X3, Y3, np.array([0, 2, 3])).has_targets
    assert not UserData(X3, Y3, np.array([0, 2, 3]), has_targets=False).has_targets
    assert not UserData.from_arrays(X3, None, U3).has_targets
    assert not UserData.from_table(pa.table(TABLE), user="who", features="x_*").has_targets
    assert UserData.from_table(pa.table(TABLE), user="who", target="label", features="x_*").has_targets
    assert not pickle.loads(pickle.dumps(UserData.from_arrays(X3, None, U3))).has_targets


X3, Y3, U3 = np.full((3, 2), SECRET), np.full(3, SECRET), [1, 2, 1]
MIXED = {"who": [1, 2, 1], "x": [1.0, 2.0, 3.0], "name": [f"{SECRET}", "b", "c"]}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: UserData.from_arrays(X3, Y3[:2], U3), r"y and X differ in length"),
        (lambda: UserData.from_arrays(X3, Y3, U3[:2]), r"User ids and rows differ in length"),
        (lambda: UserData.from_arrays(X3, Y3, [1, 1, 1]), r"n_users must be at least 2, got 1"),
        (lambda: UserData.from_arrays(X3[:0], Y3[:0], []), r"table is empty"),
        (lambda: UserData.from_arrays(Y3, Y3, U3), r"X must have shape \(n_rows, n_features\), got 1 dimensions"),
        (lambda: UserData.from_arrays(X3[:, :0], Y3, U3), r"X must have shape .* got no feature"),
        (lambda: UserData.from_arrays(X3, X3, U3), r"y must have shape \(n_rows,\), got 2 dimensions"),
        (lambda: UserData.from_arrays([[SECRET], [1, 2]], Y3, U3), r"width are declared, got list"),
        (lambda: UserData.from_arrays([[SECRET], [1]], Y3, U3), r"width are declared, got list"),
        (lambda: UserData.from_arrays(X3, Y3, X3), r"User ids must have shape \(n_rows,\), got 2 dimensions"),
        (lambda: UserData.from_arrays(X3, Y3, U3, max_rows_per_user=0), r"max_rows_per_user must be .* >= 1, got 0"),
        (lambda: UserData.from_arrays(X3, Y3, U3, max_rows_per_user=1.5), r"max_rows_per_user must be .* got 1\.5"),
        (
            lambda: UserData.from_arrays(X3, as_pandas({"dtype": Y3, "type": Y3}), U3),
            r"y must be numeric .* got DataFrame",
        ),
        (
            lambda: UserData.from_table(as_polars_enum(), user="who", features=["x"]),
            r"'x' must be numeric .* got enum: convert",
        ),
        (lambda: UserData.from_arrays(X3.astype(complex), Y3, U3), r"X must be numeric .* got complex128"),
        (lambda: UserData.from_arrays(X3.astype(str), Y3, U3), r"X must be numeric .* got text: .*columns=Columns"),
        (lambda: UserData.from_arrays(X3, np.array(["a", "b", "c"]), U3), r"y must be numeric .* got text"),
        (lambda: UserData.from_arrays(X3, Y3, U3, dtype="int32"), r"dtype must be float32 or float64, got int32"),
        (lambda: UserData.from_arrays(X3, Y3, "abc"), r"one id per row, got str: .*groups=table"),
        (lambda: UserData.from_arrays(X3, Y3, 5), r"one id per row, got int"),
        (lambda: UserData.from_arrays(X3, Y3, [[SECRET], [2], [3]]), r"must be hashable, got one of type list"),
        (lambda: UserData.from_table(X3, user="who", features="x"), r"of pandas, polars or pyarrow, got ndarray"),
        (lambda: UserData.from_table(pa.table(MIXED), user="id", features="x"), r"named 'id': .* who, x, name"),
        (lambda: UserData.from_table(pa.table(MIXED), user="who", features="y_*"), r"matches 'y_\*': .* who, x, name"),
        (lambda: UserData.from_table(pa.table(MIXED), user="who", features=["q"]), r"named 'q': .* who, x, name"),
        (lambda: UserData.from_table(pa.table(MIXED), user="who", target="t", features="x"), r"named 't'"),
        (lambda: UserData.from_table(pa.table(MIXED), user="who", features="*"), r"'name' must be numeric .* text"),
        (lambda: UserData.from_table(pa.table(MIXED), user="who", features=""), r"There is no feature"),
        (lambda: UserData.from_table(pa.table(MIXED), user="who", features="who,x"), r"'who', the column"),
        (lambda: UserData.from_table(pa.table(MIXED), user="who", target="x", features=["x"]), r"'x', the column"),
        (lambda: UserData.from_table(pa.table(MIXED), user="who", features=["x", "x"]), r"A feature is named twice"),
        (
            lambda: UserData.from_table(pa.table(MIXED).slice(0, 0), user="who", features="x"),
            r"table is empty",
        ),
        (lambda: UserData(X3, Y3, np.array([0, 2, 4])), r"last offset"),
        (lambda: UserData(X3, Y3, np.array([0, 3])), r"at least 2 users"),
        (lambda: UserData(X3, Y3, np.array([0, 3, 2, 3])), r"rise from 0"),
        (lambda: UserData(Y3, Y3, np.array([0, 2, 3])), r"rows must be a float32 or float64 array with 2 dimensions"),
        (lambda: UserData(X3.astype(int), Y3, np.array([0, 2, 3])), r"rows must be a float32 or float64 array"),
        (lambda: grouped(U3, fill_missing=math.nan), r"fill_missing must be a finite number in float64, got nan"),
        (lambda: grouped(U3, fill_missing=-math.inf), r"fill_missing must be a finite number in float64, got -inf"),
        (lambda: grouped(U3, fill_missing="0"), r"fill_missing must be a finite number in float64, got '0'"),
        (lambda: grouped(U3, fill_missing=True), r"fill_missing must be a finite number in float64, got True"),
        (lambda: grouped(U3, fill_missing=10**400), "must be a finite number in float64"),
        (lambda: grouped(U3, fill_missing=1e39, dtype="float32"), r"fill_missing must be .* in float32, got 1e\+39"),
        (
            lambda: UserData.from_table(pa.table(MIXED), user="who", features="x", fill_missing=math.nan),
            r"fill_missing must be a finite number in float64, got nan",
        ),
        (lambda: UserData.from_table("/x.parquet", user="who", features="x"), r"got str: use .* from_parquet"),
        (
            lambda: UserData.from_parquet("s3://bucket/x.parquet", user="who", features="x"),
            r"only local files are read",
        ),
        (
            lambda: UserData.from_parquet(Path("s3://bucket/x.parquet"), user="who", features="x"),
            r"only local files are read",
        ),
        (lambda: grouped(U3).rows_of(2), r"user must be from 0 to 1, got 2"),
    ],
)
def test_errors_are_clear_and_show_no_value(make, message):
    with pytest.raises((ValueError, TypeError, IndexError), match=message) as caught:
        make()
    assert str(SECRET) not in str(caught.value)
    assert caught.value.__cause__ is None
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize(
    "make",
    [
        lambda X, y, ids: UserData.from_arrays(X, y[:-1], ids),
        lambda X, y, ids: UserData.from_arrays(X, y, ids[:-1]),
        lambda X, y, ids: UserData.from_arrays(X[:, 0], y, ids),
        lambda X, y, ids: UserData.from_arrays(X[:, :0], y, ids),
        lambda X, y, ids: UserData.from_arrays(X, X, ids),
        lambda X, y, ids: UserData.from_arrays(X, y, np.stack([ids, ids], axis=1)),
        lambda X, y, ids: UserData(X, y[:-1], np.array([0, 5, 54321])),
        lambda X, y, ids: UserData(y, y, np.array([0, 5, 54321])),
    ],
)
def test_errors_do_not_tell_the_number_of_rows(make):
    n_rows = 54321
    with pytest.raises((ValueError, TypeError), match=r"must|differ|missing|empty|least") as caught:
        make(np.ones((n_rows, 2)), np.ones(n_rows), np.arange(n_rows) // 3)
    assert "5432" not in str(caught.value)


def test_printing_shows_public_shape_only():
    data = UserData.from_arrays(X3, Y3, ["private-a", "private-b", "private-a"], keep_user_ids=True)
    for text in (repr(data), str(data), f"{data}"):
        assert text == "UserData(n_users=2, n_features=2, dtype=float64)"


def test_read_only_and_picklable():
    data = grouped([1, 2, 1])
    with pytest.raises(ValueError, match="read-only"):
        data.rows[0, 0] = 1.0
    again = pickle.loads(pickle.dumps(data))
    np.testing.assert_array_equal(again.rows, data.rows)
    assert data.n_rows == 3


@tables
def test_labels_become_positions_in_the_declared_classes(make, tmp_path):
    columns = {"user": "who", "features": "x_2", "target": "note", "classes": ["s", "q", "p"]}
    pq.write_table(pa.table(TABLE), tmp_path / "table.parquet")
    for data in (
        UserData.from_table(make(TABLE), **columns),
        UserData.from_parquet(tmp_path / "table.parquet", **columns),
    ):
        np.testing.assert_array_equal(data.targets, [0, 2])  # p of b, s of c; r is no class, and a's number is missing
        np.testing.assert_array_equal(data.affected, [True, True, False])
    with pytest.raises(ValueError, match="at least 2 different labels"):
        UserData.from_table(make(TABLE), **(columns | {"classes": ["s", "s"]}))
    with pytest.raises(TypeError, match=r"column 'note' must hold labels such as 1, 2, got text"):
        UserData.from_table(make(TABLE), **(columns | {"classes": [1, 2]}))
