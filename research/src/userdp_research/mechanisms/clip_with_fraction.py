"""Clipped means of samples, and how many of the vectors were not clipped."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sp

from userdp._validate import check_record
from userdp.privacy import clip
from userdp.privacy.accounting import Cost
from userdp.privacy.mechanism import Integers, Vectors
from userdp.privacy.noise import Noise


@dataclass(frozen=True)
class ClipWithFraction(clip.Clip):
    """A clipped mean with one more number: the fraction of vectors that were not clipped.

    1/2 + (1/qK) sum of (1/2 if |x_j| <= r, else -1/2) + N(0, (fraction_multiplier / qK)^2), from which the next radius
    may be chosen. Both multipliers are in units of a replacement.

    Guarantee: that of `Clip` with a noise multiplier z of 1/z^2 = 1/noise_multiplier^2 + 1/fraction_multiplier^2: both
    are one Gaussian release. Proof: docs/proofs.md, section 21.
    Paper: Andrew et al. 2021, Alg. 1.
    Differs: users are replaced, not added or removed; a vector that is not finite counts as a long one.
    """

    fraction_multiplier: float = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_record(self, ("fraction_multiplier",))
        if self.acute or self.laplace:
            raise ValueError("Expected Gaussian noise for any vectors, with their fraction.")

    @property
    def joint_multiplier(self) -> float:
        """Noise multiplier of mean and fraction together, rounded down."""
        return (1 - 1e-12) / math.sqrt(1 / self.noise_multiplier**2 + 1 / self.fraction_multiplier**2)

    @property
    def cost(self) -> Cost:
        return clip.Clip(
            self.n_vectors, self.joint_multiplier, self.rounds, sampling_probability=self.sampling_probability
        ).cost

    @property
    def fraction_sensitivity(self) -> float:
        """1/(qK), and what rounding may add to two fractions."""
        return (1 + 2.0**-49 * self.n_vectors) / self.expected

    def released(self, total: Integers, radius: float, noise: Noise) -> Vectors:
        """The noisy mean, and fraction, of a round's total."""
        mean = super().released(np.delete(total, -2), radius, noise)
        fraction = np.array([0.5 + total[-2] / (2 * self.expected)])
        return np.append(mean, noise.gaussian(fraction, self.fraction_sensitivity, self.fraction_multiplier))

    def start(self, noise: Noise) -> _Session:
        return _Session(self, noise)


class _Session(clip._Session):
    def contribution(self, radius: float) -> WithBalance:
        return WithBalance(**vars(super().contribution(radius)))


class WithBalance(clip.ClippedTotal):
    """What vectors add to a total, and before their number how many more of them are short than long."""

    clips_to = None  # vectors are looked at one by one

    def __call__(self, vectors: Any) -> Integers:
        with np.errstate(all="ignore"):
            rows = (vectors.toarray() if sp.issparse(vectors) else np.ascontiguousarray(vectors)) * (1 / self.radius)
            short = np.count_nonzero(np.einsum("ij,ij->i", rows, rows) <= 1)
        total = super().__call__(vectors)
        return np.insert(total, -1, 2 * short - total[-1])
