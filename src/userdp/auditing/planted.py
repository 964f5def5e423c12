"""Users planted into a full training: the engine gives their vectors, the curator shows what was released.

Privacy claims are about any vectors that users may give. So here they need no data: planted users pull as far as the
step's mechanism lets them, all others give 0, and everything else is the shipped solver, curator, mechanism and noise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from userdp.auditing.generated import made_up_users
from userdp.auditing.pairs import edge
from userdp.domains import Ball
from userdp.losses import logistic
from userdp.privacy.accounting import Budget, Cost, epsilon_at
from userdp.privacy.curator import Curator
from userdp.privacy.ledger import Ledger
from userdp.privacy.mechanisms.base import Mechanism, Users, Vectors
from userdp.privacy.plan import Step
from userdp.solvers.base import SolverPlan
from userdp.solvers.base import run as solve
from userdp.solvers.problem import Problem
from userdp.solvers.registry import SOLVERS
from userdp.vectors.gradients import Statistic

ROWS = 2
_ROOM = (
    0.7  # several planted users at this fraction of an edge, in different directions, are within an edge of each other
)


@dataclass(frozen=True)
class Training:
    """A solver's plan for so many users and features, ready to be run again and again."""

    solver: str
    mode: str
    problem: Problem
    n_users: int
    plan: SolverPlan
    budget: Budget

    @property
    def steps(self) -> tuple[Step, ...]:
        steps: tuple[Step, ...] = self.plan.certified.steps
        return steps

    @property
    def target(self) -> Step:
        """The step that is attacked: the one whose mechanism costs its users most (the first of such)."""
        return max(self.steps, key=lambda step: (round(self._epsilon(step.mechanism.cost), 6), step.n_users))

    @property
    def cost(self) -> Cost:
        """What the attacked users pay, over all steps they are in."""
        cost: Cost = self.plan.certified.cost_of(self.target.start)
        return cost

    def _epsilon(self, cost: Cost) -> float:
        return epsilon_at(cost, self.budget.delta)

    def run(self, curator: Curator) -> NDArray[np.float64]:
        """Train once; the weights."""
        weights: NDArray[np.float64] = solve(self.problem, self.plan, curator).weights
        return weights


def training(
    solver: str, mode: str, budget: Budget, n_features: int, n_users: int = 800, most_users: int = 400_000
) -> Training:
    """A plan for so many users, or twice as many, and so on, if it takes more; raises the refusal if none will do."""
    problem = Problem(logistic, Ball(1.0), n_features, 1.0)
    chosen = SOLVERS[solver, mode]
    while True:
        # Few steps: what is attacked costs the same budget however many there are.
        limit = {"max_gradients": 60 * n_users * ROWS} if chosen.fits_gradients else {}
        try:
            return Training(
                solver, mode, problem, n_users, chosen.plan(problem, n_users, ROWS, budget, **limit), budget
            )
        except ValueError:
            n_users *= 2
            if n_users > most_users:
                raise


@dataclass
class PlantedEngine:
    """Gives 0 for everyone but the planted users, whose vectors are at +edge or -edge of a coordinate of their own.

    Where vectors are acute by the statistic, they are at the edge of one of two coordinates of their own.
    """

    users: Users
    signs: NDArray[np.int64]
    mechanism: Mechanism | None = None
    radius: float = 1.0

    def vectors(self, statistic: Statistic, data: Any, users: Users, n_groups: int) -> Vectors:
        assert self.mechanism is not None
        honest = statistic(data, users, n_groups)
        vectors = np.zeros_like(honest)
        place = np.full(data.n_users, -1)
        place[users] = np.repeat(np.arange(n_groups), [len(part) for part in np.array_split(users, n_groups)])
        far = edge(self.mechanism, self.radius) * (_ROOM if len(self.users) > 1 and self._tested else 1.0)
        for number, (user, sign) in enumerate(zip(self.users, self.signs, strict=True)):
            if place[user] >= 0:
                column, pull = (2 * number + (sign < 0), 1) if _is_acute(self.mechanism) else (number, sign)
                vectors[place[user], column % vectors.shape[1]] += pull * far
        return vectors

    @property
    def _tested(self) -> bool:
        return hasattr(self.mechanism, "slack") or hasattr(self.mechanism, "selection_failure")


@dataclass
class Seen:
    """Releases of each step, in units of their radius, summed over its rounds."""

    totals: dict[str, NDArray[np.float64]] = field(default_factory=dict)

    def add(self, label: str, vector: Vectors) -> None:
        self.totals[label] = self.totals.get(label, np.zeros(len(vector))) + vector


class OpenCurator(Curator):
    """A curator of made-up users that tells the engine about steps and keeps what it releases."""

    def watch(self, engine: PlantedEngine, steps: tuple[Step, ...]) -> Seen:
        """Start keeping releases."""
        self._planted, self._steps_of = engine, {step.label: step for step in steps}
        self._seen = Seen()
        return self._seen

    @property
    def order(self) -> Users:
        """Which user is where; guarantees hold for every order, also a known one."""
        return self._order

    def release(self, label: str, statistic: Statistic, radius: float) -> Vectors:
        self._planted.mechanism, self._planted.radius = self._steps_of[label].mechanism, float(radius)
        released = super().release(label, statistic, radius)
        self._seen.add(label, released / radius)
        return released


def releases(training: Training, data: Any, signs: NDArray[np.int64], insecure_seed: int | None) -> Seen:
    """Train once with users planted at the first places of the attacked step."""
    engine = PlantedEngine(np.zeros(0, dtype=np.int64), signs)
    ledger = Ledger(training.budget)
    curator = OpenCurator(data, training.plan.certified, ledger, engine=engine, insecure_seed=insecure_seed)
    start = training.target.start
    places = np.linspace(start, training.target.stop - 1, len(signs)).astype(np.int64)
    engine.users = curator.order[places]
    seen = curator.watch(engine, training.steps)
    training.run(curator)
    return seen


def edge_features(training: Training, data: Any, sign: int, insecure_seed: int | None) -> list[float]:
    """What one user at an edge of the first coordinate leaves: that coordinate of each step it is in.

    In steps of acute vectors, the first coordinate less the second.
    """
    seen = releases(training, data, np.array([sign]), insecure_seed).totals
    start = training.target.start
    mine = [step for step in training.steps if step.start <= start < step.stop]
    return [_told(step, seen[step.label]) if step.label in seen else 0.0 for step in mine]


def _told(step: Step, released: NDArray[np.float64]) -> float:
    return float(released[0] - released[1] if _is_acute(step.mechanism) else released[0])


def _is_acute(mechanism: Mechanism) -> bool:
    return getattr(mechanism, "acute", False)


def made_up(training: Training) -> Any:
    """Users for a training; what is in their rows is not looked at."""
    return made_up_users(training.n_users, ROWS, training.problem.n_features)
