"""On a Ray cluster: what a release costs by itself, for each partition and byte; growth with users; overhead.

costs: seconds of a release of one user a partition, on 1 to 8 partitions of this machine, with 20 to 10,000 weights.
growth: seconds, bytes and peak memory of a release for 10^4 to 3x10^6 users of 20 rows and 20 features (float32).
overhead: a whole fit of some seconds with the local engine and on 2 partitions, in turns, compiled before.

Run: python benchmarks/scale_ray.py [--only costs growth overhead] [--repeats 5] [--quick]
"""

from __future__ import annotations

import resource
import time

import numpy as np
import ray
from common import run_parts
from rich.console import Console
from rich.table import Table

from userdp import Ball, UserData, losses, minimize
from userdp.engines.local import LocalEngine
from userdp.engines.ray import RayEngine
from userdp.privacy.mechanisms.clip import ClippedTotal
from userdp.vectors.gradients import MeanGradient

ROWS_PER_USER, FEATURES = 20, 20
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
        records[-1] |= {"bytes": placed.bytes_per_release}
    table = Table("partitions", "features", "bytes a release", "milliseconds")
    for r in records:
        table.add_row(f"{r['partitions']}", f"{r['features']:,}", f"{r['bytes']:,.0f}", f"{1e3 * r['seconds']:.2f}")
    console.print(table)
    return records


def ray_growth(repeats: int, quick: bool) -> list[dict]:
    records, engine = [], RayEngine(n_partitions=2)
    table = Table("users", "local, ms", "2 partitions, ms", "bytes a release", "driver's peak, MB")
    for n_users in (10_000, 100_000) if quick else (10_000, 100_000, 1_000_000, 3_000_000):
        data = users(n_users)
        placed, everyone = engine.place(data), np.random.default_rng(1).permutation(n_users)
        times = {"local": [], "ray": []}
        for _ in range(repeats + 1):
            times["local"].append(release(LocalEngine(), data, everyone))
            times["ray"].append(release(engine, placed, everyone))
        local, there = (float(np.median(times[name][1:])) for name in ("local", "ray"))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
        records.append({"users": n_users, "local": local, "ray": there, "bytes": placed.bytes_per_release, "mb": peak})
        figures = (f"{1e3 * local:.1f}", f"{1e3 * there:.1f}", f"{placed.bytes_per_release:,.0f}", f"{peak:,.0f}")
        table.add_row(f"{n_users:,}", *figures)
        del data, placed
    console.print(table)
    return records


def ray_overhead(repeats: int, quick: bool) -> list[dict]:
    data, engine = users(200_000 if quick else 1_500_000), RayEngine(n_partitions=2)
    fit, records = {"rows_per_user": ROWS_PER_USER, "insecure_seed": 1}, []
    for who in (None, engine):
        minimize("logistic", users(2000), Ball(10.0), 1.0, 1e-7, engine=who, **fit)
    for _ in range(max(1, repeats // 2)):
        seconds, placed = {}, None
        for name in ("local", "ray, loading included", "ray, loaded"):
            placed = engine.place(data) if name == "ray, loaded" else None
            start = time.perf_counter()
            who = engine if name == "ray, loading included" else None
            result = minimize("logistic", placed or data, Ball(10.0), 1.0, 1e-7, engine=who, **fit)
            seconds[name] = time.perf_counter() - start
        records.append(seconds | {"bytes": result.bytes_per_release})
        console.print(", ".join(f"{name} {s:.2f} s ({s / seconds['local']:.2f})" for name, s in seconds.items()))
    ray.shutdown()
    return records


RAY_PARTS = {"costs": ray_costs, "growth": ray_growth, "overhead": ray_overhead}

if __name__ == "__main__":
    run_parts("scale_ray", __doc__, RAY_PARTS)
