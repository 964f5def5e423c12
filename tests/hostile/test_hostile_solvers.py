"""One malicious user against every solver: every release moves by at most what is paid for, and nothing else tells.

The solver runs on good data, then on data where one person sent something else, and gets the answers of the first run:
so every number that noise is added to can be compared, round after round, and whatever differs in the end would have
come from the data on another way than through a release.
"""

import functools
import math

import numpy as np
import pytest
from support_hostile import SENT, Tape, TapedCurator, replaced
from support_solvers import make_users

from userdp import Ball, Budget, Ledger, losses
from userdp.engines import local
from userdp.privacy.clip import Clip, ClippedTotal
from userdp.privacy.plan import Plan, Step
from userdp.solvers import solver as solvers
from userdp.solvers.problem import Problem
from userdp.solvers.solver import SOLVERS, Phase, Request, SolverPlan
from userdp.statistics.gradients import ClippedGradient, MeanGradient

SIZES = {"calibrated": (1500, 6, Budget(6.0, 1e-4)), "paper": (14_000, 2, Budget(10.0, 1e-4))}
# Gradients a row, for solvers whose plans can be limited; rounds are many otherwise.
LIMITS = {"accelerated": 4.0, "asi-liu": 40.0, "bassily-sun": 2.0, "levy": 5.0, "example-level": 0.05}
PROBLEM = Problem(losses.logistic, Ball(5.0), 4, 2.5)
# As printed it takes 14,000 users and hundreds of rounds: a few kinds of rows will do.
FEW = ("nan", "huge", "nothing", "too many")
CASES = [
    pytest.param(*key, sent, id=f"{' '.join(key)}: {sent}")
    for key in SOLVERS
    for sent in SENT
    if key[1] == "calibrated" or sent in FEW
]


class PlainSteps:
    """One mean of gradients, whose statistic leaves clipping to the mechanism."""

    def __init__(self, phase):
        self.phases = (phase,)

    def releases(self, problem, found):
        found.weights = yield Request("gradients", MeanGradient(problem.loss, problem.start), self.phases[0].radius)


def plain_plan(n_users):
    clip = Clip(n_users, 5.0)
    certified = Plan(n_users, (Step("gradients", 0, n_users, clip),))
    phase = Phase("gradients", n_users, 1.0, clip.noise_std(1.0, PROBLEM.dimension), n_steps=1)
    return SolverPlan(certified, PlainSteps(phase), n_users, math.inf)


@functools.cache
def plan_of(solver, mode):
    if solver == "plain":
        return plain_plan(SIZES[mode][0])
    n_users, rows_per_user, budget = SIZES[mode]
    few = {}
    if mode == "calibrated" and solver in LIMITS:
        few = {"max_gradients": int(LIMITS[solver] * n_users * rows_per_user)}
    return SOLVERS[solver, mode].plan(PROBLEM, n_users, rows_per_user, budget, **few)


def run(solver, mode, data, tape, replay):
    plan = plan_of(solver, mode)
    curator = TapedCurator(data, plan.certified, Ledger(SIZES[mode][2]), tape, replay)
    return solvers.run(PROBLEM, plan, curator)


@functools.cache
def usual(solver, mode):
    """Good data, all that happened on it, and what came of it."""
    n_users, rows_per_user, _ = SIZES[mode]
    data, tape = make_users(n_users, rows=(1, rows_per_user)), Tape()
    return data, tape, run(solver, mode, data, tape, replay=False)


@pytest.mark.parametrize(("solver", "mode", "sent"), CASES)
def test_one_user_moves_releases_by_what_is_paid_for_and_nothing_else(solver, mode, sent):
    data, tape, before = usual(solver, mode)
    assert np.all(np.isfinite(before.weights))
    hostile = replaced(data, 7, *SENT[sent](data.n_features))
    after = run(solver, mode, hostile, tape, replay=True)
    np.testing.assert_array_equal(after.weights, before.weights)
    for told in ("aborted", "message", "n_gradients", "phases", "bound"):
        assert getattr(after, told) == getattr(before, told), told


def test_the_comparison_notices_a_user_who_counts_too_much(monkeypatch):
    """It means something: with very long vectors clipped to ten radii it complains."""

    def ten_radii(self, vectors):
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True) / self.radius
        clipped = vectors / self.radius / np.maximum(lengths, 1) * np.where(lengths > 1000, 10, 1)
        return np.append((clipped * 2.0**self.bits).astype(np.int64).sum(axis=0), len(vectors))

    monkeypatch.setattr(local, "_ADDED_UP", ())
    monkeypatch.setattr(ClippedTotal, "__call__", ten_radii)
    data, tape = make_users(1500, rows=(1, 6)), Tape()
    run("plain", "calibrated", data, tape, replay=False)
    hostile = replaced(data, 7, *SENT["long"](data.n_features))
    with pytest.raises(AssertionError, match="sensitivities"):
        run("plain", "calibrated", hostile, tape, replay=True)


def test_the_comparison_notices_users_who_change_others(monkeypatch):
    """And with vectors that depend on everybody's rows."""
    honest = ClippedGradient.vectors

    def leaky(self, data, users):
        return honest(self, data, users) + np.isfinite(data.rows).mean()

    monkeypatch.setattr(local, "_ADDED_UP", ())
    monkeypatch.setattr(ClippedGradient, "vectors", leaky)
    data, tape = make_users(1500, rows=(1, 6)), Tape()
    run("whitened-clip", "calibrated", data, tape, replay=False)
    with pytest.raises(AssertionError, match="other users' vectors changed"):
        run("whitened-clip", "calibrated", replaced(data, 7, *SENT["nan"](data.n_features)), tape, replay=True)
