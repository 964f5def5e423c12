import math

import numpy as np
import pytest
from support_solvers import best_risk, make_users, risk

from userdp import Ball, Budget, BudgetExceeded, Curator, Ledger, MeanGradient, losses
from userdp.privacy.accounting import gaussian_multiplier, subsampled_multiplier
from userdp.solvers.problem import Problem
from userdp.solvers.solver import gradients_of_samples, run
from userdp_research import fedavg
from userdp_research.fedavg import likely_multiplier, next_radius, plan_fedavg

BUDGET = Budget(4.0, 1e-5)
PROBLEM = Problem(losses.logistic, Ball(3.0), 4, 2.5)


def test_noise_is_split_between_mean_and_fraction_as_published():
    """Andrew et al. 2021: z_delta = (z^-2 - (2 sigma_b)^-2)^(-1/2), with sigma_b a twentieth of the sample."""
    plan = plan_fedavg(PROBLEM, 20_000, 12, BUDGET)
    mean = plan.certified.steps[0].mechanism
    (phase,) = plan.phases
    sample = 20_000 * phase.sampling_probability
    joint = subsampled_multiplier(BUDGET, phase.sampling_probability, phase.n_steps)
    of_mean, of_fraction = 2 * mean.noise_multiplier, 2 * mean.fraction_multiplier  # in units of adding one user
    assert of_fraction / 2 == pytest.approx(sample / 20, rel=0.05)
    assert of_mean == pytest.approx((joint**-2 - of_fraction**-2) ** -0.5, rel=1e-6)
    assert phase.noise_ratio == pytest.approx(of_mean / sample, rel=1e-5)


def test_small_samples_leave_budget_for_the_mean():
    plan = plan_fedavg(PROBLEM, 60, 12, Budget(0.5, 1e-6))
    mean = plan.certified.steps[0].mechanism
    joint = (mean.noise_multiplier**-2 + mean.fraction_multiplier**-2) ** -0.5
    assert mean.noise_multiplier < 1.1 * joint
    assert mean.fraction_multiplier == pytest.approx(3 * joint, rel=1e-6)


def test_rounds_are_those_with_the_least_bound_and_take_twenty_passes():
    plan = plan_fedavg(PROBLEM, 5000, 12, BUDGET)
    (phase,) = plan.phases
    assert phase.n_steps * phase.sampling_probability == pytest.approx(20.0)
    assert 20 * 60_000 <= plan.n_gradients <= 20.5 * 60_000
    mu_squared = 1 / gaussian_multiplier(BUDGET) ** 2
    for rounds in (25, 50, 100, 200):
        q = 20 / rounds
        likely = likely_multiplier(mu_squared, q, rounds)
        assert plan.bound <= 1.02 * fedavg._step_and_bound(PROBLEM, 5000, 12, rounds, q, likely)[1]
    assert 0 < phase.step_size <= 1 / (0.25 * 2.5**2)


def test_more_noise_means_shorter_steps():
    calm, noisy = (plan_fedavg(PROBLEM, 2000, 12, Budget(e, 1e-5)).phases[0].step_size for e in (8.0, 0.05))
    assert noisy < calm / 2


@pytest.mark.parametrize("passes", [0.5, 3.0, 40.0, 500.0])
def test_gradients_can_be_limited(passes):
    plan = plan_fedavg(PROBLEM, 2000, 12, BUDGET, max_gradients=int(passes * 24_000))
    (phase,) = plan.phases
    assert plan.n_gradients <= passes * 24_000
    assert plan.n_gradients >= 0.7 * min(passes, phase.n_steps) * 24_000
    assert phase.sampling_probability <= 1.0


def test_impossible_plans_are_refused():
    with pytest.raises(ValueError, match=r"max_gradients=10 >= [0-9,]+.* Nothing was spent") as error:
        plan_fedavg(PROBLEM, 2000, 12, BUDGET, max_gradients=10)
    named = int(str(error.value).split(">= ")[1].split(", ")[0].replace(",", ""))
    assert plan_fedavg(PROBLEM, 2000, 12, BUDGET, max_gradients=named).n_gradients <= named
    with pytest.raises(BudgetExceeded, match="delta > 0"):
        plan_fedavg(PROBLEM, 2000, 12, Budget(1.0, 0.0))


def test_the_clip_ends_near_the_median_length_of_gradients():
    data = make_users(3000, rows=(5, 10))
    plan = plan_fedavg(PROBLEM, 3000, 10, Budget(50.0, 1e-3))
    curator = Curator(data, plan.certified, Ledger(Budget(50.0, 1e-3)), insecure_seed=1)
    result = run(PROBLEM, plan, curator)
    lengths = np.linalg.norm(MeanGradient(losses.logistic, result.weights)(data, np.arange(3000), 3000), axis=1)
    assert result.phases[0]["radius"] == pytest.approx(np.median(lengths), rel=0.15)
    assert result.phases[0]["expected_radius"] == pytest.approx(0.1 * PROBLEM.lipschitz)
    excess = risk(losses.logistic, data, result.weights) - best_risk(losses.logistic, data)
    assert excess < 0.1 * (risk(losses.logistic, data, np.zeros(4)) - best_risk(losses.logistic, data))


def test_it_moves_with_momentum_and_averages_the_last_half():
    """Against the recursion written out, on releases that are given."""

    class Given:
        def __init__(self):
            self.asked, self.radii = [], []

        def release(self, label, statistic, radius):
            self.asked.append(statistic.weights.copy())
            self.radii.append(radius)
            return np.array([0.01, -0.02, 0.0, 0.005, 1.0 if len(self.asked) % 2 else -3.0])

    plan, given = plan_fedavg(PROBLEM, 2000, 12, BUDGET), Given()
    (phase,) = plan.phases
    result = run(PROBLEM, plan, given)
    gradient, point, velocity, points = np.array([0.01, -0.02, 0.0, 0.005]), np.zeros(4), np.zeros(4), []
    for _ in range(phase.n_steps):
        np.testing.assert_allclose(given.asked[len(points)], point, atol=1e-14)
        velocity = 0.9 * velocity + gradient
        point = PROBLEM.domain.project(point - phase.step_size * velocity)
        points.append(point)
    half = points[phase.n_steps // 2 :]
    np.testing.assert_allclose(result.weights, np.mean(half, axis=0), rtol=1e-10)
    first, second, third = given.radii[:3]
    assert second / first == pytest.approx(math.exp(-0.1))
    assert third / second == pytest.approx(math.exp(0.1))
    assert not result.aborted


def test_an_upper_bound_on_sampled_gradients():
    assert gradients_of_samples(100, 3, 1.0, 7) == 2100
    assert 3 * 100 * 70 < gradients_of_samples(1000, 3, 0.1, 70) < 3 * 100 * 70 * 1.2
    assert next_radius(2.0, 0.0, 0.5, 0.2) == pytest.approx(2.0 * math.exp(0.1))
