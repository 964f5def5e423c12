"""How partitions on Ray get their users: loaders that can run again, and give the same users and rows each time.

Files may change between two loads, and who is in which partition with them. So what was loaded has a mark, of the users
in their order and of the files as the system tells them: the driver keeps it, and no answer comes from other data.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import pickle
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import ray

from userdp.data.parts import part_by_row_groups, part_by_users, users_in_order
from userdp.data.schema import Schema, texts
from userdp.data.store_files import sources_of
from userdp.data.tables import open_parquet
from userdp.data.users import UserData

STORED = ("rows", "targets", "offsets", "affected")  # arrays of a store


MARK_BYTES = 32  # of `Loaded.mark`
_MEANWHILE = "Expected files that stay as they are while partitions load: they changed meanwhile."

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
        told = repr((self.n_users, self.digest, self.ends, self.sources))
        return hashlib.sha256(told.encode()).digest()


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
            name: np.asarray(np.load(f"{self.folder}/{name}.npy", mmap_mode="r")) for name in STORED
        }
        if self._sources() != before:
            raise ValueError(_MEANWHILE)
        return Loaded.of(UserData(**arrays, **self.facts), before)

    def _sources(self) -> Sources:
        told = [(name, Path(self.folder, f"{name}.npy").stat()) for name in STORED]
        return tuple((name, file.st_size, file.st_mtime_ns) for name, file in told)


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
        told = sources_of(open_parquet(self.path))
        return tuple((file["name"], file["size"], file["modified"]) for file in told)
