"""The fuzz targets, driven by Hypothesis; and files that try to run code. There are no checkpoint files to fuzz."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import targets
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import userdp
from userdp import Ledger, load_model
from userdp.data.groups import Groups

# Where one run takes long, fewer.
EXAMPLES = {
    "table_file": 300,
    "arrays": 500,
    "model_file": 300,
    "ledger_file": 100,
    "journal_file": 60,
    "store_folder": 100,
    "arguments": 60,
}


@pytest.mark.parametrize("name", targets.TARGETS)
def test_success_or_a_documented_error(name):
    @settings(max_examples=EXAMPLES[name], deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.binary(min_size=4, max_size=200))
    def run(data):
        targets.TARGETS[name](data)

    run()


# Inputs that were once answered by a crash, a bug message or a wrong success.
FOUND = {
    "an Arrow file that points outside of itself": (lambda: _arrow_with_bad_offsets(), "not Arrow, or is damaged"),
    "a run that costs nothing": (lambda: _ledger("runs", "costs", "[]"), "records in it are damaged"),
    "a run that costs too much to be a number": (
        lambda: _ledger(
            "runs", "costs", '[{"gaussian": 1' + "0" * 400 + ', "pure": [], "subsampled": [], "failure": 0}]'
        ),
        "records in it are damaged",
    ),
    "a run of nested lists": (lambda: _ledger("runs", "costs", "[" * 100_000), "records in it are damaged"),
    "a time that is a number": (lambda: _ledger("runs", "charged_at", b"\xff\xfe"), "damaged"),
    "a step without a name": (lambda: _ledger("steps", "label", b"\x01"), "records in it are damaged"),
    "a budget that is text": (lambda: _ledger("budget", "epsilon", "lots"), "records in it are damaged"),
    "no budget at all": (lambda: _ledger("budget", None, None), "records in it are damaged"),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    use, message = FOUND[name]
    with pytest.raises(ValueError, match=message) as caught:
        use()
    assert caught.value.__cause__ is None


def _arrow_with_bad_offsets():
    """Offsets of the first text column, 0 2 4 ..., far beyond the file."""
    content = targets.whole_table(".arrow")
    offsets = b"".join(i.to_bytes(4, "little") for i in (0, 2, 4, 6, 8))
    assert content.count(offsets) == 1
    wrong = b"".join(i.to_bytes(4, "little") for i in (0, 2, 0x7FFFFF00, 0x7FFFFF04, 0x7FFFFF08))
    Path("t.arrow").write_bytes(content.replace(offsets, wrong))
    table = userdp.data.tables.open_table("t.arrow")
    return userdp.UserData.from_table(table, user="who", features="x")


def _ledger(table, column, value):
    """A ledger with this in a cell; charging it must not be possible."""
    import sqlite3

    Path("l.db").write_bytes(targets.whole_ledger())
    db = sqlite3.connect("l.db")
    if column is None:
        db.execute(f"DELETE FROM {table}")
    else:
        db.execute(f"UPDATE {table} SET {column} = ?", (value,))
    db.commit()
    db.close()
    Ledger.open("l.db").charge(targets.PLAN, "more")


# --- no code from files -----------------------------------------------------------------------------------------------

CODE = "__import__('os').system('touch hacked')"
PICKLE = "gASVJQAAAAAAAACMBXBvc2l4lIwGc3lzdGVtlJOUjAx0b3VjaCBoYWNrZWSUhZRSlC4="
PAYLOADS = [
    {"estimator": "os.system"},
    {"estimator": "subprocess.Popen", "parameters": {"args": ["touch", "hacked"]}},
    {"estimator": CODE},
    {"estimator": "LogisticRegression.__init__"},
    {"parameters": {"__class__": "os.system"}},
    {"parameters": {"engine": PICKLE}},
    {"parameters": {"execution": PICKLE}},
    {"parameters": {"solver": {"__class__": CODE}}},
    {"parameters": {"ledger": "hacked"}},
    {"parameters": {"domain_radius": CODE}},
    {"coef": CODE},
    {"coef": {"__reduce__": ["os.system", ["touch hacked"]]}},
    {"coef": [[CODE, CODE]]},
    {"classes": [CODE, PICKLE]},
    {"features": [CODE, "{0.__class__.__mro__}"]},
    {"message": "{0.__class__.__init__.__globals__} %(name)s ${touch hacked} `touch hacked`"},
    {"solver": CODE, "mode": CODE},
    {"loss": CODE},
    {"versions": {"python": CODE, "py/object": "os.system"}},
    {"privacy": {"py/reduce": [{"py/function": "os.system"}, ["touch hacked"]]}},
    {"phases": [{"__import__('os')": 1.0}]},
    {"format": CODE},
]
RUNS_CODE = (
    "exec",
    "compile",
    "os.system",
    "os.exec",
    "os.spawn",
    "os.posix_spawn",
    "subprocess.Popen",
    "pickle.find_class",
)
_watched = []


def _watch(event, arguments):
    if _watched and event in RUNS_CODE:
        _watched.append(event)


sys.addaudithook(_watch)


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
@pytest.mark.parametrize("payload", PAYLOADS, ids=lambda payload: ", ".join(payload))
def test_a_model_file_runs_nothing(payload, tmp_path, monkeypatch):
    """The interpreter itself tells if anything is compiled, executed, unpickled or started."""
    monkeypatch.chdir(tmp_path)
    Path("model.json").write_text(json.dumps(targets.whole_model() | payload))
    refusal = "Expected "
    _watched.append("begin")
    try:
        model = load_model("model.json")
    except ValueError as error:
        refusal = str(error)
    else:
        model.decision_function(np.zeros((1, 2)))
        str(model.privacy_)
    finally:
        events, _watched[:] = list(_watched), []
    assert refusal.startswith("Expected ")
    assert events == ["begin"]
    assert os.listdir() == ["model.json"]


def test_the_interpreter_does_tell():
    _watched.append("begin")
    try:
        eval("1 + 1")
    finally:
        events, _watched[:] = list(_watched), []
    assert "exec" in events


# The driver and its own workers speak in pickles, which no file and nobody else gives; arrays of stores are mapped, and
# numpy refuses pickles in them.
_ON_RAY = ("engines/ray.py", "engines/ray_partition.py")  # whose processes trust each other
_BETWEEN_PROCESSES = ("import pickle", "pickle.load", "np.load(")


def test_nothing_that_reads_files_could_run_them():
    """No pickle, eval or exec anywhere in the package; numpy and joblib could unpickle too."""
    package = Path(userdp.__file__).parent
    for path in package.rglob("*.py"):
        text = path.read_text()
        for word in (
            "import pickle",
            "pickle.load",
            "joblib",
            "allow_pickle=True",
            "np.load(",
            "marshal",
            "yaml",
            "eval(",
            "exec(",
        ):
            if (
                path.relative_to(package).as_posix() in ("engines/ray.py", "engines/ray_partition.py")
                and word in _BETWEEN_PROCESSES
            ):
                continue
            assert word not in text.replace("ast.literal_eval(", ""), f"{word} in {path.relative_to(package)}"


def test_ids_beyond_a_columns_dictionary_are_refused():
    """A damaged Arrow file that fuzzing found."""
    targets.TARGETS["table_file"](b"\x01\x00\x01\x00\x00\x00!\x00\x00\x001")
    for place in (2, -1):
        ids = pa.DictionaryArray.from_arrays(pa.array([0, 1, place]), pa.array(["a", "b"]), safe=False)
        with pytest.raises(ValueError, match="The table is damaged"):
            Groups.make(ids, 3)
