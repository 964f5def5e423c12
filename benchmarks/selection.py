"""What private selection gains, and what it costs: fixed defaults, PrivateSearchCV, and a choice that is not private.

    l2         a penalty out of four, for a logistic model of 20 features whose weights are small
    features   3, 10 or all of 30 features, of which the first 3 tell of the target

People have 1, 3, 10 or 50 rows, and a weight vector of their own around the common one. Measured is the log loss of
rows of other people, less that of the best model of these features that knows the truth (excess, lower is better).
"default" is the first candidate with all of the budget. "non-private" fits every candidate with all of the budget and
takes the best by the measured loss itself: what selection could give at most, were it free.

python benchmarks/selection.py [--repeats 5] [--quick] [--only l2 features]
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from common import run_parts
from rich.console import Console
from rich.table import Table
from scipy.optimize import minimize_scalar
from sklearn.metrics import log_loss
from sklearn.pipeline import Pipeline

from userdp import BudgetExceeded, LogisticRegression, make_pipeline
from userdp.model_selection import PrivateSearchCV, SelectFeatures

EPSILON, DELTA = 1.0, 1e-6
ROWS, USERS = (1, 3, 10, 50), (2000, 20_000)
TESTED = 20_000
SPREAD = 0.5  # of people's own weights around the common ones
GRIDS = {
    "l2": {"logisticregression__l2": [0.0, 0.003, 0.03, 0.3]},
    "features": {"selectfeatures__features": [list(range(30)), list(range(10)), list(range(3))]},
}


def generated(rng: np.random.Generator, weights: np.ndarray, n_users: int, rows: int) -> tuple[np.ndarray, ...]:
    """Rows, targets and owners."""
    users = np.repeat(np.arange(n_users), rows)
    X = rng.normal(size=(len(users), len(weights)))
    own = weights + SPREAD * np.abs(weights) * rng.normal(size=(n_users, len(weights)))
    margins = np.einsum("ij,ij->i", X, own[users])
    return X, rng.random(len(users)) < 1 / (1 + np.exp(-margins)), users


def truth(part: str, rng: np.random.Generator) -> np.ndarray:
    if part == "l2":
        return 0.15 * rng.normal(size=20)
    return np.append(rng.choice([-0.8, 0.8], 3), np.zeros(27))


def model(rows: int) -> Pipeline:
    return make_pipeline(SelectFeatures(), LogisticRegression(EPSILON, DELTA, max_rows_per_user=rows))


def fitted(one: Pipeline, X: np.ndarray, y: np.ndarray, users: np.ndarray) -> Pipeline:
    return one.fit(X, y, logisticregression__groups=users)


def measured(part: str, rows: int, n_users: int, seed: int) -> dict[str, object]:
    """Excess losses of one data set."""
    rng = np.random.default_rng([seed, rows, n_users])
    weights, ((name, values),) = truth(part, rng), GRIDS[part].items()
    X, y, users = generated(rng, weights, n_users, rows)
    test = generated(rng, weights, TESTED, 1)

    def excess(found: Any) -> float:
        told = found.predict_proba(test[0])[:, 1]
        return float(log_loss(test[1], told) - floor)

    margins = test[0] @ weights
    floor = minimize_scalar(lambda s: float(np.mean(np.logaddexp(0, (1 - 2 * test[1]) * s * margins)))).fun
    row: dict[str, object] = {"part": part, "rows_per_user": rows, "n_users": n_users, "seed": seed}
    losses = []
    for value in values:
        try:
            losses.append(excess(fitted(model(rows).set_params(**{name: value}), X, y, users)))
        except BudgetExceeded:
            losses.append(None)
    row["default"], row["candidates"] = losses[0], losses
    row["non_private"] = min((loss for loss in losses if loss is not None), default=None)
    for kind, refit in (("search", True), ("search_without_refit", False)):
        search = PrivateSearchCV(model(rows), GRIDS[part], EPSILON, DELTA, refit=refit)
        try:
            search.fit(X, y, groups=users)
        except BudgetExceeded:
            row[kind], row[f"{kind}_chose"] = None, None
        else:
            row[kind], row[f"{kind}_chose"] = excess(search), search.best_index_
    return row


def cells(part: str, quick: bool) -> Iterator[tuple[int, int]]:
    for n_users in USERS[:1] if quick else USERS:
        for rows in ROWS[:2] if quick else ROWS:
            yield rows, n_users


def run(part: str, repeats: int, quick: bool) -> list[dict]:
    found = []
    for rows, n_users in cells(part, quick):
        for seed in range(repeats):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found.append(measured(part, rows, n_users, seed))
        show(part, [row for row in found if (row["rows_per_user"], row["n_users"]) == (rows, n_users)])
    show(part, found)
    return found


def show(part: str, found: list[dict]) -> None:
    table = Table(title=f"{part}: mean excess log loss, epsilon {EPSILON:g} ('-': refused, at least once)")
    kinds = ("default", "search", "search_without_refit", "non_private")
    for head in ("rows", "users", *kinds):
        table.add_column(head, justify="right")
    for rows, n_users in dict.fromkeys((row["rows_per_user"], row["n_users"]) for row in found):
        here = [row for row in found if (row["rows_per_user"], row["n_users"]) == (rows, n_users)]
        means = ("-" if any(r[k] is None for r in here) else f"{np.mean([r[k] for r in here]):.4f}" for k in kinds)
        table.add_row(str(rows), f"{n_users:,}", *means)
    Console().print(table)


if __name__ == "__main__":
    parts = {part: (lambda repeats, quick, part=part: run(part, repeats, quick)) for part in GRIDS}
    run_parts("selection", __doc__, parts)
