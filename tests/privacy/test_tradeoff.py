"""What a plan's noise allows an attacker: against closed forms, likelihood-ratio tests and dp-accounting."""

import math

import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.special import expit, log_ndtr, ndtr, ndtri
from support import gaussian_removal

from userdp.paper.outlier_removal import OutlierRemoval, RadiusSearch
from userdp.privacy.accounting import (
    Budget,
    Cost,
    Subsampled,
    budget_for,
    default_delta,
    delta_at,
    delta_curve,
    gaussian_delta,
    gaussian_multiplier,
    subsampled_multiplier,
)
from userdp.privacy.clip import Clip
from userdp.privacy.domination import least_mu
from userdp.privacy.plan import Plan, Step
from userdp.privacy.statement import Tradeoff, right_guess, tradeoff


def whole(*mechanisms):
    """A plan of these mechanisms, all of them on everybody."""
    n_users = mechanisms[0].n_vectors
    return Plan(n_users, tuple(Step(f"step {k}", 0, n_users, one) for k, one in enumerate(mechanisms)))


def gaussian_plan(epsilon, delta):
    return whole(Clip(100, gaussian_multiplier(Budget(epsilon, delta))))


@pytest.mark.parametrize(
    ("epsilon", "delta", "alone", "given", "added"),
    [(1.0, 1e-6, 0.731, 0.547, 0.475), (2.0, 1e-6, 0.881, 0.589, 0.943), (2.0, 1e-5, 0.881, 0.599, 0.929)],
)
def test_figures_of_gaussian_noise(epsilon, delta, alone, given, added):
    found = tradeoff(gaussian_plan(epsilon, delta), delta)
    assert right_guess(epsilon, delta) == pytest.approx(alone, abs=5e-4)
    assert found.right_guess == pytest.approx(given, abs=5e-4)
    assert found.added_epsilon == pytest.approx(added, abs=2e-3)
    assert dict(found.epsilons)[delta] == pytest.approx(epsilon, rel=1e-6)
    assert found.failure == found.mu_failure == 0.0


@pytest.mark.parametrize("multiplier", [0.3, 1.0, 4.0, 50.0])
def test_the_polygon_hugs_the_gaussian_curve_from_below(multiplier):
    found = tradeoff(whole(Clip(100, multiplier)), 1e-6)
    alarms, misses = np.array(found.points).T
    exact = ndtr(-ndtri(alarms) - 1 / multiplier)
    assert found.mu == pytest.approx(1 / multiplier, rel=1e-12)
    assert np.all(misses <= exact + 1e-12)
    assert np.max(exact - misses) < 0.012
    assert found.right_guess == pytest.approx(ndtr(1 / multiplier / 2), rel=1e-12)
    assert np.min(alarms + misses) == pytest.approx(2 * (1 - found.right_guess), rel=1e-9)


def likelihood_ratio_test(mu, epsilon, threshold):
    """Errors of rejecting "no" where the loss of a Gaussian of mean 0 or mu and a randomised response is high."""
    wrong = missed = 0.0
    for sign in (1.0, -1.0):
        cut = (threshold - sign * epsilon) / mu + mu / 2  # the Gaussian loss mu x - mu^2/2 that is still needed
        wrong += expit(-sign * epsilon) * math.exp(log_ndtr(-cut))
        missed += expit(sign * epsilon) * math.exp(log_ndtr(cut - mu))
    return wrong, missed


def test_pure_and_gaussian_parts_are_as_the_best_tests_on_them():
    mechanism = OutlierRemoval(1000, 4.0, 0.3, 1e-8)
    found = tradeoff(whole(mechanism), 1e-6)
    mu, pure = math.sqrt(mechanism.cost.gaussian), mechanism.cost.pure[0]
    alarms, misses = np.array(found.points).T
    for threshold in np.linspace(-1.5, 1.5, 31):
        wrong, missed = likelihood_ratio_test(mu, pure, threshold)
        allowed = np.interp(wrong, alarms, misses)
        assert missed - 2e-4 < allowed + found.failure < missed + 2e-4  # chords of the polygon may be a little above
    wrong, missed = likelihood_ratio_test(mu, pure, 0.0)
    assert 2 * found.right_guess == pytest.approx(2 - wrong - missed + found.failure, rel=1e-9)
    assert found.failure == pytest.approx(mechanism.cost.failure)


def test_a_pure_part_alone_is_randomised_response_and_its_gaussian_is_known():
    found = tradeoff(whole(Clip(100, 1.0, laplace=True)), 1e-6)
    assert found.right_guess == pytest.approx(expit(1.0), rel=1e-9)
    assert found.mu == pytest.approx(2 * ndtri(expit(1.0)), rel=1e-5)
    assert found.mu >= 2 * ndtri(expit(1.0))
    assert found.added_epsilon == pytest.approx(0.5, rel=1e-4)  # a new user moves the mean half as far


SAMPLED = Cost(subsampled=(Subsampled(0.1, 2.0, 20),), failure=1e-8)
MIXED = Cost(gaussian=0.04, pure=(0.2, 0.1), failure=1e-8)
MANY = Cost(gaussian=0.04, pure=(0.1,) * 5)


@pytest.mark.parametrize("cost", [SAMPLED, MIXED, MANY], ids=["sampled", "mixed", "many"])
@pytest.mark.parametrize("slack", [1e-8, 1e-6])
def test_the_gaussian_dominates_between_the_points_too_and_no_smaller_one_does(cost, slack):
    mu = least_mu(cost, slack)
    epsilons = np.linspace(0.0, 6.0, 3001)
    deltas = delta_curve(cost, epsilons) - cost.failure - slack
    assert np.all(deltas <= [gaussian_delta(mu, epsilon) for epsilon in epsilons])
    assert np.any(deltas > [gaussian_delta(0.995 * mu, epsilon) for epsilon in epsilons])


@pytest.mark.parametrize("cost", [SAMPLED, MIXED, MANY, Cost(), Cost(gaussian=1.0)])
def test_many_epsilons_at_once_are_as_one_by_one(cost):
    epsilons = np.linspace(0.0, 3.0, 7)
    one_by_one = [delta_at(cost, epsilon) for epsilon in epsilons]
    assert np.all(delta_curve(cost, epsilons) >= np.array(one_by_one) * (1 - 1e-9))
    assert delta_curve(cost, epsilons) == pytest.approx(one_by_one, rel=0.02, abs=1e-12)


def test_sampled_steps_get_the_curve_of_their_losses():
    q, steps, budget = 0.1, 20, Budget(1.0, 1e-6)
    multiplier = subsampled_multiplier(budget, q, steps)
    found = tradeoff(whole(Clip(1000, multiplier / 2, steps, sampling_probability=q)), 1e-6)
    single = {
        relation: pld.from_gaussian_mechanism(
            multiplier, sampling_prob=q, value_discretization_interval=1e-3, neighboring_relation=relation
        ).self_compose(steps)
        for relation in (NeighboringRelation.REPLACE_ONE, NeighboringRelation.ADD_OR_REMOVE_ONE)
    }
    replaced = single[NeighboringRelation.REPLACE_ONE]
    assert 2 * found.right_guess - 1 == pytest.approx(replaced.get_delta_for_epsilon(0.0), rel=1e-3)
    added = single[NeighboringRelation.ADD_OR_REMOVE_ONE].get_epsilon_for_delta(1e-6)
    assert found.added_epsilon == pytest.approx(added, rel=1e-2)
    assert found.added_epsilon < 0.6
    assert found.right_guess < 0.55
    alarms, misses = np.array(found.points).T
    assert np.all(np.diff(alarms) >= 0)
    assert np.all(np.diff(misses) <= 0)
    for epsilon in (0.2, 0.5, 0.9):  # no corner is below the line of any (epsilon, delta)
        line = 1 - replaced.get_delta_for_epsilon(epsilon) - math.exp(epsilon) * alarms
        assert np.all(misses >= line - 1e-3)


def test_users_who_pay_most_decide():
    parts = (Step("all", 0, 100, Clip(100, 10.0)), Step("some", 40, 100, Clip(60, 5.0)))
    found = tradeoff(Plan(100, parts), 1e-6)
    assert found.mu == pytest.approx(math.hypot(1 / 10, 1 / 5), rel=1e-9)
    assert found.right_guess == pytest.approx(ndtr(found.mu / 2), rel=1e-9)
    for delta, epsilon in found.epsilons:
        assert gaussian_delta(found.mu, epsilon) == pytest.approx(delta, rel=1e-6)
    assert found.added_epsilon == pytest.approx(tradeoff(whole(Clip(100, 2 / found.mu)), 1e-6).epsilons[1][1], rel=1e-6)


def test_tests_have_failures_and_no_number_for_adding_a_user():
    found = tradeoff(whole(gaussian_removal(1000, 8.0, 30.0, 1e-7)), 1e-6)
    assert found.failure == found.mu_failure == pytest.approx(1e-7)
    assert found.added_epsilon is None
    assert dict(found.epsilons)[1e-8] is None  # less than the failures
    assert dict(found.epsilons)[1e-6] > 0
    sampled = tradeoff(whole(Clip(100, 1.5, 5, sampling_probability=0.2)), 1e-6)
    assert sampled.mu_failure == pytest.approx(1e-8)


def test_what_cannot_be_told_is_not():
    free = tradeoff(whole(RadiusSearch(100, (1.0,), 50, 1.0)), 1e-6)
    assert (free.right_guess, free.mu) == (0.5, 0.0)
    assert free.points == ((0.0, 1.0), (1.0, 0.0))
    broken = tradeoff(whole(gaussian_removal(1000, 8.0, 30.0, 1e-3)), 1e-6)  # fails more often than delta
    assert broken.right_guess > ndtr(1 / 16)
    assert all(epsilon is None for _, epsilon in broken.epsilons[:1])
    tiny = tradeoff(
        whole(Clip(100, 1.5, 5, sampling_probability=0.2)), 1e-14
    )  # below what the accountant's rounding can tell
    assert tiny.mu is None
    assert tiny.added_epsilon is None


def test_an_infinite_epsilon_is_no_number():
    assert tradeoff(whole(Clip(100, 5.0)), 0.0).added_epsilon is None


def test_it_survives_json():
    found = tradeoff(gaussian_plan(1.0, 1e-6), 1e-6)
    assert Tradeoff.from_dict(found.to_dict()) == found


@pytest.mark.parametrize("n_users", [1, 2, 100, 10_000, 48_092, 10**9])
def test_the_default_delta_is_far_below_one_over_the_users(n_users):
    assert default_delta(n_users) == min(1e-6, n_users**-1.5)
    assert n_users * default_delta(n_users) <= 0.01 * 1.0001
    assert budget_for(2.0, None, n_users) == Budget(2.0, default_delta(n_users))
    assert budget_for(2.0, 1e-3, n_users) == Budget(2.0, 1e-3)
