"""Sums over a random sample of all users' rows: example-level DP-SGD, accounted for whole users."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from userdp._validate import check_record
from userdp.privacy.accounting import Cost
from userdp.privacy.clip import clipped_total, grid_bits, mean_of
from userdp.privacy.mechanism import Integers, Mechanism, Session, Users, Vectors
from userdp.privacy.noise import Noise
from userdp.statistics.gradients import Statistic
from userdp_research.mechanisms.mixtures import LEAST_MULTIPLIER, MOST_MULTIPLIER, replace_one_delta

_DRAWN = 1 << 20  # drawn at once, which is about memory only


@runtime_checkable
class RowStatistic(Statistic, Protocol):
    """A statistic of some of each user's rows, as a session's Poisson mask decides."""

    def keeping(self, kept: NDArray[np.bool_]) -> Statistic:
        """The same of the kept rows: one row of the mask per user that is asked."""


@dataclass(frozen=True)
class SampledRows(Mechanism):
    """`rounds` releases of a mean over sampled rows of all users, with noise.

    Each of a user's first `rows_per_user` rows is kept with `sampling_probability`, by the session's Poisson mask. A
    user gives one vector, made of its kept rows; the session clips it to (number of its kept rows) * r, with r the
    radius at release time, whatever the statistic did. The sum is divided by the expected number of rows, which is
    public, and gets N(0, (row_multiplier * r / that number)^2 I). Users without a kept row are not asked. A vector
    that is not finite counts as 0. Vectors come in `block` at a time. There is no test, so nothing ever aborts.

    Guarantee: (epsilon, failure)-DP for a whole user, for any vectors; `epsilon` is what the record claims, and the
    failure follows from it. Proof: docs/proofs.md, section 20.
    Paper: Charles et al. 2024 ("ELS"), accounted as mixtures of Gaussians (Choquette-Choo et al. 2024).
    Differs: users are replaced, not added or removed; and the cap on rows is on the first rows of a user.
    """

    kind: ClassVar[str] = "sampled-rows"
    n_vectors: int
    rows_per_user: int
    sampling_probability: float
    row_multiplier: float
    epsilon: float
    rounds: int = 1
    block: int = 1024

    samples_users = True

    def __post_init__(self) -> None:
        check_record(self, ("sampling_probability", "row_multiplier", "epsilon"))
        check_record(self, counts=("n_vectors", "rows_per_user", "rounds", "block"))
        if not self.sampling_probability <= 1:
            raise ValueError(f"Expected sampling_probability={self.sampling_probability} <= 1.")
        if not LEAST_MULTIPLIER * self.rows_per_user <= self.row_multiplier <= MOST_MULTIPLIER:
            raise ValueError(
                f"Expected row_multiplier={self.row_multiplier} from {LEAST_MULTIPLIER} rows_per_user to "
                f"{MOST_MULTIPLIER:g}: it is the noise in units of one row's fraction."
            )

    @cached_property
    def cost(self) -> Cost:
        row = (self.rows_per_user, self.sampling_probability, self.row_multiplier)
        return Cost(pure=(self.epsilon,), failure=replace_one_delta(*row, self.rounds, self.epsilon))

    @property
    def expected_rows(self) -> float:
        """How many rows a round has on average if all users have as many as they may: what sums are divided by."""
        return self.sampling_probability * self.n_vectors * self.rows_per_user

    @property
    def bits(self) -> int:
        """A radius is 2^bits steps of the grid that vectors are added up on."""
        return grid_bits(self.n_vectors * self.rows_per_user)

    def sensitivity(self, radius: float, dimension: int) -> float:
        """One row's fraction r / (expected rows), and what rounding may add: to lengths, and to the mean of a total."""
        return radius / self.expected_rows * (1 + 2.0**-50 * (dimension + 8 + self.n_vectors * self.rows_per_user))

    def check_statistic(self, statistic: Statistic, label: str, radius: float) -> None:
        """Refuse a statistic that cannot be told which rows to keep."""
        if not isinstance(statistic, RowStatistic):
            raise TypeError(
                f"Expected a statistic of sampled rows in step {label!r}, such as ClippedRowGradients, got "
                f"{type(statistic).__name__}."
            )

    def start(self, noise: Noise) -> _Session:
        return _Session(self, noise)


class _Session(Session):
    """`kept_rows` has a line for each user that takes part in the round: which of its first rows are kept."""

    def __init__(self, record: SampledRows, noise: Noise) -> None:
        self._record, self._noise = record, noise
        self._rounds_left = record.rounds
        self.kept_rows: NDArray[np.bool_] = np.zeros((0, record.rows_per_user), dtype=bool)
        self._open = False

    def choose(self, users: Users) -> Users:
        """Draw the Poisson mask of a round: nothing but the record decides its size."""
        if len(users) != self._record.n_vectors:
            raise ValueError(f"Expected {self._record.n_vectors} users, as was priced.")
        kept = self._mask()
        some = np.asarray(kept.any(axis=1))
        if not some.any():
            some[0] = True  # someone must give a vector, to tell its length; it is clipped to nothing
        self.kept_rows = kept[some]
        self._lengths = self.kept_rows.sum(axis=1)
        self._seen, self._total, self._radius, self._open = 0, np.zeros(1, dtype=np.int64), math.nan, True
        return users[some]

    def asked(self, statistic: Statistic, first: int, last: int) -> Statistic:
        """The same of the kept rows of these users."""
        assert isinstance(statistic, RowStatistic)  # `check_statistic` refused others
        return statistic.keeping(self.kept_rows[first:last])

    def _mask(self) -> NDArray[np.bool_]:
        n_users, n_rows = self._record.n_vectors, self._record.rows_per_user
        kept: NDArray[np.bool_] = np.empty((n_users, n_rows), dtype=np.bool_)
        size = max(1, _DRAWN // n_rows)
        for first in range(0, n_users, size):
            last = min(first + size, n_users)
            chances = np.full((last - first) * n_rows, self._record.sampling_probability)
            kept[first:last] = self._noise.poisson_mask(chances).reshape(last - first, n_rows)
        return kept

    def add(self, vectors: Vectors, radius: float) -> None:
        """Add up a block of vectors, in the order of `kept_rows`."""
        if not self._open:
            raise RuntimeError("Expected the mask of a round to be drawn first, and used once.")
        if self._seen and radius != self._radius:
            raise ValueError("Expected one radius for all blocks of a round.")
        if self._seen and vectors.shape[1] + 1 != self._total.size:
            raise ValueError("Expected vectors of one length in all blocks of a round.")
        lengths = self._lengths[self._seen : self._seen + len(vectors)]
        if len(lengths) != len(vectors):
            raise ValueError("Expected one vector for each user with a kept row.")
        self._seen, self._radius = self._seen + len(vectors), radius
        added: Integers = np.zeros(vectors.shape[1] + 1, dtype=np.int64)
        for length in np.unique(lengths[lengths > 0]):
            added += length * clipped_total(vectors[lengths == length] / length, radius, self._record.bits)
        self._total = self._total + added

    def release(self, vectors: Vectors, radius: float) -> Vectors:
        if self._rounds_left == 0:
            raise RuntimeError("These means were released and paid for.")
        self._rounds_left -= 1
        self.add(vectors, radius)
        self._open = False
        if self._seen != len(self._lengths):
            raise ValueError("Expected one vector for each user with a kept row.")
        record = self._record
        mean = mean_of(self._total, radius, record.bits, record.expected_rows)
        return self._noise.gaussian(mean, record.sensitivity(radius, mean.size), record.row_multiplier)
