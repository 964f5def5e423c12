import contextlib
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, norm
from support import SilentNoise, brute_counts, climb, passes, searched_removal, with_h_index
from support_audit import audited_gaussian_epsilon

from userdp.paper import concentration as c
from userdp.privacy.accounting import Budget, Cost, gaussian_multiplier
from userdp.privacy.mechanism import Aborted
from userdp.privacy.noise import SeededNoise

SIXTEENTHS = tuple(np.arange(1, 17) / 16)
TEST_STD = 0.5


def searched(**change):
    arguments = {
        "n_vectors": 100, "radii": SIXTEENTHS, "noise_multiplier": 5.0, "test_std": 2.0, "failure": 1e-3,
    }  # fmt: skip
    return searched_removal(**(arguments | change))


def spread(size):
    """The pairwise distance of vectors j and k is |j - k| / size: h-indices grow with the radius."""
    return np.arange(size)[:, None] / size


def threshold(record):
    return record.n_vectors - record.slack + record.margin


class Answering(SilentNoise):
    """Decides the tests as told, and keeps what was tested and released."""

    def __init__(self, record, answers):
        super().__init__()
        self._std, self._answers, self.tested = record.test_std, list(answers), []

    def gaussian(self, query, sensitivity, multiplier):
        self.asked.append(("gaussian", sensitivity, multiplier))
        if (sensitivity, multiplier) != (1.0, self._std):
            return query
        self.tested.append(float(query[0]))
        return query + (1e6 if self._answers.pop(0) else -1e6)


# --- test: margin, slack, failure -------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 33])
@pytest.mark.parametrize("failure", [1e-12, 1e-6, 0.01, 0.3, 0.99])
def test_the_margin_makes_all_probes_together_fail_as_rarely_as_claimed(length, failure):
    record = searched(radii=tuple(range(1, length + 1)), failure=failure, test_std=3.0)
    assert record.probes == math.ceil(math.log2(length + 1))
    assert record.probes * norm.sf((record.margin + 1) / 3.0) <= failure
    assert record.margin == 0 or failure < record.probes * norm.sf(record.margin / 3.0)


@pytest.mark.parametrize(("test_std", "reach"), [(0.1, 1), (1.0, 2), (2.3, 5), (4.0, 8)])
def test_the_slack_is_margin_two_deviations_and_the_tolerated_outliers(test_std, reach):
    record = searched(test_std=test_std)
    assert record.slack == record.margin + reach
    tolerant = searched(test_std=test_std, outliers=20)
    assert (tolerant.margin, tolerant.slack) == (record.margin, record.slack + 20)
    assert tolerant.cost == record.cost
    assert tolerant.sensitivity(1.0, 1) > record.sensitivity(1.0, 1)


def test_the_test_is_on_the_h_index_at_its_threshold():
    record = searched(radii=(1.0,))
    assert record.margin > 0
    released = record.start(SilentNoise()).release(with_h_index(100, threshold(record)), 1.0)
    assert released.tolist() == [0.0, 1.0]
    with pytest.raises(Aborted, match="too many users"):
        record.start(SilentNoise()).release(with_h_index(100, threshold(record) - 1), 1.0)


def test_it_passes_bad_radii_as_rarely_as_claimed_over_all_probes():
    """The h-index is one below K - slack at all seven radii: three probes, each of which may wrongly pass."""
    record = searched(n_vectors=400, radii=tuple(range(1, 8)), test_std=20.0, failure=0.1)
    noise, runs = SeededNoise(0), 600
    vectors = with_h_index(400, 400 - record.slack - 1)
    passed = sum(passes(record, vectors, noise) for _ in range(runs))
    assert binomtest(passed, runs, 0.1, alternative="greater").pvalue > 1e-6
    assert binomtest(passed, runs, 0.055, alternative="less").pvalue > 1e-6


def test_vectors_with_the_tolerated_outliers_mostly_pass():
    record = searched(n_vectors=200, radii=(1.0,), test_std=6.0, failure=0.01, outliers=10)
    noise, vectors = SeededNoise(2), with_h_index(200, 190)
    aborted = sum(passes(record, vectors, noise) == 0 for _ in range(500))
    assert binomtest(aborted, 500, norm.sf(2.0), alternative="greater").pvalue > 1e-6


# --- search -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outliers", [0, 5, 20, 30])
@pytest.mark.parametrize("scale", [0.25, 1.0, 2.0])
def test_it_finds_the_smallest_radius_that_passes_and_releases_its_mean_and_the_radius(outliers, scale):
    record = searched(outliers=outliers)
    noise = SilentNoise()
    vectors = np.hstack([spread(100) ** 2, np.zeros((100, 1))])  # skewed: the mean tells the weights
    passing = [factor for factor in SIXTEENTHS if c.h_index(brute_counts(vectors, scale * factor)) >= threshold(record)]
    if not passing:
        with pytest.raises(Aborted):
            record.start(noise).release(vectors, scale)
        assert len(noise.asked) <= record.probes
        return
    found = scale * passing[0]
    released = record.start(noise).release(vectors, scale)
    counts = brute_counts(vectors, found)
    expected = c.filtered_mean(vectors, counts, c.tight_ramp(100, record.slack))
    assert released.shape == (3,)
    np.testing.assert_allclose(released[:2], expected, rtol=1e-12)
    assert released[2] == found
    assert noise.asked[-1] == ("gaussian", record.sensitivity(found, 2), 5.0)
    assert noise.asked[:-1] == [("gaussian", 1.0, 2.0)] * (len(noise.asked) - 1)
    assert 1.0 <= record.sensitivity(found, 2) / c.sensitivity(100, record.slack, found) < 1 + 1e-4


def test_the_cases_of_the_search_include_aborts_and_searches():
    """The test above means something: it has aborts, first radii, and radii in the middle."""
    rising = [c.h_index(brute_counts(spread(100) ** 2, factor)) for factor in SIXTEENTHS]
    assert rising == sorted(rising)
    assert rising[0] < threshold(searched(outliers=30)) < threshold(searched()) <= rising[-1]


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 7, 8, 16, 33])
def test_it_never_asks_more_often_than_it_pays_for(length):
    record = searched(radii=tuple(range(1, length + 1)))
    asked = set()
    for pattern in range(2**record.probes):
        answers = [bool(pattern >> k & 1) for k in range(record.probes)]
        noise = Answering(record, answers)
        try:
            found = record.start(noise).release(np.zeros((100, 1)), 1.0)[-1]
            assert found in record.radii
        except Aborted:
            assert not any(answers[: len(noise.tested)])
        asked.add(len(noise.tested))
    assert max(asked) == record.probes


def test_only_a_radius_that_passed_is_released():
    """Whatever the noise says: the mean is taken at the smallest radius whose own test passed."""
    record = searched(radii=tuple(range(1, 8)))
    for pattern in range(8):
        answers = [bool(pattern >> k & 1) for k in range(3)]
        noise = Answering(record, answers)
        low, high, passed = 0, 7, []
        for answer in answers:
            middle = (low + high) // 2
            low, high = (low, middle) if answer else (middle + 1, high)
            passed += [record.radii[middle]] * answer
        if not passed:
            with pytest.raises(Aborted):
                record.start(noise).release(np.zeros((100, 2)), 0.5)
            assert len(noise.asked) == 3
        else:
            assert record.start(noise).release(np.zeros((100, 2)), 0.5)[-1] == 0.5 * min(passed)
            assert noise.asked[-1] == ("gaussian", record.sensitivity(0.5 * min(passed), 2), 5.0)


def test_it_aborts_where_nobody_is_near_and_releases_nothing():
    for vectors in (np.full((100, 1), np.nan), 1e300 * spread(100) + 1e300, np.arange(100.0)[:, None] * 50):
        noise = SilentNoise()
        with pytest.raises(Aborted), np.errstate(all="ignore"):
            searched().start(noise).release(vectors, 1.0)
        assert noise.asked == [("gaussian", 1.0, 2.0)] * len(noise.asked)


@pytest.mark.parametrize("vectors", [np.zeros((100, 1)), np.full((100, 1), np.nan), np.zeros((99, 1))])
def test_a_search_is_made_once_whatever_became_of_it(vectors):
    session = searched().start(SilentNoise())
    with contextlib.suppress(Aborted, ValueError):
        session.release(vectors, 1.0)
    with pytest.raises(RuntimeError, match="made and paid for once"):
        session.release(np.zeros((100, 1)), 1.0)


# --- sensitivity ------------------------------------------------------------------------------------------------------

FAR = 1000.0  # so that a mean that lost its weights, and became 0, is seen
SPECIAL = [math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324, 1e-308]
places = st.one_of(
    st.sampled_from([FAR, FAR + 0.5, FAR + 1, FAR - 1, FAR + 1.5, FAR + 2, FAR - 2, FAR + 3]),
    st.floats(FAR - 3, FAR + 3),
    st.sampled_from(SPECIAL),
)


@st.composite
def neighbours(draw):
    """A small record; a cluster with some vectors on its edges or anywhere; and what one of them is replaced by."""
    outliers = draw(st.integers(0, 2))
    size = draw(st.integers(2 * (1 + outliers) + 4, 2 * (1 + outliers) + 8))
    record = searched_removal(size, (0.5, 1.0, 2.0), 5.0, TEST_STD, 0.4, outliers)
    dimension = draw(st.integers(1, 2))
    row = st.lists(places, min_size=dimension, max_size=dimension)
    loose = draw(st.lists(row, min_size=1, max_size=size))
    centre = draw(row)
    rows = np.array((loose + [centre] * size)[:size], dtype=float)
    return record, rows, draw(st.integers(0, size - 1)), np.array(draw(row), dtype=float)


def moved(record, rows, other, answers, radius=1.0):
    """How far the means are apart, as a fraction of the sensitivity; 0 for what `failure` stands for."""
    means, tested = [], []
    with np.errstate(all="ignore"):
        for vectors in (rows, other):
            noise = Answering(record, answers)
            means.append(record.start(noise).release(vectors, radius))
            tested.append(noise.tested)
        assert np.max(np.abs(np.subtract(*tested))) <= 1
        found = means[0][-1]
        assert means[1][-1] == found
        best = max(c.h_index(brute_counts(c.comparable(x, found), found)) for x in (rows, other))
    if best < record.n_vectors - record.slack:
        return 0.0
    return np.linalg.norm(means[0][:-1] - means[1][:-1]) / record.sensitivity(found, rows.shape[1])


@settings(max_examples=300, deadline=None)
@given(pair=neighbours(), answers=st.sampled_from([(True, True), (True, False), (False, True)]))
def test_no_replacement_moves_a_probe_by_more_than_one_or_the_mean_by_more_than_its_sensitivity(pair, answers):
    record, rows, replaced, replacement = pair
    assert record.slack == 1 + record.outliers
    other = rows.copy()
    other[replaced] = replacement
    assert moved(record, rows, other, answers) <= 1.0


def test_hill_climbing_does_not_exceed_the_sensitivity():
    record = searched_removal(12, (1.0,), 5.0, TEST_STD, 0.4)

    def ratio(rows):
        return moved(record, FAR + rows[1:], FAR + np.vstack([rows[:1], rows[2:]]), (True,))

    best = 0.0
    for seed in range(3):
        rng = np.random.default_rng(seed)
        best = max(best, climb(ratio, rng.normal(0, 0.3, (13, 1)), rng, steps=200))
    assert 0.5 < best <= 1.0


def test_a_user_moves_the_mean_of_the_others_by_two_radii_over_their_number():
    """The least that the sensitivity must be: everyone in the middle, the user at one edge, then at the other."""
    record = searched(radii=(1.0, 2.0))
    rows = np.zeros((100, 1))
    means = []
    for place in (0.5, -0.5):
        rows[0] = place
        means.append(record.start(SilentNoise()).release(rows, 0.5))
    assert means[0][0] - means[1][0] == pytest.approx(2 * 0.5 / 100, rel=1e-12)
    assert means[0][0] - means[1][0] <= record.sensitivity(0.5, 1)


# --- cost and noise ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 3, 4, 100])
def test_the_cost_is_that_of_all_probes_and_the_mean_and_the_failure(length):
    record = searched(radii=tuple(range(1, length + 1)), test_std=4.0, noise_multiplier=8.0)
    expected = math.ceil(math.log2(length + 1)) / 16 + 1 / 64
    assert record.cost == Cost(gaussian=record.cost.gaussian, failure=1e-3)
    assert expected <= record.cost.gaussian <= expected * (1 + 1e-12)


def test_the_noise_of_the_probes_has_the_deviation_that_is_paid_for():
    """Vectors whose h-index is one deviation below the threshold pass one time in six."""
    record = searched(n_vectors=300, radii=(1.0,), test_std=10.0, failure=0.01)
    noise, runs = SeededNoise(3), 800
    vectors = with_h_index(300, threshold(record) - 10)
    passed = sum(passes(record, vectors, noise) for _ in range(runs))
    assert binomtest(passed, runs, norm.sf(1.0)).pvalue > 1e-6


def test_audit_of_search_and_release():
    """A user at one edge of the ball against the other edge, everyone else in the middle."""
    runs, delta, epsilon = 1000, 1e-2, 4.0
    test_cost = Cost(gaussian=1 / 4.0**2, failure=1e-3)

    def outcomes(place, multiplier):
        record = searched(n_vectors=400, radii=(1.0,), noise_multiplier=multiplier, test_std=4.0)
        vectors = np.zeros((400, 1))
        vectors[0] = 0.999 * place  # pairs exactly a radius apart would be compared one by one
        noise, values = SeededNoise(int(9 + place)), np.full(runs, math.inf)
        for run in range(runs):
            with contextlib.suppress(Aborted):
                values[run] = record.start(noise).release(vectors, 1.0)[0]
        return values

    def audited(multiplier):
        return audited_gaussian_epsilon(outcomes(1.0, multiplier), outcomes(-1.0, multiplier), delta)

    multiplier = gaussian_multiplier(Budget(epsilon, delta), 1, test_cost)
    assert 0.55 * epsilon < audited(multiplier) <= epsilon
    assert audited(multiplier / 2) > epsilon
