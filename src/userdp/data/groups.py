"""Grouping rows by user: identifiers of any kind become an order of rows and offsets, with an optional cap."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from userdp._validate import check_counts, check_seed
from userdp.data.schema import TEXT, as_arrow, as_bytes, declared, decoded, encodable, encode, texts

MISSING_ID = "Some user ids are missing (None, NaN or null): drop those rows or fill the ids."
NO_ROWS = "The table is empty: check the source or the filter before it."
_GATHER_ROWS = 8192  # rows moved at a time, so that they stay in the processor's cache
_THREADING_PAYS = 1 << 20  # entries below which starting threads costs more than it saves


@dataclass(frozen=True)
class Options:
    """How rows are kept, as `UserData.from_arrays` says."""

    max_rows_per_user: int | None = None
    fit_intercept: bool = False
    dtype: npt.DTypeLike | None = None
    keep_user_ids: bool = False
    insecure_seed: int | None = None
    fill_missing: float | None = None
    # For engines, instead of fresh draws, a secret by which rows of a user are kept: the same each time they are read.
    choice_key: bytes | None = None

    def __post_init__(self) -> None:
        check_seed(self.insecure_seed)
        if self.max_rows_per_user is not None:
            check_counts(max_rows_per_user=self.max_rows_per_user)

    def filled(self, cells: np.ndarray) -> np.ndarray:
        """The cells with `fill_missing`, if it is given, in place of NaN, in a type that holds it; else as they are."""
        if self.fill_missing is None or cells.dtype.kind != "f" or not (missing := np.isnan(cells)).any():
            return cells
        return np.where(missing, np.float64(self.fill_missing), cells)

    def float_type(self, given: np.dtype) -> np.dtype:
        """The type rows are kept in: as asked, else float32 stays and everything else becomes float64."""
        follows = np.float32 if given.newbyteorder("=") == np.float32 else np.float64
        kept: np.dtype = np.dtype(follows if self.dtype is None else self.dtype)
        if kept not in (np.float32, np.float64):
            raise TypeError(f"dtype must be float32 or float64, got {kept}: pass None to follow the input.")
        value: Any = self.fill_missing
        number = isinstance(value, Real) and not isinstance(value, (bool, np.bool_))
        if value is not None and (not number or not abs(value) <= float(np.finfo(kept).max)):
            raise ValueError(f"fill_missing must be a finite number in {kept}, got {value!r}: pass None to keep NaN.")
        return kept


@dataclass(frozen=True)
class Groups:
    """Which input row goes where: output row i is input row order[i], or input row i without an order.

    affected: which users lost rows that cannot be used, None for nobody.
    """

    offsets: np.ndarray
    order: np.ndarray | None
    affected: np.ndarray | None = None

    @classmethod
    def make(cls, users: Any, n_rows: int) -> Groups:
        """All rows of each user next to each other; users are numbered by first appearance."""
        starts, codes = _runs(users, n_rows)
        n_users = int(codes.max()) + 1
        check_users(n_users)
        order, counts = None, np.diff(starts, append=n_rows)
        if n_users < len(starts):  # else each user's rows are next to each other
            narrow = codes.astype(np.int32 if n_rows < 2**31 - 1 else np.int64)
            order, counts = _counting_sort(np.repeat(narrow, counts), n_users)
        return cls(running_total(counts), order)

    def kept(
        self,
        usable: np.ndarray,
        cap: int | None = None,
        insecure_seed: int | None = None,
        key: bytes | None = None,
    ) -> Groups:
        """The same users without input rows that are not usable, and then with at most `cap` rows each.

        Guarantee: which rows of a user are dropped for not being usable is a function of the mask at that user's rows.
        """
        groups = self
        if not usable.all():
            mine = usable if self.order is None else usable[self.order]
            offsets = running_total(mine)[self.offsets]
            order = np.flatnonzero(mine) if self.order is None else self.order[mine]
            groups = Groups(offsets, order, np.diff(offsets) < np.diff(self.offsets))
        counts = np.diff(groups.offsets)
        if cap is None or counts.max() <= cap:
            return groups
        owner = np.repeat(np.arange(len(counts)), counts)
        crowded = np.flatnonzero(counts[owner] > cap)
        # A uniform choice of `cap` rows: give every row a random key and keep the `cap` smallest of each user.
        shuffled = crowded[np.lexsort((draws(insecure_seed, key)(crowded.size), owner[crowded]))]
        keep = np.ones(groups.n_rows, dtype=bool)
        keep[shuffled[crowded - groups.offsets[owner[crowded]] >= cap]] = False
        order = np.flatnonzero(keep) if groups.order is None else groups.order[keep]
        return replace(groups, offsets=running_total(np.minimum(counts, cap)), order=order)

    @property
    def n_rows(self) -> int:
        return int(self.offsets[-1])

    def gather(self, source: np.ndarray, out: np.ndarray) -> None:
        """Fill `out` with the source's rows in order, some at a time, on all processors, without any warnings."""

        def move(start: int) -> None:
            slab = slice(start, min(start + _GATHER_ROWS, self.n_rows))
            with np.errstate(all="ignore"):
                if self.order is not None and source.flags.c_contiguous:  # `take` is quickest, but copies others whole
                    out[slab] = source.take(self.order[slab], axis=0)
                else:
                    out[slab] = source[slab if self.order is None else self.order[slab]]

        starts = range(0, self.n_rows, _GATHER_ROWS)
        with ThreadPoolExecutor(1 if out.size < _THREADING_PAYS else os.cpu_count() or 1) as pool:
            list(pool.map(move, starts))

    def targets(self, source: np.ndarray | None) -> np.ndarray:
        """Targets in order, NaN without a source, which is used as it is if it has that order and type."""
        if source is None:
            return np.full(self.n_rows, np.nan)
        return np.ascontiguousarray(source if self.order is None else source[self.order], dtype=np.float64)

    def ids(self, users: Any) -> tuple[Hashable, ...]:
        """Identifier of each user, in the users' order, before any row is left out."""
        firsts = self.offsets[:-1] if self.order is None else self.order[self.offsets[:-1]]
        if isinstance(users, (pa.Array, pa.ChunkedArray)):
            users = decoded(users)
            users = users.cast(pa.large_string()) if declared(users) == TEXT else users  # not all text can be taken
            return tuple(texts(users.take(pa.array(firsts))))
        listed = list(users)
        return tuple(listed[first] for first in firsts)


def running_total(counts: np.ndarray) -> np.ndarray:
    """0, and the sums of the first counts."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def check_users(n_users: int) -> None:
    """Refuse a single user; their number is public."""
    if n_users < 2:
        raise ValueError(f"n_users must be at least 2, got {n_users}: privacy between users needs several of them.")


def fresh_key() -> bytes:
    """A secret by which rows are chosen, the same ones each time that they are read."""
    return os.urandom(32)


def draws(insecure_seed: int | None, key: bytes | None = None) -> Callable[[int], np.ndarray]:
    """Gives random 64-bit words from the operating system, so many at a time, or repeatable numbers in [0, 1).

    With a secret key, once, words that it decides.
    """
    if key is not None:
        return lambda n: np.frombuffer(hashlib.shake_256(key).digest(8 * n), dtype=np.uint64)
    if insecure_seed is None:
        return lambda n: np.frombuffer(os.urandom(8 * n), dtype=np.uint64)
    generator = np.random.default_rng(insecure_seed)
    return lambda n: generator.random(n)


def _runs(users: Any, n_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Where runs of rows of one user start, and whose each is: users are numbered by first appearance.

    Identifiers that are equal in Python (1, 1.0 and True) are one user.
    """
    if isinstance(users, (str, bytes, np.ma.MaskedArray)) or not hasattr(users, "__len__"):
        raise TypeError(
            f"User ids must be a sequence with one id per row, got {type(users).__name__}: pass the ids themselves, "
            'groups=table["user_id"] for example.'
        )
    if len(users) != n_rows:
        raise ValueError("User ids and rows differ in length: pass one id per row.")
    if n_rows == 0:
        raise ValueError(NO_ROWS)
    if isinstance(users, range):
        return np.arange(n_rows), np.arange(n_rows)
    ids = _comparable(users)
    if isinstance(ids, np.ndarray) and ids.ndim != 1:
        raise ValueError(f"User ids must have shape (n_rows,), got {ids.ndim} dimensions: pass one id per row.")
    if isinstance(ids, np.ndarray) and encodable(ids.dtype):
        starts = changes(ids)
        heads = ids[starts]
        if np.any(heads != heads):  # NaN and NaT differ from themselves, so each of them starts a run
            raise ValueError(MISSING_ID)
        heads = heads + 0.0 if heads.dtype.kind == "f" else heads  # -0.0 is 0.0, but other bytes
        return starts, encode(heads)[0]
    codes = encode(ids)[0] if isinstance(ids, pa.Array) else _codes_of_objects(ids)
    starts = changes(codes)
    return starts, codes[starts]


def _comparable(users: Any) -> Any:
    """Ids as an array in which they are equal exactly if they are in Python.

    Lists of mixed types stay as they are: numpy would turn different ids into equal text.
    """
    found = as_arrow(users)
    if found is not None:
        if found.null_count:
            raise ValueError(MISSING_ID)
        if pa.types.is_integer(found.type) or pa.types.is_floating(found.type):
            return found.to_numpy(zero_copy_only=False)
        if not isinstance(found, pa.ExtensionArray):
            return found.to_pylist() if pa.types.is_nested(found.type) else found
    ids = users if isinstance(users, (list, tuple)) else np.asarray(users)
    if isinstance(ids, (list, tuple)) or (ids.dtype == object and ids.ndim == 1):
        kinds = set(map(type, ids))
        try:
            if kinds <= {str}:
                return pa.array(ids, pa.large_string())
            return np.fromiter(ids, dtype=np.int64, count=len(ids)) if kinds <= {int} else ids
        except (OverflowError, UnicodeError, pa.ArrowException):  # beyond 64 bits, or no Unicode
            return ids
    return ids


def keys(ids: pa.Array) -> pa.Array:
    """Ids of one type as whole numbers, floats or bytes that are equal exactly if the ids are; null if missing."""
    ids = ids.dictionary_decode() if pa.types.is_dictionary(ids.type) else ids
    kind = ids.type
    if declared(ids) == TEXT:
        return as_bytes(ids).cast(pa.large_binary())
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return ids.cast(pa.large_binary())
    if pa.types.is_floating(kind):
        wide = ids.cast(pa.float64())
        return pc.if_else(pc.is_nan(wide), pa.scalar(None, pa.float64()), pc.add(wide, 0.0))  # -0.0 is 0.0
    if pa.types.is_decimal(kind):
        return ids.cast(pa.string()).cast(pa.large_binary())
    if pa.types.is_uint64(kind):
        return ids
    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        return ids.view(pa.int32() if kind.bit_width == 32 else pa.int64()).cast(pa.int64())
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind):
        return ids.cast(pa.int64())
    raise TypeError(f"User ids must be text, numbers, dates or times, got {kind}: convert them.")


def changes(cells: np.ndarray) -> np.ndarray:
    """Where runs of equal cells start."""
    return np.flatnonzero(np.concatenate([[True], cells[1:] != cells[:-1]]))


def _counting_sort(codes: np.ndarray, n_codes: int) -> tuple[np.ndarray, np.ndarray]:
    """The stable order that sorts the codes, and how often each occurs, in linear time.

    A matrix with one entry in each row, stored by rows, is stored by columns: that is a counting sort.
    """
    from scipy.sparse import csr_array

    entries, starts = np.empty(len(codes), dtype=np.int8), np.arange(len(codes) + 1, dtype=codes.dtype)
    by_column = csr_array((entries, codes, starts), shape=(len(codes), n_codes)).tocsc()
    return by_column.indices, np.diff(by_column.indptr)


def _codes_of_objects(ids: Sequence[Any] | np.ndarray) -> np.ndarray:
    codes: dict[Hashable, int] = {}
    result = np.empty(len(ids), dtype=np.int64)
    for i, identifier in enumerate(ids):
        if _is_missing(identifier):
            raise ValueError(MISSING_ID)
        try:
            result[i] = codes.setdefault(identifier, len(codes))
        except TypeError:
            kind = type(identifier).__name__
            raise TypeError(f"User ids must be hashable, got one of type {kind}: use strings or tuples.") from None
    return result


def _is_missing(identifier: Any) -> bool:
    """Whether an id is None, NaN, NaT or NA, alone or in a tuple: two of these would count as different users."""
    if isinstance(identifier, (tuple, list)):
        return any(map(_is_missing, identifier))
    try:
        return identifier is None or bool(identifier != identifier)
    except Exception:  # pandas' NA refuses to be a truth value
        return True
