"""What a plan promises, in numbers and words."""

import math

import pytest

from userdp.privacy.accounting import Budget
from userdp.privacy.ledger import Ledger
from userdp.privacy.means.clip import Clip
from userdp.privacy.plan import Plan, Step
from userdp.privacy.radius import RadiusSearch
from userdp.privacy.statement import Statement, statement


def charged(plan, budget, seed=None):
    ledger = Ledger(budget)
    ledger.charge(plan, insecure_seed=seed)
    return statement(plan, budget, ledger, seed)


def test_shares_are_those_of_the_precision():
    plan = Plan(100, (Step("a", 0, 100, Clip(100, 10.0)), Step("b", 0, 100, Clip(100, 20.0, rounds=4))))
    parts = charged(plan, Budget(1.0, 1e-6)).parts
    assert [part.share for part in parts] == pytest.approx([0.5, 0.5], rel=1e-3)
    assert [part.releases for part in parts] == [1, 4]


def test_steps_on_different_users_are_each_measured_by_those_who_pay_most():
    steps = (Step("all", 0, 100, Clip(100, 20.0)), Step("x", 0, 40, Clip(40, 20.0)), Step("y", 40, 100, Clip(60, 10.0)))
    shares = [part.share for part in charged(Plan(100, steps), Budget(1.0, 1e-6)).parts]
    assert shares == pytest.approx([0.2, 0.5, 0.8], rel=1e-3)


def test_a_step_that_costs_nothing_has_no_share():
    steps = (Step("free", 0, 100, RadiusSearch(100, (1.0,), 50, 1.0)), Step("paid", 0, 100, Clip(100, 20.0)))
    parts = charged(Plan(100, steps), Budget(1.0, 1e-12)).parts
    assert [part.share for part in parts] == [0.0, 1.0]


@pytest.mark.parametrize("seed", [None, 3])
def test_it_survives_json_and_confesses_seeds(seed):
    plan = Plan(100, (Step("a", 0, 100, Clip(100, 10.0)),))
    said = charged(plan, Budget(1.0, 1e-6), seed)
    assert Statement.from_dict(said.to_dict()) == said
    assert said.private is (seed is None)
    assert ("NOT PRIVATE" in str(said)) is (seed is not None)
    assert math.isinf(said.spent_epsilon) is (seed is not None)
    assert "not a guarantee" in said.to_dict()["ledger"]["spent_epsilon_is"]
    assert "a running total" in str(said)
