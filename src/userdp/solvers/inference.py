"""Standard errors: one Newton step from what whitened-clip found, whose noise and spread are known.

What the solver finds is shrunk, clipped and perhaps not at the optimum: fine for predictions, not for intervals. So a
fraction of the budget is kept for a few releases, in the coordinates u that the solver whitened (weights are B u):

1. Curvature: how long users' matrices of the loss's second derivative are, then their mean H at the found point u0.
2. Gradient: the mean g of users' gradients there, with a clip that hardly ever acts, and how many it acted on; and once
   more at u1, with a wider clip if the first acted. u1 is u0 - H^-1 g as far as that stands out of its noise: errors of
   H act on the distance from the optimum. Weights become the mean of both u - H^-1 g, by their precision: to second
   order in that distance they do not depend on where u0 was.
3. Spread: the mean over users of the squares of their gradients at the new point, the "meat" M of a sandwich by users.

Curvatures of a rare class, or of counts, change with the mean prediction, as the loss says (`_curvature_at`): steps end
where the gradient is 0 if it is so, and H is that of the point which is reached.

The covariance of B^-1 weights is H^-1 (s^2 I + E) H^-1, from noise, and H^-1 M H^-1 / n, from sampling users. s is the
noise of the gradient, exactly known; E = t/2 (|v|^2 I + v v') what noise of variance t in H adds to the mean step v; a
clip that acted adds what it may have cost. Noisy matrices are drawn towards what they are expected to be, the identity
and a multiple of H, the more the noisier they are (James and Stein), and are positive: eigenvalues are raised, never
lowered.

Weights that noise hides are put at their posterior mean, so that no absurd coefficient predicts; intervals are about
the estimates themselves. Where noise or the steps move predictions to where the loss is curved otherwise, standard
errors are widened by as much as curvatures change; if that is more than threefold weights stay those that the solver
found. There are no standard errors if H is seen to be too rough, or where the loss is flat.

docs/intervals.md has the coverage that was measured, docs/proofs.md, section 31, what is proven.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from userdp.losses import known
from userdp.privacy.accounting import (
    REPLACE_ONE,
    Budget,
    BudgetExceeded,
    Cost,
    epsilon_at,
    gaussian_multiplier,
    least_enough,
)
from userdp.privacy.clip import Clip
from userdp.privacy.plan import Plan, Step
from userdp.solvers.descent import Run, State
from userdp.solvers.planner import AUTO, Option, two_digits
from userdp.solvers.problem import Problem
from userdp.solvers.shrinkage import Axes, mean_curvature
from userdp.solvers.solver import Outcome, Releases, Request, Uncertainty, share_multiplier
from userdp.solvers.whitened_clip import WhitenedClip, unit_effects
from userdp.solvers.whitening import block_of
from userdp.statistics.gradients import ClippedGradient, MeanGradient, RowWeights
from userdp.statistics.moments import symmetric
from userdp.statistics.spreads import CurvatureMatrix, CurvatureSize, GradientSquare

SIZE, CURVATURE, SPREAD = "interval curvature size", "interval curvature", "interval spread"
GRADIENTS = ("interval gradient 1", "interval gradient 2")

# Numbers: "measured" in docs/intervals.md (benchmarks/intervals.py), "chosen" with that in view. None affects privacy.
# Noise of a coefficient, in log odds, logarithms of counts, or units of what a typical residual moves predictions by,
# from which on it is unresolved: an error of 0.15 is 2.5 standard deviations. Derived; benchmarks/coefficients.py.
RESOLVED = 0.06
DEFAULT_FRACTION = 0.5  # of the budget: the rest is for coming near. Measured.
_PARTS = {SIZE: 0.03, CURVATURE: 0.27, GRADIENTS[0]: 0.15, GRADIENTS[1]: 0.4, SPREAD: 0.15}  # of the releases. Chosen.
_LOSSES, _MOST_WEIGHTS = ("logistic", "squared", "poisson"), 200  # those whose coverage was measured
# Relative error of the curvature's eigenvalues from which on intervals missed; and once matrices were seen: up to there
# 97% to 100% were covered. Measured.
_MOST_ROUGH, _MOST_ROUGH_AFTER = 0.4, 1.0
# Logarithm by which curvatures may change where noise or the steps move predictions. Intervals covered 94% to 98% up to
# the first; beyond 85% to 92% as they are, and 96% to 100% once widened by it (benchmarks/rare_intervals.py). From the
# second on the steps say less than what they began from.
_FARTHEST, _FARTHEST_STEPPED = 0.6, 1.2
_ENOUGH = 0.75  # of that, where so many users would do: chance hardly ever adds more than the rest. Measured.
_LEAST_STEP = 0.25  # of a step's square that is taken to be none of its noise. Chosen (32a4050).
# Before lengths of curvature matrices are seen: the mean of 1 / rows that is planned for, however many are kept; how
# alike a user's rows are; the longest matrix / the usual one. Chosen (01c8ba7).
_PLANNED_INVERSE_ROWS, _SIMILARITY, _WIDE = 0.2, 0.1, 2.5
_SHARE = 0.5  # of a matrix's usual length that its trace gets as a number of its own. Chosen (01c8ba7).
# Of sizes of matrices: deviations of noise, and fraction of users, that count as there; the longest matrix that is not
# clipped / the largest size that is seen. Chosen (01c8ba7, 6b7c28a).
_SEEN, _RARE, _BEYOND = 4.0, 0.003, 1.4
_ROOM = 3.5  # by which rows may be longer than usual, whitened, before they count less. Measured: "heavy" tails.
# Users that the gradient's clip may act on, about, in units of the noise of such a count; the mark that counts them
# over the clip; the most by which a clip that acted gets wider; deviations of noise in the number of clipped users that
# are taken for none; the mean fraction of its length that a clipped gradient may have lost. Chosen (32a4050).
_TAIL, _MARK, _WIDER, _HIDDEN, _SHORT = 0.5, 0.3, 4.0, 2.0, 0.5
_LEAST_CURVATURE = 0.05  # least eigenvalue / mean one. Chosen (01c8ba7).
_LONGEST, _PLACES = 3.0, 61  # of a Newton step, along which curvatures change, and the grid. Chosen (32a4050).
# How often, and by how much, the solver's budget is lowered until both fit; least curvature that steps are divided by.
_TRIES, _LESS, _FLATTEST = 20, 1 - 1e-6, 1e-6

ALIKE = "users' rows are fewer, or more alike, than was planned for"
WIDENED = (
    "Standard errors are widened by a factor of {:.1f}, because noise is large for how curved the loss is, as where a "
    "class, or what is counted, is rare. With about {:,} such users they would not be."
)
FLAT = (
    "There are no standard errors: predictions are where the loss is flat, as at max_count, or where noise led them. "
    "Raise max_count, if it is low; or take more users, or a larger epsilon."
)
CUT_ADVICE = "There are no standard errors: the weights reached the limit of domain_radius. Raise it, or leave it out."


@dataclass(frozen=True)
class IntervalSteps:
    """The releases of the module, of all users."""

    size: Clip
    curvature: Clip
    gradients: tuple[Clip, Clip]
    spread: Clip

    @staticmethod
    def of(n_users: int, n_features: int, mu_squared: float, neighbours: str = REPLACE_ONE) -> IntervalSteps:
        """Those that together cost this mu^2."""
        block = block_of(n_features * (n_features + 1) // 2 + 1)
        of = {label: share_multiplier(1 / math.sqrt(mu_squared), part) for label, part in _PARTS.items()}
        acute = (SIZE, CURVATURE, SPREAD)
        size, curvature, spread = (
            Clip(n_users, of[label], block=block, acute=True, neighbours=neighbours) for label in acute
        )
        first, second = (Clip(n_users, of[label], neighbours=neighbours) for label in GRADIENTS)
        return IntervalSteps(size, curvature, (first, second), spread)

    @property
    def steps(self) -> tuple[Step, ...]:
        mechanisms = (self.size, self.curvature, *self.gradients, self.spread)
        return tuple(Step(label, 0, mean.n_vectors, mean) for label, mean in zip(_PARTS, mechanisms, strict=True))

    def roughness(self, n_features: int, inverse_rows: float) -> float:
        """Relative error of the curvature's eigenvalues by noise, about, if the mean of 1 / rows per user is this."""
        usual = _usual_length(n_features, inverse_rows)
        entries = n_features * (n_features + 1) // 2 + 1
        return self.curvature.noise_std(_WIDE * math.hypot(1, _SHARE) * usual, entries) * math.sqrt(n_features)

    def refine(self, run: Run, state: State, outcome: Outcome) -> Releases[None]:
        """Replace what was found by the Newton steps from it, with their uncertainty, if that can be estimated."""
        problem, coordinates, basis = run.problem, run.coordinates, run.coordinates.basis
        curvature_at = _curvature_at(run)
        weighing = RowWeights(basis, math.sqrt(problem.n_features) + _ROOM)

        def gradient_at(weights: np.ndarray) -> MeanGradient:
            return MeanGradient(run.loss, weights, basis, row_weights=weighing)

        curved, error, rough = yield from self._curvature(run, state, gradient_at(outcome.weights))
        penalty = (basis.T * (problem.l2 * problem.penalised(np.ones(problem.n_features)))) @ basis
        point = before = coordinates.from_weights(outcome.weights)
        start, clip = curvature_at(point), self._clip(run, state, weighing.longest)
        longest = weighing.longest * problem.lipschitz / problem.row_norm
        points, steps, noises, clips, beyond, moved = [], [], [], [], [], 1.0
        for label, mechanism in zip(GRADIENTS, self.gradients, strict=True):
            weights = coordinates.to_weights(point)
            at = gradient_at(weights)
            gradient, noise, fraction = yield from _gradient(label, mechanism, problem, at, clip)
            pull = coordinates.of_gradient(problem.l2 * problem.penalised(weights))
            inverse = np.linalg.inv(curvature_at(point) / start * curved + penalty)
            step = inverse @ (gradient + pull)
            steps.append(_length(curvature_at, point, step) * step)
            points.append(point - steps[-1])
            noises.append(noise)
            clips.append(clip)
            beyond.append(fraction)
            if len(points) == 1:
                moved = max(0.0, 1 - noise**2 * float(np.sum(inverse**2)) / float(step @ step))
                point = point - moved * steps[-1]
                clip = min(_wider(fraction, noise, clip) * clip, longest)
        cuts = _cuts(np.array(clips), np.array(beyond), np.array(noises))
        parts = 1 / (np.square(noises) + np.square(cuts))
        parts = parts / parts.sum()
        point, step = parts @ points, parts @ steps
        weights, change = coordinates.to_weights(point), curvature_at(point) / start
        inverse = np.linalg.inv(change * curved + penalty)
        known = float(np.square(parts) @ np.square(noises))  # variance of the mean gradient's noise
        meat = yield from self._spread(gradient_at(weights), clip, curved)
        # Of the square of the mean step, what its noise alone adds to that of the distance which errors of H act on.
        mere = (known - 2 * moved * float(np.prod(parts)) * noises[0] ** 2) * float(np.sum(inverse**2))
        length = float(step @ step)
        wrong = (change * error) ** 2 / 2 * max(1 - mere / length, _LEAST_STEP)
        around = known + float(parts @ cuts) ** 2 + wrong * length
        noisy = around * np.eye(len(step)) + wrong * np.outer(step, step)
        uncertainty = Uncertainty(noisy, meat / self.spread.n_vectors).mapped(basis @ inverse)
        far = _far(run.axes, curvature_at, point, point - before, inverse @ noisy @ inverse)
        if not problem.domain.contains(weights):
            outcome.weights = coordinates.project(problem.domain, weights)
            outcome.message = outcome.message or CUT_ADVICE
            return
        if min(start, curvature_at(point)) <= _FLATTEST * run.loss.curvature:
            outcome.message = FLAT
        elif rough > _MOST_ROUGH_AFTER:
            outcome.message = _none(ALIKE, self.spread.n_vectors * rough / _MOST_ROUGH)
        else:
            if max(far) > _FARTHEST:
                factor = math.exp(max(far))
                uncertainty = uncertainty.widened(factor)
                outcome.message = WIDENED.format(factor, two_digits(self.spread.n_vectors * _more(*far)))
            units = unit_effects(run, state)
            outcome.weight_errors = units * np.sqrt(np.diag(uncertainty.noise))
            hidden = outcome.weight_errors > RESOLVED
            hidden[len(hidden) - problem.intercept :] = False
            if max(far) < _FARTHEST_STEPPED:
                kept = _expected(weights, uncertainty.noise, units, hidden)
                outcome.weights = coordinates.project(problem.domain, kept)
            outcome.uncertainty = replace(
                uncertainty,
                gradient_noise=known * coordinates.moment,
                shrunk=weights - outcome.weights if hidden.any() or max(far) >= _FARTHEST_STEPPED else None,
            )

    def _curvature(self, run: Run, state: State, at: MeanGradient) -> Releases[tuple[np.ndarray, float, float]]:
        """The loss's curvature in these coordinates, the std of the error of its entries, and its roughness."""
        size, usual = run.problem.n_features, _usual_length(run.problem.n_features, state.inverse_rows)
        statistic = CurvatureMatrix(at, _SHARE * usual / size, run.difference)
        reference = math.hypot(1, _SHARE) * usual * state.curvature
        frequencies = yield Request(SIZE, CurvatureSize(statistic, reference), 1.0)
        seen = frequencies > max(_SEEN * self.size.noise_std(1.0, frequencies.size), _RARE)
        largest = int(np.flatnonzero(seen)[-1]) if seen.any() else int(np.argmax(frequencies))
        radius = _BEYOND * reference * float(CurvatureSize.SIZES[largest])
        # At most what noise allows, or the plan counted on: users of a rare column have far longer matrices, and with a
        # larger epsilon more of them are seen. Clipping them costs less than noise of their length.
        unit = self.curvature.noise_std(1.0, size * (size + 1) // 2 + 1)
        radius = min(radius, max(_MOST_ROUGH * state.curvature / (unit * math.sqrt(size)), _WIDE * reference))
        released = yield Request(CURVATURE, statistic, radius)
        noise = self.curvature.noise_std(radius, released.size)
        matrix, trace = _with_trace(released, size, statistic.share)
        mean = max(trace / size, noise)
        matrix, rough = matrix + (mean - np.trace(matrix) / size) * np.eye(size), noise * math.sqrt(size) / mean
        drawn, kept = _drawn(matrix, mean * np.eye(size), noise, least=1 / (1 + rough**2))
        return _raised(drawn, _LEAST_CURVATURE * mean), noise * math.sqrt(kept), rough

    def _spread(self, gradient: MeanGradient, clip: float, curved: np.ndarray) -> Releases[np.ndarray]:
        """The mean square of users' gradients, positive semi-definite."""
        radius = clip**2 * math.hypot(1, _SHARE)
        released = yield Request(SPREAD, GradientSquare(gradient, _SHARE), radius)
        noise = self.spread.noise_std(radius, released.size)
        matrix, trace = _with_trace(released, len(curved), _SHARE)
        trace = max(trace, noise)
        target = trace / np.trace(curved) * curved
        matrix = matrix + (trace - np.trace(matrix)) / len(curved) * np.eye(len(curved))
        drawn, _ = _drawn(matrix, target, noise, least=1 / (1 + (noise * len(curved) / trace) ** 2))
        return _raised(drawn, 0.0)

    def _clip(self, run: Run, state: State, longest: float) -> float:
        """A length that few gradients exceed: fewer than noise lets be counted; none, if slopes are bounded so."""
        multiplier = sum(mean.noise_multiplier**-2 for mean in self.gradients) ** -0.5
        rare = min(_TAIL * multiplier / self.spread.n_vectors, 0.05)
        multiple = math.sqrt(2 * math.log(2 / rare)) * (1 + 1 / run.problem.n_features)
        likely = max(multiple * run.gradient_size(state), run.exceeded_by(state, rare, longest))
        return min(likely, longest * run.problem.lipschitz / run.problem.row_norm)


def _expected(weights: np.ndarray, noise: np.ndarray, unit_effects: np.ndarray, hidden: np.ndarray) -> np.ndarray:
    """Posterior means of weights with noise of this covariance: the hidden effects are N(0, 1), others flat, before.

    So an intercept moves with a hidden weight whose column lies far from 0, and predictions there stay as they are.

    >>> noise = np.array([[1e4, -5e3], [-5e3, 2.5e3 + 1e-4]])
    >>> _expected(np.array([200.0, -100.0]), noise, np.ones(2), np.array([True, False])).round(2).tolist()
    [0.02, -0.01]
    """
    units, both = unit_effects[hidden], noise[:, hidden] * unit_effects[hidden]
    away = np.linalg.solve(np.eye(len(units)) + units[:, None] * both[hidden], units * weights[hidden])
    return np.asarray(weights - both @ away)


def _none(why: str, enough: float) -> str:
    """What a run without standard errors says."""
    rounded = round(enough, 1 - math.floor(math.log10(enough)))
    return (
        f"There are no standard errors, intervals would not cover what they should: {why}. About {rounded:,.0f} such "
        "users would do, or a larger epsilon, fewer features or a larger inference fraction."
    )


def _usual_length(n_features: int, inverse_rows: float) -> float:
    """Frobenius norm of a user's second moment in whitened coordinates, root mean square, about."""
    together = inverse_rows + _SIMILARITY * (1 - inverse_rows)
    return n_features * math.sqrt(1 / n_features + together)


def _gradient(
    label: str, mechanism: Clip, problem: Problem, gradient: MeanGradient, clip: float
) -> Releases[tuple[np.ndarray, float, float]]:
    """The loss's gradient, the std of its noise, and the fraction of users that the clip acted on, with noise."""
    statistic = ClippedGradient(gradient, clip, 2 * clip, _MARK * clip)
    released = yield Request(label, statistic, statistic.radius)
    noise = mechanism.noise_std(statistic.radius, released.size)
    mean, sizes, _ = statistic.told(released)
    return mean, noise, float(sizes[0])


def _wider(beyond: float, noise: float, clip: float) -> float:
    """How much wider a clip should be, if it is seen to act.

    Of lengths with a long tail, whose square's mean just exists, as many exceed the wider clip as noise hides.
    """
    unseen = noise / (_MARK * clip)  # a fraction of the users
    return min(math.sqrt(beyond / unseen), _WIDER) if beyond > _HIDDEN * unseen else 1.0


def _cuts(clips: np.ndarray, beyond: np.ndarray, noises: np.ndarray) -> np.ndarray:
    """What the clips may have taken off both gradients. The same clip took as much off both: together they show it."""
    unseen = noises / (_MARK * clips)
    if clips[0] == clips[1]:
        precision = unseen**-2
        beyond, unseen = np.full(2, precision @ beyond / precision.sum()), np.full(2, precision.sum() ** -0.5)
    return np.asarray(_SHORT * np.maximum(0.0, beyond - _HIDDEN * unseen) * clips)


def _curvature_at(run: Run) -> Callable[..., float]:
    """How curved the loss is at a point, but for a factor, as far as the mean and spread of predictions show.

    With a `shift` of all predictions. Never 0, as it is where all counts are beyond the largest.
    """
    axes, mean = run.axes, run.loss.mean
    if mean is None or not axes.level:
        return lambda point, shift=0.0: 1.0

    def curvature(point: np.ndarray, shift: float = 0.0) -> float:
        level, square = axes.mean_and_square(point)
        return max(mean_curvature(mean, level + shift, square - level**2), _FLATTEST * run.loss.curvature)

    return curvature


def _length(curvature_at: Callable[[np.ndarray], float], point: np.ndarray, step: np.ndarray) -> float:
    """How much of a Newton step leads to where the gradient is 0, if curvatures change on the way as was released.

    1 for a constant one; where it falls towards the optimum, as from a class that is found too frequent, up to
    `_LONGEST`.
    """
    places = np.linspace(0.0, _LONGEST, _PLACES)
    along = np.array([curvature_at(point - place * step) for place in places]) / curvature_at(point)
    passed = np.append(0.0, np.cumsum((along[1:] + along[:-1]) / 2 * np.diff(places)))
    return float(np.interp(1.0, passed, places))


def _far(
    axes: Axes, curvature_at: Callable[..., float], point: np.ndarray, away: np.ndarray, noise: np.ndarray
) -> tuple[float, float]:
    """By how much curvatures change, about, where noise of this covariance, or the steps, move predictions; logarithms.

    Root mean square of predictions, as far as rows are known to vary, times how much a shift by 1 changes curvatures.
    """
    variances, moved = np.diag(axes.along(axes.along(noise).T)), axes.along(away)[0]
    change = max(abs(math.log(curvature_at(point, shift) / curvature_at(point))) for shift in (-1.0, 1.0))
    return change * math.sqrt(float(axes.known @ variances)), change * math.sqrt(float(axes.known @ moved**2))


def _more(noise: float, steps: float) -> float:
    """How many times as many users would do, if noise and steps change curvatures by so much.

    With r times as many noise is 1/r of it, and what the solver is off beside it, as it shrinks, about 1/sqrt(r).
    """
    most, off = (_ENOUGH * _FARTHEST) ** 2, max(0.0, steps**2 - noise**2)
    return (off + math.sqrt(off**2 + 4 * most * noise**2)) / (2 * most)


def _with_trace(released: np.ndarray, size: int, share: float) -> tuple[np.ndarray, float]:
    """A released matrix, and its trace by both releases of it, each by its precision."""
    matrix, alone = symmetric(released[:-1]), float(released[-1]) / share
    of_matrix = 1 / (1 + size * share**2)
    return matrix, of_matrix * float(np.trace(matrix)) + (1 - of_matrix) * alone


def _drawn(matrix: np.ndarray, target: np.ndarray, noise: float, least: float) -> tuple[np.ndarray, float]:
    """A noisy matrix drawn towards a target of the same trace, and which part of the difference, at `least`, was kept.

    Entries have noise of this std on the diagonal, over sqrt(2) beside it: in the Frobenius norm that is as many
    numbers as the upper triangle has, less the trace.
    """
    numbers = len(matrix) * (len(matrix) + 1) // 2 - 1
    apart = float(np.sum((matrix - target) ** 2))
    kept = max(least, 1 - max(numbers - 2, 0) * noise**2 / apart) if apart > 0 else 1.0
    return target + kept * (matrix - target), kept


def _raised(matrix: np.ndarray, least: float) -> np.ndarray:
    """The same with eigenvalues of at least this."""
    values, axes = np.linalg.eigh(matrix)
    return np.asarray((axes * np.maximum(values, least)) @ axes.T)


# --- planning ---------------------------------------------------------------------------------------------------------


def with_intervals(
    problem: Problem,
    n_users: int,
    rows_per_user: int,
    budget: Budget,
    fraction: float,
    choose: Callable[[Budget], Option],
) -> Option:
    """The option that `choose` finds for the rest of the budget, with a fraction of it for standard errors.

    All of it is one plan, certified for the budget. Refuses, before anything is spent, what intervals were not measured
    to cover: other solvers and losses, no delta, and too few users, with a number that would do.
    """
    plain = problem.loss.unweighted or problem.loss
    if plain.name.split("(")[0] not in _LOSSES or known(plain) is None:
        raise ValueError(
            f"Expected the logistic loss of two classes, squared errors or counts for standard errors, got the "
            f"{problem.loss.name} loss: leave inference out. Nothing was spent."
        )
    if problem.n_features > _MOST_WEIGHTS:
        raise ValueError(
            f"Expected at most {_MOST_WEIGHTS} weights for standard errors, got {problem.n_features}: leave inference "
            "out, or features. Nothing was spent."
        )
    if budget.delta == 0:
        raise BudgetExceeded(
            "Expected delta > 0 for standard errors: leave inference or delta=0 out. Nothing was spent."
        )
    mu_squared = float((1 - 1e-8) / gaussian_multiplier(budget) ** 2)

    def of(n: int) -> IntervalSteps:
        return IntervalSteps.of(n, problem.n_features, fraction * mu_squared, budget.neighbours)

    planned = of(n_users)
    if _too_rough(problem, planned, rows_per_user):
        more = least_enough(lambda n: not _too_rough(problem, of(n), rows_per_user), n_users)
        remedy = "Far more users" if more is None else f"About {more:,} users would do"
        raise BudgetExceeded(
            f"Expected more than n_users={n_users} for standard errors of {problem.n_features} weights at "
            f"epsilon={budget.epsilon:g}: intervals would not cover what they should. {remedy}, or a larger epsilon, "
            "fewer features or a larger inference fraction. Nothing was spent.",
            enough_users=more,
        )
    left = replace(budget, epsilon=epsilon_at(Cost(gaussian=(1 - fraction) * mu_squared), budget.delta))
    for _ in range(_TRIES):
        option = choose(left)
        if (option.solver, option.mode) != (AUTO, "calibrated"):
            raise ValueError(
                f'Expected solver="auto" for standard errors, got {option.solver!r}, mode={option.mode!r}: leave them, '
                "or inference, out. Nothing was spent."
            )
        plan = Plan(n_users, (*option.plan.certified.steps, *planned.steps))
        try:
            plan.certify(budget)
        except BudgetExceeded:  # samples compose a little worse than Gaussian noise does
            left = replace(left, epsilon=_LESS * left.epsilon)
            continue
        schedule = option.plan.schedule
        assert isinstance(schedule, WhitenedClip)
        n_gradients = option.plan.n_gradients + len(_PARTS) * n_users * rows_per_user
        schedule = replace(schedule, intervals=planned)
        longer = replace(option.plan, certified=plan, schedule=schedule, n_gradients=n_gradients)
        return replace(option, planned=longer)
    raise BudgetExceeded(
        "Expected a budget with room for standard errors besides samples of users: leave max_gradients out. Nothing "
        "was spent."
    )


def _too_rough(problem: Problem, planned: IntervalSteps, rows_per_user: int) -> bool:
    return planned.roughness(problem.n_features, max(1 / rows_per_user, _PLANNED_INVERSE_ROWS)) > _MOST_ROUGH
