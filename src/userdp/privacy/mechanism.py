"""What a mechanism is: a public record that knows its cost, and the session that carries it out once.

A record holds public numbers only, so it is priced and certified without data. `start(noise)` gives a session, which
holds the state (noisy threshold, rounds used). The radius is given at release time: it may be any number computed
from public inputs and earlier releases, because the noise is proportional to it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import fields
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from userdp.engines.local import Contribution
from userdp.privacy.accounting import REPLACE_ONE, Cost
from userdp.privacy.noise import Noise
from userdp.statistics.gradients import Statistic

Users = NDArray[np.int64]
Vectors = NDArray[np.float64]
Integers = NDArray[np.int64]


_NOT_CONCENTRATED = (
    "The private test failed: too many users' vectors are far from the others. Likely causes: users with missing "
    "values or targets (fill them first), a radius that is too small (search for it privately), or more outliers than "
    "the mechanism tolerates (raise its `outliers`)."
)


class Aborted(RuntimeError):
    """A private test failed: nothing more is released here. It carries no number, only that the noisy test said no."""

    def __init__(self, reason: str = _NOT_CONCENTRATED) -> None:
        self.reason = reason
        super().__init__(f"{reason} What was released before stands; the budget of this step is spent.")


class DrawnOnce(Protocol):
    """A test whose noisy threshold is drawn once, before the first round, and shown to nobody."""

    noisy_threshold: int


class Session(ABC):
    """One run of a mechanism. By default everyone takes part, and all vectors of a round come at once."""

    drawn_once: DrawnOnce | None = None  # what all rounds share, if anything; a run that is resumed needs it

    def choose(self, users: Users) -> Users:
        """Which of the users take part in the next round."""
        return users

    def asked(self, statistic: Statistic, first: int, last: int) -> Statistic:
        """What the chosen users from `first` to `last` are asked for."""
        return statistic

    def add(self, vectors: Vectors, radius: float) -> None:
        """Take in a block of vectors of the next round; only asked of mechanisms that have a `block`."""
        raise RuntimeError("This mechanism takes all vectors of a round at once.")

    def contribution(self, radius: float) -> Contribution | None:
        """What vectors of the next round add to a total, where they are; None for a mechanism that needs them all."""
        return None

    def release_total(self, total: Integers, radius: float) -> Vectors:
        """The next releasable vector, of a total of contributions."""
        raise RuntimeError("This mechanism takes all vectors of a round at once.")

    @abstractmethod
    def release(self, vectors: Vectors, radius: float) -> Vectors:
        """The next releasable vector; raises `Aborted` if the test fails."""


class Mechanism(ABC):
    """A priced record of public numbers: a frozen dataclass.

    kind: its name in files, which outlives the class's; n_vectors: how many vectors it was priced for, all it gets or
    those a Poisson sample is drawn from; rounds: how often a session may release.

    What privacy rests on is stated by two methods, for neighbours of the relation that the record is made for
    (`neighbours`; `Clip`, `Vocabulary`, `Allotment` and `OutlierRemoval` may be for "zero-out", others may not):
    `sensitivity(radius, dimension)` is how far, at most, what gets the noise of a round moves, whatever the data and
    rounding included: in 2-norm for Gaussian noise, in 1-norm for Laplace noise; `cost` is what a whole session costs,
    and `cost_under(relation)` what the same noise costs in the other relation, where that is known.
    With z the noise multiplier, std / sensitivity, of each of T rounds (proofs: these sections of docs/proofs.md):

    kind                            what moves by the sensitivity     cost                            proof
    clip                            the mean of clipped vectors       T / z^2                         13
    clip, acute                     the same, by less                 T / z^2                         22
    clip, laplace                   the same, in 1-norm               T times 1/z (pure)              27
    clip, of samples                the sum / expected number         T sampled steps of 2z           21
    vocabulary                      all counts of users               1 / z^2, failure                29
    allotment                       fits, as the Gaussian of noise 1  T times sensitivity^2           32
    radius-search                   an h-index                        probes / z^2                    11
    outlier-removal                 the filtered mean                 T / z^2, tests, failure         8, 9, 14, 16
    sampled-outlier-removal *       the filtered mean                 T sampled steps, failure        10
    paper-outlier-removal           the mean of selected vectors      T / z^2, tests, failure         15
    sampled-paper-outlier-removal * the mean of selected vectors      T sampled steps, tests, failure 26

    * Where a cost has sampled steps, their multipliers are in units of *adding* a user to the sample (`Subsampled`).
    These two state their sensitivity in that unit too, as their proofs do.
    """

    kind: ClassVar[str]
    n_vectors: int
    rounds: int
    neighbours: str = REPLACE_ONE

    @property
    def samples_users(self) -> bool:
        """Whether each round is on a random sample of the users, one vector each, so that groups make no sense."""
        return False

    @property
    def block(self) -> int | None:
        """How many vectors a session wants at once: the others come before, through its `add`; None for all."""
        return None

    @abstractmethod
    def sensitivity(self, radius: float, dimension: int) -> float:
        """How far, at most, a user moves what gets a round's noise, for vectors of so many numbers at this radius."""

    @property
    @abstractmethod
    def cost(self) -> Cost:
        """What a whole session costs the users it runs on."""

    def cost_under(self, relation: str) -> Cost | None:
        """What the same noise costs where neighbours are of this relation; None where that is not known."""
        return self.cost if relation == self.neighbours else None

    def check_statistic(self, statistic: Statistic, label: str, radius: float) -> None:  # noqa: B027 - most take any
        """Refuse a statistic that the mechanism is not for, before data is touched."""

    @abstractmethod
    def start(self, noise: Noise) -> Session:
        """A fresh session."""


def described(mechanism: Mechanism) -> dict[str, Any]:
    """What files say of a mechanism: its kind and its numbers, as JSON values; the usual relation is left out."""
    # Every kind is a dataclass, which its base class alone does not show.
    numbers = {field.name: getattr(mechanism, field.name) for field in fields(mechanism)}  # type: ignore[arg-type]
    if numbers.get("neighbours") == REPLACE_ONE:  # as in files from before there was another
        del numbers["neighbours"]
    return {"kind": mechanism.kind} | {k: list(v) if isinstance(v, tuple) else v for k, v in numbers.items()}
