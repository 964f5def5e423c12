"""Features of size about 1, which the solvers expect: by public ranges, or by private means and scales."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from userdp.data.source import Source, check_purpose
from userdp.data.users import UserData
from userdp.models.means import column_names, mean_of_users
from userdp.models.sklearn_compat import Execution, PrivateEstimator, documented, owners, read_rows, unit_word
from userdp.privacy.accounting import REPLACE_ONE, budget_for
from userdp.privacy.ledger import Ledger
from userdp.solvers.planner import check_delta

_OUTLIERS = 0.01
_ENDS = "of the public range of every feature, or one number per feature; from what features mean, not from the data."


class _Scaler(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


@documented(low=f"The lowest end {_ENDS}", high=f"The highest end {_ENDS}")
@dataclass(eq=False, repr=False)
class PublicScaler(_Scaler):
    """Scale features from public ranges to [-1, 1], and cut off what lies beyond. Learns nothing, costs no privacy.

    >>> PublicScaler(low=[0, 18], high=[1, 98]).fit_transform([[0.5, 38], [2.0, 98]])
    array([[ 0. , -0.5],
           [ 1. ,  1. ]])
    """

    low: npt.ArrayLike | None = None
    high: npt.ArrayLike | None = None

    def fit(self, X: Any, y: Any = None) -> Self:
        """Check the ranges; of X only the number of features matters. Lists take it from `low` or `high`."""
        read_rows(self, X, width=_width(self.low, self.high))
        self.middle_, self.half_ = public_range(self.low, self.high, self.n_features_in_)
        return self

    @np.errstate(all="ignore")
    def transform(self, X: Any) -> np.ndarray:
        """Rows in units of the ranges."""
        check_is_fitted(self)
        X = read_rows(self, X, reset=False)
        return np.asarray(np.clip((X - self.middle_) / self.half_, -1, 1))


@documented(
    {
        "mean_ : array": "Mean of each feature.",
        "scale_ : array": "Standard deviation of each feature.",
        "privacy_ : Statement": "What was guaranteed and spent.",
        "source_ : Source": "Names of the columns, and of the one that says who is a user, as far as they are known.",
    },
    low=f"The lowest end {_ENDS} What lies beyond is cut off. Too wide a range costs noise.",
    high=f"The highest end {_ENDS}",
)
@dataclass(eq=False, repr=False)
class PrivateStandardScaler(_Scaler, PrivateEstimator):
    """Take off the mean and divide by the standard deviation of each feature, both learned privately for whole users.

    Means and mean squares over users (every user counts the same), in units of public ranges, are released together;
    what cannot be distinguished from noise is taken to be as large as the noise. Missing values count as the middle of
    a range. Users who are far from the others count less, or not at all (`private_mean`), which pulls means of skewed
    features towards the bulk.

    Guarantee: mean_ and scale_ are (epsilon, delta)-differentially private for `neighbours`: one user's whole data is
    replaced, or with "zero-out" adds nothing.
    They come on top of what a model costs: give both the same `ledger`.
    """

    epsilon: float = 0.1
    delta: float | None = None
    _: KW_ONLY
    low: npt.ArrayLike | None = None
    high: npt.ArrayLike | None = None
    max_rows_per_user: int | None = None
    ledger: Ledger | str | None = None
    execution: Execution | None = None
    insecure_seed: int | None = None
    privacy_unit: str = "user"
    neighbours: str = REPLACE_ONE
    unit: str | None = None
    purpose: str = ""

    @np.errstate(all="ignore")
    def fit(self, X: Any, y: Any = None, groups: Any = None) -> Self:
        """Learn means and scales; groups[i] is the user who owns row i."""
        budget_for(self.epsilon, self.delta, 1, self.neighbours)  # refuses what makes no sense, before anything else
        engine = Execution.of(self.execution).without(type(self).__name__, "checkpoint").engine
        check_purpose(self.purpose)
        unit = unit_word(self.privacy_unit, self.unit)
        self._warn_of_surroundings(stacklevel=2)
        if groups is None:
            owners(None, self.privacy_unit, 0)  # says that they are missing, before anything else is wrong
        source = replace(Source.of(users=groups), columns=", ".join(column_names(X)) or None)
        X = read_rows(self, X, width=_width(self.low, self.high))
        middle, half = public_range(self.low, self.high, self.n_features_in_)
        rows = np.nan_to_num(np.clip((X - middle) / half, -1, 1))
        data = UserData.from_arrays(
            np.hstack([rows, rows**2 - 1]),  # at most 1 long for each feature, since a^2 + (a^2 - 1)^2 <= 1
            None,
            owners(groups, self.privacy_unit, len(rows)),
            max_rows_per_user=self.max_rows_per_user,
            insecure_seed=self.insecure_seed,
        )
        budget = budget_for(self.epsilon, self.delta, data.n_users, self.neighbours)
        check_delta(budget, data.n_users, self.insecure_seed)
        purpose = source.entry(self.purpose, f"{type(self).__name__}.fit")
        # Means are at most sqrt(d) from 0, so no two are farther apart than twice that.
        spread, seed = (1e-6, 2 * math.sqrt(self.n_features_in_)), self.insecure_seed
        run: dict[str, Any] = {"engine": engine, "insecure_seed": seed, "unit": unit}
        run |= {"ledger": self._opened_ledger(), "purpose": purpose}
        released = mean_of_users(data, budget, spread, _OUTLIERS, **run)
        means, squares = np.split(released.mean, 2)
        means = np.clip(means, -1, 1)
        self.mean_ = middle + half * means
        self.scale_ = half * np.sqrt(np.clip(squares + 1 - means**2, min(1.0, released.noise_std), 1.0))
        self.privacy_, self.source_ = released.privacy, source
        return self

    @np.errstate(all="ignore")
    def transform(self, X: Any) -> np.ndarray:
        """Rows with mean about 0 and standard deviation about 1, cut off where the public ranges end."""
        check_is_fitted(self)
        X = read_rows(self, X, reset=False)
        middle, half = public_range(self.low, self.high, self.n_features_in_)
        return np.asarray((np.clip(X, middle - half, middle + half) - self.mean_) / self.scale_)


def _width(low: npt.ArrayLike | None, high: npt.ArrayLike | None) -> int | None:
    """How many features the public ranges are of, if there is one for each."""
    return next((len(ends) for ends in map(np.asarray, (low, high)) if ends.ndim == 1), None)


def public_range(
    low: npt.ArrayLike | None, high: npt.ArrayLike | None, n_features: int
) -> tuple[np.ndarray, np.ndarray]:
    """Middle and half of each feature's range."""
    if low is None or high is None:
        raise ValueError(
            "Expected low and high, the public range of every feature, such as low=0, high=100, or one number per "
            "feature each. Nothing was spent."
        )
    try:
        ends = [np.broadcast_to(np.asarray(end, dtype=np.float64), n_features) for end in (low, high)]
    except (TypeError, ValueError):
        raise ValueError(
            f"Expected low and high to be numbers, or {n_features} numbers each, one per feature."
        ) from None
    if not (np.isfinite(ends).all() and (ends[0] < ends[1]).all()):
        raise ValueError("Expected finite low < high for every feature: declare their public ranges.")
    return ends[0] / 2 + ends[1] / 2, ends[1] / 2 - ends[0] / 2
