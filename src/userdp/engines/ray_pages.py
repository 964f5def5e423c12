"""Answers of partitions in pages that travel by themselves, and never through Ray's object store.

What is below 100 KiB goes from process to process in Ray's own messages; anything larger would be put into the object
store, which may write it to a disk. So the first page of an answer comes at once, and the others are asked for. What is
long and secret in a question comes as several arguments (but for samples of rows, and lists of very large groups).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import count
from typing import Any, NamedTuple

import ray

INLINE = 90_000  # bytes that travel by themselves
DONE, FAILED, UNKNOWN_MATRIX, CHANGED, LOST = 0, 1, 2, 3, 4  # how a call went
_FORGOTTEN = 600.0  # seconds after which nobody asks for the rest: whoever did was lost


class Answer(NamedTuple):
    """How a call went, the first of the pages, and by which process's number the others are asked for.

    incarnation: of the partition, another one whenever it is started anew.
    """

    code: int
    page: bytes = b""
    n_pages: int = 1
    incarnation: str = ""
    number: int = 0


class Pages:
    """Makes a partition's answers, and holds the pages that were not sent yet."""

    def __init__(self, incarnation: str) -> None:
        self._incarnation, self._numbers = incarnation, count()
        self._held: dict[int, tuple[float, bytes]] = {}

    def answer(self, whole: bytes) -> Answer:
        number, n_pages, now = next(self._numbers), max(1, -(-len(whole) // INLINE)), time.monotonic()
        for old, (since, _) in [*self._held.items()]:
            if now - since > _FORGOTTEN:
                self._held.pop(old, None)
        if n_pages > 1:
            self._held[number] = now, whole
        return Answer(DONE, whole[:INLINE], n_pages, self._incarnation, number)

    def page(self, incarnation: str, number: int, page: int) -> bytes | None:
        """Pages come in order, and nothing is held after the last; None of what is not held."""
        if incarnation != self._incarnation or number not in self._held:
            return None
        whole = self._held[number][1]
        if (page + 1) * INLINE >= len(whole):
            self._held.pop(number, None)
        return whole[page * INLINE : (page + 1) * INLINE]


def completed(asked: Sequence[tuple[Any, Answer]]) -> list[bytes | None]:
    """Whole answers of actors that gave first pages; None of those whose actors were lost since."""
    later = [
        [actor.page.remote(first.incarnation, first.number, page) for page in range(1, first.n_pages)]
        for actor, first in asked
    ]
    found: list[bytes | None] = []
    for (_, first), references in zip(asked, later, strict=True):
        try:
            pages = [first.page, *ray.get(references)] if references else [first.page]
        except ray.exceptions.RayError:
            pages = [None]
        found.append(None if None in pages else b"".join(pages))
    return found


def pieces(given: bytes | None) -> list[bytes]:
    """Something long as arguments that each travel by themselves; none for nothing."""
    return [given[first : first + INLINE] for first in range(0, len(given), INLINE)] if given else []
