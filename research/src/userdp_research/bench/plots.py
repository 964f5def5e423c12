"""Pictures of results as SVG: the same results give the same file; markers and dashes do where colour does not."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from userdp.data.tables import whole_file
from userdp.report.pictures import COLOURS
from userdp_research.bench.cells import Record
from userdp_research.bench.references import worst_case_rate
from userdp_research.bench.solving import NON_PRIVATE, ORACLE, entries
from userdp_research.bench.table import NON_SMOOTH

_FLOOR = 1e-6  # excess below this, or below 0, is drawn here
_HEIGHT = "loss above no privacy, all users"
_FACTOR = 3.0  # within which an estimate is of use
_YARD, _RATE = "yard", "lower bound without constants"
_MARKERS = "os^Dv<>pXP*h"
_DASHES = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)))
_PANEL = (4.4, 3.7)
_REFERENCES = {
    ORACLE: ("--", "*"),
    NON_PRIVATE: (":", ""),
    _YARD: ((0, (3, 1, 1, 1, 1, 1)), ""),
    _RATE: ((0, (1, 3)), ""),
}

Line = dict[str, list[tuple[float, float]]]
Draw = Callable[[Any, Sequence[Record]], None]


def plot_records(
    records: Sequence[Record], folder: Path, only: Collection[str] = (), epsilon: float = 1.0
) -> list[Path]:
    """All pictures that these results give, or those of the data sets and scenarios in `only`.

    Pictures of one epsilon are of the one nearest to `epsilon`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    chosen = [r for r in records if not only or _name(r) in only]
    real, grid = ([r for r in chosen if r["settings"]["command"] == name] for name in ("real", "grid"))
    drawn = []
    for name in dict.fromkeys(map(_name, real)):
        mine = [r for r in real if _name(r) == name and "excess" in r["result"]]
        drawn += _real_pictures(mine, folder, name, epsilon) if mine else []
    measured = [r for r in grid if "excess" in r["result"]]
    families = {title: part for title, part in _families(_nearest(measured, epsilon)).items() if len(_rows(part)) > 1}
    if families:
        drawn.append(_risk_against_rows(families, folder / "grid-rows.svg", epsilon))
    drawn += _calibration(measured, folder / "grid-calibration.svg", epsilon)
    drawn += _estimates([*real, *grid], folder / "estimates.svg")
    slopes = [r for r in records if r["settings"].get("part") == "slopes" and r["settings"]["against"] == "n"]
    if any(r["result"].get("gradients") for r in slopes):
        drawn.append(gradients_against_users(slopes, folder / "slopes.svg"))
    return drawn


def _real_pictures(records: Sequence[Record], folder: Path, name: str, epsilon: float) -> list[Path]:
    """Of one data set; with several numbers of rows per user each has its own pictures, and there is one over all."""
    drawn, rows = [], _rows(records)
    for n_rows in rows:
        mine = [r for r in records if _rows_of(r) == n_rows]
        stem = name if len(rows) == 1 else f"{name}-{n_rows}-rows"
        drawn += [risk_against_epsilon(mine, folder / f"{stem}-epsilon.svg")]
        drawn += [risk_against_passes(mine, folder / f"{stem}-passes.svg")]
    if len(rows) > 1:
        nearest = _nearest(_least_limited(records), epsilon)
        drawn.append(_risk_against_rows(_by_users(nearest), folder / f"{name}-rows.svg", epsilon))
    return drawn + _calibration(_least_limited(records), folder / f"{name}-calibration.svg", epsilon)


def _name(record: Record) -> str:
    """Of the data set or scenario; of the table there is none."""
    data = record["settings"].get("data") or record["settings"].get("scenario") or {}
    return str(data.get("name", ""))


def _rows_of(record: Record) -> int:
    data = record["settings"].get("data")
    return int(data["cap"] if data else record["result"]["rows"])


def _rows(records: Sequence[Record]) -> list[int]:
    return sorted({_rows_of(r) for r in records})


def _nearest(records: Sequence[Record], epsilon: float) -> list[Record]:
    """Records at the epsilon nearest to this one, and those without privacy."""
    tried = {r["settings"]["epsilon"] for r in records} - {None}
    if not tried:
        return list(records)
    nearest = min(tried, key=lambda e: abs(math.log(e / epsilon)))
    return [r for r in records if r["settings"]["epsilon"] in (None, nearest)]


def _families(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Scenarios that differ in rows per user alone, by number of users."""
    found: dict[str, dict[str, list[Record]]] = {}
    for r in records:
        scenario = r["settings"]["scenario"]
        if len(scenario["sizes"]) == 1:
            kind = {key: value for key, value in scenario.items() if key not in ("name", "sizes", "cap")}
            title = f"{scenario['loss']}, {r['result']['n_weights']} weights, {r['settings']['users']:,} users"
            found.setdefault(title, {}).setdefault(str(kind), []).append(r)
    return {title: max(kinds.values(), key=lambda part: len(_rows(part))) for title, kinds in found.items()}


def _risk_against_rows(found: dict[str, list[Record]], path: Path, epsilon: float) -> Path:
    """Excess against rows per user, beside the yardstick: one panel per number of users."""

    def lines(panel: Sequence[Record]) -> Line:
        drawn = _lines(panel, _rows_of, references=True)
        yards = {(float(_rows_of(r)), max(_FLOOR, r["result"]["yard"])) for r in panel if r["settings"]["epsilon"]}
        return drawn | {_YARD: sorted(yards)} | _rate(panel, _rows_of)

    label = f"rows per user, at the epsilon nearest {epsilon:g}"
    return _panels(found, lambda axes, part: _log_lines(axes, lines(part)), label, "excess", path)


def _calibration(records: Sequence[Record], path: Path, epsilon: float) -> list[Path]:
    """Predicted against observed in bins of equal weight: one panel per data set or scenario and number of rows."""
    found: dict[str, list[Record]] = {}
    for r in _nearest(records, epsilon):
        if r["result"].get("bins"):
            found.setdefault(f"{_name(r)}, {_rows_of(r)} rows per user", []).append(r)

    def draw(axes: Any, panel: Sequence[Record]) -> None:
        ends = [value for r in panel for pair in r["result"]["bins"] for value in pair]
        axes.plot([min(ends), max(ends)], [min(ends), max(ends)], color="black", linewidth=0.6, alpha=0.6)
        for place, r in enumerate(panel):
            label = f"{r['settings']['solver']}, {r['result']['n_users']:,} users"
            axes.plot(*zip(*r["result"]["bins"], strict=True), label=label, **_numbered_style(place))
        axes.legend(fontsize=7, frameon=False)

    label = f"mean prediction of a bin, at the epsilon nearest {epsilon:g}"
    return [_panels(found, draw, label, "mean target", path)] if found else []


def _estimates(records: Sequence[Record], path: Path) -> list[Path]:
    """What plans had estimated against what was measured, with the factor within which an estimate is of use."""
    told = [r for r in records if "excess" in r["result"] and r["result"].get("estimate")]

    def draw(axes: Any, panel: Sequence[Record]) -> None:
        for solver in dict.fromkeys(r["settings"]["solver"] for r in panel):
            mine = [(_excess(r), r["result"]["estimate"]) for r in panel if r["settings"]["solver"] == solver]
            axes.plot(*zip(*mine, strict=True), label=solver, **_line_style(solver) | {"linestyle": ""})
        axes.set(xscale="log", yscale="log")
        ends = [min(map(_excess, panel)), max(map(_excess, panel))]
        for factor, style in ((1.0, "-"), (_FACTOR, ":"), (1 / _FACTOR, ":")):
            axes.plot(ends, [factor * end for end in ends], color="black", linewidth=0.8, linestyle=style)
        axes.legend(fontsize=7, frameon=False)

    titles = {"real": "real users", "grid": "generated users"}
    found = {title: [r for r in told if r["settings"]["command"] == name] for name, title in titles.items()}
    found = {title: part for title, part in found.items() if part}
    return [_panels(found, draw, "measured excess", "the plan's estimate", path)] if found else []


def risk_against_epsilon(records: Sequence[Record], path: Path) -> Path:
    """Excess log loss within as many passes as were tried with each solver: one panel per number of users."""
    chosen = _least_limited(records)
    epsilons = sorted({r["settings"]["epsilon"] for r in chosen} - {None})

    def lines(panel: Sequence[Record]) -> Line:
        found = _lines(panel, lambda r: r["settings"]["epsilon"])
        for r in panel:
            if r["settings"]["solver"] == NON_PRIVATE and epsilons:  # the same at every epsilon
                found[NON_PRIVATE] = [(epsilon, _excess(r)) for epsilon in (epsilons[0], epsilons[-1])]
        return found | _rate(panel, lambda r: r["settings"]["epsilon"])

    return _panels(_by_users(chosen), lambda a, p: _log_lines(a, lines(p)), "epsilon", _HEIGHT, path)


def _least_limited(records: Sequence[Record]) -> list[Record]:
    """Of records that differ in their limit on passes alone, the one with the highest, or with none."""

    def limit(record: Record) -> float:
        passes = record["settings"]["passes"]
        return math.inf if passes is None else float(passes)

    best: dict[tuple[Any, ...], Record] = {}
    for record in sorted(records, key=limit):
        best[(_rows_of(record), *(record["settings"][key] for key in ("users", "solver", "epsilon")))] = record
    return list(best.values())


def risk_against_passes(records: Sequence[Record], path: Path) -> Path:
    """Excess log loss against the passes that were made, at the epsilon nearest 1: one panel per number of users."""
    epsilons = sorted({r["settings"]["epsilon"] for r in records} - {None}, key=lambda e: abs(math.log(e)))
    chosen = [r for r in records if epsilons and r["settings"]["epsilon"] == epsilons[0]]
    label = f"passes over the users, at epsilon {epsilons[0]:g}" if epsilons else "passes over the users"

    def draw(axes: Any, panel: Sequence[Record]) -> None:
        _log_lines(axes, _lines(panel, lambda r: r["result"]["passes"]))

    return _panels(_by_users(chosen), draw, label, _HEIGHT, path)


def gradients_against_users(records: Sequence[Record], path: Path) -> Path:
    """Gradients of plans, with the fitted exponent of each: one panel per kind of loss."""
    found = {}
    for kind in dict.fromkeys(r["settings"]["loss"] for r in records):
        name = "a non-smooth loss" if kind == NON_SMOOTH else "a smooth loss"
        found[f"{name}, as many weights as users"] = [r for r in records if r["settings"]["loss"] == kind]

    def lines(panel: Sequence[Record]) -> Line:
        drawn: Line = {}
        for r in panel:
            result = r["result"]
            points = list(zip(result.get("sizes", ()), result.get("gradients", ()), strict=True))
            exponent = result.get("exponent")
            words = "" if exponent is None else f", n^{exponent:.2f}"
            drawn[r["settings"]["solver"] + words] = points
        return drawn

    return _panels(found, lambda axes, part: _log_lines(axes, lines(part)), "users n", "gradients", path)


def _excess(record: Record) -> float:
    return max(_FLOOR, float(record["result"]["excess"]["mean"]))


def _by_users(records: Sequence[Record]) -> dict[str, list[Record]]:
    found: dict[int, list[Record]] = {}
    for r in records:
        found.setdefault(r["result"]["n_users"], []).append(r)
    return {f"{n:,} users": found[n] for n in sorted(found)}


def _lines(records: Sequence[Record], across: Callable[[Record], float | None], references: bool = False) -> Line:
    """Points of each solver, from left to right; with `references` also of the model without privacy."""
    found: dict[str, set[tuple[float, float]]] = {}
    for r in records:
        if references or r["settings"]["solver"] != NON_PRIVATE:
            found.setdefault(r["settings"]["solver"], set()).add((float(across(r) or 0), _excess(r)))
    return {solver: sorted(points) for solver, points in found.items()}


def _rate(records: Sequence[Record], across: Callable[[Record], float]) -> Line:
    """The lower bound's rate for L R = 1, at the sizes of private records."""
    points = set()
    for r in records:
        epsilon, result = r["settings"]["epsilon"], r["result"]
        if epsilon:
            rate = worst_case_rate(result["n_users"], _rows_of(r), result["n_weights"], epsilon)
            points.add((float(across(r)), rate))
    return {_RATE: sorted(points)}


def _panels(found: dict[str, list[Record]], draw: Draw, x: str, y: str, path: Path) -> Path:
    """One panel per title, two in a row, drawn by `draw`."""
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


def _log_lines(axes: Any, lines: Line) -> None:
    """Lines on log-log axes, each named at its end."""
    shown = {name: points for name, points in lines.items() if points}
    for name, points in shown.items():
        axes.plot(*zip(*points, strict=True), **_line_style(name))
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


def _line_style(name: str) -> dict[str, Any]:
    """The same for a solver in every picture; references are black."""
    solver = name.partition(",")[0]
    if solver in _REFERENCES:
        style, marker = _REFERENCES[solver]
        return {"color": "black", "linestyle": style, "marker": marker, "linewidth": 1.1}
    return _numbered_style(entries().index(solver) if solver in entries() else len(entries()))


def _numbered_style(place: int) -> dict[str, Any]:
    """Colour, dashes and marker of the line of this number."""
    return {
        "color": COLOURS[place % len(COLOURS)],
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
        style = _line_style(name)
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
