"""Is the planner right? Its bounds, its estimates and its seconds, against what is measured.

On generated users of several numbers, budgets and losses every solver that fits is run. Measured risk is compared with
the bound, or the estimate; the order of a solver's runs by bound with their order by measured risk (Spearman), the
choice of solver="auto" with the best solver, and predicted with measured seconds.

    python benchmarks/planner.py [--repeats 3]
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np
from common import save
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy.stats import spearmanr

from userdp import Ball, Solver, UserData, losses, minimize
from userdp.solvers.planner import plan, public_problem
from userdp_research.bench.references import mean_loss, optimum

CELLS = [
    (n_users, epsilon, loss)
    for loss in ("logistic", "squared", "hinge")
    for n_users in (2_000, 10_000, 40_000)
    for epsilon in (0.25, 1.0, 4.0)
]
ROWS, FEATURES, TESTED = 20, 10, 4_000


def generate(n_users: int, loss: str, seed: int) -> UserData:
    """Users of 20 rows with features of size about 1, correlated, that lean towards the user's own."""
    rng = np.random.default_rng(seed)
    truth = np.random.default_rng(0).normal(size=FEATURES)
    mixing = np.random.default_rng(1).normal(size=(FEATURES, FEATURES)) / np.sqrt(FEATURES)
    users = np.repeat(np.arange(n_users), ROWS)
    X = (rng.normal(size=(len(users), FEATURES)) + 0.5 * rng.normal(size=(n_users, FEATURES))[users]) @ mixing
    X = np.column_stack([np.clip(X, -3, 3), np.ones(len(users))])
    z = X[:, :-1] @ truth / 2
    if loss == "squared":
        return UserData.from_arrays(X, np.clip(z / 3 + 0.2 * rng.normal(size=len(z)), -1, 1), users)
    return UserData.from_arrays(X, rng.random(len(z)) < 1 / (1 + np.exp(-2 * z)), users)


def measure(repeats: int) -> list[dict[str, object]]:
    found = []
    for n_users, epsilon, loss in track(CELLS, "cells", console=Console(stderr=True)):
        test = generate(TESTED, loss, 99)
        comparison = plan(n_users, ROWS, FEATURES, epsilon, 1e-6, loss=loss)
        least = None
        for option in comparison.options:
            if not option.feasible or option.mode == "paper":
                continue
            excess, seconds = [], []
            for seed in range(repeats):
                data = generate(n_users, loss, seed)
                if least is None:
                    reference = optimum(losses.loss(loss), generate(20_000, loss, 7))
                    least = mean_loss(losses.loss(loss), test, reference)
                problem = public_problem(losses.loss(loss), FEATURES + 1)
                began = time.perf_counter()
                result = minimize(
                    problem.loss,
                    data,
                    Ball(10.0),
                    epsilon,
                    1e-6,
                    solver=Solver(option.solver, row_norm=problem.row_norm),
                    rows_per_user=ROWS,
                    target_bound=problem.target_bound,
                )
                seconds.append(time.perf_counter() - began)
                excess.append(mean_loss(problem.loss, test, result.weights) - least)
            found.append(
                {
                    "loss": loss,
                    "users": n_users,
                    "epsilon": epsilon,
                    "solver": option.solver,
                    "bound": option.bound,
                    "estimated": option.estimated,
                    "excess": float(np.mean(excess)),
                    "predicted_seconds": option.seconds,
                    "seconds": float(np.min(seconds)),
                    "chosen": option is comparison.choice,
                }
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    found = measure(parser.parse_args().repeats)
    table = Table(
        "loss", "users", "epsilon", "solver", "bound", "excess", "bound/excess", "seconds", "predicted", "auto"
    )
    for row in found:
        ratio = row["bound"] / max(row["excess"], 1e-6)
        table.add_row(
            row["loss"],
            f"{row['users']:,}",
            f"{row['epsilon']:g}",
            row["solver"],
            f"{row['bound']:.3g}",
            f"{row['excess']:.4f}",
            f"{ratio:.0f}",
            f"{row['seconds']:.2f}",
            f"{row['predicted_seconds']:.2f}",
            "*" if row["chosen"] else "",
        )
    console = Console(width=130)
    console.print(table)
    kinds: dict[tuple[str, str], list[dict]] = {}
    for row in found:
        kinds.setdefault((row["solver"], row["loss"]), []).append(row)
    orders = {n: spearmanr([r["bound"] for r in rows], [r["excess"] for r in rows])[0] for n, rows in kinds.items()}
    cells = {(r["loss"], r["users"], r["epsilon"]): [] for r in found}
    for row in found:
        cells[row["loss"], row["users"], row["epsilon"]].append(row)
    regret = [
        next(r["excess"] for r in rows if r["chosen"]) / max(1e-4, min(r["excess"] for r in rows))
        for rows in cells.values()
    ]
    bounded = [r for r in found if not r["estimated"]]
    above = [r for r in bounded if r["excess"] > r["bound"]]
    console.print(f"Above the bound: {len(above)} of {len(bounded)}. Spearman by solver and loss: {orders}.")
    missed = [r for r in found if r["estimated"] and not 1 / 3 < r["excess"] / r["bound"] < 3]
    console.print(f"Estimates off by a factor above 3: {len(missed)} of {len(found) - len(bounded)}.")
    console.print(f"auto's excess / the best one's: median {np.median(regret):.2f}, largest {max(regret):.2f}.")
    print(save("planner", {"cells": found}), file=sys.stderr)


if __name__ == "__main__":
    main()
