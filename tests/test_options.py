"""`Solver` and `Execution`: records that work as parameters of scikit-learn's, and where old keywords have gone."""

import inspect
import pickle
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, GroupKFold

import userdp
from userdp import (
    Execution,
    LogisticRegression,
    PrivateStandardScaler,
    PublicScaler,
    Solver,
    load_model,
    save_model,
)
from userdp.evaluation import evaluate
from userdp.model_selection import PrivateSearchCV
from userdp.models.estimators import ESTIMATORS
from userdp.models.files import parameters_now

RECORDS = [
    Solver(),
    Solver("accelerated", mode="paper", row_norm=2.5, domain_radius=3.0, max_gradients=10**6),
    Execution(),
    Execution(engine="ray", checkpoint="run.journal", progress=False),
]


def people():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (3000, 2))
    return X, (X[:, 0] > 0).astype(int), np.repeat(np.arange(1500), 2)


@pytest.mark.parametrize("record", RECORDS, ids=repr)
def test_records_are_values(record):
    assert eval(repr(record)) == record
    assert pickle.loads(pickle.dumps(record)) == record
    assert clone(record, safe=False) == record
    assert hash(record) == hash(eval(repr(record)))
    with pytest.raises(FrozenInstanceError):
        record.mode = "paper"


def test_records_say_what_is_not_as_usual():
    assert [repr(record) for record in RECORDS] == [
        "Solver('auto')",
        "Solver('accelerated', mode='paper', row_norm=2.5, domain_radius=3.0, max_gradients=1000000)",
        "Execution(engine=None, checkpoint=None, progress=None)",
        "Execution(engine='ray', checkpoint='run.journal', progress=False)",
    ]
    assert Solver() != Solver("accelerated")
    assert Solver(max_gradients=np.int16(9)).max_gradients.__class__ is int


@pytest.mark.parametrize("kind", ESTIMATORS.values())
def test_records_are_parameters(kind):
    model = kind(solver=RECORDS[1], execution=RECORDS[3])
    assert model.get_params()["solver"] is RECORDS[1]
    copy = clone(model)
    assert (copy.solver, copy.execution) == (RECORDS[1], RECORDS[3])
    assert "Solver('accelerated', mode='paper'" in repr(model)
    assert model.set_params(solver="auto", execution=None).solver == "auto"


def test_a_search_tries_solvers():
    X, y, users = people()
    solvers = [Solver("phased-sgd", row_norm=norm) for norm in (1.5, 3.0)]
    model = LogisticRegression(8.0, 1e-4, classes=[0, 1], max_rows_per_user=2, insecure_seed=0)
    folds = GroupKFold(2, shuffle=True, random_state=0)
    with sklearn.config_context(enable_metadata_routing=True), pytest.warns(userdp.PrivacyWarning):
        search = GridSearchCV(model, {"solver": solvers}, cv=folds).fit(X, y, groups=users)
    assert search.best_params_["solver"] in solvers
    chosen = PrivateSearchCV(model, {"solver": [Solver(), Solver(domain_radius=1.0)]}, 16.0, 1e-4)
    assert chosen.fit(X, y, groups=users).best_params_["solver"].domain_radius in (None, 1.0)


def test_a_record_does_what_its_name_alone_does():
    X, y, users = people()
    settings = {"epsilon": 8.0, "delta": 1e-4, "classes": [0, 1], "max_rows_per_user": 2, "insecure_seed": 0}
    plain, by_record, shown = (
        LogisticRegression(**settings, **more).fit(X, y, groups=users)
        for more in (
            {"solver": "phased-sgd"},
            {"solver": Solver("phased-sgd")},
            {"solver": Solver("phased-sgd"), "execution": Execution(engine="local", progress=False)},
        )
    )
    assert (plain.coef_ == by_record.coef_).all()
    assert (plain.coef_ == shown.coef_).all()
    assert plain.privacy_.to_dict() == shown.privacy_.to_dict()


OLD = {"mode": "tight", "row_norm": 2.5, "domain_radius": 3.0, "max_gradients": 9, "engine": "ray"}
OLD |= {"checkpoint": "run.journal", "verbose": True, "progress": True}
NOW = {
    "mode": "solver=userdp.Solver(mode='calibrated')",
    "row_norm": "solver=userdp.Solver(row_norm=2.5)",
    "domain_radius": "solver=userdp.Solver(domain_radius=3.0)",
    "max_gradients": "solver=userdp.Solver(max_gradients=9)",
    "engine": "execution=userdp.Execution(engine='ray')",
    "checkpoint": "execution=userdp.Execution(checkpoint='run.journal')",
    "verbose": "execution=userdp.Execution(progress=True)",
    "progress": "execution=userdp.Execution(progress=True)",
}
CALLS = {
    **ESTIMATORS,
    "PrivateStandardScaler": PrivateStandardScaler,
    "PrivateSearchCV": PrivateSearchCV,
    "minimize": userdp.minimize,
    "private_mean": userdp.private_mean,
    "evaluate": evaluate,
    "set_params": LogisticRegression().set_params,
    "set_params of a scaler": PrivateStandardScaler().set_params,
}


@pytest.mark.parametrize("name", OLD)
@pytest.mark.parametrize("call", CALLS)
def test_old_keywords_name_the_new_place(call, name):
    with pytest.raises(TypeError) as refused:
        CALLS[call](**{name: OLD[name]})
    assert str(refused.value) == f"Expected no {name}={OLD[name]!r}: it is now {NOW[name]}. Nothing was spent."


def test_other_wrong_keywords_are_refused_as_always():
    with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
        LogisticRegression(nonsense=1)
    with pytest.raises(ValueError, match="Invalid parameter 'nonsense'"):
        LogisticRegression().set_params(nonsense=1)


@pytest.mark.parametrize(
    ("made", "error", "says"),
    [
        (lambda: Solver(3), TypeError, "Expected name of a Solver to be text, got 3"),
        (lambda: Solver(max_gradients=0), ValueError, "max_gradients must be a whole number >= 1, got 0"),
        (lambda: LogisticRegression(solver=3), TypeError, r'Expected solver to be "auto".*got 3\. Nothing was spent'),
        (lambda: LogisticRegression(execution="ray"), TypeError, r"userdp\.Execution.*got 'ray'\. Nothing was spent"),
        (lambda: LogisticRegression(solver=Solver(mode="tight")), ValueError, 'mode="calibrated" or "paper"'),
    ],
)
def test_wrong_records_are_refused(made, error, says):
    X, y, users = people()
    with pytest.raises(error, match=says):
        made().set_params(classes=[0, 1]).fit(X, y, groups=users)


def test_what_keeps_no_journal_refuses_one():
    X, y, users = people()
    journal = Execution(checkpoint="run.journal")
    for call in (
        lambda: userdp.private_mean(X, users, 8.0, execution=journal),
        lambda: PrivateStandardScaler(low=-1, high=1, execution=journal).fit(X, groups=users),
        lambda: evaluate(None, X, y, users, epsilon=8.0, execution=journal),
        lambda: PrivateSearchCV(LogisticRegression(), {"l2": [0, 1]}, execution=journal).fit(X, y, groups=users),
    ):
        with pytest.raises(ValueError, match=r"Expected no checkpoint.*Nothing was spent"):
            call()


def test_a_domain_has_one_place():
    X, y, users = people()
    data = userdp.UserData.from_arrays(X, y, users)
    with pytest.raises(ValueError, match="Expected no domain_radius"):
        userdp.minimize("logistic", data, userdp.Ball(1.0), 8.0, rows_per_user=2, solver=Solver(domain_radius=2.0))


def test_model_files_hold_solvers(tmp_path):
    X, y, users = people()
    settings = {"classes": [0, 1], "max_rows_per_user": 2, "insecure_seed": 0}
    for solver, held in (("phased-sgd", "phased-sgd"), (Solver(domain_radius=1.0), {"domain_radius": 1.0})):
        model = LogisticRegression(8.0, 1e-4, solver=solver, execution=Execution(progress=False), **settings)
        save_model(model.fit(X, y, groups=users), tmp_path / "model.json")
        assert model.to_dict()["parameters"]["solver"] == held
        assert "execution" not in model.to_dict()["parameters"]
        again = load_model(tmp_path / "model.json")
        assert again.solver == solver
        assert again.to_dict() == model.to_dict()


def test_parameters_of_0_1_are_read_as_they_are_called_now():
    old = {"epsilon": 1.0, "solver": "auto", "mode": "tight", "row_norm": None, "domain_radius": None, "l2": 0.0}
    assert list(parameters_now(old).items()) == [("epsilon", 1.0), ("solver", "auto"), ("l2", 0.0)]
    assert parameters_now({"solver": "accelerated", "mode": "paper", "row_norm": 2.5}) == {
        "solver": {"name": "accelerated", "mode": "paper", "row_norm": 2.5}
    }
    assert parameters_now({"low": 0}) == {"low": 0}


def test_estimators_have_few_parameters():
    counts = {name: len(inspect.signature(kind).parameters) for name, kind in ESTIMATORS.items()}
    assert counts["LogisticRegression"] <= 23
    assert max(counts.values()) <= 24
    assert len(inspect.signature(userdp.minimize).parameters) <= 18
    assert not set(PublicScaler().get_params()) & set(OLD)
