"""Models as JSON files: readable by anyone, and nothing in them is ever executed."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np

from userdp.data.tables import whole_file
from userdp.models.estimators import ESTIMATORS, FORMAT, NOT_KEPT, LinearModel
from userdp.privacy.accounting import Budget
from userdp.privacy.guarantee import Statement
from userdp.solvers.base import Result

_LARGEST = 2**30  # bytes of a model file
_FACTS = ("created", "parameters", "rows_per_user", "loss", "loss_at_zero", "versions")


def save_model(model: LinearModel, path: str | os.PathLike[str]) -> Path:
    """Write a fitted estimator as JSON, whole or not at all. Everything in the file may be shown to anyone."""
    if not isinstance(model, LinearModel):
        raise TypeError(f"Expected a fitted userdp estimator, got {type(model).__name__}.")
    return write_whole(path, json.dumps(model.to_dict(), indent=1, allow_nan=False, default=_no_json) + "\n")


def load_model(path: str | os.PathLike[str]) -> LinearModel:
    """The estimator that was saved at `path`, fitted; ledger and engine are not kept."""
    try:
        if os.path.getsize(path) > _LARGEST:
            raise ValueError("too large to be a model")
        record = json.loads(Path(path).read_text(encoding="utf-8"), parse_constant=_no_constant)
    except OSError as error:
        raise FileNotFoundError(f"Expected a model file at {path}: {error.strerror}.") from None
    except (ValueError, RecursionError):
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
    _check_types(record)
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
    if (classes is not None) != model._classifies:
        raise ValueError("classes do not fit the estimator")
    if classes is not None and (len(classes) < 2 or np.unique(classes).tolist() != classes.tolist()):
        raise ValueError("classes that are not in order")
    model.n_features_in_ = n_features
    if record["features"] is not None:
        if len(record["features"]) != n_features:
            raise ValueError("one name per feature expected")
        model.feature_names_in_ = np.asarray([str(name) for name in record["features"]], dtype=object)
    if classes is None:
        model._declare(None)
    else:
        model.classes_ = classes
    model._keep_weights(coef, intercept)
    result = Result(
        weights=np.column_stack([coef, intercept]).ravel(),
        aborted=record["halted"],
        message=record["message"],
        n_gradients=record["n_gradients"],
        bound=record["bound"],
        phases=tuple({str(k): float(v) for k, v in phase.items()} for phase in record["phases"]),
        outside=tuple(str(words) for words in record.get("outside", ())),  # files of 0.1 have none
        solver=record["solver"],
        mode=record["mode"],
    )
    model._keep_result(result, Statement.from_dict(record["privacy"]), {name: record[name] for name in _FACTS})
    return model


_TYPES: dict[str, tuple[type, ...]] = {
    "created": (str,),
    "parameters": (dict,),
    "features": (list, NoneType),
    "n_features": (int,),
    "classes": (list, NoneType),
    "solver": (str,),
    "mode": (str,),
    "n_users": (int,),
    "rows_per_user": (int,),
    "n_gradients": (int,),
    "halted": (bool,),
    "message": (str,),
    "bound": (int, float),
    "loss": (str,),
    "loss_at_zero": (int, float),
    "phases": (list,),
    "privacy": (dict,),
    "versions": (dict,),
}


def _check_types(record: dict[str, Any]) -> None:
    """Refuse what `to_dict` would not have made: what is said of privacy above all."""
    for name, kinds in _TYPES.items():
        if type(record[name]) not in kinds:
            raise ValueError(f"{name} is {type(record[name]).__name__}")
    if record["n_features"] < 1 or not all(math.isfinite(record[name]) for name in ("bound", "loss_at_zero")):
        raise ValueError("numbers out of range")
    if set(record["parameters"]) & set(NOT_KEPT):
        raise ValueError("parameters that no model keeps")
    privacy = record["privacy"]
    Budget(privacy["epsilon"], privacy["delta"])
    seed = privacy["insecure_seed"]
    if privacy["unit"] not in ("user", "row") or privacy["private"] is not (seed is None):
        raise ValueError("privacy that contradicts itself")
    if not (type(privacy["n_users"]) is int and type(privacy["warning"]) is str):
        raise ValueError("privacy of wrong types")


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def write_whole(path: str | os.PathLike[str], text: str) -> Path:
    """Write a text file whole or not at all."""
    with whole_file(path) as new:
        new.write_text(text, encoding="utf-8")
    return Path(path)


def _no_json(value: Any) -> Any:
    raise TypeError(
        f"Expected parameters and classes that JSON knows (numbers, text, true, false), got {type(value).__name__}."
    )
