"""What estimators and scalers have in common: how they run, help, what scikit-learn's users pass, warnings.

A fit cannot know what is done around it. But whatever in scikit-learn chooses, calibrates, stacks or validates models
clones them first, so a clone remembers that it is one, and says when it is fitted that its statement covers that fit
alone. No stack is read, and it makes no difference whether there is a ledger: a ledger adds fits up, and does not make
a choice by raw scores private.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
import textwrap
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data

from userdp.data.schema import collected, matrix, numbers
from userdp.data.sparse import is_sparse, sparse_rows
from userdp.privacy.curator import Engine
from userdp.privacy.journal import Journal
from userdp.privacy.ledger import Ledger, check_unit

_T = TypeVar("_T", bound=Callable[..., Any])
NO_GROUPS = (
    "Expected groups, the user id of each row: fit(X, y, groups=user_ids). Inside Pipeline, cross_validate or "
    "GridSearchCV scikit-learn drops them silently unless metadata routing is on: call "
    "sklearn.set_config(enable_metadata_routing=True) and pass groups=user_ids to fit, or params={'groups': user_ids} "
    "to cross_validate with cv=GroupKFold(5, shuffle=True, random_state=0). If every row belongs to another user, say "
    'privacy_unit="row". Nothing was spent.'
)
_COPIED = (
    "This {} is a copy that scikit-learn, or another tool, made to fit it. Its statement covers this fit alone. Fits "
    "on the same users add up: give all of them one ledger. Choosing, calibrating, stacking or tuning around them by "
    "scores or labels of the data is not private, with a ledger neither: choose with "
    "userdp.model_selection.PrivateSearchCV. Folds, if there are any, must keep a user's rows together and depend on "
    "no data: use GroupKFold(5, shuffle=True, random_state=0), not GroupKFold without shuffle and not "
    "StratifiedGroupKFold."
)
_LOGGED = (
    "{} has replaced fit of scikit-learn's pipelines or searches, to log what is fitted with its scores on the "
    "training data. These scores are not private: turn its autologging off (mlflow.sklearn.autolog(disable=True), "
    "say), or do not publish what it logs."
)
# What parameters mean that several estimators, or functions, have.
_PARAMETERS = {
    "epsilon": "Privacy loss allowed, for whole users; 1 is a common choice.",
    "delta": "Failure probability, well below 1 / number of users. None takes (number of users)^-1.5, at most 1e-6. 0 "
    "is pure epsilon-DP: the default solver has it, with Laplace noise, and needs several times as many users.",
    "max_rows_per_user": "More rows of a user are dropped at random. The estimators also take users to have so many.",
    "fit_intercept": "Whether there is a constant.",
    "l2": "Adds l2/2 |weights|^2 to the mean loss, both in units of the targets; the intercept is not penalised.",
    "ledger": "Charged before anything is computed from the data: a `Ledger`, or (estimators, scalers) the path of an "
    "existing ledger file; None is a fresh one of (epsilon, delta). All that is learned from the same users adds up: "
    "give a private scaler and a model the same ledger.",
    "privacy_unit": '"user", with `groups` saying who owns which row; or "row", where each row is another user\'s.',
    "neighbours": 'Which data sets cannot be distinguished: "replace-one", where one user\'s whole data is replaced, '
    'or "zero-out", where it adds nothing to any total, as if it had not been used. The latter needs half of the noise '
    "for the same epsilon, and is what most other libraries print.",
    "unit": 'What one user is called in the statement, the report and the ledger, such as "household"; None is "user".',
    "solver": '"auto", or the name of a solver; or `userdp.Solver(...)`, for its options.',
    "execution": "How it runs, as `userdp.Execution(...)` says: who computes, a journal to go on by, a progress bar. "
    "It can never change the guarantee.",
    "public_X": "Public rows that are like the users', without the intercept's column: the default solver learns "
    "scales and correlations from them, at no cost. Not kept in the model.",
    "allow_weak": "Go on even if public numbers say that noise dominates the result, or that delta is not below 1 / "
    "number of users, which estimators refuse before anything is charged, unless seeded.",
    "insecure_seed": "Makes everything repeatable and NOTHING PRIVATE; for tests.",
    "purpose": "What it is for, in words that may be shown to anyone: the ledger and what is released name it, with "
    "the names of the file and of the columns as far as they are known.",
    "target_range": 'Public lowest and highest target; those beyond are cut off, and so are predictions. "private" '
    "learns them within the same plan and charge, for `columns_fraction` of the budget.",
}
_EXPERT = {
    *("solver", "execution", "public_X", "insecure_seed", "allow_weak", "unprotected_checks", "target_bound"),
    *("prediction_scale", "warm_start", "purpose"),
}


OF_SOLVER = ("mode", "row_norm", "domain_radius", "max_gradients")
_MOVED = {name: ("solver", "Solver", name) for name in OF_SOLVER}
_MOVED |= {name: ("execution", "Execution", name) for name in ("engine", "checkpoint", "progress")}
_MOVED |= {"verbose": ("execution", "Execution", "progress")}


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How it runs, which can never change the guarantee.

    Parameters
    ----------
    engine : Engine or str or None
        Who computes: None is this process, "ray" a Ray on this machine, `RayEngine(address=...)` a cluster.
    checkpoint : Journal or str or None
        Path of a journal, by which the same call, after the process was killed, resumes after the last recorded
        release: nothing is charged or released twice. The data must be the same, users in the same order. As secret as
        the data; delete it once the fit has ended: it is then refused for another.
    progress : bool or None
        True shows a progress bar, None shows it on a terminal only.
    """

    engine: Engine | str | None = None
    checkpoint: Journal | str | None = None
    progress: bool | None = None

    @classmethod
    def of(cls, execution: Execution | None) -> Execution:
        """What a parameter `execution` says."""
        if not isinstance(execution, cls | None):
            raise TypeError(
                f"Expected execution to be None or userdp.Execution(...), got {execution!r}. Nothing was spent."
            )
        return cls() if execution is None else execution

    def without(self, who: str, *names: str) -> Self:
        """The same; refuses what is not for these, and would be without effect."""
        for name in names:
            if getattr(self, name) is not None:
                raise ValueError(f"Expected no {name} in execution of {who}, which takes none. Nothing was spent.")
        return self


def refuse_moved(given: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Say where a keyword has gone that was one of estimators and functions until 0.1."""
    for name in given:
        if name in _MOVED and name not in known:
            parameter, record, now = _MOVED[name]
            value = mode_now(given[name]) if name == "mode" else given[name]
            raise TypeError(
                f"Expected no {name}={given[name]!r}: it is now {parameter}=userdp.{record}({now}={value!r}). Nothing "
                "was spent."
            )


def refusing_moved(function: _T) -> _T:
    """The function, which says of keywords that it had once where they have gone."""
    known = inspect.signature(function).parameters

    @functools.wraps(function)
    def checked(*args: Any, **given: Any) -> Any:
        refuse_moved(given, known)
        return function(*args, **given)

    return checked  # type: ignore[return-value]


def mode_now(mode: Any) -> Any:
    """A mode of files or calls of 0.1 as it is called now."""
    return "calibrated" if mode == "tight" else mode


def documented(attributes: dict[str, str] | None = None, **own: str) -> Callable[[_T], _T]:
    """Put numpydoc sections into the help of a class or function, before its examples: types and defaults are those of
    its signature, texts its `own` or the common ones; `attributes` are "name" or "name : type" and text. Keywords that
    it had once are refused with their new place.
    """

    def add(thing: _T) -> _T:
        found = inspect.signature(thing).parameters.values()
        texts = {_entry(p): (_PARAMETERS | own)[p.name] for p in found}
        expert = {entry: text for entry, text in texts.items() if entry.split(" : ")[0] in _EXPERT}
        usual = {entry: text for entry, text in texts.items() if entry not in expert}
        sections = {"Parameters": usual, "Other Parameters": expert, "Attributes": attributes or {}}
        head, mark, examples = inspect.cleandoc(thing.__doc__ or "").partition(">>>")
        parts = [head.strip(), *(_section(title, entries) for title, entries in sections.items() if entries)]
        thing.__doc__ = "\n\n".join([*parts, *([f"Examples\n--------\n{mark}{examples}"] if examples else [])]) + "\n"
        if not isinstance(thing, type):
            return refusing_moved(thing)
        thing.__init__ = refusing_moved(thing.__init__)  # type: ignore[misc]
        return thing

    return add


def _entry(parameter: inspect.Parameter) -> str:
    kind = re.sub(r"npt\.|\[Any\]", "", str(parameter.annotation)).replace(" | ", " or ")
    default = "" if parameter.default is parameter.empty else f", default={parameter.default!r}"
    return f"{parameter.name} : {kind}{default}"


def _section(title: str, entries: dict[str, str]) -> str:
    lines = [f"{entry}\n{textwrap.indent(textwrap.fill(text, 106), '    ')}" for entry, text in entries.items()]
    return "\n".join([title, "-" * len(title), *lines])


class PrivateEstimator(BaseEstimator):
    """What private estimators and scalers have in common: `fit` takes groups, and a ledger may be a path."""

    __metadata_request__fit: ClassVar[dict[str, bool]] = {"groups": True}

    ledger: Ledger | str | None

    _copied = False  # whether `sklearn.base.clone` made it

    def set_params(self, **params: Any) -> Self:
        """Set parameters, as scikit-learn's estimators do."""
        refuse_moved(params, self.get_params(deep=False))
        super().set_params(**params)
        return self

    def __sklearn_clone__(self) -> Self:
        """A copy that is not fitted, and knows that it is one."""
        copy: Self = super().__sklearn_clone__()
        copy._copied = True
        return copy

    def _warn_of_surroundings(self, stacklevel: int) -> None:
        """Say what is not covered, if a tool has cloned this model to fit it or logs scores of what is fitted.

        Called before anything is charged. Whether there is a warning depends on the calling code alone, never on data.
        """
        logger = replaced_by()
        texts = [_COPIED.format(type(self).__name__)] * self._copied + [_LOGGED.format(logger)] * bool(logger)
        for text in texts:
            warnings.warn(text, PrivacyWarning, stacklevel=stacklevel + 1)

    def _opened_ledger(self) -> Ledger | None:
        return Ledger.open(self.ledger) if isinstance(self.ledger, str) else self.ledger


def unit_word(privacy_unit: str, unit: str | None) -> str:
    """What one of those who are protected is called, checked; "row" where each row is another user's."""
    if unit is None:
        return privacy_unit
    if privacy_unit == "row":
        raise ValueError('unit is what one user is called: leave it out with privacy_unit="row". Nothing was spent.')
    return check_unit(unit)


def owners(groups: Any, privacy_unit: str, n_rows: int) -> Any:
    """Who owns which row: the groups, or another user for each."""
    if privacy_unit not in ("user", "row"):
        raise ValueError(f'Expected privacy_unit={privacy_unit!r} to be "user" or "row".')
    if groups is None and privacy_unit == "user":
        raise ValueError(NO_GROUPS)
    if groups is not None and privacy_unit == "row":
        raise ValueError('Expected no groups with privacy_unit="row": leave one of them out.')
    if isinstance(groups, range) or type(groups).__name__ == "RangeIndex":  # by their type: cells would be revealed
        raise ValueError(
            "Expected groups to be user ids, got the numbers of rows: if every row is another user's, say "
            'privacy_unit="row" instead. Nothing was spent.'
        )
    return range(n_rows) if groups is None else groups


def read_rows(estimator: Any, X: Any, reset: bool = True, width: int | None = None, sparse: bool = False) -> Any:
    """A matrix of numbers of an array or table; sets or checks the estimator's features by names and width only.

    Lists are read if their width is public: declared, or known from the fit. With `sparse`, sparse ones are
    `SparseRows`.
    """
    X = collected(X)
    width = width if reset else estimator.n_features_in_
    rows = sparse_rows("X", X) if sparse and is_sparse(X) else matrix("X", X, width)
    validate_data(estimator, X if hasattr(X, "columns") else rows, skip_check_array=True, reset=reset)
    return rows


def read_targets(y: Any, n_rows: int) -> Any:
    """The column of targets, one per row."""
    if isinstance(y, np.ndarray) and y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if isinstance(y, str | bytes) or not hasattr(y, "__len__") or getattr(y, "ndim", 1) != 1 or len(y) != n_rows:
        raise ValueError("Expected y with one target per row of X, in one dimension.")
    return y


def read_weights(name: str, column: Any, n_rows: int) -> np.ndarray:
    """A number per row that is no less than 0, 0 where it is none."""
    if isinstance(column, str | bytes) or not hasattr(column, "__len__") or len(column) != n_rows:
        raise ValueError(f"Expected {name} with one number per row of X, in one dimension.")
    values = numbers(name, column)
    return np.where(values > 0, values, 0.0)  # 0 for NaN, too


class UtilityWarning(UserWarning):
    """A model is of little use, or its guarantee, or lacks intervals: a test aborted, noise may dominate, and so on."""


class PrivacyWarning(UserWarning):
    """More is released than a statement covers."""


# What wraps models of others in scikit-learn, and is therefore replaced by packages that log all that is fitted.
_WRAPPERS = {"sklearn.pipeline": "Pipeline", "sklearn.model_selection": "GridSearchCV"}


def replaced_by() -> str:
    """The package that has replaced a `fit` of scikit-learn, as MLflow's autologging does; "" if none has.

    What is looked at is loaded code alone, no data.
    """
    for module, name in _WRAPPERS.items():
        fit = getattr(getattr(sys.modules.get(module), name, None), "fit", None)
        if fit is not None:
            owner = fit.__globals__["__name__"] if isinstance(fit, FunctionType) else type(fit).__module__
            if owner.partition(".")[0] != "sklearn":
                return str(owner.partition(".")[0])
    return ""
