"""Hyperparameters chosen privately: all candidates, their scores and the choice, within one budget.

>>> import numpy as np
>>> from userdp import LogisticRegression
>>> rng = np.random.default_rng(0)
>>> users, X = np.repeat(np.arange(20_000), 3), rng.uniform(-1, 1, (60_000, 2))
>>> y = X[:, 0] > X[:, 1] + rng.normal(0, 0.3, 60_000)
>>> search = PrivateSearchCV(LogisticRegression(max_rows_per_user=3), {"l2": [0.0, 1.0]}, epsilon=4.0)
>>> search.fit(X, y, groups=users).best_params_
{'l2': 0.0}
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from datetime import UTC, datetime
from typing import Any, Self

import numpy as np
import sklearn
from sklearn.base import BaseEstimator, MetaEstimatorMixin, TransformerMixin, clone
from sklearn.model_selection import ParameterGrid
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from userdp.data.groups import Groups
from userdp.data.schema import collected
from userdp.data.source import SHARED, Source, shares_memory
from userdp.data.sparse import is_sparse
from userdp.evaluation.row_losses import as_table, row_losses, taken
from userdp.models.estimators import QuantileRegressor
from userdp.models.fitting import bar
from userdp.models.linear import LinearModel
from userdp.models.pipelines import check_steps, fit_on_nobody, transformed
from userdp.models.sklearn_compat import Execution, PrivateEstimator, documented, owners, read_targets, unit_word
from userdp.privacy.accounting import BudgetExceeded, budget_for
from userdp.privacy.ledger import Ledger
from userdp.privacy.mechanism import Users, Vectors
from userdp.privacy.selection import (
    Drafted,
    Selected,
    SelectionPlan,
    check_telling,
    plan_selection,
    select,
)
from userdp.privacy.statement import COVERS_SEARCH, statement

# What candidates have in common: what scores are of, and in which units, and whose fits they are.
_IN_COMMON = (
    *("privacy_unit", "insecure_seed", "max_rows_per_user", "classes", "target_range", "max_count", "quantile"),
    *("epsilon", "delta", "allow_weak", "purpose", "execution", "neighbours", "unit"),
)
_NOT_TRIED = {*_IN_COMMON, "ledger", "unprotected_checks"}  # in a param_grid
_FAILED = (
    "Expected every candidate's fit to be checked before anything is charged; a check failed. Try the search on data "
    "that is not private. Nothing was spent."
)
_OF_CLASSES = {"neg_brier_score": "brier", "accuracy": "accuracy"}  # and what `evaluation.row_losses` calls them
_OF_NUMBERS = {
    "neg_mean_squared_error": "mse",
    "neg_mean_absolute_error": "mae",
    "neg_mean_pinball_loss": "pinball",
}


def _has(name: str) -> Callable[[PrivateSearchCV], bool]:
    return lambda search: hasattr(getattr(search, "best_estimator_", search.estimator), name)


class SelectFeatures(TransformerMixin, BaseEstimator):
    """Takes some features of an array or table, by their names or positions; all if None. It learns nothing.

    In front of a model it makes sets of features something to choose from, see `PrivateSearchCV`.

    >>> SelectFeatures([0, 2]).fit_transform(np.array([[1, 2, 3]])).tolist()
    [[1, 3]]
    """

    def __init__(self, features: Sequence[Any] | None = None) -> None:
        self.features = features

    def fit(self, X: Any, y: Any = None) -> Self:
        """Nothing: which features are taken is public."""
        return self

    def transform(self, X: Any) -> Any:
        """The features."""
        return X if self.features is None else _safe_indexing(X, list(self.features), axis=1)

    def __sklearn_is_fitted__(self) -> bool:
        return True


@documented(
    {
        "best_params_ : dict": "Parameters of the chosen candidate.",
        "best_estimator_ : estimator": "The chosen candidate, refitted on everyone, or as it was scored. Its "
        "`privacy_` is that of the whole search.",
        "best_score_ : float": "The chosen candidate's noisy score, to compare candidates by: the best of several, so "
        "it is too good on average, and its level has the noise of `std_test_score`. "
        "For an honest one use `userdp.evaluation.evaluate` on others.",
        "best_index_ : int": "Its place among the candidates.",
        "cv_results_ : dict": "What was released of scores, for `pandas.DataFrame`: `params` and a `param_` of each, "
        "`mean_test_score`, `rank_test_score`, and two standard deviations of noise: `noise_test_score` of that by "
        "which scores differ from each other, and `std_test_score` of each score's own, with what all of them share. "
        "Neither counts which users happen to be held out.",
        "candidates_ : list": "The released models of all candidates, in order.",
        "plan_ : SelectionPlan": "The plan that was carried out; printed, it says what noise was expected.",
        "privacy_ : Statement": "What was guaranteed and spent: one charge for all of it.",
    },
    estimator="A model of this package, or a pipeline (`userdp.make_pipeline`) that ends with one. Its own epsilon and "
    "delta are not used; its `insecure_seed`, `privacy_unit`, `purpose`, `allow_weak`, engine are the search's.",
    param_grid="Parameters to try, as `sklearn.model_selection.GridSearchCV` takes them; a list of dictionaries too.",
    scoring='What candidates are chosen by: "neg_brier_score", "accuracy", "neg_mean_squared_error", '
    '"neg_mean_absolute_error" or "neg_mean_pinball_loss", of which each held-out user counts once. None takes the '
    "first for models with probabilities, and for others what they minimise, or accuracy.",
    refit="Whether the chosen candidate is fitted again on everyone. If not, it is the model that was scored.",
    held_out="The fraction of users on whom candidates are scored; they are drawn at random, and train no candidate.",
    refit_fraction="The part of the budget for the refit (of mu^2, the square of what it is as Gaussian noise).",
)
@dataclass(eq=False, repr=False)
class PrivateSearchCV(MetaEstimatorMixin, PrivateEstimator):
    """Chooses hyperparameters privately, with the interface of scikit-learn's `GridSearchCV`: one budget for all of it.

    Candidates are fitted on some users and scored on others, who are held out; fits and scores, as different users
    pay for them, cost no more than the more expensive of both. Nothing but what `cv_results_`, `candidates_` and
    `best_estimator_` hold leaves.

    Steps before the model are fitted on nobody's data. If they fail on a row, all rows of its user are missing values
    in fits; of scores that row is the worst.

    Guarantee: all of it together, errors too, is (epsilon, delta)-differentially private under replacement of one
    user's whole data, unless seeded; provided that steps before the model make of a row, or fail on it, what that row
    alone says, as those of scikit-learn do that are taken (a function of your own in a `FunctionTransformer` should).
    """

    estimator: Any
    param_grid: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Sequence[Any]]]
    epsilon: float = 1.0
    delta: float | None = None
    _: KW_ONLY
    scoring: str | None = None
    refit: bool = True
    held_out: float = 0.2
    refit_fraction: float = 0.5
    ledger: Ledger | str | None = None
    execution: Execution | None = None

    @np.errstate(all="ignore")
    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Search: rows X and targets y, where groups[i] is the user who owns row i.

        Guarantee: all that is kept afterwards is (epsilon, delta)-differentially private for the estimator's
        `neighbours`, unless seeded.
        """
        execution = Execution.of(self.execution).without("PrivateSearchCV", "checkpoint", "engine")
        began = datetime.now(UTC).date().isoformat()
        candidates = self._candidates()
        tried = (pair for parameters in ParameterGrid(self.param_grid) for pair in parameters.items())
        public = [value for name, value in tried if name.rpartition("__")[2] == "public_X"]
        if any(shares_memory(rows, X) for rows in [model_of(self.estimator).public_X, *public]):
            raise ValueError(SHARED)
        base = model_of(candidates[0][1])
        self._warn_of_surroundings(stacklevel=2)
        if y is None:
            raise ValueError("PrivateSearchCV requires y to be passed, but the target y is None.")
        X = X.tocsr() if is_sparse(X) else collected(X)
        n_rows = X.shape[0] if hasattr(X, "shape") else len(X)
        grouped = Groups.make(owners(groups, base.privacy_unit, n_rows), n_rows)
        codes = np.empty(n_rows, dtype=np.int64)  # the number of the user who owns each row
        own = np.repeat(np.arange(len(grouped.offsets) - 1), np.diff(grouped.offsets))
        codes[slice(None) if grouped.order is None else grouped.order] = own
        data = _People(X, read_targets(y, n_rows), codes, base.privacy_unit == "user")
        budget = budget_for(self.epsilon, self.delta, data.n_users, base.neighbours)
        scoring = self._scoring(base)
        plan = self.plan(data.n_users)
        _draft(plan, candidates, data)
        ledger = self._opened_ledger() or Ledger(budget)
        names = Source.of(y, groups).entry(base.purpose, f"PrivateSearchCV.fit, {len(candidates)} candidates")

        def fit(number: int, users: Users, part: Ledger, seed: int | None) -> Any:
            return _fitted(candidates[number][1], data, users, part, seed)

        def losses(models: list[Any], users: Users) -> Vectors:
            return data.losses(models, users, scoring)

        with bar(execution.progress) as tell:
            seed, unit = base.insecure_seed, unit_word(base.privacy_unit, base.unit)
            found = select(plan, ledger, fit, losses, purpose=names, insecure_seed=seed, tell=tell, unit=unit)
        self.plan_ = plan
        whole = statement(plan.certified, budget, ledger, base.insecure_seed, unit)
        self.privacy_ = replace(whole, covers=COVERS_SEARCH)
        self._keep(found, candidates, scoring, began)
        return self

    def plan(self, n_users: int) -> SelectionPlan:
        """What a search of so many users would cost and which noise it would have, by public numbers alone."""
        if not 0 < self.held_out < 1 or not 0 < self.refit_fraction < 1:
            raise ValueError(
                f"Expected 0 < held_out={self.held_out} < 1 and 0 < refit_fraction={self.refit_fraction} < 1."
            )
        return plan_selection(
            n_users,
            len(ParameterGrid(self.param_grid)),
            budget_for(self.epsilon, self.delta, n_users, model_of(self.estimator).neighbours),
            held_out=self.held_out,
            refit_fraction=self.refit_fraction if self.refit else 0.0,
        )

    def _candidates(self) -> list[tuple[dict[str, Any], Any]]:
        """Parameters and unfitted estimators; refuses what cannot be searched for, before anything is read."""
        grid = list(ParameterGrid(self.param_grid))
        if len(grid) < 2:
            raise ValueError("Expected at least 2 candidates in param_grid: with one there is nothing to choose.")
        for name in {name for parameters in grid for name in parameters}:
            if name.rpartition("__")[2] in _NOT_TRIED:
                raise ValueError(
                    f"Expected param_grid without {name!r}: that is the same for all candidates. Give epsilon, delta "
                    "and ledger to PrivateSearchCV, and the others to the estimator. Nothing was spent."
                )
        made = [(parameters, clone(self.estimator).set_params(**parameters)) for parameters in grid]
        first = model_of(made[0][1])
        for _, candidate in made:
            _check_candidate(candidate, first)
        return made

    def _scoring(self, model: LinearModel) -> str:
        fitting = [*(_OF_CLASSES if model._classifies else _OF_NUMBERS)]
        if model._classifies and not hasattr(model, "predict_proba"):
            fitting = ["accuracy"]
        usual = "neg_mean_pinball_loss" if isinstance(model, QuantileRegressor) else fitting[0]
        named = usual if self.scoring is None else self.scoring
        if named not in fitting:
            raise ValueError(
                f"Expected scoring={self.scoring!r} to be None or, of {type(model).__name__}, one of "
                f"{', '.join(fitting)}. Nothing was spent."
            )
        return named

    def _keep(
        self, found: Selected[Any], candidates: list[tuple[dict[str, Any], Any]], scoring: str, began: str
    ) -> None:
        for model in [*found.models, *([] if found.refitted is None else [found.refitted])]:
            self._state(model_of(model), began)
        self.best_index_, self.best_params_ = found.best, candidates[found.best][0]
        self.best_estimator_ = found.models[found.best] if found.refitted is None else found.refitted
        self.candidates_ = list(found.models)
        scores, spread = _as_scores(found.losses, found.noise_std, scoring, model_of(found.models[0]))
        std = spread * math.hypot(1.0, self.plan_.level_noise / found.noise_std)
        tried = [parameters for parameters, _ in candidates]
        self.cv_results_: dict[str, Any] = {}
        for name in sorted({name for one in tried for name in one}):  # masked where a candidate has none
            values = np.empty(len(tried), dtype=object)
            for place, one in enumerate(tried):  # not at once: values may be lists
                values[place] = one.get(name)
            self.cv_results_[f"param_{name}"] = np.ma.MaskedArray(values, mask=[name not in one for one in tried])
        self.cv_results_ |= {
            "params": tried,
            "mean_test_score": scores,
            "noise_test_score": np.full(len(scores), spread),
            "std_test_score": np.full(len(scores), std),
            "rank_test_score": 1 + np.argsort(np.argsort(-scores, kind="stable"), kind="stable"),
        }
        self.best_score_ = float(scores[found.best])
        model_of(self.best_estimator_)._warn()

    def _state(self, model: LinearModel, began: str) -> None:
        """Let a released model state the whole search: its budget, its guarantee, and when that began, not ended."""
        seed = self.privacy_.insecure_seed
        model.set_params(
            epsilon=self.epsilon,
            delta=self.delta,
            ledger=None,
            execution=model_of(self.estimator).execution,
            insecure_seed=seed,
        )
        model.privacy_, model.result_ = self.privacy_, replace(model.result_, privacy=self.privacy_)
        model.facts_["created"] = began
        model.facts_["parameters"] |= {"epsilon": self.epsilon, "delta": self.delta, "insecure_seed": seed}

    @property
    def classes_(self) -> np.ndarray:
        """Of classifiers: the classes, sorted."""
        classes: np.ndarray = self._best().classes_
        return classes

    def _best(self) -> Any:
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_

    def predict(self, X: Any) -> np.ndarray:
        """What the chosen model predicts."""
        return np.asarray(self._best().predict(X))

    def score(self, X: Any, y: Any) -> float:
        """The chosen model's own score of these rows; not private."""
        return float(self._best().score(X, y))

    @available_if(_has("predict_proba"))
    def predict_proba(self, X: Any) -> np.ndarray:
        """The chosen model's probability of each class."""
        return np.asarray(self._best().predict_proba(X))

    @available_if(_has("predict_log_proba"))
    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Logarithm of the chosen model's probability of each class."""
        return np.asarray(self._best().predict_log_proba(X))

    @available_if(_has("decision_function"))
    def decision_function(self, X: Any) -> np.ndarray:
        """The chosen model's predictions before they become classes."""
        return np.asarray(self._best().decision_function(X))

    def __sklearn_tags__(self) -> Any:
        tags, inner = super().__sklearn_tags__(), sklearn.utils.get_tags(self.estimator)
        tags.estimator_type = inner.estimator_type
        tags.classifier_tags, tags.regressor_tags = inner.classifier_tags, inner.regressor_tags
        tags.input_tags, tags.target_tags = inner.input_tags, inner.target_tags
        return tags


def model_of(estimator: Any) -> LinearModel:
    """The private model itself, of a pipeline its last step."""
    model = estimator.steps[-1][1] if isinstance(estimator, Pipeline) else estimator
    if not isinstance(model, LinearModel):
        raise TypeError(
            "Expected a model of userdp such as LogisticRegression(), or a pipeline that ends with one, got "
            f"{type(model).__name__}. Nothing was spent."
        )
    return model


def _check_candidate(candidate: Any, first: LinearModel) -> None:
    model = model_of(candidate)
    steps = [step for _, step in candidate.steps[:-1]] if isinstance(candidate, Pipeline) else []
    same_kind = model._classifies == first._classifies
    same_kind = same_kind and hasattr(model, "predict_proba") == hasattr(first, "predict_proba")
    refused = {
        "candidates without ledger, checkpoint and unprotected_checks: give the ledger to the search": (
            model.ledger is not None or Execution.of(model.execution).checkpoint is not None or model.unprotected_checks
        ),
        "candidates without evaluate: users who helped to choose a model would score it. Score it on others, with "
        "userdp.evaluation.evaluate": model.evaluate is not None,
        "candidates that predict the same kind of thing": not same_kind,
        "a target_range that is declared, not 'private', in a search: scores of all candidates are reported in units "
        "of it": model._learns_range,
    }
    for name in _IN_COMMON:
        different = not _equal(getattr(model, name, None), getattr(first, name, None))
        refused[f"candidates of the same {name}: else their scores are of different things"] = different
    for expected, wrong in refused.items():
        if wrong:
            raise ValueError(f"Expected {expected}. Nothing was spent.")
    check_steps(steps)
    if "epsilon" in {name.rpartition("__")[2] for step in steps for name in getattr(step, "get_params", dict)()}:
        raise ValueError(
            "Expected steps that learn nothing before the model: a private scaler has a budget of its own. Use "
            "PublicScaler, or none: the default solver works in columns of any units. Nothing was spent."
        )


def _equal(one: Any, other: Any) -> bool:
    """Whether two parameters are the same, arrays and lists by what is in them."""
    return one is other or np.array_equal(np.asarray(one, dtype=object), np.asarray(other, dtype=object))


def _draft(plan: SelectionPlan, candidates: list[tuple[dict[str, Any], Any]], data: _People) -> None:
    """Let every fit go as far as it goes without data, on as many users as it will have."""
    if not model_of(candidates[0][1]).allow_weak and model_of(candidates[0][1]).insecure_seed is None:
        check_telling(plan)
    everyone, some = np.arange(plan.n_users), np.arange(plan.n_training)
    parts = [(some, plan.fit_mu_squared)] + [(everyone, plan.refit_mu_squared)] * (plan.refit_mu_squared > 0)
    for parameters, candidate in candidates:
        for users, mu_squared in parts:
            part = plan.part_ledger(mu_squared, draft=True)
            try:
                _fitted(candidate, data, users, part, model_of(candidate).insecure_seed)
            except Drafted:
                continue
            except BudgetExceeded as refused:
                raise BudgetExceeded(
                    f"Expected room for {plan.n_candidates} candidates: each fit has epsilon "
                    f"{part.budget.epsilon:.3g} of {plan.budget.epsilon:g}, and with {parameters} that is refused. Try "
                    f"fewer candidates, or a larger epsilon. The refusal: {refused}"
                ) from None
            except (TypeError, ValueError):  # of the estimators themselves, which state public facts only
                raise
            except Exception:  # which could show values, as its cause could
                pass
            raise RuntimeError(_FAILED)


def _fitted(candidate: Any, data: _People, users: Users, part: Ledger, seed: int | None) -> Any:
    """A fitted copy, whose budget is the part's."""
    fitted = clone(candidate)
    model_of(fitted)._copied = False  # this search's own, which one statement covers
    quiet = replace(Execution.of(model_of(candidate).execution), progress=False)
    model_of(fitted).set_params(
        epsilon=part.budget.epsilon, delta=part.budget.delta, ledger=part, insecure_seed=seed, execution=quiet
    )
    X, y, codes = data.of(users)
    model_of(fitted).fit(_prepared(fitted, X, codes), y, groups=codes if data.grouped else None)
    return fitted


def _prepared(unfitted: Any, X: Any, codes: Users) -> Any:
    """What a pipeline's steps, fitted here on nobody's data, make of rows: missing values of users they fail for."""
    if not isinstance(unfitted, Pipeline) or len(unfitted.steps) == 1:
        return X
    steps = unfitted[:-1]
    if all(isinstance(step, SelectFeatures) or step in (None, "passthrough") for _, step in steps.steps):
        return steps.transform(X)  # of any kind of table: no cell is looked at
    X = as_table(X)
    return transformed(steps, X, codes, fit_on_nobody(steps, X))


@dataclass(frozen=True, eq=False)
class _People:
    """Rows and targets as they were passed, and the number of the user who owns each row."""

    X: Any
    y: Any
    codes: Users
    grouped: bool

    @property
    def n_users(self) -> int:
        return int(self.codes.max()) + 1

    def of(self, users: Users) -> tuple[Any, Any, Users]:
        """Rows, targets and owners of some users, in the order in which they came."""
        among = np.zeros(self.n_users, dtype=bool)
        among[users] = True
        rows = np.flatnonzero(among[self.codes])
        return taken(self.X, rows), taken(self.y, rows), self.codes[rows]

    def losses(self, models: list[Any], users: Users, scoring: str) -> Vectors:
        """The mean loss of each user's rows, in [0, 1]: one row a user, in their order, one column a model."""
        X, y, codes = self.of(users)
        place = np.empty(self.n_users, dtype=np.int64)
        place[users] = np.arange(len(users))
        own = place[codes]
        counts = np.bincount(own, minlength=len(users))
        columns = []
        for model in models:
            scored = model_of(model)
            ends = None if scored._classifies else scored._targets.ends
            of_rows = row_losses(model, X, y, (_OF_CLASSES | _OF_NUMBERS)[scoring], target_range=ends)
            columns.append(np.bincount(own, of_rows, len(users)) / counts)  # row after row of a user
        return np.column_stack(columns)


def _as_scores(losses: Vectors, noise_std: float, scoring: str, model: LinearModel) -> tuple[np.ndarray, float]:
    """Losses in [0, 1] as scores, greater is better, in the targets' units; and the noise in the same."""
    if scoring == "accuracy":
        return 1 - losses, noise_std
    low, high = (0.0, 1.0) if model._classifies else model._targets.ends
    unit = (high - low) ** (2 if scoring == "neg_mean_squared_error" else 1)
    return -losses * unit, noise_std * unit
