"""PrivateSearchCV: scikit-learn's interface, one charge for the whole search, refusals before it."""

import math
import pickle
import warnings
from copy import deepcopy
from datetime import datetime
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_matrix
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, PolynomialFeatures

import userdp
from userdp import (
    Budget,
    BudgetExceeded,
    Execution,
    Ledger,
    LinearRegression,
    LinearSVC,
    LogisticRegression,
    PoissonRegressor,
    PrivateStandardScaler,
    QuantileRegressor,
    make_pipeline,
)
from userdp import model_selection as searching
from userdp.model_selection import PrivateSearchCV, SelectFeatures
from userdp.models.files import load_model, save_model
from userdp.models.pipelines import fit_on_nobody, transformed

N_USERS, ROWS = 3000, 2
SEEDED = {"max_rows_per_user": ROWS, "insecure_seed": 3}
GRID = {"l2": [0.0, 3.0]}


@pytest.fixture(scope="module")
def people():
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(N_USERS), ROWS)
    X = rng.uniform(-1, 1, (len(users), 3))
    return X, X[:, 0] - X[:, 1] + rng.normal(0, 0.3, len(users)) > 0, users


@pytest.fixture(scope="module")
def split(people):
    X, y, users = people
    return PrivateSearchCV(LogisticRegression(**SEEDED), GRID, 8.0).fit(X, y, groups=users)


def test_the_better_candidate_is_found_and_predicts(split, people):
    X, y, _ = people
    assert split.best_params_ == {"l2": 0.0}
    assert split.best_index_ == 0
    assert split.score(X, y) > 0.85
    assert split.predict(X).tolist() == split.best_estimator_.predict(X).tolist()
    assert split.predict_proba(X).shape == (len(X), 2)
    assert split.predict_log_proba(X).shape == (len(X), 2)
    assert split.decision_function(X).shape == (len(X),)
    assert split.classes_.tolist() == [False, True]
    assert is_classifier(split)


def test_a_split_tells_all_candidates_scores_and_models(split):
    results = split.cv_results_
    assert results["params"] == [{"l2": 0.0}, {"l2": 3.0}]
    assert results["rank_test_score"].tolist() == [1, 2]
    assert pd.DataFrame(results)["param_l2"].tolist() == [0.0, 3.0]
    assert results["mean_test_score"][0] == split.best_score_ > results["mean_test_score"][1]
    assert -0.2 < split.best_score_ < -0.05  # Brier scores
    assert 0 < results["noise_test_score"][0] < 0.01
    level = split.plan_.level_noise  # what all scores have in common
    assert results["std_test_score"] == pytest.approx(np.hypot(results["noise_test_score"], level))
    assert level > 2 * results["noise_test_score"][0]
    assert [model.l2 for model in split.candidates_] == [0.0, 3.0]


def test_nothing_else_is_kept(split):
    kept = {name for name in vars(split) if name.endswith("_")}
    assert kept == {
        *("best_estimator_", "best_index_", "best_params_", "best_score_", "candidates_", "cv_results_"),
        *("plan_", "privacy_"),
    }


def test_models_tell_of_the_whole_search_and_not_of_their_part(split, tmp_path):
    search = split
    for model in (search.best_estimator_, *search.candidates_):
        assert model.privacy_ is search.privacy_
        assert model.result_.privacy is search.privacy_
        assert (model.epsilon, model.ledger, model.insecure_seed) == (search.epsilon, None, 3)
        assert model.facts_["parameters"]["epsilon"] == search.epsilon
    assert search.privacy_.epsilon == search.epsilon
    assert search.privacy_.n_users == N_USERS
    assert "the whole search" in str(search.privacy_)
    assert "NOT PRIVATE" in search.privacy_.warning
    save_model(search, tmp_path / "model.json")
    read = load_model(tmp_path / "model.json")
    assert read.privacy_.covers == search.privacy_.covers
    not_private = SimpleNamespace(best_estimator_=search.best_estimator_)  # as scikit-learn's searches have it
    with pytest.raises(TypeError, match="Expected a fitted userdp estimator"):
        save_model(not_private, tmp_path / "other.json")
    assert pickle.loads(pickle.dumps(search.best_estimator_)).coef_.tolist() == search.best_estimator_.coef_.tolist()


class Clock:
    """Always at the turn of the century."""

    @staticmethod
    def now(zone):
        return datetime(2000, 1, 1, tzinfo=zone)


@pytest.mark.parametrize("refit", [True, False])
def test_when_a_run_was_made_is_not_told(people, monkeypatch, refit):
    """The day on which the search began is told."""
    X, y, users = people
    monkeypatch.setattr(searching, "datetime", Clock)
    search = PrivateSearchCV(LogisticRegression(**SEEDED), GRID, 16.0, refit=refit).fit(X, y, groups=users)
    assert {model.facts_["created"] for model in (search.best_estimator_, *search.candidates_)} == {"2000-01-01"}


def test_one_charge_for_all_of_it(people):
    X, y, users = people
    ledger = Ledger(Budget(8.0, 1e-6))
    search = PrivateSearchCV(LogisticRegression(max_rows_per_user=ROWS, purpose="a trial"), GRID, 8.0, ledger=ledger)
    search.fit(
        pd.DataFrame(X, columns=list("abc")), pd.Series(y, name="bought"), groups=pd.Series(users, name="person")
    )
    (charge,) = ledger.charges()
    assert charge.purpose == "a trial; PrivateSearchCV.fit, 2 candidates; target bought, user column person"
    assert charge.private
    assert [step.label for step in charge.steps] == [part.step for part in search.privacy_.parts]
    assert ledger.spent_epsilon() == pytest.approx(8.0, rel=1e-4)
    assert search.best_estimator_.feature_names_in_.tolist() == ["a", "b", "c"]
    with pytest.raises(BudgetExceeded, match="With what was spent before"):
        search.fit(X, y, groups=users)


def test_it_is_cloned_and_set_like_any_estimator():
    search = PrivateSearchCV(LogisticRegression(l2=1.0), GRID, 2.0, held_out=0.3)
    copy = clone(search)
    assert copy.get_params()["estimator__l2"] == 1.0
    assert (copy.epsilon, copy.held_out, copy.param_grid) == (2.0, 0.3, GRID)
    assert copy.set_params(epsilon=1.0, estimator__l2=2.0).estimator.l2 == 2.0
    with pytest.raises(NotFittedError):
        copy.predict(np.zeros((1, 3)))
    assert hasattr(copy, "predict_proba")
    assert not hasattr(PrivateSearchCV(LinearSVC(), GRID), "predict_proba")
    assert userdp.model_selection.PrivateSearchCV is PrivateSearchCV


def test_a_search_is_planned_from_public_numbers_alone():
    search = PrivateSearchCV(LogisticRegression(), {"l2": [0.0, 0.1, 1.0]}, 1.0)
    assert search.plan(5000).n_candidates == 3
    assert search.plan(5000).refit_mu_squared > 0
    assert search.set_params(refit=False).plan(5000).refit_mu_squared == 0


def refused(people, error=ValueError, match="", grid=GRID, estimator=None, groups="users", **parameters):
    X, y, users = people
    ledger = Ledger(Budget(8.0, 1e-6))
    settings = {"epsilon": 8.0, "ledger": ledger} | parameters
    search = PrivateSearchCV(estimator or LogisticRegression(max_rows_per_user=ROWS), grid, **settings)
    with pytest.raises(error, match=match):
        search.fit(X, y, groups=users if groups == "users" else groups)
    assert ledger.charges() == ()


@pytest.mark.parametrize(
    "name", ["epsilon", "delta", "ledger", "execution", "insecure_seed", "privacy_unit", "max_rows_per_user"]
)
def test_what_is_one_for_all_candidates_is_not_tried(people, name):
    refused(people, match=f"param_grid without '{name}'", grid={name: [1.0, 2.0]})


def test_refusals_come_before_anything_is_charged(people):
    refused(people, match="Expected groups, the user id of each row", groups=None)
    refused(people, match="at least 2 candidates", grid={"l2": [1.0]})
    refused(people, BudgetExceeded, "delta > 0 for a search", delta=0.0)
    refused(people, BudgetExceeded, "Gaussian noise alone", grid={"solver": ["whitened-clip", "phased-sgd"]})
    refused(people, match="without ledger", estimator=LogisticRegression(ledger=Ledger(Budget(1.0, 1e-6))))
    refused(people, match="unprotected_checks", estimator=LogisticRegression(unprotected_checks=True))
    refused(people, TypeError, "a model of userdp", estimator=PolynomialFeatures(), grid={"degree": [1, 2]})
    refused(people, match="scoring='r2'", scoring="r2")
    refused(people, match="held_out=1", held_out=1.0)
    refused(people, match="Invalid parameter", grid={"no_such": [1, 2]})
    refused(people, match="without evaluate", estimator=LogisticRegression(evaluate=0.1))
    for scaler in (PrivateStandardScaler(), Pipeline([("inner", PrivateStandardScaler())])):
        scaled = make_pipeline(scaler, LogisticRegression())
        refused(people, match="a private scaler", estimator=scaled, grid={"logisticregression__l2": [0.0, 1.0]})


@pytest.mark.parametrize(
    ("name", "kind", "values"),
    [
        ("target_range", LinearRegression, [(-1, 1), (-100, 100)]),
        ("classes", LogisticRegression, [[0, 1], [0, 1, 2]]),
        ("max_count", PoissonRegressor, [5, 50]),
        ("execution", LogisticRegression, [None, Execution(engine="ray")]),
        ("allow_weak", LogisticRegression, [False, True]),
        ("epsilon", LogisticRegression, [1.0, 2.0]),
    ],
)
def test_whole_candidates_have_in_common_what_is_not_tried(people, name, kind, values):
    models = [kind(**{name: value}) for value in values]
    grid = {"model": models}
    refused(people, match=f"of the same {name}", estimator=Pipeline([("model", models[0])]), grid=grid)
    refused(
        people,
        match="same kind of thing",
        estimator=Pipeline([("model", LinearSVC())]),
        grid={"model": [LinearSVC(), LogisticRegression()]},
    )


CATEGORIES = OneHotEncoder(categories=[["0", "1", "2"]])


def failing(kind, X):
    """Rows, those with a cell of the last user on which the step raises, and the step."""
    if kind == "missing":
        rows, step = X.copy(), PolynomialFeatures(2)
        bad = rows.copy()
        bad[-1, 0] = math.nan
    else:
        rows, step = np.array(["0", "1", "2"], dtype=object)[np.digitize(X[:, :1], [-0.3, 0.3])], CATEGORIES
        bad = rows.copy()
        bad[-1, 0] = "secret-name-of-bob"
    return rows, bad, step


@pytest.mark.filterwarnings("ignore::userdp.UtilityWarning")  # noise hides much of so few users
@pytest.mark.parametrize("refit", [True, False])
@pytest.mark.parametrize("kind", ["missing", "category"])
def test_a_cell_that_steps_refuse_is_its_user_s_alone(people, kind, refit):
    X, y, users = people
    rows, bad, step = failing(kind, X)
    model = make_pipeline(step, LogisticRegression(**SEEDED))
    grid = {"logisticregression__l2": [0.0, 3.0]}
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        found = [PrivateSearchCV(model, grid, 8.0, refit=refit).fit(x, y, groups=users) for x in (rows, bad)]
    assert found[0].best_params_ == found[1].best_params_
    assert found[1].best_score_ == pytest.approx(found[0].best_score_, abs=0.01)
    assert found[1].predict(rows).tolist() == found[1].best_estimator_.predict(rows).tolist()


@pytest.mark.parametrize("kind", ["missing", "category"])
@pytest.mark.parametrize("table", [False, True])
def test_features_are_of_a_person_s_own_rows_to_the_last_bit(people, kind, table):
    X, _, users = (part[: 40 * ROWS] for part in people)
    found = []
    *both, step = failing(kind, X)
    for rows in both:
        model = clone(make_pipeline(step, LogisticRegression()))
        found.append(searching._prepared(model, pd.DataFrame(rows) if table else rows, users))
    dense = [made.toarray() if hasattr(made, "toarray") else made for made in found]
    assert dense[0].dtype == dense[1].dtype
    assert np.isfinite(dense[0]).all()
    assert dense[0][:-ROWS].tobytes() == dense[1][:-ROWS].tobytes()
    assert np.isnan(dense[1][-ROWS:]).any(axis=1).all()  # of which the estimators make an outlier


def test_steps_are_fitted_on_nobody_s_data(people):
    seen = []

    class Watched(SelectFeatures):
        def fit(self, X, y=None):
            seen.append(np.array(X))
            return self

    X, _, users = people
    searching._prepared(
        Pipeline([("a", Watched()), ("b", PolynomialFeatures(2)), ("c", LogisticRegression())]), X, users
    )
    assert [rows.tolist() for rows in seen] == [[[0.0] * 3]]


def test_a_draft_tells_nothing_of_what_failed(people, monkeypatch):
    def fails(*_, **__):
        raise KeyError("secret-name-of-bob")

    monkeypatch.setattr(LogisticRegression, "_weighed", fails)
    X, y, users = people
    search = PrivateSearchCV(LogisticRegression(**SEEDED), GRID, 8.0)
    with pytest.raises(RuntimeError, match="a check failed") as told:
        search.fit(X, y, groups=users)
    assert told.value.__context__ is None


def test_too_many_candidates_are_refused_by_public_numbers(people):
    many = {"l2": np.geomspace(1e-3, 1.0, 900).tolist()}
    refused(people, BudgetExceeded, r"Expected room for 900 candidates: .*Try fewer candidates", grid=many, epsilon=1.0)
    few = tuple(part[: 60 * ROWS] for part in people)
    refused(few, BudgetExceeded, "held-out users would be lost in noise", epsilon=0.5)


def test_rows_may_be_the_unit(people):
    X, y, _ = people
    model = LogisticRegression(privacy_unit="row", insecure_seed=1)
    search = PrivateSearchCV(model, GRID, 8.0, refit=False).fit(X, y)
    assert search.privacy_.unit == "row"
    assert search.privacy_.n_users == len(X)
    assert search.best_estimator_ is search.candidates_[search.best_index_]


@pytest.mark.parametrize("kind", ["array", "table"])
def test_sets_of_features_are_chosen_from(people, kind):
    X, y, users = people
    names = list("abc") if kind == "table" else [0, 1, 2]
    X = X if kind == "array" else pd.DataFrame(X, columns=list("abc"))
    grid = {"selectfeatures__features": [names[2:], names[:2]]}
    search = PrivateSearchCV(make_pipeline(SelectFeatures(), LogisticRegression(**SEEDED)), grid, 8.0)
    search.fit(X, y, groups=users)
    assert search.best_params_ == {"selectfeatures__features": names[:2]}
    assert search.best_estimator_[-1].coef_.shape == (1, 2)
    assert search.score(X, y) > 0.85
    assert search.best_estimator_[-1].privacy_ is search.privacy_


MODELS = {
    "linear": (LinearRegression(target_range=(-3, 3), **SEEDED), "neg_mean_squared_error", 36.0),
    "absolute": (LinearRegression(target_range=(-3, 3), **SEEDED), "neg_mean_absolute_error", 6.0),
    "quantile": (QuantileRegressor(target_range=(-3, 3), quantile=0.7, **SEEDED), "neg_mean_pinball_loss", 6.0),
    "poisson": (PoissonRegressor(max_count=20, **SEEDED), "neg_mean_squared_error", 400.0),
    "svc": (LinearSVC(classes=[0, 1], **SEEDED), "accuracy", 1.0),
    "classes": (LogisticRegression(classes=[0, 1, 2], **SEEDED), "neg_brier_score", 1.0),
}


def targets_of(name, X):
    rng = np.random.default_rng(1)
    signal = X[:, 0] - X[:, 1]
    if name == "poisson":
        return rng.poisson(np.exp(signal))
    if name in ("svc", "classes"):
        return np.digitize(signal, [0.0] if name == "svc" else [-0.5, 0.5])
    return signal + rng.normal(0, 0.3, len(X))


@pytest.mark.parametrize("name", MODELS)
def test_scores_are_people_s_mean_losses_in_units_of_their_targets(people, name):
    X, _, users = people
    y = targets_of(name, X)
    model, scoring, unit = MODELS[name]
    fitted = deepcopy(model).set_params(epsilon=8.0).fit(X, y, groups=users)
    data = searching._People(X, y, users, True)
    losses = data.losses([fitted], np.arange(N_USERS), scoring)[:, 0]
    told = fitted.predict(X)
    if scoring == "accuracy":
        rows = (told != y).astype(float)
    elif name == "classes":
        rows = ((fitted.predict_proba(X) - np.eye(3)[y]) ** 2).sum(axis=1) / 2
    else:
        low, high = (0, 20) if name == "poisson" else (-3, 3)
        errors = np.clip(y, low, high) - np.clip(told, low, high)
        rows = np.abs(errors) if scoring == "neg_mean_absolute_error" else errors**2
        rows = np.maximum(0.7 * errors, -0.3 * errors) if name == "quantile" else rows
        rows = rows / unit
    expected = np.bincount(users, rows) / ROWS
    assert losses == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert losses.min() >= 0
    assert losses.max() <= 1
    search = PrivateSearchCV(model, GRID, scoring=None if name != "absolute" else scoring)
    assert search._scoring(model) == scoring
    scores, noise = searching._as_scores(np.array([0.25]), 0.01, scoring, fitted)
    assert scores[0] == (0.75 if scoring == "accuracy" else -0.25 * unit)
    assert noise == 0.01 * unit


def test_sparse_rows_are_scored_as_dense_ones(split, people):
    X, y, users = people
    some = np.arange(100, 300)
    dense, sparse = (
        searching._People(rows, y, users, True).losses([split.best_estimator_], some, "neg_brier_score")
        for rows in (X, csr_matrix(X))
    )
    assert sparse == pytest.approx(dense, rel=1e-12)


def hostile(X, y, users):
    """The first user's rows are of any kind, and there are more of them."""
    bad = np.array([[math.nan, 0, 0], [math.inf, -math.inf, 0], [1e308, 1e308, -1e308], [-1e308, 0, 0]])
    return np.vstack([bad, X[ROWS:]]), np.append([0, 0, 1, 1], y[ROWS:]), np.append([0] * 4, users[ROWS:])


@pytest.mark.parametrize(
    "steps",
    [(), (SelectFeatures([0, 1]),), (PolynomialFeatures(2, include_bias=False),), (FunctionTransformer(np.sqrt),)],
)
def test_a_person_s_losses_are_of_its_own_rows_to_the_last_bit(people, steps):
    """Whatever others have: PolynomialFeatures raises on missing values, and matrices multiply in blocks."""
    X, y, users = (part[: 301 * ROWS] for part in people)
    y = y.astype(int)
    model = make_pipeline(*steps, LogisticRegression(classes=[0, 1], **SEEDED))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = searching._fitted(
            model, searching._People(np.abs(X), y, users, True), np.arange(301), Ledger(Budget(8.0, 1e-6)), 1
        )
        found = [
            searching._People(*data, True).losses([fitted], np.arange(301), "neg_brier_score")
            for data in ((np.abs(X), y, users), hostile(np.abs(X), y, users))
        ]
    assert found[0][1:].tobytes() == found[1][1:].tobytes()
    assert 0 <= found[1][0, 0] <= 1


def test_rows_on_which_steps_fail_change_no_bit_of_the_others():
    """A product of matrices rounds by the number of rows."""
    rng = np.random.default_rng(0)
    rows, own, matrix = rng.normal(size=(201, 37)), np.arange(201) // 3, rng.normal(size=(37, 37))

    def multiplied(some):
        if not np.isfinite(some).all():
            raise ValueError("a step that quotes a cell")
        return some @ matrix

    steps, hostile = Pipeline([("product", FunctionTransformer(multiplied))]), rows.copy()
    hostile[7:9] = np.nan
    made = fit_on_nobody(steps, rows)
    before, after = (transformed(steps, version, own, made) for version in (rows, hostile))
    assert np.isnan(after[6:9]).all()
    assert np.delete(after, [6, 7, 8], axis=0).tobytes() == np.delete(before, [6, 7, 8], axis=0).tobytes()


def test_warnings_of_runs_are_not_shown_but_those_of_the_result_are(people):
    X, y, users = (part[: 200 * ROWS] for part in people)
    search = PrivateSearchCV(LogisticRegression(delta=0.01, **SEEDED), GRID, 1.0, 0.01)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        search.fit(X, y, groups=users)
    assert len([one for one in shown if "delta=0.01 is not below" in str(one.message)]) == 1
    assert len({str(one.message) for one in shown}) == len(shown)  # one fit's


def test_one_bar_shows_the_whole_search(people, monkeypatch, capsys):
    X, y, users = people
    told = []
    monkeypatch.setattr(
        searching,
        "select",
        lambda *a, select=searching.select, **k: select(*a, **k | {"tell": lambda *t: told.append(t)}),
    )
    PrivateSearchCV(LogisticRegression(execution=Execution(progress=True), **SEEDED), GRID, 16.0).fit(
        X, y, groups=users
    )
    assert told == [("candidates", 0, 2), ("candidates", 1, 2), ("differences of scores", 0, 1), ("refit", 0, 1)]
    assert capsys.readouterr().err == ""
