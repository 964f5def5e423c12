"""Users in partitions on Ray, and how these are asked: in requests that are small, and again if a worker was lost."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import ray
from ray import cloudpickle

from userdp.data.users import RemoteUsers, UserData
from userdp.engines.local import EngineLost
from userdp.engines.ray_loaders import MARK_BYTES
from userdp.engines.ray_partition import CHANGED, DONE, FAILED, LOST, Answer, RequestPickler, completed, list_of

_ATTEMPTS, _PAUSE = 8, 1.0  # before a cluster counts as lost; Ray itself restarts actors without end

Transform = Callable[[UserData], UserData]


@dataclass(eq=False)
class Traffic:
    """Bytes that travelled for releases, in all; without lists of who took part, since a sample is secret."""

    n_releases: int = 0
    n_bytes: int = 0
    _matrices: set[bytes] = field(default_factory=set)

    def count(self, n_bytes: int, request: Request | None = None, n_partitions: int = 0) -> None:
        """A release, and matrices that come for the first time, as if all partitions were sent them.

        Which ones are depends on where a sample's users are.
        """
        new = {} if request is None else {k: v for k, v in request.matrices.items() if k not in self._matrices}
        self._matrices.update(new)
        self.n_releases += 1
        self.n_bytes += n_bytes + n_partitions * sum(matrix.nbytes for matrix in new.values())


def lists_of(users: np.ndarray, bounds: np.ndarray) -> dict[int, bytes | None]:
    """Who takes part, by partition, of those that have any of the users; refuses users who are named twice."""
    chosen = np.zeros(int(bounds[-1]), dtype=bool)
    chosen[users] = True
    if np.count_nonzero(chosen) != len(users):
        raise ValueError("Expected each user once.")
    own = {part: chosen[first:last] for part, (first, last) in enumerate(pairwise(bounds))}
    return {part: list_of(mask) for part, mask in own.items() if mask.any() or not (part or len(users))}


@dataclass(frozen=True, eq=False, repr=False)
class RayUsers(RemoteUsers):
    """Users in partitions: user u is number u - bounds[p] of the partition p with bounds[p] <= u < bounds[p + 1].

    marks: of what each partition loaded, which it must have to answer.
    """

    actors: tuple[Any, ...]
    bounds: np.ndarray
    marks: tuple[bytes, ...]
    transforms: tuple[Transform, ...] = ()
    traffic: Traffic = field(default_factory=Traffic)
    known: list[set[bytes]] = field(default_factory=list)  # matrices that each partition was sent
    keeps: Any = None  # what must live as long as the partitions may load
    mapped_by_all: bool = False  # whether every partition maps the rows of all users

    @property
    def n_partitions(self) -> int:
        return len(self.actors)

    @property
    def bytes_per_release(self) -> float:
        """Mean bytes to and from all partitions; vectors of samples are counted as if of everyone."""
        return self.traffic.n_bytes / max(1, self.traffic.n_releases)

    def mapped(self, change: Transform) -> RayUsers:
        """The same users, changed where they are by a picklable function of public numbers, user by user."""
        return replace(self, transforms=(*self.transforms, change), traffic=Traffic())


class Request:
    """What is asked of partitions, as bytes: the users' changes, a statistic and what it is for."""

    def __init__(self, data: RayUsers, *asked: Any) -> None:
        file = io.BytesIO()
        pickler = RequestPickler(file)
        pickler.dump((cloudpickle.dumps(data.transforms), *asked))
        self.body, self.matrices = file.getvalue(), pickler.matrices
        self.n_bytes = MARK_BYTES + len(self.body)


@dataclass(frozen=True, eq=False)
class Call:
    """One question to one partition."""

    part: int
    method: str
    arguments: tuple[Any, ...]
    request: Request

    def submit(self, data: RayUsers, again: bool = False) -> Any:
        """Ask, with those matrices that the partition was not sent before, or again with all of them."""
        known, matrices = data.known[self.part], self.request.matrices
        sent = matrices if again else {digest: matrices[digest] for digest in matrices if digest not in known}
        known.update(sent)
        method = getattr(data.actors[self.part], self.method)
        return method.remote(data.marks[self.part], self.request.body, sent, *self.arguments)


def answers_to(data: RayUsers, calls: Sequence[Call]) -> list[bytes]:
    """What partitions answer, in order. What was lost is asked again: nothing in it is drawn, so nothing changes."""
    answers: dict[int, bytes] = {}
    lost = 0
    pending = {number: call.submit(data) for number, call in enumerate(calls)}
    while pending:
        again = []
        for number, reference in pending.items():
            part, whole = calls[number].part, None
            try:
                first: Answer = ray.get(reference)
            except ray.exceptions.RayError:
                first = Answer(LOST)
            if first.code == FAILED:
                raise ValueError("Expected the statistic to give one vector per group.")
            if first.code == CHANGED:
                raise EngineLost(changed=True)
            if first.code == DONE:
                (whole,) = completed([(data.actors[part], first)])
            if whole is None:
                again.append(number)
                lost += first.code in (LOST, DONE)  # not of one that asks for matrices
                continue
            answers[number] = whole
        if lost > _ATTEMPTS * len(calls):
            raise EngineLost
        if again and lost:
            time.sleep(_PAUSE)
        pending = {number: calls[number].submit(data, again=True) for number in again}
    return [answers[number] for number in range(len(calls))]
