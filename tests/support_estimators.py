"""Made-up people for tests of estimators."""

import numpy as np

from userdp import (
    HuberRegressor,
    LinearRegression,
    LinearSVC,
    LogisticRegression,
    PoissonRegressor,
    QuantileRegressor,
)

N_USERS = 3000
CLASSIFIERS = [LogisticRegression, LinearSVC]
REGRESSORS = [LinearRegression, HuberRegressor, QuantileRegressor]
ALL = [*CLASSIFIERS, *REGRESSORS, PoissonRegressor]
SEEDED = {"epsilon": 3.0, "max_rows_per_user": 12, "insecure_seed": 1}


def rows(n_users=N_USERS, seed=0):
    """Rows, log-odds, users."""
    rng = np.random.default_rng(seed)
    users = np.repeat(np.arange(n_users), rng.integers(1, 12, n_users))
    X = rng.uniform(-1, 1, (len(users), 3))
    return X, 2 * X[:, 0] - X[:, 1] + 0.5, users


def made(model, seed=0):
    """Rows, targets that suit the model, users."""
    X, z, users = rows(seed=seed)
    rng = np.random.default_rng(seed + 1)
    if isinstance(model, (LogisticRegression, LinearSVC)):
        return X, rng.random(len(z)) < 1 / (1 + np.exp(-2 * z)), users
    if isinstance(model, PoissonRegressor):
        return X, rng.poisson(np.exp(z)), users
    return X, 10 * z + 50 + rng.normal(0, 3, len(z)), users


def ready(kind, **parameters):
    ranged = {"target_range": (0.0, 100.0)} if kind in REGRESSORS else {}
    ranged |= {"max_count": 60.0} if kind is PoissonRegressor else {}
    return kind(**(SEEDED | ranged | parameters))
