"""Totals of users added up side by side: what privacy rests on. A user moves a total by its own part, and rounding.

Clipped gradients and moments are added up without a vector of each user. A user's factor, size and whether it counts
depend on its own rows to the last bit; sums of many users may round by where these stand, which `Clip` charges for.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from support_acute import neighbouring_users
from support_statistics import vectors

from userdp import UserData, losses
from userdp.data.sparse import SparseRows
from userdp.engines import LocalEngine
from userdp.privacy import clip
from userdp.privacy.clip import Clip, ClippedTotal
from userdp.privacy.noise import SecureNoise
from userdp.statistics import gradients, moments, rows, totals
from userdp.statistics.gradients import N_SIZES, ClippedGradient, MeanGradient, RowWeights
from userdp.statistics.moments import MomentShape

BITS = 40
STEP = 2.0**-BITS
OFF = 2 * totals.ALLOWED  # how far sums of the same users may be apart, in radii
TYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def user(n_rows, seed, d):
    rng = np.random.default_rng([n_rows, seed, d])
    return rng.normal(size=(n_rows, d)) * rng.choice([0.1, 1.0, 10.0]), rng.integers(0, 2, n_rows).astype(float)


@dataclass(frozen=True)
class Case:
    """A layout of data, and statistics of it."""

    d: int = 30
    units: str = "alike"
    basis: str = "full"
    sparse: bool = False
    intercept: bool = False
    outputs: int = 1
    weighted: bool = True
    width: int = 0  # of directions

    def data(self, users, dtype) -> UserData:
        X = np.concatenate([np.asarray(x, float).reshape(-1, self.d) for x, _ in users]) * self.sizes + self.shifts
        y = np.concatenate([np.asarray(t, float) for _, t in users])
        offsets = np.concatenate([[0], np.cumsum([len(t) for _, t in users])])
        with np.errstate(all="ignore"):
            X = X.astype(dtype)
        if not self.sparse:
            return UserData(X, y, offsets, has_intercept=self.intercept)
        few = scipy.sparse.csr_array(np.where(np.abs(X) < 0.5, 0.0, X).astype(dtype))
        held = SparseRows(few.indptr.astype(np.int64), few.indices, few.data, self.d)
        return UserData(held, y, offsets, has_intercept=self.intercept)

    @functools.cached_property
    def sizes(self):
        return 10.0 ** np.linspace(-8, 8, self.d) if self.units == "scales" else np.ones(self.d)

    @functools.cached_property
    def shifts(self):
        return 2000.0 * (np.arange(self.d) % 2) if self.units == "years" else np.zeros(self.d)

    @functools.cached_property
    def matrix(self):
        """What whitens rows, if units are not alike; columns of years nearly cancel there."""
        width, rng = self.d + self.intercept, np.random.default_rng(7)
        if self.basis == "diagonal":
            return np.append(1 / self.sizes, [1.0] * self.intercept) * rng.uniform(0.5, 2.0, width)
        X = rng.normal(size=(500, self.d)) * self.sizes + self.shifts
        X = np.column_stack([X, np.ones((500, width - self.d))]) / np.append(self.sizes, [1.0] * self.intercept)
        values, axes = np.linalg.eigh(X.T @ X / 500)
        whitening = axes / np.sqrt(np.maximum(values, 1e-12)) / np.append(self.sizes, [1.0] * self.intercept)[:, None]
        return whitening @ np.linalg.qr(rng.normal(size=(width, width)))[0]

    def gradient(self):
        loss = losses.logistic if self.outputs == 1 else losses.multinomial(self.outputs)
        sizes = np.tile(np.append(self.sizes, [1.0] * self.intercept), self.outputs)
        weights = 0.1 * np.random.default_rng(8).normal(size=sizes.size) / sizes
        longest = RowWeights(self.matrix, 4.0) if self.weighted else None
        gradient = MeanGradient(loss, weights, self.matrix, row_weights=longest)
        directions = np.random.default_rng(9).normal(size=(sizes.size, self.width)) if self.width else None
        return ClippedGradient(gradient, 0.5, 2.0, 0.1, directions)

    def statistics(self):
        return self.gradient(), MomentShape(self.matrix), MomentShape(self.matrix, 20.0)


CASES = {
    "full": Case(),
    "plain rows": Case(weighted=False),
    "diagonal": Case(basis="diagonal"),
    "intercept": Case(intercept=True),
    "several outputs": Case(outputs=3),
    "several outputs, diagonal": Case(outputs=3, basis="diagonal", weighted=False),
    "directions": Case(width=2),
    "directions of outputs": Case(width=3, outputs=3, intercept=True),
    "years": Case(units="years"),
    "years, plain": Case(units="years", weighted=False, outputs=3),
    "scales": Case(units="scales"),
    "scales, diagonal": Case(units="scales", basis="diagonal", intercept=True),
    "sparse": Case(sparse=True, intercept=True, basis="diagonal"),
    "sparse outputs": Case(sparse=True, outputs=3, basis="diagonal"),
    "sparse, full": Case(sparse=True, intercept=True),
    "one feature": Case(d=1),
}
EVERY = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def radius_of(statistic):
    return statistic.radius if isinstance(statistic, ClippedGradient) else 1.0


def total(statistic, data, users=None):
    """In whole steps, by the short way, which must be taken."""
    users = np.arange(data.n_users) if users is None else np.asarray(users)
    found = statistic.total(data, users, radius_of(statistic), BITS)
    assert found is not None
    return found


def test_engines_add_up_so():
    case = Case(d=3)
    data = case.data([user(n, n, 3) for n in (1, 2, 5)], np.float64)
    for statistic in case.statistics():
        limit = ClippedTotal(radius_of(statistic), BITS, 1024)
        found = LocalEngine().total(statistic, limit, data, np.array([2, 0, 1]))
        np.testing.assert_array_equal(found, total(statistic, data))


def split(statistic, found):
    """The sum, which may be off, and what was counted, which may not."""
    marks = N_SIZES + 2 if isinstance(statistic, ClippedGradient) else 1
    return found[:-marks].astype(float) * STEP, found[-marks:]


def assert_own_part_alone_moves(statistic, one, other, place):
    """Two data sets that differ in one user."""
    (sum_1, counted_1), (sum_2, counted_2) = (split(statistic, total(statistic, data)) for data in (one, other))
    (own_1, marks_1), (own_2, marks_2) = (split(statistic, total(statistic, data, [place])) for data in (one, other))
    np.testing.assert_array_equal(counted_1 - marks_1, counted_2 - marks_2)
    assert np.linalg.norm((sum_1 - own_1) - (sum_2 - own_2)) <= OFF
    moved = math.hypot(np.linalg.norm(sum_1 - sum_2), np.linalg.norm(counted_1[:-1] - counted_2[:-1]) * STEP)
    assert moved <= 2 + clip.SHARED_ROUNDING


@pytest.fixture
def _small_chunks(monkeypatch):
    """Users shift between them when one has more rows."""
    for module in (totals, gradients, moments):
        monkeypatch.setattr(module, "chunks", lambda data, users, entries=0: rows.chunks(data, users, 1500))


# --- (a) neighbours ---------------------------------------------------------------------------------------------------


@EVERY
@TYPES
@pytest.mark.parametrize("counts", [[1], [5], [3, 1, 0, 6, 40, 2]], ids=str)
@pytest.mark.usefixtures("_small_chunks")
def test_a_user_with_other_rows_or_more_moves_a_total_by_its_own_part(case, dtype, counts):
    """Everyone else stands elsewhere, in other chunks, beside users with equally many rows or not."""
    users = [user(n, seed, case.d) for seed, n in enumerate(counts * (60 // len(counts)))]
    one = case.data(users, dtype)
    for place, n in ((0, 0), (0, 1), (0, 2), (0, 50), (0, 1000), (31, 7)):
        other = case.data([*users[:place], user(n, 999, case.d), *users[place + 1 :]], dtype)
        for statistic in case.statistics():
            assert_own_part_alone_moves(statistic, one, other, place)


@EVERY
@TYPES
def test_a_total_is_the_sum_of_users_by_themselves(case, dtype):
    data = case.data([user(n, seed, case.d) for seed, n in enumerate([3, 1, 0, 6, 40, 2] * 15)], dtype)
    for statistic in case.statistics():
        (whole, counted), parts = split(statistic, total(statistic, data)), range(data.n_users)
        alone = [split(statistic, total(statistic, data, [one])) for one in parts]
        np.testing.assert_array_equal(counted, sum(marks for _, marks in alone))
        assert np.linalg.norm(whole - sum(own for own, _ in alone)) <= OFF


def test_rounding_of_shared_sums_is_paid_for():
    """Two blocks of a user may be off by what is allowed, in each of two data sets."""
    for n_users in (2, 100, 10**6):
        assert Clip(n_users, 1.0).sensitivity(1.0, 1) * n_users >= 2 + 4 * totals.ALLOWED


# --- (b) hostile values -----------------------------------------------------------------------------------------------

TIES = [1.0, 2.0, 0.25, 2.0**-11, 3.0]


def hostile_users(d=2):
    """Users in a unit basis whose gradients, of absolute losses, are plus or minus the means of their rows."""
    for size in TIES:
        yield [[size, 0.0]]
        yield [[0.6 * size, 0.8 * size]]
        yield [[size, 0.0]] * 3
        yield [[3 * size, 0.0], [-size, 0.0], [size, 0.0]]
    for size in (
        5e-324,
        1e-310,
        1e-200,
        1e-160,
        1e-45,
        1e-40,
        1e-23,
        1e-19,
        1e-12,
        1e12,
        1e19,
        1e30,
        1e38,
        1e150,
        1e308,
    ):
        yield [[size, -size]]
        yield [[size, size], [size, -0.0]]
        yield [[size, 1.0], [-size, 1.0]]  # which cancels, but for 1
        yield [[size, size], [-size, -size], [0.3, 0.1]]
        yield [[size, 0.0]] * 6
    for value in (math.nan, math.inf, -math.inf):
        yield [[value, 0.0]]
        yield [[1.0, value], [1.0, 2.0]]
    yield from ([], [[0.0, -0.0]], [[1.0, 1.0], [-1.0, -1.0]], [[1.0, 1.0], [-1.0, -1.0 - 2.0**-20]])
    yield [[1e30, 0.1], [-1e30, 0.1], [0.1, 0.1]]


def hostile_statistics(weights=(0.0, 0.0), basis=None):
    """Of clip 1, at which gradients are tied; and with slopes as large as targets."""
    for turning in (np.eye(2), np.ones(2)) if basis is None else (basis,):
        for loss in (losses.logistic, losses.squared):
            for weighted in (None, RowWeights(turning, 1.0)):
                gradient = MeanGradient(loss, np.array(weights), turning, row_weights=weighted)
                yield ClippedGradient(gradient, 1.0, 2.0, 0.2)
        yield MomentShape(turning)
        yield MomentShape(turning, 1.0)


HOSTILE = [(np.array(found, float).reshape(-1, 2), np.full(len(found), 2.0)) for found in hostile_users()]
TARGETS = (2.0, 0.0, 1e25, 1e150)


@TYPES
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_no_hostile_user_is_longer_than_the_radius(dtype, sparse):
    """The computed length of a gradient is not below the true one, however its rows cancel."""
    case = Case(d=2, sparse=sparse)
    for statistic in hostile_statistics():
        for target in TARGETS:
            data = case.data([(x, np.full(len(x), target)) for x, _ in HOSTILE], dtype)
            for place in range(data.n_users):
                own, marks = split(statistic, total(statistic, data, [place]))
                length = 1.0 if isinstance(statistic, MomentShape) else statistic.clip / statistic.radius
                assert np.linalg.norm(own) <= length * (1 + 2.0**-30)
                assert math.hypot(np.linalg.norm(own), np.linalg.norm(marks[:-1]) * STEP) <= 1 + 2.0**-30
                assert marks[-1] == 1


@TYPES
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_hostile_users_move_a_total_of_hostile_users_by_their_own_part(dtype, sparse):
    case, rng = Case(d=2, sparse=sparse), np.random.default_rng(0)
    sound = [(x, y) for x, y in HOSTILE if np.all(np.abs(x) < 1e30)]
    for statistic in hostile_statistics():
        for users in (HOSTILE, sound):
            users = [(x, rng.choice([*TARGETS, math.nan]) * np.ones(len(x))) for x, _ in users * 2]
            one = case.data(users, dtype)
            for replacement in (*(HOSTILE[i] for i in rng.integers(0, len(HOSTILE), 2)), HOSTILE[-5], user(300, 0, 2)):
                place = int(rng.integers(len(users)))
                other = case.data([*users[:place], replacement, *users[place + 1 :]], dtype)
                assert_own_part_alone_moves(statistic, one, other, place)


@settings(max_examples=60, deadline=None)
@given(drawn=neighbouring_users(), targets=st.sampled_from([0.0, 1.0, 1e10, -1e30, math.nan]))
def test_users_of_any_numbers_move_a_total_by_their_own_part(drawn, targets):
    one, other, basis, place = drawn
    one, other = (replace(data, targets=data.targets + targets) for data in (one, other))
    for statistic in hostile_statistics(np.full(one.n_features, 0.3), basis):
        if statistic.total(one, np.arange(one.n_users), radius_of(statistic), BITS) is None:
            assert not totals.is_tame(basis, one.dtype), "vectors of each user are added up"
        else:
            assert_own_part_alone_moves(statistic, one, other, place)


@TYPES
@pytest.mark.parametrize("unit", [1e-20, 1e-12, 1e-11, 3e-11, 1e-10, 1e-9, 1e9, 1e11])
def test_moments_of_rows_in_any_units_are_no_longer_than_1(dtype, unit):
    """Where fourth powers under- or overflow in single precision."""
    for seed in range(10):
        data = Case().data([(x * unit, y) for x, y in (user(n, seed, 30) for n in (1, 2, 5, 40))], dtype)
        for place in range(4):
            found, _ = split(MomentShape(np.eye(30)), total(MomentShape(np.eye(30)), data, [place]))
            assert 1 - 2.0**-9 <= np.linalg.norm(found) <= 1 + 2.0**-30


@TYPES
def test_thousands_who_stand_at_a_tie_do_not_move_when_one_gets_more_rows(dtype):
    """All have a norm that is a half of the longest but for rounding, so that nothing else may decide on their size."""
    for loss, d in ((losses.logistic, 3), (losses.multinomial(3), 30)):
        for n_rows in (1, 2, 5):
            x, y = user(n_rows, 4, d)
            weights = 0.1 * weights_for(loss, d)
            plain = MeanGradient(loss, weights, np.eye(d))
            length = np.linalg.norm(plain(Case(d=d).data([(x, y)] * 2, dtype), [0], 1))
            for nudge in np.linspace(-1, 1, 21) * (2.0**-23 if dtype == np.float32 else 2.0**-52):
                longest = 2 * length * (1 + nudge)
                statistic = ClippedGradient(plain, 0.9 * length, longest, 0.1 * length)
                for others in ([(x, y)], [user(n_rows + 1, 5, d)], [user(0, 0, d)]):
                    one, other = (Case(d=d).data([*more, *[(x, y)] * 300], dtype) for more in ([(x, y)], others))
                    assert_own_part_alone_moves(statistic, one, other, 0)


def weights_for(loss, d):
    return np.random.default_rng(3).normal(size=d * loss.n_outputs)


# --- (c) lengths ------------------------------------------------------------------------------------------------------


@TYPES
@pytest.mark.parametrize("n_rows", [1, 2, 3, 7])
@pytest.mark.parametrize("outputs", [1, 3])
def test_lengths_are_rounded_up(dtype, n_rows, outputs):
    """Against extended precision, of rows that nearly cancel in the gradient, or do not."""
    d = 30
    loss = losses.squared if outputs == 1 else losses.multinomial(3)
    statistic = MeanGradient(loss, np.zeros(d * outputs), np.eye(d))
    rng = np.random.default_rng(0)
    for nearness in (1.0, 1e-3, 1e-6, 1e-9):
        users = []
        for _ in range(40):
            x, y = rng.normal(size=(n_rows, d)), rng.integers(0, 2, n_rows).astype(float)
            y += outputs == 1
            if n_rows > 1:
                x[-1] = -(y[:-1] @ x[:-1]) / max(y[-1], 1.0) + nearness * x[-1]
            users.append((x, y))
        data = Case(d=d).data(users, dtype)
        held = rows.Rows(data, np.arange(40))
        slopes = statistic.row_slopes(held)
        _, norms, sizes = totals.Geometry(data, np.eye(d)).norms(held, slopes)
        products = (slopes.reshape(len(held), -1, 1).astype(np.longdouble)) * held.held[:, None, :].astype(
            np.longdouble
        )
        exact = np.add.reduceat(products, held.bounds[:-1], axis=0)
        exact = np.sqrt(np.square(exact).sum(axis=(1, 2)))
        assert np.all(norms >= exact * (1 - np.longdouble(2.0) ** -60))
        assert np.all(norms <= exact + sizes * (2.0**-8 if dtype == np.float32 else 2.0**-20)), "and not by much"


# --- (d) vectors ------------------------------------------------------------------------------------------------------


@EVERY
@TYPES
def test_a_total_is_that_of_users_vectors(case, dtype):
    data = case.data([user(n, seed, case.d) for seed, n in enumerate([3, 1, 0, 6, 40, 2] * 15)], dtype)
    for statistic in case.statistics():
        found, _ = split(statistic, total(statistic, data))
        vectors = statistic(data, np.arange(data.n_users), data.n_users)[:, : len(found)] / radius_of(statistic)
        # Lengths are rounded up; in single precision by more, and most where columns nearly cancel.
        rounded = 2.0**-3 if case.units == "years" else 2.0**-10
        room = data.n_users * (rounded if dtype == np.float32 else 2.0**-26)
        assert np.linalg.norm(found - vectors.sum(axis=0)) <= totals.ALLOWED + room
        assert np.linalg.norm(vectors.sum(axis=0)) > 0.1


@EVERY
@TYPES
def test_one_user_with_a_missing_number_makes_no_difference_to_others(case, dtype):
    """Its block is added up from single users' vectors then: the same, but for rounding."""
    users = [user(n, seed, case.d) for seed, n in enumerate([3, 1, 2, 6, 40, 2] * 15)]
    for value in (math.nan, math.inf, 1e300):
        lost = [*users[:3], (np.full((2, case.d), value), np.zeros(2)), *users[4:]]
        for statistic in case.statistics():
            assert_own_part_alone_moves(statistic, case.data(users, dtype), case.data(lost, dtype), 3)


def test_bases_of_extreme_numbers_are_left_to_vectors():
    """A sum of rows may overflow before it is turned, by what stands beside it."""
    data = Case(d=2).data([user(2, 0, 2)] * 2, np.float64)
    for entry in (0.0, 1e-200, 1e200):
        basis = np.array([entry, 1.0])
        for statistic in hostile_statistics((0.3, 0.3), basis):
            assert statistic.total(data, np.arange(2), radius_of(statistic), BITS) is None


@pytest.mark.parametrize(("length", "mark"), [(math.nan, 0.1), (0.0, 0.1), (-0.5, 0.1), (0.5, math.nan)])
def test_clips_that_are_none_are_left_to_vectors(length, mark):
    """A solver may ask for such: no number would then come of a user whose gradient is 0, and whole numbers of that."""
    case = Case(d=2)
    data = case.data([(np.zeros((2, 2)), np.ones(2)), user(2, 0, 2), (np.zeros((1, 2)), np.ones(1))], np.float64)
    for directions in (None, np.eye(2)):
        statistic = ClippedGradient(case.gradient().gradient, length, 2.0, mark, directions)
        limit = ClippedTotal(1.0, BITS, 1024)
        found = LocalEngine().total(statistic, limit, data, np.arange(3))
        np.testing.assert_array_equal(found, limit(vectors(statistic, data)))


# --- (e), (f) blocks and threads --------------------------------------------------------------------------------------


@EVERY
def test_blocks_are_rounded_by_themselves(case, monkeypatch):
    """By users' numbers: what stands in another block is added to the same whole numbers."""
    monkeypatch.setattr(totals, "BLOCK_USERS", 8)
    users = [user(n, seed, case.d) for seed, n in enumerate([3, 1, 0, 6, 40, 2, 2] * 3)]
    one = case.data(users, np.float32)
    other = case.data([user(9, 7, case.d), *users[1:4], (users[4][0] * math.nan, users[4][1]), *users[5:]], np.float32)
    asked = np.setdiff1d(np.arange(len(users)), [11])
    for statistic in case.statistics():
        parts = [asked[asked // 8 == block] for block in range(3)]
        assert [len(part) for part in parts] == [8, 7, 5]
        for part in parts[1:]:
            np.testing.assert_array_equal(total(statistic, one, part), total(statistic, other, part))
        for data in (one, other):
            whole = sum(total(statistic, data, part) for part in parts)
            np.testing.assert_array_equal(total(statistic, data, asked), whole)


@EVERY
def test_totals_are_the_same_on_any_number_of_threads(case, monkeypatch):
    monkeypatch.setattr(totals, "BLOCK_USERS", 8)
    monkeypatch.setattr(rows.os, "sched_getaffinity", lambda _: range(4), raising=False)
    users = [user(n, seed, case.d) for seed, n in enumerate([3, 1, 0, 6, 40, 2, 2] * 20)]
    for statistic in case.statistics():
        found = []
        for threads in (1, 2, None):
            rows.limit_threads(threads)
            found.append(total(statistic, case.data(users, np.float32)))
        np.testing.assert_array_equal(found[0], found[1])
        np.testing.assert_array_equal(found[0], found[2])


def test_samples_are_added_up_from_single_vectors():
    """A user who joins moves all others to other places: what rounds by place must not depend on who is sampled."""
    everyone = Clip(100, 1.0).start(SecureNoise()).contribution(1.0)
    sample = Clip(100, 1.0, sampling_probability=0.5).start(SecureNoise()).contribution(1.0)
    assert everyone.clips_to is not None
    assert sample.clips_to is None


def test_several_entries_of_a_column_are_one_users_own():
    """Sparse rows as they are given: entries that cancel, and an order that decides whether scipy sorts all of them."""
    n, values = 2000, np.tile([1e20, -1e20, 1.0, 1.0, 1.0], 8)

    def totals_of(last, entries):
        indices = np.concatenate([np.tile(np.repeat(np.arange(8), 5), n - 1), last])
        held = np.concatenate([np.tile(values, n - 1), entries])
        indptr = np.append(np.arange(n) * 40, len(indices))
        X = scipy.sparse.csr_matrix((held, indices, indptr), shape=(n, 8))
        data = UserData.from_arrays(X, np.ones(n), np.arange(n))
        basis = np.ones(8)
        gradient = MeanGradient(losses.logistic, np.zeros(8), basis, row_weights=RowWeights(basis, 4.0))
        for statistic in (ClippedGradient(gradient, 0.5, 4.0, 0.15), MomentShape(basis), moments.ColumnScales()):
            radius = getattr(statistic, "radius", 1.0)
            yield LocalEngine().total(statistic, ClippedTotal(radius, 40, 1024), data, np.arange(n)) * 2.0**-40

    neighbours = ([0, 1], [1.0, 2.0]), ([1, 0], [2.0, 1.0]), ([0, 0, 0], [1e20, -1e20, 1.0])
    found = [list(totals_of(*one)) for one in neighbours]
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            assert np.linalg.norm((one - two)[:-1]) <= 2 * (1 + 2.0**-18)
