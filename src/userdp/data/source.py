"""Where rows come from, in names that the caller gave: a file and its columns. Never what is in them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Source:
    """The data file's name, columns by what they are for, and what those of features are; None where nobody said.

    >>> print(Source("visits.parquet", "bought", "person", columns="age (number)"))
    data visits.parquet, target bought, user column person, columns age (number)
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
                raise TypeError(f"Expected {field.name} to be a name or None, got {type(value).__name__}.")

    def __str__(self) -> str:
        named = {field.name.replace("_", " "): getattr(self, field.name) for field in fields(self)}
        return ", ".join(f"{name} {value}" for name, value in named.items() if value)

    def entry(self, purpose: str, what: str) -> str:
        """What a ledger says of a run: its purpose, what was run, and on what."""
        return "; ".join(filter(None, (purpose, what, str(self))))

    @classmethod
    def of(cls, target: Any = None, users: Any = None, sample_weight: Any = None, exposure: Any = None) -> Source:
        """The names of columns of pandas or polars."""
        return cls(None, *map(column_name, (target, users, sample_weight, exposure)))


def check_purpose(purpose: Any) -> None:
    """Refuse a purpose that is no text."""
    if not isinstance(purpose, str):
        raise TypeError(f"Expected purpose to be text, got {type(purpose).__name__}. Nothing was spent.")


def column_name(column: Any) -> str | None:
    """The name of a column of pandas or polars; None if it has none, or is no column."""
    name = getattr(column, "name", None)
    return name if isinstance(name, str) and name else None
