"""Put bench/grid.json and bench/real.json into which-solver.md as tables: python research/docs/bench_tables.py

With `--before DIR`, a folder with older files of the same names, it prints the cells of both side by side instead.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
PAGE = FOLDER / "which-solver.md"
Key = tuple[str, int, int, float | None]  # what, rows per user (0: part of the name), users, epsilon
LABELS = {
    "few-weights": "3 features, 1 row",
    "rows-1": "10 features, 1 row",
    "rows-2": "2 rows",
    "rows-3": "3 rows",
    "rows-10": "10 rows",
    "rows-50": "50 rows",
    "features-20": "20 features, 1 row",
    "features-40": "40 features, 2 rows",
    "features-100": "100 features, 3 rows",
    "rare-1": "a class of 2%, 1 row",
    "rare-10": "a class of 2%, 10 rows",
    "correlated": "20 features, correlations 0.9, 3 rows",
    "usual-units": "5 rows",
    "odd-units": "5 rows, units over 10^5, offsets 10 spreads",
    "squared-1": "squared loss, 1 row",
    "squared-10": "squared loss, 10 rows",
    "huber-1": "Huber loss, 1 row",
    "huber-10": "Huber loss, 10 rows",
    "multinomial-1": "3 classes, 1 row",
    "multinomial-10": "3 classes, 10 rows",
}


def cells(path: Path) -> dict[Key, dict[str, Any]]:
    """Results by what was measured; without an epsilon those without privacy."""
    found: dict[Key, dict[str, Any]] = {}
    for cell in json.loads(path.read_text())["cells"]:
        settings, result = cell["settings"], cell["result"]
        if settings["command"] == "grid":
            found[settings["scenario"]["name"], 0, result["n_users"], settings["epsilon"]] = result
        else:
            data = settings["data"]
            found[data["name"], data["cap"], result["n_users"], settings["epsilon"]] = result
    return found


def shown(result: dict[str, Any] | None) -> str:
    """Excess (slope) ratio to the one-release limit."""
    if result is None:
        return ""
    if "taken" not in result:
        return f"{result['excess']['mean']:.2g}"
    excess = result["excess"]["mean"]
    return f"{excess:.2g} ({result['slope']['mean']:.2f}) {excess / result['yard']:.1f}"


def table(found: dict[Key, dict[str, Any]], what: str, head: tuple[str, ...], epsilons: tuple[Any, ...]) -> str:
    """A row for each data set, cap and number of users; a column for each epsilon."""
    columns = ["without privacy" if one is None else f"epsilon {one:g}" for one in epsilons]
    lines = ["| " + " | ".join([what, *head, *columns]) + " |", "|---" * (1 + len(head) + len(columns)) + "|"]
    order = list(LABELS)
    rows = sorted(
        {key[:3] for key in found}, key=lambda row: (order.index(row[0]) if row[0] in order else 0, row[0], *row[1:])
    )
    for name, cap, users in rows:
        middle = ([str(cap)] if cap else []) + [f"{users:,}"]
        numbers = [shown(found.get((name, cap, users, one))) for one in epsilons]
        lines.append("| " + " | ".join([LABELS.get(name, name), *middle, *numbers]) + " |")
    return "\n".join(lines) + "\n"


def compared(before: dict[Key, dict[str, Any]], after: dict[Key, dict[str, Any]]) -> str:
    """Mean excess before and after, and their ratio with its standard error over the runs."""
    lines = []
    for key, new in sorted(after.items(), key=str):
        old = before.get(key)
        if old is None or "taken" not in new:
            continue
        means, errors = zip(
            *((r["excess"]["mean"], r["excess"]["spread"] / len(r["excess"]["values"]) ** 0.5) for r in (old, new)),
            strict=True,
        )
        ratio = means[1] / means[0]
        error = ratio * sum((e / m) ** 2 for e, m in zip(errors, means, strict=True)) ** 0.5
        lines.append(f"{ratio:6.2f} ± {error:.2f}  {means[0]:.2g} -> {means[1]:.2g}  s={new['s']:.3f}  {key}")
    return "\n".join(lines)


def filled(text: str, name: str, content: str) -> str:
    """The text with this content between the marks of that name."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    head, rest = text.split(begin)
    return head + begin + "\n" + content + "\n" + end + rest.split(end)[1]


def page() -> str:
    """research/docs/which-solver.md with the tables of the files."""
    real, grid = (cells(FOLDER / "bench" / f"{name}.json") for name in ("real", "grid"))
    text = filled(PAGE.read_text(), "real", table(real, "data", ("rows per user", "users"), (None, 0.1, 1.0, 4.0, 8.0)))
    return filled(text, "grid", table(grid, "generated users", ("users",), (1.0, 8.0)))


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--before", type=Path)
    before = options.parse_args().before
    if before is None:
        PAGE.write_text(page())
    else:
        for name in ("grid.json", "real.json"):
            print(compared(cells(before / name), cells(FOLDER / "bench" / name)))
