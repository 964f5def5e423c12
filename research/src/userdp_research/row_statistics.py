"""Statistics of sampled rows: which of a user's rows count is decided by a Poisson mask that is handed in."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from userdp.data.users import UserData
from userdp.vectors import kernels
from userdp.vectors.gradients import MeanGradient, PerUser, check_sizes


@dataclass(frozen=True, eq=False)
class ClippedRowGradients(PerUser):
    """Sum over each user's kept rows of their gradients, each clipped to at most `clip`.

    `kept` has a line for each user that is asked for, and says of its first rows which ones are kept; rows beyond its
    width never are. None keeps all rows. A row whose gradient is not finite counts as 0, as does a user without rows.
    `gradient` tells the loss and the weights; it must be plain, without basis and smoothing.

    Guarantee: vector j is a function of user users[j]'s rows, of line j of `kept`, and of the parameters.
    """

    needs_targets: ClassVar[bool] = True
    gradient: MeanGradient
    clip: float
    kept: npt.NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.clip) and self.clip > 0):
            raise ValueError(f"Expected clip={self.clip} to be finite and > 0.")
        if self.gradient.basis is not None or self.gradient.smoothing is not None:
            raise ValueError("Expected a gradient without basis and smoothing.")

    def keeping(self, kept: npt.NDArray[np.bool_]) -> ClippedRowGradients:
        """The same of these rows only."""
        return replace(self, kept=kept)

    def vectors(self, data: UserData, users: np.ndarray) -> np.ndarray:
        loss, weights = self.gradient.loss, self.gradient.weights
        check_sizes("weights", weights, loss, None, data.n_features)
        kept = self.kept
        if kept is None:
            kept = np.ones((users.size, int(np.diff(data.offsets).max(initial=0))), dtype=bool)
        if len(kept) != users.size:
            raise ValueError(f"Expected kept rows of {users.size} users, got those of {len(kept)}.")
        if not loss.compiled:
            return np.array([self._slowly(data, user, line) for user, line in zip(users, kept, strict=True)])
        slopes = kernels.block_slopes(loss.slope, loss.n_outputs, loss.may_raise)
        arrays, out = kernels.arrays_of(data), np.zeros((users.size, weights.size))
        users, kept, matrix = map(kernels.read_only, (users, kept, weights.reshape(loss.n_outputs, -1)))

        def run(chunk: slice) -> None:
            _clipped_sums(arrays, users[chunk], kept[chunk], matrix, slopes, self.clip, out[chunk])

        kernels.over_chunks(run, users.size, int(np.count_nonzero(kept)) * weights.size)
        return out

    def check(self, n_features: int, dtype: npt.DTypeLike = np.float64) -> None:
        self.gradient.check(n_features, dtype)

    def _slowly(self, data: UserData, user: int, kept: npt.NDArray[np.bool_]) -> np.ndarray:
        """The same for one user and a slope in plain Python; a row for which it raises counts as 0."""
        total = np.zeros(self.gradient.weights.size)
        rows, targets = data.rows_of(user)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            for row in np.flatnonzero(kept[: len(rows)]):
                x = rows[row].astype(np.float64)
                try:
                    vector = float(self.gradient.loss.slope(float(x @ self.gradient.weights), float(targets[row]))) * x
                except KeyboardInterrupt:
                    raise KeyboardInterrupt from None
                except BaseException:  # it may depend on the user's data, so it must not leave
                    continue
                length = float(np.linalg.norm(vector))
                if math.isfinite(length):
                    total += vector * (self.clip / max(length, self.clip))
        return total


@kernels.compiled
def _clipped_sums(
    data: kernels.Arrays,
    users: np.ndarray,
    kept: np.ndarray,
    weights: np.ndarray,
    slopes: Any,
    clip: float,
    out: np.ndarray,
) -> None:
    """Kept rows are gathered in blocks, because a loss turns blocks of predictions into slopes."""
    rows, targets, offsets = data
    n_outputs, n_features = weights.shape
    gathered, block_targets = np.empty((kernels.BLOCK_ROWS, n_features)), np.empty(kernels.BLOCK_ROWS)
    predictions = np.empty(kernels.BLOCK_ROWS * n_outputs)
    for j in range(users.shape[0]):
        first = offsets[users[j]]
        n_rows = min(offsets[users[j] + 1] - first, kept.shape[1])
        i = 0
        while i < n_rows:
            filled = 0
            while i < n_rows and filled < kernels.BLOCK_ROWS:
                if kept[j, i]:
                    kernels.copy_row(rows, first + i, gathered[filled])
                    block_targets[filled] = targets[first + i]
                    filled += 1
                i += 1
            _predict(gathered, filled, weights, predictions)
            slopes(predictions, block_targets, filled)
            for one in range(filled):
                _add_clipped(gathered[one], predictions[one * n_outputs : (one + 1) * n_outputs], clip, out[j])


@kernels.compiled
def _predict(rows: np.ndarray, n_rows: int, weights: np.ndarray, predictions: np.ndarray) -> None:
    """Row by row, whatever rows stand around it."""
    n_outputs = len(weights)
    for i in range(n_rows):
        for c in range(n_outputs):
            predictions[i * n_outputs + c] = kernels.dot(weights[c], rows[i])


@kernels.compiled
def _add_clipped(row: np.ndarray, slopes: np.ndarray, clip: float, out: np.ndarray) -> None:
    """Add a row's gradient, clipped, unless it is not finite."""
    length = kernels.norm(row) * kernels.norm(slopes)
    if length < math.inf:  # neither NaN nor infinite
        factor = clip / max(length, clip)
        for c in range(len(slopes)):
            slope = factor * slopes[c]
            for k in range(len(row)):
                out[c * len(row) + k] += slope * row[k]
