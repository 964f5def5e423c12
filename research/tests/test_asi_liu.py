import numpy as np
import pytest
from support_solvers import make_users

from userdp import Ball, Budget, BudgetExceeded, Curator, Ledger, losses
from userdp.solvers.problem import Problem
from userdp.solvers.solver import run
from userdp_research import asi_liu
from userdp_research.asi_liu import plan_asi_liu
from userdp_research.descent import sgd_excess, sgd_step

BUDGET = Budget(4.0, 1e-5)


def problem_of(loss=losses.logistic, radius=3.0):
    return Problem(loss, Ball(radius), 4, 2.5)


@pytest.mark.parametrize("loss", [losses.logistic, losses.hinge])
def test_the_number_of_steps_has_the_least_bound_and_tolerance_takes_fewer(loss):
    best = plan_asi_liu(problem_of(loss), 2000, 12, BUDGET, tolerance=0.0)
    bounds = {t: asi_liu._bound(problem_of(loss), 2000, 12, BUDGET, t) for t in (32, 128, 1024, 4096, 10_240)}
    assert best.bound <= min(bounds.values()) * (1 + 1e-12)
    loose = plan_asi_liu(problem_of(loss), 2000, 12, BUDGET, tolerance=1.0)
    assert best.bound <= loose.bound <= 2 * best.bound
    assert loose.n_gradients < best.n_gradients
    assert best.n_gradients == 2000 * 12 * (best.phases[0].n_steps + 1)


def test_every_step_takes_all_users_and_nothing_else_is_released():
    plan = plan_asi_liu(problem_of(), 2000, 12, BUDGET)
    assert [(step.label, step.start, step.stop) for step in plan.certified.steps] == [
        ("radius", 0, 2000),
        ("mean", 0, 2000),
    ]
    assert plan.certified.steps[-1].mechanism.rounds == plan.phases[0].n_steps
    assert plan.schedule.method is asi_liu.plain_steps
    assert plan.schedule.preconditioner is None
    assert plan.schedule.loss is problem_of().loss


def test_gradients_can_be_limited_and_too_few_are_refused():
    plan = plan_asi_liu(problem_of(), 2000, 12, BUDGET, max_gradients=50 * 24_000)
    assert plan.phases[0].n_steps == 49
    with pytest.raises(ValueError, match=r"max_gradients=100 >= 792,000 .* Nothing was spent"):
        plan_asi_liu(problem_of(), 2000, 12, BUDGET, max_gradients=100)
    with pytest.raises(BudgetExceeded, match="delta > 0"):
        plan_asi_liu(problem_of(), 2000, 12, Budget(1.0, 0.0))
    assert asi_liu.feasible(problem_of(), 2000, 12, BUDGET)
    assert not asi_liu.feasible(problem_of(), 20, 12, BUDGET)


def test_the_result_is_the_average_of_plain_steps():
    """The same steps by hand, along the releases that the run got."""
    problem = problem_of()
    plan = plan_asi_liu(problem, 2000, 12, BUDGET, max_gradients=34 * 24_000)
    data, released = make_users(2000, rows=(5, 12)), []

    class Listening(Curator):
        def release(self, label, statistic, radius):
            released.append((label, radius, super().release(label, statistic, radius)))
            return released[-1][-1]

    result = run(problem, plan, Listening(data, plan.certified, Ledger(BUDGET), insecure_seed=2))
    phase, radius = plan.phases[0], float(released[0][-1][0])
    step = sgd_step(phase.smoothness, phase.distance, 4 * (phase.noise_ratio * radius) ** 2, phase.n_steps)
    assert step <= 1 / (2 * losses.logistic.smoothness(2.5))
    point, points = np.zeros(4), []
    for _, _, gradient in released[1:]:
        point = problem.domain.project(point - step * gradient)
        points.append(point)
    np.testing.assert_allclose(result.weights, np.mean(points, axis=0), rtol=1e-9)


def test_the_step_has_the_least_excess():
    for smoothness, square in ((0.0, 2.0), (3.0, 0.001), (0.01, 5.0)):
        best = sgd_step(smoothness, 2.0, square, 50)
        largest = 1 / (2 * smoothness) if smoothness else np.inf
        for other in (0.5 * best, 0.9 * best, min(1.1 * best, largest)):
            assert sgd_excess(best, 2.0, square, 50) <= sgd_excess(other, 2.0, square, 50) * (1 + 1e-12)
