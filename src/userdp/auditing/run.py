"""The audit: every attack on what is asked for, as a table of claims and lower bounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

from userdp._validate import check_counts
from userdp.auditing.bounds import Finding
from userdp.auditing.pairs import Pair, mechanism_pairs
from userdp.auditing.plans import plan_pairs
from userdp.auditing.trainings import VARIANTS, audit_canaries, audit_edges, audit_membership
from userdp.privacy.accounting import Budget
from userdp.privacy.noise import noise_source
from userdp.solvers.planner import AUTO
from userdp.solvers.solver import ATTACKS, SOLVERS

_TRAININGS = 0.02  # of the runs
_SLOW = {("accelerated", "paper"), ("phased-sgd", "paper")}  # 100,000 users per training

Job = Callable[[float], Finding]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class AuditReport:
    """What an audit found; `confidence` is that no bound of the whole table is wrong."""

    findings: tuple[Finding, ...]
    confidence: float
    secure: bool
    date: str = field(default_factory=lambda: datetime.now(UTC).date().isoformat())

    @property
    def holds(self) -> bool:
        """Whether no lower bound is above its claim."""
        return all(finding.holds for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        lines = [finding.to_dict() for finding in self.findings]
        numbers = {"date": self.date, "confidence": self.confidence, "secure_noise": self.secure, "holds": self.holds}
        return numbers | {"findings": lines}

    def __str__(self) -> str:
        head = f"{'what':<34}{'mode':<12}{'attack':<12}{'claim':>7}{'bound':>8}{'shaped':>8}  result"
        return "\n".join([head, *map(_line, self.findings)])


def audit(
    epsilon: float = 1.0,
    delta: float = 1e-2,
    *,
    solver: str | None = None,
    mechanism: str | None = None,
    mode: str | None = None,
    runs: int = 20_000,
    confidence: float = 0.95,
    fast: bool = False,
    insecure_seed: int | None = None,
    progress: Progress | None = None,
) -> AuditReport:
    """Attack what the library claims to be (epsilon, delta)-DP, and give lower bounds on epsilon from what attacks see.

    solver, mechanism: one of them by name, or everything if both are None (`auditable` lists the names);
    mode: "calibrated" or "paper", or both if None; runs: of each of two neighbouring data sets, for a mechanism; whole
    trainings get fewer; confidence: that no bound of the table is wrong; fast: the strongest attack on each only;
    insecure_seed: repeatable noise instead of that which is shipped, several times as fast.

    A bound above a claim shows a bug. A bound below it proves nothing: attacks may be weak. All data is generated.

    >>> report = audit(1.0, 1e-2, mechanism="GaussianTest", runs=2000, fast=True, insecure_seed=0)
    >>> report.holds, report.findings[0].bound > 0.5
    (True, True)
    """
    check_counts(at_least=100, runs=runs)
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be above 0 and below 1, got {confidence}.")
    if mode not in (None, "calibrated", "paper"):
        raise ValueError(f'mode must be "calibrated" or "paper", got {mode!r}.')
    budget, jobs = Budget(epsilon, delta), []
    if solver is None:
        jobs += _mechanism_jobs(budget, mechanism, mode, runs, fast, insecure_seed)
    if mechanism is None:
        jobs += _solver_jobs(budget, solver, mode, runs, fast, insecure_seed)
    findings = []
    for number, (name, job) in enumerate(jobs):
        if progress is not None:
            progress(name, number, len(jobs))
        findings.append(job((1 - confidence) / len(jobs)))
    return AuditReport(tuple(findings), confidence, insecure_seed is None)


def auditable(epsilon: float = 1.0, delta: float = 1e-2) -> tuple[list[str], list[str]]:
    """Names of solvers, and of mechanisms and plans."""
    names = dict.fromkeys(_plain_name(pair) for pair in _pairs(Budget(epsilon, delta)))
    return sorted({name for name, _ in SOLVERS}), list(names)


def _pairs(budget: Budget) -> list[Pair]:
    others = [pair for attacks in ATTACKS for pair in attacks(budget)]
    return [*mechanism_pairs(budget), *others, *plan_pairs(budget)]


def _plain_name(pair: Pair) -> str:
    return pair.what.split(",")[0]


def _mechanism_jobs(
    budget: Budget, mechanism: str | None, mode: str | None, runs: int, fast: bool, seed: int | None
) -> list[tuple[str, Job]]:
    """Attacks on mechanisms, and on whole plans of them."""
    pairs = [pair for pair in _pairs(budget) if mechanism in (None, _plain_name(pair))]
    if not pairs:
        names = ", ".join(auditable(budget.epsilon, budget.delta)[1])
        raise ValueError(f"mechanism must be one of {names}, got {mechanism!r}.")
    return [
        (
            f"{pair.what}: {pair.attack}",
            partial(pair.attacked, noise_source(seed), max(100, math.ceil(pair.weight * runs)), budget.delta),
        )
        for pair in pairs
        if mode in (None, pair.mode) and (not fast or (pair.strongest and pair.weight >= 1))
    ]


def _solver_jobs(
    budget: Budget, solver: str | None, mode: str | None, runs: int, fast: bool, seed: int | None
) -> list[tuple[str, Job]]:
    """Canaries, and unless `fast` or slow also repeated trainings with one user at an edge or replaced."""
    chosen = [key for key in SOLVERS if solver in (None, key[0]) and mode in (None, key[1])]
    if solver is not None and not chosen:
        names = ", ".join(sorted({name for name, _ in SOLVERS}))
        raise ValueError(f"solver must be one of {names}, in a mode that it has, got {solver!r}, mode={mode!r}.")
    trainings = max(60, math.ceil(_TRAININGS * runs))
    repeated: dict[str, Any] = {"trainings": trainings, "insecure_seed": seed}
    jobs: list[tuple[str, Job]] = []
    for key in chosen:
        few = 1 if key in _SLOW else math.ceil(trainings / (40 if fast else 8))
        planted: dict[str, Any] = {"n_canaries": SOLVERS[key].most_canaries, "trainings": few, "insecure_seed": seed}
        jobs.append((f"{key[0]}, {key[1]}: canaries", partial(audit_canaries, *key, budget, **planted)))
        if not fast and key not in _SLOW:
            jobs.append((f"{key[0]}: edges", partial(audit_edges, *key, budget, **repeated)))
            jobs.append((f"{key[0]}: membership", partial(audit_membership, *key, budget, **repeated)))
    if not fast and (AUTO, "calibrated") in chosen:
        jobs += [(f"{name}: edges", partial(audit_edges, name, "calibrated", budget, **repeated)) for name in VARIANTS]
    return jobs


def _line(finding: Finding) -> str:
    shaped = "" if finding.shaped is None else f"{finding.shaped:.3f}"
    numbers = f"{finding.claim:>7.3f}{finding.bound:>8.3f}{shaped:>8}"
    verdict = "holds" if finding.holds else "EXCEEDED"
    return f"{finding.what:<34}{finding.mode:<12}{finding.attack:<12}{numbers}  {verdict}"
