"""Nothing but releases tells anything about values: no error, warning, traceback or number."""

import warnings

import numpy as np
import pytest
from support_curator import (
    BUDGET,
    MECHANISMS,
    SIZE,
    FailingEngine,
    Given,
    hostile_rows,
    make_data,
    mean,
    outcome,
    plan_of,
)

from userdp.paper.outlier_removal import RadiusSearch
from userdp.privacy.accounting import Budget
from userdp.privacy.clip import Clip
from userdp.privacy.curator import Curator
from userdp.privacy.ledger import Ledger
from userdp.privacy.mechanism import Aborted
from userdp.statistics.moments import UserMean

WRONG = [ValueError, SystemExit, np.zeros((3 * SIZE, 1)), np.zeros(SIZE), np.zeros((SIZE, 0)), "nonsense"]


@pytest.mark.parametrize("result", WRONG, ids=["error", "exit", "too many", "flat", "no coordinates", "text"])
def test_a_failing_statistic_uses_up_the_round_and_says_the_same_whatever_the_data(result):
    engine = FailingEngine(result)
    curator = Curator(make_data(), plan_of(mean()), Ledger(BUDGET), engine=engine)
    with pytest.raises(RuntimeError, match=r"^Expected the statistic to give one vector per group") as error:
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


def test_a_statistic_cannot_speak_through_a_abort():
    def leak(users):
        raise Aborted("user 17's salary is 91234.5.")

    curator = Curator(make_data(), plan_of(mean()), Ledger(BUDGET))
    with pytest.raises(RuntimeError, match=r"^Expected the statistic to give one vector per group") as error:
        curator.release("step 0", Given(np.zeros((SIZE, 2)), leak), 1.0)
    assert "salary" not in str(error.value)


def test_aborts_and_errors_say_nothing_about_the_data():
    data = make_data()
    for seed in range(3):
        with pytest.raises(Aborted) as aborted:
            Curator(data, plan_of(mean()), Ledger(BUDGET), insecure_seed=seed).release("step 0", UserMean(), 1e-9)
        assert not any(character.isdigit() for character in str(aborted.value))


@pytest.mark.parametrize("mechanism", MECHANISMS.values(), ids=MECHANISMS)
@pytest.mark.parametrize("aborting", [False, True])
def test_a_release_is_the_same_whatever_the_caller_does_with_numerical_errors_and_warnings(mechanism, aborting):
    """An error or a warning on an overflow, which the caller can switch on, would tell of one user's values."""

    def loud(users):
        warnings.warn(f"user {users[0]}", stacklevel=1)
        np.divide(1.0, np.zeros(1))
        np.exp(np.array([1e4, -1e4]))
        np.sqrt(np.array([-1.0]))

    rows = np.arange(2.0 * SIZE).reshape(SIZE, 2) ** 3 if aborting else hostile_rows()
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
    if aborting and not isinstance(mechanism, Clip | RadiusSearch):
        assert seen[0][0] is Aborted
    else:
        assert np.all(np.isfinite(seen[0]))


# --- tracebacks -------------------------------------------------------------------------------------------------------


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
    [(Aborted, name) for name in TESTED] + [(error, name) for error in FAILURES for name in ("clip", *TESTED)],
)
def test_exceptions_lead_to_no_frame_that_holds_data(error, mechanism):
    nowhere = np.full((SIZE, 2), np.nan)
    statistic = Given(nowhere) if error is Aborted else Given(hostile_rows(), fail_with(error))
    curator = Curator(make_data(), plan_of(MECHANISMS[mechanism]), Ledger(Budget(8.0, 1e-4)), insecure_seed=5)
    expected = error if error in (Aborted, KeyboardInterrupt) else RuntimeError
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
