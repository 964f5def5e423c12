"""Earlier work: winsorised means in phases of regularised steps."""

import math

import numpy as np
import pytest
from support_solvers import best_risk, make_users, risk

from userdp import Ball, Budget, BudgetExceeded, Solver, losses, minimize
from userdp.privacy.accounting import fits
from userdp.solvers.problem import Problem
from userdp.solvers.solver import Outcome
from userdp_research.levy import LevyPhase, PhasedWinsorizedSteps, feasible, plan_levy
from userdp_research.rotation import rotate

PROBLEM = Problem(losses.logistic, Ball(10.0), 4, 2.5)
BUDGET = Budget(2.0, 1e-6)


def test_phases_halve_their_users_and_are_held_8_times_as_tight():
    plan = plan_levy(PROBLEM, 20_001, 15, BUDGET)
    first, *later = plan.phases
    assert len(later) >= 2
    assert [phase.n_users for phase in later] == [20_001 >> i for i in range(2, len(later) + 2)]
    assert [p.regularizer / first.regularizer for p in plan.phases] == pytest.approx(
        [8.0**i for i in range(len(later) + 1)]
    )
    edges = [0] + [step.stop for step in plan.certified.steps]
    assert [step.start for step in plan.certified.steps] == edges[:-1]
    assert edges[-1] == 20_001
    assert plan.n_gradients == 15 * sum(phase.n_users * phase.n_steps for phase in plan.phases)
    assert [step.mechanism.rounds for step in plan.certified.steps] == [phase.n_steps for phase in plan.phases]


@pytest.mark.parametrize("max_gradients", [None, 5_000_000])
def test_every_phase_spends_the_budget_in_full(max_gradients):
    plan = plan_levy(PROBLEM, 20_000, 15, BUDGET, max_gradients)
    assert all(fits(cost, BUDGET) for cost in plan.certified.costs)
    assert not any(fits(cost, Budget(0.98 * BUDGET.epsilon, BUDGET.delta)) for cost in plan.certified.costs)
    assert max_gradients is None or plan.n_gradients <= max_gradients


def test_the_bound_is_the_module_s_sum():
    plan = plan_levy(PROBLEM, 20_000, 15, BUDGET)
    usual, reach, excess = 2.5 * PROBLEM.typical_slope, 10.0, 0.0
    error = reach
    for phase in plan.phases:
        strong, variance = phase.regularizer, 4 * (phase.noise_ratio * phase.radius) ** 2
        distance = min(reach, 2 * usual / strong)
        excess += strong / 2 * error**2 + 2 * PROBLEM.user_variance(15) / (strong * phase.n_users)
        gap = distance**2 / (2 * phase.step_size * phase.n_steps) + phase.step_size * variance
        assert phase.step_size <= 1 / (2 * (0.25 * 2.5**2 + strong)) * (1 + 1e-9), "the smooth bound is the less"
        error = math.sqrt(2 * gap / strong)
    assert plan.bound == pytest.approx(excess + usual * error)


def test_more_users_or_budget_have_a_lower_bound():
    base = plan_levy(PROBLEM, 20_000, 15, BUDGET).bound
    assert plan_levy(PROBLEM, 200_000, 15, BUDGET).bound < base
    assert plan_levy(PROBLEM, 20_000, 15, Budget(8.0, 1e-6)).bound < base


def test_steps_go_along_gradients_and_back_to_where_the_phase_began():
    """On released gradients w - c of a quadratic: each phase ends at its own average, in plain numbers."""
    problem, best = Problem(losses.logistic, Ball(10.0), 3, 2.5), np.array([1.0, -2.0, 0.5])
    phases = [LevyPhase(f"phase {i}", 9, 0.5, 0.1, n_steps=4, step_size=0.3, regularizer=8.0**i) for i in (0, 1)]
    outcome = Outcome(problem.start, math.inf)
    schedule = PhasedWinsorizedSteps(tuple(phases)).releases(problem, outcome)
    request = next(schedule)
    for _ in range(7):
        request = schedule.send(rotate((request.statistic.statistic.weights - best)[None])[0])
    with pytest.raises(StopIteration):
        schedule.send(rotate((request.statistic.statistic.weights - best)[None])[0])
    start = np.zeros(3)
    for phase in phases:
        w, points = start, []
        for _ in range(4):
            w = w - 0.3 * ((w - best) + phase.regularizer * (w - start))
            w = w * min(1, 10 / np.linalg.norm(w))
            points.append(w)
        start = np.mean(points, axis=0)
    np.testing.assert_allclose(outcome.weights, start, rtol=1e-9)
    assert len(outcome.phases) == 2


def test_what_cannot_be_planned_is_refused():
    assert not feasible(PROBLEM, 5000, 12, Budget(1.0, 0.0))
    with pytest.raises(BudgetExceeded, match=r"delta > 0.*Nothing was spent"):
        plan_levy(PROBLEM, 5000, 12, Budget(1.0, 0.0))
    with pytest.raises(BudgetExceeded, match=r"n_users=20 .* users would do") as error:
        plan_levy(PROBLEM, 20, 12, BUDGET)
    assert plan_levy(PROBLEM, error.value.enough_users, 12, BUDGET).n_gradients > 0
    with pytest.raises(ValueError, match=r"max_gradients=10 >= [0-9,]+ for 5,000 users"):
        plan_levy(PROBLEM, 5000, 12, BUDGET, 10)


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["logistic", "huber", "hinge"])
def test_it_learns_and_stays_below_its_bound(loss):
    kind = "classes" if losses.loss(loss).classifies else "numbers"
    train = make_users(5_000, kind=kind, rows=(5, 15))
    options = {"rows_per_user": 15, "target_bound": None if kind == "classes" else 5.0}
    budget = {"epsilon": 4.0, "delta": 1e-6, "insecure_seed": 0}
    result = minimize(
        loss, train, Ball(10.0), solver=Solver("levy", row_norm=2.5, max_gradients=30_000_000), **options, **budget
    )
    nothing, best = risk(losses.loss(loss), train, np.zeros(4)), best_risk(losses.loss(loss), train)
    excess = risk(losses.loss(loss), train, result.weights) - best
    assert excess < 0.6 * (nothing - best)
    assert excess < result.bound
