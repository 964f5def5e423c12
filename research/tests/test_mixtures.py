import math

import mpmath
import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.stats import binom, norm

from userdp.privacy.accounting import Budget, BudgetExceeded, Cost, fits, gaussian_delta, gaussian_multiplier
from userdp_research.mechanisms import mixtures
from userdp_research.mechanisms.mixtures import claimed_epsilon, likely_multiplier, replace_one_delta, row_multiplier

GRID = 1e-3
X = np.linspace(-400, 400, 800_001)


def density(m, q, z, sign=1.0):
    """Of one round on the user's rows alone."""
    k = np.arange(m + 1)
    return sum(chance * norm.pdf(X, sign * count, z) for count, chance in zip(k, binom.pmf(k, m, q), strict=True))


def divergence(p, q, epsilon):
    return float(np.sum(np.maximum(0.0, p - math.exp(epsilon) * q)) * (X[1] - X[0]))


@pytest.mark.parametrize(("m", "z", "rounds"), [(1, 3.0, 1), (10, 60.0, 1), (10, 60.0, 20), (4, 1.0, 1)])
def test_without_sampling_it_is_a_gaussian_of_all_rows(m, z, rounds):
    mu = m * math.sqrt(rounds) / z
    for one in mixtures._pair(m, 1.0, z, rounds, GRID):
        for epsilon in (0.1, 0.5, 1.0, 2.0):
            exact = gaussian_delta(mu, epsilon)
            assert exact * (1 - 1e-6) - 1e-13 <= one.get_delta_for_epsilon(epsilon) <= exact * 1.001 + 1e-12


@pytest.mark.parametrize(("q", "z", "rounds"), [(0.1, 1.0, 1), (0.01, 0.8, 100), (0.3, 4.0, 30)])
def test_with_one_row_it_is_the_sampled_gaussian(q, z, rounds):
    ours = mixtures._pair(1, q, z, rounds, GRID)
    theirs = pld.from_gaussian_mechanism(
        z,
        sampling_prob=q,
        value_discretization_interval=GRID,
        neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
    ).self_compose(rounds)
    for one, other in zip(ours, (theirs._pmf_remove, theirs._pmf_add), strict=True):
        for epsilon in (0.05, 0.2, 0.5):
            expected = other.get_delta_for_epsilon(epsilon)
            assert expected * (1 - 1e-6) - 1e-13 <= one.get_delta_for_epsilon(epsilon) <= expected * 1.2 + 1e-13


def test_it_agrees_with_the_library_on_mixtures():
    m, q, z, rounds = 5, 0.1, 8.0, 40
    counts = np.arange(m + 1)
    theirs = pld.from_mixture_gaussian_mechanism(z, counts, binom.pmf(counts, m, q), value_discretization_interval=0.01)
    theirs = theirs.self_compose(rounds)
    for one, other in zip(mixtures._pair(m, q, z, rounds, 0.01), (theirs._pmf_remove, theirs._pmf_add), strict=True):
        for epsilon in (0.1, 0.5, 1.0):
            assert one.get_delta_for_epsilon(epsilon) == pytest.approx(other.get_delta_for_epsilon(epsilon), rel=1e-6)


@pytest.mark.parametrize(("m", "q", "z"), [(3, 0.2, 2.0), (10, 0.05, 5.0), (10, 0.9, 30.0)])
def test_a_round_is_never_below_the_divergence_by_quadrature(m, q, z):
    """Between the points of the grid, too: connect-the-dots rounds up."""
    with_user, without = density(m, q, z), norm.pdf(X, 0, z)
    ours = mixtures._pair(m, q, z, 1, 0.05)
    for epsilon in (0.05, 0.101, 0.3333, 0.5, 0.777):
        for one, exact in zip(
            ours, (divergence(with_user, without, epsilon), divergence(without, with_user, epsilon)), strict=True
        ):
            assert exact - 1e-9 <= one.get_delta_for_epsilon(epsilon) <= 1.2 * exact + 1e-5


def test_no_directions_of_rows_diverge_more_than_one_for_all():
    """Three rows in the plane, any lengths up to 1: the proof's comonotone pair is the worst, in both directions."""
    rng, z, q = np.random.default_rng(0), 1.0, 0.3
    axis = np.linspace(-7, 9, 321)
    plane = np.stack(np.meshgrid(axis, axis), axis=-1)
    cell = (axis[1] - axis[0]) ** 2

    def at(center):
        return np.exp(-((plane - center) ** 2).sum(axis=-1) / (2 * z**2)) / (2 * math.pi * z**2)

    def both(rows, epsilon):
        mixed = np.zeros(plane.shape[:2])
        for chosen in np.ndindex(2, 2, 2):
            mixed += np.prod([q if c else 1 - q for c in chosen]) * at(np.array(chosen) @ rows)
        plain, growth = at(np.zeros(2)), math.exp(epsilon)
        return [float(np.maximum(0, a - growth * b).sum() * cell) for a, b in ((mixed, plain), (plain, mixed))]

    for epsilon in (-0.5, 0.2, 1.0):
        worst = both(np.tile([1.0, 0.0], (3, 1)), epsilon)
        for _ in range(6):
            rows = rng.normal(size=(3, 2))
            rows *= rng.random((3, 1)) ** 0.3 / np.linalg.norm(rows, axis=1, keepdims=True)
            assert all(d <= w + 1e-9 for d, w in zip(both(rows, epsilon), worst, strict=True))


@pytest.mark.parametrize(("m", "q", "z", "epsilon"), [(3, 0.2, 2.0, 1.0), (10, 0.1, 12.0, 0.5), (5, 1.0, 20.0, 1.0)])
def test_a_replacement_costs_at_least_what_the_worst_replacement_does_and_little_more(m, q, z, epsilon):
    exact = divergence(density(m, q, z), density(m, q, z, sign=-1.0), epsilon)
    assert exact <= replace_one_delta(m, q, z, 1, epsilon) <= 4 * exact


def test_a_replacement_over_rounds_costs_at_least_a_gaussian_of_twice_the_rows():
    exact = gaussian_delta(2 * 3 * math.sqrt(7) / 40, 1.0)
    assert exact <= replace_one_delta(3, 1.0, 40.0, 7, 1.0) <= 2 * exact


def test_more_rounds_rows_and_probability_cost_more_and_noise_less():
    base = replace_one_delta(5, 0.1, 10.0, 20, 1.0)
    assert base < replace_one_delta(5, 0.1, 10.0, 40, 1.0)
    assert base < replace_one_delta(10, 0.1, 10.0, 20, 1.0)
    assert base < replace_one_delta(5, 0.2, 10.0, 20, 1.0)
    assert base > replace_one_delta(5, 0.1, 12.0, 20, 1.0)
    assert replace_one_delta(5, 1.0, 0.5, 1, 1.0) > 0.99


COUNTS = [
    (1, 0.5),
    (1, 1e-9),
    (7, 1e-140),
    (50, 0.1),
    (1000, 1 - 2.0**-53),
    (10_000, 1e-3),
    (10_000, 0.4),
    (10**9, 1e-7),
]


@pytest.mark.parametrize(("m", "q"), COUNTS)
def test_chances_of_counts_are_as_exact_as_the_proof_says(m, q):
    counts, chances, off = mixtures._kept_rows(m, q)
    assert np.all(np.diff(counts) == 1)
    assert binom.sf(counts[-1], m, q) + binom.cdf(counts[0] - 1, m, q) < 1e-20
    assert 2.0**-53 * (11 * counts.size + 600) <= off < 1e-10
    with mpmath.workdps(50):
        for place in np.unique(np.linspace(0, counts.size - 1, 50).astype(int)):
            k, fraction = int(counts[place]), mpmath.mpf(q)
            exact = mpmath.log(mpmath.binomial(m, k)) + k * mpmath.log(fraction) + (m - k) * mpmath.log(1 - fraction)
            assert abs(mpmath.mpf(float(np.log(chances[place]))) - exact) <= off


def test_counts_that_hardly_occur_are_not_looked_at():
    assert mixtures._kept_rows(10_000, 1e-3)[0].size < 60
    counts, chances, off = mixtures._kept_rows(12, 1.0)
    assert (counts.tolist(), chances.tolist(), off) == ([12.0], [1.0], 0.0)


@pytest.mark.parametrize("more", [0, 5])
def test_what_chances_may_be_off_is_charged_in_every_round(monkeypatch, more):
    """Chances that are off in their favour: some counts look likelier than they are. Then it is known, and charged."""
    size = (5, 0.3, 30.0, 40, 0.6)
    counts, chances, _ = mixtures._kept_rows(*size[:2])
    true = replace_one_delta(*size)
    wrong = chances * np.exp(np.where(counts == more, 2e-3, 0.0) if more else np.linspace(2e-3, -2e-3, counts.size))
    wrong /= wrong.sum()
    off = float(np.abs(np.log(wrong / chances)).max())
    try:
        found = []
        for declared in (0.0, off):
            mixtures._pair.cache_clear()
            monkeypatch.setattr(mixtures, "_kept_rows", lambda m, q, declared=declared: (counts, wrong, declared))
            found.append(replace_one_delta(*size))
        assert true <= found[1]
        assert found[1] > found[0] * math.exp(40 * off)
    finally:
        mixtures._pair.cache_clear()


def test_shifts_of_both_halves_and_the_factor_of_the_removal_are_charged(monkeypatch):
    """By closed forms, where nothing is sampled: d(e - off) e^off + e^e1 d(e - e1 - off)."""
    mu, epsilon, off = 3 * 2 / 24, 1.0, 0.02
    monkeypatch.setattr(mixtures, "_kept_rows", lambda m, q: (np.array([3.0]), np.ones(1), off / 4))
    splits = mixtures._SPLITS * epsilon
    expected = min(
        math.exp(off) * gaussian_delta(mu, e - off) + math.exp(e) * gaussian_delta(mu, epsilon - e - off)
        for e in splits
    )
    mixtures._pair.cache_clear()
    try:
        assert expected * (1 - 1e-6) <= replace_one_delta(3, 1.0, 24.0, 4, epsilon) <= expected * 1.005
    finally:
        mixtures._pair.cache_clear()


def test_rounding_and_rare_counts_are_charged_even_where_noise_is_endless():
    assert replace_one_delta(10, 0.1, 1e9, 1000, 1.0) >= 1000 * (1e-20 + 64 * 2.0**-53) + 1e-13


@pytest.mark.parametrize(("m", "q", "rounds"), [(1, 1.0, 1), (10, 0.01, 1000), (12, 0.25, 50), (100, 0.02, 200)])
@pytest.mark.parametrize("budget", [Budget(1.0, 1e-6), Budget(4.0, 1e-5)])
def test_the_multiplier_is_certified_and_little_less_is_not(m, q, rounds, budget):
    multiplier, epsilon = row_multiplier(budget, m, q, rounds), claimed_epsilon(budget)
    assert replace_one_delta(m, q, multiplier, rounds, epsilon) <= budget.delta
    assert replace_one_delta(m, q, multiplier / 1.02, rounds, epsilon) > budget.delta
    assert likely_multiplier(budget, m, q, rounds) == pytest.approx(multiplier, rel=0.1)
    # A full batch with as much noise in the mean is hardly dearer, and never cheaper than what a replacement needs.
    assert 0.95 < multiplier / (2 * m * q * math.sqrt(rounds) * gaussian_multiplier(budget)) < 1.3


def test_budgets_beyond_all_noise_are_refused():
    with pytest.raises(BudgetExceeded, match=r"larger epsilon than 0.001 .* Nothing was spent"):
        likely_multiplier(Budget(1e-3, 1e-6), 100_000, 1.0, 1_000_000)


def test_a_budget_without_end_ends_at_little_noise():
    """Beyond epsilon 50 none is gained, and exponentials of it would overflow."""
    assert row_multiplier(Budget(1e5, 0.5), 2, 1.0, 1) < 0.5
    assert replace_one_delta(2, 1.0, 0.4, 1, 1e5) == replace_one_delta(2, 1.0, 0.4, 1, 50.0)


@pytest.mark.parametrize("delta", [0.0, 1e-14])
def test_a_delta_that_rounding_eats_up_is_refused(delta):
    with pytest.raises(BudgetExceeded, match=r"larger delta than .* Nothing was spent"):
        row_multiplier(Budget(1.0, delta), 10, 0.1, 100)


@pytest.mark.parametrize("epsilon", [1e-3, 1.0, 50.0])
def test_what_a_record_claims_fits_the_budget(epsilon):
    budget = Budget(epsilon, 1e-6)
    assert fits(Cost(pure=(claimed_epsilon(budget),), failure=0.999e-6), budget)
    assert not fits(Cost(pure=(claimed_epsilon(budget),), failure=1.001e-6), budget)


def test_a_replacement_charges_the_addition_after_the_removal():
    """min over splits of d1(e1) + e^e1 d2(e - e1), by closed forms where nothing is sampled."""
    mu, epsilon = 3 / 12, 1.0
    splits = mixtures._SPLITS * epsilon
    expected = min(gaussian_delta(mu, e) + math.exp(e) * gaussian_delta(mu, epsilon - e) for e in splits)
    assert expected * (1 - 1e-6) <= replace_one_delta(3, 1.0, 12.0, 1, epsilon) <= expected * 1.01
