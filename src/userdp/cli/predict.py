"""`userdp predict` and `userdp report`: what is done with a model that is there."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
import typer

from userdp.cli import options as o
from userdp.cli import show
from userdp.cli.errors import InputError
from userdp.cli.tables import columns_of, schema_of
from userdp.data.schema import choose_features
from userdp.data.tables import check_place, kind_of, open_table, write_table
from userdp.models.files import load_model


def predict(
    model: o.ModelFile,
    data: o.Table,
    *,
    keep: Annotated[str | None, o.option(o.DATA, "Columns of the data to keep beside, such as user,id.")] = None,
    features: o.Columns = None,
    fill_missing: o.FillMissing = None,
    output: Annotated[
        Path, o.option(o.OUTPUT, "Table to write, Parquet, CSV or Arrow by its suffix.", "--output", "-o")
    ],
    proba: Annotated[bool, o.option(o.OUTPUT, "Add the probability of each class.", "--proba")] = False,
    json: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Predict for the rows of a table.

    Protected: the people that the model was trained on. Not protected: the rows here; a prediction tells of its row.

    [bold]Example[/bold]

    userdp predict model.json new.parquet --output predictions.parquet --keep id --proba
    """
    fitted, table = load_model(model), open_table(data)
    kind_of(output)
    check_place(output, data, model)
    if proba and not hasattr(fitted, "predict_proba"):
        raise InputError(f"Expected --proba with a logistic model, got {type(fitted).__name__}: leave it out.")
    kept = [] if keep is None else choose_features(table.column_names, keep, ())
    with show.working(f"reading {data}", quiet):
        rows = columns_of(table, schema_of(fitted, table, features), fill_missing)
        columns = {name: table.guess(name) for name in kept}
    made = {"prediction": pa.array(predicted(fitted.predict, rows))}
    if proba:
        chances = predicted(fitted.predict_proba, rows)
        made |= {f"probability_{label}": pa.array(chances[:, i]) for i, label in enumerate(fitted.classes_)}
    for name in made:
        if name in columns:
            raise InputError(f"Expected to add a column {name!r}, but --keep holds one: keep other columns.")
    write_table(pa.table(columns | made), output)
    if json:
        show.as_json({"output": str(output), "n_rows": len(rows), "columns": [*columns, *made]})
    elif not quiet:
        typer.echo(f"{len(rows):,} predictions are in {output}: {', '.join([*columns, *made])}.")


def predicted(predict: Callable[[np.ndarray], np.ndarray], rows: np.ndarray) -> np.ndarray:
    """Predictions of rows whose columns were chosen by name already, which scikit-learn cannot know."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "X does not have valid feature names")
        return predict(rows)


def report(
    model: o.ModelFile,
    output: Annotated[Path | None, o.argument("Report to write (HTML); not needed with --json.")] = None,
    json: Annotated[bool, o.option(o.OUTPUT, "Print the report's facts as one JSON object.", "--json")] = False,
    quiet: o.Quiet = False,
) -> None:
    """Write a model's report: one HTML page with its guarantee, its parts and its weights; or its facts as JSON.

    Protected: the people that the model was trained on. The report holds public and released numbers only.

    [bold]Example[/bold]

    userdp report model.json report.html

    userdp report model.json --json
    """
    from userdp.report import report_facts, write_report

    if output is None and not json:
        raise InputError("Expected a file to write the report to, report.html say; or --json, for its facts.")
    fitted = load_model(model)
    if output is not None:
        check_place(output, model)
        write_report(fitted, output)
    if json:
        show.as_json({"report": None if output is None else str(output)} | report_facts(fitted.to_dict()))
    elif not quiet:
        typer.echo(f"The report is in {output}.")
