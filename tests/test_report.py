"""The report says what is true, escapes what it is given, and shows in a browser without help from anywhere."""

import copy
import json
import math
import re
import threading
from html.parser import HTMLParser

import matplotlib as mpl
import numpy as np
import pytest
from report_records import (
    ABORTED,
    GAUSSIAN,
    KNOWN_NOISE,
    LOGISTIC,
    MULTINOMIAL,
    NOISE_DOMINATED,
    RECORDS,
    REGRESSION,
    ROWS,
    TESTED,
    changed,
)
from report_records import SEEDED as SEEDED_RECORD

from userdp.privacy.statement import right_guess
from userdp.report import report_facts, report_html, write_report
from userdp.report.page import templates
from userdp.report.record import number, power, shorten
from userdp.report.wording import factor_at_most, how, one_in, percent_at_most, purpose, up

VOID = {"meta", "link", "br"}


class Outline(HTMLParser):
    """Tags in order, checked for nesting, and the text outside of styles."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.ids, self.words, self.open = [], [], [], []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.ids += [value for key, value in attrs if key == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self):
        return re.sub(r"\s+", " ", " ".join(self.words))


@pytest.fixture(scope="module")
def pages():
    return {name: report_html(record) for name, record in RECORDS.items()}


@pytest.mark.parametrize("name", RECORDS)
def test_it_is_one_well_formed_page_that_loads_and_runs_nothing(pages, name):
    outline = Outline(pages[name])
    assert not {"script", "img", "iframe", "object", "embed", "form", "base"} & set(outline.tags)
    assert len(set(outline.ids)) == len(outline.ids)
    page = pages[name]
    assert "default-src 'none'" in page
    assert not re.search(r"<[^>]*\b(on\w+|src|srcset|action)=", page)
    assert all(link.startswith(("#", "data:")) for link in re.findall(r'<[^>]*\bhref="([^"]*)"', page))
    assert not re.search(r"@import|url\((?!#)", page)
    assert "$" not in page or name == "hostile"


def test_the_guarantee_is_in_words_and_in_signs(pages):
    text = Outline(pages["logistic"]).text
    assert "everything one user contributed, however many rows, by anything else" in text
    assert "by at most a factor of 2.72, plus a chance of 1 in 1,000,000" in text
    assert "73.2% is the best chance of a right guess" in text
    assert "For all data sets D and D′ of 48,092 users that are equal except for one user's whole data" in text
    assert "ε = 1, δ = 10⁻⁶" in text
    assert "What many users have in common" in text
    assert "banner" not in pages["logistic"].split("</style>")[1]


def test_rows_are_not_called_users():
    text = Outline(report_html(ROWS)).text
    assert "Replacing one row by anything else" in text
    assert "Single rows are protected, not users" in text
    assert "row-level (ε, δ)-differential privacy" in text
    assert "That is a weak guarantee" in text  # epsilon = 4
    assert "everything one user contributed" not in text


def test_budget_steps_phases_and_coefficients_are_told(pages):
    text = Outline(pages["logistic"]).text
    for words in ("second moment", "20%", "78%", "Spent: 0.94", "Lifetime budget: 3", "“lifters.ledger”", "0.6112"):
        assert words in text
    assert "secret-project" not in text  # the analyst's folders
    assert "attempt_3" in text
    assert "−1.2408" in text
    assert "1.1432" in text
    assert "GaussianOutlierRemoval(n_vectors=48092" in text
    declared = "epsilon=1.0, delta=1e-06, solver=Solver('auto', row_norm=5.5, domain_radius=10.0), max_rows"
    assert f"from userdp import LogisticRegression, Solver model = LogisticRegression( {declared}" in text
    assert "Lowy, Andrew and Liu, Daogao and Asi, Hilal" in text
    assert "Noise is fresh in every run" in text
    assert "dp-accounting" in text
    assert "0.14.1" in text


def test_the_noise_is_shown_beside_what_epsilon_and_delta_alone_allow(pages):
    text = Outline(pages["known noise"]).text
    assert "54.8% is the best chance of a right guess" in text
    assert "(ε, δ) alone would allow 73.2%; the noise of this release is known in full" in text
    assert "54.8% right with this noise" in text  # in the picture
    assert "73.2% right by (ε, δ) alone" in text
    assert "0.2368: it reveals no more than one Gaussian mechanism of this μ" in text
    assert "0.476: what libraries that account for adding or removing a user" in text
    assert "only to compare with" in text
    assert "noise alone protects, and there is no test that could err" in text
    assert "10⁻⁹ 1.318" in text
    assert "weak guarantee" not in text
    assert "This fit alone, with its hyperparameters taken as public." in text
    assert "Adding or removing a user is not covered by replacement with a public number of users." in text


def test_tests_that_may_err_are_told(pages):
    text = Outline(pages["tested"]).text
    assert "With a chance of 5·10⁻⁸ at most, counted in δ: nothing is guaranteed then." in text
    assert "but for events of chance 6·10⁻⁸" in text
    assert "none: tests may err more often" in text
    assert "adding or removing a user" not in text


def test_noise_that_hides_little_is_called_weak_and_a_seeded_run_boasts_of_nothing():
    weak = changed(privacy={"epsilon": 8.0, "tradeoff": GAUSSIAN | {"right_guess": 0.78}})
    assert "That is a weak guarantee" in Outline(report_html(weak)).text
    seeded = changed(SEEDED_RECORD, privacy={"tradeoff": GAUSSIAN})
    assert "What the noise really gives" not in Outline(report_html(seeded)).text


def test_a_short_table_is_shown_whole():
    """The training steps, last of the default solver's, must not be hidden below the edge of a box."""
    table = templates().get_template("macros.html").module.table
    assert 'class="scroll whole"' in table(["step"], [["a"]] * 20)
    assert "whole" not in table(["step"], [["a"]] * 21)


@pytest.mark.parametrize(
    ("changes", "words", "other"),
    [
        ({"solver": "dp-fedavg"}, "Estimate, 0.13: by how much", "what theory proves"),
        ({"solver": "whitened-clip"}, "No theorem guarantees that it stays below", "what theory proves"),
        ({"solver": "accelerated"}, "Bound, 0.13: what theory proves", "Estimate,"),
        ({"solver": "phased-sgd"}, "Bound, 0.13: what theory proves", "Estimate,"),
        ({"solver": "phased-sgd", "bound_is_estimate": True}, "Estimate, 0.13", "what theory proves"),
        ({"solver": "whitened-clip", "bound_is_estimate": False}, "Bound, 0.13", "Estimate,"),
    ],
)
def test_an_estimate_is_called_one(changes, words, other):
    record = changed(**changes)
    text = Outline(report_html(record)).text
    assert words in text
    assert other not in text
    assert report_facts(record)["excess_risk"]["is_estimate"] is ("Estimate" in words or "No theorem" in words)


@pytest.mark.parametrize(
    "label",
    ["gradients", "steps", "whitening 1", "whitening 2", "column scales", "burn-in", "curvature", "recalibration"],
)
def test_every_step_of_the_default_solvers_has_a_purpose(label):
    assert purpose({"step": label}) != "A release of the plan."


SOURCE = {"data": "<visits>.parquet", "target": "bought", "user_column": "person"}


def test_purpose_and_source_are_named_and_a_title_is_the_heading():
    record = changed(LOGISTIC, source=SOURCE, parameters=LOGISTIC["parameters"] | {"purpose": "who <buys>"})
    page = report_html(record, "Our & their model")
    assert "<h1>Our &amp; their model</h1>" in page
    assert "<title>Our &amp; their model: privacy report</title>" in page
    for words in ("who &lt;buys&gt;", "&lt;visits&gt;.parquet", "bought", "in the column “person”"):
        assert words in page
    assert report_facts(record)["model"]["source"] == SOURCE
    assert "Purpose and data" not in report_html(LOGISTIC)
    assert "<title>NOT PRIVATE: Ours</title>" in report_html(SEEDED_RECORD, "Ours")


def test_questions_are_answered_from_the_record():
    def answers(record):
        found = {entry["question"]: entry["answer"] for entry in report_facts(record)["questions"]}
        page = Outline(report_html(record)).text
        assert all(words in page for pair in found.items() for words in pair)
        return list(found.values())

    protected, published, counted, twice, which, kept = answers(LOGISTIC)
    assert "all their rows together" in protected
    assert published.startswith("As far as")
    assert "48,092" in counted
    assert "epsilons add up" in twice
    assert which.startswith("ε = 1 at δ = 10⁻⁶")
    assert "ε = 3 at δ = 10⁻⁵" in which
    assert "lifters.ledger" in kept
    assert "secret-project" not in kept
    protected, published, _, _, which, _ = answers(SEEDED_RECORD)
    assert protected.startswith("Nobody")
    assert published.startswith("No.")
    assert which.startswith("None")
    assert answers(ROWS)[0].startswith("Each row by itself")
    seeded_before = changed(LOGISTIC)
    seeded_before["privacy"]["ledger"]["spent_epsilon"] = None
    assert "all releases together are not private" in answers(seeded_before)[4]
    noted = changed(LOGISTIC)
    noted["privacy"]["warning"] = "Labels were read off the data."
    assert "without protection" in answers(noted)[1]
    alone = changed(LOGISTIC)
    alone["privacy"]["ledger"] = None
    assert "no ledger file" in answers(alone)[5]
    assert "come on top" in answers(alone)[4]


def test_cells_of_the_budget_s_table_carry_their_heads_for_narrow_screens(pages):
    assert '<td class="number" data-head="ε if alone">0.41</td>' in pages["logistic"]
    assert 'data-head="δ"' not in pages["known noise"]


def test_facts_for_machines_are_those_of_the_page():
    facts = json.loads(json.dumps(report_facts(KNOWN_NOISE), allow_nan=False))
    assert facts["guarantee"]["epsilon"] == 1.0
    assert facts["guarantee"]["covers"] == "this fit alone, with its hyperparameters taken as public"
    assert any("Adding or removing a user" in words for words in facts["guarantee"]["not_covered"])
    assert facts["noise"]["right_guess"] == GAUSSIAN["right_guess"]
    assert facts["noise"]["right_guess_of_epsilon_and_delta_alone"] == pytest.approx(0.7311, abs=1e-4)
    assert facts["noise"]["add_or_remove_epsilon_to_compare_with"] == GAUSSIAN["added_epsilon"]
    assert facts["noise"]["tradeoff"][2] == {"false_alarm": 0.2, "missed_detection": 0.726}
    assert facts["noise"]["epsilon_at_other_deltas"][0] == {"delta": 1e-05, "epsilon": 0.87247}
    assert facts["composition"]["steps"][0]["purpose"].startswith("How features vary")
    assert facts["trust"]["model"].startswith("a trusted curator")
    assert facts["implementation"]["randomness"].startswith("the operating system's")


def test_facts_of_all_records_are_json_and_a_seed_is_confessed():
    for record in RECORDS.values():
        json.dumps(report_facts(record), allow_nan=False)
    assert report_facts(LOGISTIC)["noise"] is None
    assert report_facts(TESTED)["noise"]["fails_outright_with_chance"] == 5e-8
    facts = report_facts(SEEDED_RECORD)
    assert facts["guarantee"]["private"] is False
    assert facts["guarantee"]["in_words"] == "none: the run was seeded"


@pytest.mark.parametrize("value", [0.0, 1e-9, 0.2367, 0.23674999, 1.0, 12.3456, 9.9999])
def test_numbers_that_bound_are_rounded_up(value):
    assert value <= float(up(value)) <= value * 1.0011


@pytest.mark.parametrize(
    ("mechanism", "words"),
    [
        ("SampledClip", "random sample of users"),
        ("SampledOutlierRemoval", "Random samples of users"),
        ("SampledRows", "See the record below."),  # of research/, which is not installed
    ],
)
def test_mechanisms_of_earlier_files_are_told_in_words(mechanism, words):
    assert words in how({"mechanism": mechanism})


@pytest.mark.parametrize(
    ("mechanism", "record", "words"),
    [
        ("clip", {"sampling_probability": 0.1}, "random sample of users"),
        ("clip", {"sampling_probability": "often"}, "clipped to a fixed norm"),
        ("outlier-removal", {"test_std": 2.0}, "a private test in each round"),
        ("outlier-removal", {"test_std": 2.0, "radii": [1.0, 2.0]}, "Finds its own distance"),
    ],
)
def test_what_a_mechanism_does_is_told_from_its_numbers(mechanism, record, words):
    assert words in how({"mechanism": mechanism, "record": record})


def test_what_a_ledger_s_total_is_worth_is_said():
    """The budget is guaranteed, not a total at a moment that was chosen."""
    ledger = {"path": "l.db", "epsilon": 3.0, "delta": 1e-5, "spent_epsilon": 2.5}
    text = Outline(report_html(changed(privacy={"ledger": ledger}))).text
    assert "not a total at a moment chosen by looking at results" in text
    assert "together it is ε = 2.5 at δ = 10⁻⁵, a running total" in text
    assert "guaranteed for all of it together is the ledger's budget, ε = 3." in text


def test_steps_on_different_users_are_said_not_to_add_up():
    text = Outline(report_html(REGRESSION)).text
    assert "do not add up" in text
    assert "24,046 to 40,077" in text
    assert "None was kept" in text  # no lifetime ledger
    assert "Predicted," not in text  # there is no estimate
    assert "x3" in text
    assert "11.8" in text


def test_many_outputs_are_a_heat_map_and_a_table():
    text = Outline(report_html(MULTINOMIAL)).text
    assert text.count("politics") >= 2
    assert "Blue is above 0, orange below" in text
    assert "(intercept)" in text


def banners(record):
    return re.findall(r'class="banner (\w+)" role="alert"><strong>(.*?)</strong>', report_html(record))


def test_a_seeded_run_is_called_not_private_and_guarantees_nothing():
    assert banners(SEEDED_RECORD) == [("red", "NOT PRIVATE. Do not publish.")]
    page = report_html(SEEDED_RECORD)
    assert "<title>NOT PRIVATE: LogisticRegression</title>" in page
    text = Outline(page).text
    assert "There is no guarantee" in text
    assert "infinite, since a run was seeded" in text
    for guarantee in (
        "What is guaranteed",
        "best chance of a right guess",
        "Covered",
        "is as private as",
        "trained with user",
    ):
        assert guarantee not in text


def test_a_seed_is_enough_to_be_called_not_private():
    assert banners(changed(privacy={"insecure_seed": 3}))[0][0] == "red"
    assert banners(changed(privacy={"private": False}))[0][0] == "red"


@pytest.mark.parametrize(
    ("record", "title"),
    [
        (ABORTED, "Training aborted: this model is not finished."),
        (NOISE_DOMINATED, "This model is noise-dominated."),
        (changed(estimate=math.inf), "This model is noise-dominated."),
        (changed(privacy={"delta": 1e-4}), "Please note"),
        (changed(privacy={"warning": "careful"}), "Please note"),
        (changed(privacy={"ledger": SEEDED_RECORD["privacy"]["ledger"]}), "Please note"),
    ],
)
def test_amber_banners(record, title):
    assert banners(record) == [("amber", title)]


def test_the_message_of_an_abort_is_shown():
    text = Outline(report_html(ABORTED)).text
    assert "fill missing values" in text
    assert "The privacy guarantee holds all the same." in text
    assert "stopped before the first phase ended" in text
    assert "nothing to draw" in text
    assert "A private test failed" in Outline(report_html(changed(halted=True))).text


def test_everything_from_the_record_is_escaped(pages):
    page = pages["hostile"]
    assert "<script" not in page
    assert page.count("&lt;script&gt;alert(") > 15
    assert "\u202e" not in page
    assert "\x00" not in page
    assert 'url(#x) id="y' in Outline(page).text  # a name that looks like markup is left as it is
    page.encode("utf-8")


def test_huge_models_are_shown_in_part(pages):
    text = Outline(pages["huge"]).text
    assert "The 500 largest are shown" in text
    assert "the 30 features where they are largest" in text
    assert len(pages["huge"]) < 2_000_000


@pytest.mark.parametrize(
    "changes",
    [
        {"bound": None, "estimate": None, "loss_at_zero": None},
        {"phases": [{"radius": 0.0}]},
        {"privacy": {"mechanisms": [], "ledger": None}},
        {"privacy": {"delta": 0.0}},
        {"privacy": {"epsilon": 1e-9, "delta": 1e-300}},
        {"intercept": [], "classes": None},
        {"coef": [[math.nan] * 29]},
        {"n_users": 10**40, "rows_per_user": None},
        {"n_features": 1, "features": ["one"], "coef": [[0.3], [0.1]], "intercept": [1, 2], "classes": ["a", "b", "c"]},
    ],
)
def test_odd_numbers_render(changes):
    assert "Reproduce and cite" in Outline(report_html(changed(**changes))).text


def test_a_record_may_lack_what_is_optional():
    least = {key: LOGISTIC[key] for key in ("format", "estimator", "parameters", "n_features", "n_users", "coef")}
    privacy = {"epsilon": 1.0, "delta": 1e-6, "unit": "user", "private": True, "mechanisms": []}
    page = report_html({**least, "intercept": [0.5], "halted": False, "privacy": privacy})
    assert "x28" in page


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"format": "other"}, 'its format is "userdp model 1" expected'),
        ({"n_users": 0}, "rows of n_features numbers"),
        ({"n_features": 28}, "rows of n_features numbers"),
        ({"coef": []}, "rows of n_features numbers"),
        ({"intercept": [1.0, 2.0]}, "one intercept per output"),
        ({"features": ["a"]}, "a name for each feature"),
        ({"phases": [1]}, "TypeError"),
        ({"privacy": {"epsilon": math.inf}}, "0 < epsilon < infinity"),
        ({"privacy": {"epsilon": math.nan}}, "0 < epsilon < infinity"),
        ({"privacy": {"delta": 1.0}}, "0 <= delta < 1"),
        ({"privacy": {"unit": "household"}}, 'the unit is "user" or "row"'),
        ({"privacy": {"mechanisms": None}}, "TypeError"),
        ({"privacy": {"tradeoff": {}}}, "KeyError"),
        ({"privacy": {"tradeoff": GAUSSIAN | {"right_guess": 2.0}}}, "chances and epsilons"),
        ({"privacy": {"tradeoff": GAUSSIAN | {"mu": math.nan}}}, "chances and epsilons"),
        ({"privacy": {"tradeoff": GAUSSIAN | {"points": [["a", "b"]]}}}, "ValueError"),
        ({"privacy": {"ledger": "file"}}, "AttributeError"),
    ],
)
def test_a_malformed_record_is_refused_with_what_was_expected(change, expected):
    with pytest.raises(ValueError, match=r"^The model's record is damaged .* Pass a fitted model") as error:
        report_html(changed(**change))
    assert expected in str(error.value)


def test_what_is_not_plainly_private_is_called_not_private():
    assert banners(changed(privacy={"private": 1}))[0][0] == "red"


@pytest.mark.parametrize("record", [None, [], "model.json", {}])
def test_what_is_no_record_is_refused(record):
    with pytest.raises(ValueError, match=r"^The model"):
        report_html(record)


def test_the_record_is_not_changed_and_survives_json():
    record = copy.deepcopy(LOGISTIC)
    page = report_html(record)
    assert record == LOGISTIC
    assert report_html(json.loads(json.dumps(record))) == page  # the same record gives the same page


def test_settings_of_matplotlib_are_left_alone_and_do_not_matter():
    with mpl.rc_context({"font.size": 30, "svg.fonttype": "path", "axes.facecolor": "red"}):
        before = dict(mpl.rcParams)
        assert report_html(LOGISTIC) == report_html(LOGISTIC)
        assert dict(mpl.rcParams) == before
        page = report_html(LOGISTIC)
    assert page == report_html(LOGISTIC)


def test_threads_do_not_disturb_each_other():
    expected, found = report_html(REGRESSION), []
    threads = [threading.Thread(target=lambda: found.append(report_html(REGRESSION))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 3


class Fitted:
    def to_dict(self):
        return LOGISTIC


def test_the_file_is_written_whole(tmp_path):
    path = tmp_path / "report.html"
    path.write_text("old")
    assert write_report(Fitted(), path) == path
    assert path.read_text(encoding="utf-8") == report_html(LOGISTIC)
    with pytest.raises(ValueError, match="format"):
        write_report({}, path)
    assert path.read_text(encoding="utf-8") == report_html(LOGISTIC)
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]


def test_a_path_that_cannot_be_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "missing" / "report.html"):
        with pytest.raises(ValueError, match=r"(cannot be written|There is no folder)"):
            write_report(LOGISTIC, str(path))


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("delta", [0.0, 1e-6, 0.1])
def test_no_attack_on_randomised_response_beats_the_stated_chance_and_one_reaches_it(epsilon, delta):
    # The worst mechanism of (epsilon, delta): it tells the truth outright with chance delta.
    yes, no = (1 - delta) * math.exp(epsilon) / (1 + math.exp(epsilon)), (1 - delta) / (1 + math.exp(epsilon))
    one, other = np.array([delta, yes, no, 0.0]), np.array([0.0, no, yes, delta])
    best = np.maximum(one, other).sum() / 2
    assert right_guess(epsilon, delta) == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize("epsilon", [1e-12, 0.1, 1.0, math.log(2), 2.302585092994046, 8.0, 29.0])
def test_bounds_are_rounded_up(epsilon):
    assert math.exp(epsilon) < float(factor_at_most(epsilon).replace(",", "")) <= 1.0101 * math.exp(epsilon)
    chance = right_guess(epsilon, 0.0)
    assert chance <= float(percent_at_most(chance)[:-1]) / 100 <= chance + 0.0011


@pytest.mark.parametrize(
    ("delta", "words"), [(1e-6, "1 in 1,000,000"), (3e-7, "1 in 3,300,000"), (0.5, "1 in 2"), (1e-30, "1e-30")]
)
def test_small_chances_in_words(delta, words):
    assert one_in(delta) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (48092, "48,092"), (0.00213456, "0.002135"), (-1.5, "−1.5"), (1e-7, "1e-07"), (123456.7, "123,457"),
        (None, "not given"), (math.nan, "NaN"), (-math.inf, "−∞"), (10**400, "∞"), ("a\nb", "a b"),
        (1e20, "1e+20"), (True, "True"),
    ],
)  # fmt: skip
def test_numbers_for_people(value, words):
    assert number(value) == words


def test_powers_and_short_names():
    assert [power(value) for value in (1e-6, 2.5e-12, 0.1, 0.0)] == ["10⁻⁶", "2.5·10⁻¹²", "0.1", "0"]
    assert shorten("days_since_registration", 11) == "days_…ation"
    assert shorten("  ", 9) == "(no name)"
    assert shorten("年齢と体重の比率", 9) == "年齢…比率"


def test_scores_of_candidates_are_not_taken_for_those_of_the_model():
    assert purpose({"step": "differences of scores"}).startswith("How good the candidates of a search are, on average")
    assert purpose({"step": "scores"}).startswith("How good the model is")
