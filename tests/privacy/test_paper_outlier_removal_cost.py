"""What the paper's mechanism is charged for: how far a replacement moves score and mean, and the noise it gets."""

import contextlib
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom
from support_audit import audited_gaussian_epsilon
from support_paper import Choosing, coins_that_change, paper

from userdp.privacy.accounting import Cost, epsilon_at
from userdp.privacy.mechanism import Aborted
from userdp.privacy.noise import SeededNoise

# --- sensitivity ------------------------------------------------------------------------------------------------------


FAR = 1000.0  # so that a mean that lost its vectors, and became 0, is seen
SPECIAL = [math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324, 1e-308]
places = st.one_of(
    st.sampled_from([FAR, FAR + 0.5, FAR + 1, FAR - 1, FAR + 2, FAR - 2, FAR + 2.5, FAR + 4]),
    st.floats(FAR - 3, FAR + 3),
    st.sampled_from(SPECIAL),
)
SIZE = 24


@st.composite
def neighbours(draw):
    """A cluster, vectors on its edges or anywhere, and what one of them is replaced by."""
    dimension = draw(st.integers(1, 2))
    row = st.lists(places, min_size=dimension, max_size=dimension)
    kinds = draw(st.lists(row, min_size=1, max_size=3))
    loose = draw(st.lists(st.one_of(row, st.sampled_from(kinds)), min_size=1, max_size=SIZE))
    rows = np.array((loose + [draw(row)] * SIZE)[:SIZE], dtype=float)
    uniforms = np.random.default_rng(draw(st.integers(0, 2**32))).random(SIZE)
    return rows, draw(st.integers(0, SIZE - 1)), np.array(draw(row), dtype=float), uniforms


@settings(max_examples=300, deadline=None)
@given(pair=neighbours())
def test_a_replacement_moves_the_score_and_the_mean_of_equal_coins_by_no_more_than_is_charged(pair):
    rows, replaced, replacement, uniforms = pair
    other = rows.copy()
    other[replaced] = replacement
    record = paper(n_vectors=SIZE, selection_failure=0.05)
    noises, means = (Choosing(uniforms), Choosing(uniforms)), []
    with np.errstate(all="ignore"):
        for noise, vectors in zip(noises, (rows, other), strict=True):
            means.append(record.start(noise).release(vectors, 1.0))
    assert abs(noises[0].query - noises[1].query) <= 2 * (SIZE - 1)
    if 3 * max(noise.query for noise in noises) < 2 * SIZE**2:
        return
    common = np.arange(SIZE) != replaced
    assert np.max(np.abs(noises[0].probabilities - noises[1].probabilities)[common]) <= 6 / (SIZE - 3) + 1e-12
    changed = np.count_nonzero((noises[0].kept != noises[1].kept)[common])
    if changed <= coins_that_change(SIZE, 0.05):
        moved = np.linalg.norm(means[0] - means[1])
        assert moved <= 3 * 2.0 / SIZE * (1 + changed) * (1 + 1e-9)
        assert moved <= record.sensitivity(1.0, rows.shape[1])


def test_the_scores_sensitivity_is_attained():
    rows, queries = np.zeros((100, 1)), []
    for place in (0.0, 50.0, math.nan):
        rows[0] = place
        noise = Choosing()
        paper().start(noise).release(rows, 1.0)
        queries.append(noise.query)
    assert [queries[0] - query for query in queries] == [0, 2 * 99, 2 * 99]


@pytest.mark.parametrize(("n_vectors", "failure"), [(24, 0.05), (50, 1e-3), (100, 1e-9), (1000, 1e-6), (1000, 0.5)])
def test_the_sensitivity_is_that_of_the_coins_that_may_change_at_twice_the_radius(n_vectors, failure):
    changed = coins_that_change(n_vectors, failure)
    assert binom.sf(changed, n_vectors - 1, 6 / (n_vectors - 3)) <= failure
    for radius in (1.0, 0.01):
        exact = 3 * (2 * radius) / n_vectors * (1 + changed)
        sensitivity = paper(n_vectors=n_vectors, selection_failure=failure).sensitivity(radius, 3)
        assert exact <= sensitivity <= exact * (1 + 1e-6)


# --- cost and noise ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n_vectors", "ratio", "scale", "failure"), [(50, 2.0, 3.0, 1e-3), (1000, 0.7, 20.0, 1e-8)])
def test_the_cost_is_the_test_the_gaussian_and_both_failures(n_vectors, ratio, scale, failure):
    record = paper(n_vectors=n_vectors, noise_ratio=ratio, test_scale=scale, selection_failure=failure)
    cost = record.cost
    pure = 2 * (n_vectors - 1) / (n_vectors * scale)
    assert cost == Cost(cost.gaussian, cost.pure, failure=cost.failure)
    assert pure <= cost.pure[0] <= pure * (1 + 1e-12)
    assert len(cost.pure) == 1
    gaussian = (6 / n_vectors * (1 + coins_that_change(n_vectors, failure)) / ratio) ** 2
    assert gaussian <= cost.gaussian <= gaussian * (1 + 1e-4)
    both = failure + math.exp(-2 * n_vectors / 15 / scale) / 2
    assert cost.failure == pytest.approx(both, rel=0.05)
    assert cost.failure >= failure + record.test_failure


@pytest.mark.parametrize("rounds", [2, 7])
@pytest.mark.parametrize(("n_vectors", "ratio", "scale", "failure"), [(50, 2.0, 3.0, 1e-3), (1000, 0.7, 20.0, 1e-8)])
def test_more_rounds_cost_an_above_threshold_the_gaussians_and_a_selection_failure_each(
    rounds, n_vectors, ratio, scale, failure
):
    record = paper(n_vectors=n_vectors, noise_ratio=ratio, test_scale=scale, selection_failure=failure, rounds=rounds)
    cost, once = record.cost, replace(record, rounds=1).cost
    assert cost == Cost(cost.gaussian, cost.pure, failure=cost.failure)
    moved = 2 * (n_vectors - 1)
    pure = moved / (n_vectors * scale / 2) + 2 * moved / (n_vectors * scale)
    assert pure * (1 - 1e-15) <= cost.pure[0] <= pure * (1 + 1e-12)
    assert len(cost.pure) == 1
    assert cost.gaussian == pytest.approx(rounds * once.gaussian, rel=1e-12)
    assert cost.failure >= record.test_failure + rounds * failure
    assert cost.failure == pytest.approx(record.test_failure + rounds * failure, rel=1e-12)


@pytest.mark.parametrize("radius", [0.01, 1.0, 300.0])
@pytest.mark.parametrize("dimension", [1, 40])
def test_the_noise_is_the_printed_one_and_no_less_than_is_charged(radius, dimension):
    """Paper: Alg. 1, line 22 (sigma_i)."""
    record, noise = paper(), Choosing(shift=0)
    record.start(noise).release(np.zeros((100, dimension)), radius)
    (test, scale), (kind, sensitivity, multiplier) = noise.asked
    assert (test, scale, kind) == ("integer_laplace", 300.0, "gaussian")
    assert sensitivity == record.sensitivity(radius, dimension)
    assert sensitivity * multiplier == pytest.approx(2.0 * radius, rel=1e-12)
    assert 1 / multiplier**2 <= record.cost.gaussian


def test_audit_of_test_and_release():
    """Everyone in the middle, a user at one edge of the weights' radius against the other.

    The mean moves by 4 tau / K, which is far less than is charged for: the noise is what such a user must see.
    """
    runs, delta, ratio = 600, 1e-2, 0.01
    record = paper(noise_ratio=ratio)
    rows = np.zeros((100, 1))
    samples = []
    for place in (2.0, -2.0):
        rows[0] = place
        noise, values = SeededNoise(int(5 + place)), np.full(runs, math.inf)
        for run in range(runs):
            with contextlib.suppress(Aborted):
                values[run] = record.start(noise).release(rows, 1.0)[0]
        samples.append(values)
    seen = epsilon_at(Cost(gaussian=(4 / 100 / ratio) ** 2), delta)
    audited = audited_gaussian_epsilon(*samples, delta)
    assert 0.8 * seen < audited <= seen
    assert audited <= epsilon_at(Cost(record.cost.gaussian, record.cost.pure), delta)
