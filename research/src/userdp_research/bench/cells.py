"""Results in one JSON file, written whole after every cell: whatever ends a run, what was done is kept.

A cell is what is measured under one set of settings. It counts as done if the file holds it with the same settings and
the same version of userdp; cells that failed are tried again. Cells are measured one by one or in several processes.
"""

from __future__ import annotations

import importlib.metadata
import json
import multiprocessing
import os
import platform
import signal
import subprocess
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

import userdp
from userdp.data.tables import check_place, whole_file

FORMAT = "userdp bench 1"  # files keep it
NOTE = "NOT PRIVATE: runs were seeded and scored on the data itself. For data that may be published."
PACKAGE = Path(userdp.__file__).parent
REPOSITORY = PACKAGE.parents[1]
BUDGET = ("epsilon", "delta", "neighbours")  # settings of a cell that make its budget; the last may be left out
_PACKAGES = ("numpy", "scipy", "scikit-learn", "opendp", "dp-accounting")
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")

Record = dict[str, Any]
Measure = Callable[[Record, Record], Record]


@dataclass(frozen=True)
class Cell:
    """`settings` say what is measured; `context` what is needed for it but changes nothing, such as paths."""

    settings: Record
    context: Record = field(default_factory=dict)

    @property
    def key(self) -> str:
        return json.dumps(self.settings, sort_keys=True, allow_nan=False)


class Store:
    """The cells in a file. One process writes at a time."""

    def __init__(self, path: Path, run: Record) -> None:
        self.path, self._run, self._number = check_place(path), run, -1
        self._runs, records = _read(path) if path.exists() else ([], [])
        self._records: dict[str, Record] = {Cell(record["settings"]).key: record for record in records}

    def done(self, cell: Cell) -> bool:
        record = self._records.get(cell.key)
        return record is not None and record["version"] == userdp.__version__ and "error" not in record["result"]

    def add(self, cell: Cell, result: Record) -> None:
        """Keep a result, in place of an earlier one of the same settings."""
        if self._number < 0:
            self._runs.append(self._run)
            self._number = len(self._runs) - 1
        self._records.pop(cell.key, None)
        facts = {"version": userdp.__version__, "run": self._number}
        self._records[cell.key] = {"settings": cell.settings, **facts, "result": result}
        whole = {"format": FORMAT, "note": NOTE, "runs": self._runs, "cells": list(self._records.values())}
        text = json.dumps(whole, indent=1, allow_nan=False)
        with whole_file(self.path) as new:
            new.write_text(text)

    def records(self, cells: list[Cell]) -> list[Record]:
        """What is known of these cells, in their order."""
        return [self._records[cell.key] for cell in cells if cell.key in self._records]


def read_records(path: Path) -> list[Record]:
    """All cells of a file of results."""
    if not path.exists():
        raise FileNotFoundError(f"Expected results of `userdp-bench` at {path}, found nothing there: check the path.")
    return _read(path)[1]


def _read(path: Path) -> tuple[list[Record], list[Record]]:
    try:
        whole = json.loads(path.read_text())
        if whole["format"] != FORMAT:
            raise KeyError
        return list(whole["runs"]), list(whole["cells"])
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"Expected {path} to hold results of `userdp-bench`: choose another file.") from None


def run_cells(
    cells: Sequence[Cell], measure: Measure, store: Store, workers: int = 1, again: bool = False, quiet: bool = False
) -> int:
    """Measure what is not done yet, in this order; how many that were. `measure` must be a module's function."""
    left = [cell for cell in cells if again or not store.done(cell)]
    with _bar(len(cells), len(cells) - len(left), quiet) as tell:
        done = 0
        results = _one_by_one(left, measure, tell) if workers == 1 else _in_processes(left, measure, workers)
        try:
            for cell, result in results:
                store.add(cell, result)
                done += 1
                tell(_name(cell), 1)
        except KeyboardInterrupt:
            kept = f"{done} cells of this run are in {store.path}" if done else f"{store.path} is as it was"
            raise KeyboardInterrupt(f"Stopped. {kept}: the same command goes on from there.") from None
    return len(left)


def _one_by_one(
    cells: Sequence[Cell], measure: Measure, tell: Callable[[str, int], None]
) -> Iterator[tuple[Cell, Record]]:
    for cell in cells:
        tell(_name(cell), 0)
        yield cell, attempt(measure, cell)


def _in_processes(cells: Sequence[Cell], measure: Measure, workers: int) -> Iterator[tuple[Cell, Record]]:
    """Each process with one thread, which it must be told before it imports anything."""
    ignored = (signal.SIGINT, signal.SIG_IGN)  # interrupts are left to the parent
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), signal.signal, ignored)
    with _one_thread():
        waiting: dict[Future[Record], Cell] = {pool.submit(attempt, measure, cell): cell for cell in cells}
        try:
            for future in as_completed(waiting):
                yield waiting[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def attempt(measure: Measure, cell: Cell) -> Record:
    """The result, or where in the package it failed: one solver's bug must not end a night's run."""
    try:
        return measure(cell.settings, cell.context)
    except Exception as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(str(PACKAGE))]
        place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
        return {"error": f"{type(error).__name__}{place}"}


@contextmanager
def _one_thread() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        os.environ.update({name: value for name, value in before.items() if value is not None})
        for name in (name for name, value in before.items() if value is None):
            del os.environ[name]


def _name(cell: Cell) -> str:
    """A few words for the progress bar."""
    data = cell.settings.get("data") or cell.settings.get("scenario")
    parts = [data.get("name") if isinstance(data, dict) else cell.settings.get("loss")]
    parts += [cell.settings.get(key) for key in ("users", "solver", "peer")]
    return ", ".join(str(part) for part in parts if part is not None)


@contextmanager
def _bar(total: int, done: int, quiet: bool) -> Iterator[Callable[[str, int], None]]:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, *times, console=console, disable=quiet or not console.is_terminal) as bar:
        task = bar.add_task("cells", total=total, completed=done)
        yield lambda name, more: bar.update(task, description=name, advance=more)


def provenance() -> dict[str, Any]:
    """What a reader needs to repeat a measurement; `commit` is None outside of a checkout."""
    return {
        "userdp": userdp.__version__,
        "commit": _git("rev-parse", "HEAD"),
        "changed_since_commit": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "python": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "packages": {name: importlib.metadata.version(name) for name in _PACKAGES},
    }


def _git(*arguments: str) -> str | None:
    if not (REPOSITORY / "pyproject.toml").exists():  # installed: a repository around it is somebody else's
        return None
    try:
        command = ["git", "-C", str(REPOSITORY), *arguments]
        found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None


def _processor() -> str:
    """The processor's name where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
