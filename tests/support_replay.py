"""Record and replay: noise that is drawn on one data set, and answered again on a neighbour.

A run is recorded with real noise. On a neighbour, which differs in one user's data, every draw is answered as it was:
what is then seen may not depend on that user at all, because all that it could move was moved before noise was added.
How far it moved there is compared with what was paid for, draw by draw and in total.
"""

from __future__ import annotations

import contextlib
import copy
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np
from support_hostile import observed

from userdp import Budget, Ledger
from userdp.privacy import vocabulary
from userdp.privacy.noise import SecureNoise

_ROUNDING = 1e-9  # of sums of floats, relative to a sensitivity


def apart(query: Any, other: Any, order: int) -> float:
    """How far two queries are apart, infinitely if they are of different shapes or not finite."""
    if np.shape(query) != np.shape(other) or not np.isfinite(query).all():
        return math.inf
    return float(np.linalg.norm(np.ravel(query) - np.ravel(other), order))


@dataclass
class Tape:
    """All draws of a run in order: what kind with which public numbers, of what, and what came of it."""

    draws: list[tuple[str, Any, Any, Any]] = field(default_factory=list)
    position: int | None = None  # None while it records
    complaints: list[str] = field(default_factory=list)  # kept here, because a curator swallows errors
    gaussian: float = 0.0  # how far all was moved, squared, in standard deviations
    pure: float = 0.0  # the same of Laplace noise, in its scale

    def rewind(self) -> None:
        self.position, self.complaints, self.gaussian, self.pure = 0, [], 0.0, 0.0

    def answer(self, kind: str, public: Any, query: Any, draw: Any) -> Any:
        """A draw, or what it was when this was recorded; the recorded query comes with it."""
        if self.position is None:
            self.draws.append((kind, public, copy.copy(query), draw()))
            return copy.copy(self.draws[-1][3]), query
        if self.position == len(self.draws):
            self.complaints.append(f"one draw more: {kind}")
            raise RuntimeError("one draw more")
        recorded, numbers, other, given = self.draws[self.position]
        self.position += 1
        if (recorded, numbers) != (kind, public):
            self.complaints.append(f"draw {self.position}: {recorded} {numbers} became {kind} {public}")
        return copy.copy(given), other

    def moved(self, kind: str, by: float, sensitivity: float) -> float:
        """By how many sensitivities one user moved a query: no more than 1 is paid for."""
        if not by <= sensitivity * (1 + _ROUNDING):
            self.complaints.append(f"draw {self.position}: {kind} moved by {by / sensitivity:g} sensitivities")
        return by / sensitivity

    @contextlib.contextmanager
    def playing(self) -> Iterator[None]:
        """While this lasts, all private noise in this process is recorded, or answered."""
        tape, real = self, {name: getattr(SecureNoise, name) for name in vars(SecureNoise)}
        release = vocabulary._Session.release

        def gaussian(self, query, sensitivity, multiplier):
            public = (sensitivity, multiplier, query.size)
            given, other = tape.answer("gaussian", public, query, lambda: real["gaussian"](self, query, *public[:2]))
            tape.gaussian += (tape.moved("gaussian", apart(query, other, 2), sensitivity) / multiplier) ** 2
            return given

        def laplace(self, query, sensitivity, epsilon):
            public = (sensitivity, epsilon, query.size)
            given, other = tape.answer("laplace", public, query, lambda: real["laplace"](self, query, *public[:2]))
            tape.pure += tape.moved("laplace", apart(query, other, 1), sensitivity) * epsilon
            return given

        def integer_laplace(self, query, scale):
            given, other = tape.answer("integer", scale, query, lambda: real["integer_laplace"](self, query, scale))
            tape.moved("integer", abs(query - other), 1)
            return given

        def levels(self, vectors, radius):
            given, _ = tape.answer("levels", self._record, None, lambda: (release(self, vectors, radius), self._counts))
            if tape.position is not None:
                self.add(vectors, radius)
            counts = given[1]
            keys = counts.keys() | self._counts.keys()
            by = math.dist([counts.get(key, 0) for key in keys], [self._counts.get(key, 0) for key in keys])
            tape.gaussian += (tape.moved("levels", by, self._record.moved_steps) / self._record.noise_multiplier) ** 2
            return given[0].copy()

        def drawn(name):
            def draw(self, *public):
                numbers = [np.asarray(number).tolist() for number in public]  # chances too may depend on no user
                return tape.answer(name, numbers, None, lambda: real[name](self, *public))[0]

            return draw

        plain = {name: drawn(name) for name in ("permutation", "poisson_mask", "integers")}
        noisy = {"gaussian": gaussian, "laplace": laplace, "integer_laplace": integer_laplace}
        with patch.multiple(SecureNoise, **plain, **noisy), patch.object(vocabulary._Session, "release", levels):
            yield


def said(value: Any) -> str:
    """All of a result, as text; but for when it was made."""
    return json.dumps(_without_times(value), sort_keys=True, default=repr)


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _without_times(item) for key, item in value.items() if key not in ("created", "charged_at")}
    if isinstance(value, list | tuple):
        return [_without_times(item) for item in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


@dataclass
class Run:
    """What one run showed, and what it charged."""

    result: Any
    seen: Any
    charged: tuple[Any, ...]


def run(work: Any, data: Any) -> Run:
    """work(data, ledger) gives what is shown of its result."""
    ledger = Ledger(Budget(1e3, 1e-2))
    result, seen = observed(lambda: said(work(data, ledger)))
    charges = ledger.charges()
    return Run(result, (seen, said([asdict(charge) for charge in charges])), charges)


def compare(work: Any, data: Any, neighbours: dict[str, Any], *, charged: bool = True, total: bool = True) -> None:
    """Assert that nothing of a run tells it from one on any of the neighbours, but through noise that is paid for.

    charged: whether it charges the ledger that it is given; total: whether what is charged is what draws cost together.
    """
    tape = Tape()
    with tape.playing():
        first = run(work, data)
        assert first.seen[0][3] is None, first.seen[0][3]
        assert tape.draws, "nothing was released"
        for name, neighbour in neighbours.items():
            tape.rewind()
            again = run(work, neighbour)
            assert tape.complaints == [], (name, tape.complaints[:3])
            assert again.seen == first.seen, (name, again.seen, first.seen)
            assert again.result == first.result, (name, _first_difference(again.result, first.result))
            assert tape.position == len(tape.draws), (name, "some draws were not made")
            if charged and total:
                (charge,) = first.charged
                assert tape.gaussian <= max(cost.gaussian for cost in charge.costs) * (1 + _ROUNDING), name
                assert tape.pure <= max(math.fsum(cost.pure) for cost in charge.costs) * (1 + _ROUNDING), name


def _first_difference(one: str, other: str) -> tuple[str, str]:
    place = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return one[max(0, place - 80) : place + 80], other[max(0, place - 80) : place + 80]
