"""A tiny run on users in a file: what is kept, who is compared, the tuned reference."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from support_bench import N_USERS, QUICK, ROWS, people, reading, run, write_people

from userdp.privacy.accounting import Budget, Cost, Subsampled, fits
from userdp.solvers.solver import SOLVERS
from userdp_research.bench.oracle import Tuning, candidates, dp_sgd, noise_multiplier, oracle
from userdp_research.bench.real import competitors, held_out, measure_real, real_cells
from userdp_research.bench.references import user_optimum
from userdp_research.bench.tasks import Task, known_tasks


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return write_people(tmp_path_factory.mktemp("bench") / "people.parquet")


@pytest.fixture(scope="module")
def task(file):
    return Task("people", file, "y", cap=ROWS)


def test_training_and_test_users_have_nobody_in_common(task):
    train, test = task.load()
    assert (train.n_users, test.n_users, task.n_users) == (0.8 * N_USERS, 0.2 * N_USERS, 0.8 * N_USERS)
    assert train.has_intercept
    assert task.load(1, 50)[0].n_users == 50
    assert not np.array_equal(task.load(1, 50)[0].rows, task.load(2, 50)[0].rows)
    held_out = Task("people", task.path, "y", fold=None, cap=ROWS).load()
    assert (held_out[0].n_users, held_out[1].n_users) == (0.8 * N_USERS, 0.2 * N_USERS)
    assert Task.from_settings(json.loads(json.dumps(task.settings())), str(task.path)) == task


def test_everybody_known_is_compared():
    names = competitors()
    assert {name for name, _ in SOLVERS} <= set(names)
    assert {"auto", "oracle", "not-private", "accelerated:paper", "phased-sgd:paper"} <= set(names)


def test_the_grid_is_small_first_and_has_each_cell_once(task):
    cells = real_cells([task], competitors(), [100, None, 320, 10**6], [1.0, 2.0], [1, None], 1e-6, 3)
    settings = [cell.settings for cell in cells]
    assert [s["users"] for s in settings] == sorted([s["users"] for s in settings], key=lambda n: n or 1e9)
    assert {s["users"] for s in settings} == {100, None}  # 320 are all, a million are not there
    assert len({cell.key for cell in cells}) == len(cells)
    passes = {s["solver"]: {t["passes"] for t in settings if t["solver"] == s["solver"]} for s in settings}
    assert passes["phased-sgd"] == passes["not-private"] == {None}  # the same under every limit
    assert passes["whitened-clip"] == passes["auto"] == passes["oracle"] == {1, None}


def test_a_tiny_run(file, tmp_path):
    out = tmp_path / "r.json"
    solvers = ("--solvers", "not-private,auto,whitened-clip,phased-sgd:paper")
    result = run("real", *reading(file), *QUICK, *solvers, "--out", out, "--plot", tmp_path / "pictures")
    assert result.exit_code == 0, result.output
    assert "NOT PRIVATE" in result.stderr
    assert "4 cells measured, 0 were there already" in result.stderr
    whole = json.loads(out.read_text())
    assert "NOT PRIVATE" in whole["note"]
    assert whole["runs"][0]["workers"] == 1
    cells = {cell["settings"]["solver"]: cell["result"] for cell in whole["cells"]}
    assert "needs about" in cells["phased-sgd:paper"]["refusal"]
    assert cells["phased-sgd:paper"]["enough_users"] > N_USERS
    private, openly = cells["whitened-clip"], cells["not-private"]
    assert len(private["loss"]["values"]) == len(private["seconds"]) == len(private["excess"]["values"]) == 2
    assert openly["excess"]["mean"] <= private["excess"]["mean"] < 0.3
    for kind in ("", "row_"):
        above = private[kind + "loss"]["mean"] - private["best"][kind + "loss"]
        assert private[kind + "excess"]["mean"] == pytest.approx(above)
    assert private["yard"] > openly["yard"] > 0
    assert openly["s"] is None
    assert private["estimate"] > 0
    assert private["warned"] in (True, False)
    assert len(private["bins"]) == 10
    assert "yard" in result.stdout
    assert "estimate within a factor 3" in result.stdout
    assert private["passes"] * 320 * ROWS == private["n_gradients"]
    assert sorted(path.name for path in (tmp_path / "pictures").iterdir()) == [
        "estimates.svg",
        "people-calibration.svg",
        "people-epsilon.svg",
        "people-passes.svg",
    ]
    again = run("real", *reading(file), *QUICK, *solvers, "--out", out)
    assert "0 cells measured, 4 were there already" in again.stderr
    assert json.loads(out.read_text()) == whole


@pytest.mark.slow
def test_limits_on_passes_hold(file, tmp_path):
    out, limited = tmp_path / "r.json", ("--passes", "3", "--repeats", "1", "--epsilon", "4", "--users", "all")
    assert run("real", *reading(file), *limited, "--solvers", "whitened-clip", "--out", out, "-q").exit_code == 0
    (cell,) = json.loads(out.read_text())["cells"]
    assert 2 < cell["result"]["passes"] <= 3
    assert cell["result"]["excess"]["spread"] is None


def test_the_tuned_reference_beats_an_untuned_one_and_no_open_model(task, monkeypatch):
    """An untuned one is any of the same grid, at the same passes, with the same fresh noise."""
    monkeypatch.setattr("userdp_research.bench.oracle._LENGTHS", (5, 20))
    train, test, budget = task.load_train(), held_out(task), Budget(1.0, 1e-6)
    found = oracle([train, train], test, budget, passes=5)
    untuned = [
        test.score(dp_sgd(train, tuning, noise_multiplier(budget, tuning), seed)[0])["loss"]
        for tuning in candidates(5)
        for seed in (1, 2)
    ]
    tuned = np.mean([one["loss"] for one in found["scores"]])
    assert test.score(user_optimum(task.loss, train))["loss"] < tuned < np.mean(untuned) - 0.02
    assert found["passes"] <= 5


def test_the_reference_stays_within_its_passes_and_pays_for_its_noise():
    for passes in (1, 5, 200, None):
        tunings = candidates(passes)
        assert all(t.length * t.fraction <= (passes or 240) * (1 + 1e-12) and t.length <= 240 for t in tunings)
        assert {t.clip for t in tunings} == {0.03, 0.1, 0.3, 1.0}
    assert any(t.fraction < 1 for t in candidates(1))
    assert any(t.fraction == 1 for t in candidates(1))
    budget = Budget(1.0, 1e-6)
    full, sampled = Tuning(20, 1.0, 0.1, 1.0), Tuning(20, 0.25, 0.1, 1.0)
    # A replacement moves a full sum by two clips.
    assert fits(Cost(gaussian=20 * (2 / noise_multiplier(budget, full)) ** 2), budget)
    assert not fits(Cost(gaussian=20 * (2.01 / noise_multiplier(budget, full)) ** 2), budget)
    assert fits(Cost(subsampled=(Subsampled(0.25, noise_multiplier(budget, sampled), 20),)), budget)
    assert noise_multiplier(budget, sampled) < noise_multiplier(budget, full)


def test_known_data_sets_are_looked_for_where_they_are_said_to_be(tmp_path, monkeypatch):
    monkeypatch.setenv("USERDP_DATA", str(tmp_path))
    assert {task.path for task in known_tasks().values()} == {
        tmp_path / name / f"{name}.parquet" for name in ("openpowerlifting", "online_retail")
    }


def test_rows_are_cut_for_training_alone_and_excess_has_one_reference(file, tmp_path):
    out = tmp_path / "r.json"
    options = ("--rows", "1,3", "--solvers", "not-private", "--out", out, "--plot", tmp_path / "pictures")
    result = run("real", *reading(file), *QUICK, *options)
    assert result.exit_code == 0, result.output
    one, three = (cell["result"] for cell in json.loads(out.read_text())["cells"])
    assert one["best"] == three["best"]
    assert one["constant_loss"] == three["constant_loss"] > three["loss"]["mean"]
    assert one["yard"] > 2 * three["yard"]  # rows of a user are independent here
    assert one["excess"]["values"] != three["excess"]["values"]
    assert one["cut_excess"]["values"][0] == pytest.approx(0, abs=1e-4)  # the same users and rows, but for the ridge
    assert abs(one["excess"]["values"][0]) > 1e-4
    assert (tmp_path / "pictures" / "people-rows.svg").exists()
    assert (tmp_path / "pictures" / "people-3-rows-epsilon.svg").exists()


def test_rows_are_kept_at_random(task):
    few = replace(task, cap=2)
    first, second = few.load_train(0), few.load_train(1)
    assert set(np.diff(first.offsets)) == {2}
    assert not np.array_equal(first.rows, second.rows)
    assert set(np.diff(few.load_test().offsets)) == {ROWS}


def test_regression_is_scored_in_its_own_units(tmp_path):
    rng, drawn = np.random.default_rng(0), people()
    y = 20 + 5 * drawn["x_a"] + rng.normal(size=N_USERS * ROWS)
    task = Task("people", write_people(tmp_path / "p.parquet", y=y), "y", cap=ROWS, target_range=(10.0, 30.0))
    assert np.abs(task.load_train().targets).max() < 1
    names = [cell.settings["solver"] for cell in real_cells([task], competitors(), [None], [4.0], [None], 1e-6, 2)]
    assert "oracle" not in names
    assert Task.from_settings(json.loads(json.dumps(task.settings())), str(task.path)) == task
    for solver in ("not-private", "auto"):
        (cell,) = real_cells([task], [solver], [None], [4.0], [None], 1e-6, 2)
        result = measure_real(cell.settings, cell.context)
        assert result["best"]["loss"] == pytest.approx(0.5, abs=0.06)  # half of the variance of the errors
        assert result["constant_loss"] == pytest.approx(0.5 + 25 / 6, rel=0.1)
        assert result["slope"]["mean"] == pytest.approx(1, abs=0.05 if solver == "not-private" else 0.2)
        assert result["mean_ratio"]["mean"] == pytest.approx(1, abs=0.05)
        assert result["auc"] is None
        # rho^2 of independent rows: 3 weights, variance 1, so many rows.
        assert result["rho"] == pytest.approx(math.sqrt(3 / ROWS), rel=0.15)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"y": np.arange(N_USERS * ROWS)}, "column 'y' to hold 0 and 1 only"),
        ({"x_a": np.full(N_USERS * ROWS, np.nan)}, "finite numbers in column 'x_a'"),
        ({"fold": np.arange(N_USERS * ROWS) % 10}, "same fold"),
        ({"fold": np.zeros(N_USERS * ROWS)}, "training and test users"),
        ({"x_a": ["word"] * (N_USERS * ROWS)}, "'x_a' must be numeric"),
    ],
)
def test_data_that_cannot_be_measured(tmp_path, changed, message):
    path = write_people(tmp_path / "people.parquet", **changed)
    result = run("real", *reading(path), *QUICK, "--out", tmp_path / "r.json")
    assert (result.exit_code, result.stdout) == (1, "")
    assert re.match("userdp: (?!Internal error)", result.stderr)
    assert message in result.stderr
    assert not (tmp_path / "r.json").exists()


def test_users_may_be_words(tmp_path):
    path = write_people(tmp_path / "people.parquet", user=[f"u{user}" for user in people()["user"]])
    assert Task("people", path, "y", cap=ROWS).n_users == 320
