"""How partitions on Ray get their users: loaders that can run again, and give the same users and rows each time.

Files may change between two loads, and who is in which partition with them. So what was loaded has a mark, of the users
in their order and of the files as the system tells them: the driver keeps it, and no answer comes from other data.
Errors speak of files, columns and the order of rows, never of a cell.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import pickle
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import ray

from userdp.data.grouping import Groups
from userdp.data.schema import Schema, decoded, ids, texts
from userdp.data.store import ARRAYS, sources_of
from userdp.data.tables import broken, open_parquet
from userdp.data.users import UserData

MARK_BYTES = 32  # of `Loaded.mark`
_ROWS = 32768  # that are read at a time
_MEANWHILE = "Expected files that stay as they are while partitions load: they changed meanwhile."
_UNSORTED = (
    "Expected rows that are sorted by user, through all files in the order of their names; they are not: sort them, or "
    "leave out sorted_by_user."
)

Sources = tuple[tuple[str, int, int], ...]  # names of files, their sizes, and when they were last modified, in ns


class Loaded(NamedTuple):
    """Users, and what they are known by.

    n_users: how many there are; data of fewer than two is filled up with users without rows, who come last;
    digest: their fingerprint, of files with ids; ends: of sorted files, the ids of the first and the last one;
    everyone: the users of all partitions, where every process maps the same arrays.
    """

    data: UserData
    n_users: int
    digest: str
    ends: tuple[Any, ...] = ()
    sources: Sources = ()
    everyone: UserData | None = None

    @classmethod
    def of(cls, data: UserData, sources: Sources = ()) -> Loaded:
        return cls(data, data.n_users, data.fingerprint(), (), sources)

    @property
    def mark(self) -> bytes:
        """By which a partition knows that it loaded again what it had."""
        return hashlib.sha256(repr((self.n_users, self.digest, self.ends, self.sources)).encode()).digest()


class Loader(Protocol):
    """How a partition gets its users: picklable, and gives the same users and rows each time."""

    def load(self) -> Loaded: ...


class SharedMemory:
    """Users in memory that processes of this machine share; neither on a disk nor in Ray's object store.

    Their arrays are copied once into a file that exists in memory only, and vanishes with this process. Others map it.
    """

    def __init__(self, data: UserData) -> None:
        buffers: list[pickle.PickleBuffer] = []
        self._head = pickle.dumps(data, protocol=5, buffer_callback=buffers.append)
        number = os.memfd_create("userdp", os.MFD_CLOEXEC)
        self._file = f"/proc/{os.getpid()}/fd/{number}"
        self._places: list[tuple[int, int]] = []
        with os.fdopen(number, "wb", closefd=False) as file:
            for buffer in buffers:
                file.seek(-(-file.tell() // 64) * 64)
                self._places.append((file.tell(), file.write(buffer.raw())))
            file.write(b"\0")
        self._closed = weakref.finalize(self, os.close, number)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_closed"}

    def load(self) -> Loaded:
        with open(self._file, "rb") as file:
            mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        data: UserData = pickle.loads(self._head, buffers=[mapped[at : at + size] for at, size in self._places])
        return Loaded.of(data)


@dataclass(frozen=True)
class Part:
    """Some of the users that another loader maps."""

    whole: Loader
    first: int
    last: int

    def load(self) -> Loaded:
        whole = self.whole.load()
        return Loaded.of(whole.data.part(self.first, self.last), whole.sources)._replace(everyone=whole.data)


@dataclass(frozen=True)
class Shipped:
    """Users in Ray's object store, put there by the driver; in a list, so that Ray does not look into it."""

    references: list[Any]

    def load(self) -> Loaded:
        return Loaded.of(ray.get(self.references[0]))


@dataclass(frozen=True)
class StoredUsers:
    """Users of a store, which all nodes can read at the same path: its arrays are mapped, not copied."""

    folder: str
    facts: Mapping[str, Any]

    def load(self) -> Loaded:
        before = self._sources()
        arrays: dict[str, Any] = {
            name: np.asarray(np.load(f"{self.folder}/{name}.npy", mmap_mode="r")) for name in ARRAYS
        }
        if self._sources() != before:
            raise ValueError(_MEANWHILE)
        return Loaded.of(UserData(**arrays, **self.facts), before)

    def _sources(self) -> Sources:
        files = [(name, Path(self.folder, f"{name}.npy").stat()) for name in ARRAYS]
        return tuple((name, file.st_size, file.st_mtime_ns) for name, file in files)


@dataclass(frozen=True)
class ParquetUsers:
    """One part of the users of Parquet files, which all nodes can read at the same path.

    Users are numbered by first appearance, as in `UserData.from_parquet`, and parts are ranges of these numbers: each
    part reads the column of users, and then keeps its own rows. Of files that are sorted by user a part reads its row
    groups only, and a row group beyond.
    """

    path: str
    schema: Schema
    options: Mapping[str, Any]
    part: int
    n_parts: int
    sorted_by_user: bool = False

    def load(self) -> Loaded:
        before = self._sources()
        read = part_by_row_groups if self.sorted_by_user else part_by_users
        table = read(self.path, self.schema, self.part, self.n_parts)
        with_ids, ends = {**self.options, "keep_user_ids": True}, []
        if self.sorted_by_user:
            data, n_users = users_in_order(table, self.schema, with_ids)
            ends = texts(table[self.schema.user].take([0, len(table) - 1])) if len(table) else []
        else:
            data = UserData.from_schema(table, self.schema, **with_ids)
            n_users = data.n_users
        if self._sources() != before:
            raise ValueError(_MEANWHILE)
        kept = data if self.options.get("keep_user_ids") else replace(data, user_ids=None)
        return Loaded(kept, n_users, data.fingerprint(), tuple(ends), before)

    def _sources(self) -> Sources:
        files = sources_of(open_parquet(self.path))
        return tuple((file["name"], file["size"], file["modified"]) for file in files)


def ranges(n_users: int, n_parts: int) -> list[int]:
    """Where contiguous near-equal parts begin, and the end."""
    return [n_users * part // n_parts for part in range(n_parts + 1)]


def part_by_users(path: str | os.PathLike[str], schema: Schema, part: int, n_parts: int) -> pa.Table:
    """The rows of one of near-equal ranges of users, who are numbered by first appearance, in the file's order."""
    table = open_parquet(path)
    owners = ids(table[schema.user])
    groups = Groups.make(owners, len(owners))
    first, last = ranges(len(groups.offsets) - 1, n_parts)[part : part + 2]
    if last - first < 2:
        raise ValueError(f"Expected at least 2 users in each of {n_parts} partitions: use fewer of them.")
    own = slice(groups.offsets[first], groups.offsets[last])
    mine = np.zeros(len(owners), dtype=bool)
    mine[own if groups.order is None else groups.order[own]] = True
    kept, start = [], 0
    for columns in table.batches(schema.columns, _ROWS):
        batch = pa.RecordBatch.from_arrays(columns, schema.columns)
        kept.append(batch.filter(pa.array(mine[start : start + len(batch)])))
        start += len(batch)
    if start != len(mine):
        raise ValueError("Expected columns to be as long as the user column: the file changed meanwhile.")
    return pa.Table.from_batches(kept)


def part_by_row_groups(path: str | os.PathLike[str], schema: Schema, part: int, n_parts: int) -> pa.Table:
    """The rows of users who begin in one of near-equal ranges of row groups, of files that are sorted by user.

    There may be one such user or none, where another one has many rows: that is no error, or one person would make it.
    """
    table = open_parquet(path)  # says what is wrong with a path

    def owners_of(rows: pa.Table) -> pa.Array:
        cells = decoded(ids(rows[schema.user]))
        return cells.combine_chunks() if isinstance(cells, pa.ChunkedArray) else cells

    def leading(rows: pa.Table, user: pa.Scalar | None) -> int:
        """How many of the first rows are this user's."""
        if user is None or not user.is_valid:
            return 0
        first = pc.index(pc.invert(pc.equal(owners_of(rows), user)), True).as_py()
        return len(rows) if first < 0 else int(first)

    def rows_of(group: tuple[pq.ParquetFile, int]) -> pa.Table:
        return group[0].read_row_group(group[1], columns=schema.columns).select(schema.columns)

    try:
        files = [pq.ParquetFile(file) for file in sorted(table.files(), key=os.fspath)]
        groups = [(file, number) for file in files for number in range(file.num_row_groups)]
        first, last = ranges(len(groups), n_parts)[part : part + 2]
        before = None  # the user of the row before: their rows are another part's
        for file, number in reversed(groups[:first]):
            owners = owners_of(file.read_row_group(number, columns=[schema.user]))
            if len(owners):
                before = owners[-1]
                break
        empty = files[0].schema_arrow.empty_table().select(schema.columns)
        rows = pa.concat_tables(map(rows_of, groups[first:last])) if first < last else empty
        rows = rows.slice(leading(rows, before))
        if len(rows) == 0:
            return rows
        of_last, end = [rows], owners_of(rows)[-1]  # whose rows may go on in the next row groups
        for group in groups[last:]:
            more = rows_of(group)
            same = leading(more, end)
            of_last.append(more.slice(0, same))
            if same < len(more):
                break
    except (pa.ArrowException, OSError):
        raise ValueError(broken(Path(path))) from None
    rows = pa.concat_tables(of_last)
    owners = owners_of(rows)
    if owners.null_count == 0 and not pc.all(pc.less_equal(owners[:-1], owners[1:]), min_count=0).as_py():
        raise ValueError(_UNSORTED)
    return rows


def users_in_order(table: pa.Table, schema: Schema, options: Mapping[str, Any]) -> tuple[UserData, int]:
    """The users of a sorted part, and how many they are; filled up to two with users without rows, who come last."""
    owners = decoded(ids(table[schema.user]))
    if owners.null_count or (len(owners) and not owners[0].equals(owners[len(owners) - 1])):
        data = UserData.from_schema(table, schema, **options)
        return data, data.n_users
    n_users, made_up = min(1, len(owners)), [1, 2]  # two more users, of rows without cells, who are left out again
    columns = [pa.chunked_array([*table[name].chunks, pa.nulls(2, table[name].type)]) for name in table.column_names]
    columns[table.column_names.index(schema.user)] = pa.chunked_array([[0] * len(owners) + made_up])
    filled = UserData.from_schema(pa.table(columns, table.column_names), schema, **options)
    own_ids = tuple(texts(owners.slice(0, n_users).combine_chunks()))
    return replace(filled.taken(np.arange(n_users)), user_ids=own_ids), n_users


def check_order(ends: list[tuple[object, object]]) -> None:
    """Refuse parts of which one does not begin with a later user than the one before it ends with.

    Ids are in the order that Arrow sorts a part's in: text by its bytes, which need not be UTF-8.
    """
    for pair in pairwise(ends):
        last, first = (
            user.encode(errors="surrogateescape") if isinstance(user, str) else user
            for user in (pair[0][1], pair[1][0])
        )
        if not last < first:  # type: ignore[operator]  # ids of one column
            raise ValueError(_UNSORTED)
