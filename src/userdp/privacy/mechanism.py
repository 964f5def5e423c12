"""What a mechanism is: a public record that knows its cost, and the session that carries it out once.

A record holds public numbers only, so it is priced and certified without data. `start(noise)` gives a session, which
holds the state (noisy threshold, rounds used). The radius is given at release time: it may be any number computed
from public inputs and earlier releases, because the noise is proportional to it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from userdp.engines.local import Contribution
from userdp.privacy.accounting import Cost
from userdp.privacy.noise import Noise
from userdp.statistics.gradients import Statistic

Users = NDArray[np.int64]
Vectors = NDArray[np.float64]
Integers = NDArray[np.int64]


# Failures may be tiny; noise that no budget asks for could not be drawn.
_SMALLEST, _LARGEST = 1e-150, 1e12
_SMALLEST_RADIUS, _LARGEST_RADIUS = 2.0**-400, 2.0**400

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


def check_counts(at_least: int = 1, **numbers: object) -> tuple[int, ...]:
    """The numbers as plain ints, in order: products of a few bits' integers would wrap around.

    Refuses anything but large enough whole numbers: half a round would be charged as half and released as one.
    """
    counts = []
    for name, number in numbers.items():
        if not (isinstance(number, (int, np.integer)) and number >= at_least):
            raise ValueError(f"Expected {name}={number!r} to be a whole number >= {at_least}.")
        counts.append(int(number))
    return tuple(counts)


def check_record(
    record: object,
    reals: tuple[str, ...] = (),
    counts: tuple[str, ...] = (),
    from_zero: str = "",
    chances: tuple[str, ...] = (),
) -> None:
    """Check a frozen record's numbers and store them as plain floats and ints.

    What was priced must not change afterwards, as an array could, nor be priced in the precision of a narrow float.
    `from_zero` names the count that may be 0; `chances` are reals below 1.
    """
    for name in reals + chances:
        value = getattr(record, name)
        if not isinstance(value, (int, float, np.floating, np.integer)):
            raise TypeError(f"Expected {name} to be a number, got {type(value).__name__}.")
        try:
            number = float(value)
        except OverflowError:  # a whole number beyond all floats
            number = math.inf
        if not (math.isfinite(number) and number > 0):
            raise ValueError(f"Expected {name}={number} to be finite and > 0.")
        if not _SMALLEST <= number <= _LARGEST:
            raise ValueError(f"Expected {_SMALLEST:g} <= {name}={number} <= {_LARGEST:g}.")
        if name in chances and not number < 1:
            raise ValueError(f"Expected 0 < {name}={number} < 1.")
        object.__setattr__(record, name, number)
    for name in counts:
        (count,) = check_counts(at_least=0 if name == from_zero else 1, **{name: getattr(record, name)})
        object.__setattr__(record, name, count)


def check_radius(radius: float) -> float:
    """The radius as a float, if it is one whose squares, and sums of K vectors of 2^20 radii, cannot overflow."""
    if not isinstance(radius, (int, float, np.floating, np.integer)):
        raise TypeError(f"Expected radius to be a number, got {type(radius).__name__}.")
    try:
        number = float(radius)
    except OverflowError:  # a whole number beyond all floats
        number = math.inf
    if not number > 0:
        raise ValueError(f"Expected radius={number} > 0: how far apart two users' vectors may be to count as close.")
    if not _SMALLEST_RADIUS <= number <= _LARGEST_RADIUS:
        raise ValueError(
            f"Expected {_SMALLEST_RADIUS:g} <= radius={number} <= {_LARGEST_RADIUS:g}: rescale the features."
        )
    return number


class DrawnOnce(Protocol):
    """A test whose noisy threshold is drawn once, before the first round, and shown to nobody."""

    noisy_threshold: int


class Session(ABC):
    """One run of a mechanism. By default everyone takes part, and all vectors of a round come at once."""

    drawn_once: DrawnOnce | None = None  # what all rounds share, if anything; a run that goes on needs it

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
    """

    kind: ClassVar[str]
    n_vectors: int
    rounds: int

    @property
    def samples_users(self) -> bool:
        """Whether each round is on a random sample of the users, one vector each, so that groups make no sense."""
        return False

    @property
    def acute(self) -> bool:
        """Whether privacy rests on vectors that never point apart: only statistics proven to give such are taken."""
        return False

    @property
    def added_to_replaced(self) -> float | None:
        """How far adding a user moves what is released / how far replacing one does; None if there is no such ratio."""
        return None

    @property
    def block(self) -> int | None:
        """How many vectors a session wants at once: the others come before, through its `add`; None for all."""
        return None

    @property
    @abstractmethod
    def cost(self) -> Cost:
        """What a whole session costs the users it runs on."""

    def check_statistic(self, statistic: Statistic, label: str, radius: float) -> None:  # noqa: B027 - most take any
        """Refuse a statistic that the mechanism is not for, before data is touched."""

    @abstractmethod
    def start(self, noise: Noise) -> Session:
        """A fresh session."""


def described(mechanism: Mechanism) -> dict[str, Any]:
    """What files say of a mechanism: its kind and its numbers, as JSON values."""
    # Every kind is a dataclass, which its base class alone does not tell.
    numbers = {field.name: getattr(mechanism, field.name) for field in fields(mechanism)}  # type: ignore[arg-type]
    return {"kind": mechanism.kind} | {k: list(v) if isinstance(v, tuple) else v for k, v in numbers.items()}


@dataclass(frozen=True)
class Allotment(Mechanism):
    """`rounds` fits on the same `n_vectors` users, each of Gaussian releases whose mu^2 add up to `mu_squared` at most.

    Priced and charged like any mechanism; `privacy.selection` carries it out, fit by fit, each on a ledger of its part.

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
