"""Arrays from whatever scikit-learn's users pass, without a word about values.

Errors tell of types, dimensions and names of features only, and carry no other exception that could quote a value: in
which cells somebody has text, a missing value or a huge number decides nothing but what becomes NaN.
"""

from __future__ import annotations

import numbers
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.utils.validation import validate_data

from userdp.privacy.quiet import QUIET

FLOATS = [np.float64, np.float32]

NO_GROUPS = (
    "Expected groups, the user id of each row: fit(X, y, groups=user_ids). Inside Pipeline, cross_validate or "
    "GridSearchCV scikit-learn drops them silently unless metadata routing is on: call "
    "sklearn.set_config(enable_metadata_routing=True) and pass groups=user_ids to fit, or params={'groups': user_ids} "
    "to cross_validate with cv=GroupKFold(5, shuffle=True, random_state=0). If every row belongs to somebody else, say "
    'privacy_unit="row". Nothing was spent.'
)


def owners(groups: Any, privacy_unit: str, n_rows: int) -> Any:
    """Who owns which row: the groups, or somebody else each."""
    if privacy_unit not in ("user", "row"):
        raise ValueError(f'Expected privacy_unit={privacy_unit!r} to be "user" or "row".')
    if groups is None and privacy_unit == "user":
        raise ValueError(NO_GROUPS)
    if groups is not None and privacy_unit == "row":
        raise ValueError('Expected no groups with privacy_unit="row": leave one of them out.')
    return range(n_rows) if groups is None else groups


def read_rows(estimator: Any, X: Any, reset: bool = True) -> np.ndarray:
    """A float matrix of an array, table or nested list of numbers; sets or checks the estimator's features.

    Of lists and arrays of objects each cell is read by itself: what is no number becomes NaN.
    """
    X = cell_by_cell(X)
    problem = _problem(X)
    if problem:
        raise TypeError(f"Expected X to be a 2-dimensional array or table of numbers, got {problem}.")
    rows = None
    with QUIET, np.errstate(all="ignore"):
        try:
            rows = validate_data(estimator, X, dtype=FLOATS, ensure_all_finite=False, ensure_min_samples=0, reset=reset)
        except Exception as error:
            reason = str(error) if "feature" in str(error) and "array=" not in str(error) and not reset else ""
    if rows is None:
        raise ValueError(reason or "Expected X to be a matrix of numbers: its columns cannot be made one.")
    return np.asarray(rows)


def cell_by_cell(X: Any) -> Any:
    """Lists of rows and 2-dimensional arrays of objects as floats; a row of another length than most is NaN."""
    if isinstance(X, np.ndarray) and X.dtype == object and X.ndim == 2:
        X = X.tolist()
    if not isinstance(X, list | tuple) or holds_numbers(X):
        return X
    lengths = Counter(len(row) for row in X if _is_row(row))
    width = lengths.most_common(1)[0][0]
    blank = [np.nan] * width
    rows = [row if _is_row(row) and len(row) == width else blank for row in X]
    return np.array([[_number(cell) for cell in row] for row in rows], dtype=np.float64).reshape(len(rows), width)


def holds_numbers(X: Sequence[Any]) -> bool:
    """Whether most entries of a list are no rows: one person's entry must not decide it, be it the first."""
    return 2 * sum(map(_is_row, X)) <= len(X)


def _is_row(entry: Any) -> bool:
    return isinstance(entry, list | tuple) or (isinstance(entry, np.ndarray) and entry.ndim == 1)


def _problem(X: Any) -> str:
    """What is wrong with the type of X, in words; empty if nothing is."""
    if hasattr(X, "columns") and hasattr(X, "shape"):  # a pandas or polars table
        kinds = X.dtypes if isinstance(X.dtypes, list) else list(X.dtypes)
        strange = sorted({str(kind) for kind in kinds if not _numeric(kind)})
        if not kinds:
            return "a table without columns"
        return f"columns of type {', '.join(strange)}: encode or drop them" if strange else ""
    if issparse(X):
        return "a sparse matrix, which is not supported: make it dense with toarray()"
    if not isinstance(X, np.ndarray):
        return f"{type(X).__name__}: pass a numpy array or a table, np.asarray(X, dtype=float) say"
    if X.dtype.kind not in "biuf":
        return f"an array of {X.dtype}: convert it with astype(float), which tells you of what cannot be"
    if X.ndim != 2 or X.shape[1] == 0:
        return f"{X.ndim} dimensions: reshape it" if X.ndim != 2 else "no feature"
    return ""


def _numeric(kind: Any) -> bool:
    name = str(kind).lower()
    return name.startswith(("int", "uint", "float", "bool", "double", "decimal"))


def is_boolean(y: Any) -> bool:
    """Whether the declared type of y has two values, not whether its values happen to be two."""
    return str(getattr(y, "dtype", "")).lower() in ("bool", "boolean", "bool[pyarrow]")


def read_values(y: Any, n_rows: int, numeric: bool = False) -> np.ndarray:
    """Targets as a numeric array where their declared type is numeric, else as an array of objects.

    `numeric` refuses what is declared to be text.
    """
    if isinstance(y, np.ndarray) and y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if isinstance(y, str | bytes) or not hasattr(y, "__len__") or getattr(y, "ndim", 1) != 1 or len(y) != n_rows:
        raise ValueError("Expected y with one target a row of X, in one dimension.")
    if isinstance(y, np.ndarray) and y.dtype.kind in "biuf":
        return y
    if numeric and str(getattr(y, "dtype", "")).lower().startswith(("<u", ">u", "|s", "str", "utf8", "large_string")):
        raise TypeError("Expected y to be numbers, got text: convert it. Nothing was spent.")
    values = np.empty(n_rows, dtype=object)
    for position, value in enumerate(y.tolist() if isinstance(y, np.ndarray) else y):
        values[position] = value
    return values


def as_numbers(values: np.ndarray) -> np.ndarray:
    """Values as floats, NaN for what is no number."""
    with QUIET, np.errstate(all="ignore"):
        if values.dtype != object:
            return np.asarray(values, dtype=np.float64)
        return np.array([_number(value) for value in values])


def _number(value: Any) -> float:
    try:
        return float(value) if isinstance(value, numbers.Real | np.number | np.bool_) else np.nan
    except Exception:  # beyond all floats, say
        return np.nan


def positions_of(values: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Position of each value in the classes; NaN for values that are none of them."""
    known = {label: float(position) for position, label in enumerate(classes.tolist())}

    def position(value: Any) -> float:
        try:
            return known.get(value, np.nan)
        except Exception:  # not hashable, or of a type that refuses to be compared
            return np.nan

    return np.array([position(value) for value in values.tolist()], dtype=np.float64)
