"""The problem and plans of tests of Alg. 2 and 3."""

from userdp import Ball, Budget, losses
from userdp.paper import accelerated_paper as paper
from userdp.solvers.problem import Problem

L, R, D, BETA = 2.0, 2.0, 3, 1.0
N, M = 12_500, 2
BUDGET = Budget(10.0, 1e-4)
MANY = 500_000  # enough for the reruns of a strongly convex problem
CASES = {"smooth": (losses.logistic, 0.0, N), "kinks": (losses.hinge, 0.0, N), "penalty": (losses.logistic, 0.1, MANY)}


def problem(loss=losses.logistic, l2=0.0, **change):
    made = Problem(loss, **({"domain": Ball(1.0), "n_features": D, "row_norm": 2.0, "l2": l2} | change))
    assert (made.lipschitz, made.dimension) == (L, made.n_features)
    return made


def plan(case="smooth"):
    loss, l2, n_users = CASES[case]
    return paper.plan_paper_accelerated(problem(loss, l2), n_users, M, BUDGET)
