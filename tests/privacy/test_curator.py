import copy
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support import SilentNoise

from userdp.data import UserData
from userdp.domains import Ball
from userdp.losses import logistic
from userdp.privacy import curator as module
from userdp.privacy.accounting import Budget, BudgetExceeded
from userdp.privacy.curator import Curator
from userdp.privacy.ledger import Ledger
from userdp.privacy.means.outlier_removal import OutlierRemoval
from userdp.privacy.means.sampled_outlier_removal import SampledOutlierRemoval
from userdp.privacy.mechanism import Halted
from userdp.privacy.plan import Plan, Step
from userdp.privacy.radius import RadiusSearch, radius_grid
from userdp.statistics import MeanGradient, OnePassSGD, UserMean

BUDGET = Budget(4.0, 1e-5)
SIZE = 600


def make_data(n_users=SIZE, seed=0):
    rng = np.random.default_rng(seed)
    users = np.repeat(np.arange(n_users), rng.integers(1, 5, n_users))
    rows = rng.normal(1.0, 0.05, (len(users), 2))
    return UserData.from_arrays(rows, rng.integers(0, 2, len(users)), users)


def mean(size=SIZE, rounds=1, z=20.0):
    return OutlierRemoval(size, z, 0.8, 1e-6, 1e-9, rounds)  # a false halt in a thousand years


def plan_of(*mechanisms):
    return Plan(SIZE, tuple(Step(f"step {k}", 0, SIZE, m) for k, m in enumerate(mechanisms)))


class Explosive(UserData):
    """Data that explodes when touched; only its public number of users, and whether it is seeded, may be asked for."""

    def __init__(self, n_users=None):
        object.__setattr__(self, "count", n_users)

    def __getattribute__(self, name):
        if name == "insecure_seed":
            return None
        if name == "n_users" and object.__getattribute__(self, "count") is not None:
            return object.__getattribute__(self, "count")
        raise AssertionError(f"data was touched: {name}")


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
    assert book.spent() == plan_of(mean()).costs
    with pytest.raises(AssertionError, match="data was touched"):
        curator.release("step 0", UserMean(), 1.0)


def test_a_seed_is_recorded_as_not_private():
    book = Ledger(BUDGET)
    Curator(make_data(), plan_of(mean()), book, insecure_seed=7)
    assert not book.charges()[0].private
    Curator(make_data(), plan_of(mean()), book)
    assert book.charges()[1].private
    data = make_data()
    seeded = UserData(data.rows, data.targets, data.offsets, insecure_seed=4)
    Curator(seeded, plan_of(mean()), book)
    assert book.charges()[2].insecure_seed == 4


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


def test_a_halt_closes_its_step():
    curator = Curator(make_data(), plan_of(mean(rounds=3), mean()), Ledger(BUDGET))
    with pytest.raises(Halted):
        curator.release("step 0", UserMean(), 1e-9)
    with pytest.raises(RuntimeError, match="used up"):
        curator.release("step 0", UserMean(), 0.5)
    curator.release("step 1", UserMean(), 0.5)


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
        (lambda: (make_data(), plan_of(mean()), BUDGET), "ledger to be Ledger, got Budget"),
        (lambda: (make_data(), mean(), Ledger(BUDGET)), "plan to be Plan, got OutlierRemoval"),
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


class FailingEngine:
    """Fails in its first call, then works; `result` is what it gives instead of failing."""

    def __init__(self, result=None):
        self.result, self.calls = result, 0

    def vectors(self, statistic, data, users, n_groups):
        self.calls += 1
        if self.calls == 1:
            if isinstance(self.result, type):
                raise self.result(f"user's value {data.rows[0, 0]}")
            return self.result
        return np.zeros((n_groups, 1))


WRONG = [ValueError, SystemExit, np.zeros((3 * SIZE, 1)), np.zeros(SIZE), np.zeros((SIZE, 0)), "nonsense"]


@pytest.mark.parametrize("result", WRONG, ids=["error", "exit", "too many", "flat", "no coordinates", "text"])
def test_a_failing_statistic_uses_up_the_round_and_says_the_same_whatever_the_data(result):
    engine = FailingEngine(result)
    curator = Curator(make_data(), plan_of(mean()), Ledger(BUDGET), engine=engine)
    with pytest.raises(RuntimeError, match=r"^Expected the statistic to give one vector a group") as error:
        curator.release("step 0", UserMean(), 0.5)
    assert error.value.__cause__ is None
    assert error.value.__suppress_context__
    with pytest.raises(RuntimeError, match="used up"):
        curator.release("step 0", UserMean(), 0.5)


def test_an_interrupt_carries_nothing_and_uses_up_the_round():
    curator = Curator(make_data(), plan_of(mean()), Ledger(BUDGET), engine=FailingEngine(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt) as interrupt:
        curator.release("step 0", UserMean(), 0.5)
    assert interrupt.value.args == ()
    with pytest.raises(RuntimeError, match="used up"):
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


def test_a_statistic_cannot_ask_for_a_release_while_it_is_computed():
    class Nested(RecordingEngine):
        def vectors(self, statistic, data, users, n_groups):
            with pytest.raises(RuntimeError, match="while it is computed"):
                curator.release("step 0", UserMean(), 0.5)
            return super().vectors(statistic, data, users, n_groups)

    curator = Curator(make_data(), plan_of(mean()), Ledger(BUDGET), engine=Nested())
    curator.release("step 0", UserMean(), 0.5)


@pytest.mark.parametrize("seed", [True, -1, 1.5, "abc", [1, 2]])
def test_seeds_that_are_none_spend_nothing(seed):
    book = Ledger(BUDGET)
    with pytest.raises(ValueError, match="insecure_seed"):
        Curator(make_data(), plan_of(mean()), book, insecure_seed=seed)
    with pytest.raises(ValueError, match="insecure_seed"):
        book.charge(plan_of(mean()), insecure_seed=seed)
    assert book.charges() == ()


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_curator_has_no_copies(duplicate):
    with pytest.raises(TypeError, match="charged once"):
        duplicate(Curator(make_data(), plan_of(mean()), Ledger(BUDGET)))


def test_a_forked_process_cannot_release(monkeypatch):
    curator = Curator(make_data(), plan_of(mean()), Ledger(BUDGET))
    monkeypatch.setattr(module.os, "getpid", lambda: -1)
    with pytest.raises(RuntimeError, match="process that made it"):
        curator.release("step 0", UserMean(), 0.5)


def test_threads_share_the_rounds():
    """Eight threads hammer a step of two rounds: exactly two releases leave."""
    curator = Curator(make_data(), plan_of(mean(rounds=2)), Ledger(BUDGET), engine=RecordingEngine())

    def attempt(_):
        try:
            curator.release("step 0", UserMean(), 0.5)
            return True
        except RuntimeError:
            return False

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(attempt, range(64))) == 2
    finally:
        sys.setswitchinterval(interval)


def test_a_statistic_cannot_change_the_users_order():
    class Meddling(RecordingEngine):
        def vectors(self, statistic, data, users, n_groups):
            users[:] = 7

    curator = Curator(make_data(), plan_of(mean()), Ledger(BUDGET), engine=Meddling())
    with pytest.raises(RuntimeError, match="Expected the statistic"):
        curator.release("step 0", UserMean(), 0.5)
    assert sorted(curator._order) == list(range(SIZE))


class RecordingEngine:
    def __init__(self):
        self.calls = []

    def vectors(self, statistic, data, users, n_groups):
        self.calls.append((np.array(users), n_groups))
        return np.zeros((n_groups, 1))


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


def test_search_then_release_finds_a_useful_radius():
    search = RadiusSearch(SIZE, radius_grid(1e-3, 1.0), SIZE - 40, 15.0)
    curator = Curator(make_data(), plan_of(search, mean()), Ledger(BUDGET), insecure_seed=1)
    (radius,) = curator.release("step 0", UserMean(), 4.0)
    assert 0.01 < radius < 1.0
    curator.release("step 1", UserMean(), 2 * radius)


def test_halts_and_errors_say_nothing_about_the_data():
    data = make_data()
    for seed in range(3):
        with pytest.raises(Halted) as halted:
            Curator(data, plan_of(mean()), Ledger(BUDGET), insecure_seed=seed).release("step 0", UserMean(), 1e-9)
        assert not any(character.isdigit() for character in str(halted.value))


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
