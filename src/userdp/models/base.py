"""What the scikit-learn estimators fraction: public parameters, data to users, one private minimisation.

Everything that privacy or accuracy depends on is a public parameter: nothing is read off the data but through a private
release. Rows and targets that make no sense (NaN, a label that is no class) raise nothing, because an error would tell
of them: their users count as outliers, and if there are too many a private test aborts and says so.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from datetime import UTC, datetime
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data

from userdp.data.users import UserData
from userdp.domains import Ball
from userdp.losses import Loss
from userdp.models.fitting import minimize
from userdp.models.reading import FLOATS, owners, read_rows, read_targets
from userdp.models.searches import warn_of_search
from userdp.privacy.accounting import budget_for
from userdp.privacy.curator import Engine
from userdp.privacy.ledger import Ledger
from userdp.privacy.mechanisms.base import check_counts
from userdp.solvers.choose import default_radius
from userdp.solvers.problem import loss_at_zero

FORMAT = "userdp model 1"
NOT_KEPT = ("ledger", "engine", "verbose", "public_X")  # parameters that are no part of a saved model

_UNPROTECTED = (
    "With unprotected_checks=True what was not declared (class labels, the target range) was read off the data, and "
    "errors tell of missing values: these facts are outside of the guarantee."
)


class UtilityWarning(UserWarning):
    """The model is of little use, or its guarantee: a test aborted, noise may dominate it, or delta is too large."""


@dataclass(eq=False, repr=False)
class LinearModel(BaseEstimator, ABC):
    """Base of the estimators.

    epsilon, delta: the guarantee, for whole users under replacement; delta=None takes (number of users)^-1.5, at most
    1e-6, well below 1 / number of users; `privacy_.delta` shows it.
    solver: "auto" for whitened-clip, or by name "phased-sgd", "accelerated" (the paper's) or one of earlier work;
    mode: "tight", or "paper" for the constants as printed.
    max_rows_per_user: more rows of a user are dropped at random; also how many rows a user is taken to have.
    row_norm, domain_radius: for the paper's solvers, whose accuracy depends on them: how long a row of X may be, about,
    the intercept's 1 counted in (None takes sqrt(number of features + 1), right for features of size about 1), and how
    long the vector of all weights (None takes 10, times half of the target range where there is one). The default
    solver needs neither, whatever the columns' units; a domain_radius that is given holds for it too.
    public_X: rows that are nobody's secret and about like the users': the default solver then learns the columns'
    scales and correlations from them, and spends the budget for that on the model. Not kept in the model.
    fit_intercept: whether there is a constant. l2: adds l2/2 |weights|^2 to the mean loss, the intercept included.
    max_gradients: an upper limit on the work.
    ledger: a `Ledger`, or the path of an existing ledger file, that is charged before anything is computed from the
    data; None for a fresh one of exactly (epsilon, delta). What else was learned from the same people, a private
    scaler say, adds up: give all of it one ledger.
    engine: who computes; None for this process. verbose: True shows a progress bar, None shows it on a terminal only.
    insecure_seed: makes everything repeatable and NOTHING PRIVATE; for tests.
    privacy_unit: "user", with `groups` telling who owns which row; or "row", where each row is somebody else's.
    unprotected_checks: read what was not declared (class labels, target range) off the data, take lists of rows, and
    raise on missing or infinite values and unknown labels, as other estimators do. Convenient, but what
    that tells is not protected.
    """

    __metadata_request__fit: ClassVar[dict[str, bool]] = {"groups": True}
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
    verbose: bool | None = None
    insecure_seed: int | None = None
    privacy_unit: str = "user"
    public_X: Any = None
    unprotected_checks: bool = False

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Learn from rows X and targets y, where groups[i] is the user who owns row i.

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
                rules = {"dtype": FLOATS, "y_numeric": not self._classifies, "ensure_min_samples": 2}
                X, y = validate_data(self, X, y, **rules)
            else:
                X = read_rows(self, X)
            data = UserData.from_arrays(
                X,
                self._coded(read_targets(y, len(X))),
                owners(groups, self.privacy_unit, len(X)),
                max_rows_per_user=self._rows_per_user,
                fit_intercept=bool(self.fit_intercept),
                insecure_seed=self.insecure_seed,
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

    def __sklearn_clone__(self) -> Self:
        """A copy that is not fitted; where scikit-learn is about to fit several without a common ledger, a warning."""
        warn_of_search(type(self).__name__, self.ledger is not None)
        copy: Self = super().__sklearn_clone__()
        return copy

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
            ledger=Ledger.open(self.ledger) if isinstance(self.ledger, str) else self.ledger,
            engine=self.engine,
            purpose=f"{type(self).__name__}.fit",
            progress=self.verbose,
            insecure_seed=self.insecure_seed,
        )
        weights = result.weights.reshape(loss.n_outputs, data.n_features)
        self._keep(weights[:, : self.n_features_in_], weights[:, self.n_features_in_ :].sum(axis=1))
        assert result.privacy is not None
        note = _UNPROTECTED if self.unprotected_checks else ""
        warning = " ".join(filter(None, [result.privacy.warning, note]))
        self.privacy_ = replace(result.privacy, unit=self.privacy_unit, warning=warning)
        self.result_ = replace(result, privacy=self.privacy_)
        self.aborted_, self.n_gradients_, self.solver_ = result.aborted, result.n_gradients, result.solver
        self.facts_ = facts

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
        tags.target_tags.required = True
        return tags

    def _predictions(self, X: Any) -> np.ndarray:
        """One column an output."""
        check_is_fitted(self, "coef_")
        X = validate_data(self, X, reset=False, dtype=FLOATS)
        return np.asarray(X @ np.atleast_2d(self.coef_).T + self.intercept_)

    def _radius(self) -> float:
        return default_radius(self.solver, self.mode) if self.domain_radius is None else self.domain_radius

    @abstractmethod
    def _loss(self) -> Loss:
        """What is minimised, once what is public about targets is settled."""

    @abstractmethod
    def _declare(self, y: Any) -> None:
        """Settle what is public about targets, from parameters or the type of y; y is None for grouped data."""

    @abstractmethod
    def _coded(self, y: Any) -> np.ndarray:
        """Targets as the loss wants them, NaN where they make no sense."""

    @abstractmethod
    def _keep(self, coef: np.ndarray, intercept: np.ndarray) -> None:
        """Set coef_ and intercept_, in the units of targets, from one row of weights an output."""


def _plain(value: Any) -> Any:
    """A parameter as JSON knows it."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
