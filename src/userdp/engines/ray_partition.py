"""A partition of users on Ray: how it loads its users, and the actor that computes on their rows.

Loaders can run again, and give the same users and rows each time. Files may change between two loads, and who is in
which partition with them: so what was loaded has a mark, of the users in their order and of the names, sizes and times
of the files. The driver keeps it and sends it with every question; a partition that was restarted, and loaded anything
else, computes nothing.

Nothing of a user's data is in what a partition says or raises: whatever fails becomes a number. Errors of loading speak
of files, columns and types, never of a cell.

What is below 100 KiB goes from process to process in Ray's own messages; anything larger would be put into the object
store, which may write it to a disk. So answers come in pages, and what is secret in a question comes in pieces.
"""

from __future__ import annotations

import hashlib
import io
import mmap
import os
import pickle
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray
from ray import cloudpickle

import userdp
from userdp._validate import is_our_message
from userdp.data.groups import Groups
from userdp.data.schema import Schema, ids
from userdp.data.store import ARRAYS
from userdp.data.tables import broken, open_parquet
from userdp.data.users import UserData
from userdp.engines.local import LocalEngine
from userdp.statistics.rows import limit_threads

INLINE = 90_000  # bytes that travel by themselves
DONE, FAILED, CHANGED = 0, 1, 2  # how a question went
_ROWS = 32768  # that are read at a time
_MEANWHILE = "Files changed while partitions loaded them."

Sources = tuple[tuple[str, int, int], ...]  # names of files, their sizes, and when they were last modified, in ns


# --- loaders ----------------------------------------------------------------------------------------------------------


class Loader(Protocol):
    """How a partition gets its users, and the files that they are from: picklable, and the same each time."""

    def load(self) -> tuple[UserData, Sources]: ...


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

    def load(self) -> tuple[UserData, Sources]:
        with open(self._file, "rb") as file:
            mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        return pickle.loads(self._head, buffers=[mapped[at : at + size] for at, size in self._places]), ()


@dataclass(frozen=True)
class StoredUsers:
    """Users of a store, which all nodes can read at the same path: its arrays are mapped, not copied."""

    folder: str
    facts: Mapping[str, Any]

    def load(self) -> tuple[UserData, Sources]:
        files = {name: Path(self.folder, f"{name}.npy") for name in ARRAYS}
        before = _seen(files.values(), self.folder)
        arrays: dict[str, Any] = {name: np.asarray(np.load(file, mmap_mode="r")) for name, file in files.items()}
        if _seen(files.values(), self.folder) != before:
            raise ValueError(_MEANWHILE)
        return UserData(**arrays, **self.facts), before


@dataclass(frozen=True)
class Part:
    """Some of the users that another loader maps."""

    whole: Loader
    first: int
    last: int

    def load(self) -> tuple[UserData, Sources]:
        data, sources = self.whole.load()
        return data.part(self.first, self.last), sources


@dataclass(frozen=True)
class Shipped:
    """Users in Ray's object store, put there by the driver; in a list, so that Ray does not look into it."""

    references: list[Any]

    def load(self) -> tuple[UserData, Sources]:
        return ray.get(self.references[0]), ()


@dataclass(frozen=True)
class ParquetUsers:
    """One part of the users of Parquet files, which all nodes can read at the same path.

    Users are numbered by first appearance, as in `UserData.from_parquet`, and parts are ranges of these numbers: each
    part reads the column of users, and then those row groups that hold rows of its own.
    """

    path: str
    schema: Schema
    options: Mapping[str, Any]
    part: int
    n_parts: int

    def load(self) -> tuple[UserData, Sources]:
        before = _seen(open_parquet(self.path).files, self.path)
        table = part_by_users(self.path, self.schema, self.part, self.n_parts)
        data = UserData.from_schema(table, self.schema, **{**self.options, "keep_user_ids": True})  # for the mark
        if _seen(open_parquet(self.path).files, self.path) != before:
            raise ValueError(_MEANWHILE)
        return data, before


def _seen(files: Iterable[Path], root: str) -> Sources:
    """Names, sizes and times of files: nodes may have copies of the same name, size and time."""
    found = [(os.path.relpath(file, root), file.stat()) for file in files]
    return tuple((name, status.st_size, status.st_mtime_ns) for name, status in found)


def ranges(n_users: int, n_parts: int) -> list[int]:
    """Where contiguous near-equal parts begin, and the end."""
    return [n_users * part // n_parts for part in range(n_parts + 1)]


def part_by_users(path: str | os.PathLike[str], schema: Schema, part: int, n_parts: int) -> pa.Table:
    """The rows of one of near-equal ranges of users, who are numbered by first appearance, in the files' order.

    Row groups without such rows are not read: where a user's rows are near each other, a part reads little more than
    its own.
    """
    table = open_parquet(path)
    owners = ids(table[schema.user])
    groups = Groups.make(owners, len(owners))
    first, last = ranges(len(groups.offsets) - 1, n_parts)[part : part + 2]
    if last - first < 2:
        raise ValueError(f"There are fewer than 2 users in some of {n_parts} partitions: use fewer of them.")
    own = slice(groups.offsets[first], groups.offsets[last])
    mine = np.zeros(len(owners), dtype=bool)
    mine[own if groups.order is None else groups.order[own]] = True
    columns, kept, start = list(dict.fromkeys(schema.columns)), [], 0
    try:
        for path_of_file in table.files:
            with pq.ParquetFile(path_of_file, memory_map=True) as file:
                for number in range(file.num_row_groups):
                    end = start + file.metadata.row_group(number).num_rows
                    if mine[start:end].any():
                        for batch in file.iter_batches(_ROWS, row_groups=[number], columns=columns, use_threads=False):
                            kept.append(batch.select(columns).filter(pa.array(mine[start : start + len(batch)])))
                            start += len(batch)
                    start = end
        rows = pa.concat_tables([pa.Table.from_batches([batch]) for batch in kept], promote_options="permissive")
    except (pa.ArrowException, OSError, KeyError):
        raise ValueError(broken(Path(path))) from None
    if start != len(mine):
        raise ValueError(_MEANWHILE)
    return rows


# --- the actor --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Facts:
    """What a partition reports about itself: to the curator, who holds the data anyway.

    trouble: why it could not load, in userdp's own words, or empty; columns: number of features, type of rows, whether
    there are targets and an intercept; digest: the users' fingerprint; mark: of what it loaded, with the files,
    `sources`, that it is from.
    """

    version: str = userdp.__version__
    trouble: str = ""
    n_users: int = 0
    columns: tuple[int, str, bool, bool] = (0, "", False, False)
    digest: str = ""
    mark: bytes = b""
    sources: Sources = ()


class Page(NamedTuple):
    """A piece of an answer, and how the question went.

    incarnation: of the partition, another one whenever it is started anew.
    """

    code: int
    content: bytes
    incarnation: str


class Partition:
    """Some users, in an actor. It draws nothing, keeps nothing that matters, prints nothing and raises nothing."""

    def __init__(self, loader: Loader) -> None:
        with open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), 1)
            os.dup2(nothing.fileno(), 2)
        warnings.simplefilter("ignore")
        self._loader, self._incarnation = loader, ray.get_runtime_context().get_worker_id()
        self._held: tuple[UserData, Facts] | None = None
        self._changed: dict[bytes, UserData] = {}  # the data as the last declared changes make it

    def facts(self) -> Facts:
        try:
            return self._loaded()[1]
        except BaseException as error:  # our own words name files, columns and types only
            return Facts(trouble=str(error) if is_our_message(error) else "It cannot be loaded.")

    def ask(self, mark: bytes, question: bytes, *pieces: bytes) -> Iterator[Page]:
        """The answer, in pages; pieces are of a `list_of` users, none for all users."""
        code, answer = self._answer(mark, question, b"".join(pieces))
        for page in pieces_of(answer) or [b""]:
            yield Page(code, page, self._incarnation)

    def _answer(self, mark: bytes, question: bytes, users: bytes) -> tuple[int, bytes]:
        try:
            if self._loaded()[1].mark != mark:
                return CHANGED, b""
        except BaseException:  # no statistic can be the cause, since none runs here
            return CHANGED, b""
        try:
            kind, transforms, statistic, contribution = cloudpickle.loads(question)
            data = self._transformed(transforms)
            numbers = numbers_of(users, data.n_users)
            if kind == "rows":
                return DONE, pickle.dumps(data.taken(numbers), protocol=5)
            if kind == "total":
                found = LocalEngine().total(statistic, contribution, data, numbers)
                if found.dtype != np.int64 or found.ndim != 1:
                    raise TypeError
            else:
                found = LocalEngine().vectors(statistic, data, numbers, len(numbers))
            file = io.BytesIO()
            np.save(file, found, allow_pickle=False)
            return DONE, file.getvalue()
        except BaseException:
            return FAILED, b""

    def _loaded(self) -> tuple[UserData, Facts]:
        """The users, and what there is to say of them."""
        limit_threads(1)  # of this thread, and so are numpy's warnings
        np.seterr(all="ignore")
        if self._held is None:
            data, sources = self._loader.load()
            digest = data.fingerprint()
            self._held = (
                replace(data, user_ids=None),
                Facts(
                    n_users=data.n_users,
                    columns=(data.n_features, str(data.dtype), data.has_targets, data.has_intercept),
                    digest=digest,
                    mark=hashlib.sha256(repr((data.n_users, digest, sources)).encode()).digest(),
                    sources=sources,
                ),
            )
        return self._held

    def _transformed(self, transforms: bytes) -> UserData:
        """The data as declared changes make it, which are made once."""
        if transforms not in self._changed:
            data = self._loaded()[0]
            for change in cloudpickle.loads(transforms):
                data = change(data)
            self._changed = {transforms: data}
        return self._changed[transforms]


def list_of(chosen: np.ndarray) -> bytes:
    """Who takes part, of a mask: nothing for all; numbers, or a bit for each user, whichever is shorter."""
    if chosen.all():
        return b""
    numbers = np.flatnonzero(chosen).astype("<u4").tobytes()
    bits = np.packbits(chosen).tobytes()
    return b"n" + numbers if len(numbers) < len(bits) else b"b" + bits


def numbers_of(users: bytes, n_users: int) -> np.ndarray:
    """The users in a `list_of` them."""
    if not users:
        return np.arange(n_users)
    if users[:1] == b"n":
        return np.frombuffer(users[1:], "<u4").astype(np.int64)
    return np.flatnonzero(np.unpackbits(np.frombuffer(users[1:], np.uint8), count=n_users))


def pieces_of(whole: bytes) -> list[bytes]:
    """Something long in pieces that travel by themselves; none for nothing."""
    return [whole[first : first + INLINE] for first in range(0, len(whole), INLINE)]
