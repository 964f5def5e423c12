"""The engine on Ray: partitions of users live in actors, and small totals travel.

The driver, which has the curator, draws who takes part and all noise. It asks each partition (`ray_partition.py`) for
what its users contribute, and adds up whole numbers: the total is bit for bit that of one process. Partitions hold
users' rows, which they load by a loader that can run again (`ray_loaders.py`): an actor that was killed is started anew
by Ray, loads the same rows, or says that it cannot, and gives the same answer, since nothing there is drawn.
"""

from __future__ import annotations

import hashlib
import os
import socket
import threading
import warnings
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

try:
    import ray
except ImportError:
    raise ImportError("Expected Ray to be installed: pip install 'userdp[ray]'. Nothing was spent.") from None

import userdp
from userdp.data.grouping import check_seed, check_users, fresh_key
from userdp.data.schema import Schema
from userdp.data.store import ARRAYS
from userdp.data.tables import open_parquet
from userdp.data.users import Options, RemoteUsers, UserData
from userdp.engines.local import Contribution, LocalEngine
from userdp.engines.ray_calls import Call, RayUsers, Request, Traffic, answers_to, lists_of
from userdp.engines.ray_loaders import (
    Loader,
    ParquetUsers,
    Part,
    SharedMemory,
    Shipped,
    StoredUsers,
    check_order,
    ranges,
)
from userdp.engines.ray_partition import INLINE, SENDING, Facts, Partition, Sender, pieces
from userdp.statistics.gradients import Statistic, generated_data

_GATHERED_USERS = 4096  # of groups, whose rows a partition brings together at a time
_STORE_BYTES = 2**29  # of a local Ray's object store, which long arguments alone go through
_CONNECTION = 10.0  # seconds to reach a cluster in
_CONNECTING = threading.Lock()
_REACHED_AS: list[str] = []  # how the cluster was called that this process is with


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
            return replace(data, traffic=Traffic())
        if not isinstance(data, UserData):
            raise TypeError(f"Expected UserData, got {type(data).__name__}: it is another engine's.")
        local = connect(self.address, self.n_partitions)
        n_parts = min(self._number_of_partitions(), max(1, data.n_users // 2))
        parts = list(pairwise(ranges(data.n_users, n_parts)))
        store: Any = getattr(data, "store", None)
        bare = replace(data, user_ids=None, store=None)  # partitions need no ids, and these would travel
        source: Any = None
        mapped = store is not None and data.weights is None  # which no store holds
        if mapped and all(_same_memory(getattr(data, name), store.array(name)) for name in ARRAYS):
            facts = {name: getattr(data, name) for name in ("insecure_seed", "has_targets", "has_intercept")}
            source = StoredUsers(os.fspath(store.path), facts)
        elif local:
            source = SharedMemory(bare)
        elif not self.ship_rows:
            raise ValueError(
                "Expected partitions that load files themselves, as RayEngine.from_parquet makes them: rows of this "
                "process would go through the cluster's object store, which may write them to disks; pass "
                "RayEngine(..., ship_rows=True) if it may. Nothing was spent."
            )
        loaders: list[Loader]
        if source is not None:
            loaders = [Part(source, first, last) for first, last in parts]
        else:
            source = loaders = [Shipped([ray.put(bare.part(first, last))]) for first, last in parts]
        return self._started(loaders, data.insecure_seed, data.fingerprint(), source)

    def from_parquet(
        self,
        path: str | os.PathLike[str],
        *,
        user: str,
        features: str | Sequence[str],
        target: str | None = None,
        classes: Sequence[Any] | None = None,
        **options: Any,
    ) -> RayUsers:
        """Users of a Parquet file, or a folder of them, that every node can read at this path; for `fit_users`, say.

        Arguments are those of `UserData.from_parquet`. Each partition reads the column of users, and keeps its own
        rows. With `sorted_by_user=True` it reads its row groups only: rows must be sorted by user, through all files
        in the order of their names.
        """
        schema = Schema.declare(open_parquet(path).column_names, user, features, target, classes)
        return self.from_schema(path, schema, **options)

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
        connect(self.address, self.n_partitions)
        n_parts, where, loaders = self._number_of_partitions(), os.fspath(Path(path).resolve()), []
        for part in range(n_parts):
            own = options | {"choice_key": key + b" of part %d" % part}
            loaders.append(ParquetUsers(where, schema, own, part, n_parts, sorted_by_user))
        return self._started(loaders, insecure_seed, None, None)

    def _number_of_partitions(self) -> int:
        return self.n_partitions or max(1, int(ray.cluster_resources().get("CPU", 1)))

    def _started(self, loaders: Sequence[Loader], seed: int | None, digest: str | None, keeps: Any) -> RayUsers:
        """Actors that have loaded, and what is public of their users."""
        threads = {"concurrency_groups": {SENDING: 1}}
        kind = ray.remote(max_restarts=-1, max_task_retries=-1, scheduling_strategy="SPREAD", **threads)(Partition)
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
        check_order([said.ends for said in facts if said.ends])
        if len({said.columns for said in facts}) > 1:
            raise ValueError("Expected the same columns in all partitions: the files differ. Nothing was spent.")
        if len({said.sources for said in facts}) > 1:
            raise ValueError(
                "Expected all partitions to load the same files, of the same names, sizes and times: they changed "
                "meanwhile, or nodes have copies with other times (`cp -p` keeps them). Nothing was spent."
            )
        bounds = np.concatenate([[0], np.cumsum([said.n_users for said in facts])]).astype(np.int64)
        check_users(int(bounds[-1]))
        together = hashlib.sha256("".join(said.digest for said in facts).encode()).hexdigest()
        n_features, dtype, has_targets, has_intercept = facts[0].columns
        return RayUsers(
            int(bounds[-1]),
            n_features,
            np.dtype(dtype),
            has_targets,
            has_intercept,
            seed,
            self,
            digest or together,
            actors,
            bounds,
            tuple(said.mark for said in facts),
            known=[set() for _ in actors],
            keeps=keeps,
            mapped_by_all=all(isinstance(loader, Part) for loader in loaders),
        )

    # --- what a curator asks for

    def total(self, statistic: Statistic, contribution: Contribution, data: RayUsers, users: np.ndarray) -> np.ndarray:
        """What the users' vectors contribute, added up; each partition adds up its own users'."""
        request = Request(data, statistic, contribution)
        lists = lists_of(users, data.bounds)
        calls = [Call(part, "total", tuple(pieces(own)), request) for part, own in lists.items()]
        answers = answers_to(data, calls)
        if len({len(answer) for answer in answers}) > 1:
            raise ValueError("Expected totals of one length.")
        n_bytes = data.n_partitions * (request.n_bytes + len(answers[0]))
        data.traffic.count(n_bytes, request, data.n_partitions)
        total: np.ndarray = np.sum([np.frombuffer(answer, np.int64) for answer in answers], axis=0)
        return total

    def vectors(self, statistic: Statistic, data: RayUsers, users: np.ndarray, n_groups: int) -> np.ndarray:
        """One vector per group: of single users where they live, of groups where their rows come together."""
        if n_groups != len(users):
            return self._of_groups(statistic, data, users, n_groups)
        found, everyone, request = _of_users(statistic, data, users)
        data.traffic.count(everyone, request, data.n_partitions)
        return found

    def _of_groups(self, statistic: Statistic, data: RayUsers, users: np.ndarray, n_groups: int) -> np.ndarray:
        """Partitions take groups in turns, some at a time; rows that they do not map other partitions send them.

        Rows of a group are visited in one mixed order, so that an iterate would have to travel with almost every row.
        """
        request = Request(data, statistic)
        sizes = np.full(n_groups, len(users) // n_groups) + (np.arange(n_groups) < len(users) % n_groups)
        together = max(1, _GATHERED_USERS // int(sizes[0]))
        edges, calls, found = np.concatenate([[0], np.cumsum(sizes)]), [], []
        for number, first in enumerate(range(0, n_groups, together)):
            last, asked = min(first + together, n_groups), number % data.n_partitions
            some = users[edges[first] : edges[last]]
            senders = [] if data.mapped_by_all else _senders(data, asked, np.sort(some))
            calls.append(Call(asked, "groups", (last - first, some.astype("<u4"), senders), request))
        for first in range(0, len(calls), data.n_partitions):
            found += answers_to(data, calls[first : first + data.n_partitions])
        data.traffic.count(len(calls) * request.n_bytes + sum(map(len, found)), request, data.n_partitions)
        return np.frombuffer(b"".join(found)).reshape(n_groups, -1)


def _same_memory(one: Any, other: np.ndarray) -> bool:
    return isinstance(one, np.ndarray) and (one.ctypes.data, one.nbytes) == (other.ctypes.data, other.nbytes)


def _senders(data: RayUsers, asked: int, users: np.ndarray) -> list[Sender]:
    """Which partitions have rows of these users, who are in order, and whose; the one that is asked has its own."""
    senders = []
    for part, (first, last) in enumerate(pairwise(np.searchsorted(users, data.bounds))):
        if first < last:
            own = (users[first:last] - data.bounds[part]).astype("<u4")
            senders.append(Sender(None if part == asked else data.actors[part], data.marks[part], own))
    return senders


def _width(statistic: Any, data: RayUsers) -> int:
    """How long vectors are, tried without data."""
    generated = generated_data(data.n_features, data.dtype)
    return int(LocalEngine().vectors(statistic, generated, np.arange(generated.n_users), generated.n_users).shape[1])


def _of_users(statistic: Statistic, data: RayUsers, users: np.ndarray) -> tuple[np.ndarray, int, Request]:
    """Vectors in answers that are small enough to travel by themselves; what bytes everyone's would take; a request."""
    width, request = _width(statistic, data), Request(data, statistic)
    parts = np.searchsorted(data.bounds, users, side="right") - 1
    block, places, calls = max(1, INLINE // (8 * width)), [], []
    for part in range(data.n_partitions):
        own = np.flatnonzero(parts == part)
        for first in range(0, len(own), block):
            some = own[first : first + block]
            places.append(some)
            calls.append(Call(part, "vectors", ((users[some] - data.bounds[part]).astype("<u4"),), request))
    out = np.empty((len(users), width))
    for some, answer in zip(places, answers_to(data, calls), strict=True):
        out[some] = np.frombuffer(answer).reshape(len(some), width)
    return out, 8 * width * data.n_users + -(-data.n_users // block) * request.n_bytes, request


def connect(address: str | None, n_partitions: int | None) -> bool:
    """Reach the cluster, or start one here, once a process; whether all of it is this machine."""
    if address is not None and (not isinstance(address, str) or "://" in address):
        raise ValueError(
            f'Expected address={address!r} to be "host:6379", as `ray start --head` tells it, or "auto": a '
            "driver runs on a machine of the cluster. Nothing was spent."
        )
    with _CONNECTING:
        if not ray.is_initialized():
            _start(address, n_partitions)
        here = ray.get_runtime_context()
    if address not in (None, "auto", here.gcs_address, *_REACHED_AS):
        raise ValueError(
            f"Expected to reach Ray at address={address!r}; this process is with another one, which it tells "
            'as "auto": use that, or another process. Nothing was spent.'
        )
    return [node["NodeID"] for node in ray.nodes() if node["Alive"]] == [here.get_node_id()]


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
            _REACHED_AS.clear()
    except Exception:
        where = "a local Ray to start" if address is None else f"a Ray cluster at address={address!r}"
        raise RuntimeError(
            f"Expected {where}: it cannot be reached. Does it run, in the same version of Ray and Python, and may this "
            "machine reach it? Nothing was spent."
        ) from None
