"""How partitions on Ray get their users: loaders that can run again, and give the same users and rows each time."""

from __future__ import annotations

import mmap
import os
import pickle
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import ray

from userdp.data.parts import part_by_row_groups, part_by_users
from userdp.data.schema import Schema, texts
from userdp.data.users import UserData

STORED = ("rows", "targets", "offsets")  # arrays of a store


class Loaded(NamedTuple):
    """Users, and of sorted files the ids of the first and the last one."""

    data: UserData
    ends: tuple[Any, ...] = ()


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
        return Loaded(data)


@dataclass(frozen=True)
class Part:
    """Some of the users that another loader has."""

    whole: Loader
    first: int
    last: int

    def load(self) -> Loaded:
        return Loaded(self.whole.load().data.part(self.first, self.last))


@dataclass(frozen=True)
class Shipped:
    """Users in Ray's object store, put there by the driver; in a list, so that Ray does not look into it."""

    references: list[Any]

    def load(self) -> Loaded:
        return Loaded(ray.get(self.references[0]))


@dataclass(frozen=True)
class StoredUsers:
    """Users of a store, which all nodes can read at the same path: its arrays are mapped, not copied."""

    folder: str
    facts: Mapping[str, Any]

    def load(self) -> Loaded:
        rows, targets, offsets = (np.asarray(np.load(f"{self.folder}/{name}.npy", mmap_mode="r")) for name in STORED)
        return Loaded(UserData(rows, targets, offsets, **self.facts))


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
        read = part_by_row_groups if self.sorted_by_user else part_by_users
        table = read(self.path, self.schema, self.part, self.n_parts)
        users = texts(table[self.schema.user].take([0, len(table) - 1])) if self.sorted_by_user else []
        return Loaded(UserData.from_schema(table, self.schema, **self.options), tuple(users))
