"""From tables in files to what models take: users' rows for a fit, a matrix for predictions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from userdp.cli.errors import InputError
from userdp.cli.labels import classes_of
from userdp.data.schema import Schema, choose_features, numbers, require_column
from userdp.data.tables import TableFile
from userdp.data.users import UserData
from userdp.models import estimators
from userdp.models.base import LinearModel


def pair_of(text: str, option: str) -> tuple[float, float]:
    """Two finite numbers with a comma between, of an option."""
    try:
        first, second = (float(part) for part in text.split(","))
    except ValueError:
        first = second = math.nan
    if not math.isfinite(first) or not math.isfinite(second):
        raise InputError(f"Expected {option} to be two numbers with a comma between, got {text!r}.")
    return first, second


def users_of(
    model: LinearModel,
    table: TableFile,
    user: str,
    target: str,
    features: Sequence[str],
    classes: str | None,
    fill_missing: float | None,
) -> UserData:
    """The table's rows by user, with targets as the estimator wants them; gives the estimator its classes."""
    table.prefetch(Schema(user, tuple(features), target, () if model._classifies else None))
    if model._classifies:
        declared = classes_of(classes, table[target], target)
        if len(declared) > 2 and not isinstance(model, estimators.LogisticRegression):
            raise InputError(f"Expected 2 classes for a hinge loss, got {len(declared)}: use --loss logistic.")
        model.set_params(classes=declared)
    if model.unprotected_checks:
        targets_of(table, target, model.classes if model._classifies else None, check=True)
        for name in features:
            _check_cells(name, numbers(f"column {name!r}", table[name]), fill_missing is not None)
    return UserData.from_table(
        table,
        user=user,
        target=target,
        classes=model.classes if model._classifies else None,
        features=list(features),
        max_rows_per_user=model.max_rows_per_user,
        fit_intercept=model.fit_intercept,
        insecure_seed=model.insecure_seed,
        fill_missing=fill_missing,
    )


def targets_of(table: TableFile, target: str, classes: Sequence[Any] | None, check: bool) -> np.ndarray:
    """Targets as numbers, NaN where they make no sense, or an error if they are to be checked."""
    schema = Schema(None, (), target, None if classes is None else tuple(classes))
    targets = schema.targets(table[target]).astype(np.float64, copy=False)
    if check and not np.isfinite(targets).all():
        wanted = "a finite number" if classes is None else f"one of the labels {', '.join(map(str, classes))}"
        raise InputError(f"Expected {wanted} in every row of column {target!r}, got others too: drop those rows.")
    return targets


def matrix_of(
    model: LinearModel, table: TableFile, features: str | None, fill_missing: float | None, check: bool = True
) -> np.ndarray:
    """The columns that the model was trained on, by name."""
    known = getattr(model, "feature_names_in_", None)
    if known is None and features is None:
        raise InputError(
            "Expected --features, the columns in the order that the model was trained on: it holds no names of them."
        )
    names = (
        [str(name) for name in known] if known is not None else choose_features(table.column_names, features or "", ())
    )
    if len(names) != model.n_features_in_:
        raise InputError(f"Expected {model.n_features_in_} features, as the model has, got {len(names)}: name others.")
    return columns_of(table, names, fill_missing, check)


def columns_of(table: TableFile, names: Sequence[str], fill_missing: float | None, check: bool = True) -> np.ndarray:
    """These columns, of a table that may be looked at."""
    for name in names:
        require_column(table.column_names, name)
    table.prefetch(Schema(None, tuple(names)))
    n_rows = len(table[names[0]])
    if n_rows == 0:
        raise InputError(f"Expected at least one row in {table.path}, got an empty table.")
    matrix = np.empty((n_rows, len(names)))
    for position, name in enumerate(names):
        values = numbers(f"column {name!r}", table[name])
        if check:
            _check_cells(name, values, fill_missing is not None)
        matrix[:, position] = values if fill_missing is None else np.where(np.isnan(values), fill_missing, values)
    return matrix


def _check_cells(name: str, values: np.ndarray, filled: bool) -> None:
    if np.isinf(values).any() or (not filled and np.isnan(values).any()):
        raise InputError(
            f"Expected finite numbers in column {name!r}, got missing or infinite ones, or text: fill them, with "
            "--fill-missing 0, say."
        )
