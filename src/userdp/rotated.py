"""A statistic whose vectors are rotated and shifted, both publicly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from userdp.data import UserData
from userdp.rotation import rotate
from userdp.statistics import Statistic


@dataclass(frozen=True, eq=False)
class Rotated:
    """U x - centre for each vector x of another statistic, U being the rotation of `userdp.rotation`.

    A vector that is not finite, or too large to be rotated, has coordinates that are not finite.

    Guarantee: vector j is a function of vector j of that statistic, and of the centre.
    """

    statistic: Statistic
    centre: np.ndarray

    @property
    def needs_targets(self) -> bool:
        return self.statistic.needs_targets

    @property
    def takes_groups(self) -> bool:
        return self.statistic.takes_groups

    def __call__(self, data: UserData, users: np.ndarray, n_groups: int) -> np.ndarray:
        with np.errstate(all="ignore"):
            rotated = rotate(self.statistic(data, users, n_groups))
            if rotated.shape[1] != np.size(self.centre):
                raise ValueError(f"Expected a centre of {rotated.shape[1]} coordinates, got {np.size(self.centre)}.")
            shifted: np.ndarray = rotated - self.centre
            return shifted

    def check(self, n_features: int, dtype: npt.DTypeLike = np.float64) -> None:
        self.statistic.check(n_features, dtype)
        nobody = UserData(np.zeros((2, n_features), dtype), np.zeros(2), np.array([0, 1, 2]))
        self(nobody, np.empty(0, np.int64), 0)
