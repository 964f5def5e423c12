"""Data and statistics of tests of them."""

from __future__ import annotations

import numpy as np

from userdp.data.users import UserData
from userdp.engines import LocalEngine

N_FEATURES = 7
ROWS_OF_USERS = [3, 1, 0, 64, 200, 4, 129, 2, 65, 5]


def data_of(dtype=np.float64, seed=0, n_features=N_FEATURES, rows_of_users=ROWS_OF_USERS, n_classes=2) -> UserData:
    rng = np.random.default_rng(seed)
    n_rows = sum(rows_of_users)
    rows = rng.standard_normal((n_rows, n_features)).astype(dtype)
    offsets = np.concatenate([[0], np.cumsum(rows_of_users)])
    return UserData(rows, rng.integers(0, n_classes, n_rows).astype(float), offsets)


def weights_of(loss, n_features=N_FEATURES):
    return np.random.default_rng(1).standard_normal(n_features * loss.n_outputs)


def vectors(statistic, data, users=None) -> np.ndarray:
    users = np.arange(data.n_users) if users is None else np.asarray(users)
    return LocalEngine().vectors(statistic, data, users, len(users))


def assert_same_totals(found, expected, n_users, precision=1e-12, bits=40):
    """Totals of two code paths agree up to rounding: a unit of the grid, and the vectors' precision, for each user.

    Last digits depend on the processor, by how many products it adds at once and whether it fuses them. What was
    counted beside the sums has no digits: it is the same.
    """
    assert (found[-1], len(found)) == (expected[-1], len(expected))
    np.testing.assert_allclose(found[:-1], expected[:-1], rtol=0, atol=n_users * (1 + precision * 2.0**bits))


def with_user(data, user, rows=None, targets=None) -> UserData:
    """The same data with one user's rows or targets overwritten."""
    block = slice(data.offsets[user], data.offsets[user + 1])
    new_rows, new_targets = data.rows.copy(), data.targets.copy()
    if rows is not None:
        new_rows[block] = rows
    if targets is not None:
        new_targets[block] = targets
    return UserData(new_rows, new_targets, data.offsets)
