"""Which numbers an evaluation needs of each row, and in which coordinates of a user's vector they go.

A row is [cell, level, margin, parts...]: the number of its cell (of level, class and bin; -1 for none), the number of
its declared level (as many as there are for none of them), its margin, and the losses of `row_losses.PARTS`.

A vector has a block for everybody and one for each declared level. A block holds how often rows are in it (unless
that is known: everybody's, with users counted once), the parts less 1/2, and the influences on AUC, intercept and
slope; zeros for rows of other levels. Without levels, and with users counted once, some parts are split at a threshold:
what a user's mean is beyond it goes to a coordinate of its own, at the end.

Noise is proportional to the size of a body around all possible vectors: a ball, or an ellipsoid, which is flat where
coordinates go together and so has less noise.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from userdp.evaluation.histogram import EDGES, INFLUENCES, KNOTS, N_BINS, Histogram, Influences
from userdp.evaluation.row_losses import (
    LARGEST_MARGIN,
    METRICS,
    NEED_PROBABILITIES,
    PARTS,
    Kind,
    Predictions,
    Scale,
    losses_of,
)
from userdp.statistics.scores import Knots, split_at

CELL, LEVEL, MARGIN, FIRST_PART = 0, 1, 2, 3
MOST_LEVELS = 20
_LEAST_RANGE = 1e-9
_OF_ONE_METRIC = ("intercept", "slope", "target", "target_square")  # two coordinates of one metric each,
_SHARED = np.sqrt(2)  # which together count as one: noise is the same for all metrics, relative to their ranges
_WEIGHTS = {"log_loss": 2.0, "error": 2.0}  # beside the others': users' means are alike, and noise shows most
# Where users' means are split, up to here and beyond: few users are beyond, unless they have few rows.
_KNOTS = {"log_loss": 1 / 4, "brier": 3 / 8, "error": 1 / 8, "square": 1 / 64, "target_square": 1 / 8}
_UP_TO_KNOT = 4.0  # the weight of the first part beside the second's
_ELLIPSOID_STEPS, _BALL_STEPS = 100, 400
_ROUNDS, _MOST_POINTS, _ADDED, _NEARLY = 8, 500, 100, 1.01  # of many points those are taken that turn out to matter
_FLATTEST = 1e-6  # of the longest axis's variance
_LEAST_SIZE = 1e-6


@dataclass(frozen=True)
class ScoreLayout:
    """What is asked: metrics of a kind of predictions, for everybody and each of `levels`; how users are weighed.

    most_rows: None if each user counts once; else the public most rows of a user, whose rows count once each.
    """

    kind: Kind
    metrics: tuple[str, ...]
    scale: Scale
    levels: tuple[Any, ...] = ()
    most_rows: int | None = None

    @property
    def parts(self) -> tuple[str, ...]:
        """The means that the metrics are made of, each once."""
        return tuple(dict.fromkeys(part for name in self.metrics for part in PARTS.get(name, ())))

    @property
    def needs_cells(self) -> bool:
        return any(metric in self.metrics for metric in INFLUENCES)

    @property
    def n_blocks(self) -> int:
        return len(self.levels) + 1

    def counted(self, block: int) -> bool:
        """Whether the block has a coordinate for how often rows are in it."""
        return block > 0 or self.most_rows is not None

    def names(self, block: int) -> tuple[str, ...]:
        """What the block's coordinates are."""
        influences = [name for metric, of in INFLUENCES.items() if metric in self.metrics for name in of.NAMES]
        return (*(("count",) * self.counted(block)), *self.parts, *influences)

    @cached_property
    def blocks(self) -> tuple[slice, ...]:
        """Where each block's coordinates are."""
        ends = np.cumsum([0, *(len(self.names(block)) for block in range(self.n_blocks))])
        return tuple(slice(int(first), int(last)) for first, last in itertools.pairwise(ends))

    @property
    def width(self) -> int:
        return int(self.blocks[-1].stop)

    @property
    def all_names(self) -> list[str]:
        """What the coordinates of all blocks are."""
        return [name for block in range(self.n_blocks) for name in self.names(block)]

    @property
    def split(self) -> dict[str, int]:
        """Parts that are split at a threshold, and where what is beyond it goes.

        None with levels or rows counted; nor of several classes, of which `corners_of_means` would miss some.
        """
        whole = bool(self.levels) or self.most_rows is not None or self.kind == "classes"
        names = [] if whole else [name for name in self.parts if name in _KNOTS]
        return {name: self.width + place for place, name in enumerate(names)}

    def knots(self, scales: np.ndarray) -> Knots:
        """Columns of everybody's block and their thresholds, in units of the coordinates' scales."""
        places = {name: self.names(0).index(name) for name in self.split}
        return tuple((place, float((_KNOTS[name] - 0.5) / scales[place])) for name, place in places.items())

    @property
    def weights(self) -> np.ndarray:
        """How much the noise of each coordinate counts, of those whose metrics' ranges were brought to 2."""
        split = self.split
        own = [_WEIGHTS.get(name, 1.0) * (_UP_TO_KNOT if name in split else 1.0) for name in self.all_names]
        return np.array([*own, *(_WEIGHTS.get(name, 1.0) for name in split)])

    def rows(self, found: Predictions, levels: np.ndarray | None = None) -> np.ndarray:
        """The rows that statistics read; levels are positions, NaN for none."""
        out = np.empty((len(found.targets), FIRST_PART + len(self.parts)))
        none = len(self.levels)
        own = np.full(len(out), float(none)) if levels is None else np.where(np.isnan(levels), none, levels)
        out[:, CELL], out[:, LEVEL], out[:, MARGIN] = -1.0, own, 0.0
        if self.needs_cells:
            cells = (2 * own + found.targets) * N_BINS + np.searchsorted(EDGES, found.values, side="right")
            out[:, CELL], out[:, MARGIN] = np.where(found.sound, cells, -1.0), found.values
        out[:, FIRST_PART:] = losses_of(found, self.scale, self.parts)
        return out

    def possible_rows(self) -> np.ndarray:
        """Rows that between them show how long vectors can be; no data."""
        levels = np.arange(self.n_blocks, dtype=np.float64)
        if self.kind == "classes":
            parts = itertools.product([0.0, 1.0], repeat=len(self.parts))
            return np.array([[-1.0, level, 0.0, *some] for level, some in itertools.product(levels, list(parts))])
        if self.kind == "binary":
            within = np.interp(np.linspace(0, N_BINS, 8 * N_BINS + 1), np.arange(N_BINS + 1), KNOTS)
            both = itertools.product([0.0, 1.0], [-LARGEST_MARGIN, *within, LARGEST_MARGIN])
        else:
            both = itertools.product(np.linspace(0, 1, 17), repeat=2)
        targets, values = np.array([*both, (0.0, 0.0)]).T
        sound = np.arange(len(targets)) < len(targets) - 1  # the last makes no sense
        found = Predictions(self.kind, targets, values, sound)
        return np.vstack([self.rows(found, np.full(len(targets), level)) for level in levels])


def check_metrics(metrics: Sequence[str], kind: Kind, probabilities: bool) -> tuple[str, ...]:
    """The metrics that were asked for, each once; or an error that says which there are."""
    asked = (metrics,) if isinstance(metrics, str) else tuple(metrics)
    fitting = [
        name for name, kinds in METRICS.items() if kind in kinds and (probabilities or name not in NEED_PROBABILITIES)
    ]
    wrong = [name for name in asked if name not in fitting]
    if wrong or not asked:
        what = {"binary": "two classes", "classes": "several classes", "numbers": "numbers"}[kind]
        without = "" if probabilities or kind == "numbers" else " without probabilities"
        also = "; AUC and calibration are for two classes" if kind == "classes" and {*wrong} & {*METRICS} else ""
        raise ValueError(
            f"metrics of a model of {what}{without} must be some of {', '.join(fitting)}, got "
            f"{', '.join(map(repr, wrong)) or 'none'}{also}. Nothing was spent."
        )
    return tuple(dict.fromkeys(asked))


@dataclass(frozen=True, eq=False)
class BlockScores:
    """The vector of each row, coordinates divided by public scales; `tables` are each block's influences by metric.

    Guarantee: row i of the result is a function of row i, by operations on single numbers.
    """

    layout: ScoreLayout
    tables: tuple[dict[str, Influences], ...]
    scales: np.ndarray

    @classmethod
    def of(cls, layout: ScoreLayout, histograms: Sequence[Histogram | None]) -> BlockScores:
        """With the influences that histograms show (None shows none), and each metric's range brought to 2."""
        tables = tuple(
            {
                metric: table
                for metric, kind in INFLUENCES.items()
                if found is not None and metric in layout.metrics and (table := kind.of(found)) is not None
            }
            for found in histograms
        )
        plain = cls(layout, tables, np.ones(layout.width))
        values = plain(layout.possible_rows())
        ranges = (values.max(axis=0) - values.min(axis=0)) / 2
        shared = np.array([_SHARED if name in _OF_ONE_METRIC else 1.0 for name in layout.all_names])
        return replace(plain, scales=shared * np.where(ranges > _LEAST_RANGE, ranges, 1.0))

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        layout, out = self.layout, np.zeros((len(rows), self.layout.width))
        known = rows[:, CELL] >= 0
        labels = (np.where(known, rows[:, CELL], 0.0) // N_BINS) % 2
        parts = {name: rows[:, FIRST_PART + place] - 0.5 for place, name in enumerate(layout.parts)}
        for block, (place, tables) in enumerate(zip(layout.blocks, self.tables, strict=True)):
            inside = rows[:, LEVEL] == block - 1 if block else np.ones(len(rows), dtype=bool)
            values = parts | {"count": np.ones(len(rows))}
            for table in tables.values():
                influences = np.where(known[:, None], table(labels, rows[:, MARGIN]), 0.0)
                values |= dict(zip(table.NAMES, influences.T, strict=True))
            for column, name in enumerate(layout.names(block), place.start):
                if name in values:
                    out[:, column] = np.where(inside, values[name], 0.0)
        return np.asarray(out / self.scales)


def corners_of_means(points: np.ndarray, knots: Knots) -> np.ndarray:
    """Points whose split (`split_at`) holds that of every mean of the given ones between them, but for a little.

    A split is linear on either side of a threshold: its corners are those of the given points, and where lines between
    two of them pass a threshold. (Where planes pass two thresholds at once is left out.)
    """
    found = [points]
    for column, knot in knots:
        low, high = points[points[:, column] < knot], points[points[:, column] > knot]
        parts = (knot - low[:, None, column]) / (high[None, :, column] - low[:, None, column])
        found.append((low[:, None] + parts[:, :, None] * (high[None] - low[:, None])).reshape(-1, points.shape[1]))
    return split_at(np.vstack(found), knots)


def enclosing_ball(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The centre, and radius times the unit matrix, of a ball around all points, about the smallest.

    Paper: Badoiu and Clarkson 2003.

    >>> np.round(enclosing_ball(np.array([[0.0, 0.0], [2.0, 0.0], [1.0, 0.5]]))[1], 1)
    array([[1., 0.],
           [0., 1.]])
    """
    centre = (points.max(axis=0) + points.min(axis=0)) / 2
    for step in range(_BALL_STEPS):
        distances = ((points - centre) ** 2).sum(axis=1)
        centre = centre + (points[np.argmax(distances)] - centre) / (step + 2)
    radius = float(np.sqrt(((points - centre) ** 2).sum(axis=1).max()))
    return centre, max(radius, _LEAST_SIZE) * np.eye(points.shape[1])


def enclosing_ellipsoid(points: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The centre c, and a matrix A, of an ellipsoid {c + A u, |u| <= 1} around all points.

    About that of the least trace of W AA', W the weights on a diagonal: noise of one size in all coordinates of u has
    the least variance, weighed, in those of the points. Its dual: a distribution of points whose covariance M (of
    weighed coordinates) has the largest tr M^(1/2); then AA' ~ M^(1/2). Points get more of it in proportion to
    the root of their d' M^(-1/2) d, which is tr M^(1/2) on average. Whatever that ends with, A is stretched to hold all
    points.

    >>> centre, axes = enclosing_ellipsoid(np.array([[1.0, 1.0], [-1.0, -1.0], [0.1, -0.1], [-0.1, 0.1]]), np.ones(2))
    >>> np.round(np.linalg.eigvalsh(axes), 1)
    array([0.1, 1.4])
    """
    unit = np.sqrt(weights)
    points = points * unit
    some = np.arange(0, len(points), 1 + len(points) // _MOST_POINTS)
    for _ in range(_ROUNDS):
        mass = np.full(len(some), 1 / len(some))
        for _ in range(_ELLIPSOID_STEPS):
            _, roots, _, far = _distances(points[some], mass)
            mass = mass * np.sqrt(far / roots.sum())
            mass = mass / mass.sum()
        centre, roots, turn, far = _distances(points, np.bincount(some, mass, len(points)))
        if far.max() <= _NEARLY * far[some].max():
            break
        some = np.union1d(some, np.argsort(far)[-_ADDED:])
    axes = (turn * np.sqrt(roots * far.max())) @ turn.T
    return centre / unit, axes / unit[:, None]


def _distances(points: np.ndarray, mass: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The mean c, M^(1/2) as eigenvalues and vectors, and d' M^(-1/2) d of each point's d = point - c."""
    centre = mass @ points
    apart = points - centre
    values, turn = np.linalg.eigh((apart * mass[:, None]).T @ apart)
    roots = np.sqrt(np.maximum(values, max(values[-1] * _FLATTEST, _LEAST_SIZE**4)))
    return centre, roots, turn, ((apart @ turn) ** 2 / roots).sum(axis=1) + _LEAST_SIZE**2
