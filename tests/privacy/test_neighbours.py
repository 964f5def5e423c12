"""Neighbour counts equal the quadratic loop over the canonical predicate, on every input and through every path."""

import math
from fractions import Fraction
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from userdp.paper import neighbours
from userdp.paper.neighbours import _Blocks, _counts, neighbour_counts

examples = settings(deadline=None)

SMALL = _Blocks(rows=3, columns=2, direct=0)
BLOCKS = [SMALL, _Blocks(rows=1, columns=1, direct=0), _Blocks(rows=4, columns=64, direct=0), _Blocks()]


def power_of_two(radius: float) -> float:
    return math.ldexp(1.0, -min(max(math.frexp(radius)[1], -1000), 1000))


def squared_distance(a: list[float], b: list[float], scale: float) -> float:
    total = 0.0
    for left, right in zip(a, b, strict=True):
        difference = (left - right) * scale
        total += difference * difference
    return total


def reference(vectors: np.ndarray, radius: float) -> np.ndarray:
    """The definition, in plain Python."""
    scale = power_of_two(radius)
    limit = (radius * scale) * (radius * scale)
    rows = vectors.tolist()
    finite = [all(map(math.isfinite, row)) for row in rows]
    close = [
        [
            i == j or (finite[i] and finite[j] and squared_distance(rows[i], rows[j], scale) <= limit)
            for i in range(len(rows))
        ]
        for j in range(len(rows))
    ]
    return np.array([sum(row) for row in close], dtype=np.int64)


def fast_reference(vectors: np.ndarray, radius: float) -> np.ndarray:
    """The same for finite rows, a coordinate at a time so that every sum keeps its order."""
    scale = power_of_two(radius)
    counts = np.empty(len(vectors), dtype=np.int64)
    with np.errstate(over="ignore", under="ignore"):
        for start in range(0, len(vectors), 128):
            totals = np.zeros((len(vectors[start : start + 128]), len(vectors)))
            for column in vectors.T:
                difference = (column[start : start + 128, None] - column) * scale
                totals += difference * difference
            counts[start : start + 128] = (totals <= (radius * scale) * (radius * scale)).sum(axis=1)
    return counts


def check(vectors: np.ndarray, radius: float) -> None:
    expected = reference(vectors, radius)
    for blocks in BLOCKS:
        np.testing.assert_array_equal(_counts(vectors, radius, blocks), expected)
    np.testing.assert_array_equal(neighbour_counts(vectors, radius), expected)


def arrays(elements: st.SearchStrategy[float], rows: int = 12, columns: int = 4) -> st.SearchStrategy[np.ndarray]:
    """Rows drawn from a small pool, so that duplicates are common."""

    def build(width: int) -> st.SearchStrategy[np.ndarray]:
        row = st.lists(elements, min_size=width, max_size=width)
        pool = st.lists(row, min_size=1, max_size=rows)
        return pool.flatmap(lambda p: st.lists(st.sampled_from(p), min_size=1, max_size=rows)).map(
            lambda r: np.array(r, dtype=np.float64).reshape(len(r), width)
        )

    return st.integers(1, columns).flatmap(build)


grid = st.integers(-3, 3).map(float)
wild = st.one_of(
    st.floats(),
    st.sampled_from([0.0, -0.0, 5e-324, 2.2e-308, 1e-200, 1e-160, 1.0, 1e150, 1e300, -1e300, 1.7e308, -1.7e308]),
)
radii = st.one_of(
    st.floats(min_value=5e-324, max_value=1.7e308),
    st.floats(min_value=0.1, max_value=10),
    st.sampled_from([5e-324, 1e-310, 1e-300, 1e-160, 1.0, 2.0, 1e100, 1e150, 1.7e308]),
)


@examples
@given(arrays(grid), st.sampled_from([1.0, 2.0, 3.0, 5.0, math.sqrt(2), math.sqrt(3), math.sqrt(5)]))
def test_grids_full_of_exact_ties(vectors: np.ndarray, radius: float) -> None:
    check(vectors, radius)


@examples
@given(arrays(grid), st.integers(-1070, 1000), st.sampled_from([1.0, 2.0, 3.0, 5.0]))
def test_ties_at_any_power_of_two(vectors: np.ndarray, exponent: int, radius: float) -> None:
    expected = reference(vectors, radius)
    unit = math.ldexp(1.0, exponent)
    np.testing.assert_array_equal(_counts(vectors * unit, radius * unit, SMALL), expected)


@pytest.mark.parametrize("exponent", [-1074, -1073, -1068, -1040, -1000, 500, 1000, 1020])
def test_ties_at_the_ends_of_the_range(exponent: int) -> None:
    """The scaled squares of the smallest numbers underflow float32; those of the largest would overflow float64."""
    unit = math.ldexp(1.0, exponent)
    for seed in range(8):
        vectors = np.random.default_rng(seed).integers(-3, 4, size=(12, 2)).astype(np.float64)
        for radius in (1.0, 2.0, 3.0):
            expected = reference(vectors, radius)
            np.testing.assert_array_equal(_counts(vectors * unit, radius * unit, SMALL), expected)


@pytest.mark.parametrize("radius", [5e-324, 1e-160, 1e-5])
def test_duplicates_of_huge_vectors_are_neighbours(radius: float) -> None:
    check(np.array([[1e300, 0.0]] * 3 + [[-1e300, 5.0]] * 2 + [[1e308, 1e308]]), radius)


@examples
@given(arrays(wild), radii)
def test_any_floats_whatever(vectors: np.ndarray, radius: float) -> None:
    check(vectors, radius)


@examples
@given(arrays(st.floats(-2, 2), columns=6), st.data())
def test_radius_at_a_distance_of_the_data(vectors: np.ndarray, data: st.DataObject) -> None:
    i, j = (data.draw(st.integers(0, len(vectors) - 1)) for _ in range(2))
    distance = math.dist(vectors[i], vectors[j])
    steps = data.draw(st.integers(-2, 2))
    radius = distance
    for _ in range(abs(steps)):
        radius = math.nextafter(radius, math.copysign(math.inf, steps))
    check(vectors, radius if radius > 0 else 5e-324)


@examples
@given(arrays(wild, rows=10), radii, st.randoms(use_true_random=False))
def test_order_of_rows_does_not_matter(vectors: np.ndarray, radius: float, random: Random) -> None:
    permutation = list(range(len(vectors)))
    random.shuffle(permutation)
    counts = _counts(vectors, radius, SMALL)
    np.testing.assert_array_equal(_counts(vectors[permutation], radius, SMALL), counts[permutation])


@examples
@given(arrays(wild, rows=10), radii, st.data())
def test_one_replacement_moves_other_counts_by_at_most_one(
    vectors: np.ndarray, radius: float, data: st.DataObject
) -> None:
    width = vectors.shape[1]
    other = vectors.copy()
    other[0] = data.draw(st.lists(wild, min_size=width, max_size=width))
    change = _counts(other, radius, SMALL)[1:] - _counts(vectors, radius, SMALL)[1:]
    assert np.abs(change).max(initial=0) <= 1


@examples
@given(st.integers(1, 40), st.data())
def test_canonical_distance_is_bitwise_the_sequential_sum(width: int, data: st.DataObject) -> None:
    row = st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=width, max_size=width)
    a, b = data.draw(row), data.draw(row)
    scale = power_of_two(data.draw(radii))
    with np.errstate(all="ignore"):
        there = neighbours.squared_distances(np.array([a]), np.array([b]), scale)
        back = neighbours.squared_distances(np.array([b]), np.array([a]), scale)
    assert there == back == squared_distance(a, b, scale)


def test_nothing_contracts_or_reorders_the_canonical_sum() -> None:
    """Fused or reordered sums differ in the last bit for most random pairs: compare at that bit."""
    rng = np.random.default_rng(3)
    vectors = rng.normal(size=(200, 37))
    chosen = rng.integers(0, 200, size=(50, 2))
    found = neighbours.squared_distances(vectors[chosen[:, 0]], vectors[chosen[:, 1]], 1.0)
    for (i, j), distance in zip(chosen, found, strict=True):
        total = squared_distance(vectors[i].tolist(), vectors[j].tolist(), 1.0)
        assert distance == total
        for limit, hit in ((total, True), (math.nextafter(total, -1.0), False)):
            everyone = np.arange(200)
            ruler = neighbours.Ruler(1.0, 1.0, limit)
            _, columns = neighbours.count_directly(vectors, everyone[i : i + 1], everyone, ruler)
            assert columns[j] == hit


@pytest.mark.parametrize("offset", [0.0, 3.0, 100.0])
def test_band_covers_the_exact_error(offset: float) -> None:
    """The GEMM statistic is within half the band of its exact rational value; the rest is the predicate's."""
    rng = np.random.default_rng(5)
    dimension, radius = 24, 3.0
    scale = power_of_two(radius)
    limit = (radius * scale) ** 2
    vectors = rng.normal(size=(7, dimension)) + 1 / 3
    vectors[3:, 0] += offset
    pivot = vectors.mean(axis=0)
    norms = neighbours.squared_norms(vectors, pivot, scale)
    tiles = neighbours.Tiles(vectors, np.arange(7), norms, pivot, neighbours.Ruler(scale, radius * scale, limit))
    products = tiles.centred @ tiles.centred.T
    bias = norms / 2 - limit / 4
    for j in range(7):
        width = neighbours.band(norms[j : j + 1], norms.max(), dimension, limit)[0]
        for k in range(7):
            pairs = zip(vectors[j].tolist(), vectors[k].tolist(), strict=True)
            exact = sum(((Fraction(a) - Fraction(b)) * Fraction(scale)) ** 2 for a, b in pairs)
            computed = Fraction(float(products[j, k] - bias[k])) - Fraction(float(bias[j]))
            assert abs(computed - (Fraction(limit) - exact) / 2) < Fraction(float(width))


def clusters(rows: int, columns: int, kind: str) -> tuple[np.ndarray, float]:
    """Data that reach each path, and a radius."""
    rng = np.random.default_rng(rows + columns)
    x = rng.normal(size=(rows, columns))
    typical = math.sqrt(2 * columns)
    reach = 2.1 * float(np.linalg.norm(x, axis=1).max())
    far = np.zeros(columns)
    far[0] = 1.0
    match kind:
        case "concentrated":
            return x, reach
        case "two clusters":
            return x + 10 * reach * far * (rng.random((rows, 1)) < 0.5), reach
        case "two clusters, one radius apart":
            return np.round(x * 0) + reach * far * (rng.random((rows, 1)) < 0.5), reach
        case "outliers":
            return x * np.where(rng.random((rows, 1)) < 0.01, 20.0, 1.0), reach
        case "bulk":
            return x, 1.05 * typical
        case "no structure":
            return x * rng.exponential(size=(rows, 1)), typical
        case "lattice":
            return np.round(x), math.sqrt(round(2 * columns))
        case "wide band":  # Far from the pivot, yet close to each other.
            return np.where(rng.random((rows, 1)) < 0.5, 3000 * typical * far, x * 300), typical
        case "huge band":
            signs = np.where(rng.random((rows, 1)) < 0.5, 1.0, -1.0)
            return x + signs * 1e9 * typical * np.roll(far, 1) * rng.integers(1, 3, (rows, 1)), typical
        case "huge spread":
            return x * 10.0 ** rng.integers(-300, 300, size=(rows, 1)), typical
    raise ValueError(kind)


KINDS = [
    "concentrated",
    "two clusters",
    "two clusters, one radius apart",
    "outliers",
    "bulk",
    "no structure",
    "lattice",
    "wide band",
    "huge band",
    "huge spread",
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("columns", [1, 3])
def test_small_structures(kind: str, columns: int) -> None:
    check(*clusters(14, columns, kind))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "columns"), [(2600, 1), (1500, 7), (1500, 50), (700, 300)])
def test_large_structures(kind: str, rows: int, columns: int) -> None:
    vectors, radius = clusters(rows, columns, kind)
    expected = fast_reference(vectors, radius)
    np.testing.assert_array_equal(neighbour_counts(vectors, radius), expected)
    vectors[::7] = np.nan
    kept = np.isfinite(vectors).all(axis=1)
    expected[kept] = fast_reference(vectors[kept], radius)
    expected[~kept] = 1
    np.testing.assert_array_equal(neighbour_counts(vectors, radius), expected)


@pytest.mark.parametrize("fraction", ["BAND_FRACTION", "CROWD_FRACTION"])
@pytest.mark.parametrize("value", [0.0, 1e-5, 1.0])
def test_choice_of_path_cannot_alter_a_count(monkeypatch: pytest.MonkeyPatch, fraction: str, value: float) -> None:
    monkeypatch.setattr(neighbours, fraction, value)
    for kind in KINDS:
        check(*clusters(14, 3, kind))


@pytest.mark.parametrize("beyond", [-4e-16, 4e-16])
def test_pairs_within_the_band_are_decided_canonically(beyond: float) -> None:
    """Few pairs of a tile, so close to the radius that the product cannot tell."""
    vectors = np.random.default_rng(3).normal(size=(1500, 3))
    vectors[1::50] = vectors[::50] + np.array([2.5 * (1 + beyond), 0.0, 0.0])
    np.testing.assert_array_equal(neighbour_counts(vectors, 2.5), fast_reference(vectors, 2.5))


def test_groups_a_gap_apart_are_counted_apart() -> None:
    vectors = np.repeat([[0.0], [1e9], [1e12]], 5, axis=0)
    np.testing.assert_array_equal(_counts(vectors, 1.0, SMALL), np.full(15, 5))


@pytest.mark.parametrize("offset", [0.0, 0.1])
def test_certificates_yield_to_rounding_at_the_radius(offset: float) -> None:
    """Two points about their mean, radius at most an ulp from their distance: the last bits decide."""
    rng = np.random.default_rng(11)
    for _ in range(100):
        x = rng.normal(size=40)
        vectors = np.array([x, -x]) + offset
        distance = math.sqrt(squared_distance(vectors[0].tolist(), vectors[1].tolist(), 1.0))
        for radius in (distance, math.nextafter(distance, 0.0), math.nextafter(distance, math.inf)):
            np.testing.assert_array_equal(_counts(vectors, radius, SMALL), reference(vectors, radius))


def test_overflowing_distance_to_the_pivot_is_not_proof_of_far() -> None:
    """Differences to the pivot overflow on one side of 1.8e308 only, while the two rows there are neighbours."""
    vectors = np.array([[-0.9e308]] * 6 + [[0.89e308], [0.91e308]])
    for blocks in BLOCKS:
        np.testing.assert_array_equal(_counts(vectors, 1.5e308, blocks), [6] * 6 + [2] * 2)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 1)])
def test_degenerate_shapes(shape: tuple[int, int]) -> None:
    np.testing.assert_array_equal(neighbour_counts(np.ones(shape), 1.0), np.full(shape[0], shape[0]))


def test_strided_input_is_read_not_changed() -> None:
    vectors = np.asfortranarray(np.arange(12.0).reshape(4, 3))[::-1]
    before = vectors.copy()
    np.testing.assert_array_equal(neighbour_counts(vectors, 6.0), [2, 3, 3, 2])
    np.testing.assert_array_equal(vectors, before)


@pytest.mark.parametrize("radius", [0.0, -1.0, math.nan, math.inf])
def test_radius_must_be_finite_and_positive(radius: float) -> None:
    with pytest.raises(ValueError, match=r"Expected radius=.* > 0: "):
        neighbour_counts(np.ones((2, 2)), radius)


@pytest.mark.parametrize("vectors", [np.ones(3), np.ones((2, 2, 2))])
def test_vectors_must_be_a_matrix(vectors: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"Expected vectors"):
        neighbour_counts(vectors, 1.0)


def test_vectors_must_be_float64() -> None:
    with pytest.raises(TypeError, match=r"Expected vectors.dtype=float32 == float64: "):
        neighbour_counts(np.ones((2, 2), dtype=np.float32), 1.0)


def test_vectors_must_be_an_array() -> None:
    with pytest.raises(TypeError, match=r"Expected vectors of type list to be an array: "):
        neighbour_counts([[1.0]], 1.0)
