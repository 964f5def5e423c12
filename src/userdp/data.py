"""Rows grouped by user: the only holder of raw data.

User u owns rows offsets[u] .. offsets[u + 1]. A user may hold anything, NaN and infinity included: such values
raise and warn nowhere, because a message that depends on a user's data is a leak. Errors speak of types,
dimensions and column names only, never of numbers of rows. Users are numbered by first appearance, and their
identifiers are dropped unless asked for.
"""

from __future__ import annotations

import fnmatch
import numbers
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from userdp.grouping import Groups, check_seed
from userdp.table_files import TableFile, open_parquet

_OPTIONS = ("max_rows_per_user", "fit_intercept", "dtype", "keep_user_ids", "insecure_seed", "fill_missing")
_SHOWN_NAMES = 40  # column names that an error lists at most
_FILL_ROWS = 65536  # rows searched for NaN at a time, so that the mask stays small


@dataclass(frozen=True, eq=False, repr=False)
class UserData:
    """Users' rows and targets, held in one matrix with the rows of a user next to each other.

    `rows` is (n_rows, n_features) float32 or float64, `targets` (n_rows,) float64, `offsets` (n_users + 1,) int64;
    a user may be empty. All are read-only and may be memory-mapped. Printing shows public shape only: how many rows
    there are in all, or in a user, is private. `has_targets` is False if none were given: they are then NaN.
    `has_intercept` tells that the last feature is the 1 that `fit_intercept` appended.
    """

    rows: np.ndarray
    targets: np.ndarray
    offsets: np.ndarray
    user_ids: tuple[Hashable, ...] | None = None
    insecure_seed: int | None = None
    has_targets: bool = field(default=True, kw_only=True)
    has_intercept: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        check_seed(self.insecure_seed)
        _check_layout(self.rows, self.targets, self.offsets)
        for name in ("rows", "targets", "offsets"):
            view = np.asarray(getattr(self, name)).view()
            view.flags.writeable = False
            object.__setattr__(self, name, view)

    @property
    def n_users(self) -> int:
        """Number of users, which is public."""
        return len(self.offsets) - 1

    @property
    def n_features(self) -> int:
        """Number of features, the intercept's column included."""
        return int(self.rows.shape[1])

    @property
    def n_rows(self) -> int:
        """Number of rows of all users together. Private: do not publish it."""
        return len(self.rows)

    def rows_of(self, user: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows and targets of one user, as read-only views."""
        if not 0 <= user < self.n_users:
            raise IndexError(f"Expected 0 <= user={user} < n_users={self.n_users}.")
        block = slice(self.offsets[user], self.offsets[user + 1])
        return self.rows[block], self.targets[block]

    def __repr__(self) -> str:
        return f"UserData(n_users={self.n_users}, n_features={self.n_features}, dtype={self.rows.dtype})"

    @classmethod
    def from_arrays(
        cls,
        X: npt.ArrayLike,
        y: npt.ArrayLike | None,
        users: Any,
        *,
        max_rows_per_user: int | None = None,
        fit_intercept: bool = False,
        dtype: npt.DTypeLike | None = None,
        keep_user_ids: bool = False,
        insecure_seed: int | None = None,
        fill_missing: float | None = None,
    ) -> UserData:
        """Group a matrix, its targets and one user id a row.

        X in float32 or float64 whose users are already next to each other is used as it is, without a copy; do not
        change it afterwards. Without targets (y=None) they are NaN. `fit_intercept` appends a feature that is 1.

        A user with a NaN or infinite cell counts as an outlier and gets weight 0, and too many such users make a
        private test halt: fill or drop missing cells first. `fill_missing` puts this number into every NaN cell of
        the features (not of the targets). It must be chosen publicly, without looking at the data; each cell is then
        filled by itself, within one user, so privacy is unaffected. None leaves NaN.

        `max_rows_per_user` keeps a uniform random choice of each user's rows. With `insecure_seed` the choice can be
        repeated, for tests and research, but one user's number of rows then changes which rows of others are kept:
        what is learned from such data is NOT PRIVATE, and a curator's ledger will say so.
        """
        matrix = _numeric_array("X", X, ndim=2)
        dtype = _float_type(dtype, matrix.dtype)
        _check_fill(fill_missing, dtype)
        targets = None if y is None else _numeric_array("y", y, ndim=1)
        if targets is not None and len(targets) != len(matrix):
            raise ValueError("Expected as many targets as rows, but y and X differ in length: pass one target a row.")
        groups = Groups.make(users, len(matrix), max_rows_per_user, insecure_seed)
        if groups.order is None and not fit_intercept:
            with np.errstate(all="ignore"):
                rows = np.ascontiguousarray(matrix, dtype=dtype)
        else:
            rows = np.empty((groups.n_rows, matrix.shape[1] + fit_intercept), dtype=dtype)
            groups.gather(matrix, rows[:, : matrix.shape[1]])
            rows[:, matrix.shape[1] :] = 1.0
        if fill_missing is not None:
            rows = _filled(rows, fill_missing, borrowed=np.may_share_memory(rows, matrix))
        kept_ids = groups.ids(users) if keep_user_ids else None
        facts = {"has_targets": targets is not None, "has_intercept": fit_intercept}
        return cls(rows, groups.targets(targets), groups.offsets, kept_ids, insecure_seed, **facts)

    @classmethod
    def from_table(
        cls, table: Any, *, user: str, features: str | Sequence[str], target: str | None = None, **options: Any
    ) -> UserData:
        """Group a pandas, polars or pyarrow table by its column `user`.

        `features` is a list of column names, or comma-separated patterns such as "x_*,age". Missing values become
        NaN. Options are those of `from_arrays`; rows are float64 unless `dtype` is given.

        A user with a NaN or infinite cell counts as an outlier and gets weight 0, and too many such users make a
        private test halt: fill or drop missing cells first, for instance with `fill_missing`.
        """
        _check_options(options)
        if isinstance(table, (str, os.PathLike)):
            raise TypeError(
                "Expected a table, got a path: use UserData.from_parquet to read a Parquet file, or "
                "from_table(userdp.table_files.open_table(path), ...) to read a CSV or Arrow one."
            )
        if hasattr(table, "collect_schema") and hasattr(table, "collect"):  # a lazy polars frame
            table = table.collect()
        names = getattr(table, "column_names", None) or getattr(table, "columns", None)
        if names is None or not hasattr(table, "__getitem__"):
            raise TypeError(
                f"Expected a pandas, polars or pyarrow table, got {type(table).__name__}: "
                f"use UserData.from_arrays for arrays."
            )
        column = table.numbers if isinstance(table, TableFile) else table.__getitem__
        ids = table.ids if isinstance(table, TableFile) else table.__getitem__
        return cls._from_columns(list(names), ids, column, user, target, features, **options)

    @classmethod
    def from_parquet(
        cls,
        path: str | os.PathLike[str],
        *,
        user: str,
        features: str | Sequence[str],
        target: str | None = None,
        **options: Any,
    ) -> UserData:
        """Group a Parquet file, or a folder of them, reading only the columns needed, one at a time.

        The path is local. Other arguments are those of `from_table`: rows are float64 unless `dtype` is given, and
        missing values become NaN unless `fill_missing` is given.
        """
        _check_options(options)
        return cls.from_table(open_parquet(path), user=user, features=features, target=target, **options)

    @classmethod
    def _from_columns(
        cls,
        names: list[Any],
        ids_of: Callable[[str], Any],
        column: Callable[[str], Any],
        user: str,
        target: str | None,
        features: str | Sequence[str],
        *,
        max_rows_per_user: int | None = None,
        fit_intercept: bool = False,
        dtype: npt.DTypeLike | None = None,
        keep_user_ids: bool = False,
        insecure_seed: int | None = None,
        fill_missing: float | None = None,
    ) -> UserData:
        kept_type = _float_type(dtype, np.dtype(np.float64))
        _check_fill(fill_missing, kept_type)
        chosen = choose_features(names, features, exclude=(user, target))
        for needed in [user, *([] if target is None else [target]), *chosen]:
            require_column(names, needed)
        ids = ids_of(user)
        groups = Groups.make(ids, len(ids), max_rows_per_user, insecure_seed)
        rows = np.ones((groups.n_rows, len(chosen) + fit_intercept), kept_type)
        for position, name in enumerate(chosen):
            groups.gather(numeric_column(name, column(name), len(ids)), rows[:, position])
        if fill_missing is not None:
            rows = _filled(rows, fill_missing, borrowed=False)
        targets = None if target is None else numeric_column(target, column(target), len(ids))
        kept_ids = groups.ids(ids) if keep_user_ids else None
        facts = {"has_targets": targets is not None, "has_intercept": fit_intercept}
        return cls(rows, groups.targets(targets), groups.offsets, kept_ids, insecure_seed, **facts)


def _check_options(options: Mapping[str, Any]) -> None:
    for name in options:
        if name not in _OPTIONS:
            raise TypeError(f"Unknown option {name!r}: expected one of {', '.join(_OPTIONS)}.")


def _check_fill(value: Any, dtype: np.dtype) -> None:
    """Refuse a filling that is not a number, or not a finite one in the rows' type."""
    if value is None:
        return
    number = isinstance(value, numbers.Real) and not isinstance(value, (bool, np.bool_))
    if not number or not abs(value) <= float(np.finfo(dtype).max):
        raise ValueError(f"Expected fill_missing={value!r} to be a finite number in {dtype}: pass None to keep NaN.")


def _filled(rows: np.ndarray, value: float, borrowed: bool) -> np.ndarray:
    """The rows with `value` in place of NaN: in place, or in a copy if there is any NaN in borrowed rows."""
    for start in range(0, len(rows), _FILL_ROWS):
        missing = np.isnan(rows[start : start + _FILL_ROWS])
        if missing.any():
            if borrowed:
                rows, borrowed = np.array(rows), False
            rows[start : start + _FILL_ROWS][missing] = float(value)
    return rows


def choose_features(names: list[Any], features: str | Sequence[str], exclude: tuple[Any, ...]) -> list[Any]:
    """Columns named by a list, or by comma-separated patterns (in the table's order, without user and target)."""
    if not isinstance(features, str):
        asked = chosen = list(features)
    else:
        asked = [pattern.strip() for pattern in features.split(",") if pattern.strip()]
        candidates = [name for name in names if name not in exclude]
        matches = {p: [n for n in candidates if n == p or fnmatch.fnmatchcase(str(n), p)] for p in asked}
        for pattern, found in matches.items():
            if not found:
                require_column(names, pattern, what="a column that matches")
        chosen = [name for name in candidates if any(name in found for found in matches.values())]
    for name in exclude:
        if name is not None and name in asked:
            raise ValueError(f"Expected features without {name!r}, the column of users or targets: leave it out.")
    if not chosen:
        raise ValueError("Expected at least one feature: pass column names or patterns such as 'x_*'.")
    if len(set(chosen)) < len(chosen):
        raise ValueError("Expected each feature once: remove the repeated column names.")
    return chosen


def require_column(names: list[Any], name: Any, what: str = "a column named") -> None:
    """Refuse a name that no column has, or several have."""
    if names.count(name) != 1:
        problem = "which occurs more than once" if name in names else "found none"
        shown = ", ".join(map(str, names[:_SHOWN_NAMES])) + f" and {len(names) - _SHOWN_NAMES} more" * (
            len(names) > _SHOWN_NAMES
        )
        raise ValueError(f"Expected {what} {name!r}, {problem}: available are {shown}.")


def numeric_column(name: str, column: Any, n_rows: int) -> np.ndarray:
    """A table's column as a float array, missing values as NaN."""
    if not isinstance(column, (pa.Array, pa.ChunkedArray)):
        try:
            column = column.to_arrow() if hasattr(column, "to_arrow") else pa.array(column, from_pandas=True)
        except (pa.ArrowException, TypeError, ValueError):  # its message could quote a value
            column = None
    kind = None if column is None else column.type
    plain = kind is not None and (pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_decimal(kind))
    if not plain and kind not in (pa.float32(), pa.float64()):
        raise TypeError(
            f"Expected column {name!r} to be numeric (float32, float64, integer or boolean), got "
            f"{'mixed types' if kind is None else kind}: convert or drop it."
        )
    if len(column) != n_rows:
        raise ValueError(f"Expected column {name!r} to be as long as the user column: the file changed meanwhile.")
    if kind != pa.float32():
        # Unchecked, because a checked cast refuses large integers, and so tells of a value.
        column = column.cast(pa.float64(), safe=False)
    return np.asarray(column)


def _numeric_array(name: str, values: npt.ArrayLike, ndim: int) -> np.ndarray:
    try:
        array = np.asarray(values)
    except (ValueError, TypeError):
        raise ValueError(f"Expected {name} to be a rectangular numeric array: its rows differ in length.") from None
    kind = array.dtype
    if kind.kind not in "biuf" or kind == np.float16:
        raise TypeError(
            f"Expected {name} in float32, float64, integer or boolean, got {kind}: convert it with astype, "
            f"or use UserData.from_table for tables."
        )
    if array.ndim != ndim or (ndim == 2 and array.shape[1] == 0):
        shape = "(n_rows, n_features)" if ndim == 2 else "(n_rows,)"
        problem = f"{array.ndim} dimensions" if array.ndim != ndim else "no feature"  # not the shape: it tells n_rows
        raise ValueError(f"Expected {name} of shape {shape}, got {problem}: reshape it.")
    return array


def _float_type(asked: npt.DTypeLike | None, given: np.dtype) -> np.dtype:
    """The type rows are kept in: as asked, else float32 stays and everything else becomes float64."""
    if asked is None:
        return np.dtype(np.float32 if given.newbyteorder("=") == np.float32 else np.float64)
    if np.dtype(asked) not in (np.float32, np.float64):
        raise TypeError(f"Expected dtype={np.dtype(asked)} to be float32 or float64: pass None to follow the input.")
    return np.dtype(asked)


def _check_layout(rows: Any, targets: Any, offsets: Any) -> None:
    """Refuse arrays that the compiled kernels, which check no bounds, could not read safely."""
    arrays = {"rows": (rows, 2, "fd"), "targets": (targets, 1, "d"), "offsets": (offsets, 1, "lq")}
    for name, (array, ndim, kinds) in arrays.items():
        if not isinstance(array, np.ndarray) or array.dtype.char not in kinds or not array.dtype.isnative:
            kind = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
            allowed = " or ".join(np.dtype(char).name for char in dict.fromkeys(kinds))
            raise TypeError(f"Expected {name} as a {allowed} array, got {kind}: convert it with astype.")
        if array.ndim != ndim or not array.flags.c_contiguous:
            problem = f"{array.ndim} dimensions" if array.ndim != ndim else "another order"
            raise ValueError(
                f"Expected {name} with {ndim} dimensions in C order, got {problem}: use np.ascontiguousarray."
            )
    if len(offsets) < 3 or offsets[0] != 0 or np.any(np.diff(offsets) < 0):
        raise ValueError("Expected offsets to rise from 0, one entry a user and one more, for at least 2 users.")
    if not len(rows) == len(targets) == offsets[-1]:
        raise ValueError("Expected as many rows as targets, and the last offset to be their number.")
