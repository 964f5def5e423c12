"""Passes of SGD whose average iterate no single user can move far, whatever data that user has.

Other statistics leave it to a private mean to cope with outliers. These walk through all users' rows at once and give
one vector, to which `Perturbation` adds noise: privacy rests on what is computed here. Three things make it hold for
any data. Every row is made safe first, so that its pull is bounded. Every user has a fixed place, so that replacing a
user changes a known number of steps. And every step is along the gradient of a convex function, short enough not to
drive two walks apart. Proofs, rounding included: docs/proofs.md, section 17.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from userdp import losses
from userdp.baselines import safe_steps
from userdp.data.users import UserData
from userdp.domains import Ball, Box, Domain
from userdp.losses import Loss, smoothed
from userdp.vectors import kernels
from userdp.vectors.gradients import checked_users
from userdp.vectors.sgd import mixing_order

_SMALLEST, _LARGEST = 2.0**-100, 2.0**100  # beyond, squares or their products might over- or underflow
_MOST_STEPS = 2**40
_UNIT = 2.0**-50  # eight units in the last place: room for a few operations


@dataclass(frozen=True)
class SafeRows:
    """What rows are made to be: at most `per_user` a user (the first ones), no longer than `norm`, targets bounded.

    A longer row is scaled down, a target clipped to +-`target_bound`. A row with a cell or target that is not finite,
    or with a target that is no class, counts as zeros. For users as declared all that changes nothing.
    """

    per_user: int
    norm: float
    target_bound: float | None = None

    def __post_init__(self) -> None:
        _settle(self, ("norm", "target_bound"), ("per_user",))
        for name in ("norm", "target_bound"):
            value = getattr(self, name)
            if value is not None and not _SMALLEST <= value <= _LARGEST:
                raise ValueError(f"Expected {_SMALLEST:g} <= {name}={value} <= {_LARGEST:g}: rescale the data.")


def _settle(record: object, reals: tuple[str, ...], counts: tuple[str, ...]) -> None:
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


def _kept(vector: np.ndarray) -> np.ndarray:
    """A copy that nobody can change: the sensitivity is for these numbers."""
    copy: np.ndarray = np.array(vector, dtype=np.float64)
    copy.flags.writeable = False
    return copy


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
class _SafeWalk:
    """Projected SGD on safe rows from `start`, and how far computed steps may be off.

    A loss with kinks needs a `width` over which they are rounded (`losses.smoothed`). The step must be at most
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
        _settle(self, ("step_size", "width"), ("n_users",))
        if self.loss.smooth == (self.width is not None):
            raise ValueError(
                f"Expected a width for the {self.loss.name} loss if and only if it has kinks, got {self.width}."
            )
        if not isinstance(self.domain, (Ball, Box)):
            raise TypeError(f"Expected a Ball or a Box, got {type(self.domain).__name__}.")
        if self.rows.target_bound is None and not self.loss.classifies:
            raise ValueError(f"Expected a target_bound for the {self.loss.name} loss: targets are clipped to it.")
        object.__setattr__(self, "start", _kept(self.domain.project(self.start)))
        sizes = {"step_size": self.step_size, "weights": self.domain.largest_norm, "gradients": self.lipschitz}
        sizes |= {} if self.width is None else {"width": self.width}
        for name, value in sizes.items():
            if not _SMALLEST <= value <= _LARGEST:
                raise ValueError(f"Expected {_SMALLEST:g} <= {name}={value} <= {_LARGEST:g}: rescale the problem.")
        if not self.step_size * self.smoothness <= 2:
            raise ValueError(
                f"Expected step_size={self.step_size} <= {2 / self.smoothness}, 2 / (curvature * norm^2): longer steps "
                "could drive two walks apart."
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
        """`moved`, and what rounding in `n_steps` steps of two walks may add to it."""
        size = self.domain.largest_norm + self.step_size * self.lipschitz
        step = self.step_size * self.gradient_error(terms) + _UNIT * (self.start.size + 16) * size
        return float((moved + 2 * n_steps * step) * (1 + 2.0**-40))

    def _ready(self, data: UserData, users: np.ndarray, n_groups: int) -> tuple[Any, ...]:
        """What walks take: data, bounds, domain, start, step; refuses other users than the sensitivity is for."""
        users = checked_users(data, users)
        if users.size != self.n_users or n_groups != 1:
            raise ValueError(f"Expected {self.n_users} users in one group.")
        self._check_size(data.n_features)
        labels = 0 if not self.loss.classifies else self.loss.n_outputs
        longest = self.rows.norm * (1 - _UNIT * (data.n_features + 8))
        bounds = (self.rows.per_user, longest, self.rows.target_bound or 0.0, labels)
        arrays = (data.rows, data.targets, data.offsets, users)
        return arrays, bounds, self.domain, kernels.read_only(self.start), self.step_size

    @property
    def _slopes(self) -> Any:
        return kernels.block_slopes(self._smooth_loss.slope, self.loss.n_outputs, may_raise=False)

    def check(self, n_features: int, dtype: npt.DTypeLike = np.float64) -> None:
        """Only the size can be wrong: losses of userdp run on all rows."""
        self._check_size(n_features)

    def _check_size(self, n_features: int) -> None:
        expected = self.loss.n_outputs * n_features
        if self.start.size != expected:
            raise ValueError(
                f"Expected a start of length {expected} for the {self.loss.name} loss on {n_features} features, got "
                f"{self.start.size}: count the intercept's feature, and all outputs."
            )


@dataclass(frozen=True, eq=False)
class SafeRowPass(_SafeWalk):
    """Average iterate of one pass of projected SGD, one safe row a step, less the point it starts from.

    All users' slots are visited in one mixed order; a slot without a row leaves the iterate where it is.

    Guarantee: the vector is finite, and replacing one user's data by any other moves it by at most
    `replace_one_sensitivity`: 2 * per_user * step_size * lipschitz, and rounding. Proof: docs/proofs.md, section 17.
    Paper: Feldman, Koren and Talwar 2020, phased SGD, which has one row a user.
    """

    @cached_property
    def replace_one_sensitivity(self) -> float:
        moved = 2 * self.rows.per_user * self.step_size * self.lipschitz
        return self.rounded_up(moved, self.n_users * self.rows.per_user, terms=1)

    def __call__(self, data: UserData, users: np.ndarray, n_groups: int) -> np.ndarray:
        ready = self._ready(data, users, n_groups)
        slots = mixing_order(self.n_users * self.rows.per_user)
        return safe_steps.walk_rows(*ready, slots, self._slopes)[None]


@dataclass(frozen=True, eq=False)
class SafeBatchPass(_SafeWalk):
    """Average iterate of `n_steps` steps, each along the mean gradient of its own batch of users, less the start.

    Users' gradients are means over their safe rows. With `usual`, a gradient that is already private, a user counts
    only if its gradient at the start is within `reach` of it; otherwise, or without rows, it counts as `usual` (0 if
    not given) everywhere. Who counts is settled at the start: so every pull is the gradient of a convex function.

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
        _settle(self, ("reach",), ("n_steps",))
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
        object.__setattr__(self, "usual", _kept(Ball(self.lipschitz * (1 - 2.0**-20)).project(usual)))

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

    def __call__(self, data: UserData, users: np.ndarray, n_groups: int) -> np.ndarray:
        ready = self._ready(data, users, n_groups)
        edges = np.arange(self.n_steps + 1) * self.n_users // self.n_steps
        assert self.usual is not None  # set when made
        usual = kernels.read_only(self.usual)
        return safe_steps.walk_batches(*ready, edges, usual, self.reach, self._slopes)[None]
