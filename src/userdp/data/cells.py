"""Cells by their meaning: numbers, truth, moments and texts, whatever the column's type; each cell by itself.

Guarantee: errors depend on a column's declared type only; what a cell becomes depends on this cell and that type.
"""

from __future__ import annotations

import datetime
import math
import numbers as number_kinds
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from userdp.data.schema import ANY, NUMBER, TEXT, Untyped, as_arrow, coded, declared, decoded, numbers

_CATEGORIES = ("category", "categorical", "enum")
_TRUE, _FALSE = {"true", "t", "yes", "y", "on", "1", "1.0"}, {"false", "f", "no", "n", "off", "0", "0.0"}
_TICKS = {"D": (86400.0, 1.0), "s": (1.0, 1.0), "ms": (1.0, 1e3), "us": (1.0, 1e6)}  # how many seconds, and parts
_WORD = 6  # bytes that a float64 holds as a whole number


@dataclass(frozen=True)
class Coded:
    """A column of texts: those that there are, None for a missing one, and which of them each cell is."""

    codes: np.ndarray
    distinct: tuple[str | None, ...]

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: Any) -> Coded:
        return Coded(self.codes[rows], self.distinct)

    @property
    def missing(self) -> np.ndarray:
        """Which cells are."""
        return np.asarray(np.array([text is None for text in self.distinct])[self.codes])


def numbers_or_text(what: str, column: Any) -> np.ndarray:
    """A column of numbers; of text those cells that read as one, where the type may come from the cells themselves.

    That is pandas': one cell of text makes a column of numbers text. Arrow (so Parquet) and polars declare types, or
    the reader of a text file let one cell decide (docs/guarantee.md).
    """
    column = decoded(column)
    if declared(column) == TEXT and (isinstance(column, pa.Array | pa.ChunkedArray) or hasattr(column, "to_arrow")):
        raise TypeError(
            f"{what} must hold numbers, got text: convert it, or describe it as a Category, a Date or Text. "
            "Nothing was spent."
        )
    if declared(column) != TEXT:
        return numbers(what, column).astype(np.float64, copy=False)
    cells = as_arrow(column)
    if cells is None:
        return numbers(what, np.asarray(column, dtype=object))
    return numbers(what, Untyped(pa.chunked_array([cells])))


def booleans(what: str, column: Any) -> np.ndarray:
    """A column of truth: 1 and 0 (numbers, true and false, or text that says so), NaN for anything else."""
    column = decoded(column)
    if declared(column) in (TEXT, ANY, *_CATEGORIES):
        codes, distinct = coded(column)
        return np.asarray(np.array([_truth(value) for value in distinct], dtype=np.float64)[codes])
    found = numbers_or_text(what, column)
    return np.where((found == 0) | (found == 1), found, np.nan)


def labels(what: str, column: Any, levels: Sequence[str | None] | None = None) -> Coded:
    """A column of labels as texts. With `levels`, a type of numbers is refused if no level is one."""
    column = decoded(column)
    kind = declared(column)
    if kind not in (NUMBER, TEXT, ANY, *_CATEGORIES):
        raise TypeError(f"{what} must hold text, numbers or true and false, got {kind}: convert it.")
    if kind == NUMBER and levels is not None and not any(map(_is_number, levels)):
        raise TypeError(f"{what} must hold text, as its levels are, got numbers: convert it.")
    codes, distinct = coded(column)
    return Coded(codes, tuple(map(text_of, distinct)))


def seconds(what: str, column: Any) -> np.ndarray:
    """A column of dates or moments, in seconds since 1970 (UTC); NaN where there is none."""
    column = decoded(column)
    kind = getattr(column, "dtype", None)
    if isinstance(kind, np.dtype) and kind.kind == "M":
        return _of_ticks(np.asarray(column))
    arrow = None if declared(column) in (ANY, NUMBER) else as_arrow(column)
    if arrow is not None and (pa.types.is_timestamp(arrow.type) or pa.types.is_date(arrow.type)):
        return _of_ticks(arrow.to_numpy(zero_copy_only=False))
    if declared(column) not in (TEXT, ANY):
        raise TypeError(f"{what} must hold dates, or text such as 2024-05-17, got {declared(column)}: convert it.")
    codes, distinct = coded(column)
    return np.asarray(np.array([moment_of(value) for value in distinct], dtype=np.float64)[codes])


def words_of(raw: Sequence[bytes | None], longest: int) -> np.ndarray:
    """Each string of bytes as a row of whole numbers, 6 bytes each, filled up with 0; NaN for None."""
    width = -(-longest // _WORD)
    padded = [(text or b"").ljust(width * _WORD, b"\0") for text in raw]
    held = np.frombuffer(b"".join(padded), dtype=np.uint8).reshape(len(raw), width, _WORD)
    found = held.astype(np.int64) @ (256 ** np.arange(_WORD - 1, -1, -1, dtype=np.int64))
    return np.where([[text is None] for text in raw], np.nan, found.astype(np.float64))


def texts_of_words(words: np.ndarray) -> list[str]:
    """The texts that rows of such numbers hold."""
    shifts = 8 * np.arange(_WORD - 1, -1, -1)
    raw = (words.astype(np.int64)[:, :, None] >> shifts & 255).astype(np.uint8)
    return [row.tobytes().rstrip(b"\0").decode("utf-8", "replace") for row in raw]


def _of_ticks(moments: np.ndarray) -> np.ndarray:
    """Seconds of numpy's moments: without a cast, which would change some that are far off, in units of Arrow."""
    unit, count = np.datetime_data(moments.dtype)
    if unit not in _TICKS or count != 1:
        moments, unit = moments.astype("M8[us]"), "us"
    many, parts = _TICKS[unit]
    return np.where(np.isnat(moments), np.nan, moments.astype(np.int64) * many / parts)


def moment_of(value: Any) -> float:
    """Seconds since 1970 of a date, a moment or ISO text; NaN for anything else."""
    try:
        if isinstance(value, str):
            value = datetime.datetime.fromisoformat(value.strip())
        if isinstance(value, datetime.datetime):
            aware = value if value.tzinfo else value.replace(tzinfo=datetime.UTC)
            return float(aware.timestamp())
        if isinstance(value, datetime.date):
            return float((value - datetime.date(1970, 1, 1)).days * 86400)
        if isinstance(value, np.datetime64):
            return float(_of_ticks(np.array([value]))[0])
    except Exception:  # no date, or beyond all dates
        return math.nan
    return math.nan


def text_of(value: Any) -> str | None:
    """The text of a label, None for a missing one; equal numbers have equal texts, whatever their type."""
    try:
        if isinstance(value, str):
            return value or None
        if isinstance(value, bool | np.bool_):
            return "true" if value else "false"
        if isinstance(value, number_kinds.Real):
            number = float(value)
            if not math.isfinite(number):
                return None
            whole = int(value)  # type: ignore[call-overload]  # all real numbers can be cut off
            return str(whole) if whole == value else repr(number)
    except Exception:  # a number beyond all floats, say
        return None
    return None


def _truth(value: Any) -> float:
    text = (text_of(value) or "").strip().lower()
    return 1.0 if text in _TRUE else 0.0 if text in _FALSE else math.nan


def _is_number(text: str | None) -> bool:
    try:
        return text in ("true", "false") or math.isfinite(float(text or ""))
    except ValueError:
        return False
