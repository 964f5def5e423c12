"""The accelerated solver: gradients and risk against the theorems' exponents, Lemma 3.5, real users, few users.

- gradients: how many the tight plans take against n, m and beta, beside the theorems' exponents; Asi and Liu's, too.
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
from phased_sgd import generate, risk
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy.optimize import minimize as optimize

from userdp import Ball, Budget, BudgetExceeded, Curator, Ledger, MeanGradient, UserData, losses
from userdp.fitting import minimize
from userdp.privacy import concentration
from userdp.privacy.accounting import gaussian_multiplier
from userdp.smoothing import BallSmoothing
from userdp.solvers import accelerated_paper as paper
from userdp.solvers.accelerated import run
from userdp.solvers.accelerated_tight import plan_accelerated
from userdp.solvers.asi_liu import plan_asi_liu
from userdp.solvers.descent import Nesterov
from userdp.solvers.problem import Problem

DELTA = 1e-6
console = Console()


def slope(x: list[float], y: list[float]) -> float:
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def gradients(repeats: int, quick: bool) -> list[dict]:
    """Fewest gradients with at most twice the least estimate: eps = L = R = 1, d = n, a user's rows independent."""
    records = []
    table = Table("solver", "loss", "against", "exponent", "theorem", "steps", "users a step")
    ns, ms = np.geomspace(1e5, 1e8, 7), np.geomspace(10, 10_000, 7)

    def smooth(beta: float) -> losses.Loss:
        return losses.smoothed_hinge(1 / beta)

    def plan(solver, loss, n, m):
        problem = Problem(loss, Ball(0.5), int(n), 1.0, row_similarity=0.0)
        size = (problem, int(n), int(m), Budget(1.0, DELTA))
        if solver == "asi-liu":
            return plan_asi_liu(*size, tolerance=1.0, most_steps=10**11)
        return plan_accelerated(*size, tolerance=1.0)

    sweeps = [
        ("smooth", "n", ns, lambda v: (smooth(4.0), v, 100), 9 / 8),
        ("smooth", "m", ms, lambda v: (smooth(4.0), 1e6, v), 9 / 8),
        ("smooth", "beta", np.geomspace(1, 1000, 7), lambda v: (smooth(v), 1e6, 100), 1 / 4),
        ("kinks", "n", ns, lambda v: (losses.hinge, v, 100), 11 / 8),
        ("kinks", "m", ms, lambda v: (losses.hinge, 1e6, v), 5 / 4),
    ]
    sweeps = [("accelerated", *sweep) for sweep in sweeps]
    ns, ms = ns[:4], ms[:5]  # earlier work: up to 10^7 users, 1,000 rows
    sweeps += [
        ("asi-liu", "smooth", "n", ns, lambda v: (smooth(4.0), v, 100), 3 / 2),
        ("asi-liu", "smooth", "m", ms, lambda v: (smooth(4.0), 1e6, v), 3 / 2),
        ("asi-liu", "kinks", "n", ns, lambda v: (losses.hinge, v, 100), 3),
        ("asi-liu", "kinks", "m", ms, lambda v: (losses.hinge, 1e6, v), 3),
    ]
    for solver, kind, varied, values, size, theorem in sweeps:
        plans = [plan(solver, *size(value)) for value in track(values, f"{kind}, {varied}", transient=True)]
        exponent = slope(values, [p.n_gradients for p in plans])
        shapes = [(p.phases[0].n_steps, round(p.phases[0].users_a_step)) for p in plans]
        records.append({"solver": solver, "loss": kind, "against": varied, "exponent": exponent, "theorem": theorem})
        records[-1] |= {"sizes": list(map(float, values)), "steps_and_users": shapes}
        figures = (f"{exponent:+.2f}", f"{theorem:+.3f}")
        ends = (f"{shapes[0][0]} .. {shapes[-1][0]}", f"{shapes[0][1]:,} .. {shapes[-1][1]:,}")
        table.add_row(solver, kind, varied, *figures, *ends)
    console.print(table)
    return records


def solve(loss, data, rows, epsilon, seed, row_norm=2.0, radius=4.0, max_gradients=None):
    problem = Problem(loss, Ball(radius), data.n_features, row_norm, None if loss.classifies else 5.0)
    budget = Budget(epsilon, DELTA)
    plan = plan_accelerated(problem, data.n_users, rows, budget, max_gradients)
    return plan, run(problem, plan, Curator(data, plan.plan, Ledger(budget), insecure_seed=seed))


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
            best = risk(losses.logistic, test, truth)
            excess = []
            for seed in range(repeats):
                data, _ = generate(losses.logistic, size["n"], size["m"], size["d"], seed)
                plan, result = solve(losses.logistic, data, size["m"], 1.0, seed)
                excess.append(risk(losses.logistic, test, result.weights) - best)
            nothing = risk(losses.logistic, test, np.zeros(size["d"])) - best
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
                errors.append(
                    np.sum((concentration.filtered_mean(batch, counts, concentration.paper_ramp(k)) - mean) ** 2)
                )
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

    best = min(hinge(w) for w in (optimum(losses.hinge, data, width) for width in (1e-2, 1e-3)))
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


def optimum(loss, data: UserData, width: float) -> np.ndarray:
    """Minimiser of the mean of the smoothed hinge over rows, without privacy."""
    X, sign = data.rows.astype(np.float64), 2 * data.targets - 1

    def objective(w):
        gap = 1 - sign * (X @ w)
        inside = np.clip((gap + width) / (2 * width), 0, 1)
        if loss is losses.squared_hinge:
            return 0.5 * np.mean(np.maximum(0, gap) ** 2), -X.T @ (sign * np.maximum(0, gap)) / len(X)
        value = np.where(gap > width, gap, np.where(gap < -width, 0, (gap + width) ** 2 / (4 * width)))
        return np.mean(value), -X.T @ (sign * inside) / len(X)

    return optimize(objective, np.zeros(X.shape[1]), jac=True, method="L-BFGS-B", options={"maxiter": 1000}).x


def phases(repeats: int, quick: bool) -> list[dict]:
    records = []
    for epsilon in (1.0, 4.0):
        excess = {"one phase": [], "two phases": []}
        test, truth = generate(losses.logistic, 20_000, 10, 10, seed=10_000)
        best = risk(losses.logistic, test, truth)
        for seed in range(repeats):
            data, _ = generate(losses.logistic, 20_000, 10, 10, seed)
            half = data.n_users // 2
            parts = [
                UserData(data.rows[: half * 10], data.targets[: half * 10], data.offsets[: half + 1]),
                UserData(data.rows[half * 10 :], data.targets[half * 10 :], data.offsets[half:] - data.offsets[half]),
            ]
            options = {"row_norm": 2.0, "rows_per_user": 10, "solver": "accelerated", "insecure_seed": seed}
            one = minimize("logistic", data, Ball(4.0), epsilon, DELTA, **options)
            first = minimize("logistic", parts[0], Ball(4.0), epsilon, DELTA, **options)
            two = minimize("logistic", parts[1], Ball(4.0), epsilon, DELTA, **options, warm_start=first.weights)
            excess["one phase"].append(risk(losses.logistic, test, one.weights) - best)
            excess["two phases"].append(risk(losses.logistic, test, two.weights) - best)
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
            reference = logistic_optimum(train) if name == "logistic" else optimum(loss, train, 5e-3)
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
                rows.append((*scored(loss, result.weights, test), result.halted))
            if not rows:
                continue
            value, auc, halted = np.mean(rows, axis=0)
            used = plan.n_gradients / (train.n_users * task.cap)
            records.append(
                {"data": task.name, "loss": name, "users": train.n_users, "epsilon": epsilon, "allowed_passes": passes}
                | {"passes": used, "excess": value - loss_best, "spread": float(np.std(rows, axis=0)[0]), "auc": auc}
                | {"reference": loss_best, "reference_auc": auc_best, "halted": halted, "bound": plan.bound}
                | {"seconds": float(np.median(seconds)), "steps": plan.phases[0].n_steps}
            )
            shape = f"{plan.phases[0].n_steps} x {plan.phases[0].users_a_step:,.0f}"
            figures = (f"{value - loss_best:.5f}", f"{auc:.4f}", f"{loss_best:.4f}, {auc_best:.4f}", shape)
            allowed = f"{used:.1f}" + ("" if passes is None else f" of {passes}")
            table.add_row(
                task.name, name, f"{epsilon:g}", allowed, *figures, f"{halted:.0%}", f"{np.median(seconds):.1f}"
            )
    console.print(table)
    return records


def scored(loss: losses.Loss, weights: np.ndarray, data: UserData) -> tuple[float, float]:
    """Mean loss over rows, and AUC."""
    log_loss, auc = scores(weights, data)
    if loss is losses.logistic:
        return log_loss, auc
    gap = np.maximum(0, 1 - (2 * data.targets - 1) * (data.rows.astype(np.float64) @ weights))
    return float(np.mean(gap if loss is losses.hinge else 0.5 * gap**2)), auc


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
                rows = []
                for seed, part in enumerate(parts):
                    options = {"row_norm": task.row_norm, "rows_per_user": task.cap, "insecure_seed": seed}
                    try:
                        result = minimize("logistic", part, Ball(10.0), epsilon, DELTA, solver=solver, **options)
                    except BudgetExceeded:
                        break
                    rows.append((*scores(result.weights, test), result.halted))
                if rows:
                    log_loss, auc, halted = np.mean(rows, axis=0)
                    record |= {solver: (log_loss - best, auc, halted)}
            tuned = oracle(parts, test, epsilon, task.row_norm)
            record |= {"oracle": (tuned[0] - best, *tuned[1:])}
            records.append(record)
            cells = [record.get(key) for key in ("accelerated", "phased-sgd", "oracle", "not_private")]
            table.add_row(
                f"{n_users:,}", f"{epsilon:g}", *("too few" if c is None else f"{c[0]:.4f} ({c[1]:.4f})" for c in cells)
            )
            console.print(f"{n_users:,} users, epsilon={epsilon:g}: {record}")
    console.print(table)
    return records


def oracle(parts: list[UserData], test: UserData, epsilon: float, row_norm: float) -> tuple:
    """User-level DP-SGD on all users, tuned on the test users themselves: clip, step up to 3/beta, length up to 240."""
    beta, best = 0.85, None  # the users' average curvature, which nobody would know
    for length in (5, 20, 80, 240):
        noise = gaussian_multiplier(Budget(epsilon, DELTA), length)
        for clip in (0.1, 0.3, 1.0):
            for step in (0.3 / beta, 1 / beta, 3 / beta):
                log_loss, _ = dp_sgd(parts[0], test, length, clip, step, noise, 0)
                if best is None or log_loss < best[0]:
                    best = (log_loss, length, clip, step, noise)
    again = [scores(dp_sgd(part, test, *best[1:], seed + 1)[1], test) for seed, part in enumerate(parts)]
    return (*map(float, np.mean(again, axis=0)), *best[1:4])


def dp_sgd(data, test, length, clip, step, noise, seed) -> tuple[float, np.ndarray]:
    """Clipped gradients, noise, steps: log loss and weights of the better of last and average iterate."""
    rng, users = np.random.default_rng(seed), np.arange(data.n_users)
    w = total = np.zeros(data.n_features)
    for t in range(length):
        vectors = MeanGradient(losses.logistic, w)(data, users, len(users))
        norms = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
        mean = np.einsum("ij,i->j", vectors, np.minimum(1, clip / norms)) / len(users)
        w = w - step * (mean + noise * 2 * clip / len(users) * rng.normal(size=w.size))
        total = total + w * (2 * t >= length)
    ends = (w, total / math.ceil(length / 2))
    return min(((risk(losses.logistic, test, v), v) for v in ends), key=lambda pair: pair[0])


PARTS = {
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
