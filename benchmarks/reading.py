"""From arrays and Parquet files to users, 2 million rows of 20 float32 features, 100,000 users.

All in one run, interleaved, CPU and wall seconds, medians. Arrays and columns are compared with `X.sum()`; Parquet with
polars' scan, sort by user and collect of the same columns; both keep float32.

Run: python benchmarks/reading.py [--only arrays labels parquet] [--repeats 7] [--quick]
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from common import run_parts
from rich.console import Console
from rich.table import Table

from userdp.data.schema import positions
from userdp.data.users import UserData

ROWS_PER_USER, FEATURES = 20, 20
POLARS = "polars"
RNG = np.random.default_rng(0)


def compared(title: str, cases: dict[str, Callable[[], object]], unit: str, repeats: int) -> list[dict]:
    """Median times of all cases, run in turns, and their ratios to the case named `unit` in the same turn."""
    turns: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    for _ in range(repeats + 1):
        for name, work in cases.items():
            cpu, wall = time.process_time(), time.perf_counter()
            work()
            turns[name].append((time.process_time() - cpu, time.perf_counter() - wall))
    seconds = {name: np.array(times[1:]) for name, times in turns.items()}  # the first turn warms up
    table = Table(title, "CPU s", "wall s", f"CPU, {unit} = 1", "wall", title_justify="left")
    records = []
    for name, times in seconds.items():
        (cpu, wall), ratios = np.median(times, axis=0), np.median(times / seconds[unit], axis=0)
        table.add_row(name, f"{cpu:.3f}", f"{wall:.3f}", f"{ratios[0]:.2f}", f"{ratios[1]:.2f}")
        records.append({"case": name, "unit": unit, "cpu_s": cpu, "wall_s": wall})
        records[-1] |= {"cpu_ratio": ratios[0], "wall_ratio": ratios[1]}
    Console().print(table)
    return records


def people(quick: bool) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Features, and owners of rows: sorted, contiguous in another order, and shuffled."""
    n_users = 5_000 if quick else 100_000
    X = RNG.standard_normal((n_users * ROWS_PER_USER, FEATURES), dtype=np.float32)
    users = np.repeat(np.arange(n_users), ROWS_PER_USER)
    contiguous = np.repeat(RNG.permutation(n_users), ROWS_PER_USER)
    return X, {"sorted": users, "contiguous": contiguous, "unsorted": RNG.permutation(users)}


def arrays(repeats: int, quick: bool) -> list[dict]:
    """Arrays to users, with ids of several types."""
    X, owners = people(quick)
    y, records = np.zeros(len(X)), []
    for layout, users in owners.items():
        words = np.char.add("u", users.astype(str))
        kinds = {"int64": users, "text": words, "objects": words.astype(object), "pandas": pd.Series(words)}
        kinds |= {"polars": pl.Series(words), "arrow": pa.array(words)}
        cases = {
            f"{layout}, ids {name}": (lambda ids=ids: UserData.from_arrays(X, y, ids)) for name, ids in kinds.items()
        }
        gather = {"sort + gather": lambda users=users: X[np.argsort(users, kind="stable")]}
        records += compared(f"arrays, {layout}", {"X.sum()": X.sum} | gather | cases, "X.sum()", repeats)
    return records


def labels(repeats: int, quick: bool) -> list[dict]:
    """Labels to positions in the classes."""
    X, _ = people(quick)
    truth = RNG.random(len(X)) < 0.5
    words = np.where(truth, "yes", "no")
    columns = {"bool": truth, "int64": truth.astype(int), "text": words, "objects": words.astype(object)}
    columns |= {
        "list": words.tolist(),
        "pandas": pd.Series(words),
        "polars": pl.Series(words),
        "arrow": pa.array(words),
    }
    columns["pandas category"] = columns["pandas"].astype("category")
    kinds = {"bool": [False, True], "int64": [0, 1]}
    cases = {
        name: (lambda name=name, column=column: positions("y", column, kinds.get(name, ["no", "yes"])))
        for name, column in columns.items()
    }
    return compared("labels", {"X.sum()": X.sum} | cases, "X.sum()", repeats)


def readers(path: Path, columns: list[str]) -> dict[str, Callable[[], object]]:
    """The file to users, or sorted by them, in several ways."""
    options = {"user": "user", "features": columns, "target": "y"}
    return {
        POLARS: lambda: pl.scan_parquet(path).select("user", "y", *columns).sort("user").collect(),
        "userdp": lambda: UserData.from_parquet(path, dtype=np.float32, **options),
        "userdp, float64": lambda: UserData.from_parquet(path, **options),
    }


def parquet(repeats: int, quick: bool) -> list[dict]:
    """Parquet to users, against polars."""
    X, owners = people(quick)
    columns = {f"x{i}": X[:, i] for i in range(FEATURES)}
    records = []
    with tempfile.TemporaryDirectory() as folder:
        for layout in ("sorted", "unsorted"):
            for kind in ("int64", "text"):
                users = owners[layout] if kind == "int64" else np.char.add("u", owners[layout].astype(str))
                path = Path(folder) / "table.parquet"
                pq.write_table(pa.table({"user": users, "y": np.zeros(len(X)), **columns}), path)
                found = compared(f"Parquet, {layout}, ids {kind}", readers(path, list(columns)), POLARS, repeats)
                records += [{"layout": layout, "ids": kind} | record for record in found]
    return records


if __name__ == "__main__":
    run_parts("reading", __doc__, {"arrays": arrays, "labels": labels, "parquet": parquet})
