"""Alg. 2 and 3, Theorems 3.1, 3.2 and 4.1 and Lemma 3.5 of the paper, formula by formula."""

import math

import numpy as np
import pytest
from cases import name
from support import SilentNoise
from support_algorithms import BETA, BUDGET, CASES, D, L, M, N, R, plan, problem

from userdp import Ball, Budget, BudgetExceeded, losses
from userdp.paper import accelerated_paper as paper
from userdp.privacy.accounting import epsilon_at


def test_the_problem_of_these_tests_has_beta_R_equal_to_L():
    assert losses.logistic.smoothness(2.0) == BETA
    assert Ball(1.0).diameter == R
    assert BETA * R == L


# --- Alg. 3 -----------------------------------------------------------------------------------------------------------


def test_alg_3_line_2_radius():
    assert paper.radius(L, D, N, M) == pytest.approx(2.0 * math.log(12_500 * 3 * 2) / math.sqrt(2))
    assert paper.radius(L, D, N, 100) == pytest.approx(2.0 * math.log(12_500 * 3 * 100) / 10)


def test_alg_3_line_1_and_theorem_3_2_lambda():
    first = paper.first_regularizer(L, 5.0, D, 400, 9, 0.5)
    assert first == pytest.approx(2.0 / 5.0 * (1 / 60 + math.sqrt(3) / (0.5 * 400 * 3)))


def printed_batch(users, steps, rows, budget):
    return paper.users_per_step(users, rows, steps, budget)


def test_alg_3_line_4_batch():
    expected = 500 * math.log(829**2 * M**2 * math.e**10 / 1e-4) * (1 / 10 + 829 * 10 / math.sqrt(64 * math.log(1e4)))
    assert printed_batch(829, 64, M, BUDGET) == pytest.approx(expected)


@pytest.mark.parametrize(("n_users", "rows", "budget"), [(N, M, BUDGET), (10**6, 100, Budget(1.0, 1e-6))])
@pytest.mark.parametrize("loss", [losses.logistic, losses.hinge], ids=name)
def test_alg_3_line_4_and_alg_2_line_3_and_theorem_4_1_batch_exceeds_the_users_of_every_phase(
    n_users, rows, budget, loss
):
    """So all users take part in every step."""
    made = paper.plan_paper_accelerated(problem(loss), n_users, rows, budget)
    for phase in made.phases:
        assert printed_batch(phase.n_users, phase.n_steps, rows, budget) > phase.n_users
        assert phase.users_a_step == phase.n_users


def test_alg_3_line_4_batch_needs_millions_of_steps_to_be_a_sample():
    """K_i < n_i asks for sqrt(T_i ln(1/delta)) > 500 eps ln(..), whatever n_i is."""
    budget = Budget(1.0, 1e-6)
    assert printed_batch(10**6, 10**6, 10, budget) > 10**6
    assert printed_batch(10**6, 10**8, 10, budget) < 10**6


def test_alg_3_line_4_batch_is_a_sample_as_printed_where_steps_are_so_many():
    """A non-smooth loss and 4 10^7 users: the first phase samples, with K_i and sigma_i as printed."""
    budget, n, m = Budget(0.5, 1e-6), 4 * 10**7, 100
    asked = problem(losses.hinge)
    made = paper.plan_paper_accelerated(asked, n, m, budget)
    phase, step = made.phases[0], made.certified.steps[0]
    assert phase.users_a_step == pytest.approx(printed_batch(phase.n_users, phase.n_steps, m, budget))
    assert phase.users_a_step < phase.n_users
    assert step.mechanism.kind == "sampled-paper-outlier-removal"
    assert step.mechanism.sampling_probability == phase.sampling_probability
    assert (step.mechanism.test_scale, step.mechanism.rounds) == (32.0, phase.n_steps)
    tau = paper.radius(asked.lipschitz, asked.dimension, n, m)
    logs = math.log(n * asked.dimension * math.exp(0.5) / 1e-6)
    sigma = 1000 * tau * math.sqrt(phase.n_steps) * logs / (0.5 * phase.n_users)
    assert step.mechanism.noise_ratio * phase.radius == pytest.approx(sigma)
    assert phase.variance == pytest.approx(
        asked.lipschitz**2 * math.log(n * asked.dimension * m) / (phase.users_a_step * m)
    )
    assert made.phases[-1].sampling_probability == 1, "the last phases have few steps"


def test_alg_3_line_4_batch_has_a_smaller_factor_where_gradients_are_few():
    """The largest factor that they allow; each step has users enough for its test, and the plan is certified."""
    budget, n, m = Budget(1.0, 1e-6), 10**6, 100
    whole = paper.plan_paper_accelerated(problem(), n, m, budget)
    less = paper.plan_paper_accelerated(problem(), n, m, budget, max_gradients=whole.n_gradients // 2)
    assert 0.9 * whole.n_gradients / 2 < less.n_gradients <= whole.n_gradients / 2
    fewest = paper.fewest_users_of_a_phase(n, m, D, budget)
    assert all(phase.users_a_step >= fewest for phase in less.phases)
    assert any(phase.sampling_probability < 1 for phase in less.phases)
    assert all(epsilon_at(cost, budget.delta) <= 1 for cost in less.certified.costs)
    with pytest.raises(ValueError, match=r"max_gradients=1,000 >= .* cannot do with fewer"):
        paper.plan_paper_accelerated(problem(), n, m, budget, max_gradients=1000)


# --- Alg. 2 -----------------------------------------------------------------------------------------------------------


def test_alg_2_lines_4_and_6_noise_of_threshold_and_score():
    """Lap(8/eps), once a phase, and Lap(16/eps) a round; both times n_i, on pairs."""
    step, noise = plan().certified.steps[-1], SilentNoise()
    session = step.mechanism.start(noise)
    session.release(np.zeros((step.n_users, D)), 1.0)
    session.release(np.zeros((step.n_users, D)), 1.0)
    scales = [asked[1] for asked in noise.asked if asked[0] == "integer_laplace"]
    assert scales == pytest.approx([step.n_users * scale for scale in (8 / 10, 16 / 10, 16 / 10)])


def test_alg_2_line_13_noise_is_what_is_released():
    """noise_ratio * radius = sigma_i, as the curator's noise is asked for it."""
    made = plan()
    phase, step, noise = made.phases[2], made.certified.steps[2], SilentNoise()
    step.mechanism.start(noise).release(np.zeros((phase.n_users, D)), phase.radius)
    ((_, sensitivity, multiplier),) = [asked for asked in noise.asked if asked[0] == "gaussian"]
    tau = paper.radius(L, D, N, M)
    sigma = 1000 * tau * math.sqrt(phase.n_steps) * math.log(N * D * math.e**10 / 1e-4) / (10 * phase.n_users)
    assert sensitivity * multiplier == pytest.approx(sigma)


# --- Theorem 3.1 ------------------------------------------------------------------------------------------------------


def test_theorem_3_1_users_of_the_last_phase():
    needed = paper.fewest_users_of_a_phase(N, M, D, BUDGET)
    assert needed == math.ceil(100 * math.log(20 * N * M * D * math.e**10 / 1e-4) / 10)
    assert all(phase.n_users >= needed for phase in plan().phases)


def test_theorem_3_1_differs_for_small_delta():
    """The printed number lets a failing score pass too often; with ours it does with probability <= delta/8."""
    tiny = Budget(1.0, 1e-30)
    needed = paper.fewest_users_of_a_phase(100, 1, 1, tiny)
    assert needed > 100 * math.log(20 * 100 * math.e / 1e-30)
    # P(Lap(16) + Lap(8) > t) = (2/3) e^(-t/16) - (1/6) e^(-t/8)
    assert 2 / 3 * math.exp(-2 * needed / 15 / 16) <= 1e-30 / 8


@pytest.mark.parametrize("case", CASES)
def test_theorem_3_1_privacy_holds_with_room(case):
    made = plan(case)
    assert all(epsilon_at(cost, BUDGET.delta) <= BUDGET.epsilon for cost in made.certified.costs)
    assert len(made.certified.costs) >= len(made.phases), "every phase has its own price"


def test_theorem_3_1_zeta_is_the_failure_of_a_selection():
    for phase, step in zip(plan().phases, plan().certified.steps, strict=True):
        assert step.mechanism.selection_failure == pytest.approx(1e-4 / (10 * phase.n_steps * math.e**10))


@pytest.mark.parametrize("l2", [0.0, 0.1])
@pytest.mark.parametrize(("budget", "rows"), [(Budget(1.0, 1e-6), 100), (BUDGET, 2), (Budget(0.5, 1e-8), 1)])
def test_theorem_3_1_n_the_smallest_is_feasible_and_one_less_is_not(budget, rows, l2):
    asked = problem(l2=l2)
    least = paper.smallest_n_users(asked, rows, budget)
    assert paper.feasible(asked, least, rows, budget)
    assert not paper.feasible(asked, least - 1, rows, budget)
    assert all(paper.feasible(asked, n, rows, budget) for n in range(least, 3 * least, least // 100))
    paper.plan_paper_accelerated(asked, least, rows, budget)
    with pytest.raises(BudgetExceeded, match=rf"n_users={least - 1} .* {least:,} are the fewest") as error:
        paper.plan_paper_accelerated(asked, least - 1, rows, budget)
    assert error.value.enough_users == least


def test_remark_3_6_from_the_smallest_n_on_reruns_are_feasible():
    """593,926 would be enough, but at 635,000 the first rerun has 16,470 users: 14 phases instead of 13, small ones."""
    asked, budget = problem(l2=0.1), Budget(10.0, 1e-6)
    least = paper.smallest_n_users(asked, 100, budget)
    assert all(paper.feasible(asked, n, 100, budget) for n in range(least, 3 * least, least // 100))


def test_theorem_3_1_n_no_number_is_enough_where_none_is_found():
    with pytest.raises(BudgetExceeded, match="no number of them is enough") as error:
        paper.plan_paper_accelerated(problem(), N, M, Budget(1e-12, 1e-6))
    assert error.value.enough_users is None


# --- Theorems 3.2 and 4.1 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["smooth", "kinks"])
def test_theorems_3_2_and_4_1_risk(case):
    expected = L * R * (1 / math.sqrt(M * N) + math.sqrt(3 * math.log(1e4)) / (10 * N * math.sqrt(2)))
    assert paper.risk_bound(L, R, D, N, M, BUDGET) == pytest.approx(expected)
    assert plan(case).bound == pytest.approx(expected)


def test_theorem_4_1_lambda_differs_because_the_printed_one_misses_the_rate():
    """With many weights, d = 100 n: the noise's part of the bound, L^2 d / (lambda eps^2 n^2 m), over the rate.

    By 1/sqrt(mn), as printed, the bound exceeds the rate about sqrt(d)/(eps sqrt(n)) times, by ours twice at most.
    """
    n, m, d, eps = 10**6, 100, 10**8, 1.0
    rate = 1 / math.sqrt(n * m) + math.sqrt(d) / (eps * n * math.sqrt(m))

    def over(lam):
        return (lam + d / (lam * eps**2 * n**2 * m)) / rate

    assert over(1 / math.sqrt(n * m)) == pytest.approx(math.sqrt(d) / (eps * math.sqrt(n)), rel=0.1)
    assert over(paper.first_regularizer(1.0, 1.0, d, n, m, eps)) < 2


def test_theorem_4_1_radius_and_smoothness():
    """r = sqrt(d) R / (eps n sqrt(m)), so that L sqrt(d) / r = (L/R) eps n sqrt(m)."""
    for phase in plan("kinks").phases:
        assert phase.ball == pytest.approx(math.sqrt(3) * 2.0 / (10 * N * math.sqrt(2)))
        assert phase.smoothness - phase.regularizer == pytest.approx(L / R * 10 * N * math.sqrt(2), rel=1e-6)


# --- strongly convex losses -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_users", "n_reruns"),
    [(16, 2), (17, 3), (256, 3), (1000, 4), (65_536, 4), (65_537, 5), (12_345_678, 5), (2**32, 5), (2**32 + 1, 6)],
)
def test_remark_3_6_reruns_double_and_take_at_most_all_users(n_users, n_reruns):
    runs = paper._runs(problem(l2=0.1), n_users)
    assert runs == [math.floor(2 ** (j - 2) * n_users / math.log2(n_users)) for j in range(1, n_reruns + 1)]
    assert n_users / 3 < sum(runs) <= n_users


# --- the whole plan ---------------------------------------------------------------------------------------------------


def printed_phases(loss, l2, n, m, diameter, label=""):
    """Alg. 3 on n users, written down once more: a dictionary a phase."""
    eps, delta, log = BUDGET.epsilon, BUDGET.delta, math.log(n * D * m)
    phases = math.floor(math.log2(n))
    q = math.log2(1 + 1 / phases)
    p = 3 * q + 2.5 + math.log(math.sqrt(m)) / math.log(n)
    tau = L * log / math.sqrt(m)
    ball, beta, lam = None, BETA, math.sqrt(D) / (eps * n * math.sqrt(m))
    if loss is losses.hinge:
        ball, beta = lam * diameter, L / diameter * eps * n * math.sqrt(m)
    lam = L / diameter * (lam + 1 / math.sqrt(n * m))
    for i in range(1, phases + 1):
        n_i, lam_i = math.floor((1 - 0.5**q) * n / 2 ** (i * q)), lam * 2 ** (p * i)
        T_i = math.ceil((1 + math.sqrt(beta / lam_i)) * log)
        yield {
            "label": f"{label}phase {i}",
            "n_users": n_i,
            "users_a_step": n_i,
            "n_steps": T_i,
            "regularizer": lam_i,
            "smoothness": beta + lam_i + l2,
            "radius": 2 * tau,
            "noise": 1000 * tau * math.sqrt(T_i) * math.log(n * D * math.e**eps / delta) / (eps * n_i),
            "variance": L**2 * log / (n_i * m),
            "gap": L * diameter,
            "ball": ball,
        }


def printed_plan(case):
    loss, l2, n_users = CASES[case]
    if not l2:
        yield from printed_phases(loss, l2, n_users, M, R)
        return
    diameter = R
    for j in range(1, math.ceil(math.log2(math.log2(n_users))) + 1):
        users = math.floor(2 ** (j - 2) * n_users / math.log2(n_users))
        yield from printed_phases(loss, l2, users, M, diameter, f"run {j}, ")
        private = math.sqrt(D * math.log(1 / BUDGET.delta)) / (BUDGET.epsilon * users * math.sqrt(M))
        risk = L * diameter * (1 / math.sqrt(users * M) + private)
        diameter = min(diameter, 2 * math.sqrt(2 * risk / l2))


@pytest.mark.parametrize("case", CASES)
def test_alg_3_lines_2_to_5_and_theorem_4_1_lambda_the_whole_plan_is_the_paper_s(case):
    """As written down above.

    Paper: Alg. 2, line 13 (sigma_i); Alg. 3, line 1 (p); Alg. 3, line 4 (lambda_i, T_i); Theorem 3.2 (p, gradients);
    Theorem 4.1 (T_i, r, gradients).
    """
    made, begin = plan(case), 0
    for phase, step, printed in zip(made.phases, made.certified.steps, printed_plan(case), strict=True):
        sigma = printed.pop("noise")
        assert phase.noise_ratio * phase.radius == pytest.approx(sigma)
        assert (phase.label, phase.n_users, phase.n_steps) == (printed["label"], printed["n_users"], printed["n_steps"])
        assert {field: getattr(phase, field) for field in printed} == pytest.approx(printed)
        assert phase.search is None
        assert (step.label, step.start, step.stop, step.n_groups) == (phase.label, begin, begin + phase.n_users, None)
        assert step.mechanism.rounds == phase.n_steps
        assert step.mechanism.test_scale == 16 / 10
        assert step.mechanism.noise_ratio == phase.noise_ratio
        begin = step.stop
    assert begin <= CASES[case][2]
    assert made.n_gradients == M * sum(phase.n_users * phase.n_steps for phase in made.phases)
    assert (made.as_published, made.schedule.preconditioner, made.schedule.loss) == (True, None, CASES[case][0])


def test_remark_3_6_reruns_expect_to_be_nearer_and_nearer():
    """The last run's gap is that of a domain of radius sqrt(2 risk / mu)."""
    gaps = [phase.gap for phase in plan("penalty").phases if phase.label.endswith("phase 1")]
    assert len(gaps) == 5
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < gaps[0] / 2
