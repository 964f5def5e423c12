"""One malicious person in a table file: the command line says and does the same, and others' cells stay theirs."""

import json
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support_cli import SECRET, run
from support_hostile import without_releases

from userdp import UserData
from userdp.data.schema import ids, numbers
from userdp.data.tables import open_table

N_USERS, ROWS, HOSTILE = 300, 3, 7
FIT = ["--user-column", "user", "--features", "x_*", "--epsilon", "8", "--delta", "1e-4", "--solver", "whitened-clip"]
FIT += ["--max-gradients", "9000", "--max-rows-per-user", str(ROWS), "--insecure-seed", "1", "--json"]
LOSSES = {
    "logistic": ["--target", "label", "--classes", "no,yes"],
    "squared_hinge": ["--target", "label", "--classes", "no,yes"],
    "squared": ["--target", "amount", "--target-range", "0,10"],
    "huber": ["--target", "amount", "--target-range", "0,10"],
    "quantile": ["--target", "amount", "--target-range", "0,10"],
}
# What somebody may write into their own cells.
CELLS = [
    "NaN",
    "inf",
    "-Infinity",
    "1e308",
    "-1e999",
    "5e-324",
    "",
    "NA",
    "0x1F",
    SECRET,
    "true",
    "12:30",
    "2020-01-01",
]
CELLS += ["9" * 400, "é" * 5000, "=1+1", "'", "\u202e", "\x1b[2J"]


def people():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (N_USERS * ROWS, 2))
    users = [f"{i:04}" for i in np.repeat(np.arange(N_USERS), ROWS)]
    label = np.where(x[:, 0] > x[:, 1], "yes", "no").tolist()
    return {"user": users, "x_a": x[:, 0], "x_b": x[:, 1], "label": label, "amount": 5 + 4 * x[:, 0]}


def write_csv(path, columns):
    lines = [",".join(columns)]
    lines += [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    Path(path).write_text("\n".join(lines) + "\n")


def changed(columns, names, cell):
    new = {name: [*values] for name, values in columns.items()}
    for name in names:
        for row in range(HOSTILE * ROWS, (HOSTILE + 1) * ROWS):
            new[name][row] = cell
    return new


def outcome(path, loss):
    """Exit code and output, with the time taken out and numbers that were released with noise; and the weights."""
    result = run("fit", path, *FIT, *LOSSES[loss], "--loss", loss, "--output", "m.json")
    said = without_releases(result.stdout).replace(path, "the file"), result.stderr
    weights = json.loads(Path("m.json").read_text())["coef"] if result.exit_code == 0 else None
    return (result.exit_code, *said), np.array(weights)


@pytest.fixture
def usual(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_csv("good.csv", people())
    pq.write_table(pa.table(people()), "good.parquet")


@pytest.mark.parametrize("loss", LOSSES)
def test_parquet(usual, loss):
    expected, weights = outcome("good.parquet", loss)
    assert expected[0] == 0
    for value in (math.nan, math.inf, -math.inf, 1e308, 5e-324, None):
        pq.write_table(pa.table(changed(people(), ["x_a", "amount"], value)), "hostile.parquet")
        seen, found = outcome("hostile.parquet", loss)
        assert seen == expected
        assert np.isfinite(found).all()
        assert np.linalg.norm(found - weights) < 2, "one of 300 users, and the same noise"


def test_labels_in_parquet(usual):
    expected, _ = outcome("good.parquet", "logistic")
    for label in (SECRET, "x" * 1_000_000, "", None, "\x00", "yes "):
        pq.write_table(pa.table(changed(people(), ["label"], label)), "hostile.parquet")
        assert outcome("hostile.parquet", "logistic")[0] == expected
    column = pa.array([label.encode() for label in changed(people(), ["label"], "\x7f")["label"]])
    broken = pa.array([b"\xff\xfe" if label == b"\x7f" else label for label in column.to_pylist()]).view(pa.string())
    pq.write_table(pa.table(people() | {"label": broken}), "hostile.parquet")
    assert outcome("hostile.parquet", "logistic")[0] == expected


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: ascii(cell)[:20])
def test_csv(usual, cell):
    expected, weights = outcome("good.csv", "squared")
    assert expected[0] == 0
    write_csv("hostile.csv", changed(people(), ["x_a", "label", "amount"], cell))
    seen, found = outcome("hostile.csv", "squared")
    assert seen == expected
    assert np.isfinite(found).all()
    assert np.linalg.norm(found - weights) < 2  # one of 300 users, and the same noise
    assert outcome("hostile.csv", "logistic")[0] == outcome("good.csv", "logistic")[0]


# --- what other people's cells mean -----------------------------------------------------------------------------------


def others(tmp_path, cells, extra):
    """The numbers of everybody but the last, who writes `extra`."""
    path = tmp_path / "t.csv"
    path.write_text("user,x\n" + "".join(f"{i},{cell}\n" for i, cell in enumerate([*cells, extra])))
    table = open_table(path)
    return numbers("x", table["x"])[:-1]


written = st.one_of(
    st.floats(allow_nan=False).map(str),
    st.integers(-(10**25), 10**25).map(str),
    st.sampled_from(["inf", "-INF", "Infinity", "+inf", "1e999", "-1e400", "+1", "1.", ".5", " 7 ", "007", "1E5"]),
)
cells = st.one_of(
    written, written, written, st.sampled_from(["", "NA", "nan", "null", "N/A", "0x10", "true", "FALSE", "two"])
)


@settings(max_examples=150, deadline=None)
@given(mine=st.lists(cells, min_size=1, max_size=8), extra=st.sampled_from(CELLS[:10]))
def test_a_cell_of_csv_means_the_same_whatever_others_write(tmp_path_factory, mine, extra):
    """Text as numbers, cell by cell, says the same as objects in an array do."""
    folder = tmp_path_factory.mktemp("cells")
    usual = others(folder, mine, "2.5")
    np.testing.assert_array_equal(usual, others(folder, mine, extra))
    np.testing.assert_array_equal(usual, numbers("x", mine))


@pytest.mark.parametrize(
    "mine", [["7", "07"], ["1", "1.0"], ["1", "0x1"], ["NA", "1"], ["2020-01-01", "2020-01-01 00:00:00"]]
)
@pytest.mark.parametrize("extra", ["3", "bob", "1.5", "2021-05-05", "true"])
def test_ids_of_csv_are_told_apart_the_same_whatever_others_are_called(tmp_path, mine, extra):
    """Else one person's id would split another one in two, or join two."""
    path = tmp_path / "t.csv"
    path.write_text("user,x\n" + "".join(f"{user},1\n" for user in [*mine, *mine, extra, extra]))
    data = UserData.from_table(open_table(path), user="user", features="x")
    assert np.diff(data.offsets).tolist() == [2, 2, 2]
    table = open_table(path)
    assert ids(table["user"]).to_pylist() == [*mine, *mine, extra, extra]
