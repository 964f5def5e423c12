"""An audit by somebody else: JAX Privacy's auditing, run against this library's curator, means and default solver.

    python benchmarks/independent_audit.py [--runs 20000] [--json docs/independent-audit.json]

Needs an environment with userdp and jax_privacy; `make audit` makes one. Attacks run the shipped code with the shipped
noise on two data sets that differ in one generated user, and give one number per run. One-run audits plant many users
into a single run, each with a coin of its own, and give one number per planted user. What these numbers prove about
epsilon is computed by `jax_privacy.auditing`, which we did not write. A mechanism with half of its noise is audited
too: the auditor has to find it out.

Only jax_privacy's file auditing.py is loaded, which needs numpy, scipy and dp_accounting. Release 2.0.0 has the same
bounds as the newest code (commit 8967688) but for `epsilon_from_gdp`, which takes a negative mu for evidence: of 2.0.0
it is not asked.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.metrics import roc_auc_score

from userdp import Budget, Clip, Curator, Ledger, Plan, Step, UserData, UserMean
from userdp import plan as compare
from userdp.auditing.trainings import edge_features, releases, training
from userdp.privacy.accounting import gaussian_multiplier, subsampled_multiplier
from userdp.privacy.statement import tradeoff
from userdp.statistics.moments import MomentShape


def load_auditing() -> Any:
    """`jax_privacy.auditing`, without what its package imports beside it."""
    package = importlib.util.find_spec("jax_privacy")
    assert package is not None
    assert package.origin is not None
    spec = importlib.util.spec_from_file_location("auditing", Path(package.origin).with_name("auditing.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["auditing"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


auditing = load_auditing()

AUDITOR = version("jax_privacy")
CONFIDENCE = 0.95
TRAININGS = 0.1  # of the runs
LEARN = 0.25  # of the trainings, for the weights of what is seen
PLANTED, PLANTED_IN_TRAINING = 2000, 500  # users in a one-run audit
ONE_RUN_DELTA = 1e-7  # the bound of a single run multiplies delta by the number of planted users

Scores = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Line:
    """What was found: `bound` on epsilon without assumptions, `gdp` if noise is Gaussian.

    Of two data sets they are `epsilon_clopper_pearson` and `epsilon_from_gdp`, of one run with many planted users
    `epsilon_one_run` and `epsilon_one_run_fdp`.

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
    run = training(solver, "calibrated", budget, n_features=2)
    data = run.generated_users()
    seen = [np.array([edge_features(run, data, sign, None) for _ in range(runs)]) for sign in (1, -1)]
    first = int(LEARN * runs)
    labels = np.repeat([1, 0], first)
    learned = LinearDiscriminantAnalysis().fit(np.concatenate([rows[:first] for rows in seen]), labels)
    one, other = (learned.decision_function(rows[first:]) for rows in seen)
    return run.plan.certified, (one, other)


def planted_coins(plan: Plan, budget: Budget) -> Scores:
    """One release of a curator: every user pulls along a coordinate of its own, up or down as a fair coin says."""
    (step,) = plan.steps
    signs = 2 * np.random.default_rng().integers(2, size=plan.n_users) - 1
    data = UserData.from_arrays(np.diag(1e6 * signs), None, np.arange(plan.n_users))
    shown = Curator(data, plan, Ledger(budget)).release(step.label, UserMean(), 1.0)
    return shown[signs > 0], shown[signs < 0]


def coins_of_training(solver: str, budget: Budget, n_planted: int) -> tuple[Plan, Scores]:
    """One training with so many planted users; seen is what the dearest step released in each one's coordinate."""
    run = training(solver, "calibrated", budget, n_features=n_planted, n_users=4 * n_planted)
    signs = 2 * np.random.default_rng().integers(2, size=n_planted) - 1
    shown = releases(run, run.generated_users(), signs, None)[run.target.label][:n_planted]
    return run.plan.certified, (shown[signs > 0], shown[signs < 0])


def line(
    what: str, plan: Plan, budget: Budget, scores: Scores, significance: float, began: float, one_run: bool = False
) -> Line:
    auditor = auditing.CanaryScoreAuditor(*scores)
    split = auditing.Split(threshold_estimation_frac=0.25, seed=0)
    if one_run:
        bound = auditor.epsilon_one_run(significance, budget.delta, threshold_strategy=split)
        gdp = auditor.epsilon_one_run_fdp(significance, budget.delta, threshold_strategy=split)
    else:
        bound = auditor.epsilon_clopper_pearson(significance, budget.delta, one_sided=False, threshold_strategy=split)
        gdp = None if AUDITOR == "2.0.0" else auditor.epsilon_from_gdp(significance, budget.delta)
    return Line(
        what=what,
        claim=budget.epsilon,
        delta=budget.delta,
        bound=float(bound),
        gdp=None if gdp is None else float(gdp),
        auc=float(roc_auc_score(np.repeat([1, 0], [len(one) for one in scores]), np.concatenate(scores))),
        allowed=largest_auc(plan, budget.delta),
        runs=1 if one_run else len(scores[0]),
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
        "Curator, SampledClip, q=0.5": whole(Clip(2, sampled / 2, sampling_probability=0.5)),
    }
    planted = {"mutant: Clip with half its noise": (whole(Clip(2, once / 2)), whole(Clip(2, once)), generous)}
    return {name: (plan, plan, budget) for name, plan in shipped.items()} | planted


def audit(budget: Budget, runs: int, tell: Callable[[str], None]) -> list[Line]:
    plans = cases(budget)
    solver = compare(800, 2, 2, budget.epsilon, budget.delta, fit_intercept=False, row_norm=1.0).choice
    assert solver is not None
    single = Budget(budget.epsilon, ONE_RUN_DELTA)
    once = gaussian_multiplier(single)
    one_run = {  # by name: the noise, and what the curator's ledger allows
        "one run, Clip, 2,000 planted users": (once, single),
        "mutant: one run, Clip with a fifth of its noise": (once / 5, Budget(20 * budget.epsilon, ONE_RUN_DELTA)),
    }
    significance, lines = (1 - CONFIDENCE) / (len(plans) + len(one_run) + 2), []
    for what, (plan, claimed, allowed) in plans.items():
        tell(what)
        began = time.perf_counter()
        lines.append(line(what, claimed, budget, of_curator(plan, allowed, runs), significance, began))
    tell(solver.solver)
    began = time.perf_counter()
    plan, scores = of_training(solver.solver, budget, max(200, int(TRAININGS * runs)))
    lines.append(line(f"training by {solver.solver} (auto)", plan, budget, scores, significance, began))
    for what, (multiplier, allowed) in one_run.items():
        tell(what)
        began = time.perf_counter()
        scores = planted_coins(whole(Clip(PLANTED, multiplier)), allowed)
        lines.append(line(what, whole(Clip(PLANTED, once)), single, scores, significance, began, one_run=True))
    what = f"one run, training by {solver.solver}, {PLANTED_IN_TRAINING} planted users"
    tell(what)
    began = time.perf_counter()
    plan, scores = coins_of_training(solver.solver, single, PLANTED_IN_TRAINING)
    lines.append(line(what, plan, single, scores, significance, began, one_run=True))
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
        planted = found.what.startswith("mutant")
        as_it_should &= found.holds is not planted
        verdict = "holds" if found.holds else "EXCEEDED"
        gdp = "   -" if found.gdp is None else f"{found.gdp:.2f}"
        print(
            f"{found.what:<52} claim {found.claim:.2f}  bound {found.bound:.2f}  gdp {gdp}  "
            f"AUC {found.auc:.3f}, allowed {found.allowed:.3f}  runs {found.runs:,}  {verdict}"
        )
    if asked.json is not None:
        record = {
            "date": datetime.now(UTC).date().isoformat(),
            "auditor": f"jax_privacy {AUDITOR}",
            "confidence": CONFIDENCE,
            "lines": [asdict(found) | {"holds": found.holds} for found in lines],
        }
        asked.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0 if as_it_should else 1


if __name__ == "__main__":
    sys.exit(main())
