"""Real users: every solver, the tuned reference and no privacy, at several epsilons, numbers of users and of passes."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from userdp import losses
from userdp.bench.entries import entries, fits_gradients
from userdp.bench.oracle import oracle
from userdp.bench.references import logistic_optimum, scores
from userdp.bench.solving import mean_and_spread, solve_all
from userdp.bench.store import Cell, Record
from userdp.bench.tasks import Task
from userdp.data import UserData
from userdp.domains import Ball
from userdp.privacy.accounting import Budget
from userdp.solvers.problem import Problem

ORACLE, OPEN = "oracle", "not-private"
_RADIUS = 10.0
_RIDGE = 1e-4  # of the model without privacy, for few users


def competitors() -> list[str]:
    """Everybody who can be asked for."""
    return [OPEN, ORACLE, *entries()]


def real_cells(
    tasks: Sequence[Task],
    solvers: Iterable[str],
    users: Sequence[int | None],
    epsilons: Sequence[float],
    passes: Sequence[int | None],
    delta: float,
    repeats: int,
) -> list[Cell]:
    """The grid, small numbers of users first, and there no limit on passes first; None is all users, or no limit.

    Who cannot fit a plan into a limit is run once for all limits. Numbers that a data set does not have are left out.
    """
    chosen = [name for name in competitors() if name in set(solvers)]
    cells = []
    for task in tasks:
        known, everyone = task.settings(), task.n_users
        for n_users in dict.fromkeys(None if n == everyone else n for n in users):
            if n_users is not None and n_users > everyone:
                continue
            size = {"command": "real", "data": known, "users": n_users}
            for limit in sorted(set(passes), key=lambda p: -1 if p is None else p):
                for epsilon in epsilons:
                    for name in chosen:
                        settings = size | {"epsilon": epsilon, "delta": delta, "passes": limit, "solver": name}
                        if name == OPEN:
                            settings |= {"epsilon": None, "delta": None, "passes": None}
                        elif name != ORACLE and not fits_gradients(name):
                            settings |= {"passes": None}
                        cells.append(Cell(settings | {"repeats": repeats}, {"path": str(task.path)}))
    unique = list({cell.key: cell for cell in cells}.values())
    return sorted(unique, key=lambda cell: cell.settings["users"] or math.inf)


def measure_real(settings: Record, context: Record) -> Record:
    """One cell: all repeats, each on users drawn anew (with all users: rows drawn anew), scored on the test users."""
    task = Task.from_settings(settings["data"], context["path"])
    n_users, name, limit = settings["users"], settings["solver"], settings["passes"]
    parts = [task.load(seed, n_users)[0] for seed in range(settings["repeats"])]
    test, best = task.load(0, n_users)[1], best_scores(task)
    if name == OPEN:
        result = _timed(
            lambda: {"scores": [scores(logistic_optimum(part, _RIDGE), test) for part in parts]}, len(parts)
        )
    else:
        budget = Budget(settings["epsilon"], settings["delta"])
        if name == ORACLE:
            result = _timed(lambda: oracle(parts, test, budget, limit), len(parts))
        else:
            result = _private(name, task, parts, budget, limit, test)
    facts: Record = {"n_users": parts[0].n_users, "n_weights": parts[0].n_features}
    facts |= {"best_log_loss": best[0], "best_auc": best[1], "constant_log_loss": _constant(test)}
    if "refusal" in result:
        return result | facts
    log_losses, aucs = zip(*result.pop("scores"), strict=True)
    measured: Record = {"log_loss": list(log_losses), "auc": mean_and_spread(list(aucs))}
    return result | facts | measured | {"excess": mean_and_spread([value - best[0] for value in log_losses])}


def _private(name: str, task: Task, parts: list[UserData], budget: Budget, limit: int | None, test: UserData) -> Record:
    n_users, d = parts[0].n_users, parts[0].n_features
    problem = Problem(losses.logistic, Ball(_RADIUS), d, task.longest(d))
    most = None if limit is None else limit * n_users * task.cap
    return solve_all(name, problem, parts, n_users, task.cap, budget, most, lambda weights: scores(weights, test))


def _timed(work: Any, runs: int) -> Record:
    """With the seconds a run, where it is told as for solvers."""
    started = time.perf_counter()
    result: Record = work()
    return result | {"seconds": [(time.perf_counter() - started) / runs] * runs}


@functools.lru_cache(maxsize=4)
def best_scores(task: Task) -> tuple[float, float]:
    """Log loss and AUC of the model of all training users that protects nobody."""
    train, test = task.load()
    return scores(logistic_optimum(train), test)


def _constant(test: UserData) -> float:
    """Log loss of the best constant."""
    share = float(np.clip(np.mean(test.targets), 1e-12, 1 - 1e-12))
    return -share * math.log(share) - (1 - share) * math.log(1 - share)
