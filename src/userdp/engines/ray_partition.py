"""A partition of users on Ray: the actor that computes on their rows, and how it is asked.

Nothing of a user's data is in what it says or raises: whatever fails is told as a number. Matrices that stay the same
for many releases (a basis) are sent once, and known by their digests after. Each call comes with the mark of what was
loaded when the partition was placed: one that was started anew, and loaded anything else, computes nothing.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from ray import cloudpickle

import userdp
from userdp.data.users import UserData
from userdp.engines.local import LocalEngine
from userdp.engines.ray_loaders import Loaded, Loader, Sources

DONE, FAILED, UNKNOWN_MATRIX, CHANGED = 0, 1, 2, 3  # how a call went
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
        import numba

        with open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), 1)
            os.dup2(nothing.fileno(), 2)
        warnings.simplefilter("ignore")
        np.seterr(all="ignore")
        numba.set_num_threads(1)
        self._loader = loader
        self._held: tuple[Loaded, bytes] | None = None
        self._changed: dict[bytes, UserData] = {}
        self._matrices: dict[bytes, np.ndarray] = {}
        self._vectors: dict[bytes, np.ndarray] = {}  # of the last reduction

    def facts(self) -> Facts:
        try:
            (data, n_users, digest, ends, sources), mark = self._loaded()
            shape = (n_users, data.n_features, str(data.dtype), data.has_targets, data.has_intercept)
            return Facts(userdp.__version__, "", *shape, digest, ends, mark, sources)
        except (ValueError, TypeError, FileNotFoundError) as error:  # which speak of files, names and types only
            said = str(error)
            return Facts(trouble=said if said.startswith("Expected ") else "Expected to load it.")
        except BaseException:
            return Facts(trouble="Expected to load it.")

    def total(
        self, mark: bytes, request: bytes, matrices: dict[bytes, np.ndarray], users: bytes | None
    ) -> tuple[int, bytes]:
        """What these users' vectors contribute: None for all, else a `list_of` numbers."""
        try:
            asked = self._read(mark, request, matrices)
            if isinstance(asked, int):
                return asked, b""
            (statistic, contribution), data = asked
            self._vectors = {}
            total = LocalEngine().total(statistic, contribution, data, _numbers(users, self._n_users))
            return (DONE, total.tobytes()) if total.dtype == np.int64 and total.ndim == 1 else (FAILED, b"")
        except BaseException:
            return FAILED, b""

    def vectors(
        self, mark: bytes, request: bytes, matrices: dict[bytes, np.ndarray], users: np.ndarray
    ) -> tuple[int, bytes]:
        """One vector of each of these users."""
        try:
            asked = self._read(mark, request, matrices)
            if isinstance(asked, int):
                return asked, b""
            (statistic,), data = asked
            return DONE, LocalEngine().vectors(statistic, data, users.astype(np.int64), len(users)).tobytes()
        except BaseException:
            return FAILED, b""

    def reduced(
        self, mark: bytes, request: bytes, matrices: dict[bytes, np.ndarray], users: bytes | None, reduction: bytes
    ) -> tuple[int, bytes]:
        """What a function makes of these users' vectors, which are kept until others are asked for."""
        try:
            wanted = hashlib.sha256(request + (users or b"")).digest()
            if wanted not in self._vectors:
                asked = self._read(mark, request, matrices)
                if isinstance(asked, int):
                    return asked, b""
                (statistic,), data = asked
                numbers = _numbers(users, self._n_users)
                self._vectors = {wanted: LocalEngine().vectors(statistic, data, numbers, len(numbers))}
            return DONE, array_bytes(cloudpickle.loads(reduction)(self._vectors[wanted]))
        except BaseException:
            return FAILED, b""

    def rows(self, mark: bytes, transforms: bytes, users: np.ndarray) -> UserData | int:
        """A copy of these users' rows, for the partition that computes on their groups; or how the call went."""
        try:
            return self._transformed(transforms).taken(users) if self._has(mark) else CHANGED
        except BaseException:
            return FAILED

    def groups(
        self,
        mark: bytes,
        request: bytes,
        matrices: dict[bytes, np.ndarray],
        n_groups: int,
        places: np.ndarray,
        *parts: UserData | int,
    ) -> tuple[int, bytes]:
        """One vector of each group, from rows that came; user j is places[1, j] of part places[0, j]."""
        try:
            asked = self._read(mark, request, matrices)
            if isinstance(asked, int):
                return asked, b""
            (statistic,), _ = asked
            came = [part for part in parts if isinstance(part, UserData)]
            if len(came) < len(parts):
                return (CHANGED if CHANGED in parts else FAILED), b""
            starts = np.cumsum([0, *(part.n_users for part in came)])
            users = starts[places[0]] + places[1]
            return DONE, LocalEngine().vectors(statistic, UserData.joined(came), users, n_groups).tobytes()
        except BaseException:
            return FAILED, b""

    def _loaded(self) -> tuple[Loaded, bytes]:
        """What it has, and the mark of it."""
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
        if transforms not in self._changed:
            data = self._loaded()[0].data
            for change in cloudpickle.loads(transforms):
                data = change(data)
            self._changed = {transforms: data}
        return self._changed[transforms]

    def _read(
        self, mark: bytes, request: bytes, matrices: dict[bytes, np.ndarray]
    ) -> tuple[tuple[Any, ...], UserData] | int:
        """What was asked for, and the data; or why there is none."""
        if not self._has(mark):
            return CHANGED
        self._matrices = dict([*self._matrices.items(), *matrices.items()][-max(_MATRICES, len(matrices)) :])
        reader = _Unpickler(request, self._matrices)
        try:
            transforms, *asked = reader.load()
        except _UnknownMatrixError:
            return UNKNOWN_MATRIX
        return tuple(asked), self._transformed(transforms)


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


def _numbers(users: bytes | None, n_users: int) -> np.ndarray:
    if users is None:
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
