"""Excess risk at the same printed epsilon for "replace-one" and "zero-out" neighbours, and at the same noise.

Cells of the bench grid, and lifters and shoppers where `USERDP_DATA` has them. Every line has three fits of the default
solver: epsilon for replace-one, the same epsilon for zero-out, and zero-out at the epsilon at which its clipped means
have as much noise as the first; whitening then has sqrt(2) times the noise, because it releases second moments, which a
replacement moves by sqrt(2) radii only. NOT PRIVATE: runs are seeded.

    python benchmarks/neighbours.py [--repeats 5] [--epsilon 1] [--quick] [--json docs/bench/neighbours.json]
        [--table docs/neighbours.md]
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from userdp.privacy.accounting import REPLACE_ONE, ZERO_OUT, Budget, Cost, epsilon_at, gaussian_multiplier
from userdp_research.bench.cells import Record
from userdp_research.bench.generated import SCENARIOS
from userdp_research.bench.grid import measure_grid
from userdp_research.bench.real import measure_real
from userdp_research.bench.tasks import known_tasks

MARKS = ("<!-- neighbours: begin -->\n", "<!-- neighbours: end -->\n")
DELTA, SOLVER = 1e-6, "whitened-clip"
GRID = (
    ("rows-1", 10_000),
    ("rows-3", 10_000),
    ("rows-10", 5_000),
    ("rows-50", 2_000),
    ("rare-1", 50_000),
    ("features-20", 5_000),
    ("squared-1", 10_000),
)
REAL = (("openpowerlifting", 1, 5_000), ("openpowerlifting", 30, 5_000), ("online_retail", 30, None))


def epsilons(epsilon: float) -> dict[str, tuple[str, float]]:
    """By what a column is called: the relation, and epsilon."""
    mu = 1 / gaussian_multiplier(Budget(epsilon, DELTA))
    return {
        "replace-one": (REPLACE_ONE, epsilon),
        "zero-out": (ZERO_OUT, epsilon),
        "zero-out, same noise": (ZERO_OUT, epsilon_at(Cost(gaussian=(mu / 2) ** 2), DELTA)),
    }


def measured(what: str, settings: Record, context: Record, measure: Any, epsilon: float) -> dict[str, Any]:
    """Excess of the three fits, a number each run."""
    line: dict[str, Any] = {"what": what, "users": settings["users"], "epsilon": epsilon}
    for name, (relation, at) in epsilons(epsilon).items():
        budget = {"epsilon": at, "delta": DELTA, "neighbours": relation, "solver": SOLVER}
        found = measure(settings | budget, context)
        line[name] = {"epsilon": at, "excess": found["excess"]["mean"], "spread": found["excess"]["spread"]}
        line["a constant"] = found.get("nothing_learned") or found["constant_loss"] - found["best"]["loss"]
    return line


def lines(repeats: int, epsilon: float, quick: bool) -> list[dict[str, Any]]:
    found = []
    for name, n_users in GRID[: 1 if quick else None]:
        settings = {"scenario": SCENARIOS[name].settings(), "users": n_users, "repeats": repeats}
        found.append(measured(name, settings, {}, measure_grid, epsilon))
    tasks = known_tasks()
    for name, cap, size in () if quick else REAL:
        task = tasks[name]
        if task.path.exists():
            task = replace(task, cap=cap)
            settings = {"data": task.settings(), "users": size, "passes": None, "repeats": repeats}
            what = f"{name}, at most {cap} row{'s' * (cap > 1)}"
            found.append(measured(what, settings, {"path": str(task.path)}, measure_real, epsilon))
    return found


def table(record: dict[str, Any]) -> str:
    """Excess of each line, mean and standard deviation of the runs, as Markdown."""
    names = list(epsilons(1.0))
    rows = [["users", "number", *names, "zero-out / replace-one", "base rate only"]]
    for line in record["lines"]:
        cells = [f"{line[name]['excess']:.2g} ({line[name]['spread'] or 0:.1g})" for name in names]
        ratio = line["zero-out"]["excess"] / line["replace-one"]["excess"]
        number = "all" if line["users"] is None else f"{line['users']:,}"
        rows.append([line["what"], number, *cells, f"{ratio:.2f}", f"{float(np.mean(line['a constant'])):.2g}"])
    rows.insert(1, ["---", *["---:"] * (len(rows[0]) - 1)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def with_table(page: str, record: dict[str, Any]) -> str:
    """The page, with the table between its marks."""
    begin, end = page.index(MARKS[0]) + len(MARKS[0]), page.index(MARKS[1])
    return page[:begin] + table(record) + page[end:]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--quick", action="store_true", help="one cell only")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", type=Path, help="the page that has the table")
    given = parser.parse_args()
    rows = lines(given.repeats, given.epsilon, given.quick)
    measured_now = {"date": datetime.now(UTC).date().isoformat(), "repeats": given.repeats, "lines": rows}
    print(table(measured_now))
    if given.json:
        given.json.write_text(json.dumps(measured_now, indent=1) + "\n")
    if given.table:
        given.table.write_text(with_table(given.table.read_text(), measured_now))
