"""Allotments: what whole fits within a larger release may cost. Each fit is a plan of its own, on a part's ledger.

These records are priced and charged like any mechanism. They hold no session: `privacy.selection` carries them out,
fit by fit, and each fit's own mechanisms release.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NoReturn

from userdp.privacy.accounting import Cost
from userdp.privacy.mechanisms.base import Mechanism, check_record
from userdp.privacy.noise import Noise


@dataclass(frozen=True)
class Allotment(Mechanism):
    """`rounds` fits on the same `n_vectors` users, each of Gaussian releases whose mu^2 add up to `mu_squared` at most.

    Guarantee: rounds * mu_squared (Gaussian), however fits are chosen by what was released before. Proof:
    docs/proofs.md, section 32.
    """

    kind: ClassVar[str] = "allotment"
    n_vectors: int
    mu_squared: float
    rounds: int = 1

    def __post_init__(self) -> None:
        check_record(self, ("mu_squared",), ("n_vectors", "rounds"))

    @property
    def cost(self) -> Cost:
        return Cost(gaussian=math.nextafter(self.rounds * self.mu_squared, math.inf))

    def start(self, noise: Noise) -> NoReturn:
        raise RuntimeError("Expected fits, each on a ledger of its part (privacy.selection): this releases no vectors.")
