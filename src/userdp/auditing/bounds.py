"""An attack carried out, and from what it saw to a lower bound on epsilon, at a stated confidence.

An attack says of an output "this was D" or "this was D'". If a mechanism is (epsilon, delta)-DP, then
P(says D | D) <= e^epsilon P(says D | D') + delta, so rates that were counted bound epsilon from below. Which outputs
count as D is chosen on one part of the runs, and the bound is computed on the rest: choosing costs no confidence.

A claim is a whole curve of (epsilon, delta). Rates that it does not allow refute it, without any assumption. To say by
how much, the claim is scaled, as if all its noise were 1/s of what it is: the least s that allows the rates gives
epsilon at any delta. For Gaussian noise that is a bound on mu of mu-GDP (Nasr et al. 2023).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta, binom

from userdp.privacy.accounting import COARSE_GRID, AddedUserMultiplier, Cost, Subsampled, bisect, delta_at, epsilon_at

Scores = NDArray[np.float64]
Play = Callable[[int, int], list[float]]  # of version and number of the run: what is seen
TRAIN = 0.25  # of the runs, for choosing what to look at
FEW = 64  # values: scores that have no more are looked at one by one
# Where thresholds are tried, as fractions of the pooled scores: both directions are, so tails are on the upper side.
TAILS = tuple(1 - 0.5 * (k / 40) ** 2 for k in range(4, 41))
MIDDLE = (0.4, 0.45, 0.5, 0.55, 0.6)
_LARGEST_EPSILON = 50.0
_EPSILONS = np.concatenate([np.linspace(0.0, 2.0, 21), np.linspace(2.25, 8.0, 24)])  # where curves are compared
_LEAST_SCALE, _LARGEST_SCALE, _TOLERANCE = 0.02, 8.0, 5e-4


@dataclass(frozen=True)
class Finding:
    """One line of an audit.

    what, mode, attack: what was attacked, and how; claim: epsilon at `delta` that it guarantees;
    bound: lower bound on epsilon at that delta, without any assumption;
    shaped: lower bound if the privacy curve has the shape that is claimed (docs/audit.md); None where there is none;
    runs: of each version; seconds: how long it took.
    """

    what: str
    mode: str
    attack: str
    claim: float
    delta: float
    bound: float
    shaped: float | None
    runs: int
    seconds: float

    @property
    def best(self) -> float:
        """The larger of both bounds."""
        return max(self.bound, self.shaped or 0.0)

    @property
    def holds(self) -> bool:
        """Whether neither bound is above the claim."""
        return self.best <= self.claim * (1 + 1e-6)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"holds": self.holds}


def attacked(
    names: tuple[str, str, str], claim: float, cost: Cost, play: Play, runs: int, delta: float, alpha: float
) -> Finding:
    """Play both versions `runs` times each; both bounds together are wrong with a chance of at most `alpha`."""
    began = time.perf_counter()
    ones, others = (np.array([play(version, k) for k in range(runs)]) for version in (0, 1))
    bounds = both_bounds(ones, others, cost, delta, alpha)
    return Finding(*names, claim, delta, *bounds, runs, time.perf_counter() - began)


def both_bounds(ones: Scores, others: Scores, cost: Cost, delta: float, alpha: float) -> tuple[float, float]:
    """Lower bounds on epsilon from features of runs: without assumptions, and with the claim's shape."""
    scores = learned_scores(ones, others)
    rates = best_rates(*scores, alpha / 2, lambda rates: rates.epsilon(delta))
    plain = rates.epsilon(delta)
    if (cost.gaussian or cost.subsampled) and len(np.unique(scores[0])) > FEW:
        scale = scale_of_advantage(cost, best_advantage(*scores, alpha / 2))
    else:
        scale = least_scale(cost, rates)
    return plain, shaped_epsilon(cost, scale, delta)


def learned_scores(ones: Scores, others: Scores) -> tuple[Scores, Scores]:
    """One number per run, made of its features by what the first runs teach.

    Features of few values, which were seen again and again: how much more often they were in the one version. Else the
    linear discriminant.
    """
    first, second = ones[: int(TRAIN * len(ones))], others[: int(TRAIN * len(others))]
    values = np.unique(np.concatenate([first, second]), axis=0)
    if len(values) <= FEW and (len(values) < len(first) + len(second) or len(first) < 2):
        table = {}
        for value in values:
            here, there = (np.sum(np.all(rows == value, axis=1)) + 0.5 for rows in (first, second))
            table[tuple(value)] = float(np.log(here / there))
        one, other = (np.array([table.get(tuple(row), 0.0) for row in rows]) for rows in (ones, others))
        return one, other
    spread = sum(np.cov(rows.T, ddof=1).reshape(ones.shape[1], -1) for rows in (first, second))
    weights = np.linalg.pinv(spread) @ (first.mean(axis=0) - second.mean(axis=0))
    return ones @ weights, others @ weights


@dataclass(frozen=True)
class Rates:
    """How often an attack says D: on D at least `least`, on D' at most `most`."""

    least: float
    most: float

    def epsilon(self, delta: float) -> float:
        """The least epsilon at which (epsilon, delta)-DP allows these rates; no assumption is made.

        >>> round(Rates(0.75, 0.25).epsilon(0.0), 4)
        1.0986
        """
        if self.least <= delta or self.least - delta <= self.most:
            return 0.0
        return math.log((self.least - delta) / self.most)


def clopper_pearson(hits: float, trials: float, alpha: float) -> tuple[float, float]:
    """A lower and an upper bound on a chance, each wrong with a chance of at most `alpha`.

    >>> low, high = clopper_pearson(0, 10, 0.05)
    >>> low, round(high, 4)
    (0.0, 0.2589)
    """
    low = beta.ppf(alpha, hits, trials - hits + 1) if hits else 0.0
    high = beta.ppf(1 - alpha, hits + 1, trials - hits) if hits < trials else 1.0
    return float(low), float(high)


def rates_above(ones: Scores, others: Scores, cut: float, alpha: float, times: float = 1.0) -> Rates:
    """The rates of "score >= cut", both right with a chance of at least 1 - alpha, as if runs were `times` as many."""
    least, _ = clopper_pearson(times * np.sum(ones >= cut), times * len(ones), alpha / 2)
    _, most = clopper_pearson(times * np.sum(others >= cut), times * len(others), alpha / 2)
    return Rates(least, most)


def best_rates(
    ones: Scores, others: Scores, alpha: float, value: Callable[[Rates], float], train: float = TRAIN
) -> Rates:
    """Rates on the later runs of the one-sided threshold that is worth most on the first `train` of them.

    `ones` and `others` are scores of outputs on D and on D'. Both directions and both roles are tried. A threshold is
    worth what it would be if the rest were like the first.
    """
    best, rates = -1.0, Rates(0.0, 1.0)
    for one, other in ((ones, others), (others, ones)):
        for sign in (1.0, -1.0):
            (first, later), (second, last) = (np.split(sign * runs, [int(train * len(runs))]) for runs in (one, other))
            for cut in _cuts(np.concatenate([first, second]), TAILS):
                worth = value(rates_above(first, second, float(cut), alpha, (1 - train) / train))
                if worth > best:
                    best, rates = worth, rates_above(later, last, float(cut), alpha)
    return rates


def best_advantage(ones: Scores, others: Scores, alpha: float) -> float:
    """A lower bound on P(says D | D) - P(says D | D') of a threshold in the middle of the scores.

    Right guesses of both versions, equally many, are counted together. Their chances differ, which makes their number
    less spread than a binomial one of the same mean (Hoeffding 1956), so Clopper and Pearson's bound holds for it.
    """
    first = int(TRAIN * len(ones))
    cuts = _cuts(np.concatenate([ones[:first], others[:first]]), MIDDLE)
    gains = [float(np.mean(ones[:first] >= cut) - np.mean(others[:first] >= cut)) for cut in cuts]
    place = int(np.argmax(np.abs(gains)))
    right = (ones[first:] >= cuts[place]).sum() + (others[first:] < cuts[place]).sum()
    trials = 2 * (len(ones) - first)
    least, _ = clopper_pearson(int(right if gains[place] > 0 else trials - right), trials, alpha)
    return max(0.0, 2 * least - 1)


def _cuts(pooled: Scores, fractions: tuple[float, ...]) -> Scores:
    """All values if they are few, else those at these fractions of the sorted scores."""
    values = np.unique(pooled)
    return values if len(values) <= FEW else np.quantile(pooled, fractions, method="lower")


def one_run_epsilon(n_coins: int, n_guesses: int, n_right: int, delta: float, alpha: float) -> float:
    """Lower bound on epsilon from guesses of coins that decided which of two versions of each user was in one run.

    Wrong with a chance of at most `alpha`. For an (epsilon, delta)-DP mechanism the number of right guesses exceeds a
    binomial one of chance e^epsilon/(1 + e^epsilon) by little (Steinke, Nasr and Jagielski 2023, theorem 5.2).

    >>> one_run_epsilon(100, 100, 50, 0.0, 0.05)
    0.0
    >>> round(one_run_epsilon(100, 100, 90, 0.0, 0.05), 2)
    1.63
    """

    def allowed(epsilon: float) -> bool:
        """Whether (epsilon, delta)-DP gives so many right guesses with a chance of at least alpha."""
        chance = 1 / (1 + math.exp(-epsilon))
        below = np.arange(1, n_right + 1)
        sums = np.cumsum(binom.pmf(n_right - below, n_guesses, chance))
        steepest = float(np.max(sums / below, initial=0.0))
        return float(binom.sf(n_right - 1, n_guesses, chance)) + 2 * n_coins * delta * steepest >= alpha

    if n_guesses == 0 or allowed(0.0):
        return 0.0
    return bisect(allowed, 0.0, _LARGEST_EPSILON, 1e-9) * (1 - 1e-9)


def scaled(cost: Cost, scale: float) -> Cost:
    """What the same releases would cost with noise 1/scale of theirs.

    >>> scaled(Cost(gaussian=1.0, pure=(0.5,)), 2.0)
    Cost(gaussian=4.0, pure=(1.0,), subsampled=(), failure=0.0)
    """
    parts = tuple(
        Subsampled(part.sampling_probability, AddedUserMultiplier(part.added_user_multiplier / scale), part.steps)
        for part in cost.subsampled
    )
    pure = tuple(scale * part for part in cost.pure)
    return replace(cost, gaussian=cost.gaussian * scale**2, pure=pure, subsampled=parts)


def allows(cost: Cost, rates: Rates) -> bool:
    """Whether a cost allows the rates: least <= e^epsilon most + delta(epsilon) at every epsilon.

    The same holds for saying D', whose rates are the complements.
    """
    for epsilon in map(float, _EPSILONS):
        factor, delta = math.exp(epsilon), delta_at(cost, epsilon, COARSE_GRID)
        if rates.least > factor * rates.most + delta or 1 - rates.most > factor * (1 - rates.least) + delta:
            return False
    return True


def least_scale(cost: Cost, rates: Rates) -> float:
    """The least scale at which the claim allows the rates, from below; above 1 the claim itself is refuted."""
    return _least(lambda scale: allows(scaled(cost, scale), rates)) if rates.least > rates.most else 0.0


def scale_of_advantage(cost: Cost, advantage: float) -> float:
    """The same for a difference of rates: no attack's is above delta at epsilon 0, the total variation."""
    return _least(lambda scale: advantage <= delta_at(scaled(cost, scale), 0.0, COARSE_GRID)) if advantage > 0 else 0.0


def _least(allowed: Callable[[float], bool]) -> float:
    """A scale just below the least that is allowed: below 1 if 1 is."""
    if allowed(_LEAST_SCALE):
        return 0.0
    low, high = (_LEAST_SCALE, 1.0) if allowed(1.0) else (1.0, _LARGEST_SCALE)
    if high > 1 and not allowed(high):
        return high
    return bisect(allowed, low, high, _TOLERANCE, lambda low, high: math.sqrt(low * high)) * (1 - _TOLERANCE)


def shaped_epsilon(cost: Cost, scale: float, delta: float) -> float:
    """Epsilon at `delta` of a cost at this scale."""
    return epsilon_at(scaled(cost, scale), delta, COARSE_GRID) if scale > 0 else 0.0
