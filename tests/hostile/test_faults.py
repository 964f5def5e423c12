"""Real processes on one ledger file: together they never overspend, and killed at any moment they owe nothing.

FAULTS=200 kills that many times, and starts processes from nothing (`make faults`).
"""

import json
import os
import subprocess
import sys

import pytest
from support_faults import COST, PLAN

from userdp import Budget, Ledger
from userdp.privacy.accounting import epsilon_at, fits

LONG = "FAULTS" in os.environ
KILLS = int(os.environ.get("FAULTS", "20"))
ROOM, PROCESSES = 5, 8


def start(*arguments):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "support_faults", *map(str, arguments)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environment, **pipes)


def times(count):
    total = COST
    for _ in range(count - 1):
        total = total + COST
    return total


def test_eight_processes_and_room_for_five(tmp_path):
    path = tmp_path / "ledger.db"
    budget = Budget(epsilon_at(times(ROOM), 1e-6) + 1e-3, 1e-6)
    assert fits(times(ROOM), budget)
    assert not fits(times(ROOM + 1), budget)
    ledger = Ledger(budget, path, failure_fraction=0.0)  # Gaussian releases only
    with start("together", path, "spawn" if LONG else "fork", PROCESSES) as process:
        answers = json.loads(process.stdout.read())
    released = [answer for answer in answers if isinstance(answer, float)]
    refused = [answer for answer in answers if isinstance(answer, str)]
    assert (len(released), len(refused)) == (ROOM, PROCESSES - ROOM), answers
    assert all("With what was spent before" in answer for answer in refused)
    assert len(set(released)) == ROOM, "noise of its own in every process"
    assert len(ledger.charges()) == ROOM
    assert ledger.spent_epsilon() <= budget.epsilon


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """The ledger, and after each kill: how many releases were heard of, how many charges there are."""
    path = tmp_path_factory.mktemp("killed") / "ledger.db"
    Ledger(Budget(1000.0, 1e-6), path)
    seen = []
    with start("killed", path, KILLS) as process:
        for line in process.stdout:
            seen.append((int(line), len(Ledger.open(path).charges())))
            process.stdin.write("\n")
            process.stdin.flush()
    assert process.returncode == 0
    return path, seen


def test_the_ledger_is_never_below_what_was_released(killed):
    """Each kill may lose the word of one release, never its charge."""
    _, seen = killed
    assert len(seen) == KILLS
    for kills, (heard, charged) in enumerate(seen, 1):
        assert heard <= charged <= heard + kills
    assert seen[-1][0] > KILLS / 4, "releases did happen between the kills"


def test_the_ledger_is_never_corrupt(killed):
    """Opened after every kill already; whole at the end, nothing half written, nothing left beside it."""
    path, _ = killed
    ledger = Ledger.open(path)
    assert all(charge.steps and charge.costs == (COST,) for charge in ledger.charges())
    ledger.charge(PLAN, "after all")
    assert [file.name for file in path.parent.iterdir()] == ["ledger.db"]
    assert ledger.charges()[-1].purpose == "after all"


def test_runs_with_a_journal_go_on_and_release_nothing_twice(tmp_path):
    """Whatever was heard of a run before a kill is heard again, the same; and each run is charged once."""
    path = tmp_path / "ledger.db"
    ledger = Ledger(Budget(1e4, 1e-3), path)
    with start("resumed", path, KILLS) as process:
        told = [json.loads(line) for line in process.stdout]
    assert process.returncode == 0
    runs = {}
    for number, heard in told:
        known = runs.setdefault(number, [])
        common = min(len(known), len(heard))
        assert known[:common] == heard[:common]
        runs[number] = max(known, heard, key=len)
    assert len(set(runs["warm"])) == 12, "noise of its own in every release"
    assert len({tuple(heard[:1]) for heard in runs.values()}) == len(runs), "and in every run"
    assert any(0 < len(heard) < 12 for _, heard in told), "kills did happen between releases"
    assert len(runs) - 1 <= len(ledger.charges()) <= len(runs)  # the last may have been killed before its charge
