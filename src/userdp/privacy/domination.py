"""What a run is charged when runs are chosen one after the other: the Gaussian mechanism that dominates it.

Costs that were fixed in advance compose as they are (`accounting`). Someone who has seen earlier releases may choose
the next run by them, and then exact composition guarantees too much. So every run is charged as mu-GDP: neighbours are
distinguished no better than N(0, 1) from N(mu, 1), up to a failure probability. mu^2 and failures add up, however the
runs were chosen, and `Filter` refuses what would exceed its limits. Proof: docs/proofs.md, section 25.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace
from functools import lru_cache, reduce
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri_exp

from userdp._validate import check_number
from userdp.privacy import accounting as a
from userdp.privacy.accounting import Budget, BudgetExceeded, Cost, Numbers, Subsampled

# Of a budget's delta, held for failure probabilities. The rest is for Gaussian noise, which a quarter of delta costs
# about 1.4% of its multiplier.
FAILURE_FRACTION = 0.25

_SAMPLED_PART = 1 / 16  # of the failure probability that is left: what the sampled parts of one run may use
_INTERVALS = 400  # of epsilon, in which a curve is compared with tangents of the Gaussian one
_ROUNDING = 1e-13  # of the tangents
_LARGEST_EPSILON = 500.0  # e^epsilon is a number
_MU_TOLERANCE = 1e-6


@dataclass(frozen=True, order=True)
class Dominating:
    """What a run, or several, costs a user at most, in two ways that both hold but for the probability `failure`.

    mu_squared: of the mu-GDP that dominates it;
    pure: the sum of its epsilons, infinite if anything else than pure parts was released.

    >>> Dominating(0.25, math.inf) + Dominating(0.0, 0.5, 1e-9)
    Dominating(mu_squared=0.25, pure=inf, failure=1e-09)
    """

    mu_squared: float = 0.0
    pure: float = 0.0
    failure: float = 0.0

    def __post_init__(self) -> None:
        finite = math.isfinite(self.mu_squared) and math.isfinite(self.failure)
        if not (finite and self.mu_squared >= 0 and self.pure >= 0 and self.failure >= 0):
            raise ValueError(f"Expected costs >= 0, of which only pure may be infinite, got {self}.")

    def __add__(self, other: Dominating) -> Dominating:
        return Dominating(
            a.sum_up(self.mu_squared, other.mu_squared), self.pure + other.pure, a.sum_up(self.failure, other.failure)
        )

    def covers(self, other: Dominating) -> bool:
        """Whether it is at least as high in every part."""
        return self.mu_squared >= other.mu_squared and self.pure >= other.pure and self.failure >= other.failure

    @staticmethod
    def worst(alternatives: Iterable[Dominating]) -> Dominating:
        """Part by part the highest."""
        return Dominating(*map(max, zip(*map(astuple, alternatives), strict=True)))

    def to_json(self) -> dict[str, float | None]:
        """Plain numbers; None for an infinite `pure`."""
        pure = self.pure if math.isfinite(self.pure) else None
        return {"mu_squared": self.mu_squared, "pure": pure, "failure": self.failure}

    @staticmethod
    def from_json(record: dict[str, Any]) -> Dominating:
        """Inverse of `to_json`."""
        pure = math.inf if record["pure"] is None else float(record["pure"])
        return Dominating(float(record["mu_squared"]), pure, float(record["failure"]))


def pure_mu(epsilon: float) -> float:
    """The least mu whose mu-GDP dominates pure epsilon-DP, rounded up: 2 Phi^-1(e^epsilon / (1 + e^epsilon)).

    >>> round(pure_mu(1.0), 4)
    1.232
    """
    return float(-2 * ndtri_exp(-np.logaddexp(0.0, epsilon))) * (1 + 1e-12) + 1e-15


def dominating(cost: Cost, spare: float = 0.0) -> Dominating:
    """The mu-GDP that dominates a run of this cost, part by part; Gaussian parts cost what they are.

    spare: the failure probability that its sampled parts may add, for which they get a lower mu.

    Guarantee: for all neighbours D, D' and every epsilon,
        H(M(D) | M(D')) <= gaussian_delta(mu, epsilon) + failure.

    >>> dominating(Cost(gaussian=0.5, failure=1e-9))
    Dominating(mu_squared=0.5, pure=inf, failure=1e-09)
    """
    sampled = _sampled(cost.subsampled, spare) if cost.subsampled else Dominating()
    squares = [math.nextafter(pure_mu(epsilon) ** 2, math.inf) for epsilon in cost.pure if epsilon]
    return Dominating(
        reduce(a.sum_up, squares, a.sum_up(cost.gaussian, sampled.mu_squared)),
        math.inf if cost.gaussian or cost.subsampled else math.fsum(cost.pure),
        a.sum_up(cost.failure, sampled.failure),
    )


@lru_cache(maxsize=256)
def _sampled(parts: tuple[Subsampled, ...], failure: float) -> Dominating:
    """Poisson-sampled parts together, from their privacy loss distribution or, if that is lower, as if not sampled.

    A sample of everybody is a Gaussian release of mu = 2 / multiplier where a user is replaced, of half of that where
    one is zeroed out, and a smaller one is dominated by it.
    """
    moved = [(2 if part.neighbours == a.REPLACE_ONE else 1) / part.added_user_multiplier for part in parts]
    unsampled = math.sqrt(sum(part.steps * mu**2 for part, mu in zip(parts, moved, strict=True))) * (1 + 1e-12)
    mu = least_mu(Cost(subsampled=parts), failure)
    if mu < unsampled:
        return Dominating(mu**2 * (1 + 1e-15), failure=failure)
    return Dominating(unsampled**2 * (1 + 1e-15))


def least_mu(cost: Cost, slack: float) -> float:
    """mu of the least mu-GDP that dominates a cost, but for its failure and `slack`; infinite if none is found.

    Exact for Gaussian noise; else up to 1e-6 above the least that is proven between the points of comparison.
    """
    if is_gaussian(cost):
        return math.sqrt(cost.gaussian)
    allowed = cost.failure + slack
    last = a.epsilon_at(cost, allowed - 2 * _ROUNDING)
    if not last < _LARGEST_EPSILON:
        return math.inf
    epsilons = np.linspace(0.0, last, _INTERVALS + 1)
    deltas = a.delta_curve(cost, epsilons)
    deltas[-1] = min(deltas[-1], allowed - 2 * _ROUNDING)  # which is where the last epsilon was found
    covers, least = (lambda mu: _is_above(mu, allowed, epsilons, deltas)), a.SMALLEST_MU
    return a.least_that(covers, least, least, _MU_TOLERANCE) or math.inf


def is_gaussian(cost: Cost) -> bool:
    """Whether all of it is Gaussian noise on all users, but for failures."""
    return not (cost.pure or cost.subsampled)


def _is_above(mu: float, failure: float, epsilons: Numbers, deltas: Numbers) -> bool:
    """Whether mu-GDP and `failure` cover a divergence, for all epsilon, of which upper bounds `deltas` are known.

    Both are convex in e^epsilon. In each interval one tangent of the Gaussian curve, that at its middle, must be above
    the bounds at both ends: then it is above the divergence in between. Beyond the last the failure alone covers it.
    """
    middles = (epsilons[1:] + epsilons[:-1]) / 2
    power, level = ndtr(mu / 2 - middles / mu), ndtr(-mu / 2 - middles / mu)
    allowed = failure - _ROUNDING
    left = power - np.exp(epsilons[:-1]) * level + allowed
    right = power - np.exp(epsilons[1:]) * level + allowed
    return bool(np.all(deltas[:-1] <= left) and np.all(deltas[1:] <= right) and deltas[-1] <= allowed)


@dataclass(frozen=True)
class Filter:
    """Which totals of runs, chosen one after the other, keep within `budget`.

    Failure probabilities may add up to `failure_fraction` of delta, and mu-GDP may use the rest. The two limits are
    fixed beforehand: room that one of them leaves is not given to the other, since which of them is used could be
    chosen by looking at releases. Runs of pure parts only may instead add up to epsilon.

    Guarantee: all releases together, with runs, their costs and their number chosen by looking at earlier releases,
    are (epsilon, delta)-DP as long as every total of theirs fits. Proof: docs/proofs.md, section 25.
    """

    budget: Budget
    failure_fraction: float = FAILURE_FRACTION

    def __post_init__(self) -> None:
        object.__setattr__(self, "failure_fraction", check_number("failure_fraction", self.failure_fraction))
        if not 0 <= self.failure_fraction < 1:
            raise ValueError(
                f"Expected 0 <= failure_fraction={self.failure_fraction} < 1: the part of delta for failures; "
                f"{FAILURE_FRACTION} is usual, 0 leaves all of delta to Gaussian noise."
            )

    @property
    def most_failure(self) -> float:
        return self.failure_fraction * self.budget.delta * (1 - a.DELTA_RESERVE)

    @property
    def gaussian(self) -> Budget:
        """What the mu-GDP of all runs has to fit into."""
        return replace(self.budget, delta=(1 - self.failure_fraction) * self.budget.delta)

    def spare(self, spent: float, own: float) -> float:
        """The failure probability that sampled parts of a run may add, after what was spent and the run's own."""
        return max(0.0, self.most_failure - spent - own) * _SAMPLED_PART

    def fits(self, total: Dominating) -> bool:
        most_pure = self.budget.epsilon if self.budget.delta == 0 else a.reserved(self.budget.epsilon)
        if total.failure > self.most_failure:
            return False
        return a.fits(Cost(gaussian=total.mu_squared), self.gaussian) or total.pure <= most_pure

    def certify(self, total: Dominating) -> None:
        """Raise `BudgetExceeded` with the figures and the remedy unless the total fits."""
        if self.fits(total):
            return
        if total.failure > self.most_failure:
            raise BudgetExceeded(
                f"With what was spent before, failure probabilities add up to {total.failure:.3g}, expected <= "
                f"{self.most_failure:.3g}: this ledger holds {self.failure_fraction:g} of its delta for them. Ask for "
                "a smaller delta of the run, or for a solver without tests and samples. Nothing was spent."
            )
        if self.budget.delta == 0:
            raise BudgetExceeded(
                f"With what was spent before, the plan needs epsilon={total.pure:.4g} at delta=0, expected <= "
                f"{self.budget.epsilon:g}: try fewer releases, more noise, or a larger budget. Without delta epsilons "
                "add up, and only pure releases fit. Nothing was spent."
            )
        needed = min(a.epsilon_at(Cost(gaussian=total.mu_squared), self.gaussian.delta), total.pure)
        raise BudgetExceeded(
            f"With what was spent before, the plan needs epsilon={needed:.4g} at delta={self.gaussian.delta:g} (delta "
            f"{self.budget.delta:g} without the fraction held for failures), expected <= {self.budget.epsilon:g}: try "
            "fewer releases, more noise, or a larger budget. Runs beside others are charged as the Gaussian mechanism "
            "that dominates them: of releases of other tools whose noise is Gaussian give mu, not epsilon, which costs "
            "far less. Nothing was spent."
        )

    def epsilon_at(self, total: Dominating, delta: float) -> float:
        """The epsilon that the total amounts to at `delta`; at the budget's own it is at most the budget's."""
        gaussian = a.epsilon_at(Cost(gaussian=total.mu_squared, failure=total.failure), delta)
        return min(gaussian, total.pure) if total.failure <= delta else gaussian
