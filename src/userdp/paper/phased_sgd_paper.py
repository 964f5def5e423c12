"""Plans for phased SGD with the constants of the paper, as printed; they ask for very many users.

Paper: Alg. 1 and Theorem 2.1 (appendix B).
"""

from __future__ import annotations

import math

from userdp.paper.paper_outlier_removal import PaperOutlierRemoval
from userdp.paper.paper_theorems import least_number, n_phases, outside, phase_users, too_few
from userdp.paper.phased_sgd import GroupPasses, GroupPhase
from userdp.privacy.accounting import Budget
from userdp.privacy.plan import Plan, Step
from userdp.solvers.problem import Problem
from userdp.solvers.solver import SolverPlan, check_sizes


def n_groups(n_users: int, rows_per_user: int, budget: Budget) -> int:
    """C = 100 ln(20 n m e^eps / delta) / eps, rounded up.

    Paper: Alg. 1, line 2 (C).
    Differs: at least 150 ln(4 / delta) / eps, because the noise of the score, Lap(20/eps), must stay below 2C/15
    except with probability delta/8; the printed C ensures that only for delta >= (about) (nm)^-2.
    """
    printed = 100 * (math.log(20 * n_users * rows_per_user / budget.delta) + budget.epsilon)
    return math.ceil(max(printed, 150 * math.log(4 / budget.delta)) / budget.epsilon)


def plan_paper_phased_sgd(problem: Problem, n_users: int, rows_per_user: int, budget: Budget) -> SolverPlan:
    """Alg. 1 as printed; raises `BudgetExceeded` with the smallest feasible n_users unless C <= n_l.

    Paper: Alg. 1, line 1 (p, eta); Alg. 1, line 3; Alg. 1, line 4 (eta_i, N_i, T_i, tau_i); Alg. 1, line 5; Alg. 1,
    line 10 (noise); Alg. 1, line 22 (sigma_i); Theorem 2.1 (p, eta, zeta, gradients, risk).
    Differs: released iterates are projected onto the domain (Alg. 1, line 22), because noise leads out of it. After a
    failed test the result is the start, the warm start if one was given (Alg. 1, line 19), because the printed 0 may
    lie outside the domain.
    """
    n_users, rows_per_user = check_sizes(n_users, rows_per_user, budget)
    if not feasible(problem, n_users, rows_per_user, budget):
        need = f"C = {n_groups(max(n_users, 2), rows_per_user, budget):,} users"
        least = smallest_n_users(problem, rows_per_user, budget)
        raise too_few("phased SGD", n_users, rows_per_user, budget, least, need)
    epsilon, delta, lipschitz, diameter = budget.epsilon, budget.delta, problem.lipschitz, problem.domain.diameter
    groups, n_rows = n_groups(n_users, rows_per_user, budget), n_users * rows_per_user
    # p = J + 3/2 for the least J with m <= n^J, and eta = R / (L sqrt(d m n eps)), R the diameter (line 1).
    p = math.log(rows_per_user) / math.log(n_users) + 1.5
    first_step_size = diameter / (lipschitz * math.sqrt(problem.dimension * rows_per_user * n_users * epsilon))
    ratio = 100 * math.log(n_users / delta) ** 2 / (epsilon * groups)  # sigma_i / tau_i (line 22)
    # The score gets Lap(20/eps) (line 10); zeta = delta / (10 e^eps) is the failure of the proof's random selection.
    removal = PaperOutlierRemoval(groups, 20 / epsilon, ratio, delta / 10 * math.exp(-epsilon))
    steps: list[Step] = []
    phases: list[GroupPhase] = []
    begin, distance, constants = 0, problem.reach, 0.0
    for i in range(1, n_phases(n_users) + 1):
        users, step_size = phase_users(n_users, i), first_step_size / 2 ** (p * i)  # n_i and eta_i (line 4)
        n_steps = users * rows_per_user / groups  # T_i = N_i m, N_i = n_i / C
        # tau_i = 1000 eta_i L sqrt(T_i) ln(n d m)
        radius = 1000 * (step_size * lipschitz * math.sqrt(n_steps)) * math.log(n_rows * problem.dimension)
        phases.append(GroupPhase(f"phase {i}", users, radius, ratio, n_groups=groups, step_size=step_size))
        steps.append(Step(f"phase {i}", begin, begin + users, removal, groups))
        begin += users
        # What the phase adds to the excess risk, the next one's distance being its noise.
        constants += distance**2 / (2 * step_size * n_steps) + step_size * lipschitz**2 / 2
        distance = min(diameter, math.sqrt(problem.dimension) * (ratio * radius))
    plan = Plan(n_users, tuple(steps))
    # L R (1/sqrt(n m eps) + sqrt(d ln(1/delta)) / (sqrt(n m) eps)), without the constants and logarithms of O~.
    private = math.sqrt(problem.dimension * math.log(1 / delta)) / (math.sqrt(n_rows) * epsilon)
    bound = lipschitz * diameter * (1 / math.sqrt(n_rows * epsilon) + private)
    return SolverPlan(
        plan,
        GroupPasses(tuple(phases), falling=False),
        begin * rows_per_user,
        bound,
        constants + lipschitz * distance,
        as_published=True,
        outside=outside("phased-sgd", problem, n_users, rows_per_user, budget),
    )


def feasible(problem: Problem, n_users: int, rows_per_user: int, budget: Budget) -> bool:
    """Whether every group of the last, smallest phase has a user: C <= n_l. The problem does not matter."""
    if n_users < 2:
        return False
    return n_groups(n_users, rows_per_user, budget) <= phase_users(n_users, n_phases(n_users))


def smallest_n_users(problem: Problem, rows_per_user: int, budget: Budget) -> int | None:
    """The least number of users from which on the paper's plan is feasible; None if there is none below 2^50."""
    return least_number(lambda n: feasible(problem, n, rows_per_user, budget))
