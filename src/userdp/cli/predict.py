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
from userdp.cli.errors import expect
from userdp.cli.tables import exposure_of, features_of, schema_of
from userdp.data.schema import choose_features
from userdp.data.tables import kind_of, open_table, write_table
from userdp.models.files import load_estimator


def predict(
    model: o.ModelFile,
    data: o.Table,
    *,
    keep: str | None = o.data("Columns of the data to keep beside, such as user,id."),
    features: o.Columns = None,
    fill_missing: o.FillMissing = None,
    exposure: str | None = o.EXPOSURE,
    output: Path = o.output("Table to write, Parquet, CSV or Arrow by its suffix.", ..., "--output", "-o"),
    proba: bool = o.output("Add the probability of each class.", False, "--proba"),
    json: o.Json = None,
    quiet: o.Quiet = False,
) -> None:
    """Predict for the rows of a table.

    Protected: the users that the model was trained on. Not protected: the rows here; a prediction reveals its row.

    [bold]Example[/bold]

    userdp predict model.json new.parquet --output predictions.parquet --keep id --proba
    """
    fitted, table = load_estimator(model), open_table(data)
    kind_of(output)
    show.check_files(output, json, read=[data, model])
    able = not proba or hasattr(fitted, "predict_proba")
    expect(able, f"--proba with a logistic model, got {type(fitted).__name__}: leave it out.")
    kept = [] if keep is None else choose_features(table.column_names, keep, ())
    with show.working(f"reading {data}", quiet):
        rows = features_of(fitted, table, schema_of(fitted, table, features), fill_missing)
        columns = {name: table.guess(name) for name in kept}
        exposed = exposure_of(fitted, table, exposure)
    predictions = predicted(fitted.predict, rows)
    made = {"prediction": pa.array(predictions if exposed is None else predictions * exposed)}
    if proba:
        chances = predicted(fitted.predict_proba, rows)
        made |= {f"probability_{label}": pa.array(chances[:, i]) for i, label in enumerate(fitted.classes_)}
    for name in made:
        expect(name not in columns, f"to add a column {name!r}, but --keep holds one: keep other columns.")
    write_table(pa.table(columns | made), output)
    told = {"output": str(output), "n_rows": rows.shape[0], "columns": [*columns, *made]}
    if not show.as_json(told, json) and not quiet:
        typer.echo(f"{rows.shape[0]:,} predictions are in {output}: {', '.join([*columns, *made])}.")


def predicted(predict: Callable[[np.ndarray], np.ndarray], rows: np.ndarray) -> np.ndarray:
    """Predictions of rows whose columns were chosen by name already, which scikit-learn cannot know."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "X does not have valid feature names")
        return predict(rows)


def report(
    model: o.ModelFile,
    output: Annotated[Path | None, o.argument("Report to write (HTML); not needed with --json.")] = None,
    title: str | None = o.output("Heading of the page; else the kind of model."),
    json: o.Json = None,
    quiet: o.Quiet = False,
) -> None:
    """Write a model's report: one HTML page with its guarantee, its parts and its weights; or its facts as JSON.

    Protected: the users that the model was trained on. The report holds public and released numbers only.

    [bold]Example[/bold]

    userdp report model.json report.html --title "Who buys again?"

    userdp report model.json --json
    """
    from userdp.report import report_facts, write_report

    some = output is not None or json is not None
    expect(some, "a file to write the report to, report.html say; or --json, for its facts.")
    fitted = load_estimator(model)
    show.check_files(output, json, read=[model])
    if output is not None:
        write_report(fitted, output, title)
    facts = {"report": output and str(output)} | report_facts(fitted.to_dict())
    if not show.as_json(facts, json) and not quiet and output is not None:
        typer.echo(f"The report is in {output}.")
