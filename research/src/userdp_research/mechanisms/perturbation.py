"""Output perturbation: noise on one vector that its statistic guarantees cannot move far."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np

from userdp._validate import check_record
from userdp.privacy.accounting import Cost
from userdp.privacy.mechanism import Mechanism, Session, Vectors
from userdp.privacy.noise import Noise
from userdp.statistics.gradients import Statistic


@runtime_checkable
class BoundedStatistic(Statistic, Protocol):
    """A statistic of which it is proven how far its vector moves when one user is replaced, whatever the data."""

    @property
    def replace_one_sensitivity(self) -> float:
        """How far, at most, in l2 norm."""


@dataclass(frozen=True)
class Perturbation(Mechanism):
    """One release of one vector + N(0, (noise_multiplier * r)^2 I), r the radius at release time.

    Here r is how far the vector may move when one user's whole data is replaced. Nothing is clipped or tested: unlike
    in all other mechanisms privacy rests on the statistic. It must guarantee a finite vector and state how far that can
    move, for any data, as its `replace_one_sensitivity`; others, and those for which that is above r, are refused.

    Guarantee: 1 / noise_multiplier^2 (Gaussian), for statistics that keep their guarantee. Proof: docs/proofs.md,
    section 17.
    """

    kind: ClassVar[str] = "output-perturbation"
    noise_multiplier: float

    n_vectors = 1
    rounds = 1
    edge = 0.5  # in radii: how far from 0 the audit's two versions are

    def __post_init__(self) -> None:
        check_record(self, ("noise_multiplier",))

    @property
    def cost(self) -> Cost:
        return Cost(gaussian=math.nextafter(1 / self.noise_multiplier**2, math.inf))

    def sensitivity(self, radius: float, dimension: int) -> float:
        """The radius, by the statistic's guarantee."""
        return radius

    def check_statistic(self, statistic: Statistic, label: str, radius: float) -> None:
        """Refuse a statistic without proof that it moves by at most the radius."""
        guaranteed = statistic.replace_one_sensitivity if isinstance(statistic, BoundedStatistic) else None
        if not isinstance(guaranteed, float):
            raise TypeError(
                f"Expected a statistic with a replace_one_sensitivity in step {label!r}: its mechanism only adds "
                "noise, so it must be proven how far one user can move the vector."
            )
        if not 0 <= guaranteed <= radius:
            raise ValueError(
                f"Expected radius={radius} in step {label!r} to be at least the statistic's "
                f"replace_one_sensitivity={guaranteed}: pass that as the radius."
            )

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
        return self._noise.gaussian(
            finite, self._record.sensitivity(radius, finite.size), self._record.noise_multiplier
        )
