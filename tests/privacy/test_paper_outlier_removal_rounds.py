"""The paper's mechanism for more than one round: AboveThreshold on the score, and what that costs."""

import contextlib
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binomtest
from support import SilentNoise, brute_counts, laplace_mass
from support_paper import in_rounds, paper

from userdp.paper import concentration as c
from userdp.paper import paper_outlier_removal as printed
from userdp.privacy.mechanism import Aborted
from userdp.privacy.noise import SeededNoise


@pytest.mark.parametrize(("n_vectors", "test_scale"), [(100, 3.0), (51, 0.7)])
def test_the_threshold_is_drawn_once_before_any_data_and_each_answer_and_coin_anew(n_vectors, test_scale):
    """Paper: Alg. 2, line 4; Alg. 2, line 6 (noise)."""
    noise, scale = SilentNoise(), n_vectors * test_scale
    session = in_rounds(n_vectors=n_vectors, test_scale=test_scale, selection_failure=0.1).start(noise)
    assert noise.asked == [("integer_laplace", scale / 2)]
    for _ in range(3):
        session.release(np.zeros((n_vectors, 1)), 1.0)
    assert [kind for kind, *_ in noise.asked[1:]] == 3 * ["integer_laplace", "coins", "gaussian"]
    assert noise.asked[1::3] == 3 * [("integer_laplace", scale)]


def test_the_threshold_of_a_single_round_has_no_noise():
    noise = SilentNoise()
    paper(rounds=1).start(noise)
    assert noise.asked == []


@pytest.mark.parametrize("n_vectors", [50, 51, 52, 53, 54])
@pytest.mark.parametrize("shift", [-70, 0, 5])
def test_the_noisy_score_of_every_round_must_reach_the_noisy_threshold(n_vectors, shift):
    """Paper: Alg. 2, line 7."""
    record, rows = in_rounds(n_vectors=n_vectors, selection_failure=0.1), np.zeros((n_vectors, 1))
    least = -(-4 * n_vectors**2 // 5) + shift - n_vectors**2
    # After the threshold's, every round takes one for its answer and one for its mean.
    session = record.start(SilentNoise(shifts=[shift, least, 0, least, 0, least - 1]))
    session.release(rows, 1.0)
    session.release(rows, 1.0)
    with pytest.raises(Aborted):
        session.release(rows, 1.0)


def test_every_round_is_noised_by_its_own_radius():
    record, noise = in_rounds(), SilentNoise()
    session = record.start(noise)
    for radius in (1.0, 300.0, 0.01):
        session.release(np.zeros((100, 4)), radius)
        kind, sensitivity, multiplier = noise.asked[-1]
        assert (kind, sensitivity) == ("gaussian", record.sensitivity(radius, 4))
        assert sensitivity * multiplier == pytest.approx(2.0 * radius, rel=1e-12)
        assert 3 / multiplier**2 <= record.cost.gaussian


@pytest.mark.parametrize("n_vectors", [23, 50, 60])
@pytest.mark.parametrize("test_scale", [0.5, 3.0])
def test_the_failure_of_more_rounds_is_the_tail_of_both_noises(n_vectors, test_scale):
    record = in_rounds(n_vectors=n_vectors, test_scale=test_scale, selection_failure=0.2)
    highest = -(-2 * n_vectors**2 // 3) - 1  # the largest number of pairs below 2 K^2 / 3
    needed = -(-4 * n_vectors**2 // 5) - highest
    scale = n_vectors * test_scale
    reach = math.ceil(60 * scale)
    both = np.convolve(laplace_mass(scale, reach)[1], laplace_mass(scale / 2, reach)[1])
    tail = both[np.arange(-2 * reach, 2 * reach + 1) >= needed].sum()
    # The second exponential of the tail, which the bound leaves out, is at most this.
    left_out = math.exp(-2 * needed / scale) / 6
    assert tail * (1 - 1e-10) <= record.test_failure <= tail * math.exp(3 / scale) + left_out
    assert record.test_failure == replace(record, rounds=1000).test_failure


@pytest.mark.parametrize("offsets", [[0, 0, 0], [60, -30, 10, 0], [-100, 80], [-400, -400, -400, -400, 300]])
def test_the_answers_are_as_private_as_charged_exactly(offsets):
    """Probabilities of every aborting time on all neighbouring streams of pair counts; the last stream attains it."""
    record, noise = in_rounds(n_vectors=50, test_scale=2.0, selection_failure=0.2, rounds=5), SilentNoise()
    record.start(noise).release(np.zeros((50, 1)), 1.0)
    threshold_scale, scale = noise.asked[0][1], noise.asked[1][1]
    xi, xi_mass = laplace_mass(threshold_scale, math.ceil(40 * threshold_scale))

    def at_least(k):
        beyond = np.exp(-np.maximum(k, 1 - k) / scale) / (1 + math.exp(-1 / scale))
        return np.where(k >= 1, beyond, 1 - beyond)

    def aborting_distribution(values):
        """`values` are pair counts less the threshold: survive all earlier rounds, fail this one."""
        survive, chances = np.ones(len(xi)), []
        for value in values:
            chances.append(float(xi_mass @ (survive * at_least(value - xi + 1))))
            survive = survive * at_least(xi - value)
        return np.array([*chances, float(xi_mass @ survive)])

    base, worst = aborting_distribution(offsets), 0.0
    for change in np.ndindex(*(3,) * len(offsets)):
        steps = (2 * 49 * (step - 1) for step in change)
        other = aborting_distribution([value + step for value, step in zip(offsets, steps, strict=True)])
        worst = max(worst, np.max(np.abs(np.log(base / other))))
    (epsilon,) = record.cost.pure
    assert (0.95 if len(offsets) == 5 else 0.3) * epsilon < worst <= epsilon * (1 + 1e-6)


def test_forty_bad_rounds_pass_no_more_often_than_one():
    """Only the first matters, because a bad round that fails ends the session."""
    record = in_rounds(n_vectors=60, test_scale=4.0, selection_failure=0.1, rounds=40)
    rows = np.zeros((60, 1))
    rows[48:, 0] = 50.0
    rows[56:, 0] = 100.0
    assert 2370 < int(brute_counts(rows, 1.0).sum()) < 2400
    noise, runs, passed = SeededNoise(0), 1200, 0
    for _ in range(runs):
        session, released = record.start(noise), 0
        for _ in range(40):
            with contextlib.suppress(RuntimeError):  # the abort, and the refusals after it
                session.release(rows, 1.0)
                released += 1
        passed += released > 0
    assert binomtest(passed, runs, record.test_failure, alternative="greater").pvalue > 1e-6
    assert binomtest(passed, runs, 0.7 * record.test_failure, alternative="less").pvalue > 1e-6


def test_at_equal_radii_only_half_of_the_vectors_that_the_score_guarantees_would_have_weight():
    """Why the weights' radius is twice the score's: s = 2K/3, yet W = K/3. The score at half the radius says no."""
    corners = [[0.0, 0.0]] * 2 + [[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]
    rows = np.repeat(corners, 10, axis=0)
    counts = c.neighbour_counts(rows, 1.0)
    assert counts.mean() == 2 * 60 / 3
    assert printed.paper_ramp(60).weights(counts).sum() == 60 / 3
    assert c.neighbour_counts(rows, 0.5).mean() < 60 / 3
