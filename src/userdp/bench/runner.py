"""Measure cells one by one or in several processes; each result is in the file before the next one is waited for."""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

import userdp
from userdp.bench.store import Cell, Record, Store

Measure = Callable[[Record, Record], Record]
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
_PACKAGE = str(Path(userdp.__file__).parent)


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
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _leave_interrupts_to_the_parent)
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
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(_PACKAGE)]
        place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
        return {"error": f"{type(error).__name__}{place}"}


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def _one_thread() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


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
