"""Lower bounds on epsilon from two samples of what a mechanism releases on neighbouring data sets."""

import math

import numpy as np

from userdp.auditing.bounds import best_rates
from userdp.privacy.accounting import Cost, epsilon_at


def audited_epsilon(outcomes, others, delta, confidence=0.999):
    """Lower bound on epsilon, at this confidence, from two samples of a scalar output on neighbouring data sets."""
    return best_rates(outcomes, others, 1 - confidence, lambda rates: rates.epsilon(delta), train=0.5).epsilon(delta)


def audited_gaussian_epsilon(outcomes, others, delta, sigmas=4.0):
    """Lower bound on epsilon for outputs that are Gaussian with equal spread: the shift in standard deviations.

    Far stronger than thresholds for few runs: mu is estimated to sqrt(2/runs), then converted at `delta`. Assumes the
    shape of the outputs, so it is for tests of mechanisms whose noise is known to be Gaussian.
    """
    x, y = outcomes[np.isfinite(outcomes)], others[np.isfinite(others)]
    spread = math.sqrt((x.var() + y.var()) / 2)
    mu = abs(x.mean() - y.mean()) / spread - sigmas * math.sqrt(1 / len(x) + 1 / len(y))
    return epsilon_at(Cost(gaussian=max(0.0, mu) ** 2), delta)
