"""On a Ray cluster: what a release costs by itself, for each partition; growth with users; overhead.

costs: seconds of a release of one user a partition, on 1 to 8 partitions of this machine, with 20 to 10,000 weights.
growth: seconds and peak memory of a release for 10^4 to 3x10^6 users of 20 rows and 20 features (float32).
overhead: a whole fit of some seconds with the local engine and on 2 partitions, in turns, the first uncounted.

picture: docs/bench/scale.svg from docs/bench/scale.json, which `growth` writes.

Run: python benchmarks/scale_ray.py [--only costs growth overhead picture] [--repeats 5] [--quick]
"""

from __future__ import annotations

import json
import os
import resource
import time
from pathlib import Path

import matplotlib as mpl
import numpy as np
import ray
from common import run_parts
from rich.console import Console
from rich.table import Table

from userdp import Ball, Execution, UserData, losses, minimize
from userdp.engines.local import LocalEngine
from userdp.engines.ray import RayEngine
from userdp.privacy.clip import ClippedTotal
from userdp.statistics.gradients import MeanGradient

ROWS_PER_USER, FEATURES = 20, 20
PUBLISHED = Path(__file__).parents[1] / "docs" / "bench" / "scale.json"
console = Console()


def users(n_users: int, n_features: int = FEATURES, rows: int = ROWS_PER_USER) -> UserData:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n_users * rows, n_features), dtype=np.float32)
    y = (rng.random(len(X), dtype=np.float32) < 1 / (1 + np.exp(X[:, 1] - X[:, 0]))).astype(np.float64)
    return UserData(X, y, np.arange(n_users + 1) * rows)


def release(engine, data, chosen: np.ndarray) -> float:
    """Seconds of one total."""
    statistic = MeanGradient(losses.logistic, np.full(data.n_features, 0.1))
    start = time.perf_counter()
    engine.total(statistic, ClippedTotal(1.0, 40, 1024), data, chosen)
    return time.perf_counter() - start


def ray_costs(repeats: int, quick: bool) -> list[dict]:
    records = []
    for partitions, features in [(1, 20), (2, 20), (4, 20), (8, 20), (2, 1000), (2, 10_000)]:
        engine = RayEngine(n_partitions=partitions)
        placed = engine.place(users(40, features, 1))
        one_each = placed.bounds[:-1]
        for _ in range(5):
            release(engine, placed, one_each)
        seconds = np.median([release(engine, placed, one_each) for _ in range(10 * repeats)])
        records.append({"partitions": partitions, "features": features, "seconds": float(seconds)})
    table = Table("partitions", "features", "milliseconds")
    for r in records:
        table.add_row(f"{r['partitions']}", f"{r['features']:,}", f"{1e3 * r['seconds']:.2f}")
    console.print(table)
    return records


def workers_memory() -> float:
    """Bytes that workers of this process's Ray hold for themselves; rows that they map are the driver's."""
    import psutil  # which Ray brings

    found = [p for p in psutil.Process().children(recursive=True) if "Partition" in " ".join(p.cmdline())]
    return float(sum(p.memory_full_info().uss for p in found))


def ray_growth(repeats: int, quick: bool) -> list[dict]:
    records, engine = [], RayEngine(n_partitions=2)
    table = Table("users", "local, ms", "2 partitions, ms", "driver's peak, MB", "workers, MB")
    for n_users in (10_000, 30_000) if quick else (10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000):
        data = users(n_users)
        placed, everyone = engine.place(data), np.random.default_rng(1).permutation(n_users)
        times = {"local": [], "ray": []}
        for _ in range(repeats + 1):
            times["local"].append(release(LocalEngine(), data, everyone))
            times["ray"].append(release(engine, placed, everyone))
        local, there = (float(np.median(times[name][1:])) for name in ("local", "ray"))
        peak, workers = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000, workers_memory() / 1e6
        records.append({"users": n_users, "local": local, "ray": there, "driver_mb": peak, "workers_mb": workers})
        figures = (f"{1e3 * local:.1f}", f"{1e3 * there:.1f}")
        table.add_row(f"{n_users:,}", *figures, f"{peak:,.0f}", f"{workers:,.0f}")
        del data, placed
    console.print(table)
    if not quick:
        PUBLISHED.write_text(json.dumps({"repeats": repeats, "load": os.getloadavg()[0], "rows": records}, indent=1))
    return records


def ray_picture(repeats: int, quick: bool) -> list[dict]:
    """Seconds and memory of a release against users, from what was published."""
    from matplotlib.figure import Figure

    records = json.loads(PUBLISHED.read_text())["rows"]
    across = [r["users"] for r in records]
    panels = {
        "seconds a release": {"one process, two threads": "local", "2 partitions": "ray"},
        "MB, the rows themselves included": {"driver": "driver_mb", "workers": "workers_mb"},
    }
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "userdp", "font.size": 9}):
        figure = Figure(figsize=(7, 3), layout="constrained")
        for axes, (title, lines) in zip(figure.subplots(1, 2), panels.items(), strict=True):
            for name, field in lines.items():
                if field in records[0]:
                    axes.plot(across, [r[field] for r in records], marker="o", markersize=4, label=name)
            axes.set(xscale="log", yscale="log", xlabel="users of 20 rows, 20 features", title=title)
            axes.legend(frameon=False)
            axes.grid(alpha=0.3)
            axes.set_ylim(bottom=10 ** np.floor(np.log10(axes.get_ylim()[0])))
        figure.savefig(PUBLISHED.with_suffix(".svg"), format="svg", metadata={"Date": None, "Creator": None})
    return []


def ray_overhead(repeats: int, quick: bool) -> list[dict]:
    data, engine = users(200_000 if quick else 1_500_000), RayEngine(n_partitions=2)
    fit, records = {"rows_per_user": ROWS_PER_USER, "insecure_seed": 1}, []
    for who in (None, engine):
        minimize("logistic", users(2000), Ball(10.0), 1.0, 1e-7, execution=Execution(engine=who), **fit)
    for _ in range(max(1, repeats // 2)):
        seconds, placed = {}, None
        for name in ("local", "ray, loading included", "ray, loaded"):
            placed = engine.place(data) if name == "ray, loaded" else None
            start = time.perf_counter()
            who = engine if name == "ray, loading included" else None
            minimize("logistic", placed or data, Ball(10.0), 1.0, 1e-7, execution=Execution(engine=who), **fit)
            seconds[name] = time.perf_counter() - start
        records.append(seconds)
        console.print(", ".join(f"{name} {s:.2f} s ({s / seconds['local']:.2f})" for name, s in seconds.items()))
    ray.shutdown()
    return records


RAY_PARTS = {
    "costs": ray_costs,
    "growth": ray_growth,
    "overhead": ray_overhead,
    "picture": ray_picture,
}

if __name__ == "__main__":
    run_parts("scale_ray", __doc__, RAY_PARTS)
