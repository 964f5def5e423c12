"""Draw docs/_static/decisions.svg, which helps to choose epsilon, delta and max_rows_per_user: python docs/decisions.py

The curves of the first panel are computed: how often the best attacker guesses right between two versions of one user's
data, for any mechanism with this epsilon and for Gaussian noise at delta 1e-6.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import norm

import userdp
from userdp.privacy.accounting import gaussian_multiplier
from userdp.privacy.statement import right_guess

PICTURE = Path(__file__).parent / "_static" / "decisions.svg"
DELTA = 1e-6
BANDS = ((0.1, 1, "strong", "#c7e9c0"), (1, 4, "common", "#fee391"), (4, 10, "weak", "#fcbba1"))


def guesses(axes: Axes) -> None:
    """How often an attacker guesses right, against epsilon."""
    epsilons = np.geomspace(0.1, 10, 60)
    worst = [100 * right_guess(epsilon, DELTA) for epsilon in epsilons]
    multipliers = [gaussian_multiplier(userdp.Budget(float(epsilon), DELTA), 1) for epsilon in epsilons]
    gaussian = [100 * norm.cdf(1 / (2 * multiplier)) for multiplier in multipliers]
    for low, high, word, colour in BANDS:
        axes.axvspan(low, high, color=colour, zorder=0)
        axes.text(np.sqrt(low * high), 94, word, ha="center", fontsize=10, weight="bold")
    axes.plot(epsilons, worst, color="black", linestyle="--")
    axes.plot(epsilons, gaussian, color="#08519c", linewidth=2)
    axes.text(0.98, 78, "any mechanism\nwith this epsilon", ha="right", fontsize=9)
    axes.text(9.5, 58, "the default solver", ha="right", fontsize=9, color="#08519c", weight="bold")
    axes.set_xscale("log")
    axes.set_xlim(0.1, 10)
    axes.set_ylim(49, 101)
    axes.set_xticks([0.1, 0.5, 1, 2, 4, 8], ["0.1", "0.5", "1", "2", "4", "8"])
    axes.minorticks_off()
    axes.set_yticks([50, 60, 70, 80, 90, 100], ["50%", "60%", "70%", "80%", "90%", "100%"])
    axes.set_ylabel("attacker guesses right about one user\n(50% is a coin flip)")
    axes.set_title("1. epsilon: start with 1", fontsize=12, weight="bold")


def box(axes: Axes, x: float, y: float, words: str, colour: str = "white") -> None:
    style = {"boxstyle": "round,pad=0.5", "facecolor": colour, "edgecolor": "#555555"}
    axes.text(x, y, words, ha="center", va="center", fontsize=9, bbox=style)


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], word: str = "") -> None:
    axes.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": "#555555"})
    axes.text((start[0] + end[0]) / 2 + 0.02, (start[1] + end[1]) / 2, word, fontsize=9, style="italic")


def delta(axes: Axes) -> None:
    """Questions that lead to a delta."""
    box(axes, 0.5, 0.93, "Does a policy demand\npure differential privacy?")
    box(axes, 0.82, 0.68, "delta=0\nseveral times\nthe noise", "#fcbba1")
    box(axes, 0.4, 0.5, "Does it prescribe a delta?")
    box(axes, 0.2, 0.15, "leave it out:\nn_users^-1.5,\nat most 1e-6", "#c7e9c0")
    box(axes, 0.74, 0.15, "pass it; it must be\nwell below\n1 / n_users", "#fee391")
    arrow(axes, (0.62, 0.86), (0.78, 0.77), "yes")
    arrow(axes, (0.45, 0.86), (0.4, 0.57), "no")
    arrow(axes, (0.36, 0.44), (0.24, 0.28), "no")
    arrow(axes, (0.48, 0.44), (0.68, 0.28), "yes")
    axes.set_title("2. delta: leave it out", fontsize=12, weight="bold")


def rows(axes: Axes) -> None:
    """Questions that lead to a cap on the rows of a user."""
    box(axes, 0.5, 0.93, "Is it publicly known how many\nrows users have?")
    box(axes, 0.25, 0.5, "30 to 100", "#c7e9c0")
    box(axes, 0.74, 0.5, "between the median\nand the 90th\npercentile", "#c7e9c0")
    box(axes, 0.5, 0.13, "Any cap is private. More rows of one user\nhelp little; more users help a lot.", "#f0f0f0")
    arrow(axes, (0.42, 0.86), (0.27, 0.57), "no")
    arrow(axes, (0.58, 0.86), (0.7, 0.63), "yes")
    axes.set_title("3. max_rows_per_user", fontsize=12, weight="bold")


def picture() -> Figure:
    figure = Figure(figsize=(13, 4.2), layout="constrained")
    first, second, third = figure.subplots(1, 3, width_ratios=(1.15, 1, 1))
    guesses(first)
    for axes, panel in ((second, delta), (third, rows)):
        axes.set_axis_off()
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1.05)
        panel(axes)
    return figure


if __name__ == "__main__":
    mpl.rcParams |= {"svg.hashsalt": "userdp", "svg.fonttype": "path"}
    picture().savefig(PICTURE, metadata={"Date": None})
