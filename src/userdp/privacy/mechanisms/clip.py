"""Clipping: each vector is clipped to a given length, then all are averaged with Gaussian noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from userdp.privacy.accounting import Cost
from userdp.privacy.mechanisms.base import Mechanism, Session, Users, Vectors, check_record
from userdp.privacy.noise import Noise

_SMALLEST_SQUARE, _LARGEST_SQUARE = 2.0**-900, 2.0**900
_ROUNDED_ANGLE = 2.0**-16  # twice how far rounding may bring the cosine of two acute vectors below 0


@dataclass(frozen=True)
class Clip(Mechanism):
    """`rounds` releases of the mean of `n_vectors` vectors, each clipped to length r (the radius at release time).

    (1/K) sum of min(1, r/|x_j|) x_j + N(0, (noise_multiplier * 2r/K)^2 I). A vector that is not finite counts as 0.
    Vectors come in `block` at a time, which is about memory only. There is no test, so nothing ever aborts; where
    vectors are long compared with how far they are apart, `OutlierRemoval` adds less noise.

    With `acute` the noise is noise_multiplier * sqrt(2) r/K: two vectors of length at most r whose angle is at most 90
    degrees are at most sqrt(2) r apart. It takes statistics only whose vectors are proven never to point apart.

    Guarantee: rounds / noise_multiplier^2 (Gaussian), for any vectors, with `acute` for those of such statistics.
    Proof: docs/proofs.md, sections 13 and 22.
    """

    kind: ClassVar[str] = "clip"
    n_vectors: int
    noise_multiplier: float
    rounds: int = 1
    block: int = 1024
    acute: bool = False

    def __post_init__(self) -> None:
        check_record(self, ("noise_multiplier",), ("n_vectors", "rounds", "block"))
        object.__setattr__(self, "acute", self.acute is True)

    @property
    def cost(self) -> Cost:
        return Cost(gaussian=math.nextafter(self.rounds / self.noise_multiplier**2, math.inf))

    def sensitivity(self, radius: float, dimension: int) -> float:
        """2r/K, or sqrt(2) r/K, and what rounding may add: to a vector's length and angles, and to the sums."""
        clipping = 2.0**-50 * (dimension + 8)
        apart = math.sqrt(2 + _ROUNDED_ANGLE) if self.acute else 2
        return apart * radius / self.n_vectors * (1 + clipping + 2.0**-50 * self.n_vectors**2)

    def noise_std(self, radius: float, dimension: int) -> float:
        """Of a mean's coordinate."""
        return self.noise_multiplier * self.sensitivity(radius, dimension)

    def start(self, noise: Noise) -> _Session:
        return _Session(self, noise)


class _Session(Session):
    def __init__(self, record: Clip, noise: Noise) -> None:
        self._record, self._noise = record, noise
        self._rounds_left = record.rounds
        self._begin()

    def _begin(self) -> None:
        self._seen, self._total, self._radius = 0, np.zeros(1), math.nan

    def choose(self, users: Users) -> Users:
        self._begin()
        return users

    def add(self, vectors: Vectors, radius: float) -> None:
        """Add up a block of clipped vectors."""
        if self._seen and radius != self._radius:
            raise ValueError("Expected one radius for all blocks of a round.")
        if self._seen and vectors.shape[1] != self._total.size:
            raise ValueError("Expected vectors of one length in all blocks of a round.")
        self._seen, self._radius = self._seen + len(vectors), radius
        self._total = self._total + clipped_sum(vectors, radius)

    def release(self, vectors: Vectors, radius: float) -> Vectors:
        if self._rounds_left == 0:
            raise RuntimeError("These means were released and paid for.")
        self._rounds_left -= 1
        self.add(vectors, radius)
        record, seen, total = self._record, self._seen, self._total
        self._begin()
        if seen != record.n_vectors:
            raise ValueError(f"Expected {record.n_vectors} vectors, as was priced.")
        sensitivity = record.sensitivity(radius, total.size)
        return self._noise.gaussian(total / record.n_vectors, sensitivity, record.noise_multiplier)


def clipped_sum(vectors: Vectors, radius: float) -> Vectors:
    """Sum of min(1, r/|x|) x over the rows; one that is not finite adds nothing.

    Rows whose squares could over- or underflow are divided by their largest entry first.

    >>> clipped_sum(np.array([[3.0, 4.0], [0.0, 0.5], [np.nan, 0.0]]), 1.0)
    array([0.6, 1.3])
    """
    squares = np.einsum("ij,ij->i", vectors, vectors)
    easy = (squares >= _SMALLEST_SQUARE) & (squares <= _LARGEST_SQUARE)
    factors = radius / np.maximum(np.sqrt(squares[easy]), radius)
    # Not a BLAS product: its idle threads would slow down the kernels that make the next block.
    total: Vectors = np.einsum("i,ij->j", factors, vectors if np.all(easy) else vectors[easy])
    for vector in vectors[~easy]:
        largest = np.abs(vector).max()
        if 0 < largest < math.inf:
            scaled = vector / largest
            length = float(np.linalg.norm(scaled))
            total += scaled * min(largest, radius / length)
    return total
