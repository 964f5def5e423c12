import copy
import os
import pickle
import sys
import threading
import warnings
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
from userdp.privacy.means.clip import Clip
from userdp.privacy.means.gaussian_outlier_removal import GaussianOutlierRemoval
from userdp.privacy.means.outlier_removal import OutlierRemoval
from userdp.privacy.means.paper_outlier_removal import PaperOutlierRemoval
from userdp.privacy.means.sampled_outlier_removal import SampledOutlierRemoval
from userdp.privacy.means.searched_outlier_removal import SearchedOutlierRemoval
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
    assert error.value.__context__ is None
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


class WarningOnData(UserMean):
    """Warns while another release is under way."""

    def __init__(self, begun, go_on):
        object.__setattr__(self, "events", (begun, go_on))

    def __call__(self, data, users, n_groups):
        begun, go_on = self.events
        begun.set()
        go_on.wait(0.5)
        warnings.warn("a warning that must not leave", stacklevel=1)
        return super().__call__(data, users, n_groups)


def test_warnings_do_not_leave_while_another_thread_releases(recwarn):
    """Filters are the process's: the release that ends first must not restore them under the other one."""
    first, second = (Curator(make_data(), plan_of(mean()), Ledger(BUDGET)) for _ in range(2))
    begun, slow_begun, never = threading.Event(), threading.Event(), threading.Event()
    quick = threading.Thread(target=first.release, args=("step 0", WarningOnData(begun, slow_begun), 0.5))
    slow = threading.Thread(target=second.release, args=("step 0", WarningOnData(slow_begun, never), 0.5))
    before = list(warnings.filters)
    quick.start()
    begun.wait()
    slow.start()
    quick.join()
    slow.join()
    assert not recwarn.list
    assert list(warnings.filters) == before


def test_two_curators_release_at_the_same_time():
    first, second = (Curator(make_data(), plan_of(mean(rounds=2)), Ledger(BUDGET)) for _ in range(2))
    both = threading.Barrier(2, timeout=20)

    class Meeting(UserMean):
        def __call__(self, data, users, n_groups):
            both.wait()
            return super().__call__(data, users, n_groups)

    threads = [threading.Thread(target=curator.release, args=("step 0", Meeting(), 0.5)) for curator in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert not both.broken, "both computed at the same time"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_forked_during_a_release_can_make_its_own():
    forked = []

    class Forking(UserMean):
        def __call__(self, data, users, n_groups):
            forked.append(os.fork())
            if forked[-1] == 0:
                try:
                    Curator(make_data(), plan_of(mean()), Ledger(BUDGET)).release("step 0", UserMean(), 0.5)
                    os._exit(0)
                except BaseException:
                    os._exit(1)
            return super().__call__(data, users, n_groups)

    Curator(make_data(), plan_of(mean()), Ledger(BUDGET)).release("step 0", Forking(), 0.5)
    assert os.waitpid(forked[0], 0)[1] == 0


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


# --- nothing but releases tells anything about values -----------------------------------------------------------------


class Given:
    """A statistic that gives each user's row of `rows`; `before` is called first, with the users."""

    needs_targets = takes_groups = False

    def __init__(self, rows, before=lambda users: None):
        self.rows, self.before, self.asked = rows, before, []

    def __call__(self, data, users, n_groups):
        self.asked.append(len(users))
        self.before(users)
        return self.rows[users]

    def check(self, n_features, dtype=np.float64):
        pass


def searched(size=SIZE, z=20.0):
    return SearchedOutlierRemoval(size, (0.5, 1.0, 2.0), z, 10.0, 1e-6)


def gaussian_tested(rounds=1):
    return GaussianOutlierRemoval(SIZE, 20.0, 10.0, 1e-6, rounds=rounds, outliers=20)


def paper(size=SIZE):
    return PaperOutlierRemoval(size, 7.0, 3.0, 1e-6)


MECHANISMS = {
    "clip": Clip(SIZE, 20.0, block=7),
    "removal": mean(),
    "gaussian": gaussian_tested(),
    "searched": searched(),
    "paper": paper(),
    "search": RadiusSearch(SIZE, (0.5, 1.0, 2.0), SIZE - 100, 15.0),
    "sampled": SampledOutlierRemoval(SIZE, 0.5, 30.0, 2.0, 1e-6, outliers=10),
}


def hostile_rows():
    rows = np.random.default_rng(0).normal(1.0, 0.05, (SIZE, 2))
    rows[:5] = [[1e308, 1e-308], [1e308, 1e308], [-1e-308, 5e-324], [np.inf, 1e-308], [np.nan, 1e308]]
    return rows


def outcome(curator, statistic, radius=1.0, label="step 0"):
    """What a caller sees of a release: the vector, or the kind and text of the exception."""
    try:
        return curator.release(label, statistic, radius).tolist()
    except (RuntimeError, KeyboardInterrupt) as error:
        return type(error), str(error)


@pytest.mark.parametrize("mechanism", MECHANISMS.values(), ids=MECHANISMS)
@pytest.mark.parametrize("halting", [False, True])
def test_a_release_is_the_same_whatever_the_caller_does_with_numerical_errors_and_warnings(mechanism, halting):
    """An error or a warning on an overflow, which the caller can switch on, would tell of one user's values."""

    def loud(users):
        warnings.warn(f"user {users[0]}", stacklevel=1)
        np.divide(1.0, np.zeros(1))
        np.exp(np.array([1e4, -1e4]))
        np.sqrt(np.array([-1.0]))

    rows = np.arange(2.0 * SIZE).reshape(SIZE, 2) ** 3 if halting else hostile_rows()
    seen = []
    for setting in ("ignore", "raise", "warn", "print"):
        curator = Curator(make_data(), plan_of(mechanism), Ledger(Budget(8.0, 1e-4)), insecure_seed=5)
        with np.errstate(all=setting), warnings.catch_warnings(record=setting != "raise") as caught:
            warnings.simplefilter("error" if setting == "raise" else "always")
            before = np.geterr()
            seen.append(outcome(curator, Given(rows, loud)))
            assert np.geterr() == before
        assert not caught
    assert seen[1:] == seen[:1] * 3
    if halting and not isinstance(mechanism, Clip | RadiusSearch):
        assert seen[0][0] is Halted
    else:
        assert np.all(np.isfinite(seen[0]))


def frames_of(error):
    """All frames that an exception leads to, through its traceback, its context and its cause."""
    found, waiting, known = [], [error], set()
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in known:
            continue
        known.add(id(one))
        waiting += [one.__context__, one.__cause__]
        trace = one.__traceback__
        while trace is not None:
            found.append(trace.tb_frame)
            waiting += [value for value in trace.tb_frame.f_locals.values() if isinstance(value, BaseException)]
            trace = trace.tb_next
    return found


def holds_arrays(value, depth=2):
    if isinstance(value, np.ndarray):
        return True
    if isinstance(value, dict):
        return holds_arrays(list(value.values()), depth)
    return isinstance(value, list | tuple) and depth > 0 and any(holds_arrays(entry, depth - 1) for entry in value)


def fail_with(error):
    def fail(users):
        held = np.array(users, dtype=float)  # what a debugger would find
        raise error(f"{held[0]}")

    return fail


FAILURES = [ValueError, FloatingPointError, KeyboardInterrupt, SystemExit, MemoryError]
TESTED = ["removal", "gaussian", "searched", "paper", "sampled"]


@pytest.mark.parametrize(
    ("error", "mechanism"),
    [(Halted, name) for name in TESTED] + [(error, name) for error in FAILURES for name in ("clip", *TESTED)],
)
def test_exceptions_lead_to_no_frame_that_holds_data(error, mechanism):
    nowhere = np.full((SIZE, 2), np.nan)
    statistic = Given(nowhere) if error is Halted else Given(hostile_rows(), fail_with(error))
    curator = Curator(make_data(), plan_of(MECHANISMS[mechanism]), Ledger(Budget(8.0, 1e-4)), insecure_seed=5)
    expected = error if error in (Halted, KeyboardInterrupt) else RuntimeError
    caught = None
    try:
        curator.release("step 0", statistic, 1.0)
    except BaseException as raised:
        caught = raised
    assert type(caught) is expected
    assert caught.__context__ is None
    assert caught.__cause__ is None
    frames = frames_of(caught)
    inside = [frame for frame in frames if frame.f_code.co_filename != __file__]
    assert [frame.f_code.co_name for frame in inside] == ["release"]
    assert not any(holds_arrays(frame.f_locals) for frame in inside)
    assert not any(character.isdigit() for character in str(caught))


def test_the_walk_finds_frames_with_data():
    """The walk above means something: it finds the arrays behind an exception that was passed on."""

    def pass_on():
        try:
            fail_with(ValueError)([3])
        except ValueError as error:
            raise RuntimeError("passed on") from error

    with pytest.raises(RuntimeError, match="passed on") as caught:
        pass_on()
    assert any("held" in frame.f_locals and holds_arrays(frame.f_locals) for frame in frames_of(caught.value))


# --- one process ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["clip", "removal", "gaussian"])
def test_a_fork_inside_a_statistic_gives_one_release(mechanism):
    """Both processes come back from the statistic; only the one that made the curator gets a vector."""
    reader, writer = os.pipe()
    here, children = os.getpid(), []

    def fork(users):
        if not children:
            children.append(os.fork())

    curator = Curator(make_data(), plan_of(MECHANISMS[mechanism]), Ledger(Budget(8.0, 1e-4)))
    seen = None
    try:
        seen = outcome(curator, Given(hostile_rows(), fork))
        again = outcome(curator, Given(hostile_rows()))
    finally:
        if os.getpid() != here:
            text = "a release" if isinstance(seen, list) or isinstance(again, list) else f"{seen} {again}"
            os.write(writer, text.encode())
            os._exit(0)
    os.close(writer)
    os.waitpid(children[0], 0)
    with os.fdopen(reader) as pipe:
        child = pipe.read()
    assert isinstance(seen, list)
    assert "it is closed" in again[1]
    assert "Expected the statistic" in child
    assert "process that made it" in child


def test_a_process_that_changes_while_the_ledger_is_charged_gets_no_curator(monkeypatch):
    book, here = Ledger(BUDGET), os.getpid()
    charge = Ledger.charge

    def forking(self, *arguments):
        charge(self, *arguments)
        monkeypatch.setattr(module.os, "getpid", lambda: here + 1)

    monkeypatch.setattr(Ledger, "charge", forking)
    with pytest.raises(RuntimeError, match="process that made it"):
        Curator(Explosive(SIZE), plan_of(mean()), book)


def test_the_process_is_checked_before_anything_else(monkeypatch):
    curator = Curator(Explosive(SIZE), plan_of(mean()), Ledger(BUDGET))
    monkeypatch.setattr(module.os, "getpid", lambda: -1)
    with pytest.raises(RuntimeError, match="process that made it"):
        curator.release("no such step", None, float("nan"))


# --- arguments that are no numbers, or change -------------------------------------------------------------------------


def test_a_plan_is_charged_and_released_as_it_was_priced_whatever_becomes_of_its_arguments(monkeypatch):
    noise = SilentNoise()
    monkeypatch.setattr(module, "noise_source", lambda seed: noise)
    radii, size = [0.5, 1.0, 2.0], np.array([SIZE])
    record = SearchedOutlierRemoval(size[0], radii, np.float32(20.0), np.float16(10.0), 1e-6)
    plan = Plan(size[0], (Step("step 0", np.int64(0), size[0], record),))
    cost, book = record.cost, Ledger(BUDGET)
    curator = Curator(make_data(), plan, book)
    radii[:] = [1e-9] * 64
    size[0] = 1
    *_, found = curator.release("step 0", Given(np.ones((SIZE, 2))), 1.0)
    assert found == 0.5
    assert book.spent() == (cost,)
    assert noise.asked[-1] == ("gaussian", record.sensitivity(0.5, 2), 20.0)
    for entry in ((SIZE, (1.0,), np.array(20.0), 10.0, 1e-6), (SIZE, (1.0,), 20.0, [10.0], 1e-6)):
        with pytest.raises(TypeError, match="to be a number"):
            SearchedOutlierRemoval(*entry)


@pytest.mark.parametrize("n_users", [600.0, np.float64(600), np.array(600), [600], "600", None, float("nan")])
def test_a_plan_for_no_whole_number_of_users_is_refused_before_any_charge(n_users):
    with pytest.raises(ValueError, match=r"n_users=.* to be a whole number"):
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


# --- blocks -----------------------------------------------------------------------------------------------------------


def small_data():
    return UserData.from_arrays(np.zeros((50, 1)), None, np.arange(50))


def clip_release(block, rows, monkeypatch):
    monkeypatch.setattr(module, "noise_source", lambda seed: SilentNoise())
    plan = Plan(50, (Step("step 0", 0, 50, Clip(50, 20.0, rounds=2, block=block)),))
    statistic = Given(rows)
    curator = Curator(small_data(), plan, Ledger(BUDGET))
    released = [curator.release("step 0", statistic, 2.0) for _ in range(2)]
    np.testing.assert_array_equal(*released)
    return released[0], statistic.asked


@pytest.mark.parametrize(
    ("block", "asked"),
    [(7, [7] * 7 + [1]), (1, [1] * 50), (10, [10] * 5), (49, [49, 1]), (50, [50]), (1000, [50])],
)
def test_blocks_of_users_give_the_mean_of_all(monkeypatch, block, asked):
    rows = np.random.default_rng(0).normal(0, 3, (50, 4))
    rows[[0, 49]] = [[np.nan, 0, 0, 0], [1e308, -1e308, 1e-308, 0]]
    whole, _ = clip_release(1000, rows, monkeypatch)
    released, seen = clip_release(block, rows, monkeypatch)
    assert seen == asked * 2
    np.testing.assert_allclose(released, whole, rtol=1e-13)
    lengths = np.hypot.reduce(rows[1:49], axis=1)
    shortened = rows[1:49] * np.minimum(1, 2 / lengths)[:, None]
    expected = shortened.sum(axis=0) + np.array([2**0.5, -(2**0.5), 0, 0])
    np.testing.assert_allclose(released, expected / 50, rtol=1e-12)


def test_a_block_that_fails_uses_up_its_round_and_leaves_nothing_behind(monkeypatch):
    monkeypatch.setattr(module, "noise_source", lambda seed: SilentNoise())
    plan = Plan(50, (Step("step 0", 0, 50, Clip(50, 20.0, rounds=2, block=7)),))
    curator = Curator(small_data(), plan, Ledger(BUDGET))

    def fail_late(users):
        if 40 in users:
            raise ValueError

    with pytest.raises(RuntimeError, match="Expected the statistic"):
        curator.release("step 0", Given(np.ones((50, 2)), fail_late), 2.0)
    np.testing.assert_array_equal(curator.release("step 0", Given(0.5 * np.ones((50, 2))), 1.0), [0.5, 0.5])
    with pytest.raises(RuntimeError, match="it is closed"):
        curator.release("step 0", Given(np.ones((50, 2))), 1.0)


@pytest.mark.parametrize("wrong", [np.zeros((6, 2)), np.zeros((8, 2)), np.zeros(7), np.zeros((7, 0)), "text"])
def test_a_block_of_another_shape_is_refused(wrong):
    class WrongFirst(RecordingEngine):
        def vectors(self, statistic, data, users, n_groups):
            return wrong if 3 in users else np.zeros((n_groups, 2))

    plan = Plan(50, (Step("step 0", 0, 50, Clip(50, 20.0, block=7)),))
    curator = Curator(small_data(), plan, Ledger(BUDGET), engine=WrongFirst(), insecure_seed=0)
    with pytest.raises(RuntimeError, match="Expected the statistic"):
        curator.release("step 0", UserMean(), 1.0)


def test_groups_are_never_split_into_blocks(monkeypatch):
    """A group's vector is made of several users, whom a block of vectors would tear apart."""
    monkeypatch.setattr(module, "noise_source", lambda seed: SilentNoise())
    plan = Plan(SIZE, (Step("step 0", 0, SIZE, Clip(100, 20.0, block=7), n_groups=100),))
    engine = RecordingEngine()
    curator = Curator(make_data(), plan, Ledger(BUDGET), engine=engine)
    curator.release("step 0", OnePassSGD(logistic, np.zeros(2), Ball(1.0), 0.1), 1.0)
    ((users, n_groups),) = engine.calls
    assert (len(users), n_groups) == (SIZE, 100)


def test_a_failed_release_does_not_come_again():
    """Of two rounds, one fails and one is released: no third."""
    curator = Curator(make_data(), plan_of(mean(rounds=2)), Ledger(BUDGET), engine=FailingEngine(ValueError))
    with pytest.raises(RuntimeError, match="Expected the statistic"):
        curator.release("step 0", UserMean(), 0.5)
    curator.release("step 0", UserMean(), 0.5)
    with pytest.raises(RuntimeError, match="it is closed"):
        curator.release("step 0", UserMean(), 0.5)


@pytest.mark.parametrize(
    "mechanism",
    [mean(rounds=3), gaussian_tested(rounds=3), SampledOutlierRemoval(SIZE, 0.5, 40.0, 2.0, 1e-6, rounds=3)],
)
def test_a_halt_closes_its_step_before_data_is_read_again(mechanism):
    curator = Curator(make_data(), plan_of(mechanism), Ledger(Budget(8.0, 1e-4)), insecure_seed=0)
    statistic = Given(np.full((SIZE, 2), np.nan))
    with pytest.raises(Halted):
        curator.release("step 0", statistic, 1.0)
    with pytest.raises(RuntimeError, match="it is closed"):
        curator.release("step 0", statistic, 1.0)
    assert len(statistic.asked) == 1


def test_a_statistic_cannot_speak_through_a_halt():
    def leak(users):
        raise Halted("user 17's salary is 91234.5.")

    curator = Curator(make_data(), plan_of(mean()), Ledger(BUDGET))
    with pytest.raises(RuntimeError, match=r"^Expected the statistic to give one vector a group") as error:
        curator.release("step 0", Given(np.zeros((SIZE, 2)), leak), 1.0)
    assert "salary" not in str(error.value)
