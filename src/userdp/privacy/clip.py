"""Clipping: each vector is clipped to a given length, then all, or a sample's, are averaged with noise.

Clipped vectors are added up in whole numbers of a grid, so that a total does not depend on the order in which they
come, nor on threads, blocks or machines: what a block of users contributes is an array of whole numbers, and these add
up to the total.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp

from userdp._validate import check_record
from userdp.privacy.accounting import (
    REPLACE_ONE,
    ZERO_OUT,
    AddedUserMultiplier,
    Cost,
    Subsampled,
    check_relation,
)
from userdp.privacy.mechanism import Integers, Mechanism, Session, Users, Vectors
from userdp.privacy.noise import Noise
from userdp.statistics.gradients import ACUTE, Statistic

_ROUNDED_ANGLE = 2.0**-10  # twice how far rounding may bring the cosine of two acute vectors below 0
_MOST_BITS = 52  # of a length of one radius on the grid: what a float holds
SHARED_ROUNDING = 2.0**-18  # how far rounding may move the total of users added up side by side: docs/proofs.md, 13
_TAMED = 2.0**-600  # times any float, its square can be added up; times one that overflowed in radii, it is not 0
_ENTRIES = 1 << 14  # of dense vectors clipped at a time: they stay in a cache


@dataclass(frozen=True)
class Clip(Mechanism):
    """`rounds` releases of the mean of `n_vectors` vectors, each clipped to length r (the radius at release time).

    (1/K) sum of min(1, r/|x_j|) x_j + N(0, (noise_multiplier * 2r/K)^2 I), K = `n_vectors`. A vector that is not finite
    counts as 0. `block` vectors are held at a time, which is about memory only. There is no test, so nothing ever
    aborts; where vectors are long compared with how far they are apart, `OutlierRemoval` adds less noise.

    acute: the noise is noise_multiplier * sqrt(2) r/K: two vectors of length at most r whose angle is at most 90
    degrees are at most sqrt(2) r apart. It takes statistics only whose vectors are proven never to point apart.
    sampling_probability: with q < 1 each round is on a fresh Poisson sample of the K users, one vector each; K is
    replaced by qK, how many are expected, so that the sample's size stays secret.
    laplace: lengths are 1-norms, |x| = sum of |x_i|, and each coordinate of the mean of everyone gets Laplace noise of
    scale noise_multiplier * 2r/K: no delta.
    neighbours: with "zero-out" one user's vector becomes zero, which moves the mean by r/K: the noise is
    noise_multiplier * r/K in all of these cases.

    Guarantee: for neighbours of this relation rounds / z^2 (Gaussian) with z = noise_multiplier, or with q < 1 `rounds`
    Poisson-sampled Gaussian steps of multiplier 2z (with "zero-out" z) in units of adding one user, or with `laplace`
    `rounds` times 1 / z (pure); for any vectors, with `acute` for those of such statistics. Proof: docs/proofs.md,
    sections 13, 21, 22, 27 and 33.
    """

    kind: ClassVar[str] = "clip"
    n_vectors: int
    noise_multiplier: float
    rounds: int = 1
    block: int = 1024
    acute: bool = False
    sampling_probability: float = 1.0
    laplace: bool = False
    neighbours: str = REPLACE_ONE

    def __post_init__(self) -> None:
        check_relation(self.neighbours)
        check_record(self, ("noise_multiplier", "sampling_probability"), ("n_vectors", "rounds", "block"))
        object.__setattr__(self, "acute", self.acute is True)
        object.__setattr__(self, "laplace", self.laplace is True)
        if self.sampling_probability > 1:
            raise ValueError(f"Expected sampling_probability={self.sampling_probability} <= 1.")
        if self.acute and self.samples_users:
            raise ValueError("Expected acute vectors of everyone, not of samples: a new user moves those by a radius.")
        if self.laplace and (self.acute or self.samples_users):
            raise ValueError("Expected Laplace noise for any vectors of everyone.")

    @property
    def samples_users(self) -> bool:
        return self.sampling_probability < 1

    def check_statistic(self, statistic: Statistic, label: str, radius: float) -> None:
        if self.acute and type(statistic) not in ACUTE:  # subclasses of them are refused, too
            raise TypeError(
                f"Step {label!r} takes only statistics whose vectors are proven never to point apart, as its noise is "
                f"for those; got {type(statistic).__name__}. Use Clip(..., acute=False), which adds more noise."
            )

    @property
    def cost(self) -> Cost:
        if self.laplace:
            return Cost(pure=(math.nextafter(1 / self.noise_multiplier, math.inf),) * self.rounds)
        if not self.samples_users:
            return Cost(gaussian=math.nextafter(self.rounds / self.noise_multiplier**2, math.inf))
        adding = AddedUserMultiplier(self._moved(self.neighbours) * self.noise_multiplier)  # which moves a sum by r
        return Cost(subsampled=(Subsampled(self.sampling_probability, adding, self.rounds, self.neighbours),))

    def _moved(self, relation: str) -> float:
        """How far one user moves a sum, in radii, but for rounding."""
        if relation == ZERO_OUT:
            return 1.0
        return math.sqrt(2) if self.acute else 2.0

    def cost_under(self, relation: str) -> Cost:
        ratio = self._moved(self.neighbours) / self._moved(relation)
        if self.acute and relation != self.neighbours == ZERO_OUT:
            ratio *= 1 - _ROUNDED_ANGLE / 2  # by which rounding may turn vectors apart, which matters to replacements
        return replace(self, neighbours=relation, noise_multiplier=ratio * self.noise_multiplier).cost

    @property
    def expected(self) -> float:
        """How many vectors a round is expected to have: what sums are divided by."""
        return self.sampling_probability * self.n_vectors

    @property
    def bits(self) -> int:
        """A radius is 2^bits steps of the grid: few enough for the sum of all vectors to fit into 62 bits."""
        return grid_bits(self.n_vectors)

    def sensitivity(self, radius: float, dimension: int) -> float:
        """2r/(qK), sqrt(2) r/K or r/(qK), and what rounding may add: to lengths, angles, and the mean of a total.

        With `laplace` it is the 1-norm's.
        """
        rounded = 2.0**-50 * (dimension + 8 + self.n_vectors) + SHARED_ROUNDING
        moved = self._moved(self.neighbours)
        if self.acute and self.neighbours == REPLACE_ONE:
            moved = math.sqrt(2 + _ROUNDED_ANGLE + 4 * math.sqrt(dimension) * 2.0**-self.bits)
        return moved * radius / self.expected * (1 + rounded)

    def noise_std(self, radius: float, dimension: int) -> float:
        """Of a mean's coordinate."""
        return self.noise_multiplier * self.sensitivity(radius, dimension) * (math.sqrt(2) if self.laplace else 1)

    def radius_of(self, length: float, entries: int) -> float:
        """The radius that clips no vector of this length (2-norm) with at most so many entries that are not 0."""
        return length * math.sqrt(entries) if self.laplace else length

    def released(self, total: Integers, radius: float, noise: Noise) -> Vectors:
        """The noisy mean of a round's total."""
        mean = mean_of(total, radius, self.bits, self.expected)
        if self.laplace:
            return noise.laplace(mean, self.sensitivity(radius, mean.size), 1 / self.noise_multiplier)
        return noise.gaussian(mean, self.sensitivity(radius, mean.size), self.noise_multiplier)

    def start(self, noise: Noise) -> _Session:
        return _Session(self, noise)


class _Session(Session):
    """Rounds of totals: of everyone, or of a sample that serves one round."""

    def __init__(self, record: Clip, noise: Noise) -> None:
        self._record, self._noise = record, noise
        self._rounds_left = record.rounds
        self._asked = 0 if record.samples_users else record.n_vectors  # how many vectors the round has
        self._counted, self._radius = True, math.nan

    def choose(self, users: Users) -> Users:
        """Everyone, or a sample. From an empty one nothing could be computed: then one is asked and not counted."""
        record = self._record
        if not record.samples_users:
            return users
        if len(users) != record.n_vectors:
            raise ValueError(f"Expected {record.n_vectors} users, as was priced.")
        chosen = users[self._noise.poisson_mask(np.full(len(users), record.sampling_probability))]
        self._asked, self._counted = max(1, len(chosen)), len(chosen) > 0
        return chosen if self._counted else users[:1]

    def contribution(self, radius: float) -> ClippedTotal:
        self._radius = radius
        record = self._record
        return ClippedTotal(radius, record.bits, record.block, record.laplace, record.samples_users)

    def release(self, vectors: Vectors, radius: float) -> Vectors:
        if len(vectors) != self._asked:
            raise ValueError(
                f"Expected {self._record.n_vectors} vectors, as was priced, or one for each user of the sample."
            )
        return self.release_total(self.contribution(radius)(vectors), radius)

    def release_total(self, total: Integers, radius: float) -> Vectors:
        """The same of a total of all of a round's vectors, as `contribution` adds them up."""
        if self._rounds_left == 0:
            raise RuntimeError("These means were released and paid for.")
        if radius != self._radius:
            raise ValueError("Expected the radius that vectors were clipped to.")
        # Every vector adds 1 to the last number, and at most a radius to the others: what no engine that adds each user
        # once can give is refused.
        longest = self._asked * 2.0**self._record.bits * (1 + SHARED_ROUNDING)
        if int(total[-1]) != self._asked or np.linalg.norm(total[:-1].astype(float)) > longest:
            raise ValueError("Expected the total of one vector for each user of the round.")
        self._rounds_left -= 1
        if self._record.samples_users:
            self._asked = 0
        return self._record.released(total if self._counted else np.zeros_like(total), radius, self._noise)


@dataclass(frozen=True)
class ClippedTotal:
    """What vectors add to the total of a round with this radius: see `clipped_total`."""

    radius: float
    bits: int
    block: int
    laplace: bool = False
    sampled: bool = False

    @property
    def clips_to(self) -> tuple[float, int] | None:
        # A user who joins a sample moves all later ones to other blocks: samples are added up from single vectors.
        return None if self.laplace or self.sampled else (self.radius, self.bits)

    def __call__(self, vectors: Vectors | sp.csr_array) -> Integers:
        return clipped_total(vectors, self.radius, self.bits, laplace=self.laplace)


def grid_bits(radii: int) -> int:
    """The most bits of a grid on which so many radii add up to less than 2^62 steps.

    >>> grid_bits(1), grid_bits(10**6), grid_bits(10**9)
    (52, 42, 32)
    """
    return min(_MOST_BITS, 62 - radii.bit_length())


def clipped_total(vectors: Vectors | sp.csr_array, radius: float, bits: int, laplace: bool = False) -> Integers:
    """Sum over the rows of min(1, r/|x_j|) x_j, in steps of r 2^-bits, and how many rows there are.

    Each row is rounded towards 0 in each coordinate, so that it does not become longer; one that is not finite adds 0.
    Lengths are 2-norms, with `laplace` 1-norms. Rows may be sparse (CSR): entries of one column are added up first.

    Guarantee: a row's part is a function of this row, the radius and the bits alone, by operations on its own numbers
    in a fixed order; and whole numbers add up to the same in any order.

    >>> rows = np.array([[3.0, 4.0], [0.0, 0.5], [np.nan, 0.0]])
    >>> clipped_total(rows, 1.0, 10)
    array([ 614, 1331,    3])
    >>> clipped_total(sp.csr_array(rows), 1.0, 10)
    array([ 614, 1331,    3])
    >>> clipped_total(np.array([[3.0, 5.0], [0.0, 0.5], [np.nan, 0.0]]), 1.0, 10, laplace=True)
    array([ 384, 1152,    3])
    """
    total: Integers = np.zeros(vectors.shape[1] + 1, dtype=np.int64)
    total[-1] = vectors.shape[0]
    with np.errstate(all="ignore"):
        if sp.issparse(vectors):
            _add_sparse(vectors, radius, bits, laplace, total)
            return total
        size_of, block = _sizes_1 if laplace else _squares, max(1, _ENTRIES // max(1, vectors.shape[1]))
        for first in range(0, len(vectors), block):
            rows = np.ascontiguousarray(vectors[first : first + block], dtype=np.float64)
            total[:-1] += _clipped(rows, lambda x: x[:, None], size_of, radius, bits, laplace).sum(axis=0)
    return total


def _add_sparse(vectors: Any, radius: float, bits: int, laplace: bool, total: Integers) -> None:
    """Add what the rows of a CSR matrix contribute to the total."""
    rows = vectors if vectors.has_canonical_format else vectors.copy()
    rows.sum_duplicates()
    rows.check_format()
    n_rows = vectors.shape[0]
    owners = np.repeat(np.arange(n_rows), np.diff(rows.indptr))

    def size_of(entries: Vectors) -> Vectors:  # added up one after the other
        parts = np.abs(entries) if laplace else entries * entries
        return np.bincount(owners, parts, n_rows).astype(np.float64)  # whole numbers, if there are no entries

    data = rows.data.astype(np.float64, copy=False)
    np.add.at(total, rows.indices, _clipped(data, lambda x: x[owners], size_of, radius, bits, laplace))


def _squares(rows: Vectors) -> Vectors:
    return np.asarray(np.einsum("ij,ij->i", rows, rows))


def _sizes_1(rows: Vectors) -> Vectors:
    return np.asarray(np.einsum("ij,ij->i", rows, np.sign(rows)))


def _clipped(
    entries: Vectors,
    spread: Callable[[Any], Any],
    size_of: Callable[[Vectors], Vectors],
    radius: float,
    bits: int,
    laplace: bool,
) -> Integers:
    """Entries of clipped rows in whole steps.

    `spread` gives each entry its row's number, `size_of` adds up the squares, or sizes, of a row's entries.
    """
    scaled = entries * (1 / radius)
    sizes = size_of(scaled)
    # What overflows here is longer than any radius, and what underflows is shorter.
    short = sizes <= 1
    wild = ~(sizes < np.inf)
    if wild.any():
        scaled = np.where(spread(wild), entries * _TAMED, scaled)
        sizes = size_of(scaled)
        lost = ~(sizes < np.inf)
        scaled, sizes = np.where(spread(lost), 0.0, scaled), np.where(lost, 1.0, sizes)
    factors = np.where(short, 1.0, 1 / (sizes if laplace else np.sqrt(sizes))) * 2.0**bits
    scaled *= spread(factors)
    return scaled.astype(np.int64)  # which rounds towards 0


def mean_of(total: Integers, radius: float, bits: int, divisor: float) -> Vectors:
    """What a total of clipped vectors is in units of the radius, divided by their number; three roundings."""
    return np.asarray(total[:-1] * (radius * 2.0**-bits) / divisor, dtype=np.float64)
