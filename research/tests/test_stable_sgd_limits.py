"""What the sensitivity of safe passes rests on: rounding that is paid for, rows made safe, and what is refused."""

import copy
import math
import pickle
from dataclasses import replace

import mpmath
import numpy as np
import pytest
from cases import name, python_custom
from hypothesis import given, settings
from hypothesis import strategies as st
from support_stable_sgd import NON_SMOOTH, NORM, SMOOTH, TARGET, batch_pass, cells, labels, row_pass, users_of, vector

from userdp import losses
from userdp.domains import Ball
from userdp.statistics.sgd import mixing_order
from userdp_research.stable_sgd import SafeBatchPass, SafeRowPass, SafeRows, check_loss, safe_rows

# --- rounding ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [losses.squared, losses.logistic], ids=name)
def test_the_sensitivity_pays_for_the_rounding_of_long_passes(loss):
    """Thousands of steps beside the same in thirty digits: off by less than there is room for, and off."""
    rng = np.random.default_rng(0)
    n_users = 3000
    blocks = [[(*rng.uniform(-1, 1, 2), float(rng.integers(2)))] for _ in range(n_users)]
    statistic = row_pass(loss, Ball(0.4), n_users, per_user=1, boldness=0.5)
    exact_step = 2 * statistic.step_size * statistic.lipschitz
    with mpmath.workdps(30):
        w, total = mpmath.matrix([0, 0]), mpmath.matrix([0, 0])
        for slot in mixing_order(n_users):
            x = mpmath.matrix(blocks[slot][0][:2])
            p, y = (w.T * x)[0], blocks[slot][0][2]
            sign = 1 if y == 1 else -1
            slope = p - y if loss is losses.squared else -sign / (1 + mpmath.exp(sign * p))
            w = w - mpmath.mpf(statistic.step_size) * slope * x
            length = mpmath.sqrt((w.T * w)[0])
            w = w * (mpmath.mpf(0.4) / length) if length > mpmath.mpf(0.4) else w
            total += w
        difference = mpmath.matrix(vector(statistic, blocks).tolist()) - total / n_users
        off = float(mpmath.sqrt((difference.T * difference)[0]))
    room = (statistic.replace_one_sensitivity - exact_step * (1 + 2.0**-40)) / 2
    assert 0 < off <= room < 1e-6 * exact_step


def exact_slope(loss, prediction, target, width):
    """The slope in fifty digits."""
    if loss is losses.squared:
        return prediction - target
    sign = 1 if target == 1 else -1
    gap = 1 - sign * prediction
    if loss is losses.logistic:
        return -sign / (1 + mpmath.exp(sign * prediction))
    if loss is losses.squared_hinge:
        return -sign * max(gap, 0)
    if loss.name.startswith("smoothed_hinge"):
        return -sign * min(max(gap / mpmath.mpf(0.3), 0), 1)
    if loss.name.startswith("huber"):
        return min(max(prediction - target, mpmath.mpf(-0.5)), mpmath.mpf(0.5))
    if loss is losses.hinge:
        return -sign * min(max((gap + width) / (2 * width), 0), 1)
    above, below = (mpmath.mpf(1), mpmath.mpf(1)) if loss is losses.absolute else (1 - mpmath.mpf(0.8), mpmath.mpf(0.8))
    fraction = min(max((prediction - target + width) / (2 * width), 0), 1)
    return above * fraction - below * (1 - fraction)


@pytest.mark.parametrize("width", [1e-6, 0.5])
@pytest.mark.parametrize("loss", [loss for loss in SMOOTH if loss.n_outputs == 1] + NON_SMOOTH, ids=name)
def test_computed_slopes_are_as_exact_as_the_proof_says(loss, width):
    kernel = loss if loss.smooth else losses.smoothed(loss, width)
    rng = np.random.default_rng(2)
    largest = 3.0
    for prediction in [*rng.uniform(-largest, largest, 200), *(1 + width * rng.uniform(-2, 2, 100)), 0.0, 1.0, -1.0]:
        for target in (0.0, 1.0) if loss.classifies else (*rng.uniform(-TARGET, TARGET, 3), float(prediction)):
            with mpmath.workdps(50):
                wanted = exact_slope(loss, mpmath.mpf(prediction), mpmath.mpf(target), mpmath.mpf(width))
                off = abs(mpmath.mpf(float(kernel.slope(float(prediction), float(target)))) - wanted)
                steepest = kernel.lipschitz(1.0, TARGET, largest)
                room = 2.0**-48 * 9 * (steepest + kernel.curvature * (largest + TARGET + 1))
                assert off <= room


def test_computed_slopes_of_several_outputs_are_as_exact():
    rng, loss = np.random.default_rng(3), losses.multinomial(3)
    for predictions in rng.uniform(-3, 3, (200, 3)):
        with mpmath.workdps(50):
            fractions = [mpmath.exp(mpmath.mpf(p)) for p in predictions]
            for target in range(3):
                slope = loss.slope(predictions, float(target))
                exact = [fraction / sum(fractions) - (c == target) for c, fraction in enumerate(fractions)]
                off = mpmath.sqrt(sum((mpmath.mpf(s) - e) ** 2 for s, e in zip(slope, exact, strict=True)))
                assert off <= 2.0**-48 * 11 * (math.sqrt(2) + 0.5 * 4)


# --- safe rows --------------------------------------------------------------------------------------------------------


@settings(max_examples=300)
@given(row=st.lists(cells, min_size=1, max_size=6), target=labels, kind=st.sampled_from([0, 1, 3]))
def test_a_safe_row_is_short_finite_and_has_a_usable_target(row, target, kind):
    given_row = np.array(row)
    longest = NORM * (1 - 2.0**-50 * (len(row) + 8))
    with np.errstate(all="ignore"):
        (out,), (safe,) = safe_rows(given_row[None], np.array([target]), longest, TARGET, kind)
    assert np.all(np.isfinite(out))
    with mpmath.workdps(50):
        assert mpmath.sqrt(sum(mpmath.mpf(float(x)) ** 2 for x in out)) <= mpmath.mpf(NORM)
    usable = {0: math.isfinite(target), 1: target in (-1.0, 0.0, 1.0), 3: target in (0.0, 1.0, 2.0)}[kind]
    if not usable or not np.all(np.isfinite(given_row)):
        assert safe == 0.0
        assert not out.any()
    else:
        assert safe == (min(max(target, -TARGET), TARGET) if kind == 0 else target)
        short = math.hypot(*row) <= NORM * (1 - 1e-9)
        assert not short or np.array_equal(out, given_row)


def test_declared_rows_are_left_as_they_are_and_shorter_users_stay_longer():
    """A pass over rows as declared is plain SGD; a missing row is a step that goes nowhere."""
    statistic = row_pass(losses.squared, Ball(5.0), 2, per_user=2, boldness=0.1)
    blocks = [[(1.0, 0.5, 1.0), (0.2, 0.1, -1.0)], [(0.3, -0.7, 2.0)]]
    w, total = np.zeros(2), np.zeros(2)
    for slot in mixing_order(4):
        if slot < 3:
            x, y = np.array(blocks[slot // 2][slot % 2][:2]), blocks[slot // 2][slot % 2][2]
            w = w - statistic.step_size * (w @ x - y) * x
        total += w
    np.testing.assert_allclose(vector(statistic, blocks), total / 4, rtol=1e-12)


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [python_custom, losses.smoothed(losses.hinge, 0.5)], ids=name)
def test_losses_whose_slopes_are_not_known_are_refused(loss):
    with pytest.raises(ValueError, match=r"Expected a loss of userdp .*Nothing was spent\."):
        SafeRowPass(loss, np.zeros(2), Ball(1.0), 0.1, 5, SafeRows(2, 1.0, 1.0))


@pytest.mark.parametrize(
    ("loss", "change"),
    [
        (losses.logistic, {"slope_bound": 1e-3}),
        (losses.squared, {"slope_bound": 1e-3}),
        (losses.absolute, {"value": losses.squared.value}),
        (losses.absolute, {"curvature": 1e-6}),
        (losses.huber(0.5), {"slope": losses.huber(2.0).slope}),
        (losses.huber(0.5), {"slope_bound": 0.25}),
        (losses.smoothed_hinge(0.3), {"curvature": 1.0}),
        (losses.quantile(0.8), {"slope_bound": 0.2}),
        (losses.multinomial(3), {"n_outputs": 1}),
        (losses.multinomial(3), {"slope_bound": 1.0}),
        (losses.squared, {"may_raise": True}),
    ],
    ids=lambda case: getattr(case, "name", None) or next(iter(case)),
)
def test_altered_losses_are_refused(loss, change):
    """Nobody has proven their constants: replace() keeps the slope and may change all that is said of it."""
    assert check_loss(loss) is loss
    with pytest.raises(ValueError, match=r"Expected a loss of userdp as it is.*Nothing was spent\."):
        check_loss(replace(loss, **change))
    sgd = {"start": np.zeros(2), "domain": Ball(1.0), "step_size": 0.01, "n_users": 5, "rows": SafeRows(2, 1.0, 1.0)}
    with pytest.raises(ValueError, match="Expected a loss of userdp as it is"):
        SafeRowPass(replace(loss, **change), **sgd, width=None if loss.smooth else 0.5)


def test_a_loss_without_a_hash_is_refused():
    class Kernel:
        __hash__ = None

        def __call__(self, predictions, targets):
            return 0.0 * predictions

    with pytest.raises(ValueError, match="Expected a loss of userdp as it is"):
        check_loss(losses.custom("odd", Kernel(), Kernel(), lipschitz=1.0))


@pytest.mark.parametrize("loss", SMOOTH + NON_SMOOTH + [losses.quantile(level=0.123456789)], ids=name)
def test_losses_are_known_again_after_a_journey(loss):
    """Pickled by name and parameters: in another process the kernels would be others."""
    sent = pickle.dumps(loss)
    assert len(sent) < 200
    assert check_loss(pickle.loads(sent)) is check_loss(copy.deepcopy(loss))
    assert losses.known(pickle.loads(sent)).slope_bound == loss.slope_bound
    assert pickle.loads(pickle.dumps(python_custom)).name == python_custom.name


def test_the_loss_of_a_pass_is_the_one_of_this_package():
    """A narrow constant is equal to a wide one, and would spoil all that is computed from it."""
    narrow = replace(losses.absolute, slope_bound=np.float16(1.0))
    sgd = SafeRowPass(narrow, np.zeros(2), Ball(1.0), 0.01, 5, SafeRows(2, 1.0, 1.0), width=0.3)
    assert sgd.loss is losses.absolute
    assert type(narrow.slope_bound) is float


PASS = {"loss": losses.squared, "start": np.zeros(2), "domain": Ball(1.0), "step_size": 0.1, "n_users": 5}
ROWS = SafeRows(2, 1.0, 1.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step_size": 2.0 + 1e-9}, r"step_size=2.0.* <= 2.0"),
        ({"step_size": math.nan}, "step_size=nan"),
        ({"step_size": 0.0}, "step_size=0.0"),
        ({"step_size": 1e-40}, "step_size"),
        ({"domain": Ball(1e40)}, "weights=1e[+]40"),
        ({"loss": losses.hinge}, "width for the hinge loss if and only if"),
        ({"loss": losses.hinge, "width": 1e40}, "width=1e[+]40"),
        ({"width": 0.5}, "width for the squared loss if and only if"),
        ({"rows": SafeRows(2, 1.0)}, "target_bound for the squared loss"),
        ({"rows": SafeRows(2, 1.0, 1e30), "domain": Ball(1e30)}, "gradients"),
        ({"n_users": 2**40}, "fewer than"),
    ],
)
def test_impossible_passes_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        SafeRowPass(**(PASS | {"rows": ROWS} | change))


@pytest.mark.parametrize(
    "change",
    [{"n_steps": 0}, {"n_steps": 6}, {"n_steps": 2.0}, {"reach": 1.0}, {"usual": np.zeros(2)}]
    + [{"usual": np.zeros(2), "reach": reach} for reach in (math.nan, 0.0, -1.0, 1e40)]
    + [{"usual": np.zeros(3), "reach": 1.0}],
)
def test_impossible_batches_are_refused(change):
    with pytest.raises(ValueError, match="Expected"):
        SafeBatchPass(**(PASS | {"rows": ROWS, "n_steps": 2} | change))


@pytest.mark.parametrize(
    "change", [{"per_user": 0}, {"per_user": 1.5}, {"norm": 0.0}, {"norm": math.nan}, {"target_bound": 1e40}]
)
def test_impossible_bounds_on_rows_are_refused(change):
    with pytest.raises(ValueError, match="Expected"):
        SafeRows(**({"per_user": 2, "norm": 1.0} | change))


def test_numbers_of_few_bits_are_widened_before_anything_is_computed_of_them():
    """200 rows of each of 3 users in 8 bits would be 88 slots, and 2 * 200 steps 144."""
    narrow = SafeRows(np.uint8(200), np.float16(0.3), np.float32(0.7))
    wide = SafeRows(200, float(np.float16(0.3)), float(np.float32(0.7)))
    assert narrow == wide
    assert [type(one) for one in (narrow.per_user, narrow.norm, narrow.target_bound)] == [int, float, float]
    sizes = (np.float16(0.1), np.uint8(3)), (float(np.float16(0.1)), 3)
    for kind, few, many in ((SafeRowPass, (), ()), (SafeBatchPass, (np.uint8(2),), (2,))):
        passes = [
            kind(losses.absolute, np.zeros(2), Ball(radius), *size, rows, *n_steps, width=width)
            for radius, size, rows, n_steps, width in (
                (np.float16(0.9), sizes[0], narrow, few, np.float32(0.4)),
                (float(np.float16(0.9)), sizes[1], wide, many, float(np.float32(0.4))),
            )
        ]
        assert passes[0].replace_one_sensitivity == passes[1].replace_one_sensitivity
        assert type(passes[0].replace_one_sensitivity) is float
        assert passes[0].lipschitz == passes[1].lipschitz
    assert SafeRowPass(
        losses.absolute, np.zeros(2), Ball(50.0), 1e-3, 3, narrow, width=0.4
    ).replace_one_sensitivity == pytest.approx(2 * 200 * 1e-3 * float(np.float16(0.3)), rel=1e-6)
    filtered = {"usual": np.zeros(2), "reach": np.float16(0.1)}
    assert type(SafeBatchPass(**PASS, rows=ROWS, n_steps=2, **filtered).reach) is float


@pytest.mark.parametrize("change", [{"norm": np.array(1.0)}, {"norm": "1"}, {"target_bound": [1.0]}])
def test_bounds_on_rows_that_are_no_numbers_are_refused(change):
    with pytest.raises(TypeError, match="to be a number"):
        SafeRows(**({"per_user": 2, "norm": 1.0} | change))


def test_a_pass_keeps_its_own_vectors():
    """The start and the usual gradient are part of what the sensitivity was computed for."""
    start, usual = np.full(2, 0.5), np.full(2, 3.0)
    sgd = SafeBatchPass(**(PASS | {"start": start}), rows=ROWS, n_steps=2, usual=usual, reach=0.1)
    before = sgd.start.copy(), sgd.usual.copy()
    start[:], usual[:] = 9.0, 9.0
    for kept, expected in zip((sgd.start, sgd.usual), before, strict=True):
        np.testing.assert_array_equal(kept, expected)
        with pytest.raises(ValueError, match="read-only"):
            kept[0] = 1.0


def test_other_domains_are_refused():
    with pytest.raises(TypeError, match="Expected a Ball or a Box"):
        SafeRowPass(**(PASS | {"domain": object()}), rows=ROWS)


@pytest.mark.parametrize("kind", ["rows", "batches"])
def test_other_users_than_the_sensitivity_is_for_are_refused(kind):
    sgd = SafeRowPass(**PASS, rows=ROWS)
    statistic = sgd if kind == "rows" else batch_pass(sgd, 2)
    data = users_of([[(1.0, 1.0, 1.0)]] * 8)
    for users, n_groups in ((np.arange(4), 1), (np.arange(6), 1), (np.arange(5), 5)):
        with pytest.raises(ValueError, match="Expected 5 users in one group"):
            statistic(data, users, n_groups)
    statistic.check(2)
    with pytest.raises(ValueError, match="start of length 3"):
        statistic.check(3)


@pytest.mark.parametrize("loss", [losses.logistic, losses.hinge], ids=name)
def test_a_pass_can_be_sent_to_another_machine(loss):
    statistic, blocks = row_pass(loss, Ball(1.0), 2), [[(1.0, 0.5, 1.0)], [(-1.0, 0.5, 0.0)]]
    before = vector(statistic, blocks)
    again = pickle.loads(pickle.dumps(statistic))
    assert again.replace_one_sensitivity == statistic.replace_one_sensitivity
    np.testing.assert_array_equal(vector(again, blocks), before)
