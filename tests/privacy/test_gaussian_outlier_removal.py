import contextlib
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, norm
from support import SilentNoise, brute_counts, climb, gaussian_removal, passes, with_h_index
from support_audit import audited_gaussian_epsilon

from userdp.paper import concentration as c
from userdp.paper import concentration as gates
from userdp.privacy.accounting import Budget, Cost, gaussian_multiplier
from userdp.privacy.mechanism import Aborted
from userdp.privacy.noise import SeededNoise, gaussian_std

TEST_STD = 0.5


def gaussian_tested(**change):
    arguments = {"n_vectors": 100, "noise_multiplier": 5.0, "test_std": 3.0, "failure": 1e-3, "rounds": 3}
    return gaussian_removal(**(arguments | change))


def threshold(record):
    return record.n_vectors - record.slack + record.margin


# --- test: margin, slack, failure -------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [1, 7, 400])
@pytest.mark.parametrize("failure", [1e-12, 1e-6, 0.01, 0.3, 0.49, 0.99])
def test_the_margin_makes_a_bad_round_pass_as_rarely_as_claimed(rounds, failure):
    record = gaussian_tested(failure=failure, rounds=rounds)
    drawn = gaussian_std(1.0, 3.0, 1)
    assert norm.sf((record.margin + 1) / drawn) <= failure
    assert record.margin == 0 or failure < norm.sf(record.margin / drawn)


def test_the_margin_is_for_the_noise_that_is_drawn(monkeypatch):
    """Drawn is a little more than what is charged: the failure must be that of the larger noise."""
    monkeypatch.setattr(gates, "gaussian_std", lambda sensitivity, multiplier, dimension: 1.5 * multiplier)
    record = gaussian_tested()
    assert norm.sf((record.margin + 1) / 4.5) <= 1e-3 < norm.sf(record.margin / 4.5)


@pytest.mark.parametrize("rounds", [1, 7, 400])
@pytest.mark.parametrize("false_abort", [1e-9, 1e-3, 0.3, 0.9])
def test_the_slack_makes_a_false_abort_in_any_round_as_rare_as_asked(rounds, false_abort):
    record = gaussian_tested(rounds=rounds, false_abort=false_abort)
    reach = record.slack - record.margin
    assert rounds * norm.sf(reach / 3.0) <= false_abort
    assert reach == 0 or false_abort < rounds * norm.sf((reach - 1) / 3.0)


def test_tolerated_outliers_add_to_the_slack_alone():
    plain, tolerant = gaussian_tested(), gaussian_tested(outliers=20)
    assert (tolerant.margin, tolerant.slack, tolerant.cost) == (plain.margin, plain.slack + 20, plain.cost)
    assert tolerant.sensitivity(1.0, 1) > plain.sensitivity(1.0, 1)


@pytest.mark.parametrize("outliers", [0, 20])
def test_every_round_tests_the_h_index_at_the_threshold(outliers):
    record = gaussian_tested(outliers=outliers)
    assert 0 < record.margin < record.slack
    session = record.start(SilentNoise())
    for _ in range(2):
        assert session.release(with_h_index(100, threshold(record)), 1.0) == 0.0
    with pytest.raises(Aborted, match="too many users"):
        session.release(with_h_index(100, threshold(record) - 1), 1.0)


@pytest.mark.parametrize(("shift", "passing"), [(0, True), (-(2.0**-30), False)])
def test_the_noisy_h_index_is_what_is_compared(shift, passing):
    record = gaussian_tested()
    vectors = with_h_index(100, threshold(record) + 3)
    assert passes(record, vectors, SilentNoise(shifts=[shift - 3, 0, shift - 3, 0, shift - 3])) == 3 * passing


def test_the_noise_of_the_tests_has_the_deviation_that_is_paid_for():
    """Vectors whose h-index is one deviation below the threshold pass one time in six."""
    record = gaussian_tested(n_vectors=300, test_std=10.0, failure=0.01, rounds=1)
    noise, runs, vectors = SeededNoise(3), 800, with_h_index(300, threshold(record) - 10)
    passed = sum(passes(record, vectors, noise) for _ in range(runs))
    assert binomtest(passed, runs, norm.sf(1.0)).pvalue > 1e-6


def test_bad_rounds_pass_no_more_often_than_claimed_however_many_there_are():
    """Forty rounds, each of them bad: only the first matters, because a bad round that fails ends the session."""
    record = gaussian_tested(n_vectors=160, test_std=10.0, failure=0.1, false_abort=0.2, rounds=40)
    noise, runs, vectors = SeededNoise(1), 2000, with_h_index(160, 160 - record.slack - 1)
    passed = sum(passes(record, vectors, noise) > 0 for _ in range(runs))
    assert binomtest(passed, runs, record.cost.failure, alternative="greater").pvalue > 1e-6
    assert binomtest(passed, runs, 0.09, alternative="less").pvalue > 1e-6


def test_vectors_with_the_tolerated_outliers_abort_as_rarely_as_asked():
    record = gaussian_tested(n_vectors=200, test_std=5.0, failure=0.01, false_abort=0.2, rounds=5, outliers=20)
    noise, runs, vectors = SeededNoise(2), 600, with_h_index(200, 180)
    aborted = sum(passes(record, vectors, noise) < 5 for _ in range(runs))
    assert binomtest(aborted, runs, 0.2, alternative="greater").pvalue > 1e-6
    assert binomtest(aborted, runs, 0.1, alternative="less").pvalue > 1e-6


# --- session ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("radius", "outliers"), [(1.0, 0), (0.5, 9), (8.0, 0)])
def test_what_leaves_is_the_tight_filtered_mean_with_noise_of_the_tight_sensitivity(radius, outliers):
    record = gaussian_tested(outliers=outliers)
    vectors = radius * np.random.default_rng(0).normal(0, 0.1, (100, 3))
    vectors[:5] = [np.nan, 50.0, 0.0]
    noise = SilentNoise()
    released = record.start(noise).release(vectors, radius)
    np.testing.assert_allclose(released, vectors[5:].mean(axis=0))
    exact = c.sensitivity(100, record.slack, radius)
    assert noise.asked == [("gaussian", 1.0, 3.0), ("gaussian", record.sensitivity(radius, 3), 5.0)]
    assert record.sensitivity(radius, 3) == c.rounded_sensitivity(exact, 100, 3, radius)
    assert 1.0 < record.sensitivity(radius, 3) / exact < 1 + 1e-4


@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_failed_test_releases_nothing_and_ends_the_session(before):
    noise = SilentNoise()
    session = gaussian_tested().start(noise)
    for _ in range(before):
        session.release(np.zeros((100, 1)), 1.0)
    with pytest.raises(Aborted):
        session.release(with_h_index(100, 10), 1.0)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="a test has failed") as error:
            session.release(np.zeros((100, 1)), 1.0)
        assert not isinstance(error.value, Aborted)
    assert len(noise.asked) == 2 * before + 1


def test_a_round_that_is_interrupted_before_its_answer_ends_the_session():
    class Interrupted(SilentNoise):
        def gaussian(self, query, sensitivity, multiplier):
            raise KeyboardInterrupt

    session = gaussian_tested().start(Interrupted())
    with pytest.raises(KeyboardInterrupt):
        session.release(np.zeros((100, 1)), 1.0)
    with pytest.raises(RuntimeError, match="paid for"):
        session.release(np.zeros((100, 1)), 1.0)


def test_another_number_of_vectors_than_priced_is_refused_without_a_round():
    noise = SilentNoise()
    session = gaussian_tested(rounds=1).start(noise)
    for size in (99, 101, 200):
        with pytest.raises(ValueError, match="Expected 100 vectors, as was priced"):
            session.release(np.zeros((size, 1)), 1.0)
    assert noise.asked == []
    session.release(np.zeros((100, 1)), 1.0)


# --- sensitivity ------------------------------------------------------------------------------------------------------

FAR = 1000.0  # so that a mean that lost its weights, and became 0, is seen
SPECIAL = [math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324, 1e-308]
places = st.one_of(
    st.sampled_from([FAR, FAR + 0.5, FAR + 1, FAR - 1, FAR + 1.5, FAR + 2, FAR - 2, FAR + 3]),
    st.floats(FAR - 3, FAR + 3),
    st.sampled_from(SPECIAL),
)


class Passing(SilentNoise):
    """Lets every test pass, and keeps what was tested."""

    def __init__(self):
        super().__init__()
        self.tested = []

    def gaussian(self, query, sensitivity, multiplier):
        if (sensitivity, multiplier) != (1.0, TEST_STD):
            return query
        self.tested.append(float(query[0]))
        return query + 1e6


@st.composite
def neighbours(draw):
    """A small record; a cluster with some vectors on its edges or anywhere; and what one of them is replaced by."""
    outliers = draw(st.integers(0, 2))
    size = draw(st.integers(2 * (1 + outliers) + 4, 2 * (1 + outliers) + 8))
    record = gaussian_removal(size, 5.0, TEST_STD, 0.4, 0.2, rounds=3, outliers=outliers)
    dimension = draw(st.integers(1, 2))
    row = st.lists(places, min_size=dimension, max_size=dimension)
    loose = draw(st.lists(row, min_size=1, max_size=size))
    centre = draw(row)
    rows = np.array((loose + [centre] * size)[:size], dtype=float)
    return record, rows, draw(st.integers(0, size - 1)), np.array(draw(row), dtype=float)


def moved(record, rows, other, radii):
    """How far the means of some round are apart, as a fraction of its sensitivity; 0 for what `failure` stands for."""
    means, tested, fractions = [], [], []
    with np.errstate(all="ignore"):
        for vectors in (rows, other):
            noise = Passing()
            session = record.start(noise)
            means.append([session.release(vectors, radius) for radius in radii])
            tested.append(noise.tested)
        assert np.max(np.abs(np.subtract(*tested))) <= 1
        for radius, one, two in zip(radii, *means, strict=True):
            best = max(c.h_index(brute_counts(c.comparable(x, radius), radius)) for x in (rows, other))
            if best >= record.n_vectors - record.slack:
                fractions.append(np.linalg.norm(one - two) / record.sensitivity(radius, rows.shape[1]))
    return max(fractions, default=0.0)


@settings(max_examples=300, deadline=None)
@given(pair=neighbours())
def test_no_replacement_moves_a_test_by_more_than_one_or_a_mean_by_more_than_its_sensitivity(pair):
    record, rows, replaced, replacement = pair
    assert record.slack == 1 + record.outliers
    other = rows.copy()
    other[replaced] = replacement
    assert moved(record, rows, other, (1.0, 0.5, 2.0)) <= 1.0


def test_hill_climbing_does_not_exceed_the_sensitivity():
    record = gaussian_removal(12, 5.0, TEST_STD, 0.4, 0.2)

    def ratio(rows):
        return moved(record, FAR + rows[1:], FAR + np.vstack([rows[:1], rows[2:]]), (1.0,))

    best = 0.0
    for seed in range(3):
        rng = np.random.default_rng(seed)
        best = max(best, climb(ratio, rng.normal(0, 0.3, (13, 1)), rng, steps=200))
    assert 0.5 < best <= 1.0


@pytest.mark.parametrize("outliers", [0, 6])
def test_partial_weights_follow_the_tight_ramp_and_replacements_stay_within_the_sensitivity(outliers):
    """Vectors on the edge of the radius keep part of their weight, and a user is replaced."""
    record = gaussian_tested(n_vectors=60, test_std=TEST_STD, outliers=outliers)
    partial = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        vectors = FAR + rng.normal(0, 0.05, (61, 1))
        edge = rng.integers(1, record.slack)
        vectors[:edge] = FAR + 1.0 + rng.normal(0, 0.04, (edge, 1))
        one, other = vectors[1:], np.vstack([vectors[:1], vectors[2:]])
        weights = c.tight_ramp(60, record.slack).weights(brute_counts(one, 1.0))
        partial += bool(np.any((weights > 0) & (weights < 1)))
        released = record.start(Passing()).release(one, 1.0)
        np.testing.assert_allclose(released - FAR, weights @ (one - FAR) / weights.sum(), atol=1e-9)
        assert moved(record, one, other, (1.0, 1.0, 1.0)) <= 1.0
    assert partial > 15


def test_a_user_moves_the_mean_of_the_others_by_two_radii_over_their_number():
    """The least that the sensitivity must be: everyone in the middle, the user at one edge, then at the other."""
    record, rows, means = gaussian_tested(), np.zeros((100, 1)), []
    for place in (0.5, -0.5):
        rows[0] = place
        means.append(record.start(SilentNoise()).release(rows, 0.5)[0])
    assert means[0] - means[1] == pytest.approx(2 * 0.5 / 100, rel=1e-12)
    assert means[0] - means[1] <= record.sensitivity(0.5, 1)


# --- cost -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [1, 3, 16, 1000])
def test_the_cost_is_a_test_and_a_mean_a_round_and_the_failure_once(rounds):
    record = gaussian_tested(n_vectors=400, test_std=4.0, noise_multiplier=8.0, rounds=rounds)
    expected = rounds * (1 / 16 + 1 / 64)
    assert record.cost == Cost(gaussian=record.cost.gaussian, failure=1e-3)
    assert expected <= record.cost.gaussian <= expected * (1 + 1e-12)


@pytest.mark.slow
def test_audit_of_rounds_of_test_and_release():
    """A user at one edge of the ball against the other edge, everyone else in the middle; two rounds."""
    runs, delta, epsilon, test_std = 800, 1e-2, 4.0, 4.0

    def outcomes(place, multiplier):
        record = gaussian_removal(400, multiplier, test_std, 1e-3, rounds=2)
        vectors = np.zeros((400, 1))
        vectors[0] = 0.999 * place  # pairs exactly a radius apart would be compared one by one
        noise, values = SeededNoise(int(9 + place)), np.full(runs, math.inf)
        for run in range(runs):
            session = record.start(noise)
            with contextlib.suppress(Aborted):
                values[run] = np.mean([session.release(vectors, 1.0)[0] for _ in range(2)])
        return values

    def audited(multiplier):
        return audited_gaussian_epsilon(outcomes(1.0, multiplier), outcomes(-1.0, multiplier), delta)

    multiplier = gaussian_multiplier(Budget(epsilon, delta), 2, Cost(gaussian=2 / test_std**2, failure=1e-3))
    assert 0.45 * epsilon < audited(multiplier) <= epsilon
    assert audited(multiplier / 2) > epsilon


# --- records ----------------------------------------------------------------------------------------------------------


def test_the_fewest_vectors_are_two_slacks_and_four():
    slack = gaussian_tested().slack
    record = gaussian_tested(n_vectors=2 * slack + 4)
    assert record.sensitivity(1.0, 1) > 0
    with pytest.raises(ValueError, match=f">= {2 * slack + 4} "):
        gaussian_tested(n_vectors=2 * slack + 3)
