"""Clipped gradients with their sizes, and a loss's curvature along rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from userdp.data.users import UserData
from userdp.vectors import kernels
from userdp.vectors.gradients import MeanGradient, made_up_data, one_user_a_group

N_SIZES = 12


@dataclass(frozen=True, eq=False)
class ClippedGradient:
    """Gradient of each user, clipped, and which size it has: `mark` in one of 13 more coordinates, zeros in the others.

    The first marks a norm above longest/2, the next above longest/4, and so on; the last but one all norms that are
    smaller; the last a gradient that is not finite, which counts as 0. With `directions` (dimension x k) the gradient
    is g_u @ directions. Vectors are at most `radius` = sqrt(clip^2 + mark^2) long: clipped there they stay as they are,
    and the sizes' frequencies cost no release of their own.

    Guarantee: vector j is a function of user users[j]'s rows, in their order, and of the parameters.
    """

    needs_targets: ClassVar[bool] = True
    takes_groups: ClassVar[bool] = False
    gradient: MeanGradient
    clip: float
    longest: float
    mark: float
    directions: np.ndarray | None = None

    @property
    def radius(self) -> float:
        return math.hypot(self.clip, self.mark)

    def __call__(self, data: UserData, users: np.ndarray, n_groups: int) -> np.ndarray:
        with np.errstate(all="ignore"):
            gradients = self.gradient(data, users, n_groups)
            return kernels.clipped(gradients, self.directions, self.clip, self.longest, self.mark, N_SIZES)

    def check(self, n_features: int, dtype: npt.DTypeLike = np.float64) -> None:
        self.gradient.check(n_features, dtype)
        made_up = made_up_data(n_features, dtype)
        self(made_up, np.arange(made_up.n_users), made_up.n_users)


@dataclass(frozen=True, eq=False)
class MeanCurvature:
    """How curved the loss is along each user's rows, and one over the number of them: two numbers in [-1/2, 1/2].

    The first: mean over the rows of weight * min(2, |x @ basis|^2 / longest^2) * (slope's derivative, along the slope),
    by a finite difference, over 2 * largest, at most 1, less a half. The second: 1/m_u less a half. For compiled
    losses.

    Guarantee: vector j is a function of user users[j]'s rows and of the parameters.
    """

    needs_targets: ClassVar[bool] = True
    takes_groups: ClassVar[bool] = False
    radius: ClassVar[float] = math.sqrt(0.5)
    gradient: MeanGradient
    step: float
    largest: float

    def __call__(self, data: UserData, users: np.ndarray, n_groups: int) -> np.ndarray:
        users, loss = one_user_a_group(data, users, n_groups), self.gradient.loss
        rows = self.gradient.row_weights
        if rows is None:
            raise ValueError("Expected a gradient with row_weights.")
        slopes = kernels.block_slopes(loss.slope, loss.n_outputs, loss.may_raise)
        weights = self.gradient.weights.reshape(loss.n_outputs, data.n_features)
        of_users = (data.rows, data.targets, data.offsets, users)
        lengths = rows.lengths(data)
        curvatures = kernels.mean_curvatures(*of_users, weights, slopes, lengths, rows.longest, self.step)
        fractions = np.clip(curvatures / (2 * self.largest), 0.0, 1.0)
        counts = np.maximum(data.offsets[users + 1] - data.offsets[users], 1)
        return np.column_stack([fractions, 1 / counts]) - 0.5

    def check(self, n_features: int, dtype: npt.DTypeLike = np.float64) -> None:
        self.gradient.check(n_features, dtype)
        made_up = made_up_data(n_features, dtype)
        self(made_up, np.arange(made_up.n_users), made_up.n_users)
