"""`userdp evaluate`: how good a model is on other people's rows, privately or not."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from sklearn import metrics as sk

from userdp.cli import options as o
from userdp.cli import show
from userdp.cli.errors import InputError, expect, spending
from userdp.cli.predict import predicted
from userdp.cli.tables import classes_of, exposure_of, features_of, pair_of, schema_of, targets_of, weights_of
from userdp.data.groups import Groups
from userdp.data.schema import ids, positions, require_column
from userdp.data.source import Source
from userdp.data.tables import open_table
from userdp.evaluation.row_losses import compared, finite
from userdp.models.estimators import PoissonRegressor
from userdp.models.evaluating import evaluate_users, evaluation_layout, row_places
from userdp.models.files import load_estimator
from userdp.models.linear import LinearModel
from userdp.privacy.accounting import budget_for
from userdp.privacy.ledger import Ledger

_OF_RELEASES = (
    *("delta", "ledger", "loss_limit", "metrics", "by", "max_rows_per_user", "target_range", "insecure_seed"),
)
_Scores = dict[str, float]


def evaluate(
    model: o.ModelFile,
    data: o.Table,
    *,
    target: o.Target,
    user_column: str | None = o.data(
        "Column that says whose row it is: needed with --epsilon; else to count every user once too."
    ),
    features: o.Columns = None,
    fill_missing: o.FillMissing = None,
    exposure: str | None = o.EXPOSURE,
    weight: o.Weight = None,
    epsilon: float | None = o.privacy("Release private scores, at this epsilon."),
    delta: float | None = o.privacy("Goes with --epsilon; else users^-1.5, at most 1e-6."),
    ledger: Path | None = o.LEDGER,
    loss_limit: float | None = o.privacy(
        "Log loss or error that a row counts at most; else 4, the target range, or the most counts."
    ),
    metrics: str | None = o.privacy(
        "Which scores to release, with commas between: log_loss, brier, accuracy, auc, calibration; mae, mse, rmse, "
        "r2. Fewer have less noise."
    ),
    by: str | None = o.privacy("Column and its values to release scores of, too: city=Paris,Lyon."),
    max_rows_per_user: int | None = o.privacy(
        "Count each row once, of at most so many a user; else each user counts once."
    ),
    target_range: str | None = o.privacy("Public lowest and highest target, low,high; else the model's."),
    confidence: float = o.privacy("Of intervals.", 0.95),
    insecure_seed: o.Seed = None,
    purpose: str = o.PURPOSE,
    json: o.Json = None,
) -> None:
    """Score a model on rows it has not seen: privately, with intervals, or not.

    Protected: nobody in this table; with --epsilon and --user-column each user of it, with all their rows.

    [bold]Example[/bold]

    userdp evaluate model.json test.parquet --target bought

    userdp evaluate model.json test.parquet --target bought --user-column user --epsilon 1 --metrics log_loss,auc
    """
    given, private = locals(), epsilon is not None
    fitted, table = load_estimator(model), open_table(data)
    for name in filter(None, (target, user_column)):
        require_column(table.column_names, name)
    if epsilon is None:
        extra = [f"--{name.replace('_', '-')}" for name in _OF_RELEASES if given[name] is not None]
        expect(not extra, f"{', '.join(extra)} with --epsilon only, for private scores: add that.")
    else:
        expect(user_column is not None, "--user-column with --epsilon: it says who is protected.")
        expect(weight is None, "no --weight with --epsilon: private scores count a user's rows alike.")
        budget_for(epsilon, delta, 1)  # refuses what makes no sense, before anything is read
    if exposure is None and getattr(fitted, "max_exposure", None) is not None:
        named = fitted.facts_["source"].get("exposure")
        raise InputError(
            "Expected --exposure, the column that says how much was counted in a row, as the model was fitted with"
            f"{f' ({named!r} there)' if named else ''}."
        )
    show.check_files(json, read=[data, model, ledger])
    opened = None if ledger is None else Ledger.open(ledger)
    with show.working(f"reading {data}", quiet=False):
        schema = schema_of(fitted, table, features, target, user_column)
        targets = targets_of(table, schema, check=not private)
        matrix = features_of(fitted, table, schema, fill_missing, check=not private)
        exposed = exposure_of(fitted, table, exposure, check=not private)
        owners = None if user_column is None else ids(table[user_column])
    if epsilon is None:
        weights = {"rows": weights_of(table, weight, len(targets))}
        if owners is not None:
            weights["users"] = _weights(owners, weights["rows"])
        score_rows = _class_scores if fitted._classifies else _number_scores
        scores = {who: score_rows(fitted, matrix, targets, each, exposed) for who, each in weights.items()}
        show.note("NOT private: these scores tell of the people in this table. Pass --epsilon to publish.")
        if not show.as_json({"private": False, "scores": scores}, json):
            counted = {"rows": "row counted by weight" if weight else "row counted once", "users": "user counted once"}
            names = list(scores["rows"]["model"])
            rows = [
                [f"{what}, every {counted[who]}", *(f"{score[name]:.4f}" for name in names)]
                for who, both in scores.items()
                for what, score in both.items()
            ]
            show.grid(["", *names], rows)
        _note_seen(fitted, data.name)
        return
    column, levels = (None, None) if by is None else _levels(by, table)
    layout = evaluation_layout(
        fitted,
        None if metrics is None else [name.strip() for name in metrics.split(",")],
        levels=levels,
        has_by=by is not None,
        weigh="people" if max_rows_per_user is None else "rows",
        max_rows_per_user=max_rows_per_user,
        loss_limit=loss_limit,
        target_range=None if target_range is None else pair_of(target_range, "--target-range"),
        confidence=confidence,
    )
    # Each row by itself, so that nothing is told of others. Described columns are finite already.
    cells, sound = finite(matrix) if fitted.columns is None else (matrix, np.ones(len(targets), dtype=bool))
    own = None if column is None else positions(f"column {column!r}", table[column], list(layout.levels))
    places = row_places(len(targets), owners, max_rows_per_user, insecure_seed)

    def scored() -> np.ndarray:
        return layout.rows(compared(fitted, cells, targets, sound, layout.scale, exposed), own)

    budget = budget_for(epsilon, delta, places.n_users)
    charged = Ledger(budget) if opened is None else opened
    source = Source(data.name, target, user_column, exposure=exposure)
    with spending(charged, budget):
        noted: dict[str, Any] = {"purpose": purpose, "source": source, "insecure_seed": insecure_seed}
        found = evaluate_users(places, scored, layout, budget, confidence, charged, **noted)
    assert found.privacy is not None  # as it is released
    if not show.as_json(found.to_dict(), json):
        show.scores(found, "user" if found.weigh == "people" else "row")
        limit = "" if found.limit is None else f"a row's loss or error counts {found.limit:g} at most; "
        worst = f"{limit}rows that cannot be scored count as the worst"
        show.facts([*show.guarantee(found.privacy, more=""), ("limit", worst)])
    if found.privacy.warning:
        show.note(found.privacy.warning, "bold red")
    _note_seen(fitted, data.name)


def _note_seen(model: LinearModel, name: str) -> None:
    """Say so if scores are likely to be of people whom the model has seen, as far as names tell."""
    if model.facts_["source"].get("data") == name:
        show.note(
            f"The model was fitted on a file named {name}: if it is this one, it has seen these people, and scores are "
            "too good. `userdp fit --evaluate` keeps some people for them."
        )


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
    order = slice(None) if groups.order is None else groups.order
    counts = np.diff(groups.offsets)
    user = np.repeat(np.arange(len(counts)), counts)
    totals = np.bincount(user, given[order])
    weights = np.empty(len(owners))
    weights[order] = given[order] / np.where(totals > 0, totals, 1.0)[user]
    return weights


def _class_scores(
    model: LinearModel, matrix: np.ndarray, targets: np.ndarray, weights: np.ndarray, _: np.ndarray | None
) -> dict[str, _Scores]:
    """Log loss if there are probabilities, AUC of two classes, accuracy; of the model and of the classes' fractions."""
    labels = targets.astype(np.int64)
    fractions = np.bincount(labels, weights, len(model.classes_)) / weights.sum()
    margins = predicted(model.decision_function, matrix)
    chosen = margins > 0 if margins.ndim == 1 else margins.argmax(axis=1)
    scores, nothing = {}, {}
    if hasattr(model, "predict_log_proba"):
        surprise = -predicted(model.predict_log_proba, matrix)[np.arange(len(labels)), labels]
        scores["log loss"] = float(np.average(surprise, weights=weights))
        nothing["log loss"] = float(-sum(fraction * math.log(fraction) for fraction in fractions if fraction > 0))
    if len(fractions) == 2 and 0 < fractions[0] < 1:
        scores["AUC"] = float(sk.roc_auc_score(labels, margins, sample_weight=weights))
        nothing["AUC"] = 0.5
    scores["accuracy"] = float(np.average(labels == chosen, weights=weights))
    nothing["accuracy"] = float(fractions.max())
    return {"model": scores, "constant": nothing}


def _number_scores(
    model: LinearModel, matrix: np.ndarray, targets: np.ndarray, weights: np.ndarray, exposed: np.ndarray | None
) -> dict[str, _Scores]:
    """The error, its mean size and the fraction of it explained; of the model, and of one number, or rate, for all."""
    counts = isinstance(model, PoissonRegressor)
    if counts and (targets < 0).any():
        raise InputError("Expected counts >= 0 in the target's column, got others too: drop those rows.")
    amounts = np.ones(len(targets)) if exposed is None else exposed
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

    return {"model": scores(predicted(model.predict, matrix) * amounts), "constant": scores(constant)}
