"""From what scikit-learn's users pass to rows, targets and owners: who owns which row, and the estimator's features."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import validate_data

from userdp.data.schema import collected, matrix

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


def read_rows(estimator: Any, X: Any, reset: bool = True, width: int | None = None) -> np.ndarray:
    """A matrix of numbers of an array or table; sets or checks the estimator's features by names and width only.

    Lists are read if their width is public: declared, or known from the fit.
    """
    X = collected(X)
    rows = matrix("X", X, width if reset else estimator.n_features_in_)
    validate_data(estimator, X if hasattr(X, "columns") else rows, skip_check_array=True, reset=reset)
    return rows


def read_targets(y: Any, n_rows: int) -> Any:
    """The column of targets, one a row."""
    if isinstance(y, np.ndarray) and y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if isinstance(y, str | bytes) or not hasattr(y, "__len__") or getattr(y, "ndim", 1) != 1 or len(y) != n_rows:
        raise ValueError("Expected y with one target a row of X, in one dimension.")
    return y
