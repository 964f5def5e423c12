"""Options that several commands fraction, with their help."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

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


Table = Annotated[Path, typer.Argument(show_default=False, help="Parquet, CSV or Arrow file, by its suffix.")]
ModelFile = Annotated[Path, typer.Argument(show_default=False, help="Model that `userdp fit` wrote.")]
UserColumn = Annotated[
    str, typer.Option(help="Column that says whose row it is.", show_default=False, rich_help_panel=DATA)
]
Target = Annotated[str, typer.Option(help="Column to predict.", show_default=False, rich_help_panel=DATA)]
Columns = Annotated[
    str | None,
    typer.Option(help="Columns, if the model holds no names.", show_default=False, rich_help_panel=DATA),
]
FillMissing = Annotated[
    float | None,
    typer.Option(help="Number to put into missing cells of features.", show_default=False, rich_help_panel=DATA),
]
Epsilon = Annotated[
    float, typer.Option(help="Privacy loss allowed; 1 is a common choice.", show_default=False, rich_help_panel=PRIVACY)
]
Delta = Annotated[
    float | None,
    typer.Option(
        help="Chance of more, well below 1 / number of users; else users^-1.5, at most 1e-6.",
        show_default=False,
        rich_help_panel=PRIVACY,
    ),
]
LifetimeDelta = Annotated[
    float,
    typer.Option(help="Chance of more, well below 1 / number of users.", show_default=False, rich_help_panel=PRIVACY),
]
LedgerFile = Annotated[
    Path | None,
    typer.Option(
        help="Ledger of the data set: what it holds is added up, and too much is refused.",
        show_default=False,
        rich_help_panel=PRIVACY,
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(help="Repeatable and NOT PRIVATE; for tests.", show_default=False, rich_help_panel=PRIVACY),
]
Loss = Annotated[
    LossName,
    typer.Option(
        metavar="NAME",
        help="For classes: logistic, hinge, squared_hinge. For numbers: squared, huber, quantile, absolute.",
        rich_help_panel=MODEL,
    ),
]
Solver = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="whitened-clip (which auto takes), phased-sgd, accelerated, or one of earlier work.",
        rich_help_panel=MODEL,
    ),
]
Mode = Annotated[
    str,
    typer.Option(metavar="NAME", help="tight, or paper for the constants as printed.", rich_help_panel=MODEL),
]
MaxGradients = Annotated[
    int | None,
    typer.Option(help="Limit on the work; a pass takes users x rows.", show_default=False, rich_help_panel=MODEL),
]
RowNorm = Annotated[
    float | None,
    typer.Option(
        help="For phased-sgd and accelerated: how long a row of features may be, about; else the root of their number.",
        show_default=False,
        rich_help_panel=MODEL,
    ),
]
Radius = Annotated[
    float | None,
    typer.Option(
        help="How long the vector of weights may be; else any (others than whitened-clip: 10 x half the target range).",
        show_default=False,
        rich_help_panel=MODEL,
    ),
]
L2 = Annotated[float, typer.Option(help="Adds l2/2 |weights|^2 to the mean loss.", rich_help_panel=MODEL)]
NoIntercept = Annotated[bool, typer.Option("--no-intercept", help="Leave the constant out.", rich_help_panel=MODEL)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.", rich_help_panel=OUTPUT)]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but warnings.", rich_help_panel=OUTPUT)]
