"""What commands print: tables and notes for readers, one JSON object for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from userdp.data.tables import check_place, whole_file
from userdp.evaluation.scores import Scores
from userdp.privacy.accounting import rounded_up
from userdp.privacy.statement import Statement, in_percent, right_guess

_STDOUT = Path("-")


def check_files(*written: Path | None, read: Sequence[Path | None] = ()) -> None:
    """Refuse, before anything is computed, a file that cannot be written, or is read from, or is to be two things."""
    others = [path for path in read if path is not None]
    for path in written:
        if path is not None and path != _STDOUT:
            check_place(path, *others)
            others.append(path)


def as_json(record: dict[str, Any], where: Path | None) -> bool:
    """One JSON object to where `--json` says, a file or stdout; whether stdout is its alone, with no words beside."""
    if where is None:
        return False
    text = json.dumps(record, indent=2, allow_nan=False) + "\n"
    if where == _STDOUT:
        typer.echo(text, nl=False)
        return True
    with whole_file(where) as new:
        new.write_text(text, encoding="utf-8")
    return False


def note(message: str, style: str = "yellow", stderr: bool = True) -> None:
    """A paragraph on stderr: amber for what one should know, red for what is not private."""
    Console(stderr=stderr, highlight=False).print(Text(message, style=style))


def facts(rows: Iterable[tuple[str, object]]) -> None:
    """Names and what is to be said of them, in two columns; those without anything to say are left out."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        if value:
            table.add_row(Text(name), Text(str(value)))
    Console(highlight=False).print(table)


def guarantee(statement: Statement, more: str = "; `userdp report` says more") -> list[tuple[str, object]]:
    """The guarantee, what the noise gives, what it covers and what was spent, as facts."""
    guaranteed, noise = "none: the run was seeded", ""
    if statement.private:
        guaranteed = (
            f"epsilon {rounded_up(statement.epsilon)}, delta {rounded_up(statement.delta)} for each of "
            f"{statement.n_users:,} users, with all their rows"
        )
    if statement.private and statement.tradeoff is not None:
        noise = (
            f"at most {in_percent(statement.tradeoff.right_guess)} right guesses between two versions of one user's "
            f"data; epsilon and delta alone would allow {in_percent(right_guess(statement.epsilon, statement.delta))}"
        )
    total = f"{rounded_up(statement.ledger_epsilon)} at delta {rounded_up(statement.ledger_delta)}"
    kept = "" if statement.ledger_path is None else f" (ledger {statement.ledger_path})"
    spent = f"epsilon {statement.spent_epsilon:.4g} of {total}{kept}"
    return [("guarantee", guaranteed), ("spent", spent), ("noise", noise), ("covers", f"{statement.covers}{more}")]


def grid(head: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> None:
    """A table whose first column is text and whose others are numbers."""
    table = Table(title=title or None, title_justify="left")
    for position, name in enumerate(head):
        table.add_column(name, justify="left" if position == 0 else "right")
    for row in rows:
        table.add_row(*map(Text, row))
    Console(highlight=False).print(table)


def scores(found: Scores, counted: str = "user") -> None:
    """Private scores with intervals, and the calibration curve if there is one."""
    interval = f"{100 * found.confidence:g}% interval"
    typer.echo(f"Every {counted} counted once:\n{found}")
    if found.curve:
        rows = [
            (
                f"{point.low:.3f} to {point.high:.3f}",
                f"{point.predicted:.3f}",
                f"{point.observed:.3f}",
                f"{point.observed_low:.3f} to {point.observed_high:.3f}",
                f"{point.fraction:.1%}",
            )
            for point in found.curve
        ]
        grid(["predicted chance", "mean", "observed", interval, "of the rows"], rows, "Calibration")
    if not found.notes and any(shown[1] == "-" for shown in found.lines()):
        note("-: noise hides it. Ask for fewer scores or groups, or have more users or a larger epsilon.")


def working(what: str, quiet: bool) -> AbstractContextManager[Any]:
    """A spinner while something takes a while, on a terminal."""
    console = Console(stderr=True)
    return nullcontext() if quiet or not console.is_terminal else console.status(Text(what))


def paragraph(*texts: str) -> None:
    """Texts on stdout, wrapped at the terminal's width."""
    for text in texts:
        Console(highlight=False).print(Text(text))
