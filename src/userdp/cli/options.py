"""Options that several commands have, with their help."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

DATA, PRIVACY, MODEL, OUTPUT = "Data", "Privacy", "Model and work", "Output"


class LossName(StrEnum):
    """Losses by name; the first three are for classes, the others for numbers."""

    logistic = "logistic"
    hinge = "hinge"
    squared_hinge = "squared_hinge"
    squared = "squared"
    huber = "huber"
    quantile = "quantile"
    absolute = "absolute"


def option(panel: str, help: str, *names: str, default: bool = False, **more: Any) -> Any:
    """An option of a panel; whether help shows its default."""
    return typer.Option(*names, help=help, rich_help_panel=panel, show_default=default, **more)


def argument(help: str) -> Any:
    """An argument."""
    return typer.Argument(show_default=False, help=help)


Table = Annotated[Path, argument("Parquet, CSV or Arrow file, by its suffix.")]
ModelFile = Annotated[Path, argument("Model that `userdp fit` wrote.")]
UserColumn = Annotated[str, option(DATA, "Column that says whose row it is.")]
Target = Annotated[str, option(DATA, "Column to predict.")]
Columns = Annotated[str | None, option(DATA, "Columns, if the model holds no names.")]
FillMissing = Annotated[float | None, option(DATA, "Number to put into missing cells of features.")]
Epsilon = Annotated[float, option(PRIVACY, "Privacy loss allowed; 1 is a common choice.")]
Delta = Annotated[
    float | None, option(PRIVACY, "Chance of more, well below 1 / number of users; else users^-1.5, at most 1e-6.")
]
LifetimeDelta = Annotated[float, option(PRIVACY, "Chance of more, well below 1 / number of users.")]
LedgerFile = Annotated[
    Path | None, option(PRIVACY, "Ledger of the data set: what it holds is added up, and too much is refused.")
]
Seed = Annotated[int | None, option(PRIVACY, "Repeatable and NOT PRIVATE; for tests.")]
Loss = Annotated[
    LossName,
    option(
        MODEL,
        "For classes: logistic, hinge, squared_hinge. For numbers: squared, huber, quantile, absolute.",
        default=True,
        metavar="NAME",
    ),
]
Solver = Annotated[
    str,
    option(
        MODEL,
        "whitened-clip (which auto takes), phased-sgd, accelerated, or one of earlier work.",
        default=True,
        metavar="NAME",
    ),
]
Mode = Annotated[str, option(MODEL, "tight, or paper for the constants as printed.", default=True, metavar="NAME")]
MaxGradients = Annotated[int | None, option(MODEL, "Limit on the work; a pass takes users x rows.")]
RowNorm = Annotated[
    float | None,
    option(
        MODEL,
        "For phased-sgd and accelerated: how long a row of features may be, about; else the root of their number.",
    ),
]
Radius = Annotated[
    float | None,
    option(
        MODEL,
        "How long the vector of weights may be; else any (others than whitened-clip: 10 x half the target range).",
    ),
]
L2 = Annotated[float, option(MODEL, "Adds l2/2 |weights|^2 to the mean loss.", default=True)]
NoIntercept = Annotated[bool, option(MODEL, "Leave the constant out.", "--no-intercept", default=True)]
Json = Annotated[bool, option(OUTPUT, "Print one JSON object and nothing else.", "--json", default=True)]
Quiet = Annotated[bool, option(OUTPUT, "Print nothing but warnings.", "--quiet", "-q", default=True)]
