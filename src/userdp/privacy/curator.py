"""The curator: the only holder of data and randomness. It releases what a certified plan says, in order.

Everything that leaves goes through `release`. A solver holds the curator, not the data: with a bug it can waste
accuracy, but not privacy. (Python hides nothing from code that means harm: the gate is against mistakes.)
"""

from __future__ import annotations

import json
import os
import threading
import warnings
from functools import partial
from typing import Any, NoReturn, Protocol, TypeAlias

import numpy as np

from userdp._validate import check_kind, check_radius
from userdp.data.store import in_bytes
from userdp.data.users import RemoteUsers, UserData
from userdp.engines import Contribution, EngineLost, engine_of
from userdp.privacy.accounting import Budget, BudgetExceeded
from userdp.privacy.journal import Journal, OpenJournal, as_journal, recorded, run_facts
from userdp.privacy.ledger import Ledger
from userdp.privacy.mechanism import Aborted, Integers, Session, Users, Vectors
from userdp.privacy.noise import noise_source
from userdp.privacy.plan import Plan, Step
from userdp.privacy.statement import Statement, statement
from userdp.statistics.gradients import Statistic

# What has released nothing is not written down: a run resumes after the last recorded release.
_UNWRITTEN = (KeyboardInterrupt, EngineLost)
# A release, or why there is none.
Outcome: TypeAlias = Vectors | Aborted | RuntimeError | KeyboardInterrupt
_ORDER_BYTES = 48  # per user: orders, and keys that they are drawn by
_VECTOR_BYTES = 32  # per entry, in float64: as given, with far vectors as NaN, those that are finite, and centred


class Engine(Protocol):
    """Maps a statistic over users; knows no algorithm and draws nothing at random."""

    def place(self, data: Any) -> Any:
        """Bring the data to where it computes, before anything is charged; what the other methods get as their data."""

    def vectors(self, statistic: Statistic, data: Any, users: Users, n_groups: int) -> Vectors:
        """One vector per group of users."""

    def total(self, statistic: Statistic, contribution: Contribution, data: Any, users: Users) -> Integers:
        """What the users' vectors contribute, added up where the data is: each user once, in any order."""


class Curator:
    """Takes the data after certifying and charging the plan, and gives out its releases.

    budget: what this plan guarantees, and may be said of it; the ledger's whole budget if None. checkpoint: a journal,
    or the path of one, by which a run that was killed resumes: see `Journal`. engine: who computes, this process if
    None; "ray" is a `RayEngine()`. unit: "row" if each of the users is a single row; a ledger takes one unit only.

    Guarantee: all that leaves, aborts included, is within `budget`, and with all else that was charged to the ledger
    within the ledger's, for user-level differential privacy and neighbours of the budget's relation, provided each
    vector of a statistic depends on the users of its own group only and, in steps whose mechanism trusts the
    statistic, is finite and moves by at most its `replace_one_sensitivity`; in steps of acute vectors the engine
    computes what the statistic says; and in steps of totals it adds each user's contribution once. With
    `insecure_seed` nothing is private, and the ledger says so.

    The order of events is the guarantee: certify (no data), check the public number of users, let the engine bring the
    data to where it computes, charge the ledger, and only then draw the users' order and compute on data. Rows that are
    made of earlier releases (`prepare`) are brought there after the charge: should that fail, it is spent. A curator
    cannot be copied, pickled or used by a forked process: each copy would release what was charged once.
    """

    def __init__(
        self,
        data: UserData | RemoteUsers,
        plan: Plan,
        ledger: Ledger,
        *,
        budget: Budget | None = None,
        purpose: str = "",
        engine: Engine | str | None = None,
        insecure_seed: int | None = None,
        checkpoint: Journal | str | os.PathLike[str] | None = None,
        unit: str = "user",
    ) -> None:
        check_kind(Plan, plan=plan)
        check_kind(Ledger, ledger=ledger)
        if not isinstance(data, UserData | RemoteUsers):
            raise TypeError(f"Expected data to be UserData, got {type(data).__name__}.")
        noise = noise_source(insecure_seed)
        self.budget = ledger.budget if budget is None else budget
        check_kind(Budget, budget=self.budget)
        plan.certify(self.budget)
        if data.n_users != plan.n_users:
            raise ValueError(
                f"Expected data of n_users={plan.n_users}, as the plan was made for; it has {data.n_users}. "
                "Plan again with that number. Nothing was spent."
            )
        _check_memory(data, plan)
        seed = data.insecure_seed if insecure_seed is None else insecure_seed
        self._process = os.getpid()
        self._engine: Engine = engine_of(data, engine)
        self._given, self._plan, self._noise = data, plan, noise
        self._data: UserData | RemoteUsers = self._engine.place(data)
        self._journal: OpenJournal | None = None
        try:
            self._charge(ledger, purpose, seed, as_journal(checkpoint), unit)
            self._stated = partial(statement, plan, self.budget, ledger, seed, unit)
            self._order = self._drawn_order()
        except BaseException:
            self.close()
            raise
        self._order.flags.writeable = False
        self._position, self._rounds_left = -1, 0
        self._session: Session | None = None
        self._lock, self._busy = threading.RLock(), False

    def __reduce__(self) -> NoReturn:
        raise TypeError("A curator cannot be copied or pickled: its releases were charged once.")

    def statement(self) -> Statement:
        """What the plan guarantees, and what the ledger has spent by now."""
        return self._stated()

    def close(self) -> None:
        """Let go of the journal, if there is one."""
        if self._journal is not None:
            self._journal.close()

    def prepare(self, data: UserData) -> None:
        """Release from these rows from now on: the same users', each row made of its own cells and earlier releases."""
        self._check_process()
        with self._lock:
            if self._busy or not isinstance(self._given, UserData) or not isinstance(data, UserData):
                raise ValueError("Expected rows of users that are here, between two releases.")
            same_seed = data.insecure_seed == self._given.insecure_seed  # the ledger holds that one
            if not same_seed or not np.array_equal(data.offsets, self._given.offsets):
                raise ValueError("Expected the same users' rows, between two releases.")
            try:
                self._data = self._engine.place(data)
            except Exception:  # whose sentence says that nothing was spent
                raise RuntimeError(
                    "Expected to bring rows, made of what was released, to where the engine computes; that failed, "
                    "though it went well before. What was charged is spent: with a checkpoint the same call resumes."
                ) from None

    def release(self, label: str, statistic: Statistic, radius: float) -> Vectors:
        """The next release of the step `label`; raises `Aborted` if its private test fails.

        `radius` and `statistic` may depend on public inputs and earlier releases. Steps come in the plan's order:
        later ones may be skipped to, earlier ones are closed. A wrong argument costs nothing; once the data is read
        the round is used up, even if it fails.
        """
        self._check_process()
        radius = check_radius(radius)
        with self._lock:
            if self._busy:
                raise RuntimeError("A statistic must not ask the curator for a release while it is computed.")
            self._busy = True
            try:
                self._check(statistic, label, radius)
                step, session = self._open(label)
                self._rounds_left -= 1
                outcome = self._journaled(step, session, statistic, radius)
                if isinstance(outcome, Aborted):
                    self._rounds_left = 0
            finally:
                self._busy = False
        if isinstance(outcome, np.ndarray):
            return outcome
        raise outcome

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError("A curator works only in the process that made it: its releases were charged once.")

    def _charge(self, ledger: Ledger, purpose: str, seed: int | None, journal: Journal | None, unit: str) -> None:
        """Charge the plan, unless this is a run that resumes and was charged."""
        token = None
        if journal is not None:
            facts = run_facts(self._data, self._plan, self.budget, ledger.identity, purpose, seed)
            self._journal = journal.open(facts)
            token = self._journal.token
        try:
            ledger.charge(self._plan, purpose, seed, token, unit)
        except BudgetExceeded as refused:
            fits = ledger.what_fits(self.budget.delta)
            raise BudgetExceeded(f"{refused} {fits}", enough_users=refused.enough_users) from None
        self._check_process()

    def _drawn_order(self) -> Users:
        """A random order of the users: of a run that resumes, the one that it was begun with."""
        if self._journal is None:
            return self._noise.permutation(self._plan.n_users)
        draw = partial(self._noise.permutation, self._plan.n_users)
        order, state = self._journal.order(self._data, draw, self._state)
        self._go_on(state, None)
        return order

    def _journaled(self, step: Step, session: Session, statistic: Statistic, radius: float) -> Outcome:
        """What became of the request before, or what becomes of it now, once that is on disk."""
        if self._journal is None:
            return self._outcome(step, session, statistic, radius)
        if (before := self._journal.next(step.label, statistic, radius)) is not None:
            self._go_on(before.state, session)
            return before.outcome()
        position, self._position = self._position, len(self._plan.steps)  # closed for good if this is not written
        outcome = self._outcome(step, session, statistic, radius)
        if not isinstance(outcome, _UNWRITTEN):
            self._journal.append(recorded(step.label, statistic, radius, outcome, self._state(session)))
            self._position = position
        return outcome

    def _state(self, session: Session | None = None) -> str:
        """What later draws depend on."""
        once = None if session is None else session.drawn_once
        return json.dumps([None if once is None else once.noisy_threshold, self._noise.state])

    def _go_on(self, state: str, session: Session | None) -> None:
        threshold, self._noise.state = json.loads(state)
        if session is not None and session.drawn_once is not None:
            session.drawn_once.noisy_threshold = threshold

    def _outcome(self, step: Step, session: Session, statistic: Statistic, radius: float) -> Outcome:
        """The release, or a fresh exception that holds no frame in which data could be seen.

        Numerical warnings are off, whatever the caller has set: they would depend on values.
        """
        try:
            with WARNINGS_OFF, np.errstate(all="ignore"):
                return self._compute(step, session, statistic, radius)
        except Aborted as error:
            return Aborted(error.reason)
        except KeyboardInterrupt:
            return KeyboardInterrupt()
        except EngineLost as error:
            return EngineLost(error.changed)
        except BaseException:
            return RuntimeError(
                "Expected the statistic to give one vector per group; it failed on the data, though it passed its "
                "check on generated rows. Try it on data that is not private. The round is used up."
            )

    def _compute(self, step: Step, session: Session, statistic: Statistic, radius: float) -> Vectors:
        users = session.choose(self._order[step.start : step.stop])
        contribution = session.contribution(radius) if step.n_groups is None else None
        made: Any
        try:
            if contribution is None:
                made = self._all_vectors(step, session, statistic, users, radius)
            else:
                made = self._engine.total(statistic, contribution, self._data, users)
        except Aborted:  # only a mechanism may abort, so this is a failure like any other
            raise ValueError("Expected vectors, not an abort.") from None
        self._check_process()
        if contribution is None:
            return session.release(made, radius)
        if not isinstance(made, np.ndarray) or made.dtype != np.int64 or made.ndim != 1 or made.size < 2:
            raise ValueError("Expected a total of whole numbers.")
        return session.release_total(made, radius)

    def _all_vectors(self, step: Step, session: Session, statistic: Statistic, users: Users, radius: float) -> Vectors:
        """All vectors of a round, or the last block, after the session has taken in the others."""
        n_groups = len(users) if step.n_groups is None else step.n_groups
        block = step.mechanism.block or n_groups
        if step.n_groups is not None or block >= n_groups:
            return self._vectors(session.asked(statistic, 0, n_groups), users, n_groups)
        last = (n_groups - 1) // block * block
        for first in range(0, last, block):
            part = session.asked(statistic, first, first + block)
            session.add(self._vectors(part, users[first : first + block], block), radius)
        return self._vectors(session.asked(statistic, last, n_groups), users[last:], n_groups - last)

    def _check(self, statistic: Statistic, label: str, radius: float) -> None:
        """Find wrong statistics before the round begins, without data."""
        if isinstance(statistic, type) or not isinstance(statistic, Statistic):
            kind = statistic.__name__ if isinstance(statistic, type) else type(statistic).__name__
            raise TypeError(
                f"Expected a statistic such as UserMean() or MeanGradient(loss, weights), got {kind}; "
                "UserGradients(function, weights) makes one of a function."
            )
        for step in (step for step in self._plan.steps if step.label == label):
            step.mechanism.check_statistic(statistic, label, radius)
            if step.n_groups is not None and not statistic.takes_groups:
                raise ValueError(
                    f"Expected a statistic that takes groups in step {label!r}: this one is of single users."
                )
        if statistic.needs_targets and not self._data.has_targets:
            raise ValueError(
                "Expected data with targets: this statistic reads them. Pass y=, or target=, when loading."
            )
        statistic.check(self._data.n_features, self._data.dtype)

    def _vectors(self, statistic: Statistic, users: Users, n_groups: int) -> Vectors:
        """One vector per group."""
        vectors = np.asarray(self._engine.vectors(statistic, self._data, users, n_groups), dtype=np.float64)
        if vectors.ndim != 2 or len(vectors) != n_groups or vectors.shape[1] == 0:
            raise ValueError("Expected one vector per group.")
        return vectors

    def _open(self, label: str) -> tuple[Step, Session]:
        """The step's running session, or a new one if the step comes later in the plan."""
        labels = [step.label for step in self._plan.steps]
        if label not in labels:
            raise ValueError(f"Expected a step of the plan, one of {labels}; got {label!r}.")
        position = labels.index(label)
        if position < self._position or (position == self._position and self._rounds_left <= 0):
            raise RuntimeError(
                f"Expected a later step than {label!r}: it is closed, because its releases are used up or it has "
                "aborted. A new plan, charged anew, is needed for more; or if a journal could not be written, the same "
                "run begun again."
            )
        step = self._plan.steps[position]
        if position > self._position or self._session is None:
            # The session first: if starting it fails, no other step's session may serve this one.
            session = step.mechanism.start(self._noise)
            self._position, self._rounds_left, self._session = position, step.mechanism.rounds, session
        return step, self._session


def _check_memory(data: UserData | RemoteUsers, plan: Plan) -> None:
    """Refuse, by public numbers, a plan that holds more vectors at once than the limit that the data came with."""
    if not isinstance(data, UserData) or data.store is None:
        return
    held = [step for step in plan.steps if step.mechanism.block is None]
    vectors = max((step.n_groups or step.stop - step.start for step in held), default=0)
    need = plan.n_users * _ORDER_BYTES + vectors * data.n_features * _VECTOR_BYTES
    if need > data.store.memory_limit:
        why = "holds a vector of each of many users" if vectors else "holds an order of the users"
        raise ValueError(
            f"Expected memory_limit >= {in_bytes(need)}: this plan {why}. Raise it, or use solver='whitened-clip', "
            "which holds no vectors. Nothing was spent."
        )


class WarningsOff:
    """No warnings while at least one thread is inside: whether and what numpy warns depends on values.

    Filters belong to the whole process: one that leaves must not let another's warnings through.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew, with a lock that nobody holds."""
        self._lock, self._inside, self._filters = threading.Lock(), 0, warnings.catch_warnings()

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._filters = warnings.catch_warnings()
                self._filters.__enter__()
                warnings.simplefilter("ignore")

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._filters.__exit__(None, None, None)


WARNINGS_OFF = WarningsOff()
# A child made while another thread was inside would wait for a lock that nobody holds there.
os.register_at_fork(after_in_child=WARNINGS_OFF.forget)
