"""Coverage of intervals where a class, or what is counted, is rare, by how far noise moves curvatures.

Users have three rows, five ordinary columns and a flag that 5% of them have. Each line is of fits in which curvatures
change by so much (a logarithm) where noise or the Newton steps move predictions: how often 95% intervals cover the true
coefficients as they are, and once widened by that change; the flag's and the intercept's coverage beside it.

NOT PRIVATE: compared with the truth.

    python benchmarks/rare_intervals.py [--runs 40] [--seed 7]
"""

from __future__ import annotations

import argparse
import itertools
import math
import warnings

import numpy as np

import userdp
from userdp.solvers import inference

TRUTH = np.array([0.4, -0.3, 0.2, 0.0, 0.1, 0.7])
CELLS = (
    (3000, 0.05, 2.0),
    (3000, 0.09, 1.0),
    (6000, 0.05, 1.0),
    (2000, 0.09, 2.0),
    (3000, 0.03, 4.0),
    (2000, 0.05, 4.0),
)
BINS = (0.0, 0.3, 0.6, 0.8, 1.2, math.inf)


def fit(kind: str, n_users: int, rate: float, epsilon: float, rng: np.random.Generator) -> np.ndarray | None:
    """Errors over standard errors, the intercept last; None if there are none of these."""
    owners, level = np.repeat(np.arange(n_users), 3), math.log(rate / (1 - rate))
    X = rng.normal(size=(len(owners), len(TRUTH)))
    X[:, -1] = (rng.random(n_users) < 0.05)[owners]
    logits, options = X @ TRUTH + level, {"max_rows_per_user": 3, "inference": True, "allow_weak": True}
    if kind == "logistic":
        y = (rng.random(len(X)) < 1 / (1 + np.exp(-logits))).astype(int)
        model = userdp.LogisticRegression(epsilon, classes=[0, 1], **options)
    else:
        y = np.minimum(rng.poisson(np.exp(logits)), 10)
        model = userdp.PoissonRegressor(epsilon, max_count=10, **options)
    model.fit(X, y, groups=owners)
    if model.uncertainty_ is None:
        return None
    table = model.summary()
    return np.asarray((table.coef - np.append(TRUTH, level)) / table.std_err)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--runs", type=int, default=40)
    options.add_argument("--seed", type=int, default=7)
    chosen = options.parse_args()
    far: list[float] = []
    measured, inference._FARTHEST = inference._far, math.inf  # nothing is widened

    def noted(*of):
        found = measured(*of)
        far.append(max(found))
        return found

    inference._far = noted
    warnings.simplefilter("ignore")
    for kind in ("logistic", "poisson"):
        seen, changes, none = [], [], 0
        for run in range(chosen.runs):
            for number, cell in enumerate(CELLS):
                errors = fit(kind, *cell, np.random.default_rng([chosen.seed, run, number]))
                none += errors is None
                if errors is not None:
                    seen.append(np.abs(errors))
                    changes.append(far[-1])
        print(f"{kind}: {len(seen) + none} fits, {none} without intervals because curvatures are too rough")
        for low, high in itertools.pairwise(BINS):
            among = [number for number, change in enumerate(changes) if low < change <= high]
            if among:
                errors, factors = np.array(seen)[among], np.exp(np.array(changes)[among])[:, None]
                plain, wide = errors < 1.96, errors < 1.96 * factors
                parts = "  ".join(
                    f"{name} {one.mean():.3f} (flag {one[:, -2].mean():.2f}, intercept {one[:, -1].mean():.2f})"
                    for name, one in (("plain", plain), ("widened", wide))
                )
                print(f"  {low:.1f} to {high:.1f}: {len(among):4} fits  {parts}", flush=True)


if __name__ == "__main__":
    main()
