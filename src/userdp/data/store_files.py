"""What a store is: its files, what it was made for, and how it is opened; every byte is checked before it is used."""

from __future__ import annotations

import hashlib
import io
import json
import math
import mmap
import os
import re
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from userdp.data.schema import TEXT, Schema, declared, texts
from userdp.data.tables import TableFile

FORMAT = 3
LEAST_MEMORY = 64 * 10**6  # duckdb itself takes about 32 MB
MANIFEST, IDS, SPILL = "manifest.json", "ids.arrow", "spill"
ARRAYS = ("rows", "targets", "offsets", "affected")
FILES = {MANIFEST, IDS, *(f"{name}.npy" for name in ARRAYS)}
_LONGEST_MANIFEST = 2**26
_PIECE = 2**26  # bytes that are checked at a time
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY_UNITS = {"KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
_BYTES_PER_USER = 64  # of orders and draws of users


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
    _maps: dict[str, tuple[mmap.mmap, np.ndarray]]

    def array(self, name: str) -> np.ndarray:
        """Rows, targets, offsets or who lost rows: of the file, read when they are looked at."""
        return self._maps[name][1]

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
            raise ValueError(no_room(self.path.parent)) from None


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


def no_room(where: Path) -> str:
    return f"Expected more room on the disk of {where}: free some, or choose another place."


class Replaced(Exception):
    """Why a store cannot be used."""


_DAMAGED = "is damaged"


class Folder:
    """A store's folder, which stays the same folder if another takes its place meanwhile."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Folder:
        try:
            self._handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            raise Replaced(_DAMAGED) from None
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)

    def open(self, name: str) -> BinaryIO:
        return open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=self._handle), "rb")

    def opened(self, table: TableFile, request: Request, limit: int) -> Store:
        """The store, if it is whole and of this request and these files."""
        try:
            return self._opened(table, request, limit)
        except Replaced:
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
            raise Replaced(_DAMAGED) from None

    def _opened(self, table: TableFile, request: Request, limit: int) -> Store:
        with self.open(MANIFEST) as file:
            manifest = json.loads(file.read(_LONGEST_MANIFEST))
        made = manifest["store"]
        if manifest["checksum"] != checksum_of(made):
            raise Replaced(_DAMAGED)
        if made["format"] != FORMAT:
            raise Replaced("is of another version")
        if made["request"] != request.record(table) or (request.user_ids and not made["user_ids"]):
            raise Replaced("is for other columns or options")
        if not _same_sources(table, made["sources"]):
            raise Replaced(f"is of another version of {table.path.name}")
        maps = {name: self._mapped(name, made["arrays"][name]) for name in ARRAYS}
        shapes = [maps[name][1].shape for name in ARRAYS]
        kinds = [maps[name][1].dtype for name in ARRAYS]
        n_rows, n_users = shapes[0][0], shapes[2][0] - 1
        if shapes != [(n_rows, request.width), (n_rows,), (n_users + 1,), (n_users,)] or n_users < 2:
            raise Replaced(_DAMAGED)
        if kinds != [request.dtype, *(np.dtype(kind) for kind in (np.float64, np.int64, np.bool_))]:
            raise Replaced(_DAMAGED)
        if not _rises(maps["offsets"][1], n_rows):
            raise Replaced(_DAMAGED)
        found = None
        if request.user_ids:
            need_users(n_users, limit)
            found = self._ids(made["arrays"]["ids"], n_users, table.type_of(request.schema.user))
        return Store(self.path, limit, found, maps)

    def _mapped(self, name: str, facts: dict[str, Any]) -> tuple[mmap.mmap, np.ndarray]:
        """An array in a file that has the size and checksum that the manifest tells."""
        if facts["dtype"] not in ("float32", "float64", "int64", "bool"):
            raise Replaced(_DAMAGED)
        kind, shape = np.dtype(facts["dtype"]), tuple(facts["shape"])
        if not all(type(size) is int and 0 <= size < 2**60 for size in shape):
            raise Replaced(_DAMAGED)
        head, count = header(kind, shape), math.prod(shape)
        with self.open(f"{name}.npy") as file:
            if os.fstat(file.fileno()).st_size != len(head) + count * kind.itemsize or file.read(len(head)) != head:
                raise Replaced(_DAMAGED)
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if checksum(mapped) != facts["checksum"]:
            raise Replaced(_DAMAGED)
        return mapped, np.frombuffer(mapped, kind, count, len(head)).reshape(shape)

    def _ids(self, facts: dict[str, Any], n_users: int, kind: pa.DataType) -> tuple[Any, ...]:
        with self.open(IDS) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            if checksum(mapped) != facts["checksum"]:
                raise Replaced(_DAMAGED)
            with pa.ipc.open_file(file) as reader:
                table = reader.read_all()
        if len(table) != n_users:
            raise Replaced(_DAMAGED)
        return _ids_of(table.column(0).combine_chunks(), kind)


def _rises(offsets: np.ndarray, n_rows: int) -> bool:
    """Whether offsets rise from 0 to the number of rows: scipy checks no bounds."""
    return bool(offsets[0] == 0 and offsets[-1] == n_rows and np.all(offsets[1:] >= offsets[:-1]))


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


def checksum(mapped: mmap.mmap) -> str:
    """A digest of digests of pieces, which several threads read at once."""

    def digest(start: int) -> bytes:
        with memoryview(mapped) as whole, whole[start : start + _PIECE] as piece:
            return hashlib.sha256(piece).digest()

    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        return hashlib.sha256(b"".join(pool.map(digest, range(0, len(mapped), _PIECE)))).hexdigest()


def checksum_of(record: Any) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def header(kind: np.dtype, shape: tuple[int, ...]) -> bytes:
    """What a .npy file begins with; as long for any number of rows."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        head, {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": shape}
    )
    return head.getvalue()


def sources_of(table: TableFile) -> list[dict[str, Any]]:
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
    now = sources_of(table)
    if [(file["name"], file["size"]) for file in now] != [(file["name"], file["size"]) for file in known]:
        return False
    for path, file, before in zip(table.files(), now, known, strict=True):
        untouched = {key: value for key, value in before.items() if key != "sha256"} == file
        if not untouched and digest_of(path) != before["sha256"]:
            return False
    return True


def digest_of(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def need_users(n_users: int, limit: int) -> None:
    """Refuse a limit that is too small for what is held of every user; the number of users is public."""
    if n_users * _BYTES_PER_USER > limit:
        raise ValueError(
            f"Expected memory_limit >= {in_bytes(n_users * _BYTES_PER_USER)} for {n_users} users, whose orders are "
            "held in memory: raise it. Nothing was spent."
        )
