"""Compiled one-pass SGD: each group of users walks once through its rows, in mixed order, and gives an iterate.

A step is w <- project(w - step * slope(<w, x>, y) x). Rows of one person resemble each other, so a group's rows are
visited in a mixed order: taken user after user, each user drags the iterate along (on real data
that cost more accuracy than privacy did). They are copied ahead, a window at a time, and on the way expressed in
another basis, if one is given.

Groups are independent, so a thread walks four of them side by side: the chain dot product -> slope -> update of one
hides behind the others, and one call of the loss serves all four. Each lane does the same operations whatever the
others do, so a group's result depends on its own rows only.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from userdp.domains import Ball, Box, Domain
from userdp.vectors import kernels

_LANES = 4
_WINDOW = 1 << 19  # entries copied ahead: how many rows a user has must not decide how much memory is needed
_REFRESH = 64  # steps after which the tracked squared norm is computed anew, before its rounding adds up


@kernels.compiled
def mixing_order(n_rows: int) -> np.ndarray:
    """A fixed shuffle of 0..n_rows-1: row i of a group is visited as number order[i].

    Fisher-Yates driven by a 64-bit congruential generator from a fixed start (Knuth's MMIX constants). It hides
    nothing and protects nobody: it only has to be unrelated to how rows are sorted.
    """
    order = np.arange(n_rows)
    state = np.uint64(0x9E3779B97F4A7C15)
    for i in range(n_rows - 1, 0, -1):
        state = state * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
        j = np.int64((state >> np.uint64(33)) % np.uint64(i + 1))
        order[i], order[j] = order[j], order[i]
    return order


@kernels.compiled
def left_out(average_from: float, n_rows: int) -> int:
    """How many of the first steps are not averaged: at least the last step counts, if there is one."""
    return max(0, min(math.floor(average_from * n_rows), n_rows - 1))


@kernels.compiled
def _change_basis(row: np.ndarray, basis: np.ndarray, out: np.ndarray) -> None:
    """out = row @ basis, four of the basis's rows at a time so that `out` loads and stores once for four."""
    n_features = len(row)
    out[:] = 0
    j = 0
    while j + 4 <= n_features:
        b0, b1, b2, b3 = basis[j], basis[j + 1], basis[j + 2], basis[j + 3]
        a0, a1, a2, a3 = row[j], row[j + 1], row[j + 2], row[j + 3]
        for k in range(n_features):
            out[k] += a0 * b0[k] + a1 * b1[k] + a2 * b2[k] + a3 * b3[k]
        j += 4
    while j < n_features:
        for k in range(n_features):
            out[k] += row[j] * basis[j, k]
        j += 1


@kernels.compiled
def _change_bases(vectors: np.ndarray, basis: np.ndarray, out: np.ndarray) -> None:
    n_features = len(basis)
    for j in range(len(vectors)):
        for c in range(0, vectors.shape[1], n_features):
            _change_basis(vectors[j, c : c + n_features], basis, out[j, c : c + n_features])


def change_basis(vectors: np.ndarray, basis: np.ndarray) -> np.ndarray:
    """Each vector, or each of its blocks of len(basis) entries, times the basis.

    Row by row: a matrix product might round a row differently depending on the rows around it.
    """
    out = np.empty_like(vectors)
    _change_bases(kernels.read_only(vectors), kernels.read_only(basis), out)
    return out


@kernels.compiled
def _load(
    rows: np.ndarray,
    targets: np.ndarray,
    offsets: np.ndarray,
    members: np.ndarray,
    order: np.ndarray,
    begin: int,
    basis: np.ndarray,
    buffer: np.ndarray,
    values: np.ndarray,
) -> None:
    """Copy the rows and targets that are visited from number `begin` on, in the given basis (empty: as they are).

    As many as the buffer holds. Rows are read in their own order and written in the order of the visits.
    """
    position = 0
    for user in members:
        for row in range(offsets[user], offsets[user + 1]):
            place = order[position] - begin
            position += 1
            if 0 <= place < len(values):
                if basis.size:
                    _change_basis(rows[row], basis, buffer[place])
                else:
                    buffer[place] = rows[row]
                values[place] = targets[row]


@kernels.compiled
def _square(w: np.ndarray) -> float:
    total = 0.0
    for k in range(len(w)):
        total += w[k] * w[k]
    return total


@kernels.compiled
def _dot(w: np.ndarray, x: np.ndarray) -> float:
    total = 0.0
    for k in range(len(x)):
        total += w[k] * x[k]
    return total


@kernels.compiled
def _move(w: np.ndarray, x: np.ndarray, a: float, shrink: float, low: np.ndarray, high: np.ndarray, box: bool) -> None:
    """w <- shrink (w + a x), clipped to the box if there is one."""
    for k in range(len(x)):
        w[k] = shrink * (w[k] + a * x[k])
    if box:
        for k in range(len(x)):
            w[k] = min(max(w[k], low[k]), high[k])


@kernels.compiled
def _count_rows(offsets: np.ndarray, members: np.ndarray) -> int:
    n_rows = 0
    for user in members:
        n_rows += offsets[user + 1] - offsets[user]
    return n_rows


@kernels.compiled
def _walk(
    rows: np.ndarray,
    targets: np.ndarray,
    offsets: np.ndarray,
    users: np.ndarray,
    edges: np.ndarray,
    basis: np.ndarray,
    start: np.ndarray,
    center: np.ndarray,
    radius: float,
    low: np.ndarray,
    high: np.ndarray,
    step_size: float,
    decay: bool,
    average_from: float,
    slopes: Any,
    out: np.ndarray,
) -> None:
    """The iterate, less the start, of the groups between `edges`. A negative radius means a box.

    Weights are flat, one block of features an output. The iterate w and `start` are relative to `center`. |w|^2 is
    tracked, so that the factor of the projection onto a ball is known before the update: one pass over a row to
    predict, one to move.
    """
    n_groups, n_weights = out.shape
    n_features = rows.shape[1]
    n_outputs = n_weights // n_features
    window = max(1, _WINDOW // n_features)
    buffer, buffer_targets = np.empty((_LANES, window, n_features), rows.dtype), np.empty((_LANES, window))
    w, total = np.empty((_LANES, n_weights)), np.empty((_LANES, n_weights))
    squares, lengths, n_rows = np.zeros(_LANES), np.zeros(_LANES), np.zeros(_LANES, np.int64)
    predictions, lane_targets = np.zeros(_LANES * n_outputs), np.zeros(_LANES)
    products = np.zeros(_LANES * n_outputs)
    has_center = bool(np.any(center != 0.0))
    for first_group in range(0, n_groups, _LANES):
        lanes = min(_LANES, n_groups - first_group)
        for lane in range(lanes):
            members = users[edges[first_group + lane] : edges[first_group + lane + 1]]
            n_rows[lane] = _count_rows(offsets, members)
            w[lane] = start
            total[lane] = 0.0
            squares[lane] = _square(start)
        for t in range(n_rows[:lanes].max()):
            at = t % window
            for lane in range(lanes):
                if t < n_rows[lane]:
                    if at == 0:
                        members = users[edges[first_group + lane] : edges[first_group + lane + 1]]
                        order, space = mixing_order(n_rows[lane]), (buffer[lane], buffer_targets[lane])
                        _load(rows, targets, offsets, members, order, t, basis, *space)
                    x = buffer[lane, at]
                    lane_targets[lane] = buffer_targets[lane, at]
                    lengths[lane] = _square(x)
                    for c in range(n_outputs):
                        block = slice(c * n_features, (c + 1) * n_features)
                        product = _dot(w[lane, block], x)
                        products[lane * n_outputs + c] = product
                        if has_center:
                            product += _dot(center[block], x)
                        predictions[lane * n_outputs + c] = product
            slopes(predictions, lane_targets, _LANES)
            for lane in range(lanes):
                if t < n_rows[lane]:
                    step = step_size * (1.0 - t / n_rows[lane]) if decay else step_size
                    shrink = 1.0
                    if radius >= 0.0:
                        square = squares[lane]
                        for c in range(lane * n_outputs, (lane + 1) * n_outputs):
                            a = -step * predictions[c]
                            square += 2.0 * a * products[c] + a * a * lengths[lane]
                        if square > radius * radius:
                            shrink = radius / math.sqrt(square)
                        squares[lane] = square * shrink * shrink
                    for c in range(n_outputs):
                        block = slice(c * n_features, (c + 1) * n_features)
                        a = -step * predictions[lane * n_outputs + c]
                        _move(w[lane, block], buffer[lane, at], a, shrink, low[block], high[block], radius < 0.0)
                    if t >= left_out(average_from, n_rows[lane]):
                        for k in range(n_weights):
                            total[lane, k] += w[lane, k]
                    if t % _REFRESH == _REFRESH - 1:
                        squares[lane] = _square(w[lane])
        for lane in range(lanes):
            counted = n_rows[lane] - left_out(average_from, n_rows[lane])
            for k in range(n_weights):
                out[first_group + lane, k] = total[lane, k] / counted - start[k] if counted > 0 else math.nan


def one_pass(
    rows: np.ndarray,
    targets: np.ndarray,
    offsets: np.ndarray,
    users: np.ndarray,
    edges: np.ndarray,
    basis: np.ndarray | None,
    start: np.ndarray,
    domain: Domain,
    step_size: float,
    decay: bool,
    average_from: float,
    slopes: Any,
) -> np.ndarray:
    """Iterate of each group, less the start: (n_groups, n_weights) in float64; NaN for a group without rows.

    Group j has the users edges[j] .. edges[j+1] of `users`. Rows x enter as x @ basis. The step is constant, or
    falls linearly to 0 with `decay`. The first `average_from` of the steps are left out of the average; 1 leaves the
    last iterate. `slopes` comes from `kernels.block_slopes`. Indices are not checked here.
    """
    center = low = high = np.zeros(start.size)
    radius = -1.0
    if isinstance(domain, Ball):
        center, radius = center if domain.center is None else domain.center, domain.radius
    elif isinstance(domain, Box):
        low, high = domain.low, domain.high
    else:
        raise TypeError(f"Expected a Ball or a Box, got {type(domain).__name__}.")
    rows, targets, offsets, users = map(kernels.read_only, (rows, targets, offsets, users))
    directions = np.empty((0, 0), rows.dtype) if basis is None else np.ascontiguousarray(basis, rows.dtype)
    directions, start = kernels.read_only(directions), kernels.read_only(start - center)
    center, low, high = map(kernels.read_only, (center, low, high))
    out = np.empty((len(edges) - 1, start.size))

    def run(fours: slice) -> None:
        groups = slice(_LANES * fours.start, min(_LANES * fours.stop, len(out)))
        part = kernels.read_only(edges[groups.start : groups.stop + 1])  # one more edge than groups
        walk = (start, center, radius, low, high, step_size, decay, average_from, slopes)
        _walk(rows, targets, offsets, users, part, directions, *walk, out[groups])

    kernels.over_chunks(run, -(-len(out) // _LANES), rows.size)
    return out
