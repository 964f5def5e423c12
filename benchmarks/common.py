"""What benchmarks share: their command line, real data when it is there, results as JSON."""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console
from sklearn.metrics import roc_auc_score

from userdp.data.users import UserData
from userdp.losses import logistic
from userdp_research.bench.cells import provenance
from userdp_research.bench.references import user_optimum
from userdp_research.bench.tasks import known_tasks

TASKS = {name: task for name, task in known_tasks().items() if task.loss.classifies}


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
    path = Path(__file__).parent / "results" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    earlier = json.loads(path.read_text())["results"] if path.exists() else {}
    record = {"results": earlier | {part: provenance() | {"rows": rows} for part, rows in results.items()}}
    path.write_text(json.dumps(record, indent=1))
    return path


def saved(name: str, part: str) -> list[dict]:
    """What `save` wrote of a part, if it did."""
    path = Path(__file__).parent / "results" / f"{name}.json"
    results = json.loads(path.read_text())["results"] if path.exists() else {}
    return list(results[part]["rows"]) if part in results else []


def forget_peak() -> int:
    """Start to look for the peak of this process's memory anew: the bytes that it has now."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what was freed before is not to be used again unseen
    Path("/proc/self/clear_refs").write_text("5")
    return _memory("VmRSS")


def peak() -> int:
    """Most bytes that this process had since `forget_peak`."""
    return _memory("VmHWM")


def _memory(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def logistic_optimum(data: UserData, ridge: float = 1e-6) -> np.ndarray:
    """Minimiser of the logistic loss of all rows."""
    return user_optimum(logistic, replace(data, offsets=np.arange(data.n_rows + 1)), ridge)


def scores(weights: np.ndarray, data: UserData) -> tuple[float, float]:
    """Log loss and AUC over rows."""
    margins = data.dense().astype(np.float64) @ weights
    log_loss = np.mean(np.logaddexp(0, (1 - 2 * data.targets) * margins))
    return float(log_loss), float(roc_auc_score(data.targets, margins))
