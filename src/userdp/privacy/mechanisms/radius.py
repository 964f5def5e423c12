"""Private search for the radius: the smallest of a public list at which most vectors have most others near."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from userdp.privacy.accounting import Cost
from userdp.privacy.mechanisms import concentration as c
from userdp.privacy.mechanisms.base import Mechanism, Session, Vectors, check_record
from userdp.privacy.mechanisms.tests import noisy
from userdp.privacy.noise import Noise


def radius_grid(smallest: float, largest: float, ratio: float = 1.2) -> tuple[float, ...]:
    """smallest * ratio^k, up to the first that is >= largest.

    >>> radius_grid(1.0, 2.0, 1.5)
    (1.0, 1.5, 2.25)
    """
    if not (0 < smallest <= largest < math.inf and ratio > 1):
        raise ValueError(f"Expected 0 < smallest={smallest} <= largest={largest} and ratio={ratio} > 1.")
    steps = math.ceil(math.log(largest / smallest, ratio) - 1e-9)
    return tuple(smallest * ratio**k for k in range(steps + 1))


@dataclass(frozen=True)
class RadiusSearch(Mechanism):
    """Binary search in the increasing list `radii` for the first at which the noisy h-index reaches `target`.

    The radii are in units of the radius given at release time (a theoretical one, say). The last one is never probed:
    it is the answer if no other one reaches the target, so let it be large enough. A probe is
    Q(r) + N(0, noise_std^2), and Q(r) has sensitivity 1 whatever r is.

    Guarantee: ceil(log2(number of radii)) / noise_std^2 (Gaussian), for any vectors. The answer is one of the public
    radii and tells nothing else. Proof: docs/proofs.md, section 11.
    """

    kind: ClassVar[str] = "radius-search"
    n_vectors: int
    radii: tuple[float, ...]
    target: int
    noise_std: float

    rounds = 1

    def __post_init__(self) -> None:
        check_record(self, ("noise_std",), ("n_vectors", "target"))
        object.__setattr__(self, "radii", c.check_factors(self.radii))
        if not 0 < self.target <= self.n_vectors:
            raise ValueError(f"Expected 0 < target={self.target} <= n_vectors={self.n_vectors}.")

    @property
    def probes(self) -> int:
        """How often the h-index is asked for at most."""
        return math.ceil(math.log2(len(self.radii)))

    @property
    def cost(self) -> Cost:
        return Cost(gaussian=math.nextafter(self.probes / self.noise_std**2, math.inf) if self.probes else 0.0)

    def start(self, noise: Noise) -> _Session:
        return _Session(self, noise)


class _Session(Session):
    def __init__(self, record: RadiusSearch, noise: Noise) -> None:
        self._record, self._noise = record, noise
        self._open = True

    def release(self, vectors: Vectors, radius: float) -> Vectors:
        """The found radius, as a vector of length 1; once."""
        if not self._open:
            raise RuntimeError("This search was made and paid for once.")
        self._open = False
        radii = [radius * factor for factor in self._record.radii]
        low, high = 0, len(radii) - 1
        while low < high:
            middle = (low + high) // 2
            rows = c.comparable(vectors, radii[middle])
            value = c.h_index(c.neighbour_counts(rows, radii[middle]))
            enough = noisy(value, self._record.noise_std, self._noise) >= self._record.target
            low, high = (low, middle) if enough else (middle + 1, high)
        return np.array([radii[high]])
