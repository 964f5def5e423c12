"""Coverage of private quantiles of skewed targets, beside scikit-learn's without privacy on the same people; bias of
private Huber regression.

Targets are lognormal, exponential (both spread with a feature) or 0 for most rows; people's rows are alike. A quantile
covers a target that is at most the prediction. `by person` is the mean over people of their covered fraction, which is
what is minimised; where many targets are 0, predictions within a hundredth of the targets' spread of 0 count as 0, and
the nearest of what lies below and up to it is told. Measured on other people, 20,000 of them. `missed` is what is
covered too much or too little, by person: root mean square and most over the runs.

Of Huber regression (`--huber`) with a threshold of a tenth of the range that fits: how far predictions are from those
of the best model of 100,000 people, in units of the targets' standard deviation; their mean, and root mean square.

    python benchmarks/quantile_coverage.py [--users 2000,10000] [--rows 1,3] [--epsilon 1,8] [--wide 1,10] [--runs 3]
        [--first-seed 1000] [--huber]
"""

from __future__ import annotations

import argparse
import functools
import itertools
import warnings

import numpy as np
from sklearn.linear_model import QuantileRegressor

import userdp

HIGHEST = {"lognormal": 100.0, "exponential": 60.0, "zeros": 60.0}  # what one target in some thousands exceeds
FEATURES = 10


def people(kind: str, n_users: int, rows: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, targets and owners."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(n_users), rows)
    X = np.clip(
        0.6 * rng.normal(size=(n_users, FEATURES))[owner] + 0.8 * rng.normal(size=(len(owner), FEATURES)), -3, 3
    )
    taste = 0.3 * rng.normal(size=n_users)[owner]
    if kind == "lognormal":
        return X, np.exp(2 + 0.25 * X[:, 0] - 0.15 * X[:, 1] + taste + 0.6 * rng.normal(size=len(X))), owner
    spread = 5 * np.exp(0.2 * X[:, 0] + taste)
    y = spread * rng.exponential(size=len(X))
    return X, y if kind == "exponential" else np.where(rng.random(len(X)) < 0.3, 0.0, y), owner


def coverage(predicted: np.ndarray, y: np.ndarray, owner: np.ndarray, quantile: float) -> tuple[float, float]:
    """By person and by row."""
    near = np.where(y == 0, 0.01 * np.std(y), 0.0)
    below, upto = (y < predicted - near).astype(float), (y <= predicted + near).astype(float)
    counts = np.bincount(owner)
    found = []
    for weights in (1 / counts[owner] / len(counts), np.full(len(y), 1 / len(y))):
        found.append(float(np.clip(quantile, weights @ below, weights @ upto)))
    return found[0], found[1]


def pinball(predicted: np.ndarray, y: np.ndarray, quantile: float) -> float:
    error = y - predicted
    return float(np.mean(np.maximum(quantile * error, (quantile - 1) * error)))


def one(
    kind: str, quantile: float, n_users: int, rows: int, epsilon: float | None, wide: float, seed: int
) -> list[float]:
    """Coverage by person and by row, and the loss over that of a model without privacy of many people."""
    X, y, owner = people(kind, n_users, rows, seed)
    if epsilon is None:
        kept = owner < 2_000  # linear programs of more take long
        weights = np.full(kept.sum(), 1.0)
        model = QuantileRegressor(quantile=quantile, alpha=0.0).fit(X[kept], y[kept], sample_weight=weights)
    else:
        model = userdp.QuantileRegressor(
            epsilon,
            quantile=quantile,
            target_range=(0, wide * HIGHEST[kind]),
            max_rows_per_user=rows,
            insecure_seed=seed,
        ).fit(X, y, groups=owner)
    new_X, new_y, new_owner = people(kind, 20_000, 2, 10_000 + seed)
    predicted = model.predict(new_X)
    return [*coverage(predicted, new_y, new_owner, quantile), pinball(predicted, new_y, quantile)]


@functools.cache
def best_huber(kind: str) -> np.ndarray:
    """Weights, the intercept last, that minimise Huber's loss: least squares, reweighted until nothing changes."""
    X, y, _ = people(kind, 100_000, 2, 9_999)
    X, threshold = np.column_stack([X, np.ones(len(X))]), HIGHEST[kind] / 10
    weights, before = np.zeros(X.shape[1]), np.ones(X.shape[1])
    while np.abs(weights - before).max() > 1e-9:
        kept = threshold / np.maximum(np.abs(y - X @ weights), threshold)
        weights, before = np.linalg.solve((X.T * kept) @ X, (X.T * kept) @ y), weights
    return weights


def one_huber(kind: str, n_users: int, rows: int, epsilon: float, wide: float, seed: int) -> list[float]:
    """Mean and mean square of what predictions are above the best ones, in units of targets' standard deviation."""
    X, y, owner = people(kind, n_users, rows, seed)
    model = userdp.HuberRegressor(
        epsilon,
        threshold=HIGHEST[kind] / 10,
        target_range=(0, wide * HIGHEST[kind]),
        max_rows_per_user=rows,
        insecure_seed=seed,
    ).fit(X, y, groups=owner)
    new_X, new_y, _ = people(kind, 20_000, 2, 10_000 + seed)
    best = best_huber(kind)
    above = (model.predict(new_X) - new_X @ best[:-1] - best[-1]) / np.std(new_y)
    return [float(above.mean()), float(np.mean(above**2))]


def main_huber(args: argparse.Namespace) -> None:
    print("targets        users  rows  epsilon  range   bias: mean, root mean square, most   rms of predictions")
    cases = itertools.product(args.kinds, args.users, args.rows, args.epsilon, args.wide)
    for kind, n_users, rows, epsilon, wide in cases:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            seeds = range(args.first_seed, args.first_seed + args.runs)
            runs = np.array([one_huber(kind, int(n_users), int(rows), epsilon, wide, seed) for seed in seeds])
        bias, squares = runs.T
        print(
            f"{kind:12} {n_users:7g} {rows:5g} {epsilon:8g} {wide:6g}   {bias.mean():+.4f}  "
            f"{np.sqrt(np.mean(bias**2)):.4f}  {np.abs(bias).max():.4f}   {np.sqrt(squares.mean()):.4f}",
            flush=True,
        )


def numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=list(HIGHEST))
    parser.add_argument("--quantiles", type=numbers, default=[0.1, 0.5, 0.9])
    parser.add_argument("--users", type=numbers, default=[2_000, 10_000, 50_000])
    parser.add_argument("--rows", type=numbers, default=[1, 3, 10, 50])
    parser.add_argument("--epsilon", type=numbers, default=[1, 8])
    parser.add_argument("--wide", type=numbers, default=[1, 10])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--without-privacy", action="store_true")
    parser.add_argument("--huber", action="store_true")
    args = parser.parse_args()
    if args.huber:
        main_huber(args)
        return
    print("targets      quantile  users  rows  epsilon  range   by person  missed: rms, most   by row   pinball loss")
    cases = itertools.product(args.kinds, args.quantiles, args.users, args.rows, args.epsilon, args.wide)
    if args.without_privacy:
        cases = itertools.product(args.kinds, args.quantiles, [2_000], args.rows, [None], [1])
    for kind, quantile, n_users, rows, epsilon, wide in cases:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            seeds = range(args.first_seed, args.first_seed + args.runs)
            runs = [one(kind, quantile, int(n_users), int(rows), epsilon, wide, seed) for seed in seeds]
        noted = "  warned" if any(issubclass(w.category, userdp.UtilityWarning) for w in told) else ""
        mean, missed = np.mean(runs, axis=0), np.array(runs)[:, 0] - quantile
        print(
            f"{kind:12} {quantile:7g} {n_users:7g} {rows:5g} {epsilon or np.inf:8g} {wide:6g}   {mean[0]:.3f}      "
            f"{np.sqrt(np.mean(missed**2)):.4f} {np.abs(missed).max():.3f}   {mean[1]:.3f}  {mean[2]:.4f}{noted}",
            flush=True,
        )


if __name__ == "__main__":
    main()
