"""The planner of phased SGD: public numbers in, the least explicit bound out."""

import math

import numpy as np
import pytest
import scipy
from scipy.optimize import minimize as scipy_minimize
from sklearn.linear_model import LogisticRegression
from support_solvers import make_users, values_and_slopes

from userdp import Ball, Box, Budget, BudgetExceeded, Solver, UserData, losses
from userdp.models.fitting import minimize
from userdp.paper import phased_sgd as tight
from userdp.paper.preconditioning import Preconditioner
from userdp.privacy.accounting import epsilon_at, fits
from userdp.solvers.problem import Problem
from userdp.solvers.solver import Outcome, run
from userdp.statistics.sgd import OnePassSGD

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


# --- penalties --------------------------------------------------------------------------------------------------------


class Exact:
    """Answers with means of all users, without noise; all users take part in every phase."""

    def __init__(self, data, n_groups=1):
        self.data, self.n_groups, self.asked = data, n_groups, []

    def release(self, label, statistic, radius):
        self.asked.append(statistic)
        users = np.arange(self.data.n_users)
        if label == "second moment":
            return statistic(self.data, users, self.data.n_users).mean(axis=0)
        return np.append(statistic(self.data, users, self.n_groups).mean(axis=0), radius)


def passes(problem, data, whitened, steps=(*[1.0] * 6, *[0.3] * 4, *[0.1] * 4, *[0.03] * 4, 0.01), n_groups=1):
    """Weights after passes without noise, with the first step size in units of the plan's largest, and the curator."""
    curvature = problem.loss.curvature * (problem.n_features if whitened else problem.row_norm**2)
    phases = tuple(
        tight.GroupPhase(f"phase {k}", data.n_users, 1.0, 1.0, n_groups=n_groups, step_size=step / curvature)
        for k, step in enumerate(steps)
    )
    ridge = problem.l2 / problem.typical_curvature
    schedule = tight.GroupPasses(phases, Preconditioner(1e-4, ridge, 50.0) if whitened else None)
    outcome, curator = Outcome(problem.start, math.inf), Exact(data, n_groups)
    drive(schedule.releases(problem, outcome), curator)
    return outcome.weights, curator


def drive(releases, curator):
    request = next(releases)
    try:
        while True:
            request = releases.send(curator.release(request.label, request.statistic, request.radius))
    except StopIteration:
        return


def excess(problem, data, weights):
    """How much more the penalised mean loss is than its minimum by scipy; intercepts are not in the penalty."""
    X, y = data.dense().astype(float), data.targets

    def objective(w):
        values, slopes = values_and_slopes(problem.loss, X, y, w)
        kept = problem.penalised(w)
        gradient = (slopes.T @ X / len(X)).ravel() + problem.l2 * kept
        return np.mean(values) + problem.l2 / 2 * kept @ kept, gradient

    found = scipy_minimize(objective, np.zeros(problem.dimension), jac=True, method="L-BFGS-B", tol=1e-12)
    return objective(weights)[0] - found.fun


@pytest.mark.parametrize("whitened", [False, True], ids=["plain", "whitened"])
@pytest.mark.parametrize("l2", [0.03, 1.0])
@pytest.mark.parametrize("loss", [losses.logistic, losses.squared, losses.multinomial(4)], ids=lambda loss: loss.name)
def test_without_noise_it_finds_the_penalised_optimum(loss, l2, whitened):
    kind = "several" if loss.n_outputs > 1 else ("classes" if loss.classifies else "numbers")
    data = make_users(300, 4, kind=kind)
    for intercept in (True, False):
        options = {"l2": l2, "intercept": intercept}
        penalised = Problem(loss, Ball(100.0), 4, 2.5, None if loss.classifies else 5.0, **options)
        assert excess(penalised, data, passes(penalised, data, whitened)[0]) < 5e-4


@pytest.mark.parametrize("whitened", [False, True], ids=["plain", "whitened"])
def test_the_intercept_is_not_penalised(whitened):
    """As scikit-learn has it: a rare class keeps its intercept, whatever the penalty."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(5000, 3))
    y = rng.random(5000) < 1 / (1 + np.exp(2.5 - X[:, 0]))
    data = UserData.from_arrays(X, y, np.repeat(np.arange(1000), 5), fit_intercept=True)
    usual = LogisticRegression(C=1 / (5000 * 0.3), tol=1e-8, max_iter=1000).fit(X, y)
    penalised = Problem(losses.logistic, Ball(100.0), 4, 2.5, l2=0.3, intercept=True)
    weights, _ = passes(penalised, data, whitened)
    np.testing.assert_allclose(weights, [*usual.coef_[0], *usual.intercept_], atol=0.02)
    assert weights[-1] < -1.5


def test_a_penalised_private_fit_is_near_the_penalised_optimum():
    """With noise, by its own plan: nearer to it than what no penalty would give is."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40_000, 3))
    y = rng.random(40_000) < 1 / (1 + np.exp(1 - 2 * X[:, 0] + X[:, 1]))
    data = UserData.from_arrays(X, y, np.repeat(np.arange(8000), 5), fit_intercept=True)
    options = {"rows_per_user": 5, "solver": Solver("phased-sgd", row_norm=2.5), "l2": 0.1, "insecure_seed": 0}
    result = minimize("logistic", data, Ball(10.0), 8.0, 1e-6, **options)
    penalised, plain = (
        LogisticRegression(C=C, tol=1e-8, max_iter=1000).fit(X, y) for C in (1 / (40_000 * 0.1), np.inf)
    )
    expected, other = (np.append(model.coef_[0], model.intercept_) for model in (penalised, plain))
    np.testing.assert_allclose(result.weights, expected, atol=0.1)
    assert np.linalg.norm(result.weights - expected) < 0.2 * np.linalg.norm(result.weights - other)


def test_penalised_passes_of_sparse_rows_are_those_of_dense_ones():
    rng = np.random.default_rng(0)
    X = scipy.sparse.random_array((3000, 30), density=0.1, rng=rng, format="csr")
    y, users = rng.random(3000) < 0.4, np.arange(3000) // 10
    penalised = Problem(losses.logistic, Ball(100.0), 31, 2.5, l2=0.1, intercept=True)
    found, expected = (
        passes(penalised, UserData.from_arrays(rows, y, users, fit_intercept=True), False, n_groups=7)[0]
        for rows in (X, X.toarray())
    )
    np.testing.assert_allclose(found, expected, atol=1e-9)


@pytest.mark.parametrize(
    "domain",
    [
        Ball(0.4),
        Ball(0.5, np.full(4, 0.5)),
        Box(np.full(4, -0.1), np.full(4, 0.3)),
    ],
)
@pytest.mark.parametrize("whitened", [False, True], ids=["plain", "whitened"])
def test_penalised_weights_stay_inside_the_domain(domain, whitened):
    penalised = Problem(losses.logistic, domain, 4, 2.5, l2=0.5, intercept=True)
    weights, curator = passes(penalised, make_users(300, 4), whitened)
    assert domain.contains(weights)
    assert all(s.penalty is not None for s in curator.asked if isinstance(s, OnePassSGD))


def test_turned_axes_carry_the_same_penalty_and_rows():
    """Whitened, the penalty along the axes of the pass is that of the weights it stands for."""
    penalised = problem(n_features=5, l2=0.7, intercept=True)
    rng = np.random.default_rng(0)
    basis, start = rng.normal(size=(5, 5)), rng.normal(size=5)
    statistic, axes = tight.GroupPasses(())._one_pass(penalised, start, Ball(50.0, np.ones(5)), 1e-3, basis)
    u = rng.normal(size=5)
    w = basis @ u
    turned = tight._turned(u, axes)
    np.testing.assert_allclose(statistic.penalty @ turned**2, 0.7 * w[:-1] @ w[:-1])
    np.testing.assert_allclose(statistic.basis @ turned, w)
    np.testing.assert_allclose(tight._turned(turned, axes.T), u)
    np.testing.assert_allclose(statistic.basis @ statistic.start, basis @ start)


@pytest.mark.parametrize("loss", [losses.logistic, losses.hinge, losses.squared], ids=lambda loss: loss.name)
@pytest.mark.parametrize("l2", [1e-4, 0.1, 10.0, 1e4])
def test_steps_of_penalised_plans_contract(loss, l2):
    for radius in (1.0, 100.0):
        made = plan(loss=loss, l2=l2, radius=radius)
        if made.schedule.preconditioner is None:
            assert all(phase.step_size * l2 <= 0.5 for phase in made.phases)
        assert math.isfinite(made.bound)


def test_a_tiny_penalty_changes_a_plan_by_little():
    for loss in (losses.logistic, losses.hinge):
        penalised, plain = plan(loss=loss, l2=1e-9), plan(loss=loss)
        assert penalised.bound == pytest.approx(plain.bound, rel=1e-3)
        assert penalised.certified == plain.certified
