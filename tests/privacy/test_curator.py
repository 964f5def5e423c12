"""The curator: what it charges before it touches data, whom it asks, and how often."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from support import SilentNoise, searched_removal
from support_curator import (
    BUDGET,
    MECHANISMS,
    SIZE,
    Explosive,
    FailingEngine,
    Given,
    RecordingEngine,
    gaussian_tested,
    make_data,
    mean,
    plan_of,
)

from userdp.data.users import UserData
from userdp.domains import Ball
from userdp.engines import EngineLost
from userdp.losses import logistic
from userdp.paper.outlier_removal import OutlierRemoval, RadiusSearch, SampledOutlierRemoval, radius_grid
from userdp.privacy import curator as module
from userdp.privacy.accounting import Budget, BudgetExceeded
from userdp.privacy.curator import Curator
from userdp.privacy.ledger import Ledger
from userdp.privacy.mechanism import Aborted
from userdp.privacy.plan import Plan, Step
from userdp.statistics.gradients import MeanGradient
from userdp.statistics.moments import UserMean
from userdp.statistics.sgd import OnePassSGD

# --- charges ----------------------------------------------------------------------------------------------------------


def test_planning_certifying_and_refusing_touch_no_data():
    dear = plan_of(mean(z=0.5))
    book = Ledger(BUDGET)
    with pytest.raises(BudgetExceeded):
        Curator(Explosive(), dear, book)
    assert book.charges() == ()


def test_a_wrong_number_of_users_spends_nothing():
    book = Ledger(BUDGET)
    with pytest.raises(ValueError, match=r"n_users=600.*it has 500.*Nothing was spent"):
        Curator(Explosive(500), plan_of(mean()), book)
    assert book.charges() == ()


def test_the_ledger_is_charged_before_the_data_is_touched():
    book = Ledger(BUDGET)
    curator = Curator(Explosive(SIZE), plan_of(mean()), book, purpose="test")
    assert [charge.purpose for charge in book.charges()] == ["test"]
    assert book.charges()[0].costs == plan_of(mean()).costs
    with pytest.raises(AssertionError, match="data was touched"):
        curator.release("step 0", UserMean(), 1.0)


def test_what_a_run_guarantees_is_certified_whatever_the_ledger_holds():
    """A plan within the ledger's budget, but not within the one that is stated."""
    plan, book = plan_of(mean()), Ledger(Budget(8.0, 1e-4))
    stated = Budget(0.05, 1e-6)
    with pytest.raises(BudgetExceeded, match=r"expected <= 0.05"):
        Curator(Explosive(SIZE), plan, book, budget=stated)
    with pytest.raises(TypeError, match=r"budget must be a Budget\(epsilon, delta\), got float"):
        Curator(Explosive(SIZE), plan, book, budget=1.0)
    assert book.charges() == ()
    assert Curator(make_data(), plan, book, budget=BUDGET).budget == BUDGET
    assert Curator(make_data(), plan, book).budget == book.budget
    with pytest.raises(BudgetExceeded):
        Curator(Explosive(SIZE), plan, Ledger(stated), budget=BUDGET)


def test_a_seed_is_recorded_as_not_private():
    book = Ledger(Budget(8.0, 1e-4))
    Curator(make_data(), plan_of(mean()), book, insecure_seed=7)
    assert not book.charges()[0].private
    Curator(make_data(), plan_of(mean()), book)
    assert book.charges()[1].private
    data = make_data()
    seeded = UserData(data.rows, data.targets, data.offsets, insecure_seed=4)
    Curator(seeded, plan_of(mean()), book)
    assert book.charges()[2].insecure_seed == 4


@pytest.mark.parametrize("seed", [True, -1, 1.5, "abc", [1, 2]])
def test_seeds_that_are_none_spend_nothing(seed):
    book = Ledger(BUDGET)
    with pytest.raises(ValueError, match="insecure_seed"):
        Curator(make_data(), plan_of(mean()), book, insecure_seed=seed)
    with pytest.raises(ValueError, match="insecure_seed"):
        book.charge(plan_of(mean()), insecure_seed=seed)
    assert book.charges() == ()


# --- steps and rounds -------------------------------------------------------------------------------------------------


def test_releases_are_close_to_the_truth_and_random():
    data = make_data()
    truth = np.mean([data.rows_of(u)[0].mean(axis=0) for u in range(SIZE)], axis=0)
    released = [Curator(data, plan_of(mean()), Ledger(BUDGET)).release("step 0", UserMean(), 0.5) for _ in range(2)]
    for vector in released:
        assert np.linalg.norm(vector - truth) < 8 * 20.0 * mean().sensitivity(0.5, 2)
    assert np.any(released[0] != released[1])


def test_seeded_releases_repeat():
    released = [
        Curator(make_data(), plan_of(mean()), Ledger(BUDGET), insecure_seed=3).release("step 0", UserMean(), 0.5)
        for _ in range(2)
    ]
    np.testing.assert_array_equal(*released)


def test_steps_come_in_order_and_no_round_comes_twice():
    curator = Curator(make_data(), plan_of(mean(), mean(rounds=2), mean()), Ledger(BUDGET))
    curator.release("step 0", UserMean(), 0.5)
    with pytest.raises(RuntimeError, match="closed"):
        curator.release("step 0", UserMean(), 0.5)
    curator.release("step 1", UserMean(), 0.5)
    curator.release("step 1", MeanGradient(logistic, np.zeros(2)), 5.0)
    with pytest.raises(RuntimeError, match="used up"):
        curator.release("step 1", UserMean(), 0.5)
    curator.release("step 2", UserMean(), 0.5)
    with pytest.raises(RuntimeError, match="closed"):
        curator.release("step 1", UserMean(), 0.5)
    with pytest.raises(ValueError, match=r"one of \['step 0'"):
        curator.release("step 3", UserMean(), 0.5)


def test_a_later_step_may_be_skipped_to_and_closes_the_earlier_ones():
    curator = Curator(make_data(), plan_of(mean(), mean()), Ledger(BUDGET))
    curator.release("step 1", UserMean(), 0.5)
    with pytest.raises(RuntimeError, match="closed"):
        curator.release("step 0", UserMean(), 0.5)


def test_a_abort_closes_its_step():
    curator = Curator(make_data(), plan_of(mean(rounds=3), mean()), Ledger(BUDGET))
    with pytest.raises(Aborted):
        curator.release("step 0", UserMean(), 1e-9)
    with pytest.raises(RuntimeError, match="used up"):
        curator.release("step 0", UserMean(), 0.5)
    curator.release("step 1", UserMean(), 0.5)


@pytest.mark.parametrize(
    "mechanism",
    [mean(rounds=3), gaussian_tested(rounds=3), SampledOutlierRemoval(SIZE, 0.5, 40.0, 2.0, 1e-6, rounds=3)],
)
def test_a_abort_closes_its_step_before_data_is_read_again(mechanism):
    curator = Curator(make_data(), plan_of(mechanism), Ledger(Budget(8.0, 1e-4)), insecure_seed=0)
    statistic = Given(np.full((SIZE, 2), np.nan))
    with pytest.raises(Aborted):
        curator.release("step 0", statistic, 1.0)
    with pytest.raises(RuntimeError, match="it is closed"):
        curator.release("step 0", statistic, 1.0)
    assert len(statistic.asked) == 1


def test_a_failed_release_does_not_come_again():
    """Of two rounds, one fails and one is released: no third."""
    curator = Curator(make_data(), plan_of(mean(rounds=2)), Ledger(BUDGET), engine=FailingEngine(ValueError))
    with pytest.raises(RuntimeError, match="Expected the statistic"):
        curator.release("step 0", UserMean(), 0.5)
    curator.release("step 0", UserMean(), 0.5)
    with pytest.raises(RuntimeError, match="it is closed"):
        curator.release("step 0", UserMean(), 0.5)


def test_a_step_whose_start_fails_is_not_served_by_the_step_before(monkeypatch):
    """An interrupt between two steps: the second must still use its own, larger noise."""
    first, second = mean(rounds=3), mean(rounds=2, z=500.0)
    curator = Curator(make_data(), plan_of(first, second), Ledger(BUDGET))
    curator.release("step 0", UserMean(), 0.5)
    start = OutlierRemoval.start
    monkeypatch.setattr(OutlierRemoval, "start", lambda self, noise: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        curator.release("step 1", UserMean(), 0.5)
    monkeypatch.setattr(OutlierRemoval, "start", start)
    curator.release("step 1", UserMean(), 0.5)
    assert curator._session._record is second


# --- users ------------------------------------------------------------------------------------------------------------


def test_phases_ask_disjoint_users_in_a_random_order_and_groups_of_them():
    plan = Plan(SIZE, (Step("a", 0, 200, mean(200)), Step("b", 200, 600, mean(100, z=30.0), n_groups=100)))
    engine = RecordingEngine()
    curator = Curator(make_data(), plan, Ledger(Budget(3.0, 1e-5)), engine=engine)
    curator.release("a", UserMean(), 0.5)
    with pytest.raises(ValueError, match="takes groups"):
        curator.release("b", UserMean(), 0.5)
    curator.release("b", OnePassSGD(logistic, np.zeros(2), Ball(1.0), 0.1), 0.5)
    (first, n_first), (second, n_second) = engine.calls
    assert (n_first, n_second) == (200, 100)
    assert sorted([*first, *second]) == list(range(SIZE))
    assert list(first) != sorted(first)


def test_sampled_steps_ask_a_fresh_sample_each_round():
    sampled = SampledOutlierRemoval(SIZE, 0.5, 30.0, 2.0, 1e-6, 1e-9, rounds=2)
    engine = RecordingEngine()
    curator = Curator(make_data(), plan_of(sampled), Ledger(Budget(8.0, 1e-5)), engine=engine)
    curator.release("step 0", UserMean(), 0.5)
    curator.release("step 0", UserMean(), 0.5)
    (first, n_first), (second, _) = engine.calls
    assert n_first == len(first)
    assert 200 < len(first) < 400
    assert set(first) != set(second)


def test_a_statistic_cannot_change_the_users_order():
    class Meddling(RecordingEngine):
        def vectors(self, statistic, data, users, n_groups):
            users[:] = 7

    curator = Curator(make_data(), plan_of(mean()), Ledger(BUDGET), engine=Meddling())
    with pytest.raises(RuntimeError, match="Expected the statistic"):
        curator.release("step 0", UserMean(), 0.5)
    assert sorted(curator._order) == list(range(SIZE))


def test_search_then_release_finds_a_useful_radius():
    search = RadiusSearch(SIZE, radius_grid(1e-3, 1.0), SIZE - 40, 15.0)
    curator = Curator(make_data(), plan_of(search, mean()), Ledger(BUDGET), insecure_seed=1)
    (radius,) = curator.release("step 0", UserMean(), 4.0)
    assert 0.01 < radius < 1.0
    curator.release("step 1", UserMean(), 2 * radius)


@pytest.mark.parametrize("value", [np.nan, np.inf, -1e308, 1e-320])
def test_a_hostile_user_changes_a_release_by_no_more_than_the_sensitivity(monkeypatch, value):
    """The noiseless mean, with one user's rows replaced by anything, moves by at most what the noise is scaled to."""
    monkeypatch.setattr(module, "noise_source", lambda seed: SilentNoise())
    data = make_data()
    rows = data.rows.copy()
    rows[data.offsets[3] : data.offsets[4]] = value
    hostile = UserData(rows, data.targets, data.offsets)
    clean, changed = (
        Curator(d, plan_of(mean()), Ledger(BUDGET)).release("step 0", UserMean(), 0.5) for d in (data, hostile)
    )
    assert np.all(np.isfinite(changed))
    assert 0 < np.linalg.norm(clean - changed) <= mean().sensitivity(0.5, 2)


# --- arguments that are of the wrong kind, or change ------------------------------------------------------------------


def test_bad_calls_do_not_use_up_a_round():
    curator = Curator(make_data(), plan_of(mean()), Ledger(BUDGET))
    with pytest.raises(ValueError, match="radius"):
        curator.release("step 0", UserMean(), float("nan"))
    with pytest.raises(ValueError, match="Expected"):
        curator.release("step 0", MeanGradient(logistic, np.zeros(5)), 0.5)
    curator.release("step 0", UserMean(), 0.5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (lambda: (make_data(), plan_of(mean()), BUDGET), "ledger must be Ledger, got Budget"),
        (lambda: (make_data(), mean(), Ledger(BUDGET)), "plan must be Plan, got OutlierRemoval"),
        (lambda: (np.zeros((SIZE, 2)), plan_of(mean()), Ledger(BUDGET)), "data to be UserData, got ndarray"),
    ],
)
def test_arguments_of_the_wrong_kind_are_named(arguments, message):
    with pytest.raises(TypeError, match=message):
        Curator(*arguments())


def test_what_is_no_statistic_or_lacks_targets_costs_nothing():
    data = make_data()
    unlabelled = UserData(data.rows, np.full(data.n_rows, np.nan), data.offsets, has_targets=False)
    curator = Curator(unlabelled, plan_of(mean()), Ledger(BUDGET))
    for wrong in (UserMean, lambda data, users, n_groups: None, data.rows):
        with pytest.raises(TypeError, match="Expected a statistic such as") as error:
            curator.release("step 0", wrong, 0.5)
        assert "." not in str(error.value).split("got ")[1].split(";")[0], "no repr of an array"
    with pytest.raises(ValueError, match="Expected data with targets"):
        curator.release("step 0", MeanGradient(logistic, np.zeros(2)), 0.5)
    curator.release("step 0", UserMean(), 0.5)


def test_a_plan_is_charged_and_released_as_it_was_priced_whatever_becomes_of_its_arguments(monkeypatch):
    noise = SilentNoise()
    monkeypatch.setattr(module, "noise_source", lambda seed: noise)
    radii, size = [0.5, 1.0, 2.0], np.array([SIZE])
    record = searched_removal(size[0], radii, np.float32(20.0), np.float16(10.0), 1e-6)
    plan = Plan(size[0], (Step("step 0", np.int64(0), size[0], record),))
    cost, book = record.cost, Ledger(BUDGET)
    curator = Curator(make_data(), plan, book)
    radii[:] = [1e-9] * 64
    size[0] = 1
    *_, found = curator.release("step 0", Given(np.ones((SIZE, 2))), 1.0)
    assert found == 0.5
    assert book.charges()[0].costs == (cost,)
    assert noise.asked[-1] == ("gaussian", record.sensitivity(0.5, 2), 20.0)
    for entry in ((SIZE, (1.0,), np.array(20.0), 10.0, 1e-6), (SIZE, (1.0,), 20.0, [10.0], 1e-6)):
        with pytest.raises(TypeError, match="must be a number"):
            searched_removal(*entry)


@pytest.mark.parametrize("n_users", [600.0, np.float64(600), np.array(600), [600], "600", None, float("nan")])
def test_a_plan_for_no_whole_number_of_users_is_refused_before_any_charge(n_users):
    with pytest.raises(ValueError, match=r"n_users must be a whole number"):
        Plan(n_users, (Step("step 0", 0, SIZE, mean()),))
    for start, stop, groups in ((0.0, SIZE, None), (0, 600.0, None), (0, SIZE, 600.0), (np.array(0), SIZE, None)):
        with pytest.raises(ValueError, match="whole number"):
            Step("step 0", start, stop, mean(), groups)


@pytest.mark.parametrize(
    "radius",
    [float("nan"), np.float64("nan"), 0.0, -1.0, float("inf"), 1e-200, 1e200, 10**400, np.array(1.0), [1.0], "1"],
)
@pytest.mark.parametrize("mechanism", ["clip", "gaussian", "searched", "paper"])
def test_radii_that_are_none_cost_nothing(mechanism, radius):
    curator = Curator(make_data(), plan_of(MECHANISMS[mechanism]), Ledger(Budget(8.0, 1e-4)), insecure_seed=5)
    statistic = Given(np.ones((SIZE, 2)))
    with pytest.raises((ValueError, TypeError), match="radius"):
        curator.release("step 0", statistic, radius)
    assert statistic.asked == []
    curator.release("step 0", statistic, 1.0)


def test_a_plan_that_holds_more_than_the_store_s_limit_is_refused_before_it_is_charged():
    given, plan, ledger = make_data(), plan_of(mean()), Ledger(Budget(2.0, 1e-5))
    for limit, words in ((48 * SIZE + 1, "a vector of each"), (10**9, None)):
        data = replace(given, store=SimpleNamespace(memory_limit=limit))
        if words is None:
            Curator(data, plan, ledger)
        else:
            with pytest.raises(ValueError, match=f"memory_limit >= .*{words}.*Nothing was spent"):
                Curator(data, plan, ledger)
            assert ledger.charges() == ()


def test_an_engine_that_is_lost_is_told_as_such_and_a_statistic_cannot_say_so():
    class Losing(FailingEngine):
        def vectors(self, *asked):
            raise EngineLost(changed=True)

    class Lost:
        needs_targets = takes_groups = False

        def __call__(self, data, users, n_groups):
            raise EngineLost

        def check(self, n_features, dtype=None):
            pass

    plan = plan_of(mean())
    with pytest.raises(EngineLost) as lost:
        Curator(make_data(), plan, Ledger(Budget(2.0, 1e-5)), engine=Losing()).release("step 0", UserMean(), 1.0)
    assert str(lost.value) == str(EngineLost(changed=True)) != str(EngineLost())
    with pytest.raises(RuntimeError, match="failed on the data") as failed:
        Curator(make_data(), plan, Ledger(Budget(2.0, 1e-5))).release("step 0", Lost(), 1.0)
    assert type(failed.value) is RuntimeError
