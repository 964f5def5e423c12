"""For all tests: which are slow by their folder, and that the time of an example says nothing."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A first call compiles, and machines are busy. Where CI is set examples are the same each time: new ones are looked for
# by developers who can look into them.
settings.register_profile(
    "userdp", deadline=None, derandomize="CI" in os.environ, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("userdp")

# Ray's workers wait for everything else unless told not to: beside other tests they would hardly get on.
os.environ.setdefault("RAY_worker_niceness", "0")

# Attacks on what is shipped, input of every bad kind, several processes, an adversary of the ledger are left to
# `make test-all`, and so are counts of rare events and other tests of many seconds.
_SLOW = {Path(__file__).parent / name for name in ("audit", "hostile")}
_SLOW_FILES = {"test_ledger_adversary.py", "test_ledger_processes.py", "test_cli_process.py"}
_SLOW_TESTS = {
    "test_a_script_is_told_its_own_line",
    "test_a_replacement_moves_the_score_and_the_mean_of_equal_coins_by_no_more_than_is_charged",
    "test_bad_rounds_pass_no_more_often_than_claimed_however_many_there_are",
    "test_each_search_warns_anew_and_a_search_in_a_search_once",
    "test_forty_bad_rounds_pass_no_more_often_than_one",
    "test_integer_laplace_has_exactly_its_discrete_distribution",
    "test_it_passes_bad_radii_as_rarely_as_claimed_over_all_probes",
    "test_long_walks_along_the_border_stay_inside",
    "test_measured_risk_is_below_the_bound_and_in_its_order",
    "test_other_processes_do_not_warn_again",
    "test_passing_below_the_slack_is_as_rare_as_claimed",
    "test_passing_below_the_slack_is_not_multiplied_by_the_rounds",
    "test_phases_ask_disjoint_users_in_a_random_order_and_groups_of_them",
    "test_samples_learn_within_few_passes",
    "test_scores_below_two_thirds_pass_as_rarely_as_claimed",
    "test_several_classes",
    "test_the_noise_of_the_tests_has_the_deviation_that_is_paid_for",
    "test_vectors_with_the_tolerated_outliers_abort_as_rarely_as_asked",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        name = getattr(item, "originalname", item.name)
        long = name in _SLOW_TESTS or name.startswith("test_audit_of_") or item.path.name in _SLOW_FILES
        if long or item.path.parent in _SLOW:
            item.add_marker(pytest.mark.slow)
