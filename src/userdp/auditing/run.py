"""The audit: every attack on what is asked for, as a table of claims and lower bounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from userdp.auditing.attack import Finding, attacked
from userdp.auditing.canaries import audit_canaries
from userdp.auditing.membership import audit_edges, audit_membership
from userdp.auditing.pairs import Pair, mechanism_pairs, remembered_counts, tested_pairs
from userdp.models.private_mean import plan_mean
from userdp.privacy.accounting import Budget
from userdp.privacy.mechanisms.base import check_counts
from userdp.privacy.noise import noise_source
from userdp.solvers.registry import SOLVERS

PRIVATE_MEAN = "private_mean"
_MEAN_USERS = 4000
_TRAININGS = 0.02  # of the runs
_SLOW = {("accelerated", "paper"), ("phased-sgd", "paper")}  # 100,000 users a training
_MANY_WEIGHTS = 192
# Features with which a solver's plan for some thousand users exists: a planted user has one of its own.
_CANARIES = {"bassily-sun": 32, "bassily-sun-local": 8}

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
        head = f"{'what':<34}{'mode':<7}{'attack':<12}{'claim':>7}{'bound':>8}{'shaped':>8}  verdict"
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
    mode: "tight" or "paper", or both if None; runs: of each of two neighbouring data sets, for a mechanism; whole
    trainings get fewer; confidence: that no bound of the table is wrong; fast: the strongest attack on each only;
    insecure_seed: repeatable noise instead of that which is shipped, several times as fast.

    A bound above a claim shows a bug. A bound below it proves nothing: attacks may be weak. All data is made up.

    >>> report = audit(1.0, 1e-2, mechanism="LocalVotes", runs=2000, fast=True)
    >>> report.holds, report.findings[0].bound > 0.5
    (True, True)
    """
    check_counts(at_least=100, runs=runs)
    if not 0 < confidence < 1:
        raise ValueError(f"Expected 0 < confidence={confidence} < 1.")
    budget = Budget(epsilon, delta)
    jobs = _jobs(budget, solver, mechanism, mode, runs, fast, insecure_seed)
    findings = []
    for number, (name, job) in enumerate(jobs):
        if progress is not None:
            progress(name, number, len(jobs))
        findings.append(job((1 - confidence) / len(jobs)))
    return AuditReport(tuple(findings), confidence, insecure_seed is None)


def auditable(epsilon: float = 1.0, delta: float = 1e-2) -> tuple[list[str], list[str]]:
    """Names of solvers, and of mechanisms."""
    pairs = mechanism_pairs(Budget(epsilon, delta))
    mechanisms = dict.fromkeys([_plain_name(pair) for pair in pairs] + [PRIVATE_MEAN])
    return sorted({name for name, _ in SOLVERS}), list(mechanisms)


def _jobs(
    budget: Budget,
    solver: str | None,
    mechanism: str | None,
    mode: str | None,
    runs: int,
    fast: bool,
    seed: int | None,
) -> list[tuple[str, Job]]:
    if mode not in (None, "tight", "paper"):
        raise ValueError(f'Expected mode="tight" or "paper", got mode={mode!r}.')
    jobs: list[tuple[str, Job]] = []
    if solver is None:
        pairs = [pair for pair in _pairs(budget) if mechanism in (None, _plain_name(pair))]
        if not pairs:
            names = ", ".join(auditable(budget.epsilon, budget.delta)[1])
            raise ValueError(f"Expected a mechanism of {names}; got {mechanism!r}.")
        jobs += [_pair_job(pair, budget, runs, seed) for pair in pairs if _asked(pair, mode, fast)]
    if mechanism is None:
        chosen = [key for key in SOLVERS if solver in (None, key[0]) and mode in (None, key[1])]
        if solver is not None and not chosen:
            names = ", ".join(sorted({name for name, _ in SOLVERS}))
            raise ValueError(f"Expected a solver of {names}, in a mode that it has; got {solver!r}, mode={mode!r}.")
        for key in chosen:
            jobs += _solver_jobs(key, budget, runs, fast, seed)
    return jobs


def _pairs(budget: Budget) -> list[Pair]:
    """Attacks on mechanisms, and on `private_mean`, which is one of them as its planner sets it up."""
    mean = plan_mean(_MEAN_USERS, budget, (1.0, 1.15, 1.3), outliers=0.0)
    return [*mechanism_pairs(budget), *tested_pairs(PRIVATE_MEAN, mean)]


def _plain_name(pair: Pair) -> str:
    return pair.what.split(",")[0].split(" with")[0]


def _asked(pair: Pair, mode: str | None, fast: bool) -> bool:
    return mode in (None, pair.mode) and (not fast or (pair.strongest and pair.weight >= 1))


def _pair_job(pair: Pair, budget: Budget, runs: int, seed: int | None) -> tuple[str, Job]:
    names, number = (pair.what, pair.mode, pair.attack), max(100, math.ceil(pair.weight * runs))

    def job(alpha: float) -> Finding:
        with remembered_counts():
            return attacked(names, pair.cost, pair.play, noise_source(seed), number, budget.delta, alpha)

    return f"{pair.what}: {pair.attack}", job


def _solver_jobs(
    key: tuple[str, str], budget: Budget, runs: int, fast: bool, seed: int | None
) -> list[tuple[str, Job]]:
    """Canaries, and unless `fast` or slow also repeated trainings with one user at an edge or replaced."""
    trainings = max(60, math.ceil(_TRAININGS * runs))
    slow = key in _SLOW
    weights = 8 if slow else _CANARIES.get(key[0], _MANY_WEIGHTS)
    few = 1 if slow else math.ceil(trainings / (40 if fast else 8))
    jobs: list[tuple[str, Job]] = [
        (f"{key[0]}, {key[1]}: canaries", lambda alpha: audit_canaries(*key, budget, alpha, weights, few, seed))
    ]
    if fast or slow:
        return jobs
    edges, members = audit_edges, audit_membership
    jobs.append((f"{key[0]}: edges", lambda alpha: edges(*key, budget, alpha, trainings, seed)))
    jobs.append((f"{key[0]}: membership", lambda alpha: members(*key, budget, alpha, trainings, seed)))
    return jobs


def _line(finding: Finding) -> str:
    shaped = "" if finding.shaped is None else f"{finding.shaped:.3f}"
    numbers = f"{finding.claim:>7.3f}{finding.bound:>8.3f}{shaped:>8}"
    verdict = "holds" if finding.holds else "EXCEEDED"
    return f"{finding.what:<34}{finding.mode:<7}{finding.attack:<12}{numbers}  {verdict}"
