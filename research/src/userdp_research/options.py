"""What options of `userdp-bench` say: lists of numbers and names, and the data sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from userdp.cli.errors import InputError
from userdp.privacy.accounting import Budget
from userdp_research.bench.tasks import Task, known_tasks


def tasks(
    data: Path | None,
    user: str,
    target: str | None,
    features: str,
    fold: str | None,
    test_folds: str,
    rows: str,
    row_norm: float | None,
    only: str = "all",
) -> list[Task]:
    """The file that is given, or the known tasks whose files are there, with so many rows of a training user each."""
    caps = counts(rows, "--rows")
    if data is None:
        if target is not None or fold is not None:
            raise InputError("Expected --data with --target and --fold: the known data sets have their own.")
        known = known_tasks()
        found = [known[name] for name in names(only, list(known), "--tasks") if known[name].path.exists()]
        if not found:
            raise InputError("Expected data sets in the folder that USERDP_DATA names, found none: or give --data.")
    else:
        if target is None:
            raise InputError("Expected --target, the column to predict, with --data.")
        if row_norm is not None and not 0 < row_norm < float("inf"):
            raise InputError(f"Expected --row-norm {row_norm} to be a finite number > 0.")
        folds = tuple(_numbers(test_folds, "--test-folds", float))
        found = [Task(data.stem, data, target, user, features, fold, folds, row_norm=row_norm)]
    return [replace(task, cap=cap) for task in found for cap in caps]


def names(text: str, known: Sequence[str], option: str = "--solvers") -> list[str]:
    """Known names with commas between."""
    if text == "all":
        return list(known)
    asked = [name.strip() for name in text.split(",") if name.strip()]
    for name in asked:
        if name not in known:
            raise InputError(f"Expected {option} among {', '.join(known)}; got {name!r}.")
    if not asked:
        raise InputError(f"Expected {option} to name one at least.")
    return asked


def _numbers(text: str, option: str, kind: Callable[[str], Any]) -> list[Any]:
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"Expected {option} to be numbers with commas between, got {text!r}.") from None


def whole(text: str, option: str, none: str) -> list[int | None]:
    """Whole numbers >= 1; the word stands for None."""
    found = _numbers(text, option, lambda part: None if part.strip() == none else int(part))
    return [None if n is None else count(n, option) for n in found]


def counts(text: str, option: str) -> list[int]:
    """Whole numbers >= 1."""
    return [count(n, option) for n in _numbers(text, option, int)]


def count(n: int, option: str) -> int:
    """A whole number >= 1."""
    if n < 1:
        raise InputError(f"Expected {option} to be whole numbers >= 1, got {n}.")
    return n


def epsilons(text: str, delta: float) -> list[float]:
    """Epsilons that make a budget with this delta."""
    found = _numbers(text, "--epsilon", float)
    return [Budget(epsilon, delta).epsilon for epsilon in found]


def setting(text: str) -> tuple[str, Any]:
    """NAME=VALUE, a number where it is one."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise InputError(f"Expected --set NAME=VALUE, got {text!r}.")
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, value
