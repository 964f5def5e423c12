"""`userdp evaluate`: how good a model is on other people's rows, privately or not."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from sklearn import metrics

from userdp.cli import options as o
from userdp.cli import show
from userdp.cli.errors import InputError, spending
from userdp.cli.predict import predicted
from userdp.cli.tables import exposure_of, features_of, schema_of, targets_of
from userdp.data.grouping import Groups
from userdp.data.schema import ids, require_column
from userdp.data.source import Source
from userdp.data.tables import open_table
from userdp.data.users import UserData
from userdp.models.estimators import LinearModel, PoissonRegressor
from userdp.models.files import load_estimator
from userdp.models.private_mean import MeanResult, mean_of_users
from userdp.privacy.accounting import budget_for
from userdp.privacy.ledger import Ledger

_LARGEST_LOG_LOSS = 4.0  # of a label that was given a chance of 1.8%
_SPREAD = (1e-4, 2.0)  # of users' mean scores, which are in [0, 1]
_LARGEST = 1e100  # features beyond would overflow


def evaluate(
    model: o.ModelFile,
    data: o.Table,
    *,
    target: o.Target,
    user_column: Annotated[
        str | None, o.option(o.DATA, "Column that says whose row it is, to count every user once too.")
    ] = None,
    features: o.Columns = None,
    fill_missing: o.FillMissing = None,
    exposure: o.Exposure = None,
    epsilon: Annotated[float | None, o.option(o.PRIVACY, "Release private scores, at this epsilon.")] = None,
    delta: Annotated[float | None, o.option(o.PRIVACY, "Goes with --epsilon; else users^-1.5, at most 1e-6.")] = None,
    ledger: o.LedgerFile = None,
    loss_limit: Annotated[
        float | None,
        o.option(
            o.PRIVACY, "Log loss or error that a row counts at most; else 4, the target range, or the most counts."
        ),
    ] = None,
    insecure_seed: o.Seed = None,
    purpose: o.Purpose = "",
    json: o.Json = None,
) -> None:
    """Score a model on rows it has not seen.

    Protected: nobody in this table; with --epsilon and --user-column each user of it, with all their rows.

    [bold]Example[/bold]

    userdp evaluate model.json test.parquet --target bought

    userdp evaluate model.json test.parquet --target bought --user-column user --epsilon 1 --delta 1e-6
    """
    fitted, table = load_estimator(model), open_table(data)
    for name in (target, *([] if user_column is None else [user_column])):
        require_column(table.column_names, name)
    if epsilon is None:
        if any(value is not None for value in (delta, ledger, insecure_seed, loss_limit)):
            raise InputError("Expected --delta, --ledger, --loss-limit and --insecure-seed with --epsilon only.")
    elif user_column is None:
        raise InputError("Expected --user-column with --epsilon: it says who is protected.")
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
        scores = _public_scores(fitted, matrix, targets, owners, exposed)
        show.note("NOT private: these scores tell of the people in this table. Pass --epsilon to publish.")
        if not show.as_json({"private": False, "scores": scores}, json):
            _print_public(scores)
        return
    rows = _row_scores(fitted, matrix, targets, loss_limit, exposed)
    source = Source(data.name, target, user_column, exposure=exposure)
    users = UserData.from_arrays(rows.scores, None, owners, insecure_seed=insecure_seed)
    budget = budget_for(epsilon, delta, users.n_users)
    charged = Ledger(budget) if opened is None else opened
    with spending(charged, budget):
        asked = source.entry(purpose, "evaluate")
        result = mean_of_users(users, budget, _SPREAD, ledger=charged, insecure_seed=insecure_seed, purpose=asked)
    released = rows.released(result.mean, result.noise_std)
    told = {"private": result.privacy.private, "scores": released, "privacy": result.privacy.to_dict()}
    if not show.as_json(told, json):
        _print_private(released, result, rows.limit)
    if result.privacy.warning:
        show.note(result.privacy.warning, "bold red")


@dataclass(frozen=True)
class _RowScores:
    """Scores of each row in [0, 1], where 1 is the worst, and what one of them stands for."""

    names: tuple[str, ...]
    scores: np.ndarray
    limit: float

    def released(self, mean: np.ndarray, noise_std: float) -> dict[str, dict[str, float]]:
        """Scores in their own units, with the standard deviation of their noise."""
        found = {}
        for name, value in zip(self.names, map(float, mean), strict=True):
            if name == "accuracy":
                value, std = 1 - value, noise_std
            elif name == "RMSE":
                value = math.sqrt(max(value, 0.0))
                std = self.limit * min(noise_std / (2 * value) if value else math.inf, math.sqrt(noise_std))
                value *= self.limit
            else:
                value, std = self.limit * value, self.limit * noise_std
            found[name] = {"value": value, "noise_std": std}
        return found


def _row_scores(
    model: LinearModel, matrix: np.ndarray, targets: np.ndarray, limit: float | None, exposed: np.ndarray | None
) -> _RowScores:
    """Each row by itself, so that nothing is told of others: rows that make no sense count as the worst."""
    sound = np.isfinite(targets)
    if exposed is not None:
        sound &= np.isfinite(exposed) & (exposed > 0)
        exposed = np.where(sound, exposed, 1.0)
    with np.errstate(all="ignore"):
        if model.columns is None:  # described ones are finite, and small
            sound &= np.isfinite(matrix).all(axis=1)
            matrix = np.where(sound[:, None], np.clip(matrix, -_LARGEST, _LARGEST), 0.0)
        targets = np.where(sound, targets, 0.0)
    if limit is None and model._classifies:
        limit = max(_LARGEST_LOG_LOSS, 2 * math.log(len(model.classes_)))
    elif limit is None:
        counts = isinstance(model, PoissonRegressor)
        ends = (0.0, model.max_count) if counts else model.target_range
        if ends is None or None in ends:
            raise InputError("Expected --loss-limit, the largest error that counts: the model declares no range.")
        limit = float(ends[1] - ends[0])
    if not 0 < limit < math.inf:
        raise InputError(f"Expected --loss-limit {limit} to be a finite number > 0.")
    if model._classifies:
        wrong, surprise, _ = _classified(model, matrix, targets.astype(np.int64))
        found = {} if surprise is None else {"log loss": np.minimum(surprise / limit, 1.0)}
        found["accuracy"] = wrong.astype(np.float64)
    else:
        with np.errstate(all="ignore"):  # counts beyond all numbers are off by the most
            error = np.fmin(np.abs(_expected(model, matrix, exposed) - targets) / limit, 1.0)
        found = {"MAE": error, "RMSE": error**2}
    return _RowScores(tuple(found), np.where(sound[:, None], np.column_stack([*found.values()]), 1.0), limit)


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
    model: LinearModel, matrix: np.ndarray, targets: np.ndarray, owners: Any, exposed: np.ndarray | None
) -> dict[str, dict[str, dict[str, float]]]:
    """Scores where every row counts once, and where every user does; of the model, and of the best constant."""
    weights = {"rows": np.ones(len(targets))}
    if owners is not None:
        weights["users"] = _weights(owners)
    if isinstance(model, PoissonRegressor):
        counts = _expected(model, matrix, exposed)
        found = {name: _count_scores(counts, targets, weight, exposed) for name, weight in weights.items()}
    else:
        scores = _class_scores if model._classifies else _number_scores
        found = {name: scores(model, matrix, targets, weight) for name, weight in weights.items()}
    return {name: dict(zip(("model", "constant"), both, strict=True)) for name, both in found.items()}


def _weights(owners: Any) -> np.ndarray:
    """1 / (number of the user's rows) of each row."""
    groups = Groups.make(owners, len(owners), None, None)
    counts = np.diff(groups.offsets)
    weights = np.empty(len(owners))
    weights[slice(None) if groups.order is None else groups.order] = np.repeat(1 / counts, counts)
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


def _print_public(scores: dict[str, dict[str, dict[str, float]]]) -> None:
    names = list(scores["rows"]["model"])
    shown = [
        [f"{what}, every {who.removesuffix('s')} counted once", *(f"{score[name]:.4f}" for name in names)]
        for who, both in scores.items()
        for what, score in both.items()
    ]
    show.grid(["", *names], shown)


def _print_private(scores: dict[str, dict[str, float]], result: MeanResult, limit: float) -> None:
    rows = [(name, f"{score['value']:.4f}", f"{score['noise_std']:.4f}") for name, score in scores.items()]
    show.grid(["score, every user counted once", "value", "noise (std)"], rows)
    counted = f"a row's loss or error counts {limit:g} at most; rows that cannot be scored count as the worst"
    show.facts([*show.guarantee(result.privacy), ("limit", counted)])
