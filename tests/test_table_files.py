"""Tables in Parquet, CSV and Arrow files: read by column, written whole, and no error quotes a cell."""

import math

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pytest

from userdp import UserData
from userdp.data import tables as table_files
from userdp.data.schema import ids, numbers
from userdp.data.tables import check_place, open_table, whole_file, write_table

TABLE = {
    "who": ["a", "a", "b", "c"],
    "x_1": [0.5, 2.5, None, 4.0],
    "x_2": [1, 3, None, 4],
    "y": [True, None, False, True],
}
FORMATS = [".parquet", ".csv", ".tsv", ".arrow", ".feather"]


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_format_gives_the_same_users(tmp_path, suffix):
    path = tmp_path / f"table{suffix}"
    write_table(pa.table(TABLE), path)
    table = open_table(path)
    assert table.column_names == list(TABLE)
    data = UserData.from_table(table, user="who", target="y", features="x_*")
    np.testing.assert_array_equal(data.rows, [[0.5, 1], [4, 4]])  # of b nothing is left
    np.testing.assert_array_equal(data.targets, [1, 1])
    np.testing.assert_array_equal(data.offsets, [0, 1, 1, 2])
    np.testing.assert_array_equal(data.affected, [True, True, False])


def test_old_feather_suffixes(tmp_path):
    pyarrow.feather.write_feather(pa.table(TABLE), str(tmp_path / "packed.feather"), compression="zstd")
    assert open_table(tmp_path / "packed.feather")["who"].to_pylist() == TABLE["who"]


def test_no_cell_decides_the_type_of_a_csv_column(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("who,a,b,c,d\n1,True,1, x,\n2,false,two,1,\n3,maybe,3,y,\n4,1,true,z,\n")
    nan = math.nan
    expected = {"a": [1, 0, nan, 1], "b": [1, nan, 3, 1], "c": [nan, 1, nan, nan], "d": [nan] * 4}
    for name, cells in expected.items():
        table = open_table(path)
        np.testing.assert_array_equal(numbers(name, table[name]), cells)
    assert table["b"].cells.to_pylist() == ["1", "two", "3", "true"]


@pytest.mark.parametrize(
    "cell",
    ["7,8", "", "9" * 2**21, '"a\nb",3,4', '"7"x,8', '"7"x"y""z,8,9,10', '7"8,"9"", 10"', '""""x,\x00\xff'],
    ids=["wide", "narrow", "long", "both", "behind a quote", "wide, behind a quote", "quotes within", "bytes"],
)
@pytest.mark.parametrize("place", [1, 2, 3])
def test_rows_of_any_length_are_their_owner_s_matter(tmp_path, monkeypatch, cell, place):
    """Too many cells, too few, long ones, text behind a closing quote; rows are read some at a time."""
    monkeypatch.setattr(table_files, "_BATCH_ROWS", 2)
    path = tmp_path / "t.csv"
    lines = ["who,x,y", "a,1,2", "b,3,4", "c,5,6"]
    whole = [line.split(",")[1:] for line in lines[1:]]
    lines[place] = f"{lines[place][0]},{cell}" if cell else lines[place][0]
    path.write_text("\n".join(lines) + "\n")
    data = UserData.from_table(open_table(path), user="who", features="x,y")
    assert data.n_users == 3
    for other in [i for i in range(3) if i != place - 1]:
        np.testing.assert_array_equal(data.rows_of(other)[0], [np.array(whole, dtype=float)[other]])


def test_bytes_that_are_no_text_are_their_owner_s_matter(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b"who,x,y\na,1,no\n\xff,\xfe\xfe,\xff\nb,5,yes\n")
    columns = {"user": "who", "features": "x", "target": "y", "classes": ["no", "yes"]}
    data = UserData.from_table(open_table(path), **columns, keep_user_ids=True)
    np.testing.assert_array_equal(data.rows[:, 0], [1, 5])
    np.testing.assert_array_equal(data.targets, [0, 1])
    np.testing.assert_array_equal(data.offsets, [0, 1, 1, 2])
    assert data.user_ids == ("a", "\udcff", "b")


def test_cells_of_csv_columns(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(
        '\ufeffwho,x,name,"a, b",when\n1,1,ann,1,2020-01-01\n2, 2e3 ,"",2,2020-01-02\n,oops,"x\ny",3,\n4,+.5,NA,4,\n'
    )
    table = open_table(path)
    assert table.column_names == ["who", "x", "name", "a, b", "when"]
    assert table.guess("who").to_pylist() == [1, 2, None, 4]
    assert ids(table["who"]).to_pylist() == ["1", "2", None, "4"]
    np.testing.assert_array_equal(numbers("x", table["x"]), [1.0, 2000.0, math.nan, 0.5])
    assert table["name"].cells.to_pylist() == ["ann", "", "x\ny", "NA"]
    np.testing.assert_array_equal(numbers("a, b", table["a, b"]), [1, 2, 3, 4])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", b'a,b\n1,2\n3,4\n"SECRET\n', "not CSV .*separated by commas"),
        ("t.tsv", b'a\tb\n1\t2\n3\t4\n"SECRET\n', "separated by tabs"),
        ("t.csv", b"\xff\xfeSECRET", "in UTF-8"),
        ("t.csv", b'a,b\n"SECRET\n1,2\n', "not CSV"),
        ("t.csv", b'a,b\n1,2\n3,4\n"', "not CSV"),
        ("t.csv", b'a,b\n1,2\n3,"SECRET,5,"6,"x', "not CSV"),
        ("t.csv", b"", "is empty"),
        ("t.parquet", b"", "is empty"),
        ("t.parquet", b"SECRET", "not Parquet, or is damaged"),
        ("t.arrow", b"SECRET", "not Arrow, or is damaged"),
        ("t.arrow", b"ARROW1\0\0SECRET", "not Arrow, or is damaged"),
        ("t.txt", b"SECRET", "The format of .* is unknown"),
        ("none", None, "The format of .* is unknown"),
        ("none.csv", None, "There is no CSV file at"),
        ("s3://bucket/t.csv", None, "is a URL"),
    ],
)
def test_unreadable_files(tmp_path, monkeypatch, name, content, message):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises((ValueError, FileNotFoundError), match=message) as caught:
        open_table(name)["a"]
    assert "SECRET" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_folders(tmp_path):
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(ValueError, match="is a folder, not a CSV file"):
        open_table(tmp_path / "folder.csv")
    with pytest.raises(ValueError, match="There are no Parquet files"):
        open_table(tmp_path)
    write_table(pa.table(TABLE), tmp_path / "part.parquet")
    (tmp_path / "folder.csv").rmdir()
    assert open_table(tmp_path)["who"].to_pylist() == TABLE["who"]


def test_what_a_format_cannot_hold(tmp_path):
    with pytest.raises(ValueError, match="CSV cannot hold"):
        write_table(pa.table({"a": [[1, 2]]}), tmp_path / "t.csv")
    assert list(tmp_path.iterdir()) == []


def test_whole_files(tmp_path):
    path = tmp_path / "file.txt"
    with whole_file(path) as new:
        new.write_text("first")
        assert not path.exists()
    stopped = whole_file(path)
    stopped.__enter__().write_text("second")
    assert not stopped.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert path.read_text() == "first"
    with (
        pytest.raises(ValueError, match=r"none.*cannot be written .No such file"),
        whole_file(tmp_path / "none" / "x"),
    ):
        pytest.fail("there is no folder to write to")
    assert list(tmp_path.iterdir()) == [path]


def test_places_are_checked_before_work(tmp_path):
    path, link = tmp_path / "a", tmp_path / "link"
    path.touch()
    link.symlink_to(path)
    assert check_place(tmp_path / "b", path) == tmp_path / "b"
    for place, message in [
        (tmp_path, "it is a folder"),
        ("/dev/null", "no regular file"),
        (link, "would replace"),
        (tmp_path / "." / "a", "would replace"),
        (tmp_path / "none" / "b", "make it first"),
        (path / "b", "make it first"),
        ("/proc/b", "/proc/b cannot be written"),
    ]:
        with pytest.raises(ValueError, match=message):
            check_place(place, path)
    assert sorted(tmp_path.iterdir()) == [path, link]
