"""Which numbers an evaluation needs of each row, and in which coordinates of a user's vector they go.

A row is [cell, level, margin, parts...]: the number of its cell (of level, class and bin; -1 for none), the number of
its declared level (as many as there are for none of them), its margin, and the losses of `scoring.PARTS`.

A vector has a block for everybody and one for each declared level. A block holds how often rows are in it (unless
that is known: everybody's, with people counted once), the parts less 1/2, and the influences on AUC, intercept and
slope; zeros for rows of other levels. Without levels, and with people counted once, some parts are split at a knot:
what a person's mean is beyond it goes to a coordinate of its own, at the end.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from userdp.evaluation.histogram import KNOTS, N_BINS, Calibration, Histogram, Ranking, bin_of
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
from userdp.statistics.scores import Knots

CELL, LEVEL, MARGIN, FIRST_PART = 0, 1, 2, 3
MOST_LEVELS = 20
_LEAST_RANGE = 1e-9
_OF_ONE_METRIC = ("intercept", "slope", "target", "target_square")  # two coordinates of one metric each,
_SHARED = np.sqrt(2)  # which together count as one: noise is the same for all metrics, relative to their ranges
_WEIGHTS = {"log_loss": 2.0, "error": 2.0}  # beside the others': people's means are alike, and noise shows most
# Where people's means are told in two parts, up to here and beyond: few people are beyond, unless they have few rows.
_KNOTS = {"log_loss": 1 / 4, "brier": 3 / 8, "error": 1 / 8, "square": 1 / 64, "target_square": 1 / 8}
_UP_TO_KNOT = 4.0  # the weight of the first part beside the second's


@dataclass(frozen=True)
class ScoreLayout:
    """What is asked: metrics of a kind of predictions, for everybody and each of `levels`; how people are weighed.

    most_rows: None if each person counts once; else the public most rows of a person, whose rows count once each.
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
        return "auc" in self.metrics or "calibration" in self.metrics

    @property
    def n_groups(self) -> int:
        """Levels, and none of them, times two classes."""
        return 2 * (len(self.levels) + 1)

    @property
    def n_blocks(self) -> int:
        return len(self.levels) + 1

    def counted(self, block: int) -> bool:
        """Whether the block tells how often rows are in it."""
        return block > 0 or self.most_rows is not None

    def names(self, block: int) -> tuple[str, ...]:
        """What the block's coordinates are."""
        influences = ("auc",) * ("auc" in self.metrics) + ("intercept", "slope") * ("calibration" in self.metrics)
        return (*(("count",) * self.counted(block)), *self.parts, *influences)

    @cached_property
    def blocks(self) -> tuple[slice, ...]:
        """Where each block's coordinates are."""
        ends = np.cumsum([0, *(len(self.names(block)) for block in range(self.n_blocks))])
        return tuple(slice(int(first), int(last)) for first, last in itertools.pairwise(ends))

    @property
    def split(self) -> dict[str, int]:
        """Parts that are told up to a knot and beyond it, and where the second is.

        None with levels or rows counted; nor of several classes, of which `corners_of_means` would miss some.
        """
        whole = bool(self.levels) or self.most_rows is not None or self.kind == "classes"
        found = [] if whole else [name for name in self.parts if name in _KNOTS]
        return {name: self.width + place for place, name in enumerate(found)}

    def knots(self, scales: np.ndarray) -> Knots:
        """Columns of everybody's block and their knots, in units of the coordinates' scales."""
        places = {name: self.names(0).index(name) for name in self.split}
        return tuple((place, float((_KNOTS[name] - 0.5) / scales[place])) for name, place in places.items())

    @property
    def weights(self) -> np.ndarray:
        """How much the noise of each coordinate counts, of those whose metrics' ranges were brought to 2."""
        names = [name for block in range(self.n_blocks) for name in self.names(block)]
        found = [_WEIGHTS.get(name, 1.0) for name in names]
        return np.array(
            [weight * (_UP_TO_KNOT if name in self.split else 1.0) for name, weight in zip(names, found, strict=True)]
            + [found[names.index(name)] for name in self.split]
        )

    @property
    def width(self) -> int:
        return int(self.blocks[-1].stop)

    def rows(self, found: Predictions, levels: np.ndarray | None = None) -> np.ndarray:
        """The rows that statistics read; levels are positions, NaN for none."""
        out = np.empty((len(found.targets), FIRST_PART + len(self.parts)))
        none = len(self.levels)
        own = np.full(len(out), float(none)) if levels is None else np.where(np.isnan(levels), none, levels)
        out[:, CELL], out[:, LEVEL], out[:, MARGIN] = -1.0, own, 0.0
        if self.needs_cells:
            cells = (2 * own + found.targets) * N_BINS + bin_of(found.values)
            out[:, CELL], out[:, MARGIN] = np.where(found.sound, cells, -1.0), found.values
        out[:, FIRST_PART:] = losses_of(found, self.scale, self.parts)
        return out

    @property
    def worst(self) -> np.ndarray:
        """The row that makes no sense, of no level."""
        found = np.ones(FIRST_PART + len(self.parts))
        found[[CELL, LEVEL, MARGIN]] = -1.0, len(self.levels), 0.0
        return found

    def possible_rows(self) -> np.ndarray:
        """Rows that between them show how long vectors can be; no data."""
        if self.kind == "classes":
            parts = np.array([*itertools.product([0.0, 1.0], repeat=len(self.parts))])
            rows = np.zeros((len(parts), FIRST_PART + len(self.parts)))
            rows[:, CELL], rows[:, FIRST_PART:] = -1.0, parts
        else:
            if self.kind == "binary":
                places = np.linspace(0, N_BINS, 8 * N_BINS + 1)
                within = np.interp(places, np.arange(N_BINS + 1), KNOTS)
                values = np.concatenate([[-LARGEST_MARGIN], within, [LARGEST_MARGIN]])
                both = np.array([*itertools.product([0.0, 1.0], values)])
            else:
                both = np.array([*itertools.product(np.linspace(0, 1, 17), repeat=2)])
            sound = np.ones(len(both) + 1, dtype=bool)
            sound[-1] = False  # one that makes no sense
            both = np.vstack([both, [0.0, 0.0]])
            rows = replace(self, levels=()).rows(Predictions(self.kind, both[:, 0], both[:, 1], sound))
        found = []
        for level in range(len(self.levels) + 1):
            own = rows.copy()
            own[:, LEVEL] = level
            own[:, CELL] = np.where(own[:, CELL] < 0, -1.0, own[:, CELL] % (2 * N_BINS) + level * 2 * N_BINS)
            found.append(own)
        return np.vstack(found)


def check_metrics(metrics: Sequence[str], kind: Kind, probabilities: bool) -> tuple[str, ...]:
    """The metrics that were asked for, each once; or an error that says which there are."""
    asked = (metrics,) if isinstance(metrics, str) else tuple(metrics)
    fitting = [name for name, kinds in METRICS.items() if kind in kinds]
    if not probabilities:
        fitting = [name for name in fitting if name not in NEED_PROBABILITIES]
    wrong = [name for name in asked if name not in fitting]
    if wrong or not asked:
        what = {"binary": "two classes", "classes": "several classes", "numbers": "numbers"}[kind]
        without = "" if probabilities or kind == "numbers" else " without probabilities"
        also = "; AUC and calibration are for two classes" if kind == "classes" and {*wrong} & {*METRICS} else ""
        raise ValueError(
            f"Expected metrics of a model of {what}{without}, some of {', '.join(fitting)}; got "
            f"{', '.join(map(repr, wrong)) or 'none'}{also}. Nothing was spent."
        )
    return tuple(dict.fromkeys(asked))


@dataclass(frozen=True, eq=False)
class BlockScores:
    """The vector of each row, coordinates divided by public scales; `tables` are the influences of each block.

    Guarantee: row i of the result is a function of row i, by operations on single numbers.
    """

    layout: ScoreLayout
    tables: tuple[tuple[Ranking | None, Calibration | None], ...]
    scales: np.ndarray

    @classmethod
    def of(cls, layout: ScoreLayout, histograms: Sequence[Histogram | None]) -> BlockScores:
        """With the influences that histograms show, and each metric's range brought to 2."""
        tables = []
        for found in histograms:
            clear = found is not None and found.clear
            tables.append(
                (
                    Ranking.of(found) if found is not None and clear and "auc" in layout.metrics else None,
                    Calibration.of(found) if found is not None and clear and "calibration" in layout.metrics else None,
                )
            )
        plain = cls(layout, tuple(tables), np.ones(layout.width))
        values = plain(layout.possible_rows())
        ranges = (values.max(axis=0) - values.min(axis=0)) / 2
        names = [name for block in range(layout.n_blocks) for name in layout.names(block)]
        shared = np.array([_SHARED if name in _OF_ONE_METRIC else 1.0 for name in names])
        return replace(plain, scales=shared * np.where(ranges > _LEAST_RANGE, ranges, 1.0))

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        layout, out = self.layout, np.zeros((len(rows), self.layout.width))
        known = rows[:, CELL] >= 0
        labels = (np.where(known, rows[:, CELL], 0.0) // N_BINS) % 2
        for block, (place, tables) in enumerate(zip(layout.blocks, self.tables, strict=True)):
            inside = rows[:, LEVEL] == block - 1 if block else np.ones(len(rows), dtype=bool)
            column = place.start
            if layout.counted(block):
                out[:, column] = inside
                column += 1
            for part in range(len(layout.parts)):
                out[:, column + part] = np.where(inside, rows[:, FIRST_PART + part] - 0.5, 0.0)
            column += len(layout.parts)
            for table, width in zip(
                tables, ("auc" in layout.metrics, 2 * ("calibration" in layout.metrics)), strict=True
            ):
                if table is not None:
                    values = table(labels, rows[:, MARGIN])
                    out[:, column : column + width] = np.where((inside & known)[:, None], values, 0.0)
                column += width
        return np.asarray(out / self.scales)
