"""One ledger in many processes and threads."""

import os
import pickle
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support_ledger import BUDGET, charge_until_refused, plan

from userdp.privacy import ledger
from userdp.privacy.accounting import Budget
from userdp.privacy.domination import Filter
from userdp.privacy.ledger import Ledger
from userdp.privacy.sqlite_file import create

# A process that forks others: each opens the ledger and charges it, until refused, and says so.
WORKERS = textwrap.dedent(
    """
    import os, signal, sys, time
    from support_ledger import BUDGET, plan
    from userdp.privacy.accounting import BudgetExceeded
    from userdp.privacy.ledger import Ledger

    def work(path, attempts, output):
        book = Ledger(BUDGET, path)
        os.write(output, b"ready\\n")
        for attempt in range(attempts):
            try:
                book.charge(plan(), f"attempt {attempt}")
            except BudgetExceeded:
                break
            os.write(output, b"charged\\n")

    def start(*arguments):
        process = os.fork()
        if process == 0:
            try:
                work(*arguments)
                os._exit(0)
            except BaseException:
                os._exit(1)
        return process
    """
)

TOGETHER = """
path, attempts, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
processes = [start(path, attempts, 1) for _ in range(count)]
sys.exit(any([os.waitpid(process, 0)[1] for process in processes]))
"""

KILLED = """
for milliseconds in map(int, sys.argv[2:]):
    reader, writer = os.pipe()
    process = start(f"{sys.argv[1]}/{milliseconds}.db", 100, writer)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        assert pipe.readline() == "ready\\n"
        time.sleep(milliseconds / 1000)
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        print(milliseconds, pipe.read().count("charged"))
"""


def workers(script, *arguments):
    """What the processes of this script say."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), *sys.path])}
    command = [sys.executable, "-c", WORKERS + script, *map(str, arguments)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, timeout=1200, check=True).stdout


def test_concurrent_processes_never_overspend(tmp_path):
    path = tmp_path / "ledger.db"
    room = charge_until_refused(Ledger(BUDGET))
    said = workers(TOGETHER, path, 100, 4)
    assert (said.count("ready"), said.count("charged")) == (4, room)
    assert len(Ledger.open(path).charges()) == room


def test_a_killed_process_has_charged_at_least_what_it_went_on_with(tmp_path):
    """SIGKILL at changing moments: every charge it reported is in the file, and the file is whole."""
    said = workers(KILLED, tmp_path, 0, 1, 3, 7, 20, 50).splitlines()
    assert len(said) == 6
    for line in said:
        milliseconds, reported = map(int, line.split())
        charges = Ledger(BUDGET, tmp_path / f"{milliseconds}.db").charges()
        assert reported <= len(charges) <= reported + 1
        assert all(charge.steps for charge in charges)


@pytest.mark.threads
def test_threads_may_share_a_ledger_in_memory():
    book = Ledger(BUDGET)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda k: book.charge(plan(4000.0, 0.01, 20_000), str(k)), range(12)))
    assert len(book.charges()) == 12


def test_a_ledger_in_memory_does_not_follow_a_fork(monkeypatch):
    book = Ledger(BUDGET)
    monkeypatch.setattr(ledger.os, "getpid", lambda: -1)
    with pytest.raises(RuntimeError, match="process that made it"):
        book.charge(plan())


def test_a_ledger_that_another_process_has_just_made_is_used_as_it_is(tmp_path, monkeypatch):
    path = tmp_path / "ledger.db"
    Ledger(BUDGET, path).charge(plan())
    monkeypatch.setattr(Path, "exists", lambda self: False)
    assert len(Ledger(BUDGET, path).charges()) == 1
    with pytest.raises(ValueError, match="one lifetime budget"):
        Ledger(Budget(9.0, 1e-3), path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["ledger.db"]


def test_processes_that_make_one_file_at_the_same_time_share_one_ledger(tmp_path):
    path = tmp_path / "ledger.db"
    assert workers(TOGETHER, path, 0, 6) == "ready\n" * 6
    assert [entry.name for entry in tmp_path.iterdir()] == ["ledger.db"]
    assert Ledger.open(path).budget == BUDGET


@pytest.mark.threads
def test_threads_that_make_one_file_with_different_budgets_get_one(tmp_path):
    """All wait until each has found no file, so that all go on to make one."""
    path, barrier = tmp_path / "ledger.db", threading.Barrier(6)

    class Meeting(type(path)):
        def exists(self):
            barrier.wait(600)
            return False

    def make(k):
        create(Meeting(path), "ledger", lambda db, _: ledger._write_tables(db, Filter(Budget(k, 1e-5))))
        return Ledger.open(path)

    with ThreadPoolExecutor(6) as pool:
        books = list(pool.map(make, range(1, 7)))
    assert len({(book.budget, book._identity) for book in books}) == 1


def test_pickled_it_is_the_very_same_file_or_nothing(tmp_path):
    path = tmp_path / "ledger.db"
    ledger = Ledger(BUDGET, path)
    ledger.charge(plan())
    kept = pickle.dumps(ledger)
    again = pickle.loads(kept)
    assert again.spent_epsilon() == ledger.spent_epsilon() > 0
    path.unlink()
    with pytest.raises(FileNotFoundError):
        pickle.loads(kept)
    Ledger(BUDGET, path)
    with pytest.raises(ValueError, match="another is in its place"):
        pickle.loads(kept)
