"""What people contribute to an evaluation: at most 1 long, never pointing apart, and of their own rows alone."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import SilentNoise
from support_acute import all_of, inner, users_of
from support_audit import audited_gaussian_epsilon
from support_curator import BUDGET

from userdp.evaluation.histogram import N_BINS
from userdp.privacy.accounting import Budget, gaussian_multiplier
from userdp.privacy.clip import Clip
from userdp.privacy.curator import Curator
from userdp.privacy.ledger import Ledger
from userdp.privacy.noise import SeededNoise
from userdp.privacy.plan import Plan, Step
from userdp.statistics.moments import symmetric
from userdp.statistics.scores import CellFractions, ScoreMeans, ScoreSquares

WIDTH = 3
HOSTILE = [0.0, 1.0, 2.0, 3.0, 5.0, -1.0, 0.5, 1e300, -1e300, 1e-300, math.nan, math.inf, -math.inf]
entries = st.one_of(st.sampled_from(HOSTILE), st.floats(-2.0, 2.0), st.floats())


def as_they_are(rows):
    return rows


MEANS = ScoreMeans(as_they_are, np.zeros(WIDTH))
TURNED = ScoreMeans(as_they_are, np.full(WIDTH, 0.25), None, np.array([[1.0, 0.5, 0.0], [0.0, 1.0, -2.0], [0.3, 0, 3]]))
SPLIT = ScoreMeans(as_they_are, np.zeros(WIDTH + 2), None, np.eye(WIDTH + 2) + 0.5, ((0, 0.25), (2, -0.5)))
STATISTICS = [
    CellFractions(3, 2),
    CellFractions(2, 3, most_rows=2),
    ScoreSquares(MEANS),
    ScoreSquares(TURNED),
    ScoreSquares(SPLIT),
    ScoreSquares(ScoreMeans(as_they_are, np.full(WIDTH, 0.25), most_rows=3)),
]


@st.composite
def neighbours(draw):
    """People's rows, and the same with one person's replaced, who may have any number of rows."""
    row = st.lists(entries, min_size=WIDTH, max_size=WIDTH)
    person = st.lists(row, min_size=0, max_size=4)
    people = draw(st.lists(person, min_size=2, max_size=5))
    replaced = draw(st.integers(0, len(people) - 1))
    other = [draw(person) if number == replaced else rows for number, rows in enumerate(people)]
    return users_of(people, WIDTH), users_of(other, WIDTH), replaced


def clipped(vectors, radius=1.0):
    with np.errstate(all="ignore"):
        return Clip(len(vectors), 5.0, acute=True).start(SilentNoise()).release(vectors, radius)


@settings(max_examples=150, deadline=None)
@given(drawn=neighbours())
def test_no_replacement_moves_a_mean_by_more_than_its_sensitivity(drawn):
    one, other, _ = drawn
    for statistic in STATISTICS:
        vectors, replaced = all_of(statistic, one), all_of(statistic, other)
        moved = math.hypot(*(clipped(vectors) - clipped(replaced)))
        assert moved <= Clip(one.n_users, 5.0, acute=True).sensitivity(1.0, vectors.shape[1])


@settings(max_examples=150, deadline=None)
@given(drawn=neighbours())
def test_no_two_vectors_point_apart_and_fractions_are_at_most_1_long(drawn):
    one, other, replaced = drawn
    for statistic in STATISTICS:
        vectors = np.vstack([all_of(statistic, one), all_of(statistic, other)[replaced]])
        finite = vectors[(np.abs(vectors) < 1e100).all(axis=1)]
        for x, y in itertools.combinations_with_replacement(finite, 2):
            longest = math.hypot(*x) * math.hypot(*y)
            assert inner(x, y) >= -1e-14 * longest
            if isinstance(statistic, CellFractions):
                assert inner(x, y) <= 1 + 1e-12
                assert min(x) >= 0


@settings(max_examples=100, deadline=None)
@given(drawn=neighbours())
def test_a_person_s_vector_is_the_same_bit_by_bit_whoever_else_there_is(drawn):
    one, other, replaced = drawn
    others = np.arange(one.n_users) != replaced
    for statistic in [*STATISTICS, MEANS, TURNED, SPLIT]:
        np.testing.assert_array_equal(all_of(statistic, one)[others], all_of(statistic, other)[others])


@pytest.mark.parametrize("size", [2, 1000])
def test_the_sensitivity_is_attained_by_people_in_two_cells_or_along_two_axes(size):
    empty = [[] for _ in range(size - 1)]
    cells = [users_of([[[cell, 0.0, 0.0]], *empty], WIDTH) for cell in (0.0, 5.0)]
    axes = [users_of([[axis], *empty], WIDTH) for axis in np.eye(WIDTH)[:2]]
    for statistic, (one, other) in ((CellFractions(3, 2), cells), (ScoreSquares(MEANS), axes)):
        moved = math.hypot(*(clipped(all_of(statistic, one)) - clipped(all_of(statistic, other))))
        assert moved == pytest.approx(math.sqrt(2) / size, rel=1e-12)


def test_means_are_turned_as_a_product_of_matrices_would():
    data = users_of([[[1.0, 2.0, 3.0], [3.0, 0.0, 1.0]], [[0.5, 0.5, 0.5]]], WIDTH)
    plain = ScoreMeans(as_they_are, TURNED.centre)
    np.testing.assert_allclose(all_of(TURNED, data), all_of(plain, data) @ TURNED.turn.T)


@settings(max_examples=100, deadline=None)
@given(drawn=neighbours())
def test_no_replacement_moves_a_mean_in_two_parts_by_more_than_its_sensitivity(drawn):
    one, other, _ = drawn
    record = Clip(one.n_users, 5.0)
    with np.errstate(all="ignore"):
        means = [record.start(SilentNoise()).release(all_of(SPLIT, data), 1.0) for data in (one, other)]
    assert math.hypot(*(means[0] - means[1])) <= record.sensitivity(1.0, WIDTH + 2)


def test_means_of_people_not_rows_are_split_at_knots():
    data = users_of([[[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]], [[0.1, 2.0, -1.0]]], WIDTH)
    split = ScoreMeans(as_they_are, np.zeros(WIDTH + 1), knots=((0, 0.25),))
    np.testing.assert_array_equal(all_of(split, data), [[0.25, 1.0, 1.5, 0.25], [0.1, 2.0, -1.0, 0.0]])


def test_who_has_more_rows_than_the_most_counts_no_more():
    data = users_of([[[0.0, 1.0, 1.0]] * 5, [[0.0, 1.0, 1.0]] * 2], WIDTH)
    assert all_of(CellFractions(1, 1, most_rows=2), data).max() == pytest.approx(math.sqrt(0.7))
    np.testing.assert_array_equal(all_of(ScoreMeans(as_they_are, np.zeros(WIDTH), 4), data)[:, 1], [1.0, 0.5])


def test_products_are_those_of_the_means():
    data = users_of([[[1.0, 2.0, 3.0], [3.0, 0.0, 1.0]], []], WIDTH)
    mean = np.array([2.0, 1.0, 2.0])
    (triangle,) = ScoreSquares(MEANS).vectors(data, np.arange(1))
    np.testing.assert_allclose(symmetric(triangle), np.outer(mean, mean))
    assert math.hypot(*triangle) == pytest.approx(mean @ mean)


@pytest.mark.parametrize(
    ("statistic", "versions"),
    [
        (CellFractions(2, 1), [[[0.0, 0.0, 0.0]], [[1.0, 0.0, 0.0]]]),
        (ScoreSquares(MEANS), [[[1.0, 0.0, 0.0]], [[0.0, 1.0, 0.0]]]),
    ],
    ids=["cells", "squares"],
)
def test_audit_of_the_releases(statistic, versions):
    """One cell or another, one axis or another: the claim holds, and little of it is wasted."""
    runs, delta, epsilon = 4000, 1e-2, 4.0
    vectors = all_of(statistic, users_of([*versions, *[[] for _ in range(98)]], WIDTH))
    apart = vectors[0] - vectors[1]

    def outcomes(version, multiplier):
        record, noise = Clip(100, multiplier, acute=True), SeededNoise(5 + version)
        rows = np.vstack([vectors[version], vectors[2:], np.zeros((1, vectors.shape[1]))])
        return np.array([record.start(noise).release(rows, 1.0) for _ in range(runs)]) @ apart

    def audited(multiplier):
        return audited_gaussian_epsilon(outcomes(0, multiplier), outcomes(1, multiplier), delta)

    multiplier = gaussian_multiplier(Budget(epsilon, delta))
    assert 0.8 * epsilon < audited(multiplier) <= epsilon
    assert audited(multiplier / 1.2) > epsilon


def test_means_are_not_taken_for_vectors_that_never_point_apart():
    data = users_of([[[0.0, 1.0, 0.0]], [[1.0, 0.0, 1.0]]], WIDTH)
    curator = Curator(data, Plan(2, (Step("spread", 0, 2, Clip(2, 50.0, acute=True)),)), Ledger(BUDGET))
    with pytest.raises(TypeError, match=r"Step 'spread'.*never to point apart.*got ScoreMeans"):
        curator.release("spread", MEANS, 1.0)
    assert curator.release("spread", CellFractions(2, N_BINS), 1.0).shape == (2 + 2 * N_BINS,)
