"""Where the weights may lie: a ball, a box, a simplex or a plane within a ball, with the projection onto it.

A domain is public: its size comes from declared parameters, never from the data. Solvers need nothing but the methods
of `Domain`; `nearest` is the projection when distance means difference of predictions, |((v - w) as rows) axes scales|,
for rows whose second moment has the eigenvectors `axes` (columns) and the eigenvalues scales^2.

>>> Ball(radius=1.0).project([3.0, 4.0])
array([0.6, 0.8])
>>> Box(low=[0, 0], high=[1, 1]).project([3.0, 0.5])
array([1. , 0.5])
>>> Simplex().project([1.0, 0.5, -3.0])
array([0.75, 0.25, 0.  ])
>>> Affine([[1.0, 1.0]], [0.0], radius=2.0).project([3.0, 1.0])
array([ 1., -1.])
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import scipy  # whose parts load when they are used

# A projected point can miss its domain by rounding; this much is called inside.
_ROUNDING = 1e-12


class Domain(Protocol):
    """A closed convex set of weights."""

    @property
    def diameter(self) -> float:
        """Largest distance between two points of the set (R in the paper)."""

    @property
    def largest_norm(self) -> float:
        """Largest |w| of the set, which losses with growing slopes need."""

    def project(self, w: npt.ArrayLike) -> np.ndarray:
        """The point of the set nearest to w."""

    def contains(self, w: npt.ArrayLike) -> bool:
        """Whether w lies in the set, up to rounding."""

    def reach(self, w: npt.ArrayLike) -> float:
        """Largest distance of a point of the set from w."""

    def around(self, dimension: int) -> Ball:
        """A ball that holds the set, as small as is easily told."""

    def nearest(self, w: np.ndarray, axes: np.ndarray, scales: np.ndarray) -> np.ndarray:
        """The point of the set nearest to w in predictions, up to rounding; w is outside."""


@dataclass(frozen=True, eq=False)
class Ball:
    """All points within `radius` of `center` (the origin unless given).

    project(w) = center + (w - center) * min(1, radius / |w - center|); diameter 2 * radius.
    """

    radius: float
    center: np.ndarray | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.radius) and self.radius > 0):
            raise ValueError(
                f"Expected radius={self.radius} > 0 and finite: pass the largest distance from the center."
            )
        object.__setattr__(self, "radius", float(self.radius))  # what is computed from a narrow float would be narrow
        if self.center is not None:
            object.__setattr__(self, "center", _vector("center", self.center))

    @property
    def diameter(self) -> float:
        return 2.0 * self.radius

    @property
    def largest_norm(self) -> float:
        return self.radius if self.center is None else self.radius + _norm(self.center)

    def project(self, w: npt.ArrayLike) -> np.ndarray:
        w = _vector("w", w, like=self.center)
        half_radius, half_offset = 0.5 * self.radius, self._half_offset(w)
        largest = float(np.max(np.abs(half_offset), initial=0.0))
        if largest == 0.0:
            return w
        # Divide by the largest entry first: squares of entries near 1e200 would overflow.
        direction = half_offset / largest
        length = float(np.linalg.norm(direction))
        if largest * length <= half_radius:
            return w
        step = direction * (self.radius / length)
        return step if self.center is None else self.center + step

    def contains(self, w: npt.ArrayLike) -> bool:
        offset = self._half_offset(_vector("w", w, like=self.center))
        return _norm(offset) <= 0.5 * self.radius * (1.0 + _ROUNDING)

    def reach(self, w: npt.ArrayLike) -> float:
        return self.radius + 2 * _norm(self._half_offset(_vector("w", w, like=self.center)))

    def around(self, dimension: int) -> Ball:
        return Ball(self.radius, np.zeros(dimension)) if self.center is None else self

    def nearest(self, w: np.ndarray, axes: np.ndarray, scales: np.ndarray) -> np.ndarray:
        """Pulled to the center by the force that brings it to the border."""
        center = 0.0 if self.center is None else self.center
        n_outputs = len(w) // len(scales)
        along = ((w - center).reshape(n_outputs, -1) @ axes).ravel()
        curvature = np.tile(scales**2, n_outputs)

        def pulled(force: float) -> np.ndarray:
            return np.asarray(along * curvature / (curvature + force))

        strongest = float(curvature.max() * np.linalg.norm(along) / self.radius)
        force = scipy.optimize.brentq(lambda f: float(np.linalg.norm(pulled(f))) - self.radius, 0.0, strongest)
        return np.asarray(center + (pulled(force).reshape(n_outputs, -1) @ axes.T).ravel())

    def _half_offset(self, w: np.ndarray) -> np.ndarray:
        """(w - center) / 2: the difference of two finite vectors can overflow, half of it cannot."""
        return 0.5 * w if self.center is None else 0.5 * w - 0.5 * self.center


@dataclass(frozen=True, eq=False)
class Box:
    """All points whose every coordinate lies between `low` and `high`.

    project(w) clips each coordinate; diameter |high - low|.
    """

    low: np.ndarray
    high: np.ndarray

    def __post_init__(self) -> None:
        low = _vector("low", self.low)
        high = _vector("high", self.high, like=low)
        wrong = np.flatnonzero(low >= high)
        if wrong.size:
            first = int(wrong[0])
            raise ValueError(
                f"Expected low[{first}]={low[first]} < high[{first}]={high[first]}: "
                f"exchange or widen the bounds ({wrong.size} coordinates are wrong)."
            )
        object.__setattr__(self, "low", low)
        object.__setattr__(self, "high", high)

    @property
    def diameter(self) -> float:
        return 2.0 * _norm(0.5 * self.high - 0.5 * self.low)

    @property
    def largest_norm(self) -> float:
        return _norm(np.maximum(np.abs(self.low), np.abs(self.high)))

    def project(self, w: npt.ArrayLike) -> np.ndarray:
        clipped: np.ndarray = np.clip(_vector("w", w, like=self.low), self.low, self.high)
        return clipped

    def contains(self, w: npt.ArrayLike) -> bool:
        w = _vector("w", w, like=self.low)
        slack = _ROUNDING * np.maximum(np.abs(self.low), np.abs(self.high))
        return bool(np.all((self.low - slack <= w) & (w <= self.high + slack)))

    def reach(self, w: npt.ArrayLike) -> float:
        w = _vector("w", w, like=self.low)
        return 2 * _norm(np.maximum(np.abs(0.5 * w - 0.5 * self.low), np.abs(0.5 * self.high - 0.5 * w)))

    def around(self, dimension: int) -> Ball:
        return Ball(0.5 * self.diameter, 0.5 * self.low + 0.5 * self.high)

    def nearest(self, w: np.ndarray, axes: np.ndarray, scales: np.ndarray) -> np.ndarray:
        root = _root(len(w), axes, scales)
        return np.asarray(scipy.optimize.lsq_linear(root, root @ w, (self.low, self.high)).x)


@dataclass(frozen=True, eq=False)
class Simplex:
    """All points without negative coordinates that add up to `total`: mixtures, if that is 1.

    project(w) = max(w - t, 0) with the t that gives the sum (Held et al. 1974); diameter sqrt(2) * total.
    """

    total: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.total) and self.total > 0):
            raise ValueError(f"Expected total={self.total} > 0 and finite: pass what the weights add up to.")
        object.__setattr__(self, "total", float(self.total))

    @property
    def diameter(self) -> float:
        return math.sqrt(2.0) * self.total

    @property
    def largest_norm(self) -> float:
        return self.total

    def project(self, w: npt.ArrayLike) -> np.ndarray:
        w = _vector("w", w)
        # Halves cannot overflow, and what is below the largest entry by more than the total is cut off anyway.
        half = np.maximum(0.5 * w - 0.5 * w.max(), -0.5 * self.total)
        falling = np.sort(half)[::-1]
        levels = (np.cumsum(falling) - 0.5 * self.total) / np.arange(1, w.size + 1)
        level = levels[np.flatnonzero(falling > levels)[-1]]
        inside = np.maximum(half - level, 0.0)
        return np.asarray(inside * (self.total / inside.sum()))

    def contains(self, w: npt.ArrayLike) -> bool:
        w = _vector("w", w)
        slack = _ROUNDING * self.total * w.size
        if not np.all((w >= -slack) & (w <= self.total + slack)):  # sums of what is left cannot overflow
            return False
        return bool(abs(w.sum() - self.total) <= slack)

    def reach(self, w: npt.ArrayLike) -> float:
        """The distance of the corner of w's smallest coordinate."""
        half = 0.5 * _vector("w", w)
        half[np.argmin(half)] -= 0.5 * self.total
        return 2 * _norm(half)

    def around(self, dimension: int) -> Ball:
        return Ball(self.total, np.full(dimension, self.total / dimension))

    def nearest(self, w: np.ndarray, axes: np.ndarray, scales: np.ndarray) -> np.ndarray:
        """By non-negative least squares: v = total x / sum(x), x minimising |C x|^2 + (sum(x) - 1)^2.

        C = root (total I - w 1') / size has C x = t root (v - w) / size for x = t v / total. Over t the least is
        q / (1 + q) with q = |root (v - w) / size|^2, which rises with q.
        """
        root = _root(len(w), axes, scales)
        corners = self.total * root - (root @ w)[:, None]
        size = float(np.abs(corners).max())
        weights, _ = scipy.optimize.nnls(
            np.vstack([corners / size, np.ones(len(w))]), np.append(np.zeros(len(w)), 1.0), maxiter=100 * len(w)
        )
        return np.asarray(self.total / weights.sum() * weights)


@dataclass(frozen=True, eq=False)
class Affine:
    """All points with constraints @ w = values within `radius` of `center` (or the origin): a ball in a plane.

    With c the point of the plane nearest to the center and P the projection onto the plane's directions,
    project(w) = c + P (w - c) * min(1, r / |P (w - c)|), r^2 = radius^2 - |c - center|^2; diameter 2 r.
    """

    constraints: np.ndarray
    values: np.ndarray
    radius: float
    center: np.ndarray | None = None
    _middle: np.ndarray = field(init=False, repr=False)  # c
    _free: np.ndarray = field(init=False, repr=False)  # orthonormal directions of the plane, as rows
    _r: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        constraints = np.array(self.constraints, dtype=np.float64)
        if constraints.ndim != 2 or not np.all(np.isfinite(constraints)):
            raise ValueError(
                f"Expected finite constraints of shape (n_constraints, n_features), got {constraints.shape}."
            )
        origin = np.zeros(constraints.shape[1])
        center = _vector("center", origin if self.center is None else self.center, like=origin)
        ball = Ball(self.radius, center)
        values = _vector("values", self.values, like=np.empty(len(constraints)))
        left, sizes, right = np.linalg.svd(constraints, full_matrices=True)
        rank = int(np.count_nonzero(sizes > sizes.max(initial=0.0) * max(constraints.shape) * np.finfo(float).eps))
        across = left[:, :rank].T @ (values - constraints @ center) / sizes[:rank]
        middle = center + across @ right[:rank]
        missed = float(np.abs(constraints @ middle - values).max(initial=0.0))
        if missed > 1e-9 * (np.abs(values).max(initial=0.0) + np.abs(constraints).max(initial=0.0) * _norm(middle)):
            raise ValueError("Expected constraints that some weights fulfil: these contradict each other.")
        distance = _norm(across)
        if rank == constraints.shape[1] or not distance < ball.radius:
            raise ValueError(
                f"Expected fewer independent constraints than the {constraints.shape[1]} weights, and weights within "
                f"radius={ball.radius} that fulfil them: they are {rank}, {distance:.6g} from the center; widen it."
            )
        arrays = {
            "constraints": constraints,
            "values": values,
            "center": center,
            "_middle": middle,
            "_free": right[rank:],
        }
        for name, array in arrays.items():
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        object.__setattr__(self, "radius", ball.radius)
        object.__setattr__(self, "_r", math.sqrt((ball.radius - distance) * (ball.radius + distance)))

    @property
    def diameter(self) -> float:
        return 2 * self._r

    @property
    def largest_norm(self) -> float:
        return self.reach(np.zeros(len(self._middle)))

    def project(self, w: npt.ArrayLike) -> np.ndarray:
        half, size = self._scaled_offset(w)
        along = self._free @ half
        length = _norm(along)
        kept = 2 * size * along if 2 * size * length <= self._r else self._r * (along / length)
        return np.asarray(self._middle + kept @ self._free)

    def contains(self, w: npt.ArrayLike) -> bool:
        w = _vector("w", w, like=self._middle)
        slack = 100 * _ROUNDING * (self.radius + _norm(self._middle))
        return 2 * _norm(0.5 * w - 0.5 * self.project(w)) <= slack

    def reach(self, w: npt.ArrayLike) -> float:
        half, size = self._scaled_offset(w)
        along = self._free @ half
        return 2 * size * math.hypot(_norm(half - along @ self._free), _norm(along) + self._r / size / 2)

    def around(self, dimension: int) -> Ball:
        return Ball(self._r, self._middle)

    def nearest(self, w: np.ndarray, axes: np.ndarray, scales: np.ndarray) -> np.ndarray:
        """Least squares in the plane's directions, and if that is too far, the nearest point of the ball in these."""
        root = _root(len(w), axes, scales)
        free = root @ self._free.T
        best = np.linalg.lstsq(free, root @ (w - self._middle))[0]
        inner = Ball(self._r)
        if not inner.contains(best):
            _, sizes, turned = np.linalg.svd(free, full_matrices=False)
            best = inner.nearest(best, turned.T, np.maximum(sizes, 1e-150))
        return np.asarray(self._middle + best @ self._free)

    def _scaled_offset(self, w: npt.ArrayLike) -> tuple[np.ndarray, float]:
        """Numbers of at most 1, and s with w - c = 2 s times these: sums of entries near 1e308 would overflow."""
        half = 0.5 * _vector("w", w, like=self._middle) - 0.5 * self._middle
        size = max(1.0, float(np.abs(half).max()))
        return half / size, size


def _root(dimension: int, axes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """The matrix whose product with a difference of weights has the length of their distance in predictions."""
    return np.kron(np.eye(dimension // len(scales)), (axes * scales).T)


def _vector(name: str, value: npt.ArrayLike, like: np.ndarray | None = None) -> np.ndarray:
    """A fresh read-only float64 vector, or an error that says what is wrong with it."""
    vector = np.array(value, dtype=np.float64)
    if vector.ndim != 1 or (like is not None and vector.shape != like.shape):
        shape = "(n_features,)" if like is None else str(like.shape)
        raise ValueError(f"Expected {name} of shape {shape}, got {vector.shape}: pass one number per feature.")
    if not np.all(np.isfinite(vector)):
        raise ValueError(f"Expected finite {name}: it has NaN or infinite entries; use a bounded domain and step.")
    vector.flags.writeable = False
    return vector


def _norm(vector: np.ndarray) -> float:
    """Euclidean norm without overflow on the way: it is infinite only if the norm itself is too large."""
    largest = float(np.max(np.abs(vector), initial=0.0))
    return largest * float(np.linalg.norm(vector / largest)) if largest > 0.0 else 0.0
