"""Linear models with the interface of scikit-learn, private for whole users: `fit(X, y, groups=user_ids)`.

Which targets each takes and what it predicts; `linear` has all that they share.

>>> import numpy as np
>>> rng = np.random.default_rng(0)
>>> users, X = np.repeat(np.arange(2000), 10), rng.uniform(-1, 1, (20_000, 2))
>>> y = X[:, 0] > X[:, 1] + rng.normal(0, 0.3, 20_000)
>>> model = LogisticRegression(epsilon=2.0, max_rows_per_user=10).fit(X, y, groups=users)
>>> bool(model.score(X, y) > 0.85), model.aborted_
(True, False)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from scipy.special import log_softmax, softmax
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.metrics import d2_tweedie_score

from userdp import losses
from userdp.losses import Loss
from userdp.models.linear import LinearModel, documented_model
from userdp.models.targets import Classes, Counts, Range, Targets
from userdp.solvers.planner import Solver


@dataclass(eq=False, repr=False, kw_only=True)
class _Classifier(ClassifierMixin, LinearModel):
    """Classes are public: declared, or the two values of a target whose type is boolean."""

    _kind: ClassVar[type[Targets]] = Classes

    classes: Sequence[Any] | None = None
    class_weight: Mapping[Any, float] | None = None

    def decision_function(self, X: Any) -> np.ndarray:
        """Predictions before they become classes: one number per row for two classes, else one per class."""
        predictions = self._predictions(X)
        return predictions[:, 0] if predictions.shape[1] == 1 else predictions

    def predict(self, X: Any) -> np.ndarray:
        """The likeliest class of each row."""
        scores = self.decision_function(X)
        chosen = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
        return np.asarray(self.classes_[chosen])

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.class_weight is not None and not isinstance(self.class_weight, Mapping):
            raise ValueError(
                f"Expected class_weight={self.class_weight!r} to be public weights, {{label: weight}}: balancing them "
                "by the data would reveal users who have rare labels. If frequencies are public, declare 1 / "
                "frequency. Nothing was spent."
            )

    def _weighed(
        self, targets: np.ndarray, fractions: dict[str, np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray | None, Loss]:
        if self.class_weight is not None:
            assert isinstance(self._targets, Classes)
            own, self.largest_["class_weight"] = self._targets.weighed(targets, self.class_weight)
            fractions = {"class_weight": own} | fractions
        return super()._weighed(targets, fractions)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True  # noise costs accuracy where rows are few
        return tags


@documented_model()
@dataclass(eq=False, repr=False, kw_only=True)
class LogisticRegression(_Classifier):
    """Logistic regression for two or more classes, private for whole users."""

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


@documented_model(
    loss='"squared_hinge", or "hinge", for two classes, which is non-smooth and therefore takes more noise.',
)
@dataclass(eq=False, repr=False, kw_only=True)
class LinearSVC(_Classifier):
    """Linear support vector machine for two or more classes, private for whole users.

    Several classes are each separated from the rest, all in one problem that costs one budget.
    """

    loss: str = "squared_hinge"

    def _loss(self) -> Loss:
        if self.loss not in ("squared_hinge", "hinge"):
            raise ValueError(f'Expected loss={self.loss!r} to be "squared_hinge" or "hinge".')
        if len(self.classes_) == 2:
            return losses.loss(self.loss)
        if self.loss == "hinge":
            raise ValueError(
                f'Expected loss="squared_hinge" for {len(self.classes_)} classes: "hinge" is for two. Nothing was '
                "spent."
            )
        return losses.one_vs_rest(len(self.classes_))


def cut_off(predictions: np.ndarray, limits: tuple[float, float] | None) -> np.ndarray:
    """Predictions within limits, where there are any; NaN stays."""
    return predictions if limits is None else np.clip(predictions, *limits)


@dataclass(eq=False, repr=False, kw_only=True)
class _Regressor(RegressorMixin, LinearModel):
    """Targets are cut off at their range and scaled to [-1, 1], where the loss is applied; so are predictions.

    The range is public: declared, or released before the fit, as ranges of columns are.
    """

    _kind: ClassVar[type[Targets]] = Range
    _classifies: ClassVar[bool] = False
    _degree: ClassVar[int] = 2  # with which power of targets' units the loss grows

    target_range: tuple[float, float] | str | None = None

    def predict(self, X: Any) -> np.ndarray:
        """The prediction for each row, cut off at the range of targets."""
        return cut_off(self._predictions(X)[:, 0], getattr(self, "prediction_range_", None))

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if not self._learns_range:
            return
        refused = {
            "domain_radius": Solver.of(self.solver).domain_radius is not None,
            "l2": self._degree == 1 and self.l2 != 0,
        }
        refused["threshold"] = getattr(self, "threshold", None) is not None
        for name, given in refused.items():
            if given:
                raise ValueError(
                    f"Expected no {name} with target_range='private': it is planned with before the range is known. "
                    "Declare target_range=(lowest, highest), or leave it out. Nothing was spent."
                )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # noise costs accuracy where rows are few
        return tags


@documented_model()
@dataclass(eq=False, repr=False, kw_only=True)
class LinearRegression(_Regressor):
    """Least squares, private for whole users."""

    def _loss(self) -> Loss:
        return losses.squared


@documented_model(
    threshold="The error, in units of the target, from which on it counts linearly; None is a tenth of the range."
)
@dataclass(eq=False, repr=False, kw_only=True)
class HuberRegressor(_Regressor):
    """Regression that large errors do not dominate, private for whole users."""

    threshold: float | None = None

    def _loss(self) -> Loss:
        return losses.huber(0.2 if self.threshold is None else self.threshold / self._targets.half)


@documented_model(quantile="Which quantile of the target, given the features, is predicted.")
@dataclass(eq=False, repr=False, kw_only=True)
class QuantileRegressor(_Regressor):
    """Regression of a quantile, the median by default, private for whole users."""

    _degree: ClassVar[int] = 1

    quantile: float = 0.5

    def _loss(self) -> Loss:
        return losses.quantile(self.quantile)


@documented_model(
    max_count="The public largest count of a row; those beyond are cut off, and so are negative ones.",
    max_exposure="The public largest `exposure`, which is needed where `fit` gets them; those beyond are cut off.",
)
@dataclass(eq=False, repr=False, kw_only=True)
class PoissonRegressor(RegressorMixin, LinearModel):
    """Regression of counts by their logarithm, private for whole users.

    Expected counts are exp(X @ coef_ + intercept_), times the exposure. What is minimised is the Poisson deviance; up
    to the largest count: of predictions beyond max_count / max_exposure the exponential goes on as a line, so that no
    row's gradient exceeds `max_count` of rows.

    >>> rng = np.random.default_rng(0)
    >>> users, X = np.repeat(np.arange(2000), 5), rng.uniform(-1, 1, (10_000, 2))
    >>> y = rng.poisson(np.exp(X[:, 0]))
    >>> model = PoissonRegressor(epsilon=4.0, max_count=20, max_rows_per_user=5).fit(X, y, groups=users)
    >>> bool(abs(model.coef_[0] - 1) < 0.2)
    True
    """

    _kind: ClassVar[type[Targets]] = Counts
    _classifies: ClassVar[bool] = False
    __metadata_request__fit: ClassVar[dict[str, bool]] = {"groups": True, "exposure": True}

    max_count: float | None = None
    max_exposure: float | None = None

    def fit(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None, exposure: Any = None) -> Self:
        """Learn from rows X and counts y, where groups[i] is the user who owns row i.

        exposure[i] is how long, or how much, was counted in row i: in twice of it twice as many are expected. A row
        whose exposure is no number > 0 does not count. Otherwise as `fit` of other estimators.

        Guarantee: all that the fitted model holds is (epsilon, delta)-differentially private under replacement of
        one user's whole data, unless seeded, and but for what `unprotected_checks` reveals.
        """
        return self._fit_rows(X, y, groups, sample_weight=sample_weight, exposure=exposure)

    def predict(self, X: Any, exposure: Any = None) -> np.ndarray:
        """The expected count of each row, for an exposure of 1 unless given.

        Rates are cut off at max_count / max_exposure, beyond which the loss knows no larger ones.
        """
        with np.errstate(over="ignore"):
            rates = cut_off(np.exp(self._predictions(X)[:, 0]), getattr(self, "prediction_range_", None))
        return np.asarray(rates if exposure is None else rates * np.asarray(exposure, dtype=np.float64))

    def score(self, X: Any, y: Any, sample_weight: Any = None, exposure: Any = None) -> float:
        """Which fraction of the Poisson deviance is explained: 1 at best, 0 for a constant rate (D^2)."""
        rates, y = self.predict(X), np.asarray(y, dtype=np.float64)
        if exposure is not None:
            exposure = np.asarray(exposure, dtype=np.float64)
            sample_weight = exposure if sample_weight is None else exposure * np.asarray(sample_weight)
            y = y / exposure
        return float(d2_tweedie_score(y, rates, sample_weight=sample_weight, power=1))

    def _limits(self) -> tuple[float, float] | None:
        return 0.0, self._largest_rate

    def _weighed(
        self, targets: np.ndarray, fractions: dict[str, np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray | None, Loss]:
        if "exposure" not in fractions:
            return super()._weighed(targets, fractions)
        exposure = fractions["exposure"]
        rates = np.where(exposure > 0, np.minimum(targets / exposure, 1e30), 0.0)  # infinite ones would be left out
        loss = losses.poisson_of_exposure(self._largest_rate, self._targets.half)
        return rates, np.prod([*fractions.values()], axis=0), loss

    def _loss(self) -> Loss:
        return losses.poisson(self._largest_rate)

    @property
    def _largest_rate(self) -> float:
        return self._targets.ends[1] / (self.largest_.get("exposure") or 1.0)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        tags.regressor_tags.poor_score = True  # noise costs accuracy where rows are few
        return tags


ESTIMATORS = {
    kind.__name__: kind
    for kind in (
        *(LogisticRegression, LinearSVC),
        *(LinearRegression, HuberRegressor, QuantileRegressor, PoissonRegressor),
    )
}
