"""Draw docs/risk-against-epsilon.svg from the results of benchmarks/accelerated.py and benchmarks/phased_sgd.py.

python benchmarks/figures.py
"""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

HERE = Path(__file__).parent
COLOURS = {"phased SGD, 1 pass": "#d55e00", "accelerated, 29 passes": "#0072b2"}


def curve(name: str, part: str) -> list[tuple[float, float]]:
    """(epsilon, excess log loss) on all training lifters of openpowerlifting."""
    rows = json.loads((HERE / "results" / f"{name}.json").read_text())["results"][part]["rows"]
    chosen = [
        (row["epsilon"], row["excess"])
        for row in rows
        if row["data"] == "openpowerlifting"
        and row["users"] > 40_000
        and row.get("loss", "logistic") == "logistic"
        and row.get("allowed_passes") is None
    ]
    return sorted(chosen)


def main() -> None:
    figure = Figure(figsize=(6.4, 3.0), layout="constrained")
    axes = figure.add_subplot()
    curves = dict(zip(COLOURS, (curve("phased_sgd", "real"), curve("accelerated", "real")), strict=True))
    for label, points in curves.items():
        axes.loglog(*zip(*points, strict=True), marker="o", color=COLOURS[label], label=label)
    axes.axhline(0.082, color="grey", linestyle=":", linewidth=1)
    axes.text(0.5, 0.07, "a constant", color="grey", va="top")
    axes.set_xlabel("epsilon")
    axes.set_ylabel("log loss above no privacy")
    axes.set_xticks([0.5, 1, 2, 4, 8], ["0.5", "1", "2", "4", "8"])
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    with mpl.rc_context({"svg.hashsalt": "userdp", "svg.fonttype": "none"}):
        figure.savefig(HERE.parent / "docs" / "risk-against-epsilon.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
