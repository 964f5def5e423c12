"""What benchmarks have in common: their command line, real data when it is there, results as JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from userdp.bench.provenance import provenance
from userdp.bench.tasks import known_tasks

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
