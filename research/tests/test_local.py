import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare, kstest, norm
from support import SilentNoise
from support_audit import audited_epsilon, audited_gaussian_epsilon

from userdp.privacy.accounting import Budget, BudgetExceeded, Cost, gaussian_multiplier
from userdp.privacy.noise import SecureNoise, SeededNoise
from userdp.privacy.plan import Plan, Step
from userdp_research.mechanisms.local import LocalReports, LocalVotes, own_values

numbers = st.one_of(
    st.sampled_from([0.0, 1.0, -1.0, math.nan, math.inf, -math.inf, 1e308, -1e308]), st.floats(-6.0, 6.0), st.floats()
)


class Recorder(SilentNoise):
    """Adds nothing and keeps what was to get noise."""

    def gaussian(self, query, sensitivity, multiplier):
        self.told = query / sensitivity
        return super().gaussian(query, sensitivity, multiplier)


# --- votes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [1e-6, 0.1, 1.0, 8.0, 30.0, 800.0])
@pytest.mark.parametrize("n_bins", [1, 2, 7, 1000])
def test_no_two_bins_differ_by_more_than_epsilon_in_how_often_they_are_named(epsilon, n_bins):
    """Exact arithmetic, with the coin's own rounding; and nothing to speak of is given away."""
    truth = Fraction(math.floor(LocalVotes(1, epsilon, n_bins).truth * 2.0**53), 2**53)
    assert 0 <= truth < 1
    ratio = 1 + n_bins * truth / (1 - truth)
    if epsilon <= 30:
        exact = Fraction(math.exp(epsilon))
        assert ratio <= exact * (1 + Fraction(1, 2**51))  # what exp itself may be off
        assert ratio >= 1 + (exact - 1) * Fraction(9, 10)


@pytest.mark.parametrize("n_bins", [2, 3])
def test_votes_are_named_as_often_as_the_proof_says(n_bins):
    """One user a coordinate, so that every vote is seen."""
    users, epsilon = 6000, 1.0
    rows = np.full((users, users), 0.0, dtype=np.float32)
    rows[np.arange(users), np.arange(users)] = 100.0  # the last bin
    released = LocalVotes(users, epsilon, n_bins).start(SecureNoise()).release(rows, 1.0)
    named = np.bincount(((released + n_bins - 1) / 2).astype(int), minlength=n_bins)
    weights = np.ones(n_bins)
    weights[-1] = math.exp(epsilon)
    assert chisquare(named, users * weights / weights.sum()).pvalue > 1e-6
    assert chisquare(named, np.full(n_bins, users / n_bins)).pvalue < 1e-6


def test_the_bin_with_most_votes_wins_in_each_coordinate():
    rows = np.tile([[4.5, -0.5, math.nan]], (300, 1))
    released = LocalVotes(300, 50.0, 10).start(SecureNoise()).release(rows, 1.0)
    np.testing.assert_array_equal(released, [5.0, -1.0, 1.0])


def test_every_user_tosses_a_coin_and_has_another_bin_ready():
    record, noise = LocalVotes(8, 1.0, 5), SilentNoise()
    record.start(noise).release(np.zeros((8, 2)), 1.0)
    assert noise.asked == [("coins", pytest.approx(record.truth)), ("integers", 8, 5)]


def test_audit_of_a_vote():
    def votes(place, epsilon):
        noise = SeededNoise(int(5 + place))
        record, rows = LocalVotes(1, epsilon, 3), np.full((1, 1), place * 9.0)
        return np.array([record.start(noise).release(rows, 1.0)[0] for _ in range(8000)])

    assert 0.6 < audited_epsilon(votes(1.0, 1.0), votes(-1.0, 1.0), 0.0) <= 1.0
    assert audited_epsilon(votes(1.0, 1.5), votes(-1.0, 1.5), 0.0) > 1.0


# --- reports ----------------------------------------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(
    rows=st.lists(st.lists(numbers, min_size=2, max_size=2), min_size=2, max_size=6),
    replacement=st.lists(numbers, min_size=2, max_size=2),
    radius=st.sampled_from([2.0**-400, 0.3, 1.0, 2.0**400]),
)
def test_a_replacement_changes_what_one_user_tells_and_by_no_more_than_the_sensitivity(rows, replacement, radius):
    told = []
    for first in (rows[0], replacement):
        noise = Recorder()
        LocalReports(len(rows), 5.0).start(noise).release(np.array([first, *rows[1:]]), radius)
        told.append(noise.told)
    assert np.array_equal(told[0][1:], told[1][1:])
    assert abs(told[0][0] - told[1][0]) <= 1.0


def test_the_sensitivity_is_attained_and_noise_is_a_multiple_of_it():
    told = []
    for place in (1e308, -1e308):
        noise = Recorder()
        LocalReports(3, 5.0).start(noise).release(np.full((3, 1), place), 2.0)
        told.append(noise.told)
        assert noise.asked == [("gaussian", 4.0, 5.0)]
    assert np.array_equal(told[0] - told[1], np.ones(3))


def test_each_user_has_noise_of_its_own():
    """One user a coordinate: what leaves is what users told."""
    released = LocalReports(3000, 5.0).start(SecureNoise()).release(np.zeros((3000, 3000), np.float32), 0.5)
    assert kstest(released, norm(0, 5.0).cdf).pvalue > 1e-6
    assert abs(released.std() / 5.0 - 1) < 0.07


def test_users_tell_their_own_coordinate_and_means_are_of_those():
    rows = np.arange(14.0).reshape(7, 2)
    rows[4, 0] = math.inf
    values, coordinates = own_values(rows, 7)
    np.testing.assert_array_equal(values, [0, 3, 4, 7, 0, 11, 12])
    np.testing.assert_array_equal(coordinates, [0, 1, 0, 1, 0, 1, 0])
    released = LocalReports(7, 5.0).start(SilentNoise()).release(rows, 10.0)
    np.testing.assert_allclose(released, [(0 + 4 + 0 + 10) / 4, (3 + 7 + 10) / 3])


def test_audit_of_a_report():
    runs, delta, epsilon = 4000, 1e-2, 2.0

    def audited(multiplier):
        told = []
        for place in (9.0, -9.0):
            noise = SeededNoise(int(10 + place))
            record, rows = LocalReports(1, multiplier), np.full((1, 1), place)
            told.append(np.array([record.start(noise).release(rows, 1.0)[0] for _ in range(runs)]))
        return audited_gaussian_epsilon(*told, delta)

    multiplier = gaussian_multiplier(Budget(epsilon, delta))
    assert 0.7 * epsilon < audited(multiplier) <= epsilon
    assert audited(multiplier / 1.4) > epsilon


# --- both -------------------------------------------------------------------------------------------------------------


def test_costs_are_in_closed_form():
    assert LocalVotes(40, 0.7, 5).cost == Cost(pure=(0.7,))
    cost = LocalReports(40, 5.0).cost
    assert cost == Cost(gaussian=cost.gaussian)
    assert 1 / 25 <= cost.gaussian < 1 / 25 * (1 + 1e-12)


def test_a_user_pays_for_its_own_role_only():
    budget = Budget(1.0, 1e-6)
    votes, reports = LocalVotes(20, 0.999999, 5), LocalReports(20, gaussian_multiplier(budget))
    Plan(40, (Step("votes", 0, 20, votes), Step("reports", 20, 40, reports))).certify(budget)
    with pytest.raises(BudgetExceeded):
        Plan(40, (Step("votes", 0, 20, votes), Step("reports", 0, 20, reports))).certify(budget)


@pytest.mark.parametrize("record", [LocalVotes(40, 1.0, 5), LocalReports(40, 5.0)], ids=["votes", "reports"])
def test_only_what_was_priced_is_released(record):
    for size, dimension in ((39, 1), (41, 1), (40, 41)):
        noise = SilentNoise()
        with pytest.raises(ValueError, match="Expected 40 vectors, as was priced"):
            record.start(noise).release(np.zeros((size, dimension)), 1.0)
        assert noise.asked == []
    session = record.start(SilentNoise())
    session.release(np.zeros((40, 3)), 1.0)
    with pytest.raises(RuntimeError, match="paid for"):
        session.release(np.zeros((40, 3)), 1.0)


@pytest.mark.parametrize(
    ("record", "change"),
    [
        (LocalVotes, {"n_vectors": 40, "epsilon": 0.0, "n_bins": 5}),
        (LocalVotes, {"n_vectors": 40, "epsilon": 1.0, "n_bins": 0}),
        (LocalVotes, {"n_vectors": 0, "epsilon": 1.0, "n_bins": 5}),
        (LocalReports, {"n_vectors": 40, "noise_multiplier": math.nan}),
        (LocalReports, {"n_vectors": 2.5, "noise_multiplier": 1.0}),
    ],
)
def test_impossible_records_are_refused(record, change):
    with pytest.raises(ValueError, match=r"must be (finite|a whole number)"):
        record(**change)
