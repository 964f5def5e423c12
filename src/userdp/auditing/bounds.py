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

from userdp.privacy.accounting import COARSE_GRID, AddedUserMultiplier, Cost, Subsampled, delta_at, epsilon_at

Scores = NDArray[np.float64]
Curve = Callable[[float, float], float]  # of scale and epsilon: delta
Play = Callable[[int, int], list[float]]  # of version and number of the run: what is seen
TRAIN = 0.25  # of the runs, for choosing what to look at
FEW = 64  # values: scores that have no more are looked at one by one
# Where thresholds are tried, as fractions of the pooled scores: both directions are, so tails are on the upper side.
TAILS = tuple(1 - 0.5 * (k / 40) ** 2 for k in range(4, 41))
MIDDLE = (0.4, 0.45, 0.5, 0.55, 0.6)
_LARGEST_EPSILON = 50.0
_EPSILONS = np.concatenate([np.linspace(0.0, 2.0, 21), np.linspace(2.25, 8.0, 24)])  # where curves are compared
_SCALES = (0.02, 8.0)


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
        scale = scale_of_advantage(curve_of(cost), best_advantage(*scores, alpha / 2))
    else:
        scale = least_scale(curve_of(cost), rates)
    return plain, shaped_epsilon(cost, scale, delta)


def learned_scores(ones: Scores, others: Scores) -> tuple[Scores, Scores]:
    """One number per run, made of its features by what the first runs teach.

    Features of few values, which were seen again and again: how much more often they were in the one version. Else the
    linear discriminant.
    """
    first, second = ones[: int(TRAIN * len(ones))], others[: int(TRAIN * len(others))]
    values = np.unique(np.concatenate([first, second]), axis=0)
    if len(values) <= FEW and (len(values) < len(first) + len(second) or len(first) < 2):
        table = {tuple(value): _log_ratio(first, second, value) for value in values}
        one, other = (np.array([table.get(tuple(row), 0.0) for row in rows]) for rows in (ones, others))
        return one, other
    spread = np.cov(first.T, ddof=1).reshape(ones.shape[1], -1) + np.cov(second.T, ddof=1).reshape(ones.shape[1], -1)
    weights = np.linalg.pinv(spread) @ (first.mean(axis=0) - second.mean(axis=0))
    return ones @ weights, others @ weights


def _log_ratio(first: Scores, second: Scores, value: Scores) -> float:
    here, there = (np.sum(np.all(rows == value, axis=1)) + 0.5 for rows in (first, second))
    return float(np.log(here / there))


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
    low = float(beta.ppf(alpha, hits, trials - hits + 1)) if hits else 0.0
    high = float(beta.ppf(1 - alpha, hits + 1, trials - hits)) if hits < trials else 1.0
    return low, high


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
    first, second = int(train * len(ones)), int(train * len(others))
    best, chosen = -1.0, (1.0, False, math.inf)
    for replaced in (False, True):
        one, other = (others[:second], ones[:first]) if replaced else (ones[:first], others[:second])
        for sign in (1.0, -1.0):
            for cut in _cuts(sign * np.concatenate([one, other]), TAILS):
                worth = value(rates_above(sign * one, sign * other, float(cut), alpha, (1 - train) / train))
                if worth > best:
                    best, chosen = worth, (sign, replaced, float(cut))
    sign, replaced, cut = chosen
    one, other = (others[second:], ones[first:]) if replaced else (ones[first:], others[second:])
    return rates_above(sign * one, sign * other, cut, alpha)


def best_advantage(ones: Scores, others: Scores, alpha: float, train: float = TRAIN) -> float:
    """A lower bound on P(says D | D) - P(says D | D') of a threshold in the middle of the scores.

    Right guesses of both versions, equally many, are counted together. Their chances differ, which makes their number
    less spread than a binomial one of the same mean (Hoeffding 1956), so Clopper and Pearson's bound holds for it.
    """
    first = int(train * len(ones))
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
    if len(values) <= FEW:
        return values
    return np.quantile(pooled, fractions, method="lower")


def audited_epsilon(outcomes: Scores, others: Scores, delta: float, confidence: float = 0.999) -> float:
    """Lower bound on epsilon, at this confidence, from two samples of a scalar output on neighbouring data sets."""
    return best_rates(outcomes, others, 1 - confidence, lambda rates: rates.epsilon(delta), train=0.5).epsilon(delta)


def audited_gaussian_epsilon(outcomes: Scores, others: Scores, delta: float, sigmas: float = 4.0) -> float:
    """Lower bound on epsilon for outputs that are Gaussian with equal spread: the shift in standard deviations.

    Far stronger than thresholds for few runs: mu is estimated to sqrt(2/runs), then converted at `delta`. Assumes the
    shape of the outputs, so it is for tests of mechanisms whose noise is known to be Gaussian.
    """
    x, y = outcomes[np.isfinite(outcomes)], others[np.isfinite(others)]
    spread = math.sqrt((x.var() + y.var()) / 2)
    mu = abs(x.mean() - y.mean()) / spread - sigmas * math.sqrt(1 / len(x) + 1 / len(y))
    return epsilon_at(Cost(gaussian=max(0.0, mu) ** 2), delta)


def one_run_epsilon(n_coins: int, n_guesses: int, n_right: int, delta: float, alpha: float) -> float:
    """Lower bound on epsilon from guesses of coins that decided which of two versions of each user was in one run.

    Wrong with a chance of at most `alpha`. For an (epsilon, delta)-DP mechanism the number of right guesses exceeds a
    binomial one of chance e^epsilon/(1 + e^epsilon) by little (Steinke, Nasr and Jagielski 2023, theorem 5.2).

    >>> one_run_epsilon(100, 100, 50, 0.0, 0.05)
    0.0
    >>> round(one_run_epsilon(100, 100, 90, 0.0, 0.05), 2)
    1.63
    """
    low, high = 0.0, _LARGEST_EPSILON
    if n_guesses == 0 or _chance_of_guesses(n_coins, n_guesses, n_right, low, delta) >= alpha:
        return 0.0
    for _ in range(40):
        middle = (low + high) / 2
        refuted = _chance_of_guesses(n_coins, n_guesses, n_right, middle, delta) < alpha
        low, high = (middle, high) if refuted else (low, middle)
    return low


def _chance_of_guesses(n_coins: int, n_guesses: int, n_right: int, epsilon: float, delta: float) -> float:
    """An upper bound on the chance of so many right guesses under (epsilon, delta)-DP."""
    chance = 1 / (1 + math.exp(-epsilon))
    below = np.arange(1, n_right + 1)
    sums = np.cumsum(binom.pmf(n_right - below, n_guesses, chance))
    steepest = float(np.max(sums / below, initial=0.0))
    return min(1.0, float(binom.sf(n_right - 1, n_guesses, chance)) + 2 * n_coins * delta * steepest)


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


def curve_of(cost: Cost) -> Curve:
    """The curve of a cost."""
    return lambda scale, epsilon: delta_at(scaled(cost, scale), epsilon, COARSE_GRID)


def allows(curve: Curve, scale: float, rates: Rates) -> bool:
    """Whether the claim at this scale allows the rates: least <= e^epsilon most + delta(epsilon) at every epsilon.

    The same holds for saying D', whose rates are the complements.
    """
    for epsilon in map(float, _EPSILONS):
        factor, delta = math.exp(epsilon), curve(scale, epsilon)
        if rates.least > factor * rates.most + delta or 1 - rates.most > factor * (1 - rates.least) + delta:
            return False
    return True


def least_scale(curve: Curve, rates: Rates, steps: int = 12) -> float:
    """The least scale at which the claim allows the rates, from below; above 1 the claim itself is refuted."""
    return _least(lambda scale: allows(curve, scale, rates), steps) if rates.least > rates.most else 0.0


def scale_of_advantage(curve: Curve, advantage: float, steps: int = 12) -> float:
    """The same for a difference of rates: no attack's is above delta at epsilon 0, the total variation."""
    return _least(lambda scale: advantage <= curve(scale, 0.0), steps) if advantage > 0 else 0.0


def _least(allowed: Callable[[float], bool], steps: int) -> float:
    low, high = _SCALES
    if allowed(low):
        return 0.0
    if allowed(1.0):
        high = 1.0
    else:
        low = 1.0
        if not allowed(high):
            return high
    for _ in range(steps):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if allowed(middle) else (middle, high)
    return low


def shaped_epsilon(cost: Cost, scale: float, delta: float) -> float:
    """Epsilon at `delta` of a cost at this scale."""
    return epsilon_at(scaled(cost, scale), delta, COARSE_GRID) if scale > 0 else 0.0
