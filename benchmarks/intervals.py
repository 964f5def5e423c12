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
import functools
import itertools
import math
import re
import time
import warnings
import zlib
from dataclasses import asdict, dataclass, replace

import numpy as np
from common import save
from scipy.special import expit, logit, ndtr, stdtrit

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
RARE = -3.8  # intercept of a rare class, or of rare counts: about 3% of the rows
FREEDOM, SCATTER = 3.0, 2.0  # of heavy tails: Student's degrees of freedom; variance of counts beyond Poisson's
IDEAL_ROWS = 400_000


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
        if self.shape == "rare":
            weights[-1] = RARE
        return weights


def people(case: Case, n_users: int, seed: int) -> UserData:
    """Users whose rows each follow the model of the case's weights."""
    rng = np.random.default_rng([zlib.crc32(repr(case).encode()), seed])  # cells have nobody in common
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


def measure(case: Case) -> dict[str, object]:
    """One cell: how often intervals hold the truth, and how wide they are."""
    cell: dict[str, object] = asdict(case)
    curved, square = sandwich(replace(case, users=0, epsilon=0.0, fraction=0.0, runs=0))
    started, inverse = time.process_time(), np.linalg.inv(curved)
    widths, noises, relative, enough = [], [], [], []
    for seed in range(case.runs):
        data = people(case, case.users, seed)
        bound = None if case.kind == "logistic" else 1.0
        options = {"rows_per_user": max(case.sizes), "insecure_seed": seed, "inference": case.fraction}
        try:
            result = minimize(
                LOSSES[case.kind], data, Ball(1e9), case.epsilon, target_bound=bound, progress=False, **options
            )
        except BudgetExceeded as refused:
            return cell | {"refused": True, "enough_users": refused.enough_users}
        found = result.uncertainty
        if found is None:
            enough.append(enough_users(result.message))
            continue
        errors = np.sqrt(np.diag(found.covariance))
        ideal = np.sqrt(np.diag(inverse @ (found.gradient_noise + square / case.users) @ inverse))
        relative.append((result.weights - case.truth) / errors)
        widths.append(errors / ideal)
        noises.append(np.diag(found.noise) / errors**2)
    told: dict[str, object] = {"refused": True}
    if len(enough) < case.runs / 2:
        told = summed(relative, noises) | {"width": float(np.mean(widths))}
    told |= {"without": len(enough), "enough_users": float(np.median(enough)) if enough else None}
    seconds = round((time.process_time() - started) / case.runs, 2)
    return cell | told | {"seconds": seconds}


def enough_users(message: str) -> float:
    """What a fit without standard errors says of how many users would do."""
    said = re.search(r"About ([\d,]+) such users", message)
    assert said is not None, message
    return float(said[1].replace(",", ""))


def summed(relative: list[np.ndarray], noises: list[np.ndarray]) -> dict[str, object]:
    """Coverage, by errors in units of standard errors."""
    each = np.mean(np.abs(relative) <= 1.959964, axis=0)
    return {
        "coverage": float(each.mean()),
        "least": float(each.min()),
        "intercept": float(each[-1]),
        "noise": float(np.mean(noises)),
        "rmse/se": float(np.sqrt(np.mean(np.square(relative)))),
        "each": each.tolist(),
        "bias": np.mean(relative, axis=0).tolist(),
    }


def measure_real(name: str, n_users: int, epsilon: float, fraction: float, runs: int) -> dict[str, object]:
    """The same with people of a real data set; the ideal width is not known."""
    task = known_tasks()[name]
    everyone = task.load_train()
    best = user_optimum(task.loss, everyone)
    cell: dict[str, object] = {"kind": name, "users": n_users, "epsilon": epsilon, "fraction": fraction, "runs": runs}
    cell |= {
        "rows": str(task.cap),
        "features": everyone.n_features - 1,
        "correlation": math.nan,
        "width": math.nan,
        "shape": "",
    }
    relative, noises, enough, started = [], [], [], time.process_time()
    for seed in range(runs):
        data = task.load_train(seed + 1, n_users)
        bound = None if task.loss.classifies else 1.0
        options = {"rows_per_user": task.cap, "insecure_seed": seed, "inference": fraction, "progress": False}
        try:
            result = minimize(task.loss, data, Ball(1e9), epsilon, target_bound=bound, **options)
        except BudgetExceeded as refused:
            return cell | {"refused": True, "enough_users": refused.enough_users}
        found = result.uncertainty
        if found is None:
            enough.append(enough_users(result.message))
            continue
        among = found.noise + found.sampling * (1 - n_users / everyone.n_users)  # drawn without replacement
        relative.append((result.weights - best) / np.sqrt(np.diag(among)))
        noises.append(np.diag(found.noise) / np.diag(found.covariance))
    seconds = round((time.process_time() - started) / runs, 2)
    told = {"refused": True} if len(enough) >= runs / 2 else summed(relative, noises)
    told |= {"without": len(enough), "enough_users": float(np.median(enough)) if enough else None}
    return cell | told | {"seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words, numbers = (lambda text: text.split(",")), (lambda text: [float(part) for part in text.split(",")])
    parser.add_argument("--kinds", type=words, default=list(LOSSES))
    parser.add_argument("--users", type=numbers, default=[2_000, 10_000, 50_000])
    parser.add_argument("--rows", type=words, default=["1", "10", "unequal"])
    parser.add_argument("--epsilon", type=numbers, default=[0.5, 1, 3, 8])
    parser.add_argument("--features", type=numbers, default=[5])
    parser.add_argument("--correlation", type=numbers, default=[0.5])
    parser.add_argument("--shapes", type=words, default=["normal"], help="normal, rare, heavy")
    parser.add_argument("--fraction", type=float, default=0.5)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--real", help="a task of `userdp bench real`, instead of generated people")
    parser.add_argument("--save", help="write it to results/intervals.json, as a part of this name")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    print("kind      users   rows     eps  features corr   shape | cover  least  interc  width  noise  rmse/se  s/fit")
    grid = (args.kinds, args.users, args.rows, args.epsilon, args.features, args.correlation, args.shapes)
    cells = []
    for case in itertools.product(args.users, args.epsilon) if args.real else itertools.product(*grid):
        if args.real:
            cell = measure_real(args.real, int(case[0]), case[1], args.fraction, args.runs)
        else:
            kind, n_users, rows, epsilon, features, *rest = case
            cell = measure(Case(kind, int(n_users), rows, epsilon, int(features), *rest, args.fraction, args.runs))
        cells.append(cell)
        named = "{kind:9} {users:6.0f} {rows:>7} {epsilon:6g} {features:8.0f} {correlation:5g} {shape:>7} |"
        print(named.format(**cell), end=" ")
        if "refused" in cell:
            print(f"refused: {cell['enough_users']:,.0f} users would do", flush=True)
            continue
        told = "{coverage:.3f}  {least:.3f}  {intercept:.3f} {width:7.2f} {noise:6.2f} {rmse/se:7.2f} {seconds:7.2f}"
        print(told.format(**cell), f"{cell['without']} without" if cell["without"] else "", flush=True)
    if args.save:
        print(f"Wrote {save('intervals', {args.save: cells})}")


if __name__ == "__main__":
    main()
