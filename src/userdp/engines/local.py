"""The engine that runs in this process."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from userdp.data.users import UserData
from userdp.vectors.gradients import Statistic


@dataclass(frozen=True)
class LocalEngine:
    """Computes a statistic in this process, on the kernels' threads."""

    def vectors(self, statistic: Statistic, data: UserData, users: np.ndarray, n_groups: int) -> np.ndarray:
        """One float64 vector per group, (n_groups, dim), from users split into contiguous near-equal groups.

        Guarantee: vector j depends on the data of group j's users only, as the statistic guarantees.
        """
        result = statistic(data, users, n_groups)
        if not isinstance(result, np.ndarray) or result.dtype != np.float64:
            kind = result.dtype if isinstance(result, np.ndarray) else type(result).__name__
            raise TypeError(
                f"Expected {_name(statistic)} to return a float64 array, got {kind}: convert its result to float64."
            )
        if result.ndim != 2 or len(result) != n_groups:
            raise ValueError(
                f"Expected {_name(statistic)} to return shape (n_groups={n_groups}, dim), got {result.shape}: "
                f"return one vector per group."
            )
        return result


def _name(statistic: object) -> str:
    return getattr(statistic, "__name__", type(statistic).__name__)
