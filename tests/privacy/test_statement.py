"""What a plan guarantees, in numbers and words."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import gaussian_removal

from userdp.paper.outlier_removal import RadiusSearch
from userdp.privacy.accounting import Budget, default_delta, fits, gaussian_multiplier, rounded_up
from userdp.privacy.clip import Clip
from userdp.privacy.ledger import Ledger
from userdp.privacy.plan import Plan, Step
from userdp.privacy.statement import (
    COVERS,
    COVERS_EVALUATION,
    COVERS_SEARCH,
    IN_PARALLEL,
    AffectedUsers,
    Statement,
    apart,
    covered,
    statement,
)


def charged(plan, budget, seed=None):
    ledger = Ledger(budget)
    ledger.charge(plan, insecure_seed=seed)
    return statement(plan, budget, ledger, seed)


def test_fractions_are_those_of_mu_squared():
    plan = Plan(100, (Step("a", 0, 100, Clip(100, 10.0)), Step("b", 0, 100, Clip(100, 20.0, rounds=4))))
    parts = charged(plan, Budget(1.0, 1e-6)).parts
    assert [part.fraction for part in parts] == pytest.approx([0.5, 0.5], rel=1e-3)
    assert [part.releases for part in parts] == [1, 4]


def test_steps_on_different_users_are_each_measured_by_those_who_pay_most():
    steps = (Step("all", 0, 100, Clip(100, 20.0)), Step("x", 0, 40, Clip(40, 20.0)), Step("y", 40, 100, Clip(60, 10.0)))
    fractions = [part.fraction for part in charged(Plan(100, steps), Budget(1.0, 1e-6)).parts]
    assert fractions == pytest.approx([0.2, 0.5, 0.8], rel=1e-3)


def test_parts_of_different_people_are_said_not_to_add_up():
    side_by_side = (Step("x", 0, 40, Clip(40, 20.0)), Step("y", 40, 100, Clip(60, 10.0)))
    shown = str(charged(Plan(100, side_by_side), Budget(1.0, 1e-6)))
    assert "x: clip, 1 release, 100% of the budget" in shown
    assert "alone), 40 of the users\n" in shown
    assert shown.count(IN_PARALLEL) == 1
    nested = (Step("all", 0, 100, Clip(100, 20.0)), Step("x", 0, 40, Clip(40, 20.0)))
    assert IN_PARALLEL not in str(charged(Plan(100, nested), Budget(1.0, 1e-6)))
    assert apart([(0, 3), (4, 5)])
    assert not apart([(0, 4), (4, 5), (0, 9)])


def test_a_step_that_costs_nothing_has_no_fraction():
    steps = (Step("free", 0, 100, RadiusSearch(100, (1.0,), 50, 1.0)), Step("paid", 0, 100, Clip(100, 20.0)))
    parts = charged(Plan(100, steps), Budget(1.0, 1e-12)).parts
    assert [part.fraction for part in parts] == [0.0, 1.0]


@pytest.mark.parametrize("seed", [None, 3])
def test_it_survives_json_and_confesses_seeds(seed):
    plan = Plan(100, (Step("a", 0, 100, Clip(100, 10.0)),))
    said = charged(plan, Budget(1.0, 1e-6), seed)
    assert Statement.from_dict(said.to_dict()) == said
    assert said.private is (seed is None)
    assert ("NOT PRIVATE" in str(said)) is (seed is not None)
    assert math.isinf(said.spent_epsilon) is (seed is not None)
    assert "not a guarantee" in said.to_dict()["ledger"]["spent_epsilon_is"]
    assert "a running total" in str(said)


@pytest.mark.parametrize("n_users", [12_348, 10_001, 70_000])
def test_what_is_printed_is_certified_too(n_users):
    """Digits that are left out are rounded up: of a smaller epsilon or delta nothing was certified."""
    budget = Budget(math.log(3), default_delta(n_users))
    plan = Plan(n_users, (Step("a", 0, n_users, Clip(n_users, gaussian_multiplier(budget) * (1 + 1e-9))),))
    epsilon, delta = map(float, str(charged(plan, budget)).split(")")[0].partition("(")[2].split(", "))
    assert epsilon == 1.09862
    for cost in plan.costs:
        assert fits(cost, Budget(epsilon, delta))
        assert not fits(cost, Budget(1.09861, delta)), "which is nearest"


@given(st.floats(1e-300, 1e300), st.integers(1, 6))
def test_guarantees_are_rounded_up_and_by_no_more_than_a_digit(value, digits):
    printed = rounded_up(value, digits)
    assert value <= float(printed) <= value * (1 + 10.0 ** (1 - digits)) * (1 + 1e-15)
    assert rounded_up(float(printed), digits) == printed


def test_it_says_what_is_covered_and_what_is_not():
    said = charged(Plan(100, (Step("a", 0, 100, Clip(100, 10.0)),)), Budget(1.0, 1e-6))
    for words in (str(said), json.dumps(said.to_dict())):
        assert "this fit alone, with its hyperparameters taken as public" in words
        assert "Adding or removing a user is not covered by replacement with a public number of users." in words


def test_it_says_what_the_noise_really_gives():
    said = charged(Plan(100, (Step("a", 0, 100, Clip(100, 4.2248)),)), Budget(1.0, 1e-6))
    assert "at most 54.8% with this noise (epsilon and delta alone would allow 73.2%)" in str(said)
    assert "mu = 0.2367 (mu-GDP)" in str(said)
    assert "would call the same noise epsilon 0.475: a different guarantee" in str(said)
    assert "that err" not in str(said)
    record = json.loads(json.dumps(said.to_dict()))
    assert record["right_guess_of_epsilon_and_delta_alone"] == pytest.approx(0.7311, abs=1e-4)
    assert record["tradeoff"]["right_guess"] == pytest.approx(0.5471, abs=1e-4)
    assert Statement.from_dict(record) == said


def test_what_tests_may_miss_is_said():
    said = charged(Plan(1000, (Step("a", 0, 1000, gaussian_removal(1000, 8.0, 30.0, 1e-7)),)), Budget(1.0, 1e-6))
    assert "nothing is guaranteed of events of chance 1e-07 (tests or thresholds that err), counted in delta" in str(
        said
    )
    assert "but for events of chance 1e-07" in str(said)
    assert "adding or removing a user" not in str(said)
    sampled = charged(Plan(100, (Step("a", 0, 100, Clip(100, 3.0, 2, sampling_probability=0.2)),)), Budget(2.0, 5e-12))
    assert "mu-GDP" not in str(sampled)


def test_a_seeded_run_boasts_of_nothing():
    said = charged(Plan(100, (Step("a", 0, 100, Clip(100, 10.0)),)), Budget(1.0, 1e-6), 3)
    assert "right guesses" not in str(said)


def test_older_records_lack_the_tradeoff():
    said = charged(Plan(100, (Step("a", 0, 100, Clip(100, 10.0)),)), Budget(1.0, 1e-6))
    record = said.to_dict()
    del record["tradeoff"]
    assert Statement.from_dict(record).tradeoff is None
    assert "right guesses" not in str(Statement.from_dict(record))
    assert Statement.from_dict(Statement.from_dict(record).to_dict()).tradeoff is None


def test_a_fraction_of_affected_users_is_reported_with_its_interval_and_warned_of_only_beyond_doubt():
    assert str(AffectedUsers.of(-0.01, 0.015)).startswith("At most about 0.5% of the users (95% interval) have")
    assert str(AffectedUsers.of(0.218, 0.021)).startswith("About 22% of the users (95% interval 20% to 24%) have")
    assert "of the rows" in AffectedUsers.of(0.3, 0.01).in_words("row")
    assert AffectedUsers.of(0.99, 0.05) == (0.99, pytest.approx(0.94), 1.0)
    assert not AffectedUsers.of(0.03, 0.011).clear
    assert AffectedUsers.of(0.04, 0.011).clear


def test_a_fraction_of_affected_users_is_read_back_from_files_and_refused_if_damaged():
    found = AffectedUsers.of(0.2, 0.1)
    assert AffectedUsers.from_list(list(found)) == found
    assert AffectedUsers.from_list(None) is None
    for wrong in ([0.1, 0.2, 0.3], [0.1, 0.0, 2.0], [0.1], ["a", "b", "c"]):
        with pytest.raises(ValueError, match=r"fraction|unpack|float"):
            AffectedUsers.from_list(wrong)


@pytest.mark.parametrize(
    ("said", "covers"),
    [
        (
            "the whole search: every candidate's fit, the scores on held-out people, the choice and the refit",
            COVERS_SEARCH,
        ),
        (
            "this evaluation alone, of the people it was made on; not what the model tells of those it was fitted on",
            COVERS_EVALUATION,
        ),
        *((same, same) for same in (COVERS, COVERS_SEARCH, COVERS_EVALUATION)),
        ("all that was ever released", COVERS),
    ],
)
def test_what_a_file_says_to_be_covered_is_known_in_its_older_words_too(said, covers):
    assert covered({"covers": said}) == covers
