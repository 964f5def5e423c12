"""Draw docs/_static/accuracy.svg from research/docs/bench/real.json: python docs/accuracy.py

How much of a model's predictive power remains under privacy: 100% is the log loss of the model without privacy, 0% that
of predicting the base rate. Lifters of openpowerlifting with at most 30 rows each, the default solver, means of 5 runs.
"""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

FOLDER = Path(__file__).parent
RUNS = FOLDER.parent / "research" / "docs" / "bench" / "real.json"
PICTURE = FOLDER / "_static" / "accuracy.svg"
COLOURS = {48092: "#08519c", 5000: "#3182bd", 2000: "#6baed6"}


def kept() -> dict[int, dict[float, float]]:
    """By users and epsilon, the fraction of the gain over the base rate that the private model keeps."""
    found: dict[int, dict[float, float]] = {}
    for cell in json.loads(RUNS.read_text())["cells"]:
        settings, result = cell["settings"], cell["result"]
        data = settings["data"]
        if (data["name"], data["cap"], settings["solver"]) == ("openpowerlifting", 30, "auto"):
            best, constant = result["best"]["loss"], result["constant_loss"]
            fraction = (constant - result["loss"]["mean"]) / (constant - best)
            found.setdefault(result["n_users"], {})[settings["epsilon"]] = fraction
    return found


def picture() -> Figure:
    """One line for each number of users, named at its end."""
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes = figure.subplots()
    axes.axhline(100, color="black", linewidth=1)
    axes.axhline(0, color="black", linewidth=1)
    axes.text(0.083, 102, "as good as without privacy", fontsize=9)
    axes.text(0.083, 2, "no better than predicting the average", fontsize=9)
    for n_users, points in sorted(kept().items()):
        epsilons = sorted(points)
        values = [100 * points[epsilon] for epsilon in epsilons]
        axes.plot(epsilons, values, marker="o", color=COLOURS[n_users], linewidth=2)
        beside = {"xytext": (10, -12), "textcoords": "offset points", "color": COLOURS[n_users], "fontsize": 10}
        axes.annotate(f"{n_users:,} users", (epsilons[0], values[0]), weight="bold", **beside)
    axes.set_title("Models of powerlifters' attempts that protect every lifter, at most 30 rows each", fontsize=11)
    axes.set_xscale("log")
    axes.set_xticks([0.1, 1, 4, 8], ["0.1", "1", "4", "8"])
    axes.minorticks_off()
    axes.set_xlim(0.08, 10)
    axes.set_ylim(-4, 110)
    axes.set_yticks([0, 25, 50, 75, 100], ["0%", "25%", "50%", "75%", "100%"])
    axes.set_xlabel("stronger privacy  ←  epsilon  →  weaker privacy")
    axes.set_ylabel("predictive power that remains")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    mpl.rcParams |= {"svg.hashsalt": "userdp", "svg.fonttype": "path"}
    picture().savefig(PICTURE, metadata={"Date": None})
