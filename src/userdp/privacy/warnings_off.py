"""No warning while private data is handled: whether and what numpy warns depends on values."""

from __future__ import annotations

import os
import threading
import warnings


class Quiet:
    """Ignores warnings while at least one thread is inside.

    Filters belong to the whole process: one that leaves must not let another's warnings through.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew, with a lock that nobody holds."""
        self._lock, self._inside, self._filters = threading.Lock(), 0, warnings.catch_warnings()

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._filters = warnings.catch_warnings()
                self._filters.__enter__()
                warnings.simplefilter("ignore")

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._filters.__exit__(None, None, None)


QUIET = Quiet()
# A child made while another thread was inside would wait for a lock that nobody holds there.
os.register_at_fork(after_in_child=QUIET.forget)
