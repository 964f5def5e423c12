"""Plans made from public numbers: certified, not wasteful, and clear about what would do."""

import numpy as np
import pytest

from userdp.planning import plan_means
from userdp.privacy.accounting import Budget, BudgetExceeded, epsilon_at
from userdp.privacy.noise import SeededNoise

CASES = [(1000, 4.0, 1), (4000, 1.0, 1), (5000, 1.0, 20), (20_000, 1.0, 40), (50_000, 0.5, 100)]


@pytest.mark.parametrize(("n_users", "epsilon", "rounds"), CASES)
@pytest.mark.parametrize("radii", [None, (0.01, 2.0)])
def test_the_whole_budget_is_used_and_no_more(n_users, epsilon, rounds, radii):
    budget = Budget(epsilon, 1e-6)
    plan = plan_means(n_users, budget, rounds, radii=radii)
    plan.certify(budget)
    (cost,) = plan.costs
    assert epsilon_at(cost, 1e-6) == pytest.approx(epsilon, rel=1e-4)
    assert [step.label for step in plan.steps] == (["mean"] if radii is None else ["radius", "mean"])
    assert plan.steps[-1].mechanism.rounds == rounds


@pytest.mark.parametrize("share", [0.0, 0.02, 0.1])
def test_the_tolerated_outliers_do_not_halt_it(share):
    mean = plan_means(4000, Budget(1.0, 1e-6), 5, outliers=share, radii=None).steps[-1].mechanism
    vectors = np.zeros((4000, 1))
    vectors[: int(share * 4000)] = np.nan
    for seed in range(20):
        session = mean.start(SeededNoise(seed))
        for _ in range(5):
            session.release(vectors, 1.0)


def test_less_noise_with_more_users_or_budget():
    def noise(n_users, epsilon, rounds):
        mean = plan_means(n_users, Budget(epsilon, 1e-6), rounds).steps[-1].mechanism
        return mean.noise_multiplier * mean.sensitivity(1.0, 1)

    assert noise(8000, 1.0, 10) < noise(4000, 1.0, 10) < noise(4000, 1.0, 40)
    assert noise(4000, 2.0, 10) < noise(4000, 1.0, 10)


def test_too_few_users_are_told_how_many_would_do():
    with pytest.raises(BudgetExceeded, match=r"n_users=100 .* about ([\d,]+) users would do") as error:
        plan_means(100, Budget(0.1, 1e-6))
    enough = int(str(error.value).split("about ")[1].split(" users")[0].replace(",", ""))
    plan_means(enough, Budget(0.1, 1e-6))
    with pytest.raises(BudgetExceeded):
        plan_means(int(enough / 1.2), Budget(0.1, 1e-6))


@pytest.mark.parametrize(("budget", "outliers"), [(Budget(1.0, 0.0), 0.02), (Budget(1.0, 1e-6), 0.6)])
def test_what_no_number_of_users_can_meet_is_said_so(budget, outliers):
    with pytest.raises(BudgetExceeded, match="is none"):
        plan_means(1000, budget, outliers=outliers)


@pytest.mark.parametrize(
    "arguments",
    [
        {"rounds": 0},
        {"rounds": 2.5},
        {"outliers": -0.1},
        {"outliers": 5.0},
        {"outliers": float("nan")},
        {"false_halt": 0.0},
        {"false_halt": 1.5},
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
