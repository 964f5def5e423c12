"""Made-up users in a Parquet file, with folds."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from userdp.data.tables import write_table

N_USERS, ROWS = 400, 6


def people(n_users=N_USERS, seed=0):
    rng = np.random.default_rng(seed)
    users = np.repeat(np.arange(n_users), ROWS)
    x = rng.uniform(-1, 1, (len(users), 2))
    y = rng.random(len(users)) < 1 / (1 + np.exp(-4 * x[:, 0] + 3 * x[:, 1]))
    return {"user": users, "x_a": x[:, 0], "x_b": x[:, 1], "y": y.astype(np.int8), "fold": users % 10}


def write_people(path, **changed):
    write_table(pa.table(people() | changed), path)
    return path


def reading(path):
    """Options that read the file."""
    return ("--data", path, "--target", "y", "--fold", "fold", "--rows", ROWS)


QUICK = ("--epsilon", "4", "--users", "all", "--passes", "unlimited", "--repeats", "2")
