"""`userdp audit`: attack what is claimed to be private, and see how much of the claim an attack can prove."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from userdp.auditing.run import AuditReport, Progress
from userdp.auditing.run import audit as run_audit
from userdp.cli import options as o
from userdp.cli import show
from userdp.cli.errors import WRONG, expect
from userdp.data.tables import whole_file

_attacked = o.own("What is attacked")


def audit(
    *,
    solver: str | None = _attacked("One solver.", metavar="NAME"),
    mechanism: str | None = _attacked("One mechanism, such as Clip.", metavar="NAME"),
    everything: bool = _attacked("Every mechanism and every solver: hours.", False, "--all"),
    mode: str | None = _attacked("tight or paper; else both.", metavar="NAME"),
    epsilon: float = o.privacy("What is claimed.", 1.0),
    delta: float = o.privacy("What is claimed; a small one needs more runs.", 1e-2),
    runs: int = o.model("Of each of two data sets.", 20_000),
    confidence: float = o.model("That no bound of the table is wrong.", 0.95),
    fast: bool = o.model("The strongest attack on each only.", False, "--fast"),
    seeded: bool = o.model("Repeatable noise, not the shipped one: faster.", False, "--seeded"),
    plot: Path | None = o.output("Picture to draw (SVG, PNG, PDF)."),
    json: o.Json = None,
    quiet: o.Quiet = False,
) -> None:
    """Attack mechanisms and solvers, and compare what attacks prove with what is claimed.

    Ends with exit code 1 if a lower bound on epsilon is above its claim, which shows a bug.

    Protected: nobody has to be, the users are generated.

    [bold]Example[/bold]

    userdp audit --mechanism Clip --epsilon 1 --delta 1e-2

    userdp audit --solver accelerated --epsilon 1 --fast

    userdp audit --all --json audit.json --plot audit.svg
    """
    one = sum((solver is not None, mechanism is not None, everything)) == 1
    expect(one, "one of --solver, --mechanism and --all: try --mechanism Clip.")
    show.check_picture(plot)
    show.check_files(plot, json)
    with _bar(quiet) as progress:
        report = run_audit(
            epsilon,
            delta,
            solver=solver,
            mechanism=mechanism,
            mode=mode,
            runs=runs,
            confidence=confidence,
            fast=fast,
            insecure_seed=0 if seeded else None,
            progress=progress,
        )
    if plot is not None:
        from userdp.report.pictures import plot_audit

        with whole_file(plot) as new:
            plot_audit(report, new)
    if not show.as_json(report.to_dict(), json) and not quiet:
        _show(report)
    if not report.holds:
        raise typer.Exit(WRONG)


def _show(report: AuditReport) -> None:
    rows = []
    for finding in report.findings:
        shaped = "-" if finding.shaped is None else f"{finding.shaped:.3f}"
        numbers = (f"{finding.claim:.3f}", f"{finding.bound:.3f}", shaped, f"{finding.runs:,}")
        rows.append((finding.what, finding.mode, finding.attack, *numbers, "holds" if finding.holds else "EXCEEDED"))
    show.grid(("what", "mode", "attack", "claim", "bound", "shaped", "runs", "verdict"), rows)
    show.paragraph(
        f"Bounds are lower bounds on epsilon; none is wrong with a confidence of {report.confidence:g}. "
        "Shaped ones assume the shape of the claimed curve (docs/audit.md)."
    )
    if not report.secure:
        show.note("Noise was seeded: not that which is shipped.", "bold red")
    if not report.holds:
        show.note("A bound is above its claim: there is a bug.", "bold red")


@contextmanager
def _bar(quiet: bool) -> Iterator[Progress]:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bar:
        task = bar.add_task("attacks", total=None)

        def tell(name: str, done: int, total: int) -> None:
            bar.update(task, description=name, completed=done, total=total)

        yield tell
