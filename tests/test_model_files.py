"""Model files: whole or not at all, refused if damaged, and never executed."""

import json
from dataclasses import asdict

import numpy as np
import pytest

from userdp import LinearRegression, LogisticRegression, load_model, save_model
from userdp.data.source import Source
from userdp.models.files import model_of


@pytest.fixture(scope="module")
def record():
    rng = np.random.default_rng(0)
    users, X = np.repeat(np.arange(1000), 4), rng.uniform(-1, 1, (4000, 2))
    model = LogisticRegression(8.0, 1e-5, max_rows_per_user=4, classes=[0, 1], insecure_seed=1)
    return model.fit(X, X[:, 0] > X[:, 1], groups=users).to_dict()


def test_files_are_json_that_says_what_it_is(record, tmp_path):
    model = model_of(record)
    path = save_model(model, tmp_path / "model.json")
    read = json.loads(path.read_text())
    assert read == record
    assert read["format"] == "userdp model 1"
    assert load_model(path).predict([[1.0, -1.0]]) == [1]
    assert "ledger" not in read["parameters"]
    assert read["source"] == asdict(Source())
    del read["source"], read["parameters"]["purpose"]  # as in files of 0.1
    assert model_of(read).to_dict()["source"] == record["source"]


@pytest.mark.parametrize(
    "change",
    [
        {"format": "userdp model 2"},
        {"source": {"data": 3}},
        {"source": {"other": "name"}},
        {"estimator": "os.system"},
        {"estimator": ["LogisticRegression"]},
        {"parameters": {"epsilon": 1.0, "surprise": 1}},
        {"parameters": None},
        {"coef": [[1.0]]},
        {"coef": [[1.0, "a"]]},
        {"coef": [[1.0, float("nan")]]},
        {"intercept": []},
        {"intercept": [float("inf")]},
        {"classes": None},
        {"classes": [1]},
        {"classes": [1, 1]},
        {"classes": {"a": 1}},
        {"features": ["only one"]},
        {"n_features": -1},
        {"n_features": "2"},
        {"privacy": {}},
        {"privacy": None},
        {"phases": [3]},
        {"bound": "low"},
        {"n_gradients": None},
        {"halted": "false"},
        {"n_features": 2.0},
        {"classes": [[1, 1], [2, 2]]},
        {"classes": [1, 0]},
        {"parameters": {"ledger": "somebody.db"}},
        {"bound": float("inf")},
    ],
    ids=str,
)
def test_damaged_records_are_refused(record, change):
    with pytest.raises(ValueError, match="Expected the record to be a"):
        model_of(record | change)
    for missing in ("format", "coef", "privacy", "created"):
        with pytest.raises(ValueError, match="Expected"):
            model_of({k: v for k, v in record.items() if k != missing})


@pytest.mark.parametrize(
    "change",
    [
        {"epsilon": -1},
        {"epsilon": "abc"},
        {"unit": "galaxy"},
        {"private": True},
        {"insecure_seed": None},
        {"n_users": 1.5},
    ],
    ids=str,
)
def test_what_is_said_of_privacy_is_checked(record, change):
    with pytest.raises(ValueError, match="damaged"):
        model_of(record | {"privacy": record["privacy"] | change})


@pytest.mark.parametrize("text", ["NaN", "1" * 5000])
def test_numbers_that_are_none(record, text, tmp_path):
    path = tmp_path / "model.json"
    path.write_text(json.dumps(record | {"bound": "here"}).replace('"here"', text))
    with pytest.raises(ValueError, match="Expected"):
        load_model(path)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '"x"', "[" * 100_000, "\x00"])
def test_files_that_are_no_models(text, tmp_path):
    path = tmp_path / "model.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="Expected"):
        load_model(path)


def test_missing_files_and_folders(record, tmp_path):
    with pytest.raises(FileNotFoundError, match="Expected a model file"):
        load_model(tmp_path / "none.json")
    with pytest.raises((FileNotFoundError, ValueError), match="Expected"):
        load_model(tmp_path)
    with pytest.raises(ValueError, match="choose another"):
        save_model(model_of(record), tmp_path / "no" / "such" / "file")
    with pytest.raises(TypeError, match="got str"):
        save_model("model", tmp_path / "model.json")


def test_what_json_cannot_hold_is_refused_and_leaves_nothing(record, tmp_path):
    model = model_of(record)
    model.facts_ = model.facts_ | {"parameters": {"classes": [object(), 1]}}
    with pytest.raises(TypeError, match="JSON knows"):
        save_model(model, tmp_path / "model.json")
    assert list(tmp_path.iterdir()) == []


def test_a_regressor_keeps_its_range(tmp_path):
    rng = np.random.default_rng(0)
    users, X = np.repeat(np.arange(1000), 4), rng.uniform(-1, 1, (4000, 2))
    model = LinearRegression(8.0, 1e-5, max_rows_per_user=4, target_range=(-3, 3), insecure_seed=1)
    model.fit(X, X[:, 0], groups=users)
    loaded = load_model(save_model(model, tmp_path / "model.json"))
    assert loaded.target_range == (-3, 3)
    assert (loaded.predict(X) == model.predict(X)).all()
