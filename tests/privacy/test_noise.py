import math
import os
import subprocess
import sys

import numpy as np
import opendp.prelude as dp
import pytest
from scipy.stats import chisquare, kstest, laplace, norm

from userdp import privacy
from userdp.privacy import noise as n
from userdp.privacy.accounting import LEAST_EPSILON_RESERVE


@pytest.fixture(params=["secure", "seeded"])
def source(request):
    return n.noise_source() if request.param == "secure" else n.noise_source(insecure_seed=3)


def test_gaussian_noise_is_normal_with_the_asked_scale(source):
    """4000 coordinates: halving the scale, or even a change of 10%, fails."""
    drawn = source.gaussian(np.full(4000, 5.0), sensitivity=0.01, multiplier=30.0)
    assert kstest(drawn, norm(5.0, 0.3).cdf).pvalue > 1e-6
    assert kstest(drawn, norm(5.0, 0.24).cdf).pvalue < 1e-3
    assert abs(drawn.std() / 0.3 - 1) < 0.06


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_noise_of_long_vectors_is_normal_and_no_two_coordinates_have_the_same(kind, monkeypatch):
    """Drawn in parts, on several threads: each gets noise of its own, of the whole vector's scale."""
    monkeypatch.setattr(n.os, "cpu_count", lambda: 4)
    size, asked = 4000, []
    whole = n._measurement
    monkeypatch.setattr(n, "_measurement", lambda *about: asked.append(about) or whole(*about))
    query = 1e3 * np.arange(size)
    drawn = getattr(n.SecureNoise(), kind)(query, 1.0, 5.0) - query
    std, law = (5.0, norm(0, 5.0)) if kind == "gaussian" else (0.2 * math.sqrt(2), laplace(0, 0.2))
    for part in np.split(drawn, 4):
        assert kstest(part, law.cdf).pvalue > 1e-6
    assert len(np.unique(drawn)) > 0.99 * size
    assert np.abs(np.corrcoef(np.split(drawn, 4)) - np.eye(4)).max() < 0.2
    scale = (n.gaussian_std if kind == "gaussian" else n.laplace_scale)(1.0, 5.0, size)
    assert [about for about in asked if about[2] == size // 4] == [(kind, scale, size // 4)] * 4
    assert drawn.std() == pytest.approx(std, rel=0.1)


def test_laplace_noise_has_the_asked_scale(source):
    drawn = source.laplace(np.full(4000, -1.0), sensitivity=0.5, epsilon=0.1)
    assert kstest(drawn, "laplace", args=(-1.0, 5.0)).pvalue > 1e-6
    assert kstest(drawn, "laplace", args=(-1.0, 2.5)).pvalue < 1e-9


SCALES = [0.7, 3.0, 4.0, 5.0, 6.0, 7.5, 12.0]


def assert_drawn_from(drawn, log_mass, scale):
    """Neighbouring values are as often as they should be, by the logarithm of their ratio, and so are all of them."""
    k = np.arange(-math.ceil(3 * scale), math.ceil(3 * scale) + 1)
    wide = np.arange(-math.ceil(40 * scale), math.ceil(40 * scale) + 1)
    expected = len(drawn) * np.exp(log_mass(k)) / np.exp(log_mass(wide)).sum()
    k, expected = k[expected > 50], expected[expected > 50]
    observed = np.array([np.sum(drawn == value) for value in k])
    ratios, errors = np.diff(np.log(observed)), np.sqrt(1 / observed[1:] + 1 / observed[:-1])
    assert np.all(np.abs(ratios - np.diff(log_mass(k))) < 5.5 * errors)
    rest = len(drawn) - observed.sum(), len(drawn) - expected.sum()
    assert chisquare([*observed, rest[0]], [*expected, rest[1]]).pvalue > 1e-7


@pytest.mark.parametrize("scale", SCALES)
def test_opendp_s_integer_noise_is_not_biased(scale):
    """At scales at which OpenDP 0.14.1 is: integer Laplace at 3, 5 and 6, thresholded counts at 4 and 5."""
    size = 40_000
    many = dp.m.make_laplace(dp.vector_domain(dp.atom_domain(T="i64"), size=size), dp.l1_distance(T="i64"), scale)
    assert_drawn_from(np.array(many([7] * size)) - 7, lambda k: -np.abs(k) / scale, scale)
    counts = n.SecureNoise().thresholded({str(key): 1000 for key in range(size)}, scale, 700)
    assert len(counts) == size
    assert_drawn_from(np.array(list(counts.values())) - 1000, lambda k: -(k**2) / (2 * scale**2), scale)


def test_an_opendp_whose_noise_is_biased_is_refused():
    for installed in ("0.14.0", "0.14.1", "0.14.2", "0.9.3", "unknown"):
        with pytest.raises(ImportError, match=f"opendp {installed} is too old: userdp needs opendp >= 0.15"):
            privacy.check_opendp(installed)
    for installed in ("0.15.0", "0.15.1.dev20260101", "0.16.0", "1.0"):
        privacy.check_opendp(installed)


def test_an_opendp_too_old_to_have_what_is_imported_is_refused_in_the_same_words(tmp_path):
    (tmp_path / "opendp").mkdir()
    (tmp_path / "opendp" / "__init__.py").touch()
    (tmp_path / "opendp-0.12.1.dist-info").mkdir()
    (tmp_path / "opendp-0.12.1.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: opendp\nVersion: 0.12.1\n"
    )
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    run = [sys.executable, "-c", "import userdp; userdp.LogisticRegression"]
    found = subprocess.run(run, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True)
    assert found.returncode == 1
    assert "opendp 0.12.1 is too old: userdp needs opendp >= 0.15" in found.stderr


@pytest.mark.parametrize("scale", SCALES)
def test_integer_laplace_has_exactly_its_discrete_distribution(source, scale):
    drawn = np.array([source.integer_laplace(7, scale) for _ in range(20_000)]) - 7
    reach = math.ceil(4 * scale)
    k = np.arange(-reach, reach + 1)
    mass = math.tanh(1 / (2 * scale)) * np.exp(-np.abs(k) / scale)
    inside = [np.sum(drawn == value) for value in k]
    observed = np.array([*inside, len(drawn) - sum(inside)])
    expected = np.array([*mass, 1 - mass.sum()]) * len(drawn)
    assert chisquare(observed, expected).pvalue > 1e-6
    assert chisquare(observed, np.full(len(expected), len(drawn) / len(expected))).pvalue < 1e-9


def test_secure_gaussian_noise_lies_on_its_grid():
    """What is released is a multiple of 2^-40 of the scale's power of two: no low bits to leak through."""
    drawn = n.SecureNoise().gaussian(np.full(100, 1 / 3), sensitivity=1.0, multiplier=5.0)
    grid = 2.0 ** (2 - n.GRID_BITS)
    assert np.all(drawn / grid == np.round(drawn / grid))


@pytest.mark.parametrize("dimension", [1, 50, 1000])
@pytest.mark.parametrize("multiplier", [0.5, 20.0, 1e5])
def test_the_grid_is_paid_for(dimension, multiplier):
    """OpenDP's own map, at the scale used, certifies the multiplier asked for; the bare scale would not."""
    std = n.gaussian_std(0.1, multiplier, dimension)
    assert n._measurement("gaussian", std, dimension).map(0.1) <= 1 / (2 * multiplier**2)
    assert 0.1 * multiplier < std < 0.1 * multiplier * (1 + 1e-4)
    assert n._measurement("gaussian", 0.1 * multiplier, dimension).map(0.1) > 1 / (2 * multiplier**2)


def test_the_laplace_grid_is_paid_for():
    scale = n.laplace_scale(2.0, 0.25, 100)
    assert n._measurement("laplace", scale, 100).map(2.0) <= 0.25
    assert 8.0 < scale < 8.0 * (1 + 1e-6)


def test_discrete_and_continuous_gaussian_differ_by_less_than_the_reserve():
    """The bound of docs/proofs.md, section 7, for a million coordinates drawn a thousand times."""
    ratio = 2.0**-n.GRID_BITS
    log_ratio = (40**2 / 24 + 1 / 8) * ratio**2
    assert 2 * 1e9 * log_ratio < LEAST_EPSILON_RESERVE


@pytest.mark.parametrize("fraction", [0.25, 0.1, 1 / 3])
def test_coins_round_their_probability_down(monkeypatch, fraction):
    """Of the 2^53 equally likely values exactly floor(fraction 2^53) are heads."""
    edge = math.floor(fraction * 2**53)
    words = np.array([edge - 1, edge], dtype=np.uint64) << np.uint64(11)
    monkeypatch.setattr(n, "_random_words", lambda size: words)
    assert n.SecureNoise().poisson_mask(np.full(2, fraction)).tolist() == [True, False]


def test_secure_coins_are_fresh():
    draws = {n.SecureNoise().poisson_mask(np.full(64, 0.5)).tobytes() for _ in range(3)}
    assert len(draws) == 3


@pytest.mark.parametrize("rho", [0.3, 0.1, 0.03])
def test_the_bound_between_discrete_and_rounded_gaussian_holds_on_coarse_grids(rho):
    """exp(-rho^2/8) <= P(rounded = k) / P(discrete = k) <= exp(R^2 rho^2/24) for |k| rho <= R."""
    reach = 6.0
    k = np.arange(-math.floor(reach / rho), math.floor(reach / rho) + 1)
    discrete = np.exp(-((k * rho) ** 2) / 2)
    wide = np.arange(-math.ceil(40 / rho), math.ceil(40 / rho) + 1)
    discrete /= np.exp(-((wide * rho) ** 2) / 2).sum()
    edges = norm.sf((np.abs(k) - 0.5) * rho) - norm.sf((np.abs(k) + 0.5) * rho)
    log_ratio = np.log(edges / discrete)
    assert log_ratio.min() >= -(rho**2) / 8 - 1e-12
    assert log_ratio.max() <= reach**2 * rho**2 / 24 + 1e-12


@pytest.mark.parametrize(("sensitivity", "multiplier"), [(0.0, 1.0), (math.inf, 1.0), (1.0, -1.0), (1.0, math.nan)])
def test_senseless_scales_are_refused(sensitivity, multiplier):
    with pytest.raises(ValueError, match="finite and > 0"):
        n.gaussian_std(sensitivity, multiplier, 3)


def test_permutations_are_uniform(source):
    counts = np.zeros((4, 4))
    for _ in range(4000):
        order = source.permutation(4)
        assert sorted(order) == [0, 1, 2, 3]
        counts[np.arange(4), order] += 1
    assert chisquare(counts.ravel()).pvalue > 1e-6


def test_a_permutation_with_equal_keys_is_drawn_again(monkeypatch):
    words = [np.array([5, 5, 1], dtype=np.uint64), np.array([5, 3, 1], dtype=np.uint64)]
    monkeypatch.setattr(n, "_random_words", lambda size: words.pop(0))
    assert n.SecureNoise().permutation(3).tolist() == [2, 1, 0]


def test_coins_fall_with_their_probabilities(source):
    fractions = np.repeat([0.0, 0.1, 0.75, 1.0], 20_000)
    heads = source.poisson_mask(fractions).reshape(4, -1).mean(axis=1)
    assert heads[0] == 0
    assert heads[3] == 1
    np.testing.assert_allclose(heads[1:3], [0.1, 0.75], atol=0.015)


def test_secure_draws_differ_and_seeded_draws_repeat():
    assert n.noise_source().seed is None
    assert n.noise_source(5).seed == 5
    query = np.zeros(3)
    assert np.any(n.SecureNoise().gaussian(query, 1.0, 1.0) != n.SecureNoise().gaussian(query, 1.0, 1.0))
    np.testing.assert_array_equal(
        n.SeededNoise(5).gaussian(query, 1.0, 1.0), n.SeededNoise(5).gaussian(query, 1.0, 1.0)
    )


def test_numpy_seeds_do_not_reach_the_secure_source():
    draws = []
    for _ in range(2):
        np.random.seed(0)  # noqa: NPY002 - the global seed is what must not reach it
        draws.append((n.SecureNoise().gaussian(np.zeros(2), 1.0, 1.0)[0], tuple(n.SecureNoise().permutation(20))))
    assert draws[0][0] != draws[1][0]
    assert draws[0][1] != draws[1][1]


def test_opendp_is_asked_for_the_right_mechanisms():
    """A Gaussian measured in zCDP and a Laplace in pure DP: the unit of the map is what the accountant assumes."""
    assert n._measurement("gaussian", 1.0, 2).output_measure == dp.zero_concentrated_divergence()
    assert n._measurement("laplace", 1.0, 2).output_measure == dp.max_divergence()


@pytest.mark.parametrize("high", [1, 2, 3, 7])
def test_integers_are_uniform(source, high):
    drawn = source.integers(14_000, high)
    assert drawn.dtype == np.int64
    counts = np.bincount(drawn, minlength=high)
    assert len(counts) == high
    assert high == 1 or chisquare(counts).pvalue > 1e-6


def test_a_scale_is_enlarged_until_opendp_s_map_allows_it(monkeypatch):
    """Whatever the first guess is: the map decides."""
    asked = []

    class Measurement:
        def __init__(self, scale):
            asked.append(scale)
            self.scale = scale

        def map(self, sensitivity):
            return sensitivity / self.scale * (1 + 1e-6)  # dearer than what the first guess allows for

    monkeypatch.setattr(n, "_measurement", lambda kind, scale, dimension: Measurement(scale))
    n._certified_scale.cache_clear()
    try:
        scale = n.laplace_scale(1.0, 0.25, 3)
    finally:
        n._certified_scale.cache_clear()
    assert len(asked) > 1
    assert 4 * (1 + 1e-6) <= scale == asked[-1] < 4 * (1 + 4e-6)
