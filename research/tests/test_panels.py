"""Clustered errors and limits where the answer is known, and what benchmarks/panels.py makes of them."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit

from userdp import Budget, UserData, losses
from userdp.privacy.accounting import gaussian_multiplier
from userdp_research.bench.references import clustered_covariance, release_covariance, user_optimum, yardstick

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))
import panels  # noqa: E402

BUDGET = Budget(2.0, 1e-6)
LARGEST = 20.0
MEANS = {"linear": lambda p: p, "logistic": expit, "poisson": np.exp}
BENDS = {"linear": np.ones_like, "logistic": lambda p: expit(p) * expit(-p), "poisson": np.exp}
LOSSES = {"linear": losses.squared, "logistic": losses.logistic, "poisson": losses.poisson(LARGEST)}


def users_of(kind, n_users=300, seed=0):
    """Unequal users with a rare flag and an own level; targets in their own units, and users as the loss wants them."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 6, n_users)
    owners = np.repeat(np.arange(n_users), sizes)
    X = np.column_stack([rng.normal(size=len(owners)), (rng.random(n_users) < 0.05)[owners], np.ones(len(owners))])
    predictions = 0.3 * X[:, 0] + 0.8 * X[:, 1] + 0.5 * rng.normal(size=n_users)[owners]
    drawn = {"linear": rng.normal(predictions), "logistic": rng.random(len(owners)) < expit(predictions)}
    drawn["poisson"] = np.minimum(rng.poisson(np.exp(predictions)), LARGEST)
    y = drawn[kind].astype(float)
    return X, y, owners, UserData(X, y / (LARGEST if kind == "poisson" else 1), np.append(0, np.cumsum(sizes)))


@pytest.mark.parametrize("kind", LOSSES)
def test_clustered_errors_are_the_sandwich(kind):
    X, y, owners, data = users_of(kind)
    best, n_users = user_optimum(LOSSES[kind], data), owners[-1] + 1
    bread, meat = np.zeros((3, 3)), np.zeros((3, 3))
    for user in range(n_users):
        rows, theirs = X[owners == user], y[owners == user]
        gradient = (MEANS[kind](rows @ best) - theirs) @ rows / len(rows)
        meat += np.outer(gradient, gradient)
        bread += (rows.T * BENDS[kind](rows @ best)) @ rows / len(rows)
    expected = np.linalg.inv(bread) @ meat @ np.linalg.inv(bread)
    np.testing.assert_allclose(clustered_covariance(LOSSES[kind], data, best), expected, rtol=1e-3)


def test_copies_of_a_users_rows_change_no_clustered_error():
    X, y, _, data = users_of("logistic")
    twice = UserData(np.repeat(X, 2, axis=0), np.repeat(y, 2), 2 * data.offsets)
    best = user_optimum(losses.logistic, data)
    once = clustered_covariance(losses.logistic, data, best)
    np.testing.assert_allclose(clustered_covariance(losses.logistic, twice, best), once, rtol=1e-6)
    rows, copies = (
        UserData(each.rows, each.targets, np.arange(each.n_rows + 1)) for each in (data, twice)
    )  # each row a user
    unclustered = clustered_covariance(losses.logistic, rows, best)
    np.testing.assert_allclose(clustered_covariance(losses.logistic, copies, best), unclustered / 2, rtol=1e-6)


def influences(data, best):
    """Of logistic users: H and their mean gradients."""
    X, sizes = data.dense().astype(float), np.diff(data.offsets)
    slopes = (expit(X @ best) - data.targets)[:, None] * X
    bends = (X * (expit(X @ best) * expit(-X @ best) / np.repeat(sizes, sizes))[:, None]).T @ X / len(sizes)
    return bends, np.add.reduceat(slopes, data.offsets[:-1]) / sizes[:, None]


def noise_covariance(bends, gradients, matrix):
    """Of coefficients, if gradients are released after multiplication by `matrix`."""
    length = np.sqrt(np.mean(np.sum((gradients @ matrix.T) ** 2, axis=1)))
    back = np.linalg.inv(bends) @ np.linalg.inv(matrix)
    return (2 * length * gaussian_multiplier(BUDGET) / len(gradients)) ** 2 * back @ back.T


def test_the_limit_is_the_spread_of_simulated_releases():
    data = users_of("logistic")[-1]
    best = user_optimum(losses.logistic, data)
    bends, gradients = influences(data, best)
    whiten = np.linalg.inv(np.linalg.cholesky(gradients.T @ gradients / len(gradients)))
    vectors = gradients @ whiten.T
    length = np.sqrt(np.mean(np.sum(vectors**2, axis=1)))
    assert length == pytest.approx(np.sqrt(3), rel=1e-6)
    noise = np.random.default_rng(1).normal(0, 2 * length * gaussian_multiplier(BUDGET) / 300, (20_000, 3))
    moved = best - (vectors.mean(axis=0) + noise) @ np.linalg.inv(whiten).T @ np.linalg.inv(bends)
    limits = np.sqrt(np.diag(release_covariance(losses.logistic, data, best, BUDGET)))
    np.testing.assert_allclose(moved.std(axis=0), limits, rtol=0.03)
    np.testing.assert_allclose(moved.mean(axis=0), best, atol=0.05 * limits.max())


def test_no_other_preparation_has_less_noise_in_every_combination():
    data = users_of("logistic")[-1]
    best = user_optimum(losses.logistic, data)
    limit = release_covariance(losses.logistic, data, best, BUDGET)
    bends, gradients = influences(data, best)
    rng = np.random.default_rng(0)
    for matrix in [np.eye(3), np.linalg.inv(np.linalg.cholesky(bends)), *rng.normal(size=(50, 3, 3))]:
        other = noise_covariance(bends, gradients, matrix)
        assert np.linalg.eigvals(np.linalg.solve(limit, other)).real.max() > 0.999
    ratio = release_covariance(losses.logistic, data, best, BUDGET) / clustered_covariance(losses.logistic, data, best)
    np.testing.assert_allclose(ratio, (2 * gaussian_multiplier(BUDGET)) ** 2 * 3 / 300, rtol=1e-6)


def test_the_limit_of_a_mean_is_the_yardsticks():
    y = np.random.default_rng(0).normal(3, 2, 5000)
    data, best = UserData(np.ones((5000, 1)), y, np.arange(5001)), np.array([y.mean()])
    found = yardstick(losses.squared, data, best).excess(5000, BUDGET) - y.var() / 10_000
    assert release_covariance(losses.squared, data, best, BUDGET)[0, 0] / 2 == pytest.approx(found)


def test_flags_are_as_they_are_and_other_columns_in_standard_deviations():
    X = np.array([[0.0, 0.0, 0.5], [1.0, 2.0, 1.0], [1.0, 4.0, 0.0]])
    flags, scales = panels.column_scales(X, np.array([0.5, 0.25, 0.25]))
    assert flags.tolist() == [True, False, False]
    np.testing.assert_allclose(scales, [1.0, np.sqrt((4 + 16) / 4 - 1.5**2), np.sqrt(0.5 * 0.25 + 0.25 - 0.5**2)])


CELL = {
    "panel": "clinic",
    "outcome": "visits",
    "columns": ["age", "smoker", "ill"],
    "shares": [None, 0.3, 0.01],
    "estimates": [0.1, -0.4, 1.0],
    "errors": [0.02, 0.1, 0.1],
}


def fitted(limits, *runs):
    made = [{"estimates": run, "total": 0.9 + 0.1 * k, "unresolved": ["ill"][:k]} for k, run in enumerate(runs)]
    return {"epsilon": 1.0, "limits": limits, "runs": made}


def test_a_summary_counts_what_could_come_out_and_what_did():
    fit = fitted([0.01, 0.04, 0.04], [0.1, -0.3, 0.2], [0.2, -0.9, 0.5], [0.0, -0.2, 0.1])
    found = panels.summed_up(CELL, fit)
    np.testing.assert_allclose(found.median, [0.1, -0.3, 0.2])
    np.testing.assert_allclose(found.worst, [0.2, -0.9, 0.1])
    assert found.named.tolist() == [0, 0, 2]
    assert (found.resolvable, found.near, found.always_near, found.inside) == (3, 2, 1, 2)
    assert found.silent == 0  # the third is far off, but named in two runs of three
    unnamed = fit | {"runs": [run | {"unresolved": []} for run in fit["runs"]]}
    assert panels.summed_up(CELL, unnamed).silent == 1
    noisy = panels.summed_up(CELL, unnamed | {"limits": [0.01, 0.04, 0.06]})
    assert (noisy.resolvable, noisy.silent) == (2, 0)
    assert panels.summed_up(CELL, fit | {"runs": [{"refused": "too few users"}]}) is None


def test_tables_stand_between_their_marks():
    refused = {"epsilon": 8.0, "limits": [1, 1, 1], "runs": [{"refused": "too few users"}]}
    fit = fitted([0.01, 0.04, 0.04], [0.1, -0.3, -0.001], [0.1, -0.3, -0.001])
    record = {"cells": [CELL | {"fits": [fit, refused]}]}
    begin, end = panels.MARKS
    page = panels.with_tables(f"# Page\n{begin}old\n{end}after\n", record)
    assert page.startswith(f"# Page\n{begin}")
    assert page.endswith(f"{end}after\n")
    assert "old" not in page
    assert "| clinic visits | 2/3 | refused | 0.90 to 1.00 |  |" in page
    assert "| visits ill | 1.0% | 1.00 (0.10) | 0.00\\* | refused |" in page
    assert "| visits smoker |" not in page
    assert panels.with_tables(page, record) == page


def test_the_page_has_the_tables_of_what_was_measured():
    page, record = ROOT / "docs" / "measurements.md", json.loads((ROOT / "docs" / "bench" / "panels.json").read_text())
    assert panels.with_tables(page.read_text(), record) == page.read_text()


def test_effects_do_not_depend_on_units():
    """Of a generated panel, shuffled: the estimates are the truth's, whatever units age and outcome are in."""
    rng = np.random.default_rng(0)
    n_users = 1500
    owners = rng.permutation(np.repeat(np.arange(n_users), 2))
    age, ill = rng.uniform(20, 60, len(owners)), (rng.random(n_users) < 0.3)[owners]
    y = 0.1 * (age - 40) + ill + rng.normal(size=len(owners))

    def measured(unit):
        table = pd.DataFrame({"user": owners, "age": age * unit, "ill": ill, "cost": y * unit})
        table.loc[0, "age"] = np.nan
        model = panels.Model("linear", "cost", (-10 * unit, 10 * unit))
        panel = panels.Panel("pandas", "user", 2, ("age", "ill"), lambda: table, (model,))
        return panels.measure(panel, model, [8.0], 1)

    first, second = measured(1.0), measured(1000.0)
    assert (first["users"], first["rows"]) == (n_users, 2 * n_users - 1)
    assert first["shares"] == [None, pytest.approx(ill.mean(), abs=1e-3)]
    np.testing.assert_allclose(first["estimates"], np.array([0.1 * age.std(), 1.0]) / y.std(), atol=0.05)
    np.testing.assert_allclose(first["estimates"], second["estimates"], atol=1e-4)
    np.testing.assert_allclose(first["errors"], second["errors"], atol=1e-4)
    (run,) = first["fits"][0]["runs"]
    np.testing.assert_allclose(run["estimates"], first["estimates"], atol=0.15)
    assert run["total"] == pytest.approx(1.0, abs=0.2)


def test_panels_whose_package_is_absent_are_skipped(monkeypatch, capsys, tmp_path):
    absent = replace(panels.PANELS["rand"], package="no_such_package")
    monkeypatch.setattr(panels, "PANELS", {"rand": absent})
    monkeypatch.setattr(sys, "argv", ["panels.py", "--panels", "rand", "--json", str(tmp_path / "panels.json")])
    panels.main()
    assert capsys.readouterr().out.startswith("Skipped rand: the package no_such_package is not installed")
    assert not (tmp_path / "panels.json").exists()
