"""The accelerated solver: its plan, its steps, and its optimum without noise."""

import math

import numpy as np
import pytest
from cases import ALL_LOSSES, name
from support_solvers import best_risk, make_users, risk

from userdp import Ball, Budget, BudgetExceeded, Halted, losses
from userdp.privacy.accounting import epsilon_at
from userdp.solvers import accelerated
from userdp.solvers.problem import Problem

BUDGET = Budget(1.0, 1e-6)


def problem(loss=losses.logistic, n_features=4, radius=10.0):
    return Problem(loss, Ball(radius), n_features, 2.5, None if loss.classifies else 5.0)


def plan(n_users=20_000, budget=BUDGET, max_gradients=None, **options):
    return accelerated.plan_accelerated(problem(**options), n_users, 20, budget, max_gradients)


class Exact:
    """Answers releases without noise: the mean of the users' vectors."""

    def __init__(self, data, halt_after=math.inf):
        self.data, self.halt_after, self.asked = data, halt_after, 0

    def release(self, label, statistic, radius):
        if label == "radius":
            return np.array([radius])
        self.asked += 1
        if self.asked > self.halt_after:
            raise Halted
        users = np.arange(self.data.n_users)
        return statistic(self.data, users, len(users)).mean(axis=0)


@pytest.mark.parametrize("epsilon", [0.5, 4.0])
def test_the_budget_is_used_up(epsilon):
    made = plan(budget=Budget(epsilon, 1e-6))
    (cost,) = made.plan.costs
    assert 0.999 * epsilon < epsilon_at(cost, 1e-6) <= epsilon


def test_fewer_gradients_are_respected_and_too_few_refused():
    free = plan()
    capped = plan(max_gradients=20 * 20 * 20_000)
    assert capped.n_gradients <= 20 * 20 * 20_000 < free.n_gradients
    assert capped.bound > free.bound
    with pytest.raises(ValueError, match="11 passes over the rows"):
        plan(max_gradients=1000)


def test_bounds_fall_with_users_and_epsilon():
    bounds = [plan(n_users=n).bound for n in (5_000, 20_000, 100_000)]
    assert bounds == sorted(bounds, reverse=True)
    bounds = [plan(budget=Budget(e, 1e-6)).bound for e in (0.5, 1.0, 4.0)]
    assert bounds == sorted(bounds, reverse=True)


def test_it_whitens_where_that_pays():
    assert plan(n_users=100_000).moment_error is not None
    assert plan(radius=0.2).moment_error is None
    assert plan(n_users=100_000, n_features=500).moment_error is None


def test_pure_budgets_are_told_to_use_delta():
    with pytest.raises(BudgetExceeded, match="use delta > 0"):
        plan(budget=Budget(1.0, 0.0))


@pytest.mark.parametrize("loss", [loss for loss in ALL_LOSSES if loss.compiled], ids=name)
def test_without_noise_it_finds_the_optimum(loss):
    """Equal numbers of rows, so that the mean over users is the mean over rows."""
    kind = "several" if loss.n_outputs > 1 else ("classes" if loss.classifies else "numbers")
    data = make_users(300, rows=(10, 10), kind=kind)
    made = accelerated.plan_accelerated(problem(loss, radius=80.0), 10**6, 10, Budget(8.0, 1e-6))
    long = accelerated.AcceleratedPlan(
        made.plan, made.loss, 3000, made.loss.curvature * 2.5**2, made.radius, 10, made.bound, None
    )
    result = accelerated.run(problem(loss, radius=80.0), long, Exact(data))
    nothing, best = risk(loss, data, np.zeros(result.weights.size)), best_risk(loss, data)
    assert risk(loss, data, result.weights) - best < 2e-3 * (nothing - best) + 1e-3


def test_a_halt_on_the_way_keeps_what_was_reached():
    data = make_users(300, rows=(10, 10))
    made = accelerated.AcceleratedPlan(plan(n_users=5000).plan, losses.logistic, 40, 1.6, 1.0, 20, 1.0, None)
    stopped = accelerated.run(problem(), made, Exact(data, halt_after=25))
    assert stopped.halted
    assert "after 25 steps" in stopped.message
    assert risk(losses.logistic, data, stopped.weights) < risk(losses.logistic, data, np.zeros(4)) - 0.01
