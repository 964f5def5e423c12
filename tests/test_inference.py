"""Standard errors: what the plan keeps for them, what they cover, where they are told, and where they are refused."""

import math
import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy.special import expit, logit, ndtr
from typer.testing import CliRunner

from userdp import (
    Ball,
    Budget,
    BudgetExceeded,
    Category,
    Columns,
    Execution,
    HuberRegressor,
    Ledger,
    LinearRegression,
    LinearSVC,
    LogisticRegression,
    Number,
    PoissonRegressor,
    QuantileRegressor,
    Solver,
    UserData,
    UtilityWarning,
    load_model,
    losses,
    save_model,
)
from userdp.cli import app
from userdp.data.tables import write_table
from userdp.models.files import model_of
from userdp.models.fitting import minimize
from userdp.privacy.accounting import epsilon_at
from userdp.report import report_html
from userdp.report.plots import bars_range
from userdp.solvers import inference

TRUTH = np.array([1.0, -0.5, 0.3])
QUIET = Execution(progress=False)


def people(n_users=4000, rows=3, seed=0, alike=0.5):
    """Two features, log-odds of TRUTH, users whose rows' errors go together."""
    rng = np.random.default_rng(seed)
    users = np.repeat(np.arange(n_users), rows)
    X = rng.normal(size=(len(users), 2))
    error = np.sqrt(alike) * rng.normal(size=n_users)[users] + np.sqrt(1 - alike) * rng.normal(size=len(users))
    return X, X @ TRUTH[:2] + TRUTH[2], error, users


def classes(z, error):
    return (z + logit(ndtr(error)) > 0).astype(int)


OPTIONS = {"epsilon": 4.0, "max_rows_per_user": 3, "inference": True}


@pytest.fixture(scope="module")
def model():
    X, z, error, users = people()
    table = pd.DataFrame(X, columns=["age", "income"])
    return LogisticRegression(classes=[0, 1], insecure_seed=1, **OPTIONS).fit(table, classes(z, error), groups=users)


# --- what is told -----------------------------------------------------------------------------------------------------


def test_intervals_of_each_coefficient_and_the_intercept_last(model):
    ends = model.conf_int()
    assert ends.shape == (3, 2)
    weights = np.append(model.coef_[0], model.intercept_)
    np.testing.assert_allclose(ends.mean(axis=1), weights)
    assert np.all(np.abs(weights - TRUTH) < 4 * np.sqrt(np.diag(model.cov_)))
    assert np.all(np.linalg.eigvalsh(model.cov_) > 0)
    wider = model.conf_int(0.99)
    assert np.all(wider[:, 0] < ends[:, 0])
    assert np.all(wider[:, 1] > ends[:, 1])
    np.testing.assert_allclose((ends[:, 1] - ends[:, 0]) / 2, 1.959964 * np.sqrt(np.diag(model.cov_)), rtol=1e-6)
    for level in (0, 1, 95, "0.95"):
        with pytest.raises(ValueError, match="level"):
            model.conf_int(level)


def test_the_table_tells_all_of_it(model):
    found = model.summary()
    assert found.names == ("age", "income", "(intercept)")
    np.testing.assert_allclose(found.z, found.coef / found.std_err)
    assert np.all((found.noise_share > 0) & (found.noise_share < 1))
    lines = str(found).splitlines()
    assert "LogisticRegression, 4,000 users, epsilon 4" in lines[0]
    assert re.search(r"coef +std err +z +\[0.025 +0.975\] +noise +sampling", lines[2])
    assert [line.split()[0] for line in lines[4:7]] == ["age", "income", "(intercept)"]
    assert max(map(len, lines)) <= 120


def test_a_saved_model_keeps_them_and_damaged_ones_are_refused(model, tmp_path):
    again = load_model(save_model(model, tmp_path / "m.json"))
    np.testing.assert_array_equal(again.cov_, model.cov_)
    assert str(again.summary()) == str(model.summary())
    record = model.to_dict()
    for wrong in (
        {},
        {"noise": [[1.0]], "sampling": [[1.0]]},
        [1],
        {**record["uncertainty"], "noise": [["a"] * 3] * 3},
    ):
        with pytest.raises(ValueError, match="damaged"):
            model_of(record | {"uncertainty": wrong})
    negative = {**record["uncertainty"], "noise": (-np.eye(3)).tolist()}
    with pytest.raises(ValueError, match="damaged"):
        model_of(record | {"uncertainty": negative})
    del record["uncertainty"]  # as in older files
    with pytest.raises(ValueError, match="Expected a fit with standard errors"):
        model_of(record).conf_int()


def test_a_coefficient_that_noise_hides_is_named_and_predicts_nothing_absurd(tmp_path):
    """A flag that 1% of 3,000 users have: a Newton step alone gave it log odds of up to 200."""
    X, z, error, users = people(n_users=3000)
    flag = (np.random.default_rng(5).random(3000) < 0.01)[users].astype(float)
    table = pd.DataFrame({"age": X[:, 0], "flag": flag})
    fit = LogisticRegression(epsilon=3, max_rows_per_user=3, classes=[0, 1], inference=True, insecure_seed=2)
    with pytest.warns(UtilityWarning):
        found = fit.fit(table, classes(z, error), groups=users)
    assert "flag" in found.unresolved_
    assert "age" not in found.unresolved_
    estimates, told = found.summary().coef, np.append(found.coef_[0], found.intercept_)
    assert found.summary().std_err[1] > 0.5
    assert abs(told[1]) < min(1.5, abs(estimates[1]))
    np.testing.assert_allclose(told[[0, 2]], estimates[[0, 2]], atol=0.05)
    np.testing.assert_allclose(found.conf_int().mean(axis=1), estimates)
    again = load_model(save_model(found, tmp_path / "m.json"))
    np.testing.assert_array_equal(again.conf_int(), found.conf_int())
    assert "the bar is shrunk towards 0" in report_html(found.to_dict())
    for wrong in ([1.0], [1.0, 2.0, np.inf], "all"):
        record = found.to_dict()
        record["uncertainty"]["shrunk"] = wrong
        with pytest.raises(ValueError, match="damaged"):
            model_of(record)
        with pytest.raises(ValueError, match="damaged"):
            report_html(record)


def test_the_report_shows_them(model):
    page = report_html(model.to_dict())
    assert "95% intervals" in page
    assert "std err" in page
    record = model.to_dict()
    assert "95% intervals" not in report_html(record | {"uncertainty": None})
    for wrong in ({"noise": [[1.0]]}, "all", {"noise": [[1.0]], "sampling": [[1.0]]}):
        with pytest.raises(ValueError, match="damaged"):
            report_html(record | {"uncertainty": wrong})


def test_a_column_that_nobody_has_does_not_flatten_the_other_bars(model):
    record = model.to_dict()
    low, high, cut = bars_range([1.0, -2.0, 3.0], [0.1, 0.2, 0.3])
    assert (low, high, cut) == (pytest.approx(-2.2), pytest.approx(3.3), False)
    low, high, cut = bars_range([1.0, -2.0, 3.0, 5.0], [0.1, 0.2, 0.3, 90.0])
    assert (low, high, cut) == (pytest.approx(-2.2), pytest.approx(3.3), True)
    assert "times as long as usual are cut off" not in report_html(record)
    unknown = np.array(record["uncertainty"]["noise"])
    unknown[0, 0] *= 1e4
    page = report_html(record | {"uncertainty": {**record["uncertainty"], "noise": unknown.tolist()}})
    assert "times as long as usual are cut off" in page


def test_without_inference_there_are_none():
    X, z, error, users = people(n_users=500)
    model = LogisticRegression(4.0, classes=[0, 1], insecure_seed=1).fit(X, classes(z, error), groups=users)
    assert model.uncertainty_ is None
    assert not hasattr(model, "cov_")
    with pytest.raises(ValueError, match="inference=True"):
        model.summary()


# --- one plan, one charge ---------------------------------------------------------------------------------------------


def test_one_plan_within_the_budget_and_one_charge():
    X, z, error, users = people()
    for fraction in (True, 0.2):
        ledger = Ledger(Budget(4.0, 1e-6))
        model = LogisticRegression(
            4.0, 1e-6, classes=[0, 1], max_rows_per_user=3, inference=fraction, ledger=ledger
        ).fit(X, classes(z, error), groups=users)
        (charge,) = ledger.charges()
        assert 3.99 < max(epsilon_at(cost, 1e-6) for cost in charge.costs) <= 4.0
        labels = (inference.SIZE, inference.CURVATURE, *inference.GRADIENTS, inference.SPREAD)
        told = {part.step: part.fraction for part in model.privacy_.parts}
        spent = sum(told[label] for label in labels)
        assert spent == pytest.approx(0.5 if fraction is True else 0.2, rel=1e-3)
        assert model.privacy_.epsilon == 4.0


@pytest.mark.filterwarnings("ignore::userdp.UtilityWarning")  # noise hides much of so few users
def test_learned_columns_have_them_too(tmp_path):
    X, z, error, users = people()
    table = pd.DataFrame({"age": 40 + 10 * X[:, 0], "city": np.where(X[:, 1] > 0, "Lyon", "Paris")})
    columns = Columns({"age": Number(range="private"), "city": Category(levels="private", max_levels=4)})
    model = LogisticRegression(classes=[0, 1], columns=columns, insecure_seed=1, **OPTIONS)
    model.fit(table, classes(z, error), groups=users)
    assert len(model.conf_int()) == len(model.feature_names_in_) + 1
    names = model.summary().names
    assert names[0] == "age"
    assert {"city=Lyon", "city=Paris"} & set(names), "names are those of the encoded columns"
    assert load_model(save_model(model, tmp_path / "m.json")).summary().names == names


# --- coverage ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "targets", "truth"),
    [
        (losses.logistic, classes, TRUTH),
        (losses.squared, lambda z, error: 0.1 * z + 0.1 * error, 0.1 * TRUTH),
    ],
    ids=["logistic", "squared"],
)
def test_errors_are_as_large_as_the_standard_errors_say(loss, targets, truth):
    """40 runs of three weights: root mean square of error / standard error, and coverage; users' rows go together."""
    relative, parts = [], []
    for seed in range(40):
        X, z, error, users = people(rows=4, seed=seed)
        data = UserData.from_arrays(X, targets(z, error), users, fit_intercept=True)
        bound = None if loss.classifies else 1.0
        options = {"target_bound": bound, "insecure_seed": seed, "inference": 0.5, "execution": QUIET}
        result = minimize(loss, data, Ball(1e9), 8.0, 1e-6, rows_per_user=4, **options)
        found = result.uncertainty
        relative.append((result.weights - truth) / np.sqrt(np.diag(found.covariance)))
        parts.append(np.diag(found.noise) / np.diag(found.covariance))
    assert 0.8 < np.sqrt(np.mean(np.square(relative))) < 1.2
    assert np.mean(np.abs(relative) < 1.96) > 0.9
    assert 0.02 < np.mean(parts) < 0.9, "neither part would be missed otherwise"
    assert np.sqrt(np.mean(np.square(relative), axis=0))[-1] < 1.3, "the intercept, along which users differ most"


def rare_class(n_users, seed):
    """Users of one row, two of a hundred of which are of the class; log-odds and data."""
    X, z, error, users = people(n_users, rows=1, seed=seed)
    truth = TRUTH - [0, 0, 4.5]
    return truth, UserData.from_arrays(X, classes(z - 4.5, error), users, fit_intercept=True)


def test_few_long_gradients_of_a_rare_class_are_not_cut_off():
    relative, errors = [], []
    for seed in range(8):
        truth, data = rare_class(10_000, seed)
        options = {"rows_per_user": 1, "insecure_seed": seed, "inference": 0.5, "execution": QUIET}
        result = minimize(losses.logistic, data, Ball(1e9), 8.0, 1e-6, **options)
        if result.uncertainty is not None:  # now and then noise hides too much
            errors.append(np.sqrt(np.diag(result.uncertainty.covariance)))
            relative.append((result.weights - truth) / errors[-1])
    assert len(errors) >= 6
    assert 0.6 < np.sqrt(np.mean(np.square(relative))) < 1.5, "not nearly covered, and not ten times too wide"
    assert np.mean(errors) < 0.3


def test_intervals_of_a_class_too_rare_for_the_noise_are_wide_enough_and_weights_those_of_the_solver():
    truth, data = rare_class(1500, 0)
    options = {"rows_per_user": 1, "insecure_seed": 0, "execution": QUIET}
    result = minimize(losses.logistic, data, Ball(1e9), 1.5, 1e-6, inference=0.5, **options)
    factor, more = re.search(r"widened by a factor of ([\d.]+), .* about ([\d,]+) such users", result.message).groups()
    assert float(factor) > math.exp(inference._FARTHEST_STEPPED)
    assert int(more.replace(",", "")) > 1500
    assert np.linalg.norm(result.weights) < 20, "weights are those of the solver, not of steps that led astray"
    estimates = result.weights + result.uncertainty.shrunk
    assert np.all(np.abs(estimates - truth) < 2 * np.sqrt(np.diag(result.uncertainty.covariance)))


def test_intervals_of_a_rare_class_are_widened_by_as_much_as_noise_changes_curvatures(monkeypatch):
    truth, data = rare_class(3000, 4)
    options = {"rows_per_user": 1, "insecure_seed": 4, "inference": 0.5, "execution": QUIET}
    wide = minimize(losses.logistic, data, Ball(1e9), 1.5, 1e-6, **options)
    factor = float(re.match(r"Standard errors are widened by a factor of (\d\.\d), ", wide.message)[1])
    monkeypatch.setattr(inference, "_FARTHEST", inference._FARTHEST_STEPPED)
    plain = minimize(losses.logistic, data, Ball(1e9), 1.5, 1e-6, **options)
    ratios = wide.uncertainty.covariance / plain.uncertainty.covariance
    np.testing.assert_allclose(ratios, factor**2, rtol=0.1)  # the message has two digits
    np.testing.assert_allclose(wide.uncertainty.sampling, plain.uncertainty.sampling, rtol=1e-6)
    assert np.all(np.abs(wide.weights - truth) < 4 * np.sqrt(np.diag(wide.uncertainty.covariance)))


def test_the_number_of_users_that_a_rare_class_would_need_does():
    options = {"rows_per_user": 1, "insecure_seed": 1, "inference": 0.5, "execution": QUIET}
    result = minimize(losses.logistic, rare_class(2000, 1)[1], Ball(1e9), 3.0, 1e-6, **options)
    more = int(re.search(r"With about ([\d,]+) such users", result.message)[1].replace(",", ""))
    for seed in (11, 12):
        again = minimize(losses.logistic, rare_class(more, seed)[1], Ball(1e9), 3.0, 1e-6, **options)
        assert "widened" not in again.message


@pytest.mark.parametrize("noise", [0.01, 0.3, 0.7, 5.0])
@pytest.mark.parametrize("steps", [0.01, 0.3, 0.7, 5.0])
def test_noise_falls_as_the_number_of_users_and_what_the_solver_is_off_as_its_root(noise, steps):
    times, off = inference._more(noise, steps), max(0, steps**2 - noise**2)
    assert (noise / times) ** 2 + off / times == pytest.approx((inference._ENOUGH * inference._FARTHEST) ** 2)
    assert times > 1 or max(noise, steps) <= inference._FARTHEST


def test_both_gradients_tell_together_what_the_same_clip_took_off_them():
    noises = np.array([0.004, 0.002])
    unseen = noises / inference._MARK  # of a clip of 1, as a fraction of users
    beyond = np.array([1.9, 3.0]) * unseen
    apart = inference._cuts(np.array([1.0, 1.0 + 1e-9]), beyond, noises)
    together = inference._cuts(np.ones(2), beyond, noises)
    assert apart[0] == 0 < apart[1]
    assert together[0] == together[1] > apart[1], "one with more noise is not taken for whole"
    assert not inference._cuts(np.ones(2), unseen, noises).any()


@pytest.mark.filterwarnings("ignore::userdp.UtilityWarning")  # noise hides much of so few users
def test_counts_beyond_the_largest_have_none_and_a_model_all_the_same():
    """There the loss is flat, and steps would be divided by 0."""
    X, _, _, users = people(3000)
    y = np.random.default_rng(0).poisson(20, len(X))
    with pytest.warns(UtilityWarning, match="Raise max_count, if it is low"):
        model = PoissonRegressor(max_count=5, insecure_seed=1, **OPTIONS).fit(X, y, groups=users)
    assert np.isfinite(model.coef_).all()
    with pytest.raises(ValueError, match=r"standard errors"):
        model.summary()


def test_a_penalty_moves_what_is_covered():
    X, z, error, users = people()
    y = 10 * z + 5 * error
    model = LinearRegression(target_range=(-60, 60), l2=0.5, insecure_seed=1, **OPTIONS).fit(X, y, groups=users)
    centred = X - X.mean(axis=0)
    best = np.linalg.solve(centred.T @ centred / len(X) + 0.5 * np.eye(2), centred.T @ (y - y.mean()) / len(X))
    assert np.all(np.abs(model.coef_ - best) < 4 * np.sqrt(np.diag(model.cov_)[:2]))
    assert np.all(np.abs(model.coef_ - 10 * TRUTH[:2]) > 4 * np.sqrt(np.diag(model.cov_)[:2]))


def test_counts_with_exposure_and_units_of_the_target():
    X, z, _, users = people()
    rng = np.random.default_rng(0)
    exposure = rng.uniform(0.5, 1.0, len(z))
    model = PoissonRegressor(max_count=20, max_exposure=1.0, insecure_seed=1, **OPTIONS)
    model.fit(X, rng.poisson(exposure * np.exp(0.5 * z)), groups=users, exposure=exposure)
    weights = np.append(model.coef_, model.intercept_)
    assert np.all(np.abs(weights - 0.5 * TRUTH) < 4 * np.sqrt(np.diag(model.cov_)))
    wide = LinearRegression(target_range=(-600, 600), fit_intercept=False, insecure_seed=1, **OPTIONS)
    wide.fit(X, 100 * z, groups=users)
    assert wide.conf_int().shape == (2, 2)


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "match"),
    [
        (QuantileRegressor(target_range=(-60, 60)), "quantile"),
        (HuberRegressor(target_range=(-60, 60)), "huber"),
        (LinearSVC(classes=[0, 1]), "squared_hinge"),
        (LogisticRegression(classes=[0, 1, 2]), "multinomial"),
        (LogisticRegression(classes=[0, 1], delta=0.0), "delta > 0"),
        (LogisticRegression(classes=[0, 1], solver=Solver("phased-sgd", row_norm=3.0)), 'solver="auto"'),
        (LogisticRegression(classes=[0, 1], epsilon=0.05), "users would do"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_what_was_not_measured_to_cover_is_refused_before_anything_is_charged(model, match):
    X, z, error, users = people(n_users=1000)
    ledger = Ledger(Budget(100, 1e-3))
    epsilon = model.epsilon if model.epsilon < 1 else 4.0
    model.set_params(epsilon=epsilon, inference=True, ledger=ledger, max_rows_per_user=3)
    with pytest.raises(ValueError, match=match) as refused:
        model.fit(X, classes(z, error), groups=users)
    assert "Nothing was spent" in str(refused.value)
    assert ledger.charges() == ()


def test_the_number_of_users_that_would_do_does():
    few = UserData.from_arrays(np.ones((300, 4)), np.zeros(300), np.arange(300))
    options = {"rows_per_user": 1, "insecure_seed": 0, "inference": 0.5, "execution": QUIET}
    with pytest.raises(BudgetExceeded, match="standard errors of 4 weights") as refused:
        minimize(losses.logistic, few, Ball(1e9), 1.0, 1e-6, **options)
    enough = refused.value.enough_users
    assert 300 < enough < 10_000
    rng = np.random.default_rng(0)
    X = rng.normal(size=(enough, 4))
    many = UserData.from_arrays(X, (rng.random(enough) < expit(X[:, 0])).astype(float), np.arange(enough))
    assert minimize(losses.logistic, many, Ball(1e9), 1.0, 1e-6, **options).uncertainty is not None


@pytest.mark.parametrize("wrong", [0, 1, -0.1, "yes", None, 2])
def test_fractions_that_are_none_are_refused(wrong):
    X, z, error, users = people(n_users=100)
    with pytest.raises(ValueError, match="inference"):
        LogisticRegression(classes=[0, 1], inference=wrong).fit(X, classes(z, error), groups=users)


# --- the command line -------------------------------------------------------------------------------------------------


def test_the_command_line_prints_the_table_in_the_columns_own_units(tmp_path):
    X, z, error, users = people()
    table = pa.table({"user": users, "age": 50 + 10 * X[:, 0], "income": 3 * X[:, 1], "y": classes(z, error)})
    write_table(table, tmp_path / "t.parquet")
    asked = [
        *("fit", tmp_path / "t.parquet", "--user-column", "user", "--target", "y", "--classes", "0,1"),
        *("--features", "age,income", "--epsilon", 4, "--max-rows-per-user", 3, "--insecure-seed", 1, "--inference"),
    ]
    words = [*asked, "-o", tmp_path / "m.json"]
    result = CliRunner(env={"COLUMNS": "120"}).invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    assert re.search(r"coef +std err +z", result.output)
    model = load_model(tmp_path / "m.json")
    truth = np.array([0.1, -0.5 / 3, TRUTH[2] - 5])
    weights = np.append(model.coef_[0], model.intercept_)
    assert np.all(np.abs(weights - truth) < 4 * np.sqrt(np.diag(model.cov_)))
