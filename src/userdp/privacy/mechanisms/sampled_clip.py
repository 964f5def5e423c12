"""Clipping on Poisson samples of the users, and how many vectors were short enough: what user-level DP-SGD releases."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from userdp.privacy.accounting import AddedUserMultiplier, Cost, Subsampled
from userdp.privacy.mechanisms.base import Mechanism, Session, Users, Vectors, check_record
from userdp.privacy.mechanisms.clip import clipped_sum
from userdp.privacy.noise import Noise


@dataclass(frozen=True)
class SampledClip(Mechanism):
    """`rounds` clipped means, each of a fresh Poisson sample: each user takes part with `sampling_probability` q.

    (1/(q n)) sum over the sample of min(1, r/|x_j|) x_j + N(0, (added_user_multiplier * r/(q n))^2 I), n = `n_vectors`
    the number of users: divided by how many are expected, so that the sample's size stays secret. A vector that is not
    finite counts as 0. With `fraction_multiplier` one more number follows, the fraction of vectors that were not
    clipped: 1/2 + (1/(q n)) sum of (1/2 if |x_j| <= r, else -1/2) + N(0, (fraction_multiplier / (2 q n))^2), from which
    the next radius may be chosen (Andrew et al. 2021). Both are one Gaussian release of multiplier z with
    1/z^2 = 1/added_user_multiplier^2 + 1/fraction_multiplier^2, in units of adding one user.

    There is no test, so nothing ever aborts. Vectors come in `block` at a time, which is about memory only.

    Guarantee: the cost is `rounds` Poisson-sampled Gaussian steps of multiplier z, for q = 1 rounds (2/z)^2 (Gaussian),
    for any vectors, one a user. Proof: docs/proofs.md, section 21.
    Paper: Andrew et al. 2021, Alg. 1.
    Differs: users are replaced, not added or removed; a vector that is not finite counts as a long one.
    """

    kind: ClassVar[str] = "sampled-clip"
    n_vectors: int
    sampling_probability: float
    added_user_multiplier: AddedUserMultiplier
    rounds: int = 1
    fraction_multiplier: AddedUserMultiplier | None = None
    block: int = 1024

    samples_users = True

    def __post_init__(self) -> None:
        check_record(self, ("sampling_probability", "added_user_multiplier"), ("n_vectors", "rounds", "block"))
        if self.sampling_probability > 1:
            raise ValueError(f"Expected sampling_probability={self.sampling_probability} <= 1.")
        if self.fraction_multiplier is not None:
            check_record(self, ("fraction_multiplier",))

    @property
    def joint_multiplier(self) -> AddedUserMultiplier:
        """Noise multiplier of mean and fraction together, rounded down."""
        precision = 1 / self.added_user_multiplier**2
        if self.fraction_multiplier is not None:
            precision += 1 / self.fraction_multiplier**2
        return AddedUserMultiplier((1 - 1e-12) / math.sqrt(precision))

    @property
    def cost(self) -> Cost:
        if self.sampling_probability == 1:  # a replacement is then a removal and an addition: twice the change
            return Cost(gaussian=self.rounds * (2 / self.joint_multiplier) ** 2 * (1 + 2.0**-50))
        return Cost(subsampled=(Subsampled(self.sampling_probability, self.joint_multiplier, self.rounds),))

    @property
    def expected(self) -> float:
        """How many users a sample is expected to have, rounded down."""
        return self.sampling_probability * self.n_vectors * (1 - 2.0**-50)

    def sensitivity(self, radius: float, dimension: int) -> float:
        """r/(q n), and what rounding may add: to clipped vectors, all of which move up in the sample, and to sums."""
        return radius / self.expected * (1 + 2.0**-50 * self.n_vectors * (self.n_vectors + dimension + 8))

    def noise_std(self, radius: float, dimension: int) -> float:
        """Of a mean's coordinate."""
        return self.added_user_multiplier * self.sensitivity(radius, dimension)

    @property
    def fraction_sensitivity(self) -> float:
        """1/(2 q n), and what rounding may add to two fractions."""
        return (1 + 2.0**-49 * self.n_vectors) / (2 * self.expected)

    def start(self, noise: Noise) -> _Session:
        return _Session(self, noise)


class _Session(Session):
    def __init__(self, record: SampledClip, noise: Noise) -> None:
        self._record, self._noise = record, noise
        self._rounds_left = record.rounds
        self._begin(0)

    def _begin(self, chosen: int) -> None:
        self._left, self._total, self._balance, self._radius = chosen, np.zeros(0), 0, math.nan
        self._counted = True

    def choose(self, users: Users) -> Users:
        """A sample. From an empty one nothing could be computed: then one user is asked and not counted."""
        if len(users) != self._record.n_vectors:
            raise ValueError(f"Expected {self._record.n_vectors} users, as was priced.")
        chosen = users[self._noise.poisson_mask(np.full(len(users), self._record.sampling_probability))]
        self._begin(max(1, len(chosen)))
        self._counted = len(chosen) > 0
        return chosen if self._counted else users[:1]

    def add(self, vectors: Vectors, radius: float) -> None:
        """Add up a block of clipped vectors, and by how many the short ones outnumber the others."""
        if self._total.size == 0:
            self._total, self._radius = np.zeros(vectors.shape[1]), radius
        if radius != self._radius:
            raise ValueError("Expected one radius for all blocks of a round.")
        if vectors.shape[1] != self._total.size:
            raise ValueError("Expected vectors of one length in all blocks of a round.")
        self._left -= len(vectors)
        if self._counted:
            self._total = self._total + clipped_sum(vectors, radius)
            self._balance += 2 * n_short(vectors, radius) - len(vectors)

    def release(self, vectors: Vectors, radius: float) -> Vectors:
        record = self._record
        if self._rounds_left == 0:
            raise RuntimeError("These means were released and paid for.")
        self.add(vectors, radius)
        left, total, balance = self._left, self._total, self._balance
        self._begin(0)
        if left != 0:
            raise ValueError("Expected one vector for each user of the sample.")
        self._rounds_left -= 1
        mean = total / record.expected
        released = self._noise.gaussian(mean, record.sensitivity(radius, total.size), record.added_user_multiplier)
        if record.fraction_multiplier is None:
            return released
        fraction = np.array([0.5 + balance / (2 * record.expected)])
        return np.append(
            released, self._noise.gaussian(fraction, record.fraction_sensitivity, record.fraction_multiplier)
        )


def n_short(vectors: Vectors, radius: float) -> int:
    """How many vectors are finite and at most so long.

    Decided for each vector by itself, by operations on single numbers, in the order of its entries: a sum whose
    rounding depended on where in the block a vector stands would let one more user turn others' votes.

    >>> n_short(np.array([[3.0, 4.0], [0.0, 0.5], [np.nan, 0.0], [1e308, 1e308]]), 1.0)
    1
    """
    # Divided first: squares of what is within reach then neither over- nor underflow in a way that matters.
    with np.errstate(all="ignore"):
        squares = np.zeros(len(vectors))
        for entries in vectors.T:
            scaled = entries / radius
            squares += scaled * scaled
        return int(np.count_nonzero(squares <= 1.0))
