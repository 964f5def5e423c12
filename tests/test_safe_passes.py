"""No user, whatever its data, moves the average iterate of a safe pass by more than its swap_sensitivity."""

import math
import pickle
from dataclasses import replace

import mpmath
import numpy as np
import pytest
from cases import compiled_custom, name, python_custom
from hypothesis import given, settings
from hypothesis import strategies as st

from userdp import losses
from userdp.data import UserData
from userdp.domains import Ball, Box
from userdp.safe_passes import SafeBatchPass, SafeRowPass, SafeRows
from userdp.safe_steps import safe_row
from userdp.sgd import mixing_order

NORM, TARGET = 1.5, 2.0
SMOOTH = [
    losses.squared,
    losses.huber(0.5),
    losses.logistic,
    losses.squared_hinge,
    losses.smoothed_hinge(0.3),
    losses.multinomial(3),
]
KINKED = [losses.hinge, losses.absolute, losses.quantile(0.8)]
DOMAINS = [
    Ball(1.5),
    Ball(0.7, np.array([1.0, -3.0])),
    Box(np.array([-1.0, 0.2]), np.array([1.0, 0.5])),
]
HOSTILE = [math.nan, math.inf, -math.inf, 1e308, -1e308, 1e-308, 5e-324, 1e154, 0.0, -0.0]
cells = st.one_of(st.sampled_from(HOSTILE), st.floats(-3.0, 3.0), st.sampled_from([-1.0, 1.0]), st.floats())
labels = st.one_of(st.sampled_from([0.0, 1.0, -1.0, 2.0, 3.0, 0.5, 1e308, math.nan, math.inf]), st.floats(-9.0, 9.0))
user_rows = st.lists(st.tuples(cells, cells, labels), max_size=5)


def domain_of(domain, n_outputs):
    """The same domain for several outputs."""
    if isinstance(domain, Box):
        return Box(np.tile(domain.low, n_outputs), np.tile(domain.high, n_outputs))
    return Ball(domain.radius, None if domain.center is None else np.tile(domain.center, n_outputs))


def users_of(blocks, dtype=np.float64):
    rows = np.array([row[:2] for block in blocks for row in block], dtype=np.float64).reshape(-1, 2)
    targets = np.array([row[2] for block in blocks for row in block], dtype=np.float64)
    offsets = np.concatenate([[0], np.cumsum([len(block) for block in blocks])]).astype(np.int64)
    with np.errstate(all="ignore"):
        return UserData(np.ascontiguousarray(rows.astype(dtype)), targets, offsets)


def vector(statistic, blocks, dtype=np.float64):
    with np.errstate(all="ignore"):
        return statistic(users_of(blocks, dtype), np.arange(len(blocks)), 1)[0]


def row_pass(loss, domain, n_users, per_user=2, boldness=1.0, norm=NORM, start=None):
    """A pass with a step of `boldness` times the longest allowed."""
    domain = domain_of(domain, loss.n_outputs)
    rows = SafeRows(per_user, norm, None if loss.classifies else TARGET)
    start = domain.project(np.zeros(2 * loss.n_outputs)) if start is None else start
    width = None if loss.smooth else 0.5
    curvature = loss.curvature if loss.smooth else losses.smoothed(loss, width).curvature
    step = boldness * 2 / (curvature * norm**2) * (1 - 1e-12)
    return SafeRowPass(loss, start, domain, step, n_users, rows, width=width)


def batch_pass(walk, n_steps, usual=None, reach=math.inf):
    plain = (walk.loss, walk.start, walk.domain, walk.step_size, walk.n_users, walk.rows)
    return SafeBatchPass(*plain, n_steps, usual, reach, width=walk.width)


def moved(statistic, blocks, swapped, other, dtype=np.float64):
    """How far replacing one user moves the vector."""
    neighbour = [other if j == swapped else block for j, block in enumerate(blocks)]
    first, second = vector(statistic, blocks, dtype), vector(statistic, neighbour, dtype)
    assert np.all(np.isfinite(first))
    assert np.all(np.isfinite(second))
    return float(np.linalg.norm(first - second))


neighbours = st.lists(user_rows, min_size=2, max_size=6).flatmap(
    lambda blocks: st.tuples(st.just(blocks), st.integers(0, len(blocks) - 1), user_rows)
)


# --- neighbouring data ------------------------------------------------------------------------------------------------


@settings(max_examples=20)
@pytest.mark.parametrize("domain", DOMAINS, ids=["ball", "ball elsewhere", "box"])
@pytest.mark.parametrize("loss", SMOOTH + KINKED, ids=name)
@given(pair=neighbours, per_user=st.integers(1, 3), boldness=st.sampled_from([1e-3, 0.5, 1.0]), narrow=st.booleans())
def test_no_user_moves_a_row_pass_by_more_than_its_sensitivity(loss, domain, pair, per_user, boldness, narrow):
    blocks, swapped, other = pair
    statistic = row_pass(loss, domain, len(blocks), per_user, boldness)
    dtype = np.float32 if narrow else np.float64
    assert moved(statistic, blocks, swapped, other, dtype) <= statistic.swap_sensitivity


@settings(max_examples=20)
@pytest.mark.parametrize("domain", DOMAINS, ids=["ball", "ball elsewhere", "box"])
@pytest.mark.parametrize("loss", SMOOTH + KINKED, ids=name)
@given(
    pair=neighbours,
    n_steps=st.integers(1, 3),
    boldness=st.sampled_from([1e-3, 0.5, 1.0]),
    reach=st.sampled_from([math.inf, 1e-9, 0.1, 1.0]),
    usual=st.sampled_from([0.0, 0.3, -50.0]),
)
def test_no_user_moves_a_batch_pass_by_more_than_its_sensitivity(loss, domain, pair, n_steps, boldness, reach, usual):
    blocks, swapped, other = pair
    walk = row_pass(loss, domain, len(blocks), 2, boldness)
    if reach < math.inf:  # stay near the start, where the filter says something
        walk = replace(walk, domain=Ball(0.05, walk.start))
    center = None if reach == math.inf else np.full(walk.start.size, usual)
    statistic = batch_pass(walk, min(n_steps, len(blocks)), center, reach)
    assert moved(statistic, blocks, swapped, other) <= statistic.swap_sensitivity


@pytest.mark.parametrize("loss", [losses.squared, losses.logistic, losses.huber(0.5)], ids=name)
@pytest.mark.parametrize("hostile", ["nan", "huge", "many", "none", "flipped"])
def test_hostile_users_among_many(loss, hostile):
    rng = np.random.default_rng(1)
    blocks = [[(*rng.normal(size=2), float(rng.integers(2))) for _ in range(3)] for _ in range(60)]
    other = {
        "nan": [(math.nan, 1.0, 1.0)] * 3,
        "huge": [(1e308, -1e308, 1e308 if not loss.classifies else 1.0)] * 3,
        "many": [(1.0, 1.0, 1.0)] * 500,
        "none": [],
        "flipped": [(x, y, 1.0 - t) for x, y, t in blocks[7]],
    }[hostile]
    for boldness in (0.01, 1.0):
        walk = row_pass(loss, Ball(2.0), 60, 3, boldness)
        assert moved(walk, blocks, 7, other) <= walk.swap_sensitivity
        batches = batch_pass(walk, 20)
        assert moved(batches, blocks, 7, other) <= batches.swap_sensitivity
        near = batch_pass(replace(walk, domain=Ball(0.01, walk.start)), 20, np.full(2, 0.1), 0.3)
        assert moved(near, blocks, 7, other) <= near.swap_sensitivity < batches.swap_sensitivity


# --- the sensitivity is no larger than needed -------------------------------------------------------------------------


def pulling(side, n_rows=1, length=NORM):
    """Rows that pull the first weight as hard as the loss can, to one side."""
    return [(length, 0.0, side * TARGET)] * n_rows


@pytest.mark.parametrize("length", [NORM, 1e308])
def test_a_row_pass_moves_as_far_as_its_sensitivity(length):
    """The swapped user comes first and nobody else has rows: all iterates are apart by two steps."""
    statistic = row_pass(losses.huber(0.5), Ball(50.0), 200, per_user=1, boldness=0.1)
    first = int(mixing_order(200)[0])
    blocks = [pulling(1, length=length) if j == first else [] for j in range(200)]
    far = moved(statistic, blocks, first, pulling(-1, length=length))
    exact = 2 * 0.5 * NORM * statistic.step_size
    assert far == pytest.approx(exact, rel=1e-9)
    assert exact < statistic.swap_sensitivity < exact * (1 + 1e-6)


def test_a_row_pass_moves_as_far_as_all_rows_of_a_user():
    """Three rows, of a user who happens to come early; more rows than three change nothing."""
    statistic = row_pass(losses.huber(0.5), Ball(50.0), 400, per_user=3, boldness=0.1)
    visits = np.argsort(mixing_order(1200)).reshape(400, 3)
    early = int(np.argmin(visits.sum(axis=1)))
    blocks = [pulling(1, 3) if j == early else [] for j in range(400)]
    far = moved(statistic, blocks, early, pulling(-1, 3))
    assert 0.85 * statistic.swap_sensitivity < far <= statistic.swap_sensitivity
    assert moved(statistic, blocks, early, pulling(-1, 300)) == far
    assert far == pytest.approx(0.5 * NORM * statistic.step_size * 2 * np.sum(1 - visits[early] / 1200), rel=1e-9)


@pytest.mark.parametrize(("n_users", "n_steps"), [(40, 1), (40, 4), (43, 4), (40, 40)])
def test_a_batch_pass_moves_as_far_as_its_sensitivity(n_users, n_steps):
    statistic = batch_pass(row_pass(losses.huber(0.5), Ball(50.0), n_users, boldness=0.1), n_steps)
    blocks = [pulling(1)] + [[(0.0, 0.0, 0.0)]] * (n_users - 1)
    far = moved(statistic, blocks, 0, pulling(-1))
    exact = 2 * 0.5 * NORM * statistic.step_size / (n_users // n_steps)
    assert far == pytest.approx(exact, rel=1e-9)
    assert exact < statistic.swap_sensitivity < exact * (1 + 1e-6)


def test_a_filtered_batch_pass_moves_as_far_as_its_sensitivity():
    """Users at both ends of the reach; farther ones count as the usual gradient."""
    reach = 0.2
    walk = replace(row_pass(losses.huber(0.5), Ball(50.0), 40, boldness=1e-4), domain=Ball(1e-3, np.zeros(2)))
    statistic = batch_pass(walk, 4, np.zeros(2), reach)
    inside, outside = reach / NORM * (1 - 1e-9), reach / NORM * (1 + 1e-6)

    def user(target):
        return [(NORM, 0.0, target)]

    blocks = [user(inside)] + [[(0.0, 0.0, 0.0)]] * 39
    far = moved(statistic, blocks, 0, user(-inside))
    assert 0.98 * statistic.swap_sensitivity < far <= statistic.swap_sensitivity
    for other in (user(-outside), user(-2.0), user(math.nan), []):
        assert moved(statistic, blocks, 0, other) == pytest.approx(far / 2, rel=1e-3)


def two_steps():
    """A user without rows leads the walk away from the start; the next one agrees with it there, but not any more."""
    usual, rows = np.array([0.0, 1.0]), SafeRows(1, NORM, TARGET)
    statistic = SafeBatchPass(losses.squared, np.zeros(2), Ball(1.0), 0.4, 2, rows, 2, usual, 1e-3)
    return statistic, [[], [(0.0, NORM, -1 / NORM)]]


def test_gradients_change_along_a_filtered_walk():
    statistic, blocks = two_steps()
    far = moved(statistic, blocks, 1, [])
    assert far > 100 * 2 * statistic.step_size * statistic.reach  # as far as users could be apart at the start
    assert far <= statistic.swap_sensitivity


def test_who_counts_is_settled_at_the_start():
    """At -.4 the second user's gradient is .1, no longer within reach of the usual 1, and still counts."""
    statistic, blocks = two_steps()
    np.testing.assert_allclose(vector(statistic, blocks), [0.0, (-0.4 - 0.44) / 2], atol=1e-12)
    np.testing.assert_allclose(vector(statistic, [[], []]), [0.0, (-0.4 - 0.8) / 2], atol=1e-12)


def test_the_sensitivity_of_a_filter_is_never_above_that_of_none():
    walk = row_pass(losses.logistic, Ball(1.0), 40, boldness=0.1)
    everyone = batch_pass(walk, 4).swap_sensitivity
    for reach in (1e-6, 0.1, 1.0, 1e6):
        assert batch_pass(walk, 4, np.zeros(2), reach).swap_sensitivity <= everyone
    assert batch_pass(walk, 4, np.zeros(2), 0.01).swap_sensitivity < 0.95 * everyone


@pytest.mark.parametrize("kind", ["rows", "batches"])
def test_a_usual_gradient_and_the_reach_are_what_users_are_compared_with(kind):
    walk = row_pass(losses.squared, Ball(5.0), 2, per_user=1, boldness=0.01)
    if kind == "rows":
        assert vector(walk, [pulling(1), pulling(1)])[0] > 0
        return
    usual = np.array([0.25, -0.5])
    statistic = batch_pass(walk, 1, usual, 0.1)
    np.testing.assert_allclose(vector(statistic, [pulling(1), []]), -walk.step_size * usual, rtol=1e-12)


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
    room = (statistic.swap_sensitivity - exact_step * (1 + 2.0**-40)) / 2
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
    share = min(max((prediction - target + width) / (2 * width), 0), 1)
    return above * share - below * (1 - share)


@pytest.mark.parametrize("width", [1e-6, 0.5])
@pytest.mark.parametrize("loss", [loss for loss in SMOOTH if loss.n_outputs == 1] + KINKED, ids=name)
def test_computed_slopes_are_as_exact_as_the_proof_says(loss, width):
    kernel = loss if loss.smooth else losses.smoothed(loss, width)
    rng = np.random.default_rng(2)
    largest = 3.0
    for prediction in [*rng.uniform(-largest, largest, 200), *(1 + width * rng.uniform(-2, 2, 100)), 0.0, 1.0, -1.0]:
        for target in (0.0, 1.0) if loss.classifies else (*rng.uniform(-TARGET, TARGET, 3), float(prediction)):
            with mpmath.workdps(50):
                wanted = exact_slope(loss, mpmath.mpf(prediction), mpmath.mpf(target), mpmath.mpf(width))
                off = abs(mpmath.mpf(kernel.slope(float(prediction), float(target))) - wanted)
                steepest = kernel.lipschitz(1.0, TARGET, largest)
                room = 2.0**-48 * 9 * (steepest + kernel.curvature * (largest + TARGET + 1))
                assert off <= room


def test_computed_slopes_of_several_outputs_are_as_exact():
    rng, loss = np.random.default_rng(3), losses.multinomial(3)
    for predictions in rng.uniform(-3, 3, (200, 3)):
        with mpmath.workdps(50):
            shares = [mpmath.exp(mpmath.mpf(p)) for p in predictions]
            for target in range(3):
                slope = loss.slope(predictions, float(target))
                exact = [share / sum(shares) - (c == target) for c, share in enumerate(shares)]
                off = mpmath.sqrt(sum((mpmath.mpf(s) - e) ** 2 for s, e in zip(slope, exact, strict=True)))
                assert off <= 2.0**-48 * 11 * (math.sqrt(2) + 0.5 * 4)


# --- safe rows --------------------------------------------------------------------------------------------------------


@settings(max_examples=300)
@given(row=st.lists(cells, min_size=1, max_size=6), target=labels, kind=st.sampled_from([0, 1, 3]))
def test_a_safe_row_is_short_finite_and_has_a_usable_target(row, target, kind):
    given_row, out = np.array(row), np.empty(len(row))
    longest = NORM * (1 - 2.0**-50 * (len(row) + 8))
    safe = safe_row(given_row, target, longest, TARGET, kind, out)
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


@pytest.mark.parametrize("loss", [compiled_custom, python_custom, losses.smoothed(losses.hinge, 0.5)], ids=name)
def test_losses_whose_slopes_are_not_known_are_refused(loss):
    with pytest.raises(ValueError, match=r"Expected a loss of userdp .*Nothing was spent\."):
        SafeRowPass(loss, np.zeros(2), Ball(1.0), 0.1, 5, SafeRows(2, 1.0, 1.0))


WALK = {"loss": losses.squared, "start": np.zeros(2), "domain": Ball(1.0), "step_size": 0.1, "n_users": 5}
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
        SafeRowPass(**(WALK | {"rows": ROWS} | change))


@pytest.mark.parametrize(
    "change",
    [{"n_steps": 0}, {"n_steps": 6}, {"n_steps": 2.0}, {"reach": 1.0}, {"usual": np.zeros(2)}]
    + [{"usual": np.zeros(2), "reach": reach} for reach in (math.nan, 0.0, -1.0, 1e40)]
    + [{"usual": np.zeros(3), "reach": 1.0}],
)
def test_impossible_batches_are_refused(change):
    with pytest.raises(ValueError, match="Expected"):
        SafeBatchPass(**(WALK | {"rows": ROWS, "n_steps": 2} | change))


@pytest.mark.parametrize(
    "change", [{"per_user": 0}, {"per_user": 1.5}, {"norm": 0.0}, {"norm": math.nan}, {"target_bound": 1e40}]
)
def test_impossible_bounds_on_rows_are_refused(change):
    with pytest.raises(ValueError, match="Expected"):
        SafeRows(**({"per_user": 2, "norm": 1.0} | change))


def test_other_domains_are_refused():
    with pytest.raises(TypeError, match="Expected a Ball or a Box"):
        SafeRowPass(**(WALK | {"domain": object()}), rows=ROWS)


@pytest.mark.parametrize("kind", ["rows", "batches"])
def test_other_users_than_the_sensitivity_is_for_are_refused(kind):
    walk = SafeRowPass(**WALK, rows=ROWS)
    statistic = walk if kind == "rows" else batch_pass(walk, 2)
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
    assert again.swap_sensitivity == statistic.swap_sensitivity
    np.testing.assert_array_equal(vector(again, blocks), before)
