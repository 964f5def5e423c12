"""From exceptions to one line on stderr and an exit code. What a line says never depends on cells of a table.

0 is done, 1 wrong input or a refused budget, 2 wrong usage, 3 a private test aborted, 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn, ParamSpec

import typer

import userdp
from userdp.privacy.accounting import Budget, BudgetExceeded
from userdp.privacy.ledger import Ledger
from userdp.privacy.mechanism import Aborted
from userdp.privacy.sqlite_file import Refused

WRONG, ABORTED, STOPPED = 1, 3, 130
_P = ParamSpec("_P")
PACKAGES = [f"{Path(userdp.__file__).parent}{os.sep}"]  # whose words may be shown; others quote values
_OPTIONS = {  # what messages of the library name, and an option of another name says here
    "allow_weak=True": "--allow-weak",
    "columns=Columns(...)": "--columns",
    "target_bound": "--target-range",
    "public_X": "--public-data",
    "n_partitions": "--workers",
    "sample_weight": "--weight",
}


class InputError(ValueError):
    """Something that the user of the command line can mend."""


def expect(fine: object, words: str) -> None:
    """Refuse what is not as the words, which name the option and the remedy, say."""
    if not fine:
        raise InputError(f"Expected {words}")


def guarded(command: Callable[_P, None]) -> Callable[_P, None]:
    """The command, with every exception made one line and an exit code; USERDP_DEBUG=1 shows tracebacks instead."""

    @functools.wraps(command)
    def run(*args: _P.args, **options: _P.kwargs) -> None:
        try:
            command(*args, **options)
        except (typer.Exit, BrokenPipeError):
            raise
        except KeyboardInterrupt as stopped:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not cut off the message
            fail(str(stopped) or "Stopped. Nothing was spent.", STOPPED)
        except Exception as error:
            if os.environ.get("USERDP_DEBUG") == "1":
                raise
            fail(line_of(error), ABORTED if isinstance(error, Aborted) else WRONG)

    return run


def line_of(error: Exception) -> str:
    """What may be said of an exception: its own words only if they are userdp's, since others quote values."""
    notes = "".join(f" {note}" for note in getattr(error, "__notes__", []))
    if isinstance(error, MemoryError):
        return f"Expected more memory for a table of this size: close other programs, or take fewer columns.{notes}"
    if isinstance(error, (InputError, BudgetExceeded, Aborted)):
        return in_options(str(error)) + notes
    frames, kinds = traceback.extract_tb(error.__traceback__), (ValueError, TypeError, FileNotFoundError, RuntimeError)
    # Made by a raise statement of ours: what float() and the like say in our files quotes what they were given.
    line = frames[-1].line or "" if frames and frames[-1].filename.startswith(tuple(PACKAGES)) else ""
    if type(error) in (*kinds, Refused) and line.startswith("raise "):
        return in_options(str(error)) + notes
    if isinstance(error, OSError) and error.strerror:  # says nothing of what is in the file
        where = f"{error.filename!r}" if error.filename else "a file"
        return f"Expected to read or write {where}: {error.strerror}.{notes}"
    return (
        f"Internal error, {type(error).__name__}. Please report it. With USERDP_DEBUG=1 the traceback is shown, which "
        f"may hold data.{notes}"
    )


def in_options(message: str) -> str:
    """The library's words, as they are: parameters are options of the same name, and others are named after them."""
    named = [f"{name} is {option}" for name, option in _OPTIONS.items() if name in message]
    return f"{message} (Here {', '.join(named)}.)" if named else message


def fail(message: str, code: int) -> NoReturn:
    """End with one line on stderr."""
    print(f"userdp: {' '.join(message.split())}", file=sys.stderr, flush=True)
    raise typer.Exit(code)


@contextmanager
def spending(ledger: Ledger, budget: Budget, written: Callable[[], str] = str) -> Iterator[None]:
    """What ends the block early gets a note of what was spent by then; `written` says what was made all the same."""
    before = len(ledger.charges())

    def spent() -> str:
        if len(ledger.charges()) == before:
            return "Nothing was spent."
        cost = f"epsilon {budget.epsilon:g} at delta {budget.delta:g}"
        if ledger.path is None:
            return f"The plan was charged before data was read: {cost} counts as spent on these users. {written()}"
        total = f"{ledger.spent_epsilon():.4g} of {ledger.budget.epsilon:g}"
        return f"The plan was charged before data was read: {cost} is spent, the ledger has {total} spent. {written()}"

    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"Stopped. {spent()}") from None
    except Exception as error:
        if len(ledger.charges()) > before:
            error.add_note(spent())
        raise
