"""Winsorised means: each coordinate is clipped to a bin where many values are, found privately, then averaged."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from userdp._validate import check_record
from userdp.privacy.accounting import AddedUserMultiplier, Cost, Subsampled
from userdp.privacy.mechanism import Mechanism, Session, Users, Vectors
from userdp.privacy.noise import Noise


@dataclass(frozen=True)
class Winsorized(Mechanism):
    """`rounds` means of vectors, each coordinate clipped to an interval that is first found from noisy counts.

    With r the radius at release time, [-n_bins r, n_bins r] is cut into `n_bins` bins of width 2r, in each coordinate;
    values outside count as on its border, a vector that is not finite as 0. All counts get noise, and the bin with the
    highest, widened by one bin on both sides (within the range), is the coordinate's interval. Values are clipped to
    it; their offsets from its middle are added up, divided by sampling_probability * n_vectors, and get noise. The
    multipliers are of all coordinates together, in units of replacing a user or, for samples, of adding one. With
    sampling_probability < 1 every round takes a fresh Poisson sample of the users. Nothing aborts: if values are not
    concentrated, the interval is a poor one.

    Guarantee: with 1/z^2 = 1/count_multiplier^2 + 1/mean_multiplier^2 the cost is rounds / z^2 (Gaussian), or for
    samples `rounds` Poisson-sampled steps of multiplier z in units of adding one user, and as `failure` the chance of
    a sample without other users. For any vectors. Proof: docs/proofs.md, section 18.
    Paper: Levy et al. 2021, as used by Bassily and Sun 2023. Their rotation is `userdp_research.rotation`.
    Differs: Gaussian noise on the counts instead of the exponential mechanism, and on the mean instead of Laplace,
    because these compose better; Poisson samples instead of samples without replacement.
    """

    kind: ClassVar[str] = "winsorized"
    n_vectors: int
    n_bins: int
    count_multiplier: float
    mean_multiplier: float
    rounds: int = 1
    sampling_probability: float = 1.0

    def __post_init__(self) -> None:
        check_record(self, ("count_multiplier", "mean_multiplier", "sampling_probability"))
        check_record(self, counts=("n_vectors", "n_bins", "rounds"))
        if self.sampling_probability > 1:
            raise ValueError(f"Expected 0 < sampling_probability={self.sampling_probability} <= 1.")

    @property
    def samples_users(self) -> bool:
        return self.sampling_probability < 1

    @property
    def cost(self) -> Cost:
        precision = 1 / self.count_multiplier**2 + 1 / self.mean_multiplier**2
        if not self.samples_users:
            return Cost(gaussian=self.rounds * precision * (1 + 1e-12))
        alone = self.rounds * (1 - self.sampling_probability) ** (self.n_vectors - 1)
        joint = AddedUserMultiplier((1 - 1e-12) / math.sqrt(precision))
        part = Subsampled(self.sampling_probability, joint, self.rounds)
        return Cost(subsampled=(part,), failure=min(1.0, alone * (1 + 1e-9)))

    def count_sensitivity(self, dimension: int) -> float:
        """Of all counts: a replacement moves one vote between two bins in each coordinate, a new user adds one vote."""
        votes = 1 if self.samples_users else 2
        return math.nextafter(math.sqrt(votes * dimension), math.inf)

    def sensitivity(self, radius: float, dimension: int) -> float:
        """Of the mean offset, where all intervals are two radii wide; of samples in units of adding a user."""
        return self.moved_mean(np.full(dimension, radius))

    def moved_mean(self, half_widths: Vectors) -> float:
        """Sensitivity of the mean offset from middles of intervals this wide, and what rounding may add to the sums."""
        reach = float(np.sqrt(np.sum(half_widths**2)))
        moved = reach if self.samples_users else 2 * reach
        rounding = 2.0**-50 * (self.n_vectors**2 + half_widths.size + 8)
        return moved / (self.sampling_probability * self.n_vectors) * (1 + rounding)

    def start(self, noise: Noise) -> _Session:
        return _Session(self, noise)


class _Session(Session):
    def __init__(self, record: Winsorized, noise: Noise) -> None:
        self._record, self._noise = record, noise
        self._rounds_left = record.rounds

    def choose(self, users: Users) -> Users:
        if not self._record.samples_users:
            return users
        return users[self._noise.poisson_mask(np.full(len(users), self._record.sampling_probability))]

    def release(self, vectors: Vectors, radius: float) -> Vectors:
        record = self._record
        if self._rounds_left == 0:
            raise RuntimeError("These means were released and paid for.")
        self._rounds_left -= 1
        if len(vectors) > record.n_vectors or (len(vectors) < record.n_vectors and not record.samples_users):
            raise ValueError(f"Expected {record.n_vectors} vectors, as was priced.")
        values = finite_rows(vectors)
        counts = bin_counts(bins_of(values, radius, record.n_bins), record.n_bins)
        sensitivity = record.count_sensitivity(values.shape[1])
        noisy = self._noise.gaussian(counts.ravel(), sensitivity, record.count_multiplier)
        winner = np.argmax(noisy.reshape(counts.shape), axis=1)
        low, high = np.maximum(winner - 1, 0), np.minimum(winner + 2, record.n_bins)
        middle, half = (low + high - record.n_bins) * radius, (high - low) * radius
        offsets = np.clip(values - middle, -half, half).sum(axis=0)
        mean = offsets / (record.sampling_probability * record.n_vectors)
        # The middles are released already: adding them afterwards costs nothing.
        released = self._noise.gaussian(mean, record.moved_mean(half), record.mean_multiplier)
        return np.asarray(released + middle)


def finite_rows(vectors: Vectors) -> Vectors:
    """The vectors, with zeros for each that is not finite.

    >>> finite_rows(np.array([[1.0, 2.0], [np.nan, 2.0]]))
    array([[1., 2.],
           [0., 0.]])
    """
    return np.where(np.isfinite(vectors).all(axis=1, keepdims=True), vectors, 0.0)


def bins_of(values: Vectors, radius: float, n_bins: int) -> Users:
    """Which of the bins of width 2r between -n_bins r and n_bins r a number is in; one beyond is in the last there.

    >>> bins_of(np.array([-9.0, -1.0, 0.5, 1.5, 9.0]), 1.0, 2)
    array([0, 0, 1, 1, 1])
    """
    return np.clip(np.floor(values / (2 * radius) + n_bins / 2), 0, n_bins - 1).astype(np.int64)


def bin_counts(bins: Users, n_bins: int) -> Vectors:
    """How many of the rows are in each bin, for each column: (columns, n_bins).

    >>> bin_counts(np.array([[0, 1], [0, 0]]), 2)
    array([[2., 0.],
           [1., 1.]])
    """
    columns = bins.shape[1]
    places = bins + n_bins * np.arange(columns)
    return np.bincount(places.ravel(), minlength=columns * n_bins).reshape(columns, n_bins).astype(np.float64)
