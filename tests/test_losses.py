"""Losses: slopes are derivatives, values are convex, constants hold and are tight, extremes are harmless."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
from cases import (
    ALL_LOSSES,
    CLASSIFICATION,
    MULTINOMIAL,
    ONE_VS_REST,
    SCALAR_LOSSES,
    name,
    python_custom,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st

from userdp import losses
from userdp.statistics.smoothing import shifts

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of overflows and NaN, which are meant

scalar = pytest.mark.parametrize("loss", SCALAR_LOSSES, ids=name)
number = st.floats(-4.0, 4.0)
label = st.sampled_from([-1.0, 1.0])
ABSOLUTE = losses.absolute.value
vector = st.lists(st.floats(-30.0, 30.0), min_size=4, max_size=4).map(np.array)


def target_of(loss, number, label):
    return label if loss in CLASSIFICATION else number


@scalar
@given(p=number, t=number, s=label)
def test_slope_is_the_derivative_of_the_value(loss, p, t, s):
    t, h = target_of(loss, t, s), 1e-4
    difference = (loss.value(p + h, t) - loss.value(p - h, t)) / (2 * h)
    # A convex function's difference quotient lies between its slopes at both ends, jumps of the slope included.
    assert loss.slope(p - h, t) - 1e-9 <= difference <= loss.slope(p + h, t) + 1e-9


@scalar
@given(p=number, q=number, t=number, s=label)
def test_value_lies_above_every_tangent(loss, p, q, t, s):
    t = target_of(loss, t, s)
    assert loss.value(q, t) >= loss.value(p, t) + loss.slope(p, t) * (q - p) - 1e-12
    assert loss.value(p, t) >= -1e-15


@scalar
@given(p=number, q=number, t=number, s=label)
@example(p=-4.0, q=4.0, t=4.0, s=1.0)
@example(p=4.0, q=3.9, t=-4.0, s=-1.0)
@example(p=0.01, q=-0.01, t=0.0, s=1.0)
@example(p=0.8, q=0.9, t=0.8, s=1.0)
def test_constants_bound_slope_and_curvature(loss, p, q, t, s):
    t, row_norm = target_of(loss, t, s), 3.0
    lipschitz = loss.lipschitz(row_norm, target_bound=4.0, weight_norm=4.0 / row_norm)
    assert abs(loss.slope(p, t)) * row_norm <= lipschitz * (1 + 1e-12)
    if loss.smooth:
        change = abs(loss.slope(p, t) - loss.slope(q, t)) * row_norm
        assert change <= loss.smoothness(row_norm) * abs(p - q) / row_norm * (1 + 1e-9) + 1e-12


@scalar
def test_constants_are_tight(loss):
    predictions = np.arange(-4096, 4097) / 1024.0
    targets = [-1.0, 1.0] if loss in CLASSIFICATION else [-4.0, 0.0, 4.0]
    slopes = np.array([loss.slope(predictions, np.full(len(predictions), t)) for t in targets])
    bound = loss.lipschitz(1.0, target_bound=4.0, weight_norm=4.0)
    assert 0.98 * bound <= np.abs(slopes).max() <= bound
    if loss.smooth:
        steepest = np.abs(np.diff(slopes)).max() * 1024.0
        assert 0.98 * loss.smoothness(1.0) <= steepest <= loss.smoothness(1.0) * (1 + 1e-9)
    else:
        assert loss.smoothness(1.0) == math.inf


@given(p=vector, q=vector, target=st.integers(0, 3))
@settings(max_examples=300)
@example(p=np.array([30.0, -30, -30, -30]), q=np.zeros(4), target=1)
@example(p=np.array([0.01, -0.01, -30, -30]), q=np.array([-0.01, 0.01, -30, -30]), target=0)
def test_multinomial_is_convex_and_its_constants_hold(p, q, target):
    loss, slope = MULTINOMIAL, MULTINOMIAL.slope(p, target)
    assert loss.value(q, target) >= loss.value(p, target) + slope @ (q - p) - 1e-10
    assert np.linalg.norm(slope) * 3.0 <= loss.lipschitz(row_norm=3.0) * (1 + 1e-12)
    change = np.linalg.norm(slope - loss.slope(q, target)) * 3.0
    assert change <= loss.smoothness(row_norm=3.0) * np.linalg.norm(p - q) / 3.0 * (1 + 1e-9) + 1e-12


def test_multinomial_constants_are_tight():
    loss = MULTINOMIAL
    wrong_and_sure = np.linalg.norm(loss.slope(np.array([30.0, 0.0, 0.0, 0.0]), 1.0))
    assert wrong_and_sure > 0.999 * loss.lipschitz(1.0)
    tie = np.array([1e-4, -1e-4, -40.0, -40.0])
    steepness = np.linalg.norm(loss.slope(tie, 0.0) - loss.slope(tie[[1, 0, 2, 3]], 0.0))
    assert steepness / (2e-4 * math.sqrt(2)) > 0.999 * loss.smoothness(1.0)


def test_multinomial_agrees_with_jax():
    jax = pytest.importorskip("jax")

    def value(p, target):
        return jax.nn.logsumexp(p) - p[target]

    for seed in range(20):
        rng = np.random.default_rng(seed)
        p, target = 5 * rng.standard_normal(4).astype(np.float32), int(rng.integers(4))
        assert MULTINOMIAL.value(p.astype(float), target) == pytest.approx(float(value(p, target)), rel=1e-5, abs=1e-6)
        expected = np.asarray(jax.grad(value)(p, target))
        np.testing.assert_allclose(MULTINOMIAL.slope(p.astype(float), target), expected, atol=1e-6)


def test_multinomial_with_two_classes_is_logistic():
    for p in np.linspace(-50, 50, 101):
        both = np.array([0.0, p])
        assert losses.multinomial(2).value(both, 1.0) == pytest.approx(losses.logistic.value(p, 1.0), rel=1e-12)
        assert losses.multinomial(2).slope(both, 1.0)[1] == pytest.approx(losses.logistic.slope(p, 1.0), rel=1e-12)


@scalar
@pytest.mark.parametrize("prediction", [1e300, -1e300, 1e20, -1e20, 0.0])
@pytest.mark.parametrize("target", [1.0, -1.0, 0.0])
def test_huge_predictions_give_no_nan(loss, prediction, target):
    value = loss.value(prediction, target)
    squares = loss in (losses.squared, losses.squared_hinge)
    assert math.isfinite(value) or (squares and value == math.inf)  # a square can leave the range
    assert math.isfinite(loss.slope(prediction, target))


@scalar
def test_nan_in_gives_nan_out(loss):
    for arguments in [(math.nan, 1.0), (0.3, math.nan), (math.nan, math.nan)]:
        assert math.isnan(loss.value(*arguments))
        assert math.isnan(loss.slope(*arguments))


def test_multinomial_extremes():
    huge = np.array([1e300, -1e300, 1e300, 0.0])
    assert MULTINOMIAL.value(huge, 0.0) == pytest.approx(math.log(2))
    np.testing.assert_allclose(MULTINOMIAL.slope(huge, 0.0), [-0.5, 0, 0.5, 0])
    for predictions, target in [(huge, 4.0), (huge, -1.0), (huge, 0.5), (huge, math.nan), (huge * math.nan, 1.0)]:
        assert math.isnan(MULTINOMIAL.value(predictions, target))
        assert np.all(np.isnan(MULTINOMIAL.slope(predictions, target)))


@pytest.mark.parametrize("loss", CLASSIFICATION, ids=name)
def test_zero_one_labels_mean_minus_one_plus_one(loss):
    for p in np.linspace(-3, 3, 13):
        assert loss.value(p, 0.0) == loss.value(p, -1.0)
        assert loss.slope(p, 0.0) == loss.slope(p, -1.0)


@pytest.mark.parametrize("loss", CLASSIFICATION, ids=name)
@pytest.mark.parametrize("target", [2.0, -2.0, 0.5, 1.0 + 1e-15, 1e-300, math.inf, -math.inf, math.nan])
def test_other_labels_are_nan(loss, target):
    for p in (-3.0, -1.0, 0.0, 1.0, 3.0, 1e300):  # beyond the margin too, where the slope is 0
        assert math.isnan(loss.value(p, target))
        assert math.isnan(loss.slope(p, target))
        assert math.isfinite(loss.slope(p, 1.0))
        assert loss.slope(p, -0.0) == loss.slope(p, -1.0)


def test_values_at_known_points():
    assert losses.squared.value(3.0, 1.0) == 2.0
    assert losses.huber(0.5).value(3.0, 1.0) == 0.5 * (2 - 0.25)
    assert losses.hinge.value(0.25, 1.0) == 0.75
    assert losses.smoothed_hinge(0.5).value(0.0, 1.0) == 0.75
    assert losses.absolute.value(1.0, 3.0) == 2.0
    assert losses.quantile(0.9).value(0.0, 1.0) == 0.9
    assert losses.logistic.slope(0.0, 1.0) == -0.5


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_logistic_slopes_are_accurate_in_both_tails(dtype):
    z = np.linspace(-80, 80, 4001).astype(dtype)
    for target, sign in ((1.0, 1), (0.0, -1)):
        expected = [-sign / (1 + math.exp(sign * p)) for p in z.tolist()]
        found = losses.logistic.slope(z, np.full(len(z), target))
        np.testing.assert_allclose(found, expected, rtol=8 * np.finfo(dtype).eps)


# ---------------------------------------------------------------- arrays


EXTREMES = np.array([-1.7e308, -800.0, -88.8, -1.5, -1.0, -5e-324, -0.0, 0.0, 5e-324, 2e-38, 0.3, 1.0, 40.0, 709.9])
EXTREMES = np.append(EXTREMES, [1e300, math.inf, -math.inf, math.nan])
OWN = [loss for loss in ALL_LOSSES if not loss.may_raise]
OWN += [losses.multinomial(11), losses.smoothed(losses.hinge, 0.1), losses.smoothed(losses.quantile(0.8), 0.1)]
OWN += [losses.weighted(loss) for loss in (losses.logistic, losses.squared, MULTINOMIAL, losses.smoothed_hinge(0.3))]
OWN += [losses.poisson_of_exposure(4.0, 12.0), losses.poisson(8.0)]
own = pytest.mark.parametrize("loss", OWN, ids=name)
floating = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def rows_of(loss, dtype, n_rows=500, seed=0):
    """Predictions and targets: usual ones, and each extreme prediction with each extreme target."""
    rng = np.random.default_rng(seed)
    first, second = (grid.ravel() for grid in np.meshgrid(EXTREMES, EXTREMES))
    shape = (n_rows,) if loss.n_outputs == 1 else (n_rows, loss.n_outputs)
    extreme = np.repeat(first, int(np.prod(shape[1:]))).reshape(-1, *shape[1:])
    if loss.n_outputs > 1:
        extreme[:, 1:] = rng.choice(EXTREMES, extreme[:, 1:].shape)
    targets = rng.integers(-1, 4, n_rows).astype(float)
    with np.errstate(over="ignore"):
        predictions = np.concatenate([5 * rng.normal(size=shape), extreme]).astype(dtype)
    order = rng.permutation(len(predictions))
    return predictions[order], np.concatenate([targets, second])[order]


def same(one, other):
    """To the last bit, but for the signs of NaN."""
    np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(np.signbit(one[~np.isnan(one)]), np.signbit(other[~np.isnan(other)]))


@own
@floating
def test_a_row_s_result_is_of_that_row_alone_to_the_last_bit(loss, dtype):
    predictions, targets = rows_of(loss, dtype)
    order = np.random.default_rng(1).permutation(len(targets))
    for function in (loss.value, loss.slope):
        whole = function(predictions, targets)
        same(function(predictions[order], targets[order]), whole[order])
        for size in (1, 2, 3, 7, 33):
            parts = [
                function(predictions[start : start + size], targets[start : start + size])
                for start in range(0, len(targets), size)
            ]
            same(np.concatenate(parts), whole)


@own
@floating
def test_results_have_the_predictions_type_and_shape(loss, dtype):
    predictions, targets = rows_of(loss, dtype)
    value, slope = loss.value(predictions, targets), loss.slope(predictions, targets)
    assert (value.dtype, slope.dtype) == (dtype, dtype)
    assert (value.shape, slope.shape) == (targets.shape, predictions.shape)
    assert slope.flags.c_contiguous
    for i in range(5):
        np.testing.assert_array_equal(loss.value(predictions[i], targets[i]), value[i])
        np.testing.assert_array_equal(loss.slope(predictions[i], targets[i]), slope[i])


@own
def test_single_precision_gives_the_same_but_for_its_rounding(loss):
    rng = np.random.default_rng(0)
    shape = (1000,) if loss.n_outputs == 1 else (1000, loss.n_outputs)
    predictions, targets = (3 * rng.normal(size=shape)).astype(np.float32), rng.integers(0, 2, 1000).astype(float)
    for function in (loss.value, loss.slope):
        single, double = function(predictions, targets), function(predictions.astype(np.float64), targets)
        np.testing.assert_allclose(single, double, rtol=2e-6, atol=2e-6)
        assert np.all(np.isfinite(double))


@own
@floating
def test_slopes_of_any_numbers_are_bounded_or_nan(loss, dtype):
    predictions, targets = rows_of(loss, dtype)
    slopes = np.linalg.norm(loss.slope(predictions, targets).reshape(len(targets), -1).astype(np.float64), axis=1)
    nowhere = np.isnan(predictions).reshape(len(targets), -1).any(axis=1) | np.isnan(targets)
    assert np.all(np.isnan(slopes[nowhere]))
    assert np.any(np.isfinite(slopes))
    # Rates of short exposures are bounded with their weights only, and smoothing subtracts values that may be large.
    if not callable(loss.slope_bound) and not loss.name.endswith(" of exposure") and ", smoothed" not in loss.name:
        assert np.nanmax(slopes) <= loss.slope_bound * (1 + 8 * loss.n_outputs * np.finfo(dtype).eps)


# ---------------------------------------------------------------- custom losses


def test_a_custom_loss_takes_arrays_and_its_bound_may_grow():
    np.testing.assert_allclose(python_custom.slope(np.array([0.5, 2.0]), np.ones(2)), np.tanh([-0.5, 1.0]))
    assert python_custom.may_raise
    assert losses.known(python_custom) is None
    grows = losses.custom("cube", ABSOLUTE, lambda p, t: p * p, lipschitz=lambda p, t: p * p)
    assert grows.lipschitz(2.0, target_bound=1.0, weight_norm=1.5) == 2.0 * 9.0
    assert not grows.smooth


def branching(prediction, target):
    return prediction if prediction > target else -prediction


def scalar_only(prediction, target):
    return math.tanh(prediction - target)


def writing(predictions, targets):
    predictions -= targets
    return predictions


@pytest.mark.parametrize(
    ("slope", "message"),
    [
        (
            branching,
            r"the slope of the odd loss must work on arrays .* raised ValueError.* Use np\.where in place of if",
        ),
        (scalar_only, r"raised TypeError.* np\.exp and the like in place of math\.exp; or, slower, np\.vectorize"),
        (writing, r"raised ValueError: .*read-only"),
        (lambda p: p, r"raised TypeError"),
        (lambda p, t: 1.0, r"an array of 5 numbers.* got 1\.0: return one number for each row"),
        (lambda p, t: p[:3], r"an array of 5 numbers"),
        (lambda p, t: np.array(["a"] * 5)[: len(p)], r"an array of 5 numbers"),
        (lambda p, t: p / 0.0, r"finite or NaN"),
        (lambda p, t: p - p.mean(), r"computed from each row by itself"),
    ],
)
def test_functions_that_do_not_take_arrays_are_refused_with_a_remedy(slope, message):
    with pytest.raises(ValueError, match=message):
        losses.custom("odd", ABSOLUTE, slope, lipschitz=1.0)
    with pytest.raises(ValueError, match=message.replace("slope", "value")):
        losses.custom("odd", slope, ABSOLUTE, lipschitz=1.0)


def test_the_remedies_help():
    for slope in (np.vectorize(branching), np.vectorize(scalar_only), lambda p, t: np.where(p > t, p, -p)):
        loss = losses.custom("odd", ABSOLUTE, slope, lipschitz=1.0)
        assert loss.slope(np.array([0.3, -2.0]), np.zeros(2)).shape == (2,)


def test_a_custom_loss_may_give_nan():
    loss = losses.custom("nothing", ABSOLUTE, lambda p, t: p * math.nan, lipschitz=1.0)
    assert not loss.classifies


@pytest.mark.parametrize("loss", ALL_LOSSES, ids=name)
def test_losses_survive_pickling(loss):
    again = pickle.loads(pickle.dumps(loss))
    predictions = np.linspace(-1, 1, 3 * loss.n_outputs).reshape(3, -1).squeeze()
    np.testing.assert_array_equal(again.slope(predictions, np.ones(3)), loss.slope(predictions, np.ones(3)))
    assert (again.name, again.curvature) == (loss.name, loss.curvature)


def test_registry():
    assert losses.loss("logistic") is losses.logistic
    assert losses.loss("huber", threshold=2.0).slope_bound == 2.0
    assert losses.loss("multinomial", n_classes=3).n_outputs == 3
    with pytest.raises(ValueError, match=r"loss must be one of absolute, .*logistic.*squared.*got 'logit'"):
        losses.loss("logit")
    with pytest.raises(ValueError, match=r"pass losses\.multinomial\(3\)"):
        losses.loss("multinomial")
    with pytest.raises(TypeError, match="hinge loss has no parameters, got width"):
        losses.loss("hinge", width=1.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: losses.huber(-1.0), r"threshold must be .* got -1.0"),
        (lambda: losses.smoothed_hinge(math.nan), r"width must be .* got nan"),
        (lambda: losses.quantile(1.0), r"level must be .* got 1.0"),
        (lambda: losses.multinomial(1), r"n_classes must be a whole number >= 2, got 1"),
        (lambda: losses.logistic.lipschitz(0.0), r"row_norm must be .* got 0.0"),
        (lambda: losses.logistic.smoothness(math.inf), r"row_norm must be .* got inf"),
        (lambda: losses.squared.lipschitz(1.0), r"target_bound=None, weight_norm=None"),
        (lambda: losses.custom("c", ABSOLUTE, ABSOLUTE, lipschitz=-1.0), r"lipschitz must be .* got -1.0"),
        (
            lambda: losses.custom("c", ABSOLUTE, ABSOLUTE, lipschitz=1.0, smoothness=0.0),
            r"smoothness must be > 0",
        ),
    ],
)
def test_errors_name_the_value_and_the_bound(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_custom_needs_functions():
    with pytest.raises(TypeError, match="must be functions"):
        losses.custom("c", 1.0, ABSOLUTE, lipschitz=1.0)


@pytest.mark.parametrize("loss", [losses.hinge, losses.absolute, losses.quantile(0.8), losses.huber(0.5)], ids=name)
@pytest.mark.parametrize("width", [0.1, 1.0])
def test_smoothing_averages_slopes_and_stays_close(loss, width):
    smooth = losses.smoothed(loss, width)
    inner = np.linspace(-width, width, 20_001)
    for target in (0.0, 1.0):
        for prediction in (-2.0, -0.95, 0.0, 0.03, 0.97, 1.5):
            averaged = np.mean(loss.slope(prediction + inner, np.full(len(inner), target)))
            assert smooth.slope(prediction, target) == pytest.approx(averaged, abs=2e-4)
            gap = smooth.value(prediction, target) - loss.value(prediction, target)
            assert -1e-12 <= gap <= loss.slope_bound * width / 2 * (4 / 3) + 1e-12
            step = 1e-6
            change = smooth.slope(prediction + step, target) - smooth.slope(prediction, target)
            assert change / step <= smooth.curvature * (1 + 1e-6) + 1e-6
    assert not smooth.may_raise
    assert smooth.slope_bound == loss.slope_bound
    assert smooth is losses.smoothed(loss, width)
    again = pickle.loads(pickle.dumps(smooth))
    assert again.slope(0.97, 1.0) == smooth.slope(0.97, 1.0)


@pytest.mark.parametrize("loss", [losses.squared, losses.multinomial(3)], ids=name)
def test_losses_that_need_no_smoothing_say_so(loss):
    with pytest.raises(ValueError, match="Only losses of one output"):
        losses.smoothed(loss, 0.1)


@given(p=vector, q=vector, target=st.integers(0, 3))
@settings(max_examples=300)
@example(p=np.array([2.0, -2, -2, -2]), q=np.zeros(4), target=1)
def test_one_vs_rest_is_squared_hinges_and_its_constants_hold(p, q, target):
    loss, slope = ONE_VS_REST, ONE_VS_REST.slope(p, target)
    labels = [1.0 if c == target else 0.0 for c in range(4)]
    each = [
        (losses.squared_hinge.value(a, t), losses.squared_hinge.slope(a, t)) for a, t in zip(p, labels, strict=True)
    ]
    assert loss.value(p, target) == pytest.approx(sum(value for value, _ in each))
    np.testing.assert_allclose(slope, [s for _, s in each])
    assert loss.value(q, target) >= loss.value(p, target) + slope @ (q - p) - 1e-9
    assert np.linalg.norm(slope) <= loss.lipschitz(1.0, weight_norm=float(np.linalg.norm(p))) * (1 + 1e-12)
    change = np.linalg.norm(slope - loss.slope(q, target))
    assert change <= loss.smoothness(1.0) * np.linalg.norm(p - q) * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("target", [-1.0, 4.0, 0.5, math.nan, math.inf])
def test_one_vs_rest_knows_its_classes(target):
    assert math.isnan(ONE_VS_REST.value(np.zeros(4), target))
    assert np.isnan(ONE_VS_REST.slope(np.zeros(4), target)).all()


def test_poisson_is_half_of_the_deviance_up_to_the_largest_count():
    loss = losses.poisson(8.0)
    for p in np.linspace(-4, math.log(8), 25):
        for count in (0.0, 1.0, 5.0, 8.0):
            rate = math.exp(p)
            deviance = 2 * (count * math.log(count / rate) - count + rate) if count else 2 * rate
            assert 2 * 8 * loss.value(p, count / 8) == pytest.approx(deviance, abs=1e-12)
    assert loss.slope(5.0, 0.25) == loss.slope(math.log(8) + 1e-9, 0.25) == 0.75
    assert (loss.slope(0.0, 2.0), loss.slope(0.0, -1.0)) == (loss.slope(0.0, 1.0), loss.slope(0.0, 0.0))
    assert loss.usual_curvature(0.0, 0.0) == pytest.approx(1 / 8)
    assert loss.usual_curvature(50.0, 0.0) == 1.0


# ---------------------------------------------------------------- rows of weights


@pytest.mark.parametrize("loss", [loss for loss in ALL_LOSSES if not loss.may_raise], ids=name)
def test_a_loss_of_weighted_rows_is_that_of_plain_ones_and_not_known(loss):
    heavy = losses.weighted(loss)
    assert (heavy.value, heavy.slope, heavy.classifies) == (loss.value, loss.slope, loss.classifies)
    assert (heavy.curvature, heavy.slope_bound) == (loss.curvature, loss.slope_bound)
    assert losses.known(heavy) is None  # no proof that rests on constants speaks of weights
    assert pickle.loads(pickle.dumps(heavy)) is heavy


@pytest.mark.parametrize(
    ("loss", "change"),
    [
        (losses.logistic, {"slope_bound": 1e-3}),
        (losses.squared, {"slope_bound": 1e-3}),
        (losses.absolute, {"curvature": 1e-6}),
        (losses.huber(0.5), {"slope": losses.huber(2.0).slope}),
        (losses.multinomial(3), {"n_outputs": 1}),
        (losses.squared, {"may_raise": True}),
    ],
    ids=lambda case: getattr(case, "name", None) or next(iter(case)),
)
def test_altered_losses_are_not_known(loss, change):
    """Nobody has proven their constants: replace() keeps the slope and may change all that is said of it."""
    assert losses.known(loss) is loss
    assert losses.known(replace(loss, **change)) is None


@given(p=st.floats(-5, 5), count=st.floats(0, 1), exposure=st.floats(2**-20, 1))
def test_counts_of_an_exposure(p, count, exposure):
    loss, h = losses.poisson_of_exposure(4.0, 12.0), 1e-5
    slope, rate = exposure * loss.slope(p, count / exposure), exposure * min(math.exp(p) / 4, 1.0)
    assert slope == pytest.approx(rate - count, abs=1e-7)
    assert abs(slope) <= 1 + 1e-15
    difference = (loss.value(p + h, count / exposure) - loss.value(p - h, count / exposure)) / (2 * h)
    assert difference * exposure == pytest.approx(slope, abs=1e-4)


def test_only_losses_of_userdp_are_weighted():
    for loss in (python_custom, losses.weighted(losses.logistic)):
        with pytest.raises(ValueError, match="Only unweighted losses of userdp"):
            losses.weighted(loss)


# ---------------------------------------------------------------- draws of randomised smoothing


def word(number):
    bits = int(np.float64(np.float32(number)).view(np.uint64))
    return 0 if bits == 1 << 63 else bits


def moved(prediction, square, target, place, radius, seed, quantiles):
    """One row's, in whole numbers of Python."""
    mixed, most = word(prediction), 2**64 - 1
    for part in (seed, place, word(square), word(target)):
        mixed = ((mixed ^ part) + 0x9E3779B97F4A7C15) & most
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & most
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & most
        mixed ^= mixed >> 31
    level = (mixed >> 11) * 2.0**-53
    return prediction + radius * math.sqrt(square) * np.interp(level, np.linspace(0, 1, len(quantiles)), quantiles)


@pytest.mark.parametrize("seed", [0, 12345, 2**63 - 1])
def test_shifts_are_made_of_splitmix64_of_a_row(seed):
    rng, quantiles = np.random.default_rng(0), np.linspace(-0.9, 0.8, 257) ** 3
    predictions, squares, targets = rng.normal(size=500), rng.random(500) * 9, rng.integers(-1, 2, 500) * 1.0
    predictions[:3], targets[:3], squares[3] = (-0.0, 0.0, 1e-60), (-0.0, 0.0, 0.0), 0.0
    numbers = np.arange(500) % 7
    found = shifts(predictions, squares, targets, numbers, 0.7, seed, quantiles)
    rows = zip(predictions.tolist(), squares.tolist(), targets.tolist(), numbers.tolist(), strict=True)
    np.testing.assert_allclose(found, [moved(*row, 0.7, seed, quantiles) for row in rows], rtol=1e-12, atol=1e-14)
    part = slice(100, 101)
    alone = shifts(predictions[part], squares[part], targets[part], numbers[part], 0.7, seed, quantiles)
    np.testing.assert_array_equal(alone, found[part])


def test_shifts_of_rows_that_are_no_numbers_harm_nobody():
    predictions, squares = np.array([math.nan, 0.3, math.inf, 0.3]), np.array([1.0, math.nan, 1e300, 1.0])
    found = shifts(predictions, squares, np.zeros(4), np.zeros(4, np.int64), 1.0, 3, np.linspace(-1, 1, 9))
    alone = shifts(predictions[3:], squares[3:], np.zeros(1), np.zeros(1, np.int64), 1.0, 3, np.linspace(-1, 1, 9))
    np.testing.assert_array_equal(found[3], alone[0])
    assert np.isnan(found[:2]).all()
