"""Tables in Parquet, CSV and Arrow files: read by column, written whole, and no error quotes a cell."""

import math

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pytest

from userdp import UserData
from userdp.table_files import open_table, write_table
from userdp.whole_files import check_place, whole_file

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
    table.prefetch("who", ["x_1", "x_2"])
    data = UserData.from_table(table, user="who", target="y", features="x_*")
    np.testing.assert_array_equal(data.rows, [[0.5, 1], [2.5, 3], [math.nan, math.nan], [4, 4]])
    np.testing.assert_array_equal(data.targets, [1, math.nan, 0, 1])


def test_arrow_streams_and_old_feather_suffixes(tmp_path):
    path = tmp_path / "stream.arrow"
    with pa.ipc.new_stream(path, pa.table(TABLE).schema) as stream:
        stream.write_table(pa.table(TABLE))
    assert open_table(path)["x_2"].to_pylist() == TABLE["x_2"]
    pyarrow.feather.write_feather(pa.table(TABLE), str(tmp_path / "packed.feather"), compression="zstd")
    assert open_table(tmp_path / "packed.feather")["who"].to_pylist() == TABLE["who"]


def test_no_single_cell_decides_the_type_of_a_csv_column(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b,c,d\nTrue,1, x,\nfalse,two,1,\nmaybe,3,y,\n1,true,z,\n")
    table = open_table(path)
    assert table.numbers("a").to_pylist() == [1.0, 0.0, None, 1.0]
    assert table.numbers("b").to_pylist() == [1.0, None, 3.0, 1.0]
    assert table.numbers("c").to_pylist() == [" x", "1", "y", "z"]
    assert table.numbers("d").to_pylist() == [None] * 4
    assert table.text("b").to_pylist() == ["1", "two", "3", "true"]


def test_cells_of_csv_columns(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(
        '\ufeffwho,x,name,"a, b",when\n1,1,ann,1,2020-01-01\n2, 2e3 ,"",2,2020-01-02\n,oops,"x\ny",3,\n4,+.5,NA,4,\n'
    )
    table = open_table(path)
    assert table.column_names == ["who", "x", "name", "a, b", "when"]
    assert table["who"].to_pylist() == [1, 2, None, 4]
    assert table.numbers("x").to_pylist() == [1.0, 2000.0, None, 0.5]
    assert table["name"].to_pylist() == ["ann", None, "x\ny", "NA"]
    assert table.numbers("name").type == pa.string()
    assert table.numbers("a, b").to_pylist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", b"a,b\n1,2\n3,4,SECRET\n", "readable CSV file at .*separated by commas"),
        ("t.tsv", b"a\tb\n1\t2\n3\t4\tSECRET\n", "separated by tabs"),
        ("t.csv", b"\xff\xfeSECRET", "in UTF-8"),
        ("t.csv", b'a,b\n"SECRET\n1,2\n', "readable CSV"),
        ("t.csv", b"", "it is empty"),
        ("t.parquet", b"", "it is empty"),
        ("t.parquet", b"SECRET", "not Parquet or is damaged"),
        ("t.arrow", b"SECRET", "not Arrow or is damaged"),
        ("t.arrow", b"ARROW1\0\0SECRET", "not Arrow or is damaged"),
        ("t.txt", b"SECRET", "says its format"),
        ("none", None, "says its format"),
        ("none.csv", None, "CSV file at .*, found nothing"),
        ("s3://bucket/t.csv", None, "got a URL"),
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
    with pytest.raises(ValueError, match="found a folder"):
        open_table(tmp_path / "folder.csv")
    with pytest.raises(ValueError, match="found none"):
        open_table(tmp_path)
    write_table(pa.table(TABLE), tmp_path / "part.parquet")
    (tmp_path / "folder.csv").rmdir()
    assert open_table(tmp_path)["who"].to_pylist() == TABLE["who"]


def test_what_a_format_cannot_hold(tmp_path):
    with pytest.raises(ValueError, match="columns that CSV can hold"):
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
        pytest.raises(ValueError, match=r"Expected to write .*none.*No such file"),
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
        (link, "another file than"),
        (tmp_path / "." / "a", "another file than"),
        (tmp_path / "none" / "b", "make it first"),
        (path / "b", "make it first"),
        ("/proc/b", "Expected to write /proc/b"),
    ]:
        with pytest.raises(ValueError, match=message):
            check_place(place, path)
    assert sorted(tmp_path.iterdir()) == [path, link]
