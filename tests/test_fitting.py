"""One call: minimize."""

import numpy as np
import pytest
from support_solvers import make_users

from userdp import Ball, Budget, BudgetExceeded, Ledger
from userdp.fitting import find_solver, minimize

ARGUMENTS = {"row_norm": 2.5, "rows_per_user": 12}


def test_losses_by_name_and_a_shared_ledger():
    data, ledger = make_users(2000), Ledger(Budget(4.0, 1e-5))
    result = minimize("logistic", data, Ball(5.0), 3.0, 5e-6, ledger=ledger, purpose="first", **ARGUMENTS)
    assert result.weights.shape == (4,)
    assert [charge.purpose for charge in ledger.charges()] == ["first"]
    with pytest.raises(BudgetExceeded):
        minimize("logistic", data, Ball(5.0), 3.0, 5e-6, ledger=ledger, **ARGUMENTS)


def test_progress_is_shown_when_asked_for_and_quiet_in_pipes(capsys):
    data = make_users(2000)
    minimize("logistic", data, Ball(5.0), 3.0, 5e-6, **ARGUMENTS)
    assert capsys.readouterr() == ("", "")
    minimize("logistic", data, Ball(5.0), 3.0, 5e-6, progress=True, **ARGUMENTS)
    assert "phase 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: minimize("logistic", make_users(2000), Ball(1.0), 4.0, 1e-6, max_gradients=99, **ARGUMENTS),
            "max_gradients=99 >= 24000",
        ),
        (lambda: find_solver("sgd", "tight"), 'solver="phased-sgd", mode="paper"'),
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
        "logistic", data, Ball(5.0), 4.0, 1e-6, solver="accelerated", max_gradients=12 * 24_000, **ARGUMENTS
    )
    assert result.n_gradients <= 12 * 24_000
