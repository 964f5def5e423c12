"""Made-up users for solver tests, and the best model on them."""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize

from userdp.data.users import UserData


def make_users(n_users=3000, n_features=4, rows=(3, 12), seed=0, dtype=np.float64, kind="classes", truth_seed=0):
    """Users with unequal numbers of rows; badly scaled features, the last one an intercept."""
    rng = np.random.default_rng(seed)
    truth = np.random.default_rng(truth_seed).normal(size=n_features)
    counts = rng.integers(rows[0], rows[1] + 1, n_users)
    X = rng.normal(size=(counts.sum(), n_features)) * np.geomspace(1, 0.2, n_features)
    X /= np.maximum(1.0, np.linalg.norm(X, axis=1) / 2.0)[:, None]
    X[:, -1] = 1.0
    scores = X @ (truth / np.geomspace(1, 0.2, n_features))
    if kind == "classes":
        y = (rng.random(len(X)) < 1 / (1 + np.exp(-scores))).astype(float)
    elif kind == "several":
        y = np.clip(np.round(scores + 1.5 + 0.3 * rng.normal(size=len(X))), 0, 3)
    else:
        y = np.clip(scores + 0.2 * rng.normal(size=len(X)), -5, 5)
    return UserData(X.astype(dtype), y, np.concatenate([[0], np.cumsum(counts)]))


def values_and_slopes(loss, X, y, w):
    """Of each row: the loss, and its slope in each output (rows, outputs)."""
    predictions = X @ w.reshape(loss.n_outputs, -1).T
    if loss.n_outputs == 1:
        predictions = predictions[:, 0]
    with np.errstate(all="ignore"):
        return loss.value(predictions, y), loss.slope(predictions, y).reshape(len(y), -1)


def risk(loss, data, w):
    return float(np.mean(values_and_slopes(loss, data.dense().astype(float), data.targets, w)[0]))


def best_risk(loss, data, l2=0.0):
    """Least risk, with a penalty l2/2 |w|^2, without any domain, by a generic optimiser."""
    X, y = data.dense().astype(float), data.targets

    def objective(w):
        values, slopes = values_and_slopes(loss, X, y, w)
        return np.mean(values) + l2 / 2 * float(w @ w), (slopes.T @ X / len(X)).ravel() + l2 * w

    return minimize(objective, np.zeros(loss.n_outputs * X.shape[1]), jac=True, method="L-BFGS-B").fun
