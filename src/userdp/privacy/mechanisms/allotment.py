"""Allotments: what whole fits within a larger release may cost. Each fit is a plan of its own, on a part's ledger.

These records are priced and charged like any mechanism. They hold no session: `privacy.selection` carries them out,
fit by fit, and each fit's own mechanisms release.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NoReturn

from userdp.privacy.accounting import Cost, selected_epsilon
from userdp.privacy.mechanisms.base import Mechanism, check_record
from userdp.privacy.noise import Noise

_GRID = 2.0**53  # in parts of which chances are drawn


def on_grid(chance: float) -> float:
    """The chance, rounded down to a multiple of 2^-53: then it is drawn exactly."""
    return math.floor(chance * _GRID) / _GRID


class _OfFits(Mechanism):
    """A mechanism of whole fits, and not of vectors."""

    def start(self, noise: Noise) -> NoReturn:
        raise RuntimeError("Expected fits, each on a ledger of its part (privacy.selection): this releases no vectors.")


@dataclass(frozen=True)
class Allotment(_OfFits):
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


@dataclass(frozen=True)
class RandomStopping(_OfFits):
    """The best of K runs, and a last fit of its kind: nothing else of the runs is released, not even how many.

    Each run costs mu^2 = `mu_squared` of Gaussian releases at most; after each one the search stops with the chance
    `stop_probability` (a multiple of 2^-53, rounded down), whatever was found. `refit_mu_squared` is of the last fit,
    0 if there is none.

    Guarantee: (epsilon, delta)-DP, charged as a pure part of epsilon and a failure of delta. Proof: docs/proofs.md,
    section 32. Paper: Papernot and Steinke 2022, theorem 2, with a geometric number of runs.
    """

    kind: ClassVar[str] = "random-stopping"
    n_vectors: int
    mu_squared: float
    stop_probability: float
    delta: float
    refit_mu_squared: float = 0.0

    rounds = 1

    def __post_init__(self) -> None:
        refits = ("refit_mu_squared",) if self.refit_mu_squared else ()
        check_record(self, ("mu_squared", *refits), ("n_vectors",), chances=("stop_probability", "delta"))
        object.__setattr__(self, "stop_probability", on_grid(self.stop_probability))

    @property
    def cost(self) -> Cost:
        found = selected_epsilon(self.mu_squared, self.stop_probability, self.delta, self.refit_mu_squared)
        return Cost(pure=(found,), failure=self.delta)
