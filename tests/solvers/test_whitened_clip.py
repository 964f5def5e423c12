"""The default solver: consistent with few rows per user, in any units, for every loss; and it never gambles."""

import itertools
import math

import numpy as np
import pytest
from cases import python_custom
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from support import SilentNoise
from support_solvers import best_risk, risk

from userdp import Ball, Box, Budget, Curator, Execution, Ledger, Solver, UserData, losses
from userdp.engines import LocalEngine
from userdp.models.fitting import minimize
from userdp.privacy import curator as curators
from userdp.privacy.accounting import Cost, fits
from userdp.privacy.clip import Clip
from userdp.solvers import constants, whitened_clip
from userdp.solvers.planner import choose
from userdp.solvers.problem import Problem
from userdp.solvers.solver import carry_out
from userdp.solvers.whitened_clip import plan_whitened_clip
from userdp.solvers.whitening import (
    MOST_FEATURES,
    Coordinates,
    _bounded,
    public_coordinates,
    release_coordinates,
    whitening_steps,
)
from userdp.statistics.gradients import N_SIZES, ClippedGradient, MeanGradient

TRUTH = np.array([2.0, -1.0, 0.0])
TRUTH_OF_20 = np.random.default_rng(0).normal(size=20) * 0.4
ANYWHERE = Ball(1e3)
DELTA = 1e-6
FULL = 10**15  # gradients: more than any plan takes


def make_users(n_users, rows, truth=TRUTH, seed=0, kind="classes", intercept=True, constant=0.0, scales=1.0):
    """Normal features; classes of a logistic model, numbers with normal noise, or three classes."""
    rng = np.random.default_rng(seed)
    counts = np.full(n_users, rows) if np.isscalar(rows) else rng.choice(rows, n_users)
    X = rng.normal(size=(counts.sum(), len(truth)))
    scores = X @ truth + constant
    if kind == "classes":
        y = (rng.random(len(X)) < expit(scores)).astype(float)
    elif kind == "several":
        y = np.argmax(np.outer(scores, [1, -1, 0]) + rng.gumbel(size=(len(X), 3)), axis=1).astype(float)
    else:
        y = scores + rng.normal(size=len(X))
    return UserData.from_arrays(X * scales, y, np.repeat(np.arange(n_users), counts), fit_intercept=intercept)


def fit(data, epsilon=1.0, rows=1, loss="logistic", domain=ANYWHERE, delta=DELTA, max_gradients=None, **options):
    options = {"solver": Solver("whitened-clip", max_gradients=max_gradients), "insecure_seed": 1} | options
    return minimize(loss, data, domain, epsilon, delta, rows_per_user=rows, **options)


def excess(loss, data, weights, l2=0.0):
    return risk(loss, data, weights) + l2 / 2 * float(weights @ weights) - best_risk(loss, data, l2)


class NoNoise(SilentNoise):
    """No noise, but samples are drawn."""

    def __init__(self):
        super().__init__()
        self._rng = np.random.default_rng(0)

    def gaussian(self, query, sensitivity, multiplier):
        self.asked.append((sensitivity, multiplier))
        return query

    def poisson_mask(self, probabilities):
        return self._rng.random(len(probabilities)) < probabilities


# --- consistency ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n_users", "rows", "epsilon", "most"),
    [
        (3000, 1, 1.0, 0.012),
        (3000, 1, 4.0, 0.001),
        (3000, 1, 8.0, 0.001),
        (20_000, 1, 1.0, 0.0004),
        (10_000, 2, 1.0, 0.001),
        (10_000, 3, 1.0, 0.001),
        (3000, 10, 4.0, 0.001),
        (3000, [1, 100], 4.0, 0.002),
    ],
)
def test_it_is_consistent_with_any_number_of_rows_per_user(n_users, rows, epsilon, most):
    data = make_users(n_users, rows)
    found = [fit(data, epsilon, int(np.max(rows)), insecure_seed=seed).weights for seed in (1, 2, 3)]
    assert np.mean([excess(losses.logistic, data, w) for w in found]) < most


def test_epsilon_and_users_buy_the_excess_down():
    """No floor: what is left at a huge epsilon is next to nothing."""
    data = make_users(3000, 1)
    assert excess(losses.logistic, data, fit(data, 200.0).weights) < 2e-4
    assert excess(losses.logistic, data, fit(data, 8.0).weights) < 1e-3


def test_predictions_are_calibrated():
    """Few rows per user made slopes of .4 where gradients were clipped far below their norm."""
    data = make_users(20_000, 1)
    w = fit(data, 2.0).weights
    slope = w[:3] @ TRUTH / (TRUTH @ TRUTH)
    assert 0.9 < slope < 1.1


def test_a_rare_class_keeps_its_frequency():
    data = make_users(20_000, 1, constant=-6.0)
    fraction = float(np.mean(data.targets))
    assert 0.01 < fraction < 0.03
    w = fit(data, 4.0).weights
    assert np.mean(expit(data.dense() @ w)) == pytest.approx(fraction, rel=0.15)
    assert excess(losses.logistic, data, w) < 0.002


# --- any units --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_users", "epsilon", "scales", "offset"),
    [(20_000, 2.0, [1e-3, 1.0, 1e2], 10.0), (5000, 4.0, [1e-5, 1.0, 1.0], 0.0), (5000, 4.0, [1e5, 1e5, 1e5], 0.0)],
)
def test_columns_may_be_in_any_units(n_users, epsilon, scales, offset):
    plain = make_users(n_users, 3)
    rows = (plain.rows + offset) * scales
    odd = UserData(rows, plain.targets, plain.offsets, has_intercept=True)
    w = fit(odd, epsilon, 3, domain=Ball(1e9)).weights
    assert risk(losses.logistic, odd, w) - best_risk(losses.logistic, plain) < 0.01


@pytest.mark.parametrize(("scale", "offset"), [(1.0, 0.0), (1.0, 10.0), (1e3, 0.0), (1e-3, 0.0)])
def test_few_users_whose_columns_scales_are_not_asked_for(scale, offset):
    """Noise would hide each column's scale; what whitening finds must do."""
    plain = make_users(1000, 4, truth=TRUTH_OF_20)
    assert not any(step.label == "column scales" for step in whitening_steps(1000, 21, True, 9.0))
    rows = (plain.rows + offset) * scale
    odd = UserData(rows, plain.targets, plain.offsets, has_intercept=True)
    w = fit(odd, 1.0, 4, domain=Ball(1e9)).weights
    assert risk(losses.logistic, odd, w) - best_risk(losses.logistic, plain) < 0.06


def test_a_huge_column_among_few_users_leads_to_no_huge_predictions():
    """Noise hides the other columns, and the constant: there is little to learn, but nothing absurd."""
    plain = make_users(1000, 4, truth=TRUTH_OF_20)
    rows = np.column_stack([plain.rows[:, 0] * 1e4 + 1e5, plain.rows[:, 1:]])
    odd = UserData(rows, plain.targets, plain.offsets, has_intercept=True)
    for seed in range(3):
        result = fit(odd, 1.0, 4, domain=Ball(1e9), insecure_seed=seed)
        assert risk(losses.logistic, odd, result.weights) < 1
        assert "Noise hides small columns" in result.message
        assert "Noise hides" not in fit(plain, 1.0, 4, insecure_seed=seed).message


@pytest.mark.parametrize("scale", [1e-6, 1.0, 50.0, 1e6])
def test_without_an_intercept_the_scale_is_found_by_itself(scale):
    data = make_users(5000, 3, intercept=False, scales=scale)
    assert risk(losses.logistic, data, fit(data, 2.0, 3, domain=Ball(1e9)).weights) < 0.01 + best_risk(
        losses.logistic, make_users(5000, 3, intercept=False)
    )


def releasing(monkeypatch, noise):
    """From here on curators have this noise instead of their own."""
    monkeypatch.setattr(curators, "noise_source", lambda seed: noise)


def whitened(data, monkeypatch, intercept):
    releasing(monkeypatch, NoNoise())
    steps = whitening_steps(data.n_users, data.n_features, intercept, 1.0)
    plan = whitened_clip.Plan(data.n_users, steps)
    curator = Curator(data, plan, Ledger(Budget(100.0, 1e-3)))
    return carry_out(release_coordinates(data.n_features, steps, intercept), curator)


@pytest.mark.parametrize("intercept", [True, False])
def test_whitening_finds_odd_units_and_correlations(monkeypatch, intercept):
    """Without noise each stage leaves what it took for noise, so that rows come out of about unit moment."""
    mix = np.array([[1.0, 0.9, 0.0], [0.0, 0.5, 0.3], [0.0, 0.0, 1.0]])
    plain = make_users(3000, 4, intercept=False)
    rows = plain.rows @ mix * [1e-2, 1.0, 30.0]
    rows = np.column_stack([rows, np.ones(len(rows))]) if intercept else rows
    data = UserData(rows, plain.targets, plain.offsets)
    turned = rows @ whitened(data, monkeypatch, intercept).basis
    values = np.linalg.eigvalsh(turned.T @ turned / len(turned))
    assert values.min() > 0.2
    assert values.max() < 5
    assert values.max() / values.min() < 3


def test_coordinates_lead_there_and_back():
    rng = np.random.default_rng(0)
    for basis in (rng.normal(size=(4, 4)), np.abs(rng.normal(size=4))):
        coordinates, matrix = Coordinates(basis), basis if basis.ndim == 2 else np.diag(basis)
        w, u = rng.normal(size=8), rng.normal(size=8)
        np.testing.assert_allclose(coordinates.to_weights(coordinates.from_weights(w)), w)
        np.testing.assert_allclose(coordinates.to_weights(u), (u.reshape(2, 4) @ matrix.T).ravel())
        assert coordinates.of_gradient(w) @ u == pytest.approx(w @ coordinates.to_weights(u))
        moment = coordinates.moment if basis.ndim == 2 else np.diag(coordinates.moment)
        np.testing.assert_allclose(matrix.T @ moment @ matrix, np.eye(4), atol=1e-9)
        rotation, variances, known = coordinates.decorrelated()
        np.testing.assert_array_equal(known, 1.0)
        rotated = np.eye(4) if rotation is None else rotation.T @ rotation
        np.testing.assert_allclose(rotated, np.eye(4), atol=1e-9)
        assert np.sum(variances) == pytest.approx(4.0)


@pytest.mark.parametrize("scales", [None, np.array([8.0, 1.0, 1.0, 1.0])])
def test_what_is_known_of_a_direction_does_not_depend_on_units(scales):
    for unit in (1e-3, 1.0, 1e3):
        given = None if scales is None else scales * unit
        *_, known = _bounded(np.diag([1 / 8, 1.0, 1.0, 1.0]) / unit, given).decorrelated()
        np.testing.assert_allclose(known, 1 / 1.001, rtol=1e-3)


@pytest.mark.parametrize("column", ["zero", "copy", "rare"])
def test_columns_that_tell_nothing_get_no_weight_of_mere_noise(column):
    rng = np.random.default_rng(4)
    rows = rng.normal(size=(10_000, 3))
    rows[:, 2] = {"zero": 0.0, "copy": rows[:, 0], "rare": rng.random(10_000) < 2e-4}[column]
    targets = rows[:, 0] - 0.5 * rows[:, 1] + 0.1 * rng.normal(size=10_000)
    data = UserData.from_arrays(rows, targets / 4, np.repeat(np.arange(2000), 5), fit_intercept=True)
    weights = 4 * fit(data, 4.0, 5, loss="squared", target_bound=1.0).weights
    expected = [0.5, -0.5, 0.5, 0.0] if column == "copy" else [1.0, -0.5, 0.0, 0.0]
    np.testing.assert_allclose(weights, expected, atol=0.05)


@pytest.mark.parametrize("column", ["zero", "sum", "copy"])
def test_with_much_noise_such_columns_do_not_walk_away(column):
    """No gradient leads back along a direction in which rows do not vary: steps of noise add up there."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(6000, 5))
    rows[:, 4] = {"zero": np.zeros(6000), "sum": rows[:, 0] + rows[:, 1], "copy": 3 * rows[:, 0]}[column]
    targets = 0.8 * rows[:, 0] - 0.5 * rows[:, 1] + 0.5 * rng.normal(size=6000)
    data = UserData.from_arrays(rows, targets / 6, np.repeat(np.arange(2000), 3), fit_intercept=True)
    weights = 6 * fit(data, 1.0, 3, loss="squared", target_bound=1.0).weights
    assert np.abs(weights).max() < 1.5  # tens, if they did


def test_few_users_have_the_full_schedule_however_many_rows():
    """A part of them may have nobody of a rare class who has a rare level."""
    problem = Problem(losses.logistic, ANYWHERE, 12, 3.0, intercept=True)
    for n_users, pace in ((8_000, constants.PACE), (40_000, constants.FAST_PACE)):
        plan = plan_whitened_clip(problem, n_users, 50, Budget(8.0, DELTA))
        assert plan.phases[0].pace == pace


def test_public_coordinates_whiten_and_raise_what_is_missing():
    moment = np.array([[4.0, 1.0, 0.0], [1.0, 9.0, 0.0], [0.0, 0.0, 0.0]])
    basis = public_coordinates(moment).basis
    values = np.linalg.eigvalsh(basis.T @ moment @ basis)
    np.testing.assert_allclose(values, [0.0, 1.0, 1.0], atol=1e-9)
    assert np.all(np.isfinite(basis))
    units = np.array([1e-4, 1.0, 1e4])
    odd = moment + np.diag([0.0, 0.0, 1.0])
    basis = public_coordinates(odd * np.outer(units, units)).basis
    np.testing.assert_allclose(basis.T @ (odd * np.outer(units, units)) @ basis, np.eye(3), atol=1e-6)
    np.testing.assert_allclose(public_coordinates(np.array([4.0, 0.0])).basis, [0.5, 1 / math.sqrt(4e-9)])


# --- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("l2", [0.1, 1.0])
def test_at_a_large_epsilon_it_finds_the_penalised_optimum(l2):
    data = make_users(4000, 5)
    assert excess(losses.logistic, data, fit(data, 100.0, 5, l2=l2).weights, l2) < 5e-4


@pytest.mark.parametrize("l2", [0.01, 0.3])
def test_the_intercept_is_not_penalised_and_a_rare_class_does_not_diverge(l2):
    rng = np.random.default_rng(0)
    users, X = np.repeat(np.arange(4000), 5), rng.normal(size=(20_000, 10))
    y = rng.random(20_000) < expit(X[:, 0] - 4)
    data = UserData.from_arrays(X, y, users, fit_intercept=True)
    usual = LogisticRegression(C=1 / (20_000 * l2), tol=1e-8, max_iter=1000).fit(X, y)
    weights = fit(data, 100.0, 5, l2=l2).weights
    np.testing.assert_allclose(weights, [*usual.coef_[0], *usual.intercept_], atol=0.05)


@pytest.mark.parametrize("epsilon", [1.0, 100.0])
def test_equal_columns_share_their_weight_as_the_shortest_solution_does(epsilon):
    rng = np.random.default_rng(0)
    users, X = np.repeat(np.arange(4000), 5), rng.normal(size=(20_000, 2))
    data = UserData.from_arrays(X[:, [0, 1, 0]], X @ [1.0, -1.0] + rng.normal(size=20_000), users, fit_intercept=True)
    weights = fit(data, epsilon, 5, "squared", target_bound=5.0).weights
    # With much noise a little of it is left in what both columns share: no prediction depends on it.
    np.testing.assert_allclose(weights, [0.5, -1, 0.5, 0], atol=0.25 if epsilon == 1 else 0.06)
    assert weights[0] + weights[2] == pytest.approx(1.0, abs=0.06)


def test_a_warm_start_helps_where_noise_is_large():
    data, near = make_users(300, 3), np.append(TRUTH, 0.0)
    warm = [
        excess(losses.logistic, data, fit(data, 0.1, 3, warm_start=near, insecure_seed=s).weights) for s in range(5)
    ]
    cold = [excess(losses.logistic, data, fit(data, 0.1, 3, insecure_seed=s).weights) for s in range(5)]
    assert np.mean(warm) < 0.7 * np.mean(cold)


def test_several_classes():
    data, loss = make_users(4000, 3, kind="several"), losses.multinomial(3)
    assert excess(loss, data, fit(data, 2.0, 3, loss=loss).weights) < 0.01


def test_one_feature_and_many_classes():
    """Recalibration has more directions than features here."""
    rng = np.random.default_rng(0)
    rows = np.abs(rng.normal(size=(8000, 1)))
    data = UserData(rows, rng.choice(9, size=8000, p=[0.6, *[0.05] * 8]).astype(float), np.arange(0, 8001, 2))
    loss = losses.multinomial(9)
    plan = choose(Problem(loss, ANYWHERE, 1, 3.0), data.n_users, 2, Budget(4.0, DELTA)).plan
    assert plan.certified.steps[-1].label == whitened_clip.RECALIBRATION
    w = fit(data, 4.0, 2, loss=loss).weights
    assert risk(loss, data, w) - best_risk(loss, data) < 0.3 * (math.log(9) - best_risk(loss, data))


@pytest.mark.parametrize("level", [0.1, 0.5, 0.9])
def test_quantiles_cover_their_fraction(level):
    data = make_users(4000, 3, kind="numbers")
    w = fit(data, 2.0, 3, loss=losses.quantile(level), target_bound=8.0).weights
    assert np.mean(data.targets <= data.dense() @ w) == pytest.approx(level, abs=0.03)


@pytest.mark.parametrize("loss", [losses.squared, losses.huber(1.0), losses.absolute, python_custom])
def test_regression(loss):
    data = make_users(4000, 3, kind="numbers")
    w = fit(data, 4.0, 3, loss=loss, target_bound=8.0).weights
    assert excess(loss, data, w) < 0.01 * risk(loss, data, np.zeros(4))


def test_hinge():
    data = make_users(4000, 3)
    assert excess(losses.hinge, data, fit(data, 2.0, 3, loss="hinge").weights) < 0.01


@pytest.mark.parametrize("domain", [Ball(0.5), Ball(1.0, np.full(4, 2.0)), Box(np.full(4, -0.5), np.full(4, 0.7))])
def test_it_ends_in_the_domain_near_its_best_point(domain):
    data = make_users(4000, 3)
    w = fit(data, 8.0, 3, domain=domain).weights
    assert domain.contains(w)
    rng = np.random.default_rng(0)
    others = [domain.project(w + 0.2 * rng.normal(size=4)) for _ in range(50)]
    assert risk(losses.logistic, data, w) < min(risk(losses.logistic, data, other) for other in others) + 0.01


def test_many_features_are_scaled_without_correlations():
    n_features, rng = MOST_FEATURES + 10, np.random.default_rng(0)
    truth = np.zeros(n_features - 1)
    truth[:3] = [2.0, -2.0, 1.0]
    data = make_users(6000, 2, truth=truth, scales=rng.choice([0.01, 1.0, 100.0], n_features - 1))
    result = fit(data, 8.0, 2)
    nothing = risk(losses.logistic, data, np.zeros(n_features))
    assert risk(losses.logistic, data, result.weights) < nothing - 0.03


def test_public_rows_replace_the_releases_of_moments():
    data, scales = make_users(2000, 2, scales=[1e3, 1.0, 1e-3]), [1e3, 1.0, 1e-3]
    public = np.random.default_rng(9).normal(size=(500, 3)) * scales
    assert excess(losses.logistic, data, fit(data, 2.0, 2, public_X=public).weights) < 0.01
    problem = Problem(losses.logistic, ANYWHERE, 4, 2.0, intercept=True, public_moment=np.eye(4))
    plain = Problem(losses.logistic, ANYWHERE, 4, 2.0, intercept=True)
    with_public, without = (plan_whitened_clip(p, 2000, 2, Budget(1.0, DELTA)) for p in (problem, plain))
    assert not any(getattr(step.mechanism, "acute", False) for step in with_public.certified.steps)
    assert sum(getattr(step.mechanism, "acute", False) for step in without.certified.steps) == 6
    assert with_public.bound < without.bound
    noise = {p: {s.label: s.mechanism.noise_multiplier for s in p.certified.steps} for p in (with_public, without)}
    assert noise[with_public]["steps"] < noise[without]["steps"]


def test_public_rows_may_be_in_any_units():
    plain = make_users(1000, 4, truth=TRUTH_OF_20)
    scales = 10.0 ** np.linspace(-1, 4, 20)
    rows = (plain.rows + 10) * scales
    odd = UserData(rows, plain.targets, plain.offsets, has_intercept=True)
    public = (np.random.default_rng(5).normal(size=(500, 20)) + 10) * scales
    w = fit(odd, 1.0, 4, domain=Ball(1e9), public_X=public).weights
    assert risk(losses.logistic, odd, w) - best_risk(losses.logistic, plain) < 0.03


@pytest.mark.parametrize("lacking", ["rows", "a column"])
def test_public_rows_that_lack_directions_lead_to_no_huge_predictions(lacking):
    data = make_users(2000, 4, truth=TRUTH_OF_20)
    for seed in range(3):
        public = np.random.default_rng(seed).normal(size=(10 if lacking == "rows" else 500, 20))
        public[:, 3] *= lacking == "rows"
        assert excess(losses.logistic, data, fit(data, 1.0, 4, public_X=public, insecure_seed=seed).weights) < 0.05


# --- gradients --------------------------------------------------------------------------------------------------------


class CountingEngine(LocalEngine):
    """Counts users whose gradients were computed."""

    asked = 0

    def vectors(self, statistic, data, users, n_groups):
        if statistic.needs_targets:
            type(self).asked += len(users)
        return super().vectors(statistic, data, users, n_groups)

    def total(self, statistic, contribution, data, users):
        return contribution(self.vectors(statistic, data, users, len(users)))


@pytest.mark.parametrize("passes", [1, 5, 20, None])
def test_it_takes_no_more_gradients_than_allowed_and_than_it_says(passes):
    data = make_users(3000, 2)
    CountingEngine.asked = 0
    most = None if passes is None else passes * 6000
    result = fit(data, 2.0, 2, max_gradients=most, execution=Execution(engine=CountingEngine()))
    assert 2 * CountingEngine.asked <= result.n_gradients
    assert 2 * CountingEngine.asked > 0.8 * result.n_gradients
    if most is not None:
        assert 0.7 * most < result.n_gradients <= most
    assert excess(losses.logistic, data, result.weights) < 0.02


def test_samples_are_planned_within_the_budget():
    problem, budget = Problem(losses.logistic, ANYWHERE, 4, 2.0, intercept=True), Budget(1.0, DELTA)
    plan = plan_whitened_clip(problem, 3000, 2, budget, max_gradients=5 * 6000)
    sampled = {step.label: step.mechanism.samples_users for step in plan.certified.steps}
    assert all(sampled[label] for label in ("burn-in", "curvature", "steps"))
    assert {one for label, one in sampled.items() if label.startswith("whitening")} == {False}
    assert all(fits(cost, budget) for cost in plan.certified.costs)


def test_too_few_gradients_are_refused_before_anything_is_spent():
    data, ledger = make_users(300, 2), Ledger(Budget(1.0, DELTA))
    with pytest.raises(ValueError, match=r"Expected max_gradients=10 >= .*Nothing was spent"):
        fit(data, 1.0, 2, max_gradients=10, ledger=ledger)
    assert ledger.spent_epsilon() == 0


# --- unusable data ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("left_out", [False, True])
@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.6, 1.0])
def test_unusable_labels_are_counted_and_there_is_a_model_all_the_same(fraction, left_out):
    data = make_users(3000, 2)
    targets = data.targets.copy()
    targets[: int(fraction * len(targets))] = np.nan
    given = UserData(data.rows, targets, data.offsets, has_intercept=True)
    result = fit(given.without(np.isfinite(targets)) if left_out else given, 4.0, 2)
    assert not result.aborted
    assert result.affected_users.low - 0.01 <= fraction <= result.affected_users.high + 0.01
    assert result.affected_users.high - result.affected_users.low < 0.05
    assert np.all(np.isfinite(result.weights))
    if fraction < 1:
        assert excess(losses.logistic, data, result.weights) < 0.01


@pytest.mark.parametrize(
    ("n_users", "rows", "options"),
    [
        (3000, 2, {}),
        (3000, 2, {"max_gradients": 60_000}),
        (3000, 2, {"delta": 0.0}),
        (20_000, 11, {}),
    ],
    ids=["all", "samples", "pure", "fast"],
)
def test_intervals_of_affected_users_cover_them(n_users, rows, options):
    data = make_users(n_users, rows)
    usable = np.random.default_rng(0).random(data.n_rows) < 0.9
    data = data.without(usable)
    truth, found = (
        data.affected.mean(),
        [fit(data, 2.0, rows, insecure_seed=s, **options).affected_users for s in range(6)],
    )
    for one in found:
        reach = (one.high - one.low) / 2
        assert reach < 0.1
        assert abs(one.estimate - truth) < 2.2 * reach  # more than four deviations
    assert len({one.estimate for one in found}) > 1
    assert sum(one.low <= truth <= one.high for one in found) >= 4


def test_marks_of_affected_users_are_told_apart_from_sizes():
    statistic = ClippedGradient(MeanGradient(losses.logistic, np.zeros(2)), 0.5, 1.0, 0.25)
    sizes = np.zeros(N_SIZES)
    sizes[2] = 0.25 * (0.5 + 0.5 * 0.8)
    gradient, frequencies, affected = statistic.told(np.array([0.1, 0.2, *sizes, 0.5 * 0.6 * 0.25]))
    np.testing.assert_allclose(gradient, [0.1, 0.2])
    np.testing.assert_allclose(frequencies, np.eye(N_SIZES)[2])
    assert affected == pytest.approx(0.5)


def test_a_run_ends_even_if_noise_says_that_nobody_has_a_gradient(monkeypatch):
    class Low(NoNoise):
        def gaussian(self, query, sensitivity, multiplier):
            return query - sensitivity * multiplier if query.size == 4 + N_SIZES + 1 else query

    data = make_users(50, 1)
    data = UserData(data.rows, np.full(50, np.nan), data.offsets, has_intercept=True)
    releasing(monkeypatch, Low())
    assert np.all(np.isfinite(fit(data, 0.1, insecure_seed=None).weights))


def test_rows_that_are_all_zero_or_missing_end_in_finite_weights():
    plain = make_users(500, 2)
    for value in (0.0, np.nan, np.inf, 1e300):
        data = UserData(np.full_like(plain.rows, value), plain.targets, plain.offsets)
        assert np.all(np.isfinite(fit(data, 1.0, 2).weights))


# --- plans ------------------------------------------------------------------------------------------------------------

problems = st.builds(
    lambda d, loss, intercept: Problem(loss, ANYWHERE, d, math.sqrt(d), 5.0, intercept=intercept),
    st.sampled_from([1, 2, 3, 7, 8, 20, 100, 401, 2000]),
    st.sampled_from([losses.logistic, losses.squared, losses.hinge, losses.multinomial(4)]),
    st.booleans(),
)
sizes = st.floats(1.0, 6.0).map(lambda exponent: int(10**exponent))
epsilons = st.floats(-2.0, 1.3).map(lambda exponent: 10.0**exponent)


@settings(max_examples=300, deadline=None)
@given(
    problem=problems,
    users=st.tuples(sizes, sizes),
    epsilon=st.tuples(epsilons, epsilons),
    rows=st.integers(1, 99),
    delta=st.sampled_from([DELTA, 0.0]),
)
def test_more_users_and_more_epsilon_never_raise_the_estimate(problem, users, epsilon, rows, delta):
    few, many, low, high = *sorted(users), *sorted(epsilon)
    worse = plan_whitened_clip(problem, few, rows, Budget(low, delta)).bound
    better = plan_whitened_clip(problem, many, rows, Budget(high, delta)).bound
    assert better <= worse * (1 + 1e-9)


@settings(max_examples=100, deadline=None)
@given(problem=problems, n_users=sizes, epsilon=epsilons)
def test_every_plan_is_within_its_budget_and_uses_it_up(problem, n_users, epsilon):
    budget = Budget(epsilon, DELTA)
    plan_whitened_clip(problem, n_users, 3, budget).certified.certify(budget)
    plan = plan_whitened_clip(problem, n_users, 3, budget, FULL).certified
    plan.certify(budget)
    total = sum(step.mechanism.cost.gaussian for step in plan.steps)
    (cost,) = set(plan.costs)
    assert cost.gaussian == pytest.approx(total)
    assert not fits(type(cost)(gaussian=1.001 * total), budget), "no budget is left over"
    assert {step.n_users for step in plan.steps} == {n_users}


@pytest.mark.parametrize("n_features", [11, 21, 51])
@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_a_fast_schedule_takes_few_passes_and_uses_its_budget_up(n_features, epsilon):
    problem, budget, n_users = Problem(losses.logistic, ANYWHERE, n_features, 4.0), Budget(epsilon, DELTA), 100_000
    fast, full = (plan_whitened_clip(problem, n_users, 20, budget, most) for most in (None, FULL))
    assert fast.n_gradients <= 19 * n_users * 20 < 50 * n_users * 20 <= full.n_gradients
    assert fast.bound == full.bound
    most = max(cost.gaussian for cost in fast.certified.costs)
    assert fits(Cost(gaussian=most), budget)
    assert not fits(Cost(gaussian=1.001 * most), budget), "no budget is left over"
    everyone = [step.label for step in fast.certified.steps if step.n_users == n_users]
    assert everyone == ["steps for a rare class", "burn-in", "steps"]
    first = [step for step in fast.certified.steps if step.label.startswith("approach")]
    assert all(a.stop <= b.start for a, b in itertools.pairwise(first)), "no user is asked twice"
    limited = plan_whitened_clip(problem, n_users, 20, budget, 10 * n_users * 20)
    assert limited.n_gradients == fast.n_gradients - 10 * n_users * 20, "without those for a rare class"


def test_few_users_much_noise_and_odd_losses_have_the_full_schedule():
    logistic, hinge = (Problem(loss, ANYWHERE, 21, 4.0) for loss in (losses.logistic, losses.hinge))
    for problem, n_users, epsilon in ((logistic, 5000, 1.0), (logistic, 100_000, 0.1), (hinge, 100_000, 8.0)):
        plans = (plan_whitened_clip(problem, n_users, 20, Budget(epsilon, DELTA), most) for most in (None, FULL))
        assert len({plan.n_gradients for plan in plans}) == 1


@pytest.mark.slow
def test_a_fast_schedule_is_as_accurate_as_a_full_one():
    """Not so with a class below 1%: docs/speed.md."""
    rows, data = 3, make_users(100_000, 3, constant=0.0)
    slow, fast = (
        np.mean(
            [
                excess(losses.logistic, data, fit(data, 1.0, rows, max_gradients=most, insecure_seed=seed).weights)
                for seed in (1, 2)
            ]
        )
        for most in (FULL, None)
    )
    assert fast < 1.05 * slow + 1e-5


@settings(max_examples=100, deadline=None)
@given(problem=problems, n_users=sizes, epsilon=epsilons)
def test_without_delta_every_release_is_pure_and_epsilons_add_up_to_the_budget(problem, n_users, epsilon):
    budget = Budget(epsilon, 0.0)
    plan = plan_whitened_clip(problem, n_users, 3, budget, FULL).certified
    plan.certify(budget)
    assert all(step.mechanism.laplace and step.n_users == n_users for step in plan.steps)
    (cost,) = set(plan.costs)
    assert cost == Cost(pure=cost.pure)
    assert (1 - 1e-8) * epsilon <= sum(cost.pure) <= epsilon
    assert len(cost.pure) <= 25, "each costs noise"


def test_without_delta_every_radius_has_room_for_nearly_all_vectors(monkeypatch):
    """Each request asks for a 1-norm that clips nobody, but for gradients that are spread over all coordinates."""
    data, found, compute = make_users(2000, 5, truth=TRUTH_OF_20), {}, LocalEngine.total

    def total(self, statistic, contribution, data, users):
        lengths = np.abs(statistic(data, users, len(users))).sum(axis=1)
        found.setdefault(type(statistic).__name__, []).append(np.mean(lengths > contribution.radius * (1 + 1e-12)))
        assert contribution.laplace
        return compute(self, statistic, contribution, data, users)

    monkeypatch.setattr(LocalEngine, "total", total)
    for epsilon in (8.0, 80.0):
        fit(data, epsilon, 5, delta=0.0)
    assert set(found) == {"ColumnScales", "RowScale", "MomentShape", "ClippedGradient", "MeanCurvature"}
    assert max(found.pop("ClippedGradient")) < 0.3
    assert max(itertools.chain(*found.values())) == 0


@pytest.mark.parametrize(("epsilon", "most"), [(1.0, 0.003), (8.0, 0.001)])
@pytest.mark.parametrize("scales", [1.0, np.array([1e-3, 1.0, 1e4])])
def test_without_delta_it_is_accurate_with_more_users(epsilon, most, scales):
    data = make_users(20_000, 5, scales=scales)
    result = fit(data, epsilon, 5, delta=0.0)
    assert excess(losses.logistic, data, result.weights) < most
    assert result.bound < 0.01
    assert result.privacy.delta == 0


def test_without_delta_noise_costs_more_and_samples_are_refused():
    problem = Problem(losses.logistic, ANYWHERE, 11, 4.0)
    pure, usual = (choose(problem, 20_000, 5, Budget(1.0, delta)) for delta in (0.0, DELTA))
    assert pure.bound > 1.5 * usual.bound
    with pytest.raises(ValueError, match=r"Expected max_gradients=100000 >= \d+, .* Nothing was spent\."):
        choose(problem, 20_000, 5, Budget(1.0, 0.0), max_gradients=100_000)


def test_auto_takes_it_and_its_plan_cannot_abort():
    problem = Problem(losses.logistic, ANYWHERE, 4, 2.0)
    for epsilon in (0.1, 1.0, 8.0):
        option = choose(problem, 3000, 2, Budget(epsilon, DELTA))
        assert option.solver == "whitened-clip"
        assert {type(step.mechanism) for step in option.plan.certified.steps} == {Clip}
