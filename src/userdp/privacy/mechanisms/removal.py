"""What outlier removals on all vectors fraction: the threshold of their test, their sensitivity, and the noisy mean."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property

from userdp.privacy.mechanisms import concentration as c
from userdp.privacy.mechanisms.base import Aborted, Mechanism, Session, Vectors
from userdp.privacy.mechanisms.tests import Gate
from userdp.privacy.noise import Noise


class TightMean(Mechanism):
    """A record of tight filtered means of `n_vectors` vectors, each behind a test of their h-index Q.

    With K vectors a test passes if the noisy Q reaches K - slack + margin, and a mean gets the noise of
    sensitivity(K, slack, radius). Proofs of both: docs/proofs.md, sections 3, 5 and 8.
    """

    n_vectors: int
    noise_multiplier: float
    outliers: int

    @property
    @abstractmethod
    def margin(self) -> int:
        """How far above K - slack the noisy h-index must be, so that noise seldom lifts a lower one to there."""

    @property
    @abstractmethod
    def reach(self) -> int:
        """How far the noise may lower the h-index of concentrated vectors before they fail."""

    @cached_property
    def slack(self) -> int:
        """How far below K the h-index may be: the M of the proofs."""
        return self.margin + self.reach + self.outliers

    @property
    def threshold(self) -> int:
        """What the noisy h-index must reach."""
        return self.n_vectors - self.slack + self.margin

    def check_size(self, test: str, remedy: str) -> None:
        """Refuse fewer vectors than the ramp needs; the words say what test asks for so many, and what to do."""
        if self.n_vectors < 2 * self.slack + 4:
            raise ValueError(
                f"Expected n_vectors={self.n_vectors} >= {2 * self.slack + 4} for {test} and outliers={self.outliers}: "
                f"use more users or groups, or {remedy}."
            )

    def sensitivity(self, radius: float, dimension: int) -> float:
        """What the noise of a mean is proportional to."""
        exact = c.sensitivity(self.n_vectors, self.slack, radius)
        return c.rounded_sensitivity(exact, self.n_vectors, dimension, radius)

    def noise_std(self, radius: float, dimension: int) -> float:
        """Of a mean's coordinate."""
        return self.noise_multiplier * self.sensitivity(radius, dimension)


class TightSession(Session):
    """Rounds of a test and, behind it, a mean; the gate says when there are no more."""

    def __init__(self, record: TightMean, gate: Gate, noise: Noise) -> None:
        self._record, self._gate, self._noise = record, gate, noise

    def release(self, vectors: Vectors, radius: float) -> Vectors:
        if len(vectors) != self._record.n_vectors:
            raise ValueError(f"Expected {self._record.n_vectors} vectors, as was priced.")
        rows = c.comparable(vectors, radius)
        counts = c.neighbour_counts(rows, radius)
        if not self._gate.passes(c.h_index(counts)):
            raise Aborted
        return noisy_mean(self._record, self._noise, rows, counts, radius)


def noisy_mean(record: TightMean, noise: Noise, rows: Vectors, counts: c.Counts, radius: float) -> Vectors:
    """The filtered mean of rows whose test has passed at this radius, with its noise."""
    mean = c.filtered_mean(rows, counts, c.tight_ramp(record.n_vectors, record.slack))
    return noise.gaussian(mean, record.sensitivity(radius, rows.shape[1]), record.noise_multiplier)
