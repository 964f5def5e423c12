"""Whatever clones a model to fit it is noticed: its statement covers that fit alone, with a ledger or without."""

import copy
import functools
import pickle
import types
import warnings

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import BaggingClassifier, StackingClassifier, VotingClassifier
from sklearn.experimental import (
    enable_halving_search_cv,  # noqa: F401 - importing it is what enables them
    enable_iterative_imputer,  # noqa: F401
)
from sklearn.feature_selection import RFE, SequentialFeatureSelector
from sklearn.impute import IterativeImputer
from sklearn.linear_model import RANSACRegressor
from sklearn.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    RandomizedSearchCV,
    TunedThresholdClassifierCV,
    cross_val_predict,
    cross_val_score,
    cross_validate,
    learning_curve,
    permutation_test_score,
    validation_curve,
)
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import ClassifierChain
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.semi_supervised import SelfTrainingClassifier

from userdp import (
    Budget,
    Ledger,
    LinearRegression,
    LogisticRegression,
    PrivacyWarning,
    PrivateStandardScaler,
    PublicScaler,
    Solver,
)
from userdp.model_selection import PrivateSearchCV

GRID = {"solver": [Solver("phased-sgd", row_norm=norm) for norm in (2.0, 3.0)]}


@pytest.fixture(autouse=True)
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (600, 2))
    return X, (X[:, 0] > 0).astype(int)


def model(kind=LogisticRegression, **parameters):
    own = {"classes": [0, 1]} if kind is LogisticRegression else {"target_range": (-1, 1)}
    settings = own | {"epsilon": 8.0, "privacy_unit": "row", "solver": "phased-sgd", "insecure_seed": 0}
    return kind(**settings | parameters)


def tools(X, y):
    """What fits models in scikit-learn and looks at the data around them, as a function of the parameters."""

    def number(**parameters):
        return model(LinearRegression, **parameters)

    def unlabelled():
        return np.where(np.arange(len(y)) % 3, y, -1)

    return {
        "GridSearchCV": lambda **p: GridSearchCV(model(**p), GRID, cv=2).fit(X, y),
        "RandomizedSearchCV": lambda **p: RandomizedSearchCV(model(**p), GRID, n_iter=2, cv=2).fit(X, y),
        "HalvingGridSearchCV": lambda **p: HalvingGridSearchCV(model(**p), GRID, cv=2, min_resources=300).fit(X, y),
        "cross_val_score": lambda **p: cross_val_score(model(**p), X, y, cv=3),
        "cross_validate": lambda **p: cross_validate(model(**p), X, y, cv=3),
        "cross_val_predict": lambda **p: cross_val_predict(model(**p), X, y, cv=3),
        "learning_curve": lambda **p: learning_curve(model(**p), X, y, cv=2, train_sizes=[0.5, 1.0]),
        "validation_curve": lambda **p: validation_curve(model(**p), X, y, param_name="l2", param_range=[0.0], cv=2),
        "permutation_test_score": lambda **p: permutation_test_score(model(**p), X, y, cv=2, n_permutations=2),
        "CalibratedClassifierCV": lambda **p: CalibratedClassifierCV(model(**p), cv=2).fit(X, y),
        "TunedThresholdClassifierCV": lambda **p: TunedThresholdClassifierCV(model(**p), cv=2).fit(X, y),
        "StackingClassifier": lambda **p: StackingClassifier([("one", model(**p))], cv=2).fit(X, y),
        "VotingClassifier": lambda **p: VotingClassifier([("one", model(**p))]).fit(X, y),
        "BaggingClassifier": lambda **p: BaggingClassifier(model(**p), 2).fit(X, y),
        "SelfTrainingClassifier": lambda **p: SelfTrainingClassifier(model(**p), max_iter=2).fit(X, unlabelled()),
        "ClassifierChain": lambda **p: ClassifierChain(model(**p)).fit(X, np.column_stack([y, y])),
        "OneVsRestClassifier": lambda **p: OneVsRestClassifier(model(**p)).fit(X, (y + (X[:, 1] > 0)).astype(int)),
        "RFE": lambda **p: RFE(model(**p), n_features_to_select=1).fit(X, y),
        "SequentialFeatureSelector": lambda **p: SequentialFeatureSelector(model(**p), cv=2).fit(X, y),
        "RANSACRegressor": lambda **p: RANSACRegressor(number(**p), min_samples=300, max_trials=2).fit(X, X[:, 0]),
        "IterativeImputer": lambda **p: IterativeImputer(number(**p), max_iter=1).fit(np.where(X > 0.9, np.nan, X)),
        "TransformedTargetRegressor": lambda **p: TransformedTargetRegressor(
            number(**p), transformer=MinMaxScaler()
        ).fit(X, X[:, 0]),
    }


def said(do, **parameters):
    """Messages of `PrivacyWarning`, with every one shown."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        do(**parameters)
    return [str(warning.message) for warning in caught if issubclass(warning.category, PrivacyWarning)]


@pytest.mark.parametrize("with_ledger", [False, True])
@pytest.mark.parametrize("name", tools(None, None))
def test_tools_that_look_at_data_around_a_fit_are_noticed_with_a_ledger_too(rows, name, with_ledger):
    ledger = Ledger(Budget(1e4, 1e-3)) if with_ledger else None
    heard = said(tools(*rows)[name], ledger=ledger, insecure_seed=None if with_ledger else 0)
    assert heard, "nothing was said"
    assert all("covers this fit alone" in text and "not private, with a ledger neither" in text for text in heard)


def test_the_warning_comes_before_anything_is_charged(rows):
    """So that `-W error::userdp.PrivacyWarning` stops a search before it has spent anything."""
    ledger = Ledger(Budget(1e4, 1e-3))
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivacyWarning)
        for one in (
            model(ledger=ledger),
            PrivateStandardScaler(8.0, low=-1, high=1, privacy_unit="row", ledger=ledger),
        ):
            with pytest.raises(PrivacyWarning, match="copy"):
                clone(one).fit(*rows)
        with pytest.raises(PrivacyWarning, match="copy"):
            clone(PrivateSearchCV(model(), GRID, ledger=ledger)).fit(*rows)
    assert ledger.charges() == ()


def test_a_copy_of_a_copy_is_one_wherever_it_goes(rows):
    for one in (clone(clone(model())), pickle.loads(pickle.dumps(clone(model()))), copy.deepcopy(clone(model()))):
        assert len(said(lambda one=one: one.fit(*rows))) == 1


def test_steps_of_a_pipeline_are_seen(rows):
    scaler = PrivateStandardScaler(8.0, low=-1, high=1, privacy_unit="row", insecure_seed=0)
    heard = said(lambda: cross_validate(make_pipeline(scaler, model()), *rows, cv=2))
    assert sorted(text.split()[1] for text in heard) == ["LogisticRegression"] * 2 + ["PrivateStandardScaler"] * 2


def test_a_fit_of_ones_own_is_said_nothing_of(rows):
    X, y = rows
    assert said(lambda: model().fit(X, y)) == []
    assert said(lambda: clone(model())) == []
    assert said(lambda: make_pipeline(PublicScaler(-1, 1), model()).fit(X, y)) == []


def test_a_private_search_makes_copies_of_its_own(rows):
    search = PrivateSearchCV(model(solver="auto"), {"l2": [0.0, 0.1]}, 8.0)
    assert said(lambda: search.fit(*rows)) == []
    assert said(lambda: search.best_estimator_.fit(*rows)) == []
    assert said(lambda: clone(search.best_estimator_).fit(*rows)) != []


def logging(fit):
    """A `fit` of a package that logs: a function of its own, which looks like the one that it replaces."""
    package = {"__name__": "logger.patch", "fit": fit}
    exec("def logged(self, *given, **named): return fit(self, *given, **named)", package)
    return functools.wraps(fit)(package["logged"])


class Proxy:
    """Another way to replace a function: by an object that calls it."""

    __module__ = "logger.proxies"

    def __init__(self, fit):
        self.fit = fit

    def __get__(self, one, kind=None):
        return self if one is None else types.MethodType(self.fit, one)


@pytest.mark.parametrize("replaced", [Pipeline, GridSearchCV])
@pytest.mark.parametrize("how", [logging, Proxy])
def test_packages_that_log_fits_with_their_scores_are_noticed(rows, replaced, how, monkeypatch):
    monkeypatch.setattr(replaced, "fit", how(replaced.fit))
    (heard,) = said(lambda: make_pipeline(PublicScaler(-1, 1), model()).fit(*rows))
    assert heard.startswith("logger has replaced fit")
    assert "not private" in heard
    monkeypatch.undo()
    assert said(lambda: make_pipeline(PublicScaler(-1, 1), model()).fit(*rows)) == []
