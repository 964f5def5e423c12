"""Clipped means without delta: the 1-norm is clipped, a replacement moves it by 2r/K at most, noise is Laplace's."""

from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import SilentNoise, climb
from support_audit import audited_epsilon
from support_statistics import assert_same_totals
from test_clip import RADII, neighbours, numbers
from test_sparse_clip import WIDTH, any_vector, held, sound_vector

from userdp.privacy.accounting import Budget, BudgetExceeded, Cost
from userdp.privacy.clip import SHARED_ROUNDING, Clip, clipped_total
from userdp.privacy.ledger import Ledger
from userdp.privacy.noise import SeededNoise
from userdp.privacy.plan import Plan, Step
from userdp.privacy.statement import statement

ENTRIES = st.one_of(any_vector, sound_vector)


def of(n_vectors, multiplier=5.0, rounds=1):
    return Clip(n_vectors, multiplier, rounds, laplace=True)


def total(record, vectors, radius):
    with np.errstate(all="ignore"):
        return clipped_total(vectors, radius, record.bits, laplace=True)


def distance(first, second):
    """1-norm of the difference of two totals, exactly."""
    return sum(abs(int(a) - int(b)) for a, b in zip(first[:-1], second[:-1], strict=True))


def most(record, dimension):
    """How far the sensitivity lets a total move, in steps of the grid, without what it holds for rounding of means."""
    return Fraction(record.sensitivity(1.0, dimension)) * record.n_vectors * 2**record.bits


# --- what is computed -------------------------------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(vector=st.lists(numbers, min_size=1, max_size=5), radius=st.sampled_from(RADII))
def test_a_vector_is_clipped_in_the_1_norm_and_never_beyond_what_the_sensitivity_allows(vector, radius):
    *found, _ = map(int, total(of(1), np.array([vector]), radius))
    assert sum(map(abs, found)) <= 2**52 * (1 + Fraction(2) ** -50 * (len(vector) + 8))
    with localcontext() as context:
        context.prec = 50
        entries = [Decimal(x) if np.all(np.isfinite(vector)) else Decimal(0) for x in vector]
        size = sum(map(abs, entries))
        factor = min(Decimal(1), Decimal(radius) / size) / Decimal(radius) * 2**52 if size else Decimal(0)
        exact = [x * factor for x in entries]
        assert all(abs(x - ours) <= 1 + abs(x) * Decimal("1e-14") for x, ours in zip(exact, found, strict=True))


def test_vectors_of_all_sizes_add_up():
    rows = np.array([[3.0, 5.0], [0.0, 0.5], [1e308, 1e308], [0.0, -1e308], [1e-320, 0.0], [np.nan, 9.0], [-np.inf, 9]])
    released = of(7).start(SilentNoise()).release(rows, 1.0)
    np.testing.assert_allclose(released, np.array([0.375 + 0.5, 0.625 + 0.5 + 0.5 - 1.0]) / 7, atol=2.0**-50)
    for wild in rows[5:]:
        assert total(of(1), wild[None, :], 1.0).tolist() == [0, 0, 1]


@settings(max_examples=200, deadline=None)
@given(st.lists(sound_vector, min_size=1, max_size=6), st.sampled_from([1e-3, 1.0, 7.3]))
def test_totals_of_entries_are_those_of_the_vectors(vectors, radius):
    dense = np.zeros((len(vectors), WIDTH))
    for row, vector in zip(dense, vectors, strict=True):
        for column, x in vector:
            row[column] = x
    found = clipped_total(held(vectors), radius, 40, laplace=True)
    assert_same_totals(found, clipped_total(dense, radius, 40, laplace=True), len(dense))


# --- sensitivity ------------------------------------------------------------------------------------------------------


@settings(max_examples=500, deadline=None)
@given(pair=neighbours(), radius=st.sampled_from(RADII))
def test_no_replacement_moves_the_total_by_more_than_the_sensitivity_in_the_1_norm(pair, radius):
    rows, replaced, replacement = pair
    other, record = rows.copy(), of(len(rows))
    other[replaced] = replacement
    assert distance(total(record, rows, radius), total(record, other, radius)) <= most(record, rows.shape[1])


@settings(max_examples=300, deadline=None)
@given(st.lists(ENTRIES, min_size=1, max_size=6), st.data(), st.sampled_from([1e-3, 1.0, 7.3]))
def test_nor_does_one_of_entries(vectors, data, radius):
    place, other = data.draw(st.integers(0, len(vectors) - 1)), data.draw(ENTRIES)
    record = of(len(vectors))
    before, after = (
        clipped_total(held(each), radius, record.bits, laplace=True)
        for each in (vectors, [*vectors[:place], other, *vectors[place + 1 :]])
    )
    assert distance(before, after) <= most(record, WIDTH)


@pytest.mark.parametrize("size", [1, 2, 50, 1000])
@pytest.mark.parametrize("reach", [1.0, 1e10, 1e308])
@pytest.mark.parametrize("dimension", [1, 8])
def test_the_sensitivity_is_attained_by_a_user_at_both_ends_of_the_ball(size, reach, dimension):
    """In every coordinate at once: lengths of 2-norms would move the mean sqrt(dimension) times as far."""
    rows = np.zeros((size, dimension))
    means = []
    for place in (reach, -reach):
        rows[0] = place
        means.append(of(size).start(SilentNoise()).release(rows, 1.0))
    assert np.abs(means[0] - means[1]).sum() == pytest.approx(2 / size, rel=1e-12)
    assert 2 / size < of(size).sensitivity(1.0, dimension) < 2 / size * (1 + 1.1 * SHARED_ROUNDING)


def test_hill_climbing_reaches_the_sensitivity_and_no_more():
    record = of(5)

    def ratio(rows):
        one, other = rows[1:], np.vstack([rows[:1], rows[2:]])
        return float(distance(total(record, one, 1.0), total(record, other, 1.0)) / most(record, 2))

    best = max(climb(ratio, np.random.default_rng(s).normal(size=(6, 2)), np.random.default_rng(s)) for s in range(4))
    assert 0.99 < best <= 1.0


# --- cost and noise ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("multiplier", "rounds"), [(5.0, 1), (8.0, 16), (0.3, 7)])
def test_every_round_costs_one_over_its_multiplier_and_nothing_else(multiplier, rounds):
    cost = of(40, multiplier, rounds).cost
    assert cost == Cost(pure=cost.pure)
    assert len(cost.pure) == rounds
    assert all(1 / multiplier <= epsilon <= 1 / multiplier * (1 + 1e-15) for epsilon in cost.pure)


def test_a_plan_without_delta_is_certified_and_charged_up_to_its_epsilon_and_not_beyond():
    budget = Budget(1.0, 0.0)

    def plan(*rounds, multiplier=12 * (1 + 1e-12)):
        return Plan(40, tuple(Step(f"{k}", 0, 40, of(40, multiplier, n)) for k, n in enumerate(rounds)))

    for fine in (
        plan(12),
        plan(1, 11),
        Plan(40, tuple(Step(f"{k}", 20 * k, 20 * k + 20, of(20, 1.0001)) for k in (0, 1))),
    ):
        fine.certify(budget)
        ledger = Ledger(budget)
        ledger.charge(fine)
        assert ledger.spent_epsilon() == pytest.approx(1.0, abs=2e-4)
        with pytest.raises(BudgetExceeded):
            ledger.charge(plan(1, multiplier=1e3))
    for dear in (plan(13), plan(1, 11, 1), plan(12, multiplier=11.99)):
        with pytest.raises(BudgetExceeded, match=r"needs epsilon=1\.\d* at delta=0"):
            dear.certify(budget)


@pytest.mark.parametrize("radius", [0.01, 1.0, 300.0])
def test_each_round_has_laplace_noise_of_multiplier_times_sensitivity(radius):
    record, noise = of(40, 5.0, rounds=2), SilentNoise()
    session = record.start(noise)
    for _ in range(2):
        session.choose(np.arange(40))
        session.release(np.zeros((40, 3)), radius)
    assert noise.asked == [("laplace", record.sensitivity(radius, 3), 1 / 5.0)] * 2


def test_audit_of_the_release():
    """A user at one end of the ball against the other end: the claim holds, and would not with half the noise."""
    runs, epsilon = 6000, 1.5

    def audited(multiplier):
        record, noise = of(100, multiplier), SeededNoise(5)
        rows = np.zeros((100, 1))
        outcomes = []
        for place in (9.0, -9.0):
            rows[0] = place
            outcomes.append(np.array([record.start(noise).release(rows, 1.0)[0] for _ in range(runs)]))
        return audited_epsilon(*outcomes, 0.0)

    assert 0.8 * epsilon < audited(1 / epsilon) <= epsilon
    assert audited(0.5 / epsilon) > 1.2 * epsilon


# --- records ----------------------------------------------------------------------------------------------------------


def test_radii_that_clip_nothing():
    assert Clip(40, 5.0).radius_of(3.0, 16) == 3.0
    assert of(40).radius_of(3.0, 16) == 12.0


def test_parts_of_a_plan_without_delta_are_counted_in_epsilon():
    parts = (Step("a", 0, 100, of(100, 4.0)), Step("b", 0, 100, of(100, 8.0, rounds=2)))
    told = statement(Plan(100, parts), Budget(0.5, 0.0), Ledger(Budget(0.5, 0.0)), None)
    assert [part.fraction for part in told.parts] == pytest.approx([0.5, 0.5])
