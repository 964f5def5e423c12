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

All numbers below come from s = sqrt(weights) / (mu n), the noise of a mean of n users' vectors relative to their
length, mu being the budget's (GDP). The clip grows as s falls, to where it never acts: with more users or a larger
epsilon the result converges to the minimum of the weighted loss, and the weights to 1.

Without delta noise is Laplace's, on clipped 1-norms, and releases are fewer: epsilons add up (`Layout`).

There is no test, hence no abort. How many users lost rows with missing or infinite cells is told by a mark of each
release of a gradient; those without any row left count as 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from userdp.losses import Loss, smoothed
from userdp.privacy.accounting import Budget, Cost, calibrate, gaussian_multiplier
from userdp.privacy.guarantee import AffectedUsers
from userdp.privacy.mechanisms.base import check_counts
from userdp.privacy.mechanisms.clip import Clip
from userdp.privacy.plan import Plan, Step
from userdp.solvers.base import (
    Found,
    Phase,
    Releases,
    Request,
    SolverPlan,
    gradients_of_samples,
    largest_sample,
    too_few_gradients,
)
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
    Part,
    n_recalibrated,
)
from userdp.solvers.shrinkage import Axes, Walk, expected, told_curvature
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
    first: tuple[Step, ...] = ()
    one = gaussian_multiplier(budget) if budget.delta else 1 / budget.epsilon
    one *= 1 + 1e-9  # room for the rounding of fractions
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
    estimate = _estimate(problem, layout, n_users, rows_per_user, sampled)
    caution = CLIPPED_ADVICE if _biased(problem, layout.s, 1 / rows_per_user, layout.pure) else ""
    if layout.located:
        last = phases[-1]
        caution = coverage_advice(problem, n_users, last.n_steps, last.noise_ratio, layout.pure)
    counted = {step.label: (step.mechanism.rounds, _noise_ratio(step, problem)) for step in means}
    schedule = WhitenedClip(
        phases, {label: of for label, of in counted.items() if label != RECALIBRATION}, tuple(first)
    )
    rare = _clipped_fraction(problem, phases[-1], rows_per_user)
    n_gradients = _gradients(layout, n_users, rows_per_user, sampled)
    return SolverPlan(plan, schedule, n_gradients, estimate, caution=caution, clipped_fraction=rare)


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
    return rows_per_user * sum(part.steps * len(range(*_users_of(part, n_users))) for part in layout.parts)


def _users_of(part: Part, n_users: int) -> tuple[int, int]:
    return int(part.start * n_users), int(part.stop * n_users)


def _clipped_fraction(problem: Problem, last: ClippedPhase, rows_per_user: int) -> float:
    """How rare a class must be for clipping to dominate its error, about.

    With m rows per user, gradients of users with a row of a class of fraction p are 1/sqrt(m p) times as long as the
    root mean square; the last phase clips at `clip` times that. Measured frequencies were off by a tenth or more below
    about 1.5 / (m clip^2), and right above twice that.
    """
    clip = max(last.clip, last.least_clip / math.sqrt(rows_per_user))
    return min(1.5 / (rows_per_user * clip**2), 0.5) if problem.loss.classifies else 0.0


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
            start, stop = _users_of(part, n_users)
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


def _linear_beyond(problem: Problem) -> bool:
    """Whether large errors count linearly, so that gradients far from the optimum tell nothing of curvatures."""
    loss = problem.loss
    return not loss.classifies and loss.lipschitz(1.0, 1.0, 1.0) == loss.lipschitz(1.0, 2.0, 2.0)


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


@dataclass
class _Sizes:
    """How frequent each size of gradients is, followed from step to step; what is below noise counts as 0."""

    precision: float = 1 / _USUAL_ERROR**2
    total: np.ndarray = field(default_factory=lambda: _USUAL_SIZES / _USUAL_ERROR**2)

    def see(self, frequencies: np.ndarray, error: float) -> None:
        self.precision = _FORGET * self.precision + 1 / error**2
        self.total = _FORGET * self.total + frequencies / error**2

    def zoomed(self, frequencies: np.ndarray, error: float) -> bool:
        """Whether a release clearly told of the `_SMALL` smallest sizes only; if so, they move up by `_ZOOM` sizes.

        What earlier ones told is then forgotten: they were of a point far off.
        """
        others = N_SIZES - _SMALL
        small = frequencies[others:].sum() - frequencies[:others].sum()
        clear = _CLEARLY * error
        if small < clear * math.sqrt(N_SIZES) or np.any(frequencies[:others] > clear):
            return False
        self.precision, self.total = 1 / error**2, np.append(frequencies[_ZOOM:], np.zeros(_ZOOM)) / error**2
        return True

    @property
    def rms(self) -> float:
        """Root mean square norm / longest."""
        frequencies = self.total / self.precision
        seen = frequencies > 2 / math.sqrt(self.precision)
        seen = seen if seen.any() else frequencies == frequencies.max()
        return math.sqrt(float(frequencies[seen] @ _NORMS[seen] ** 2) / float(frequencies[seen].sum()))

    def exceeded_by(self, fraction: float) -> float:
        """Norm / longest that about this fraction of users, as far as is seen, exceeds.

        Within a size, the fraction that exceeds a norm is taken to fall as a power of it, to a twentieth of `fraction`
        at least.
        """
        frequencies = self.total / self.precision
        tails = np.cumsum(np.where(frequencies > 2 / math.sqrt(self.precision), frequencies, 0.0))
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


@dataclass
class _Descent:
    """Steps with momentum in some directions of whitened coordinates, from one released gradient to the next."""

    problem: Problem
    loss: Loss
    coordinates: Coordinates
    phase: ClippedPhase
    point: np.ndarray  # in the directions
    curvature: float  # before it is measured, unless the loss tells it at each point
    directions: np.ndarray | None = None
    sizes: _Sizes = field(default_factory=_Sizes)
    affected: list[tuple[float, float]] = field(default_factory=list)  # of everyone, as released, and its noise's std
    noise: float = 0.0  # std of a weight of the corrected average
    walk: float = 0.0  # variance of a weight along which nothing is curved: steps of mere noise, added up
    path: Walk = field(default_factory=Walk)
    passed: int = 0
    inverse_rows: float = 0.0  # mean over users of 1 / rows
    followed: float = 1.0  # curvature / what the loss tells of it
    axes: Axes | None = None  # where the spread of predictions is wanted
    spread: float = 0.0  # variance of predictions, of rows and of the averaged points
    scale: float = 1.0  # of slopes / what public numbers say of it, where targets are found to be far smaller

    def __post_init__(self) -> None:
        self.longest = self.phase.longest * _slope_scale(self.problem) * self.scale
        self.clip = 0.25 * self.longest
        self.velocity = np.zeros_like(self.point)
        self.row_weights = RowWeights(self._row_basis(), self.phase.longest)
        self._penalty = self._penalty_axes() if self.problem.l2 else None
        self._follow()

    def _row_basis(self) -> np.ndarray:
        """What turns a row into what its prediction is made of, in these directions."""
        basis = self.coordinates.basis
        if self.directions is None:
            return basis
        blocks = self.directions.reshape(-1, len(basis), self.directions.shape[1])
        turned = [basis[:, None] * block if basis.ndim == 1 else basis @ block for block in blocks]
        return np.column_stack(turned)

    def _penalty_axes(self) -> tuple[np.ndarray, np.ndarray | None]:
        """How curved the penalty is, and along which axes of these directions (None for the coordinates' own)."""
        basis, size = self.coordinates.basis, self.problem.n_features
        kept = self.problem.l2 * self.problem.penalised(np.ones(size))
        if self.directions is None and basis.ndim == 1:
            return kept * basis**2, None
        if self.directions is None:
            return np.linalg.eigh((basis.T * kept) @ basis)
        blocks = self.directions.reshape(-1, size, self.directions.shape[1])
        turned = [basis[:, None] * block if basis.ndim == 1 else basis @ block for block in blocks]
        return np.linalg.eigh(sum((one.T * kept) @ one for one in turned))

    def _over_curvature(self, gradient: np.ndarray, steep: float) -> np.ndarray:
        """A gradient over the curvature of the clipped objective, `steep`, and that of the penalty."""
        if self._penalty is None:
            return gradient / steep
        values, axes = self._penalty
        blocks = gradient.reshape(-1, len(values))
        over = blocks / (steep + values) if axes is None else (blocks @ axes / (steep + values)) @ axes.T
        return np.asarray(over.ravel())

    def _whitened(self) -> np.ndarray:
        return self.point if self.directions is None else self.directions @ self.point

    def _gradient(self) -> MeanGradient:
        weights = self.coordinates.to_weights(self._whitened())
        return MeanGradient(self.loss, weights, self.coordinates.basis, row_weights=self.row_weights)

    def measure_curvature(self, label: str, ratio: float) -> Releases[None]:
        """Set the curvature to what is released, as far as that can be told from noise, of userdp's losses."""
        statistic = MeanCurvature(self._gradient(), self.difference, self.loss.curvature)
        scale = 2 * self.phase.longest**2 / len(self.coordinates.basis)  # lengths are in units of longest
        radius = 1.0 if self.phase.pure else statistic.radius
        released = (yield Request(label, statistic, radius)) + 0.5
        measured = scale * float(released[0])
        self.inverse_rows = min(max(float(released[1]) - radius * ratio, 0.0), 1.0)
        usual = self.curvature / self.loss.curvature
        if self.loss.usual_curvature is not None:  # far below the largest it is known but for a factor
            fraction = usual * _likely_factor(measured / usual, scale * radius * ratio / usual)
            self.followed *= fraction / usual
            self._follow()
            return
        trust = _CURVATURE_SPREAD**2 / (_CURVATURE_SPREAD**2 + (scale * radius * ratio) ** 2)
        fraction = trust * measured + (1 - trust) * usual
        self.curvature = self.loss.curvature * min(max(fraction, _LEAST_CURVATURE), 1.0)

    def settle(self, point: np.ndarray) -> None:
        """Have the curvature, and noise, be what the loss's mean tells of predictions there, if that is more curved.

        A rare class is rarer where the curvature was measured, and the directions that tell it from the other are more
        curved than most: with more noise than there is, shrinkage would take signal for noise.
        """
        if self.axes is None or not self.axes.level or self.loss.mean is None or self.loss.usual_curvature is not None:
            return
        told = told_curvature(self.loss.mean, self.axes.mean_and_square(point)[0], self.spread)
        told = min(max(told, self.curvature), self.loss.curvature)
        self.curvature, self.noise = told, self.noise * self.curvature / told

    @property
    def difference(self) -> float:
        """Of predictions, over which the slope's derivative is told."""
        return 0.05 * min(_slope_scale(self.problem) / self.loss.curvature, self.problem.typical_prediction)

    @property
    def gradient_size(self) -> float:
        """Root mean square of users' gradients, about, if no row counted less for its length."""
        usual = math.sqrt(self.problem.n_features)
        return self.sizes.rms * self.longest * max(1.0, usual / self.phase.longest)

    def exceeded_by(self, fraction: float, longest: float) -> float:
        """Norm that about this fraction of users' gradients exceeds, as far as is seen, if rows are this long."""
        return self.sizes.exceeded_by(fraction) * self.longest * max(1.0, longest / self.phase.longest)

    def _follow(self) -> None:
        """Have the curvature be that of this point, if the loss tells it: coordinates tell mean and mean square of
        rows' predictions.
        """
        if self.loss.usual_curvature is None:
            return
        u, mean = self._whitened(), 0.0
        if self.problem.intercept:
            mean = float(self.coordinates.constant @ u)
        self.curvature = self.followed * self.loss.usual_curvature(mean, max(float(u @ u) - mean**2, 0.0))

    def steps(self, label: str, n_steps: int, ratio: float) -> Releases[np.ndarray]:
        """So many steps; the average of the points less that of the gradients over the curvature.

        Where residuals are found to be far smaller than declared noise falls with them, from step to step: each then
        weighs by the inverse of its variance.
        """
        corrected, noises = np.empty((n_steps, self.point.size)), np.empty(n_steps)
        moments = np.zeros(2)  # of predictions
        long = self.phase.hurried or self.phase.pure
        momentum, step = self._pace
        for number in range(n_steps):
            gradient, std, steep = yield from self._release(label, ratio)
            over = self._over_curvature(gradient, steep)
            self.path.add(self.point, gradient, std)
            corrected[number], noises[number] = self.point - over, std / steep
            if self.axes is not None and self.loss.mean is not None:
                moments += self.axes.mean_and_square(self.point) / n_steps
            length = step / steep * (1.0 if long else math.sqrt(4 / (4 + number + self.passed)))
            most = _MOST_NOISE * self.problem.typical_prediction / (std * math.sqrt(self.point.size))
            self.velocity = momentum * self.velocity - min(length, most) * steep * over
            self.walk += (min(length, most) * std / (1 - momentum)) ** 2
            if self.loss.usual_curvature is not None:  # which holds nearby
                self.velocity = self.velocity / max(1.0, float(np.linalg.norm(self.velocity)) / _NEARBY)
            self.point = self.point + self.velocity
            self._follow()
        self.passed += n_steps
        weights = np.ones(n_steps) if self.scale == 1 else noises**-2
        weights /= weights.sum()
        self.noise = float(np.linalg.norm(weights * noises))
        self.spread = moments[1] - moments[0] ** 2
        return np.asarray(weights @ corrected)

    def _release(self, label: str, ratio: float) -> Releases[tuple[np.ndarray, float, float]]:
        """A gradient in these directions, the std of its noise, and the curvature of the clipped objective."""
        mark = _MARK * self.clip
        statistic = ClippedGradient(self._gradient(), self.clip, self.longest, mark, self.directions)
        radius = _radius(statistic.radius, self.point.size, self.phase.pure)
        released = yield Request(label, statistic, radius)
        std = ratio * radius
        gradient, frequencies, affected = statistic.told(released)
        if self.loss.differences and self.directions is None:  # what outputs share is noise: slopes add up to 0
            blocks = gradient.reshape(self.loss.n_outputs, -1)
            gradient = (blocks - blocks.mean(axis=0)).ravel()
        if label not in APPROACH:  # which asks a part of the users
            self.affected.append((affected, std / statistic.affected_mark))
        self.sizes.see(frequencies, std / mark)
        steep = self.curvature * self.sizes.kept(self.clip / self.longest)
        if in_units(self.problem) and self.sizes.zoomed(frequencies, std / mark):
            self.scale, self.longest = self.scale / 2**_ZOOM, self.longest / 2**_ZOOM
        self.clip = self.longest * min(1.0, max(self._usual_clip, self._least_clip))
        if self.problem.l2:
            u = self._whitened()
            weights = self.problem.penalised(self.coordinates.to_weights(u))
            pull = self.coordinates.of_gradient(self.problem.l2 * weights)
            gradient = gradient + (pull if self.directions is None else pull @ self.directions)
        return gradient, std, steep

    @property
    def _pace(self) -> tuple[float, float]:
        if self.phase.hurried and self.flat:
            return _FLAT_PACE
        return _HURRIED_PACE if self.phase.hurried or self.phase.pure else _PACE

    @property
    def flat(self) -> bool:
        return self._relative_curvature < _FLAT

    @property
    def _relative_curvature(self) -> float:
        return self.curvature / (_TYPICAL_CURVATURE * self.loss.curvature)

    @property
    def _usual_clip(self) -> float:
        """In units of longest: a multiple of the root mean square; in a hurry what few users' gradients exceed."""
        skewed = self.phase.least_clip * math.sqrt(self.inverse_rows)
        if self.phase.hurried:
            return max(self.sizes.exceeded_by(_CLIPPED_TAIL * self.phase.s), skewed * self.sizes.rms)
        usual = max(self.phase.clip, skewed) * self.sizes.rms
        if self.phase.label == RECALIBRATION or self.phase.least_clip:
            usual = max(usual, self.sizes.exceeded_by(_CLIPPED_TAIL * self.phase.s))
        return usual

    @property
    def _least_clip(self) -> float:
        """In units of longest: a flat smooth loss tells of a rare class, whose few long gradients noise may hide.

        They are the longer the fewer rows a user has.
        """
        event = self.problem.loss.event
        lopsided = (
            event * max(0.0, math.sqrt(event / self._relative_curvature) - 1) if self.problem.loss.smooth else 0.0
        )
        return _LOPSIDED[self.phase.label] * lopsided * math.sqrt(self.inverse_rows)


@dataclass(frozen=True, eq=False)
class Fitted:
    """What a run found, for standard errors (`inference`); in the coordinates that it whitened."""

    coordinates: Coordinates
    loss: Loss
    weights: np.ndarray
    curvature: float
    inverse_rows: float
    gradient_size: float  # root mean square
    exceeded_by: Callable[[float, float], float]  # norm that a fraction of gradients exceeds, if rows are so long
    largest_slope: float
    step: float  # of predictions, to tell the slope's derivative
    unit_effects: np.ndarray  # effect of one unit of a column if its weight is 1; see `_unit_effects`


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
        curvature = None
        if LOCATION in self.parts:
            place = yield from located(problem, LOCATION, *self.parts[LOCATION], phase.pure)
            problem, curvature = place.centred(problem), place.curvature
        loss = _smooth(problem, phase)
        start = coordinates.from_weights(problem.start)
        usual = _TYPICAL_CURVATURE * min(loss.curvature, 4 * problem.typical_curvature)
        curvature = usual if curvature is None else min(curvature, loss.curvature)
        axes = Axes.of(coordinates, problem.intercept)
        descent = _Descent(problem, loss, coordinates, phase, start, curvature, axes=axes)
        point = start
        for label, (n_steps, ratio) in self.parts.items():
            if label in (EARLY_CURVATURE, CURVATURE):
                yield from descent.measure_curvature(label, ratio)
            elif label != LOCATION and (label not in IF_FLAT or descent.flat):
                point = yield from descent.steps(label, n_steps, ratio)
        descent.settle(point)
        effects = _effects(descent)
        one_unit = 1 / (effects if effects.ndim == 1 else effects[: len(effects) - (axes.level > 0)].max(axis=0))
        far = _FAR if _linear_beyond(problem) else 0
        errors = (descent.noise, math.sqrt(descent.walk))
        curved, relative = descent.path.along(axes, descent.curvature, one_unit, errors[1], far)
        noises = np.minimum(descent.noise / np.minimum(relative, 1.0), math.hypot(*errors))
        found.weight_errors = effects * noises if effects.ndim == 1 else np.sqrt(effects**2 @ noises**2)
        if coordinates.scales is None:  # so rough coordinates are curved unevenly for no other reason
            curved, relative = axes.known**4, np.ones_like(relative)
        before, point = point, start + axes.shrunk(point - start, *errors, curved, relative, one_unit)
        level_noise = descent.noise
        if loss.mean is not None:
            point = axes.with_mean_of(point, loss.mean, descent.spread)
        found.phases.append(phase.summary(descent.clip, steps=phase.n_steps, curvature=descent.curvature))
        affected = descent.affected
        for one in recalibration:
            if LOCATION in self.parts:
                weights = coordinates.to_weights(point)
                counted = (one.label, one.n_steps, one.noise_ratio, one.pure)
                point = coordinates.from_weights((yield from recovered(problem, weights, *counted)))
                continue
            point, last = yield from _recalibrated(descent, one, point, before - point)
            found.phases.append(one.summary(last.clip, steps=one.n_steps, curvature=last.curvature))
            affected, level_noise = affected + last.affected, last.noise
        found.total_error = _total_error(loss, axes, point, level_noise)
        found.affected_users = _affected_users(affected, phase)
        if in_units(problem):
            point = _within(problem, axes, coordinates, point)
            found.target_fraction = _target_fraction(descent, axes, point)
        found.weights = coordinates.project(problem.domain, coordinates.to_weights(point))
        expected_excess = _after(descent, phase.n_users, problem)
        found.bound = min(expected_excess, problem.loss_at_zero)
        found.signal = descent.curvature / 2 * axes.variation(point - start) / expected_excess
        if problem.intercept and coordinates.row_scale > _HIDDEN:
            found.message = HIDDEN_ADVICE
        elif _biased(problem, phase.s, descent.inverse_rows, phase.pure) and self.intervals is None:
            found.message = CLIPPED_ADVICE
        if self.intervals is not None:
            slope = problem.lipschitz / problem.row_norm
            told = (descent.curvature, descent.inverse_rows, descent.gradient_size, descent.exceeded_by, slope)
            fitted = Fitted(coordinates, loss, found.weights, *told, descent.difference, _unit_effects(descent))
            yield from self.intervals.refine(problem, fitted, found)


def _within(problem: Problem, axes: Axes, coordinates: Coordinates, point: np.ndarray) -> np.ndarray:
    """The point, all predictions moved to where their mean is one that targets can have."""
    if not axes.level or problem.target_bound is None:
        return point
    mean = axes.mean_and_square(point)[0]
    return np.asarray(
        point + (np.clip(mean, -problem.target_bound, problem.target_bound) - mean) * coordinates.constant
    )


def _target_fraction(descent: _Descent, axes: Axes, point: np.ndarray) -> float:
    """Which part of their declared range nearly all targets lie within: three times residuals and predictions' spread.

    Residuals are told by gradients: of m rows they are shorter by sqrt(m), if a user's residuals are independent.
    """
    mean, square = axes.mean_and_square(point)
    if not axes.level or not descent.inverse_rows:
        return math.nan
    residual = descent.gradient_size**2 / (descent.problem.n_features * descent.inverse_rows)
    return 3 * math.sqrt(residual + max(square - mean**2, 0.0)) / float(descent.problem.target_bound or math.inf)


def _total_error(loss: Loss, axes: Axes, point: np.ndarray, noise: float) -> float:
    """Std of the mean prediction of a class or a count, relative to it, by noise of the level of predictions."""
    if loss.mean is None or not axes.level:
        return math.nan
    level, square = axes.mean_and_square(point)
    variance = max(square - level**2, 0.0)
    mean = expected(loss.mean, level, variance)
    return told_curvature(loss.mean, level, variance) * noise * axes.level / mean if mean > 0 else math.nan


def _effects(descent: _Descent) -> np.ndarray:
    """What a step along each axis (columns) changes of the effect of a unit of each column (rows), or only its own."""
    assert descent.axes is not None
    along, units = np.abs(descent.axes.weights_along(descent.coordinates.basis)), _unit_effects(descent)
    return np.asarray(along * (units if along.ndim == 1 else units[:, None]))


def _unit_effects(descent: _Descent) -> np.ndarray:
    """The effect of one unit of each column, if its weight is 1.

    A unit is the column's scale, which most users who have it share, or of a column that lies far from 0 its spread;
    effects are in log odds, or logarithms of counts, or else in units of what a typical residual moves predictions by.
    """
    coordinates, problem = descent.coordinates, descent.problem
    moment = coordinates.moment
    squares = moment if moment.ndim == 1 else np.diag(moment)
    spreads = np.ones(len(squares))  # about the mean, in units of about 0, squared
    if problem.intercept and moment.ndim == 2:
        spreads[:-1] = np.maximum(1 - moment[-1, :-1] ** 2 / (squares[:-1] * squares[-1]), 0.0)
    units = np.maximum(np.sqrt(squares), 0.0 if coordinates.scales is None else coordinates.scales) * np.sqrt(spreads)
    if problem.loss.classifies or problem.loss.usual_curvature is not None:
        return np.asarray(units)
    per_user = 1 / max(descent.inverse_rows, _FEWEST_INVERSE_ROWS)
    residual = descent.sizes.rms * descent.longest / math.sqrt(problem.dimension * alike(per_user, _SIMILARITY))
    return np.asarray(units * descent.curvature / residual)


def _affected_users(seen: list[tuple[float, float]], phase: ClippedPhase) -> AffectedUsers:
    """The fraction of affected users and its interval: of what was released of it, weighed by its precision."""
    fractions, errors = np.array(seen).T
    weights = errors**-2 / (errors**-2).sum()
    mean, q = float(weights @ fractions), phase.sampling_probability
    of_samples = min(max(mean, 0.0), 1.0) * (1 - q) / phase.users_a_step  # variance of a fraction by who is drawn
    std = math.sqrt(weights**2 @ (errors**2 + of_samples))
    return AffectedUsers.of(mean, (_LAPLACE_QUANTILE if phase.pure else _QUANTILE) * std)


def _after(descent: _Descent, n_users: int, problem: Problem) -> float:
    """The estimate of the excess risk from what was released: noise of the average, and what n users tell."""
    square = (descent.sizes.rms * descent.longest) ** 2
    noise = descent.curvature / 2 * problem.dimension * descent.noise**2
    return _WORSE * noise + square / (2 * descent.curvature * n_users)


def _noise_ratio(step: Step, problem: Problem) -> float:
    mechanism = step.mechanism
    assert isinstance(mechanism, Clip)
    return mechanism.noise_std(1.0, problem.dimension + N_SIZES + 1)


def _smooth(problem: Problem, phase: ClippedPhase) -> Loss:
    """The loss itself or, if it is non-smooth, smoothed over a width that falls with the noise."""
    if problem.loss.smooth:
        return problem.loss
    width = min(max(phase.noise_ratio, 0.02), 0.2) * problem.typical_prediction
    return smoothed(problem.loss, width)


def _likely_factor(measured: float, noise: float) -> float:
    """The mean of a positive factor, given what was measured of it with noise; before, all sizes are as likely.

    Where noise is as large as the factor, measured ones may be near 0 or below: steps over such a curvature diverge.
    """
    factors = np.geomspace(*_FOLLOWED, 61)
    exponents = -0.5 * ((measured - factors) / noise) ** 2
    return float(np.average(factors, weights=np.exp(exponents - exponents.max())))


def _recalibrated(
    descent: _Descent, phase: ClippedPhase, found: np.ndarray, shrunk: np.ndarray
) -> Releases[tuple[np.ndarray, _Descent]]:
    """The point moved along itself and along the intercepts, as far as the change stands out of its noise.

    What was found is off by noise, by what clipping does, at most a part of typical predictions, and by what was
    `shrunk` too much: more is not expected of a change that has much noise itself.
    """
    problem, coordinates = descent.problem, descent.coordinates
    columns = [found]
    if problem.intercept:
        columns = [*np.kron(np.eye(problem.loss.n_outputs), coordinates.constant), found]
    directions, lengths = np.linalg.qr(np.column_stack(columns))
    told = np.abs(np.diag(lengths)) > 1e-9 * np.linalg.norm(found)  # not where all but the intercept was shrunk to 0
    directions = directions[:, told | (np.arange(len(told)) == 0)]
    start = directions.T @ found
    few = _Descent(
        problem,
        descent.loss,
        coordinates,
        phase,
        start,
        descent.curvature,
        directions,
        inverse_rows=descent.inverse_rows,
        followed=descent.followed,
        scale=descent.scale,
    )
    burn_in = phase.n_steps // 4
    yield from few.steps(RECALIBRATION, burn_in, phase.noise_ratio)
    change = (yield from few.steps(RECALIBRATION, phase.n_steps - burn_in, phase.noise_ratio)) - start
    clipping = _CLIPPING * problem.typical_prediction * descent.scale
    expected = descent.noise**2 + clipping**2 + (directions.T @ shrunk) ** 2
    signal = np.minimum(np.maximum(change**2 - few.noise**2, 0.0), expected)
    return found + directions @ (change * signal / (signal + few.noise**2)), few
