"""The private evaluation itself: up to three clipped means of the same people, and what follows from them.

1. `bins of scores`, if rankings or calibration are asked for: how many rows of each class are in each bin of margins.
2. `scores`: the mean of a short vector of each person, one or two coordinates a metric; or two for a mean that is told
   up to a public knot, with little noise, and beyond it, with more.
3. `spread of scores`: the mean of its products, for the variance between people.

What people's means are beyond a knot counts only as far as it is above the noise; intervals count all of the noise.
Each metric is a smooth function of the means: its variance is that of the noise, which is known, and that of the
sample of people, gradient' covariance gradient / n.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from userdp.evaluation.coordinates import BlockScores, ScoreLayout
from userdp.evaluation.enclosing import corners_of_means, enclosing_ball, enclosing_ellipsoid
from userdp.evaluation.histogram import KNOTS, N_BINS, Histogram, Influences, Ranking, curve, second_order
from userdp.evaluation.scores import Score, Scores
from userdp.privacy.accounting import Budget, BudgetExceeded, gaussian_multiplier
from userdp.privacy.curator import Curator
from userdp.privacy.mechanisms.clip import Clip
from userdp.privacy.plan import Plan, Step
from userdp.statistics.moments import symmetric
from userdp.statistics.scores import CellFractions, ScoreMeans, ScoreSquares

BINS, SCORES, SPREAD = "bins of scores", "scores", "spread of scores"
_BINS_FRACTION, _SPREAD_FRACTION = 0.2, 0.06  # of the budget, in mu^2
_BLOCK = 2048
_MOST_NOISE = 0.25  # deviation, of a score's range, beyond which it tells nothing
# Coordinates that are influences of a histogram, between which ends they lie, and what its noise may leave in them.
_BINNED: dict[str, tuple[tuple[str, ...], float, float, float]] = {
    "auc": (("auc",), 0.0, 1.0, 0.25),
    "calibration": (("intercept", "slope"), -math.inf, math.inf, 1.0),
}
_MOST_UNRESOLVED = 0.1  # of the AUC: beyond, what bins leave open hides it
_TOO_FEW_BINS = (
    "{names} of {whom}: not told. Margins are counted in bins, of width 0.5 from -5 to 5 with ends at -7 and 7; too "
    "many are in one or two of these or beyond the ends, or the slope is above 5."
)
_RADIUS = 1 + 1e-9  # that of the body around all possible vectors, in its own coordinates, with room for rounding
_CLEAR = 3.0  # noise deviations that a level's count must be above 0
_ABOVE_NOISE = 1.25  # deviations of what is told of means beyond a knot, up to which it counts as noise


def evaluation_steps(layout: ScoreLayout, n_users: int, budget: Budget, start: int = 0) -> tuple[Step, ...]:
    """The releases on users start .. start + n_users - 1 that cost the whole budget together; no data.

    Raises `BudgetExceeded` if noise would hide the scores, by public numbers.
    """
    if budget.delta == 0:
        raise BudgetExceeded("Expected delta > 0 for an evaluation: its noise is Gaussian. Nothing was spent.")
    mu_squared = (1 - 1e-9) / gaussian_multiplier(budget, 1) ** 2
    fractions = {SCORES: 1 - _SPREAD_FRACTION - _BINS_FRACTION * layout.needs_cells, SPREAD: _SPREAD_FRACTION}
    fractions = ({BINS: _BINS_FRACTION} if layout.needs_cells else {}) | fractions
    enough = math.ceil(math.sqrt(len(layout.names(0)) / (fractions[SCORES] * mu_squared)) / _MOST_NOISE)
    if n_users < enough:
        raise BudgetExceeded(
            f"Expected more than n_users={n_users} for scores at epsilon={budget.epsilon:g}, delta={budget.delta:g}: "
            f"about {enough:,} users would do, or a larger epsilon, or fewer metrics. Nothing was spent.",
            enough_users=enough,
        )
    return tuple(
        Step(
            label,
            start,
            start + n_users,
            Clip(n_users, 1 / math.sqrt(fraction * mu_squared), block=_BLOCK, acute=label != SCORES),
        )
        for label, fraction in fractions.items()
    )


def released_scores(curator: Curator, plan: Plan, layout: ScoreLayout, confidence: float) -> Scores:
    """Scores with intervals, from a curator whose rows are the layout's and whose plan has the evaluation's steps.

    Guarantee: all that is read of the data are the plan's releases.
    """
    steps = {step.label: step for step in plan.steps if step.label in (BINS, SCORES, SPREAD)}
    mechanisms: dict[str, Any] = {label: step.mechanism for label, step in steps.items()}
    n_users = steps[SCORES].n_users
    histograms: list[Histogram | None] = [None] * layout.n_blocks
    if BINS in steps:
        statistic = CellFractions(layout.n_groups, N_BINS, layout.most_rows)
        noise = mechanisms[BINS].noise_std(1.0, layout.n_groups * (N_BINS + 1))
        histograms = list(_histograms(layout, statistic, curator.release(BINS, statistic, 1.0), noise))
    function = BlockScores.of(layout, histograms)
    possible, knots = function(layout.possible_rows()), layout.knots(function.scales)
    if layout.most_rows is not None:
        possible = np.vstack([possible, np.zeros(layout.width)])  # of someone with few rows
    possible = corners_of_means(possible, knots)
    centre, axes = enclosing_ball(possible) if layout.levels else enclosing_ellipsoid(possible, layout.weights)
    empty = layout.worst if layout.most_rows is None else None  # of people of whom no row can be scored
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
    unresolved = [0.0 if one is None or not one.clear else Ranking.unresolved(one) for one in histograms]
    blocks = [
        _block_scores(
            layout, found, block, quantile, zip(tables, _left_over(tables, histogram), strict=True), unresolved[block]
        )
        for block, (tables, histogram) in enumerate(zip(function.tables, histograms, strict=True))
    ]
    everybody = histograms[0]
    shown = everybody is not None and function.tables[0][1] is not None
    numbers = layout.kind == "numbers" or "log_loss" in layout.metrics
    return Scores(
        blocks[0],
        {str(level): scores for level, scores in zip(layout.levels, blocks[1:], strict=True)},
        curve(everybody, n_users, quantile) if everybody is not None and shown else (),
        confidence,
        "people" if layout.most_rows is None else "rows",
        n_users,
        layout.scale.limit if numbers else None,
        _clipped(layout, everybody),
        _notes(layout, function, histograms, unresolved),
    )


def _histograms(layout: ScoreLayout, statistic: CellFractions, released: np.ndarray, noise: float) -> list[Histogram]:
    """Of everybody, then of each level."""
    groups, cells = statistic.split(released)
    groups, cells = groups.reshape(-1, 2), cells.reshape(-1, 2, N_BINS)
    stds = noise / math.sqrt(statistic.GROUPS), noise / math.sqrt(1 - statistic.GROUPS)
    together = math.sqrt(len(groups))
    everybody = Histogram(groups.sum(axis=0), cells.sum(axis=0), *(std * together for std in stds))
    return [everybody, *(Histogram(groups[level], cells[level], *stds) for level in range(len(layout.levels)))]


def _notes(
    layout: ScoreLayout, function: BlockScores, histograms: list[Histogram | None], unresolved: list[float]
) -> tuple[str, ...]:
    """Which scores the bins cannot tell, of everybody and of levels."""
    notes = []
    for whom, tables, one, open_part in zip(
        ("everybody", *map(str, layout.levels)), function.tables, histograms, unresolved, strict=True
    ):
        if one is None or not one.clear:
            continue
        names = ["auc"] * ("auc" in layout.metrics and open_part > _MOST_UNRESOLVED)
        names += ["calibration"] * ("calibration" in layout.metrics and tables[1] is None)
        if names:
            notes.append(_TOO_FEW_BINS.format(names=" and ".join(names), whom=whom))
    return tuple(notes)


def _clipped(layout: ScoreLayout, found: Histogram | None) -> float | None:
    """About which fraction of rows has a log loss above the limit."""
    if found is None or not found.clear or "log_loss" not in layout.metrics:
        return None
    limit = layout.scale.limit
    margin, below = limit + math.log(-math.expm1(-limit)), found.cumulative
    lost = float(np.interp(-margin, KNOTS, below[1])), 1 - float(np.interp(margin, KNOTS, below[0]))
    return float(found.chances[1] * lost[0] + found.chances[0] * lost[1])


@dataclass(frozen=True, eq=False)
class _Means:
    """Means of coordinates in units, the matrix that makes them of what was released, its noise and covariance.

    The covariance is noisy itself: one deviation of that is added, so that where noise hides the variance between
    people, intervals are too wide rather than too narrow.
    """

    values: np.ndarray
    axes: np.ndarray
    noise_std: float
    covariance: np.ndarray
    covariance_std: float

    def errors(self, gradient: np.ndarray) -> tuple[float, float]:
        """The deviations, by noise and by the sample of people, of a function with this gradient."""
        scaled = gradient @ self.axes
        sampling = float(scaled @ self.covariance @ scaled) + self.covariance_std * float(scaled @ scaled)
        return self.noise_std * float(np.linalg.norm(scaled)), math.sqrt(max(sampling, 0.0))


def _left_over(tables: tuple[Influences | None, ...], found: Histogram | None) -> list[np.ndarray]:
    """The deviation of what the histogram's noise leaves in each of the estimates."""
    return [np.zeros(0) if table is None or found is None else second_order(found, type(table)) for table in tables]


def _block_scores(
    layout: ScoreLayout,
    found: _Means,
    block: int,
    quantile: float,
    tables: Iterable[tuple[Influences | None, np.ndarray]],
    unresolved: float = 0.0,
) -> dict[str, Score]:
    """All metrics of everybody, or of a level; unresolved: how far the bins may put the AUC off."""
    names, first = layout.names(block), layout.blocks[block].start
    places = {name: first + place for place, name in enumerate(names)}
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
        """Of what people's means are beyond the knot: its mean, what of it is above the noise, and the gradient."""
        gradient = np.zeros(len(found.values))
        gradient[layout.split[name]] = 1.0
        value = float(found.values[layout.split[name]])
        return value, above_noise(value, found.errors(gradient)[0]), gradient

    def told(value: float, gradient: np.ndarray, low: float, high: float, more: float = 0.0, off: float = 0.0) -> Score:
        if hidden or not math.isfinite(value + more) or not np.isfinite(gradient).all():
            return _untold(low, high)
        noise, sampling = found.errors(gradient)
        noise = math.hypot(noise, more)
        half = quantile * math.hypot(noise, sampling) + off
        value = min(max(value, low), high)  # first, so that an interval is not empty where noise leads out of the range
        return Score(value, max(value - half, low), min(value + half, high), noise, sampling)

    def part(name: str, unit: float, high: float = math.inf, sign: float = 1.0) -> Score:
        value, gradient = mean(name)
        value, gradient = unit * (value + 0.5), unit * gradient
        score = told(value if sign > 0 else unit - value, sign * gradient, 0.0, min(high, unit))
        return in_two(score, name, value, unit, gradient) if name in layout.split else score

    def in_two(whole: Score, name: str, value: float, unit: float, gradient: np.ndarray) -> Score:
        """A mean that was told up to a knot and beyond: what is beyond counts as far as it is above its noise.

        The interval is that of the sum, which holds whoever is far out; but its low end is at least that of the first
        part, since the second is not below 0. Half of the chance that it is too high is left to either.
        """
        more, kept, of_more = beyond(name)
        ends = (value, gradient), (value - unit * more, gradient - unit * of_more)
        wider = -float(ndtri(ndtr(-quantile) / 2))
        low = max(0.0, *(end - wider * math.hypot(*found.errors(one)) for end, one in ends))
        shown = min(max(value + unit * (kept - more), 0.0), unit)
        return replace(whole, value=shown, low=min(low, shown), high=max(whole.high, shown))

    limit, scores = layout.scale.limit, {}
    simple: dict[str, Callable[[], Score]] = {
        "log_loss": lambda: part("log_loss", limit),
        "brier": lambda: part("brier", 1.0),
        "accuracy": lambda: part("wrong", 1.0, sign=-1.0),
        "mae": lambda: part("error", limit),
        "mse": lambda: part("square", limit**2),
        "rmse": lambda: _root(part("square", limit**2)),
        "r2": lambda: _explained(layout, mean, beyond, told),
    }
    for metric in layout.metrics:
        if metric in simple:
            scores[metric] = simple[metric]()
    for (table, left_over), (names, low, high, most) in zip(tables, _BINNED.values(), strict=True):
        for place, name in enumerate(names if names[0] in places else ()):
            value, gradient = mean(name)
            off = unresolved if name == "auc" else 0.0
            shown = name if name in layout.metrics else f"calibration_{name}"
            scores[shown] = (
                _untold(low, high)
                if table is None or not left_over.max() <= most or off > _MOST_UNRESOLVED
                else told(float(table.value[place]) + value, gradient, low, high, float(left_over[place]), off)
            )
    return {name: scores[name] for metric in layout.metrics for name in scores if name.startswith(metric)}


def _untold(low: float, high: float) -> Score:
    return Score(math.nan, low, high, math.nan, math.nan)


def _root(square: Score) -> Score:
    """The root of a mean square; NaN if noise took that to 0 or below, with an interval all the same."""
    value, low, high = (math.sqrt(max(v, 0.0)) for v in (square.value, square.low, square.high))
    slope = 1 / (2 * value) if value else math.nan
    return Score(value or math.nan, low, high, slope * square.noise_std, slope * square.sampling_std)


def _explained(
    layout: ScoreLayout, mean: Callable[..., Any], beyond: Callable[..., Any], told: Callable[..., Score]
) -> Score:
    """R^2 = 1 - E(error^2) / Var(t), 4 Var(t) = E (2 t - 1)^2 - (E (2 t - 1))^2, targets t as parts of their range."""
    unit = (layout.scale.limit / layout.scale.span) ** 2
    (square, of_square), (target, of_target), (both, of_both) = map(mean, ("square", "target", "target_square"))
    square, both = square + 0.5, both + 0.5
    variance = both / 4 - target**2
    if variance <= 0:
        return _untold(-math.inf, 1.0)
    ratio = unit * square / variance
    gradient = -unit * of_square / variance + ratio / variance * (of_both / 4 - 2 * target * of_target)
    found = told(1 - ratio, gradient, -math.inf, 1.0)
    if layout.split and math.isfinite(found.value):
        (more, kept, _), (more_both, kept_both, _) = map(beyond, ("square", "target_square"))
        square, variance = max(square - more + kept, 0.0), (both - more_both + kept_both) / 4 - target**2
        value = 1 - unit * square / variance if variance > 0 else found.value
        found = replace(found, value=value, low=min(found.low, value), high=max(found.high, value))
    return found


def above_noise(value: float, noise_std: float) -> float:
    """A mean that is not below 0, told with this noise: less where that could be all of it, and as it is far above.

    x - (1.25 s)^2 / x for x > 1.25 s, else 0: its error is .3 s where there is nothing, and at most 1.34 s.
    Paper: Breiman 1995, the garrote.
    """
    least = _ABOVE_NOISE * noise_std
    return value - least**2 / value if value > least else 0.0
