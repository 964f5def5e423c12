"""delta=None means a public function of the number of users, everywhere, and is shown."""

import json

import numpy as np
import pytest
from sklearn.base import clone
from support_cli import run

from userdp import Ball, Budget, Ledger, LogisticRegression, PrivateStandardScaler, Solver, UserData, minimize
from userdp.models.means import private_mean

N_USERS = 20_000
DELTA = N_USERS**-1.5


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (N_USERS, 2))
    return X, X[:, 0] > X[:, 1], np.arange(N_USERS)


def test_estimators_leave_it_open_until_they_are_fitted(rows):
    X, y, users = rows
    model = LogisticRegression(2.0, insecure_seed=0)
    assert (model.delta, clone(model).delta) == (None, None)
    model.fit(X, y, groups=users)
    assert model.delta is None
    assert model.privacy_.delta == model.privacy_.ledger_delta == DELTA
    assert "(2, 3.53554e-07)-differential privacy" in str(model.privacy_)
    assert model.to_dict()["parameters"]["delta"] is None


@pytest.mark.filterwarnings("ignore::userdp.UtilityWarning")  # noise hides much of so few users
def test_few_users_get_a_millionth(rows):
    X, y, users = rows
    model = LogisticRegression(2.0, insecure_seed=0).fit(X[:3000], y[:3000], groups=users[:3000])
    assert model.privacy_.delta == 1e-6


def test_a_ledger_that_is_given_keeps_its_own(rows):
    X, y, users = rows
    ledger = Ledger(Budget(4.0, 1e-5))
    model = LogisticRegression(2.0, ledger=ledger).fit(X, y, groups=users)
    assert (model.privacy_.delta, model.privacy_.ledger_delta) == (DELTA, 1e-5)
    assert ledger.spent_epsilon() < 2.0  # less at its larger delta


def test_functions_and_scalers_have_it_too(rows):
    X, y, users = rows
    data = UserData.from_arrays(X, y, users)
    found = minimize("logistic", data, Ball(10.0), 2.0, solver=Solver(row_norm=1.5), rows_per_user=1, insecure_seed=0)
    assert found.privacy.delta == DELTA
    assert private_mean(X, users, 2.0, insecure_seed=0).privacy.delta == DELTA
    scaler = PrivateStandardScaler(2.0, low=-1, high=1, insecure_seed=0).fit(X, groups=users)
    assert scaler.delta is None
    assert scaler.privacy_.delta == DELTA


def test_rows_of_different_people_count_as_users(rows):
    X, y, _ = rows
    assert LogisticRegression(2.0, privacy_unit="row", insecure_seed=0).fit(X, y).privacy_.delta == DELTA


def test_nonsense_is_refused_before_data_is_read():
    with pytest.raises(ValueError, match="epsilon"):
        LogisticRegression(-1.0).fit(None, [0, 1], groups=[1, 2])
    with pytest.raises(ValueError, match="delta"):
        private_mean([[1.0]], [1], 1.0, 2.0)


def test_the_command_line_has_it_too(tmp_path):
    table = tmp_path / "people.csv"
    lines = [f"u{k},{k % 7 / 7:.3f},{int(k % 7 > 3)}" for k in range(N_USERS)]
    table.write_text("user,x,flag\n" + "\n".join(lines) + "\n")
    columns = ("--user-column", "user", "--target", "flag", "--features", "x", "--classes", "0,1", "--epsilon", "2")
    planned = json.loads(run("fit", table, *columns, "--max-rows-per-user", "1", "--dry-run", "--json").stdout)
    assert planned["delta"] == DELTA
    model = tmp_path / "model.json"
    fitted = run("fit", table, *columns, "--max-rows-per-user", "1", "-o", model)
    assert "delta 3.53554e-07 for each of 20,000 users" in fitted.stdout
    scored = ("evaluate", model, table, "--target", "flag", "--user-column", "user", "--epsilon", "2", "--json")
    assert json.loads(run(*scored).stdout)["privacy"]["delta"] == DELTA
    public = ("plan", "--users", "20000", "--rows-per-user", "1", "--features", "1", "--epsilon", "2")
    assert json.loads(run(*public, "--json").stdout)["delta"] == DELTA
    shown = run(*public).stdout
    assert f"At epsilon 2, delta {DELTA:g}, where one user" in shown
    assert "which only phased-sgd and accelerated have, are theorems" in " ".join(shown.split())
