"""Stores: the rows of a table that is larger than memory, sorted by user once into a folder of memory-mapped arrays.

    rows.npy       (n_rows, columns), float32 or float64
    targets.npy    (n_rows,), float64
    offsets.npy    (n_users + 1,), int64: user u owns rows offsets[u] .. offsets[u + 1]
    affected.npy   (n_users,), bool: who lost rows because a cell, or the target, was missing or infinite
    ids.arrow      one id per user, if they are asked for
    manifest.json  the format's version, what was asked for, of which files, and each file's type, shape and checksum

Users come in the order of their ids, rows of a user in the table's. Cells are read as they are without a store, by
`data.schema`; duckdb sorts what they became, in little memory, with the rest on disk. A store is made in a folder of
another name that takes its place when it is complete, so that what was killed is never taken for one. What a store
holds is as secret as the table: it is for its owner's eyes only (0700), and no error here quotes a cell or tells a
number of rows.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from userdp.data.encoding import encode
from userdp.data.grouping import MISSING_ID, NO_ROWS, as_rows, changes, check_users, draws, keys
from userdp.data.schema import numbers
from userdp.data.store_files import (
    ARRAYS,
    FILES,
    FORMAT,
    IDS,
    MANIFEST,
    SPILL,
    Folder,
    Replaced,
    Request,
    Store,
    checksum,
    checksum_of,
    digest_of,
    header,
    in_bytes,
    no_room,
    sources_of,
)
from userdp.data.tables import TableFile, broken

SUFFIX = ".userdp-store"
_MAKING = ".making-"  # in the name of a folder that is to become a store
_BYTES_PER_ROW = 64  # beside rows: ids, targets, and what sorting takes, where a table is read into memory
_SCRATCH_BYTES = 24  # per row: two arrays of lengths, and scaled targets


class StoreWarning(UserWarning):
    """A store is made anew, because its source changed or it is damaged."""


def fits_memory(table: TableFile, request: Request, limit: int) -> bool:
    """Whether the table can be read into memory as a whole."""
    return table.count() * (request.row_bytes + _BYTES_PER_ROW) <= limit


def default_place(table: TableFile) -> Path:
    """Beside the table."""
    path = table.path.resolve()
    return path.with_name(path.name + SUFFIX)


def open_store(
    table: TableFile,
    request: Request,
    place: Path,
    limit: int,
    tell: Callable[[str], None],
    progress: bool | None = None,
) -> Store:
    """The table's store at this place, which is made if there is none, and made anew if it is of something else.

    `tell` gets a sentence if what was there is replaced. `progress` as `minimize` has it.
    """
    place = place.resolve()
    _check_request(table, request, limit)
    if place.exists():
        try:
            with Folder(place) as folder:
                return _with_room(folder.opened(table, request, limit))
        except Replaced as error:
            reason = str(error)
        if not place.is_dir() or not set(os.listdir(place)) <= FILES:
            raise ValueError(f"Expected a store, or nothing, at {place}, found something else: choose another place.")
        tell(f"The store {place} {reason}: it is made anew.")
    return _with_room(_made(table, request, place, limit, progress))


def _with_room(store: Store) -> Store:
    """The store, if there is room for what is computed of each row: before anything is charged, not in the midst."""
    if shutil.disk_usage(store.path.parent).free < _SCRATCH_BYTES * len(store.array("rows")):
        raise ValueError(no_room(store.path.parent) + " Nothing was spent.")
    return store


def _check_request(table: TableFile, request: Request, limit: int) -> None:
    """Refuse by types and public numbers, before anything is read."""
    schema, cap = request.schema, request.max_rows_per_user
    if not table.typed:
        raise ValueError(
            f"Expected a Parquet or Arrow file for memory_limit, got CSV, whose columns have no types: convert "
            f"{table.path.name} to Parquet first, or leave memory_limit out."
        )
    keys(_empty(table, schema.user))
    for name in schema.features:
        numbers(f"column {name!r}", _empty(table, name))
    if schema.target is not None:
        schema.targets(_empty(table, schema.target))
    if cap is not None and cap * (request.row_bytes + 16) > limit / 8:
        need = in_bytes(8 * cap * (request.row_bytes + 16))
        raise ValueError(
            f"Expected memory_limit >= {need} for max_rows_per_user={cap} of {request.width} features, since one "
            "user's rows are held at a time: raise it, or lower max_rows_per_user, or pass None for all rows."
        )


def _empty(table: TableFile, name: str) -> pa.Array:
    return pa.array([], table.type_of(name))


# --- making -----------------------------------------------------------------------------------------------------------


def _made(table: TableFile, request: Request, place: Path, limit: int, progress: bool | None) -> Store:
    """Make the store in a folder of another name, open it, and put it in its place."""
    duckdb = _duckdb()
    try:
        folder, alive = _begun(place)
    except OSError as error:
        raise ValueError(f"Expected to write {place}: {error.strerror or 'it failed'}. Choose another place.") from None
    try:
        sources = sources_of(table)
        digests = [digest_of(path) for path in table.files()]
        with _bar(progress, table) as tell:
            arrays = _sorted_into(folder, duckdb, table, request, limit, tell)
        if sources_of(table) != sources:
            raise ValueError(f"Expected {table.path} to stay as it is while it is read; it changed: try again.")
        sources = [file | {"sha256": digest} for file, digest in zip(sources, digests, strict=True)]
        made = {"format": FORMAT, "request": request.record(table), "sources": sources, "arrays": arrays}
        made["user_ids"] = request.user_ids
        with _new(folder / MANIFEST) as file:
            file.write(json.dumps({"store": made, "checksum": checksum_of(made)}, indent=1).encode())
        with Folder(folder) as written:
            store = written.opened(table, request, limit)
        _put(folder, place)
        return Store(place, limit, store.user_ids, store._maps)
    except Replaced:
        raise ValueError(f"Expected what was written to {folder.parent} to be there: check the disk.") from None
    except (duckdb.OutOfMemoryException, MemoryError):
        raise ValueError(
            f"Expected memory_limit={in_bytes(limit)} to suffice to sort rows of {request.width} features, and room on "
            f"the disk of {place.parent}: raise it, or free some. Nothing was spent."
        ) from None
    except (duckdb.Error, OSError, pa.ArrowException):
        if shutil.disk_usage(place.parent).free < 2**27:
            raise ValueError(no_room(place.parent)) from None
        raise ValueError(broken(table.path)) from None
    finally:
        os.close(alive)
        shutil.rmtree(folder, ignore_errors=True)


def _duckdb() -> Any:
    try:
        import duckdb
    except ImportError:
        raise ValueError(
            "Expected duckdb, which sorts tables that are larger than memory: pip install 'userdp[store]', or leave "
            "memory_limit out. Nothing was spent."
        ) from None
    return duckdb


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time, for a moment."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _begun(place: Path) -> tuple[Path, int]:
    """A new folder beside the place, and a handle whose lock tells others that somebody is at work there."""
    with _alone(place.parent):
        _clean(place)
        folder = Path(tempfile.mkdtemp(prefix=f".{place.name}{_MAKING}", dir=place.parent))
        alive = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(alive, fcntl.LOCK_EX)
    return folder, alive


def _clean(place: Path) -> None:
    """Remove what builds that were killed have left: folders of such a name and content that nobody holds."""
    for name in os.listdir(place.parent):
        if name.startswith(f".{place.name}{_MAKING}"):
            folder = place.parent / name
            with contextlib.suppress(OSError):
                handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if set(os.listdir(folder)) <= FILES | {SPILL}:
                        shutil.rmtree(folder)
                finally:
                    os.close(handle)


def _put(folder: Path, place: Path) -> None:
    """Rename the folder to the place, and what is there to a name that `_clean` knows."""
    old = folder.with_name(f"{folder.name}.old")
    with _alone(place.parent):
        if place.exists():
            os.rename(place, old)
        os.rename(folder, place)
    shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def _new(path: Path) -> Iterator[BinaryIO]:
    """A file that is on the disk at the end."""
    with open(path, "xb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def _sorted_into(
    folder: Path, duckdb: Any, table: TableFile, request: Request, limit: int, tell: Callable[[int, int], None]
) -> dict[str, Any]:
    """Write the arrays, sorted by user; their types, shapes and checksums."""
    spill = folder / SPILL
    spill.mkdir()
    memory = max(limit // 2, limit - 128 * 10**6)
    settings = {"memory_limit": f"{memory}B", "threads": _threads(memory), "temp_directory": str(spill)}
    settings |= {"autoinstall_known_extensions": False, "autoload_known_extensions": False}  # nothing is downloaded
    at_a_time = _rows_at_a_time(limit, request)
    failed: list[BaseException] = []
    batches = _noticed(_cells(table, request, at_a_time, tell), failed)
    order = ", ".join(name for name in ("id", "lost", "draw", "number") if name in _columns(table, request).names)
    try:
        with (
            duckdb.connect(":memory:", config=settings) as connection,
            _Writer(folder, request, _columns(table, request).field("id").type) as writer,
        ):
            connection.register("cells", pa.RecordBatchReader.from_batches(_columns(table, request), batches))
            found = connection.sql(f"SELECT * FROM cells ORDER BY {order}").to_arrow_reader(at_a_time)
            for batch in _in_memory(found):
                writer.add(batch)
                tell(1, batch.num_rows)
            del found
            connection.unregister("cells")
            arrays = writer.end()
    except BaseException:
        if failed:  # rather than what duckdb makes of it
            raise failed[0] from None
        raise
    shutil.rmtree(spill)
    for name, facts in arrays.items():
        path = folder / (IDS if name == "ids" else f"{name}.npy")
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            facts["checksum"] = checksum(mapped)
    return arrays


def _in_memory(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What duckdb gives through Arrow, which tells a lack of memory as an OSError."""
    try:
        yield from batches
    except OSError as error:
        if "out of memory" in str(error).lower():
            raise MemoryError from None
        raise


def _rows_at_a_time(limit: int, request: Request) -> int:
    """Of what is read and written, so that a few of them are little beside the limit."""
    return max(256, min(16384, limit // 64 // request.row_bytes))


def _threads(memory: int) -> int:
    """As many as have room."""
    return max(1, min(os.cpu_count() or 1, memory // (256 * 10**6)))


def _noticed(batches: Iterator[pa.RecordBatch], failed: list[BaseException]) -> Iterator[pa.RecordBatch]:
    """The batches; what stops them is kept, because duckdb puts it into other words."""
    try:
        yield from batches
    except BaseException as error:
        failed.append(error)
        raise


def _columns(table: TableFile, request: Request) -> pa.Schema:
    """What is sorted: by id, rows that cannot be used last, then by a random word if some rows are dropped, then as the
    table has them.
    """
    features = [(f"x{i}", pa.from_numpy_dtype(request.dtype)) for i in range(len(request.schema.features))]
    word = pa.uint64() if request.insecure_seed is None else pa.float64()
    draw = [] if request.max_rows_per_user is None else [("draw", word)]
    target = [] if request.schema.target is None else [("target", pa.float64())]
    owner = keys(_empty(table, request.schema.user)).type
    return pa.schema([("id", owner), ("lost", pa.bool_()), *draw, ("number", pa.int64()), *target, *features])


def _cells(
    table: TableFile, request: Request, at_a_time: int, tell: Callable[[int, int], None]
) -> Iterator[pa.RecordBatch]:
    """The table's cells as numbers, some rows at a time."""
    schema, columns, start = request.schema, _columns(table, request), 0
    readers = [partial(numbers, f"column {name!r}") for name in schema.features]
    names = list(dict.fromkeys([schema.user, *schema.features, *([] if schema.target is None else [schema.target])]))
    drawn = draws(request.insecure_seed)
    for batch in table.batches(names, at_a_time):
        cells = dict(zip(names, batch, strict=True))
        found, n_rows = keys(cells[schema.user]), len(batch[0])
        if found.null_count:
            raise ValueError(MISSING_ID)
        lost = np.zeros(n_rows, dtype=bool)
        made: list[Any] = [found, lost, np.arange(start, start + n_rows)]
        if request.max_rows_per_user is not None:
            made.insert(2, drawn(n_rows))
        if schema.target is not None:
            made.append(schema.targets(cells[schema.target]).astype(np.float64, copy=False))
            lost |= ~np.isfinite(made[-1])
        with np.errstate(all="ignore"):
            for name, reader in zip(schema.features, readers, strict=True):
                values = reader(cells[name]).astype(request.dtype, copy=False)
                if request.fill_missing is not None:
                    values = np.where(np.isnan(values), request.dtype.type(request.fill_missing), values)
                made.append(values)
                lost |= ~np.isfinite(values)
        yield pa.RecordBatch.from_arrays(
            [pa.array(one, kind) for one, kind in zip(made, columns.types, strict=True)], schema=columns
        )
        start += n_rows
        tell(0, n_rows)


class _Writer:
    """Sorted rows to files, as they come; of a user with too many the first of the draws, in the table's order.

    Of rows that cannot be used, which are a user's last, nothing is written but who has some.
    """

    def __init__(self, folder: Path, request: Request, ids: pa.DataType) -> None:
        self._folder, self._request, self._files = folder, request, contextlib.ExitStack()
        own = {"targets": np.float64, "offsets": np.int64, "affected": np.bool_}
        self._kinds = {"rows": request.dtype} | {name: np.dtype(kind) for name, kind in own.items()}
        self._ids = pa.schema([("id", ids)])
        self._last: Any = None  # the last row's user
        self._count, self._n_users, self._end = 0, 0, 0  # rows of this user, users, and rows that are kept of others
        self._affected = False  # whether this user has rows that cannot be used
        self._held: list[tuple[np.ndarray, ...]] = []  # this user's rows, if there is a cap

    def __enter__(self) -> _Writer:
        self._arrays = {n: self._files.enter_context(_new(self._folder / f"{n}.npy")) for n in ARRAYS}
        for name, file in self._arrays.items():
            file.write(header(self._kinds[name], self._shape(name)))
        self._arrays["offsets"].write(np.zeros(1, np.int64).data)
        if self._request.user_ids:
            file = self._files.enter_context(_new(self._folder / IDS))
            self._owners = self._files.enter_context(pa.ipc.new_file(file, self._ids))
        return self

    def __exit__(self, *error: Any) -> None:
        self._files.__exit__(*error)

    def add(self, batch: pa.RecordBatch) -> None:
        """Take in rows, which come sorted."""
        ids, n_rows, cap = batch.column("id"), batch.num_rows, self._request.max_rows_per_user
        codes = encode(ids)[0]
        starts = changes(codes)
        lengths = np.diff(starts, append=n_rows)
        goes_on = self._n_users > 0 and ids[0].as_py() == self._last
        first, before = (int(lengths[0]), self._count) if goes_on else (0, 0)
        if self._n_users > 0 and not goes_on:
            self._close_users(np.array([self._count]), np.array([self._affected]))
        ranks = np.arange(n_rows) - np.repeat(starts, lengths)
        ranks[:first] += before
        lost = batch.column("lost").to_numpy(zero_copy_only=False)
        affected = np.logical_or.reduceat(lost, starts)  # lost rows come last: who had some before has more here
        counts = lengths - np.add.reduceat(lost.astype(np.int64), starts)
        counts[0] += before
        self._close_users(counts[:-1], affected[:-1])
        self._last, self._count, self._affected = ids[-1].as_py(), int(counts[-1]), bool(affected[-1])
        self._n_users += len(starts) - goes_on
        if self._request.user_ids:
            self._owners.write_batch(pa.record_batch([ids.take(pa.array(starts[goes_on:]))], schema=self._ids))
        rows, targets = self._block(batch)
        if cap is None:
            self._write(rows[~lost], targets[~lost])
            return
        number, kept = batch.column("number").to_numpy(), ~lost & (ranks < cap)

        def some(start: int, end: int) -> tuple[np.ndarray, ...]:
            return tuple(array[start:end][kept[start:end]] for array in (rows, targets, number, codes))

        self._held.append(some(0, first))
        if first < n_rows:  # another user begins
            self._write_held()
            self._write_in_order(*some(first, starts[-1]))
            self._held = [some(starts[-1], n_rows)]

    def end(self) -> dict[str, Any]:
        """The arrays' types and shapes, once all rows are written."""
        if self._n_users == 0:
            raise ValueError(NO_ROWS)
        check_users(self._n_users)
        self._close_users(np.array([self._count]), np.array([self._affected]))
        self._write_held()
        for name, file in self._arrays.items():
            file.seek(0)
            file.write(header(self._kinds[name], self._shape(name)))
        facts: dict[str, Any] = {n: {"dtype": self._kinds[n].name, "shape": self._shape(n)} for n in ARRAYS}
        return facts | ({"ids": {}} if self._request.user_ids else {})

    def _shape(self, name: str) -> tuple[int, ...]:
        shapes = {"rows": (self._end, self._request.width), "targets": (self._end,), "affected": (self._n_users,)}
        return shapes.get(name, (self._n_users + 1,))

    def _block(self, batch: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
        """Rows and targets of a batch."""
        request = self._request
        rows = np.empty((batch.num_rows, request.width), request.dtype)
        as_rows([batch.column(f"x{i}").to_numpy() for i in range(len(request.schema.features))], rows)
        if request.schema.target is None:
            return rows, np.full(len(rows), np.nan)
        return rows, batch.column("target").to_numpy()

    def _close_users(self, lengths: np.ndarray, affected: np.ndarray) -> None:
        """Users of whom all rows were seen."""
        if len(lengths):
            cap = self._request.max_rows_per_user
            ends = self._end + np.cumsum(lengths if cap is None else np.minimum(lengths, cap), dtype=np.int64)
            self._arrays["offsets"].write(ends.data)
            self._arrays["affected"].write(np.ascontiguousarray(affected).data)
            self._end = int(ends[-1])

    def _write_held(self) -> None:
        if self._held:
            rows, targets, number, _ = (np.concatenate(parts) for parts in zip(*self._held, strict=True))
            self._write_in_order(rows, targets, number, np.zeros(len(number)))
            self._held = []

    def _write_in_order(self, rows: np.ndarray, targets: np.ndarray, number: np.ndarray, codes: np.ndarray) -> None:
        order = np.lexsort((number, codes))
        self._write(rows[order], targets[order])

    def _write(self, rows: np.ndarray, targets: np.ndarray) -> None:
        self._arrays["rows"].write(rows.data)
        self._arrays["targets"].write(np.ascontiguousarray(targets).data)


@contextlib.contextmanager
def _bar(wanted: bool | None, table: TableFile) -> Iterator[Callable[[int, int], None]]:
    """Tells how many rows were read and written, on a terminal: that of whoever holds the table."""
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
