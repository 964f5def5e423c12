"""SGD passes with bounded replace-one sensitivity: no single user moves the average iterate far, whatever data it has.

Other statistics leave it to a private mean to cope with outliers. These go through all users' rows at once and give
one vector, to which `Perturbation` adds noise: privacy rests on what is computed here. Three things make it hold for
any data. Every row is made safe first, so that its pull is bounded. Every user has a fixed place, so that replacing a
user changes a known number of steps. And every step is along the gradient of a convex function, short enough not to
drive two trajectories apart. How far rounding may lead is part of the sensitivity, for sums in any order. Proofs,
rounding included: docs/proofs.md, section 17.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from userdp import losses
from userdp.data.users import UserData
from userdp.domains import Ball, Box, Domain
from userdp.losses import Loss, smoothed
from userdp.statistics.gradients import check_sizes, checked_users, weights_vector
from userdp.statistics.sgd import GatheredRows, mixing_order

_SMALLEST, _LARGEST = 2.0**-100, 2.0**100  # beyond, squares or their products might over- or underflow
_MOST_STEPS = 2**40
_UNIT = 2.0**-50  # eight units in the last place: room for a few operations

_BLOCK = 1 << 18  # entries of rows, or of gradients, that are read ahead


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
        if not isinstance(self.domain, Domain):
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
        bounds = longest, self.rows.target_bound or 0.0, labels
        with np.errstate(all="ignore"):
            average = self._average(_Slots(data, users, self.rows.per_user, bounds))
        return average.reshape(1, -1)

    def _average(self, slots: _Slots) -> np.ndarray:
        """The average iterate, less the start."""
        raise NotImplementedError

    def _slopes(self, w: np.ndarray, x: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """The loss's slopes of rows in each output's prediction: (rows, outputs)."""
        predictions = np.einsum("ij,cj->ic", x, w.reshape(self.loss.n_outputs, -1))  # of each row alone
        given = predictions if self.loss.n_outputs > 1 else predictions[:, 0]
        return np.asarray(self._smooth_loss.slope(given, targets)).reshape(predictions.shape)

    def _project(self, w: np.ndarray) -> np.ndarray:
        if isinstance(self.domain, Box):
            return np.asarray(np.clip(w, self.domain.low, self.domain.high))
        assert isinstance(self.domain, Ball)
        off = w if self.domain.center is None else w - self.domain.center
        square = float(off @ off)
        if square <= self.domain.radius**2:
            return w
        off = off * (self.domain.radius / math.sqrt(square))
        return off if self.domain.center is None else self.domain.center + off

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

    def _average(self, slots: _Slots) -> np.ndarray:
        """One step per row over the slots in mixed order; without such a row the iterate stays."""
        w, total = self.start, np.zeros(self.start.size)
        order = mixing_order(self.n_users * self.rows.per_user)
        ahead = max(1, _BLOCK // slots.n_features)
        for first in range(0, len(order), ahead):
            some = order[first : first + ahead]
            held, x, targets = slots.rows(some // slots.per_user, some % slots.per_user)
            row = 0
            for there in held:
                if there:
                    one = slice(row, row + 1)
                    slopes = self._slopes(w, x[one], targets[one])
                    w = self._project(w - self.step_size * np.outer(slopes, x[row]).ravel())
                    row += 1
                total += w
        return np.asarray(total / len(order) - self.start)


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

    def _average(self, slots: _Slots) -> np.ndarray:
        """One step per batch along the mean of its users' mean gradients.

        A user without rows, or whose gradient at the start is farther than `reach` from `usual`, counts as `usual` at
        every point; an infinite `reach` tests nobody.
        """
        assert self.usual is not None  # set when made
        w, total = self.start, np.zeros(self.start.size)
        edges = np.arange(self.n_steps + 1) * self.n_users // self.n_steps
        ahead = max(1, _BLOCK // (self.start.size * slots.per_user))
        for begin, end in pairwise(edges.tolist()):
            pull = np.zeros(self.start.size)
            for first in range(begin, end, ahead):
                members = np.arange(first, min(first + ahead, end))
                pulls = np.tile(self.usual, (len(members), 1))
                held, x, targets = slots.rows(
                    np.repeat(members, slots.per_user), np.tile(np.arange(slots.per_user), len(members))
                )
                counts = held.reshape(len(members), -1).sum(axis=1)
                near = counts > 0
                own = self._mean_gradients(w, x, targets, counts[near])
                if self.reach < math.inf:
                    off = self._mean_gradients(self.start, x, targets, counts[near]) - self.usual
                    close = np.einsum("ij,ij->i", off, off) <= self.reach * self.reach
                    near[near], own = close, own[close]
                pulls[near] = own
                pull += pulls.sum(axis=0)
            w = self._project(w - self.step_size * (pull / (end - begin)))
            total += w
        return np.asarray(total / self.n_steps - self.start)

    def _mean_gradients(self, w: np.ndarray, x: np.ndarray, targets: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Users' mean gradients over so many rows each, at least one."""
        if not len(counts):
            return np.empty((0, w.size))
        slopes = self._slopes(w, x, targets) / np.repeat(counts, counts)[:, None]
        gradients = (slopes[:, :, None] * x[:, None]).reshape(len(x), -1)
        return np.asarray(np.add.reduceat(gradients, np.cumsum(counts) - counts, axis=0))


# --- safe rows --------------------------------------------------------------------------------------------------------


class _Slots:
    """Every user's first rows, made safe; `bounds` are the last three arguments of `safe_rows`."""

    def __init__(self, data: UserData, users: np.ndarray, per_user: int, bounds: tuple[float, float, int]) -> None:
        self.data, self.users, self.per_user, self.bounds = data, users, per_user, bounds
        self.n_features, self._rows = data.n_features, GatheredRows(data, None)

    def rows(self, members: np.ndarray, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Which of these users' slots hold a row; these rows, and their targets."""
        rows = self.data.offsets[self.users[members]] + numbers
        held = rows < self.data.offsets[self.users[members] + 1]
        longest, largest_target, labels = self.bounds
        return held, *safe_rows(
            self._rows.gathered(rows[held]), self._rows.data.targets[rows[held]], longest, largest_target, labels
        )


def safe_rows(
    rows: np.ndarray, targets: np.ndarray, longest: float, largest_target: float, labels: int
) -> tuple[np.ndarray, np.ndarray]:
    """A copy of rows, no longer than `longest`, and of their targets; zeros and 0 where either is unusable.

    `labels` says what targets are usable: 0 any finite number, which is clipped to `largest_target`; 1 the classes -1,
    0 and 1; k > 1 the classes 0 .. k-1. Rows are divided by their largest entry first: squares may overflow.
    """
    usable = np.isfinite(targets)
    if labels == 1:
        usable &= np.isin(targets, (-1.0, 0.0, 1.0))
    elif labels > 1:
        usable &= np.isin(targets, np.arange(labels))
    safe = rows.astype(np.float64)
    usable &= np.isfinite(safe).all(axis=1)
    safe[~usable] = 0.0
    largest = np.abs(safe).max(axis=1, initial=0.0)
    units = safe / np.where(largest > 0, largest, 1.0)[:, None]
    most = longest / np.sqrt(np.einsum("ij,ij->i", units, units))
    long = (largest * rows.shape[1] > longest) & (largest > most)
    safe[long] = units[long] * most[long, None]
    bounded = targets if labels > 0 else np.clip(targets, -largest_target, largest_target)
    return safe, np.where(usable, bounded, 0.0)
