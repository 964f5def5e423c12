"""The accelerated solver: its plan, its steps, and its optimum without noise."""

import math

import numpy as np
import pytest
from cases import ALL_LOSSES, name
from support_solvers import best_risk, make_users, risk

from userdp import Aborted, Ball, Budget, BudgetExceeded, Solver, UserData, losses
from userdp.models.fitting import minimize
from userdp.paper import accelerated
from userdp.paper.accelerated import GradientPhase, GradientSteps, plan_accelerated
from userdp.paper.accelerated_paper import acsa
from userdp.paper.outlier_removal import SampledOutlierRemoval
from userdp.paper.preconditioning import Preconditioner
from userdp.privacy.accounting import epsilon_at
from userdp.solvers.problem import Problem
from userdp.solvers.solver import SolverPlan, run

BUDGET = Budget(1.0, 1e-6)


def problem(loss=losses.logistic, n_features=4, radius=10.0, **options):
    return Problem(loss, Ball(radius), n_features, 2.5, None if loss.classifies else 5.0, **options)


def plan(n_users=20_000, budget=BUDGET, max_gradients=None, **options):
    return plan_accelerated(problem(**options), n_users, 20, budget, max_gradients)


def passes(plan, n_users=20_000):
    return plan.n_gradients / (20 * n_users)


class Exact:
    """Answers releases without noise: the mean of the users' vectors."""

    def __init__(self, data, abort_after=math.inf):
        self.data, self.abort_after, self.asked = data, abort_after, []

    def release(self, label, statistic, radius):
        if label == "radius":
            return np.array([radius])
        if len(self.asked) >= self.abort_after:
            raise Aborted
        self.asked.append(statistic)
        users = np.arange(self.data.n_users)
        return statistic(self.data, users, len(users)).mean(axis=0)


def exact_plan(loss, n_steps, smoothness, schedule=(), as_published=False, **change):
    """A plan for `Exact`: what it certifies does not matter."""
    numbers = {"n_steps": n_steps, "smoothness": smoothness, "search": "radius", "distance": 1.0} | change
    phase = GradientPhase(label="mean", n_users=300, radius=1.0, noise_ratio=0.0, **numbers)
    steps = GradientSteps(loss, (phase,), **dict(schedule))
    return SolverPlan(plan(n_users=5000).certified, steps, 1, 1.0, as_published=as_published)


# --- plans ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.5, 4.0])
@pytest.mark.parametrize("max_gradients", [None, 20_000 * 20 * 3])
def test_the_budget_is_used_up(epsilon, max_gradients):
    made = plan(budget=Budget(epsilon, 1e-6), max_gradients=max_gradients)
    dearest = max(epsilon_at(cost, 1e-6) for cost in made.certified.costs)
    assert 0.99 * epsilon < dearest <= epsilon


def test_all_users_or_samples_by_what_gradients_allow():
    free, capped, tiny = (plan(max_gradients=m and int(m * 20 * 20_000)) for m in (None, 25, 2))
    assert free.certified.steps[-1].mechanism.test_std is not None
    assert isinstance(tiny.certified.steps[-1].mechanism, SampledOutlierRemoval)
    assert free.phases[0].users_a_step == 20_000
    assert tiny.phases[0].users_a_step < 5000
    assert passes(tiny) <= 2 < passes(capped) <= 25
    assert free.bound <= capped.bound <= tiny.bound
    with pytest.raises(ValueError, match=r"max_gradients=1000 >= [0-9,]+ for 20,000 users"):
        plan(max_gradients=1000)


def test_as_many_steps_as_are_allowed_are_considered():
    made = plan(n_users=6000, budget=Budget(4.0, 1e-6), max_gradients=19 * 20 * 6000)
    assert (made.phases[0].n_steps, made.phases[0].users_a_step) == (18, 6000)
    search = made.certified.steps[-2]
    assert (search.label, search.start) == ("radius", 0)
    assert 3000 < search.n_users < 6000
    assert made.n_gradients == 20 * (18 * 6000 + search.n_users)


def test_where_samples_are_too_small_all_users_take_part():
    made = plan(n_users=3000, max_gradients=30 * 20 * 3000)
    assert made.phases[0].users_a_step == 3000


def test_more_gradients_are_asked_for_only_if_they_help():
    """Even a noiseless run needs no more steps than its smallest bias."""
    assert passes(plan(n_users=200_000, budget=Budget(8.0, 1e-6)), 200_000) < 60


def test_bounds_fall_with_users_and_epsilon():
    bounds = [plan(n_users=n).bound for n in (5_000, 20_000, 100_000)]
    assert bounds == sorted(bounds, reverse=True)
    bounds = [plan(budget=Budget(e, 1e-6)).bound for e in (0.5, 1.0, 4.0)]
    assert bounds == sorted(bounds, reverse=True)


def test_it_whitens_where_that_pays():
    assert plan(n_users=100_000).schedule.preconditioner is not None
    assert plan(radius=0.2).schedule.preconditioner is None
    assert plan(n_users=100_000, n_features=500).schedule.preconditioner is None


def test_non_smooth_losses_are_smoothed_more_narrowly_with_more_steps():
    curvatures = [plan(n_users=n, loss=losses.hinge).schedule.loss.curvature for n in (3_000, 30_000, 300_000)]
    assert curvatures == sorted(curvatures)
    assert math.isfinite(curvatures[-1])


def test_a_penalty_brings_the_best_point_nearer_and_the_bound_down():
    bounds = [plan(l2=l2).bound for l2 in (0.0, 0.1, 1.0, 100.0)]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[-1] < 0.05 * bounds[0]


def test_pure_budgets_are_told_to_use_delta():
    with pytest.raises(BudgetExceeded, match="Expected delta > 0"):
        plan(budget=Budget(1.0, 0.0))


def test_steps_take_more_than_the_radius_found_by_a_public_factor():
    """For quick counts, and because gradients of one row may grow apart: not where slopes are as large at the start."""
    factors = {
        (loss.name, rows): plan_accelerated(problem(loss), 20_000, rows, BUDGET).phases[0].headroom
        for loss in (losses.logistic, losses.hinge)
        for rows in (1, 20)
    }
    expected = {("logistic", 1): 1.44, ("logistic", 20): 1.2006, ("hinge", 1): 1.2, ("hinge", 20): 1.2}
    assert factors == pytest.approx(expected)
    few = [plan_accelerated(problem(), 5_000, rows, BUDGET).phases[0].headroom for rows in (1, 50)]
    assert few == pytest.approx([1.296, 1.08], rel=1e-3)
    data = make_users(300, rows=(10, 10))
    radii = []

    class Radii(Exact):
        def release(self, label, statistic, radius):
            radii.append((label, radius))
            return np.array([0.5]) if label == "radius" else super().release(label, statistic, radius)

    result = run(problem(), exact_plan(losses.logistic, 2, 2.0, headroom=1.5), Radii(data))
    assert radii == [("radius", 1.0), ("mean", 0.75), ("mean", 0.75)]
    assert result.phases[0]["radius"] == 0.75


@pytest.mark.parametrize("seed", range(3))
def test_users_of_one_row_do_not_abort(seed):
    """Their gradients are all about as long at the start, and later those of wrong predictions are longer."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(20_000, 4)).clip(-3, 3)
    targets = rng.random(20_000) < 1 / (1 + np.exp(-3 * rows[:, 0]))
    data = UserData(rows, targets.astype(float), np.arange(20_001))
    public = {"rows_per_user": 1, "solver": Solver("accelerated", row_norm=2.5), "insecure_seed": seed}
    result = minimize("logistic", data, Ball(10.0), 1.0, 1e-6, **public)
    assert not result.aborted
    assert abs(result.weights[0] - 3) < 0.5


# --- runs -------------------------------------------------------------------------------------------------------------


def kind_of(loss):
    return "several" if loss.n_outputs > 1 else ("classes" if loss.classifies else "numbers")


@pytest.mark.parametrize("loss", ALL_LOSSES, ids=name)
def test_without_noise_it_finds_the_optimum(loss):
    """Equal numbers of rows, so that the mean over users is the mean over rows."""
    data = make_users(300, rows=(10, 10), kind=kind_of(loss))
    smooth = loss if loss.smooth else losses.smoothed(loss, 2e-3)
    made = exact_plan(smooth, 3000, min(smooth.curvature, 50.0) * 2.5**2)
    result = run(problem(loss, radius=80.0), made, Exact(data))
    assert risk(loss, data, result.weights) - best_risk(loss, data) < 1e-3


@pytest.mark.parametrize("whitened", [False, True])
@pytest.mark.parametrize("loss", [losses.logistic, losses.huber(0.5)], ids=name)
def test_without_noise_it_finds_the_penalised_optimum(loss, whitened):
    data, l2 = make_users(300, rows=(10, 10), kind=kind_of(loss)), 0.1
    schedule = {"preconditioner": Preconditioner(1e-3, l2 / loss.curvature)} if whitened else {}
    made = exact_plan(loss, 1500, loss.curvature * 2.5**2 + l2, schedule)

    class Moments(Exact):
        def release(self, label, statistic, radius):
            answer = super().release(label, statistic, radius)
            return self.asked.pop() and answer if label == "second moment" else answer

    result = run(problem(loss, radius=80.0, l2=l2), made, Moments(data))

    def penalised(w):
        return risk(loss, data, w) + l2 / 2 * float(w @ w)

    assert penalised(result.weights) - best_risk(loss, data, l2) < 1e-5


def test_a_warm_start_is_where_it_begins():
    data, start = make_users(300, rows=(10, 10)), np.array([0.5, -0.5, 1.0, 0.0])
    curator = Exact(data)
    made = exact_plan(losses.logistic, 3, 1.6)
    run(problem(warm_start=start), made, curator)
    np.testing.assert_array_equal(curator.asked[0].weights, start)


def test_an_abort_on_the_way_keeps_what_was_reached():
    data = make_users(300, rows=(10, 10))
    made = exact_plan(losses.logistic, 40, 1.6)
    stopped = run(problem(), made, Exact(data, abort_after=25))
    assert stopped.aborted
    assert "after 25 steps" in stopped.message
    assert risk(losses.logistic, data, stopped.weights) < risk(losses.logistic, data, np.zeros(4)) - 0.01


def test_the_paper_s_mode_gives_the_start_on_an_abort():
    data = make_users(300, rows=(10, 10))
    made = exact_plan(losses.logistic, 40, 1.6, {"method": acsa}, as_published=True, regularizer=0.1, gap=1.0)
    stopped = run(problem(), made, Exact(data, abort_after=25))
    assert stopped.aborted
    np.testing.assert_array_equal(stopped.weights, np.zeros(4))
    assert "the start" in stopped.message


def test_samples_learn_within_few_passes():
    data = make_users(30_000, rows=(5, 15))
    allowed = 30_000 * 15
    arguments = {"rows_per_user": 15, "solver": Solver("accelerated", row_norm=2.5, max_gradients=allowed)}
    result = minimize("logistic", data, Ball(10.0), 2.0, 1e-6, **arguments, insecure_seed=0)
    nothing, best = risk(losses.logistic, data, np.zeros(4)), best_risk(losses.logistic, data)
    assert not result.aborted
    assert result.n_gradients <= allowed
    assert result.phases[0]["users_a_step"] < 15_000
    assert risk(losses.logistic, data, result.weights) - best < 0.05 * (nothing - best)


def test_gradients_are_counted_from_public_numbers_and_not_below_what_is_computed(monkeypatch):
    data = make_users(10_000, rows=(10, 10))
    seen = []

    class Counting(accelerated.MeanGradient):
        def __call__(self, data, users, n_groups):
            seen.append(int(np.sum(np.diff(data.offsets)[users])))
            return super().__call__(data, users, n_groups)

        def check(self, n_features, dtype=np.float64):
            """Made-up rows are not counted."""

    monkeypatch.setattr(accelerated, "MeanGradient", Counting)
    for allowed in (30, 3):
        seen.clear()
        taken = Solver("accelerated", row_norm=2.5, max_gradients=allowed * 100_000)
        arguments = {"rows_per_user": 10, "solver": taken, "insecure_seed": 1}
        result = minimize("logistic", data, Ball(10.0), 2.0, 1e-6, **arguments)
        assert 0.95 * result.n_gradients <= sum(seen) <= result.n_gradients


@pytest.mark.parametrize("l2", [0.01, 0.1, 1.0])
def test_the_penalised_excess_stays_below_the_bound(l2):
    data = make_users(5_000, rows=(10, 10))
    arguments = {"rows_per_user": 10, "solver": Solver("accelerated", row_norm=2.5), "l2": l2}
    best = best_risk(losses.logistic, data, l2)
    for seed in range(3):
        result = minimize("logistic", data, Ball(10.0), 1.0, 1e-6, **arguments, insecure_seed=seed)
        excess = risk(losses.logistic, data, result.weights) + l2 / 2 * float(result.weights @ result.weights) - best
        assert -1e-6 < excess < result.bound
