"""What all linear models have in common: public parameters, one way from rows to a private fit, and what is kept of it.

Everything that privacy or accuracy depends on is a public parameter: nothing is read off the data but through a private
release. Rows that make no sense (a cell that is NaN or infinite, a label that is no class) raise nothing, because an
error would reveal them: they are left out, and a private count says how many users have some.

A fit goes one way: what was passed (`conventions`) is read as declared (`data.schema`) and grouped by user
(`data.users`), then minimised (`fitting`), and what was released is kept.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import math
import platform
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from sklearn.utils.validation import check_is_fitted, validate_data

from userdp import losses
from userdp._validate import check_counts
from userdp.data.columns import Columns
from userdp.data.source import SHARED, Source, check_purpose, shares_memory
from userdp.data.sparse import is_sparse
from userdp.data.users import RemoteUsers, UserData
from userdp.domains import Ball
from userdp.evaluation.coordinates import ScoreLayout
from userdp.evaluation.row_losses import compared, finite, kind_of, scale_of
from userdp.evaluation.scores import Scores
from userdp.losses import Loss
from userdp.models.evaluating import HeldOut, usual_metrics
from userdp.models.fitting import fitted
from userdp.models.intervals import (
    Intervals,
    far_from_resolved,
    fraction_of,
    names_of,
    notes_on,
    unresolved_columns,
)
from userdp.models.learned_columns import Preparation
from userdp.models.sklearn_compat import (
    Execution,
    PrivateEstimator,
    UtilityWarning,
    documented,
    owners,
    read_rows,
    read_targets,
    read_weights,
    unit_word,
)
from userdp.models.targets import Targets, is_private
from userdp.privacy.accounting import REPLACE_ONE, Budget, budget_for
from userdp.privacy.ledger import Ledger
from userdp.privacy.statement import Statement
from userdp.solvers.planner import Solver
from userdp.solvers.problem import loss_at_zero
from userdp.solvers.solver import Result

FORMAT = "userdp model 1"
NOT_KEPT = ("ledger", "execution", "public_X")  # parameters that are no part of a saved model
_FLOATS = [np.float64, np.float32]
_BLOCK = 65536  # targets coded at a time
_UNPROTECTED = (
    "With unprotected_checks=True what was not declared (class labels, the target range) was read off the data, and "
    "errors reveal missing values: these facts are outside of the guarantee."
)
_PARAMETERS = {
    "unprotected_checks": "Read what was not declared (class labels, target range) off the data, take lists of rows, "
    "and raise on missing values and unknown labels, as other estimators do. What that reveals is not protected.",
    "columns": "What the columns of a table mean (`userdp.Columns`): `fit` and `predict` then take tables. Columns "
    "that it does not describe are left out.",
    "evaluate": "The fraction of users, such as 0.1, who are kept from training and privately scored (`scores_`). They "
    "pay for the scores, the others for the training: all of it costs no more than (epsilon, delta).",
    "columns_fraction": "The part of the budget for what `columns` and `target_range` leave to be learned privately.",
    "inference": "True for standard errors and intervals (`summary()`, `conf_int()`, `cov_`), for half of the budget; "
    "or the part of it that they get. Only weights that noise hides are then shrunk. For logistic regression of two "
    "classes, least squares and counts, by the default solver, with enough users: refused otherwise, before anything "
    "is charged.",
    "classes": "All labels that there can be; needed unless the target's type is boolean.",
    "max_weight": "The public largest `sample_weight`, needed where `fit` gets them; those beyond are cut off.",
    "class_weight": "How often a row of each class counts, {label: weight}; 1 for labels that are left out. It is "
    'public: "balanced", which reads weights off the data, is refused.',
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
    "scores_ : Scores or None": "Private scores, with intervals, of the users whom `evaluate` kept from training.",
    "feature_names_in_ : array": "Names of the features, where X had names; of described columns such as city=Lyon.",
    "target_range_ : tuple": "Of regressors: the range that targets were cut off at, as declared or learned.",
    "prediction_range_ : tuple or None": "Of regressors: what `predict` stays within.",
    "columns_ : Columns": "The columns, with what was learned of them privately.",
    "unresolved_ : dict": "Columns whose coefficients noise hides, with about how many users would resolve them, or "
    "None if far more.",
    "notes_ : tuple": "What noise hides, in words; `fit` warns of what it hides by far.",
    "cov_ : array": "With `inference`: covariance of the coefficients, the intercept last.",
}
_LARGEST_OF = {"sample_weight": "max_weight", "exposure": "max_exposure"}
_T = TypeVar("_T", bound=Callable[..., Any])


def documented_model(**own: str) -> Callable[[_T], _T]:
    """Help that lists all parameters, the estimator's own and those of all."""
    return documented(_ATTRIBUTES, **_PARAMETERS | own)


@dataclass(eq=False, repr=False)
class LinearModel(PrivateEstimator, Intervals, ABC):
    """Base of the estimators: public parameters, data to users, one private minimisation, what is kept."""

    _kind: ClassVar[type[Targets]]
    _classifies: ClassVar[bool] = True

    epsilon: float = 1.0
    delta: float | None = None
    _: KW_ONLY
    solver: Solver | str = "auto"
    max_rows_per_user: int = 50
    fit_intercept: bool = True
    l2: float = 0.0
    ledger: Ledger | str | None = None
    execution: Execution | None = None
    insecure_seed: int | None = None
    privacy_unit: str = "user"
    neighbours: str = REPLACE_ONE
    unit: str | None = None
    public_X: Any = None
    unprotected_checks: bool = False
    purpose: str = ""
    max_weight: float | None = None
    columns: Columns | None = None
    columns_fraction: float = 0.1
    allow_weak: bool = False
    evaluate: float | None = None
    inference: bool | float = False

    def fit(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> Self:
        """Learn from rows X and targets y, where groups[i] is the user who owns row i.

        X is an array, a table, or a sparse matrix of scipy, which is never made dense; with `columns` a table that has
        the described columns. Row i counts sample_weight[i] times (from 0 to `max_weight`; 0 if that is no number) in
        its user's mean, which is over all of the user's rows.

        Guarantee: all that the fitted model holds is (epsilon, delta)-differentially private for `neighbours`: one
        user's whole data is replaced, or with "zero-out" adds nothing to any total; unless seeded, and but for what
        `unprotected_checks` reveals.
        """
        return self._fit_rows(X, y, groups, sample_weight=sample_weight)

    @np.errstate(all="ignore")
    def _fit_rows(self, X: Any, y: Any, groups: Any, *, source: Source | None = None, **of_rows: Any) -> Self:
        """`fit`, with a column each of what else there is of a row, or None; `source` is known of files."""
        with self._unchanged_unless_it_succeeds():
            self._check_parameters()
            self._declare_largest(of_rows)
            self._check_evaluate(of_rows)
            self._warn_of_surroundings(stacklevel=3)
            if shares_memory(self.public_X, X):
                raise ValueError(SHARED)
            if y is None:
                raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None.")
            if groups is None:
                owners(None, self.privacy_unit, 0)  # says that they are missing, before anything else is wrong
            if not self.unprotected_checks:  # which read what was not declared off the targets, below
                self._declare(y)
            source = source or Source.of(y, groups, **of_rows)
            cells = None
            if self.columns is not None:
                source = replace(source, columns=self.columns.summary)
                cells, X = self._read_columns(X, y, groups)
            elif self.unprotected_checks:
                rules = {"dtype": _FLOATS, "y_numeric": not self._classifies, "ensure_min_samples": 2}
                X, y = validate_data(self, X, y, accept_sparse="csr", **rules)
            else:
                X = read_rows(self, X, sparse=True)
            fractions = self._fractions(of_rows, X.shape[0])
            y = read_targets(y, X.shape[0])
            if self.unprotected_checks:
                self._declare(y)
            targets, weights, loss = self._weighed(self._targets.encode(y), fractions)
            data = UserData.from_arrays(
                X,
                targets,
                owners(groups, self.privacy_unit, X.shape[0]),
                max_rows_per_user=self._rows_per_user,
                fit_intercept=bool(self.fit_intercept) and cells is None,
                insecure_seed=self.insecure_seed,
                keep_user_ids=Execution.of(self.execution).checkpoint
                is not None,  # by which a run that goes on knows them again
                weights=weights,
            )
            del targets, weights  # the data has them, in its own order
            self._fit(replace(data, source=source), loss, cells)
        self._warn(stacklevel=5)  # not before: a warning that is an error must not take away what was paid for
        return self

    @np.errstate(all="ignore")
    def fit_users(self, data: UserData | RemoteUsers, feature_names: Sequence[str] | None = None) -> Self:
        """Learn from data that is grouped already, say by `UserData.from_parquet`.

        Load it with the same `max_rows_per_user` and `fit_intercept` as here. Targets of a classifier are positions in
        its sorted `classes`, which must be declared, here and to `UserData.from_table`, say. Users may be with an
        engine (`RayEngine.from_parquet`), which then computes; a `target_range` must then be declared.
        """
        with self._unchanged_unless_it_succeeds():
            self._check_parameters()
            self._warn_of_surroundings(stacklevel=2)
            if not isinstance(data, UserData | RemoteUsers):
                raise TypeError(f"Expected data to be UserData, got {type(data).__name__}: use fit(X, y, groups=...).")
            if self.columns is not None:
                raise ValueError(
                    "Expected no columns with data that is grouped already: use fit(table, y, groups=...)."
                )
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
            self._declare_largest({})
            self._check_evaluate({})
            if isinstance(data, UserData) and shares_memory(self.public_X, data.rows):
                raise ValueError(SHARED)
            self._fit(*self._encoded_users(data))
        self._warn(stacklevel=4)
        return self

    def _declare(self, y: Any) -> None:
        """Keep what is public about targets, from parameters or the type of y; y is None for grouped data."""
        self._keep_targets(self._kind.declared(self, y))

    def _keep_targets(self, targets: Targets) -> None:
        self._targets = targets
        self.__dict__ |= targets.attributes

    def _encoded_blocks(self, data: UserData) -> np.ndarray:
        """Grouped numbers as the loss wants them, some at a time: they may be more than memory holds."""
        encoded = data.scratch(data.targets.shape, np.float64)
        for start in range(0, len(encoded), _BLOCK):
            encoded[start : start + _BLOCK] = self._targets.encode(data.targets[start : start + _BLOCK])
        return encoded

    @contextlib.contextmanager
    def _unchanged_unless_it_succeeds(self) -> Iterator[None]:
        """A refused fit leaves the model as it was, and not half of each."""
        before = dict(self.__dict__)
        try:
            yield
        except BaseException:
            self.__dict__ = before
            raise

    def to_sklearn(self) -> Any:
        """A plain fitted estimator of scikit-learn that predicts the same: for ONNX, skops, PMML.

        Of regressors, without cutting predictions off at `prediction_range_`, which plain ones cannot.
        """
        from userdp.models.files import to_sklearn  # which imports this module

        return to_sklearn(self)

    def _read_columns(self, table: Any, y: Any, groups: Any) -> tuple[dict[str, Any] | None, Any]:
        """A table's features; or its cells and, in the place of features, the rows' numbers, if some are private."""
        assert self.columns is not None
        for name, given in (("y", y), ("groups", groups)):
            if isinstance(getattr(given, "name", None), str) and given.name in self.columns:
                raise ValueError(f"Expected columns without {given.name!r}, which is {name}: leave it out.")
        self.columns_, cells = self.columns, self.columns.cells(table)
        self._keep_names()
        if not self.columns.private:
            return None, self.columns.encode_cells(cells)
        return cells, np.arange(len(next(iter(cells.values()))), dtype=np.float64)[:, None]

    def _preparation(self, cells: dict[str, Any] | None, data: UserData | RemoteUsers) -> Preparation | None:
        """What is to be learned of the data first: of columns that have cells, or of targets."""
        if not isinstance(data, UserData) or (cells is None and not self._learns_range):
            return None

        def encoded(ends: tuple[float, float]) -> np.ndarray:
            self._keep_targets(self._targets.within(ends))
            return self._encoded_blocks(data)

        columns, encode = None if cells is None else self.columns, encoded if self._learns_range else None
        return Preparation(columns, cells or {}, data, bool(self.fit_intercept), self.columns_fraction, encode)

    @property
    def _learns_range(self) -> bool:
        """Whether the range of targets is to be learned privately."""
        return is_private(getattr(self, "target_range", None))

    def _keep_names(self, features: Sequence[str] = ()) -> None:
        """Which feature a weight belongs to: of the described columns, or of those of numbers."""
        names = features if self.columns is None else self.columns_.names
        self.feature_names_in_ = np.asarray(names, dtype=object)
        self.n_features_in_ = len(self.feature_names_in_)

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
            "columns": None if self.columns is None else self.columns_.to_dict(),
            "classes": None if classes is None else classes.tolist(),
            "coef": np.atleast_2d(self.coef_).tolist(),
            "intercept": np.atleast_1d(self.intercept_).tolist(),
            "prediction_range": None if self.prediction_range_ is None else list(self.prediction_range_),
            "solver": result.solver,
            "mode": result.mode,
            "n_users": self.privacy_.n_users,
            "rows_per_user": self.facts_["rows_per_user"],
            "n_gradients": self.n_gradients_,
            "halted": self.aborted_,
            "message": result.message,
            "unresolved": self.unresolved_,
            "notes": list(self.notes_),
            "bound": result.bound,
            "bound_is_estimate": result.bound_is_estimate,
            "outside": list(result.outside),
            "source": self.facts_["source"],
            "loss": self.facts_["loss"],
            "loss_at_zero": self.facts_["loss_at_zero"],
            "phases": [dict(phase) for phase in result.phases],
            "scores": None if self.scores_ is None else self.scores_.to_dict(),
            "uncertainty": None if self.uncertainty_ is None else self.uncertainty_.to_dict(),
            "privacy": self.privacy_.to_dict(),
            "versions": self.facts_["versions"],
        }

    def _budget(self, n_users: int) -> Budget:
        return budget_for(self.epsilon, self.delta, n_users, self.neighbours)

    def _check_parameters(self) -> None:
        self._budget(1), unit_word(self.privacy_unit, self.unit)
        Solver.of(self.solver), Execution.of(self.execution)
        check_counts(max_rows_per_user=self.max_rows_per_user)
        check_purpose(self.purpose)
        if not isinstance(self.columns, Columns | None):
            raise TypeError(f"Expected columns to be userdp.Columns, got {type(self.columns).__name__}.")
        fraction_of(self.inference)
        if not 0 < self.columns_fraction < 1:
            raise ValueError(f"Expected 0 < columns_fraction={self.columns_fraction} < 1: a part of the budget.")
        if self.columns is not None and self.columns.private and self.public_X is not None:
            raise ValueError("Expected no public_X where columns are learned privately: declare them by it instead.")

    def _check_evaluate(self, of_rows: dict[str, Any]) -> None:
        """Refuse users to be held out where what is scored would not be what is learned, by public facts."""
        if self.evaluate is None:
            return
        if not (isinstance(self.evaluate, int | float | np.number) and 0 < self.evaluate < 1):
            raise ValueError(f"Expected 0 < evaluate={self.evaluate!r} < 1: the fraction of users to score on.")
        weighed = [name for name, column in of_rows.items() if column is not None]
        if weighed or getattr(self, "class_weight", None) is not None:
            raise ValueError(
                f"Expected no {(weighed or ['class_weight'])[0]} with evaluate: score on other users with "
                "userdp.evaluation.evaluate instead. Nothing was spent."
            )
        if self.columns is not None and self.columns.private:
            raise ValueError("Expected columns that are declared with evaluate, not learned. Nothing was spent.")
        if self._learns_range:
            raise ValueError(
                "Expected a target_range that is declared with evaluate, not learned: its scores are reported in units "
                "of it. Score on other users with userdp.evaluation.evaluate instead. Nothing was spent."
            )

    def _held_out(self, data: UserData | RemoteUsers, loss: Loss) -> HeldOut | None:
        """Who is kept from training, if anybody."""
        if self.evaluate is None:
            return None
        if not isinstance(data, UserData) or data.store is not None:
            raise ValueError("Expected users' rows in memory here with evaluate. Nothing was spent.")
        n_held = round(self.evaluate * data.n_users)
        if not 2 <= n_held <= data.n_users - 2:
            raise ValueError(f"Expected evaluate={self.evaluate} to leave at least 2 users on either side.")
        ends = None if self._classifies else self._targets.ends
        layout = ScoreLayout(kind_of(self), usual_metrics(self), scale_of(self, None, ends))

        def rows(weights: np.ndarray) -> np.ndarray:
            self._take_weights(weights.reshape(loss.n_outputs, -1))
            features, sound = finite(data.rows)
            return layout.rows(compared(self, features, self._targets.decode(data.targets), sound, layout.scale))

        return HeldOut(n_held, layout, rows)

    def _take_weights(self, weights: np.ndarray) -> None:
        """Keep weights as the solver has them, one row per output."""
        coef, intercept = weights[:, : self.n_features_in_], weights[:, self.n_features_in_ :].sum(axis=1)
        unit = self._targets.weight
        self._keep_weights(unit * coef, unit * intercept + self._targets.middle)

    @property
    def _rows_per_user(self) -> int:
        return 1 if self.privacy_unit == "row" else int(self.max_rows_per_user)

    def _facts(self, loss: Loss, source: Source) -> dict[str, Any]:
        """What a saved model says about how it was made; taken before the fit: its end would show how long it took."""
        packages = ("userdp", "numpy", "opendp", "dp-accounting", "scikit-learn")
        return {
            "created": datetime.now(UTC).date().isoformat(),  # to the day: what is closer would tell how long fits take
            "parameters": {k: as_json(v) for k, v in self.get_params(deep=False).items() if k not in NOT_KEPT},
            "rows_per_user": self._rows_per_user,
            "source": asdict(source),
            "loss": loss.name,
            "loss_at_zero": loss_at_zero(loss, None if self._classifies else 1.0),
            "versions": {"python": platform.python_version()} | {p: importlib.metadata.version(p) for p in packages},
        }

    def _declare_largest(self, of_rows: dict[str, Any]) -> None:
        """Keep the public largest of what there is of a row, from parameters; what is not there is 1 for all."""
        self.largest_: dict[str, float | None] = {}
        for name, column in of_rows.items():
            declared = _LARGEST_OF[name]
            largest = getattr(self, declared)
            if largest is not None and not (isinstance(largest, int | float | np.number) and 0 < largest < math.inf):
                raise ValueError(f"Expected {declared}={largest!r} to be a finite number > 0.")
            if column is not None and largest is None and not self.unprotected_checks:
                raise ValueError(
                    f"Expected {declared}, the public largest {name}, from what it means and not from the data; those "
                    "beyond are cut off. Nothing was spent."
                )
            self.largest_[name] = 1.0 if column is None else None if largest is None else float(largest)

    def _fractions(self, of_rows: dict[str, Any], n_rows: int) -> dict[str, np.ndarray]:
        """What there is of each row as fractions of the largest, 0 where it makes no sense."""
        found = {}
        for name, column in of_rows.items():
            if column is None:
                continue
            values = read_weights(name, np.asarray(column) if self.unprotected_checks else column, n_rows)
            if self.unprotected_checks and not values.any():
                raise ValueError(f"Expected at least one non-zero number in {name}.")
            if self.largest_[name] is None:  # with unprotected_checks only
                self.largest_[name] = max(float(values.max(initial=0.0)), 1e-300)
            found[name] = np.clip(values / self.largest_[name], 0.0, 1.0)
        return found

    def _weighed(
        self, targets: np.ndarray, fractions: dict[str, np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray | None, Loss]:
        """Encoded targets, how often rows count, if not all of them once, and what is minimised."""
        if not fractions:
            return targets, None, self._loss()
        return targets, np.prod([*fractions.values()], axis=0), losses.weighted(self._loss())

    def _encoded_users(self, data: UserData | RemoteUsers) -> tuple[UserData | RemoteUsers, Loss]:
        """Users with targets as the loss wants them, wherever they are, and the loss."""
        if isinstance(data, RemoteUsers):
            if getattr(self, "class_weight", None) is not None:
                raise ValueError("Expected no class_weight for users whose rows are elsewhere. Nothing was spent.")
            if not self._classifies and math.isinf(self._targets.ends[1]):
                raise ValueError(
                    "Expected target_range=(lowest, highest), or max_count: it is not learned of users whose rows are "
                    "elsewhere. Nothing was spent."
                )
            return data if self._classifies else data.mapped(self._targets.users), self._loss()
        if data.store is None:  # there, whether rows were copied would decide where they can be computed
            data = data.without(self._targets.sound(data.targets))
        if self.unprotected_checks and not self._classifies and data.n_rows:
            self._declare(np.array([data.targets.min(), data.targets.max()]))
        # A range that is to be learned scales targets once it is known.
        targets = data.targets if self._classifies or self._learns_range else self._encoded_blocks(data)
        targets, weights, loss = self._weighed(targets, {} if data.weights is None else {"sample_weight": data.weights})
        return replace(data, targets=targets, weights=weights), loss

    def _fit(self, data: UserData | RemoteUsers, loss: Loss, cells: dict[str, Any] | None = None) -> None:
        """Minimise; cells are of columns that are learned privately before."""
        source = data.source or Source()
        facts, held_out = self._facts(loss, source), self._held_out(data, loss)
        first, public_X = self._preparation(cells, data), self.public_X
        if self.columns is not None and public_X is not None and not isinstance(public_X, np.ndarray):
            public_X = self.columns_.encode(public_X)
        result = fitted(
            loss,
            data,
            Ball(self._radius()),
            self._budget(data.n_users),
            self._rows_per_user,
            Solver.of(self.solver),
            Execution.of(self.execution),
            bounds={"target_bound": None if self._classifies else 1.0, "l2": self._penalty()},
            public_X=public_X,
            ledger=self._opened_ledger(),
            purpose=source.entry(self.purpose, f"{type(self).__name__}.fit"),
            insecure_seed=self.insecure_seed,
            allow_weak=self.allow_weak,
            first=first,
            held_out=held_out,
            inference=fraction_of(self.inference),
            unit=unit_word(self.privacy_unit, self.unit),
        )
        n_features = data.n_features if first is None else first.n_features
        kept = np.arange(n_features)
        if first is not None and first.learned is not None:
            # Features that were held free for levels, and not needed, are 0 everywhere.
            self.columns_ = first.learned
            self._keep_names()
            kept = np.delete(kept, np.s_[self.n_features_in_ : first.width])
        self._take_weights(result.weights.reshape(loss.n_outputs, -1)[:, kept])
        self.scores_: Scores | None = None if held_out is None else held_out.scores
        if result.uncertainty is not None:  # of one output
            rows = self._targets.weight * np.eye(n_features)[kept]
            result = replace(result, uncertainty=result.uncertainty.mapped(rows))
        errors = None if result.weight_errors is None else result.weight_errors[kept]
        self.prediction_range_ = self._limits()
        result = replace(result, message=f"{result.message} {self._targets.advice(result.target_fraction)}".strip())
        assert result.privacy is not None
        warning = result.privacy.warning + (f" {_UNPROTECTED}" if self.unprotected_checks else "")
        guarantee = replace(result.privacy, warning=warning.strip())
        unresolved = unresolved_columns(names_of(self, self.n_features_in_), errors, guarantee.n_users)
        self._keep_result(result, guarantee, facts, unresolved, notes_on(unresolved, result.total_error, guarantee))

    def _keep_weights(self, coef: np.ndarray, intercept: np.ndarray) -> None:
        """Weights in the units of targets, one row per output; a number's weights are flat."""
        self.coef_: np.ndarray = coef if self._classifies else coef[0]
        self.intercept_: np.ndarray | float = intercept if self._classifies else float(intercept[0])

    def _keep_result(
        self,
        result: Result,
        guarantee: Statement,
        facts: dict[str, Any],
        unresolved: dict[str, int | None],
        notes: Sequence[str],
    ) -> None:
        self.unresolved_, self.notes_ = unresolved, tuple(notes)
        self.result_, self.privacy_, self.facts_ = replace(result, privacy=guarantee), guarantee, facts
        self.aborted_, self.n_gradients_, self.solver_ = result.aborted, result.n_gradients, result.solver
        self.uncertainty_ = result.uncertainty

    def _warn(self, stacklevel: int = 3) -> None:
        """Warn of what public numbers and releases say against using the model or its guarantee, at the fit's call."""
        guarantee, affected = self.privacy_, self.privacy_.affected_users
        by_far = far_from_resolved(self.unresolved_, guarantee.n_users)
        found = [self.result_.message, *notes_on(by_far, self.result_.total_error, guarantee)]
        if affected is not None and affected.clear:
            found.append(affected.in_words(guarantee.word))
        if guarantee.delta * guarantee.n_users >= 1:
            found.append(
                f"delta={guarantee.delta:g} is not below 1 over the {guarantee.n_users} {guarantee.word}s: it would "
                "even allow publishing a user's data outright. Choose it well below."
            )
        for text in filter(None, found):
            warnings.warn(text, UtilityWarning, stacklevel=stacklevel)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = not self.unprotected_checks
        tags.input_tags.sparse = True
        tags.target_tags.required = True
        return tags

    def _predictions(self, X: Any) -> np.ndarray:
        """One column per output."""
        check_is_fitted(self, "coef_")
        if self.columns is not None and not (isinstance(X, np.ndarray) or is_sparse(X)):  # those are features already
            X = self.columns_.encode(X)
        else:
            X = validate_data(self, X, reset=False, dtype=_FLOATS, accept_sparse="csr")
        return np.asarray(X @ np.atleast_2d(self.coef_).T + self.intercept_)

    def _penalty(self) -> float:
        """l2 for what is minimised: a mean loss of what is learned, weighted by at most the largest of what rows have.

        Counts of rows with an exposure grow with it as their weights do, so it is no part of this.
        """
        largest = math.prod(number or 1.0 for name, number in self.largest_.items() if name != "exposure")
        unit = self._targets.loss * largest / self._targets.weight**2
        return self.l2 / unit if isinstance(self.l2, int | float | np.number) else self.l2

    def _radius(self) -> float:
        """Of the weights that are learned."""
        solver = Solver.of(self.solver)
        return solver.radius if solver.domain_radius is None else solver.domain_radius / self._targets.weight

    def _limits(self) -> tuple[float, float] | None:
        """What predictions stay within, if they are numbers."""
        return None if self._classifies else self._targets.ends

    @abstractmethod
    def _loss(self) -> Loss:
        """What is minimised, once what is public about targets is known."""


def as_json(value: Any) -> Any:
    """A parameter as JSON knows it."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Columns):
        return value.to_dict()
    if isinstance(value, Solver):
        return value.as_json
    if isinstance(value, Mapping):
        return [[as_json(key), as_json(item)] for key, item in value.items()]  # keys need not be text
    return [as_json(item) for item in value] if isinstance(value, list | tuple) else value
