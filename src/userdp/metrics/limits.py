"""How far people's vectors of scores may lie from a centre before they are clipped; by public numbers and releases.

Noise is proportional to the size of the body that vectors are clipped to. Around all possible vectors that is an
ellipsoid, flat where coordinates go together. Most people are far closer to their mean than that: a release of how many
are how far tells whether a smaller copy, around the mean that the histogram shows, costs less than it gains.
"""

from __future__ import annotations

import numpy as np

LIMITS = (0.4, 0.55, 0.75)  # sizes of smaller copies of the ellipsoid
ENDS = (*LIMITS, 1.0)  # between which people are counted
_EXCESS = np.maximum([[0.475, 0.65, 0.875, 1.2]] - np.array(LIMITS)[:, None], 0.0)  # of those beyond each end, about
_DOUBT = 0.6  # deviations of their noise that fractions of people must be above, to count
_ELLIPSOID_STEPS, _BALL_STEPS = 100, 400
_FLATTEST = 1e-6  # of the longest axis's variance
_LEAST_SIZE = 1e-6


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
    points, mass = points * unit, np.full(len(points), 1 / len(points))
    for _ in range(_ELLIPSOID_STEPS):
        centre, roots, turn, far = _distances(points, mass)
        mass = mass * np.sqrt(far / roots.sum())
        mass = mass / mass.sum()
    centre, roots, turn, far = _distances(points, mass)
    axes = (turn * np.sqrt(roots * far.max())) @ turn.T
    return centre / unit, axes / unit[:, None]


def _distances(points: np.ndarray, mass: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The mean c, M^(1/2) as eigenvalues and vectors, and d' M^(-1/2) d of each point's d = point - c."""
    centre = mass @ points
    apart = points - centre
    values, turn = np.linalg.eigh((apart * mass[:, None]).T @ apart)
    roots = np.sqrt(np.maximum(values, max(values[-1] * _FLATTEST, _LEAST_SIZE**4)))
    return centre, roots, turn, ((apart @ turn) ** 2 / roots).sum(axis=1) + _LEAST_SIZE**2


def chosen_limit(fractions: np.ndarray, fraction_std: float, noise_std: float) -> tuple[float, float]:
    """The limit at which noise and what is lost beyond it are least, and what is lost: about how far the mean is off.

    A limit of 1 is for the whole ellipsoid, which loses nothing.

    fractions: noisy, of people by their distance from the centre: up to the first of ENDS, to the next, and so on,
    and beyond. noise_std: of scores at a limit of 1.

    >>> chosen_limit(np.array([1.0, 0.0, 0.0, 0.0, 0.0]), 0.001, 0.001)
    (0.4, 0.0)
    >>> chosen_limit(np.array([0.9, 0.0, 0.0, 0.0, 0.1]), 0.001, 0.001)
    (1.0, 0.0)
    """
    lost = _EXCESS @ np.maximum(fractions[1:] - _DOUBT * fraction_std, 0.0)
    errors = np.hypot(noise_std * np.array(LIMITS), lost)
    best = int(np.argmin(errors))
    return (LIMITS[best], float(lost[best])) if errors[best] < noise_std else (1.0, 0.0)
