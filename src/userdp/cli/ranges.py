"""Public ranges of features: rows are scaled by them for training, and weights brought back to the columns' units."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from userdp.cli.errors import InputError
from userdp.data.users import UserData
from userdp.models.base import LinearModel

_FORM = "--feature-range low,high for all features, or age=0:100,spend=0:500 for some"


@dataclass(frozen=True, eq=False)
class Ranges:
    """Middle and half of each feature's range; 0 and 1 for features that stay as they are."""

    low: np.ndarray
    high: np.ndarray
    given: np.ndarray

    @classmethod
    def read(cls, text: str, features: list[str]) -> Ranges:
        """The ranges that an option names, such as "0,100" or "age=0:100,spend=0:500"."""
        low, high, given = -np.ones(len(features)), np.ones(len(features)), np.zeros(len(features), dtype=bool)
        if "=" not in text:
            low[:], high[:] = _ends(text, ",")
            given[:] = True
        else:
            for part in text.split(","):
                name, _, ends = part.partition("=")
                if name.strip() not in features:
                    raise InputError(f"Expected {_FORM}: {name.strip()!r} is not among the --features.")
                at = features.index(name.strip())
                (low[at], high[at]), given[at] = _ends(ends, ":"), True
        return cls(low, high, given)

    def scaled(self, data: UserData) -> UserData:
        """Rows in units of the ranges, cut off at their ends."""
        return replace(data, rows=self.of(data.rows))

    def of(self, rows: np.ndarray) -> np.ndarray:
        """A copy of rows in units of the ranges, cut off at their ends; further columns stay as they are."""
        rows = np.array(rows)
        with np.errstate(all="ignore"):
            for at in np.flatnonzero(self.given):
                middle, half = (self.low[at] + self.high[at]) / 2, (self.high[at] - self.low[at]) / 2
                rows[:, at] = np.clip((rows[:, at] - middle) / half, -1, 1)
        return rows

    def bring_back(self, model: LinearModel) -> None:
        """The model's weights in the columns' own units."""
        middle = np.where(self.given, (self.low + self.high) / 2, 0.0)
        half = np.where(self.given, (self.high - self.low) / 2, 1.0)
        flat = np.ndim(model.coef_) == 1
        coef = np.atleast_2d(model.coef_) / half
        intercept = np.atleast_1d(model.intercept_) - coef @ middle
        model.coef_, model.intercept_ = (coef[0], float(intercept[0])) if flat else (coef, intercept)


def _ends(text: str, mark: str) -> tuple[float, float]:
    try:
        low, high = (float(end) for end in text.split(mark))
    except ValueError:
        raise InputError(f"Expected {_FORM}, got {text!r}.") from None
    if not (low < high and np.isfinite([low, high]).all()):
        raise InputError(f"Expected {_FORM}, low < high, got {text!r}.")
    return low, high
