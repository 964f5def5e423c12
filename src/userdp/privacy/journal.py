"""The journal of a run: each release is on disk before anybody sees it, so that a run that was killed can resume.

One SQLite file. It says which run it is of (plan, budget, ledger, shape of the data), in which order users were drawn,
and what was released, in order. A run that is begun again with it gets these releases as they were, without a look at
the data, and resumes after the last of them; its charge, which the ledger knows by the journal's token, is not made
twice. What was drawn for a release that did not reach the disk was seen by nobody, and is drawn anew.

A journal is as secret as the data: besides releases it holds the noisy threshold of a test that goes on, and a digest
of how many rows users have. It is readable by its owner only, and of no use once the run has ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import os
import sqlite3
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from userdp.data.users import RemoteUsers, UserData
from userdp.privacy.accounting import Budget
from userdp.privacy.mechanism import Aborted, Users, Vectors, described
from userdp.privacy.plan import Plan
from userdp.privacy.sqlite_file import Refused, connect, create, undamaged

_FORMAT = 1
_NAME = 0x75647073  # "udps": distinguishes a journal from other SQLite files
_TABLES = (
    "CREATE TABLE run (only INTEGER PRIMARY KEY CHECK (only = 1), facts TEXT NOT NULL, token TEXT NOT NULL, "
    "command TEXT NOT NULL, inode INTEGER NOT NULL)",
    "CREATE TABLE records (number INTEGER PRIMARY KEY, kind TEXT NOT NULL, label TEXT NOT NULL, "
    "statistic TEXT NOT NULL, radius REAL NOT NULL, value BLOB NOT NULL, state TEXT NOT NULL, digest TEXT NOT NULL)",
    f"PRAGMA application_id = {_NAME}",
    f"PRAGMA user_version = {_FORMAT}",
)
_ORDER, _RELEASE, _ABORT, _FAILURE = "order", "release", "abort", "failure"
_DAMAGED = "journal", "the run cannot go on. What it spent is spent; nothing was released."
_RADIUS_TOLERANCE = 1e-6  # solvers compute radii from releases, on another machine with other roundings


@dataclass(frozen=True)
class Record:
    """One thing that was drawn: the users' order, which comes first, or what became of a request.

    value: numbers as bytes, or words; state: what draws that follow depend on (`Session.hidden`, and of a seeded source
    where it stands).
    """

    kind: str
    label: str
    statistic: str
    radius: float
    value: bytes
    state: str

    def outcome(self) -> Vectors | Aborted | RuntimeError:
        if self.kind == _RELEASE:
            return np.frombuffer(self.value).copy()
        return Aborted(self.value.decode()) if self.kind == _ABORT else RuntimeError(self.value.decode())


def recorded(label: str, statistic: object, radius: float, outcome: Vectors | Exception, state: str) -> Record:
    """What became of a request."""
    asked = (label, type(statistic).__name__, radius)
    if isinstance(outcome, Aborted):
        return Record(_ABORT, *asked, outcome.reason.encode(), state)
    if isinstance(outcome, Exception):
        return Record(_FAILURE, *asked, str(outcome).encode(), state)
    return Record(_RELEASE, *asked, outcome.tobytes(), state)


def run_facts(
    data: UserData | RemoteUsers, plan: Plan, budget: Budget, ledger: str | None, purpose: str, seed: int | None
) -> str:
    """Which run it is: all that is public and must be the same when it goes on; `ledger` names one that has a file."""
    steps = [[s.label, s.start, s.stop, s.n_groups, described(s.mechanism)] for s in plan.steps]
    shape = [data.n_users, data.n_features, str(data.dtype), data.has_targets, data.has_intercept]
    facts = {
        "plan": [plan.n_users, steps],
        "budget": [budget.epsilon, budget.delta],
        "ledger": ledger,
        "purpose": purpose,
        "seed": seed if seed is None else int(seed),
        "schema": shape,
    }
    return json.dumps(facts)


# Made when a run has ended, so that older files need no change.
_ENDED = "CREATE TABLE IF NOT EXISTS ended (only INTEGER)"


class Journal:
    """A file in which a run's releases are kept; `command` is what `userdp resume` runs again.

    Guarantee: what a run releases with a journal, over any number of times that it was killed and begun again, is what
    the run would release without, provided that it is killed for reasons that do not depend on draws that nobody saw,
    and that there is room on the disk. One run at a time has it open, and a copy beside it is refused: two runs that go
    on from the same place would release what was charged once. One that has ended is refused: it would give its result
    again, as if it were of other data of the same shape. An older state that is put back is not detected. Proof:
    docs/proofs.md, section 28.
    """

    def __init__(self, path: str | os.PathLike[str], command: tuple[str, ...] = ()) -> None:
        self.path = Path(path).resolve()
        self._command = command

    def command(self) -> tuple[str, ...]:
        """The arguments of `userdp` that the run was begun with; empty if it was begun from Python."""
        if not self.path.is_file():
            raise FileNotFoundError(f"Expected a journal at {self.path}: --checkpoint of `userdp fit` makes one.")
        with undamaged(self.path, *_DAMAGED), contextlib.closing(connect(self.path)) as db:
            _check_kind(db, self.path)
            command = json.loads(db.execute("SELECT command FROM run").fetchone()[0])
            if not isinstance(command, list) or not all(isinstance(word, str) for word in command):
                raise TypeError("no command")
            return tuple(command)

    def end(self) -> None:
        """Mark the run as ended, once its result is where it is wanted: the journal then begins no other."""
        with undamaged(self.path, *_DAMAGED), contextlib.closing(connect(self.path)) as db:
            db.execute("PRAGMA synchronous = EXTRA")
            db.execute(_ENDED)

    def open(self, facts: str) -> OpenJournal:
        """Begin a run's journal, or go on with it."""

        def fill(db: sqlite3.Connection, new: Path) -> None:
            for statement in _TABLES:
                db.execute(statement)
            known = (facts, str(uuid.uuid4()), json.dumps(self._command), new.stat().st_ino)
            db.execute("INSERT INTO run VALUES (1, ?, ?, ?, ?)", known)

        create(self.path, "journal", fill, mode=0o600)
        return OpenJournal(self.path, facts)


class OpenJournal:
    """A run's hold on its journal, until it is closed.

    token: the name by which a ledger knows the run's charge.
    """

    def __init__(self, path: Path, facts: str) -> None:
        self.path = path
        self._records: list[Record] = []
        self._digest, self._replayed = "", 0
        with contextlib.ExitStack() as stack:
            # By a descriptor of its own: SQLite's locks are gone as soon as this process closes the file anywhere.
            held = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            stack.callback(os.close, held)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ValueError(
                    f"Expected the journal {path} for this run alone: another one has it open. Nothing was released."
                ) from None
            with undamaged(path, *_DAMAGED):
                self._db = connect(path)
                stack.callback(self._db.close)  # before the lock is gone
                self._db.execute("PRAGMA synchronous = EXTRA")
                self.token = self._check(facts)
            self._closing = stack.pop_all()

    def close(self) -> None:
        """Let others have it; this hold is of no more use."""
        self._closing.close()

    def order(
        self, data: UserData | RemoteUsers, draw: Callable[[], Users], state: Callable[[], str]
    ) -> tuple[Users, str]:
        """The order that users were drawn in, and what was kept with it: of the first run, which draws it.

        Users are known by their place in the data, so their ids, where the data keeps them, and their numbers of rows
        must be the same. (Which rows of a user are kept may differ.)
        """
        shape = data.fingerprint()
        if not self._records:
            self.append(Record(_ORDER, "order", shape, 0.0, draw().astype("<i8").tobytes(), state()))
        first = self._records[0]
        with undamaged(self.path, *_DAMAGED):
            order = np.frombuffer(first.value, dtype="<i8").astype(np.int64)
            if first.kind != _ORDER or not np.array_equal(np.sort(order), np.arange(data.n_users)):
                raise ValueError("no order of these users")
        if first.statistic != shape:
            raise ValueError(
                f"Expected the users that the journal {self.path} was begun with, in the same order and with as many "
                "rows each: pass the same data, or begin a new run with another journal. Nothing was released."
            )
        self._replayed = 1
        return order, first.state

    def next(self, label: str, statistic: object, radius: float) -> Record | None:
        """What became of this request when the run was begun before; None if it is new."""
        if self._replayed == len(self._records):
            return None
        found = self._records[self._replayed]
        same = (found.label, found.statistic) == (label, type(statistic).__name__)
        if not same or not math.isclose(found.radius, radius, rel_tol=_RADIUS_TOLERANCE):
            raise ValueError(
                f"Expected the run to ask for what the journal {self.path} holds next, step {found.label!r}; it asks "
                f"for {label!r}, or otherwise. Go on with the version, data and parameters that it was begun with, or "
                "begin a new run with another journal. Nothing was released."
            )
        self._replayed += 1
        return found

    def append(self, record: Record) -> None:
        """Write down what was drawn, and sync it to the disk; raises, and nothing may leave, if that fails."""
        digest = _digest(self._digest, record)
        values = (record.kind, record.label, record.statistic, record.radius, record.value, record.state, digest)
        try:
            self._db.execute("INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (len(self._records), *values))
        except sqlite3.Error as error:
            raise OSError(
                f"Expected to write to the journal {self.path}: {error}. Nothing was released: make room, and begin "
                "the run again to go on."
            ) from None
        self._records.append(record)
        self._digest, self._replayed = digest, len(self._records)

    def _check(self, facts: str) -> str:
        """Refuse what is no whole journal of this run, and read what it holds; its token."""
        _check_kind(self._db, self.path)
        held, token, inode = self._db.execute("SELECT facts, token, inode FROM run").fetchone()
        if inode != self.path.stat().st_ino:
            raise Refused(
                f"Expected {self.path} to be the journal itself, it is a copy: a run goes on once, with the file that "
                "it was begun with. Nothing was released."
            )
        old, new = json.loads(held), json.loads(facts)
        differ = [name for name in new if old.get(name, self) != new[name]]
        if differ:
            raise Refused(
                f"Expected the journal {self.path} to be of this run; its {differ[0]} is another. Go on with what it "
                "was begun with, or begin a new run with another journal. Nothing was released."
            )
        if self._db.execute("SELECT * FROM sqlite_master WHERE name = 'ended'").fetchone():
            raise Refused(
                f"Expected the journal {self.path} to be of a run that goes on; it has ended, and would give its old "
                "result again, whatever the data is now. Choose another path for a new run, or delete the journal. "
                "Nothing was released."
            )
        digest = hashlib.sha256(held.encode() + token.encode()).hexdigest()
        records = []
        rows = self._db.execute("SELECT number, kind, label, statistic, radius, value, state, digest FROM records")
        for number, (found, *values, written) in enumerate(sorted(rows.fetchall())):
            record = Record(*values)
            digest = _digest(digest, record)
            if (found, digest) != (number, written) or record.kind not in (_ORDER, _RELEASE, _ABORT, _FAILURE):
                raise ValueError("no record of this journal")
            records.append(record)
        self._records, self._digest = records, digest
        uuid.UUID(token)
        return str(token)


def _check_kind(db: sqlite3.Connection, path: Path) -> None:
    (name,), (version,) = (db.execute(f"PRAGMA {p}").fetchone() for p in ("application_id", "user_version"))
    if (name, version) != (_NAME, _FORMAT):
        raise Refused(
            f"Expected {path} to be a userdp journal of format {_FORMAT}, it is something else: choose another "
            "--checkpoint. Nothing was spent."
        )


def _digest(before: str, record: Record) -> str:
    """Of a record and all before it, so that none can be lost from the middle."""
    head = json.dumps([before, record.kind, record.label, record.statistic, record.radius.hex(), record.state])
    return hashlib.sha256(head.encode() + record.value).hexdigest()


def as_journal(checkpoint: Any) -> Journal | None:
    """What `checkpoint=` means: a journal, the path of one, or None."""
    if checkpoint is None or isinstance(checkpoint, Journal):
        return checkpoint
    if not isinstance(checkpoint, (str, os.PathLike)):
        raise TypeError(f"Expected checkpoint to be a path, got {type(checkpoint).__name__}: use 'run.journal', say.")
    return Journal(checkpoint)
