import contextlib
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, binomtest, kstest, norm
from support import SilentNoise, audited_gaussian_epsilon, brute_counts
from test_gates import laplace_mass

from userdp.privacy import concentration as c
from userdp.privacy.accounting import Budget, BudgetExceeded, Cost, calibrate, epsilon_at
from userdp.privacy.means.paper_outlier_removal import PaperOutlierRemoval
from userdp.privacy.mechanism import Halted
from userdp.privacy.noise import SecureNoise, SeededNoise
from userdp.privacy.plan import Plan, Step

ALWAYS = 10**9  # noise that passes the test


def paper(**change):
    arguments = {"n_vectors": 100, "test_scale": 3.0, "noise_ratio": 2.0, "selection_failure": 1e-3}
    return PaperOutlierRemoval(**(arguments | change))


def coins_that_change(n_vectors, failure):
    """Least k with P(Bin(K-1, 6/(K-3)) > k) <= failure, by adding up."""
    share = 6 / (n_vectors - 3)
    masses = [math.comb(n_vectors - 1, k) * share**k * (1 - share) ** (n_vectors - 1 - k) for k in range(n_vectors)]
    return next(k for k in range(n_vectors) if math.fsum(masses[k + 1 :]) <= failure)


class Choosing(SilentNoise):
    """Keeps what it was asked, and tosses the coins from uniform numbers that are given (kept if u < p)."""

    def __init__(self, uniforms=None, shift=ALWAYS):
        super().__init__(shifts=[shift])
        self.uniforms, self.probabilities, self.query, self.kept = uniforms, None, None, None

    def integer_laplace(self, query, scale):
        assert isinstance(query, int)
        self.query = query
        return super().integer_laplace(query, scale)

    def coins(self, probabilities):
        self.probabilities = probabilities
        self.kept = probabilities > 0 if self.uniforms is None else self.uniforms < probabilities
        return self.kept


# --- the test ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_vectors", [50, 51, 52, 53, 54, 100, 101])
def test_the_noisy_score_must_reach_four_fifths(n_vectors):
    """In whole numbers: the least number of near pairs that is >= 4 K^2 / 5 passes, one less does not."""
    record, rows = paper(n_vectors=n_vectors, selection_failure=0.1), np.zeros((n_vectors, 1))
    least = -(-4 * n_vectors**2 // 5)
    passing = SilentNoise(shifts=[least - n_vectors**2])
    record.start(passing).release(rows, 1.0)
    halting = SilentNoise(shifts=[least - 1 - n_vectors**2])
    with pytest.raises(Halted, match="too many users"):
        record.start(halting).release(rows, 1.0)
    assert halting.asked == [("integer_laplace", n_vectors * 3.0)]


def test_the_test_is_on_the_number_of_near_pairs():
    """60 of 70 vectors at one place are 3600 + 10 near pairs of 4900: less than four fifths. 63 are enough."""
    record = paper(n_vectors=70, selection_failure=0.1)
    for together, passes in ((60, False), (62, False), (63, True), (70, True)):
        rows = np.zeros((70, 1))
        rows[together:, 0] = 100.0 * np.arange(1, 71 - together)
        noise = Choosing(shift=0)
        if passes:
            record.start(noise).release(rows, 1.0)
        else:
            with pytest.raises(Halted):
                record.start(noise).release(rows, 1.0)
        assert noise.query == together**2 + 70 - together


@pytest.mark.parametrize("dimension", [1, 5])
def test_the_score_is_taken_at_the_radius_and_the_weights_at_twice_it(dimension):
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


def test_vectors_one_and_a_half_radii_apart_halt():
    rows = np.zeros((100, 1))
    rows[50:] = 1.5
    with pytest.raises(Halted):
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
    noise, passed, runs = SeededNoise(0), 0, 1200
    for _ in range(runs):
        try:
            record.start(noise).release(rows, 1.0)
            passed += 1
        except Halted:
            pass
    assert binomtest(passed, runs, record.test_failure, alternative="greater").pvalue > 1e-6
    assert binomtest(passed, runs, 0.7 * record.test_failure, alternative="less").pvalue > 1e-6


# --- more rounds ------------------------------------------------------------------------------------------------------


def in_rounds(**change):
    return paper(**({"rounds": 3} | change))


@pytest.mark.parametrize(("n_vectors", "test_scale"), [(100, 3.0), (51, 0.7)])
def test_the_threshold_is_drawn_once_before_any_data_and_each_answer_and_coin_anew(n_vectors, test_scale):
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
    record, rows = in_rounds(n_vectors=n_vectors, selection_failure=0.1), np.zeros((n_vectors, 1))
    least = -(-4 * n_vectors**2 // 5) + shift - n_vectors**2
    # After the threshold's, every round takes one for its answer and one for its mean.
    session = record.start(SilentNoise(shifts=[shift, least, 0, least, 0, least - 1]))
    session.release(rows, 1.0)
    session.release(rows, 1.0)
    with pytest.raises(Halted):
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
    """Probabilities of every halting time on all neighbouring streams of pair counts; the last stream attains it."""
    record, noise = in_rounds(n_vectors=50, test_scale=2.0, selection_failure=0.2, rounds=5), SilentNoise()
    record.start(noise).release(np.zeros((50, 1)), 1.0)
    threshold_scale, scale = noise.asked[0][1], noise.asked[1][1]
    xi, xi_mass = laplace_mass(threshold_scale, math.ceil(40 * threshold_scale))

    def at_least(k):
        beyond = np.exp(-np.maximum(k, 1 - k) / scale) / (1 + math.exp(-1 / scale))
        return np.where(k >= 1, beyond, 1 - beyond)

    def halting_distribution(values):
        """`values` are pair counts less the threshold: survive all earlier rounds, fail this one."""
        survive, chances = np.ones(len(xi)), []
        for value in values:
            chances.append(float(xi_mass @ (survive * at_least(value - xi + 1))))
            survive = survive * at_least(xi - value)
        return np.array([*chances, float(xi_mass @ survive)])

    base, worst = halting_distribution(offsets), 0.0
    for change in np.ndindex(*(3,) * len(offsets)):
        steps = (2 * 49 * (step - 1) for step in change)
        other = halting_distribution([value + step for value, step in zip(offsets, steps, strict=True)])
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
            with contextlib.suppress(RuntimeError):  # the halt, and the refusals after it
                session.release(rows, 1.0)
                released += 1
        passed += released > 0
    assert binomtest(passed, runs, record.test_failure, alternative="greater").pvalue > 1e-6
    assert binomtest(passed, runs, 0.7 * record.test_failure, alternative="less").pvalue > 1e-6


def test_at_equal_radii_only_half_of_the_vectors_that_the_score_promises_would_have_weight():
    """Why the weights' radius is twice the score's: s = 2K/3, yet W = K/3. The score at half the radius says no."""
    corners = [[0.0, 0.0]] * 2 + [[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]
    rows = np.repeat(corners, 10, axis=0)
    counts = c.neighbour_counts(rows, 1.0)
    assert c.score(counts) == 2 * 60 / 3
    assert c.paper_ramp(60).weights(counts).sum() == 60 / 3
    assert c.score(c.neighbour_counts(rows, 0.5)) < 60 / 3


# --- selection --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_vectors", "together"), [(51, 26), (51, 27), (51, 30), (51, 34), (60, 30), (60, 31), (60, 40)]
)
def test_the_probabilities_rise_from_half_of_one_more_than_all_to_two_thirds(n_vectors, together):
    """Vectors with at most (K+1)/2 neighbours at twice the radius are never kept, with 2K/3 always."""
    rows = np.zeros((n_vectors, 1))
    rows[together:, 0] = 100.0 * np.arange(1, n_vectors - together + 1)
    noise = Choosing()
    paper(n_vectors=n_vectors, selection_failure=0.1).start(noise).release(rows, 1.0)
    low, high = (n_vectors + 1) / 2, 2 * n_vectors / 3
    expected = min(1.0, max(0.0, (together - low) / (high - low)))
    np.testing.assert_allclose(noise.probabilities[:together], expected)
    assert not np.any(noise.probabilities[together:])


def test_the_mean_is_that_of_the_kept_vectors():
    rng = np.random.default_rng(0)
    rows = rng.uniform(0, 1.9, (60, 1))
    counts = c.neighbour_counts(rows, 1.0)
    weights = c.paper_ramp(60).weights(counts)
    assert np.any((weights > 0) & (weights < 1))
    kept = []
    for _ in range(20):
        noise = Choosing(rng.random(60))
        released = paper(n_vectors=60, selection_failure=0.1).start(noise).release(rows, 0.5)
        np.testing.assert_array_equal(noise.probabilities, weights)
        kept.append(np.count_nonzero(noise.kept))
        np.testing.assert_allclose(released, rows[noise.kept].mean(axis=0))
    assert len(set(kept)) > 3


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
def test_a_swap_moves_the_score_and_the_mean_of_equal_coins_by_no_more_than_is_charged(pair):
    rows, swapped, replacement, uniforms = pair
    other = rows.copy()
    other[swapped] = replacement
    record = paper(n_vectors=SIZE, selection_failure=0.05)
    noises, means = (Choosing(uniforms), Choosing(uniforms)), []
    with np.errstate(all="ignore"):
        for noise, vectors in zip(noises, (rows, other), strict=True):
            means.append(record.start(noise).release(vectors, 1.0))
    assert abs(noises[0].query - noises[1].query) <= 2 * (SIZE - 1)
    if 3 * max(noise.query for noise in noises) < 2 * SIZE**2:
        return
    common = np.arange(SIZE) != swapped
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
    record, noise = paper(), Choosing(shift=0)
    record.start(noise).release(np.zeros((100, dimension)), radius)
    (test, scale), (kind, sensitivity, multiplier) = noise.asked
    assert (test, scale, kind) == ("integer_laplace", 300.0, "gaussian")
    assert sensitivity == record.sensitivity(radius, dimension)
    assert sensitivity * multiplier == pytest.approx(2.0 * radius, rel=1e-12)
    assert 1 / multiplier**2 <= record.cost.gaussian


def test_released_noise_is_normal_with_the_ratio_times_the_radius():
    released = paper().start(SecureNoise()).release(np.zeros((100, 3000)), 5.0)
    assert kstest(released, norm(0, 10.0).cdf).pvalue > 1e-6
    assert abs(released.std() / 10.0 - 1) < 0.07


def test_a_plan_is_certified_up_to_its_budget_and_not_beyond():
    budget = Budget(2.0, 1e-5)

    def record(**change):
        arguments = {"n_vectors": 1000, "test_scale": 10.0, "noise_ratio": 1.0, "selection_failure": 1e-6}
        return paper(**(arguments | change))

    ratio = calibrate(lambda z: record(noise_ratio=z).cost, budget)

    def plan(*records):
        return Plan(1000, tuple(Step(f"{k}", 0, 1000, r) for k, r in enumerate(records)))

    plan(record(noise_ratio=ratio)).certify(budget)
    for dear in (
        plan(record(noise_ratio=0.99 * ratio)),
        plan(record(noise_ratio=ratio), record(noise_ratio=ratio)),
        plan(record(noise_ratio=ratio, rounds=2)),
        plan(record(noise_ratio=ratio, test_scale=9.0)),
        plan(record(noise_ratio=ratio, test_scale=13.0)),
        plan(record(noise_ratio=ratio, selection_failure=1e-5)),
    ):
        with pytest.raises(BudgetExceeded):
            dear.certify(budget)


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
            with contextlib.suppress(Halted):
                values[run] = record.start(noise).release(rows, 1.0)[0]
        samples.append(values)
    seen = epsilon_at(Cost(gaussian=(4 / 100 / ratio) ** 2), delta)
    audited = audited_gaussian_epsilon(*samples, delta)
    assert 0.8 * seen < audited <= seen
    assert audited <= epsilon_at(Cost(record.cost.gaussian, record.cost.pure), delta)


# --- sessions and errors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [np.zeros((100, 1)), np.full((100, 1), np.nan), np.zeros((99, 1))])
def test_a_mean_is_released_once_whatever_became_of_it(rows):
    session = paper().start(SilentNoise())
    with contextlib.suppress(Halted, ValueError):
        session.release(rows, 1.0)
    with pytest.raises(RuntimeError, match="released and paid for, or the test has failed"):
        session.release(np.zeros((100, 1)), 1.0)


@pytest.mark.parametrize("rounds", [2, 5])
def test_no_more_means_are_released_than_are_paid_for(rounds):
    noise = SilentNoise()
    session = paper(rounds=rounds).start(noise)
    for _ in range(rounds):
        session.release(np.zeros((100, 1)), 1.0)
    asked = list(noise.asked)
    with pytest.raises(RuntimeError, match="released and paid for"):
        session.release(np.zeros((100, 1)), 1.0)
    assert noise.asked == asked


@pytest.mark.parametrize("passing", [0, 1, 3])
@pytest.mark.parametrize("rows", [np.full((100, 1), np.nan), np.zeros((99, 1))])
def test_the_first_round_that_fails_is_the_last(passing, rows):
    noise = SilentNoise()
    session = paper(rounds=6).start(noise)
    for _ in range(passing):
        session.release(np.zeros((100, 1)), 1.0)
    with pytest.raises((Halted, ValueError)):
        session.release(rows, 1.0)
    asked = list(noise.asked)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="the test has failed"):
            session.release(np.zeros((100, 1)), 1.0)
    assert noise.asked == asked


@pytest.mark.parametrize("size", [99, 101, 200])
def test_another_number_of_vectors_than_priced_is_refused(size):
    noise = SilentNoise()
    with pytest.raises(ValueError, match="Expected 100 vectors, as was priced"):
        paper().start(noise).release(np.zeros((size, 1)), 1.0)
    assert noise.asked == []


def test_more_coordinates_than_priced_are_refused():
    noise = SilentNoise()
    with pytest.raises(ValueError, match=r"at most 2\^20 numbers"):
        paper().start(noise).release(np.broadcast_to(0.0, (100, 2**20 + 1)), 1.0)
    assert noise.asked == []


def test_everyone_takes_part():
    users = np.arange(5)
    assert paper().start(SilentNoise()).choose(users) is users


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"n_vectors": 9}, ValueError, "n_vectors=9 >= 10 for the paper's ramp"),
        ({"n_vectors": 12}, ValueError, "n_vectors=12 to keep some vectors"),
        ({"n_vectors": 100.0}, ValueError, "whole number"),
        ({"rounds": 0}, ValueError, "rounds=0 to be a whole number >= 1"),
        ({"rounds": 1.5}, ValueError, "rounds=1.5 to be a whole number"),
        ({"test_scale": 0.0}, ValueError, "test_scale=0.0"),
        ({"test_scale": np.array(1.0)}, TypeError, "test_scale to be a number"),
        ({"noise_ratio": math.nan}, ValueError, "noise_ratio"),
        ({"selection_failure": 0.0}, ValueError, "selection_failure=0.0"),
        ({"selection_failure": 1e-140}, ValueError, "to keep some vectors"),
        ({"selection_failure": 2.0}, ValueError, "selection_failure=2.0 < 1"),
    ],
)
def test_impossible_records_are_refused(change, error, message):
    with pytest.raises(error, match=message):
        paper(**change)
