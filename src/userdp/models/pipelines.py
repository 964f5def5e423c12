"""Pipelines whose steps learn nothing about users but privately.

What a step before a private model learns from the data (means, categories, components) is outside of the guarantee.
Known are the transformers that work row by row with public parameters alone, and those of this package.

Steps that learn nothing need a fit all the same, for the number of features and their names. In a search it is on one
blank row of the declared types: zeros, empty text, or the first of the declared categories; and steps are applied so
that nobody's rows fail for anybody else.

>>> from sklearn.preprocessing import PolynomialFeatures, StandardScaler
>>> from userdp import LinearRegression, PublicScaler
>>> make_pipeline(PublicScaler(0, 10), PolynomialFeatures(2), LinearRegression(target_range=(0, 1))).steps[1][0]
'polynomialfeatures'
>>> learns(StandardScaler())
'StandardScaler'
>>> X, steps = np.array([[1.0, 2.0], [np.nan, 0.0]]), Pipeline([("products", PolynomialFeatures(2))])
>>> transformed(steps, X, np.array([7, 8]), fit_on_nobody(steps, X)).tolist()
[[1.0, 1.0, 2.0, 1.0, 2.0, 4.0], [nan, nan, nan, nan, nan, nan]]
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.pipeline import Pipeline
from sklearn.pipeline import make_pipeline as any_pipeline

from userdp.data.schema import NUMBER, declared
from userdp.data.sparse import is_sparse
from userdp.evaluation.row_losses import made_apart, taken
from userdp.privacy.curator import WARNINGS_OFF

# Transformers of scikit-learn that learn nothing, by their names: those that nobody uses are not loaded.
STATELESS = {
    *("FunctionTransformer", "Normalizer", "Binarizer", "PolynomialFeatures", "HashingVectorizer", "FeatureHasher"),
}
_INSTEAD = {
    "StandardScaler": "PublicScaler(low, high) or PrivateStandardScaler",
    "MinMaxScaler": "PublicScaler(low, high)",
    "SimpleImputer": 'SimpleImputer(strategy="constant", fill_value=0)',
    "OneHotEncoder": "OneHotEncoder(categories=[[...], ...]) with public categories, none of them merged by counts",
    "OrdinalEncoder": "OrdinalEncoder(categories=[[...], ...]) with public categories, none of them merged by counts",
    "TfidfVectorizer": "HashingVectorizer",
    "CountVectorizer": "HashingVectorizer",
}


def learns(step: Any) -> str:
    """What kind of step it is that learns from the data without privacy, "" if it does not."""
    if step is None or isinstance(step, str) or type(step).__module__.startswith("userdp."):
        return ""
    if isinstance(step, Pipeline):
        return next(filter(None, (learns(one) for _, one in step.steps)), "")
    name = type(step).__name__
    if not type(step).__module__.startswith("sklearn."):
        return name if hasattr(step, "transform") else ""
    if name in STATELESS or _is_public(step) or not hasattr(step, "transform"):
        return ""
    return name


def _is_public(step: Any) -> bool:
    """Whether parameters say all that a step of scikit-learn would else learn."""
    name = type(step).__name__
    if name == "SimpleImputer":
        return bool(step.strategy == "constant" and step.fill_value is not None and not step.add_indicator)
    if name in ("OneHotEncoder", "OrdinalEncoder"):
        counted = step.min_frequency is not None or step.max_categories is not None  # which merges rare categories
        return not isinstance(step.categories, str) and not counted
    return False


def check_steps(steps: list[Any]) -> None:
    """Refuse steps that learn from the data without privacy."""
    for step in steps:
        found = learns(step)
        if found:
            raise ValueError(
                f"Expected steps that learn nothing from the data, or privately; {found} learns: use "
                f"{_INSTEAD.get(found, 'a step that works row by row with public parameters')}. Nothing was spent."
            )


def make_pipeline(*steps: Any, memory: Any = None, verbose: bool = False) -> Pipeline:
    """scikit-learn's `make_pipeline`, which refuses steps that learn from the data without privacy.

    `fit` of the pipeline takes groups if metadata routing is on: `sklearn.set_config(enable_metadata_routing=True)`.
    """
    check_steps(list(steps[:-1]))
    return any_pipeline(*steps, memory=memory, verbose=verbose)


def fit_on_nobody(steps: Pipeline, X: Any) -> Any:
    """Fit steps that learn nothing on a blank row of X's types; gives what they make of it.

    Guarantee: of X only its kind, types, names and width are used: errors too are public.
    """
    row = _blank(X)
    with WARNINGS_OFF, np.errstate(all="ignore"):
        for step in _plain_steps(steps):
            try:
                known = _known(step, row)
                row = _finite(step.fit(known).transform(known))
            except Exception as error:  # of a row that is nobody's
                raise ValueError(
                    f"Expected {type(step).__name__} to take a blank row of the types of X (zeros, empty text, or the "
                    f"first of its categories): {error} Pass X as an array or table whose types are declared. Nothing "
                    "was spent."
                ) from None
    if not (is_sparse(row) or isinstance(row, np.ndarray) or hasattr(row, "iloc")):
        raise TypeError(
            f"Expected steps that make arrays, sparse matrices or tables of pandas, got {type(row).__name__}. Nothing "
            "was spent."
        )
    return row


def transformed(steps: Pipeline, X: Any, own: np.ndarray, made: Any) -> Any:
    """What fitted steps make of all rows; all rows of a user are missing values if steps fail on any of them.

    own: the user who owns each row; made: what they make of a blank row, which says what kind of result is none.

    Guarantee: nothing is raised, and a user's rows are a function of its own rows, provided that steps make of a row,
    or fail on it, what that row alone says.
    """

    def attempt(rows: np.ndarray) -> Any:
        try:
            found = steps.transform(taken(X, rows))
            return found if _alike(found, made, len(rows)) else None
        except Exception:  # which would show values
            return None

    with WARNINGS_OFF, np.errstate(all="ignore"):
        found, sound = made_apart(attempt, own)
        if found is None:  # nobody's, or steps that do not work row by row
            found, sound = taken(made, np.zeros(len(own), dtype=np.int64)), np.zeros_like(sound)
        return _blanked(found, sound)


def _blanked(found: Any, sound: np.ndarray) -> Any:
    """Missing values in rows that are not sound, of a type that does not show if there are any."""
    place = np.where(sound, np.arange(len(sound)), len(sound))
    if hasattr(found, "iloc"):
        return found.reset_index(drop=True).reindex([*place, len(sound)]).iloc[:-1]
    if declared(found) == NUMBER and found.dtype not in (np.float32, np.float64):
        found = found.astype(np.float64)
    if sound.all():
        return found
    if is_sparse(found):
        missing = sparse.csr_matrix(([np.nan], [0], [0, 1]), shape=(1, found.shape[1]), dtype=found.dtype)
        return sparse.vstack([found, missing], format="csr")[place]
    found = np.array(found)
    found[~sound] = np.nan
    return found


def _alike(found: Any, made: Any, n_rows: int) -> bool:
    """Whether it is so many rows of the same kind and width."""
    if found.shape != (n_rows, *made.shape[1:]) or is_sparse(found) != is_sparse(made):
        return False
    if hasattr(made, "iloc"):
        return hasattr(found, "iloc") and list(found.columns) == list(made.columns)
    return not hasattr(found, "iloc") and declared(found) == declared(made)


def _plain_steps(steps: Pipeline) -> Iterator[Any]:
    for _, step in steps.steps:
        if isinstance(step, Pipeline):
            yield from _plain_steps(step)
        elif step is not None and step != "passthrough":
            yield step


def _blank(X: Any) -> Any:
    """A row of X's kind and types that is nobody's."""
    if is_sparse(X):
        return type(X)((1, X.shape[1]), dtype=X.dtype)
    if isinstance(X, np.ndarray):
        return np.zeros((1, *X.shape[1:]), X.dtype)
    if hasattr(X, "iloc"):
        return _blank_of_pandas(X)
    if hasattr(X, "get_columns"):  # of polars
        return X.clear(1).fill_null(0)
    return [None]  # of lists, whose cells have no types


def _blank_of_pandas(X: Any) -> Any:
    import pandas as pd  # which there is, as X is one of its tables

    def cell(kind: Any) -> Any:
        kind = "category" if isinstance(kind, pd.CategoricalDtype) else kind  # whose levels may be users'
        try:
            return pd.Series([0]).astype(kind)
        except (TypeError, ValueError):
            return pd.Series([None], dtype=kind)

    if X.ndim == 1:
        return cell(X.dtype)
    table = pd.concat([cell(kind) for kind in X.dtypes], axis=1)
    table.columns = X.columns
    return table


def _known(step: Any, row: Any) -> Any:
    """A blank row that a step takes: of encoders the first of each column's categories, of hashers no words."""
    kind = type(step).__name__
    if kind == "HashingVectorizer":
        return [""]
    if kind == "FeatureHasher":
        return [{} if step.input_type == "dict" else []]
    if kind not in ("OneHotEncoder", "OrdinalEncoder"):
        return row
    first = [levels[0] for levels in step.categories]
    if len(first) != row.shape[1]:
        raise ValueError(f"categories of {row.shape[1]} columns are expected, there are those of {len(first)}.")
    if hasattr(row, "iloc"):
        kinds = [object if str(kind) == "category" else kind for kind in row.dtypes]
        return type(row)([first], columns=row.columns).astype(dict(zip(row.columns, kinds, strict=True)))
    return np.array([first], None if row.dtype.kind in "US" else row.dtype)


def _finite(row: Any) -> Any:
    """Zeros where a blank row makes no numbers, of logarithms say: what comes next may refuse them."""
    numeric = isinstance(row, np.ndarray) and row.dtype.kind == "f"
    return np.nan_to_num(row, posinf=0.0, neginf=0.0) if numeric else row
