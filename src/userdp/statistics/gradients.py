"""Statistics: what is computed from users' data before privacy is added; here gradients.

A statistic is a picklable callable

    statistic(data, users, n_groups) -> float64 array (n_groups, dim)

where `users` lists user indices, split in the order given into n_groups contiguous near-equal groups.

Guarantee: vector j depends on the data of group j's users only. Privacy rests on this, so nothing else may leave
either: no exception, warning or message that depends on a user's data. Whatever goes wrong within one user makes
that user's vector NaN, which the private mean treats as "far from everyone". Programming errors are caught before
data is touched, by `check`, on generated rows.
"""

from __future__ import annotations

import contextlib
import functools
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt
import scipy.sparse

from userdp.data.users import UserData
from userdp.losses import Loss
from userdp.statistics.rows import (
    Rows,
    along,
    beside,
    chunks,
    dense,
    in_basis,
    in_threads,
    outputs_of,
    scaled,
    sorted_rows,
    squared_lengths,
)
from userdp.statistics.smoothing import BallSmoothing
from userdp.statistics.totals import GradientTotal, Marks, geometry_of, is_tame

T = TypeVar("T")

N_SIZES = 12
AFFECTED_SIZE, AFFECTED = 0.8, 0.6  # parts of a mark: 0.8^2 + 0.6^2 = 1
MOST_PULL = 0.5  # of a weight, that a penalty may take away in a step of one-pass SGD


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
        """Raise a clear error if the statistic fails on generated rows of this shape and type."""


ACUTE: set[type] = set()  # see `never_apart`


def never_apart(statistic: type[T]) -> type[T]:
    """Declare, as a decorator, that any two vectors of this class have an inner product of at least 0.

    Mechanisms may add less noise to such vectors (`Clip`), so this stands only where that is proven: docs/proofs.md,
    sections 22, 29, 30 and 31. It holds for the class itself: a subclass may compute something else.
    """
    ACUTE.add(statistic)
    return statistic


class PerUser:
    """What statistics with one vector per user share; they say what `of_users` makes of some users' rows."""

    needs_targets: ClassVar[bool] = False
    takes_groups: ClassVar[bool] = False

    def __call__(self, data: UserData, users: npt.ArrayLike, n_groups: int) -> np.ndarray:
        indices = checked_users(data, users)
        if n_groups != indices.size:
            raise ValueError(f"Expected n_groups={n_groups} to be len(users)={indices.size}: one vector per user here.")
        return dense(self.vectors(data, indices))

    def vectors(self, data: UserData, users: np.ndarray) -> Any:
        """One vector for each user: an array, or a CSR matrix where vectors of sparse rows are sparse."""
        several = [rows.users for rows in chunks(data, users)] or [users]  # rows are made, and let go, in each thread
        parts = in_threads(lambda some: self.of_users(Rows(data, some)), several)
        return scipy.sparse.vstack(parts, "csr") if scipy.sparse.issparse(parts[0]) else np.concatenate(parts)

    def of_users(self, rows: Rows) -> Any:
        """The vectors of the users with these rows, by operations on each user's rows by themselves."""
        raise NotImplementedError

    def check(self, n_features: int, dtype: npt.DTypeLike = np.float64) -> None:
        self.on_generated(n_features, dtype)

    def on_generated(self, n_features: int, dtype: npt.DTypeLike) -> np.ndarray:
        """The vectors of generated users."""
        data = generated_data(n_features, dtype)
        return self(data, np.arange(data.n_users), data.n_users)


@dataclass(frozen=True, eq=False)
class RowWeights:
    """A row x counts min(1, longest / |x @ basis|) times (Mallows weights): a bound on what one row can do.

    A function of the row without its target: if residuals average 0 given the row, weighted gradients average 0 at the
    same weights as plain ones, which clipped gradients do not. `basis` is d x k, or a vector for a diagonal one.

    Guarantee: the weight of a row is a function of that row and of the parameters.
    """

    basis: np.ndarray
    longest: float

    def __post_init__(self) -> None:
        basis = np.array(self.basis, dtype=np.float64)
        if basis.ndim not in (1, 2) or not np.all(np.isfinite(basis)):
            raise ValueError("Expected a finite basis, a matrix with a row for each feature or a diagonal.")
        if not (math.isfinite(self.longest) and self.longest > 0):
            raise ValueError(f"Expected longest={self.longest} to be finite and > 0.")
        basis.flags.writeable = False
        object.__setattr__(self, "basis", basis)

    @property
    def thin(self) -> bool:
        """Whether the basis has few columns: lengths are then computed again each time, and else kept with the data."""
        return self.basis.ndim == 2 and self.basis.shape[1] < self.basis.shape[0]

    def lengths(self, rows: Rows) -> np.ndarray:
        """|x @ basis| of these rows, in their own type."""
        if not self.thin:
            return np.asarray(geometry_of(rows.data, self.basis).lengths[rows.place])
        return np.asarray(np.sqrt(squared_lengths(along(rows.held, rows.data.has_intercept, self.basis.T))))

    def of(self, rows: Rows) -> np.ndarray:
        """The weights of these rows."""
        lengths = self.lengths(rows)
        # 1 where a row is 0: it is infinite there.
        return np.asarray(np.minimum(lengths.dtype.type(self.longest) / lengths, 1.0))


@dataclass(frozen=True, eq=False)
class MeanGradient(PerUser):
    """Mean gradient of a loss over each user's rows, at given weights.

    g_u = (1/m_u) sum over the rows (x, y) of u of slope(<w, x>, y) x; NaN for a user without rows.
    One vector per user: n_groups must be len(users). With several outputs the weights are a flattened matrix. With a
    `basis` (d x d, or a vector for a diagonal one) the gradient is g_u @ basis, for each output: the gradient in u
    where weights are basis @ u. With `smoothing` each row's gradient is taken at weights drawn around the given ones
    (one output only). With `row_weights` a row's gradient counts so many times, and the mean still divides by m_u.

    Guarantee: vector j is a function of user users[j]'s rows, in their order, and of the parameters.
    Paper: Alg. 2, line 5 (q_t).
    """

    needs_targets: ClassVar[bool] = True
    loss: Loss
    weights: np.ndarray
    basis: np.ndarray | None = None
    smoothing: BallSmoothing | None = None
    row_weights: RowWeights | None = None

    def __post_init__(self) -> None:
        check_loss(self.loss)
        object.__setattr__(self, "weights", weights_vector(self.weights))
        object.__setattr__(self, "basis", square_basis(self.basis))
        if self.smoothing is not None and self.loss.n_outputs > 1:
            raise ValueError(f"Expected no smoothing of the {self.loss.name} loss: it has several outputs.")

    def of_users(self, rows: Rows) -> Any:
        everyone, dtype = np.arange(len(rows.users)), rows.data.dtype
        blocks = [rows.sums(one, everyone, dtype).astype(np.float64) for one in outputs_of(self.row_slopes(rows))]
        if self.basis is not None:
            blocks = [in_basis(block, self.basis) for block in blocks]
        vectors, empty = beside(blocks), np.flatnonzero(rows.counts == 0)
        if not scipy.sparse.issparse(vectors):
            vectors[empty] = math.nan
        elif len(empty):
            entries = np.full(len(empty), math.nan), (empty, np.zeros(len(empty), int))
            vectors = scipy.sparse.csr_array(vectors + scipy.sparse.csr_array(entries, vectors.shape))
        return vectors

    def row_slopes(self, rows: Rows) -> np.ndarray:
        """Weight * slope / rows of its user, of each row; one column for each output, if there are several."""
        check_sizes("weights", self.weights, self.loss, self.basis, rows.data.n_features)
        predictions = rows.predictions(self.weights.reshape(self.loss.n_outputs, -1))
        if self.smoothing is not None:
            predictions = self.smoothing.shifted(predictions, rows)
        slopes = slopes_of(self.loss, predictions, rows)
        if self.row_weights is None and rows.single:
            return slopes
        factors = np.ones(len(rows), slopes.dtype) if self.row_weights is None else self.row_weights.of(rows)
        if not rows.single:
            factors = factors * np.repeat((1 / np.maximum(rows.counts, 1)).astype(slopes.dtype), rows.counts)
        return np.asarray(slopes * (factors if slopes.ndim == 1 else factors[:, None]))

    def along(self, rows: Rows, slopes: np.ndarray, directions: np.ndarray) -> np.ndarray:
        """Of each user the gradient @ directions, (outputs * features, few)."""
        out: Any = 0.0
        parts = directions.reshape(self.loss.n_outputs, rows.data.n_features, -1)
        for one, block in zip(outputs_of(slopes), parts, strict=True):
            if self.basis is not None:
                block = self.basis[:, None] * block if self.basis.ndim == 1 else self.basis @ block
            lines = along(rows.held, rows.data.has_intercept, block.T)
            out = out + rows.per_user(lines.astype(np.float64) * one[:, None])
        return np.asarray(out)

    def check(self, n_features: int, dtype: npt.DTypeLike = np.float64) -> None:
        """Sizes, and finite slopes on generated rows; finite gradients of a loss or a class from outside."""
        loss = self.loss
        check_sizes("weights", self.weights, loss, self.basis, n_features)
        if self.row_weights is not None and len(self.row_weights.basis) != n_features:
            raise ValueError(
                f"Expected a basis of {n_features} features for row weights, got {len(self.row_weights.basis)}."
            )
        rows, targets = _generated_rows(n_features)
        outside = loss.may_raise or type(self) is not MeanGradient
        with np.errstate(all="ignore"):
            predictions = rows @ self.weights.reshape(loss.n_outputs, n_features).T
            if outside:
                predictions, targets = np.linspace(-1, 1, 2 * loss.n_outputs).reshape(2, -1), np.ones(2)
            try:
                found = loss.slope(predictions[:, 0] if loss.n_outputs == 1 else predictions, targets)
            except Exception as error:
                raise ValueError(f"Expected the {loss.name} loss to have slopes at [-1, 1]: it raised.") from error
        if outside:  # row weights are from 0 to 1: what is finite without them stays so
            found = replace(self, row_weights=None).on_generated(n_features, dtype)
        if not np.all(np.isfinite(found)):
            raise ValueError(
                f"Expected finite gradients of the {loss.name} loss on generated rows with targets 0 and 1: its slope "
                "is wrong, or weights are too large for it."
            )


def slopes_of(loss: Loss, predictions: np.ndarray, rows: Rows) -> np.ndarray:
    """Slopes of these rows, times their weights. A loss from outside sees one user's rows at a time: it could mix them.

    Whatever it raises, which may depend on the data, makes that user's slopes NaN.
    """
    if not loss.may_raise:
        return rows.weighted(np.asarray(loss.slope(predictions, rows.targets)))
    out, targets = np.full(predictions.shape, math.nan), rows.targets
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for first, last in zip(rows.bounds[:-1], rows.bounds[1:], strict=True):
            if first < last:
                with shielded():
                    own = predictions[first:last].astype(np.float64), targets[first:last].copy()
                    out[first:last] = np.asarray(loss.slope(*own), dtype=np.float64)
    return rows.weighted(out)


@contextlib.contextmanager
def shielded() -> Iterator[None]:
    """Whatever is raised inside may depend on a user's data, so it does not leave; an interrupt does, by itself."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt from None
    except BaseException:
        pass


@dataclass(frozen=True, eq=False)
class UserGradients(PerUser):
    """Your own vector per user: function(weights, rows, targets) -> vector as long as the weights.

    It is called once per user with that user's rows and targets only, so any autodiff library can stand behind it. It
    must keep no state from call to call, print nothing, and be picklable for engines on other machines. An
    exception, a wrong shape or a non-finite entry makes that user's vector NaN, silently; warnings are swallowed.
    A user without rows is NaN, without a call.

    Guarantee: vector j is a function of user users[j]'s rows and the weights, if `function` keeps no state.
    """

    function: Callable[[np.ndarray, np.ndarray, np.ndarray], Any]  # it may, but need not, use the targets
    weights: np.ndarray

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", weights_vector(self.weights))

    def vectors(self, data: UserData, users: np.ndarray) -> np.ndarray:
        out = np.full((users.size, self.weights.size), math.nan)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            for j, user in enumerate(users):
                rows, targets = data.rows_of(user)
                if len(rows):
                    with shielded():
                        vector = self._vector(rows, targets)
                        if vector.shape == self.weights.shape and np.all(np.isfinite(vector)):
                            out[j] = vector
        return out

    def check(self, n_features: int, dtype: npt.DTypeLike = np.float64) -> None:
        generated = generated_data(n_features, dtype)
        name = getattr(self.function, "__name__", type(self.function).__name__)
        for user in range(generated.n_users):
            rows, targets = generated.rows_of(user)
            try:
                vector = self._vector(rows, targets)
            except Exception as error:
                raise ValueError(
                    f"Expected {name} to return a vector for generated rows of shape {rows.shape} in {rows.dtype}: "
                    f"it raised {type(error).__name__}."
                ) from error
            if vector.shape != self.weights.shape or not np.all(np.isfinite(vector)):
                raise ValueError(
                    f"Expected {name} to return finite numbers of shape {self.weights.shape} for generated rows of "
                    f"shape {rows.shape}, got shape {vector.shape}: return one number per weight."
                )

    def _vector(self, rows: np.ndarray, targets: np.ndarray) -> np.ndarray:
        return np.asarray(self.function(self.weights, rows, targets), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class ClippedGradient(PerUser):
    """Gradient of each user, clipped, and which size it has: `mark` in one of 12 more coordinates, zeros in the others.

    The first marks a norm above longest/2, the next above longest/4, and so on; the last all norms that are smaller.
    One more coordinate indicates users who are affected (`UserData.affected`), or whose gradient is not finite and
    counts as 0, as that of a user without rows does: it has `AFFECTED` = 0.6 of a mark then, and a size 0.8 beside it.
    With `directions` (dimension x k) the gradient is g_u @ directions. Vectors are at most `radius` =
    sqrt(clip^2 + mark^2) long: clipped there they stay as they are, and what marks show costs no release of its own.

    Guarantee: vector j is a function of user users[j]'s rows, in their order, and of the parameters.
    """

    needs_targets: ClassVar[bool] = True
    gradient: MeanGradient
    clip: float
    longest: float
    mark: float
    directions: np.ndarray | None = None

    @property
    def radius(self) -> float:
        return math.hypot(self.clip, self.mark)

    @property
    def affected_mark(self) -> float:
        """What the indicator of an affected user has."""
        return AFFECTED * self.mark

    def told(self, released: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        """Of a released mean: the gradient, how frequent sizes are, and the fraction of users who are affected.

        Sizes of affected users, which have less of a mark, are taken to be as those of the others.
        """
        gradient, sizes = released[: -N_SIZES - 1], released[-N_SIZES - 1 : -1] / self.mark
        affected = float(released[-1]) / self.affected_mark
        return gradient, sizes / (1 - (1 - AFFECTED_SIZE) * min(max(affected, 0.0), 1.0)), affected

    @property
    def marks(self) -> Marks:
        return Marks(self.longest, N_SIZES, self.mark, AFFECTED_SIZE * self.mark, AFFECTED * self.mark)

    def of_users(self, rows: Rows) -> Any:
        if self.directions is None:
            found = self.gradient.of_users(rows)
        else:
            found = self.gradient.along(rows, self.gradient.row_slopes(rows), self.directions)
            found[rows.counts == 0] = math.nan
        found = sorted_rows(found) if scipy.sparse.issparse(found) else found
        squares = squared_lengths(found)
        norms = np.where(np.isfinite(squares), np.sqrt(squares), math.nan)
        factors = np.where(np.isnan(norms), 0.0, np.minimum(1.0, self.clip / np.where(norms > 0, norms, 1.0)))
        return beside([scaled(found, factors), self.marks.beside(norms, rows.data.affected[rows.users])])

    def total(self, data: UserData, users: np.ndarray, radius: float, bits: int) -> np.ndarray | None:
        """The sum of all users' vectors, and their number, in steps of radius 2^-bits, without a vector of each.

        None where that is not how they are added up: without a basis, for one of extreme numbers, for a clip that is
        none (0, or no number), or for a radius that would clip marks, too.
        """
        self._check_directions()
        gradient = self.gradient
        sound = self.clip > 0 and radius >= self.radius * (1 - 1e-12)  # nor is a mark that is no number
        if type(gradient) is not MeanGradient or gradient.basis is None or not sound:
            return None
        if not is_tame(gradient.basis, data.dtype):
            return None
        geometry = geometry_of(data, gradient.basis) if self.directions is None else None
        if gradient.row_weights is not None and not gradient.row_weights.thin:
            geometry_of(data, gradient.row_weights.basis)  # before threads ask for it
        total = GradientTotal(gradient, self.clip, self.marks, geometry, self.directions)
        return total.total(data, users, radius, bits)

    def check(self, n_features: int, dtype: npt.DTypeLike = np.float64) -> None:
        self.gradient.check(n_features, dtype)
        self._check_directions()

    def _check_directions(self) -> None:
        size = self.gradient.weights.size
        if self.directions is not None and len(self.directions) != size:
            raise ValueError(f"Expected directions of {size} entries, got {len(self.directions)}.")


@dataclass(frozen=True, eq=False)
class MeanCurvature(PerUser):
    """How curved the loss is along each user's rows, and one over the number of them: two numbers in [-1/2, 1/2].

    Of a user without rows both are 0, less a half: nothing curves, as no gradient moves.

    The first: mean over the rows of weight * min(2, |x @ basis|^2 / longest^2) * (slope's derivative, along the slope),
    by a finite difference, over 2 * largest, at most 1, less a half. The second: 1/m_u less a half.

    Guarantee: vector j is a function of user users[j]'s rows and of the parameters.
    """

    needs_targets: ClassVar[bool] = True
    radius: ClassVar[float] = math.sqrt(0.5)
    gradient: MeanGradient
    step: float
    largest: float

    def of_users(self, rows: Rows) -> np.ndarray:
        gradient, weighing = self.gradient, self.gradient.row_weights
        if weighing is None:
            raise ValueError("Expected a gradient with row_weights.")
        predictions = rows.predictions(gradient.weights.reshape(gradient.loss.n_outputs, -1)).astype(np.float64)
        here = slopes_of(gradient.loss, predictions, rows).reshape(len(rows), gradient.loss.n_outputs)
        sizes = np.sqrt(np.einsum("ij,ij->i", here, here))
        along_slope = np.where(sizes[:, None] > 0, here / np.where(sizes > 0, sizes, 1.0)[:, None], 0.0)
        along_slope[sizes == 0, 0] = 1.0  # along the first output where there is no slope
        there = slopes_of(gradient.loss, predictions + self.step * along_slope.reshape(predictions.shape), rows)
        change = np.einsum("ij,ij->i", there.reshape(here.shape) - here, along_slope)
        lengths = weighing.lengths(rows).astype(np.float64)
        weights = np.minimum(1.0, weighing.longest / np.where(lengths > 0, lengths, 1.0))
        total = rows.per_user(weights * np.minimum(np.square(lengths / weighing.longest), 2.0) * change / self.step)
        curvatures = total / np.maximum(rows.counts, 1)
        fractions = np.clip(curvatures / (2 * self.largest), 0.0, 1.0)
        found = np.column_stack([fractions, 1 / np.maximum(rows.counts, 1)])
        return np.where(rows.counts[:, None] > 0, found, 0.0) - 0.5

    def check(self, n_features: int, dtype: npt.DTypeLike = np.float64) -> None:
        self.gradient.check(n_features, dtype)
        self.on_generated(n_features, dtype)


# --- checks that statistics share -------------------------------------------------------------------------------------


def check_loss(loss: Any) -> None:
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


def square_basis(basis: npt.ArrayLike | None) -> np.ndarray | None:
    """A read-only float64 copy of a basis, checked."""
    if basis is None:
        return None
    matrix = weights_vector(np.ravel(basis)).reshape(np.shape(basis))
    if matrix.ndim != 1 and (matrix.ndim != 2 or len(matrix) != len(matrix.T)):
        raise ValueError(f"Expected a square basis, or a diagonal, got shape {matrix.shape}.")
    return matrix


def check_sizes(name: str, weights: np.ndarray, loss: Loss, basis: np.ndarray | None, n_features: int) -> None:
    """Refuse weights and a basis for other features than there are."""
    expected = loss.n_outputs * n_features
    if weights.size != expected:
        raise ValueError(
            f"Expected {name} of length {expected} for the {loss.name} loss on {n_features} features, got "
            f"{weights.size}: count the intercept's feature, and all outputs."
        )
    if basis is not None and len(basis) != n_features:
        raise ValueError(f"Expected a basis of {n_features} features, got {len(basis)}.")


def checked_users(data: UserData, users: npt.ArrayLike) -> np.ndarray:
    """User indices as int64, checked."""
    indices = np.asarray(users)
    if indices.ndim != 1 or (indices.size and indices.dtype.kind not in "iu"):
        raise TypeError(f"Expected users as a vector of integers, got shape {indices.shape} of {indices.dtype}.")
    if indices.size and not (indices.min() >= 0 and indices.max() < data.n_users):
        raise IndexError(f"Expected user indices from 0 to n_users - 1 = {data.n_users - 1}.")
    return np.ascontiguousarray(indices, dtype=np.int64)


def generated_data(n_features: int, dtype: npt.DTypeLike) -> UserData:
    """Three users with 1, 2 and 3 fixed small rows, targets 0 and 1: to try a statistic without any data."""
    rows, targets = _generated_rows(n_features)
    return UserData(rows.astype(dtype), targets.copy(), np.array([0, 1, 3, 6]))


@functools.lru_cache(maxsize=8)
def _generated_rows(n_features: int) -> tuple[np.ndarray, np.ndarray]:
    rows = 0.1 * np.cos(np.arange(1.0, 6 * n_features + 1).reshape(6, n_features))
    targets = np.array([0.0, 1.0, 0.0, 1.0, 1.0, 0.0])
    rows.flags.writeable = targets.flags.writeable = False
    return rows, targets
