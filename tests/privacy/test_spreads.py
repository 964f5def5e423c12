"""Matrices of users for standard errors: what they are, and that one user moves their mean by little."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from scipy.special import expit
from support import SilentNoise
from support_acute import all_of, inner, neighbouring_users, users_of
from support_statistics import N_FEATURES, data_of, weights_of

from userdp import losses
from userdp.auditing import pairs
from userdp.privacy import clip
from userdp.privacy.accounting import Budget
from userdp.privacy.clip import Clip
from userdp.privacy.noise import SeededNoise
from userdp.statistics.gradients import MeanGradient, RowWeights
from userdp.statistics.moments import symmetric
from userdp.statistics.spreads import (
    CentredMean,
    CentredSize,
    CentredSquares,
    CurvatureMatrix,
    CurvatureSize,
    GradientSquare,
)

BASIS = np.random.default_rng(3).normal(size=(N_FEATURES, N_FEATURES))
CURVED = {
    "logistic": (losses.logistic, lambda p: expit(p) * (1 - expit(p))),
    "squared": (losses.squared, np.ones_like),
    "poisson": (losses.poisson(1e6), lambda p: np.exp(p) / 1e6),
}


def statistics_of(basis, longest=3.0, loss=losses.logistic, weights=None):
    weights = np.full(len(basis), 0.3) if weights is None else weights
    gradient = MeanGradient(loss, weights, basis, row_weights=RowWeights(basis, longest))
    curved = CurvatureMatrix(gradient, 0.4, 1e-3)
    return curved, GradientSquare(gradient, 0.5), CurvatureSize(curved, 2.0)


@pytest.mark.parametrize("loss", CURVED.values(), ids=CURVED)
def test_they_are_what_numpy_computes(loss):
    loss, curvature = loss
    data, weights = data_of(), 0.3 * weights_of(loss)
    told_curved, told_square, sizes = (all_of(one, data) for one in statistics_of(BASIS, 3.0, loss, weights))
    for user in range(data.n_users):
        rows, targets = data.rows_of(user)
        if not len(rows):
            assert not told_curved[user].any()
            assert not told_square[user].any()
            assert not sizes[user].any()
            continue
        size = 2.0 * CurvatureSize.SIZES[np.flatnonzero(sizes[user])]
        assert size.size == 1
        assert (
            2**-0.26 < np.linalg.norm(told_curved[user]) / size[0] < 2**0.26
            or size[0] in 2.0 * CurvatureSize.SIZES[[0, -1]]
        )
        turned, predictions = rows @ BASIS, rows @ weights
        counted = np.minimum(1, 3.0 / np.linalg.norm(turned, axis=1))
        expected = (turned.T * (counted * curvature(predictions))) @ turned / len(rows)
        np.testing.assert_allclose(symmetric(told_curved[user, :-1]), expected, rtol=1e-4, atol=1e-9)
        assert told_curved[user, -1] == pytest.approx(0.4 * np.trace(expected), rel=1e-4)
        gradient = (counted * loss.slope(predictions, targets)) @ turned / len(rows)
        found = symmetric(told_square[user, :-1])
        np.testing.assert_allclose(found, np.outer(gradient, gradient), rtol=1e-5, atol=1e-9 * np.trace(found))
        assert told_square[user, -1] == pytest.approx(0.5 * float(gradient @ gradient), rel=1e-5)


@settings(max_examples=150, deadline=None)
@given(drawn=neighbouring_users())
def test_no_two_matrices_point_apart_and_a_replacement_moves_the_mean_by_at_most_its_sensitivity(drawn):
    data, other, basis, replaced = drawn
    assume(basis.ndim == 2)
    for statistic in statistics_of(basis, 2.0):
        one, two = all_of(statistic, data), all_of(statistic, other)
        assert np.all(np.isfinite(one))
        rest = np.arange(data.n_users) != replaced
        np.testing.assert_array_equal(one[rest], two[rest])
        vectors = np.vstack([one, two[replaced]])
        lengths = np.array([math.hypot(*vector) for vector in vectors])
        units = [vector / length for vector, length in zip(vectors, lengths, strict=True) if length > 0]
        for x, y in itertools.combinations_with_replacement(units, 2):
            assert 2 * inner(x, y) >= -clip._ROUNDED_ANGLE / 2**10, "rounding turns by much less than the room"
        mechanism = Clip(data.n_users, 5.0, acute=True)
        for radius in (0.3, 1.0):
            with np.errstate(all="ignore"):
                means = [mechanism.start(SilentNoise()).release(vectors, radius) for vectors in (one, two)]
            assert math.hypot(*(means[0] - means[1])) <= mechanism.sensitivity(radius, one.shape[1])


@settings(max_examples=150, deadline=None)
@given(drawn=neighbouring_users())
def test_squares_of_means_are_not_below_0_and_a_replacement_moves_their_mean_by_at_most_its_sensitivity(drawn):
    data, other, _, replaced = drawn
    d, rest = data.n_features, np.arange(data.n_users) != replaced
    for mean in (
        CentredMean(np.full(d, 0.5), 1.5),
        CentredMean(np.full(max(1, d - 1), -1.0), np.linspace(0.5, 1, max(1, d - 1))),
    ):
        one, two = (all_of(CentredSquares(mean), users) for users in (data, other))
        np.testing.assert_array_equal(one[rest], two[rest])
        np.testing.assert_array_equal(all_of(mean, data)[rest], all_of(mean, other)[rest])
        assert not np.any(np.vstack([one, two]) < 0)
        mechanism = Clip(data.n_users, 5.0, acute=True)
        with np.errstate(all="ignore"):
            means = [mechanism.start(SilentNoise()).release(vectors, 0.7) for vectors in (one, two)]
        assert math.hypot(*(means[0] - means[1])) <= mechanism.sensitivity(0.7, one.shape[1])


def test_squares_of_means_are_what_numpy_computes_and_attain_the_sensitivity():
    data = users_of([[[1.0, 2.0, 9.0], [3.0, 0.0, 9.0]], [], [[np.nan, 1.0, 1.0]]], 3)
    squares = all_of(CentredSquares(CentredMean(np.array([1.0, 3.0]), np.array([0.5, 2.0]))), data)
    np.testing.assert_array_equal(squares, [[4.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    means = [
        Clip(10, 5.0, acute=True)
        .start(SilentNoise())
        .release(all_of(CentredSquares(CentredMean(np.zeros(2), 1.0)), users_of([[axis], *[[]] * 9], 2)), 1.0)
        for axis in 30 * np.eye(2)
    ]
    assert math.hypot(*(means[0] - means[1])) == pytest.approx(math.sqrt(2) / 10, rel=1e-12)


@settings(max_examples=150, deadline=None)
@given(drawn=neighbouring_users())
def test_sizes_of_means_are_one_1_and_a_replacement_moves_their_mean_by_at_most_its_sensitivity(drawn):
    data, other, _, replaced = drawn
    statistic = CentredSize(CentredMean(np.full(data.n_features, 0.5), 1.5), (0.5, 1.0, 1.0, 4.0))
    one, two = all_of(statistic, data), all_of(statistic, other)
    np.testing.assert_array_equal(np.delete(one, replaced, axis=0), np.delete(two, replaced, axis=0))
    for vectors in (one, two):
        assert set(np.unique(vectors)) <= {0.0, 1.0}
        assert np.all(vectors.sum(axis=1) == 1)
    mechanism = Clip(data.n_users, 5.0, acute=True)
    means = [mechanism.start(SilentNoise()).release(vectors, 1.0) for vectors in (one, two)]
    moved = math.hypot(*(means[0] - means[1]))
    assert moved <= mechanism.sensitivity(1.0, 5)
    if np.any(one[replaced] != two[replaced]):
        assert moved == pytest.approx(math.sqrt(2) / data.n_users)


def test_means_that_are_too_far_count_as_the_centre():
    data = users_of([[[4.0, 6.0], [4.0, 4.0]], [[1e200, 1.0]], [[np.inf, 1.0]], [[2.0, 1.0]]], 2)
    told = all_of(CentredMean(np.array([1.0, 1.0]), 0.5, 9.0), data)
    np.testing.assert_array_equal(told, [[0, 0], [0, 0], [0, 0], [2, 0]])
    told = all_of(CentredMean(np.array([1.0, 1.0]), 0.5, 10.0), data)
    np.testing.assert_array_equal(told[0], [6, 8])


def test_sizes_of_means_are_what_numpy_computes():
    data = users_of([[[4.0, 6.0], [4.0, 4.0]], [], [[np.nan, 1.0]], [[1e200, 1.0]], [[2.0, 1.0]]], 2)
    sizes = all_of(CentredSize(CentredMean(np.array([1.0, 1.0]), 0.5), (1.0, 2.0, 9.9, 10.0)), data)
    np.testing.assert_array_equal(np.argmax(sizes, axis=1), [3, 0, 0, 4, 1])


def test_users_of_one_row_each_at_a_right_angle_attain_the_sensitivity():
    axes = 30 * np.eye(2)
    empty = [[] for _ in range(9)]
    for statistic in statistics_of(np.eye(2), 100.0, weights=np.zeros(2))[:2]:
        statistic = type(statistic)(**vars(statistic) | {"share": 1e-9})
        means = [
            Clip(10, 5.0, acute=True)
            .start(SilentNoise())
            .release(all_of(statistic, users_of([[axis], *empty], 2)), 1.0)
            for axis in axes
        ]
        assert math.hypot(*(means[0] - means[1])) == pytest.approx(math.sqrt(2) / 10, rel=1e-12)


def test_the_audit_attacks_them():
    names = {pair.what for pair in pairs.mechanism_pairs(Budget(1.0, 1e-6)) if pair.attack == "edges"}
    assert {"Clip, curvature matrices", "Clip, squares of gradients"} <= names
    for pair in pairs.mechanism_pairs(Budget(4.0, 1e-2)):
        if pair.what == "Clip, squares of gradients" and pair.attack == "edges":
            told = [np.mean([pair.play(SeededNoise(seed), version)[0] for seed in range(200)]) for version in (0, 1)]
            assert told[0] > 0 > told[1]


def test_what_is_nested_in_a_matrix_is_no_subclass():
    """Whose vectors could point apart: they would pass as a matrix's."""
    basis = np.eye(N_FEATURES)

    class Other(MeanGradient):
        pass

    gradient = Other(losses.logistic, np.zeros(N_FEATURES), basis, row_weights=RowWeights(basis, 3.0))
    with pytest.raises(ValueError, match="no subclass"):
        all_of(CurvatureMatrix(gradient, 0.5, 0.1), data_of())
