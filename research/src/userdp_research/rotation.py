"""A public rotation that spreads a vector evenly over its coordinates, so that clipping them one by one loses little.

U = k^{-1/2} H S, with H the k x k Hadamard matrix, S a diagonal matrix of signs, and k the least power of two that is
at least the vector's length (zeros fill it up). For signs drawn at random a coordinate of U x is beyond t |x| with a
chance of at most 2 exp(-k t^2 / 2).

Paper: Levy et al. 2021.
Differs: the signs are a fixed public pattern. No privacy rests on them, and data is not made against them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from userdp.data.users import UserData
from userdp.statistics.gradients import Statistic


def rotated_size(dimension: int) -> int:
    """The least power of two that is at least `dimension`.

    >>> [rotated_size(d) for d in (1, 2, 3, 10)]
    [1, 2, 4, 16]
    """
    return 1 << (dimension - 1).bit_length()


def rotate(vectors: np.ndarray) -> np.ndarray:
    """U x for each row x. Each row is computed by itself, by the same sums and differences: no other row enters."""
    dimension = vectors.shape[1]
    size = rotated_size(dimension)
    padded = np.zeros((len(vectors), size))
    padded[:, :dimension] = vectors * _signs(size)[:dimension]
    return _hadamard(padded) / math.sqrt(size)


def unrotate(vector: np.ndarray, dimension: int) -> np.ndarray:
    """The first `dimension` coordinates of U^T y: the inverse of `rotate`.

    >>> unrotate(rotate(np.array([[1.0, 2.0, 3.0]]))[0], 3)
    array([1., 2., 3.])
    """
    size = vector.size
    back: np.ndarray = _hadamard(vector[None])[0] * _signs(size) / math.sqrt(size)
    return back[:dimension]


def _hadamard(vectors: np.ndarray) -> np.ndarray:
    """H x for each row x, by log2(k) rounds of sums and differences."""
    n_vectors, size = vectors.shape
    half = 1
    while half < size:
        pairs = vectors.reshape(n_vectors, size // (2 * half), 2, half)
        first, second = pairs[:, :, 0], pairs[:, :, 1]
        vectors = np.stack([first + second, first - second], axis=2).reshape(n_vectors, size)
        half *= 2
    return vectors


@lru_cache(maxsize=16)
def _signs(size: int) -> np.ndarray:
    """Signs without a pattern that data could fraction: one bit of a mixed counter (the finaliser of splitmix64)."""
    mixed = np.arange(1, size + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    signs = 1.0 - 2.0 * (mixed >> np.uint64(63)).astype(np.float64)
    signs.flags.writeable = False
    return signs


@dataclass(frozen=True, eq=False)
class Rotated:
    """U x - centre for each vector x of another statistic, U being the rotation of this module.

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
