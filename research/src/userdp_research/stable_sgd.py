"""SGD passes with bounded replace-one sensitivity: no single user moves the average iterate far, whatever data it has.

Other statistics leave it to a private mean to cope with outliers. These go through all users' rows at once and give
one vector, to which `Perturbation` adds noise: privacy rests on what is computed here. Three things make it hold for
any data. Every row is made safe first, so that its pull is bounded. Every user has a fixed place, so that replacing a
user changes a known number of steps. And every step is along the gradient of a convex function, short enough not to
drive two trajectories apart. Kernels are compiled without any licence to reorder, and how far they may be off is part
of the sensitivity. Proofs, rounding included: docs/proofs.md, section 17.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import numba
import numpy as np
import numpy.typing as npt

from userdp import losses
from userdp.data.users import UserData
from userdp.domains import Ball, Box, Domain
from userdp.losses import Loss, smoothed
from userdp.vectors import kernels
from userdp.vectors.gradients import check_sizes, checked_users, weights_vector
from userdp.vectors.sgd import Region, mixing_order, region_of

_SMALLEST, _LARGEST = 2.0**-100, 2.0**100  # beyond, squares or their products might over- or underflow
_MOST_STEPS = 2**40
_UNIT = 2.0**-50  # eight units in the last place: room for a few operations

Bounds = tuple[int, float, float, int]  # rows per user, and `longest`, `largest_target` and `labels` of `safe_row`


@dataclass(frozen=True)
class SafeRows:
    """What rows are made to be: at most `per_user` per user (the first ones), no longer than `norm`, targets bounded.

    A longer row is scaled down, a target clipped to +-`target_bound`. A row with a cell or target that is not finite,
    or with a target that is no class, counts as zeros. For users as declared all that changes nothing.
    """

    per_user: int
    norm: float
    target_bound: float | None = None

    def __post_init__(self) -> None:
        _plain_numbers(self, ("norm", "target_bound"), ("per_user",))
        for name in ("norm", "target_bound"):
            value = getattr(self, name)
            if value is not None and not _SMALLEST <= value <= _LARGEST:
                raise ValueError(f"Expected {_SMALLEST:g} <= {name}={value} <= {_LARGEST:g}: rescale the data.")


def _plain_numbers(record: object, reals: tuple[str, ...], counts: tuple[str, ...]) -> None:
    """Store a frozen record's numbers as plain floats and ints.

    Integers of a few bits wrap around, products of narrow floats are narrow, and arrays may change afterwards.
    """
    for name in reals:
        value = getattr(record, name)
        if not isinstance(value, (int, float, np.floating, np.integer, type(None))):
            raise TypeError(f"Expected {name} to be a number, got {type(value).__name__}.")
        object.__setattr__(record, name, None if value is None else float(value))
    for name in counts:
        value = getattr(record, name)
        if not (isinstance(value, (int, np.integer)) and value >= 1):
            raise ValueError(f"Expected {name}={value!r} to be a whole number >= 1.")
        object.__setattr__(record, name, int(value))


def check_loss(loss: Loss) -> Loss:
    """The loss as this package made it; refuses others, and those with altered kernels or constants."""
    found = losses.known(loss)
    if found is None:
        raise ValueError(
            f"Expected a loss of userdp as it is, such as logistic or huber, got {loss.name}: here privacy rests on "
            'its slope being as bounded and smooth as declared. Use solver="phased-sgd" for losses of your own. '
            "Nothing was spent."
        )
    return found


@dataclass(frozen=True, eq=False)
class _SafePass:
    """Projected SGD on safe rows from `start`, and how far computed steps may be off.

    A non-smooth loss needs a `width` over which it is smoothed (`losses.smoothed`). The step must be at most
    2 / (curvature * norm^2): then it brings no two points farther apart.
    """

    needs_targets: ClassVar[bool] = True
    takes_groups: ClassVar[bool] = True
    loss: Loss
    start: np.ndarray
    domain: Domain
    step_size: float
    n_users: int
    rows: SafeRows
    width: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "loss", check_loss(self.loss))
        _plain_numbers(self, ("step_size", "width"), ("n_users",))
        if self.loss.smooth == (self.width is not None):
            raise ValueError(
                f"Expected a width for the {self.loss.name} loss if and only if it is non-smooth, got {self.width}."
            )
        if not isinstance(self.domain, (Ball, Box)):
            raise TypeError(f"Expected a Ball or a Box, got {type(self.domain).__name__}.")
        if self.rows.target_bound is None and not self.loss.classifies:
            raise ValueError(f"Expected a target_bound for the {self.loss.name} loss: targets are clipped to it.")
        object.__setattr__(self, "start", weights_vector(self.domain.project(self.start)))
        sizes = {"step_size": self.step_size, "weights": self.domain.largest_norm, "gradients": self.lipschitz}
        sizes |= {} if self.width is None else {"width": self.width}
        for name, value in sizes.items():
            if not _SMALLEST <= value <= _LARGEST:
                raise ValueError(f"Expected {_SMALLEST:g} <= {name}={value} <= {_LARGEST:g}: rescale the problem.")
        if not self.step_size * self.smoothness <= 2:
            raise ValueError(
                f"Expected step_size={self.step_size} <= {2 / self.smoothness}, 2 / (curvature * norm^2): longer steps "
                "could drive two trajectories apart."
            )
        if not 1 <= self.n_users * self.rows.per_user + self.start.size <= _MOST_STEPS:
            raise ValueError(f"Expected fewer than {_MOST_STEPS:,} rows and weights.")

    @cached_property
    def _smooth_loss(self) -> Loss:
        return self.loss if self.width is None else smoothed(self.loss, self.width)

    @cached_property
    def lipschitz(self) -> float:
        """Largest gradient of a safe row anywhere in the domain, and where rounding may lead beyond it."""
        beyond = self.domain.largest_norm * (1 + _UNIT * (self.start.size + 16))
        return self._smooth_loss.lipschitz(self.rows.norm, self.rows.target_bound, beyond)

    @property
    def smoothness(self) -> float:
        """Lipschitz constant of a safe row's gradient."""
        return self._smooth_loss.smoothness(self.rows.norm)

    def gradient_error(self, terms: int) -> float:
        """How far a computed mean of so many rows' gradients may be from the exact one."""
        curvature, largest = self._smooth_loss.curvature, self.domain.largest_norm
        target = 1.0 if self.rows.target_bound is None else self.rows.target_bound
        slope = self.lipschitz / self.rows.norm + curvature * (self.rows.norm * largest + target + 1)
        off = 4 * _UNIT * (self.loss.n_outputs + 8) * slope * self.rows.norm
        return off + _UNIT * (self.start.size + terms + 8) * (self.lipschitz + self.smoothness * largest)

    def rounded_up(self, moved: float, n_steps: int, terms: int) -> float:
        """`moved`, and what rounding in `n_steps` steps of two trajectories may add to it."""
        size = self.domain.largest_norm + self.step_size * self.lipschitz
        step = self.step_size * self.gradient_error(terms) + _UNIT * (self.start.size + 16) * size
        return float((moved + 2 * n_steps * step) * (1 + 2.0**-40))

    def __call__(self, data: UserData, users: np.ndarray, n_groups: int) -> np.ndarray:
        users = checked_users(data, users)
        if users.size != self.n_users or n_groups != 1:  # the sensitivity is for these
            raise ValueError(f"Expected {self.n_users} users in one group.")
        self.check(data.n_features)
        labels = 0 if not self.loss.classifies else self.loss.n_outputs
        longest = self.rows.norm * (1 - _UNIT * (data.n_features + 8))
        bounds = (self.rows.per_user, longest, self.rows.target_bound or 0.0, labels)
        slopes = kernels.block_slopes(self._smooth_loss.slope, self.loss.n_outputs, may_raise=False)
        start, region = kernels.read_only(self.start), region_of(self.domain, self.start.size)
        arrays = kernels.arrays_of(data), kernels.read_only(users)
        kernel, *more = self._kernel()
        average: np.ndarray = kernel(*arrays, bounds, region, start, self.step_size, slopes, *more)
        return average[None]

    def _kernel(self) -> tuple[Any, ...]:
        """What computes the average iterate, less the start, and what it takes beside what all passes give it."""
        raise NotImplementedError

    def check(self, n_features: int, dtype: npt.DTypeLike = np.float64) -> None:
        """Only the size can be wrong: losses of userdp run on all rows."""
        check_sizes("a start", self.start, self.loss, None, n_features)


@dataclass(frozen=True, eq=False)
class SafeRowPass(_SafePass):
    """Average iterate of one pass of projected SGD, one safe row per step, less the point it starts from.

    All users' slots are visited in one mixed order; a slot without a row leaves the iterate where it is.

    Guarantee: the vector is finite, and replacing one user's data by any other moves it by at most
    `replace_one_sensitivity`: 2 * per_user * step_size * lipschitz, and rounding. Proof: docs/proofs.md, section 17.
    Paper: Feldman, Koren and Talwar 2020, phased SGD, which has one row per user.
    """

    @cached_property
    def replace_one_sensitivity(self) -> float:
        moved = 2 * self.rows.per_user * self.step_size * self.lipschitz
        return self.rounded_up(moved, self.n_users * self.rows.per_user, terms=1)

    def _kernel(self) -> tuple[Any, ...]:
        return _average_over_rows, mixing_order(self.n_users * self.rows.per_user)


@dataclass(frozen=True, eq=False)
class SafeBatchPass(_SafePass):
    """Average iterate of `n_steps` steps, each along the mean gradient of its own batch of users, less the start.

    Users' gradients are means over their safe rows. With `usual`, a gradient that is already private, a user counts
    only if its gradient at the start is within `reach` of it; otherwise, or without rows, it counts as `usual` (0 if
    not given) everywhere. Who counts is decided at the start: so every pull is the gradient of a convex function.

    Guarantee: the vector is finite, and replacing one user's data by any other moves it by at most
    `replace_one_sensitivity`: 2 * step_size / (smallest batch) * min(lipschitz, reach + smoothness * (how far the
    domain reaches from the start)), and rounding. Proof: docs/proofs.md, section 17.
    Paper: Ghazi, Kumar, Liu and Manurangsi 2026.
    Differs: they compare the users of a batch with each other, at every step, by noisy counts of friends; here all are
    compared with one private gradient, once, because the sensitivity of that has a short proof.
    """

    n_steps: int
    usual: np.ndarray | None = None
    reach: float = math.inf

    def __post_init__(self) -> None:
        super().__post_init__()
        _plain_numbers(self, ("reach",), ("n_steps",))
        if not self.n_steps <= self.n_users:
            raise ValueError(f"Expected 1 <= n_steps={self.n_steps} <= n_users={self.n_users}.")
        if (self.usual is None) != (self.reach == math.inf) or not self.reach >= _SMALLEST:
            raise ValueError(f"Expected a usual gradient and a finite reach={self.reach} >= {_SMALLEST:g}, or neither.")
        if self.reach != math.inf and not self.reach <= _LARGEST:
            raise ValueError(f"Expected reach={self.reach} <= {_LARGEST:g}: pass none to test nobody.")
        usual = np.zeros(self.start.size) if self.usual is None else self.usual
        if np.shape(usual) != self.start.shape:
            raise ValueError(f"Expected a usual gradient of length {self.start.size}, got shape {np.shape(usual)}.")
        # No gradient is longer, so nothing is lost, and |g - usual| <= 2 lipschitz holds too.
        object.__setattr__(self, "usual", weights_vector(Ball(self.lipschitz * (1 - 2.0**-20)).project(usual)))

    @cached_property
    def replace_one_sensitivity(self) -> float:
        terms, batch = self.rows.per_user + self.n_users // self.n_steps + 1, self.n_users // self.n_steps
        difference = 2 * self.lipschitz
        if self.reach != math.inf:
            rounding = _UNIT * (self.start.size + 16)
            away = self.domain.reach(self.start) + rounding * self.domain.largest_norm
            near = self.reach * (1 + rounding) + self.gradient_error(terms)
            difference = min(difference, 2 * (near + self.smoothness * away))
        return self.rounded_up(self.step_size / batch * difference, self.n_steps, terms)

    def _kernel(self) -> tuple[Any, ...]:
        edges = np.arange(self.n_steps + 1) * self.n_users // self.n_steps
        assert self.usual is not None  # set when made
        return _average_over_batches, edges, kernels.read_only(self.usual), self.reach


# --- kernels ----------------------------------------------------------------------------------------------------------

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
def _project(w: np.ndarray, region: Region) -> None:
    """Onto the ball around `center`, or for a negative radius onto the box."""
    center, radius, low, high = region
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
def _average_over_rows(
    data: kernels.Arrays,
    users: np.ndarray,
    bounds: Bounds,
    region: Region,
    start: np.ndarray,
    step: float,
    slopes: Any,
    slots: np.ndarray,
) -> np.ndarray:
    """Average iterate, less the start, of one step per row over `slots`, in that order.

    Slot s is row s % m of user s // m, m the slots per user (`bounds[0]`); without such a row the iterate stays.
    """
    rows, targets, offsets = data
    slots_per_user, longest, largest_target, labels = bounds
    n_features = rows.shape[1]
    line, x = np.empty(n_features, kernels.kind(rows)), np.empty(n_features)
    predictions, one = np.empty(len(start) // n_features), np.empty(1)
    w, total = start.copy(), np.zeros(len(start))
    for slot in slots:
        user = users[slot // slots_per_user]
        row = offsets[user] + slot % slots_per_user
        if row < offsets[user + 1]:
            kernels.copy_row(rows, row, line)
            target = safe_row(line, targets[row], longest, largest_target, labels, x)
            _slope(w, x, target, slopes, predictions, one)
            for c in range(len(predictions)):
                for k in range(n_features):
                    w[c * n_features + k] -= step * predictions[c] * x[k]
            _project(w, region)
        total += w
    total /= len(slots)
    total -= start
    return total


@_strict
def _mean_gradient(
    data: kernels.Arrays,
    first: int,
    last: int,
    bounds: Bounds,
    w: np.ndarray,
    slopes: Any,
    predictions: np.ndarray,
    x: np.ndarray,
    gradient: np.ndarray,
) -> None:
    """The mean gradient over the safe rows `first` .. `last` - 1, of which there is at least one."""
    rows, targets, _ = data
    _, longest, largest_target, labels = bounds
    one, n_features = np.empty(1), len(x)
    line = np.empty(n_features, kernels.kind(rows))
    gradient[:] = 0.0
    for row in range(first, last):
        kernels.copy_row(rows, row, line)
        target = safe_row(line, targets[row], longest, largest_target, labels, x)
        _slope(w, x, target, slopes, predictions, one)
        for c in range(len(predictions)):
            for k in range(n_features):
                gradient[c * n_features + k] += predictions[c] / (last - first) * x[k]


@_strict
def _average_over_batches(
    data: kernels.Arrays,
    users: np.ndarray,
    bounds: Bounds,
    region: Region,
    start: np.ndarray,
    step: float,
    slopes: Any,
    edges: np.ndarray,
    usual: np.ndarray,
    reach: float,
) -> np.ndarray:
    """Average iterate, less the start, of one step per batch along the mean of its users' mean gradients.

    Batch t has the users edges[t] .. edges[t+1]. One without rows, or whose gradient at the start is farther than
    `reach` from `usual`, counts as `usual` at every point; an infinite `reach` tests nobody.
    """
    rows, _, offsets = data
    x, predictions = np.empty(rows.shape[1]), np.empty(len(start) // rows.shape[1])
    w, total, pull, own = start.copy(), np.zeros(len(start)), np.empty(len(start)), np.empty(len(start))
    for t in range(len(edges) - 1):
        pull[:] = 0.0
        for user in users[edges[t] : edges[t + 1]]:
            first, last = offsets[user], min(offsets[user + 1], offsets[user] + bounds[0])
            near = last > first
            if near and reach < math.inf:
                _mean_gradient(data, first, last, bounds, start, slopes, predictions, x, own)
                square = 0.0
                for k in range(len(own)):
                    square += (own[k] - usual[k]) * (own[k] - usual[k])
                near = square <= reach * reach
            if near:
                _mean_gradient(data, first, last, bounds, w, slopes, predictions, x, own)
                pull += own
            else:
                pull += usual
        w -= step * (pull / (edges[t + 1] - edges[t]))
        _project(w, region)
        total += w
    total /= len(edges) - 1
    total -= start
    return total
