"""Stores: the rows of a table that is larger than memory, sorted by user once into a folder of memory-mapped arrays.

    rows.npy       (n_rows, columns), float32 or float64
    targets.npy    (n_rows,), float64
    offsets.npy    (n_users + 1,), int64: user u owns rows offsets[u] .. offsets[u + 1]
    affected.npy   (n_users,), bool: who lost rows because a cell, or the target, was missing or infinite
    ids.arrow      one id per user, if they are asked for
    manifest.json  the format's version, what was asked for, of which files, and each file's type, shape and checksum

Users come in the order of their ids, rows of a user in the table's. Cells are read as they are without a store, by
`data.schema`; duckdb sorts what they became, in little memory, with the rest on disk. A store is made in a folder of
another name that takes its place when it is complete, so that an unfinished one is never used. Every byte is checked
before it is used. What a store holds is as secret as the table: only its owner may read it (0700), and no error here
quotes a cell or a number of rows.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import math
import mmap
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from userdp.data.groups import MISSING_ID, NO_ROWS, Options, check_users, draws, keys, running_total
from userdp.data.schema import TEXT, Schema, declared, encode, numbers, texts
from userdp.data.tables import TableFile, broken, not_written

FORMAT = 4
LEAST_MEMORY = 64 * 10**6  # duckdb itself takes about 32 MB
SUFFIX = ".userdp-store"
MANIFEST, IDS, SPILL = "manifest.json", "ids.arrow", "spill"
ARRAYS = ("rows", "targets", "offsets", "affected")
FILES = {MANIFEST, IDS, *(f"{name}.npy" for name in ARRAYS)}
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
_BYTES_PER_ROW = 64  # beside rows: ids, targets, and what sorting takes, where a table is read into memory
_SCRATCH_BYTES = 24  # per row: two arrays of lengths, and scaled targets
_DAMAGED = "is damaged"


class StoreWarning(UserWarning):
    """A store is rebuilt, because its source changed or it is damaged."""


class _Replaced(Exception):
    """Why a store cannot be used."""


@dataclass(frozen=True)
class Request:
    """What a store is made for, all of it public; another request needs another store. dtype: of its rows."""

    schema: Schema
    options: Options
    dtype: np.dtype

    @property
    def width(self) -> int:
        """Columns of `rows`."""
        return len(self.schema.features)

    @property
    def row_bytes(self) -> int:
        return self.width * self.dtype.itemsize + 8

    def record(self, table: TableFile) -> dict[str, Any]:
        """The request and the types that it meets, for the manifest."""
        schema, options = self.schema, self.options
        record = {
            "user": schema.user,
            "features": schema.features,
            "target": schema.target,
            "classes": schema.classes,
            "types": [str(table.type_of(name)) for name in schema.columns],
            "dtype": self.dtype.name,
            "max_rows_per_user": options.max_rows_per_user,
            "fill_missing": options.fill_missing,
            "insecure_seed": None if options.max_rows_per_user is None else options.insecure_seed,
        }
        made: dict[str, Any] = json.loads(json.dumps(record, default=repr))
        return made


@dataclass(frozen=True, eq=False, repr=False)
class Store:
    """An open store, and the memory that may be used beside it."""

    path: Path
    memory_limit: int
    user_ids: tuple[Any, ...] | None
    arrays: dict[str, np.ndarray]  # rows, targets, offsets and affected, read when they are looked at

    def scratch(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> np.ndarray:
        """An array beside the rows, in a file without a name: it takes no memory, and nothing is left of it."""
        kind = np.dtype(dtype)
        size = math.prod(shape) * kind.itemsize
        if size == 0:  # of no rows, since none could be used: no file has room for nothing
            return np.empty(shape, kind)
        try:
            with tempfile.TemporaryFile(dir=self.path.parent) as file:
                os.posix_fallocate(file.fileno(), 0, size)  # a full disk must be noticed here: later it would kill
                return np.frombuffer(mmap.mmap(file.fileno(), size), dtype=kind).reshape(shape)
        except OSError:
            raise ValueError(_no_room(self.path.parent)) from None


def parsed_limit(limit: int | str) -> int:
    """Bytes of a limit such as 2000000000, "2GB" or "1.5GiB".

    >>> parsed_limit("2GB"), parsed_limit("0.5 GiB")
    (2000000000, 536870912)
    """
    size = limit if isinstance(limit, int) and not isinstance(limit, bool) else 0
    if isinstance(limit, str):
        found = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,15})?)\s*([KMGT]?I?)B?\s*", limit.upper())
        size = 0 if found is None else int(float(found[1]) * _UNITS.get(found[2], 0))
    if not LEAST_MEMORY <= size < 2**63:
        raise ValueError(
            f"memory_limit must be at least {LEAST_MEMORY // 10**6}MB, as a number of bytes or in a form such as "
            f"'500MB', '2GB' or '1.5GiB', got {limit!r}: pass a larger one, or None for no limit."
        )
    return size


def in_bytes(size: float) -> str:
    """A size in words, rounded up."""
    for name, unit in (("GB", 10**9), ("MB", 10**6)):
        if size >= unit:
            return f"{math.ceil(10 * size / unit) / 10:g}{name}"
    return f"{math.ceil(size)} bytes"


def open_store(
    table: TableFile,
    schema: Schema,
    options: Options,
    memory_limit: int | str | None,
    place: str | os.PathLike[str] | None,
    warn: Callable[[str], None],
    progress: bool | None = None,
) -> Store | None:
    """The table's store, which is made if there is none at its place, and rebuilt if it is of something else.

    None if the table fits into memory and no place was named; else a store stands beside the table. `warn` gets a
    sentence if what was there is replaced. `progress` as in `UserData.from_parquet`.
    """
    if not isinstance(table, TableFile):
        raise TypeError(f"memory_limit is for files, got {type(table).__name__}: it is in memory already.")
    if memory_limit is None:
        raise ValueError("store needs memory_limit: say how much memory may be used, '2GB' for example.")
    limit = parsed_limit(memory_limit)
    request = Request(schema, options, options.float_type(np.dtype(np.float64)))
    if place is None and table.typed and table.count() * (request.row_bytes + _BYTES_PER_ROW) <= limit:
        return None
    beside = table.path.resolve()
    place = beside.with_name(beside.name + SUFFIX) if place is None else Path(place).resolve()
    _check_request(table, request, limit)
    store = None
    if place.exists():
        try:
            store = _opened(place, table, request, limit)
        except _Replaced as error:
            if not place.is_dir() or not set(os.listdir(place)) <= FILES:
                raise ValueError(f"What stands at {place} is no store: choose another place.") from None
            warn(f"The store {place} {error}: it is rebuilt.")
    if store is None:
        _make(table, request, place, limit, progress)
        try:
            store = _opened(place, table, request, limit)
        except _Replaced:
            raise ValueError(f"What was written to {place} cannot be read back: check the disk.") from None
    # Room for what is computed of each row: before anything is charged, not in the midst.
    if shutil.disk_usage(place.parent).free < _SCRATCH_BYTES * len(store.arrays["rows"]):
        raise ValueError(_no_room(place.parent) + " Nothing was spent.")
    return store


def _no_room(where: Path) -> str:
    return f"There is too little room on the disk of {where}: free some, or choose another place."


def _check_request(table: TableFile, request: Request, limit: int) -> None:
    """Refuse by types and public numbers, before anything is read."""
    schema, cap = request.schema, request.options.max_rows_per_user
    if not table.typed:
        raise ValueError(
            f"memory_limit is for Parquet and Arrow files; columns of CSV have no types: convert {table.path.name} to "
            "Parquet first, or leave memory_limit out."
        )
    empty = {name: pa.array([], table.type_of(name)) for name in schema.columns}
    keys(empty[schema.user])
    for name in schema.features:
        numbers(f"column {name!r}", empty[name])
    if schema.target is not None:
        schema.targets(empty[schema.target])
    if cap is not None and cap * (request.row_bytes + 16) > limit / 8:
        need = in_bytes(8 * cap * (request.row_bytes + 16))
        raise ValueError(
            f"memory_limit must be at least {need} for max_rows_per_user={cap} of {request.width} features, since one "
            "user's rows are held at a time: raise it, or lower max_rows_per_user, or pass None for all rows."
        )


# --- opening ----------------------------------------------------------------------------------------------------------


def _opened(place: Path, table: TableFile, request: Request, limit: int) -> Store:
    """The store, if it is whole and of this request and these files."""
    try:
        made = json.loads((place / MANIFEST).read_bytes())
        if made["format"] != FORMAT:
            raise _Replaced("is of another version")
        if made["request"] != request.record(table) or (request.options.keep_user_ids and not made["user_ids"]):
            raise _Replaced("is for other columns or options")
        if made["sources"] != sources_of(table):
            raise _Replaced(f"is of another version of {table.path.name}")
        maps, user_ids = {}, None
        for name in ARRAYS:
            with _checked(place / f"{name}.npy", made) as file:
                np.lib.format.read_magic(file)
                shape, _, kind = np.lib.format.read_array_header_1_0(file)
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                maps[name] = np.frombuffer(mapped, kind, math.prod(shape), file.tell()).reshape(shape)
        if request.options.keep_user_ids:
            with _checked(place / IDS, made) as file:
                found = pa.ipc.open_file(file).read_all().column(0).combine_chunks()
            user_ids = _ids_of(found, table.type_of(request.schema.user))
        return Store(place, limit, user_ids, maps)
    except (_Replaced, MemoryError):
        raise
    except Exception:  # whatever a file that was changed leads to
        raise _Replaced(_DAMAGED) from None


@contextlib.contextmanager
def _checked(path: Path, made: dict[str, Any]) -> Iterator[io.BufferedReader]:
    """A file of the store, all of whose bytes are what they were."""
    with open(path, "rb") as file:
        if _digest_of(file) != made["checksums"][path.name]:
            raise _Replaced(_DAMAGED)
        file.seek(0)
        yield file


def _digest_of(file: io.BufferedReader) -> str:
    return hashlib.file_digest(file, "sha256").hexdigest()


def _ids_of(found: pa.Array, kind: pa.DataType) -> tuple[Any, ...]:
    """Ids as they were, of what `keys` made of them."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if declared(pa.array([], kind)) == TEXT:
        return tuple(cell.decode(errors="surrogateescape") for cell in found.to_pylist())
    if pa.types.is_temporal(kind) and kind.bit_width == 32:
        found = found.cast(pa.int32())
    if pa.types.is_decimal(kind):
        found = found.cast(pa.string())
    return tuple(texts(found.cast(kind)))


def sources_of(table: TableFile) -> list[list[Any]]:
    """The files that a table is in: names, sizes and times."""
    files = [(os.path.relpath(path, table.path), path.stat()) for path in table.files]
    return [[name, file.st_size, file.st_mtime_ns, file.st_ctime_ns, file.st_ino] for name, file in files]


# --- making -----------------------------------------------------------------------------------------------------------


def _make(table: TableFile, request: Request, place: Path, limit: int, progress: bool | None) -> None:
    """Make the store in a folder of another name, and put it in its place."""
    try:
        import duckdb
    except ImportError:
        raise ValueError(
            "duckdb is not installed, which sorts tables that are larger than memory: pip install 'userdp[store]', or "
            "leave memory_limit out. Nothing was spent."
        ) from None
    with contextlib.ExitStack() as held:
        try:
            folder = held.enter_context(_folder_for(place))
        except OSError as error:
            raise not_written(place, error) from None
        try:
            sources = sources_of(table)
            with _bar(progress, table) as advance:
                _sorted_into(folder, duckdb, table, request, limit, advance)
            if sources_of(table) != sources:
                raise ValueError(f"{table.path} changed while it was read: try again.")
            checksums = {}
            for name in os.listdir(folder):
                with open(folder / name, "rb") as file:
                    checksums[name] = _digest_of(file)
            made = {"format": FORMAT, "request": request.record(table), "sources": sources, "checksums": checksums}
            made["user_ids"] = request.options.keep_user_ids
            with _new(folder / MANIFEST) as file:
                file.write(json.dumps(made, indent=1).encode())
            if place.exists():
                _empty(place)
                place.rmdir()
            os.rename(folder, place)
        except (duckdb.OutOfMemoryException, MemoryError):
            raise ValueError(
                f"memory_limit={in_bytes(limit)}, or the room on the disk of {place.parent}, is too little to sort "
                f"rows of {request.width} features: raise it, or free some. Nothing was spent."
            ) from None
        except (duckdb.Error, OSError, pa.ArrowException):
            if shutil.disk_usage(place.parent).free < 2**27:
                raise ValueError(_no_room(place.parent)) from None
            raise ValueError(broken(table.path)) from None


@contextlib.contextmanager
def _folder_for(place: Path) -> Iterator[Path]:
    """An empty folder beside the place, locked for one process at a time.

    What a process that was killed has left in it is removed, and everything if the work fails.
    """
    folder = place.with_name(f".{place.name}.making")
    while True:
        folder.mkdir(mode=0o700, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if folder.exists() and os.path.samestat(os.fstat(handle), os.stat(folder)):
                _empty(folder)
                try:
                    yield folder
                except BaseException:
                    shutil.rmtree(folder, ignore_errors=True)
                    raise
                return
            # The process that had it before put it in its place, or removed it.
        finally:
            os.close(handle)


def _empty(folder: Path) -> None:
    """Remove what builds and stores consist of, and nothing else."""
    shutil.rmtree(folder / SPILL, ignore_errors=True)
    for name in FILES:
        (folder / name).unlink(missing_ok=True)


@contextlib.contextmanager
def _new(path: Path) -> Iterator[BinaryIO]:
    """A file that is on the disk at the end."""
    with open(path, "xb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def _sorted_into(
    folder: Path, duckdb: Any, table: TableFile, request: Request, limit: int, advance: Callable[[int, int], None]
) -> None:
    """Write the arrays, sorted by user."""
    spill = folder / SPILL
    spill.mkdir()
    memory = max(limit // 2, limit - 128 * 10**6)
    threads = max(1, min(os.cpu_count() or 1, memory // (256 * 10**6)))  # as many as have room
    settings = {"memory_limit": f"{memory}B", "threads": threads, "temp_directory": str(spill)}
    settings |= {"autoinstall_known_extensions": False, "autoload_known_extensions": False}  # nothing is downloaded
    at_a_time, columns = _rows_at_a_time(limit, request), _columns(table, request)
    failed: list[BaseException] = []  # what stops the reading: duckdb would put it into other words

    def cells() -> Iterator[pa.RecordBatch]:
        try:
            yield from _cells(table, request, columns, at_a_time, advance)
        except BaseException as error:
            failed.append(error)
            raise

    try:
        with (
            duckdb.connect(":memory:", config=settings) as connection,
            _Writer(folder, request, columns.field("id").type) as writer,
        ):
            connection.register("cells", pa.RecordBatchReader.from_batches(columns, cells()))
            found = connection.sql("SELECT * FROM cells ORDER BY id, lost, draw, number").to_arrow_reader(at_a_time)
            while (batch := _next(found)) is not None:
                writer.add(batch)
                advance(1, batch.num_rows)
            del found
            connection.unregister("cells")
            writer.end()
    except BaseException:
        if failed:
            raise failed[0] from None
        raise
    shutil.rmtree(spill)


def _next(batches: Any) -> pa.RecordBatch | None:
    """What duckdb gives through Arrow, which reports a lack of memory as an OSError."""
    try:
        return next(batches, None)
    except OSError as error:
        if "out of memory" in str(error).lower():
            raise MemoryError from None
        raise


def _rows_at_a_time(limit: int, request: Request) -> int:
    """Of what is read and written, so that a few of them are little beside the limit."""
    return max(256, min(16384, limit // 64 // request.row_bytes))


def _columns(table: TableFile, request: Request) -> pa.Schema:
    """What is sorted: by id, rows that cannot be used last, then by a random word if some rows are dropped, then as the
    table has them. `row` is what the row is in memory, which is sorted faster than a column for each feature.
    """
    kinds = {
        "id": keys(pa.array([], table.type_of(request.schema.user))).type,
        "lost": pa.bool_(),
        "draw": pa.uint64() if request.options.insecure_seed is None else pa.float64(),
        "number": pa.int64(),
        "target": pa.float64(),
        "row": pa.binary(request.width * request.dtype.itemsize),
    }
    return pa.schema(kinds)


def _cells(
    table: TableFile, request: Request, columns: pa.Schema, at_a_time: int, advance: Callable[[int, int], None]
) -> Iterator[pa.RecordBatch]:
    """The table's cells as numbers, some rows at a time."""
    schema, options, start = request.schema, request.options, 0
    names, drawn = list(dict.fromkeys(schema.columns)), draws(options.insecure_seed)
    for batch in table.batches(names, at_a_time):
        cells = dict(zip(names, batch, strict=True))
        owners, n_rows = keys(cells[schema.user]), len(batch[0])
        if owners.null_count:
            raise ValueError(MISSING_ID)
        targets, rows = np.full(n_rows, np.nan), np.empty((n_rows, request.width), request.dtype)
        lost = np.zeros(n_rows, dtype=bool)
        with np.errstate(all="ignore"):
            if schema.target is not None:
                targets = schema.targets(cells[schema.target]).astype(np.float64, copy=False)
                lost |= ~np.isfinite(targets)
            for position, name in enumerate(schema.features):
                rows[:, position] = numbers(f"column {name!r}", cells[name])
            if options.fill_missing is not None:
                rows[np.isnan(rows)] = options.fill_missing
        lost |= ~np.isfinite(rows).all(axis=1)
        no_draw = np.zeros(n_rows, dtype=columns.field("draw").type.to_pandas_dtype())
        draw = no_draw if options.max_rows_per_user is None else drawn(n_rows)
        made = [owners, lost, draw, np.arange(start, start + n_rows), targets]
        arrays = [pa.array(values, kind) for values, kind in zip(made, columns.types, strict=False)]
        arrays.append(pa.Array.from_buffers(columns.types[-1], n_rows, [None, pa.py_buffer(rows)]))
        yield pa.RecordBatch.from_arrays(arrays, schema=columns)
        start += n_rows
        advance(0, n_rows)


class _Writer:
    """Sorted rows to files, as they come; of a user with too many the first of the draws, in the table's order.

    Rows that cannot be used, which are a user's last, are not written: only which users have some.
    """

    def __init__(self, folder: Path, request: Request, ids: pa.DataType) -> None:
        self._folder, self._request, self._files = folder, request, contextlib.ExitStack()
        self._last = pa.array([], ids)  # the last row's user
        self._n_rows, self._n_users, self._n_kept = 0, 0, 0
        self._first = 0  # the number of the last user's first row
        # Of users from one number on: how many rows can be used, and whether others cannot.
        self._counts: list[tuple[int, np.ndarray, np.ndarray]] = []
        self._held: list[np.ndarray] = []  # rows, targets, numbers and users that are not written yet
        self._arrays = {name: self._files.enter_context(_new(folder / f"{name}.npy")) for name in ("rows", "targets")}
        self._write_heads()
        if request.options.keep_user_ids:
            file = self._files.enter_context(_new(folder / IDS))
            self._owners = self._files.enter_context(pa.ipc.new_file(file, pa.schema([("id", ids)])))

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *error: Any) -> None:
        self._files.__exit__(*error)

    def add(self, batch: pa.RecordBatch) -> None:
        """Take in rows, which come sorted."""
        request, cap, n_rows = self._request, self._request.options.max_rows_per_user, batch.num_rows
        ids = pa.concat_arrays([self._last, batch.column("id").cast(self._last.type)])
        begins = np.diff(encode(ids)[0], prepend=-1)[len(self._last) :] != 0
        users, numbered = self._n_users - 1 + np.cumsum(begins), self._n_rows + np.arange(n_rows)
        ranks = numbered - np.maximum.accumulate(np.where(begins, numbered, self._first))
        lost = batch.column("lost").to_numpy(zero_copy_only=False)
        own = users - users[0]
        self._counts.append((int(users[0]), np.bincount(own, ~lost), np.bincount(own, lost) > 0))
        if request.options.keep_user_ids:
            new = ids.slice(len(self._last)).filter(pa.array(begins))
            self._owners.write_batch(pa.record_batch([new], names=["id"]))
        self._last, self._first = ids.slice(len(ids) - 1), int(numbered[-1] - ranks[-1])
        self._n_rows, self._n_users = self._n_rows + n_rows, int(users[-1]) + 1
        kept = ~lost if cap is None else ~lost & (ranks < cap)
        raw = batch.column("row").cast(pa.binary(request.width * request.dtype.itemsize))
        rows = np.frombuffer(raw.buffers()[1], request.dtype)[raw.offset * request.width :].reshape(-1, request.width)
        numbers, targets = batch.column("number").to_numpy(), batch.column("target").to_numpy()
        found = [array[kept] for array in (rows[:n_rows], targets, numbers, users)]
        self._held = [np.concatenate(pair) for pair in zip(self._held, found, strict=True)] if self._held else found
        # Without a cap rows are in the table's order; else those of the last user wait for more.
        self._write(len(self._held[3]) if cap is None else int(np.searchsorted(self._held[3], users[-1])))

    def end(self) -> None:
        """Once all rows came."""
        if self._n_users == 0:
            raise ValueError(NO_ROWS)
        check_users(self._n_users)
        self._write(len(self._held[3]))
        self._write_heads()
        counts, affected = np.zeros(self._n_users, dtype=np.int64), np.zeros(self._n_users, dtype=bool)
        for first, usable, lost in self._counts:
            some = slice(first, first + len(usable))
            counts[some] += usable.astype(np.int64)
            affected[some] |= lost
        cap = self._request.options.max_rows_per_user
        offsets = running_total(counts if cap is None else np.minimum(counts, cap))
        for name, array in (("offsets", offsets), ("affected", affected)):
            with _new(self._folder / f"{name}.npy") as file:
                np.save(file, array)

    def _write(self, n_rows: int) -> None:
        """The first of the rows that are held, of each user in the table's order."""
        rows, targets, numbers, users = (array[:n_rows] for array in self._held)
        order = np.lexsort((numbers, users))
        self._arrays["rows"].write(rows[order].data)
        self._arrays["targets"].write(targets[order].data)
        self._held, self._n_kept = [array[n_rows:] for array in self._held], self._n_kept + n_rows

    def _write_heads(self) -> None:
        """What .npy files begin with, as long for any number of rows: that is known in the end."""
        shapes = {"rows": (self._n_kept, self._request.width), "targets": (self._n_kept,)}
        for name, kind in (("rows", self._request.dtype), ("targets", np.dtype(np.float64))):
            self._arrays[name].seek(0)
            facts = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": shapes[name]}
            np.lib.format.write_array_header_1_0(self._arrays[name], facts)


@contextlib.contextmanager
def _bar(wanted: bool | None, table: TableFile) -> Iterator[Callable[[int, int], None]]:
    """Shows how many rows were read and written, on a terminal, which is that of the table's owner."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, force_terminal=wanted)
    if not (console.is_terminal if wanted is None else wanted):
        yield lambda stage, n_rows: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("rows"))
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as progress:
        total = table.count()
        tasks = [progress.add_task(what, total=total) for what in (f"reading {table.path.name}", "sorted by user")]
        yield lambda stage, n_rows: progress.advance(tasks[stage], n_rows)
