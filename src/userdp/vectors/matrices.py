"""The compiled loop of `CurvatureMatrix`: a matrix of each user's rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from userdp.vectors.kernels import _MOST_TURNED, BLOCK_ROWS, Arrays, Weighing, compiled, copy_row, predict_block


@compiled
def curvature_matrices(
    data: Arrays,
    users: np.ndarray,
    weights: np.ndarray,
    slopes: Any,
    weighing: Weighing,
    step: float,
    basis: np.ndarray,
    share: float,
    out: np.ndarray,
) -> None:
    """The vectors of `CurvatureMatrix`: y = sqrt(weight * slope') B'x of each row first, then the sum of y y'."""
    rows, targets, offsets = data
    lengths, longest = weighing
    size = rows.shape[1]
    most_rows = _MOST_TURNED / math.sqrt(size)
    below, above = np.empty(BLOCK_ROWS), np.empty(BLOCK_ROWS)
    block_targets = np.empty(BLOCK_ROWS)
    row, turned, square = np.zeros(size), np.zeros(size), np.zeros((size, size))
    for j in range(users.shape[0]):
        first, last = offsets[users[j]], offsets[users[j] + 1]
        if last - first > most_rows:  # rounding could turn them by more than `Clip` has room for
            last = first
        square[:] = 0.0
        for start in range(first, last, BLOCK_ROWS):
            n_rows = min(BLOCK_ROWS, last - start)
            predict_block(rows, start, n_rows, weights, below, 0)
            for i in range(n_rows):
                above[i] = below[i] + 0.5 * step
                below[i] -= 0.5 * step
                block_targets[i] = targets[start + i]
            slopes(below, block_targets, n_rows)
            slopes(above, block_targets, n_rows)
            for i in range(n_rows):
                curvature = (above[i] - below[i]) / step
                if curvature < 0.0:
                    curvature = 0.0
                if lengths[start + i] > longest:
                    curvature *= longest / lengths[start + i]
                factor = math.sqrt(curvature)
                copy_row(rows, start + i, row)
                for k in range(size):
                    turned[k] = 0.0
                for a in range(size):
                    for k in range(size):
                        turned[k] += row[a] * basis[a, k]
                for k in range(size):
                    turned[k] *= factor
                for a in range(size):
                    for k in range(a, size):
                        square[a, k] += turned[a] * turned[k]
        trace = 0.0
        for a in range(size):
            trace += square[a, a]
        scale, position = 1.0 / max(1, last - first), 0
        usable = trace > 2.0**-400 and trace < 2.0**400
        for a in range(size):
            for k in range(a, size):
                entry = square[a, k] * scale * (1.0 if a == k else math.sqrt(2.0))
                out[j, position] = entry if usable else 0.0
                position += 1
        out[j, position] = share * trace * scale if usable else 0.0
