"""The paper's summary table with measured columns, on generated users.

- slopes: how the gradients of a solver's plan grow with users, rows and smoothness, from plans alone at large sizes,
  beside the theorem's exponents; epsilon = L = R = 1, as many weights as users, a user's rows independent.
- risk: excess risk, gradients and seconds at equal privacy, of seeded runs, and which assumptions of the solver's
  theorem the numbers break.

Paper: its summary table and section 1; Theorems 2.1, 3.2 and 4.1. Logarithms are left out.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from userdp import losses
from userdp.data.users import UserData
from userdp.domains import Ball
from userdp.paper import paper_theorems
from userdp.privacy.accounting import Budget, BudgetExceeded
from userdp.solvers.problem import Problem
from userdp.solvers.solver import SOLVERS, SolverPlan
from userdp_research.bench.cells import Cell, Record
from userdp_research.bench.generated import generate
from userdp_research.bench.references import Yardstick, mean_loss, optimum, user_optimum, yardstick
from userdp_research.bench.solving import AUTO, entries, mean_and_spread, solve_all, solver_and_mode
from userdp_research.problems import IndependentRows

SMOOTH, NON_SMOOTH = "smooth", "kinks"  # as files of results name them
PROBLEMS = {"logistic": ("logistic", 0.0), "hinge": ("hinge", 0.0), "strongly convex": ("logistic", 0.05)}
_RADIUS, _ROW_NORM = 4.0, 2.0
_TEST_USERS, _TEST_ROWS, _TEST_SEED = 20_000, 10, 10_000
_DELTA = 1e-6
_SIZES = {
    "n": [float(round(n)) for n in np.geomspace(1e5, 10**7.5, 6)],
    "m": [float(round(m)) for m in np.geomspace(10, 10_000, 7)],
    "beta": [float(beta) for beta in np.geomspace(1, 1000, 7)],
}
_SWEEPS = ((SMOOTH, "n"), (SMOOTH, "m"), (SMOOTH, "beta"), (NON_SMOOTH, "n"), (NON_SMOOTH, "m"))
# In front of K_i, so that it is between what a test needs and n_i at these sizes (Alg. 3, line 4).
_FACTORS = {SMOOTH: 60.0, NON_SMOOTH: 2000.0}
_FEWEST_POINTS = 3  # through which a slope is fitted

EXPONENTS: dict[tuple[str, str], dict[str, float]] = {
    ("phased-sgd", SMOOTH): {"n": 1, "m": 1, "beta": 0},
    ("accelerated", SMOOTH): {"n": 9 / 8, "m": 9 / 8, "beta": 1 / 4},
    ("accelerated", NON_SMOOTH): {"n": 11 / 8, "m": 5 / 4},
    ("asi-liu", SMOOTH): {"n": 3 / 2, "m": 3 / 2, "beta": 1},
    ("asi-liu", NON_SMOOTH): {"n": 3, "m": 3},
    ("bassily-sun", SMOOTH): {"n": 3 / 2, "m": 1, "beta": 0},
    ("bassily-sun-local", SMOOTH): {"n": 1, "m": 1, "beta": 0},
    ("group-privacy", SMOOTH): {"n": 1, "m": 1, "beta": 0},
    ("disjoint-batches", SMOOTH): {"n": 1, "m": 1, "beta": 0},
}


class Numbers(NamedTuple):
    """Public numbers; `beta` is the smoothness in units of L/R, infinite for losses that are not smooth."""

    n: int
    m: int
    d: int
    epsilon: float
    beta: float


# What theorems of earlier work assume, in words, and whether it holds; constants are left out. The paper's own are in
# `paper_theorems`, as printed.
_ASSUMED: dict[str, dict[str, Callable[[Numbers], bool]]] = {
    "asi-liu": {"n >= log(m d) / eps": lambda x: x.n * x.epsilon >= math.log(x.m * x.d)},
    "bassily-sun": {
        "beta <= (L/R) min(n / sqrt(m d), n^1.5 / (d sqrt m))": lambda x: (
            x.beta <= min(x.n / math.sqrt(x.m * x.d), x.n**1.5 / (x.d * math.sqrt(x.m)))
        ),
        "n >= sqrt(d) / eps": lambda x: x.n >= math.sqrt(x.d) / x.epsilon,
        "m <= max(sqrt d, n eps^2 / sqrt d)": lambda x: x.m <= max(math.sqrt(x.d), x.n * x.epsilon**2 / math.sqrt(x.d)),
    },
    "levy": {"a smooth loss": lambda x: math.isfinite(x.beta)},
    "bassily-sun-local": {
        "beta <= (L/R) eps^3 sqrt(n^3 / (m d^3))": lambda x: (
            x.beta <= x.epsilon**3 * math.sqrt(x.n**3 / (x.m * x.d**3))
        ),
        "m <= d / eps^2 <= n": lambda x: x.m <= x.d / x.epsilon**2 <= x.n,
    },
    "group-privacy": {"a smooth loss": lambda x: math.isfinite(x.beta)},
    "disjoint-batches": {
        "beta <= (L/R) sqrt(eps / m) (eps sqrt n + sqrt d)": lambda x: (
            x.beta <= math.sqrt(x.epsilon / x.m) * (x.epsilon * math.sqrt(x.n) + math.sqrt(x.d))
        )
    },
}


def assumptions(solver: str, problem: Problem, n_users: int, rows_per_user: int, budget: Budget) -> str:
    """Which of the solver's assumptions these numbers break, in a few words.

    All theorems also take a user's rows as independent draws, which numbers cannot tell.
    """
    found: dict[str, bool] = {}
    for theorem in paper_theorems.theorems_of(solver, problem).values():
        found |= theorem(problem, n_users, rows_per_user, budget)
    relative = problem.loss.smoothness(problem.row_norm) * problem.domain.diameter / problem.lipschitz
    numbers = Numbers(n_users, rows_per_user, problem.dimension, budget.epsilon, relative)
    found |= {words: holds(numbers) for words, holds in _ASSUMED.get(solver, {}).items()}
    if not found:
        return "no theorem"
    broken = [words for words, holds in found.items() if not holds]
    return "broken: " + "; ".join(broken) if broken else "hold"


def table_cells(
    solvers: Iterable[str],
    users: Sequence[int],
    rows: Sequence[int],
    features: Sequence[int],
    epsilons: Sequence[float],
    delta: float,
    repeats: int,
) -> list[Cell]:
    """Of each list the first number is usual; the others are tried with the usual ones of the other lists."""
    usual = {"users": users[0], "rows": rows[0], "features": features[0], "epsilon": epsilons[0]}
    lists: dict[str, Sequence[float]] = dict(zip(usual, (users, rows, features, epsilons), strict=True))
    sizes = [usual] + [usual | {name: value} for name, values in lists.items() for value in values[1:]]
    chosen = [entry for entry in entries() if entry in set(solvers)]
    slopes = [
        {"part": "slopes", "loss": kind, "against": against, "solver": entry}
        for (kind, against), entry in product(_SWEEPS, chosen)
        if entry != AUTO
    ]
    risks = [
        {"part": "risk", "loss": problem, "delta": delta, "solver": entry, "repeats": repeats} | size
        for size, problem, entry in product(sizes, PROBLEMS, chosen)
    ]
    return [Cell({"command": "table"} | settings) for settings in slopes + risks]


def measure_table(settings: Record, context: Record) -> Record:
    """One cell of the table."""
    return _slopes(settings) if settings["part"] == "slopes" else _risk(settings)


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Exponent of the power law through the points."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def plan_at(entry: str, kind: str, n: float = 1e6, m: float = 100, beta: float = 4.0) -> SolverPlan:
    """The solver's plan at epsilon = L = R = 1 with as many weights as users.

    Where the planner has a tolerance: the fewest gradients for at most twice the least estimate of the risk. The
    paper's K_i has a smaller factor than the printed 500 ln(n_i^2 m^2 e^eps / delta), about 20,000: with that one it
    exceeds n_i, and exponents are those of full batches, 5/4, 5/4 and 1/2, and 7/4 and 3/2.
    """
    loss = losses.smoothed_hinge(1 / beta) if kind == SMOOTH else losses.hinge
    problem = IndependentRows(loss, Ball(0.5), int(n), 1.0)
    planner = SOLVERS[solver_and_mode(entry)].uncertified
    wanted = {"tolerance": 1.0, "most_steps": 10**11, "factor": _FACTORS[kind]}  # as many steps as theory asks for
    options = {name: value for name, value in wanted.items() if name in inspect.signature(planner).parameters}
    return planner(problem, int(n), int(m), Budget(1.0, _DELTA), **options)


def _slopes(settings: Record) -> Record:
    entry, kind, against = settings["solver"], settings["loss"], settings["against"]
    sizes, gradients, refusal, enough = [], [], None, None
    for value in _SIZES[against]:
        try:
            found = plan_at(entry, kind, **{against: value})
        except ValueError as error:
            enough = error.enough_users if isinstance(error, BudgetExceeded) else None
            refusal = str(error).removesuffix(" Nothing was spent.")
            continue
        sizes.append(value)
        gradients.append(float(found.n_gradients))
    theorem = EXPONENTS.get((solver_and_mode(entry)[0], kind), {}).get(against)
    found_any = {"sizes": sizes, "gradients": gradients, "theorem": theorem}
    if len(sizes) < _FEWEST_POINTS:
        words = f"needs about {enough:,} users" if enough else refusal
        return found_any | {"exponent": None, "refusal": words, "enough_users": enough}
    return found_any | {"exponent": slope(sizes, gradients)}


@functools.lru_cache(maxsize=8)
def _people(name: str, n: int, m: int, d: int, seed: int) -> UserData:
    return generate(losses.loss(name), n, m, d, seed)[0]


@functools.lru_cache(maxsize=8)
def _best(name: str, d: int, l2: float) -> float:
    """The least risk on the test users, who are so many that their best model is everybody's."""
    test = _people(name, _TEST_USERS, _TEST_ROWS, d, _TEST_SEED)
    return mean_loss(losses.loss(name), test, optimum(losses.loss(name), test, l2), l2)


@functools.lru_cache(maxsize=16)
def _yardstick(name: str, m: int, d: int) -> Yardstick:
    """Of users like these."""
    users = _people(name, _TEST_USERS, m, d, _TEST_SEED)
    return yardstick(losses.loss(name), users, user_optimum(losses.loss(name), users))


def _risk(settings: Record) -> Record:
    name, l2 = PROBLEMS[settings["loss"]]
    n, m, d = settings["users"], settings["rows"], settings["features"]
    loss, budget = losses.loss(name), Budget(settings["epsilon"], settings["delta"])
    problem = Problem(loss, Ball(_RADIUS), d, _ROW_NORM, l2=l2)
    test, best = _people(name, _TEST_USERS, _TEST_ROWS, d, _TEST_SEED), _best(name, d, l2)
    parts = (_people(name, n, m, d, seed) for seed in range(settings["repeats"]))

    def excess(weights: np.ndarray) -> float:
        return mean_loss(loss, test, weights, l2) - best

    result = solve_all(settings["solver"], problem, parts, n, m, budget, None, excess)
    solver = result.get("taken", solver_and_mode(settings["solver"])[0])
    facts: Record = {"assumptions": assumptions(solver, problem, n, m, budget)}
    if loss.smooth and l2 == 0:
        facts |= _yardstick(name, m, d).facts(n, budget)
    if "refusal" in result:
        return result | facts
    nothing = mean_loss(loss, test, np.zeros(d), l2) - best
    return result | facts | {"excess": mean_and_spread(result.pop("scores")), "nothing_learned": nothing}
