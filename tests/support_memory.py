"""A fit on ten times more data than memory, under RLIMIT_DATA; run by test_store.py in a process of its own."""

import json
import resource
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from userdp import LogisticRegression, UserData

FEATURES, ROWS_PER_USER, LIMIT = 20, 20, 256 * 10**6
SLACK = 48 * 10**6  # of stacks of threads and what allocators reserve, which count here though nothing is in them
OPTIONS = {"user": "who", "features": "x*", "target": "y", "classes": [False, True], "fit_intercept": True}
NAMES = [f"x{i}" for i in range(FEATURES)]


def write(path, n_users):
    """A table whose users' rows are scattered; how many bytes its rows and targets have as they are trained on."""
    rng, n_rows = np.random.default_rng(0), n_users * ROWS_PER_USER
    writer = None
    for start in range(0, n_rows, 100_000):
        some = min(100_000, n_rows - start)
        X = rng.standard_normal((FEATURES, some), dtype=np.float32)
        columns = {"who": rng.integers(0, n_users, some), "y": X[0] > X[1]} | dict(zip(NAMES, X, strict=True))
        table = pa.table(columns)
        writer = writer or pq.ParquetWriter(path, table.schema, compression="none", use_dictionary=False)
        writer.write_table(table)
    writer.close()
    return n_rows * 8 * (FEATURES + 2)


def fit(path, **more):
    data = UserData.from_parquet(path, **OPTIONS, max_rows_per_user=50, **more)
    return LogisticRegression(epsilon=2.0, classes=[False, True]).fit_users(data)


def data_bytes():
    """Memory that this process may write: what RLIMIT_DATA counts."""
    told = Path("/proc/self/status").read_text()
    return 1024 * int(told.split("VmData:")[1].split()[0])


def main(folder):
    write(folder / "small.parquet", 500)
    fit(folder / "small.parquet", memory_limit=LIMIT, store=folder / "small")  # loads and compiles all there is
    size = write(folder / "large.parquet", 10 * LIMIT // (8 * (FEATURES + 2) * ROWS_PER_USER) + 1)
    limit = data_bytes() + LIMIT + SLACK
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    model = fit(folder / "large.parquet", memory_limit=LIMIT)
    coef = model.coef_[0]
    fitted = bool(coef[0] > 0 > coef[1] and np.abs(coef[2:]).max() < coef[0] / 4)
    refused = False
    try:
        fit(folder / "large.parquet")
    except (MemoryError, ValueError):  # Arrow may also tell it as a file that cannot be mapped
        refused = True
    print(json.dumps({"limit": LIMIT, "data": size, "fitted": fitted, "refused": refused}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
