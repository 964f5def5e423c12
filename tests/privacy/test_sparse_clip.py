"""Clipped means of sparse vectors: the same as of dense ones, for any entries."""

import math

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from support_statistics import assert_same_totals

from userdp import UserData, losses
from userdp.engines.local import LocalEngine
from userdp.privacy.clip import Clip, clipped_total
from userdp.statistics.gradients import ClippedGradient, MeanGradient, RowWeights
from userdp.statistics.moments import ColumnScales, MomentShape

WIDTH = 4
SPECIAL = [0.0, -0.0, 1.0, -3.0, math.nan, math.inf, 1e308, -1e308, 5e-324, 1e154, 2.0**-400]
numbers = st.one_of(st.sampled_from(SPECIAL), st.floats(-4.0, 4.0), st.floats())
any_vector = st.lists(st.tuples(st.integers(0, WIDTH - 1), numbers), max_size=6)
sound_vector = st.dictionaries(st.integers(0, WIDTH - 1), numbers).map(lambda found: sorted(found.items()))


def held(vectors):
    """Entries as they are given: in any order, and several of one column."""
    ends = np.cumsum([0, *map(len, vectors)])
    columns, values = ([entry[i] for vector in vectors for entry in vector] for i in (0, 1))
    return sp.csr_array((np.array(values, float), np.array(columns, np.int32), ends), shape=(len(vectors), WIDTH))


def distance(first, second):
    return math.sqrt(sum(int(a - b) ** 2 for a, b in zip(first[:-1], second[:-1], strict=True)))


@given(st.lists(any_vector, min_size=1, max_size=6), st.data(), st.sampled_from([1e-3, 1.0, 7.3]))
@settings(max_examples=300)
def test_no_replacement_moves_the_total_by_more_than_the_sensitivity(vectors, data, radius):
    """Whatever the entries are: repeated, in any order, not finite."""
    place, other = data.draw(st.integers(0, len(vectors) - 1)), data.draw(any_vector)
    clip = Clip(len(vectors), 1.0)
    before, after = (
        clipped_total(held(each), radius, clip.bits)
        for each in (vectors, [*vectors[:place], other, *vectors[place + 1 :]])
    )
    most = clip.sensitivity(radius, WIDTH) * clip.expected / radius * 2.0**clip.bits
    assert distance(before, after) <= most
    assert before[-1] == after[-1] == len(vectors)


@given(st.lists(sound_vector, min_size=1, max_size=6), st.sampled_from([1e-3, 1.0, 7.3]))
@settings(max_examples=300)
def test_totals_are_those_of_the_vectors(vectors, radius):
    dense = np.zeros((len(vectors), WIDTH))
    for row, vector in zip(dense, vectors, strict=True):
        for column, x in vector:
            row[column] = x
    found = clipped_total(held(vectors), radius, 40)
    assert_same_totals(found, clipped_total(dense, radius, 40), len(dense))
    assert np.array_equal(found, sum(clipped_total(held([one]), radius, 40) for one in vectors))


def test_entries_of_one_column_are_added_up_before_they_are_clipped():
    vectors = held([[(1, 3.0), (0, 8.0), (1, 3.0)], [(1, 0.25), (1, 0.25)]])
    before = [part.copy() for part in (vectors.data, vectors.indices, vectors.indptr)]
    assert clipped_total(vectors, 1.0, 10).tolist() == [819, 614 + 512, 0, 0, 2]
    assert all(map(np.array_equal, before, (vectors.data, vectors.indices, vectors.indptr))), "the input stays"


@pytest.mark.parametrize("column", [WIDTH, -1])
def test_columns_that_there_are_not_are_refused(column):
    vectors = held([[(0, 1.0)], [(1, 1.0)]])
    vectors.indices[1] = column
    with pytest.raises(ValueError, match="must be"):
        clipped_total(vectors, 1.0, 10)


# --- whole statistics on neighbouring data ----------------------------------------------------------------------------

D = 5
GRADIENT = MeanGradient(losses.logistic, np.linspace(-1, 1, D + 1), np.linspace(0.5, 2, D + 1))
WEIGHTED = MeanGradient(losses.squared, np.ones(D + 1), row_weights=RowWeights(np.ones(D + 1), 2.0))
SCALED = MomentShape(np.linspace(0.5, 2, D + 1))
CASES = [GRADIENT, ClippedGradient(WEIGHTED, 0.4, 2.0, 0.3), ColumnScales(), SCALED]
cell = st.tuples(st.integers(0, D - 1), numbers)
user = st.lists(st.tuples(st.lists(cell, max_size=4), numbers), min_size=1, max_size=3)


def data_of(users):
    rows = [row for each in users for row, _ in each]
    counts = np.cumsum([0, *(len(row) for row in rows)])
    indices, values = ([entry[i] for row in rows for entry in row] for i in (0, 1))
    X = sp.csr_array((np.array(values, float), np.array(indices, np.int32), counts), shape=(len(rows), D))
    targets = np.array([target for each in users for _, target in each], float)
    owners = np.repeat(np.arange(len(users)), [len(each) for each in users])
    return UserData.from_arrays(X, targets, owners, fit_intercept=True)


@pytest.mark.parametrize("statistic", CASES, ids=lambda case: type(case).__name__)
@given(users=st.lists(user, min_size=2, max_size=5), other=user, place=st.integers(0, 1))
@settings(max_examples=60)
def test_a_replaced_user_moves_a_statistics_total_by_at_most_the_sensitivity(statistic, users, other, place):
    clip, radius = Clip(len(users), 1.0, acute=isinstance(statistic, (ColumnScales, MomentShape))), 0.5
    contribution = clip.start(None).contribution(radius)
    totals = []
    for each in (users, [other if i == place else one for i, one in enumerate(users)]):
        data = data_of(each)
        with np.errstate(all="ignore"):
            totals.append(LocalEngine().total(statistic, contribution, data, np.arange(data.n_users)))
            parts = [LocalEngine().total(statistic, contribution, data, np.array([u])) for u in range(data.n_users)]
        assert np.array_equal(totals[-1], sum(parts)), "each user's part is its own"
    dimension = len(totals[0]) - 1
    assert distance(*totals) <= clip.sensitivity(radius, dimension) * clip.expected / radius * 2.0**clip.bits
