"""Losses: slopes are derivatives, values are convex, constants hold and are tight, extremes are harmless."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace

import numba
import numpy as np
import pytest
from cases import (
    ALL_LOSSES,
    CLASSIFICATION,
    MULTINOMIAL,
    ONE_VS_REST,
    SCALAR_LOSSES,
    compiled_custom,
    name,
    python_custom,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st

from userdp import losses
from userdp.losses.standard import _exp_of_negative
from userdp.losses.weighing import pack_classes, pack_numbers
from userdp.vectors import kernels

scalar = pytest.mark.parametrize("loss", SCALAR_LOSSES, ids=name)
number = st.floats(-4.0, 4.0)
label = st.sampled_from([-1.0, 1.0])
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
    slopes = np.array([[loss.slope(p, t) for p in predictions] for t in targets])
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


def test_own_exponential_is_accurate_to_the_last_bits():
    for x in np.concatenate([np.linspace(-50, 0, 4001), -np.logspace(1.7, 2.849, 200)]):
        assert _exp_of_negative(x) == pytest.approx(math.exp(x), rel=5e-16)
    assert 0.0 <= _exp_of_negative(-1e300) < 1e-300
    assert math.isnan(_exp_of_negative(math.nan))


def test_custom_is_compiled_when_possible_and_kept_otherwise():
    assert compiled_custom.compiled
    assert not python_custom.compiled
    assert python_custom.slope(0.5, 0.0) == compiled_custom.slope(0.5, 0.0)
    grows = losses.custom("cube", abs, lambda p, t: p * p, lipschitz=lambda p, t: p * p)
    assert grows.lipschitz(2.0, target_bound=1.0, weight_norm=1.5) == 2.0 * 9.0
    assert not grows.smooth


@pytest.mark.parametrize("loss", ALL_LOSSES, ids=name)
def test_losses_survive_pickling(loss):
    again = pickle.loads(pickle.dumps(loss))
    prediction = 0.3 if loss.n_outputs == 1 else np.linspace(-1, 1, loss.n_outputs)
    np.testing.assert_array_equal(again.slope(prediction, 1.0), loss.slope(prediction, 1.0))
    assert (again.name, again.curvature) == (loss.name, loss.curvature)


def test_registry():
    assert losses.loss("logistic") is losses.logistic
    assert losses.loss("huber", threshold=2.0).slope_bound == 2.0
    assert losses.loss("multinomial", n_classes=3).n_outputs == 3
    with pytest.raises(ValueError, match=r"loss='logit' to be one of absolute, .*logistic.*squared"):
        losses.loss("logit")
    with pytest.raises(ValueError, match=r"pass losses\.multinomial\(3\)"):
        losses.loss("multinomial")
    with pytest.raises(TypeError, match="no parameters for the hinge loss, got width"):
        losses.loss("hinge", width=1.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: losses.huber(-1.0), r"threshold=-1.0 > 0"),
        (lambda: losses.smoothed_hinge(math.nan), r"width=nan > 0"),
        (lambda: losses.quantile(1.0), r"0 < level=1.0 < 1"),
        (lambda: losses.multinomial(1), r"n_classes=1 to be an integer >= 2"),
        (lambda: losses.logistic.lipschitz(0.0), r"row_norm=0.0 > 0"),
        (lambda: losses.logistic.smoothness(math.inf), r"row_norm=inf > 0"),
        (lambda: losses.squared.lipschitz(1.0), r"target_bound=None and weight_norm=None"),
        (lambda: losses.custom("c", abs, abs, lipschitz=-1.0), r"lipschitz=-1.0 > 0"),
        (lambda: losses.custom("c", abs, abs, lipschitz=1.0, smoothness=0.0), r"smoothness=0.0 > 0"),
    ],
)
def test_errors_name_the_value_and_the_bound(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_custom_needs_functions():
    with pytest.raises(TypeError, match="to be functions"):
        losses.custom("c", 1.0, abs, lipschitz=1.0)


@pytest.mark.parametrize("loss", [losses.hinge, losses.absolute, losses.quantile(0.8), losses.huber(0.5)], ids=name)
@pytest.mark.parametrize("width", [0.1, 1.0])
def test_smoothing_averages_slopes_and_stays_close(loss, width):
    smooth = losses.smoothed(loss, width)
    inner = np.linspace(-width, width, 20_001)
    for target in (0.0, 1.0):
        for prediction in (-2.0, -0.95, 0.0, 0.03, 0.97, 1.5):
            averaged = np.mean([loss.slope(prediction + s, target) for s in inner])
            assert smooth.slope(prediction, target) == pytest.approx(averaged, abs=2e-4)
            gap = smooth.value(prediction, target) - loss.value(prediction, target)
            assert -1e-12 <= gap <= loss.slope_bound * width / 2 * (4 / 3) + 1e-12
            step = 1e-6
            change = smooth.slope(prediction + step, target) - smooth.slope(prediction, target)
            assert change / step <= smooth.curvature * (1 + 1e-6) + 1e-6
    assert smooth.compiled
    assert smooth.slope_bound == loss.slope_bound
    assert smooth is losses.smoothed(loss, width)


@pytest.mark.parametrize("loss", [losses.squared, losses.multinomial(3)], ids=name)
def test_losses_that_need_no_smoothing_say_so(loss):
    with pytest.raises(ValueError, match="it needs no smoothing"):
        losses.smoothed(loss, 0.1)


OWN = [loss for loss in SCALAR_LOSSES if not loss.may_raise]


@pytest.mark.parametrize("loss", [*OWN, losses.smoothed(losses.hinge, 0.1)], ids=name)
def test_machine_code_computes_what_python_does(loss):
    """Python calls the package's losses as they are written; fits run what numba made of them."""
    numbers, targets = (
        [-1e308, -800.0, -1.5, -1.0, -0.0, 0.0, 0.3, 1.0, 40.0, math.inf],
        [-1.0, 0.0, 0.5, 1.0, math.nan],
    )
    pairs = [(p, t) for p in numbers for t in targets]
    slopes, wanted = np.array([p for p, _ in pairs]), np.array([t for _, t in pairs])
    _run_block(kernels.block_slopes(loss.slope, 1, loss.may_raise), slopes, wanted)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(slopes, [loss.slope(p, t) for p, t in pairs], rtol=1e-15, atol=1e-300)


@numba.njit
def _run_block(made, slopes, targets):
    made(slopes, targets, len(slopes))


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
@given(seed=st.integers(0, 2**32 - 1), weight=st.floats(0.0, 1.0))
@settings(max_examples=30)
def test_weighted_rows_count_as_often_as_they_weigh(loss, seed, weight):
    rng, heavy = np.random.default_rng(seed), losses.weighted(loss)
    p = rng.uniform(-3, 3, loss.n_outputs) if loss.n_outputs > 1 else rng.uniform(-3, 3)
    if loss.classifies:
        target = float(rng.integers(max(2, loss.n_outputs)))
        packed = float(pack_classes(target, weight))
    else:
        target = float(np.rint(rng.uniform(-1, 1) * 2**25) / 2**25)  # a place of the grid
        packed = float(pack_numbers(target, weight))
    np.testing.assert_allclose(heavy.value(p, packed), weight * loss.value(p, target), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(heavy.slope(p, packed), weight * np.asarray(loss.slope(p, target)), rtol=1e-6, atol=1e-6)
    assert np.isnan(heavy.slope(p, math.nan)).all()
    assert heavy.classifies == loss.classifies
    assert (heavy.curvature, heavy.slope_bound) == (loss.curvature, loss.slope_bound)
    assert losses.known(heavy) is None  # who rests on constants reads targets himself
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
    packed = float(pack_numbers(count, exposure))
    rate = exposure * min(math.exp(p) / 4, 1.0)
    assert loss.slope(p, packed) == pytest.approx(rate - count, abs=1e-7)
    assert abs(loss.slope(p, packed)) <= 1
    difference = (loss.value(p + h, packed) - loss.value(p - h, packed)) / (2 * h)
    assert loss.slope(p - h, packed) - 1e-6 <= difference <= loss.slope(p + h, packed) + 1e-6


def test_only_losses_of_userdp_are_weighted():
    for loss in (compiled_custom, losses.weighted(losses.logistic)):
        with pytest.raises(ValueError, match="a loss of userdp without weights"):
            losses.weighted(loss)


def test_a_kernel_of_a_module_is_pickled_by_its_name_alone():
    """A key of numba's cache, by which other processes find what was compiled."""
    slope = losses.logistic.slope
    assert slope.named
    assert len(pickle.dumps(slope)) < 120
    assert pickle.loads(pickle.dumps(slope)) is slope
    assert not losses.loss("huber", threshold=0.5).slope.named
