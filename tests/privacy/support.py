"""Tools shared by the privacy tests: brute force, adversarial neighbours, and noise that records."""

from __future__ import annotations

import contextlib
import math

import numpy as np

from userdp.paper.outlier_removal import OutlierRemoval
from userdp.privacy.mechanism import Aborted


def gaussian_removal(n_vectors, noise_multiplier, test_std, failure, false_abort=1e-3, rounds=1, outliers=0):
    """Outlier removal behind a Gaussian test in each round."""
    return OutlierRemoval(n_vectors, noise_multiplier, None, failure, false_abort, rounds, outliers, test_std)


def searched_removal(n_vectors, radii, noise_multiplier, test_std, failure, outliers=0):
    """Outlier removal at the smallest of radii that passes."""
    return OutlierRemoval(n_vectors, noise_multiplier, None, failure, outliers=outliers, test_std=test_std, radii=radii)


def brute_counts(vectors, radius):
    """Neighbour counts by definition."""
    with np.errstate(invalid="ignore", over="ignore"):
        near = ((vectors[:, None, :] - vectors[None, :, :]) ** 2).sum(axis=2) <= radius**2
    np.fill_diagonal(near, True)
    return near.sum(axis=1)


def climb(objective, start, rng, steps=400):
    """Hill climbing over point sets by moving, replacing and duplicating single points; returns the best value."""
    best, value = start, objective(start)
    for _ in range(steps):
        points = best.copy()
        moved = rng.integers(len(points))
        kind = rng.integers(4)
        if kind == 0:
            points[moved] = points[rng.integers(len(points))]
        elif kind == 1:
            points[moved] += rng.normal(0, 10.0 ** rng.uniform(-3, 0.3), points.shape[1])
        elif kind == 2:
            direction = rng.normal(size=points.shape[1])
            points[moved] = points[rng.integers(len(points))] + direction / np.linalg.norm(direction)
        else:
            points[moved] = np.round(points[moved])
        new = objective(points)
        if new >= value:
            best, value = points, new
    return value


class SilentNoise:
    """Adds nothing and writes down what it was asked for, so that tests can see scales and values."""

    seed = None

    def __init__(self, permutation=None, shifts=()):
        self.asked = []
        self._shifts = list(shifts)

    def _shift(self):
        return self._shifts.pop(0) if self._shifts else 0

    def gaussian(self, query, sensitivity, multiplier):
        self.asked.append(("gaussian", sensitivity, multiplier))
        return query + self._shift()

    def laplace(self, query, sensitivity, epsilon):
        self.asked.append(("laplace", sensitivity, epsilon))
        return query + self._shift()

    def integer_laplace(self, query, scale):
        self.asked.append(("integer_laplace", scale))
        return query + self._shift()

    def permutation(self, n):
        return np.arange(n)

    def poisson_mask(self, probabilities):
        self.asked.append(("coins", float(np.mean(probabilities))))
        return np.arange(len(probabilities)) < probabilities * len(probabilities)

    def integers(self, n, high):
        self.asked.append(("integers", n, high))
        return np.zeros(n, dtype=np.int64)


def with_h_index(size, h_index):
    """`h_index` equal vectors, and the others far from everyone: the h-index is `h_index` if that is >= 1."""
    rows = np.zeros((size, 1))
    rows[h_index:, 0] = 1000.0 * np.arange(1, size - h_index + 1)
    return rows


def laplace_mass(scale, reach):
    """Discrete Laplace noise: its values up to `reach`, and their probabilities."""
    k = np.arange(-reach, reach + 1)
    return k, math.tanh(1 / (2 * scale)) * np.exp(-np.abs(k) / scale)


def passes(record, vectors, noise):
    """How many rounds on these vectors pass, until one fails or they are used up."""
    session, passed = record.start(noise), 0
    with contextlib.suppress(Aborted):
        for _ in range(record.rounds):
            session.release(vectors, 1.0)
            passed += 1
    return passed
