"""An audit by somebody else: JAX Privacy's auditing, run against this library's curator, means and default solver.

    python benchmarks/independent_audit.py [--runs 20000] [--json docs/independent-audit.json]

Needs an environment with userdp and jax_privacy; `make audit` makes one. Attacks run the shipped code with the shipped
noise on two data sets that differ in one generated user, and give one number per run; what these numbers prove about
epsilon is computed by `jax_privacy.auditing`, which we did not write. A mechanism with half of its noise is audited
too: the auditor has to find it out.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from jax_privacy import auditing
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.metrics import roc_auc_score

from userdp import Budget, Clip, Curator, Ledger, Plan, Step, UserData, UserMean
from userdp import plan as compare
from userdp.auditing.trainings import edge_features, training
from userdp.privacy.accounting import gaussian_multiplier, subsampled_multiplier
from userdp.privacy.guarantee import tradeoff
from userdp.vectors.moments import MomentShape

CONFIDENCE = 0.95
TRAININGS = 0.1  # of the runs
LEARN = 0.25  # of the trainings, for the weights of what is seen
ENOUGH = 5000  # for epsilon_from_gdp: it takes |mu| of upper bounds on rates, which with few runs is no lower bound

Scores = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Line:
    """What was found: `bound` on epsilon without assumptions (Clopper and Pearson), `gdp` if noise is Gaussian.

    `auc`: area under the attack's ROC curve, by scikit-learn (JAX Privacy's is of the curve's hull, which is above it);
    `allowed`: the most that the statement's trade-off curve allows, up to the standard error of `auc`.
    """

    what: str
    claim: float
    delta: float
    bound: float
    gdp: float | None
    auc: float
    allowed: float
    runs: int
    seconds: float

    @property
    def holds(self) -> bool:
        return self.bound <= self.claim


def of_curator(plan: Plan, budget: Budget, runs: int) -> Scores:
    """Means of two users, one at 0 and one far off in one direction or the other, each run by a curator of its own.

    Vectors that never point apart are second moments: of a row along one feature or along the other.
    """
    (step,) = plan.steps
    acute = getattr(step.mechanism, "acute", False)
    statistic = MomentShape(np.eye(2)) if acute else UserMean()
    weights = np.array([1.0, 0.0, -1.0] if acute else [1.0])
    seen = []
    for far in ([1e6, 0.0], [0.0, 1e6]) if acute else ([1e6], [-1e6]):
        rows = np.zeros((plan.n_users, len(far)))
        rows[0] = far
        data = UserData.from_arrays(rows, None, np.arange(plan.n_users))
        totals = np.empty(runs)
        for run in range(runs):
            curator = Curator(data, plan, Ledger(budget))
            rounds = range(step.mechanism.rounds)
            totals[run] = sum(float(curator.release(step.label, statistic, 1.0) @ weights) for _ in rounds)
        seen.append(totals)
    return seen[0], seen[1]


def of_training(solver: str, budget: Budget, runs: int) -> tuple[Plan, Scores]:
    """Trainings with one user at an edge in every release; what is seen of the steps is weighed by a discriminant."""
    run = training(solver, "tight", budget, n_features=2)
    data = run.generated_users()
    seen = [np.array([edge_features(run, data, sign, None) for _ in range(runs)]) for sign in (1, -1)]
    first = int(LEARN * runs)
    labels = np.repeat([1, 0], first)
    learned = LinearDiscriminantAnalysis().fit(np.concatenate([rows[:first] for rows in seen]), labels)
    one, other = (learned.decision_function(rows[first:]) for rows in seen)
    return run.plan.certified, (one, other)


def line(what: str, plan: Plan, budget: Budget, scores: Scores, significance: float, began: float) -> Line:
    auditor = auditing.CanaryScoreAuditor(*scores)
    split = auditing.Split(threshold_estimation_frac=0.25, seed=0)
    bound = auditor.epsilon_clopper_pearson(significance, budget.delta, one_sided=False, threshold_strategy=split)
    return Line(
        what=what,
        claim=budget.epsilon,
        delta=budget.delta,
        bound=float(bound),
        gdp=float(auditor.epsilon_from_gdp(significance, budget.delta)) if len(scores[0]) >= ENOUGH else None,
        auc=float(roc_auc_score(np.repeat([1, 0], [len(one) for one in scores]), np.concatenate(scores))),
        allowed=largest_auc(plan, budget.delta),
        runs=len(scores[0]),
        seconds=round(time.perf_counter() - began, 1),
    )


def largest_auc(plan: Plan, delta: float) -> float:
    """1 - the area below the trade-off curve."""
    alarms, misses = np.array([*tradeoff(plan, delta).points, (1.0, 0.0)]).T
    return 1 - float(np.trapezoid(misses, alarms))


def whole(mechanism: Any) -> Plan:
    n_users = mechanism.n_vectors
    return Plan(n_users, (Step("mean", 0, n_users, mechanism),))


def cases(budget: Budget) -> dict[str, tuple[Plan, Plan, Budget]]:
    """By name: the plan that is run, the plan that is claimed, and the budget of the ledger."""
    once, thrice = gaussian_multiplier(budget), gaussian_multiplier(budget, 3)
    sampled = subsampled_multiplier(budget, 0.5, 1) * (1 + 1e-6)
    generous = Budget(10 * budget.epsilon, budget.delta)  # lets the planted bug through the curator
    shipped = {
        "Curator, Clip": whole(Clip(2, once)),
        "Curator, Clip, 3 rounds": whole(Clip(2, thrice, 3)),
        "Curator, Clip, acute vectors": whole(Clip(2, once, acute=True)),
        "Curator, SampledClip, q=.5": whole(Clip(2, sampled / 2, sampling_probability=0.5)),
    }
    planted = {"planted: Clip with half its noise": (whole(Clip(2, once / 2)), whole(Clip(2, once)), generous)}
    return {name: (plan, plan, budget) for name, plan in shipped.items()} | planted


def audit(budget: Budget, runs: int, tell: Callable[[str], None]) -> list[Line]:
    plans = cases(budget)
    solver = compare(800, 2, 2, budget.epsilon, budget.delta, fit_intercept=False, row_norm=1.0).choice
    assert solver is not None
    significance, lines = (1 - CONFIDENCE) / (len(plans) + 1), []
    for what, (plan, claimed, allowed) in plans.items():
        tell(what)
        began = time.perf_counter()
        lines.append(line(what, claimed, budget, of_curator(plan, allowed, runs), significance, began))
    tell(solver.solver)
    began = time.perf_counter()
    plan, scores = of_training(solver.solver, budget, max(200, int(TRAININGS * runs)))
    lines.append(line(f"training by {solver.solver} (auto)", plan, budget, scores, significance, began))
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--delta", type=float, default=1e-2)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    budget = Budget(asked.epsilon, asked.delta)
    lines = audit(budget, asked.runs, lambda what: print(f"  {what} ...", file=sys.stderr, flush=True))
    as_it_should = True
    for found in lines:
        planted = found.what.startswith("planted")
        as_it_should &= found.holds is not planted
        verdict = "holds" if found.holds else "EXCEEDED"
        print(
            f"{found.what:<36} claim {found.claim:.2f}  bound {found.bound:.2f}  gdp {found.gdp or math.nan:.2f}  "
            f"AUC {found.auc:.3f}, allowed {found.allowed:.3f}  runs {found.runs:,}  {verdict}"
        )
    if asked.json is not None:
        record = {
            "date": datetime.now(UTC).date().isoformat(),
            "auditor": f"jax_privacy {version('jax_privacy')}",
            "confidence": CONFIDENCE,
            "lines": [asdict(found) | {"holds": found.holds} for found in lines],
        }
        asked.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0 if as_it_should else 1


if __name__ == "__main__":
    sys.exit(main())
