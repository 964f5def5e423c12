import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, kstest, norm
from support import SilentNoise
from support_audit import audited_epsilon

from userdp import Budget, BudgetExceeded, Curator, Ledger, MeanGradient, UserData, losses
from userdp.privacy.accounting import Cost
from userdp.privacy.noise import SecureNoise, SeededNoise
from userdp.privacy.plan import Plan, Step
from userdp_research.mechanisms import sampled_rows
from userdp_research.mechanisms.mixtures import claimed_epsilon, replace_one_delta, row_multiplier
from userdp_research.mechanisms.sampled_rows import SampledRows
from userdp_research.row_statistics import ClippedRowGradients

BASE = {"n_vectors": 40, "rows_per_user": 5, "sampling_probability": 0.3, "row_multiplier": 9.0, "epsilon": 1.0}
numbers = st.one_of(st.sampled_from([0.0, 1.0, -1.0, math.nan, math.inf, 1e308, -1e308, 1e-308, 2.0]), st.floats())


def record(**change):
    return SampledRows(**(BASE | change))


class Coins(SilentNoise):
    """No noise, and these coins."""

    def __init__(self, kept):
        super().__init__()
        self._kept = list(np.ravel(kept))

    def poisson_mask(self, probabilities):
        self.asked.append(("coins", len(probabilities), set(probabilities)))
        first, self._kept = self._kept[: len(probabilities)], self._kept[len(probabilities) :]
        return np.array(first, dtype=bool)


def summed(vectors, kept, radius, block=None):
    """The release without noise, times the expected number of rows; users without a kept row are left out."""
    made = record(n_vectors=len(kept), rows_per_user=kept.shape[1])
    session = made.start(Coins(kept))
    chosen = session.choose(np.arange(len(kept)))
    block, last = block or len(chosen), 0
    with np.errstate(all="ignore"):
        for first in range(0, len(chosen) - block, block):
            session.add(vectors[chosen[first : first + block]], radius)
            last = first + block
        return session.release(vectors[chosen[last:]], radius) * made.expected_rows


# --- coins ------------------------------------------------------------------------------------------------------------


def test_every_slot_of_every_user_gets_its_own_coin_each_round():
    made = record(n_vectors=400, rows_per_user=50, rounds=2)
    session = made.start(SecureNoise())
    users, rounds = np.arange(400)[::-1], []
    for _ in range(2):
        chosen = session.choose(users)
        assert chosen.tolist() == users.tolist()  # with 50 coins each
        rounds.append(session.kept_rows.copy())
        session.release(np.zeros((400, 1)), 1.0)
    assert abs(rounds[0].mean() - 0.3) < 0.02
    assert abs((rounds[0] & rounds[1]).mean() - 0.09) < 0.02
    counts = rounds[0].sum(axis=1)
    assert abs(counts.var() - binom.var(50, 0.3)) < 4


def test_users_without_a_kept_row_are_not_asked():
    kept = np.zeros((4, 3), dtype=bool)
    kept[1, 2] = kept[3, :2] = True
    session = record(n_vectors=4, rows_per_user=3).start(Coins(kept))
    assert session.choose(np.array([7, 8, 9, 10])).tolist() == [8, 10]
    np.testing.assert_array_equal(session.kept_rows, kept[[1, 3]])


def test_a_round_without_any_row_is_noise_alone():
    kept = np.zeros((4, 3), dtype=bool)
    session = record(n_vectors=4, rows_per_user=3).start(Coins(kept))
    assert session.choose(np.arange(4)).tolist() == [0]
    np.testing.assert_array_equal(session.release(np.full((1, 2), 1e300), 1.0), np.zeros(2))


def test_coins_come_in_parts_of_whole_users(monkeypatch):
    monkeypatch.setattr(sampled_rows, "_DRAWN", 7)
    kept = np.random.default_rng(0).random((10, 3)) < 0.5
    noise = Coins(kept)
    session = record(n_vectors=10, rows_per_user=3).start(noise)
    session.choose(np.arange(10))
    np.testing.assert_array_equal(session.kept_rows, kept[kept.any(axis=1)])
    assert [asked[1] for asked in noise.asked] == [6, 6, 6, 6, 6]
    assert all(asked[2] == {0.3} for asked in noise.asked)


# --- sensitivity ------------------------------------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(data=st.data(), radius=st.sampled_from([1e-3, 1.0, 7.3, 2.0**300]), block=st.integers(1, 6))
def test_a_user_moves_the_sum_by_at_most_its_kept_rows_whatever_the_vectors(data, radius, block):
    """Whatever the statistic made of the data: for all coins, adding the user costs (kept rows) * r."""
    size, width = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 3))
    row = st.lists(numbers, min_size=2, max_size=2)
    vectors = np.array([data.draw(row) for _ in range(size)])
    coins = data.draw(st.lists(st.booleans(), min_size=size * width, max_size=size * width))
    kept = np.array(coins, dtype=bool).reshape(size, width)
    without, user = vectors.copy(), data.draw(st.integers(0, size - 1))
    without[user] = 0.0
    moved = (summed(vectors, kept, radius, block) - summed(without, kept, radius, block)) / radius
    made = record(n_vectors=size, rows_per_user=width)
    assert math.hypot(*moved) <= kept[user].sum() * made.sensitivity(1.0, 2) * made.expected_rows


def test_the_fraction_of_a_row_is_attained_and_does_not_tell_the_number_of_rows():
    kept = np.zeros((40, 5), dtype=bool)
    kept[0, :3] = True
    vectors = np.zeros((40, 1))
    vectors[0] = 1e9
    assert summed(vectors, kept, 2.0)[0] == pytest.approx(3 * 2.0, rel=1e-15)
    made = record()
    assert made.expected_rows == pytest.approx(0.3 * 40 * 5)
    assert 2.0 / 60 < made.sensitivity(2.0, 1) < 2.0 / 60 * (1 + 1e-9)


@pytest.mark.parametrize("block", [1, 2, 3, None])
def test_in_every_block_each_user_counts_by_its_own_kept_rows(block):
    kept = np.arange(5)[None, :] < np.array([[1], [5], [2], [0], [3]])
    assert summed(np.full((5, 1), 1e9), kept, 1.0, block)[0] == pytest.approx(11.0, rel=1e-12)
    axes = np.eye(5) * 1e9
    np.testing.assert_allclose(summed(axes, kept, 1.0, block), [1.0, 5.0, 2.0, 0.0, 3.0], rtol=1e-12)


@pytest.mark.parametrize(("users", "rows", "dimension"), [(1, 1, 1), (1000, 10, 5), (10**5, 100, 1000)])
def test_the_sensitivity_is_at_least_what_the_proof_says_of_rounding(users, rows, dimension):
    made = record(n_vectors=users, rows_per_user=rows)
    longer, divided = (dimension + 8) * 2.0**-52, 6 * users * rows * 2.0**-53
    assert made.sensitivity(1.0, dimension) * made.expected_rows - 1 >= (longer + divided) * (1 - 1e-3)


def test_vectors_that_are_not_finite_count_as_nothing():
    kept = np.ones((3, 5), dtype=bool)
    vectors = np.array([[np.nan, 1.0], [1.0, 1.0], [np.inf, 0.0]])
    np.testing.assert_allclose(summed(vectors, kept, 1.0), [1.0, 1.0])


# --- cost and noise ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [{}, {"rounds": 20}, {"sampling_probability": 1.0}, {"rows_per_user": 2}])
def test_the_cost_is_the_claim_and_the_delta_of_a_replacement(change):
    made = record(**change)
    values = (made.rows_per_user, made.sampling_probability, made.row_multiplier, made.rounds)
    assert made.cost == Cost(pure=(1.0,), failure=replace_one_delta(*values, 1.0))
    assert made.cost.failure > 0


def test_a_plan_is_certified_up_to_its_budget_and_not_beyond():
    budget = Budget(1.0, 1e-5)
    multiplier, epsilon = row_multiplier(budget, 5, 0.3, 8), claimed_epsilon(budget)

    def plan(**change):
        asked = {"rounds": 8, "row_multiplier": multiplier, "epsilon": epsilon} | change
        return Plan(40, (Step("rows", 0, 40, record(**asked)),))

    plan().certify(budget)
    for dear in ({"rounds": 9}, {"row_multiplier": 0.97 * multiplier}, {"rows_per_user": 6}, {"epsilon": 1.01}):
        with pytest.raises(BudgetExceeded):
            plan(**dear).certify(budget)


@pytest.mark.parametrize("radius", [0.01, 300.0])
def test_each_round_has_noise_of_multiplier_times_a_rows_fraction(radius):
    made, noise = record(rounds=2), Coins(np.ones(400))
    session = made.start(noise)
    for _ in range(2):
        session.choose(np.arange(40))
        session.release(np.zeros((40, 3)), radius)
    asked = [a for a in noise.asked if a[0] == "gaussian"]
    assert asked == [("gaussian", made.sensitivity(radius, 3), 9.0)] * 2


def test_released_noise_is_normal():
    session = record().start(SecureNoise())
    chosen = session.choose(np.arange(40))
    released = session.release(np.zeros((len(chosen), 3000)), 2.0)
    std = 9.0 * 2.0 / 60
    assert kstest(released, norm(0, std).cdf).pvalue > 1e-6


def test_audit_of_the_release():
    """A user with all its rows at one end against the other end: the claim holds, and much of it is real."""
    runs, epsilon, delta = 2500, 4.0, 1e-2

    def outcomes(place, multiplier):
        made, noise = record(row_multiplier=multiplier, sampling_probability=0.8), SeededNoise(int(5 + place))
        out = np.empty(runs)
        for run in range(runs):
            session = made.start(noise)
            chosen = session.choose(np.arange(40))
            out[run] = session.release(np.where(chosen == 0, 9.0 * place, 0.0)[:, None], 1.0)[0]
        return out

    budget = Budget(epsilon, delta)
    multiplier = row_multiplier(budget, 5, 0.8, 1)
    found = audited_epsilon(outcomes(1, multiplier), outcomes(-1, multiplier), delta)
    assert 1.0 < found <= epsilon
    assert audited_epsilon(outcomes(1, multiplier / 3), outcomes(-1, multiplier / 3), delta) > epsilon


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [39, 41])
def test_another_number_of_users_than_priced_is_refused(size):
    with pytest.raises(ValueError, match="Expected 40 users, as was priced"):
        record().start(SilentNoise()).choose(np.arange(size))


@pytest.mark.parametrize("sizes", [(39,), (41,), (20, 19), (40, 1)])
def test_another_number_of_vectors_than_chosen_is_refused(sizes):
    noise = Coins(np.ones(200))
    session = record().start(noise)
    session.choose(np.arange(40))

    def hand_in():
        for size in sizes[:-1]:
            session.add(np.zeros((size, 1)), 1.0)
        session.release(np.zeros((sizes[-1], 1)), 1.0)

    with pytest.raises(ValueError, match="one vector for each user"):
        hand_in()
    assert [asked[0] for asked in noise.asked] == ["coins"]


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_session_releases_no_more_rounds_than_priced(rounds):
    noise = Coins(np.ones(600))
    session = record(rounds=rounds).start(noise)
    for _ in range(rounds):
        session.choose(np.arange(40))
        session.release(np.zeros((40, 1)), 1.0)
    session.choose(np.arange(40))
    with pytest.raises(RuntimeError, match="released and paid for"):
        session.release(np.zeros((40, 1)), 1.0)
    assert [asked[0] for asked in noise.asked].count("gaussian") == rounds


def test_coins_serve_one_release_only():
    session = record(rounds=3).start(Coins(np.ones(400)))
    with pytest.raises(RuntimeError, match="drawn first"):
        session.release(np.zeros((40, 1)), 1.0)
    session.choose(np.arange(40))
    session.release(np.zeros((40, 1)), 1.0)
    with pytest.raises(RuntimeError, match="used once"):
        session.release(np.zeros((40, 1)), 1.0)


def test_a_round_begins_anew_whatever_became_of_the_one_before():
    session = record().start(Coins(np.ones(400)))
    session.choose(np.arange(40))
    session.add(np.ones((10, 2)), 3.0)
    session.choose(np.arange(40))
    np.testing.assert_allclose(session.release(np.ones((40, 2)), 1.0), np.full(2, 40 / 60))


def test_the_blocks_of_a_round_share_one_radius_and_width():
    for width, radius, message in ((1, 2.0, "one radius"), (2, 1.0, "one length")):
        session = record().start(Coins(np.ones(200)))
        session.choose(np.arange(40))
        session.add(np.zeros((20, 1)), 1.0)
        with pytest.raises(ValueError, match=message):
            session.add(np.zeros((10, width)), radius)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sampling_probability": 1.5}, "sampling_probability=1.5 <= 1"),
        ({"sampling_probability": 0.0}, "sampling_probability"),
        ({"row_multiplier": 0.004}, "in units of one row's fraction"),
        ({"row_multiplier": 1e10}, "in units of one row's fraction"),
        ({"rows_per_user": 0}, "rows_per_user must be .* got 0"),
        ({"rounds": 0.5}, "rounds must be .* got 0.5"),
        ({"epsilon": math.inf}, "epsilon"),
        ({"n_vectors": 0}, "n_vectors"),
    ],
)
def test_impossible_records_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        record(**change)


# --- through the curator ----------------------------------------------------------------------------------------------


def curator_of(block=1024, n_users=30, row_multiplier=1e4, seed=3):
    rng = np.random.default_rng(0)
    data = UserData(
        rng.normal(size=(n_users * 4, 2)), rng.random(n_users * 4).round(), np.arange(0, n_users * 4 + 1, 4)
    )
    made = SampledRows(n_users, 3, 0.5, row_multiplier, 1.0, rounds=2, block=block)
    plan = Plan(n_users, (Step("rows", 0, n_users, made),))
    return data, Curator(data, plan, Ledger(Budget(2.0, 0.5)), insecure_seed=seed)


def test_the_curator_hands_each_user_its_own_coins():
    seen = {}

    class Told(ClippedRowGradients):
        def __call__(self, data, users, n_groups):
            seen.setdefault(len(seen), (users.copy(), self.kept.copy()))
            return super().__call__(data, users, n_groups)

    statistic = Told(MeanGradient(losses.logistic, np.zeros(2)), 0.1)
    _, curator = curator_of(block=7)
    released = curator.release("rows", statistic, 0.1)
    users, kept = (np.concatenate(parts) for parts in zip(*seen.values(), strict=True))
    assert len(seen) > 2
    assert kept.shape == (len(users), 3)
    assert kept.any(axis=1).all()
    assert len(set(users.tolist())) == len(users)
    _, again = curator_of(block=1024)  # the same seed: the same coins, in one block
    first = dict(zip(users.tolist(), map(tuple, kept), strict=True))
    seen.clear()
    np.testing.assert_allclose(again.release("rows", statistic, 0.1), released, rtol=1e-12)
    assert dict(zip(seen[0][0].tolist(), map(tuple, seen[0][1]), strict=True)) == first


def test_a_statistic_that_cannot_be_told_which_rows_to_keep_is_refused_before_the_round():
    _, curator = curator_of()
    with pytest.raises(TypeError, match=r"Expected a statistic of sampled rows in step 'rows'.*got MeanGradient"):
        curator.release("rows", MeanGradient(losses.logistic, np.zeros(2)), 0.1)
    gradient = ClippedRowGradients(MeanGradient(losses.logistic, np.zeros(2)), 0.1)
    for _ in range(2):  # both rounds are left
        assert curator.release("rows", gradient, 0.1).shape == (2,)
