"""Randomised smoothing of a loss: one public draw for each row."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from scipy.special import betaincinv

from userdp.statistics.rows import Rows, dense

_QUANTILES = 4097


@dataclass(frozen=True)
class BallSmoothing:
    """Randomised smoothing: a loss averaged over a ball of weights of this radius, by one draw per row.

    f_r(w) = E f(w + y), y uniform in the ball of radius r, is (L sqrt(d) / r)-smooth and within L r of f if f is
    L-Lipschitz. The gradient at w + y of one row's loss estimates its gradient without bias. For a linear model y acts
    through the scalar <y, x> = r |x| rho only, where rho is the first coordinate of a uniform point of the unit ball:
    one number per row, not a vector. `losses.smoothed` averages in closed form instead, for losses of one output.

    Draws are public; another seed gives fresh ones. A row's draw is made of the seed, its number within its user, its
    length, target and prediction (in single precision), so that no user's vector depends on other users and a repeated
    computation, of sparse rows too, gives the same. Equal rows at the same place of two users get the same draw.

    Paper: Lemma D.1.
    """

    radius: float
    seed: int

    def __post_init__(self) -> None:
        if not (math.isfinite(self.radius) and self.radius > 0):
            raise ValueError(f"Expected radius={self.radius} to be finite and > 0: the radius of the ball.")
        if not (isinstance(self.seed, int) and 0 <= self.seed < 2**63):
            raise ValueError(f"Expected seed={self.seed!r} to be a whole number from 0 to 2^63 - 1.")

    def shifted(self, predictions: np.ndarray, rows: Rows) -> np.ndarray:
        """The predictions of these rows at the drawn weights."""
        held = dense(rows.held)
        squares = np.einsum("ij,ij->i", held, held, dtype=np.float64) + rows.data.has_intercept
        numbers = np.arange(len(rows)) - np.repeat(rows.bounds[:-1], rows.counts)
        quantiles = first_coordinate_quantiles(rows.data.n_features)
        return shifts(predictions, squares, rows.targets, numbers, self.radius, self.seed, quantiles)


@functools.lru_cache(maxsize=64)
def first_coordinate_quantiles(dimension: int) -> np.ndarray:
    """Quantiles, at equal steps from 0 to 1, of the first coordinate of a uniform point in the unit ball.

    Its density is proportional to (1 - rho^2)^((d-1)/2): (1 + rho)/2 has a Beta((d+1)/2, (d+1)/2) law. The ends are
    those of a tenth of a step: interpolating to -1 and 1 would make tails too long where d is large.

    >>> first_coordinate_quantiles(1)[[1024, 2048]]
    array([-0.5,  0. ])
    """
    shape, levels = (dimension + 1) / 2, np.linspace(0, 1, _QUANTILES)
    levels[0], levels[-1] = 0.1 * levels[1], 1 - 0.1 * levels[1]
    found = 2 * betaincinv(shape, shape, levels) - 1
    found.flags.writeable = False
    return np.asarray(found)


def shifts(
    predictions: np.ndarray,
    squared_lengths: np.ndarray,
    targets: np.ndarray,
    numbers: np.ndarray,
    radius: float,
    seed: int,
    quantiles: np.ndarray,
) -> np.ndarray:
    """The predictions, each moved by radius |x| rho: how far a random point of a ball is along the row x.

    rho comes from `quantiles`, at equal steps from 0 to 1, at a pseudo-random place (splitmix64) made of the seed, the
    row's number within its user (from 0 on), its squared length, target and prediction: of nothing that another user
    could change. All arrays have an entry for each row; what is returned is in double precision.
    """
    with np.errstate(all="ignore"):
        mixed = _words(predictions)
        for word in (np.uint64(seed), numbers.astype(np.uint64), _words(squared_lengths), _words(targets)):
            mixed = (mixed ^ word) + np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            mixed = mixed ^ (mixed >> np.uint64(31))
        last = len(quantiles) - 1
        places = (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53 * last
        below = np.minimum(places.astype(np.int64), last - 1)
        rho = quantiles[below] + (places - below) * (quantiles[below + 1] - quantiles[below])
        return np.asarray(predictions + radius * np.sqrt(squared_lengths.astype(np.float64)) * rho)


def _words(numbers: np.ndarray) -> np.ndarray:
    """Numbers' bits in single precision: in what order they were added up does not matter. -0 is 0."""
    single = numbers.astype(np.float32) + np.float32(0)
    return single.astype(np.float64).view(np.uint64)
