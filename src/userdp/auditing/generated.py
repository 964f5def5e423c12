"""Made-up users and the audit's own coins: nobody's data, so ordinary random numbers will do."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from userdp.data.users import UserData


def made_up_users(n_users: int, rows: int, n_features: int, seed: int = 0) -> UserData:
    """Users with so many rows of length at most 1 each, and classes."""
    generator = np.random.default_rng(seed)
    X = generator.normal(size=(n_users * rows, n_features))
    X /= np.maximum(1.0, np.linalg.norm(X, axis=1))[:, None]
    y = (X[:, 0] > 0).astype(np.float64)
    return UserData(X, y, np.arange(n_users + 1) * rows)


def coins(n: int, seed: int | None = None) -> NDArray[np.int64]:
    """n fair coins, +1 or -1."""
    return 2 * np.random.default_rng(seed).integers(2, size=n) - 1
