"""Attacks on whole trainings that look at one user: at an edge in every release, or in the data with the model only."""

from __future__ import annotations

import time

import numpy as np

from userdp.auditing.attack import Finding, both_bounds
from userdp.auditing.generated import made_up_users
from userdp.auditing.planted import ROWS, Training, edge_features, made_up, training
from userdp.data.users import UserData
from userdp.privacy.accounting import Budget
from userdp.privacy.curator import Curator
from userdp.privacy.ledger import Ledger


def audit_edges(
    solver: str, mode: str, budget: Budget, alpha: float, trainings: int, insecure_seed: int | None = None
) -> Finding:
    """One user at +edge or -edge in every step; all that it takes part in is seen."""
    began = time.perf_counter()
    run = training(solver, mode, budget, n_features=2)
    data = made_up(run)
    seen = [
        np.array([edge_features(run, data, sign, _seed(insecure_seed, sign, k)) for k in range(trainings)])
        for sign in (1, -1)
    ]
    return _finding(run, "edges", seen, alpha, began)


def audit_membership(
    solver: str, mode: str, budget: Budget, alpha: float, trainings: int, insecure_seed: int | None = None
) -> Finding:
    """A user's rows are all of one class, or of the other; seen is the loss of the released model on these rows."""
    began = time.perf_counter()
    run = training(solver, mode, budget, n_features=2)
    base, seen = made_up_users(run.n_users, ROWS, 2), []
    for version in (0, 1):
        rows, targets = base.rows.copy(), base.targets.copy()
        rows[:ROWS], targets[:ROWS] = (1.0, 0.0), float(version)
        data, losses = UserData(rows, targets, base.offsets), []
        for k in range(trainings):
            curator = Curator(
                data, run.plan.certified, Ledger(budget), insecure_seed=_seed(insecure_seed, 1 - 2 * version, k)
            )
            losses.append([_loss_difference(run, curator, rows[0])])
        seen.append(np.array(losses))
    return _finding(run, "membership", seen, alpha, began)


def _loss_difference(run: Training, curator: Curator, row: np.ndarray) -> float:
    """The loss of the user's row with its own class less that with the other one."""
    prediction = float(row @ run.run(curator))
    loss = run.problem.loss
    return float(loss.value(prediction, 0.0) - loss.value(prediction, 1.0))


def _seed(insecure_seed: int | None, sign: int, number: int) -> int | None:
    return None if insecure_seed is None else 2 * (insecure_seed + number) + (sign > 0)


def _finding(run: Training, attack: str, seen: list[np.ndarray], alpha: float, began: float) -> Finding:
    delta = run.budget.delta
    bounds = both_bounds(seen[0], seen[1], run.cost, delta, alpha)
    names, spent = (run.solver, run.mode, attack), time.perf_counter() - began
    return Finding(*names, run.budget.epsilon, delta, *bounds, len(seen[0]), spent)
