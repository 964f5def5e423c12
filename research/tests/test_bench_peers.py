"""The driver of other libraries: the same arrays for all, answers collected, failures told and not fatal."""

import json
import sys

import numpy as np
import pytest
from support_bench import reading, run, write_people

from userdp_research.bench import peers

CONSTANT = """
import json, sys
import numpy
data, settings = numpy.load(sys.argv[1]), json.load(open(sys.argv[2]))
assert data["X"].shape == (len(data["y"]), 3) and len(data["groups"]) == len(data["y"])
assert (data["X"][:, -1] == 1).all() and len(data["X_test"]) == len(data["y_test"])
assert set(settings) == {"epsilon", "delta", "seed", "passes", "max_rows_per_user", "row_norm", "reading"}
print("chatter")
print(json.dumps({"log_loss": .69 + settings["seed"] / 100, "auc": .5, "seconds": .1, "version": "1.2"}))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_people(tmp_path / "people.parquet")
    scripts = {"constant": CONSTANT, "silent": "", "failing": "raise SystemExit(7)", "absent": ""}
    for name, script in scripts.items():
        (tmp_path / "peers" / name).mkdir(parents=True)
        (tmp_path / "peers" / name / "run.py").write_text(script)
        (tmp_path / "peers" / name / "requirements.txt").write_text("")
    return tmp_path


@pytest.fixture
def own_python(monkeypatch):
    """This process's Python in place of new environments, which take long to make."""

    def environment(folder, envs):
        envs.mkdir(exist_ok=True)
        return None if folder.name == "absent" else peers.Path(sys.executable)

    monkeypatch.setattr(peers, "environment", environment)


def command(*more):
    options = ("--peers", "peers", "--epsilon", "4", "--repeats", "2", "--out", "r.json", "--set", "reading=users")
    return run("peers", *reading("people.parquet"), *options, *more)


def test_peers_are_run_on_the_same_users(folder, own_python):
    result = command()
    assert result.exit_code == 0, result.output
    cells = json.loads((folder / "r.json").read_text())["cells"]
    found = {cell["settings"].get("peer") or cell["settings"]["solver"]: cell["result"] for cell in cells}
    assert found["constant"]["row_loss"]["values"] == [0.69, 0.70]
    assert found["constant"]["peer_version"] == "1.2"
    assert found["constant"]["n_users"] == found["auto"]["n_users"] == 320
    assert found["not-private"]["row_excess"]["mean"] < found["auto"]["row_excess"]["mean"]
    assert found["absent"]["error"].startswith("could not be installed")
    assert found["failing"]["error"].startswith("ended with code 7")
    assert found["silent"]["error"].startswith("printed no JSON line")
    assert "could not be installed" in result.stdout.replace("\n", " ") or "failed" in result.stdout
    again = command("--only", "constant")
    assert "0 cells measured, 3 were there already" in again.stderr
    (folder / "peers" / "constant" / "run.py").write_text(CONSTANT.replace("1.2", "1.3"))
    assert "1 cells measured" in command("--only", "constant").stderr


def test_each_repeat_has_the_users_that_our_solvers_have(folder):
    task = peers.Task("people", folder / "people.parquet", "y", cap=6)
    paths = [peers._arrays(task, 50, seed, folder) for seed in (0, 1)]
    assert paths[0] != paths[1]
    for seed, path in enumerate(paths):
        with np.load(path) as arrays:
            np.testing.assert_array_equal(arrays["X"], task.load(seed, 50)[0].dense())
            assert len(np.unique(arrays["groups"])) == 50


def test_unknown_peers_are_refused(folder):
    result = command("--only", "magic")
    assert result.exit_code == 1
    assert "--only among absent, constant" in result.stderr
    assert "NAME=VALUE" in command("--set", "nonsense").stderr


def test_slow_peers_are_given_up(folder, own_python):
    (folder / "peers" / "constant" / "run.py").write_text("import time; time.sleep(60)")
    command("--only", "constant", "--timeout", "0.2")
    cells = json.loads((folder / "r.json").read_text())["cells"]
    assert cells[-1]["result"] == {"error": "took more than 0.2 seconds"}


def test_an_environment_is_made_once_or_reported(folder, monkeypatch):
    made = []

    def create(place, **options):
        made.append(place.name)
        (place / "bin").mkdir(parents=True, exist_ok=True)

    monkeypatch.setattr(peers.venv, "create", create)
    envs = folder / "envs"
    python = peers.environment(folder / "peers" / "constant", envs)
    assert python == peers.environment(folder / "peers" / "constant", envs)
    assert len(made) == 1
    (folder / "peers" / "absent" / "requirements.txt").write_text("no-such-package==0")
    assert peers.environment(folder / "peers" / "absent", envs) is None  # there is no pip in what was made
