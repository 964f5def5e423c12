"""Made-up users whose best model is known."""

from __future__ import annotations

import math

import numpy as np

from userdp.data import UserData
from userdp.losses import Loss


def generate(loss: Loss, n_users: int, rows: int, d: int, seed: int) -> tuple[UserData, np.ndarray]:
    """Users with a taste of their own, rows of norm about 1 (at most 2), and the weights they were made by (norm 2).

    Of the logistic loss these weights are the best ones. Other losses have targets of the same kind.
    """
    rng = np.random.default_rng(seed)
    truth = np.random.default_rng(d).normal(size=d)
    truth *= 2 / np.linalg.norm(truth)
    taste = np.repeat(rng.normal(size=(n_users, d)), rows, axis=0)
    X = (math.sqrt(0.9) * rng.normal(size=taste.shape) + math.sqrt(0.1) * taste) / math.sqrt(d)
    X = (X / np.maximum(1, np.linalg.norm(X, axis=1, keepdims=True) / 2)).astype(np.float32)
    scores = X @ truth
    noise = rng.random(len(X)) if loss.classifies else 0.5 * rng.standard_t(4, len(X))
    y = (noise < 1 / (1 + np.exp(-scores))).astype(float) if loss.classifies else np.clip(scores + noise, -5, 5)
    return UserData(X, y, np.arange(0, len(X) + 1, rows)), truth
