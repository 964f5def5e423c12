"""One hostile person who owns most rows, in every container: only declared types decide what happens and what is said.

Each thing that somebody may write into their cells is compared with a harmless cell in a container of the same declared
type: the same errors, warnings, output, exit codes and shapes.
"""

import datetime
import json
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from support_cli import SECRET, run
from support_hostile import observed, without_releases

from userdp import LinearRegression, LogisticRegression, PrivateStandardScaler, PublicScaler, UserData
from userdp.data.tables import open_table
from userdp.models.means import private_mean

N_USERS, ROWS, MANY = 300, 3, 1000  # the hostile person, the first, owns MANY rows: more than all others together
SEEDED = {"epsilon": 8.0, "delta": 1e-4, "insecure_seed": 1, "max_rows_per_user": ROWS}
QUICK = SEEDED | {"solver": "phased-sgd"}
HARMLESS = 1

_RNG = np.random.default_rng(0)
_HONEST = _RNG.integers(-1, 2, ((N_USERS - 1) * ROWS, 2))  # whole numbers, which every type of numbers can hold
USERS = np.concatenate([np.zeros(MANY, dtype=int), np.repeat(np.arange(1, N_USERS), ROWS)])
FIRST = np.concatenate([np.ones(MANY, dtype=int), _HONEST[:, 0]])
SECOND = np.concatenate([np.ones(MANY, dtype=int), _HONEST[:, 1]])
TRUTHS = FIRST > SECOND


class Bomb(float):
    """A number that refuses to be one."""

    def __float__(self):
        raise RuntimeError(SECRET)

    def __hash__(self):
        raise RuntimeError(SECRET)


CELLS = {
    "text": SECRET,
    "number in text": "1.5",
    "huge number in text": "9" * 400,
    "surrogate": "\ud800",
    "nothing": None,
    "NaN": float("nan"),
    "infinite": float("inf"),
    "NA": pd.NA,
    "NaT": pd.NaT,
    "huge": 10**30,
    "beyond all floats": 10**400,
    "large": 2**62 + 1,
    "nested": [1.0, 2.0],
    "empty list": [],
    "array": np.zeros(3),
    "dictionary": {"a": 1},
    "bytes": b"\xff\xfe",
    "date": datetime.date(2020, 1, 1),
    "numpy date": np.datetime64("2020-01-01"),
    "decimal": Decimal("1.25"),
    "huge decimal": Decimal("1e999"),
    "signalling NaN": Decimal("sNaN"),
    "complex": 1j,
    "truth": True,
    "bomb": Bomb(1.0),
}


def objects(cells):
    array = np.empty(len(cells), dtype=object)
    array[:] = cells
    return array


def pandas_of(dtype):
    return lambda a, b: pd.DataFrame({"x_a": pd.Series(a, dtype=dtype), "x_b": pd.Series(b, dtype=dtype)})


def series(cells, dtype):
    if dtype != pl.Object and (isinstance(cells[0], Bomb) or cells[0] is CELLS["signalling NaN"]):
        raise TypeError("at these polars panics by itself")
    return pl.Series(cells, dtype=dtype)


def polars_of(dtype):
    return lambda a, b: pl.DataFrame({"x_a": series(a, dtype), "x_b": series(b, dtype)})


def arrow_of(kind):
    return lambda a, b: pa.table({"x_a": pa.array(a, kind), "x_b": pa.array(b, kind)})


ARROW = {
    "float64": pa.float64(),
    "float32": pa.float32(),
    "int64": pa.int64(),
    "decimal": pa.decimal128(38, 2),
    "wide decimal": pa.decimal256(76, 2),
}
TABLES = {
    "pandas objects": pandas_of(object),
    **{f"pandas {kind}": pandas_of(kind) for kind in ("float64", "float32", "Int64", "Float64")},
    **{f"pandas Arrow {name}": pandas_of(pd.ArrowDtype(kind)) for name, kind in ARROW.items()},
    "polars objects": polars_of(pl.Object),
    "polars lazy": lambda a, b: polars_of(pl.Float64)(a, b).lazy(),
    **{f"polars {kind}": polars_of(kind) for kind in (pl.Float64, pl.Float32, pl.Int64, pl.Int128, pl.Decimal(38, 2))},
    **{f"pyarrow {name}": arrow_of(kind) for name, kind in ARROW.items()},
}
MATRICES = {
    "numpy objects": lambda a, b: np.stack([objects(a), objects(b)], axis=1),
    "numpy float64": lambda a, b: np.array([a, b], dtype=np.float64).T,
    **TABLES,
}


def held(make, first):
    """A container of these cells, or None if its declared type cannot hold one: then nobody can send it."""
    try:
        return make(first, SECOND.tolist())
    except Exception:
        return None


def changed(cell, column=FIRST):
    return [cell] * MANY + column[MANY:].tolist()


def differs(make, work, cells=CELLS):
    """Cells whose outcome is another than a harmless cell's, and how many cells the container can hold."""
    expected = observed(lambda: work(make(changed(HARMLESS), SECOND.tolist())))
    assert expected[1][-1] is None, "a harmless person's data is taken"
    sent = {name: held(make, changed(cell)) for name, cell in cells.items()}
    sent = {name: data for name, data in sent.items() if data is not None}
    found = {name: observed(lambda data=data: work(data)) for name, data in sent.items()}
    return {name: seen for name, seen in found.items() if seen != expected}, len(sent)


def fitted(X, y=TRUTHS, **parameters):
    model = LogisticRegression(**(QUICK | {"classes": [False, True]} | parameters)).fit(X, y, groups=USERS)
    assert np.isfinite(model.coef_).all()
    return model.n_features_in_, model.coef_.shape, model.classes_.tolist(), model.aborted_, model.n_gradients_


def shape(data):
    """What may be seen of grouped users, and how many rows all but the hostile one have: that one may lose some."""
    return str(data), data.rows.dtype, np.diff(data.offsets)[1:].tolist(), data.has_targets


def with_ids(table):
    if isinstance(table, pa.Table):
        return table.append_column("who", pa.array(USERS))
    return table.assign(who=USERS) if isinstance(table, pd.DataFrame) else table.with_columns(pl.Series("who", USERS))


WAYS = {
    "fit": fitted,
    "from_arrays": lambda X: shape(UserData.from_arrays(X, TRUTHS, USERS, max_rows_per_user=ROWS, insecure_seed=1)),
    "private_mean": lambda X: private_mean(X, USERS, 8.0, 1e-4, insecure_seed=1).mean.shape,
    "PublicScaler": lambda X: PublicScaler(-1, 1).fit_transform(X).shape,
    "PrivateStandardScaler": lambda X: (
        PrivateStandardScaler(8.0, 1e-4, low=-1, high=1, insecure_seed=1).fit(X, groups=USERS).mean_.shape
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("container", MATRICES)
def test_cells_in_arrays_and_tables(container, way):
    strange, n_held = differs(MATRICES[container], WAYS[way])
    assert strange == {}
    assert n_held >= (len(CELLS) if "objects" in container else 2), "the container holds hostile cells"


@pytest.mark.parametrize("container", TABLES)
def test_cells_in_tables_by_name(container):
    def work(table):
        options = {"max_rows_per_user": ROWS, "insecure_seed": 1}
        return shape(UserData.from_table(with_ids(table), user="who", target="x_b", features=["x_a"], **options))

    assert differs(TABLES[container], work)[0] == {}
    assert differs(lambda a, b: TABLES[container](b, a), work)[0] == {}, "as targets"


# --- lists declare no width -------------------------------------------------------------------------------------------

ROWS_OF = {"wide": [0.0, 0.0, 0.0], "narrow": [0.0], "empty": [], "no row": 7.0, "text": "ab", "nothing": None}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [list, tuple])
def test_lists_are_refused_by_their_type(way, kind):
    """400 wider rows of one person made a model of three features of one of two."""
    rows = [*map(list, zip(FIRST.tolist(), SECOND.tolist(), strict=True))]
    _, expected = observed(lambda: WAYS[way](kind(rows)))
    assert "got " + kind.__name__ in expected[-1][1]
    for row in ROWS_OF.values():
        assert observed(lambda row=row: WAYS[way](kind([row] * MANY + rows[MANY:])))[1] == expected


@pytest.mark.parametrize("row", ROWS_OF)
def test_lists_are_taken_where_the_width_is_declared(row):
    rows = [[1.0, 1.0], *map(list, _HONEST.tolist())]
    for changes in (rows, [ROWS_OF[row], *rows[1:]]):
        scaler = PublicScaler(low=[-1, -1], high=[1, 1])
        np.testing.assert_array_equal(scaler.fit_transform(changes)[1:], _HONEST)
        assert scaler.n_features_in_ == 2


# --- labels and targets -----------------------------------------------------------------------------------------------

LABELS = {
    "list": list,
    "tuple": tuple,
    "numpy objects": objects,
    "pandas objects": lambda cells: pd.Series(cells, dtype=object),
    "pandas strings": lambda cells: pd.Series(cells, dtype="string"),
    "pandas Arrow": lambda cells: pd.Series(cells, dtype=pd.ArrowDtype(pa.string())),
    "pandas categories": lambda cells: pd.Series(cells, dtype="category"),
    "polars": lambda cells: series(cells, pl.String),
    "polars objects": lambda cells: pl.Series(cells, dtype=pl.Object),
    "pyarrow": lambda cells: pa.array(cells, pa.string()),
    "pyarrow dictionary": lambda cells: pa.array(cells, pa.string()).dictionary_encode(),
}
X = np.stack([FIRST, SECOND], axis=1).astype(float)


@pytest.mark.parametrize("container", LABELS)
def test_labels(container):
    words = np.where(TRUTHS, "yes", "no")

    def make(cells, _):
        return LABELS[container](["no" if cell is HARMLESS else cell for cell in cells[:MANY]] + words[MANY:].tolist())

    strange, n_held = differs(make, lambda y: fitted(X, y, classes=["no", "yes"]))
    assert strange == {}
    assert n_held >= 3


@pytest.mark.parametrize("container", ["list", "tuple", "numpy objects", "pandas objects", "polars objects"])
def test_targets(container):
    def work(y):
        model = LinearRegression(**QUICK, target_range=(-1, 1)).fit(X, y, groups=USERS)
        return model.coef_.shape, bool(np.isfinite(model.coef_).all())

    assert differs(lambda a, _: LABELS[container](a), work)[0] == {}


# --- files ------------------------------------------------------------------------------------------------------------

FIT = ["--user-column", "who", "--features", "x_*", "--epsilon", "8", "--delta", "1e-4", "--solver", "phased-sgd"]
FIT += ["--max-rows-per-user", str(ROWS), "--insecure-seed", "1", "--json"]
NUMBERS = ["--target", "amount", "--loss", "squared", "--target-range", "-1,1"]
WORDS = ["--target", "word", "--classes", "no,yes"]
LINES = {
    "wide": b"0,1,1,no,1,1,1",
    "narrow": b"0,1",
    "only the id": b"0",
    "text": b"0,secret,secret,secret,secret",
    "empty": b"0,,,,",
    "NA": b"0,NA,null,NaN,#N/A",
    "truths": b"0,true,FALSE,true,false",
    "numbers": b"0,1e999,-1e999,7," + b"9" * 400,
    "hexadecimal": b"0,0x1F,0x1F,0x1F,0x1F",
    "date": b"0,2020-01-01,12:30,2020-01-01,2020-01-01",
    "bytes": b"0,\xff\xfe,\xff,\xff,\xfe",
    "bytes, wide": b"0,\xff\xfe,\xff,\xff,\xfe,\xff,\xff",
    "zero byte": b"0,\0,\0,\0,\0",
    "quoted": b'0,"1,5","a\nb","""",""',
    "behind a quote": b'0,"1"x,"2" ,"no"","""""x',
    "wide, behind a quote": b'0,"1"x,"2",no,1,1,1',
    "list": b'0,"[1, 2]","[]","[no]","{}"',
    "decimal comma": b'0,"1,5","1,5","1,5","1,5"',
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write_csv(line):
    honest = zip(USERS[MANY:], FIRST[MANY:], SECOND[MANY:], np.where(TRUTHS, "yes", "no")[MANY:], strict=False)
    honest = [f"{who},{a},{b},{word},{a}".encode() for who, a, b, word in honest]
    Path("t.csv").write_bytes(b"\n".join([b"who,x_a,x_b,word,amount", *[line] * MANY, *honest]) + b"\n")
    return "t.csv"


def command_line(path, target):
    """Exit code and output, with the time taken out, and what the model's file is like."""
    result = run("fit", path, *FIT, *target, "--output", "m.json")
    said = without_releases(result.stdout), result.stderr
    model = json.loads(Path("m.json").read_text()) if result.exit_code == 0 else {"coef": []}
    return result.exit_code, said, np.shape(model["coef"]), bool(np.isfinite(model["coef"]).all())


@pytest.mark.parametrize("target", [NUMBERS, WORDS], ids=["numbers", "words"])
@pytest.mark.parametrize("line", LINES)
def test_lines_of_csv(folder, line, target):
    expected = observed(lambda: command_line(write_csv(b"0,1,1,no,1"), target))
    assert expected[0][0] == 0
    assert observed(lambda: command_line(write_csv(LINES[line]), target)) == expected
    table = UserData.from_table(open_table("t.csv"), user="who", features="x_*", target="amount")
    assert (table.n_users, table.n_features) == (N_USERS, 2)
    assert np.diff(table.offsets)[1:].tolist() == [ROWS] * (N_USERS - 1)


SCORE = ["--target", "word", "--user-column", "who", "--epsilon", "8", "--delta", "1e-4", "--insecure-seed", "1"]


@pytest.mark.parametrize("line", LINES)
def test_private_scores_of_csv(folder, line):
    """The scores are released with noise; besides them nothing may tell."""
    assert run("fit", write_csv(b"0,1,1,no,1"), *FIT, *WORDS, "--output", "m.json").exit_code == 0
    told = []
    for sent in (b"0,1,1,no,1", LINES[line]):
        result = run("evaluate", "m.json", write_csv(sent), *SCORE, "--json")
        assert result.exit_code == 0, result.stderr
        told.append(result.stderr)
        names = ["log_loss", "auc", "calibration_intercept", "calibration_slope"]
        assert list(json.loads(result.stdout)["scores"]) == names
    assert told[0] == told[1]


def write_typed(suffix, a, b, word):
    table = pa.table({"who": USERS, "x_a": a, "x_b": b, "word": word, "amount": a})
    if suffix == "parquet":
        pq.write_table(table, "t.parquet")
    else:
        pyarrow.feather.write_feather(table, "t.arrow")
    return f"t.{suffix}"


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
@pytest.mark.parametrize("kind", ARROW)
def test_numbers_in_typed_files(folder, suffix, kind):
    words = pa.array(np.where(TRUTHS, "yes", "no").tolist())

    def make(first, second):
        return pa.array(first, ARROW[kind]), pa.array(second, ARROW[kind])

    for target in (NUMBERS, WORDS):
        strange, n_held = differs(make, lambda made, t=target: command_line(write_typed(suffix, *made, words), t))
        assert strange == {}
        assert n_held >= 2


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view(), "dictionary"], ids=str)
def test_words_in_typed_files(folder, suffix, kind):
    honest = [word.encode() for word in np.where(TRUTHS, "yes", "no")[MANY:]]

    def make(word):
        plain = {pa.large_string(): pa.large_binary(), pa.string_view(): pa.binary_view()}.get(kind, pa.binary())
        made = pa.array([word] * MANY + honest, plain)
        if kind != "dictionary":
            return made.view(kind)
        made = made.dictionary_encode()
        return pa.DictionaryArray.from_arrays(made.indices, made.dictionary.view(pa.string()))

    def work(word):
        return command_line(write_typed(suffix, FIRST, SECOND, make(word)), WORDS)

    expected = observed(lambda: work(b"no"))
    assert expected[0][0] == 0
    for word in (SECRET.encode(), b"", None, b"\xff\xfe", b"\0", b"x" * 100_000):
        assert observed(lambda word=word: work(word)) == expected
