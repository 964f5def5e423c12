"""One pass of clipped gradients, of a sample, and of second moments, in units of `X.sum()` on the same rows.

A pass is a whole release of the curator: margins, slopes, row weights, mean over a user's rows, change of basis, sizes,
clipping, the total and its noise; the basis is a full matrix. `sample` is a Poisson sample of a tenth of the users,
divided by a tenth of the pass. CPU time on one thread, interleaved in one run, medians. `2 threads` is the CPU time of
the pass on two threads, and `wall` its wall time over that of `X.sum()`.

    python benchmarks/one_pass.py [--quick] [--repeats 7] [--only pass moments]
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from common import run_parts
from rich.console import Console
from rich.table import Table

from userdp.data.users import UserData
from userdp.losses import logistic
from userdp.privacy.accounting import Budget
from userdp.privacy.clip import Clip
from userdp.privacy.curator import Curator
from userdp.privacy.ledger import Ledger
from userdp.privacy.plan import Plan, Step
from userdp.statistics.gradients import ClippedGradient, MeanGradient, RowWeights
from userdp.statistics.moments import MomentShape, SecondMomentShape
from userdp.statistics.rows import limit_threads

ENTRIES = 40_000_000  # of X
FEATURES, ROWS = (20, 50, 100, 200), (20, 3, 1)
_BUDGET = Budget(8.0, 1e-6)


def ratios(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, tuple[float, float]]:
    """Median CPU and wall seconds of each call; calls take turns."""
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for number in range(repeats + 1):
        for name, call in calls.items():
            wall, cpu = time.perf_counter(), time.process_time()
            call()
            if number:  # the first one fills caches
                spent[name].append((time.process_time() - cpu, time.perf_counter() - wall))
    return {name: tuple(np.median(seen, axis=0).tolist()) for name, seen in spent.items()}


def generated(n_features: int, rows_per_user: int, n_entries: int) -> UserData:
    """Standard normal rows in float32, with coin flips for targets."""
    rng, n_users = np.random.default_rng(0), max(1, n_entries // (n_features * rows_per_user))
    rows = rng.standard_normal((n_users * rows_per_user, n_features), dtype=np.float32)
    return UserData(rows, rng.integers(2, size=len(rows)).astype(float), np.arange(n_users + 1) * rows_per_user)


def releases(data: UserData, statistic: object, radius: float, repeats: int, **change: float) -> Callable[[], object]:
    """A call that releases the next clipped mean of the statistic."""
    n_users = data.n_users
    plan = Plan(n_users, (Step("one", 0, n_users, Clip(n_users, 1e4, repeats + 2, **change)),))
    curator = Curator(data, plan, Ledger(_BUDGET), insecure_seed=0)
    return lambda: curator.release("one", statistic, radius)


def on_threads(n_threads: int, call: Callable[[], object]) -> Callable[[], object]:
    """The call on so many threads, or on all that there are."""

    def run() -> None:
        limit_threads(n_threads)
        call()

    return run


def gradients(repeats: int, quick: bool) -> list[dict]:
    """A pass, and a sample, for all numbers of features and rows."""
    found = []
    for rows_per_user in ROWS:
        for d in FEATURES:
            data, rng = generated(d, rows_per_user, ENTRIES // (20 if quick else 1)), np.random.default_rng(1)
            basis = rng.normal(size=(d, d)) / np.sqrt(d)
            inner = MeanGradient(
                logistic, rng.normal(size=d) / d, basis, row_weights=RowWeights(basis, 1.5 * np.sqrt(d))
            )
            statistic = ClippedGradient(inner, 0.3, 3.0, 0.06)
            everyone = releases(data, statistic, statistic.radius, 2 * repeats + 1)
            tenth = releases(data, statistic, statistic.radius, repeats, sampling_probability=0.1)
            calls = {
                "X.sum()": data.rows.sum,
                "pass": on_threads(1, everyone),
                "sample": on_threads(1, tenth),
                "2 threads": on_threads(2, everyone),
            }
            seen = ratios(calls, repeats)
            (unit, unit_wall), (cpu, _), (both, wall) = seen["X.sum()"], seen["pass"], seen["2 threads"]
            found.append(
                {"features": d, "rows": rows_per_user, "pass": cpu / unit, "sample": seen["sample"][0] / (0.1 * cpu)}
                | {"2 threads": both / unit, "wall": wall / unit_wall, "ns a row": cpu / data.n_rows * 1e9}
            )
    return shown("clipped gradients", found)


def moments(repeats: int, quick: bool) -> list[dict]:
    """Second moments in a basis, in no basis, and BLAS, in units of `X.sum()`."""
    found = []
    for d in FEATURES:
        data, basis = generated(d, 20, ENTRIES // (20 if quick else 2)), np.eye(d) + 0.1
        double = data.rows.astype(np.float64)
        calls = {
            "X.sum()": data.rows.sum,
            "X^T X": lambda data=data: data.rows.T @ data.rows,
            "X^T X in float64": lambda double=double: double.T @ double,
            "in a basis": releases(data, MomentShape(basis), 1.0, repeats),
            "in no basis": releases(data, SecondMomentShape(float(d)), 1.5, repeats),
        }
        seen = ratios(calls, repeats)
        unit = seen["X.sum()"][0]
        found.append({"features": d} | {name: seen[name][0] / unit for name in calls if name != "X.sum()"})
    return shown("second moments, 20 rows a user", found)


def shown(title: str, rows: list[dict]) -> list[dict]:
    table = Table(*rows[0], title=f"{title}: CPU time, X.sum() = 1")
    for row in rows:
        table.add_row(*(f"{value:.2f}" if isinstance(value, float) else str(value) for value in row.values()))
    Console().print(table)
    return rows


if __name__ == "__main__":
    run_parts("one_pass", __doc__, {"pass": gradients, "moments": moments})
