"""Models as JSON files: readable by anyone, and nothing in them is ever executed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from userdp import estimators
from userdp.linear_model import FORMAT, LinearModel
from userdp.privacy.statement import Statement
from userdp.solvers.problem import Result
from userdp.whole_files import whole_file

ESTIMATORS = {
    name: getattr(estimators, name)
    for name in ("LogisticRegression", "LinearSVC", "LinearRegression", "HuberRegressor", "QuantileRegressor")
}
_LARGEST = 2**30  # bytes of a model file


def save_model(model: LinearModel, path: str | os.PathLike[str]) -> Path:
    """Write a fitted estimator as JSON, whole or not at all. Everything in the file may be shown to anyone."""
    if not isinstance(model, LinearModel):
        raise TypeError(f"Expected a fitted userdp estimator, got {type(model).__name__}.")
    return write_whole(path, json.dumps(model.to_dict(), indent=1, allow_nan=False, default=_no_json) + "\n")


def load_model(path: str | os.PathLike[str]) -> LinearModel:
    """The estimator that was saved at `path`, fitted; ledger and engine are not kept."""
    try:
        if os.path.getsize(path) > _LARGEST:
            raise ValueError(f"Expected a userdp model at {path}, it is too large to be one.")
        record = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise FileNotFoundError(f"Expected a model file at {path}: {error.strerror}.") from None
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError):
        raise ValueError(f"Expected a userdp model at {path}, it is not JSON or is damaged: save it again.") from None
    return model_of(record, str(path))


def model_of(record: Any, where: str = "the record") -> LinearModel:
    """The fitted estimator that `to_dict` made this record of."""
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise ValueError(f'Expected {where} to be a model of format "{FORMAT}", it is something else.')
    try:
        return _model(record)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ValueError(
            f"Expected {where} to be a whole userdp model, it is damaged ({type(error).__name__}: {error}): save it "
            "again."
        ) from None


def _model(record: dict[str, Any]) -> LinearModel:
    parameters = dict(record["parameters"])
    for name in ("target_range", "classes"):
        if parameters.get(name) is not None:
            parameters[name] = tuple(parameters[name])
    model: LinearModel = ESTIMATORS[record["estimator"]](**parameters)
    n_features = record["n_features"]
    coef, intercept = np.array(record["coef"], dtype=np.float64), np.array(record["intercept"], dtype=np.float64)
    classes = None if record["classes"] is None else np.array(record["classes"])
    outputs = 1 if classes is None or len(classes) == 2 else len(classes)
    if coef.shape != (outputs, n_features) or intercept.shape != (outputs,):
        raise ValueError(f"{outputs} x {n_features} weights expected")
    if not (np.isfinite(coef).all() and np.isfinite(intercept).all()):
        raise ValueError("weights that are not finite")
    if (classes is not None) != model._classifies or (
        classes is not None and not 2 <= len(np.unique(classes)) == len(classes)
    ):
        raise ValueError("classes do not fit the estimator")
    model.n_features_in_ = n_features
    if record["features"] is not None:
        if len(record["features"]) != n_features:
            raise ValueError("one name a feature expected")
        model.feature_names_in_ = np.asarray([str(name) for name in record["features"]], dtype=object)
    if classes is None:
        model.coef_, model.intercept_ = coef[0], float(intercept[0])
        model._declare(None)
    else:
        model.coef_, model.intercept_, model.classes_ = coef, intercept, classes
    model.privacy_ = Statement.from_dict(record["privacy"])
    model.result_ = Result(
        weights=np.column_stack([coef, intercept]).ravel(),
        halted=bool(record["halted"]),
        message=str(record["message"]),
        n_gradients=int(record["n_gradients"]),
        bound=float(record["bound"]),
        phases=tuple({str(k): float(v) for k, v in phase.items()} for phase in record["phases"]),
        solver=str(record["solver"]),
        mode=str(record["mode"]),
        privacy=model.privacy_,
    )
    model.halted_, model.n_gradients_ = model.result_.halted, model.result_.n_gradients
    model.solver_, model.created_ = model.result_.solver, str(record["created"])
    return model


def write_whole(path: str | os.PathLike[str], text: str) -> Path:
    """Write a text file whole or not at all."""
    with whole_file(path) as new:
        new.write_text(text, encoding="utf-8")
    return Path(path)


def _no_json(value: Any) -> Any:
    raise TypeError(
        f"Expected parameters and classes that JSON knows (numbers, text, true, false), got {type(value).__name__}."
    )
