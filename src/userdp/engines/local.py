"""The engine that runs in this process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import scipy.sparse

from userdp.data.sparse import SparseRows
from userdp.data.users import UserData
from userdp.statistics import totals
from userdp.statistics.gradients import ClippedGradient, MeanGradient, Statistic
from userdp.statistics.moments import ColumnScales, MomentShape

# Statistics whose vectors are added up without being made. No subclasses: they may compute something else.
_ADDED_UP = (ClippedGradient, MomentShape)
# Those whose vectors are sparse where rows are.
_SPARSE = (ClippedGradient, MeanGradient, ColumnScales, MomentShape)


class EngineLost(RuntimeError):
    """Where an engine computes cannot be reached any more, or files changed from which it loads. Nothing was released.

    changed: whether it is the files.
    """

    def __init__(self, changed: bool = False) -> None:
        self.changed = bool(changed)
        super().__init__(
            "The files that workers load have changed since the fit began, or are gone: a worker that was restarted "
            "found other users. Nothing was released, what was charged is spent: with a checkpoint, and the same users "
            "in the files again, the same call resumes."
            if changed
            else "The machines that hold the data cannot be reached any more. Nothing was released, what was charged "
            "is spent: with a checkpoint the same call resumes."
        )


class Contribution(Protocol):
    """What vectors add to a mechanism's total, wherever they are computed: picklable, of public numbers."""

    @property
    def block(self) -> int:
        """How many vectors to hold at a time, where they are held."""

    @property
    def clips_to(self) -> tuple[float, int] | None:
        """The radius that vectors are clipped to, and how many bits of it a total holds; None but for the 2-norm."""

    def __call__(self, vectors: np.ndarray | scipy.sparse.csr_array) -> np.ndarray:
        """Whole numbers that add up: a row's part is a function of this row alone."""


@dataclass(frozen=True)
class LocalEngine:
    """Computes a statistic in this process, on all cores."""

    def place(self, data: UserData) -> UserData:
        """The data as it is; refuses users whose rows are elsewhere."""
        if not isinstance(data, UserData):
            raise TypeError(f"Data must be UserData, got {type(data).__name__}: leave the engine out, or pass its own.")
        totals.forget(data)
        return data

    def vectors(self, statistic: Statistic, data: UserData, users: np.ndarray, n_groups: int) -> np.ndarray:
        """One float64 vector per group, (n_groups, dim), from users split into contiguous near-equal groups.

        Guarantee: vector j depends on the data of group j's users only, as the statistic guarantees.
        """
        try:
            result = statistic(data, users, n_groups)
        except EngineLost:  # which is not for a statistic to say
            raise ValueError(f"{_name(statistic)} must give vectors.") from None
        if not isinstance(result, np.ndarray) or result.dtype != np.float64:
            kind = result.dtype if isinstance(result, np.ndarray) else type(result).__name__
            raise TypeError(
                f"{_name(statistic)} must return a float64 array, got {kind}: convert its result to float64."
            )
        if result.ndim != 2 or len(result) != n_groups:
            raise ValueError(
                f"{_name(statistic)} must return shape (n_groups={n_groups}, dim), got {result.shape}: return one "
                "vector per group."
            )
        return result

    def total(self, statistic: Statistic, contribution: Contribution, data: UserData, users: np.ndarray) -> np.ndarray:
        """What the users' vectors contribute to a mechanism's total, added up: a few whole numbers.

        Clipped gradients and moments of this package are added up without a vector of each user
        (`statistics.totals`); vectors of other statistics come in blocks. In order of storage, whatever the order of
        `users`.

        Guarantee: replacing a user moves the sum by at most what the user's vectors are apart, and
        `clip.SHARED_ROUNDING` of the radius.
        """
        users = np.arange(data.n_users) if len(users) == data.n_users else np.sort(users)
        clipped = contribution.clips_to
        if isinstance(statistic, _ADDED_UP) and type(statistic) in _ADDED_UP and clipped is not None and len(users):
            found = statistic.total(data, users, *clipped)
            if found is not None:
                return found
        sparse = type(statistic) in _SPARSE and isinstance(data.rows, SparseRows)
        made: Any = statistic
        total: Any = 0
        for first in range(0, max(1, len(users)), contribution.block):
            part = users[first : first + contribution.block]
            vectors = made.vectors(data, part) if sparse else self.vectors(statistic, data, part, len(part))
            more = contribution(vectors)
            del vectors  # before the next ones are made
            if first and more.shape != total.shape:
                raise ValueError(f"{_name(statistic)} must return vectors of one length.")
            total = total + more
        return np.asarray(total)


def _name(statistic: object) -> str:
    return getattr(statistic, "__name__", type(statistic).__name__)
