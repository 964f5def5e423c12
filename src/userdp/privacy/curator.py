"""The curator: the only holder of data and randomness. It releases what a certified plan says, in order.

Everything that leaves goes through `release`. A solver holds the curator, not the data: with a bug it can waste
accuracy, but not privacy.
"""

from __future__ import annotations

import math
from typing import Protocol

from userdp.data import UserData
from userdp.engines.local import LocalEngine
from userdp.privacy.ledger import Ledger
from userdp.privacy.mechanism import Halted, Session, Users, Vectors
from userdp.privacy.noise import noise_source
from userdp.privacy.plan import Plan, Step
from userdp.statistics import Statistic


class Engine(Protocol):
    """Maps a statistic over users; knows no algorithm and draws nothing at random."""

    def vectors(self, statistic: Statistic, data: UserData, users: Users, n_groups: int) -> Vectors: ...


class Curator:
    """Takes the data after certifying and charging the plan, and gives out its releases.

    Guarantee: all that leaves, halts included, is within the ledger's budget for user-level differential privacy under
    replacement of one user's whole data, provided each vector of a statistic depends on the users of its own group
    only. With `insecure_seed` nothing is private, and the ledger says so.

    The order of events is the guarantee: certify (no data), check the public number of users, charge the ledger, and
    only then draw the users' order and look at data.
    """

    def __init__(
        self,
        data: UserData,
        plan: Plan,
        ledger: Ledger,
        *,
        purpose: str = "",
        engine: Engine | None = None,
        insecure_seed: int | None = None,
    ) -> None:
        plan.certify(ledger.budget)
        if data.n_users != plan.n_users:
            raise ValueError(
                f"Expected data of n_users={plan.n_users}, as the plan was made for; it has {data.n_users}. "
                "Plan again with that number. Nothing was spent."
            )
        ledger.charge(plan, purpose, insecure_seed)
        self._data, self._plan, self._engine = data, plan, engine or LocalEngine()
        self._noise = noise_source(insecure_seed)
        self._order = self._noise.permutation(plan.n_users)
        self._position = -1
        self._rounds_left = 0
        self._session: Session | None = None

    def release(self, label: str, statistic: Statistic, radius: float) -> Vectors:
        """The next release of the step `label`; raises `Halted` if its private test fails.

        `radius` and `statistic` may depend on public inputs and earlier releases. Steps come in the plan's order:
        later ones may be skipped to, earlier ones are closed. A round is used up even if it fails.
        """
        if not (math.isfinite(radius) and radius > 0):
            raise ValueError(f"Expected radius={radius} to be finite and > 0.")
        statistic.check(self._data.n_features, self._data.rows.dtype)
        step, session = self._open(label)
        self._rounds_left -= 1
        users = session.choose(self._order[step.start : step.stop])
        n_groups = len(users) if step.n_groups is None else step.n_groups
        try:
            return session.release(self._engine.vectors(statistic, self._data, users, n_groups), radius)
        except Halted:
            self._rounds_left = 0
            raise

    def _open(self, label: str) -> tuple[Step, Session]:
        """The step's running session, or a new one if the step comes later in the plan."""
        labels = [step.label for step in self._plan.steps]
        if label not in labels:
            raise ValueError(f"Expected a step of the plan, one of {labels}; got {label!r}.")
        position = labels.index(label)
        if position < self._position or (position == self._position and self._rounds_left == 0):
            raise RuntimeError(f"Expected a later step than {label!r}: it is closed, its releases are used up.")
        step = self._plan.steps[position]
        if position > self._position or self._session is None:
            self._position, self._rounds_left = position, step.mechanism.rounds
            self._session = step.mechanism.start(self._noise)
        return step, self._session
