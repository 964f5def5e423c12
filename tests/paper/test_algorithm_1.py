"""Alg. 1 and Theorem 2.1 of the paper, formula by formula."""

import math

import numpy as np
import pytest
from cases import name

from userdp import Aborted, Ball, Box, Budget, BudgetExceeded, Curator, Ledger, UserData, losses
from userdp.paper import paper_theorems as numbers
from userdp.paper import phased_sgd_paper as paper
from userdp.privacy.accounting import epsilon_at
from userdp.privacy.noise import SeededNoise
from userdp.solvers.problem import Problem
from userdp.solvers.solver import run
from userdp.statistics.sgd import OnePassSGD

PROBLEM = Problem(losses.logistic, Ball(1.0), n_features=3, row_norm=2.0)  # R = 2, L = 2, d = 3
BUDGET = Budget(10.0, 1e-4)
N, M = 12_500, 2


def plan():
    return paper.plan_paper_phased_sgd(PROBLEM, N, M, BUDGET)


def test_alg_1_line_2_and_alg_3_line_2_number_of_phases():
    assert [numbers.n_phases(n) for n in (2, 3, 4, 1023, 1024, 170_000)] == [1, 1, 2, 9, 10, 17]


def printed_groups(n, m, budget):
    return 100 * math.log(20 * n * m * math.e**budget.epsilon / budget.delta) / budget.epsilon


def test_alg_1_line_2_number_of_groups():
    budget = Budget(1.0, 1e-6)
    assert paper.n_groups(100_000, 100, budget) == math.ceil(printed_groups(100_000, 100, budget))


def test_alg_1_line_2_groups_differ_for_small_delta():
    """The printed C lets the score's noise exceed 2C/15 too often; ours does so with probability <= delta/8."""
    tiny = Budget(1.0, 1e-30)
    groups = paper.n_groups(100, 1, tiny)
    assert groups > printed_groups(100, 1, tiny)
    assert 0.5 * math.exp(-2 * groups / 15 / 20) <= 1e-30 / 8


def test_alg_1_line_4_and_alg_3_line_4_users_of_a_phase():
    q = numbers.exponent_q(N)
    for i in (1, 5, 13):
        assert numbers.phase_users(N, i) == math.floor((1 - 2**-q) * N / 2 ** (i * q))
    assert sum(numbers.phase_users(N, i) for i in range(1, 14)) <= 2**-q * N


def test_alg_1_line_1_and_alg_3_line_1_q_leaves_most_users_to_the_last_phase():
    last, q = numbers.n_phases(N), numbers.exponent_q(N)
    users = [(1 - 2**-other) * N / 2 ** (last * other) for other in np.linspace(0.2, 5, 400) * q]
    assert (1 - 2**-q) * N / 2 ** (last * q) >= max(users) * (1 - 1e-9)


def test_theorem_2_1_gradients_at_most_nm():
    assert plan().n_gradients == sum(phase.n_users for phase in plan().phases) * M <= N * M


def test_alg_1_lines_2_to_6_the_whole_plan_is_the_paper_s():
    """Written down once more.

    Paper: Alg. 1, line 1 (p, eta); Alg. 1, line 4 (eta_i, tau_i, N_i, T_i); Alg. 1, line 10 (noise); Alg. 1, line 22
    (sigma_i); Theorem 2.1 (p, eta, risk).
    """
    made, begin = plan(), 0
    groups, eta, p = paper.n_groups(N, M, BUDGET), 2.0 / (2.0 * math.sqrt(3 * M * N * 10.0)), math.log(M, N) + 1.5
    assert len(made.phases) == len(made.certified.steps) == 13
    for i, (phase, step) in enumerate(zip(made.phases, made.certified.steps, strict=True), start=1):
        assert phase.n_groups == step.n_groups == groups
        assert phase.step_size == pytest.approx(eta / 2 ** (p * i))
        n_steps = phase.n_users / groups * M
        assert phase.radius == pytest.approx(1000 * phase.step_size * 2.0 * math.sqrt(n_steps) * math.log(N * 3 * M))
        assert (step.start, step.stop) == (begin, begin + numbers.phase_users(N, i))
        assert step.mechanism.test_scale == 20 / 10.0
        assert step.mechanism.noise_ratio == pytest.approx(100 * math.log(N / 1e-4) ** 2 / (10.0 * groups))
        begin = step.stop
    second = math.sqrt(3 * math.log(1e4)) / (math.sqrt(N) * 10.0 * math.sqrt(M))
    assert made.bound == pytest.approx(2.0 * 2.0 * (1 / math.sqrt(N * M * 10.0) + second))


def test_theorem_2_1_privacy_and_zeta_hold_with_room():
    assert all(epsilon_at(cost, BUDGET.delta) <= BUDGET.epsilon for cost in plan().certified.costs)
    assert all(step.mechanism.selection_failure == pytest.approx(1e-5 / math.e**10) for step in plan().certified.steps)


def test_theorem_2_1_n_c_at_most_n_l_and_the_smallest_n():
    """At eps = 1, delta = 1e-6 and 100 rows a user about 164,000 users are needed."""
    for budget, rows in ((Budget(1.0, 1e-6), 100), (Budget(10.0, 1e-4), 2), (Budget(0.5, 1e-8), 1)):
        least = paper.smallest_n_users(PROBLEM, rows, budget)
        assert paper.feasible(PROBLEM, least, rows, budget)
        assert not paper.feasible(PROBLEM, least - 1, rows, budget)
        assert all(paper.feasible(PROBLEM, n, rows, budget) for n in range(least, 3 * least, least // 50))
    assert 1.5e5 < paper.smallest_n_users(PROBLEM, 100, Budget(1.0, 1e-6)) < 1.8e5
    with pytest.raises(BudgetExceeded, match=rf"n_users=1000 .* {least:,} are the fewest") as error:
        paper.plan_paper_phased_sgd(PROBLEM, 1000, 1, Budget(0.5, 1e-8))
    assert error.value.enough_users == least


class Recorder:
    """Stands where the curator stands, and writes down what it is asked for."""

    def __init__(self, answers):
        self.asked, self._answers = [], list(answers)

    def release(self, label, statistic, radius):
        self.asked.append((label, statistic, radius))
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_alg_1_lines_3_to_8_and_alg_1_line_24_run_as_printed():
    """Each phase starts at the last released point; constant steps, the average of all iterates, the printed radius."""
    made = plan()
    recorder = Recorder(np.full(3, 0.01 * i) for i in range(1, 14))
    result = run(PROBLEM, made, recorder)
    start = np.zeros(3)
    for i, (label, statistic, radius) in enumerate(recorder.asked, start=1):
        phase = made.phases[i - 1]
        assert (label, radius, statistic.step_size) == (phase.label, phase.radius, phase.step_size)
        assert (statistic.average_from, statistic.decay, statistic.basis) == (0.0, False, None)
        np.testing.assert_allclose(statistic.start, start)
        start = PROBLEM.domain.project(start + 0.01 * i)
    np.testing.assert_allclose(result.weights, start)


def test_alg_1_lines_18_and_19_abort_outputs_zero_inside_the_domain():
    """Differs: the point of the domain nearest to 0, which the domain need not hold."""
    away = Problem(losses.logistic, Box(np.full(3, 1.0), np.full(3, 2.0)), n_features=3, row_norm=2.0)
    made = paper.plan_paper_phased_sgd(away, N, M, BUDGET)
    result = run(away, made, Recorder([np.full(3, 0.1), Aborted()]))
    assert result.aborted
    assert "The result is the start" in result.message
    np.testing.assert_array_equal(result.weights, np.full(3, 1.0))


def test_alg_1_runs_on_data_and_its_noise_drowns_everything():
    rng = np.random.default_rng(0)
    data = UserData(rng.normal(size=(N * M, 3)), rng.integers(0, 2, N * M).astype(float), np.arange(0, N * M + 1, M))
    made = plan()
    result = run(PROBLEM, made, Curator(data, made.certified, Ledger(BUDGET)))
    assert not result.aborted
    assert len(result.phases) == 13
    assert result.phases[0]["noise_std"] > 50 * PROBLEM.domain.diameter, "the paper's constants are not for our sizes"


@pytest.mark.parametrize("loss", [losses.logistic, losses.huber(0.5)], ids=name)
@pytest.mark.parametrize("decay", [False, True])
def test_lemma_2_3_independent_runs_end_close_together(loss, decay):
    """Distance <= 4 eta L sqrt(2 T ln(2/zeta)): no violation in 10,000 pairs, here at zeta = 1/10,000."""
    n_steps, n_groups, zeta = 50, 400, 1e-4
    rng = np.random.default_rng(4)
    rows = rng.normal(size=(n_steps * n_groups, 10))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    targets = (rows[:, 0] + 0.3 * rng.normal(size=len(rows)) > 0).astype(float)
    data = UserData(rows, targets, np.arange(0, len(rows) + 1, n_steps))
    step_size = 1 / loss.smoothness(1.0)
    walk = OnePassSGD(loss, np.zeros(10), Ball(20.0), step_size, 1.0 if decay else 0.0, decay)
    ends = walk(data, np.arange(n_groups), n_groups)
    first, second = (SeededNoise(seed).permutation(n_groups)[:142] for seed in (1, 2))
    distances = np.linalg.norm(ends[first][:, None] - ends[second][None], axis=2).ravel()
    bound = 4 * step_size * loss.lipschitz(1.0) * math.sqrt(2 * n_steps * math.log(2 / zeta))
    assert distances.size > 10_000
    assert np.all(distances <= bound)
    assert distances.max() > bound / 100, "the bound is of the right order"
