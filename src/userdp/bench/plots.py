"""Pictures of results as SVG: the same results give the same file; markers and dashes do where colour does not."""

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
from userdp.bench.theorems import KINKS
from userdp.whole_files import whole_file

_COLOURS = ("#0b6e99", "#c2571a", "#4c7a34", "#7a4c8c", "#8c6d1f", "#444444")
_MARKERS = "os^Dv<>pXP*h"
_DASHES = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)))
_FLOOR = 1e-5  # excess below this, or below 0, is drawn here
_PANEL = (4.4, 3.7)

Line = dict[str, list[tuple[float, float]]]


def plot_records(records: Sequence[Record], folder: Path) -> list[Path]:
    """All pictures that these results give."""
    folder.mkdir(parents=True, exist_ok=True)
    real = [r for r in records if r["settings"]["command"] == "real" and "excess" in r["result"]]
    drawn = []
    for name in dict.fromkeys(r["settings"]["data"]["name"] for r in real):
        mine = [r for r in real if r["settings"]["data"]["name"] == name]
        drawn += [risk_against_epsilon(mine, folder / f"{name}-epsilon.svg")]
        drawn += [risk_against_passes(mine, folder / f"{name}-passes.svg")]
    slopes = [r for r in records if r["settings"].get("part") == "slopes" and r["settings"]["against"] == "n"]
    if any(r["result"].get("gradients") for r in slopes):
        drawn.append(gradients_against_users(slopes, folder / "slopes.svg"))
    return drawn


def risk_against_epsilon(records: Sequence[Record], path: Path) -> Path:
    """Excess log loss within as many passes as were tried with each solver: one panel a number of users."""
    chosen = _least_limited(records)
    epsilons = sorted({r["settings"]["epsilon"] for r in chosen} - {None})

    def lines(panel: Sequence[Record]) -> Line:
        found = _lines(panel, lambda r: r["settings"]["epsilon"])
        for r in panel:
            if r["settings"]["solver"] == OPEN and epsilons:  # the same at every epsilon
                found[OPEN] = [(epsilon, _excess(r)) for epsilon in (epsilons[0], epsilons[-1])]
        return found

    return _panels(_by_users(chosen), lines, "epsilon", "log loss above no privacy, all users", path)


def _least_limited(records: Sequence[Record]) -> list[Record]:
    """Of records that differ in their limit on passes alone, the one with the highest, or with none."""

    def limit(record: Record) -> float:
        passes = record["settings"]["passes"]
        return math.inf if passes is None else float(passes)

    best: dict[tuple[Any, ...], Record] = {}
    for record in sorted(records, key=limit):
        best[tuple(record["settings"][key] for key in ("users", "solver", "epsilon"))] = record
    return list(best.values())


def risk_against_passes(records: Sequence[Record], path: Path) -> Path:
    """Excess log loss against the passes that were made, at the epsilon nearest 1: one panel a number of users."""
    epsilons = sorted({r["settings"]["epsilon"] for r in records} - {None}, key=lambda e: abs(math.log(e)))
    chosen = [r for r in records if epsilons and r["settings"]["epsilon"] == epsilons[0]]
    label = f"passes over the users, at epsilon {epsilons[0]:g}" if epsilons else "passes over the users"
    height = "log loss above no privacy, all users"
    return _panels(_by_users(chosen), lambda p: _lines(p, lambda r: r["result"]["passes"]), label, height, path)


def gradients_against_users(records: Sequence[Record], path: Path) -> Path:
    """Gradients of plans, with the fitted exponent of each: one panel a kind of loss."""
    panels = {}
    for kind in dict.fromkeys(r["settings"]["loss"] for r in records):
        name = "a loss with kinks" if kind == KINKS else "a smooth loss"
        panels[f"{name}, as many weights as users"] = [r for r in records if r["settings"]["loss"] == kind]

    def lines(panel: Sequence[Record]) -> Line:
        found: Line = {}
        for r in panel:
            result = r["result"]
            points = list(zip(result.get("sizes", ()), result.get("gradients", ()), strict=True))
            exponent = result.get("exponent")
            words = "" if exponent is None else f", n^{exponent:.2f}"
            found[r["settings"]["solver"] + words] = points
        return found

    return _panels(panels, lines, "users n", "gradients", path)


def _excess(record: Record) -> float:
    return max(_FLOOR, float(record["result"]["excess"]["mean"]))


def _by_users(records: Sequence[Record]) -> dict[str, list[Record]]:
    panels: dict[int, list[Record]] = {}
    for r in records:
        panels.setdefault(r["result"]["n_users"], []).append(r)
    return {f"{n:,} users": panels[n] for n in sorted(panels)}


def _lines(records: Sequence[Record], across: Callable[[Record], float | None]) -> Line:
    """Points of each solver, from left to right."""
    found: dict[str, set[tuple[float, float]]] = {}
    for r in records:
        if r["settings"]["solver"] != OPEN:
            found.setdefault(r["settings"]["solver"], set()).add((float(across(r) or 0), _excess(r)))
    return {solver: sorted(points) for solver, points in found.items()}


def _panels(
    panels: dict[str, list[Record]], lines: Callable[[Sequence[Record]], Line], x: str, y: str, path: Path
) -> Path:
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "userdp", "font.size": 9})
        columns = min(2, max(1, len(panels)))
        rows = max(1, math.ceil(len(panels) / columns))
        figure = Figure(figsize=(columns * _PANEL[0] + 1.2 * columns, rows * _PANEL[1]), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes, (title, records) in zip(grid, panels.items(), strict=False):
            _panel(axes, lines(records))
            axes.set_title(title, fontsize=10)
            axes.set(xlabel=x, ylabel=y)
        for axes in grid[len(panels) :]:
            axes.set_visible(False)
        with whole_file(path) as new:
            figure.savefig(new, format="svg", metadata={"Date": None, "Creator": None})
    return path


def _panel(axes: Any, lines: Line) -> None:
    shown = {name: points for name, points in lines.items() if points}
    for name, points in shown.items():
        axes.plot(*zip(*points, strict=True), **_style(name))
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


def _style(name: str) -> dict[str, Any]:
    """The same for a solver in every picture; references are black."""
    solver = name.partition(",")[0]
    if solver in (ORACLE, OPEN):
        style = "--" if solver == ORACLE else ":"
        return {"color": "black", "linestyle": style, "marker": "*" if solver == ORACLE else "", "linewidth": 1.1}
    place = entries().index(solver) if solver in entries() else len(entries())
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
        style = _style(name)
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
