"""What releases cost, in one convention: a noise multiplier is std / sensitivity.

Neighbours are data sets that differ in one user; the number of users is public in both relations. "replace-one": the
user's whole data is replaced by any other. "zero-out": the user's part of every total becomes zero, as if the data had
not been used. A sensitivity is the largest change between neighbours of the relation that a mechanism was made for, so
that costs in terms of multipliers are the same in both. The one exception is a Poisson-sampled step, whose multiplier
is in units of the change caused by *adding* one user to the batch, which is what the dominating pairs of both relations
are written in (docs/proofs.md, sections 6 and 33). It has a name and a type of its own: `added_user_multiplier`, an
`AddedUserMultiplier`.

A `Cost` says what happened to one set of users; `delta_at` and `epsilon_at` say what that costs. Gaussian and pure
parts compose in closed form; dp-accounting's privacy loss distributions (PLD) do the rest. Every approximation is an
upper bound, and a calibrated multiplier is one that has been certified, never interpolated.
"""

from __future__ import annotations

import decimal
import itertools
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NewType, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from userdp._validate import check_kind, check_number

if TYPE_CHECKING:  # loaded where they are needed, which takes a second
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

COARSE_GRID, FINE_GRID = 4e-3, 5e-4  # of privacy loss; a coarser one costs epsilon, never privacy: losses round up

# Held back from every budget, relative to it (epsilon at least absolutely): covers the discreteness of sampled noise
# (docs/proofs.md, section 7) and the rounding of the closed forms below.
EPSILON_RESERVE, LEAST_EPSILON_RESERVE, DELTA_RESERVE = 1e-9, 1e-12, 1e-6

SMALLEST_MU = 1e-4  # the closed form loses digits below, so a smaller one is priced like this one
_EXACT_PURE_PARTS = 10  # up to so many are composed exactly, over all 2^k signs of their losses
_FEW_PURE_PARTS = 3  # whose exact delta is quick to compute at many epsilons
_LARGEST_MULTIPLIER = 1e9
_LEAST_SAMPLED_MULTIPLIER = 0.02  # a PLD has about 1 / (2 multiplier^2 grid) cells
_LARGEST_EPSILON = 1e6
_MANY_STEPS = 100_000

REPLACE_ONE, ZERO_OUT = RELATIONS = ("replace-one", "zero-out")

Numbers = NDArray[np.float64]
Number = TypeVar("Number", int, float)

# std / (largest change caused by adding one user). A plain float is std / (largest change caused by replacing one).
AddedUserMultiplier = NewType("AddedUserMultiplier", float)


class BudgetExceeded(ValueError):
    """The asked releases cost more than the budget allows; nothing was spent.

    `enough_users` is a number of users for which the same would do, where that was looked for and found, else None.
    """

    def __init__(self, message: str = "", *, enough_users: int | None = None) -> None:
        super().__init__(message)
        self.enough_users = enough_users


@dataclass(frozen=True)
class Budget:
    """The guarantee asked for: (epsilon, delta)-differential privacy of whole users, for neighbours of this relation.

    >>> Budget(1.0, 1e-6)
    Budget(epsilon=1.0, delta=1e-06)
    >>> Budget(1.0, 1e-6, "zero-out")
    Budget(epsilon=1.0, delta=1e-06, neighbours='zero-out')
    """

    epsilon: float
    delta: float
    neighbours: str = REPLACE_ONE

    @property
    def relative_noise(self) -> float:
        """Noise of a clipped mean / what it is for neighbours of "replace-one", which move it twice as far."""
        return 0.5 if self.neighbours == ZERO_OUT else 1.0

    def __repr__(self) -> str:
        relation = "" if self.neighbours == REPLACE_ONE else f", neighbours={self.neighbours!r}"
        return f"Budget(epsilon={self.epsilon!r}, delta={self.delta!r}{relation})"

    def __post_init__(self) -> None:
        check_relation(self.neighbours)
        for name in ("epsilon", "delta"):
            object.__setattr__(self, name, check_number(name, getattr(self, name)))
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise ValueError(f"Expected epsilon={self.epsilon} to be finite and > 0; 1.0 is a common choice.")
        if not 0 <= self.delta < 1:
            raise ValueError(f"Expected 0 <= delta={self.delta} < 1; choose well below 1 / number of users.")


def check_relation(neighbours: object) -> str:
    """The name of a neighbouring relation, checked."""
    if neighbours not in RELATIONS:
        raise ValueError(f'neighbours must be "replace-one" or "zero-out", got {neighbours!r}.')
    return str(neighbours)


def default_delta(n_users: int) -> float:
    """What delta=None means: n^-1.5, at most 1e-6; well below 1/n, where a user could be published outright.

    >>> default_delta(5000), default_delta(1_000_000)
    (1e-06, 1e-09)
    """
    return min(1e-6, math.pow(n_users, -1.5))


def budget_for(epsilon: float, delta: float | None, n_users: int, neighbours: str = REPLACE_ONE) -> Budget:
    """The guarantee asked for, with the default delta of so many users where none is given.

    >>> budget_for(1.0, None, 1_000_000)
    Budget(epsilon=1.0, delta=1e-09)
    """
    return Budget(epsilon, default_delta(n_users) if delta is None else delta, neighbours)


@dataclass(frozen=True)
class Subsampled:
    """`steps` Gaussian releases, each on a fresh Poisson sample of the users.

    `added_user_multiplier` is std / (change caused by adding one user to the batch).
    """

    sampling_probability: float
    added_user_multiplier: AddedUserMultiplier
    steps: int
    neighbours: str = REPLACE_ONE

    def __post_init__(self) -> None:
        check_relation(self.neighbours)
        if not 0 < self.sampling_probability <= 1:
            raise ValueError(f"Expected 0 < sampling_probability={self.sampling_probability} <= 1.")
        if not (math.isfinite(self.added_user_multiplier) and self.added_user_multiplier >= _LEAST_SAMPLED_MULTIPLIER):
            raise ValueError(
                f"Expected added_user_multiplier={self.added_user_multiplier} to be finite and >= "
                f"{_LEAST_SAMPLED_MULTIPLIER}: less noise cannot be accounted for in reasonable memory."
            )
        if self.steps < 1:
            raise ValueError(f"Expected steps={self.steps} >= 1.")


@dataclass(frozen=True)
class Cost:
    """What adaptive releases on the same users cost together.

    gaussian: sum over Gaussian releases of (sensitivity / std)^2, that is mu^2 of their joint mu-GDP;
    pure: epsilons of the pure-DP parts (means with Laplace noise, Laplace tests, AboveThreshold);
    subsampled: Poisson-sampled Gaussian steps;
    failure: probability of the events outside the analysis, added to delta.

    >>> Cost(gaussian=1.0) + Cost(pure=(0.5,), failure=1e-9)
    Cost(gaussian=1.0, pure=(0.5,), subsampled=(), failure=1e-09)
    """

    gaussian: float = 0.0
    pure: tuple[float, ...] = ()
    subsampled: tuple[Subsampled, ...] = field(default=())
    failure: float = 0.0

    def __post_init__(self) -> None:
        if not all(math.isfinite(x) and x >= 0 for x in (self.gaussian, self.failure, *self.pure)):
            raise ValueError(
                f"Expected finite costs >= 0, got gaussian={self.gaussian}, pure={self.pure}, failure={self.failure}."
            )

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            sum_up(self.gaussian, other.gaussian),
            self.pure + other.pure,
            self.subsampled + other.subsampled,
            sum_up(self.failure, other.failure),
        )

    def to_json(self) -> dict[str, Any]:
        """Plain numbers, for the ledger and for reports; the usual relation is left out, as before there were two."""
        record = asdict(self)
        for part in record["subsampled"]:
            if part["neighbours"] == REPLACE_ONE:
                del part["neighbours"]
        return record

    @staticmethod
    def from_json(record: dict[str, Any]) -> Cost:
        """Inverse of `to_json`; also reads records of 0.1.0, which call every multiplier a noise multiplier."""
        renamed = {"noise_multiplier": "added_user_multiplier"}
        parts = (Subsampled(**{renamed.get(name, name): part[name] for name in part}) for part in record["subsampled"])
        return Cost(float(record["gaussian"]), tuple(record["pure"]), tuple(parts), float(record["failure"]))


def sum_up(a: float, b: float) -> float:
    """a + b, rounded up unless one of them is 0."""
    return math.nextafter(a + b, math.inf) if a and b else a + b


def rounded_up(value: float, digits: int = 6) -> str:
    """As it is printed where it is guaranteed: the least number of so many digits that is not below it.

    >>> rounded_up(math.log(3)), rounded_up(0.1), rounded_up(1e-6)
    ('1.09862', '0.1', '1e-06')
    """
    context = decimal.Context(prec=digits, rounding=decimal.ROUND_CEILING)
    return f"{float(context.create_decimal(repr(float(value)))):.{digits}g}"


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Smallest delta at `epsilon` (any sign) of mu-GDP, for example of one Gaussian release with mu = sensitivity/std.

    delta = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)   (Balle and Wang 2018, theorem 8).

    >>> round(gaussian_delta(1.0, 1.0), 6)
    0.126937
    """
    if mu == 0:
        return -math.expm1(min(0.0, epsilon))
    mu = max(mu, SMALLEST_MU)
    upper = float(log_ndtr(mu / 2 - epsilon / mu))
    lower = float(log_ndtr(-mu / 2 - epsilon / mu))
    return math.exp(upper) * -math.expm1(min(0.0, epsilon + lower - upper))


def delta_at(cost: Cost, epsilon: float, grid: float = FINE_GRID) -> float:
    """An upper bound on delta at `epsilon` (exact up to rounding without subsampled parts).

    A pure part e is dominated by randomised response, whose privacy loss is +e with probability e^e/(1+e^e) and -e
    otherwise; a Gaussian composed with pure parts therefore has
        delta(epsilon) = E[gaussian_delta(mu, epsilon - sum of their losses)].

    >>> delta_at(Cost(pure=(1.0,)), 1.0)
    0.0
    """
    if _needs_pld(cost):
        delta = float(_pld_delta(cost, epsilon, grid))
    else:
        mu = math.sqrt(cost.gaussian)
        delta = 0.0
        for signs in itertools.product((1.0, -1.0), repeat=len(cost.pure)):
            losses = [sign * part for sign, part in zip(signs, cost.pure, strict=True)]
            weight = math.exp(-sum(np.logaddexp(0.0, -loss) for loss in losses))
            delta += weight * gaussian_delta(mu, epsilon - math.fsum(losses))
    return min(1.0, sum_up(delta, cost.failure))


def delta_curve(cost: Cost, epsilons: Numbers) -> Numbers:
    """`delta_at` at many epsilons, in increasing order, at once: an upper bound at each of them."""
    if cost.subsampled or len(cost.pure) > _FEW_PURE_PARTS:
        bounds = _pld_delta(cost, epsilons, FINE_GRID) + cost.failure
        return np.asarray(np.minimum(1.0, np.nextafter(bounds, np.inf)))
    return np.array([delta_at(cost, float(epsilon)) for epsilon in epsilons])


def epsilon_at(cost: Cost, delta: float, grid: float = FINE_GRID) -> float:
    """An upper bound on epsilon at `delta`; infinite if no epsilon suffices.

    >>> epsilon_at(Cost(pure=(1.0,)), 0.0)
    1.0
    """
    room = delta - cost.failure
    added_up = math.inf if cost.gaussian or cost.subsampled else math.fsum(cost.pure)
    if room <= 0:
        return added_up if room == 0 else math.inf
    counted = replace(cost, failure=0.0)
    if _needs_pld(cost):
        room -= _pld_rounding(cost)
        return min(added_up, float(_composed(counted, grid).get_epsilon_for_delta(room)) if room > 0 else math.inf)
    if delta_at(counted, 0.0) <= room:
        return 0.0
    found = least_that(lambda epsilon: delta_at(counted, epsilon) <= room, 0.0, 1.0, 1e-9, _LARGEST_EPSILON)
    return math.inf if found is None else found


def _pld_delta(cost: Cost, epsilon: Any, grid: float) -> Any:
    """delta at one epsilon, or at several, without the cost's failure."""
    deltas = _composed(replace(cost, failure=0.0), grid).get_delta_for_epsilon(epsilon)
    return np.maximum(0.0, deltas) + _pld_rounding(cost)


def _pld_rounding(cost: Cost) -> float:
    """What rounding may take from a PLD's delta: its T-fold convolutions are powers of Fourier transforms.

    The transforms' coefficients are off by about log2(cells) 2^-53, a power T of them by T times that, and summing the
    tail's cells adds a small factor: 64 T 2^-53 covers it with room (measured against closed forms: below T 2^-53).
    A single step's cells are off by up to 2^-53 / grid relative to their delta, which 1e-13 and the same room cover at
    the deltas of budgets (below 1e-3).
    """
    convolutions = sum(part.steps for part in cost.subsampled) + len(cost.pure) + 1
    return 64 * convolutions * 2.0**-53 + 1e-13


def _needs_pld(cost: Cost) -> bool:
    return bool(cost.subsampled) or len(cost.pure) > _EXACT_PURE_PARTS


def reserved(epsilon: float) -> float:
    """What is left of epsilon when the reserve is held back."""
    return epsilon - max(EPSILON_RESERVE * epsilon, LEAST_EPSILON_RESERVE)


def fits(cost: Cost, budget: Budget, grid: float = FINE_GRID) -> bool:
    """True if `cost` is certified to stay within `budget`, with the reserves held back."""
    if budget.delta == 0:
        return not (cost.gaussian or cost.subsampled or cost.failure) and math.fsum(cost.pure) <= budget.epsilon
    return _excess(cost, budget, grid) <= 0


def _excess(cost: Cost, budget: Budget, grid: float) -> float:
    """log(delta needed / delta allowed); at most 0 if the cost fits."""
    delta = delta_at(cost, reserved(budget.epsilon), grid)
    return math.log(max(delta, 1e-300) / (budget.delta * (1 - DELTA_RESERVE)))


def certify(cost: Cost, budget: Budget) -> None:
    """Raise `BudgetExceeded` with the figures and the remedy unless `cost` fits into `budget`."""
    if not fits(cost, budget):
        raise BudgetExceeded(
            f"The plan needs epsilon={epsilon_at(cost, budget.delta):.4g} at delta={budget.delta:g}, expected <= "
            f"{budget.epsilon:g}: ask for fewer releases, more noise, or a larger budget. Nothing was spent."
        )


@lru_cache(maxsize=4096)
def gaussian_multiplier(budget: Budget, releases: int = 1, other: Cost | None = None) -> float:
    """Least noise multiplier for which `releases` Gaussian releases, besides `other`, fit into `budget`.

    >>> round(gaussian_multiplier(Budget(1.0, 1e-6)), 3)
    4.225
    """
    check_kind(Budget, budget=budget)
    if releases < 1:
        raise ValueError(f"Expected releases={releases} >= 1.")
    spent = other or Cost()
    return calibrate(lambda z: spent + Cost(gaussian=math.nextafter(releases / z**2, math.inf)), budget)


@lru_cache(maxsize=256)
def subsampled_multiplier(
    budget: Budget, sampling_probability: float, steps: int, other: Cost | None = None
) -> AddedUserMultiplier:
    """Least noise multiplier for `steps` Poisson-sampled Gaussian steps, besides `other`, within `budget`.

    In units of the change caused by adding one user. Cached, since planners ask for the same one again and again.
    """
    spent = other or Cost()

    def cost_of(z: float) -> Cost:
        steps_of = Subsampled(sampling_probability, AddedUserMultiplier(z), steps, budget.neighbours)
        return spent + Cost(subsampled=(steps_of,))

    return AddedUserMultiplier(calibrate(cost_of, budget))


def calibrate(cost_of: Callable[[float], Cost], budget: Budget) -> float:
    """Smallest found multiplier z whose `cost_of(z)` is certified within `budget`; the cost must fall with z.

    Found on the coarse grid, then lowered on the fine grid; the answer was certified on the fine grid itself.
    """
    if budget.delta == 0 or not fits(cost_of(_LARGEST_MULTIPLIER), budget):
        raise BudgetExceeded(
            f"Expected room for noise in epsilon={budget.epsilon:g}, delta={budget.delta:g}: what else is released "
            "(tests, searches, failure probabilities) costs all of it, or delta is 0. Give those less, or ask for a "
            "larger budget. Nothing was spent."
        )
    exact = not cost_of(1.0).subsampled
    tolerance, least = (1e-9, 1e-3) if exact else (1e-3, 2 * _LEAST_SAMPLED_MULTIPLIER)

    def coarse(z: float) -> float:
        return _excess(cost_of(z), budget, COARSE_GRID)

    high = 1.0
    while coarse(high) > 0:
        high *= 2
    low = high / 2
    while low > least and coarse(low) <= 0:
        low, high = low / 2, low
    high = _narrow(coarse, low, high, tolerance)
    return high if exact else _narrow(lambda z: _excess(cost_of(z), budget, FINE_GRID), high / 1.03, high, tolerance)


def _narrow(excess: Callable[[float], float], low: float, high: float, tolerance: float) -> float:
    """A point with excess <= 0 at most `tolerance` (relative) above one with excess > 0, or `low` itself.

    Secant steps between the ends (Illinois), since each evaluation may cost a PLD composition. `high` is raised first
    if it was found on another grid and does not hold on this one.
    """
    at_low, at_high = excess(low), excess(high)
    if at_low <= 0:
        return low
    while at_high > 0:
        low, at_low, high = high, at_high, 1.01 * high
        at_high = excess(high)
    while high - low > tolerance * high:
        step = (high - low) * at_low / (at_low - at_high)
        # Aim a little above the root: what is kept is the upper end.
        middle = min(max(low + step + 0.3 * tolerance * high, low + 0.01 * (high - low)), high - 0.01 * (high - low))
        at_middle = excess(middle)
        if at_middle <= 0:
            high, at_high, at_low = middle, at_middle, at_low / 2
        else:
            low, at_low, at_high = middle, at_middle, at_high / 2
    return high


def bisect(
    holds: Callable[[Number], bool],
    low: Number,
    high: Number,
    tolerance: float,
    middle: Callable[[Any, Any], Any] = lambda low, high: (low + high) / 2,
) -> Number:
    """The upper end, for which `holds` is known, after narrowing (low, high] to `tolerance` times its size."""
    while high - low > tolerance * high and (between := middle(low, high)) != low:
        low, high = (low, between) if holds(between) else (between, high)
    return high


def least_that(
    holds: Callable[[Number], bool],
    low: Number,
    high: Number,
    tolerance: float,
    most: float = math.inf,
    middle: Callable[[Any, Any], Any] = lambda low, high: (low + high) / 2,
) -> Number | None:
    """The least number above `low` for which `holds`, doubling `high` until it does; None if that is above `most`."""
    while not holds(high):
        low, high = high, 2 * high
        if high > most:
            return None
    return bisect(holds, low, high, tolerance, middle)


def least_enough(
    enough: Callable[[Number], bool], too_little: Number, most: float = 1e7, tolerance: float = 0.05
) -> Number | None:
    """A number up to `tolerance` above the least that is enough, whole unless `too_little` is a float.

    None if there is none up to `most`, about.
    """

    def middle(low: Any, high: Any) -> Any:
        return math.sqrt(low * high) if isinstance(high, float) else (low + high) // 2

    return least_that(enough, too_little, 2 * too_little, tolerance / (1 + tolerance), most, middle)


def _fine_enough(cost: Cost, grid: float) -> float:
    """The grid, or a finer one where sampled steps lose so little that it would cost more than they do.

    A step's loss is about s = 2q/z; rounding it to a grid g > s makes its variance about g/s times as large. The grid
    stays so coarse that all parts together, each taken for a Gaussian, have at most 2^19 cells. Steps of little noise
    (z < 1) are none: their rare losses reach far, however small q is.
    """
    losses = [2 * part.sampling_probability / part.added_user_multiplier for part in cost.subsampled]
    if any(part.added_user_multiplier < 1 for part in cost.subsampled):
        return grid
    spread = cost.gaussian + sum(s**2 * part.steps for s, part in zip(losses, cost.subsampled, strict=True))
    reach = 2 * math.fsum(cost.pure) + 24 * math.sqrt(spread) + spread
    return min(grid, max(min(losses, default=grid), reach * 2.0**-19))


def _self_composed(single: PrivacyLossDistribution, steps: int) -> PrivacyLossDistribution:
    """As often as asked; very often in two goes of about the root, since one takes time in proportion to the steps."""
    if steps < _MANY_STEPS:
        return single.self_compose(steps)
    root = math.isqrt(steps)
    rest = steps - root * (steps // root)
    total = single.self_compose(root).self_compose(steps // root)
    return total.compose(single.self_compose(rest)) if rest else total


@lru_cache(maxsize=64)
def _composed(cost: Cost, grid: float) -> PrivacyLossDistribution:
    """The PLD of all parts.

    A Gaussian in units of its sensitivity is built as REPLACE_SPECIAL: REPLACE_ONE would double it.
    """
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import common as pld_common
    from dp_accounting.pld import privacy_loss_distribution as pld

    grid = _fine_enough(cost, grid)
    total = pld.identity(value_discretization_interval=grid)
    if cost.gaussian:
        total = total.compose(
            pld.from_gaussian_mechanism(
                1 / math.sqrt(cost.gaussian),
                value_discretization_interval=grid,
                neighboring_relation=NeighboringRelation.REPLACE_SPECIAL,
            )
        )
    for part in cost.subsampled:
        # REPLACE_ONE: N(0) mixed with N(+1) against N(0) mixed with N(-1), in units of adding a user. A user who is
        # zeroed out adds 0 where it is sampled, so that is N(0) mixed with N(+1) against N(0), either way round.
        zero_out = part.neighbours == ZERO_OUT
        single = pld.from_gaussian_mechanism(
            part.added_user_multiplier,
            sampling_prob=part.sampling_probability,
            value_discretization_interval=grid,
            neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE if zero_out else NeighboringRelation.REPLACE_ONE,
        )
        total = total.compose(_self_composed(single, part.steps))
    for epsilon in cost.pure:
        parameters = pld_common.DifferentialPrivacyParameters(epsilon, 0.0)
        total = total.compose(pld.from_privacy_parameters(parameters, value_discretization_interval=grid))
    return total
