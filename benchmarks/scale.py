"""Data larger than memory on one machine: passes over a store against memory, and what it takes to make one.

store: 2 million rows of 20 features, 100,000 users, in float32. A pass is the clipped total of everyone's gradients, of
arrays in memory, of a store whose pages are in the system's cache, and of one whose pages were dropped before. Making:
seconds and the peak of memory beyond the libraries' own, each in a process of its own, against polars and duckdb that
sort the same columns by user into Parquet.

Run: python benchmarks/scale.py [--only store] [--repeats 5] [--quick]
"""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from common import run_parts
from rich.console import Console
from rich.table import Table

from userdp.data.store import Store
from userdp.data.users import UserData
from userdp.engines.local import LocalEngine
from userdp.losses import logistic
from userdp.privacy.clip import ClippedTotal
from userdp.statistics.gradients import MeanGradient

ROWS_PER_USER, FEATURES = 20, 20
COLUMNS = [f"x{i}" for i in range(FEATURES)]
OPTIONS = {"user": "who", "features": COLUMNS, "target": "y", "dtype": "float32"}
_PATIENCE = 60  # seconds: duckdb's COPY on two threads does not end in as little memory
WAYS = ("userdp", "polars", "duckdb")


def write(path: Path, n_users: int) -> None:
    """A table whose users' rows are scattered."""
    rng, n_rows = np.random.default_rng(0), n_users * ROWS_PER_USER
    X = rng.standard_normal((FEATURES, n_rows), dtype=np.float32)
    columns = {"who": rng.integers(0, n_users, n_rows), "y": (X[0] > X[1]).astype(np.float64)}
    pq.write_table(pa.table(columns | dict(zip(COLUMNS, X, strict=True))), path)


def dropped(store: Store) -> None:
    """Have the system forget the pages of a store's files."""
    for name in ("rows", "targets"):
        mapped, _ = store._maps[name]
        mapped.madvise(mmap.MADV_DONTNEED)  # pages that are mapped are not dropped
        with open(store.path / f"{name}.npy", "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def passes(path: Path, repeats: int) -> list[dict]:
    """Seconds of a pass, in turns."""
    memory = UserData.from_parquet(path, **OPTIONS)
    stored = UserData.from_parquet(path, **OPTIONS, memory_limit="512MB", store=path.with_name("store"))
    assert stored.store is not None
    statistic, contribution = MeanGradient(logistic, np.full(FEATURES, 0.1)), ClippedTotal(1.0, 40, 1024, False)

    def run(data: UserData) -> Callable[[], np.ndarray]:
        return lambda: LocalEngine().total(statistic, contribution, data, np.arange(data.n_users))

    cases = {"memory": (memory, run(memory)), "store, warm": (stored, run(stored))}
    cases["store, cold"] = stored, run(stored)
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    totals = []
    for _ in range(repeats + 1):
        for name, (data, work) in cases.items():
            if "cold" in name:
                dropped(data.store)
            elif name == "store, warm":
                work()
            start = time.perf_counter()
            totals.append(work())
            seconds[name].append(time.perf_counter() - start)
    assert all(np.array_equal(total, totals[1]) for total in totals)
    unit = np.array(seconds["memory"][1:])
    records = []
    for name, times in seconds.items():
        ratios = np.array(times[1:]) / unit
        records.append({"case": name, "wall_s": float(np.median(times[1:])), "ratio": float(np.median(ratios))})
    return records


def anonymous() -> float:
    """Megabytes that this process has written and that are in no file."""
    return int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0]) / 1e3 * 1.024


def make(way: str, path: Path, limit: str) -> dict:
    """Sort a table by user in this process."""
    import duckdb
    import polars as pl

    UserData.from_parquet(
        path.with_name("small.parquet"), **OPTIONS, memory_limit="64MB", store=path.with_name(f"{way}-0")
    )
    before, peak, done = anonymous(), [0.0], threading.Event()

    def watch() -> None:
        while not done.wait(0.01):
            peak[0] = max(peak[0], anonymous())

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.perf_counter()
    out = path.with_name(f"sorted-{way}")
    if way == "userdp":
        UserData.from_parquet(path, **OPTIONS, memory_limit=limit, store=out)
    elif way == "polars":
        pl.scan_parquet(path).sort("who").sink_parquet(out)
    else:
        with duckdb.connect(":memory:", config={"memory_limit": limit, "temp_directory": f"{out}-spill"}) as connection:
            connection.execute(f"COPY (FROM '{path}' ORDER BY who) TO '{out}' (FORMAT parquet)")
    seconds = time.perf_counter() - start
    done.set()
    watcher.join()
    return {"case": way, "wall_s": seconds, "peak_mb": peak[0] - before}


def store(repeats: int, quick: bool) -> list[dict]:
    """Passes over a store, and making one."""
    n_users, limit = (5_000, "64MB") if quick else (100_000, "128MB")
    records, console = [], Console()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.parquet"
        write(path, n_users)
        write(path.with_name("small.parquet"), 100)
        found = passes(path, repeats)
        table = Table("a pass", "wall s", "memory = 1", title_justify="left")
        for record in found:
            table.add_row(record["case"], f"{record['wall_s']:.4f}", f"{record['ratio']:.2f}")
        console.print(table)
        records += found
        table = Table(f"sorting by user, limit {limit}", "wall s", "peak MB", title_justify="left")
        for way in WAYS:
            words = [sys.executable, __file__, "--child", way, str(path), limit]
            try:
                told = subprocess.run(words, capture_output=True, text=True, check=True, timeout=_PATIENCE).stdout
            except subprocess.TimeoutExpired:
                table.add_row(way, f"> {_PATIENCE}", "")
                records.append({"case": way, "wall_s": None, "limit": limit})
                continue
            record = json.loads(told) | {"limit": limit}
            table.add_row(way, f"{record['wall_s']:.2f}", f"{record['peak_mb']:.0f}")
            records.append(record)
        console.print(table)
    return records


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(make(sys.argv[2], Path(sys.argv[3]), sys.argv[4])))
    else:
        run_parts("scale", __doc__, {"store": store})
