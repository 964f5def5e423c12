"""The command line: `userdp fit`, `resume`, `predict`, `evaluate`, `plan`, `ledger`, `report` and others."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import userdp

# Where a command is, and the first line of its help: it is loaded when it is asked for, so that others need not wait.
_COMMANDS = {
    "fit": ("fit:fit", "Train a private model from a table."),
    "resume": ("fit:resume", "Resume a fit that was stopped or killed."),
    "predict": ("predict:predict", "Predict for the rows of a table."),
    "evaluate": ("evaluate:evaluate", "Score a model on rows it has not seen: privately, with intervals, or not."),
    "columns": ("columns:columns", "Write a first description of a table's columns, from names and types only."),
    "plan": ("plan:plan", "Compare the solvers before any data is touched."),
    "ledger": ("ledgers:app", "Make a data set's ledger, enter releases of other tools, or show what was spent."),
    "report": (
        "predict:report",
        "Write a model's report: one HTML page with its guarantee, its parts and its weights; or its facts as JSON.",
    ),
    "audit": ("audit:audit", "Attack mechanisms and solvers, and compare what attacks prove with what is claimed."),
    "demo": ("demonstration:demo", "Train private models on public and generated data, beside non-private ones."),
}


class _Lazy(TyperGroup):
    """The commands: of those that are not asked for, a name and one line of help."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in _COMMANDS:
            self.commands[args[0]] = _loaded(args[0])
        return super().resolve_command(ctx, args)


def _loaded(name: str) -> Any:
    from userdp.cli.errors import guarded
    from userdp.cli.options import Command

    module, attribute = _COMMANDS[name][0].split(":")
    found = getattr(import_module(f"userdp.cli.{module}"), attribute)
    if not isinstance(found, typer.Typer):
        function, found = found, typer.Typer(add_completion=False, rich_markup_mode="rich")
        found.command(name, cls=Command)(guarded(function))
    command = typer.main.get_command(found)
    command.name = name
    return command


app = typer.Typer(
    cls=_Lazy,
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
    """Convex models with user-level differential privacy: all rows of a user are protected together, not one row.

    [bold]Example[/bold]

    userdp plan --users 48092 --rows-per-user 30 --features 29 --epsilon 1 --delta 1e-6

    userdp fit visits.parquet --user-column user --target bought --classes 0,1 --features 'x_*' \\
      --epsilon 1 --delta 1e-6 --output model.json
    """


for _name, (_, _words) in _COMMANDS.items():
    app.command(_name, help=_words)(lambda: None)


def main() -> None:
    """The program `userdp`."""
    if not sys.warnoptions:
        warnings.simplefilter("ignore")  # Python's warnings may show values
    app(prog_name="userdp")
