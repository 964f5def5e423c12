"""What the noise of a plan really allows an attacker, which is less than (epsilon, delta) alone would.

An attack on one person errs in two ways: it suspects wrongly (a false alarm, with chance a) or overlooks (a missed
detection, chance b). delta(epsilon) of the plan, known for all epsilon >= 0, allows

    b >= 1 - delta(epsilon) - e^epsilon a   and   a >= 1 - delta(epsilon) - e^epsilon b   for all of them

(Dong, Roth and Su 2022, proposition 2.12). One pair (epsilon, delta) is one of these lines; the curve that was paid for
is all of them. docs/proofs.md, section 24.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtr

from userdp.privacy.accounting import Cost, added_epsilon_at, delta_curve, epsilon_at, gaussian_delta
from userdp.privacy.plan import Plan

OTHER_DELTAS = (1e-5, 1e-6, 1e-7, 1e-8, 1e-9)

_LINES = 33  # of the curve
_CELLS = 400  # of epsilon, when a curve is compared with a Gaussian's
_SLACK = 0.01  # of delta, that may be outside of the dominating Gaussian
_LARGEST_EXPONENT = 500.0
_SMALLEST_MU = 1e-4  # as in the accountant
_PRECISION = 1e-6  # of mu

# How far adding a user moves a clipped total / how far replacing one does. Others, tests above all, have no such ratio.
_ADDED = {"Clip": 0.5}
_ADDED_ACUTE = math.sqrt(0.5)


@dataclass(frozen=True)
class Tradeoff:
    """The errors that every attack on a plan's releases makes, computed from its costs. No data is needed.

    right_guess: how often the best attack is right between two equally likely versions of one person's data;
    points: (false alarm, missed detection), corners of a polygon that no attack is below: a little below the curve;
    mu: of the least Gaussian mechanism (mu-GDP) that tells at least as much, but for events of chance `mu_failure`, a
    part of delta; None if there is none;
    failure: chance of the events in which nothing is guaranteed (tests that pass by mistake); 0 for Gaussian noise
    alone; epsilons: (delta, epsilon) pairs that hold as well; None where delta is below `failure`;
    added_epsilon: what accounting for adding or removing a user would print for the same noise, at the same delta. It
    is smaller and says something else; None where mechanisms have no such number.
    """

    right_guess: float
    points: tuple[tuple[float, float], ...]
    mu: float | None
    mu_failure: float
    failure: float
    epsilons: tuple[tuple[float, float | None], ...]
    added_epsilon: float | None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        pairs = {"points": [list(point) for point in self.points], "epsilons": [list(pair) for pair in self.epsilons]}
        return vars(self) | pairs

    @staticmethod
    def from_dict(record: dict[str, Any]) -> Tradeoff:
        """The record that `to_dict` made this of; raises on what are no numbers."""
        return Tradeoff(
            right_guess=float(record["right_guess"]),
            points=tuple((float(alarm), float(miss)) for alarm, miss in record["points"]),
            mu=_number(record["mu"]),
            mu_failure=float(record["mu_failure"]),
            failure=float(record["failure"]),
            epsilons=tuple((float(delta), _number(epsilon)) for delta, epsilon in record["epsilons"]),
            added_epsilon=_number(record["added_epsilon"]),
        )


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def right_guess(epsilon: float, delta: float) -> float:
    """How often the best attack guesses right if (epsilon, delta) is all that is known: (e^eps + delta) / (e^eps + 1).

    Half of 1 + total variation, which (epsilon, delta) limits to (e^eps - 1 + 2 delta) / (e^eps + 1).

    >>> round(right_guess(1.0, 1e-6), 3)
    0.731
    """
    shrunk = math.exp(-epsilon)
    return (1 + delta * shrunk) / (1 + shrunk)


def in_percent(chance: float) -> str:
    """A chance in percent, rounded up to a tenth.

    >>> in_percent(0.5471)
    '54.8%'
    """
    return f"{math.ceil(1000 * chance - 1e-9) / 10:.1f}%"


def tradeoff(plan: Plan, delta: float) -> Tradeoff:
    """What a plan that was made for this delta allows, for the users who pay most.

    >>> from userdp.privacy.mechanisms.clip import Clip
    >>> from userdp.privacy.plan import Step
    >>> found = tradeoff(Plan(10, (Step("mean", 0, 10, Clip(10, 4.225)),)), 1e-6)
    >>> round(found.right_guess, 3), round(found.mu, 4), round(found.added_epsilon, 3)
    (0.547, 0.2367, 0.475)
    """
    costs = plan.costs
    slack = _SLACK * delta
    end = min(_LARGEST_EXPONENT, max(_last_epsilon(cost, delta) for cost in costs))
    epsilons = np.unique(np.linspace(0.0, end, _LINES))
    deltas = np.max([delta_curve(cost, epsilons) for cost in costs], axis=0)
    others = []
    for other in OTHER_DELTAS:
        epsilon = max(epsilon_at(cost, other) for cost in costs)
        others.append((other, epsilon if math.isfinite(epsilon) else None))
    failure = max(cost.failure for cost in costs)
    gaussian = all(is_gaussian(cost) for cost in costs)
    return Tradeoff(
        right_guess=float(1 + deltas[0]) / 2,
        points=_polygon(epsilons, deltas),
        mu=least_mu(costs, slack),
        mu_failure=failure if gaussian else failure + slack,
        failure=failure,
        epsilons=tuple(others),
        added_epsilon=_added_epsilon(plan, delta),
    )


def is_gaussian(cost: Cost) -> bool:
    """Whether all of it is Gaussian noise on all users, but for failures."""
    return not (cost.pure or cost.subsampled)


def least_mu(costs: tuple[Cost, ...], slack: float) -> float | None:
    """mu of the least mu-GDP that dominates every cost, but for its failure and `slack`; None if there is none.

    Exact for Gaussian noise; else up to 1e-6 above the least, and proven between the points where it is compared: delta
    is convex in e^epsilon, so it is below its chords, and the Gaussian's is above its tangents.
    """
    found = [_least_mu(cost, slack) for cost in costs]
    return None if math.inf in found else max(found)


def _least_mu(cost: Cost, slack: float) -> float:
    if is_gaussian(cost):
        return math.sqrt(cost.gaussian)
    end = epsilon_at(cost, cost.failure + slack)
    if not end < _LARGEST_EXPONENT:
        return math.inf
    epsilons = np.linspace(0.0, end, _CELLS + 1)
    widths = np.diff(np.exp(epsilons))
    deltas = delta_curve(cost, epsilons) - cost.failure - slack  # at most 0 from the last on

    def dominates(mu: float) -> bool:
        gaussian = np.array([gaussian_delta(mu, float(epsilon)) for epsilon in epsilons])
        tangents = gaussian[:-1] - ndtr(-mu / 2 - epsilons[:-1] / mu) * widths
        below = (deltas[:-1] <= gaussian[:-1]) & (deltas[1:] <= tangents)
        return bool(np.all(below | (deltas[:-1] <= gaussian[1:])))

    low, high = _SMALLEST_MU, 2 * _SMALLEST_MU
    while not dominates(high):
        low, high = high, 2 * high
    while high - low > _PRECISION * high:
        middle = (low + high) / 2
        low, high = (low, middle) if dominates(middle) else (middle, high)
    return high


def _last_epsilon(cost: Cost, delta: float) -> float:
    """Where the curve has come down to what is left out: failures, and a hundredth of delta, or else delta."""
    rooms = (cost.failure + _SLACK * delta, delta, 1.0)
    return next(epsilon for room in rooms if math.isfinite(epsilon := epsilon_at(cost, room)))


def _polygon(epsilons: np.ndarray, deltas: np.ndarray) -> tuple[tuple[float, float], ...]:
    """Corners of what the lines b = 1 - delta - e^epsilon a, and their mirror images, leave."""
    slopes = np.exp(epsilons)
    alarms = np.clip(-np.diff(deltas) / np.diff(slopes), 0.0, 1.0)
    misses = np.clip(1 - deltas[:-1] - slopes[:-1] * alarms, 0.0, 1.0)
    half = [(0.0, float(1 - deltas[-1])), *zip(alarms[::-1].tolist(), misses[::-1].tolist(), strict=True)]
    return (*half, *((b, a) for a, b in reversed(half)))


def _added_epsilon(plan: Plan, delta: float) -> float | None:
    """Epsilon at delta under adding or removing a user, for the users who would then pay most."""
    costs = []
    for position in sorted({step.start for step in plan.steps}):
        total = Cost()
        for step in plan.steps:
            if step.start <= position < step.stop:
                ratio = _ADDED.get(type(step.mechanism).__name__)
                ratio = _ADDED_ACUTE if getattr(step.mechanism, "acute", False) else ratio
                if ratio is None:
                    return None
                cost = step.mechanism.cost
                total = total + Cost(gaussian=ratio**2 * cost.gaussian, subsampled=cost.subsampled)
        costs.append(total)
    largest = max(added_epsilon_at(cost, delta) for cost in dict.fromkeys(costs))
    return largest if math.isfinite(largest) else None
