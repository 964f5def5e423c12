import math

import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given, settings
from hypothesis import strategies as st
from support import SilentNoise
from support_audit import audited_epsilon

from userdp import Budget, Curator, Ledger, UserData, UserMean
from userdp.privacy.accounting import Cost, Subsampled, delta_at, subsampled_multiplier
from userdp.privacy.clip import SHARED_ROUNDING, Clip
from userdp.privacy.noise import SecureNoise, SeededNoise
from userdp.privacy.plan import Plan, Step

BASE = {"n_vectors": 40, "sampling_probability": 0.3, "noise_multiplier": 3.0}
WILD = [0.0, 1.0, -1.0, 0.5, 3.0, math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324, 2.0**450, 2.0**-450, 1e154]
RADII = [2.0**-400, 1e-3, 1.0, 7.3, 2.0**400]
numbers = st.one_of(st.sampled_from(WILD), st.floats(-4.0, 4.0), st.floats())


def record(**change):
    return Clip(**(BASE | change))


class Coins(SilentNoise):
    """No noise, and these coins, round after round."""

    def __init__(self, kept):
        super().__init__()
        self._kept = [np.array(coins, dtype=bool) for coins in kept]

    def poisson_mask(self, probabilities):
        self.asked.append(("coins", len(probabilities), set(probabilities)))
        return self._kept.pop(0)


def released(vectors, kept, radii, **change):
    """All rounds of a session without noise: rows of vectors for the users that the coins keep."""
    made = record(n_vectors=len(vectors), rounds=len(kept), **change)
    session, out = made.start(Coins(kept)), []
    for radius in radii:
        chosen = session.choose(np.arange(len(vectors)))
        with np.errstate(all="ignore"):
            out.append(session.release(vectors[chosen], radius))
    return made, out


# --- what is computed -------------------------------------------------------------------------------------------------


def test_sums_of_the_sample_are_divided_by_how_many_are_expected():
    vectors = np.array([[3.0, 4.0], [0.0, 0.5], [9.0, 9.0], [np.nan, 1.0], [1.0, 0.0]])
    _, (one,) = released(vectors, [[1, 1, 0, 1, 1]], [1.0])
    np.testing.assert_allclose(one, [1.6 / 1.5, 1.3 / 1.5], rtol=1e-12)
    _, (other,) = released(vectors, [[0, 1, 0, 0, 1]], [1.0])
    np.testing.assert_allclose(other, [1 / 1.5, 0.5 / 1.5], rtol=1e-12)


def test_with_everyone_in_it_is_the_clipped_mean():
    rows = np.random.default_rng(0).normal(0, 1.0, (40, 3))
    session = record(sampling_probability=1.0).start(SilentNoise())
    out = session.release(rows[session.choose(np.arange(40))], 1.5)
    np.testing.assert_allclose(out, Clip(40, 5.0).start(SilentNoise()).release(rows, 1.5), rtol=1e-12)


def test_an_empty_sample_is_noise_alone_and_tells_that_it_knows_nothing():
    made = record(rounds=2)
    noise = Coins([np.zeros(40), np.ones(40)])
    session = made.start(noise)
    assert session.choose(np.arange(40)[::-1]).tolist() == [39]
    np.testing.assert_array_equal(session.release(np.full((1, 2), 1e300), 1.0), [0.0, 0.0])
    assert session.choose(np.arange(40)).size == 40  # and the next round counts again
    np.testing.assert_allclose(session.release(np.ones((40, 2)), 2.0), np.full(2, 1 / 0.3), rtol=1e-12)


@pytest.mark.parametrize("q", [0.1, 0.5])
def test_samples_are_poisson_and_fresh(q):
    session = record(n_vectors=20_000, sampling_probability=q).start(SecureNoise())
    users = np.arange(20_000)
    first, second = session.choose(users), session.choose(users)
    for chosen in (first, second):
        assert abs(len(chosen) - 20_000 * q) < 6 * math.sqrt(20_000 * q * (1 - q))
        assert np.all(np.diff(chosen) > 0)
    assert abs(len(np.intersect1d(first, second)) / (20_000 * q**2) - 1) < 0.4


# --- sensitivity ------------------------------------------------------------------------------------------------------


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_one_user_moves_the_mean_by_at_most_its_sensitivity_in_every_round(data):
    """Whole sessions: for all coins, with a user's first data, with its second, and without it (its coin down)."""
    size, width, rounds = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    row = st.lists(numbers, min_size=width, max_size=width)
    vectors = np.array([data.draw(row) for _ in range(size)])
    kept = np.array([data.draw(st.lists(st.booleans(), min_size=size, max_size=size)) for _ in range(rounds)])
    radii = data.draw(st.lists(st.sampled_from(RADII), min_size=rounds, max_size=rounds))
    user, replaced, without = data.draw(st.integers(0, size - 1)), vectors.copy(), kept.copy()
    replaced[user], without[:, user] = data.draw(row), False
    made, base = released(vectors, without, radii)
    for rows in (vectors, replaced):
        for now, then, coins, radius in zip(released(rows, kept, radii)[1], base, kept, radii, strict=True):
            assert math.hypot(*(now - then) / radius) <= coins[user] * made.sensitivity(1.0, width) / 2


@pytest.mark.parametrize("reach", [1.0, 1e10, 1e308])
@pytest.mark.parametrize("q", [0.25, 1.0])
def test_the_sensitivity_is_attained(reach, q):
    kept = np.ones((1, 40), dtype=bool)
    kept[0, 1:] = q == 1.0
    vectors, ends = np.zeros((40, 1)), []
    for place in (reach, -reach):
        vectors[0] = place
        made, (out,) = released(vectors, kept, [1.0], sampling_probability=q)
        ends.append(out[0] * q * 40)
    assert ends == pytest.approx([1.0, -1.0], rel=1e-12)
    assert 2 / (q * 40) < made.sensitivity(1.0, 1) < 2 / (q * 40) * (1 + 1.1 * SHARED_ROUNDING)


@pytest.mark.parametrize(("users", "dimension"), [(1, 1), (40, 1000), (10**5, 30), (10**6, 1000)])
def test_the_sensitivities_are_at_least_what_the_proof_says_of_rounding(users, dimension):
    made = record(n_vectors=users)
    clipped, divided = (dimension + 8) * 2.0**-52, 6 * users * 2.0**-53
    assert made.sensitivity(1.0, dimension) * made.expected / 2 - 1 >= (clipped + divided) * (1 - 1e-3) - 2.0**-52


# --- cost and noise ---------------------------------------------------------------------------------------------------


def test_every_round_is_a_sampled_gaussian_release():
    made = record(rounds=7)
    (part,) = made.cost.subsampled
    assert (part.sampling_probability, part.steps) == (0.3, 7)
    assert part.added_user_multiplier == 6.0
    assert made.cost == Cost(subsampled=(part,))


@pytest.mark.parametrize("rounds", [1, 16])
def test_with_everyone_in_it_costs_what_clipping_costs(rounds):
    made = record(sampling_probability=1.0, rounds=rounds)
    assert made.cost == Clip(40, 3.0, rounds=rounds).cost
    assert made.cost == Cost(gaussian=made.cost.gaussian)
    assert made.cost.gaussian == pytest.approx(rounds / 9, rel=1e-10)
    assert made.cost.gaussian >= rounds / 9


def test_the_cost_is_that_of_dp_accounting():
    made = record(rounds=5)
    theirs = pld.from_gaussian_mechanism(
        6.0, sampling_prob=0.3, neighboring_relation=NeighboringRelation.REPLACE_ONE
    ).self_compose(5)
    for epsilon in (0.1, 0.5, 1.0):
        assert delta_at(made.cost, epsilon) == pytest.approx(theirs.get_delta_for_epsilon(epsilon), rel=1e-2)


def test_almost_everyone_costs_almost_as_much_as_everyone():
    nearly, everyone = record(sampling_probability=0.9999, rounds=3).cost, record(sampling_probability=1.0, rounds=3)
    assert nearly.subsampled == (Subsampled(0.9999, 2 * everyone.noise_multiplier, 3),)
    for epsilon in (0.2, 1.0):
        assert delta_at(nearly, epsilon) == pytest.approx(delta_at(everyone.cost, epsilon), rel=2e-2)


@pytest.mark.parametrize("radius", [0.01, 300.0])
@pytest.mark.parametrize("sizes", [(40, 3), (1, 12)])
def test_the_noise_is_the_same_for_every_sample(radius, sizes):
    made = record(rounds=2)
    noise = Coins([np.arange(40) < size for size in sizes])
    session = made.start(noise)
    for size in sizes:
        session.choose(np.arange(40))
        session.release(np.zeros((size, 3)), radius)
    asked = [a for a in noise.asked if a[0] == "gaussian"]
    assert asked == [("gaussian", made.sensitivity(radius, 3), 3.0)] * 2
    assert {a[1:2] + tuple(a[2]) for a in noise.asked if a[0] == "coins"} == {(40, 0.3)}


def outcomes(made, place, runs):
    """Means of a user's vector at this place, or of none if it is not asked; all others are at 0."""
    noise, out = SeededNoise(int(3 + place)), np.empty(runs)
    for run in range(runs):
        session = made.start(noise)
        chosen = session.choose(np.arange(made.n_vectors))
        (out[run],) = session.release(np.where(chosen == 0, place, 0.0)[:, None], 1.0)
    return out


def test_audit_of_samples():
    delta, epsilon = 1e-2, 1.0

    def audited(shrink):
        multiplier = subsampled_multiplier(Budget(epsilon, delta), 0.5, 1) / 2 / shrink
        made = record(n_vectors=3, sampling_probability=0.5, noise_multiplier=multiplier)
        return audited_epsilon(outcomes(made, 9.0, 4000), outcomes(made, -1.0, 4000), delta)

    assert audited(1.0) <= epsilon
    assert audited(8.0) > epsilon


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 39, 41])
def test_another_number_of_users_than_priced_is_refused(size):
    with pytest.raises(ValueError, match="Expected 40 users, as was priced"):
        record().start(SilentNoise()).choose(np.arange(size))


@pytest.mark.parametrize("size", [0, 11, 13, 40])
def test_another_number_of_vectors_than_sampled_is_refused(size):
    noise = SilentNoise()  # its coins keep the first 12
    session = record().start(noise)
    assert len(session.choose(np.arange(40))) == 12
    with pytest.raises(ValueError, match="one for each user of the sample"):
        session.release(np.zeros((size, 1)), 1.0)
    assert [asked[0] for asked in noise.asked] == ["coins"]


def test_a_sample_serves_one_release_and_rounds_are_counted():
    session = record(rounds=2).start(SilentNoise())
    with pytest.raises(ValueError, match="one for each user"):
        session.release(np.zeros((12, 1)), 1.0)  # before any sample
    for _ in range(2):
        session.choose(np.arange(40))
        session.release(np.zeros((12, 1)), 1.0)
        if _ == 0:
            for size in (12, 40):
                with pytest.raises(ValueError, match="one for each user"):
                    session.release(np.zeros((size, 1)), 1.0)
    session.choose(np.arange(40))
    with pytest.raises(RuntimeError, match="released and paid for"):
        session.release(np.zeros((12, 1)), 1.0)


def test_a_round_begins_anew_whatever_became_of_the_one_before():
    session = record().start(SilentNoise())
    session.choose(np.arange(40))
    session.contribution(3.0)  # and then its statistic fails
    session.choose(np.arange(40))
    np.testing.assert_allclose(session.release(np.ones((12, 2)), 2.0), [1.0, 1.0], rtol=1e-12)


# --- through the curator ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [1, 7, 1024])
@pytest.mark.parametrize("q", [0.001, 0.4, 1.0])
def test_the_curator_releases_means_of_samples_in_blocks(block, q):
    data = UserData.from_arrays(np.full((60, 2), 0.5), None, np.arange(60))
    made = Clip(60, 1e4, 3, block, sampling_probability=q)
    curator = Curator(data, Plan(60, (Step("mean", 0, 60, made),)), Ledger(Budget(1.0, 1e-3)), insecure_seed=1)
    for _ in range(3):
        out = curator.release("mean", UserMean(), 1.0)
        assert out.shape == (2,)
        assert np.all(np.isfinite(out))
    with pytest.raises(RuntimeError, match="used up"):
        curator.release("mean", UserMean(), 1.0)
