"""The private evaluation itself: up to three clipped means of the same users, and what follows from them.

1. `bins of scores`, if rankings or calibration are asked for: how many rows of each class are in each bin of margins.
2. `scores`: the mean of a short vector of each user, one or two coordinates a metric; or two for a mean that is split
   at a public threshold: up to it, with little noise, and beyond it, with more.
3. `spread of scores`: the mean of its products, for the variance between users.

What users' means are beyond a threshold counts only as far as it is above the noise; intervals count all of the noise.
Each metric is a smooth function of the means: its variance is that of the noise, which is known, and that of the
sample of users, gradient' covariance gradient / n.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from userdp.evaluation.coordinates import (
    BlockScores,
    ScoreLayout,
    corners_of_means,
    enclosing_ball,
    enclosing_ellipsoid,
)
from userdp.evaluation.histogram import INFLUENCES, KNOTS, N_BINS, Histogram, Influences, Ranking, curve, left_over
from userdp.evaluation.scores import Score, Scores
from userdp.privacy.accounting import Budget, BudgetExceeded, gaussian_multiplier
from userdp.privacy.clip import Clip
from userdp.privacy.curator import Curator
from userdp.privacy.plan import Plan, Step
from userdp.statistics.moments import symmetric
from userdp.statistics.scores import CellFractions, ScoreMeans, ScoreSquares

BINS, SCORES, SPREAD = "bins of scores", "scores", "spread of scores"
_BINS_FRACTION, _SPREAD_FRACTION = 0.2, 0.06  # of the budget, in mu^2
_BLOCK = 2048
_MOST_NOISE = 0.25  # deviation, of a score's range, beyond which it is not informative
_MOST_UNRESOLVED = 0.1  # of the AUC: beyond, what bins leave open hides it
_TOO_FEW_BINS = (
    "{names} of {whom}: not released. Margins are counted in bins, of width 0.5 from -5 to 5 with ends at -7 and 7; "
    "too many are in one or two of these or beyond the ends, or the slope is above 5."
)
_RADIUS = 1 + 1e-9  # that of the body around all possible vectors, in its own coordinates, with room for rounding
_CLEAR = 3.0  # noise deviations that a level's count must be above 0
_ABOVE_NOISE = 1.25  # deviations of what is released of means beyond a threshold, up to which it counts as noise


def evaluation_steps(layout: ScoreLayout, n_users: int, budget: Budget, start: int = 0) -> tuple[Step, ...]:
    """The releases on users start .. start + n_users - 1 that cost the whole budget together; no data.

    Raises `BudgetExceeded` if noise would hide the scores, by public numbers.
    """
    if budget.delta == 0:
        raise BudgetExceeded("Expected delta > 0 for an evaluation: its noise is Gaussian. Nothing was spent.")
    mu_squared = (1 - 1e-9) / gaussian_multiplier(budget, 1) ** 2
    fractions = {BINS: _BINS_FRACTION} if layout.needs_cells else {}
    fractions |= {SCORES: 1 - _SPREAD_FRACTION - _BINS_FRACTION * layout.needs_cells, SPREAD: _SPREAD_FRACTION}
    noise = budget.relative_noise * math.sqrt(len(layout.names(0)) / (fractions[SCORES] * mu_squared))
    enough = math.ceil(noise / _MOST_NOISE)
    if n_users < enough:
        raise BudgetExceeded(
            f"Expected more than n_users={n_users} for scores at epsilon={budget.epsilon:g}, delta={budget.delta:g}: "
            f"about {enough:,} users would do, or a larger epsilon, or fewer metrics. Nothing was spent.",
            enough_users=enough,
        )
    steps = []
    for label, fraction in fractions.items():
        multiplier, relation = 1 / math.sqrt(fraction * mu_squared), budget.neighbours
        clip = Clip(n_users, multiplier, block=_BLOCK, acute=label != SCORES, neighbours=relation)
        steps.append(Step(label, start, start + n_users, clip))
    return tuple(steps)


def released_scores(curator: Curator, plan: Plan, layout: ScoreLayout, confidence: float) -> Scores:
    """Scores with intervals, from a curator whose rows are the layout's and whose plan has the evaluation's steps.

    Guarantee: all that is read of the data are the plan's releases.
    """
    steps = {step.label: step for step in plan.steps}
    mechanisms: dict[str, Any] = {label: step.mechanism for label, step in steps.items()}
    n_users = steps[SCORES].n_users
    histograms: list[Histogram | None] = [None] * layout.n_blocks
    if BINS in steps:
        statistic = CellFractions(2 * layout.n_blocks, N_BINS, layout.most_rows)
        noise = mechanisms[BINS].noise_std(1.0, statistic.n_groups * (N_BINS + 1))
        groups, cells = statistic.split(curator.release(BINS, statistic, 1.0))
        groups, cells = groups.reshape(-1, 2), cells.reshape(-1, 2, N_BINS)
        stds = np.array([noise / math.sqrt(statistic.GROUPS), noise / math.sqrt(1 - statistic.GROUPS)])
        together = Histogram(groups.sum(axis=0), cells.sum(axis=0), *(math.sqrt(len(groups)) * stds))
        of_levels = [Histogram(groups[level], cells[level], *stds) for level in range(len(layout.levels))]
        histograms = [one if one.clear else None for one in (together, *of_levels)]  # where both classes show
    function = BlockScores.of(layout, histograms)
    possible, knots = function(layout.possible_rows()), layout.knots(function.scales)
    if layout.most_rows is not None:
        possible = np.vstack([possible, np.zeros(layout.width)])  # of someone with few rows
    possible = corners_of_means(possible, knots)
    centre, axes = enclosing_ball(possible) if layout.levels else enclosing_ellipsoid(possible, layout.weights)
    empty = None  # the row of users of whom none can be scored: the worst, of no level
    if layout.most_rows is None:
        empty = np.array([-1.0, len(layout.levels), 0.0, *np.ones(len(layout.parts))])
    means = ScoreMeans(function, centre, layout.most_rows, np.linalg.inv(axes), knots, empty)
    mean = curator.release(SCORES, means, _RADIUS)
    squares = symmetric(curator.release(SPREAD, ScoreSquares(means), _RADIUS**2))
    scales, width = np.concatenate([function.scales, function.scales[[column for column, _ in knots]]]), len(centre)
    found = _Means(
        (axes @ mean + centre) * scales,
        axes * scales[:, None],
        mechanisms[SCORES].noise_std(_RADIUS, width),
        (squares - np.outer(mean, mean)) / n_users,
        mechanisms[SPREAD].noise_std(_RADIUS**2, width * (width + 1) // 2) / n_users,
    )
    quantile = float(ndtri(0.5 + confidence / 2))
    blocks = [
        _block_scores(layout, found, block, quantile, tables, histogram)
        for block, (tables, histogram) in enumerate(zip(function.tables, histograms, strict=True))
    ]
    everybody, in_units, clipped = histograms[0], layout.kind == "numbers" or "log_loss" in layout.metrics, None
    if everybody is not None and "log_loss" in layout.metrics:
        limit, below = layout.scale.limit, everybody.cumulative
        margin = limit + math.log(-math.expm1(-limit))  # beyond which a row's log loss is above the limit
        lost = float(np.interp(-margin, KNOTS, below[1])), 1 - float(np.interp(margin, KNOTS, below[0]))
        clipped = float(everybody.chances[1] * lost[0] + everybody.chances[0] * lost[1])
    return Scores(
        blocks[0],
        {str(level): scores for level, scores in zip(layout.levels, blocks[1:], strict=True)},
        curve(everybody, n_users, quantile) if everybody is not None and "calibration" in function.tables[0] else (),
        confidence,
        "people" if layout.most_rows is None else "rows",
        n_users,
        layout.scale.limit if in_units else None,
        clipped,
        _notes(layout, function, histograms),
    )


def _notes(layout: ScoreLayout, function: BlockScores, histograms: list[Histogram | None]) -> tuple[str, ...]:
    """Which scores the bins cannot resolve, of all users and of levels."""
    notes = []
    for whom, tables, found in zip(("everybody", *layout.levels), function.tables, histograms, strict=True):
        if found is None:
            continue
        names = ["auc"] * ("auc" in layout.metrics and Ranking.unresolved(found) > _MOST_UNRESOLVED)
        names += ["calibration"] * ("calibration" in layout.metrics and "calibration" not in tables)
        if names:
            notes.append(_TOO_FEW_BINS.format(names=" and ".join(names), whom=whom))
    return tuple(notes)


@dataclass(frozen=True, eq=False)
class _Means:
    """Means of coordinates in units, the matrix that makes them of what was released, its noise and covariance.

    The covariance is noisy itself: one deviation of that is added, so that where noise hides the variance between
    users, intervals are too wide rather than too narrow.
    """

    values: np.ndarray
    axes: np.ndarray
    noise_std: float
    covariance: np.ndarray
    covariance_std: float

    def errors(self, gradient: np.ndarray) -> tuple[float, float]:
        """The deviations, by noise and by the sample of users, of a function with this gradient."""
        scaled = gradient @ self.axes
        sampling = float(scaled @ self.covariance @ scaled) + self.covariance_std * float(scaled @ scaled)
        return self.noise_std * float(np.linalg.norm(scaled)), math.sqrt(max(sampling, 0.0))


def _block_scores(
    layout: ScoreLayout,
    found: _Means,
    block: int,
    quantile: float,
    tables: dict[str, Influences],
    histogram: Histogram | None,
) -> dict[str, Score]:
    """All metrics of everybody, or of a level."""
    first = layout.blocks[block].start
    places = {name: place for place, name in enumerate(layout.names(block), first)}
    counted = layout.counted(block)
    count = float(found.values[first]) if counted else 1.0
    hidden = counted and count < _CLEAR * found.noise_std * float(np.linalg.norm(found.axes[first]))

    def mean(name: str) -> tuple[float, np.ndarray]:
        """The mean over the block's rows, and its gradient."""
        own = [places[name], *([layout.split[name]] if name in layout.split else [])]
        gradient, value = np.zeros(len(found.values)), float(found.values[own].sum())
        gradient[own] = 1 / count
        if counted:
            gradient[first] = -value / count**2
        return value / count, gradient

    def beyond(name: str) -> tuple[float, float, np.ndarray]:
        """Of what users' means are beyond the threshold: its mean, what of it is above the noise, and the gradient."""
        gradient = np.zeros(len(found.values))
        gradient[layout.split[name]] = 1.0
        value = float(found.values[layout.split[name]])
        return value, above_noise(value, found.errors(gradient)[0]), gradient

    def score(
        value: float, gradient: np.ndarray, low: float, high: float, more: float = 0.0, off: float = 0.0
    ) -> Score:
        """With `more` noise than that of the means, and a value that may be `off` by so much."""
        if hidden or not math.isfinite(value + more) or not np.isfinite(gradient).all():
            return _unknown(low, high)
        noise, sampling = found.errors(gradient)
        noise = math.hypot(noise, more)
        half = quantile * math.hypot(noise, sampling) + off
        value = min(max(value, low), high)  # first, so that an interval is not empty where noise leads out of the range
        return Score(value, max(value - half, low), min(value + half, high), noise, sampling)

    def part(name: str, unit: float = 1.0, sign: float = 1.0) -> Score:
        """Of one mean. What is beyond a threshold counts as far as it is above its noise.

        The interval is that of the sum, which holds with outlying users; but its low end is at least that of the first
        part, since the second is not below 0. Half of the chance that it is too high is left to either.
        """
        value, gradient = mean(name)
        value, gradient = unit * (value + 0.5), unit * gradient
        whole = score(value if sign > 0 else unit - value, sign * gradient, 0.0, unit)
        if name not in layout.split:
            return whole
        more, kept, of_more = beyond(name)
        ends = (value, gradient), (value - unit * more, gradient - unit * of_more)
        wider = -float(ndtri(ndtr(-quantile) / 2))
        low = max(0.0, *(end - wider * math.hypot(*found.errors(one)) for end, one in ends))
        shown = min(max(value + unit * (kept - more), 0.0), unit)
        return replace(whole, value=shown, low=min(low, shown), high=max(whole.high, shown))

    def influenced(metric: str) -> dict[str, Score]:
        """What the bins show, and the mean influence on it."""
        kind, table, scores = INFLUENCES[metric], tables.get(metric), {}
        rest = None if table is None or histogram is None else left_over(histogram, kind)
        off = Ranking.unresolved(histogram) if metric == "auc" and histogram is not None else 0.0
        for place, name in enumerate(kind.NAMES):
            shown = _unknown(kind.LOW, kind.HIGH)
            if table is not None and rest is not None and rest.max() <= kind.MOST_LEFT_OVER and off <= _MOST_UNRESOLVED:
                value, gradient = mean(name)
                more = float(rest[place])
                shown = score(float(table.value[place]) + value, gradient, kind.LOW, kind.HIGH, more, off)
            scores[metric if name == metric else f"{metric}_{name}"] = shown
        return scores

    limit, scores = layout.scale.limit, dict[str, Score]()
    simple: dict[str, Callable[[], Score]] = {
        "log_loss": lambda: part("log_loss", limit),
        "brier": lambda: part("brier"),
        "accuracy": lambda: part("wrong", sign=-1.0),
        "mae": lambda: part("error", limit),
        "mse": lambda: part("square", limit**2),
        "rmse": lambda: _root(part("square", limit**2)),
        "r2": lambda: _explained(layout, mean, beyond, score),
    }
    for metric in layout.metrics:
        scores |= {metric: simple[metric]()} if metric in simple else influenced(metric)
    return scores


def _unknown(low: float, high: float) -> Score:
    return Score(math.nan, low, high, math.nan, math.nan)


def _root(square: Score) -> Score:
    """The root of a mean square; NaN if noise took that to 0 or below, with an interval all the same."""
    value, low, high = (math.sqrt(max(v, 0.0)) for v in (square.value, square.low, square.high))
    slope = 1 / (2 * value) if value else math.nan
    return Score(value or math.nan, low, high, slope * square.noise_std, slope * square.sampling_std)


def _explained(
    layout: ScoreLayout, mean: Callable[..., Any], beyond: Callable[..., Any], score: Callable[..., Score]
) -> Score:
    """R^2 = 1 - E(error^2) / Var(t), 4 Var(t) = E (2 t - 1)^2 - (E (2 t - 1))^2, targets t as parts of their range."""
    unit = (layout.scale.limit / layout.scale.span) ** 2
    (square, of_square), (target, of_target), (both, of_both) = map(mean, ("square", "target", "target_square"))
    square, both = square + 0.5, both + 0.5
    variance = both / 4 - target**2
    if variance <= 0:
        return _unknown(-math.inf, 1.0)
    ratio = unit * square / variance
    gradient = -unit * of_square / variance + ratio / variance * (of_both / 4 - 2 * target * of_target)
    found = score(1 - ratio, gradient, -math.inf, 1.0)
    if layout.split and math.isfinite(found.value):
        (more, kept, _), (more_both, kept_both, _) = map(beyond, ("square", "target_square"))
        square, variance = max(square - more + kept, 0.0), (both - more_both + kept_both) / 4 - target**2
        value = 1 - unit * square / variance if variance > 0 else found.value
        found = replace(found, value=value, low=min(found.low, value), high=max(found.high, value))
    return found


def above_noise(value: float, noise_std: float) -> float:
    """A mean that is not below 0, released with this noise: less where that could be all of it.

    x - (1.25 s)^2 / x for x > 1.25 s, else 0: its error is 0.3 s where there is nothing, and at most 1.34 s.
    Paper: Breiman 1995, the garrote.
    """
    least = _ABOVE_NOISE * noise_std
    return value - least**2 / value if value > least else 0.0
