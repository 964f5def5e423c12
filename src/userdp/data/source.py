"""Where rows come from, in names that the caller gave: a file and its columns. Never what is in them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Source:
    """The data file's name, the target's column, and the column that says who is a user; None where nobody said.

    >>> print(Source("visits.parquet", "bought", "person"))
    data visits.parquet, target bought, user column person
    """

    data: str | None = None
    target: str | None = None
    user_column: str | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, str | None):
                raise TypeError(f"Expected {field.name} to be a name or None, got {type(value).__name__}.")

    def __str__(self) -> str:
        named = {field.name.replace("_", " "): getattr(self, field.name) for field in fields(self)}
        return ", ".join(f"{name} {value}" for name, value in named.items() if value)


def column_name(column: Any) -> str | None:
    """The name of a column of pandas or polars; None if it has none, or is no column."""
    name = getattr(column, "name", None)
    return name if isinstance(name, str) and name else None
