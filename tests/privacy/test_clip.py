import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import SilentNoise, climb
from support_audit import audited_gaussian_epsilon

from userdp.privacy.accounting import Budget, gaussian_multiplier
from userdp.privacy.clip import SHARED_ROUNDING, Clip, clipped_total, grid_bits
from userdp.privacy.noise import SeededNoise

SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, 3.0, math.nan, math.inf, -math.inf]
EXTREME = [1e308, -1e308, 1.7e308, 1e-308, -1e-308, 5e-324, 2.0**450, 2.0**-450, 1e154, -1e-154, 2.0**400, 2.0**-400]
RADII = [2.0**-400, 1e-3, 1.0, 7.3, 2.0**400]

numbers = st.one_of(st.sampled_from(SPECIAL), st.sampled_from(EXTREME), st.floats(-4.0, 4.0), st.floats())


@st.composite
def neighbours(draw):
    """A data set and one row that replaces one of its rows; rows repeat, and are of all sizes."""
    dimension = draw(st.integers(1, 4))
    row = st.lists(numbers, min_size=dimension, max_size=dimension)
    kinds = draw(st.lists(row, min_size=1, max_size=4))
    rows = draw(st.lists(st.one_of(st.sampled_from(kinds), row), min_size=1, max_size=9))
    return np.array(rows, dtype=float), draw(st.integers(0, len(rows) - 1)), np.array(draw(row), dtype=float)


def clipped(vectors, radius):
    """The mean that a session would release without noise."""
    with np.errstate(all="ignore"):
        return Clip(len(vectors), 5.0).start(SilentNoise()).release(vectors, radius)


def clipped_sum(vectors, radius):
    """The sum of clipped vectors, on the grid of one vector."""
    return clipped_total(vectors, radius, 52)[:-1] * (radius * 2.0**-52)


def length(vector):
    """Norm without over- or underflow."""
    return math.hypot(*vector)


# --- what is computed -------------------------------------------------------------------------------------------------


def exactly_clipped(vector, radius):
    """min(1, r/|x|) x in fifty digits and with exponents without bounds; zeros if x is not finite."""
    if not np.all(np.isfinite(vector)):
        return [Decimal(0)] * len(vector)
    with localcontext() as context:
        context.prec = 50
        entries = [Decimal(float(x)) for x in vector]
        size = sum(x * x for x in entries).sqrt()
        factor = min(Decimal(1), Decimal(radius) / size) if size else Decimal(0)
        return [x * factor for x in entries]


@settings(max_examples=300, deadline=None)
@given(vector=st.lists(numbers, min_size=1, max_size=5), radius=st.sampled_from(RADII))
def test_a_vector_is_clipped_to_the_radius_and_never_longer_than_the_sensitivity_allows(vector, radius):
    with np.errstate(all="ignore"):
        computed = clipped_sum(np.array([vector]), radius)
    with localcontext() as context:
        context.prec = 50
        size = sum(Decimal(float(x)) ** 2 for x in computed).sqrt()
        assert size <= Decimal(radius) * (1 + Decimal(2.0**-50) * (len(vector) + 8))
    expected = np.array([float(x) for x in exactly_clipped(vector, radius)])
    np.testing.assert_allclose(computed, expected, rtol=1e-14, atol=2.0**-52 * radius + 1e-15 * np.abs(expected).max())


def test_vectors_of_all_sizes_add_up():
    rows = np.array([[3.0, 4.0], [0.0, 0.5], [1e308, 0.0], [0.0, -1e308], [1e-320, 0.0], [np.nan, 9.0], [-np.inf, 9.0]])
    np.testing.assert_allclose(clipped_sum(rows, 1.0), [0.6 + 1.0, 0.8 + 0.5 - 1.0], atol=2.0**-50)
    np.testing.assert_allclose(clipped(rows, 1.0), np.array([1.6, 0.3]) / 7, atol=2.0**-52)
    for wild in rows[5:]:  # each alone: two wrong whole numbers may add up to 0
        np.testing.assert_array_equal(clipped_sum(wild[None, :], 1.0), [0.0, 0.0])


@pytest.mark.parametrize("radius", [2.0**-400, 1e-9, 1.0, 1e9, 2.0**400])
def test_vectors_are_clipped_to_radii_of_all_sizes(radius):
    """All that the curator allows: short vectors stay, long ones are clipped."""
    rows = radius * np.array([[3.0, 4.0], [0.3, 0.4], [0.0, -0.5], [2.0**20, 0.0]])
    for row, expected in zip(rows, [[0.6, 0.8], [0.3, 0.4], [0.0, -0.5], [1.0, 0.0]], strict=True):
        total = clipped_total(row[None], radius, 40)
        np.testing.assert_allclose(total[:-1] * 2.0**-40, expected, atol=2.0**-39)
        assert total[-1] == 1


@pytest.mark.parametrize("bits", [1, 20, 42, 49, 50, 51, 52])
def test_whole_numbers_are_rounded_towards_0_exactly(bits):
    rows = np.random.default_rng(bits).uniform(-1, 1, (50, 37))
    rows = np.vstack([0.9 * rows / np.linalg.norm(rows, axis=1)[:, None], np.eye(37)[:3], -np.eye(37)[:3]])
    for row in rows:
        total = clipped_total(row[None], 1.0, bits)
        assert total[:-1].tolist() == [math.trunc(entry * 2.0**bits) for entry in row.tolist()]


def test_short_vectors_keep_their_lengths():
    rows = np.random.default_rng(0).uniform(-0.5, 0.5, (40, 3))
    np.testing.assert_allclose(clipped(rows, 1.0), rows.mean(axis=0), atol=2.0**-51)


def test_the_input_is_not_written_to():
    rows = np.array([[1e308, 3.0], [3.0, 4.0], [np.nan, 1.0]])
    before = rows.copy()
    clipped(rows, 1.0)
    np.testing.assert_array_equal(rows, before)


# --- sensitivity ------------------------------------------------------------------------------------------------------


@settings(max_examples=500, deadline=None)
@given(pair=neighbours(), radius=st.sampled_from(RADII))
def test_no_replacement_moves_the_mean_by_more_than_its_sensitivity(pair, radius):
    rows, replaced, replacement = pair
    other = rows.copy()
    other[replaced] = replacement
    moved = length((clipped(rows, radius) - clipped(other, radius)) / radius)
    assert moved <= Clip(len(rows), 5.0).sensitivity(1.0, rows.shape[1])


@pytest.mark.parametrize("size", [1, 2, 50, 1000])
@pytest.mark.parametrize("reach", [1.0, 1e10, 1e308])
def test_the_sensitivity_is_attained_by_a_user_at_both_ends_of_the_ball(size, reach):
    rows = np.zeros((size, 1))
    means = []
    for place in (reach, -reach):
        rows[0] = place
        means.append(float(clipped(rows, 1.0)[0]))
    assert means[0] - means[1] == 2 / size
    assert 2 / size < Clip(size, 5.0).sensitivity(1.0, 1) < 2 / size * (1 + 1.1 * SHARED_ROUNDING)


def test_hill_climbing_reaches_the_sensitivity_and_no_more():
    def ratio(rows):
        one, other = rows[1:], np.vstack([rows[:1], rows[2:]])
        return length(clipped(one, 1.0) - clipped(other, 1.0)) / Clip(5, 5.0).sensitivity(1.0, 2)

    best = max(climb(ratio, np.random.default_rng(s).normal(size=(6, 2)), np.random.default_rng(s)) for s in range(4))
    assert 0.99 < best <= 1.0


def test_the_mean_of_a_total_is_off_by_less_than_the_sensitivity_has_room_for():
    """Totals of thousands of vectors, in thousands of radii: converting and dividing them is all that rounds."""
    record = Clip(20_000, 5.0)
    room = (record.sensitivity(1.0, 1) - 2 / 20_000) / 2
    totals = np.random.default_rng(0).integers(-(2**61), 2**61, 2000)
    means = record.released(np.append(totals, 0), 1.0, SilentNoise())
    exact = [Fraction(int(total), 2**record.bits * 20_000) for total in totals]
    off = max(abs(Fraction(float(mean)) - value) for mean, value in zip(means, exact, strict=True))
    assert 0 < off <= room


@settings(max_examples=100, deadline=None)
@given(data=st.data(), radius=st.sampled_from(RADII))
def test_totals_do_not_depend_on_order_blocks_or_partitions(data, radius):
    """Bit for bit: rows in any order, in any layout, added up in any parts, in any order of these."""
    dimension = data.draw(st.integers(1, 4))
    row = st.lists(numbers, min_size=dimension, max_size=dimension)
    rows = np.array(data.draw(st.lists(row, min_size=1, max_size=12)), dtype=float)
    record = Clip(len(rows), 5.0)
    total = clipped_total(rows, radius, record.bits)
    assert total.dtype == np.int64
    shuffled = rows[data.draw(st.permutations(range(len(rows))))]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    parts = [clipped_total(np.asfortranarray(part), radius, record.bits) for part in np.split(shuffled, cuts)]
    np.testing.assert_array_equal(sum(parts[::-1]), total)
    np.testing.assert_array_equal(sum(clipped_total(one[None], radius, record.bits) for one in rows), total)


@pytest.mark.parametrize("radii", [1, 1023, 1024, 2**31, 10**12])
def test_no_total_leaves_its_integers(radii):
    """As many vectors of the full length as there may be, and a little longer by rounding."""
    assert radii * 2 ** grid_bits(radii) * 1.001 < 2**63
    assert grid_bits(radii) in (52, 62 - radii.bit_length())
    (one, _) = clipped_total(np.array([[1e300]]), 1.0, grid_bits(radii))
    assert one == 2 ** grid_bits(radii)


@pytest.mark.parametrize("size", [1, 100, 10**6])
@pytest.mark.parametrize("dimension", [1, 1000])
def test_the_sensitivity_is_at_least_what_the_proof_says_of_rounding(size, dimension):
    longer, divided = (dimension + 8) * 2.0**-52, 3 * size * 2.0**-53
    assert Clip(size, 5.0).sensitivity(1.0, dimension) / (2 / size) - 1 >= longer + divided + SHARED_ROUNDING


# --- cost and noise ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("radius", [0.01, 1.0, 300.0])
def test_each_round_has_noise_of_multiplier_times_sensitivity(radius):
    record, noise = Clip(40, 5.0, rounds=2), SilentNoise()
    session = record.start(noise)
    for _ in range(2):
        session.choose(np.arange(40))
        session.release(np.zeros((40, 3)), radius)
    assert noise.asked == [("gaussian", record.sensitivity(radius, 3), 5.0)] * 2
    assert 1.0 <= record.sensitivity(radius, 3) / (2 * radius / 40) < 1 + SHARED_ROUNDING + 1e-9


def test_audit_of_the_release():
    """A user at one end of the ball against the other end: the claim holds, and little of it is wasted."""
    runs, delta, epsilon = 4000, 1e-2, 4.0

    def outcomes(place, multiplier):
        record, noise = Clip(100, multiplier), SeededNoise(int(5 + place))
        rows = np.zeros((100, 1))
        rows[0] = 9 * place
        return np.array([record.start(noise).release(rows, 1.0)[0] for _ in range(runs)])

    def audited(multiplier):
        return audited_gaussian_epsilon(outcomes(1.0, multiplier), outcomes(-1.0, multiplier), delta)

    multiplier = gaussian_multiplier(Budget(epsilon, delta))
    assert 0.8 * epsilon < audited(multiplier) <= epsilon
    assert audited(multiplier / 1.2) > epsilon


# --- sessions ---------------------------------------------------------------------------------------------------------


def test_a_round_begins_anew_whatever_became_of_the_one_before():
    rows, session = np.ones((40, 2)), Clip(40, 5.0, rounds=3).start(SilentNoise())
    users = np.arange(40)
    assert session.choose(users) is users
    session.contribution(3.0)  # and then its statistic fails
    session.choose(users)
    np.testing.assert_array_equal(session.release(rows, 2.0), [1.0, 1.0])
    np.testing.assert_array_equal(session.release(0.5 * rows, 1.0), [0.5, 0.5])
