"""Losses of a model's predictions, from 0 to 1, where 1 is the worst, each row by itself.

What makes no sense in a row (a missing feature, a label that is no class, a cell that a step or another library's model
fails on) raises nothing and warns of nothing: the row counts as the worst. What is declared wrongly (types, the number
or names of columns) raises, whatever cells hold.
A loss is a function of its row, the model and public numbers alone, so that replacing one user changes no other's: of
linear models margins are sums in a fixed order for each row, not products of matrices, whose rounding may depend on
where a row stands. Of other models that is taken on trust.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import scipy.sparse
from scipy.special import expit, logsumexp
from sklearn.utils import _safe_indexing

from userdp.data.schema import collected, matrix, numbers, positions
from userdp.data.sparse import is_sparse, sparse_rows
from userdp.privacy.curator import WARNINGS_OFF

Kind: TypeAlias = Literal["binary", "classes", "numbers"]

LARGEST_MARGIN = 50.0  # a chance of 2e-22
_LARGEST_LOG_LOSS = 4.0  # of a label that was given a chance of 1.8%
_LARGEST = 1e30  # features beyond are cut off: single precision holds this, and no sum of such products overflows
_BLOCK = 65536  # rows multiplied at a time

METRICS: dict[str, tuple[Kind, ...]] = {
    **dict.fromkeys(("log_loss", "brier", "accuracy"), ("binary", "classes")),
    **dict.fromkeys(("auc", "calibration"), ("binary",)),
    **dict.fromkeys(("mae", "mse", "rmse", "r2"), ("numbers",)),
}
NEED_PROBABILITIES = ("log_loss", "brier", "calibration")
# The means that metrics are made of, each from 0 to 1.
PARTS = {
    "log_loss": ("log_loss",),
    "brier": ("brier",),
    "accuracy": ("wrong",),
    "mae": ("error",),
    "mse": ("square",),
    "rmse": ("square",),
    "r2": ("square", "target", "target_square"),
    "pinball": ("pinball",),  # of row_losses alone: searches choose by it
}


@dataclass(frozen=True, eq=False)
class Predictions:
    """Targets and predictions of rows, as they are compared.

    binary: targets 0 and 1, values the margins (log-odds, if the model has probabilities);
    classes: targets are positions, values (n_rows, n_classes) logarithms of probabilities, or margins without them;
    numbers: both from 0 to 1, parts of the public range.
    sound: which rows make sense; what the others hold is any number.
    """

    kind: Kind
    targets: np.ndarray
    values: np.ndarray
    sound: np.ndarray


@dataclass(frozen=True)
class Scale:
    """What losses of 1 stand for: the largest log loss, or error, that a row counts; and the range of numbers.

    level: the quantile that the model predicts, for the pinball loss.
    """

    limit: float
    low: float = 0.0
    high: float = 1.0
    level: float = 0.5

    @property
    def span(self) -> float:
        return self.high - self.low


def kind_of(model: Any) -> Kind:
    """What a fitted model predicts: one of two classes, of several, or numbers."""
    classes = getattr(model, "classes_", None)
    return "numbers" if classes is None else "binary" if len(classes) == 2 else "classes"


def scale_of(model: Any, limit: float | None = None, target_range: tuple[float, float] | None = None) -> Scale:
    """The public bounds: as declared, else 4 (or twice that of guessing) of log losses, and the range of targets.

    A range that the model learned privately was released with it.
    """
    if limit is not None and not (isinstance(limit, int | float | np.number) and 0 < limit < math.inf):
        raise ValueError(f"loss_limit must be a finite number > 0, got {limit!r}.")
    kind = kind_of(model)
    if kind != "numbers":
        return Scale(max(_LARGEST_LOG_LOSS, 2 * math.log(len(model.classes_))) if limit is None else float(limit))
    last = model.steps[-1][1] if hasattr(model, "steps") else model
    counted = getattr(last, "max_count", None)
    declared = getattr(last, "target_range", None)
    declared = last.target_range_ if isinstance(declared, str) else declared
    found = target_range or (declared if counted is None else (0.0, counted))
    try:
        low, high = map(float, found)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        low = high = math.nan
    if not (low < high and math.isfinite(high - low)):
        raise ValueError(
            "The model declares no range of targets: pass target_range=(lowest, highest), a public range from what "
            "they mean and not from the data. Nothing was spent."
        )
    return Scale(high - low if limit is None else float(limit), low, high, getattr(last, "quantile", 0.5))


def row_losses(
    model: Any, X: Any, y: Any, metric: str, *, target_range: tuple[float, float] | None = None
) -> np.ndarray:
    """One metric's loss of each row, from 0 to 1, 1 for the worst and for rows that make no sense.

    metric: "log_loss", "brier", "accuracy" (1 for a wrong label), "mae", "mse" or "pinball"; times
    `scale_of(model).limit` (its square for "mse") it is in units, but for accuracy and brier. Means of users of it are
    a model's score, and the lower the better: `UserData.from_arrays(losses[:, None], None, users)` with `UserMean` and
    `Clip` releases it.
    """
    scale = scale_of(model, target_range=target_range)
    (part,) = PARTS[metric]
    return losses_of(compared(model, *read_rows(model, X, y), scale), scale, (part,))[:, 0]


def read_rows(model: Any, X: Any, y: Any) -> tuple[Any, np.ndarray, np.ndarray]:
    """Features, targets and which rows may make sense, as `compared` takes them; refuses by public facts alone."""
    kind = kind_of(model)
    X = collected(X)
    _check_columns(model, X)
    before, last = _linear(model)
    if before is None and last is not None:
        features, sound = _features(last, X)
    else:  # as it is: what steps make of it, and what another model says, is judged
        features, sound = X, np.ones(X.shape[0] if hasattr(X, "shape") else len(X), dtype=bool)
    if kind == "numbers":
        targets = numbers("y", y).astype(np.float64, copy=False)
    else:
        targets = positions("y", y, model.classes_.tolist())
    if len(targets) != len(sound):
        raise ValueError("y must have one target per row of X, in one dimension.")
    return features, targets, sound


def compared(
    model: Any,
    features: Any,
    targets: np.ndarray,
    sound: np.ndarray,
    scale: Scale,
    exposure: np.ndarray | None = None,
) -> Predictions:
    """Predictions beside targets, which are positions or numbers; NaN where they make no sense.

    sound: which rows may make sense. Those that the model, or a step before it, fails on do not.
    """
    kind, (before, last) = kind_of(model), _linear(model)
    shape = (len(sound), len(model.classes_)) if kind == "classes" else (len(sound),)
    predict = partial(_predicted, kind, model)
    with WARNINGS_OFF, np.errstate(all="ignore"):
        ours = before is None and last is not None  # finite numbers, and sums of each row by itself
        values = predict(features) if ours else isolated(predict, features, shape)
        if kind == "numbers":
            if exposure is not None:
                sound = sound & np.isfinite(exposure) & (exposure > 0)
                values = values * np.where(sound, exposure, 1.0)
            values, targets = (
                (np.clip(one, scale.low, scale.high) - scale.low) / scale.span for one in (values, targets)
            )
        elif kind == "binary":
            values = np.clip(values, -LARGEST_MARGIN, LARGEST_MARGIN)
        sound = sound & np.isfinite(targets) & (np.isfinite(values) if values.ndim == 1 else ~np.isnan(values).any(1))
    values = np.where(sound if values.ndim == 1 else sound[:, None], values, 0.0)
    return Predictions(kind, np.where(sound, targets, 0.0), values, sound)


def losses_of(found: Predictions, scale: Scale, parts: tuple[str, ...]) -> np.ndarray:
    """(n_rows, parts) numbers from 0 to 1; rows that make no sense have 1 everywhere."""
    out = np.ones((len(found.targets), len(parts)))
    with np.errstate(all="ignore"):
        for column, part in enumerate(parts):
            loss = _CLASS_LOSSES[part] if found.kind == "classes" else _LOSSES[part]
            out[:, column] = np.where(found.sound, np.clip(loss(found.targets, found.values, scale), 0.0, 1.0), 1.0)
    return out


# Of targets and values of two classes, or of numbers; then of several classes.
_LOSSES: dict[str, Any] = {
    "log_loss": lambda y, s, scale: np.logaddexp(0.0, np.where(y > 0, -s, s)) / scale.limit,
    "brier": lambda y, s, scale: (expit(s) - y) ** 2,
    "wrong": lambda y, s, scale: (s > 0) != (y > 0),
    "error": lambda y, p, scale: np.abs(p - y) * (scale.span / scale.limit),
    "square": lambda y, p, scale: (np.abs(p - y) * (scale.span / scale.limit)).clip(0.0, 1.0) ** 2,
    "pinball": lambda y, p, scale: np.maximum(scale.level * (y - p), (scale.level - 1) * (y - p)),
    "target": lambda y, p, scale: y,
    "target_square": lambda y, p, scale: (2 * y - 1) ** 2,
}
_CLASS_LOSSES: dict[str, Any] = {
    "log_loss": lambda y, v, scale: -_own(y, v) / scale.limit,
    # Half of the sum over classes, so that it is at most 1 and for two classes the same as above.
    "brier": lambda y, v, scale: (np.exp(2 * v).sum(axis=1) - 2 * np.exp(_own(y, v)) + 1) / 2,
    "wrong": lambda y, v, scale: v.argmax(axis=1) != y,
}


def _own(y: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The value of each row's own class."""
    return np.asarray(values[np.arange(len(y)), y.astype(np.int64)])


def _check_columns(model: Any, X: Any) -> None:
    """Refuse other columns than those the model was fitted with: public facts, whatever cells hold."""
    described = getattr(model.steps[0][1] if hasattr(model, "steps") else model, "columns_", None)
    named = getattr(model, "feature_names_in_", None) if described is None else list(described)
    names = getattr(X, "columns", None)
    if named is not None and names is not None and not isinstance(X, np.ndarray):
        held = set(getattr(X, "column_names", names))
        missing = [str(name) for name in named if name not in held]
        if missing:
            raise ValueError(f"X must have the columns of the fit: {', '.join(missing[:5])} is missing.")
    elif described is None or isinstance(X, np.ndarray) or is_sparse(X):
        width: int | None = getattr(model, "n_features_in_", None)
        if width is not None and len(getattr(X, "shape", ())) == 2 and X.shape[1] != width:
            raise ValueError(f"X must have the {width} features of the fit, got {X.shape[1]}.")


def taken(rows: Any, places: np.ndarray) -> Any:
    """Some rows of an array, a sparse matrix, a table, a column or a list."""
    of_arrow = type(rows).__module__.startswith("pyarrow")
    return rows.take(places) if of_arrow else _safe_indexing(rows, places)


def isolated(predict: Callable[[Any], Any], rows: Any, shape: tuple[int, ...]) -> np.ndarray:
    """What `predict` says of each row, NaN for rows that it fails on.

    Guarantee: nothing is raised, and nothing is warned of, whatever rows hold.
    """

    def attempt(places: np.ndarray) -> np.ndarray | None:
        try:
            return np.asarray(predict(taken(rows, places)), dtype=np.float64).reshape(len(places), *shape[1:])
        except Exception:  # its words may quote a cell
            return None

    out = np.full(shape, np.nan)
    with WARNINGS_OFF, np.errstate(all="ignore"):
        found, sound = made_apart(attempt, np.arange(shape[0]))
    if found is not None:
        out[sound] = found[sound]
    return out


def made_apart(attempt: Callable[[np.ndarray], Any], units: np.ndarray) -> tuple[Any, np.ndarray]:
    """What an attempt makes of all rows, None if nothing, and of which rows that is: not of units that it fails on.

    units: whose each row is, or its number. An attempt gives None if it fails on any of the rows it is given.
    All rows are asked for at once. If that fails, units on which it fails by themselves are found by halves, and all
    are asked for again with a copy of another row in their places. So everybody else's rows are asked for in the same
    place, among as many and laid out alike, and their answers are the same to the last bit.
    """
    everyone = np.arange(units.size)
    found = attempt(everyone)
    if found is not None:
        return found, np.ones(units.size, dtype=bool)
    order = np.argsort(units, kind="stable")
    ends = np.append(0, np.cumsum(np.unique(units, return_counts=True)[1]))
    sound, todo = np.zeros(units.size, dtype=bool), [(0, ends.size - 1)]
    while todo:
        first, last = todo.pop()
        some = np.sort(order[ends[first] : ends[last]])
        if attempt(some) is not None:
            sound[some] = True
        elif last - first > 1:
            middle = (first + last) // 2
            todo += [(first, middle), (middle, last)]
    return (attempt(np.where(sound, everyone, sound.argmax())) if sound.any() else None), sound


def _features(model: Any, X: Any) -> tuple[Any, np.ndarray]:
    """Finite features, and which rows had no others."""
    if getattr(model, "columns", None) is not None and not (isinstance(X, np.ndarray) or is_sparse(X)):
        rows = model.columns_.encode(X)
        return rows, np.ones(rows.shape[0], dtype=bool)
    return finite(X if is_sparse(X) else matrix("X", X, getattr(model, "n_features_in_", None)))


def finite(rows: Any) -> tuple[Any, np.ndarray]:
    """Rows with 0 where a cell is missing or infinite, and which had none; huge cells are cut off."""
    if is_sparse(rows):
        held = sparse_rows("X", rows)
        missing, owners = ~np.isfinite(held.values), np.repeat(np.arange(len(held)), np.diff(held.indptr))
        values = np.where(missing, 0.0, np.clip(held.values.astype(np.float64), -_LARGEST, _LARGEST))
        found = scipy.sparse.csr_array((values, held.indices, held.indptr), shape=held.shape)
        return found, np.bincount(owners, missing, len(held)) == 0
    sound = np.isfinite(rows).all(axis=1)
    with np.errstate(all="ignore"):
        return np.where(sound[:, None], np.clip(rows, -_LARGEST, _LARGEST), 0.0), sound


def _linear(model: Any) -> tuple[Any, Any]:
    """The steps before a linear model of this package, and the model; None for others."""
    before, last = (model[:-1], model.steps[-1][1]) if hasattr(model, "steps") else (None, model)
    ours = type(last).__module__.startswith("userdp.") and hasattr(last, "coef_")
    return (before if before is not None and len(before) else None), (last if ours else None)


def margins_of(model: Any, features: Any) -> np.ndarray:
    """(n_rows, outputs) margins of a linear model: of each row a sum in one order, wherever the row stands.

    NaN where steps before the model leave a missing or infinite feature.
    """
    before, last = _linear(model)
    sound = None
    if before is not None:
        features, sound = _features(last, before.transform(as_table(features)))
    weights, constants = np.atleast_2d(last.coef_), np.atleast_1d(last.intercept_)
    if is_sparse(features):
        made = np.asarray(features @ weights.T + constants)  # row by row, entry by entry
        return made if sound is None else np.where(sound[:, None], made, np.nan)
    out = np.empty((len(features), len(weights)))
    for start in range(0, len(features), _BLOCK):
        some = slice(start, start + _BLOCK)
        for output, row in enumerate(weights):
            out[some, output] = np.ascontiguousarray(features[some] * row).sum(axis=1)
    return np.asarray(out + constants if sound is None else np.where(sound[:, None], out + constants, np.nan))


def as_table(rows: Any) -> Any:
    """Rows as scikit-learn takes them: of Arrow as a table of pandas, others as they are.

    Whole numbers and truths become float64, by their declared type: pandas would do that for all if a cell is missing.
    """
    if not isinstance(rows, pa.Table | pa.RecordBatch):
        return rows
    rows = pa.table(rows)
    whole = (pa.types.is_integer, pa.types.is_boolean)
    fields = [one.with_type(pa.float64()) if any(test(one.type) for test in whole) else one for one in rows.schema]
    return rows.cast(pa.schema(fields), safe=False).to_pandas()


def _predicted(kind: Kind, model: Any, features: Any) -> np.ndarray:
    """Log-odds of two classes, (n_rows, n_classes) logarithms of probabilities (margins without them), or numbers."""
    last = _linear(model)[1]
    if last is not None:
        margins = margins_of(model, features)
        if kind == "classes":
            total = logsumexp(margins, axis=1, keepdims=True) if hasattr(model, "predict_proba") else 0.0
            return np.asarray(margins - total)
        return np.exp(margins[:, 0]) if kind == "numbers" and hasattr(last, "max_count") else margins[:, 0]
    chances = kind != "numbers" and hasattr(model, "predict_proba")
    method = model.predict_proba if chances else model.predict if kind == "numbers" else model.decision_function
    found = np.asarray(method(as_table(features)), dtype=np.float64)
    if not chances:
        return found
    found = np.log(np.maximum(found, 1e-300))
    return found if kind == "classes" else np.asarray(found[:, 1] - found[:, 0])
