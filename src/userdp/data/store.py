"""Stores: the rows of a table that is larger than memory, sorted by user once into a folder of memory-mapped arrays.

    rows.npy       (n_rows, columns), float32 or float64
    targets.npy    (n_rows,), float64
    offsets.npy    (n_users + 1,), int64: user u owns rows offsets[u] .. offsets[u + 1]
    affected.npy   (n_users,), bool: who lost rows because a cell, or the target, was missing or infinite
    ids.arrow      one id per user, if they are asked for
    manifest.json  the format's version, what was asked for, of which files, and each file's type, shape and checksum

Users come in the order of their ids, rows of a user in the table's. Cells are read as they are without a store, by
`data.schema`; duckdb sorts what they became, in little memory, with the rest on disk. A store is made in a folder of
another name that takes its place when it is complete, so that what was killed is never taken for one. Every byte is
checked before it is used. What a store holds is as secret as the table: it is for its owner's eyes only (0700), and no
error here quotes a cell or tells a number of rows.
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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from userdp.data.grouping import MISSING_ID, NO_ROWS, as_rows, changes, check_users, draws, keys
from userdp.data.schema import TEXT, Schema, declared, encode, numbers, texts
from userdp.data.tables import TableFile, broken

FORMAT = 3
LEAST_MEMORY = 64 * 10**6  # duckdb itself takes about 32 MB
SUFFIX = ".userdp-store"
MANIFEST, IDS, SPILL = "manifest.json", "ids.arrow", "spill"
ARRAYS: dict[str, Any] = {
    "rows": None,
    "targets": np.float64,
    "offsets": np.int64,
    "affected": np.bool_,
}  # rows are as asked for
FILES = {MANIFEST, IDS, *(f"{name}.npy" for name in ARRAYS)}
_MAKING = ".making-"  # in the name of a folder that is to become a store
_LONGEST_MANIFEST = 2**26
_PIECE = 2**26  # bytes that are checked at a time
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
_BYTES_PER_USER = 64  # of orders and draws of users
_BYTES_PER_ROW = 64  # beside rows: ids, targets, and what sorting takes, where a table is read into memory
_SCRATCH_BYTES = 24  # per row: two arrays of lengths, and scaled targets
_DAMAGED = "is damaged"


class StoreWarning(UserWarning):
    """A store is made anew, because its source changed or it is damaged."""


class _Replaced(Exception):
    """Why a store cannot be used."""


@dataclass(frozen=True)
class Request:
    """What a store is made for, all of it public; another request needs another store."""

    schema: Schema
    dtype: np.dtype
    max_rows_per_user: int | None
    fill_missing: float | None
    user_ids: bool
    insecure_seed: int | None

    @property
    def width(self) -> int:
        """Columns of `rows`."""
        return len(self.schema.features)

    @property
    def row_bytes(self) -> int:
        return self.width * self.dtype.itemsize + 8

    def record(self, table: TableFile) -> dict[str, Any]:
        """The request and the types that it meets, for the manifest."""
        schema = self.schema
        record = {
            "user": schema.user,
            "features": list(schema.features),
            "target": schema.target,
            "classes": None if schema.classes is None else list(schema.classes),
            "types": [str(table.type_of(name)) for name in schema.columns],
            "dtype": self.dtype.name,
            "max_rows_per_user": self.max_rows_per_user,
            "fill_missing": self.fill_missing,
            "insecure_seed": None if self.max_rows_per_user is None else self.insecure_seed,
        }
        made: dict[str, Any] = json.loads(json.dumps(record, default=repr))
        return made


@dataclass(frozen=True, eq=False, repr=False)
class Store:
    """An open store, and the memory that may be used beside it."""

    path: Path
    memory_limit: int
    user_ids: tuple[Any, ...] | None
    _maps: dict[str, np.ndarray]

    def array(self, name: str) -> np.ndarray:
        """Rows, targets, offsets or who lost rows: of the file, read when they are looked at."""
        return self._maps[name]

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
            f"Expected memory_limit={limit!r} to be at least {LEAST_MEMORY // 10**6}MB, as a number of bytes or in a "
            "form such as '500MB', '2GB' or '1.5GiB': pass a larger one, or None for no limit."
        )
    return size


def in_bytes(size: float) -> str:
    """A size for people, rounded up."""
    for name, unit in (("GB", 10**9), ("MB", 10**6)):
        if size >= unit:
            return f"{math.ceil(10 * size / unit) / 10:g}{name}"
    return f"{math.ceil(size)} bytes"


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
    store = None
    if place.exists():
        try:
            store = _opened(place, table, request, limit)
        except _Replaced as error:
            if not place.is_dir() or not set(os.listdir(place)) <= FILES:
                raise ValueError(
                    f"Expected a store, or nothing, at {place}, found something else: choose another place."
                ) from None
            tell(f"The store {place} {error}: it is made anew.")
    if store is None:
        store = _made(table, request, place, limit, progress)
    need = _BYTES_PER_USER * len(store.user_ids or ())
    if need > limit:  # the number of users is public
        raise ValueError(
            f"Expected memory_limit >= {in_bytes(need)} for {need // _BYTES_PER_USER} users, whose orders are held in "
            "memory: raise it. Nothing was spent."
        )
    # Room for what is computed of each row: before anything is charged, not in the midst.
    if shutil.disk_usage(place.parent).free < _SCRATCH_BYTES * len(store.array("rows")):
        raise ValueError(_no_room(place.parent) + " Nothing was spent.")
    return store


def _no_room(where: Path) -> str:
    return f"Expected more room on the disk of {where}: free some, or choose another place."


def _check_request(table: TableFile, request: Request, limit: int) -> None:
    """Refuse by types and public numbers, before anything is read."""
    schema, cap = request.schema, request.max_rows_per_user
    if not table.typed:
        raise ValueError(
            f"Expected a Parquet or Arrow file for memory_limit, got CSV, whose columns have no types: convert "
            f"{table.path.name} to Parquet first, or leave memory_limit out."
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
            f"Expected memory_limit >= {need} for max_rows_per_user={cap} of {request.width} features, since one "
            "user's rows are held at a time: raise it, or lower max_rows_per_user, or pass None for all rows."
        )


# --- opening ----------------------------------------------------------------------------------------------------------


def _opened(place: Path, table: TableFile, request: Request, limit: int) -> Store:
    """The store, if it is whole and of this request and these files.

    All files are of one folder, even if another one takes its place meanwhile.
    """
    try:
        folder = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return _checked(folder, place, table, request, limit)
        finally:
            os.close(folder)
    except (_Replaced, MemoryError):
        raise
    except Exception:  # whatever a file that was changed leads to
        raise _Replaced(_DAMAGED) from None


def _checked(folder: int, place: Path, table: TableFile, request: Request, limit: int) -> Store:
    with _file(folder, MANIFEST) as file:
        manifest = json.loads(file.read(_LONGEST_MANIFEST))
    made = manifest["store"]
    if manifest["checksum"] != _checksum_of(made):
        raise _Replaced(_DAMAGED)
    if made["format"] != FORMAT:
        raise _Replaced("is of another version")
    if made["request"] != request.record(table) or (request.user_ids and not made["user_ids"]):
        raise _Replaced("is for other columns or options")
    if not _same_sources(table, made["sources"]):
        raise _Replaced(f"is of another version of {table.path.name}")
    n_rows, n_users = (int(made["arrays"][name]["shape"][0]) for name in ("rows", "affected"))
    maps, user_ids = {}, None
    for name, shape in _shapes(n_rows, n_users, request).items():
        facts, kind = made["arrays"][name], _kind(name, request)
        if facts["dtype"] != kind.name or tuple(facts["shape"]) != shape:
            raise _Replaced(_DAMAGED)
        head, count = _header(kind, shape), math.prod(shape)
        with _file(folder, f"{name}.npy") as file:
            if os.fstat(file.fileno()).st_size != len(head) + count * kind.itemsize or file.read(len(head)) != head:
                raise _Replaced(_DAMAGED)
            mapped = _mapped(file, facts["checksum"])
        maps[name] = np.frombuffer(mapped, kind, count, len(head)).reshape(shape)
    offsets = maps["offsets"]  # scipy checks no bounds
    if n_users < 2 or offsets[0] != 0 or offsets[-1] != n_rows or np.any(offsets[1:] < offsets[:-1]):
        raise _Replaced(_DAMAGED)
    if request.user_ids:
        with _file(folder, IDS) as file:
            _mapped(file, made["arrays"]["ids"]["checksum"]).close()
            found = pa.ipc.open_file(file).read_all().column(0).combine_chunks()
        if len(found) != n_users:
            raise _Replaced(_DAMAGED)
        user_ids = _ids_of(found, table.type_of(request.schema.user))
    return Store(place, limit, user_ids, maps)


def _file(folder: int, name: str) -> BinaryIO:
    return open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder), "rb")


def _mapped(file: BinaryIO, checksum: str | None) -> mmap.mmap:
    """The file's bytes, whose checksum must be this one."""
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if checksum != _checksum(mapped):
        raise _Replaced(_DAMAGED)
    return mapped


def _kind(name: str, request: Request) -> np.dtype:
    return request.dtype if name == "rows" else np.dtype(ARRAYS[name])


def _shapes(n_rows: int, n_users: int, request: Request) -> dict[str, tuple[int, ...]]:
    """Of all arrays."""
    return {
        "rows": (n_rows, request.width),
        "targets": (n_rows,),
        "offsets": (n_users + 1,),
        "affected": (n_users,),
    }


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


def _checksum(mapped: mmap.mmap) -> str:
    """A digest of digests of pieces, which several threads read at once."""

    def digest(start: int) -> bytes:
        with memoryview(mapped) as whole, whole[start : start + _PIECE] as piece:
            return hashlib.sha256(piece).digest()

    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        return hashlib.sha256(b"".join(pool.map(digest, range(0, len(mapped), _PIECE)))).hexdigest()


def _checksum_of(record: Any) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _header(kind: np.dtype, shape: tuple[int, ...]) -> bytes:
    """What a .npy file begins with; as long for any number of rows."""
    head = io.BytesIO()
    facts = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(head, facts)
    return head.getvalue()


def sources_of(table: TableFile) -> list[dict[str, Any]]:
    """The files that a table is in, as far as the system tells."""
    found = []
    for path in table.files():
        status = os.stat(path)
        name = path.name if path == table.path else str(path.relative_to(table.path))
        times = {"modified": status.st_mtime_ns, "changed": status.st_ctime_ns, "inode": status.st_ino}
        found.append({"name": name, "size": status.st_size, **times})
    return found


def _same_sources(table: TableFile, known: list[dict[str, Any]]) -> bool:
    """Whether these are the files that a store was made of: untouched since then, or else of the same bytes."""
    now = sources_of(table)
    if [(file["name"], file["size"]) for file in now] != [(file["name"], file["size"]) for file in known]:
        return False
    for path, file, before in zip(table.files(), now, known, strict=True):
        untouched = {key: value for key, value in before.items() if key != "sha256"} == file
        if not untouched and _digest_of(path) != before["sha256"]:
            return False
    return True


def _digest_of(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- making -----------------------------------------------------------------------------------------------------------


def _made(table: TableFile, request: Request, place: Path, limit: int, progress: bool | None) -> Store:
    """Make the store in a folder of another name, open it, and put it in its place."""
    try:
        import duckdb
    except ImportError:
        raise ValueError(
            "Expected duckdb, which sorts tables that are larger than memory: pip install 'userdp[store]', or leave "
            "memory_limit out. Nothing was spent."
        ) from None
    try:
        with _alone(place.parent):
            _clean(place)
            folder = Path(tempfile.mkdtemp(prefix=f".{place.name}{_MAKING}", dir=place.parent))
            alive = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)  # its lock tells others that this one is at work
            fcntl.flock(alive, fcntl.LOCK_EX)
    except OSError as error:
        raise ValueError(f"Expected to write {place}: {error.strerror or 'it failed'}. Choose another place.") from None
    try:
        sources = sources_of(table)
        digests = [_digest_of(path) for path in table.files()]
        with _bar(progress, table) as tell:
            arrays = _sorted_into(folder, duckdb, table, request, limit, tell)
        if sources_of(table) != sources:
            raise ValueError(f"Expected {table.path} to stay as it is while it is read; it changed: try again.")
        sources = [file | {"sha256": digest} for file, digest in zip(sources, digests, strict=True)]
        made = {"format": FORMAT, "request": request.record(table), "sources": sources, "arrays": arrays}
        made["user_ids"] = request.user_ids
        with _new(folder / MANIFEST) as file:
            file.write(json.dumps({"store": made, "checksum": _checksum_of(made)}, indent=1).encode())
        store = _opened(folder, table, request, limit)
        old = folder.with_name(f"{folder.name}.old")  # a name that `_clean` knows
        with _alone(place.parent):
            if place.exists():
                os.rename(place, old)
            os.rename(folder, place)
        shutil.rmtree(old, ignore_errors=True)
        return Store(place, limit, store.user_ids, store._maps)
    except _Replaced:
        raise ValueError(f"Expected what was written to {folder.parent} to be there: check the disk.") from None
    except (duckdb.OutOfMemoryException, MemoryError):
        raise ValueError(
            f"Expected memory_limit={in_bytes(limit)} to suffice to sort rows of {request.width} features, and room on "
            f"the disk of {place.parent}: raise it, or free some. Nothing was spent."
        ) from None
    except (duckdb.Error, OSError, pa.ArrowException):
        if shutil.disk_usage(place.parent).free < 2**27:
            raise ValueError(_no_room(place.parent)) from None
        raise ValueError(broken(table.path)) from None
    finally:
        os.close(alive)
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time, for a moment."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


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
    threads = max(1, min(os.cpu_count() or 1, memory // (256 * 10**6)))  # as many as have room
    settings = {"memory_limit": f"{memory}B", "threads": threads, "temp_directory": str(spill)}
    settings |= {"autoinstall_known_extensions": False, "autoload_known_extensions": False}  # nothing is downloaded
    at_a_time, columns = _rows_at_a_time(limit, request), _columns(table, request)
    failed: list[BaseException] = []  # what stops the reading: duckdb would put it into other words

    def cells() -> Iterator[pa.RecordBatch]:
        try:
            yield from _cells(table, request, columns, at_a_time, tell)
        except BaseException as error:
            failed.append(error)
            raise

    order = ", ".join(name for name in ("id", "lost", "draw", "number") if name in columns.names)
    try:
        with (
            duckdb.connect(":memory:", config=settings) as connection,
            _Writer(folder, request, columns.field("id").type) as writer,
        ):
            connection.register("cells", pa.RecordBatchReader.from_batches(columns, cells()))
            found = connection.sql(f"SELECT * FROM cells ORDER BY {order}").to_arrow_reader(at_a_time)
            while (batch := _next(found)) is not None:
                writer.add(batch)
                tell(1, batch.num_rows)
            del found
            connection.unregister("cells")
            arrays = writer.end()
    except BaseException:
        if failed:
            raise failed[0] from None
        raise
    shutil.rmtree(spill)
    for name, facts in arrays.items():
        path = folder / (IDS if name == "ids" else f"{name}.npy")
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            facts["checksum"] = _checksum(mapped)
    return arrays


def _next(batches: Any) -> pa.RecordBatch | None:
    """What duckdb gives through Arrow, which tells a lack of memory as an OSError."""
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
    table has them.
    """
    features = [(f"x{i}", pa.from_numpy_dtype(request.dtype)) for i in range(request.width)]
    word = pa.uint64() if request.insecure_seed is None else pa.float64()
    draw = [] if request.max_rows_per_user is None else [("draw", word)]
    target = [] if request.schema.target is None else [("target", pa.float64())]
    owner = keys(pa.array([], table.type_of(request.schema.user))).type
    return pa.schema([("id", owner), ("lost", pa.bool_()), *draw, ("number", pa.int64()), *target, *features])


def _cells(
    table: TableFile, request: Request, columns: pa.Schema, at_a_time: int, tell: Callable[[int, int], None]
) -> Iterator[pa.RecordBatch]:
    """The table's cells as numbers, some rows at a time."""
    schema, start = request.schema, 0
    names, drawn = list(dict.fromkeys(schema.columns)), draws(request.insecure_seed)
    for batch in table.batches(names, at_a_time):
        cells = dict(zip(names, batch, strict=True))
        owners, n_rows = keys(cells[schema.user]), len(batch[0])
        if owners.null_count:
            raise ValueError(MISSING_ID)
        lost = np.zeros(n_rows, dtype=bool)
        draw = [] if request.max_rows_per_user is None else [drawn(n_rows)]
        made: list[Any] = [owners, lost, *draw, np.arange(start, start + n_rows)]
        if schema.target is not None:
            made.append(schema.targets(cells[schema.target]).astype(np.float64, copy=False))
            lost |= ~np.isfinite(made[-1])
        with np.errstate(all="ignore"):
            for name in schema.features:
                values = numbers(f"column {name!r}", cells[name]).astype(request.dtype, copy=False)
                if request.fill_missing is not None:
                    values = np.where(np.isnan(values), request.dtype.type(request.fill_missing), values)
                made.append(values)
                lost |= ~np.isfinite(values)
        arrays = [pa.array(values, kind) for values, kind in zip(made, columns.types, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=columns)
        start += n_rows
        tell(0, n_rows)


class _Writer:
    """Sorted rows to files, as they come; of a user with too many the first of the draws, in the table's order.

    Of rows that cannot be used, which are a user's last, nothing is written but who has some.
    """

    def __init__(self, folder: Path, request: Request, ids: pa.DataType) -> None:
        self._request, self._files, self._ids = request, contextlib.ExitStack(), pa.schema([("id", ids)])
        self._last: Any = None  # the last row's user
        # Of each user that came: how many rows can be used, and whether others cannot. The last one may go on.
        self._counts, self._affected = [np.zeros(0, np.int64)], [np.zeros(0, bool)]
        self._n_users = 0
        self._held: list[np.ndarray] = []  # rows, targets, numbers and users that are not written yet
        self._arrays = {n: self._files.enter_context(_new(folder / f"{n}.npy")) for n in ARRAYS}
        for name in ("rows", "targets"):  # whose headers are written again in the end
            shape = _shapes(0, 0, self._request)[name]
            self._arrays[name].write(_header(_kind(name, self._request), shape))
        if self._request.user_ids:
            file = self._files.enter_context(_new(folder / IDS))
            self._owners = self._files.enter_context(pa.ipc.new_file(file, self._ids))

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *error: Any) -> None:
        self._files.__exit__(*error)

    def add(self, batch: pa.RecordBatch) -> None:
        """Take in rows, which come sorted."""
        request, ids, cap = self._request, batch.column("id"), self._request.max_rows_per_user
        starts = changes(encode(ids)[0])
        lengths = np.diff(starts, append=batch.num_rows)
        lost = batch.column("lost").to_numpy(zero_copy_only=False)
        counts = np.add.reduceat((~lost).astype(np.int64), starts)
        affected = np.logical_or.reduceat(lost, starts)
        goes_on = self._n_users > 0 and ids[0].as_py() == self._last
        users = np.repeat(np.arange(len(starts)) + self._n_users - goes_on, lengths)
        ranks = np.arange(batch.num_rows) - np.repeat(starts, lengths)  # lost rows come last
        if goes_on:
            ranks[: lengths[0]] += self._counts[-1][-1]
            self._counts[-1][-1] += counts[0]
            self._affected[-1][-1] |= affected[0]
        if len(starts) > goes_on:
            self._counts.append(counts[goes_on:])
            self._affected.append(affected[goes_on:])
        self._last, self._n_users = ids[-1].as_py(), self._n_users + len(starts) - goes_on
        if request.user_ids:
            self._owners.write_batch(pa.record_batch([ids.take(pa.array(starts[goes_on:]))], schema=self._ids))
        rows = np.empty((batch.num_rows, request.width), request.dtype)
        as_rows([batch.column(f"x{i}").to_numpy() for i in range(request.width)], rows)
        has_target = request.schema.target is not None
        targets = batch.column("target").to_numpy() if has_target else np.full(len(rows), np.nan)
        kept = ~lost if cap is None else ~lost & (ranks < cap)
        found = [array[kept] for array in (rows, targets, batch.column("number").to_numpy(), users)]
        self._held = [np.concatenate(pair) for pair in zip(self._held, found, strict=True)] if self._held else found
        # Without a cap rows are in the table's order; else those of the last user wait for more.
        self._write(len(self._held[3]) if cap is None else int(np.searchsorted(self._held[3], self._n_users - 1)))

    def end(self) -> dict[str, Any]:
        """The arrays' types and shapes, once all rows are written."""
        if self._n_users == 0:
            raise ValueError(NO_ROWS)
        check_users(self._n_users)
        self._write(len(self._held[3]))
        counts, cap = np.concatenate(self._counts), self._request.max_rows_per_user
        offsets = np.concatenate([[0], np.cumsum(counts if cap is None else np.minimum(counts, cap))]).astype(np.int64)
        whole = {"offsets": offsets, "affected": np.concatenate(self._affected)}
        facts: dict[str, Any] = {"ids": {}} if self._request.user_ids else {}
        for name, shape in _shapes(int(offsets[-1]), self._n_users, self._request).items():
            file, kind = self._arrays[name], _kind(name, self._request)
            file.seek(0)
            file.write(_header(kind, shape))
            if name in whole:
                file.write(whole[name].data)
            facts[name] = {"dtype": kind.name, "shape": shape}
        return facts

    def _write(self, n_rows: int) -> None:
        """The first of the rows that are held, of each user in the table's order."""
        rows, targets, numbers, users = (array[:n_rows] for array in self._held)
        order = np.lexsort((numbers, users))
        self._arrays["rows"].write(rows[order].data)
        self._arrays["targets"].write(targets[order].data)
        self._held = [array[n_rows:] for array in self._held]


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
