"""User-level DP-SGD with nothing to tune."""

import numpy as np
import pytest
from support_solvers import best_risk, make_users, risk

from userdp import Ball, Budget, UserData, losses, minimize
from userdp.privacy.accounting import fits
from userdp.privacy.means.sampled_clip import SampledClip
from userdp.solvers.clipped import plan_clipped
from userdp.solvers.problem import Problem
from userdp.statistics import MeanGradient
from userdp.wrapped import FlaggedGradient

PUBLIC = {"row_norm": 2.5, "rows_per_user": 12, "solver": "dp-sgd"}
PROBLEM = Problem(losses.logistic, Ball(10.0), 4, 2.5)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_the_budget_is_spent_in_full(epsilon):
    plan = plan_clipped(PROBLEM, 1000, 12, Budget(epsilon, 1e-6)).plan
    (cost,) = plan.costs
    assert fits(cost, Budget(epsilon, 1e-6))
    assert not fits(cost, Budget(0.98 * epsilon, 1e-6))


def test_with_few_users_it_beats_the_others():
    train = make_users(1000)
    nothing, least = risk(losses.logistic, train, np.zeros(4)), best_risk(losses.logistic, train)
    errors = {}
    for solver in ("dp-sgd", "phased-sgd"):
        runs = [
            minimize("logistic", train, Ball(10.0), 0.7, 1e-6, insecure_seed=seed, **(PUBLIC | {"solver": solver}))
            for seed in range(4)
        ]
        errors[solver] = np.mean([risk(losses.logistic, train, run.weights) - least for run in runs])
    assert errors["dp-sgd"] < min(0.5 * errors["phased-sgd"], 0.25 * (nothing - least))


def test_twenty_users_get_a_finite_model():
    result = minimize("logistic", make_users(20), Ball(10.0), 0.5, 1e-6, **PUBLIC)
    assert np.isfinite(result.weights).all()
    assert "drown" in result.message


def with_missing(share):
    data = make_users(2000)
    rows = data.rows.copy()
    rows[data.offsets[:-1][: int(share * 2000)], 0] = np.nan
    return UserData(rows, data.targets, data.offsets)


def test_users_without_a_gradient_are_counted_privately():
    few, many = (
        minimize("logistic", with_missing(share), Ball(10.0), 2.0, 1e-6, insecure_seed=1, **PUBLIC)
        for share in (0.1, 0.5)
    )
    assert not few.halted
    assert many.halted
    assert "missing values" in many.message
    np.testing.assert_array_equal(many.weights, np.zeros(4))


def test_users_are_counted_where_gradients_are_long():
    """A clip above 1: the vote of an unusable user must be as long."""
    data = with_missing(0.5)
    data = UserData(data.rows, 100 * data.targets, data.offsets)
    arguments = PUBLIC | {"target_bound": 100.0, "insecure_seed": 1}
    result = minimize("squared", data, Ball(10.0), 2.0, 1e-6, **arguments)
    assert result.phases[0]["radius"] > 3
    assert result.halted


def test_noise_alone_does_not_halt():
    halts = [minimize("logistic", make_users(40), Ball(10.0), 0.1, 1e-6, **PUBLIC).halted for _ in range(5)]
    assert not any(halts)


def test_a_flag_takes_the_place_of_the_gradient():
    data = with_missing(0.2)
    users = np.arange(2000)
    flagged = FlaggedGradient(MeanGradient(losses.logistic, np.ones(4)))(data, users, 2000)
    plain = MeanGradient(losses.logistic, np.ones(4))(data, users, 2000)
    lost = ~np.isfinite(plain).all(axis=1)
    assert lost.sum() == 400
    assert np.array_equal(flagged[:, -1], lost)
    assert np.array_equal(flagged[lost, :-1], np.zeros((400, 4)))
    assert np.array_equal(flagged[~lost, :-1], plain[~lost])


def test_gradients_can_be_limited_but_not_to_none():
    assert plan_clipped(PROBLEM, 1000, 12, Budget(1.0, 1e-6), 480_000).phases[0].users_a_step == 1000
    for most in (60_000, 12_000, 2_000):
        plan = plan_clipped(PROBLEM, 1000, 12, Budget(1.0, 1e-6), most)
        assert 0.3 * most < plan.n_gradients <= most
        assert isinstance(plan.plan.steps[-1].mechanism, SampledClip)
    with pytest.raises(ValueError, match=r"max_gradients=100 >= .*, for a step of 20 users of 12 rows\. Nothing was"):
        plan_clipped(PROBLEM, 1000, 12, Budget(1.0, 1e-6), 100)
    assert plan_clipped(PROBLEM, 10, 12, Budget(1.0, 1e-6), 120).phases[0].n_steps == 1


def test_one_pass_of_samples_is_nearly_as_good_as_forty():
    train = make_users(20_000)
    least, limit = best_risk(losses.logistic, train), 20_000 * 12
    excess = []
    for most in (None, limit):
        arguments = PUBLIC | {"insecure_seed": 1, "max_gradients": most}
        result = minimize("logistic", train, Ball(10.0), 1.0, 1e-6, **arguments)
        assert result.phases[0]["steps"] == 40
        excess.append(risk(losses.logistic, train, result.weights) - least)
    assert result.n_gradients <= limit
    assert max(excess) < 0.02 * (risk(losses.logistic, train, np.zeros(4)) - least)


def test_gradients_are_shortened_less_where_there_is_room():
    radii = [plan_clipped(PROBLEM, n, 12, Budget(1.0, 1e-6)).phases[0].radius for n in (300, 3000, 100_000)]
    assert radii == sorted(radii)
    assert radii[0] < 0.5 * radii[-1]


def test_the_path_shrinks_where_noise_would_carry_it_away():
    plain = [plan_clipped(PROBLEM, 1000, 12, Budget(e, 1e-6)) for e in (0.01, 0.02)]
    assert all(plan.moment_error is None for plan in plain)
    short, long = (plan.phases[0].path for plan in plain)
    assert short < 0.6 * long
