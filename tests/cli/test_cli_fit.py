"""`userdp fit`: every format, loss and kind of target; what is printed, written, charged."""

import contextlib
import json
import sqlite3
import stat
from dataclasses import asdict

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from support_cli import BUDGET, COLUMNS, ROWS, SEEDED, people, run

from userdp import Budget, Execution, Ledger, LogisticRegression, load_model
from userdp.cli.predict import predicted
from userdp.data.source import Source
from userdp.data.tables import write_table
from userdp.engines.local import LocalEngine

FLAG = (*COLUMNS, *BUDGET, "--target", "flag", "--classes", "false,true")


@pytest.mark.parametrize("suffix", ["parquet", "csv", "arrow"])
def test_every_format_gives_a_model(files, tmp_path, suffix):
    result = run("fit", files / f"data.{suffix}", *FLAG, "--output", tmp_path / "m.json")
    assert result.exit_code == 0, result.output
    assert "epsilon 4, delta 1e-06 for each of 600 users, with all their rows" in result.stdout
    words = " ".join(result.stdout.split())
    assert "right guesses between two versions of one user's data; epsilon and delta alone would allow 98.3%" in words
    assert "this fit alone, with its hyperparameters taken as public" in words
    assert "x_a +" in result.stdout
    assert result.stderr == ""
    model = load_model(tmp_path / "m.json")
    assert model.classes_.tolist() == [False, True]
    assert model.feature_names_in_.tolist() == ["x_a", "x_b"]
    assert model.coef_[0, 0] > 0.5 > -0.5 > model.coef_[0, 1]
    assert [p.name for p in tmp_path.iterdir()] == ["m.json"]
    assert stat.S_IMODE((tmp_path / "m.json").stat().st_mode) & 0o077 != 0o077


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
@pytest.mark.parametrize(
    ("target", "arguments", "estimator", "classes"),
    [
        ("text", ["--classes", "yes, no"], "LogisticRegression", ["no", "yes"]),
        ("whole", ["--classes", "1,2"], "LogisticRegression", [1, 2]),
        ("flag", ["--classes", "true,false"], "LogisticRegression", [False, True]),
        ("three", ["--classes", "low,mid,top"], "LogisticRegression", ["low", "mid", "top"]),
        ("whole", ["--classes", "1,2", "--loss", "hinge"], "LinearSVC", [1, 2]),
        ("flag", ["--loss", "squared_hinge", "--classes", "false,true"], "LinearSVC", [False, True]),
        ("amount", ["--loss", "squared", "--target-range", "0,20"], "LinearRegression", None),
        ("amount", ["--loss", "huber", "--target-range=-5,20", "--threshold", "2"], "HuberRegressor", None),
        ("amount", ["--loss", "quantile", "--quantile", ".9", "--target-range", "0,20"], "QuantileRegressor", None),
        ("amount", ["--loss", "absolute", "--target-range", "0,20", "--no-intercept"], "QuantileRegressor", None),
    ],
)
def test_losses_and_targets(files, tmp_path, suffix, target, arguments, estimator, classes):
    path = tmp_path / "m.json"
    result = run(
        "fit", files / f"data.{suffix}", *COLUMNS, *BUDGET, *SEEDED, "--target", target, *arguments, "-o", path
    )
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert (record["estimator"], record["classes"]) == (estimator, classes)
    assert record["model"] == str(path)
    model = load_model(path)
    kept = people()
    X = np.column_stack([kept["x_a"], kept["x_b"]])
    if classes:
        assert np.mean(predicted(model.predict, X) == np.asarray(kept[target])) > 0.5
    elif estimator == "LinearRegression":
        assert np.corrcoef(predicted(model.predict, X), kept["amount"])[0, 1] > 0.7


def test_a_report_and_json(files, tmp_path, stub_report):
    result = run("fit", files / "data.csv", *FLAG, "-o", tmp_path / "m.json", "--report", tmp_path / "r.html", "--json")
    record = json.loads(result.stdout)
    assert result.stderr == ""
    assert (record["report"], record["halted"], record["privacy"]["private"]) == (str(tmp_path / "r.html"), False, True)
    assert (tmp_path / "r.html").read_text() == "<html>phased-sgd</html>"


def test_purpose_file_and_columns_are_named(files, tmp_path):
    ledger, path = tmp_path / "people.ledger", tmp_path / "m.json"
    Ledger(Budget(5.0, 1e-5), ledger)
    kept = ("--ledger", ledger, "--purpose", "who says yes")
    arguments = ("fit", files / "data.parquet", *FLAG, *kept, "-o", path, "--report", tmp_path / "r.html")
    record = json.loads(run(*arguments, "--json").stdout)
    assert record["source"] == asdict(Source("data.parquet", "flag", "user"))
    (charge,) = json.loads(run("ledger", "show", ledger, "--json").stdout)["charges"]
    named = "who says yes; LogisticRegression.fit; data data.parquet, target flag, user column user"
    assert charge["purpose"] == named
    assert load_model(path).purpose == "who says yes"
    for words in ("who says yes", "data.parquet", "flag", "“user”"):
        assert words in (tmp_path / "r.html").read_text()
    refused = run(*arguments)
    assert refused.exit_code == 1
    assert "run fits" in refused.stderr or "No further run" in refused.stderr


def test_quiet(files, tmp_path):
    result = run("fit", files / "data.parquet", *FLAG, "-o", tmp_path / "m.json", "--quiet")
    assert (result.exit_code, result.output) == (0, "")


def test_seeded_runs_repeat_and_warn(files, tmp_path):
    for name in ("a", "b"):
        result = run("fit", files / "data.parquet", *FLAG, "-o", tmp_path / name, "--insecure-seed", "5", "-q")
        assert result.exit_code == 0
        assert "NOT PRIVATE" in result.stderr
    assert load_model(tmp_path / "a").coef_.tolist() == load_model(tmp_path / "b").coef_.tolist()
    result = run("fit", files / "data.parquet", *FLAG, "-o", tmp_path / "c", "--insecure-seed", "5", "--json")
    assert json.loads(result.stdout)["privacy"]["private"] is False


def test_a_dry_run_counts_users_and_spends_nothing(files, tmp_path):
    ledger = tmp_path / "people.ledger"
    Ledger(Budget(5.0, 1e-5), ledger)
    arguments = ("fit", files / "data.csv", *FLAG, "--dry-run", "--ledger", ledger)
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    assert "600 users, 2 features" in result.stdout
    assert "Taken: phased-sgd, calibrated" in result.stdout
    record = json.loads(run(*arguments, "--json").stdout)
    assert (record["choice"], record["n_users"], record["n_weights"]) == ("phased-sgd", 600, 3)
    assert Ledger.open(ledger).spent_epsilon() == 0
    assert result.stderr == ""
    assert "delta=0.002 well below 1 over the 600 users" in run(*arguments, "--delta", "0.002").stderr
    everything = run("fit", files / "data.csv", *FLAG[:2], *FLAG[4:], "--features", "*", "--dry-run")
    assert "declares no types" in everything.stderr
    few = run("fit", files / "data.csv", *FLAG, "--dry-run", "--epsilon", "0.01")
    assert (few.exit_code, few.stdout) == (1, "")
    assert "users would do" in few.stderr


def test_a_ledger_adds_up_and_refuses(files, tmp_path):
    ledger = tmp_path / "people.ledger"
    arguments = ("fit", files / "data.parquet", *FLAG, "--ledger", ledger)
    assert "`userdp ledger new`" in run(*arguments, "-o", tmp_path / "1.json").stderr
    Ledger(Budget(5.0, 1e-5), ledger)
    assert run(*arguments, "-o", tmp_path / "1.json").exit_code == 0
    refused = run(*arguments, "-o", tmp_path / "2.json")
    assert refused.exit_code == 1
    assert refused.stderr.startswith("userdp: With what was spent before, the plan needs ")
    assert "Nothing was spent." in refused.stderr
    assert not (tmp_path / "2.json").exists()
    assert len(Ledger.open(ledger).charges()) == 1
    shown = run("ledger", "show", ledger)
    assert "LogisticRegression.fit" in shown.stdout
    assert f"on users 0 to {600 - 1}" in shown.stdout


def test_aborts_leave_a_model_and_say_what_to_do(tmp_path):
    kept = people()
    kept["x_a"] = np.where(np.arange(len(kept["x_a"])) % (2 * ROWS) < ROWS, np.nan, kept["x_a"])
    write_table(pa.table(kept), tmp_path / "t.parquet")
    result = run("fit", tmp_path / "t.parquet", *FLAG, "--solver", "accelerated", "-o", tmp_path / "m.json")
    assert result.exit_code == 3  # to this solver people of whom no row is left are far from the others
    assert "missing values filled?" in result.stderr
    assert load_model(tmp_path / "m.json").aborted_
    counted = run("fit", tmp_path / "t.parquet", *FLAG, "--solver", "auto", "-o", tmp_path / "m.json")
    assert counted.exit_code == 0
    assert "of the users (95% interval" in " ".join(counted.stderr.split())
    assert "--fill-missing" in counted.stderr
    assert "left out" in counted.stdout
    assert 0.4 < load_model(tmp_path / "m.json").privacy_.affected_users.estimate < 0.6
    filled = run("fit", tmp_path / "t.parquet", *FLAG, "-o", tmp_path / "m.json", "--fill-missing", "0", "--json")
    assert (filled.exit_code, json.loads(filled.stdout)["halted"]) == (0, False)


def test_slips_of_a_few_people_stop_nothing(tmp_path):
    """A label that is no class, an empty cell, text among the numbers of a CSV file: told to nobody."""
    kept = people()
    kept["text"][5], kept["text"][9] = "maybe", ""
    kept["x_a"] = ["oops" if i == 13 else "" if i == 77 else str(x) for i, x in enumerate(kept["x_a"])]
    write_table(pa.table(kept), tmp_path / "t.csv")
    arguments = ("fit", tmp_path / "t.csv", *COLUMNS, *BUDGET, "--target", "text", "--classes", "no,yes")
    result = run(*arguments, "-o", tmp_path / "m.json")
    assert (result.exit_code, result.stderr) == (0, "")


def test_a_model_that_noise_drowns_says_so(files, tmp_path):
    arguments = ("fit", files / "data.parquet", *COLUMNS, "--target", "flag", "--delta", "1e-6", "--epsilon", "1")
    result = run(
        *arguments, "--row-norm", "50", "--domain-radius", "100", "--solver", "phased-sgd", "-o", tmp_path / "m"
    )
    assert result.exit_code == 0
    assert "Noise is likely to dominate" in " ".join(result.stderr.split())


def test_public_rows_replace_what_would_be_released_of_scales(tmp_path):
    kept, other = people(), people(seed=1)
    write_table(pa.table(kept | {"x_a": 50 + 50 * kept["x_a"]}), tmp_path / "t.parquet")
    write_table(pa.table({"x_b": other["x_b"], "x_a": 50 + 50 * other["x_a"]}), tmp_path / "public.csv")
    arguments = ("fit", tmp_path / "t.parquet", *FLAG, *SEEDED, "--solver", "auto", "-o", tmp_path / "m.json")
    result = run(*arguments, "--public-data", tmp_path / "public.csv")
    assert result.exit_code == 0, result.output
    released = [step["step"] for step in json.loads(result.stdout)["privacy"]["mechanisms"]]
    assert "steps" in released
    assert not any("whitening" in label for label in released)
    rows = pd.DataFrame({"x_a": 50 + 50 * kept["x_a"], "x_b": kept["x_b"]})
    assert np.mean(load_model(tmp_path / "m.json").predict(rows) == kept["flag"]) > 0.8


def test_public_rows_are_checked_before_anything_is_spent(tmp_path):
    table = people(50)
    write_table(pa.table(table), tmp_path / "t.parquet")
    write_table(pa.table({"x_a": table["x_a"]}), tmp_path / "narrow.parquet")
    write_table(pa.table({"x_a": table["x_a"], "x_b": [None] * len(table["x_a"])}), tmp_path / "empty.csv")
    for name, message in (
        ("t.parquet", "Expected --public-data to be another table"),
        ("narrow.parquet", "'x_b'"),
        ("empty.csv", "Expected finite numbers in column 'x_b'"),
        ("none.parquet", "There is no "),
    ):
        arguments = (*FLAG, "-o", tmp_path / "m.json", "--public-data", tmp_path / name)
        result = run("fit", tmp_path / "t.parquet", *arguments)
        assert (result.exit_code, message in result.stderr) == (1, True), result.stderr
    result = run("fit", tmp_path / "t.parquet", *FLAG, "-o", tmp_path / "p.csv", "--public-data", tmp_path / "p.csv")
    assert result.exit_code == 1
    assert not (tmp_path / "m.json").exists()


def test_a_fit_that_was_stopped_goes_on_by_its_journal_alone(files, tmp_path, monkeypatch):
    ledger, journal = tmp_path / "l.db", tmp_path / "run.journal"
    asked = (*FLAG, "--output", tmp_path / "m.json", "--report", tmp_path / "r.html", "--ledger", ledger)
    asked = (*asked, "--checkpoint", journal, "--quiet")
    Ledger(Budget(9.0, 1e-5), ledger)
    times = []
    real = LocalEngine.vectors

    def stopped(self, *arguments):
        times.append(1)
        if len(times) == 2:
            raise KeyboardInterrupt
        return real(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(LocalEngine, "vectors", stopped)
        result = run("fit", files / "data.parquet", *asked)
    assert result.exit_code == 130, result.output
    assert f"Resume the fit with `userdp resume {journal}`." in " ".join(result.stderr.split())
    monkeypatch.chdir(tmp_path.parent)  # what the journal holds is complete
    with contextlib.closing(sqlite3.connect(journal)) as db, db:  # and may be of an earlier version
        words = [*json.loads(db.execute("SELECT command FROM run").fetchone()[0]), "--columns-fraction", "0.1"]
        words[words.index("--mode") + 1] = "tight"
        db.execute("UPDATE run SET command = ?", (json.dumps([*words, "--ledger-budget", "9,1e-5"]),))
    result = run("resume", journal)
    assert result.exit_code == 0, result.output
    first = load_model(tmp_path / "m.json")
    assert (tmp_path / "r.html").is_file()
    assert len(Ledger.open(ledger).charges()) == 1
    result = run("resume", journal)
    assert (result.exit_code, "it has ended" in " ".join(result.stderr.split())) == (1, True)
    assert np.array_equal(load_model(tmp_path / "m.json").coef_, first.coef_)
    assert len(Ledger.open(ledger).charges()) == 1
    ledger.unlink()
    Ledger(Budget(9.0, 1e-5), ledger)
    result = run("resume", journal)
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert "its ledger is another" in result.stderr


def test_resume_needs_a_journal_of_the_command_line(files, tmp_path):
    assert "makes one" in run("resume", tmp_path / "absent").stderr
    model = LogisticRegression(8.0, 1e-6, execution=Execution(checkpoint=str(tmp_path / "j")), max_rows_per_user=10)
    X = np.random.default_rng(0).uniform(-1, 1, (30_000, 2))
    model.fit(X, X[:, 0] > 0, groups=np.arange(30_000) // 10)
    result = run("resume", tmp_path / "j")
    assert (result.exit_code, "make that call again" in " ".join(result.stderr.split())) == (1, True)
