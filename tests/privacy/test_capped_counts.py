"""Neighbour counts up to a cap: equal to the capped exact counts on hostile data, whatever the pivot."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from userdp.paper import capped_counts as capped
from userdp.paper import concentration as c
from userdp.paper.neighbours import neighbour_counts
from userdp.paper.outlier_removal import OutlierRemoval, SampledOutlierRemoval
from userdp.privacy.accounting import AddedUserMultiplier
from userdp.privacy.noise import SeededNoise


@pytest.fixture(autouse=True)
def shortcuts(monkeypatch):
    """Nothing is too small or too scattered for the shortcuts."""
    monkeypatch.setattr(capped, "_SMALL", 0)
    monkeypatch.setattr(capped, "_MOST_PAIRS", math.inf)
    monkeypatch.setattr(capped, "_FEWEST_COLUMNS", 16)
    monkeypatch.setattr(capped, "_FEW_ROWS", 0)


def cloud(kind, size, dimension, rng):
    """Vectors and a radius."""
    vectors, typical = rng.normal(size=(size, dimension)), math.sqrt(2 * dimension)
    match kind:
        case "bulk":
            return vectors, typical
        case "concentrated":
            return vectors, 1.6 * typical
        case "flat":
            return vectors * np.append(10.0, np.ones(dimension - 1)), 1.5 * typical
        case "outliers":
            vectors[: size // 20] *= rng.choice([3.0, 50.0, 1e5, 1e9], size=(size // 20, 1))
            return vectors, 1.4 * typical
        case "grid":  # ties at exactly the radius
            return rng.integers(-2, 3, (size, dimension)).astype(float), math.sqrt(2 * dimension)
        case "duplicates":
            return np.repeat(vectors[: max(1, size // 7)], 7, axis=0), 1.2 * typical
        case "hostile":
            odd = rng.random((size, dimension)) < 0.02
            vectors[odd] = rng.choice([np.nan, np.inf, -np.inf, 1e300, -1e300, 5e-324, 0.0], size=odd.sum())
            return vectors, 1.4 * typical
        case "two":
            vectors[::3] += 1.2 * typical
            return vectors, 1.2 * typical
    raise AssertionError


KINDS = ["bulk", "concentrated", "flat", "outliers", "grid", "duplicates", "hostile", "two"]


@given(
    st.sampled_from(KINDS),
    st.integers(1, 160),
    st.integers(1, 9),
    st.integers(0, 2**32 - 1),
    st.floats(0.3, 1.2),
    st.sampled_from([1.0, 1e-100, 2.0**-1020, 1e150]),
    st.sampled_from(["own", "zero", "far", "nan"]),
    st.floats(0.3, 1.0),
    st.sampled_from([0, 32]),
)
@settings(max_examples=200, deadline=None)
def test_equal_to_the_capped_exact_counts(kind, size, dimension, seed, fraction, unit, pivot, part, few_rows):
    vectors, radius = cloud(kind, size, dimension, np.random.default_rng(seed))
    with np.errstate(all="ignore"):
        vectors = vectors * unit
    radius, enough = radius * unit, max(1, math.ceil(fraction * len(vectors)))
    pivots = {"own": None, "zero": 0.0, "far": 30 * radius, "nan": np.nan}
    guess = None if pivot == "own" else np.full(dimension, pivots[pivot])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capped, "_SMALL", 0)
        patch.setattr(capped, "_MOST_PAIRS", math.inf)
        patch.setattr(capped, "_FEW_ROWS", few_rows)
        counts = capped.capped_counts(vectors, radius, enough, guess)
        loose = capped.capped_counts(vectors, radius, enough, guess, math.ceil(part * enough))
    expected = np.minimum(neighbour_counts(vectors, radius), enough)
    np.testing.assert_array_equal(counts, expected)
    agree(loose, expected, math.ceil(part * enough))


def agree(counts, expected, whole):
    """Same h-index, same numbers up to `whole`."""
    assert c.h_index(counts) == c.h_index(expected)
    np.testing.assert_array_equal(np.minimum(counts, whole), np.minimum(expected, whole))
    assert np.all(counts <= expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dimension", [2, 20, 50])
def test_equal_to_the_capped_exact_counts_of_many(kind, dimension, monkeypatch):
    monkeypatch.setattr(capped, "_FEWEST_COLUMNS", 1024)
    vectors, radius = cloud(kind, 3000, dimension, np.random.default_rng(dimension))
    for factor in (0.9, 1.0, 1.15):
        exact = neighbour_counts(vectors, factor * radius)
        for enough in (1, 1500, 2800, 2960, 3000, 4000):
            counts = capped.capped_counts(vectors, factor * radius, enough)
            np.testing.assert_array_equal(counts, np.minimum(exact, enough))
            loose = capped.capped_counts(vectors, factor * radius, enough, whole=enough - enough // 40)
            agree(loose, np.minimum(exact, enough), enough - enough // 40)


@given(
    st.sampled_from(KINDS),
    st.integers(1, 160),
    st.integers(1, 9),
    st.integers(0, 2**32 - 1),
    st.floats(0.1, 1.2),
    st.floats(0.0, 1.0),
    st.floats(0.0, 1.0),
)
@settings(max_examples=200, deadline=None)
def test_the_clamped_h_index_is_that_of_the_exact_counts(kind, size, dimension, seed, factor, low, high):
    vectors, radius = cloud(kind, size, dimension, np.random.default_rng(seed))
    radius *= factor
    size = len(vectors)
    few, enough = (math.floor(part * size) for part in (min(low, high), max(low, high)))
    exact = c.h_index(neighbour_counts(vectors, radius))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capped, "_SMALL", 0)
        patch.setattr(capped, "_FEWEST_COLUMNS", 16)
        patch.setattr(c, "_FEW", 0)
        assert 0 <= capped.least_deficit(vectors, radius, size - few) <= min(size - few, size - exact)
        assert c.clamped_h_index(few, enough, vectors, radius) == max(few, min(exact, enough))


@pytest.mark.parametrize("factor", [0.3, 0.7, 0.8, 0.9, 1.0, 1.3])
def test_few_pairs_tell_an_h_index_that_is_far_too_small(factor, monkeypatch):
    looked, hits = [], capped._hits

    def counting(batch, rows, first, last, pool):
        looked.append(len(rows) * (last - first))
        return hits(batch, rows, first, last, pool)

    monkeypatch.setattr(capped, "_hits", counting)
    monkeypatch.setattr(capped, "_FEWEST_COLUMNS", 256)
    vectors = np.random.default_rng(0).normal(size=(5000, 20))
    vectors[::100] = np.nan
    radius = 9.5 * factor
    exact = c.h_index(neighbour_counts(vectors, radius))
    assert c.clamped_h_index(4600, 4900, vectors, radius) == max(4600, min(exact, 4900))
    if exact <= 4300:
        assert capped.least_deficit(vectors, radius, 400) == 400
        assert 0 < sum(looked) < 0.15 * 5000**2


def test_a_number_of_the_outermost_vectors_with_as_many_distant_ones_bounds_the_h_index(monkeypatch):
    """20 vectors to the left and 20 to the right of 60 others: these 40 have 20 distant ones each, and no more."""
    monkeypatch.setattr(capped, "_FEWEST_COLUMNS", 1024)
    vectors = np.concatenate([np.full(20, -0.6), np.zeros(60), np.full(20, 0.6)])[:, None]
    assert c.h_index(neighbour_counts(vectors, 1.0)) == 80
    assert [capped.least_deficit(vectors, 1.0, most) for most in (1, 10, 20, 21, 40)] == [1, 10, 20, 20, 20]
    vectors[40] = np.nan  # distant from all, and all from it
    assert c.h_index(neighbour_counts(vectors, 1.0)) == 79
    assert capped.least_deficit(vectors, 1.0, 40) == 21


@pytest.mark.parametrize("few_rows", [0, 10**9])
def test_pairs_at_the_radius_are_decided_canonically(few_rows, monkeypatch):
    """All pairs across are tied: whether they are close is a matter of the last bit."""
    monkeypatch.setattr(capped, "_FEW_ROWS", few_rows)
    for step in (-1, 0, 1):
        vectors = np.zeros((900, 3))
        vectors[::2, 0] = 0.1
        vectors[:5, 1] = 0.01
        radius = 0.1 + step * math.ulp(0.1)
        expected = np.minimum(neighbour_counts(vectors, radius), 880)
        np.testing.assert_array_equal(capped.capped_counts(vectors, radius, 880), expected)


def test_a_concentrated_batch_is_settled_with_few_pairs(monkeypatch):
    looked, hits = [], capped._hits

    def counting(batch, rows, first, last, pool):
        looked.append(len(rows) * (last - first))
        return hits(batch, rows, first, last, pool)

    monkeypatch.setattr(capped, "_hits", counting)
    vectors = np.random.default_rng(0).normal(size=(20_000, 20))
    vectors[:40] *= 1.7
    radius = 10.5  # 90% lie within half of it
    exact = neighbour_counts(vectors, radius)
    np.testing.assert_array_equal(capped.capped_counts(vectors, radius, 19_300), np.minimum(exact, 19_300))
    assert exact.min() < 19_300
    for_all = sum(looked)
    assert 0 < for_all < 0.006 * 20_000**2
    looked.clear()
    agree(capped.capped_counts(vectors, radius, 19_300, whole=19_000), np.minimum(exact, 19_300), 19_000)
    assert 0 < sum(looked) < for_all


def test_the_shells_bound_is_no_less_than_the_distant_vectors():
    rng = np.random.default_rng(3)
    for _ in range(30):
        dimension = int(rng.integers(1, 6))
        shell = rng.normal(size=(200, dimension)) * rng.uniform(0.1, 3, dimension)
        shell *= (rng.uniform(0.5, 0.6, 200) / np.linalg.norm(shell, axis=1))[:, None]
        moment = np.zeros((dimension, dimension))
        capped.sums(shell.astype(np.float32), np.zeros(shell.shape[1]), moment)
        np.testing.assert_allclose(moment, shell.T @ shell, atol=1e-4 * np.trace(moment))
        rows = rng.normal(size=(50, dimension))
        rows *= (rng.uniform(0.3, 0.7, 50) / np.linalg.norm(rows, axis=1))[:, None]
        largest = np.array([np.linalg.eigvalsh(shell.T @ shell)[-1] * (1 + 1e-9)])
        top = np.array([np.max(np.sum(shell**2, axis=1))])
        bound = capped.most_distant(np.sum(rows**2, axis=1), np.zeros(50, int), np.array([0, 200]), top, largest, 1.0)
        distant = np.count_nonzero(np.linalg.norm(rows[:, None] - shell, axis=2) > 1, axis=1)
        assert np.all(distant <= bound[:, 0])
        assert np.all(bound <= 200)


def test_the_bound_of_a_rows_own_direction_is_no_less_than_the_distant_vectors():
    """Shells off their centre, most of whose vectors point the same way, and rows that point either way."""
    rng = np.random.default_rng(4)
    closer = 0
    for _ in range(40):
        dimension = int(rng.integers(1, 6))
        shell = rng.normal(size=(200, dimension)) * rng.uniform(0.1, 3, dimension) + rng.normal(size=dimension)
        shell *= (rng.uniform(0.5, 0.6, 200) / np.linalg.norm(shell, axis=1))[:, None]
        rows = rng.normal(size=(50, dimension)) - rng.uniform(0, 2) * shell.mean(axis=0)
        rows *= (rng.uniform(0.3, 0.7, 50) / np.linalg.norm(rows, axis=1))[:, None]
        vectors = np.concatenate([shell, rows])
        lengths = np.linalg.norm(vectors, axis=1)
        ruler = capped.exact.ruler_of(1.0)
        numbers, singles = (np.arange(250), lengths**2, lengths, lengths), vectors.astype(np.float32)
        batch = capped._Sorted(vectors, *numbers, singles, np.zeros(dimension), ruler, 1.0, 1.0)
        moments = capped._shell_moments(batch, [0, 200])
        tops = np.array([lengths[:200].max()])
        bound = capped.fewer_distant(batch.centred[200:250], batch.upper[200:250], tops, moments, 1.0)[:, 0]
        distant = np.count_nonzero(np.linalg.norm(rows[:, None] - shell, axis=2) > 1, axis=1)
        assert np.all(distant <= bound)
        assert np.all(bound <= 200)
        edges, none = np.array([0, 200]), np.zeros(50, int)
        plain = capped.most_distant(lengths[200:] ** 2, none, edges, tops**2, moments.steepest, 1.0)[:, 0]
        closer += np.count_nonzero(bound < plain)
    assert closer > 500


def test_the_bound_of_a_rows_own_direction_is_reached():
    """Half of the vectors exactly beyond tau, the others as far on the other side: no smaller bound would be right."""
    shell = np.repeat([[-0.6], [0.6]], 100, axis=0)
    vectors = np.append(shell, [[0.65]], axis=0)
    lengths = np.abs(vectors[:, 0])
    batch = capped._Sorted(
        vectors,
        np.arange(201),
        lengths**2,
        lengths,
        lengths,
        vectors.astype(np.float32),
        np.zeros(1),
        capped.exact.ruler_of(1.0),
        1.0,
        1.0,
    )
    moments, near = capped._shell_moments(batch, [0, 200]), 1.2499999
    bound = capped.fewer_distant(batch.centred[200:201], batch.upper[200:201], np.array([0.6]), moments, near)
    assert 100 <= bound[0, 0] <= 101


@pytest.mark.parametrize("outliers", [40, 80])
def test_a_release_is_what_exact_counts_give(outliers, monkeypatch):
    """The cap alters neither weights nor, but for values that it cannot tell from K, the tested value."""
    record = OutlierRemoval(1000, 5.0, None, 1e-7, rounds=3, outliers=outliers, test_std=3.0)
    assert c.tight_ramp(1000, record.slack).high == record.whole < record.enough <= 1000
    assert record.enough - record.threshold >= record.reach
    vectors = np.random.default_rng(0).normal(size=(1000, 3))
    released = []
    for few in (0, 10**9):
        monkeypatch.setattr(c, "_FEW", few)
        session = record.start(SeededNoise(5))
        released.append([session.release(vectors + k / 10, 5.5) for k in range(3)])
    np.testing.assert_array_equal(*released)
    counts = neighbour_counts(vectors, 5.5)
    assert c.h_index(np.minimum(counts, record.enough)) == min(c.h_index(counts), record.enough)
    weights = c.tight_ramp(1000, record.slack).weights
    np.testing.assert_array_equal(weights(np.minimum(counts, record.enough)), weights(counts))


def test_a_release_of_a_sample_is_what_exact_counts_give(monkeypatch):
    record = SampledOutlierRemoval(4000, 0.25, AddedUserMultiplier(5.0), 3.0, 1e-7, rounds=3, outliers=40)
    vectors = np.random.default_rng(0).normal(size=(1000, 3))
    vectors[:12, 0] = 4.2
    ramp = c.minibatch_ramp(1000, record.slack, record.fraction)
    counts = neighbour_counts(vectors, 5.5)
    assert np.count_nonzero((counts > ramp.low) & (counts < ramp.high)) >= 10
    released = []
    for few in (0, 10**9):
        monkeypatch.setattr(c, "_FEW", few)
        session = record.start(SeededNoise(5))
        released.append([session.release(vectors + k / 10, 5.5) for k in range(3)])
    np.testing.assert_array_equal(*released)


def test_small_or_scattered_batches_and_huge_vectors_are_counted_exactly(monkeypatch):
    """No shortcut pays, or none can be certified: a single-precision square that overflows gives no bound."""
    vectors, radius = cloud("bulk", 60, 3, np.random.default_rng(3))
    expected = np.minimum(neighbour_counts(vectors, radius), 50)
    with monkeypatch.context() as few:
        few.setattr(capped, "_SMALL", math.inf)
        np.testing.assert_array_equal(capped.capped_counts(vectors, radius, 50), expected)
    with monkeypatch.context() as few:
        few.setattr(capped, "_MOST_PAIRS", -1.0)
        np.testing.assert_array_equal(capped.capped_counts(vectors, radius, 50), expected)
    vectors[:5] *= 1e17
    found = capped.capped_counts(vectors, radius, 50)
    np.testing.assert_array_equal(found, np.minimum(neighbour_counts(vectors, radius), 50))
    vectors[0] = 1e300  # finite, but its distance is not
    found = capped.capped_counts(vectors, radius, 50, pivot=np.median(vectors, axis=0))
    np.testing.assert_array_equal(found, np.minimum(neighbour_counts(vectors, radius), 50))
