"""Means of vectors that never point apart: sqrt(2) r/K is what a replacement can do, attained and never exceeded."""

import importlib
import itertools
import math
import pkgutil
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from support import SilentNoise
from support_acute import all_of, inner, neighbouring_users, users_of
from support_audit import audited_gaussian_epsilon
from support_curator import BUDGET, RecordingEngine

import userdp.statistics
from userdp.privacy import clip
from userdp.privacy.accounting import Budget, gaussian_multiplier
from userdp.privacy.clip import Clip
from userdp.privacy.curator import Curator
from userdp.privacy.ledger import Ledger
from userdp.privacy.noise import SeededNoise
from userdp.privacy.plan import Plan, Step
from userdp.statistics.gradients import ACUTE, RowWeights
from userdp.statistics.moments import ColumnScales, MomentShape, RowScale, SecondMomentShape, UserMean

ROOM = clip._ROUNDED_ANGLE


def clipped(vectors, radius=1.0):
    """The mean that a session would release without noise."""
    with np.errstate(all="ignore"):
        return Clip(len(vectors), 5.0, acute=True).start(SilentNoise()).release(vectors, radius)


def statistics_of(basis):
    return MomentShape(basis), RowScale(RowWeights(basis, 1.0)), ColumnScales()


# --- sensitivity ------------------------------------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(drawn=neighbouring_users())
def test_no_replacement_moves_the_mean_by_more_than_its_sensitivity(drawn):
    data, other, basis, _ = drawn
    for statistic in statistics_of(basis):
        one, two = all_of(statistic, data), all_of(statistic, other)
        moved = math.hypot(*(clipped(one) - clipped(two)))
        assert moved <= Clip(data.n_users, 5.0, acute=True).sensitivity(1.0, one.shape[1])


@settings(max_examples=300, deadline=None)
@given(drawn=neighbouring_users())
def test_no_two_vectors_point_apart_or_are_longer_than_1(drawn):
    data, other, basis, replaced = drawn
    for statistic in statistics_of(basis):
        vectors = np.vstack([all_of(statistic, data), all_of(statistic, other)[replaced]])
        assert np.all(np.isfinite(vectors))
        for x, y in itertools.combinations_with_replacement(vectors, 2):
            assert inner(x, y) <= 1 + 1e-12
            assert 2 * inner(x, y) >= -ROOM / 2**10, "of a few rows, rounding turns by much less than the room"
            if basis.ndim == 1:
                assert inner(x, y) >= 0


@pytest.mark.parametrize("n_features", [3, 20])
@pytest.mark.parametrize("n_rows", [20, 64, 20_000])
def test_rounding_turns_moments_of_many_rows_by_less_than_there_is_room_for(n_features, n_rows):
    """Flat moments in directions of their own: exactly at a right angle, so that whatever is off is seen."""
    rng = np.random.default_rng(0)
    axes, _ = np.linalg.qr(rng.normal(size=(n_features, n_features)))
    users = [np.outer(rng.normal(size=n_rows) * 1e3, axis) for axis in axes.T]
    shapes = all_of(MomentShape(np.eye(n_features)), users_of(users, n_features))
    off = [2 * abs(inner(x, y)) for x, y in itertools.combinations(shapes, 2)]
    assert 0 < max(off) < 4 * (n_rows + 8) * math.sqrt(n_features) * 2.0**-53 < ROOM


@pytest.mark.parametrize("n_features", [3, 20, 200])
@pytest.mark.parametrize("n_rows", [20, 64, 1000])
def test_rounding_turns_moments_of_single_precision_by_less_than_there_is_room_for(n_features, n_rows):
    """Against the exact moments of these numbers, whose angles are not blunt."""
    rows = np.random.default_rng(0).lognormal(sigma=2, size=(2 * n_rows, n_features)).astype(np.float32)
    shapes = all_of(MomentShape(np.eye(n_features)), users_of([rows[:n_rows], rows[n_rows:]], n_features, np.float32))
    exact = all_of(MomentShape(np.eye(n_features)), users_of([rows[:n_rows], rows[n_rows:]], n_features))
    turned = math.sqrt(n_features) * (min(n_rows, 64) * 2.0**-24 + (n_rows + 8) * 2.0**-53)
    assert 4 * turned < ROOM / 2
    for x, y in zip(shapes, exact, strict=True):
        assert math.hypot(*(x - y)) < 2 * turned


@pytest.mark.parametrize("unit", [1e-37, 1e-30, 1e-20, 1e-12, 1e-9, 1.0, 1e9, 1e12, 1e20, 1e37])
def test_shapes_of_single_precision_rows_in_any_units_are_those_of_double(unit):
    """Squares of rows that single precision holds may over- or underflow there."""
    rows = (np.random.default_rng(0).normal(size=(6, 3)) * unit).astype(np.float32)
    of_single, of_double = (
        all_of(MomentShape(np.eye(3)), users_of([rows[:2], rows[2:]], 3, kind)) for kind in (np.float32, np.float64)
    )
    np.testing.assert_allclose(of_single, of_double, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(of_single, axis=1), 1.0)


@pytest.mark.parametrize("size", [2, 50, 1000])
@pytest.mark.parametrize("scale", [1.0, 1e-60, 1e60])
def test_the_sensitivity_is_attained_by_rows_along_one_axis_or_along_another(size, scale):
    empty = [[] for _ in range(size - 1)]
    one, other = (users_of([[axis], *empty], 2) for axis in (np.array([scale, 0.0]), np.array([0.0, scale])))
    for statistic in (MomentShape(np.eye(2)), MomentShape(np.ones(2))):
        moved = clipped(all_of(statistic, one)) - clipped(all_of(statistic, other))
        assert math.hypot(*moved) == pytest.approx(math.sqrt(2) / size, rel=1e-15)
    sensitivity = Clip(size, 5.0, acute=True).sensitivity(1.0, 3)
    assert math.sqrt(2) / size < sensitivity < math.sqrt(2) / size * (1 + 3e-4)


def test_the_sensitivity_is_attained_by_short_rows_or_long_ones():
    statistic = RowScale(RowWeights(np.eye(2), 1.0))
    one, other = (users_of([[[length, 0.0]], []], 2) for length in (1.0, 16.0))
    moved = clipped(all_of(statistic, one)) - clipped(all_of(statistic, other))
    assert math.hypot(*moved) == math.sqrt(2) / 2


@pytest.mark.parametrize(("size", "dimension"), [(1, 1), (100, 3), (10**6, 1000)])
def test_the_sensitivity_is_at_least_what_the_proof_says_of_rounding(size, dimension):
    """Angles of 2^34 / sqrt(features) rows, of single precision, a vector's length, the grid, and dividing totals."""
    turned = 2 * (2.0**-53 * (2.0**34 + 8 * math.sqrt(400)) + 2.0**-24 * 64 * math.sqrt(1024))
    apart = math.sqrt(2 * (1 + turned + turned**2))
    apart = math.sqrt(apart**2 + 4 * math.sqrt(dimension) * 2.0 ** -clip.grid_bits(size))  # rounding to the grid
    longer, divided = (dimension + 8) * 2.0**-52, 6 * size * 2.0**-53
    assert Clip(size, 5.0, acute=True).sensitivity(1.0, dimension) >= apart / size * (1 + longer + divided)


def test_rounding_to_a_coarse_grid_is_paid_for():
    """2^50 vectors on a grid of 11 bits: right angles become blunt by rounding, up to what is charged."""
    record = Clip(2**50, 5.0, acute=True)
    assert record.bits == 11
    charged = 4 * math.sqrt(20) * 2.0**-11
    apart = 2 * record.sensitivity(1.0, 20) / Clip(2**50, 5.0).sensitivity(1.0, 20)
    assert apart**2 >= (2 + ROOM + charged) * (1 - 1e-12)
    cosines = []
    for seed in range(100):
        right, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(20, 2)))
        one, other = (clip.clipped_total(v[None], 1.0, record.bits)[:-1] * 2.0**-11 for v in right.T)
        cosines.append(one @ other)
    assert 0 > min(cosines) >= -charged / 2


# --- cost and noise ---------------------------------------------------------------------------------------------------


def test_noise_is_that_of_right_angles_only_where_asked_for():
    for acute, apart in ((True, math.sqrt(2)), (False, 2.0), (None, 2.0), ("yes", 2.0), (1, 2.0)):
        record, noise = Clip(40, 5.0, acute=acute), SilentNoise()
        record.start(noise).release(np.zeros((40, 3)), 0.5)
        assert noise.asked == [("gaussian", record.sensitivity(0.5, 3), 5.0)]
        assert 1 <= record.sensitivity(0.5, 3) / (apart * 0.5 / 40) < 1 + 3e-4


def test_audit_of_the_release():
    """Rows along one axis against rows along another: the claim holds, and little of it is wasted."""
    runs, delta, epsilon = 4000, 1e-2, 4.0
    shapes = all_of(MomentShape(np.eye(2)), users_of(np.eye(2)[:, None, :], 2))

    def outcomes(version, multiplier):
        record, noise = Clip(100, multiplier, acute=True), SeededNoise(5 + version)
        rows = np.vstack([shapes[version], np.zeros((99, 3))])
        released = np.array([record.start(noise).release(rows, 1.0) for _ in range(runs)])
        return released[:, 0] - released[:, 2]

    def audited(multiplier):
        return audited_gaussian_epsilon(outcomes(0, multiplier), outcomes(1, multiplier), delta)

    multiplier = gaussian_multiplier(Budget(epsilon, delta))
    assert 0.8 * epsilon < audited(multiplier) <= epsilon
    assert audited(multiplier / 1.2) > epsilon


# --- the curator ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class OwnShape(MomentShape):
    """Computes something else, and is a MomentShape by name."""

    def __call__(self, data, users, n_groups):
        return -super().__call__(data, users, n_groups)


class OwnScale(RowScale):
    """A RowScale of one's own."""


def curator_of(acute, engine=None):
    data = users_of([[[1.0, 2.0]] for _ in range(40)], 2)
    plan = Plan(40, (Step("shape", 0, 40, Clip(40, 9.0, acute=acute)), Step("mean", 0, 40, Clip(40, 9.0))))
    return Curator(data, plan, Ledger(BUDGET), engine=engine)


@pytest.mark.parametrize(
    "statistic",
    [
        UserMean(),
        SecondMomentShape(1.0),
        OwnShape(np.eye(2)),
        OwnScale(RowWeights(np.eye(2), 1.0)),
    ],
    ids=lambda statistic: type(statistic).__name__,
)
def test_acute_steps_take_no_statistic_but_those_proven(statistic):
    engine = RecordingEngine()
    curator = curator_of(True, engine)
    words = f"'shape' takes only statistics .* proven never to point apart.*got {type(statistic).__name__}"
    with pytest.raises(TypeError, match=words):
        curator.release("shape", statistic, 1.0)
    assert engine.calls == [], "refused before data is read"
    curator.release("shape", MomentShape(np.eye(2)), 1.0)  # and the round was not used up
    curator.release("mean", statistic, 1.0)  # other steps take anything


def test_statistics_with_a_proof_are_these():
    for module in pkgutil.iter_modules(userdp.statistics.__path__):
        importlib.import_module(f"userdp.statistics.{module.name}")
    proven = (
        "CellFractions CentredSize CentredSquares ColumnScales CurvatureMatrix CurvatureSize GradientSquare "
        "Histograms MomentShape RowScale ScoreSquares"
    )
    assert sorted(kind.__name__ for kind in ACUTE if kind.__module__.startswith("userdp.")) == proven.split()


@pytest.mark.parametrize("statistic", statistics_of(np.eye(2)), ids=lambda statistic: type(statistic).__name__)
@pytest.mark.parametrize("acute", [True, False])
def test_shapes_and_scales_are_taken_everywhere(statistic, acute):
    released = curator_of(acute).release("shape", statistic, 1.0)
    assert released.shape == ({MomentShape: 3, RowScale: 128, ColumnScales: 42}[type(statistic)],)


@pytest.mark.parametrize("basis", [np.eye(3), np.ones(3), np.ones((2, 3)), np.ones(1)])
def test_a_basis_of_other_features_is_refused_before_data_is_read(basis):
    """The kernel would read beyond rows, and so other users' rows."""
    for statistic in (MomentShape(basis), RowScale(RowWeights(basis, 1.0))):
        if isinstance(statistic, RowScale) and len(basis) == 2:
            continue  # row lengths take any number of directions
        engine = RecordingEngine()
        with pytest.raises(ValueError, match="Expected a basis of 2 features"):
            curator_of(True, engine).release("shape", statistic, 1.0)
        assert engine.calls == []
