"""What Theorems 2.1, 3.1, 3.2 and 4.1 assume: each hypothesis held and broken, and what plans show of it."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

import userdp
from userdp import Ball, Budget, BudgetExceeded, Curator, Ledger, UserData, losses
from userdp.cli import app
from userdp.paper import accelerated_paper, paper_theorems, phased_sgd_paper
from userdp.privacy.accounting import epsilon_at
from userdp.solvers.problem import Problem
from userdp.solvers.solver import run

N, M, BUDGET = 1_000_000, 2, Budget(10.0, 1e-7)
SMOOTH = Problem(losses.logistic, Ball(1.0), n_features=3, row_norm=2.0)  # R = 2, L = 2, beta = 1
HINGE = Problem(losses.hinge, Ball(1.0), n_features=3, row_norm=2.0)
PLANNERS = {
    "phased-sgd": phased_sgd_paper.plan_paper_phased_sgd,
    "accelerated": accelerated_paper.plan_paper_accelerated,
}
EPS, DELTA, SMOOTH_LOSS = "eps <= 10", "0 < delta < 1/(m n)", "a smooth loss"
BETA = "beta <= (L/R) sqrt(d m n eps)"


def broken(theorem, problem=SMOOTH, n_users=N, rows_per_user=M, budget=BUDGET):
    return [words for words, holds in theorem(problem, n_users, rows_per_user, budget).items() if not holds]


@pytest.mark.parametrize(
    ("theorem", "problem"),
    [
        (paper_theorems.theorem_2_1, SMOOTH),
        (paper_theorems.theorem_3_1, SMOOTH),
        (paper_theorems.theorem_3_2, SMOOTH),
        (paper_theorems.theorem_4_1, HINGE),
    ],
)
def test_theorems_2_1_3_1_3_2_and_4_1_hold_and_assume_eps_at_most_10(theorem, problem):
    assert broken(theorem, problem) == []
    assert broken(theorem, problem, budget=Budget(10.001, 1e-7)) == [EPS]
    assert any("delta" in words for words in broken(theorem, problem, budget=Budget(10.0, 0.0)))


def test_theorem_2_1_assumes_a_smooth_loss_and_beta():
    assert broken(paper_theorems.theorem_2_1, HINGE) == [SMOOTH_LOSS, BETA]
    # beta R / L = 2/(2 width) = 1/width against sqrt(d m n eps)
    largest = math.sqrt(3 * M * N * 10)
    for factor, expected in ((0.999, []), (1.001, [BETA])):
        steep = replace(SMOOTH, loss=losses.smoothed_hinge(2.0 / (largest * factor)))
        ratio = steep.loss.smoothness(2.0) * 2.0 / steep.lipschitz
        assert ratio == pytest.approx(largest * factor * 2)
        assert broken(paper_theorems.theorem_2_1, steep, rows_per_user=4 * M) == expected


def last_phase(n):
    q = math.log2(1 + 1 / math.floor(math.log2(n)))
    return n ** (1 - q) * (1 - 2**-q)


@pytest.mark.parametrize(("n_users", "holds"), [(2, False), (1, False), (10**4, False), (10**7, True)])
def test_theorems_2_1_3_1_and_4_1_n_is_large_enough(n_users, holds):
    """n^(1-q) (1 - 2^-q) eps against 100 ln(n/delta), and against 100 ln(20 n m d e^eps / delta)."""
    budget = Budget(1.0, 1e-12)
    first, second = (f"n^(1-q) {sign} 100 ln(" for sign in (">=", ">"))
    if n_users > 1:
        assert (last_phase(n_users) >= 100 * math.log(n_users / 1e-12)) is holds
        assert (last_phase(n_users) > 100 * (math.log(20 * n_users * M * 3 / 1e-12) + 1)) is holds
    for theorem, problem, words in (
        (paper_theorems.theorem_2_1, SMOOTH, first),
        (paper_theorems.theorem_3_1, SMOOTH, second),
        (paper_theorems.theorem_4_1, HINGE, second),
    ):
        found = theorem(problem, n_users, M, budget)
        assert [value for key, value in found.items() if key.startswith(words)] == [holds]


@pytest.mark.parametrize("theorem", [paper_theorems.theorem_2_1, paper_theorems.theorem_3_1])
def test_theorems_2_1_and_3_1_n_is_large_enough_from_the_printed_number_on(theorem):
    """At the largest epsilon that still is too small, and 0.1% above it."""
    logs = math.log(N / 1e-7) if theorem is paper_theorems.theorem_2_1 else math.log(20 * N * M * 3 / 1e-7)
    more = 0 if theorem is paper_theorems.theorem_2_1 else 1  # ln e^eps
    epsilon = 100 * logs / (last_phase(N) - 100 * more)
    assert len(broken(theorem, budget=Budget(0.999 * epsilon, 1e-7))) == 1
    assert broken(theorem, budget=Budget(1.001 * epsilon, 1e-7)) == []


def test_theorems_3_2_and_4_1_assume_delta_below_one_over_mn():
    for theorem, problem in ((paper_theorems.theorem_3_2, SMOOTH), (paper_theorems.theorem_4_1, HINGE)):
        assert broken(theorem, problem, budget=Budget(10.0, 0.999 / (M * N))) == []
        assert broken(theorem, problem, budget=Budget(10.0, 1 / (M * N))) == [DELTA]
    at = Budget(10.0, 2 / (M * N))
    assert broken(paper_theorems.theorem_2_1, budget=at) == broken(paper_theorems.theorem_3_1, budget=at) == []


def test_theorem_3_2_assumes_a_smooth_loss_without_penalty():
    assert broken(paper_theorems.theorem_3_2, HINGE) == [SMOOTH_LOSS]
    assert broken(paper_theorems.theorem_3_2, replace(SMOOTH, l2=0.1)) == ["l2 = 0"]
    assert broken(paper_theorems.theorem_4_1, replace(HINGE, l2=0.1)) == ["l2 = 0"]


def test_theorem_4_1_assumes_a_lipschitz_loss_around_the_domain():
    """A slope that grows with predictions is steeper outside of the domain than inside."""
    growing = replace(losses.hinge, slope_bound=lambda prediction, target: 1.0 + prediction)
    words = "an L-Lipschitz loss within r of the domain"
    assert broken(paper_theorems.theorem_4_1, replace(HINGE, loss=growing)) == [words]


@pytest.mark.parametrize("solver", PLANNERS)
def test_plans_beyond_epsilon_10_are_private_and_say_what_they_are_outside_of(solver):
    theorems = {"phased-sgd": ["Theorem 2.1"], "accelerated": ["Theorem 3.1", "Theorem 3.2"]}[solver]
    assert PLANNERS[solver](SMOOTH, N, M, BUDGET).outside == ()
    for epsilon in (12.0, 30.0, 100.0):
        made = PLANNERS[solver](SMOOTH, N, M, Budget(epsilon, 1e-7))
        assert made.outside == tuple(f"outside of {name}: {EPS}" for name in theorems)
        assert all(epsilon_at(cost, 1e-7) <= epsilon for cost in made.certified.costs)


@pytest.mark.parametrize("solver", PLANNERS)
def test_only_what_breaks_privacy_is_refused(solver):
    assert PLANNERS[solver](HINGE, N, M, Budget(10.0, 1e-3)).outside
    with pytest.raises(BudgetExceeded, match="Expected delta > 0"):
        PLANNERS[solver](SMOOTH, N, M, Budget(1.0, 0.0))
    for epsilon in (800.0, 1e6):  # where a user may decide who is kept
        with pytest.raises(ValueError, match="selection_failure must be finite and > 0"):
            PLANNERS[solver](SMOOTH, N, M, Budget(epsilon, 1e-7))


def test_theorems_2_1_and_4_1_of_a_hinge_loss_in_plans():
    first = PLANNERS["phased-sgd"](HINGE, N, M, BUDGET)
    assert first.outside == (f"outside of Theorem 2.1: {SMOOTH_LOSS}, {BETA}",)
    assert PLANNERS["accelerated"](HINGE, N, M, BUDGET).outside == ()
    late = PLANNERS["accelerated"](HINGE, N, M, Budget(10.0, 1e-6))
    assert late.outside == (f"outside of Theorem 4.1: {DELTA}",)


def test_another_factor_of_k_i_than_the_printed_one_is_told():
    whole = PLANNERS["accelerated"](SMOOTH, N, M, BUDGET)
    words = "K_i with 2 for the printed 500 ln(n_i^2 m^2 e^eps / delta)"
    assert PLANNERS["accelerated"](SMOOTH, N, M, BUDGET, factor=2.0).outside == (words,)
    (limited,) = PLANNERS["accelerated"](SMOOTH, N, M, BUDGET, max_gradients=whole.n_gradients - 1).outside
    assert limited.startswith("K_i with ")
    assert PLANNERS["accelerated"](SMOOTH, N, M, BUDGET, max_gradients=whole.n_gradients).outside == ()


def test_a_bound_outside_of_its_theorem_is_an_estimate():
    numbers = {"n_users": N, "rows_per_user": M, "n_features": 3, "delta": 1e-7}
    for epsilon, told in ((10.0, False), (12.0, True)):
        options = {(o.solver, o.mode): o for o in userdp.plan(epsilon=epsilon, **numbers).options}
        assert options["phased-sgd", "paper"].estimated is told
        assert options["phased-sgd", "calibrated"].estimated is False
    rng, n = np.random.default_rng(0), 12_500
    data = UserData(rng.normal(size=(n, 3)), rng.integers(0, 2, n).astype(float), np.arange(n + 1))
    for loss, told in ((losses.logistic, False), (losses.hinge, True)):
        problem = Problem(loss, Ball(1.0), n_features=3, row_norm=2.0)
        made = PLANNERS["phased-sgd"](problem, n, 1, Budget(10.0, 1e-4))
        result = run(problem, made, Curator(data, made.certified, Ledger(Budget(10.0, 1e-4))))
        assert result.outside == made.outside
        assert replace(result, solver="phased-sgd").bound_is_estimate is told


def test_plans_show_it():
    words = f"phased-sgd, paper: outside of Theorem 2.1: {EPS}."
    assert words in str(userdp.plan(N, M, 3, 12.0, 1e-7))
    assert "outside" not in str(userdp.plan(N, M, 3, 10.0, 1e-7))
    line = ["plan", "--users", str(N), "--rows-per-user", str(M), "--features", "3", "--epsilon", "12"]
    shown = CliRunner().invoke(app, [*line, "--delta", "1e-7"])
    assert shown.exit_code == 0
    assert words in " ".join(shown.output.split())
    told = json.loads(CliRunner().invoke(app, [*line, "--delta", "1e-7", "--json"]).output)
    outside = {(option["solver"], option["mode"]): option["outside"] for option in told["options"]}
    assert outside["phased-sgd", "paper"] == [f"outside of Theorem 2.1: {EPS}"]
    assert outside["accelerated", "paper"] == [f"outside of Theorem 3.{k}: {EPS}" for k in (1, 2)]
    assert outside["whitened-clip", "calibrated"] == outside["phased-sgd", "calibrated"] == []
