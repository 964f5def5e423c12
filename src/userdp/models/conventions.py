"""What estimators and scalers have in common: help, what scikit-learn's users pass, and a warning of searches.

An estimator in a search, a cross-validation or an ensemble is fitted several times on the same people. Each such fit
spends a budget of its own, and scores that choose between them are not private. A fit cannot know of the others; but
scikit-learn clones what it will fit, in the process that searches, before each fit, in other processes too. There the
stack tells.
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
import warnings
import weakref
from collections.abc import Callable
from numbers import Integral
from types import FrameType
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data

from userdp.data.schema import collected, matrix, numbers
from userdp.data.sparse import is_sparse, sparse_rows
from userdp.privacy.ledger import Ledger

_T = TypeVar("_T", bound=Callable[..., Any])
NO_GROUPS = (
    "Expected groups, the user id of each row: fit(X, y, groups=user_ids). Inside Pipeline, cross_validate or "
    "GridSearchCV scikit-learn drops them silently unless metadata routing is on: call "
    "sklearn.set_config(enable_metadata_routing=True) and pass groups=user_ids to fit, or params={'groups': user_ids} "
    "to cross_validate with cv=GroupKFold(5, shuffle=True, random_state=0). If every row belongs to somebody else, say "
    'privacy_unit="row". Nothing was spent.'
)
# What parameters mean that several estimators, or functions, have.
_PARAMETERS = {
    "epsilon": "Privacy loss allowed, for whole users under replacement; 1 is a common choice.",
    "delta": "Chance of more, well below 1 / number of users. None takes (number of users)^-1.5, at most 1e-6; "
    "`privacy_.delta` (`privacy.delta` of a result) shows it. 0 is pure epsilon-DP: of the solvers the default has it, "
    "with Laplace noise, for which it needs several times as many users.",
    "max_rows_per_user": "More rows of a user are dropped at random. The estimators also take users to have so many.",
    "fit_intercept": "Whether there is a constant.",
    "l2": "Adds l2/2 |weights|^2 to the mean loss, both in units of the targets; the intercept is not penalised.",
    "ledger": "What is charged before anything is computed from the data: a `Ledger`, or (estimators, scalers) the "
    "path of an existing ledger file. None is a fresh one of exactly (epsilon, delta). All that is learned from the "
    "same people adds up, a private scaler and a model say: give all of it one ledger.",
    "privacy_unit": '"user", with `groups` telling who owns which row; or "row", where each row is somebody else\'s.',
    "solver": '"auto" takes "whitened-clip"; by name also "phased-sgd" and "accelerated", the paper\'s, and earlier '
    "work (`userdp.plan` shows all).",
    "mode": '"tight", calibrated; or "paper", with the constants as printed.',
    "row_norm": "For the paper's solvers, whose accuracy depends on it: how long a row may be, about, the intercept's "
    "1 counted in. None takes the root of the number of features (with the intercept), right if they are of size "
    "about 1.",
    "public_X": "Rows that are nobody's secret and about like the users', without the intercept's column: the default "
    "solver then learns the columns' scales and correlations from them, at no cost. Not kept in the model.",
    "max_gradients": "An upper limit on the work. Without it time is weighed: where passes cost no accuracy, they are "
    "saved.",
    "engine": 'Who computes: None is this process, "ray" a Ray on this machine, `RayEngine(address=...)` a cluster.',
    "checkpoint": "Path of a journal. Each release is on disk before it is used, and the same call, after the process "
    "was killed, goes on behind the last one: nothing is charged or released twice. The data must be the same, with "
    "users in the same order, which their ids tell (of `UserData`, if it has `keep_user_ids`). As secret as the data; "
    "delete it once the fit has ended.",
    "allow_weak": "Go on even if public numbers say that the result is of little use: that noise is expected to "
    "dominate it, or that delta is not below 1 / number of users. Estimators refuse that before anything is charged, "
    "unless seeded.",
    "insecure_seed": "Makes everything repeatable and NOTHING PRIVATE; for tests.",
}
_EXPERT = {
    *("solver", "mode", "row_norm", "domain_radius", "public_X", "max_gradients", "engine", "checkpoint", "verbose"),
    *(
        "progress",
        "insecure_seed",
        "allow_weak",
        "unprotected_checks",
        "target_bound",
        "prediction_scale",
        "warm_start",
        "purpose",
    ),
}


def documented(attributes: dict[str, str] | None = None, **own: str) -> Callable[[_T], _T]:
    """Put numpydoc sections into the help of a class or function, before its examples: types and defaults are those of
    its signature, texts its `own` or the common ones; `attributes` are "name" or "name : type" and text.
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

    def __sklearn_clone__(self) -> Self:
        """A copy that is not fitted; where scikit-learn is about to fit several without a common ledger, a warning."""
        warn_of_search(type(self).__name__, self.ledger is not None, getattr(self, "privacy_unit", "row") == "user")
        copy: Self = super().__sklearn_clone__()
        return copy

    def _opened_ledger(self) -> Ledger | None:
        return Ledger.open(self.ledger) if isinstance(self.ledger, str) else self.ledger


def owners(groups: Any, privacy_unit: str, n_rows: int) -> Any:
    """Who owns which row: the groups, or somebody else each."""
    if privacy_unit not in ("user", "row"):
        raise ValueError(f'Expected privacy_unit={privacy_unit!r} to be "user" or "row".')
    if groups is None and privacy_unit == "user":
        raise ValueError(NO_GROUPS)
    if groups is not None and privacy_unit == "row":
        raise ValueError('Expected no groups with privacy_unit="row": leave one of them out.')
    if isinstance(groups, range) or type(groups).__name__ == "RangeIndex":  # by their type: cells would tell
        raise ValueError(
            "Expected groups to be user ids, got the numbers of rows: if every row is somebody else's, say "
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


# Modules of scikit-learn whose functions fit what they are given more than once, but for the classes below.
_REPEATING = (
    "sklearn.model_selection",
    "sklearn.calibration",
    "sklearn.ensemble",
    "sklearn.feature_selection",
    "sklearn.multiclass",
    "sklearn.multioutput",
)
_ONCE = {"FixedThresholdClassifier", "SelectFromModel"}
_warned: dict[int, weakref.ref[Any]] = {}


class UtilityWarning(UserWarning):
    """A model is of little use, or its guarantee, or lacks intervals: a test aborted, noise may dominate, and so on."""


class PrivacyWarning(UserWarning):
    """More is released than a statement covers."""


def warn_of_search(name: str, has_ledger: bool, has_users: bool = False) -> None:
    """Refuse folds that split people's rows, before anything is spent.

    Warn if scikit-learn is about to fit clones of this estimator that share no ledger; once a search.

    Whether there is a warning depends on the calling code alone, never on data.
    """
    frames = _repeating_frames()
    if has_users:
        _check_folds(frames)
    frames = [] if has_ledger else frames
    searched = _identity(frames)
    if searched is None or _seen(searched):
        return
    _warned[id(searched)] = weakref.ref(searched)
    warnings.warn(
        f"{name} is about to be fitted several times on the same people, by {_caller(frames[-1])} of scikit-learn, "
        "without a common ledger: each fit spends its epsilon and delta anew, each statement covers one fit alone, and "
        "a choice by scores that are not private is covered by none. Give all fits one ledger, "
        "ledger=Ledger(Budget(epsilon, delta), path), which adds them up; or fix hyperparameters without the data.",
        PrivacyWarning,
        stacklevel=_level_of_caller(frames[-1]),
    )


def _repeating_frames() -> list[FrameType]:
    """Frames of the stack that belong to what fits repeatedly, the innermost first.

    Empty if the outermost is a helper: then this is a worker, and the process or thread that searches cloned before.
    """
    found: list[FrameType] = []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        repeats = str(frame.f_globals.get("__name__")).startswith(_REPEATING)
        if repeats and type(frame.f_locals.get("self")).__name__ not in _ONCE:
            found.append(frame)
        frame = frame.f_back
    return found if found and found[-1].f_code.co_name[0].isalpha() else []


def _check_folds(frames: list[FrameType]) -> None:
    """Refuse a splitter of scikit-learn that knows no groups: one person would be in both folds."""
    for frame in frames:
        cv = frame.f_locals.get("cv_orig", frame.f_locals.get("cv"))
        caller: Any = frame.f_locals.get("self")
        if cv is None and hasattr(caller, "cv"):  # stacking fits on everyone before it splits
            from sklearn.model_selection import KFold

            without = caller.cv is None and type(caller).__name__.endswith("Chain")  # chains make no folds then
            cv = None if without else KFold() if caller.cv is None or isinstance(caller.cv, Integral) else caller.cv
        kinds = [kind.__name__ for kind in type(cv).__mro__]
        splits = {"BaseCrossValidator", "BaseShuffleSplit", "_UnsupportedGroupCVMixin"} & set(kinds)
        if splits and not {"GroupsConsumerMixin", "PredefinedSplit", "_CVIterableWrapper"} & set(kinds):
            raise ValueError(
                f"Expected folds that keep a person's rows together, got cv={kinds[0]}: the same people would be "
                "learned from and scored. Use cv=GroupKFold(5, shuffle=True, random_state=0) and pass groups. Nothing "
                "was spent."
            )


def _identity(frames: list[FrameType]) -> Any:
    """What is there once for a search: the object that searches, or what a function made for it (workers, a scorer)."""
    for frame in reversed(frames):
        for name in ("self", "parallel", "scorer"):
            if frame.f_locals.get(name) is not None:
                return frame.f_locals[name]
    return None


def _seen(searched: Any) -> bool:
    known = _warned.get(id(searched))
    return known is not None and known() is searched


def _caller(frame: FrameType) -> str:
    searcher = frame.f_locals.get("self")
    return frame.f_code.co_name if searcher is None else type(searcher).__name__


def beyond_sklearn(frame: FrameType) -> int:
    """How many frames further out the first one is that is none of scikit-learn, and one more for `warnings.warn`."""
    further, outer = 1, frame
    while outer.f_back is not None and str(outer.f_globals.get("__name__")).startswith("sklearn"):
        further, outer = further + 1, outer.f_back
    return further


def _level_of_caller(outermost: FrameType) -> int:
    """The level, as `warnings.warn` in this function's caller counts them, of the line that began the search."""
    level, beyond = 0, False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:  # a script's own line is in the outermost frame of all
        level, beyond = level + 1, beyond or frame is outermost
        if beyond and not str(frame.f_globals.get("__name__")).startswith("sklearn"):
            break
        frame = frame.f_back
    return level
