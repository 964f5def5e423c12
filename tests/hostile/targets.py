"""What is fuzzed: functions of bytes that read files, arguments or arrays made of them, and say what may come of it.

Each must end in success or in an error of the documented types, whose words quote nothing. Hypothesis drives them in
the test suite (test_fuzz.py), atheris for as long as one likes (fuzz.py).
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import math
import os
import sqlite3
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
from typer.testing import CliRunner
from words import FIT, WORDS

from userdp import Budget, Curator, Ledger, LogisticRegression, Solver, UserData, load_model, save_model
from userdp.cli import app
from userdp.data.schema import Schema, ids, numbers
from userdp.data.tables import open_table, write_table
from userdp.models.means import private_mean
from userdp.models.sklearn_compat import UtilityWarning
from userdp.privacy.clip import Clip
from userdp.privacy.mechanism import Aborted
from userdp.privacy.plan import Plan, Step
from userdp.report import write_report
from userdp.statistics.moments import UserMean

DOCUMENTED = (ValueError, TypeError, FileNotFoundError)
SECRET = "SECRET-4711"
ODD = [
    math.nan,
    math.inf,
    -math.inf,
    1e308,
    5e-324,
    -0.0,
    2**63,
    -1,
    0,
    1,
    10**400,
    None,
    True,
    "",
    SECRET,
    b"\xff",
    1j,
]


class Bytes:
    """Decisions made of bytes, one after the other; zeros when they run out."""

    def __init__(self, data):
        self._data, self._at = data, 0

    def take(self, n):
        self._at += n
        return self._data[self._at - n : self._at].ljust(n, b"\0")

    def below(self, n):
        return int.from_bytes(self.take(2), "little") % n

    def pick(self, options):
        return options[self.below(len(options))]

    def rest(self):
        return self._data[self._at :]

    def text(self):
        return self.take(self.below(12)).decode("utf-8", "replace")


def damaged(chosen, whole):
    """A whole file with some bytes changed, cut out or put in; or something else entirely."""
    if chosen.below(8) == 0:
        return chosen.rest()
    made = bytearray(whole)
    for _ in range(1 + chosen.below(4)):
        at, kind = chosen.below(len(made) + 1), chosen.below(4)
        if kind == 0:
            made[at : at + 1] = chosen.take(1)
        elif kind == 1:
            made[at : at + chosen.below(64)] = b""
        elif kind == 2:
            made[at:at] = chosen.take(chosen.below(16))
        else:
            made[at : at + 4] = b"\xff\xff\xff\x7f"
    return bytes(made)


@contextlib.contextmanager
def documented():
    """Success, or an error of the documented types that quotes no cell and leads to none that could."""
    caught = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", UtilityWarning)  # of public numbers
            yield
    except DOCUMENTED as error:
        caught = error
    if caught is not None:
        assert SECRET not in str(caught), "an error quotes a cell"
        assert caught.__cause__ is None


@functools.cache
def table():
    return pa.table(
        {
            "who": [f"u{i // 3}" for i in range(30)],
            "x": np.linspace(-1, 1, 30),
            "n": pa.array([None, *range(29)]),
            "note": [SECRET] * 30,
        }
    )


@functools.cache
def whole_table(suffix):
    with tempfile.TemporaryDirectory() as folder:
        write_table(table(), Path(folder) / f"t{suffix}")
        return (Path(folder) / f"t{suffix}").read_bytes()


def table_file(data):
    """A damaged Parquet, CSV or Arrow file, read in all the ways there are."""
    chosen = Bytes(data)
    suffix = chosen.pick([".csv", ".parquet", ".arrow", ".tsv"])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"t{suffix}"
        path.write_bytes(damaged(chosen, whole_table(suffix)))
        with documented():
            found = open_table(path)
            names = found.column_names
            for read in (lambda name: numbers("x", found[name]), lambda name: ids(found[name]), found.guess):
                for name in names[:4]:
                    with documented():
                        len(read(name))
            if len(names) > 1:
                users = UserData.from_table(found, user=names[0], features=list(names[1:3]), max_rows_per_user=2)
                assert users.n_users >= 2
                assert np.diff(users.offsets).max() <= 2


def arrays(data):
    """Arrays, lists and ids of all kinds."""
    chosen = Bytes(data)
    n_rows, width = chosen.below(7), chosen.below(3) + 1
    kind = chosen.pick(["f4", "f8", "f2", "i8", "u8", "?", "O", "U4", "M8[s]", "c16", ">f8", "list"])
    if kind in ("O", "list"):
        cells = [[chosen.pick(ODD) for _ in range(width)] for _ in range(n_rows)]
        X = cells if kind == "list" else np.array(cells, dtype=object).reshape(n_rows, width)
    else:
        raw = chosen.take(n_rows * width * np.dtype(kind).itemsize)
        with np.errstate(all="ignore"):
            codes = [code % 1000 for code in raw[: n_rows * width]] if kind == "U4" else None
            X = np.array(codes, dtype=kind) if codes is not None else np.frombuffer(raw, dtype=kind)
            X = X.reshape(n_rows, width)
    ids = [chosen.pick([1, 1.0, "1", True, None, math.nan, ("a", 1), b"1", 2**70, [1], 0, "b"]) for _ in range(n_rows)]
    who = chosen.pick([list, np.array, tuple, pa.array])
    y = chosen.pick([None, [chosen.pick(ODD) for _ in range(n_rows)], np.zeros(n_rows), np.zeros((n_rows, 2))])
    options = {
        "max_rows_per_user": chosen.pick([None, 1, 2, 0, -1, 1.5]),
        "fill_missing": chosen.pick([None, 0.0, 1e39]),
    }
    try:
        users = who(ids)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):  # no such array
        return
    with documented():
        found = UserData.from_arrays(X, y, users, **options)
        assert found.n_users >= 2
        assert found.rows.dtype in (np.float32, np.float64)
    with documented(), contextlib.suppress(Aborted):
        private_mean(X, users, 50.0, 1e-2, insecure_seed=1)
    model = LogisticRegression(
        50.0, 1e-2, classes=[0, 1], insecure_seed=1, solver=Solver("whitened-clip", max_gradients=200)
    )
    with documented():
        model.fit(X, y, groups=users)
        assert np.isfinite(model.coef_).all()


@functools.cache
def whole_model():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (300, 2))
    model = LogisticRegression(
        8.0, 1e-4, classes=[0, 1], insecure_seed=1, solver=Solver("whitened-clip", max_gradients=20_000)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(X, X[:, 0] > 0, groups=np.arange(300) // 3).to_dict()


def changed(chosen, record):
    """A JSON value with one entry somewhere replaced."""
    if isinstance(record, dict) and record and chosen.below(8):
        name = chosen.pick(sorted(record))
        if chosen.below(16) == 0:
            return {key: value for key, value in record.items() if key != name}
        return record | {name: changed(chosen, record[name])}
    if isinstance(record, list) and record and chosen.below(8):
        at = chosen.below(len(record))
        return [*record[:at], changed(chosen, record[at]), *record[at + 1 :]]
    odd = [
        None,
        True,
        -1,
        0,
        2**70,
        10**400,
        1e308,
        5e-324,
        0.5,
        "",
        "<script>x</script>",
        "__class__",
        "\x1b[2J",
        "\ud800",
    ]
    return chosen.pick([*odd, [], {}, [[]], [1, 2], {"a": 1}, chosen.text()])


def model_file(data):
    """A damaged model file; what loads must predict, print, be saved and be reported."""
    chosen = Bytes(data)
    if chosen.below(3) == 0:
        content = damaged(chosen, json.dumps(whole_model()).encode())
    else:
        record = whole_model()
        for _ in range(1 + chosen.below(2)):
            record = changed(chosen, record)
        content = json.dumps(record).replace('"infinite"', "1e999").encode()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        path.write_bytes(content)
        with documented():
            model = load_model(path)
            assert np.isfinite(np.asarray(model.predict(np.zeros((2, model.n_features_in_))) == 0)).all()
            assert str(model.privacy_)
            again = load_model(save_model(model, Path(folder) / "again.json"))
            assert again.to_dict() == model.to_dict()
            with documented():
                write_report(model, Path(folder) / "report.html")
                assert "<script>x" not in (Path(folder) / "report.html").read_text()


PLAN = Plan(100, (Step("mean", 0, 100, Clip(100, 20.0)),))


@functools.cache
def whole_ledger():
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(Budget(9.0, 1e-4), Path(folder) / "l.db")
        ledger.charge(PLAN, "one")
        ledger.charge(PLAN, "two")
        return (Path(folder) / "l.db").read_bytes()


def use_ledger(path):
    ledger = Ledger.open(path)
    assert ledger.spent_epsilon() >= 0
    before = len(ledger.charges())
    ledger.charge(PLAN, "more")
    assert len(ledger.charges()) == before + 1


def ledger_file(data):
    """A damaged ledger: bytes, or cells of its tables."""
    chosen = Bytes(data)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "l.db"
        if chosen.below(3) == 0:
            path.write_bytes(damaged(chosen, whole_ledger()))
        else:
            path.write_bytes(whole_ledger())
            odd = [
                None,
                "",
                "x",
                -1,
                1.5,
                math.nan,
                math.inf,
                1e308,
                b"\xff",
                "[]",
                "{}",
                "[[]]",
                '[{"gaussian": NaN}]',
            ]
            costs = json.loads(json.dumps([cost.to_json() for cost in PLAN.costs]))
            odd += [json.dumps(changed(chosen, costs)), "[" * 3000, 2**62]
            where = {
                "budget": ("epsilon", "delta", "identity"),
                "runs": ("charged_at", "purpose", "insecure_seed", "costs"),
            }
            where["steps"] = ("run", "label", "mechanism", "start", "stop")
            name = chosen.pick(sorted(where))
            db = sqlite3.connect(path)
            with contextlib.suppress(sqlite3.Error):
                action = chosen.below(4)
                if action == 0:
                    db.execute(chosen.pick([f"DELETE FROM {name}", f"DROP TABLE {name}", "PRAGMA user_version = 9"]))
                else:
                    db.execute(f"UPDATE {name} SET {chosen.pick(where[name])} = ?", (chosen.pick(odd),))
                db.commit()
            db.close()
        with documented():
            use_ledger(path)
        result = CliRunner().invoke(app, ["ledger", "show", str(path)])
        check_outcome(result)


JOURNAL_USERS = UserData.from_arrays(np.linspace(-1, 1, 100).reshape(100, 1), None, np.arange(100))


def journaled(path):
    """The two releases of a run, those that the journal holds as they were."""
    plan = Plan(100, (Step("mean", 0, 100, Clip(100, 20.0, rounds=2)),))
    with contextlib.closing(Curator(JOURNAL_USERS, plan, Ledger(Budget(9.0, 1e-4)), checkpoint=path)) as curator:
        return [curator.release("mean", UserMean(), 1.0).tolist() for _ in range(2)]


def journal_file(data):
    """A damaged journal, of bytes or cells: it is refused, or what it holds is given as it was."""
    chosen = Bytes(data)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.journal"
        released = journaled(path)
        if chosen.below(3) == 0:
            whole = path.read_bytes()
            with open(path, "r+b") as file:  # the same file, by which a journal is known
                file.truncate(0)
                file.write(damaged(chosen, whole))
        else:
            odd = [None, "", "x", -1, 1.5, math.nan, 1e308, b"\xff", "[]", "{}", "[null]", "[" * 3000, 2**62]
            columns = {"run": ("facts", "token", "command", "inode")}
            columns["records"] = ("number", "kind", "label", "statistic", "radius", "value", "state", "digest")
            name = chosen.pick(sorted(columns))
            with contextlib.closing(sqlite3.connect(path)) as db, contextlib.suppress(sqlite3.Error), db:
                if chosen.below(4) == 0:
                    db.execute(chosen.pick([f"DELETE FROM {name} WHERE rowid = 1", f"DROP TABLE {name}"]))
                else:
                    db.execute(f"UPDATE {name} SET {chosen.pick(columns[name])} = ?", (chosen.pick(odd),))
        with documented():
            assert journaled(path) == released
        check_outcome(CliRunner().invoke(app, ["resume", str(path)]))


@functools.cache
def whole_store():
    """A table in a file that stays, its store's files, and what they hold."""
    folder = tempfile.TemporaryDirectory()
    path = Path(folder.name) / "t.parquet"
    write_table(table(), path)
    data = of_store(path, Path(folder.name) / "store", [])
    files = {file.name: file.read_bytes() for file in (Path(folder.name) / "store").iterdir()}
    return folder, path, files, (data.rows.tobytes(), data.targets.tobytes(), data.offsets.tolist(), data.user_ids)


def of_store(path, place, told):
    schema = Schema("who", ("x", "n"), "n")
    options = {"memory_limit": "64MB", "store": place, "keep_user_ids": True, "tell": told.append}
    return UserData.from_schema(open_table(path), schema, **options)


def store_folder(data):
    """A damaged store, of bytes or of what its manifest says: it gives what it held, or is made anew, with a word."""
    chosen = Bytes(data)
    _, path, files, right = whole_store()
    with tempfile.TemporaryDirectory() as folder:
        place, told = Path(folder) / "store", []
        place.mkdir()
        for name, content in files.items():
            (place / name).write_bytes(content)
        kind, name = chosen.below(4), chosen.pick([*sorted(files), "manifest.json"])
        if kind == 0:
            (place / name).unlink()
        elif kind == 1:
            (place / name).write_bytes(damaged(chosen, files[name]))
        else:
            made = changed(chosen, json.loads(files["manifest.json"]))
            (place / "manifest.json").write_text(json.dumps(made))
        with documented():
            found = of_store(path, place, told)
            assert (found.rows.tobytes(), found.targets.tobytes(), found.offsets.tolist(), found.user_ids) == right
            assert kind != 0 or len(told) == 1
            assert SECRET not in str(told)
            assert {file.name for file in place.iterdir()} == set(files)


def check_outcome(result):
    """An exit code that is documented, no traceback, no bug met, no cell quoted."""
    error = result.exception
    assert error is None or isinstance(error, SystemExit), f"{type(error).__name__}: {error}"
    assert result.exit_code in (0, 1, 2, 3), result.output
    for told in ("Traceback", "Internal error", SECRET):
        assert told not in result.output, result.output


def arguments(data):
    """The command line with any words; a charge is only there if a model was written, or the words say so."""
    chosen = Bytes(data)
    if chosen.below(2):
        words = list(FIT)
        for _ in range(1 + chosen.below(3)):
            words[chosen.below(len(words))] = chosen.pick(WORDS)
    else:
        words = [chosen.pick(WORDS) for _ in range(1 + chosen.below(12))]
    if chosen.below(4) == 0:
        words.append(chosen.text())
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("data.csv").write_bytes(whole_table(".csv"))
        Path("data.parquet").write_bytes(whole_table(".parquet"))
        Path("model.json").write_text(json.dumps(whole_model()))
        Path("l.db").write_bytes(whole_ledger())
        os.environ.pop("USERDP_DEBUG", None)
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")  # as the program does
            result = CliRunner().invoke(app, words)
        check_outcome(result)
        for name in os.listdir():
            if os.path.isfile(name) and Path(name).read_bytes().startswith(b"SQLite format 3"):
                more = len(Ledger.open(name).charges()) - 2 * (name == "l.db")
                made = any(path.suffix == ".json" and path.name != "model.json" for path in Path().iterdir())
                assert more <= 0 or made or result.exit_code in (0, 3) or "is spent" in result.output


TARGETS = {
    target.__name__: target
    for target in (table_file, arrays, model_file, ledger_file, journal_file, store_folder, arguments)
}
