"""Sparse rows for tests, and the same rows dense."""

import numpy as np
import scipy.sparse as sp

from userdp import UserData


def made(n_rows, n_features=12, entries=4, seed=0, dtype=np.float64, index=np.int32, repeated=True):
    """Rows with entries in any order, zeros among them, some empty; if `repeated` a column may come more than once."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, entries + 1, n_rows)
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(index)
    draws = [rng.choice(n_features, count, replace=repeated) for count in counts]
    indices = np.concatenate([*draws, np.zeros(0, int)]).astype(index)
    values = rng.normal(size=len(indices)).astype(dtype)
    values[rng.random(len(values)) < 0.1] = 0.0
    return sp.csr_array((values, indices, indptr), shape=(n_rows, n_features))


def both(X, y, users, **options):
    """The data by its entries, and dense."""
    return UserData.from_arrays(X, y, users, **options), UserData.from_arrays(X.toarray(), y, users, **options)


def close(found, expected, tolerance=1e-9):
    """Whether both are the same but for rounding, or both are not finite, user by user."""
    found, expected = np.atleast_2d(found), np.atleast_2d(expected)
    usable = np.isfinite(expected).all(axis=1)
    assert np.array_equal(np.isfinite(found).all(axis=1), usable)
    size = max(1.0, float(np.abs(expected[usable]).max(initial=0.0)))
    return bool(np.all(np.abs(found[usable] - expected[usable]) <= tolerance * size))
