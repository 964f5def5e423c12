"""What is kept of userdp's behaviour: small seeded runs, through the public interface only.

`CASES` has a function for each record, by the file of `tests/golden` that keeps it and the record's name. What is
computed from data has a name of `renew.FITTED`; all the rest is public, and compared exactly.
"""

from __future__ import annotations

import json
import sqlite3
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse
from sklearn.preprocessing import PolynomialFeatures
from typer.testing import CliRunner

import userdp
from userdp.cli import app
from userdp.model_selection import PrivateSearchCV

LOGISTIC, SVC, LINEAR, POISSON = "LogisticRegression", "LinearSVC", "LinearRegression", "PoissonRegressor"
HUBER, QUANTILE, DELTA = "HuberRegressor", "QuantileRegressor", 1e-6
NUDGE = [0.0, 0]  # by how much every cell is changed, relatively, and a seed: `renew` sets it
Case = Callable[[], Any]


def nudged(cells: np.ndarray) -> np.ndarray:
    """Cells in the precision that they have, each a little different if that was asked for."""
    if NUDGE[0] == 0:
        return cells
    signs = np.random.default_rng(int(NUDGE[1])).choice([-1.0, 1.0], cells.shape)
    return (cells * (1 + max(NUDGE[0], np.finfo(cells.dtype).eps) * signs)).astype(cells.dtype)


@cache
def people(n_users: int = 1200, n_features: int = 3, most: int = 5, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Rows, a score that they have, their users."""
    rng = np.random.default_rng(seed)
    users = np.repeat(np.arange(n_users), rng.integers(1, most + 1, n_users))
    X = rng.uniform(-1, 1, (len(users), n_features))
    return X, X[:, :3] @ np.array([2.0, -1.0, 0.5]) + 0.3, users


def targets(kind: str, z: np.ndarray, n_classes: int = 2) -> np.ndarray:
    """Targets that suit an estimator: labels, counts, or numbers."""
    rng = np.random.default_rng(5)
    if kind == POISSON:
        return rng.poisson(np.exp(np.minimum(z, 2.5)))
    noisy = z + rng.logistic(0, 0.7, len(z))
    if kind in (LOGISTIC, SVC):
        return noisy > 0 if n_classes == 2 else np.digitize(noisy, [-0.7, 1.2])
    return np.clip(10 * noisy + 50, 0, 100)


def declared(kind: str, **more: Any) -> dict[str, Any]:
    """An estimator's parameters: what is public of targets, and a seed."""
    public = {"max_count": 20.0} if kind == POISSON else {"target_range": (0.0, 100.0)}
    public = {} if kind in (LOGISTIC, SVC) else public
    return {"epsilon": 4.0, "delta": DELTA, "max_rows_per_user": 5, "insecure_seed": 1} | public | more


def large() -> userdp.Ledger:
    return userdp.Ledger(userdp.Budget(1e3, 1e-2))


def charges(ledger: userdp.Ledger) -> list[dict[str, Any]]:
    """Certified plans as they were charged: steps, on which users, with which noise, and what users pay."""
    told = ("rounds", "noise_multiplier", "sampling_probability")
    return [
        {"purpose": charge.purpose, "costs": charge.costs, "dominating": charge.dominating}
        | {"steps": [[s.label, s.start, s.stop, s.mechanism, *map(s.record.get, told)] for s in charge.steps]}
        for charge in ledger.charges()
    ]


def found(model: Any) -> dict[str, Any]:
    """What a fit found."""
    of = model.result_
    record = {"weights": [*np.ravel(model.coef_), *np.ravel(model.intercept_)], "bound": of.bound, "phases": of.phases}
    record |= {"aborted": model.aborted_, "message": of.message, "affected_users": of.affected_users}
    record |= {"unresolved": model.unresolved_, "notes": model.notes_, "solver": model.solver_}
    record |= {"n_gradients": model.n_gradients_, "prediction_range": model.prediction_range_}
    return record | ({} if model.scores_ is None else {"scores": model.scores_.to_dict()})


def fit(kind: str, rows: str = "dense", n_classes: int = 2, n_rare: int = 30, **parameters: Any) -> Any:
    """A fitted estimator and its record: of dense or sparse rows, of rows with weights, or with missing cells."""
    X, z, users = people(**parameters.pop("size", {}))
    of_rows, rng, ledger = {}, np.random.default_rng(3), large()
    cells: Any = nudged(X.astype(parameters.pop("dtype", np.float64)))
    if rows == "sparse":  # three numbers that all have, and rare ones
        rare = nudged(rng.uniform(size=(len(z), n_rare)) * (rng.random((len(z), n_rare)) < 0.1))
        cells, z = sparse.csr_matrix(np.hstack([cells, rare])), z + rare.sum(axis=1)
    elif rows == "missing":
        cells[rng.random(X.shape) < 0.03] = np.nan
    elif rows == "weighted":
        of_rows["sample_weight"], parameters["max_weight"] = nudged(rng.uniform(0.2, 2.0, len(z))), 2.0
    if parameters.pop("exposure", False):
        of_rows["exposure"], parameters["max_exposure"] = nudged(rng.uniform(0.5, 3.0, len(z))), 3.0
    if n_classes > 2:
        parameters["classes"] = list(range(n_classes))
    owners = None if parameters.get("privacy_unit") == "row" else users
    model = getattr(userdp, kind)(**declared(kind, **parameters), ledger=ledger)
    model.fit(cells, targets(kind, z, n_classes), groups=owners, **of_rows)
    return model, found(model) | {"charges": charges(ledger)}


def shop() -> tuple[pd.DataFrame, np.ndarray, pd.Series]:
    """A table as people have them, a score, its users."""
    X, z, users = people(n_users=2000)
    rng, n = np.random.default_rng(8), len(users)
    table = pd.DataFrame(
        {
            "age": nudged(50 + 40 * X[:, 0]),
            "spend": nudged(np.exp(3 + 1.5 * X[:, 1])),
            "city": rng.choice(["Paris", "Lyon", "Nice", "Rare"], n, p=[0.5, 0.3, 0.199, 0.001]),
            "since": pd.Timestamp("2015-01-01") + pd.to_timedelta(rng.integers(0, 3600, n), "D"),
            "member": rng.random(n) < 0.5,
        }
    )
    score = z + (table["city"] == "Lyon").to_numpy()
    for name in ("age", "spend", "city"):
        table.loc[rng.random(n) < 0.04, name] = None
    return table, score, pd.Series([f"u{user}" for user in users], name="user")


def described(kind: str, private: bool, **parameters: Any) -> tuple[Any, dict[str, Any]]:
    """A fit to a table whose columns are described, or partly to be learned."""
    table, score, users = shop()
    age, spend = ({"range": "private"}, {"range": "private"}) if private else ({"low": 0, "high": 100}, {"high": 500})
    columns = userdp.Columns(
        age=userdp.Number(**age, fill="private" if private else 40),
        spend=userdp.Number(**({} if private else {"low": 0}), **spend, transform="log1p", fill=0),
        city=userdp.Category("private" if private else ["Paris", "Lyon"]),
        since=userdp.Date(),
        member=userdp.Boolean(),
    )
    ledger, y = large(), pd.Series(targets(kind, score), name="bought")
    model = getattr(userdp, kind)(**declared(kind, columns=columns, **parameters), ledger=ledger)
    model.fit(table, y, groups=users)
    learned = {"names": list(model.feature_names_in_), "columns": model.to_dict()["columns"]}
    return model, found(model) | learned | {"charges": charges(ledger)}


def record_of(case: Case) -> Any:
    """What is kept of a fit; with its intervals if it has some."""
    model, record = case()
    if not model.inference:
        return record
    table = model.summary()
    return record | {"std_err": table.std_err, "conf_int": table.conf_int, "noise_share": table.noise_share}


def statement(case: Case, whole: bool = False) -> Any:
    """What a fit says of its privacy."""
    privacy = case()[0].privacy_
    return {"text": str(privacy).splitlines()} | ({"record": privacy.to_dict()} if whole else {})


def model_file(case: Case, whole: bool = False) -> Any:
    """A model's file, from which the model can be loaded."""
    model, _ = case()
    with tempfile.TemporaryDirectory() as folder:
        path = userdp.save_model(model, Path(folder) / "model.json")
        again, record = userdp.load_model(path), json.loads(path.read_text())
    assert np.array_equal(again.coef_, model.coef_)
    assert again.unresolved_ == model.unresolved_
    return record if whole else record | {"privacy": sorted(record["privacy"])}


def after_polynomials() -> Any:
    """A pipeline of public steps."""
    X, z, users = people()
    model = userdp.LogisticRegression(**declared(LOGISTIC))
    steps = (userdp.PublicScaler(low=-1, high=1), PolynomialFeatures(2, include_bias=False), model)
    userdp.make_pipeline(*steps).fit(nudged(X), targets(LOGISTIC, z), logisticregression__groups=users)
    return found(model)


def evaluated(kind: str, n_classes: int = 2, by: bool = False, **options: Any) -> Any:
    """Private scores of people whom a model has not seen, or of groups of them."""
    X, z, users = people(n_users=3000, seed=9)
    groups = {"by": np.where(np.arange(len(z)) % 3 > 0, "a", "b"), "levels": ["a", "b"]} if by else {}
    model, y, ledger = fit(kind, n_classes=n_classes)[0], targets(kind, z, n_classes), large()
    seeded = {"epsilon": 3.0, "delta": DELTA, "ledger": ledger, "insecure_seed": 2}
    scores = userdp.evaluate(model, nudged(X), y, groups=users, **seeded, **groups, **options)
    return {"scores": scores.to_dict()["scores"], "charges": charges(ledger)}


def search(kind: str, grid: dict[str, list[Any]], **options: Any) -> Any:
    """A private choice of hyperparameters."""
    X, z, users = people(n_users=2500)
    parameters, ledger = declared(kind), large()
    budget = {name: parameters.pop(name) for name in ("epsilon", "delta")}
    one = PrivateSearchCV(getattr(userdp, kind)(**parameters), grid, **budget, ledger=ledger, **options)
    one.fit(nudged(X), targets(kind, z), groups=users)
    record = {"best_params": one.best_params_, "best_index": one.best_index_, "best_score": one.best_score_}
    record |= {"cv_results": {name: list(values) for name, values in one.cv_results_.items()}}
    return record | {"plan": str(one.plan_).splitlines(), "charges": charges(ledger)} | found(one.best_estimator_)


def mean(n_users: int = 3000, tail: bool = False, **options: Any) -> Any:
    """A private mean."""
    X, z, users = people(n_users=n_users)
    rows, ledger = nudged(np.column_stack([X[:, 0] + 5, np.exp(z) if tail else z])), large()
    one = userdp.private_mean(rows, users, 2.0, DELTA, ledger=ledger, insecure_seed=1, **options)
    record = {"mean": one.mean, "noise_std": one.noise_std, "radius": one.radius, "charges": charges(ledger)}
    return record | ({"std_err": one.std_err, "conf_int": one.conf_int()} if one.errors else {})


def scaler() -> Any:
    """Private means and scales."""
    X, _, users = people(n_users=3000)
    ledger, ends = large(), {"low": [-1, -1, -2], "high": [1, 1, 2]}
    one = userdp.PrivateStandardScaler(2.0, DELTA, **ends, ledger=ledger, insecure_seed=1)
    one.fit(nudged(X), groups=users)
    return {"mean": one.mean_, "scale": one.scale_, "charges": charges(ledger)}


def own_loss(domain: Any) -> Any:
    """`minimize` with a loss of one's own, whose functions take numbers and arrays."""
    loss = userdp.losses.custom(
        "log_cosh",
        lambda prediction, target: np.logaddexp(prediction - target, target - prediction) - np.log(2.0),
        lambda prediction, target: np.tanh(prediction - target),
        lipschitz=1.0,
        smoothness=1.0,
    )
    X, z, users = people()
    data, ledger = userdp.UserData.from_arrays(nudged(X), np.clip(z, -3, 3), users, insecure_seed=3), large()
    public = {"rows_per_user": 5, "solver": userdp.Solver(row_norm=1.5), "target_bound": 3.0}
    of = userdp.minimize(loss, data, domain, 4.0, DELTA, **public, ledger=ledger, insecure_seed=3)
    return {"weights": of.weights, "bound": of.bound, "phases": of.phases, "charges": charges(ledger)}


def planned(*sizes: int, epsilon: float = 1.0, delta: float = DELTA, **options: Any) -> Any:
    """All solvers' plans: what they say, and what each costs."""
    comparison = userdp.plan(*sizes, epsilon, delta, **options)
    record = comparison.to_dict()
    for told, option in zip(record["options"], comparison.options, strict=True):
        if option.planned is not None:
            plan = option.planned.certified
            told["costs"] = plan.costs
            told["steps"] = [[s.label, s.start, s.stop, s.n_groups, s.mechanism] for s in plan.steps[:6]]
    return record


def ledger_file() -> Any:
    """A ledger with charges of private runs, whose results are random: its tables, and what is said of them."""
    X, _, users = people(n_users=3000)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "people.ledger"
        ledger = userdp.Ledger(userdp.Budget(4.0, 1e-5), path)
        for epsilon in (1.0, 0.5):
            options = {"spread": (5.0, 5.0), "inference": True, "ledger": ledger}
            private = userdp.private_mean(X, users, epsilon, DELTA, **options).privacy
        model = userdp.LogisticRegression(1.0, DELTA, max_rows_per_user=5, ledger=ledger).fit(X, X[:, 0] > 0, users)
        text = [line for line in str(model.privacy_).splitlines() if "% of the users (95%" not in line]
        database = sqlite3.connect(path)
        database.row_factory = sqlite3.Row
        schema = {row["name"]: row["sql"] for row in database.execute("SELECT * FROM sqlite_master ORDER BY name")}
        tables = {name: [dict(row) for row in database.execute(f"SELECT * FROM {name}")] for name in ("budget", "runs")}
        steps = [list(row) for row in database.execute("SELECT * FROM steps")]
        database.close()
        spent = {"spent": ledger.spent_epsilon(), "fits": ledger.largest_epsilon(), "unit": ledger.unit}
        shown = json.loads(command("ledger", "show", path, "--json"))
    return (
        spent | tables | {"schema": schema, "steps": steps, "show": shown, "of mean": private.to_dict(), "text": text}
    )


def command(*arguments: Any) -> str:
    """What a command prints."""
    result = CliRunner(env={"COLUMNS": "100"}).invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def commands() -> Any:
    """What commands print with --json, from a table to scores."""
    table, score, users = shop()
    table = table.assign(user=users, bought=np.where(targets(LOGISTIC, score), "yes", "no"))
    with tempfile.TemporaryDirectory() as name:
        data, model, ledger, out = (Path(name) / file for file in ("shop.parquet", "m.json", "shop.ledger", "out.csv"))
        table.to_parquet(data)
        of = ("--user-column", "user", "--target", "bought")
        age, city = 'age={type="number",low=0,high=100,fill=40}', 'city={type="category",levels=["Paris","Lyon"]}'
        columns = ("--column", age, "--column", city, "--max-rows-per-user", 5, "--classes", "no,yes", "--epsilon", 3)
        seeded = ("--delta", DELTA, "--insecure-seed", 4, "--ledger", ledger)
        sizes = ("--users", 3000, "--rows-per-user", 5, "--features", 4, "--epsilon", 2, "--delta", DELTA)
        record: dict[str, Any] = {"columns": command("columns", data, *of).splitlines()}
        for arguments in (
            ("plan", *sizes),
            ("ledger", "new", ledger, "--epsilon", 20, "--delta", 1e-4),
            ("fit", data, *of, *columns, "--dry-run"),
            ("fit", data, *of, *columns, *seeded, "--evaluate", 0.2, "--output", model),
            ("predict", model, data, "--output", out, "--keep", "user", "--proba"),
            ("evaluate", model, data, "--target", "bought"),
            ("evaluate", model, data, *of, *seeded, "--epsilon", 3, "--by", "city=Paris,Lyon"),
            ("ledger", "show", ledger),
            ("report", model),
        ):
            told = json.loads(command(*arguments, "--json"))
            if "privacy" in told:
                told["privacy"] = sorted(told["privacy"])
            record[f"{len(record)} {arguments[0]}"] = told
        return record | {"predictions": pd.read_csv(out)["probability_yes"].to_numpy()[:10]}


# In single precision a user's gradient is often so near to the edge of a size that its last digit tells which: such
# records are of more users, of whom one tells little.
SOME, MANY = {"n_users": 15_000}, {"n_users": 30_000, "most": 4}  # the latter get the fast schedule
_PAPER_SIZES = {"size": {"n_users": 14_000, "most": 2}, "max_rows_per_user": 2, "epsilon": 10.0, "delta": 1e-4}
_PUBLIC_ROWS = people(100, seed=6)[0]


def named(kinds: tuple[str, ...], words: str, *arguments: Any, of: Any = fit, **options: Any) -> dict[str, Case]:
    """A case for each of some estimators."""
    return {f"{kind} {words}": partial(of, kind, *arguments, **options) for kind in kinds}


_FITS = {
    **named((LOGISTIC, SVC, LINEAR, HUBER, QUANTILE, POISSON), "float64"),
    **named((LOGISTIC, LINEAR, QUANTILE, POISSON), "float32", dtype=np.float32, size=SOME),
    **named((LOGISTIC, SVC, LINEAR, QUANTILE, POISSON), "sparse", "sparse"),
    **named((LOGISTIC, LINEAR, POISSON), "weights", "weighted"),
    **named((POISSON,), "exposure", exposure=True),
    **named((POISSON,), "weights and exposure", "weighted", exposure=True),
    **named((LOGISTIC, LINEAR), "missing cells", "missing"),
    **named((LOGISTIC, LINEAR), "delta 0", delta=0.0, epsilon=8.0),
    **named((LINEAR, HUBER), "private range", target_range="private"),
    **named((LOGISTIC, SVC), "3 classes", n_classes=3),
    **named((LOGISTIC,), "3 classes sparse", "sparse", n_classes=3),
    **named((LOGISTIC, LINEAR, POISSON), "fast", size=MANY, max_rows_per_user=8),
    **named((LOGISTIC,), "fast float32", size=MANY, max_rows_per_user=8, dtype=np.float32),
    **named((LOGISTIC,), "class weights", class_weight={False: 1.0, True: 3.0}),
    **named((LOGISTIC,), "no intercept", fit_intercept=False),
    **named((LOGISTIC,), "domain", solver=userdp.Solver(domain_radius=1.5)),
    **named((LOGISTIC,), "samples", solver=userdp.Solver(max_gradients=40_000)),
    **named((LOGISTIC,), "rows", privacy_unit="row"),
    **named((LOGISTIC,), "public rows", public_X=_PUBLIC_ROWS),
    **named((LOGISTIC,), "420 features", size={"n_features": 420}, epsilon=30.0),
    **named((LOGISTIC,), "420 features sparse", "sparse", n_rare=417, epsilon=30.0),
    **named((LOGISTIC,), "much noise", size={"n_users": 300}, epsilon=0.5),
    **named((LINEAR,), "l2", l2=0.1),
    **named((SVC,), "hinge", loss="hinge"),
    **named((QUANTILE,), "0.8", quantile=0.8),
    **named((HUBER,), "threshold", threshold=5.0),
}
_PAPER = {}
for _solver in ("phased-sgd", "accelerated"):
    _PAPER |= named((LOGISTIC, LINEAR), _solver, solver=_solver, size={"n_users": 2000})
    _PAPER |= named((LOGISTIC,), f"{_solver} paper", solver=userdp.Solver(_solver, mode="paper"), **_PAPER_SIZES)
_COLUMNS = named((LOGISTIC, LINEAR), "public columns", False, of=described)
_COLUMNS |= named((LOGISTIC, LINEAR), "private columns", True, of=described)
_INTERVALS = named((LOGISTIC, LINEAR, POISSON), "dense", inference=True, size={"n_users": 5000})
_INTERVALS |= named((LOGISTIC,), "columns", False, of=described, inference=True, epsilon=12.0)
_EVALUATED = named((LOGISTIC, LINEAR, POISSON), "fit", evaluate=0.25, size={"n_users": 2500})
_PENALTIES = {"l2": [0.0, 1.0, 30.0]}


def records(cases: dict[str, Case]) -> dict[str, Case]:
    return {name: partial(record_of, case) for name, case in cases.items()}


CASES: dict[str, dict[str, Case]] = {
    "fits": records(_FITS)
    | {
        "pipeline": after_polynomials,
        "minimize Ball": partial(own_loss, userdp.Ball(10.0)),
        "minimize Box": partial(own_loss, userdp.Box(np.full(3, -0.7), np.array([1.0, 0.5, 0.4]))),
    },
    "paper": records(_PAPER),
    "columns": records(_COLUMNS),
    "intervals": records(_INTERVALS),
    "evaluation": records(_EVALUATED)
    | named((LOGISTIC,), "by groups", of=evaluated, by=True)
    | named((LOGISTIC,), "rows", of=evaluated, weigh="rows", max_rows_per_user=3)
    | named((LOGISTIC,), "3 classes", of=evaluated, n_classes=3)
    | named((LINEAR,), "errors", of=evaluated, metrics=["mae", "mse", "rmse", "r2"])
    | named((POISSON,), "usual", of=evaluated),
    "search": named((LOGISTIC,), "l2", _PENALTIES, of=search)
    | named((LOGISTIC,), "no refit", _PENALTIES, of=search, refit=False)
    | named((LINEAR,), "intercept", {"fit_intercept": [True, False]}, of=search),
    "means": {
        "mean": mean,
        "mean of few": partial(mean, n_users=400),
        "mean with intervals": partial(mean, inference=True),
        "mean of a long tail": partial(mean, tail=True, inference=True),
        "scaler": scaler,
    },
    "plans": {
        "logistic": partial(planned, 48_092, 30, 29),
        "few users": partial(planned, 500, 3, 20),
        "many users": partial(planned, 2_000_000, 20, 50),
        "squared, delta 0": partial(planned, 20_000, 10, 5, loss="squared", delta=0.0),
        "poisson, limited": partial(planned, 20_000, 10, 5, loss="poisson", max_gradients=3_000_000),
        "450 features, l2": partial(planned, 20_000, 10, 450, epsilon=4.0, l2=0.01),
    },
    "statements": {
        "default": partial(statement, _FITS[f"{LOGISTIC} float64"], whole=True),
        "delta 0": partial(statement, _FITS[f"{LOGISTIC} delta 0"]),
        "samples": partial(statement, _FITS[f"{LOGISTIC} samples"]),
        "rows": partial(statement, _FITS[f"{LOGISTIC} rows"]),
        "private range": partial(statement, _FITS[f"{LINEAR} private range"]),
        "accelerated": partial(statement, _PAPER[f"{LOGISTIC} accelerated"], whole=True),
    },
    "models": {
        "scores": partial(model_file, _EVALUATED[f"{LOGISTIC} fit"], whole=True),
        "private columns": partial(model_file, _COLUMNS[f"{LOGISTIC} private columns"]),
        "intervals": partial(model_file, _INTERVALS[f"{LINEAR} dense"]),
        "exposure": partial(model_file, _FITS[f"{POISSON} weights and exposure"]),
        "3 classes": partial(model_file, _FITS[f"{SVC} 3 classes"]),
    },
    "ledger": {"a file": ledger_file},
    "commands": {"shop": commands},
}
