"""Statistics of sampled rows: which of a user's rows count is decided by a Poisson mask that is handed in."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from userdp.data.users import UserData
from userdp.statistics.gradients import MeanGradient, PerUser, check_sizes

_BLOCK_ROWS = 256  # of a user at a time


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
        compute = self._row_by_row if loss.may_raise else self._of_rows
        out = np.zeros((users.size, weights.size))
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            for total, user, line in zip(out, users, kept, strict=True):
                first = int(data.offsets[user])
                numbers = np.flatnonzero(line[: int(data.offsets[user + 1]) - first])
                for begin in range(0, len(numbers), _BLOCK_ROWS):
                    some = numbers[begin : begin + _BLOCK_ROWS]
                    block = slice(first + int(some[0]), first + int(some[-1]) + 1)
                    x = data.dense(block)[some - some[0]].astype(np.float64)
                    slopes = compute(x, data.targets[block][some - some[0]])
                    if data.weights is not None:
                        slopes = slopes * data.weights[block][some - some[0], None]
                    lengths = np.sqrt(np.einsum("ij,ij->i", x, x)) * np.sqrt(np.einsum("ij,ij->i", slopes, slopes))
                    counted = lengths < math.inf  # neither NaN nor infinite
                    factors = self.clip / np.maximum(lengths[counted], self.clip)
                    total += np.einsum("ij,ik->jk", slopes[counted] * factors[:, None], x[counted]).ravel()
        return out

    def check(self, n_features: int, dtype: npt.DTypeLike = np.float64) -> None:
        self.gradient.check(n_features, dtype)

    def _of_rows(self, x: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """The slopes of one user's rows, (rows, outputs)."""
        loss = self.gradient.loss
        predictions = np.einsum("ij,cj->ic", x, self.gradient.weights.reshape(loss.n_outputs, -1))
        given = predictions if loss.n_outputs > 1 else predictions[:, 0]
        return np.asarray(loss.slope(given, targets), dtype=np.float64).reshape(predictions.shape)

    def _row_by_row(self, x: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """The same by a function from outside; NaN for a row for which it raises."""
        slopes = np.full((len(x), self.gradient.loss.n_outputs), math.nan)
        for i in range(len(x)):
            try:
                slopes[i] = self._of_rows(x[i : i + 1], targets[i : i + 1])[0]
            except KeyboardInterrupt:
                raise KeyboardInterrupt from None
            except BaseException:  # it may depend on the user's data, so it must not leave
                continue
        return slopes
