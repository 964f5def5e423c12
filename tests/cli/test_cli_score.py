"""`userdp predict`, `evaluate`, `plan`, `ledger`, `report`, `demo`, and help."""

import functools
import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support_cli import BUDGET, COLUMNS, people, run

import userdp
from userdp import Budget, Ledger
from userdp.data.tables import open_table, write_table
from userdp.report import pictures

PUBLIC = ("--rows-per-user", "30", "--features", "5", "--epsilon", "1", "--delta", "1e-6")


@pytest.mark.parametrize("suffix", ["parquet", "csv", "arrow"])
def test_predictions_in_every_format(files, tmp_path, suffix):
    path = tmp_path / f"p.{suffix}"
    arguments = ("--output", path, "--keep", "user,whole", "--proba")
    result = run("predict", files / "text.json", files / f"data.{suffix}", *arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    made = open_table(path)
    assert made.column_names == ["user", "whole", "prediction", "probability_no", "probability_yes"]
    right = np.asarray(made.guess("prediction")) == np.asarray(people()["text"])
    assert right.mean() > 0.85
    chance = np.asarray(made.guess("probability_yes"))
    assert ((chance > 0.5) == (np.asarray(made.guess("prediction")) == "yes")).all()
    record = json.loads(run("predict", files / "text.json", files / f"data.{suffix}", *arguments, "--json").stdout)
    assert (record["output"], record["n_rows"]) == (str(path), 2400)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("model", "kind"), [("three", "string"), ("svm", "int64"), ("flag", "bool"), ("amount", "double")]
)
def test_predictions_are_of_the_targets_type(files, tmp_path, model, kind):
    result = run("predict", files / f"{model}.json", files / "data.parquet", "-o", tmp_path / "p.parquet", "-q")
    assert (result.exit_code, result.output) == (0, "")
    assert str(pq.read_schema(tmp_path / "p.parquet").field("prediction").type) == kind


def test_columns_are_found_by_name_and_missing_cells_filled(files, tmp_path):
    kept = people()
    table = pa.table({"x_b": kept["x_b"], "other": kept["text"], "x_a": [None, *kept["x_a"][1:]]})
    write_table(table, tmp_path / "t.parquet")
    arguments = ("predict", files / "text.json", tmp_path / "t.parquet", "-o", tmp_path / "p.csv")
    refused = run(*arguments)
    assert refused.exit_code == 1
    assert "column 'x_a', got missing or infinite ones, or text: fill them, with --fill-missing" in refused.stderr
    assert run(*arguments, "--fill-missing", "0").exit_code == 0
    assert np.mean(np.asarray(open_table(tmp_path / "p.csv").guess("prediction")) == np.asarray(kept["text"])) > 0.85


def test_models_without_names_take_features(files, tmp_path):
    record = json.loads((files / "text.json").read_text())
    (tmp_path / "m.json").write_text(json.dumps(record | {"features": None}))
    arguments = ("predict", tmp_path / "m.json", files / "data.parquet", "-o", tmp_path / "p.csv")
    assert "Expected --features" in run(*arguments).stderr
    assert "Expected 2 features" in run(*arguments, "--features", "x_a").stderr
    assert run(*arguments, "--features", "x_*").exit_code == 0


@pytest.mark.parametrize(
    ("model", "target", "names"),
    [
        ("text", "text", ["log loss", "AUC", "accuracy"]),
        ("three", "three", ["log loss", "accuracy"]),
        ("svm", "whole", ["AUC", "accuracy"]),
        ("amount", "amount", ["RMSE", "MAE", "R2"]),
    ],
)
def test_open_and_private_scores(files, model, target, names):
    arguments = (
        "evaluate",
        files / f"{model}.json",
        files / "data.parquet",
        "--target",
        target,
        "--user-column",
        "user",
    )
    result = run(*arguments, "--json")
    assert "NOT private" in result.stderr
    scores = json.loads(result.stdout)["scores"]
    assert list(scores["rows"]["model"]) == names
    assert scores["rows"]["model"] == pytest.approx(scores["users"]["model"])  # users have equally many rows
    for name in names:
        better = scores["rows"]["model"][name] - scores["rows"]["constant"][name]
        assert better < 0 if name in ("log loss", "RMSE", "MAE") else better > 0.1
    assert "constant, every user counted once" in run(*arguments).stdout
    private = run(*arguments, "--json", "--epsilon", "8", "--delta", "1e-6")
    assert private.exit_code == 0
    record = json.loads(private.stdout)
    assert record["private"] is True
    known = {name.lower().replace(" ", "_"): value for name, value in scores["users"]["model"].items()}
    shared = [name for name in record["scores"] if name in known]
    assert len(shared) >= 2
    for name in shared:
        score = record["scores"][name]
        assert score["value"] == pytest.approx(known[name], abs=5 * score["noise_std"] + 0.01)
        assert score["low"] <= score["value"] <= score["high"]
    shown = run(*arguments, "--epsilon", "8", "--delta", "1e-6")
    assert "for each of 600 users" in shown.stdout
    assert "The model was fitted on a file named data.parquet" in shown.stderr


def test_private_scores_are_charged_and_mind_no_slip(files, tmp_path):
    kept = people()
    kept["text"][0], kept["x_a"][7] = "maybe", np.nan
    write_table(pa.table(kept), tmp_path / "t.parquet")
    ledger = tmp_path / "l.db"
    Ledger(Budget(8.0, 1e-5), ledger)
    arguments = ("evaluate", files / "text.json", tmp_path / "t.parquet", "--target", "text")
    assert "got others too" in run(*arguments).stderr
    private = (*arguments, "--user-column", "user", "--epsilon", "8", "--delta", "1e-6", "--ledger", ledger)
    accepted = run(*private, "--json")
    assert (accepted.exit_code, accepted.stderr) == (0, "")  # would replace the fit's
    refused = run(*private)
    assert refused.exit_code == 1
    assert "Nothing was spent" in refused.stderr
    assert [charge.purpose for charge in Ledger.open(ledger).charges()] == [
        "evaluate; data t.parquet, target text, user column user"
    ]
    assert "fits" in refused.stderr
    seeded = run(*arguments, "--user-column", "user", "--epsilon", "8", "--delta", "1e-6", "--insecure-seed", "1")
    assert "NOT PRIVATE" in seeded.stderr


def test_private_scores_of_groups_and_rows(files, tmp_path):
    asked = ("evaluate", files / "text.json", files / "data.parquet", "--target", "text", "--user-column", "user")
    private = (*asked, "--epsilon", "8", "--delta", "1e-6", "--metrics", "accuracy,auc")
    written = tmp_path / "scores.json"
    shown = run(*private, "--by", "three=low,top", "--json", written)
    assert shown.exit_code == 0
    record = json.loads(written.read_text())
    assert list(record["by"]) == ["low", "top"]
    assert record["by"]["low"]["accuracy"]["value"] > 0.8
    assert "top: accuracy" in shown.stdout
    assert "95% interval" in shown.stdout
    rows = run(*private, "--max-rows-per-user", "4", "--confidence", ".9")
    assert "Every row counted once" in rows.stdout
    assert "90% interval" in rows.stdout


def test_people_held_out_of_a_fit(files, tmp_path):
    model, page = tmp_path / "m.json", tmp_path / "r.html"
    fit = ("fit", files / "data.parquet", *COLUMNS, *BUDGET, "--target", "text", "--classes", "no,yes")
    Ledger(Budget(9.0, 1e-5), tmp_path / "l")
    ledger = ("--ledger", tmp_path / "l")
    shown = run(*fit, "--evaluate", "0.5", "-o", model, "--report", page, *ledger)
    assert shown.exit_code == 0, shown.output
    assert "of different users, side by side: they do not add up" in run("ledger", "show", tmp_path / "l").stdout
    assert "Measured on 300 users who were kept from training" in shown.stdout
    scores = json.loads(model.read_text())["scores"]
    assert scores["scores"]["auc"]["low"] < scores["scores"]["auc"]["high"]
    assert "300 users who were held out of training" in page.read_text()
    assert "Expected 0 < evaluate=2.0 < 1" in run(*fit, "--evaluate", "2", "-o", model).stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--metrics", "auc"], "with --epsilon only"),
        (["--user-column", "user", "--epsilon", "1", "--metrics", "r2"], "some of log_loss"),
        (["--user-column", "user", "--epsilon", "1", "--by", "three"], "Expected --by three="),
        (["--user-column", "user", "--epsilon", "1", "--by", "none=a,b"], "No column is named 'none'"),
        (["--delta", "1e-6"], "Expected --delta with --epsilon only"),
        (["--user-column", "user", "--epsilon", "1", "--delta", ".01"], "delta=0.01 well below 1 over the 600 users"),
        (["--epsilon", "1"], "Expected --user-column with --epsilon"),
        (["--epsilon", "1", "--delta", "1e-6"], "Expected --user-column with --epsilon"),
        (["--ledger", "l.db"], "with --epsilon only"),
        (
            ["--user-column", "user", "--epsilon", "1", "--delta", "1e-6", "--loss-limit", "0"],
            "loss_limit must be a finite number > 0, got 0",
        ),
        (["--user-column", "nobody"], "No column is named 'nobody'"),
        (
            ["--user-column", "user", "--epsilon", "1", "--delta", "1e-6", "--ledger", "none.db"],
            "ledger file at none.db",
        ),
        (["--user-column", "user", "--epsilon", ".01", "--delta", "1e-6"], "users would do"),
        (["--target", "amount"], "Expected one of the labels no, yes|must hold labels such as no, yes, got numbers"),
    ],
)
def test_wrong_evaluations(files, arguments, message):
    result = run("evaluate", files / "text.json", files / "data.parquet", "--target", "text", *arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert re.match("userdp: (?!Internal error)", result.stderr)
    assert any(part in result.stderr for part in message.split("|"))


def test_plans_and_their_picture(tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "plot_plan", functools.partial(pictures.plot_plan, n_epsilons=3))
    quick = {which: solver for which, solver in pictures.SOLVERS.items() if which != ("accelerated", "calibrated")}
    monkeypatch.setattr(pictures, "SOLVERS", quick)
    result = run("plan", "--users", "20000", *PUBLIC, "--plot", tmp_path / "plan.svg")
    assert result.exit_code == 0, result.output
    assert "needs about" in result.stdout
    assert (tmp_path / "plan.svg").read_text().startswith("<?xml")
    few = run("plan", "--users", "20", *PUBLIC, "--plot", tmp_path / "few.png", "--json")
    assert json.loads(few.stdout)["plot"] == str(tmp_path / "few.png")
    assert (tmp_path / "few.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["few.png", "plan.svg"]


@pytest.mark.parametrize(
    "arguments", [["--classes", "3"], ["--loss", "huber"], ["--loss", "absolute", "--no-intercept"]]
)
def test_plans_of_other_losses(arguments):
    record = json.loads(run("plan", "--users", "20000", *PUBLIC, *arguments, "--json").stdout)
    assert record["choice"] in ("accelerated", "whitened-clip", "phased-sgd")
    assert record["n_weights"] == (18 if "3" in arguments else 5 if "--no-intercept" in arguments else 6)


def test_plans_for_too_few_users_say_what_would_do():
    result = run("plan", "--users", "20", *PUBLIC)
    assert result.exit_code == 0
    assert "users" in result.stdout
    record = json.loads(run("plan", "--users", "20", *PUBLIC, "--json").stdout)
    assert record["choice"] == "whitened-clip"
    assert "Noise is likely to dominate" in record["why"]
    weak = run("plan", "--users", "20", *PUBLIC, "--delta", "0.1", "--json")
    assert "delta=0.1 well below 1 over the 20 users" in json.loads(weak.stdout)["why"]
    assert all(row["enough_users"] > 20 for row in record["options"] if not row["feasible"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--users", "0"], "n_users must be a whole number >= 1, got 0"),
        (["--users", "9", "--epsilon", "-1"], "Expected epsilon=-1.0 to be finite and > 0"),
        (["--users", "9", "--classes", "1"], "--classes, a number >= 2"),
        (["--users", "9", "--classes", "3", "--loss", "squared"], "with --loss logistic only"),
        (["--users", "9", "--plot", "plan.txt"], "to end in .svg"),
        (["--users", "9", "--plot", "none/plan.svg"], "There is no folder none"),
        (["--users", "9", "--max-gradients", "0"], "max_gradients must be a whole number"),
    ],
)
def test_wrong_plans(arguments, message):
    result = run("plan", *PUBLIC, *arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert message in result.stderr


def test_ledgers(tmp_path):
    path = tmp_path / "people.ledger"
    made = run("ledger", "new", path, "--epsilon", "3", "--delta", "1e-5").stdout
    assert "epsilon 3 at delta 1e-05" in made
    assert "Privacy unit: set by the first charge" in " ".join(made.split())
    assert run("ledger", "new", path, "--epsilon", "3", "--delta", "1e-5").exit_code == 1
    record = json.loads(run("ledger", "show", path, "--json").stdout)
    assert (record["spent_epsilon"], record["charges"], record["failure_share"]) == (0.0, [], 0.25)
    assert record["unit"] is None
    assert "not a guarantee" in record["spent_epsilon_is"]
    assert (record["fits_epsilon"], record["fits_at_delta"]) == (3.0, 1e-5)
    shown = run("ledger", "show", path, "--delta", "1e-6").stdout
    assert "a running total" in shown
    assert "One more run fits up to epsilon 3.37, at delta 1e-06 or less" in " ".join(shown.split())
    for more, delta in (((), "1e-06"), (("--users", "1000000"), "1e-09")):
        shown = run("ledger", "new", tmp_path / delta, "--epsilon", "3", *more).stdout
        assert f"at delta {delta}" in shown
        assert ("up to 10,000 users" in shown) == (not more)
    both = run("ledger", "new", tmp_path / "both", "--epsilon", "3", "--users", "9", "--delta", "1e-5")
    assert "either --delta, or --users" in both.stderr
    made = run("ledger", "new", tmp_path / "other", "--epsilon", "3", "--delta", "1e-5", "--json")
    assert json.loads(made.stdout)["failure_share"] == 0.25
    (tmp_path / "text").write_text("no ledger at all")
    for wrong in (tmp_path / "none", tmp_path / "text", tmp_path):
        result = run("ledger", "show", wrong)
        assert (result.exit_code, result.stdout) == (1, "")
        assert re.match("userdp: (?!Internal error)", result.stderr)


def test_seeds_are_shown_in_red_words(files, tmp_path):
    path, seeded = tmp_path / "l", ("--insecure-seed", "7", "-q")
    Ledger(Budget(5.0, 1e-5), path)
    arguments = ("fit", files / "data.parquet", *COLUMNS, *BUDGET, "--target", "flag", "-o", tmp_path / "m")
    assert run(*arguments, "--ledger", path, *seeded).exit_code == 0
    shown = run("ledger", "show", path)
    assert "run with the seed 7" in shown.stdout
    assert "epsilon inf" in shown.stdout
    assert "user: all rows of a user together" in shown.stdout
    record = json.loads(run("ledger", "show", path, "--json").stdout)
    assert (record["private"], record["spent_epsilon"]) == (False, None)
    assert record["charges"][0]["steps"][0]["start"] == 0
    assert record["charges"][0]["charged_as"][0]["mu_squared"] > 0


def test_json_goes_to_standard_output_or_to_a_file(files, tmp_path):
    """One convention, wherever the option stands."""
    path, there = tmp_path / "people.ledger", tmp_path / "there.json"
    run("ledger", "new", path, "--epsilon", "3", "--delta", "1e-5")
    public = ("--users", "20000", *PUBLIC)
    for arguments, words in (
        (("ledger", "show", path), "budget"),
        (("plan", *public), "whitened-clip"),
        (("columns", files / "data.parquet", "--user-column", "user"), "[x_a]"),
        (("report", files / "text.json", tmp_path / "r.html"), "The report is in"),
        (("predict", files / "text.json", files / "data.csv", "-o", tmp_path / "p.csv"), "predictions are in"),
        (("evaluate", files / "text.json", files / "data.csv", "--target", "text"), "model"),
        (("fit", files / "data.csv", *COLUMNS, *BUDGET, "--target", "flag", "--classes", "0,1", "--dry-run"), "users"),
    ):
        printed = run(*arguments, "--json")
        assert printed.exit_code == 0, printed.output
        assert run(*arguments, "--json", "-").stdout == printed.stdout
        written = run(*arguments, "--json", there)
        assert json.loads(there.read_text()) == json.loads(printed.stdout)
        assert words in written.stdout
    assert json.loads(run("plan", "--json", *public).stdout)["n_users"] == 20000
    assert run("ledger", "show", path, "--json", path).exit_code == 1
    assert "which is needed" in run("ledger", "show", path, "--json", path).stderr


def test_reports(files, tmp_path, stub_report):
    assert run("report", files / "text.json", tmp_path / "r.html").exit_code == 0
    assert (tmp_path / "r.html").read_text() == "<html>phased-sgd</html>"
    record = json.loads(run("report", files / "text.json", tmp_path / "r.html", "--json").stdout)
    assert record["report"] == str(tmp_path / "r.html")
    assert "Expected a file to write the report to" in run("report", files / "text.json").stderr
    assert run("report", files / "text.json", files / "text.json").exit_code == 1


def test_a_report_s_facts_go_to_standard_output(files):
    record = json.loads(run("report", files / "text.json", "--json").stdout)
    assert record["report"] is None
    assert record["guarantee"]["unit"] == "user"
    assert record["guarantee"]["epsilon"] == 4.0
    assert record["noise"]["right_guess"] < record["noise"]["right_guess_of_epsilon_and_delta_alone"]
    assert record["noise"]["fails_outright_with_chance"] > 0  # phased SGD tests
    assert record["excess_risk"]["is_estimate"] is False
    assert "OpenDP" in record["implementation"]["floating_point"]
    assert record["implementation"]["randomness"].startswith("a seed")  # as these models were made
    assert "Run time" in record["implementation"]["side_channels"]
    assert "small groups" in record["bias"][0]


def test_the_real_report(files, tmp_path):
    assert run("report", files / "text.json", tmp_path / "r.html", "--title", "Who says yes?").exit_code == 0
    page = (tmp_path / "r.html").read_text()
    assert "<html" in page.lower()
    assert "<h1>Who says yes?</h1>" in page
    assert "data.parquet" in page


def test_the_demo(monkeypatch):
    called = []
    monkeypatch.setattr("userdp.cli.demonstration.main", lambda folder, json: called.append((folder, json)))
    assert run("demo", "--folder", "x").exit_code == 0
    assert run("demo", "--json").exit_code == 0
    assert called == [(Path("x"), None), (Path("userdp-demo"), Path("-"))]


def test_version_and_help():
    assert run("--version").stdout == f"userdp {userdp.__version__}\n"
    commands = ("fit", "predict", "evaluate", "plan", "report", "demo")
    for command in [(), *((c,) for c in commands), ("ledger",), ("ledger", "new"), ("ledger", "show")]:
        result = run(*command, "--help")
        assert result.exit_code == 0
        assert "Example" in result.stdout
        assert "rotected" in result.stdout
