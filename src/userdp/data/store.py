"""Stores: the rows of a table that is larger than memory, sorted by user once into a folder of memory-mapped arrays.

    rows.npy       (n_rows, columns), float32 or float64
    targets.npy    (n_rows,), float64
    offsets.npy    (n_users + 1,), int64: user u owns rows offsets[u] .. offsets[u + 1]
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
import hashlib
import io
import json
import math
import mmap
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from userdp.data.encoding import encode
from userdp.data.grouping import MISSING_ID, NO_ROWS, as_rows, changes, check_users, draws, keys
from userdp.data.schema import TEXT, Schema, declared, numbers, texts
from userdp.data.tables import TableFile, broken

FORMAT = 2
SUFFIX = ".userdp-store"
LEAST_MEMORY = 64 * 10**6  # duckdb itself takes about 32 MB
_MANIFEST, _IDS, _SPILL = "manifest.json", "ids.arrow", "spill"
_MAKING = ".making-"  # in the name of a folder that is to become a store
_ARRAYS = ("rows", "targets", "offsets")
_FILES = {_MANIFEST, _IDS, *(f"{name}.npy" for name in _ARRAYS)}
_LONGEST_MANIFEST = 2**26
_PIECE = 2**26  # bytes that are checked at a time
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY_UNITS = {"KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
_BYTES_PER_ROW = 64  # beside rows: ids, targets, and what sorting takes, where a table is read into memory
_SCRATCH_BYTES = 24  # per row: two arrays of lengths, and scaled targets
_BYTES_PER_USER = 64  # of orders and draws of users


class StoreWarning(UserWarning):
    """A store is made anew, because its source changed or it is damaged."""


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
        names = [name for name in (schema.user, schema.target, *schema.features) if name is not None]
        record = {
            "user": schema.user,
            "features": list(schema.features),
            "target": schema.target,
            "classes": None if schema.classes is None else list(schema.classes),
            "types": [str(table.type_of(name)) for name in names],
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
    _maps: dict[str, tuple[mmap.mmap, np.ndarray]]

    def array(self, name: str) -> np.ndarray:
        """Rows, targets or offsets: of the file, read when they are looked at."""
        return self._maps[name][1]

    def scratch(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> np.ndarray:
        """An array beside the rows, in a file without a name: it takes no memory, and nothing is left of it."""
        kind = np.dtype(dtype)
        size = math.prod(shape) * kind.itemsize
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
    if isinstance(limit, str):
        found = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,15})?)\s*([KMGT]?I?)B?\s*", limit.upper())
        unit = None if found is None else (_UNITS | _BINARY_UNITS).get(found[2])
        size = 0 if found is None or unit is None else int(float(found[1]) * unit)
    else:
        size = limit if isinstance(limit, int) and not isinstance(limit, bool) else 0
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
    if place.exists():
        try:
            with _Folder(place) as folder:
                return _with_room(folder.opened(table, request, limit))
        except _Replaced as error:
            reason = str(error)
        if not place.is_dir() or not set(os.listdir(place)) <= _FILES:
            raise ValueError(f"Expected a store, or nothing, at {place}, found something else: choose another place.")
        tell(f"The store {place} {reason}: it is made anew.")
    return _with_room(_made(table, request, place, limit, progress))


def _with_room(store: Store) -> Store:
    """The store, if there is room for what is computed of each row: before anything is charged, not in the midst."""
    if shutil.disk_usage(store.path.parent).free < _SCRATCH_BYTES * len(store.array("rows")):
        raise ValueError(_no_room(store.path.parent) + " Nothing was spent.")
    return store


class _Replaced(Exception):
    """Why a store cannot be used."""


_DAMAGED = "is damaged"


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


# --- opening ----------------------------------------------------------------------------------------------------------


class _Folder:
    """A store's folder, which stays the same folder if another takes its place meanwhile."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> _Folder:
        try:
            self._handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            raise _Replaced(_DAMAGED) from None
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)

    def open(self, name: str) -> BinaryIO:
        return open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=self._handle), "rb")

    def opened(self, table: TableFile, request: Request, limit: int) -> Store:
        """The store, if it is whole and of this request and these files."""
        try:
            return self._opened(table, request, limit)
        except _Replaced:
            raise
        except (
            OSError,
            pa.ArrowException,
            ArithmeticError,
            AttributeError,
            LookupError,
            TypeError,
            ValueError,
            RecursionError,
        ):
            raise _Replaced(_DAMAGED) from None

    def _opened(self, table: TableFile, request: Request, limit: int) -> Store:
        with self.open(_MANIFEST) as file:
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
        maps = {name: self._mapped(name, made["arrays"][name]) for name in _ARRAYS}
        shapes = [maps[name][1].shape for name in _ARRAYS]
        kinds = [maps[name][1].dtype for name in _ARRAYS]
        n_rows, n_users = shapes[0][0], shapes[2][0] - 1
        if shapes != [(n_rows, request.width), (n_rows,), (n_users + 1,)] or n_users < 2:
            raise _Replaced(_DAMAGED)
        if kinds != [request.dtype, np.dtype(np.float64), np.dtype(np.int64)] or not _rises(maps["offsets"][1], n_rows):
            raise _Replaced(_DAMAGED)
        found = None
        if request.user_ids:
            _need_users(n_users, limit)
            found = self._ids(made["arrays"]["ids"], n_users, table.type_of(request.schema.user))
        return Store(self.path, limit, found, maps)

    def _mapped(self, name: str, facts: dict[str, Any]) -> tuple[mmap.mmap, np.ndarray]:
        """An array in a file that has the size and checksum that the manifest tells."""
        if facts["dtype"] not in ("float32", "float64", "int64"):
            raise _Replaced(_DAMAGED)
        kind, shape = np.dtype(facts["dtype"]), tuple(facts["shape"])
        if not all(type(size) is int and 0 < size < 2**60 for size in shape):
            raise _Replaced(_DAMAGED)
        head, count = _header(kind, shape), math.prod(shape)
        with self.open(f"{name}.npy") as file:
            if os.fstat(file.fileno()).st_size != len(head) + count * kind.itemsize or file.read(len(head)) != head:
                raise _Replaced(_DAMAGED)
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if _checksum(mapped) != facts["checksum"]:
            raise _Replaced(_DAMAGED)
        return mapped, np.frombuffer(mapped, kind, count, len(head)).reshape(shape)

    def _ids(self, facts: dict[str, Any], n_users: int, kind: pa.DataType) -> tuple[Any, ...]:
        with self.open(_IDS) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            if _checksum(mapped) != facts["checksum"]:
                raise _Replaced(_DAMAGED)
            with pa.ipc.open_file(file) as reader:
                table = reader.read_all()
        if len(table) != n_users:
            raise _Replaced(_DAMAGED)
        return _ids_of(table.column(0).combine_chunks(), kind)


def _rises(offsets: np.ndarray, n_rows: int) -> bool:
    """Whether offsets rise from 0 to the number of rows: kernels check no bounds."""
    return bool(offsets[0] == 0 and offsets[-1] == n_rows and np.all(offsets[1:] > offsets[:-1]))


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
    np.lib.format.write_array_header_1_0(
        head, {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": shape}
    )
    return head.getvalue()


def _sources(table: TableFile) -> list[dict[str, Any]]:
    """The files that a table is in, as far as the system tells."""
    found = []
    for path in table.files():
        told = os.stat(path)
        name = path.name if path == table.path else str(path.relative_to(table.path))
        times = {"modified": told.st_mtime_ns, "changed": told.st_ctime_ns, "inode": told.st_ino}
        found.append({"name": name, "size": told.st_size, **times})
    return found


def _same_sources(table: TableFile, known: list[dict[str, Any]]) -> bool:
    """Whether these are the files that a store was made of: untouched since then, or else of the same bytes."""
    now = _sources(table)
    if [(file["name"], file["size"]) for file in now] != [(file["name"], file["size"]) for file in known]:
        return False
    for path, file, before in zip(table.files(), now, known, strict=True):
        untouched = {key: value for key, value in before.items() if key != "sha256"} == file
        if not untouched and _digest(path) != before["sha256"]:
            return False
    return True


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _need_users(n_users: int, limit: int) -> None:
    """Refuse a limit that is too small for what is held of every user; the number of users is public."""
    if n_users * _BYTES_PER_USER > limit:
        raise ValueError(
            f"Expected memory_limit >= {in_bytes(n_users * _BYTES_PER_USER)} for {n_users} users, whose orders are "
            "held in memory: raise it. Nothing was spent."
        )


# --- making -----------------------------------------------------------------------------------------------------------


def _made(table: TableFile, request: Request, place: Path, limit: int, progress: bool | None) -> Store:
    """Make the store in a folder of another name, open it, and put it in its place."""
    duckdb = _duckdb()
    try:
        folder, alive = _begun(place)
    except OSError as error:
        raise ValueError(f"Expected to write {place}: {error.strerror or 'it failed'}. Choose another place.") from None
    try:
        sources = _sources(table)
        digests = [_digest(path) for path in table.files()]
        with _bar(progress, table) as tell:
            arrays = _sorted_into(folder, duckdb, table, request, limit, tell)
        if _sources(table) != sources:
            raise ValueError(f"Expected {table.path} to stay as it is while it is read; it changed: try again.")
        sources = [file | {"sha256": digest} for file, digest in zip(sources, digests, strict=True)]
        made = {"format": FORMAT, "request": request.record(table), "sources": sources, "arrays": arrays}
        made["user_ids"] = request.user_ids
        with _new(folder / _MANIFEST) as file:
            file.write(json.dumps({"store": made, "checksum": _checksum_of(made)}, indent=1).encode())
        with _Folder(folder) as written:
            store = written.opened(table, request, limit)
        _put(folder, place)
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


def _duckdb() -> Any:
    try:
        import duckdb
    except ImportError:
        raise ValueError(
            "Expected duckdb, which sorts tables that are larger than memory: pip install 'userdp[store]', or leave "
            "memory_limit out. Nothing was spent."
        ) from None
    return duckdb


def _no_room(where: Path) -> str:
    return f"Expected more room on the disk of {where}: free some, or choose another place."


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
                    if set(os.listdir(folder)) <= _FILES | {_SPILL}:
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
    spill = folder / _SPILL
    spill.mkdir()
    memory = max(limit // 2, limit - 128 * 10**6)
    settings = {"memory_limit": f"{memory}B", "threads": _threads(memory), "temp_directory": str(spill)}
    settings |= {"autoinstall_known_extensions": False, "autoload_known_extensions": False}  # nothing is downloaded
    at_a_time = _rows_at_a_time(limit, request)
    failed: list[BaseException] = []
    batches = _noticed(_cells(table, request, at_a_time, tell), failed)
    order = ", ".join(name for name in ("id", "draw", "number") if name in _columns(table, request).names)
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
        path = folder / (_IDS if name == "ids" else f"{name}.npy")
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            facts["checksum"] = _checksum(mapped)
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
    """What is sorted: by id, then by a random word if some rows are dropped, then as the table has them."""
    features = [(f"x{i}", pa.from_numpy_dtype(request.dtype)) for i in range(len(request.schema.features))]
    word = pa.uint64() if request.insecure_seed is None else pa.float64()
    draw = [] if request.max_rows_per_user is None else [("draw", word)]
    target = [] if request.schema.target is None else [("target", pa.float64())]
    owner = keys(_empty(table, request.schema.user)).type
    return pa.schema([("id", owner), *draw, ("number", pa.int64()), *target, *features])


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
        made: list[Any] = [found, np.arange(start, start + n_rows)]
        if request.max_rows_per_user is not None:
            made.insert(1, drawn(n_rows))
        if schema.target is not None:
            made.append(schema.targets(cells[schema.target]).astype(np.float64, copy=False))
        with np.errstate(all="ignore"):
            for name, reader in zip(schema.features, readers, strict=True):
                values = reader(cells[name]).astype(request.dtype, copy=False)
                if request.fill_missing is not None:
                    values = np.where(np.isnan(values), request.dtype.type(request.fill_missing), values)
                made.append(values)
        yield pa.RecordBatch.from_arrays(
            [pa.array(one, kind) for one, kind in zip(made, columns.types, strict=True)], schema=columns
        )
        start += n_rows
        tell(0, n_rows)


class _Writer:
    """Sorted rows to files, as they come; of a user with too many the first of the draws, in the table's order."""

    def __init__(self, folder: Path, request: Request, ids: pa.DataType) -> None:
        self._folder, self._request, self._files = folder, request, contextlib.ExitStack()
        self._kinds = {"rows": request.dtype, "targets": np.dtype(np.float64), "offsets": np.dtype(np.int64)}
        self._ids = pa.schema([("id", ids)])
        self._last: Any = None  # the last row's user
        self._count, self._n_users, self._end = 0, 0, 0  # rows of this user, users, and rows that are kept of others
        self._held: list[tuple[np.ndarray, ...]] = []  # this user's rows, if there is a cap

    def __enter__(self) -> _Writer:
        self._arrays = {n: self._files.enter_context(_new(self._folder / f"{n}.npy")) for n in _ARRAYS}
        for name, file in self._arrays.items():
            file.write(_header(self._kinds[name], self._shape(name)))
        self._arrays["offsets"].write(np.zeros(1, np.int64).data)
        if self._request.user_ids:
            file = self._files.enter_context(_new(self._folder / _IDS))
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
            self._close_users(np.array([self._count]))
        ranks = np.arange(n_rows) - np.repeat(starts, lengths)
        ranks[:first] += before
        lengths[0] += before
        self._close_users(lengths[:-1])
        self._last, self._count, self._n_users = (
            ids[-1].as_py(),
            int(lengths[-1]),
            self._n_users + len(starts) - goes_on,
        )
        if self._request.user_ids:
            self._owners.write_batch(pa.record_batch([ids.take(pa.array(starts[goes_on:]))], schema=self._ids))
        rows, targets = self._block(batch)
        if cap is None:
            self._write(rows, targets)
            return
        number, kept = batch.column("number").to_numpy(), ranks < cap

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
        self._close_users(np.array([self._count]))
        self._write_held()
        for name, file in self._arrays.items():
            file.seek(0)
            file.write(_header(self._kinds[name], self._shape(name)))
        facts: dict[str, Any] = {n: {"dtype": self._kinds[n].name, "shape": self._shape(n)} for n in _ARRAYS}
        return facts | ({"ids": {}} if self._request.user_ids else {})

    def _shape(self, name: str) -> tuple[int, ...]:
        shapes = {"rows": (self._end, self._request.width), "targets": (self._end,)}
        return shapes.get(name, (self._n_users + 1,))

    def _block(self, batch: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
        """Rows and targets of a batch."""
        request = self._request
        rows = np.empty((batch.num_rows, request.width), request.dtype)
        as_rows([batch.column(f"x{i}").to_numpy() for i in range(len(request.schema.features))], rows)
        if request.schema.target is None:
            return rows, np.full(len(rows), np.nan)
        return rows, batch.column("target").to_numpy()

    def _close_users(self, lengths: np.ndarray) -> None:
        """Users of whom all rows were seen."""
        if len(lengths):
            cap = self._request.max_rows_per_user
            ends = self._end + np.cumsum(lengths if cap is None else np.minimum(lengths, cap), dtype=np.int64)
            self._arrays["offsets"].write(ends.data)
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
