import pytest

from userdp.paper.outlier_removal import OutlierRemoval, RadiusSearch, SampledOutlierRemoval
from userdp.privacy.accounting import Budget, BudgetExceeded
from userdp.privacy.plan import Plan, Step


def mean(n_vectors, z=5.0, rounds=1):
    return OutlierRemoval(n_vectors, z, 0.5, 1e-7, 0.01, rounds)


def test_steps_on_disjoint_users_cost_each_user_its_own_step():
    plan = Plan(600, (Step("a", 0, 200, mean(200, 5.0)), Step("b", 200, 600, mean(400, 6.0))))
    assert set(plan.costs) == {mean(200, 5.0).cost, mean(400, 6.0).cost}


def test_steps_on_the_same_users_add_up_and_unused_users_pay_nothing():
    search = RadiusSearch(300, (0.5, 1.0), 250, 20.0)
    plan = Plan(
        500,
        (Step("search", 0, 300, search), Step("mean", 100, 400, mean(300)), Step("groups", 0, 400, mean(200), 200)),
    )
    expected = {
        search.cost + mean(200).cost,
        search.cost + mean(300).cost + mean(200).cost,
        mean(300).cost + mean(200).cost,
    }
    assert {plan.cost_of(0), plan.cost_of(150), plan.cost_of(350)} == expected
    assert plan.cost_of(450).gaussian == 0
    assert set(plan.costs) == expected | {plan.cost_of(450)}


def test_every_set_of_users_is_certified():
    """The last users alone pay too much."""
    plan = Plan(800, (Step("a", 0, 400, mean(400, 20.0)), Step("b", 400, 800, mean(400, 1.0))))
    with pytest.raises(BudgetExceeded):
        plan.certify(Budget(1.0, 1e-6))
    Plan(800, (Step("a", 0, 400, mean(400, 20.0)), Step("b", 400, 800, mean(400, 20.0)))).certify(Budget(1.0, 1e-6))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a", 5, 5, mean(200)), "start=5 < stop=5"),
        (("a", -1, 199, mean(200)), "start must be .* got -1"),
        (("a", 0.0, 200.0, mean(200)), "whole number"),
        (("a", 0, 300, mean(200)), "200 vectors its mechanism was priced for; it gives 300"),
        (("a", 0, 150, mean(200), 200), "n_groups=200 <= 150"),
        (("a", 0, 1999, SampledOutlierRemoval(2000, 0.2, 4.0, 5.0, 1e-6)), "it gives 1999"),
    ],
)
def test_steps_that_do_not_fit_their_mechanism_cannot_be_made(arguments, message):
    with pytest.raises(ValueError, match=message):
        Step(*arguments)


def test_a_mechanism_that_samples_users_takes_no_groups():
    sampled = SampledOutlierRemoval(2000, 0.2, 4.0, 5.0, 1e-6)
    with pytest.raises(ValueError, match="samples single users"):
        Step("a", 0, 4000, sampled, n_groups=2000)


def test_plans_that_make_no_sense_cannot_be_made():
    with pytest.raises(TypeError, match="tuple of Step"):
        Plan(200, Step("a", 0, 200, mean(200)))
    with pytest.raises(ValueError, match="at least one step"):
        Plan(10, ())
    with pytest.raises(ValueError, match="different labels"):
        Plan(400, (Step("a", 0, 200, mean(200)), Step("a", 200, 400, mean(200))))
    with pytest.raises(ValueError, match="n_users=199"):
        Plan(199, (Step("a", 0, 200, mean(200)),))
