"""Ledger files of 0.1.0, without what runs are charged as between runs."""

import json
import sqlite3
from concurrent.futures import ThreadPoolExecutor

import pytest
from support_adversary import Gaussian, plan
from support_ledger import spent

from userdp.privacy import ledger
from userdp.privacy.accounting import Budget, BudgetExceeded, Cost, Subsampled, epsilon_at
from userdp.privacy.domination import Dominating, Filter, dominating
from userdp.privacy.ledger import Ledger

BUDGET = Budget(2.0, 1e-5)
SAMPLED = Cost(subsampled=(Subsampled(0.1, 6.0, 20),), failure=1e-7)
OLD = [(Cost(gaussian=0.05), Cost(gaussian=0.01, failure=2e-7)), (SAMPLED,), (Cost(pure=(0.1,)),)]
FIRST_FORMAT = (
    "CREATE TABLE budget (only INTEGER PRIMARY KEY CHECK (only = 1), epsilon REAL NOT NULL, delta REAL NOT NULL, "
    "identity TEXT NOT NULL)",
    "CREATE TABLE runs (run INTEGER PRIMARY KEY AUTOINCREMENT, charged_at TEXT NOT NULL, purpose TEXT NOT NULL, "
    "insecure_seed TEXT, costs TEXT NOT NULL)",
    "CREATE TABLE steps (run INTEGER NOT NULL REFERENCES runs, label TEXT NOT NULL, mechanism TEXT NOT NULL, "
    "start INTEGER NOT NULL, stop INTEGER NOT NULL)",
    "PRAGMA user_version = 1",
)


def old_record(cost):
    """As 0.1.0 wrote it, with one name for multipliers in both units."""
    record = cost.to_json()
    for part in record["subsampled"]:
        part["noise_multiplier"] = part.pop("added_user_multiplier")
    return record


def old_file(path, runs=OLD, budget=BUDGET, seed=None):
    db = sqlite3.connect(path)
    for statement in FIRST_FORMAT:
        db.execute(statement)
    db.execute("INSERT INTO budget VALUES (1, ?, ?, 'a name')", (budget.epsilon, budget.delta))
    for number, costs in enumerate(runs, 1):
        written = json.dumps([old_record(cost) for cost in costs])
        db.execute("INSERT INTO runs VALUES (?, '2026-01-01', 'old', ?, ?)", (number, seed, written))
        db.execute("INSERT INTO steps VALUES (?, 'only', 'Clip(...)', 0, 10)", (number,))
    db.commit()
    db.close()
    return path


def version(path):
    db = sqlite3.connect(path)
    (found,) = db.execute("PRAGMA user_version").fetchone()
    db.close()
    return found


@pytest.mark.parametrize("use", [Ledger.open, lambda path: Ledger(BUDGET, path)])
def test_an_old_file_is_brought_up_to_date_with_nothing_forgotten(tmp_path, use):
    path = old_file(tmp_path / "old.db")
    book = use(path)
    assert version(path) == 4
    assert (book.budget, book.failure_fraction) == (BUDGET, 0.25)
    assert book.unit == "user"
    charges = book.charges()
    assert [charge.costs for charge in charges] == OLD
    assert [charge.purpose for charge in charges] == ["old"] * 3
    assert all(charge.steps for charge in charges)
    held, spent = Filter(BUDGET), Dominating()
    for charge, costs in zip(charges, OLD, strict=True):
        spare = held.spare(spent.failure, max(cost.failure for cost in costs))
        assert set(charge.dominating) == {dominating(cost, spare) for cost in costs}
        spent = spent + Dominating.worst(charge.dominating)
    exact = [first + SAMPLED + Cost(pure=(0.1,)) for first in OLD[0]]
    assert book.spent_epsilon() >= max(epsilon_at(cost, BUDGET.delta) for cost in exact)


def test_an_old_file_that_was_spent_takes_nothing_more(tmp_path):
    """What the old rule accepted may be more than is valid: then nothing is added to it."""
    path = old_file(tmp_path / "old.db", [(Cost(gaussian=0.1),), (Cost(pure=(1.0,)),)])
    book = Ledger.open(path)
    assert book.spent_epsilon() > BUDGET.epsilon
    with pytest.raises(BudgetExceeded):
        book.charge(plan(Gaussian(1e-3).cost))
    assert len(Ledger.open(path).charges()) == 2


def test_failures_beyond_the_fraction_leave_nothing_to_sampled_runs(tmp_path):
    book = Ledger.open(old_file(tmp_path / "old.db", [(Cost(failure=4e-6),), (SAMPLED,)]))
    (sampled,) = book.charges()[1].dominating
    assert sampled.mu_squared == pytest.approx(20 * (2 / 6.0) ** 2)
    assert sampled.failure == SAMPLED.failure


def test_an_old_file_without_runs_begins_like_a_new_one(tmp_path):
    book = Ledger.open(old_file(tmp_path / "old.db", []))
    book.charge(plan(Cost(pure=(2.0,))))
    assert book.spent_epsilon() == pytest.approx(2.0, rel=1e-4)


def test_a_seeded_run_of_an_old_file_stays_not_private(tmp_path):
    book = Ledger.open(old_file(tmp_path / "old.db", seed="7"))
    assert [charge.insecure_seed for charge in book.charges()] == [7] * 3
    assert book.spent_epsilon() == float("inf")


@pytest.mark.threads
def test_many_open_an_old_file_at_once(tmp_path):
    path = old_file(tmp_path / "old.db")
    with ThreadPoolExecutor(4) as pool:
        books = list(pool.map(Ledger.open, [path] * 8))
    assert len({spent(book) for book in books}) == 1
    assert len(books[0].charges()) == 3


def test_a_migration_that_is_cut_off_leaves_the_old_file(tmp_path, monkeypatch):
    path = old_file(tmp_path / "old.db")
    before = path.read_bytes()

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(ledger, "_written", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Ledger.open(path)
    assert (path.read_bytes(), version(path)) == (before, 1)
    monkeypatch.undo()
    assert len(Ledger.open(path).charges()) == 3


@pytest.mark.parametrize("costs", ["[]", "nonsense", '[{"gaussian": 1}]', '[{"gaussian": -1, "pure": []}]'])
def test_damaged_runs_of_an_old_file_are_not_free(tmp_path, costs):
    path = old_file(tmp_path / "old.db")
    db = sqlite3.connect(path)
    db.execute("UPDATE runs SET costs = ? WHERE run = 2", (costs,))
    db.commit()
    db.close()
    with pytest.raises(ValueError, match="records in it are damaged"):
        Ledger.open(path)
    assert version(path) == 1


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE runs SET dominating = '[]'",
        "UPDATE runs SET dominating = ''",
        """UPDATE runs SET dominating = '[{"mu_squared": -1.0, "pure": null, "failure": 0.0}]'""",
        """UPDATE runs SET dominating = '[{"mu_squared": NaN, "pure": null, "failure": 0.0}]'""",
        """UPDATE runs SET dominating = '[{"mu_squared": 0.1, "failure": 0.0}]'""",
        "UPDATE budget SET failure_share = 1.5",
        "UPDATE budget SET failure_share = 'all'",
        "UPDATE budget SET identity = x'00'",
    ],
)
def test_damaged_prices_are_not_free(tmp_path, damage):
    path = tmp_path / "ledger.db"
    Ledger(BUDGET, path).charge(plan(Cost(gaussian=0.01)))
    db = sqlite3.connect(path)
    db.execute(damage)
    db.commit()
    db.close()
    with pytest.raises(ValueError, match="records in it are damaged"):
        Ledger.open(path)


def test_the_fraction_for_failures_is_fixed_when_a_ledger_is_made(tmp_path):
    path = tmp_path / "ledger.db"
    assert Ledger(BUDGET, path, failure_fraction=0.1).failure_fraction == 0.1
    assert Ledger.open(path).failure_fraction == 0.1
    assert Ledger(BUDGET, path).failure_fraction == 0.1
    with pytest.raises(ValueError, match=r"to hold failure_fraction=0.5; it holds 0.1"):
        Ledger(BUDGET, path, failure_fraction=0.5)
    with pytest.raises(ValueError, match="failure_fraction=1"):
        Ledger(BUDGET, failure_fraction=1.0)
    assert Ledger(BUDGET).failure_fraction == 0.25


def test_a_fraction_that_was_changed_meanwhile_is_noticed(tmp_path):
    path = tmp_path / "ledger.db"
    book = Ledger(BUDGET, path)
    db = sqlite3.connect(path)
    db.execute("UPDATE budget SET failure_share = 0.9")
    db.commit()
    db.close()
    with pytest.raises(ValueError, match="another is in its place"):
        book.charge(plan(Cost(gaussian=0.01)))


def test_an_old_file_without_charges_takes_either_unit(tmp_path):
    book = Ledger.open(old_file(tmp_path / "old.db", []))
    assert book.unit is None
    book.charge(plan(Cost(gaussian=0.01)), unit="row")
    assert book.unit == "row"
