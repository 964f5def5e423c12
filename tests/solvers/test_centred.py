import itertools
from dataclasses import replace

import numpy as np
import pytest
from support_solvers import best_risk, make_users, risk

from userdp import Ball, Budget, BudgetExceeded, Curator, Ledger, MeanGradient, UserData, losses
from userdp.solvers import centred
from userdp.solvers.centred import noise_number, plan_centred, run
from userdp.solvers.problem import Problem
from userdp.wrapped import Offset

BUDGET = Budget(4.0, 1e-5)
PROBLEM = Problem(losses.logistic, Ball(10.0), 4, 2.5)
SCHEDULES = pytest.mark.parametrize("schedule", ["accelerated", "falling"])


def fitted(data, plan, budget=BUDGET, seed=0, problem=PROBLEM):
    return run(problem, plan, Curator(data, plan.plan, Ledger(budget), insecure_seed=seed))


def left(data, weights):
    """The excess risk, as a share of that of knowing nothing."""
    best = best_risk(losses.logistic, data)
    return (risk(losses.logistic, data, weights) - best) / (risk(losses.logistic, data, np.zeros(4)) - best)


@SCHEDULES
def test_both_schedules_learn(schedule):
    data = make_users(5000, rows=(5, 15))
    plan = plan_centred(PROBLEM, 5000, 15, BUDGET, schedule=schedule)
    assert plan.phases[0].schedule == schedule
    result = fitted(data, plan)
    assert left(data, result.weights) < 0.05
    assert not result.halted


def test_the_noise_number_decides_and_kinks_do():
    def chosen(epsilon, n_users, problem=PROBLEM):
        return plan_centred(problem, n_users, 12, Budget(epsilon, 1e-5)).phases[0]

    assert chosen(4.0, 5000).schedule == "accelerated"
    assert chosen(0.1, 500).schedule == "falling"
    assert chosen(4.0, 5000, Problem(losses.hinge, Ball(10.0), 4, 2.5)).schedule == "falling"
    for epsilon, n_users in ((4.0, 5000), (1.0, 1000), (0.1, 500), (1.0, 200)):
        phase = chosen(epsilon, n_users)
        heavy = noise_number(PROBLEM, n_users, Budget(epsilon, 1e-5), phase.row_square) >= 0.08
        assert (phase.schedule == "falling") == heavy


def test_less_noise_lets_more_users_count_in_full():
    quantiles = [plan_centred(PROBLEM, n, 12, BUDGET).phases[0].quantile for n in (300, 2000, 50_000)]
    assert quantiles == sorted(quantiles)
    assert quantiles[-1] > 0.95
    heavy = plan_centred(PROBLEM, 100, 12, Budget(0.5, 1e-5)).phases[0]
    calm = plan_centred(PROBLEM, 50_000, 12, BUDGET, schedule="falling").phases[0]
    assert heavy.quantile < 0.5 < calm.quantile
    assert heavy.radius < calm.radius


def test_the_center_is_what_was_released_before():
    plan = plan_centred(PROBLEM, 2000, 12, BUDGET)
    data, asked = make_users(2000), []
    curator = Curator(data, plan.plan, Ledger(BUDGET), insecure_seed=0)

    class Told:
        def release(self, label, statistic, radius):
            out = curator.release(label, statistic, radius)
            if label == "gradients":
                assert isinstance(statistic, Offset)
                asked.append((statistic.center.copy(), out[:-1], radius, float(out[-1])))
            return out

    run(PROBLEM, plan, Told())
    np.testing.assert_array_equal(asked[0][0], np.zeros(4))
    for (center, released, radius, share), (following, _, next_one, _) in itertools.pairwise(asked):
        np.testing.assert_allclose(following, center + released, rtol=1e-12, atol=1e-15)
        grows = plan.phases[0].quantile - min(1.0, max(0.0, share))
        assert next_one == pytest.approx(min(plan.phases[0].largest_radius, radius * np.exp(0.3 * grows)))


def test_with_endless_budget_the_center_is_the_mean_gradient():
    """Offsets within the radius have no bias, wherever the center is."""
    budget = Budget(5000.0, 0.1)
    plan = plan_centred(PROBLEM, 2000, 12, budget, schedule="accelerated")
    data = make_users(2000, rows=(8, 12))
    result = fitted(data, plan, budget)
    assert left(data, result.weights) < 0.01


@pytest.mark.parametrize("passes", [1.5, 10.0, 40.0])
def test_gradients_can_be_limited(passes):
    plan = plan_centred(PROBLEM, 2000, 12, BUDGET, max_gradients=int(passes * 24_000))
    (phase,) = plan.phases
    assert 0.7 * passes * 24_000 <= plan.n_gradients <= passes * 24_000
    assert (phase.sampling_probability == 1.0) == (passes == 40.0)
    assert (phase.variance == 0) == (passes == 40.0)
    data = make_users(2000)
    assert left(data, fitted(data, plan).weights) < 0.5


def test_impossible_plans_are_refused():
    with pytest.raises(ValueError, match=r"max_gradients=10 >= [0-9,]+.* Nothing was spent"):
        plan_centred(PROBLEM, 2000, 12, BUDGET, max_gradients=10)
    with pytest.raises(BudgetExceeded, match="delta > 0"):
        plan_centred(PROBLEM, 2000, 12, Budget(1.0, 0.0))
    with pytest.raises(ValueError, match="schedule='slow'"):
        plan_centred(PROBLEM, 2000, 12, BUDGET, schedule="slow")


@SCHEDULES
def test_it_works_without_a_preconditioner(schedule, monkeypatch):
    monkeypatch.setattr(centred, "MOST_FEATURES", 3)
    plan = plan_centred(PROBLEM, 3000, 12, BUDGET, schedule=schedule)
    assert plan.moment_error is None
    assert [step.label for step in plan.plan.steps] == ["gradients"]
    data = make_users(3000)
    assert left(data, fitted(data, plan).weights) < 0.3


@pytest.mark.parametrize("spoiled", [0.05, 0.9])
def test_a_few_users_without_gradients_do_no_harm_and_many_halt(spoiled):
    data = make_users(3000)
    rows = data.rows.copy()
    rows[data.offsets[: int(spoiled * 3000)]] = np.nan
    plan = plan_centred(PROBLEM, 3000, 12, BUDGET)
    result = fitted(UserData(rows, data.targets, data.offsets), plan)
    assert result.halted == (spoiled > 0.5)
    assert (result.message == "") == (spoiled < 0.5)
    if result.halted:
        np.testing.assert_array_equal(result.weights, PROBLEM.start)
    else:
        assert left(data, result.weights) < 0.2


def test_noise_shortens_steps_of_both_schedules():
    for schedule in ("accelerated", "falling"):
        phase = plan_centred(PROBLEM, 2000, 12, BUDGET, schedule=schedule).phases[0]
        points = []
        for noise in (1e-6, 1.0):
            descent = centred._descent(replace(phase, noise_ratio=noise), np.zeros(4), Ball(10.0))
            descent.move(np.ones(4))
            points.append(np.linalg.norm(descent.query))
        assert points[1] < points[0] / 3


def test_falling_steps_end_at_nothing():
    phase = plan_centred(PROBLEM, 2000, 12, BUDGET, schedule="falling").phases[0]
    descent, lengths = centred._descent(phase, np.zeros(4), Ball(1e6)), []
    for _ in range(phase.n_steps):
        before = descent.point
        descent.move(np.array([1.0, 0.0, 0.0, 0.0]))
        lengths.append(before[0] - descent.point[0])
    np.testing.assert_allclose(np.diff(lengths), np.diff(lengths)[0], rtol=1e-6)
    assert lengths[-1] < 0.03 * lengths[0]


def test_the_offset_statistic():
    data = make_users(20, rows=(1, 4))
    rows = data.rows.copy()
    rows[0] = np.nan
    data = UserData(rows, data.targets, data.offsets)
    gradient, center = MeanGradient(losses.logistic, np.zeros(4)), np.arange(4.0)
    offset = Offset(gradient, center)
    plain, moved = (statistic(data, np.arange(20), 20) for statistic in (gradient, offset))
    np.testing.assert_array_equal(moved, plain - center)
    assert np.isnan(moved[0]).all()
    assert np.isfinite(moved[1:]).all()
    assert (offset.needs_targets, offset.takes_groups) == (True, False)
    offset.check(4)
    with pytest.raises(ValueError, match="Expected a center of length 4, got 3"):
        Offset(gradient, np.zeros(3)).check(4)
    with pytest.raises(ValueError, match="finite weights"):
        Offset(gradient, np.full(4, np.nan))
    center[0] = 9.0
    assert offset.center[0] == 0.0
