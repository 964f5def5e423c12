"""One call: minimize."""

import re

import numpy as np
import pytest
from support_solvers import make_users

from userdp import Ball, Budget, BudgetExceeded, Execution, Ledger, Solver, UserData
from userdp.models import fitting
from userdp.models.fitting import minimize

ARGUMENTS = {"rows_per_user": 12}


def test_losses_by_name_and_a_shared_ledger():
    data, ledger = make_users(2000), Ledger(Budget(4.0, 1e-5))
    result = minimize("logistic", data, Ball(5.0), 3.0, 5e-6, ledger=ledger, purpose="first", **ARGUMENTS)
    assert result.weights.shape == (4,)
    assert [charge.purpose for charge in ledger.charges()] == ["first"]
    with pytest.raises(BudgetExceeded):
        minimize("logistic", data, Ball(5.0), 3.0, 5e-6, ledger=ledger, **ARGUMENTS)


def test_a_refusal_says_the_largest_epsilon_that_fits_and_the_default_solver_s_plan_does():
    data, ledger = make_users(2000), Ledger(Budget(4.0, 1e-5))
    minimize("logistic", data, Ball(5.0), 3.0, 5e-6, ledger=ledger, **ARGUMENTS)
    with pytest.raises(BudgetExceeded, match="Nothing was spent") as refused:
        minimize("logistic", data, Ball(5.0), 4.0, 1e-7, ledger=ledger, **ARGUMENTS)
    epsilon = float(re.search(r"fits up to epsilon ([0-9.]+), at delta 1e-07 or less", str(refused.value))[1])
    assert 0.5 < epsilon < 4
    with pytest.raises(BudgetExceeded):
        minimize("logistic", data, Ball(5.0), 1.02 * epsilon, 1e-7, ledger=ledger, **ARGUMENTS)
    minimize("logistic", data, Ball(5.0), epsilon, 1e-7, ledger=ledger, **ARGUMENTS)
    assert len(ledger.charges()) == 2


def test_what_is_stated_is_certified_whatever_a_solver_plans(monkeypatch):
    """A solver whose plan costs more than was asked for, and a ledger with room for it."""

    def dear(problem, n_users, rows_per_user, budget, *rest):
        return choose(problem, n_users, rows_per_user, Budget(1.2 * budget.epsilon, budget.delta), *rest)

    choose = fitting.choose
    monkeypatch.setattr(fitting, "choose", dear)
    ledger = Ledger(Budget(100.0, 1e-3))
    with pytest.raises(BudgetExceeded, match=r"needs epsilon=3.6 at delta=5e-06, expected <= 3"):
        minimize("logistic", make_users(2000), Ball(5.0), 3.0, 5e-6, ledger=ledger, **ARGUMENTS)
    assert ledger.charges() == ()
    monkeypatch.undo()
    result = minimize("logistic", make_users(2000), Ball(5.0), 3.0, 5e-6, ledger=ledger, **ARGUMENTS)
    assert (result.privacy.epsilon, result.privacy.delta) == (3.0, 5e-6)


def test_progress_is_shown_when_asked_for_and_quiet_in_pipes(capsys):
    data = make_users(2000)
    minimize("logistic", data, Ball(5.0), 3.0, 5e-6, **ARGUMENTS)
    assert capsys.readouterr() == ("", "")
    minimize("logistic", data, Ball(5.0), 3.0, 5e-6, execution=Execution(progress=True), **ARGUMENTS)
    assert "burn-in" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: minimize(
                "logistic",
                make_users(2000),
                Ball(1.0),
                4.0,
                1e-6,
                solver=Solver("phased-sgd", max_gradients=99),
                **ARGUMENTS,
            ),
            "max_gradients=99 >= 24000",
        ),
        (
            lambda: minimize("logistic", make_users(50), Ball(1.0), 1.0, 1e-6, solver="sgd", **ARGUMENTS),
            'solver="auto" or one of "accelerated", .*"phased-sgd", "whitened-clip", and mode="calibrated" or "paper"',
        ),
        (lambda: minimize("logistic", np.ones((3, 2)), Ball(1.0), 1.0, 1e-6, **ARGUMENTS), "got ndarray"),
        (lambda: minimize("nonsense", make_users(50), Ball(1.0), 1.0, 1e-6, **ARGUMENTS), "nonsense"),
        (lambda: minimize("squared", make_users(50), Ball(1.0), 1.0, 1e-6, **ARGUMENTS), "target_bound"),
        (lambda: minimize("logistic", make_users(50), Ball(1.0), -1.0, 1e-6, **ARGUMENTS), "epsilon=-1.0"),
    ],
)
def test_errors_are_clear(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()


def test_gradients_can_be_limited():
    data = make_users(2000)
    result = minimize(
        "logistic", data, Ball(5.0), 4.0, 1e-6, solver=Solver("accelerated", max_gradients=12 * 24_000), **ARGUMENTS
    )
    assert result.n_gradients <= 12 * 24_000


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            {"data": UserData.from_arrays(np.ones((4, 2)), None, np.arange(4))},
            ValueError,
            "with targets.*Nothing was spent",
        ),
        ({"domain": 10}, TypeError, "a Ball or a Box, got 10"),
        ({"warm_start": "abc"}, ValueError, "warm_start to be a vector of 2 finite numbers"),
        ({"warm_start": [[0.0, 0.0]]}, ValueError, "warm_start"),
        ({"warm_start": [20.0, 0.0]}, ValueError, "inside the domain"),
        ({"l2": -1.0}, ValueError, "l2=-1.0"),
        (
            {"l2": 1.0, "solver": Solver("phased-sgd", mode="paper")},
            ValueError,
            'for solver="phased-sgd": use solver="accelerated"',
        ),
        ({"solver": Solver(row_norm="2")}, ValueError, "row_norm='2'"),
    ],
)
def test_wrong_arguments_are_named_and_cost_nothing(change, error, message):
    data = UserData(np.ones((4, 2)), np.ones(4), np.arange(5))
    ledger = Ledger(Budget(1.0, 1e-6))
    public = {"rows_per_user": 1, "ledger": ledger}
    arguments = {"loss": "logistic", "data": data, "domain": Ball(10.0), "epsilon": 1.0, "delta": 1e-6} | public
    with pytest.raises(error, match=message):
        minimize(**(arguments | change))
    assert ledger.spent_epsilon() == 0


@pytest.mark.parametrize("solver", ["phased-sgd", "accelerated"])
def test_hopeless_budgets_are_refused_at_once(solver):
    data = UserData(np.ones((2000, 2)), np.ones(2000), np.arange(2001))
    for epsilon in (1e-9, 1e-3, 0.02):
        with pytest.raises(BudgetExceeded, match="Expected"):
            minimize("logistic", data, Ball(10.0), epsilon, 1e-6, solver=Solver(solver, row_norm=2.0), rows_per_user=1)
