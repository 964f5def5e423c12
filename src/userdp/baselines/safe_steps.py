"""Compiled steps of projected SGD in which no row can pull harder than was said before.

Rows are made safe one at a time, on the way: clipped, their targets clipped, unusable ones replaced by zeros. Unlike
in `sgd` privacy rests on these operations, so they are compiled without any licence to reorder, and how far they may be
off is part of the sensitivity (docs/proofs.md, section 17).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np

from userdp.domains import Ball, Box, Domain
from userdp.vectors import kernels

_F = TypeVar("_F", bound=Callable[..., Any])
_strict: Callable[[_F], _F] = numba.njit(cache=True, nogil=True, error_model="numpy")


@_strict
def safe_row(
    row: np.ndarray, target: float, longest: float, largest_target: float, labels: int, out: np.ndarray
) -> float:
    """Copy a row to `out`, no longer than `longest`, and return its target; zeros and 0 if either is unusable.

    `labels` says what targets are usable: 0 any finite number, which is clipped to `largest_target`; 1 the classes -1,
    0 and 1; k > 1 the classes 0 .. k-1. Rows are divided by their largest entry first: squares may overflow.
    """
    usable = math.isfinite(target)
    if labels == 1:
        usable = target == -1.0 or target == 0.0 or target == 1.0
    elif labels > 1:
        usable = target >= 0.0 and target < labels and target == math.floor(target)
    largest = 0.0
    for k in range(len(row)):
        out[k] = row[k]
        usable = usable and math.isfinite(out[k])
        largest = max(largest, abs(out[k]))
    if not usable:
        out[:] = 0.0
        return 0.0
    if largest * len(row) > longest:
        square = 0.0
        for k in range(len(row)):
            square += (out[k] / largest) * (out[k] / largest)
        most = longest / math.sqrt(square)
        if largest > most:
            for k in range(len(row)):
                out[k] = out[k] / largest * most
    return target if labels > 0 else min(max(target, -largest_target), largest_target)


@_strict
def _slope(w: np.ndarray, x: np.ndarray, target: float, slopes: Any, predictions: np.ndarray, one: np.ndarray) -> None:
    """The loss's slope in each output's prediction, left in `predictions`."""
    for c in range(len(predictions)):
        total = 0.0
        for k in range(len(x)):
            total += w[c * len(x) + k] * x[k]
        predictions[c] = total
    one[0] = target
    slopes(predictions, one, 1)


@_strict
def _project(w: np.ndarray, center: np.ndarray, radius: float, low: np.ndarray, high: np.ndarray) -> None:
    """Onto the ball around `center`, or for a negative radius onto the box."""
    if radius < 0.0:
        for k in range(len(w)):
            w[k] = min(max(w[k], low[k]), high[k])
        return
    square = 0.0
    for k in range(len(w)):
        square += (w[k] - center[k]) * (w[k] - center[k])
    if square > radius * radius:
        shrink = radius / math.sqrt(square)
        for k in range(len(w)):
            w[k] = center[k] + shrink * (w[k] - center[k])


@_strict
def _walk_rows(
    rows: np.ndarray,
    targets: np.ndarray,
    offsets: np.ndarray,
    users: np.ndarray,
    bounds: tuple[int, float, float, int],
    region: tuple[np.ndarray, float, np.ndarray, np.ndarray],
    start: np.ndarray,
    step: float,
    slots: np.ndarray,
    slopes: Any,
) -> np.ndarray:
    slots_per_user, longest, largest_target, labels = bounds
    center, radius, low, high = region
    n_features = rows.shape[1]
    x, predictions, one = np.empty(n_features), np.empty(len(start) // n_features), np.empty(1)
    w, total = start.copy(), np.zeros(len(start))
    for slot in slots:
        user = users[slot // slots_per_user]
        row = offsets[user] + slot % slots_per_user
        if row < offsets[user + 1]:
            target = safe_row(rows[row], targets[row], longest, largest_target, labels, x)
            _slope(w, x, target, slopes, predictions, one)
            for c in range(len(predictions)):
                for k in range(n_features):
                    w[c * n_features + k] -= step * predictions[c] * x[k]
            _project(w, center, radius, low, high)
        total += w
    total /= len(slots)
    total -= start
    return total


@_strict
def _add_gradient(
    rows: np.ndarray,
    targets: np.ndarray,
    first: int,
    last: int,
    bounds: tuple[int, float, float, int],
    w: np.ndarray,
    slopes: Any,
    predictions: np.ndarray,
    x: np.ndarray,
    gradient: np.ndarray,
) -> None:
    """Add the mean gradient over the safe rows `first` .. `last` - 1, of which there is at least one."""
    _, longest, largest_target, labels = bounds
    one, n_features = np.empty(1), len(x)
    for row in range(first, last):
        target = safe_row(rows[row], targets[row], longest, largest_target, labels, x)
        _slope(w, x, target, slopes, predictions, one)
        for c in range(len(predictions)):
            for k in range(n_features):
                gradient[c * n_features + k] += predictions[c] / (last - first) * x[k]


@_strict
def _walk_batches(
    rows: np.ndarray,
    targets: np.ndarray,
    offsets: np.ndarray,
    users: np.ndarray,
    bounds: tuple[int, float, float, int],
    region: tuple[np.ndarray, float, np.ndarray, np.ndarray],
    start: np.ndarray,
    step: float,
    edges: np.ndarray,
    usual: np.ndarray,
    reach: float,
    slopes: Any,
) -> np.ndarray:
    center, radius, low, high = region
    x, predictions = np.empty(rows.shape[1]), np.empty(len(start) // rows.shape[1])
    w, total, pull, own = start.copy(), np.zeros(len(start)), np.empty(len(start)), np.empty(len(start))
    for t in range(len(edges) - 1):
        pull[:] = 0.0
        for user in users[edges[t] : edges[t + 1]]:
            first, last = offsets[user], min(offsets[user + 1], offsets[user] + bounds[0])
            near = last > first
            if near and reach < math.inf:
                own[:] = 0.0
                _add_gradient(rows, targets, first, last, bounds, start, slopes, predictions, x, own)
                square = 0.0
                for k in range(len(own)):
                    square += (own[k] - usual[k]) * (own[k] - usual[k])
                near = square <= reach * reach
            if near:
                own[:] = 0.0
                _add_gradient(rows, targets, first, last, bounds, w, slopes, predictions, x, own)
                pull += own
            else:
                pull += usual
        w -= step * (pull / (edges[t + 1] - edges[t]))
        _project(w, center, radius, low, high)
        total += w
    total /= len(edges) - 1
    total -= start
    return total


def walk_rows(data: tuple[np.ndarray, ...], bounds: Any, domain: Domain, *walk: Any) -> np.ndarray:
    """Average iterate, less the start, of one step a row over `slots`, in that order.

    Slot s is row s % m of user s // m, m the slots a user has (`bounds[0]`); if there is no such row the iterate
    stays. `data` is rows, targets, offsets and users; `bounds` are slots a user and what `safe_row` takes.
    """
    arguments: tuple[Any, ...] = (*map(kernels.read_only, data), bounds, _region(domain, walk[0].size), *walk)
    return _walk_rows(*arguments)


def walk_batches(data: tuple[np.ndarray, ...], bounds: Any, domain: Domain, *walk: Any) -> np.ndarray:
    """Average iterate, less the start, of one step a batch along the mean of its users' mean gradients.

    Batch t has the users edges[t] .. edges[t+1]. One without rows, or whose gradient at the start is farther than
    `reach` from `usual`, counts as `usual` at every point; an infinite `reach` tests nobody.
    """
    arguments: tuple[Any, ...] = (*map(kernels.read_only, data), bounds, _region(domain, walk[0].size), *walk)
    return _walk_batches(*arguments)


def _region(domain: Domain, size: int) -> tuple[np.ndarray, float, np.ndarray, np.ndarray]:
    """Center and radius of a ball, or radius -1 and the ends of a box."""
    zeros = kernels.read_only(np.zeros(size))
    if isinstance(domain, Ball):
        center = zeros if domain.center is None else kernels.read_only(domain.center)
        return center, float(domain.radius), zeros, zeros
    if isinstance(domain, Box):
        return zeros, -1.0, kernels.read_only(domain.low), kernels.read_only(domain.high)
    raise TypeError(f"Expected a Ball or a Box, got {type(domain).__name__}.")
