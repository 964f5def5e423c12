"""The report's pictures: functions of numbers of the record that give an SVG element, or "" for nothing.

Drawn by matplotlib, with text as text, in colours that follow the page's light or dark. They are 360 units wide with
text of 11 units, to be read on a phone. Blue and orange, shapes and labels distinguish things, for the colour-blind.
"""

from __future__ import annotations

import html
import io
import math
import re
import statistics
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from userdp.report.record import number, shorten
from userdp.report.wording import percent_at_most

MOST_BARS = 30
MOST_NARROW = 10  # outputs of a heat map that a phone has room for
_WIDTH, _WIDE = 360.0, 720.0
_TEXT = 11
# Stand-ins in the drawing for the page's colours.
_INK, _MUTED, _LINE, _BLUE, _ORANGE = (f"#01010{k}" for k in range(2, 7))
_ON_PAGE = {_INK: "--ink", _MUTED: "--muted", _LINE: "--line", _BLUE: "--blue", _ORANGE: "--orange"}
_LETTER = 6.6  # width of a letter
_DROPPED = re.compile(r"<\?xml.*?\?>|<!DOCTYPE.*?>|<metadata>.*?</metadata>|<style.*?</style>", re.DOTALL)
_BAR = 17.0  # height of a coefficient's row
_LABEL = 20  # letters of a label
LONG = 5  # an interval that is as many times as long as the median one may leave the picture
_drawing = threading.Lock()


def attack_picture(privacy: Mapping[str, Any]) -> str:
    """How often any attack can be right about one user, for how often it is wrong.

    (epsilon, delta) alone: right <= e^eps wrong + delta, and the same for what is not suspected: two lines that meet
    where both errors are equally likely. The noise itself, where it is known: the polygon of its trade-off.
    """
    delta, found, alone = privacy["delta"], privacy["tradeoff"], privacy["alone"]
    best: float = privacy["best"]
    with _canvas("attack", 290, left=58, right=18, top=12, bottom=48) as picture:
        axes = picture.axes
        wrong, right = [0.0, 1 - alone, 1 - delta, 1.0], [delta, alone, 1.0, 1.0]
        if found is not None:
            axes.plot(wrong, right, color=_ORANGE, linewidth=1.4, linestyle=(0, (2, 2)))
            picture.mark(1 - alone, alone, "D", _ORANGE, 6)
            wrong = [*(alarm for alarm, _ in found.points), 1.0]
            right = [*(1 - miss for _, miss in found.points), 1.0]
        axes.fill_between(wrong, right, wrong, color=_BLUE, alpha=0.16, linewidth=0)
        axes.plot(wrong, right, color=_BLUE, linewidth=2)
        axes.plot([0, 1], [0, 1], color=_MUTED, linewidth=1.2, linestyle=(0, (4, 3)))
        picture.mark(1 - best, best, "o", _BLUE, 8)
        picture.mark(0.36, 0.26, "o", _BLUE)  # numbers below the diagonal, where there is room
        picture.write(
            0.4, 0.26, f"{percent_at_most(best)} right{' with this noise' * (found is not None)}", weight="bold"
        )
        if found is not None:
            picture.mark(0.36, 0.16, "D", _ORANGE)
            picture.write(0.4, 0.16, f"{percent_at_most(alone)} right by (ε, δ) alone")
        picture.write(0.4, 0.16 if found is None else 0.06, "at even odds", color=_MUTED)
        picture.write(0.52, 0.42, "blind guessing", color=_MUTED)
        ticks = (0, 0.25, 0.5, 0.75, 1)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_ticks(ticks, [f"{tick:.0%}" for tick in ticks])
            axis.set_tick_params(pad=6)
        axes.set(xlim=(0, 1), ylim=(0, 1))
        axes.grid(color=_LINE, linewidth=0.7)
        axes.set_xlabel("chance of a wrong suspicion", color=_INK, labelpad=4, size=_TEXT)
        axes.set_ylabel("chance of a right one", color=_INK, labelpad=4, size=_TEXT)
        more = "" if found is None else f" Epsilon and delta alone would allow {percent_at_most(alone)}."
        return picture.svg(f"What any attack can reach: right {percent_at_most(best)} of the time at even odds.{more}")


def bars_picture(
    names: Sequence[str],
    values: Sequence[float],
    errors: Sequence[float] | None = None,
    middles: Sequence[float] | None = None,
) -> str:
    """One output's coefficients as bars, in the order given; with error bars about the `middles`, if there are any.

    The axis ends at what `bars_range` says.
    """
    labels = [shorten(name, _LABEL) for name in names]
    left, right = _room(labels), 56.0
    with _canvas("coefficients", _BAR * len(names) + 28, left, right, top=4, bottom=22) as picture:
        axes, places = picture.axes, range(len(names))
        lengths = [min(max(value, -1e300), 1e300) if math.isfinite(value) else 0.0 for value in values]
        axes.barh(places, lengths, height=0.66, color=[_BLUE if value >= 0 else _ORANGE for value in lengths])
        axes.axvline(0, color=_MUTED, linewidth=1)
        centres = lengths if middles is None else [min(max(middle, -1e300), 1e300) for middle in middles]
        reach = [0.0] * len(lengths) if errors is None else [min(error, 1e300) for error in errors]
        if errors is not None:
            axes.errorbar(centres, places, xerr=reach, fmt="none", ecolor=_INK, elinewidth=1, capsize=2)
        for place, value in enumerate(values):
            edge = 1 + (right - 4) / (_WIDTH - left - right)
            picture.write(edge, place, number(value, 3), ha="right", size=10, transform=axes.get_yaxis_transform())
        axes.set_yticks(places, labels, parse_math=False)
        axes.set_ylim(len(names) - 0.4, -0.6)
        low, high, _ = bars_range(centres, reach)
        span = high - low if high - low > 1e-300 else 1.0
        axes.set_xlim(low - 0.02 * span, high + 0.02 * span)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.xaxis.set_major_formatter(lambda tick, _: f"{tick:g}".replace("-", "−"))
        axes.grid(axis="x", color=_LINE, linewidth=0.7)
        return picture.svg("The largest coefficients as bars.")


def bars_range(values: Sequence[float], errors: Sequence[float]) -> tuple[float, float, bool]:
    """Both ends of the axis of bars with error bars, and whether some leave it.

    A feature that is always 0 has so wide an interval that, drawn in full, it would hide all others.
    """
    ends = [(value - far, value + far) for value, far in zip(values, errors, strict=True)]
    most = LONG * statistics.median_low(errors)
    inside = [pair for pair, far in zip(ends, errors, strict=True) if far <= most]
    low, high = min(0.0, *(pair[0] for pair in inside)), max(0.0, *(pair[1] for pair in inside))
    return low, high, any(pair[0] < low or pair[1] > high for pair in ends)


def heat_picture(names: Sequence[str], outputs: Sequence[str], table: Sequence[Sequence[float]]) -> str:
    """Coefficients of several outputs: blue above 0, orange below, stronger for larger. `table[k]` is of output k."""
    wide, tilted = len(outputs) > MOST_NARROW, len(outputs) > 3
    labels, heads = [shorten(name, _LABEL) for name in names], [shorten(name, 12) for name in outputs]
    left, right = _room(labels), 46.0 if tilted else 8.0
    top = 0.75 * _room(heads) + 8 if tilted else 20.0
    with _canvas("coefficients", _BAR * len(names) + top + 6, left, right, top, bottom=6, wide=wide) as picture:
        axes, cell = picture.axes, ((_WIDE if wide else _WIDTH) - left - right) / len(outputs)
        numbered = cell >= 38
        largest = max((abs(value) for row in table for value in row if math.isfinite(value)), default=0.0) or 1.0
        for across, row in enumerate(table):
            for down, value in enumerate(row):
                colour, strength = _BLUE if value >= 0 else _ORANGE, 0.0
                if math.isfinite(value):
                    strength = 0.04 + (0.5 if numbered else 0.85) * (abs(value) / largest)
                corner = (across + 0.02, down + 0.04)
                axes.add_patch(Rectangle(corner, 0.96, 0.92, facecolor=colour, alpha=strength, linewidth=0))
                if numbered:
                    picture.write(across + 0.5, down + 0.5, number(value, 2), ha="center", size=9)
        axes.set_yticks([k + 0.5 for k in range(len(names))], labels, parse_math=False)
        places = range(0, len(outputs), math.ceil(14 / cell))
        slant: dict[str, Any] = {"rotation": 45, "ha": "left", "rotation_mode": "anchor"} if tilted else {}
        axes.xaxis.tick_top()
        axes.set_xticks([k + 0.5 for k in places], [heads[k] for k in places], parse_math=False, **slant)
        axes.spines["bottom"].set_visible(False)
        axes.set(xlim=(0, len(outputs)), ylim=(len(names), 0))
        return picture.svg("The largest coefficients of each output as a heat map.")


@dataclass(frozen=True)
class _Canvas:
    """Axes of a figure, and how they become an element of the page."""

    name: str
    figure: Figure
    axes: Any

    def write(self, x: float, y: float, words: str, **style: Any) -> None:
        self.axes.text(x, y, words, **{"color": _INK, "size": _TEXT, "va": "center", "parse_math": False, **style})

    def mark(self, x: float, y: float, marker: str, colour: str, size: float = 7) -> None:
        self.axes.plot([x], [y], marker=marker, markersize=size, color=colour, clip_on=False, zorder=5)

    def svg(self, words: str) -> str:
        """The SVG element: ids of its own, the page's font and colours, words for who cannot see it."""

        def on_page(found: re.Match[str]) -> str:
            """One tag; text between tags, which may come from the record, is left alone."""
            tag = re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{self.name}-", re.sub(r"\s+", " ", found.group()))
            tag = re.sub(r"font-family: [^;\"]*", "font-family: inherit", tag)
            for colour, variable in _ON_PAGE.items():
                tag = tag.replace(colour, f"var({variable})")
            return tag

        out = io.StringIO()
        self.figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
        svg = re.sub(r"<[^>]*>", on_page, _DROPPED.sub("", out.getvalue()).strip())
        view = re.search(r'viewBox="([\d. ]*)"', svg)
        assert view is not None
        head = f'<svg viewBox="{view[1]}" role="img" aria-label="{html.escape(words)}">'
        return re.sub(r"<svg\b[^>]*>", lambda _: head, svg, count=1)


@contextmanager
def _canvas(
    name: str, height: float, left: float, right: float, top: float, bottom: float, wide: bool = False
) -> Iterator[_Canvas]:
    """Axes with fixed margins, in units of the drawing.

    Settings that the SVG writer takes from globals only are set meanwhile, by one at a time. Letters that matplotlib's
    font lacks are warned about, though the browser's fonts have them: not here.
    """
    with _drawing, mpl.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        mpl.rcdefaults()
        mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": name})
        width = _WIDE if wide else _WIDTH
        figure = Figure(figsize=(width / 72, height / 72), dpi=72)
        across, up = (width - left - right) / width, (height - top - bottom) / height
        axes: Any = figure.add_axes((left / width, bottom / height, across, up))
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        axes.spines["bottom"].set_color(_LINE)
        axes.tick_params(which="both", labelcolor=_INK, length=0, labelsize=_TEXT)
        axes.set_axisbelow(True)
        yield _Canvas(name, figure, axes)


def _room(labels: Iterable[str]) -> float:
    """The margin that labels need."""
    return 12 + _LETTER * max((len(label) for label in labels), default=0)
