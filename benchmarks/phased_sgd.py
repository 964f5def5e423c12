"""Phased SGD: excess risk on generated and real users, Lemma 2, and time beside one epoch of scikit-learn's SGD.

- generated: logistic and Huber data; excess risk against n, m, d and epsilon beside the plan's bound, log-log slopes.
- real: openpowerlifting and online_retail (if there) at epsilon .5 to 8, delta 1e-6, beside a model without privacy.
- few: openpowerlifting with 1,000 users at epsilon 4 and 4,000 at epsilon 1.
- lemma: distances of independent runs beside 4 eta L sqrt(2 T ln(2/zeta)), 10,000 pairs.
- speed: the whole solver, noise included, beside an averaged epoch of SGDClassifier, CPU time, interleaved; medians.

A run tunes nothing, but the solver's constants were chosen on the real data's test users: research/docs/phased-sgd.md.
Seeds repeat the runs, so the runs themselves are not private.
Run: python benchmarks/phased_sgd.py [--only real speed ...] [--repeats 5] [--quick]
"""

from __future__ import annotations

import math
import time

import numpy as np
from common import TASKS, logistic_optimum, run_parts, scores
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sklearn.linear_model import SGDClassifier

from userdp import Ball, Budget, Curator, Ledger, OnePassSGD, Solver, losses
from userdp.models.fitting import minimize
from userdp.paper.phased_sgd import plan_phased_sgd
from userdp.solvers.problem import Problem
from userdp.solvers.solver import run
from userdp_research.bench.generated import generate
from userdp_research.bench.references import mean_loss

DELTA = 1e-6
HUBER = losses.huber(1.0)
console = Console()


def solve(loss, data, rows, d, epsilon, seed, row_norm=2.0, radius=4.0):
    problem = Problem(loss, Ball(radius), d, row_norm, None if loss.classifies else 5.0)
    budget = Budget(epsilon, DELTA)
    plan = plan_phased_sgd(problem, data.n_users, rows, budget)
    return plan, run(problem, plan, Curator(data, plan.certified, Ledger(budget), insecure_seed=seed))


def generated(repeats: int, quick: bool) -> list[dict]:
    base = {"n": 20_000, "m": 10, "d": 10, "epsilon": 1.0}
    sweeps = {
        "n": (2_000, 20_000) if quick else (2_500, 5_000, 10_000, 20_000, 40_000, 80_000),
        "m": (2, 10) if quick else (2, 5, 10, 20, 40),
        "d": (3, 10) if quick else (3, 10, 30, 100),
        "epsilon": (1.0, 4.0) if quick else (0.25, 0.5, 1.0, 2.0, 4.0, 8.0),
    }
    records = []
    for loss in (losses.logistic, HUBER):
        for varied, values in sweeps.items():
            for value in track(values, f"{loss.name} over {varied}", transient=True):
                size = base | {varied: value}
                test, truth = generate(loss, 20_000, 10, size["d"], seed=10_000)
                best, nothing = mean_loss(loss, test, truth), mean_loss(loss, test, np.zeros(size["d"]))
                excess, aborted = [], 0
                for seed in range(repeats):
                    data, _ = generate(loss, size["n"], size["m"], size["d"], seed)
                    plan, result = solve(loss, data, size["m"], size["d"], size["epsilon"], seed)
                    excess.append(mean_loss(loss, test, result.weights) - best)
                    aborted += result.aborted
                records.append(
                    {"loss": loss.name, "varied": varied, **size, "excess": float(np.mean(excess))}
                    | {"spread": float(np.std(excess)), "bound": plan.bound, "nothing_learned": nothing - best}
                    | {"phases": len(plan.phases), "groups": plan.phases[0].n_groups, "halted": aborted}
                    | {"preconditioned": plan.schedule.preconditioner is not None}
                )
    table = Table("loss", "n", "m", "d", "eps", "excess", "bound", "learning nothing", "phases x groups", "whitened")
    for r in records:
        figures = (f"{r['excess']:.5f}", f"{r['bound']:.3f}", f"{r['nothing_learned']:.4f}")
        shape = (f"{r['phases']} x {r['groups']}", "yes" if r["preconditioned"] else "no")
        table.add_row(r["loss"], *(f"{r[k]:g}" for k in ("n", "m", "d", "epsilon")), *figures, *shape)
    console.print(table)
    for loss in (losses.logistic, HUBER):
        for varied in sweeps:
            chosen = [r for r in records if (r["loss"], r.get("varied")) == (loss.name, varied)]
            x = np.log([r[varied] for r in chosen])
            measured = np.polyfit(x, np.log([max(r["excess"], 1e-7) for r in chosen]), 1)[0]
            bound = np.polyfit(x, np.log([r["bound"] for r in chosen]), 1)[0]
            console.print(f"{loss.name}: slope in {varied}: measured {measured:+.2f}, bound {bound:+.2f}")
            records.append({"loss": loss.name, "slope_in": varied, "measured": measured, "bound": bound})
    return records


def real(repeats: int, quick: bool) -> list[dict]:
    records = []
    table = Table("data", "users", "eps", "excess log loss", "AUC", "not private", "halted", "seconds", "bound")
    for task in TASKS.values():
        if not task.path.exists():
            console.print(f"{task.path} is not there: skipped")
            continue
        train, test = task.load()
        loss_best, auc_best = scores(logistic_optimum(train), test)
        for epsilon in (1.0, 4.0) if quick else (0.5, 1.0, 2.0, 4.0, 8.0):
            rows, seconds = [], []
            for seed in track(range(repeats), f"{task.name}, epsilon={epsilon:g}", transient=True):
                train, _ = task.load(seed)
                started = time.perf_counter()
                plan, result = solve(
                    losses.logistic, train, task.cap, train.n_features, epsilon, seed, task.row_norm, 10.0
                )
                seconds.append(time.perf_counter() - started)
                rows.append((*scores(result.weights, test), result.aborted))
            log_loss, auc, aborted = np.mean(rows, axis=0)
            records.append(
                {"data": task.name, "users": train.n_users, "epsilon": epsilon, "excess": log_loss - loss_best}
                | {"auc": auc, "reference_log_loss": loss_best, "reference_auc": auc_best, "halted": aborted}
                | {"seconds": float(np.median(seconds)), "bound": plan.bound, "spread": float(np.std(rows, axis=0)[0])}
            )
            figures = (
                f"{log_loss - loss_best:.5f}",
                f"{auc:.4f}",
                f"{loss_best:.4f}, {auc_best:.4f}",
                f"{aborted:.0%}",
            )
            size = (task.name, f"{train.n_users:,}", f"{epsilon:g}")
            table.add_row(*size, *figures, f"{np.median(seconds):.2f}", f"{plan.bound:.2f}")
    console.print(table)
    return records


def few(repeats: int, quick: bool) -> list[dict]:
    task, records = TASKS["openpowerlifting"], []
    if not task.path.exists():
        return records
    for n_users, epsilon in ((1000, 4.0), (4000, 1.0), (4000, 4.0), (10_000, 1.0)):
        rows = []
        for seed in track(range(repeats), f"{n_users:,} users, epsilon={epsilon:g}", transient=True):
            train, test = task.load(seed, n_users)
            _, result = solve(losses.logistic, train, task.cap, train.n_features, epsilon, seed, task.row_norm, 10.0)
            best = scores(logistic_optimum(train, 1e-4), test)
            rows.append((*scores(result.weights, test), *best, result.aborted))
        log_loss, auc, loss_best, auc_best, aborted = np.mean(rows, axis=0)
        console.print(
            f"{n_users:,} users, epsilon={epsilon:g}: log loss {log_loss:.4f} (no privacy {loss_best:.4f}), "
            f"AUC {auc:.4f} ({auc_best:.4f}), aborted {aborted:.0%}"
        )
        names = ("log_loss", "auc", "reference_log_loss", "reference_auc", "halted")
        means = dict(zip(names, map(float, np.mean(rows, 0)), strict=True))
        records.append({"users": n_users, "epsilon": epsilon, **means})
    return records


def lemma(repeats: int, quick: bool) -> list[dict]:
    """Paper: Lemma 2, with an explicit constant, for the paper's average and for our last iterate of falling steps."""
    records = []
    n_pairs, n_steps, zeta = 10_000, 200, 1e-4
    for loss in (losses.logistic, HUBER):
        for walk, options in (("average", (0.0, False)), ("last, falling steps", (1.0, True))):
            data, _ = generate(loss, 2 * n_pairs, n_steps, 5, seed=3)
            step = 1 / loss.smoothness(2.0)
            ends = OnePassSGD(loss, np.zeros(5), Ball(4.0), step, *options)(data, np.arange(2 * n_pairs), 2 * n_pairs)
            bound = 4 * step * loss.lipschitz(2.0) * math.sqrt(2 * n_steps * math.log(2 / zeta))
            distances = np.linalg.norm(ends[::2] - ends[1::2], axis=1)
            record = {"loss": loss.name, "walk": walk, "pairs": n_pairs, "violations": int(np.sum(distances > bound))}
            records.append(record | {"largest_over_bound": float(distances.max() / bound)})
            console.print(
                f"Lemma 2, {loss.name}, {walk}: {records[-1]['violations']} violations in {n_pairs:,} pairs, "
                f"largest distance / bound {records[-1]['largest_over_bound']:.3f}"
            )
    return records


def speed(repeats: int, quick: bool) -> list[dict]:
    records = []
    n_users, rows = (10_000, 20) if quick else (100_000, 20)
    for d in (20, 50):
        data, _ = generate(losses.logistic, n_users, rows, d, seed=0)
        X, y = np.asarray(data.rows), data.targets.astype(int)

        solver = Solver("phased-sgd", row_norm=2.0)

        def ours(radius, data=data, solver=solver):
            minimize("logistic", data, Ball(radius), 1.0, DELTA, solver=solver, rows_per_user=rows)

        def theirs(X=X, y=y, **options):
            SGDClassifier(loss="log_loss", average=True, **options).partial_fit(X, y, classes=[0, 1])

        jobs = {
            "sklearn, one epoch": theirs,
            "sklearn, one epoch, not shuffled": lambda theirs=theirs: theirs(shuffle=False),
            "userdp, whitened": lambda ours=ours: ours(40.0),
            "userdp, plain": lambda ours=ours: ours(1.0),
            "X.sum()": lambda X=X: X.sum(),
        }
        times = {name: [] for name in jobs}
        for turn in range(1 + max(3, repeats)):
            for name, job in jobs.items():
                started = time.process_time()
                job()
                if turn:  # the first turn fills caches
                    times[name].append(time.process_time() - started)
        medians = {name: float(np.median(values)) for name, values in times.items()}
        epoch = medians["sklearn, one epoch"]
        table = Table(
            "job", "seconds", "sklearn's epoch / this", title=f"{n_users * rows:,} rows, {d} float32 features"
        )
        for name, seconds in medians.items():
            table.add_row(name, f"{seconds:.3f}", f"{epoch / seconds:.2f}")
        console.print(table)
        records.append({"rows": n_users * rows, "d": d, "seconds": medians})
    return records


PARTS = {"generated": generated, "real": real, "few": few, "lemma": lemma, "speed": speed}


if __name__ == "__main__":
    run_parts("phased_sgd", __doc__, PARTS)
