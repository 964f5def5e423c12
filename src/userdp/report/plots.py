"""The report's pictures. Each is a function of numbers of the record and gives an SVG element, or "" for nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.patches import Rectangle

from userdp.privacy.guarantee import right_guess
from userdp.report.canvas import (
    BLUE,
    INK,
    LINE,
    MUTED,
    ORANGE,
    TEXT,
    WIDE,
    WIDTH,
    Canvas,
    align_ends,
    canvas,
    few_ticks,
    log_axis,
    room,
)
from userdp.report.record import number, positive, real, shorten
from userdp.report.wording import best_guess, column, percent_at_most

MOST_BARS = 30
MOST_ROWS = 20
MOST_NARROW = 10  # outputs of a heat map that a phone has room for
_BAR = 17.0  # height of a coefficient's row
_LABEL = 20  # letters of a label
_LEVELS = {"predicted": (BLUE, "o"), "bound": (ORANGE, "D"), "estimate": (ORANGE, "D")}


def attack_picture(privacy: Mapping[str, Any]) -> str:
    """How often any attack can be right about one person, for how often it is wrong.

    (epsilon, delta) alone: right <= e^eps wrong + delta, and the same for what is not suspected: two lines that meet
    where both errors are equally likely. The noise itself, where it is known: the polygon of its trade-off.
    """
    delta, found, best = privacy["delta"], privacy["tradeoff"], best_guess(privacy)
    alone = right_guess(privacy["epsilon"], delta)
    with canvas("attack", 290, left=58, right=18, top=12, bottom=48) as picture:
        axes = picture.axes
        wrong, right = [0.0, 1 - alone, 1 - delta, 1.0], [delta, alone, 1.0, 1.0]
        if found is not None:
            axes.plot(wrong, right, color=ORANGE, linewidth=1.4, linestyle=(0, (2, 2)))
            axes.plot([1 - alone], [alone], marker="D", markersize=6, color=ORANGE, clip_on=False, zorder=4)
            wrong = [*(alarm for alarm, _ in found.points), 1.0]
            right = [*(1 - miss for _, miss in found.points), 1.0]
        axes.fill_between(wrong, right, wrong, color=BLUE, alpha=0.16, linewidth=0)
        axes.plot(wrong, right, color=BLUE, linewidth=2)
        axes.plot([0, 1], [0, 1], color=MUTED, linewidth=1.2, linestyle=(0, (4, 3)))
        axes.plot([1 - best], [best], marker="o", markersize=8, color=BLUE, clip_on=False, zorder=5)
        if found is None:
            corner = best < 0.8  # there is room above the curve
            if corner:
                axes.plot([1 - best, 0.16], [best, 0.89], color=BLUE, linewidth=0.8)
            at = (0.03, 0.93) if corner else (1.08 - best, best - 0.09)
            picture.write(*at, f"{percent_at_most(best)} right, at even odds", weight="bold")
        else:
            _both_numbers(picture, best, alone)
        picture.write(0.52, 0.42, "blind guessing", color=MUTED)
        ticks = (0, 0.25, 0.5, 0.75, 1)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_ticks(ticks, [f"{tick:.0%}" for tick in ticks])
            axis.set_tick_params(pad=6)
        axes.set(xlim=(0, 1), ylim=(0, 1))
        axes.grid(color=LINE, linewidth=0.7)
        axes.set_xlabel("chance of a wrong suspicion", color=INK, labelpad=4, size=TEXT)
        axes.set_ylabel("chance of a right one", color=INK, labelpad=4, size=TEXT)
        more = "" if found is None else f" Epsilon and delta alone would allow {percent_at_most(alone)}."
        return picture.svg(f"What any attack can reach: right {percent_at_most(best)} of the time at even odds.{more}")


def _both_numbers(picture: Canvas, best: float, alone: float) -> None:
    """Right guesses with this noise and with (epsilon, delta) alone, below the diagonal, where there is room."""
    axes = picture.axes
    for place, (chance, colour, marker, words) in enumerate(
        ((best, BLUE, "o", "with this noise"), (alone, ORANGE, "D", "by (ε, δ) alone"))
    ):
        height = 0.26 - 0.1 * place
        axes.plot([0.36], [height], marker=marker, markersize=7, color=colour)
        picture.write(0.4, height, f"{percent_at_most(chance)} right {words}", weight="normal" if place else "bold")
    picture.write(0.4, 0.06, "at even odds", color=MUTED)


def budget_picture(steps: Sequence[Mapping[str, Any]]) -> str:
    """Each step's fraction of the budget."""
    rows = [(shorten(step.get("step", ""), _LABEL), real(step.get("share"))) for step in steps[:MOST_ROWS]]
    if not rows:
        return ""
    names = [name for name, _ in rows]
    with canvas("budget", 24 * len(rows) + 28, left=room(names), right=46, top=6, bottom=22) as picture:
        axes, places = picture.axes, range(len(rows))
        axes.barh(places, [1.0] * len(rows), height=0.62, color=LINE, alpha=0.45)
        lengths = [min(1.0, max(0.0, fraction)) if math.isfinite(fraction) else 0.0 for _, fraction in rows]
        axes.barh(places, lengths, height=0.62, color=BLUE)
        for place, (_, fraction) in enumerate(rows):
            words = f"{fraction:.0%}" if 0 <= fraction < 10 else number(fraction, 2)
            picture.write(1.03, place, words, weight="bold")
        axes.set_yticks(places, names, parse_math=False)
        axes.set_xticks((0, 0.5, 1), ["0", "50%", "100%"])
        align_ends(axes)
        axes.set(xlim=(0, 1), ylim=(len(rows) - 0.4, -0.6))
        return picture.svg("Fraction of the budget that each step takes.")


def ledger_picture(spent: float, total: float) -> str:
    """The data set's lifetime budget: spent and left."""
    fraction = min(1.0, max(0.0, spent / total))
    with canvas("ledger", 52, left=2, right=2, top=4, bottom=22) as picture:
        axes = picture.axes
        axes.barh([0], [1.0], height=0.8, color=LINE, alpha=0.45)
        axes.barh([0], [fraction], height=0.8, color=ORANGE if fraction > 0.9 else BLUE)
        axes.set(xlim=(0, 1), ylim=(-0.5, 0.5), yticks=[])
        axes.set_xticks((0, 1), [f"spent: {number(spent, 3)}", f"lifetime budget: {number(total, 3)}"])
        align_ends(axes)
        return picture.svg(f"Spent epsilon {number(spent, 3)} of {number(total, 3)}.")


def error_picture(levels: Sequence[tuple[str, object]]) -> str:
    """Errors on a log axis, one named point each; what is no positive number is left out."""
    shown = [(name, real(value)) for name, value in levels if positive(value)]
    if not shown:
        return ""
    names = [name for name, _ in shown]
    with canvas("error", 28 * len(shown) + 30, left=room(names), right=58, top=6, bottom=22) as picture:
        axes = picture.axes
        low = log_axis(axes, [value for _, value in shown])
        for place, (name, value) in enumerate(shown):
            colour, marker = _LEVELS.get(name, (MUTED, "s"))
            axes.plot([low, value], [place, place], color=colour, linewidth=3, alpha=0.35, solid_capstyle="butt")
            axes.plot([value], [place], marker=marker, markersize=8, color=colour, clip_on=False, zorder=5)
            picture.write(1.06, place, number(value, 2), weight="bold", transform=axes.get_yaxis_transform())
        axes.set_yticks(range(len(shown)), names)
        axes.set_ylim(len(shown) - 0.4, -0.6)
        return picture.svg("; ".join(f"{name}: {number(value, 2)}" for name, value in shown))


def phases_picture(phases: Sequence[Mapping[str, Any]]) -> str:
    """For each phase: the radius that theory expected, the one that was released, and the noise."""
    marks = (("expected_radius", "o", MUTED, "none"), ("radius", "o", BLUE, BLUE), ("noise_std", "D", ORANGE, ORANGE))
    shown = list(phases)[:MOST_ROWS]
    values = [real(phase.get(key)) for phase in shown for key, *_ in marks if positive(phase.get(key))]
    if not values:
        return ""
    height = 24 * len(shown) + 60
    with canvas("phases", height, left=66, right=18, top=34, bottom=22) as picture:
        axes = picture.axes
        log_axis(axes, values)
        for place in range(len(shown)):
            axes.axhline(place, color=LINE, linewidth=1, zorder=0)
        top: dict[str, Any] = {"transform": picture.figure.transFigure, "clip_on": False}
        for across, (key, marker, colour, fill) in zip((0.03, 0.36, 0.69), marks, strict=True):
            style: dict[str, Any] = {"color": colour, "markerfacecolor": fill, "markeredgewidth": 1.6, "linestyle": ""}
            found = [(real(phase[key]), k) for k, phase in enumerate(shown) if positive(phase.get(key))]
            axes.plot(*zip(*found, strict=True) if found else ([], []), marker, markersize=8, clip_on=False, **style)
            axes.plot([across], [1 - 12 / height], marker, markersize=7, **style, **top)
            picture.write(across + 0.03, 1 - 12 / height, column(key), **top)
        axes.set_yticks(range(len(shown)), [f"phase {k + 1}" for k in range(len(shown))])
        axes.set_ylim(len(shown) - 0.5, -0.5)
        return picture.svg("Expected radius, released radius and noise of each phase.")


def bars_picture(names: Sequence[str], values: Sequence[float]) -> str:
    """One output's coefficients as bars, in the order given."""
    labels = [shorten(name, _LABEL) for name in names]
    left, right = room(labels), 56.0
    with canvas("coefficients", _BAR * len(names) + 28, left, right, top=4, bottom=22) as picture:
        axes, places = picture.axes, range(len(names))
        lengths = [min(max(value, -1e300), 1e300) if math.isfinite(value) else 0.0 for value in values]
        axes.barh(places, lengths, height=0.66, color=[BLUE if value >= 0 else ORANGE for value in lengths])
        axes.axvline(0, color=MUTED, linewidth=1)
        for place, value in enumerate(values):
            edge = 1 + (right - 4) / (WIDTH - left - right)
            picture.write(edge, place, number(value, 3), ha="right", size=10, transform=axes.get_yaxis_transform())
        axes.set_yticks(places, labels, parse_math=False)
        axes.set_ylim(len(names) - 0.4, -0.6)
        few_ticks(axes, min(0.0, *lengths), max(0.0, *lengths))
        return picture.svg("The largest coefficients as bars.")


def heat_picture(names: Sequence[str], outputs: Sequence[str], table: Sequence[Sequence[float]]) -> str:
    """Coefficients of several outputs: blue above 0, orange below, stronger for larger. `table[k]` is of output k."""
    wide, tilted = len(outputs) > MOST_NARROW, len(outputs) > 3
    labels, heads = [shorten(name, _LABEL) for name in names], [shorten(name, 12) for name in outputs]
    left, right = room(labels), 46.0 if tilted else 8.0
    top = 0.75 * room(heads) + 8 if tilted else 20.0
    with canvas("coefficients", _BAR * len(names) + top + 6, left, right, top, bottom=6, wide=wide) as picture:
        axes, cell = picture.axes, ((WIDE if wide else WIDTH) - left - right) / len(outputs)
        _cells(picture, table, numbered=cell >= 38)
        axes.set_yticks([k + 0.5 for k in range(len(names))], labels, parse_math=False)
        places = range(0, len(outputs), math.ceil(14 / cell))
        slant: dict[str, Any] = {"rotation": 45, "ha": "left", "rotation_mode": "anchor"} if tilted else {}
        axes.xaxis.tick_top()
        axes.set_xticks([k + 0.5 for k in places], [heads[k] for k in places], parse_math=False, **slant)
        axes.spines["bottom"].set_visible(False)
        axes.set(xlim=(0, len(outputs)), ylim=(len(names), 0))
        return picture.svg("The largest coefficients of each output as a heat map.")


def _cells(picture: Canvas, table: Sequence[Sequence[float]], numbered: bool) -> None:
    largest = max((abs(value) for row in table for value in row if math.isfinite(value)), default=0.0) or 1.0
    for across, row in enumerate(table):
        for down, value in enumerate(row):
            strength = 0.04 + (0.5 if numbered else 0.85) * (abs(value) / largest) if math.isfinite(value) else 0.0
            colour = BLUE if value >= 0 else ORANGE
            corner = (across + 0.02, down + 0.04)
            picture.axes.add_patch(Rectangle(corner, 0.96, 0.92, facecolor=colour, alpha=strength, linewidth=0))
            if numbered:
                picture.write(across + 0.5, down + 0.5, number(value, 2), ha="center", size=9)
