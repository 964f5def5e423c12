"""Made-up people, and the command line called in this process."""

from __future__ import annotations

import numpy as np
from typer.testing import CliRunner

from userdp.cli import app

N_USERS, ROWS = 600, 4
SECRET = "SECRET-4711"

# What nearly every fit here is called with: quick, and private.
COLUMNS = ("--user-column", "user", "--features", "x_*")
BUDGET = ("--epsilon", "4", "--delta", "1e-6", "--solver", "phased-sgd", "--max-rows-per-user", str(ROWS))

SEEDED = ("--insecure-seed", "1", "--json")  # repeatable, for tests of accuracy


def people(n_users=N_USERS, seed=0):
    """Users of 4 rows each; targets of every kind that depend on x_a - x_b."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (n_users * ROWS, 2))
    score = x[:, 0] - x[:, 1] + rng.normal(0, 0.3, len(x))
    return {
        "user": np.repeat([f"u{i:04}" for i in range(n_users)], ROWS).tolist(),
        "x_a": x[:, 0],
        "x_b": x[:, 1],
        "text": np.where(score > 0, "yes", "no").tolist(),
        "flag": score > 0,
        "whole": np.where(score > 0, 2, 1),
        "three": np.array(["low", "mid", "top"])[np.digitize(score, [-0.5, 0.5])].tolist(),
        "amount": 10 + 5 * score,
    }


def run(*arguments):
    """The command's exit code and output; whatever it does, there is no traceback."""
    result = CliRunner(env={"COLUMNS": "100", "USERDP_DEBUG": None}).invoke(app, [str(a) for a in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    assert SECRET not in result.output
    return result
