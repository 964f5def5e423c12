"""Whether two tables are the same memory: rows that are said to be public must not be the private ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

SHARED = (
    "Expected public_X to be rows that anybody may know, but it shares memory with the private data: it is the same "
    "object or a view of it. No noise is added to what is computed from public_X. Pass other rows, or leave it out. "
    "Nothing was spent."
)


def shares_memory(public: Any, private: Any) -> bool:
    """Whether some array or column of one table is that of the other, or a view of it; copies are not noticed.

    >>> rows = np.ones((4, 2))
    >>> shares_memory(rows[:2], rows), shares_memory(rows.copy(), rows)
    (True, False)
    """
    if public is None:
        return False
    held = list(_arrays(private))
    return public is private or any(np.shares_memory(one, other) for one in _arrays(public) for other in held)


def _arrays(table: Any) -> Iterator[np.ndarray]:
    """The arrays that a table of any kind is made of, as far as they are there without a copy."""
    if isinstance(table, np.ndarray):
        yield table
    elif hasattr(table, "indptr"):  # sparse
        yield table.data if isinstance(getattr(table, "data", None), np.ndarray) else table.values
    elif hasattr(table, "items") and hasattr(table, "iloc"):  # of pandas
        yield from (column.to_numpy() for _, column in table.items())
    elif hasattr(table, "to_arrow"):  # of polars, which has its numbers as Arrow does
        yield from _arrays(table.to_arrow())
    elif hasattr(table, "itercolumns"):  # of Arrow
        for column in table.itercolumns():
            for chunk in getattr(column, "chunks", [column]):
                yield from _cells(chunk)


def _cells(chunk: Any) -> Iterator[np.ndarray]:
    """The bytes of an Arrow array's own cells, of a type of fixed width: slices share a buffer, but not their cells."""
    try:
        width = chunk.type.bit_width // 8
    except ValueError:  # text, lists
        return
    if width and len(chunk):
        yield np.frombuffer(chunk.buffers()[1], np.uint8)[chunk.offset * width : (chunk.offset + len(chunk)) * width]
