"""What docs/paper-notes.md says in numbers."""

import math

import numpy as np
import pytest
from scipy.optimize import brentq

from userdp import Ball, Budget, losses
from userdp.baselines import accelerated_paper, phased_sgd_paper
from userdp.privacy.accounting import gaussian_delta
from userdp.solvers.problem import Problem

BUDGET = Budget(1.0, 1e-6)


def test_users_that_algorithm_1_needs():
    assert phased_sgd_paper.smallest_n_users(100, BUDGET) == 163_761
    assert phased_sgd_paper.n_groups(163_761, 100, BUDGET) == 3_443


@pytest.mark.parametrize(("dimension", "n_users"), [(5, 171_609), (50, 182_882), (5_000, 205_332)])
def test_users_that_algorithm_3_needs(dimension, n_users):
    problem = Problem(losses.logistic, Ball(1.0), dimension, 1.0)
    assert accelerated_paper.smallest_n_users(problem, 100, BUDGET) == n_users


@pytest.mark.parametrize(("n_users", "unused"), [(10**5, 0.42), (10**7, 0.40)])
def test_users_that_are_never_used(n_users, unused):
    phases = range(1, phased_sgd_paper.n_phases(n_users) + 1)
    used = sum(phased_sgd_paper.phase_users(n_users, phase) for phase in phases)
    assert 1 - used / n_users == pytest.approx(unused, abs=0.005)


def test_groups_are_never_few():
    """At the largest epsilon of the theorems, with one user of one row and any delta."""
    assert phased_sgd_paper.printed_groups(1, 1, Budget(10.0, 1 - 1e-9)) >= 129.9


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
