"""Columns as codes: equal cells get equal whole numbers, counted by first appearance, without a loop over cells.

Which way is taken may depend on cells, but what comes out does not: codes are those that a dictionary of Python's would
give.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

_TEXT_TYPES = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


def encodable(kind: np.dtype) -> bool:
    """Whether cells of this type are equal exactly if their bytes are, but for NaN and the sign of 0."""
    return kind.kind in "biumMUS" or (kind.kind == "f" and kind.itemsize <= 8)


def encode(cells: np.ndarray | pa.Array) -> tuple[np.ndarray, Any]:
    """Each cell's code, and the distinct cells in the order of codes; the code of null is their number."""
    if isinstance(cells, np.ndarray):
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


def encode_dictionary(column: Any) -> np.ndarray | None:
    """Codes of Arrow text that is held as places in dictionaries, by these alone; None of other columns, or nulls."""
    column = pa.chunked_array([column]) if isinstance(column, pa.DictionaryArray) else column
    if not isinstance(column, pa.ChunkedArray) or not pa.types.is_dictionary(column.type):
        return None
    if column.type.value_type not in _TEXT_TYPES or column.null_count:
        return None
    for chunk in column.chunks:
        places = np.asarray(chunk.indices)
        if chunk.dictionary.null_count:
            return None
        if len(places) and not (places.min() >= 0 and places.max() < len(chunk.dictionary)):
            raise ValueError("Expected ids within their column's dictionary, got others: the table is damaged.")
    try:
        column = column.unify_dictionaries()
    except pa.ArrowException:  # too much text for one dictionary
        return None
    first_alike = encode(column.chunk(0).dictionary)[0]  # text may be in a dictionary twice
    return encode(first_alike[np.concatenate([np.asarray(chunk.indices) for chunk in column.chunks])])[0]


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
