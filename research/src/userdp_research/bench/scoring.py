"""How good a model is for users it has not seen: loss, order, calibration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, log_softmax, softmax
from sklearn.metrics import roc_auc_score

from userdp.data.users import UserData
from userdp.losses import Loss
from userdp_research.bench.cells import Record
from userdp_research.bench.references import each_value, user_weights
from userdp_research.bench.solving import mean_and_spread

N_BINS = 10
_LIMIT = 1e6  # beyond, a slope of calibration is none


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Users to score models on, by a loss of one output.

    Regression is learned from targets scaled to [-1, 1] and told in their own units: own = middle + unit * scaled.
    """

    loss: Loss
    data: UserData = field(repr=False)
    middle: float = 0.0
    unit: float = 1.0

    @cached_property
    def weights(self) -> np.ndarray:
        """Of rows: each user counts once."""
        return user_weights(self.data)

    def score(self, model: np.ndarray) -> Record:
        """Loss by users and by rows, AUC, slope and bins of calibration, mean prediction / mean target. NOT PRIVATE."""
        y = self.data.targets
        margins = (self.data.dense() @ model.astype(np.float32)).astype(np.float64)
        losses = each_value(self.loss, margins, y) * self.unit**2
        if self.loss.classifies:
            predicted, observed, slope = expit(margins), y, logistic_slope(margins, y, self.weights)
            auc = float(roc_auc_score(y, margins))
        else:
            predicted, observed = self.middle + self.unit * margins, self.middle + self.unit * y
            slope, auc = linear_slope(predicted, observed, self.weights), None
        ratio = float(self.weights @ predicted / (self.weights @ observed))
        return {
            "loss": float(self.weights @ losses),
            "row_loss": float(losses.mean()),
            "auc": auc,
            "slope": slope,
            "mean_ratio": ratio,
            "bins": calibration_bins(predicted, observed, self.weights),
        }

    def constant(self) -> float:
        """Least loss by users of a constant prediction."""
        fraction = float(self.weights @ self.data.targets)
        if self.loss.classifies:
            fraction = min(max(fraction, 1e-12), 1 - 1e-12)
            fraction = float(np.log(fraction / (1 - fraction)))
        constant = np.full(self.data.n_rows, fraction)
        return float(self.weights @ each_value(self.loss, constant, self.data.targets)) * self.unit**2


def logistic_slope(margins: np.ndarray, targets: np.ndarray, weights: np.ndarray | None = None) -> float | None:
    """Slope b of the best logistic model a + b * margin: below 1 predictions are too extreme. Targets may be chances.

    None where margins do not differ.
    """
    weights = np.full(len(margins), 1 / len(margins)) if weights is None else weights
    centre = float(weights @ margins)
    spread = float(np.sqrt(weights @ (margins - centre) ** 2))
    if not spread > 1 / _LIMIT:
        return None
    z, (a, b) = (margins - centre) / spread, np.zeros(2)
    for _ in range(100):
        p = expit(a + b * z)
        residual, bend = weights * (p - targets), weights * p * (1 - p)
        gradient = np.array([residual.sum(), residual @ z])
        if np.abs(gradient).max() < 1e-10:
            break
        cross = bend @ z
        hessian = np.array([[bend.sum(), cross], [cross, bend @ (z * z)]]) + 1e-12 * np.eye(2)
        step = np.linalg.solve(hessian, gradient)
        step /= max(1.0, float(np.abs(step).max()))  # steps of at most 1 do not overshoot where p is 0 or 1
        a, b = a - step[0], b - step[1]
    return _finite(b / spread)


def linear_slope(predicted: np.ndarray, observed: np.ndarray, weights: np.ndarray | None = None) -> float | None:
    """Slope of targets on predictions; None where these do not differ."""
    weights = np.full(len(predicted), 1 / len(predicted)) if weights is None else weights
    centred = predicted - weights @ predicted
    variance = float(weights @ centred**2)
    return _finite(float(weights @ (centred * observed)) / variance) if variance > 1 / _LIMIT**2 else None


def softmax_slope(logits: np.ndarray, chances: np.ndarray) -> float | None:
    """Factor b of the best model softmax(a + b * logits), as for two classes."""
    spread = float(np.std(logits - logits.mean(axis=1, keepdims=True)))
    if not spread > 1 / _LIMIT:
        return None
    z, n = logits / spread, len(logits)

    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        moved = z * x[0] + np.append(0.0, x[1:])
        residual = softmax(moved, axis=1) - chances
        value = -float(np.sum(chances * log_softmax(moved, axis=1))) / n
        return value, np.append(np.sum(residual * z), residual[:, 1:].sum(axis=0)) / n

    start = np.append(spread, np.zeros(logits.shape[1] - 1))
    found = minimize(objective, start, jac=True, method="BFGS", options={"gtol": 1e-7})
    return _finite(float(found.x[0]) / spread)


def _finite(slope: float) -> float | None:
    return slope if abs(slope) < _LIMIT else None


def calibration_bins(
    predicted: np.ndarray, observed: np.ndarray, weights: np.ndarray | None = None, n_bins: int = N_BINS
) -> list[list[float]]:
    """Mean prediction and mean target of bins of equal weight, from the least prediction to the largest."""
    weights = np.full(len(predicted), 1 / len(predicted)) if weights is None else weights
    order = np.argsort(predicted)
    middles = np.cumsum(weights[order]) - weights[order] / 2  # a row on an edge goes where most of it is
    edges = np.searchsorted(middles, weights.sum() * np.arange(1, n_bins) / n_bins)
    found = []
    for part in np.split(order, edges):
        mass = weights[part].sum()
        if mass > 0:
            means = (float(weights[part] @ values[part] / mass) for values in (predicted, observed))
            found.append([round(mean, 6) for mean in means])
    return found


def collect(found: Sequence[Record], excess: Callable[[Record], float]) -> Record:
    """Scores of several runs as one record: mean and spread of each, bins averaged over runs."""
    record: Record = {"excess": mean_and_spread([excess(one) for one in found])}
    for name in ("loss", "row_loss", "auc", "slope", "mean_ratio"):
        known = [one[name] for one in found if one.get(name) is not None]
        record[name] = mean_and_spread(known) if known else None
    bins: list[Any] = [one["bins"] for one in found if len(one["bins"]) == N_BINS]
    return record | {"bins": np.round(np.mean(bins, axis=0), 6).tolist() if bins else None}
