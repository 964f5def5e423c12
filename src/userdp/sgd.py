"""Compiled one-pass SGD: each group of users walks once through its rows and gives its averaged iterate.

A step is w <- project(w - step_size * slope(<w, x>, y) x). Groups are independent, so a thread walks four of them
side by side: the chain dot product -> slope -> update of one hides behind the others, and one call of the loss serves
all four. Each lane does the same operations whatever the others do, so a group's result depends on its own rows only.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from userdp import kernels
from userdp.domains import Ball, Box, Domain

_LANES = 4
# What a lane remembers: its group, the next of the group's users, the row it stands on and where the user's rows end,
# how many steps it has taken and how many of them are left out of the average.
_GROUP, _MEMBER, _ROW, _END, _STEPS, _SKIPPED = range(6)
_IDLE = -1
_REFRESH = 64  # steps after which the tracked squared norm is computed anew, before its rounding adds up


@kernels.compiled
def _next_row(lane: int, state: np.ndarray, offsets: np.ndarray, users: np.ndarray, edges: np.ndarray) -> bool:
    """Whether the lane's group has a row left; the lane then stands on it. Users without rows are passed over."""
    while state[lane, _ROW] >= state[lane, _END]:
        if state[lane, _MEMBER] >= edges[state[lane, _GROUP] + 1]:
            return False
        user = users[state[lane, _MEMBER]]
        state[lane, _ROW], state[lane, _END] = offsets[user], offsets[user + 1]
        state[lane, _MEMBER] += 1
    return True


@kernels.compiled
def _begin(
    lane: int,
    group: int,
    average_from: float,
    start: np.ndarray,
    offsets: np.ndarray,
    users: np.ndarray,
    edges: np.ndarray,
    state: np.ndarray,
    w: np.ndarray,
    total: np.ndarray,
    squares: np.ndarray,
) -> None:
    """Put the lane at the start of a group."""
    n_rows = 0
    for j in range(edges[group], edges[group + 1]):
        n_rows += offsets[users[j] + 1] - offsets[users[j]]
    state[lane] = 0
    state[lane, _GROUP], state[lane, _MEMBER] = group, edges[group]
    state[lane, _SKIPPED] = math.floor(average_from * n_rows)
    w[lane] = start
    total[lane] = 0.0
    squares[lane] = _square(start)


@kernels.compiled
def _square(w: np.ndarray) -> float:
    total = 0.0
    for k in range(len(w)):
        total += w[k] * w[k]
    return total


@kernels.compiled
def _move(w: np.ndarray, x: np.ndarray, a: float, shrink: float, low: np.ndarray, high: np.ndarray, box: bool) -> None:
    """w <- shrink (w + a x), clipped to the box if there is one."""
    for k in range(len(w)):
        w[k] = shrink * (w[k] + a * x[k])
    if box:
        for k in range(len(w)):
            w[k] = min(max(w[k], low[k]), high[k])


@kernels.compiled
def _predict(w: np.ndarray, center: np.ndarray, x: np.ndarray, has_center: bool) -> tuple[float, float, float]:
    """<w, x>, |x|^2 and <center, x>."""
    product, length, shift = 0.0, 0.0, 0.0
    for k in range(len(w)):
        product += w[k] * x[k]
        length += x[k] * x[k]
    if has_center:
        for k in range(len(w)):
            shift += center[k] * x[k]
    return product, length, shift


@kernels.compiled
def _walk(
    rows: np.ndarray,
    targets: np.ndarray,
    offsets: np.ndarray,
    users: np.ndarray,
    edges: np.ndarray,
    start: np.ndarray,
    center: np.ndarray,
    radius: float,
    low: np.ndarray,
    high: np.ndarray,
    step_size: float,
    average_from: float,
    slopes: Any,
    out: np.ndarray,
) -> None:
    """Averaged iterate, less the start, of the groups between `edges`. A negative radius means a box.

    The iterate w and `start` are relative to `center`. |w|^2 is tracked, so that the factor of the projection onto a
    ball is known before the update: one pass over a row to predict, one to move.
    """
    n_groups, n_features = out.shape
    w, total, squares = np.empty((_LANES, n_features)), np.empty((_LANES, n_features)), np.zeros(_LANES)
    state = np.full((_LANES, 6), _IDLE)
    predictions, lane_targets = np.zeros(_LANES), np.zeros(_LANES)
    products, lengths = np.zeros(_LANES), np.zeros(_LANES)
    has_center, next_group, working = bool(np.any(center != 0.0)), 0, True
    while working:
        working = False
        for lane in range(_LANES):
            while state[lane, _GROUP] != _IDLE or next_group < n_groups:
                if state[lane, _GROUP] == _IDLE:
                    _begin(lane, next_group, average_from, start, offsets, users, edges, state, w, total, squares)
                    next_group += 1
                if _next_row(lane, state, offsets, users, edges):
                    break
                counted = state[lane, _STEPS] - state[lane, _SKIPPED]
                for k in range(n_features):
                    out[state[lane, _GROUP], k] = total[lane, k] / counted - start[k] if counted > 0 else math.nan
                state[lane, _GROUP] = _IDLE
            if state[lane, _GROUP] != _IDLE:
                working = True
                row = state[lane, _ROW]
                products[lane], lengths[lane], shift = _predict(w[lane], center, rows[row], has_center)
                predictions[lane] = products[lane] + shift
                lane_targets[lane] = targets[row]
        slopes(predictions, lane_targets, _LANES)
        for lane in range(_LANES):
            if state[lane, _GROUP] != _IDLE:
                a, shrink = -step_size * predictions[lane], 1.0
                if radius >= 0.0:
                    square = squares[lane] + 2.0 * a * products[lane] + a * a * lengths[lane]
                    if square > radius * radius:
                        shrink = radius / math.sqrt(square)
                    squares[lane] = square * shrink * shrink
                _move(w[lane], rows[state[lane, _ROW]], a, shrink, low, high, radius < 0.0)
                state[lane, _ROW] += 1
                state[lane, _STEPS] += 1
                if state[lane, _STEPS] > state[lane, _SKIPPED]:
                    for k in range(n_features):
                        total[lane, k] += w[lane, k]
                if state[lane, _STEPS] % _REFRESH == 0:
                    squares[lane] = _square(w[lane])


def one_pass(
    rows: np.ndarray,
    targets: np.ndarray,
    offsets: np.ndarray,
    users: np.ndarray,
    edges: np.ndarray,
    start: np.ndarray,
    domain: Domain,
    step_size: float,
    average_from: float,
    slopes: Any,
) -> np.ndarray:
    """Averaged iterate of each group, less the start: (n_groups, n_features) in float64; NaN for a group without rows.

    Group j has the users edges[j] .. edges[j+1] of `users`. The first `average_from` of its steps are left out of the
    average. `slopes` comes from `kernels.block_slopes`, for a loss of one output. Indices are not checked here.
    """
    center = low = high = np.zeros(rows.shape[1])
    radius = -1.0
    if isinstance(domain, Ball):
        center, radius = center if domain.center is None else domain.center, domain.radius
    elif isinstance(domain, Box):
        low, high = domain.low, domain.high
    else:
        raise TypeError(f"Expected a Ball or a Box, got {type(domain).__name__}.")
    rows, targets, offsets, users = map(kernels.read_only, (rows, targets, offsets, users))
    start = kernels.read_only(start - center)
    center, low, high = map(kernels.read_only, (center, low, high))
    out = np.empty((len(edges) - 1, rows.shape[1]))

    def run(groups: slice) -> None:
        part = kernels.read_only(edges[groups.start : groups.stop + 1])  # one more edge than groups
        limits = (center, radius, low, high)
        _walk(rows, targets, offsets, users, part, start, *limits, step_size, average_from, slopes, out[groups])

    kernels.over_chunks(run, len(out), rows.size)
    return out
