"""Sparse rows: time and memory of a fit of a CSR matrix, 1,000,000 rows x 10,000 columns, 30 non-zeros a row.

50,000 users with 20 rows each, float32 values. Times, medians of fits in turns, are in units of `values.sum()`, one
pass over the entries; scikit-learn's `LogisticRegression` (lbfgs, no privacy) takes as many iterations as our fit takes
passes. Memory is what a fit has at most beyond what the process had before it, over the matrix's own. Time is measured
with half and twice as many non-zeros, and with fewer columns, too: it should grow with the non-zeros only.

    python benchmarks/sparse.py [--repeats 7] [--quick]
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
import warnings
from collections.abc import Callable

import numpy as np
from common import forget_peak, peak, run_parts
from rich.console import Console
from rich.table import Table
from scipy.sparse import csr_array
from sklearn.linear_model import LogisticRegression as Plain

from userdp import LogisticRegression, UtilityWarning

ROWS_PER_USER, EPSILON, DELTA = 20, 1.0, 1e-8
SIZES = ((1_000_000, 10_000, 30), (1_000_000, 10_000, 15), (1_000_000, 10_000, 60), (1_000_000, 1_000, 30))


def people(rows: int, columns: int, entries: int) -> tuple[csr_array, np.ndarray, np.ndarray]:
    """Rows of words, frequent ones first, as in texts; the hundred most frequent ones tell the class."""
    rng = np.random.default_rng(0)
    values = rng.random(rows * entries, np.float32)
    indices = np.empty(rows * entries, np.int32)
    for start in range(0, len(indices), 1 << 22):
        drawn = rng.random(min(1 << 22, len(indices) - start), np.float32)
        indices[start : start + len(drawn)] = columns ** drawn.astype(np.float64) - 1
    X = csr_array((values, indices, np.arange(rows + 1, dtype=np.int64) * entries), shape=(rows, columns))
    truth = np.zeros(columns, np.float32)
    truth[:100] = rng.standard_normal(100)
    y = rng.random(rows) < 1 / (1 + np.exp(-(X @ truth)))
    return X, y, np.arange(rows) // ROWS_PER_USER


def child(rows: int, columns: int, entries: int, repeats: int) -> None:
    """Everybody in turns in this process; the first turn does not count."""
    X, y, ids = people(rows, columns, entries)

    def private() -> LogisticRegression:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UtilityWarning)  # so many weights for so few users: time is measured here
            options = {"max_rows_per_user": ROWS_PER_USER, "allow_weak": True}
            return LogisticRegression(EPSILON, DELTA, **options).fit(X, y, groups=ids)

    passes = private().n_gradients_ / rows

    def plain() -> Plain:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it does not converge in so few iterations
            return Plain(C=math.inf, max_iter=math.ceil(passes), tol=0.0).fit(X, y)

    cases: dict[str, Callable[[], object]] = {"sum": X.data.sum, "userdp": private, "scikit-learn": plain}
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    memory = {}
    for turn in range(repeats + 1):
        for name, work in cases.items():
            before = forget_peak()
            cpu, wall = time.process_time(), time.perf_counter()
            work()
            if turn:
                taken[name].append((time.process_time() - cpu, time.perf_counter() - wall))
            memory[name] = peak() - before
    own = X.data.nbytes + X.indices.nbytes + X.indptr.nbytes
    found: dict[str, float] = {"rows": rows, "columns": columns, "entries": entries, "passes": passes, "bytes": own}
    medians = {name: np.median(times, axis=0) for name, times in taken.items()}
    for name in ("userdp", "scikit-learn"):
        cpu, wall = medians[name]
        found |= {f"{name} cpu": cpu, f"{name} wall": wall, f"{name} sums": cpu / medians["sum"][0]}
        found[f"{name} memory / own"] = memory[name] / own
    found["cpu / scikit-learn"] = found["userdp cpu"] / found["scikit-learn cpu"]
    found["sums a pass"] = found["userdp sums"] / passes
    sys.stdout.write(json.dumps(found))


def fits(repeats: int, quick: bool) -> list[dict]:
    """A fit at each size, each in a process of its own."""
    found = []
    for rows, columns, entries in SIZES:
        size = (rows // 20 if quick else rows, columns, entries, repeats)
        command = [sys.executable, __file__, "--child", *map(str, size)]
        found.append(json.loads(subprocess.check_output(command)))
    table = Table(*found[0])
    for row in found:
        table.add_row(*(f"{cell:.3g}" for cell in row.values()))
    Console(width=180).print(table)
    return found


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*map(int, sys.argv[2:]))
    else:
        run_parts("sparse", __doc__, {"fits": fits})
