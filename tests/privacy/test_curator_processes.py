"""Copies, forks and threads: what was charged once is released once."""

import copy
import os
import pickle
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
from support_curator import (
    BUDGET,
    MECHANISMS,
    SIZE,
    Explosive,
    Given,
    RecordingEngine,
    hostile_rows,
    make_data,
    mean,
    outcome,
    plan_of,
)

from userdp.privacy import curator as module
from userdp.privacy.accounting import Budget
from userdp.privacy.curator import Curator
from userdp.privacy.ledger import Ledger
from userdp.statistics.moments import UserMean


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_curator_has_no_copies(duplicate):
    with pytest.raises(TypeError, match="charged once"):
        duplicate(Curator(make_data(), plan_of(mean()), Ledger(BUDGET)))


def test_a_statistic_cannot_ask_for_a_release_while_it_is_computed():
    class Nested(RecordingEngine):
        def vectors(self, statistic, data, users, n_groups):
            with pytest.raises(RuntimeError, match="while it is computed"):
                curator.release("step 0", UserMean(), 0.5)
            return super().vectors(statistic, data, users, n_groups)

    curator = Curator(make_data(), plan_of(mean()), Ledger(BUDGET), engine=Nested())
    curator.release("step 0", UserMean(), 0.5)


# --- threads ----------------------------------------------------------------------------------------------------------


@pytest.mark.threads
def test_threads_share_the_rounds():
    """Eight threads hammer a step of two rounds: exactly two releases leave."""
    curator = Curator(make_data(), plan_of(mean(rounds=2)), Ledger(BUDGET), engine=RecordingEngine())

    def attempt(_):
        try:
            curator.release("step 0", UserMean(), 0.5)
            return True
        except RuntimeError:
            return False

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(attempt, range(64))) == 2
    finally:
        sys.setswitchinterval(interval)


class WarningOnData(UserMean):
    """Warns while another release is under way."""

    def __init__(self, begun, go_on):
        object.__setattr__(self, "events", (begun, go_on))

    def check(self, n_features, dtype=None):
        """Not on generated rows: of those a warning would tell nothing."""

    def __call__(self, data, users, n_groups):
        begun, go_on = self.events
        begun.set()
        go_on.wait(600)
        warnings.warn("a warning that must not leave", stacklevel=1)
        return super().__call__(data, users, n_groups)


def test_warnings_stay_off_until_the_last_one_has_left():
    off = module.WarningsOff()
    with off:
        with off:
            warnings.warn("first", UserWarning, stacklevel=1)
        warnings.warn("second", UserWarning, stacklevel=1)  # an error, were it not ignored
    with pytest.warns(UserWarning, match="third"):
        warnings.warn("third", UserWarning, stacklevel=1)


@pytest.mark.threads
def test_warnings_do_not_leave_while_another_thread_releases(recwarn):
    """Filters are the process's: the release that ends first must not restore them under the other one."""
    first, second = (Curator(make_data(), plan_of(mean()), Ledger(BUDGET)) for _ in range(2))
    begun, slow_begun, quick_ended = threading.Event(), threading.Event(), threading.Event()
    quick = threading.Thread(target=first.release, args=("step 0", WarningOnData(begun, slow_begun), 0.5))
    slow = threading.Thread(target=second.release, args=("step 0", WarningOnData(slow_begun, quick_ended), 0.5))
    before = list(warnings.filters)
    quick.start()
    assert begun.wait(600)
    slow.start()
    quick.join()
    quick_ended.set()
    slow.join()
    assert not recwarn.list
    assert list(warnings.filters) == before


@pytest.mark.threads
def test_two_curators_release_at_the_same_time():
    first, second = (Curator(make_data(), plan_of(mean(rounds=2)), Ledger(BUDGET)) for _ in range(2))
    both = threading.Barrier(2, timeout=600)

    class Meeting(UserMean):
        def __call__(self, data, users, n_groups):
            both.wait()
            return super().__call__(data, users, n_groups)

    threads = [threading.Thread(target=curator.release, args=("step 0", Meeting(), 0.5)) for curator in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(900)
    assert not any(thread.is_alive() for thread in threads)
    assert not both.broken, "both computed at the same time"


# --- forks ------------------------------------------------------------------------------------------------------------


def test_a_forked_process_cannot_release(monkeypatch):
    curator = Curator(make_data(), plan_of(mean()), Ledger(BUDGET))
    monkeypatch.setattr(module.os, "getpid", lambda: -1)
    with pytest.raises(RuntimeError, match="process that made it"):
        curator.release("step 0", UserMean(), 0.5)


def test_the_process_is_checked_before_anything_else(monkeypatch):
    curator = Curator(Explosive(SIZE), plan_of(mean()), Ledger(BUDGET))
    monkeypatch.setattr(module.os, "getpid", lambda: -1)
    with pytest.raises(RuntimeError, match="process that made it"):
        curator.release("no such step", None, float("nan"))


def test_a_process_that_changes_while_the_ledger_is_charged_gets_no_curator(monkeypatch):
    book, here = Ledger(BUDGET), os.getpid()
    charge = Ledger.charge

    def forking(self, *arguments):
        charge(self, *arguments)
        monkeypatch.setattr(module.os, "getpid", lambda: here + 1)

    monkeypatch.setattr(Ledger, "charge", forking)
    with pytest.raises(RuntimeError, match="process that made it"):
        Curator(Explosive(SIZE), plan_of(mean()), book)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_forked_during_a_release_can_make_its_own():
    forked = []

    class Forking(UserMean):
        def __call__(self, data, users, n_groups):
            forked.append(os.fork())
            if forked[-1] == 0:
                try:
                    Curator(make_data(), plan_of(mean()), Ledger(BUDGET)).release("step 0", UserMean(), 0.5)
                    os._exit(0)
                except BaseException:
                    os._exit(1)
            return super().__call__(data, users, n_groups)

    Curator(make_data(), plan_of(mean()), Ledger(BUDGET)).release("step 0", Forking(), 0.5)
    assert os.waitpid(forked[0], 0)[1] == 0


@pytest.mark.parametrize("mechanism", ["clip", "removal", "gaussian"])
def test_a_fork_inside_a_statistic_gives_one_release(mechanism):
    """Both processes come back from the statistic; only the one that made the curator gets a vector."""
    reader, writer = os.pipe()
    here, children = os.getpid(), []

    def fork(users):
        if not children:
            children.append(os.fork())

    curator = Curator(make_data(), plan_of(MECHANISMS[mechanism]), Ledger(Budget(8.0, 1e-4)))
    seen = None
    try:
        seen = outcome(curator, Given(hostile_rows(), fork))
        again = outcome(curator, Given(hostile_rows()))
    finally:
        if os.getpid() != here:
            text = "a release" if isinstance(seen, list) or isinstance(again, list) else f"{seen} {again}"
            os.write(writer, text.encode())
            os._exit(0)
    os.close(writer)
    os.waitpid(children[0], 0)
    with os.fdopen(reader) as pipe:
        child = pipe.read()
    assert isinstance(seen, list)
    assert "it is closed" in again[1]
    assert "Expected the statistic" in child
    assert "process that made it" in child
