"""A tiny run on users in a file: what is kept, who is compared, the tuned reference."""

import json

import numpy as np
import pytest
from support_bench import N_USERS, QUICK, ROWS, people, reading, write_people
from support_cli import run

from userdp.bench.oracle import Tuning, candidates, dp_sgd, noise_multiplier, oracle
from userdp.bench.real import competitors, real_cells
from userdp.bench.references import logistic_optimum, scores
from userdp.bench.tasks import Task, known_tasks
from userdp.privacy.accounting import Budget, Cost, Subsampled, fits
from userdp.solvers.registry import SOLVERS


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
    assert passes["dp-sgd"] == passes["auto"] == passes["oracle"] == {1, None}


def test_a_tiny_run(file, tmp_path):
    out = tmp_path / "r.json"
    solvers = ("--solvers", "not-private,auto,dp-sgd,phased-sgd:paper")
    result = run("bench", "real", *reading(file), *QUICK, *solvers, "--out", out, "--plot", tmp_path / "pictures")
    assert result.exit_code == 0, result.output
    assert "NOT PRIVATE" in result.stderr
    assert "4 cells measured, 0 were there already" in result.stderr
    whole = json.loads(out.read_text())
    assert "NOT PRIVATE" in whole["note"]
    assert whole["runs"][0]["workers"] == 1
    cells = {cell["settings"]["solver"]: cell["result"] for cell in whole["cells"]}
    assert "needs about" in cells["phased-sgd:paper"]["refusal"]
    assert cells["phased-sgd:paper"]["enough_users"] > N_USERS
    private, openly = cells["dp-sgd"], cells["not-private"]
    assert len(private["log_loss"]) == len(private["seconds"]) == len(private["excess"]["values"]) == 2
    assert openly["excess"]["mean"] <= private["excess"]["mean"] < 0.3
    assert private["excess"]["mean"] == pytest.approx(np.mean(private["log_loss"]) - private["best_log_loss"])
    assert private["passes"] * 320 * ROWS == private["n_gradients"]
    assert sorted(path.name for path in (tmp_path / "pictures").iterdir()) == [
        "people-epsilon.svg",
        "people-passes.svg",
    ]
    again = run("bench", "real", *reading(file), *QUICK, *solvers, "--out", out)
    assert "0 cells measured, 4 were there already" in again.stderr
    assert json.loads(out.read_text()) == whole


def test_limits_on_passes_hold(file, tmp_path):
    out, limited = tmp_path / "r.json", ("--passes", "3", "--repeats", "1", "--epsilon", "4", "--users", "all")
    assert run("bench", "real", *reading(file), *limited, "--solvers", "dp-sgd", "--out", out, "-q").exit_code == 0
    (cell,) = json.loads(out.read_text())["cells"]
    assert 2 < cell["result"]["passes"] <= 3
    assert cell["result"]["excess"]["spread"] is None


def test_the_tuned_reference_beats_an_untuned_one_and_no_open_model(task, monkeypatch):
    """An untuned one is any of the same grid, at the same passes, with the same fresh noise."""
    monkeypatch.setattr("userdp.bench.oracle._LENGTHS", (5, 20))
    (train, test), budget = task.load(), Budget(1.0, 1e-6)
    found = oracle([train, train], test, budget, passes=5)
    untuned = [
        scores(dp_sgd(train, tuning, noise_multiplier(budget, tuning), seed)[0], test)[0]
        for tuning in candidates(5)
        for seed in (1, 2)
    ]
    tuned = np.mean([log_loss for log_loss, _ in found["scores"]])
    assert scores(logistic_optimum(train), test)[0] < tuned < np.mean(untuned) - 0.02
    assert found["passes"] <= 5


def test_the_reference_stays_within_its_passes_and_pays_for_its_noise():
    for passes in (1, 5, 200, None):
        tunings = candidates(passes)
        assert all(t.length * t.share <= (passes or 240) * (1 + 1e-12) and t.length <= 240 for t in tunings)
        assert {t.clip for t in tunings} == {0.03, 0.1, 0.3, 1.0}
    assert any(t.share < 1 for t in candidates(1))
    assert any(t.share == 1 for t in candidates(1))
    budget = Budget(1.0, 1e-6)
    full, sampled = Tuning(20, 1.0, 0.1, 1.0), Tuning(20, 0.25, 0.1, 1.0)
    # A swap moves a full sum by two clips.
    assert fits(Cost(gaussian=20 * (2 / noise_multiplier(budget, full)) ** 2), budget)
    assert not fits(Cost(gaussian=20 * (2.01 / noise_multiplier(budget, full)) ** 2), budget)
    assert fits(Cost(subsampled=(Subsampled(0.25, noise_multiplier(budget, sampled), 20),)), budget)
    assert noise_multiplier(budget, sampled) < noise_multiplier(budget, full)


def test_known_data_sets_are_looked_for_where_they_are_said_to_be(tmp_path, monkeypatch):
    monkeypatch.setenv("USERDP_DATA", str(tmp_path))
    assert {task.path for task in known_tasks().values()} == {
        tmp_path / name / f"{name}.parquet" for name in ("openpowerlifting", "online_retail")
    }


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"y": np.arange(N_USERS * ROWS)}, "column 'y' to hold 0 and 1 only"),
        ({"x_a": np.full(N_USERS * ROWS, np.nan)}, "finite numbers in column 'x_a'"),
        ({"fold": np.arange(N_USERS * ROWS) % 10}, "same fold"),
        ({"fold": np.zeros(N_USERS * ROWS)}, "training and test users"),
        ({"x_a": ["word"] * (N_USERS * ROWS)}, "'x_a' to be numeric"),
    ],
)
def test_data_that_cannot_be_measured(tmp_path, changed, message):
    path = write_people(tmp_path / "people.parquet", **changed)
    result = run("bench", "real", *reading(path), *QUICK, "--out", tmp_path / "r.json")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("userdp: Expected ")
    assert message in result.stderr
    assert not (tmp_path / "r.json").exists()


def test_users_may_be_words(tmp_path):
    path = write_people(tmp_path / "people.parquet", user=[f"u{user}" for user in people()["user"]])
    assert Task("people", path, "y", cap=ROWS).n_users == 320
