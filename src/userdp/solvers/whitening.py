"""Coordinates in which rows have about unit second moment, in whatever units their columns are.

First each column's scale is released, roughly: which power of 8 it is nearest to for most users. One release of a
second moment resolves directions down to its noise. So the moment is released several times, each time in the
coordinates found so far: B <- B S^-1/2. Directions that were hidden below the noise grow by its inverse from stage to
stage. A user contributes M / max(|M|, threshold), M being the second moment of the user's rows in these coordinates:
at most 1 long, whatever the rows are, and no two of them point apart, which halves the noise's variance
(docs/proofs.md, section 22).

The first threshold is 0: shapes, which need no scale. Shapes alone, released again and again, would be Tyler's
iteration for a scatter matrix, which has no fixed point if most users lie in a hyperplane, as they do where a column is
0 for most: its coordinate would grow in every stage. With a threshold, users whose moments are shorter enter with
their true moment, and a column that a fraction p of the users have keeps its scale if p * threshold > 1 (Huber's way
for a scatter matrix). Noise, relative to the moment, grows with the threshold, so it is as large as noise allows.

Beyond `MOST_FEATURES` features only the diagonal is released: scales, no correlations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from userdp.domains import Domain
from userdp.privacy.accounting import REPLACE_ONE
from userdp.privacy.clip import Clip
from userdp.privacy.plan import Step
from userdp.solvers import constants
from userdp.solvers.solver import Releases, Request, share_multiplier
from userdp.statistics.gradients import RowWeights
from userdp.statistics.moments import ColumnScales, MomentShape, RowScale, symmetric
from userdp.statistics.rows import triangular

MOST_FEATURES = 400  # second moments have d^2/2 entries
_BLOCK_ENTRIES = 1 << 20  # numbers held at once while moments are added up
_COLUMNS, _SCALE, _FIRST, _SHOWN = "column scales", "row scale", "whitening 1", "whitening"


def block_of(n_entries: int) -> int:
    """How many users' moments of so many entries are held at once while they are added up."""
    return max(1, _BLOCK_ENTRIES // n_entries)


def whitening_steps(
    n_users: int,
    n_features: int,
    intercept: bool,
    multiplier: float,
    apart: bool = False,
    pure: bool = False,
    neighbours: str = REPLACE_ONE,
) -> tuple[Step, ...]:
    """The releases that together cost as much as one Gaussian, or if `pure` Laplace, release of this noise multiplier.

    Where a column's scale could not stand out of the noise it is not asked for. Then the rows' scale is, which costs
    far less: the constant 1, whose size is known, may be hidden below noise among larger columns. If they are asked
    `apart`, each release is of users of its own, and costs all by itself.
    """
    full = n_features <= MOST_FEATURES

    def mean(fraction: float, size: int, n_asked: int) -> Clip:
        noise = share_multiplier(multiplier, fraction, pure=pure)
        return Clip(n_asked, noise, block=block_of(size), acute=not pure, laplace=pure, neighbours=neighbours)

    scale = mean(constants.SCALE_FRACTION, n_features, n_users)
    noise = scale.noise_std(scale.radius_of(math.sqrt(n_features), n_features), n_features)
    columns = n_features <= constants.MOST_SCALED and constants.CLEAR_SCALE * noise < constants.FREQUENT
    fractions = {_COLUMNS: constants.SCALE_FRACTION} if columns else {}
    scaled = columns and intercept
    stages = constants.PURE_STAGES if pure else constants.STAGES
    rest = 1 - constants.SCALE_FRACTION * (columns + (not scaled))
    fractions |= {f"whitening {stage + 1}": fraction * rest for stage, fraction in enumerate(stages)}
    fractions |= {} if scaled else {_SCALE: constants.SCALE_FRACTION}
    sizes = {_COLUMNS: n_features * ColumnScales.SIZES.size, _SCALE: RowScale.SIZES.size}
    usual = n_features * (n_features + 1) // 2 if full else n_features
    n_asked = n_users // len(fractions) if apart else n_users
    return tuple(
        Step(label, first, first + n_asked, mean(1.0 if apart else fraction, sizes.get(label, usual), n_asked))
        for number, (label, fraction) in enumerate(fractions.items())
        for first in [number * n_asked if apart else 0]
    )


@dataclass(frozen=True, eq=False)
class Coordinates:
    """Weights are basis @ u, for each output; rows x @ basis have about unit second moment.

    `basis` is d x d, or a vector for a diagonal one. `scales` are the columns' (None if unknown), and `ridge` what was
    added to the moment in units of these (of 1 if unknown). `row_scale`: a feature's root mean square before it was
    brought to 1, where that was asked for; far above 1 if noise hid a constant 1 among far larger columns.
    """

    basis: np.ndarray
    scales: np.ndarray | None = None
    ridge: float = 0.0
    row_scale: float = 1.0

    @property
    def moment(self) -> np.ndarray:
        """The second moment of rows that these coordinates whiten."""
        if self.basis.ndim == 1:
            return np.asarray(1 / self.basis**2)
        inverse = np.linalg.inv(self.basis)
        return np.asarray(inverse.T @ inverse)

    def to_weights(self, u: np.ndarray) -> np.ndarray:
        blocks = u.reshape(-1, len(self.basis))
        return np.asarray((blocks * self.basis if self.basis.ndim == 1 else blocks @ self.basis.T).ravel())

    def from_weights(self, w: np.ndarray) -> np.ndarray:
        blocks = w.reshape(-1, len(self.basis))
        if self.basis.ndim == 1:
            return np.asarray((blocks / self.basis).ravel())
        return np.asarray(np.linalg.solve(self.basis, blocks.T).T.ravel())

    def of_gradient(self, gradient: np.ndarray) -> np.ndarray:
        """The gradient in u of what has this gradient in the weights."""
        blocks = gradient.reshape(-1, len(self.basis))
        return np.asarray((blocks * self.basis if self.basis.ndim == 1 else blocks @ self.basis).ravel())

    @property
    def constant(self) -> np.ndarray:
        """What moves all predictions by 1, if the last feature is the constant 1."""
        last = np.zeros(len(self.basis))
        last[-1] = 1.0
        return self.from_weights(last)

    def decorrelated(self, centred: bool = False) -> tuple[np.ndarray | None, np.ndarray, np.ndarray]:
        """A rotation R (columns) of these coordinates, rows' variances along it, and which part of them is no ridge.

        The axes are those of the moment in units of the columns' scales, so that they do not depend on units; None for
        no rotation. If `centred`, the last feature is the constant 1, the last axis is its own, and the others are
        those of the moment about the mean: offsets do not turn them.
        """
        if self.basis.ndim == 1:
            return None, np.ones(len(self.basis)), np.ones(len(self.basis))
        about, size = self.moment, len(self.basis) - centred
        scales = np.ones(len(about)) if self.scales is None else self.scales
        last = self.ridge * scales[-1] ** 2 / about[-1, -1]  # of the constant's moment, the part that is ridge
        if centred:
            about = about[:-1, :-1] - np.outer(about[-1, :-1], about[-1, :-1]) / about[-1, -1]
        units = np.sqrt(np.maximum(np.diag(about), 1e-300)) if self.scales is None else scales[:size]
        values, axes = np.linalg.eigh(about / np.outer(units, units))
        values = np.maximum(values, 1e-12)
        # w = D^-1 E L^-1/2 z, and w = B u: z = R' u with R' = L^1/2 E' D B, a rotation; centred, of all w but the last.
        rotation = ((axes * np.sqrt(values)).T @ (units[:, None] * self.basis[:size])).T
        known = np.maximum(1 - self.ridge * (scales[:size] / units) ** 2 @ axes**2 / values, 1e-9)
        if not centred:
            return rotation, values, known
        constant = self.constant / np.linalg.norm(self.constant)
        return np.column_stack([rotation, constant]), np.append(values, 1.0), np.append(known, max(1 - last, 1e-9))

    def project(self, domain: Domain, w: np.ndarray) -> np.ndarray:
        """The point of the domain nearest to w when distance means difference of predictions."""
        if domain.contains(w):
            return w
        if self.basis.ndim == 1:
            return domain.project(w)
        values, axes = np.linalg.eigh(self.moment)
        return domain.project(domain.nearest(w, axes, np.sqrt(np.maximum(values, 1e-300))))


def public_coordinates(moment: np.ndarray) -> Coordinates:
    """Coordinates that whiten a public second moment; directions that it lacks are raised to 1e-9 of the largest.

    What is large is measured in units of the columns' root mean squares.
    """
    if moment.ndim == 1:
        return Coordinates(1 / np.sqrt(np.maximum(moment, 1e-9 * moment.max())))
    squares = np.diag(moment)
    units = np.sqrt(np.where(squares > 0, squares, 1e-9 * squares.max()))
    values, axes = np.linalg.eigh(moment / np.outer(units, units))
    return Coordinates(axes / np.sqrt(np.maximum(values, 1e-9 * values.max())) / units[:, None])


def release_coordinates(n_features: int, steps: tuple[Step, ...], intercept: bool = False) -> Releases[Coordinates]:
    """Carry out the releases of `whitening_steps`."""
    full = n_features <= MOST_FEATURES
    basis, scales, row_scale = np.eye(n_features) if full else np.ones(n_features), None, 1.0
    for step in steps:
        mechanism = step.mechanism
        assert isinstance(mechanism, Clip)
        if step.label == _COLUMNS:
            radius = mechanism.radius_of(1.0, n_features)
            released = yield Request(_COLUMNS, ColumnScales(), radius, _SHOWN)
            frequencies = released.reshape(n_features, -1)
            clear = frequencies.max(axis=1) > constants.CLEAR_SCALE * mechanism.noise_std(radius, released.size)
            scales = np.where(clear, np.sqrt(ColumnScales.SIZES[np.argmax(frequencies, axis=1)]), 1.0)
            basis = np.diag(1 / scales) if full else 1 / scales
            continue
        if step.label == _SCALE:
            frequencies = yield Request(_SCALE, RowScale(RowWeights(basis, 1.0)), 1.0, _SHOWN)
            row_scale = likely_scale(frequencies, mechanism.noise_std(1.0, frequencies.size), n_features)
            least, most = constants.NEAR_SCALE
            if intercept and least < row_scale < most:  # a constant that is seen says more
                row_scale = 1.0
            basis = basis / row_scale
            continue
        size = n_features * (n_features + 1) // 2 if full else n_features
        radius = mechanism.radius_of(1.0, size)
        noise = mechanism.noise_std(radius, size)
        along = noise * math.sqrt(n_features) if full else noise  # of an axis that noise, too, has a say in
        # Shapes first, and where noise hides the columns' scales: nothing is known there of how long moments are.
        unknown = step.label == _FIRST or (scales is None and n_features <= constants.MOST_SCALED)
        threshold = 0.0 if unknown else constants.AXIS_NOISE / along
        released = yield Request(step.label, MomentShape(basis, threshold), radius, _SHOWN)
        if full:
            values, axes = np.linalg.eigh(symmetric(released))
            # Any rotation of these coordinates whitens as well; products with a triangular one take half the time.
            basis = triangular(basis @ axes / np.sqrt(np.maximum(values, 0.0) + along))
        else:
            basis = basis / np.sqrt(np.maximum(released, 0.0) + along)
        # The constant 1, the last feature, gets second moment 1, or without an intercept most columns do in units of
        # their scales: thresholds are in these units.
        moment = Coordinates(basis).moment
        squares = moment if moment.ndim == 1 else np.diag(moment)
        most = np.median(squares if scales is None else squares / scales**2)
        basis = basis * math.sqrt(squares[-1] if intercept else most)
    return replace(_bounded(basis, scales), row_scale=row_scale)


def _bounded(basis: np.ndarray, scales: np.ndarray | None) -> Coordinates:
    """Coordinates for the moment, in units of the columns' scales, + a fraction of its size in all directions.

    A direction in which rows do not vary at all (a column that is 0, or a copy of another) grows by every stage's
    noise: without this a weight of mere noise would be enormous there. It is no penalty: the objective stays the same.
    """
    moment, units = Coordinates(basis).moment, np.ones(len(basis)) if scales is None else scales
    if basis.ndim == 1:
        moment = moment / units**2
        return Coordinates(1 / np.sqrt(moment + constants.RIDGE * np.median(moment)) / units)
    moment = moment / np.outer(units, units)
    ridge = constants.RIDGE * float(np.median(np.diag(moment)))
    values, axes = np.linalg.eigh(moment)
    return Coordinates(axes / np.sqrt(np.maximum(values, 0.0) + ridge) / units[:, None], scales, ridge)


def likely_scale(frequencies: np.ndarray, noise: float, n_features: int) -> float:
    """Root mean square of a feature, by the likeliest size of users' rows given noisy frequencies of all sizes.

    A size that half of the users have is likelier by f/(2 noise^2) for a frequency f. Before anything is seen features
    are taken to be of size 1, and every factor of 4 of the square to be less likely: noise alone changes nothing.
    """
    squares = RowScale.SIZES / n_features
    likelihood = frequencies / (2 * noise**2) - constants.UNLIKELY * np.abs(np.log(squares)) / math.log(4)
    return math.sqrt(squares[int(np.argmax(likelihood))])
