"""Attacks on whole trainings: users planted into the shipped solver, curator, mechanisms and noise.

Privacy claims are about any vectors that users may give. So planted users need no data: they pull as far as the step's
mechanism lets them, all others give 0. Attacks:

    canaries      many users, each at +edge or -edge of a coordinate of its own, as a fair coin says; guesses of all
                  coins from few trainings bound epsilon (Steinke, Nasr and Jagielski 2023)
    edges         one user at +edge or -edge in every step; all releases that it is part of are seen
    membership    a user's rows are all of one class or of the other; the model's loss on these rows is seen
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from userdp.auditing.bounds import (
    Finding,
    attacked,
    clopper_pearson,
    one_run_epsilon,
    scale_of_advantage,
    shaped_epsilon,
)
from userdp.auditing.pairs import edge
from userdp.auditing.plans import best_weights, fit_of_a_quantile, fit_with_intervals
from userdp.data.users import UserData
from userdp.domains import Ball
from userdp.engines.local import Contribution
from userdp.losses import logistic
from userdp.privacy.accounting import Budget, Cost, epsilon_at
from userdp.privacy.clip import Clip
from userdp.privacy.curator import Curator
from userdp.privacy.ledger import Ledger
from userdp.privacy.mechanism import Integers, Mechanism, Users, Vectors
from userdp.privacy.plan import Step
from userdp.solvers.problem import Problem
from userdp.solvers.solver import SOLVERS, SolverPlan
from userdp.solvers.solver import run as solve
from userdp.statistics.gradients import Statistic

ROWS = 2
_ROOM = 0.7  # of an edge: planted users in different directions are then within an edge of each other
_GUESSED = 0.3  # of the coins are guessed for the bound without assumptions: those that show most
_LARGEST_DELTA = 1e-7  # the bound multiplies delta by the number of coins
_MOST_USERS = 400_000
VARIANTS = {"whitened-clip, with intervals": fit_with_intervals, "whitened-clip, a quantile": fit_of_a_quantile}


@dataclass(frozen=True)
class Training:
    """A solver's plan for so many users and features, ready to be run again and again."""

    problem: Problem
    plan: SolverPlan
    budget: Budget

    @property
    def n_users(self) -> int:
        return self.plan.certified.n_users

    @property
    def steps(self) -> tuple[Step, ...]:
        return self.plan.certified.steps

    @property
    def target(self) -> Step:
        """The step that is attacked: the one whose mechanism costs its users most (the first of such)."""
        delta = self.budget.delta
        return max(self.steps, key=lambda step: (round(epsilon_at(step.mechanism.cost, delta), 6), step.n_users))

    @property
    def cost(self) -> Cost:
        """What the attacked users pay, over all steps they are in."""
        return self.plan.certified.cost_of(self.target.start)

    def run(self, curator: Curator) -> NDArray[np.float64]:
        """Train once; the weights."""
        return solve(self.problem, self.plan, curator).weights

    def generated_users(self) -> UserData:
        """Nobody's data, so ordinary random numbers will do: rows of length at most 1, and classes."""
        X = np.random.default_rng(0).normal(size=(self.n_users * ROWS, self.problem.n_features))
        X /= np.maximum(1.0, np.linalg.norm(X, axis=1))[:, None]
        return UserData(X, (X[:, 0] > 0).astype(np.float64), np.arange(self.n_users + 1) * ROWS)


def training(solver: str, mode: str, budget: Budget, n_features: int, n_users: int = 800) -> Training:
    """A plan for so many users, or twice as many, and so on, if it takes more; raises the refusal if none will do.

    Those of `VARIANTS` have numbers of users and features of their own.
    """
    if solver in VARIANTS:
        return Training(*VARIANTS[solver](budget), budget)
    problem, chosen = Problem(logistic, Ball(1.0), n_features, 1.0), SOLVERS[solver, mode]
    while True:
        # Few steps: what is attacked costs the same budget however many there are.
        limit = {"max_gradients": 60 * n_users * ROWS} if chosen.fits_gradients else {}
        try:
            return Training(problem, chosen.plan(problem, n_users, ROWS, budget, **limit), budget)
        except ValueError:
            n_users *= 2
            if n_users > _MOST_USERS:
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

    def place(self, data: Any) -> Any:
        return data

    def vectors(self, statistic: Statistic, data: Any, users: Users, n_groups: int) -> Vectors:
        assert self.mechanism is not None
        vectors = np.zeros_like(statistic(data, users, n_groups))
        place = np.full(data.n_users, -1)
        place[users] = np.repeat(np.arange(n_groups), [len(part) for part in np.array_split(users, n_groups)])
        tested = hasattr(self.mechanism, "slack") or hasattr(self.mechanism, "selection_failure")
        far = edge(self.mechanism, self.radius) * (_ROOM if len(self.users) > 1 and tested else 1.0)
        for number, (user, sign) in enumerate(zip(self.users, self.signs, strict=True)):
            if place[user] >= 0:
                column, pull = (2 * number + (sign < 0), 1) if _is_acute(self.mechanism) else (number, sign)
                vectors[place[user], column % vectors.shape[1]] += pull * far
        return vectors

    def total(self, statistic: Statistic, contribution: Contribution, data: Any, users: Users) -> Integers:
        total: Integers = contribution(self.vectors(statistic, data, users, len(users)))
        return total


class WatchedCurator(Curator):
    """Plants users at places of the attacked step, and keeps what is released: NOT PRIVATE, for generated users.

    `seen` are the releases of each step, in units of their radius, summed over its rounds.
    """

    def __init__(self, run: Training, data: UserData, signs: NDArray[np.int64], insecure_seed: int | None) -> None:
        self._planted = PlantedEngine(np.zeros(0, dtype=np.int64), signs)
        self._mechanisms = {step.label: step.mechanism for step in run.steps}
        self.seen: dict[str, Vectors] = {}
        ledger = Ledger(run.budget)
        super().__init__(data, run.plan.certified, ledger, engine=self._planted, insecure_seed=insecure_seed)
        places = np.linspace(run.target.start, run.target.stop - 1, len(signs)).astype(np.int64)
        self._planted.users = self._order[places]  # guarantees hold for every order, also a known one

    def release(self, label: str, statistic: Statistic, radius: float) -> Vectors:
        self._planted.mechanism, self._planted.radius = self._mechanisms[label], float(radius)
        released = super().release(label, statistic, radius)
        self.seen[label] = self.seen.get(label, 0.0) + released / radius
        return released


def releases(
    run: Training, data: UserData, signs: NDArray[np.int64], insecure_seed: int | None
) -> dict[str, NDArray[np.float64]]:
    """What is seen of one training with planted users."""
    curator = WatchedCurator(run, data, signs, insecure_seed)
    run.run(curator)
    return curator.seen


def edge_features(run: Training, data: UserData, sign: int, insecure_seed: int | None) -> list[float]:
    """What one user at an edge of the first coordinate leaves: that coordinate of each step it is in.

    In steps of acute vectors, the first coordinate less the second. Where all noise is Gaussian, of clipped means of
    all users, one number: the best test of all these.
    """
    seen, start = releases(run, data, np.array([sign]), insecure_seed), run.target.start
    own = [(step.mechanism, seen.get(step.label, np.zeros(2))) for step in run.steps if step.start <= start < step.stop]
    weighed = [(best_weights(clip), mean) for clip, mean in own if isinstance(clip, Clip) and clip.cost.gaussian]
    if len(weighed) == len(own):
        return [sum(float(weights @ mean[: weights.size]) for weights, mean in weighed)]
    return [float(mean[0] - mean[1] if _is_acute(mechanism) else mean[0]) for mechanism, mean in own]


def _is_acute(mechanism: Mechanism) -> bool:
    return getattr(mechanism, "acute", False)


def audit_edges(
    solver: str, mode: str, budget: Budget, alpha: float, trainings: int, insecure_seed: int | None = None
) -> Finding:
    """One user at +edge or -edge in every step; all that it takes part in is seen."""
    run = training(solver, mode, budget, n_features=2)
    data = run.generated_users()

    def play(version: int, number: int) -> list[float]:
        return edge_features(run, data, 1 - 2 * version, _seed(insecure_seed, version, number))

    return attacked((solver, mode, "edges"), budget.epsilon, run.cost, play, trainings, budget.delta, alpha)


def audit_membership(
    solver: str, mode: str, budget: Budget, alpha: float, trainings: int, insecure_seed: int | None = None
) -> Finding:
    """A user's rows are all of one class, or of the other; seen is the loss of the released model on these rows."""
    run = training(solver, mode, budget, n_features=2)
    data, versions = run.generated_users(), []
    for target in (0.0, 1.0):
        rows, targets = data.rows.copy(), data.targets.copy()
        rows[:ROWS], targets[:ROWS] = (1.0, 0.0), target
        versions.append(UserData(rows, targets, data.offsets))

    def play(version: int, number: int) -> list[float]:
        """The loss of the user's row with the one class less that with the other."""
        seed = _seed(insecure_seed, version, number)
        curator = Curator(versions[version], run.plan.certified, Ledger(budget), insecure_seed=seed)
        with np.errstate(all="ignore"):
            losses = run.problem.loss.value(np.full(2, float(run.run(curator)[0])), np.array([0.0, 1.0]))
        return [float(losses[0] - losses[1])]

    return attacked((solver, mode, "membership"), budget.epsilon, run.cost, play, trainings, budget.delta, alpha)


def _seed(insecure_seed: int | None, version: int, number: int) -> int | None:
    return None if insecure_seed is None else 2 * (insecure_seed + number) + (version == 0)


def audit_canaries(
    solver: str,
    mode: str,
    budget: Budget,
    alpha: float,
    n_canaries: int,
    trainings: int,
    insecure_seed: int | None = None,
) -> Finding:
    """Guess the coins of planted users in so many trainings of a solver; each coin is in one of them."""
    began, delta = time.perf_counter(), min(budget.delta, _LARGEST_DELTA)
    run = training(solver, mode, Budget(budget.epsilon, delta), n_canaries, n_users=max(1600, 4 * n_canaries))
    data, scores, signs = run.generated_users(), [], []
    for number in range(trainings):
        seed = None if insecure_seed is None else insecure_seed + number
        signs.append(2 * np.random.default_rng(seed).integers(2, size=n_canaries) - 1)
        seen = releases(run, data, signs[-1], seed).get(run.target.label, np.zeros(n_canaries))[:n_canaries]
        scores.append(seen[np.arange(n_canaries) % len(seen)])
    n_coins = n_canaries * trainings
    n_guesses, n_right, right_of_all = count_guesses(np.concatenate(scores), np.concatenate(signs))
    bound = one_run_epsilon(n_coins, n_guesses, n_right, delta, alpha / 2)
    least, _ = clopper_pearson(right_of_all, n_coins, alpha / 2)
    shaped = shaped_epsilon(run.cost, scale_of_advantage(run.cost, 2 * least - 1), delta)
    spent = time.perf_counter() - began
    return Finding(solver, mode, "canaries", budget.epsilon, delta, bound, shaped, trainings, spent)


def count_guesses(scores: np.ndarray, signs: np.ndarray) -> tuple[int, int, int]:
    """How many signs are guessed, those of the largest scores; how many of these rightly; and how many of all."""
    n_guesses = max(1, int(_GUESSED * len(signs)))
    shown = np.argsort(-np.abs(scores), kind="stable")[:n_guesses]
    right = np.sign(scores) == signs
    return n_guesses, int(np.sum(right[shown])), int(np.sum(right))
