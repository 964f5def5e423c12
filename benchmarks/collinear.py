"""Weights of columns that other columns tell, or that are 0 everywhere: near those of least norm, or mere noise?

The default solver, least squares, on 2,000 and 10,000 users of 3 rows, 40,000 of 6 (the fast schedule), and 10,000
with public rows. `off` is how far weights are from those of least norm (over their length), `broken` the mean square of
predictions' difference to those on rows in which no column tells another, over that of the latter's predictions;
`nothing` the largest weight of a column that is 0, or a level that nobody has, in units of what moves a prediction by
its standard deviation.

    python benchmarks/collinear.py [runs]
"""

from __future__ import annotations

import itertools
import sys
import warnings

import numpy as np

import userdp

PEOPLE = {
    "2,000": (2_000, 3, False),
    "10,000": (10_000, 3, False),
    "40,000": (40_000, 6, False),
    "public": (10_000, 3, True),
}
KINDS = ("full one-hot", "sum", "scaled copy", "zero column", "empty level")


def table(kind: str, rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Features, and the expected target."""
    X = rng.normal(size=(n, 4))
    mean = 0.8 * X[:, 0] - 0.5 * X[:, 1]
    if kind == "sum":
        X = np.column_stack([X, X[:, :2].sum(axis=1)])
    elif kind == "scaled copy":
        X = np.column_stack([X, 3 * X[:, 0]])
    elif kind == "zero column":
        X = np.column_stack([X, np.zeros(n)])
    else:
        level = rng.choice(4 if kind == "full one-hot" else 3, n)
        X = np.column_stack([X, np.eye(4)[level]])
        mean = mean + np.array([0.0, 0.4, -0.3, 0.0])[level]
    return X, mean


def measured(kind: str, n_users: int, rows: int, public: bool, epsilon: float, seed: int) -> tuple[float, float, float]:
    rng = np.random.default_rng(seed)
    X, mean = table(kind, rng, n_users * rows)
    y = mean + 0.5 * rng.normal(size=len(mean))
    shown = table(kind, rng, 2_000)[0] if public else None
    settings = {"target_range": (-6, 6), "max_rows_per_user": rows, "insecure_seed": seed, "public_X": shown}
    model = userdp.LinearRegression(epsilon, **settings).fit(X, y, groups=np.repeat(np.arange(n_users), rows))
    best = np.linalg.lstsq(np.column_stack([X, np.ones(len(X))]), y, rcond=1e-9)[0]
    weights = np.append(model.coef_, model.intercept_)
    other = np.column_stack([rng.normal(size=X.shape), np.ones(len(X))])
    broken = np.mean((other @ (weights - best)) ** 2) / np.mean((other @ best) ** 2)
    nothing = np.abs(weights[:-1][X.std(axis=0) == 0]).max(initial=0.0)
    return np.linalg.norm(weights - best) / np.linalg.norm(best), broken, nothing


def main() -> None:
    warnings.simplefilter("ignore")
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    print("columns         people  epsilon     off   broken   nothing")
    for people, kind, epsilon in itertools.product(PEOPLE, KINDS, (1.0, 8.0)):
        found = [measured(kind, *PEOPLE[people], epsilon, seed) for seed in range(runs)]
        values = "".join(f"{value:9.4f}" for value in np.mean(found, axis=0))
        print(f"{kind:15} {people:>7} {epsilon:7g}{values}", flush=True)


if __name__ == "__main__":
    main()
