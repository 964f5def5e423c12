"""The paper's lemmas as printed (appendix A.1), each checked against what is true."""

import math

import numpy as np
import pytest

from userdp.baselines.mechanisms import paper
from userdp.privacy import accounting
from userdp.privacy.accounting import Budget, Cost


def test_laplace_mechanism_lemma():
    """log-density ratio of two Laplace distributions a sensitivity apart is at most epsilon."""
    scale = paper.laplace_scale(3.0, 0.5)
    x = np.linspace(-20, 20, 1001)
    assert np.max(np.abs(np.abs(x) - np.abs(x - 3.0)) / scale) == pytest.approx(0.5)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0, 9.0])
@pytest.mark.parametrize("delta", [1e-5, 1e-8])
def test_gaussian_mechanism_lemma_as_printed(epsilon, delta):
    std = paper.gaussian_std(2.0, epsilon, delta)
    assert std == pytest.approx(2 * math.sqrt(2 * math.log(2 / delta)) / epsilon)
    assert accounting.gaussian_delta(2.0 / std, epsilon) <= delta


def test_gaussian_mechanism_lemma_is_not_private_for_large_epsilon_and_is_corrected():
    epsilon, delta = 10.0, 1e-6
    printed = math.sqrt(2 * math.log(2 / delta)) / epsilon
    assert accounting.gaussian_delta(1 / printed, epsilon) > delta
    assert accounting.gaussian_delta(1 / paper.gaussian_std(1.0, epsilon, delta), epsilon) <= delta


def test_advanced_composition_is_above_the_exact_composition():
    epsilon, delta = paper.advanced_composition(0.05, 0.0, 100, 1e-6)
    assert epsilon == pytest.approx(math.sqrt(200 * math.log(1e6)) * 0.05 + 5 * (math.exp(0.05) - 1))
    assert accounting.delta_at(Cost(pure=(0.05,) * 100), epsilon) <= delta


def test_subsampling_is_above_the_exact_amplification():
    """A random subset of M of N users: the exact epsilon is ln(1 + (M/N)(e^epsilon - 1))."""
    epsilon, delta = paper.subsampled(0.5, 1e-6, 10, 100)
    assert epsilon == pytest.approx(0.1 * (math.exp(0.5) - 1))
    assert epsilon >= math.log(1 + 0.1 * (math.exp(0.5) - 1))
    assert delta == pytest.approx(1e-7)
    with pytest.raises(ValueError, match="subset"):
        paper.subsampled(0.5, 1e-6, 101, 100)


def test_above_threshold_accuracy_lemma():
    """alpha = 8 ln(2T/gamma)/epsilon bounds |nu_t| + |xi| for all t, except with probability gamma."""
    epsilon, queries, failure = 0.5, 100, 1e-3
    alpha = paper.above_threshold_accuracy(epsilon, queries, failure)
    chance = queries * math.exp(-alpha / 2 / (4 / epsilon)) + math.exp(-alpha / 2 / (2 / epsilon))
    assert chance <= failure


def test_the_tight_accountant_needs_less_noise_than_the_lemmas():
    tight = accounting.gaussian_multiplier(Budget(1.0, 1e-6))
    assert tight < paper.gaussian_std(1.0, 1.0, 1e-6) * 0.8
