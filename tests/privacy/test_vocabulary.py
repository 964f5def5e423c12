"""Levels of many users: how far one user moves the counts, what of a user's own shows, and for how much."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support_acute import all_of, inner

from userdp import Budget, Curator, Ledger, Plan, Step
from userdp.auditing import priced
from userdp.auditing.pairs import mechanism_pairs
from userdp.data.users import UserData
from userdp.engines import LocalEngine
from userdp.privacy import noise as noise_module
from userdp.privacy.clip import Clip
from userdp.privacy.noise import noise_source, threshold_noise
from userdp.privacy.vocabulary import Vocabulary
from userdp.statistics.columns import Histograms, OwnLevels

words = st.one_of(
    st.sampled_from([1.0, 2.0, 3.0, 0.0, -0.0, -1.0, 0.5, 2.0**48, 2.0**48 - 1, math.nan, math.inf]), st.floats()
)


class Counted:
    """A source without noise that keeps what it was given."""

    def thresholded(self, counts, std, threshold):
        self.counts = counts
        return {key: count for key, count in counts.items() if count >= threshold}


def counts_of(vectors, **more):
    record = Vocabulary(len(vectors), 1.0, 1e-6, levels_per_user=3, n_words=2, **more)
    session, noise = record.start(Counted()), Counted()
    session._noise = noise
    session.release(vectors, 1.0)
    keys = sorted(session._counts)
    return record, {keys[int(number)]: count for number, count in noise.counts.items()}


@st.composite
def neighbours(draw):
    user = st.lists(words, min_size=6, max_size=6)
    users = draw(st.lists(user, min_size=2, max_size=4))
    other = [draw(user), *users[1:]]
    return np.array(users), np.array(other)


@given(neighbours())
@example(([[1.0, 0, 2, 0, 3, 0], [0.0] * 6], [[4.0, 0, 5, 0, 6, 0], [0.0] * 6]))  # three levels for three others
def test_one_user_moves_counts_by_at_most_the_sensitivity_and_few_of_them(pair):
    (record, one), (_, other) = map(counts_of, map(np.array, pair))
    moved = [one.get(key, 0) - other.get(key, 0) for key in {*one, *other}]
    assert sum(m * m for m in moved) <= record.moved_steps**2
    assert sum(m != 0 for m in moved) <= 2 * record.levels_per_user
    assert max(map(abs, moved), default=0) <= record.weight(1) == 2**record.bits


def test_the_sensitivity_is_attained_by_a_user_of_one_level_and_by_one_of_several():
    nobody = [math.nan] * 6
    for own, others in (([1, 1], [2, 2]), ([1, 1, 2, 2, 3, 3], [4, 4, 5, 5, 6, 6])):
        pair = [np.array([(mine + nobody)[:6], nobody]) for mine in (own, others)]
        (record, one), (_, other) = map(counts_of, pair)
        moved = sum((one.get(key, 0) - other.get(key, 0)) ** 2 for key in {*one, *other})
        assert math.sqrt(moved) == pytest.approx(math.sqrt(2) * 2**record.bits, rel=1e-9)


def test_a_text_counts_once_for_a_user_and_only_if_it_is_one():
    vectors = np.array([[7.0, 1, 7, 1, math.nan, 1], [7, 1, 8, 1.5, -7, 1], [0, 1, 2.0**48, 1, 7, 1]])
    record, counts = counts_of(vectors)
    (count,) = counts.values()
    assert count == 3 * record.weight(1)


def test_the_noise_is_opendp_s_and_its_map_certifies_what_is_charged():
    record = Vocabulary(5000, 20.0, 1e-7)
    std, threshold = record.noise
    from userdp.privacy.noise import _threshold_measurement

    rho, delta = _threshold_measurement(std, threshold).map((6, record.moved_steps, 2**record.bits))
    assert rho <= 1 / (2 * 20.0**2)
    assert 0.9e-7 < delta <= 1e-7
    assert record.cost.gaussian == pytest.approx(1 / 400)
    assert record.cost.failure == 1e-7
    assert std == pytest.approx(20 * math.sqrt(2) * 2**record.bits)
    # A user alone: k levels of weight 1/sqrt(k) pass with this chance (proofs, section 29), which the map covers.
    deviations = [(threshold - record.weight(k)) / std for k in (1, 2, 3)]
    own = max(k * 0.5 * math.erfc(z / math.sqrt(2)) for k, z in zip((1, 2, 3), deviations, strict=True))
    assert own <= record.failure


def test_thresholds_grow_with_what_may_not_fail():
    assert threshold_noise(10.0, 1e-9, 2, 1000, 1000)[1] > threshold_noise(10.0, 1e-6, 2, 1000, 1000)[1]
    with pytest.raises(ValueError, match=r"failure must be .* got 0"):
        threshold_noise(10.0, 0.0, 2, 1000, 1000)


@pytest.mark.parametrize(
    ("n_users", "multiplier", "failure"), [(1000, 300.0, 1e-7), (10**9, 5.0, 1e-20), (2, 1.0, 1e-16)]
)
def test_noise_for_which_no_threshold_is_certified_is_refused_when_it_is_planned(n_users, multiplier, failure):
    with pytest.raises(ValueError, match="a threshold can be certified"):
        Vocabulary(n_users, multiplier, failure)


def test_counts_have_the_noise_that_was_priced():
    record = Vocabulary(400, 1.0, 1e-3, levels_per_user=1, n_words=1)
    vectors = np.ones((400, 1))
    for noise in (noise_source(), noise_source(0)):
        found = np.array([record.start(noise).release(vectors, 1.0)[0] for _ in range(300)])
        assert found.mean() == pytest.approx(400, abs=0.5)
        assert found.std() == pytest.approx(math.sqrt(2), rel=0.2)


def test_counts_show_from_the_threshold_on_and_not_from_below():
    for noise in (noise_source(), noise_source(0)):
        assert list(noise.thresholded({"below": 9500, "above": 10500}, 10.0, 10000)) == ["above"]


def test_nobody_s_own_level_shows():
    record = Vocabulary(300, 0.2, 1e-6, levels_per_user=2, n_words=1)
    vectors = np.column_stack([np.full(300, 5.0), np.arange(100, 400)])
    for _ in range(50):
        released = record.start(noise_source()).release(vectors, 1.0).reshape(-1, 2)
        assert released[:, 1].tolist() == [5.0]


def test_only_so_many_levels_are_released_the_most_frequent_first():
    record = Vocabulary(600, 0.1, 1e-3, levels_per_user=1, max_levels=2, n_words=1)
    vectors = np.repeat([1.0, 2.0, 3.0], [100, 200, 300])[:, None]
    assert record.start(noise_source()).release(vectors, 1.0).reshape(-1, 2)[:, 1].tolist() == [3, 2]


def test_it_releases_once_of_all_vectors_whatever_their_blocks():
    vectors = np.repeat([[1.0, 2.0]], 50, axis=0)
    record = Vocabulary(50, 0.1, 1e-3, levels_per_user=2, n_words=1, block=20)
    session = record.start(noise_source(0))
    session.add(vectors[:20], 1.0)
    session.add(vectors[20:40], 1.0)
    released = session.release(vectors[40:], 1.0)
    assert (released == record.start(noise_source(0)).release(vectors, 1.0)).all()
    assert released[0] == pytest.approx(50 / math.sqrt(2), abs=1)
    with pytest.raises(RuntimeError, match="paid for"):
        session.release(vectors, 1.0)
    with pytest.raises(ValueError, match="50 vectors"):
        record.start(noise_source(0)).release(vectors[:49], 1.0)
    with pytest.raises(ValueError, match="as many words"):
        record.start(noise_source(0)).release(vectors[:, :1], 1.0)


def test_the_curator_releases_it():
    rows = np.repeat([[1.0, 2.0], [3.0, 4.0]], [80, 40], axis=0)
    data = UserData(rows, np.zeros(120), np.arange(121))
    record = Vocabulary(120, 0.5, 1e-6, n_words=2, block=50)
    plan, ledger = Plan(120, (Step("levels", 0, 120, record),)), Ledger(Budget(50, 1e-5))
    curator = Curator(data, plan, ledger)
    released = curator.release("levels", OwnLevels(0, 2, 3), 1.0).reshape(-1, 3)
    assert released[:, 1:].tolist() == [[1, 2], [3, 4]]
    with pytest.raises(RuntimeError, match="a later step"):
        curator.release("levels", OwnLevels(0, 2, 3), 1.0)


def test_rows_are_exchanged_for_the_same_users_only():
    data = UserData(np.zeros((4, 1)), np.zeros(4), np.array([0, 1, 4]))
    curator = Curator(data, Plan(2, (Step("levels", 0, 2, Clip(2, 1.0)),)), Ledger(Budget(50, 1e-5)))
    curator.prepare(UserData(np.ones((4, 3)), np.zeros(4), np.array([0, 1, 4])))
    with pytest.raises(ValueError, match="the same users' rows"):
        curator.prepare(UserData(np.zeros((4, 1)), np.zeros(4), np.array([0, 2, 4])))
    with pytest.raises(ValueError, match="users that are here"):
        curator.prepare(np.ones((4, 3)))
    with pytest.raises(ValueError, match="the same users' rows"):
        curator.prepare(UserData(np.ones((4, 3)), np.zeros(4), np.array([0, 1, 4]), insecure_seed=1))


def test_an_engine_that_fails_after_the_charge_does_not_say_that_nothing_was_spent():
    class Full(LocalEngine):
        def place(self, data):
            if data.n_features > 1:
                raise RuntimeError("Expected room. Nothing was spent.")
            return data

    data = UserData(np.zeros((4, 1)), np.zeros(4), np.array([0, 1, 4]))
    plan, ledger = Plan(2, (Step("levels", 0, 2, Clip(2, 1.0)),)), Ledger(Budget(50, 1e-5))
    curator = Curator(data, plan, ledger, engine=Full())
    with pytest.raises(RuntimeError, match="What was charged is spent") as told:
        curator.prepare(UserData(np.ones((4, 3)), np.zeros(4), np.array([0, 1, 4])))
    assert "Nothing was spent" not in str(told.value)
    assert told.value.__suppress_context__


# ---------------------------------------------------------------- what users contribute


@st.composite
def users_of_cells(draw):
    cell = st.one_of(st.sampled_from([0.0, 1.0, -3.0, 1e300, 1e-300, math.nan, math.inf, -math.inf]), st.floats())
    sizes = draw(st.lists(st.integers(0, 4), min_size=2, max_size=5))
    rows = np.array(draw(st.lists(st.tuples(cell, cell), min_size=sum(sizes), max_size=sum(sizes)))).reshape(-1, 2)
    return UserData(rows, np.zeros(len(rows)), np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))


@given(users_of_cells())
def test_histograms_never_point_apart_and_are_at_most_1_long(data):
    vectors = all_of(Histograms(2), data)
    assert (vectors >= 0).all()
    assert all(inner(vector, vector) <= 1 + 1e-12 for vector in vectors)
    alone = [all_of(Histograms(2), _only(data, user))[0] for user in range(data.n_users)]
    assert (np.array(alone) == vectors).all()


@given(users_of_cells())
def test_own_levels_are_of_the_user_alone(data):
    vectors = all_of(OwnLevels(0, 2, 2), data)
    alone = [all_of(OwnLevels(0, 2, 2), _only(data, user))[0] for user in range(data.n_users)]
    assert np.array_equal(alone, vectors, equal_nan=True)


def _only(data, user):
    """The user beside another, with rows of its own."""
    rows, _ = data.rows_of(user)
    both = np.vstack([rows, [[9.0, 9.0]]])
    return UserData(both, np.zeros(len(both)), np.array([0, len(rows), len(both)]))


def test_own_levels_are_the_most_frequent_ones():
    rows = np.array([[2.0], [3.0], [3.0], [1.0], [math.nan]])
    data = UserData(rows, np.zeros(5), np.array([0, 5, 5]))
    assert np.array_equal(all_of(OwnLevels(0, 1, 2), data)[0][:1], [3.0])
    assert np.isnan(all_of(OwnLevels(0, 1, 2), data)[1]).all()
    assert set(all_of(OwnLevels(0, 1, 4), data)[0][:3]) == {1.0, 2.0, 3.0}


def test_numbers_are_counted_where_they_lie():
    data = UserData(np.array([[3.0], [3.5], [-5.0], [math.nan]]), np.zeros(4), np.array([0, 4, 4]))
    vector = all_of(Histograms(1), data)[0]
    places = np.searchsorted(Histograms.EDGES, [3.0, -5.0], side="right")
    assert vector[places] == pytest.approx([2 / 3, 1 / 3])
    assert vector.sum() == pytest.approx(1)


# ---------------------------------------------------------------- attacks


def test_an_audit_finds_halved_noise_and_not_the_real():
    budget = Budget(1.0, 1e-2)
    (pair,) = (p for p in mechanism_pairs(budget) if p.what == "Vocabulary" and p.attack == "edges")
    assert pair.attacked(noise_source(0), 20_000, budget.delta, 0.01).holds
    assert priced.vocabulary(budget).cost.failure < budget.delta


def test_noise_grows_until_the_map_certifies_it(monkeypatch):
    """Should the map, which rounds up, not certify the first standard deviation."""
    asked = []

    class Strict:
        def __init__(self, std, threshold):
            self.std = std

        def map(self, distances):
            asked.append(self.std)
            return (1 / (2 * 5.0**2) if len(set(asked)) > 3 else 1.0), 0.0

    monkeypatch.setattr(noise_module, "_threshold_measurement", Strict)
    std, threshold = noise_module.threshold_noise(5.0, 1e-6, 2, 100, 10)
    assert 500 < std < 500 * (1 + 2.0**-45)
    assert threshold == 10
