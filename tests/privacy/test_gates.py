import math

import numpy as np
import pytest
from support import SilentNoise, laplace_mass
from support_audit import audited_epsilon

from userdp.paper import concentration as gates
from userdp.privacy.noise import SecureNoise, SeededNoise


@pytest.mark.parametrize("epsilon", [0.1, 1.0])
@pytest.mark.parametrize("at_least", [1, 5, 40])
def test_laplace_tail_is_the_sum_of_its_masses(epsilon, at_least):
    k, mass = laplace_mass(1 / epsilon, math.ceil(60 / epsilon) + 40)
    assert gates.laplace_tail(epsilon, at_least) == pytest.approx(mass[k >= at_least].sum(), rel=1e-9)


@pytest.mark.parametrize("epsilon", [0.01, 0.2, 1.0, 9.0])
@pytest.mark.parametrize("at_least", [1, 2, 7, 60])
def test_above_threshold_tail_is_the_convolution_of_its_two_noises(epsilon, at_least):
    reach = math.ceil(200 / epsilon)
    _, nu = laplace_mass(4 / epsilon, reach)
    _, xi = laplace_mass(2 / epsilon, reach)
    both = np.convolve(nu, xi)
    k = np.arange(-2 * reach, 2 * reach + 1)
    exact = both[k >= at_least].sum()
    assert gates.above_threshold_tail(epsilon, at_least) == pytest.approx(exact, rel=1e-9)
    assert gates.above_threshold_tail(epsilon, at_least) >= exact * (1 - 1e-10)


@pytest.mark.parametrize("tail", [gates.laplace_tail, gates.above_threshold_tail])
@pytest.mark.parametrize("probability", [0.3, 1e-3, 1e-9])
def test_least_excess_is_least(tail, probability):
    k = gates.least_excess(tail, 0.4, probability)
    assert tail(0.4, k) <= probability
    assert k == 1 or tail(0.4, k - 1) > probability


@pytest.mark.parametrize("probability", [0.0, 1.0, -1.0])
def test_impossible_probabilities_are_refused(probability):
    with pytest.raises(ValueError, match="probability"):
        gates.least_excess(gates.laplace_tail, 1.0, probability)


def test_above_threshold_draws_its_threshold_once_and_fresh_noise_a_round():
    noise = SilentNoise()
    gate = gates.AboveThreshold(10, 8.0, noise)
    assert gate.passes(10)
    assert gate.passes(11)
    assert not gate.passes(9)
    assert noise.asked == [("integer_laplace", 4.0)] + 3 * [("integer_laplace", 8.0)]
    with pytest.raises(RuntimeError, match="aborted"):
        gate.passes(100)


def test_the_single_test_uses_less_noise_and_answers_once():
    noise = SilentNoise()
    gate = gates.AboveThresholdOnce(10, 2.0, noise)
    assert gate.passes(10)
    assert noise.asked == [("integer_laplace", 2.0)]
    with pytest.raises(RuntimeError, match="one answer"):
        gate.passes(10)


@pytest.mark.parametrize("queries", [[0, 0, 0], [0, 3, -2, 1], [-5, 4]])
def test_above_threshold_is_epsilon_dp_exactly(queries):
    """Probabilities of every aborting time, summed over the noises, on all neighbouring streams of sensitivity 1."""
    epsilon, threshold = 0.8, 1
    xi, xi_mass = laplace_mass(2 / epsilon, 150)

    def aborting_distribution(values):
        # P(value + nu >= threshold + xi) for each xi; survive all earlier rounds, fail this one.
        survive, chances = np.ones(len(xi)), []
        for value in values:
            need = threshold + xi - value
            upper = np.exp(-epsilon / 4 * np.maximum(need, 1 - need)) / (1 + math.exp(-epsilon / 4))
            passing = np.where(need >= 1, upper, 1 - upper)
            chances.append(float(xi_mass @ (survive * (1 - passing))))
            survive = survive * passing
        return np.array([*chances, float(xi_mass @ survive)])

    base = aborting_distribution(queries)
    worst = 0.0
    for change in np.ndindex(*(3,) * len(queries)):
        other = aborting_distribution([value + step - 1 for value, step in zip(queries, change, strict=True)])
        worst = max(worst, np.max(np.abs(np.log(base / other))))
    assert 0.3 * epsilon < worst <= epsilon * (1 + 1e-6)


@pytest.mark.slow
def test_audit_of_the_single_test():
    """Its empirical privacy loss is near the claim, and above it if the noise were halved."""
    epsilon, runs = 1.0, 20_000

    def answers(value, claimed):
        noise = SecureNoise()
        return np.array([float(gates.AboveThresholdOnce(2, 1 / claimed, noise).passes(value)) for _ in range(runs)])

    assert 0.7 * epsilon <= audited_epsilon(answers(1, epsilon), answers(0, epsilon), 0.0) <= epsilon
    assert audited_epsilon(answers(1, 2 * epsilon), answers(0, 2 * epsilon), 0.0) > epsilon


def test_audit_of_above_threshold():
    """Aborting times on a stream where the user lowers one value and raises the others."""
    epsilon, runs = 1.0, 20_000

    def aborting_times(values, claimed):
        noise = SeededNoise(1)
        times = np.full(runs, float(len(values)))
        for run in range(runs):
            gate = gates.AboveThreshold(0, 4 / claimed, noise)
            for time, value in enumerate(values):
                if not gate.passes(value):
                    times[run] = time
                    break
        return times

    one, other = [1] * 8, [0] * 8
    assert audited_epsilon(aborting_times(one, epsilon), aborting_times(other, epsilon), 0.0) <= epsilon
    assert audited_epsilon(aborting_times(one, 4 * epsilon), aborting_times(other, 4 * epsilon), 0.0) > epsilon


def test_probabilities_beyond_reach_are_refused():
    with pytest.raises(ValueError, match="larger probability"):
        gates.least_excess(gates.above_threshold_tail, 1e-12, 1e-3)
