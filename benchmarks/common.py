"""What benchmarks share: their command line, real data when it is there, scores, references, results as JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from rich.console import Console
from scipy.special import expit
from sklearn.metrics import roc_auc_score

import userdp
from userdp.data import UserData

REPOSITORY = Path(__file__).parent.parent
DATA = Path(os.environ.get("USERDP_DATA", REPOSITORY.parent / "shared" / "data"))


@dataclass(frozen=True)
class Task:
    """A binary task on real users: who is in which fold, and public bounds."""

    name: str
    target: str
    cap: int
    row_norm: float

    @property
    def path(self) -> Path:
        return DATA / self.name / f"{self.name}.parquet"

    def load(self, seed: int = 0, n_users: int | None = None) -> tuple[UserData, UserData]:
        """Training users (capped, and that many of them) and test users, as float32 with an intercept."""
        table = pq.read_table(self.path)
        names = [column for column in table.column_names if column[:2] in ("x_", "z_")]
        fold, user = table["fold"].to_numpy(), table["user"].to_numpy()
        chosen = fold < 8
        if n_users is not None:
            everyone = np.unique(user[chosen])
            chosen &= np.isin(user, np.random.default_rng(seed).choice(everyone, n_users, replace=False))
        options = {"user": "user", "target": self.target, "features": names, "fit_intercept": True, "dtype": "float32"}
        train = UserData.from_table(table.filter(chosen), max_rows_per_user=self.cap, insecure_seed=seed, **options)
        return train, UserData.from_table(table.filter(fold >= 8), **options)


TASKS = {
    "openpowerlifting": Task("openpowerlifting", "y_good", cap=30, row_norm=4.0),
    "online_retail": Task("online_retail", "y_bulk", cap=30, row_norm=3.6),
}


def logistic_optimum(data: UserData, ridge: float = 1e-6) -> np.ndarray:
    """Newton's method on all rows: the model that protects nobody."""
    X, y = data.rows.astype(np.float64), data.targets
    w = np.zeros(X.shape[1])
    for _ in range(25):
        p = expit(X @ w)
        gradient = X.T @ (p - y) / len(y) + ridge * w
        hessian = (X * (p * (1 - p))[:, None]).T @ X / len(y) + ridge * np.eye(len(w))
        step = np.linalg.solve(hessian, gradient)
        w -= step
        if np.abs(step).max() < 1e-9:
            break
    return w


def scores(weights: np.ndarray, data: UserData) -> tuple[float, float]:
    """Log loss and AUC over rows."""
    margins = data.rows.astype(np.float64) @ weights
    return float(np.mean(np.logaddexp(0, (1 - 2 * data.targets) * margins))), float(
        roc_auc_score(data.targets, margins)
    )


def run_parts(name: str, description: str | None, parts: dict[str, Callable[[int, bool], list[dict]]]) -> None:
    """Run the parts asked for on the command line, each with (repeats, quick), and save what they return."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=parts, default=list(parts), help="parts to run; all by default")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="fewer sizes; results are not saved")
    asked = parser.parse_args()
    results = {part: parts[part](asked.repeats, asked.quick) for part in asked.only}
    if not asked.quick:
        Console().print(f"Wrote {save(name, results)}")


def save(name: str, results: dict[str, object]) -> Path:
    """Write results/<name>.json beside the benchmarks, with versions and commit; parts not run now are kept."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=REPOSITORY, check=False)
    machine = {"python": platform.python_version(), "machine": platform.machine(), "cores": os.cpu_count()}
    path = Path(__file__).parent / "results" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    earlier = json.loads(path.read_text())["results"] if path.exists() else {}
    run = {"userdp": userdp.__version__, "commit": commit.stdout.strip(), **machine}
    record = {"results": earlier | {part: run | {"rows": rows} for part, rows in results.items()}}
    path.write_text(json.dumps(record, indent=1))
    return path
