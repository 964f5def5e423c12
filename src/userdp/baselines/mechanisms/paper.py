"""The lemmas the paper composes its guarantees from, as printed: for the modes as published and for comparison.

Paper: "Faster Algorithms for User-Level Private Stochastic Convex Optimization", appendix A.1. Everything else in
this package uses `accounting`, which is tighter.
"""

from __future__ import annotations

import math

from userdp.privacy.accounting import Budget, gaussian_multiplier


def laplace_scale(sensitivity: float, epsilon: float) -> float:
    """Scale of Laplace noise that makes a query of this l1-sensitivity epsilon-DP: sensitivity / epsilon.

    Paper: appendix A.1, "Privacy of Laplace Mechanism".

    >>> laplace_scale(2.0, 0.5)
    4.0
    """
    return sensitivity / epsilon


def gaussian_std(sensitivity: float, epsilon: float, delta: float) -> float:
    """Standard deviation of Gaussian noise that makes a query of this l2-sensitivity (epsilon, delta)-DP.

    sqrt(2 ln(2/delta)) sensitivity / epsilon.
    Paper: appendix A.1, "Privacy of Gaussian Mechanism".
    Differs: never below the exact value, because the printed formula is not private for large epsilon (from 9.0 on at
    delta = 1e-4, from 9.7 on at 1e-6), while the paper's theorems allow epsilon <= 10.

    >>> round(gaussian_std(1.0, 1.0, 1e-6), 4)
    5.3868
    """
    printed = math.sqrt(2 * math.log(2 / delta)) / epsilon
    return sensitivity * max(printed, gaussian_multiplier(Budget(epsilon, delta)))


def advanced_composition(epsilon: float, delta: float, n_steps: int, slack: float) -> tuple[float, float]:
    """(epsilon', delta') of `n_steps` adaptive (epsilon, delta)-DP steps, for the chance `slack` > 0.

    epsilon' = sqrt(2 T ln(1/slack)) epsilon + T epsilon (e^epsilon - 1), delta' = T delta + slack.
    Paper: appendix A.1, "Advanced Composition Theorem".

    >>> advanced_composition(0.0, 1e-9, 10, 1e-8)
    (0.0, 2e-08)
    """
    total = math.sqrt(2 * n_steps * math.log(1 / slack)) * epsilon + n_steps * epsilon * math.expm1(epsilon)
    return total, n_steps * delta + slack


def subsampled(epsilon: float, delta: float, sample: int, population: int) -> tuple[float, float]:
    """(epsilon', delta') of an (epsilon, delta)-DP step on a uniformly random *subset* of `sample` users.

    epsilon' = (e^epsilon - 1) M/N, delta' = delta M/N.
    Paper: appendix A.1, "Privacy Amplification by Subsampling". It holds for subsets; the paper's Alg. 2 samples with
    replacement, where a user may appear several times (docs/paper-notes.md).

    >>> subsampled(0.0, 1e-6, 1, 10)
    (0.0, 1e-07)
    """
    if not 0 < sample <= population:
        raise ValueError(f"Expected 0 < sample={sample} <= population={population}: a subset is meant.")
    return math.expm1(epsilon) * sample / population, delta * sample / population


def above_threshold_accuracy(epsilon: float, n_queries: int, failure: float) -> float:
    """AboveThreshold's answers are right up to this error, except with probability `failure`: 8 ln(2T/failure)/epsilon.

    Paper: appendix A.1, AboveThreshold's lemma (Dwork and Roth 2014, theorem 3.24).

    >>> above_threshold_accuracy(8.0, 1, 2.0)
    0.0
    """
    return 8 * math.log(2 * n_queries / failure) / epsilon
