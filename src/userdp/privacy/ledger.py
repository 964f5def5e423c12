"""The ledger: what was spent, on which users, by which mechanism, written down before the data is read.

One SQLite database, in memory for one fit or in a file for a data set's whole life. A charge is one transaction that
composes everything spent so far with the new plan and refuses it if the budget would be exceeded; the file is safe
under concurrent processes and sudden death. A plan is charged whole and never refunded, even if it halts.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sqlite3
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from userdp.privacy.accounting import Budget, Cost, certify, epsilon_at
from userdp.privacy.noise import noise_source
from userdp.privacy.plan import Plan

_T = TypeVar("_T")
_FORMAT = 1
_TABLES = (
    "CREATE TABLE budget (only INTEGER PRIMARY KEY CHECK (only = 1), epsilon REAL NOT NULL, delta REAL NOT NULL, "
    "identity TEXT NOT NULL)",
    "CREATE TABLE runs (run INTEGER PRIMARY KEY AUTOINCREMENT, charged_at TEXT NOT NULL, purpose TEXT NOT NULL, "
    "insecure_seed TEXT, costs TEXT NOT NULL)",
    "CREATE TABLE steps (run INTEGER NOT NULL REFERENCES runs, label TEXT NOT NULL, mechanism TEXT NOT NULL, "
    "start INTEGER NOT NULL, stop INTEGER NOT NULL)",
    f"PRAGMA user_version = {_FORMAT}",
)

_SAME_RUN = "SELECT run FROM runs WHERE run = ? AND charged_at = ? AND costs = ?"

# How long a charge waits for other processes that are charging the same file.
_PATIENCE_SECONDS = 600

# More alternatives than this are replaced by one that is at least as high as each.
_MOST_ALTERNATIVES = 64


@dataclass(frozen=True)
class ChargedStep:
    """One step of a charged plan: the mechanism's record in words, and which users of the random order it is on."""

    label: str
    mechanism: str
    start: int
    stop: int


@dataclass(frozen=True)
class Charge:
    """One charged plan. `costs` has one entry for each set of users that paid differently."""

    charged_at: str
    purpose: str
    costs: tuple[Cost, ...]
    insecure_seed: int | None
    steps: tuple[ChargedStep, ...]

    @property
    def private(self) -> bool:
        """False for a seeded run: its noise can be reproduced, so it protects nobody."""
        return self.insecure_seed is None


class Ledger:
    """The budget of one data set and all that was spent of it.

    Guarantee: the charged plans together are within the budget, for every user, at every moment; with a file, in any
    number of processes of one machine (SQLite's locks are not reliable on network file systems); in memory, in the
    process that made it. A plan whose charge was refused, or cut off by a crash, has released nothing. An older copy
    of the file that is put back is noticed by the objects that saw a newer one, not by those made afterwards.

    >>> Ledger(Budget(1.0, 1e-6)).spent_epsilon()
    0.0
    """

    def __init__(self, budget: Budget, path: str | Path | None = None) -> None:
        if not isinstance(budget, Budget):
            raise TypeError(f"Expected budget to be a Budget(epsilon, delta), got {type(budget).__name__}.")
        if path is not None:
            _create(Path(path).resolve(), budget)
        self._attach(budget, path)

    @classmethod
    def open(cls, path: str | Path) -> Ledger:
        """An existing ledger file, with the budget it was made with."""
        if not Path(path).is_file():
            raise FileNotFoundError(f"Expected a ledger file at {path}; Ledger(budget, path) makes a new one.")
        with _transaction(_connect(path), path) as db:
            budget, _ = _identity(db, path)
        ledger = cls.__new__(cls)  # without __init__, which would make a new file if this one vanished just now
        ledger._attach(budget, path)
        return ledger

    def _attach(self, budget: Budget, path: str | Path | None) -> None:
        """Be the ledger that is in the file, or a new one in memory."""
        self.budget = budget
        self.path = None if path is None else Path(path).resolve()
        self._lock, self._process = threading.RLock(), os.getpid()
        self._memory = _connect(None) if self.path is None else None
        with _transaction(self._memory or _connect(self.path), self.path, self._memory is None) as db:
            if self._memory is not None:
                _write_tables(db, budget)
            self._identity = _identity(db, self.path)
            self._newest = _newest_run(db)
        self.charges()  # refuses a file that holds another budget, or damaged records

    def __deepcopy__(self, memo: object) -> Ledger:
        """Itself: a copy would let the same budget be spent twice. (scikit-learn copies parameters of estimators.)"""
        return self

    def __copy__(self) -> Ledger:
        return self

    def __reduce__(self) -> tuple[Callable[..., Ledger], tuple[object, ...]]:
        """Pickled, a ledger is the address of its file, and finds the very same ledger there or raises."""
        if self.path is None:
            raise TypeError("A ledger in memory cannot be pickled or sent to other processes: use one with a file.")
        return _reopened, (self.path, self._identity, self._newest)

    def __repr__(self) -> str:
        return f"Ledger({self.budget}, path={None if self.path is None else str(self.path)!r})"

    def charge(self, plan: Plan, purpose: str = "", insecure_seed: int | None = None) -> None:
        """Write the whole plan down as spent, or raise `BudgetExceeded` and write nothing."""
        noise_source(insecure_seed)  # a seed that cannot be one is refused before it is written down
        with self._transaction() as db:
            for total in _totals([*_costs(db, self.path), plan.costs]):
                certify(total, self.budget, "With what was spent before, the plan")
            seed = None if insecure_seed is None else str(int(insecure_seed))
            costs = json.dumps([cost.to_json() for cost in plan.costs])
            now = datetime.now(UTC).isoformat(timespec="microseconds")
            run = db.execute(
                "INSERT INTO runs (charged_at, purpose, insecure_seed, costs) VALUES (?, ?, ?, ?)",
                (now, purpose, seed, costs),
            ).lastrowid
            steps = [(run, s.label, repr(s.mechanism), int(s.start), int(s.stop)) for s in plan.steps]
            db.executemany("INSERT INTO steps VALUES (?, ?, ?, ?, ?)", steps)

    def spent(self) -> tuple[Cost, ...]:
        """What was spent in all: one cost for each way of being in the charged plans' sets of users.

        It counts a seeded run as if its noise were private, which it is not: `spent_epsilon` is then infinite.
        """
        with self._transaction() as db:
            return _totals(_costs(db, self.path))

    def spent_epsilon(self, delta: float | None = None) -> float:
        """The epsilon that everything charged so far amounts to, at `delta` or at the budget's own.

        Infinite if any run was seeded: such a run protects nobody.
        """
        if not all(charge.private for charge in self.charges()):
            return math.inf
        at = self.budget.delta if delta is None else delta
        return max(epsilon_at(cost, at) for cost in self.spent())

    def charges(self) -> tuple[Charge, ...]:
        """All charged plans, oldest first."""
        with self._transaction() as db:
            runs = db.execute("SELECT run, charged_at, purpose, insecure_seed, costs FROM runs ORDER BY run").fetchall()
            steps = db.execute("SELECT run, label, mechanism, start, stop FROM steps").fetchall()
        with _undamaged(self.path):
            return tuple(
                Charge(
                    _typed(charged_at, str),
                    _typed(purpose, str),
                    _read_costs(costs),
                    None if seed is None else int(seed),
                    tuple(_read_step(*step[1:]) for step in steps if step[0] == run),
                )
                for run, charged_at, purpose, seed, costs in runs
            )

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """A transaction on the very ledger this object was made with: its file could have been replaced meanwhile."""
        if self._memory is not None and os.getpid() != self._process:
            raise RuntimeError("A ledger in memory works only in the process that made it; use a file for several.")
        with self._lock:
            db = _connect(self.path) if self._memory is None else self._memory
            with _transaction(db, self.path, close=self._memory is None):
                held, identity = _identity(db, self.path)
                if held != self.budget:
                    raise ValueError(
                        f"Expected the ledger {self.path} to hold {self.budget}; it holds {held}. A data set has one "
                        "lifetime budget: open it with Ledger.open(path). Nothing was charged."
                    )
                if identity != self._identity[1]:
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


def _reopened(path: Path, identity: tuple[Budget, str], newest: tuple[int, str, str] | None) -> Ledger:
    ledger = Ledger.open(path)
    ledger._identity, ledger._newest = identity, newest
    ledger.charges()  # refuses another ledger, or an older copy, in its place
    return ledger


def _connect(path: str | Path | None, mode: str = "rw") -> sqlite3.Connection:
    """A connection to memory, or to a file: a ledger that has vanished is not silently begun anew."""
    uri = ":memory:" if path is None else f"{Path(path).resolve().as_uri()}?mode={mode}"
    try:
        return sqlite3.connect(
            uri, timeout=_PATIENCE_SECONDS, isolation_level=None, check_same_thread=False, uri=path is not None
        )
    except sqlite3.Error as error:
        raise ValueError(
            f"Expected to open a ledger at {path}: {error}. Was it moved, or does its folder not exist?"
        ) from None


@contextlib.contextmanager
def _transaction(db: sqlite3.Connection, path: str | Path | None, close: bool = True) -> Iterator[sqlite3.Connection]:
    """All or nothing, and alone: BEGIN IMMEDIATE waits for other writers; EXTRA survives a loss of power after it."""
    try:
        db.execute("PRAGMA synchronous = EXTRA")
        try:
            db.execute("BEGIN IMMEDIATE")
            yield db
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
    except (sqlite3.Error, UnicodeError) as error:
        reason = error if isinstance(error, sqlite3.Error) else "it is damaged"
        raise ValueError(
            f"Expected {path} to be a ledger that can be read and written: {reason}. Nothing was charged."
        ) from None
    finally:
        if close:
            db.close()


def _create(path: Path, budget: Budget) -> None:
    """Make a ledger at `path`, unless something is there, be it empty.

    It is made aside and linked into place, in one step: nobody sees half a ledger, and of several processes that
    make one the first wins. The folder is synced with the first charge.
    """
    try:
        if path.exists():
            return
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as aside:
            new = Path(aside) / "ledger"
            with _transaction(_connect(new, "rwc"), new) as db:
                _write_tables(db, budget)
            with contextlib.suppress(FileExistsError):
                os.link(new, path)
    except OSError as error:
        raise ValueError(
            f"Expected to make a ledger at {path}: {error.strerror}. Does its folder not exist, or is it not writable, "
            "or on a disk without hard links? Choose another."
        ) from None


def _write_tables(db: sqlite3.Connection, budget: Budget) -> None:
    for statement in _TABLES:
        db.execute(statement)
    db.execute("INSERT INTO budget VALUES (1, ?, ?, ?)", (budget.epsilon, budget.delta, str(uuid.uuid4())))


def _newest_run(db: sqlite3.Connection) -> tuple[int, str, str] | None:
    """The last run's number, time and costs."""
    row: tuple[int, str, str] | None = db.execute(
        "SELECT run, charged_at, costs FROM runs ORDER BY run DESC LIMIT 1"
    ).fetchone()
    return row


def _identity(db: sqlite3.Connection, path: str | Path | None) -> tuple[Budget, str]:
    """The budget and the random name that a ledger was created with; refuses what is not a ledger of this format."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version == 0 and not db.execute("SELECT * FROM sqlite_master").fetchone():
        raise ValueError(
            f"Expected {path} to be a ledger, it is empty: what was spent is lost. Put a copy of the ledger back; "
            "delete the empty file only if nothing was ever charged to it."
        )
    if version != _FORMAT:
        raise ValueError(f"Expected {path} to be a userdp ledger of format {_FORMAT}, it is something else.")
    budget = db.execute("SELECT epsilon, delta, identity FROM budget").fetchone()
    with _undamaged(path):
        return Budget(*budget[:2]), _typed(budget[2], str)


def _costs(db: sqlite3.Connection, path: str | Path | None) -> list[tuple[Cost, ...]]:
    runs = db.execute("SELECT costs FROM runs ORDER BY run").fetchall()
    with _undamaged(path):
        return [_read_costs(costs) for (costs,) in runs]


@contextlib.contextmanager
def _undamaged(path: str | Path | None) -> Iterator[None]:
    """Whatever goes wrong with records inside is told as one thing: what was spent is not known, so nothing may be."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        raise ValueError(
            f"Expected {path} to be a whole ledger, records in it are damaged: put a copy of it back. Nothing was "
            "charged."
        ) from None


def _read_costs(text: str) -> tuple[Cost, ...]:
    """The costs of a run: at least one, or else it would count as free."""
    costs = tuple(Cost.from_json(record) for record in json.loads(text))
    if not costs:
        raise ValueError("no cost")
    return costs


def _read_step(label: object, mechanism: object, start: object, stop: object) -> ChargedStep:
    return ChargedStep(_typed(label, str), _typed(mechanism, str), _typed(start, int), _typed(stop, int))


def _typed(value: object, kind: type[_T]) -> _T:
    if not isinstance(value, kind):
        raise TypeError(f"no {kind.__name__}")
    return value


def _totals(runs: Iterable[tuple[Cost, ...]]) -> tuple[Cost, ...]:
    """Every sum of one cost from each run: a user is in some set of users in each, independently of the data."""
    totals: tuple[Cost, ...] = (Cost(),)
    for costs in runs:
        totals = tuple(dict.fromkeys(total + cost for total in totals for cost in costs))
        if len(totals) > _MOST_ALTERNATIVES:
            totals = (Cost.worst(totals),)
    return totals
