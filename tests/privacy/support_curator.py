"""Data, plans, engines and statistics for the curator's tests."""

import numpy as np
from support import gaussian_removal, searched_removal

from userdp.data.users import UserData
from userdp.paper.outlier_removal import OutlierRemoval, RadiusSearch, SampledOutlierRemoval
from userdp.paper.paper_outlier_removal import PaperOutlierRemoval
from userdp.privacy.accounting import Budget
from userdp.privacy.clip import Clip
from userdp.privacy.plan import Plan, Step

BUDGET = Budget(4.0, 1e-5)
SIZE = 600


def make_data(n_users=SIZE, seed=0):
    rng = np.random.default_rng(seed)
    users = np.repeat(np.arange(n_users), rng.integers(1, 5, n_users))
    rows = rng.normal(1.0, 0.05, (len(users), 2))
    return UserData.from_arrays(rows, rng.integers(0, 2, len(users)), users)


def mean(size=SIZE, rounds=1, z=20.0):
    return OutlierRemoval(size, z, 0.8, 1e-6, 1e-9, rounds)  # a false abort in a thousand years


def plan_of(*mechanisms):
    return Plan(SIZE, tuple(Step(f"step {k}", 0, SIZE, m) for k, m in enumerate(mechanisms)))


class Explosive(UserData):
    """Data that explodes when touched; only what is public may be asked for: users, seed, store."""

    def __init__(self, n_users=None):
        object.__setattr__(self, "count", n_users)

    def __getattribute__(self, name):
        if name in ("insecure_seed", "store"):
            return None
        if name == "n_users" and object.__getattribute__(self, "count") is not None:
            return object.__getattribute__(self, "count")
        raise AssertionError(f"data was touched: {name}")


class FailingEngine:
    """Fails in its first call, then works; `result` is what it gives instead of failing."""

    def __init__(self, result=None):
        self.result, self.calls = result, 0

    def place(self, data):
        return data

    def vectors(self, statistic, data, users, n_groups):
        self.calls += 1
        if self.calls == 1:
            if isinstance(self.result, type):
                raise self.result(f"user's value {data.rows[0, 0]}")
            return self.result
        return np.zeros((n_groups, 1))

    def total(self, statistic, contribution, data, users):
        return contribution(self.vectors(statistic, data, users, len(users)))


class RecordingEngine:
    def __init__(self):
        self.calls = []

    def place(self, data):
        return data

    def vectors(self, statistic, data, users, n_groups):
        self.calls.append((np.array(users), n_groups))
        return np.zeros((n_groups, 1))

    def total(self, statistic, contribution, data, users):
        return contribution(self.vectors(statistic, data, users, len(users)))


class Given:
    """A statistic that gives each user's row of `rows`; `before` is called first, with the users."""

    needs_targets = takes_groups = False

    def __init__(self, rows, before=lambda users: None):
        self.rows, self.before, self.asked = rows, before, []

    def __call__(self, data, users, n_groups):
        self.asked.append(len(users))
        self.before(users)
        return self.rows[users]

    def check(self, n_features, dtype=np.float64):
        """Nothing to find: rows are given, and `before` is for the release alone."""


def searched(size=SIZE, z=20.0):
    return searched_removal(size, (0.5, 1.0, 2.0), z, 10.0, 1e-6)


def gaussian_tested(rounds=1):
    return gaussian_removal(SIZE, 20.0, 10.0, 1e-6, rounds=rounds, outliers=20)


def paper(size=SIZE):
    return PaperOutlierRemoval(size, 7.0, 3.0, 1e-6)


MECHANISMS = {
    "clip": Clip(SIZE, 20.0, block=7),
    "removal": mean(),
    "gaussian": gaussian_tested(),
    "searched": searched(),
    "paper": paper(),
    "search": RadiusSearch(SIZE, (0.5, 1.0, 2.0), SIZE - 100, 15.0),
    "sampled": SampledOutlierRemoval(SIZE, 0.5, 30.0, 2.0, 1e-6, outliers=10),
}


def hostile_rows():
    rows = np.random.default_rng(0).normal(1.0, 0.05, (SIZE, 2))
    rows[:5] = [[1e308, 1e-308], [1e308, 1e308], [-1e-308, 5e-324], [np.inf, 1e-308], [np.nan, 1e308]]
    return rows


def outcome(curator, statistic, radius=1.0, label="step 0"):
    """What a caller sees of a release: the vector, or the kind and text of the exception."""
    try:
        return curator.release(label, statistic, radius).tolist()
    except (RuntimeError, KeyboardInterrupt) as error:
        return type(error), str(error)
