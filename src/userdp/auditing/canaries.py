"""Many users planted in one training, each with a coin that says in which of two versions; then guess the coins.

Each planted user pulls along a coordinate of its own, up or down by its coin. What was released in that coordinate
tells the coin, more or less. Guesses of all coins together bound epsilon (Steinke, Nasr and Jagielski 2023), so a few
trainings do where the other attacks take thousands. Guesses of several trainings add up: a coin is in one of them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from userdp.auditing.attack import Finding
from userdp.auditing.bounds import clopper_pearson, one_run_epsilon
from userdp.auditing.generated import coins
from userdp.auditing.planted import made_up, releases, training
from userdp.auditing.shapes import curve_of, scale_of_advantage, shaped_epsilon
from userdp.privacy.accounting import Budget

_GUESSED = 0.3  # of the coins are guessed for the bound without assumptions: those that show most
_LARGEST_DELTA = 1e-7  # the bound multiplies delta by the number of coins


@dataclass(frozen=True)
class Guesses:
    """How many coins there were, how many were guessed, and how many of these rightly; `right_of_all` of all coins."""

    n_coins: int
    n_guesses: int
    n_right: int
    right_of_all: int


def count_guesses(scores: np.ndarray, signs: np.ndarray) -> Guesses:
    """Guess the signs of the largest scores, and of all."""
    n_guesses = max(1, int(_GUESSED * len(signs)))
    shown = np.argsort(-np.abs(scores), kind="stable")[:n_guesses]
    right = np.sign(scores) == signs
    return Guesses(len(signs), n_guesses, int(np.sum(right[shown])), int(np.sum(right)))


def audit_canaries(
    solver: str,
    mode: str,
    budget: Budget,
    alpha: float,
    n_canaries: int,
    trainings: int,
    insecure_seed: int | None = None,
) -> Finding:
    """Guess the coins of planted users in so many trainings of a solver."""
    began = time.perf_counter()
    budget = Budget(budget.epsilon, min(budget.delta, _LARGEST_DELTA))
    run = training(solver, mode, budget, n_canaries, n_users=max(1600, 4 * n_canaries))
    data = made_up(run)
    scores, signs = [], []
    for number in range(trainings):
        drawn = coins(n_canaries, None if insecure_seed is None else insecure_seed + number)
        seen = releases(run, data, drawn, None if insecure_seed is None else insecure_seed + number)
        told = seen.totals.get(run.target.label, np.zeros(n_canaries))[:n_canaries]
        scores.append(told[np.arange(n_canaries) % len(told)])
        signs.append(drawn)
    guesses = count_guesses(np.concatenate(scores), np.concatenate(signs))
    n_coins, n_guesses, n_right = guesses.n_coins, guesses.n_guesses, guesses.n_right
    bound = one_run_epsilon(n_coins, n_guesses, n_right, budget.delta, alpha / 2)
    least, _ = clopper_pearson(guesses.right_of_all, n_coins, alpha / 2)
    scale = scale_of_advantage(curve_of(run.cost), 2 * least - 1)
    shaped, spent = shaped_epsilon(run.cost, scale, budget.delta), time.perf_counter() - began
    return Finding(solver, mode, "canaries", budget.epsilon, budget.delta, bound, shaped, trainings, spent)
