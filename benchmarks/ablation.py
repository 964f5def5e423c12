"""Which parts of the default solver matter: excess risk with one switched off, over that of all parts.

Each part is switched off by numbers of `userdp.solvers.constants`, on scenarios of `userdp-bench grid`; users and seeds
are the same for all parts, so that much of the chance cancels. A part that moves no cell by more than 5% can go. The
median of the runs' ratios is printed, and how many of the runs were worse without the part.

NOT PRIVATE: runs are seeded, and scored against the truth.

    python benchmarks/ablation.py [--parts recalibration,zoom] [--scenarios rows-1,rare-1] [--epsilon 1,8] [--runs 8]
        [--most-users 20000]
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from userdp import Ball
from userdp.models.fitting import minimize
from userdp.solvers import constants
from userdp_research.bench.generated import LOSSES, QUICK, SCENARIOS, draw_users, fresh_rows

NEVER, ALWAYS = 1e9, 10**12
PARTS: dict[str, dict[str, Any]] = {
    # schedules
    "fast schedule": {"FEWEST_FAST": ALWAYS},
    "steps for a rare class": {"RARE_CLASS": (1, 1e-6), "FLAT": 0.0},
    "momentum for a rare class": {"FLAT_PACE": constants.FAST_PACE},
    "recalibration": {"TOO_NOISY": -1.0},
    "recalibration only with eight weights": {"FEWEST_WEIGHTS": 0},
    "burn-in by noise": {"BURN_IN_FRACTIONS": (0.2, 0.2)},
    "whitening's fraction by noise": {"WHITENING": (0.25, 1.0, 0.0)},
    # whitening
    "columns' scales": {"FREQUENT": 0.0},
    "a constant that is seen": {"NEAR_SCALE": (1.0, 1.0)},
    "five stages": {"STAGES": (0.25, 0.35, 0.4)},
    "thresholds": {"MOST_THRESHOLD": 0.0},
    # clips
    "room for long rows": {"ROOM": 0.0},
    "wider clips for few weights": {"CLIP": (*constants.CLIP[:2], 0.0)},
    "least clip of one-row users": {"SKEWED": 0.0},
    "clips for lopsided classes": {"LOPSIDED": 0.0, "LOPSIDED_RECALIBRATION": 0.0},
    # sizes and steps
    "forgetting sizes": {"FORGET": 1.0},
    "zoom": {"CLEARLY": NEVER},
    "steps limited by noise": {"MOST_NOISE": NEVER},
    "a prior of the curvature": {"CURVATURE_SPREAD": NEVER},
    "the measured curvature": {"CURVATURE_SPREAD": 0.0},
    "curvature of counts followed": {"FOLLOWED": (1.0, 1.0)},
    "short steps of counts": {"NEARBY": NEVER},
    # shrinkage
    "powers of rows' variance": {"POWERS": (0.5,)},
    "curvature of axes": {"RELATIVE": (1.0, 1.0)},
    "flat axes": {"FLAT_AXES": 0.0},
    "first steps of linear losses left out": {"FAR_STEPS": 0},
    "clipping in recalibration's prior": {"CLIPPING": 0.0},
}


@contextmanager
def without(part: str | None) -> Iterator[None]:
    """The numbers that switch a part off, for as long as the block lasts."""
    changed = {} if part is None else PARTS[part]
    usual = {name: getattr(constants, name) for name in changed}
    for name, value in changed.items():
        setattr(constants, name, value)
    try:
        yield
    finally:
        for name, value in usual.items():
            setattr(constants, name, value)


def excesses(name: str, n_users: int, epsilon: float, runs: int, part: str | None) -> np.ndarray:
    scenario = SCENARIOS[name]
    loss, fresh, found = LOSSES[scenario.loss], fresh_rows(scenario), []
    options = {"rows_per_user": scenario.rows, "target_bound": None if loss.classifies else 1.0}
    for seed in range(runs):
        users = draw_users(scenario, n_users, seed)
        with without(part):
            result = minimize(loss, users, Ball(scenario.radius or 1e9), epsilon, 1e-6, insecure_seed=seed, **options)
        found.append(fresh.score(result.weights)["excess"])
    return np.array(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--scenarios", default=",".join(QUICK))
    parser.add_argument("--epsilon", default="1,8")
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--most-users", type=int, default=20_000)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    print(
        "| part | scenario | users | epsilon | excess without / with | worse without |\n|---|---|---:|---:|---:|---:|"
    )
    for name in asked.scenarios.split(","):
        for n_users in (n for n in SCENARIOS[name].users if n <= asked.most_users):
            for epsilon in map(float, asked.epsilon.split(",")):
                usual = excesses(name, n_users, epsilon, asked.runs, None)
                for part in asked.parts.split(","):
                    ratios = excesses(name, n_users, epsilon, asked.runs, part) / usual
                    worse = f"{(ratios > 1).sum()} of {asked.runs}"
                    print(
                        f"| {part} | {name} | {n_users:,} | {epsilon:g} | {np.median(ratios):.2f} | {worse} |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
