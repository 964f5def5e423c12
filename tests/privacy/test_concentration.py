import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import brute_counts

from userdp._validate import check_radius
from userdp.paper import concentration as c
from userdp.paper import paper_outlier_removal as printed

# --- h-index, score and deficit ------------------------------------------------------------------------------------


def h_index_by_definition(counts):
    return max(k for k in range(len(counts) + 1) if np.sum(counts >= k) >= k)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=12))
def test_h_index_follows_its_definition(counts):
    assert c.h_index(np.array(counts)) == h_index_by_definition(np.array(counts))


LINE = [0.0, 1.0, 2.0, 3.0, math.nan]


@pytest.mark.parametrize("size", [2, 3, 4])
def test_exhaustively_a_replacement_changes_h_index_by_one_and_score_by_twice_the_others(size):
    """All sets of points on a line with ties at the radius, against all replacements of the first point."""
    statistics = {}
    for points in itertools.product(range(len(LINE)), repeat=size):
        counts = brute_counts(np.array([[LINE[p]] for p in points]), 1.0)
        statistics[points] = c.h_index(counts), counts.mean()
    worst_q = worst_s = 0.0
    for points, (q, s) in statistics.items():
        for other in range(len(LINE)):
            q_other, s_other = statistics[(other, *points[1:])]
            worst_q, worst_s = max(worst_q, abs(q - q_other)), max(worst_s, abs(s - s_other))
    assert worst_q == 1
    assert worst_s == pytest.approx(2 * (size - 1) / size)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_exhaustively_adding_a_user_keeps_the_deficit_or_raises_it_by_one(size):
    changes = set()
    for points in itertools.product(range(len(LINE)), repeat=size):
        base = np.array([[LINE[p]] for p in points])
        deficit = size - c.h_index(brute_counts(base, 1.0))
        for added in LINE:
            counts = brute_counts(np.vstack([base, [[added]]]), 1.0)
            changes.add(size + 1 - c.h_index(counts) - deficit)
    assert changes == {0, 1}


# --- the filtered mean ----------------------------------------------------------------------------------------------


def test_far_and_non_finite_vectors_get_no_weight_and_do_not_spoil_the_mean():
    rows = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, 0.5], [np.nan, 0.0], [np.inf, 0.0], [1e300, 0.0], [0.5, 0.0]])
    rows = c.comparable(rows, 1.0)
    counts = c.neighbour_counts(rows, 1.0)
    assert counts.tolist() == [4, 4, 4, 1, 1, 1, 4]
    np.testing.assert_allclose(c.filtered_mean(rows, counts, c.Ramp(2, 4)), [0.5, 0.125])


def test_a_mean_without_weights_is_zero():
    rows = np.full((3, 2), np.nan)
    assert c.filtered_mean(rows, np.ones(3, dtype=np.int64), c.Ramp(2, 3)).tolist() == [0.0, 0.0]


def test_rounding_is_relative_to_the_radius_not_to_the_vectors():
    """A million radii away from the origin the mean of K vectors is as exact as at the origin."""
    rng = np.random.default_rng(0)
    offsets = rng.uniform(-0.5, 0.5, (501, 3))
    base = np.round(offsets * 2**20) / 2**20
    shift = 2.0**19
    counts = np.full(501, 501)
    near = c.filtered_mean(base, counts, c.tight_ramp(501, 0))
    far = c.filtered_mean(c.comparable(base + shift, 1.0), counts, c.tight_ramp(501, 0)) - shift
    allowance = c.rounded_sensitivity(0.0, 501, 3, 1.0)
    assert np.linalg.norm(near - far) <= allowance
    assert allowance < 0.01 * c.sensitivity(501, 0, 1.0)


def test_vectors_huge_against_the_radius_are_far_from_everyone():
    rows = c.comparable(np.array([[2.0**20], [2.0**20 * 1.001], [-(2.0**21)], [0.0]]), 1.0)
    assert np.isnan(rows[:, 0]).tolist() == [False, True, True, False]


def test_comparable_does_not_write_into_its_input():
    given_rows = np.array([[np.inf], [1.0]])
    c.comparable(given_rows, 1.0)
    assert np.isinf(given_rows[0, 0])
    rows = np.array([[2.0**20, -1.0], [0.0, -(2.0**20)]])
    assert c.comparable(rows, 1.0) is rows  # all are ordinary: nothing to write


def test_a_row_is_ordinary_by_itself():
    rows = np.array([[0.0, 1.0], [np.nan, 0.0], [0.0, -np.inf], [-1.0, 1.0], [0.0, -1.1], [1.1, np.nan]])
    assert c._ordinary(rows, 1.0).tolist() == [True, False, False, True, False, False]
    assert [bool(c._ordinary(row[None], 1.0)[0]) for row in rows] == c._ordinary(rows, 1.0).tolist()


def test_too_few_vectors_for_the_slack_are_refused():
    with pytest.raises(ValueError, match="too few vectors"):
        c.tight_ramp(10, 4)


def test_the_papers_ramp_starts_where_the_proof_needs_it():
    assert (printed.paper_ramp(11).low, printed.paper_ramp(12).low, printed.paper_ramp(12).high) == (6.0, 6.5, 8.0)


def test_the_papers_ramp_needs_ten_vectors():
    """With five, replacing one user can take away all weights: four vectors at one place, one far away."""
    one = np.array([[0.0]] * 4 + [[50.0]])
    other = np.array([[-50.0]] + [[0.0]] * 3 + [[50.0]])
    assert brute_counts(one, 0.5).mean() >= 10 / 3
    assert c.Ramp(3.0, 10 / 3).weights(brute_counts(other, 1.0)).sum() == 0
    with pytest.raises(ValueError, match="n_vectors=5 >= 10"):
        printed.paper_ramp(5)
    with pytest.raises(ValueError, match="use more"):
        printed.random_selection_sensitivity(12, 1.0, 1e-9)


def test_two_vectors_within_the_score_radius_of_a_third_are_within_the_radius_as_computed():
    rng = np.random.default_rng(8)
    near = printed.score_radius(1.0, 3)
    for _ in range(2000):
        middle = rng.normal(0, 100, 3)
        step = rng.normal(size=3)
        step *= near / np.linalg.norm(step)
        rows = np.array([middle - step, middle, middle + step])
        counts = c.neighbour_counts(rows, near)
        if counts[1] == 3:
            assert c.neighbour_counts(rows, 1.0).tolist() == [3, 3, 3]


@pytest.mark.parametrize("radius", [0.0, -1.0, 1e-200, 1e200, 10**400, math.inf, math.nan])
def test_radii_that_could_overflow_are_refused(radius):
    with pytest.raises(ValueError, match="radius"):
        check_radius(radius)


@pytest.mark.parametrize("radius", [2.0**-500, 2.0**-400, 2.0**400, 2.0**500])
def test_means_at_extreme_radii_are_finite_and_within_their_bound(radius):
    rows = np.zeros((600, 2))
    rows[:300], rows[300:] = 0.3 * radius, -0.3 * radius
    other = rows.copy()
    other[300] = 0.3 * radius
    means = []
    for vectors in (rows, other):
        vectors = c.comparable(vectors, radius)
        means.append(c.filtered_mean(vectors, c.neighbour_counts(vectors, radius), c.tight_ramp(600, 0)) / radius)
    assert np.all(np.isfinite(means))
    assert 0 < np.linalg.norm(means[0] - means[1]) <= c.sensitivity(600, 0, 1.0)


def test_radii_that_are_no_numbers_are_refused():
    with pytest.raises(TypeError, match="radius must be a number, got str"):
        check_radius("4")


def test_check_radius_gives_a_plain_float():
    assert type(check_radius(np.float32(0.5))) is float


# --- factors of a search ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [(1, 2, 4), [1.0, 2.0, 4.0], np.array([1, 2, 4]), np.array([1, 2, 4], dtype=np.float16), (np.float32(1), 2, 4.0)],
)
def test_factors_become_a_tuple_of_plain_floats(given):
    factors = c.check_factors(given)
    assert factors == (1.0, 2.0, 4.0)
    assert isinstance(factors, tuple)
    assert {type(factor) for factor in factors} == {float}


def test_factors_may_reach_the_ends_of_their_range():
    assert c.check_factors((2.0**-100, 2.0**100)) == (2.0**-100, 2.0**100)
    for factors in ((2.0**-101, 1.0), (1.0, 2.0**101), (1.0, math.inf)):
        with pytest.raises(ValueError, match="Expected radii between"):
            c.check_factors(factors)


@pytest.mark.parametrize(
    "factors",
    [
        (),
        (0.0,),
        (-1.0, 1.0),
        (1.0, 1.0),
        (2.0, 1.0),
        (math.nan,),
        (1.0, math.nan),
        (1.0, math.nan, 3.0),
        (-math.inf, 1.0),
    ],
)
def test_factors_that_are_not_positive_and_increasing_are_refused(factors):
    with pytest.raises(ValueError, match="positive and increasing"):
        c.check_factors(factors)


@pytest.mark.parametrize("radii", [2.0, "12", None])
def test_radii_must_be_a_tuple(radii):
    with pytest.raises(TypeError, match=r"^Expected radii to be a tuple of numbers, got"):
        c.check_factors(radii)
