"""Options that several commands have, with their help."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand

_T = TypeVar("_T")
DATA, PRIVACY, MODEL, OUTPUT = "Data", "Privacy", "Model and work", "Output"

EngineName = StrEnum("EngineName", ["local", "ray"])
# The first three are for classes, the others for numbers.
LossName = StrEnum(
    "LossName", ["logistic", "hinge", "squared_hinge", "squared", "huber", "quantile", "absolute", "poisson"]
)


def option(panel: str, help: str, *names: str, default: bool = False, **more: Any) -> Any:
    """An option of a panel, to annotate a parameter with; whether help shows its default."""
    return typer.Option(*names, help=help, rich_help_panel=panel, show_default=default, **more)


def own(panel: str) -> Callable[..., Any]:
    """Options of a panel, as a parameter's default: help, default (which help shows if there is one), names."""

    def option(help: str, default: Any = None, *names: str, **more: Any) -> Any:
        shown = default not in (None, False, "", ...)
        return typer.Option(default, *names, help=help, rich_help_panel=panel, show_default=shown, **more)

    return option


data, privacy, model, output = map(own, (DATA, PRIVACY, MODEL, OUTPUT))


def argument(help: str) -> Any:
    """An argument."""
    return typer.Argument(show_default=False, help=help)


def taking(record: type[_T]) -> Callable[[Callable[[typer.Context, _T], None]], Callable[..., None]]:
    """A command whose options are the fields of a record, each declared once: it is called with a filled-in one."""

    def command(function: Callable[[typer.Context, _T], None]) -> Callable[..., None]:
        def run(context: typer.Context, **given: Any) -> None:
            function(context, record(**given))

        types = get_type_hints(record, include_extras=True)
        declared = [
            parameter.replace(annotation=types[parameter.name])
            for parameter in inspect.signature(record).parameters.values()
        ]
        first = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
        run.__signature__ = inspect.Signature([first, *declared])  # type: ignore[attr-defined]
        run.__annotations__ = {"context": typer.Context} | types
        run.__name__, run.__doc__ = function.__name__, function.__doc__
        return run

    return command


class Command(TyperCommand):
    """A command whose `--json` may stand alone, as the last word or before another option: it is then `--json -`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words: list[str] = []
        for word, following in pairwise([*args, "--"]):
            alone = word == "--json" and following.startswith("-") and following != "-"
            words += [word, "-"] if alone else [word]
        return super().parse_args(ctx, words)


Table = Annotated[Path, argument("Parquet, CSV or Arrow file, by its suffix.")]
ModelFile = Annotated[Path, argument("Model that `userdp fit` wrote.")]
Target = Annotated[str, option(DATA, "Column to predict.")]
Columns = Annotated[str | None, option(DATA, "Columns, if the model holds no names.")]
FillMissing = Annotated[float | None, option(DATA, "Number to put into missing cells of features.")]
Epsilon = Annotated[float, option(PRIVACY, "Privacy loss allowed; 1 is a common choice.")]
Seed = Annotated[int | None, option(PRIVACY, "Repeatable and NOT PRIVATE; for tests.")]
MaxGradients = Annotated[int | None, option(MODEL, "Limit on the work; a pass takes users x rows.")]
L2 = Annotated[float, option(MODEL, "Adds l2/2 |weights|^2 to the mean loss.", default=True)]
NoIntercept = Annotated[bool, option(MODEL, "Leave the constant out.", "--no-intercept", default=True)]
Quiet = Annotated[bool, option(OUTPUT, "Print nothing but warnings.", "--quiet", "-q", default=True)]
Json = Annotated[
    Path | None,
    option(
        OUTPUT, "Print one JSON object and nothing else; or write it to FILE, which follows.", "--json", metavar="FILE"
    ),
]
EXPOSURE = data("Column that says how long, or how much, was counted in a row, of models with --loss poisson.")
WEIGHT = data("Column that says how many times a row counts.")
MAX_COUNT = data("Public largest count of a row, needed with --loss poisson; those beyond are cut off.")
DELTA = privacy("Failure probability, well below 1 / number of users; else users^-1.5, at most 1e-6.")
NEIGHBOURS = privacy(
    "replace-one, or zero-out: whether a user's data was used at all, which most other libraries print.", "replace-one"
)
UNIT = privacy("What one user is called in what is shown, such as household; else user.")
LEDGER = privacy("Ledger file of the data set: what would exceed its budget is refused.")
_OF = "logistic, hinge, squared_hinge (classes); squared, huber, quantile, absolute (numbers); poisson (counts)."
LOSS = model(_OF, LossName.logistic, metavar="NAME")
ROW_NORM = model("For phased-sgd and accelerated: about how long a row is; else the root of the number of features.")
PURPOSE = output("What it is for, in words that may be shown to anyone: ledger, model and report name it.", "")
