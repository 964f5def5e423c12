"""Coverage of 95% intervals of `private_mean(inference=True)`, on generated people.

Each run draws new people and new noise. Kinds: `normal`, features correlated by 0.5, a user's rows by 0.3; `counts`,
visits of people whose rates are gamma, cut off at 30, with spread=(30, 30), of each row with the same; `skewed`, an
exponential of each user and normal rows, without a public spread; `heavy`, a lognormal of each user, `t3`, Student's
with 3 degrees of freedom, and `far`, normal with 1% of the users 20 deviations out, the same way.
`unequal` users have 1, 2, 5 or 40 rows. `coverage` is of all features, `exact` that of the same people's means without
noise, by their true variance: what chance made of these draws; `least` of the feature that is held least often; `width`
is the standard error over the ideal one, of the noise that was added and of the true variance of the users; `noise` the
part of the variance that is privacy's; `error` the true error over the standard error, root mean square; `std_err` the
mean standard error. With more than half a million numbers users' means are drawn instead of their rows, which all
releases are functions of. With r runs of one feature, coverage of 95% is told up to about 1.96 sqrt(.0475 / r). Runs
that abort are counted apart (`aborts`), as are those that say that there are no intervals (`none`).

    python benchmarks/mean_intervals.py [--kinds normal,counts] [--users 2000,10000] [--rows 1,10,50,unequal]
        [--epsilon 0.5,1,8] [--features 1,5] [--fraction 0.1] [--runs 200] [--first-seed 0] [--save]
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
import warnings

import numpy as np
from common import save
from scipy.stats import gamma, poisson

from userdp import Aborted, BudgetExceeded, private_mean

SHARED = {  # a number of each user, by its kind, with mean and variance
    "skewed": (lambda rng, size: rng.exponential(size=size), 1.0, 1.0),
    "heavy": (lambda rng, size: rng.lognormal(size=size), math.exp(0.5), math.exp(2) - math.exp(1)),
    "t3": (lambda rng, size: rng.standard_t(3, size=size), 0.0, 3.0),
    "far": (lambda rng, size: rng.normal(size=size) + 20 * (rng.random(size) < 0.01), 0.2, 1 + 0.0099 * 400),
}
KINDS = ("normal", "counts", *SHARED)
SIZES = {"unequal": (1, 2, 5, 40)}
ALIKE, CORRELATION, CENTRE = 0.3, 0.5, 0.5
RATE, VISITS, MOST = 0.6, 2.9, 30  # shape of people's rates, mean number of visits, largest
MOST_NUMBERS = 500_000


def people(
    kind: str, n_users: int, sizes: tuple[int, ...], features: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Rows, or users' means, and whose they are."""
    counts = np.resize(sizes, n_users)
    by_rows = kind == "counts" or counts.sum() * features <= MOST_NUMBERS
    users = np.repeat(np.arange(n_users), counts) if by_rows else np.arange(n_users)
    per_row = np.ones(len(users)) if by_rows else 1 / np.sqrt(counts)  # deviation of what rows do not share
    if kind == "counts":
        rates = rng.gamma(RATE, VISITS / RATE, (n_users, 1))
        return np.minimum(rng.poisson(rates[users]), MOST).astype(float), users
    if kind in SHARED:
        shared = SHARED[kind][0](rng, (n_users, 1))
        return shared[users] + 0.5 * per_row[:, None] * rng.normal(size=(len(users), 1)), users

    def correlated(n: int) -> np.ndarray:
        z = rng.normal(size=(n, features + 1))
        return math.sqrt(1 - CORRELATION) * z[:, 1:] + math.sqrt(CORRELATION) * z[:, :1]

    rows = math.sqrt(1 - ALIKE) * per_row[:, None] * correlated(len(users))
    return CENTRE + math.sqrt(ALIKE) * correlated(n_users)[users] + rows, users


def truth(kind: str, sizes: tuple[int, ...]) -> tuple[float, float]:
    """The mean, and the variance of a user's mean."""
    inverse = float(np.mean(1 / np.array(sizes)))
    if kind == "counts":
        rates = gamma.ppf((np.arange(20_000) + 0.5) / 20_000, RATE, scale=VISITS / RATE)
        chances, numbers = poisson.pmf(np.arange(201), rates[:, None]), np.minimum(np.arange(201), MOST)
        means, squares = chances @ numbers, chances @ numbers**2
        return float(means.mean()), float(means.var() + inverse * np.mean(squares - means**2))
    if kind in SHARED:
        return SHARED[kind][1], SHARED[kind][2] + 0.25 * inverse
    return CENTRE, ALIKE + (1 - ALIKE) * inverse


def measure(
    kind: str, n_users: int, rows: str, epsilon: float, features: int, fraction: float, runs: int, first: int
) -> dict[str, object]:
    """One cell: how often intervals hold the truth, and how wide they are."""
    sizes = SIZES.get(rows) or (int(rows),)
    cell: dict[str, object] = {"kind": kind, "users": n_users, "rows": rows, "epsilon": epsilon, "features": features}
    cell |= {"fraction": fraction, "runs": runs}
    (mean, variance), started = truth(kind, sizes), time.process_time()
    relative, exact, widths, noises, std_errs, aborted, none = [], [], [], [], [], 0, 0
    for seed in range(first, first + runs):
        X, users = people(
            kind, n_users, sizes, features, np.random.default_rng([seed, n_users, int(8 * epsilon), *sizes])
        )
        try:
            spread = (MOST, MOST) if kind == "counts" else (1e-9, 1e9)
            found = private_mean(X, users, epsilon, spread=spread, inference=fraction, insecure_seed=seed)
            if found.errors is None:
                none += 1
                continue
            told = found.summary()
        except BudgetExceeded as refused:
            return cell | {"refused": True, "enough_users": refused.enough_users}
        except Aborted:  # which happens once in a thousand runs
            aborted += 1
            continue
        own = np.column_stack([np.bincount(users, column) for column in X.T]) / np.bincount(users)[:, None]
        exact.append((own.mean(axis=0) - mean) / math.sqrt(variance / n_users))
        relative.append((told.coef - mean) / ((told.conf_int[:, 1] - told.conf_int[:, 0]) / 2))
        noise = told.noise_share * told.std_err**2
        widths.append(told.std_err / np.sqrt(noise + variance / n_users))
        noises.append(told.noise_share)
        std_errs.append(told.std_err)
    each = np.mean(np.abs(relative) <= 1, axis=0)
    return cell | {
        "coverage": float(each.mean()),
        "exact": float(np.mean(np.abs(exact) <= 1.959964)),
        "least": float(each.min()),
        "width": float(np.mean(widths)),
        "noise": float(np.mean(noises)),
        "error": 1.96 * float(np.sqrt(np.mean(np.square(relative)))),
        "std_err": float(np.mean(std_errs)),
        "aborted": aborted,
        "none": none,
        "seconds": round((time.process_time() - started) / runs, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words, numbers = (lambda text: text.split(",")), (lambda text: [float(part) for part in text.split(",")])
    parser.add_argument("--kinds", type=words, default=list(KINDS))
    parser.add_argument("--users", type=numbers, default=[2_000, 10_000, 100_000])
    parser.add_argument("--rows", type=words, default=["1", "10", "50", "unequal"])
    parser.add_argument("--epsilon", type=numbers, default=[0.5, 1, 8])
    parser.add_argument("--features", type=numbers, default=[1, 5])
    parser.add_argument("--fraction", type=float, default=0.1)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--save", action="store_true", help="write results/mean_intervals.json")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    told = "coverage  exact  least  width  noise  error std_err aborts none  s/run"
    print(f"kind      users   rows     eps  features | {told}")
    cells = []
    for kind, n_users, rows, epsilon, features in itertools.product(
        args.kinds, args.users, args.rows, args.epsilon, args.features
    ):
        if features > 1 and kind in ("counts", *SHARED):
            continue
        cell = measure(kind, int(n_users), rows, epsilon, int(features), args.fraction, args.runs, args.first_seed)
        cells.append(cell)
        print("{kind:8} {users:7.0f} {rows:>7} {epsilon:6g} {features:8.0f} |".format(**cell), end=" ")
        if "refused" in cell:
            print(f"refused: {cell['enough_users']} users would do", flush=True)
            continue
        told = "{coverage:8.3f} {exact:6.3f} {least:6.3f} {width:6.2f} {noise:6.2f} {error:6.2f} {std_err:7.4f}"
        print((told + " {aborted:6} {none:4}").format(**cell), cell["seconds"], flush=True)
    if args.save:
        print(f"Wrote {save('mean_intervals', {'coverage': cells})}")


if __name__ == "__main__":
    main()
