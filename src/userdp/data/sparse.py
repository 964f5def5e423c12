"""Rows by their non-zero entries: what a scipy matrix in CSR form holds, without making it dense.

Row i has values[k] in column indices[k] for indptr[i] <= k < indptr[i + 1]. Entries are sorted by
column when rows are made, and several in one column added up; zeros may be among them.

Guarantee: whether something is raised here, and its words, depend on types, dimensions and on whether the parts fit
together (the structure), never on a value; what a row is depends on its own entries only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse

from userdp.data.groups import Groups
from userdp.data.schema import NUMBER, declared

_MALFORMED = (
    "{what} is no well-formed sparse matrix: row pointers must rise from 0 to the number of entries, column indices "
    "be from 0 to the number of columns less 1. Build it again."
)


@dataclass(frozen=True, eq=False, repr=False)
class SparseRows:
    """Rows by their entries. All arrays are read-only."""

    indptr: np.ndarray
    indices: np.ndarray
    values: np.ndarray
    n_columns: int

    def __post_init__(self) -> None:
        arrays = {"indptr": "lq", "indices": "ilq", "values": "fd"}
        for name, kinds in arrays.items():
            array = getattr(self, name)
            kind = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
            if not isinstance(array, np.ndarray) or array.dtype.char not in kinds or not array.dtype.isnative:
                raise TypeError(f"{name} must be an array of {kinds!r} in native order, got {kind}: convert it.")
            view = np.ascontiguousarray(array).view()
            view.flags.writeable = False
            object.__setattr__(self, name, view)
        if not _fits(self.indptr, self.indices, self.values, self.n_columns):
            raise ValueError(_MALFORMED.format(what="rows"))
        self._sort()

    def csr(self) -> scipy.sparse.csr_array:
        """As scipy has it, without a copy: pointers and indices of two types would be copied into one."""
        indptr, kind = self.indptr, self.indices.dtype
        if len(self.values) <= np.iinfo(kind).max:
            indptr = indptr.astype(kind, copy=False)
        return scipy.sparse.csr_array((self.values, self.indices, indptr), shape=self.shape)

    def _sort(self) -> None:
        """Entries of each row by columns, those of one column added up: what a row is must not hang on other rows.

        scipy's sort is unstable, and its algorithms depend on whether a whole matrix is in this form. Here all rows are
        sorted if any is not: a row with several entries of a column always is, and of others there is one order only.
        """
        made = self.csr()
        if made.has_canonical_format:
            return
        made = made.copy()
        made.has_sorted_indices = False
        with np.errstate(all="ignore"):
            made.sum_duplicates()
        for name, array in {
            "indptr": made.indptr.astype(np.int64),
            "indices": made.indices,
            "values": made.data,
        }.items():
            array.flags.writeable = False
            object.__setattr__(self, name, array)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), self.n_columns

    @property
    def dtype(self) -> np.dtype:
        return self.values.dtype

    @property
    def size(self) -> int:
        """How many numbers there are to go through."""
        return len(self.values)

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def __repr__(self) -> str:
        return f"SparseRows(n_features={self.shape[1]}, dtype={self.dtype})"

    def dense(self, block: slice) -> np.ndarray:
        """Some rows as a matrix."""
        first, last, _ = block.indices(len(self))
        indptr = self.indptr[first : last + 1]
        rows = np.zeros((len(indptr) - 1, self.shape[1]), self.dtype)
        held = slice(indptr[0], indptr[-1])
        with np.errstate(all="ignore"):
            np.add.at(rows, (np.repeat(np.arange(len(rows)), np.diff(indptr)), self.indices[held]), self.values[held])
        return rows

    def grouped(self, groups: Groups, dtype: np.dtype) -> SparseRows:
        """The rows in the groups' order: as they are, or in one gather."""
        with np.errstate(all="ignore"):
            if groups.order is None:
                return replace(self, values=self.values.astype(dtype, copy=False))
            found = self.csr()[groups.order]
            values = found.data.astype(dtype, copy=False)
        return SparseRows(found.indptr.astype(np.int64), found.indices, values, self.n_columns)

    def __getitem__(self, some: slice) -> SparseRows:
        """Rows next to each other, without a copy of their entries."""
        first, last, _ = some.indices(len(self))
        held = slice(int(self.indptr[first]), int(self.indptr[last]))
        indptr = self.indptr[first : last + 1] - held.start
        return replace(self, indptr=indptr, indices=self.indices[held], values=self.values[held])

    @staticmethod
    def joined(parts: Sequence[SparseRows]) -> SparseRows:
        """The rows of several parts, one part after the other."""
        return sparse_rows("rows", scipy.sparse.vstack([part.csr() for part in parts], format="csr"))


def is_sparse(X: Any) -> bool:
    """Whether X is a sparse matrix or array of scipy, or another that becomes one."""
    return isinstance(X, SparseRows) or hasattr(X, "tocsr")


def sparse_rows(what: str, X: Any) -> SparseRows:
    """Rows of a sparse matrix: those of CSR as they are, those of other forms converted once."""
    if isinstance(X, SparseRows):
        return X
    if getattr(X, "ndim", 2) != 2 or X.shape[1] == 0:
        problem = "no feature" if getattr(X, "ndim", 2) == 2 else f"{X.ndim} dimensions"
        raise ValueError(f"{what} must have shape (n_rows, n_features), got {problem}: reshape it.")
    if declared(X) != NUMBER:
        raise TypeError(f"{what} must be numeric (float, integer or boolean), got {X.dtype}: convert it.")
    try:
        X = _csr(X)
        indptr, indices, values = (np.asarray(part) for part in (X.indptr, X.indices, X.data))
        if indptr.dtype.kind != "i" or len(indptr) != X.shape[0] + 1:
            raise ValueError
        held, single = int(indptr[-1]), values.dtype.newbyteorder("=") == np.float32
        with np.errstate(all="ignore"):
            values = values[:held].astype(np.float32 if single else np.float64, copy=False)
        return SparseRows(indptr.astype(np.int64, copy=False), indices[:held], values, X.shape[1])
    except Exception:  # scipy's words may quote an index
        raise ValueError(_MALFORMED.format(what=what)) from None


def _csr(X: Any) -> Any:
    """X in CSR form; what is to be converted is checked first, because scipy's conversions read unchecked."""
    form = getattr(X, "format", "")
    if form == "csr":
        return X
    if form in ("csc", "bsr"):
        X.check_format(full_check=True)
    if form == "coo":
        X = type(X)((X.data, X.coords), shape=X.shape)  # rebuilt, it is checked
    return X.tocsr()


def _fits(indptr: np.ndarray, indices: np.ndarray, values: np.ndarray, n_columns: int) -> bool:
    """Whether scipy, which checks no bounds, can read these parts."""
    if any(part.ndim != 1 for part in (indptr, indices, values)) or len(indptr) == 0 or len(indices) != len(values):
        return False
    if indptr[0] != 0 or indptr[-1] != len(values) or np.any(indptr[1:] < indptr[:-1]):
        return False
    return indices.size == 0 or bool(indices.min() >= 0 and indices.max() < n_columns)
