"""The planner of phased SGD: public numbers in, the least explicit bound out."""

import math

import numpy as np
import pytest

from userdp import Ball, Budget, BudgetExceeded, losses
from userdp.privacy.accounting import epsilon_at, fits
from userdp.solvers import phased_sgd as tight
from userdp.solvers.base import run
from userdp.solvers.problem import Problem

BUDGET = Budget(1.0, 1e-6)


def problem(loss=losses.logistic, n_features=10, radius=10.0, **options):
    bound = None if loss.classifies else 3.0
    return Problem(loss, Ball(radius), n_features, 2.0, bound, **options)


def plan(n_users=20_000, rows_per_user=20, budget=BUDGET, **options):
    return tight.plan_phased_sgd(problem(**options), n_users, rows_per_user, budget)


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 8.0])
def test_the_budget_is_used_up(epsilon):
    """Every user pays (nearly) all of it: noise that is not needed is not added."""
    budget = Budget(epsilon, 1e-6)
    made = plan(budget=budget)
    for cost in made.certified.costs:
        assert fits(cost, budget)
        assert epsilon_at(cost, budget.delta) > 0.999 * epsilon


@pytest.mark.parametrize("loss", [losses.logistic, losses.hinge, losses.huber(1.0), losses.squared])
def test_bounds_fall_with_users_rows_and_epsilon(loss):
    bounds = [plan(n_users=n, loss=loss).bound for n in (1000, 10_000, 100_000)]
    assert bounds == sorted(bounds, reverse=True)
    bounds = [plan(rows_per_user=m, loss=loss).bound for m in (2, 20, 200)]
    assert bounds == sorted(bounds, reverse=True)
    bounds = [plan(budget=Budget(e, 1e-6), loss=loss).bound for e in (0.5, 1.0, 4.0)]
    assert bounds == sorted(bounds, reverse=True)


def test_the_bound_by_hand():
    """One phase, no preconditioner: D^2/(2 eta T) + eta L^2/2 + curvature/2 sigma^2 row_norm^2."""
    made = plan(radius=1.0)
    (phase,) = made.phases
    assert made.schedule.preconditioner is None
    n_steps = 20_000 * 20 / phase.n_groups
    lipschitz = math.sqrt(0.5 * math.log(2)) * 2.0
    eta = 2 * 1.0 / (lipschitz * math.sqrt(n_steps))
    assert phase.step_size == pytest.approx(eta)
    assert phase.radius == pytest.approx(eta * lipschitz * math.sqrt(2 * n_steps / 3))
    removal = made.certified.steps[-1].mechanism
    ratio = math.sqrt(removal.radii[1] / removal.radii[0])
    noise = removal.noise_multiplier * removal.sensitivity(1.3 * ratio * phase.radius, 10)
    expected = 1 / (2 * eta * n_steps) + eta * lipschitz**2 / 2 + 0.25 / 2 * noise**2 * 4
    assert made.bound == pytest.approx(expected, rel=0.02)


def test_no_other_number_of_groups_is_better():
    chosen = plan()
    settings = tight._settings(problem(), 20_000, tight._mu_squared(BUDGET))
    for setting in settings:
        for n_groups in (150, 300, 600, 1200, 2400):
            mechanism = tight._mechanism(n_groups, setting.mu_squared, 5e-8)
            for users in tight._splits(20_000, n_groups):
                bound = tight._bound(problem(), setting, users, n_groups, 20, mechanism.noise_ratio)
                assert bound >= chosen.bound * (1 - 1e-9)


def test_it_whitens_where_that_pays():
    assert plan(radius=10.0, n_users=100_000).schedule.preconditioner is not None
    assert plan(radius=0.5, n_users=100_000).schedule.preconditioner is None
    assert plan(radius=10.0, n_users=100_000, n_features=500).schedule.preconditioner is None


def test_phases_localise_where_noise_would_dominate():
    """Non-smooth losses pay for noise in full, so with many users the last phases take small steps."""
    made = tight.plan_phased_sgd(problem(losses.hinge, 3, 1.0), 1_000_000, 20, Budget(8.0, 1e-6))
    assert len(made.phases) >= 3
    steps = [phase.step_size for phase in made.phases]
    assert steps == sorted(steps, reverse=True)
    assert steps[-1] < steps[0] / 10
    assert sum(phase.n_users for phase in made.phases) == 1_000_000


@pytest.mark.parametrize(("epsilon", "at_most"), [(4.0, 1000), (1.0, 4000)])
def test_few_users_are_enough(epsilon, at_most):
    budget = Budget(epsilon, 1e-6)
    least = tight.smallest_n_users(budget)
    assert least < at_most / 10
    assert plan(n_users=least, budget=budget).phases
    with pytest.raises(BudgetExceeded, match=rf"about {least:,} users would do") as error:
        plan(n_users=math.floor(0.95 * least), budget=budget)
    assert error.value.enough_users == least


def test_pure_budgets_are_told_to_use_delta():
    with pytest.raises(BudgetExceeded, match="delta > 0") as error:
        plan(budget=Budget(1.0, 0.0))
    assert error.value.enough_users is None


@pytest.mark.parametrize("arguments", [{"n_users": 0}, {"rows_per_user": 0}, {"n_users": 2.5}])
def test_counts_must_be_counts(arguments):
    with pytest.raises(ValueError, match="whole number"):
        plan(**arguments)


def test_radii_reach_from_strong_curvature_to_correlated_rows():
    for count in tight._RADII:
        radii = tight._radii(count)
        assert len(radii) == count
        assert radii[-1] == 3.2
        assert radii[0] <= 0.2


class Curator:
    """Answers every release with the same offset."""

    def __init__(self):
        self.asked = []

    def release(self, label, statistic, radius):
        self.asked.append((label, statistic))
        if label == "second moment":
            return np.append(np.eye(10)[np.triu_indices(10)] / math.sqrt(10), 0.5)
        return np.append(np.full(10, 0.01), radius / 4)


def test_a_run_reports_progress_and_phases():
    made, seen = plan(n_users=100_000), []
    result = run(problem(), made, Curator(), lambda label, done, total: seen.append((label, done, total)))
    assert seen == [("second moment", 0, 2), ("phase 1", 1, 2)]
    (summary,) = result.phases
    assert summary["radius"] == summary["expected_radius"] / 4
    assert summary["noise_std"] == made.phases[0].noise_ratio * summary["radius"]
    assert result.n_gradients == 100_000 * 20
    # Rows of norm 2 and half of the largest second moment: whitened weights are divided by sqrt(2 / sqrt(10)).
    np.testing.assert_allclose(result.weights, 0.01 / math.sqrt(2 / math.sqrt(10)))


def test_steps_fall_and_the_last_iterate_counts():
    curator = Curator()
    run(problem(), plan(n_users=100_000), curator)
    statistic = curator.asked[-1][1]
    assert (statistic.decay, statistic.average_from) == (True, 1.0)
    assert statistic.basis.shape == (10, 10)
