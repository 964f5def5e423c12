import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest, norm
from support import SilentNoise
from support_audit import audited_epsilon, audited_gaussian_epsilon

from userdp.privacy.accounting import Budget, Cost, Subsampled, delta_at, gaussian_multiplier, subsampled_multiplier
from userdp.privacy.noise import SecureNoise, SeededNoise
from userdp_research.mechanisms.winsorized import Winsorized, bin_counts, bins_of, finite_rows

numbers = st.one_of(
    st.sampled_from([0.0, 1.0, -1.0, 2.0, 3.0, -7.0, math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324]),
    st.floats(-6.0, 6.0),
    st.floats(),
)
RADII = [2.0**-400, 0.3, 1.0, 2.0**400]


class Recorder(SilentNoise):
    """Adds nothing; keeps what was to get noise, and its sensitivity. `forced` replaces the noisy counts."""

    def __init__(self, forced=None):
        super().__init__()
        self.queries, self._forced = [], forced

    def gaussian(self, query, sensitivity, multiplier):
        self.queries.append((query, sensitivity))
        super().gaussian(query, sensitivity, multiplier)
        return self._forced if len(self.queries) == 1 and self._forced is not None else query


@st.composite
def neighbours(draw):
    dimension = draw(st.integers(1, 4))
    row = st.lists(numbers, min_size=dimension, max_size=dimension)
    rows = draw(st.lists(row, min_size=1, max_size=7))
    return np.array(rows), draw(st.integers(0, len(rows) - 1)), np.array(draw(row))


def queries(rows, radius, n_bins, forced, n_vectors=None, sampled=1.0):
    noise = Recorder(forced)
    record = Winsorized(n_vectors or len(rows), n_bins, 3.0, 5.0, sampling_probability=sampled)
    with np.errstate(all="ignore"):
        record.start(noise).release(rows, radius)
    return noise.queries


def moved(ones, others):
    """How far counts and mean of two data sets are apart, in units of their sensitivities, which must be equal."""
    for (first, sensitivity), (second, same) in zip(ones, others, strict=True):
        assert sensitivity == same
        yield np.linalg.norm(first - second) / sensitivity


# --- sensitivity ------------------------------------------------------------------------------------------------------


@settings(max_examples=400, deadline=None)
@given(pair=neighbours(), radius=st.sampled_from(RADII), n_bins=st.integers(1, 6), seed=st.integers(0, 99))
def test_no_replacement_moves_counts_or_mean_by_more_than_their_sensitivity(pair, radius, n_bins, seed):
    rows, replaced, replacement = pair
    other = rows.copy()
    other[replaced] = replacement
    forced = np.random.default_rng(seed).normal(size=rows.shape[1] * n_bins)
    one, two = (queries(data, radius, n_bins, forced) for data in (rows, other))
    assert max(moved(one, two)) <= 1.0


@settings(max_examples=400, deadline=None)
@given(pair=neighbours(), radius=st.sampled_from(RADII), n_bins=st.integers(1, 6), seed=st.integers(0, 99))
def test_no_user_added_to_a_batch_moves_them_by_more_than_their_sensitivity(pair, radius, n_bins, seed):
    rows, added, _ = pair
    forced = np.random.default_rng(seed).normal(size=rows.shape[1] * n_bins)
    base = np.delete(rows, added, axis=0)
    one, two = (queries(data, radius, n_bins, forced, 9, 0.4) for data in (rows, base))
    assert max(moved(one, two)) <= 1.0


@pytest.mark.parametrize("dimension", [1, 3])
@pytest.mark.parametrize("reach", [9.0, 1e308])
def test_both_sensitivities_are_attained(dimension, reach):
    rows = np.zeros((40, dimension))
    ends = []
    for place in (reach, -reach):
        rows[0] = place
        ends.append(queries(rows, 1.0, 7, None))
    assert all(1 - 1e-9 < distance <= 1 for distance in moved(*ends))
    added, base = (queries(data, 1.0, 7, None, 60, 0.5) for data in (rows, rows[1:]))
    assert all(1 - 1e-9 < distance <= 1 for distance in moved(added, base))


@pytest.mark.parametrize("sampled", [1.0, 0.25])
def test_the_sensitivity_pays_for_the_rounding_of_long_sums(sampled):
    record = Winsorized(20_000, 7, 3.0, 5.0, sampling_probability=sampled)
    exact = (1 if sampled < 1 else 2) * 3.0 / (sampled * 20_000)
    assert record.moved_mean(np.array([3.0])) / exact - 1 >= 4 * 20_000**2 * 2.0**-53
    assert record.moved_mean(np.array([3.0])) / exact - 1 < 1e-5


# --- what is computed -------------------------------------------------------------------------------------------------


def test_values_are_clipped_to_the_widened_bin_where_most_are():
    rows = np.full((10, 2), [4.5, -0.5])
    rows[0] = [-100.0, 100.0]
    rows[1] = [math.nan, 7.0]
    released = Winsorized(10, 10, 3.0, 5.0).start(SilentNoise()).release(rows, 1.0)
    # Bins [4, 6] and [-2, 0], intervals [2, 8] and [-4, 2]; the vector with a NaN counts as 0 in both.
    np.testing.assert_allclose(released, [(8 * 4.5 + 2 + 2) / 10, (8 * -0.5 + 2 + 0) / 10])


def test_an_interval_ends_where_the_range_does():
    record, noise = Winsorized(4, 2, 3.0, 5.0), SilentNoise()
    released = record.start(noise).release(np.array([[5.0], [5.0], [5.0], [-5.0]]), 1.0)
    np.testing.assert_allclose(released, [1.0])
    assert noise.asked[1] == ("gaussian", record.moved_mean(np.array([2.0])), 5.0)


def test_bins_cover_the_range_and_counts_add_up():
    values = np.array([[-1e308, -2.0, -1e-9, 0.0, 1.999, 2.0, 1e308]]).T
    np.testing.assert_array_equal(bins_of(values, 1.0, 3)[:, 0], [0, 0, 1, 1, 2, 2, 2])
    np.testing.assert_array_equal(bins_of(values, 1.0, 2)[:, 0], [0, 0, 0, 1, 1, 1, 1])
    np.testing.assert_array_equal(bin_counts(bins_of(values, 1.0, 3), 3), [[2, 2, 3]])
    assert np.array_equal(finite_rows(np.array([[math.inf, 1.0]])), [[0.0, 0.0]])


def test_a_concentrated_cloud_is_averaged_exactly():
    rows = 3.3 + np.random.default_rng(0).uniform(-1, 1, (500, 4))
    released = Winsorized(500, 20, 3.0, 5.0).start(SilentNoise()).release(rows, 1.0)
    np.testing.assert_allclose(released, rows.mean(axis=0))


@pytest.mark.parametrize("batch", [0, 1, 90, 200])
def test_noise_and_divisor_do_not_tell_the_size_of_a_batch(batch):
    record, noise = Winsorized(200, 5, 3.0, 5.0, sampling_probability=0.5), SilentNoise()
    released = record.start(noise).release(np.full((batch, 2), 0.25), 1.0)
    first, second = noise.asked
    assert first == ("gaussian", record.count_sensitivity(2), 3.0)
    if batch:
        assert second == ("gaussian", record.moved_mean(np.full(2, 3.0)), 5.0)
        np.testing.assert_allclose(released, 0.25 * batch / 100)


def test_samples_are_poisson_and_everyone_is_everyone():
    users = np.arange(20_000)
    assert Winsorized(20_000, 5, 3.0, 5.0).start(SecureNoise()).choose(users) is users
    session = Winsorized(20_000, 5, 3.0, 5.0, 2, 0.2).start(SecureNoise())
    one, two = session.choose(users), session.choose(users)
    assert abs(len(one) - 4000) < 6 * math.sqrt(20_000 * 0.2 * 0.8)
    assert len(np.intersect1d(one, two)) < 1200


# --- cost and noise ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [1, 7])
def test_the_cost_is_that_of_both_gaussians_in_every_round(rounds):
    precision = 1 / 9 + 1 / 25
    cost = Winsorized(40, 5, 3.0, 5.0, rounds).cost
    assert cost == Cost(gaussian=cost.gaussian)
    assert 1 <= cost.gaussian / (rounds * precision) < 1 + 1e-11
    sampled = Winsorized(40, 5, 3.0, 5.0, rounds, 0.1).cost
    (part,) = sampled.subsampled
    assert (part.sampling_probability, part.steps) == (0.1, rounds)
    assert 1 - 1e-11 < part.added_user_multiplier * math.sqrt(precision) < 1
    assert 1 <= sampled.failure / (rounds * 0.9**39) < 1 + 1e-8
    assert sampled.gaussian == 0
    assert sampled.pure == ()


@pytest.mark.parametrize(("sampled", "votes"), [(1.0, 2), (0.5, 1)])
def test_counts_and_mean_get_noise_of_their_multipliers(sampled, votes):
    record, noise = Winsorized(40, 5, 3.0, 5.0, 2, sampled), SilentNoise()
    session = record.start(noise)
    for _ in range(2):
        session.release(np.zeros((40, 6)), 0.5)
    assert noise.asked[0] == ("gaussian", record.count_sensitivity(6), 3.0)
    assert noise.asked[:2] == noise.asked[2:]
    assert math.sqrt(votes * 6) <= record.count_sensitivity(6) < math.sqrt(votes * 6) * (1 + 1e-12)
    exact = votes * math.sqrt(6 * 1.5**2) / (sampled * 40)
    assert noise.asked[1][2] == 5.0
    assert 1 <= noise.asked[1][1] / exact < 1 + 1e-9


def test_released_noise_is_normal_with_multiplier_times_sensitivity():
    record = Winsorized(4000, 1, 3.0, 5.0)
    released = record.start(SecureNoise()).release(np.zeros((4000, 2000)), 2.0)
    std = 5.0 * 2 * math.sqrt(2000) * 2.0 / 4000
    assert kstest(released, norm(0, std).cdf).pvalue > 1e-6
    assert abs(released.std() / std - 1) < 0.08


@pytest.mark.parametrize("q", [0.1, 0.5])
@pytest.mark.parametrize("epsilon", [0.2, 1.0])
def test_adaptive_second_shifts_cost_no_more_than_one_sampled_gaussian(q, epsilon):
    """Section 18 by quadrature: whatever the second release does given the first, the sampled pair covers it."""
    a, z = 1.6, 1.3
    x = np.linspace(-14, 14, 1401)
    grid = (x[1] - x[0]) ** 2
    limit = delta_at(Cost(subsampled=(Subsampled(q, 1 / math.sqrt(1 / a**2 + 1 / z**2), 1),)), epsilon)
    first, second = x[:, None], x[None, :]

    def density(shift, later):
        return norm.pdf(first - shift / a) * norm.pdf(second - later / z) * grid

    worst = []
    sign = np.sign(first)
    for v, w in ((1.0, -1.0), (sign, -sign), (np.cos(first), -1.0), (sign, sign), (np.tanh(3 * first), -sign)):
        p = (1 - q) * density(0, 0) + q * density(1.0, v)
        r = (1 - q) * density(0, 0) + q * density(-1.0, w)
        worst += [np.maximum(p - math.exp(epsilon) * r, 0).sum(), np.maximum(r - math.exp(epsilon) * p, 0).sum()]
    assert max(worst) <= limit * (1 + 1e-3)
    assert max(worst) > 0.9 * limit


def audit_values(place, multiplier, sampled, runs):
    record = Winsorized(100, 1, 1e6, multiplier, sampling_probability=sampled)
    rows, noise = np.zeros((100, 1)), SeededNoise(int(5 + place))
    rows[0] = 9 * place
    values = np.empty(runs)
    for run in range(runs):
        session = record.start(noise)
        values[run] = session.release(rows[session.choose(np.arange(100))], 1.0)[0]
    return values


def test_audit_of_means_of_all_and_of_samples():
    """A user at one end of the range against the other: the claim holds, and little of it is wasted."""
    runs, delta, epsilon = 3000, 1e-2, 3.0

    def audited(shrink):
        z = gaussian_multiplier(Budget(epsilon, delta)) / shrink
        return audited_gaussian_epsilon(*(audit_values(place, z, 1.0, runs) for place in (1.0, -1.0)), delta)

    assert 0.7 * epsilon < audited(1.0) <= epsilon
    assert audited(1.4) > epsilon
    z = subsampled_multiplier(Budget(epsilon, delta), 0.5, 1)
    one, other = (audit_values(place, z, 0.5, runs) for place in (1.0, -1.0))
    assert audited_epsilon(one, other, delta) <= epsilon
    one, other = (audit_values(place, z / 6, 0.5, runs) for place in (1.0, -1.0))
    assert audited_epsilon(one, other, delta) > epsilon


def test_audit_of_the_winning_bin():
    """Two bins with equally many votes: one user decides, and the counts' noise hides it."""
    runs, delta, epsilon = 6000, 1e-2, 1.0

    def winners(place, multiplier):
        noise, values = SeededNoise(int(5 + place)), np.empty(runs)
        rows = np.array([[-5.0], [5.0], [place * 5.0]])
        for run in range(runs):
            values[run] = Winsorized(3, 4, multiplier, 1e-3).start(noise).release(rows, 2.0)[0] > 0
        return values

    z = gaussian_multiplier(Budget(epsilon, delta))
    assert audited_epsilon(winners(1.0, z), winners(-1.0, z), delta) <= epsilon
    assert audited_epsilon(winners(1.0, z / 6), winners(-1.0, z / 6), delta) > epsilon


# --- sessions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sampled", "size"), [(1.0, 39), (1.0, 41), (0.5, 41)])
def test_another_number_of_vectors_than_priced_is_refused(sampled, size):
    noise = SilentNoise()
    session = Winsorized(40, 5, 3.0, 5.0, sampling_probability=sampled).start(noise)
    with pytest.raises(ValueError, match="Expected 40 vectors, as was priced"):
        session.release(np.zeros((size, 1)), 1.0)
    assert noise.asked == []


def test_no_more_rounds_than_priced():
    session = Winsorized(4, 5, 3.0, 5.0, rounds=2).start(SilentNoise())
    for _ in range(2):
        session.release(np.zeros((4, 1)), 1.0)
    with pytest.raises(RuntimeError, match="paid for"):
        session.release(np.zeros((4, 1)), 1.0)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"mean_multiplier": 0.0}, ValueError),
        ({"count_multiplier": math.nan}, ValueError),
        ({"n_bins": 0}, ValueError),
        ({"n_vectors": 1.5}, ValueError),
        ({"rounds": 0}, ValueError),
        ({"sampling_probability": 1.01}, ValueError),
        ({"sampling_probability": 0.0}, ValueError),
        ({"mean_multiplier": [1.0]}, TypeError),
    ],
)
def test_impossible_records_are_refused(change, error):
    with pytest.raises(error, match=next(iter(change))):
        Winsorized(**({"n_vectors": 40, "n_bins": 5, "count_multiplier": 3.0, "mean_multiplier": 5.0} | change))
