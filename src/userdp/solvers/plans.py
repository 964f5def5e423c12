"""What the solvers' plans fraction: their record, checks of the public numbers, and how many gradients samples take."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, TypeVar

from scipy.stats import binom

from userdp.privacy.accounting import Budget, BudgetExceeded
from userdp.privacy.mechanisms.base import check_counts
from userdp.privacy.plan import Plan
from userdp.solvers.problem import Problem

P = TypeVar("P")

_RARE = 1e-9  # chance that samples take more gradients than are told


@dataclass(frozen=True)
class SolverPlan(Generic[P]):
    """A certified plan and how to carry it out.

    `n_gradients` are the most that are computed; `bound` is what the plan was chosen by; `moment_error` the expected
    error of the released second moment's eigenvalues if there is a preconditioner, else None; `faithful` runs the
    phases as a paper prints them; `caution` says what besides noise is expected to cost accuracy, if anything.
    """

    plan: Plan
    phases: tuple[P, ...]
    n_gradients: int
    bound: float
    moment_error: float | None = None
    faithful: bool = False
    caution: str = ""


def check_sizes(n_users: int, rows_per_user: int, budget: Budget) -> tuple[int, int]:
    """Both as plain whole numbers; refuses what is no count, and a budget without room for Gaussian noise."""
    n_users, rows_per_user = check_counts(n_users=n_users, rows_per_user=rows_per_user)
    if budget.delta == 0:
        raise BudgetExceeded("Expected delta > 0: Gaussian noise cannot do without. Nothing was spent.")
    return n_users, rows_per_user


def any_number_of_users(problem: Problem, n_users: int, rows_per_user: int, budget: Budget) -> bool:
    """Whether solvers without a test have a plan: if there is noise that the budget pays for, any users will do."""
    return budget.delta > 0


@lru_cache(maxsize=4096)
def gradients_of_samples(n_users: int, rows_per_user: int, q: float, rounds: int) -> int:
    """Gradients of rounds on Poisson samples: at most, but for one chance in a billion.

    An empty sample costs a user's, too.
    """
    if q == 1.0:
        return n_users * rows_per_user * rounds
    return rows_per_user * (int(binom.isf(_RARE, n_users * rounds, q)) + rounds)


def largest_sample(n_users: int, rows_per_user: int, rounds: int, max_gradients: int | None) -> float | None:
    """The sampling probability that so many gradients allow; None if not even samples of one user."""
    if max_gradients is None:
        return 1.0
    q = min(1.0, max_gradients / (n_users * rows_per_user * rounds))
    while q * n_users >= 1 - 1e-9:
        if gradients_of_samples(n_users, rows_per_user, q, rounds) <= max_gradients:
            return q
        q *= 0.97
    return None


def too_few_gradients(n_users: int, rows_per_user: int, rounds: int, max_gradients: int | None) -> ValueError:
    """The refusal, with a number that will do."""
    least = math.ceil(1.05 * gradients_of_samples(n_users, rows_per_user, 1 / n_users, rounds))
    return ValueError(
        f"Expected max_gradients={max_gradients} >= {least:,}, for {rounds} rounds of about one user. "
        "Nothing was spent."
    )
