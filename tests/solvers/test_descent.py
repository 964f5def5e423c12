"""Nesterov's method and AC-SA: their printed steps, their optimum without noise, and their rate."""

import math

import numpy as np
import pytest
from scipy.optimize import minimize

from userdp import Ball, Box
from userdp.paper.descent import ACSA, Nesterov, stage, steadied

EVERYWHERE = Ball(1e9)
ENDLESS = 10**15  # steps
FRACTION_OF_WORST_CASE = 1.0  # how much of AC-SA's smallest smoothness under noise Nesterov's method takes


class Quadratic:
    """(w - best)^T H (w - best) / 2 with eigenvalues of H from 1/condition to 1."""

    def __init__(self, condition=50.0, dimension=6, seed=0):
        rng = np.random.default_rng(seed)
        turn, _ = np.linalg.qr(rng.normal(size=(dimension, dimension)))
        self.H = turn @ np.diag(np.geomspace(1 / condition, 1.0, dimension)) @ turn.T
        self.best, self.start, self.mu = rng.normal(size=dimension), np.zeros(dimension), 1 / condition

    def value(self, w):
        return 0.5 * (w - self.best) @ self.H @ (w - self.best)

    def gradient(self, w):
        return self.H @ (w - self.best)


def nesterov(objective, domain=EVERYWHERE, n_steps=1500):
    return Nesterov(objective.start, domain, 1.0, n_steps)


def acsa(objective, domain=EVERYWHERE, n_steps=None, variance=0.0):
    return ACSA(objective.start, domain, 1.0, objective.mu, variance, objective.value(objective.start), ENDLESS)


def descend(descent, gradient, n_steps):
    for _ in range(n_steps):
        descent.move(gradient(descent.query))
    return descent.point


# --- both -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [nesterov, acsa])
def test_without_noise_it_finds_the_optimum(make):
    objective = Quadratic()
    point = descend(make(objective), objective.gradient, 1500)
    np.testing.assert_allclose(point, objective.best, atol=1e-4)


@pytest.mark.parametrize("domain", [Ball(0.7), Ball(0.5, np.full(6, 0.3)), Box(np.full(6, -0.2), np.full(6, 0.4))])
@pytest.mark.parametrize("make", [nesterov, acsa])
def test_without_noise_it_finds_the_constrained_optimum(make, domain):
    objective = Quadratic()
    if isinstance(domain, Ball):
        center = np.zeros(6) if domain.center is None else domain.center
        inside = {"type": "ineq", "fun": lambda w: domain.radius**2 - np.sum((w - center) ** 2)}
        limits = {"constraints": [inside], "method": "SLSQP", "options": {"ftol": 1e-14, "maxiter": 500}}
    else:
        limits = {"bounds": list(zip(domain.low, domain.high, strict=True)), "method": "L-BFGS-B", "tol": 1e-14}
    expected = minimize(objective.value, domain.project(np.zeros(6)), jac=objective.gradient, **limits).x
    assert np.linalg.norm(expected - objective.best) > 0.1, "the domain matters"
    point = descend(make(objective, domain), objective.gradient, 1500)
    np.testing.assert_allclose(point, expected, atol=1e-4)


@pytest.mark.parametrize("make", [nesterov, acsa])
def test_the_start_is_projected_and_is_the_result_before_any_step(make):
    objective, domain = Quadratic(), Ball(0.5, np.full(6, 2.0))
    descent = make(objective, domain)
    np.testing.assert_array_equal(descent.point, domain.project(np.zeros(6)))
    np.testing.assert_array_equal(descent.query, domain.project(np.zeros(6)))


@pytest.mark.parametrize("make", [nesterov, acsa])
def test_under_noise_the_result_is_unbiased(make):
    """Steps on a quadratic are linear in the gradients, so many noisy runs average to the noiseless one."""
    objective, runs, n_steps, std = Quadratic(dimension=4), 2000, 60, 0.05
    rng = np.random.default_rng(1)
    many = Quadratic(dimension=4)
    many.start = np.zeros(4 * runs)
    many.value = lambda w: objective.value(np.zeros(4))
    variance = {"variance": 4 * std**2} if make is acsa else {}

    def noisy(w):
        return ((w.reshape(runs, 4) - objective.best) @ objective.H + std * rng.normal(size=(runs, 4))).ravel()

    ends = descend(make(many, n_steps=n_steps, **variance), noisy, n_steps).reshape(runs, 4)
    alone = descend(make(objective, n_steps=n_steps, **variance), objective.gradient, n_steps)
    error = ends.std(axis=0) / math.sqrt(runs)
    assert np.all(ends.std(axis=0) > 0.001), "the noise matters"
    assert np.all(np.abs(ends.mean(axis=0) - alone) < 5 * error)


# --- Nesterov ---------------------------------------------------------------------------------------------------------


def printed_nesterov(gradient, start, domain, smoothness, n_steps):
    """All iterates x_t = project(y_t - g/L), y_(t+1) = x_t + (t-1)/(t+2) (x_t - x_(t-1))."""
    x, y, iterates = start, start, []
    for t in range(1, n_steps + 1):
        new = domain.project(y - gradient(y) / smoothness)
        y, x = new + (t - 1) / (t + 2) * (new - x), new
        iterates.append(x)
    return np.array(iterates)


@pytest.mark.parametrize("n_steps", [1, 2, 7, 8])
def test_nesterov_averages_the_last_half(n_steps):
    objective, domain = Quadratic(), Ball(0.7)
    iterates = printed_nesterov(objective.gradient, np.zeros(6), domain, 1.3, n_steps)
    descent = Nesterov(np.zeros(6), domain, 1.3, n_steps)
    for t in range(n_steps):
        descent.move(objective.gradient(descent.query))
        averaged = iterates[n_steps // 2 : t + 1] if t >= n_steps // 2 else iterates[t : t + 1]
        np.testing.assert_allclose(descent.point, averaged.mean(axis=0))
    assert len(averaged) == math.ceil(n_steps / 2)


# --- AC-SA ------------------------------------------------------------------------------------------------------------


def printed_acsa(gradient, start, domain, beta, mu, variance, first_gap, n_steps):
    """Ghadimi and Lan's multi-stage AC-SA: pairs of where a gradient was asked for and the aggregated iterate."""
    ag, k, pairs = start, 0, []
    while True:
        k += 1
        N = math.ceil(max(4 * math.sqrt(2 * beta / mu), 128 * variance / (3 * mu * first_gap * 2.0 ** -(k + 1))))
        N = min(N, n_steps - len(pairs))
        phi = max(2 * beta, math.sqrt(mu * variance * N * (N + 1) * (N + 2) / (3 * first_gap * 2.0 ** -(k - 1))))
        x = ag
        if N == 0:
            return pairs
        for t in range(1, N + 1):
            alpha, gamma = 2 / (t + 1), 4 * phi / (t * (t + 1))
            c = (1 - alpha) * (mu + gamma) / (gamma + (1 - alpha**2) * mu)
            md = c * ag + (1 - c) * x
            x = domain.project((alpha * mu * md + ((1 - alpha) * mu + gamma) * x - alpha * gradient(md)) / (mu + gamma))
            ag = alpha * x + (1 - alpha) * ag
            pairs.append((md, ag))


@pytest.mark.parametrize("variance", [0.0, 1e-4, 0.1])
@pytest.mark.parametrize("domain", [EVERYWHERE, Ball(0.7)])
def test_acsa_steps_are_the_printed_ones_and_its_result_is_the_aggregated_iterate(variance, domain):
    """Paper: Alg. 2, line 14."""
    objective, n_steps = Quadratic(condition=5.0), 80
    settings = (np.zeros(6), domain, 1.2, 0.15, variance, 3.0)
    descent = ACSA(*settings, n_steps)
    printed = printed_acsa(objective.gradient, *settings, n_steps)
    for md, ag in printed:
        np.testing.assert_allclose(descent.query, md, rtol=1e-9, atol=1e-12)
        descent.move(objective.gradient(descent.query))
        np.testing.assert_allclose(descent.point, ag, rtol=1e-9, atol=1e-12)


def test_a_stage_without_noise_is_as_long_as_the_condition_asks():
    assert stage(8.0, 1.0, 0.0, 5.0, ENDLESS) == (16, 16.0)
    assert stage(9.0, 1.0, 0.0, 5.0, ENDLESS) == (math.ceil(4 * math.sqrt(18)), 18.0)


def test_a_stage_under_noise_is_as_long_as_the_variance_asks():
    steps, phi = stage(1.0, 0.5, 0.3, 0.02, ENDLESS)
    assert steps == math.ceil(128 * 0.3 / (3 * 0.5 * 0.02 / 4))
    assert phi == pytest.approx(math.sqrt(0.5 * 0.3 * steps * (steps + 1) * (steps + 2) / (3 * 0.02)))


def test_the_last_stage_is_cut_off_and_steps_as_long_as_so_few_allow():
    steps, phi = stage(1.0, 0.5, 0.3, 0.02, 64)
    assert steps == 64
    assert phi == pytest.approx(math.sqrt(0.5 * 0.3 * 64 * 65 * 66 / (3 * 0.02)))


def test_stages_double_in_length_as_the_gap_halves():
    lengths = [stage(1.0, 0.5, 0.3, 0.02 / 2**k, ENDLESS)[0] for k in range(4)]
    np.testing.assert_allclose(np.divide(lengths[1:], lengths[:-1]), 2.0, rtol=1e-3)


def test_a_hopeless_stage_is_long_but_finite():
    steps, phi = stage(1.0, 1e-30, 1e30, 1e-30, ENDLESS)
    assert steps == ENDLESS
    assert math.isfinite(phi)


@pytest.mark.parametrize("condition", [4.0, 100.0, 1e4])
def test_stages_halve_the_gap_and_the_error_is_below_the_lemma_s(condition):
    """gap(T) <= 4 gap(0) exp(-c T sqrt(mu/L)) with c = ln 4 / (4 sqrt 2): without noise a stage even quarters it.

    Paper: Lemma C.4.
    """
    objective = Quadratic(condition, dimension=20)
    descent, first = acsa(objective), objective.value(objective.start)
    length, _ = stage(1.0, objective.mu, 0.0, first, ENDLESS)
    gaps = [first]
    for _ in range(8 * length):
        descent.move(objective.gradient(descent.query))
        gaps.append(objective.value(descent.point))
    assert all(gaps[k * length] <= first / 4**k for k in range(1, 9))
    T = np.arange(len(gaps))
    rate = math.log(4) / (4 * math.sqrt(2)) * math.sqrt(objective.mu) * (4 * math.sqrt(2 * condition) / length)
    assert np.all(gaps <= 4 * first * np.exp(-rate * T))


@pytest.mark.parametrize("std", [0.02, 0.1])
def test_under_noise_acsa_s_error_falls_like_one_over_the_steps(std):
    """E gap <= C V^2 / (mu T) once the first term is gone, on 400 runs at once."""
    objective, runs, d = Quadratic(20.0, dimension=5), 400, 5
    rng = np.random.default_rng(2)
    variance = d * std**2
    descent = ACSA(np.zeros(d * runs), EVERYWHERE, 1.0, objective.mu, variance, objective.value(np.zeros(d)), ENDLESS)
    gaps = {}
    for t in range(1, 6401):
        offsets = descent.query.reshape(runs, d) - objective.best
        descent.move((offsets @ objective.H + std * rng.normal(size=(runs, d))).ravel())
        if t in (400, 1600, 6400):
            offsets = descent.point.reshape(runs, d) - objective.best
            gaps[t] = 0.5 * np.mean(np.sum(offsets @ objective.H * offsets, axis=1))
    for t, gap in gaps.items():
        assert gap <= 2 * variance / (objective.mu * t)
    assert gaps[400] > 2 * gaps[1600] > 4 * gaps[6400]


# --- steps under noise ------------------------------------------------------------------------------------------------


def test_steadied_balances_the_terms_of_acsa_s_bound():
    assert steadied(1.0, 2.0, 0.3, 50) == pytest.approx(FRACTION_OF_WORST_CASE * math.sqrt(0.3 * 50**3 / 3) / 2.0)
    assert steadied(1.0, 2.0, 0.3, 50) > 1.0


def test_steadied_never_exceeds_the_step_of_exact_gradients():
    assert steadied(7.0, 2.0, 0.0, 50) == 7.0
    assert steadied(7.0, 2.0, 1e-6, 50) == 7.0


def test_steps_shrink_with_noise_and_their_number_and_grow_with_the_distance():
    usual = steadied(1.0, 2.0, 0.3, 50)
    assert steadied(1.0, 2.0, 0.6, 50) == pytest.approx(math.sqrt(2) * usual)
    assert steadied(1.0, 2.0, 0.3, 200) == pytest.approx(8 * usual)
    assert steadied(1.0, 4.0, 0.3, 50) == pytest.approx(usual / 2)
    assert steadied(5.0, 2.0, 0.3, 50) >= usual
