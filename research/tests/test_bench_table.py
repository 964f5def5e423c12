"""The table: slopes from plans, risk from runs, assumptions from numbers."""

import json
import math

import pytest
from support_bench import run

from userdp import Ball, Budget, losses
from userdp.solvers.problem import Problem
from userdp.solvers.solver import SOLVERS
from userdp_research.bench import table
from userdp_research.bench.generated import generate
from userdp_research.bench.references import mean_loss, optimum, user_optimum
from userdp_research.bench.solving import entries
from userdp_research.bench.summary import exponent_rows, refusals, risk_rows
from userdp_research.bench.table import EXPONENTS, assumptions, measure_table, slope, table_cells


def test_a_slope_is_the_exponent():
    assert slope([1, 10, 100], [5, 5 * 10**1.5, 5 * 10**3]) == pytest.approx(1.5)


def test_phased_sgd_takes_as_many_gradients_as_rows(monkeypatch):
    monkeypatch.setattr(table, "_SIZES", {"n": [1e5, 3e5, 1e6]})
    settings = {"command": "table", "part": "slopes", "loss": "smooth", "against": "n", "solver": "phased-sgd"}
    result = measure_table(settings, {})
    assert result["exponent"] == pytest.approx(1.0, abs=0.01)
    assert result["theorem"] == 1
    assert result["gradients"] == pytest.approx([100 * n for n in result["sizes"]], rel=0.01)


def test_sizes_without_a_plan_are_left_out(monkeypatch):
    monkeypatch.setattr(table, "_SIZES", {"n": [1e3, 1e4, 1e6]})
    settings = {"command": "table", "part": "slopes", "loss": "smooth", "against": "n", "solver": "phased-sgd:paper"}
    result = measure_table(settings, {})
    assert (result["sizes"], result["exponent"]) == ([1e6], None)
    assert "needs about" in result["refusal"]


def test_the_table_varies_one_number_at_a_time():
    cells = table_cells(entries(), [10, 20], [3], [2, 4], [1.0, 0.5], 1e-6, 5)
    risks = [cell.settings for cell in cells if cell.settings["part"] == "risk"]
    sizes = dict.fromkeys((s["users"], s["rows"], s["features"], s["epsilon"]) for s in risks)
    assert list(sizes) == [(10, 3, 2, 1.0), (20, 3, 2, 1.0), (10, 3, 4, 1.0), (10, 3, 2, 0.5)]
    assert {s["loss"] for s in risks} == {"logistic", "hinge", "strongly convex"}
    assert {s["solver"] for s in risks} == set(entries())
    assert "auto" not in {cell.settings["solver"] for cell in cells if cell.settings["part"] == "slopes"}


@pytest.mark.slow
def test_a_tiny_table(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "_SIZES", {"n": [1e5, 3e5, 1e6], "m": [10, 30, 100], "beta": [1, 10, 100]})
    monkeypatch.setattr(table, "_TEST_USERS", 500)
    out, sizes = tmp_path / "t.json", ("--users", "1000", "--rows-per-user", "5", "--features", "3", "--epsilon", "4")
    solvers = ("--solvers", "phased-sgd,phased-sgd:paper,whitened-clip", "--repeats", "2")
    result = run("table", *solvers, *sizes, "--out", out, "--plot", tmp_path / "pictures")
    assert result.exit_code == 0, result.output
    cells = json.loads(out.read_text())["cells"]
    assert len(cells) == 5 * 3 + 3 * 3
    assert not any("error" in cell["result"] for cell in cells)
    risks = {(c["settings"]["solver"], c["settings"]["loss"]): c["result"] for c in cells if "users" in c["settings"]}
    measured = risks["whitened-clip", "logistic"]
    assert 0 < measured["excess"]["mean"] < measured["nothing_learned"]
    assert measured["excess"]["spread"] > 0
    assert 0 < measured["yard"] < measured["nothing_learned"]
    assert "yard" not in risks["whitened-clip", "strongly convex"]
    assert "needs about" in risks["phased-sgd:paper", "logistic"]["refusal"]
    assert risks["whitened-clip", "strongly convex"]["excess"]["mean"] > 0
    assert risks["phased-sgd", "strongly convex"]["excess"]["mean"] > 0
    assert "l2" in risks["phased-sgd:paper", "strongly convex"]["refusal"]
    assert risks["phased-sgd", "hinge"]["assumptions"].endswith("a smooth loss; beta <= (L/R) sqrt(d m n eps)")
    assert risks["phased-sgd", "logistic"]["assumptions"].startswith("broken: n^(1-q) >= 100 ln(n/delta)")
    assert (tmp_path / "pictures" / "slopes.svg").exists()
    head, rows = exponent_rows(cells)
    assert head[1:] == ["smooth, n", "smooth, m", "smooth, beta", "non-smooth, n", "non-smooth, m"]
    assert {row[0]: row[1] for row in rows}["phased-sgd"] == "1.00 (1)"
    assert len(risk_rows(cells)[1]) == 3
    assert any(line.startswith("phased-sgd:paper: Expected l2") for line in refusals(cells))


def test_assumptions_follow_the_numbers():
    problem, budget = Problem(losses.logistic, Ball(0.5), 100, 1.0), Budget(1.0, 1e-6)
    # beta R / L = 1/4
    assert assumptions("bassily-sun-local", problem, 10_000, 10, budget) == "hold"
    assert "m <= d / eps^2" in assumptions("bassily-sun-local", problem, 10_000, 101, budget)
    assert "n >= sqrt(d)" in assumptions("bassily-sun", problem, 9, 1, budget)
    assert assumptions("accelerated", problem, 10**6, 10, Budget(10.0, 1e-8)) == "hold"
    assert assumptions("accelerated", problem, 10**6, 10, Budget(11.0, 1e-8)) == "broken: eps <= 10"
    assert assumptions("phased-sgd", problem, 10**6, 10, Budget(11.0, 1e-8)) == "broken: eps <= 10"
    assert assumptions("whitened-clip", problem, 10, 10, budget) == "no theorem"
    hinge = Problem(losses.hinge, Ball(0.5), 100, 1.0)
    assert assumptions("group-privacy", hinge, 10, 10, budget) == "broken: a smooth loss"


def test_exponents_are_the_papers():
    assert EXPONENTS["accelerated", "smooth"] == {"n": 9 / 8, "m": 9 / 8, "beta": 1 / 4}
    assert EXPONENTS["accelerated", "kinks"] == {"n": 11 / 8, "m": 5 / 4}
    assert EXPONENTS["asi-liu", "kinks"] == {"n": 3, "m": 3}
    assert {"phased-sgd", "accelerated"} <= {solver for solver, _ in EXPONENTS} & {name for name, _ in SOLVERS}


def test_references_are_the_best():
    data, truth = generate(losses.logistic, 500, 10, 3, seed=1)
    best = mean_loss(losses.logistic, data, optimum(losses.logistic, data))
    assert best == pytest.approx(mean_loss(losses.logistic, data, user_optimum(losses.logistic, data)), abs=1e-7)
    assert best <= mean_loss(losses.logistic, data, truth)
    sharp = optimum(losses.hinge, data)
    for direction in (0.05, -0.05):
        for place in range(3):
            moved = sharp.copy()
            moved[place] += direction
            assert mean_loss(losses.hinge, data, sharp) < mean_loss(losses.hinge, data, moved)
    penalised = optimum(losses.logistic, data, l2=0.5)
    assert math.hypot(*penalised) < math.hypot(*user_optimum(losses.logistic, data))


@pytest.mark.parametrize(
    ("kind", "against", "exponent"),
    [
        ("smooth", "n", 9 / 8),
        ("smooth", "m", 9 / 8),
        ("smooth", "beta", 1 / 4),
        ("kinks", "n", 11 / 8),
        ("kinks", "m", 5 / 4),
    ],
)
def test_theorems_3_2_and_4_1_exponents_of_plans_that_sample(kind, against, exponent):
    """As `userdp-bench table` shows them."""
    found = table.measure_table({"part": "slopes", "solver": "accelerated:paper", "loss": kind, "against": against}, {})
    assert found["theorem"] == exponent
    assert abs(found["exponent"] - exponent) < 0.1
