"""Output perturbation: noise on one vector that its statistic guarantees cannot move far."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from userdp.privacy.accounting import Cost
from userdp.privacy.mechanisms.base import Mechanism, Session, Vectors, check_record
from userdp.privacy.noise import Noise


@dataclass(frozen=True)
class Perturbation(Mechanism):
    """One release of one vector + N(0, (noise_multiplier * r)^2 I), r the radius at release time.

    Here r is how far the vector may move when one user's whole data is replaced. Nothing is clipped or tested: unlike
    in all other mechanisms privacy rests on the statistic. It must guarantee a finite vector and state how far that can
    move, for any data, as its `replace_one_sensitivity`; the curator refuses it if it does not, or if that is above r.

    Guarantee: 1 / noise_multiplier^2 (Gaussian), for statistics that keep their guarantee. Proof: docs/proofs.md,
    section 17.
    """

    kind: ClassVar[str] = "output-perturbation"
    noise_multiplier: float

    n_vectors = 1
    rounds = 1
    trusts_statistic = True

    def __post_init__(self) -> None:
        check_record(self, ("noise_multiplier",))

    @property
    def cost(self) -> Cost:
        return Cost(gaussian=math.nextafter(1 / self.noise_multiplier**2, math.inf))

    def start(self, noise: Noise) -> _Session:
        return _Session(self, noise)


class _Session(Session):
    def __init__(self, record: Perturbation, noise: Noise) -> None:
        self._record, self._noise = record, noise
        self._open = True

    def release(self, vectors: Vectors, radius: float) -> Vectors:
        if not self._open:
            raise RuntimeError("This vector was released and paid for once.")
        self._open = False
        if len(vectors) != 1:
            raise ValueError("Expected one vector, as was priced.")
        # A statistic that keeps its guarantee never gives anything else: the noise refuses NaN by an exception.
        finite = np.where(np.isfinite(vectors[0]), vectors[0], 0.0)
        return self._noise.gaussian(finite, radius, self._record.noise_multiplier)
