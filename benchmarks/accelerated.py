"""The accelerated solver: gradients and risk against the theorems' exponents, Lemma 3.5, real users, few users.

- cost: CPU time of a run on 100,000 users over that of its gradients, at 20 features, 1, 3 and 20 rows.
- gradients: how many calibrated plans take against n, m and beta, beside the theorems' exponents; Asi and Liu's too.
- risk: excess on generated users against n and m, beside the plan's bound and the theorem's exponents.
- variance: of the filtered minibatch gradient, beside Lemma 3.5's L^2 ln(ndm) / (K m).
- smoothing: closed form beside draws from the paper's ball, at equal steps and noise.
- phases: one run on all users beside two on halves, the second warm-started from the first.
- real: openpowerlifting and online_retail (if there): unlimited, 20, 5 and 1 passes; hinge and squared hinge.
- few: 2,000, 5,000 and 10,000 lifters at epsilon .1 to 8, beside no privacy on the same users and beside user-level
  DP-SGD whose clip, step and length an oracle tuned on the test users.

A run tunes nothing. The solver's constants were chosen on folds 6 and 7 of openpowerlifting's training users; test
users (folds 8 and 9) are scored here. Seeds repeat the runs, so the runs themselves are not private.
Run: python benchmarks/accelerated.py [--only real few ...] [--repeats 5] [--quick]
"""

from __future__ import annotations

import math
import time

import numpy as np
from common import TASKS, logistic_optimum, run_parts, scores
from rich.console import Console
from rich.progress import track
from rich.table import Table

from userdp import Ball, Budget, BudgetExceeded, Curator, Ledger, MeanGradient, Solver, UserData, losses
from userdp.engines.local import LocalEngine
from userdp.models.fitting import minimize
from userdp.paper import accelerated_paper as paper
from userdp.paper import concentration
from userdp.paper import paper_outlier_removal as printed
from userdp.paper.accelerated import plan_accelerated
from userdp.paper.descent import Nesterov
from userdp.solvers.problem import Problem
from userdp.solvers.solver import run
from userdp.statistics.smoothing import BallSmoothing
from userdp_research.bench.generated import generate
from userdp_research.bench.oracle import oracle
from userdp_research.bench.references import mean_loss, optimum
from userdp_research.bench.table import EXPONENTS, NON_SMOOTH, SMOOTH, plan_at, slope

DELTA = 1e-6
console = Console()


def gradients(repeats: int, quick: bool) -> list[dict]:
    """Fewest gradients with at most twice the least estimate: eps = L = R = 1, d = n, a user's rows independent."""
    records = []
    table = Table("loss", "against", "exponent", "theorem", "steps", "users a step")
    sizes = {"n": np.geomspace(1e5, 1e8, 7), "m": np.geomspace(10, 10_000, 7), "beta": np.geomspace(1, 1000, 7)}
    sweeps = [(kind, varied) for kind in (SMOOTH, NON_SMOOTH) for varied in EXPONENTS["accelerated", kind]]
    for kind, varied in sweeps:
        values, theorem = sizes[varied], EXPONENTS["accelerated", kind][varied]
        shown = track(values, f"{kind}, {varied}", transient=True)
        plans = [plan_at("accelerated", kind, **{varied: value}) for value in shown]
        exponent = slope(values, [p.n_gradients for p in plans])
        shapes = [(p.phases[0].n_steps, round(p.phases[0].users_a_step)) for p in plans]
        records.append({"loss": kind, "against": varied, "exponent": exponent, "theorem": theorem})
        records[-1] |= {"sizes": list(map(float, values)), "steps_and_users": shapes}
        figures = (f"{exponent:+.2f}", f"{theorem:+.3f}")
        ends = (f"{shapes[0][0]} .. {shapes[-1][0]}", f"{shapes[0][1]:,} .. {shapes[-1][1]:,}")
        table.add_row(kind, varied, *figures, *ends)
    console.print(table)
    return records


def solve(loss, data, rows, epsilon, seed, row_norm=2.0, radius=4.0, max_gradients=None, engine=None):
    problem = Problem(loss, Ball(radius), data.n_features, row_norm, None if loss.classifies else 5.0)
    budget = Budget(epsilon, DELTA)
    plan = plan_accelerated(problem, data.n_users, rows, budget, max_gradients)
    return plan, run(problem, plan, Curator(data, plan.certified, Ledger(budget), engine=engine, insecure_seed=seed))


def generated_risk(repeats: int, quick: bool) -> list[dict]:
    base, records = {"n": 10_000, "m": 10, "d": 10}, []
    sweeps = {"n": (2_500, 10_000) if quick else (2_500, 5_000, 10_000, 20_000, 40_000)}
    sweeps["m"] = (5, 20) if quick else (3, 10, 30, 100)
    table = Table("n", "m", "excess", "bound", "learning nothing", "steps")
    for varied, values in sweeps.items():
        chosen = []
        for value in track(values, f"over {varied}", transient=True):
            size = base | {varied: value}
            test, truth = generate(losses.logistic, 20_000, 10, size["d"], seed=10_000)
            best = mean_loss(losses.logistic, test, truth)
            excess = []
            for seed in range(repeats):
                data, _ = generate(losses.logistic, size["n"], size["m"], size["d"], seed)
                plan, result = solve(losses.logistic, data, size["m"], 1.0, seed)
                excess.append(mean_loss(losses.logistic, test, result.weights) - best)
            nothing = mean_loss(losses.logistic, test, np.zeros(size["d"])) - best
            chosen.append({"varied": varied, **size, "excess": float(np.mean(excess)), "bound": plan.bound})
            chosen[-1] |= {"nothing_learned": nothing, "steps": plan.phases[0].n_steps}
            figures = (f"{np.mean(excess):.5f}", f"{plan.bound:.3f}", f"{nothing:.4f}", f"{plan.phases[0].n_steps}")
            table.add_row(f"{size['n']:,}", f"{size['m']}", *figures)
        fits = {key: slope(values, [max(1e-7, r[key]) for r in chosen]) for key in ("excess", "bound")}
        records += [*chosen, {"slope_in": varied, "measured": fits["excess"], "bound": fits["bound"]}]
    console.print(table)
    for r in records:
        if "slope_in" in r:
            console.print(
                f"slope in {r['slope_in']}: measured {r['measured']:+.2f}, plan's bound {r['bound']:+.2f}, theorem "
                "between -0.5 (statistics) and -1 in n (privacy), -0.5 in m"
            )
    return records


def variance(repeats: int, quick: bool) -> list[dict]:
    """Paper: Lemma 3.5. Users with rows drawn independently, at weights that do not depend on them."""
    records, n, d = [], 4_000, 10
    table = Table("K", "m", "measured", "L^2 ln(ndm) / (K m)", "ratio")
    rng = np.random.default_rng(0)
    for m in (4, 16, 64):
        rows = rng.normal(size=(n * m, d)) / math.sqrt(d)
        rows /= np.maximum(1, np.linalg.norm(rows, axis=1, keepdims=True))
        data = UserData(rows, (rng.random(n * m) < 0.5).astype(float), np.arange(0, n * m + 1, m))
        users = MeanGradient(losses.logistic, np.full(d, 0.5))(data, np.arange(n), n)
        mean = users.mean(axis=0)
        for k in (40, 160, 640):
            errors = []
            for _ in range(200):
                batch = users[rng.choice(n, k)]
                counts = concentration.neighbour_counts(batch, 2 * paper.radius(1.0, d, n, m))
                errors.append(np.sum((concentration.filtered_mean(batch, counts, printed.paper_ramp(k)) - mean) ** 2))
            measured, bound = float(np.mean(errors)), math.log(n * d * m) / (k * m)
            records.append({"K": k, "m": m, "measured": measured, "bound": bound})
            table.add_row(f"{k}", f"{m}", f"{measured:.2e}", f"{bound:.2e}", f"{measured / bound:.3f}")
    logs = np.log([(r["K"], r["m"], math.e, r["measured"]) for r in records])
    for name, fit in zip(("K", "m"), np.linalg.lstsq(logs[:, :3], logs[:, 3], rcond=None)[0], strict=False):
        console.print(f"Lemma 3.5: measured exponent in {name} {fit:+.2f}, bound -1")
        records.append({"exponent_in": name, "measured": float(fit), "bound": -1.0})
    console.print(table)
    return records


def smoothing(repeats: int, quick: bool) -> list[dict]:
    """Hinge on generated users, 100 steps without privacy's noise: risk at the same smoothness."""
    data, _ = generate(losses.logistic, 2_000, 20, 10, seed=1)
    users, sign = np.arange(data.n_users), 2 * data.targets - 1

    def hinge(w):
        return float(np.mean(np.maximum(0, 1 - sign * (data.rows @ w))))

    best = min(hinge(w) for w in (optimum(losses.hinge, data, width=width) for width in (1e-2, 1e-3)))
    records = []
    for width in (0.05, 0.2, 0.5):
        # Rows are of length about 1: the ball's radius is what gives draws the closed form's spread, width / sqrt(3).
        radius = width / math.sqrt(3) * math.sqrt(data.n_features + 2)
        for name in ("closed form", "ball"):
            loss = losses.smoothed(losses.hinge, width) if name == "closed form" else losses.hinge
            descent = Nesterov(np.zeros(10), Ball(4.0), 1 / width, 100)
            started = time.perf_counter()
            for step in range(100):
                draws = None if name == "closed form" else BallSmoothing(radius, step)
                descent.move(MeanGradient(loss, descent.query, None, draws)(data, users, len(users)).mean(axis=0))
            seconds = time.perf_counter() - started
            records.append({"width": width, "smoothing": name, "excess": hinge(descent.point) - best})
            console.print(f"hinge, width {width}, {name}: excess {records[-1]['excess']:.5f}, {seconds:.2f} s")
    return records


def phases(repeats: int, quick: bool) -> list[dict]:
    records = []
    for epsilon in (1.0, 4.0):
        excess = {"one phase": [], "two phases": []}
        test, truth = generate(losses.logistic, 20_000, 10, 10, seed=10_000)
        best = mean_loss(losses.logistic, test, truth)
        for seed in range(repeats):
            data, _ = generate(losses.logistic, 20_000, 10, 10, seed)
            half = data.n_users // 2
            parts = [
                UserData(data.rows[: half * 10], data.targets[: half * 10], data.offsets[: half + 1]),
                UserData(data.rows[half * 10 :], data.targets[half * 10 :], data.offsets[half:] - data.offsets[half]),
            ]
            options = {"rows_per_user": 10, "solver": Solver("accelerated", row_norm=2.0), "insecure_seed": seed}
            one = minimize("logistic", data, Ball(4.0), epsilon, DELTA, **options)
            first = minimize("logistic", parts[0], Ball(4.0), epsilon, DELTA, **options)
            two = minimize("logistic", parts[1], Ball(4.0), epsilon, DELTA, **options, warm_start=first.weights)
            excess["one phase"].append(mean_loss(losses.logistic, test, one.weights) - best)
            excess["two phases"].append(mean_loss(losses.logistic, test, two.weights) - best)
        for name, values in excess.items():
            records.append({"epsilon": epsilon, "schedule": name, "excess": float(np.mean(values))})
            console.print(f"20,000 users, epsilon={epsilon:g}, {name}: excess {np.mean(values):.5f}")
    return records


def real(repeats: int, quick: bool) -> list[dict]:
    records = []
    table = Table("data", "loss", "eps", "passes", "excess", "AUC", "no privacy", "steps x users", "halted", "seconds")
    jobs = [("logistic", epsilon, None) for epsilon in ((1.0,) if quick else (0.5, 1.0, 2.0, 4.0, 8.0))]
    jobs += [("logistic", 1.0, passes) for passes in (20, 5, 1)]
    jobs += [("hinge", 1.0, None), ("squared_hinge", 1.0, None), ("hinge", 4.0, None), ("squared_hinge", 4.0, None)]
    for task in TASKS.values():
        if not task.path.exists():
            console.print(f"{task.path} is not there: skipped")
            continue
        train, test = task.load()
        for name, epsilon, passes in jobs:
            loss = losses.loss(name)
            reference = logistic_optimum(train) if name == "logistic" else optimum(loss, train, width=5e-3)
            loss_best, auc_best = scored(loss, reference, test)
            rows, seconds, plan = [], [], None
            for seed in track(range(repeats), f"{task.name}, {name}, epsilon={epsilon:g}", transient=True):
                train, _ = task.load(seed)
                limit = None if passes is None else passes * train.n_users * task.cap
                started = time.perf_counter()
                try:
                    plan, result = solve(loss, train, task.cap, epsilon, seed, task.row_norm, 10.0, limit)
                except (BudgetExceeded, ValueError) as error:
                    console.print(f"{task.name}, {name}, epsilon={epsilon:g}, {passes} passes: {error}")
                    break
                seconds.append(time.perf_counter() - started)
                rows.append((*scored(loss, result.weights, test), result.aborted))
            if not rows:
                continue
            value, auc, aborted = np.mean(rows, axis=0)
            used = plan.n_gradients / (train.n_users * task.cap)
            records.append(
                {"data": task.name, "loss": name, "users": train.n_users, "epsilon": epsilon, "allowed_passes": passes}
                | {"passes": used, "excess": value - loss_best, "spread": float(np.std(rows, axis=0)[0]), "auc": auc}
                | {"reference": loss_best, "reference_auc": auc_best, "halted": aborted, "bound": plan.bound}
                | {"seconds": float(np.median(seconds)), "steps": plan.phases[0].n_steps}
            )
            shape = f"{plan.phases[0].n_steps} x {plan.phases[0].users_a_step:,.0f}"
            figures = (f"{value - loss_best:.5f}", f"{auc:.4f}", f"{loss_best:.4f}, {auc_best:.4f}", shape)
            allowed = f"{used:.1f}" + ("" if passes is None else f" of {passes}")
            table.add_row(
                task.name, name, f"{epsilon:g}", allowed, *figures, f"{aborted:.0%}", f"{np.median(seconds):.1f}"
            )
    console.print(table)
    return records


def scored(loss: losses.Loss, weights: np.ndarray, data: UserData) -> tuple[float, float]:
    """Mean loss over rows, and AUC."""
    return mean_loss(loss, data, weights), scores(weights, data)[1]


def few(repeats: int, quick: bool) -> list[dict]:
    task, records = TASKS["openpowerlifting"], []
    if not task.path.exists():
        return records
    table = Table(
        "users", "eps", "accelerated", "phased SGD", "oracle DP-SGD", "no privacy", title="excess log loss (AUC)"
    )
    everyone, test = task.load()
    best = scores(logistic_optimum(everyone), test)[0]
    sizes = (2_000,) if quick else (2_000, 5_000, 10_000)
    for n_users in sizes:
        parts = [task.load(seed, n_users)[0] for seed in range(repeats)]
        free = np.mean([scores(logistic_optimum(part, 1e-4), test) for part in parts], axis=0)
        for epsilon in (1.0, 8.0) if quick else (0.1, 0.5, 1.0, 2.0, 8.0):
            record = {"users": n_users, "epsilon": epsilon, "not_private": (free[0] - best, free[1])}
            for solver in ("accelerated", "phased-sgd"):
                taken, rows = Solver(solver, row_norm=task.row_norm), []
                for seed, part in enumerate(parts):
                    options = {"rows_per_user": task.cap, "insecure_seed": seed}
                    try:
                        result = minimize("logistic", part, Ball(10.0), epsilon, DELTA, solver=taken, **options)
                    except BudgetExceeded:
                        break
                    rows.append((*scores(result.weights, test), result.aborted))
                if rows:
                    log_loss, auc, aborted = np.mean(rows, axis=0)
                    record |= {solver: (log_loss - best, auc, aborted)}
            tuned = oracle(parts, test, Budget(epsilon, DELTA), passes=None)
            log_loss, auc = np.mean(tuned["scores"], axis=0)
            record |= {"oracle": (log_loss - best, auc), "oracle_tuning": tuned["tuning"]}
            records.append(record)
            cells = [record.get(key) for key in ("accelerated", "phased-sgd", "oracle", "not_private")]
            table.add_row(
                f"{n_users:,}", f"{epsilon:g}", *("too few" if c is None else f"{c[0]:.4f} ({c[1]:.4f})" for c in cells)
            )
            console.print(f"{n_users:,} users, epsilon={epsilon:g}: {record}")
    console.print(table)
    return records


def cost(repeats: int, quick: bool) -> list[dict]:
    """CPU time of whole runs over that of their gradients, in the same run, without and with planning."""
    shown = ("steps", "gradients, CPU s", "run / gradients", "and planning", "excess", "aborted")
    records, table, d, budget = [], Table("users", "m", *shown), 20, Budget(1.0, DELTA)
    test, truth = generate(losses.logistic, 20_000, 10, d, seed=10_000)
    best = mean_loss(losses.logistic, test, truth)
    solve(losses.logistic, generate(losses.logistic, 10_000, 3, d, 0)[0], 3, 1.0, 0)  # fills caches
    for n in (20_000,) if quick else (30_000, 100_000):
        for m in (1, 3, 20):
            data, _ = generate(losses.logistic, n, m, d, 0)
            problem, engine = Problem(losses.logistic, Ball(4.0), d, 2.0), _TimedEngine()
            started = time.process_time()
            plan = plan_accelerated(problem, n, m, budget)
            planned = time.process_time()
            curator = Curator(data, plan.certified, Ledger(budget), engine=engine, insecure_seed=0)
            result = run(problem, plan, curator)
            ended = time.process_time()
            ratio, whole = ((ended - begin) / engine.seconds for begin in (planned, started))
            excess = mean_loss(losses.logistic, test, result.weights) - best
            records.append({"users": n, "d": d, "m": m, "steps": plan.phases[0].n_steps, "ratio": ratio})
            records[-1] |= {"with_planning": whole, "excess": excess, "aborted": result.aborted}
            figures = (f"{engine.seconds:.2f}", f"{ratio:.1f}", f"{whole:.1f}", f"{excess:.6f}", f"{result.aborted}")
            table.add_row(f"{n:,}", f"{m}", f"{plan.phases[0].n_steps}", *figures)
    console.print(table)
    return records


class _TimedEngine(LocalEngine):
    """Adds up the CPU time of users' vectors."""

    seconds = 0.0

    def vectors(self, statistic, data, users, n_groups):
        started = time.process_time()
        vectors = super().vectors(statistic, data, users, n_groups)
        self.seconds += time.process_time() - started
        return vectors


PARTS = {
    "cost": cost,
    "gradients": gradients,
    "risk": generated_risk,
    "variance": variance,
    "smoothing": smoothing,
    "phases": phases,
    "real": real,
    "few": few,
}


if __name__ == "__main__":
    run_parts("accelerated", __doc__, PARTS)
