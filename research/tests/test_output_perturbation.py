"""What is particular to the solvers that add noise to averages only; the rest is in test_contract."""

import itertools
import math

import numpy as np
import pytest
from support_solvers import best_risk, make_users, risk

from userdp import Ball, Box, Budget, Curator, Ledger, Solver, losses, minimize, plan
from userdp.privacy.accounting import BudgetExceeded
from userdp.privacy.clip import Clip
from userdp.solvers.problem import Problem
from userdp.solvers.solver import run
from userdp_research.disjoint_batches import plan_disjoint_batches
from userdp_research.group_privacy import plan_group_privacy
from userdp_research.mechanisms.perturbation import Perturbation
from userdp_research.output_perturbation import halves, pass_error
from userdp_research.problems import IndependentRows

BUDGET = Budget(1.0, 1e-6)
LOGISTIC = Problem(losses.logistic, Ball(4.0), 10, 2.0)
# A user's rows differ as much as those of different users, and the domain is small: leaving users out pays.
CALM = IndependentRows(losses.logistic, Ball(1.0), 4, 2.5)
PLANS = pytest.mark.parametrize("make", [plan_group_privacy, plan_disjoint_batches])


@PLANS
def test_phases_are_disjoint_halves_and_each_spends_the_whole_budget(make):
    made = make(LOGISTIC, 200_000, 10, BUDGET)
    assert len(made.phases) > 1
    assert [phase.n_users for phase in made.phases] == list(halves(200_000, len(made.phases)))
    walks = [step for step in made.certified.steps if isinstance(step.mechanism, Perturbation)]
    assert all(one.stop == other.start for one, other in itertools.pairwise(walks))
    made.certified.certify(BUDGET)
    with pytest.raises(BudgetExceeded):
        made.certified.certify(Budget(0.99, 1e-6))


def test_steps_fall_by_four_and_noise_with_them():
    made = plan_group_privacy(LOGISTIC, 200_000, 10, BUDGET)
    for one, other in itertools.pairwise(made.phases):
        assert one.step_size == pytest.approx(4 * other.step_size)
        assert one.radius == pytest.approx(4 * other.radius, rel=1e-3)
    assert made.phases[0].radius == pytest.approx(2 * 10 * made.phases[0].step_size * LOGISTIC.lipschitz, rel=1e-3)
    assert made.n_gradients == 2_000_000


@PLANS
def test_counts_of_few_bits_do_not_wrap_around(make):
    made, expected = make(CALM, np.uint8(250), np.uint8(200), BUDGET), make(CALM, 250, 200, BUDGET)
    assert made == expected
    assert made.n_gradients == expected.n_gradients >= 50_000
    assert type(made.schedule.rows_per_user) is int


@PLANS
def test_the_bound_falls_with_users_and_epsilon(make):
    bounds = [make(LOGISTIC, n, 10, BUDGET).bound for n in (2000, 20_000, 200_000)]
    assert bounds[0] > 1.5 * bounds[1] > 2.25 * bounds[2]
    assert make(LOGISTIC, 20_000, 10, Budget(4.0, 1e-6)).bound < 0.8 * bounds[1]


def test_rows_beyond_the_first_hardly_help_group_privacy():
    bounds = [plan_group_privacy(LOGISTIC, 20_000, m, BUDGET).bound for m in (4, 40, 400)]
    assert bounds[2] > 0.8 * bounds[0]


@PLANS
@pytest.mark.parametrize("n_users", [2, 3, 17])
def test_few_users_are_planned_for(make, n_users):
    made = make(LOGISTIC, n_users, 5, BUDGET)
    assert sum(phase.n_users for phase in made.phases) == n_users


@PLANS
def test_kinks_are_rounded_as_steps_need_it_and_smooth_losses_are_not(make):
    assert make(LOGISTIC, 2000, 5, BUDGET).schedule.width is None
    hinge = Problem(losses.hinge, Ball(4.0), 10, 2.0)
    made = make(hinge, 2000, 5, BUDGET)
    curvature = losses.smoothed(losses.hinge, made.schedule.width).curvature
    assert made.phases[0].step_size * curvature * 2.0**2 == pytest.approx(2.0)


@PLANS
def test_no_noise_without_delta(make):
    with pytest.raises(BudgetExceeded):
        make(LOGISTIC, 2000, 5, Budget(1.0, 0.0))


@pytest.mark.slow
@pytest.mark.parametrize("domain", [Ball(1.0), Box(np.full(4, -0.6), np.full(4, 0.7))], ids=["ball", "box"])
def test_users_are_left_out_where_that_pays_and_the_walk_still_learns(domain):
    problem = IndependentRows(losses.logistic, domain, 4, 2.5)
    data = make_users(20_000, rows=(30, 30))
    made = plan_disjoint_batches(problem, 20_000, 30, BUDGET)
    filtered = [phase for phase in made.phases if phase.filtered]
    assert filtered
    for phase in filtered:
        clip, walk = (step for step in made.certified.steps if step.label in (phase.center_label, phase.label))
        assert isinstance(clip.mechanism, Clip)
        assert (clip.start, clip.stop) == (walk.start, walk.stop)
    assert made.n_gradients == 30 * sum(p.n_users * (3 if p.filtered else 1) for p in made.phases)
    result = run(problem, made, Curator(data, made.certified, Ledger(BUDGET), insecure_seed=1))
    assert domain.contains(result.weights)
    nothing = risk(losses.logistic, data, np.zeros(4))
    assert risk(losses.logistic, data, result.weights) < nothing - 0.3 * (nothing - best_risk(losses.logistic, data))


def test_a_later_filtered_phase_stays_in_a_ball_around_its_start():
    made = plan_disjoint_batches(CALM, 200_000, 100, BUDGET)
    last = made.phases[-1]
    assert last.filtered
    assert last.stay < CALM.domain.radius
    walk = made.schedule.one_pass(CALM, np.full(4, 0.2), last, np.zeros(4))
    assert walk.domain.radius == last.stay
    np.testing.assert_array_equal(walk.domain.center, np.full(4, 0.2))
    # Known beforehand for all starts, because slopes of this loss do not grow.
    assert walk.replace_one_sensitivity == pytest.approx(last.radius, rel=1e-3)


def test_progress_is_told_and_phases_are_reported():
    data, told = make_users(2000), []
    problem = Problem(losses.logistic, Ball(4.0), 4, 2.5)
    for make in (plan_group_privacy, plan_disjoint_batches):
        made = make(problem, 2000, 12, BUDGET)
        curator = Curator(data, made.certified, Ledger(BUDGET), insecure_seed=1)
        result = run(problem, made, curator, lambda *news: told.append(news))
        assert [phase["users"] for phase in result.phases] == [phase.n_users for phase in made.phases]
        for phase in result.phases:
            assert phase["noise_std"] == pytest.approx(made.phases[0].noise_ratio * phase["radius"])
        assert told.pop() == (made.phases[-1].label, made.n_releases - 1, made.n_releases)


def test_walks_are_cheaper_where_gradients_vary_less():
    plain = pass_error(1.0, 0.1, 100, 4.0, 4.0, beta=10.0)
    assert plain == pytest.approx(1 / 20 + 0.2)
    assert pass_error(1.0, 0.1, 100, 4.0, 0.04, beta=10.0) == plain  # as long as steps may be: nothing to gain
    assert pass_error(1.0, 0.1, 100, 4.0, 0.04, beta=5.0) == pytest.approx(1 / 20 + 0.1 * 0.04)


def test_they_are_asked_for_by_name_only():
    names = {"group-privacy", "disjoint-batches"}
    assert not names & {option.solver for option in plan(5000, 10, 4, 1.0, 1e-6).options}
    shown = {option.solver: option for option in plan(5000, 10, 4, 1.0, 1e-6, baselines=True).options}
    assert all(shown[name].feasible and math.isfinite(shown[name].bound) for name in names)
    result = minimize(
        "logistic",
        make_users(500),
        Ball(4.0),
        1.0,
        1e-6,
        solver=Solver("group-privacy", row_norm=2.5),
        rows_per_user=12,
    )
    assert result.privacy.parts[0].mechanism == "output-perturbation"
