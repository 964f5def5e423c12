import math

import numpy as np
import pytest
from scipy.stats import binomtest
from support import SilentNoise, passes, with_h_index
from support_audit import audited_gaussian_epsilon

from userdp.paper import concentration as c
from userdp.paper import concentration as gates
from userdp.paper.outlier_removal import OutlierRemoval
from userdp.privacy import accounting
from userdp.privacy.mechanism import Aborted
from userdp.privacy.noise import SeededNoise

RECORD = OutlierRemoval(n_vectors=200, noise_multiplier=5.0, test_epsilon=0.5, failure=1e-4, false_abort=1e-8)


@pytest.mark.parametrize("rounds", [1, 30])
def test_margin_and_slack_follow_from_the_noise_tails(rounds):
    record = OutlierRemoval(400, 5.0, 0.5, 1e-6, 1e-2, rounds)
    tail = gates.laplace_tail if rounds == 1 else gates.above_threshold_tail
    assert tail(0.5, record.margin + 1) <= 1e-6 < tail(0.5, record.margin)
    aborting = record.slack - record.margin + 1
    assert tail(0.5, aborting) <= 1e-2 / rounds < tail(0.5, aborting - 1)


@pytest.mark.parametrize("rounds", [1, 30])
def test_tolerated_outliers_add_to_the_slack_and_abort_no_more_often(rounds):
    plain = OutlierRemoval(600, 5.0, 0.5, 1e-6, 1e-2, rounds)
    tolerant = OutlierRemoval(600, 5.0, 0.5, 1e-6, 1e-2, rounds, outliers=50)
    assert (tolerant.margin, tolerant.slack) == (plain.margin, plain.slack + 50)
    assert tolerant.threshold == plain.threshold - 50
    assert tolerant.cost == plain.cost
    assert tolerant.sensitivity(1.0, 1) > plain.sensitivity(1.0, 1)


@pytest.mark.parametrize("rounds", [1, 3])
def test_the_test_is_on_the_h_index_at_its_threshold(rounds):
    record = OutlierRemoval(400, 5.0, 0.5, 1e-4, 0.01, rounds)
    threshold = 400 - record.slack + record.margin
    assert record.start(SilentNoise()).release(with_h_index(400, threshold), 1.0) == 0.0
    with pytest.raises(Aborted, match="too many users"):
        record.start(SilentNoise()).release(with_h_index(400, threshold - 1), 1.0)


@pytest.mark.parametrize(("rounds", "scales"), [(1, [1.0]), (2, [2.0, 4.0, 4.0])])
def test_the_noise_of_the_test_is_what_its_epsilon_pays_for(rounds, scales):
    """One discrete Laplace of 1/epsilon, or 2/epsilon for the threshold and 4/epsilon for each answer."""
    noise = SilentNoise()
    session = OutlierRemoval(400, 5.0, 0.5, 1e-4, 0.01, rounds).start(noise)
    for _ in range(rounds):
        session.release(np.zeros((400, 1)), 1.0)
    assert [scale for kind, scale, *_ in noise.asked if kind == "integer_laplace"] == [s / 0.5 for s in scales]


def test_what_leaves_is_the_tight_filtered_mean_with_noise_of_the_tight_sensitivity():
    rng = np.random.default_rng(0)
    vectors = rng.normal(0, 0.1, (200, 3))
    vectors[:5] = [np.nan, 50.0, 0.0]
    noise = SilentNoise()
    released = RECORD.start(noise).release(vectors, 1.0)
    rows = c.comparable(vectors, 1.0)
    counts = c.neighbour_counts(rows, 1.0)
    np.testing.assert_allclose(released, c.filtered_mean(rows, counts, c.tight_ramp(200, RECORD.slack)))
    np.testing.assert_allclose(released, vectors[5:].mean(axis=0))
    kind, sensitivity, multiplier = noise.asked[-1]
    assert (kind, multiplier) == ("gaussian", 5.0)
    assert 1.0 <= sensitivity / c.sensitivity(200, RECORD.slack, 1.0) < 1 + 1e-4


def test_the_cost_is_the_pure_test_the_gaussians_and_the_failure():
    record = OutlierRemoval(400, 8.0, 0.5, 1e-7, 0.01, rounds=16)
    assert record.cost.pure == (0.5,)
    assert record.cost.gaussian == pytest.approx(0.25, rel=1e-12)
    assert record.cost.gaussian >= 0.25
    assert record.cost.failure == 1e-7
    assert record.cost.subsampled == ()


def test_passing_below_the_slack_is_as_rare_as_claimed():
    record = OutlierRemoval(100, 5.0, 1.0, 0.05, 0.05)
    noise, vectors = SeededNoise(0), with_h_index(100, 100 - record.slack - 1)
    passed = sum(passes(record, vectors, noise) > 0 for _ in range(2000))
    assert binomtest(passed, 2000, 0.05, alternative="greater").pvalue > 1e-6
    assert passed > 10


def test_passing_below_the_slack_is_not_multiplied_by_the_rounds():
    """Forty rounds, each of them bad: only the first matters, because a bad round that fails ends the session."""
    record = OutlierRemoval(160, 5.0, 1.0, 0.05, 0.2, rounds=40)
    noise, vectors = SeededNoise(1), with_h_index(160, 160 - record.slack - 1)
    passed = sum(passes(record, vectors, noise) > 0 for _ in range(2000))
    assert passed > 10
    assert binomtest(passed, 2000, 0.05, alternative="greater").pvalue > 1e-6


def test_concentrated_vectors_abort_as_rarely_as_asked():
    record = OutlierRemoval(200, 5.0, 1.0, 0.01, 0.1, rounds=10)
    noise, vectors = SeededNoise(2), np.zeros((200, 1))
    aborted = sum(passes(record, vectors, noise) < 10 for _ in range(1000))
    assert binomtest(aborted, 1000, 0.1, alternative="greater").pvalue > 1e-6


def test_a_aborted_stream_gives_nothing_more():
    session = OutlierRemoval(400, 5.0, 0.5, 1e-4, 0.01, rounds=5).start(SilentNoise())
    with pytest.raises(Aborted):
        session.release(with_h_index(400, 10), 1.0)
    with pytest.raises(RuntimeError, match="no more answers"):
        session.release(np.zeros((400, 1)), 1.0)


@pytest.mark.slow
def test_audit_of_test_and_release():
    """A user at one edge of the ball against the other edge, everyone else in the middle: the bound's worst case."""
    runs, delta, epsilon = 3000, 1e-2, 1.0

    def outcomes(place, multiplier):
        record = OutlierRemoval(1500, multiplier, 0.1, 1e-3, 0.05)
        vectors = np.zeros((1500, 1))
        vectors[0] = 0.999 * place  # pairs exactly a radius apart would be compared one by one
        noise, values = SeededNoise(int(9 + place)), np.zeros(runs)
        for run in range(runs):
            try:
                values[run] = record.start(noise).release(vectors, 1.0)[0]
            except Aborted:
                values[run] = math.inf
        return values

    def audited(multiplier):
        return audited_gaussian_epsilon(outcomes(1.0, multiplier), outcomes(-1.0, multiplier), delta)

    other = accounting.Cost(pure=(0.1,), failure=1e-3)
    multiplier = accounting.gaussian_multiplier(accounting.Budget(epsilon, delta), 1, other)
    assert 0.45 * epsilon < audited(multiplier) <= epsilon
    assert audited(multiplier / 2) > epsilon


@pytest.mark.parametrize("radius", [1.0, 1e3])
@pytest.mark.parametrize("outliers", [0, 6])
def test_the_released_mean_moves_by_at_most_its_sensitivity_for_replacements_with_partial_weights(radius, outliers):
    """Through the whole session: vectors on the edge keep part of their weight, and a user is replaced."""
    record = OutlierRemoval(60, 5.0, 2.0, 1e-3, 0.05, outliers=outliers)
    assert record.sensitivity(radius, 1) >= c.sensitivity(60, record.slack, radius)
    partial = 0
    for seed in range(150):
        rng = np.random.default_rng(seed)
        vectors = rng.normal(0, 0.05, (61, 1))
        edge = rng.integers(1, record.slack)
        vectors[:edge] = 1.0 + rng.normal(0, 0.04, (edge, 1))
        one, other = radius * (1000 + vectors[1:]), radius * (1000 + np.vstack([vectors[:1], vectors[2:]]))
        weights = c.tight_ramp(60, record.slack).weights(c.neighbour_counts(one, radius))
        partial += bool(np.any((weights > 0) & (weights < 1)))
        released = []
        for rows in (one, other):
            noise = SilentNoise(shifts=[100])  # pass the test in any case
            released.append(record.start(noise).release(rows, radius))
            assert noise.asked[-1] == ("gaussian", record.sensitivity(radius, 1), 5.0)
        expected = (weights[:, None] * (one - one[-1])).sum(axis=0) / weights.sum() + one[-1]
        np.testing.assert_allclose(released[0], expected, rtol=1e-12)
        if max(c.h_index(c.neighbour_counts(x, radius)) for x in (one, other)) >= 60 - record.slack:
            assert np.linalg.norm(released[0] - released[1]) <= record.sensitivity(radius, 1)
    assert partial > 50
