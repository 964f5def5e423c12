"""Non-private models to compare with, and what any private model must cost."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize

from userdp.data.users import UserData
from userdp.losses import Loss, smoothed
from userdp.privacy.accounting import Budget, gaussian_multiplier
from userdp.statistics.gradients import MeanGradient

_WIDTH = 1e-3  # to which losses are smoothed for the generic optimiser
_CHUNK = 1 << 16  # rows that are in double precision at a time
_MANY_ROWS = 1 << 18  # above, Newton's method begins at the optimum of a tenth of the users
_NUDGE = 1e-4  # of predictions, to tell a slope's derivative
_FLAT = 1e-8  # eigenvalues of the Hessian, of unit diagonal, below which the loss does not bend


def optimum(loss: Loss, data: UserData, l2: float = 0.0, width: float = _WIDTH) -> np.ndarray:
    """Minimiser of the mean loss over rows, penalised, by a generic optimiser; smoothed to `width`."""
    X, smooth = data.dense().astype(np.float64), loss if loss.smooth else smoothed(loss, width)

    def objective(w: np.ndarray) -> tuple[float, np.ndarray]:
        predictions = X @ w
        value = each_value(smooth, predictions, data.targets).mean() + l2 / 2 * w @ w
        return value, X.T @ _slopes(smooth, predictions[:, None], data.targets)[:, 0] / len(X) + l2 * w

    found = minimize(objective, np.zeros(X.shape[1]), jac=True, method="L-BFGS-B", options={"maxiter": 1000})
    return np.asarray(found.x)


def user_weights(data: UserData) -> np.ndarray:
    """Each row's weight in a mean over users of their means over rows; users without rows do not count."""
    sizes = np.diff(data.offsets)
    return np.repeat(1 / (np.maximum(sizes, 1) * np.count_nonzero(sizes)), sizes)


def user_optimum(loss: Loss, data: UserData, ridge: float = 1e-9) -> np.ndarray:
    """Minimiser of the mean over users of their mean loss, what solvers minimise: Newton's method, of smooth losses."""
    if data.n_rows > _MANY_ROWS and data.n_users > _MANY_ROWS // 1000:
        w = user_optimum(loss, data.part(0, data.n_users // 10), ridge)
    else:
        w = np.zeros(loss.n_outputs * data.n_features)
    value, gradient, hessian = _expansion(loss, data, w, ridge)
    for _ in range(50):
        step = _bent_inverse(hessian)[0] @ gradient
        while True:
            moved = _expansion(loss, data, w - step, ridge)
            if moved[0] <= value + 1e-12:
                break
            step /= 2
        gained = value - moved[0]
        w, (value, gradient, hessian) = w - step, moved
        if gained < 1e-11:
            break
    return w


def _expansion(loss: Loss, data: UserData, w: np.ndarray, ridge: float = 0.0) -> tuple[float, np.ndarray, np.ndarray]:
    """Value, gradient and Hessian of the users' mean loss, penalised; the Hessian by differences of slopes."""
    k, d = loss.n_outputs, data.n_features
    value, gradient, hessian = ridge / 2 * w @ w, ridge * w, ridge * np.eye(k * d)
    blocks = hessian.reshape(k, d, k, d)
    for X, y, weights in _chunks(data):
        P = X @ w.reshape(k, d).T
        value += weights @ each_value(loss, P if k > 1 else P[:, 0], y)
        gradient += ((_slopes(loss, P, y) * weights[:, None]).T @ X).ravel()
        for b in range(k):
            nudge = _NUDGE * np.eye(k)[b]
            bend = (_slopes(loss, P + nudge, y) - _slopes(loss, P - nudge, y)) / (2 * _NUDGE)
            for a in range(k):
                blocks[a, :, b, :] += (X * (weights * bend[:, a])[:, None]).T @ X
    return float(value), gradient, (hessian + hessian.T) / 2


def _chunks(data: UserData) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    weights = user_weights(data)
    for start in range(0, data.n_rows, _CHUNK):
        part = slice(start, start + _CHUNK)
        yield data.dense(part).astype(np.float64), data.targets[part], weights[part]


def _bent_inverse(hessian: np.ndarray) -> tuple[np.ndarray, int]:
    """Inverse on the directions in which the loss bends, in any units of the weights, and how many these are."""
    scale = 1 / np.sqrt(np.maximum(np.diag(hessian), np.finfo(float).tiny))
    values, vectors = np.linalg.eigh(hessian * scale * scale[:, None])
    bent = values > _FLAT * values[-1]
    basis = scale[:, None] * vectors[:, bent] / np.sqrt(values[bent])
    return basis @ basis.T, int(bent.sum())


@dataclass(frozen=True)
class Yardstick:
    """What one Gaussian release of users' influences would cost, with their scale and the Hessian known beforehand.

    Without delta it has Laplace noise, for 1-norms of sqrt(d) times their lengths.

    rho = sqrt(tr(H^-1 Cov g_u)), the root-mean-square norm of a user's influence H^-1/2 g_u at the optimum, where H is
    the Hessian and g_u the user's mean gradient; `dimension` counts the directions in which the loss bends.
    """

    rho: float
    dimension: int

    def excess(self, n_users: int, budget: Budget | None) -> float:
        """d/2 (2 rho z/n)^2 for the noise, z = 1/mu(epsilon, delta), and rho^2/(2n) for the data; None: no noise."""
        noise = 0.0 if budget is None else 2 * self.rho * self._multiplier(budget) / n_users
        return self.dimension / 2 * noise**2 + self.rho**2 / (2 * n_users)

    def _multiplier(self, budget: Budget) -> float:
        return gaussian_multiplier(budget) if budget.delta else math.sqrt(2 * self.dimension) / budget.epsilon

    def facts(self, n_users: int, budget: Budget | None, unit: float = 1.0) -> dict[str, Any]:
        """For a record: yard in the squared unit, rho in the unit, and s = sqrt(d)/(mu n), how hard the privacy is."""
        s = None if budget is None else math.sqrt(self.dimension) * self._multiplier(budget) / n_users
        return {"yard": self.excess(n_users, budget) * unit**2, "rho": self.rho * unit, "s": s}


def yardstick(loss: Loss, data: UserData, best: np.ndarray) -> Yardstick:
    """Of these users, at the minimiser of their mean loss. NOT PRIVATE."""
    inverse, covariance, dimension = _bread_and_meat(loss, data, best)
    return Yardstick(math.sqrt(max(0.0, float(np.sum(inverse * covariance)))), dimension)


def clustered_covariance(loss: Loss, data: UserData, best: np.ndarray) -> np.ndarray:
    """Of the minimiser's coefficients, by the sandwich H^-1 C H^-1 / n with one cluster per user. NOT PRIVATE.

    H is the Hessian of the users' mean loss, C the covariance of their mean gradients at its minimiser, n how many
    users have rows; there is no correction for small samples.
    """
    inverse, covariance, _ = _bread_and_meat(loss, data, best)
    found: np.ndarray = inverse @ covariance @ inverse / np.count_nonzero(np.diff(data.offsets))
    return found


def release_covariance(loss: Loss, data: UserData, best: np.ndarray, budget: Budget) -> np.ndarray:
    """Covariance of the noise in coefficients from one optimally preconditioned Gaussian release. NOT PRIVATE.

    Users' mean gradients at the minimiser are multiplied by C^-1/2, clipped at their root-mean-square norm sqrt(d),
    averaged with noise of standard deviation 2 sqrt(d) z/n, z = 1/mu(epsilon, delta), and multiplied by H^-1 C^1/2: the
    covariance is (2 z sqrt(d)/n)^2 H^-1 C H^-1. So noise has the same ratio to the clustered standard error, 2 z
    sqrt(d/n), in every combination of coefficients, and every other preconditioner has a larger one in some of them.

    The bias of clipping is not counted, and H, C and the minimiser are taken as known, so that a private fit has more
    error. One coefficient released by itself would have 1/sqrt(d) of this noise.
    """
    inverse, covariance, dimension = _bread_and_meat(loss, data, best)
    noise = 2 * gaussian_multiplier(budget) / np.count_nonzero(np.diff(data.offsets))
    found: np.ndarray = noise**2 * dimension * inverse @ covariance @ inverse
    return found


def _bread_and_meat(loss: Loss, data: UserData, best: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """H^-1 on the directions in which the loss bends, the covariance of users' gradients, how many directions."""
    inverse, dimension = _bent_inverse(_expansion(loss, data, best)[2])
    owners = np.flatnonzero(np.diff(data.offsets))
    gradients = MeanGradient(loss, best)(data, owners, len(owners))
    return inverse, np.atleast_2d(np.cov(gradients, rowvar=False, bias=True)), dimension


def worst_case_rate(n_users: int, rows_per_user: int, dimension: int, epsilon: float) -> float:
    """min(1, 1/sqrt(n m) + sqrt(d) / (epsilon n sqrt(m))), in units of L R: the lower bound's rate, no constants.

    For every private algorithm there is a convex problem on which its excess risk is a constant times that at least. On
    other problems, or with the constant, less is possible: only the slopes of its line can be compared.

    Paper: Levy et al. 2021, the lower bound of stochastic convex optimisation, as section 1 of the paper quotes it; no
    excess exceeds L R.
    """
    private = math.sqrt(dimension) / (epsilon * n_users)
    return min(1.0, (1 / math.sqrt(n_users) + private) / math.sqrt(rows_per_user))


def mean_loss(loss: Loss, data: UserData, weights: np.ndarray, l2: float = 0.0) -> float:
    """Mean loss over rows, penalised."""
    predictions = data.dense().astype(np.float64) @ weights
    return float(each_value(loss, predictions, data.targets).mean() + l2 / 2 * weights @ weights)


def _slopes(loss: Loss, predictions: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """One column per output."""
    with np.errstate(all="ignore"):
        slopes = loss.slope(predictions if loss.n_outputs > 1 else np.ascontiguousarray(predictions[:, 0]), targets)
    return np.asarray(slopes, np.float64).reshape(len(targets), -1)


def each_value(loss: Loss, predictions: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Each row's loss."""
    with np.errstate(all="ignore"):
        return np.asarray(loss.value(np.ascontiguousarray(predictions, np.float64), targets), np.float64)
