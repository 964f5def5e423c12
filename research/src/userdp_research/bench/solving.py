"""Who is compared, and one of them run on several data sets of the same public numbers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from userdp.data.users import UserData
from userdp.privacy.accounting import Budget
from userdp.privacy.curator import Curator
from userdp.privacy.ledger import Ledger
from userdp.solvers.planner import Option, advice_on, choose, consider, needs
from userdp.solvers.problem import Problem
from userdp.solvers.solver import SOLVERS, run

AUTO, ORACLE, NON_PRIVATE = "auto", "oracle", "not-private"
_PAPER = ":paper"


def entries() -> list[str]:
    """`auto`, then every solver that the planner knows, as `phased-sgd` (tight) or `phased-sgd:paper`."""
    return [AUTO, *(name if mode == "calibrated" else f"{name}:{mode}" for name, mode in SOLVERS)]


def solver_and_mode(entry: str) -> tuple[str, str]:
    """
    >>> solver_and_mode("accelerated:paper"), solver_and_mode("auto")
    (('accelerated', 'paper'), ('auto', 'calibrated'))
    """
    return (entry.removesuffix(_PAPER), "paper") if entry.endswith(_PAPER) else (entry, "calibrated")


def fits_gradients(entry: str) -> bool:
    """Whether its plan depends on a limit on gradients; if not, one run serves for all limits."""
    return entry == AUTO or SOLVERS[solver_and_mode(entry)].fits_gradients


def _option(
    entry: str, problem: Problem, n_users: int, rows_per_user: int, budget: Budget, max_gradients: int | None
) -> Option:
    """The entry's plan, or its refusal."""
    solver, mode = solver_and_mode(entry)
    if entry != AUTO:
        return consider(solver, mode, problem, n_users, rows_per_user, budget, max_gradients)
    try:
        return choose(problem, n_users, rows_per_user, budget, max_gradients=max_gradients)
    except ValueError as error:
        return Option(solver, mode, refusal=error.with_traceback(None))


def solve_all(
    entry: str,
    problem: Problem,
    parts: Iterable[UserData],
    n_users: int,
    rows_per_user: int,
    budget: Budget,
    max_gradients: int | None,
    score: Callable[[np.ndarray], Any],
) -> dict[str, Any]:
    """Scores and seconds of one seeded run per part, planned once, or the refusal. NOT PRIVATE.

    `estimate` is what the plan shows of the excess risk beforehand; `warned` whether it says that noise or
    clipping may dominate.
    """
    started = time.perf_counter()
    option = _option(entry, problem, n_users, rows_per_user, budget, max_gradients)
    planned = time.perf_counter() - started
    if not option.feasible:
        return {"refusal": needs(option), "enough_users": option.enough_users}
    found, seconds, aborted, told = [], [], 0, []
    for seed, data in enumerate(parts):
        started = time.perf_counter()
        result = run(problem, option.plan, Curator(data, option.plan.certified, Ledger(budget), insecure_seed=seed))
        seconds.append(time.perf_counter() - started)
        aborted += result.aborted
        told.append(result.bound)
        found.append(score(result.weights))
    return {
        "scores": found,
        "taken": option.solver,
        "halted": aborted,
        "n_gradients": int(option.n_gradients),
        "passes": option.n_gradients / (n_users * rows_per_user),
        "n_releases": int(option.n_releases),
        "planned_estimate": float(option.bound) if math.isfinite(option.bound) else None,
        "estimate": float(np.mean(told)) if option.refined else float(option.bound),
        "warned": bool(advice_on(problem, option)),
        "seconds": seconds,
        "seconds_of_planning": planned,
    }


def mean_and_spread(values: list[float]) -> dict[str, Any]:
    """Each value, their mean and their standard deviation."""
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return {"values": [float(value) for value in values], "mean": float(np.mean(values)), "spread": spread}
