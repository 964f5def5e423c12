"""Models that protect nobody, to compare with, and scores of models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
from scipy.optimize import minimize
from scipy.special import expit
from sklearn.metrics import roc_auc_score

from userdp.data import UserData
from userdp.losses import Loss, smoothed

_F = TypeVar("_F", bound=Callable[..., Any])
_compiled: Callable[[_F], _F] = numba.njit(nogil=True)
_WIDTH = 1e-3  # to which kinks are rounded off for the generic optimiser


def logistic_optimum(data: UserData, ridge: float = 1e-6) -> np.ndarray:
    """Newton's method on the logistic loss of all rows."""
    X, y = data.rows.astype(np.float64), data.targets
    w = np.zeros(X.shape[1])
    for _ in range(25):
        p = expit(X @ w)
        gradient = X.T @ (p - y) / len(y) + ridge * w
        hessian = (X * (p * (1 - p))[:, None]).T @ X / len(y) + ridge * np.eye(len(w))
        step = np.linalg.solve(hessian, gradient)
        w -= step
        if np.abs(step).max() < 1e-9:
            break
    return w


def optimum(loss: Loss, data: UserData, l2: float = 0.0, width: float = _WIDTH) -> np.ndarray:
    """Minimiser of the mean loss over rows, penalised, by a generic optimiser; kinks are rounded off to `width`."""
    X, smooth = data.rows.astype(np.float64), loss if loss.smooth else smoothed(loss, width)

    def objective(w: np.ndarray) -> tuple[float, np.ndarray]:
        predictions = X @ w
        value = _mean(smooth.value, predictions, data.targets) + l2 / 2 * w @ w
        return value, X.T @ _each(smooth.slope, predictions, data.targets) / len(X) + l2 * w

    found = minimize(objective, np.zeros(X.shape[1]), jac=True, method="L-BFGS-B", options={"maxiter": 1000})
    return np.asarray(found.x)


def mean_loss(loss: Loss, data: UserData, weights: np.ndarray, l2: float = 0.0) -> float:
    """Mean loss over rows, penalised."""
    predictions = data.rows.astype(np.float64) @ weights
    return float(_mean(loss.value, predictions, data.targets) + l2 / 2 * weights @ weights)


def scores(weights: np.ndarray, data: UserData) -> tuple[float, float]:
    """Log loss and AUC over rows."""
    margins = data.rows.astype(np.float64) @ weights
    log_loss = np.mean(np.logaddexp(0, (1 - 2 * data.targets) * margins))
    return float(log_loss), float(roc_auc_score(data.targets, margins))


@_compiled
def _mean(value: Any, predictions: np.ndarray, targets: np.ndarray) -> float:
    total = 0.0
    for i in range(len(predictions)):
        total += value(predictions[i], targets[i])
    return total / len(predictions)


@_compiled
def _each(slope: Any, predictions: np.ndarray, targets: np.ndarray) -> np.ndarray:
    slopes = np.empty_like(predictions)
    for i in range(len(predictions)):
        slopes[i] = slope(predictions[i], targets[i])
    return slopes
