"""Whatever one user sends, nothing that is seen changes but through noise that was paid for: everything, end to end."""

import json
import math
import warnings

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array
from sklearn.preprocessing import PolynomialFeatures
from support_cli import run as run_command
from support_columns import COLUMNS, PRIVATE, shop
from support_hostile import SENT as SENT_TO_USERS
from support_hostile import replaced as replaced_user
from support_replay import compare, said

from userdp import (
    Execution,
    HuberRegressor,
    Ledger,
    LinearRegression,
    LinearSVC,
    LogisticRegression,
    PoissonRegressor,
    PrivateStandardScaler,
    QuantileRegressor,
    Solver,
    UserData,
    make_pipeline,
    private_mean,
)
from userdp.evaluation import evaluate
from userdp.model_selection import PrivateSearchCV

N_USERS, VICTIM, CAP = 400, 137, 4
SETTINGS = {"epsilon": 8.0, "max_rows_per_user": CAP, "allow_weak": True}
UNCUT = SETTINGS | {"max_rows_per_user": 10_000}  # where others have many rows: which are dropped is not recorded
LABELS, NUMBERS, COUNTS = "labels", "numbers", "counts"
SENT = {  # cells of features, and targets of each kind, by turns; and how many rows
    "missing": ([math.nan], {LABELS: [None], NUMBERS: [math.nan], COUNTS: [math.nan]}, 1),
    "infinite": ([math.inf, -math.inf], {LABELS: ["no", 4711], NUMBERS: [math.inf], COUNTS: [-math.inf]}, 3),
    "huge": ([1e308, -1e308, 5e-324], {LABELS: ["maybe"], NUMBERS: [-1e308], COUNTS: [1e308]}, 5),
    "many rows": ([1000.0, -1.0], {LABELS: ["no", "yes"], NUMBERS: [1e9, 0.0], COUNTS: [0.0, 60.0]}, 4 * N_USERS),
}


def people(kind, n_users=N_USERS):
    """Users of one to four rows: features, targets, weights, ids."""
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(n_users), rng.integers(1, CAP + 1, n_users))
    X = rng.uniform(-1, 1, (len(users), 2))
    score = 2 * X[:, 0] - X[:, 1]
    y = {
        LABELS: np.where(rng.random(len(users)) < 1 / (1 + np.exp(-score)), "yes", "no").astype(object),
        NUMBERS: 50 + 10 * score + rng.normal(0, 3, len(users)),
        COUNTS: rng.poisson(np.exp(score / 2)).astype(float),
    }[kind]
    return X, y, rng.uniform(0, 1, len(users)), users


def replaced(kind, data):
    """The same with other rows in the place of one user's, for all that is sent."""
    X, y, weights, users = data
    first, last = np.searchsorted(users, [VICTIM, VICTIM + 1])

    def put(column, new):
        return np.concatenate([column[:first], new, column[last:]])

    found = {}
    for name, (cells, targets, n_rows) in SENT.items():
        made = np.array(targets[kind] * n_rows, dtype=y.dtype)[:n_rows]
        new = np.resize(cells, (n_rows, X.shape[1]))
        own = np.full(n_rows, VICTIM)
        found[name] = (put(X, new), put(y, made), put(weights, np.resize(cells, n_rows)), put(users, own))
    return found


def shown(model):
    """All that a fitted model is or says."""
    told = [model.to_dict(), str(model.privacy_), model.scores_ and model.scores_.to_dict(), model.predict(np.eye(2))]
    return [*told, str(model.summary())] if model.inference else told


def check(model, kind, fit=None, n_users=N_USERS, **options):
    """Fit it on users, and on each of their neighbours."""

    def work(data, ledger):
        X, y, _, users = data
        one = type(model)(**model.get_params(deep=False) | {"ledger": ledger})
        return shown(fit(one, *data) if fit else one.fit(X, y, groups=users))

    data = people(kind, n_users)
    compare(work, data, replaced(kind, data), **options)


YES_NO = {"classes": ["no", "yes"]}
RANGED = {"target_range": (0.0, 100.0)}
ESTIMATORS = {
    "logistic": (LogisticRegression(**SETTINGS, **YES_NO), LABELS),
    "svc": (LinearSVC(**SETTINGS, **YES_NO), LABELS),
    "three classes": (LogisticRegression(**SETTINGS, classes=["maybe", "no", "yes"]), LABELS),
    "class weights": (LogisticRegression(**SETTINGS, **YES_NO, class_weight={"yes": 3.0}), LABELS),
    "linear": (LinearRegression(**SETTINGS, **RANGED), NUMBERS),
    "huber": (HuberRegressor(**SETTINGS, **RANGED), NUMBERS),
    "quantile": (QuantileRegressor(**SETTINGS, **RANGED, quantile=0.8), NUMBERS),
    "poisson": (PoissonRegressor(**SETTINGS, max_count=60.0), COUNTS),
    "without delta": (LogisticRegression(**SETTINGS | {"delta": 0.0}, **YES_NO), LABELS),
    "phased-sgd": (LogisticRegression(**SETTINGS, **YES_NO, solver="phased-sgd"), LABELS),
    "accelerated": (
        LinearRegression(**SETTINGS, **RANGED, solver=Solver("accelerated", max_gradients=40_000)),
        NUMBERS,
    ),
    "evaluated": (LogisticRegression(**SETTINGS, **YES_NO, evaluate=0.3), LABELS),
    "evaluated numbers": (LinearRegression(**SETTINGS, **RANGED, evaluate=0.3), NUMBERS),
}


@pytest.mark.parametrize("case", ESTIMATORS)
def test_estimators(case):
    check(*ESTIMATORS[case])


def test_sparse_rows():
    check(
        LogisticRegression(**SETTINGS, **YES_NO),
        LABELS,
        lambda model, X, y, weights, users: model.fit(csr_array(X), y, groups=users),
    )


def test_weights_of_rows():
    check(
        LinearRegression(**SETTINGS, **RANGED, max_weight=1.0),
        NUMBERS,
        lambda model, X, y, weights, users: model.fit(X, y, groups=users, sample_weight=weights),
    )


def test_exposure():
    check(
        PoissonRegressor(**SETTINGS, max_count=60.0, max_exposure=1.0),
        COUNTS,
        lambda model, X, y, weights, users: model.fit(X, y, groups=users, exposure=weights),
    )


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (LogisticRegression(**SETTINGS, **YES_NO, inference=True), LABELS),
        (LinearRegression(**SETTINGS, **RANGED, inference=True), NUMBERS),
        (PoissonRegressor(**SETTINGS, max_count=60.0, inference=True), COUNTS),
    ],
    ids=["logistic", "linear", "poisson"],
)
def test_intervals(model, kind):
    check(model, kind, n_users=1500)


@pytest.mark.parametrize("kind", [LABELS, NUMBERS])
def test_evaluation(kind):
    X, y, _, users = data = people(kind)
    model = LogisticRegression(8.0, **YES_NO) if kind == LABELS else LinearRegression(8.0, **RANGED)
    model.set_params(insecure_seed=0).fit(X, y, groups=users)

    def work(data, ledger):
        X, y, _, users = data
        found = evaluate(
            model,
            X,
            y,
            users,
            epsilon=8.0,
            by=np.where(X[:, 0] > 0, "up", "down"),
            levels=["up", "down"],
            ledger=ledger,
        )
        return found.to_dict(), str(found)

    compare(work, data, replaced(kind, data))


def test_search():
    model = make_pipeline(PolynomialFeatures(2), LogisticRegression(**SETTINGS, **YES_NO))  # which fails on NaN
    data = people(LABELS)

    def work(data, ledger):
        X, y, _, users = data
        search = PrivateSearchCV(model, {"logisticregression__l2": [0.0, 1.0]}, 8.0, ledger=ledger)
        search.fit(X, y, groups=users)
        models = [search.best_estimator_, *search.candidates_]
        return search.cv_results_, search.best_params_, str(search.privacy_), [one[-1].to_dict() for one in models]

    compare(work, data, replaced(LABELS, data))


@pytest.mark.parametrize("inference", [False, True])
def test_means_and_scales(inference):
    data = people(NUMBERS)

    def mean(data, ledger):
        found = private_mean(data[0], data[3], 8.0, inference=inference, ledger=ledger, spread=(0.01, 100.0))
        return vars(found) | {"privacy": str(found.privacy)}, str(found), str(found.summary()) if inference else ""

    def scaler(data, ledger):
        one = PrivateStandardScaler(8.0, low=-1, high=1, ledger=ledger)
        one.fit(data[0], groups=data[3])
        return one.mean_, one.scale_, str(one.privacy_)

    compare(mean, data, replaced(NUMBERS, data))
    if not inference:
        compare(scaler, data, replaced(NUMBERS, data))


@pytest.mark.parametrize("kind", [LABELS, NUMBERS])
def test_users_that_are_grouped_already(kind):
    """One of them may have no rows at all."""
    X, y, _, users = people(kind)
    targets = (y == "yes").astype(float) if kind == LABELS else y
    data = UserData.from_arrays(X, targets, users, max_rows_per_user=CAP)
    sent = {name: replaced_user(data, VICTIM, *make(data.n_features)) for name, make in SENT_TO_USERS.items()}
    assert np.diff(sent["nothing"].offsets)[VICTIM] == 0
    model = LogisticRegression(**SETTINGS, **YES_NO) if kind == LABELS else LinearRegression(**SETTINGS, **RANGED)
    model.set_params(fit_intercept=False)
    compare(lambda data, ledger: shown(model.set_params(ledger=ledger).fit_users(data)), data, sent)


def spoilt(table, user):
    """The same table, with other rows in the place of one user's."""
    own = table[table["user"] == user]
    place = own.index[0]
    before, after = table.loc[: place - 1], table.loc[place:]
    others = [part[part["user"] != user] for part in (before, after)]

    def put(new):
        return pd.concat([others[0], new.astype(table.dtypes.to_dict()), others[1]], ignore_index=True)

    missing = own.iloc[:1].assign(age=math.nan, spend=math.nan, city=None, device=None, since=pd.NaT, bought=None)
    huge = own.iloc[:1].assign(age=math.inf, spend=1e308, city="x" * 500, device="", bought="maybe")
    odd = own.iloc[:1].assign(age=-1e308, spend=-math.inf, city="no\0where", since=pd.Timestamp("1700-01-01"))
    many = pd.concat([own.iloc[:1]] * 2000).assign(city=[f"own-{i}" for i in range(2000)], age=77.0)
    return {"missing": put(missing), "huge": put(huge), "odd": put(odd), "many rows": put(many)}


@pytest.mark.parametrize("columns", [COLUMNS, PRIVATE], ids=["declared", "private"])
def test_described_columns(columns):
    table = shop(800)

    def work(table, ledger):
        model = LogisticRegression(**UNCUT, **YES_NO, columns=columns, ledger=ledger)
        model.fit(table, table["bought"], groups=table["user"])
        return model.to_dict(), str(model.privacy_), str(model.columns_), model.predict(table.iloc[:0])

    compare(work, table, spoilt(table, "u137"))


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_the_command_line(tmp_path, suffix):
    table = shop(800)
    path, output, ledger = tmp_path / f"shop.{suffix}", tmp_path / "model.json", tmp_path / "ledger.db"
    described = [
        '--column=age={type="number",low=0,high=100,fill=40}',
        '--column=city={type="category",levels=["Paris","Lyon"]}',
    ]

    def work(table, _):
        table.to_csv(path, index=False) if suffix == "csv" else table.to_parquet(path)
        for old in (output, ledger):
            old.unlink(missing_ok=True)
        made = run_command("ledger", "new", ledger, "--epsilon", 10, "--delta", 1e-5)
        assert made.exit_code == 0, made.output
        given = ["--user-column", "user", "--target", "bought", "--classes", "no,yes", "--epsilon", 8]
        given += ["--allow-weak", "--max-rows-per-user", UNCUT["max_rows_per_user"]]
        ran = run_command("fit", path, *given, *described, "--evaluate", 0.3, "--ledger", ledger, "-o", output)
        assert ran.exit_code == 0, ran.output
        charges = said([vars(charge) for charge in Ledger.open(ledger).charges()])
        return ran.exit_code, ran.stdout, ran.stderr, json.loads(output.read_text()), charges

    compare(work, table, spoilt(table, "u137"), charged=False)


@pytest.mark.slow
def test_ray():
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'userdp[ray]'")
    from userdp.engines.ray import RayEngine

    model = LogisticRegression(**SETTINGS, **YES_NO, execution=Execution(engine=RayEngine(n_partitions=2)))
    X, y, _, users = people(LABELS)
    try:
        model.fit(X, y, groups=users)  # starts Ray, which says so
        check(model, LABELS)
    finally:
        ray.shutdown()


def leaks():
    """Fits that tell of a user beside the noise, each in its own way."""
    curious = LogisticRegression(**SETTINGS, **YES_NO)

    def fit(data, ledger, epsilon=8.0):
        X, y, _, users = data
        return shown(curious.set_params(ledger=ledger, epsilon=epsilon).fit(X, y, groups=users))

    def warned(data, ledger):
        if np.isnan(data[0]).any():
            warnings.warn("there are missing values", stacklevel=1)
        return fit(data, ledger)

    def raised(data, ledger):
        if not np.isfinite(data[0]).all():
            raise ValueError("a value is not finite")
        return fit(data, ledger)

    return {
        "rows": (lambda data, ledger: [fit(data, ledger), len(data[0])], "missing"),
        "a warning": (warned, "there are missing values"),
        "an error": (raised, "a value is not finite"),
        "output": (lambda data, ledger: [print(len(data[0])), fit(data, ledger)], "missing"),
        "the budget": (lambda data, ledger: fit(data, ledger, 8.0 - np.isnan(data[0]).any()), "became"),
        "another fit": (
            lambda data, ledger: [fit(data, ledger) for _ in range(1 + np.isnan(data[0]).any())],
            "one draw",
        ),
        "others' rows": (lambda data, ledger: fit((data[0] - np.nanmean(data[0]), *data[1:]), ledger), "sensitivities"),
    }


@pytest.mark.parametrize("leak", leaks())
def test_what_tells_of_a_user_is_noticed(leak):
    work, words = leaks()[leak]
    data = people(LABELS)
    with pytest.raises(AssertionError, match=words):
        compare(work, data, replaced(LABELS, data))
