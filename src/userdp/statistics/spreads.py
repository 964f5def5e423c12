"""What standard errors need of users: how curved the loss is along their rows, squares of their gradients and means.

Matrices are sums of y y' with weights >= 0, so positive semi-definite, and squares of numbers are >= 0: no two users'
vectors point apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from userdp.statistics.gradients import MeanGradient, PerUser, never_apart, slopes_of
from userdp.statistics.moments import UserMean, square_of, triangle
from userdp.statistics.rows import Rows, dense

_EXTREME = 400  # powers of 2 beyond which a trace counts as 0, as in `MomentShape`


@never_apart
@dataclass(frozen=True, eq=False)
class CurvatureMatrix(PerUser):
    """Second derivative of each user's mean loss in a basis, and `share` times its trace.

    H_u = (1/m_u) sum of weight * slope' * (B'x)(B'x)', slope' being a difference over `step` around the prediction,
    at least 0; weights, basis and row weights are the gradient's. The upper triangle row by row, off-diagonal entries
    times sqrt(2). Zeros for a user without rows, or whose trace is not finite or extreme. For losses of one output.

    Guarantee: vector j is a function of user users[j]'s rows and of the parameters, and no two vectors point apart:
    tr(H_u H_v) >= 0 for positive semi-definite matrices, whose traces are >= 0 (docs/proofs.md, section 31).
    """

    needs_targets: ClassVar[bool] = True
    gradient: MeanGradient
    share: float
    step: float

    def of_users(self, data: Rows) -> np.ndarray:
        rows, basis = self.gradient.row_weights, self.gradient.basis
        if type(self.gradient) is not MeanGradient:  # a subclass could compute something else that points apart
            raise ValueError("Expected a MeanGradient itself, no subclass.")
        if rows is None or basis is None or basis.ndim != 2 or self.gradient.loss.n_outputs != 1:
            raise ValueError("Expected a gradient of one output with row_weights and a square basis.")
        width = len(basis) * (len(basis) + 1) // 2 + 1
        predictions = data.predictions(self.gradient.weights[None]).astype(np.float64)
        below = slopes_of(self.gradient.loss, predictions - self.step / 2, data)
        above = slopes_of(self.gradient.loss, predictions + self.step / 2, data)
        curvatures = np.maximum((above - below) / self.step, 0.0) * rows.of(data)
        out = np.zeros((len(data.users), width))
        for members, squares in square_of(data, basis, curvatures, np.float64):
            traces = np.einsum("kii->k", squares)
            usable = (traces > 2.0**-_EXTREME) & (traces < 2.0**_EXTREME)
            found = np.column_stack([triangle(squares), self.share * traces]) / data.counts[members][:, None]
            out[members] = np.where(usable[:, None], found, 0.0)
        return out

    def check(self, n_features: int, dtype: npt.DTypeLike = np.float64) -> None:
        self.gradient.check(n_features, dtype)
        self.on_generated(n_features, dtype)


@never_apart
@dataclass(frozen=True, eq=False)
class CurvatureSize(PerUser):
    """Which power of sqrt(2), times `reference`, each user's `CurvatureMatrix` is nearest to in length: a 1 among 0s.

    Zeros for a user whose matrix is 0.

    Guarantee: vector j is a function of user users[j]'s rows and of the parameters; entries are 0 but for at most one
    1, so that no two vectors point apart.
    """

    SIZES: ClassVar[np.ndarray] = 2.0 ** (np.arange(-24, 25) / 2)
    needs_targets: ClassVar[bool] = True
    curvature: CurvatureMatrix
    reference: float

    def of_users(self, rows: Rows) -> np.ndarray:
        squares = _squares(self.curvature.of_users(rows))
        out = np.zeros((len(squares), self.SIZES.size))
        # Comparisons alone, whose result is the same on every machine.
        places = np.searchsorted(self.reference**2 * self.SIZES[:-1] * self.SIZES[1:], squares)
        known = (squares > 0) & np.isfinite(squares)
        out[known, places[known]] = 1.0
        return out

    def check(self, n_features: int, dtype: npt.DTypeLike = np.float64) -> None:
        self.curvature.check(n_features, dtype)


@never_apart
@dataclass(frozen=True, eq=False)
class GradientSquare(PerUser):
    """Square g g' of each user's gradient, and `share` times its trace |g|^2; as `CurvatureMatrix` has it.

    Clipped to c^2 sqrt(1 + share^2) it is that of a gradient clipped to c.

    Guarantee: vector j is a function of user users[j]'s rows and of the parameters, and no two vectors point apart:
    <g g', h h'> = <g, h>^2 >= 0 (docs/proofs.md, section 31).
    """

    needs_targets: ClassVar[bool] = True
    gradient: MeanGradient
    share: float

    def of_users(self, rows: Rows) -> np.ndarray:
        gradients = dense(self.gradient.of_users(rows))
        traces = _squares(gradients)
        usable = (traces > 2.0**-_EXTREME) & (traces < 2.0**_EXTREME)
        with np.errstate(all="ignore"):
            found = np.column_stack([triangle(gradients[:, :, None] * gradients[:, None, :]), self.share * traces])
        return np.where(usable[:, None], found, 0.0)

    def check(self, n_features: int, dtype: npt.DTypeLike = np.float64) -> None:
        self.gradient.check(n_features, dtype)


@dataclass(frozen=True, eq=False)
class CentredMean(PerUser):
    """Mean of each user's rows less a centre, in units; of the first columns, if the centre has not as many as rows.

    Zeros for a user without rows, or whose mean is not finite, or farther than `farthest` units: as if it were at the
    centre.

    Guarantee: vector j is a function of user users[j]'s rows and of the parameters.
    """

    centre: np.ndarray
    units: npt.ArrayLike
    farthest: float = math.inf

    def of_users(self, rows: Rows) -> np.ndarray:
        means = UserMean().of_users(rows)[:, : len(self.centre)]
        out = np.where(np.isfinite(means).all(axis=1, keepdims=True), (means - self.centre) / self.units, 0.0)
        if self.farthest < math.inf:
            out[~(_squares(out) <= self.farthest**2)] = 0.0
        return out


@never_apart
@dataclass(frozen=True, eq=False)
class CentredSquares(PerUser):
    """Squares of the coordinates of `CentredMean`.

    Guarantee: vector j is a function of user users[j]'s rows and of the parameters. No entry is below 0, so that no two
    vectors point apart (docs/proofs.md, section 31).
    """

    mean: CentredMean

    def of_users(self, rows: Rows) -> np.ndarray:
        return np.asarray(np.square(self.mean.of_users(rows)))


@never_apart
@dataclass(frozen=True, eq=False)
class CentredSize(PerUser):
    """Between which `edges`, which increase, the length of each user's `CentredMean` lies: a 1 among 0s.

    One entry more than edges; what is as long as an edge is below it, what overflows is beyond all of them.

    Guarantee: vector j is a function of user users[j]'s rows and of the parameters; entries are 0 but for one 1, so
    that no two vectors point apart (docs/proofs.md, section 31).
    """

    mean: CentredMean
    edges: tuple[float, ...]

    def of_users(self, rows: Rows) -> np.ndarray:
        squares = _squares(self.mean.of_users(rows))
        out = np.zeros((len(squares), len(self.edges) + 1))
        out[np.arange(len(squares)), np.searchsorted(np.square(self.edges), squares)] = 1.0  # comparisons alone
        return out


def _squares(vectors: np.ndarray) -> np.ndarray:
    """Of lengths, on single numbers in a fixed order: the same wherever a user stands."""
    squares = np.zeros(len(vectors))
    with np.errstate(all="ignore"):
        for k in range(vectors.shape[1]):
            squares += vectors[:, k] * vectors[:, k]
    return squares
