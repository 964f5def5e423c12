"""Made-up users in a Parquet file, with folds, and `userdp-bench` called in this process."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from typer.testing import CliRunner

from userdp.data.tables import write_table
from userdp_research.cli import app

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


def run(*arguments):
    """The command's exit code and output; whatever it does, there is no traceback."""
    result = CliRunner(env={"COLUMNS": "100", "USERDP_DEBUG": None}).invoke(app, [str(a) for a in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    return result


QUICK = ("--epsilon", "4", "--users", "all", "--passes", "unlimited", "--repeats", "2")
