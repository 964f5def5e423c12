"""Clipped gradient steps in whitened coordinates, averaged, corrected, and recalibrated: the default solver.

1. Whitening (`whitening`): coordinates in which rows have unit second moment, whatever the columns' units.
2. Burn-in: steps along the mean of users' gradients, clipped. Rows are weighted by their length in these coordinates
   (`RowWeights`): where residuals average 0 given the row, that does not move the optimum, and it bounds a gradient by
   `longest`. Each release also tells how frequent each size of gradients is; the clip follows their root mean square.
3. Curvature: the mean of the loss's second derivative at that point sets the steps from there on; where it is small, as
   with a rare class, the mean of 1 / rows per user says how long gradients may be that noise hides.
4. Steps: their points are averaged, and the average gradient, over the curvature, is subtracted from the average: one
   correction that costs nothing. Noise of T averaged steps is that of one release with all of their budget.
5. Shrinkage (`shrinkage`): the noise in the average is known, so that directions with little signal are shrunk, all
   but the intercept by one measure, and the intercept is moved to where the mean prediction stays the same.
6. Recalibration: clipping still biases the scale of predictions, and the intercept, where gradients are skewed: few
   rows per user, a rare class. A run of the same steps in those few directions alone is nearly free of noise, and so
   can do with a clip that hardly ever acts.

Numbers come from s = sqrt(weights) / (mu n), the noise of a mean of n users' vectors relative to their length, mu being
the budget's (GDP). As s falls the clip grows to where it never acts: the result converges to the minimum of the
weighted loss, and the weights to 1.

Without delta noise is Laplace's, on clipped 1-norms, and releases are fewer: epsilons add up (`Layout`).

There is no test, hence no abort. How many users lost rows with missing or infinite cells is told by a mark of each
release of a gradient; those without any row left count as 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from userdp.losses import Loss, smoothed
from userdp.privacy.accounting import Budget, Cost, calibrate, gaussian_multiplier
from userdp.privacy.guarantee import AffectedUsers
from userdp.privacy.mechanisms.base import check_counts
from userdp.privacy.mechanisms.clip import Clip
from userdp.privacy.plan import Plan, Step
from userdp.solvers.problem import Problem, alike
from userdp.solvers.quantiles import coverage_advice, located, recovered
from userdp.solvers.schedule import (
    APPROACH,
    CURVATURE,
    EARLY_CURVATURE,
    IF_FLAT,
    LOCATION,
    RECALIBRATION,
    SPREAD,
    STEPS,
    Layout,
    n_recalibrated,
)
from userdp.solvers.shrinkage import Axes, Visit, curved_along, expected, told_curvature
from userdp.solvers.solver import (
    Found,
    Phase,
    Releases,
    Request,
    SolverPlan,
    gradients_of_samples,
    largest_sample,
    too_few_gradients,
)
from userdp.solvers.whitening import Coordinates, public_coordinates, release_coordinates, whitening_steps
from userdp.statistics.gradients import N_SIZES, ClippedGradient, MeanCurvature, MeanGradient, RowWeights

if TYPE_CHECKING:
    from userdp.solvers.inference import IntervalSteps

_ROOM = 2.0  # added to the features: rows with a rare column are longer than most, the more so the fewer features
_MARK = 0.3  # a size's mark / clip: sizes raise the gradients' noise by 4%
# Momentum, and a step in units of the inverse curvature; with it they lead 1.25 and 1.3 of these. The latter shrink
# errors by .63 a step, along curvatures of a sixth to three times the mean one.
_PACE, _HURRIED_PACE = (0.6, 0.5), (0.4, 0.8)
# Where the loss is so flat, compared with usual curvatures, a class is rare, and curvatures differ by directions.
_FLAT, _FLAT_PACE = 0.25, (0.7, 0.6)
_CLIPPED_TAIL = 6.0  # fraction of users that a hurried plan clips / s: what clipping costs then falls as noise does
_MOST_NOISE = 0.05  # that a step's noise may move predictions / a typical prediction
_TYPICAL_CURVATURE = 0.64  # mean curvature / largest, before it is measured
# Where the loss tells its curvature at a point: what was measured of it / that, and how far it holds, in predictions.
_FOLLOWED, _NEARBY = (0.1, 2.0), 1.0
_LEAST_CURVATURE, _CURVATURE_SPREAD = 0.02, 0.25  # the least / largest, and how much it usually differs
# The estimate's: mean curvature and slope / typical ones, how alike a user's rows are, and by how much
# noise costs more than in coordinates that fit exactly.
_USUAL_CURVATURE, _USUAL_SLOPE, _SIMILARITY, _WORSE = 0.6, 0.65, 0.06, 3.0
_SKEWED = 1.5  # least clip / root mean square where users have one row, gradients are skewed, and nothing recalibrated
_LOPSIDED = {STEPS: 0.15, RECALIBRATION: 0.3}  # least clip / longest, times how lopsided the classes are
# The part of the budget for averaged steps, about; the exact one has jumps where noise calls for another layout, and
# what is spent there is gained elsewhere: with it the estimate could rise with epsilon.
_USUAL_FRACTION, _USUAL_FRACTION_OF_PUBLIC = 0.5, 0.65
_CLIPPING = 0.3  # by how much clipping may change the scale of predictions or the intercept / typical predictions
_FORGET = 0.85  # of what earlier steps told about sizes
# Where all gradients are of the smallest sizes: by how many sizes to move them, and standard deviations that tell so.
_SMALL, _ZOOM, _CLEARLY = 4, 4, 3.0
# Sizes before anything is known: gradients are mostly a half to a sixteenth of the longest.
_USUAL_SIZES = np.array([0.02, 0.2, 0.3, 0.25, 0.12, 0.05, 0.02, 0.01, 0.01, 0.01, 0.005, 0.005])
_USUAL_ERROR = 0.15
_FAR = 4  # first steps, which may be taken where the loss is linear
_FEWEST_INVERSE_ROWS = 1e-3  # that others are divided by
_HIDDEN = 8.0  # how much longer rows are than the constant 1 says, from which on it is taken to be hidden
# s / sqrt(rows per user) from which on calibration slopes were measured to be below 0.9, with and without delta.
_CLIPPED, _PURE_CLIPPED = 0.0065, 0.004
_NORMS = 0.72 * 2.0 ** -np.arange(N_SIZES)  # a size's norm / longest
_QUANTILE, _LAPLACE_QUANTILE = 1.96, 2.12  # deviations within which 95% of noise is; of a mean of Laplace's less


HIDDEN_ADVICE = (
    "Noise hides small columns, and the intercept, among far larger ones: the model may miss what they tell. Scale "
    "columns by public ranges (PublicScaler), give public_X, or have more users or a larger epsilon."
)
CLIPPED_ADVICE = (
    "Clipping is likely to dominate the error: with so few rows per user, and so much noise, predictions may be too "
    "extreme (calibration slopes below 0.9). Have more users, a larger epsilon, or fewer features."
)


@dataclass(frozen=True, kw_only=True)
class ClippedPhase(Phase):
    """Steps in all coordinates, or in few: at first `radius` long vectors are released with std noise_ratio * radius.

    `clip`: in units of the gradients' root mean square, for users of one row at least `least_clip`; `longest`: what row
    weights bound a row to; `s` as above; `hurried` steps are long, and clip what is rare only; `pure` ones are long.
    """

    clip: float
    least_clip: float
    longest: float
    s: float
    hurried: bool = False
    pure: bool = False


# --- planning ---------------------------------------------------------------------------------------------------------


def plan_whitened_clip(
    problem: Problem, n_users: int, rows_per_user: int, budget: Budget, max_gradients: int | None = None
) -> SolverPlan:
    """The plan for these public numbers.

    Without `max_gradients` time counts too: where it is expected to be as accurate, the plan is a hurried one. Up to
    `max_gradients` time does not count; where full passes take more, and a hurried plan does, too, steps take Poisson
    samples.
    """
    n_users, rows_per_user = check_counts(n_users=n_users, rows_per_user=rows_per_user)
    layout, sampled = _layout(problem, n_users, rows_per_user, budget, max_gradients)
    one = gaussian_multiplier(budget) if budget.delta else 1 / budget.epsilon
    one *= 1 + 1e-9  # room for the rounding of fractions
    first: tuple[Step, ...] = ()
    if layout.whitening:
        multiplier = layout.multiplier(one, layout.whitening)
        first = whitening_steps(
            n_users, problem.n_features, problem.intercept, multiplier, apart=layout.hurried, pure=layout.pure
        )
    means = _steps(layout, n_users, sampled, budget, one, first)
    steps = (*first, *means)
    plan = Plan(n_users, steps)
    plan.certify(budget)
    phases = tuple(_phase(problem, layout, step, sampled) for step in steps if step.label in (STEPS, RECALIBRATION))
    last = phases[-1]
    caution = CLIPPED_ADVICE if _biased(problem, layout.s, 1 / rows_per_user, layout.pure) else ""
    if layout.located:
        caution = coverage_advice(problem, n_users, last.n_steps, last.noise_ratio, layout.pure)
    counted = {step.label: (step.mechanism.rounds, _noise_ratio(step, problem)) for step in means}
    counted.pop(RECALIBRATION, None)
    # With m rows per user, gradients of users with a row of a class of fraction p are 1/sqrt(m p) times as long as the
    # root mean square; the last phase clips at `clip` times that. Measured frequencies were off by a tenth or more
    # below about 1.5 / (m clip^2), and right above twice that.
    clip = max(last.clip, last.least_clip / math.sqrt(rows_per_user))
    rare = min(1.5 / (rows_per_user * clip**2), 0.5) if problem.loss.classifies else 0.0
    return SolverPlan(
        plan,
        WhitenedClip(phases, counted, first),
        _gradients(layout, n_users, rows_per_user, sampled),
        _estimate(problem, layout, n_users, rows_per_user, sampled),
        caution=caution,
        clipped_fraction=rare,
    )


def _layout(
    problem: Problem, n_users: int, rows_per_user: int, budget: Budget, max_gradients: int | None
) -> tuple[Layout, float]:
    """Hurried if time counts, or if full passes are too many; and the probability with which users are sampled.

    Without delta there are neither: passes are few, and Laplace noise of samples is not accounted for.
    """
    if budget.delta == 0:
        return Layout.of(problem, n_users, budget), 1.0
    full, hurried = (Layout.of(problem, n_users, budget, hurried) for hurried in (False, True))
    most = 0 if max_gradients is None else max_gradients
    if full.may_hurry(problem, n_users, rows_per_user) and _gradients(full, n_users, rows_per_user) > most:
        for layout in (hurried, replace(hurried, spare=False)):
            if max_gradients is None or _gradients(layout, n_users, rows_per_user) <= most:
                return layout, 1.0
    sampled = largest_sample(n_users, rows_per_user, full.rounds, max_gradients)
    if sampled is None:
        raise too_few_gradients(n_users, rows_per_user, full.rounds, max_gradients)
    return full, sampled


def _gradients(layout: Layout, n_users: int, rows_per_user: int, sampled: float = 1.0) -> int:
    if sampled < 1:
        return gradients_of_samples(n_users, rows_per_user, sampled, layout.rounds)
    return rows_per_user * sum(
        part.steps * (int(part.stop * n_users) - int(part.start * n_users)) for part in layout.parts
    )


def _biased(problem: Problem, s: float, inverse_rows: float, pure: bool) -> bool:
    """Whether clipping is expected to cost more than noise: gradients of few rows are skewed, and noise needs clips.

    Errors of regression were symmetric where it was measured, and clipping did not bias it.
    """
    return problem.loss.classifies and s * math.sqrt(inverse_rows) > (_PURE_CLIPPED if pure else _CLIPPED)


def _steps(
    layout: Layout, n_users: int, sampled: float, budget: Budget, one: float, first: tuple[Step, ...]
) -> list[Step]:
    """Clipped means of all users, or of Poisson samples whose noise is calibrated together."""

    def means(multiplier: float) -> list[Step]:
        found = []
        for part in layout.parts:
            start, stop = int(part.start * n_users), int(part.stop * n_users)
            noise = layout.multiplier(multiplier, part.fraction, part.steps)
            clip = Clip(stop - start, noise, part.steps, sampling_probability=sampled, laplace=layout.pure)
            found.append(Step(part.label, start, stop, clip))
        return found

    def cost(added: float) -> Cost:  # in units of adding one user, half of a replacement
        return sum((step.mechanism.cost for step in (*first, *means(added / 2))), Cost())

    return means(one if sampled == 1 else calibrate(cost, budget) * (1 + 1e-9) / 2)


def _phase(problem: Problem, layout: Layout, step: Step, sampled: float) -> ClippedPhase:
    mechanism = step.mechanism
    assert isinstance(mechanism, Clip)
    longest = layout.longest * math.sqrt(problem.n_features + _ROOM)
    if step.label == RECALIBRATION:
        longest = 1.5 * math.sqrt(n_recalibrated(problem))
    clip = layout.clip(problem, step.label)
    usual = min(1.0, clip * float(np.sqrt(_USUAL_SIZES @ _NORMS**2)))
    return ClippedPhase(
        step.label,
        step.n_users,
        _radius(usual * longest * _slope_scale(problem) * math.hypot(1, _MARK), problem.dimension, layout.pure),
        _noise_ratio(step, problem),
        n_steps=mechanism.rounds,
        sampling_probability=sampled,
        clip=clip,
        least_clip=0.0 if layout.recalibration else _SKEWED,
        longest=longest,
        s=layout.relative_noise(problem, step.label),
        hurried=layout.hurried,
        pure=layout.pure,
    )


def _radius(length: float, dimension: int, pure: bool) -> float:
    """What gradients with their mark are clipped to: their length, or the 1-norm that few of this length exceed."""
    return SPREAD * length * math.sqrt(dimension + 1) if pure else length


def in_units(problem: Problem) -> bool:
    """Whether slopes are residuals in units of the targets, which may be far smaller than their declared bound."""
    loss = problem.loss
    return loss.smooth and not loss.classifies and loss.usual_curvature is None


def _slope_scale(problem: Problem) -> float:
    """A slope that few rows exceed: the largest, or where that is far off, twice the typical one."""
    return min(problem.lipschitz / problem.row_norm, 2 * problem.typical_slope)


def _estimate(problem: Problem, layout: Layout, n_users: int, rows_per_user: int, sampled: float) -> float:
    """What is expected of the excess risk: noise, and what n users tell at all; no bound.

    With h the curvature, g^2 the mean square of a user's gradient and c the clip: d/(2 h) (noise of the averaged
    gradient)^2 + g^2 / (2 h n). Constants are of generated data (research/docs/which-solver.md).
    """
    curvature = _USUAL_CURVATURE * problem.typical_curvature
    square = (_USUAL_SLOPE * problem.typical_slope) ** 2 * problem.n_features * alike(rows_per_user, _SIMILARITY)
    longest = layout.longest * math.sqrt(problem.n_features + _ROOM) * _slope_scale(problem)
    clip = min(layout.clip(problem, STEPS) * math.sqrt(square), longest)
    fraction = _USUAL_FRACTION if layout.whitening else _USUAL_FRACTION_OF_PUBLIC
    noise = 2 * clip * layout.s / math.sqrt(problem.dimension * fraction)
    sampling = square / n_users * (1 + (sampled < 1) / (sampled * layout.rounds))
    return min((_WORSE * problem.dimension * noise**2 + sampling) / (2 * curvature), problem.loss_at_zero)


def _noise_ratio(step: Step, problem: Problem) -> float:
    mechanism = step.mechanism
    assert isinstance(mechanism, Clip)
    return mechanism.noise_std(1.0, problem.dimension + N_SIZES + 1)


# --- steps ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Sizes:
    """How frequent each size of gradients is, followed from step to step; what is below noise counts as 0."""

    precision: float = 1 / _USUAL_ERROR**2
    total: np.ndarray = field(default_factory=lambda: _USUAL_SIZES / _USUAL_ERROR**2)

    def seen(self, frequencies: np.ndarray, error: float) -> _Sizes:
        """With what one more release told."""
        return _Sizes(_FORGET * self.precision + 1 / error**2, _FORGET * self.total + frequencies / error**2)

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

    def kept(self, clip: float) -> float:
        """Mean of min(1, clip / norm), the clip in units of longest: by so much clipping flattens the objective."""
        frequencies = np.maximum(self.total, 0.0)
        if not frequencies.any():  # nobody has a gradient, and noise is negative everywhere
            frequencies = _USUAL_SIZES
        return float(frequencies @ np.minimum(1.0, clip / _NORMS)) / float(frequencies.sum())


def _zoomed(frequencies: np.ndarray, error: float) -> _Sizes | None:
    """If a release clearly told of the `_SMALL` smallest sizes only: these, `_ZOOM` sizes larger; None if not.

    What earlier releases told is then forgotten: they were of a point far off.
    """
    others, clear = N_SIZES - _SMALL, _CLEARLY * error
    small = frequencies[others:].sum() - frequencies[:others].sum()
    if small < clear * math.sqrt(N_SIZES) or np.any(frequencies[:others] > clear):
        return None
    return _Sizes(1 / error**2, np.append(frequencies[_ZOOM:], np.zeros(_ZOOM)) / error**2)


@dataclass(frozen=True, eq=False)
class State:
    """What changes from step to step, all of it public: computed from releases."""

    point: np.ndarray  # in the directions
    velocity: np.ndarray
    curvature: float  # a guess before it is measured, unless the loss tells it at each point
    clip: float
    sizes: _Sizes = field(default_factory=_Sizes)
    scale: float = 1.0  # of slopes / what public numbers say of it, where targets are found to be far smaller
    followed: float = 1.0  # curvature / what the loss tells of it
    inverse_rows: float = 0.0  # mean over users of 1 / rows
    n_steps: int = 0
    walk: float = 0.0  # variance of a weight along which nothing is curved: steps of mere noise, added up
    visits: tuple[Visit, ...] = ()
    affected: tuple[tuple[float, float], ...] = ()  # of everyone, as released, and its noise's std


@dataclass(frozen=True, eq=False)
class _Average:
    """Of steps: the corrected average, the std of a weight of it, and the variance of predictions at the points."""

    point: np.ndarray
    noise: float
    spread: float = 0.0


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
        return np.linalg.eigh(sum((one.T * kept) @ one for one in self.bases))

    @property
    def difference(self) -> float:
        """Of predictions, over which the slope's derivative is told."""
        return 0.05 * min(_slope_scale(self.problem) / self.loss.curvature, self.problem.typical_prediction)

    def longest(self, state: State) -> float:
        """What bounds a user's gradient: row weights bound its rows, and few slopes are larger."""
        return self.phase.longest * _slope_scale(self.problem) * state.scale

    def gradient_size(self, state: State) -> float:
        """Root mean square of users' gradients, about, if no row counted less for its length."""
        usual = math.sqrt(self.problem.n_features)
        return state.sizes.rms * self.longest(state) * max(1.0, usual / self.phase.longest)

    def exceeded_by(self, state: State, fraction: float, longest: float) -> float:
        """Norm that about this fraction of users' gradients exceeds, as far as is seen, if rows are this long."""
        return state.sizes.exceeded_by(fraction) * self.longest(state) * max(1.0, longest / self.phase.longest)

    def relative_curvature(self, state: State) -> float:
        return state.curvature / (_TYPICAL_CURVATURE * self.loss.curvature)

    def is_flat(self, state: State) -> bool:
        return self.relative_curvature(state) < _FLAT

    def whitened(self, point: np.ndarray) -> np.ndarray:
        return point if self.directions is None else self.directions @ point

    def begin(
        self, point: np.ndarray, curvature: float, scale: float = 1.0, followed: float = 1.0, inverse_rows: float = 0.0
    ) -> State:
        state = State(point, np.zeros_like(point), curvature, 0.0, _Sizes(), scale, followed, inverse_rows)
        return self.at(replace(state, clip=0.25 * self.longest(state)), point)

    def at(self, state: State, point: np.ndarray) -> State:
        """The state there: its curvature is that of the point, if the loss tells it.

        Coordinates tell mean and mean square of rows' predictions.
        """
        curvature = state.curvature
        if self.loss.usual_curvature is not None:
            u = self.whitened(point)
            mean = float(self.coordinates.constant @ u) if self.problem.intercept else 0.0
            curvature = state.followed * self.loss.usual_curvature(mean, max(float(u @ u) - mean**2, 0.0))
        return replace(state, point=point, curvature=curvature)

    def gradient(self, state: State) -> MeanGradient:
        weights = self.coordinates.to_weights(self.whitened(state.point))
        return MeanGradient(self.loss, weights, self.coordinates.basis, row_weights=self.row_weights)

    def measure(self, state: State, ratio: float, label: str) -> Releases[State]:
        """The curvature becomes what is released, as far as that can be told from noise, of userdp's losses."""
        statistic = MeanCurvature(self.gradient(state), self.difference, self.loss.curvature)
        scale = 2 * self.phase.longest**2 / len(self.coordinates.basis)  # lengths are in units of longest
        radius = 1.0 if self.phase.pure else statistic.radius
        released = (yield Request(label, statistic, radius)) + 0.5
        noise, measured = scale * radius * ratio, scale * float(released[0])
        state = replace(state, inverse_rows=min(max(float(released[1]) - radius * ratio, 0.0), 1.0))
        usual = state.curvature / self.loss.curvature
        if self.loss.usual_curvature is not None:  # far below the largest it is known but for a factor
            factor = _likely_factor(measured / usual, noise / usual)
            return self.at(replace(state, followed=state.followed * factor), state.point)
        trust = _CURVATURE_SPREAD**2 / (_CURVATURE_SPREAD**2 + noise**2)
        fraction = trust * measured + (1 - trust) * usual
        return replace(state, curvature=self.loss.curvature * min(max(fraction, _LEAST_CURVATURE), 1.0))

    def clipped(self, state: State) -> float:
        """Where to clip: at a multiple of the root mean square; in a hurry at what few users' gradients exceed.

        A flat smooth loss tells of a rare class, whose few long gradients noise may hide: they are the longer the fewer
        rows a user has.
        """
        phase, loss, sizes, alone = self.phase, self.problem.loss, state.sizes, math.sqrt(state.inverse_rows)
        usual = max(phase.least_clip * alone, 0.0 if phase.hurried else phase.clip) * sizes.rms
        if phase.hurried or phase.label == RECALIBRATION or phase.least_clip:
            usual = max(usual, sizes.exceeded_by(_CLIPPED_TAIL * phase.s))
        lopsided = loss.event * max(0.0, math.sqrt(loss.event / self.relative_curvature(state)) - 1)
        least = _LOPSIDED[phase.label] * lopsided * alone if loss.smooth else 0.0
        return self.longest(state) * min(1.0, max(usual, least))

    def release(self, state: State, ratio: float, label: str) -> Releases[tuple[State, np.ndarray, float, float]]:
        """What the state is then; a gradient, the std of its noise, and the curvature of the clipped objective."""
        mark = _MARK * state.clip
        statistic = ClippedGradient(self.gradient(state), state.clip, self.longest(state), mark, self.directions)
        radius = _radius(statistic.radius, state.point.size, self.phase.pure)
        released = yield Request(label, statistic, radius)
        std = ratio * radius
        gradient, frequencies, affected = statistic.told(released)
        if self.loss.differences and self.directions is None:  # what outputs share is noise: slopes add up to 0
            blocks = gradient.reshape(self.loss.n_outputs, -1)
            gradient = (blocks - blocks.mean(axis=0)).ravel()
        if label not in APPROACH:  # which asks a part of the users
            told = (affected, std / statistic.affected_mark)
            state = replace(state, affected=(*state.affected, told))
        sizes = state.sizes.seen(frequencies, std / mark)
        steep = state.curvature * sizes.kept(state.clip / self.longest(state))
        state = replace(state, sizes=sizes)
        if in_units(self.problem) and (zoomed := _zoomed(frequencies, std / mark)) is not None:
            state = replace(state, sizes=zoomed, scale=state.scale / 2**_ZOOM)
        if self.problem.l2:
            weights = self.problem.penalised(self.coordinates.to_weights(self.whitened(state.point)))
            pull = self.coordinates.of_gradient(self.problem.l2 * weights)
            gradient = gradient + (pull if self.directions is None else pull @ self.directions)
        return replace(state, clip=self.clipped(state)), gradient, std, steep

    def over_curvature(self, gradient: np.ndarray, steep: float) -> np.ndarray:
        """A gradient over the curvature of the clipped objective, `steep`, and that of the penalty."""
        if not self.problem.l2:
            return gradient / steep
        values, axes = self.penalty
        blocks = gradient.reshape(-1, len(values))
        over = blocks / (steep + values) if axes is None else (blocks @ axes / (steep + values)) @ axes.T
        return np.asarray(over.ravel())

    def steps(self, state: State, n_steps: int, ratio: float, label: str) -> Releases[tuple[State, _Average]]:
        """So many steps; the average of the points less that of the gradients over the curvature.

        Where residuals are found to be far smaller than declared noise falls with them, from step to step: each then
        weighs by the inverse of its variance.
        """
        problem, loss, phase = self.problem, self.loss, self.phase
        corrected, noises, moments = np.empty((n_steps, state.point.size)), np.empty(n_steps), np.zeros(2)
        long = phase.hurried or phase.pure
        momentum, pace = _HURRIED_PACE if long else _PACE
        if phase.hurried and self.is_flat(state):
            momentum, pace = _FLAT_PACE
        for number in range(n_steps):
            state, gradient, std, steep = yield from self.release(state, ratio, label)
            over = self.over_curvature(gradient, steep)
            corrected[number], noises[number] = state.point - over, std / steep
            if self.directions is None and loss.mean is not None:
                moments += self.axes.mean_and_square(state.point) / n_steps
            # As long as the curvature allows, falling if steps are many; no step's noise moves predictions by much.
            length = pace / steep * (1.0 if long else math.sqrt(4 / (4 + state.n_steps)))
            length = min(length, _MOST_NOISE * problem.typical_prediction / (std * math.sqrt(state.point.size)))
            velocity = momentum * state.velocity - length * steep * over
            if loss.usual_curvature is not None:  # which holds nearby
                velocity = velocity / max(1.0, float(np.linalg.norm(velocity)) / _NEARBY)
            state = replace(
                self.at(state, state.point + velocity),
                velocity=velocity,
                n_steps=state.n_steps + 1,
                walk=state.walk + (length * std / (1 - momentum)) ** 2,
                visits=(*state.visits, (state.point, gradient, std)),
            )
        weights = np.ones(n_steps) if state.scale == 1 else noises**-2
        weights /= weights.sum()
        noise = float(np.linalg.norm(weights * noises))
        return state, _Average(np.asarray(weights @ corrected), noise, moments[1] - moments[0] ** 2)

    def settled(self, state: State, average: _Average) -> tuple[State, _Average]:
        """The curvature, and noise, are what the loss's mean tells of predictions there, if that is more curved.

        A rare class is rarer where the curvature was measured, and the directions that tell it from the other are more
        curved than most: with more noise than there is, shrinkage would take signal for noise.
        """
        if not self.axes.level or self.loss.mean is None or self.loss.usual_curvature is not None:
            return state, average
        told = told_curvature(self.loss.mean, self.axes.mean_and_square(average.point)[0], average.spread)
        told = min(max(told, state.curvature), self.loss.curvature)
        return replace(state, curvature=told), replace(average, noise=average.noise * state.curvature / told)


def _likely_factor(measured: float, noise: float) -> float:
    """The mean of a positive factor, given what was measured of it with noise; before, all sizes are as likely.

    Where noise is as large as the factor, measured ones may be near 0 or below: steps over such a curvature diverge.
    """
    factors = np.geomspace(*_FOLLOWED, 61)
    exponents = -0.5 * ((measured - factors) / noise) ** 2
    return float(np.average(factors, weights=np.exp(exponents - exponents.max())))


# --- the whole schedule -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WhitenedClip:
    """The module's steps: of each label, in order, how many, and their noise std / radius, but for recalibration;
    `whitening` releases coordinates, `intervals` standard errors, if they are asked for.
    """

    phases: tuple[ClippedPhase, ...]
    parts: Mapping[str, tuple[int, float]] = field(hash=False)
    whitening: tuple[Step, ...]
    intervals: IntervalSteps | None = None

    def releases(self, problem: Problem, found: Found) -> Releases[None]:
        phase, *recalibration = self.phases
        if problem.public_moment is not None:
            coordinates = public_coordinates(problem.public_moment)
        else:
            coordinates = yield from release_coordinates(problem.n_features, self.whitening, problem.intercept)
        curvature = math.inf
        if LOCATION in self.parts:
            place = yield from located(problem, LOCATION, *self.parts[LOCATION], phase.pure)
            problem, curvature = place.centred(problem), place.curvature
        loss = problem.loss
        if not loss.smooth:  # smoothed over a width that falls with the noise
            loss = smoothed(loss, min(max(phase.noise_ratio, 0.02), 0.2) * problem.typical_prediction)
        if math.isinf(curvature):
            curvature = _TYPICAL_CURVATURE * min(loss.curvature, 4 * problem.typical_curvature)
        start, axes = coordinates.from_weights(problem.start), Axes.of(coordinates, problem.intercept)
        run = Run(problem, loss, coordinates, phase, axes)
        state, average = run.begin(start, min(curvature, loss.curvature)), _Average(start, 0.0)
        for label, (n_steps, ratio) in self.parts.items():
            if label in (EARLY_CURVATURE, CURVATURE):
                state = yield from run.measure(state, ratio, label)
            elif label != LOCATION and (label not in IF_FLAT or run.is_flat(state)):
                state, average = yield from run.steps(state, n_steps, ratio, label)
        state, average = run.settled(state, average)
        found.phases.append(phase.summary(state.clip, steps=phase.n_steps, curvature=state.curvature))
        point = self._shrunk(run, state, average, start, found)
        affected, level_noise = state.affected, average.noise
        if loss.mean is not None:
            point = axes.with_mean_of(point, loss.mean, average.spread)
        for one in recalibration:
            if LOCATION in self.parts:
                counted = (one.label, one.n_steps, one.noise_ratio, one.pure)
                weights = yield from recovered(problem, coordinates.to_weights(point), *counted)
                point = coordinates.from_weights(weights)
                continue
            point, last, level_noise = yield from _recalibrated(run, state, average, one, point)
            found.phases.append(one.summary(last.clip, steps=one.n_steps, curvature=last.curvature))
            affected += last.affected
        found.total_error = _total_error(loss, axes, point, level_noise)
        found.affected_users = _affected_users(affected, phase)
        if in_units(problem):
            point, found.target_fraction = _in_range(run, state, point)
        found.weights = coordinates.project(problem.domain, coordinates.to_weights(point))
        # The estimate of the excess risk: noise of the average, and what n users tell.
        square = (state.sizes.rms * run.longest(state)) ** 2
        noise = state.curvature / 2 * problem.dimension * average.noise**2
        excess = _WORSE * noise + square / (2 * state.curvature * phase.n_users)
        found.bound = min(excess, problem.loss_at_zero)
        found.signal = state.curvature / 2 * axes.variation(point - start) / excess
        if problem.intercept and coordinates.row_scale > _HIDDEN:
            found.message = HIDDEN_ADVICE
        elif _biased(problem, phase.s, state.inverse_rows, phase.pure) and self.intervals is None:
            found.message = CLIPPED_ADVICE
        if self.intervals is not None:
            yield from self.intervals.refine(run, state, found)

    def _shrunk(self, run: Run, state: State, average: _Average, start: np.ndarray, found: Found) -> np.ndarray:
        """The average, its entries along the axes shrunk to what of them is signal; and `found.weight_errors`."""
        axes, walk = run.axes, math.sqrt(state.walk)
        # What a step along each axis (columns) changes of the effect of a unit of each column (rows), or only its own.
        basis, units = run.coordinates.basis, unit_effects(run, state)
        along = np.abs(basis if basis.ndim == 1 or axes.rotation is None else basis @ axes.rotation)
        effects = along * (units if along.ndim == 1 else units[:, None])
        one_unit = 1 / (effects if effects.ndim == 1 else effects[: len(effects) - (axes.level > 0)].max(axis=0))
        beyond = run.problem.loss  # where large errors count linearly, gradients far off tell nothing of curvatures
        linear = not beyond.classifies and beyond.lipschitz(1.0, 1.0, 1.0) == beyond.lipschitz(1.0, 2.0, 2.0)
        far = _FAR if linear else 0
        curved, relative = curved_along(axes, state.visits[far:], state.visits[0][0], state.curvature, one_unit, walk)
        noises = np.minimum(average.noise / np.minimum(relative, 1.0), math.hypot(average.noise, walk))
        found.weight_errors = effects * noises if effects.ndim == 1 else np.sqrt(effects**2 @ noises**2)
        if run.coordinates.scales is None:  # so rough coordinates are curved unevenly for no other reason
            curved, relative = axes.known**4, np.ones_like(relative)
        shrunk = axes.shrunk(average.point - start, average.noise, walk, curved, relative, one_unit)
        return np.asarray(start + shrunk)


def _recalibrated(
    run: Run, state: State, before: _Average, phase: ClippedPhase, found: np.ndarray
) -> Releases[tuple[np.ndarray, State, float]]:
    """The point moved along itself and along the intercepts, as far as the change stands out of its noise.

    What was found is off by noise, by what clipping does, at most a part of typical predictions, and by what was
    shrunk too much: more is not expected of a change that has much noise itself. Also how the steps ended, and the std
    of their average.
    """
    problem, coordinates = run.problem, run.coordinates
    columns = [found]
    if problem.intercept:
        columns = [*np.kron(np.eye(problem.loss.n_outputs), coordinates.constant), found]
    directions, lengths = np.linalg.qr(np.column_stack(columns))
    clear = np.abs(np.diag(lengths)) > 1e-9 * np.linalg.norm(found)  # not where all but the intercept was shrunk to 0
    directions = directions[:, clear | (np.arange(len(clear)) == 0)]
    start, few = directions.T @ found, Run(problem, run.loss, coordinates, phase, run.axes, directions)
    last = few.begin(start, state.curvature, state.scale, state.followed, state.inverse_rows)
    burn_in = phase.n_steps // 4
    last, _ = yield from few.steps(last, burn_in, phase.noise_ratio, RECALIBRATION)
    last, average = yield from few.steps(last, phase.n_steps - burn_in, phase.noise_ratio, RECALIBRATION)
    change, clipping = average.point - start, _CLIPPING * problem.typical_prediction * state.scale
    most = before.noise**2 + clipping**2 + (directions.T @ (before.point - found)) ** 2
    signal = np.minimum(np.maximum(change**2 - average.noise**2, 0.0), most)
    return found + directions @ (change * signal / (signal + average.noise**2)), last, average.noise


# --- what is reported of a run ----------------------------------------------------------------------------------------


def _in_range(run: Run, state: State, point: np.ndarray) -> tuple[np.ndarray, float]:
    """The point, all predictions moved to where their mean is one that targets can have; and `target_fraction`.

    That is which part of their declared range nearly all targets lie within: three times residuals and predictions'
    spread. Gradients tell residuals: of m rows they are shorter by sqrt(m), if a user's residuals are independent.
    """
    bound, axes = run.problem.target_bound, run.axes
    if axes.level and bound is not None:
        mean = axes.mean_and_square(point)[0]
        point = point + (np.clip(mean, -bound, bound) - mean) * run.coordinates.constant
    if not axes.level or not state.inverse_rows:
        return point, math.nan
    mean, square = axes.mean_and_square(point)
    residual = run.gradient_size(state) ** 2 / (run.problem.n_features * state.inverse_rows)
    return point, 3 * math.sqrt(residual + max(square - mean**2, 0.0)) / float(bound or math.inf)


def _total_error(loss: Loss, axes: Axes, point: np.ndarray, noise: float) -> float:
    """Std of the mean prediction of a class or a count, relative to it, by noise of the level of predictions."""
    if loss.mean is None or not axes.level:
        return math.nan
    level, square = axes.mean_and_square(point)
    variance = max(square - level**2, 0.0)
    mean = expected(loss.mean, level, variance)
    return told_curvature(loss.mean, level, variance) * noise * axes.level / mean if mean > 0 else math.nan


def unit_effects(run: Run, state: State) -> np.ndarray:
    """The effect of one unit of each column, if its weight is 1.

    A unit is the column's scale, which most users who have it share, or of a column that lies far from 0 its spread;
    effects are in log odds, or logarithms of counts, or else in units of what a typical residual moves predictions by.
    """
    coordinates, problem = run.coordinates, run.problem
    moment = coordinates.moment
    squares = moment if moment.ndim == 1 else np.diag(moment)
    spreads = np.ones(len(squares))  # about the mean, in units of about 0, squared
    if problem.intercept and moment.ndim == 2:
        spreads[:-1] = np.maximum(1 - moment[-1, :-1] ** 2 / (squares[:-1] * squares[-1]), 0.0)
    units = np.maximum(np.sqrt(squares), 0.0 if coordinates.scales is None else coordinates.scales) * np.sqrt(spreads)
    if problem.loss.classifies or problem.loss.usual_curvature is not None:
        return np.asarray(units)
    per_user = 1 / max(state.inverse_rows, _FEWEST_INVERSE_ROWS)
    residual = state.sizes.rms * run.longest(state) / math.sqrt(problem.dimension * alike(per_user, _SIMILARITY))
    return np.asarray(units * state.curvature / residual)


def _affected_users(seen: tuple[tuple[float, float], ...], phase: ClippedPhase) -> AffectedUsers:
    """The fraction of affected users and its interval: of what was released of it, weighed by its precision."""
    fractions, errors = np.array(seen).T
    weights = errors**-2 / (errors**-2).sum()
    mean, q = float(weights @ fractions), phase.sampling_probability
    of_samples = min(max(mean, 0.0), 1.0) * (1 - q) / phase.users_a_step  # variance of a fraction by who is drawn
    std = math.sqrt(weights**2 @ (errors**2 + of_samples))
    return AffectedUsers.of(mean, (_LAPLACE_QUANTILE if phase.pure else _QUANTILE) * std)
