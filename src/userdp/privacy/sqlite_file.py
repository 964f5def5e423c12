"""SQLite files, of ledgers and journals: made whole or not at all, and on the disk before anybody relies on them."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path


class Refused(ValueError):
    """A file that is whole, but not to be used: said as it is, and not as damage."""


def connect(path: str | Path | None, patience: float = 0.0) -> sqlite3.Connection:
    """A connection to memory, or to a file that exists: one that has vanished is not silently begun anew."""
    uri = ":memory:" if path is None else Path(path).resolve().as_uri() + "?mode=rw"
    return sqlite3.connect(uri, timeout=patience, isolation_level=None, check_same_thread=False, uri=path is not None)


@contextlib.contextmanager
def transaction(db: sqlite3.Connection, close: bool = True) -> Iterator[sqlite3.Connection]:
    """All or nothing, and alone: BEGIN IMMEDIATE waits for other writers; EXTRA survives a loss of power after it."""
    try:
        db.execute("PRAGMA synchronous = EXTRA")
        db.execute("BEGIN IMMEDIATE")
        yield db
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    finally:
        if close:
            db.close()


def create(path: Path, kind: str, fill: Callable[[sqlite3.Connection, Path], object], mode: int = 0o644) -> None:
    """Make a file at `path`, unless something is there, be it empty; `fill` writes its tables.

    It is made aside and linked into place, in one step: nobody sees half a file, and of several processes that make
    one the first wins. The folder is synced with the first thing that is written.
    """
    try:
        if path.exists():
            return
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as aside:
            new = Path(aside) / kind
            new.touch(mode)
            with transaction(connect(new)) as db:
                fill(db, new)
            with contextlib.suppress(FileExistsError):
                os.link(new, path)
    except (OSError, sqlite3.Error) as error:
        raise ValueError(
            f"Expected to make a {kind} at {path}: {getattr(error, 'strerror', error)}. Does its folder not exist, or "
            "is it not writable, or on a disk without hard links? Choose another. Nothing was spent."
        ) from None


@contextlib.contextmanager
def undamaged(path: str | Path | None, kind: str, remedy: str) -> Iterator[None]:
    """Whatever goes wrong with records inside is reported as one error, without what is in them."""
    try:
        yield
    except Refused:
        raise
    except (sqlite3.Error, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        raise ValueError(f"Expected {path} to be a whole {kind}, records in it are damaged: {remedy}") from None
