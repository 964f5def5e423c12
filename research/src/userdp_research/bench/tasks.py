"""Tasks on real users: training and test users that have nobody in common, and public bounds."""

from __future__ import annotations

import functools
import hashlib
import math
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from userdp import losses
from userdp.data.schema import choose_features, ids, numbers, require_column
from userdp.data.tables import open_table
from userdp.data.users import UserData
from userdp.losses import Loss
from userdp_research.bench.cells import REPOSITORY

_HELD_OUT = 5  # one user in so many is a test user, where no column says so


@dataclass(frozen=True)
class Task:
    """Predict `target` of users who are in no training set: 0 or 1, or a number within the public `target_range`.

    fold: column whose values in `test_folds` mark test users; None holds out a fifth of the users.
    cap: rows that are kept of a training user, None for all; row_norm: how long a row may be, about; None for
    sqrt(weights). With a `target_range` targets are scaled to [-1, 1], and squared errors are what counts.
    """

    name: str
    path: Path
    target: str
    user: str = "user"
    features: str = "x_*"
    fold: str | None = "fold"
    test_folds: tuple[float, ...] = (8.0, 9.0)
    cap: int | None = 30
    row_norm: float | None = None
    target_range: tuple[float, float] | None = None

    @property
    def loss(self) -> Loss:
        """What is minimised and scored."""
        return losses.logistic if self.target_range is None else losses.squared

    @property
    def middle(self) -> float:
        """Target that is scaled to 0."""
        return 0.0 if self.target_range is None else sum(self.target_range) / 2

    @property
    def unit(self) -> float:
        """How much of a target is scaled to 1."""
        return 1.0 if self.target_range is None else (self.target_range[1] - self.target_range[0]) / 2

    @property
    def n_users(self) -> int:
        """How many training users there are."""
        table = _table(self.uncapped)
        return len(np.unique(table.users[~table.test]))

    @property
    def uncapped(self) -> Task:
        """The same task with all rows of all training users."""
        return replace(self, cap=None, row_norm=None)

    def longest(self, n_weights: int) -> float:
        """How long a row may be, its constant counted in."""
        return math.sqrt(n_weights) if self.row_norm is None else self.row_norm

    def load(self, seed: int = 0, n_users: int | None = None) -> tuple[UserData, UserData]:
        """Training users (capped, and that many of them) and test users, as float32 with an intercept."""
        return self.load_train(seed, n_users), self.load_test()

    def load_train(self, seed: int = 0, n_users: int | None = None) -> UserData:
        """Training users; with all their rows not kept for the next call, because they are many."""
        return (_training if self.cap else _training.__wrapped__)(self, seed, n_users)

    def load_test(self) -> UserData:
        """Test users, with all their rows."""
        return _testing(self.uncapped)

    def settings(self) -> dict[str, Any]:
        """What tells this task from others: all but the place of its file, whose content counts instead."""
        names = ("name", "target", "user", "features", "fold", "cap", "row_norm")
        more = {"test_folds": list(self.test_folds) if self.fold else None, "sha256": _digest(self.path)}
        more |= {"target_range": list(self.target_range)} if self.target_range else {}
        return {name: getattr(self, name) for name in names} | more

    @staticmethod
    def from_settings(settings: dict[str, Any], path: str) -> Task:
        """Inverse of `settings`."""
        values = {key: value for key, value in settings.items() if key != "sha256"}
        ends = settings.get("target_range")
        values["target_range"] = (float(ends[0]), float(ends[1])) if ends else None
        return Task(**values | {"path": Path(path), "test_folds": tuple(settings["test_folds"] or ())})


def known_tasks(folder: Path | None = None) -> dict[str, Task]:
    """The tasks that are measured where their files are: in `folder`, $USERDP_DATA or ../shared/data.

    Two of two classes, and on the same users two of regression: attempted weight (100 kg) and log quantity.
    """
    places = [folder] if folder else [Path(os.environ["USERDP_DATA"])] if os.environ.get("USERDP_DATA") else []
    places = places or [base.parent / "shared" / "data" for base in (REPOSITORY, Path.cwd())]

    def path(name: str) -> Path:
        found = [place / name / f"{name}.parquet" for place in places]
        return next((path for path in found if path.exists()), found[0])

    lifting, retail = path("openpowerlifting"), path("online_retail")
    tasks = (
        Task("openpowerlifting", lifting, "y_good", features="x_*,z_*", row_norm=4.0),
        Task("online_retail", retail, "y_bulk", row_norm=3.6),
        Task("openpowerlifting-kg", lifting, "y_kg", row_norm=4.0, target_range=(0.1, 6.0)),
        Task("online_retail-quantity", retail, "y_logqty", row_norm=3.6, target_range=(0.0, 6.91)),
    )
    return {task.name: task for task in tasks}


@dataclass(frozen=True, eq=False)
class _Table:
    X: np.ndarray = field(repr=False)
    y: np.ndarray = field(repr=False)
    users: np.ndarray = field(repr=False)
    test: np.ndarray = field(repr=False)


@functools.lru_cache(maxsize=2)
def _table(task: Task) -> _Table:
    """The columns as arrays; users are numbered by first appearance."""
    table = open_table(task.path)
    others = tuple(name for name in (task.user, task.target, task.fold) if name is not None)
    for name in others:
        require_column(table.column_names, name)
    names = choose_features(table.column_names, task.features, exclude=others)
    identifiers = ids(table[task.user]).combine_chunks().dictionary_encode()
    users = np.asarray(identifiers.indices.fill_null(len(identifiers.dictionary)))
    if len(users) == 0:
        raise ValueError(f"Expected at least one row in {task.path}, got an empty table.")
    y = numbers(f"column {task.target!r}", table[task.target])
    if task.target_range is not None:
        y = (np.clip(y, *task.target_range) - task.middle) / task.unit
    elif not np.isin(y, (0.0, 1.0)).all():
        raise ValueError(f"Expected column {task.target!r} to hold 0 and 1 only: benchmarks are of two classes.")
    X = np.empty((len(users), len(names)), np.float32)
    for position, name in enumerate(names):
        X[:, position] = numbers(f"column {name!r}", table[name])
        if not np.isfinite(X[:, position]).all():
            raise ValueError(f"Expected finite numbers in column {name!r}, got missing or infinite ones: fill them.")
    return _Table(X, y, users, _test_rows(task, table, users))


def _test_rows(task: Task, table: Any, users: np.ndarray) -> np.ndarray:
    if task.fold is None:
        everyone = np.unique(users)
        held_out = np.random.default_rng(0).permutation(everyone)[: len(everyone) // _HELD_OUT]
        test = np.isin(users, held_out)
    else:
        test = np.isin(numbers(f"column {task.fold!r}", table[task.fold]), task.test_folds)
    if np.isin(users[~test], users[test]).any():
        raise ValueError(f"Expected all rows of a user in the same fold of {task.fold!r}: split by user.")
    if test.all() or not test.any():
        raise ValueError(f"Expected training and test users in {task.path}: choose other --test-folds.")
    return test


@functools.lru_cache(maxsize=6)
def _training(task: Task, seed: int, n_users: int | None) -> UserData:
    table = _table(task.uncapped)
    chosen = ~table.test
    if n_users is not None:
        everyone = np.unique(table.users[chosen])
        chosen &= np.isin(table.users, np.random.default_rng(seed).choice(everyone, n_users, replace=False))
    return _users(table, chosen, max_rows_per_user=task.cap, insecure_seed=seed)


@functools.lru_cache(maxsize=2)
def _testing(task: Task) -> UserData:
    table = _table(task.uncapped)
    return _users(table, table.test)


def _users(table: _Table, chosen: np.ndarray, **options: Any) -> UserData:
    columns = (table.X[chosen], table.y[chosen], table.users[chosen])
    return UserData.from_arrays(*columns, fit_intercept=True, dtype="float32", **options)


@functools.lru_cache(maxsize=8)
def _digest(path: Path) -> str:
    if not path.is_file():
        return "a folder"
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
