"""Coverage of private confidence intervals, and how wide they are, on generated people whose best model is known.

A user's rows are alike: features share a taste, and errors are correlated within a user (`alike`, by a Gaussian copula,
so that each row by itself follows the model exactly and the truth is known). Each run draws new people and new noise.
`coverage` is the fraction of all coefficients that 95% intervals hold; `least` that of the coefficient that is held
least often, `intercept` the intercept's. `width` is the standard error over the ideal one: the true sandwich at the
truth, with the noise that was in fact added to the gradient; `noise` the part of the variance that is privacy's.
`rmse/se` is the true error over the standard error. With r runs of k coefficients, coverage of 95% is told up to about
1.96 sqrt(.0475 / (r k)), more where coefficients go together: `--draw` tells how much of a grid's misses is chance.

With `--real` people are drawn from a real data set, and the truth is the optimum of all its training people (without
privacy, same cap on rows), which they are a part of.

    python benchmarks/intervals.py [--kinds logistic,linear,poisson] [--users 2000,10000] [--rows 1,10,unequal]
        [--epsilon 0.5,1,8] [--features 5] [--correlation 0.5] [--fraction 0.5] [--runs 100] [--save]
    python benchmarks/intervals.py --real openpowerlifting --users 5000 --epsilon 3,8 --runs 20
    python benchmarks/intervals.py --draw    # a picture of what was saved: results/intervals.svg
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import re
import time
import warnings
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import matplotlib as mpl
import numpy as np
from common import save
from scipy.special import expit, logit, ndtr, stdtrit

from userdp import Ball, BudgetExceeded, Execution, UserData, losses
from userdp.models.fitting import minimize
from userdp.solvers.solver import Result, Uncertainty
from userdp_research.bench.references import user_optimum
from userdp_research.bench.tasks import known_tasks

TASTE = 0.1  # fraction of a feature's variance that all rows of a user have in common
ALIKE = 0.3  # correlation of errors of a user's rows
MOST, ERROR = 30.0, 0.15  # largest count; standard deviation of errors in regression
LOSSES = {"logistic": losses.logistic, "linear": losses.squared, "poisson": losses.poisson(MOST)}
SIGNALS = {"logistic": (1.0, 0.2), "linear": (0.2, 0.1), "poisson": (0.4, 0.3)}  # of the first feature; intercept
SIZES = {"unequal": (1, 2, 5, 40)}
RARE = {"1%": -5.0, "3%": -3.8, "10%": -2.5}  # intercept where a class, or what is counted, is as rare, about
FREEDOM, SCATTER = 3.0, 2.0  # of heavy tails: Student's degrees of freedom; variance of counts beyond Poisson's
IDEAL_ROWS = 400_000
PICTURE = Path(__file__).parent / "results" / "intervals.svg"


@dataclass(frozen=True)
class Case:
    """A cell: which people, how many, and what is asked of them."""

    kind: str
    users: int
    rows: str
    epsilon: float
    features: int
    correlation: float
    shape: str
    fraction: float
    runs: int

    @property
    def sizes(self) -> tuple[int, ...]:
        return SIZES.get(self.rows) or (int(self.rows),)

    @property
    def truth(self) -> np.ndarray:
        """The first feature's weight, half of it with the other sign, zeros, and the intercept."""
        weights = np.zeros(self.features + 1)
        signal, weights[-1] = SIGNALS[self.kind]
        weights[: min(2, self.features)] = (signal, -signal / 2)[: min(2, self.features)]
        weights[-1] = RARE.get(self.shape, weights[-1])
        return weights

    @property
    def draw(self) -> int:
        """What people and noise of the cell begin with: cells have neither in common."""
        return zlib.crc32(repr(replace(self, runs=0)).encode())


def people(case: Case, n_users: int, seed: int) -> UserData:
    """Users whose rows each follow the model of the case's weights."""
    rng = np.random.default_rng([case.draw, seed])
    owner = np.repeat(np.arange(n_users), np.resize(case.sizes, n_users))
    z = math.sqrt(1 - TASTE) * rng.normal(size=(len(owner), case.features + 1))
    z += math.sqrt(TASTE) * rng.normal(size=(n_users, case.features + 1))[owner]
    X = math.sqrt(1 - case.correlation) * z[:, 1:] + math.sqrt(case.correlation) * z[:, :1]
    heavy = case.shape == "heavy"
    if heavy and case.kind != "poisson":  # all features of a row at once
        X /= np.sqrt(rng.chisquare(FREEDOM, (len(owner), 1)) / (FREEDOM - 2))
    predictions = X @ case.truth[:-1] + case.truth[-1]
    error = math.sqrt(ALIKE) * rng.normal(size=n_users)[owner] + math.sqrt(1 - ALIKE) * rng.normal(size=len(owner))
    if case.kind == "linear":
        y = predictions + ERROR * (stdtrit(FREEDOM, ndtr(error)) * math.sqrt(1 - 2 / FREEDOM) if heavy else error)
    elif case.kind == "logistic":
        y = (predictions + logit(ndtr(error)) > 0).astype(float)
    else:
        y = counts(ndtr(error), np.exp(predictions), SCATTER if heavy else 0.0) / MOST
    return UserData.from_arrays(X, y, owner, max_rows_per_user=max(case.sizes), fit_intercept=True)


def counts(level: np.ndarray, mean: np.ndarray, scatter: float) -> np.ndarray:
    """Quantiles of counts of this mean and variance mean + scatter * mean^2, at most MOST."""
    fraction = scatter * mean / (1 + scatter * mean)
    frequency = (1 + scatter * mean) ** (-1 / scatter) if scatter else np.exp(-mean)
    below, found = frequency.copy(), np.zeros(len(mean))
    for k in range(1, int(MOST) + 1):
        found += level > below
        frequency = frequency * (fraction * (k - 1 + 1 / scatter) if scatter else mean) / k
        below += frequency
    return found


@functools.lru_cache(maxsize=64)
def sandwich(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Mean curvature and mean square of users' gradients at the truth, by very many rows of other users."""
    n_users = int(IDEAL_ROWS / np.mean(case.sizes))
    data = people(case, n_users, seed=10**6)
    rows = np.column_stack([data.dense()[:, : case.features].astype(float), np.ones(data.n_rows)])
    predictions, counted = rows @ case.truth, np.diff(data.offsets)
    expected = {"linear": predictions, "logistic": expit(predictions), "poisson": np.exp(predictions) / MOST}[case.kind]
    curved = {"linear": np.ones(len(rows)), "logistic": expected * (1 - expected), "poisson": expected}[case.kind]
    share = np.repeat(1 / counted, counted)
    gradients = np.add.reduceat((share * (expected - data.targets))[:, None] * rows, data.offsets[:-1], axis=0)
    return (rows.T * (share * curved)) @ rows / n_users, gradients.T @ gradients / n_users


def measure(case: Case, first: int) -> dict[str, object]:
    """One cell: how often intervals hold the truth, and how wide they are."""
    if not case.users:
        case = replace(case, users=least_users(case))
    curved, square = sandwich(replace(case, users=0, epsilon=0.0, fraction=0.0, runs=0))
    inverse = np.linalg.inv(curved)

    def compare(weights: np.ndarray, found: Uncertainty) -> tuple[np.ndarray, np.ndarray]:
        errors = np.sqrt(np.diag(found.covariance))
        ideal = inverse @ (found.gradient_noise + square / case.users) @ inverse
        return (weights - case.truth) / errors, errors / np.sqrt(np.diag(ideal))

    return (
        asdict(case)
        | {"first": first}
        | several(lambda seed: fit(case, seed), compare, range(first, first + case.runs))
    )


def fit(case: Case, seed: int) -> Result:
    return minimize(
        LOSSES[case.kind],
        people(case, case.users, seed),
        Ball(1e9),
        case.epsilon,
        target_bound=None if case.kind == "logistic" else 1.0,
        rows_per_user=max(case.sizes),
        insecure_seed=case.draw + seed,
        inference=case.fraction,
        execution=Execution(progress=False),
    )


def least_users(case: Case) -> int:
    """The fewest users that a plan is made for."""
    try:
        fit(replace(case, users=20), 0)
    except BudgetExceeded as refused:
        return refused.enough_users or 0
    return 20


def several(
    fit: Callable[[int], Result],
    compare: Callable[[np.ndarray, Uncertainty], tuple[np.ndarray, np.ndarray]],
    seeds: range,
) -> dict[str, object]:
    """Coverage, of fits from these seeds, by errors in units of standard errors, and their widths."""
    relative, widths, noises, enough, started = [], [], [], [], time.process_time()
    for seed in seeds:
        try:
            result = fit(seed)
        except BudgetExceeded as refused:
            return {"refused": True, "enough_users": refused.enough_users}
        found = result.uncertainty
        if found is None:
            enough.append(enough_users(result.message))
            continue
        error, width = compare(result.weights, found)
        relative.append(error)
        widths.append(width)
        noises.append(np.diag(found.noise) / np.diag(found.covariance))
    told: dict[str, object] = {
        "without": len(enough),
        "enough_users": float(np.nanmedian(enough)) if enough else None,
        "seconds": round((time.process_time() - started) / len(seeds), 2),
    }
    if len(relative) < 2:
        return told | {"refused": True}
    held = np.abs(relative) <= 1.959964
    return told | {
        "coverage": float(held.mean()),
        "spread": float(held.mean(axis=1).std(ddof=1)),
        "least": float(held.mean(axis=0).min()),
        "intercept": float(held[:, -1].mean()),
        "width": float(np.mean(widths)),
        "widest": float(np.mean(widths, axis=0).max()),
        "noise": float(np.mean(noises)),
        "rmse/se": float(np.sqrt(np.mean(np.square(relative)))),
        "each": held.mean(axis=0).tolist(),
        "bias": np.mean(relative, axis=0).tolist(),
    }


def enough_users(message: str) -> float:
    """What a fit without standard errors says of how many users would do, if it does."""
    said = re.search(r"About ([\d,]+) such users", message)
    return math.nan if said is None else float(said[1].replace(",", ""))


def measure_real(name: str, n_users: int, epsilon: float, fraction: float, seeds: range) -> dict[str, object]:
    """The same with people of a real data set; the ideal width is not known."""
    task = known_tasks()[name]
    everyone = task.load_train()
    best = user_optimum(task.loss, everyone)

    def fit(seed: int) -> Result:
        data, bound = task.load_train(seed + 1, n_users), None if task.loss.classifies else 1.0
        options = {"rows_per_user": task.cap, "insecure_seed": seed, "inference": fraction}
        return minimize(
            task.loss, data, Ball(1e9), epsilon, target_bound=bound, execution=Execution(progress=False), **options
        )

    def compare(weights: np.ndarray, found: Uncertainty) -> tuple[np.ndarray, np.ndarray]:
        among = found.noise + found.sampling * (1 - n_users / everyone.n_users)  # drawn without replacement
        return (weights - best) / np.sqrt(np.diag(among)), np.full(len(best), math.nan)

    cell = {"kind": name, "users": n_users, "rows": str(task.cap), "epsilon": epsilon, "first": seeds[0]}
    cell |= {"features": everyone.n_features - 1, "correlation": math.nan, "shape": "real", "runs": len(seeds)}
    return cell | {"fraction": fraction} | several(fit, compare, seeds)


def judged(cells: list[dict]) -> list[dict]:
    """Those with intervals, with `error`, the standard deviation of a cell's coverage if that is 95%, and `z`.

    Coefficients of a run go together: by how much is told by all cells with as many of them.
    """
    cells = [cell for cell in cells if "coverage" in cell]
    for cell in cells:
        alike = [other for other in cells if other["features"] == cell["features"]]
        freedom = [other["runs"] - other["without"] - 1 for other in alike]
        variance = np.average([other["spread"] ** 2 for other in alike], weights=freedom)
        cell["error"] = math.sqrt(variance / (cell["runs"] - cell["without"]))
        cell["z"] = (cell["coverage"] - 0.95) / cell["error"]
    return cells


def draw() -> None:
    """The picture of all that was saved of generated people, and a line for each group: parts that begin alike."""
    from matplotlib.figure import Figure

    kept = json.loads((Path(__file__).parent / "results" / "intervals.json").read_text())["results"]
    rows = [cell | {"part": part.split("-")[0]} for part, told in kept.items() for cell in told["rows"]]
    cells = sorted(judged([cell for cell in rows if cell["shape"] != "real"]), key=lambda cell: cell["part"])
    parts = list(dict.fromkeys(cell["part"] for cell in cells))
    groups = {part: [cell for cell in cells if cell["part"] == part] for part in parts} | {"all": cells}
    for part, some in groups.items():
        runs = np.array([cell["runs"] - cell["without"] for cell in some])
        covered, z = np.array([cell["coverage"] for cell in some]), np.array([cell["z"] for cell in some])
        error = math.sqrt(float(np.square(runs) @ np.square([cell["error"] for cell in some]))) / runs.sum()
        width = [cell["width"] for cell in some]
        told = f"{runs @ covered / runs.sum():.3f} +- {error:.3f}, cells {covered.min():.3f} to {covered.max():.3f}"
        told += f", mean of z {z.mean():+.2f}, of its square {np.mean(z**2):.2f}, width {np.mean(width):.2f}"
        print(f"{part}: {len(some)} cells, {runs.sum()} fits, coverage {told}, at most {np.max(width):.2f}")
    parts = [part for part in parts if len(groups[part]) >= 5]  # room for a name
    cells = [cell for cell in cells if cell["part"] in parts]
    colours = {"logistic": "#0072b2", "linear": "#d55e00", "poisson": "#009e73"}
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "userdp", "font.size": 9}):
        figure = Figure(figsize=(10, 5), layout="constrained")
        upper, lower = figure.subplots(2, 1, sharex=True)
        for kind, colour in colours.items():
            places = [k for k, cell in enumerate(cells) if cell["kind"] == kind]
            mine = [cells[k] for k in places]
            covered, reach = [cell["coverage"] for cell in mine], [1.96 * cell["error"] for cell in mine]
            upper.errorbar(places, covered, yerr=reach, fmt="o", markersize=3, elinewidth=0.8, color=colour, label=kind)
            lower.plot(places, [cell["width"] for cell in mine], "o", markersize=3, color=colour)
        upper.axhspan(0.93, 0.97, color="#888888", alpha=0.2, linewidth=0)
        upper.axhline(0.95, color="#888888", linewidth=0.8)
        upper.set(ylabel="coverage of 95% intervals")
        upper.legend(frameon=False, ncols=3, loc="lower right")
        lower.axhline(1.3, color="#888888", linewidth=0.8)
        lower.set(ylabel="standard error / the ideal one")
        begins = [next(k for k, cell in enumerate(cells) if cell["part"] == part) - 0.5 for part in parts]
        for axes in (upper, lower):
            for begin in begins[1:]:
                axes.axvline(begin, color="#888888", linewidth=0.5)
        lower.set_xticks([(a + b) / 2 for a, b in itertools.pairwise([*begins, len(cells) - 0.5])], parts)
        lower.tick_params(axis="x", length=0)
        lower.set_xlim(-0.5, len(cells) - 0.5)
        figure.savefig(PICTURE, format="svg", metadata={"Date": None, "Creator": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words, numbers = (lambda text: text.split(",")), (lambda text: [float(part) for part in text.split(",")])
    parser.add_argument("--kinds", type=words, default=list(LOSSES))
    parser.add_argument("--users", type=numbers, default=[2_000, 10_000, 50_000], help="0: the fewest allowed")
    parser.add_argument("--rows", type=words, default=["1", "10", "unequal"])
    parser.add_argument("--epsilon", type=numbers, default=[0.5, 1, 3, 8])
    parser.add_argument("--features", type=numbers, default=[5])
    parser.add_argument("--correlation", type=numbers, default=[0.5])
    parser.add_argument("--shapes", type=words, default=["normal"], help="normal, heavy, 1%%, 3%%, 10%%")
    parser.add_argument("--fraction", type=float, default=0.5)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="seed of the first run: other people")
    parser.add_argument("--real", help="a task of `userdp-bench real`, instead of generated people")
    parser.add_argument("--save", help="write it to results/intervals.json, as a part of this name")
    parser.add_argument("--draw", action="store_true", help="nothing but the picture of all that was saved")
    args = parser.parse_args()
    if args.draw:
        draw()
        return
    warnings.simplefilter("ignore")
    print("kind      users   rows     eps  features corr   shape | cover  least  interc  width  noise  rmse/se  s/fit")
    grid = (args.kinds, args.users, args.rows, args.epsilon, args.features, args.correlation, args.shapes)
    cells, seeds = [], range(args.first, args.first + args.runs)
    for case in itertools.product(args.users, args.epsilon) if args.real else itertools.product(*grid):
        if args.real:
            cell = measure_real(args.real, int(case[0]), case[1], args.fraction, seeds)
        else:
            kind, n_users, rows, epsilon, features, *rest = case
            case = Case(kind, int(n_users), rows, epsilon, int(features), *rest, args.fraction, args.runs)
            cell = measure(case, args.first)
        cells.append(cell)
        if args.save:
            save("intervals", {args.save: cells})
        named = "{kind:9} {users:6.0f} {rows:>7} {epsilon:6g} {features:8.0f} {correlation:5g} {shape:>7} |"
        print(named.format(**cell), end=" ")
        if "refused" in cell:
            print(f"refused: {cell['enough_users']:,.0f} users would do", flush=True)
            continue
        told = "{coverage:.3f}  {least:.3f}  {intercept:.3f} {width:7.2f} {noise:6.2f} {rmse/se:7.2f} {seconds:7.2f}"
        print(told.format(**cell), f"{cell['without']} without" if cell["without"] else "", flush=True)


if __name__ == "__main__":
    main()
