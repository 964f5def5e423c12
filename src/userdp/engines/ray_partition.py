"""A partition of users on Ray: the actor that computes on their rows, and how it is asked.

Nothing of a user's data is in what it says or raises: whatever fails is told as a number. Matrices that stay the same
for many releases (a basis) are sent once, and known by their digests after. Each call comes with the mark of what was
loaded when the partition was placed: one that was started anew, and loaded anything else, computes nothing.

Calls are answered one after the other; but rows for other partitions' groups, and later pages, on a thread of their
own: two partitions that compute groups may wait for each other's rows.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import ray
from ray import cloudpickle

import userdp
from userdp.data.users import UserData
from userdp.engines.local import LocalEngine
from userdp.engines.ray_loaders import Loaded, Loader, Sources
from userdp.engines.ray_pages import CHANGED, DONE, FAILED, LOST, UNKNOWN_MATRIX, Answer, Pages, completed
from userdp.statistics.rows import limit_threads

SENDING = "sending"  # the thread on which rows and later pages are sent
_MATRICES = 32  # that an actor remembers


@dataclass(frozen=True)
class Facts:
    """What a partition says of itself: to the curator, who holds the data anyway.

    trouble: why it could not load, in userdp's own words, or empty; ends: of sorted files, the first and the last user;
    mark: of what it loaded, with the files, `sources`, that it is from.
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
    mark: bytes = b""
    sources: Sources = ()


class Partition:
    """Some users, in an actor. It draws nothing, keeps nothing that matters, prints nothing and raises nothing."""

    def __init__(self, loader: Loader) -> None:
        with open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), 1)
            os.dup2(nothing.fileno(), 2)
        warnings.simplefilter("ignore")
        self._loader, self._loading = loader, threading.RLock()
        self._held: tuple[Loaded, bytes] | None = None
        self._changed: dict[bytes, UserData] = {}
        self._matrices: dict[bytes, np.ndarray] = {}
        self._vectors: dict[bytes, np.ndarray] = {}  # of the last reduction
        self._pages = Pages(ray.get_runtime_context().get_worker_id())

    def facts(self) -> Facts:
        try:
            (data, n_users, digest, ends, sources, _), mark = self._loaded()
            shape = (n_users, data.n_features, str(data.dtype), data.has_targets, data.has_intercept)
            return Facts(userdp.__version__, "", *shape, digest, ends, mark, sources)
        except (ValueError, TypeError, FileNotFoundError) as error:  # which speak of files, names and types only
            said = str(error)
            return Facts(trouble=said if said.startswith("Expected ") else "Expected to load it.")
        except BaseException:
            return Facts(trouble="Expected to load it.")

    def total(self, mark: bytes, request: bytes, matrices: dict[bytes, np.ndarray], *users: bytes) -> Answer:
        """What these users' vectors contribute: none for all, else pieces of a `list_of` numbers."""
        try:
            asked = self._read(mark, request, matrices)
            if isinstance(asked, int):
                return Answer(asked)
            statistic, contribution = asked.what
            self._vectors = {}
            data = self._transformed(asked.transforms)
            total = LocalEngine().total(statistic, contribution, data, _numbers(b"".join(users), self._n_users))
            valid = total.dtype == np.int64 and total.ndim == 1
            return self._pages.answer(total.tobytes()) if valid else Answer(FAILED)
        except BaseException:
            return Answer(FAILED)

    def vectors(self, mark: bytes, request: bytes, matrices: dict[bytes, np.ndarray], users: np.ndarray) -> Answer:
        """One vector of each of these users."""
        try:
            asked = self._read(mark, request, matrices)
            if isinstance(asked, int):
                return Answer(asked)
            return self._pages.answer(self._vectors_of(asked, users.astype(np.int64)).tobytes())
        except BaseException:
            return Answer(FAILED)

    def reduced(
        self, mark: bytes, request: bytes, matrices: dict[bytes, np.ndarray], n_users: int, *pieces: bytes
    ) -> Answer:
        """What a function makes of these users' vectors, which are kept until others are asked for.

        pieces: as many of the list of users as `n_users` says, then of the function. A partition that was started anew
        may be on another processor, or have other machine code: its vectors may differ in their last digits from those
        that earlier answers are of. Answers tell which one it is.
        """
        try:
            users, reduction = b"".join(pieces[:n_users]), b"".join(pieces[n_users:])
            wanted = hashlib.sha256(request + users).digest()
            if wanted not in self._vectors:
                asked = self._read(mark, request, matrices)
                if isinstance(asked, int):
                    return Answer(asked)
                self._vectors = {wanted: self._vectors_of(asked, _numbers(users, self._n_users))}
            return self._pages.answer(array_bytes(cloudpickle.loads(reduction)(self._vectors[wanted])))
        except BaseException:
            return Answer(FAILED)

    def groups(
        self,
        mark: bytes,
        request: bytes,
        matrices: dict[bytes, np.ndarray],
        n_groups: int,
        users: np.ndarray,
        senders: Sequence[Sender],
    ) -> Answer:
        """One vector of each group of these users, as all partitions together number them.

        senders: whom to ask for rows, partition after partition, each for its users of these, in order; none if this
        one maps everyone's.
        """
        try:
            asked = self._read(mark, request, matrices)
            if isinstance(asked, int):
                return Answer(asked)
            (statistic,), everyone = asked.what, self._loaded()[0].everyone
            if everyone is not None:
                data = _changed_by(asked.transforms, everyone.taken(users.astype(np.int64)))
                numbers = np.arange(len(users))
            else:
                parts = self._received(senders, asked.transforms)
                if isinstance(parts, int):
                    return Answer(parts)
                data, numbers = UserData.joined(parts), np.empty(len(users), dtype=np.int64)
                # A part of one user has another one without rows, who is in no group.
                starts = np.cumsum([0, *(part.n_users for part in parts)])
                found = [start + np.arange(len(sender.users)) for start, sender in zip(starts, senders, strict=False)]
                numbers[np.argsort(users)] = np.concatenate(found)
            return self._pages.answer(LocalEngine().vectors(statistic, data, numbers, n_groups).tobytes())
        except BaseException:
            return Answer(FAILED)

    @ray.method(concurrency_group=SENDING)  # type: ignore[untyped-decorator]
    def rows(self, mark: bytes, transforms: bytes, users: np.ndarray) -> Answer:
        """A copy of these users' rows, for the partition that computes on their groups."""
        try:
            if not self._has(mark):
                return Answer(CHANGED)
            return self._pages.answer(pickle.dumps(self._taken(transforms, users), protocol=5))
        except BaseException:
            return Answer(FAILED)

    @ray.method(concurrency_group=SENDING)  # type: ignore[untyped-decorator]
    def page(self, incarnation: str, number: int, page: int) -> bytes | None:
        """A later page of an answer; None if it is not known here any more."""
        return self._pages.page(incarnation, number, page)

    def _received(self, senders: Sequence[Sender], transforms: bytes) -> list[UserData] | int:
        """The rows of each sender's users, or how the calls went."""
        others = [sender for sender in senders if sender.actor is not None]
        try:
            first = ray.get([sender.actor.rows.remote(sender.mark, transforms, sender.users) for sender in others])
        except ray.exceptions.RayError:
            return LOST
        codes = {answer.code for answer in first}
        if codes - {DONE}:
            return CHANGED if CHANGED in codes else FAILED
        whole = completed([(sender.actor, answer) for sender, answer in zip(others, first, strict=True)])
        if None in whole:
            return LOST
        came = iter([pickle.loads(rows) for rows in whole if rows is not None])
        return [self._taken(transforms, s.users) if s.actor is None else next(came) for s in senders]

    def _taken(self, transforms: bytes, users: np.ndarray) -> UserData:
        return self._transformed(transforms).taken(users.astype(np.int64))

    def _vectors_of(self, asked: _Asked, users: np.ndarray) -> np.ndarray:
        (statistic,) = asked.what
        return LocalEngine().vectors(statistic, self._transformed(asked.transforms), users, len(users))

    def _loaded(self) -> tuple[Loaded, bytes]:
        """What it has, and the mark of it."""
        limit_threads(1)  # of this thread, and so are numpy's warnings
        np.seterr(all="ignore")
        with self._loading:
            if self._held is None:
                loaded = self._loader.load()
                self._held = loaded, loaded.mark
            return self._held

    @property
    def _n_users(self) -> int:
        return self._loaded()[0].n_users

    def _has(self, mark: bytes) -> bool:
        """Whether it could load, and has what was placed; no statistic can say so, since none runs here."""
        try:
            return self._loaded()[1] == mark
        except BaseException:
            return False

    def _transformed(self, transforms: bytes) -> UserData:
        """The data as declared changes make it, which are made once."""
        with self._loading:
            if transforms not in self._changed:
                self._changed = {transforms: _changed_by(transforms, self._loaded()[0].data)}
            return self._changed[transforms]

    def _read(self, mark: bytes, request: bytes, matrices: dict[bytes, np.ndarray]) -> _Asked | int:
        """What was asked for; or why there is none."""
        if not self._has(mark):
            return CHANGED
        self._matrices = dict([*self._matrices.items(), *matrices.items()][-max(_MATRICES, len(matrices)) :])
        reader = _Unpickler(request, self._matrices)
        try:
            transforms, *what = reader.load()
        except _UnknownMatrixError:
            return UNKNOWN_MATRIX
        return _Asked(tuple(what), transforms)


def _changed_by(transforms: bytes, data: UserData) -> UserData:
    for change in cloudpickle.loads(transforms):
        data = change(data)
    return data


class Sender(NamedTuple):
    """A partition that is asked for rows, the mark of what it must have loaded, and which users, as it numbers them.

    actor: None for the one that asks.
    """

    actor: Any
    mark: bytes
    users: np.ndarray


class _Asked(NamedTuple):
    """A statistic and what it is for, and the users' changes, which are still to be made."""

    what: tuple[Any, ...]
    transforms: bytes


class RequestPickler(cloudpickle.Pickler):  # type: ignore[misc]  # Ray has no types here
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


def list_of(chosen: np.ndarray) -> bytes | None:
    """Who takes part, of a mask: None for all; numbers, or a bit for each user, whichever is shorter."""
    if chosen.all():
        return None
    numbers = np.flatnonzero(chosen).astype("<u4").tobytes()
    bits = np.packbits(chosen).tobytes()
    return b"n" + numbers if len(numbers) < len(bits) else b"b" + bits


def _numbers(users: bytes, n_users: int) -> np.ndarray:
    if not users:
        return np.arange(n_users)
    if users[:1] == b"n":
        return np.frombuffer(users[1:], "<u4").astype(np.int64)
    return np.flatnonzero(np.unpackbits(np.frombuffer(users[1:], np.uint8), count=n_users))


def array_bytes(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=False)
    return file.getvalue()


def array_of(found: bytes) -> np.ndarray:
    array: np.ndarray = np.lib.format.read_array(io.BytesIO(found), allow_pickle=False)
    return array
