"""Where rows come from: the names that the caller gave, and whether two tables are the same memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

SHARED = (
    "public_X shares memory with the private data: it is the same object, or a view of it. It must be rows that "
    "anybody may know, since no noise is added to what is computed from it: pass other rows, or leave it out. Nothing "
    "was spent."
)


@dataclass(frozen=True)
class Source:
    """Where data comes from: the names of the file and of its columns, by role; None where it was not given.

    >>> print(Source("visits.parquet", "bought", "user_id", columns="age (number)"))
    data visits.parquet, target bought, user column user_id, columns age (number)
    """

    data: str | None = None
    target: str | None = None
    user_column: str | None = None
    weight: str | None = None
    exposure: str | None = None
    columns: str | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, str | None):
                raise TypeError(f"{field.name} must be a name or None, got {type(value).__name__}.")

    def __str__(self) -> str:
        named = {field.name.replace("_", " "): getattr(self, field.name) for field in fields(self)}
        return ", ".join(f"{name} {value}" for name, value in named.items() if value)

    def entry(self, purpose: str, what: str) -> str:
        """A ledger's entry for a run: its purpose, what was run, and on what."""
        return "; ".join(filter(None, (purpose, what, str(self))))

    @classmethod
    def of(cls, target: Any = None, users: Any = None, sample_weight: Any = None, exposure: Any = None) -> Source:
        """The names of columns of pandas or polars."""
        return cls(None, *map(column_name, (target, users, sample_weight, exposure)))


def check_purpose(purpose: Any) -> None:
    """Refuse a purpose that is no text."""
    if not isinstance(purpose, str):
        raise TypeError(f"purpose must be text, got {type(purpose).__name__}. Nothing was spent.")


def column_name(column: Any) -> str | None:
    """The name of a column of pandas or polars; None if it has none, or is no column."""
    name = getattr(column, "name", None)
    return name if isinstance(name, str) and name else None


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
    elif hasattr(table, "itercolumns"):  # of Arrow: slices share a buffer, but not the cells that they have in it
        for chunk in [chunk for column in table.itercolumns() for chunk in getattr(column, "chunks", [column])]:
            with contextlib.suppress(ValueError):  # text and lists have no width
                width = chunk.type.bit_width // 8
                held = chunk.buffers()[1] if width and len(chunk) else b""
                yield np.frombuffer(held, np.uint8)[chunk.offset * width : (chunk.offset + len(chunk)) * width]
