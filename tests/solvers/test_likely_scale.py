"""How large rows are, where no constant feature tells: seen if there is signal, and of size 1 if there is none."""

import numpy as np
import pytest

from userdp.solvers.whitening import likely_scale
from userdp.statistics.moments import RowScale


def noisy(place, noise, seed):
    frequencies = np.random.default_rng(seed).normal(0, noise, RowScale.SIZES.size)
    frequencies[place - 1 : place + 2] += (0.2, 0.6, 0.2)
    return frequencies


@pytest.mark.parametrize("place", [20, 64, 100])
def test_the_size_that_most_users_have_is_found_in_any_units(place):
    for seed in range(20):
        found = likely_scale(noisy(place, 0.03, seed), 0.03, 4)
        assert found == np.sqrt(RowScale.SIZES[place] / 4)


def test_noise_alone_makes_no_scale():
    """One of 128 noisy frequencies is always the largest; it would be off by many powers of ten."""
    for seed in range(20):
        assert 1 / 8 <= likely_scale(noisy(65, 0.5, seed), 0.5, 4) <= 8
