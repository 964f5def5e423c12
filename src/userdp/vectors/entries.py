"""Users' vectors by their entries, of sparse rows: a user of few non-zero features costs and holds only these.

Buffers are as long as a vector, are made once for many users, and are cleared where a user touched them. The order of a
vector's entries is that in which the user's rows first name the columns, so that a vector is its user's alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from userdp.data.sparse import SparseRows
from userdp.data.users import UserData
from userdp.vectors import fused, kernels


@dataclass(frozen=True, eq=False)
class EntryVectors:
    """Vector j has values[k] in column columns[k], starts[j] <= k < starts[j] + counts[j], and 0 in all others."""

    starts: np.ndarray
    counts: np.ndarray
    columns: np.ndarray
    values: np.ndarray
    width: int

    @classmethod
    def room(cls, data: UserData, users: np.ndarray, width: int, per_column: int = 1, more: int = 0) -> EntryVectors:
        """Empty vectors, with room for all columns that a user can touch, several times, and for more."""
        assert isinstance(data.rows, SparseRows)
        held = data.rows.indptr[data.offsets[users + 1]] - data.rows.indptr[data.offsets[users]]
        room = (np.minimum(held, data.rows.n_columns) + data.has_intercept) * per_column + max(more, 1)
        ends = np.cumsum(room)
        entries = int(ends[-1]) if users.size else 0
        return cls(ends - room, np.zeros_like(ends), np.empty(entries, np.int64), np.empty(entries), width)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), self.width

    def __len__(self) -> int:
        return len(self.starts)

    def dense(self) -> np.ndarray:
        """The vectors as a matrix."""
        out = np.zeros(self.shape)
        for j, (start, count) in enumerate(zip(self.starts, self.counts, strict=True)):
            out[j, self.columns[start : start + count]] = self.values[start : start + count]
        return out

    def times(self, directions: np.ndarray) -> np.ndarray:
        """Each vector @ directions."""
        if len(directions) != self.width:  # the kernel would read beyond
            raise ValueError(f"Expected directions of {self.width} entries, got {len(directions)}.")
        out = np.empty((len(self), directions.shape[1]))
        _times(self._parts, kernels.read_only(np.ascontiguousarray(directions, dtype=np.float64)), out)
        return out

    @property
    def _parts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        return self.starts, self.counts, self.columns, self.values


def gives_entries(statistic: Any, data: UserData) -> bool:
    """Whether the statistic's vectors of this data are known by their entries."""
    return isinstance(data.rows, SparseRows) and bool(getattr(statistic, "sparse", False))


def gradients(
    data: UserData,
    users: np.ndarray,
    model: fused.Model,
    scales: np.ndarray | None,
    more: int = 0,
) -> EntryVectors:
    """Mean gradients as `fused` has them, times `scales`; room for `more` entries each."""
    out = EntryVectors.room(data, users, model[0].size, len(model[0]), more)
    _over(_mean_gradients, data, users, out, *model[:4], np.ones(data.n_features) if scales is None else scales)
    return out


def squares(data: UserData, users: np.ndarray, scales: np.ndarray, threshold: float | None = None) -> EntryVectors:
    """Mean squares of the features times `scales`; with a threshold, over their length or that, as `moment_shapes`."""
    out = EntryVectors.room(data, users, data.n_features)
    _over(_mean_squares, data, users, out, scales, threshold is not None, threshold or 0.0)
    return out


def with_sizes(vectors: EntryVectors, users: np.ndarray, marking: fused.Marking) -> EntryVectors:
    """As `fused` marks vectors of these users, in place; each vector needs room for two more entries."""
    _add_sizes(vectors._parts, vectors.width, kernels.read_only(users), marking)
    return EntryVectors(*vectors._parts, vectors.width + marking[3] + 1)


def _over(kernel: Any, data: UserData, users: np.ndarray, out: EntryVectors, *parameters: Any) -> None:
    arrays, users = kernels.arrays_of(data), kernels.read_only(users)
    parameters = tuple(kernels.read_only(one) if isinstance(one, np.ndarray) else one for one in parameters)

    def run(chunk: slice) -> None:
        kernel(arrays, users[chunk], *parameters, out.starts[chunk], out.counts[chunk], out.columns, out.values)

    kernels.over_chunks(run, users.size, len(out.values))


@kernels.compiled
def _mean_gradients(
    data: kernels.Arrays,
    users: np.ndarray,
    weights: np.ndarray,
    slopes: Any,
    smoothing: kernels.Smoothing,
    weighing: kernels.Weighing,
    scales: np.ndarray,
    starts: np.ndarray,
    counts: np.ndarray,
    columns: np.ndarray,
    values: np.ndarray,
) -> None:
    """A user without rows, or with a slope that is not finite, gets one NaN."""
    rows, targets, offsets = data
    lengths, longest = weighing
    n_outputs, n_features = weights.shape
    predictions, block_targets = np.empty(kernels.BLOCK_ROWS * n_outputs), np.empty(kernels.BLOCK_ROWS)
    gradient, seen = np.zeros((n_features, n_outputs)), np.zeros(n_features, np.bool_)
    for j in range(len(users)):
        first, last = offsets[users[j]], offsets[users[j] + 1]
        touched, n, finite = columns[starts[j] :], 0, last > first
        for start in range(first, last, kernels.BLOCK_ROWS):
            n_rows = min(kernels.BLOCK_ROWS, last - start)
            kernels.predict_block(rows, start, n_rows, weights, predictions, 0)
            kernels.shift_block(rows, start, n_rows, start - first, smoothing, targets, predictions, 0)
            for i in range(n_rows):
                block_targets[i] = targets[start + i]
            slopes(predictions, block_targets, n_rows)
            kernels.weigh_block(lengths, longest, start, n_rows, predictions, 0, n_outputs, 1.0)
            for i in range(n_rows):
                own = predictions[i * n_outputs : (i + 1) * n_outputs]
                for c in range(n_outputs):
                    own[c] /= last - first
                    finite = finite and math.isfinite(own[c])
                for k in range(rows.indptr[start + i], rows.indptr[start + i + 1]):
                    e, x = rows.indices[k], rows.values[k]
                    if not seen[e]:
                        seen[e], touched[n] = True, e
                        n += 1
                    for c in range(n_outputs):
                        gradient[e, c] += own[c] * x
                if rows.constant:
                    for c in range(n_outputs):
                        gradient[n_features - 1, c] += own[c]
        if rows.constant:
            touched[n] = n_features - 1
            n += 1
        for c in range(n_outputs - 1, -1, -1):  # the first output's columns are the list itself
            for t in range(n):
                e = touched[t]
                values[starts[j] + c * n + t] = gradient[e, c] * scales[e]
                touched[c * n + t] = c * n_features + e
                gradient[e, c] = 0.0
        for t in range(n):
            seen[touched[t]] = False
        counts[j] = n * n_outputs
        if not finite:
            counts[j], touched[0], values[starts[j]] = 1, 0, math.nan


@kernels.compiled
def _mean_squares(
    data: kernels.Arrays,
    users: np.ndarray,
    scales: np.ndarray,
    bounded: bool,
    threshold: float,
    starts: np.ndarray,
    counts: np.ndarray,
    columns: np.ndarray,
    values: np.ndarray,
) -> None:
    """Nothing of users without rows; of bounded ones, nothing whose length is extreme."""
    rows, _, offsets = data
    n_features = rows.shape[1]
    spread, sums, seen = np.zeros(n_features), np.zeros(n_features), np.zeros(n_features, np.bool_)
    for j in range(len(users)):
        first, last = offsets[users[j]], offsets[users[j] + 1]
        n = 0
        for i in range(first, last):
            kernels.add_squares(rows, i, scales, spread, sums)
            for k in range(rows.indptr[i], rows.indptr[i + 1]):
                e = rows.indices[k]
                if not seen[e]:
                    seen[e], columns[starts[j] + n] = True, e
                    n += 1
        if rows.constant and last > first:
            columns[starts[j] + n] = n_features - 1
            n += 1
        own = values[starts[j] : starts[j] + n]
        for t in range(n):
            e = columns[starts[j] + t]
            own[t] = sums[e]
            sums[e], seen[e] = 0.0, False
        divisor, usable = float(last - first), True
        if bounded:
            length = kernels.norm(own)
            divisor, usable = max(length, threshold * divisor), kernels.usable_length(length)
        for t in range(n):
            own[t] = own[t] / divisor if usable else 0.0
        counts[j] = n


@kernels.compiled
def _add_sizes(
    parts: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    width: int,
    users: np.ndarray,
    marking: fused.Marking,
) -> None:
    starts, counts, columns, values = parts
    clip, longest, mark, n_sizes, affected = marking
    for j in range(len(starts)):
        end = starts[j] + counts[j]
        length = kernels.norm(values[starts[j] : end])
        if not math.isfinite(length):
            counts[j], columns[starts[j]], values[starts[j]] = 1, width + n_sizes, fused.AFFECTED * mark
            continue
        if length > clip:
            for k in range(starts[j], end):
                values[k] *= clip / length
        columns[end], values[end] = width + kernels.size_of(length, longest, n_sizes), mark
        counts[j] += 1
        if affected[users[j]]:
            values[end] = fused.AFFECTED_SIZE * mark
            columns[end + 1], values[end + 1] = width + n_sizes, fused.AFFECTED * mark
            counts[j] += 1


@kernels.compiled
def _times(
    parts: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray], directions: np.ndarray, out: np.ndarray
) -> None:
    starts, counts, columns, values = parts
    for j in range(len(starts)):
        out[j] = 0.0
        for k in range(starts[j], starts[j] + counts[j]):
            for e in range(directions.shape[1]):
                out[j, e] += values[k] * directions[columns[k], e]
