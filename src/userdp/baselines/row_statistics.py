"""Statistics of sampled rows: which of a user's rows count is decided by coins that are handed in."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from userdp.data.users import UserData
from userdp.vectors import kernels
from userdp.vectors.gradients import MeanGradient

_BLOCK_ROWS = 64


@dataclass(frozen=True, eq=False)
class ClippedRowGradients:
    """Sum over each user's kept rows of their gradients, each clipped to at most `clip`.

    `kept` has a line for each user that is asked for, and says of its first rows which ones are kept; rows beyond its
    width never are. None keeps all rows. A row whose gradient is not finite counts as 0, as does a user without rows.
    `gradient` tells the loss and the weights; it must be plain, without basis and smoothing.

    Guarantee: vector j is a function of user users[j]'s rows, of line j of `kept`, and of the parameters.
    """

    needs_targets: ClassVar[bool] = True
    takes_groups: ClassVar[bool] = False
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

    def __call__(self, data: UserData, users: np.ndarray, n_groups: int) -> np.ndarray:
        users = np.ascontiguousarray(users, dtype=np.int64)
        if n_groups != users.size or not np.all((users >= 0) & (users < data.n_users)):
            raise ValueError("Expected one user of the data a group.")
        if self.gradient.weights.size != self.gradient.loss.n_outputs * data.n_features:
            raise ValueError(f"Expected weights for {data.n_features} features: count the intercept's.")
        kept = self.kept
        if kept is None:
            kept = np.ones((users.size, int(np.diff(data.offsets).max(initial=0))), dtype=bool)
        if len(kept) != users.size:
            raise ValueError(f"Expected kept rows of {users.size} users, got those of {len(kept)}.")
        loss, weights = self.gradient.loss, self.gradient.weights
        if not loss.compiled:
            return np.array([self._slowly(data, user, line) for user, line in zip(users, kept, strict=True)])
        slopes = kernels.block_slopes(loss.slope, loss.n_outputs, loss.may_raise)
        arrays = (data.rows, data.targets, data.offsets, users, kept, weights.reshape(loss.n_outputs, -1))
        rows, targets, offsets, users, kept, matrix = map(kernels.read_only, arrays)
        out = np.zeros((users.size, weights.size))

        def run(chunk: slice) -> None:
            _clipped_sums(rows, targets, offsets, users[chunk], kept[chunk], matrix, slopes, self.clip, out[chunk])

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
    rows: np.ndarray,
    targets: np.ndarray,
    offsets: np.ndarray,
    users: np.ndarray,
    kept: np.ndarray,
    weights: np.ndarray,
    slopes: Any,
    clip: float,
    out: np.ndarray,
) -> None:
    """Kept rows are gathered in blocks, because a loss turns blocks of predictions into slopes."""
    n_outputs, n_features = weights.shape
    gathered = np.empty((_BLOCK_ROWS, n_features))
    block_targets = np.empty(_BLOCK_ROWS)
    predictions = np.empty(_BLOCK_ROWS * n_outputs)
    for j in range(users.shape[0]):
        first = offsets[users[j]]
        n_rows = min(offsets[users[j] + 1] - first, kept.shape[1])
        i = 0
        while i < n_rows:
            filled = 0
            while i < n_rows and filled < _BLOCK_ROWS:
                if kept[j, i]:
                    gathered[filled] = rows[first + i]
                    block_targets[filled] = targets[first + i]
                    filled += 1
                i += 1
            _add_clipped(gathered, block_targets, filled, weights, slopes, clip, predictions, out[j])


@kernels.compiled
def _add_clipped(
    rows: np.ndarray,
    targets: np.ndarray,
    n_rows: int,
    weights: np.ndarray,
    slopes: Any,
    clip: float,
    predictions: np.ndarray,
    out: np.ndarray,
) -> None:
    n_outputs, n_features = weights.shape
    for i in range(n_rows):
        for c in range(n_outputs):
            total = 0.0
            for k in range(n_features):
                total += weights[c, k] * rows[i, k]
            predictions[i * n_outputs + c] = total
    slopes(predictions, targets, n_rows)
    for i in range(n_rows):
        square, steep = 0.0, 0.0
        for k in range(n_features):
            square += rows[i, k] * rows[i, k]
        for c in range(n_outputs):
            steep += predictions[i * n_outputs + c] * predictions[i * n_outputs + c]
        length = math.sqrt(square) * math.sqrt(steep)
        if length < math.inf:  # neither NaN nor infinite
            factor = clip / max(length, clip)
            for c in range(n_outputs):
                slope = factor * predictions[i * n_outputs + c]
                for k in range(n_features):
                    out[c * n_features + k] += slope * rows[i, k]
