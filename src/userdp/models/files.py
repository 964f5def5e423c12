"""Models as JSON files, which are never executed, and as plain estimators of scikit-learn: for ONNX, skops and PMML."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np
from sklearn import linear_model, svm
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import (
    Binarizer,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    StandardScaler,
)
from sklearn.utils.validation import check_is_fitted

from userdp.data.columns import Columns
from userdp.data.source import Source
from userdp.data.tables import whole_file
from userdp.evaluation.scores import Scores
from userdp.models import estimators
from userdp.models.linear import FORMAT, NOT_KEPT, LinearModel, as_json
from userdp.models.pipelines import check_steps
from userdp.models.scaling import PrivateStandardScaler, PublicScaler, public_range
from userdp.models.sklearn_compat import OF_SOLVER, mode_now
from userdp.models.targets import Classes
from userdp.privacy.accounting import REPLACE_ONE, Budget
from userdp.privacy.statement import AffectedUsers, Statement
from userdp.solvers.planner import Solver
from userdp.solvers.solver import Result, Uncertainty

_LARGEST = 2**30  # bytes of a model file
PIPELINE_FORMAT = "userdp pipeline 1"
_LEARNED = ("mean_", "scale_")
_STEPS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        *(PublicScaler, PrivateStandardScaler, Normalizer, Binarizer, PolynomialFeatures, HashingVectorizer),
        *(SimpleImputer, OneHotEncoder, OrdinalEncoder),
    )
}
_FACTS = ("created", "parameters", "rows_per_user", "loss", "loss_at_zero", "versions")


def save_model(model: LinearModel | Pipeline, path: str | os.PathLike[str]) -> Path:
    """Write a fitted estimator, or a pipeline that ends in one, as JSON, whole or not at all.

    Everything in the file may be shown to anyone. Steps of a pipeline are those that learn nothing from the data, given
    by their parameters alone, and the scalers of userdp. Of a `PrivateSearchCV` it is the chosen model.
    """
    if hasattr(model, "privacy_"):  # of a search too, unless its choice is not private, as scikit-learn's is not
        model = getattr(model, "best_estimator_", model)
    if isinstance(model, Pipeline):
        record = pipeline_to_dict(model)
    elif isinstance(model, LinearModel):
        record = model.to_dict()
    else:
        raise TypeError(f"Expected a fitted userdp estimator, or a pipeline of one, got {type(model).__name__}.")
    text = json.dumps(record, indent=1, allow_nan=False, default=_no_json)
    with whole_file(path) as new:
        new.write_text(text + "\n", encoding="utf-8")
    return Path(path)


def load_model(path: str | os.PathLike[str]) -> Any:
    """The estimator, or pipeline, that was saved at `path`, fitted; ledger and execution are not kept."""
    record = _record_at(path)
    is_pipeline = isinstance(record, dict) and record.get("format") == PIPELINE_FORMAT
    return (pipeline_of if is_pipeline else model_of)(record, str(path))


def load_estimator(path: str | os.PathLike[str]) -> LinearModel:
    """The estimator that was saved at `path`, and no pipeline."""
    return model_of(_record_at(path), str(path))


def _record_at(path: str | os.PathLike[str]) -> Any:
    try:
        if os.path.getsize(path) > _LARGEST:
            raise ValueError("too large to be a model")
        return json.loads(Path(path).read_text(encoding="utf-8"), parse_constant=_no_constant)
    except OSError as error:
        raise FileNotFoundError(f"Expected a model file at {path}: {error.strerror}.") from None
    except (ValueError, RecursionError):
        raise ValueError(f"Expected a userdp model at {path}, it is not JSON or is damaged: save it again.") from None


def model_of(record: Any, where: str = "the record") -> LinearModel:
    """The fitted estimator that `to_dict` made this record of."""
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise ValueError(f'Expected {where} to be a model of format "{FORMAT}", it is something else.')
    with _damaged(where):
        return _model(record)


@contextlib.contextmanager
def _damaged(where: str) -> Iterator[None]:
    """Whatever goes wrong with a record is said in one way."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ValueError(
            f"Expected {where} to be a whole userdp model, it is damaged ({type(error).__name__}: {error}): save it "
            "again."
        ) from None


def pipeline_to_dict(model: Pipeline) -> dict[str, Any]:
    """A fitted pipeline for JSON: steps that learn nothing by their parameters, userdp's scalers, and the model."""
    *before, (last_name, last) = model.steps
    check_steps([step for _, step in before])
    if not isinstance(last, LinearModel):
        raise TypeError(f"Expected a pipeline that ends in a userdp estimator, got {type(last).__name__}.")
    steps = [{"name": name} | _step_to_dict(step) for name, step in before if step not in (None, "passthrough")]
    return {"format": PIPELINE_FORMAT, "steps": steps, "name": last_name, "model": last.to_dict()}


def pipeline_of(record: Any, where: str = "the record") -> Pipeline:
    """The fitted pipeline that `pipeline_to_dict` made this record of."""
    with _damaged(where):
        steps = [(str(step["name"]), _step_of(step)) for step in record["steps"]]
        return Pipeline([*steps, (str(record["name"]), model_of(record["model"], where))])


def _step_to_dict(step: Any) -> dict[str, Any]:
    kind = type(step).__name__
    if kind not in _STEPS or type(step) is not _STEPS[kind]:
        raise TypeError(
            f"Expected steps of a pipeline that a file can hold ({', '.join(sorted(_STEPS))}), got {kind}: apply it "
            "before, or pickle the pipeline."
        )
    check_is_fitted(step)
    usual = type(step)().get_params(deep=False)
    given = {k: v for k, v in step.get_params(deep=False).items() if k not in NOT_KEPT and not _same(v, usual[k])}
    fitted = {name: getattr(step, name).tolist() for name in _LEARNED if hasattr(step, name)}
    names = getattr(step, "feature_names_in_", None)
    return {
        "kind": kind,
        "parameters": {name: as_json(value) for name, value in given.items()},
        "n_features": getattr(step, "n_features_in_", None),
        "features": None if names is None else [str(name) for name in names],
        "fitted": fitted,
        "privacy": step.privacy_.to_dict() if hasattr(step, "privacy_") else None,
        "source": asdict(step.source_) if hasattr(step, "source_") else None,
    }


def _step_of(record: dict[str, Any]) -> Any:
    """A step as it was: what learns nothing is fitted to a row of zeros, or of categories."""
    parameters, kind = dict(record["parameters"]), _STEPS[record["kind"]]
    if "categories" in parameters:
        parameters["categories"] = [np.array(some) for some in parameters["categories"]]
    if kind is PrivateStandardScaler:
        parameters.pop("inference", None)  # of earlier files, whose scalers could have intervals
    step = kind(**parameters)
    if kind is PrivateStandardScaler:
        step.n_features_in_ = int(record["n_features"])
        for name in _LEARNED:
            setattr(step, name, np.array(record["fitted"][name], dtype=np.float64).reshape(step.n_features_in_))
        step.privacy_ = Statement.from_dict(record["privacy"])
        step.source_ = Source(**(record.get("source") or {}))
    elif record["n_features"] is not None:
        categories = parameters.get("categories")
        row = np.zeros((1, int(record["n_features"])))
        step.fit(row if categories is None else np.array([[some[0] for some in categories]], dtype=object))
    if record["features"] is not None:
        step.feature_names_in_ = np.asarray([str(name) for name in record["features"]], dtype=object)
    return step


def _same(value: Any, usual: Any) -> bool:
    return bool(value is usual or (type(value) is type(usual) and np.ndim(value) == 0 and value == usual))


def _model(record: dict[str, Any]) -> LinearModel:
    _check_types(record)
    parameters = parameters_now(record["parameters"])
    for name in ("target_range", "classes"):
        if isinstance(parameters.get(name), list):
            parameters[name] = tuple(parameters[name])
    if isinstance(parameters.get("solver"), dict):
        parameters["solver"] = Solver(**parameters["solver"])
    if parameters.get("class_weight") is not None:
        parameters["class_weight"] = dict(parameters["class_weight"])
    if parameters.get("columns") is not None:
        parameters["columns"] = Columns.of(parameters["columns"])
    model: LinearModel = estimators.ESTIMATORS[record["estimator"]](**parameters)
    n_features = record["n_features"]
    coef, intercept = np.array(record["coef"], dtype=np.float64), np.array(record["intercept"], dtype=np.float64)
    classes = None if record["classes"] is None else np.array(record["classes"])
    outputs = 1 if classes is None or len(classes) == 2 else len(classes)
    _expect(coef.shape == (outputs, n_features) and intercept.shape == (outputs,), "weights of another shape")
    _expect(bool(np.isfinite(coef).all() and np.isfinite(intercept).all()), "weights that are not finite")
    _expect((classes is not None) == model._classifies, "classes do not fit the estimator")
    if classes is not None:
        _expect(len(classes) >= 2 and np.unique(classes).tolist() == classes.tolist(), "classes that are not in order")
    model.n_features_in_ = n_features
    if record["features"] is not None:
        _expect(len(record["features"]) == n_features, "one name per feature expected")
        model.feature_names_in_ = np.asarray([str(name) for name in record["features"]], dtype=object)
    if model.columns is not None:
        found = model.columns_ = Columns.of(record["columns"])
        _expect(not found.private and found.names == record["features"], "columns that are not those of the features")
    if classes is None:
        model._declare(None)
    else:
        model._keep_targets(Classes(classes))
    # What predictions stay within; files of 0.1 do not have it, but where it is declared.
    known = None if model._learns_range else getattr(model, "target_range_", None)
    ends = model.prediction_range_ = record.get("prediction_range", known)
    if ends is not None or model._learns_range:
        low, high = ends or (math.nan, math.nan)
        sound = classes is None and {type(low), type(high)} <= {int, float} and low < high
        _expect(sound, "a range of predictions expected")
        model.prediction_range_ = float(low), float(high)
    if hasattr(model, "target_range_"):
        model.target_range_ = model.prediction_range_
    model._keep_weights(coef, intercept)
    uncertainty = record.get("uncertainty")  # which files of 0.1 do not have
    if uncertainty is not None:
        _expect(outputs == 1, "covariances of several outputs")
        uncertainty = Uncertainty.from_dict(uncertainty, n_features + bool(model.fit_intercept))
    result = Result(
        weights=np.column_stack([coef, intercept]).ravel(),
        aborted=record["halted"],
        message=record["message"],
        n_gradients=record["n_gradients"],
        bound=record["bound"],
        phases=tuple({str(k): float(v) for k, v in phase.items()} for phase in record["phases"]),
        outside=tuple(str(words) for words in record.get("outside", ())),  # files of 0.1 have none
        solver=record["solver"],
        mode=mode_now(record["mode"]),
        uncertainty=uncertainty,
        affected_users=AffectedUsers.from_list(record["privacy"].get("affected_users")),  # files of 0.1 have none
    )
    facts = {name: record[name] for name in _FACTS}
    facts["parameters"] = parameters_now(record["parameters"])
    facts["source"] = asdict(Source(**record.get("source", {})))  # which files of 0.1 do not have
    scores = record.get("scores")  # which files of 0.1 do not have
    model.scores_ = None if scores is None else Scores.from_dict(scores)
    unresolved, notes = record.get("unresolved", {}), record.get("notes", [])  # which files of 0.1 do not have
    _expect({type(users) for users in unresolved.values()} <= {int, NoneType}, "unresolved columns expected")
    _expect({type(note) for note in notes} <= {str}, "notes expected")
    model._keep_result(result, Statement.from_dict(record["privacy"]), facts, dict(unresolved), notes)
    return model


def parameters_now(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of a model file as files hold them now: those of 0.1 have options of a solver one by one."""
    found = {name: value for name, value in parameters.items() if name not in OF_SOLVER}
    given = found.get("solver", {})
    options = dict(given) if isinstance(given, Mapping) else {"name": given}
    options |= {name: parameters[name] for name in OF_SOLVER if name in parameters}
    if "mode" in options:
        options["mode"] = mode_now(options["mode"])
    return found | {"solver": Solver(**options).as_json} if options else found


_TYPES: dict[tuple[type, ...], tuple[str, ...]] = {
    (str,): ("created", "solver", "mode", "message", "loss"),
    (int,): ("n_features", "n_users", "rows_per_user", "n_gradients"),
    (int, float): ("bound", "loss_at_zero"),
    (bool,): ("halted",),
    (list,): ("phases",),
    (list, NoneType): ("features", "classes"),
    (dict,): ("parameters", "privacy", "versions"),
}


def _check_types(record: dict[str, Any]) -> None:
    """Refuse what `to_dict` would not have made: what is said of privacy above all."""
    for kinds, names in _TYPES.items():
        for name in names:
            _expect(type(record[name]) in kinds, f"{name} is {type(record[name]).__name__}")
    finite = math.isfinite(record["bound"]) and math.isfinite(record["loss_at_zero"])
    _expect(record["n_features"] >= 1 and finite, "numbers out of range")
    _expect(not set(record["parameters"]) & set(NOT_KEPT), "parameters that no model keeps")
    privacy = record["privacy"]
    Budget(privacy["epsilon"], privacy["delta"], privacy.get("relation", REPLACE_ONE))
    _expect(privacy["unit"] in ("user", "row"), "an unknown privacy unit")
    _expect(privacy["private"] is (privacy["insecure_seed"] is None), "privacy that contradicts itself")
    _expect(type(privacy["n_users"]) is int and type(privacy["warning"]) is str, "privacy of wrong types")


def _expect(sound: bool, otherwise: str) -> None:
    if not sound:
        raise ValueError(otherwise)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _no_json(value: Any) -> Any:
    raise TypeError(
        f"Expected parameters and classes that JSON knows (numbers, text, true, false), got {type(value).__name__}."
    )


def to_sklearn(model: Any) -> Any:
    """A plain fitted estimator of scikit-learn that predicts the same: for ONNX, skops, PMML.

    Takes a fitted estimator or scaler of userdp, or a pipeline of them and of steps that learn nothing. Parameters of
    what comes out are scikit-learn's defaults: it says how to predict, not how it was learned. A plain regressor cannot
    cut off predictions: clip them to `prediction_range_`, as `predict` does here, where they may lie beyond.
    """
    if isinstance(model, Pipeline):
        check_steps([step for _, step in model.steps[:-1]])
        kept = (None, "passthrough")
        return Pipeline([(name, step if step in kept else to_sklearn(step)) for name, step in model.steps])
    if type(model).__module__.startswith("sklearn."):
        return model
    if type(model) not in (*_PLAIN, PublicScaler, PrivateStandardScaler):
        raise TypeError(f"Expected a fitted userdp estimator, scaler or pipeline, got {type(model).__name__}.")
    check_is_fitted(model)
    shape = {name: getattr(model, name) for name in ("n_features_in_", "feature_names_in_") if hasattr(model, name)}
    if isinstance(model, PublicScaler):
        return _with(_cut_off(model.middle_, model.half_), **shape)
    if isinstance(model, PrivateStandardScaler):  # cut off at the public ranges, then mean 0 and scale 1: two steps
        middle, half = public_range(model.low, model.high, model.n_features_in_)
        mean, scale = (model.mean_ - middle) / half, model.scale_ / half
        last = _with(StandardScaler(), mean_=mean, scale_=scale, var_=scale**2, n_samples_seen_=1)
        last.n_features_in_ = len(mean)
        return Pipeline([("range", _with(_cut_off(middle, half), **shape)), ("scale", last)])
    plain = _with(_PLAIN[type(model)](), coef_=np.array(model.coef_), intercept_=np.array(model.intercept_)[()])
    plain.n_iter_ = 1
    if model._classifies:
        plain.classes_ = model.classes_
    elif isinstance(model, estimators.HuberRegressor):
        plain.scale_ = 1.0
    elif isinstance(model, estimators.QuantileRegressor):
        plain.quantile = model.quantile
    elif isinstance(model, estimators.PoissonRegressor):
        plain._base_loss = plain._get_loss()
    return _with(plain, **shape)


def _with(made: Any, **fitted: Any) -> Any:
    for name, value in fitted.items():
        setattr(made, name, value)
    return made


def _cut_off(middle: np.ndarray, half: np.ndarray) -> Any:
    """Ranges to [-1, 1], cut off beyond."""
    low, high = middle - half, middle + half
    ends = {"data_min_": low, "data_max_": high, "data_range_": high - low, "n_samples_seen_": 1}
    scaler = MinMaxScaler(feature_range=(-1, 1), clip=True)
    return _with(scaler, scale_=1 / half, min_=-middle / half, n_features_in_=len(half), **ends)


_PLAIN: dict[type, Callable[[], Any]] = {
    estimators.LogisticRegression: linear_model.LogisticRegression,
    estimators.LinearSVC: svm.LinearSVC,
    estimators.LinearRegression: linear_model.LinearRegression,
    estimators.HuberRegressor: linear_model.HuberRegressor,
    estimators.QuantileRegressor: linear_model.QuantileRegressor,
    estimators.PoissonRegressor: linear_model.PoissonRegressor,
}
