"""Cells are measured once, kept as soon as they are done, and gone on with after a stop."""

import json

import pytest

import userdp
from userdp_research.bench import cells as cells_module
from userdp_research.bench.cells import Cell, Store, provenance, read_records, run_cells

CELLS = [Cell({"solver": "a", "n": n}, {"path": "elsewhere"}) for n in range(3)]
CALLS = []


def twice(settings, context):
    CALLS.append(settings["n"])
    return {"twice": 2 * settings["n"]}


def broken(settings, context):
    if settings["n"] == 1:
        raise ZeroDivisionError("4711 is a value of the data")
    return twice(settings, context)


def stopping(settings, context):
    if settings["n"] == 2:
        raise KeyboardInterrupt
    return twice(settings, context)


@pytest.fixture(autouse=True)
def _no_calls():
    CALLS.clear()


def test_a_rerun_measures_nothing_again(tmp_path):
    path = tmp_path / "r.json"
    assert run_cells(CELLS[:2], twice, Store(path, {"run": 1}), quiet=True) == 2
    assert run_cells(CELLS, twice, Store(path, {"run": 2}), quiet=True) == 1
    assert CALLS == [0, 1, 2]
    records = read_records(path)
    assert [r["result"]["twice"] for r in records] == [0, 2, 4]
    assert [r["run"] for r in records] == [0, 0, 1]
    assert json.loads(path.read_text())["runs"] == [{"run": 1}, {"run": 2}]
    assert run_cells(CELLS, twice, Store(path, {}), again=True, quiet=True) == 3


def test_another_version_or_other_settings_are_measured_again(tmp_path, monkeypatch):
    path = tmp_path / "r.json"
    run_cells(CELLS, twice, Store(path, {}), quiet=True)
    moved = [Cell(cell.settings, {"path": "somewhere else"}) for cell in CELLS]
    other = [Cell(cell.settings | {"repeats": 9}) for cell in CELLS]
    assert run_cells(moved, twice, Store(path, {}), quiet=True) == 0
    assert run_cells(other, twice, Store(path, {}), quiet=True) == 3
    monkeypatch.setattr(userdp, "__version__", "99")
    assert run_cells(CELLS, twice, Store(path, {}), quiet=True) == 3
    assert len(read_records(path)) == 6


def test_failures_are_told_without_values_and_tried_again(tmp_path):
    store = Store(tmp_path / "r.json", {})
    run_cells(CELLS, broken, store, quiet=True)
    assert [("error" in r["result"]) for r in store.records(CELLS)] == [False, True, False]
    assert "4711" not in (tmp_path / "r.json").read_text()
    assert run_cells(CELLS, twice, store, quiet=True) == 1


def test_a_stop_loses_nothing(tmp_path):
    store = Store(tmp_path / "r.json", {})
    with pytest.raises(KeyboardInterrupt, match=r"^Stopped\. 2 cells of this run are in .*r\.json"):
        run_cells(CELLS, stopping, store, quiet=True)
    assert [r["result"]["twice"] for r in read_records(tmp_path / "r.json")] == [0, 2]
    assert run_cells(CELLS, twice, Store(tmp_path / "r.json", {}), quiet=True) == 1


def test_several_processes_measure_the_same(tmp_path):
    store = Store(tmp_path / "r.json", {})
    assert run_cells(CELLS, twice, store, workers=2, quiet=True) == 3
    assert [r["result"]["twice"] for r in store.records(CELLS)] == [0, 2, 4]
    assert CALLS == []  # done elsewhere


def test_threads_are_given_back(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    with cells_module._one_thread():
        assert cells_module.os.environ["OMP_NUM_THREADS"] == cells_module.os.environ["MKL_NUM_THREADS"] == "1"
    assert cells_module.os.environ["OMP_NUM_THREADS"] == "7"
    assert "MKL_NUM_THREADS" not in cells_module.os.environ


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"format": "something else"}'])
def test_other_files_are_not_overwritten(tmp_path, text):
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(ValueError, match=r"Expected .* to hold results"):
        Store(tmp_path / "r.json", {})
    assert (tmp_path / "r.json").read_text() == text


def test_provenance_says_what_ran_where():
    found = provenance()
    assert found["userdp"] == userdp.__version__
    assert {"commit", "python", "machine", "cores", "packages"} <= set(found)
    json.dumps(found)
