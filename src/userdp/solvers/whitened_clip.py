"""Clipped gradient steps in whitened coordinates, averaged, corrected, and recalibrated: the default solver.

1. Whitening (`whitening`): coordinates in which rows have unit second moment, whatever the columns' units.
2. Burn-in (`descent`): steps along the mean of users' gradients, clipped. Rows are weighted by their length in these
   coordinates (`RowWeights`): where residuals average 0 given the row, that does not move the optimum, and it bounds a
   gradient by `longest`. Each release also says how frequent each size of gradients is; the clip follows their root
   mean square.
3. Curvature: the mean of the loss's second derivative at that point sets the steps from there on; where it is small, as
   with a rare class, the mean of 1 / rows per user says how long gradients may be that noise hides.
4. Steps: their points are averaged, and the average gradient, over the curvature, is subtracted from the average: one
   correction that costs nothing. Noise of T averaged steps is that of one release with all of their budget.
5. Shrinkage (`shrinkage`): the noise in the average is known, so that directions with little signal are shrunk, all
   but the intercept by one measure, and the intercept is moved to where the mean prediction stays the same.
6. Recalibration: clipping still biases the scale of predictions, and the intercept, where gradients are skewed: few
   rows per user, a rare class. A run of the same steps in those few directions alone is nearly free of noise, and so
   can do with a clip that hardly ever acts. Of a quantile covered targets are counted instead (`quantiles`).

Numbers come from s = sqrt(weights) / (mu n), the noise of a mean of n users' vectors relative to their length, mu being
the budget's (GDP). As s falls the clip grows to where it never acts: the result converges to the minimum of the
weighted loss, and the weights to 1. `schedule` says how many steps there are of whom, `constants` all numbers that were
chosen.

There is no test, hence no abort. How many users lost rows with missing or infinite cells is released by a mark of each
release of a gradient; those without any row left count as 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from userdp._validate import check_counts
from userdp.losses import Loss, smoothed
from userdp.privacy.accounting import Budget, Cost, calibrate, gaussian_multiplier
from userdp.privacy.clip import Clip
from userdp.privacy.plan import Plan, Step
from userdp.privacy.statement import AffectedUsers
from userdp.solvers import constants, schedule
from userdp.solvers.descent import (
    Average,
    ClippedPhase,
    Run,
    State,
    clip_radius,
    in_units,
    slope_scale,
    usual_norm,
)
from userdp.solvers.problem import Problem, alike
from userdp.solvers.quantiles import coverage_advice, located, recovered
from userdp.solvers.schedule import (
    APPROACH,
    BURN_IN,
    CURVATURE,
    EARLY_CURVATURE,
    FLAT_STEPS,
    LOCATION,
    RECALIBRATION,
    STEPS,
    Layout,
)
from userdp.solvers.shrinkage import Axes, curved_along, expected, mean_curvature
from userdp.solvers.solver import Outcome, Releases, SolverPlan, share_multiplier
from userdp.solvers.whitening import public_coordinates, release_coordinates, whitening_steps
from userdp.statistics.gradients import N_SIZES

if TYPE_CHECKING:
    from userdp.solvers.inference import IntervalSteps

HIDDEN_ADVICE = (
    "Noise hides small columns, and the intercept, among far larger ones: the model may miss what they say. Scale "
    "columns by public ranges (PublicScaler), give public_X, or have more users or a larger epsilon."
)
CLIPPED_ADVICE = (
    "Clipping is likely to dominate the error: with so few rows per user, and so much noise, predictions may be too "
    "extreme (calibration slopes below 0.9). Have more users, a larger epsilon, or fewer features."
)


# --- planning ---------------------------------------------------------------------------------------------------------


def plan_whitened_clip(
    problem: Problem, n_users: int, rows_per_user: int, budget: Budget, max_gradients: int | None = None
) -> SolverPlan:
    """The plan for these public numbers.

    Without `max_gradients` time counts too: where it is expected to be as accurate, the schedule is the fast one. Up to
    `max_gradients` time does not count; where full passes take more, and a fast schedule does, too, steps take Poisson
    samples.
    """
    n_users, rows_per_user = check_counts(n_users=n_users, rows_per_user=rows_per_user)
    layout, sampled = schedule.choose(problem, n_users, rows_per_user, budget, max_gradients)
    whole = gaussian_multiplier(budget) if budget.delta else 1 / budget.epsilon
    whole *= 1 + 1e-9  # room for the rounding of fractions
    whitening: tuple[Step, ...] = ()
    if layout.whitening:
        multiplier = share_multiplier(whole, layout.whitening, pure=layout.pure)
        whitening = whitening_steps(
            n_users,
            problem.n_features,
            problem.intercept,
            multiplier,
            apart=layout.fast,
            pure=layout.pure,
            neighbours=budget.neighbours,
        )
    means = _steps(layout, n_users, sampled, budget, whole, whitening)
    plan = Plan(n_users, (*whitening, *means))
    phases = tuple(_phase(problem, layout, step, sampled) for step in means if step.label in (STEPS, RECALIBRATION))
    last = phases[-1]
    caution = CLIPPED_ADVICE if _biased(problem, layout.s, 1 / rows_per_user, layout.pure) else ""
    if schedule.counts(problem):
        caution = coverage_advice(problem, n_users, last.n_steps, last.noise_ratio, layout.pure)
    counted = {step.label: (step.mechanism.rounds, _noise_ratio(step, problem)) for step in means}
    counted.pop(RECALIBRATION, None)
    # With m rows per user, gradients of users with a row of a class of fraction p are 1/sqrt(m p) times as long as the
    # root mean square; the last phase clips at `clip` times that. Measured frequencies were off by a tenth or more
    # below about 1.5 / (m clip^2), and right above twice that.
    clip = layout.clip(problem, last.label)
    rare = min(1.5 / (rows_per_user * clip**2), 0.5) if problem.loss.classifies else 0.0
    return SolverPlan(
        plan,
        WhitenedClip(phases, counted, whitening),
        layout.n_gradients(n_users, rows_per_user, sampled),
        _estimate(problem, layout, n_users, rows_per_user, sampled),
        caution=caution,
        clipped_fraction=rare,
    )


def _steps(
    layout: Layout, n_users: int, sampled: float, budget: Budget, whole: float, whitening: tuple[Step, ...]
) -> list[Step]:
    """Clipped means of all users, or of Poisson samples whose noise is calibrated together."""

    def means(multiplier: float) -> list[Step]:
        steps = []
        for share in layout.shares:
            start, stop = int(share.start * n_users), int(share.stop * n_users)
            noise = share_multiplier(multiplier, share.fraction, share.n_releases, layout.pure)
            kind: dict[str, Any] = {
                "sampling_probability": sampled,
                "laplace": layout.pure,
                "neighbours": budget.neighbours,
            }
            clip = Clip(stop - start, noise, share.n_releases, **kind)
            steps.append(Step(share.label, start, stop, clip))
        return steps

    moved = 2 * budget.relative_noise  # by a neighbour, in units of adding one user, which `calibrate` searches in

    def cost(added: float) -> Cost:
        return sum((step.mechanism.cost for step in (*whitening, *means(added / moved))), Cost())

    return means(whole if sampled == 1 else calibrate(cost, budget) * (1 + 1e-9) / moved)


def _phase(problem: Problem, layout: Layout, step: Step, sampled: float) -> ClippedPhase:
    last = step.label == RECALIBRATION
    clip, s = layout.clip(problem, step.label), layout.relative_noise(problem, step.label)
    longest = layout.longest * math.sqrt(problem.n_features + constants.ROOM)
    if last:
        longest = 1.5 * math.sqrt(schedule.n_recalibrated(problem))
    length = usual_norm(clip) * longest * slope_scale(problem) * math.hypot(1, constants.MARK)
    return ClippedPhase(
        step.label,
        step.n_users,
        clip_radius(length, problem.dimension, layout.pure),
        _noise_ratio(step, problem),
        n_steps=step.mechanism.rounds,
        sampling_probability=sampled,
        clip=clip,
        tail=constants.CLIPPED_TAIL * s,
        longest=longest,
        s=s,
        pace=layout.pace,
        fast=layout.fast,
        pure=layout.pure,
    )


def _noise_ratio(step: Step, problem: Problem) -> float:
    mechanism = step.mechanism
    assert isinstance(mechanism, Clip)
    return mechanism.noise_std(1.0, problem.dimension + N_SIZES + 1)


def _biased(problem: Problem, s: float, inverse_rows: float, pure: bool) -> bool:
    """Whether clipping is expected to cost more than noise: gradients of few rows are skewed, and noise needs clips.

    Errors of regression were symmetric where it was measured, and clipping did not bias it.
    """
    most = constants.PURE_CLIPPED if pure else constants.CLIPPED
    return problem.loss.classifies and s * math.sqrt(inverse_rows) > most


def _estimate(problem: Problem, layout: Layout, n_users: int, rows_per_user: int, sampled: float) -> float:
    """What is expected of the excess risk: noise, and what n users can show at all; no bound.

    With h the curvature, g^2 the mean square of a user's gradient and c the clip: d/(2 h) (noise of the averaged
    gradient)^2 + g^2 / (2 h n). Constants are of generated data (research/docs/which-solver.md).
    """
    curvature = constants.TYPICAL_CURVATURE * problem.typical_curvature
    slope = constants.USUAL_SLOPE * problem.typical_slope
    square = slope**2 * problem.n_features * alike(rows_per_user, constants.SIMILARITY)
    longest = layout.longest * math.sqrt(problem.n_features + constants.ROOM) * slope_scale(problem)
    clip = min(layout.clip(problem, STEPS) * math.sqrt(square), longest)
    fraction = constants.USUAL_FRACTION if layout.whitening else constants.USUAL_FRACTION_OF_PUBLIC
    noise = 2 * clip * layout.s / math.sqrt(problem.dimension * fraction)
    sampling = square / n_users * (1 + (sampled < 1) / (sampled * layout.rounds))
    return min((constants.WORSE * problem.dimension * noise**2 + sampling) / (2 * curvature), problem.loss_at_zero)


# --- running ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WhitenedClip:
    """The module's steps: of each label, in order, how many, and their noise std / radius, but for recalibration;
    `whitening` releases coordinates, `intervals` standard errors, if they are asked for.
    """

    phases: tuple[ClippedPhase, ...]
    shares: Mapping[str, tuple[int, float]] = field(hash=False)
    whitening: tuple[Step, ...]
    intervals: IntervalSteps | None = None

    def releases(self, problem: Problem, outcome: Outcome) -> Releases[None]:
        phase, *recalibration = self.phases
        # 1. Whitening; and where a quantile is, roughly.
        if problem.public_moment is not None:
            coordinates = public_coordinates(problem.public_moment)
        else:
            coordinates = yield from release_coordinates(problem.n_features, self.whitening, problem.intercept)
        curvature = math.inf
        if LOCATION in self.shares:
            place = yield from located(problem, LOCATION, *self.shares[LOCATION], phase.pure)
            problem, curvature = place.centred(problem), place.curvature
        loss = problem.loss
        if not loss.smooth:  # smoothed over a width that falls with the noise
            loss = smoothed(loss, min(max(phase.noise_ratio, 0.02), 0.2) * problem.typical_prediction)
        if math.isinf(curvature):
            curvature = constants.TYPICAL_CURVATURE * min(loss.curvature, 4 * problem.typical_curvature)
        # 2. to 4. Burn-in, curvature, averaged steps.
        start, axes = coordinates.from_weights(problem.start), Axes.of(coordinates, problem.intercept)
        run = Run(problem, loss, coordinates, phase, axes)
        state = run.begin(start, min(curvature, loss.curvature))
        state, average = yield from (self._fast if phase.fast else self._full)(run, state)
        state, average = run.settled(state, average)
        outcome.phases.append(phase.summary(state.clip, steps=phase.n_steps, curvature=state.curvature))
        # 5. Shrinkage.
        point, outcome.weight_errors = _shrunk(run, state, average, start)
        if loss.mean is not None:
            point = axes.with_mean_of(point, loss.mean, average.spread)
        # 6. Recalibration.
        affected, level_noise = state.affected, average.noise
        for few in recalibration:
            if LOCATION in self.shares:
                counted = (few.label, few.n_steps, few.noise_ratio, few.pure)
                weights = yield from recovered(problem, coordinates.to_weights(point), *counted)
                point = coordinates.from_weights(weights)
                continue
            point, last, level_noise = yield from _recalibrated(run, state, average, few, point)
            outcome.phases.append(few.summary(last.clip, steps=few.n_steps, curvature=last.curvature))
            affected += last.affected
        # What is said of the run.
        outcome.total_error = _total_error(loss, axes, point, level_noise)
        outcome.affected_users = _affected_users(affected, phase)
        if in_units(problem):
            point, outcome.target_fraction = _in_range(run, state, point)
        outcome.weights = coordinates.project(problem.domain, coordinates.to_weights(point))
        # The estimate of the excess risk: noise of the average, and what n users can show.
        square = (state.sizes.rms * run.longest(state)) ** 2
        noise = state.curvature / 2 * problem.dimension * average.noise**2
        excess = constants.WORSE * noise + square / (2 * state.curvature * phase.n_users)
        outcome.bound = min(excess, problem.loss_at_zero)
        outcome.signal = state.curvature / 2 * axes.variation(point - start) / excess
        if problem.intercept and coordinates.row_scale > constants.HIDDEN_CONSTANT:
            outcome.message = HIDDEN_ADVICE
        elif _biased(problem, phase.s, state.inverse_rows, phase.pure) and self.intervals is None:
            outcome.message = CLIPPED_ADVICE
        if self.intervals is not None:
            yield from self.intervals.refine(run, state, outcome)

    def _full(self, run: Run, state: State) -> Releases[tuple[State, Average]]:
        """Burn-in, the curvature, and the steps that are averaged: everyone is asked. So it is without delta."""
        state, _ = yield from run.steps(state, BURN_IN, *self.shares[BURN_IN])
        state = yield from run.measure(state, self.shares[CURVATURE][1])
        return (yield from run.steps(state, STEPS, *self.shares[STEPS]))

    def _fast(self, run: Run, state: State) -> Releases[tuple[State, Average]]:
        """An approach that asks each user once; more steps if the curvature shows a rare class; then as above."""
        for label in APPROACH:
            n_steps, ratio = self.shares[label]
            if label in (EARLY_CURVATURE, CURVATURE):
                state = yield from run.measure(state, ratio, label)
            else:
                state, _ = yield from run.steps(state, label, n_steps, ratio)
        for label in (FLAT_STEPS, BURN_IN, STEPS):
            if label != FLAT_STEPS or (label in self.shares and run.is_flat(state)):
                state, average = yield from run.steps(state, label, *self.shares[label])
        return state, average


def _shrunk(run: Run, state: State, average: Average, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The average, its entries along the axes shrunk to what of them is signal; and the weights' errors by noise."""
    axes, walk = run.axes, math.sqrt(state.walk)
    # What a step along each axis (columns) changes of the effect of a unit of each column (rows), or only its own.
    basis, units = run.coordinates.basis, unit_effects(run, state)
    along = np.abs(basis if basis.ndim == 1 or axes.rotation is None else basis @ axes.rotation)
    effects = along * (units if along.ndim == 1 else units[:, None])
    one_unit = 1 / (effects if effects.ndim == 1 else effects[: len(effects) - (axes.level > 0)].max(axis=0))
    loss = run.problem.loss  # where large errors count linearly, gradients far off say nothing of curvatures
    linear = not loss.classifies and loss.lipschitz(1.0, 1.0, 1.0) == loss.lipschitz(1.0, 2.0, 2.0)
    visits = state.visits[constants.FAR_STEPS if linear else 0 :]
    curved, relative = curved_along(axes, visits, state.visits[0][0], state.curvature, one_unit, walk)
    noises = np.minimum(average.noise / np.minimum(relative, 1.0), math.hypot(average.noise, walk))
    errors = effects * noises if effects.ndim == 1 else np.sqrt(effects**2 @ noises**2)
    if run.coordinates.scales is None:  # so rough coordinates are curved unevenly for no other reason
        curved, relative = axes.known**4, np.ones_like(relative)
    shrunk = axes.shrunk(average.point - start, average.noise, walk, curved, relative, one_unit)
    return np.asarray(start + shrunk), errors


def _recalibrated(
    run: Run, state: State, before: Average, phase: ClippedPhase, point: np.ndarray
) -> Releases[tuple[np.ndarray, State, float]]:
    """The point moved along itself and along the intercepts, as far as the change stands out of its noise.

    What was found is off by noise, by what clipping does, at most a part of typical predictions, and by what was
    shrunk too much: more is not expected of a change that has much noise itself. Also how the steps ended, and the std
    of their average.
    """
    problem, coordinates = run.problem, run.coordinates
    columns = [point]
    if problem.intercept:
        columns = [*np.kron(np.eye(problem.loss.n_outputs), coordinates.constant), point]
    directions, lengths = np.linalg.qr(np.column_stack(columns))
    clear = np.abs(np.diag(lengths)) > 1e-9 * np.linalg.norm(point)  # not where all but the intercept was shrunk to 0
    directions = directions[:, clear | (np.arange(len(clear)) == 0)]
    start, few = directions.T @ point, Run(problem, run.loss, coordinates, phase, run.axes, directions)
    last = few.begin(start, state.curvature, state.scale, state.inverse_rows)
    burn_in = phase.n_steps // 4
    last, _ = yield from few.steps(last, RECALIBRATION, burn_in, phase.noise_ratio)
    last, average = yield from few.steps(last, RECALIBRATION, phase.n_steps - burn_in, phase.noise_ratio)
    change, clipping = average.point - start, constants.CLIPPING * problem.typical_prediction * state.scale
    most = before.noise**2 + clipping**2 + (directions.T @ (before.point - point)) ** 2
    signal = np.minimum(np.maximum(change**2 - average.noise**2, 0.0), most)
    return point + directions @ (change * signal / (signal + average.noise**2)), last, average.noise


# --- what is reported of a run ----------------------------------------------------------------------------------------


def _in_range(run: Run, state: State, point: np.ndarray) -> tuple[np.ndarray, float]:
    """The point, all predictions moved to where their mean is one that targets can have; and `target_fraction`.

    That is which part of their declared range nearly all targets lie within: three times residuals and predictions'
    spread. Gradients show residuals: of m rows they are shorter by sqrt(m), if a user's residuals are independent.
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
    return mean_curvature(loss.mean, level, variance) * noise * axes.level / mean if mean > 0 else math.nan


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
    together = alike(1 / max(state.inverse_rows, 1e-3), constants.SIMILARITY)
    residual = state.sizes.rms * run.longest(state) / math.sqrt(problem.dimension * together)
    return np.asarray(units * state.curvature / residual)


def _affected_users(seen: tuple[tuple[float, float], ...], phase: ClippedPhase) -> AffectedUsers:
    """The fraction of affected users and its interval: of what was released of it, weighed by its precision."""
    fractions, errors = np.array(seen).T
    weights = errors**-2 / (errors**-2).sum()
    mean, q = float(weights @ fractions), phase.sampling_probability
    of_samples = min(max(mean, 0.0), 1.0) * (1 - q) / phase.users_a_step  # variance of a fraction by who is drawn
    std = math.sqrt(weights**2 @ (errors**2 + of_samples))
    return AffectedUsers.of(mean, (constants.LAPLACE_QUANTILE if phase.pure else constants.QUANTILE) * std)
