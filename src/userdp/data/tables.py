"""Tables in files, Parquet, CSV or Arrow by the end of the name; and files that are written whole or not at all.

`open_table("visits.csv")` is a table that `UserData.from_table` takes: only the columns that are asked for are read.
What pyarrow says of a file that it cannot read may quote it, so it is never passed on: errors name the file and what
was expected.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import itertools
import os
import re
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet

from userdp.data.schema import TEXT, Untyped, as_bytes, declared, ids

KINDS = (
    dict.fromkeys((".parquet", ".parq", ".pq"), "Parquet")
    | dict.fromkeys((".csv", ".tsv"), "CSV")
    | dict.fromkeys((".arrow", ".feather", ".ipc"), "Arrow")
)
_BATCH_ROWS = 32768  # of CSV that are read at a time


class TableFile:
    """A table in a file, as far as it is needed: its columns' names, and some columns at a time.

    Columns are of the types that the file declares. CSV declares none: its columns are `Untyped` text.
    read, scan, count and files: how the columns with these names are read as a whole, or so many rows at a time, how
    many rows there are, and which files, of formats that say so.
    """

    def __init__(
        self,
        path: Path,
        schema: pa.Schema,
        read: Callable[[list[str]], pa.Table],
        typed: bool = True,
        scan: Callable[[list[str], int], Iterable[pa.RecordBatch]] | None = None,
        count: Callable[[], int] | None = None,
        files: Sequence[Path] = (),
    ) -> None:
        self.path, self.column_names, self.typed = path, list(schema.names), typed
        self.files = list(files) or [path]
        self._schema, self._read, self._scan, self._count = schema, read, scan, count

    def __getitem__(self, name: str) -> pa.ChunkedArray | Untyped:
        return self.columns([name])[name]

    def columns(self, names: list[str]) -> dict[str, pa.ChunkedArray | Untyped]:
        """These columns, read in one go."""
        try:
            table = self._read(names)
        except pa.ArrowMemoryError:
            raise MemoryError("The table is larger than memory: set memory_limit. Nothing was spent.") from None
        except (pa.ArrowException, OSError, csv.Error):
            raise ValueError(broken(self.path)) from None
        return {name: table[name] if self.typed else Untyped(table[name]) for name in names}

    def type_of(self, name: str) -> pa.DataType:
        """The type that the file declares for a column."""
        return self._schema.field(name).type

    def without_cells(self, name: str) -> pa.ChunkedArray | Untyped:
        """The column as far as it is declared: its type."""
        cells = pa.chunked_array([], self.type_of(name))
        return cells if self.typed else Untyped(cells)

    def count(self) -> int:
        """How many rows there are, as far as the format says so. Private: do not publish it."""
        try:
            return 0 if self._count is None else self._count()
        except (pa.ArrowException, OSError):
            raise ValueError(broken(self.path)) from None

    def batches(self, names: list[str], at_most: int) -> Iterator[list[pa.Array]]:
        """These columns, so many rows at a time, in the rows' order and in little memory; of formats with types."""
        assert self._scan is not None
        try:
            for batch in self._scan(names, at_most):
                yield batch.columns
        except (pa.ArrowException, OSError, KeyError):
            raise ValueError(broken(self.path)) from None

    def guess(self, name: str) -> pa.ChunkedArray:
        """The column as whole numbers, or numbers, if its cells suggest it: only for callers who may see them."""
        column = self[name]
        for kind in (pa.int64(), pa.float64()) if isinstance(column, Untyped) else ():
            with contextlib.suppress(pa.ArrowInvalid):
                return ids(column).cast(kind)
        return column.cells if isinstance(column, Untyped) else column


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
        if re.match(r"\w[\w+.-]+:/", str(path)):  # pathlib clips s3://x to s3:/x; one letter may be a drive
            raise ValueError("The path is a URL, but only local files are read: download it first.")
        raise FileNotFoundError(f"There is no {kind} file at {path}: check the path.")
    if path.is_dir():
        if kind != "Parquet":
            raise ValueError(f"{path} is a folder, not a {kind} file: check the path.")
    elif os.path.getsize(path) == 0:
        raise ValueError(f"The {kind} file at {path} is empty: write it again.")
    try:
        return opener(path)
    except (pa.ArrowException, OSError, UnicodeError, csv.Error):
        raise ValueError(broken(path)) from None


def kind_of(path: str | os.PathLike[str]) -> str:
    """Parquet, CSV or Arrow, by the suffix; a folder is Parquet."""
    kind = KINDS.get(Path(path).suffix.lower(), "Parquet" if os.path.isdir(path) else None)
    if kind is None:
        raise ValueError(f"The format of {path} is unknown: rename it, to one of {', '.join(KINDS)}.")
    return kind


def broken(path: Path) -> str:
    """The error for a file that cannot be read, which must not quote it."""
    kind, form = KINDS.get(path.suffix.lower(), "Parquet"), ""
    if kind == "CSV":
        separator = "tabs" if path.suffix.lower() == ".tsv" else "commas"
        form = f" (a line of column names in UTF-8, then cells separated by {separator}, with quotes in pairs)"
    return f"The file at {path} is not {kind}{form}, or is damaged: write it again."


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
        raise ValueError(f"{kind} cannot hold the columns of {path}: use Parquet.") from None


def _open_parquet(path: Path) -> TableFile:
    files = [path]
    if path.is_dir():  # with folders in it; hidden ones do not count
        found = sorted(file for file in path.rglob("*") if file.is_file())
        files = [f for f in found if not any(n.startswith((".", "_")) for n in f.relative_to(path).parts)]
        if not files:
            raise ValueError(f"There are no Parquet files in the folder {path}: check the path.")

    def read(columns: list[str]) -> pa.Table:
        tables = [pyarrow.parquet.ParquetFile(file).read(columns=columns) for file in files]
        return pa.concat_tables(tables, promote_options="permissive")

    def scan(columns: list[str], at_most: int) -> Iterator[pa.RecordBatch]:
        for path_of_file in files:
            with pyarrow.parquet.ParquetFile(path_of_file, memory_map=True) as file:
                for batch in file.iter_batches(at_most, columns=columns, use_threads=False):
                    yield batch.select(columns)  # which come in the file's order

    def count() -> int:
        return sum(pyarrow.parquet.read_metadata(file).num_rows for file in files)

    return TableFile(path, pyarrow.parquet.read_schema(files[0]), read, scan=scan, count=count, files=files)


def _open_csv(path: Path) -> TableFile:
    rows = _csv_rows(path)
    names = next(rows, [])
    rows.close()
    "".join(names).encode()  # refuses names that are no UTF-8

    @functools.cache
    def columns() -> list[pa.ChunkedArray]:
        width, rows = len(names), _csv_rows(path)
        chunks: list[list[pa.Array]] = [[] for _ in names]
        next(rows, None)
        while some := list(itertools.islice(rows, _BATCH_ROWS)):
            # Cut off, or filled with empty cells, to the header's width: how many cells a user writes into a row, and
            # what is behind a quote, is their matter.
            whole = ((row + [""] * width)[:width] if len(row) != width else row for row in some)
            for chunk, cells in zip(chunks, zip(*whole, strict=True), strict=True):
                chunk.append(_as_text(cells))
        return [pa.chunked_array(chunk, pa.string()) for chunk in chunks]

    def read(asked: list[str]) -> pa.Table:
        return pa.table([columns()[names.index(name)] for name in asked], asked)

    return TableFile(path, pa.schema([(name, pa.string()) for name in names]), read, typed=False)


_END = ("the end", "of the file")


def _csv_rows(path: Path) -> Generator[list[str], None, None]:
    """The rows of a CSV file, those that are empty left out, by the only parser there is for it: Python's.

    Text behind a closing quote belongs to the cell, and cells may be of any length. A quote that is never closed would
    take everybody's rows behind it into one cell: that is an error, which is found by a line behind the last.
    """
    delimiter, limit = _delimiter(path), csv.field_size_limit(2**31 - 1)
    try:
        with open(path, newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
            rows = csv.reader(itertools.chain(file, [delimiter.join(_END)]), delimiter=delimiter)
            before = next(rows)
            for row in rows:
                if before:
                    yield before
                before = row
        if before != list(_END):
            raise csv.Error("a quote that is not closed")
    finally:
        csv.field_size_limit(limit)


def _as_text(cells: Iterable[str]) -> pa.Array:
    """Text of any bytes: whether it is UTF-8 is one user's matter."""
    try:
        return pa.array(cells, pa.string())
    except UnicodeEncodeError:
        return pa.array([cell.encode(errors="surrogateescape") for cell in cells], pa.binary()).view(pa.string())


def _open_arrow(path: Path) -> TableFile:
    with pa.memory_map(os.fspath(path)) as file:
        schema = pa.ipc.open_file(file).schema

    def batches(columns: list[str]) -> Iterator[pa.RecordBatch]:
        options = pa.ipc.IpcReadOptions(included_fields=[schema.names.index(name) for name in columns])
        with pa.memory_map(os.fspath(path)) as file, pa.ipc.open_file(file, options=options) as reader:
            for batch in map(reader.get_batch, range(reader.num_record_batches)):
                _check_buffers(batch)
                yield batch.select(columns)

    return TableFile(
        path,
        schema,
        lambda columns: pa.Table.from_batches(batches(columns), pa.schema([schema.field(name) for name in columns])),
        scan=lambda columns, at_most: (
            batch.slice(start, at_most) for batch in batches(columns) for start in range(0, len(batch), at_most)
        ),
        count=lambda: sum(len(batch) for batch in batches(schema.names[:1])),
    )


def _check_buffers(batch: pa.RecordBatch) -> None:
    """Refuse arrays that point outside of the file, which Arrow does not look for: reading them would read anything.

    Text is looked at as bytes: whether it is UTF-8 is one user's matter.
    """
    for column in batch.columns:
        column.validate()
        _without_text(column).validate(full=True)


def _without_text(array: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(array.type):
        return pa.DictionaryArray.from_arrays(array.indices, _without_text(array.dictionary), safe=False)
    return as_bytes(array) if declared(array) == TEXT else array


def _delimiter(path: Path) -> str:
    return "\t" if path.suffix.lower() == ".tsv" else ","


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A path to write to, whose file takes the place of `path` at the end. If anything fails, nothing is left of it."""
    path = Path(path)
    try:
        with tempfile.TemporaryDirectory(prefix=f".{path.name[:100]}.", dir=path.parent) as folder:
            new = Path(folder) / path.name
            yield new
            with open(new, "rb") as file:
                os.fsync(file.fileno())
            os.replace(new, path)
    except OSError as error:
        raise not_written(path, error) from None


def not_written(path: Path, error: OSError) -> ValueError:
    """The error for a place that cannot be written."""
    return ValueError(f"{path} cannot be written ({error.strerror or 'it failed'}): choose another place.")


def check_place(path: str | os.PathLike[str], *sources: str | os.PathLike[str]) -> Path:
    """Refuse, before anything is computed or spent, a path that cannot be written or that is one of the sources."""
    path = Path(path)
    try:
        if path.exists() and not path.is_file():
            kind = "a folder" if path.is_dir() else "no regular file"
            raise ValueError(f"{path} cannot be written, it is {kind}: choose another name.")
        for source in map(Path, sources):
            if path.resolve() == source.resolve() or (path.exists() and source.exists() and path.samefile(source)):
                raise ValueError(f"Writing {path} would replace {source}, which is needed: choose another name.")
        if not path.parent.is_dir():
            raise ValueError(f"There is no folder {path.parent} to write {path.name} to: make it first.")
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise not_written(path, error) from None
    return path
