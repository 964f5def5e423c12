"""Tables in files, Parquet, CSV or Arrow by the end of the name: only the columns that are asked for are read.

`open_table("visits.csv")` is a table that `UserData.from_table` takes. What pyarrow says of a file that it cannot read
may quote it, so it is never passed on: errors name the file and what was expected.
"""

from __future__ import annotations

import contextlib
import csv
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.dataset
import pyarrow.feather
import pyarrow.parquet

from userdp.whole_files import whole_file

KINDS = {
    ".parquet": "Parquet",
    ".parq": "Parquet",
    ".pq": "Parquet",
    ".csv": "CSV",
    ".tsv": "CSV",
    ".arrow": "Arrow",
    ".feather": "Arrow",
    ".ipc": "Arrow",
}
_SUFFIXES = "Parquet (.parquet), CSV (.csv, .tsv) or Arrow (.arrow, .feather)"
_BLOCK_BYTES = 2**24  # of CSV at a time: no row may be longer
# What pyarrow reads as a float; it reads infinity too, and both ways of reading a cell must agree.
_NUMBER = r"^[+-]?((\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|(?i:inf|infinity))$"
_TRUTH = pa.array(["false", "true"])
_BLANKS = pa.array([None, *pyarrow.csv.ConvertOptions().null_values])  # cells that pyarrow reads as missing numbers


class TableFile:
    """A table in a file, as far as it is needed: its columns' names, and the columns one at a time.

    `guessed` is True for CSV, where a column's type is a guess from its cells. Nothing private may hang on that guess,
    which one person's cell can change: read `ids`, `numbers` and `text`, where each cell counts by itself.
    """

    def __init__(self, path: Path, names: Sequence[str], read: Callable[..., pa.Table], guessed: bool = False) -> None:
        self.path, self.column_names, self.guessed = path, list(names), guessed
        self._read = read
        self._kept: dict[str, pa.ChunkedArray] = {}

    def __getitem__(self, name: str) -> pa.ChunkedArray:
        return self._columns([name])[name]

    def prefetch(self, user: str | None, numbers: Sequence[str]) -> None:
        """Read the ids and these numbers of a CSV file in one go; other formats are quickest by column."""
        if self.guessed:
            ids = {} if user is None else {user: pa.string()}
            self._kept.update(self._columns_of(ids | dict.fromkeys(numbers, pa.float64())))

    def text(self, name: str) -> pa.ChunkedArray:
        """The column; of CSV as the text that its cells are."""
        return self._columns([name], {name: pa.string()})[name] if self.guessed else self[name]

    def ids(self, name: str) -> pa.ChunkedArray:
        """The column of users; of CSV as text, or else one person's id would decide whether 7 and 07 are the same."""
        kept = self._kept.get(name)
        return kept if kept is not None and _is_text(kept.type) else self.text(name)

    def numbers(self, name: str) -> pa.ChunkedArray:
        """The column, with the few cells of a CSV column of numbers that are none as missing.

        A type that is guessed must not hang on one person's slip: a column is text if most of its cells are.
        """
        if not self.guessed:
            return self[name]
        column = self._kept[name] if name in self._kept else self._columns_of({name: pa.float64()})[name]
        return as_numbers(column) if _is_text(column.type) else column

    def _columns_of(self, types: dict[str, Any]) -> dict[str, pa.ChunkedArray]:
        """Columns of a CSV file in these types, or all of them as text if some cell is no number."""
        try:
            table = self._read(list(types), types)
            return {name: table[name] for name in types}
        except (pa.ArrowException, OSError):
            return self._columns(list(types), dict.fromkeys(types, pa.string()))

    def _columns(self, names: list[str], types: dict[str, Any] | None = None) -> dict[str, pa.ChunkedArray]:
        try:
            table = self._read(names) if types is None else self._read(names, types)
            return {name: table[name] for name in names}
        except (pa.ArrowException, OSError):
            raise ValueError(broken(self.path)) from None


def as_numbers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Text as numbers, true and false as 1 and 0, what is neither as missing; as it is if most of it is neither."""
    cells = pc.utf8_trim_whitespace(column)
    truths = as_truths(cells)
    digits = pc.if_else(pc.match_substring_regex(cells, _NUMBER), cells, pa.scalar(None, cells.type))
    found = pc.coalesce(digits.cast(pa.float64()), truths.cast(pa.float64()))
    present = pc.sum(pc.invert(pc.is_in(cells, value_set=_BLANKS.cast(cells.type)))).as_py() or 0
    return found if 2 * (len(found) - found.null_count) > present or not present else column


def as_truths(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Text as true and false, what is neither as missing."""
    found = pc.index_in(pc.utf8_lower(pc.utf8_trim_whitespace(column)), value_set=_TRUTH.cast(column.type))
    return pc.equal(found, 1)


def open_table(path: str | os.PathLike[str]) -> TableFile:
    """The table in a Parquet, CSV or Arrow file, by its suffix, or in a folder of Parquet files."""
    kind = kind_of(path)
    if kind == "Parquet":
        return open_parquet(path)
    return _opened(Path(path), kind, _open_csv if kind == "CSV" else _open_arrow)


def open_parquet(path: str | os.PathLike[str]) -> TableFile:
    """The table in a Parquet file, whatever its suffix, or in a folder of them."""
    return _opened(Path(path), "Parquet", _open_parquet)


def _opened(path: Path, kind: str, opener: Callable[[Path], TableFile]) -> TableFile:
    if not path.exists():
        if re.match(r"\w[\w+.-]+:/", str(path)):  # pathlib shortens s3://x to s3:/x; one letter may be a drive
            raise ValueError("Expected a local path, got a URL: only local paths are read; download it first.")
        raise FileNotFoundError(f"Expected a {kind} file at {path}, found nothing there: check the path.")
    if path.is_dir():
        if kind != "Parquet":
            raise ValueError(f"Expected a {kind} file at {path}, found a folder: check the path.")
        if not _holds_parquet(path):
            raise ValueError(f"Expected Parquet files in the folder {path}, found none: check the path.")
    elif os.path.getsize(path) == 0:
        raise ValueError(f"Expected a {kind} file at {path}, it is empty: write it again.")
    try:
        return opener(path)
    except (pa.ArrowException, OSError, UnicodeDecodeError, csv.Error):
        raise ValueError(broken(path)) from None


def kind_of(path: str | os.PathLike[str]) -> str:
    """Parquet, CSV or Arrow, by the suffix; a folder is Parquet."""
    kind = KINDS.get(Path(path).suffix.lower(), "Parquet" if os.path.isdir(path) else None)
    if kind is None:
        raise ValueError(f"Expected a file name that says its format, {_SUFFIXES}; got {path}: rename it.")
    return kind


def broken(path: Path) -> str:
    """What is said of a file that cannot be read, which must not quote it."""
    if KINDS.get(path.suffix.lower()) != "CSV":
        kind = KINDS.get(path.suffix.lower(), "Parquet")
        return f"Expected a readable {kind} file at {path}: it is not {kind} or is damaged; write it again."
    separator = "tabs" if path.suffix.lower() == ".tsv" else "commas"
    return (
        f"Expected a readable CSV file at {path}: one line of column names, then rows with as many cells, separated "
        f"by {separator}, in UTF-8; write it again."
    )


def write_table(table: pa.Table, path: str | os.PathLike[str]) -> None:
    """Write a table, whole or not at all, in the format that the suffix says."""
    path, kind = Path(path), kind_of(path)
    try:
        with whole_file(path) as new:
            if kind == "Parquet":
                pyarrow.parquet.write_table(table, new, compression="zstd")
            elif kind == "Arrow":
                pyarrow.feather.write_feather(table, os.fspath(new), compression="uncompressed")
            else:
                options = pyarrow.csv.WriteOptions(delimiter=_delimiter(path))
                pyarrow.csv.write_csv(table, new, write_options=options)
    except pa.ArrowException:
        raise ValueError(f"Expected columns that {kind} can hold to write {path}: use Parquet.") from None


def _open_parquet(path: Path) -> TableFile:
    if path.is_dir():
        source = pyarrow.dataset.dataset(path, format="parquet")
        return TableFile(path, source.schema.names, lambda names: source.to_table(columns=names))

    def read(columns: list[str]) -> pa.Table:
        with pyarrow.parquet.ParquetFile(path) as file:
            return file.read(columns=columns)

    return TableFile(path, pyarrow.parquet.read_schema(path).names, read)


def _open_csv(path: Path) -> TableFile:
    with open(path, newline="", encoding="utf-8-sig") as file:
        names = next(csv.reader(file, delimiter=_delimiter(path)), [])

    def read(columns: list[str], types: dict[str, Any] | None = None) -> pa.Table:
        table = pyarrow.csv.read_csv(
            path,
            read_options=pyarrow.csv.ReadOptions(block_size=_BLOCK_BYTES),
            parse_options=pyarrow.csv.ParseOptions(delimiter=_delimiter(path), newlines_in_values=True),
            convert_options=pyarrow.csv.ConvertOptions(include_columns=columns, column_types=types),
        )
        return pa.table({name: _without_blanks(table[name]) for name in columns})

    return TableFile(path, names, read, guessed=True)


def _open_arrow(path: Path) -> TableFile:
    try:
        opener, names = pa.ipc.open_file, _arrow_names(path, pa.ipc.open_file)
    except pa.ArrowException:  # perhaps a stream, which has no table of contents
        opener, names = pa.ipc.open_stream, _arrow_names(path, pa.ipc.open_stream)

    def read(columns: list[str]) -> pa.Table:
        options = pa.ipc.IpcReadOptions(included_fields=[names.index(name) for name in columns])
        with pa.memory_map(os.fspath(path)) as file, opener(file, options=options) as reader:
            table = reader.read_all()
        _check_buffers(table)
        return table

    return TableFile(path, names, read)


def _arrow_names(path: Path, opener: Any) -> list[str]:
    with pa.memory_map(os.fspath(path)) as file, opener(file) as reader:
        return list(reader.schema.names)


def _check_buffers(table: pa.Table) -> None:
    """Refuse arrays that point outside of the file, which Arrow does not look for: reading them would read anything.

    Text is looked at as bytes: whether it is UTF-8 is one person's matter.
    """
    plain = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}
    for column in table.columns:
        for chunk in column.chunks:
            chunk.validate()
            (chunk.view(plain[chunk.type]) if chunk.type in plain else chunk).validate(full=True)


def _without_blanks(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """An empty cell is missing, in text too."""
    if not _is_text(column.type):
        return column
    return pc.if_else(pc.equal(column, ""), pa.scalar(None, column.type), column)


def _delimiter(path: Path) -> str:
    return "\t" if path.suffix.lower() == ".tsv" else ","


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _holds_parquet(folder: Path) -> bool:
    """Whether a file in the folder or below is named like Parquet, or begins like it. Hidden ones do not count."""
    for where, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith((".", "_"))]
        for name in names:
            path = os.path.join(where, name)
            if not name.startswith((".", "_")) and os.path.isfile(path):
                if name.endswith((".parquet", ".parq", ".pq")):
                    return True
                with contextlib.suppress(OSError), open(path, "rb") as file:
                    if file.read(4) == b"PAR1":
                        return True
    return False
