"""The command line: `userdp fit`, `predict`, `evaluate`, `plan`, `ledger`, `report`, `bench`, `audit`, `demo`."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Annotated

import typer

import userdp
from userdp.cli import audit, bench, evaluate, fit, ledgers, plan, predict
from userdp.cli.errors import guarded

app = typer.Typer(
    name="userdp",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"userdp {userdp.__version__}")
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Convex models with user-level differential privacy: the whole person is protected, not one row.

    [bold]Example[/bold]

    userdp plan --users 48092 --rows-per-user 30 --features 29 --epsilon 1 --delta 1e-6

    userdp fit visits.parquet --user-column user --target bought --classes 0,1 --features 'x_*' \\
      --epsilon 1 --delta 1e-6 --output model.json
    """


def demo(
    folder: Annotated[Path, typer.Option(help="Folder to write models and reports to.")] = Path("userdp-demo"),
) -> None:
    """Train private models on public and generated data, beside non-private ones.

    Protected: nobody has to be, the data is public or generated; it is done as if it were not.

    [bold]Example[/bold]

    userdp demo
    """
    from userdp.cli import demonstration

    demonstration.main(folder)


app.command()(guarded(fit.fit))
app.command()(guarded(predict.predict))
app.command()(guarded(evaluate.evaluate))
app.command()(guarded(plan.plan))
app.add_typer(ledgers.app, name="ledger")
app.command()(guarded(predict.report))
app.add_typer(bench.app, name="bench")
app.command()(guarded(audit.audit))
app.command()(guarded(demo))


def main() -> None:
    """The program `userdp`."""
    if not sys.warnoptions:
        warnings.simplefilter("ignore")  # Python's warnings may tell of values
    app(prog_name="userdp")
