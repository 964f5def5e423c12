"""Files that 0.1.0 itself wrote, kept as they were: a fit and a plan of several mechanisms, in both ledger formats.

Names of classes and fields have changed since. What the files say must not, least of all what was spent.
"""

import json
import re
import sqlite3
from dataclasses import fields
from pathlib import Path

import pytest
from test_mechanism import mechanism_classes

from userdp import Budget, Ledger, load_model, save_model
from userdp.cli.ledgers import show_ledger
from userdp.privacy.accounting import BudgetExceeded, Cost, epsilon_at
from userdp.privacy.clip import Clip
from userdp.privacy.plan import Plan, Step
from userdp.report import wording
from userdp.report.page import report_html

FILES = Path(__file__).parent / "files_of_0_1_0"
SPENT = {1: 1.1657535169567421, 2: 1.168421445414424}  # as 0.1.0 printed it, of runs that it composed exactly in 1


@pytest.fixture(params=[1, 2])
def number(request):
    return request.param


@pytest.fixture
def path(number, tmp_path):
    db = sqlite3.connect(tmp_path / "old.ledger")
    db.executescript((FILES / f"ledger_format_{number}.sql").read_text())
    db.close()
    return tmp_path / "old.ledger"


def test_nothing_that_was_spent_is_forgotten(number, path):
    book = Ledger.open(path)
    assert (book.budget, book.failure_fraction) == (Budget(8.0, 1e-5), 0.25)
    fit, parts = book.charges()
    assert SPENT[number] <= book.spent_epsilon() < SPENT[number] * 1.01
    assert (fit.purpose, parts.purpose) == ("LogisticRegression.fit", "parts")
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", charge.charged_at) for charge in (fit, parts)), "to the day"
    assert not re.search(rb"\d\d:\d\d:\d\d", path.read_bytes())
    searched, averaged = parts.costs
    assert (searched.gaussian, averaged.gaussian) == (0.0005555555555555557, 0.016736111111111125)
    (sampled,) = averaged.subsampled
    assert (sampled.added_user_multiplier, sampled.steps) == (5.999999999994, 20)
    assert sum(price.mu_squared for price in parts.dominating) >= averaged.gaussian
    assert [step.mechanism for step in parts.steps] == ["radius-search", "gaussian-outlier-removal", "sampled-clip"]
    assert "noise_multiplier=8.0" in parts.steps[1].record
    exact = max(epsilon_at(one + other, 1e-5) for one in fit.costs for other in parts.costs)
    assert book.spent_epsilon() >= exact


def test_it_is_charged_further_and_refuses_beyond_the_budget(path):
    book = Ledger.open(path)
    before = book.spent_epsilon()
    book.charge(Plan(100, (Step("more", 0, 100, Clip(100, 5.0)),)))
    assert Ledger.open(path).spent_epsilon() > before
    with pytest.raises(BudgetExceeded):
        book.charge(Plan(100, (Step("much more", 0, 100, Clip(100, 0.5)),)))
    assert len(book.charges()) == 3


def test_a_model_says_what_it_said(number, tmp_path):
    file = FILES / f"model_{number}.json"
    model, record = load_model(file), json.loads(file.read_text())
    assert [part.fraction for part in model.privacy_.parts] == [
        part["share"] for part in record["privacy"]["mechanisms"]
    ]
    again = json.loads(save_model(model, tmp_path / "again.json").read_text())
    for name in ("epsilon", "delta", "unit", "private", "n_users"):
        assert again["privacy"][name] == record["privacy"][name]
    assert again["coef"] == record["coef"]
    assert [part["share"] for part in again["privacy"]["mechanisms"]] == [
        part["share"] for part in record["privacy"]["mechanisms"]
    ]
    assert load_model(tmp_path / "again.json").privacy_ == model.privacy_


def test_a_report_tells_the_same_of_it(number):
    record = json.loads((FILES / f"model_{number}.json").read_text())
    assert report_html(load_model(FILES / f"model_{number}.json").to_dict()).count("%") > 0
    page = report_html(record)
    assert "See the record below." not in page
    assert f"{record['privacy']['mechanisms'][-1]['share']:.0%}" in page


FIELDS = {
    "allotment": "n_vectors mu_squared rounds neighbours",
    "clip": "n_vectors noise_multiplier rounds block acute sampling_probability laplace neighbours",
    "outlier-removal": "n_vectors noise_multiplier test_epsilon failure false_abort rounds outliers test_std radii "
    "neighbours",
    "paper-outlier-removal": "n_vectors test_scale noise_ratio selection_failure rounds",
    "sampled-paper-outlier-removal": "n_vectors sampling_probability test_scale noise_ratio selection_failure rounds",
    "radius-search": "n_vectors radii target noise_std",
    "sampled-outlier-removal": "n_vectors sampling_probability added_user_multiplier deficit_std failure false_abort "
    "rounds outliers",
    "vocabulary": "n_vectors noise_multiplier failure levels_per_user max_levels n_words block neighbours",
}


def test_files_know_kinds_and_numbers_of_mechanisms_by_these_names():
    """A field that is renamed would be unknown to those who read the files: give it a new kind, or keep the name."""
    found = {kind.kind: " ".join(field.name for field in fields(kind)) for kind in mechanism_classes()}
    assert found == FIELDS


def test_a_search_with_random_stopping_of_an_earlier_version_is_read_and_shown(path, capsys):
    """There is no such mechanism any more; what was charged for it stays charged."""
    record = {"kind": "random-stopping", "n_vectors": 100, "mu_squared": 0.01, "stop_probability": 0.05, "delta": 1e-7}
    cost = [Cost(pure=(0.5,), failure=1e-7).to_json()]
    before = Ledger.open(path).spent_epsilon()
    with sqlite3.connect(path) as db:
        (last,) = db.execute("SELECT dominating FROM runs ORDER BY run DESC").fetchone()
        run = db.execute(
            "INSERT INTO runs (charged_at, purpose, costs, dominating, mark) VALUES ('2026-01-01', 'search', ?, ?, '')",
            (json.dumps(cost), last),
        ).lastrowid
        step = (run, "random stopping", json.dumps(record), 0, 100)
        db.execute("INSERT INTO steps VALUES (?, ?, ?, ?, ?)", step)
    db.close()
    book = Ledger.open(path)
    (step,) = book.charges()[-1].steps
    assert (step.mechanism, step.record) == ("random-stopping", record)
    assert book.spent_epsilon() > before
    show_ledger(path)
    assert "random stopping" in capsys.readouterr().out
    named = {"step": "random stopping", "mechanism": "random-stopping"}
    assert wording.purpose(named).startswith("A search: candidates drawn at random")
    assert wording.how(named).startswith("Chance alone says when the search ends")


OF_RESEARCH = [
    {"kind": "winsorized", "n_vectors": 100, "n_bins": 3, "count_multiplier": 9.0, "mean_multiplier": 4.0, "rounds": 2},
    {"kind": "sampled-rows", "n_vectors": 100, "rows_per_user": 3, "row_multiplier": 4.0, "epsilon": 0.5},
    {"kind": "output-perturbation", "noise_multiplier": 4.0},
    {"kind": "local-votes", "n_vectors": 100, "epsilon": 0.5, "n_bins": 3},
]


@pytest.mark.parametrize("record", OF_RESEARCH, ids=lambda record: record["kind"])
def test_what_was_spent_on_mechanisms_that_are_not_installed_stays_spent(path, record, capsys):
    """They come from research/: the file has their cost, so that nobody need know how it was found."""
    Ledger.open(path)  # in today's format
    with sqlite3.connect(path) as db:
        costs, dominating = db.execute("SELECT costs, dominating FROM runs ORDER BY run DESC").fetchone()
        charged = ("2026-01-01", "earlier work", costs, dominating)
        run = db.execute(
            "INSERT INTO runs (charged_at, purpose, costs, dominating, mark) VALUES (?, ?, ?, ?, '')", charged
        ).lastrowid
        db.execute("INSERT INTO steps VALUES (?, ?, ?, ?, ?)", (run, "gradients", json.dumps(record), 0, 100))
    db.close()
    book = Ledger.open(path)
    *_, before, last = book.charges()
    assert (last.costs, last.dominating) == (before.costs, before.dominating)
    assert (last.steps[0].mechanism, last.steps[0].record) == (record["kind"], record)
    spent = book.spent_epsilon()
    book.charge(Plan(100, (Step("more", 0, 100, Clip(100, 50.0)),)))
    assert Ledger.open(path).spent_epsilon() > spent
    show_ledger(path)
    assert "earlier work" in capsys.readouterr().out


@pytest.mark.parametrize("record", OF_RESEARCH, ids=lambda record: record["kind"])
def test_a_model_of_mechanisms_that_are_not_installed_opens_and_is_reported(record, tmp_path):
    told = json.loads((FILES / "model_2.json").read_text())
    assert told["solver"] == "dp-fedavg", "which is not installed either"
    told["privacy"]["mechanisms"][0] |= {"mechanism": record["kind"], "record": record}
    (tmp_path / "model.json").write_text(json.dumps(told))
    model = load_model(tmp_path / "model.json")
    assert model.privacy_.epsilon == told["privacy"]["epsilon"]
    assert model.privacy_.parts[0].mechanism == record["kind"]
    assert "See the record below." in report_html(model.to_dict())


def test_renaming_a_class_changes_no_file(tmp_path):
    renamed = type("BetterName", (Clip,), {})
    for path, kind in (("one.db", Clip), ("other.db", renamed)):
        Ledger(Budget(1.0, 1e-6), tmp_path / path).charge(Plan(9, (Step("mean", 0, 9, kind(9, 10.0)),)))
    one, other = (Ledger.open(tmp_path / path).charges()[0].steps for path in ("one.db", "other.db"))
    assert one == other
    assert (one[0].mechanism, one[0].record["kind"], one[0].record["noise_multiplier"]) == ("clip", "clip", 10.0)
