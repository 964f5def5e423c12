"""Grouping rows by user: identifiers of any kind become an order of rows and offsets, with an optional cap."""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from userdp.data.schema import texts

_GATHER_ROWS = 65536  # rows moved at a time, so that a gather needs no second copy of the matrix


@dataclass(frozen=True)
class Groups:
    """Which input row goes where: output row i is input row order[i], or input row i without an order."""

    offsets: np.ndarray
    order: np.ndarray | None

    @classmethod
    def make(cls, users: Any, n_rows: int, cap: int | None, insecure_seed: int | None) -> Groups:
        check_seed(insecure_seed)
        codes = _user_codes(users, n_rows)
        n_users = int(codes.max()) + 1
        if n_users < 2:
            raise ValueError(f"Expected n_users={n_users} >= 2: privacy between users needs several of them.")
        counts = np.bincount(codes, minlength=n_users)
        # Codes count first appearances, so they never fall exactly when each user's rows are contiguous.
        order = None if np.all(codes[1:] >= codes[:-1]) else np.argsort(codes, kind="stable")
        if cap is not None:
            if not (isinstance(cap, (int, np.integer)) and cap >= 1):
                raise ValueError(f"Expected max_rows_per_user={cap} to be an integer >= 1: pass None for no cap.")
            if counts.max() > cap:
                order = _capped(order, counts, int(cap), insecure_seed)
                counts = np.minimum(counts, cap)
        return cls(np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), order)

    @property
    def n_rows(self) -> int:
        return int(self.offsets[-1])

    def gather(self, source: np.ndarray, out: np.ndarray) -> None:
        """Fill `out` with the source's rows in order, a slab at a time, without warnings about their values."""
        with np.errstate(all="ignore"):
            for start in range(0, self.n_rows, _GATHER_ROWS):
                slab = slice(start, min(start + _GATHER_ROWS, self.n_rows))
                out[slab] = source[slab if self.order is None else self.order[slab]]

    def targets(self, source: np.ndarray | None) -> np.ndarray:
        targets = np.full(self.n_rows, np.nan)
        if source is not None:
            self.gather(source, targets)
        return targets

    def ids(self, users: Any) -> tuple[Hashable, ...]:
        """Identifier of each user, in the users' order."""
        firsts = self.offsets[:-1] if self.order is None else self.order[self.offsets[:-1]]
        if isinstance(users, (pa.Array, pa.ChunkedArray)):
            return tuple(texts(users.take(pa.array(firsts))))
        listed = list(users)
        return tuple(listed[first] for first in firsts)


def check_seed(insecure_seed: Any) -> None:
    """Refuse what is no seed, whether or not it will be needed: an error only if a user is capped would tell of one."""
    if insecure_seed is None:
        return
    if isinstance(insecure_seed, bool) or not isinstance(insecure_seed, (int, np.integer)) or insecure_seed < 0:
        kind = type(insecure_seed).__name__
        raise ValueError(f"Expected insecure_seed to be a whole number >= 0, got {kind}: pass None for a private run.")


def _capped(order: np.ndarray | None, counts: np.ndarray, cap: int, insecure_seed: int | None) -> np.ndarray:
    """At most `cap` input rows of each user, chosen uniformly, in their old order."""
    n_rows = int(counts.sum())
    order = np.arange(n_rows) if order is None else order
    owner = np.repeat(np.arange(len(counts)), counts)
    crowded = np.flatnonzero(counts[owner] > cap)
    # A uniform choice of `cap` rows: give every row a random key and keep the `cap` smallest of each user.
    shuffled = crowded[np.lexsort((_keys(crowded.size, insecure_seed), owner[crowded]))]
    first_of_user = np.cumsum(counts) - counts
    surplus = crowded - first_of_user[owner[crowded]] >= cap
    keep = np.ones(n_rows, dtype=bool)
    keep[shuffled[surplus]] = False
    return order[keep]


def _keys(n: int, insecure_seed: int | None) -> np.ndarray:
    """Random 64-bit keys from the operating system, or repeatable ones."""
    if insecure_seed is None:
        return np.frombuffer(os.urandom(8 * n), dtype=np.uint64)
    return np.random.default_rng(insecure_seed).random(n)


_MISSING_ID = "Expected a user id in every row: some are missing (None, NaN or null); drop those rows or fill the ids."


def _user_codes(users: Any, n_rows: int) -> np.ndarray:
    """Number users by first appearance. Identifiers that are equal in Python (1, 1.0 and True) are one user."""
    if isinstance(users, (str, bytes)) or not hasattr(users, "__len__"):
        raise TypeError(f"Expected users to hold one id per row, got {type(users).__name__}: pass a sequence of ids.")
    if len(users) != n_rows:
        raise ValueError("Expected as many user ids as rows, but users and rows differ in length: pass one id per row.")
    if n_rows == 0:
        raise ValueError("Expected at least one row, got an empty table: check the source or the filter before it.")
    if isinstance(users, pa.ChunkedArray):
        users = users.combine_chunks()
    if isinstance(users, pa.Array):
        if pa.types.is_dictionary(users.type):
            users = users.dictionary_decode()  # first: a null may be in the dictionary
        if users.null_count:
            raise ValueError(_MISSING_ID)
        if not pa.types.is_floating(users.type) and not pa.types.is_nested(users.type):
            return np.asarray(users.dictionary_encode().indices, dtype=np.int64)
        users = users.to_pylist() if pa.types.is_nested(users.type) else users.to_numpy(zero_copy_only=False)
    # A list stays as it is: numpy would turn [1, "1"] into two equal strings.
    array = users if isinstance(users, (list, tuple)) else np.asarray(users)
    if isinstance(array, np.ndarray) and array.ndim != 1:
        raise ValueError(f"Expected users of shape (n_rows,), got {array.ndim} dimensions: pass one id per row.")
    if isinstance(array, np.ndarray) and array.dtype.kind in "biufmMUS":
        return _codes_of_array(array)
    return _codes_of_objects(array)


def _codes_of_array(ids: np.ndarray) -> np.ndarray:
    """Codes of a plain numpy array, by sorting only the first id of each run of equal ids."""
    starts = np.flatnonzero(np.concatenate([[True], ids[1:] != ids[:-1]]))
    heads = ids[starts]
    if np.any(heads != heads):  # NaN and NaT differ from themselves, so each of them starts a run
        raise ValueError(_MISSING_ID)
    _, first, inverse = np.unique(heads, return_index=True, return_inverse=True)
    by_appearance = np.empty(first.size, dtype=np.int64)
    by_appearance[np.argsort(first)] = np.arange(first.size)
    return np.repeat(by_appearance[inverse], np.diff(starts, append=len(ids)))


def _codes_of_objects(ids: Sequence[Any] | np.ndarray) -> np.ndarray:
    codes: dict[Hashable, int] = {}
    result = np.empty(len(ids), dtype=np.int64)
    for i, identifier in enumerate(ids):
        if _is_missing(identifier):
            raise ValueError(_MISSING_ID)
        try:
            result[i] = codes.setdefault(identifier, len(codes))
        except TypeError:
            kind = type(identifier).__name__
            raise TypeError(f"Expected hashable user ids, got one of type {kind}: use strings or tuples.") from None
    return result


def _is_missing(identifier: Any) -> bool:
    """Whether an id is None, NaN, NaT or NA, alone or in a tuple: two of these would count as different users."""
    if isinstance(identifier, (tuple, list)):
        return any(map(_is_missing, identifier))
    try:
        return identifier is None or bool(identifier != identifier)
    except Exception:  # pandas' NA refuses to be a truth value
        return True
