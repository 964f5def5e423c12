"""Clipped means of vectors that come by their entries: the same as of vectors, for any entries."""

import math

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from support_statistics import assert_same_totals

from userdp import UserData, losses
from userdp.engines.local import LocalEngine
from userdp.privacy.mechanisms.clip import Clip, clipped_total, clipped_total_of_entries
from userdp.statistics.entries import EntryVectors
from userdp.statistics.gradients import ClippedGradient, MeanGradient, RowWeights
from userdp.statistics.moments import ColumnScales, MomentShape

WIDTH = 4
SPECIAL = [0.0, -0.0, 1.0, -3.0, math.nan, math.inf, 1e308, -1e308, 5e-324, 1e154, 2.0**-400]
numbers = st.one_of(st.sampled_from(SPECIAL), st.floats(-4.0, 4.0), st.floats())
any_vector = st.lists(st.tuples(st.integers(-2, WIDTH + 1), numbers), max_size=6)
sound_vector = st.dictionaries(st.integers(0, WIDTH - 1), numbers).map(lambda found: sorted(found.items()))


def held(vectors):
    counts = np.array([len(vector) for vector in vectors])
    entries = [entry for vector in vectors for entry in vector]
    columns = np.array([column for column, _ in entries], dtype=np.int64)
    return EntryVectors(np.cumsum(counts) - counts, counts, columns, np.array([x for _, x in entries], float), WIDTH)


def distance(first, second):
    return math.sqrt(sum(int(a - b) ** 2 for a, b in zip(first[:-1], second[:-1], strict=True)))


@given(st.lists(any_vector, min_size=1, max_size=6), st.data(), st.sampled_from([1e-3, 1.0, 7.3]))
@settings(max_examples=300)
def test_no_replacement_moves_the_total_by_more_than_the_sensitivity(vectors, data, radius):
    """Whatever the entries are: repeated, out of range, not finite."""
    place, other = data.draw(st.integers(0, len(vectors) - 1)), data.draw(any_vector)
    clip = Clip(len(vectors), 1.0, fraction_multiplier=1.0)
    before, after = (
        clipped_total_of_entries(held(each), radius, clip.bits)
        for each in (vectors, [*vectors[:place], other, *vectors[place + 1 :]])
    )
    most = clip.sensitivity(radius, WIDTH) * clip.expected / radius * 2.0**clip.bits
    assert distance(before, after) <= most
    assert abs(int(before[-1]) - int(after[-1])) <= 2
    assert abs(int(before[-1])) <= len(vectors)


@given(st.lists(sound_vector, min_size=1, max_size=6), st.sampled_from([1e-3, 1.0, 7.3]))
@settings(max_examples=300)
def test_totals_are_those_of_the_vectors(vectors, radius):
    dense = np.zeros((len(vectors), WIDTH))
    for row, vector in zip(dense, vectors, strict=True):
        for column, x in vector:
            row[column] = x
    found = clipped_total_of_entries(held(vectors), radius, 40)
    assert_same_totals(found, clipped_total(dense, radius, 40, np.ones(len(dense))), len(dense))
    assert np.array_equal(found, sum(clipped_total_of_entries(held([one]), radius, 40) for one in vectors))


@pytest.mark.parametrize("entries", [[(1, 3.0), (1, 4.0)], [(WIDTH, 0.1)], [(-1, 0.1)]])
def test_entries_that_are_no_vector_count_as_not_finite(entries):
    total = clipped_total_of_entries(held([entries, [(0, 0.5)]]), 1.0, 10)
    assert total.tolist() == [512, 0, 0, 0, 0]


def test_entries_that_are_not_there_are_refused():
    vectors = held([[(0, 1.0)], [(1, 1.0)]])
    for changed in ({"starts": np.array([0, 2])}, {"starts": np.array([-1, 0])}, {"counts": np.array([1, 5])}):
        with pytest.raises(ValueError, match="entries are there"):
            clipped_total_of_entries(EntryVectors(**vars(vectors) | changed), 1.0, 10)


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


@pytest.mark.parametrize(
    ("starts", "counts"), [([0], [4]), ([-1], [1]), ([0], [-1]), ([2**62], [2**62]), ([0, 1], [1])]
)
def test_entries_beyond_all_numbers_are_refused(starts, counts):
    entries = EntryVectors(np.array(starts), np.array(counts), np.zeros(3, dtype=np.int64), np.ones(3), width=2)
    with pytest.raises(ValueError, match="entries are there"):
        clipped_total_of_entries(entries, 1.0, 10)
