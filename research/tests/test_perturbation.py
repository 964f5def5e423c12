import math

import numpy as np
import pytest
from scipy.stats import kstest, norm
from support import SilentNoise
from support_audit import audited_gaussian_epsilon
from support_curator import BUDGET, SIZE, Explosive, Given, make_data

from userdp import Ball, OnePassSGD, losses
from userdp.privacy.accounting import Budget, BudgetExceeded, Cost, gaussian_multiplier
from userdp.privacy.clip import Clip
from userdp.privacy.curator import Curator
from userdp.privacy.ledger import Ledger
from userdp.privacy.noise import SecureNoise, SeededNoise
from userdp.privacy.plan import Plan, Step
from userdp_research.mechanisms.perturbation import Perturbation
from userdp_research.stable_sgd import SafeRowPass, SafeRows

# --- cost and noise ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("multiplier", [0.3, 5.0, 8.0])
def test_the_cost_is_that_of_one_gaussian(multiplier):
    cost = Perturbation(multiplier).cost
    assert cost == Cost(gaussian=cost.gaussian)
    assert 1 / multiplier**2 <= cost.gaussian <= 1 / multiplier**2 * (1 + 1e-12)


def test_a_plan_is_certified_up_to_its_budget_and_not_beyond():
    budget = Budget(1.0, 1e-5)
    multiplier = gaussian_multiplier(budget)

    def plan(*multipliers, apart=False):
        steps = [
            Step(f"{k}", 20 * k * apart, 20 * k * apart + 20, Perturbation(z), n_groups=1)
            for k, z in enumerate(multipliers)
        ]
        return Plan(40, tuple(steps))

    plan(multiplier).certify(budget)
    plan(multiplier, multiplier, apart=True).certify(budget)
    for dear in (plan(0.99 * multiplier), plan(multiplier, multiplier)):
        with pytest.raises(BudgetExceeded):
            dear.certify(budget)


@pytest.mark.parametrize("radius", [0.01, 1.0, 300.0])
def test_the_noise_is_multiplier_times_radius(radius):
    noise = SilentNoise()
    released = Perturbation(5.0).start(noise).release(np.array([[1.0, -2.0]]), radius)
    np.testing.assert_array_equal(released, [1.0, -2.0])
    assert noise.asked == [("gaussian", radius, 5.0)]


def test_released_noise_is_normal_with_multiplier_times_radius():
    released = Perturbation(5.0).start(SecureNoise()).release(np.zeros((1, 3000)), 2.0)
    assert kstest(released, norm(0, 10.0).cdf).pvalue > 1e-6
    assert abs(released.std() / 10.0 - 1) < 0.07


def test_audit_of_the_release():
    """Vectors as far apart as the radius: the claim holds, and little of it is wasted."""
    runs, delta, epsilon = 4000, 1e-2, 4.0

    def outcomes(place, multiplier):
        noise = SeededNoise(int(5 + 2 * place))
        vectors = np.array([[place]])
        return np.array([Perturbation(multiplier).start(noise).release(vectors, 1.0)[0] for _ in range(runs)])

    def audited(multiplier):
        return audited_gaussian_epsilon(outcomes(0.5, multiplier), outcomes(-0.5, multiplier), delta)

    multiplier = gaussian_multiplier(Budget(epsilon, delta))
    assert 0.8 * epsilon < audited(multiplier) <= epsilon
    assert audited(multiplier / 1.2) > epsilon


# --- sessions ---------------------------------------------------------------------------------------------------------


def test_a_session_releases_once():
    session = Perturbation(5.0).start(SilentNoise())
    session.release(np.zeros((1, 2)), 1.0)
    with pytest.raises(RuntimeError, match="released and paid for once"):
        session.release(np.zeros((1, 2)), 1.0)


@pytest.mark.parametrize("size", [0, 2, 40])
def test_another_number_of_vectors_than_one_is_refused(size):
    noise = SilentNoise()
    session = Perturbation(5.0).start(noise)
    with pytest.raises(ValueError, match="Expected one vector, as was priced"):
        session.release(np.zeros((size, 2)), 1.0)
    with pytest.raises(RuntimeError, match="once"):
        session.release(np.zeros((1, 2)), 1.0)
    assert noise.asked == []


def test_what_cannot_happen_raises_nothing():
    released = Perturbation(5.0).start(SecureNoise()).release(np.array([[math.nan, math.inf, -math.inf, 1.0]]), 1e-9)
    np.testing.assert_allclose(released, [0.0, 0.0, 0.0, 1.0], atol=1e-7)


@pytest.mark.parametrize("multiplier", [0.0, -1.0, math.nan, math.inf])
def test_impossible_records_are_refused(multiplier):
    with pytest.raises(ValueError, match="noise_multiplier"):
        Perturbation(multiplier)


def test_a_step_of_single_users_is_refused():
    with pytest.raises(ValueError, match="the 1 vectors its mechanism was priced for; it gives 40"):
        Step("a", 0, 40, Perturbation(5.0))


# --- what the curator asks of a statistic -----------------------------------------------------------------------------


class Guaranteeing(Given):
    """Gives one vector and guarantees anything."""

    takes_groups = True

    def __init__(self, guarantee):
        super().__init__(np.zeros((1, 2)), lambda users: None)
        self.replace_one_sensitivity = guarantee

    def __call__(self, data, users, n_groups):
        return self.rows


PLAN = Plan(SIZE, (Step("average", 0, SIZE, Perturbation(5.0), n_groups=1), Step("mean", 0, SIZE, Clip(SIZE, 5.0))))


def test_a_statistic_without_a_guarantee_is_refused_before_data_is_touched():
    curator = Curator(Explosive(SIZE), PLAN, Ledger(BUDGET))
    unproven = OnePassSGD(losses.logistic, np.zeros(2), Ball(1.0), 0.1)
    for statistic in (unproven, Guaranteeing(None), Guaranteeing("1"), Guaranteeing(1), Guaranteeing(np.ones(2))):
        with pytest.raises(TypeError, match="Expected a statistic with a replace_one_sensitivity in step 'average'"):
            curator.release("average", statistic, 1e6)


@pytest.mark.parametrize("guarantee", [1.0 + 1e-15, 2.0, math.inf, math.nan, -1.0])
def test_a_statistic_that_moves_farther_than_the_radius_is_refused_before_data_is_touched(guarantee):
    curator = Curator(Explosive(SIZE), PLAN, Ledger(BUDGET))
    with pytest.raises(ValueError, match=r"radius=1\.0 in step 'average' to be at least .*replace_one_sensitivity"):
        curator.release("average", Guaranteeing(guarantee), 1.0)


def test_a_refusal_costs_nothing_and_a_kept_guarantee_is_released_once():
    curator = Curator(make_data(), PLAN, Ledger(BUDGET), insecure_seed=1)
    with pytest.raises(ValueError, match="replace_one_sensitivity"):
        curator.release("average", Guaranteeing(2.0), 1.0)
    assert curator.release("average", Guaranteeing(1.0), 1.0).shape == (2,)
    with pytest.raises(RuntimeError, match="Expected a later step"):
        curator.release("average", Guaranteeing(1.0), 1.0)


def test_other_steps_ask_for_no_guarantee():
    curator = Curator(make_data(), PLAN, Ledger(BUDGET), insecure_seed=1)
    assert curator.release("mean", Given(np.zeros((SIZE, 3))), 1.0).shape == (3,)


def test_a_safe_pass_is_released_by_what_it_guarantees():
    walk = SafeRowPass(losses.logistic, np.zeros(2), Ball(1.0), 0.1, SIZE, SafeRows(4, 2.0))
    released = Curator(make_data(), PLAN, Ledger(BUDGET), insecure_seed=1).release(
        "average", walk, walk.replace_one_sensitivity
    )
    assert released.shape == (2,)
    other = SafeRowPass(losses.logistic, np.zeros(2), Ball(1.0), 0.1, SIZE - 1, SafeRows(4, 2.0))
    with pytest.raises(RuntimeError, match="round is used up"):
        Curator(make_data(), PLAN, Ledger(BUDGET), insecure_seed=1).release(
            "average", other, other.replace_one_sensitivity
        )
