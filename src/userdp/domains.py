"""Where the weights may lie: a ball or a box, with the projection onto it.

A domain is public: its size comes from declared parameters, never from the data. Both have

    diameter, largest_norm    largest distance between two points (R in the paper), and largest |w|
    project(w), contains(w)   the nearest point, and whether w is inside up to rounding
    reach(w), around(d)       largest distance of a point of the domain from w, and a ball that holds the domain
    nearest(w, axes, scales)  the point nearest to a w outside when distance means difference of predictions,
                              |((v - w) as rows) axes scales|, for rows whose second moment has the eigenvectors
                              `axes` (columns) and the eigenvalues scales^2

>>> Ball(radius=1.0).project([3.0, 4.0])
array([0.6, 0.8])
>>> Box(low=[0, 0], high=[1, 1]).project([3.0, 0.5])
array([1. , 0.5])
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import scipy  # whose parts load when they are used

from userdp._validate import check_positive

# A projected point can miss its domain by rounding; this much is called inside.
_ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class Ball:
    """All points within a radius of a center.

    project(w) = center + (w - center) * min(1, radius / |w - center|); diameter 2 * radius.

    Parameters
    ----------
    radius : float
    center : array of shape (n_features,), optional
        The origin by default.
    """

    radius: float
    center: np.ndarray | None = None

    def __post_init__(self) -> None:
        check_positive(radius=self.radius)
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

    Parameters
    ----------
    low, high : array of shape (n_features,), low < high
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
                f"low must be below high, got low[{first}]={low[first]}, high[{first}]={high[first]}: exchange or "
                f"widen the bounds ({wrong.size} coordinates are wrong)."
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
        root = np.kron(np.eye(len(w) // len(scales)), (axes * scales).T)  # |root (v - w)| is that distance
        return np.asarray(scipy.optimize.lsq_linear(root, root @ w, (self.low, self.high)).x)


Domain: TypeAlias = Ball | Box


def _vector(name: str, value: npt.ArrayLike, like: np.ndarray | None = None) -> np.ndarray:
    """A fresh read-only float64 vector, or an error that says what is wrong with it."""
    vector = np.array(value, dtype=np.float64)
    if vector.ndim != 1 or (like is not None and vector.shape != like.shape):
        shape = "(n_features,)" if like is None else str(like.shape)
        raise ValueError(f"{name} must have shape {shape}, got {vector.shape}: pass one number per feature.")
    if not np.all(np.isfinite(vector)):
        raise ValueError(f"{name} must be finite, it has NaN or infinite entries: use a bounded domain and step.")
    vector.flags.writeable = False
    return vector


def _norm(vector: np.ndarray) -> float:
    """Euclidean norm without overflow on the way: it is infinite only if the norm itself is too large."""
    largest = float(np.max(np.abs(vector), initial=0.0))
    return largest * float(np.linalg.norm(vector / largest)) if largest > 0.0 else 0.0
