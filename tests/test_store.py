"""Data larger than memory: what a store holds is what the table holds, and whatever happens to it is noticed."""

import datetime
import decimal
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from userdp import Budget, Clip, Curator, Ledger, LinearRegression, LogisticRegression, Plan, Step, UserData
from userdp.cli import app
from userdp.data import store as stores
from userdp.data.schema import Schema
from userdp.data.store import StoreWarning, parsed_limit
from userdp.data.tables import open_table
from userdp.models.means import mean_of_users
from userdp.statistics.moments import UserMean

RNG = np.random.default_rng(0)
N_ROWS, N_USERS = 3000, 200
OWNERS = RNG.integers(0, N_USERS, N_ROWS)
LIMIT = "64MB"
COLUMNS = {"user": "who", "features": "x*", "target": "y"}
IDS = {
    "int64": pa.array(OWNERS - 5),
    "uint64": pa.array(OWNERS.astype(np.uint64) + np.uint64(2**63)),
    "float64": pa.array(np.where(OWNERS == 3, -0.0, np.where(OWNERS == 4, 0.0, OWNERS / 8))),
    "float32": pa.array((OWNERS / 8).astype(np.float32)),
    "text": pa.array([f"u{owner}" for owner in OWNERS]),
    "large text": pa.array([f"ü{owner}" for owner in OWNERS], pa.large_string()),
    "dictionary": pa.array([f"u{owner}" for owner in OWNERS]).dictionary_encode(),
    "binary": pa.array([bytes([owner, 0]) for owner in OWNERS]),
    "date": pa.array([datetime.date(2020, 1, 1) + datetime.timedelta(int(owner)) for owner in OWNERS]),
    "timestamp": pa.array(OWNERS.astype("M8[us]")),
    "decimal": pa.array([decimal.Decimal(int(owner)) / 4 for owner in OWNERS], pa.decimal128(10, 2)),
    "boolean": pa.array(OWNERS % 2 == 0),
}


def table_of(ids=IDS["text"], **more):
    rng = np.random.default_rng(1)
    X = rng.standard_normal((N_ROWS, 3))
    X[rng.random(X.shape) < 0.02] = np.nan
    X[7, 1], X[8, 1] = np.inf, -0.0
    columns = {f"x{i}": X[:, i] for i in range(3)} | {"y": rng.random(N_ROWS) < 0.5}
    return pa.table({"who": ids, **columns, **more})


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "visits.parquet"
    pq.write_table(table_of(), path, row_group_size=700)
    return path


def stored(path, **options):
    return UserData.from_parquet(path, **COLUMNS | {"memory_limit": LIMIT, "store": path.with_name("store")} | options)


def by_id(data):
    """Each user's rows and targets, as bytes."""
    cells = [[part.tobytes() for part in data.rows_of(user)] for user in range(data.n_users)]
    return dict(zip(data.user_ids, cells, strict=True))


# --- the same data ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", IDS)
def test_a_store_holds_what_the_table_holds(kind, tmp_path):
    path = tmp_path / "t.parquet"
    pq.write_table(table_of(IDS[kind]), path, row_group_size=700)
    data, read = stored(path, keep_user_ids=True), UserData.from_parquet(path, **COLUMNS, keep_user_ids=True)
    assert by_id(data) == by_id(read)
    assert list(map(type, data.user_ids)) == [type(next(iter(read.user_ids)))] * data.n_users
    again = stored(path, keep_user_ids=True)
    assert again.user_ids == data.user_ids
    assert by_id(again) == by_id(read)


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": np.float32},
        {"fill_missing": 0.25, "dtype": np.float32},
        {"fit_intercept": True, "fill_missing": -1},
        {"classes": [False, True]},
        {"classes": [0, 1, 2]},
        {"target": None},
        {"target": "n", "features": ["x2", "i", "x0"]},
        {"target": "label", "classes": ["no", "yes"], "features": "x0,m"},
    ],
    ids=str,
)
def test_columns_and_options_are_read_as_in_memory(options, tmp_path):
    path = tmp_path / "t.parquet"
    labels = pa.array(RNG.choice(["no", "yes", "never", None], N_ROWS)).dictionary_encode()
    more = {"label": labels, "n": pa.array([None, 2**62, *range(N_ROWS - 2)]), "i": OWNERS.astype(np.uint8)}
    more["m"] = pa.array([decimal.Decimal("0.1")] * N_ROWS)
    pq.write_table(table_of(**more), path)
    data = stored(path, keep_user_ids=True, **options)
    read = UserData.from_parquet(path, **COLUMNS | {"keep_user_ids": True} | options)
    assert by_id(data) == by_id(read)
    assert (data.rows.dtype, data.has_targets, data.has_intercept) == (
        read.rows.dtype,
        read.has_targets,
        read.has_intercept,
    )


def test_folders_and_arrow_files(tmp_path):
    table, folder = table_of(), tmp_path / "parts"
    folder.mkdir()
    for i in range(3):
        pq.write_table(table.slice(1000 * i, 1000), folder / f"{i}.parquet", row_group_size=300)
    read = by_id(UserData.from_table(table, **COLUMNS, keep_user_ids=True))
    assert by_id(stored(folder, keep_user_ids=True)) == read
    options = {"memory_limit": LIMIT, "keep_user_ids": True}
    schema = Schema.declare(table.column_names, "who", "x*", "y")
    path = tmp_path / "visits.arrow"
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=900)
    data = UserData.from_schema(open_table(path), schema, **options, store=tmp_path / "arrow")
    assert data.store is not None
    assert by_id(data) == read


@pytest.mark.parametrize("at_a_time", [1, 7, 100, 16384])
@pytest.mark.parametrize("cap", [None, 1, 4])
def test_any_size_of_batches_gives_the_same(at_a_time, cap, source, monkeypatch):
    monkeypatch.setattr(stores, "_rows_at_a_time", lambda limit, request: at_a_time)
    options = {"keep_user_ids": True, "max_rows_per_user": cap, "insecure_seed": 3}
    data = stored(source, **options)
    expected = by_id(UserData.from_parquet(source, **COLUMNS, keep_user_ids=True))
    assert set(by_id(data)) == set(expected)
    if cap is None:
        assert by_id(data) == expected
        return
    for identifier, (_, targets) in by_id(data).items():
        assert len(targets) == min(8 * cap, len(expected[identifier][1]))
    shutil.rmtree(data.store.path)
    monkeypatch.undo()
    assert by_id(stored(source, **options)) == by_id(data)  # a seed's choice does not depend on batches


def test_a_cap_keeps_a_random_choice_in_the_tables_order(source):
    read = UserData.from_parquet(source, **COLUMNS, keep_user_ids=True)
    whole = {i: [row.tobytes() for row in read.rows_of(u)[0]] for u, i in enumerate(read.user_ids)}
    choices = []
    for _ in range(2):
        data = stored(source, keep_user_ids=True, max_rows_per_user=4)
        for user, identifier in enumerate(data.user_ids):
            kept = [row.tobytes() for row in data.rows_of(user)[0]]
            assert len(kept) == min(4, len(whole[identifier]))
            places = [whole[identifier].index(row) for row in kept]
            assert places == sorted(set(places))
        choices.append(np.array(data.rows))
        shutil.rmtree(source.with_name("store"))
    assert not np.array_equal(*choices, equal_nan=True)


def test_every_row_is_kept_equally_often(tmp_path):
    """Of 6 rows of each of 2000 users 2 are kept: each place a third of the time, within 5 standard deviations."""
    path, n_users = tmp_path / "t.parquet", 2000
    places = np.tile(np.arange(6.0), n_users)
    pq.write_table(pa.table({"who": np.repeat(np.arange(n_users), 6), "x": places, "y": places}), path)
    data = stored(path, max_rows_per_user=2)
    counts = np.bincount(data.rows[:, 0].astype(int), minlength=6)
    assert data.n_rows == 2 * n_users
    assert np.all(np.abs(counts - n_users / 3) < 5 * np.sqrt(n_users * 2 / 9))


def test_a_small_table_is_read_into_memory(source):
    data = UserData.from_parquet(source, **COLUMNS, memory_limit=LIMIT)
    assert data.store is None
    assert os.listdir(source.parent) == [source.name]


# --- a store is made once, whole or not at all, and used while it is right --------------------------------------------


def builds(monkeypatch):
    """How often a table is sorted from here on."""
    made, sort = [], stores._sorted_into
    monkeypatch.setattr(stores, "_sorted_into", lambda *args: made.append(1) or sort(*args))
    return made


def test_a_store_is_used_again_and_secret(source, monkeypatch):
    made = builds(monkeypatch)
    stored(source, keep_user_ids=True)
    place = source.with_name("store")
    assert sorted(os.listdir(place)) == [
        *("affected.npy", "ids.arrow", "manifest.json", "offsets.npy", "rows.npy", "targets.npy")
    ]
    assert place.stat().st_mode & 0o777 == 0o700
    assert sorted(os.listdir(source.parent)) == ["store", "visits.parquet"]
    stored(source)
    assert len(made) == 1
    os.utime(source)
    with pytest.warns(StoreWarning, match="is of another version of visits"):
        stored(source, keep_user_ids=True)
    assert len(made) == 2


def test_the_default_place_is_beside_the_table(source, monkeypatch):
    monkeypatch.setattr(stores, "_BYTES_PER_ROW", 10**9)
    data = stored(source, store=None)
    assert data.store.path == source.with_name("visits.parquet.userdp-store")


@pytest.mark.parametrize("change", ["content", "options", "classes", "seed"])
def test_another_source_or_request_makes_it_anew(change, source, monkeypatch):
    options = {"max_rows_per_user": 3, "insecure_seed": 1} if change == "seed" else {}
    before, made, expected = stored(source, **options), builds(monkeypatch), "other columns or options"
    if change == "content":
        pq.write_table(table_of().slice(1), source)
        expected = "another version of visits.parquet"
    options = {"options": {"fill_missing": 0}, "classes": {"classes": [False, True]}}.get(change, {})
    options = {"max_rows_per_user": 3} if change == "seed" else options
    with pytest.warns(StoreWarning, match=expected):
        after = stored(source, **options)
    assert len(made) == 1
    assert before.rows.shape[1] == 3  # what was mapped is still there
    assert after.insecure_seed is None


def test_files_that_are_written_again_behind_the_clock_are_noticed(source):
    """In place, with the size and the time of modification as before."""
    stored(source)
    told = source.stat()
    source.write_bytes(source.read_bytes())
    os.utime(source, ns=(told.st_atime_ns, told.st_mtime_ns))
    with pytest.warns(StoreWarning, match="is of another version of visits"):
        stored(source)


@pytest.mark.parametrize("name", ["rows.npy", "targets.npy", "offsets.npy", "ids.arrow", "manifest.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "longer"])
def test_a_damaged_store_is_made_anew(name, damage, source, monkeypatch):
    right = by_id(stored(source, keep_user_ids=True))
    path, made = source.with_name("store") / name, builds(monkeypatch)
    whole = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        at = len(whole) * 2 // 3
        flipped = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        path.write_bytes({"flip": flipped, "cut": whole[:at], "longer": whole + b"\0"}[damage])
    expected = "it is rebuilt" if (name, damage) == ("manifest.json", "flip") else "is damaged: it is rebuilt"
    with pytest.warns(StoreWarning, match=expected):
        assert by_id(stored(source, keep_user_ids=True)) == right
    assert len(made) == 1


def test_what_is_no_store_is_left_alone(source, tmp_path):
    for place in (tmp_path / "photos", tmp_path / "file"):
        if place.name == "photos":
            place.mkdir()
            (place / "holiday.jpg").write_bytes(b"x")
        else:
            place.write_bytes(b"x")
        with pytest.raises(ValueError, match="is no store"):
            stored(source, store=place)
    assert (tmp_path / "photos" / "holiday.jpg").exists()
    assert (tmp_path / "file").read_bytes() == b"x"


CHILD = """
import sys, time
from userdp.data import store
from userdp import UserData
write = store._Writer.end
def slow(self):
    print("here", flush=True)
    time.sleep(float(sys.argv[3]))
    return write(self)
store._Writer.end = slow
UserData.from_parquet(sys.argv[1], user="who", features="x*", target="y", memory_limit="64MB", store=sys.argv[2])
"""


def child(source, seconds):
    words = [sys.executable, "-c", CHILD, str(source), str(source.with_name("store")), str(seconds)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def test_a_killed_build_leaves_no_store_and_is_cleaned_up(source):
    process = child(source, 60)
    assert process.stdout.readline() == "here\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    left = [name for name in os.listdir(source.parent) if name.startswith(".")]
    assert left == [".store.making"]
    assert (source.parent / left[0]).stat().st_mode & 0o777 == 0o700
    assert not source.with_name("store").exists()
    stored(source)
    assert sorted(os.listdir(source.parent)) == ["store", "visits.parquet"]


def test_two_that_build_at_once_leave_one_whole_store(source, monkeypatch):
    processes = [child(source, 0.5) for _ in range(2)]
    for process in processes:
        assert process.stdout.readline() == "here\n"
    assert [process.wait() for process in processes] == [0, 0]
    for process in processes:
        process.stdout.close()
    made = builds(monkeypatch)
    stored(source)
    assert made == []
    assert sorted(os.listdir(source.parent)) == ["store", "visits.parquet"]


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "size"),
    [("2GB", 2 * 10**9), ("1.5 GiB", 3 * 2**29), ("100mb", 10**8), (10**9, 10**9), ("64000K", 64 * 10**6)],
)
def test_limits(limit, size):
    assert parsed_limit(limit) == size


@pytest.mark.parametrize(
    "limit", ["", "2", "lots", "1KB", "-2GB", "nan", "1e9", 5, True, 2.0, "9" * 15 + "TB", None, b"2GB"]
)
def test_limits_that_are_none(limit):
    with pytest.raises(ValueError, match="memory_limit"):
        parsed_limit(limit)


def test_errors_are_those_of_types_and_quote_nothing(source, tmp_path):
    with pytest.raises(ValueError, match="store needs memory_limit"):
        stored(source, memory_limit=None)
    with pytest.raises(TypeError, match=r"column 'who' must be numeric .* got text"):
        stored(source, target="who", user="y", features="x*")
    with pytest.raises(ValueError, match=r"memory_limit must be at least .*one user's rows are held"):
        stored(source, max_rows_per_user=10**7)
    with pytest.raises(ValueError, match=r"max_rows_per_user must be .* got 0"):
        stored(source, max_rows_per_user=0)
    csv = tmp_path / "t.csv"
    csv.write_text("who,x,y\na,1,2\nb,1,2\n")
    schema = Schema.declare(["who", "x", "y"], "who", "x", "y")
    with pytest.raises(ValueError, match="memory_limit is for Parquet and Arrow files"):
        UserData.from_schema(open_table(csv), schema, memory_limit=LIMIT)
    with pytest.raises(TypeError, match="in memory already"):
        UserData.from_schema(table_of(), schema, memory_limit=LIMIT)
    with pytest.raises(ValueError, match="choose another place"):
        stored(source, store=tmp_path / "nowhere" / "store")
    nested = tmp_path / "nested.parquet"
    pq.write_table(table_of(pa.array([[1]] * N_ROWS)), nested)
    with pytest.raises(TypeError, match="User ids must be text, numbers"):
        stored(nested)
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (table_of(pa.array([None, *["a"] * (N_ROWS - 1)])), "ids are missing"),
        (table_of(pa.array([np.nan, *np.arange(N_ROWS - 1.0)])), "ids are missing"),
        (table_of(pa.nulls(N_ROWS)), "ids are missing"),
        (table_of(pa.array(["a"] * N_ROWS)), "n_users must be at least 2, got 1"),
        (table_of().slice(0, 0), "table is empty"),
    ],
)
def test_the_same_errors_as_in_memory(table, message, tmp_path):
    path = tmp_path / "t.parquet"
    pq.write_table(table, path)
    for more in ({"memory_limit": None, "store": None}, {}):
        with pytest.raises(ValueError, match=message):
            stored(path, **more)
    assert os.listdir(tmp_path) == ["t.parquet"]


def test_a_broken_file_is_said_to_be_one(source):
    whole = bytearray(source.read_bytes())
    whole[500:20000] = b"SECRET-4711" * (19500 // 11 + 1)
    source.write_bytes(whole[: len(source.read_bytes())])
    with pytest.raises(ValueError, match="not Parquet, or is damaged") as caught:
        stored(source)
    assert caught.value.__cause__ is None
    assert "SECRET" not in str(caught.value)
    assert os.listdir(source.parent) == [source.name]


def test_without_duckdb_it_is_said_before_anything_is_done(source, monkeypatch):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(ValueError, match=r"pip install 'userdp\[store\]'"):
        stored(source)
    assert os.listdir(source.parent) == [source.name]


def test_a_full_disk_is_said_to_be_one(source, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(stores._Writer, "_write", full)
    monkeypatch.setattr(stores.shutil, "disk_usage", lambda path: stores.shutil._ntuple_diskusage(10, 10, 0))
    with pytest.raises(ValueError, match="There is too little room on the disk"):
        stored(source)
    assert os.listdir(source.parent) == [source.name]
    monkeypatch.undo()
    data = stored(source)
    monkeypatch.setattr(stores.os, "posix_fallocate", full)
    with pytest.raises(ValueError, match="There is too little room on the disk"):
        data.scratch((10,), np.float64)


def test_a_file_that_changes_while_it_is_read_is_noticed(source, monkeypatch):
    end = stores._Writer.end
    monkeypatch.setattr(stores._Writer, "end", lambda self: (os.utime(source), end(self))[1])
    with pytest.raises(ValueError, match="changed while it was read"):
        stored(source)


# --- fits -------------------------------------------------------------------------------------------------------------


def plain(tmp_path, n_users=400, rows=6):
    """A table without missing cells, whose users come in the order of their ids: both ways number them alike."""
    rng = np.random.default_rng(2)
    X, path = rng.standard_normal((n_users * rows, 3)), tmp_path / "plain.parquet"
    y = X @ [1.0, -1.0, 0.5] + rng.standard_normal(len(X))
    columns = {f"x{i}": X[:, i] for i in range(3)} | {"y": y, "won": y > 0}
    pq.write_table(pa.table({"who": np.repeat(np.arange(n_users), rows), **columns}), path)
    return path


@pytest.mark.filterwarnings("ignore::userdp.models.sklearn_compat.UtilityWarning")
@pytest.mark.parametrize("solver", ["auto", "phased-sgd", "accelerated"])
def test_fits_are_the_same_as_in_memory(solver, tmp_path):
    path, found = plain(tmp_path), []
    for more in ({}, {"memory_limit": LIMIT, "store": tmp_path / "store"}):
        if solver in ("auto", "phased-sgd"):
            options = COLUMNS | {"target": "won", "classes": [False, True]}
            model = LogisticRegression(epsilon=5, solver=solver, classes=[False, True], insecure_seed=0)
        else:
            options = COLUMNS
            model = LinearRegression(epsilon=5, solver=solver, target_range=(-3, 3), insecure_seed=0)
        data = UserData.from_parquet(path, **options, fit_intercept=True, max_rows_per_user=50, **more)
        assert (data.store is None) == (not more)
        try:
            model.fit_users(data)
            found.append((np.ravel(model.coef_).tolist(), model.result_.message))
        except ValueError as error:  # too few users: the same on both
            found.append(str(error))
    assert found[0] == found[1]


def test_what_is_as_long_as_the_rows_is_kept_in_files(tmp_path):
    data = UserData.from_parquet(plain(tmp_path), **COLUMNS, memory_limit=LIMIT, store=tmp_path / "store")
    made = data.scratch((7, 2), np.float32)
    made[:] = 1.5
    assert made.shape == (7, 2)
    assert made.sum() == 21
    assert not isinstance(made.base, np.ndarray) or made.base.base is not None
    assert sorted(os.listdir(tmp_path)) == ["plain.parquet", "store"]


def test_a_plan_that_holds_too_much_is_refused_before_it_is_charged(tmp_path):
    data = UserData.from_parquet(plain(tmp_path), **COLUMNS, memory_limit=LIMIT, store=tmp_path / "store")
    object.__setattr__(data.store, "memory_limit", 400 * 48 + 10)
    ledger = Ledger(Budget(9.0, 1e-4))
    with pytest.raises(ValueError, match=r"memory_limit >= .* vector of each .*Nothing was spent"):
        mean_of_users(data, Budget(5.0, 1e-4), (1e-3, 10.0), 0.01, ledger=ledger)
    assert ledger.charges() == ()
    streaming = Plan(400, (Step("mean", 0, 400, Clip(400, 20.0)),))
    assert Curator(data, streaming, ledger).release("mean", UserMean(), 1.0).shape == (3,)
    object.__setattr__(data.store, "memory_limit", 400 * 48 - 10)
    with pytest.raises(ValueError, match="holds an order of the users"):
        Curator(data, streaming, ledger)


def test_the_command_line(tmp_path):
    path, place = plain(tmp_path), tmp_path / "place"
    words = ["fit", str(path), "--user-column", "who", "--target", "y", "--target-range=-3,3", "--loss", "squared"]
    words += ["--features", "x*", "--epsilon", "5", "--insecure-seed", "1"]
    weights = []
    for more in ([], ["--memory-limit", "64MB", "--store", str(place)], ["--memory-limit", "64MB"]):
        result = CliRunner().invoke(app, [*words, "--output", str(tmp_path / "m.json"), *more])
        assert result.exit_code == 0, result.output
        weights.append(json.loads((tmp_path / "m.json").read_text())["coef"])
    assert weights[0] == weights[1] == weights[2]
    assert place.exists()
    (place / "rows.npy").write_bytes(b"")
    dry = CliRunner().invoke(app, [*words, "--dry-run", "--memory-limit", "64MB", "--store", str(place)])
    assert dry.exit_code == 0
    assert "is damaged: it is rebuilt" in " ".join(dry.output.split())
    assert "400 users" in dry.output
    for wrong, message in ((["--store", str(place)], "--memory-limit with --store"), (["--memory-limit", "x"], "2GB")):
        refused = CliRunner().invoke(app, [*words, "--dry-run", *wrong])
        assert refused.exit_code == 1
        assert message in refused.output


def test_a_bar_tells_rows_on_a_terminal_only(source, capsys):
    stored(source)
    assert capsys.readouterr().err == ""
    stored(source, store=source.with_name("other"), progress=True)
    told = capsys.readouterr().err
    assert "3000/3000" in told
    assert "visits.parquet" in told


# --- memory -----------------------------------------------------------------------------------------------------------

LIMITED = Path(__file__).parent / "support_memory.py"


@pytest.mark.slow
def test_ten_times_more_data_than_memory_is_sorted_and_fitted(tmp_path):
    """Under a limit of the system on all memory that the process may write, set after libraries are loaded."""
    environment = os.environ | {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1"}
    words = [sys.executable, str(LIMITED), str(tmp_path)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["data"] >= 10 * told["limit"]
    assert told["refused"]  # without a store it does not go
    assert told["fitted"]
