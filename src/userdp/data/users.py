"""Rows grouped by user: the only holder of raw data.

User u owns rows offsets[u] .. offsets[u + 1]. A user may hold anything, NaN and infinity included: such values
raise and warn nowhere, because a message that depends on a user's data is a leak. Errors name types, dimensions and
columns only, never numbers of rows. Users are numbered by first appearance, and their identifiers are dropped unless
asked for.

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
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from userdp._validate import check_seed
from userdp.data.groups import Groups, Options, running_total
from userdp.data.schema import Schema, collected, ids, matrix, numbers
from userdp.data.source import Source
from userdp.data.sparse import SparseRows, is_sparse, sparse_rows
from userdp.data.store import Store, StoreWarning, open_store
from userdp.data.tables import TableFile, open_parquet

_COLUMNS, _CELLS = 16, 1 << 24  # that are read at a time: so many columns, or more if cells are no more than these
_CHECKED_ROWS = 65536  # that are searched for NaN at a time
_ALL = slice(None)


@dataclass(frozen=True, eq=False, repr=False)
class UserData:
    """Users' rows and targets, held in one matrix with the rows of a user next to each other.

    Made by `from_arrays`, `from_table` or `from_parquet`. Printing shows public facts only: the number of rows is
    private. Arrays are read-only and may be memory-mapped.

    Attributes
    ----------
    rows : ndarray or SparseRows
        (n_rows, columns), float32 or float64.
    targets : ndarray
        (n_rows,) float64; NaN without targets.
    offsets : ndarray
        (n_users + 1,) int64: user u owns rows offsets[u] .. offsets[u + 1]; a user may have none.
    user_ids : tuple, optional
        The users' identifiers, if they are kept.
    insecure_seed : int, optional
        The seed of the choice of rows, if there was one: what is learned is then not private.
    weights : ndarray, optional
        (n_rows,) float64, how often rows count: cut off at 0 and 1, and 0 for NaN; None is 1 for all.
    affected : ndarray
        (n_users,) bool, which users lost rows because cells, or the target, were missing or infinite: private.
    has_targets, has_intercept : bool
        Whether there are targets, and one more feature, which is 1 and held nowhere: `dense` gives rows with it.
    store : Store, optional
        Where arrays are mapped from, for data that is larger than memory.
    source : Source, optional
        The names of the file and of the columns that rows come from: public.
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
            raise TypeError("rows must be a float32 or float64 array with 2 dimensions, or SparseRows: convert them.")
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
            # A weight above 1 would exceed what losses' constants promise; an error would reveal that there is one.
            if not np.all((weights >= 0) & (weights <= 1)):
                weights = np.fmin(np.fmax(weights, 0.0), 1.0)
            arrays["weights"] = weights, np.float64
        for name, (array, kind) in arrays.items():
            view = np.ascontiguousarray(array, dtype=kind).view()
            view.flags.writeable = False
            object.__setattr__(self, name, view)
        if len(self.offsets) < 3 or self.offsets[0] != 0 or np.any(np.diff(self.offsets) < 0):
            raise ValueError("offsets must rise from 0, with one entry per user and one more, for at least 2 users.")
        if self.affected.shape != (self.n_users,):
            raise ValueError("affected must have one entry per user.")
        n_rows = (self.offsets[-1],)
        if len(self.rows) != self.offsets[-1] or any(
            array is not None and array.shape != n_rows for array in (self.targets, self.weights)
        ):
            raise ValueError("Rows, targets, weights and the last offset differ in number: pass one of each per row.")

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
        """A digest that recognises the same users: of ids, where they are kept, and numbers of rows. Private."""
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
        """The same users without rows that are not usable, nor those beyond a cap.

        Users who lost a row of the first kind are marked as `affected`, too.
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
            raise IndexError(f"user must be from 0 to {self.n_users - 1}, got {user}.")
        block = slice(self.offsets[user], self.offsets[user + 1])
        return self.dense(block), self.targets[block]

    def dense(self, some: slice = _ALL) -> np.ndarray:
        """Some rows as a read-only matrix, with the intercept's column; a slice without it is no copy."""
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

        Rows with a NaN or infinite cell, or such a target, are left out; a user of whom no row is left stays a user,
        without rows. Of arrays and columns of objects, and of lists of targets, each cell is read by itself: what is no
        number becomes NaN.

        Parameters
        ----------
        X : array, table or sparse matrix of shape (n_rows, n_features)
            Lists of rows are refused, because they declare no width. float32 or float64 whose users are already next to
            each other is used without a copy: do not change it afterwards. A sparse matrix of scipy stays sparse.
        y : array of shape (n_rows,) or None
            Targets.
        users : sequence of n_rows ids
            Which user owns each row.
        max_rows_per_user : int, optional
            Keep at most so many rows of a user, a uniform random choice.
        fit_intercept : bool
            Whether there is one more feature, which is 1 and held nowhere.
        dtype : float32 or float64, optional
            The type of rows; by default that of X if it is one of these, else float64.
        keep_user_ids : bool
            Whether `user_ids` holds the ids.
        insecure_seed : int, optional
            Repeats the choice of rows, for tests and research. One user's number of rows then changes which rows of
            others are kept: what is learned is NOT PRIVATE, and a curator's ledger will say so.
        fill_missing : float, optional
            A number, chosen publicly and not from the data, that replaces NaN in features (not in targets).
        weights : array of shape (n_rows,), optional
            How often each row counts, from 0 to 1; weights beyond are cut off, and what is no number is 0.

        Returns
        -------
        UserData
        """
        X = sparse_rows("X", X) if is_sparse(X) else matrix("X", X)
        options = Options(max_rows_per_user, fit_intercept, dtype, keep_user_ids, insecure_seed, fill_missing)
        kept_type = options.float_type(X.dtype)
        X = replace(X, values=options.filled(X.values)) if isinstance(X, SparseRows) else options.filled(X)
        targets = None if y is None else numbers("y", y)
        counted = None if weights is None else numbers("weights", weights)
        for name, cells in (("y", targets), ("weights", counted)):
            if cells is not None and len(cells) != len(X):  # a shorter column would be read beyond its end
                raise ValueError(f"{name} and X differ in length: pass one number per row.")
        usable = _usable_rows(X, targets, kept_type)
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
        return cls._grouped(rows, targets, groups, user_ids, options, counted)

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
        """Group a pandas, polars or pyarrow table by its column of user ids.

        Cells that are no numbers, or no class, become NaN; a column whose type is no type of numbers is refused. What
        becomes of rows with missing cells is said in `from_arrays`.

        Parameters
        ----------
        table : pandas, polars or pyarrow table
        user : str
            The column of user ids.
        features : str or sequence of str
            Column names, or comma-separated patterns such as "x_*,age".
        target : str, optional
            The column of targets.
        classes : sequence, optional
            All labels that there can be; targets are then positions in them, sorted. Else targets are numbers.
        **options
            max_rows_per_user, fit_intercept, dtype, keep_user_ids, insecure_seed and fill_missing as in `from_arrays`;
            rows are float64 unless `dtype` is given.

        Returns
        -------
        UserData
        """
        table = collected(table)
        names = getattr(table, "column_names", None) or getattr(table, "columns", None)
        if names is None or not hasattr(table, "__getitem__"):
            raise TypeError(
                f"table must be of pandas, polars or pyarrow, got {type(table).__name__}: use UserData.from_arrays for "
                "arrays, from_parquet for Parquet files, and userdp.data.tables.open_table to open other files."
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
        """Group a Parquet file, or a folder of them, reading only the columns needed, some at a time.

        With `memory_limit`, a table that would take more is sorted by user once into a store: a folder whose arrays are
        read from disk when they are needed, and which is used again while the table and the arguments stay the same.
        Users are then numbered in the order of their ids, and which rows of a user are kept is chosen when the store is
        made. A store is as secret as the table.

        Parameters
        ----------
        path : str or PathLike
            A local file or folder.
        user, features, target, classes, **options
            As in `from_table`.
        memory_limit : int or str, optional
            Bytes of data to hold in memory, or "2GB"; None for no limit.
        store : str or PathLike, optional
            The store's folder; by default beside the table.
        progress : bool, optional
            Whether to show how far sorting is; by default on a terminal only.

        Returns
        -------
        UserData
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
        memory_limit: int | str | None = None,
        store: str | os.PathLike[str] | None = None,
        progress: bool | None = None,
        tell: Callable[[str], None] | None = None,
        **options: Any,
    ) -> UserData:
        """`from_table` with a declared schema, and a store as in `from_parquet`; `tell` gets its warnings."""
        kept = Options(**options)
        if memory_limit is not None or store is not None:
            tell = tell or (lambda words: warnings.warn(words, StoreWarning, stacklevel=6))
            opened = open_store(table, schema, kept, memory_limit, store, tell, progress)
            if opened is not None:
                return cls._of_store(opened, schema, kept)
        kept_type = kept.float_type(np.dtype(np.float64))
        owners = ids(table[schema.user])
        groups = Groups.make(owners, len(owners))

        def whole(cells: np.ndarray) -> np.ndarray:
            if len(cells) != len(owners):
                raise ValueError("Columns differ in length from the user column: the file changed meanwhile.")
            return cells

        targets = None if schema.target is None else whole(schema.targets(table[schema.target]))
        rows = np.empty((groups.n_rows, len(schema.features)), kept_type)
        n_together = max(_COLUMNS, _CELLS // len(owners))
        for first in range(0, len(schema.features), n_together):
            names = list(schema.features[first : first + n_together])
            columns = table.columns(names) if isinstance(table, TableFile) else {name: table[name] for name in names}
            found = [whole(numbers(f"column {name!r}", columns[name])) for name in names]
            groups.gather(kept.filled(np.column_stack(found)), rows[:, first : first + len(names)])
            del columns, found
        user_ids = groups.ids(owners) if kept.keep_user_ids else None
        made = cls._grouped(rows, targets, groups, user_ids, kept)
        usable = _usable_rows(made.rows, made.targets if made.has_targets else None, kept_type)
        return made.without(usable, kept)

    @classmethod
    def _of_store(cls, store: Store, schema: Schema, options: Options) -> UserData:
        facts: dict[str, Any] = store.arrays | {"store": store}
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
        weights: np.ndarray | None = None,
    ) -> UserData:
        facts: dict[str, Any] = {"has_targets": targets is not None, "has_intercept": bool(options.fit_intercept)}
        facts["affected"] = groups.affected
        facts["weights"] = None if weights is None else groups.targets(weights)
        return cls(rows, groups.targets(targets), groups.offsets, user_ids, options.insecure_seed, **facts)


@dataclass(frozen=True, eq=False, repr=False)
class RemoteUsers(ABC):
    """Users whose rows are held by an engine, and not here: what is public about them, as `UserData` has it.

    engine: holds the rows and computes on them; digest: the users' fingerprint.
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
        """A digest that recognises the same users. Private."""
        return self.digest

    @abstractmethod
    def mapped(self, change: Callable[[UserData], UserData]) -> RemoteUsers:
        """The same users, changed where they are by a picklable function of public numbers, user by user."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(n_users={self.n_users}, n_features={self.n_features}, dtype={self.dtype})"


def _usable_rows(rows: np.ndarray | SparseRows, targets: np.ndarray | None, kept: np.dtype) -> np.ndarray:
    """Which rows have no cell, in the type that is kept, and no target that is missing or infinite.

    Some rows at a time, so that masks stay small.
    """

    def finite(cells: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return np.asarray(np.isfinite(cells.astype(kept, copy=False)))

    usable = np.ones(len(rows), dtype=bool) if targets is None else np.isfinite(targets)
    if isinstance(rows, SparseRows):
        lost = np.flatnonzero(~finite(rows.values))
        usable[np.searchsorted(rows.indptr, lost, side="right") - 1] = False
    elif rows.dtype.kind == "f":
        for start in range(0, len(rows), _CHECKED_ROWS):
            some = slice(start, start + _CHECKED_ROWS)
            usable[some] &= finite(rows[some]).all(axis=1)
    return usable
