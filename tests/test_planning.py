"""Plans made from public numbers: certified, not wasteful, and clear about what would do."""

import math

import numpy as np
import pytest

from userdp.paper.mean_plans import left_outside, plan_means, plan_search, search_grid, searched_users
from userdp.privacy.accounting import Budget, BudgetExceeded, Cost, epsilon_at, gaussian_multiplier
from userdp.privacy.mechanisms.outlier_removal import OutlierRemoval
from userdp.privacy.noise import SeededNoise

CASES = [
    (1000, 4.0, 1),
    (4000, 1.0, 1),
    (5000, 1.0, 14),
    (5000, 1.0, 20),
    (5000, 1.0, 1000),
    (20_000, 1.0, 40),
    (50_000, 0.5, 100),
]


@pytest.mark.parametrize(("n_users", "epsilon", "rounds"), CASES)
@pytest.mark.parametrize("radii", [None, (0.01, 2.0)])
def test_the_whole_budget_is_used_and_no_more(n_users, epsilon, rounds, radii):
    budget = Budget(epsilon, 1e-6)
    plan = plan_means(n_users, budget, rounds, radii=radii)
    plan.certify(budget)
    spent = [epsilon_at(cost, 1e-6) for cost in plan.costs]  # of those whom the search asks, and of the others
    assert max(spent) == pytest.approx(epsilon, rel=1e-4)
    assert max(spent) <= epsilon
    assert len(spent) == (2 if radii is not None and n_users >= 20_000 else 1)
    assert [step.label for step in plan.steps] == (["mean"] if radii is None else ["radius", "mean"])
    assert plan.steps[-1].mechanism.rounds == rounds


def noise_of(mean):
    return mean.noise_multiplier * mean.sensitivity(1.0, 1)


@pytest.mark.parametrize(("rounds", "gaussian"), [(1, True), (14, True), (1000, False)])
@pytest.mark.parametrize("radii", [None, (0.02, 1.0)])
def test_few_rounds_have_gaussian_tests_and_many_have_above_threshold(rounds, gaussian, radii):
    plan = plan_means(5000, Budget(1.0, 1e-6), rounds, radii=radii)
    assert (plan.steps[-1].mechanism.test_std is not None) == gaussian


def by_hand(fraction, pure, rounds, searched, n_users=5000, tolerated=100):
    """The noise of 5000 users' means if the test gets this fraction of epsilon, or of each round's Gaussian budget."""
    budget, failure = Budget(1.0, 1e-6), 5e-8
    spent = Cost(pure=(fraction,) if pure else (), failure=failure)
    if searched:
        search = plan_search(
            n_users, search_grid(0.02, 1.0), tolerated, 0.05 / gaussian_multiplier(budget, 1, spent) ** 2
        )
        spent, tolerated = spent + search.cost, n_users - search.target + math.ceil(2 * search.noise_std)
    z = gaussian_multiplier(budget, rounds, spent)
    if pure:
        return noise_of(OutlierRemoval(n_users, z, fraction, failure, 1e-3, rounds, tolerated))
    z_mean, test_std = z / math.sqrt(1 - fraction), z / math.sqrt(fraction)
    return noise_of(OutlierRemoval(n_users, z_mean, None, failure, 1e-3, rounds, tolerated, test_std))


@pytest.mark.parametrize("rounds", [1, 14, 60, 1000])
@pytest.mark.parametrize("searched", [False, True])
def test_neither_test_makes_less_noise_at_any_fraction_that_is_tried(rounds, searched):
    plan = plan_means(5000, Budget(1.0, 1e-6), rounds, radii=(0.02, 1.0) if searched else None)
    noise, tried = noise_of(plan.steps[-1].mechanism), []
    for pure in (True, False):
        for fraction in (0.02, 0.05, 0.12, 0.2, 0.3, 0.45):
            try:
                tried.append(by_hand(fraction, pure, rounds, searched))
            except ValueError:  # too few users for this fraction
                continue
    assert len(tried) > 3
    assert noise <= min(tried) * (1 + 1e-8)
    assert noise > 0.8 * min(tried)


@pytest.mark.parametrize("rounds", [14, 1000])
@pytest.mark.parametrize("other", [Cost(gaussian=0.02), Cost(gaussian=0.01, pure=(0.1,), failure=2e-7)])
def test_what_else_is_paid_for_comes_out_of_the_same_budget(rounds, other):
    budget = Budget(1.0, 1e-6)
    plan = plan_means(5000, budget, rounds, other=other)
    assert epsilon_at(plan.costs[0] + other, 1e-6) == pytest.approx(1.0, rel=1e-4)
    assert epsilon_at(plan.costs[0] + other, 1e-6) <= 1.0
    assert noise_of(plan.steps[-1].mechanism) > noise_of(plan_means(5000, budget, rounds).steps[-1].mechanism)


@pytest.mark.parametrize("rounds", [1, 14, 1000])
@pytest.mark.parametrize("outliers", [0.0, 0.02])
def test_the_means_tolerate_what_the_search_may_leave_by_the_noise_of_a_probe(rounds, outliers):
    plan = plan_means(5000, Budget(1.0, 1e-6), rounds, outliers=outliers)
    search, mean = (step.mechanism for step in plan.steps)
    assert 5000 - search.target >= max(outliers * 5000, search.noise_std)
    assert mean.outliers >= 5000 - search.target + 2 * search.noise_std


@pytest.mark.parametrize("n_users", [20_000, 100_000, 1_000_000])
@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_a_search_among_few_of_many_users_costs_hardly_any_noise(n_users, epsilon):
    budget = Budget(epsilon, 1e-6)
    search, mean = (step.mechanism for step in plan_means(n_users, budget, 20).steps)
    asked = searched_users(n_users, budget, search.radii, 0.02)
    assert search.n_vectors == asked == searched_users(10 * n_users, budget, search.radii, 0.02) < 15_000
    aimed = (asked - search.target) / asked
    assert aimed == pytest.approx(0.02, abs=1e-4)
    assert aimed < left_outside(search, n_users) <= aimed + 0.008
    assert mean.outliers == math.ceil(n_users * left_outside(search, n_users))
    known = plan_means(n_users, budget, 20, radii=None).steps[-1].mechanism
    assert 1 < noise_of(mean) / noise_of(known) < 1.08  # the budget of the search included


@pytest.mark.parametrize("fraction", [0.01, 0.02, 0.05])
def test_what_a_search_leaves_outside_holds_for_all_users(fraction):
    budget, rng = Budget(1.0, 1e-6), np.random.default_rng(0)
    search = plan_means(100_000, budget, 20, outliers=fraction).steps[0].mechanism
    aimed = search.n_vectors - search.target
    # A sample with these outliers passes a probe if the noise lets it: how many may there be among all?
    among_all = left_outside(search, 100_000)
    seen = rng.binomial(search.n_vectors, among_all, 100_000) - search.noise_std * rng.normal(size=100_000)
    assert 0.005 < np.mean(seen <= aimed) < 0.05


@pytest.mark.parametrize("fraction", [0.0, 0.02, 0.1])
def test_the_tolerated_outliers_do_not_abort_it(fraction):
    mean = plan_means(4000, Budget(1.0, 1e-6), 5, outliers=fraction, radii=None).steps[-1].mechanism
    vectors = np.zeros((4000, 1))
    vectors[: int(fraction * 4000)] = np.nan
    for seed in range(20):
        session = mean.start(SeededNoise(seed))
        for _ in range(5):
            session.release(vectors, 1.0)


def test_less_noise_with_more_users_or_budget():
    def noise(n_users, epsilon, rounds):
        return noise_of(plan_means(n_users, Budget(epsilon, 1e-6), rounds).steps[-1].mechanism)

    assert noise(8000, 1.0, 10) < noise(4000, 1.0, 10) < noise(4000, 1.0, 40)
    assert noise(4000, 2.0, 10) < noise(4000, 1.0, 10)


def test_too_few_users_are_told_how_many_would_do():
    with pytest.raises(BudgetExceeded, match=r"n_users=100 .* about ([\d,]+) users would do") as error:
        plan_means(100, Budget(0.1, 1e-6))
    enough = error.value.enough_users
    assert f"about {enough:,} users would do" in str(error.value)
    plan_means(enough, Budget(0.1, 1e-6))
    with pytest.raises(BudgetExceeded):
        plan_means(int(enough / 1.2), Budget(0.1, 1e-6))


@pytest.mark.parametrize(("budget", "outliers"), [(Budget(1.0, 0.0), 0.02), (Budget(1.0, 1e-6), 0.6)])
def test_what_no_number_of_users_can_meet_is_said_so(budget, outliers):
    with pytest.raises(BudgetExceeded, match="is none") as error:
        plan_means(1000, budget, outliers=outliers)
    assert error.value.enough_users is None


@pytest.mark.parametrize(
    "arguments",
    [
        {"rounds": 0},
        {"rounds": 2.5},
        {"outliers": -0.1},
        {"outliers": 5.0},
        {"outliers": float("nan")},
        {"false_abort": 0.0},
        {"false_abort": 1.5},
    ],
)
def test_wrong_arguments_are_named(arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        plan_means(**({"n_users": 1000, "budget": Budget(1.0, 1e-6)} | arguments))


@pytest.mark.parametrize(
    ("radii", "message"),
    [((1.0, 0.02), "smallest=1.0 <= largest=0.02"), ((0.0, 1.0), "0 < smallest"), ((1e-40, 1.0), "Expected radii")],
)
def test_wrong_radii_are_no_matter_of_budget(radii, message):
    with pytest.raises(ValueError, match=message) as error:
        plan_means(5000, Budget(1.0, 1e-6), radii=radii)
    assert not isinstance(error.value, BudgetExceeded)
