"""Solvers of another package: known by name once registered, and never taken by default."""

import pytest

import userdp
from userdp.auditing import auditable
from userdp.auditing.pairs import mean_pairs
from userdp.auditing.priced import clip
from userdp.privacy.accounting import Budget, BudgetExceeded
from userdp.report.wording import how
from userdp.solvers import solver as registry
from userdp.solvers.planner import choose, consider, public_problem
from userdp.solvers.solver import SOLVERS, Planner, register

OTHER = Planner("userdp.paper.phased_sgd:plan_phased_sgd", baseline=True)
PROBLEM, BUDGET = public_problem("logistic", 5), Budget(2.0, 1e-6)


def attacks(budget):
    return mean_pairs("OtherClip", clip(budget))


@pytest.fixture(autouse=True)
def forgotten():
    """What a test registers is forgotten after it."""
    before = dict(registry.SOLVERS), dict(registry.WORDS), list(registry.ATTACKS)
    yield
    for held, old in zip((registry.SOLVERS, registry.WORDS), before[:2], strict=True):
        held.clear()
        held.update(old)
    registry.ATTACKS[:] = before[2]


def test_a_solver_is_known_by_name_and_is_no_default():
    with pytest.raises(ValueError, match=r"got solver='other'"):
        consider("other", "calibrated", PROBLEM, 5000, 5, BUDGET)
    userdp.register({("other", "calibrated"): OTHER})
    assert consider("other", "calibrated", PROBLEM, 5000, 5, BUDGET).feasible
    assert choose(PROBLEM, 5000, 5, BUDGET).solver == "whitened-clip"
    shown = [option.solver for option in userdp.plan(5000, 5, 4, 2.0, 1e-6).options]
    assert "other" not in shown
    assert "other" in [option.solver for option in userdp.plan(5000, 5, 4, 2.0, 1e-6, baselines=True).options]


def twice_as_much(problem, n_users, rows_per_user, budget):
    """A planner that does not care what the budget is."""
    twice = Budget(2 * budget.epsilon, budget.delta)
    return SOLVERS["phased-sgd", "calibrated"].plan(problem, n_users, rows_per_user, twice)


def test_a_plan_beyond_the_budget_is_refused_whoever_made_it():
    register({("twice", "calibrated"): Planner(f"{__name__}:twice_as_much")})
    assert isinstance(consider("twice", "calibrated", PROBLEM, 5000, 5, BUDGET).refusal, BudgetExceeded)


def test_a_known_name_is_not_given_to_another_solver():
    register({("other", "calibrated"): OTHER})
    register({("other", "calibrated"): OTHER})  # once more is the same
    with pytest.raises(ValueError, match="solver='whitened-clip', mode='calibrated' to be a new one"):
        register({("unheard-of", "calibrated"): OTHER, ("whitened-clip", "calibrated"): OTHER})
    assert ("unheard-of", "calibrated") not in registry.SOLVERS
    assert registry.SOLVERS["whitened-clip", "calibrated"].pure


def test_its_mechanisms_are_told_in_reports_and_attacked_by_the_audit():
    step = {"mechanism": "other-clip"}
    assert how(step) == "See the record below."
    register({}, {"other-clip": "Each contribution is clipped in another way."}, attacks)
    register({}, {}, attacks)
    assert how(step) == "Each contribution is clipped in another way."
    assert "OtherClip" in auditable()[1]
    assert registry.ATTACKS.count(attacks) == 1
