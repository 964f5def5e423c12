"""Generated users and passes over them for the tests of safe passes."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import strategies as st

from userdp import losses
from userdp.data.users import UserData
from userdp.domains import Ball, Box
from userdp_research.stable_sgd import SafeBatchPass, SafeRowPass, SafeRows

NORM, TARGET = 1.5, 2.0
SMOOTH = [
    losses.squared,
    losses.huber(0.5),
    losses.logistic,
    losses.squared_hinge,
    losses.smoothed_hinge(0.3),
    losses.multinomial(3),
]
NON_SMOOTH = [losses.hinge, losses.absolute, losses.quantile(0.8)]
DOMAINS = [
    Ball(1.5),
    Ball(0.7, np.array([1.0, -3.0])),
    Box(np.array([-1.0, 0.2]), np.array([1.0, 0.5])),
]
HOSTILE = [math.nan, math.inf, -math.inf, 1e308, -1e308, 1e-308, 5e-324, 1e154, 0.0, -0.0]
cells = st.one_of(st.sampled_from(HOSTILE), st.floats(-3.0, 3.0), st.sampled_from([-1.0, 1.0]), st.floats())
labels = st.one_of(st.sampled_from([0.0, 1.0, -1.0, 2.0, 3.0, 0.5, 1e308, math.nan, math.inf]), st.floats(-9.0, 9.0))
user_rows = st.lists(st.tuples(cells, cells, labels), max_size=5)


def domain_of(domain, n_outputs):
    """The same domain for several outputs."""
    if isinstance(domain, Box):
        return Box(np.tile(domain.low, n_outputs), np.tile(domain.high, n_outputs))
    return Ball(domain.radius, None if domain.center is None else np.tile(domain.center, n_outputs))


def users_of(blocks, dtype=np.float64):
    rows = np.array([row[:2] for block in blocks for row in block], dtype=np.float64).reshape(-1, 2)
    targets = np.array([row[2] for block in blocks for row in block], dtype=np.float64)
    offsets = np.concatenate([[0], np.cumsum([len(block) for block in blocks])]).astype(np.int64)
    with np.errstate(all="ignore"):
        return UserData(np.ascontiguousarray(rows.astype(dtype)), targets, offsets)


def vector(statistic, blocks, dtype=np.float64):
    with np.errstate(all="ignore"):
        return statistic(users_of(blocks, dtype), np.arange(len(blocks)), 1)[0]


def row_pass(loss, domain, n_users, per_user=2, boldness=1.0, norm=NORM, start=None):
    """A pass with a step of `boldness` times the longest allowed."""
    domain = domain_of(domain, loss.n_outputs)
    rows = SafeRows(per_user, norm, None if loss.classifies else TARGET)
    start = domain.project(np.zeros(2 * loss.n_outputs)) if start is None else start
    width = None if loss.smooth else 0.5
    curvature = loss.curvature if loss.smooth else losses.smoothed(loss, width).curvature
    step = boldness * 2 / (curvature * norm**2) * (1 - 1e-12)
    return SafeRowPass(loss, start, domain, step, n_users, rows, width=width)


def batch_pass(sgd, n_steps, usual=None, reach=math.inf):
    plain = (sgd.loss, sgd.start, sgd.domain, sgd.step_size, sgd.n_users, sgd.rows)
    return SafeBatchPass(*plain, n_steps, usual, reach, width=sgd.width)


def moved(statistic, blocks, replaced, other, dtype=np.float64):
    """How far replacing one user moves the vector."""
    neighbour = [other if j == replaced else block for j, block in enumerate(blocks)]
    first, second = vector(statistic, blocks, dtype), vector(statistic, neighbour, dtype)
    assert np.all(np.isfinite(first))
    assert np.all(np.isfinite(second))
    return float(np.linalg.norm(first - second))


neighbours = st.lists(user_rows, min_size=2, max_size=6).flatmap(
    lambda blocks: st.tuples(st.just(blocks), st.integers(0, len(blocks) - 1), user_rows)
)
