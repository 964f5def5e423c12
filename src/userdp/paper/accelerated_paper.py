"""Plans for accelerated phased ERM with the constants of the paper, as printed; they ask for very many users.

Paper: Alg. 2 and 3, Theorems 3.1 and 3.2 (appendix C), Theorem 4.1 (appendix D). Phases have the users of Alg. 1, by
the same formula.
"""

from __future__ import annotations

import math

import numpy as np

from userdp.domains import Domain
from userdp.paper.accelerated import GradientPhase, GradientSteps
from userdp.paper.descent import ACSA
from userdp.paper.paper_outlier_removal import PaperOutlierRemoval, SampledPaperOutlierRemoval
from userdp.paper.paper_theorems import exponent_q, least_number, n_phases, outside, phase_users, too_few
from userdp.privacy.accounting import Budget, bisect
from userdp.privacy.plan import Plan, Step
from userdp.solvers.problem import Problem
from userdp.solvers.solver import SolverPlan, check_sizes, gradients_of_samples


def radius(lipschitz: float, dimension: int, n_users: int, rows_per_user: int) -> float:
    """tau = L ln(n d m) / sqrt(m); the paper says O(..), we take 1 for the constant.

    Paper: Alg. 3, line 2 (tau).
    """
    return lipschitz * math.log(n_users * dimension * rows_per_user) / math.sqrt(rows_per_user)


def first_regularizer(
    lipschitz: float, diameter: float, dimension: int, n_users: int, rows_per_user: int, epsilon: float
) -> float:
    """lambda = (L/R) (1/sqrt(n m) + sqrt(d) / (eps n sqrt(m))).

    Paper: Alg. 3, line 1 (lambda); Theorem 3.2 (lambda).
    """
    private = math.sqrt(dimension) / (epsilon * n_users * math.sqrt(rows_per_user))
    return lipschitz / diameter * (1 / math.sqrt(n_users * rows_per_user) + private)


def users_per_step(users: int, rows_per_user: int, steps: int, budget: Budget, factor: float | None = None) -> float:
    """K_i = factor (1/eps + n_i eps / sqrt(T_i ln(1/delta))); the printed factor is 500 ln(n_i^2 m^2 e^eps / delta).

    Paper: Alg. 3, line 4 (K_i); Theorem 4.1 (K_i), which has no factor in front of n_i eps / sqrt(T_i).
    Differs: with the printed factor K_i exceeds n_i unless T_i is about (500 eps ln(..))^2 / ln(1/delta), some 10^8 at
    eps = 1, though the assumption is said to ensure K_i <= n_i (research/docs/paper-notes.md). Where it does, all n_i
    users take part in every step.
    """
    factor = batch_factor(users, rows_per_user, budget) if factor is None else factor
    return factor * (1 / budget.epsilon + users * budget.epsilon / math.sqrt(steps * math.log(1 / budget.delta)))


def batch_factor(users: int, rows_per_user: int, budget: Budget) -> float:
    """500 ln(n_i^2 m^2 e^eps / delta)."""
    return 500 * (2 * math.log(users * rows_per_user) + budget.epsilon - math.log(budget.delta))


def risk_bound(
    lipschitz: float, diameter: float, dimension: int, n_users: int, rows_per_user: int, budget: Budget
) -> float:
    """L R (1/sqrt(n m) + sqrt(d ln(1/delta)) / (eps n sqrt(m))), without the constants and logarithms of O~.

    Paper: Theorem 3.2 (risk); Theorem 4.1 (risk).
    """
    private = math.sqrt(dimension * math.log(1 / budget.delta)) / (budget.epsilon * n_users * math.sqrt(rows_per_user))
    return lipschitz * diameter * (1 / math.sqrt(n_users * rows_per_user) + private)


def fewest_users_of_a_phase(n_users: int, rows_per_user: int, dimension: int, budget: Budget) -> int:
    """100 ln(20 n m d e^eps / delta) / eps, rounded up.

    Paper: Theorem 3.1 (n), which says n^(1-q) (1 - 2^-q), about n_l, for our n_l.
    Differs: at least 150 ln(4 / delta) / eps, because the noise of the test, Lap(16/eps) and Lap(8/eps), must stay
    below 2 n_i/15 except with probability delta/8 or so.
    """
    logs = math.log(20 * n_users * rows_per_user * dimension / budget.delta) + budget.epsilon
    return math.ceil(max(100 * logs, 150 * math.log(4 / budget.delta)) / budget.epsilon)


def plan_paper_accelerated(
    problem: Problem,
    n_users: int,
    rows_per_user: int,
    budget: Budget,
    max_gradients: int | None = None,
    factor: float | None = None,
) -> SolverPlan:
    """Alg. 3 as printed; with l2 > 0 its reruns. Raises `BudgetExceeded` with the smallest feasible n_users.

    With `max_gradients` K_i has the largest factor that they allow, between 1 and the printed one; `factor` sets it.
    A step takes no fewer users than its test needs (`fewest_users_of_a_phase`).

    Differs: a phase gives out x^(T_i + 1), not x^(T_i) (Alg. 2, line 17), because the last step counts. After a failed
    test the result is the start, the warm start if one was given (Alg. 2, line 16), because the printed 0 may lie
    outside the domain. With another factor than the printed one `SolverPlan.outside` says so.
    """
    n_users, rows_per_user = check_sizes(n_users, rows_per_user, budget)
    if problem.l2 > problem.certain_curvature:
        raise ValueError(
            f'Expected l2={problem.l2} to be 0 for mode="paper" with an intercept, which is not penalised: its theorem '
            'is of penalties in all directions. Use mode="calibrated", or fit_intercept=False. Nothing was spent.'
        )
    if not feasible(problem, n_users, rows_per_user, budget):
        least = smallest_n_users(problem, rows_per_user, budget)
        need = "enough of them for its test"
        raise too_few("the accelerated solver", n_users, rows_per_user, budget, least, need)

    def gradients(factor: float | None) -> int:
        return _n_gradients(_all_phases(problem, n_users, rows_per_user, budget, factor)[0], rows_per_user)

    if max_gradients is not None and factor is None and gradients(None) > max_gradients:
        if gradients(1.0) > max_gradients:
            raise ValueError(
                f"Expected max_gradients={max_gradients:,} >= {gradients(1.0):,}: Alg. 3 cannot do with fewer here. "
                "Nothing was spent."
            )
        # In 1/factor, whose upper end is known to do.
        least_inverse = 1 / batch_factor(n_users, rows_per_user, budget)
        factor = 1 / bisect(lambda inverse: gradients(1 / inverse) <= max_gradients, least_inverse, 1.0, 1e-3)
    phases, bound = _all_phases(problem, n_users, rows_per_user, budget, factor)
    steps, begin, distance, error = [], 0, problem.reach, 0.0
    for phase in phases:
        # zeta is the failure of a step's random selection in the paper's proof; scores get Lap(16/eps).
        zeta = budget.delta / (10 * phase.n_steps) * math.exp(-budget.epsilon)
        rest = (16 / budget.epsilon, phase.noise_ratio, zeta, phase.n_steps)
        removal: PaperOutlierRemoval | SampledPaperOutlierRemoval = (
            PaperOutlierRemoval(phase.n_users, *rest)
            if phase.sampling_probability == 1
            else SampledPaperOutlierRemoval(phase.n_users, phase.sampling_probability, *rest)
        )
        steps.append(Step(phase.label, begin, begin + phase.n_users, removal))
        begin += phase.n_users
        # What the phase leaves of the excess risk, its distance being what the last one left.
        variance = phase.variance + problem.dimension * (phase.noise_ratio * phase.radius) ** 2
        strong = phase.regularizer + problem.l2
        forgotten = phase.gap * math.exp(-phase.n_steps * math.sqrt(strong / phase.smoothness))
        error = forgotten + 8 * variance / (strong * phase.n_steps) + phase.regularizer * distance**2
        distance = min(problem.domain.diameter, math.sqrt(2 * error / strong))
    plan = Plan(n_users, tuple(steps))
    beyond = outside("accelerated", problem, n_users, rows_per_user, budget)
    if factor is not None:
        beyond += (f"K_i with {factor:.4g} for the printed 500 ln(n_i^2 m^2 e^eps / delta)",)
    return SolverPlan(
        plan,
        GradientSteps(problem.loss, tuple(phases), acsa),
        _n_gradients(phases, rows_per_user),
        bound,
        error + problem.lipschitz * distance,
        as_published=True,
        outside=beyond,
    )


def acsa(
    problem: Problem, phase: GradientPhase, start: np.ndarray, domain: Domain, variance: float, steepness: float
) -> ACSA:
    """Multi-stage AC-SA on the phase's regularised objective.

    Paper: Alg. 2, line 14.
    """
    curvatures = (phase.smoothness, phase.regularizer + problem.l2)
    return ACSA(start, domain, *curvatures, variance, phase.gap, phase.n_steps)


def _n_gradients(phases: list[GradientPhase], rows_per_user: int) -> int:
    """Exactly those of the plan, where theorems leave out constants and logarithms.

    Paper: Theorem 3.2 (gradients); Theorem 4.1 (gradients).
    """
    sizes = ((phase.n_users, phase.sampling_probability, phase.n_steps) for phase in phases)
    return sum(gradients_of_samples(users, rows_per_user, q, steps) for users, q, steps in sizes)


def _runs(problem: Problem, n_users: int) -> list[int]:
    """Users of each run: all of them in one, or for a strongly convex objective M = ceil(log2 log2 n) reruns.

    Rerun j has N_j = 2^(j-2) n / log2 n users, rounded down.

    Paper: Remark 3.6 (FKT20, section 5.1).
    """
    if problem.l2 == 0:
        return [n_users]
    n_reruns = math.ceil(math.log2(math.log2(n_users)))
    return [math.floor(2.0 ** (j - 2) * n_users / math.log2(n_users)) for j in range(1, n_reruns + 1)]


def _all_phases(
    problem: Problem, n_users: int, rows_per_user: int, budget: Budget, factor: float | None
) -> tuple[list[GradientPhase], float]:
    """The phases of all runs, and the bound of the last one."""
    phases: list[GradientPhase] = []
    diameter, bound = problem.domain.diameter, math.inf
    for number, users in enumerate(_runs(problem, n_users), start=1):
        label = "" if problem.l2 == 0 else f"run {number}, "
        phases += _phases(problem, users, rows_per_user, budget, diameter, label, factor)
        bound = risk_bound(problem.lipschitz, diameter, problem.dimension, users, rows_per_user, budget)
        if problem.l2:
            diameter = min(diameter, 2 * math.sqrt(2 * bound / problem.l2))
    return phases, bound


def _phases(
    problem: Problem,
    n_users: int,
    rows_per_user: int,
    budget: Budget,
    diameter: float,
    label: str,
    factor: float | None,
) -> list[GradientPhase]:
    """The phases of one run of Alg. 3 on so many users, for a start within `diameter` of the best point.

    Paper: Alg. 2, line 4; Alg. 2, line 6 (noise); Alg. 2, line 13 (sigma_i); Alg. 3, line 1 (p); Alg. 3, line 3;
    Alg. 3, line 4 (lambda_i, T_i); Alg. 3, line 5; Theorem 3.1 (zeta); Theorem 3.2 (p); Theorem 4.1 (T_i, r, beta,
    lambda); Lemma 3.5.
    Differs: a rerun for l2 > 0 keeps the whole domain; only the numbers are those of the smaller one. For non-smooth
    losses lambda is Theorem 3.2's, because with 1/sqrt(mn), which the proof of Theorem 4.1 has, the risk exceeds the
    theorem's rate by sqrt(d)/(eps sqrt(n)) once d > eps^2 n.
    """
    epsilon, size = budget.epsilon, (problem.dimension, n_users, rows_per_user)
    log = math.log(n_users * problem.dimension * rows_per_user)
    tau, lipschitz = radius(problem.lipschitz, *size), problem.lipschitz
    first = first_regularizer(lipschitz, diameter, *size, epsilon)
    p = 3 * exponent_q(n_users) + 2.5 + math.log(rows_per_user) / (2 * math.log(n_users))  # 3q + 2.5 + log_n(sqrt(m))
    ball, smoothness = None, problem.loss.smoothness(problem.row_norm)
    if not problem.loss.smooth:  # r = sqrt(d) R / (eps n sqrt(m)), and L sqrt(d) / r for beta (Theorem 4.1)
        ball = math.sqrt(problem.dimension) * diameter / (epsilon * n_users * math.sqrt(rows_per_user))
        smoothness = lipschitz * math.sqrt(problem.dimension) / ball
    fewest, phases = fewest_users_of_a_phase(n_users, rows_per_user, problem.dimension, budget), []
    for i in range(1, n_phases(n_users) + 1):
        users, strong = phase_users(n_users, i), first * 2 ** (p * i)  # n_i and lambda_i (line 4)
        # T_i = (1 + sqrt(beta / lambda_i)) ln(n d m), rounded up; the proof of Theorem 4.1 has the logarithm.
        steps = math.ceil((1 + math.sqrt(smoothness / strong)) * log)
        batch = min(users, max(fewest, users_per_step(users, rows_per_user, steps, budget, factor)))
        # sigma_i = 1000 tau sqrt(T_i) ln(n d e^eps / delta) / (eps n_i) (Alg. 2, line 13)
        logs = math.log(n_users * problem.dimension / budget.delta) + epsilon
        sigma = 1000 * tau * math.sqrt(steps) * logs / (epsilon * users)
        phases.append(
            GradientPhase(
                f"{label}phase {i}",
                users,
                2 * tau,
                sigma / (2 * tau),
                n_steps=steps,
                smoothness=smoothness + strong + problem.l2,
                regularizer=strong,
                variance=lipschitz**2 * log / (batch * rows_per_user),  # Lemma 3.5
                sampling_probability=batch / users,
                gap=lipschitz * diameter,
                ball=ball,
            )
        )
    return phases


def feasible(problem: Problem, n_users: int, rows_per_user: int, budget: Budget) -> bool:
    """Whether the last, smallest phase of every run has users enough for its test."""
    if n_users < 16:
        return False
    return all(
        users >= 2
        and phase_users(users, n_phases(users))
        >= fewest_users_of_a_phase(users, rows_per_user, problem.dimension, budget)
        for users in _runs(problem, n_users)
    )


def smallest_n_users(problem: Problem, rows_per_user: int, budget: Budget) -> int | None:
    """The least number of users from which on the paper's plan is feasible; None if there is none below 2^50."""
    return least_number(lambda n: feasible(problem, n, rows_per_user, budget))
