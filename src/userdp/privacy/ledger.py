"""The ledger: what was spent, on which users, by which mechanism, written down before the data is read.

One SQLite database, in memory for one fit or in a file for a data set's whole life. A charge is one transaction that
adds the new plan to everything spent so far and refuses it if the budget could be exceeded; the file is safe under
concurrent processes and sudden death. A plan is charged whole and never refunded, even if it aborts.

The ledger is a privacy filter: its budget holds however plans are chosen, also by looking at earlier releases
(docs/proofs.md, section 25).
"""

from __future__ import annotations

import contextlib
import decimal
import json
import math
import os
import re
import sqlite3
import threading
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from userdp._validate import check_kind, check_number, check_positive, check_seed
from userdp.privacy.accounting import (
    REPLACE_ONE,
    SMALLEST_MU,
    Budget,
    BudgetExceeded,
    Cost,
    certify,
    epsilon_at,
    least_that,
)
from userdp.privacy.domination import FAILURE_FRACTION, Dominating, Filter, dominating
from userdp.privacy.mechanism import described
from userdp.privacy.plan import Plan
from userdp.privacy.sqlite_file import connect, create, transaction, undamaged

_T = TypeVar("_T")
_Priced = TypeVar("_Priced", Cost, Dominating)
_FORMAT = 4
_TABLES = (
    "CREATE TABLE budget (only INTEGER PRIMARY KEY CHECK (only = 1), epsilon REAL NOT NULL, delta REAL NOT NULL, "
    "identity TEXT NOT NULL, failure_share REAL NOT NULL, unit TEXT, neighbours TEXT NOT NULL, called TEXT)",
    "CREATE TABLE runs (run INTEGER PRIMARY KEY AUTOINCREMENT, charged_at TEXT NOT NULL, purpose TEXT NOT NULL, "
    "insecure_seed TEXT, costs TEXT NOT NULL, dominating TEXT NOT NULL, mark TEXT NOT NULL)",
    "CREATE TABLE steps (run INTEGER NOT NULL REFERENCES runs, label TEXT NOT NULL, mechanism TEXT NOT NULL, "
    "start INTEGER NOT NULL, stop INTEGER NOT NULL)",
    f"PRAGMA user_version = {_FORMAT}",
)
_NEW_COLUMNS = (  # format 1, of 0.1.0, has no fraction of delta, and not what runs are charged as
    f"ALTER TABLE budget ADD COLUMN failure_share REAL NOT NULL DEFAULT {FAILURE_FRACTION!r}",
    "ALTER TABLE runs ADD COLUMN dominating TEXT NOT NULL DEFAULT ''",
    "PRAGMA user_version = 2",
)
_NEWER_COLUMNS = (  # format 2 has times to the microsecond, and neither marks of runs nor the privacy unit
    "ALTER TABLE runs ADD COLUMN mark TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE budget ADD COLUMN unit TEXT",
    "UPDATE budget SET unit = 'user' WHERE EXISTS (SELECT * FROM runs)",
    "PRAGMA secure_delete = ON",  # what is cut off is overwritten
    "UPDATE runs SET charged_at = substr(charged_at, 1, 10)",
    "PRAGMA user_version = 3",
)
_NEWEST_COLUMNS = (  # format 3 has neither the relation of neighbours, which was this one, nor what a user is called
    f"ALTER TABLE budget ADD COLUMN neighbours TEXT NOT NULL DEFAULT '{REPLACE_ONE}'",
    "ALTER TABLE budget ADD COLUMN called TEXT",
    f"PRAGMA user_version = {_FORMAT}",
)
# Runs that may resume after they were killed; made when there is the first, so that older files need no change.
_TOKENS = "CREATE TABLE IF NOT EXISTS tokens (token TEXT PRIMARY KEY, run INTEGER NOT NULL REFERENCES runs)"
_SAME_RUN = "SELECT run FROM runs WHERE run = ? AND mark = ? AND costs = ?"

UNITS = ("user", "row")  # what a run protects: all of a user's rows together, or each row by itself
_WORD = re.compile(r"[^\W\d_][\w -]{0,39}")  # what one user may be called

# How long a charge waits for other processes that are charging the same file.
_PATIENCE_SECONDS = 600

_REMEDY = "put a copy of it back. Nothing was charged."  # if it is damaged

_TOLERANCE = 1e-6  # of the largest epsilon that fits, before it is rounded down

# More alternatives than this are replaced by one that is at least as high as each.
_MOST_ALTERNATIVES = 64

EXTERNAL = "external"  # the kind of a release that another tool made

ODOMETER = (
    "A running total. What is guaranteed, however runs were chosen, is the ledger's budget; the total at a moment "
    "chosen by looking at results is not a guarantee."
)


@dataclass(frozen=True)
class ChargedStep:
    """One step of a charged plan: its mechanism, and which users of the random order it is on.

    `record` is text in files of 0.1.0, which wrote names of classes.
    """

    label: str
    mechanism: str
    record: dict[str, Any] | str
    start: int
    stop: int


@dataclass(frozen=True)
class Charge:
    """One charged plan. `costs` has one entry for each set of users that paid differently.

    `charged_at` is a day, in UTC: the time between two charges could show how long something took on a user's data.
    `dominating` is what it is charged as between runs, for the sets of users that pay most.
    """

    charged_at: str
    purpose: str
    costs: tuple[Cost, ...]
    dominating: tuple[Dominating, ...]
    insecure_seed: int | None
    steps: tuple[ChargedStep, ...]

    @property
    def private(self) -> bool:
        """False for a seeded run: its noise can be reproduced, so it is non-private."""
        return self.insecure_seed is None


class Ledger:
    """The budget of one data set and all that was spent of it.

    failure_fraction: the part of delta that is held for failure probabilities (of private tests, and of sampled runs
    that are charged as Gaussian ones); the rest is for Gaussian noise. It is fixed when the ledger is made: a quarter
    if None. With 0, runs with failure probabilities are refused after the first, and sampled ones charged as if not.

    Guarantee: all that the charged plans release is within the budget, for every user, also if plans, and how many of
    them, are chosen by looking at earlier releases; with a file, in any number of processes of one machine (SQLite's
    locks are not reliable on network file systems); in memory, in the process that made it. A plan whose charge was
    refused, or cut off by a crash, has released nothing. An older copy of the file that is put back is noticed by the
    objects that saw a newer one, not by those made afterwards. Proof: docs/proofs.md, section 25.

    The first charge sets the privacy unit, whole users or single rows: epsilons of the two do not add up, so runs of
    the other are refused. Files of earlier versions that hold charges count as "user".

    The first plan may cost all of the budget. A later one is accepted if all of them, the first included, fit as the
    Gaussian mechanisms that dominate them: mu^2 adds up, and so do failure probabilities.

    >>> Ledger(Budget(1.0, 1e-6)).spent_epsilon()
    0.0
    """

    def __init__(self, budget: Budget, path: str | Path | None = None, failure_fraction: float | None = None) -> None:
        check_kind(Budget, budget=budget)
        wanted = Filter(budget, FAILURE_FRACTION if failure_fraction is None else failure_fraction)
        if path is not None:
            create(Path(path).resolve(), "ledger", lambda db, _: _write_tables(db, wanted))
        self._attach(wanted, path)
        if failure_fraction is not None and self.failure_fraction != wanted.failure_fraction:
            raise ValueError(
                f"Expected the ledger {self.path} to hold failure_fraction={wanted.failure_fraction:g}; it holds "
                f"{self.failure_fraction:g}, as it was made: leave it out, or open it with Ledger.open(path)."
            )

    @classmethod
    def open(cls, path: str | Path) -> Ledger:
        """An existing ledger file, with the budget it was made with."""
        if not Path(path).is_file():
            raise FileNotFoundError(
                f"Expected a ledger file at {path}: found none. Ledger(budget, path) makes a new one, "
                "or `userdp ledger new`."
            )
        with _transaction(path) as db:
            held, _ = _identity(db, path)
        ledger = cls.__new__(cls)  # without __init__, which would make a new file if this one vanished just now
        ledger._attach(held, path)
        return ledger

    def _attach(self, wanted: Filter, path: str | Path | None) -> None:
        """Be the ledger that is in the file, or a new one in memory."""
        self.budget = wanted.budget
        self.path = None if path is None else Path(path).resolve()
        self._lock, self._process = threading.RLock(), os.getpid()
        self._memory = connect(None) if self.path is None else None
        with _transaction(self.path, self._memory) as db:
            if self._memory is not None:
                _write_tables(db, wanted)
            self._filter, self._identity = _identity(db, self.path)
            self._newest = _newest_run(db)
        self.charges()  # refuses a file that holds another budget, or damaged records

    def __deepcopy__(self, memo: object = None) -> Ledger:
        """Itself: a copy would let the same budget be spent twice. (scikit-learn copies parameters of estimators.)"""
        return self

    __copy__ = __deepcopy__

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled, a ledger is the address of its file, and finds the very same ledger there or raises."""
        if self.path is None:
            raise TypeError("A ledger in memory cannot be pickled or sent to other processes: use one with a file.")
        return _reopened, (self.path, self._identity, self._newest)

    @property
    def failure_fraction(self) -> float:
        """The part of delta that is held for failure probabilities."""
        return self._filter.failure_fraction

    @property
    def unit(self) -> str | None:
        """What its runs protect: "user", all rows of a user together, or "row"; None before the first charge."""
        with self._transaction() as db:
            return _unit(db, self.path)

    @property
    def called(self) -> str | None:
        """What one user is called, as the first charge said ("user", "household"); None before it."""
        with self._transaction() as db:
            (found,) = db.execute("SELECT called FROM budget").fetchone()
        return _unit_word(found) or self.unit

    def __repr__(self) -> str:
        return f"Ledger({self.budget}, path={None if self.path is None else str(self.path)!r})"

    def charge(
        self,
        plan: Plan,
        purpose: str = "",
        insecure_seed: int | None = None,
        token: str | None = None,
        unit: str = "user",
    ) -> None:
        """Write the whole plan down as spent, or raise `BudgetExceeded` and write nothing.

        `token` is a name of the run, in a journal: a run that resumes after it was killed is not charged again.
        `unit`: "row" if the plan's users are single rows, else what one user is called ("user", "household"): the word
        of the first charge is kept. Rows in a ledger of users, users in one of rows, and plans for neighbours of
        another relation than the ledger's raise `ValueError`.
        """
        insecure_seed = check_seed(insecure_seed)  # what is none is refused before it is written down
        named = "" if self.path is None else f" {self.path}"
        if plan.neighbours != self.budget.neighbours:
            raise ValueError(
                f"The ledger{named} is for neighbours of {self.budget.neighbours!r}, this run for {plan.neighbours!r}: "
                f"their epsilons do not add up. Pass neighbours={self.budget.neighbours!r}, or use another ledger for "
                "this run. (To convert: (epsilon, 0) for zero-out is (2 epsilon, 0) for replace-one, and statements "
                "print the other relation's epsilon.) Nothing was charged."
            )
        with self._transaction() as db:
            self._take_unit(db, check_unit(unit), named)
            if token is not None and self._was_charged(db, plan, token):
                return
            run = self._write_run(db, plan.costs, purpose, insecure_seed)
            for step in plan.steps:
                values = (run, step.label, json.dumps(described(step.mechanism)), int(step.start), int(step.stop))
                db.execute("INSERT INTO steps VALUES (?, ?, ?, ?, ?)", values)
            if token is not None:
                db.execute("INSERT INTO tokens VALUES (?, ?)", (token, run))

    def charge_external(
        self,
        purpose: str,
        *,
        epsilon: float | None = None,
        delta: float = 0.0,
        rho: float | None = None,
        mu: float | None = None,
        unit: str = "user",
    ) -> None:
        """Write down a release that another tool made, or will make, from the same users.

        Pass what that tool guarantees for neighbours of this ledger's relation: `epsilon` with `delta`, `mu` of
        mu-GDP (Gaussian noise: sensitivity / std), or `rho` of zCDP with the `delta` to convert it at. If its noise is
        Gaussian pass `mu`, which costs far less beside other runs: mu = sqrt(2 rho). A release that does not fit raises
        `BudgetExceeded`, and must not be made; one that was made already has then exceeded the budget.

        Guarantee: the ledger's, with this release counted in, if it is as private as is said here. (epsilon, delta) is
        charged as a pure release and a failure of chance delta (Kairouz, Oh and Viswanath 2015), and rho as
        (rho + 2 sqrt(rho ln(1/delta)), delta) (Bun and Steinke 2016, proposition 1.3).

        >>> ledger = Ledger(Budget(1.0, 1e-6))
        >>> ledger.charge_external("mean age, OpenDP", epsilon=0.3)
        >>> round(ledger.spent_epsilon(), 3)
        0.3
        """
        if [epsilon, rho, mu].count(None) != 2:
            raise ValueError("Pass one of epsilon, rho and mu: what the other tool guarantees. Nothing was charged.")
        given = {name: value for name, value in (("epsilon", epsilon), ("rho", rho), ("mu", mu)) if value is not None}
        (size,) = check_positive(**given)
        delta = check_number("delta", delta)
        if not 0 <= delta < 1 or (rho is not None and delta == 0) or (mu is not None and delta > 0):
            raise ValueError(
                f"delta must be 0 <= delta < 1, above 0 with rho, and left out with mu; got {delta!r}. Nothing was "
                "charged."
            )
        if mu is not None:
            cost = Cost(gaussian=math.nextafter(size**2, math.inf))
        else:
            largest = size if rho is None else size + 2 * math.sqrt(size * math.log(1 / delta))
            cost = Cost(pure=(math.nextafter(largest, math.inf) if rho is not None else largest,), failure=delta)
        with self._transaction() as db:
            self._take_unit(db, check_unit(unit), "" if self.path is None else f" {self.path}")
            run = self._write_run(db, (cost,), purpose, None)
            said = {"kind": EXTERNAL, **given, **({"delta": delta} if delta else {})}
            db.execute("INSERT INTO steps VALUES (?, ?, ?, 0, 0)", (run, purpose or EXTERNAL, json.dumps(said)))

    def _take_unit(self, db: sqlite3.Connection, unit: str, named: str) -> None:
        """Set the privacy unit by the first charge, and refuse another one after it."""
        kind, held = "row" if unit == "row" else "user", _unit(db, self.path)
        if held is None:
            db.execute("UPDATE budget SET unit = ?, called = ?", (kind, unit))
        elif held != kind:
            raise ValueError(
                f"Expected a run of the privacy unit {held!r}, as the other runs of the ledger{named}, got "
                f"{kind!r}: epsilons of users and of rows do not add up. Use another ledger for this run, or "
                f"privacy_unit={held!r}. Nothing was charged."
            )

    def _write_run(self, db: sqlite3.Connection, costs: tuple[Cost, ...], purpose: str, seed: int | None) -> int:
        """Write a run of these costs down if it fits; gives its number."""
        before = [charge.dominating for charge in _charges(db, self.path)]
        new = self._accepted(costs, before)
        today = datetime.now(UTC).date().isoformat()
        run = db.execute(
            "INSERT INTO runs (charged_at, purpose, insecure_seed, costs, dominating, mark) VALUES (?, ?, ?, ?, ?, ?)",
            (today, purpose, None if seed is None else str(seed), _written(costs), _written(new), str(uuid.uuid4())),
        ).lastrowid
        return int(run or 0)

    def _accepted(self, costs: tuple[Cost, ...], before: list[tuple[Dominating, ...]]) -> tuple[Dominating, ...]:
        """What a run of these costs is charged as after those before; raises `BudgetExceeded` if it does not fit."""
        if not before:
            for cost in costs:
                certify(cost, self.budget)
        new = _priced(costs, _totals(before), self._filter)
        for total in _totals([*before, new]) if before else ():
            self._filter.certify(total)
        return new

    def _was_charged(self, db: sqlite3.Connection, plan: Plan, token: str) -> bool:
        """Whether the run of this name was charged, for this plan."""
        db.execute(_TOKENS)
        row = db.execute("SELECT costs FROM runs JOIN tokens USING (run) WHERE token = ?", (token,)).fetchone()
        if row is not None and row[0] != _written(plan.costs):
            raise ValueError(
                f"Expected the charge of this run in the ledger {self.path} to be for its plan, it is for another."
            )
        return row is not None

    @property
    def identity(self) -> str | None:
        """The random name of a ledger with a file; None in memory."""
        return None if self.path is None else self._identity

    def spent_epsilon(self, delta: float | None = None) -> float:
        """The epsilon that everything charged so far amounts to, at `delta` or at the budget's own: a running total.

        Infinite if any run was seeded, hence non-private. Of several runs it is what their dominating Gaussian
        mechanisms cost, which may be more than the sum.

        Guarantee: none by itself. What holds however runs are chosen is the budget; a total at a moment that was
        chosen by looking at results, to stop there say, does not.
        """
        charges = self.charges()
        if not all(charge.private for charge in charges):
            return math.inf
        at = self.budget.delta if delta is None else delta
        if len(charges) == 1:
            return max(epsilon_at(cost, at) for cost in charges[0].costs)
        return max(self._filter.epsilon_at(total, at) for total in _totals(charge.dominating for charge in charges))

    def largest_epsilon(self, delta: float | None = None) -> float:
        """The largest epsilon, at `delta` or at the budget's own, of one more run that fits, rounded down; 0 if none.

        It is of a run whose noise is Gaussian, as the default solver's is (with delta=0: Laplace). Runs with private
        tests or samples are charged in other ways, and may fit up to less.

        >>> Ledger(Budget(1.0, 1e-6)).largest_epsilon()
        1.0
        """
        at = self.budget.delta if delta is None else Budget(1.0, delta).delta
        before = [charge.dominating for charge in self.charges()]

        def refused(size: float) -> bool:
            try:
                self._accepted((Cost(gaussian=size**2) if at else Cost(pure=(size,)),), before)
            except BudgetExceeded:
                return True
            return False

        size = 0.0
        if not refused(SMALLEST_MU) and (limit := least_that(refused, SMALLEST_MU, 2 * SMALLEST_MU, _TOLERANCE)):
            size = limit * (1 - _TOLERANCE)  # which is not refused
        found = epsilon_at(Cost(gaussian=size**2), at) * (1 - _TOLERANCE) if at else size
        if not before and at <= self.budget.delta:
            found = max(found, self.budget.epsilon)  # which the first run may cost, to the last digit
        return float(decimal.Context(prec=3, rounding=decimal.ROUND_FLOOR).create_decimal(repr(found)))

    def what_fits(self, delta: float | None = None) -> str:
        """`largest_epsilon` as a message."""
        at = self.budget.delta if delta is None else delta
        found, noise = self.largest_epsilon(at), "Gaussian" if at else "Laplace"
        if not found:
            return f"No further run of {noise} noise fits at delta {at:g}."
        return (
            f"One more run fits up to epsilon {found:g}, at delta {at:g}{' or less' if at else ''}, if its noise is "
            f"{noise}, as the default solver's is; one with private tests or samples may fit up to less."
        )

    def charges(self) -> tuple[Charge, ...]:
        """All charged plans, oldest first."""
        with self._transaction() as db:
            return _charges(db, self.path)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """A transaction on the very ledger this object was made with: its file could have been replaced meanwhile."""
        if self._memory is not None and os.getpid() != self._process:
            raise RuntimeError("A ledger in memory works only in the process that made it; use a file for several.")
        with self._lock:
            with _transaction(self.path, self._memory) as db:
                held, identity = _identity(db, self.path)
                if held.budget != self.budget:
                    raise ValueError(
                        f"Expected the ledger {self.path} to hold {self.budget}; it holds {held.budget}. A data set "
                        "has one lifetime budget: open it with Ledger.open(path). Nothing was charged."
                    )
                if (held, identity) != (self._filter, self._identity):
                    raise ValueError(f"Expected the ledger {self.path} to be the one opened; another is in its place.")
                if self._newest and not db.execute(_SAME_RUN, self._newest).fetchone():
                    raise ValueError(
                        f"Expected the ledger {self.path} to hold run {self._newest[0]}, which was seen in it; it does "
                        "not. An older copy is in its place: put the newest one back. Nothing was charged."
                    )
                self._newest = _newest_run(db)
                yield db
                newest = _newest_run(db)
            self._newest = newest  # only now is it committed


def check_unit(unit: object) -> str:
    """What one user is called, checked: a word or two, for statements and reports."""
    if not isinstance(unit, str) or not _WORD.fullmatch(unit):
        raise ValueError(
            f"unit must be what one user is called, such as 'user', 'household' or 'person-month', got {unit!r}. "
            "Nothing was charged."
        )
    return unit


def _unit_word(found: object) -> str | None:
    """The word of a file, if it is one."""
    return found if isinstance(found, str) and _WORD.fullmatch(found) else None


def _reopened(path: Path, identity: str, newest: tuple[int, str, str] | None) -> Ledger:
    ledger = Ledger.open(path)
    ledger._identity, ledger._newest = identity, newest
    ledger.charges()  # refuses another ledger, or an older copy, in its place
    return ledger


@contextlib.contextmanager
def _transaction(path: str | Path | None, memory: sqlite3.Connection | None = None) -> Iterator[sqlite3.Connection]:
    """A transaction on a ledger in a file, or in memory."""
    try:
        db = memory or connect(path, _PATIENCE_SECONDS)
    except sqlite3.Error as error:
        raise ValueError(
            f"Expected to open a ledger at {path}: {error}. Was it moved, or does its folder not exist?"
        ) from None
    try:
        with transaction(db, close=memory is None):
            yield db
    except (sqlite3.Error, UnicodeError) as error:
        reason = error if isinstance(error, sqlite3.Error) else "it is damaged"
        raise ValueError(
            f"Expected {path} to be a ledger that can be read and written: {reason}. Nothing was charged."
        ) from None


def _write_tables(db: sqlite3.Connection, wanted: Filter) -> None:
    for statement in _TABLES:
        db.execute(statement)
    held = (wanted.budget.epsilon, wanted.budget.delta, str(uuid.uuid4()), wanted.failure_fraction)
    db.execute("INSERT INTO budget VALUES (1, ?, ?, ?, ?, NULL, ?, NULL)", (*held, wanted.budget.neighbours))


def _newest_run(db: sqlite3.Connection) -> Any:
    """The last run's number, random mark and costs; None before the first."""
    return db.execute("SELECT run, mark, costs FROM runs ORDER BY run DESC LIMIT 1").fetchone()


def _identity(db: sqlite3.Connection, path: str | Path | None) -> tuple[Filter, str]:
    """The limits and the random name that a ledger was created with; refuses what is not a ledger."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version == 0 and not db.execute("SELECT * FROM sqlite_master").fetchone():
        raise ValueError(
            f"Expected {path} to be a ledger, it is empty: what was spent is lost. Put a copy of the ledger back; "
            "delete the empty file only if nothing was ever charged to it."
        )
    if version not in (1, 2, 3, _FORMAT):
        raise ValueError(f"Expected {path} to be a userdp ledger of format {_FORMAT}, it is something else.")
    if version == 1:
        for statement in _NEW_COLUMNS:
            db.execute(statement)
    if version <= 2:
        for statement in _NEWER_COLUMNS:
            db.execute(statement)
    if version <= 3:
        for statement in _NEWEST_COLUMNS:
            db.execute(statement)
    row = db.execute("SELECT epsilon, delta, neighbours, failure_share, identity FROM budget").fetchone()
    with undamaged(path, "ledger", _REMEDY):
        held, identity = Filter(Budget(*row[:3]), row[3]), _typed(row[4], str)
    if version == 1:
        _price(db, path, held)
    return held, identity


def _unit(db: sqlite3.Connection, path: str | Path | None) -> str | None:
    """The privacy unit of all charges; None before the first."""
    (found,) = db.execute("SELECT unit FROM budget").fetchone()
    with undamaged(path, "ledger", _REMEDY):
        if found not in (None, *UNITS):
            raise ValueError("no unit")
    return None if found is None else str(found)


def _price(db: sqlite3.Connection, path: str | Path | None, held: Filter) -> None:
    """Price every run of a file of the first format as a run after others is.

    Nothing is forgotten, and nothing was ever released between the pricing and the next charge.
    """
    with undamaged(path, "ledger", _REMEDY):
        before: list[tuple[Dominating, ...]] = []
        for run, costs in db.execute("SELECT run, costs FROM runs ORDER BY run").fetchall():
            before.append(_priced(_read(Cost, costs), _totals(before), held))
            db.execute("UPDATE runs SET dominating = ? WHERE run = ?", (_written(before[-1]), run))


def _charges(db: sqlite3.Connection, path: str | Path | None) -> tuple[Charge, ...]:
    """All charged plans, oldest first."""
    runs = db.execute("SELECT run, charged_at, purpose, costs, dominating, insecure_seed FROM runs ORDER BY run")
    steps = db.execute("SELECT run, label, mechanism, start, stop FROM steps").fetchall()
    with undamaged(path, "ledger", _REMEDY):
        steps_of: dict[int, list[ChargedStep]] = {}
        for run, *step in steps:
            steps_of.setdefault(run, []).append(_read_step(*step))
        return tuple(
            Charge(
                _typed(charged_at, str),
                _typed(purpose, str),
                _read(Cost, costs),
                _read(Dominating, priced),
                None if seed is None else int(seed),
                tuple(steps_of.get(run, ())),
            )
            for run, charged_at, purpose, costs, priced, seed in runs.fetchall()
        )


def _priced(costs: tuple[Cost, ...], spent: tuple[Dominating, ...], held: Filter) -> tuple[Dominating, ...]:
    """What a run of these costs is charged as, after what was spent."""
    own = max(cost.failure for cost in costs)
    spare = held.spare(max(total.failure for total in spent), own)
    return _highest(dominating(cost, spare) for cost in costs)


def _written(records: Iterable[Cost | Dominating]) -> str:
    return json.dumps([record.to_json() for record in records])


def _read(kind: type[_Priced], text: str) -> tuple[_Priced, ...]:
    """What `_written` wrote of a run: at least one record, or else the run would count as free."""
    records = tuple(kind.from_json(record) for record in json.loads(text))
    if not records:
        raise ValueError("no record")
    return records


def _read_step(label: object, mechanism: str, start: object, stop: object) -> ChargedStep:
    record = json.loads(mechanism) if mechanism.startswith("{") else mechanism
    kind = record["kind"] if isinstance(record, dict) else kind_of_class(record.partition("(")[0])
    return ChargedStep(_typed(label, str), _typed(kind, str), record, _typed(start, int), _typed(stop, int))


def kind_of_class(name: str) -> str:
    """A mechanism's kind from the name that its class had in 0.1.0, which wrote that; kinds are left as they are.

    >>> kind_of_class("SampledClip"), kind_of_class("sampled-clip")
    ('sampled-clip', 'sampled-clip')
    """
    return "output-perturbation" if name == "Perturbation" else re.sub("(?<!^)(?=[A-Z])", "-", name).lower()


def _typed(value: object, kind: type[_T]) -> _T:
    if not isinstance(value, kind):
        raise TypeError(f"no {kind.__name__}")
    return value


def _totals(runs: Iterable[tuple[Dominating, ...]]) -> tuple[Dominating, ...]:
    """The highest sums of one price from each run: a user is in some set of users in each, whatever the data."""
    totals: tuple[Dominating, ...] = (Dominating(),)
    for priced in runs:
        totals = _highest(total + price for total in totals for price in priced)
        if len(totals) > _MOST_ALTERNATIVES:
            totals = (Dominating.worst(totals),)
    return totals


def _highest(prices: Iterable[Dominating]) -> tuple[Dominating, ...]:
    """Those that no other covers."""
    kept: list[Dominating] = []
    for price in sorted(prices, reverse=True):
        if not any(other.covers(price) for other in kept):
            kept.append(price)
    return tuple(kept)
