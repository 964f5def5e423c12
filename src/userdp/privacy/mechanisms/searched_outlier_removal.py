"""Outlier removal that finds its own radius: the search's probes are the test."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from userdp.privacy.accounting import Cost
from userdp.privacy.mechanisms import concentration as c
from userdp.privacy.mechanisms.base import Aborted, Session, Vectors, check_record
from userdp.privacy.mechanisms.removal import TightMean, noisy_mean
from userdp.privacy.mechanisms.tests import gaussian_margin, noisy
from userdp.privacy.noise import Noise

# A radius at which all but `outliers` vectors are close passes unless the noise is below this many deviations. Failing
# costs little: the next larger radius is tried.
_USUAL_NOISE = 2.0


@dataclass(frozen=True)
class SearchedOutlierRemoval(TightMean):
    """One filtered mean of `n_vectors` vectors, at the smallest of `radii` at which they pass a private test.

    The radii are in units of the radius given at release time (a theoretical one, say). Binary search: a radius passes
    if its h-index Q has Q + N(0, test_std^2) >= K - slack + margin. The margin makes it unlikely (`failure`, over all
    probes) that a radius with Q < K - slack passes; the slack lets one with Q >= K - `outliers` pass mostly. At the
    smallest radius r that passed, the tight filtered mean + N(0, (noise_multiplier * sensitivity(K, slack, r))^2 I)
    is released, followed by r itself as one more number. If none passed, it aborts.

    Guarantee: probes / test_std^2 + 1 / noise_multiplier^2 (Gaussian) and `failure`, for any vectors, each depending on
    one user or on disjoint groups of users. Proof: docs/proofs.md, section 14.
    Paper: Alg. 1, lines 10-22.
    Differs: radius found, not computed from constants; h-index for the score; Gaussian for Laplace noise in the test,
    which composes better with the release; weights for coins.
    """

    kind: ClassVar[str] = "searched-outlier-removal"
    n_vectors: int
    radii: tuple[float, ...]
    noise_multiplier: float
    test_std: float
    failure: float
    outliers: int = 0

    rounds = 1

    def __post_init__(self) -> None:
        check_record(
            self, ("noise_multiplier", "test_std"), ("n_vectors", "outliers"), "outliers", chances=("failure",)
        )
        object.__setattr__(self, "radii", c.check_factors(self.radii))
        self.check_size(f"a test with test_std={self.test_std:g}, failure={self.failure:g}", "a smaller test_std")

    @property
    def probes(self) -> int:
        """How many radii are tried at most: enough to tell one of them, or none."""
        return math.ceil(math.log2(len(self.radii) + 1))

    @cached_property
    def margin(self) -> int:
        """How far above K - slack the noisy h-index must be: P(N(0, test_std^2) >= margin + 1) <= failure / probes."""
        return math.ceil(gaussian_margin(self.test_std, self.failure / self.probes))

    @property
    def reach(self) -> int:
        """How far the noise may lower the h-index before a radius fails."""
        return math.ceil(_USUAL_NOISE * self.test_std)

    @property
    def cost(self) -> Cost:
        gaussian = self.probes / self.test_std**2 + 1 / self.noise_multiplier**2
        return Cost(gaussian=gaussian * (1 + 2.0**-50), failure=self.failure)

    def start(self, noise: Noise) -> _Session:
        return _Session(self, noise)


class _Session(Session):
    def __init__(self, record: SearchedOutlierRemoval, noise: Noise) -> None:
        self._record, self._noise = record, noise
        self._open = True

    def release(self, vectors: Vectors, radius: float) -> Vectors:
        """Mean and radius, in one vector; once."""
        record = self._record
        if not self._open:
            raise RuntimeError("This search was made and paid for once.")
        self._open = False
        if len(vectors) != record.n_vectors:
            raise ValueError(f"Expected {record.n_vectors} vectors, as was priced.")
        low, high = 0, len(record.radii)  # the answer is among low..high; the last stands for "none"
        passed = None
        while low < high:
            middle = (low + high) // 2
            tried = radius * record.radii[middle]
            rows = c.comparable(vectors, tried)
            counts = c.neighbour_counts(rows, tried)
            if noisy(c.h_index(counts), record.test_std, self._noise) >= record.threshold:
                high, passed = middle, (tried, rows, counts)
            else:
                low = middle + 1
        if passed is None:
            raise Aborted
        found, rows, counts = passed
        return np.append(noisy_mean(record, self._noise, rows, counts, found), found)
