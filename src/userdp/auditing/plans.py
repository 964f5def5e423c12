"""Whole plans attacked: a user pulls in every release as far as that lets it, and the best test sees all of them.

Plans are those that the planners of evaluations, intervals, searches and fits make of public numbers; each costs the
whole budget. Noise is independent between releases, so the best test adds up, over all of them, what was released times
how far the user moves that, over the noise's variance.
"""

from __future__ import annotations

import contextlib
import math

import numpy as np

from userdp import losses
from userdp.auditing.pairs import FAR, WITHIN, Pair, edge, gated_pairs, play_mechanism
from userdp.data.users import UserData
from userdp.domains import Ball
from userdp.evaluation.coordinates import ScoreLayout
from userdp.evaluation.release import evaluation_steps
from userdp.evaluation.row_losses import Scale
from userdp.models.means import DEFAULT_FRACTION, MeanSteps, mu_squared_of, plan_intervals, plan_mean, plan_plain
from userdp.paper.outlier_removal import OutlierRemoval
from userdp.privacy.accounting import Budget
from userdp.privacy.clip import Clip
from userdp.privacy.curator import Curator
from userdp.privacy.ledger import Ledger
from userdp.privacy.mechanism import Users, Vectors
from userdp.privacy.noise import Noise
from userdp.privacy.plan import Plan, Step
from userdp.privacy.selection import plan_selection, select
from userdp.solvers.inference import DEFAULT_FRACTION as FIT_FRACTION
from userdp.solvers.inference import IntervalSteps, with_intervals
from userdp.solvers.planner import Option, choose
from userdp.solvers.problem import Problem
from userdp.solvers.solver import SolverPlan
from userdp.statistics.moments import UserMean

_MEAN_USERS, _SEARCHED = 2000, 200
_MANY_RELEASES = 0.2  # weight of plans that take long


def best_weights(mechanism: Clip | OutlierRemoval) -> Vectors:
    """Of what a round releases, in units of the radius, if a user is at one edge or the other and all others at 0.

    The edges are opposite, or where vectors never point apart those of two axes.
    """
    acute = isinstance(mechanism, Clip) and mechanism.acute
    far = 1.0 if isinstance(mechanism, Clip) else edge(mechanism, 1.0)
    moved = far * np.array([1.0, -1.0] if acute else [2.0]) / mechanism.n_vectors
    weights: Vectors = moved / mechanism.noise_std(1.0, moved.size) ** 2
    return weights


def _edges(mechanism: Clip | OutlierRemoval) -> tuple[Vectors, Vectors]:
    """The user's vector, first, and the others', in both versions."""
    own, lengths = np.array([[1.0], [-1.0]]), (edge(mechanism, 1.0),) * 2
    if isinstance(mechanism, Clip):
        own, lengths = np.eye(2) if mechanism.acute else own, (WITHIN, FAR)
    nobody = np.zeros((mechanism.n_vectors - 1, own.shape[1]))
    one, other = (np.vstack([length * vector, nobody]) for length, vector in zip(lengths, own, strict=True))
    return one, other


def whole_plan(what: str, plan: Plan, weight: float = 1.0) -> Pair:
    """The attack on all releases of a plan, whose steps are of all users."""
    attacked = []
    for step in plan.steps:
        assert isinstance(step.mechanism, Clip | OutlierRemoval)
        assert step.start == 0
        attacked.append((step.mechanism, _edges(step.mechanism), best_weights(step.mechanism)))

    def play(noise: Noise, version: int) -> list[float]:
        return [
            sum(
                float(weights @ play_mechanism(mechanism, versions[version], noise)[: weights.size])
                for mechanism, versions, weights in attacked
            )
        ]

    return Pair(what, "calibrated", "edges", plan.costs[0], play, weight)


def plan_pairs(budget: Budget) -> list[Pair]:
    """Attacks on what users of the library ask for: means, intervals, evaluations, searches and fits."""
    some = 100 + math.ceil(100 / budget.epsilon)
    evaluation = evaluation_steps(ScoreLayout("binary", ("log_loss", "auc"), Scale(4.0)), some, budget)
    intervals = IntervalSteps.of(some, 2, mu_squared_of(budget))
    users = _MEAN_USERS + math.ceil(_MEAN_USERS / budget.epsilon)
    radii = (1.0, 1.15, 1.3)
    mean = plan_plain(users, 1, budget, radii, 0.0)
    located = plan_intervals(users, 1, budget, radii, 0.0, DEFAULT_FRACTION)
    assert isinstance(mean, MeanSteps)
    return [
        whole_plan("evaluate", Plan(some, evaluation)),
        whole_plan("intervals of coefficients", Plan(some, intervals.steps)),
        whole_plan("fit with intervals", fit_with_intervals(budget)[1].certified, _MANY_RELEASES),
        whole_plan("fit of a quantile", fit_of_a_quantile(budget)[1].certified, _MANY_RELEASES),
        whole_plan("private_mean", mean.plan),
        *gated_pairs("private_mean, few users", plan_mean(users, budget, radii, 0.0)),
        whole_plan("private_mean, with intervals", located.plan),
        whole_plan("PrivateSearchCV, scores", plan_selection(_SEARCHED, 2, budget, refit_fraction=0.0).score_plan),
        _whole_search(budget),
    ]


def fit_with_intervals(budget: Budget) -> tuple[Problem, SolverPlan]:
    """A fit of two weights with their standard errors."""
    problem, users = Problem(losses.logistic, Ball(1.0), 2, 1.0), math.ceil(1000 / min(1.0, budget.epsilon))

    def chosen(left: Budget) -> Option:
        return choose(problem, users, 2, left)

    return problem, with_intervals(problem, users, 2, budget, FIT_FRACTION, chosen).plan


def fit_of_a_quantile(budget: Budget) -> tuple[Problem, SolverPlan]:
    """A fit of two weights, of which private counts place the intercept."""
    problem = Problem(losses.quantile(0.5), Ball(1.0), 2, 1.0, target_bound=1.0, intercept=True)
    return problem, choose(problem, math.ceil(1000 / min(1.0, budget.epsilon)), 2, budget).plan


def _whole_search(budget: Budget) -> Pair:
    """A search as it is carried out: who trains, fits, scores, the choice and the refit, with their ledgers.

    A user pulls the means that stand for models one way or the other, and if held out finds the one candidate perfect
    and the other as bad as can be. What is seen are all models, the refit, and the scores; who trained is known.
    """
    plan = plan_selection(_SEARCHED, 2, budget, refit_fraction=0.5)
    differences = max((step.mechanism for step in plan.score_plan.steps), key=lambda clip: clip.cost.gaussian)
    assert isinstance(differences, Clip)

    def play(noise: Noise, version: int) -> list[float]:
        side, held_out = 1 - 2 * version, []

        def fit(number: int, users: Users, ledger: Ledger, seed: int | None) -> float:
            """What the released mean reveals."""
            mu_squared = plan.fit_mu_squared if len(users) < plan.n_users else plan.refit_mu_squared
            clip = Clip(len(users), (1 + 1e-5) / math.sqrt(mu_squared))
            rows = side * np.equal(users, 0)[:, None].astype(np.float64)
            data = UserData(rows, np.full(len(users), np.nan), np.arange(len(users) + 1), has_targets=False)
            once = Plan(len(users), (Step("mean", 0, len(users), clip),))
            with contextlib.closing(Curator(data, once, ledger, insecure_seed=seed)) as curator:
                released = curator.release("mean", UserMean(), 1.0)
            return float(released @ best_weights(clip)) if 0 in users else 0.0

        def found_bad(models: list[float], users: Users) -> Vectors:
            held_out.append(0 in users)
            return np.outer(users == 0, np.eye(2)[version])

        seed = None if noise.seed is None else int(noise.integers(1, 2**31)[0])
        found = select(plan, Ledger(budget), fit, found_bad, insecure_seed=seed)
        apart = (found.losses[0] - found.losses[1]) / (math.sqrt(2) * found.noise_std * differences.noise_multiplier)
        assert found.refitted is not None
        return [sum(found.models) + found.refitted + held_out[0] * float(apart)]

    dearest = max(plan.certified.costs, key=lambda cost: cost.gaussian)
    return Pair("PrivateSearchCV", "calibrated", "edges", dearest, play, _MANY_RELEASES)
