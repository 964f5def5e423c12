"""One-pass SGD: each group of users goes once through its rows, in mixed order, and gives an iterate.

A step is w <- project(w - step * (slope(<w, x>, y) x + penalty * w)). Rows of one user resemble each other, so a
group's rows are visited in a mixed order: taken user after user, each user drags the iterate along (on real data that
cost more accuracy than privacy did). They are copied ahead, a window at a time, and on the way expressed in another
basis, if one is given.

Groups are independent, so many take their steps side by side, each in a lane of arrays. What happens in a lane is made
of elementwise functions, sums along one row, and matrix products of one group's rows: it depends on its own rows only.
"""

from __future__ import annotations

import math
import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from userdp.data.sparse import SparseRows
from userdp.data.users import UserData
from userdp.domains import Box, Domain
from userdp.losses import Loss
from userdp.statistics.gradients import (
    MOST_PULL,
    check_loss,
    check_sizes,
    checked_users,
    generated_data,
    shielded,
    square_basis,
    weights_vector,
)
from userdp.statistics.rows import dense, weighted

_LANE_ENTRIES = 1 << 15  # weights of all groups that take their steps side by side: they fit a cache
_WINDOW_ROWS, _WINDOW_ENTRIES = 64, 1 << 22  # of each group, copied ahead


@dataclass(frozen=True, eq=False)
class OnePassSGD:
    """Iterate of one pass of projected SGD over each group's rows, less the point it starts from.

    w <- project(w - step * (slope(<w, x>, y) x + penalty * w)) over the rows of the group's users, all in mixed order;
    `penalty` has an entry per weight (of the basis), none for none: the gradient of sum penalty/2 w^2. The step is
    `step_size`, or with `decay` falls linearly from it to 0. The vector is the average of the iterates after each
    step, without the first `average_from` of them; `average_from` = 1 is the last iterate. With a `basis` (d x d)
    every row enters as x @ basis, so w are weights in that basis. With several outputs the weights are a flattened
    matrix. NaN for a group without rows. A NaN cell makes the vector NaN; so does an infinite one, except that a box
    may clip its effect to the border. One gradient per row: a pass never costs more than the rows there are.
    With losses from outside groups take their steps one by one, which is slow.

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
        if not isinstance(self.domain, Domain):
            raise TypeError(f"Expected a domain, a Ball or a Box, got {type(self.domain).__name__}.")
        if not self.domain.contains(self.start):
            raise ValueError("Expected a start inside the domain: project it first.")
        object.__setattr__(self, "basis", square_basis(self.basis))
        if self.penalty is None:
            return
        penalty = weights_vector(self.penalty)
        if penalty.shape != self.start.shape or not np.all((penalty >= 0) & (self.step_size * penalty <= MOST_PULL)):
            raise ValueError(
                f"Expected a penalty of {self.start.size} numbers >= 0, one per weight, of which step_size="
                f"{self.step_size} times the largest is at most {MOST_PULL}: take smaller steps."
            )
        object.__setattr__(self, "penalty", penalty)

    def __call__(self, data: UserData, users: np.ndarray, n_groups: int) -> np.ndarray:
        users = checked_users(data, users)
        if not 1 <= n_groups <= users.size:
            raise ValueError(f"Expected 1 <= n_groups={n_groups} <= len(users)={users.size}.")
        check_sizes("a start", self.start, self.loss, self.basis, data.n_features)
        groups = np.array_split(users, n_groups)
        sizes = np.array([np.sum(data.offsets[group + 1] - data.offsets[group]) for group in groups])
        longest_first = np.argsort(-sizes, kind="stable")[: np.count_nonzero(sizes)]
        out, rows = np.full((n_groups, self.start.size), math.nan), GatheredRows(data, self.basis)
        outside = self.loss.may_raise  # it sees one group at a time, and what it raises makes this group's vector NaN
        lanes = 1 if outside else max(1, _LANE_ENTRIES // self.start.size)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            for first in range(0, len(longest_first), lanes):
                some = longest_first[first : first + lanes]
                with shielded() if outside else nullcontext():
                    out[some] = self._iterates(rows, [groups[j] for j in some])
        return out

    def _iterates(self, rows: GatheredRows, groups: list[np.ndarray]) -> np.ndarray:
        """The iterates, less the start, of groups that have rows, those with the most rows first."""
        orders: dict[int, np.ndarray] = {}
        visits = [rows.visits(group, orders) for group in groups]
        sizes, cuts = [len(each) for each in visits], [left_out(self.average_from, len(each)) for each in visits]
        n_lanes, n_outputs = len(groups), self.loss.n_outputs
        length, shape = np.array(sizes, dtype=np.float64)[:, None], (n_lanes, n_outputs, rows.n_features)
        w, total, move = np.tile(self.start, n_lanes).reshape(shape), np.zeros(shape), np.empty(shape)
        ahead = max(1, min(_WINDOW_ROWS, _WINDOW_ENTRIES // rows.n_features))  # of the features alone: see `gathered`
        window = np.empty((n_lanes, ahead, rows.n_features), rows.dtype)
        targets, weights = np.empty((ahead, n_lanes)), np.ones((ahead, n_lanes))
        numbers = np.empty((n_lanes, ahead), dtype=np.int64)
        x_of_all = np.empty((n_lanes, rows.n_features))
        penalty = None if self.penalty is None else self.penalty.reshape(n_outputs, -1)
        active, early = n_lanes, n_lanes  # lanes with rows left, and those of whose iterates none counts yet
        for t in range(sizes[0]):
            while sizes[active - 1] <= t:
                active -= 1
            if t % ahead == 0:
                for lane in range(active):
                    own = visits[lane][t : t + ahead]
                    numbers[lane, : len(own)], numbers[lane, len(own) :] = own, own[0]
                window[:active] = rows.gathered(numbers[:active])
                targets[:, :active] = rows.data.targets[numbers[:active].T]
                if rows.data.weights is not None:
                    weights[:, :active] = rows.data.weights[numbers[:active].T]
            while early > 0 and cuts[early - 1] <= t:
                early -= 1
            x, v = x_of_all[:active], w[:active]
            x[:] = window[:active, t % ahead]
            predictions = np.einsum("gcd,gd->gc", v, x)
            given = predictions if n_outputs > 1 else predictions[:, 0]
            slopes = np.asarray(self.loss.slope(given, targets[t % ahead, :active])).reshape(active, n_outputs)
            slopes = weighted(slopes, weights[t % ahead, :active])
            step: Any = self.step_size * (1 - t / length[:active] if self.decay else 1.0)
            if penalty is not None:
                v *= 1 - (step[:, :, None] if self.decay else step) * penalty
            v += np.multiply(x[:, None], (-step * slopes)[:, :, None], out=move[:active])
            self._project(v.reshape(active, -1))
            total[early:active] += v[early:]
        counted = length[:, 0] - cuts
        return np.asarray(total.reshape(n_lanes, -1) / counted[:, None] - self.start)

    def _project(self, w: np.ndarray) -> None:
        """Each row of w onto the ball or the box, in place."""
        if isinstance(self.domain, Box):
            np.clip(w, self.domain.low, self.domain.high, out=w)
            return
        center, radius = self.domain.center, self.domain.radius
        off = w if center is None else w - center
        squares = np.einsum("gd,gd->g", off, off)
        (far,) = np.nonzero(squares > radius * radius)
        for lane in far[np.isinf(squares[far])]:
            w[lane] = self.domain.project(w[lane]) if np.all(np.isfinite(w[lane])) else math.nan
        if not len(far):
            return
        far = far[np.isfinite(squares[far])]
        shrunk = off[far] * (radius / np.sqrt(squares[far]))[:, None]
        w[far] = shrunk if center is None else center + shrunk

    def check(self, n_features: int, dtype: npt.DTypeLike = np.float64) -> None:
        generated = generated_data(n_features, dtype)
        if not np.all(np.isfinite(self(generated, np.arange(generated.n_users), 2))):
            raise ValueError(
                f"Expected finite steps of the {self.loss.name} loss on generated rows with targets 0 and 1: "
                f"check its slope and the step size."
            )


class GatheredRows:
    """Rows in a basis, and the order in which groups visit them."""

    def __init__(self, data: UserData, basis: np.ndarray | None) -> None:
        self.data, self.n_features, self.dtype = data, data.n_features, data.rows.dtype
        self.basis = None if basis is None else np.ascontiguousarray(basis, data.rows.dtype)
        self.held: Any = data.rows.csr() if isinstance(data.rows, SparseRows) else data.rows

    def visits(self, group: np.ndarray, orders: dict[int, np.ndarray]) -> np.ndarray:
        """The numbers of a group's rows, in the order in which they are visited; `orders` keeps those of each size."""
        starts, counts = self.data.offsets[group], self.data.offsets[group + 1] - self.data.offsets[group]
        ends = np.cumsum(counts)
        size = int(ends[-1])
        if size not in orders:
            orders[size] = np.argsort(mixing_order(size))
        return np.asarray((np.repeat(starts - ends + counts, counts) + np.arange(size))[orders[size]])

    def gathered(self, numbers: np.ndarray) -> np.ndarray:
        """Rows in the basis, (groups, rows each, width), of groups with these numbers of rows.

        One matrix product for the rows of each group, always of as many: how it rounds depends on the group alone.
        """
        rows = dense(self.held[numbers.ravel()]).reshape(*numbers.shape, self.held.shape[1])
        if self.data.has_intercept:
            rows = np.concatenate([rows, np.ones((*numbers.shape, 1), rows.dtype)], axis=-1)
        return rows if self.basis is None else np.matmul(rows, self.basis)


def mixing_order(n_rows: int) -> np.ndarray:
    """A fixed shuffle of 0..n_rows-1: row i of a group is visited as number order[i].

    Fisher-Yates driven by a 64-bit congruential generator from a fixed start (Knuth's MMIX constants). It is
    public: it only has to be unrelated to how rows are sorted.

    >>> mixing_order(6)
    array([2, 0, 5, 1, 3, 4])
    """
    powers = np.multiply.accumulate(np.full(max(0, n_rows - 1), 6364136223846793005, dtype=np.uint64))
    sums = np.cumsum(np.append(np.uint64(1), powers), dtype=np.uint64)[:-1]  # of the powers before
    states = powers * np.uint64(0x9E3779B97F4A7C15) + sums * np.uint64(1442695040888963407)
    places = np.arange(n_rows - 1, 0, -1)
    order = list(range(n_rows))
    for i, j in zip(
        places.tolist(), ((states >> np.uint64(33)) % (places + 1).astype(np.uint64)).tolist(), strict=True
    ):
        order[i], order[j] = order[j], order[i]
    return np.array(order, dtype=np.int64)


def left_out(average_from: float, n_rows: int) -> int:
    """How many of the first steps are not averaged: at least the last step counts, if there is one."""
    return max(0, min(math.floor(average_from * n_rows), n_rows - 1))
