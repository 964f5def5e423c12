"""What userdp guarantees of every solver (tests/solvers/test_contract.py and others), for those registered here."""

import numpy as np
import pytest
from support_solvers import best_risk, make_users, risk
from test_contract import (  # noqa: F401 - they run here too
    fit,
    test_a_abort_keeps_what_was_released_and_says_what_to_do,
    test_a_seed_repeats_and_is_recorded,
    test_it_ends_inside_the_domain_and_spends_what_it_said,
    test_it_runs_on_every_loss,
    test_the_plan_is_public_certified_and_wastes_no_user,
    test_too_few_users_are_told_how_many_would_do,
    test_without_delta_the_default_alone_has_a_plan,
)
from test_hostile_solvers import test_one_user_moves_releases_by_what_is_paid_for_and_nothing_else  # noqa: F401
from test_sparse import test_every_solver_gives_what_it_gives_of_dense_rows  # noqa: F401

from userdp import Ball, Budget, losses

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("loss", ["logistic", "huber", "hinge"])
@pytest.mark.parametrize("solver", ["asi-liu", "example-level", "dp-fedavg"])
def test_a_baseline_learns_something_and_stays_below_its_bound(loss, solver):
    """Few steps, a small domain and few users: what it takes for some seconds."""
    kind = "classes" if losses.loss(loss).classifies else "numbers"
    train = make_users(4_000, kind=kind, rows=(5, 15))
    result = fit(train, 15, Budget(4.0, 1e-6), loss=loss, domain=Ball(3.0), insecure_seed=0, solver=solver)
    nothing, best = risk(losses.loss(loss), train, np.zeros(4)), best_risk(losses.loss(loss), train)
    excess = risk(losses.loss(loss), train, result.weights) - best
    assert excess < 0.6 * (nothing - best)
    assert excess < result.bound
