"""Clipping: each vector is clipped to a given length, then all, or a sample's, are averaged with noise.

Clipped vectors are added up in whole numbers of a grid, so that a total does not depend on the order in which they
come, nor on threads, blocks or machines: what a block of users contributes is an array of whole numbers, and these add
up to the total.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np

from userdp.compiling import kernel
from userdp.privacy.accounting import AddedUserMultiplier, Cost, Subsampled
from userdp.privacy.mechanisms.base import Integers, Mechanism, Session, Users, Vectors, check_record
from userdp.privacy.noise import Noise
from userdp.statistics import entries, fused, lanes

_ROUNDED_ANGLE = 2.0**-10  # twice how far rounding may bring the cosine of two acute vectors below 0
_MOST_BITS = 52  # of a length of one radius on the grid: what a float holds
_WHOLE = 2.0**50  # steps up to which vector instructions make whole numbers


@dataclass(frozen=True)
class Clip(Mechanism):
    """`rounds` releases of the mean of `n_vectors` vectors, each clipped to length r (the radius at release time).

    (1/K) sum of min(1, r/|x_j|) x_j + N(0, (noise_multiplier * 2r/K)^2 I), K = `n_vectors`. A vector that is not finite
    counts as 0. Vectors come in `block` at a time, which is about memory only. There is no test, so nothing ever
    aborts; where vectors are long compared with how far they are apart, `OutlierRemoval` adds less noise.

    acute: the noise is noise_multiplier * sqrt(2) r/K: two vectors of length at most r whose angle is at most 90
    degrees are at most sqrt(2) r apart. It takes statistics only whose vectors are proven never to point apart.
    sampling_probability: with q < 1 each round is on a fresh Poisson sample of the K users, one vector each; K is
    replaced by qK, how many are expected, so that the sample's size stays secret.
    fraction_multiplier: if given, one more number follows, the fraction of vectors that were not clipped:
    1/2 + (1/qK) sum of (1/2 if |x_j| <= r, else -1/2) + N(0, (fraction_multiplier / qK)^2), from which the next radius
    may be chosen (Andrew et al. 2021). Both are one Gaussian release of multiplier z with
    1/z^2 = 1/noise_multiplier^2 + 1/fraction_multiplier^2. Both multipliers are in units of a replacement.
    laplace: lengths are 1-norms, |x| = sum of |x_i|, and each coordinate of the mean of everyone gets Laplace noise of
    scale noise_multiplier * 2r/K: no delta.

    Guarantee: rounds / z^2 (Gaussian), or with q < 1 `rounds` Poisson-sampled Gaussian steps of multiplier 2z in units
    of adding one user, or with `laplace` `rounds` times 1 / noise_multiplier (pure); for any vectors, with `acute` for
    those of such statistics. Proof: docs/proofs.md, sections 13, 21, 22 and 27.
    Paper: Andrew et al. 2021, Alg. 1, for samples with their fraction.
    Differs: users are replaced, not added or removed; a vector that is not finite counts as a long one.
    """

    kind: ClassVar[str] = "clip"
    n_vectors: int
    noise_multiplier: float
    rounds: int = 1
    block: int = 1024
    acute: bool = False
    sampling_probability: float = 1.0
    fraction_multiplier: float | None = None
    laplace: bool = False

    def __post_init__(self) -> None:
        check_record(self, ("noise_multiplier", "sampling_probability"), ("n_vectors", "rounds", "block"))
        if self.fraction_multiplier is not None:
            check_record(self, ("fraction_multiplier",))
        object.__setattr__(self, "acute", self.acute is True)
        object.__setattr__(self, "laplace", self.laplace is True)
        if self.sampling_probability > 1:
            raise ValueError(f"Expected sampling_probability={self.sampling_probability} <= 1.")
        if self.acute and self.samples_users:
            raise ValueError("Expected acute vectors of everyone, not of samples: a new user moves those by a radius.")

        if self.laplace and (self.acute or self.samples_users or self.fraction_multiplier is not None):
            raise ValueError("Expected Laplace noise for any vectors of everyone, without their fraction.")

    @property
    def samples_users(self) -> bool:
        return self.sampling_probability < 1

    @property
    def joint_multiplier(self) -> float:
        """Noise multiplier of mean and fraction together, rounded down."""
        if self.fraction_multiplier is None:
            return self.noise_multiplier
        return (1 - 1e-12) / math.sqrt(1 / self.noise_multiplier**2 + 1 / self.fraction_multiplier**2)

    @property
    def cost(self) -> Cost:
        if self.laplace:
            return Cost(pure=(math.nextafter(1 / self.noise_multiplier, math.inf),) * self.rounds)
        if not self.samples_users:
            return Cost(gaussian=math.nextafter(self.rounds / self.joint_multiplier**2, math.inf))
        adding = AddedUserMultiplier(2 * self.joint_multiplier)  # which moves a sum half as far as a replacement
        return Cost(subsampled=(Subsampled(self.sampling_probability, adding, self.rounds),))

    @property
    def expected(self) -> float:
        """How many vectors a round is expected to have: what sums are divided by."""
        return self.sampling_probability * self.n_vectors

    @property
    def bits(self) -> int:
        """A radius is 2^bits steps of the grid: few enough for the sum of all vectors to fit into 62 bits."""
        return grid_bits(self.n_vectors)

    def sensitivity(self, radius: float, dimension: int) -> float:
        """2r/(qK), or sqrt(2) r/K, and what rounding may add: to lengths and angles, and to the mean of a total.

        With `laplace` it is the 1-norm's.
        """
        rounded = 2.0**-50 * (dimension + 8 + self.n_vectors)
        turned = _ROUNDED_ANGLE + 4 * math.sqrt(dimension) * 2.0**-self.bits
        return (math.sqrt(2 + turned) if self.acute else 2) * radius / self.expected * (1 + rounded)

    def noise_std(self, radius: float, dimension: int) -> float:
        """Of a mean's coordinate."""
        return self.noise_multiplier * self.sensitivity(radius, dimension) * (math.sqrt(2) if self.laplace else 1)

    def radius_of(self, length: float, entries: int) -> float:
        """The radius that clips no vector of this length (2-norm) with at most so many entries that are not 0."""
        return length * math.sqrt(entries) if self.laplace else length

    @property
    def fraction_sensitivity(self) -> float:
        """1/(qK), and what rounding may add to two fractions."""
        return (1 + 2.0**-49 * self.n_vectors) / self.expected

    def contribution(self, vectors: Vectors, radius: float) -> Integers:
        """What vectors add to a round's total, wherever they are: see `clipped_total`."""
        return ClippedTotal(radius, self.bits, self.block, self.laplace)(vectors)

    def released(self, total: Integers, radius: float, noise: Noise) -> Vectors:
        """The noisy mean, and fraction, of a round's total."""
        mean = mean_of(total, radius, self.bits, self.expected)
        if self.laplace:
            return noise.laplace(mean, self.sensitivity(radius, mean.size), 1 / self.noise_multiplier)
        released = noise.gaussian(mean, self.sensitivity(radius, mean.size), self.noise_multiplier)
        if self.fraction_multiplier is None:
            return released
        fraction = np.array([0.5 + total[-1] / (2 * self.expected)])
        return np.append(released, noise.gaussian(fraction, self.fraction_sensitivity, self.fraction_multiplier))

    def start(self, noise: Noise) -> _Session:
        return _Session(self, noise)


class _Session(Session):
    def __init__(self, record: Clip, noise: Noise) -> None:
        self._record, self._noise = record, noise
        self._rounds_left = record.rounds
        self._begin(0 if record.samples_users else record.n_vectors)

    def _begin(self, asked: int, counted: bool = True) -> None:
        """A new total, of so many vectors."""
        self._left, self._counted, self._radius = asked, counted, math.nan
        self._total: Integers | None = None

    def choose(self, users: Users) -> Users:
        """Everyone, or a sample. From an empty one nothing could be computed: then one is asked and not counted."""
        record = self._record
        if not record.samples_users:
            self._begin(record.n_vectors)
            return users
        if len(users) != record.n_vectors:
            raise ValueError(f"Expected {record.n_vectors} users, as was priced.")
        chosen = users[self._noise.poisson_mask(np.full(len(users), record.sampling_probability))]
        self._begin(max(1, len(chosen)), counted=len(chosen) > 0)
        return chosen if self._counted else users[:1]

    def add(self, vectors: Vectors, radius: float) -> None:
        """Add what a block of vectors contributes."""
        if self._total is None:
            self._total, self._radius = np.zeros(vectors.shape[1] + 1, dtype=np.int64), radius
        if radius != self._radius:
            raise ValueError("Expected one radius for all blocks of a round.")
        if vectors.shape[1] + 1 != self._total.size:
            raise ValueError("Expected vectors of one length in all blocks of a round.")
        self._left -= len(vectors)
        if self._counted:
            self._total = self._total + self._record.contribution(vectors, radius)

    def release(self, vectors: Vectors, radius: float) -> Vectors:
        self._check_rounds()
        self.add(vectors, radius)
        return self._released(radius)

    def contribution(self, radius: float) -> ClippedTotal:
        self._radius = radius
        return ClippedTotal(radius, self._record.bits, self._record.block, self._record.laplace)

    def release_total(self, total: Integers, radius: float) -> Vectors:
        """The same of a total of all of a round's vectors, as `contribution` adds them up."""
        self._check_rounds()
        if radius != self._radius:
            raise ValueError("Expected the radius that vectors were clipped to.")
        # Every vector adds 1 or -1 to the last number, and at most a radius to the others: what no engine that adds
        # each user once can give is refused. (Two users too many cannot be told by that.)
        count, longest = int(total[-1]), self._left * 2.0**self._record.bits * (1 + 1e-9)
        if abs(count) > self._left or (count - self._left) % 2 or np.linalg.norm(total[:-1].astype(float)) > longest:
            raise ValueError("Expected the total of one vector for each user of the round.")
        self._left, self._total = 0, total if self._counted else np.zeros_like(total)
        return self._released(radius)

    def _check_rounds(self) -> None:
        if self._rounds_left == 0:
            raise RuntimeError("These means were released and paid for.")

    def _released(self, radius: float) -> Vectors:
        record, left, total = self._record, self._left, self._total
        self._begin(0 if record.samples_users else record.n_vectors)
        if left != 0 or total is None:
            raise ValueError(f"Expected {record.n_vectors} vectors, as was priced, or one for each user of the sample.")
        self._rounds_left -= 1
        return record.released(total, radius, self._noise)


@dataclass(frozen=True)
class ClippedTotal:
    """What vectors add to the total of a round with this radius: see `clipped_total`."""

    radius: float
    bits: int
    block: int
    laplace: bool = False

    @property
    def sink(self) -> fused.Sink:
        add = _add_vectors_of_1_norms if self.laplace else _add_clipped_vectors
        return fused.sink_of(add), np.array([self.radius, 2.0**self.bits]), 1

    def __call__(self, vectors: Vectors | entries.EntryVectors) -> Integers:
        if isinstance(vectors, entries.EntryVectors):
            return clipped_total_of_entries(vectors, self.radius, self.bits, self.laplace)
        if self.laplace:
            return clipped_total_of_1_norms(vectors, self.radius, self.bits)
        return clipped_total(vectors, self.radius, self.bits, np.ones(len(vectors)))


def grid_bits(radii: int) -> int:
    """The most bits of a grid on which so many radii add up to less than 2^62 steps.

    >>> grid_bits(1), grid_bits(10**6), grid_bits(10**9)
    (52, 42, 32)
    """
    return min(_MOST_BITS, 62 - radii.bit_length())


def clipped_total(vectors: Vectors, radius: float, bits: int, lengths: Vectors) -> Integers:
    """Sum over the rows of min(1, l_j r/|x_j|) x_j, in steps of r 2^-bits, and how many more rows are short than long.

    Each row is clipped to its own length l_j (in radii), and rounded towards 0 in each coordinate, so that it does not
    become longer; one that is not finite adds 0, and counts as long.

    Guarantee: a row's part is a function of this row, its length, the radius and the bits alone, by operations on
    single numbers in a fixed order; and whole numbers add up to the same in any order.

    >>> clipped_total(np.array([[3.0, 4.0], [0.0, 0.5], [np.nan, 0.0]]), 1.0, 10, np.ones(3))
    array([ 614, 1331,   -1])
    """
    total: Integers = np.zeros(vectors.shape[1] + 1, dtype=np.int64)
    with np.errstate(all="ignore"):
        _add_clipped(np.ascontiguousarray(vectors), radius, 2.0**bits, lengths, total)
    return total


def clipped_total_of_1_norms(vectors: Vectors, radius: float, bits: int) -> Integers:
    """`clipped_total` of rows that are clipped to the radius in the 1-norm.

    Guarantee: the same.

    >>> clipped_total_of_1_norms(np.array([[3.0, 5.0], [0.0, 0.5], [np.nan, 0.0]]), 1.0, 10)
    array([ 384, 1152,   -1])
    """
    total: Integers = np.zeros(vectors.shape[1] + 1, dtype=np.int64)
    with np.errstate(all="ignore"):
        _add_clipped_1_norms(vectors, radius, 2.0**bits, total)
    return total


def clipped_total_of_entries(
    vectors: entries.EntryVectors, radius: float, bits: int, laplace: bool = False
) -> Integers:
    """`clipped_total`, or that of 1-norms, of vectors that are given by their entries, all clipped to the radius.

    Guarantee: the same, for any entries: a vector that has a column twice, or one that there is not, counts as one that
    is not finite. With a column twice it could be longer than its entries are.

    >>> parts = (np.array([0, 2]), np.array([2, 1]), np.array([0, 1, 1]), np.array([3.0, 4.0, 0.5]))
    >>> clipped_total_of_entries(entries.EntryVectors(*parts, width=2), 1.0, 10)
    array([ 614, 1331,    0])
    """
    starts, counts = vectors.starts, vectors.counts
    held = min(len(vectors.columns), len(vectors.values))
    if len(starts) != len(counts) or np.any(starts < 0) or np.any(counts < 0) or np.any(counts > held - starts):
        raise ValueError("Expected vectors whose entries are there.")
    total: Integers = np.zeros(vectors.width + 1, dtype=np.int64)
    with np.errstate(all="ignore"):
        _add_clipped_entries(starts, counts, vectors.columns, vectors.values, radius, 2.0**bits, laplace, total)
    return total


def mean_of(total: Integers, radius: float, bits: int, divisor: float) -> Vectors:
    """What a total of clipped vectors is in units of the radius, divided by their number; three roundings."""
    return np.asarray(total[:-1] * (radius * 2.0**-bits) / divisor, dtype=np.float64)


_F = TypeVar("_F", bound=Callable[..., Any])
_compiled: Callable[[_F], _F] = kernel()


def _add_clipped_vectors(vectors: Vectors, parameters: Vectors, total: Integers) -> None:
    """For compiled loops: each vector clipped to one radius."""
    _add_clipped(vectors, parameters[0], parameters[1], np.ones(1), total)


def _add_vectors_of_1_norms(vectors: Vectors, parameters: Vectors, total: Integers) -> None:
    """For compiled loops: each vector clipped to one radius in the 1-norm."""
    _add_clipped_1_norms(vectors, parameters[0], parameters[1], total)


@_compiled
def _add_clipped(vectors: Vectors, radius: float, steps: float, lengths: Vectors, total: Integers) -> None:
    # No fastmath: the order of operations is what makes a row's part its own.
    for row in range(vectors.shape[0]):
        length, largest = lengths[row % lengths.size], 0.0
        # In radii. What overflows here is longer than any radius, and what underflows is shorter.
        square = lanes.dot(vectors, row, vectors, row) * (1 / radius) * (1 / radius)
        short = square <= length * length
        total[-1] += 1 if short else -1
        if square < np.inf:
            factor = (1.0 if short else length / math.sqrt(square)) * steps * (1 / radius)
            if length * steps <= _WHOLE:
                for column in range(vectors.shape[1]):
                    total[column] += lanes.whole(vectors[row, column] * factor)
            else:
                for column in range(vectors.shape[1]):
                    total[column] += np.int64(vectors[row, column] * factor)
            continue
        for entry in vectors[row]:
            largest = max(largest, abs(entry)) if abs(entry) < np.inf else np.inf
        if largest < np.inf:  # divided by it first, so that no square overflows
            square = 0.0
            for entry in vectors[row]:
                square += (entry / largest) * (entry / largest)
            for column in range(vectors.shape[1]):
                total[column] += np.int64(vectors[row, column] / largest * (steps * length / math.sqrt(square)))


@_compiled
def _add_clipped_1_norms(vectors: Vectors, radius: float, steps: float, total: Integers) -> None:
    for row in range(vectors.shape[0]):
        size, largest = 0.0, 0.0
        for entry in vectors[row]:
            size += abs(entry * (1 / radius))
            largest = max(largest, abs(entry)) if abs(entry) < np.inf else np.inf
        total[-1] += 1 if size <= 1 else -1
        if size < np.inf:
            factor = (1.0 if size <= 1 else 1 / size) * steps * (1 / radius)
            for column in range(vectors.shape[1]):
                total[column] += np.int64(vectors[row, column] * factor)
        elif largest < np.inf:  # divided by it first, so that no sum overflows
            size = 0.0
            for entry in vectors[row]:
                size += abs(entry / largest)
            for column in range(vectors.shape[1]):
                total[column] += np.int64(vectors[row, column] / largest * (steps / size))


@_compiled
def _add_clipped_entries(
    starts: Integers,
    counts: Integers,
    columns: Integers,
    values: Vectors,
    radius: float,
    steps: float,
    laplace: bool,
    total: Integers,
) -> None:
    last_seen, part = np.full(len(total) - 1, -1), np.zeros(1, dtype=np.int64)
    for row in range(len(starts)):
        first, last = starts[row], starts[row] + counts[row]
        fits = True
        for k in range(first, last):
            fits = fits and 0 <= columns[k] < len(last_seen) and last_seen[columns[k]] != row
            if fits:
                last_seen[columns[k]] = row
        if len(part) <= last - first:
            part = np.zeros(2 * (last - first) + 1, dtype=np.int64)
        own = part[: last - first + 1]
        own[:] = 0
        if laplace:
            _add_clipped_1_norms(values[first:last].reshape(1, last - first), radius, steps, own)
        else:
            _add_clipped(values[first:last].reshape(1, last - first), radius, steps, np.ones(1), own)
        total[-1] += own[-1] if fits else -1
        if fits:
            for k in range(first, last):
                total[columns[k]] += own[k - first]
