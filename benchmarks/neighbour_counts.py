"""Time exact neighbour counts against brute force.

Ours: `userdp.paper.neighbours.neighbour_counts`, exact to the last tie.
Brute force: blocked numpy, float64: |x|^2 + |y|^2 - 2 x.y by one GEMM for each block of 512 rows, updated in
place, compared and summed. It is not exact: pairs near the radius may be miscounted.
Limit: one `vectors.sum()`, a single pass over memory, which no method can beat.

Both may use all threads of the BLAS. The two are timed in turn within one run; medians of 5 (3 for slow cases).
Ours and the limit start from a cold cache. Use a quiet machine: beside other work on the same cores, ratios of the
computed cases at K <= 2,000 were seen to fall from above 2 to about 1 or less.
"x brute" is brute force's time over ours (more is better); "x sum" is our time over one pass (1 is the limit).

Data are Gaussian, with typical pair distance t and farthest norm f:
  concentrated   radius 2.1 f: every pair close, certified in O(K d)
  outliers       the same, 1% of the rows 20 times longer
  bulk           radius 1.05 t, among the pair distances
  no structure   rows scaled by exponential factors, radius t
  ties           two points, exactly one radius apart: half of all pairs are exact ties, the slowest path

Run `python benchmarks/neighbour_counts.py [--quick]`; results also go to results/neighbour_counts.json.
"""

import math
import statistics
import time
from collections.abc import Callable

import numpy as np
from common import run_parts
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from userdp.paper.neighbours import neighbour_counts

Floats = NDArray[np.float64]
CASES = ["concentrated", "outliers", "bulk", "no structure", "ties"]
EVICT = np.ones(2**23)  # Read before each timing that a warm cache would flatter.


def brute_force(vectors: Floats, radius: float) -> NDArray[np.int64]:
    """Counts by blocked float64 GEMM."""
    norms = np.einsum("ij,ij->i", vectors, vectors)
    counts = np.empty(len(vectors), dtype=np.int64)
    for start in range(0, len(vectors), 512):
        squares = vectors[start : start + 512] @ vectors.T
        squares *= -2
        squares += norms[start : start + 512, None]
        squares += norms
        counts[start : start + 512] = np.count_nonzero(squares <= radius * radius, axis=1)
    return counts


def make(case: str, rows: int, columns: int) -> tuple[Floats, float]:
    """Vectors and radius of one case."""
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(rows, columns))
    typical = math.sqrt(2 * columns)
    reach = 2.1 * float(np.linalg.norm(vectors, axis=1).max())
    match case:
        case "concentrated":
            return vectors, reach
        case "outliers":
            vectors[rng.choice(rows, rows // 100, replace=False)] *= 20
            return vectors, reach
        case "bulk":
            return vectors, 1.05 * typical
        case "no structure":
            return vectors * rng.exponential(size=(rows, 1)), typical
        case "ties":
            vectors[:] = 0
            vectors[::2, 0] = typical
            return vectors, typical
    raise ValueError(f"Expected case={case} in {CASES}.")


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(case: str, rows: int, columns: int) -> dict[str, float | int | str]:
    """Medians of interleaved timings of one case."""
    vectors, radius = make(case, rows, columns)
    repeats = 3 if rows * rows * columns > 2 * 10**9 else 5
    neighbour_counts(vectors, radius)
    ours, brute, passes = [], [], []
    for _ in range(repeats):
        brute.append(seconds(lambda: brute_force(vectors, radius)))
        EVICT.sum()
        ours.append(seconds(lambda: neighbour_counts(vectors, radius)))
        EVICT.sum()
        passes.append(seconds(vectors.sum))
    mine = statistics.median(ours)
    return {
        "case": case,
        "rows": rows,
        "columns": columns,
        "repeats": repeats,
        "seconds": mine,
        "times_brute_force": statistics.median(brute) / mine,
        "times_one_pass": mine / statistics.median(passes),
    }


def counts(repeats: int, quick: bool) -> list[dict]:
    """All cases and sizes. How often each is timed depends on how long it takes."""
    neighbour_counts(np.eye(300), 1.0)  # Compile outside the timings.
    console = Console()
    table = Table("case", "K", "d", "ours, ms", "x brute", "x sum")
    results = []
    for rows in [500, 2_000] if quick else [500, 2_000, 8_000, 20_000]:
        for columns in [10, 50, 500]:
            for case in CASES:
                if case == "ties" and rows > 8_000:
                    continue  # As at 8,000 rows, and slow.
                result = measure(case, rows, columns)
                results.append(result)
                passes = f"{result['times_one_pass']:.1f}" if case == "concentrated" else ""
                milliseconds = f"{1e3 * float(result['seconds']):.2f}"
                speed = f"{result['times_brute_force']:.2f}"
                table.add_row(case, f"{rows:,}", str(columns), milliseconds, speed, passes)
    console.print(table)
    return results


PARTS = {"counts": counts}


if __name__ == "__main__":
    run_parts("neighbour_counts", __doc__, PARTS)
