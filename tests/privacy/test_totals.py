"""Totals of clipped vectors: the compiled loop against vectors, whoever is beside whom, and what sessions refuse."""

import contextlib
import pickle

import numpy as np
import pytest
from cases import python_custom
from hypothesis import given, settings
from hypothesis import strategies as st
from support_acute import neighbouring_users
from support_statistics import N_FEATURES, ROWS_OF_USERS, assert_same_totals, data_of, weights_of

from userdp import losses
from userdp.engines import LocalEngine
from userdp.privacy.clip import Clip, ClippedTotal
from userdp.privacy.noise import SeededNoise
from userdp.statistics.gradients import ClippedGradient, MeanGradient, RowWeights
from userdp.statistics.moments import MomentShape, UserMean
from userdp.statistics.smoothing import BallSmoothing

RNG = np.random.default_rng(5)
BASIS, DIAGONAL = RNG.normal(size=(N_FEATURES, N_FEATURES)), np.abs(RNG.normal(size=N_FEATURES))
MANY = ROWS_OF_USERS * 9  # more users than the loop takes at a time
LIMIT, LAPLACE = (ClippedTotal(0.4, 40, 7, laplace) for laplace in (False, True))


def gradient(loss=losses.logistic, basis=BASIS, **more):
    return MeanGradient(loss, 0.3 * weights_of(loss), basis, row_weights=RowWeights(BASIS, 3.0), **more)


STATISTICS = {
    "mean": UserMean(),
    "plain gradient": MeanGradient(losses.hinge, weights_of(losses.hinge)),
    "whitened gradient": gradient(),
    "smoothed gradient": gradient(smoothing=BallSmoothing(0.3, 4)),
    "marked gradient": ClippedGradient(gradient(), 0.3, 3.0, 0.06),
    "marked, diagonal": ClippedGradient(gradient(basis=DIAGONAL), 0.3, 3.0, 0.06),
    "marked, in directions": ClippedGradient(gradient(), 0.3, 3.0, 0.06, RNG.normal(size=(N_FEATURES, 2))),
    "marked, of classes": ClippedGradient(gradient(losses.multinomial(3)), 0.3, 3.0, 0.06),
    "marked, of a loss in Python": ClippedGradient(gradient(python_custom), 0.3, 3.0, 0.06),
    "moment shape": MomentShape(BASIS),
}
EVERY = pytest.mark.parametrize("statistic", STATISTICS.values(), ids=STATISTICS)


def total(statistic, data, users=None, contribution=LIMIT):
    users = np.arange(data.n_users) if users is None else np.asarray(users)
    return LocalEngine().total(statistic, contribution, data, users)


def vectors(statistic, data):
    return statistic(data, np.arange(data.n_users), data.n_users)


@EVERY
def test_totals_are_the_same_for_any_order_of_users_and_are_their_vectors(statistic):
    data = data_of(rows_of_users=MANY)
    order = np.random.default_rng(0).permutation(data.n_users)
    for limit in (LIMIT, LAPLACE):
        found, expected = total(statistic, data, None, limit), limit(vectors(statistic, data))
        np.testing.assert_array_equal(total(statistic, data, order, limit), found)
        assert_same_totals(found, expected, data.n_users, 1e-6)


@settings(max_examples=60, deadline=None)
@given(drawn=neighbouring_users(), radius=st.sampled_from([1e-3, 0.5, 1e6]))
def test_a_hostile_user_changes_its_own_part_of_a_total_alone(drawn, radius):
    data, other, basis, replaced = drawn
    inner = MeanGradient(losses.squared, np.full(data.n_features, 0.3), basis, row_weights=RowWeights(basis, 2.0))
    limit = ClippedTotal(radius, 30, 3)
    for statistic in (inner, ClippedGradient(inner, 0.5, 2.0, 0.2), UserMean()):
        mine = [total(statistic, one, [replaced], limit) for one in (data, other)]
        moved = total(statistic, other, None, limit) - total(statistic, data, None, limit)
        assert np.linalg.norm((moved - (mine[1] - mine[0])).astype(float)) <= 2.0**30 * 2.0**-19
        assert all(np.linalg.norm(one[:-1].astype(float)) <= 2.0**30 * (1 + 1e-9) for one in mine)


@pytest.mark.parametrize("n_features", [1, 8, 20, 51])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_turned_gradients_are_products_to_rounding_in_any_units(n_features, dtype):
    rng = np.random.default_rng(n_features)
    units = 10.0 ** rng.integers(-12, 13, n_features)
    data = data_of(dtype, n_features=n_features, rows_of_users=[3, 20, 1] * 9)
    basis = rng.normal(size=(n_features, n_features)) / units[:, None]
    scaled = type(data)((data.rows * units).astype(dtype), data.targets, data.offsets)
    plain = vectors(MeanGradient(losses.logistic, np.ones(n_features) / units), scaled)
    turned = vectors(MeanGradient(losses.logistic, np.ones(n_features) / units, basis), scaled)
    expected = plain @ basis
    room = (1e-5 if dtype == np.float32 else 1e-13) * np.abs(expected).max()
    np.testing.assert_allclose(turned, expected, atol=room)


def test_a_subclass_is_added_up_by_its_own_vectors():
    class Twice(MeanGradient):
        def vectors(self, data, users):
            return 2 * super().vectors(data, users)

    data, one = data_of(rows_of_users=MANY), Twice(losses.logistic, weights_of(losses.logistic))
    np.testing.assert_array_equal(total(one, data), LIMIT(vectors(one, data)))


@pytest.mark.parametrize("counted", [38, 39, 41, 42, 80, -40])
def test_totals_of_other_numbers_of_users_are_refused(counted):
    session = Clip(40, 5.0).start(SeededNoise(0))
    session.choose(np.arange(40))
    session.contribution(1.0)
    wrong = np.array([0, counted])
    with pytest.raises(ValueError, match="one vector for each user"):
        session.release_total(wrong, 1.0)


def test_a_total_is_released_with_the_radius_it_was_clipped_to():
    session = Clip(40, 5.0).start(SeededNoise(0))
    session.choose(np.arange(40))
    session.contribution(2.0)
    with pytest.raises(ValueError, match="radius"):
        session.release_total(np.array([0, 40]), 1.0)


def test_what_travels_to_other_machines_is_public_and_small():
    again = pickle.loads(pickle.dumps(LIMIT))
    assert again == LIMIT
    assert len(pickle.dumps(LIMIT)) < 200


@pytest.mark.parametrize(
    "wrong", [[3, 0, 2], [3, 0, 4], [0, 0, -6], [2**56, 0, 4], [0, -(2**56), 4], [-(2**63), 0, 4], [0, 0, -(2**63)]]
)
def test_totals_that_no_sum_of_clipped_vectors_can_be_are_refused(wrong):
    """Four vectors of at most 2^52 steps: another number of them, or coordinates beyond."""
    record = Clip(4, 2.0)
    session = record.start(SeededNoise(0))
    session.contribution(1.0)
    with (
        pytest.raises(ValueError, match="one vector for each user") if wrong != [3, 0, 4] else contextlib.nullcontext()
    ):
        session.release_total(np.array(wrong, dtype=np.int64), 1.0)
