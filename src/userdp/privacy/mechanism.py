"""What a mechanism is: a public record that knows its cost, and the session that carries it out once.

A record holds public numbers only, so it is priced and certified without data. `start(noise)` gives a session, which
holds the state (noisy threshold, rounds used). The radius is given at release time: it may be any number computed
from public inputs and earlier releases, because the noise is proportional to it.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from userdp.privacy.accounting import Cost
from userdp.privacy.noise import Noise

Users = NDArray[np.int64]
Vectors = NDArray[np.float64]


class Halted(RuntimeError):
    """A private test failed: nothing more is released here. It carries no number, only that the noisy test said no."""

    def __init__(self, reason: str = "the vectors are not concentrated enough for this radius") -> None:
        super().__init__(
            f"Halted: {reason}. Try a larger radius or search for it privately, more users, or a larger epsilon. "
            "What was released before stands; the budget of this release is spent."
        )


def check_counts(**numbers: object) -> None:
    """Refuse anything but whole numbers >= 1: half a round would be charged as half and released as one."""
    for name, number in numbers.items():
        if not (isinstance(number, (int, np.integer)) and number >= 1):
            raise ValueError(f"Expected {name}={number!r} to be a whole number >= 1.")


class Session(Protocol):
    """One run of a mechanism."""

    def choose(self, users: Users) -> Users:
        """Which of the users take part in the next round."""

    def release(self, vectors: Vectors, radius: float) -> Vectors:
        """The next releasable vector; raises `Halted` if the test fails."""


class Mechanism(Protocol):
    """A priced record of public numbers."""

    @property
    def n_vectors(self) -> int:
        """How many vectors it was priced for: all it gets, or those a Poisson sample is drawn from."""

    @property
    def samples_users(self) -> bool:
        """Whether each round is on a random sample of the users, one vector each, so that groups make no sense."""

    @property
    def rounds(self) -> int:
        """How often a session may release."""

    @property
    def cost(self) -> Cost:
        """What a whole session costs the users it runs on."""

    def start(self, noise: Noise) -> Session:
        """A fresh session."""
