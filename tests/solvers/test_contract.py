"""What every solver guarantees: a new one joins `SOLVERS` in userdp.solvers.solver and inherits these tests."""

import itertools

import numpy as np
import pytest
from cases import ALL_LOSSES, name
from support_solvers import best_risk, make_users, risk

from userdp import Ball, Box, Budget, BudgetExceeded, Curator, Ledger, Solver, UserData, losses
from userdp.models.fitting import minimize
from userdp.privacy.accounting import fits
from userdp.solvers.planner import AUTO, consider
from userdp.solvers.problem import Problem
from userdp.solvers.solver import SOLVERS, run

pytestmark = pytest.mark.slow

# Where each runs in a test's time: users, rows a user, budget.
SIZES = {"calibrated": (2000, 12, Budget(4.0, 1e-5)), "paper": (14_000, 2, Budget(10.0, 1e-4))}
# Noise on the outcome and nothing else: no test that could fail, and any number of users will do. Privacy rests on the
# losses' slopes, so losses of one's own are refused.
OUTPUT_PERTURBATION = {"disjoint-batches", "group-privacy"}
# Solvers that take more steps than a test has time for, unless gradients are limited (to so many for each row).
LIMITS = {"bassily-sun": 20.0, "levy": 20.0, "asi-liu": 40.0, "example-level": 0.2}
# Without a private test nothing aborts.
NEVER_ABORT = {"whitened-clip", "bassily-sun", "levy", "bassily-sun-local", "example-level", "dp-fedavg"}
ANY_NUMBER = {"whitened-clip", "example-level", "dp-fedavg"} | OUTPUT_PERTURBATION
EVERY = pytest.mark.parametrize(("solver", "mode"), [pytest.param(*key, id=" ".join(key)) for key in SOLVERS])


def size_of(mode):
    n_users, rows_per_user, budget = SIZES[mode]
    return {"n_users": n_users, "rows": (1, rows_per_user)}, rows_per_user, budget


def limit(solver, n_users, rows_per_user):
    return {"max_gradients": int(LIMITS[solver] * n_users * rows_per_user)} if solver in LIMITS else {}


def fit(data, rows_per_user, budget, loss="logistic", domain=None, solver="auto", mode="calibrated", **options):
    domain = domain or Ball(10.0)
    bound = None if losses.loss(loss).classifies else 5.0
    taken = Solver(solver, mode=mode, row_norm=2.5, **limit(solver, data.n_users, rows_per_user))
    arguments = {"rows_per_user": rows_per_user, "target_bound": bound, "solver": taken}
    return minimize(loss, data, domain, budget.epsilon, budget.delta, **arguments, **options)


@EVERY
def test_the_plan_is_public_certified_and_wastes_no_user(solver, mode):
    size, rows_per_user, budget = size_of(mode)
    problem = Problem(losses.logistic, Ball(10.0), 4, 2.5)
    plan = SOLVERS[solver, mode].plan(problem, size["n_users"], rows_per_user, budget)
    plan.certified.certify(budget)
    assert all(fits(cost, budget) for cost in plan.certified.costs)
    if mode == "calibrated":
        used = {
            user
            for step in plan.certified.steps
            if step.label != "second moment"
            for user in range(step.start, step.stop)
        }
        assert len(used) == size["n_users"], "no user is wasted"
    if solver == "phased-sgd":
        phases = sorted((step.start, step.stop) for step in plan.certified.steps if step.label.startswith("phase"))
        assert all(stop <= start for (_, stop), (start, _) in itertools.pairwise(phases))
        assert plan.n_gradients <= size["n_users"] * rows_per_user


@EVERY
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_it_ends_inside_the_domain_and_spends_what_it_said(solver, mode, dtype):
    size, rows_per_user, budget = size_of(mode)
    data = make_users(**size, dtype=dtype)
    for domain in (
        Ball(0.3),
        Ball(1.0, np.full(4, 2.0)),
        Box(np.full(4, -0.2), np.array([0.1, 0.2, 3.0, 1.0])),
    ):
        for _ in range(2):  # a run aborts by chance once in some hundred
            ledger = Ledger(budget)
            result = fit(data, rows_per_user, budget, domain=domain, solver=solver, mode=mode, ledger=ledger)
            assert domain.contains(result.weights)
            if not result.aborted:
                break
        assert not result.aborted
        # As printed, or in baselines, noise may drown everything, and that is said.
        assert mode == "paper" or SOLVERS[solver, mode].baseline or result.message == ""
        assert 0 < ledger.spent_epsilon() <= budget.epsilon
        assert result.n_gradients > 0


@EVERY
@pytest.mark.parametrize("loss", ALL_LOSSES, ids=name)
def test_it_runs_on_every_loss(solver, mode, loss):
    size, rows_per_user, budget = size_of(mode)
    if (solver, mode) == ("accelerated", "paper") and not loss.smooth:
        pytest.skip("25,000 steps, as printed: tests/paper runs a few of them")
    kind = "several" if loss.n_outputs > 1 else ("classes" if loss.classifies else "numbers")
    data = make_users(**size, kind=kind)
    problem = Problem(loss, Ball(5.0), 4, 2.5, None if loss.classifies else 5.0)
    if solver in OUTPUT_PERTURBATION and loss.may_raise:
        with pytest.raises(ValueError, match=r"Expected a loss of userdp .*Nothing was spent\."):
            SOLVERS[solver, mode].plan(problem, data.n_users, rows_per_user, budget)
        return
    few = limit(solver, data.n_users, rows_per_user)
    plan = SOLVERS[solver, mode].plan(problem, data.n_users, rows_per_user, budget, **few)
    result = run(problem, plan, Curator(data, plan.certified, Ledger(budget), insecure_seed=1))
    assert result.weights.shape == (4 * loss.n_outputs,)
    assert np.all(np.isfinite(result.weights))
    assert not result.aborted


@EVERY
def test_a_abort_keeps_what_was_released_and_says_what_to_do(solver, mode):
    if solver in NEVER_ABORT:
        pytest.skip("it has no test that could fail")
    size, rows_per_user, budget = size_of(mode)
    data = make_users(**size)
    rows = data.rows.copy()
    rows[data.offsets[:-1]] = np.nan  # every user has a missing value
    data = UserData(rows, data.targets, data.offsets)
    result = fit(data, rows_per_user, budget, solver=solver, mode=mode)
    if solver in OUTPUT_PERTURBATION:  # the row that is missing a value is left out, the others count
        assert not result.aborted
        assert np.all(np.isfinite(result.weights))
        return
    assert result.aborted
    np.testing.assert_array_equal(result.weights, np.zeros(4))
    for words in ("missing values", "budget", "The result is the start", "raise row_norm"):
        assert words in result.message


@EVERY
def test_too_few_users_are_told_how_many_would_do(solver, mode):
    if solver in ANY_NUMBER:
        pytest.skip("any number of users will do, for what it is worth")
    _, rows_per_user, budget = size_of(mode)
    few = 5 if solver == "bassily-sun-local" else 20  # two users a coordinate will do
    data = make_users(n_users=few)
    ledger = Ledger(budget)
    refusal = rf"Expected more than n_users={few} .*[0-9]+.*Nothing was spent\."
    with pytest.raises(BudgetExceeded, match=refusal) as error:
        fit(data, rows_per_user, budget, solver=solver, mode=mode, ledger=ledger)
    assert error.value.enough_users > few
    assert f"{error.value.enough_users:,}" in str(error.value)
    assert ledger.spent_epsilon() == 0


@EVERY
def test_without_delta_the_default_alone_has_a_plan(solver, mode):
    """docs/known-limits.md says so: all other noise is Gaussian."""
    problem, budget = Problem(losses.logistic, Ball(10.0), 4, 2.5), Budget(1.0, 0.0)
    if SOLVERS[solver, mode].pure:
        assert (solver, mode) == (AUTO, "calibrated")
        assert SOLVERS[solver, mode].plan(problem, 20_000, 10, budget).n_releases > 5
        return
    with pytest.raises(ValueError, match=r"delta"):
        SOLVERS[solver, mode].plan(problem, 20_000, 10, budget)
    refusal = str(consider(solver, mode, problem, 20_000, 10, budget).refusal)
    assert refusal == "Expected delta > 0 for this solver: the default, whitened-clip, does without. Nothing was spent."


@EVERY
def test_a_seed_repeats_and_is_recorded(solver, mode):
    size, rows_per_user, budget = size_of(mode)
    data = make_users(**size)
    ledger = Ledger(budget)
    first = fit(data, rows_per_user, budget, solver=solver, mode=mode, insecure_seed=3, ledger=ledger)
    again = fit(data, rows_per_user, budget, solver=solver, mode=mode, insecure_seed=3)
    other = fit(data, rows_per_user, budget, solver=solver, mode=mode, insecure_seed=4)
    np.testing.assert_array_equal(first.weights, again.weights)
    assert not np.array_equal(first.weights, other.weights)
    assert ledger.spent_epsilon() == np.inf


@pytest.mark.parametrize("loss", ["logistic", "huber", "hinge"])
@pytest.mark.parametrize(
    "solver", [name for (name, mode), one in SOLVERS.items() if mode == "calibrated" and not one.baseline]
)
def test_calibrated_learns_and_stays_below_its_bound(loss, solver):
    kind = "classes" if losses.loss(loss).classifies else "numbers"
    train = make_users(10_000, kind=kind, rows=(5, 15))
    result = fit(train, 15, Budget(4.0, 1e-6), loss=loss, insecure_seed=0, solver=solver)
    nothing, best = risk(losses.loss(loss), train, np.zeros(4)), best_risk(losses.loss(loss), train)
    excess = risk(losses.loss(loss), train, result.weights) - best
    assert excess < (0.01 if solver == "whitened-clip" else 0.12) * (nothing - best)
    if not SOLVERS[solver, "calibrated"].refines:
        assert excess < result.bound
    elif losses.loss(loss).smooth:  # what rounding of kinks costs is in no estimate
        assert excess < 3 * result.bound
