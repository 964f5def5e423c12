"""The one boundary of data: what columns are is declared, and each cell is read by itself.

Public is what was declared: which columns are features, which labels there can be, who owns a row; and the types
and widths that a container declares (a dtype, an Arrow or Parquet schema, the header of a CSV file). No cell decides
about its column: it becomes a number or NaN, a label's position or NaN. So one user, who may own most rows, decides
neither between success and an error, nor about shapes.

Guarantee: whether something is raised here, and its words, depend on types, names, dimensions and lengths only; the
number that a cell becomes depends on this cell and its column's declared type only.
"""

from __future__ import annotations

import fnmatch
import numbers as number_kinds
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

NUMBER, TEXT, ANY = "number", "text", "any"  # what a column's type may declare its cells to be

_ARROW = (pa.Array, pa.ChunkedArray)
_SHOWN_NAMES = 40  # column names that an error lists at most
# Names of types, in lower case, of pandas' own columns, polars and Arrow.
_NUMBERS = re.compile(r"(u?int\d+|(half)?float\d*|double|bool(ean)?|decimal\d*(\(.*\))?|null)(\[pyarrow\])?")
_TEXTS = re.compile(r"(large_)?(string|utf8)(_view)?(\[pyarrow\])?|str")
_WHOLE = re.compile(r"((?P<int>u?int(8|16|32|64))|(?P<bool>bool(ean)?))(\[pyarrow\])?")
_CATEGORIES = {"category": ANY, "categorical": TEXT, "enum": TEXT}  # of pandas, and of polars
# Numbers in text, as pyarrow reads those of a CSV column: either way of reading a cell must give the same.
_BLANKS = r"[ \t\r\n\f\v]*"
_DIGITS = _BLANKS + r"[+-]?((\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|(?i:inf|infinity))" + _BLANKS
_TRUE, _FALSE = (f"{_BLANKS}(?i:{word}){_BLANKS}" for word in ("true", "false"))
_PYTHON = [re.compile(pattern, re.ASCII) for pattern in (_DIGITS, _TRUE, _FALSE)]


@dataclass(frozen=True)
class Untyped:
    """A column of text whose cells have no declared type, as in CSV. Its bytes need not be UTF-8."""

    cells: pa.ChunkedArray

    def __len__(self) -> int:
        return len(self.cells)


@dataclass(frozen=True)
class Schema:
    """What is declared about a table: who owns a row, features (numbers), the target (a number, or one of `classes`).

    `features` is a list of column names, or comma-separated patterns such as "x_*,age".
    """

    user: Any
    features: tuple[Any, ...]
    target: Any = None
    classes: tuple[Any, ...] | None = None

    @classmethod
    def declare(
        cls,
        names: Sequence[Any],
        user: Any,
        features: str | Sequence[Any],
        target: Any = None,
        classes: Sequence[Any] | None = None,
    ) -> Schema:
        """The schema of a table with these columns; refuses columns that it has not, or twice."""
        chosen = choose_features(names, features, exclude=(user, target))
        for needed in [user, *([] if target is None else [target]), *chosen]:
            require_column(names, needed)
        return cls(user, tuple(chosen), target, None if classes is None else tuple(label_set(classes).tolist()))

    @property
    def columns(self) -> list[Any]:
        """All columns that are needed."""
        return [name for name in (self.user, self.target, *self.features) if name is not None]

    def targets(self, column: Any) -> np.ndarray:
        """The target's numbers, or its labels' positions in the classes."""
        what = f"column {self.target!r}"
        return numbers(what, column) if self.classes is None else positions(what, column, self.classes)


def choose_features(names: Sequence[Any], features: str | Sequence[Any], exclude: tuple[Any, ...]) -> list[Any]:
    """Columns named by a list, or by comma-separated patterns (in the table's order, without user and target)."""
    if not isinstance(features, str):
        asked = chosen = list(features)
    else:
        asked = [pattern.strip() for pattern in features.split(",") if pattern.strip()]
        candidates = [name for name in names if name not in exclude]
        matches = {p: [n for n in candidates if n == p or fnmatch.fnmatchcase(str(n), p)] for p in asked}
        for pattern, found in matches.items():
            if not found:
                require_column(names, pattern, what="matches")
        chosen = [name for name in candidates if any(name in found for found in matches.values())]
    for name in exclude:
        if name is not None and name in asked:
            raise ValueError(f"{name!r}, the column of users or targets, is among the features: leave it out.")
    if not chosen:
        raise ValueError("There is no feature: pass column names or patterns such as 'x_*'.")
    if len(set(chosen)) < len(chosen):
        raise ValueError("A feature is named twice: remove the repeated column names.")
    return chosen


def require_column(names: Sequence[Any], name: Any, what: str = "is named") -> None:
    """Refuse a name that no column has, or several have."""
    if list(names).count(name) != 1:
        problem = "More than one" if name in names else "No"
        more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
        shown = ", ".join(map(str, names[:_SHOWN_NAMES])) + more
        raise ValueError(f"{problem} column {what} {name!r}: available are {shown}.")


def label_set(classes: Sequence[Any]) -> np.ndarray:
    """The declared classes, sorted."""
    found = np.unique(np.asarray(classes))
    if found.ndim != 1 or not 2 <= len(found) == len(classes):
        raise ValueError(f"classes must be at least 2 different labels, got {classes}.")
    return found


# --- what columns declare ---------------------------------------------------------------------------------------------


def declared(column: Any) -> str:
    """NUMBER, TEXT or ANY if a column's type declares its cells to be so, else the type's name; no cell is looked at.

    ANY is for cells that have no common type: of lists, arrays of objects and CSV.
    """
    if isinstance(column, (list, tuple, range, Untyped)):
        return ANY
    kind = _type_of(column)
    if isinstance(kind, np.dtype):
        return {"O": ANY, "U": TEXT, "T": TEXT, **dict.fromkeys("biuf", NUMBER)}.get(kind.kind, str(kind))
    name = type(column).__name__ if kind is None else str(kind).lower()
    if name == "object":  # of polars
        return ANY
    # Without parameters, which may list categories.
    return NUMBER if _NUMBERS.fullmatch(name) else TEXT if _TEXTS.fullmatch(name) else name.partition("(")[0]


def is_boolean(column: Any) -> bool:
    """Whether a column's type has two values, not whether its cells happen to have two."""
    return str(_type_of(column)).lower() in ("bool", "boolean", "bool[pyarrow]")


def _type_of(column: Any) -> Any:
    if isinstance(column, _ARROW):
        return column.type
    return None if hasattr(column, "columns") else getattr(column, "dtype", None)  # tables have cells in attributes


def collected(table: Any) -> Any:
    """A lazy polars frame as a frame; anything else as it is."""
    return table.collect() if hasattr(table, "collect_schema") and hasattr(table, "collect") else table


def decoded(column: Any) -> Any:
    """An Arrow column of dictionary type as a column of its values."""
    encoded = isinstance(column, _ARROW) and pa.types.is_dictionary(column.type)
    return column.cast(column.type.value_type) if encoded else column


def as_arrow(column: Any) -> pa.Array | None:
    """A column of pandas, polars or Arrow, that numpy has no type for, as one Arrow array of its values, or None."""
    if isinstance(getattr(column, "dtype", None), np.dtype) or hasattr(column, "columns"):
        return None
    for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
        if isinstance(chunk, pa.DictionaryArray) and len(chunk):  # Arrow itself does not look
            ends = pc.min_max(chunk.indices)
            if ends["min"].is_valid and not 0 <= ends["min"].as_py() <= ends["max"].as_py() < len(chunk.dictionary):
                raise ValueError("The table is damaged: cells are outside of their column's dictionary.")
    try:
        if hasattr(column, "to_arrow"):  # polars
            column = column.to_arrow()
        elif hasattr(column, "iloc") and not hasattr(column, "cat"):  # pandas, whose categories may be anything
            column = pa.array(column, from_pandas=True)
        if isinstance(column, pa.ChunkedArray):
            long = declared(column) == TEXT  # perhaps too long for one array
            column = (column.cast(pa.large_string()) if long else column).combine_chunks()
        if isinstance(column, pa.Array) and pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()  # a null may be in the dictionary
    except Exception:  # a type that Arrow does not know, or cells that are no UTF-8
        return None
    return column if isinstance(column, pa.Array) else None


def ids(column: Any) -> Any:
    """A column of user ids; of CSV as text, or else one user's id would decide whether 7 and 07 are the same."""
    if not isinstance(column, Untyped):
        return column
    return pc.if_else(pc.equal(column.cells, ""), pa.scalar(None, column.cells.type), column.cells)


def texts(column: pa.Array) -> list[Any]:
    """An Arrow column as Python values; text that is no UTF-8 raises nothing."""
    if declared(column) != TEXT:
        return list(column.to_pylist())
    return [None if cell is None else cell.decode(errors="surrogateescape") for cell in as_bytes(column).to_pylist()]


def as_bytes(column: Any) -> Any:
    """Text as the bytes that it is."""
    plain = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary(), pa.string_view(): pa.binary_view()}
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([chunk.view(plain[column.type]) for chunk in column.chunks], plain[column.type])
    return column.view(plain[column.type])


# --- numbers ----------------------------------------------------------------------------------------------------------


def numbers(what: str, column: Any) -> np.ndarray:
    """A column of numbers by declaration: one float a cell, NaN for what is none.

    Types of numbers are converted as a whole. Of cells without a common type, numbers and text that reads as one (or
    as true, 1, or false, 0) count, and all others are NaN. Other types are refused.
    """
    kind = declared(column)
    if kind not in (NUMBER, ANY):
        raise TypeError(
            f"{what} must be numeric (float, integer, boolean or decimal), got {'text' if kind == TEXT else kind}: "
            "convert or drop it, or describe columns (columns=Columns(...))."
        )
    if getattr(column, "ndim", 1) != 1:
        raise ValueError(f"{what} must have shape (n_rows,), got {column.ndim} dimensions: reshape it.")
    with np.errstate(all="ignore"):
        if isinstance(column, Untyped):
            return _numbers_in_text(column.cells)
        if kind == ANY:
            return np.fromiter(map(_number, column), dtype=np.float64, count=len(column))
        return _floats(column)


def _floats(column: Any) -> np.ndarray:
    """A column of a type of numbers as native float32 if it is that, else as float64."""
    if isinstance(_type_of(column), np.dtype):
        array = np.asarray(column)
        single = array.dtype.newbyteorder("=") == np.float32
        return array.astype(np.float32 if single else np.float64, copy=False)
    if hasattr(column, "to_arrow"):  # polars, some of whose integers Arrow does not know
        return np.asarray(column.cast(float).to_arrow())
    if not isinstance(column, _ARROW):  # pandas' own types
        column = pa.array(column, from_pandas=True)
    # Unchecked, because a checked cast refuses large integers, and so reveals that there is one.
    return np.asarray(column if column.type == pa.float32() else column.cast(pa.float64(), safe=False))


def _numbers_in_text(cells: pa.ChunkedArray) -> np.ndarray:
    """The same as `_number` of each cell, for all cells at once."""
    raw = as_bytes(cells)
    digits, true, false = (pc.match_substring_regex(raw, f"^(?:{p})$") for p in (_DIGITS, _TRUE, _FALSE))
    found = pc.ascii_trim_whitespace(pc.if_else(digits, raw, None).cast(pa.large_string())).cast(pa.float64())
    return np.asarray(pc.coalesce(found, pc.if_else(true, 1.0, pc.if_else(false, 0.0, None))))


def _number(cell: Any) -> float:
    try:
        if isinstance(cell, str):
            digits, true, false = (pattern.fullmatch(cell) for pattern in _PYTHON)
            return float(cell) if digits else 1.0 if true else 0.0 if false else np.nan
        # float and int are quickest to find: most cells are of these.
        return float(cell) if isinstance(cell, (float, int, number_kinds.Real, Decimal, np.bool_)) else np.nan
    except Exception:  # beyond all floats, say
        return np.nan


def matrix(what: str, X: Any, width: int | None = None) -> np.ndarray:
    """Rows of numbers: of an array with two dimensions, or of a table's columns; each as `numbers` reads it.

    Lists of rows declare no width, and so are refused unless `width` does: a row of another length is then NaN.
    """
    X = collected(X)
    if hasattr(X, "columns") and hasattr(X, "shape"):
        return _matrix_of_table(what, X)
    if hasattr(X, "toarray"):
        raise TypeError(f"{what} must be dense here, got a sparse matrix: make it dense with toarray().")
    if isinstance(X, (list, tuple)) and width is not None:
        blank = [np.nan] * width
        rows = [row if _is_row(row) and len(row) == width else blank for row in X]
        return numbers(what, [cell for row in rows for cell in row]).reshape(len(rows), width)
    if isinstance(X, (list, tuple)) or not (hasattr(X, "__array__") and hasattr(X, "dtype")):
        raise TypeError(
            f"{what} must be a 2-dimensional array or a table, whose types and width are declared, got "
            f"{type(X).__name__}: pass a numpy array, np.array(rows, dtype=float) for example."
        )
    array = np.asarray(X)
    if array.ndim != 2 or array.shape[1] == 0:  # not the shape: it holds the number of rows
        problem = f"{array.ndim} dimensions" if array.ndim != 2 else "no feature"
        raise ValueError(f"{what} must have shape (n_rows, n_features), got {problem}: reshape it.")
    return array if declared(array) == NUMBER else numbers(what, array.reshape(-1)).reshape(array.shape)


def _is_row(entry: Any) -> bool:
    return isinstance(entry, (list, tuple)) or (isinstance(entry, np.ndarray) and entry.ndim == 1)


def _matrix_of_table(what: str, X: Any) -> np.ndarray:
    if hasattr(X, "iloc") and any("sparse" in str(kind).lower() for kind in X.dtypes):
        raise TypeError(f"{what} has sparse columns: pass {what}.sparse.to_coo(), which stays sparse.")
    names = list(X.column_names if hasattr(X, "column_names") else X.columns)
    if not names:
        raise ValueError(f"{what} has no columns: pass a table with features.")
    if hasattr(X, "iloc"):
        columns = [X.iloc[:, place] for place in range(len(names))]
    else:
        columns = X.get_columns() if hasattr(X, "get_columns") else list(X.columns)
    found = [numbers(f"column {name!r} of {what}", column) for name, column in zip(names, columns, strict=True)]
    narrow = all(column.dtype == np.float32 for column in found)
    return np.column_stack(found).astype(np.float32 if narrow else np.float64, order="C", copy=False)


# --- labels -----------------------------------------------------------------------------------------------------------


def positions(what: str, column: Any, classes: Sequence[Any]) -> np.ndarray:
    """A column of labels by declaration: each cell's position in the classes, NaN for what is none of them.

    A column whose type cannot hold the classes is refused. Text without a type, of CSV, is read as the classes are.
    """
    column = decoded(column)
    kind = declared(column)
    kind = _CATEGORIES.get(kind, kind)  # those of pandas may have any type, by their cells
    real = [label for label in classes if isinstance(label, number_kinds.Real)]
    of_text = all(isinstance(label, str) for label in classes)
    wanted = TEXT if of_text else NUMBER if len(real) == len(classes) else ANY
    fits, n_possible = kind in (wanted, ANY) or wanted == ANY, len(classes)
    if whole := _WHOLE.fullmatch(str(_type_of(column)).lower()):
        # How many a cell of this type can be: true and false are not 2, uint8 is not -1, int64 not 0.5.
        low, high = (0, 1) if whole["bool"] else (np.iinfo(whole["int"]).min, np.iinfo(whole["int"]).max)
        n_possible = sum(label == label // 1 and low <= label <= high for label in real)  # type: ignore[operator]
    if not fits or n_possible < min(2, len(classes)):
        shown = ", ".join(map(str, classes[:5])) + ", ..." * (len(classes) > 5)
        kind = str(_type_of(column)) if fits else {NUMBER: "numbers"}.get(kind, kind)
        raise TypeError(f"{what} must hold labels such as {shown}, got {kind}: convert it.")
    if isinstance(column, Untyped) and wanted == NUMBER:
        column = numbers(what, column)
    elif isinstance(column, _ARROW) and pa.types.is_decimal(column.type):
        column = column.cast(pa.float64(), safe=False)
    codes, distinct = coded(column)
    known = {label: float(position) for position, label in enumerate(classes)}
    return np.asarray(np.array([*(_position(cell, known) for cell in distinct[:-1]), np.nan])[codes])


def _position(cell: Any, known: dict[Any, float]) -> float:
    try:
        return known.get(cell, np.nan)
    except Exception:  # of a type that refuses to be compared
        return np.nan


def coded(column: Any) -> tuple[np.ndarray, list[Any]]:
    """Each cell's code, and the distinct cells, the last of which is None for missing ones."""
    if isinstance(column, Untyped):
        column = column.cells
    kind = getattr(column, "dtype", None)
    if isinstance(kind, np.dtype) and encodable(kind):
        codes, distinct = encode(np.asarray(column))
        return codes, [*distinct.tolist(), None]
    if hasattr(column, "iloc") and hasattr(column, "cat"):  # of pandas: a missing cell's code is -1, the last
        return np.asarray(column.cat.codes), [*column.cat.categories, None]
    cells = None if declared(column) == ANY else as_arrow(column)
    if isinstance(cells, pa.Array):
        codes, distinct = encode(cells)
        return codes, [*texts(distinct), None]
    known: dict[Any, int] = {}
    listed = column.tolist() if isinstance(column, np.ndarray) else list(column)
    codes = np.fromiter((_code(cell, known) for cell in listed), dtype=np.int64, count=len(listed))
    return codes, [*(cell for _, cell in known), None]


def _code(cell: Any, known: dict[Any, int]) -> int:
    try:
        return known.setdefault((type(cell), cell), len(known))
    except Exception:  # not hashable, or of a type that refuses to be compared
        return -1


def encodable(kind: np.dtype) -> bool:
    """Whether cells of this type are equal exactly if their bytes are, but for NaN and the sign of 0."""
    return kind.kind in "biumMUS" or (kind.kind == "f" and kind.itemsize <= 8)


def encode(cells: np.ndarray | pa.Array) -> tuple[np.ndarray, Any]:
    """Each cell's code, by first appearance, and the distinct cells in the order of codes; the code of null is last."""
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
