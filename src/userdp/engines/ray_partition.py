"""A partition of users on Ray: the actor that computes on their rows, and how it is asked.

Nothing of a user's data is in what it says or raises: whatever fails becomes a number. Matrices that stay the same for
many releases (a basis) are sent once, and known by their digests after. Each call comes with the mark of what was
loaded when the partition was placed: one that was started anew, and loaded anything else, computes nothing.

Calls are answered one after the other; but rows for other partitions' groups, and later pages, on a thread of their
own: two partitions that compute groups may wait for each other's rows.

What is below 100 KiB goes from process to process in Ray's own messages; anything larger would be put into the object
store, which may write it to a disk. So the first page of an answer comes at once, and the others are asked for. What is
long and secret in a question comes as several arguments (but for samples of rows, and lists of very large groups).
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import ray
from ray import cloudpickle

import userdp
from userdp.data.users import UserData
from userdp.engines.local import LocalEngine
from userdp.engines.ray_loaders import Loaded, Loader, Sources
from userdp.statistics.rows import limit_threads

SENDING = "sending"  # the thread on which rows and later pages are sent
INLINE = 90_000  # bytes that travel by themselves
DONE, FAILED, UNKNOWN_MATRIX, CHANGED, LOST = 0, 1, 2, 3, 4  # how a call went
_MATRICES = 32  # that an actor remembers
_FORGOTTEN = 600.0  # seconds after which nobody asks for the rest of an answer: whoever did was lost


class Answer(NamedTuple):
    """How a call went, the first of the pages, and by which process's number the others are asked for.

    incarnation: of the partition, another one whenever it is started anew.
    """

    code: int
    page: bytes = b""
    n_pages: int = 1
    incarnation: str = ""
    number: int = 0


@dataclass(frozen=True)
class Facts:
    """What a partition says of itself: to the curator, who holds the data anyway.

    trouble: why it could not load, in userdp's own words, or empty; columns: number of features, type of rows, whether
    there are targets and an intercept; ends: of sorted files, the first and the last user; mark: of what it loaded,
    with the files, `sources`, that it is from.
    """

    version: str = userdp.__version__
    trouble: str = ""
    n_users: int = 0
    columns: tuple[int, str, bool, bool] = (0, "", False, False)
    digest: str = ""
    ends: tuple[Any, ...] = ()
    mark: bytes = b""
    sources: Sources = ()


class Sender(NamedTuple):
    """A partition that is asked for rows, the mark of what it must have loaded, and which users, as it numbers them.

    actor: None for the one that asks.
    """

    actor: Any
    mark: bytes
    users: np.ndarray


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
        self._incarnation, self._numbers = ray.get_runtime_context().get_worker_id(), count()
        self._unsent: dict[int, tuple[float, bytes]] = {}  # answers with later pages, by number, and since when

    def facts(self) -> Facts:
        try:
            (data, n_users, digest, ends, sources, _), mark = self._loaded()
            columns = (data.n_features, str(data.dtype), data.has_targets, data.has_intercept)
            return Facts(userdp.__version__, "", n_users, columns, digest, ends, mark, sources)
        except (ValueError, TypeError, FileNotFoundError) as error:  # which speak of files, names and types only
            said = str(error)
            return Facts(trouble=said if said.startswith("Expected ") else "Expected to load it.")
        except BaseException:
            return Facts(trouble="Expected to load it.")

    def total(self, mark: bytes, request: bytes, matrices: dict[bytes, np.ndarray], *users: bytes) -> Answer:
        """What these users' vectors contribute: none for all, else pieces of a `list_of` numbers."""

        def compute(transforms: bytes, statistic: Any, contribution: Any) -> bytes:
            data = self._transformed(transforms)
            total = LocalEngine().total(statistic, contribution, data, self._numbers_of(b"".join(users)))
            if total.dtype != np.int64 or total.ndim != 1:
                raise TypeError
            return total.tobytes()

        return self._answer(mark, request, matrices, compute)

    def vectors(self, mark: bytes, request: bytes, matrices: dict[bytes, np.ndarray], users: np.ndarray) -> Answer:
        """One vector of each of these users."""

        def compute(transforms: bytes, statistic: Any) -> bytes:
            return self._vectors_of(transforms, statistic, users.astype(np.int64)).tobytes()

        return self._answer(mark, request, matrices, compute)

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

        def compute(transforms: bytes, statistic: Any) -> bytes | int:
            everyone = self._loaded()[0].everyone
            if everyone is not None:
                data = _changed_by(transforms, everyone.taken(users.astype(np.int64)))
                return LocalEngine().vectors(statistic, data, np.arange(len(users)), n_groups).tobytes()
            parts = self._received(senders, transforms)
            if isinstance(parts, int):
                return parts
            # A part of one user has another one without rows, who is in no group.
            starts = np.cumsum([0, *(part.n_users for part in parts)])
            found = [start + np.arange(len(sender.users)) for start, sender in zip(starts, senders, strict=False)]
            numbers = np.empty(len(users), dtype=np.int64)
            numbers[np.argsort(users)] = np.concatenate(found)
            return LocalEngine().vectors(statistic, UserData.joined(parts), numbers, n_groups).tobytes()

        return self._answer(mark, request, matrices, compute)

    @ray.method(concurrency_group=SENDING)  # type: ignore[untyped-decorator]
    def rows(self, mark: bytes, transforms: bytes, users: np.ndarray) -> Answer:
        """A copy of these users' rows, for the partition that computes on their groups."""
        try:
            if not self._has(mark):
                return Answer(CHANGED)
            return self._paged(pickle.dumps(self._transformed(transforms).taken(users.astype(np.int64)), protocol=5))
        except BaseException:
            return Answer(FAILED)

    @ray.method(concurrency_group=SENDING)  # type: ignore[untyped-decorator]
    def page(self, incarnation: str, number: int, page: int) -> bytes | None:
        """A later page of an answer, in order, and nothing is held after the last; None if it is not known here."""
        if incarnation != self._incarnation or number not in self._unsent:
            return None
        whole = self._unsent[number][1]
        if (page + 1) * INLINE >= len(whole):
            self._unsent.pop(number, None)
        return whole[page * INLINE : (page + 1) * INLINE]

    def _answer(
        self, mark: bytes, request: bytes, matrices: dict[bytes, np.ndarray], compute: Callable[..., bytes | int]
    ) -> Answer:
        """What `compute` makes of the users' changes and of what was asked for, or the number of what went wrong."""
        try:
            if not self._has(mark):
                return Answer(CHANGED)
            self._matrices = dict([*self._matrices.items(), *matrices.items()][-max(_MATRICES, len(matrices)) :])
            try:
                asked = _Unpickler(request, self._matrices).load()
            except _UnknownMatrixError:
                return Answer(UNKNOWN_MATRIX)
            found = compute(*asked)
            return Answer(found) if isinstance(found, int) else self._paged(found)
        except BaseException:
            return Answer(FAILED)

    def _paged(self, whole: bytes) -> Answer:
        """An answer's first page; the others are held until they are asked for."""
        number, n_pages, now = next(self._numbers), max(1, -(-len(whole) // INLINE)), time.monotonic()
        for old, (since, _) in [*self._unsent.items()]:
            if now - since > _FORGOTTEN:
                self._unsent.pop(old, None)
        if n_pages > 1:
            self._unsent[number] = now, whole
        return Answer(DONE, whole[:INLINE], n_pages, self._incarnation, number)

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
        data = self._transformed(transforms)
        return [data.taken(s.users.astype(np.int64)) if s.actor is None else next(came) for s in senders]

    def _vectors_of(self, transforms: bytes, statistic: Any, users: np.ndarray) -> np.ndarray:
        return LocalEngine().vectors(statistic, self._transformed(transforms), users, len(users))

    def _loaded(self) -> tuple[Loaded, bytes]:
        """What it has, and the mark of it."""
        limit_threads(1)  # of this thread, and so are numpy's warnings
        np.seterr(all="ignore")
        with self._loading:
            if self._held is None:
                loaded = self._loader.load()
                self._held = loaded, loaded.mark
            return self._held

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

    def _numbers_of(self, users: bytes) -> np.ndarray:
        """Whom a `list_of` users names."""
        n_users = self._loaded()[0].n_users
        if not users:
            return np.arange(n_users)
        if users[:1] == b"n":
            return np.frombuffer(users[1:], "<u4").astype(np.int64)
        return np.flatnonzero(np.unpackbits(np.frombuffer(users[1:], np.uint8), count=n_users))


def _changed_by(transforms: bytes, data: UserData) -> UserData:
    for change in cloudpickle.loads(transforms):
        data = change(data)
    return data


def completed(asked: Sequence[tuple[Any, Answer]]) -> list[bytes | None]:
    """Whole answers of actors that gave first pages; None of those whose actors were lost since."""
    later = [
        [actor.page.remote(first.incarnation, first.number, page) for page in range(1, first.n_pages)]
        for actor, first in asked
    ]
    found: list[bytes | None] = []
    for (_, first), references in zip(asked, later, strict=True):
        try:
            pages = [first.page, *ray.get(references)]
        except ray.exceptions.RayError:
            pages = [None]
        found.append(None if None in pages else b"".join(pages))
    return found


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


def pieces(given: bytes | None) -> list[bytes]:
    """Something long as arguments that each travel by themselves; none for nothing."""
    return [given[first : first + INLINE] for first in range(0, len(given), INLINE)] if given else []
