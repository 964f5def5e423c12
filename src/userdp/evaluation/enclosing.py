"""Bodies around all possible vectors of scores, by public numbers: noise is proportional to their size.

An ellipsoid is flat where coordinates go together, and so has less noise than a ball.
"""

from __future__ import annotations

import numpy as np

from userdp.statistics.scores import Knots, split_at

_ELLIPSOID_STEPS, _BALL_STEPS = 100, 400
_ROUNDS, _MOST_POINTS, _ADDED, _NEARLY = 8, 500, 100, 1.01  # of many points those are taken that turn out to matter
_FLATTEST = 1e-6  # of the longest axis's variance
_LEAST_SIZE = 1e-6


def corners_of_means(points: np.ndarray, knots: Knots) -> np.ndarray:
    """Points whose split (`split_at`) holds that of every mean of the given ones between them, but for a little.

    A split is linear on either side of a knot: its corners are those of the given points, and where lines between two
    of them pass a knot. (Where planes pass two knots at once is left out.)
    """
    found = [points]
    for column, knot in knots:
        low, high = points[points[:, column] < knot], points[points[:, column] > knot]
        parts = (knot - low[:, None, column]) / (high[None, :, column] - low[:, None, column])
        found.append((low[:, None] + parts[:, :, None] * (high[None] - low[:, None])).reshape(-1, points.shape[1]))
    return split_at(np.vstack(found), knots)


def enclosing_ball(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The centre, and radius times the unit matrix, of a ball around all points, about the smallest.

    Paper: Badoiu and Clarkson 2003.

    >>> np.round(enclosing_ball(np.array([[0.0, 0.0], [2.0, 0.0], [1.0, 0.5]]))[1], 1)
    array([[1., 0.],
           [0., 1.]])
    """
    centre = (points.max(axis=0) + points.min(axis=0)) / 2
    for step in range(_BALL_STEPS):
        distances = ((points - centre) ** 2).sum(axis=1)
        centre = centre + (points[np.argmax(distances)] - centre) / (step + 2)
    radius = float(np.sqrt(((points - centre) ** 2).sum(axis=1).max()))
    return centre, max(radius, _LEAST_SIZE) * np.eye(points.shape[1])


def enclosing_ellipsoid(points: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The centre c, and a matrix A, of an ellipsoid {c + A u, |u| <= 1} around all points.

    About that of the least trace of W AA', W the weights on a diagonal: noise of one size in all coordinates of u has
    the least variance, weighed, in those of the points. Its dual: a distribution of points whose covariance M (of
    weighed coordinates) has the largest tr M^(1/2); then AA' ~ M^(1/2). Points get more of it in proportion to
    the root of their d' M^(-1/2) d, which is tr M^(1/2) on average. Whatever that ends with, A is stretched to hold all
    points.

    >>> centre, axes = enclosing_ellipsoid(np.array([[1.0, 1.0], [-1.0, -1.0], [0.1, -0.1], [-0.1, 0.1]]), np.ones(2))
    >>> np.round(np.linalg.eigvalsh(axes), 1)
    array([0.1, 1.4])
    """
    unit = np.sqrt(weights)
    points = points * unit
    some = np.arange(0, len(points), 1 + len(points) // _MOST_POINTS)
    for _ in range(_ROUNDS):
        mass = np.full(len(some), 1 / len(some))
        for _ in range(_ELLIPSOID_STEPS):
            _, roots, _, far = _distances(points[some], mass)
            mass = mass * np.sqrt(far / roots.sum())
            mass = mass / mass.sum()
        held = np.bincount(some, mass, len(points))
        centre, roots, turn, far = _distances(points, held)
        if far.max() <= _NEARLY * far[some].max():
            break
        some = np.union1d(some, np.argsort(far)[-_ADDED:])
    axes = (turn * np.sqrt(roots * far.max())) @ turn.T
    return centre / unit, axes / unit[:, None]


def _distances(points: np.ndarray, mass: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The mean c, M^(1/2) as eigenvalues and vectors, and d' M^(-1/2) d of each point's d = point - c."""
    centre = mass @ points
    apart = points - centre
    values, turn = np.linalg.eigh((apart * mass[:, None]).T @ apart)
    roots = np.sqrt(np.maximum(values, max(values[-1] * _FLATTEST, _LEAST_SIZE**4)))
    return centre, roots, turn, ((apart @ turn) ** 2 / roots).sum(axis=1) + _LEAST_SIZE**2
