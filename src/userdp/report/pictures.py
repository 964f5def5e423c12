"""The picture of a plan, in the format that a path's suffix says."""

from __future__ import annotations

from os import PathLike

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from userdp.privacy.accounting import Budget
from userdp.solvers.planner import Comparison, consider
from userdp.solvers.solver import SOLVERS

COLOURS = ("#0b6e99", "#c2571a", "#4c7a34", "#7a4c8c", "#8c6d1f", "#444444")


def plot_plan(
    comparison: Comparison, path: str | PathLike[str], max_gradients: int | None = None, n_epsilons: int = 9
) -> None:
    """Draw the excess risk that each solver states, for the same numbers, from a tenth of epsilon to ten times.

    A cross marks an epsilon that a solver cannot do with, a ring what solver="auto" takes.
    """
    epsilons = comparison.budget.epsilon * np.geomspace(0.1, 10, n_epsilons)
    figure = Figure(figsize=(7.5, 5.0), layout="constrained")
    axes = figure.subplots()
    shown = [which for which, one in SOLVERS.items() if not one.baseline]
    size, delta = (comparison.problem, comparison.n_users, comparison.rows_per_user), comparison.budget.delta
    lines = {}
    for solver, mode in shown:  # infinite where there is no plan
        options = [consider(solver, mode, *size, Budget(each, delta), max_gradients) for each in epsilons]
        lines[solver, mode] = np.array([option.bound for option in options])
    roof = 2 * max((bound for line in lines.values() for bound in line if np.isfinite(bound)), default=1.0)
    for position, ((solver, mode), line) in enumerate(lines.items()):
        colour, fits = COLOURS[position % len(COLOURS)], np.isfinite(line)
        style = "-" if mode == "calibrated" else ":"
        axes.plot(epsilons, np.where(fits, line, np.nan), style, marker=".", color=colour, label=f"{solver}, {mode}")
        heights = np.full(len(line), roof * 1.3**position)
        axes.plot(epsilons[~fits], heights[~fits], "x", color=colour, markersize=5)
    if any(not np.isfinite(line).all() for line in lines.values()):
        axes.plot([], [], "x", color="grey", label="does not fit")
    axes.axvline(comparison.budget.epsilon, color="grey", linewidth=0.8, linestyle="--")
    if comparison.choice is not None:
        place = [comparison.budget.epsilon], [comparison.choice.bound]
        name = f"chosen: {comparison.choice.solver}, {comparison.choice.bound:.3g}"
        axes.plot(*place, "o", markersize=13, fillstyle="none", color="black", label=name)
    axes.set(xscale="log", yscale="log", xlabel="epsilon", ylabel="excess risk: whitened-clip expected, others at most")
    axes.set_title(
        f"{comparison.n_users:,} users of {comparison.rows_per_user} rows, {comparison.problem.dimension} weights, "
        f"{comparison.problem.loss.name} loss, delta {comparison.budget.delta:g}",
        fontsize=10,
    )
    axes.grid(which="major", alpha=0.3)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    figure.legend(loc="outside lower center", ncols=3, fontsize=9, frameon=False)
    figure.savefig(path, metadata={"Date": None} if str(path).lower().endswith(".svg") else None, dpi=150)
