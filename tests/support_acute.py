"""Users with hostile rows, for means of vectors that never point apart."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import strategies as st

from userdp.data.users import UserData

# Rows whose squares, or fourth powers, over- or underflow, are subnormal, or are no numbers.
HOSTILE = [0.0, -0.0, 1.0, -1.0, 1e-200, 1e-162, -3e-162, 1e-81, 1e-60, 1e60, 1e77, 1e150, 1e300, -1e300, 5e-324]
HOSTILE += [math.nan, math.inf, -math.inf]
entries = st.one_of(st.sampled_from(HOSTILE), st.floats(-2.0, 2.0), st.floats())


def users_of(rows_of_users, n_features, dtype=np.float64):
    """Data of users with these rows; a user may have none."""
    sizes = [len(rows) for rows in rows_of_users]
    rows = [np.asarray(rows, dtype=float).reshape(-1, n_features) for rows in rows_of_users]
    with np.errstate(all="ignore"):
        joined = np.concatenate(rows).astype(dtype)
    return UserData(joined, np.zeros(len(joined)), np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))


@st.composite
def bases(draw, n_features):
    """A matrix or a diagonal, ordinary or of entries of all sizes."""
    shape = (n_features,) if draw(st.booleans()) else (n_features, n_features)
    if draw(st.booleans()):
        return np.random.default_rng(draw(st.integers(0, 9))).normal(size=shape)
    sizes = st.sampled_from([1.0, -1.0, 0.0, 1e-5, 1e5, 1e-150, 1e150])
    size = int(np.prod(shape))
    return np.array(draw(st.lists(sizes, min_size=size, max_size=size))).reshape(shape)


@st.composite
def neighbouring_users(draw):
    """Users' rows, what replaces those of one user, a basis, and a type: rows repeat, and are of all sizes."""
    n_features = draw(st.integers(1, 4))
    row = st.lists(entries, min_size=n_features, max_size=n_features)
    kinds = draw(st.lists(row, min_size=1, max_size=3))
    user = st.lists(st.one_of(st.sampled_from(kinds), row), min_size=0, max_size=4)
    users = draw(st.lists(user, min_size=2, max_size=5))
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    replaced, replacement = draw(st.integers(0, len(users) - 1)), draw(user)
    other = [replacement if number == replaced else rows for number, rows in enumerate(users)]
    basis = draw(bases(n_features))
    return users_of(users, n_features, dtype), users_of(other, n_features, dtype), basis, replaced


def all_of(statistic, data):
    """A statistic of all users."""
    with np.errstate(all="ignore"):
        return statistic(data, np.arange(data.n_users), data.n_users)


def inner(x, y):
    """Inner product that is rounded once."""
    return math.fsum(float(a) * float(b) for a, b in zip(x, y, strict=True))
