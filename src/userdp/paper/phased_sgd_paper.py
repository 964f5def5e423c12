"""Plans for phased SGD with the constants of the paper, as printed; they ask for very many users.

Paper: Alg. 1 and Theorem 2.1 (appendix B). Each function below is one formula.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from userdp.paper.paper_outlier_removal import PaperOutlierRemoval
from userdp.paper.paper_theorems import exponent_q, n_phases, outside
from userdp.paper.phased_sgd import GroupPasses, GroupPhase
from userdp.privacy.accounting import Budget, BudgetExceeded
from userdp.privacy.plan import Plan, Step
from userdp.solvers.base import SolverPlan, check_sizes
from userdp.solvers.problem import Problem

_MOST_USERS = 2**50


def printed_groups(n_users: int, rows_per_user: int, budget: Budget) -> float:
    """C = 100 ln(20 n m e^eps / delta) / eps.

    Paper: Alg. 1, line 2 (C).
    """
    return 100 * (math.log(20 * n_users * rows_per_user / budget.delta) + budget.epsilon) / budget.epsilon


def n_groups(n_users: int, rows_per_user: int, budget: Budget) -> int:
    """C, rounded up.

    Paper: Alg. 1, line 2 (C).
    Differs: at least 150 ln(4 / delta) / eps, because the noise of the score, Lap(20/eps), must stay below 2C/15
    except with probability delta/8; the printed C ensures that only for delta >= (about) (nm)^-2.
    """
    needed = 150 * math.log(4 / budget.delta) / budget.epsilon
    return math.ceil(max(printed_groups(n_users, rows_per_user, budget), needed))


def exponent_p(n_users: int, rows_per_user: int) -> float:
    """p = J + 3/2 for the least J with m <= n^J.

    Paper: Alg. 1, line 1 (p); Theorem 2.1 (p).
    """
    return math.log(rows_per_user) / math.log(n_users) + 1.5


def phase_users(n_users: int, phase: int) -> int:
    """n_i = (1 - 2^-q) n / 2^(iq), rounded down. They add up to 2^-q n at most: the other users are not used.

    Paper: Alg. 1, line 4 (n_i); Alg. 3, line 4 (n_i).
    """
    q = exponent_q(n_users)
    return math.floor((1 - 2**-q) * n_users / 2 ** (phase * q))


def first_step_size(problem: Problem, n_users: int, rows_per_user: int, epsilon: float) -> float:
    """eta = R / (L sqrt(d m n eps)), R the diameter.

    Paper: Alg. 1, line 1 (eta); Theorem 2.1 (eta).
    """
    steps = problem.dimension * rows_per_user * n_users * epsilon
    return problem.domain.diameter / (problem.lipschitz * math.sqrt(steps))


def step_size(first: float, phase: int, p: float) -> float:
    """eta_i = eta / 2^(pi).

    Paper: Alg. 1, line 4 (eta_i).
    """
    return first / 2 ** (p * phase)


def radius(problem: Problem, step: float, n_steps: float, n_users: int, rows_per_user: int) -> float:
    """tau_i = 1000 eta_i L sqrt(T_i) ln(n d m).

    Paper: Alg. 1, line 4 (tau_i).
    """
    spread = step * problem.lipschitz * math.sqrt(n_steps)
    return 1000 * spread * math.log(n_users * problem.dimension * rows_per_user)


def test_scale(epsilon: float) -> float:
    """Scale of the Laplace noise of the score: 20 / eps.

    Paper: Alg. 1, line 10 (noise).
    """
    return 20 / epsilon


def noise_ratio(n_users: int, groups: int, budget: Budget) -> float:
    """sigma_i / tau_i = 100 ln^2(n / delta) / (eps C).

    Paper: Alg. 1, line 22 (sigma_i).
    """
    return 100 * math.log(n_users / budget.delta) ** 2 / (budget.epsilon * groups)


def risk_bound(problem: Problem, n_users: int, rows_per_user: int, budget: Budget) -> float:
    """L R (1/sqrt(n m eps) + sqrt(d ln(1/delta)) / (sqrt(n m) eps)), without the constants and logarithms of O~.

    Paper: Theorem 2.1 (risk).
    """
    samples = n_users * rows_per_user
    statistical = 1 / math.sqrt(samples * budget.epsilon)
    private = math.sqrt(problem.dimension * math.log(1 / budget.delta)) / (math.sqrt(samples) * budget.epsilon)
    return problem.lipschitz * problem.domain.diameter * (statistical + private)


def plan_paper_phased_sgd(problem: Problem, n_users: int, rows_per_user: int, budget: Budget) -> SolverPlan:
    """Alg. 1 as printed; raises `BudgetExceeded` with the smallest feasible n_users unless C <= n_l.

    Paper: Alg. 1, line 3; Alg. 1, line 4 (N_i, T_i); Alg. 1, line 5; Theorem 2.1 (zeta, gradients).
    Differs: released iterates are projected onto the domain (Alg. 1, line 22), because noise leads out of it. After a
    failed test the result is the start, the warm start if one was given (Alg. 1, line 19), because the printed 0 may
    lie outside the domain.
    """
    n_users, rows_per_user = check_sizes(n_users, rows_per_user, budget)
    if not enough_users(n_users, rows_per_user, budget):
        need = f"C = {n_groups(max(n_users, 2), rows_per_user, budget):,} users"
        raise too_few("phased SGD", n_users, rows_per_user, budget, smallest_n_users(rows_per_user, budget), need)
    groups = n_groups(n_users, rows_per_user, budget)
    ratio = noise_ratio(n_users, groups, budget)
    # zeta = delta / (10 e^eps) is the failure of the random selection in the paper's proof.
    removal = PaperOutlierRemoval(
        groups, test_scale(budget.epsilon), ratio, budget.delta / 10 * math.exp(-budget.epsilon)
    )
    first, p = first_step_size(problem, n_users, rows_per_user, budget.epsilon), exponent_p(n_users, rows_per_user)
    steps: list[Step] = []
    phases: list[GroupPhase] = []
    begin = 0
    for i in range(1, n_phases(n_users) + 1):
        users, step = phase_users(n_users, i), step_size(first, i, p)
        spread, label = radius(problem, step, users * rows_per_user / groups, n_users, rows_per_user), f"phase {i}"
        phases.append(GroupPhase(label, users, spread, ratio, n_groups=groups, step_size=step))
        steps.append(Step(label, begin, begin + users, removal, groups))
        begin += users
    plan = Plan(n_users, tuple(steps))
    plan.certify(budget)
    bound = risk_bound(problem, n_users, rows_per_user, budget)
    constants = _bound_with_constants(problem, phases, rows_per_user)
    schedule = GroupPasses(tuple(phases), falling=False)
    beyond = outside("phased-sgd", problem, n_users, rows_per_user, budget)
    return SolverPlan(plan, schedule, begin * rows_per_user, bound, constants, as_published=True, outside=beyond)


def _bound_with_constants(problem: Problem, phases: list[GroupPhase], rows_per_user: int) -> float:
    """What each phase of SGD adds to the excess risk, the next one's distance being the last noise."""
    total, distance = 0.0, problem.reach
    for phase in phases:
        n_steps = phase.n_users * rows_per_user / phase.n_groups
        total += distance**2 / (2 * phase.step_size * n_steps) + phase.step_size * problem.lipschitz**2 / 2
        noise = phase.noise_ratio * phase.radius
        distance = min(problem.domain.diameter, math.sqrt(problem.dimension) * noise)
    return total + problem.lipschitz * distance


def too_few(
    solver: str, n_users: int, rows_per_user: int, budget: Budget, least: int | None, need: str
) -> BudgetExceeded:
    """The error for fewer users than `least`; `need` is what each phase needs."""
    remedy = f"{least:,} are the fewest" if least else "no number of them is enough"
    return BudgetExceeded(
        f'Expected more than n_users={n_users} for {solver} in mode="paper" at epsilon={budget.epsilon:g}, '
        f"delta={budget.delta:g} and {rows_per_user} rows per user: {remedy}, since each of the floor(log2 n) phases "
        f'needs {need}. mode="tight" needs far fewer. Nothing was spent.',
        enough_users=least,
    )


def feasible(problem: Problem, n_users: int, rows_per_user: int, budget: Budget) -> bool:
    """As `enough_users`: the problem does not matter."""
    return enough_users(n_users, rows_per_user, budget)


def enough_users(n_users: int, rows_per_user: int, budget: Budget) -> bool:
    """Whether every group of the last, smallest phase has a user: C <= n_l."""
    if n_users < 2:
        return False
    return n_groups(n_users, rows_per_user, budget) <= phase_users(n_users, n_phases(n_users))


def smallest_n_users(rows_per_user: int, budget: Budget) -> int | None:
    """The least number of users from which on the paper's plan is feasible; None if there is none below 2^50."""
    return least_number(lambda n: enough_users(n, rows_per_user, budget))


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
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
