"""What a private evaluation gives: scores with intervals. All of it may be shown."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Score:
    """A metric's value and interval, and the deviations of the two parts of its error; NaN where noise hides it."""

    value: float
    low: float
    high: float
    noise_std: float
    sampling_std: float

    def to_dict(self) -> dict[str, float | None]:
        """For JSON, None for what there is not."""
        return {name: value if math.isfinite(value) else None for name, value in vars(self).items()}

    @staticmethod
    def from_dict(record: Mapping[str, float | None]) -> Score:
        """The score that `to_dict` made this of."""
        return Score(**{name: math.nan if value is None else float(value) for name, value in record.items()})


@dataclass(frozen=True)
class CurvePoint:
    """Of the rows whose predicted chance is from `low` to `high`: the fraction that is of class 1, with an interval."""

    low: float
    high: float
    predicted: float
    observed: float
    observed_low: float
    observed_high: float
    fraction: float


@dataclass(frozen=True)
class Scores:
    """All scores of one release, for all users and by declared level.

    curve: of calibration, if that was asked for; confidence: of intervals; weigh: "people" if each user counts once,
    "rows" if each row does; limit: the log loss or error that a row counts at most; clipped: about which fraction of
    rows has a larger log loss, where the histogram shows it; notes: why a score is not released, other than for noise.
    """

    scores: Mapping[str, Score]
    by: Mapping[str, Mapping[str, Score]] = field(default_factory=dict)
    curve: tuple[CurvePoint, ...] = ()
    confidence: float = 0.95
    weigh: str = "people"
    n_users: int = 0
    limit: float | None = None
    clipped: float | None = None
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Score:
        return self.scores[name]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        plain = {name: getattr(self, name) for name in ("confidence", "weigh", "n_users", "limit", "clipped")}
        return {
            "scores": {name: score.to_dict() for name, score in self.scores.items()},
            "by": {
                level: {name: score.to_dict() for name, score in scores.items()} for level, scores in self.by.items()
            },
            "curve": [dict(vars(point)) for point in self.curve],
            **plain,
            "notes": list(self.notes),
        }

    @staticmethod
    def from_dict(record: Mapping[str, Any]) -> Scores:
        """The scores that `to_dict` made this of."""

        def read(scores: Mapping[str, Any]) -> dict[str, Score]:
            return {name: Score.from_dict(score) for name, score in scores.items()}

        return Scores(
            read(record["scores"]),
            {level: read(scores) for level, scores in record["by"].items()},
            tuple(CurvePoint(**point) for point in record["curve"]),
            **{name: record[name] for name in ("confidence", "weigh", "n_users", "limit", "clipped")},
            notes=tuple(record.get("notes", ())),
        )

    def lines(self) -> list[tuple[str, str, str, str, str]]:
        """Name, value, interval, noise and sampling error of each score, in words."""
        found = dict(self.scores)
        found |= {f"{level}: {name}": score for level, scores in self.by.items() for name, score in scores.items()}
        lines = []
        for name, score in found.items():
            value, low, high, noise, sampling = (
                f"{number:.4g}" if math.isfinite(number) else "-" for number in vars(score).values()
            )
            lines.append((name, value, f"{low} to {high}", noise, sampling))
        return lines

    def __str__(self) -> str:
        head = ("score", "value", f"{100 * self.confidence:g}% interval", "noise", "sampling")
        rows = [head, *self.lines()]
        widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
        shown = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]
        return "\n".join([*shown, *self.notes])
