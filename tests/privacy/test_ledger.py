import copy
import math
import pickle
import re
import sqlite3
from datetime import UTC, datetime

import numpy as np
import pytest
from support_ledger import BUDGET, charge_until_refused, plan, spent

from userdp.paper.outlier_removal import OutlierRemoval, SampledOutlierRemoval
from userdp.privacy import accounting, ledger
from userdp.privacy.accounting import Budget, BudgetExceeded, Cost
from userdp.privacy.clip import Clip
from userdp.privacy.domination import Dominating, Filter, dominating
from userdp.privacy.ledger import Ledger
from userdp.privacy.plan import Plan, Step


@pytest.fixture(params=["memory", "file"])
def book(request, tmp_path):
    return Ledger(BUDGET, None if request.param == "memory" else tmp_path / "ledger.db")


def test_charges_are_written_down_and_composed(book):
    book.charge(plan(), "first")
    book.charge(plan(20.0), "second", insecure_seed=2**70)
    first, second = book.charges()
    assert (first.costs, second.costs) == (plan().costs, plan(20.0).costs)
    assert spent(book) == (first.dominating[0] + second.dominating[0],)
    assert first.dominating == (dominating(plan().costs[0]),)
    assert (first.purpose, second.purpose) == ("first", "second")
    assert first.private
    assert not second.private
    assert second.insecure_seed == 2**70
    (step,) = first.steps
    assert (step.label, step.start, step.stop) == ("only", 0, 1000)
    assert (step.mechanism, step.record["noise_multiplier"]) == ("outlier-removal", 40.0)
    assert book.spent_epsilon() == math.inf, "a seeded run is non-private"


def test_what_was_spent_is_told_at_any_delta(book):
    book.charge(plan())
    assert book.spent_epsilon() == accounting.epsilon_at(plan().costs[0], 1e-5)
    assert book.spent_epsilon(1e-3) < book.spent_epsilon() < 1
    book.charge(plan())
    (total,) = spent(book)
    charged = Cost(gaussian=total.mu_squared, failure=total.failure)
    assert book.spent_epsilon() == accounting.epsilon_at(charged, 1e-5)
    assert book.spent_epsilon(1e-3) == accounting.epsilon_at(charged, 1e-3)


def test_over_budget_is_refused_and_nothing_is_written(book):
    accepted = charge_until_refused(book)
    assert 2 <= accepted < 20
    assert len(book.charges()) == accepted
    held, one = Filter(BUDGET), dominating(plan().costs[0])
    total = sum((one for _ in range(accepted)), Dominating())
    assert held.fits(total)
    assert not held.fits(total + one)
    with pytest.raises(BudgetExceeded, match="With what was spent before"):
        book.charge(plan())


def gaussian_plan(epsilon, delta, releases=30, size=1000):
    multiplier = accounting.gaussian_multiplier(Budget(epsilon, delta), releases)
    return Plan(size, (Step("noise", 0, size, Clip(size, multiplier, rounds=releases)),))


@pytest.mark.parametrize("delta", [1e-9, 1e-6, 1e-5, 1e-4])
def test_the_largest_epsilon_that_fits_does_and_a_larger_one_does_not(book, delta):
    book.charge(plan())
    book.charge(gaussian_plan(0.4, 1e-6))
    found = book.largest_epsilon(delta)
    assert 0.1 < found < 1.5
    assert book.what_fits(delta).startswith(f"One more run fits up to epsilon {found:g}, at delta {delta:g} or less")
    with pytest.raises(BudgetExceeded):
        book.charge(gaussian_plan(1.011 * found, delta))
    copied = Ledger(BUDGET)
    copied.charge(plan())
    copied.charge(gaussian_plan(0.4, 1e-6))
    copied.charge(gaussian_plan(found, delta / 10))
    book.charge(gaussian_plan(found, delta))
    assert book.largest_epsilon(delta) < found / 4


def test_of_a_new_ledger_all_of_its_epsilon_fits_and_of_a_spent_one_nothing(book):
    assert (book.largest_epsilon(), book.largest_epsilon(0.0), book.largest_epsilon(1e-3) < 1) == (1.0, 1.0, True)
    assert book.largest_epsilon(1e-6) > 1  # which at the ledger's own delta is 1
    book.charge(gaussian_plan(1.0, 1e-5))
    assert book.largest_epsilon() == 0.0
    assert book.what_fits() == "No further run of Gaussian noise fits at delta 1e-05."
    with pytest.raises(ValueError, match="delta"):
        book.largest_epsilon(2.0)


def test_without_delta_epsilons_that_are_left_fit():
    book, size = Ledger(Budget(1.0, 0.0)), 1000
    book.charge(Plan(size, (Step("pure", 0, size, Clip(size, 2.0, laplace=True)),)))
    assert book.largest_epsilon() == pytest.approx(0.5, abs=0.002)
    assert "if its noise is Laplace" in book.what_fits()


def test_users_who_paid_less_in_one_plan_do_not_hide_those_who_paid_more(book):
    """Two plans with cheap and dear users: the next charge is judged by users who were dear in both."""
    mixed = Plan(
        2000,
        (
            Step("cheap", 0, 1000, OutlierRemoval(1000, 400.0, 0.1, 1e-7, 0.01)),
            Step("dear", 1000, 2000, OutlierRemoval(1000, 10.0, 0.1, 1e-7, 0.01)),
        ),
    )
    book.charge(mixed)
    book.charge(mixed)
    cheap, dear, last = (dominating(cost) for cost in (mixed.cost_of(0), mixed.cost_of(1500), plan(8.0).costs[0]))
    assert spent(book) == (dear + dear,)
    assert Filter(BUDGET).fits(cheap + cheap + last)
    with pytest.raises(BudgetExceeded):
        book.charge(plan(8.0))


def test_users_who_paid_in_different_ways_are_all_remembered(book):
    """Who paid by noise and who paid by failures: neither hides the other."""
    two_ways = Plan(
        2000,
        (
            Step("noise", 0, 1000, Clip(1000, 7.5)),
            Step("failure", 1000, 2000, OutlierRemoval(1000, 400.0, 0.1, 1e-6, 0.01)),
        ),
    )
    book.charge(two_ways)
    book.charge(two_ways)
    noise, failure = (dominating(two_ways.cost_of(k)) for k in (0, 1500))
    assert set(spent(book)) == {noise + noise, noise + failure, failure + failure}
    with pytest.raises(BudgetExceeded, match=r"failure probabilities add up to 3e-06, expected <= 2.5e-06"):
        book.charge(two_ways)
    with pytest.raises(BudgetExceeded, match=r"the plan needs epsilon=1\..* at delta=7.5e-06"):
        book.charge(Plan(1000, (Step("noise", 0, 1000, Clip(1000, 5.0)),)))


def test_a_ledger_that_vanished_or_was_replaced_is_not_begun_anew(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    book = Ledger(BUDGET, "ledger.db")
    book.charge(plan())
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    book.charge(plan())
    assert len(Ledger.open(tmp_path / "ledger.db").charges()) == 2
    assert list((tmp_path / "elsewhere").iterdir()) == []
    (tmp_path / "ledger.db").unlink()
    with pytest.raises(ValueError, match="Was it moved"):
        book.charge(plan())
    Ledger(Budget(50.0, 1e-5), tmp_path / "ledger.db")
    with pytest.raises(ValueError, match="Nothing was charged"):
        book.charge(plan())


def test_many_alternatives_are_replaced_by_one_that_is_above_all(monkeypatch):
    prices = tuple(Dominating(0.001 * k, 0.01 / k, 1e-9 / k) for k in (1, 2, 3))
    exact = ledger._totals([prices] * 3)
    assert len(exact) > 5
    monkeypatch.setattr(ledger, "_MOST_ALTERNATIVES", 5)
    (above,) = ledger._totals([prices] * 3)
    assert all(above.covers(total) for total in exact)
    assert not any(total.covers(above) for total in exact)


def test_a_file_is_shared_by_many_ledgers_and_keeps_its_budget(tmp_path):
    path = tmp_path / "ledger.db"
    Ledger(BUDGET, path).charge(plan(), "from one process")
    again = Ledger.open(path)
    assert again.budget == BUDGET
    again.charge(plan(), "from another")
    assert [charge.purpose for charge in Ledger(BUDGET, path).charges()] == ["from one process", "from another"]
    with pytest.raises(ValueError, match="one lifetime budget"):
        Ledger(Budget(2.0, 1e-5), path)


def test_sampled_costs_survive_the_file(tmp_path):
    sampled = Plan(2000, (Step("s", 0, 2000, SampledOutlierRemoval(2000, 0.2, 40.0, 5.0, 1e-6, rounds=3)),))
    Ledger(Budget(4.0, 1e-5), tmp_path / "ledger.db").charge(sampled)
    (charge,) = Ledger.open(tmp_path / "ledger.db").charges()
    assert charge.costs == sampled.costs
    assert charge.dominating == (dominating(sampled.costs[0], Filter(Budget(4.0, 1e-5)).spare(0.0, 1e-6)),)


def test_files_that_are_no_ledgers_are_refused_in_one_sentence(tmp_path):
    with pytest.raises(FileNotFoundError, match="makes a new one"):
        Ledger.open(tmp_path / "absent.db")
    with pytest.raises(ValueError, match="folder not exist"):
        Ledger(BUDGET, tmp_path / "no" / "folder.db")
    (tmp_path / "text.db").write_text("this is not a database, but long enough to be looked at " * 20)
    with pytest.raises(ValueError, match="to be a ledger that can be read"):
        Ledger(BUDGET, tmp_path / "text.db")
    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("CREATE TABLE something (x)")
    other.close()
    with pytest.raises(ValueError, match="userdp ledger of format 4"):
        Ledger.open(tmp_path / "other.db")
    (tmp_path / "empty.db").touch()
    for use in (Ledger.open, lambda path: Ledger(BUDGET, path)):
        with pytest.raises(ValueError, match="it is empty: what was spent is lost"):
            use(tmp_path / "empty.db")
        assert (tmp_path / "empty.db").stat().st_size == 0


def test_printing_it_reads_nothing(book):
    assert repr(book).startswith("Ledger(Budget(epsilon=1.0, delta=1e-05), path=")
    with pytest.raises(TypeError, match="got str"):
        Ledger("somewhere.db")


def test_every_charge_is_synced_to_the_disk_and_its_folder(book):
    with book._transaction() as db:
        assert db.execute("PRAGMA synchronous").fetchone() == (3,)


def test_a_truncated_or_recreated_file_is_not_taken_for_the_ledger(tmp_path):
    path = tmp_path / "ledger.db"
    book = Ledger(BUDGET, path)
    book.charge(plan())
    path.write_bytes(b"")
    for use in (book.charges, book.spent_epsilon, lambda: book.charge(plan()), lambda: Ledger.open(path)):
        with pytest.raises(ValueError, match="is empty"):
            use()
    with pytest.raises(ValueError, match="is empty"):
        Ledger(BUDGET, path)
    path.unlink()
    Ledger(BUDGET, path)
    with pytest.raises(ValueError, match="another is in its place"):
        book.charge(plan())


def test_a_disk_that_takes_no_links_is_refused_in_one_sentence(tmp_path, monkeypatch):
    def link(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(ledger.os, "link", link)
    with pytest.raises(ValueError, match=r"Operation not permitted.*hard links"):
        Ledger(BUDGET, tmp_path / "ledger.db")
    assert list(tmp_path.iterdir()) == []


def test_opening_makes_no_file_if_it_vanishes_meanwhile(tmp_path, monkeypatch):
    path = tmp_path / "ledger.db"
    Ledger(BUDGET, path)
    read = ledger._identity

    def read_and_lose(db, where):
        path.unlink()
        monkeypatch.setattr(ledger, "_identity", read)
        return read(db, where)

    monkeypatch.setattr(ledger, "_identity", read_and_lose)
    with pytest.raises(ValueError, match="Was it moved"):
        Ledger.open(path)
    assert list(tmp_path.iterdir()) == []


def test_an_older_copy_that_is_put_back_is_noticed(tmp_path):
    path = tmp_path / "ledger.db"
    book, reader = Ledger(BUDGET, path), Ledger(BUDGET, path)
    book.charge(plan())
    older = path.read_bytes()
    book.charge(plan())
    newest = path.read_bytes()
    assert len(reader.charges()) == 2
    path.write_bytes(older)
    for seen in (book, reader):
        for use in (seen.charges, seen.spent_epsilon, lambda seen=seen: seen.charge(plan())):
            with pytest.raises(ValueError, match=r"hold run 2, which was seen .* older copy .* Nothing was charged"):
                use()
    assert path.read_bytes() == older
    for another in (plan(80.0), plan()):  # another run 2, be it the same, by someone who does not know of the first
        path.write_bytes(older)
        Ledger.open(path).charge(another)
        with pytest.raises(ValueError, match="An older copy"):
            book.charge(plan())
    path.write_bytes(newest)
    book.charge(plan())
    assert len(reader.charges()) == 3


def test_charges_are_dated_to_the_day_and_nothing_closer_is_in_the_file(tmp_path):
    """How much time is between two charges could tell how long something took on somebody's data."""
    path = tmp_path / "ledger.db"
    days = {datetime.now(UTC).date().isoformat()}
    book = Ledger(BUDGET, path)
    book.charge(plan())
    book.charge(plan(), token="a run that may go on")
    days.add(datetime.now(UTC).date().isoformat())
    assert {charge.charged_at for charge in book.charges()} <= days
    assert not re.search(rb"\d\d:\d\d", path.read_bytes())


@pytest.mark.parametrize(("first", "second"), [("user", "row"), ("row", "user")])
def test_a_ledger_is_of_one_unit_which_the_first_charge_sets(book, first, second):
    assert book.unit is None
    with pytest.raises(BudgetExceeded):
        book.charge(plan(0.01), unit=second)
    assert book.unit is None, "nothing was charged"
    book.charge(plan(), unit=first)
    same = book if book.path is None else Ledger.open(book.path)
    for ledger_ in (book, same):
        assert ledger_.unit == first
        with pytest.raises(ValueError, match=rf"privacy unit {first!r}, .* got {second!r}.*Nothing was charged"):
            ledger_.charge(plan(), unit=second)
        for wrong in ("", "7", "a\nb", 3, "x" * 60):
            with pytest.raises(ValueError, match=r"unit must be what one user is called, .* Nothing was charged"):
                ledger_.charge(plan(), unit=wrong)
    book.charge(plan(), unit=first)
    assert len(book.charges()) == 2


def test_a_unit_that_there_is_not_is_damage(tmp_path):
    path = tmp_path / "ledger.db"
    Ledger(BUDGET, path).charge(plan())
    with sqlite3.connect(path) as db:
        db.execute("UPDATE budget SET unit = 'household'")
    db.close()
    with pytest.raises(ValueError, match="records in it are damaged"):
        Ledger.open(path).charge(plan())


def test_positions_are_written_as_plain_integers(book):
    steps = plan().steps
    object.__setattr__(steps[0], "start", np.int64(0))
    object.__setattr__(steps[0], "stop", np.int64(1000))
    book.charge(Plan(1000, steps))
    (step,) = book.charges()[0].steps
    assert (step.start, step.stop) == (0, 1000)


@pytest.mark.parametrize(
    ("statement", "carried_out", "error", "seen"),
    [
        ("BEGIN IMMEDIATE", True, KeyboardInterrupt(), KeyboardInterrupt),
        ("COMMIT", False, KeyboardInterrupt(), KeyboardInterrupt),
        ("COMMIT", False, sqlite3.OperationalError("disk is full"), ValueError),
    ],
)
def test_a_ledger_in_memory_stays_usable_whenever_a_charge_is_cut_off(statement, carried_out, error, seen):
    class CutOff:
        def __init__(self, db):
            self._db = db

        def __getattr__(self, name):
            return getattr(self._db, name)

        def execute(self, given, *values):
            result = self._db.execute(given, *values) if given != statement or carried_out else None
            if given == statement:
                raise error
            return result

    book = Ledger(BUDGET)
    db, book._memory = book._memory, CutOff(book._memory)
    with pytest.raises(seen):
        book.charge(plan())
    book._memory = db
    assert book.charges() == ()
    book.charge(plan())
    assert len(book.charges()) == 1


def test_an_interrupt_after_the_commit_stays_an_interrupt(tmp_path):
    book = Ledger(BUDGET, tmp_path / "ledger.db")

    def interrupted():
        with book._transaction() as db:
            db.execute("COMMIT")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert book.charges() == ()


def test_copies_are_the_ledger_itself():
    ledger = Ledger(Budget(1.0, 1e-6))
    assert copy.deepcopy(ledger) is copy.copy(ledger) is ledger
    with pytest.raises(TypeError, match="in memory cannot be pickled"):
        pickle.dumps(ledger)
