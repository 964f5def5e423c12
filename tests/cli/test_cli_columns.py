"""Described columns from the command line: fit, predict, evaluate, report, and a first description."""

import json
import tomllib

import pytest
from support_cli import run
from support_columns import COLUMNS, shop

from userdp import Category, Columns


@pytest.fixture(scope="module", params=["csv", "parquet"])
def table(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("shop")
    path = folder / f"shop.{request.param}"
    frame = shop(3000)
    frame.to_csv(path, index=False) if request.param == "csv" else frame.to_parquet(path)
    return path


def fitted(table, description, *more):
    asked = ("--user-column", "user", "--target", "bought", "--classes", "no,yes", "--columns", str(description))
    return run("fit", str(table), *asked, "--epsilon", "2", "--output", str(table.parent / "model.json"), *more)


def test_from_a_table_to_predictions_scores_and_a_report(table):
    folder = table.parent
    description = Columns({**COLUMNS, "device": Category("private")}).write(folder / "shop.toml")
    done = fitted(table, description, "--report", str(folder / "report.html"), "--json")
    assert done.exit_code == 0, done.output
    model = json.loads((folder / "model.json").read_text())
    assert model["columns"]["device"]["levels"] == ["phone", "laptop"]
    assert "city=Lyon" in model["features"]
    assert "What the columns mean" in (folder / "report.html").read_text()
    done = run("predict", str(folder / "model.json"), str(table), "--output", str(folder / "out.csv"), "--proba")
    assert done.exit_code == 0, done.output
    done = run("evaluate", str(folder / "model.json"), str(table), "--target", "bought", "--json")
    scores = json.loads(done.stdout)["scores"]["rows"]
    assert scores["model"]["log loss"] < scores["constant"]["log loss"]
    asked = ("--target", "bought", "--user-column", "user", "--epsilon", "2", "--json")
    assert run("evaluate", str(folder / "model.json"), str(table), *asked).exit_code == 0


def test_a_first_description(table):
    done = run("columns", str(table), "--user-column", "user", "--target", "bought")
    assert set(tomllib.loads(done.stdout)) == set(COLUMNS)
    path = table.parent / "first.toml"
    run("columns", str(table), "--output", str(path))
    if table.suffix == ".csv":  # which declares no types: cities that are taken for numbers would cost a budget
        with pytest.raises(ValueError, match=r"Column 'user' of .*first\.toml needs a type, one of number"):
            Columns.read(path)
    else:
        assert "user" in Columns.read(path)


def test_names_that_occur_twice_are_refused(tmp_path):
    path = tmp_path / "twice.csv"
    path.write_text("user,age,age,bought\na,1,2,no\n")
    done = run("columns", path)
    assert done.exit_code == 1
    assert "More than one column is named 'age'" in done.stderr


def test_columns_as_flags(table):
    described = COLUMNS.write(table.parent / "declared.toml")
    age, city = """age={type="number",low=18,high=90}""", """city={type="category",levels=["Paris","Lyon"]}"""
    done = fitted(table, described, "--column", age, "--json")
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    assert (record["columns"]["age"]["low"], record["columns"]["spend"]["high"]) == (18.0, 5000.0)
    assert record["source"]["columns"].startswith("age (number), spend (number)")
    assert record["source"]["data"] == table.name
    asked = ("fit", table, "--user-column", "user", "--target", "bought", "--classes", "no,yes", "--epsilon", "2")
    done = run(*asked, "--column", age, "--column", city, "-o", table.parent / "m.json", "--json")
    assert json.loads(done.stdout)["features"] == ["age", "city=Lyon", "city=(other)"]
    for wrong in ("age", "age=number", "age={type=3}"):
        done = run(*asked, "--column", wrong, "-o", table.parent / "m.json")
        assert done.exit_code == 1
        assert "--column" in done.stderr


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--features", "age"), "either --features"),
        (("--fill-missing", "0"), "no --fill-missing with --columns"),
        (("--delta", "0.01"), "delta=0.01 well below 1 over the 3000 users"),
    ],
)
def test_what_is_wrong_costs_nothing(table, more, words):
    done = fitted(table, COLUMNS.write(table.parent / "declared.toml"), *more)
    assert done.exit_code == 1
    assert words in done.output
    assert "spent" not in done.output or "Nothing was spent" in done.output


def test_noise_that_would_dominate_is_refused_with_what_would_do(table):
    description = COLUMNS.write(table.parent / "declared.toml")
    weak = ("--epsilon", "0.01")
    done = fitted(table, description, *weak)
    assert done.exit_code == 1
    assert "noise is expected to dominate" in done.output
    assert "Use an epsilon of about" in done.output
    assert "allow_weak=True is --allow-weak" in done.output
    assert fitted(table, description, *weak, "--allow-weak").exit_code == 0
