"""How uncertain weights are: covariances that privacy's noise and the choice of people give them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Uncertainty:
    """Covariance of weights: `noise` of privacy, and `sampling` of users; their sum is that of the estimate.

    Computed from releases and public numbers, so it may be shown. `gradient_noise` is the covariance that noise gave to
    the gradient which the weights were computed from, where that is known: the least that intervals have to cover.
    """

    noise: np.ndarray
    sampling: np.ndarray
    gradient_noise: np.ndarray | None = None

    @property
    def covariance(self) -> np.ndarray:
        return np.asarray(self.noise + self.sampling)

    def mapped(self, matrix: np.ndarray) -> Uncertainty:
        """That of matrix @ weights."""
        return Uncertainty(matrix @ self.noise @ matrix.T, matrix @ self.sampling @ matrix.T)

    def to_dict(self) -> dict[str, list[list[float]]]:
        return {"noise": self.noise.tolist(), "sampling": self.sampling.tolist()}

    @staticmethod
    def from_dict(record: dict[str, list[list[float]]], size: int) -> Uncertainty:
        """Inverse of `to_dict`; refuses what no covariance of so many weights can be."""
        found = [np.array(record[name], dtype=np.float64) for name in ("noise", "sampling")]
        for one in found:
            if one.shape != (size, size) or not np.isfinite(one).all() or np.any(np.diag(one) < 0):
                raise ValueError(f"covariances of {size} weights expected")
        return Uncertainty(*found)
