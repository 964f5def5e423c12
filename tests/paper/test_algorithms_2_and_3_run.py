"""Alg. 2 and 3 and Lemma 3.5 of the paper, carried out."""

import math
from dataclasses import replace

import numpy as np
import pytest
from support_algorithms import BUDGET, CASES, D, L, M, N, plan, problem

from userdp import Aborted, Ball, Box, Curator, Ledger, UserData, losses
from userdp.paper import accelerated_paper as paper
from userdp.paper import concentration
from userdp.paper import paper_outlier_removal as printed
from userdp.paper.descent import ACSA
from userdp.solvers.solver import run
from userdp.statistics.gradients import MeanGradient
from userdp.statistics.smoothing import BallSmoothing

# --- runs -------------------------------------------------------------------------------------------------------------


class Recorder:
    """Stands where the curator stands, and writes down what it is asked for."""

    def __init__(self, answers):
        self.asked, self._answers = [], iter(answers)

    def release(self, label, statistic, radius):
        self.asked.append((label, statistic, radius))
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer


def changed(made, **change):
    phases = tuple(replace(phase, **change) for phase in made.phases)
    return replace(made, schedule=replace(made.schedule, phases=phases))


@pytest.mark.parametrize("case", CASES)
def test_alg_2_lines_1_to_2_and_alg_2_lines_14_and_17_and_alg_3_lines_2_to_9_run_as_printed(case):
    """Each starts at the last one's result; AC-SA gets g + lambda_i (x - x_(i-1)) + l2 x at the point it asked at.

    With less noise than printed, under which AC-SA hardly moves, and 20 steps a phase.
    """
    loss, l2, _ = CASES[case]
    made, asked = changed(plan(case), n_steps=20, noise_ratio=1e-3), problem(loss, l2)
    rng = np.random.default_rng(0)
    answers = made.phases[0].smoothness * rng.normal(size=(20 * len(made.phases), D))
    recorder = Recorder(answers)
    result = run(asked, made, recorder)
    start, number = np.zeros(D), 0
    for phase in made.phases:
        variance = phase.variance + D * (phase.noise_ratio * phase.radius) ** 2
        descent = ACSA(start, asked.domain, phase.smoothness, phase.regularizer + l2, variance, phase.gap, 20)
        for _ in range(phase.n_steps):
            label, statistic, radius = recorder.asked[number]
            at = descent.query
            assert (label, radius, statistic.loss, statistic.basis) == (phase.label, phase.radius, loss, None)
            np.testing.assert_allclose(statistic.weights, at, rtol=1e-9)
            expected = BallSmoothing(made.phases[0].ball, number) if case == "kinks" else None
            assert statistic.smoothing == expected
            descent.move(answers[number] + phase.regularizer * (at - start) + l2 * at)
            number += 1
        start = asked.domain.project(descent.point)
    assert len(recorder.asked) == number
    assert np.linalg.norm(recorder.asked[20][1].weights) > 0.1, "the first phase moves"
    np.testing.assert_allclose(result.weights, start, rtol=1e-9)
    assert not result.aborted
    assert result.n_gradients == made.n_gradients


def test_alg_3_line_6_a_phase_minimises_its_users_loss_and_the_penalties():
    """With exact gradients the result is near the minimum of f + lambda/2 |x - x_0|^2 + l2/2 |x|^2."""
    asked, target = problem(l2=0.1), np.array([0.5, -0.2, 0.1])
    only = replace(plan().phases[0], regularizer=0.3, n_steps=400, smoothness=1.4, noise_ratio=0.0, variance=0.0)
    made = replace(plan(), schedule=replace(plan().schedule, phases=(only,)))

    class Exact:
        def release(self, label, statistic, radius):
            return statistic.weights - target

    start = np.array([0.1, 0.2, 0.3])
    result = run(problem(l2=0.1, warm_start=start), made, Exact())
    np.testing.assert_allclose(result.weights, (target + 0.3 * start) / (1 + 0.3 + asked.l2), atol=1e-8)


@pytest.mark.parametrize("steps_before", [0, 1, 70])
def test_alg_2_lines_15_and_16_abort_outputs_zero_inside_the_domain(steps_before):
    """Differs: the point of the domain nearest to 0, which the domain need not hold."""
    away = problem(domain=Box(np.full(D, 1.0), np.full(D, 2.0)))
    made = paper.plan_paper_accelerated(away, N, M, BUDGET)
    result = run(away, made, Recorder([*[np.full(D, -1e3)] * steps_before, Aborted()]))
    assert result.aborted
    assert "the start" in result.message
    np.testing.assert_array_equal(result.weights, np.full(D, 1.0))


def some_users(seed=0):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(N * M, D))
    rows *= np.minimum(1, 2.0 / np.linalg.norm(rows, axis=1, keepdims=True))
    return UserData(rows, rng.integers(0, 2, N * M).astype(float), np.arange(0, N * M + 1, M))


def test_algs_2_and_3_run_on_data_and_its_noise_drowns_gradients():
    made = plan()
    result = run(problem(), made, Curator(some_users(), made.certified, Ledger(BUDGET)))
    assert not result.aborted
    assert len(result.phases) == 13
    assert Ball(1.0).contains(result.weights)
    assert result.phases[0]["noise_std"] > 100 * L, "the paper's constants are not for our sizes"


def test_theorem_4_1_runs_on_data():
    """With a few steps of each phase: the printed T_1 is 22,056."""
    made = plan("kinks")
    assert made.phases[0].n_steps > 20_000
    result = run(
        problem(losses.hinge),
        changed(made, n_steps=3),
        Curator(some_users(), made.certified, Ledger(BUDGET), insecure_seed=0),
    )
    assert not result.aborted
    assert len(result.phases) == 13


# --- Lemma 3.5 --------------------------------------------------------------------------------------------------------


def test_lemma_3_5_variance_of_a_filtered_minibatch_gradient():
    """At most L^2 ln(ndm) / (K m), and it falls like 1/(K m); all users are kept at the radius of Alg. 3, line 2."""
    rng = np.random.default_rng(5)
    n, d, batches, rows_per_user, draws = 3000, 5, (16, 64, 256), (1, 4, 16), 300
    weights = np.full(d, 0.5)
    variances = np.empty((len(rows_per_user), len(batches)))
    for a, m in enumerate(rows_per_user):
        rows = rng.normal(size=(n * m, d))
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        labels = (rng.random(n * m) < 1 / (1 + np.exp(-2 * rows[:, 0]))).astype(float)
        data = UserData(rows, labels, np.arange(0, n * m + 1, m))
        vectors = MeanGradient(losses.logistic, weights)(data, np.arange(n), n)
        radius, ramp_of = 2 * paper.radius(1.0, d, n, m), printed.paper_ramp
        for b, K in enumerate(batches):
            errors = []
            for _ in range(draws):
                drawn = vectors[rng.integers(0, n, K)]  # with replacement, as printed
                counts = concentration.neighbour_counts(drawn, radius)
                assert counts.min() == K
                errors.append(concentration.filtered_mean(drawn, counts, ramp_of(K)) - vectors.mean(axis=0))
            variances[a, b] = np.mean(np.sum(np.square(errors), axis=1))
            bound = math.log(n * d * m) / (K * m)
            assert bound / 1000 < variances[a, b] <= bound
    in_batch = np.polyfit(np.log(batches), np.log(variances).T, 1)[0]
    in_rows = np.polyfit(np.log(rows_per_user), np.log(variances), 1)[0]
    np.testing.assert_allclose([*in_batch, *in_rows], -1, atol=0.15)
