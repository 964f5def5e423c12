"""Randomised smoothing: a loss averaged over a ball of weights, by one fresh draw a row.

f_r(w) = E f(w + y), y uniform in the ball of radius r, is (L sqrt(d) / r)-smooth and within L r of f if f is
L-Lipschitz. The gradient at w + y of one row's loss estimates its gradient without bias. For a linear model y acts
through the scalar <y, x> = r |x| rho only, where rho is the first coordinate of a uniform point of the unit ball: one
number a row, not a vector.

Where a loss has one output, `losses.smoothed` averages in closed form instead, without the draws' variance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.stats import beta

from userdp.vectors import kernels

_QUANTILES = 4097


@dataclass(frozen=True)
class BallSmoothing:
    """Draws of the smoothing ball of this radius. Another seed gives fresh draws; they are public.

    A row's draw is made of the seed, its number within its user, its length, target and prediction (to the last bit),
    so that no user's vector depends on other users and a repeated computation gives the same. Equal rows at the same
    place of two users share their draw.

    Paper: section 4 and appendix D.
    """

    radius: float
    seed: int

    def __post_init__(self) -> None:
        if not (math.isfinite(self.radius) and self.radius > 0):
            raise ValueError(f"Expected radius={self.radius} to be finite and > 0: the radius of the ball.")
        if not (isinstance(self.seed, int) and 0 <= self.seed < 2**63):
            raise ValueError(f"Expected seed={self.seed!r} to be a whole number from 0 to 2^63 - 1.")

    def shifts(self, n_features: int) -> tuple[float, int, np.ndarray]:
        """What the kernels need."""
        return float(self.radius), self.seed, first_coordinate_quantiles(n_features)

    def shifted(self, predictions: np.ndarray, rows: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """The predictions of one user's rows at the drawn weights."""
        moved = np.array(predictions, dtype=np.float64)
        kernels.shift_block(rows, 0, len(rows), 0, *self.shifts(rows.shape[1]), targets, moved)
        return moved


@lru_cache(maxsize=64)
def first_coordinate_quantiles(dimension: int) -> np.ndarray:
    """Quantiles, at equal steps from 0 to 1, of the first coordinate of a uniform point in the unit ball.

    Its density is proportional to (1 - rho^2)^((d-1)/2): (1 + rho)/2 has a Beta((d+1)/2, (d+1)/2) law. The ends are
    those of a tenth of a step: interpolating to -1 and 1 would make tails too long where d is large.

    >>> first_coordinate_quantiles(1)[[1024, 2048]]
    array([-0.5,  0. ])
    """
    shape, levels = (dimension + 1) / 2, np.linspace(0, 1, _QUANTILES)
    levels[0], levels[-1] = 0.1 * levels[1], 1 - 0.1 * levels[1]
    quantiles: np.ndarray = 2 * beta.ppf(levels, shape, shape) - 1
    quantiles.flags.writeable = False
    return quantiles
