"""Clipped means of samples with the fraction of vectors that were not clipped."""

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import SilentNoise
from support_audit import audited_epsilon, audited_gaussian_epsilon
from test_sampled_clip import RADII, Coins, numbers

from userdp import Budget
from userdp.privacy.accounting import Cost, gaussian_multiplier, subsampled_multiplier
from userdp.privacy.clip import SHARED_ROUNDING, Clip
from userdp.privacy.noise import SeededNoise
from userdp_research.mechanisms.clip_with_fraction import ClipWithFraction, WithBalance

BASE = {"n_vectors": 40, "sampling_probability": 0.3, "noise_multiplier": 3.0, "fraction_multiplier": 10.0}


def record(**change):
    return ClipWithFraction(**(BASE | change))


def released(vectors, kept, radii, **change):
    """All rounds of a session without noise: rows of vectors for the users that the coins keep."""
    made = record(n_vectors=len(vectors), rounds=len(kept), **change)
    session, out = made.start(Coins(kept)), []
    for radius in radii:
        chosen = session.choose(np.arange(len(vectors)))
        with np.errstate(all="ignore"):
            out.append(session.release(vectors[chosen], radius))
    return made, out


def n_short(vectors, radius):
    """How many of the vectors are taken for short."""
    *_, balance, n_rows = WithBalance(radius, 40, 1024)(vectors)
    return (n_rows + balance) // 2


@settings(max_examples=300, deadline=None)
@given(vector=st.lists(numbers, min_size=1, max_size=4), radius=st.sampled_from(RADII))
def test_short_is_what_is_finite_and_within_the_radius(vector, radius):
    with np.errstate(all="raise"):
        short = n_short(np.array([vector]), radius)
    if not np.all(np.isfinite(vector)):
        assert short == 0
        return
    with localcontext() as context:
        context.prec = 50
        length = sum(Decimal(float(x)) ** 2 for x in vector).sqrt() / Decimal(radius)
    if abs(length - 1) > Decimal("1e-14"):
        assert short == (length <= 1)


@pytest.mark.parametrize("dimension", [1, 2, 3, 7, 30, 1000])
def test_whether_a_vector_is_short_does_not_depend_on_where_it_stands(dimension):
    """Vectors within rounding of the radius: one more user before them must not turn their votes."""
    rng = np.random.default_rng(dimension)
    for _ in range(20):
        vector = rng.normal(size=dimension)
        rows = np.tile(vector / np.linalg.norm(vector), (33, 1))
        alone = n_short(rows[:1], 1.0)
        for size in (2, 3, 8, 33):
            assert n_short(rows[:size], 1.0) == size * alone
            assert n_short(rows[1 : size + 1], 1.0) == min(size, 32) * alone
            assert n_short(np.asfortranarray(rows[:size]), 1.0) == size * alone


def test_with_everyone_in_it_is_the_clipped_mean_and_the_fraction_of_short_vectors():
    rows = np.random.default_rng(0).normal(0, 1.0, (40, 3))
    session = record(sampling_probability=1.0).start(SilentNoise())
    out = session.release(rows[session.choose(np.arange(40))], 1.5)
    np.testing.assert_allclose(out[:-1], Clip(40, 5.0).start(SilentNoise()).release(rows, 1.5), rtol=1e-12)
    assert out[-1] == pytest.approx(np.mean(np.linalg.norm(rows, axis=1) <= 1.5), abs=1e-12)
    assert 0.2 < out[-1] < 0.8


def test_an_empty_sample_is_noise_alone_and_tells_that_it_knows_nothing():
    made = record(rounds=2)
    noise = Coins([np.zeros(40), np.ones(40)])
    session = made.start(noise)
    assert session.choose(np.arange(40)[::-1]).tolist() == [39]
    np.testing.assert_array_equal(session.release(np.full((1, 2), 1e300), 1.0), [0.0, 0.0, 0.5])
    assert session.choose(np.arange(40)).size == 40  # and the next round counts again
    np.testing.assert_allclose(session.release(np.ones((40, 2)), 2.0)[:2], np.full(2, 1 / 0.3), rtol=1e-12)


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_one_user_moves_mean_and_fraction_by_at_most_their_sensitivities_in_every_round(data):
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
            moved = (now[:width] - then[:width]) / radius
            assert math.hypot(*moved) <= coins[user] * made.sensitivity(1.0, width) / 2
            assert abs(now[-1] - then[-1]) <= coins[user] * made.fraction_sensitivity / 2


@pytest.mark.parametrize("reach", [1.0, 1e10, 1e308])
@pytest.mark.parametrize("q", [0.25, 1.0])
def test_the_sensitivities_are_attained_in_both_directions_at_once(reach, q):
    kept = np.ones((1, 40), dtype=bool)
    kept[0, 1:] = q == 1.0
    vectors, ends = np.zeros((40, 1)), []
    for place in (reach, -reach):
        vectors[0] = place
        made, (out,) = released(vectors, kept, [1.0], sampling_probability=q)
        ends.append(out[0] * q * 40)
    assert ends == pytest.approx([1.0, -1.0], rel=1e-12)
    assert 2 / (q * 40) < made.sensitivity(1.0, 1) < 2 / (q * 40) * (1 + 1.1 * SHARED_ROUNDING)
    for place, vote in ((0.5, 0.5), (2.0, -0.5), (np.nan, -0.5)):
        vectors[0] = place
        _, (out,) = released(vectors, kept, [1.0], sampling_probability=q)
        others = 39 / 2 if q == 1.0 else 0.0
        assert (out[-1] - 0.5) * q * 40 == pytest.approx(vote + others, rel=1e-12)
    assert 1 / (q * 40) < made.fraction_sensitivity < 1 / (q * 40) * (1 + 1e-9)


@pytest.mark.parametrize(("users", "dimension"), [(1, 1), (40, 1000), (10**5, 30), (10**6, 1000)])
def test_the_sensitivities_are_at_least_what_the_proof_says_of_rounding(users, dimension):
    made = record(n_vectors=users)
    clipped, divided = (dimension + 8) * 2.0**-52, 6 * users * 2.0**-53
    assert made.sensitivity(1.0, dimension) * made.expected / 2 - 1 >= (clipped + divided) * (1 - 1e-3) - 2.0**-52
    assert made.fraction_sensitivity * made.expected - 1 >= 6 * users * 2.0**-53


@pytest.mark.parametrize("q", [0.001, 0.37, 1.0])
def test_fractions_of_many_users_are_never_farther_apart_than_their_sensitivity(q):
    """Computed fractions of neighbouring counts, for a million users: rounding is within what is added for it."""
    made = record(n_vectors=10**6, sampling_probability=q)
    steps = (0, 1) if q < 1 else (0, 2)
    balance = np.concatenate([np.arange(-(10**6), 10**6, 97), np.arange(-2000, 2000)]).astype(float)
    fractions = [0.5 + (balance + step) / (2 * made.expected) for step in steps]
    assert np.max(fractions[1] - fractions[0]) <= made.fraction_sensitivity * steps[1] / 2


@pytest.mark.parametrize("fraction", [1.5, 25.0])
def test_mean_and_fraction_are_one_gaussian_release(fraction):
    made = record(fraction_multiplier=fraction, rounds=7)
    precision = 1 / 36 + 1 / (2 * fraction) ** 2
    (part,) = made.cost.subsampled
    assert (part.sampling_probability, part.steps) == (0.3, 7)
    assert precision * (1 - 1e-15) <= 1 / part.added_user_multiplier**2 <= precision * (1 + 1e-11)
    assert made.cost == Cost(subsampled=(part,))


@pytest.mark.parametrize("rounds", [1, 16])
def test_with_everyone_in_it_costs_what_clipping_costs_and_the_fraction(rounds):
    both = record(sampling_probability=1.0, rounds=rounds).cost
    assert both == Cost(gaussian=both.gaussian)
    assert both.gaussian == pytest.approx(4 * rounds * (1 / 36 + 1 / 400), rel=1e-10)
    assert both.gaussian >= 4 * rounds * (1 / 36 + 1 / 400)


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
    each = [("gaussian", made.sensitivity(radius, 3), 3.0), ("gaussian", made.fraction_sensitivity, 10.0)]
    assert asked == each * 2
    assert {a[1:2] + tuple(a[2]) for a in noise.asked if a[0] == "coins"} == {(40, 0.3)}


def outcomes(made, place, runs):
    """Mean, fraction along the best direction for telling a long vector up from a short one down; others are long."""
    noise, out = SeededNoise(int(3 + place)), np.empty(runs)
    stds = 2 * made.noise_multiplier / made.expected, made.fraction_multiplier / made.expected
    for run in range(runs):
        session = made.start(noise)
        chosen = session.choose(np.arange(made.n_vectors))
        mean, fraction = session.release(np.where(chosen == 0, place, 9.0)[:, None], 1.0)
        out[run] = mean / stds[0] ** 2 * 2 / made.expected - fraction / stds[1] ** 2 / made.expected
    return out


def test_audit_of_mean_and_fraction_with_everyone_in():
    """The user's vector turns around and becomes short at once: the whole of both multipliers is at stake."""
    delta, epsilon = 1e-2, 4.0

    def audited(shrink):
        multiplier = math.sqrt(2) * gaussian_multiplier(Budget(epsilon, delta)) / shrink
        made = record(sampling_probability=1.0, noise_multiplier=multiplier, fraction_multiplier=multiplier)
        return audited_gaussian_epsilon(outcomes(made, 9.0, 3000), outcomes(made, -1.0, 3000), delta)

    assert 0.8 * epsilon < audited(1.0) <= epsilon
    assert audited(1.25) > epsilon


def test_audit_of_samples():
    delta, epsilon = 1e-2, 1.0

    def audited(shrink):
        multiplier = subsampled_multiplier(Budget(epsilon, delta), 0.5, 1) / math.sqrt(2) / shrink
        made = record(
            n_vectors=3, sampling_probability=0.5, noise_multiplier=multiplier, fraction_multiplier=multiplier
        )
        return audited_epsilon(outcomes(made, 9.0, 4000), outcomes(made, -1.0, 4000), delta)

    assert audited(1.0) <= epsilon
    assert audited(8.0) > epsilon


@pytest.mark.parametrize(
    ("change", "error"),
    [({"fraction_multiplier": 0.0}, ValueError), ({"fraction_multiplier": [1.0]}, TypeError)],
)
def test_impossible_fractions_are_refused(change, error):
    with pytest.raises(error, match="fraction_multiplier"):
        record(**change)


@pytest.mark.parametrize("more", [{"acute": True}, {"laplace": True}])
def test_what_has_no_proof_with_a_fraction_is_refused(more):
    with pytest.raises(ValueError, match="Expected Gaussian noise"):
        record(sampling_probability=1.0, **more)
