"""What the paper's theorems assume, and which of it holds for given public numbers.

One function a theorem: hypotheses in words, with the constants and logarithms that are printed, and whether each holds.
A plan outside of a theorem is as private as any: `Plan.certify` prices what is released exactly, at any epsilon. What
is lost is the theorem's word on the risk, so plans show it (`SolverPlan.outside`). Only delta = 0 is refused, because
Gaussian noise cannot do without. That a user's rows are independent draws, which all assume, numbers cannot show.

In words eps, m, n, d, L, R and beta are as in the paper: R is the domain's diameter, d the number of weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from userdp.privacy.accounting import Budget, BudgetExceeded, bisect
from userdp.solvers.problem import Problem

Hypotheses = dict[str, bool]
Theorem = Callable[[Problem, int, int, Budget], Hypotheses]

_LARGEST_EPSILON = 10.0
_MOST_USERS = 2**50


def n_phases(n_users: int) -> int:
    """l = floor(log2 n).

    Paper: Alg. 1, line 2 (l); Alg. 3, line 2 (l).
    """
    return n_users.bit_length() - 1


def exponent_q(n_users: int) -> float:
    """q = log2(1 + 1/l): the q > 0 that leaves most users to the last phase. The paper asks for "some small q".

    Paper: Alg. 1, line 1 (q); Alg. 3, line 1 (q).
    """
    return math.log2(1 + 1 / n_phases(n_users))


def theorem_2_1(problem: Problem, n_users: int, rows_per_user: int, budget: Budget) -> Hypotheses:
    """Privacy and risk of Alg. 1. Its m <= n^J always holds: J is what makes it hold (`exponent_p`).

    Paper: Theorem 2.1 (eps, n, smooth, beta).
    """
    steps = problem.dimension * rows_per_user * n_users * budget.epsilon
    relative = problem.loss.smoothness(problem.row_norm) * problem.domain.diameter / problem.lipschitz
    return {
        "eps <= 10": budget.epsilon <= _LARGEST_EPSILON,
        "delta > 0": budget.delta > 0,
        "n^(1-q) >= 100 ln(n/delta) / ((1 - 2^-q) eps)": _last_phase(n_users) >= _needed(n_users, budget),
        "a smooth loss": problem.loss.smooth,
        "beta <= (L/R) sqrt(d m n eps)": relative <= math.sqrt(steps),
    }


def theorem_3_1(problem: Problem, n_users: int, rows_per_user: int, budget: Budget) -> Hypotheses:
    """Privacy of Alg. 3.

    Paper: Theorem 3.1 (eps, n).
    """
    numbers = 20 * n_users * rows_per_user * problem.dimension
    enough = _last_phase(n_users) > _needed(numbers, budget, budget.epsilon)
    return {
        "eps <= 10": budget.epsilon <= _LARGEST_EPSILON,
        "delta > 0": budget.delta > 0,
        "n^(1-q) > 100 ln(20 n m d e^eps/delta) / ((1 - 2^-q) eps)": enough,
    }


def theorem_3_2(problem: Problem, n_users: int, rows_per_user: int, budget: Budget) -> Hypotheses:
    """Risk and gradients of Alg. 3. Objectives with a penalty are those of Remark 3.6.

    Paper: Theorem 3.2 (eps, delta, smooth).
    """
    return {
        "eps <= 10": budget.epsilon <= _LARGEST_EPSILON,
        "0 < delta < 1/(m n)": 0 < budget.delta < 1 / (rows_per_user * n_users),
        "a smooth loss": problem.loss.smooth,
        "l2 = 0": problem.l2 == 0,
    }


def theorem_4_1(problem: Problem, n_users: int, rows_per_user: int, budget: Budget) -> Hypotheses:
    """Privacy, risk and gradients of Alg. 3 on a smoothed loss.

    L holds within r of the domain if it holds everywhere: where slopes grow with the weights, L is the domain's.

    Paper: Theorem 4.1 (eps, delta, n, X_r).
    """
    private = theorem_3_1(problem, n_users, rows_per_user, budget)
    useful = theorem_3_2(problem, n_users, rows_per_user, budget)
    del private["delta > 0"], useful["a smooth loss"]
    return private | useful | {"an L-Lipschitz loss within r of the domain": not callable(problem.loss.slope_bound)}


def theorems_of(solver: str, problem: Problem) -> dict[str, Theorem]:
    """The theorems about a solver, by name; none about solvers that are not the paper's."""
    if solver == "phased-sgd":
        return {"Theorem 2.1": theorem_2_1}
    if solver != "accelerated":
        return {}
    if not problem.loss.smooth:
        return {"Theorem 4.1": theorem_4_1}
    return {"Theorem 3.1": theorem_3_1, "Theorem 3.2": theorem_3_2}


def outside(solver: str, problem: Problem, n_users: int, rows_per_user: int, budget: Budget) -> tuple[str, ...]:
    """Each theorem about the solver of which hypotheses do not hold, and which, for `SolverPlan.outside`."""
    size, said = (problem, n_users, rows_per_user, budget), []
    for name, theorem in theorems_of(solver, problem).items():
        broken = [words for words, holds in theorem(*size).items() if not holds]
        said += [f"outside of {name}: {', '.join(broken)}"] if broken else []
    return tuple(said)


def _last_phase(n_users: int) -> float:
    """n^(1-q) (1 - 2^-q): what the theorems have for the users of the last phase."""
    if n_users < 2:
        return 0.0
    q = exponent_q(n_users)
    return float(n_users ** (1 - q) * (1 - 2**-q))


def _needed(numbers: int, budget: Budget, more: float = 0.0) -> float:
    """100 (ln(numbers/delta) + more) / eps."""
    return 100 * (math.log(numbers / budget.delta) + more) / budget.epsilon if budget.delta else math.inf


# --- users ------------------------------------------------------------------------------------------------------------


def phase_users(n_users: int, phase: int) -> int:
    """n_i = (1 - 2^-q) n / 2^(iq), rounded down. They add up to 2^-q n at most: the other users are not used.

    Paper: Alg. 1, line 4 (n_i); Alg. 3, line 4 (n_i).
    """
    q = exponent_q(n_users)
    return math.floor((1 - 2**-q) * n_users / 2 ** (phase * q))


def least_number(enough: Callable[[int], bool]) -> int | None:
    """The least number of users from which on there are enough; None if there is none below 2^50.

    n_l falls a little where n passes a power of two, so feasible numbers just below one are not counted.
    """
    high = 2
    while not all(enough(n) for n in (high, 2 * high)):
        high *= 2
        if high > _MOST_USERS:
            return None
    numbers = [round(high / 2 * 1.001**k) for k in range(1400)]  # up to 2 * high
    low = max((n for n in numbers if not enough(n)), default=high // 2)
    high = min((n for n in numbers if n > low), default=2 * high)
    return bisect(enough, low, high, 0.0, lambda low, high: (low + high) // 2)


def too_few(
    solver: str, n_users: int, rows_per_user: int, budget: Budget, least: int | None, need: str
) -> BudgetExceeded:
    """The error for fewer users than `least`; `need` is what each phase needs."""
    remedy = f"{least:,} are the fewest" if least else "no number of them is enough"
    return BudgetExceeded(
        f'Expected more than n_users={n_users} for {solver} in mode="paper" at epsilon={budget.epsilon:g}, '
        f"delta={budget.delta:g} and {rows_per_user} rows per user: {remedy}, since each of the floor(log2 n) phases "
        f'needs {need}. mode="calibrated" needs far fewer. Nothing was spent.',
        enough_users=least,
    )
