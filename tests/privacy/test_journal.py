"""Runs that are killed and go on: nothing is charged, drawn or released twice, and no other run goes on instead."""

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing

import numpy as np
import pytest
from support_curator import BUDGET, SIZE, make_data, mean, plan_of

from userdp import Budget, Curator, Execution, Ledger, LogisticRegression, UserData
from userdp.engines.local import LocalEngine
from userdp.paper.outlier_removal import SampledOutlierRemoval
from userdp.paper.paper_outlier_removal import PaperOutlierRemoval, SampledPaperOutlierRemoval
from userdp.privacy.clip import Clip
from userdp.privacy.journal import Journal, OpenJournal
from userdp.privacy.mechanism import Aborted
from userdp.statistics.moments import UserMean

DATA = make_data()
LARGE = Budget(1e6, 0.5)  # paper's constants are not the matter here
CLIPS = plan_of(Clip(SIZE, 20.0, rounds=3), Clip(SIZE, 20.0))
PLANS = {
    "clip": CLIPS,
    "samples": plan_of(Clip(SIZE, 20.0, rounds=3, sampling_probability=0.3)),
    "above threshold": plan_of(mean(rounds=3), Clip(SIZE, 20.0)),
    "sampled removal": plan_of(SampledOutlierRemoval(SIZE, 0.5, 40.0, 5.0, 1e-6, rounds=3)),
    "paper": plan_of(PaperOutlierRemoval(SIZE, 1.0, 20.0, 1e-3, rounds=3)),
    "paper's samples": plan_of(SampledPaperOutlierRemoval(SIZE, 0.5, 2.0, 20.0, 1e-3, rounds=3)),
}


class Counting(LocalEngine):
    """Counts how often the data is asked, and is killed at one of these times."""

    def __init__(self, killed_at=None):
        object.__setattr__(self, "asked", [])
        object.__setattr__(self, "killed_at", killed_at)

    def _ask(self):
        if len(self.asked) == self.killed_at:
            raise KeyboardInterrupt
        self.asked.append(1)

    def vectors(self, *asked):
        self._ask()
        return super().vectors(*asked)

    def total(self, statistic, contribution, data, users):
        self._ask()
        return LocalEngine().total(statistic, contribution, data, users)


def run(path, plan=CLIPS, ledger=None, seen=None, engine=None, data=DATA, budget=BUDGET, **options):
    """All releases of a plan's means, the radius of each depending on those before."""
    ledger = Ledger(budget) if ledger is None else ledger
    seen = [] if seen is None else seen
    with closing(Curator(data, plan, ledger, engine=engine, checkpoint=path, **options)) as curator:
        for step in plan.steps:
            for _ in range(step.mechanism.rounds):
                radius = 1.0 if not seen else 1.0 + 0.01 * abs(seen[-1][0])
                seen.append(curator.release(step.label, UserMean(), radius))
    return seen


def same(some, others):
    return len(some) == len(others) and all(np.array_equal(a, b) for a, b in zip(some, others, strict=True))


@pytest.mark.parametrize("name", PLANS)
def test_a_run_that_goes_on_is_the_run_that_was_not_killed(tmp_path, name):
    plan = PLANS[name]
    whole = run(None, plan, insecure_seed=5, budget=LARGE)
    for killed_at in range(len(whole) + 1):
        path, seen = tmp_path / f"{killed_at}.journal", []
        if killed_at < len(whole):
            with pytest.raises(KeyboardInterrupt):
                run(path, plan, seen=seen, engine=Counting(killed_at), insecure_seed=5, budget=LARGE)
        else:
            run(path, plan, seen=seen, insecure_seed=5, budget=LARGE)
        engine = Counting()
        again = run(path, plan, engine=engine, insecure_seed=5, budget=LARGE)
        assert same(again, whole)
        assert same(again[:killed_at], seen)
        assert len(engine.asked) == len(whole) - killed_at


def test_private_releases_are_given_again_as_they_were_and_charged_once(tmp_path):
    ledger = Ledger(BUDGET, tmp_path / "ledger.db")
    seen = []
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "j", ledger=ledger, seen=seen, engine=Counting(2))
    assert len(seen) == 2
    first = run(tmp_path / "j", ledger=Ledger.open(tmp_path / "ledger.db"))
    assert same(first[:2], seen)
    assert same(run(tmp_path / "j", ledger=ledger), first)
    assert len(ledger.charges()) == 1
    assert not same(run(tmp_path / "another", ledger=Ledger(BUDGET)), first)


def test_users_keep_their_places(tmp_path):
    """A user who has been in one part must not come into another: parts are paid for in parallel."""
    orders = []
    for _ in range(2):
        with closing(Curator(DATA, CLIPS, Ledger(BUDGET), checkpoint=tmp_path / "j")) as curator:
            orders.append(curator._order)
    assert np.array_equal(*orders)


@pytest.mark.parametrize("name", ["above threshold", "paper", "paper's samples"])
def test_a_noisy_threshold_is_drawn_once(tmp_path, name):
    thresholds = []
    for killed_at in (1, 1):
        with closing(Curator(DATA, PLANS[name], Ledger(LARGE), checkpoint=tmp_path / "j")) as curator:
            for _ in range(killed_at):
                curator.release("step 0", UserMean(), 1.0)
            thresholds.append(curator._session.drawn_once.noisy_threshold)
    assert thresholds[0] == thresholds[1]
    with closing(Curator(DATA, PLANS[name], Ledger(LARGE), checkpoint=tmp_path / "others")) as curator:
        curator.release("step 0", UserMean(), 1.0)
        others = {curator._session.drawn_once.noisy_threshold}
    for number in range(5):
        with closing(Curator(DATA, PLANS[name], Ledger(LARGE), checkpoint=tmp_path / str(number))) as curator:
            curator.release("step 0", UserMean(), 1.0)
            others.add(curator._session.drawn_once.noisy_threshold)
    assert len(others) > 1, "in other runs it is another"


def test_an_abort_and_a_failure_stay(tmp_path):
    aborting = plan_of(mean(rounds=2))
    for times_asked in (1, 0):
        engine = Counting()
        with closing(Curator(DATA, aborting, Ledger(BUDGET), checkpoint=tmp_path / "a", engine=engine)) as curator:
            with pytest.raises(Aborted, match="far from the others"):
                curator.release("step 0", UserMean(), 1e-9)
            with pytest.raises(RuntimeError, match="closed"):
                curator.release("step 0", UserMean(), 1e9)
        assert len(engine.asked) == times_asked

    class Failing(Counting):
        def total(self, *asked):
            self._ask()
            raise ValueError("on data")

    asked = []
    for _ in range(2):
        engine = Failing()
        with (
            closing(Curator(DATA, CLIPS, Ledger(BUDGET), checkpoint=tmp_path / "f", engine=engine)) as curator,
            pytest.raises(RuntimeError, match="it failed on the data"),
        ):
            curator.release("step 0", UserMean(), 1.0)
        asked.append(len(engine.asked))
    assert asked == [1, 0]


def full_disk(curator, full=True):
    curator._journal._db.execute(f"PRAGMA query_only = {int(full)}")


def test_a_release_is_on_disk_before_it_is_seen_and_else_does_not_leave(tmp_path):
    with closing(Curator(DATA, CLIPS, Ledger(BUDGET), checkpoint=tmp_path / "j")) as curator:
        assert curator._journal._db.execute("PRAGMA synchronous").fetchone() == (3,)
        released = curator.release("step 0", UserMean(), 1.0)
        (kept,) = curator._journal._db.execute("SELECT value FROM records WHERE number = 1").fetchone()
        assert np.array_equal(np.frombuffer(kept), released)
        full_disk(curator)
        with pytest.raises(OSError, match="Nothing was released: make room"):
            curator.release("step 0", UserMean(), 1.0)


@pytest.mark.parametrize("radius", [1.0, 1e-9])
def test_what_became_of_a_request_that_was_not_written_is_not_told_later(tmp_path, radius):
    """Whether the test has passed or not: the run is closed, and can only be begun again."""
    plan = plan_of(mean(rounds=3), Clip(SIZE, 20.0))
    with closing(Curator(DATA, plan, Ledger(BUDGET), checkpoint=tmp_path / "j")) as curator:
        full_disk(curator)
        with pytest.raises(OSError, match="Nothing was released"):
            curator.release("step 0", UserMean(), radius)
        full_disk(curator, False)
        for label in ("step 0", "step 1"):
            with pytest.raises(RuntimeError, match="the same run begun again"):
                curator.release(label, UserMean(), radius)
        assert curator._journal._db.execute("SELECT count(*) FROM records").fetchone() == (1,)


def test_an_interrupted_request_closes_the_run(tmp_path):
    engine = Counting(0)
    with closing(Curator(DATA, CLIPS, Ledger(BUDGET), checkpoint=tmp_path / "j", engine=engine)) as curator:
        with pytest.raises(KeyboardInterrupt):
            curator.release("step 0", UserMean(), 1.0)
        with pytest.raises(RuntimeError, match="the same run begun again"):
            curator.release("step 1", UserMean(), 1.0)


def test_a_run_that_was_killed_before_its_charge_is_charged(tmp_path, monkeypatch):
    ledger = Ledger(BUDGET, tmp_path / "ledger.db")
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "charge", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "j", ledger=ledger)
    assert ledger.charges() == ()
    run(tmp_path / "j", ledger=ledger)
    assert len(ledger.charges()) == 1


def test_the_data_is_not_touched_before_the_charge(tmp_path, monkeypatch):
    touched = []
    monkeypatch.setattr(OpenJournal, "order", lambda *_: touched.append("order"))
    with pytest.raises(TypeError):
        Curator(DATA, CLIPS, Ledger(BUDGET), checkpoint=tmp_path / "j")
    assert touched == ["order"]
    ledger = Ledger(Budget(1e-3, 1e-9), tmp_path / "small.db")
    with pytest.raises(ValueError, match="epsilon"):
        Curator(DATA, CLIPS, ledger, checkpoint=tmp_path / "k", budget=BUDGET)
    assert touched == ["order"]


def change(path, statement, *values):
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(statement, values)


def test_other_runs_are_refused_and_release_nothing(tmp_path):
    path, ledger = tmp_path / "j", Ledger(BUDGET, tmp_path / "ledger.db")
    with pytest.raises(KeyboardInterrupt):
        run(path, ledger=ledger, engine=Counting(1))
    others = {
        "its plan is another": {"plan": plan_of(Clip(SIZE, 21.0, rounds=3), Clip(SIZE, 20.0))},
        "its ledger is another": {"ledger": Ledger(BUDGET, tmp_path / "other.db")},
        "its purpose is another": {"purpose": "another"},
        "its seed is another": {"insecure_seed": 3},
        "its schema is another": {"data": make_wider()},
        "as many rows each": {"data": make_data(seed=1)},
    }
    for what, changed in others.items():
        engine = Counting()
        with pytest.raises(ValueError, match=what):
            run(path, engine=engine, **{"ledger": ledger} | changed)
        assert engine.asked == []
    assert len(ledger.charges()) == 1
    engine = Counting()
    with pytest.raises(ValueError, match="its budget is another"):
        Curator(DATA, CLIPS, ledger, budget=Budget(3.9, 1e-5), checkpoint=path)
    with (
        closing(Curator(DATA, CLIPS, ledger, checkpoint=path, engine=engine)) as curator,
        pytest.raises(ValueError, match=r"what the journal .* holds next"),
    ):
        curator.release("step 0", UserMean(), 7.0)
    assert engine.asked == []


def make_wider():
    rng = np.random.default_rng(0)
    return UserData.from_arrays(rng.normal(size=(SIZE, 3)), rng.integers(0, 2, SIZE), np.arange(SIZE))


def test_a_charge_of_another_plan_is_no_charge_of_this_one(tmp_path):
    ledger = Ledger(BUDGET, tmp_path / "ledger.db")
    ledger.charge(plan_of(Clip(SIZE, 50.0)), token="t")
    with pytest.raises(ValueError, match="for another"):
        ledger.charge(CLIPS, token="t")
    assert len(ledger.charges()) == 1


def test_a_copy_is_refused(tmp_path):
    run(tmp_path / "j")
    shutil.copy(tmp_path / "j", tmp_path / "copy")
    with pytest.raises(ValueError, match="it is a copy"):
        run(tmp_path / "copy")
    (tmp_path / "j").rename(tmp_path / "moved")
    run(tmp_path / "moved")


def test_one_process_at_a_time(tmp_path):
    with (
        closing(Curator(DATA, CLIPS, Ledger(BUDGET), checkpoint=tmp_path / "j")),
        pytest.raises(ValueError, match="another one has it open"),
    ):
        run(tmp_path / "j")
    run(tmp_path / "j")


def test_one_run_at_a_time_has_a_journal_that_is_passed_around(tmp_path):
    """Also if it is the same object, as copies of an estimator have it, and after it was let go."""
    journal = Journal(tmp_path / "j")
    first = Curator(DATA, CLIPS, Ledger(BUDGET), checkpoint=journal)
    released = first.release("step 0", UserMean(), 1.0)
    with pytest.raises(ValueError, match="another one has it open"):
        Curator(DATA, CLIPS, Ledger(BUDGET), checkpoint=journal)
    first.close()
    with closing(Curator(DATA, CLIPS, Ledger(BUDGET), checkpoint=journal)) as second:
        with pytest.raises(OSError, match="Nothing was released"):
            first.release("step 0", UserMean(), 1.0)
        assert np.array_equal(second.release("step 0", UserMean(), 1.0), released)


def test_other_uses_of_the_file_in_the_process_do_not_end_the_lock(tmp_path):
    code = f"""
import fcntl, os
try:
    fcntl.flock(os.open({str(tmp_path / "j")!r}, os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("locked")
"""
    with closing(Curator(DATA, CLIPS, Ledger(BUDGET), checkpoint=tmp_path / "j")):
        (tmp_path / "j").read_bytes()  # a backup, say
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout == "locked\n"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == ""


def test_users_who_changed_places_are_noticed_by_their_ids(tmp_path):
    rng = np.random.default_rng(0)
    X, y, ids = rng.uniform(-1, 1, (30_000, 2)), rng.random(30_000) < 0.5, np.repeat(np.arange(3000), 10)
    model = LogisticRegression(
        8.0, 1e-6, max_rows_per_user=10, execution=Execution(checkpoint=Journal(tmp_path / "j"), progress=False)
    )
    model.fit(X, y, groups=ids)
    with pytest.raises(ValueError, match="in the same order"):
        model.fit(X, y, groups=ids[::-1])


def test_a_journal_of_a_run_that_has_ended_is_not_taken_for_other_data(tmp_path):
    """It would give the old model again. Whoever passes a Journal says when its result is safe, and ends it then."""
    rng = np.random.default_rng(0)
    X, ids = rng.uniform(-1, 1, (30_000, 2)), np.repeat(np.arange(3000), 10)
    ledger = Ledger(Budget(30.0, 1e-5))
    for checkpoint in (str(tmp_path / "path"), Journal(tmp_path / "journal")):
        before = len(ledger.charges())
        model = LogisticRegression(
            8.0, 1e-6, max_rows_per_user=10, execution=Execution(checkpoint=checkpoint), ledger=ledger
        )
        first = model.fit(X, X[:, 0] > 0, groups=ids).coef_
        if isinstance(checkpoint, Journal):
            np.testing.assert_array_equal(model.fit(X, X[:, 0] > 0, groups=ids).coef_, first)
            checkpoint.end()
        for other in (X, -X):
            with pytest.raises(ValueError, match=r"it has ended.*Choose another path.*Nothing was released"):
                model.fit(other, X[:, 0] > 0, groups=ids)
        np.testing.assert_array_equal(model.coef_, first)
        assert len(ledger.charges()) == before + 1


def test_only_its_owner_reads_it(tmp_path):
    run(tmp_path / "j")
    assert os.stat(tmp_path / "j").st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("statement", "values"),
    [
        ("DELETE FROM records WHERE number = 2", ()),
        ("DELETE FROM records WHERE number = 0", ()),
        ("UPDATE records SET value = zeroblob(16) WHERE number = 1", ()),
        ("UPDATE records SET value = 'text' WHERE number = 1", ()),
        ("UPDATE records SET state = '[null, null] ' WHERE number = 1", ()),
        ("UPDATE records SET radius = 9.0 WHERE number = 3", ()),
        ("UPDATE records SET kind = 'abort' WHERE number = 3", ()),
        ("UPDATE run SET facts = ?", ("{}",)),
        ("UPDATE run SET facts = ?", ("[" * 3000,)),
        ("UPDATE run SET facts = ?", ("[]",)),
        ("UPDATE run SET token = ?", ("x",)),
        ("DELETE FROM run", ()),
        ("DROP TABLE records", ()),
    ],
)
def test_damaged_journals_are_refused(tmp_path, statement, values):
    run(tmp_path / "j")
    change(tmp_path / "j", statement, *values)
    engine = Counting()
    with pytest.raises(ValueError, match=r"whole journal|to be of this run"):
        run(tmp_path / "j", engine=engine)
    assert engine.asked == []


def test_bytes_that_were_changed_never_change_what_is_released(tmp_path):
    whole = run(tmp_path / "j")
    content = (tmp_path / "j").read_bytes()
    rng = np.random.default_rng(0)
    noticed = 0
    for place in rng.integers(0, len(content), 150):
        changed = bytearray(content)
        changed[place] ^= 1 << rng.integers(8)
        with open(tmp_path / "j", "r+b") as file:  # the same file
            file.write(changed)
        try:
            assert same(run(tmp_path / "j", engine=Counting(0)), whole)
        except (ValueError, KeyboardInterrupt):
            noticed += 1
    assert noticed > 5


def test_what_is_no_journal_is_refused_in_one_sentence(tmp_path):
    with pytest.raises(ValueError, match="folder not exist"):
        run(tmp_path / "no" / "j")
    (tmp_path / "text").write_text("this is not a database, but long enough to be looked at " * 20)
    with pytest.raises(ValueError, match="whole journal"):
        run(tmp_path / "text")
    Ledger(BUDGET, tmp_path / "ledger.db")
    with pytest.raises(ValueError, match="journal of format 1"):
        run(tmp_path / "ledger.db")
    (tmp_path / "empty").touch()
    with pytest.raises(ValueError, match="journal of format 1"):
        run(tmp_path / "empty")
    with pytest.raises(TypeError, match=r"use 'run\.journal', say"):
        run(7)
    with pytest.raises(FileNotFoundError, match="makes one"):
        Journal(tmp_path / "absent").command()
    run(tmp_path / "j")
    assert Journal(tmp_path / "j").command() == ()
    change(tmp_path / "j", "UPDATE run SET command = '{}'")
    with pytest.raises(ValueError, match="whole journal"):
        Journal(tmp_path / "j").command()


def test_an_order_that_is_none_is_damage(tmp_path):
    with (
        closing(Journal(tmp_path / "j").open("{}")) as journal,
        pytest.raises(ValueError, match="whole journal"),
    ):
        journal.order(DATA, lambda: np.zeros(SIZE, dtype=np.int64), lambda: "[null, null]")
