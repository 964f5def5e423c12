"""Which parts of the default solver matter: excess risk with one of them switched off, over that of all parts.

A part is switched off by other numbers of `userdp.solvers.constants`, or by another function in its place. Cells are
generated users whose best model is known, and real ones. Users and noise of a run are the
same with and without the part, so that much of the chance cancels. The ratio is that of the means over all runs; its
standard error is that of a ratio of paired means. Where the first run is the same to the last digit the part does
nothing in that cell, and no more runs are made.

NOT PRIVATE: runs are seeded, and scored against the truth.

    python benchmarks/ablation.py [--parts zoom,recalibration] [--cells rows-1,poisson] [--runs 8] [--minutes 60]
        [--json docs/bench/ablation.json]
    python benchmarks/ablation.py --json docs/bench/ablation.json [--again] [--table docs/ablation.md]
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit, log_softmax, ndtr, ndtri, softmax

from userdp import Ball, Solver, UserData, losses
from userdp.models.fitting import minimize
from userdp.solvers import constants, descent, schedule, shrinkage, whitened_clip, whitening
from userdp_research.bench.cells import NOTE, provenance
from userdp_research.bench.references import user_optimum
from userdp_research.bench.scoring import HeldOut
from userdp_research.bench.tasks import known_tasks

NEVER, ALWAYS, FRESH = 1e9, 10**12, 40_000
MARKS = ("<!-- ablation: begin -->\n", "<!-- ablation: end -->\n")
Change = tuple[Any, str, Any]  # what is changed for a part: an object, its attribute, and the other value


def constant(**others: Any) -> list[Change]:
    return [(constants, name, value) for name, value in others.items()]


def phases(change: Callable[..., Any]) -> list[Change]:
    """Other clipped phases: `change` of the phase, its problem and layout."""
    usual = whitened_clip._phase

    def other(problem: Any, layout: Any, step: Any, sampled: float) -> Any:
        return change(usual(problem, layout, step, sampled), problem, layout)

    return [(whitened_clip, "_phase", other)]


def clip_as_full(phase: Any, problem: Any, layout: Any) -> Any:
    return replace(phase, fast=False) if layout.fast else phase


_EARLY = tuple(label for label in schedule.APPROACH if label != schedule.EARLY_CURVATURE)
PARTS: dict[str, list[Change]] = {
    # schedules
    "fast schedule": constant(FEWEST_FAST=ALWAYS),
    "early curvature": [(schedule, "APPROACH", _EARLY), (descent, "APPROACH", _EARLY)],
    "steps for a rare class": constant(RARE_CLASS=(1, 1e-6), FLAT=0.0),
    "three numbers of fast steps": constant(FAST_STEPS=((1e-3, (3, 5)),)),
    "pace of targets far off": constant(FAR_OFF=NEVER),
    "recalibration": constant(TOO_NOISY=-1.0),
    "recalibration only with eight weights": constant(FEWEST_WEIGHTS=0),
    "recalibration only with little noise": constant(TOO_NOISY=NEVER),
    "whitening's fraction by noise": constant(WHITENING=(0.2, 1.0, 0.0)),
    # whitening
    "columns' scales": constant(FREQUENT=0.0),
    "rows' scale": [(whitening, "likely_scale", lambda *_: 1.0)],
    "prior of rows' scale": constant(UNLIKELY=0.0),
    "a constant that is seen": constant(NEAR_SCALE=(1.0, 1.0)),
    "five stages rather than three": constant(STAGES=(1 / 3,) * 3),
    "later stages get more": constant(STAGES=(0.2,) * 5),
    "thresholds": constant(AXIS_NOISE=0.0),
    "ridge": constant(RIDGE=1e-9),
    # clips
    "long rows count less": constant(LONGEST=0.03),
    "room for long rows": constant(ROOM=0.0),
    "wider clips for few weights": constant(CLIP=(*constants.CLIP[:2], 0.0)),
    "clips for lopsided classes": constant(LOPSIDED=0.0),
    "recalibration's clips for lopsided classes": constant(LOPSIDED_RECALIBRATION=0.0),
    "fast clips by a tail": phases(clip_as_full),
    # sizes and steps
    "usual sizes": [(descent, "_USUAL_SIZES", np.full(12, 1 / 12))],
    "forgetting sizes": constant(FORGET=1.0),
    "zoom": constant(CLEARLY=NEVER),
    "steps limited by noise": constant(MOST_NOISE=NEVER),
    "a prior of the curvature": constant(CURVATURE_SPREAD=NEVER),
    "the measured curvature": constant(CURVATURE_SPREAD=0.0),
    "curvature where it settles": [(descent.Run, "settled", lambda self, state, average: (state, average))],
    # shrinkage and recalibration
    "shrinkage": [(shrinkage.Axes, "shrunk", lambda self, point, *_: point)],
    "curvature of axes": [(whitened_clip, "curved_along", lambda axes, *_: (np.ones(len(axes.known)),) * 2)],
    "flat axes": constant(FLAT_AXES=0.0),
    "first steps of linear losses left out": constant(FAR_STEPS=0),
    "clear intercepts": constant(CLEAR=NEVER),
    "the mean kept by the intercept": [(shrinkage.Axes, "with_mean_of", lambda self, point, *_: point)],
    "prior of recalibration": constant(CLIPPING=NEVER),
    "clipping in recalibration's prior": constant(CLIPPING=0.0),
}


@contextmanager
def without(part: str | None) -> Iterator[None]:
    """The solver without a part, for as long as the block lasts."""
    changes = [] if part is None else PARTS[part]
    usual = [(of, name, vars(of)[name]) for of, name, _ in changes]
    for of, name, value in changes:
        setattr(of, name, value)
    try:
        yield
    finally:
        for of, name, value in usual:
            setattr(of, name, value)


# --- generated users --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """Users of a kind at one epsilon: `features` besides the intercept, of which the first two have an effect.

    `columns`: "normal", "heavy" (Student's t, 4 degrees of freedom), "skewed" (log-normal), "flag" (one more column,
    which one user in twenty has and whose coefficient is scored), or "copy" (the last is the first one's copy);
    `level`: the intercept; `bound` of the declared range of targets, whose errors are 0.15 of what is usual.
    """

    name: str
    loss: str
    n_users: int
    rows: int
    epsilon: float
    features: int = 10
    signal: float = 2.0
    level: float = 0.0
    columns: str = "normal"
    correlation: float = 0.0
    odd_units: bool = False
    bound: float = 1.0
    delta: float = 1e-6

    def label(self) -> str:
        pure = ", delta=0" if self.delta == 0 else ""
        return f"{self.name}, {self.n_users:,} x {self.rows}, epsilon {self.epsilon:g}{pure}"

    def standard(self, seed: int, n_users: int, rows: int) -> np.ndarray:
        """Features in usual units, a tenth of their variance shared by a user's rows."""
        rng = np.random.default_rng(seed)
        z = math.sqrt(0.9) * rng.standard_normal((n_users * rows, self.features), np.float32)
        z += math.sqrt(0.1) * np.repeat(rng.standard_normal((n_users, self.features), np.float32), rows, axis=0)
        if self.correlation:
            shared = rng.standard_normal((len(z), 1), np.float32)
            z = math.sqrt(1 - self.correlation) * z + math.sqrt(self.correlation) * shared
        if self.columns == "heavy":
            z /= np.sqrt(rng.chisquare(4, (len(z), 1)) / 2).astype(np.float32)
        elif self.columns == "skewed":
            z[:, ::2] = (np.exp(z[:, ::2]) - math.exp(0.5)) / 2.16
        elif self.columns == "flag":
            z[:, -1] = np.repeat(rng.random(n_users) < 0.05, rows)
        elif self.columns == "copy":
            z[:, -1] = z[:, 0]
        return z

    @property
    def effects(self) -> np.ndarray:
        effects = np.zeros(self.features)
        effects[:2] = self.signal, -self.signal / 2
        if self.columns == "flag":
            effects[-1] = self.signal
        return effects

    @property
    def units(self) -> tuple[np.ndarray, float]:
        """Standard deviations, and means over them."""
        mixed = np.logspace(-2, 3, self.features)[np.random.default_rng(0).permutation(self.features)]
        return (mixed, 10.0) if self.odd_units else (np.ones(self.features), 0.0)

    def margins(self, z: np.ndarray) -> np.ndarray:
        """The true predictions, a column per class of three."""
        margin = z @ self.effects.astype(np.float32) + self.level
        if self.loss == "multinomial":
            return np.column_stack([margin, z[:, 0] * self.signal / 2 - z[:, 1], 0 * margin])
        return np.asarray(margin)

    def draw(self, seed: int) -> UserData:
        z = self.standard(seed, self.n_users, self.rows)
        margins, rng = self.margins(z).astype(np.float64), np.random.default_rng([seed, 1])
        if self.loss == "multinomial":
            y = np.argmax(margins + rng.gumbel(size=margins.shape), axis=1).astype(np.float64)
        elif self.loss == "logistic":
            y = (rng.random(len(z)) < expit(margins)).astype(np.float64)
        elif self.loss == "poisson":
            y = np.minimum(rng.poisson(np.exp(margins)), 20) / 20
        elif self.loss == "huber":
            y = margins + 0.15 * rng.standard_t(3, len(z))
        else:
            y = margins + 0.15 * rng.standard_normal(len(z))
        scale, mean = self.units
        rows = ((z + mean) * scale).astype(np.float32)
        offsets = np.arange(0, len(z) + 1, self.rows)
        return UserData(rows, np.asarray(y, np.float64), offsets, has_intercept=True)

    def score(self, weights: np.ndarray, _: UserData) -> float:
        """The excess of the expected loss over the truth's on fresh rows; of a flag its coefficient's squared error."""
        scale, mean = self.units
        blocks = weights.reshape(-1, self.features + 1)
        if self.columns == "flag":
            return float((blocks[0, -2] - self.signal) ** 2)
        z, true = _fresh(self)
        found = z @ (blocks[:, :-1] * scale).T + (blocks[:, -1] + (blocks[:, :-1] * scale).sum(axis=1) * mean)
        if self.loss == "multinomial":
            gaps = log_softmax(true, axis=1) - log_softmax(found, axis=1)
            return float(np.mean((softmax(true, axis=1) * gaps).sum(axis=1)))
        margin = found[:, 0]
        if self.loss == "logistic":
            gain = np.logaddexp(0, margin) - np.logaddexp(0, true) - expit(true) * (margin - true)
        elif self.loss == "poisson":
            mean_count = np.exp(true)
            gain = (np.exp(margin) - mean_count - mean_count * (margin - true)) / 20
        elif self.loss == "quantile":  # the pinball loss of normal errors of standard deviation 0.15
            z_true, z_found = float(ndtri(0.9)), (margin - true) / 0.15
            gain = 0.15 * (_pinball(z_found) - _pinball(np.array(z_true)))
        elif self.loss == "huber":
            errors = 0.15 * np.random.default_rng(5).standard_t(3, len(true))
            gap, huber = margin - true, losses.huber(0.2).value
            gain = (huber(gap, errors) + huber(gap, -errors)) / 2 - huber(0 * gap, errors)
        else:
            gain = (margin - true) ** 2 / 2
        return float(np.mean(gain))

    def fit(self, data: UserData, seed: int) -> np.ndarray:
        known = {"poisson": losses.poisson(20.0), "huber": losses.huber(0.2), "quantile": losses.quantile(0.9)}
        known |= {"multinomial": losses.multinomial(3), "logistic": losses.logistic, "squared": losses.squared}
        bound = None if self.loss in ("logistic", "multinomial") else self.bound
        settings = {"rows_per_user": self.rows, "target_bound": bound, "insecure_seed": seed}
        return minimize(known[self.loss], data, Ball(NEVER), self.epsilon, self.delta, **settings).weights


def _pinball(z: np.ndarray) -> np.ndarray:
    """Expected pinball loss of level 0.9 of a standard normal target, at the prediction z."""
    return z * (ndtr(z) - 0.9) + np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)


@functools.lru_cache(maxsize=2)
def _fresh(cell: Cell) -> tuple[np.ndarray, np.ndarray]:
    z = cell.standard(10**6, FRESH, 1)
    return z, cell.margins(z).astype(np.float64)


# --- real users -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RealCell:
    """Users of a task of `userdp-bench real`, scored on themselves: test users are too few to tell so small changes."""

    name: str
    epsilon: float
    users: int | None = None

    def label(self) -> str:
        return f"{self.name}, {'all' if self.users is None else f'{self.users:,}'} users, epsilon {self.epsilon:g}"

    def draw(self, seed: int) -> UserData:
        return known_tasks()[self.name].load_train(seed, self.users)

    def score(self, weights: np.ndarray, data: UserData) -> float:
        """The excess of the users' mean loss over the least one, on the rows that are fitted."""
        scored, least = _own(self, data)
        return float(scored.score(weights)["loss"]) - least

    def fit(self, data: UserData, seed: int) -> np.ndarray:
        task = known_tasks()[self.name]
        bound = None if task.loss.classifies else 1.0
        settings = {
            "rows_per_user": 30,
            "solver": Solver(row_norm=task.longest(data.n_features)),
            "target_bound": bound,
        }
        return minimize(task.loss, data, Ball(NEVER), self.epsilon, 1e-6, insecure_seed=seed, **settings).weights


@functools.lru_cache(maxsize=1)
def _own(cell: RealCell, data: UserData) -> tuple[HeldOut, float]:
    task = known_tasks()[cell.name]
    scored = HeldOut(task.loss, data, task.middle, task.unit)
    return scored, float(scored.score(user_optimum(task.loss, data))["loss"])


def _at(*epsilons: float, **settings: Any) -> list[Cell]:
    return [Cell(epsilon=epsilon, **settings) for epsilon in epsilons]


_WEAK: dict[str, Any] = {"signal": 0.2}  # targets are then within [-1, 1], mostly, as estimators scale them
CELLS: list[Cell | RealCell] = [
    *_at(1, 8, name="rows-1", loss="logistic", n_users=5_000, rows=1),
    *_at(1, name="rows-10", loss="logistic", n_users=30_000, rows=10),  # fast
    *_at(1, 8, name="rare", loss="logistic", n_users=5_000, rows=1, signal=1.0, level=-4.3),
    *_at(4, name="odd-units", loss="logistic", n_users=5_000, rows=5, odd_units=True),
    *_at(4, name="squared", loss="squared", n_users=5_000, rows=1, **_WEAK),
    *_at(1, 4, name="rare", loss="logistic", n_users=40_000, rows=8, signal=1.0, level=-5.0),  # fast
    *_at(4, name="poisson", loss="poisson", n_users=5_000, rows=3, signal=0.5, level=0.0),
    *_at(4, name="squared", loss="squared", n_users=30_000, rows=10, **_WEAK),  # fast
    *_at(4, name="squared wide range", loss="squared", n_users=5_000, rows=3, bound=30.0, **_WEAK),
    *_at(4, name="squared far off", loss="squared", n_users=5_000, rows=3, bound=10.0, level=8.0, **_WEAK),
    *_at(8, name="squared flag", loss="squared", n_users=5_000, rows=3, features=5, columns="flag", **_WEAK),
    *_at(8, name="squared copy", loss="squared", n_users=5_000, rows=3, columns="copy", **_WEAK),
    RealCell("online_retail", 1.0),
    *_at(8, name="rows-10", loss="logistic", n_users=3_000, rows=10),
    *_at(0.1, name="rows-3", loss="logistic", n_users=3_000, rows=3),
    *_at(0.5, name="rows-3", loss="logistic", n_users=5_000, rows=3),
    *_at(4, name="odd-units", loss="logistic", n_users=50_000, rows=5, odd_units=True),  # fast
    *_at(1, name="few-weights", loss="logistic", n_users=5_000, rows=1, features=3),
    *_at(4, name="correlated", loss="logistic", n_users=5_000, rows=3, features=20, correlation=0.9),
    RealCell("openpowerlifting", 1.0),
    *_at(4, name="heavy", loss="logistic", n_users=5_000, rows=3, columns="heavy"),
    *_at(4, name="multinomial", loss="multinomial", n_users=5_000, rows=2),
    *_at(4, name="squared skewed", loss="squared", n_users=5_000, rows=3, columns="skewed", **_WEAK),
    *_at(4, name="squared wide range", loss="squared", n_users=30_000, rows=10, bound=30.0, **_WEAK),  # fast
    *_at(4, name="squared flag", loss="squared", n_users=70_000, rows=3, features=5, columns="flag", **_WEAK),  # fast
    *_at(4, name="poisson rare", loss="poisson", n_users=5_000, rows=3, signal=0.5, level=-3.0),
    *_at(4, name="quantile", loss="quantile", n_users=5_000, rows=3, level=float(ndtri(0.9)) * 0.15, **_WEAK),
    *_at(4, name="rows-10", loss="logistic", n_users=5_000, rows=10, delta=0.0),
    *_at(4, name="rare", loss="logistic", n_users=5_000, rows=10, signal=1.0, level=-4.3),
    *_at(4, name="logistic flag", loss="logistic", n_users=20_000, rows=3, features=5, columns="flag", signal=1.0),
    *_at(4, name="huber", loss="huber", n_users=5_000, rows=3, **_WEAK),
    *_at(4, name="poisson rare", loss="poisson", n_users=30_000, rows=10, signal=0.5, level=-3.0),  # fast
    *_at(1, name="rows-50", loss="logistic", n_users=1_000, rows=50),
    *_at(4, name="features-40", loss="logistic", n_users=8_000, rows=2, features=40),
    *_at(8, name="squared", loss="squared", n_users=5_000, rows=3, delta=0.0, **_WEAK),
    RealCell("online_retail-quantity", 4.0),
    RealCell("openpowerlifting-kg", 4.0),
    RealCell("openpowerlifting", 1.0, 5_000),
]


def run(cell: Cell | RealCell, data: UserData, seed: int, part: str | None) -> float:
    with without(part):
        return cell.score(cell.fit(data, seed), data)


def measured(cell: Cell | RealCell, parts: list[str], runs: int) -> dict[str, Any]:
    """Excesses of all runs, with all parts and without each; parts that change nothing are left out."""
    usual: list[float] = []
    found: dict[str, list[float]] = {part: [] for part in parts}
    started = time.perf_counter()
    for seed in range(runs):
        data = cell.draw(seed)
        usual.append(run(cell, data, seed, None))
        for part in list(found):
            found[part].append(run(cell, data, seed, part))
            if seed == 0 and found[part] == usual:
                del found[part]
    seconds = round(time.perf_counter() - started, 1)
    return {"cell": cell.label(), "seconds": seconds, "usual": usual, "without": found}


def ratio(others: list[float], usual: list[float]) -> tuple[float, float]:
    """Of the means of paired numbers, and its standard error."""
    a, b = np.array(usual), np.array(others)
    r = float(b.mean() / a.mean())
    return r, float((b - r * a).std(ddof=1) / math.sqrt(len(a)) / abs(a.mean()))


def table(cells: list[dict[str, Any]]) -> str:
    """A line for each part: how many cells are worse or better without it, and the worst one; then all parts' cells."""
    lines = [
        "| without | cells | worse | better | worst cell | its ratio |",
        "|---|---:|---:|---:|---|---:|",
    ]
    for part in dict.fromkeys(part for cell in cells for part in cell["parts"]):
        acting = [(*ratio(cell["without"][part], cell["usual"]), cell) for cell in cells if part in cell["without"]]
        worse, better = (sum(sign * (r - 1) - 2 * error > 0.05 for r, error, _ in acting) for sign in (1, -1))
        if not acting:
            lines.append(f"| {part} | 0 | | | | |")
            continue
        r, error, cell = max(acting, key=lambda one: one[0] - 2 * one[1])
        lines.append(f"| {part} | {len(acting)} | {worse} | {better} | {cell['cell']} | {r:.2f} ± {error:.2f} |")
    return "\n".join(lines) + "\n"


def changes(cells: list[dict[str, Any]]) -> str:
    """A line for each cell that was run again once parts were removed: what all of it came to."""
    lines = ["| cell | excess before | after / before |", "|---|---:|---:|"]
    for cell in cells:
        if cell.get("after"):
            r, error = ratio(cell["after"], cell["usual"])
            lines.append(f"| {cell['cell']} | {np.mean(cell['usual']):.2g} | {r:.2f} ± {error:.2f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--cells", help="names of cells, all by default")
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--minutes", type=float, default=60.0, help="no cell is begun after that")
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--again", action="store_true", help="run the cells of --json again, with all parts that are left"
    )
    parser.add_argument("--table", type=Path, help="the page whose tables are made from --json; nothing is run")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    if asked.table or asked.again:
        record = json.loads(asked.json.read_text())
        for cell in (cell for cell in CELLS if asked.again):
            for known in record["cells"]:
                if known["cell"] == cell.label():
                    known["after"] = [run(cell, cell.draw(seed), seed, None) for seed in range(len(known["usual"]))]
                    print(known["cell"], *ratio(known["after"], known["usual"]), flush=True)
                    asked.json.write_text(json.dumps(record, indent=1) + "\n")
        if asked.table:
            before, _, rest = asked.table.read_text().partition(MARKS[0])
            made = f"{table(record['cells'])}\n{changes(record['cells'])}"
            asked.table.write_text(f"{before}{MARKS[0]}{made}{MARKS[1]}{rest.partition(MARKS[1])[2]}")
        return
    parts = asked.parts.split(",")
    names = None if asked.cells is None else asked.cells.split(",")
    started, cells = time.monotonic(), []
    for cell in CELLS:
        if (names is None or cell.name in names) and time.monotonic() - started < 60 * asked.minutes:
            cells.append({"parts": parts} | measured(cell, parts, asked.runs))
            print(cells[-1]["cell"], cells[-1]["seconds"], np.mean(cells[-1]["usual"]), flush=True)
            if asked.json:
                asked.json.write_text(json.dumps({"note": NOTE} | provenance() | {"cells": cells}, indent=1) + "\n")
    print(table(cells))


if __name__ == "__main__":
    main()
