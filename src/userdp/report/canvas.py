"""What pictures are drawn on: SVG by matplotlib, with text as text, in colours that follow the page's light or dark.

Pictures are 360 units wide with text of 11 units, so that they can be read on a phone. Blue and orange, shapes and
labels tell things apart, so that colour-blind people see as much.
"""

from __future__ import annotations

import html
import io
import math
import re
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

WIDTH, WIDE = 360.0, 720.0
TEXT = 11
# Stand-ins in the drawing for the page's colours.
INK, MUTED, LINE, BLUE, ORANGE = (f"#01010{k}" for k in range(2, 7))
_ON_PAGE = {INK: "--ink", MUTED: "--muted", LINE: "--line", BLUE: "--blue", ORANGE: "--orange"}
_LETTER = 6.6  # width of a letter
_DROPPED = re.compile(r"<\?xml.*?\?>|<!DOCTYPE.*?>|<metadata>.*?</metadata>|<style.*?</style>", re.DOTALL)
_drawing = threading.Lock()


class Canvas:
    """Axes with fixed margins, in units of the drawing, and how they become an element of the page."""

    def __init__(self, name: str, size: tuple[float, float], margins: tuple[float, float, float, float]) -> None:
        (width, height), (left, right, top, bottom) = size, margins
        self._name = name
        self.figure = Figure(figsize=(width / 72, height / 72), dpi=72)
        across, up = (width - left - right) / width, (height - top - bottom) / height
        self.axes: Any = self.figure.add_axes((left / width, bottom / height, across, up))
        for side in ("top", "right", "left"):
            self.axes.spines[side].set_visible(False)
        self.axes.spines["bottom"].set_color(LINE)
        self.axes.tick_params(which="both", labelcolor=INK, length=0, labelsize=TEXT)
        self.axes.set_axisbelow(True)

    def write(self, x: float, y: float, words: str, **style: Any) -> None:
        self.axes.text(x, y, words, **{"color": INK, "size": TEXT, "va": "center", "parse_math": False, **style})

    def svg(self, words: str) -> str:
        """The SVG element: ids of its own, the page's font and colours, words for who cannot see it."""
        out = io.StringIO()
        self.figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
        svg = re.sub(r"<[^>]*>", lambda tag: self._on_page(tag.group()), _DROPPED.sub("", out.getvalue()).strip())
        view = re.search(r'viewBox="([\d. ]*)"', svg)
        assert view is not None
        head = f'<svg viewBox="{view[1]}" role="img" aria-label="{html.escape(words)}">'
        return re.sub(r"<svg\b[^>]*>", lambda _: head, svg, count=1)

    def _on_page(self, tag: str) -> str:
        """One tag; text between tags, which may come from the record, is left alone."""
        tag = re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{self._name}-", re.sub(r"\s+", " ", tag))
        tag = re.sub(r"font-family: [^;\"]*", "font-family: inherit", tag)
        for colour, variable in _ON_PAGE.items():
            tag = tag.replace(colour, f"var({variable})")
        return tag


@contextmanager
def canvas(
    name: str, height: float, left: float, right: float, top: float, bottom: float, wide: bool = False
) -> Iterator[Canvas]:
    """A canvas, under settings that the SVG writer takes from globals only: they are set meanwhile, by one at a time.

    The same drawing gives the same text. Letters that matplotlib's font lacks are warned about, though the browser's
    fonts have them: not here.
    """
    with _drawing, mpl.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        mpl.rcdefaults()
        mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": name})
        yield Canvas(name, (WIDE if wide else WIDTH, height), (left, right, top, bottom))


def room(labels: Iterable[str]) -> float:
    """The margin that labels need."""
    return 12 + _LETTER * max((len(label) for label in labels), default=0)


def log_axis(axes: Any, values: Sequence[float]) -> float:
    """Whole powers of ten around the values, a few of them labelled; the lowest."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    low = low if low < high else high - 1
    powers = range(low, high + 1, math.ceil((high - low) / 5))
    axes.set_xscale("log")
    axes.set_xticks([10.0**power for power in powers], [f"{10.0**power:g}" for power in powers])
    axes.minorticks_off()
    axes.set_xlim(10.0**low, 10.0**high)
    axes.grid(axis="x", color=LINE, linewidth=0.7)
    return 10.0**low


def few_ticks(axes: Any, low: float, high: float) -> None:
    """A linear axis with four steps or so."""
    span = high - low if high - low > 1e-300 else 1.0
    step = 10.0 ** math.floor(math.log10(span / 2))
    step *= next(times for times in (1, 2, 5, 10) if span / (times * step) <= 4)
    ticks = [k * step for k in range(math.ceil(low / step), math.floor(high / step) + 1)]
    axes.set_xticks(ticks, [f"{tick:g}".replace("-", "−") for tick in ticks])
    axes.set_xlim(low - 0.02 * span, high + 0.02 * span)
    axes.grid(axis="x", color=LINE, linewidth=0.7)


def align_ends(axes: Any) -> None:
    """The first label begins at its tick, the last ends there."""
    labels = axes.get_xticklabels()
    labels[0].set_horizontalalignment("left")
    labels[-1].set_horizontalalignment("right")
