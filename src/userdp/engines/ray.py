"""The engine on Ray: partitions of users live in actors, and small totals travel.

The driver, which has the curator, draws who takes part and all noise. It asks each partition for what its users
contribute, and adds up whole numbers: the total is bit for bit that of one process. Partitions hold users' rows, which
they load by a loader that can run again: an actor that was killed is started anew by Ray, loads the same rows, and
gives the same answer, since nothing there is drawn.

Nothing of a user's data is in what an actor says or raises: whatever fails there is told as a number. Matrices that
stay the same for many releases (a basis) are sent once, and known by their digests after.
"""

from __future__ import annotations

import hashlib
import io
import mmap
import os
import pickle
import socket
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

try:
    import ray
    from ray import cloudpickle
except ImportError:
    raise ImportError("Expected Ray to be installed: pip install 'userdp[ray]'. Nothing was spent.") from None

import userdp
from userdp.data.grouping import check_seed, fresh_key
from userdp.data.parts import check_order, part_by_row_groups, part_by_users, ranges
from userdp.data.schema import Schema, texts
from userdp.data.tables import open_parquet
from userdp.data.users import Options, RemoteUsers, UserData
from userdp.engines.local import Contribution, EngineLost, LocalEngine
from userdp.vectors.gradients import RowStatistic, Statistic, generated_data

_DONE, _FAILED, _UNKNOWN_MATRIX = 0, 1, 2  # how a call went, in an actor
_INLINE = 90_000  # bytes of an answer that travels by itself: larger ones (from 100 KiB on) go through the object store
_GATHERED_USERS = 4096  # of groups, whose rows are in the object store at a time, for each partition
_STORED = ("rows", "targets", "offsets")  # arrays of a store
_MATRICES = 32  # that an actor remembers
_STORE_BYTES = 2**29  # of a local Ray's object store, through which only rows of groups go
_CONNECTION = 10.0  # seconds to reach a cluster in
_ATTEMPTS, _PAUSE = 8, 1.0  # before a cluster counts as lost; Ray itself restarts actors without end

Transform = Callable[[UserData], UserData]


class Loaded(NamedTuple):
    """Users, and of sorted files the ids of the first and the last one."""

    data: UserData
    ends: tuple[Any, ...] = ()


class Loader(Protocol):
    """How a partition gets its users: picklable, and gives the same users and rows each time."""

    def load(self) -> Loaded: ...


# --- loaders ----------------------------------------------------------------------------------------------------------


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
        rows, targets, offsets = (np.asarray(np.load(f"{self.folder}/{name}.npy", mmap_mode="r")) for name in _STORED)
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


# --- actors -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Facts:
    """What a partition says of itself: to the curator, who holds the data anyway.

    trouble: why it could not load, in userdp's own words, or empty; ends: of sorted files, the first and the last user.
    """

    version: str = userdp.__version__
    trouble: str = ""
    n_users: int = 0
    n_features: int = 0
    dtype: str = ""
    has_targets: bool = False
    has_intercept: bool = False
    digest: str = ""
    ends: tuple[Any, ...] = ()


class Partition:
    """Some users, in an actor. It draws nothing, keeps nothing that matters, prints nothing and raises nothing."""

    def __init__(self, loader: Loader) -> None:
        import numba

        with open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), 1)
            os.dup2(nothing.fileno(), 2)
        warnings.simplefilter("ignore")
        np.seterr(all="ignore")
        numba.set_num_threads(1)
        self._loader = loader
        self._held: Loaded | None = None
        self._changed: dict[bytes, UserData] = {}
        self._matrices: dict[bytes, np.ndarray] = {}

    def facts(self) -> Facts:
        try:
            data, ends = self._loaded()
            shape = (data.n_users, data.n_features, str(data.dtype), data.has_targets, data.has_intercept)
            return Facts(userdp.__version__, "", *shape, data.fingerprint(), ends)
        except (ValueError, TypeError, FileNotFoundError) as error:  # which speak of files, names and types only
            said = str(error)
            return Facts(trouble=said if said.startswith("Expected ") else "Expected to load it.")
        except BaseException:
            return Facts(trouble="Expected to load it.")

    def total(self, request: bytes, matrices: dict[bytes, np.ndarray], users: bytes | None) -> tuple[int, bytes]:
        """What these users' vectors contribute: None for all, else a `_list_of` numbers."""
        try:
            asked = self._read(request, matrices)
            if asked is None:
                return _UNKNOWN_MATRIX, b""
            (statistic, contribution), data = asked
            total = LocalEngine().total(statistic, contribution, data, _numbers(users, data.n_users))
            return (_DONE, total.tobytes()) if total.dtype == np.int64 and total.ndim == 1 else (_FAILED, b"")
        except BaseException:
            return _FAILED, b""

    def vectors(self, request: bytes, matrices: dict[bytes, np.ndarray], users: np.ndarray) -> tuple[int, bytes]:
        """One vector of each of these users."""
        try:
            asked = self._read(request, matrices)
            if asked is None:
                return _UNKNOWN_MATRIX, b""
            (statistic,), data = asked
            return _DONE, LocalEngine().vectors(statistic, data, users.astype(np.int64), len(users)).tobytes()
        except BaseException:
            return _FAILED, b""

    def rows(self, transforms: bytes, users: np.ndarray) -> UserData | None:
        """A copy of these users' rows, for the partition that computes on their groups."""
        try:
            return self._transformed(transforms).taken(users)
        except BaseException:
            return None

    def groups(
        self,
        request: bytes,
        matrices: dict[bytes, np.ndarray],
        n_groups: int,
        places: np.ndarray,
        *parts: UserData | None,
    ) -> tuple[int, bytes]:
        """One vector of each group, from rows that came; user j is places[1, j] of part places[0, j]."""
        try:
            asked = self._read(request, matrices)
            if asked is None:
                return _UNKNOWN_MATRIX, b""
            (statistic,), _ = asked
            came = [part for part in parts if part is not None]
            if len(came) < len(parts):
                return _FAILED, b""
            starts = np.cumsum([0, *(part.n_users for part in came)])
            users = starts[places[0]] + places[1]
            return _DONE, LocalEngine().vectors(statistic, UserData.joined(came), users, n_groups).tobytes()
        except BaseException:
            return _FAILED, b""

    def _loaded(self) -> Loaded:
        if self._held is None:
            self._held = self._loader.load()
        return self._held

    def _transformed(self, transforms: bytes) -> UserData:
        """The data as declared changes make it, which are made once."""
        if transforms not in self._changed:
            data = self._loaded().data
            for change in cloudpickle.loads(transforms):
                data = change(data)
            self._changed = {transforms: data}
        return self._changed[transforms]

    def _read(self, request: bytes, matrices: dict[bytes, np.ndarray]) -> tuple[tuple[Any, ...], UserData] | None:
        """What was asked for, and the data; None if a matrix is not known here."""
        self._matrices = dict([*self._matrices.items(), *matrices.items()][-max(_MATRICES, len(matrices)) :])
        reader = _Unpickler(request, self._matrices)
        try:
            transforms, *asked = reader.load()
        except _UnknownMatrixError:
            return None
        return tuple(asked), self._transformed(transforms)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # Ray has no types here
    """Leaves out matrices, which are known by their digests."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.matrices: dict[bytes, np.ndarray] = {}

    def persistent_id(self, thing: Any) -> bytes | None:
        if type(thing) is not np.ndarray or thing.ndim != 2 or thing.dtype != np.float64:
            return None
        digest = hashlib.sha256(repr(thing.shape).encode() + np.ascontiguousarray(thing).tobytes()).digest()
        self.matrices[digest] = thing
        return digest


class _UnknownMatrixError(Exception):
    """An actor that was started anew knows none of the matrices that were sent before."""


class _Unpickler(pickle.Unpickler):
    def __init__(self, request: bytes, matrices: dict[bytes, np.ndarray]) -> None:
        super().__init__(io.BytesIO(request))
        self._matrices = matrices

    def persistent_load(self, digest: Any) -> np.ndarray:
        if digest not in self._matrices:
            raise _UnknownMatrixError
        return self._matrices[digest]


def _same_memory(one: Any, other: np.ndarray) -> bool:
    """Whether an array is the other one, as it is."""
    return isinstance(one, np.ndarray) and (one.ctypes.data, one.nbytes) == (other.ctypes.data, other.nbytes)


def _list_of(chosen: np.ndarray) -> bytes | None:
    """Who takes part, of a mask: None for all; numbers, or a bit for each user, whichever is shorter."""
    if chosen.all():
        return None
    numbers = np.flatnonzero(chosen).astype("<u4").tobytes()
    bits = np.packbits(chosen).tobytes()
    return b"n" + numbers if len(numbers) < len(bits) else b"b" + bits


def _numbers(users: bytes | None, n_users: int) -> np.ndarray:
    if users is None:
        return np.arange(n_users)
    if users[:1] == b"n":
        return np.frombuffer(users[1:], "<u4").astype(np.int64)
    return np.flatnonzero(np.unpackbits(np.frombuffer(users[1:], np.uint8), count=n_users))


# --- the driver -------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Traffic:
    """Bytes that travelled for releases, in all; without lists of who took part, since a sample's size is secret."""

    n_releases: int = 0
    n_bytes: int = 0

    def count(self, n_bytes: int) -> None:
        self.n_releases += 1
        self.n_bytes += n_bytes


@dataclass(eq=False)
class _Asked:
    """Who takes part, by partition; kept while the same users are asked again, as in steps of everyone."""

    _users: np.ndarray | None = None
    _lists: dict[int, bytes | None] = field(default_factory=dict)

    def lists(self, users: np.ndarray, bounds: np.ndarray) -> dict[int, bytes | None]:
        """Lists of those partitions that have any of the users; refuses users who are named twice."""
        if self._users is None or not _same_memory(users, self._users):
            chosen = np.zeros(int(bounds[-1]), dtype=bool)
            chosen[users] = True
            if np.count_nonzero(chosen) != len(users):
                raise ValueError("Expected each user once.")
            own = {part: chosen[first:last] for part, (first, last) in enumerate(pairwise(bounds))}
            self._lists = {part: _list_of(mask) for part, mask in own.items() if mask.any() or not (part or len(users))}
            self._users = None if users.flags.writeable else users  # held: its place in memory stays its own
        return self._lists


@dataclass(frozen=True, eq=False, repr=False)
class RayUsers(RemoteUsers):
    """Users in partitions: user u is number u - bounds[p] of the partition p with bounds[p] <= u < bounds[p + 1]."""

    actors: tuple[Any, ...]
    bounds: np.ndarray
    transforms: tuple[Transform, ...] = ()
    traffic: _Traffic = field(default_factory=_Traffic)
    asked: _Asked = field(default_factory=_Asked)
    known: list[set[bytes]] = field(default_factory=list)  # matrices that each partition was sent
    keeps: Any = None  # what must live as long as the partitions may load

    @property
    def n_partitions(self) -> int:
        return len(self.actors)

    @property
    def bytes_per_release(self) -> float:
        """Mean bytes to and from all partitions; vectors of samples are counted as if of everyone."""
        return self.traffic.n_bytes / max(1, self.traffic.n_releases)

    def mapped(self, change: Transform) -> RayUsers:
        """The same users, changed where they are by a picklable function of public numbers, user by user."""
        return replace(self, transforms=(*self.transforms, change), traffic=_Traffic(), asked=_Asked())


@dataclass(frozen=True)
class RayEngine:
    """Computes on a Ray cluster: users live in partitions, one processor each, that are restarted if they die.

    address: "host:6379" of a running cluster, or "auto" for one on this machine; None starts Ray on this machine, or
    takes the one that this process started before;
    n_partitions: how many; None is as many as the cluster has processors;
    ship_rows: whether rows that are in this process may go to other machines through Ray's object store, which may
    write them to disks there; not needed if partitions load files themselves (`from_parquet`), nor for a local Ray;
    timeout: seconds after which partitions that have not loaded are given up.

    Guarantee: totals are those of `LocalEngine`, bit for bit, and vectors are computed by the same code.
    """

    address: str | None = None
    n_partitions: int | None = None
    _: KW_ONLY
    ship_rows: bool = False
    timeout: float = 600.0

    def __post_init__(self) -> None:
        n = self.n_partitions
        if n is not None and not (isinstance(n, (int, np.integer)) and n >= 1):
            raise ValueError(f"Expected n_partitions={n!r} to be a whole number >= 1, or None. Nothing was spent.")

    # --- bringing data to partitions

    def place(self, data: UserData | RemoteUsers) -> RayUsers:
        """The users in partitions, before anything is charged; those that are there already stay."""
        if isinstance(data, RayUsers):
            return replace(data, traffic=_Traffic(), asked=_Asked())
        if not isinstance(data, UserData):
            raise TypeError(f"Expected UserData, got {type(data).__name__}: it is another engine's.")
        local = self._connect()
        n_parts = min(self._number_of_partitions(), max(1, data.n_users // 2))
        bounds = ranges(data.n_users, n_parts)
        loaders: Sequence[Loader]
        source: Any
        store = getattr(data, "store", None)
        if store is not None and all(_same_memory(getattr(data, name), store.array(name)) for name in _STORED):
            facts = {name: getattr(data, name) for name in ("insecure_seed", "has_targets", "has_intercept")}
            source = StoredUsers(os.fspath(store.path), facts)
            loaders = [Part(source, first, last) for first, last in pairwise(bounds)]
        elif local:
            source = SharedMemory(data)
            loaders = [Part(source, first, last) for first, last in pairwise(bounds)]
        elif not self.ship_rows:
            raise ValueError(
                "Expected partitions that load files themselves, as RayEngine.from_parquet makes them: rows of this "
                "process would go through the cluster's object store, which may write them to disks; pass "
                "RayEngine(..., ship_rows=True) if it may. Nothing was spent."
            )
        else:
            source = loaders = [Shipped([ray.put(data.part(first, last))]) for first, last in pairwise(bounds)]
        return self._started(loaders, data.insecure_seed, data.fingerprint(), source)

    def from_parquet(
        self,
        path: str | os.PathLike[str],
        *,
        user: str,
        features: str | Sequence[str],
        target: str | None = None,
        classes: Sequence[Any] | None = None,
        sorted_by_user: bool = False,
        insecure_seed: int | None = None,
        **options: Any,
    ) -> RayUsers:
        """Users of a Parquet file, or a folder of them, that every node can read at this path; for `fit_users`, say.

        Arguments are those of `UserData.from_parquet`. Each partition reads the column of users, and keeps its own
        rows. With `sorted_by_user` it reads its row groups only: rows must be sorted by user, through all files in
        the order of their names.
        """
        schema = Schema.declare(open_parquet(path).column_names, user, features, target, classes)
        return self.from_schema(path, schema, sorted_by_user=sorted_by_user, insecure_seed=insecure_seed, **options)

    def from_schema(
        self,
        path: str | os.PathLike[str],
        schema: Schema,
        *,
        sorted_by_user: bool = False,
        insecure_seed: int | None = None,
        **options: Any,
    ) -> RayUsers:
        """The same with columns that are declared already."""
        check_seed(insecure_seed)
        key = fresh_key() if insecure_seed is None else b"insecure %d" % insecure_seed
        Options.of(options)
        self._connect()
        n_parts, where, loaders = self._number_of_partitions(), os.fspath(Path(path).resolve()), []
        for part in range(n_parts):
            own = options | {"choice_key": key + b" of part %d" % part}
            loaders.append(ParquetUsers(where, schema, own, part, n_parts, sorted_by_user))
        return self._started(loaders, insecure_seed, None, None)

    def from_dataset(self, dataset: Any, folder: str | os.PathLike[str], *, user: str, **arguments: Any) -> RayUsers:
        """Users of a Ray Dataset, which is sorted by user once and written to `folder`, an empty place all nodes read.

        Other arguments are those of `from_parquet`. The folder is as secret as the data; delete it after.
        """
        self._connect()
        dataset.sort(user).write_parquet(os.fspath(Path(folder).resolve()))
        return self.from_parquet(folder, user=user, sorted_by_user=True, **arguments)

    def _connect(self) -> bool:
        """Reach the cluster, or start one here; whether it is here, started by this process."""
        if self.address is not None and (not isinstance(self.address, str) or "://" in self.address):
            raise ValueError(
                f'Expected address={self.address!r} to be "host:6379", as `ray start --head` tells it, or "auto": a '
                "driver runs on a machine of the cluster. Nothing was spent."
            )
        with _CONNECTING:
            if not ray.is_initialized():
                _start(self.address, self.n_partitions)
            reached = ray.get_runtime_context().gcs_address
        if self.address not in (None, "auto", reached, *_REACHED_AS):
            raise ValueError(
                f"Expected to reach Ray at address={self.address!r}; this process is with another one, which it tells "
                'as "auto": use that, or another process. Nothing was spent.'
            )
        return reached in _STARTED_HERE

    def _number_of_partitions(self) -> int:
        return self.n_partitions or max(1, int(ray.cluster_resources().get("CPU", 1)))

    def _started(self, loaders: Sequence[Loader], seed: int | None, digest: str | None, keeps: Any) -> RayUsers:
        """Actors that have loaded, and what is public of their users."""
        kind = ray.remote(max_restarts=-1, max_task_retries=-1, scheduling_strategy="SPREAD")(Partition)
        actors = tuple(kind.remote(loader) for loader in loaders)
        try:
            facts: list[Facts] = ray.get([actor.facts.remote() for actor in actors], timeout=self.timeout)
        except ray.exceptions.GetTimeoutError:
            raise RuntimeError(
                f"Expected all partitions to have loaded within timeout={self.timeout:g} seconds: some have not. Is "
                "the cluster busy, or are there too few processors? Nothing was spent."
            ) from None
        except ray.exceptions.RayError:
            raise RuntimeError(
                "Expected partitions to start on every node of the cluster: they do not. Is userdp installed on each, "
                "in this version? Nothing was spent."
            ) from None
        troubles = [f"partition {part}: {said.trouble}" for part, said in enumerate(facts) if said.trouble]
        if troubles:
            raise ValueError(f"Expected every partition to load; {troubles[0]} Nothing was spent.")
        if any(said.version != userdp.__version__ for said in facts):
            raise RuntimeError(
                f"Expected userdp {userdp.__version__}, as here, on every node of the cluster: some have another "
                "version. Nothing was spent."
            )
        first = facts[0]
        check_order([said.ends for said in facts if said.ends])
        if len({(said.n_features, said.dtype, said.has_targets, said.has_intercept) for said in facts}) > 1:
            raise ValueError("Expected the same columns in all partitions: the files differ. Nothing was spent.")
        bounds = np.concatenate([[0], np.cumsum([said.n_users for said in facts])]).astype(np.int64)
        together = hashlib.sha256("".join(said.digest for said in facts).encode()).hexdigest()
        return RayUsers(
            int(bounds[-1]),
            first.n_features,
            np.dtype(first.dtype),
            first.has_targets,
            first.has_intercept,
            seed,
            self,
            digest or together,
            actors,
            bounds,
            known=[set() for _ in actors],
            keeps=keeps,
        )

    # --- what a curator asks for

    def total(self, statistic: Statistic, contribution: Contribution, data: RayUsers, users: np.ndarray) -> np.ndarray:
        """What the users' vectors contribute, added up; each partition adds up its own users'."""
        request = _Request(data, statistic, contribution)
        lists = data.asked.lists(users, data.bounds)
        calls = [_Call(part, "total", (own,), request) for part, own in lists.items()]
        answers = _answers(data, calls)
        if len({len(answer) for answer in answers}) > 1:
            raise ValueError("Expected totals of one length.")
        data.traffic.count(data.n_partitions * (request.n_bytes + len(answers[0])) + request.n_sent)
        total: np.ndarray = np.sum([np.frombuffer(answer, np.int64) for answer in answers], axis=0)
        return total

    def vectors(self, statistic: Statistic, data: RayUsers, users: np.ndarray, n_groups: int) -> np.ndarray:
        """One vector per group: of single users where they live, of groups where their rows are brought together."""
        if n_groups == len(users):
            return self._of_users(statistic, data, users)
        return self._of_groups(statistic, data, users, n_groups)

    def _of_users(self, statistic: Statistic, data: RayUsers, users: np.ndarray) -> np.ndarray:
        """Vectors in answers that are small enough to travel by themselves."""
        kept = getattr(statistic, "kept", None) if isinstance(statistic, RowStatistic) else None

        def keeping(lines: np.ndarray) -> Any:
            return statistic.keeping(lines) if isinstance(statistic, RowStatistic) else statistic

        generated = generated_data(data.n_features, data.dtype)  # tells how long vectors are
        tried = statistic if kept is None else keeping(np.ones((generated.n_users, 1), dtype=bool))
        width = LocalEngine().vectors(tried, generated, np.arange(generated.n_users), generated.n_users).shape[1]
        parts = np.searchsorted(data.bounds, users, side="right") - 1
        block, places, calls = max(1, _INLINE // (8 * width)), [], []
        whole = _Request(data, tried)
        for part in range(data.n_partitions):
            own = np.flatnonzero(parts == part)
            for first in range(0, len(own), block):
                some = own[first : first + block]
                request = whole if kept is None else _Request(data, keeping(kept[some]))
                places.append(some)
                calls.append(_Call(part, "vectors", ((users[some] - data.bounds[part]).astype("<u4"),), request))
        out = np.empty((len(users), width))
        for some, answer in zip(places, _answers(data, calls), strict=True):
            out[some] = np.frombuffer(answer).reshape(len(some), width)
        everyone = 8 * width * data.n_users + -(-data.n_users // block) * whole.n_bytes
        data.traffic.count(everyone + whole.n_sent)
        return out

    def _of_groups(self, statistic: Statistic, data: RayUsers, users: np.ndarray, n_groups: int) -> np.ndarray:
        """Rows of some groups at a time go through the object store to the partition that computes their vectors."""
        request = _Request(data, statistic)
        sizes = np.full(n_groups, len(users) // n_groups) + (np.arange(n_groups) < len(users) % n_groups)
        together = max(1, _GATHERED_USERS // int(sizes[0]))
        edges, calls, found = np.concatenate([[0], np.cumsum(sizes)]), [], []
        parts = np.searchsorted(data.bounds, users, side="right") - 1
        for number, first in enumerate(range(0, n_groups, together)):
            last = min(first + together, n_groups)
            some = slice(edges[first], edges[last])
            calls.append(_GroupsCall(number % data.n_partitions, request, last - first, users[some], parts[some]))
        for first in range(0, len(calls), data.n_partitions):
            found += _answers(data, calls[first : first + data.n_partitions])
        data.traffic.count(len(calls) * request.n_bytes + request.n_sent + sum(map(len, found)))
        return np.frombuffer(b"".join(found)).reshape(n_groups, -1)


class _Request:
    """What is asked of partitions, as bytes: the users' changes, a statistic and what it is for."""

    def __init__(self, data: RayUsers, *asked: Any) -> None:
        self.transforms: bytes = cloudpickle.dumps(data.transforms)
        file = io.BytesIO()
        pickler = _Pickler(file)
        pickler.dump((self.transforms, *asked))
        self.body, self.matrices = file.getvalue(), pickler.matrices
        self.n_bytes = len(self.body)
        self.n_sent = 0  # bytes of matrices, which are sent once

    def matrices_for(self, known: set[bytes]) -> dict[bytes, np.ndarray]:
        """Those that a partition was not sent before; from now on it was."""
        new = {digest: matrix for digest, matrix in self.matrices.items() if digest not in known}
        known.update(new)
        self.n_sent += sum(matrix.nbytes for matrix in new.values())
        return new


@dataclass(frozen=True, eq=False)
class _Call:
    """One question to one partition."""

    part: int
    method: str
    arguments: tuple[Any, ...]
    request: _Request

    def submit(self, data: RayUsers, matrices: dict[bytes, np.ndarray]) -> Any:
        return getattr(data.actors[self.part], self.method).remote(self.request.body, matrices, *self.arguments)


@dataclass(frozen=True, eq=False)
class _GroupsCall:
    """A question about groups, for which other partitions send rows."""

    part: int
    request: _Request
    n_groups: int
    users: np.ndarray
    parts: np.ndarray

    def submit(self, data: RayUsers, matrices: dict[bytes, np.ndarray]) -> Any:
        rows: list[Any] = []
        places = np.empty((2, len(self.users)), dtype=np.int64)
        for part in np.unique(self.parts):
            own = np.flatnonzero(self.parts == part)
            places[0, own] = len(rows)
            places[1, own] = np.arange(len(own))
            asked = self.users[own] - data.bounds[part]
            rows.append(data.actors[part].rows.remote(self.request.transforms, asked))
        return data.actors[self.part].groups.remote(self.request.body, matrices, self.n_groups, places, *rows)


def _answers(data: RayUsers, calls: Sequence[_Call | _GroupsCall]) -> list[bytes]:
    """What partitions answer, in order. What was lost is asked again: nothing in it is drawn, so nothing changes."""
    answers: dict[int, bytes] = {}
    lost = 0
    submitted = [call.submit(data, call.request.matrices_for(data.known[call.part])) for call in calls]
    pending = dict(enumerate(submitted))
    while pending:
        again = []
        for number, reference in pending.items():
            try:
                code, answer = ray.get(reference)
            except ray.exceptions.RayError:
                code, answer = None, b""
            if code == _FAILED:
                raise ValueError("Expected the statistic to give one vector per group.")
            if code == _DONE:
                answers[number] = answer
            else:
                again.append(number)
                lost += code is None
        if lost > _ATTEMPTS * len(calls):
            raise EngineLost
        if again and lost:
            time.sleep(_PAUSE)
        pending = {number: calls[number].submit(data, calls[number].request.matrices) for number in again}
    return [answers[number] for number in range(len(calls))]


# --- connecting -------------------------------------------------------------------------------------------------------

_CONNECTING = threading.Lock()
_REACHED_AS: list[str] = []  # how the cluster was called that this process is with
_STARTED_HERE: list[str] = []  # the address of the Ray that this process started


def _start(address: str | None, n_partitions: int | None) -> None:
    """Connect to a cluster, or start Ray here, without dashboard and telemetry; what it logs stays there."""
    quiet = {"log_to_driver": False, "configure_logging": False, "include_dashboard": None}
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if address is not None:
                if address != "auto":  # Ray itself would try for a minute
                    host, _, port = address.rpartition(":")
                    socket.create_connection((host, int(port)), timeout=_CONNECTION).close()
                ray.init(address=address, **quiet)
                _REACHED_AS[:] = [address]
                return
            free = os.statvfs("/dev/shm")
            room = min(_STORE_BYTES, free.f_bavail * free.f_frsize // 2)
            ray.init(
                address="local",
                num_cpus=max(n_partitions or 0, os.cpu_count() or 1),
                object_store_memory=max(room, 100 * 2**20),
                _system_config={"automatic_object_spilling_enabled": False},
                **quiet | {"include_dashboard": False},
            )
            _STARTED_HERE[:] = [ray.get_runtime_context().gcs_address]
    except Exception:
        where = "a local Ray to start" if address is None else f"a Ray cluster at address={address!r}"
        raise RuntimeError(
            f"Expected {where}: it cannot be reached. Does it run, in the same version of Ray and Python, and may this "
            "machine reach it? Nothing was spent."
        ) from None
