"""Solvers of earlier work: winsorised means of rotated gradients, and local randomisers."""

import itertools

import numpy as np
import pytest
from support_solvers import best_risk, make_users, risk

from userdp import Ball, Budget, BudgetExceeded, Solver, UserData, losses, minimize
from userdp.privacy.accounting import fits
from userdp.solvers.problem import Problem
from userdp.statistics.gradients import MeanGradient
from userdp.statistics.moments import UserMean
from userdp_research import bassily_sun, bassily_sun_local
from userdp_research.bassily_sun import RotatedRange, plan_bassily_sun
from userdp_research.bassily_sun_local import plan_bassily_sun_local
from userdp_research.mechanisms.local import LocalReports, LocalVotes
from userdp_research.problems import IndependentRows
from userdp_research.rotation import Rotated, rotate, rotated_size, unrotate

PROBLEM = Problem(losses.logistic, Ball(10.0), 4, 2.5)
CONCENTRATED = IndependentRows(losses.logistic, Ball(10.0), 4, 2.5)
WIDE = Problem(losses.logistic, Ball(10.0), 4000, 2.5)
BUDGET = Budget(2.0, 1e-6)


# --- rotation ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dimension", [1, 2, 3, 10, 64])
def test_the_rotation_keeps_lengths_and_angles_and_has_an_inverse(dimension):
    vectors = np.random.default_rng(0).normal(size=(7, dimension))
    rotated = rotate(vectors)
    assert rotated.shape == (7, rotated_size(dimension))
    np.testing.assert_allclose(rotated @ rotated.T, vectors @ vectors.T, atol=1e-12)
    np.testing.assert_allclose([unrotate(vector, dimension) for vector in rotated], vectors, atol=1e-12)


def test_the_rotation_spreads_what_is_in_one_coordinate():
    for vectors in (
        np.eye(256)[:40],
        np.ones((1, 256)) / 16,
        np.sign(np.random.default_rng(1).normal(size=(9, 256))) / 16,
    ):
        assert np.abs(rotate(vectors)).max() < np.sqrt(2 * np.log(2 * 256 * 1000) / 256)


def test_a_rotated_vector_depends_on_its_own_user_only():
    data = make_users(50)
    gradient = Rotated(MeanGradient(losses.logistic, np.ones(4)), np.arange(4.0))
    rows = data.rows.copy()
    rows[: data.offsets[1]] = np.nan
    other = UserData(rows, data.targets, data.offsets)
    one, two = (gradient(users, np.arange(50), 50) for users in (data, other))
    assert not np.isfinite(two[0]).any()
    np.testing.assert_array_equal(one[1:], two[1:])
    np.testing.assert_array_equal(gradient(data, np.array([7]), 1)[0], one[7])
    plain = MeanGradient(losses.logistic, np.ones(4))(data, np.arange(50), 50)
    np.testing.assert_allclose(one, rotate(plain) - np.arange(4.0))


def test_a_wrong_centre_is_found_before_data_is_read():
    assert not Rotated(UserMean(), np.zeros(4)).needs_targets
    assert not Rotated(UserMean(), np.zeros(4)).takes_groups
    Rotated(UserMean(), np.zeros(4)).check(3)
    with pytest.raises(ValueError, match="centre of 4 coordinates, got 3"):
        Rotated(UserMean(), np.zeros(3)).check(3)


def test_coordinates_are_narrower_where_there_are_more_and_rows_are_less_alike():
    wide = Problem(losses.logistic, Ball(10.0), 1000, 2.5)
    few, many = RotatedRange.of(PROBLEM, 5000, 10), RotatedRange.of(wide, 5000, 10)
    assert few.radius == few.spread
    assert many.radius < 0.2 * many.spread
    assert few.range >= PROBLEM.lipschitz
    assert RotatedRange.of(CONCENTRATED, 5000, 100).n_bins > 2 * RotatedRange.of(PROBLEM, 5000, 100).n_bins


# --- central ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("problem", [PROBLEM, CONCENTRATED])
@pytest.mark.parametrize("max_gradients", [None, 2_000_000])
def test_the_budget_is_spent_in_full_with_and_without_samples(problem, max_gradients):
    plan = plan_bassily_sun(problem, 5000, 12, BUDGET, max_gradients)
    (cost,) = plan.certified.costs
    assert fits(cost, BUDGET)
    assert not fits(cost, Budget(0.95 * BUDGET.epsilon, BUDGET.delta))
    assert max_gradients is None or plan.n_gradients <= max_gradients


def test_gradients_can_be_limited_but_not_to_none():
    sampled = plan_bassily_sun(PROBLEM, 5000, 12, BUDGET, 200_000)
    assert sampled.phases[0].users_a_step < 5000
    assert sampled.bound > plan_bassily_sun(PROBLEM, 5000, 12, BUDGET).bound
    with pytest.raises(ValueError, match=r"max_gradients=10 >= [0-9,]+ for 5,000 users"):
        plan_bassily_sun(PROBLEM, 5000, 12, BUDGET, 10)


@pytest.mark.parametrize("module", [bassily_sun, bassily_sun_local])
def test_without_delta_there_is_no_plan(module):
    planner = getattr(module, "plan_" + module.__name__.rpartition(".")[2])
    assert not module.feasible(PROBLEM, 5000, 12, Budget(1.0, 0.0))
    with pytest.raises(BudgetExceeded, match=r"delta > 0.*Nothing was spent"):
        planner(PROBLEM, 5000, 12, Budget(1.0, 0.0))


@pytest.mark.parametrize(("module", "n_users"), [(bassily_sun, 20), (bassily_sun_local, 100)])
def test_what_is_said_to_be_enough_is_enough(module, n_users):
    planner = getattr(module, "plan_" + module.__name__.rpartition(".")[2])
    with pytest.raises(BudgetExceeded, match="users would do") as error:
        planner(CONCENTRATED, n_users, 100, BUDGET)
    enough = error.value.enough_users
    assert planner(CONCENTRATED, enough, 100, BUDGET).n_gradients > 0
    assert not module.feasible(CONCENTRATED, n_users, 100, BUDGET)
    with pytest.raises(BudgetExceeded, match="no number up to 10 million would do"):
        planner(WIDE, n_users, 100, Budget(1e-3, 1e-9))


def test_a_sample_whose_noise_was_underestimated_is_passed_over(monkeypatch):
    """The exact calibration has the last word: what it refuses is not planned."""
    taken = plan_bassily_sun(PROBLEM, 5000, 12, BUDGET, 200_000).phases[0]
    multiplier = bassily_sun.subsampled_multiplier
    monkeypatch.setattr(
        bassily_sun,
        "subsampled_multiplier",
        lambda budget, q, steps, other: 1e4 if steps == taken.n_steps else multiplier(budget, q, steps, other),
    )
    assert plan_bassily_sun(PROBLEM, 5000, 12, BUDGET, 200_000).phases[0].n_steps != taken.n_steps


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["logistic", "huber", "hinge"])
def test_central_learns_and_stays_below_its_bound(loss):
    kind = "classes" if losses.loss(loss).classifies else "numbers"
    train = make_users(5000, kind=kind, rows=(5, 15))
    options = {"rows_per_user": 15, "target_bound": None if kind == "classes" else 5.0}
    budget = {"epsilon": 4.0, "delta": 1e-6, "insecure_seed": 0}
    result = minimize(
        loss,
        train,
        Ball(10.0),
        solver=Solver("bassily-sun", row_norm=2.5, max_gradients=3_000_000),
        **options,
        **budget,
    )
    nothing, best = risk(losses.loss(loss), train, np.zeros(4)), best_risk(losses.loss(loss), train)
    excess = risk(losses.loss(loss), train, result.weights) - best
    assert excess < 0.6 * (nothing - best)
    assert excess < result.bound


# --- local ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("problem", [PROBLEM, CONCENTRATED])
def test_every_user_votes_or_reports_once_and_spends_the_budget(problem):
    plan = plan_bassily_sun_local(problem, 20_001, 12, BUDGET)
    edges = [(step.start, step.stop) for step in plan.certified.steps]
    assert edges[0][0] == 0
    assert edges[-1][1] == 20_001
    assert all(stop == start for (_, stop), (start, _) in itertools.pairwise(edges))
    assert {type(step.mechanism) for step in plan.certified.steps} == {LocalVotes, LocalReports}
    assert len(plan.certified.steps) == 2 * len(plan.phases)
    assert all(fits(cost, BUDGET) for cost in plan.certified.costs)
    assert not any(fits(cost, Budget(0.99 * BUDGET.epsilon, BUDGET.delta)) for cost in plan.certified.costs)
    assert plan.n_gradients == 20_001 * 12


@pytest.mark.parametrize("loss", ["logistic", "hinge"])
def test_local_needs_very_many_users_or_a_large_epsilon(loss):
    """Noise is per user: with epsilon 80 as with 1 in the central solvers, it learns."""
    train = make_users(5_000, rows=(5, 15))
    options = {"rows_per_user": 15, "insecure_seed": 0, "solver": Solver("bassily-sun-local", row_norm=2.5)}
    nothing, best = risk(losses.loss(loss), train, np.zeros(4)), best_risk(losses.loss(loss), train)
    private, loose = (minimize(loss, train, Ball(10.0), epsilon, 1e-6, **options) for epsilon in (1.0, 80.0))
    assert "Noise is likely to dominate" in private.message
    assert risk(losses.loss(loss), train, loose.weights) - best < 0.6 * (nothing - best)
    assert risk(losses.loss(loss), train, private.weights) - best < private.bound


def test_reports_are_clipped_around_the_voted_bin():
    """Many rows a user and a mean gradient far from 0: bins matter, and their votes are right."""
    rng = np.random.default_rng(0)
    rows = np.column_stack([np.full(200_000, 1.0), rng.normal(0, 0.3, 200_000)])
    data = UserData(rows, np.ones(200_000), np.arange(0, 200_001, 50))
    problem = IndependentRows(losses.logistic, Ball(1.0), 2, 1.5)
    plan = plan_bassily_sun_local(problem, 4000, 50, Budget(40.0, 1e-6))
    assert plan.schedule.box.n_bins > 3
    result = minimize(
        "logistic",
        data,
        Ball(1.0),
        40.0,
        1e-6,
        solver=Solver("bassily-sun-local", row_norm=1.5),
        rows_per_user=50,
        insecure_seed=1,
    )
    assert result.weights[0] > 0.5
