"""Several fits on the same people without a common ledger are warned of, once a search, with the remedy."""

import subprocess
import sys
import warnings

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.experimental import enable_halving_search_cv  # noqa: F401 - importing it is what enables them
from sklearn.model_selection import (
    FixedThresholdClassifier,
    GridSearchCV,
    HalvingGridSearchCV,
    RandomizedSearchCV,
    cross_val_predict,
    cross_val_score,
    cross_validate,
    learning_curve,
    permutation_test_score,
    validation_curve,
)
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline

from userdp import Budget, Ledger, LogisticRegression, PrivacyWarning, PrivateStandardScaler, PublicScaler

GRID = {"row_norm": [2.0, 3.0]}


@pytest.fixture(autouse=True)
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (600, 2))
    return X, (X[:, 0] > 0).astype(int)


def model(**parameters):
    settings = {"epsilon": 8.0, "classes": [0, 1], "privacy_unit": "row", "insecure_seed": 0} | parameters
    return LogisticRegression(**settings)


def searches(X, y):
    """Everything in scikit-learn that searches or validates, as a function of the estimator."""
    return {
        "GridSearchCV": lambda one: GridSearchCV(one, GRID, cv=2).fit(X, y),
        "RandomizedSearchCV": lambda one: RandomizedSearchCV(one, GRID, n_iter=2, cv=2).fit(X, y),
        "HalvingGridSearchCV": lambda one: HalvingGridSearchCV(one, GRID, cv=2, min_resources=300).fit(X, y),
        "cross_val_score": lambda one: cross_val_score(one, X, y, cv=3),
        "cross_validate": lambda one: cross_validate(one, X, y, cv=3),
        "cross_val_predict": lambda one: cross_val_predict(one, X, y, cv=3),
        "learning_curve": lambda one: learning_curve(one, X, y, cv=2, train_sizes=[0.5, 1.0]),
        "validation_curve": lambda one: validation_curve(one, X, y, param_name="row_norm", param_range=[2.0], cv=2),
        "permutation_test_score": lambda one: permutation_test_score(one, X, y, cv=2, n_permutations=2),
        "CalibratedClassifierCV": lambda one: CalibratedClassifierCV(one, cv=2).fit(X, y),
        "OneVsRestClassifier": lambda one: OneVsRestClassifier(one).fit(X, (y + (X[:, 1] > 0)).astype(int)),
    }


def said(do, *arguments):
    """Messages of `PrivacyWarning`, with every one shown."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        do(*arguments)
    return [warning for warning in caught if issubclass(warning.category, PrivacyWarning)]


@pytest.mark.parametrize("name", searches(None, None))
def test_a_search_without_a_ledger_warns_once_where_it_was_called(rows, name):
    (found,) = said(searches(*rows)[name], model())
    assert f"by {name} of scikit-learn" in str(found.message)
    assert "Give all fits one ledger" in str(found.message)
    assert "fix hyperparameters" in str(found.message)
    assert found.filename == __file__


SCRIPT = """
import numpy as np
from sklearn.model_selection import cross_val_score
from userdp import LogisticRegression

X = np.linspace(-1, 1, 300)[:, None]
model = LogisticRegression(8.0, classes=[0, 1], privacy_unit="row", solver="phased-sgd", insecure_seed=0)
cross_val_score(model, X, (X[:, 0] > 0).astype(int), cv=2)
"""


def test_a_script_is_told_its_own_line(tmp_path):
    """Its line is in the outermost frame; a warning of scikit-learn's line would be shown for the first search only."""
    script = tmp_path / "search.py"
    script.write_text(SCRIPT)
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert f"{script}:8: PrivacyWarning" in ran.stderr


@pytest.mark.parametrize("name", searches(None, None))
def test_a_common_ledger_is_all_that_is_asked_for(rows, name):
    ledger = Ledger(Budget(1e4, 1e-3))
    assert said(searches(*rows)[name], model(ledger=ledger, insecure_seed=None, epsilon=4.0)) == []
    assert len(ledger.charges()) > 1


def test_each_search_warns_anew_and_a_search_in_a_search_once(rows):
    one = model()
    for _ in range(2):
        assert len(said(cross_val_score, one, *rows)) == 1
        assert len(said(GridSearchCV(one, GRID, cv=2).fit, *rows)) == 1
    assert len(said(cross_val_score, GridSearchCV(one, GRID, cv=2), *rows)) == 1


@pytest.mark.parametrize("name", ["GridSearchCV", "cross_val_score"])
def test_other_processes_do_not_warn_again(rows, name, capfd):
    X, y = rows
    many = {
        "GridSearchCV": lambda: GridSearchCV(model(), GRID, cv=2, n_jobs=2).fit(X, y),
        "cross_val_score": lambda: cross_val_score(model(), X, y, cv=4, n_jobs=2),
    }
    assert len(said(many[name])) == 1
    assert "PrivacyWarning" not in capfd.readouterr().err


def test_steps_of_a_pipeline_are_seen_in_a_search_and_a_pipeline_alone_is_none(rows):
    scaler = PrivateStandardScaler(8.0, low=-1, high=1, privacy_unit="row", insecure_seed=0)
    pipeline = make_pipeline(scaler, model())
    assert said(pipeline.fit, *rows) == []
    assert len(said(cross_validate, pipeline, *rows)) == 1
    ledger = Ledger(Budget(1e4, 1e-3))
    half = make_pipeline(scaler, model(ledger=ledger))
    (found,) = said(cross_validate, half, *rows)
    assert "PrivateStandardScaler" in str(found.message)


def test_one_fit_is_no_search(rows):
    X, y = rows
    assert said(model().fit, X, y) == []
    assert said(clone, model()) == []
    assert said(make_pipeline(PublicScaler(-1, 1), model()).fit, X, y) == []
    assert said(FixedThresholdClassifier(model()).fit, X, y) == []
