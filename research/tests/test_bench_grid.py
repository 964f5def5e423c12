"""Generated users: they are as the scenario says, and models are scored against the truth."""

import json
from dataclasses import replace

import numpy as np
import pytest
from support_bench import run

from userdp_research.bench import generated
from userdp_research.bench.generated import (
    LOSSES,
    QUICK,
    SCENARIOS,
    Scenario,
    draw_users,
    fresh_rows,
    true_weights,
    with_sizes,
)
from userdp_research.bench.grid import grid_cells, measure_grid
from userdp_research.bench.references import each_value
from userdp_research.bench.summary import grid_rows, verdicts


@pytest.fixture(autouse=True)
def _fewer_fresh_rows(monkeypatch):
    monkeypatch.setattr(generated, "_FRESH_ROWS", 20_000)
    fresh_rows.cache_clear()
    yield
    fresh_rows.cache_clear()


def kind(name):
    """As cells see it."""
    return Scenario.from_settings(json.loads(json.dumps(SCENARIOS[name].settings())))


def test_scenarios_cover_what_users_have():
    found = list(SCENARIOS.values())
    assert {s.loss for s in found} == set(LOSSES) == {"logistic", "squared", "huber", "multinomial"}
    assert {1, 2, 3, 10, 50} <= {s.rows for s in found if s.loss == "logistic"}
    assert (min(s.features for s in found), max(s.features for s in found)) == (3, 100)
    assert (min(min(s.users) for s in found), max(max(s.users) for s in found)) == (2_000, 200_000)
    assert all(max(s.users) * s.rows * (s.features + 1) <= 10**8 for s in found)  # fits into memory
    assert set(QUICK) <= set(SCENARIOS)


def test_users_are_as_the_scenario_says():
    rare = draw_users(kind("rare-1"), 50_000, 0)
    assert rare.targets.mean() == pytest.approx(0.02, abs=0.003)
    correlated = np.corrcoef(draw_users(kind("correlated"), 5_000, 0).rows[:, :-1], rowvar=False)
    off = correlated[~np.eye(20, dtype=bool)]
    assert (off.min(), off.max()) == pytest.approx((0.9, 0.9), abs=0.02)
    odd = draw_users(kind("odd-units"), 5_000, 0).rows[:, :-1]
    spreads = odd.std(axis=0)
    assert spreads.max() / spreads.min() == pytest.approx(1e5, rel=0.1)
    np.testing.assert_allclose(odd.mean(axis=0) / spreads, 10, rtol=0.1)
    assert (draw_users(kind("odd-units"), 100, 0).rows[:, -1] == 1).all()
    assert sorted(set(np.diff(draw_users(kind("unequal"), 100, 0).offsets))) == [1, 50]
    assert np.diff(draw_users(kind("unequal-uncut"), 100, 0).offsets).sum() == 50 + 50 * 300
    other = with_sizes(SCENARIOS["unequal"], [2, 7, 30], 5)
    assert (other.kept, other.rows) == ((2, 5, 5), 5)
    assert with_sizes(SCENARIOS["rows-3"], [1, 2], 5) == SCENARIOS["rows-3"]


def test_users_have_tastes_and_seeds():
    data = draw_users(kind("rows-10"), 3_000, 0)
    means = data.rows[:, 0].reshape(3_000, 10).mean(axis=1)
    assert means.var() == pytest.approx(0.1 + 0.9 / 10, rel=0.1)
    assert not np.array_equal(data.rows, draw_users(kind("rows-10"), 3_000, 1).rows)
    assert data.rows.dtype == np.float32


@pytest.mark.parametrize(
    "name", ["few-weights", "rare-1", "correlated", "odd-units", "squared-1", "huber-1", "multinomial-1"]
)
def test_the_truth_has_no_excess_and_is_calibrated(name):
    scenario = kind(name)
    fresh, truth = fresh_rows(scenario), true_weights(scenario)
    found = fresh.score(truth.ravel())
    assert found["excess"] == pytest.approx(0, abs=1e-7)
    assert found["slope"] == pytest.approx(1, abs=1e-3)
    assert found["mean_ratio"] in (None, pytest.approx(1))
    np.testing.assert_allclose(np.array(found["bins"])[:, 0], np.array(found["bins"])[:, 1], atol=1e-5)
    longer = fresh.score(1.5 * truth.ravel()) if not scenario.odd_units else None
    if longer:
        assert longer["slope"] == pytest.approx(1 / 1.5, abs=1e-3)
        assert longer["excess"] > 0
        assert fresh.nothing_learned() > 0


@pytest.mark.parametrize("name", ["rows-1", "squared-1", "huber-1", "multinomial-1"])
def test_excess_is_what_losses_on_drawn_users_say(name):
    scenario = kind(name)
    loss, data, truth = LOSSES[scenario.loss], draw_users(scenario, 100_000, 7), true_weights(scenario)
    model = 0.5 * truth

    def each(weights):
        predictions = data.rows.astype(float) @ weights.T
        return each_value(loss, predictions if loss.n_outputs > 1 else predictions[:, 0], data.targets)

    above = each(model) - each(truth)
    expected = fresh_rows(scenario).score(model.ravel())["excess"]
    assert above.mean() == pytest.approx(expected, abs=4 * above.std() / 300 + 0.03 * expected)
    assert expected > 0


def test_units_change_no_score():
    odd, usual = kind("odd-units"), kind("usual-units")
    offsets = np.random.default_rng(0).normal(size=11) / 10
    standard = true_weights(usual).ravel() + offsets
    scale, offset = generated._units(odd)
    there = standard.copy()
    there[:-1] /= scale
    there[-1] -= offset * standard[:-1].sum()
    one, other = fresh_rows(usual).score(standard), fresh_rows(odd).score(there)
    assert other["excess"] == pytest.approx(one["excess"], rel=1e-3)
    assert other["slope"] == pytest.approx(one["slope"], rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rows-3", "squared-1", "huber-1", "multinomial-1", "odd-units", "unequal"])
def test_without_privacy_the_excess_is_the_yard(name):
    """The yardstick's part for the data, rho^2/(2n), is what the optimum of n users costs."""
    (cell,) = grid_cells([SCENARIOS[name]], ["not-private"], [4_000], [1.0], 1e-6, 6)
    result = measure_grid(cell.settings, cell.context)
    assert 0.6 < result["excess"]["mean"] / result["yard"] < 1.6


@pytest.mark.slow
def test_a_quick_grid(tmp_path, monkeypatch):
    for name in QUICK:
        monkeypatch.setitem(SCENARIOS, name, replace(SCENARIOS[name], users=(400, 500)))
    out = tmp_path / "g.json"
    options = ("--quick", "--solvers", "auto,not-private", "--sizes", "1,9", "--cap", "4", "--out", out)
    result = run("grid", *options, "--plot", tmp_path / "pictures")
    assert result.exit_code == 0, result.output
    assert f"{2 * len(QUICK)} cells measured, 0 were there already" in result.stderr
    cells = json.loads(out.read_text())["cells"]
    assert {cell["settings"]["users"] for cell in cells} == {400}
    assert not any("error" in cell["result"] for cell in cells), [cell["result"] for cell in cells]
    (unequal,) = (c for c in cells if c["settings"]["scenario"]["name"] == "unequal" and c["settings"]["epsilon"])
    assert unequal["result"]["rows"] == 4
    assert unequal["result"]["yard"] > 0
    assert unequal["result"]["estimate"] > 0
    names = sorted(path.name for path in (tmp_path / "pictures").iterdir())
    assert names == ["estimates.svg", "grid-calibration.svg"]
    head, rows = grid_rows(cells)
    assert head[:5] == ["scenario", "users", "rows", "weights", "eps"]
    assert len(rows) == len(cells)
    again = run("grid", *options)
    assert f"0 cells measured, {2 * len(QUICK)} were there already" in again.stderr


def record(excess, slope, estimate, **more):
    facts = {"yard": 0.001, "s": 0.01, "taken": "whitened-clip", "warned": False, "estimate": estimate, "halted": 0}
    measured = {"excess": {"mean": excess}, "slope": {"mean": slope}}
    return {"settings": {"command": "grid"}, "result": facts | measured | more}


def test_verdicts_count_cells():
    found = [
        record(0.001, 1.04, 0.002),
        record(0.0045, 0.93, 0.002),
        record(0.1, 0.5, 0.0001, s=0.03, halted=2),
        record(0.0005, 1.2, 0.01, warned=True),
        {"settings": {"command": "grid"}, "result": {"yard": 0.001, "s": 0.01, "refusal": "needs users"}},
    ]
    lines = verdicts(found)
    assert "excess <= 4 yards where s <= 0.02: 2 of 3 cells" in lines
    assert "slope in [.95, 1.05] where excess < 0.002: 1 of 2 cells" in lines
    assert "slope in [.9, 1.1] where the plan does not warn: 2 of 3 cells" in lines
    assert "estimate within a factor 3 of the excess: 2 of 4 cells" in lines
    assert "cells with runs that aborted: 1" in lines
