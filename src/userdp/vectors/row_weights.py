"""Weights of rows that bound what one row can do, without moving what the rows are an estimate of."""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass

import numpy as np

from userdp.data.users import UserData
from userdp.vectors import kernels

# Lengths of the rows of the data last asked for: they stay the same for all steps of a solver. Held by the data's side,
# so that nobody who holds the weights holds anything of the data.
_KEPT: weakref.WeakKeyDictionary[UserData, tuple[RowWeights, np.ndarray]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class RowWeights:
    """A row x counts min(1, longest / |x @ basis|) times (Mallows weights).

    A function of the row without its target: if residuals average 0 given the row, weighted gradients average 0 at the
    same weights as plain ones, which clipped gradients do not. `basis` is d x k, or a vector for a diagonal one.

    Guarantee: the weight of a row is a function of that row and of the parameters.
    """

    basis: np.ndarray
    longest: float

    def __post_init__(self) -> None:
        basis = np.array(self.basis, dtype=np.float64)
        if basis.ndim not in (1, 2) or not np.all(np.isfinite(basis)):
            raise ValueError("Expected a finite basis, a matrix with a row for each feature or a diagonal.")
        if not (math.isfinite(self.longest) and self.longest > 0):
            raise ValueError(f"Expected longest={self.longest} to be finite and > 0.")
        basis.flags.writeable = False
        object.__setattr__(self, "basis", basis)

    def lengths(self, data: UserData) -> np.ndarray:
        """|x @ basis| of all rows, in float32."""
        kept = _KEPT.get(data)
        if kept is None or kept[0] is not self:
            kept = self, kernels.row_lengths(data.rows, self.basis)
            _KEPT[data] = kept
        return kept[1]

    def of(self, rows: np.ndarray) -> np.ndarray:
        """The weights of some rows."""
        lengths = kernels.row_lengths(np.ascontiguousarray(rows), self.basis).astype(np.float64)
        weights: np.ndarray = np.where(lengths > self.longest, self.longest / np.maximum(lengths, 1e-300), 1.0)
        return weights
