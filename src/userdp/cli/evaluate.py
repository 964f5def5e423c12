"""`userdp evaluate`: how good a model is on other users' rows, privately or not."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import typer
from sklearn import metrics as sk

from userdp.cli import options as o
from userdp.cli import show
from userdp.cli.errors import InputError, expect, spending
from userdp.cli.predict import predicted
from userdp.cli.tables import classes_of, exposure_of, features_of, pair_of, schema_of, targets_of, weights_of
from userdp.data.groups import Groups
from userdp.data.schema import ids, positions, require_column
from userdp.data.source import Source
from userdp.data.tables import TableFile, open_table
from userdp.evaluation.row_losses import compared, finite
from userdp.models.estimators import PoissonRegressor
from userdp.models.evaluating import evaluate_users, evaluation_layout, row_places
from userdp.models.files import load_estimator
from userdp.models.linear import LinearModel
from userdp.models.sklearn_compat import unit_word
from userdp.privacy.accounting import budget_for
from userdp.privacy.ledger import Ledger

_OF_RELEASES = (
    *("delta", "ledger", "unit", "loss_limit", "metrics", "by", "max_rows_per_user", "target_range", "insecure_seed"),
)
_Scores = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """What `userdp evaluate` is given."""

    model: o.ModelFile
    data: o.Table
    target: o.Target
    user_column: str | None = o.data("Column that says whose row it is; needed with --epsilon.")
    features: o.Columns = None
    fill_missing: o.FillMissing = None
    exposure: str | None = o.EXPOSURE
    weight: str | None = o.WEIGHT
    epsilon: float | None = o.privacy("Release private scores, at this epsilon.")
    delta: float | None = o.privacy("Goes with --epsilon; else users^-1.5, at most 1e-6.")
    neighbours: str = o.NEIGHBOURS
    unit: str | None = o.UNIT
    ledger: Path | None = o.LEDGER
    loss_limit: float | None = o.privacy("Log loss or error that a row counts at most; else 4, or the target range.")
    metrics: str | None = o.privacy("Which scores: log_loss,brier,accuracy,auc,calibration or mae,mse,rmse,r2.")
    by: str | None = o.privacy("Column and its values to release scores of, too: city=Paris,Lyon.")
    max_rows_per_user: int | None = o.privacy("Count each row once, of so many a user; else each user once.")
    target_range: str | None = o.privacy("Public lowest and highest target, low,high; else the model's.")
    confidence: float = o.privacy("Of intervals.", 0.95)
    insecure_seed: o.Seed = None
    purpose: str = o.PURPOSE
    json: o.Json = None


class _Rows(NamedTuple):
    """What is read of the table."""

    cells: Any
    targets: np.ndarray
    exposed: np.ndarray | None
    user_ids: Any


@o.taking(Evaluate)
def evaluate(_: typer.Context, given: Evaluate) -> None:
    """Score a model on rows it has not seen: privately, with intervals, or not.

    Protected: nobody in this table; with --epsilon and --user-column each user of it, with all their rows.

    [bold]Example[/bold]

    userdp evaluate model.json test.parquet --target bought

    userdp evaluate model.json test.parquet --target bought --user-column user --epsilon 1 --metrics log_loss,auc
    """
    fitted, table, private = load_estimator(given.model), open_table(given.data), given.epsilon is not None
    for name in filter(None, (given.target, given.user_column)):
        require_column(table.column_names, name)
    extra = [f"--{name.replace('_', '-')}" for name in _OF_RELEASES if getattr(given, name) is not None]
    expect(private or not extra, f"{', '.join(extra)} with --epsilon only, for private scores: add that.")
    expect(not private or given.user_column is not None, "--user-column with --epsilon: it says who is protected.")
    uneven = private and given.weight is not None
    expect(not uneven, "no --weight with --epsilon: private scores count a user's rows alike.")
    if given.epsilon is not None:
        budget_for(
            given.epsilon, given.delta, 1, given.neighbours
        )  # refuses what makes no sense, before anything is read
    if given.exposure is None and getattr(fitted, "max_exposure", None) is not None:
        named = fitted.facts_["source"].get("exposure")
        raise InputError(
            "Expected --exposure, the column that says how much was counted in a row, as the model was fitted with"
            f"{f' ({named!r} there)' if named else ''}."
        )
    show.check_files(given.json, read=[given.data, given.model, given.ledger])
    ledger = None if given.ledger is None else Ledger.open(given.ledger)
    with show.working(f"reading {given.data}", quiet=False):
        schema = schema_of(fitted, table, given.features, given.target, given.user_column)
        targets = targets_of(table, schema, check=not private)
        matrix = features_of(fitted, table, schema, given.fill_missing, check=not private)
        exposed = exposure_of(fitted, table, given.exposure, check=not private)
        owners = None if given.user_column is None else ids(table[given.user_column])
    rows = _Rows(matrix, targets, exposed, owners)
    if private:
        _private(fitted, table, rows, ledger, given)
    else:
        _open(fitted, table, rows, given)
    if fitted.facts_["source"].get("data") == given.data.name:
        show.note(
            f"The model was fitted on a file named {given.data.name}: if it is this one, it has seen these users, and "
            "scores are too good. `userdp fit --evaluate` keeps some users for them."
        )


def _open(model: LinearModel, table: TableFile, read: _Rows, given: Evaluate) -> None:
    """Scores of the model and of a constant, for rows and for users, without privacy."""
    weights = {"rows": weights_of(table, given.weight, len(read.targets))}
    if read.user_ids is not None:
        weights["users"] = _weights(read.user_ids, weights["rows"])
    score_rows = _class_scores if model._classifies else _number_scores
    scores = {who: score_rows(model, read, each) for who, each in weights.items()}
    show.note("NOT private: these scores depend on single users of this table. Pass --epsilon to publish.")
    if show.as_json({"private": False, "scores": scores}, given.json):
        return
    counted = {"rows": f"row counted {'once' if given.weight is None else 'by weight'}", "users": "user counted once"}
    names = list(scores["rows"]["model"])
    rows = [
        [f"{what}, every {counted[who]}", *(f"{score[name]:.4f}" for name in names)]
        for who, both in scores.items()
        for what, score in both.items()
    ]
    show.grid(["", *names], rows)


def _private(model: LinearModel, table: TableFile, read: _Rows, ledger: Ledger | None, given: Evaluate) -> None:
    """Released scores and their guarantee."""
    assert given.epsilon is not None
    column, levels = (None, None) if given.by is None else _levels(given.by, table)
    layout = evaluation_layout(
        model,
        None if given.metrics is None else [name.strip() for name in given.metrics.split(",")],
        levels=levels,
        has_by=column is not None,
        weigh="people" if given.max_rows_per_user is None else "rows",
        max_rows_per_user=given.max_rows_per_user,
        loss_limit=given.loss_limit,
        target_range=None if given.target_range is None else pair_of(given.target_range, "--target-range"),
        confidence=given.confidence,
    )
    # Each row by itself, so that nothing of others shows. Described columns are finite already.
    n_rows = len(read.targets)
    cells, sound = finite(read.cells) if model.columns is None else (read.cells, np.ones(n_rows, dtype=bool))
    own = None if column is None else positions(f"column {column!r}", table[column], list(layout.levels))
    places = row_places(n_rows, read.user_ids, given.max_rows_per_user, given.insecure_seed)

    def scored() -> np.ndarray:
        return layout.rows(compared(model, cells, read.targets, sound, layout.scale, read.exposed), own)

    budget = budget_for(given.epsilon, given.delta, places.n_users, given.neighbours)
    charged = Ledger(budget) if ledger is None else ledger
    source = Source(given.data.name, given.target, given.user_column, exposure=given.exposure)
    with spending(charged, budget):
        noted: dict[str, Any] = {"purpose": given.purpose, "source": source, "insecure_seed": given.insecure_seed}
        noted["unit"] = unit_word("user", given.unit)
        found = evaluate_users(places, scored, layout, budget, given.confidence, charged, **noted)
    assert found.privacy is not None  # as it is released
    if not show.as_json(found.to_dict(), given.json):
        show.scores(found, "user" if found.weigh == "people" else "row")
        limit = "" if found.limit is None else f"a row's loss or error counts {found.limit:g} at most; "
        worst = f"{limit}rows that cannot be scored count as the worst"
        show.facts([*show.guarantee(found.privacy, more=""), ("limit", worst)])
    if found.privacy.warning:
        show.note(found.privacy.warning, "bold red")


def _levels(by: str, table: Any) -> tuple[str, list[Any]]:
    """The column of groups, and its declared levels as values of its type."""
    name, _, text = (part.strip() for part in by.partition("="))
    require_column(table.column_names, name)
    try:
        return name, classes_of(text or None, table.without_cells(name), name)
    except InputError as error:
        raise InputError(str(error).replace("--classes", f"--by {name}=")) from None


def _weights(owners: Any, given: np.ndarray) -> np.ndarray:
    """Each row's part of what its user's rows count together; 0 of users whose rows do not count."""
    groups = Groups.make(owners, len(owners))
    counts, user = np.diff(groups.offsets), np.empty(len(owners), dtype=np.int64)
    user[slice(None) if groups.order is None else groups.order] = np.repeat(np.arange(len(counts)), counts)
    totals = np.bincount(user, given)
    return given / np.where(totals > 0, totals, 1.0)[user]


def _class_scores(model: LinearModel, read: _Rows, weights: np.ndarray) -> dict[str, _Scores]:
    """Log loss if there are probabilities, AUC of two classes, accuracy; of the model and of the classes' fractions."""
    labels, classes = read.targets.astype(np.int64), np.arange(len(model.classes_))
    fractions = np.bincount(labels, weights, len(classes)) / weights.sum()
    chances = predicted(model.predict_proba, read.cells) if hasattr(model, "predict_proba") else None

    def scores(margins: np.ndarray, chances: np.ndarray | None) -> _Scores:
        found = {}
        if chances is not None:
            found["log loss"] = float(sk.log_loss(labels, chances, sample_weight=weights, labels=classes))
        if len(classes) == 2 and 0 < fractions[0] < 1:
            found["AUC"] = float(sk.roc_auc_score(labels, margins, sample_weight=weights))
        chosen = margins > 0 if margins.ndim == 1 else margins.argmax(axis=1)
        return found | {"accuracy": float(np.average(labels == chosen, weights=weights))}

    constant = np.broadcast_to(fractions, (len(labels), len(classes)))
    margins = constant[:, 1] - constant[:, 0] if len(classes) == 2 else constant
    return {
        "model": scores(predicted(model.decision_function, read.cells), chances),
        "constant": scores(margins, None if chances is None else constant),
    }


def _number_scores(model: LinearModel, read: _Rows, weights: np.ndarray) -> dict[str, _Scores]:
    """The error, its mean size and the fraction of it explained; of the model, and of one number, or rate, for all."""
    counts, targets = isinstance(model, PoissonRegressor), read.targets
    if counts and (targets < 0).any():
        raise InputError("Expected counts >= 0 in the target's column, got others too: drop those rows.")
    amounts = np.ones(len(targets)) if read.exposed is None else read.exposed
    constant = amounts * (np.average(targets, weights=weights) / np.average(amounts, weights=weights))

    def error(predictions: np.ndarray) -> float:
        if counts:
            return float(sk.mean_poisson_deviance(targets, np.clip(predictions, 1e-300, 1e300), sample_weight=weights))
        return float(np.average((predictions - targets) ** 2, weights=weights))

    least = error(constant)

    def scores(predictions: np.ndarray) -> _Scores:
        found = error(predictions)
        shown = {"deviance": found} if counts else {"RMSE": math.sqrt(found)}
        shown["MAE"] = float(np.average(np.abs(predictions - targets), weights=weights))
        return shown | ({"D2" if counts else "R2": 1 - found / least} if least else {})

    return {"model": scores(predicted(model.predict, read.cells) * amounts), "constant": scores(constant)}
