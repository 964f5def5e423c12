"""Pictures of results as SVG: the same results give the same file; markers and dashes do where colour does not."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from userdp.bench.frames import YARD, Line, line_style, log_lines, numbered_style, panels
from userdp.bench.real import OPEN
from userdp.bench.store import Record
from userdp.bench.theorems import KINKS

_FLOOR = 1e-6  # excess below this, or below 0, is drawn here
_HEIGHT = "loss above no privacy, all users"
_FACTOR = 3.0  # within which an estimate is of use


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
    """Of one data set; with several numbers of rows a user each has its own pictures, and there is one over all."""
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
    """Scenarios that differ in rows a user alone, by number of users."""
    found: dict[str, dict[str, list[Record]]] = {}
    for r in records:
        scenario = r["settings"]["scenario"]
        if len(scenario["sizes"]) == 1:
            kind = {key: value for key, value in scenario.items() if key not in ("name", "sizes", "cap")}
            title = f"{scenario['loss']}, {r['result']['n_weights']} weights, {r['settings']['users']:,} users"
            found.setdefault(title, {}).setdefault(str(kind), []).append(r)
    return {title: max(kinds.values(), key=lambda part: len(_rows(part))) for title, kinds in found.items()}


def _risk_against_rows(found: dict[str, list[Record]], path: Path, epsilon: float) -> Path:
    """Excess against rows a user, beside the yardstick: one panel a number of users."""

    def lines(panel: Sequence[Record]) -> Line:
        drawn = _lines(panel, _rows_of, references=True)
        yards = {(float(_rows_of(r)), max(_FLOOR, r["result"]["yard"])) for r in panel if r["settings"]["epsilon"]}
        return drawn | {YARD: sorted(yards)}

    label = f"rows a user, at the epsilon nearest {epsilon:g}"
    return panels(found, lambda axes, part: log_lines(axes, lines(part)), label, "excess", path)


def _calibration(records: Sequence[Record], path: Path, epsilon: float) -> list[Path]:
    """Predicted against observed in bins of equal weight: one panel a data set or scenario and number of rows."""
    found: dict[str, list[Record]] = {}
    for r in _nearest(records, epsilon):
        if r["result"].get("bins"):
            found.setdefault(f"{_name(r)}, {_rows_of(r)} rows a user", []).append(r)

    def draw(axes: Any, panel: Sequence[Record]) -> None:
        ends = [value for r in panel for pair in r["result"]["bins"] for value in pair]
        axes.plot([min(ends), max(ends)], [min(ends), max(ends)], color="black", linewidth=0.6, alpha=0.6)
        for place, r in enumerate(panel):
            label = f"{r['settings']['solver']}, {r['result']['n_users']:,} users"
            axes.plot(*zip(*r["result"]["bins"], strict=True), label=label, **numbered_style(place))
        axes.legend(fontsize=7, frameon=False)

    label = f"mean prediction of a bin, at the epsilon nearest {epsilon:g}"
    return [panels(found, draw, label, "mean target", path)] if found else []


def _estimates(records: Sequence[Record], path: Path) -> list[Path]:
    """What plans had estimated against what was measured, with the factor within which an estimate is of use."""
    told = [r for r in records if "excess" in r["result"] and r["result"].get("estimate")]

    def draw(axes: Any, panel: Sequence[Record]) -> None:
        for solver in dict.fromkeys(r["settings"]["solver"] for r in panel):
            mine = [(_excess(r), r["result"]["estimate"]) for r in panel if r["settings"]["solver"] == solver]
            axes.plot(*zip(*mine, strict=True), label=solver, **line_style(solver) | {"linestyle": ""})
        axes.set(xscale="log", yscale="log")
        ends = [min(map(_excess, panel)), max(map(_excess, panel))]
        for factor, style in ((1.0, "-"), (_FACTOR, ":"), (1 / _FACTOR, ":")):
            axes.plot(ends, [factor * end for end in ends], color="black", linewidth=0.8, linestyle=style)
        axes.legend(fontsize=7, frameon=False)

    titles = {"real": "real users", "grid": "generated users"}
    found = {title: [r for r in told if r["settings"]["command"] == name] for name, title in titles.items()}
    found = {title: part for title, part in found.items() if part}
    return [panels(found, draw, "measured excess", "the plan's estimate", path)] if found else []


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

    return panels(_by_users(chosen), lambda a, p: log_lines(a, lines(p)), "epsilon", _HEIGHT, path)


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
    """Excess log loss against the passes that were made, at the epsilon nearest 1: one panel a number of users."""
    epsilons = sorted({r["settings"]["epsilon"] for r in records} - {None}, key=lambda e: abs(math.log(e)))
    chosen = [r for r in records if epsilons and r["settings"]["epsilon"] == epsilons[0]]
    label = f"passes over the users, at epsilon {epsilons[0]:g}" if epsilons else "passes over the users"

    def draw(axes: Any, panel: Sequence[Record]) -> None:
        log_lines(axes, _lines(panel, lambda r: r["result"]["passes"]))

    return panels(_by_users(chosen), draw, label, _HEIGHT, path)


def gradients_against_users(records: Sequence[Record], path: Path) -> Path:
    """Gradients of plans, with the fitted exponent of each: one panel a kind of loss."""
    found = {}
    for kind in dict.fromkeys(r["settings"]["loss"] for r in records):
        name = "a loss with kinks" if kind == KINKS else "a smooth loss"
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

    return panels(found, lambda axes, part: log_lines(axes, lines(part)), "users n", "gradients", path)


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
        if references or r["settings"]["solver"] != OPEN:
            found.setdefault(r["settings"]["solver"], set()).add((float(across(r) or 0), _excess(r)))
    return {solver: sorted(points) for solver, points in found.items()}
