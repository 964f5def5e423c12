"""Real users: every solver, the tuned reference and no privacy, at several epsilons, numbers of users and of passes."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

import numpy as np

from userdp.data.users import UserData
from userdp.domains import Ball
from userdp.privacy.accounting import Budget
from userdp.solvers.planner import Solver
from userdp.solvers.problem import Problem
from userdp_research.bench.cells import BUDGET, Cell, Record
from userdp_research.bench.oracle import oracle
from userdp_research.bench.references import Yardstick, user_optimum, yardstick
from userdp_research.bench.scoring import HeldOut, collect
from userdp_research.bench.solving import NON_PRIVATE, ORACLE, entries, fits_gradients, mean_and_spread, solve_all
from userdp_research.bench.tasks import Task

_RIDGE = 1e-6  # of the model without privacy, for few users


def competitors() -> list[str]:
    """Everybody who can be asked for."""
    return [NON_PRIVATE, ORACLE, *entries()]


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

    Who cannot fit a plan into a limit is run once for all limits. Numbers that a data set does not have are left out,
    and so is the tuned reference where the task is regression.
    """
    asked, cells = [name for name in competitors() if name in set(solvers)], {}
    limits = sorted(set(passes), key=lambda p: -1 if p is None else p)
    for task in tasks:
        everyone = task.n_users
        sizes = [n for n in dict.fromkeys(None if n == everyone else n for n in users) if n is None or n <= everyone]
        chosen = [name for name in asked if name != ORACLE or task.loss.classifies]
        size = {"command": "real", "data": task.settings(), "delta": delta, "repeats": repeats}
        for n_users, limit, epsilon, name in product(sizes, limits, epsilons, chosen):
            settings = size | {"users": n_users, "epsilon": epsilon, "passes": limit, "solver": name}
            if name == NON_PRIVATE:
                settings |= {"epsilon": None, "delta": None, "passes": None}
            elif name != ORACLE and not fits_gradients(name):
                settings |= {"passes": None}
            cell = Cell(settings, {"path": str(task.path)})
            cells[cell.key] = cell
    return sorted(cells.values(), key=lambda cell: cell.settings["users"] or math.inf)


def measure_real(settings: Record, context: Record) -> Record:
    """One cell: all repeats, each on users drawn anew (with all users: rows drawn anew), scored on the test users.

    Excess is that of the users' mean loss over the optimum of all training users with all their rows; `cut_excess` over
    that of all training users with as many rows as are kept.
    """
    task = Task.from_settings(settings["data"], context["path"])
    n_users, name, limit = settings["users"], settings["solver"], settings["passes"]
    parts = [task.load(seed, n_users)[0] for seed in range(settings["repeats"])]
    test, best = held_out(task), best_scores(task.uncapped)
    budget = None if name == NON_PRIVATE else Budget(*(settings[name] for name in BUDGET if name in settings))
    if budget is None:
        result = _timed(
            lambda: {"scores": [test.score(user_optimum(task.loss, part, _RIDGE)) for part in parts]}, len(parts)
        )
    elif name == ORACLE:
        result = _timed(lambda: oracle(parts, test, budget, limit), len(parts))
    else:
        result = _private(name, task, parts, budget, limit, test)
    n, unit = parts[0].n_users, task.unit
    facts: Record = {"n_users": n, "n_weights": parts[0].n_features, "best": best, "constant_loss": test.constant()}
    facts |= _yardstick(task).facts(n, budget, unit)
    if "refusal" in result:
        return result | facts
    if result.get("estimate") is not None:
        result["estimate"] *= unit**2
    found = result.pop("scores")
    cut = _cut_loss(task)
    others = {
        "row_excess": mean_and_spread([one["row_loss"] - best["row_loss"] for one in found]),
        "cut_excess": mean_and_spread([one["loss"] - cut for one in found]),
    }
    return result | facts | others | collect(found, lambda one: one["loss"] - best["loss"])


def _private(name: str, task: Task, parts: list[UserData], budget: Budget, limit: int | None, test: HeldOut) -> Record:
    n_users, d = parts[0].n_users, parts[0].n_features
    target_bound = None if task.loss.classifies else 1.0
    problem = Problem(task.loss, Ball(Solver(name).radius), d, task.longest(d), target_bound, intercept=True)
    rows = task.cap or int(np.diff(parts[0].offsets).max())
    most = None if limit is None else limit * n_users * rows
    return solve_all(name, problem, parts, n_users, rows, budget, most, test.score)


def _timed(work: Any, runs: int) -> Record:
    """With the seconds per run, where it is told as for solvers."""
    started = time.perf_counter()
    result: Record = work()
    return result | {"seconds": [(time.perf_counter() - started) / runs] * runs}


def held_out(task: Task) -> HeldOut:
    """The task's test users, with all their rows."""
    return HeldOut(task.loss, task.load_test(), task.middle, task.unit)


@functools.lru_cache(maxsize=4)
def _best(task: Task) -> np.ndarray:
    """The non-private model of all training users; `task` is uncapped."""
    return user_optimum(task.loss, task.load_train())


@functools.lru_cache(maxsize=4)
def best_scores(task: Task) -> Record:
    """Its scores, but for the bins."""
    found = held_out(task).score(_best(task))
    return {name: value for name, value in found.items() if name != "bins"}


@functools.lru_cache(maxsize=16)
def _cut_loss(task: Task) -> float:
    """Loss of the non-private model of all training users, with as many rows as the task keeps."""
    return float(held_out(task).score(user_optimum(task.loss, task.load_train()))["loss"])


@functools.lru_cache(maxsize=16)
def _yardstick(task: Task) -> Yardstick:
    """Of all training users, with as many rows as the task keeps."""
    return yardstick(task.loss, task.load_train(), _best(task.uncapped))
