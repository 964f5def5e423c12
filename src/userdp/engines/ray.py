"""The engine on Ray: partitions of users live in actors, and small totals travel.

The driver, which has the curator, draws who takes part and all noise. It asks each partition (`ray_partition.py`) for
what its users contribute, and adds up whole numbers: the total is bit for bit that of one process. Partitions hold
users' rows, which they load by a loader that can run again: an actor that was killed is started anew by Ray, loads the
same rows, or says that it cannot, and gives the same answer, since nothing there is drawn.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import socket
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

try:
    import ray
    from ray import cloudpickle
except ImportError:
    raise ImportError("Ray is not installed: pip install 'userdp[ray]'. Nothing was spent.") from None

import userdp
from userdp._validate import check_counts
from userdp.data.groups import Options, check_users, fresh_key
from userdp.data.schema import Schema
from userdp.data.store import ARRAYS
from userdp.data.tables import open_parquet
from userdp.data.users import RemoteUsers, UserData
from userdp.engines.local import Contribution, EngineLost, LocalEngine
from userdp.engines.ray_partition import (
    CHANGED,
    FAILED,
    INLINE,
    Facts,
    Loader,
    Page,
    ParquetUsers,
    Part,
    Partition,
    SharedMemory,
    Shipped,
    StoredUsers,
    list_of,
    pieces_of,
    ranges,
)
from userdp.statistics.gradients import Statistic

_ATTEMPTS, _PAUSE = 8, 1.0  # before a cluster counts as lost; Ray itself restarts actors without end
_GATHERED_USERS = 4096  # of groups, whose rows are brought together at a time
_STORE_BYTES = 2**29  # of a local Ray's object store, which long arguments alone go through
_CONNECTION = 10.0  # seconds to reach a cluster in
_CONNECTING = threading.Lock()
_REACHED_AS: list[str] = []  # how the cluster was called that this process is with

Transform: TypeAlias = Callable[[UserData], UserData]


@dataclass(frozen=True, eq=False, repr=False)
class RayUsers(RemoteUsers):
    """Users in partitions: user u is number u - bounds[p] of the partition p with bounds[p] <= u < bounds[p + 1].

    marks: of what each partition loaded, which it must have to answer; loaders: what must live as long as partitions
    may load.
    """

    actors: tuple[Any, ...]
    bounds: np.ndarray
    marks: tuple[bytes, ...]
    loaders: tuple[Loader, ...]
    transforms: tuple[Transform, ...] = ()

    @property
    def n_partitions(self) -> int:
        return len(self.actors)

    def mapped(self, change: Transform) -> RayUsers:
        """The same users, changed where they are by a picklable function of public numbers, user by user."""
        return replace(self, transforms=(*self.transforms, change))

    def question(self, kind: str, statistic: Any = None, contribution: Any = None) -> bytes:
        """What partitions are asked, as bytes: for "rows", a "total" or "vectors", of users as they were changed."""
        return bytes(cloudpickle.dumps((kind, cloudpickle.dumps(self.transforms), statistic, contribution)))

    def lists_of(self, users: np.ndarray) -> dict[int, bytes]:
        """Who takes part, by partition, of those that have any of the users; refuses users who are named twice."""
        chosen = np.zeros(self.n_users, dtype=bool)
        chosen[users] = True
        if np.count_nonzero(chosen) != len(users):
            raise ValueError("A user is named twice.")
        own = {part: chosen[first:last] for part, (first, last) in enumerate(pairwise(self.bounds))}
        return {part: list_of(mask) for part, mask in own.items() if mask.any() or not (part or len(users))}

    def answers(self, question: bytes, lists: Mapping[int, bytes]) -> list[bytes]:
        """What partitions answer, in order. What was lost is asked again: nothing is drawn there."""
        sent = ray.put(question) if len(question) > INLINE else question  # it is public
        answers: dict[int, bytes] = {}
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(_PAUSE)
            streams = {}
            for part in [part for part in lists if part not in answers]:
                method = self.actors[part].ask.options(num_returns="streaming")
                streams[part] = method.remote(self.marks[part], sent, *pieces_of(lists[part]))
            for part, stream in streams.items():
                pages = _received(stream)
                if len({page.incarnation for page in pages}) != 1:  # lost, or by one process and then another
                    continue
                if pages[0].code == FAILED:
                    raise ValueError("The statistic must give one vector per group.")
                if pages[0].code == CHANGED:
                    raise EngineLost(changed=True)
                answers[part] = b"".join(page.content for page in pages)
            if len(answers) == len(lists):
                return [answers[part] for part in lists]
        raise EngineLost


def _received(stream: Any) -> list[Page]:
    """All pages of an answer, or none."""
    try:
        return [ray.get(page) for page in stream]
    except ray.exceptions.RayError:
        return []


@dataclass(frozen=True)
class RayEngine:
    """Computes on a Ray cluster: users live in partitions, one processor each, that are restarted if they die.

    Guarantee: totals are those of `LocalEngine`, bit for bit, and vectors are computed by the same code.

    Parameters
    ----------
    address : str, optional
        "host:6379" of a running cluster, or "auto" for one on this machine; None starts Ray on this machine, or takes
        the one that this process started before.
    n_partitions : int, optional
        How many partitions; by default as many as the cluster has processors.
    ship_rows : bool
        Whether rows that are in this process may go to other machines through Ray's object store, which may write them
        to disks there; not needed if partitions load files themselves (`from_parquet`), nor for a local Ray.
    timeout : float
        Seconds after which partitions that have not loaded are given up.
    """

    address: str | None = None
    n_partitions: int | None = None
    _: KW_ONLY
    ship_rows: bool = False
    timeout: float = 600.0

    def __post_init__(self) -> None:
        if self.n_partitions is not None:
            check_counts(n_partitions=self.n_partitions)

    # --- bringing data to partitions

    def place(self, data: UserData | RemoteUsers) -> RayUsers:
        """The users in partitions, before anything is charged; those that are there already stay."""
        if isinstance(data, RayUsers):
            return data
        if not isinstance(data, UserData):
            raise TypeError(f"Data must be UserData, got {type(data).__name__}: it is another engine's.")
        local = connect(self.address, self.n_partitions)
        n_parts = min(self._number_of_partitions(), max(1, data.n_users // 2))
        parts = list(pairwise(ranges(data.n_users, n_parts)))
        store: Any = getattr(data, "store", None)
        bare = replace(data, user_ids=None, store=None)  # partitions need no ids, and these would travel
        loaders: list[Loader]
        mapped = store is not None and data.weights is None  # which no store holds
        if mapped and all(_same_memory(getattr(data, name), store.arrays[name]) for name in ARRAYS):
            facts = {name: getattr(data, name) for name in ("insecure_seed", "has_targets", "has_intercept")}
            stored = StoredUsers(os.fspath(store.path), facts)
            loaders = [Part(stored, first, last) for first, last in parts]
        elif local:
            shared = SharedMemory(bare)
            loaders = [Part(shared, first, last) for first, last in parts]
        elif self.ship_rows:
            loaders = [Shipped([ray.put(bare.part(first, last))]) for first, last in parts]
        else:
            raise ValueError(
                "Rows of this process would go through the cluster's object store, which may write them to disks: use "
                "RayEngine.from_parquet, whose partitions load files themselves, or pass RayEngine(ship_rows=True) if "
                "it may. Nothing was spent."
            )
        return self._started(loaders, data.insecure_seed, data.fingerprint())

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
        """Users of a Parquet file, or a folder of them, that every node can read at this path; for `fit_users`.

        Each partition reads the column of users, and then those row groups that hold rows of its own: few, where rows
        are sorted by user.

        Parameters
        ----------
        path : str or PathLike
            The same on every node.
        user, features, target, classes, **options
            As in `UserData.from_table`.

        Returns
        -------
        RayUsers
        """
        schema = Schema.declare(open_parquet(path).column_names, user, features, target, classes)
        return self.from_schema(path, schema, **options)

    def from_schema(
        self,
        path: str | os.PathLike[str],
        schema: Schema,
        *,
        insecure_seed: int | None = None,
        **options: Any,
    ) -> RayUsers:
        """The same with columns that are declared already."""
        key = fresh_key() if insecure_seed is None else b"insecure %d" % insecure_seed
        Options(**options | {"insecure_seed": insecure_seed})
        connect(self.address, self.n_partitions)
        n_parts, where, loaders = self._number_of_partitions(), os.fspath(Path(path).resolve()), []
        for part in range(n_parts):
            own = options | {"choice_key": key + b" of part %d" % part}
            loaders.append(ParquetUsers(where, schema, own, part, n_parts))
        return self._started(loaders, insecure_seed)

    def _number_of_partitions(self) -> int:
        return self.n_partitions or max(1, int(ray.cluster_resources().get("CPU", 1)))

    def _started(self, loaders: Sequence[Loader], insecure_seed: int | None, digest: str | None = None) -> RayUsers:
        """Actors that have loaded, and what is public of their users."""
        kind = ray.remote(max_restarts=-1, max_task_retries=-1, scheduling_strategy="SPREAD")(Partition)
        actors = tuple(kind.remote(loader) for loader in loaders)
        try:
            facts: list[Facts] = ray.get([actor.facts.remote() for actor in actors], timeout=self.timeout)
        except ray.exceptions.GetTimeoutError:
            raise RuntimeError(
                f"Some partitions have not loaded within timeout={self.timeout:g} seconds: is the cluster busy, or are "
                "there too few processors? Nothing was spent."
            ) from None
        except ray.exceptions.RayError:
            raise RuntimeError(
                "Partitions do not start on every node of the cluster: is userdp installed on each, in this version? "
                "Nothing was spent."
            ) from None
        troubles = [f"partition {part}: {said.trouble}" for part, said in enumerate(facts) if said.trouble]
        if troubles:
            raise ValueError(f"Not every partition can load; {troubles[0]} Nothing was spent.")
        if any(said.version != userdp.__version__ for said in facts):
            raise RuntimeError(
                f"Some nodes of the cluster have another version of userdp: install {userdp.__version__}, as here. "
                "Nothing was spent."
            )
        if len({said.columns for said in facts}) > 1:
            raise ValueError("Partitions have different columns: the files differ. Nothing was spent.")
        if len({said.sources for said in facts}) > 1:
            raise ValueError(
                "Partitions have loaded files of different names, sizes or times: they changed meanwhile, or nodes "
                "have copies with other times (`cp -p` keeps them). Nothing was spent."
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
            insecure_seed,
            self,
            digest or together,
            actors,
            bounds,
            tuple(said.mark for said in facts),
            tuple(loaders),
        )

    # --- what a curator asks for

    def total(self, statistic: Statistic, contribution: Contribution, data: RayUsers, users: np.ndarray) -> np.ndarray:
        """What the users' vectors contribute, added up; each partition adds up its own users'."""
        answers = data.answers(data.question("total", statistic, contribution), data.lists_of(users))
        totals = [_array(answer) for answer in answers]
        if len({len(total) for total in totals}) > 1:
            raise ValueError("Totals differ in length.")
        return np.asarray(np.sum(totals, axis=0))

    def vectors(self, statistic: Statistic, data: RayUsers, users: np.ndarray, n_groups: int) -> np.ndarray:
        """One vector per group: of single users where they live, of groups here, where some rows at a time come.

        Rows of a group are visited in one mixed order, so that an iterate would have to travel with almost every row.
        """
        if n_groups == len(users):
            answers = data.answers(data.question("vectors", statistic), data.lists_of(users))
            return np.concatenate([_array(answer) for answer in answers])[np.argsort(np.argsort(users))]
        sizes = np.full(n_groups, len(users) // n_groups) + (np.arange(n_groups) < len(users) % n_groups)
        edges, found = np.concatenate([[0], np.cumsum(sizes)]), []
        together = max(1, _GATHERED_USERS // int(sizes[0]))
        for first in range(0, n_groups, together):
            last = min(first + together, n_groups)
            some, numbers = _gathered(data, users[edges[first] : edges[last]])
            found.append(LocalEngine().vectors(statistic, some, numbers, last - first))
        return np.concatenate(found)


def _array(answer: bytes) -> np.ndarray:
    return np.asarray(np.load(io.BytesIO(answer), allow_pickle=False))


def _gathered(data: RayUsers, users: np.ndarray) -> tuple[UserData, np.ndarray]:
    """A copy of these users' rows, and the numbers that they have in it."""
    lists = data.lists_of(users)
    parts: list[UserData] = [pickle.loads(answer) for answer in data.answers(data.question("rows"), lists)]
    order, starts = np.sort(users), np.cumsum([0, *(part.n_users for part in parts)])
    ends = np.searchsorted(order, data.bounds)
    # A part of one user has another one without rows, who is in no group.
    numbers = [start + np.arange(ends[part + 1] - ends[part]) for start, part in zip(starts, lists, strict=False)]
    return UserData.joined(parts), np.concatenate(numbers)[np.searchsorted(order, users)]


def _same_memory(one: Any, other: np.ndarray) -> bool:
    return isinstance(one, np.ndarray) and (one.ctypes.data, one.nbytes) == (other.ctypes.data, other.nbytes)


def connect(address: str | None, n_partitions: int | None) -> bool:
    """Reach the cluster, or start one here, once a process; whether all of it is this machine."""
    if address is not None and (not isinstance(address, str) or "://" in address):
        raise ValueError(
            f'address must be "host:6379", as `ray start --head` shows it, or "auto", got {address!r}: a driver runs '
            "on a machine of the cluster. Nothing was spent."
        )
    with _CONNECTING:
        if not ray.is_initialized():
            _start(address, n_partitions)
        here = ray.get_runtime_context()
    if address not in (None, "auto", here.gcs_address, *_REACHED_AS):
        raise ValueError(
            f'This process is connected to another Ray than that at address={address!r}: use "auto", or another '
            "process. Nothing was spent."
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
        where = "A local Ray" if address is None else f"The Ray cluster at address={address!r}"
        raise RuntimeError(
            f"{where} cannot be reached: does it run, in the same version of Ray and Python, and may this machine "
            "reach it? Nothing was spent."
        ) from None
