"""Statistics made of others: flagged where they cannot be used, less a public centre, rotated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from userdp.data import UserData
from userdp.rotation import rotate
from userdp.statistics import MeanGradient, Statistic, made_up_data, weights_vector


@dataclass(frozen=True, eq=False)
class FlaggedGradient:
    """Mean gradient of each user, and one coordinate more: `flag` for a user whose gradient is not finite, else 0.

    Such a user's gradient counts as 0. After shortening to at most `flag` both kinds of users have a vector of the same
    length at most, so that the share of unusable users is known without more noise.

    Guarantee: vector j is a function of user users[j]'s rows, in their order, and of the parameters.
    """

    needs_targets: ClassVar[bool] = True
    takes_groups: ClassVar[bool] = False
    gradient: MeanGradient
    flag: float = 1.0

    def __call__(self, data: UserData, users: np.ndarray, n_groups: int) -> np.ndarray:
        gradients = self.gradient(data, users, n_groups)
        unusable = ~np.isfinite(gradients).all(axis=1)
        return np.column_stack([np.where(unusable[:, None], 0.0, gradients), self.flag * unusable])

    def check(self, n_features: int, dtype: npt.DTypeLike = np.float64) -> None:
        self.gradient.check(n_features, dtype)


@dataclass(frozen=True, eq=False)
class Offset:
    """Another statistic's vectors less a given one, x_j - center; a vector that is not finite stays so.

    Guarantee: vector j depends on the data of group j's users as the other statistic's does, if `center` is public or
    was released.
    """

    statistic: Statistic
    center: np.ndarray

    def __post_init__(self) -> None:
        object.__setattr__(self, "center", weights_vector(self.center))

    @property
    def needs_targets(self) -> bool:
        return self.statistic.needs_targets

    @property
    def takes_groups(self) -> bool:
        return self.statistic.takes_groups

    def __call__(self, data: UserData, users: np.ndarray, n_groups: int) -> np.ndarray:
        vectors = self.statistic(data, users, n_groups)
        if vectors.shape[1] != self.center.size:
            raise ValueError(f"Expected a center of length {vectors.shape[1]}, got {self.center.size}.")
        offsets: np.ndarray = vectors - self.center
        return offsets

    def check(self, n_features: int, dtype: npt.DTypeLike = np.float64) -> None:
        self.statistic.check(n_features, dtype)
        made_up = made_up_data(n_features, dtype)
        self(made_up, np.arange(made_up.n_users), made_up.n_users)


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
