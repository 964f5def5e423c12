"""What research/docs/paper-notes.md says in numbers."""

import math

import numpy as np
import pytest
from scipy.optimize import brentq

from userdp import Ball, Budget, losses
from userdp.paper import accelerated_paper, paper_theorems, phased_sgd_paper
from userdp.privacy.accounting import gaussian_delta
from userdp.solvers.problem import Problem

BUDGET = Budget(1.0, 1e-6)


def test_users_that_algorithm_1_needs():
    assert phased_sgd_paper.smallest_n_users(Problem(losses.logistic, Ball(1.0), 5, 1.0), 100, BUDGET) == 163_761
    assert phased_sgd_paper.n_groups(163_761, 100, BUDGET) == 3_443


@pytest.mark.parametrize(("dimension", "n_users"), [(5, 171_609), (50, 182_882), (5_000, 205_332)])
def test_users_that_algorithm_3_needs(dimension, n_users):
    problem = Problem(losses.logistic, Ball(1.0), dimension, 1.0)
    assert accelerated_paper.smallest_n_users(problem, 100, BUDGET) == n_users


@pytest.mark.parametrize(("n_users", "unused"), [(10**5, 0.42), (10**7, 0.40)])
def test_users_that_are_never_used(n_users, unused):
    phases = range(1, paper_theorems.n_phases(n_users) + 1)
    used = sum(paper_theorems.phase_users(n_users, phase) for phase in phases)
    assert 1 - used / n_users == pytest.approx(unused, abs=0.005)


def test_groups_are_never_few():
    """At the largest epsilon of the theorems, with one user of one row and any delta."""
    assert phased_sgd_paper.n_groups(1, 1, Budget(10.0, 1 - 1e-9)) == 130


@pytest.mark.parametrize(("delta", "crossing"), [(1e-4, 8.99), (1e-6, 9.73)])
def test_where_the_gaussian_lemma_fails(delta, crossing):
    def excess(epsilon):
        return math.log(gaussian_delta(epsilon / math.sqrt(2 * math.log(2 / delta)), epsilon) / delta)

    assert brentq(excess, 5, 12) == pytest.approx(crossing, abs=0.005)
    assert all(excess(epsilon) < 0 for epsilon in np.linspace(0.01, 2.5, 50)), "where the paper uses it"


def test_odd_numbers_of_vectors_stay_within_two_and_a_half_radii():
    """Random sets on a line, where the score at r/2 passes and weights start at K/2."""
    rng, farthest, kept = np.random.default_rng(0), 0.0, 0
    for _ in range(5_000):
        k = int(rng.choice([7, 9, 11]))
        points = np.concatenate([rng.normal(0, 0.15, k - k // 3), rng.uniform(-2, 2, k // 3)])
        other = points.copy()
        other[rng.integers(k)] = rng.uniform(-2.5, 2.5)
        near = np.abs(points[:, None] - points) <= 0.5
        if near.sum() < 2 * k * k / 3:
            continue
        weighted = [x[(np.abs(x[:, None] - x) <= 1).sum(axis=1) > k / 2] for x in (points, other)]
        if min(map(len, weighted)):
            kept += 1
            farthest = max(farthest, np.abs(weighted[0][:, None] - weighted[1]).max())
    assert kept > 250
    assert 1.5 < farthest <= 2.5


@pytest.mark.parametrize(("more", "exceeds"), [(0.1, False), (10.0, True)])
def test_rows_from_which_on_the_gradients_for_non_smooth_losses_lack_a_term(more, exceeds):
    """m T_i (n eps / sqrt(T_i) + 1/eps), logarithms left out, against the printed bound: equal at m = n^(5/2) eps^3."""
    n, epsilon = 10**4, 0.01
    m = round(more * n**2.5 * epsilon**3)
    steps = math.sqrt(epsilon * n * math.sqrt(m) * math.sqrt(m * n))  # sqrt(beta/lambda), L = R = 1
    printed = m * n * n ** (3 / 8) * m ** (1 / 4) * epsilon ** (1 / 4)
    assert steps * m / epsilon == pytest.approx(n**0.75 * m**1.5 / math.sqrt(epsilon))
    assert (steps * m / epsilon > printed) == exceeds
    assert steps * m * n * epsilon / math.sqrt(steps) <= 10 * printed, "the other term is in the bound"


def test_the_last_sum_of_the_privacy_proof_is_too_large_for_small_epsilon():
    """4 T zeta (2 e^(eps/2) + 1) in units of delta, T zeta = delta / (10 e^eps); and what it should have said."""

    def printed(epsilon):
        return 0.4 * (2 * math.exp(-epsilon / 2) + math.exp(-epsilon))

    assert printed(0) == pytest.approx(1.2)
    assert brentq(lambda epsilon: printed(epsilon) - 1, 0, 1) == pytest.approx(0.276, abs=0.001)
    assert all(0.3 * math.exp(-epsilon) + 0.2 < 1 for epsilon in (0, 1, 10)), "(2T + 1) zeta + 2 e^eps T zeta"


def test_gaussian_part_of_a_phase_with_one_logarithm():
    problem = Problem(losses.logistic, Ball(1.0), 10, 1.0)
    for delta, mu_squared in ((1e-6, 1.3e-4), (1e-100, 3.2e-5)):
        budget = Budget(1.0, delta)
        n_users = accelerated_paper.smallest_n_users(problem, 10, budget)
        plan = accelerated_paper.plan_paper_accelerated(problem, n_users, 10, budget)
        assert max(step.mechanism.cost.gaussian for step in plan.certified.steps) == pytest.approx(mu_squared, rel=0.03)
