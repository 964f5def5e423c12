"""Linear models with the interface of scikit-learn, private for whole users: `fit(X, y, groups=user_ids)`.

>>> import numpy as np
>>> rng = np.random.default_rng(0)
>>> users, X = np.repeat(np.arange(2000), 10), rng.uniform(-1, 1, (20_000, 2))
>>> y = X[:, 0] > X[:, 1] + rng.normal(0, 0.3, 20_000)
>>> model = LogisticRegression(epsilon=2.0, max_rows_per_user=10).fit(X, y, groups=users)
>>> bool(model.score(X, y) > 0.85), model.aborted_
(True, False)
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np
from scipy.special import log_softmax, softmax
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets

from userdp import losses
from userdp.data.schema import is_boolean, label_set, numbers, positions
from userdp.losses import Loss
from userdp.models.base import LinearModel


@dataclass(eq=False, repr=False, kw_only=True)
class _Classifier(ClassifierMixin, LinearModel):
    """Classes are public: declared, or the two values of a target whose type is boolean."""

    classes: Sequence[Any] | None = None

    def decision_function(self, X: Any) -> np.ndarray:
        """Predictions before they become classes: one number a row for two classes, else one a class."""
        predictions = self._predictions(X)
        return predictions[:, 0] if predictions.shape[1] == 1 else predictions

    def predict(self, X: Any) -> np.ndarray:
        """The likeliest class of each row."""
        scores = self.decision_function(X)
        chosen = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
        return np.asarray(self.classes_[chosen])

    def _declare(self, y: Any) -> None:
        declared = [False, True] if self.classes is None and is_boolean(y) else self.classes
        if declared is not None:
            self.classes_ = label_set(declared)
        elif self.unprotected_checks:
            self.classes_ = np.empty(0)
        else:
            raise ValueError(
                "Expected classes, all labels that there can be, such as classes=[0, 1]: labels are not read off the "
                "data, because that would tell of people who have rare ones. Nothing was spent."
            )

    def _coded(self, y: Any) -> np.ndarray:
        """Position of each label in the classes; NaN for labels that are none of them."""
        if not len(self.classes_):
            labels = np.asarray(y.tolist())
            check_classification_targets(labels)
            self.classes_ = np.unique(labels)
            if len(self.classes_) < 2:
                raise ValueError("Expected labels of at least 2 classes, got one class only.")
        codes = positions("y", y, self.classes_.tolist())
        if self.unprotected_checks and np.isnan(codes).any():
            raise ValueError(f"Expected labels among the classes {self.classes_.tolist()}, got others too.")
        return codes

    def _keep(self, coef: np.ndarray, intercept: np.ndarray) -> None:
        self.coef_, self.intercept_ = coef, intercept

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True  # noise costs accuracy where rows are few
        return tags


_T = TypeVar("_T", bound=type)


def _documented(cls: _T) -> _T:
    """Append what all estimators fraction to the class's help."""
    shared = inspect.cleandoc(LinearModel.__doc__ or "").partition("\n\n")[2]
    cls.__doc__ = f"{inspect.cleandoc(cls.__doc__ or '')}\n\nParameters of all estimators:\n\n{shared}\n"
    return cls


@_documented
@dataclass(eq=False, repr=False, kw_only=True)
class LogisticRegression(_Classifier):
    """Logistic regression for two or more classes, private for whole users.

    classes: all labels there can be; needed unless the target's type is boolean.

    After `fit`: coef_, intercept_, classes_; privacy_ (what was guaranteed and spent), aborted_, n_gradients_, solver_.
    """

    def _loss(self) -> Loss:
        return losses.logistic if len(self.classes_) == 2 else losses.multinomial(len(self.classes_))

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probability of each class."""
        return np.asarray(softmax(self._scores(X), axis=1))

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Logarithm of the probability of each class."""
        return np.asarray(log_softmax(self._scores(X), axis=1))

    def _scores(self, X: Any) -> np.ndarray:
        scores = self.decision_function(X)
        return scores if scores.ndim == 2 else np.column_stack([np.zeros_like(scores), scores])


@_documented
@dataclass(eq=False, repr=False, kw_only=True)
class LinearSVC(_Classifier):
    """Linear support vector machine for two classes, private for whole users.

    classes: both labels; needed unless the target's type is boolean.
    loss: "squared_hinge", or "hinge", which has a kink and therefore takes more noise.

    After `fit`: coef_, intercept_, classes_; privacy_ (what was guaranteed and spent), aborted_, n_gradients_, solver_.
    """

    loss: str = "squared_hinge"

    def _loss(self) -> Loss:
        if self.loss not in ("squared_hinge", "hinge"):
            raise ValueError(f'Expected loss={self.loss!r} to be "squared_hinge" or "hinge".')
        if len(self.classes_) != 2:
            raise ValueError(
                f"Only binary classification is supported: expected 2 classes, got {len(self.classes_)}; use "
                "LogisticRegression."
            )
        return losses.loss(self.loss)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags


@dataclass(eq=False, repr=False, kw_only=True)
class _Regressor(RegressorMixin, LinearModel):
    """Targets are cut off at the public range and scaled to [-1, 1], where the loss is applied."""

    _classifies: ClassVar[bool] = False

    target_range: tuple[float, float] | None = None

    def predict(self, X: Any) -> np.ndarray:
        """The prediction for each row."""
        return self._predictions(X)[:, 0]

    def _declare(self, y: Any) -> None:
        if self.target_range is not None:
            try:
                low, high = map(float, self.target_range)
            except (TypeError, ValueError):
                low = high = math.nan
            if not (low < high and math.isfinite(high - low)):
                raise ValueError(f"Expected target_range={self.target_range!r} to be two numbers, lowest < highest.")
            self.target_range_: tuple[float, float] | None = (low, high)
        elif self.unprotected_checks:
            self.target_range_ = None
        else:
            raise ValueError(
                "Expected target_range=(lowest, highest): a public range of targets, from what they mean and not from "
                "the data; those beyond are cut off. Nothing was spent."
            )

    def _coded(self, y: Any) -> np.ndarray:
        y = numbers("y", y).astype(np.float64, copy=False)
        if self.target_range_ is None:
            self.target_range_ = (float(y.min()), float(y.max()) + (y.min() == y.max()))
        coded: np.ndarray = (np.clip(y, *self.target_range_) - self._middle) / self._half
        return coded

    @property
    def _middle(self) -> float:
        """What is taken off targets: the middle of their range, or 0 without an intercept."""
        assert self.target_range_ is not None
        return self.target_range_[0] / 2 + self.target_range_[1] / 2 if self.fit_intercept else 0.0

    @property
    def _half(self) -> float:
        """What targets are divided by, so that they are in [-1, 1]."""
        assert self.target_range_ is not None
        return max(abs(end - self._middle) for end in self.target_range_)

    def _radius(self) -> float:
        return super()._radius() if self.domain_radius is None else self.domain_radius / self._half

    def _keep(self, coef: np.ndarray, intercept: np.ndarray) -> None:
        self.coef_ = self._half * coef[0]
        self.intercept_ = float(self._half * intercept[0] + self._middle)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # noise costs accuracy where rows are few
        return tags


@_documented
@dataclass(eq=False, repr=False, kw_only=True)
class LinearRegression(_Regressor):
    """Least squares, private for whole users.

    target_range: public (lowest, highest) target; those beyond are cut off.

    After `fit`: coef_, intercept_; privacy_ (what was guaranteed and spent), aborted_, n_gradients_, solver_.
    """

    def _loss(self) -> Loss:
        return losses.squared


@_documented
@dataclass(eq=False, repr=False, kw_only=True)
class HuberRegressor(_Regressor):
    """Regression that large errors do not dominate, private for whole users.

    target_range: public (lowest, highest) target; those beyond are cut off.
    threshold: the error, in units of the target, from which on it counts linearly; None for a tenth of the range.

    After `fit`: coef_, intercept_; privacy_ (what was guaranteed and spent), aborted_, n_gradients_, solver_.
    """

    threshold: float | None = None

    def _loss(self) -> Loss:
        return losses.huber(0.2 if self.threshold is None else self.threshold / self._half)


@_documented
@dataclass(eq=False, repr=False, kw_only=True)
class QuantileRegressor(_Regressor):
    """Regression of a quantile, the median by default, private for whole users.

    target_range: public (lowest, highest) target; those beyond are cut off.
    quantile: which quantile of the target, given the features, is predicted.

    After `fit`: coef_, intercept_; privacy_ (what was guaranteed and spent), aborted_, n_gradients_, solver_.
    """

    quantile: float = 0.5

    def _loss(self) -> Loss:
        return losses.quantile(self.quantile)
