"""No user, whatever its data, moves the average iterate of a safe pass by more than its replace_one_sensitivity."""

import math
from dataclasses import replace

import numpy as np
import pytest
from cases import name
from hypothesis import given, settings
from hypothesis import strategies as st
from support_stable_sgd import (
    DOMAINS,
    NON_SMOOTH,
    NORM,
    SMOOTH,
    TARGET,
    batch_pass,
    moved,
    neighbours,
    row_pass,
    vector,
)

from userdp import losses
from userdp.domains import Ball
from userdp.statistics.sgd import mixing_order
from userdp_research.stable_sgd import SafeBatchPass, SafeRows

# --- neighbouring data ------------------------------------------------------------------------------------------------


@settings(max_examples=20)
@pytest.mark.parametrize("domain", DOMAINS, ids=["ball", "ball elsewhere", "box"])
@pytest.mark.parametrize("loss", SMOOTH + NON_SMOOTH, ids=name)
@given(pair=neighbours, per_user=st.integers(1, 3), boldness=st.sampled_from([1e-3, 0.5, 1.0]), narrow=st.booleans())
def test_no_user_moves_a_row_pass_by_more_than_its_sensitivity(loss, domain, pair, per_user, boldness, narrow):
    blocks, replaced, other = pair
    statistic = row_pass(loss, domain, len(blocks), per_user, boldness)
    dtype = np.float32 if narrow else np.float64
    assert moved(statistic, blocks, replaced, other, dtype) <= statistic.replace_one_sensitivity


@settings(max_examples=20)
@pytest.mark.parametrize("domain", DOMAINS, ids=["ball", "ball elsewhere", "box"])
@pytest.mark.parametrize("loss", SMOOTH + NON_SMOOTH, ids=name)
@given(
    pair=neighbours,
    n_steps=st.integers(1, 3),
    boldness=st.sampled_from([1e-3, 0.5, 1.0]),
    reach=st.sampled_from([math.inf, 1e-9, 0.1, 1.0]),
    usual=st.sampled_from([0.0, 0.3, -50.0]),
)
def test_no_user_moves_a_batch_pass_by_more_than_its_sensitivity(loss, domain, pair, n_steps, boldness, reach, usual):
    blocks, replaced, other = pair
    sgd = row_pass(loss, domain, len(blocks), 2, boldness)
    if reach < math.inf:  # stay near the start, where the filter says something
        sgd = replace(sgd, domain=Ball(0.05, sgd.start))
    center = None if reach == math.inf else np.full(sgd.start.size, usual)
    statistic = batch_pass(sgd, min(n_steps, len(blocks)), center, reach)
    assert moved(statistic, blocks, replaced, other) <= statistic.replace_one_sensitivity


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
        sgd = row_pass(loss, Ball(2.0), 60, 3, boldness)
        assert moved(sgd, blocks, 7, other) <= sgd.replace_one_sensitivity
        batches = batch_pass(sgd, 20)
        assert moved(batches, blocks, 7, other) <= batches.replace_one_sensitivity
        near = batch_pass(replace(sgd, domain=Ball(0.01, sgd.start)), 20, np.full(2, 0.1), 0.3)
        assert moved(near, blocks, 7, other) <= near.replace_one_sensitivity < batches.replace_one_sensitivity


# --- the sensitivity is no larger than needed -------------------------------------------------------------------------


def pulling(side, n_rows=1, length=NORM):
    """Rows that pull the first weight as hard as the loss can, to one side."""
    return [(length, 0.0, side * TARGET)] * n_rows


@pytest.mark.parametrize("length", [NORM, 1e308])
def test_a_row_pass_moves_as_far_as_its_sensitivity(length):
    """The replaced user comes first and nobody else has rows: all iterates are apart by two steps."""
    statistic = row_pass(losses.huber(0.5), Ball(50.0), 200, per_user=1, boldness=0.1)
    first = int(mixing_order(200)[0])
    blocks = [pulling(1, length=length) if j == first else [] for j in range(200)]
    far = moved(statistic, blocks, first, pulling(-1, length=length))
    exact = 2 * 0.5 * NORM * statistic.step_size
    assert far == pytest.approx(exact, rel=1e-9)
    assert exact < statistic.replace_one_sensitivity < exact * (1 + 1e-6)


def test_a_row_pass_moves_as_far_as_all_rows_of_a_user():
    """Three rows, of a user who happens to come early; more rows than three change nothing."""
    statistic = row_pass(losses.huber(0.5), Ball(50.0), 400, per_user=3, boldness=0.1)
    visits = np.argsort(mixing_order(1200)).reshape(400, 3)
    early = int(np.argmin(visits.sum(axis=1)))
    blocks = [pulling(1, 3) if j == early else [] for j in range(400)]
    far = moved(statistic, blocks, early, pulling(-1, 3))
    assert 0.85 * statistic.replace_one_sensitivity < far <= statistic.replace_one_sensitivity
    assert moved(statistic, blocks, early, pulling(-1, 300)) == far
    assert far == pytest.approx(0.5 * NORM * statistic.step_size * 2 * np.sum(1 - visits[early] / 1200), rel=1e-9)


@pytest.mark.parametrize(("n_users", "n_steps"), [(40, 1), (40, 4), (43, 4), (40, 40)])
def test_a_batch_pass_moves_as_far_as_its_sensitivity(n_users, n_steps):
    statistic = batch_pass(row_pass(losses.huber(0.5), Ball(50.0), n_users, boldness=0.1), n_steps)
    blocks = [pulling(1)] + [[(0.0, 0.0, 0.0)]] * (n_users - 1)
    far = moved(statistic, blocks, 0, pulling(-1))
    exact = 2 * 0.5 * NORM * statistic.step_size / (n_users // n_steps)
    assert far == pytest.approx(exact, rel=1e-9)
    assert exact < statistic.replace_one_sensitivity < exact * (1 + 1e-6)


def test_a_filtered_batch_pass_moves_as_far_as_its_sensitivity():
    """Users at both ends of the reach; farther ones count as the usual gradient."""
    reach = 0.2
    sgd = replace(row_pass(losses.huber(0.5), Ball(50.0), 40, boldness=1e-4), domain=Ball(1e-3, np.zeros(2)))
    statistic = batch_pass(sgd, 4, np.zeros(2), reach)
    inside, outside = reach / NORM * (1 - 1e-9), reach / NORM * (1 + 1e-6)

    def user(target):
        return [(NORM, 0.0, target)]

    blocks = [user(inside)] + [[(0.0, 0.0, 0.0)]] * 39
    far = moved(statistic, blocks, 0, user(-inside))
    assert 0.98 * statistic.replace_one_sensitivity < far <= statistic.replace_one_sensitivity
    for other in (user(-outside), user(-2.0), user(math.nan), []):
        assert moved(statistic, blocks, 0, other) == pytest.approx(far / 2, rel=1e-3)


def two_steps():
    """One without rows leads away from the start; the next one agrees with it there, but not any more."""
    usual, rows = np.array([0.0, 1.0]), SafeRows(1, NORM, TARGET)
    statistic = SafeBatchPass(losses.squared, np.zeros(2), Ball(1.0), 0.4, 2, rows, 2, usual, 1e-3)
    return statistic, [[], [(0.0, NORM, -1 / NORM)]]


def test_gradients_change_along_a_filtered_trajectory():
    statistic, blocks = two_steps()
    far = moved(statistic, blocks, 1, [])
    assert far > 100 * 2 * statistic.step_size * statistic.reach  # as far as users could be apart at the start
    assert far <= statistic.replace_one_sensitivity


def test_who_counts_is_decided_at_the_start():
    """At -.4 the second user's gradient is .1, no longer within reach of the usual 1, and still counts."""
    statistic, blocks = two_steps()
    np.testing.assert_allclose(vector(statistic, blocks), [0.0, (-0.4 - 0.44) / 2], atol=1e-12)
    np.testing.assert_allclose(vector(statistic, [[], []]), [0.0, (-0.4 - 0.8) / 2], atol=1e-12)


def test_the_sensitivity_of_a_filter_is_never_above_that_of_none():
    sgd = row_pass(losses.logistic, Ball(1.0), 40, boldness=0.1)
    everyone = batch_pass(sgd, 4).replace_one_sensitivity
    for reach in (1e-6, 0.1, 1.0, 1e6):
        assert batch_pass(sgd, 4, np.zeros(2), reach).replace_one_sensitivity <= everyone
    assert batch_pass(sgd, 4, np.zeros(2), 0.01).replace_one_sensitivity < 0.95 * everyone


@pytest.mark.parametrize("kind", ["rows", "batches"])
def test_a_usual_gradient_and_the_reach_are_what_users_are_compared_with(kind):
    sgd = row_pass(losses.squared, Ball(5.0), 2, per_user=1, boldness=0.01)
    if kind == "rows":
        assert vector(sgd, [pulling(1), pulling(1)])[0] > 0
        return
    usual = np.array([0.25, -0.5])
    statistic = batch_pass(sgd, 1, usual, 0.1)
    np.testing.assert_allclose(vector(statistic, [pulling(1), []]), -sgd.step_size * usual, rtol=1e-12)
