"""The paper's mechanism: what it tests, selects and releases, and what it refuses."""

import contextlib
import math

import numpy as np
import pytest
from scipy.stats import binomtest
from support import SilentNoise, brute_counts, passes
from support_paper import Choosing, paper

from userdp.paper import concentration as c
from userdp.paper import paper_outlier_removal as printed
from userdp.privacy.mechanism import Aborted
from userdp.privacy.noise import SeededNoise

# --- the test ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_vectors", [50, 51, 52, 53, 54, 100, 101])
def test_the_noisy_score_must_reach_four_fifths(n_vectors):
    """In whole numbers: the least number of near pairs that is >= 4 K^2 / 5 passes, one less does not.

    Paper: Alg. 1, line 11.
    """
    record, rows = paper(n_vectors=n_vectors, selection_failure=0.1), np.zeros((n_vectors, 1))
    least = -(-4 * n_vectors**2 // 5)
    passing = SilentNoise(shifts=[least - n_vectors**2])
    record.start(passing).release(rows, 1.0)
    aborting = SilentNoise(shifts=[least - 1 - n_vectors**2])
    with pytest.raises(Aborted, match="too many users"):
        record.start(aborting).release(rows, 1.0)
    assert aborting.asked == [("integer_laplace", n_vectors * 3.0)]


def test_the_test_is_on_the_number_of_near_pairs():
    """60 of 70 vectors at one place are 3600 + 10 near pairs of 4900: less than four fifths. 63 are enough.

    Paper: Alg. 1, line 10 (s_i); Alg. 2, line 6 (s_i^t).
    """
    record = paper(n_vectors=70, selection_failure=0.1)
    for together, enough in ((60, False), (62, False), (63, True), (70, True)):
        rows = np.zeros((70, 1))
        rows[together:, 0] = 100.0 * np.arange(1, 71 - together)
        noise = Choosing(shift=0)
        if enough:
            record.start(noise).release(rows, 1.0)
        else:
            with pytest.raises(Aborted):
                record.start(noise).release(rows, 1.0)
        assert noise.query == together**2 + 70 - together


@pytest.mark.parametrize("dimension", [1, 5])
def test_the_score_is_taken_at_the_radius_and_the_weights_at_twice_it(dimension):
    """Paper: Alg. 1, line 10 (s_i); Alg. 1, line 14 (h_ij); Alg. 2, line 10 (h_i^t)."""
    rows = np.zeros((100, dimension))
    for apart, pairs, kept in (
        (1 - 1e-9, 10_000, 100), (1.0, 70**2 + 30**2, 100), (1.9, 70**2 + 30**2, 100), (2.1, 70**2 + 30**2, 70),
    ):  # fmt: skip
        rows[70:, 0] = apart * 3.0
        noise = Choosing()
        released = paper().start(noise).release(rows, 3.0)
        assert noise.query == pairs
        assert np.count_nonzero(noise.probabilities == 1.0) == kept
        assert released[0] == pytest.approx(rows[:kept, 0].mean())


def test_vectors_one_and_a_half_radii_apart_abort():
    rows = np.zeros((100, 1))
    rows[50:] = 1.5
    with pytest.raises(Aborted):
        paper().start(SilentNoise()).release(rows, 1.0)
    assert paper().start(SilentNoise()).release(rows, 1.6) == 0.75


@pytest.mark.parametrize("n_vectors", [23, 50, 51, 60])
@pytest.mark.parametrize("test_scale", [0.5, 3.0])
def test_the_failure_of_the_test_is_the_tail_from_the_best_score_below_two_thirds(n_vectors, test_scale):
    record = paper(n_vectors=n_vectors, test_scale=test_scale, selection_failure=0.2)
    highest = -(-2 * n_vectors**2 // 3) - 1  # the largest number of pairs below 2 K^2 / 3
    needed = -(-4 * n_vectors**2 // 5) - highest
    noise = np.arange(needed, needed + 60 * math.ceil(n_vectors * test_scale))
    rate = 1 / (n_vectors * test_scale)
    tail = float(np.sum(math.tanh(rate / 2) * np.exp(-rate * noise)))
    assert tail * (1 - 1e-12) <= record.test_failure <= tail * math.exp(2 * rate) + 1e-12


def test_scores_below_two_thirds_pass_as_rarely_as_claimed():
    record = paper(n_vectors=60, test_scale=4.0, selection_failure=0.1)
    rows = np.zeros((60, 1))
    rows[48:, 0] = 50.0
    rows[56:, 0] = 100.0
    pairs = int(brute_counts(rows, 1.0).sum())
    assert 2370 < pairs < 2400
    noise, runs = SeededNoise(0), 1200
    passed = sum(passes(record, rows, noise) for _ in range(runs))
    assert binomtest(passed, runs, record.test_failure, alternative="greater").pvalue > 1e-6
    assert binomtest(passed, runs, 0.7 * record.test_failure, alternative="less").pvalue > 1e-6


# --- selection --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_vectors", "together"), [(51, 26), (51, 27), (51, 30), (51, 34), (60, 30), (60, 31), (60, 40)]
)
def test_the_probabilities_rise_from_half_of_one_more_than_all_to_two_thirds(n_vectors, together):
    """Vectors with at most (K+1)/2 neighbours at twice the radius are never kept, with 2K/3 always.

    Paper: Alg. 1, line 15 (p_ij); Alg. 2, line 11 (p_i^t).
    """
    rows = np.zeros((n_vectors, 1))
    rows[together:, 0] = 100.0 * np.arange(1, n_vectors - together + 1)
    noise = Choosing()
    paper(n_vectors=n_vectors, selection_failure=0.1).start(noise).release(rows, 1.0)
    low, high = (n_vectors + 1) / 2, 2 * n_vectors / 3
    expected = min(1.0, max(0.0, (together - low) / (high - low)))
    np.testing.assert_allclose(noise.probabilities[:together], expected)
    assert not np.any(noise.probabilities[together:])


def test_the_mean_is_that_of_the_kept_vectors():
    """Paper: Alg. 1, lines 12-13; Alg. 1, line 21; Alg. 2, lines 8-9; Alg. 2, line 12 (g_i^t)."""
    rng = np.random.default_rng(0)
    rows = rng.uniform(0, 1.9, (60, 1))
    counts = c.neighbour_counts(rows, 1.0)
    weights = printed.paper_ramp(60).weights(counts)
    assert np.any((weights > 0) & (weights < 1))
    kept = []
    for _ in range(20):
        noise = Choosing(rng.random(60))
        released = paper(n_vectors=60, selection_failure=0.1).start(noise).release(rows, 0.5)
        np.testing.assert_array_equal(noise.probabilities, weights)
        kept.append(np.count_nonzero(noise.kept))
        np.testing.assert_allclose(released, rows[noise.kept].mean(axis=0))
    assert len(set(kept)) > 3


# --- sessions and errors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [np.zeros((100, 1)), np.full((100, 1), np.nan), np.zeros((99, 1))])
def test_a_mean_is_released_once_whatever_became_of_it(rows):
    session = paper().start(SilentNoise())
    with contextlib.suppress(Aborted, ValueError):
        session.release(rows, 1.0)
    with pytest.raises(RuntimeError, match="released and paid for, or the test has failed"):
        session.release(np.zeros((100, 1)), 1.0)


@pytest.mark.parametrize("passing", [0, 1, 3])
@pytest.mark.parametrize("rows", [np.full((100, 1), np.nan), np.zeros((99, 1))])
def test_the_first_round_that_fails_is_the_last(passing, rows):
    """Paper: Alg. 2, lines 15-16."""
    noise = SilentNoise()
    session = paper(rounds=6).start(noise)
    for _ in range(passing):
        session.release(np.zeros((100, 1)), 1.0)
    with pytest.raises((Aborted, ValueError)):
        session.release(rows, 1.0)
    asked = list(noise.asked)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="the test has failed"):
            session.release(np.zeros((100, 1)), 1.0)
    assert noise.asked == asked


def test_more_coordinates_than_priced_are_refused():
    noise = SilentNoise()
    with pytest.raises(ValueError, match=r"at most 2\^20 numbers"):
        paper(n_vectors=24, selection_failure=0.1).start(noise).release(np.broadcast_to(0.0, (24, 2**20 + 1)), 1.0)
    assert noise.asked == []
