"""An attack carried out: run both versions, learn on the first runs what to look at, bound epsilon on the rest."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from userdp.auditing.bounds import (
    FEW,
    Scores,
    best_advantage,
    best_rates,
    curve_of,
    least_scale,
    scale_of_advantage,
    shaped_epsilon,
)
from userdp.privacy.accounting import Cost

TRAIN = 0.25  # of the runs, for choosing

Play = Callable[[int, int], list[float]]  # of version and number of the run: what is seen


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
    rates = best_rates(*scores, alpha / 2, lambda rates: rates.epsilon(delta), TRAIN)
    plain = rates.epsilon(delta)
    if (cost.gaussian or cost.subsampled) and len(np.unique(scores[0])) > FEW:
        scale = scale_of_advantage(curve_of(cost), best_advantage(*scores, alpha / 2, TRAIN))
    else:
        scale = least_scale(curve_of(cost), rates)
    return plain, shaped_epsilon(cost, scale, delta)


def learned_scores(ones: Scores, others: Scores) -> tuple[Scores, Scores]:
    """One number per run, made of its features by what the first runs teach.

    Features of few values: how much more often these were seen in the one version. Else the linear discriminant.
    """
    first, second = ones[: int(TRAIN * len(ones))], others[: int(TRAIN * len(others))]
    values = np.unique(np.concatenate([first, second]), axis=0)
    if len(values) <= FEW:
        table = {tuple(value): _log_ratio(first, second, value) for value in values}
        one, other = (np.array([table.get(tuple(row), 0.0) for row in rows]) for rows in (ones, others))
        return one, other
    spread = np.cov(first.T, ddof=1).reshape(ones.shape[1], -1) + np.cov(second.T, ddof=1).reshape(ones.shape[1], -1)
    weights = np.linalg.pinv(spread) @ (first.mean(axis=0) - second.mean(axis=0))
    return ones @ weights, others @ weights


def _log_ratio(first: Scores, second: Scores, value: Scores) -> float:
    here, there = (np.sum(np.all(rows == value, axis=1)) + 0.5 for rows in (first, second))
    return float(np.log(here / there))
