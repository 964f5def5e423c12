"""Coverage of private confidence intervals, and how wide they are, on generated people whose best model is known.

A user's rows are alike: features share a taste, and errors are correlated within a user (`alike`, by a Gaussian copula,
so that each row by itself follows the model exactly and the truth is known). Each run draws new people and new noise.
`coverage` is the fraction of all coefficients that 95% intervals hold; `least` that of the coefficient that is held
least often, `intercept` the intercept's. `width` is the standard error over the ideal one: the true sandwich at the
truth, with the noise that was in fact added to the gradient; `noise` the part of the variance that is privacy's.
`rmse/se` is the true error over the standard error. With r runs of k coefficients, coverage of 95% is told up to about
1.96 sqrt(.0475 / (r k)), more where coefficients go together.

With `--real` people are drawn from a real data set, and the truth is the optimum of all its training people (without
privacy, same cap on rows), which they are a part of.

    python benchmarks/intervals.py [--kinds logistic,linear,poisson] [--users 2000,10000] [--rows 1,10,unequal]
        [--epsilon 0.5,1,8] [--features 5] [--correlation 0.5] [--fraction 0.5] [--runs 100] [--save]
    python benchmarks/intervals.py --real openpowerlifting --users 5000 --epsilon 3,8 --runs 20
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
import warnings

import numpy as np
from common import save
from scipy.special import expit, logit, ndtr
from scipy.stats import poisson

from userdp import Ball, BudgetExceeded, UserData, losses
from userdp.bench.references import user_optimum
from userdp.bench.tasks import known_tasks
from userdp.models.fitting import minimize

TASTE = 0.1  # fraction of a feature's variance that all rows of a user have in common
ALIKE = 0.3  # correlation of errors of a user's rows
MOST, ERROR = 30.0, 0.15  # largest count; standard deviation of errors in regression
LOSSES = {"logistic": losses.logistic, "linear": losses.squared, "poisson": losses.poisson(MOST)}
SIGNALS = {"logistic": (1.0, 0.2), "linear": (0.2, 0.1), "poisson": (0.4, 0.3)}  # of the first feature; intercept
SIZES = {"unequal": (1, 2, 5, 40)}
IDEAL_ROWS = 400_000


def truth(kind: str, features: int) -> np.ndarray:
    """The first feature's weight, half of it with the other sign, zeros, and the intercept."""
    weights = np.zeros(features + 1)
    signal, weights[-1] = SIGNALS[kind]
    weights[: min(2, features)] = (signal, -signal / 2)[: min(2, features)]
    return weights


def people(kind: str, n_users: int, sizes: tuple[int, ...], features: int, correlation: float, seed: int) -> UserData:
    """Users whose rows each follow the model of these weights."""
    rng = np.random.default_rng(seed)
    counts = np.resize(sizes, n_users)
    owner = np.repeat(np.arange(n_users), counts)
    z = math.sqrt(1 - TASTE) * rng.normal(size=(len(owner), features + 1))
    z += math.sqrt(TASTE) * rng.normal(size=(n_users, features + 1))[owner]
    X = math.sqrt(1 - correlation) * z[:, 1:] + math.sqrt(correlation) * z[:, :1]
    predictions = X @ truth(kind, features)[:-1] + truth(kind, features)[-1]
    error = math.sqrt(ALIKE) * rng.normal(size=n_users)[owner] + math.sqrt(1 - ALIKE) * rng.normal(size=len(owner))
    if kind == "linear":
        y = predictions + ERROR * error
    elif kind == "logistic":
        y = (predictions + logit(ndtr(error)) > 0).astype(float)
    else:
        y = np.minimum(poisson.ppf(ndtr(error), np.exp(predictions)), MOST) / MOST
    return UserData.from_arrays(X, y, owner, max_rows_per_user=int(max(sizes)), fit_intercept=True)


def sandwich(kind: str, sizes: tuple[int, ...], features: int, correlation: float) -> tuple[np.ndarray, np.ndarray]:
    """Mean curvature and mean square of users' gradients at the truth, by very many rows of other users."""
    n_users = int(IDEAL_ROWS / np.mean(sizes))
    data = people(kind, n_users, sizes, features, correlation, seed=10**6)
    rows = np.column_stack([data.dense()[:, :features].astype(float), np.ones(data.n_rows)])
    predictions, counts = rows @ truth(kind, features), np.diff(data.offsets)
    expected = {"linear": predictions, "logistic": expit(predictions), "poisson": np.exp(predictions) / MOST}[kind]
    curved = {"linear": np.ones(len(rows)), "logistic": expected * (1 - expected), "poisson": expected}[kind]
    share = np.repeat(1 / counts, counts)
    gradients = np.add.reduceat((share * (expected - data.targets))[:, None] * rows, data.offsets[:-1], axis=0)
    return (rows.T * (share * curved)) @ rows / n_users, gradients.T @ gradients / n_users


def measure(
    kind: str, n_users: int, rows: str, epsilon: float, features: int, correlation: float, fraction: float, runs: int
) -> dict[str, object]:
    """One cell: how often intervals hold the truth, and how wide they are."""
    sizes = SIZES.get(rows) or (int(rows),)
    cell: dict[str, object] = {
        "kind": kind,
        "users": n_users,
        "rows": rows,
        "epsilon": epsilon,
        "features": features,
        "correlation": correlation,
        "fraction": fraction,
        "runs": runs,
    }
    best, started = truth(kind, features), time.process_time()
    curved, square = sandwich(kind, sizes, features, correlation)
    inverse = np.linalg.inv(curved)
    held, widths, noises, relative = [], [], [], []
    for seed in range(runs):
        data = people(kind, n_users, sizes, features, correlation, seed)
        options = {"rows_per_user": max(sizes), "insecure_seed": seed, "inference": fraction, "progress": False}
        try:
            result = minimize(
                LOSSES[kind], data, Ball(1e9), epsilon, target_bound=None if kind == "logistic" else 1.0, **options
            )
        except BudgetExceeded as refused:
            return cell | {"refused": True, "enough_users": refused.enough_users}
        found = result.uncertainty
        errors = np.sqrt(np.diag(found.covariance))
        ideal = np.sqrt(np.diag(inverse @ (found.gradient_noise + square / n_users) @ inverse))
        relative.append((result.weights - best) / errors)
        held.append(np.abs(relative[-1]) <= 1.959964)
        widths.append(errors / ideal)
        noises.append(np.diag(found.noise) / errors**2)
    each = np.mean(held, axis=0)
    return cell | {
        "coverage": float(each.mean()),
        "least": float(each.min()),
        "intercept": float(each[-1]),
        "width": float(np.mean(widths)),
        "noise": float(np.mean(noises)),
        "rmse/se": float(np.sqrt(np.mean(np.square(relative)))),
        "each": each.tolist(),
        "seconds": round((time.process_time() - started) / runs, 2),
    }


def measure_real(name: str, n_users: int, epsilon: float, fraction: float, runs: int) -> dict[str, object]:
    """The same with people of a real data set; the ideal width is not known."""
    task = known_tasks()[name]
    everyone = task.load_train()
    best = user_optimum(task.loss, everyone)
    cell: dict[str, object] = {"kind": name, "users": n_users, "epsilon": epsilon, "fraction": fraction, "runs": runs}
    cell |= {"rows": str(task.cap), "features": everyone.n_features - 1, "correlation": math.nan, "width": math.nan}
    relative, noises, started = [], [], time.process_time()
    for seed in range(runs):
        data = task.load_train(seed + 1, n_users)
        bound = None if task.loss.classifies else 1.0
        options = {"rows_per_user": task.cap, "insecure_seed": seed, "inference": fraction, "progress": False}
        try:
            result = minimize(task.loss, data, Ball(1e9), epsilon, target_bound=bound, **options)
        except BudgetExceeded as refused:
            return cell | {"refused": True, "enough_users": refused.enough_users}
        found = result.uncertainty
        among = found.noise + found.sampling * (1 - n_users / everyone.n_users)  # drawn without replacement
        relative.append((result.weights - best) / np.sqrt(np.diag(among)))
        noises.append(np.diag(found.noise) / np.diag(found.covariance))
    held = np.abs(relative) <= 1.959964
    each = held.mean(axis=0)
    return cell | {
        "coverage": float(each.mean()),
        "least": float(each.min()),
        "intercept": float(each[-1]),
        "noise": float(np.mean(noises)),
        "rmse/se": float(np.sqrt(np.mean(np.square(relative)))),
        "each": each.tolist(),
        "seconds": round((time.process_time() - started) / runs, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words, numbers = (lambda text: text.split(",")), (lambda text: [float(part) for part in text.split(",")])
    parser.add_argument("--kinds", type=words, default=list(LOSSES))
    parser.add_argument("--users", type=numbers, default=[2_000, 10_000, 50_000])
    parser.add_argument("--rows", type=words, default=["1", "10", "unequal"])
    parser.add_argument("--epsilon", type=numbers, default=[0.5, 1, 3, 8])
    parser.add_argument("--features", type=numbers, default=[5])
    parser.add_argument("--correlation", type=numbers, default=[0.5])
    parser.add_argument("--fraction", type=float, default=0.5)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--real", help="a task of `userdp bench real`, instead of generated people")
    parser.add_argument("--save", action="store_true", help="write results/intervals.json")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    print("kind      users   rows     eps  features corr | coverage  least  intercept  width  noise  rmse/se  s/fit")
    cells = []
    if args.real:
        cases = [(args.real, *case) for case in itertools.product(args.users, args.epsilon)]
    else:
        cases = list(
            itertools.product(args.kinds, args.users, args.rows, args.epsilon, args.features, args.correlation)
        )
    for case in cases:
        if args.real:
            cell = measure_real(args.real, int(case[1]), case[2], args.fraction, args.runs)
        else:
            kind, n_users, rows, epsilon, features, correlation = case
            cell = measure(kind, int(n_users), rows, epsilon, int(features), correlation, args.fraction, args.runs)
        cells.append(cell)
        print("{kind:9} {users:6.0f} {rows:>7} {epsilon:6g} {features:8.0f} {correlation:5g} |".format(**cell), end=" ")
        if "refused" in cell:
            print(f"refused: {cell['enough_users']} users would do", flush=True)
            continue
        told = "{coverage:8.3f} {least:7.3f} {intercept:9.3f} {width:8.2f} {noise:6.2f} {rmse/se:7.2f} {seconds:7.2f}"
        print(told.format(**cell), flush=True)
    if args.save:
        print(f"Wrote {save('intervals', {args.real or 'coverage': cells})}")


if __name__ == "__main__":
    main()
