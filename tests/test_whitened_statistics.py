"""What whitened-clip computes of users: against plain numpy, and of each user's rows alone."""

import copy
import gc
import math
import pickle
import weakref

import numpy as np
import pytest
from cases import name, python_custom
from hypothesis import given
from support_acute import all_of, neighbouring_users
from support_statistics import N_FEATURES, data_of, vectors, weights_of, with_user

from userdp import UserData, losses
from userdp.statistics import rows as chosen
from userdp.statistics import totals
from userdp.statistics.gradients import N_SIZES, ClippedGradient, MeanCurvature, MeanGradient, RowWeights
from userdp.statistics.moments import ColumnScales, MomentShape, RowScale
from userdp.statistics.spreads import CurvatureMatrix, CurvatureSize, GradientSquare

RNG = np.random.default_rng(3)
BASIS = RNG.normal(size=(N_FEATURES, N_FEATURES))
DIAGONAL = np.abs(RNG.normal(size=N_FEATURES))
DIRECTIONS = RNG.normal(size=(N_FEATURES, 2))
SMOOTH = [losses.logistic, losses.squared, losses.huber(0.5), losses.smoothed_hinge(1.0), losses.multinomial(3)]


def gradient(loss=losses.logistic, basis=BASIS, longest=3.0, rows=True):
    weights = RowWeights(basis, longest) if rows else None
    return MeanGradient(loss, 0.3 * weights_of(loss), basis, row_weights=weights)


STATISTICS = {
    "moment shape": MomentShape(BASIS),
    "diagonal of the moment's shape": MomentShape(DIAGONAL),
    "row scale": RowScale(RowWeights(BASIS, 1.0)),
    "column scales": ColumnScales(),
    "weighted gradient": gradient(),
    "weighted gradient of a loss in Python": gradient(python_custom),
    "clipped gradient": ClippedGradient(gradient(), 0.5, 3.0, 0.2),
    "clipped gradient, diagonal": ClippedGradient(gradient(basis=DIAGONAL), 0.5, 3.0, 0.2),
    "clipped gradient in directions": ClippedGradient(gradient(), 0.5, 3.0, 0.2, DIRECTIONS),
    "clipped gradients of classes": ClippedGradient(gradient(losses.multinomial(3)), 0.5, 3.0, 0.2),
    "curvature": MeanCurvature(gradient(), 0.1, 0.25),
    "curvature matrix": CurvatureMatrix(gradient(), 0.3, 0.1),
    "curvature size": CurvatureSize(CurvatureMatrix(gradient(), 0.3, 0.1), 0.5),
    "gradient square": GradientSquare(gradient(), 0.5),
}
EVERY = pytest.mark.parametrize("statistic", STATISTICS.values(), ids=STATISTICS)


# --- one user's rows alone --------------------------------------------------------------------------------------------


@EVERY
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_users_vector_is_the_same_bit_by_bit_whoever_else_there_is(statistic, dtype):
    data = data_of(dtype)
    before = vectors(statistic, data)
    for changed, value in ((0, 9.0), (3, np.nan), (4, 1e30), (6, np.inf), (9, 0.0)):
        after = vectors(statistic, with_user(data, changed, rows=value))
        others = np.arange(data.n_users) != changed
        np.testing.assert_array_equal(after[others], before[others])
    # Others may also have more rows, fewer, or none.
    for changed in (0, 4):
        fewer = np.delete(np.arange(len(data.rows)), np.arange(*data.offsets[[changed, changed + 1]]))
        sizes = np.diff(data.offsets) * (np.arange(data.n_users) != changed)
        other = UserData(data.rows[fewer], data.targets[fewer], np.concatenate([[0], np.cumsum(sizes)]))
        others = np.arange(data.n_users) != changed
        np.testing.assert_array_equal(vectors(statistic, other)[others], before[others])


@EVERY
def test_it_is_the_same_in_any_order_and_in_any_block(statistic):
    data = data_of()
    before = vectors(statistic, data)
    order = np.random.default_rng(0).permutation(data.n_users)
    np.testing.assert_array_equal(vectors(statistic, data, order), before[order])
    for users in ([3], [8, 1], [9, 9, 0], np.tile(order, 40)):
        np.testing.assert_array_equal(vectors(statistic, data, users), before[np.asarray(users)])


@given(drawn=neighbouring_users())
def test_hostile_neighbours_change_nothing(drawn):
    data, other, basis, replaced = drawn
    rest = np.arange(data.n_users) != replaced
    inner = MeanGradient(losses.logistic, np.full(data.n_features, 0.3), basis, row_weights=RowWeights(basis, 2.0))
    for statistic in (MomentShape(basis), RowScale(inner.row_weights), ClippedGradient(inner, 0.5, 2.0, 0.2)):
        np.testing.assert_array_equal(all_of(statistic, data)[rest], all_of(statistic, other)[rest])


def test_gradients_of_many_features_are_turned_alike_wherever_they_stand():
    """A matrix product adds up a single row in another order than one of many."""
    rng = np.random.default_rng(0)
    n_features, basis, directions = 150, np.ones(150), rng.normal(size=(150, 4))
    data = data_of(n_features=n_features, rows_of_users=[2] * 60)
    inner = MeanGradient(losses.logistic, np.zeros(n_features), basis, row_weights=RowWeights(basis, 3.0))
    statistic = ClippedGradient(inner, 50.0, 3.0, 0.2, directions)
    together = vectors(statistic, data)
    for user in range(data.n_users):
        np.testing.assert_array_equal(vectors(statistic, data, [user])[0], together[user])
    np.testing.assert_array_equal(vectors(statistic, data, np.arange(7)), together[:7])


# --- against numpy ----------------------------------------------------------------------------------------------------


def all_rows(data):
    return chosen.Rows(data, np.arange(data.n_users))


def rows_of(data, user):
    return data.rows[data.offsets[user] : data.offsets[user + 1]].astype(np.float64)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("basis", [BASIS, DIAGONAL], ids=["full", "diagonal"])
def test_shapes_are_second_moments_of_length_1(basis, dtype):
    data = data_of(dtype)
    shapes = vectors(MomentShape(basis), data)
    for user in range(data.n_users):
        turned = rows_of(data, user) @ (np.diag(basis) if basis.ndim == 1 else basis)
        moment = turned.T @ turned
        if basis.ndim == 1:
            expected = np.diag(moment)
        else:
            upper = np.triu_indices(N_FEATURES)
            expected = moment[upper] * np.where(upper[0] == upper[1], 1.0, math.sqrt(2))
        length = np.linalg.norm(expected)
        atol = 1e-6 if dtype == np.float32 else 1e-12  # turned in the rows' own type
        np.testing.assert_allclose(shapes[user], expected / length if length else expected, atol=atol)
    np.testing.assert_array_equal(shapes[2], 0.0)  # it has no rows


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300, 1e-200, 0.0])
def test_users_of_extreme_rows_have_no_shape(value):
    data = with_user(data_of(), 3, rows=value)
    np.testing.assert_array_equal(vectors(MomentShape(np.eye(N_FEATURES)), data)[3], 0.0)


def test_row_scales_are_powers_of_four():
    scale = RowScale(RowWeights(np.eye(1), 1.0))
    lengths = [0.0, 1e-30, 0.5, 1.0, 1.3, 1.5, 2.0, 1e30, np.nan, np.inf]
    data = UserData(np.array(lengths)[:, None], np.zeros(10), np.arange(11))
    marked = vectors(scale, data)
    places = [int(np.argmax(row)) if row.any() else None for row in marked]
    assert places == [None, 0, 63, 64, 64, 65, 65, 127, None, None]
    np.testing.assert_array_equal(marked.sum(axis=1), [place is not None for place in places])
    assert RowScale.SIZES[65] == 4.0


def test_column_scales_are_powers_of_eight():
    rows = np.array([[1.0, 8.0], [3.0, 0.0], [1e-30, 64.0], [np.nan, 1e300], [0.3, -1.0]])
    marked = vectors(ColumnScales(), UserData(rows, np.zeros(5), np.arange(6))).reshape(5, 2, -1)
    places = [[int(np.argmax(block)) if block.any() else None for block in user] for user in marked]
    assert places == [[10, 11], [11, None], [0, 12], [None, None], [9, 10]]
    assert math.sqrt(ColumnScales.SIZES[11]) == 8.0
    np.testing.assert_allclose(marked[marked > 0], math.sqrt(0.5))


def test_of_curvature_and_rows_the_second_is_one_over_their_number():
    found = vectors(STATISTICS["curvature"], data_of())[:, 1]
    counts = np.diff(data_of().offsets)
    np.testing.assert_allclose(found[counts > 0] + 0.5, 1 / counts[counts > 0])


@pytest.mark.parametrize("basis", [BASIS, DIAGONAL, DIRECTIONS], ids=["full", "diagonal", "directions"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_row_lengths_are_norms(basis, dtype):
    data = data_of(dtype)
    turned = data.rows.astype(float) @ (np.diag(basis) if basis.ndim == 1 else basis)
    np.testing.assert_allclose(
        RowWeights(basis, 2.0).lengths(all_rows(data)), np.linalg.norm(turned, axis=1), rtol=1e-6
    )
    weights = RowWeights(basis, 2.0).of(all_rows(data))
    np.testing.assert_allclose(weights, np.minimum(1, 2 / np.linalg.norm(turned, axis=1)), rtol=1e-6)


@pytest.mark.parametrize("loss", [*SMOOTH, python_custom], ids=name)
@pytest.mark.parametrize("basis", [BASIS, DIAGONAL], ids=["full", "diagonal"])
def test_long_rows_count_as_if_they_were_so_long(loss, basis):
    data = data_of(n_classes=max(2, loss.n_outputs))
    found = vectors(gradient(loss, basis, longest=2.0), data)
    matrix = np.diag(basis) if basis.ndim == 1 else basis
    weights = (0.3 * weights_of(loss)).reshape(loss.n_outputs, -1)
    for user in (0, 1, 4):
        X, y = rows_of(data, user), data.targets[data.offsets[user] : data.offsets[user + 1]]
        predictions = X @ weights.T
        slopes = loss.slope(predictions if loss.n_outputs > 1 else predictions[:, 0], y)
        slopes = np.reshape(slopes, (len(X), -1)) * np.minimum(1, 2 / np.linalg.norm(X @ matrix, axis=1))[:, None]
        np.testing.assert_allclose(found[user], (slopes.T @ X @ matrix).ravel() / len(X), rtol=1e-5, atol=1e-12)


# --- clipped gradients ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("directions", [None, DIRECTIONS], ids=["all", "few"])
def test_gradients_are_clipped_and_their_sizes_marked(directions):
    data, clip, longest, mark = data_of(), 0.5, 3.0, 0.2
    plain = vectors(gradient(), data)
    plain = plain if directions is None else plain @ directions
    found = vectors(ClippedGradient(gradient(), clip, longest, mark, directions), data)
    for user, (g, vector) in enumerate(zip(plain, found, strict=True)):
        norm, marks = np.linalg.norm(g), vector[len(g) :]
        assert np.count_nonzero(marks) == 1
        if math.isnan(norm):
            assert user == 2  # it has no rows
            assert np.argmax(marks) == N_SIZES
            assert marks.max() == pytest.approx(0.6 * mark)
            np.testing.assert_array_equal(vector[: len(g)], 0.0)
        else:
            np.testing.assert_allclose(vector[: len(g)], g * min(1, clip / norm), rtol=1e-12)
            assert marks.max() == mark
            size = np.argmax(marks)
            assert longest / 2 ** (size + 1) < norm or size == N_SIZES - 1
            assert norm <= longest / 2**size or size == 0


@pytest.mark.parametrize("loss", [losses.logistic, losses.squared], ids=name)
@given(drawn=neighbouring_users())
def test_no_vector_is_longer_than_the_radius_or_not_finite(loss, drawn):
    data, _, basis, _ = drawn
    inner = MeanGradient(loss, np.full(data.n_features, 0.3), basis, row_weights=RowWeights(basis, 2.0))
    statistic = ClippedGradient(inner, 0.5, 2.0, 0.2)
    for vector in all_of(statistic, data):
        assert np.all(np.isfinite(vector))
        assert math.hypot(*vector) <= statistic.radius * (1 + 1e-12)
        assert np.count_nonzero(vector[data.n_features :]) == 1


@pytest.mark.parametrize("rows", [np.nan, np.inf])
def test_users_without_a_finite_gradient_are_marked_as_such(rows):
    statistic = ClippedGradient(gradient(losses.squared), 0.5, 3.0, 0.2)
    vector = vectors(statistic, with_user(data_of(), 3, rows=rows))[3]
    np.testing.assert_array_equal(np.flatnonzero(vector), [N_FEATURES + N_SIZES])


@pytest.mark.parametrize(("norm", "size"), [(9.0, 0), (1.1, 0), (1.0, 1), (0.6, 1), (0.5, 2), (1e-9, 11), (0.0, 11)])
def test_sizes_halve(norm, size):
    assert totals.size_of(np.array([norm]), 2.0, N_SIZES)[0] == size


def test_directions_of_other_vectors_are_refused():
    with pytest.raises(ValueError, match=f"Expected directions of {N_FEATURES} entries, got 2"):
        ClippedGradient(gradient(), 0.5, 3.0, 0.2, np.eye(2)).check(N_FEATURES)


# --- curvature --------------------------------------------------------------------------------------------------------


def second_derivative(loss, prediction, target):
    """Along the slope, by hand."""
    if loss.name == "logistic":
        p = 1 / (1 + math.exp(-prediction[0]))
        return p * (1 - p)
    if loss.n_outputs > 1:
        p = np.exp(prediction) / np.exp(prediction).sum()
        along = p - (np.arange(len(p)) == target)
        along /= np.linalg.norm(along)
        return float(along @ (np.diag(p) - np.outer(p, p)) @ along)
    if loss.name == "squared":
        return 1.0
    if loss.name.startswith("huber"):
        return float(abs(prediction[0] - target) < 0.5)
    margin = (1.0 if target > 0 else -1.0) * prediction[0]
    return float(0 < 1 - margin < 1)  # of a hinge that is rounded over a width of 1


@pytest.mark.parametrize("loss", SMOOTH, ids=name)
def test_curvature_is_the_mean_second_derivative_along_the_slope(loss):
    data = data_of(n_classes=max(2, loss.n_outputs))
    inner, longest = gradient(loss, longest=3.0), 3.0
    found = vectors(MeanCurvature(inner, 1e-6, loss.curvature), data)[:, 0]
    weights = (0.3 * weights_of(loss)).reshape(loss.n_outputs, -1)
    for user in range(data.n_users):
        X, y = rows_of(data, user), data.targets[data.offsets[user] : data.offsets[user + 1]]
        if len(X) == 0:
            assert found[user] == -0.5  # nothing curves there
            continue
        lengths = np.linalg.norm(X @ BASIS, axis=1)
        curvatures = [second_derivative(loss, p, t) for p, t in zip(X @ weights.T, y, strict=True)]
        parts = np.minimum(1, longest / lengths) * np.minimum(2, lengths**2 / longest**2) * curvatures
        expected = np.clip(np.mean(parts) / (2 * loss.curvature), 0, 1) - 0.5
        assert found[user] == pytest.approx(expected, abs=2e-5)


@given(drawn=neighbouring_users())
def test_curvatures_are_within_a_half_or_not_finite(drawn):
    data, _, basis, _ = drawn
    inner = MeanGradient(losses.logistic, np.full(data.n_features, 0.3), basis, row_weights=RowWeights(basis, 2.0))
    found = all_of(MeanCurvature(inner, 0.1, 0.25), data)
    assert np.all(np.abs(found[np.isfinite(found)]) <= 0.5)


def test_curvature_takes_gradients_with_row_weights_only():
    with pytest.raises(ValueError, match="row_weights"):
        MeanCurvature(gradient(rows=False), 0.1, 0.25).check(N_FEATURES)


# --- row weights hold nothing of the data -----------------------------------------------------------------------------


def test_lengths_go_with_the_data():
    weights, data = RowWeights(BASIS, 2.0), data_of()
    weights.lengths(all_rows(data))
    assert set(vars(weights)) == {"basis", "longest"}
    watched = weakref.ref(data)
    del data
    gc.collect()
    assert watched() is None, "weights do not keep data alive"


def test_lengths_of_other_data_of_the_same_shape_are_its_own():
    one, other = data_of(seed=0), data_of(seed=1)
    for basis in (BASIS, DIAGONAL):
        for data in (one, other, one):
            turned = data.rows @ (np.diag(basis) if basis.ndim == 1 else basis)
            found = RowWeights(basis, 2.0).lengths(all_rows(data))
            np.testing.assert_allclose(found, np.linalg.norm(turned, axis=1), rtol=1e-12)


@EVERY
def test_statistics_are_pickled_without_data(statistic):
    """After they have seen data; what they give afterwards is the same."""
    data = data_of()
    small = len(pickle.dumps(copy.copy(statistic)))
    before = vectors(statistic, data)
    pickled = pickle.dumps(statistic)
    assert len(pickled) == small
    np.testing.assert_array_equal(vectors(pickle.loads(pickled), data), before)


@pytest.mark.parametrize(
    ("basis", "longest", "message"),
    [
        (np.eye(2), 0.0, "longest=0.0 to be finite and > 0"),
        (np.eye(2), math.inf, "longest"),
        (np.eye(2), math.nan, "longest"),
        (np.full(2, math.nan), 1.0, "finite basis"),
        (np.ones((2, 2, 2)), 1.0, "finite basis"),
    ],
)
def test_impossible_weights_are_refused(basis, longest, message):
    with pytest.raises(ValueError, match=message):
        RowWeights(basis, longest)


@pytest.mark.parametrize("threshold", [0.0, 0.5, 30.0, 1e6])
@pytest.mark.parametrize("diagonal", [False, True])
def test_moments_below_a_threshold_keep_their_length_relative_to_it(threshold, diagonal):
    rng = np.random.default_rng(0)
    rows, offsets = rng.normal(size=(12, 3)) * 2.0, np.array([0, 1, 1, 5, 12])
    data = UserData(rows, np.zeros(12), offsets)
    basis = np.array([1.0, 0.5, 3.0]) if diagonal else np.triu(rng.normal(size=(3, 3)))
    found = MomentShape(basis, threshold)(data, np.arange(4), 4)
    for user, vector in enumerate(found):
        own = rows[offsets[user] : offsets[user + 1]]
        turned = own * basis if diagonal else own @ basis
        moment = turned.T @ turned / max(len(own), 1)
        length = np.linalg.norm(np.diag(moment) if diagonal else moment)
        expected = length / max(length, threshold) if length else 0.0
        assert np.linalg.norm(vector) == pytest.approx(expected, rel=1e-6)
        assert np.linalg.norm(vector) <= 1 + 1e-9


def test_a_threshold_must_be_a_number():
    for threshold in (-1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="threshold must be finite"):
            MomentShape(np.eye(2), threshold)
