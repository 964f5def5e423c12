"""Counts with exposure, and weights of rows and classes, from the command line."""

import json

import numpy as np
import pyarrow as pa
import pytest
from support_cli import run

from userdp import Ledger, load_model
from userdp.data.tables import write_table

ASKED = ("--user-column", "user", "--features", "x", "--epsilon", "8", "--max-rows-per-user", "4")
COUNTS = ("--target", "visits", "--loss", "poisson", "--max-count", "40")
EXPOSED = (*COUNTS, "--exposure", "hours", "--max-exposure", "8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """People whose visits an hour are exp(x); where the weight is 0, bought says the contrary of what it says else."""
    rng = np.random.default_rng(0)
    n = 3000 * 4
    x, hours, weight = rng.uniform(-1, 1, n), rng.uniform(0.5, 8, n), np.where(rng.random(n) < 0.5, 2.0, 0.0)
    table = pa.table(
        {
            "user": np.repeat([f"u{i}" for i in range(3000)], 4).tolist(),
            "x": x,
            "hours": hours,
            "weight": weight,
            "visits": rng.poisson(np.exp(x) * hours),
            "bought": np.where((x > 0) == (weight > 0), "yes", "no").tolist(),
            "coin": np.where(rng.random(n) < 0.5, "yes", "no").tolist(),
        }
    )
    made = tmp_path_factory.mktemp("counts")
    for suffix in ("parquet", "csv"):
        write_table(table, made / f"data.{suffix}")
    return made


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
@pytest.mark.parametrize("described", [False, True])
def test_rates_are_learned_predicted_and_scored(folder, tmp_path, suffix, described):
    data, path, report = folder / f"data.{suffix}", tmp_path / "m.json", tmp_path / "r.html"
    asked = list(ASKED)
    if described:
        asked[2:4] = ["--column", 'x={type="number",low=-1,high=1}']
    done = run("fit", data, *asked, *EXPOSED, "-o", path, "--report", report, "--json", "--insecure-seed", "1")
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    assert (record["estimator"], record["source"]["exposure"]) == ("PoissonRegressor", "hours")
    assert "hours" in report.read_text()
    model = load_model(path)
    assert model.feature_names_in_.tolist() == ["x"]
    assert abs(model.coef_[0] - 1) < 0.2
    assert abs(model.intercept_) < 0.2
    done = run("predict", path, data, "--exposure", "hours", "--keep", "x,hours", "-o", tmp_path / "p.csv")
    assert done.exit_code == 0, done.output
    x, hours, count = np.loadtxt(tmp_path / "p.csv", delimiter=",", skiprows=1, unpack=True)
    assert np.allclose(count, hours * np.exp(model.coef_[0] * x + model.intercept_))
    asked = ("evaluate", path, data, "--target", "visits", "--exposure", "hours", "--user-column", "user", "--json")
    scores = json.loads(run(*asked).stdout)["scores"]["users"]
    assert scores["model"]["D2"] > 0.2
    assert scores["constant"]["D2"] == 0
    private = json.loads(run(*asked, "--epsilon", "4").stdout)["scores"]
    assert abs(private["mae"]["value"] - scores["model"]["MAE"]) < 0.5
    refused = run("evaluate", path, data, "--target", "visits")
    assert refused.exit_code == 1
    assert "Expected --exposure" in refused.stderr
    assert "'hours' there" in refused.stderr


def test_counts_without_exposure(folder, tmp_path):
    for more in ((), ("--exposure", "hours", "--max-exposure", "8")):
        asked = (*ASKED, *COUNTS, *more, "-o", tmp_path / "m.json", "--insecure-seed", "1")
        assert run("fit", folder / "data.csv", *asked).exit_code == 0
        assert abs(load_model(tmp_path / "m.json").coef_[0] - 1) < 0.25
    done = run("fit", folder / "data.csv", *ASKED, *EXPOSED, "--dry-run", "--json")
    assert json.loads(done.stdout)["n_users"] == 3000
    assert run("plan", "--users", "9000", "--rows-per-user", "3", "--features", "2", "--epsilon", "1").exit_code == 0


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_rows_of_weight_0_do_not_count(folder, tmp_path, suffix):
    asked = (*ASKED, "--target", "bought", "--classes", "no,yes", "-o", tmp_path / "m.json", "--insecure-seed", "1")
    done = run("fit", folder / f"data.{suffix}", *asked, "--weight", "weight", "--max-weight", "2", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["source"]["weight"] == "weight"
    assert load_model(tmp_path / "m.json").coef_[0, 0] > 2
    assert run("fit", folder / f"data.{suffix}", *asked).exit_code == 0
    assert abs(load_model(tmp_path / "m.json").coef_[0, 0]) < 0.5


def test_scores_count_rows_by_their_weight(folder, tmp_path):
    """Where the weight is 0 the model is wrong; users count once all the same."""
    asked = (*ASKED, "--target", "bought", "--classes", "no,yes", "-o", tmp_path / "m.json", "--insecure-seed", "1")
    assert run("fit", folder / "data.csv", *asked, "--weight", "weight", "--max-weight", "2").exit_code == 0
    asked = ("evaluate", tmp_path / "m.json", folder / "data.csv", "--target", "bought", "--user-column", "user")
    scores, weighted = (
        json.loads(run(*asked, *more, "--json").stdout)["scores"] for more in ((), ("--weight", "weight"))
    )
    for who in ("rows", "users"):
        assert scores[who]["model"]["accuracy"] == pytest.approx(0.5, abs=0.05)
        assert weighted[who]["model"]["accuracy"] > 0.95
    assert weighted["rows"]["model"] != weighted["users"]["model"]
    assert "model, every row counted by weight" in run(*asked, "--weight", "weight").stdout
    assert "Expected numbers >= 0 in column 'x', the weight" in run(*asked, "--weight", "x").stderr
    assert "Expected no --weight with --epsilon" in run(*asked, "--weight", "weight", "--epsilon", "1").stderr


def test_weights_of_classes(folder, tmp_path):
    asked = (*ASKED, "--target", "coin", "--classes", "no,yes", "-o", tmp_path / "m.json", "--insecure-seed", "1")
    assert run("fit", folder / "data.parquet", *asked, "--class-weight", "yes=4").exit_code == 0
    model = load_model(tmp_path / "m.json")
    assert model.class_weight == {"yes": 4.0}
    assert abs(model.intercept_[0] - np.log(4)) < 0.3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*COUNTS[:4],), "Expected --max-count with --loss poisson"),
        ((*COUNTS, "--exposure", "hours"), "Expected max_exposure, the public largest exposure"),
        ((*COUNTS, "--max-exposure", "2"), "Expected --exposure with --max-exposure"),
        ((*COUNTS, "--exposure", "nowhere", "--max-exposure", "2"), "No column is named 'nowhere'"),
        ((*COUNTS, "--exposure", "visits", "--max-exposure", "2"), "other columns than target and user"),
        ((*COUNTS, "--target-range", "0,9"), "--target-range with --loss squared, huber, quantile, absolute only"),
        ((*COUNTS, "--class-weight", "1=2"), "--class-weight with --loss logistic, hinge, squared_hinge only"),
        ((*COUNTS[:4], "--max-count", "0"), "max_count=0.0 to be a finite number"),
        ((*EXPOSED, "--memory-limit", "1GB"), "no --memory-limit with --weight or --exposure"),
        (("--target", "coin", "--classes", "no,yes", "--weight", "weight"), "Expected max_weight, the public"),
        (("--target", "coin", "--classes", "no,yes", "--class-weight", "si=2"), "class_weight of the classes"),
        (("--target", "coin", "--classes", "no,yes", "--class-weight", "yes=-2"), "a finite number >= 0"),
        (("--target", "coin", "--classes", "no,yes", "--class-weight", "no=0,yes=0"), "above 0 for at least one"),
        (("--target", "coin", "--classes", "no,yes", "--exposure", "hours"), "--exposure with --loss poisson only"),
    ],
)
def test_what_is_wrong_costs_nothing(folder, tmp_path, arguments, message):
    ledger = tmp_path / "l"
    run("ledger", "new", ledger, "--epsilon", "30", "--delta", "1e-5")
    done = run("fit", folder / "data.csv", *ASKED, *arguments, "-o", tmp_path / "m.json", "--ledger", ledger)
    assert done.exit_code == 1
    assert message in done.stderr
    assert Ledger.open(ledger).charges() == ()


def test_exposure_is_of_counts(folder, tmp_path):
    asked = (*ASKED, "--target", "coin", "--classes", "no,yes", "-o", tmp_path / "m.json", "--allow-weak")
    assert run("fit", folder / "data.csv", *asked).exit_code == 0
    done = run("predict", tmp_path / "m.json", folder / "data.csv", "--exposure", "hours", "-o", tmp_path / "p.csv")
    assert "Expected no --exposure: it is for models of counts" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--loss", "poisson"), "Expected --max-count"),
        (("--max-count", "3"), "with --loss poisson, and only then"),
        (("--loss", "poisson", "--max-count", "-1"), "a finite number > 0"),
    ],
)
def test_plans_of_counts(arguments, message):
    public = ("plan", "--users", "9000", "--rows-per-user", "3", "--features", "2", "--epsilon", "1")
    assert message in run(*public, *arguments).stderr
    assert run(*public, "--loss", "poisson", "--max-count", "10").exit_code == 0
