"""Plain estimators of scikit-learn that predict what private ones do: for ONNX, skops and PMML."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn import linear_model, svm
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from sklearn.utils.validation import check_is_fitted

from userdp.models import estimators
from userdp.models.pipelines import check_steps
from userdp.models.scaling import PrivateStandardScaler, PublicScaler, public_range


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
    convert = _CONVERT.get(type(model))
    if convert is None:
        if type(model).__module__.startswith("sklearn."):
            return model
        raise TypeError(f"Expected a fitted userdp estimator, scaler or pipeline, got {type(model).__name__}.")
    check_is_fitted(model)
    return _with(convert(model), **{name: getattr(model, name) for name in _SHAPE if hasattr(model, name)})


_SHAPE = ("n_features_in_", "feature_names_in_")


def _with(estimator: Any, **fitted: Any) -> Any:
    first = estimator.steps[0][1] if isinstance(estimator, Pipeline) else estimator
    for name, value in fitted.items():
        setattr(first, name, value)
    return estimator


def _fitted(estimator: Any, model: Any, **more: Any) -> Any:
    return _with(estimator, coef_=np.array(model.coef_), intercept_=np.array(model.intercept_)[()], n_iter_=1, **more)


def _classifier(kind: Callable[[], Any]) -> Callable[[Any], Any]:
    return lambda model: _fitted(kind(), model, classes_=model.classes_)


def _poisson(model: Any) -> Any:
    made = linear_model.PoissonRegressor()
    return _fitted(made, model, _base_loss=made._get_loss())


def _cut_off(middle: np.ndarray, half: np.ndarray) -> Any:
    """Ranges to [-1, 1], cut off beyond."""
    low, high = middle - half, middle + half
    ends = {"data_min_": low, "data_max_": high, "data_range_": high - low, "n_samples_seen_": 1}
    scaler = MinMaxScaler(feature_range=(-1, 1), clip=True)
    return _with(scaler, scale_=1 / half, min_=-middle / half, n_features_in_=len(half), **ends)


def _standardised(model: PrivateStandardScaler) -> Pipeline:
    """Cut off at the public ranges, then mean 0 and scale 1: two steps."""
    middle, half = public_range(model.low, model.high, model.n_features_in_)
    mean, scale = (model.mean_ - middle) / half, model.scale_ / half
    last = _with(StandardScaler(), mean_=mean, scale_=scale, var_=scale**2, n_samples_seen_=1, n_features_in_=len(mean))
    return Pipeline([("range", _cut_off(middle, half)), ("scale", last)])


_CONVERT: dict[type, Callable[[Any], Any]] = {
    estimators.LogisticRegression: _classifier(linear_model.LogisticRegression),
    estimators.LinearSVC: _classifier(svm.LinearSVC),
    estimators.LinearRegression: lambda model: _fitted(linear_model.LinearRegression(), model),
    estimators.HuberRegressor: lambda model: _fitted(linear_model.HuberRegressor(), model, scale_=1.0),
    estimators.QuantileRegressor: lambda model: _fitted(linear_model.QuantileRegressor(quantile=model.quantile), model),
    estimators.PoissonRegressor: _poisson,
    PublicScaler: lambda model: _cut_off(model.middle_, model.half_),
    PrivateStandardScaler: _standardised,
}
