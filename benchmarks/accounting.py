"""Calibration of the noise multiplier for Poisson-sampled steps: ours against dp-accounting's own search.

Compared in one run, CPU seconds: `subsampled_multiplier` (coarse grid to find, fine grid to certify) with
`dp_accounting.calibrate_dp_mechanism` over a PLD accountant under REPLACE_ONE, on its default grid of 1e-4 and on 1e-3,
at its default tolerance. Also drawing Gaussian noise with OpenDP: CPU milliseconds beside NumPy's unsafe ones.

Run: python benchmarks/accounting.py [--only calibration noise] [--quick]
"""

from __future__ import annotations

import time

import dp_accounting
import numpy as np
from common import run_parts
from dp_accounting import NeighboringRelation
from dp_accounting.pld import PLDAccountant
from rich.console import Console
from rich.table import Table

from userdp.privacy.accounting import Budget, subsampled_multiplier
from userdp.privacy.noise import SecureNoise

CASES = [(0.01, 1000, 1.0), (0.1, 1000, 1.0), (0.5, 1000, 1.0), (0.01, 1000, 4.0), (0.001, 1000, 0.5), (0.1, 1000, 8.0)]
DELTA = 1e-6
console = Console()


def theirs(q: float, steps: int, epsilon: float, grid: float) -> float:
    def event(z: float) -> dp_accounting.DpEvent:
        step = dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(z))
        return dp_accounting.SelfComposedDpEvent(step, steps)

    return dp_accounting.calibrate_dp_mechanism(
        lambda: PLDAccountant(NeighboringRelation.REPLACE_ONE, grid), event, epsilon, DELTA
    )


def timed(function, *arguments):
    started = time.process_time()
    result = function(*arguments)
    return result, time.process_time() - started


def calibration(repeats: int, quick: bool) -> list[dict]:
    """Quick: two cases, and only the coarser grid of dp-accounting."""
    records = []
    table = Table(
        "q", "steps", "epsilon", "multiplier", "ours, CPU s", "theirs at 1e-3", "theirs at 1e-4", "extra noise"
    )
    for q, steps, epsilon in CASES[:2] if quick else CASES:
        multiplier, ours = timed(subsampled_multiplier, Budget(epsilon, DELTA), q, steps)
        _, coarse = timed(theirs, q, steps, epsilon, 1e-3)
        reference, fine = (None, float("nan")) if quick else timed(theirs, q, steps, epsilon, 1e-4)
        excess = float("nan") if reference is None else multiplier / reference - 1
        records.append(
            {"q": q, "steps": steps, "epsilon": epsilon, "multiplier": multiplier, "ours_cpu_s": ours}
            | {"theirs_1e-3_cpu_s": coarse, "theirs_1e-4_cpu_s": fine, "extra_noise": excess}
        )
        row = (q, steps, epsilon, f"{multiplier:.4f}", f"{ours:.2f}", f"{coarse:.2f}", f"{fine:.1f}", f"{excess:.2%}")
        table.add_row(*map(str, row))
    console.print(table)
    return records


def noise(repeats: int, quick: bool) -> list[dict]:
    records = []
    for dimension in (10, 1000):
        query, secure = np.zeros(dimension), SecureNoise()
        secure.gaussian(query, 1.0, 5.0)
        _, safe = timed(lambda q=query, s=secure: [s.gaussian(q, 1.0, 5.0) for _ in range(20)])
        rng = np.random.default_rng(0)
        _, unsafe = timed(lambda r=rng, d=dimension: [r.normal(size=d) for _ in range(2000)])
        records.append({"dimension": dimension, "opendp_ms": 50 * safe, "numpy_ms": 0.5 * unsafe})
        console.print(
            "Gaussian noise, d={dimension}: {opendp_ms:.2f} ms safe, {numpy_ms:.4f} ms unsafe".format(**records[-1])
        )
    return records


PARTS = {"calibration": calibration, "noise": noise}


if __name__ == "__main__":
    run_parts("accounting", __doc__, PARTS)
