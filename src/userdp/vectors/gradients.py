"""Statistics: what is computed from users' data before privacy is added.

A statistic is a picklable callable

    statistic(data, users, n_groups) -> float64 array (n_groups, dim)

where `users` lists user indices, split in the order given into n_groups contiguous near-equal groups.

Guarantee: vector j depends on the data of group j's users only. Privacy rests on this, so nothing else may leave
either: no exception, warning or message that depends on a user's data. Whatever goes wrong within one user makes
that user's vector NaN, which the private mean treats as "far from everyone". Programming errors are caught before
data is touched, by `check`, on made-up rows.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from userdp.data.users import UserData
from userdp.domains import Domain
from userdp.losses import Loss
from userdp.vectors import kernels, sgd
from userdp.vectors.row_weights import RowWeights
from userdp.vectors.smoothing import BallSmoothing


@runtime_checkable
class Statistic(Protocol):
    """A callable from users to vectors; see the module's guarantee."""

    @property
    def needs_targets(self) -> bool:
        """Whether it reads targets."""

    @property
    def takes_groups(self) -> bool:
        """Whether a group may have several users; otherwise each user is a group."""

    def __call__(self, data: UserData, users: np.ndarray, n_groups: int) -> np.ndarray: ...

    def check(self, n_features: int, dtype: npt.DTypeLike = np.float64) -> None:
        """Raise a clear error if the statistic fails on made-up rows of this shape and type."""


@runtime_checkable
class RowStatistic(Statistic, Protocol):
    """A statistic of some of each user's rows, as the curator's coins decide."""

    def keeping(self, kept: np.ndarray) -> Statistic:
        """The same of the kept rows: one row of coins a user that is asked."""


@runtime_checkable
class BoundedStatistic(Statistic, Protocol):
    """A statistic of which it is proven how far its vector moves when one user is replaced, whatever the data."""

    @property
    def replace_one_sensitivity(self) -> float:
        """How far, at most, in l2 norm."""


@dataclass(frozen=True, eq=False)
class MeanGradient:
    """Mean gradient of a loss over each user's rows, at given weights.

    g_u = (1/m_u) sum over the rows (x, y) of u of slope(<w, x>, y) x; NaN for a user without rows.
    One vector a user: n_groups must be len(users). With several outputs the weights are a flattened matrix. With a
    `basis` (d x d, or a vector for a diagonal one) the gradient is g_u @ basis, for each output: the gradient in u
    where weights are basis @ u. With `smoothing` each row's gradient is taken at weights drawn around the given ones
    (one output only). With `row_weights` a row's gradient counts so many times, and the mean still divides by m_u.

    Guarantee: vector j is a function of user users[j]'s rows, in their order, and of the parameters.
    """

    needs_targets: ClassVar[bool] = True
    takes_groups: ClassVar[bool] = False
    loss: Loss
    weights: np.ndarray
    basis: np.ndarray | None = None
    smoothing: BallSmoothing | None = None
    row_weights: RowWeights | None = None

    def __post_init__(self) -> None:
        _check_loss(self.loss)
        object.__setattr__(self, "weights", weights_vector(self.weights))
        object.__setattr__(self, "basis", _square_basis(self.basis))
        if self.smoothing is not None and self.loss.n_outputs > 1:
            raise ValueError(f"Expected no smoothing of the {self.loss.name} loss: it has several outputs.")

    def __call__(self, data: UserData, users: np.ndarray, n_groups: int) -> np.ndarray:
        gradients = self._gradients(data, users, n_groups)
        if self.basis is None:
            return gradients
        if self.basis.ndim == 1:
            return np.asarray(gradients * np.tile(self.basis, self.loss.n_outputs))
        return sgd.change_basis(gradients, self.basis)

    def _gradients(self, data: UserData, users: np.ndarray, n_groups: int) -> np.ndarray:
        users = one_user_a_group(data, users, n_groups)
        self._check_size(data.n_features)
        if not self.loss.compiled:
            slope = functools.partial(_python_mean_gradient, self.loss.slope, self.smoothing, self.row_weights)
            slow = UserGradients(slope, self.weights)
            return slow(data, users, n_groups)
        slopes = kernels.block_slopes(self.loss.slope, self.loss.n_outputs, self.loss.may_raise)
        weights = self.weights.reshape(self.loss.n_outputs, data.n_features)
        shifts = kernels.NO_SHIFTS if self.smoothing is None else self.smoothing.shifts(data.n_features)
        users_rows = (data.rows, data.targets, data.offsets, users)
        if self.row_weights is None:
            return kernels.mean_gradients(*users_rows, weights, slopes, shifts)
        lengths = self.row_weights.lengths(data)
        return kernels.mean_gradients(*users_rows, weights, slopes, shifts, lengths, self.row_weights.longest)

    def check(self, n_features: int, dtype: npt.DTypeLike = np.float64) -> None:
        self._check_size(n_features)
        made_up = made_up_data(n_features, dtype)
        predictions = (0.5, -0.5) if self.loss.n_outputs == 1 else (np.linspace(-1, 1, self.loss.n_outputs),)
        try:
            for prediction in predictions:
                self.loss.slope(prediction, 1.0)
        except Exception as error:
            raise ValueError(f"Expected the {self.loss.name} loss to have a slope at 0.5: it raised.") from error
        if not np.all(np.isfinite(self(made_up, np.arange(made_up.n_users), made_up.n_users))):
            raise ValueError(
                f"Expected finite gradients of the {self.loss.name} loss on made-up rows with targets 0 and 1: "
                f"check its slope."
            )

    def _check_size(self, n_features: int) -> None:
        expected = self.loss.n_outputs * n_features
        if self.weights.size != expected:
            raise ValueError(
                f"Expected weights of length {expected} for the {self.loss.name} loss on {n_features} features, got "
                f"{self.weights.size}: count the intercept's feature, and all outputs."
            )
        _check_basis(self.basis, n_features)


@dataclass(frozen=True, eq=False)
class OnePassSGD:
    """Iterate of one pass of projected SGD over each group's rows, less the point it starts from.

    w <- project(w - step * slope(<w, x>, y) x) over the rows of the group's users, all in mixed order. The step is
    `step_size`, or with `decay` falls linearly from it to 0. The vector is the average of the iterates after each
    step, without the first `average_from` of them; `average_from` = 1 is the last iterate. With a `basis` (d x d)
    every row enters as x @ basis, so w are weights in that basis. With several outputs the weights are a flattened
    matrix. NaN for a group without rows. A NaN cell makes the vector NaN; so does an infinite one, except that a box
    may clip its effect to the border. One gradient a row: a pass never costs more than the rows there are.

    Guarantee: vector j is a function of the rows of group j's users, in their order, and of the parameters.
    Paper: Alg. 1, line 8 (a constant step and the average of all iterates, the defaults).
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

    def __post_init__(self) -> None:
        _check_loss(self.loss)
        object.__setattr__(self, "start", weights_vector(self.start))
        if not (math.isfinite(self.step_size) and self.step_size > 0):
            raise ValueError(f"Expected step_size={self.step_size} to be finite and > 0.")
        if not 0 <= self.average_from <= 1:
            raise ValueError(f"Expected 0 <= average_from={self.average_from} <= 1: the fraction of steps left out.")
        if not self.domain.contains(self.start):
            raise ValueError("Expected a start inside the domain: project it first.")
        object.__setattr__(self, "basis", _square_basis(self.basis))

    def __call__(self, data: UserData, users: np.ndarray, n_groups: int) -> np.ndarray:
        users = checked_users(data, users)
        if not 1 <= n_groups <= users.size:
            raise ValueError(f"Expected 1 <= n_groups={n_groups} <= len(users)={users.size}.")
        self._check_size(data.n_features)
        if not self.loss.compiled:
            return np.array([self._slowly(data, group) for group in np.array_split(users, n_groups)])
        # The sizes of np.array_split: the first groups have one user more.
        size, longer = divmod(users.size, n_groups)
        edges = np.arange(n_groups + 1) * size + np.minimum(np.arange(n_groups + 1), longer)
        slopes = kernels.block_slopes(self.loss.slope, self.loss.n_outputs, self.loss.may_raise)
        walk = (self.start, self.domain, self.step_size, self.decay, self.average_from, slopes)
        return sgd.one_pass(data.rows, data.targets, data.offsets, users, edges, self.basis, *walk)

    def check(self, n_features: int, dtype: npt.DTypeLike = np.float64) -> None:
        self._check_size(n_features)
        made_up = made_up_data(n_features, dtype)
        if not np.all(np.isfinite(self(made_up, np.arange(made_up.n_users), 2))):
            raise ValueError(
                f"Expected finite steps of the {self.loss.name} loss on made-up rows with targets 0 and 1: "
                f"check its slope and the step size."
            )

    def _slowly(self, data: UserData, group: np.ndarray) -> np.ndarray:
        """The same for one group and a slope in plain Python; whatever it raises makes the vector NaN."""
        w, total = self.start, np.zeros(self.start.size)
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                blocks = [data.rows_of(user) for user in group]
                rows, targets = (np.concatenate(parts).astype(np.float64) for parts in zip(*blocks, strict=True))
                rows = rows if self.basis is None else rows @ self.basis
                left_out = sgd.left_out(self.average_from, len(rows))
                for t, row in enumerate(np.argsort(sgd.mixing_order(len(rows)))):
                    step = self.step_size * (1 - t / len(rows) if self.decay else 1)
                    slope = float(self.loss.slope(float(w @ rows[row]), float(targets[row])))
                    w = self.domain.project(w - step * slope * rows[row])
                    total = total + w * (t >= left_out)
                vector: np.ndarray = total / (len(rows) - left_out) - self.start
                return vector
        except KeyboardInterrupt:
            raise KeyboardInterrupt from None
        except BaseException:  # it may depend on the users' data, so it must not leave
            return np.full(self.start.size, math.nan)

    def _check_size(self, n_features: int) -> None:
        expected = self.loss.n_outputs * n_features
        if self.start.size != expected:
            raise ValueError(
                f"Expected a start of length {expected} for the {self.loss.name} loss on {n_features} features, got "
                f"{self.start.size}: count the intercept's feature, and all outputs."
            )
        _check_basis(self.basis, n_features)


@dataclass(frozen=True, eq=False)
class UserGradients:
    """Your own vector a user: function(weights, rows, targets) -> vector as long as the weights.

    It is called once a user with that user's rows and targets only, so any autodiff library can stand behind it. It
    must keep no state from call to call, print nothing, and be picklable for engines on other machines. An
    exception, a wrong shape or a non-finite entry makes that user's vector NaN, silently; warnings are swallowed.
    A user without rows is NaN, without a call.

    Guarantee: vector j is a function of user users[j]'s rows and the weights, if `function` keeps no state.
    """

    needs_targets: ClassVar[bool] = False  # the function may, but need not
    takes_groups: ClassVar[bool] = False
    function: Callable[[np.ndarray, np.ndarray, np.ndarray], Any]
    weights: np.ndarray

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", weights_vector(self.weights))

    def __call__(self, data: UserData, users: np.ndarray, n_groups: int) -> np.ndarray:
        users = one_user_a_group(data, users, n_groups)
        out = np.full((users.size, self.weights.size), math.nan)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            for j, user in enumerate(users):
                rows, targets = data.rows_of(user)
                if not len(rows):
                    continue
                try:
                    vector = self._vector(rows, targets)
                except KeyboardInterrupt:
                    raise KeyboardInterrupt from None
                except BaseException:  # it may depend on the user's data, so it must not leave
                    continue
                if vector.shape == self.weights.shape and np.all(np.isfinite(vector)):
                    out[j] = vector
        return out

    def check(self, n_features: int, dtype: npt.DTypeLike = np.float64) -> None:
        made_up = made_up_data(n_features, dtype)
        name = getattr(self.function, "__name__", type(self.function).__name__)
        for user in range(made_up.n_users):
            rows, targets = made_up.rows_of(user)
            try:
                vector = self._vector(rows, targets)
            except Exception as error:
                raise ValueError(
                    f"Expected {name} to return a vector for made-up rows of shape {rows.shape} in {rows.dtype}: "
                    f"it raised {type(error).__name__}."
                ) from error
            if vector.shape != self.weights.shape or not np.all(np.isfinite(vector)):
                raise ValueError(
                    f"Expected {name} to return finite numbers of shape {self.weights.shape} for made-up rows of "
                    f"shape {rows.shape}, got shape {vector.shape}: return one number a weight."
                )

    def _vector(self, rows: np.ndarray, targets: np.ndarray) -> np.ndarray:
        return np.asarray(self.function(self.weights, rows, targets), dtype=np.float64)


def _python_mean_gradient(
    slope: Callable[[float, float], float],
    smoothing: BallSmoothing | None,
    row_weights: RowWeights | None,
    weights: np.ndarray,
    rows: np.ndarray,
    targets: np.ndarray,
) -> np.ndarray:
    """Mean gradient of one user by a slope in plain Python."""
    rows = rows.astype(np.float64)
    predictions = rows @ weights if smoothing is None else smoothing.shifted(rows @ weights, rows, targets)
    slopes = np.array([float(slope(p, y)) for p, y in zip(predictions.tolist(), targets.tolist(), strict=True)])
    slopes = slopes if row_weights is None else slopes * row_weights.of(rows)
    gradient: np.ndarray = slopes @ rows / len(rows)
    return gradient


def _check_loss(loss: Any) -> None:
    if not isinstance(loss, Loss):
        raise TypeError(f"Expected a Loss, got {type(loss).__name__}: use userdp.losses.loss('logistic').")


def weights_vector(weights: npt.ArrayLike) -> np.ndarray:
    """A read-only float64 copy, checked. Weights are public, so an error may speak of them."""
    vector = np.array(weights, dtype=np.float64)
    if vector.ndim != 1:
        raise ValueError(f"Expected weights of shape (dim,), got {vector.shape}: flatten them.")
    if not np.all(np.isfinite(vector)):
        raise ValueError("Expected finite weights: project them onto a domain.")
    vector.flags.writeable = False
    return vector


def _square_basis(basis: npt.ArrayLike | None) -> np.ndarray | None:
    """A read-only float64 copy of a basis, checked."""
    if basis is None:
        return None
    matrix = weights_vector(np.ravel(basis)).reshape(np.shape(basis))
    if matrix.ndim != 1 and (matrix.ndim != 2 or len(matrix) != len(matrix.T)):
        raise ValueError(f"Expected a square basis, or a diagonal, got shape {matrix.shape}.")
    return matrix


def _check_basis(basis: np.ndarray | None, n_features: int) -> None:
    if basis is not None and len(basis) != n_features:
        raise ValueError(f"Expected a basis of {n_features} features, got {len(basis)}.")


def one_user_a_group(data: UserData, users: npt.ArrayLike, n_groups: int) -> np.ndarray:
    indices = checked_users(data, users)
    if n_groups != indices.size:
        raise ValueError(f"Expected n_groups={n_groups} to be len(users)={indices.size}: one vector a user here.")
    return indices


def checked_users(data: UserData, users: npt.ArrayLike) -> np.ndarray:
    """User indices as int64, checked because kernels do not check bounds."""
    indices = np.asarray(users)
    if indices.ndim != 1 or (indices.size and indices.dtype.kind not in "iu"):
        raise TypeError(f"Expected users as a vector of integers, got shape {indices.shape} of {indices.dtype}.")
    if indices.size and not (indices.min() >= 0 and indices.max() < data.n_users):
        raise IndexError(f"Expected user indices from 0 to n_users - 1 = {data.n_users - 1}.")
    return np.ascontiguousarray(indices, dtype=np.int64)


def made_up_data(n_features: int, dtype: npt.DTypeLike) -> UserData:
    """Three users with 1, 2 and 3 fixed small rows, targets 0 and 1: to try a statistic without any data."""
    rows = 0.1 * np.cos(np.arange(1.0, 6 * n_features + 1).reshape(6, n_features))
    return UserData(rows.astype(dtype), np.array([0.0, 1.0, 0.0, 1.0, 1.0, 0.0]), np.array([0, 1, 3, 6]))
