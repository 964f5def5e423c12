"""What runs are charged as between runs: closed forms, exact divergences, rounding."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_expit, log_ndtr
from support_adversary import Pure, Sampled, SampledMore

from userdp.privacy import accounting as a
from userdp.privacy import domination
from userdp.privacy.accounting import Budget, BudgetExceeded, Cost, Subsampled, gaussian_delta
from userdp.privacy.domination import Dominating, Filter, dominating, pure_mu

EPSILONS = np.concatenate([-np.geomspace(8.0, 1e-3, 60), [0.0], np.geomspace(1e-3, 8.0, 120)])
BUDGET = Budget(1.0, 1e-6)

epsilons = st.floats(1e-6, 30.0)
squares = st.floats(0.0, 4.0)
costs = st.builds(  # below mu = 1e-4 the accountant charges more
    Cost,
    gaussian=st.just(0.0) | st.floats(1e-8, 4.0),
    pure=st.lists(st.floats(0.0, 2.0), max_size=3).map(tuple),
    failure=st.floats(0.0, 1e-3),
)
totals = st.builds(Dominating, squares, st.floats(0.0, 2.0) | st.just(math.inf), st.floats(0.0, 1e-6))


@given(epsilons)
def test_a_pure_epsilon_is_randomised_response_by_the_sign_of_a_gaussian(epsilon):
    """Phi(mu/2) = e^epsilon / (1 + e^epsilon), and mu is not rounded down."""
    mu = pure_mu(epsilon)
    assert log_ndtr(-mu / 2) <= log_expit(-epsilon)
    assert log_ndtr(-mu / 2 * (1 - 1e-8)) > log_expit(-epsilon) * (1 + 1e-9)
    assert mu <= math.sqrt(math.pi / 2) * epsilon * (1 + 1e-8)


def test_no_pure_epsilon_is_too_small_or_too_large_to_be_charged():
    assert 0 <= pure_mu(0.0) < 1e-14
    assert pure_mu(1e-9) == pytest.approx(math.sqrt(math.pi / 2) * 1e-9, rel=1e-5)
    assert pure_mu(1e-9) >= math.sqrt(math.pi / 2) * 1e-9
    assert 79 < pure_mu(800.0) < 80
    assert dominating(Cost(pure=(0.0,))) == Dominating()


@pytest.mark.parametrize("epsilon", [0.01, 0.3, 1.0, 4.0])
def test_the_gaussian_curve_is_above_that_of_a_pure_epsilon_and_touches_it(epsilon):
    run, mu = Pure(epsilon), math.sqrt(dominating(Cost(pure=(epsilon,))).mu_squared)
    exact = np.array([float(run.delta(np.array([at]))[0]) for at in EPSILONS])
    allowed = np.array([gaussian_delta(mu, at) for at in EPSILONS])
    assert np.all(exact <= allowed * (1 + 1e-9))
    assert gaussian_delta(mu, 0.0) == pytest.approx(float(run.delta(np.zeros(1))[0]), rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("run", [Sampled(0.8), Sampled(1.2), SampledMore(0.3), SampledMore(1.0)])
@pytest.mark.parametrize("failure", [1e-9, 1e-7, 1e-4])
def test_the_gaussian_curve_and_the_failure_are_above_a_sampled_run(run, failure):
    """For all epsilon, of both signs; and not with a lower mu."""
    priced = dominating(run.cost, failure)
    assert priced.failure == failure
    mu = math.sqrt(priced.mu_squared)
    assert mu < 2 * run.mu, "sampling does amplify"
    losses, weights = run.losses(200_001)
    exact = np.array([-np.expm1(np.minimum(0.0, at - losses)) @ weights for at in EPSILONS])
    allowed, lower = (np.array([gaussian_delta(m, at) for at in EPSILONS]) + failure for m in (mu, 0.98 * mu))
    assert np.all(exact <= allowed * (1 + 1e-6))
    assert np.any(exact > lower)


@pytest.mark.parametrize(("q", "z", "steps"), [(0.01, 2.7, 1000), (0.2, 17.0, 100), (0.5, 27.0, 40)])
def test_sampled_runs_of_many_steps_cost_what_a_gaussian_of_the_same_epsilon_does(q, z, steps):
    cost = Cost(subsampled=(Subsampled(q, z, steps),))
    priced = dominating(cost, 1e-6 / 64)
    exact, charged = a.epsilon_at(cost, 1e-6), Filter(BUDGET).epsilon_at(priced, 1e-6)
    assert exact <= charged <= 1.005 * exact


def test_all_sampled_parts_of_a_run_are_charged():
    """As those of one plan are: the same steps in two parts cost the same, and unlike ones are covered together."""
    five, four_and_one = (
        dominating(Cost(subsampled=tuple(Subsampled(0.3, 6.0, steps) for steps in parts)), 1e-8)
        for parts in ((5,), (4, 1))
    )
    assert four_and_one.mu_squared == pytest.approx(five.mu_squared, rel=1e-3)
    unlike = Cost(subsampled=(Subsampled(0.01, 2.0, 10), Subsampled(0.3, 4.0, 3)))
    priced = dominating(unlike, 1e-8)
    for epsilon in (0.0, 0.3, 1.0, 2.0):
        allowed = gaussian_delta(math.sqrt(priced.mu_squared), epsilon) + priced.failure
        assert a.delta_at(unlike, epsilon) <= allowed * (1 + 1e-9)


@pytest.mark.parametrize("failure", [0.0, 1e-15, 1e-7])
def test_a_sample_of_everybody_is_a_gaussian_release(failure):
    priced = dominating(Cost(subsampled=(Subsampled(1.0, 8.0, 4),)), failure)
    assert priced.mu_squared == pytest.approx(4 * (2 / 8.0) ** 2, rel=1e-3)
    assert priced.mu_squared >= 4 * (2 / 8.0) ** 2 or priced.failure > 0


@pytest.mark.slow
def test_without_a_failure_to_spare_sampling_is_not_counted():
    cost = Cost(subsampled=(Subsampled(0.1, 8.0, 4), Subsampled(0.5, 5.0, 2)))
    priced, closed = dominating(cost, 0.0), 4 * 0.25**2 + 2 * 0.4**2
    assert closed <= priced.mu_squared <= closed * (1 + 1e-9)
    assert (priced.pure, priced.failure) == (math.inf, 0.0)
    noiseless = Cost(subsampled=(Subsampled(0.9, 0.03, 3),))  # beyond where e^epsilon is a number
    assert dominating(noiseless, 1e-8).failure == 0


def test_next_to_nothing_is_charged_next_to_nothing():
    priced = dominating(Cost(subsampled=(Subsampled(1e-6, 1e3, 1),)), 1e-6)
    assert priced.mu_squared == pytest.approx(1e-8)
    assert priced.failure == 1e-6


@settings(max_examples=60)
@given(costs)
def test_parts_are_dominated_together_and_failures_added(cost):
    """Gaussian, pure and failure composed exactly are at most what is charged, at every epsilon."""
    priced = dominating(cost)
    assert priced.failure == cost.failure
    assert priced.pure == (math.inf if cost.gaussian else math.fsum(cost.pure))
    for epsilon in (0.0, 0.1, 0.7, 2.0, 5.0):
        allowed = gaussian_delta(math.sqrt(priced.mu_squared), epsilon) + priced.failure
        assert a.delta_at(cost, epsilon) <= allowed * (1 + 1e-9) + 1e-15


@given(squares, st.floats(0.0, 1e-3))
def test_gaussian_runs_are_charged_exactly_as_they_are(square, failure):
    assert dominating(Cost(gaussian=square, failure=failure), 1e-7).mu_squared == square
    assert dominating(Cost(gaussian=square, failure=failure), 1e-7).failure == failure


@given(totals, totals, totals)
def test_sums_and_covers(one, two, three):
    both = one + two
    assert both.covers(one)
    assert both.covers(two)
    assert both.mu_squared >= one.mu_squared + two.mu_squared
    assert both.failure >= one.failure + two.failure
    worst = Dominating.worst([one, two])
    assert worst.covers(one)
    assert worst.covers(two)
    assert (worst + three).covers(one + three)
    assert Dominating.from_json(one.to_json()) == one
    if Filter(BUDGET).fits(both):
        assert Filter(BUDGET).fits(one)


@given(totals, st.floats(0.0, 0.9))
def test_what_fits_keeps_the_budget(total, fraction):
    """Noise and failures that fit add up to delta at epsilon, with the reserves left; pure runs to epsilon."""
    held = Filter(BUDGET, fraction)
    if held.fits(total):
        gaussian = gaussian_delta(math.sqrt(total.mu_squared), BUDGET.epsilon * (1 - 1e-9)) + total.failure
        by_pure = total.pure <= BUDGET.epsilon and total.failure <= fraction * BUDGET.delta
        assert gaussian <= BUDGET.delta * (1 - 1e-7) or by_pure
        assert held.epsilon_at(total, BUDGET.delta) <= BUDGET.epsilon
        held.certify(total)
    else:
        with pytest.raises(BudgetExceeded, match="Nothing was spent"):
            held.certify(total)


def test_what_failures_leave_is_not_given_to_noise():
    held = Filter(BUDGET)
    just = 1 / a.gaussian_multiplier(Budget(1.0, 0.75e-6)) ** 2
    assert held.fits(Dominating(just, math.inf, 0.0))
    assert held.fits(Dominating(just, math.inf, 0.2499e-6))
    assert not held.fits(Dominating(just * (1 + 1e-6), math.inf, 0.0))
    assert not held.fits(Dominating(0.0, 0.0, 0.2501e-6))


def test_totals_that_are_none_are_refused():
    for wrong in ((-1.0, 0.0, 0.0), (math.inf, 0.0, 0.0), (math.nan, 0.0, 0.0), (0.0, math.nan, 0.0), (0.0, 0.0, -1.0)):
        with pytest.raises(ValueError, match="Expected costs >= 0"):
            Dominating(*wrong)
    for fraction in (-0.1, 1.0, True, math.nan):
        with pytest.raises(ValueError, match="Expected 0 <= failure_fraction"):
            Filter(BUDGET, fraction)
    for fraction in ("all", None):
        with pytest.raises(TypeError, match="failure_fraction must be a number"):
            Filter(BUDGET, fraction)


def chord(ends, deltas, at):
    """The highest convex function of e^epsilon through two points, in between."""
    low, high, here = np.exp(ends[0]), np.exp(ends[1]), math.exp(at)
    return (deltas[0] * (high - here) + deltas[1] * (here - low)) / (high - low)


def test_a_curve_must_be_covered_between_the_points_where_it_is_known():
    ends = np.array([0.0, 3.0])
    deltas = np.array([gaussian_delta(1.0, float(at)) for at in ends])
    assert chord(ends, deltas, 1.0) > gaussian_delta(1.0, 1.0) + 0.1
    assert not domination._is_above(1.0, 0.1, ends, deltas)
    assert domination._is_above(1.0, 0.3, ends, deltas)


@given(st.floats(0.01, 3.0), st.floats(1e-9, 0.3), st.floats(0.0, 3.0), st.floats(0.01, 2.0), st.floats(0.0, 1.0))
def test_what_is_found_to_be_covered_is_covered_everywhere(mu, failure, start, width, between):
    ends = np.array([start, start + width])
    deltas = np.array([failure / 2 + gaussian_delta(mu, start) * 0.9, failure * 0.9])
    at = start + between * width
    if domination._is_above(mu, failure, ends, deltas):
        assert chord(ends, deltas, at) <= gaussian_delta(mu, at) + failure
        assert not domination._is_above(mu, failure * 0.8, ends, deltas), "nor beyond the last point"
