"""Columns of a table, described once: numbers, booleans, categories, dates and text become features.

A description is public. It says what a column means and never what its cells are: each cell is read by itself, what is
beyond a range is clipped to it, and what cannot be read is missing. What is not known publicly may be left to be
learned privately ("private"): `userdp.models.learned_columns` does that.

Guarantee: whether something is raised here, and its words, depend on the description and on names, types and lengths of
columns only; the features of a row depend on the row's own cells, its columns' types and the description, bit for bit.

>>> columns = Columns(age=Number(0, 100, fill=40), city=Category(["Paris", "Lyon"]))
>>> columns.names
['age', 'city=Lyon', 'city=(other)']
>>> columns.encode({"age": [50, None], "city": ["Lyon", "Nice"]})
array([[ 0. ,  1. ,  0. ],
       [-0.2,  0. ,  1. ]])
"""

from __future__ import annotations

import datetime
import json
import math
import os
import re
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np

from userdp._validate import check_counts, check_number
from userdp.data.cells import Coded, booleans, labels, moment_of, numbers_or_text, seconds, text_of, words_of
from userdp.data.schema import ANY, NUMBER, collected, declared, is_boolean, require_column

PRIVATE = "private"
Cells: TypeAlias = "np.ndarray | Coded"
_DAY = 86400.0
_TRANSFORMS: dict[str | None, tuple[Callable[[float], float], float]] = {  # and what numbers must not be below
    None: (float, -math.inf),
    "log1p": (math.log1p, 0.0),
    "sqrt": (math.sqrt, 0.0),
}
_PARTS = ("time", "year", "month", "day", "weekday", "hour")
_CYCLES = ("year", "month", "week", "day")


class Column(ABC):
    """What all columns have in common: a frozen record of public facts, which says which features there will be.

    `missing_indicator`: whether one more feature is 1 where a cell is missing.
    """

    type: ClassVar[str]
    missing_indicator: bool = False

    @property
    def private(self) -> bool:
        """Whether something of it is still to be learned privately."""
        return False

    @abstractmethod
    def read(self, what: str, column: Any) -> Cells:
        """The column's cells by their meaning, each by itself; NaN or None where they are missing."""

    def suffixes(self) -> list[str]:
        """What follows the column's name in its features' names."""
        return [""]

    @abstractmethod
    def features(self, cells: Any) -> Any:
        """One column of numbers per feature, missing cells filled."""

    def names(self, name: str) -> list[str]:
        """Names of the features that a column of this name becomes."""
        suffixes = self.suffixes() + ["=(missing)"] * self.missing_indicator
        return [name + suffix for suffix in suffixes]

    def encode(self, cells: Any) -> Any:
        """The features of cells: a matrix, dense or sparse."""
        with np.errstate(all="ignore"):
            found = self.features(cells)
        if not self.missing_indicator:
            return found
        missing = cells.missing if isinstance(cells, Coded) else np.isnan(cells)
        return _side_by_side([found, missing[:, None].astype(np.float64)])

    def __repr__(self) -> str:
        shown = [f"{name}={value!r}" for name, value in self.to_dict().items() if name != "type"]
        return f"{type(self).__name__}({', '.join(shown)})"

    def to_dict(self) -> dict[str, Any]:
        """For TOML and JSON: the type, and what is not as usual."""
        record: dict[str, Any] = {"type": self.type}
        for field in fields(self):  # type: ignore[arg-type]  # every column is a dataclass
            value = getattr(self, field.name)
            if value != field.default:
                record[field.name] = list(value) if isinstance(value, tuple) else value
        return record


@dataclass(frozen=True, repr=False)
class Number(Column):
    """A number, clipped to [low, high], transformed if asked, and scaled so that the range becomes [-1, 1].

    Parameters
    ----------
    low, high : float, optional
        The public range.
    range : "private", optional
        Learns the range (about 99% of users' numbers) privately, in place of `low` and `high`.
    transform : {None, "log1p", "sqrt"}
        For skewed numbers; `low` must be >= 0.
    fill : float or "private", optional
        What missing cells count as; "private" learns a median, None is the middle of the range.
    """

    type: ClassVar[str] = "number"
    low: float | None = None
    high: float | None = None
    _: KW_ONLY
    range: str | None = None
    transform: str | None = None
    fill: float | str | None = None
    missing_indicator: bool = False

    def __post_init__(self) -> None:
        if self.transform not in _TRANSFORMS:
            raise ValueError(f'transform must be None, "log1p" or "sqrt", got {self.transform!r}.')
        if self.range not in (None, PRIVATE):
            raise ValueError(f'range must be "private", got {self.range!r}: or pass low and high, Number(0, 100).')
        for name in ("low", "high") + (() if self.fill == PRIVATE else ("fill",)):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, _finite(name, value))
        if self.range == PRIVATE and (self.low is not None or self.high is not None):
            raise ValueError('A Number has low and high, or range="private": pass one of them, not both.')
        if self.range is None and (self.low is None or self.high is None or not self.low < self.high):
            raise ValueError(
                f"low and high of a Number must be its public range, low < high, got low={self.low}, high={self.high}: "
                'pass Number(0, 100), say, or range="private", which learns it for a part of the budget. Nothing was '
                "spent."
            )
        if self.low is not None and self.low < self.least:
            raise ValueError(f'low must be >= {self.least:g} with transform="{self.transform}", got {self.low:g}.')

    @property
    def least(self) -> float:
        """Below which numbers cannot be transformed."""
        return _TRANSFORMS[self.transform][1]

    @property
    def private(self) -> bool:
        return PRIVATE in (self.range, self.fill)

    def read(self, what: str, column: Any) -> np.ndarray:
        return numbers_or_text(what, column)

    def features(self, cells: np.ndarray) -> np.ndarray:
        assert self.low is not None
        assert self.high is not None
        function = _TRANSFORMS[self.transform][0]
        low, high = function(self.low), function(self.high)
        middle, half = low / 2 + high / 2, high / 2 - low / 2
        filled = middle if self.fill is None else function(min(max(float(self.fill), self.low), self.high))
        clipped = np.clip(cells, self.low, self.high)
        moved = clipped if self.transform is None else _each(function, clipped)
        return np.asarray((np.where(np.isnan(moved), filled, moved) - middle) / half)[:, None]


@dataclass(frozen=True, repr=False)
class Boolean(Column):
    """True or false, as 1 or 0. Text is read: true, t, yes, y, on, 1 and false, f, no, n, off, 0.

    Parameters
    ----------
    fill : bool
        What missing cells count as.
    """

    type: ClassVar[str] = "boolean"
    fill: bool = False
    _: KW_ONLY
    missing_indicator: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.fill, bool):
            raise TypeError(f"fill of a Boolean must be True or False, got {type(self.fill).__name__}.")

    def read(self, what: str, column: Any) -> np.ndarray:
        return booleans(what, column)

    def features(self, cells: np.ndarray) -> np.ndarray:
        return np.where(np.isnan(cells), float(self.fill), cells)[:, None]


@dataclass(frozen=True, repr=False)
class Category(Column):
    """One of some levels, or another: a 1 among zeros, one for each level but the first, and one for all others.

    The first level is the reference, whose features are all 0: otherwise they and the intercept would add up to the
    same. Levels are distinguished by their first 48 bytes.

    Parameters
    ----------
    levels : sequence or "private"
        The public levels; "private" learns those that so many users have that no single user's level can show.
    other : bool
        Whether there is a feature for all other levels. False says that the levels are all there are: any other cell
        then counts as the first level. A feature that is always 0 would get a weight of noise.
    missing_indicator : bool
        Whether one more feature is 1 where a cell is missing, as in all columns; else they count as other levels.
    max_levels : int
        How many levels are learned at most.
    levels_per_user : int
        How many of a user's levels, the most frequent ones, count when levels are learned.
    """

    type: ClassVar[str] = "category"
    LONGEST: ClassVar[int] = 48  # bytes
    levels: Sequence[Any] | str = PRIVATE
    _: KW_ONLY
    other: bool = True
    missing_indicator: bool = False
    max_levels: int = 20
    levels_per_user: int = 3

    def __post_init__(self) -> None:
        for name, least in (("max_levels", 2), ("levels_per_user", 1)):
            check_counts(at_least=least, **{name: getattr(self, name)})
        if not isinstance(self.other, bool):
            raise TypeError(f"other of a Category must be True or False, got {type(self.other).__name__}.")
        if self.private:
            if not self.other:
                raise ValueError("other=False is for a Category with declared levels only: name them all.")
            return
        if isinstance(self.levels, str) or not isinstance(self.levels, Sequence):
            raise TypeError('levels of a Category must be a list, such as ["Paris", "Lyon"], or "private".')
        if not all(isinstance(level, str | int | float | bool) for level in self.levels):
            raise TypeError("levels of a Category must be text, numbers, or true and false.")
        object.__setattr__(self, "levels", tuple(self.levels))
        texts = [cut(text_of(level) or "") for level in self.levels]
        if len(set(texts)) < len(texts) or "" in texts:
            raise ValueError(
                f"levels of a Category must differ in their first {self.LONGEST} bytes, and none may be empty."
            )

    @property
    def private(self) -> bool:
        return isinstance(self.levels, str) and self.levels == PRIVATE

    def to_dict(self) -> dict[str, Any]:
        return {"type": self.type, "levels": self.levels} | super().to_dict()

    def read(self, what: str, column: Any) -> Coded:
        return labels(what, column, None if self.private else [text_of(level) for level in self.levels])

    def suffixes(self) -> list[str]:
        if self.private:
            return [f"=({number})" for number in range(1, self.max_levels)] + ["=(other)"]
        return [f"={text_of(level)}" for level in self.levels[1:]] + ["=(other)"] * (self.other and bool(self.levels))

    def features(self, cells: Coded) -> np.ndarray:
        texts = [text_of(level) for level in self.levels]
        places = {cut(text): place for place, text in enumerate(texts) if text is not None}
        n, other = len(places), self.missing_indicator
        of_text = [-1 if text is None and other else places.get(cut(text or ""), n) for text in cells.distinct]
        place = np.array(of_text, dtype=np.int64)[cells.codes]
        last = max(n, 1) + (self.other and bool(self.levels))
        return np.asarray(place[:, None] == np.arange(1, last), dtype=np.float64)


@dataclass(frozen=True, repr=False)
class Date(Column):
    """A date or a moment, clipped to [low, high]: parts of it as numbers in [-1, 1], and cycles as sine and cosine.

    Text is read as ISO 8601; without a time zone a moment is in UTC. All features of a missing date are 0.

    Parameters
    ----------
    low, high : str or datetime.date
        The public range.
    parts : sequence of str
        Some of "time" (from low to high), "year", "month", "day" (of the month), "weekday" and "hour".
    cycles : sequence of str
        Some of "year", "month", "week" and "day".
    """

    type: ClassVar[str] = "date"
    low: str = "2000-01-01"
    high: str = "2040-01-01"
    _: KW_ONLY
    parts: Sequence[str] = ("time",)
    cycles: Sequence[str] = ("year", "week")
    missing_indicator: bool = False

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            value = getattr(self, name)
            if isinstance(value, datetime.date):
                object.__setattr__(self, name, value.isoformat())
        if not moment_of(self.low) < moment_of(self.high):
            raise ValueError(
                f"low and high of a Date must be dates, low < high, got low={self.low!r}, high={self.high!r}: pass "
                "Date('2010-01-01', '2030-01-01') for example."
            )
        for name, known in (("parts", _PARTS), ("cycles", _CYCLES)):
            asked = getattr(self, name)
            if isinstance(asked, str) or not set(asked) <= set(known) or len(set(asked)) < len(asked):
                raise ValueError(f"{name} of a Date must be some of {', '.join(known)}, each once.")
            object.__setattr__(self, name, tuple(asked))
        if not (self.parts or self.cycles):
            raise ValueError("A Date needs parts or cycles: otherwise it has no feature.")

    def read(self, what: str, column: Any) -> np.ndarray:
        return seconds(what, column)

    def suffixes(self) -> list[str]:
        return [f":{part}" for part in self.parts] + [f":{c} {f}" for c in self.cycles for f in ("sin", "cos")]

    def features(self, cells: np.ndarray) -> np.ndarray:
        low, high = moment_of(self.low), moment_of(self.high)
        missing = np.isnan(cells)
        moments = np.clip(np.where(missing, low, cells), low, high)
        days = np.floor(moments / _DAY)
        date = days.astype(np.int64).astype("datetime64[D]")
        months, years = date.astype("datetime64[M]"), date.astype("datetime64[Y]")
        day = (date - months).astype(np.int64)
        first, next_first = (years.astype("datetime64[D]"), (years + 1).astype("datetime64[D]"))
        year_days = (next_first - first).astype(np.float64)
        of_year = moments - first.astype(np.int64) * _DAY
        year = years.astype(np.int64) + 1970
        ends = [datetime.datetime.fromtimestamp(end, datetime.UTC).year for end in (low, high)]
        of_day, weekday = moments - days * _DAY, (days + 3) % 7  # 1970 began on a Thursday
        parts = {
            "time": _scaled(moments, low, high),
            "year": _scaled(year, ends[0], max(ends[1], ends[0] + 1)),
            "month": _scaled((months - years).astype(np.int64), 0, 11),
            "day": _scaled(day, 0, 30),
            "weekday": _scaled(weekday, 0, 6),
            "hour": _scaled(np.floor(of_day / 3600), 0, 23),
        }
        phases = {
            "year": of_year / (year_days * _DAY),
            "month": (day + of_day / _DAY) / 31,
            "week": (weekday + of_day / _DAY) / 7,
            "day": of_day / _DAY,
        }
        found = [parts[part] for part in self.parts]
        for cycle in self.cycles:
            found += [_each(function, 2 * math.pi * phases[cycle]) for function in (math.sin, math.cos)]
        return np.where(missing[:, None], 0.0, np.column_stack(found))


@dataclass(frozen=True, repr=False)
class Text(Column):
    """Words, hashed to sparse features (scikit-learn's HashingVectorizer).

    Parameters
    ----------
    n_features : int
        How many features words are hashed to.
    """

    type: ClassVar[str] = "text"
    n_features: int = 1024
    _: KW_ONLY
    missing_indicator: bool = False

    def __post_init__(self) -> None:
        check_counts(at_least=2, n_features=self.n_features)

    def read(self, what: str, column: Any) -> Coded:
        return labels(what, column)

    def suffixes(self) -> list[str]:
        return [f"#{number}" for number in range(self.n_features)]

    def features(self, cells: Coded) -> Any:
        from sklearn.feature_extraction.text import HashingVectorizer

        hashed = HashingVectorizer(n_features=self.n_features).transform([text or "" for text in cells.distinct])
        return hashed.tocsr()[cells.codes]


KINDS: dict[str, type[Column]] = {kind.type: kind for kind in (Number, Boolean, Category, Date, Text)}


class Columns(Mapping[str, Column]):
    """A table's columns, described: which there are, and what each means. Columns that are not named are left out.

    A mapping from names to descriptions, which `Columns.read` and `write` keep in TOML files:
    Columns(age=Number(0, 100)), or Columns({"my age": Number(0, 100)}) for names that Python does not allow.

    Parameters
    ----------
    described : mapping, optional
        Descriptions (Number, Boolean, Category, Date or Text) by column name.
    **more
        The same, by keyword.
    """

    def __init__(self, described: Mapping[str, Column] | None = None, /, **more: Column) -> None:
        found = dict(described or {}) | more
        if not found:
            raise ValueError("Columns are missing: describe at least one, Columns(age=userdp.Number(0, 100)).")
        for name, column in found.items():
            if not isinstance(name, str) or not isinstance(column, Column):
                raise TypeError(
                    "Columns must be names and descriptions (Number, Boolean, Category, Date or Text), got "
                    f"{type(column).__name__} for {name!r}."
                )
        self._described = found

    def __getitem__(self, name: str) -> Column:
        return self._described[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._described)

    def __len__(self) -> int:
        return len(self._described)

    def __repr__(self) -> str:
        return f"Columns({self._described!r})"

    @property
    def private(self) -> bool:
        """Whether something is to be learned privately."""
        return any(column.private for column in self.values())

    @property
    def names(self) -> list[str]:
        """Names of the features, in order: one weight each."""
        return [feature for name, column in self.items() for feature in column.names(name)]

    @property
    def summary(self) -> str:
        """Names and types in one line, for ledgers.

        >>> Columns(age=Number(0, 100), city=Category(["Paris", "Lyon"])).summary
        'age (number), city (category)'
        """
        return ", ".join(f"{name} ({column.type})" for name, column in self.items())

    def cells(self, table: Any) -> dict[str, Cells]:
        """The described columns of a table, each by its meaning."""
        table = collected(table)
        names = list(table) if isinstance(table, Mapping) else getattr(table, "column_names", None)
        names = list(getattr(table, "columns", ())) if names is None else names
        if not names or isinstance(table, np.ndarray):
            raise TypeError(
                "Described columns need a table with named columns (pandas, polars, pyarrow, or a dict of arrays), got "
                f"{type(table).__name__}."
            )
        for name in self:
            require_column(names, name)
        found = {name: column.read(f"column {name!r}", table[name]) for name, column in self.items()}
        if len({len(cells) for cells in found.values()}) > 1:
            raise ValueError("Columns differ in length.")
        return found

    def encode(self, table: Any) -> Any:
        """A table's features: a matrix, sparse if there is text. Columns with something private have to be learned."""
        return self.encode_cells(self.cells(table))

    def encode_cells(self, cells: Mapping[str, Cells]) -> Any:
        """The features of cells that were read."""
        if self.private:
            raise ValueError('Columns with "private" cannot be encoded: a fit learns what that stands for.')
        return _side_by_side([column.encode(cells[name]) for name, column in self.items()])

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {name: column.to_dict() for name, column in self.items()}

    @classmethod
    def of(cls, record: Any, where: str = "the description") -> Columns:
        """The columns that `to_dict`, or a TOML file, has."""
        if not isinstance(record, Mapping):
            raise ValueError(f"{where} must be a table of columns.")
        found = {}
        for name, given in record.items():
            kind = KINDS.get(str(given.get("type", ""))) if isinstance(given, Mapping) else None
            if kind is None:
                raise ValueError(f"Column {name!r} of {where} needs a type, one of {', '.join(KINDS)}.")
            known = {field.name for field in fields(kind)}  # type: ignore[arg-type]  # every column is a dataclass
            values = {key: value for key, value in given.items() if key != "type"}
            if unknown := sorted(set(values) - known):
                raise ValueError(
                    f"Column {name!r} of {where}, a {kind.type}, cannot have {', '.join(unknown)}, but some of "
                    f"{', '.join(sorted(known))}."
                )
            try:
                found[name] = kind(**values)
            except (TypeError, ValueError) as error:
                raise ValueError(f"{error} (Column {name!r} of {where}.)") from None
        return cls(found)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Columns:
        """The description in a TOML file."""
        try:
            record = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise FileNotFoundError(f"There is no description of columns at {path}: {error.strerror}.") from None
        except ValueError as error:
            raise ValueError(f"{path} must be TOML, with a table [name] for each column: {error}.") from None
        return cls.of(record, str(path))

    def to_toml(self) -> str:
        """The description as TOML, which `read` takes."""
        lines = []
        for name, record in self.to_dict().items():
            lines += [f"[{_key(name)}]", *(f"{key} = {_toml(value)}" for key, value in record.items()), ""]
        return "\n".join(lines)

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the description to a TOML file."""
        Path(path).write_text(self.to_toml(), encoding="utf-8")
        return Path(path)


def first_description(table: Any, exclude: Sequence[str] = ()) -> str:
    """A description to fill in, in TOML, made of names and types of columns only: no cell is looked at."""
    lines = [
        "# What the columns mean. Fill in what is public, from what columns mean and not from the data;",
        '# "private" has it learned for a part of the budget. Remove columns that are no features.',
        "",
    ]
    for name in table.column_names:
        require_column(table.column_names, name)  # that there is one of this name
        if name in exclude:
            continue
        lines += [f"[{_key(name)}]", *_FIRST[_kind(table.without_cells(name))], ""]
    return "\n".join(lines)


_FIRST = {
    "number": (
        'type = "number"',
        'range = "private"  # better: low = 0 and high = 100, its public range',
        '# fill = 0  # for missing cells: a number, or "private" for a median; else the middle of the range',
        '# transform = "log1p"  # for skewed numbers >= 0; or "sqrt"',
    ),
    "boolean": ('type = "boolean"', "# fill = false  # for missing cells"),
    "category": (
        'type = "category"',
        'levels = "private"  # better: all levels that matter, ["Paris", "Lyon"], say; others count as "other"',
        '# of words: type = "text" and n_features = 1024 instead',
    ),
    "date": (
        'type = "date"',
        'low = "2000-01-01"  # a public range',
        'high = "2040-01-01"',
        'parts = ["time"]  # and year, month, day, weekday, hour',
        'cycles = ["year", "week"]  # and month, day',
    ),
    "untyped": (
        'type = ""  # fill in: number, boolean, category, date or text. This file declares no types',
        '# of a number: low = 0 and high = 100, its public range, or range = "private"',
        '# of a category: levels = ["Paris", "Lyon"], say, or "private"',
    ),
}


def _kind(column: Any) -> str:
    """What a column without cells looks like, by its type."""
    kind = declared(column)
    if kind in (ANY, NUMBER):
        return "untyped" if kind == ANY else "boolean" if is_boolean(column) else "number"
    return "date" if kind.startswith(("date", "timestamp")) else "category"


def cut(text: str) -> str:
    """The part of a level's text that distinguishes it: the first bytes in UTF-8, without NUL."""
    raw = text.replace("\0", " ").encode("utf-8", "replace")[: Category.LONGEST]
    return raw.decode("utf-8", "ignore")


def packed(cells: Coded) -> np.ndarray:
    """Levels as rows of whole numbers, 6 bytes each, in which their text is held; NaN where they are missing."""
    texts = [None if text is None else cut(text).encode() for text in cells.distinct]
    return np.asarray(words_of(texts, Category.LONGEST)[cells.codes])


def _side_by_side(parts: list[Any]) -> Any:
    """Features next to each other, sparse if some are."""
    if not any(hasattr(part, "tocsr") for part in parts):
        return np.hstack(parts)
    from scipy.sparse import csr_array, hstack

    return hstack([csr_array(part) for part in parts], format="csr")


def _each(function: Callable[[float], float], values: np.ndarray) -> np.ndarray:
    """The function of each value by itself: numpy's own may differ in the last bit by where a value stands."""
    distinct, places = np.unique(values + 0.0, return_inverse=True)  # -0 is 0
    found = [function(value) if math.isfinite(value) else math.nan for value in distinct.tolist()]
    return np.asarray(np.array(found, dtype=np.float64)[places])


def _scaled(values: np.ndarray, low: float, high: float) -> np.ndarray:
    return np.asarray(np.clip((values - (low / 2 + high / 2)) / (high / 2 - low / 2), -1, 1), dtype=np.float64)


def _finite(name: str, value: Any) -> float:
    number = math.nan if isinstance(value, bool) else check_number(name, value)
    if not math.isfinite(number):
        raise ValueError(f"{name} of a Number must be a finite number, got {value!r}.")
    return number


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml(name)


def _toml(value: Any) -> str:
    """A value, or a key, of TOML, whose text is that of JSON."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
