"""How fast is the default fit? Ratios to scikit-learn on the same rows, interleaved in one run, and how time grows.

Everything is timed from arrays to a fitted model: grouping, planning, training. Reported are medians of CPU and wall
time over those of scikit-learn's `LogisticRegression` (lbfgs, no privacy), with `X.sum()`, which
reads the rows once, and an epoch of `SGDClassifier`; the excess risk of the default beside that of the full schedule;
and the exponents of time and of peak memory from 10,000 to 1,000,000 users. `picture` draws time against rows from
what growth and benchmarks/peer_speed.py saved.

    python benchmarks/speed.py [--only fits accuracy growth picture] [--repeats 7] [--epsilon 1] [--mixed] [--quick]

`--quick` is a guard: it counts passes and compares ratios on fewer rows, and fails if they are too large; no seconds.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import matplotlib as mpl
import numpy as np
from common import forget_peak, peak, save, saved
from rich.console import Console
from rich.table import Table
from sklearn.linear_model import LogisticRegression as Plain
from sklearn.linear_model import SGDClassifier

from userdp import LogisticRegression
from userdp.privacy.accounting import Budget
from userdp.solvers.planner import Solver, plan, public_problem
from userdp_research.bench.generated import LOSSES, Scenario, draw_users, fresh_rows
from userdp_research.bench.solving import solve_all

mpl.use("Agg")
SIZES = (  # users, rows, features; the first is README's example
    *((5_000, 10, 3), (500_000, 1, 20), (100_000, 20, 20), (100_000, 20, 50)),
    *((300_000, 3, 50), (20_000, 20, 200), (10_000, 10, 384)),
)
EPSILONS, DELTA, FULL = (0.5, 1.0, 8.0), 1e-8, 10**15
GROWTH = (10_000, 100_000, 1_000_000)
# Of the guard. Ten of the passes are for rare classes only; ratios on few rows, and on busy machines, are larger.
MOST_PASSES, MOST_RATIO = 20, 3.0
PICTURE = Path(__file__).parents[1] / "docs" / "bench" / "speed.svg"


def scenario(rows: int, features: int) -> Scenario:
    return Scenario("speed", "logistic", (), (rows,), features=features)


def arrays(users: int, rows: int, features: int, contiguous: bool = True) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """X, y and ids of users, in order or shuffled."""
    data = draw_users(scenario(rows, features), users, 0)
    X, y, ids = np.ascontiguousarray(data.rows[:, :-1]), data.targets > 0, np.repeat(np.arange(users), rows)
    if contiguous:
        return X, y, ids
    order = np.random.default_rng(0).permutation(len(X))
    return X[order], y[order], ids[order]


def private(epsilon: float, rows: int, **options: int) -> LogisticRegression:
    return LogisticRegression(epsilon, DELTA, max_rows_per_user=rows, **options)


def clocked(run: Callable[[], object]) -> tuple[float, float]:
    time.sleep(0.3)  # threads of BLAS spin for a while after the run before, and would be counted here
    cpu, wall = time.process_time(), time.perf_counter()
    run()
    return time.process_time() - cpu, time.perf_counter() - wall


def interleaved(runs: dict[str, Callable[[], object]], repeats: int) -> dict[str, tuple[float, float]]:
    """Medians of CPU and wall seconds, each round running everybody once; one round before does not count."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for number in range(repeats + 1):
        for name, run in runs.items():
            taken = clocked(run)
            if number:
                found[name].append(taken)
    return {name: tuple(np.median(taken, axis=0).tolist()) for name, taken in found.items()}


def fits(
    sizes: tuple[tuple[int, int, int], ...], repeats: int, epsilons: tuple[float, ...] = (1.0,), mixed: bool = False
) -> list[dict]:
    """The default fit beside scikit-learn's; `mixed`: users shuffled, too."""
    found = []
    for users, rows, features in sizes:
        for contiguous in (True, False)[: 1 + mixed]:
            X, y, ids = arrays(users, rows, features, contiguous)
            runs: dict[str, Callable[[], object]] = {
                "sum": lambda X=X: X.sum(),
                "scikit-learn": lambda X=X, y=y: Plain(C=math.inf).fit(X, y),
                "SGDClassifier, one epoch": lambda X=X, y=y: SGDClassifier(
                    "log_loss", max_iter=1, tol=None, average=True
                ).fit(X, y),
            }
            for epsilon in epsilons:
                runs[f"epsilon {epsilon:g}"] = lambda X=X, y=y, ids=ids, e=epsilon, rows=rows: private(e, rows).fit(
                    X, y, groups=ids
                )
            taken = interleaved(runs, repeats)
            base = taken["scikit-learn"]
            for name, (cpu, wall) in taken.items():
                row = {"users": users, "rows": rows, "features": features, "sorted": contiguous, "who": name}
                row |= {"cpu": cpu, "wall": wall, "cpu_ratio": cpu / base[0], "wall_ratio": wall / base[1]}
                found.append(row | {"sums": cpu / taken["sum"][0]})
    return found


def accuracy(sizes: tuple[tuple[int, int, int], ...], repeats: int) -> list[dict]:
    """Mean excess risk, and passes, of the default plan and of the full schedule on the same generated users."""
    found = []
    for users, rows, features in sizes:
        kind = scenario(rows, features)
        fresh, problem = (
            fresh_rows(kind),
            public_problem(LOSSES["logistic"], features + 1, None, Solver().radius),
        )
        for epsilon in EPSILONS:
            row = {"users": users, "rows": rows, "features": features, "epsilon": epsilon}
            for name, limit in (("default", None), ("full", FULL)):
                parts = (draw_users(kind, users, seed) for seed in range(repeats))
                told = solve_all("auto", problem, parts, users, rows, Budget(epsilon, DELTA), limit, fresh.score)
                excess = [one["excess"] for one in told["scores"]]
                row |= {name: float(np.mean(excess)), f"{name} passes": told["passes"]}
                row[f"{name} error"] = float(np.std(excess) / math.sqrt(repeats))
            found.append(row)
    return found


def growth(numbers: tuple[int, ...], repeats: int) -> list[dict]:
    """CPU seconds and peak memory of fits, each in a process of its own that reads the rows from files."""
    found = []
    for users in numbers:
        row: dict = {"users": users, "data": users * 20 * (20 * 4 + 1 + 8)}
        with tempfile.TemporaryDirectory() as folder:
            write_rows(Path(folder), users)
            for who in FITS:
                command = [sys.executable, __file__, "--child", who, folder, str(repeats if users < numbers[-1] else 3)]
                row[who] = json.loads(subprocess.check_output(command))
        for who in FITS:
            row[f"memory above data / data, {who}"] = row[who]["bytes"] / row["data"] - 1
        found.append(row)
    for before, row in pairwise(found):
        factor = math.log(row["users"] / before["users"])
        for who in FITS:
            for key in ("cpu", "wall", "bytes"):
                row[f"exponent of {key}, {who}"] = math.log(row[who][key] / before[who][key]) / factor
    return found


def write_rows(folder: Path, users: int) -> None:
    """X, y and ids of users in order, made some users at a time."""
    shapes = {"X": (np.float32, (users * 20, 20)), "y": (np.bool_, (users * 20,)), "ids": (np.int64, (users * 20,))}
    files = {
        name: np.lib.format.open_memmap(folder / f"{name}.npy", "w+", kind, shape)
        for name, (kind, shape) in shapes.items()
    }
    for start in range(0, users, 10_000):
        data = draw_users(scenario(20, 20), min(10_000, users - start), start)
        some = slice(start * 20, start * 20 + data.n_rows)
        files["X"][some], files["y"][some] = data.rows[:, :-1], data.targets > 0
        files["ids"][some] = np.arange(some.start, some.stop) // 20


FITS: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray], object]] = {
    "userdp": lambda X, y, ids: private(1.0, 20).fit(X, y, groups=ids),
    "scikit-learn": lambda X, y, ids: Plain(C=math.inf).fit(X, y),
}


def child(who: str, folder: Path, repeats: int) -> None:
    """Fits in this process: one that does not count, then medians of time, and the peak of memory with the data."""
    X, y, ids = (np.load(folder / f"{name}.npy") for name in ("X", "y", "ids"))
    FITS[who](X, y, ids)
    before = forget_peak()
    taken = [clocked(lambda: FITS[who](X, y, ids)) for _ in range(repeats)]
    cpu, wall = np.median(taken, axis=0).tolist()
    held = X.nbytes + y.nbytes + ids.nbytes
    sys.stdout.write(json.dumps({"cpu": cpu, "wall": wall, "bytes": peak() - before + held}))


def picture(rows: list[dict], peers: list[dict]) -> None:
    """Time against rows: ours and scikit-learn's, and other libraries' where they were measured."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6.5, 4))
    for who, label in (("userdp", "userdp, epsilon 1"), ("scikit-learn", "scikit-learn, no privacy")):
        axes.loglog([20 * row["users"] for row in rows], [row[who]["cpu"] for row in rows], marker="o", label=label)
    for who in dict.fromkeys(row["who"] for row in peers if row["who"] != "userdp" and row["runs"]):
        points = [(20 * row["users"], row["cpu_seconds"]) for row in peers if row["who"] == who and row["runs"]]
        axes.loglog(*zip(*points, strict=True), marker="s", linestyle="--", linewidth=1, label=f"{who}, epsilon 1")
    axes.set(xlabel="rows (20 per user, 20 features)", ylabel="CPU seconds of a fit")
    axes.legend(fontsize="small")
    figure.savefig(PICTURE, bbox_inches="calibrated", metadata={"Date": None})
    Console().print(f"Wrote {PICTURE}")


def shown(cell: object) -> str:
    if isinstance(cell, dict):
        return ", ".join(f"{key} {value:.3g}" for key, value in cell.items())
    return f"{cell:.3g}" if isinstance(cell, float) else str(cell)


def show(rows: list[dict]) -> None:
    table = Table()
    names = list(dict.fromkeys(name for row in rows for name in row))
    for name in names:
        table.add_column(name, overflow="fold")
    for row in rows:
        cells = (row.get(name, "") for name in names)
        table.add_row(*map(shown, cells))
    Console(width=180).print(table)


def guard() -> None:
    """Passes of plans, and one ratio on fewer rows: what changes them is found before it is merged."""
    for users, rows, features in SIZES[2:4]:
        choice = plan(users, rows, features, 1.0, DELTA).choice
        assert choice is not None
        passes = choice.n_gradients / (users * rows)
        if passes > MOST_PASSES:
            raise SystemExit(
                f"Expected at most {MOST_PASSES} passes at {users} x {rows} x {features}, got {passes:.1f}."
            )
    rows = fits(((50_000, 10, 20),), 3)
    show(rows)
    worst = max(row["cpu_ratio"] for row in rows if row["who"] == "epsilon 1" and row["sorted"])
    if worst > MOST_RATIO:
        raise SystemExit(f"Expected at most {MOST_RATIO} times scikit-learn's CPU time, got {worst:.2f}.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="+", choices=("fits", "accuracy", "growth", "picture"), default=["fits", "accuracy", "growth"]
    )
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--features", type=int, nargs="+", help="only these numbers of features")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0], help="of fits")
    parser.add_argument("--mixed", action="store_true", help="fits of shuffled users, too")
    parser.add_argument("--quick", action="store_true", help="the guard: counts and ratios; nothing is saved")
    parser.add_argument("--users", type=int, nargs="+", default=GROWTH, help="of growth")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        child(asked.child[0], Path(asked.child[1]), int(asked.child[2]))
        return
    if asked.quick:
        guard()
        return
    sizes = tuple(size for size in SIZES if not asked.features or size[2] in asked.features)
    parts = {"fits": (fits, sizes), "accuracy": (accuracy, sizes), "growth": (growth, tuple(asked.users))}
    for part in asked.only:
        if part == "picture":
            picture(saved("speed", "growth"), saved("peer_speed", "trainings"))
            continue
        measure, about = parts[part]
        more = (tuple(asked.epsilon), asked.mixed) if part == "fits" else ()
        rows = measure(about, asked.repeats, *more)  # type: ignore[operator]
        show(rows)
        Console().print(f"Wrote {save('speed', {part: rows})}")


if __name__ == "__main__":
    main()
