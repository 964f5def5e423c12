"""Private scores: how often their intervals hold the truth, and their error beside that of one metric alone.

People are drawn anew in each run, with rows that are alike (half of the margins' variance is theirs); the model is
fixed, and a little off. The truth is that of 4,000,000 other people with one row each, which has the same distribution
as any row. For each cell (users, rows a user, epsilon, fraction of class 1) and metric:

    coverage   of 95% intervals
    joint      root mean square error of the joint release, noise and sample of people
    alone      of the same release with this metric only
    mean       of `private_mean` of the same losses (outlier removal), for metrics that are means of losses
    ratio      joint over the best of the others

    python benchmarks/metrics.py [--users 1000,10000] [--rows 1,3,10,50] [--epsilon 0.5,1,8] [--class-1 0.4,0.03]
        [--kind classes,numbers] [--metrics log_loss,auc,calibration] [--runs 100] [--first-seed 0]
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import warnings

import numpy as np
from sklearn import metrics as sk
from sklearn.linear_model import LogisticRegression as PlainLogistic

import userdp
from userdp.metrics import evaluate
from userdp.metrics.scoring import row_losses, scale_of

POPULATION = 4_000_000
MEANS = ("log_loss", "brier", "accuracy", "mae")


def people(
    kind: str, n_users: int, rows: int, of_class_1: float, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One feature, targets and owners."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(n_users), rows)
    X = (rng.normal(size=n_users)[owner] + rng.normal(size=len(owner)))[:, None]
    if kind == "numbers":
        return X, X[:, 0] + 0.5 * rng.normal(size=n_users)[owner] + rng.normal(size=len(owner)), owner
    middle = math.log(of_class_1 / (1 - of_class_1))
    return X, (rng.random(len(owner)) < 1 / (1 + np.exp(-X[:, 0] - middle))).astype(int), owner


def model_of(kind: str, of_class_1: float) -> userdp.LogisticRegression | userdp.LinearRegression:
    """As if it was fitted, and off by a quarter."""
    if kind == "numbers":
        model = userdp.LinearRegression(target_range=(-8, 8))
        model.coef_, model.intercept_, model.n_features_in_ = np.array([0.8]), 0.2, 1
        return model
    model = userdp.LogisticRegression(classes=[0, 1])
    middle = math.log(of_class_1 / (1 - of_class_1))
    model.coef_, model.intercept_ = np.array([[0.75]]), np.array([middle + 0.2])
    model.classes_, model.n_features_in_ = np.array([0, 1]), 1
    return model


@functools.cache
def truth(kind: str, of_class_1: float) -> dict[str, float]:
    """Scores of the population: the same for any number of rows, if all people have equally many."""
    model = model_of(kind, of_class_1)
    X, y, _ = people(kind, POPULATION, 1, of_class_1, 10**6)
    if isinstance(model, userdp.LinearRegression):
        predicted, y = np.clip(model.predict(X), -8, 8), np.clip(y, -8, 8)
        return {
            "mae": sk.mean_absolute_error(y, predicted),
            "mse": sk.mean_squared_error(y, predicted),
            "rmse": sk.root_mean_squared_error(y, predicted),
            "r2": sk.r2_score(y, predicted),
        }
    margins, chances = model.decision_function(X), model.predict_proba(X)[:, 1]
    again = PlainLogistic(C=np.inf).fit(margins[:, None], y)
    return {
        "log_loss": float(row_losses(model, X, y, "log_loss").mean() * scale_of(model).limit),
        "brier": sk.brier_score_loss(y, chances),
        "accuracy": sk.accuracy_score(y, margins > 0),
        "auc": sk.roc_auc_score(y, margins),
        "calibration_intercept": float(again.intercept_[0]),
        "calibration_slope": float(again.coef_[0, 0]),
    }


def cell(kind: str, n_users: int, rows: int, epsilon: float, of_class_1: float, names: list[str], seeds: range) -> None:
    """Print a line for each metric."""
    model = model_of(kind, of_class_1)
    known = truth(kind, of_class_1)
    errors: dict[str, dict[str, list[float]]] = {}
    held: dict[str, list[bool]] = {}
    untold = dict.fromkeys(known, 0)
    for seed in seeds:
        X, y, owner = people(kind, n_users, rows, of_class_1, seed)
        joint = evaluate(model, X, y, owner, epsilon=epsilon, metrics=names)
        for name, score in joint.scores.items():
            if math.isnan(score.value):
                untold[name] += 1
                continue
            held.setdefault(name, []).append(score.low <= known[name] <= score.high)
            errors.setdefault(name, {}).setdefault("joint", []).append(score.value - known[name])
        for metric in names:
            for name, score in evaluate(model, X, y, owner, epsilon=epsilon, metrics=[metric]).scores.items():
                if not math.isnan(score.value):
                    errors.setdefault(name, {}).setdefault("alone", []).append(score.value - known[name])
            if metric in MEANS:
                losses = row_losses(model, X, y, metric)
                try:
                    mean = float(userdp.private_mean(losses, owner, epsilon, spread=(1e-4, 2.0)).mean[0])
                except (userdp.BudgetExceeded, userdp.Aborted):
                    continue
                value = 1 - mean if metric == "accuracy" else mean
                value *= scale_of(model).limit if metric in ("log_loss", "mae") else 1.0
                errors.setdefault(metric, {}).setdefault("mean", []).append(value - known[metric])
    for name, found in errors.items():
        sizes = {how: math.sqrt(np.mean(np.square(values))) for how, values in found.items()}
        others = [size for how, size in sizes.items() if how != "joint"]
        ratio = sizes.get("joint", math.nan) / min(others) if others else math.nan
        shown = " ".join(f"{sizes.get(how, math.nan):9.5f}" for how in ("joint", "alone", "mean"))
        covered = np.mean(held[name]) if name in held else math.nan
        print(
            f"{kind:8} {n_users:7,} {rows:4} {epsilon:5g} {of_class_1:5g} {name:22} {covered:8.3f} {shown} {ratio:6.2f}"
            f"{f'  not told {untold[name]}x' if untold[name] else ''}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, default in (("users", "1000,10000"), ("rows", "1,3,10,50"), ("epsilon", "0.5,1,8"), ("class-1", "0.4")):
        parser.add_argument(f"--{option}", default=default)
    parser.add_argument("--kind", default="classes")
    parser.add_argument("--metrics", default=None)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--first-seed", type=int, default=0)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    print("kind       users rows   eps class metric                 coverage     joint     alone      mean  ratio")
    grid = itertools.product(
        asked.kind.split(","),
        map(int, asked.users.split(",")),
        map(int, asked.rows.split(",")),
        map(float, asked.epsilon.split(",")),
        map(float, asked.class_1.split(",")),
    )
    for kind, users, rows, epsilon, of_class_1 in grid:
        usual = "log_loss,auc,calibration" if kind == "classes" else "mae,rmse,r2"
        names = (asked.metrics or usual).split(",")
        cell(kind, users, rows, epsilon, of_class_1, names, range(asked.first_seed, asked.first_seed + asked.runs))


if __name__ == "__main__":
    main()
