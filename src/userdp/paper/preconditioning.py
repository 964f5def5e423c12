"""Private preconditioning: release the average second moment of users' rows, and solve in whitened coordinates.

Features differ in scale and go together; one-pass SGD then crawls along some directions. With M the second moment and
B B^T = M^-1, rows x @ B have second moment I and weights u with w = B u predict the same. Distances between weights are
then differences of predictions, so how far a good model is from 0 can be guessed publicly.

Where steps are few, going at the same pace along all directions would finish none of them. Then the pace is higher
along directions in which rows vary more, where more of the predictions' variance is to be expected.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy

from userdp.domains import Ball, Domain
from userdp.privacy.clip import Clip
from userdp.privacy.plan import Step
from userdp.solvers.problem import Problem
from userdp.solvers.solver import Releases, Request
from userdp.solvers.whitening import Coordinates, block_of
from userdp.statistics.moments import SecondMomentShape, symmetric

LABEL = "second moment"
# The length of (shape, size): both are at most 1.
_RADIUS = math.sqrt(2.0)
_SLOWEST_PACE = 0.02  # of the fastest: no direction is given up


def moment_step(n_users: int, n_features: int, noise_multiplier: float) -> Step:
    """The step that releases the second moment of all users."""
    block = block_of(n_features * (n_features + 1) // 2 + 1)
    return Step(LABEL, 0, n_users, Clip(n_users, noise_multiplier, block=block))


def moment_error(n_users: int, n_features: int, noise_multiplier: float) -> float:
    """The level to which small eigenvalues of the released shape (of length 1) are raised: std * sqrt(d) / 3.

    The noise's own eigenvalues reach 4 times that. Raising less would inflate directions of mere noise; raising more
    loses conditioning, which costs more.
    """
    return noise_multiplier * 2 * _RADIUS / n_users * math.sqrt(n_features) / 3


def whitened_distance(problem: Problem, error: float, ridge: float = 0.0) -> float:
    """How far a good point is from the start in whitened coordinates: a typical prediction, and what raising adds."""
    predictions = min(problem.typical_prediction, problem.row_norm * problem.reach)
    return math.hypot(predictions, math.sqrt(error * problem.row_norm**2 + ridge) * problem.reach)


@dataclass(frozen=True, eq=False)
class WhitenedCoordinates(Coordinates):
    """Those that a released moment whitens; paced, so that rows vary by up to `steepness` along some direction."""

    steepness: float = 1.0

    def around(self, domain: Domain, dimension: int) -> Ball:
        """A ball, in whitened coordinates, that is sure to hold the domain."""
        ball = domain.around(dimension)
        assert ball.center is not None
        longest = math.sqrt(float(np.linalg.eigvalsh(self.moment)[-1]))
        return Ball(ball.radius * longest, self.from_weights(ball.center))


def paced(scales: np.ndarray, progress: float) -> tuple[np.ndarray, float]:
    """Scales of coordinates for a run that can make so much progress, and how steep they are along some direction.

    `scales` are the square roots of the moment's eigenvalues, `progress` the sum over directions of log(error
    before/after). Expecting a fraction of the predictions' variance in proportion to the eigenvalue l_k, the largest
    error left is least with log-reductions max(0, log(l_k / t)), t such that they add up to `progress`
    (water-filling). Directions get a pace in proportion, 1 on average; for much progress all are equal, which is plain
    whitening.
    """
    logs = 2 * np.log(scales)
    if progress >= float((logs - logs.min()).sum()) / _SLOWEST_PACE:
        return scales, 1.0
    level = scipy.optimize.brentq(
        lambda t: float(np.maximum(logs - t, 0).sum()) - progress, logs.min() - progress - 1.0, logs.max()
    )
    paces = np.maximum(logs - level, 0)
    paces = np.maximum(paces, _SLOWEST_PACE * paces.max())
    paces /= paces.mean()
    return scales / np.sqrt(paces), float(paces.max())


class PlainCoordinates:
    """The features' own coordinates, where nothing is whitened."""

    basis, steepness = None, 1.0

    def to_weights(self, u: np.ndarray) -> np.ndarray:
        return u

    def from_weights(self, w: np.ndarray) -> np.ndarray:
        return w

    def of_gradient(self, gradient: np.ndarray) -> np.ndarray:
        return gradient

    def around(self, domain: Domain, dimension: int) -> Domain:
        return domain

    def project(self, domain: Domain, w: np.ndarray) -> np.ndarray:
        return domain.project(w)


@dataclass(frozen=True)
class Preconditioner:
    """How to whiten by a released second moment.

    `error` is the expected error of its eigenvalues; smaller ones are raised to that level. `ridge` is added to all of
    them: a penalty of that many times the loss's curvature is then no steeper than the loss. `progress` paces the
    directions (`paced`).
    """

    error: float
    ridge: float = 0.0
    progress: float = math.inf

    def release(self, n_features: int, row_norm: float) -> Releases[WhitenedCoordinates]:
        """Release the average moment and whiten by it."""
        released = yield Request(LABEL, SecondMomentShape(row_norm**2), _RADIUS)
        values, axes = np.linalg.eigh(symmetric(released[:-1]))
        size = row_norm**2 * min(1.0, max(float(released[-1]), self.error))
        scales = np.sqrt(size * np.maximum(values, max(self.error, 1e-12)) + self.ridge)
        scales, steepness = paced(scales, self.progress)
        return WhitenedCoordinates(axes / scales, steepness=steepness)


def coordinates_of(
    preconditioner: Preconditioner | None, problem: Problem
) -> Releases[WhitenedCoordinates | PlainCoordinates]:
    """What a solver steps in: whitened coordinates if there is a preconditioner."""
    if preconditioner is None:
        return PlainCoordinates()
    return (yield from preconditioner.release(problem.n_features, problem.row_norm))
