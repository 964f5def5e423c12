"""`userdp evaluate`: how good a model is on other people's rows, privately or not."""

from __future__ import annotations

import math
from typing import Annotated, Any

import numpy as np
from sklearn import metrics

from userdp.cli import options as o
from userdp.cli import show
from userdp.cli.errors import InputError, spending
from userdp.cli.predict import predicted
from userdp.cli.tables import classes_of, exposure_of, features_of, pair_of, schema_of, targets_of, weights_of
from userdp.data.grouping import Groups
from userdp.data.schema import ids, positions, require_column
from userdp.data.source import Source
from userdp.data.tables import open_table
from userdp.evaluation.row_losses import compared, finite
from userdp.models.estimators import PoissonRegressor
from userdp.models.evaluating import Evaluation, evaluate_users, evaluation_layout, row_places
from userdp.models.files import load_estimator
from userdp.models.linear import LinearModel
from userdp.privacy.accounting import budget_for
from userdp.privacy.ledger import Ledger


def evaluate(
    model: o.ModelFile,
    data: o.Table,
    *,
    target: o.Target,
    user_column: Annotated[
        str | None,
        o.option(o.DATA, "Column that says whose row it is: needed with --epsilon; else to count every user once too."),
    ] = None,
    features: o.Columns = None,
    fill_missing: o.FillMissing = None,
    exposure: o.Exposure = None,
    weight: o.Weight = None,
    epsilon: Annotated[float | None, o.option(o.PRIVACY, "Release private scores, at this epsilon.")] = None,
    delta: Annotated[float | None, o.option(o.PRIVACY, "Goes with --epsilon; else users^-1.5, at most 1e-6.")] = None,
    ledger: o.LedgerFile = None,
    loss_limit: Annotated[
        float | None,
        o.option(
            o.PRIVACY, "Log loss or error that a row counts at most; else 4, the target range, or the most counts."
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        o.option(
            o.PRIVACY,
            "Which scores to release, with commas between: log_loss, brier, accuracy, auc, calibration; mae, mse, "
            "rmse, r2. Fewer have less noise.",
        ),
    ] = None,
    by: Annotated[
        str | None,
        o.option(o.PRIVACY, "Column and its values to release scores of, too: city=Paris,Lyon."),
    ] = None,
    max_rows_per_user: Annotated[
        int | None,
        o.option(o.PRIVACY, "Count each row once, of at most so many a user; else each user counts once."),
    ] = None,
    target_range: Annotated[
        str | None, o.option(o.PRIVACY, "Public lowest and highest target, low,high; else the model's.")
    ] = None,
    confidence: Annotated[float, o.option(o.PRIVACY, "Of intervals.", default=True)] = 0.95,
    insecure_seed: o.Seed = None,
    purpose: o.Purpose = "",
    json: o.Json = None,
) -> None:
    """Score a model on rows it has not seen: privately, with intervals, or not.

    Protected: nobody in this table; with --epsilon and --user-column each user of it, with all their rows.

    [bold]Example[/bold]

    userdp evaluate model.json test.parquet --target bought

    userdp evaluate model.json test.parquet --target bought --user-column user --epsilon 1 --metrics log_loss,auc
    """
    fitted, table = load_estimator(model), open_table(data)
    for name in (target, *([] if user_column is None else [user_column])):
        require_column(table.column_names, name)
    if epsilon is None:
        of_release = {
            "delta": delta,
            "ledger": ledger,
            "loss-limit": loss_limit,
            "metrics": metrics,
            "by": by,
            "max-rows-per-user": max_rows_per_user,
            "target-range": target_range,
            "insecure-seed": insecure_seed,
        }
        if given := [f"--{name}" for name, value in of_release.items() if value is not None]:
            raise InputError(f"Expected {', '.join(given)} with --epsilon only, for private scores: add that.")
    elif user_column is None:
        raise InputError("Expected --user-column with --epsilon: it says who is protected.")
    elif weight is not None:
        raise InputError("Expected no --weight with --epsilon: private scores count a user's rows alike.")
    else:
        budget_for(epsilon, delta, 1)  # refuses what makes no sense, before anything is read
    if exposure is None and getattr(fitted, "max_exposure", None) is not None:
        named = fitted.facts_["source"].get("exposure")
        raise InputError(
            "Expected --exposure, the column that says how much was counted in a row, as the model was fitted with"
            f"{f' ({named!r} there)' if named else ''}."
        )
    show.check_json(json, data, model, *([] if ledger is None else [ledger]))
    opened = None if ledger is None else Ledger.open(ledger)
    with show.working(f"reading {data}", quiet=False):
        schema = schema_of(fitted, table, features, target, user_column)
        targets = targets_of(table, schema, check=epsilon is None)
        matrix = features_of(fitted, table, schema, fill_missing, check=epsilon is None)
        exposed = exposure_of(fitted, table, exposure, check=epsilon is None)
        owners = None if user_column is None else ids(table[user_column])
    if epsilon is None:
        scores = _public_scores(fitted, matrix, targets, owners, exposed, weights_of(table, weight, len(targets)))
        show.note("NOT private: these scores tell of the people in this table. Pass --epsilon to publish.")
        if not show.as_json({"private": False, "scores": scores}, json):
            _print_public(scores, "counted once" if weight is None else "counted by weight")
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
    rows, sound = finite(matrix) if fitted.columns is None else (matrix, np.ones(len(targets), dtype=bool))
    own = None if column is None else positions(f"column {column!r}", table[column], list(layout.levels))
    places = row_places(len(targets), owners, max_rows_per_user, insecure_seed)

    def scored() -> np.ndarray:
        return layout.rows(compared(fitted, rows, targets, sound, layout.scale, exposed), own)

    budget = budget_for(epsilon, delta, places.n_users)
    charged = Ledger(budget) if opened is None else opened
    with spending(charged, budget):
        source = Source(data.name, target, user_column, exposure=exposure)
        result = evaluate_users(
            places,
            scored,
            layout,
            budget,
            confidence,
            charged,
            purpose=purpose,
            source=source,
            insecure_seed=insecure_seed,
        )
    if not show.as_json(result.to_dict(), json):
        _print_private(result)
    if result.privacy is not None and result.privacy.warning:
        show.note(result.privacy.warning, "bold red")
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
    name, _, text = by.partition("=")
    require_column(table.column_names, name.strip())
    try:
        return name.strip(), classes_of(text.strip() or None, table.without_cells(name.strip()), name.strip())
    except InputError as error:
        raise InputError(str(error).replace("--classes", f"--by {name.strip()}=")) from None


def _classified(
    model: LinearModel, matrix: np.ndarray, labels: np.ndarray
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
    """Of each row: whether its label is missed, its log loss if there are probabilities, and the margins."""
    margins = predicted(model.decision_function, matrix)
    chosen = margins > 0 if margins.ndim == 1 else margins.argmax(axis=1)
    if not hasattr(model, "predict_log_proba"):
        return labels != chosen, None, margins
    return labels != chosen, -predicted(model.predict_log_proba, matrix)[np.arange(len(labels)), labels], margins


def _expected(model: LinearModel, matrix: np.ndarray, exposed: np.ndarray | None) -> np.ndarray:
    """The predicted number, or count in a row's exposure."""
    predictions = predicted(model.predict, matrix)
    return predictions if exposed is None else predictions * exposed


def _public_scores(
    model: LinearModel,
    matrix: np.ndarray,
    targets: np.ndarray,
    owners: Any,
    exposed: np.ndarray | None,
    given: np.ndarray,
) -> dict[str, dict[str, dict[str, float]]]:
    """Scores where every row counts as given, and where every user counts once; of the model, and the best constant."""
    weights = {"rows": given}
    if owners is not None:
        weights["users"] = _weights(owners, given)
    if isinstance(model, PoissonRegressor):
        counts = _expected(model, matrix, exposed)
        found = {name: _count_scores(counts, targets, weight, exposed) for name, weight in weights.items()}
    else:
        scores = _class_scores if model._classifies else _number_scores
        found = {name: scores(model, matrix, targets, weight) for name, weight in weights.items()}
    return {name: dict(zip(("model", "constant"), both, strict=True)) for name, both in found.items()}


def _weights(owners: Any, given: np.ndarray) -> np.ndarray:
    """Each row's part of what its user's rows count together; 0 of users whose rows do not count."""
    groups = Groups.make(owners, len(owners), None, None)
    order = slice(None) if groups.order is None else groups.order
    counts = np.diff(groups.offsets)
    user = np.repeat(np.arange(len(counts)), counts)
    totals = np.bincount(user, given[order])
    weights = np.empty(len(owners))
    weights[order] = given[order] / np.where(totals > 0, totals, 1.0)[user]
    return weights


def _class_scores(
    model: LinearModel, matrix: np.ndarray, targets: np.ndarray, weights: np.ndarray
) -> tuple[dict[str, float], dict[str, float]]:
    labels, n_classes = targets.astype(np.int64), len(model.classes_)
    fractions = np.bincount(labels, weights, n_classes) / weights.sum()
    wrong, surprise, margins = _classified(model, matrix, labels)
    scores, nothing = {}, {}
    if surprise is not None:
        scores["log loss"] = float(np.average(surprise, weights=weights))
        nothing["log loss"] = float(-sum(fraction * math.log(fraction) for fraction in fractions if fraction > 0))
    if n_classes == 2 and 0 < fractions[0] < 1:
        scores["AUC"] = float(metrics.roc_auc_score(labels, margins, sample_weight=weights))
        nothing["AUC"] = 0.5
    scores["accuracy"] = float(np.average(~wrong, weights=weights))
    nothing["accuracy"] = float(fractions.max())
    return scores, nothing


def _number_scores(
    model: LinearModel, matrix: np.ndarray, targets: np.ndarray, weights: np.ndarray
) -> tuple[dict[str, float], dict[str, float]]:
    mean = np.average(targets, weights=weights)
    variance = float(np.average((targets - mean) ** 2, weights=weights))

    def of(predictions: np.ndarray) -> dict[str, float]:
        errors = predictions - targets
        squares = float(np.average(errors**2, weights=weights))
        scores = {"RMSE": math.sqrt(squares), "MAE": float(np.average(np.abs(errors), weights=weights))}
        return scores | ({"R2": 1 - squares / variance} if variance else {})

    return of(predicted(model.predict, matrix)), of(np.full(len(targets), mean))


def _count_scores(
    counts: np.ndarray, targets: np.ndarray, weights: np.ndarray, exposed: np.ndarray | None
) -> tuple[dict[str, float], dict[str, float]]:
    """Of expected counts, and of one rate for all: mean Poisson deviance, the fraction explained, and mean error."""
    if (targets < 0).any():
        raise InputError("Expected counts >= 0 in the target's column, got others too: drop those rows.")
    exposed = np.ones(len(targets)) if exposed is None else exposed
    rate = np.average(targets, weights=weights) / np.average(exposed, weights=weights)

    def deviance(expected: np.ndarray) -> float:
        sound = np.clip(expected, 1e-300, 1e300)
        return float(metrics.mean_poisson_deviance(targets, sound, sample_weight=weights))

    least = deviance(rate * exposed)

    def of(expected: np.ndarray) -> dict[str, float]:
        found = deviance(expected)
        scores = {"deviance": found, "MAE": float(np.average(np.abs(expected - targets), weights=weights))}
        return scores | ({"D2": 1 - found / least} if least else {})

    return of(counts), of(rate * exposed)


def _print_public(scores: dict[str, dict[str, dict[str, float]]], rows: str) -> None:
    names, counted = list(scores["rows"]["model"]), {"rows": f"row {rows}", "users": "user counted once"}
    shown = [
        [f"{what}, every {counted[who]}", *(f"{score[name]:.4f}" for name in names)]
        for who, both in scores.items()
        for what, score in both.items()
    ]
    show.grid(["", *names], shown)


def _print_private(found: Evaluation) -> None:
    assert found.privacy is not None
    show.scores(found, "user" if found.weigh == "people" else "row")
    counted = "rows that cannot be scored count as the worst"
    if found.limit is not None:
        counted = f"a row's loss or error counts {found.limit:g} at most; {counted}"
    show.facts([*show.guarantee(found.privacy, more=""), ("limit", counted)])
