"""Estimators without delta: what is said is true, and files, ledgers, reports and commands take it."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import userdp
from userdp import Budget, BudgetExceeded, Ledger, load_model, save_model
from userdp.cli import app
from userdp.privacy.statement import Statement
from userdp.report import report_html


@pytest.fixture(scope="module")
def people():
    rng = np.random.default_rng(0)
    users, X = np.repeat(np.arange(3000), 4), rng.uniform(-1, 1, (12_000, 2))
    return X, X[:, 0] > X[:, 1], users


def model(people, kind=userdp.LogisticRegression, **more):
    X, y, users = people
    declared = {"classes": [0, 1]} if kind is not userdp.LinearRegression else {"target_range": (0, 1)}
    return kind(epsilon=4, delta=0, max_rows_per_user=4, **declared | more).fit(X, y, groups=users)


@pytest.fixture(scope="module")
def fitted(people):
    return model(people)


def test_a_fit_says_what_it_guarantees_and_spends(fitted):
    said = fitted.privacy_
    assert (said.epsilon, said.delta, said.private) == (4.0, 0.0, True)
    assert {part.record["laplace"] for part in said.parts} == {True}
    assert sum(part.fraction for part in said.parts) == pytest.approx(1)
    assert sum(part.epsilon_alone for part in said.parts) == pytest.approx(4)
    assert said.spent_epsilon == pytest.approx(4)
    assert str(said).startswith(
        "replace-one: (4, 0)-differential privacy where one user's whole data is replaced by any other;"
    )
    assert "mu-GDP" not in str(said)
    assert said.tradeoff.failure == 0
    assert said.tradeoff.added_epsilon == pytest.approx(2), "adding a user moves a total half as far"
    assert all(epsilon <= 4 for _, epsilon in said.tradeoff.epsilons)
    assert 0.5 < said.tradeoff.right_guess < 1 / (1 + np.exp(-4))


def test_files_and_reports_take_it(fitted, tmp_path):
    again = load_model(save_model(fitted, tmp_path / "model.json"))
    assert again.privacy_ == fitted.privacy_
    assert Statement.from_dict(json.loads(json.dumps(fitted.privacy_.to_dict()))) == fitted.privacy_
    words = report_html(json.loads((tmp_path / "model.json").read_text()))
    assert "by at most a factor of 54.6." in words
    assert "chance of 1 in" not in words


@pytest.mark.parametrize("kind", [userdp.LinearRegression, userdp.LinearSVC])
def test_every_estimator_takes_it(people, kind):
    assert model(people, kind, insecure_seed=1).coef_.flat[0] > 0


def test_a_ledger_without_delta_adds_up_epsilons(people, tmp_path):
    ledger = Ledger(Budget(8.5, 0.0), tmp_path / "ledger.db")
    for spent in (4, 8):
        model(people, ledger=ledger)
        assert Ledger.open(tmp_path / "ledger.db").spent_epsilon() == pytest.approx(spent)
    with pytest.raises(BudgetExceeded, match=r"needs epsilon=12 at delta=0, expected <= 8\.5"):
        model(people, ledger=ledger)


def test_the_papers_solvers_say_who_does_without(people):
    with pytest.raises(BudgetExceeded, match="the default, whitened-clip, does without"):
        model(people, solver="phased-sgd")


def test_the_command_line_plans_it():
    size = ["--users", "20000", "--rows-per-user", "5", "--features", "10"]
    ended = CliRunner().invoke(app, ["plan", *size, "--epsilon", "1", "--delta", "0", "--json"])
    assert ended.exit_code == 0
    told = json.loads(ended.stdout)
    assert (told["choice"], told["delta"]) == ("whitened-clip", 0)
    assert [option["solver"] for option in told["options"] if option["feasible"]] == ["whitened-clip"]


def test_the_command_line_fits_it(people, tmp_path):
    X, y, users = people
    lines = [f"u{user},{a},{b},{int(label)}" for user, (a, b), label in zip(users, X, y, strict=True)]
    (tmp_path / "table.csv").write_text("\n".join(["user,a,b,bought", *lines]))
    named = [
        "--target",
        "bought",
        "--features",
        "a,b",
        "--user-column",
        "user",
        "--classes",
        "0,1",
        "--max-rows-per-user",
        "4",
    ]
    asked = [*named, "--epsilon", "4", "--delta", "0", "--output", str(tmp_path / "model.json")]
    ended = CliRunner().invoke(app, ["fit", str(tmp_path / "table.csv"), *asked])
    assert ended.exit_code == 0, ended.output
    assert load_model(tmp_path / "model.json").privacy_.delta == 0
