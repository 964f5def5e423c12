import math
import pickle
from dataclasses import fields
from typing import get_type_hints

import numpy as np
import pytest
from dp_accounting import NeighboringRelation, dp_event
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.rdp import RdpAccountant
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from userdp.paper.outlier_removal import OutlierRemoval, SampledOutlierRemoval
from userdp.privacy import accounting as a
from userdp.privacy.accounting import Budget, Cost, Subsampled
from userdp.privacy.clip import Clip

# --- closed forms ---------------------------------------------------------------------------------------------------


def hockey_stick(density, other, epsilon, low=-60.0, high=60.0):
    """E[max(0, 1 - e^(epsilon - loss))] by quadrature."""
    grid = np.linspace(low, high, 400_001)
    return float(np.trapezoid(np.maximum(0.0, density(grid) - math.exp(epsilon) * other(grid)), grid))


@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("epsilon", [-1.0, 0.0, 0.3, 2.0])
def test_gaussian_delta_is_the_hockey_stick_divergence_of_two_normals(mu, epsilon):
    expected = hockey_stick(norm(mu).pdf, norm(0.0).pdf, epsilon)
    assert a.gaussian_delta(mu, epsilon) == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_gaussian_delta_without_a_shift_is_that_of_equal_distributions():
    assert a.gaussian_delta(0.0, 0.5) == 0.0
    assert a.gaussian_delta(0.0, -0.5) == pytest.approx(1 - math.exp(-0.5))


def test_gaussian_composition_is_closed():
    """T releases of multiplier z are one of multiplier z / sqrt(T), as dp-accounting's PLD says in replace units."""
    cost = Cost(gaussian=10 / 7.0**2)
    accountant = PLDAccountant(NeighboringRelation.REPLACE_SPECIAL)
    accountant.compose(dp_event.GaussianDpEvent(7.0), 10)
    assert a.delta_at(cost, 1.0) == pytest.approx(accountant.get_delta(1.0), rel=1e-4)
    assert a.epsilon_at(cost, 1e-6) == pytest.approx(accountant.get_epsilon(1e-6), rel=1e-4)


def test_the_convention_is_replacement_units_where_dp_accounting_has_two():
    """REPLACE_ONE doubles the sensitivity in dp-accounting's PLD and not in its RDP: ours is std / sensitivity."""
    ours = a.epsilon_at(Cost(gaussian=1 / 4.0**2), 1e-6)
    doubled = PLDAccountant(NeighboringRelation.REPLACE_ONE)
    doubled.compose(dp_event.GaussianDpEvent(8.0))
    assert ours == pytest.approx(doubled.get_epsilon(1e-6), rel=1e-3)
    rdp = RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
    rdp.compose(dp_event.GaussianDpEvent(4.0))
    assert ours <= rdp.get_epsilon(1e-6) <= 1.3 * ours


@pytest.mark.parametrize("pure", [(0.3,), (0.2, 0.2), (0.5, 0.1, 0.05)])
@pytest.mark.parametrize("mu", [0.0, 0.2, 1.0])
def test_pure_parts_compose_like_randomised_response(pure, mu):
    """Against direct enumeration of the product distribution with the Gaussian integrated numerically."""
    for epsilon in (0.1, 0.5, 1.0):
        expected = 0.0
        for outcome in np.ndindex(*(2,) * len(pure)):
            one = math.prod((math.exp(e) if o else 1.0) / (1 + math.exp(e)) for e, o in zip(pure, outcome, strict=True))
            other = math.prod(
                (1.0 if o else math.exp(e)) / (1 + math.exp(e)) for e, o in zip(pure, outcome, strict=True)
            )
            if mu:
                expected += hockey_stick(
                    lambda x, p=one: p * norm.pdf(x, mu), lambda x, q=other: q * norm.pdf(x), epsilon, -12, 14
                )
            else:
                expected += max(0.0, one - math.exp(epsilon) * other)
        assert a.delta_at(Cost(gaussian=mu**2, pure=pure), epsilon) == pytest.approx(expected, rel=1e-5, abs=1e-10)


@pytest.mark.parametrize("cost", [Cost(gaussian=0.04, pure=(0.3,)), Cost(gaussian=0.2, pure=(0.3, 0.1, 0.05))])
def test_mixed_closed_form_agrees_with_dp_accounting(cost):
    composed = a._composed(cost, 1e-4)
    assert a.delta_at(cost, 1.0) == pytest.approx(composed.get_delta_for_epsilon(1.0), rel=1e-4)
    assert a.epsilon_at(cost, 1e-6) == pytest.approx(composed.get_epsilon_for_delta(1e-6), rel=1e-4)


def test_laplace_under_dp_accounting_is_never_above_our_pure_part():
    laplace = pld.from_laplace_mechanism(1 / 0.5).self_compose(3)
    for epsilon in (0.5, 1.0, 1.4):
        assert laplace.get_delta_for_epsilon(epsilon) <= a.delta_at(Cost(pure=(0.5, 0.5, 0.5)), epsilon) + 1e-9


def test_many_pure_parts_go_through_the_pld_and_agree_with_the_binomial_sum():
    cost = Cost(pure=(0.1,) * 12)
    expected = sum(
        math.comb(12, k) * max(0.0, math.exp(0.1 * k) - math.exp(0.7 + 0.1 * (12 - k))) / (1 + math.exp(0.1)) ** 12
        for k in range(13)
    )
    assert a.delta_at(cost, 0.7) == pytest.approx(expected, rel=0.02)
    assert a.delta_at(cost, 0.7) >= expected * (1 - 1e-9)


@pytest.mark.parametrize("steps", [100, 10_000, 1_000_000])
def test_rounding_of_many_sampled_steps_never_lowers_delta(steps):
    """Everyone sampled is a Gaussian, so the exact delta is known: also where it is below what FFTs can tell from 0."""
    multiplier = 2 * math.sqrt(steps)
    cost = Cost(subsampled=(Subsampled(1.0, multiplier, steps),))
    for epsilon in (0.5, 2.0, 4.0, 6.0, 7.0, 8.0, 12.0):
        exact = a.gaussian_delta(1.0, epsilon)
        assert exact <= a.delta_at(cost, epsilon)
        if steps <= 10_000:  # beyond, losses rounded up to the grid add up
            assert a.delta_at(cost, epsilon) <= 1.05 * exact + 1e-10 + 1e-14 * steps
    assert not a.fits(cost, Budget(8.0, 1e-30))
    assert a.epsilon_at(cost, 1e-16) == math.inf
    assert a.epsilon_at(cost, 1e-6) >= a.epsilon_at(Cost(gaussian=1.0), 1e-6)


def test_failure_is_added_to_delta():
    assert a.delta_at(Cost(gaussian=1.0, failure=0.01), 1.0) == pytest.approx(a.gaussian_delta(1.0, 1.0) + 0.01)
    assert a.delta_at(Cost(failure=1.0, gaussian=1.0), 0.0) == 1.0


# --- Poisson-sampled steps ------------------------------------------------------------------------------------------


def test_one_sampled_step_is_the_replacement_of_its_dominating_pair():
    q, z, epsilon = 0.2, 1.5, 0.2

    def mixed(step):
        return lambda x: (1 - q) * norm.pdf(x, 0, z) + q * norm.pdf(x, step, z)

    expected = hockey_stick(mixed(1), mixed(-1), epsilon)
    assert a.delta_at(Cost(subsampled=(Subsampled(q, z, 1),)), epsilon) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(("length", "angle"), [(1.0, 2.6), (1.0, 1.5), (0.7, math.pi), (0.4, 0.5)])
def test_no_two_vectors_in_the_plane_beat_the_opposite_pair(length, angle):
    """The adversary's two versions of a user may move the mean in any two directions (docs/proofs.md, section 6)."""
    q, z, epsilon = 0.3, 1.0, 0.3

    def gain(y, x, v, w):
        base = norm.pdf(x, 0, z) * norm.pdf(y, 0, z)
        one = (1 - q) * base + q * norm.pdf(x, v[0], z) * norm.pdf(y, v[1], z)
        other = (1 - q) * base + q * norm.pdf(x, w[0], z) * norm.pdf(y, w[1], z)
        return np.maximum(0.0, one - math.exp(epsilon) * other)

    grid = np.linspace(-9, 9, 1201)
    x, y = np.meshgrid(grid, grid)

    def divergence(v, w):
        return float(gain(y, x, v, w).sum()) * (grid[1] - grid[0]) ** 2

    bound = divergence((1.0, 0.0), (-1.0, 0.0))
    assert divergence((1.0, 0.0), (length * math.cos(angle), length * math.sin(angle))) < bound
    assert divergence((length, 0.0), (math.cos(angle), math.sin(angle))) <= bound * (1 + 1e-9)


def test_sampled_steps_agree_with_dp_accounting_under_replacement():
    accountant = PLDAccountant(NeighboringRelation.REPLACE_ONE)
    accountant.compose(dp_event.PoissonSampledDpEvent(0.05, dp_event.GaussianDpEvent(2.0)), 200)
    cost = Cost(subsampled=(Subsampled(0.05, 2.0, 200),))
    assert a.epsilon_at(cost, 1e-6) == pytest.approx(accountant.get_epsilon(1e-6), rel=2e-3)
    assert a.epsilon_at(cost, 1e-6) >= accountant.get_epsilon(1e-6) * (1 - 1e-6)


def test_two_units_have_two_names_and_two_types():
    """std / change by replacing a user is a noise_multiplier, a float; by adding one, an added_user_multiplier."""
    units = {
        kind.__name__: {field.name: field.type for field in fields(kind) if field.name.endswith("user_multiplier")}
        for kind in (Subsampled, SampledOutlierRemoval, Clip, OutlierRemoval)
    }
    adding = {"added_user_multiplier": "AddedUserMultiplier"}
    sampled = {"Subsampled": adding, "SampledOutlierRemoval": adding}
    assert units == {**sampled, "Clip": {}, "OutlierRemoval": {}}
    for kind in (Subsampled, SampledOutlierRemoval):
        assert "noise_multiplier" not in {field.name for field in fields(kind)}
    assert get_type_hints(a.subsampled_multiplier)["return"] is a.AddedUserMultiplier
    assert get_type_hints(a.gaussian_multiplier)["return"] is float


def test_sampling_everyone_is_a_gaussian_of_twice_the_added_user_change():
    sampled = Cost(subsampled=(Subsampled(1.0, 10.0, 4),))
    assert a.epsilon_at(sampled, 1e-6) == pytest.approx(
        a.epsilon_at(Cost(gaussian=4 * (2 / 10.0) ** 2), 1e-6), rel=1e-3
    )


# --- costs ----------------------------------------------------------------------------------------------------------

costs = st.builds(
    Cost,
    gaussian=st.floats(0, 2),
    pure=st.lists(st.floats(0, 1), max_size=3).map(tuple),
    failure=st.floats(0, 1e-3),
)


@given(costs, costs, st.floats(0, 3))
def test_more_releases_cost_more(one, other, epsilon):
    assert a.delta_at(one + other, epsilon) >= a.delta_at(one, epsilon) * (1 - 1e-9)


@given(costs)
def test_costs_survive_json(cost):
    sampled = cost + Cost(subsampled=(Subsampled(0.1, 2.0, 3),))
    assert Cost.from_json(sampled.to_json()) == sampled


@given(costs, st.floats(1e-9, 0.5))
def test_epsilon_and_delta_are_inverse_and_rounded_up(cost, delta):
    epsilon = a.epsilon_at(cost, delta)
    if math.isfinite(epsilon):
        assert a.delta_at(cost, epsilon) <= delta * (1 + 1e-9)
        if epsilon > 1e-3:
            assert a.delta_at(cost, epsilon * (1 - 1e-6)) >= delta * (1 - 1e-3) - 1e-12
    else:
        assert cost.failure >= delta


def test_epsilon_is_infinite_when_no_epsilon_is_enough():
    assert a.epsilon_at(Cost(failure=1e-3), 1e-6) == math.inf
    assert a.epsilon_at(Cost(gaussian=1.0, failure=1e-6), 1e-6) == math.inf
    assert a.epsilon_at(Cost(pure=(0.3, 0.4)), 0.0) == pytest.approx(0.7)
    assert a.epsilon_at(Cost(), 1e-6) == 0.0


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.inf, math.nan])
def test_impossible_budgets_are_refused(epsilon):
    with pytest.raises(ValueError, match="epsilon"):
        Budget(epsilon, 1e-6)


@pytest.mark.parametrize("delta", [-1e-9, 1.0, math.nan])
def test_impossible_deltas_are_refused(delta):
    with pytest.raises(ValueError, match="delta"):
        Budget(1.0, delta)


@pytest.mark.parametrize("arguments", [(0.0, 1.0, 1), (1.1, 1.0, 1), (0.5, 0.0, 1), (0.5, math.inf, 1), (0.5, 1.0, 0)])
def test_impossible_sampled_parts_are_refused(arguments):
    with pytest.raises(ValueError, match="Expected"):
        Subsampled(*arguments)


def test_impossible_costs_are_refused():
    with pytest.raises(ValueError, match="finite costs"):
        Cost(gaussian=math.nan)


# --- certification and calibration ----------------------------------------------------------------------------------


def test_certification_holds_back_the_reserves():
    budget = Budget(1.0, 1e-6)
    exact = brent_multiplier(budget)
    assert not a.fits(Cost(gaussian=1 / exact**2), budget)
    assert a.fits(Cost(gaussian=1 / (exact * (1 + 1e-6)) ** 2), budget)


def brent_multiplier(budget):
    low, high = 0.1, 100.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (low, middle) if a.gaussian_delta(1 / middle, budget.epsilon) <= budget.delta else (middle, high)
    return high


def test_a_pure_budget_takes_pure_costs_only():
    budget = Budget(1.0, 0.0)
    assert a.fits(Cost(pure=(0.5, 0.5)), budget)
    assert not a.fits(Cost(pure=(0.6, 0.5)), budget)
    assert not a.fits(Cost(gaussian=1e-9), budget)
    with pytest.raises(a.BudgetExceeded, match="delta is 0"):
        a.gaussian_multiplier(budget)


def test_epsilons_of_many_pure_parts_add_up_and_bound_what_they_compose_to():
    cost, more = Cost(pure=(0.1,) * 12), Cost(gaussian=1.0)
    assert a.epsilon_at(cost, 0.0) == pytest.approx(1.2)
    assert a.epsilon_at(cost, 1e-15) == a.epsilon_at(cost, 0.0)
    assert a.epsilon_at(cost, 1e-6) < 1.2
    assert a.epsilon_at(cost + more, 0.0) == math.inf
    assert a.epsilon_at(cost + more, 1e-6) > a.epsilon_at(more, 1e-6) > 1.2


def test_exceeding_says_what_it_costs_and_what_to_do():
    with pytest.raises(a.BudgetExceeded, match=r"needs epsilon=.* expected <= 1: ask for fewer releases") as error:
        a.certify(Cost(gaussian=1.0), Budget(1.0, 1e-6))
    assert error.value.enough_users is None


def test_exceeding_carries_the_number_of_users_that_would_do_across_processes():
    error = pickle.loads(pickle.dumps(a.BudgetExceeded("too few", enough_users=300)))
    assert (str(error), error.enough_users) == ("too few", 300)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0, 30.0])
@pytest.mark.parametrize("releases", [1, 300])
def test_gaussian_calibration_is_certified_and_not_wasteful(epsilon, releases):
    budget = Budget(epsilon, 1e-6)
    z = a.gaussian_multiplier(budget, releases)
    assert a.fits(Cost(gaussian=releases / z**2), budget)
    assert z == pytest.approx(brent_multiplier(budget) * math.sqrt(releases), rel=1e-6)
    assert not a.fits(Cost(gaussian=releases / (z * (1 - 1e-5)) ** 2), budget)


def test_calibration_leaves_room_for_what_else_is_spent():
    budget, other = Budget(1.0, 1e-6), Cost(pure=(0.25,), failure=1e-7)
    z = a.gaussian_multiplier(budget, 5, other)
    assert a.fits(other + Cost(gaussian=5 / z**2), budget)
    assert not a.fits(other + Cost(gaussian=5 / (z * (1 - 1e-5)) ** 2), budget)


@pytest.mark.parametrize(("q", "steps", "epsilon"), [(0.01, 1000, 1.0), (0.2, 50, 0.5), (0.05, 100, 8.0)])
def test_sampled_calibration_is_certified_by_dp_accounting_and_not_wasteful(q, steps, epsilon):
    z = a.subsampled_multiplier(Budget(epsilon, 1e-6), q, steps)

    def theirs(multiplier):
        accountant = PLDAccountant(NeighboringRelation.REPLACE_ONE)
        accountant.compose(dp_event.PoissonSampledDpEvent(q, dp_event.GaussianDpEvent(multiplier)), steps)
        return accountant.get_epsilon(1e-6)

    assert theirs(z) <= epsilon
    assert theirs(z * 0.99) > epsilon


def test_calibration_refuses_when_tests_alone_cost_too_much():
    with pytest.raises(a.BudgetExceeded, match="Expected room for noise"):
        a.gaussian_multiplier(Budget(1.0, 1e-6), other=Cost(pure=(1.5,)))
    with pytest.raises(a.BudgetExceeded, match="Expected room for noise"):
        a.subsampled_multiplier(Budget(1.0, 1e-6), 0.1, 10, Cost(failure=1e-5))


def test_narrowing_returns_the_lower_end_when_that_already_holds():
    assert a._narrow(lambda z: -1.0, 1.0, 2.0, 1e-3) == 1.0
    assert 1.5 <= a._narrow(lambda z: 1.5 - z, 1.0, 2.0, 1e-6) <= 1.5 * (1 + 1e-6)


def test_epsilon_beyond_all_use_is_called_infinite():
    assert a.epsilon_at(Cost(gaussian=1e14), 1e-6) == math.inf


def test_extreme_arguments_give_upper_bounds_not_errors():
    assert a.gaussian_delta(0.0, 800.0) == 0.0
    assert a.fits(Cost(), Budget(800.0, 1e-6))
    assert a.gaussian_delta(1e-12, 0.0) >= 1e-12 / math.sqrt(2 * math.pi)
    assert a.gaussian_delta(1e-12, 0.0) == a.gaussian_delta(1e-4, 0.0)


def test_epsilon_is_held_back_too():
    """A pure cost of exactly epsilon fits a pure budget, but not one with delta, where noise may be discrete."""
    budget = Budget(1.0, 1e-12)
    room = budget.delta * (1 - 2e-6)
    exact = a.epsilon_at(Cost(gaussian=0.02), room)
    assert a.delta_at(Cost(gaussian=0.02), exact) <= room
    assert not a.fits(Cost(gaussian=0.02), Budget(exact * (1 + 1e-10), room / (1 - 1e-6)))
    assert a.fits(Cost(gaussian=0.02), Budget(exact * (1 + 1e-8), room / (1 - 1e-6)))


def test_gaussian_and_pure_parts_beside_sampled_ones_are_all_counted():
    """Sampling everyone is a Gaussian of known mu, so the mixture has a closed form."""
    sampled = Cost(subsampled=(Subsampled(1.0, 20.0, 4),))
    for other in (Cost(gaussian=0.09), Cost(pure=(0.3,)), Cost(gaussian=0.09, pure=(0.3, 0.2), failure=1e-7)):
        closed = Cost(gaussian=4 * (2 / 20.0) ** 2) + other
        assert a.epsilon_at(sampled + other, 1e-6) == pytest.approx(a.epsilon_at(closed, 1e-6), rel=2e-3)
        assert a.epsilon_at(sampled + other, 1e-6) >= a.epsilon_at(closed, 1e-6) * (1 - 1e-9)


def test_narrowing_raises_an_upper_end_that_does_not_hold():
    assert 2.5 <= a._narrow(lambda z: 2.5 - z, 1.0, 2.0, 1e-6) <= 2.5 * (1 + 1e-6)


def test_arguments_of_the_wrong_kind_are_named():
    with pytest.raises(TypeError, match="epsilon must be a number, got str"):
        Budget("1", 1e-6)
    with pytest.raises(TypeError, match=r"budget must be a Budget\(epsilon, delta\), got float"):
        a.gaussian_multiplier(1.0)
    with pytest.raises(ValueError, match="releases=0 >= 1"):
        a.gaussian_multiplier(Budget(1.0, 1e-6), 0)


@pytest.mark.parametrize(
    ("q", "multiplier", "steps"), [(0.13, 7e4, 17_000_000), (0.01, 1e3, 1_000_000), (0.9, 1e4, 4000)]
)
def test_many_tiny_sampled_steps_cost_what_the_central_limit_says(q, multiplier, steps):
    """A step's loss is far below the usual grid, on which it would be rounded up to many times its size."""
    cost = Cost(subsampled=(Subsampled(q, a.AddedUserMultiplier(multiplier), steps),))
    found = a.epsilon_at(cost, 1e-6)
    limit = a.epsilon_at(Cost(gaussian=(2 * q / multiplier) ** 2 * steps), 1e-6)
    assert limit * (1 - 1e-3) <= found <= 1.6 * limit


@pytest.mark.parametrize("steps", [100_000, 320**2])
def test_steps_composed_in_two_goes_cost_as_much_as_in_one(steps, monkeypatch):
    """With steps left over after the root, and without."""
    cost = Cost(subsampled=(Subsampled(0.01, a.AddedUserMultiplier(8.0), steps),))
    in_two = a.epsilon_at(cost, 1e-6)
    a._composed.cache_clear()
    monkeypatch.setattr(a, "_MANY_STEPS", 10**9)
    assert in_two == pytest.approx(a.epsilon_at(cost, 1e-6), rel=1e-3)
    a._composed.cache_clear()


def test_the_grid_stays_coarse_enough_for_large_parts():
    """Tiny steps besides a Gaussian that costs a lot: a grid for them alone would have millions of cells."""
    tiny = Cost(subsampled=(Subsampled(0.001, a.AddedUserMultiplier(1e4), 10),))
    assert a._fine_enough(tiny, 5e-4) == pytest.approx(2e-7)
    assert a._fine_enough(tiny + Cost(gaussian=25.0), 5e-4) >= 24 * 5 * 2.0**-19
    assert a._fine_enough(Cost(gaussian=25.0, pure=(1.0,)), 5e-4) == 5e-4
    little_noise = Cost(subsampled=(Subsampled(1e-6, a.AddedUserMultiplier(0.04), 1),))
    assert a._fine_enough(little_noise + tiny, 5e-4) == 5e-4, "its losses reach 1,250, that is 10^10 cells"


@pytest.mark.parametrize(("least", "most"), [(37, 1e7), (4097, 1e7), (0.83, 100.0)])
def test_the_least_that_is_enough_is_found_from_below(least, most):
    start = 1 if isinstance(least, int) else 0.1
    found = a.least_enough(lambda value: value >= least, start, most, tolerance=0.05)
    assert least <= found <= 1.05 * least
    assert isinstance(found, type(least))


def test_nothing_is_enough_up_to_the_most():
    assert a.least_enough(lambda value: False, 1, most=1000) is None
