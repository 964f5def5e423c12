"""The paper's mechanism on Poisson samples: what it draws, tests and releases, and what it is charged for."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom
from support import SilentNoise, brute_counts
from support_audit import audited_epsilon
from support_paper import Choosing

from userdp.auditing import priced
from userdp.auditing.pairs import play_mechanism
from userdp.paper import paper_outlier_removal as printed
from userdp.privacy.accounting import Budget
from userdp.privacy.mechanism import Aborted
from userdp.privacy.noise import SecureNoise, SeededNoise

GRID = 2**16
RECORD = printed.SampledPaperOutlierRemoval(
    2000, 0.2, test_scale=3.0, noise_ratio=2.0, selection_failure=1e-6, rounds=3
)

# --- samples ----------------------------------------------------------------------------------------------------------


def test_batches_are_fresh_poisson_samples():
    session = RECORD.start(SecureNoise())
    first, second = (session.choose(np.arange(20_000)) for _ in range(2))
    for chosen in (first, second):
        assert abs(len(chosen) - 4000) < 6 * math.sqrt(20_000 * 0.2 * 0.8)
        assert np.all(np.diff(chosen) > 0)
    assert len(np.intersect1d(first, second)) < 1200, "two samples share a fifth of their users"


@pytest.mark.parametrize("failure", [1e-3, 1e-9])
def test_the_smallest_batch_is_the_largest_that_is_rare_enough_to_fall_below(failure):
    smallest = replace(RECORD, selection_failure=failure).smallest_batch
    assert binom.cdf(smallest - 1, 1999, 0.2) <= failure < binom.cdf(smallest, 1999, 0.2) * (1 + 1e-6)


def test_a_batch_that_is_too_small_aborts_for_a_reason_that_is_not_the_data():
    session = RECORD.start(SilentNoise())
    with pytest.raises(Aborted, match="not due to the data"):
        session.release(np.zeros((RECORD.smallest_batch - 1, 1)), 1.0)
    with pytest.raises(RuntimeError, match="the test has failed"):
        session.release(np.zeros((400, 1)), 1.0)


# --- the test ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [350, 351, 404])
def test_the_noisy_score_must_reach_four_fifths_of_the_batch(batch):
    """Scores on a grid, against a threshold that is drawn once: Lap(3/2), then Lap(3) for each score."""
    score = GRID * batch // 5  # s - 4B/5 = B/5 if all are together
    passing, failing = (SilentNoise(shifts=[7, 7 - score - below, 0]) for below in (0, 1))
    RECORD.start(passing).release(np.zeros((batch, 1)), 1.0)
    with pytest.raises(Aborted, match="too many users"):
        RECORD.start(failing).release(np.zeros((batch, 1)), 1.0)
    assert failing.asked == [("integer_laplace", GRID * 1.5), ("integer_laplace", GRID * 3.0)]


def test_the_threshold_is_drawn_once_and_each_score_anew():
    noise = SilentNoise()
    session = RECORD.start(noise)
    for _ in range(3):
        session.release(np.zeros((400, 1)), 1.0)
    scales = [asked[1] for asked in noise.asked if asked[0] == "integer_laplace"]
    assert scales == [GRID * 1.5, GRID * 3.0, GRID * 3.0, GRID * 3.0]
    with pytest.raises(RuntimeError, match="released and paid for"):
        session.release(np.zeros((400, 1)), 1.0)


def test_the_score_is_taken_at_the_radius_and_the_weights_at_twice_it():
    rows = np.zeros((400, 1))
    for apart, near, kept in ((1 - 1e-9, 160_000, 400), (1.9, 280**2 + 120**2, 400), (2.1, 280**2 + 120**2, 280)):
        rows[280:] = 3.0 * apart
        noise = Choosing(shift=0)
        noise._shifts = [-(10**9), 0]  # a threshold that all scores pass
        released = RECORD.start(noise).release(rows, 3.0)
        assert noise.query == GRID * (5 * near - 4 * 400**2) // (5 * 400)
        assert np.count_nonzero(noise.probabilities == 1.0) == kept
        assert released[0] == pytest.approx(rows[:kept, 0].mean())


def margin(rows):
    """s - 4B/5 at radius 1."""
    return brute_counts(rows, 1.0).sum() / len(rows) - 4 * len(rows) / 5


places = st.sampled_from([0.0, 0.5, 1.0, -1.0, 1.5, 2.0, 50.0, -50.0, math.nan, math.inf])


@settings(max_examples=300, deadline=None)
@given(base=st.lists(places, min_size=10, max_size=30), user=places, other=places)
def test_a_user_moves_the_margin_of_a_batch_by_less_than_two(base, user, other):
    """Whether it is added, left out or replaced: what a step of the threshold test is charged for."""
    batches = [np.array([*base, *more])[:, None] for more in ([], [user], [other])]
    with np.errstate(invalid="ignore"):
        margins = [margin(batch) for batch in batches]
    assert max(margins) - min(margins) < 2
    assert all(-1.8 <= changed - margins[0] <= 1.2 for changed in margins[1:])


def test_a_bad_base_passes_as_rarely_as_is_charged():
    """The largest margin that a batch has whose base is below 2B/3 is 6/5 - 2B/15; the tail of both noises, summed."""
    record = replace(RECORD, n_vectors=600, test_scale=1.5, selection_failure=1e-3)
    excess = math.floor(GRID * (2 * record.smallest_batch / 15 - 1.2))
    scale, t = GRID * 1.5, excess / (GRID * 1.5)
    exact = 2 / 3 * math.exp(-t) - 1 / 6 * math.exp(-2 * t)  # of continuous noise
    assert exact < record.test_failure < 1.5 * exact
    assert scale > 1000, "so that discrete and continuous noise are alike"


# --- selection and mean -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [10, 11, 12, 30, 31, 100])
def test_one_more_user_changes_a_probability_by_at_most_4_in_the_batch(batch):
    counts = np.arange(1, batch + 1)
    before = printed.paper_ramp(batch).weights(counts)
    for near in (0, 1):
        after = printed.paper_ramp(batch + 1).weights(counts + near)
        assert np.max(np.abs(after - before)) <= 4 / (batch - 2) + 1e-12


@pytest.mark.parametrize(
    ("batch", "failure"), [(60, 0.05), (60, 1e-6), (500, 1e-6), (500, 1e-15), (10**6, 0.05), (10**6, 1e-15)]
)
def test_more_coins_change_no_more_often_than_is_charged(batch, failure):
    """For the batch that is charged, and for larger ones."""
    k = round(printed.added_selection_sensitivity(batch, 1.0, failure) * batch / 3) - 1
    for size in (batch, batch + 1, 2 * batch, 1000 * batch):
        assert binom.sf(k, size, 4 / (size - 2)) <= failure
    assert binom.sf(k - 3, batch, 4 / (batch - 2)) > failure / 3, "not far too many"


@settings(max_examples=300, deadline=None)
@given(
    kinds=st.lists(st.floats(-3, 3), min_size=1, max_size=3),
    loose=st.integers(0, 10),
    user=st.one_of(st.floats(-4, 4), st.just(math.nan)),
    seed=st.integers(0, 2**32),
)
def test_an_added_user_moves_the_mean_of_equal_coins_by_no_more_than_is_charged(kinds, loose, user, seed):
    rng = np.random.default_rng(seed)
    base = np.full(30, kinds[0])
    base[:loose] = rng.choice(kinds, loose)
    base += 1000.0  # so that a mean that lost its vectors, and became 0, is seen
    if brute_counts(base[:, None], 1.0 - 1e-12).sum() < 2 * 30**2 / 3:
        return
    uniforms, means, kept = rng.random(31), [], []
    for batch in (base, np.append(base, user + 1000.0)):
        counts = brute_counts(batch[:, None], 2.0) if not np.isnan(batch).any() else None
        if counts is None:
            counts = np.append(brute_counts(base[:, None], 2.0), 1)
        chosen = uniforms[: len(batch)] < printed.paper_ramp(len(batch)).weights(counts)
        kept.append(chosen)
        means.append(batch[chosen].mean())
    changed = np.count_nonzero(kept[0] != kept[1][:30])
    assert abs(means[0] - means[1]) <= 3 * 2.0 / 30 * (1 + changed) * (1 + 1e-9)


def test_the_noise_is_the_printed_one_and_no_less_than_is_charged_for_any_batch():
    for batch in (RECORD.smallest_batch, 400, 520):
        noise = SilentNoise()
        RECORD.start(noise).release(np.zeros((batch, 3)), 0.7)
        ((_, sensitivity, multiplier),) = [asked for asked in noise.asked if asked[0] == "gaussian"]
        assert sensitivity * multiplier == pytest.approx(2.0 * 0.7)
        (part,) = RECORD.cost.subsampled
        assert part.added_user_multiplier <= multiplier
        assert part.added_user_multiplier == pytest.approx(multiplier, rel=1e-5)
        exact = printed.added_selection_sensitivity(RECORD.smallest_batch, 1.4, 1e-6)
        assert sensitivity == pytest.approx(exact, rel=1e-6)


def test_the_cost_is_an_above_threshold_sampled_gaussians_and_three_failures_a_round():
    cost = RECORD.cost
    assert cost.pure == (pytest.approx(8 / 3, rel=1e-4),)
    assert cost.pure[0] >= 4 * (2 * GRID + 1) / (GRID * 3.0)
    (part,) = cost.subsampled
    assert (part.sampling_probability, part.steps, cost.gaussian) == (0.2, 3, 0.0)
    assert cost.failure >= RECORD.test_failure + 9e-6
    assert cost.failure == pytest.approx(RECORD.test_failure + 9e-6)


def test_an_audit_finds_less_than_is_claimed_and_more_with_a_fraction_of_the_noise():
    """Nearly all of the noise is for coins that hardly ever change: only a small fraction of it is found out."""
    budget, runs = Budget(1.0, 1e-2), 4000
    record = priced.sampled_paper_outlier_removal(budget)

    def seen(shrunk, version, seed):
        rows = np.zeros((record.n_vectors, 1))
        rows[0] = (2 - 1e-6) * (1 - 2 * version)
        noise = SeededNoise(seed)
        return np.array([play_mechanism(shrunk, rows, noise)[0] for _ in range(runs)])

    assert audited_epsilon(seen(record, 0, 1), seen(record, 1, 2), budget.delta) <= budget.epsilon
    less = replace(record, noise_ratio=record.noise_ratio / 200)
    assert audited_epsilon(seen(less, 0, 1), seen(less, 1, 2), budget.delta) > budget.epsilon


# --- errors -----------------------------------------------------------------------------------------------------------


def test_more_coordinates_than_priced_are_refused():
    noise = SilentNoise()
    with pytest.raises(ValueError, match=r"at most 2\^20 numbers"):
        RECORD.start(noise).release(np.broadcast_to(0.0, (400, 2**20 + 1)), 1.0)
    assert len(noise.asked) == 1, "the threshold alone"
