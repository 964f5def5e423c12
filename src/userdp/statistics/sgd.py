"""One-pass SGD: each group of users goes once through its rows, in mixed order, and gives an iterate.

A step is w <- project(w - step * (slope(<w, x>, y) x + penalty * w)). Rows of one person resemble each other, so a
group's rows are visited in a mixed order: taken user after user, each user drags the iterate along (on real data that
cost more accuracy than privacy did). They are copied ahead, a window at a time, and on the way expressed in another
basis, if one is given.

Groups are independent, so a thread computes four trajectories side by side: the chain dot product -> slope -> update of
one hides behind the others, and one call of the loss serves all four. Each lane does the same operations whatever the
others do, so a group's result depends on its own rows only.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from userdp.data.sparse import SparseRows
from userdp.data.users import UserData
from userdp.domains import Ball, Box, Domain
from userdp.losses import Loss
from userdp.statistics import kernels, sparse
from userdp.statistics.gradients import (
    MOST_PULL,
    check_loss,
    check_sizes,
    checked_users,
    generated_data,
    square_basis,
    weights_vector,
)

_LANES = 4
_WINDOW = 1 << 19  # entries copied ahead: how many rows a user has must not decide how much memory is needed
_REFRESH = 64  # steps after which the tracked squared norm is computed anew, before its rounding adds up
_SMALLEST_SCALE = 1e-3  # of sparse iterates, before they are written out

Region = tuple[np.ndarray, float, np.ndarray, np.ndarray]  # center and radius of a ball; or radius -1, a box's ends


@dataclass(frozen=True, eq=False)
class OnePassSGD:
    """Iterate of one pass of projected SGD over each group's rows, less the point it starts from.

    w <- project(w - step * (slope(<w, x>, y) x + penalty * w)) over the rows of the group's users, all in mixed order;
    `penalty` has an entry per weight (of the basis), none for none: the gradient of sum penalty/2 w^2. The step is
    `step_size`, or with `decay` falls linearly from it to 0. The vector is the average of the iterates after each
    step, without the first `average_from` of them; `average_from` = 1 is the last iterate. With a `basis` (d x d)
    every row enters as x @ basis, so w are weights in that basis. With several outputs the weights are a flattened
    matrix. NaN for a group without rows. A NaN cell makes the vector NaN; so does an infinite one, except that a box
    may clip its effect to the border. One gradient per row: a pass never costs more than the rows there are. In other
    domains than a ball or a box, and for losses in plain Python, steps are taken in Python, which is slow.

    Guarantee: vector j is a function of the rows of group j's users, in their order, and of the parameters.
    Paper: Alg. 1, lines 6-8; Lemma 2.3. The defaults, a constant step and the average of all iterates, are the printed.
    """

    needs_targets: ClassVar[bool] = True
    takes_groups: ClassVar[bool] = True
    loss: Loss
    start: np.ndarray
    domain: Domain
    step_size: float
    average_from: float = 0.0
    decay: bool = False
    basis: np.ndarray | None = None
    penalty: np.ndarray | None = None

    def __post_init__(self) -> None:
        check_loss(self.loss)
        object.__setattr__(self, "start", weights_vector(self.start))
        if not (math.isfinite(self.step_size) and self.step_size > 0):
            raise ValueError(f"Expected step_size={self.step_size} to be finite and > 0.")
        if not 0 <= self.average_from <= 1:
            raise ValueError(f"Expected 0 <= average_from={self.average_from} <= 1: the fraction of steps left out.")
        if not hasattr(self.domain, "project"):
            raise TypeError(f"Expected a domain such as a Ball, got {type(self.domain).__name__}.")
        if not self.domain.contains(self.start):
            raise ValueError("Expected a start inside the domain: project it first.")
        object.__setattr__(self, "basis", square_basis(self.basis))
        if self.penalty is not None:
            object.__setattr__(self, "penalty", self._checked_penalty(self.penalty))

    def _checked_penalty(self, given: npt.ArrayLike) -> np.ndarray:
        penalty = weights_vector(given)
        if penalty.shape != self.start.shape or not np.all((penalty >= 0) & (self.step_size * penalty <= MOST_PULL)):
            raise ValueError(
                f"Expected a penalty of {self.start.size} numbers >= 0, one per weight, of which step_size="
                f"{self.step_size} times the largest is at most {MOST_PULL}: take smaller steps."
            )
        return penalty

    def __call__(self, data: UserData, users: np.ndarray, n_groups: int) -> np.ndarray:
        users = checked_users(data, users)
        if not 1 <= n_groups <= users.size:
            raise ValueError(f"Expected 1 <= n_groups={n_groups} <= len(users)={users.size}.")
        check_sizes("a start", self.start, self.loss, self.basis, data.n_features)
        if not (self.loss.compiled and isinstance(self.domain, (Ball, Box))):
            return np.array([self._slowly(data, group) for group in np.array_split(users, n_groups)])
        # The sizes of np.array_split: the first groups have one user more.
        size, longer = divmod(users.size, n_groups)
        edges = np.arange(n_groups + 1) * size + np.minimum(np.arange(n_groups + 1), longer)
        return self._trajectories(data, kernels.read_only(users), edges)

    def _trajectories(self, data: UserData, users: np.ndarray, edges: np.ndarray) -> np.ndarray:
        """Iterates of the groups with the users between `edges`, four side by side."""
        arrays, dtype = kernels.arrays_of(data), data.rows.dtype
        basis = np.empty((0, 0), dtype) if self.basis is None else np.ascontiguousarray(self.basis, dtype)
        region = region_of(self.domain, self.start.size)
        start = kernels.read_only(self.start - region[0])
        slopes = kernels.block_slopes(self.loss.slope, self.loss.n_outputs, self.loss.may_raise)
        penalty = kernels.read_only(np.empty(0) if self.penalty is None else self.penalty)
        by_entries = isinstance(data.rows, SparseRows) and self.basis is None and self._scales_alike(region)
        steps = (start, region, self.step_size, self.decay, self.average_from, penalty, slopes)
        out = np.empty((len(edges) - 1, start.size))

        def run(fours: slice) -> None:
            groups = slice(_LANES * fours.start, min(_LANES * fours.stop, len(out)))
            part = kernels.read_only(edges[groups.start : groups.stop + 1])  # one more edge than groups
            if by_entries:
                _sparse_iterates(arrays, users, part, *steps, out[groups])
            else:
                _iterates(arrays, users, part, kernels.read_only(basis), *steps, out[groups])

        kernels.over_chunks(run, -(-len(out) // _LANES), data.rows.size)
        return out

    def _scales_alike(self, region: Region) -> bool:
        """Whether the penalty multiplies all weights by one number, but for intercepts, which it leaves."""
        if self.penalty is None:
            return True
        center, radius, _, _ = region
        kept = self.penalty[self.penalty > 0]
        few = self.penalty.size - kept.size <= self.loss.n_outputs
        return bool(radius >= 0 and not center.any() and few and np.all(kept == self.penalty.max()))

    def check(self, n_features: int, dtype: npt.DTypeLike = np.float64) -> None:
        generated = generated_data(n_features, dtype)
        if not np.all(np.isfinite(self(generated, np.arange(generated.n_users), 2))):
            raise ValueError(
                f"Expected finite steps of the {self.loss.name} loss on generated rows with targets 0 and 1: "
                f"check its slope and the step size."
            )

    def _slowly(self, data: UserData, group: np.ndarray) -> np.ndarray:
        """The same for one group and any slope and domain; whatever it raises makes the vector NaN."""
        w, total, several = self.start, np.zeros(self.start.size), self.loss.n_outputs > 1
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                blocks = [data.rows_of(user) for user in group]
                rows, targets = (np.concatenate(parts).astype(np.float64) for parts in zip(*blocks, strict=True))
                rows = rows if self.basis is None else rows @ self.basis
                n_left_out = left_out(self.average_from, len(rows))
                for t, row in enumerate(np.argsort(mixing_order(len(rows)))):
                    step = self.step_size * (1 - t / len(rows) if self.decay else 1)
                    predictions = w.reshape(self.loss.n_outputs, -1) @ rows[row]
                    slopes = self.loss.slope(predictions if several else float(predictions[0]), float(targets[row]))
                    gradient = np.outer(slopes, rows[row]).ravel()
                    if self.penalty is not None:
                        gradient = gradient + self.penalty * w
                    w = self.domain.project(w - step * gradient)
                    total = total + w * (t >= n_left_out)
                vector: np.ndarray = total / (len(rows) - n_left_out) - self.start
                return vector
        except KeyboardInterrupt:
            raise KeyboardInterrupt from None
        except BaseException:  # it may depend on the users' data, so it must not leave
            return np.full(self.start.size, math.nan)


def region_of(domain: Domain, size: int) -> Region:
    """A domain as kernels take it."""
    zeros = kernels.read_only(np.zeros(size))
    if isinstance(domain, Ball):
        center = zeros if domain.center is None else kernels.read_only(domain.center)
        return center, float(domain.radius), zeros, zeros
    assert isinstance(domain, Box)
    return zeros, -1.0, kernels.read_only(domain.low), kernels.read_only(domain.high)


@kernels.compiled
def mixing_order(n_rows: int) -> np.ndarray:
    """A fixed shuffle of 0..n_rows-1: row i of a group is visited as number order[i].

    Fisher-Yates driven by a 64-bit congruential generator from a fixed start (Knuth's MMIX constants). It is
    public: it only has to be unrelated to how rows are sorted.
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
def _load(
    data: kernels.Arrays,
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
    rows, targets, offsets = data
    position, line = 0, np.empty(rows.shape[1], kernels.kind(rows))
    for user in members:
        for row in range(offsets[user], offsets[user + 1]):
            place = order[position] - begin
            position += 1
            if 0 <= place < len(values):
                if basis.size:
                    kernels.copy_row(rows, row, line)
                    kernels.turn_square(line, basis, buffer[place])
                else:
                    kernels.copy_row(rows, row, buffer[place])
                values[place] = targets[row]


@kernels.compiled
def _move(w: np.ndarray, x: np.ndarray, a: float, shrink: float, low: np.ndarray, high: np.ndarray, box: bool) -> None:
    """w <- shrink (w + a x), clipped to the box if there is one."""
    for k in range(len(x)):
        w[k] = shrink * (w[k] + a * x[k])
    if box:
        for k in range(len(x)):
            w[k] = min(max(w[k], low[k]), high[k])


@kernels.compiled
def _pull(w: np.ndarray, center: np.ndarray, penalty: np.ndarray, step: float) -> float:
    """A step along the penalty's gradient, of w relative to the center; returns its squared norm."""
    for k in range(len(w)):
        w[k] -= step * penalty[k] * (w[k] + center[k])
    return kernels.square_norm(w)


@kernels.compiled
def _count_rows(offsets: np.ndarray, members: np.ndarray) -> int:
    n_rows = 0
    for user in members:
        n_rows += offsets[user + 1] - offsets[user]
    return n_rows


@kernels.compiled
def _iterates(
    data: kernels.Arrays,
    users: np.ndarray,
    edges: np.ndarray,
    basis: np.ndarray,
    start: np.ndarray,
    region: Region,
    step_size: float,
    decay: bool,
    average_from: float,
    penalty: np.ndarray,
    slopes: Any,
    out: np.ndarray,
) -> None:
    """The iterate, less the start, of the groups between `edges`.

    Weights are flat, one block of features per output. The iterate w and `start` are relative to the ball's center.
    |w|^2 is tracked, so that the factor of the projection onto a ball is known before the update: one pass over a row
    to predict, one to move. A penalty costs three more: it is taken off before the row's own move.
    """
    rows, _, offsets = data
    center, radius, low, high = region
    n_groups, n_weights = out.shape
    n_features = rows.shape[1]
    n_outputs = n_weights // n_features
    window = max(1, _WINDOW // n_features)
    buffer, buffer_targets = np.empty((_LANES, window, n_features), kernels.kind(rows)), np.empty((_LANES, window))
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
            total[lane] = 0.0
            for k in range(n_weights):
                w[lane, k] = start[k]
            squares[lane] = kernels.square_norm(start)
        for t in range(n_rows[:lanes].max()):
            at = t % window
            for lane in range(lanes):
                if t < n_rows[lane]:
                    if at == 0:
                        members = users[edges[first_group + lane] : edges[first_group + lane + 1]]
                        order, space = mixing_order(n_rows[lane]), (buffer[lane], buffer_targets[lane])
                        _load(data, members, order, t, basis, *space)
                    x = buffer[lane, at]
                    lane_targets[lane] = buffer_targets[lane, at]
                    lengths[lane] = kernels.square_norm(x)
                    for c in range(n_outputs):
                        block = slice(c * n_features, (c + 1) * n_features)
                        product = kernels.dot(w[lane, block], x)
                        products[lane * n_outputs + c] = product
                        if has_center:
                            product += kernels.dot(center[block], x)
                        predictions[lane * n_outputs + c] = product
            slopes(predictions, lane_targets, _LANES)
            for lane in range(lanes):
                if t < n_rows[lane]:
                    step = step_size * (1.0 - t / n_rows[lane]) if decay else step_size
                    shrink = 1.0
                    if penalty.size:
                        squares[lane] = _pull(w[lane], center, penalty, step)
                        for c in range(n_outputs):
                            block = slice(c * n_features, (c + 1) * n_features)
                            products[lane * n_outputs + c] = kernels.dot(w[lane, block], buffer[lane, at])
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
                        squares[lane] = kernels.square_norm(w[lane])
        for lane in range(lanes):
            counted = n_rows[lane] - left_out(average_from, n_rows[lane])
            for k in range(n_weights):
                out[first_group + lane, k] = total[lane, k] / counted - start[k] if counted > 0 else math.nan


@kernels.compiled
def _visits(offsets: np.ndarray, members: np.ndarray) -> np.ndarray:
    """The rows of a group in the order in which they are visited."""
    rows = np.empty(_count_rows(offsets, members), np.int64)
    order, position = mixing_order(len(rows)), 0
    for user in members:
        for row in range(offsets[user], offsets[user + 1]):
            rows[order[position]] = row
            position += 1
    return rows


@kernels.compiled
def _write_out(v: np.ndarray, scale: float, age: float, late: np.ndarray, total: np.ndarray) -> float:
    """Add up the iterates so far, make v the iterate itself, and return its squared norm."""
    for k in range(len(v)):
        total[k] += age * v[k] - late[k]
        late[k] = 0.0
        v[k] *= scale
    return kernels.square_norm(v)


@kernels.compiled
def _sparse_iterates(
    data: kernels.Arrays,
    users: np.ndarray,
    edges: np.ndarray,
    start: np.ndarray,
    region: Region,
    step_size: float,
    decay: bool,
    average_from: float,
    penalty: np.ndarray,
    slopes: Any,
    out: np.ndarray,
) -> None:
    """`_iterates` of sparse rows in their own coordinates: a step costs its row's entries, not all weights.

    The iterate is w = scale * v: projecting onto a ball changes the scale alone. The sum of the iterates is
    age * v - late with age the sum of the scales: what moves by x at an age was missing x that many times before. A
    penalty also changes the scale alone, but for intercepts, which it leaves: they are divided by what it takes.

    Differs: a row whose squared length overflows makes the vector NaN; of dense rows it may stay finite.
    """
    rows, targets, offsets = data
    center, radius, low, high = region
    n_weights, n_features = out.shape[1], rows.shape[1]
    n_outputs, has_center = n_weights // n_features, bool(np.any(center != 0.0))
    total, late = np.empty(n_weights), np.empty(n_weights)
    spread = np.zeros(n_features, kernels.kind(rows))  # as dense rows are: in their own type
    predictions, products, one = np.empty(n_outputs), np.empty(n_outputs), np.empty(1)
    strength = penalty.max() if penalty.size else 0.0
    free = np.flatnonzero(penalty == 0.0)
    for group in range(len(out)):
        visits = _visits(offsets, users[edges[group] : edges[group + 1]])
        longest = 0
        for row in visits:
            longest = max(longest, rows.indptr[row + 1] - rows.indptr[row])
        columns, x = np.empty(longest + 1, np.int64), np.empty(longest + 1, kernels.kind(rows))
        v, scale, age, square = start.copy(), 1.0, 0.0, kernels.square_norm(start)
        total[:], late[:] = 0.0, 0.0
        first_counted = left_out(average_from, len(visits))
        for t in range(len(visits)):
            n = sparse.unpacked(rows, visits[t], spread, columns, x)
            one[0] = targets[visits[t]]
            length = kernels.square_norm(x[:n])
            for c in range(n_outputs):
                product, off = 0.0, 0.0
                for k in range(n):
                    product += v[c * n_features + columns[k]] * x[k]
                    off += center[c * n_features + columns[k]] * x[k] if has_center else 0.0
                products[c] = scale * product
                predictions[c] = products[c] + off
            slopes(predictions, one, 1)
            step, shrink = step_size * (1.0 - t / len(visits)) if decay else step_size, 1.0
            if strength > 0.0:
                kept = 1.0 - step * strength  # of weights: at least 1 - MOST_PULL
                square *= kept * kept
                for e in free:
                    square += (1.0 - kept * kept) * (scale * v[e]) ** 2
                    late[e] += age * (v[e] / kept - v[e])
                    v[e] /= kept
                scale *= kept
                for c in range(n_outputs):
                    product = 0.0
                    for k in range(n):
                        product += v[c * n_features + columns[k]] * x[k]
                    products[c] = scale * product
            for c in range(n_outputs):
                a = -step * predictions[c]
                square += 2.0 * a * products[c] + a * a * length
                if not math.isfinite(a) or (radius >= 0.0 and not math.isfinite(square)):
                    total[:] = math.nan
            if radius >= 0.0 and square > radius * radius:
                shrink = radius / math.sqrt(square)
                square = square * shrink * shrink
            if shrink < _SMALLEST_SCALE:  # a step so long that sums would lose their digits beside it
                _write_out(v, scale, age, late, total)
                scale, age = 1.0, 0.0
            for c in range(n_outputs):
                a = -step * predictions[c] / scale
                for k in range(n):
                    e = c * n_features + columns[k]
                    moved = v[e] + a * x[k]
                    if radius < 0.0:
                        moved = min(max(moved, low[e]), high[e])
                    late[e] += age * (moved - v[e])
                    v[e] = moved
            scale *= shrink
            if t >= first_counted:
                age += scale
            if t % max(_REFRESH, n_features) == 0 or scale < _SMALLEST_SCALE:
                square = _write_out(v, scale, age, late, total)
                scale, age = 1.0, 0.0
        _write_out(v, scale, age, late, total)
        counted = len(visits) - first_counted
        for k in range(n_weights):
            out[group, k] = total[k] / counted - start[k] if counted > 0 else math.nan
