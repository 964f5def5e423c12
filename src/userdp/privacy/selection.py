"""Selection: several fits, their scores on held-out users and the choice among them, charged once, as one plan.

A random order of the users is drawn: the first train, the others are held out. Every candidate is fitted on the
training users, who pay for all of them; the held-out users pay for one joint release of all scores; all of that is
released.

A refit of the best on everyone is a part of it. Every fit and every score runs on a ledger of its part, which takes
what the plan has charged for it and nothing else. How many fits there are is public. Proof: docs/proofs.md, section 32.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Generic, NoReturn, TypeAlias, TypeVar

import numpy as np

from userdp._validate import check_counts, check_record
from userdp.data.users import UserData
from userdp.privacy.accounting import (
    DELTA_RESERVE,
    EPSILON_RESERVE,
    LEAST_EPSILON_RESERVE,
    REPLACE_ONE,
    Budget,
    BudgetExceeded,
    Cost,
    check_relation,
    epsilon_at,
    gaussian_multiplier,
)
from userdp.privacy.clip import Clip
from userdp.privacy.curator import WARNINGS_OFF, Curator
from userdp.privacy.domination import Dominating, is_gaussian
from userdp.privacy.ledger import Ledger
from userdp.privacy.mechanism import Mechanism, Users, Vectors
from userdp.privacy.noise import Noise, noise_source
from userdp.privacy.plan import Plan, Step
from userdp.statistics.moments import UserMean

_CANDIDATES, _REFIT = "candidates", "refit"
_SIZES, _DIFFERENCES, _MEAN = "sizes of differences", "differences of scores", "mean score"
_PARTS = {_SIZES: 0.15, _DIFFERENCES: 0.75, _MEAN: 0.1}  # of what held-out users pay for joint scores
_BINS, _RATIO = 10, 3.0  # of sizes of differences
_CLIPPED = 0.1  # of the held-out users: whose differences may be clipped
_MOST_NOISE = 0.1  # of a bin: above it nothing could be learned
_ROUNDING = 1e-5

T = TypeVar("T")


# Fits a candidate, by its number, on these users, releasing through this ledger alone, and gives what was released.
Fit: TypeAlias = Callable[[int, Users, Ledger, int | None], T]
# How bad models are for each of these users: (users, models) numbers, a row made of its user's data alone.
Losses: TypeAlias = Callable[[list[T], Users], Vectors]
Tell: TypeAlias = Callable[[str, int, int], None]  # which step begins, how many are done, of how many


@dataclass(frozen=True)
class Allotment(Mechanism):
    """`rounds` fits on the same `n_vectors` users, each of Gaussian releases whose mu^2 add up to `mu_squared` at most.

    Priced and charged like any mechanism; `select` carries it out, fit by fit, each on a ledger of its part.

    Guarantee: rounds * mu_squared (Gaussian), however fits are chosen by what was released before. Proof:
    docs/proofs.md, section 32.
    """

    kind: ClassVar[str] = "allotment"
    n_vectors: int
    mu_squared: float
    rounds: int = 1
    neighbours: str = REPLACE_ONE

    def __post_init__(self) -> None:
        check_relation(self.neighbours)
        check_record(self, ("mu_squared",), ("n_vectors", "rounds"))

    @property
    def cost(self) -> Cost:
        return Cost(gaussian=math.nextafter(self.rounds * self.mu_squared, math.inf))

    def sensitivity(self, radius: float, dimension: int) -> float:
        """Of the Gaussian release of standard deviation 1 that costs as much as a fit."""
        return math.sqrt(self.mu_squared)

    def start(self, noise: Noise) -> NoReturn:
        raise RuntimeError("Expected fits, each on a ledger of its part (privacy.selection): this releases no vectors.")


class PartLedger(Ledger):
    """The ledger of a part of what was charged elsewhere, as a whole: it takes one run of Gaussian releases, no more.

    Guarantee: what is charged to it has mu^2 of at most `mu_squared` for every user, and no other cost.
    """

    def __init__(self, mu_squared: float, delta: float, neighbours: str = REPLACE_ONE) -> None:
        self._mu_squared = mu_squared
        super().__init__(_part_budget(mu_squared, delta, neighbours), failure_fraction=0.0)

    def _accepted(self, costs: tuple[Cost, ...], before: list[tuple[Dominating, ...]]) -> tuple[Dominating, ...]:
        if before:
            raise BudgetExceeded("Expected one run for each part of a selection.")
        if any(cost.failure or not is_gaussian(cost) for cost in costs):
            raise BudgetExceeded(
                "Expected fits of Gaussian noise alone, as the default solver's: those with private tests, samples or "
                "levels that are learned do not compose well enough to be tried side by side. Nothing was spent."
            )
        if max(cost.gaussian for cost in costs) > self._mu_squared:
            raise BudgetExceeded("Expected a run within its part of a selection.")
        return super()._accepted(costs, before)


def _part_budget(mu_squared: float, delta: float, neighbours: str) -> Budget:
    """The budget that a fit of this mu^2, or hardly less, costs, at this delta or a smaller one, with all reserves."""
    allowed = Cost(gaussian=mu_squared * (1 - _ROUNDING / 2))
    while not (epsilon := epsilon_at(allowed, delta * (1 - 2 * DELTA_RESERVE))):
        delta /= 10  # which covers all of it without any epsilon
    return Budget(epsilon * (1 + 2 * EPSILON_RESERVE) + 2 * LEAST_EPSILON_RESERVE, delta, neighbours)


class Drafted(Exception):
    """A fit went as far as it goes without data: it would be charged now."""


class DraftLedger(PartLedger):
    """Tells, before anything is charged, whether a fit would be accepted: raises `Drafted`, or its refusal."""

    def charge(self, plan: Plan, *_: object, **__: object) -> None:
        self._accepted(plan.costs, [])
        raise Drafted


@dataclass(frozen=True)
class SelectionPlan:
    """All that a search may release, in public numbers: which users are asked for what, and what each part may cost.

    fit_mu_squared, refit_mu_squared: of each candidate's fit and of the refit on everyone, 0 without one;
    score_mu_squared: of all scores together.
    """

    n_users: int
    n_held_out: int
    n_candidates: int
    budget: Budget
    fit_mu_squared: float
    score_mu_squared: float
    refit_mu_squared: float

    @property
    def n_training(self) -> int:
        return self.n_users - self.n_held_out

    @property
    def certified(self) -> Plan:
        """The plan that is charged. Training users come first in the order, then the held-out ones."""
        n, split = self.n_users, self.n_training
        relation = self.budget.neighbours
        fits = Step(_CANDIDATES, 0, split, Allotment(split, self.fit_mu_squared, self.n_candidates, relation))
        scores = [Step(step.label, split, n, step.mechanism) for step in self.score_plan.steps]
        refit = [Step(_REFIT, 0, n, Allotment(n, self.refit_mu_squared, 1, relation))] if self.refit_mu_squared else []
        return Plan(n, (fits, *scores, *refit))

    @property
    def score_plan(self) -> Plan:
        """The releases of scores, on the held-out users by themselves."""
        n = self.n_held_out
        return Plan(n, tuple(Step(label, 0, n, self._clip(part)) for label, part in _PARTS.items()))

    def _clip(self, part: float) -> Clip:
        multiplier = (1 + _ROUNDING) / math.sqrt(part * self.score_mu_squared)
        return Clip(self.n_held_out, multiplier, neighbours=self.budget.neighbours)

    def part_ledger(self, mu_squared: float, draft: bool = False) -> PartLedger:
        """A ledger of one part. Gaussian parts need no delta: it only says at which their epsilon is reported."""
        return (DraftLedger if draft else PartLedger)(mu_squared, self.budget.delta, self.budget.neighbours)

    @property
    def bin_noise(self) -> float:
        """Of the fraction of held-out users in a bin of sizes."""
        return self._clip(_PARTS[_SIZES]).noise_std(1.0, _BINS)

    @property
    def level_noise(self) -> float:
        """Of what all candidates' scores share, in units of their range."""
        return self._clip(_PARTS[_MEAN]).noise_std(0.5, 1)

    def __str__(self) -> str:
        def noise(mu_squared: float) -> float:  # of a fit / of one that had all of the budget
            return math.sqrt(_mu_squared(self.budget) / mu_squared)

        refit = f", of the refit {noise(self.refit_mu_squared):.1f}" if self.refit_mu_squared else ""
        score = self._clip(_PARTS[_DIFFERENCES]).noise_std(0.05, self.n_candidates)  # if 9 in 10 differ by less
        return (
            f"{self.n_candidates} candidates; noise of a candidate {noise(self.fit_mu_squared):.1f} times that of one "
            f"fit{refit}; noise of a score {score:.2g} of its range"
        )


def plan_selection(
    n_users: int,
    n_candidates: int,
    budget: Budget,
    *,
    held_out: float = 0.2,
    refit_fraction: float = 0.5,
) -> SelectionPlan:
    """The plan for these public numbers.

    >>> print(plan_selection(5000, 5, Budget(1.0, 1e-6), refit_fraction=0.0))
    5 candidates; noise of a candidate 2.2 times that of one fit; noise of a score 0.00049 of its range
    """
    n_users, n_candidates = check_counts(n_users=n_users, n_candidates=n_candidates)
    if budget.delta == 0:
        raise BudgetExceeded(
            "Expected delta > 0 for a search: without it the epsilons of all candidates add up. Choose well below 1 / "
            "number of users, or fit one candidate with delta=0. Nothing was spent."
        )
    held = round(held_out * n_users)
    if not 2 <= held <= n_users - 2:
        raise BudgetExceeded(
            f"Expected more than n_users={n_users}: a fraction held_out={held_out:g} of them should be at least 2 "
            "users, and at least 2 others train. Nothing was spent."
        )
    whole = _mu_squared(budget)
    refit, rest = refit_fraction * whole, (1 - refit_fraction) * whole
    return SelectionPlan(n_users, held, n_candidates, budget, rest / n_candidates, rest, refit)


def _mu_squared(budget: Budget) -> float:
    """mu^2 of the Gaussian release that costs the whole budget, less rounding."""
    return (1 - _ROUNDING) / gaussian_multiplier(budget) ** 2


def check_telling(plan: SelectionPlan) -> None:
    """Refuse, by public numbers, scores that noise would hide."""
    if plan.bin_noise > _MOST_NOISE:
        enough = math.ceil(plan.n_users * plan.bin_noise / _MOST_NOISE)
        raise BudgetExceeded(
            f"Expected more than n_users={plan.n_users}: scores of {plan.n_held_out} held-out users would be lost in "
            f"noise. Use about {enough:,} users, or a larger epsilon or held_out, or pass "
            "allow_weak=True to the estimator. Nothing was spent."
        )


@dataclass(frozen=True)
class Selected(Generic[T]):
    """What a search has released: the best candidate's number, and all models and scores.

    losses: the mean loss of held-out users, in [0, 1] but for noise, of all candidates; noise_std: of each of them,
    beside that of the mean which they share; refitted: the refit, None without one.
    """

    best: int
    losses: Vectors
    noise_std: float
    models: tuple[T, ...]
    refitted: T | None = None


def select(
    plan: SelectionPlan,
    ledger: Ledger,
    fit: Fit[T],
    losses: Losses[T],
    *,
    purpose: str = "",
    insecure_seed: int | None = None,
    tell: Tell | None = None,
    unit: str = "user",
) -> Selected[T]:
    """Certify and charge the plan, draw who trains, and carry it out.

    Guarantee: all that leaves, a failure included, is within plan.budget, for user-level differential privacy and
    neighbours of its relation, provided `fit` releases through its ledger only, and of the users given only,
    whether it fails is determined by what it released and by public facts, and row j of `losses` is a function of
    user users[j]'s data and the models. With `insecure_seed` nothing is private, and the ledger says so. How long a
    search takes is not covered, as of everything here.
    """
    certified = plan.certified
    certified.certify(plan.budget)
    noise = noise_source(insecure_seed)
    ledger.charge(certified, purpose, insecure_seed, unit=unit)
    order = noise.permutation(plan.n_users)
    found: Selected[T] | None = None
    with contextlib.suppress(Exception), WARNINGS_OFF, np.errstate(all="ignore"):  # all could reveal cells
        found = _carried_out(plan, fit, losses, order, noise.seed, tell or (lambda *_: None))
    if found is None:
        raise RuntimeError(
            "Expected every candidate to be fitted and scored; one failed on the data, though it passed its check. Try "
            "the search on data that is not private. What was charged is spent."
        )
    return found


def _carried_out(
    plan: SelectionPlan, fit: Fit[T], losses: Losses[T], order: Users, seed: int | None, say: Tell
) -> Selected[T]:
    training, held_out = order[: plan.n_training], order[plan.n_training :]
    models = []
    for candidate in range(plan.n_candidates):
        say(_CANDIDATES, candidate, plan.n_candidates)
        models.append(fit(candidate, training, plan.part_ledger(plan.fit_mu_squared), _seed(seed, candidate)))
    say(_DIFFERENCES, 0, 1)
    found, noise_std = joint_losses(plan, losses(models, held_out), _seed(seed, plan.n_candidates))
    best, refitted = int(np.argmin(found)), None
    if plan.refit_mu_squared:
        say(_REFIT, 0, 1)
        refitted = fit(best, order, plan.part_ledger(plan.refit_mu_squared), _seed(seed, -1))
    return Selected(best, found, noise_std, tuple(models), refitted)


def joint_losses(plan: SelectionPlan, losses: Vectors, insecure_seed: int | None = None) -> tuple[Vectors, float]:
    """Noisy mean losses of all candidates at once, (users, candidates) in [0, 1], and the noise of their differences.

    A user's differences from its own mean over the candidates are short where candidates hardly differ. How long they
    are is released first, as counts in bins, then their mean, clipped to where few are longer; the users' mean over
    the candidates, which all share, costs little.
    """
    losses = bounded(losses)
    centres = losses.mean(axis=1, keepdims=True)
    differences, longest = losses - centres, math.sqrt(plan.n_candidates) / 2
    lengths = np.maximum(np.linalg.norm(differences, axis=1) / longest, 1e-300)
    bins = np.clip(np.floor(-np.log(lengths) / math.log(_RATIO)), 0, _BINS - 1).astype(np.int64)
    sizes = np.eye(_BINS)[bins]
    mechanisms = {step.label: step.mechanism for step in plan.score_plan.steps}
    ledger = plan.part_ledger(plan.score_mu_squared)
    curator = Curator(_one_row_each(sizes), plan.score_plan, ledger, insecure_seed=insecure_seed)
    with contextlib.closing(curator):
        counted = curator.release(_SIZES, UserMean(), 1.0)
        radius = longest * _RATIO ** -_first_bin(counted, mechanisms[_SIZES])
        curator.prepare(_one_row_each(differences))
        told = curator.release(_DIFFERENCES, UserMean(), radius)
        curator.prepare(_one_row_each(centres - 0.5))
        mean = curator.release(_MEAN, UserMean(), 0.5)
    clip = mechanisms[_DIFFERENCES]
    assert isinstance(clip, Clip)
    return told + mean[0] + 0.5, clip.noise_std(radius, plan.n_candidates)


def _first_bin(fractions: Vectors, mechanism: Mechanism) -> int:
    """The bin of the shortest radius that few users' differences exceed, as far as noisy fractions show."""
    assert isinstance(mechanism, Clip)
    std, beyond = mechanism.noise_std(1.0, _BINS), 0.0
    for number in range(_BINS - 1):
        beyond += float(fractions[number])
        if beyond > max(_CLIPPED, 2 * std * math.sqrt(number + 1)):
            return number
    return _BINS - 1


def bounded(losses: Vectors) -> Vectors:
    """In [0, 1]; 1, the worst, where they are no numbers."""
    return np.clip(np.nan_to_num(losses, nan=1.0, posinf=1.0, neginf=0.0), 0.0, 1.0)


def _one_row_each(rows: Vectors) -> UserData:
    n = len(rows)
    return UserData(np.ascontiguousarray(rows), np.full(n, np.nan), np.arange(n + 1), has_targets=False)


def _seed(insecure_seed: int | None, number: int) -> int | None:
    """A seed of its own for every part of a seeded search."""
    return None if insecure_seed is None else 1_000_003 * insecure_seed + number + 2
