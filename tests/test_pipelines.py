"""Pipelines: steps that learn without privacy are refused; files and plain estimators predict the same."""

import json
import pickle

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.decomposition import PCA
from sklearn.feature_extraction.text import HashingVectorizer, TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.pipeline import Pipeline
from sklearn.pipeline import make_pipeline as any_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    StandardScaler,
)
from support_estimators import ALL, CLASSIFIERS, SEEDED, made, ready, rows

import userdp
from userdp import (
    LinearRegression,
    LogisticRegression,
    PrivateStandardScaler,
    PublicScaler,
    load_model,
    make_pipeline,
    save_model,
    to_sklearn,
)
from userdp.models.files import pipeline_of, pipeline_to_dict

LEARNING = [
    StandardScaler(),
    MinMaxScaler(),
    SimpleImputer(),
    SimpleImputer(strategy="constant", fill_value=0, add_indicator=True),
    OneHotEncoder(),
    OneHotEncoder(categories=[[0, 1, 2]], max_categories=2),
    OneHotEncoder(categories=[[0, 1, 2]], min_frequency=2),
    OrdinalEncoder(categories=[[0, 1, 2]], max_categories=2),
    KBinsDiscretizer(),
    PCA(),
    TfidfVectorizer(),
    Pipeline([("inner", StandardScaler())]),
]
KNOWN = [
    PublicScaler(-1, 1),
    PrivateStandardScaler(low=-1, high=1),
    FunctionTransformer(np.abs),
    Normalizer(),
    PolynomialFeatures(2),
    HashingVectorizer(),
    SimpleImputer(strategy="constant", fill_value=0),
    OneHotEncoder(categories=[[0, 1]]),
    OrdinalEncoder(categories=[[0, 1]]),
    "passthrough",
]


@pytest.fixture(autouse=True)
def _routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


@pytest.mark.parametrize("step", LEARNING, ids=str)
def test_steps_that_learn_without_privacy_are_refused(step):
    with pytest.raises(ValueError, match=r"learns: use .*Nothing was spent"):
        make_pipeline(step, LogisticRegression())


@pytest.mark.parametrize("step", KNOWN, ids=str)
def test_steps_that_learn_nothing_are_taken(step):
    assert make_pipeline(step, LogisticRegression()).steps[-1][0] == "logisticregression"


def test_any_other_pipeline_with_steps_that_learn_is_neither_saved_nor_exported(tmp_path):
    model = ready(LogisticRegression)
    X, y, users = made(model)
    pipeline = any_pipeline(StandardScaler(), model).fit(X, y, groups=users)
    assert "What a step before it learned from the data without privacy" in str(model.privacy_)
    for use in (to_sklearn, lambda it: save_model(it, tmp_path / "model.json")):
        with pytest.raises(ValueError, match=r"StandardScaler learns: use PublicScaler"):
            use(pipeline)


def fitted(*steps, kind=LogisticRegression):
    model = ready(kind)
    X, y, users = made(model)
    return make_pipeline(*steps, model).fit(X, y, groups=users), X


SAVED = [
    [PublicScaler(-1, [1, 1, 0.5])],
    [SimpleImputer(strategy="constant", fill_value=0), Normalizer(), PolynomialFeatures(2, include_bias=False)],
    [PrivateStandardScaler(2.0, low=-1, high=1, insecure_seed=0)],
    [PublicScaler(-1, 1), "passthrough"],
]


@pytest.mark.parametrize("steps", SAVED, ids=str)
def test_files_and_plain_estimators_predict_the_same(steps, tmp_path):
    model, X = fitted(*steps)
    X = np.vstack([X, 3 * X[:100]])  # beyond the ranges, too
    loaded = load_model(save_model(model, tmp_path / "model.json"))
    assert (loaded.predict_proba(X) == model.predict_proba(X)).all()
    assert loaded[-1].privacy_.to_dict() == model[-1].privacy_.to_dict()
    plain = to_sklearn(model)
    assert plain.predict_proba(X) == pytest.approx(model.predict_proba(X))
    assert all(step == "passthrough" or type(step).__module__.startswith("sklearn.") for _, step in plain.steps)


@pytest.mark.filterwarnings("ignore::userdp.UtilityWarning")  # noise hides much of so few users
def test_categories_and_words_are_kept(tmp_path):
    X, z, users = rows()
    levels = np.where(X[:, :1] > 0, "up", "down").astype(object)
    encoder = OneHotEncoder(categories=[["down", "up"]], drop="first", sparse_output=False)
    model = make_pipeline(encoder, ready(LogisticRegression)).fit(levels, z > 0.5, groups=users)
    loaded = load_model(save_model(model, tmp_path / "model.json"))
    assert (loaded.decision_function(levels) == model.decision_function(levels)).all()
    words = levels[:, 0]
    model = make_pipeline(HashingVectorizer(n_features=8), ready(LogisticRegression)).fit(words, z > 0.5, groups=users)
    loaded = load_model(save_model(model, tmp_path / "model.json"))
    assert (loaded.decision_function(words) == model.decision_function(words)).all()


def test_what_a_file_cannot_tell_is_refused(tmp_path):
    model, _ = fitted(FunctionTransformer(np.abs))
    with pytest.raises(TypeError, match="got FunctionTransformer"):
        save_model(model, tmp_path / "model.json")
    with pytest.raises(TypeError, match="ends in a userdp estimator"):
        save_model(Pipeline([("a", Normalizer())]), tmp_path / "model.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "change",
    [{"steps": None}, {"steps": [{}]}, {"model": {}}, {"name": ["x"], "model": 3}, {"steps": [{"kind": "os.system"}]}],
    ids=str,
)
def test_damaged_pipelines_are_refused(change):
    record = json.loads(json.dumps(pipeline_to_dict(fitted(PublicScaler(-1, 1))[0])))
    assert pipeline_of(record)[-1].privacy_.n_users == 3000
    with pytest.raises(ValueError, match="Expected the record to be a"):
        pipeline_of(record | change)


@pytest.mark.parametrize("kind", ALL)
def test_plain_estimators_and_onnx_predict_the_same(kind):
    model = ready(kind)
    X, y, users = made(model)
    model.fit(pd.DataFrame(X, columns=["a", "b", "c"]), y, groups=users)
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    plain = model.to_sklearn()
    assert type(plain).__module__.startswith("sklearn.")
    if kind in CLASSIFIERS:
        assert (plain.predict(frame) == model.predict(frame)).all()
    else:
        assert plain.predict(frame) == pytest.approx(model.predict(frame))
    assert plain.feature_names_in_.tolist() == ["a", "b", "c"]
    skl2onnx = pytest.importorskip("skl2onnx")
    runtime = pytest.importorskip("onnxruntime")
    exported = model.to_sklearn()
    if kind is not userdp.LinearSVC:  # which skl2onnx takes by itself only
        exported = any_pipeline(to_sklearn(PublicScaler(-1, 1).fit(X)), exported)
    onnx = skl2onnx.to_onnx(exported, X[:1].astype(np.float32))
    session = runtime.InferenceSession(onnx.SerializeToString(), providers=["CPUExecutionProvider"])
    (predicted, *_) = session.run(None, {session.get_inputs()[0].name: X.astype(np.float32)})
    expected = model.predict(frame)
    if kind in CLASSIFIERS:
        assert (np.ravel(predicted) == expected).mean() > 0.999
    else:
        assert np.ravel(predicted) == pytest.approx(expected, rel=1e-4, abs=1e-3)


@pytest.mark.filterwarnings("ignore::userdp.UtilityWarning")  # noise hides much of so few users
def test_several_classes_as_plain_estimators():
    X, z, users = rows()
    y = np.digitize(z, [-0.5, 1.0])
    for kind in (LogisticRegression, userdp.LinearSVC):
        model = kind(classes=[0, 1, 2], **SEEDED).fit(X, y, groups=users)
        assert (model.to_sklearn().predict(X) == model.predict(X)).all()
        assert model.to_sklearn().decision_function(X) == pytest.approx(model.decision_function(X))
    with pytest.raises(TypeError, match="got str"):
        to_sklearn("model")


@pytest.mark.filterwarnings("ignore::userdp.PrivacyWarning")
def test_several_processes_need_a_ledger_in_a_file():
    model = ready(LinearRegression, ledger=userdp.Ledger(userdp.Budget(100.0, 1e-3)), insecure_seed=None)
    X, y, users = made(model)
    search = GridSearchCV(model, {"epsilon": [1.0, 2.0]}, cv=GroupKFold(2, shuffle=True, random_state=0), n_jobs=2)
    with pytest.raises(pickle.PicklingError) as raised:  # joblib's, with ours as its cause
        search.fit(X, y, groups=users)
    assert "use one with a file" in str(raised.value.__cause__)
