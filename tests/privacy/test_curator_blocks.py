"""Blocks of users: the same mean in less memory, and a round that fails leaves nothing behind."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from support import SilentNoise
from support_curator import BUDGET, SIZE, Explosive, Given, RecordingEngine, make_data

from userdp.data.users import UserData
from userdp.domains import Ball
from userdp.engines.local import LocalEngine
from userdp.losses import logistic
from userdp.paper.outlier_removal import RadiusSearch
from userdp.privacy import curator as module
from userdp.privacy.accounting import Budget
from userdp.privacy.clip import Clip
from userdp.privacy.curator import Curator
from userdp.privacy.ledger import Ledger
from userdp.privacy.mechanism import Aborted, Session
from userdp.privacy.noise import SeededNoise
from userdp.privacy.plan import Plan, Step
from userdp.statistics.moments import UserMean
from userdp.statistics.sgd import OnePassSGD


def small_data():
    return UserData.from_arrays(np.zeros((50, 1)), None, np.arange(50))


def clip_release(block, rows, monkeypatch):
    monkeypatch.setattr(module, "noise_source", lambda seed: SilentNoise())
    plan = Plan(50, (Step("step 0", 0, 50, Clip(50, 20.0, rounds=2, block=block)),))
    statistic = Given(rows)
    curator = Curator(small_data(), plan, Ledger(BUDGET))
    released = [curator.release("step 0", statistic, 2.0) for _ in range(2)]
    np.testing.assert_array_equal(*released)
    return released[0], statistic.asked


@pytest.mark.parametrize(
    ("block", "asked"),
    [(7, [7] * 7 + [1]), (1, [1] * 50), (10, [10] * 5), (49, [49, 1]), (50, [50]), (1000, [50])],
)
def test_blocks_of_users_give_the_mean_of_all(monkeypatch, block, asked):
    rows = np.random.default_rng(0).normal(0, 3, (50, 4))
    rows[[0, 49]] = [[np.nan, 0, 0, 0], [1e308, -1e308, 1e-308, 0]]
    whole, _ = clip_release(1000, rows, monkeypatch)
    released, seen = clip_release(block, rows, monkeypatch)
    assert seen == asked * 2
    np.testing.assert_allclose(released, whole, rtol=1e-13)
    lengths = np.hypot.reduce(rows[1:49], axis=1)
    clipped = rows[1:49] * np.minimum(1, 2 / lengths)[:, None]
    expected = clipped.sum(axis=0) + np.array([2**0.5, -(2**0.5), 0, 0])
    np.testing.assert_allclose(released, expected / 50, rtol=1e-12)


def test_a_block_that_fails_uses_up_its_round_and_leaves_nothing_behind(monkeypatch):
    monkeypatch.setattr(module, "noise_source", lambda seed: SilentNoise())
    plan = Plan(50, (Step("step 0", 0, 50, Clip(50, 20.0, rounds=2, block=7)),))
    curator = Curator(small_data(), plan, Ledger(BUDGET))

    def fail_late(users):
        if 40 in users:
            raise ValueError

    with pytest.raises(RuntimeError, match="Expected the statistic"):
        curator.release("step 0", Given(np.ones((50, 2)), fail_late), 2.0)
    np.testing.assert_array_equal(curator.release("step 0", Given(0.5 * np.ones((50, 2))), 1.0), [0.5, 0.5])
    with pytest.raises(RuntimeError, match="it is closed"):
        curator.release("step 0", Given(np.ones((50, 2))), 1.0)


@pytest.mark.parametrize("wrong", [np.zeros((6, 2)), np.zeros((8, 2)), np.zeros(7), np.zeros((7, 0)), "text"])
def test_a_block_of_another_shape_is_refused(wrong):
    class WrongFirst(Given):
        def __call__(self, data, users, n_groups):
            return wrong if 3 in users else np.zeros((n_groups, 2))

    plan = Plan(50, (Step("step 0", 0, 50, Clip(50, 20.0, block=7)),))
    curator = Curator(small_data(), plan, Ledger(BUDGET), insecure_seed=0)
    with pytest.raises(RuntimeError, match="Expected the statistic"):
        curator.release("step 0", WrongFirst(None), 1.0)


def test_groups_are_never_split_into_blocks(monkeypatch):
    """A group's vector is made of several users, whom a block of vectors would tear apart."""
    monkeypatch.setattr(module, "noise_source", lambda seed: SilentNoise())
    plan = Plan(SIZE, (Step("step 0", 0, SIZE, Clip(100, 20.0, block=7), n_groups=100),))
    engine = RecordingEngine()
    curator = Curator(make_data(), plan, Ledger(BUDGET), engine=engine)
    curator.release("step 0", OnePassSGD(logistic, np.zeros(2), Ball(1.0), 0.1), 1.0)
    ((users, n_groups),) = engine.calls
    assert (len(users), n_groups) == (SIZE, 100)


class _Totals(LocalEngine):
    def total(self, statistic, contribution, data, users):
        made = super().total(statistic, contribution, data, users)
        return self.change(made)


@pytest.mark.parametrize("change", [lambda made: made.astype(float), lambda made: made.tolist(), lambda made: made[:1]])
def test_a_total_that_is_none_uses_up_the_round_and_tells_nothing(change):
    engine = _Totals()
    object.__setattr__(engine, "change", change)
    assert_round_used_up(engine)


def test_an_abort_of_an_engine_is_a_failure_like_any_other():
    def aborting(made):
        raise Aborted

    engine = _Totals()
    object.__setattr__(engine, "change", aborting)
    assert_round_used_up(engine)


def assert_round_used_up(engine):
    data = UserData.from_arrays(np.ones((20, 2)), None, np.arange(20))
    plan = Plan(20, (Step("mean", 0, 20, Clip(20, 10.0)),))
    curator = Curator(data, plan, Ledger(Budget(1.0, 1e-6)), engine=engine, insecure_seed=0)
    with pytest.raises(RuntimeError, match="The round is used up") as caught:
        curator.release("mean", UserMean(), 1.0)
    assert caught.value.__cause__ is None
    with pytest.raises(RuntimeError, match="closed"):
        curator.release("mean", UserMean(), 1.0)


def test_mechanisms_that_need_all_vectors_take_no_totals():
    session = RadiusSearch(10, (1.0, 2.0), 8, 3.0).start(SeededNoise(0))
    assert session.contribution(1.0) is None
    with pytest.raises(RuntimeError, match="all vectors of a round at once"):
        session.release_total(np.zeros(3, dtype=np.int64), 1.0)


@dataclass(frozen=True)
class Picky(Clip):
    """Takes row means only, and asks each user for its own line of what it was told."""

    kind: ClassVar[str] = "picky"

    def check_statistic(self, statistic, label, radius):
        if not isinstance(statistic, Given):
            raise TypeError(f"Expected what was given in step {label!r}, at radius {radius}.")

    def start(self, noise):
        return Told()


class Told(Session):
    """Adds up blocks of vectors that are made of what each is told."""

    total = 0.0

    def asked(self, statistic, first, last):
        def check(users):
            assert len(users) == last - first

        return Given(np.full((50, 1), 1.0 * first), check)

    def add(self, vectors, radius):
        self.total = self.total + vectors.sum(axis=0)

    def release(self, vectors, radius):
        self.add(vectors, radius)
        return self.total / 50


def test_a_mechanism_may_refuse_a_statistic_before_data_is_touched():
    plan = Plan(50, (Step("step 0", 0, 50, Picky(50, 20.0)),))
    curator = Curator(Explosive(50), plan, Ledger(BUDGET))
    with pytest.raises(TypeError, match=r"Expected what was given in step 'step 0', at radius 2\.0"):
        curator.release("step 0", UserMean(), 2.0)


def test_a_session_says_what_each_block_is_asked_for():
    """Blocks of 20, 20 and 10 users give 0, 20 and 40."""
    plan = Plan(50, (Step("step 0", 0, 50, Picky(50, 20.0, block=20)),))
    released = Curator(small_data(), plan, Ledger(BUDGET)).release("step 0", Given(np.zeros((50, 1))), 100.0)
    np.testing.assert_allclose(released, [(20 * 20 + 10 * 40) / 50], rtol=1e-12)
