"""Coefficients of rare columns, private and not: mean losses hardly notice when a rare flag's coefficient is lost.

Each cell draws users with a rare column beside ordinary ones, fits a model privately, and compares each coefficient
with the non-private one in which every user counts once. A coefficient is

- near: within 0.15 of the non-private one (of targets with noise of standard deviation 1, log odds, or logs of counts);
- named: in the model's `unresolved_`;
- a miss: neither, or not near though its limit is below 0.05.

The limit is the standard deviation of one Gaussian release of H^-1 g, g being the users' gradients and H the Hessian,
whose clip is the root mean square length, in the norm of H^-1, among the users who have the column at all: a smaller
clip would shorten just these. With --ablate parts of the solver are switched off, one at a time.

NOT PRIVATE: compared with models without privacy.

    python benchmarks/coefficients.py [--losses linear,logistic] [--users 3000,30000] [--epsilon 1,2,8] [--columns ...]
        [--runs 3] [--inference] [--sparse] [--ablate]
        [--json docs/bench/coefficients.json] [--table docs/measurements.md]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

import userdp
from userdp import UserData, losses
from userdp.privacy.accounting import budget_for, gaussian_multiplier
from userdp.solvers import constants
from userdp.statistics.gradients import MeanGradient
from userdp_research.bench.cells import NOTE, provenance
from userdp_research.bench.references import _bent_inverse, _expansion, user_optimum

RESOLVABLE, NEAR, ROWS = 0.05, 0.15, 3
COLUMNS = (
    *(f"flag {share:g} + {others}" for share in (0.003, 0.01, 0.05, 0.12, 0.3) for others in (0, 1, 4, 16)),
    *("flag 0.05 of rows + 4", "correlated flag 0.05 + 4", "category + 2", "amount + 4"),
)
LOSSES: dict[str, Callable[..., Any]] = {
    "linear": lambda **more: userdp.LinearRegression(target_range=(-5, 5), **more),
    "huber": lambda **more: userdp.HuberRegressor(target_range=(-5, 5), **more),
    "quantile": lambda **more: userdp.QuantileRegressor(target_range=(-5, 5), **more),
    "logistic": lambda **more: userdp.LogisticRegression(classes=[0, 1], **more),
    "multinomial": lambda **more: userdp.LogisticRegression(classes=[0, 1, 2], **more),
    "poisson": lambda **more: userdp.PoissonRegressor(max_count=20, **more),
}
# What a part of the solver is replaced by to switch it off.
ABLATIONS: dict[str, tuple[Any, str, Any]] = {
    "all parts": (constants, "AXIS_NOISE", constants.AXIS_NOISE),
    "shapes of moments in all stages": (constants, "AXIS_NOISE", 0.0),
    "no room for long rows": (constants, "ROOM", 0.0),
    "curvature not looked at": (constants, "RELATIVE", (1.0, 1.0)),
}
MARKS = ("<!-- coefficients: begin -->\n", "<!-- coefficients: end -->\n")


@dataclass(frozen=True)
class Coefficient:
    """One coefficient of a rare column in one run."""

    error: float
    limit: float
    named: bool

    @property
    def missed(self) -> bool:
        return abs(self.error) > NEAR and (not self.named or self.limit < RESOLVABLE)


def rare_columns(kind: str, n_users: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Rows (ROWS of each user), the true weights, and which columns are rare."""
    owners = np.repeat(np.arange(n_users), ROWS)
    name, others = kind.split(" + ")
    k, n = int(others), len(owners)
    Z = rng.normal(size=(n, k))
    if name == "category":  # eight levels, the first is the reference
        shares = np.array([0.4, 0.25, 0.15, 0.1, 0.06, 0.025, 0.01, 0.005])
        level = rng.choice(8, size=n_users, p=shares)[owners]
        rare, weights = (level[:, None] == np.arange(1, 8)).astype(float), np.tile([1.0, -1.0], 4)[:7]
    elif name == "amount":
        spent = np.where(rng.random(n_users) < 0.05, rng.exponential(size=n_users), 0.0)
        rare, weights = spent[owners][:, None], np.array([1.0])
    else:
        share = float(name.split("flag ")[1].split()[0])
        flag = rng.random(n) < share if "of rows" in name else (rng.random(n_users) < share)[owners]
        rare, weights = flag[:, None].astype(float), np.array([1.0])
        if "correlated" in name:
            Z[:, 0] += 2 * flag
    return (
        np.column_stack([Z, rare]),
        np.append(np.full(k, 0.5 / math.sqrt(max(k, 1))), weights),
        [*range(k, k + rare.shape[1])],
    )


def outcomes(loss: str, predictions: np.ndarray, n_users: int, rng: np.random.Generator) -> np.ndarray:
    """Targets of such a loss, with a random effect of each user."""
    eta = predictions + np.repeat(0.3 * rng.normal(size=n_users), ROWS)
    if loss in ("linear", "huber", "quantile"):
        return np.clip(eta + rng.normal(size=len(eta)), -5, 5)
    if loss == "logistic":
        return (rng.random(len(eta)) < 1 / (1 + np.exp(-eta))).astype(np.int64)
    if loss == "poisson":
        return np.minimum(rng.poisson(np.exp(0.5 * eta)), 20)
    chances = np.exp(np.column_stack([0 * eta, eta, -eta / 2]))
    chances /= chances.sum(axis=1, keepdims=True)
    return (rng.random((len(eta), 1)) > chances.cumsum(axis=1)).sum(axis=1)


def reference(model: Any, X: np.ndarray, y: np.ndarray, owners: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Non-private coefficients, a row per output, and their limits."""
    model._declare(y)
    model._declare_largest({})
    loss = model._loss()
    loss = loss if loss.smooth else losses.smoothed(loss, 0.02)
    data = UserData.from_arrays(X, model._targets.encode(y), owners, fit_intercept=True)
    best = user_optimum(loss, data)
    inverse, _ = _bent_inverse(_expansion(loss, data, best)[2])
    gradients = MeanGradient(loss, best)(data, np.arange(data.n_users), data.n_users)
    squares = np.einsum("ui,ij,uj->u", gradients, inverse, gradients, optimize=True)
    has = np.add.reduceat(X != 0, data.offsets[:-1], axis=0) > 0  # rows are sorted by user
    rms = np.sqrt([max(squares.mean(), squares[one].mean() if one.any() else 0.0) for one in has.T])
    z = gaussian_multiplier(budget_for(model.epsilon, None, data.n_users))
    spread = np.sqrt(np.diag(inverse)).reshape(loss.n_outputs, -1)[:, :-1]
    weights = best.reshape(loss.n_outputs, -1)[:, :-1]
    return model._targets.weight * weights, model._targets.weight * 2 * z / data.n_users * rms * spread


def run(
    loss: str, columns: str, n_users: int, epsilon: float, seed: int, inference: bool, sparse: bool
) -> list[Coefficient]:
    """The rare columns' coefficients of one private fit, the worst output each; none if the fit is refused."""
    rng = np.random.default_rng(seed)
    X, weights, rare = rare_columns(columns, n_users, rng)
    y, owners = outcomes(loss, X @ weights, n_users, rng), np.repeat(np.arange(n_users), ROWS)
    settings = {"epsilon": epsilon, "max_rows_per_user": ROWS, "allow_weak": True}
    model = LOSSES[loss](**settings, inference=inference)
    try:
        model.fit(scipy.sparse.csr_array(X) if sparse else X, y, groups=owners)
    except userdp.BudgetExceeded:
        return []
    best, limits = reference(LOSSES[loss](**settings), X, y, owners)
    errors = np.atleast_2d(model.coef_) - best
    worst = np.abs(errors).argmax(axis=0)
    return [
        Coefficient(float(errors[worst[j], j]), float(limits[:, j].max()), f"x{j}" in model.unresolved_) for j in rare
    ]


@contextlib.contextmanager
def switched(module: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def counted(found: list[Coefficient]) -> dict[str, Any]:
    errors = np.abs([one.error for one in found])
    return {
        "coefficients": len(found),
        "resolvable": sum(one.limit < RESOLVABLE for one in found),
        "near": int(np.sum(errors <= NEAR)),
        "named": sum(one.named for one in found),
        "named_though_near": int(sum(one.named and abs(one.error) <= NEAR for one in found)),
        "missed": sum(one.missed for one in found),
        "largest_error": float(errors.max(initial=0.0)),
    }


def table(cells: list[dict[str, Any]], by: str) -> list[str]:
    """A line for each value of `by`."""
    lines = [
        f"| {by} | coefficients | limit below 0.05 | near | named | missed | largest error |",
        "|---" + "|---:" * 6 + "|",
    ]
    for value in dict.fromkeys(str(cell[by]) for cell in cells):
        found = [Coefficient(**one) for cell in cells if str(cell[by]) == value for one in cell["found"]]
        c = counted(found)
        lines.append(
            f"| {value} | {c['coefficients']} | {c['resolvable']} | {c['near']} | {c['named']} | {c['missed']} | "
            f"{c['largest_error']:.2f} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--losses", default="linear,logistic,poisson")
    parser.add_argument("--users", default="3000,30000")
    parser.add_argument("--epsilon", default="1,2,8")
    parser.add_argument("--columns", default=",".join(COLUMNS))
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--inference", action="store_true")
    parser.add_argument("--sparse", action="store_true", help="fit the columns as a sparse matrix")
    parser.add_argument("--ablate", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", type=Path)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    cells = []
    for part, how in ABLATIONS.items() if asked.ablate else [("all parts", ABLATIONS["all parts"])]:
        for loss in asked.losses.split(","):
            for columns in asked.columns.split(","):
                for n_users in map(int, asked.users.split(",")):
                    for epsilon in map(float, asked.epsilon.split(",")):
                        with switched(*how):
                            seeds = range(asked.first_seed, asked.first_seed + asked.runs)
                            how_fitted = asked.inference, asked.sparse
                            found = [c for s in seeds for c in run(loss, columns, n_users, epsilon, s, *how_fitted)]
                        cell = {"part": part, "loss": loss, "columns": columns, "users": n_users, "epsilon": epsilon}
                        cells.append(cell | {"found": [asdict(one) for one in found]})
                        print(*cell.values(), counted(found), flush=True)
    lines = [line for by in ("part", "loss", "columns", "users", "epsilon") for line in [*table(cells, by), ""]]
    print("\n".join(lines))
    if asked.json:
        asked.json.write_text(json.dumps({"note": NOTE} | provenance() | {"cells": cells}) + "\n")
    if asked.table:
        text = asked.table.read_text()
        start, end = text.index(MARKS[0]) + len(MARKS[0]), text.index(MARKS[1])
        asked.table.write_text(text[:start] + "\n".join(lines) + text[end:])


if __name__ == "__main__":
    main()
