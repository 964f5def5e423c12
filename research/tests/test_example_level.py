import numpy as np
import pytest
from support_solvers import make_users

from userdp import Ball, Budget, BudgetExceeded, Curator, Ledger, losses
from userdp.solvers.problem import Problem
from userdp.solvers.solver import run
from userdp_research import example_level
from userdp_research.example_level import plan_example_level
from userdp_research.mechanisms.mixtures import row_multiplier

BUDGET = Budget(4.0, 1e-5)
PROBLEM = Problem(losses.logistic, Ball(3.0), 4, 2.5)


def test_the_plan_is_near_the_least_bound_with_few_gradients():
    plan = plan_example_level(PROBLEM, 2000, 12, BUDGET)
    (phase,), mean = plan.phases, plan.certified.steps[0].mechanism
    assert (mean.rounds, mean.sampling_probability) == (phase.n_steps, phase.sampling_probability)
    assert mean.rows_per_user == 12
    assert plan.n_gradients >= 2000 * 12 * phase.n_steps * phase.sampling_probability
    for rounds, q in ((64, 1.0), (1024, 0.25), (phase.n_steps, 1.0)):
        multiplier = row_multiplier(BUDGET, 12, q, rounds)
        other = example_level._step_and_bound(PROBLEM, 2000, 12, rounds, q, multiplier)[1]
        assert plan.bound <= 1.05 * other
    assert phase.noise_ratio == pytest.approx(mean.row_multiplier / mean.expected_rows, rel=1e-6)


def test_more_rows_a_user_do_not_lower_the_noise():
    """Unlike with one vector a user: the sensitivity grows with the rows as their number does."""
    few, many = (row_multiplier(BUDGET, m, 0.2, 50) / m for m in (2, 20))
    assert many == pytest.approx(few, rel=0.1)


def test_gradients_can_be_limited_and_too_few_are_refused():
    assert plan_example_level(PROBLEM, 2000, 12, BUDGET, max_gradients=5000).n_gradients <= 5000
    with pytest.raises(ValueError, match=r"max_gradients=10 >= [0-9,]+.* Nothing was spent"):
        plan_example_level(PROBLEM, 2000, 12, BUDGET, max_gradients=10)
    with pytest.raises(BudgetExceeded, match="delta > 0"):
        plan_example_level(PROBLEM, 2000, 12, Budget(1.0, 0.0))


def test_rows_beyond_the_cap_are_never_looked_at():
    plan = plan_example_level(PROBLEM, 500, 4, BUDGET, max_gradients=4000)
    data = make_users(500, rows=(9, 12))
    rows = data.rows.copy()
    for user in range(500):
        rows[data.offsets[user] + 4 : data.offsets[user + 1]] = 1e30
    spoiled = type(data)(rows, data.targets, data.offsets)
    results = [run(PROBLEM, plan, Curator(d, plan.certified, Ledger(BUDGET), insecure_seed=1)) for d in (data, spoiled)]
    np.testing.assert_array_equal(results[0].weights, results[1].weights)
