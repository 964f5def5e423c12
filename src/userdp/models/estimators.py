"""Linear models with the interface of scikit-learn, private for whole users: `fit(X, y, groups=user_ids)`.

Everything that privacy or accuracy depends on is a public parameter: nothing is read off the data but through a private
release. Rows and targets that make no sense (NaN, a label that is no class) raise nothing, because an error would tell
of them: their users count as outliers, and if there are too many a private test aborts and says so.

A fit goes one way: what was passed (`conventions`) is read as declared (`data.schema`) and grouped by user
(`data.users`), then minimised (`fitting`), and what was released is kept.

>>> import numpy as np
>>> rng = np.random.default_rng(0)
>>> users, X = np.repeat(np.arange(2000), 10), rng.uniform(-1, 1, (20_000, 2))
>>> y = X[:, 0] > X[:, 1] + rng.normal(0, 0.3, 20_000)
>>> model = LogisticRegression(epsilon=2.0, max_rows_per_user=10).fit(X, y, groups=users)
>>> bool(model.score(X, y) > 0.85), model.aborted_
(True, False)
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import math
import platform
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from datetime import UTC, datetime
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from scipy.special import log_softmax, softmax
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from userdp import losses
from userdp.data.schema import is_boolean, label_set, numbers, positions
from userdp.data.users import UserData
from userdp.domains import Ball
from userdp.losses import Loss
from userdp.models.conventions import PrivateEstimator, documented, owners, read_rows, read_targets
from userdp.models.fitting import minimize
from userdp.privacy.accounting import budget_for
from userdp.privacy.curator import Engine
from userdp.privacy.guarantee import Statement
from userdp.privacy.journal import Journal
from userdp.privacy.ledger import Ledger
from userdp.privacy.mechanisms.base import check_counts
from userdp.solvers.base import Result
from userdp.solvers.choose import default_radius
from userdp.solvers.problem import loss_at_zero

FORMAT = "userdp model 1"
NOT_KEPT = ("ledger", "engine", "checkpoint", "verbose", "public_X")  # parameters that are no part of a saved model
_FLOATS = [np.float64, np.float32]
_UNPROTECTED = (
    "With unprotected_checks=True what was not declared (class labels, the target range) was read off the data, and "
    "errors tell of missing values: these facts are outside of the guarantee."
)
_PARAMETERS = {
    "domain_radius": "How long the vector of all weights may be. None takes 10, times half of the target range where "
    "there is one, for the paper's solvers, whose accuracy depends on it; and no limit for the default solver.",
    "verbose": "True shows a progress bar, None shows it on a terminal only.",
    "unprotected_checks": "Read what was not declared (class labels, target range) off the data, take lists of rows, "
    "and raise on missing or infinite values and unknown labels, as other estimators do. Convenient, but what that "
    "tells is not protected.",
    "classes": "All labels that there can be; needed unless the target's type is boolean.",
    "target_range": "Public lowest and highest target; those beyond are cut off.",
}
_ATTRIBUTES = {
    "coef_ : array": "Weights of features, one row per output for classifiers.",
    "intercept_ : array or float": "Constants, one per output.",
    "classes_ : array": "Of classifiers: the classes, sorted.",
    "privacy_ : Statement": "What was guaranteed and spent.",
    "result_ : Result": "What the solver reports.",
    "aborted_ : bool": "Whether a private test aborted the fit before its end.",
    "n_gradients_ : int": "Gradients computed, at most.",
    "solver_ : str": "The solver that was taken.",
}
_T = TypeVar("_T", bound=Callable[..., Any])


class UtilityWarning(UserWarning):
    """The model is of little use, or its guarantee: a test aborted, noise may dominate it, or delta is too large."""


def _documented(**own: str) -> Callable[[_T], _T]:
    """Help that tells all parameters, the estimator's own and those of all."""
    return documented(_ATTRIBUTES, **_PARAMETERS | own)


@dataclass(eq=False, repr=False)
class LinearModel(PrivateEstimator, ABC):
    """Base of the estimators: public parameters, data to users, one private minimisation, what is kept."""

    _classifies: ClassVar[bool] = True

    epsilon: float = 1.0
    delta: float | None = None
    _: KW_ONLY
    solver: str = "auto"
    mode: str = "tight"
    max_rows_per_user: int = 50
    row_norm: float | None = None
    domain_radius: float | None = None
    fit_intercept: bool = True
    l2: float = 0.0
    max_gradients: int | None = None
    ledger: Ledger | str | None = None
    engine: Engine | None = None
    checkpoint: Journal | str | None = None
    verbose: bool | None = None
    insecure_seed: int | None = None
    privacy_unit: str = "user"
    public_X: Any = None
    unprotected_checks: bool = False

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Learn from rows X and targets y, where groups[i] is the user who owns row i.

        X is an array, a table, or a sparse matrix of scipy, which is never made dense.

        Guarantee: all that the fitted model holds is (epsilon, delta)-differentially private under replacement of
        one user's whole data, unless seeded, and but for what `unprotected_checks` tells.
        """
        with self._unchanged_unless_it_succeeds():
            self._check_parameters()
            if y is None:
                raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None.")
            if groups is None:
                owners(None, self.privacy_unit, 0)  # says that they are missing, before anything else is wrong
            self._declare(y)
            if self.unprotected_checks:
                rules = {"dtype": _FLOATS, "y_numeric": not self._classifies, "ensure_min_samples": 2}
                X, y = validate_data(self, X, y, accept_sparse="csr", **rules)
            else:
                X = read_rows(self, X, sparse=True)
            data = UserData.from_arrays(
                X,
                self._coded(read_targets(y, X.shape[0])),
                owners(groups, self.privacy_unit, X.shape[0]),
                max_rows_per_user=self._rows_per_user,
                fit_intercept=bool(self.fit_intercept),
                insecure_seed=self.insecure_seed,
                keep_user_ids=self.checkpoint is not None,  # by which a run that goes on knows them again
            )
            self._fit(data)
        self._warn()  # not before: a warning that is an error must not take away what was paid for
        return self

    def fit_users(self, data: UserData, feature_names: Sequence[str] | None = None) -> Self:
        """Learn from data that is grouped already, say by `UserData.from_parquet`.

        Load it with the same `max_rows_per_user` and `fit_intercept` as here. Targets of a classifier are positions in
        its sorted `classes`, which must be declared, here and to `UserData.from_table`, say.
        """
        with self._unchanged_unless_it_succeeds():
            self._check_parameters()
            if not isinstance(data, UserData):
                raise TypeError(f"Expected data to be UserData, got {type(data).__name__}: use fit(X, y, groups=...).")
            if data.has_intercept != bool(self.fit_intercept):
                raise ValueError(
                    f"Expected data loaded with fit_intercept={bool(self.fit_intercept)}, as the model has."
                )
            self._declare(None)
            self.n_features_in_ = data.n_features - bool(self.fit_intercept)
            self.__dict__.pop("feature_names_in_", None)
            if feature_names is not None:
                if len(feature_names) != self.n_features_in_:
                    raise ValueError(f"Expected {self.n_features_in_} feature_names, got {len(feature_names)}.")
                self.feature_names_in_ = np.asarray(feature_names, dtype=object)
            targets = data.targets if self._classifies else self._coded(data.targets)
            self._fit(replace(data, targets=targets))
        self._warn()
        return self

    @contextlib.contextmanager
    def _unchanged_unless_it_succeeds(self) -> Iterator[None]:
        """A refused fit leaves the model as it was, and not half of each."""
        before = dict(self.__dict__)
        try:
            yield
        except BaseException:
            self.__dict__ = before
            raise

    def to_dict(self) -> dict[str, Any]:
        """All of the fitted model, for JSON: weights, public parameters, guarantee. Releasable as a whole."""
        check_is_fitted(self, "coef_")
        names = getattr(self, "feature_names_in_", None)
        classes = getattr(self, "classes_", None)
        result = self.result_
        return {
            "format": FORMAT,
            "estimator": type(self).__name__,
            "created": self.facts_["created"],
            "parameters": self.facts_["parameters"],
            "features": None if names is None else [str(name) for name in names],
            "n_features": self.n_features_in_,
            "classes": None if classes is None else classes.tolist(),
            "coef": np.atleast_2d(self.coef_).tolist(),
            "intercept": np.atleast_1d(self.intercept_).tolist(),
            "solver": result.solver,
            "mode": result.mode,
            "n_users": self.privacy_.n_users,
            "rows_per_user": self.facts_["rows_per_user"],
            "n_gradients": self.n_gradients_,
            "halted": self.aborted_,
            "message": result.message,
            "bound": result.bound,
            "bound_is_estimate": result.bound_is_estimate,
            "outside": list(result.outside),
            "loss": self.facts_["loss"],
            "loss_at_zero": self.facts_["loss_at_zero"],
            "phases": [dict(phase) for phase in result.phases],
            "privacy": self.privacy_.to_dict(),
            "versions": self.facts_["versions"],
        }

    def _check_parameters(self) -> None:
        budget_for(self.epsilon, self.delta, 1)
        check_counts(max_rows_per_user=self.max_rows_per_user)

    @property
    def _rows_per_user(self) -> int:
        return 1 if self.privacy_unit == "row" else int(self.max_rows_per_user)

    def _facts(self, loss: Loss) -> dict[str, Any]:
        """What a saved model tells of how it was made; taken before the fit, whose end would tell how long it took."""
        packages = ("userdp", "numpy", "opendp", "dp-accounting", "scikit-learn")
        return {
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "parameters": {k: _plain(v) for k, v in self.get_params(deep=False).items() if k not in NOT_KEPT},
            "rows_per_user": self._rows_per_user,
            "loss": loss.name,
            "loss_at_zero": loss_at_zero(loss, None if self._classifies else 1.0),
            "versions": {"python": platform.python_version()} | {p: importlib.metadata.version(p) for p in packages},
        }

    def _fit(self, data: UserData) -> None:
        loss = self._loss()
        facts = self._facts(loss)
        result = minimize(
            loss,
            data,
            Ball(self._radius()),
            self.epsilon,
            self.delta,
            row_norm=self.row_norm,
            public_X=self.public_X,
            rows_per_user=self._rows_per_user,
            target_bound=None if self._classifies else 1.0,
            solver=self.solver,
            mode=self.mode,
            max_gradients=self.max_gradients,
            l2=self.l2,
            ledger=self._opened_ledger(),
            engine=self.engine,
            checkpoint=self.checkpoint,
            purpose=f"{type(self).__name__}.fit",
            progress=self.verbose,
            insecure_seed=self.insecure_seed,
        )
        weights = result.weights.reshape(loss.n_outputs, data.n_features)
        coef, intercept = weights[:, : self.n_features_in_], weights[:, self.n_features_in_ :].sum(axis=1)
        self._keep_weights(self._half * coef, self._half * intercept + self._middle)
        assert result.privacy is not None
        note = _UNPROTECTED if self.unprotected_checks else ""
        warning = " ".join(filter(None, [result.privacy.warning, note]))
        self._keep_result(result, replace(result.privacy, unit=self.privacy_unit, warning=warning), facts)

    def _keep_weights(self, coef: np.ndarray, intercept: np.ndarray) -> None:
        """Weights in the units of targets, one row per output; a number's weights are flat."""
        self.coef_: np.ndarray = coef if self._classifies else coef[0]
        self.intercept_: np.ndarray | float = intercept if self._classifies else float(intercept[0])

    def _keep_result(self, result: Result, guarantee: Statement, facts: dict[str, Any]) -> None:
        self.result_, self.privacy_, self.facts_ = replace(result, privacy=guarantee), guarantee, facts
        self.aborted_, self.n_gradients_, self.solver_ = result.aborted, result.n_gradients, result.solver

    def _warn(self) -> None:
        """Say what public numbers and releases tell of the model's use, and of its guarantee's."""
        guarantee = self.privacy_
        if self.result_.message:
            warnings.warn(self.result_.message, UtilityWarning, stacklevel=3)
        if guarantee.delta * guarantee.n_users >= 1:
            warnings.warn(
                f"delta={guarantee.delta:g} is not below 1 over the {guarantee.n_users} {guarantee.unit}s: "
                "it would even allow publishing somebody's data outright. Choose it well below.",
                UtilityWarning,
                stacklevel=3,
            )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = not self.unprotected_checks
        tags.input_tags.sparse = True
        tags.target_tags.required = True
        return tags

    def _predictions(self, X: Any) -> np.ndarray:
        """One column per output."""
        check_is_fitted(self, "coef_")
        X = validate_data(self, X, reset=False, dtype=_FLOATS, accept_sparse="csr")
        return np.asarray(X @ np.atleast_2d(self.coef_).T + self.intercept_)

    def _radius(self) -> float:
        """Of the weights that are learned, for targets divided by `_half`."""
        return default_radius(self.solver, self.mode) if self.domain_radius is None else self.domain_radius / self._half

    @property
    def _middle(self) -> float:
        """What is taken off targets before they are learned."""
        return 0.0

    @property
    def _half(self) -> float:
        """What targets are divided by."""
        return 1.0

    @abstractmethod
    def _loss(self) -> Loss:
        """What is minimised, once what is public about targets is known."""

    @abstractmethod
    def _declare(self, y: Any) -> None:
        """Keep what is public about targets, from parameters or the type of y; y is None for grouped data."""

    @abstractmethod
    def _coded(self, y: Any) -> np.ndarray:
        """Targets as the loss wants them, NaN where they make no sense."""


def _plain(value: Any) -> Any:
    """A parameter as JSON knows it."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


@dataclass(eq=False, repr=False, kw_only=True)
class _Classifier(ClassifierMixin, LinearModel):
    """Classes are public: declared, or the two values of a target whose type is boolean."""

    classes: Sequence[Any] | None = None

    def decision_function(self, X: Any) -> np.ndarray:
        """Predictions before they become classes: one number per row for two classes, else one per class."""
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

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True  # noise costs accuracy where rows are few
        return tags


@_documented()
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


@_documented(loss='"squared_hinge", or "hinge", which is non-smooth and therefore takes more noise.')
@dataclass(eq=False, repr=False, kw_only=True)
class LinearSVC(_Classifier):
    """Linear support vector machine for two classes, private for whole users."""

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

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # noise costs accuracy where rows are few
        return tags


@_documented()
@dataclass(eq=False, repr=False, kw_only=True)
class LinearRegression(_Regressor):
    """Least squares, private for whole users."""

    def _loss(self) -> Loss:
        return losses.squared


@_documented(
    threshold="The error, in units of the target, from which on it counts linearly; None is a tenth of the range."
)
@dataclass(eq=False, repr=False, kw_only=True)
class HuberRegressor(_Regressor):
    """Regression that large errors do not dominate, private for whole users."""

    threshold: float | None = None

    def _loss(self) -> Loss:
        return losses.huber(0.2 if self.threshold is None else self.threshold / self._half)


@_documented(quantile="Which quantile of the target, given the features, is predicted.")
@dataclass(eq=False, repr=False, kw_only=True)
class QuantileRegressor(_Regressor):
    """Regression of a quantile, the median by default, private for whole users."""

    quantile: float = 0.5

    def _loss(self) -> Loss:
        return losses.quantile(self.quantile)


ESTIMATORS = {
    kind.__name__: kind for kind in (LogisticRegression, LinearSVC, LinearRegression, HuberRegressor, QuantileRegressor)
}
