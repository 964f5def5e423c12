"""Described columns: from tables as people have them to features, a model, its file and predictions."""

import datetime
import html
import math
import tomllib
import warnings
from types import SimpleNamespace

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.base import clone
from sklearn.feature_extraction.text import HashingVectorizer
from support_columns import COLUMNS, PRIVATE, shop

import userdp
from userdp import (
    Boolean,
    Budget,
    BudgetExceeded,
    Category,
    Columns,
    Date,
    Execution,
    Ledger,
    LogisticRegression,
    Number,
    Text,
)
from userdp.data.cells import labels, texts_of_words
from userdp.data.columns import cut, first_description, packed
from userdp.data.tables import open_table
from userdp.models.learned_columns import Preparation
from userdp.statistics.columns import Histograms, ranged

CLASSES = ["no", "yes"]


def one(column, cells, **more):
    return Columns({"c": column}).encode({"c": cells})


# ---------------------------------------------------------------- what a cell becomes


def test_numbers_are_clipped_scaled_and_filled_each_by_its_own_column():
    cells = [0, 50, 100, -7, 1e9, math.inf, -math.inf, math.nan, None, "25", "soon", object()]
    expected = [-1, 0, 1, -1, 1, 1, -1, 0, 0, -0.5, 0, 0]
    assert one(Number(0, 100), cells)[:, 0].tolist() == expected
    assert one(Number(0, 100, fill=25), [None, 25])[:, 0].tolist() == [-0.5, -0.5]
    assert one(Number(0, 100, fill=1e6), [None])[0, 0] == 1  # clipped like a cell


def test_transforms_are_of_clipped_numbers():
    found = one(Number(0, 5000, transform="log1p", fill=0), [-3, 0, 100.0, 5000, None])[:, 0]
    assert found == pytest.approx([-1, -1, 2 * math.log1p(100) / math.log1p(5000) - 1, 1, -1])
    assert one(Number(0, 100, transform="sqrt"), [25.0])[0, 0] == 0


def test_a_missing_cell_may_have_a_feature_of_its_own():
    assert one(Number(0, 2, missing_indicator=True), [1, None]).tolist() == [[0, 0], [0, 1]]
    assert one(Boolean(fill=True, missing_indicator=True), [False, None]).tolist() == [[0, 0], [1, 1]]
    assert one(Category(["a", "b"], missing_indicator=True), ["a", "z", None]).tolist() == [
        *([0, 0, 0], [0, 1, 0], [0, 0, 1]),
    ]
    assert one(Date(missing_indicator=True), ["2020-01-01", None])[:, -1].tolist() == [0, 1]
    assert one(Text(4, missing_indicator=True), ["", "word"]).toarray()[:, -1].tolist() == [1, 0]


def test_levels_that_are_all_there_are_need_no_feature_for_others():
    every = Category(["a", "b", "c"], other=False)
    assert Columns({"c": every}).names == ["c=b", "c=c"]
    assert one(every, ["a", "b", "c", "z", None]).tolist() == [[0, 0], [1, 0], [0, 1], [0, 0], [0, 0]]
    assert one(Category(["a", "b"], other=False, missing_indicator=True), ["b", "z", None]).tolist() == [
        *([1, 0], [0, 0], [0, 1]),
    ]
    assert one(Category(["a"], other=False), ["a", "z"]).shape == (2, 0)
    assert Columns.of(Columns({"c": every}).to_dict())["c"] == every
    with pytest.raises(ValueError, match="declared levels only"):
        Category("private", other=False)
    with pytest.raises(TypeError, match="other of a Category must be True or False, got int"):
        Category(["a", "b"], other=0)


def test_text_that_a_schema_declares_is_no_number():
    for column in (pa.array(["1", "2"]), pa.array(["1", "2"]).dictionary_encode(), pl.Series(["1", "2"])):
        with pytest.raises(TypeError, match=r"column 'c' must hold numbers, got text.*Nothing was spent"):
            one(Number(0, 2), column)
    assert one(Number(0, 2), pd.Series(["1", "soon"])).tolist() == [[0], [0]]  # one cell may decide pandas' type


def test_booleans_are_0_and_1():
    column = Boolean(missing_indicator=True)
    cells = [True, False, 1, 0, 1.0, "true", "False", " Yes ", "no", "Y", "n", "T", "off", "1", "0.0"]
    assert one(column, cells).tolist() == [[value, 0] for value in (1, 0, 1, 0, 1, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0)]
    texts = [str(cell) for cell in cells]
    for same in (np.array(texts), pd.Series(texts), pa.chunked_array([texts]), pd.Series(texts, dtype="category")):
        assert column.encode(column.read("column", same)).tolist() == one(column, cells).tolist()
    assert one(column, [2, "perhaps", None, "", float("nan"), -1]).tolist() == [[0, 1]] * 6
    assert column.encode(column.read("column", np.array([0.0, 1.0, 2.0, np.nan]))).tolist() == [
        [0, 0],
        [1, 0],
        [0, 1],
        [0, 1],
    ]


def test_the_first_level_is_the_reference_and_all_else_is_other():
    column = Category(["Paris", "Lyon", "Nice"])
    assert column.names("city") == ["city=Lyon", "city=Nice", "city=(other)"]
    cells = ["Paris", "Lyon", "Nice", "Rome", None, "", "paris", 7]
    found = one(column, cells)
    assert found.tolist() == [[0, 0, 0], [1, 0, 0], [0, 1, 0], *[[0, 0, 1]] * 5]


def test_levels_are_told_apart_by_their_text_whatever_their_type():
    whole, text = np.array([1, 2, 3]), np.array(["1", "2", "3"])
    for cells in (whole, whole.astype(float), text, text.astype(object), pa.array([1, 2, 3]), pd.Categorical(text)):
        cells = pd.Series(cells) if isinstance(cells, pd.Categorical) else cells
        assert one(Category([1, 2]), cells).tolist() == [[0, 0], [1, 0], [0, 1]]
        assert one(Category(["1", "2"]), cells).tolist() == [[0, 0], [1, 0], [0, 1]]


def test_dates_have_parts_and_cycles():
    everything = Date(
        "2000-01-01", "2040-01-01", parts=("time", "year", "month", "day", "weekday", "hour"), cycles=("year", "day")
    )
    noon = datetime.datetime(2024, 7, 1, 12, tzinfo=datetime.UTC)  # a Monday
    cells = [noon, "2024-07-01T12:00:00", "2024-07-01 14:00:00+02:00", np.datetime64("2024-07-01T12:00"), "no date"]
    found = one(everything, cells)
    assert (found[:4] == found[0]).all()
    assert (found[4] == 0).all()
    days = (datetime.date(2024, 7, 1) - datetime.date(2000, 1, 1)).days + 0.5
    total = (datetime.date(2040, 1, 1) - datetime.date(2000, 1, 1)).days
    phase = 2 * math.pi * 182.5 / 366
    expected = [2 * days / total - 1, 0.2, 2 * 6 / 11 - 1, -1, -1, 2 * 12 / 23 - 1, math.sin(phase), math.cos(phase)]
    assert found[0] == pytest.approx([*expected, 0, -1], abs=1e-12)
    assert one(Date("2020-01-01", "2021-01-01"), ["1969-05-05", "2999-01-01"])[:, 0].tolist() == [-1, 1]


def test_dates_of_all_types_are_the_same_moment_and_far_ones_raise_nothing():
    moment = np.array(["2024-07-01T12:00:01", "NaT"], dtype="datetime64[s]")
    expected = one(Date(cycles=("day",)), moment)
    for unit in ("s", "ms", "us", "ns"):
        for cells in (moment.astype(f"datetime64[{unit}]"), pa.array(moment.astype(f"datetime64[{unit}]"))):
            assert (one(Date(cycles=("day",)), cells) == expected).all()
    assert (one(Date(cycles=("day",)), pl.Series(moment.astype("datetime64[ms]"))) == expected).all()
    day = one(Date(), pa.array([datetime.date(2024, 7, 1), None]))
    assert (one(Date(), pa.array([datetime.date(2024, 7, 1), None], pa.date64())) == day).all()
    far = [pa.array([2**31 - 1], pa.int32()).view(pa.date32()), pa.array([2**63 - 1]).view(pa.timestamp("s"))]
    assert all(one(Date(), cells)[0, 0] == 1 for cells in far)


def test_text_is_hashed_words():
    texts = ["red shoes", "blue shoes", None, "red shoes"]
    found = one(Text(64), texts)
    assert (found.toarray() == HashingVectorizer(n_features=64).transform([t or "" for t in texts]).toarray()).all()


def test_features_of_a_row_do_not_depend_on_its_neighbours_bit_for_bit():
    rng = np.random.default_rng(0)
    frame = shop(60)
    frame["note"] = rng.choice(["red shoes", "hat", None], len(frame))
    columns = Columns({**COLUMNS, "note": Text(16)})
    whole = columns.encode(frame).toarray()
    for _ in range(5):
        some = rng.permutation(len(frame))[: rng.integers(1, 40)]
        assert (columns.encode(frame.iloc[some]).toarray() == whole[some]).all()


def test_every_kind_of_table_gives_the_same():
    frame = shop(50)
    expected = COLUMNS.encode(frame)
    arrow = pa.Table.from_pandas(frame)
    tables = [
        *(pl.from_pandas(frame), pl.from_pandas(frame).lazy(), arrow, frame.astype(object)),
        {name: frame[name].tolist() for name in frame},
        {name: frame[name].to_numpy() for name in frame},
        frame.astype({"city": "category", "spend": "Float64"}),
        pa.table({name: arrow[name].dictionary_encode() if name == "city" else arrow[name] for name in frame}),
    ]
    for table in tables:
        assert (COLUMNS.encode(table) == expected).all()


def test_cells_decide_no_error_and_no_shape():
    """One row of anything, in columns of objects."""
    frame = shop(20).astype(object)
    width = COLUMNS.encode(frame).shape[1]
    for strange in (
        None,
        math.nan,
        math.inf,
        "x",
        "",
        b"\xff",
        10**400,
        [1],
        {},
        object(),
        pd.NaT,
        pd.NA,
        1j,
        "9" * 400,
    ):
        for name in COLUMNS:
            changed = frame.copy()
            changed.at[3, name] = strange
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                found = COLUMNS.encode(changed)
            assert found.shape == (len(frame), width)
            assert np.isfinite(found).all()
            assert (np.delete(found, 3, axis=0) == np.delete(COLUMNS.encode(frame), 3, axis=0)).all()


def test_types_that_cannot_be_meant_are_refused():
    with pytest.raises(TypeError, match="column 'c' must hold text, as its levels are, got numbers"):
        one(Category(["Paris"]), np.array([1.0]))
    with pytest.raises(TypeError, match="column 'c' must be numeric"):
        one(Number(0, 1), np.array(["2020-01-01"], dtype="datetime64[D]"))
    with pytest.raises(TypeError, match="must hold dates"):
        one(Date(), np.array([1.0]))
    with pytest.raises(ValueError, match="No column is named 'spend'"):
        COLUMNS.encode(shop(20).drop(columns="spend"))
    with pytest.raises(TypeError, match="a table with named columns"):
        COLUMNS.encode(np.zeros((3, 5)))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Number(), "must be its public range, low < high"),
        (lambda: Number(1, 0), "low < high"),
        (lambda: Number(0, math.inf), "finite"),
        (lambda: Number(0, 1, transform="log"), "log1p"),
        (lambda: Number(-1, 1, transform="sqrt"), "low must be >= 0 .* got -1"),
        (lambda: Number(0, 1, range="private"), "not both"),
        (lambda: Category("Paris"), "must be a list"),
        (lambda: Category(["a", "a"]), "differ"),
        (lambda: Category(["x" * 48 + "a", "x" * 48 + "b"]), "first 48 bytes"),
        (lambda: Category(max_levels=1), "max_levels must be .* got 1"),
        (lambda: Date("2030-01-01", "2020-01-01"), "must be dates, low < high"),
        (lambda: Date("soon"), "must be dates, low < high"),
        (lambda: Date(parts=("century",)), "parts of a Date"),
        (lambda: Date(parts=(), cycles=()), "no feature"),
        (lambda: Text(1), "n_features must be .* got 1"),
        (lambda: Columns(), "describe at least one"),
        (lambda: Columns(age=3), "descriptions"),
        (lambda: Boolean(fill=2), "True or False"),
    ],
)
def test_descriptions_that_make_no_sense_are_refused(make, words):
    with pytest.raises((TypeError, ValueError), match=words):
        make()


# ---------------------------------------------------------------- files


def test_descriptions_go_to_toml_and_back(tmp_path):
    columns = Columns(
        {
            'my "odd" columné\x7f': Number(-1.5, 2, fill=0.1, missing_indicator=True),
            "spend": Number(range="private", transform="sqrt", fill="private"),
            "city": Category(["Paris", 'L"yon', 3, True, 0.5], missing_indicator=True),
            "device": Category("private", max_levels=7, levels_per_user=2),
            "since": Date("2010-01-01", parts=("year",), cycles=()),
            "note": Text(32),
            "member": Boolean(True),
        }
    )
    assert Columns.read(columns.write(tmp_path / "columns.toml")) == columns
    assert Columns.of(columns.to_dict()) == columns


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[age", "must be TOML"),
        ("age = 3", "'age' of .* needs a type"),
        ('[age]\ntype = "numbers"', "one of number, boolean, category, date, text"),
        ('[age]\ntype = "number"\nhi = 3', "cannot have hi"),
        ('[age]\ntype = "number"', "low < high.*'age'"),
    ],
)
def test_files_that_are_wrong_say_where(tmp_path, text, words):
    path = tmp_path / "columns.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=words):
        Columns.read(path)


def test_a_first_description_is_made_of_names_and_types_only(tmp_path):
    frame = shop(30)
    frame["member"], frame["my col"] = True, 1
    other = frame.copy()
    for name in ("age", "spend", "my col"):
        other[name] = (other[name] * 0 + 77).astype(frame[name].dtype)
    other["city"] = "elsewhere"
    texts = []
    for number, table in enumerate((frame, other)):
        table.to_parquet(tmp_path / f"{number}.parquet")
        texts.append(first_description(open_table(tmp_path / f"{number}.parquet"), ("user", "bought")))
    assert texts[0] == texts[1]
    (tmp_path / "first.toml").write_text(texts[0])
    kinds = {name: column.type for name, column in Columns.read(tmp_path / "first.toml").items()}
    assert kinds == {
        "age": "number",
        "spend": "number",
        "city": "category",
        "device": "category",
        "since": "date",
        "member": "boolean",
        "my col": "number",
    }
    frame.to_csv(tmp_path / "shop.csv", index=False)
    untyped = tomllib.loads(first_description(open_table(tmp_path / "shop.csv")))
    assert set(untyped) == set(frame)
    assert {record["type"] for record in untyped.values()} == {""}  # for people to fill in: a guess would cost budget


# ---------------------------------------------------------------- models


@pytest.mark.filterwarnings("ignore::userdp.UtilityWarning")  # which comes or not by the noise
def test_the_example_of_the_docs(tmp_path):
    frame = shop(3000)
    columns = Columns(
        age=Number(0, 100, fill=40),
        spend=Number(0, 5000, transform="log1p", fill=0),
        city=Category(["Paris", "Lyon"]),
        device=Category("private"),
        since=Date(),
    )
    ledger = Ledger(Budget(1, 1e-6))
    model = LogisticRegression(epsilon=1, columns=columns, classes=CLASSES, ledger=ledger)
    model.fit(frame, frame["bought"], groups=frame["user"])
    names = list(model.feature_names_in_)
    assert names[:3] == ["age", "spend", "city=Lyon"]
    assert {"device=(other)"} < {name for name in names if name.startswith("device=")}
    assert set(model.columns_["device"].levels) == {"phone", "laptop"}  # the others are too rare
    assert model.coef_.shape == (1, len(names))
    assert not model.columns_.private
    assert dict(zip(names, model.coef_[0], strict=True))["city=Lyon"] > 0.3
    assert len(ledger.charges()) == 1
    assert model.privacy_.parts[0].step == "levels of device"
    assert model.privacy_.parts[0].fraction == pytest.approx(0.1, abs=0.01)
    assert model.score(frame, frame["bought"]) > 0.66
    loaded = userdp.load_model(userdp.save_model(model, tmp_path / "model.json"))
    assert loaded.to_dict() == model.to_dict()
    assert (loaded.predict_proba(pl.from_pandas(frame)) == model.predict_proba(frame)).all()
    assert clone(model).columns == columns
    page = html.unescape(userdp.report.report_html(model.to_dict()))
    assert "levels of device" in page
    assert "Number(low=0.0, high=100.0, fill=40.0)" in page
    assert "Category(levels='private')" in page


@pytest.mark.filterwarnings("ignore::userdp.UtilityWarning")  # noise hides much of so few users
def test_private_columns_are_learned_within_the_budget():
    frame = shop(6000)
    model = LogisticRegression(epsilon=2, columns=PRIVATE, classes=CLASSES, columns_fraction=0.3, insecure_seed=0)
    model.fit(frame, frame["bought"], groups=frame["user"])
    age, spend = model.columns_["age"], model.columns_["spend"]
    assert 10 <= age.low <= 33
    assert 70 <= age.high <= 130
    assert age.fill == pytest.approx(54, abs=10)
    assert 0 <= spend.low < 5
    assert 200 < spend.high < 2100
    assert model.columns_["city"].levels[0] == "Paris"  # the most frequent is the reference
    assert [part.step for part in model.privacy_.parts[:2]] == ["ranges of columns", "levels of city"]
    assert sum(part.fraction for part in model.privacy_.parts[:2]) == pytest.approx(0.3, abs=0.02)
    public = Columns({**COLUMNS, "city": Category(["Paris", "Lyon", "Nice"])})
    declared = LogisticRegression(epsilon=2, columns=public, classes=CLASSES, insecure_seed=0)
    declared.fit(frame, frame["bought"], groups=frame["user"])
    losses = [
        -np.mean(m.predict_log_proba(frame)[np.arange(len(frame)), (frame["bought"] == "yes").astype(int)])
        for m in (model, declared)
    ]
    assert losses[0] < losses[1] + 0.03


@pytest.mark.parametrize("delta", [None, 0])
@pytest.mark.parametrize("solver", ["auto", "accelerated"])
def test_everything_is_charged_once_and_fits(delta, solver):
    frame = shop(8000)
    columns = Columns(age=Number(range="private", fill="private"), since=Date(cycles=()))
    ledger = Ledger(Budget(8, 1e-6 if delta is None else 0))
    model = LogisticRegression(8, delta, columns=columns, classes=CLASSES, ledger=ledger, solver=solver)
    if delta == 0 and solver != "auto":
        with pytest.raises(BudgetExceeded, match="delta > 0 for this solver"):
            model.fit(frame, frame["bought"], groups=frame["user"])
        assert ledger.charges() == ()
        return
    model.fit(frame, frame["bought"], groups=frame["user"])
    assert len(ledger.charges()) == 1
    assert 0.9 * 8 < ledger.spent_epsilon() <= 8


@pytest.mark.filterwarnings("ignore::userdp.UtilityWarning")  # noise hides much of so few users
def test_text_and_private_columns_go_together():
    frame = shop(3000)
    frame["note"] = np.where(frame["bought"] == "yes", "loved it", "hated it")
    columns = Columns(note=Text(16), device=Category("private"), age=Number(range="private"))
    model = LogisticRegression(8, columns=columns, classes=CLASSES, insecure_seed=0)
    model.fit(frame, frame["bought"], groups=frame["user"])
    assert model.score(frame, frame["bought"]) > 0.95
    assert model.coef_.shape[1] == len(model.columns_.names)


def test_what_noise_would_hide_is_refused_before_anything_is_charged():
    frame = shop(150)
    ledger = Ledger(Budget(1, 1e-6))
    for columns in (Columns(age=Number(range="private")), Columns(city=Category("private"))):
        model = LogisticRegression(1, columns=columns, classes=CLASSES, ledger=ledger)
        with pytest.raises(BudgetExceeded, match=r"Declare them in the columns.*Nothing was spent"):
            model.fit(frame, frame["bought"], groups=frame["user"])
    for epsilon, delta in ((0.01, 1e-6), (1, 1e-16)):
        model = LogisticRegression(epsilon, delta, columns=Columns(city=Category()), classes=CLASSES, ledger=ledger)
        with pytest.raises(BudgetExceeded, match=r"Declare them in the columns.*Nothing was spent"):
            model.fit(frame, frame["bought"], groups=frame["user"])
    model = LogisticRegression(1, 0, columns=Columns(city=Category()), classes=CLASSES, ledger=ledger)
    with pytest.raises(BudgetExceeded, match="delta > 0 for levels"):
        model.fit(frame, frame["bought"], groups=frame["user"])
    assert ledger.charges() == ()


def test_the_target_and_the_users_are_no_features():
    frame = shop(50)
    for name in ("bought", "user"):
        model = LogisticRegression(columns=Columns({**COLUMNS, name: Category(["a"])}), classes=CLASSES)
        with pytest.raises(ValueError, match=f"columns without '{name}'"):
            model.fit(frame, frame["bought"], groups=frame["user"])


@pytest.mark.parametrize("parameters", [{"columns": {"age": 1}}, {"columns_fraction": 1.0}, {"columns_fraction": 0}])
def test_wrong_parameters_are_refused(parameters):
    frame = shop(50)
    with pytest.raises((TypeError, ValueError), match="columns"):
        LogisticRegression(classes=CLASSES, **{"columns": COLUMNS} | parameters).fit(
            frame, frame["bought"], groups=frame["user"]
        )


@pytest.mark.filterwarnings("ignore::userdp.UtilityWarning")  # noise hides much of so few users
def test_a_run_with_private_columns_goes_on_after_it_was_killed(tmp_path, monkeypatch):
    frame = shop(2000)
    columns = Columns(device=Category("private"), age=Number(range="private"))

    def model():
        journal = str(tmp_path / "run.journal")
        return LogisticRegression(
            4, columns=columns, classes=CLASSES, insecure_seed=3, execution=Execution(checkpoint=journal)
        )

    plain = model().set_params(execution=None).fit(frame, frame["bought"], groups=frame["user"])
    release, done = userdp.Curator.release, []

    def killed(*args):
        if len(done) == 4:
            raise KeyboardInterrupt
        done.append(args[1])
        return release(*args)

    monkeypatch.setattr(userdp.Curator, "release", killed)
    with pytest.raises(KeyboardInterrupt):
        model().fit(frame, frame["bought"], groups=frame["user"])
    monkeypatch.setattr(userdp.Curator, "release", release)
    resumed = model().fit(frame, frame["bought"], groups=frame["user"])
    assert resumed.columns_ == plain.columns_
    assert (resumed.coef_ == plain.coef_).all()


# ---------------------------------------------------------------- what is learned of a column


def test_ranges_are_quantiles_of_what_is_clear_of_noise():
    masses = np.zeros(Histograms.N_BINS)
    place = np.searchsorted(Histograms.EDGES, 20.0, side="right")
    masses[place], masses[place + 1], masses[-1] = 0.5, 0.5, 0.003  # 16 to 64, and noise
    found = ranged(Number(range="private", fill="private"), masses, 0.004)
    assert (found.low, found.fill, found.high) == pytest.approx((16.2, 32, 63.7), abs=0.1)
    assert found.range is None
    low = ranged(Number(range="private", transform="log1p"), np.eye(Histograms.N_BINS)[3], 0.004)
    assert low.low == 0 < low.high
    assert ranged(Number(0, 9, fill="private"), masses, 0.004).high == 9
    nothing = ranged(Number(range="private"), np.full(Histograms.N_BINS, 1e-9), 1.0)
    assert nothing.low < nothing.high


def test_what_columns_learn_depends_on_releases_alone():
    """Two tables of which nothing is alike, one curator's answers: the same columns, to the last digit."""
    learned = []
    for far in (1.0, 1e6):
        frame, rng = shop(2000, seed=int(far)), np.random.default_rng(0)
        frame["age"], frame["spend"] = frame["age"] * far, frame["spend"] / far
        if far > 1:
            frame["city"] = frame["city"].map(lambda city: f"not {city}", na_action="ignore")
        users = userdp.UserData.from_arrays(np.arange(len(frame))[:, None] * 1.0, None, frame["user"])
        preparation = Preparation(PRIVATE, PRIVATE.cells(frame), users, True, 0.2)
        steps, _ = preparation._steps(Budget(4.0, 1e-6))
        levels = packed(labels("city", ["Oslo", "Rome", "Oslo"]))
        released = {
            "ranges of columns": rng.random(2 * Histograms.N_BINS) / Histograms.N_BINS,
            "levels of city": np.hstack([np.ones((3, 1)), levels]).ravel(),
        }
        assert {step.label for step in steps} == set(released)
        curator = SimpleNamespace(release=lambda label, *_, released=released: released[label].copy())
        data = preparation.prepared(curator, userdp.Plan(2000, tuple(steps)))
        learned.append((preparation.learned.to_dict(), preparation.learned.names, data.n_features))
    assert learned[0] == learned[1]
    assert learned[0][0]["city"]["levels"] == ["Oslo", "Rome"]


def test_levels_survive_being_packed():
    texts = ["Paris", "Île-de-France", "x" * 60, "日本" * 20, "a\0b", "\ud800"]
    found = texts_of_words(packed(labels("c", texts)))
    assert found == [cut(text) for text in texts]
    assert max(len(text.encode()) for text in found) <= 48
    assert np.isnan(packed(labels("c", [None, ""]))).all()
