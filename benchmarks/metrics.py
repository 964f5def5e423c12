"""Private scores: how often their intervals hold the truth, and their error beside that of one metric alone.

People are drawn anew in each run, with rows that are alike (half of the margins' variance is theirs); the model is
fixed, and a little off. The truth is an integral over the distribution of a row, the same for any number of rows.
`--rows unequal` gives people 1 to 200 rows, more to those with larger margins; `--far 0.01` makes a hundredth of them
as bad as can be (features missing, or the target at the end of its range). For each cell (users, rows a user, epsilon,
fraction of class 1) and metric:

    coverage   of 95% intervals
    joint      root mean square error of the joint release, noise and sample of people
    alone      of the same release with this metric only
    mean       of `private_mean` of the same losses (outlier removal), for metrics that are means of losses
    ratio      joint over the best of the others

    python benchmarks/metrics.py [--users 1000,10000] [--rows 1,3,10,50,unequal] [--epsilon 0.5,1,8]
        [--class-1 0.4,0.03] [--kind classes,numbers] [--metrics log_loss,auc,calibration] [--far 0.01]
        [--runs 100] [--first-seed 0] [--joint-only]
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import warnings

import numpy as np
from scipy.special import expit

import userdp
from userdp.evaluation import evaluate
from userdp.evaluation.row_losses import row_losses, scale_of

END = 8.0  # of the range of targets
MEANS = ("log_loss", "brier", "accuracy", "mae")


def people(
    kind: str, n_users: int, rows: int | str, of_class_1: float, seed: int, far: float = 0.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One feature, targets and owners."""
    rng = np.random.default_rng(seed)
    person = rng.normal(size=n_users)
    counts: int | np.ndarray = int(rows) if rows != "unequal" else 0
    if rows == "unequal":
        counts = np.clip(np.round(np.exp(1.2 + 0.8 * person + rng.normal(size=n_users))), 1, 200).astype(int)
    owner = np.repeat(np.arange(n_users), counts)
    X = (person[owner] + rng.normal(size=len(owner)))[:, None]
    out = np.random.default_rng(10**6 + seed).random(n_users) < far
    if kind == "numbers":
        y = X[:, 0] + 0.5 * rng.normal(size=n_users)[owner] + rng.normal(size=len(owner))
        return X, np.where(out[owner], END, y), owner
    middle = math.log(of_class_1 / (1 - of_class_1))
    y = (rng.random(len(owner)) < expit(X[:, 0] + middle)).astype(int)
    return np.where(out[owner][:, None], np.nan, X), y, owner


def model_of(kind: str, of_class_1: float) -> userdp.LogisticRegression | userdp.LinearRegression:
    """As if it was fitted, and off by a quarter."""
    if kind == "numbers":
        model = userdp.LinearRegression(target_range=(-END, END))
        model.coef_, model.intercept_, model.n_features_in_ = np.array([0.8]), 0.2, 1
        return model
    model = userdp.LogisticRegression(classes=[0, 1])
    middle = math.log(of_class_1 / (1 - of_class_1))
    model.coef_, model.intercept_ = np.array([[0.75]]), np.array([middle + 0.2])
    model.classes_, model.n_features_in_ = np.array([0, 1]), 1
    return model


@functools.cache
def truth(kind: str, of_class_1: float, far: float) -> dict[str, float]:
    """Scores of the population, of which each person counts once."""
    model, x = model_of(kind, of_class_1), np.linspace(-14, 14, 4001)
    density = np.exp(-(x**2) / 4) / np.exp(-(x**2) / 4).sum()  # of the feature, of variance 2
    if isinstance(model, userdp.LinearRegression):
        errors = np.linspace(-8, 8, 1601)
        both = density[:, None] * np.exp(-(errors**2) / 2.5) / np.exp(-(errors**2) / 2.5).sum()
        both = np.vstack([(1 - far) * both, far * both]).ravel()
        y = np.clip(x[:, None] + errors, -END, END)
        y = np.vstack([y, np.full_like(y, END)]).ravel()
        predicted = np.tile(np.repeat(np.clip(model.predict(x[:, None]), -END, END), len(errors)), 2)
        mse = float(both @ (y - predicted) ** 2)
        mae = float(both @ np.abs(y - predicted))
        return {"mae": mae, "mse": mse, "rmse": math.sqrt(mse), "r2": 1 - mse / float(both @ (y - both @ y) ** 2)}
    margins, chances = model.decision_function(x[:, None]), model.predict_proba(x[:, None])[:, 1]
    ones = expit(x + math.log(of_class_1 / (1 - of_class_1))) * density
    zeros, limit = density - ones, scale_of(model).limit
    design, line = np.column_stack([np.ones(len(x)), margins]), np.array([0.0, 1.0])
    for _ in range(30):
        fitted = expit(design @ line)
        curvature = (design * (density * fitted * (1 - fitted))[:, None]).T @ design
        line = line + np.linalg.solve(curvature, design.T @ (ones - density * fitted))
    losses = np.minimum(np.logaddexp(0, np.array([[1.0], [-1.0]]) * margins), limit)
    return {
        "log_loss": (1 - far) * float(zeros @ losses[0] + ones @ losses[1]) + far * limit,
        "brier": (1 - far) * float(zeros @ chances**2 + ones @ (1 - chances) ** 2) + far,
        "accuracy": (1 - far) * float(np.where(margins > 0, ones, zeros).sum()),
        "auc": float((np.cumsum(zeros) - zeros / 2) @ ones / (zeros.sum() * ones.sum())),
        "calibration_intercept": float(line[0]),
        "calibration_slope": float(line[1]),
    }


def cell(
    kind: str,
    n_users: int,
    rows: str,
    epsilon: float,
    of_class_1: float,
    names: list[str],
    seeds: range,
    far: float,
    joint_only: bool,
) -> None:
    """Print a line for each metric."""
    model = model_of(kind, of_class_1)
    known = truth(kind, of_class_1, far)
    errors: dict[str, dict[str, list[float]]] = {}
    held: dict[str, list[bool]] = {}
    untold = dict.fromkeys(known, 0)
    for seed in seeds:
        X, y, owner = people(kind, n_users, rows, of_class_1, seed, far)
        joint = evaluate(model, X, y, owner, epsilon=epsilon, metrics=names)
        for name, score in joint.scores.items():
            if math.isnan(score.value):
                untold[name] += 1
                continue
            held.setdefault(name, []).append(score.low <= known[name] <= score.high)
            errors.setdefault(name, {}).setdefault("joint", []).append(score.value - known[name])
        for metric in () if joint_only else names:
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
            f"{kind:8} {n_users:7,} {rows:>7} {epsilon:5g} {of_class_1:5g} {name:22} {covered:8.3f} {shown}"
            f" {ratio:6.2f}{f'  not told {untold[name]}x' if untold[name] else ''}",
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
    parser.add_argument("--far", type=float, default=0.0)
    parser.add_argument("--joint-only", action="store_true")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    print("kind       users    rows   eps class metric                 coverage     joint     alone      mean  ratio")
    grid = itertools.product(
        asked.kind.split(","),
        map(int, asked.users.split(",")),
        asked.rows.split(","),
        map(float, asked.epsilon.split(",")),
        map(float, asked.class_1.split(",")),
    )
    for kind, users, rows, epsilon, of_class_1 in grid:
        usual = "log_loss,auc,calibration" if kind == "classes" else "mae,rmse,r2"
        names = (asked.metrics or usual).split(",")
        seeds = range(asked.first_seed, asked.first_seed + asked.runs)
        cell(kind, users, rows, epsilon, of_class_1, names, seeds, asked.far, asked.joint_only)


if __name__ == "__main__":
    main()
