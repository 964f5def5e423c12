"""An analyst who chooses runs by looking at releases never gets more than the ledger's budget.

Exact deltas by quadrature, over trees of choices among Gaussian, pure, sampled and failure-type runs. A ledger that
composes the runs as if they had been fixed in advance gives up to three times the delta here.
"""

import itertools

import numpy as np
import pytest
from support_adversary import (
    KINDS,
    Failure,
    Gaussian,
    Pure,
    Sampled,
    SampledMore,
    accepts,
    largest,
    plan,
    true_delta,
)

from userdp.privacy.accounting import Budget, BudgetExceeded, Cost, epsilon_at, fits, gaussian_multiplier
from userdp.privacy.domination import dominating
from userdp.privacy.ledger import Ledger

BUDGET = Budget(1.0, 1e-6)
MU = 1 / gaussian_multiplier(BUDGET)
QUADRATURE = 1e-3  # relative error of sums over losses


def choices(before, kinds=KINDS, budget=BUDGET):
    return [run for run in (largest(kind, budget, before) for kind in kinds) if run is not None]


@pytest.mark.parametrize("fraction", [0.3, 0.7, 0.95])
def test_a_second_run_that_is_chosen_by_the_first_release(fraction):
    first = Gaussian(fraction * MU)
    found = choices([first])
    assert {type(run) for run in found} == set(KINDS)
    (delta,) = true_delta(1.0, first, [run.delta for run in found], 4001)
    assert delta <= BUDGET.delta * (1 + QUADRATURE)
    assert delta >= 0.8 * BUDGET.delta, "the attack is not weak: it comes close"


@pytest.mark.parametrize("first", [Pure(0.15), Sampled(0.9), SampledMore(0.25), Failure(2e-7)])
def test_a_first_run_of_any_kind(first):
    found = choices([first])
    assert len(found) >= 3
    (delta,) = true_delta(1.0, first, [run.delta for run in found], 4001)
    assert delta <= BUDGET.delta * (1 + QUADRATURE)


@pytest.mark.parametrize(("one", "two"), [(0.5, 0.5), (0.3, 0.7), (0.8, 0.3)])
def test_three_runs(one, two):
    """After each Gaussian release: another one, or the largest run of any kind that is then accepted."""
    kinds = (Gaussian, Pure, Failure, SampledMore)
    first, second = Gaussian(one * MU), Gaussian(two * MU)
    assert accepts(BUDGET, [first, second])
    last = [run.delta for run in choices([first, second], kinds)]
    sooner = [run.delta for run in choices([first], kinds)]
    epsilons = np.linspace(-4.0, 6.0, 2001)
    after_both = true_delta(epsilons, second, last, 401)

    def gone_on(at):
        return np.interp(at, epsilons, after_both)

    (delta,) = true_delta(1.0, first, [*sooner, gone_on], 801)
    assert delta <= BUDGET.delta * (1 + 20 * QUADRATURE)  # also of the interpolation
    assert delta >= 0.8 * BUDGET.delta


def test_many_small_runs_are_stopped_by_what_they_released():
    """Twelve Gaussian runs; before each of them the analyst may take a failure, or a pure rest, instead."""
    step, kinds = Gaussian(MU / 4.2), (Pure, Failure)
    epsilons = np.linspace(-4.0, 6.0, 2001)
    runs = [step] * 12
    assert accepts(BUDGET, runs)
    value = choices(runs, (Gaussian, Failure))
    value = np.maximum.reduce([run.delta(epsilons) for run in value])
    for taken in range(11, 0, -1):
        last = value
        ends = [run.delta for run in choices(runs[:taken], kinds)]
        value = true_delta(epsilons, step, [*ends, lambda at, last=last: np.interp(at, epsilons, last)], 401)
    (delta,) = true_delta(1.0, step, [lambda at: np.interp(at, epsilons, value)], 401)
    assert delta <= BUDGET.delta * (1 + 20 * QUADRATURE)
    assert delta >= 0.9 * BUDGET.delta


def test_room_that_noise_leaves_is_not_given_to_failures():
    """Noise or failures, whichever looks better after the first release, would add up to nearly twice delta."""
    first = Gaussian(0.6 * MU)
    noise = Gaussian(0.8 * MU * (1 - 1e-9))
    left = 1e-6 * (1 - 2e-6) - float(first.delta(1.0))
    (delta,) = true_delta(1.0, first, [noise.delta, Failure(left).delta], 4001)
    assert delta > 1.5e-6
    assert fits(first.cost + noise.cost, BUDGET)
    assert fits(first.cost + Failure(left).cost, BUDGET)
    assert not accepts(BUDGET, [first, Failure(left)])


@pytest.mark.parametrize("fraction", [0.3, 0.6, 0.9])
def test_gaussian_runs_cost_what_they_are(fraction):
    """With all of delta for noise: as many as exact composition allows, and no more, at the same epsilon."""
    book = Ledger(BUDGET, failure_fraction=0.0)
    first = Cost(gaussian=fraction * MU**2)
    rest = Cost(gaussian=(1 - fraction) * MU**2 * (1 - 1e-12))
    book.charge(plan(first))
    book.charge(plan(rest))
    assert book.spent_epsilon() == epsilon_at(first + rest, 1e-6)
    with pytest.raises(BudgetExceeded):
        book.charge(plan(Cost(gaussian=1e-6 * MU**2)))
    assert dominating(first).mu_squared == first.gaussian


def test_a_fraction_for_failures_leaves_nearly_all_noise():
    allowed = gaussian_multiplier(Budget(1.0, 0.75e-6)) / gaussian_multiplier(BUDGET)
    assert 1.01 < allowed < 1.02
    half = Gaussian(MU / allowed / np.sqrt(2) * (1 - 1e-9))
    assert accepts(BUDGET, [half, half])
    assert not accepts(BUDGET, [half, half, Gaussian(0.01 * MU)])


def test_the_first_run_may_cost_all_of_the_budget_and_then_nothing_more_fits():
    for whole in (Cost(gaussian=MU**2), Cost(pure=(1.0,)), Cost(failure=0.99e-6), Cost(gaussian=1e-3, failure=0.9e-6)):
        book = Ledger(BUDGET)
        book.charge(plan(whole))
        assert book.spent_epsilon() <= 1.0
        for kind in (Gaussian(1e-3), Sampled(0.1), Failure(1e-12)):
            with pytest.raises(BudgetExceeded):
                book.charge(plan(kind.cost))


def test_pure_runs_alone_add_up_to_epsilon():
    book = Ledger(BUDGET)
    for _ in range(3):
        book.charge(plan(Cost(pure=(0.2, 0.1), failure=1e-8)))
    assert book.spent_epsilon() == pytest.approx(0.9)
    with pytest.raises(BudgetExceeded):
        book.charge(plan(Cost(gaussian=1e-4)))
    with pytest.raises(BudgetExceeded):
        book.charge(plan(Cost(pure=(0.11,))))
    book.charge(plan(Cost(pure=(0.09,))))


def test_a_budget_without_delta_takes_pure_runs_only():
    book = Ledger(Budget(1.0, 0.0))
    for _ in range(10):
        book.charge(plan(Cost(pure=(0.1,))))
    assert book.spent_epsilon() == pytest.approx(1.0)
    for more in (Cost(pure=(0.1,)), Cost(gaussian=1e-9), Cost(failure=1e-12), Sampled(0.1).cost):
        with pytest.raises(BudgetExceeded, match=r"only pure releases fit|failure probabilities"):
            book.charge(plan(more))
        with pytest.raises(BudgetExceeded):
            Ledger(Budget(0.05, 0.0)).charge(plan(more))


@pytest.mark.parametrize("first", [Gaussian(0.9 * MU), SampledMore(0.34)])
def test_runs_with_a_seed_are_charged_all_the_same(first):
    book = Ledger(BUDGET)
    book.charge(plan(first.cost), insecure_seed=1)
    with pytest.raises(BudgetExceeded):
        book.charge(plan(Cost(gaussian=0.3 * MU**2)), insecure_seed=2)
    assert book.spent_epsilon() == np.inf


def test_what_is_left_for_sampled_runs_never_runs_out():
    """Each takes a part of the failure probability that is left, so that many may follow."""
    book = Ledger(Budget(8.0, 1e-5))
    sampled = SampledMore(0.05)
    for _ in range(30):
        book.charge(plan(sampled.cost))
    charged = [charge.dominating[0] for charge in book.charges()]
    failures = [each.failure for each in charged]
    assert all(later < earlier for earlier, later in itertools.pairwise(failures))
    assert sum(failures) < 0.25e-5
    assert charged[-1].mu_squared < 1.2 * charged[0].mu_squared
