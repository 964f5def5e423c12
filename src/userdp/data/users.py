"""Rows grouped by user: the only holder of raw data.

User u owns rows offsets[u] .. offsets[u + 1]. A user may hold anything, NaN and infinity included: such values
raise and warn nowhere, because a message that depends on a user's data is a leak. Errors speak of types,
dimensions and column names only, never of numbers of rows. Users are numbered by first appearance, and their
identifiers are dropped unless asked for.

Rows with a missing or infinite cell, or target, are left out when users are made of arrays, tables or files, before
rows are capped: their owner keeps the others, and stays a user even without any. Whether a row is left out is a
function of that row.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from userdp.data.groups import Groups, Options, check_seed, running_total
from userdp.data.schema import Schema, collected, ids, matrix, numbers
from userdp.data.source import Source
from userdp.data.sparse import SparseRows, is_sparse, sparse_rows
from userdp.data.store import ARRAYS, Store, StoreWarning, open_store
from userdp.data.tables import TableFile, open_parquet

_COLUMNS, _CELLS = 16, 1 << 24  # that are read at a time: so many columns, or more if cells are no more than these
_FILL_ROWS = 65536  # rows searched for NaN at a time, so that the mask stays small
_ALL = slice(None)


@dataclass(frozen=True, eq=False, repr=False)
class UserData:
    """Users' rows and targets, held in one matrix with the rows of a user next to each other.

    `rows` is (n_rows, columns) float32 or float64, or `SparseRows` of the same, `targets` (n_rows,) float64,
    `offsets` (n_users + 1,) int64; a user may be empty. All are read-only and may be memory-mapped. Printing shows
    public shape only: how many rows there are in all, or in a user, is private. `has_targets` is False if none were
    given: they are then NaN. With `has_intercept` there is one more feature after those of the columns, which is 1 in
    all rows and held nowhere; `dense` gives rows with it.
    `weights` (n_rows,) float64, cut off at 0 and 1, say how often rows count (0 for NaN); None: all of them once.
    `affected` (n_users,) tells which users lost rows because cells, or the target, were missing or infinite: private.
    `store` is where arrays are mapped from, of data that is larger than memory.
    `source` names the file and the columns that rows come from, which are public.
    """

    rows: Any  # an array or SparseRows: both have shape, dtype and size
    targets: np.ndarray
    offsets: np.ndarray
    user_ids: tuple[Hashable, ...] | None = None
    insecure_seed: int | None = None
    weights: np.ndarray | None = field(default=None, kw_only=True)
    affected: Any = field(default=None, kw_only=True)  # an array; None makes one of nobody
    has_targets: bool = field(default=True, kw_only=True)
    has_intercept: bool = field(default=False, kw_only=True)
    store: Store | None = field(default=None, kw_only=True)
    source: Source | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_seed(self.insecure_seed)
        sparse, affected = isinstance(self.rows, SparseRows), self.affected  # sparse rows are checked and read-only
        if not sparse and (getattr(self.rows, "ndim", 0) != 2 or self.rows.dtype.char not in "fd"):
            raise TypeError(
                "Expected rows as a float32 or float64 array with 2 dimensions, or SparseRows: convert them."
            )
        if affected is None:
            affected = np.zeros(max(0, len(self.offsets) - 1), dtype=bool)
        arrays = {} if sparse else {"rows": (self.rows, self.rows.dtype.newbyteorder("="))}
        arrays |= {
            "targets": (self.targets, np.float64),
            "offsets": (self.offsets, np.int64),
            "affected": (affected, bool),
        }
        if self.weights is not None:
            weights = np.asarray(self.weights, dtype=np.float64)
            # A weight above 1 would exceed what losses' constants promise; an error would tell of it.
            if not np.all((weights >= 0) & (weights <= 1)):
                weights = np.fmin(np.fmax(weights, 0.0), 1.0)
            arrays["weights"] = weights, np.float64
        for name, (array, kind) in arrays.items():
            view = np.ascontiguousarray(array, dtype=kind).view()
            view.flags.writeable = False
            object.__setattr__(self, name, view)
        if len(self.offsets) < 3 or self.offsets[0] != 0 or np.any(np.diff(self.offsets) < 0):
            raise ValueError("Expected offsets to rise from 0, one entry per user and one more, for at least 2 users.")
        if self.affected.shape != (self.n_users,):
            raise ValueError("Expected affected to be true or false for each user, in one array.")
        n_rows = (self.offsets[-1],)
        if len(self.rows) != self.offsets[-1] or any(
            array is not None and array.shape != n_rows for array in (self.targets, self.weights)
        ):
            raise ValueError("Expected as many rows as targets and weights, and the last offset to be their number.")

    @property
    def n_users(self) -> int:
        """Number of users, which is public."""
        return len(self.offsets) - 1

    @property
    def n_features(self) -> int:
        """Number of features, the intercept's included."""
        return int(self.rows.shape[1]) + self.has_intercept

    @property
    def n_rows(self) -> int:
        """Number of rows of all users together. Private: do not publish it."""
        return len(self.rows)

    @property
    def dtype(self) -> np.dtype:
        """The type of the rows."""
        kind: np.dtype = self.rows.dtype
        return kind

    def fingerprint(self) -> str:
        """By which the same users are known again: of ids, where they are kept, and numbers of rows. Private."""
        return hashlib.sha256(np.ascontiguousarray(self.offsets).tobytes() + repr(self.user_ids).encode()).hexdigest()

    def part(self, first: int, last: int) -> UserData:
        """Users first..last-1 by themselves, at least two, without a copy."""
        begin, end = int(self.offsets[first]), int(self.offsets[last])
        offsets = self.offsets[first : last + 1] - begin
        return replace(
            self,
            rows=self.rows[begin:end],
            targets=self.targets[begin:end],
            weights=None if self.weights is None else self.weights[begin:end],
            offsets=offsets,
            affected=self.affected[first:last],
            user_ids=None if self.user_ids is None else self.user_ids[first:last],
        )

    def taken(self, users: np.ndarray) -> UserData:
        """A copy of these users' rows, in their order; filled up to two with users without rows."""
        lengths = self.offsets[users + 1] - self.offsets[users]
        offsets = running_total(lengths)
        order = np.repeat(self.offsets[users] - offsets[:-1], lengths) + np.arange(offsets[-1])
        missing = max(0, 2 - len(users))
        affected = np.append(self.affected[users], np.zeros(missing, dtype=bool))
        of_rows = self._gathered(Groups(offsets, order), np.empty)
        offsets = np.append(offsets, np.full(missing, offsets[-1]))
        return replace(self, offsets=offsets, affected=affected, user_ids=None, **of_rows)

    def _gathered(self, groups: Groups, room: Callable[..., np.ndarray]) -> dict[str, Any]:
        """Rows, targets and weights in another order, or some of them."""
        found: dict[str, Any] = {}
        for name in ("rows", "targets", "weights"):
            held = getattr(self, name)
            if isinstance(held, SparseRows):
                found[name] = held.grouped(groups, self.dtype)
            elif held is not None:
                found[name] = room((groups.n_rows, *held.shape[1:]), held.dtype)
                groups.gather(held, found[name])
        return found

    def without(self, usable: np.ndarray, options: Options | None = None) -> UserData:
        """The same users without rows that are not usable, nor those beyond a cap: who lost one of the first is
        `affected`, too.
        """
        cap, seed, key = (getattr(options, name, None) for name in ("max_rows_per_user", "insecure_seed", "choice_key"))
        groups = Groups(self.offsets, None).kept(usable, cap, seed, key)
        if groups.order is None:
            return self
        affected = self.affected if groups.affected is None else self.affected | groups.affected
        return replace(self, offsets=groups.offsets, affected=affected, **self._gathered(groups, self.scratch))

    @staticmethod
    def joined(parts: Sequence[UserData]) -> UserData:
        """The users of several parts, one part after the other."""
        found: dict[str, Any] = {"offsets": running_total(np.concatenate([np.diff(part.offsets) for part in parts]))}
        for name in ("rows", "targets", "weights", "affected"):
            held = [getattr(part, name) for part in parts]
            if isinstance(held[0], SparseRows):
                found[name] = SparseRows.joined(held)
            elif held[0] is not None:
                found[name] = np.concatenate(held)
        return replace(parts[0], user_ids=None, **found)

    def rows_of(self, user: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows and targets of one user, read-only, as `dense` has them."""
        if not 0 <= user < self.n_users:
            raise IndexError(f"Expected 0 <= user={user} < n_users={self.n_users}.")
        block = slice(self.offsets[user], self.offsets[user + 1])
        return self.dense(block), self.targets[block]

    def dense(self, some: slice = _ALL) -> np.ndarray:
        """Some rows as a matrix with a column for each feature, the intercept's 1 included; read-only.

        Without an intercept, and not sparse, a slice of them is no copy.
        """
        rows = self.rows.dense(some) if isinstance(self.rows, SparseRows) else self.rows[some]
        if self.has_intercept:
            rows, held = np.ones((len(rows), self.n_features), self.dtype), rows
            rows[:, :-1] = held
        rows.flags.writeable = False
        return rows

    def scratch(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> np.ndarray:
        """Room for something of all rows: in memory, or in a file if the rows are in one."""
        return np.empty(shape, dtype) if self.store is None else self.store.scratch(shape, dtype)

    def __repr__(self) -> str:
        return f"UserData(n_users={self.n_users}, n_features={self.n_features}, dtype={self.rows.dtype})"

    @classmethod
    def from_arrays(
        cls,
        X: Any,
        y: Any,
        users: Any,
        *,
        max_rows_per_user: int | None = None,
        fit_intercept: bool = False,
        dtype: npt.DTypeLike | None = None,
        keep_user_ids: bool = False,
        insecure_seed: int | None = None,
        fill_missing: float | None = None,
        weights: np.ndarray | None = None,
    ) -> UserData:
        """Group a matrix, its targets and one user id per row.

        X is an array, a table, or a sparse matrix of scipy, which stays sparse (CSR; other forms are converted once);
        lists of rows are refused, because they declare no width. Of arrays and columns of objects, and of lists of
        targets, each cell is read by itself: what is no number becomes NaN.
        X in float32 or float64 whose users are already next to each other is used as it is, without a copy, and so is y
        in float64; do not change them afterwards. Without targets (y=None) they are NaN. With `fit_intercept` there is
        one more feature, which is 1 and held nowhere. `weights` are from 0 to 1 (those beyond are cut off, and 0 if no
        number), one for each row: how often it counts.

        Rows with a NaN or infinite cell, or such a target, are left out; a user of whom no row is left stays a user,
        without rows. `fill_missing`, a number that is chosen publicly and not from the data, goes into every NaN cell
        of the features (not of the targets) before that.

        `max_rows_per_user` keeps a uniform random choice of each user's other rows. With `insecure_seed` it can be
        repeated, for tests and research, but one user's number of rows then changes which rows of others are kept:
        what is learned from such data is NOT PRIVATE, and a curator's ledger will say so.
        """
        X = sparse_rows("X", X) if is_sparse(X) else matrix("X", X)
        options = Options(max_rows_per_user, fit_intercept, dtype, keep_user_ids, insecure_seed, fill_missing)
        kept_type = options.float_type(X.dtype)
        targets = None if y is None else numbers("y", y)
        if targets is not None and len(targets) != len(X):
            raise ValueError("Expected as many targets as rows, but y and X differ in length: pass one per row.")
        counted = None if weights is None else numbers("weights", weights)
        if counted is not None and len(counted) != len(X):  # a shorter column would be read beyond its end
            raise ValueError("Expected as many weights as rows, but they differ in length: pass one per row.")
        usable = _usable_rows(X, targets, options, kept_type)
        groups = Groups.make(users, len(X))
        user_ids = groups.ids(users) if keep_user_ids else None
        groups = groups.kept(usable, max_rows_per_user, insecure_seed)
        rows: Any
        if isinstance(X, SparseRows):
            rows = X.grouped(groups, kept_type)
        elif groups.order is None:
            with np.errstate(all="ignore"):
                rows = np.ascontiguousarray(X, dtype=kept_type)
        else:
            rows = np.empty((groups.n_rows, X.shape[1]), dtype=kept_type)
            groups.gather(X, rows)
        borrowed = isinstance(rows, np.ndarray) and np.may_share_memory(rows, X)
        return cls._grouped(rows, targets, groups, user_ids, options, borrowed, counted)

    @classmethod
    def from_table(
        cls,
        table: Any,
        *,
        user: str,
        features: str | Sequence[str],
        target: str | None = None,
        classes: Sequence[Any] | None = None,
        **options: Any,
    ) -> UserData:
        """Group a pandas, polars or pyarrow table by its column `user`.

        `features` is a list of column names, or comma-separated patterns such as "x_*,age". Features and targets are
        numbers by declaration; with `classes`, all labels that there can be, targets are positions in them, sorted.
        Cells that are neither, and missing ones, become NaN; a column whose type is no type of numbers is refused.
        Options, and what becomes of rows with missing cells, are those of `from_arrays`; rows are float64 unless
        `dtype` is given.
        """
        if isinstance(table, (str, os.PathLike)):
            raise TypeError(
                "Expected a table, got a path: use UserData.from_parquet to read a Parquet file, or "
                "from_table(userdp.data.tables.open_table(path), ...) to read a CSV or Arrow one."
            )
        table = collected(table)
        names = getattr(table, "column_names", None) or getattr(table, "columns", None)
        if names is None or not hasattr(table, "__getitem__"):
            raise TypeError(
                f"Expected a pandas, polars or pyarrow table, got {type(table).__name__}: "
                f"use UserData.from_arrays for arrays."
            )
        made = cls.from_schema(table, Schema.declare(list(names), user, features, target, classes), **options)
        return replace(made, source=Source(None, None if target is None else str(target), str(user)))

    @classmethod
    def from_parquet(
        cls,
        path: str | os.PathLike[str],
        *,
        user: str,
        features: str | Sequence[str],
        target: str | None = None,
        classes: Sequence[Any] | None = None,
        memory_limit: int | str | None = None,
        store: str | os.PathLike[str] | None = None,
        progress: bool | None = None,
        **options: Any,
    ) -> UserData:
        """Group a Parquet file, or a folder of them, reading only the columns needed, one at a time.

        The path is local. Other arguments are those of `from_table`: rows are float64 unless `dtype` is given, and
        rows with missing values are left out unless `fill_missing` is given.

        With `memory_limit`, such as "2GB", a table that would take more is sorted by user once into a store: a folder
        beside it, or at `store`, whose arrays are read from disk when they are needed, and which is used again while
        the table and the arguments stay the same. The limit is for data, beside the program itself. Users are then
        numbered in the order of their ids, and which rows of a user are kept is chosen when the store is made. It is as
        secret as the table. `progress` is as `minimize` has it.
        """
        options |= {"memory_limit": memory_limit, "store": store, "progress": progress}
        columns: dict[str, Any] = {"user": user, "features": features, "target": target, "classes": classes}
        made = cls.from_table(open_parquet(path), **columns, **options)
        return replace(made, source=Source(Path(path).name, target, user))

    @classmethod
    def from_schema(
        cls,
        table: Any,
        schema: Schema,
        *,
        check: Callable[[str, np.ndarray], None] | None = None,
        memory_limit: int | str | None = None,
        store: str | os.PathLike[str] | None = None,
        progress: bool | None = None,
        tell: Callable[[str], None] | None = None,
        **options: Any,
    ) -> UserData:
        """Group a table whose schema is declared, with the options of `from_arrays`, and a store as in `from_parquet`.

        `check` sees each column of numbers as it is read; what it tells of them is not protected. `tell` gets what is
        to be said about a store that is made anew, which is else a warning.
        """
        kept = Options.of(options)
        if memory_limit is not None or store is not None:
            opened = open_store(table, schema, kept, memory_limit, store, tell or _warn, progress)
            if opened is not None:
                return cls._of_store(opened, schema, kept, check)
        kept_type = kept.float_type(np.dtype(np.float64))
        owners = ids(table[schema.user])
        groups = Groups.make(owners, len(owners))

        def read(name: Any, cells: Any, numbers_of: Callable[[Any], np.ndarray]) -> np.ndarray:
            found = numbers_of(cells)
            if len(found) != len(owners):
                raise ValueError("Expected columns to be as long as the user column: the file changed meanwhile.")
            if check is not None:
                check(name, found)
            return found

        targets = None if schema.target is None else read(schema.target, table[schema.target], schema.targets)
        rows = np.empty((groups.n_rows, len(schema.features)), kept_type)
        n_together = max(_COLUMNS, _CELLS // len(owners))
        for first in range(0, len(schema.features), n_together):
            names = list(schema.features[first : first + n_together])
            columns = table.columns(names) if isinstance(table, TableFile) else {name: table[name] for name in names}
            found = [read(name, columns[name], partial(numbers, f"column {name!r}")) for name in names]
            groups.gather(np.column_stack(found), rows[:, first : first + len(names)])
            del columns, found
        user_ids = groups.ids(owners) if kept.keep_user_ids else None
        made = cls._grouped(rows, targets, groups, user_ids, kept, borrowed=False)
        usable = _usable_rows(made.rows, made.targets if made.has_targets else None, kept, kept_type)
        return made.without(usable, kept)

    @classmethod
    def _of_store(
        cls, store: Store, schema: Schema, options: Options, check: Callable[[str, np.ndarray], None] | None
    ) -> UserData:
        rows, targets = store.array("rows"), store.array("targets")
        for start in range(0, 0 if check is None else len(rows), _FILL_ROWS):
            assert check is not None
            if schema.target is not None:
                check(schema.target, targets[start : start + _FILL_ROWS])
            for position, name in enumerate(schema.features):
                check(name, rows[start : start + _FILL_ROWS, position])
        facts: dict[str, Any] = {name: store.array(name) for name in ARRAYS} | {"store": store}
        facts |= {"has_targets": schema.target is not None, "has_intercept": bool(options.fit_intercept)}
        return cls(user_ids=store.user_ids, insecure_seed=options.insecure_seed, **facts)

    @classmethod
    def _grouped(
        cls,
        rows: Any,
        targets: np.ndarray | None,
        groups: Groups,
        user_ids: tuple[Hashable, ...] | None,
        options: Options,
        borrowed: bool,
        weights: np.ndarray | None = None,
    ) -> UserData:
        if options.fill_missing is not None and isinstance(rows, SparseRows):
            rows = rows.filled(options.fill_missing)
        elif options.fill_missing is not None:
            for start in range(0, len(rows), _FILL_ROWS):
                missing = np.isnan(rows[start : start + _FILL_ROWS])
                if missing.any():
                    rows, borrowed = np.array(rows) if borrowed else rows, False
                    rows[start : start + _FILL_ROWS][missing] = options.fill_missing
        facts: dict[str, Any] = {"has_targets": targets is not None, "has_intercept": bool(options.fit_intercept)}
        facts["affected"] = groups.affected
        facts["weights"] = None if weights is None else groups.targets(weights)
        return cls(rows, groups.targets(targets), groups.offsets, user_ids, options.insecure_seed, **facts)


def _warn(message: str) -> None:
    warnings.warn(message, StoreWarning, stacklevel=6)


@dataclass(frozen=True, eq=False, repr=False)
class RemoteUsers(ABC):
    """Users whose rows are with an engine, and not here: what is public of them, as `UserData` has it.

    engine: who holds them, and computes on them; digest: their fingerprint.
    """

    n_users: int
    n_features: int
    dtype: np.dtype
    has_targets: bool
    has_intercept: bool
    insecure_seed: int | None
    engine: Any
    digest: str
    source: Source | None = field(default=None, kw_only=True)

    def fingerprint(self) -> str:
        """By which the same users are known again. Private."""
        return self.digest

    @abstractmethod
    def mapped(self, change: Callable[[UserData], UserData]) -> RemoteUsers:
        """The same users, changed where they are by a picklable function of public numbers, user by user."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(n_users={self.n_users}, n_features={self.n_features}, dtype={self.dtype})"


def _usable_rows(
    rows: np.ndarray | SparseRows, targets: np.ndarray | None, options: Options, kept: np.dtype
) -> np.ndarray:
    """Which rows have no cell, and no target, that is missing or infinite; some rows at a time."""
    usable = np.ones(len(rows), dtype=bool) if targets is None else np.isfinite(targets)
    if isinstance(rows, SparseRows):
        lost = np.flatnonzero(~options.usable(rows.values, kept))
        usable[np.searchsorted(rows.indptr, lost, side="right") - 1] = False
    elif rows.dtype.kind == "f":
        for start in range(0, len(rows), _FILL_ROWS):
            some = slice(start, start + _FILL_ROWS)
            usable[some] &= options.usable(rows[some], kept).all(axis=1)
    return usable
