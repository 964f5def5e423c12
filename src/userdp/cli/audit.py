"""`userdp audit`: attack what is claimed to be private, and see how much of the claim an attack can prove."""

from __future__ import annotations

import typer

from userdp.auditing.run import audit as run_audit
from userdp.cli import options as o
from userdp.cli import show
from userdp.cli.errors import WRONG, expect
from userdp.models.fitting import bar

_attacked = o.own("What is attacked")


def audit(
    *,
    solver: str | None = _attacked("One solver.", metavar="NAME"),
    mechanism: str | None = _attacked("One mechanism, such as Clip.", metavar="NAME"),
    everything: bool = _attacked("Every mechanism and every solver: hours.", False, "--all"),
    mode: str | None = _attacked("calibrated or paper; else both.", metavar="NAME"),
    epsilon: float = o.privacy("What is claimed.", 1.0),
    delta: float = o.privacy("What is claimed; a small one needs more runs.", 1e-2),
    runs: int = o.model("Of each of two data sets.", 20_000),
    confidence: float = o.model("That no bound of the table is wrong.", 0.95),
    fast: bool = o.model("The strongest attack on each only.", False, "--fast"),
    seeded: bool = o.model("Repeatable noise, not the shipped one: faster.", False, "--seeded"),
    json: o.Json = None,
    quiet: o.Quiet = False,
) -> None:
    """Attack mechanisms and solvers, and compare what attacks prove with what is claimed.

    Ends with exit code 1 if a lower bound on epsilon is above its claim, which shows a bug.

    Protected: nobody has to be, the users are generated.

    [bold]Example[/bold]

    userdp audit --mechanism Clip --epsilon 1 --delta 1e-2

    userdp audit --solver accelerated --epsilon 1 --fast

    userdp audit --all --json audit.json
    """
    one = sum((solver is not None, mechanism is not None, everything)) == 1
    expect(one, "one of --solver, --mechanism and --all: try --mechanism Clip.")
    show.check_files(json)
    with bar(False if quiet else None) as progress:
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
    if not show.as_json(report.to_dict(), json) and not quiet:
        typer.echo(f"{report}\n")
        show.paragraph(
            f"Bounds are lower bounds on epsilon; none is wrong with a confidence of {report.confidence:g}. "
            "Shaped ones assume the shape of the claimed curve (docs/audit.md)."
        )
        if not report.secure:
            show.note("Noise was seeded: not that which is shipped.", "bold red")
        if not report.holds:
            show.note("A bound is above its claim: there is a bug.", "bold red")
    if not report.holds:
        raise typer.Exit(WRONG)
