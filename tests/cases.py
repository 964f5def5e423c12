"""Every loss and domain once: tests parametrise over these, so a new one inherits every contract test."""

from __future__ import annotations

import numpy as np

from userdp import losses
from userdp.domains import Ball, Box


def log_cosh_value(predictions, targets):
    error = np.abs(predictions - targets)
    return error + np.log1p(np.exp(-2.0 * error)) - np.log(2.0)


def log_cosh_slope(predictions, targets):
    return np.tanh(predictions - targets)


python_custom = losses.custom("log_cosh", log_cosh_value, log_cosh_slope, lipschitz=1.0, smoothness=1.0)

CLASSIFICATION = [losses.logistic, losses.hinge, losses.smoothed_hinge(0.3), losses.squared_hinge]
REGRESSION = [
    losses.squared,
    losses.huber(0.5),
    losses.absolute,
    losses.quantile(0.8),
    losses.poisson(1.0),
    python_custom,
]
SCALAR_LOSSES = CLASSIFICATION + REGRESSION
MULTINOMIAL = losses.multinomial(4)
ONE_VS_REST = losses.one_vs_rest(4)
ALL_LOSSES = [*SCALAR_LOSSES, MULTINOMIAL, ONE_VS_REST]

# Three dimensions each.
DOMAINS = [
    Ball(radius=1.5),
    Ball(radius=2.0, center=np.array([1.0, -3.0, 0.5])),
    Box(low=np.array([-1.0, 0.0, 2.0]), high=np.array([1.0, 0.5, 5.0])),
]


def name(case: object) -> str:
    """Readable test ids."""
    return getattr(case, "name", None) or type(case).__name__
