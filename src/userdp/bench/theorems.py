"""What theorems say of each solver: exponents of its gradients, and what they assume.

Exponents are at epsilon = L = R = 1 and as many weights as users, logarithms left out.
Paper: its summary table and section 1; Theorems 2.1, 3.2 and 4.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from userdp.privacy.accounting import Budget
from userdp.solvers.problem import Problem

SMOOTH, KINKS = "smooth", "kinks"

EXPONENTS: dict[tuple[str, str], dict[str, float]] = {
    ("phased-sgd", SMOOTH): {"n": 1, "m": 1, "beta": 0},
    ("accelerated", SMOOTH): {"n": 9 / 8, "m": 9 / 8, "beta": 1 / 4},
    ("accelerated", KINKS): {"n": 11 / 8, "m": 5 / 4},
    ("asi-liu", SMOOTH): {"n": 3 / 2, "m": 3 / 2, "beta": 1},
    ("asi-liu", KINKS): {"n": 3, "m": 3},
    ("bassily-sun", SMOOTH): {"n": 3 / 2, "m": 1, "beta": 0},
    ("bassily-sun-local", SMOOTH): {"n": 1, "m": 1, "beta": 0},
    ("group-privacy", SMOOTH): {"n": 1, "m": 1, "beta": 0},
    ("disjoint-batches", SMOOTH): {"n": 1, "m": 1, "beta": 0},
}


@dataclass(frozen=True)
class Numbers:
    """Public numbers; `beta` is the smoothness in units of L/R, infinite for kinks."""

    n: int
    m: int
    d: int
    epsilon: float
    beta: float


@dataclass(frozen=True)
class Assumption:
    """Its words, and whether it holds; constants and logarithms are left out."""

    words: str
    holds: Callable[[Numbers], bool]


_UP_TO_TEN = Assumption("eps <= 10", lambda x: x.epsilon <= 10)
_SMOOTH = Assumption("a smooth loss", lambda x: math.isfinite(x.beta))
_ASSUMED: dict[str, tuple[Assumption, ...]] = {
    "phased-sgd": (
        _UP_TO_TEN,
        Assumption("beta <= (L/R) sqrt(d m n eps)", lambda x: x.beta <= math.sqrt(x.d * x.m * x.n * x.epsilon)),
    ),
    "accelerated": (_UP_TO_TEN,),
    "asi-liu": (Assumption("n >= log(m d) / eps", lambda x: x.n * x.epsilon >= math.log(x.m * x.d)),),
    "bassily-sun": (
        Assumption(
            "beta <= (L/R) min(n / sqrt(m d), n^1.5 / (d sqrt m))",
            lambda x: x.beta <= min(x.n / math.sqrt(x.m * x.d), x.n**1.5 / (x.d * math.sqrt(x.m))),
        ),
        Assumption("n >= sqrt(d) / eps", lambda x: x.n >= math.sqrt(x.d) / x.epsilon),
        Assumption(
            "m <= max(sqrt d, n eps^2 / sqrt d)",
            lambda x: x.m <= max(math.sqrt(x.d), x.n * x.epsilon**2 / math.sqrt(x.d)),
        ),
    ),
    "bassily-sun-local": (
        Assumption(
            "beta <= (L/R) eps^3 sqrt(n^3 / (m d^3))",
            lambda x: x.beta <= x.epsilon**3 * math.sqrt(x.n**3 / (x.m * x.d**3)),
        ),
        Assumption("m <= d / eps^2 <= n", lambda x: x.m <= x.d / x.epsilon**2 <= x.n),
    ),
    "group-privacy": (_SMOOTH,),
    "disjoint-batches": (
        Assumption(
            "beta <= (L/R) sqrt(eps / m) (eps sqrt n + sqrt d)",
            lambda x: x.beta <= math.sqrt(x.epsilon / x.m) * (x.epsilon * math.sqrt(x.n) + math.sqrt(x.d)),
        ),
    ),
}


def assumptions(solver: str, problem: Problem, n_users: int, rows_per_user: int, budget: Budget) -> str:
    """Which of the solver's assumptions these numbers break, in a few words.

    All theorems also take a user's rows as independent draws, which numbers cannot tell.
    """
    if solver not in _ASSUMED:
        return "no theorem"
    relative = problem.loss.smoothness(problem.row_norm) * problem.domain.diameter / problem.lipschitz
    numbers = Numbers(n_users, rows_per_user, problem.dimension, budget.epsilon, relative)
    broken = [one.words for one in _ASSUMED[solver] if not one.holds(numbers)]
    return "broken: " + "; ".join(broken) if broken else "hold"
