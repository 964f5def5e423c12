"""Columns as codes: equal cells get equal whole numbers, counted by first appearance, without a loop over cells.

Which way is taken may depend on cells, but what comes out does not: codes are those that a dictionary of Python's would
give.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa


def encodable(kind: np.dtype) -> bool:
    """Whether cells of this type are equal exactly if their bytes are, but for NaN and the sign of 0."""
    return kind.kind in "biumMUS" or (kind.kind == "f" and kind.itemsize <= 8)


def encode(cells: np.ndarray | pa.Array) -> tuple[np.ndarray, Any]:
    """Each cell's code, and the distinct cells in the order of codes; the code of null is their number."""
    if isinstance(cells, np.ndarray):
        if (found := _encode_close(cells)) is not None:
            return found
        cells = np.ascontiguousarray(cells)
        size = cells.dtype.itemsize
        words = {1: pa.int8(), 2: pa.int16(), 4: pa.int32(), 8: pa.int64()}.get(size, pa.binary(size))
        raw = pa.Array.from_buffers(words, len(cells), [None, pa.py_buffer(cells.view(np.uint8))])
        codes, distinct = encode(raw)
        data = distinct.buffers()[1]
        return codes, np.frombuffer(data, dtype=cells.dtype, count=len(distinct), offset=distinct.offset * size)
    encoded = cells.dictionary_encode()
    codes = encoded.indices.fill_null(len(encoded.dictionary)) if cells.null_count else encoded.indices
    return np.asarray(codes), encoded.dictionary


def _encode_close(cells: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Whole numbers that are close to each other, by a table of where each first appears, or None for other cells."""
    if cells.dtype.kind not in "iu" or not len(cells):
        return None
    low, n_numbers = cells.min(), int(cells.max()) - int(cells.min()) + 1
    if n_numbers > min(len(cells), 2**31 - 1):
        return None
    steps = (cells - low).view(f"u{cells.dtype.itemsize}").astype(np.intp)  # the difference may need all bits
    firsts = np.full(n_numbers, len(cells))
    np.minimum.at(firsts, steps, np.arange(len(cells)))
    present = np.flatnonzero(firsts < len(cells))
    ranked = present[np.argsort(firsts[present])]
    codes = np.empty(n_numbers, dtype=np.int32)
    codes[ranked] = np.arange(len(ranked), dtype=np.int32)
    return codes.take(steps), cells[firsts[ranked]]


def encode_dictionary(column: Any) -> np.ndarray | None:
    """Codes of Arrow text that is held as places in dictionaries, by these alone; None of other columns, or nulls."""
    if not isinstance(column, (pa.ChunkedArray, pa.DictionaryArray)) or not pa.types.is_dictionary(column.type):
        return None
    kind = column.type.value_type
    plain = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    dictionaries = [chunk.dictionary for chunk in chunks]
    if not any(test(kind) for test in plain) or column.null_count or any(d.null_count for d in dictionaries):
        return None
    try:
        merged = pa.chunked_array(dictionaries, kind).dictionary_encode()
    except pa.ArrowException:  # too much text for one dictionary
        return None
    codes = np.concatenate([np.asarray(chunk.indices) for chunk in merged.chunks])
    parts = np.split(codes, np.cumsum([len(dictionary) for dictionary in dictionaries])[:-1])
    places = [np.asarray(chunk.indices) for chunk in chunks]
    for part, own in zip(parts, places, strict=True):
        if len(own) and not (own.min() >= 0 and own.max() < len(part)):
            raise ValueError("Expected ids within their column's dictionary, got others: the table is damaged.")
    return encode(np.concatenate([part[own] for part, own in zip(parts, places, strict=True)]))[0]


def as_arrow(column: Any) -> pa.Array | None:
    """A column of pandas, polars or Arrow, that numpy has no type for, as one Arrow array of its values, or None."""
    if isinstance(getattr(column, "dtype", None), np.dtype) or hasattr(column, "columns"):
        return None
    try:
        if hasattr(column, "to_arrow"):  # polars
            column = column.to_arrow()
        elif hasattr(column, "iloc") and not hasattr(column, "cat"):  # pandas, whose categories may be anything
            column = pa.array(column, from_pandas=True)
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        if isinstance(column, pa.Array) and pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()  # a null may be in the dictionary
    except Exception:  # a type that Arrow does not know, or cells that are no UTF-8
        return None
    return column if isinstance(column, pa.Array) else None


def arrow_ids(users: Any) -> Any:
    """Ids of pandas, polars or Arrow as an Arrow array that tells them apart as Python does; others as they are."""
    found = as_arrow(users)
    if found is None:
        return users
    if pa.types.is_nested(found.type):
        return found.to_pylist()
    if pa.types.is_integer(found.type) and not found.null_count:
        return found.to_numpy()
    if pa.types.is_floating(found.type):
        return users if found.null_count else found.to_numpy(zero_copy_only=False)
    return users if isinstance(found, pa.ExtensionArray) else found


def plain_ids(ids: Sequence[Any] | np.ndarray) -> np.ndarray | pa.Array | None:
    """Ids in a list, or in an array of objects, that are all text or all whole numbers: as an array, else None."""
    kinds = set(map(type, ids))
    try:
        if kinds <= {str}:
            return pa.array(ids, pa.large_string())
        return np.fromiter(ids, dtype=np.int64, count=len(ids)) if kinds <= {int} else None
    except (OverflowError, UnicodeError, pa.ArrowException):  # beyond 64 bits, or no Unicode
        return None
