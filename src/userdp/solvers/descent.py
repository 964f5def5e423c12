"""The default solver's steps: what is asked of users at a point, and pure updates of a frozen state by what came back.

A step releases the clipped mean gradient, how frequent each size of gradients is, and how many users lost rows. The
state is then `observed` (sizes, where to clip next) and `moved` (the point). Nothing here sees anything but releases.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from userdp.losses import Loss
from userdp.solvers import constants
from userdp.solvers.constants import Pace
from userdp.solvers.problem import Problem
from userdp.solvers.schedule import APPROACH, CURVATURE, RECALIBRATION
from userdp.solvers.shrinkage import Axes, Visit, mean_curvature
from userdp.solvers.solver import Phase, Releases, Request
from userdp.solvers.whitening import Coordinates
from userdp.statistics.gradients import N_SIZES, ClippedGradient, MeanCurvature, MeanGradient, RowWeights

_NORMS = 0.72 * 2.0 ** -np.arange(N_SIZES)  # a size's norm / longest: sizes halve, and 0.72 is amid 1/2 and 1
_USUAL_SIZES = 2.0 ** -np.abs(np.arange(N_SIZES) - constants.USUAL_SIZE)
_USUAL_SIZES /= _USUAL_SIZES.sum()


@dataclass(frozen=True, kw_only=True)
class ClippedPhase(Phase):
    """Steps in all coordinates, or in few: at first `radius` long vectors are released with std noise_ratio * radius.

    `clip`: in units of the gradients' root mean square; or `tail`, of a fast schedule: this fraction of the users is
    clipped, as far as is seen (0 for none); `longest`: what row weights bound a
    row to; `s`, `pace`, `fast` and `pure` as in `Layout`.
    """

    clip: float
    tail: float
    longest: float
    s: float
    pace: Pace
    fast: bool = False
    pure: bool = False


def clip_radius(length: float, dimension: int, pure: bool) -> float:
    """What gradients with their mark are clipped to: their length, or the 1-norm that few of this length exceed."""
    return constants.PURE_SPREAD * length * math.sqrt(dimension + 1) if pure else length


def slope_scale(problem: Problem) -> float:
    """A slope that few rows exceed: the largest, or where that is far off, twice the typical one."""
    return min(problem.lipschitz / problem.row_norm, 2 * problem.typical_slope)


def in_units(problem: Problem) -> bool:
    """Whether slopes are residuals in units of the targets, which may be far smaller than their declared bound."""
    loss = problem.loss
    return loss.smooth and not loss.classifies and loss.usual_curvature is None


def usual_norm(clip: float) -> float:
    """Root mean square norm / longest before anything is known, times a clip in units of it; at most 1."""
    return min(1.0, clip * float(np.sqrt(_USUAL_SIZES @ _NORMS**2)))


@dataclass(frozen=True, eq=False)
class Sizes:
    """How frequent each size of gradients is, followed from step to step; what is below noise counts as 0."""

    precision: float = 1 / constants.USUAL_SIZES_ERROR**2
    total: np.ndarray = field(default_factory=lambda: _USUAL_SIZES / constants.USUAL_SIZES_ERROR**2)

    def seen(self, frequencies: np.ndarray, error: float) -> Sizes:
        """With what one more release says."""
        forget = constants.FORGET
        return Sizes(forget * self.precision + 1 / error**2, forget * self.total + frequencies / error**2)

    @property
    def clear(self) -> np.ndarray:
        """Frequencies, 0 where noise may be all there is."""
        frequencies = self.total / self.precision
        return np.where(frequencies > 2 / math.sqrt(self.precision), frequencies, 0.0)

    @property
    def rms(self) -> float:
        """Root mean square norm / longest."""
        frequencies = self.clear
        if not frequencies.any():
            frequencies = np.array(self.total == self.total.max(), dtype=np.float64)
        return math.sqrt(float(frequencies @ _NORMS**2) / float(frequencies.sum()))

    def exceeded_by(self, fraction: float) -> float:
        """Norm / longest that about this fraction of users, as far as is seen, exceeds.

        Within a size, the fraction that exceeds a norm is taken to fall as a power of it, to a twentieth of `fraction`
        at least.
        """
        tails = np.cumsum(self.clear)
        size = int(np.searchsorted(tails[:-1], fraction, side="right"))
        above = max(tails[size - 1] if size else 0.0, fraction / 20)
        place = math.log(max(tails[size] / fraction, 1.0)) / math.log(max(tails[size], fraction) / above)
        return float(2.0 ** (place - size - 1))


def _zoomed(frequencies: np.ndarray, error: float) -> Sizes | None:
    """If a release clearly shows the smallest sizes only: these, `ZOOM` sizes larger; None if not.

    What earlier releases said is then forgotten: they were of a point far off.
    """
    others, zoom, clear = N_SIZES - constants.ZOOM, constants.ZOOM, constants.CLEARLY * error
    small = frequencies[others:].sum() - frequencies[:others].sum()
    if small < clear * math.sqrt(N_SIZES) or np.any(frequencies[:others] > clear):
        return None
    return Sizes(1 / error**2, np.append(frequencies[zoom:], np.zeros(zoom)) / error**2)


@dataclass(frozen=True, eq=False)
class State:
    """What changes from step to step, all of it public: computed from releases."""

    point: np.ndarray  # in the directions
    velocity: np.ndarray
    curvature: float  # a guess before it is measured, unless the loss gives it at each point
    clip: float
    sizes: Sizes = field(default_factory=Sizes)
    scale: float = 1.0  # of slopes / what public numbers say of it, where targets are found to be far smaller
    inverse_rows: float = 0.0  # mean over users of 1 / rows
    walk: float = 0.0  # variance of a weight along which nothing is curved: steps of mere noise, added up
    visits: tuple[Visit, ...] = ()
    affected: tuple[tuple[float, float], ...] = ()  # of everyone, as released, and its noise's std


@dataclass(frozen=True, eq=False)
class Average:
    """Of steps: the average of the points less that of the gradients over the curvature, the std of a weight of it, and
    the variance of predictions at the points.
    """

    point: np.ndarray
    noise: float
    spread: float = 0.0


@dataclass(frozen=True, eq=False)
class Gradient:
    """A clipped mean gradient as released, the penalty's added, and what came with it; stds of their noise."""

    gradient: np.ndarray
    std: float
    frequencies: np.ndarray
    frequency_std: float
    affected: float
    affected_std: float


@dataclass(frozen=True, eq=False)
class Run:
    """Steps with momentum in some directions (None for all) of whitened coordinates: what stays the same."""

    problem: Problem
    loss: Loss
    coordinates: Coordinates
    phase: ClippedPhase
    axes: Axes
    directions: np.ndarray | None = None

    @cached_property
    def bases(self) -> list[np.ndarray]:
        """What turns a row into what each output's prediction is made of, in these directions."""
        basis = self.coordinates.basis
        if self.directions is None:
            return [basis]
        blocks = self.directions.reshape(-1, len(basis), self.directions.shape[1])
        return [basis[:, None] * block if basis.ndim == 1 else basis @ block for block in blocks]

    @cached_property
    def row_weights(self) -> RowWeights:
        return RowWeights(self.bases[0] if len(self.bases) == 1 else np.column_stack(self.bases), self.phase.longest)

    @cached_property
    def penalty(self) -> tuple[np.ndarray, np.ndarray | None]:
        """How curved the penalty is, and along which axes of these directions (None for the coordinates' own)."""
        kept = self.problem.l2 * self.problem.penalised(np.ones(self.problem.n_features))
        if self.bases[0].ndim == 1:
            return kept * self.bases[0] ** 2, None
        return np.linalg.eigh(sum((basis.T * kept) @ basis for basis in self.bases))

    @property
    def difference(self) -> float:
        """Of predictions, over which the slope's derivative is measured."""
        return 0.05 * min(slope_scale(self.problem) / self.loss.curvature, self.problem.typical_prediction)

    def longest(self, state: State) -> float:
        """What bounds a user's gradient: row weights bound its rows, and few slopes are larger."""
        return self.phase.longest * slope_scale(self.problem) * state.scale

    def gradient_size(self, state: State) -> float:
        """Root mean square of users' gradients, about, if no row counted less for its length."""
        usual = math.sqrt(self.problem.n_features)
        return state.sizes.rms * self.longest(state) * max(1.0, usual / self.phase.longest)

    def exceeded_by(self, state: State, fraction: float, longest: float) -> float:
        """Norm that about this fraction of users' gradients exceeds, as far as is seen, if rows are this long."""
        return state.sizes.exceeded_by(fraction) * self.longest(state) * max(1.0, longest / self.phase.longest)

    def relative_curvature(self, state: State) -> float:
        return state.curvature / (constants.TYPICAL_CURVATURE * self.loss.curvature)

    def is_flat(self, state: State) -> bool:
        """Whether a class is rare, as the curvature shows."""
        return self.relative_curvature(state) < constants.FLAT

    def whitened(self, point: np.ndarray) -> np.ndarray:
        return point if self.directions is None else self.directions @ point

    def begin(self, point: np.ndarray, curvature: float, scale: float = 1.0, inverse_rows: float = 0.0) -> State:
        state = State(point, np.zeros_like(point), curvature, 0.0, Sizes(), scale, inverse_rows)
        return self.at(replace(state, clip=0.25 * self.longest(state)), point)

    def at(self, state: State, point: np.ndarray) -> State:
        """The state there: its curvature is that of the point, if the loss gives it.

        Coordinates give mean and mean square of rows' predictions.
        """
        curvature = state.curvature
        if self.loss.usual_curvature is not None:
            u = self.whitened(point)
            mean = float(self.coordinates.constant @ u) if self.problem.intercept else 0.0
            curvature = self.loss.usual_curvature(mean, max(float(u @ u) - mean**2, 0.0))
        return replace(state, point=point, curvature=curvature)

    def mean_gradient(self, state: State) -> MeanGradient:
        weights = self.coordinates.to_weights(self.whitened(state.point))
        return MeanGradient(self.loss, weights, self.coordinates.basis, row_weights=self.row_weights)

    def measure(self, state: State, ratio: float, label: str = CURVATURE) -> Releases[State]:
        """The curvature becomes what is released, as far as it can be distinguished from noise, of userdp's losses."""
        statistic = MeanCurvature(self.mean_gradient(state), self.difference, self.loss.curvature)
        scale = 2 * self.phase.longest**2 / len(self.coordinates.basis)  # lengths are in units of longest
        radius = 1.0 if self.phase.pure else statistic.radius
        released = (yield Request(label, statistic, radius)) + 0.5
        noise, measured = scale * radius * ratio, scale * float(released[0])
        state = replace(state, inverse_rows=min(max(float(released[1]) - radius * ratio, 0.0), 1.0))
        if self.loss.usual_curvature is not None:  # the loss says more of it, far below the largest
            return state
        usual = state.curvature / self.loss.curvature
        trust = constants.CURVATURE_SPREAD**2 / (constants.CURVATURE_SPREAD**2 + noise**2)
        fraction = trust * measured + (1 - trust) * usual
        return replace(state, curvature=self.loss.curvature * min(max(fraction, constants.LEAST_CURVATURE), 1.0))

    def release(self, state: State, ratio: float, label: str) -> Releases[Gradient]:
        """The clipped mean gradient at the state's point."""
        mark, longest = constants.MARK * state.clip, self.longest(state)
        statistic = ClippedGradient(self.mean_gradient(state), state.clip, longest, mark, self.directions)
        radius = clip_radius(statistic.radius, state.point.size, self.phase.pure)
        released = yield Request(label, statistic, radius)
        gradient, frequencies, affected = statistic.told(released)
        if self.loss.differences and self.directions is None:  # what outputs share is noise: slopes add up to 0
            blocks = gradient.reshape(self.loss.n_outputs, -1)
            gradient = (blocks - blocks.mean(axis=0)).ravel()
        if self.problem.l2:
            weights = self.problem.penalised(self.coordinates.to_weights(self.whitened(state.point)))
            pull = self.coordinates.of_gradient(self.problem.l2 * weights)
            gradient = gradient + (pull if self.directions is None else pull @ self.directions)
        std = ratio * radius
        return Gradient(gradient, std, frequencies, std / mark, affected, std / statistic.affected_mark)

    def observed(self, state: State, released: Gradient, label: str) -> State:
        """With the sizes that came along, and the clip for the next step."""
        state = replace(state, sizes=state.sizes.seen(released.frequencies, released.frequency_std))
        if label not in APPROACH:  # each of which asks a part of the users
            state = replace(state, affected=(*state.affected, (released.affected, released.affected_std)))
        if in_units(self.problem):
            zoomed = _zoomed(released.frequencies, released.frequency_std)
            if zoomed is not None:
                state = replace(state, sizes=zoomed, scale=state.scale / 2**constants.ZOOM)
        return replace(state, clip=self.next_clip(state))

    def next_clip(self, state: State) -> float:
        """Where to clip: at a multiple of the root mean square, or at what few users' gradients exceed.

        A flat smooth loss means a rare class, whose few long gradients noise may hide: they are the longer the fewer
        rows a user has.
        """
        phase, loss, sizes, alone = self.phase, self.problem.loss, state.sizes, math.sqrt(state.inverse_rows)
        usual = sizes.exceeded_by(phase.tail) if phase.fast else phase.clip * sizes.rms
        lopsided = loss.event * max(0.0, math.sqrt(loss.event / self.relative_curvature(state)) - 1)
        by = constants.LOPSIDED_RECALIBRATION if phase.label == RECALIBRATION else constants.LOPSIDED
        least = by * lopsided * alone if loss.smooth else 0.0
        return self.longest(state) * min(1.0, max(usual, least))

    def over_curvature(self, gradient: np.ndarray, curvature: float) -> np.ndarray:
        """A gradient over the curvature of the loss and that of the penalty."""
        if not self.problem.l2:
            return gradient / curvature
        values, axes = self.penalty
        blocks = gradient.reshape(-1, len(values))
        over = blocks / (curvature + values) if axes is None else (blocks @ axes / (curvature + values)) @ axes.T
        return np.asarray(over.ravel())

    def moved(self, state: State, released: Gradient, newton: np.ndarray) -> State:
        """One step with momentum along `newton`, the gradient over the curvature."""
        noise, pace = released.std * math.sqrt(released.gradient.size), self.phase.pace
        if pace.may_be_far and in_units(self.problem) and np.linalg.norm(released.gradient) > constants.FAR_OFF * noise:
            pace = constants.FAR_OFF_PACE
        # As long as the curvature allows; no step's noise moves predictions by much.
        length = min(pace.length / state.curvature, constants.MOST_NOISE * self.problem.typical_prediction / noise)
        velocity = pace.momentum * state.velocity - length * state.curvature * newton
        return replace(
            self.at(state, state.point + velocity),
            velocity=velocity,
            walk=state.walk + (length * released.std / (1 - pace.momentum)) ** 2,
            visits=(*state.visits, (state.point, released.gradient, released.std)),
        )

    def steps(self, state: State, label: str, n_steps: int, ratio: float) -> Releases[tuple[State, Average]]:
        """So many steps; the average of the points less that of the gradients over the curvature.

        Where residuals are found to be far smaller than declared noise falls with them, from step to step: each then
        weighs by the inverse of its variance.
        """
        points, corrections = np.empty((2, n_steps, state.point.size))
        noises, moments = np.empty(n_steps), np.zeros(2)
        for number in range(n_steps):
            released = yield from self.release(state, ratio, label)
            state = self.observed(state, released, label)
            newton = self.over_curvature(released.gradient, state.curvature)
            points[number], corrections[number], noises[number] = state.point, newton, released.std / state.curvature
            if self.directions is None and self.loss.mean is not None:
                moments += self.axes.mean_and_square(state.point) / n_steps
            state = self.moved(state, released, newton)
        weights = np.ones(n_steps) if state.scale == 1 else noises**-2
        weights /= weights.sum()
        noise = float(np.linalg.norm(weights * noises))
        correction = np.asarray(weights @ corrections)  # one Newton step
        return state, Average(weights @ points - correction, noise, moments[1] - moments[0] ** 2)

    def settled(self, state: State, average: Average) -> tuple[State, Average]:
        """The curvature, and noise, are what the loss's mean says about predictions there, if that is more curved.

        A rare class is rarer where the curvature was measured, and the directions that tell it from the other are more
        curved than most: with more noise than there is, shrinkage would take signal for noise.
        """
        if not self.axes.level or self.loss.mean is None or self.loss.usual_curvature is not None:
            return state, average
        curvature = mean_curvature(self.loss.mean, self.axes.mean_and_square(average.point)[0], average.spread)
        curvature = min(max(curvature, state.curvature), self.loss.curvature)
        return replace(state, curvature=curvature), replace(average, noise=average.noise * state.curvature / curvature)
