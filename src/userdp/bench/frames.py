"""How pictures are drawn: panels in a grid, lines named at their ends, SVG that is the same for the same results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from userdp.bench.entries import entries
from userdp.bench.real import OPEN, ORACLE
from userdp.bench.store import Record
from userdp.data.tables import whole_file

YARD = "yard"
_COLOURS = ("#0b6e99", "#c2571a", "#4c7a34", "#7a4c8c", "#8c6d1f", "#444444")
_MARKERS = "os^Dv<>pXP*h"
_DASHES = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)))
_PANEL = (4.4, 3.7)
_REFERENCES = {ORACLE: ("--", "*"), OPEN: (":", ""), YARD: ((0, (3, 1, 1, 1, 1, 1)), "")}

Line = dict[str, list[tuple[float, float]]]
Draw = Callable[[Any, Sequence[Record]], None]


def panels(found: dict[str, list[Record]], draw: Draw, x: str, y: str, path: Path) -> Path:
    """One panel a title, two in a row, drawn by `draw`."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "userdp", "font.size": 9})
        columns = min(2, max(1, len(found)))
        rows = max(1, math.ceil(len(found) / columns))
        figure = Figure(figsize=(columns * _PANEL[0] + 1.2 * columns, rows * _PANEL[1]), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes, (title, records) in zip(grid, found.items(), strict=False):
            draw(axes, records)
            axes.set_title(title, fontsize=10)
            axes.set(xlabel=x, ylabel=y)
        for axes in grid[len(found) :]:
            axes.set_visible(False)
        with whole_file(path) as new:
            figure.savefig(new, format="svg", metadata={"Date": None, "Creator": None})
    return path


def log_lines(axes: Any, lines: Line) -> None:
    """Lines on log-log axes, each named at its end."""
    shown = {name: points for name, points in lines.items() if points}
    for name, points in shown.items():
        axes.plot(*zip(*points, strict=True), **line_style(name))
    axes.set(xscale="log", yscale="log")
    plain = FuncFormatter(lambda value, _: f"{value:,.10g}" if 1e-5 <= value < 1e5 else f"{value:.0e}")
    ticks = sorted({float(f"{x:.1g}") for points in shown.values() for x, _ in points})  # 4.98 of 5 passes: 5
    if 0 < len(ticks) <= 8:
        axes.set_xticks(ticks)
        axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(plain)
    axes.yaxis.set_major_formatter(plain)
    low, high = axes.get_ylim()
    axes.yaxis.set_minor_formatter(plain if high < 15 * low else NullFormatter())
    axes.grid(which="major", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    _name_ends(axes, shown)


def line_style(name: str) -> dict[str, Any]:
    """The same for a solver in every picture; references are black."""
    solver = name.partition(",")[0]
    if solver in _REFERENCES:
        style, marker = _REFERENCES[solver]
        return {"color": "black", "linestyle": style, "marker": marker, "linewidth": 1.1}
    return numbered_style(entries().index(solver) if solver in entries() else len(entries()))


def numbered_style(place: int) -> dict[str, Any]:
    """Colour, dashes and marker of the line of this number."""
    return {
        "color": _COLOURS[place % len(_COLOURS)],
        "linestyle": _DASHES[place % len(_DASHES)],
        "marker": _MARKERS[place % len(_MARKERS)],
        "markersize": 4.5,
        "linewidth": 1.3,
    }


def _name_ends(axes: Any, lines: Line) -> None:
    """Each line's name to the right of the panel, at the height of its end, or as near as others allow."""
    low, high = np.log(axes.get_ylim())
    ends = sorted(((math.log(points[-1][1]) - low) / (high - low), name) for name, points in lines.items())
    heights = spread_out([height for height, _ in ends], gap=0.052)
    right = math.log(axes.get_xlim()[1] / axes.get_xlim()[0])
    for (height, name), at in zip(ends, heights, strict=True):
        style = line_style(name)
        across = math.log(lines[name][-1][0] / axes.get_xlim()[0]) / right
        frame: dict[str, Any] = {"transform": axes.transAxes, "clip_on": False}
        axes.plot([across, 1.02], [height, at], color=style["color"], linewidth=0.4, alpha=0.7, **frame)
        axes.plot([1.05], [at], **style | {"linestyle": ""}, **frame)
        axes.text(1.08, at, name, color=style["color"], va="center", fontsize=8, transform=axes.transAxes)


def spread_out(heights: Iterable[float], gap: float) -> list[float]:
    """Sorted heights, moved as little as needed to be at least `gap` apart, about the same middle.

    >>> [round(height, 2) for height in spread_out([0.5, 0.5, 0.9], 0.1)]
    [0.45, 0.55, 0.9]
    """
    groups: list[tuple[float, int]] = []  # middle, members
    for height in heights:
        middle, members = height, 1
        while groups and middle - groups[-1][0] < gap * (members + groups[-1][1]) / 2:
            other, others = groups.pop()
            middle, members = (middle * members + other * others) / (members + others), members + others
        groups.append((middle, members))
    places = []
    for middle, members in groups:
        places += [middle + gap * (k - (members - 1) / 2) for k in range(members)]
    return places
