"""One entry run on several data sets of the same public numbers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from userdp.bench.entries import option_of, refusal_of
from userdp.data.users import UserData
from userdp.privacy.accounting import Budget
from userdp.privacy.curator import Curator
from userdp.privacy.ledger import Ledger
from userdp.solvers.base import run
from userdp.solvers.choose import advice_on
from userdp.solvers.problem import Problem


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
    """Scores and seconds of one seeded run a part, planned once, or the refusal. NOT PRIVATE.

    `estimate` is what the plan shows of the excess risk beforehand; `warned` whether it says that noise or
    clipping may dominate.
    """
    started = time.perf_counter()
    option = option_of(entry, problem, n_users, rows_per_user, budget, max_gradients)
    planned = time.perf_counter() - started
    if not option.feasible:
        return refusal_of(option)
    found, seconds, aborted, told = [], [], 0, []
    for seed, data in enumerate(parts):
        started = time.perf_counter()
        curator = Curator(data, option.plan.certified, Ledger(budget), insecure_seed=seed)
        result = run(problem, option.plan, curator)
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
