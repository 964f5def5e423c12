"""What options declare of a table, labels and ranges, which are public; and a matrix of its rows, for predictions.

What a column is comes from its type alone.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from userdp.cli.errors import InputError, expect
from userdp.data.schema import (
    ANY,
    NUMBER,
    TEXT,
    Schema,
    choose_features,
    declared,
    decoded,
    is_boolean,
    numbers,
    require_column,
)
from userdp.data.tables import TableFile
from userdp.models.estimators import PoissonRegressor
from userdp.models.linear import LinearModel


def pair_of(text: str, option: str) -> tuple[float, float]:
    """Two finite numbers with a comma between, of an option."""
    try:
        first, second = (float(part) for part in text.split(","))
    except ValueError:
        first = second = math.nan
    fine = math.isfinite(first) and math.isfinite(second)
    expect(fine, f"{option} to be two numbers with a comma between, got {text!r}.")
    return first, second


def declare_classes(model: LinearModel, table: TableFile, target: str, classes: str | None) -> list[Any] | None:
    """Give a classifier its classes, as values of the target's type."""
    if not model._classifies:
        return None
    labels = classes_of(classes, table.without_cells(target), target)
    model.set_params(classes=labels)
    return labels


def class_weights(text: str, labels: list[Any] | None) -> dict[Any, float]:
    """The public weights of classes that an option names, such as "no=1,yes=5", which the estimator checks."""
    by_text = {str(label).lower() if isinstance(label, bool) else str(label): label for label in labels or ()}
    found = {}
    for part in text.split(","):
        name, _, weight = (word.strip() for word in part.rpartition("="))
        value = _number(weight)
        expect(value is not None, f"--class-weight to be labels and numbers, such as no=1,yes=5, got {part.strip()!r}.")
        found[by_text.get(name, name)] = float(value or 0)
    return found


def exposure_of(model: LinearModel, table: TableFile, name: str | None, check: bool = True) -> np.ndarray | None:
    """How much was counted in each row: numbers > 0, or an error if that is checked."""
    if name is None:
        return None
    counts = isinstance(model, PoissonRegressor)
    expect(counts, f"no --exposure: it is for models of counts, this is a {type(model).__name__}.")
    found = _numbers_in(table, name)
    fine = not check or (np.isfinite(found) & (found > 0)).all()
    expect(fine, f"numbers > 0 in column {name!r}, the exposure, got others too: drop those rows.")
    return found


def weights_of(table: TableFile, name: str | None, n_rows: int) -> np.ndarray:
    """How many times each row counts: numbers >= 0, not all 0; once without a column."""
    found = np.ones(n_rows) if name is None else _numbers_in(table, name)
    fine = (np.isfinite(found) & (found >= 0)).all() and found.any()
    expect(fine, f"numbers >= 0 in column {name!r}, the weight, got others too, or only 0.")
    return found


def _numbers_in(table: TableFile, name: str) -> np.ndarray:
    require_column(table.column_names, name)
    return numbers(f"column {name!r}", table[name])


def schema_of(
    model: LinearModel, table: TableFile, features: str | None, target: str | None = None, user: str | None = None
) -> Schema:
    """The columns that the model was trained on, by name, its target, and whose rows they are."""
    classes = tuple(model.classes_.tolist()) if model._classifies else None
    if model.columns is not None:
        expect(features is None, "no --features: the model holds a description of its columns.")
        names = list(model.columns_)
    else:
        known, width = getattr(model, "feature_names_in_", None), model.n_features_in_
        expect(
            known is not None or features is not None,
            "--features, the columns in the order that the model was trained on: it holds no names of them.",
        )
        names = [*map(str, known)] if known is not None else choose_features(table.column_names, features or "", ())
        expect(len(names) == width, f"{width} features, as the model has, got {len(names)}: name others.")
    for name in names:
        require_column(table.column_names, name)
    return Schema(user, tuple(names), target, classes)


def targets_of(table: TableFile, schema: Schema, check: bool) -> np.ndarray:
    """Targets as numbers, NaN where they make no sense, or an error if they are to be checked."""
    targets = schema.targets(table[schema.target]).astype(np.float64, copy=False)
    wanted = "a finite number" if schema.classes is None else f"one of the labels {', '.join(map(str, schema.classes))}"
    fine = not check or np.isfinite(targets).all()
    expect(fine, f"{wanted} in every row of column {schema.target!r}, got others too: drop those rows.")
    return targets


def features_of(
    model: LinearModel, table: TableFile, schema: Schema, fill_missing: float | None, check: bool = True
) -> Any:
    """The model's features of a table: a matrix, of described columns as the description says."""
    if model.columns is None:
        return columns_of(table, schema, fill_missing, check)
    expect(fill_missing is None, "no --fill-missing: the model holds a description of its columns.")
    rows = model.columns_.encode(table)
    expect(rows.shape[0] > 0, f"at least one row in {table.path}, got an empty table.")
    return rows


def columns_of(table: TableFile, schema: Schema, fill_missing: float | None, check: bool = True) -> np.ndarray:
    """The features, of a table that may be looked at."""
    for name in schema.features:
        require_column(table.column_names, name)
    n_rows = len(table[schema.features[0]])
    expect(n_rows > 0, f"at least one row in {table.path}, got an empty table.")
    matrix = np.empty((n_rows, len(schema.features)))
    for position, name in enumerate(schema.features):
        values = numbers(f"column {name!r}", table[name])
        matrix[:, position] = values if fill_missing is None else np.where(np.isnan(values), fill_missing, values)
        expect(
            not check or np.isfinite(matrix[:, position]).all(),
            f"finite numbers in column {name!r}, got missing or infinite ones, or text: fill them, with --fill-missing "
            "0, say.",
        )
    return matrix


def classes_of(text: str | None, column: Any, target: str) -> list[Any]:
    """The classes as values of the target column's type, which is public; sorted as the estimators do.

    CSV declares no types: its labels are numbers if all classes are, or true and false, or else text.
    """
    column = decoded(column)
    kind = "false,true" if is_boolean(column) else declared(column)
    if text is None:
        if is_boolean(column):
            return [False, True]
        remedy = "; a CSV file declares no types, so for true and false pass --classes false,true" * (kind == ANY)
        raise InputError(
            f"Expected --classes, all labels that column {target!r} can have, such as --classes no,yes: they are "
            f"not read off the data, because that would reveal users who have rare ones{remedy}. Nothing was spent."
        )
    truth = {"false": False, "true": True, "0": False, "1": True}
    tokens = [token.strip() for token in text.split(",")]
    read: dict[str, list[Any]] = {  # None where a token is none of these
        "false,true": [truth.get(token.lower()) for token in tokens],
        NUMBER: [_number(token) for token in tokens],
        TEXT: [token or None for token in tokens],
    }
    expect(
        kind == ANY or kind in read,
        f"column {target!r} to hold text, numbers or true and false, got {kind}: convert it.",
    )
    readings = [read[NUMBER], read["false,true"], read[TEXT]] if kind == ANY else [read[kind]]
    classes = next((labels for labels in readings if None not in labels), [])
    expected = {NUMBER: "numbers", ANY: "text"}.get(kind, kind)
    expect(classes, f"--classes to be {expected}, as column {target!r} holds, got {text!r}.")
    fine = 2 <= len(set(classes)) == len(classes)
    expect(fine, f"--classes to be at least 2 different labels, got {text!r}.")
    return sorted(classes)


def _number(token: str) -> int | float | None:
    try:
        return int(token)
    except ValueError:
        pass
    try:
        return value if math.isfinite(value := float(token)) else None
    except ValueError:
        return None
